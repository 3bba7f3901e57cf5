//! The curves that show why: for each mechanism behind the claims, what the model says over the parameter that governs
//! it, with what was published beside it.
//!
//! | file | mechanisms |
//! |---|---|
//! | `mechanism/isa.rs` | cards that the processor copies from: the clock of the bus, windows, NFS reads |
//! | `mechanism/driver.rs` | drivers: the order of a batch, interrupt moderation |
//! | `mechanism/master.rs` | bus masters: bursts, a bus that others use |
//! | `mechanism/express.rs` | PCI Express |
//! | `mechanism/queues.rs` | several receive queues |
//! | `mechanism/work.rs` | work for each byte: checksums and ciphers |
//! | `mechanism/frames.rs` | fewer and larger pieces: large sends, jumbo frames |

mod driver;
mod express;
mod frames;
mod isa;
mod master;
mod queues;
mod work;

use crate::config::Workload;
use crate::metrics::Metric;
use crate::pool;
use crate::profile::Profile;
use crate::simulation::{ModelError, run};

/// A mechanism, and the charts that show it.
#[derive(Clone, Debug)]
pub struct Mechanism {
    /// Short name, for files and links.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// The claims that rest on it.
    pub claims: &'static [&'static str],
    /// What the charts show and why, in a few sentences.
    pub says: &'static str,
    /// A command that makes the same figures, or some of them.
    pub command: &'static str,
    /// The charts.
    pub panels: Vec<Panel>,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows.
    pub title: &'static str,
    /// What lies to the right, with its unit.
    pub x_title: &'static str,
    /// What lies upwards, with its unit.
    pub y_title: &'static str,
    /// Equal steps to the right are equal ratios.
    pub x_is_log: bool,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// Points of one system, or of a publication.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Whose they are.
    pub name: String,
    /// They were published, not modelled.
    pub is_published: bool,
    /// x and y of each point.
    pub points: Vec<[f64; 2]>,
}

/// Every mechanism that is modelled.
///
/// # Errors
/// When a profile that comes with offramp is wrong, or a run stands still.
pub fn all() -> Result<Vec<Mechanism>, ModelError> {
    Ok(vec![
        isa::clock()?,
        isa::window()?,
        isa::nfs()?,
        driver::order()?,
        driver::moderation()?,
        queues::queues()?,
        master::bursts(),
        master::shared(),
        express::express(),
        frames::large_send()?,
        frames::jumbo()?,
        work::checksum()?,
        work::ipsec()?,
    ])
}

/// A system over one parameter: the values as a user writes them, each with its place on the axis.
fn curves<const METRICS: usize>(
    name: &str,
    base: &Profile,
    workload: Workload,
    key: &str,
    values: &[(String, f64)],
    metrics: [&Metric; METRICS],
) -> Result<[Curve; METRICS], ModelError> {
    let at = |(value, _): &(String, f64)| {
        let mut profile = base.clone();
        profile.set(key, value)?;
        run(&profile, workload)
    };
    let outcomes = pool::map(values, pool::threads(), at, |_, outcome| outcome.is_ok());
    let outcomes = outcomes.into_iter().flatten().collect::<Result<Vec<_>, ModelError>>()?;
    Ok(metrics.map(|metric| {
        let points = values.iter().zip(&outcomes).map(|((_, x), outcome)| [*x, (metric.value)(outcome)]);
        Curve { name: name.to_owned(), is_published: false, points: points.collect() }
    }))
}

fn published(name: &str, points: &[[f64; 2]]) -> Curve {
    Curve { name: name.to_owned(), is_published: true, points: points.to_vec() }
}

/// Values in a unit, for an axis of the same unit.
fn in_unit(values: &[f64], unit: &str) -> Vec<(String, f64)> {
    values.iter().map(|value| (format!("{value}{unit}"), *value)).collect()
}

/// The metric of a name that is there.
fn metric(name: &str) -> &'static Metric {
    crate::metrics::find(name).unwrap_or_else(|| panic!("no metric {name}"))
}

#[cfg(test)]
mod tests;
