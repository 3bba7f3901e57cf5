//! The charts of a run's page. Each experiment has charts of traffic and processor time. A small plot shows the main
//! ratio with its interval, as a row of a forest plot.

use serde::Serialize;

use super::axis::Tick;
use super::figure::{Bar, BarPart, Bars, Figure};
use super::numbers::{cpu_seconds, or_dash};
use super::words::Finding;
use crate::compare::spread;
use crate::metric;
use crate::model::{Experiment, Variant, Verdict};

/// Draws the throughput of each variant, or the transaction rate for requests, with the minimum and maximum sample.
pub fn traffic(experiment: &Experiment) -> Option<Figure> {
    let transactions = experiment.variants.iter().any(|variant| variant.transactions_per_s.is_some());
    let (name, per_unit) = if transactions { ("transactions_per_s", 1.0) } else { ("throughput_bps", 1e9) };
    single_parts(experiment, name, per_unit)
}

/// Draws one metric of each variant, with the minimum and maximum sample.
fn single_parts(experiment: &Experiment, name: &str, per_unit: f64) -> Option<Figure> {
    let metric = metric::find(name)?;
    let bars = experiment.variants.iter().enumerate().map(|(position, variant)| {
        let value = metric.median(variant);
        let spread = spread(variant, name).filter(|_| variant.samples.len() > 1);
        let length = value.unwrap_or(0.0) / per_unit;
        Bar {
            name: variant.name.clone(),
            parts: vec![BarPart { name: String::new(), value: length, is_rest: position == 0 }],
            figure: or_dash(value, metric.text),
            whisker: spread.map(|spread| [spread.min, spread.max].map(|end| end / per_unit)),
        }
    });
    figure(metric.heading, bars.collect())
}

/// Draws the processor time per GB of each variant. If every variant separates the times of hosts and adapters, a bar
/// stacks both times. Otherwise, the bars show the processor time of the whole machine.
pub fn processor_time(experiment: &Experiment) -> Option<Figure> {
    let apart = |variant: &Variant| {
        let parts = [("hosts", variant.host_cpu_s_per_gb?), ("adapters", variant.adapter_cpu_s_per_gb?)];
        Some(Bar {
            name: variant.name.clone(),
            parts: parts.map(|(name, value)| BarPart { name: name.to_owned(), value, is_rest: false }).into(),
            figure: parts.map(|(_, value)| cpu_seconds(value)).join(" + "),
            whisker: None,
        })
    };
    match experiment.variants.iter().map(apart).collect() {
        Some(bars) => figure("Processor time, s/GB", bars),
        None => single_parts(experiment, "machine_cpu_s_per_gb", 1.0),
    }
}

/// Returns a chart of the bars; `None` if all bars are empty.
fn figure(title: &str, bars: Vec<Bar>) -> Option<Figure> {
    let is_drawn = bars.iter().flat_map(|bar| &bar.parts).any(|part| part.value > 0.0);
    is_drawn.then(|| Figure::Bars(Bars { title: title.to_owned(), x_title: String::new(), bars }))
}

/// Width of the plot of a ratio, in units of the SVG view box.
const FOREST_WIDTH: f64 = 180.0;
/// Margin left and right of the scale, in units of the view box.
const FOREST_MARGIN: f64 = 14.0;
/// Minimum end of the scale: the scale covers at least 1/2 to 2.
const FOREST_RATIO_MIN: f64 = 2.0;
/// Maximum end of the scale: the scale covers at most 1/64 to 64. A ratio outside the scale is drawn at the end of the
/// scale.
const FOREST_RATIO_MAX: f64 = 64.0;

/// The common scale for the ratios in the page's summary. The scale is logarithmic, with 1 in the middle.
pub struct Forest {
    log_end: f64,
}

/// A ratio with its interval, placed on the common scale.
#[derive(Serialize)]
pub struct ForestRow {
    width: f64,
    one_x: f64,
    ratio_x: f64,
    low_x: f64,
    high_x: f64,
    is_difference: bool,
}

/// The axis of the common scale.
#[derive(Serialize)]
pub struct ForestAxis {
    width: f64,
    ticks: Vec<Tick>,
}

impl Forest {
    /// Returns a scale for the ratios of all `verdicts`.
    pub fn of<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Self {
        let furthest =
            verdicts.map(|verdict| verdict.ratio.ln().abs()).filter(|far| far.is_finite()).fold(0.0, f64::max);
        let whole = 2f64.powf((furthest / 2f64.ln()).ceil());
        Self { log_end: whole.clamp(FOREST_RATIO_MIN, FOREST_RATIO_MAX).ln() }
    }

    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio.max(f64::MIN_POSITIVE).ln() / self.log_end).clamp(-1.0, 1.0);
        let middle = FOREST_WIDTH / 2.0;
        middle + share * (middle - FOREST_MARGIN)
    }

    /// Places a verdict on the scale.
    pub fn row(&self, verdict: &Verdict) -> ForestRow {
        ForestRow {
            width: FOREST_WIDTH,
            one_x: self.x(1.0),
            ratio_x: self.x(verdict.ratio),
            low_x: self.x(verdict.ci95[0]),
            high_x: self.x(verdict.ci95[1]),
            is_difference: Finding::of(verdict).is_difference(),
        }
    }

    /// Returns the axis, with ticks at the ends and in the middle.
    pub fn axis(&self) -> ForestAxis {
        let end = self.log_end.exp().round();
        let label = |value: f64| if value < 1.0 { format!("1/{}", 1.0 / value) } else { format!("{value}") };
        let ticks = [1.0 / end, 1.0, end].map(|value| Tick { at: self.x(value), label: label(value) });
        ForestAxis { width: FOREST_WIDTH, ticks: ticks.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_mark_lies_inside_the_chart() {
        for experiment in &sample::report().experiments {
            for figure in [traffic(experiment), processor_time(experiment)].into_iter().flatten() {
                let chart = figure.drawn();
                let plot_end = chart.right + 0.001;
                for row in &chart.bars {
                    assert!(row.parts.iter().all(|part| part.x + part.width <= plot_end && part.width >= 0.0));
                    assert!(row.whisker.is_none_or(|[low, high]| low <= high && high <= plot_end));
                    assert!(row.y + chart.bar_height <= chart.bottom);
                }
                assert!(chart.x_ticks.iter().all(|tick| tick.at <= plot_end));
            }
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let report = sample::report();
        let lso = report.experiments.iter().find(|experiment| experiment.name == "lso").expect("in the sample");
        let chart = traffic(lso).expect("a throughput").drawn();
        let value = |variant: &Variant| variant.throughput_bps.expect("measured");
        let expected = value(&lso.variants[1]) / value(&lso.variants[0]);
        assert!((chart.bars[1].parts[0].width / chart.bars[0].parts[0].width - expected).abs() < 1e-9);
    }

    #[test]
    fn where_hosts_and_adapters_were_not_told_apart_the_machine_is_drawn() {
        let mut relay = sample::report().experiments.remove(10);
        relay.variants[0].adapter_cpu_s_per_gb = None;
        let chart = processor_time(&relay).expect("the machine's time").drawn();
        assert!(chart.title.starts_with("Whole machine") && chart.legend.is_empty());
    }

    #[test]
    fn without_a_figure_there_is_no_chart() {
        let mut empty = sample::report().experiments.remove(0);
        empty.variants = vec![Variant::default()];
        assert!(traffic(&empty).is_none() && processor_time(&empty).is_none());
    }

    #[test]
    fn equal_is_in_the_middle_and_reciprocals_mirror_each_other() {
        let forest = Forest { log_end: 4f64.ln() };
        assert!((forest.x(1.0) - FOREST_WIDTH / 2.0).abs() < 1e-9);
        assert!((forest.x(2.0) + forest.x(0.5) - FOREST_WIDTH).abs() < 1e-9);
        assert!(forest.x(1e9) <= FOREST_WIDTH - FOREST_MARGIN && forest.x(0.0) >= FOREST_MARGIN);
    }

    #[test]
    fn the_scale_grows_with_the_ratios_up_to_its_bound() {
        let end = |ratio| {
            let verdict = Verdict {
                metric: String::new(),
                base: String::new(),
                variant: String::new(),
                ratio,
                ci95: [ratio, ratio],
                significant: true,
                rounds: 2,
                pair: None,
            };
            Forest::of([verdict].iter()).axis().ticks.pop().expect("three").label
        };
        assert_eq!([end(1.1), end(2.9), end(0.2), end(1e6)], ["2", "4", "8", "64"]);
    }
}
