//! Geometry of the page's charts; the template draws them.
//!
//! Drawn by hand, not by a plotting library: the bars take their colours from the page's style sheet, so one chart
//! serves a light page, a dark page and paper; and all text passes through the template's escaping.

use serde::Serialize;

use super::numbers::{cpu_seconds, or_dash};
use super::words::Finding;
use crate::compare::spread;
use crate::metric::{self, Metric};
use crate::model::{Experiment, Variant, Verdict};

/// Width of a bar chart, in the units of its view box.
const WIDTH: f64 = 460.0;
/// Room for the variants' names, left of the bars.
const NAMES_WIDTH: f64 = 126.0;
/// Room for the figures, right of the longest bar.
const FIGURES_WIDTH: f64 = 78.0;
/// Number of letters of a name in that room.
const NAME_LETTERS: usize = 19;
/// From one bar to the next.
const ROW_HEIGHT: f64 = 32.0;
/// Thickness of a bar.
const BAR_HEIGHT: f64 = 16.0;
/// Room for the axis, below the bars.
const AXIS_HEIGHT: f64 = 24.0;
/// Between the parts of a stacked bar.
const PART_GAP: f64 = 2.0;
/// Most gaps between the ticks of an axis.
const TICK_GAPS_MAX: f64 = 4.0;

/// A bar chart, a row for each variant.
#[derive(Serialize)]
pub struct Chart {
    /// The title: the metric, with its unit.
    title: String,
    /// The same in words and figures, for screen readers.
    description: String,
    width: f64,
    height: f64,
    /// Left end of every bar.
    left: f64,
    /// Lower end of the rows.
    bottom: f64,
    bar_height: f64,
    rows: Vec<Row>,
    ticks: Vec<Tick>,
    /// Names of the parts of the bars; empty for bars of one part.
    legend: Vec<Part>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    full_name: String,
    /// Upper edge of the bar.
    y: f64,
    /// Middle of the bar.
    middle: f64,
    parts: Vec<Part>,
    /// Smallest and largest sample.
    whisker: Option<[f64; 2]>,
    figure: String,
    figure_x: f64,
}

/// A part of a bar, and its class in the style sheet.
#[derive(Serialize)]
struct Part {
    class: &'static str,
    name: &'static str,
    x: f64,
    width: f64,
}

#[derive(Serialize)]
pub(super) struct Tick {
    pub(super) x: f64,
    pub(super) label: String,
}

/// The unit of the axis: values are divided by it for the ticks' labels.
struct Axis {
    per_unit: f64,
    scale: f64,
    ticks: Vec<Tick>,
}

impl Axis {
    /// An axis from 0 to at least `largest`, with ticks at round values.
    fn up_to(largest: f64, per_unit: f64) -> Self {
        let units = largest / per_unit;
        let step = round_step(units / TICK_GAPS_MAX);
        let count = (units / step).ceil().max(1.0);
        let scale = (WIDTH - NAMES_WIDTH - FIGURES_WIDTH) / (count * step * per_unit);
        let mut axis = Self { per_unit, scale, ticks: Vec::new() };
        let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
        for tick in 0..=count as usize {
            let value = tick as f64 * step;
            let x = NAMES_WIDTH + axis.length(value * axis.per_unit);
            axis.ticks.push(Tick { x, label: format!("{value:.decimals$}") });
        }
        axis
    }

    fn length(&self, value: f64) -> f64 {
        value * self.scale
    }
}

/// Returns the smallest of 1, 2, 5 × 10^n not below `least`.
pub(super) fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= least * 0.999).unwrap_or(power)
}

/// Throughput of each variant, or the transaction rate of transactional traffic, with the smallest and the largest
/// sample.
pub fn traffic(experiment: &Experiment) -> Option<Chart> {
    let transactions = experiment.variants.iter().any(|variant| variant.transactions_per_s.is_some());
    let (name, per_unit) = if transactions { ("transactions_per_s", 1.0) } else { ("throughput_bps", 1e9) };
    bars(experiment, name, per_unit)
}

/// One metric of each variant, with the smallest and the largest sample.
fn bars(experiment: &Experiment, name: &str, per_unit: f64) -> Option<Chart> {
    let metric = metric::find(name)?;
    let largest = experiment.variants.iter().filter_map(|variant| largest(variant, metric)).fold(0.0, f64::max);
    if largest <= 0.0 {
        return None;
    }
    let axis = Axis::up_to(largest, per_unit);
    let rows = experiment.variants.iter().enumerate().map(|(position, variant)| {
        let value = metric.median(variant);
        let class = if position == 0 { "base" } else { "variant" };
        let width = axis.length(value.unwrap_or(0.0));
        let parts = vec![Part { class, name: "", x: NAMES_WIDTH, width }];
        let whisker = spread(variant, name).filter(|_| variant.samples.len() > 1);
        let whisker = whisker.map(|spread| [spread.min, spread.max].map(|end| NAMES_WIDTH + axis.length(end)));
        row(position, variant, parts, whisker, or_dash(value, metric.text))
    });
    Some(chart(metric.heading, rows.collect(), axis.ticks, Vec::new()))
}

fn largest(variant: &Variant, metric: &Metric) -> Option<f64> {
    let of_samples = spread(variant, metric.name).map(|spread| spread.max);
    of_samples.into_iter().chain(metric.median(variant)).max_by(f64::total_cmp)
}

/// Processor time per GB: hosts and adapters stacked if every variant separates them; else the whole machine.
pub fn processor_time(experiment: &Experiment) -> Option<Chart> {
    let variants = &experiment.variants;
    let apart = |variant: &Variant| variant.host_cpu_s_per_gb.is_some() && variant.adapter_cpu_s_per_gb.is_some();
    if variants.iter().all(apart) {
        return hosts_and_adapters(experiment);
    }
    bars(experiment, "machine_cpu_s_per_gb", 1.0)
}

fn hosts_and_adapters(experiment: &Experiment) -> Option<Chart> {
    let parts = |variant: &Variant| [variant.host_cpu_s_per_gb, variant.adapter_cpu_s_per_gb];
    let total = |variant: &Variant| parts(variant).iter().flatten().sum::<f64>();
    let largest = experiment.variants.iter().map(total).fold(0.0, f64::max);
    if largest <= 0.0 {
        return None;
    }
    let axis = Axis::up_to(largest, 1.0);
    let rows = experiment.variants.iter().enumerate().map(|(position, variant)| {
        let [host, adapter] = parts(variant);
        let host_width = axis.length(host.unwrap_or(0.0));
        let adapter_width = axis.length(adapter.unwrap_or(0.0));
        let parts = vec![
            Part { class: "host", name: "hosts", x: NAMES_WIDTH, width: (host_width - PART_GAP).max(0.0) },
            Part { class: "adapter", name: "adapters", x: NAMES_WIDTH + host_width, width: adapter_width },
        ];
        let figure = format!("{} + {}", or_dash(host, cpu_seconds), or_dash(adapter, cpu_seconds));
        row(position, variant, parts, None, figure)
    });
    let legend = vec![
        Part { class: "host", name: "hosts", x: NAMES_WIDTH, width: 0.0 },
        Part { class: "adapter", name: "adapters", x: NAMES_WIDTH + 70.0, width: 0.0 },
    ];
    Some(chart("Processor time, s/GB", rows.collect(), axis.ticks, legend))
}

fn row(position: usize, variant: &Variant, parts: Vec<Part>, whisker: Option<[f64; 2]>, figure: String) -> Row {
    let top = position as f64 * ROW_HEIGHT;
    let end = parts.iter().map(|part| part.x + part.width).fold(NAMES_WIDTH, f64::max);
    Row {
        name: shorten(&variant.name),
        full_name: variant.name.clone(),
        y: top + (ROW_HEIGHT - BAR_HEIGHT) / 2.0,
        middle: top + ROW_HEIGHT / 2.0,
        parts,
        whisker,
        figure,
        figure_x: whisker.map_or(end, |[_, high]| end.max(high)) + 7.0,
    }
}

fn chart(title: &str, rows: Vec<Row>, ticks: Vec<Tick>, legend: Vec<Part>) -> Chart {
    let bottom = rows.len() as f64 * ROW_HEIGHT;
    let said: Vec<String> = rows.iter().map(|row| format!("{}: {}", row.full_name, row.figure)).collect();
    let parts = if legend.is_empty() { "" } else { " (hosts + adapters)" };
    Chart {
        title: title.to_owned(),
        description: format!("{title}{parts}. {}.", said.join("; ")),
        width: WIDTH,
        height: bottom + AXIS_HEIGHT,
        left: NAMES_WIDTH,
        bottom,
        bar_height: BAR_HEIGHT,
        rows,
        ticks,
        legend,
    }
}

fn shorten(name: &str) -> String {
    if name.chars().count() <= NAME_LETTERS {
        return name.to_owned();
    }
    name.chars().take(NAME_LETTERS - 1).chain(['…']).collect()
}

/// Width of the small picture of a ratio, in the units of its view box.
const FOREST_WIDTH: f64 = 180.0;
/// Left and right of its scale.
const FOREST_MARGIN: f64 = 14.0;
/// A scale goes at least from half to double.
const FOREST_RATIO_MIN: f64 = 2.0;
/// A scale goes at most from 1/64 to 64; a ratio outside is drawn at its end.
const FOREST_RATIO_MAX: f64 = 64.0;

/// The common scale of the summary's ratios: logarithmic, 1 in the middle.
pub struct Forest {
    log_end: f64,
}

/// One ratio and its interval on the common scale.
#[derive(Serialize)]
pub struct ForestRow {
    width: f64,
    one_x: f64,
    ratio_x: f64,
    low_x: f64,
    high_x: f64,
    is_difference: bool,
}

/// The scale itself.
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

    /// One verdict on the scale.
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

    /// The ends and the middle of the scale.
    pub fn axis(&self) -> ForestAxis {
        let end = self.log_end.exp().round();
        let label = |value: f64| if value < 1.0 { format!("1/{}", 1.0 / value) } else { format!("{value}") };
        let ticks = [1.0 / end, 1.0, end].map(|value| Tick { x: self.x(value), label: label(value) });
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
            for chart in [traffic(experiment), processor_time(experiment)].into_iter().flatten() {
                let plot_end = WIDTH - FIGURES_WIDTH + 0.001;
                for row in &chart.rows {
                    assert!(row.parts.iter().all(|part| part.x + part.width <= plot_end && part.width >= 0.0));
                    assert!(row.whisker.is_none_or(|[low, high]| low <= high && high <= plot_end));
                    assert!(row.y + BAR_HEIGHT <= chart.bottom);
                }
                assert!(chart.ticks.iter().all(|tick| tick.x <= plot_end));
            }
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let report = sample::report();
        let lso = report.experiments.iter().find(|experiment| experiment.name == "lso").expect("in the sample");
        let chart = traffic(lso).expect("a throughput");
        let value = |variant: &Variant| variant.throughput_bps.expect("measured");
        let expected = value(&lso.variants[1]) / value(&lso.variants[0]);
        assert!((chart.rows[1].parts[0].width / chart.rows[0].parts[0].width - expected).abs() < 1e-9);
    }

    #[test]
    fn where_hosts_and_adapters_were_not_told_apart_the_machine_is_drawn() {
        let mut relay = sample::report().experiments.remove(10);
        relay.variants[0].adapter_cpu_s_per_gb = None;
        let chart = processor_time(&relay).expect("the machine's time");
        assert!(chart.title.starts_with("Whole machine") && chart.legend.is_empty());
    }

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        for largest in [0.003, 0.94, 1.0, 7.9, 23.4, 33.5, 101.0, 24_000.0] {
            let axis = Axis::up_to(largest, 1.0);
            assert!((2..=6).contains(&axis.ticks.len()), "{largest}: {} ticks", axis.ticks.len());
            let last: f64 = axis.ticks.last().expect("ticks").label.parse().expect("a number");
            assert!(last >= largest * 0.999 && last <= largest * 2.1, "{largest}: up to {last}");
        }
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
            };
            Forest::of([verdict].iter()).axis().ticks.pop().expect("three").label
        };
        assert_eq!([end(1.1), end(2.9), end(0.2), end(1e6)], ["2", "4", "8", "64"]);
    }
}
