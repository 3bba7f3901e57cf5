//! The page of a sensitivity study.

use offramp_model::profile::Profile;
use offramp_model::sensitivity::{Effect, Sensitivity};

use crate::report::document::{Document, Section, Table};
use crate::report::figure::{Bar, BarPart, Bars, Figure, number};

/// Maximum number of parameters in the chart. The table lists all parameters.
const BARS_MAX: usize = 16;

/// Returns the page of a sensitivity study.
pub fn page(profile: &Profile, workload: &str, found: &Sensitivity, command: &str) -> Document {
    let [main, other] = found.columns;
    let head = ["parameter", "value", "known", "from", "to", main, other].map(str::to_owned);
    let section = Section {
        heading: found.metric.to_owned(),
        paragraphs: vec![format!("{}; {} runs.", found.method, found.runs)],
        command: Some(command.to_owned()),
        figures: vec![chart(found)],
        tables: vec![Table {
            caption: "The strongest first".to_owned(),
            head: head.into_iter().filter(|head| !head.is_empty()).collect(),
            rows: found.effects.iter().map(row).collect(),
            ..Table::default()
        }],
    };
    let title = format!("Sensitivity of {workload} on {}", profile.name);
    Document { title, lead: vec![profile.title.clone()], sections: vec![section] }
}

fn row(effect: &Effect) -> Vec<String> {
    let [from, to] = effect.range.clone();
    let texts = [effect.name.to_owned(), effect.value.clone(), effect.tag.clone(), from, to];
    let indices = [Some(effect.main), effect.other].into_iter().flatten().map(number);
    texts.into_iter().chain(indices).collect()
}

fn chart(found: &Sensitivity) -> Figure {
    let part = |name: &str, value: f64| BarPart { name: name.to_owned(), value, is_rest: false };
    let bar = |effect: &Effect| {
        let parts = match (found.columns[1], effect.other) {
            ("total", Some(total)) => {
                vec![part("alone", effect.main.max(0.0)), part("together with others", total - effect.main.max(0.0))]
            }
            _ if effect.main < 0.0 => vec![part("falls as it grows", -effect.main)],
            _ => vec![part("grows with it", effect.main)],
        };
        Bar { name: effect.name.to_owned(), parts, figure: number(effect.other.unwrap_or(effect.main)), whisker: None }
    };
    Figure::Bars(Bars {
        title: found.metric.to_owned(),
        x_title: found.columns.iter().filter(|name| !name.is_empty()).copied().collect::<Vec<_>>().join(", "),
        bars: found.effects.iter().take(BARS_MAX).map(bar).collect(),
    })
}
