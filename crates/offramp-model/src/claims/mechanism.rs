//! Charts of the mechanisms behind the claims: curves of the model's results over one parameter, and published results.
//! Each mechanism is a file in `charts/`:
//!
//! ```toml
//! title = "The clock of an ISA bus"
//! says = "The processor waits for every byte that it copies."
//! command = "offramp model sweep 486-wd8003ep --workload ttcp-receive --vary bus.clock=4MHz..30MHz/14 --out isa.csv"
//! system = "486-wd8003ep"
//! workload = "ttcp-receive"
//! run = { fast = {}, slow = { set = { "adapter.transfer_cycles" = "6" } } }
//! x = { title = "clock of the bus, MHz", parameter = "bus.clock", unit = "MHz", values = [6.7, 13.4, 20] }
//!
//! [[panel]]
//! title = "Throughput"
//! y_title = "KiB/s"
//! curves = [
//!     { name = "no wait states", y = "fast.throughput_kib_per_s" },
//!     { name = "published", points = [[6.7, 740], [13.4, 970]] },
//! ]
//! holds = ["of['no wait states']|over(of['published'])|max < 1.05"]
//! ```
//!
//! Runs and expressions have the same format as in a [`Case`]. `y` is evaluated at each value of `x`, and can use the
//! name `x`. In every run, the parameter of the axis has the value of `x`. `holds` states conditions on the curves of a
//! panel. In a condition, `at` gives the y value at an x, and `steps` gives the ratios between adjacent points. `over`
//! gives the ratios of one curve to another curve at the other curve's points.

use super::case::{Case, RunSpec, Settings, Variation, texts};
use super::engine::Engine;
use crate::pool;
use crate::profile::{ProfileError, form, key_error};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A mechanism, and its charts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mechanism {
    /// Short name for files and links: the name of the mechanism's file.
    #[serde(skip)]
    pub name: String,
    /// Title for display.
    pub title: String,
    /// Claims explained by the mechanism.
    #[serde(default)]
    pub claims: Vec<String>,
    /// The conclusion from the charts, with the reason, in a few sentences.
    pub says: String,
    /// A command that computes the figures of the charts, or a part of these figures.
    pub command: String,
    system: Option<String>,
    workload: Option<String>,
    #[serde(default)]
    set: Settings,
    #[serde(default)]
    run: BTreeMap<String, RunSpec>,
    x: Axis,
    /// Charts of the mechanism.
    #[serde(rename = "panel")]
    pub panels: Vec<Panel>,
    #[serde(skip)]
    file: PathBuf,
}

/// A horizontal axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Quantity of the axis, with the unit.
    pub title: String,
    /// `true` for a logarithmic axis.
    #[serde(default)]
    pub is_log: bool,
    parameter: Option<String>,
    /// Unit of the parameter's values.
    #[serde(default)]
    unit: String,
    values: Vec<f64>,
}

/// One chart.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    /// Title of the chart.
    pub title: String,
    /// Horizontal axis of the chart; `None` for the axis of the mechanism.
    x: Option<Axis>,
    /// Quantity of the vertical axis, with the unit.
    pub y_title: String,
    /// Curves of the chart.
    pub curves: Vec<Curve>,
    #[serde(default)]
    holds: Vec<String>,
}

/// A curve: the points of one system, or of a publication.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Name of the system or of the publication.
    pub name: String,
    /// The points, x and y.
    #[serde(default)]
    pub points: Vec<[f64; 2]>,
    /// Expression for y at each x; `None` for a published curve.
    y: Option<String>,
    /// Expression that computes the points of a published curve, in place of `points`.
    measured: Option<String>,
}

impl Curve {
    /// Returns whether the curve is a published result.
    pub fn is_published(&self) -> bool {
        self.y.is_none()
    }
}

impl Mechanism {
    /// Parses a mechanism from the text of a file, and simulates all runs of its charts.
    ///
    /// # Errors
    /// Returns an error if the text is not valid TOML, if a key is unknown, missing or invalid, or if an expression is
    /// invalid. Also fails if a run stalls, or if a condition does not hold.
    pub fn draw(text: &str, file: &Path) -> Result<Self, ProfileError> {
        let mut mechanism: Self = toml::from_str(text).map_err(|error| form(&file.display().to_string(), &error))?;
        file.clone_into(&mut mechanism.file);
        mechanism.name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let engine = Engine::new();
        let curves: Vec<_> =
            mechanism.panels.iter().flat_map(|panel| panel.curves.iter().map(move |curve| (panel, curve))).collect();
        let draw = |(panel, curve): &(&Panel, &Curve)| mechanism.points(&engine, mechanism.axis(panel), curve);
        let drawn = pool::map(&curves, pool::threads(), draw, |_, points| points.is_ok());
        let drawn = drawn.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
        for (curve, points) in mechanism.panels.iter_mut().flat_map(|panel| &mut panel.curves).zip(drawn) {
            curve.points = points;
        }
        for panel in &mechanism.panels {
            let curves: BTreeMap<_, _> = panel.curves.iter().map(|curve| (&curve.name, &curve.points)).collect();
            for text in &panel.holds {
                let wrong = |why: &str| key_error(&file.display().to_string(), "panel.holds", format!("{text}: {why}"));
                if !engine.holds(text, &curves).map_err(|why| wrong(&why))? {
                    return Err(wrong("the condition does not hold"));
                }
            }
        }
        Ok(mechanism)
    }

    /// Returns the horizontal axis of a chart.
    pub fn axis<'a>(&'a self, panel: &'a Panel) -> &'a Axis {
        panel.x.as_ref().unwrap_or(&self.x)
    }

    fn points(&self, engine: &Engine, axis: &Axis, curve: &Curve) -> Result<Vec<[f64; 2]>, ProfileError> {
        let point = |y: &String, x: f64| {
            let case = self.at(axis, x);
            case.run.keys().try_for_each(|name| case.planned(name, Variation::None).map(drop))?;
            let figure = engine.figure(&case, y, Variation::None);
            figure.map(|y| [x, y]).map_err(|why| case.error("panel.curves.y", engine.stalled(&case).unwrap_or(why)))
        };
        let measured = |text: &String| {
            let case = self.at(axis, 0.0);
            let points = engine.evaluate(&case, text, Variation::None, false);
            let points = points.and_then(|of| Vec::deserialize(of).map_err(|error| error.to_string()));
            points.map_err(|why| case.error("panel.curves.measured", why))
        };
        let points: Vec<[f64; 2]> = match (&curve.y, &curve.measured) {
            (Some(y), _) => axis.values.iter().map(|x| point(y, *x)).collect::<Result<_, _>>()?,
            (None, Some(text)) => measured(text)?,
            (None, None) => curve.points.clone(),
        };
        let is_point = |[x, y]: &[f64; 2]| x.is_finite() && y.is_finite() && (*x > 0.0 || !axis.is_log);
        if points.is_empty() || !points.iter().all(is_point) {
            let why = "a curve needs points of two finite numbers, with x above 0 for is_log";
            let (file, key) = (self.file.display().to_string(), format!("panel.curves.{}", curve.name));
            return Err(key_error(&file, &key, why.to_owned()));
        }
        Ok(points)
    }

    /// Returns a case with the runs for one value of an axis. The case has no rows.
    fn at(&self, axis: &Axis, x: f64) -> Case {
        let (mut set, parameter) = (self.set.clone(), axis.parameter.clone());
        set.extend(parameter.map(|name| (name, format!("{x}{}", axis.unit))));
        let (system, workload, run) = (self.system.clone(), self.workload.clone(), self.run.clone());
        let figure = BTreeMap::from([("x".to_owned(), x.to_string())]);
        Case { system, workload, set, run, figure, file: self.file.clone(), ..Case::default() }
    }
}

static EMBEDDED: &[(&str, &str)] = embedded! { "charts", "toml":
    "isa-clock", "window", "nfs", "order", "moderation", "queues", "pci-bursts", "pci-shared", "pcie", "large-send", "jumbo",
    "checksum", "ipsec",
};

/// Draws every mechanism shipped with offramp.
///
/// # Errors
/// Returns an error if a file is invalid, or a run stalls.
pub fn all() -> Result<Vec<Mechanism>, ProfileError> {
    EMBEDDED.iter().map(|(file, text)| Mechanism::draw(text, Path::new(file))).collect()
}

/// Draws the mechanisms of files. For a directory, draws all its `.toml` files.
///
/// # Errors
/// Returns an error if a file cannot be read or drawn.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Mechanism>, ProfileError> {
    texts(paths)?.iter().map(|(file, text)| Mechanism::draw(text, file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_that_comes_with_offramp_shows_what_it_says_and_a_wrong_claim_is_refused() {
        assert_eq!(all().unwrap_or_else(|error| panic!("{error}")).len(), EMBEDDED.len());
        let (file, text) = EMBEDDED.iter().find(|(file, _)| file.ends_with("pci-bursts.toml")).unwrap();
        let wrong = text.replace("|at(32)) > 1.5", "|at(32)) < 1.5");
        assert_ne!(wrong, *text);
        let error = Mechanism::draw(&wrong, Path::new(file)).unwrap_err().to_string();
        assert!(error.contains("panel.holds") && error.ends_with("the condition does not hold"), "{error}");
    }
}
