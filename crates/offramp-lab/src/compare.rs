//! Statistics of samples: medians, spread, and the verdict on a difference.
//!
//! Two rules make a verdict reliable. First, samples are compared **in pairs of one round**, so that a slow drift of
//! the machine cancels out. Second, a pair counts only if both samples were taken **at the same class of distance**
//! between the host's and the adapter's processor. In a virtual machine, the distance can change from one second to the
//! next, and a change of the distance can change results severalfold. The distance is therefore measured before and
//! after each sample.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::metric;
pub use crate::metric::summarise;
use crate::model::{Sample, Variant, Verdict};
use offramp_testbed::stats::{Spread, median};

/// Upper limit of the one-way latency of a cache line between near processors (one core complex), in nanoseconds.
pub const NEAR_BELOW_NS: f64 = 120.0;
/// Lower limit of the one-way latency of a cache line between far processors (two sockets), in nanoseconds.
pub const FAR_ABOVE_NS: f64 = 450.0;
/// Confidence level of the intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Minimum number of pairs for an interval and a verdict.
pub const PAIRS_MIN: usize = 2;

/// Returns a metric's value in one sample. `metric` is the name of the field in [`Variant`], and the value has the unit
/// of that field. `None` if no metric has the name, or if [`Metric::value`] returns `None`.
///
/// [`Metric::value`]: crate::metric::Metric::value
pub fn metric_value(sample: &Sample, metric: &str) -> Option<f64> {
    metric::find(metric)?.value(sample)
}

/// Returns the spread of a metric over the samples of a variant; `None` if no sample measured the metric.
pub fn spread(variant: &Variant, metric: &str) -> Option<Spread> {
    Spread::of(&values(&variant.samples, metric))
}

fn values(samples: &[Sample], metric: &str) -> Vec<f64> {
    samples.iter().filter_map(|sample| metric_value(sample, metric)).collect()
}

/// The distance between the host's and the adapter's processor during a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The distance was not measured.
    Unknown,
    /// The distance is below [`NEAR_BELOW_NS`].
    Near,
    /// The distance is from [`NEAR_BELOW_NS`] to [`FAR_ABOVE_NS`].
    Mid,
    /// The distance is above [`FAR_ABOVE_NS`].
    Far,
    /// The class of the distance changed during the sample.
    Moved,
}

impl Distance {
    /// Returns the class of a sample's distance, from the distances measured before and after the sample.
    pub fn of(sample: &Sample) -> Self {
        let Some([before, after]) = sample.line_distance_ns else { return Self::Unknown };
        let (before, after) = (Self::of_ns(before), Self::of_ns(after));
        if before == after { before } else { Self::Moved }
    }

    fn of_ns(one_way_ns: f64) -> Self {
        match one_way_ns {
            ns if ns.is_nan() => Self::Unknown,
            ns if ns < NEAR_BELOW_NS => Self::Near,
            ns if ns > FAR_ABOVE_NS => Self::Far,
            _ => Self::Mid,
        }
    }

    /// Returns whether two samples with these classes of distance can be compared: the classes are equal, and not
    /// [`Distance::Moved`].
    pub fn is_like(self, other: Self) -> bool {
        self == other && self != Self::Moved
    }
}

/// The pairs of samples of two variants, one pair for each round, and the numbers of pairs.
struct Pairs {
    /// Values of base and variant in each pair that is used for the comparison.
    counted: Vec<[f64; 2]>,
    /// Number of pairs with comparable distances.
    like: usize,
    /// Number of all pairs.
    all: usize,
}

impl Pairs {
    fn of(base: &Variant, variant: &Variant, metric: &str) -> Self {
        let pairs: Vec<([f64; 2], bool)> = base
            .samples
            .iter()
            .filter_map(|of_base| {
                let of_variant = variant.samples.iter().find(|sample| sample.round == of_base.round)?;
                let values = [metric_value(of_base, metric)?, metric_value(of_variant, metric)?];
                has_ratio(values).then(|| (values, Distance::of(of_base).is_like(Distance::of(of_variant))))
            })
            .collect();
        let like = pairs.iter().filter(|(_, like)| *like).count();
        let take_all = like < PAIRS_MIN;
        let counted = pairs.iter().filter(|(_, like)| *like || take_all).map(|(values, _)| *values).collect();
        Self { counted, like, all: pairs.len() }
    }

    fn log_ratios(&self) -> Vec<f64> {
        self.counted.iter().map(|values| log_ratio(*values)).collect()
    }

    /// Returns the pair of the round with the median ratio. For an even number of rounds, returns the geometric means
    /// over the two middle rounds. The quotient of the pair is the median ratio.
    fn median_pair(&self) -> Option<[f64; 2]> {
        let mut sorted = self.counted.clone();
        sorted.sort_by(|one, other| log_ratio(*one).total_cmp(&log_ratio(*other)));
        match *sorted.get(sorted.len().checked_sub(1)? / 2..=sorted.len() / 2)? {
            [middle] => Some(middle),
            [one, other] => Some([0, 1].map(|of| one[of].sqrt() * other[of].sqrt())),
            _ => None,
        }
    }

    /// Returns whether the comparison also uses pairs with incomparable distances, because fewer than [`PAIRS_MIN`]
    /// pairs have comparable distances.
    fn mixes_distances(&self) -> bool {
        self.like < PAIRS_MIN && self.all > self.like
    }
}

/// Returns ln(variant / base).
fn log_ratio([base, variant]: [f64; 2]) -> f64 {
    variant.ln() - base.ln()
}

/// Returns whether both values are above 0, and their ratio is finite.
fn has_ratio(values: [f64; 2]) -> bool {
    values.iter().all(|value| *value > 0.0) && log_ratio(values).is_finite()
}

/// Compares `variant` with `base` in a metric (see [`metric::find`]).
///
/// The ratio is the median of the ratios per round. The median is taken over logarithms, so that swapping base and
/// variant gives exactly the reciprocal. The 95 % interval is Student's t-interval of the mean logarithm. If skewed
/// samples put the median outside this interval, the interval is extended to the median. A round counts if its two
/// samples have comparable distances ([`Distance::is_like`]). If fewer than [`PAIRS_MIN`] rounds count, all rounds are
/// used, and [`note`] reports this exception.
///
/// Returns `None` if fewer than [`PAIRS_MIN`] rounds have values above 0 in both variants.
pub fn verdict(base: &Variant, variant: &Variant, metric: &str) -> Option<Verdict> {
    let pairs = Pairs::of(base, variant, metric);
    let log_ratios = pairs.log_ratios();
    let ratio = median(&log_ratios)?;
    let (low, high) = t_interval(&log_ratios)?;
    let ci95 = [low.min(ratio).exp(), high.max(ratio).exp()];
    Some(Verdict {
        metric: metric.to_owned(),
        base: base.name.clone(),
        variant: variant.name.clone(),
        ratio: ratio.exp(),
        ci95,
        significant: ci95[0] > 1.0 || ci95[1] < 1.0,
        rounds: log_ratios.len(),
        pair: pairs.median_pair(),
    })
}

/// Returns a caveat about the pairs of samples in [`verdict`]: pairs whose samples have different distances were used,
/// or were omitted. `None` if the distances of all pairs are comparable.
pub fn note(base: &Variant, variant: &Variant, metric: &str) -> Option<String> {
    Some(format!("{} against {}: {}", variant.name, base.name, remark(base, variant, metric)?))
}

/// Returns the notes on several variants. Variants to which the same remark applies share one note.
pub fn notes(base: &Variant, variants: &[Variant], metric: &str) -> Vec<String> {
    let named = variants.iter().filter_map(|variant| Some((remark(base, variant, metric)?, variant.name.as_str())));
    let shared = grouped(named).into_iter();
    shared.map(|(remark, names)| format!("{} against {}: {remark}", names.join(", "), base.name)).collect()
}

/// Groups values by key, in order of the first appearance of each key.
pub(crate) fn grouped<K: PartialEq, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

fn remark(base: &Variant, variant: &Variant, metric: &str) -> Option<String> {
    let pairs = Pairs::of(base, variant, metric);
    if pairs.mixes_distances() && pairs.all >= PAIRS_MIN {
        return Some(format!(
            "the distance between the processors (the time of a cache line) changed, and only {} of {} rounds were taken at a like distance; all \
             rounds are compared, and the interval holds the change as noise.",
            pairs.like, pairs.all
        ));
    }
    (pairs.like >= PAIRS_MIN && pairs.like < pairs.all).then(|| {
        format!(
            "{} of {} rounds are left out, as the distance between the processors (the time of a cache line) differed \
             in the two samples.",
            pairs.all - pairs.like,
            pairs.all
        )
    })
}

/// Returns Student's t-interval of the mean. `None` for fewer than [`PAIRS_MIN`] values.
fn t_interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < PAIRS_MIN {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let student = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
    let half_width = student.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)) * (variance / count).sqrt();
    Some((mean - half_width, mean + half_width))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metric::METRICS;

    const NEAR: Option<[f64; 2]> = Some([55.0, 60.0]);
    const MID: Option<[f64; 2]> = Some([280.0, 300.0]);
    const MOVED: Option<[f64; 2]> = Some([55.0, 280.0]);

    fn variant(name: &str, throughputs: &[f64]) -> Variant {
        with_distances(name, &throughputs.iter().map(|value| (*value, None)).collect::<Vec<_>>())
    }

    fn with_distances(name: &str, samples: &[(f64, Option<[f64; 2]>)]) -> Variant {
        let sample = |(round, (value, line_distance_ns)): (usize, &(f64, Option<[f64; 2]>))| Sample {
            round,
            seconds: 1.0,
            throughput_bps: Some(*value),
            line_distance_ns: *line_distance_ns,
            ..Sample::default()
        };
        summarise(name, samples.iter().enumerate().map(sample).collect())
    }

    fn throughput(base: &Variant, variant: &Variant) -> Option<Verdict> {
        verdict(base, variant, "throughput_bps")
    }

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-9 * expected.abs().max(1e-12)
    }

    #[test]
    fn medians_and_spread_have_their_known_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let spread = Spread::of(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0, f64::NAN]).expect("values");
        assert_eq!(spread, Spread { min: 1.0, median: 2.0, max: 9.0, mad: 1.0 });
    }

    #[test]
    fn figures_per_gb_are_worked_out_for_each_sample_before_the_median() {
        let sample = |bytes, host_cpu_s| Sample {
            bytes,
            seconds: 2.0,
            host_cpu_s: Some(host_cpu_s),
            adapter_cpu_s: Some(1.0),
            ..Sample::default()
        };
        let samples = vec![sample(1_000_000_000, 1.0), sample(2_000_000_000, 4.0), sample(4_000_000_000, 2.0)];
        let variant = summarise("on", samples);
        assert_eq!(variant.host_cpu_s_per_gb, Some(1.0));
        assert_eq!(variant.adapter_cpu_s_per_gb, Some(0.5));
        assert_eq!(variant.host_cpu_percent, Some(100.0), "2 s in 2 s");
        assert_eq!(variant.adapter_cpu_percent, Some(50.0));
        assert_eq!(variant.machine_cpu_s_per_gb, None);
        assert_eq!(variant.samples.len(), 3);
    }

    #[test]
    fn nothing_is_said_per_gb_where_nothing_arrived() {
        let sample = Sample { host_cpu_s: Some(1.0), ..Sample::default() };
        assert_eq!(metric_value(&sample, "host_cpu_s_per_gb"), None);
        assert_eq!(metric_value(&sample, "host_cpu_percent"), None);
        assert_eq!(metric_value(&sample, "no such metric"), None);
    }

    #[test]
    fn every_metric_is_a_field_of_the_variant_and_is_summarised() {
        let sample = Sample {
            seconds: 1.0,
            bytes: 1,
            throughput_bps: Some(1.0),
            transactions_per_s: Some(1.0),
            host_cpu_s: Some(1.0),
            adapter_cpu_s: Some(1.0),
            guest_cpu_s: Some(1.0),
            machine_cpu_s: Some(1.0),
            rtt_p50_us: Some(1.0),
            rtt_p99_us: Some(1.0),
            rtt_awake_p50_us: Some(1.0),
            rtt_awake_p99_us: Some(1.0),
            retransmits: Some(1),
            wire_frames: Some(1),
            host_frames: Some(1),
            sent_frames: Some(1),
            interrupts_per_s: Some(1.0),
            lost_frames: Some(1),
            dropped_frames: Some(1),
            overrun_frames: Some(1),
            burst_frames_max: Some(1),
            memory_bytes_max: Some(1),
            out_of_order: Some(1),
            dsacks: Some(1),
            cwnd_segments: Some(1.0),
            stall_s: Some(1.0),
            rpc_retransmits: Some(1),
            interrupts_per_frame: Some(1.0),
            latency_p50_us: Some(1.0),
            latency_p99_us: Some(1.0),
            ..Sample::default()
        };
        let variant = serde_json::to_value(summarise("x", vec![sample])).expect("an object");
        assert!(METRICS.iter().all(|metric| variant[metric.name].is_f64()), "{variant}");
        assert_eq!(variant.as_object().expect("an object").len(), METRICS.len() + 2, "and name and samples");
    }

    /// The expected interval is calculated by hand from ln 2, ln 2.2 and ln 1.8: mean 0.68980, standard deviation
    /// 0.10038, t(2; 0.975) = 4.30265.
    #[test]
    fn the_interval_is_students_t_of_the_log_ratios() {
        let verdict = throughput(&variant("off", &[1.0, 1.0, 1.0]), &variant("on", &[2.0, 2.2, 1.8])).expect("three");
        assert!(close(verdict.ratio, 2.0), "{verdict:?}");
        assert!((verdict.ci95[0] - 1.55340).abs() < 1e-5, "{verdict:?}");
        assert!((verdict.ci95[1] - 2.55780).abs() < 1e-5, "{verdict:?}");
        assert!(verdict.significant);
        assert_eq!((verdict.rounds, verdict.base.as_str(), verdict.variant.as_str()), (3, "off", "on"));
    }

    #[test]
    fn the_pair_beside_a_ratio_is_that_of_the_median_round_even_if_the_medians_disagree() {
        let base = variant("off", &[2.0, 2.63, 3.0]);
        let verdict = throughput(&base, &variant("on", &[2.3, 2.2, 3.39])).expect("three");
        // The medians fall from 2.63 to 2.3, and the median ratio is 1.13.
        assert!(close(verdict.ratio, 1.13), "{verdict:?}");
        assert_eq!(verdict.pair, Some([3.0, 3.39]));
        let two = throughput(&variant("off", &[1.0, 4.0]), &variant("on", &[2.0, 2.0])).expect("two");
        let [base, variant] = two.pair.expect("measured here");
        assert!(close(variant / base, two.ratio) && close(base, 2.0), "{two:?}");
    }

    #[test]
    fn one_round_gives_no_verdict_and_two_give_one() {
        assert!(throughput(&variant("off", &[1.0]), &variant("on", &[2.0])).is_none());
        let verdict = throughput(&variant("off", &[1.0, 1.0]), &variant("on", &[2.0, 2.0])).expect("two");
        assert!(verdict.significant && close(verdict.ratio, 2.0));
    }

    #[test]
    fn identical_samples_are_no_difference() {
        let samples = [31.7e9, 33.1e9, 29.9e9, 35.0e9];
        let verdict = throughput(&variant("off", &samples), &variant("on", &samples)).expect("four");
        assert_eq!((verdict.ratio, verdict.ci95, verdict.significant), (1.0, [1.0, 1.0], false));
    }

    #[test]
    fn noise_larger_than_the_difference_is_no_difference() {
        let base = variant("off", &[10.0, 14.0, 8.0, 12.0, 9.0]);
        let verdict = throughput(&base, &variant("on", &[13.0, 10.0, 11.0, 9.0, 12.5])).expect("five");
        assert!(!verdict.significant, "{verdict:?}");
    }

    #[test]
    fn pairing_by_round_cancels_what_drifts() {
        let drift = [1.0, 2.0, 4.0, 8.0];
        let base = variant("off", &drift);
        let verdict = throughput(&base, &variant("on", &drift.map(|value| value * 1.1))).expect("four");
        assert!(verdict.significant && close(verdict.ratio, 1.1), "{verdict:?}");
    }

    #[test]
    fn samples_of_rounds_that_the_other_lacks_are_left_out() {
        let mut other = variant("on", &[2.0, 2.0, 2.0]);
        other.samples[2].round = 7;
        assert_eq!(throughput(&variant("off", &[1.0, 1.0, 1.0]), &other).expect("two").rounds, 2);
    }

    #[test]
    fn a_count_of_zero_has_no_ratio() {
        assert!(throughput(&variant("off", &[0.0, 0.0, 1.0]), &variant("on", &[1.0, 2.0, 2.0])).is_none());
    }

    #[test]
    fn only_samples_of_a_like_distance_are_compared() {
        let base = with_distances("off", &[(10.0, NEAR), (10.0, NEAR), (4.0, MID), (7.0, MOVED), (10.0, NEAR)]);
        let other = with_distances("on", &[(11.0, NEAR), (4.4, MID), (4.4, MID), (7.7, MOVED), (11.0, NEAR)]);
        let verdict = throughput(&base, &other).expect("three");
        assert!(verdict.rounds == 3 && close(verdict.ratio, 1.1), "{verdict:?}");
        let note = note(&base, &other, "throughput_bps").expect("a note");
        assert!(note.contains("2 of 5 rounds are left out"), "{note}");
    }

    #[test]
    fn where_nothing_is_alike_all_is_compared_and_a_note_says_so() {
        let base = with_distances("off", &[(10.0, NEAR), (10.0, MOVED), (10.0, None)]);
        let other = with_distances("on", &[(5.0, MID), (5.0, MOVED), (5.0, NEAR)]);
        assert_eq!(throughput(&base, &other).expect("three").rounds, 3);
        let note = note(&base, &other, "throughput_bps").expect("a note");
        assert!(note.contains("only 0 of 3 rounds"), "{note}");
    }

    #[test]
    fn variants_of_which_the_same_is_to_be_said_share_a_note() {
        let base = with_distances("off", &[(10.0, NEAR), (10.0, NEAR), (4.0, MID)]);
        let [one, other] = ["one", "other"].map(|name| with_distances(name, &[(9.0, NEAR), (9.0, NEAR), (3.0, MOVED)]));
        let last = with_distances("last", &[(9.0, MOVED), (9.0, NEAR), (3.0, MOVED)]);
        let found = notes(&base, &[one, other, last, base.clone()], "throughput_bps");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("one, other against off: 1 of 3 rounds are left out"), "{found:?}");
        assert!(found[1].starts_with("last against off: the distance"), "{found:?}");
    }

    #[test]
    fn there_is_no_note_where_every_round_is_alike_or_nobody_looked() {
        let measured = with_distances("off", &[(10.0, NEAR), (10.0, MID)]);
        assert_eq!(note(&measured, &measured, "throughput_bps"), None);
        let blind = variant("off", &[10.0, 10.0]);
        assert_eq!(note(&blind, &blind, "throughput_bps"), None);
    }

    #[test]
    fn the_classes_of_distance_have_their_bounds() {
        let class =
            |before, after| Distance::of(&Sample { line_distance_ns: Some([before, after]), ..Sample::default() });
        assert_eq!(class(119.9, 10.0), Distance::Near);
        assert_eq!(class(120.0, 450.0), Distance::Mid);
        assert_eq!(class(450.1, 900.0), Distance::Far);
        assert_eq!(class(119.9, 120.0), Distance::Moved);
        assert_eq!(class(f64::NAN, f64::NAN), Distance::Unknown);
        assert_eq!(Distance::of(&Sample::default()), Distance::Unknown);
        assert!(!Distance::Moved.is_like(Distance::Moved) && Distance::Unknown.is_like(Distance::Unknown));
    }

    proptest! {
        #[test]
        fn swapping_the_two_gives_the_reciprocal(pairs in prop::collection::vec((1e-3..1e12f64, 1e-3..1e12f64), 2..12)) {
            let base = variant("a", &pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
            let other = variant("b", &pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
            let there = throughput(&base, &other).expect("two or more");
            let back = throughput(&other, &base).expect("two or more");
            prop_assert!(close(there.ratio * back.ratio, 1.0));
            prop_assert!(close(there.ci95[0] * back.ci95[1], 1.0));
            prop_assert_eq!(there.significant, back.significant);
        }

        #[test]
        fn the_interval_holds_the_ratio(pairs in prop::collection::vec((1.0..1e6f64, 1.0..1e6f64), 2..12)) {
            let base = variant("a", &pairs.iter().map(|pair| pair.0).collect::<Vec<_>>());
            let other = variant("b", &pairs.iter().map(|pair| pair.1).collect::<Vec<_>>());
            let verdict = throughput(&base, &other).expect("two or more");
            prop_assert!(verdict.ci95[0] <= verdict.ratio && verdict.ratio <= verdict.ci95[1]);
            let [of_base, of_variant] = verdict.pair.expect("measured here");
            prop_assert!(close(of_variant / of_base, verdict.ratio));
        }

        #[test]
        fn the_unit_does_not_matter(values in prop::collection::vec((1.0..1e6f64, 1.0..1e6f64), 2..8), unit in 1e-6..1e6f64) {
            let scaled = |scale: f64| {
                let base = variant("a", &values.iter().map(|pair| pair.0 * scale).collect::<Vec<_>>());
                let other = variant("b", &values.iter().map(|pair| pair.1 * scale).collect::<Vec<_>>());
                throughput(&base, &other).expect("two or more").ratio
            };
            prop_assert!((scaled(1.0) / scaled(unit) - 1.0).abs() < 1e-9);
        }
    }
}
