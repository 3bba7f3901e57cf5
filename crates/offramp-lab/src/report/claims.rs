//! Compares published claims with the measurements of a run, by the same rule in all experiments.

use super::limit::limited_by;
use super::words::{self, interval, verdict_ratio};
use crate::compare::{self, spread};
use crate::metric::{self, Metric};
use crate::model::{Experiment, LabReport, Machine, Variant, Verdict};
use offramp_model::claims::{self, Case, Comparison, Live, LiveFigure};
use offramp_testbed::stats::Spread;

/// Explanation of the figures shown with a claim, for the reader of the report.
pub const READING: &str = "A published range is for the first named metric; without a published number, the range \
     follows from the wording. Saved host CPU becomes throughput only where the hosts' processor is the limit. No dated \
     source is newer than 2011: docs/compare.md compares with programs of this decade.";

/// A claim, and the measured result of one of its comparisons.
pub struct Row {
    /// The published claim.
    pub claim: &'static Case,
    /// Result of the lab for the claim.
    pub live: Live,
    /// The result compared with the published range; `None` without a comparable figure.
    pub found: Option<&'static str>,
}

/// Returns a row for each measured comparison of each claim that an experiment tests.
pub fn rows(experiment: &Experiment, machine: &Machine) -> Vec<Row> {
    let touched = claims::all().iter().filter(|claim| experiment.claims.contains(&claim.id));
    let of_claim = |claim: &'static Case| {
        let found = claim.lab.iter().filter_map(|of| live(of, experiment, machine));
        found.map(move |(live, found)| Row { claim, live, found })
    };
    touched.flat_map(of_claim).collect()
}

/// Returns the source of a claim, without the remarks after its first `;` or `:`. If the source has no year, the text
/// says so.
pub fn cited(claim: &Case) -> String {
    let source = claim.source.split([';', ':']).next().unwrap_or_default();
    let is_digit = |letter: char| letter.is_ascii_digit();
    let has_year = source.split(|letter: char| !is_digit(letter)).any(|digits| digits.len() == 4);
    if has_year { source.to_owned() } else { format!("{source} (year not stated)") }
}

/// Returns the claims of a run, each with the results of all experiments.
pub fn by_claim(report: &LabReport) -> Vec<(&'static Case, Vec<Live>)> {
    let all: Vec<Row> = report.experiments.iter().flat_map(|experiment| rows(experiment, &report.machine)).collect();
    let of = |claim: &'static Case| {
        let live = all.iter().filter(|row| row.claim.id == claim.id).map(|row| row.live.clone());
        (claim, live.collect::<Vec<_>>())
    };
    claims::all().iter().map(of).filter(|(_, live)| !live.is_empty()).collect()
}

/// Returns the result of a comparison, and its agreement with the published range. `None` if the experiment lacks one
/// of the variants, or all metrics.
fn live(of: &'static Comparison, experiment: &Experiment, machine: &Machine) -> Option<(Live, Option<&'static str>)> {
    let find = |name: &str| experiment.variants.iter().find(|variant| variant.name == name);
    let (base, variant) = (find(&of.base).filter(|_| of.experiment == experiment.name)?, find(&of.variant)?);
    let measured: Vec<Measured> = of.metrics.iter().filter_map(|name| Measured::of(name, base, variant)).collect();
    let main = measured.first()?;
    let agreement = main.agreement(of).filter(|_| main.metric.name == of.metrics[0]);
    let (agreement, found) = agreement.unzip();
    let why: Vec<String> = agreement.into_iter().chain(limited_by(base, variant, machine)).collect();
    let live = Live {
        experiment: experiment.name.clone(),
        base: base.name.clone(),
        variant: variant.name.clone(),
        measured: measured.iter().map(Measured::text).collect::<Vec<_>>().join("; "),
        why: why.join("; "),
        figures: measured.iter().map(Measured::figure).collect(),
    };
    Some((live, found))
}

/// A metric of two variants.
struct Measured {
    metric: &'static Metric,
    base: Option<Spread>,
    variant: Option<Spread>,
    verdict: Option<Verdict>,
}

impl Measured {
    /// Returns the measurements of a metric; `None` if neither variant has the metric.
    fn of(name: &str, base: &Variant, variant: &Variant) -> Option<Self> {
        let metric = metric::find(name)?;
        let verdict = compare::verdict(base, variant, name);
        let [base, variant] = [base, variant].map(|of| spread(of, name));
        (base.is_some() || variant.is_some()).then_some(Self { metric, base, variant, verdict })
    }

    fn medians(&self) -> [Option<f64>; 2] {
        [self.base, self.variant].map(|of| of.map(|spread| spread.median))
    }

    /// Formats the measurement, for example "host CPU per GB 0.99 → 0.34 s/GB (0.34 ×, 95 %: 0.33 … 0.36)". If there is
    /// a ratio, the two values are the pair of the median round. Otherwise, the values are the medians.
    fn text(&self) -> String {
        let pair = self.verdict.as_ref().and_then(|verdict| verdict.pair).map(|pair| pair.map(Some));
        let values = words::values(self.metric, pair.unwrap_or_else(|| self.medians()));
        let ratio = self
            .verdict
            .as_ref()
            .map(|verdict| format!(" ({}\u{a0}×, 95\u{a0}%: {})", verdict_ratio(verdict), interval(verdict)));
        let noun = self.metric.noun.trim_start_matches("the ");
        format!("{noun} {values}{}", ratio.unwrap_or_default())
    }

    /// Compares the result with the published range. Returns a sentence, and its end alone. `None` without a published
    /// range, or without a comparable figure.
    fn agreement(&self, of: &Comparison) -> Option<(String, &'static str)> {
        let (published, unit, found) = match (of.ratio, of.value) {
            (Some(published), _) => (published, "\u{a0}×", compared(self.ratio()?, published)),
            (None, Some(published)) => {
                let Spread { min, max, .. } = self.variant?;
                (published, " for", of_samples([min, max], published))
            }
            (None, None) => return None,
        };
        Some((format!("the claim reads as {}{unit} {}: {found}", range(published), self.metric.noun), found))
    }

    /// Returns the interval of the ratio. If all samples of only one of the two variants are 0, the ratio is exactly 0
    /// or infinite, without an interval.
    fn ratio(&self) -> Option<[f64; 2]> {
        match (self.base, self.variant) {
            (Some(base), Some(variant)) if base.min > 0.0 && variant.max == 0.0 => Some([0.0; 2]),
            (Some(base), Some(variant)) if base.max == 0.0 && variant.min > 0.0 => Some([f64::INFINITY; 2]),
            _ => self.verdict.as_ref().map(|verdict| verdict.ci95),
        }
    }

    fn figure(&self) -> LiveFigure {
        let [base, value] = self.medians();
        let (ratio, ci95) = self.verdict.as_ref().map(|verdict| (verdict.ratio, verdict.ci95)).unzip();
        let range = self.variant.map(|spread| [spread.min, spread.max]);
        LiveFigure { metric: self.metric.name, unit: self.metric.unit(), base, value, range, ratio, ci95 }
    }
}

/// Formats a published range, such as "0.84", "0.2 to 1" or "above 10".
fn range([low, high]: [f64; 2]) -> String {
    match (low, high) {
        (low, f64::INFINITY) => format!("above {low}"),
        (low, high) if low.to_bits() == high.to_bits() => low.to_string(),
        (0.0, high) => format!("below {high}"),
        (low, high) => format!("{low} to {high}"),
    }
}

const AGREES: &str = "as published";
/// Maximum ratio between the ends of a narrow interval. A wider interval contains almost every published range, so
/// containing the range then does not count as agreement.
const NOISE_FROM: f64 = 2.0;

fn outside([low, high]: [f64; 2], [from, to]: [f64; 2]) -> Option<&'static str> {
    if high < from {
        return Some("lower here");
    }
    (low > to).then_some("higher here")
}

/// Compares the minimum and maximum sample with a published range of values.
fn of_samples([min, max]: [f64; 2], [from, to]: [f64; 2]) -> &'static str {
    let is_inside = from <= min && max <= to;
    outside([min, max], [from, to]).unwrap_or(if is_inside { AGREES } else { "not decided, the samples differ" })
}

/// Compares a measured interval with a published range. An interval inside the published range agrees with the range. A
/// narrow interval that contains the whole range also agrees. If the published range does not extend to both sides of
/// 1, the interval must also exclude 1.
fn compared(here: [f64; 2], published: [f64; 2]) -> &'static str {
    let ([low, high], [from, to]) = (here, published);
    let is_narrow = high <= NOISE_FROM * low;
    let holds_published = low <= from && to <= high;
    let may_be_no_change = low <= 1.0 && 1.0 <= high && !(from < 1.0 && 1.0 < to);
    let is_inside = from <= low && high <= to;
    match outside(here, published) {
        Some(where_to) => where_to,
        None if may_be_no_change && is_narrow && !holds_published => "no difference shown here",
        None if !may_be_no_change && (is_inside || (is_narrow && holds_published)) => AGREES,
        None => "not decided by the interval",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Settings, experiments, plans};
    use crate::report::sample;
    use crate::report::words::ordinary_spaces;

    fn find(report: &LabReport, experiment: &str, id: &str) -> Live {
        let experiment = report.experiments.iter().find(|one| one.name == experiment).expect("in the sample");
        rows(experiment, &report.machine).into_iter().find(|row| row.claim.id == id).expect("a claim of it").live
    }

    #[test]
    fn every_comparison_names_an_experiment_its_variants_and_metrics() {
        let plans = plans(&Settings::default());
        for claim in claims::all() {
            for of in &claim.lab {
                let plan = plans.iter().find(|plan| plan.name == of.experiment).expect(&of.experiment);
                for name in [&of.base, &of.variant] {
                    assert!(plan.variants.iter().any(|variant| variant.name == *name), "{}: {name}", claim.id);
                }
                assert!(plan.claims().contains(&claim.id.as_str()));
                for name in &of.metrics {
                    assert!(metric::find(name).is_some(), "{}: {name}", claim.id);
                }
            }
        }
    }

    #[test]
    fn every_comparison_of_a_run_is_measured_with_its_figures() {
        for report in [sample::with_moderation(), sample::with_impairments()] {
            let ran = |of: &&Comparison| report.experiments.iter().any(|one| one.name == of.experiment);
            let expected = claims::all().iter().flat_map(|claim| &claim.lab).filter(ran).count();
            let found: Vec<Live> = by_claim(&report).into_iter().flat_map(|(_, live)| live).collect();
            assert_eq!(found.len(), expected);
            for live in found {
                assert!(!live.figures.is_empty(), "{live:?}");
                assert!(live.figures.iter().all(|of| of.value.is_some() && of.range.is_some()), "{live:?}");
            }
        }
    }

    #[test]
    fn a_claim_is_measured_on_the_variants_that_it_names_with_values_ratio_and_interval() {
        let live = find(&sample::report(), "lso-1g", "H2");
        assert_eq!((live.base.as_str(), live.variant.as_str()), ("off", "on"));
        let expected = "host CPU per GB 1.6";
        let text = ordinary_spaces(&live.measured);
        assert!(text.starts_with(expected) && text.contains(" → 0.58 s/GB (0.36 ×, 95 %: 0.3"), "{text}");
        assert!(text.contains("; throughput 0.9") && text.contains(" Gbit/s ("), "{text}");
        let why = ordinary_spaces(&live.why);
        assert!(why.starts_with("the claim reads as 0.475 × the host CPU per GB: lower here; limit: "), "{why}");
        let [cost, speed, share] = live.figures.as_slice() else { panic!("{:?}", live.figures) };
        assert_eq!([cost.unit, speed.unit, share.unit], ["s/GB", "bit/s", "%"]);
        assert!(speed.value.is_some_and(|bps| (0.5e9..1e9).contains(&bps)), "{speed:?}");
        let report = sample::report();
        let lso = report.experiments.iter().find(|one| one.name == "lso-1g").expect("in the sample");
        let verdict = lso.verdict.as_ref().expect("five rounds");
        assert_eq!(
            (cost.metric, cost.ratio, cost.ci95),
            ("host_cpu_s_per_gb", Some(verdict.ratio), Some(verdict.ci95))
        );
    }

    #[test]
    fn what_comes_out_as_published_is_said_to() {
        for (claim, all) in by_claim(&sample::with_impairments()) {
            for live in all {
                let of = claim.lab.iter().find(|of| of.variant == live.variant && of.base == live.base).expect("in it");
                let has_range = of.ratio.is_some() || of.value.is_some();
                assert_eq!(live.why.contains(": as published"), has_range, "{}: {live:?}", claim.id);
            }
        }
    }

    #[test]
    fn where_nothing_differs_no_published_change_is_said_to_agree() {
        let level = |_: &str| crate::model::Sample {
            dropped_frames: Some(7),
            overrun_frames: Some(7),
            burst_frames_max: Some(7),
            rpc_retransmits: Some(7),
            ..sample::at(5.0)
        };
        let impaired = experiments().iter().filter(|of| of.has_impairments());
        let experiments = impaired.map(|of| sample::planned(&of.name, level)).collect();
        let report = LabReport { experiments, ..sample::report() };
        for (claim, all) in by_claim(&report) {
            if claim.lab.iter().all(|of| of.ratio.is_some()) {
                assert!(all.iter().all(|live| !live.why.contains(AGREES)), "{}: {all:?}", claim.id);
            }
        }
    }

    #[test]
    fn an_interval_agrees_where_it_can_tell() {
        let cases = [
            ([0.3, 0.5], [0.84, 0.84], "lower here"),
            ([0.9, 0.95], [0.84, 0.84], "higher here"),
            ([0.8, 0.88], [0.84, 0.84], "as published"),
            ([0.8, 1.1], [0.84, 0.84], "not decided by the interval"),
            ([0.3, 0.95], [0.84, 0.84], "not decided by the interval"),
            ([0.98, 1.02], [0.95, 1.05], "as published"),
            ([0.9, 1.1], [0.95, 1.05], "as published"),
            ([0.5, 1.8], [0.95, 1.05], "not decided by the interval"),
            ([0.98, 1.3], [1.0, f64::INFINITY], "no difference shown here"),
            ([1.0, 1.0], [1.0, f64::INFINITY], "no difference shown here"),
            ([0.4, 1.3], [1.0, f64::INFINITY], "not decided by the interval"),
            ([1.1, 1.3], [1.0, f64::INFINITY], "as published"),
            ([8.0, 9.0], [10.0, f64::INFINITY], "lower here"),
            ([0.0, 0.0], [0.0, 0.0], "as published"),
            ([f64::INFINITY; 2], [3.0, f64::INFINITY], "as published"),
        ];
        for (here, published, expected) in cases {
            assert_eq!(compared(here, published), expected, "{here:?} of {published:?}");
        }
    }

    #[test]
    fn a_published_range_reads_as_the_file_has_it() {
        let ranges = [[0.84, 0.84], [0.2, 1.0], [0.0, 0.1], [0.0, 0.0], [10.0, f64::INFINITY], [4608.0, 4864.0]];
        let expected = ["0.84", "0.2 to 1", "below 0.1", "0", "above 10", "4608 to 4864"];
        assert_eq!(ranges.map(range), expected);
    }

    #[test]
    fn one_round_has_values_and_no_ratio_and_one_variant_has_nothing() {
        let mut report = sample::report();
        for variant in report.experiments.iter_mut().flat_map(|one| &mut one.variants) {
            variant.samples.truncate(1);
        }
        let live = find(&report, "lso-1g", "H4");
        assert!(live.measured.contains("throughput 0.9") && !live.measured.contains('×'), "{live:?}");
        assert!(!live.why.contains("claim") && live.figures[0].ratio.is_none(), "{live:?}");
        report.experiments.iter_mut().for_each(|experiment| experiment.variants.truncate(1));
        assert!(by_claim(&report).is_empty());
    }

    #[test]
    fn an_experiment_on_another_adapter_with_the_same_name_bears_on_no_claim() {
        let mut report = sample::report();
        report.experiments.iter_mut().for_each(|experiment| experiment.claims.clear());
        assert!(by_claim(&report).is_empty());
    }

    #[test]
    fn no_report_however_odd_makes_it_panic() {
        let mut report = sample::with_moderation();
        for sample in report.experiments.iter_mut().flat_map(|one| &mut one.variants).flat_map(|of| &mut of.samples) {
            (sample.bytes, sample.seconds) = (0, 0.0);
        }
        let figures = by_claim(&report).into_iter().flat_map(|(_, live)| live).flat_map(|live| live.figures);
        assert!(figures.filter_map(|figure| figure.value).all(f64::is_finite));
    }
}
