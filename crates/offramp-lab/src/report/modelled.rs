//! HTML pages with charts of the model's results.

pub mod claims;
pub mod explanation;
pub mod live;
pub mod load;
pub mod sensitivity;
pub mod sweep;

use offramp_model::profile::Profile;

use super::document::Table;

/// Returns a table of every number of a run, with interval, tag and source.
fn parameters(profile: &Profile) -> Table {
    let row = |(key, quantity): (
        &'static offramp_model::profile::schema::Key,
        &offramp_model::profile::quantity::Quantity,
    )| {
        let (value, scaled) = profile.used(key);
        let interval = quantity.interval.map(|interval| key.dimension.show_interval(interval)).unwrap_or_default();
        let source = scaled.map_or_else(|| quantity.source.clone(), |of| format!("{of}; {}", quantity.source));
        vec![key.name.to_owned(), value, interval, quantity.tag.to_string(), source]
    };
    Table {
        caption: format!("Parameters of {}", profile.name),
        head: ["parameter", "value", "interval", "known", "source"].map(str::to_owned).to_vec(),
        rows: profile.said().map(row).collect(),
        ..Table::default()
    }
}
