//! Formats figures and verdicts as words and sentences, for the terminal and for the HTML page.

use super::numbers::{SLOW_BPS, gbit, mbit, or_dash};
use crate::compare::{PAIRS_MIN, grouped};
use crate::metric::{self, Metric};
use crate::model::{Experiment, Guest, Judgement, OtherPrograms, Variant, Verdict};
use crate::plan::experiments;

/// Describes a guest in sentences.
pub fn guest(guest: &Guest) -> String {
    let (how, emulated) = match guest.accelerator.as_str() {
        "tcg" => (
            format!("emulated by QEMU {}", guest.qemu),
            " An emulated processor is many times slower than this one: its rates do not apply to a real host.",
        ),
        "uml" => (
            "as a program (User Mode Linux)".to_owned(),
            " Its system calls and page faults cost more than a host's; its data path runs at this processor's speed.",
        ),
        _ => (format!("under KVM in QEMU {}", guest.qemu), ""),
    };
    let note = guest.accelerator_note.as_ref().map_or(String::new(), |note| format!(" {note}."));
    format!(
        "Host A is a guest: Linux {}, {how}, {} processor(s), {} MiB, booted in {:.1} s.{note}{emulated} {}",
        guest.kernel, guest.cpus, guest.memory_mib, guest.boot_s, guest.switched
    )
}

/// TCP metrics that are shown only for experiments with impaired cards or links. Every TCP test measures these metrics,
/// but without impairments they are not relevant.
const OF_TROUBLE: [&str; 4] = ["out_of_order", "dsacks", "cwnd_segments", "stall_s"];
/// Minimum duration at which a stall of a TCP connection is shown, in seconds: half of Linux' minimum retransmission
/// timeout.
const STALL_TOLD_S: f64 = 0.1;

/// Returns whether to show a metric: the metric must be measured. Metrics of impairments also require an experiment
/// with an impairment.
pub fn is_shown(experiment: &Experiment, metric: &Metric) -> bool {
    let mut values = experiment.variants.iter().filter_map(|variant| metric.median(variant));
    match metric.name {
        "stall_s" => has_impairments(experiment) && values.any(|seconds| seconds > STALL_TOLD_S),
        name if OF_TROUBLE.contains(&name) => has_impairments(experiment) && values.next().is_some(),
        _ => values.next().is_some(),
    }
}

/// Returns whether an experiment is about impaired cards or links.
pub fn has_impairments(experiment: &Experiment) -> bool {
    experiments().iter().any(|of| of.name == experiment.name && of.has_impairments())
}

/// Returns the number of decimals that gives two significant digits for each of `ratios`, or three decimals near 1.
fn decimals(ratios: &[f64]) -> usize {
    let smallest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = ratios.iter().copied().fold(0.0, f64::max);
    let are_near_one = smallest > 0.97 && largest < 1.03;
    match smallest {
        _ if are_near_one || ratios.iter().any(|ratio| reads_as_one(*ratio)) => 3,
        small if small < 0.1 => 3,
        small if small < 2.0 => 2,
        small if small < 20.0 => 1,
        _ => 0,
    }
}

/// Returns whether two decimals would show 1 for a ratio other than 1. An interval that ends just above or below 1 must
/// not seem to contain 1.
fn reads_as_one(ratio: f64) -> bool {
    (0.995..1.005).contains(&ratio) && (ratio - 1.0).abs() > f64::EPSILON
}

fn ratio_with(ratio: f64, decimals: usize) -> String {
    match ratio {
        small if small < 0.001 => "<\u{a0}0.001".to_owned(),
        large if large > 1000.0 => ">\u{a0}1000".to_owned(),
        _ => format!("{ratio:.decimals$}"),
    }
}

/// Formats the interval of a verdict, such as "2.7 … 3.1", with no-break spaces.
pub fn interval(verdict: &Verdict) -> String {
    let [low, high] = verdict.ci95.map(|end| ratio_of(verdict, end));
    format!("{low}\u{a0}…\u{a0}{high}")
}

/// Formats the ratio of a verdict, with the same number of decimals as its interval.
pub fn verdict_ratio(verdict: &Verdict) -> String {
    ratio_of(verdict, verdict.ratio)
}

/// If the ratio between the ends of an interval exceeds this value, each end has its own number of decimals. An
/// interval from two rounds can be as wide as 0.02 … 61.
const WIDE_FROM: f64 = 10.0;

/// Formats the ratio of a verdict, or an end of its interval.
fn ratio_of(verdict: &Verdict, of: f64) -> String {
    let [low, high] = verdict.ci95;
    let decimals = if high > WIDE_FROM * low { decimals(&[of]) } else { decimals(&[low, verdict.ratio, high]) };
    ratio_with(of, decimals)
}

/// Formats two values of a metric with their unit, such as "2.41 → 2.72 Gbit/s". The unit is omitted if the metric's
/// noun contains the unit.
pub fn values(metric: &Metric, values: [Option<f64>; 2]) -> String {
    let fastest = values.into_iter().flatten().fold(0.0, f64::max);
    let (number, unit): (fn(f64) -> String, _) = match metric.unit() {
        "bit/s" if fastest < SLOW_BPS => (mbit, "\u{a0}Mbit/s"),
        "bit/s" => (gbit, "\u{a0}Gbit/s"),
        "s/GB" => (metric.text, "\u{a0}s/GB"),
        "%" => (metric.text, "\u{a0}%"),
        "us" => (metric.text, "\u{a0}µs"),
        "s" => (metric.text, "\u{a0}s"),
        _ => (metric.text, ""),
    };
    let [base, variant] = values.map(|value| or_dash(value, number));
    format!("{base}\u{a0}→\u{a0}{variant}{unit}")
}

/// Formats the values of base and variant whose quotient is the ratio of the verdict. `None` if the metric is unknown,
/// or the report is older than these values.
pub fn pair(verdict: &Verdict) -> Option<String> {
    Some(values(metric::find(&verdict.metric)?, verdict.pair?.map(Some)))
}

/// Returns the noun phrase for a metric, or the name of an unknown metric.
pub fn noun(metric_name: &str) -> &str {
    metric::find(metric_name).map_or(metric_name, |metric| metric.noun)
}

/// If the ratio between the ends of an interval exceeds this value, the comparison is too noisy. Such a wide interval
/// cannot distinguish a halving from no change.
const TOO_NOISY_FROM: f64 = 2.0;

/// Minimum relative difference of [`Finding::Difference`]. A smaller difference would be displayed as a ratio of 1.000,
/// and is irrelevant even if significant.
const DIFFERENCE_MIN: f64 = 0.0005;

/// The interpretation of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The two variants differ.
    Difference,
    /// The difference between the two variants is below the noise, or negligible.
    Noise,
    /// The noise is too large for any conclusion.
    TooNoisy,
}

impl Finding {
    /// Interprets `verdict`.
    pub fn of(verdict: &Verdict) -> Self {
        let [low, high] = verdict.ci95;
        match verdict.significant && (verdict.ratio - 1.0).abs() >= DIFFERENCE_MIN {
            true => Self::Difference,
            false if high > TOO_NOISY_FROM * low => Self::TooNoisy,
            false => Self::Noise,
        }
    }

    /// Returns whether the two variants differ.
    pub fn is_difference(self) -> bool {
        self == Self::Difference
    }
}

/// Formats several verdicts on the same two variants, grouped by finding. The finding of the first verdict comes first.
fn phrases(verdicts: &[&Verdict]) -> String {
    let mut kinds = vec![Finding::Difference, Finding::Noise, Finding::TooNoisy];
    if let Some(main) = verdicts.first() {
        kinds.sort_by_key(|kind| *kind != Finding::of(main));
    }
    let of_kind =
        |kind| -> Vec<&Verdict> { verdicts.iter().copied().filter(|verdict| Finding::of(verdict) == kind).collect() };
    let parts: Vec<String> = kinds.into_iter().filter_map(|kind| part(kind, &of_kind(kind))).collect();
    parts.join(", ")
}

/// Formats `verdicts`, which all have the finding `kind`; `None` if `verdicts` is empty.
fn part(kind: Finding, verdicts: &[&Verdict]) -> Option<String> {
    let named = |verdict: &&Verdict| format!("{} ({})", noun(&verdict.metric), interval(verdict));
    let list = || verdicts.iter().map(named).collect::<Vec<_>>().join(" or ");
    match kind {
        _ if verdicts.is_empty() => None,
        Finding::Difference => Some(differences(verdicts)),
        Finding::Noise => Some(format!("no difference larger than the noise in {}", list())),
        Finding::TooNoisy => Some(format!("too noisy to judge {}", list())),
    }
}

fn differences(verdicts: &[&Verdict]) -> String {
    let mut parts = Vec::with_capacity(verdicts.len());
    for verdict in verdicts {
        let label = if parts.is_empty() { "95\u{a0}%:\u{a0}" } else { "" };
        parts.push(labelled(verdict, label));
    }
    parts.join(", ")
}

fn labelled(verdict: &Verdict, label: &str) -> String {
    let (ratio, noun) = (verdict_ratio(verdict), noun(&verdict.metric));
    let pair = pair(verdict).map_or_else(String::new, |pair| format!("; {pair}"));
    format!("{ratio}\u{a0}× {noun} ({label}{}{pair})", interval(verdict))
}

/// Formats a ratio with its metric, its interval and its two values, whatever the finding.
pub fn measured(verdict: &Verdict) -> String {
    labelled(verdict, "")
}

/// Formats a ratio as a change in percent, such as "+135 %".
pub fn change(verdict: &Verdict) -> String {
    let percent = (verdict.ratio - 1.0) * 100.0;
    let sign = if percent < 0.0 { '−' } else { '+' };
    let digits = usize::from(percent.abs() < 10.0);
    format!("{sign}{:.digits$}\u{a0}%", percent.abs())
}

/// Returns whether other programs used enough processor time to affect a result: more than a tenth of a processor.
pub fn is_busy(other_cpus: f64) -> bool {
    other_cpus > 0.1
}

/// Describes the load of other programs before a run. `cpus` is the number of processors of the machine.
pub fn load_before(other_cpus: f64, cpus: usize) -> String {
    let advice =
        if is_busy(other_cpus) { " Their time counts as the hosts': stop them for clear results." } else { "" };
    format!("Other programs used {other_cpus:.1} of {cpus} processors before the run.{advice}")
}

/// Describes the load of other programs before and during a run.
pub fn load(programs: &OtherPrograms, cpus: usize) -> String {
    let during = programs.during_cpus.zip(programs.during_cpus_max);
    let during = during.map_or_else(String::new, |(median, max)| {
        format!(", and {median:.1} during the samples (median; at most {max:.1})")
    });
    format!("Other programs used {:.1} of {cpus} processors before the run{during}.", programs.before_cpus)
}

/// Mark of variants during whose samples other programs ran.
const OTHERS_RAN: char = '*';
/// Mark of variants whose times of hosts and adapters are not separated.
const NOT_SEPARATE: char = '†';

/// Returns the marks of a variant whose processor times include other work.
pub fn marks(variant: &Variant) -> String {
    let others_ran = variant.samples.iter().filter_map(|sample| sample.other_cpus).any(is_busy);
    let is_mixed = variant.samples.iter().any(|sample| sample.is_separate == Some(false));
    [(others_ran, OTHERS_RAN), (is_mixed, NOT_SEPARATE)].iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect()
}

/// Explains the marks of an experiment's variants.
pub fn legend(experiment: &Experiment) -> Vec<String> {
    let used: String = experiment.variants.iter().map(marks).collect();
    let samples = experiment.variants.iter().flat_map(|variant| &variant.samples);
    let max = samples.filter_map(|sample| sample.other_cpus).fold(0.0, f64::max);
    let others_ran = format!(
        "{OTHERS_RAN} Other programs used up to {max:.1} processors during these samples; their time counts as the hosts'."
    );
    let not_separate = format!(
        "{NOT_SEPARATE} Host CPU is all time that is neither idle nor the adapters', other programs included. Adapter CPU \
         includes the hosts' receive work."
    );
    let all = [(OTHERS_RAN, others_ran), (NOT_SEPARATE, not_separate)];
    all.into_iter().filter(|(mark, _)| used.contains(*mark)).map(|(_, text)| text).collect()
}

/// Returns all verdicts of an experiment, the main verdict first.
pub fn verdicts(experiment: &Experiment) -> impl Iterator<Item = &Verdict> {
    experiment.verdict.iter().chain(&experiment.verdicts)
}

/// Groups the verdicts by pair of variants, in the order in which the report lists the verdicts, without duplicates.
pub fn groups(experiment: &Experiment) -> Vec<Vec<&Verdict>> {
    let mut groups: Vec<Vec<&Verdict>> = Vec::new();
    for verdict in verdicts(experiment) {
        let same = |group: &&mut Vec<&Verdict>| group[0].base == verdict.base && group[0].variant == verdict.variant;
        match groups.iter_mut().find(same) {
            Some(group) if group.iter().any(|other| other.metric == verdict.metric) => {}
            Some(group) => group.push(verdict),
            None => groups.push(vec![verdict]),
        }
    }
    groups
}

/// Metrics mentioned in the sentence on two variants, in addition to the metric of the first verdict.
const SPOKEN_METRICS: [&str; 6] = [
    "transactions_per_s",
    "throughput_bps",
    "host_cpu_s_per_gb",
    "latency_p50_us",
    "latency_p99_us",
    "interrupts_per_frame",
];
/// Metrics omitted from a sentence that mentions the latency. The transaction rate follows from the latency. For single
/// small requests, throughput and processor time per byte are meaningless.
const SAID_BY_LATENCY: [&str; 3] = ["transactions_per_s", "throughput_bps", "host_cpu_s_per_gb"];

/// Formats the verdicts on two variants as one sentence: the first verdict, and those on [`SPOKEN_METRICS`].
fn sentence(group: &[&Verdict]) -> String {
    let main = group[0];
    let transactions = group.iter().any(|verdict| verdict.metric == "transactions_per_s");
    let further = group[1..].iter().filter(|verdict| SPOKEN_METRICS.contains(&verdict.metric.as_str()));
    // Transactions have equal sizes, so throughput repeats the transaction rate.
    let further = further.filter(|verdict| !(transactions && verdict.metric == "throughput_bps"));
    let timed = transactions && group.iter().any(|verdict| verdict.metric == "latency_p50_us");
    let further = further.filter(|verdict| !(timed && SAID_BY_LATENCY.contains(&verdict.metric.as_str())));
    let mut spoken: Vec<&Verdict> = std::iter::once(main).chain(further.copied()).collect();
    // If no verdict on the hosts' processor time is available, mention the machine's processor time.
    if !timed && spoken.iter().all(|verdict| !verdict.metric.ends_with("cpu_s_per_gb")) {
        spoken.extend(group.iter().find(|verdict| verdict.metric == "machine_cpu_s_per_gb"));
    }
    format!("{} against {}: {}.", main.variant, main.base, phrases(&spoken))
}

/// Returns the findings of an experiment: one sentence per pair of variants, the main verdict first. Without a verdict,
/// one sentence gives the reason, so the result is never empty.
pub fn sentences(experiment: &Experiment) -> Vec<String> {
    let groups = groups(experiment);
    let mut sentences: Vec<String> = groups.iter().map(|group| sentence(group)).collect();
    if groups.is_empty() {
        sentences.push(no_verdict(experiment));
    }
    sentences.extend(experiment.variants.iter().filter_map(empty_samples));
    sentences
}

/// Returns a sentence for each variant with bounds: the measured ratio, the bound and the result.
pub fn judged(experiment: &Experiment) -> Vec<String> {
    let said = experiment.judgements.iter().map(|of| (of.verdict.variant.as_str(), judgement_phrase(of)));
    grouped(said).into_iter().map(|(variant, phrases)| format!("{variant}: {}.", phrases.join("; "))).collect()
}

fn judgement_phrase(judgement: &Judgement) -> String {
    let verdict = &judgement.verdict;
    format!(
        "{}\u{a0}× {} of {} ({}), {}: {}",
        verdict_ratio(verdict),
        noun(&verdict.metric),
        verdict.base,
        interval(verdict),
        bound(judgement),
        result(judgement)
    )
}

/// Returns the result of a bound in words, by the whole interval.
pub fn result(judgement: &Judgement) -> &'static str {
    match judgement.is_kept() {
        Some(true) => "kept",
        Some(false) => "NOT kept",
        None => "not decided",
    }
}

/// Formats the bound, such as "at most 1.05".
pub fn bound(judgement: &Judgement) -> String {
    let most = judgement.at_most.map(|most| format!("at most {most}"));
    let least = judgement.at_least.map(|least| format!("at least {least}"));
    most.into_iter().chain(least).collect::<Vec<_>>().join(" and ")
}

/// Returns the main finding of an experiment in one sentence, or the reason why there is none.
pub fn headline(experiment: &Experiment) -> String {
    groups(experiment).first().map_or_else(|| no_verdict(experiment), |group| sentence(group))
}

/// Reports the samples of a variant in which no data arrived. Such samples have no ratio, so no verdict mentions them.
fn empty_samples(variant: &Variant) -> Option<String> {
    let empty = variant.samples.iter().filter(|sample| sample.throughput_bps.is_some_and(|bps| bps <= 0.0)).count();
    let (name, all) = (&variant.name, variant.samples.len());
    (empty > 0).then(|| format!("{name}: no data arrived in {empty} of {all} samples; these are not compared."))
}

fn no_verdict(experiment: &Experiment) -> String {
    let rounds = experiment.variants.iter().map(|variant| variant.samples.len()).min().unwrap_or(0);
    match rounds {
        0 => "No verdict: nothing was measured.".to_owned(),
        1 => format!("No verdict: one round only; an interval needs at least {PAIRS_MIN}."),
        _ => "No verdict: the question's metric could not be compared.".to_owned(),
    }
}

/// Replaces no-break spaces in `text` by ordinary spaces. Lines must be wrapped before this replacement.
pub fn ordinary_spaces(text: &str) -> String {
    text.replace(['\u{a0}', '\u{202f}'], " ")
}

/// Replaces control characters in external text, so that the text cannot control a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::numbers::{count, cpu_seconds, gbit, microseconds, or_dash};
    use super::*;
    use crate::compare;

    fn verdict(metric: &str, ratio: f64, ci95: [f64; 2]) -> Verdict {
        Verdict {
            metric: metric.to_owned(),
            base: "off".to_owned(),
            variant: "large send".to_owned(),
            ratio,
            ci95,
            significant: ci95[0] > 1.0 || ci95[1] < 1.0,
            rounds: 5,
            pair: None,
        }
    }

    fn experiment(main: Option<Verdict>, further: Vec<Verdict>) -> Experiment {
        Experiment {
            name: "lso".to_owned(),
            question: String::new(),
            claims: Vec::new(),
            fixed: String::new(),
            variants: Vec::new(),
            verdict: main,
            verdicts: further,
            notes: Vec::new(),
            judgements: Vec::new(),
        }
    }

    fn spoken(experiment: &Experiment) -> Vec<String> {
        sentences(experiment).iter().map(|sentence| ordinary_spaces(sentence)).collect()
    }

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        assert_eq!(gbit(34_412_000_000.0), "34.41");
        assert_eq!([cpu_seconds(0.0123), cpu_seconds(1.538)], ["0.012", "1.54"]);
        assert_eq!([microseconds(13.24), microseconds(1043.2)], ["13.2", "1\u{202f}043"]);
        assert_eq!([count(12.0), count(1234.4), count(1_234_567.0)], ["12", "1\u{202f}234", "1\u{202f}234\u{202f}567"]);
        assert_eq!(
            [2.913, 0.344, 1.0042, 0.0344, 31.2].map(|ratio| ratio_with(ratio, decimals(&[ratio]))),
            ["2.9", "0.34", "1.004", "0.034", "31"]
        );
        assert_eq!(or_dash(None, gbit), "–");
    }

    #[test]
    fn a_difference_is_said_as_a_ratio_with_its_interval() {
        let experiment = experiment(
            Some(verdict("throughput_bps", 2.91, [2.70, 3.12])),
            vec![verdict("host_cpu_s_per_gb", 0.341, [0.312, 0.368]), verdict("rtt_p50_us", 1.2, [1.1, 1.3])],
        );
        assert_eq!(
            spoken(&experiment),
            ["large send against off: 2.9 × the throughput (95 %: 2.7 … 3.1), 0.34 × the host CPU per GB \
              (0.31 … 0.37)."]
        );
    }

    #[test]
    fn a_bound_is_said_with_what_was_measured_and_whether_it_is_kept() {
        let of = |metric, ratio, at_most: f64| Judgement {
            verdict: verdict(metric, ratio, [ratio * 0.9, ratio * 1.1]),
            at_most: Some(at_most),
            at_least: None,
            is_met: ratio <= at_most,
        };
        let mut experiment = experiment(None, Vec::new());
        experiment.judgements = vec![of("latency_p50_us", 1.02, 1.05), of("interrupts_per_s", 0.62, 0.5)];
        let said: Vec<String> = judged(&experiment).iter().map(|line| ordinary_spaces(line)).collect();
        assert_eq!(
            said,
            [
                "large send: 1.02 × the median response time of off (0.92 … 1.12), at most 1.05: not decided; 0.62 × the \
              interrupts per second of off (0.56 … 0.68), at most 0.5: NOT kept."
            ]
        );
    }

    #[test]
    fn where_requests_are_timed_their_number_and_their_bits_are_not_said() {
        let all =
            ["latency_p99_us", "transactions_per_s", "throughput_bps", "host_cpu_s_per_gb", "interrupts_per_frame"];
        let mut verdicts = all.map(|metric| verdict(metric, 2.0, [1.9, 2.1])).to_vec();
        let said = spoken(&experiment(Some(verdict("latency_p50_us", 2.0, [1.9, 2.1])), verdicts.clone()));
        assert!(said[0].contains("99th") && said[0].contains("interrupts per frame"), "{said:?}");
        assert!(!said[0].contains("transactions") && !said[0].contains("throughput") && !said[0].contains("CPU"));
        // With bulk data, the sentence includes the throughput.
        verdicts.retain(|verdict| verdict.metric != "transactions_per_s");
        let said = spoken(&experiment(Some(verdict("latency_p50_us", 2.0, [1.9, 2.1])), verdicts));
        assert!(said[0].contains("throughput") && said[0].contains("host CPU"), "{said:?}");
    }

    #[test]
    fn noise_is_not_said_as_a_ratio() {
        let experiment = experiment(Some(verdict("throughput_bps", 1.01, [0.98, 1.05])), Vec::new());
        let expected = "large send against off: no difference larger than the noise in the throughput (0.98 … 1.05).";
        assert_eq!(spoken(&experiment), [expected]);
    }

    #[test]
    fn the_headline_begins_with_the_main_verdict_and_leaves_details_out() {
        let experiment = experiment(
            Some(verdict("throughput_bps", 1.01, [0.98, 1.05])),
            vec![verdict("host_cpu_s_per_gb", 0.5, [0.45, 0.55]), verdict("machine_cpu_s_per_gb", 0.8, [0.7, 0.9])],
        );
        assert_eq!(
            ordinary_spaces(&headline(&experiment)),
            "large send against off: no difference larger than the noise in the throughput (0.98 … 1.05), 0.50 × the \
             host CPU per GB (95 %: 0.45 … 0.55)."
        );
    }

    #[test]
    fn an_interval_that_ends_short_of_1_does_not_read_as_if_it_held_it() {
        let close = verdict("throughput_bps", 0.97, [0.94, 0.998]);
        assert_eq!(ordinary_spaces(&phrases(&[&close])), "0.970 × the throughput (95 %: 0.940 … 0.998)");
    }

    #[test]
    fn noise_that_hides_a_halving_is_not_called_no_difference() {
        let wide = verdict("throughput_bps", 2.28, [0.46, 11.3]);
        assert_eq!(Finding::of(&wide), Finding::TooNoisy);
        assert_eq!(ordinary_spaces(&phrases(&[&wide])), "too noisy to judge the throughput (0.46 … 11.3)");
        assert_eq!(Finding::of(&verdict("throughput_bps", 1.0, [0.8, 1.3])), Finding::Noise);
        assert_eq!(Finding::of(&verdict("throughput_bps", 1.0002, [1.0001, 1.0003])), Finding::Noise);
        assert_eq!(Finding::of(&verdict("throughput_bps", 0.998, [0.997, 0.999])), Finding::Difference);
        assert_eq!(Finding::of(&verdict("throughput_bps", 9.0, [2.0, 40.0])), Finding::Difference);
    }

    #[test]
    fn samples_in_which_nothing_arrived_are_named() {
        let mut experiment = experiment(None, Vec::new());
        let sample = |bps| crate::model::Sample { throughput_bps: Some(bps), ..crate::model::Sample::default() };
        experiment.variants = vec![compare::summarise("on", vec![sample(0.0), sample(1e9), sample(0.0)])];
        let last = sentences(&experiment).pop().expect("a sentence");
        assert_eq!(last, "on: no data arrived in 2 of 3 samples; these are not compared.");
    }

    #[test]
    fn each_pair_of_variants_has_its_own_sentence() {
        let mut other = verdict("throughput_bps", 2.0, [1.9, 2.1]);
        other.variant = "both".to_owned();
        let first = verdict("throughput_bps", 3.0, [2.9, 3.1]);
        let found = sentences(&experiment(Some(first.clone()), vec![other, first]));
        assert_eq!(found.len(), 2, "and what is said twice is shown once: {found:?}");
        assert!(found[1].starts_with("both against off: "));
    }

    #[test]
    fn without_a_verdict_the_reason_is_said() {
        assert!(sentences(&experiment(None, Vec::new()))[0].contains("nothing was measured"));
    }

    #[test]
    fn a_wide_interval_shows_both_ends() {
        let wide = verdict("throughput_bps", 1.1, [0.021, 61.3]);
        assert_eq!((interval(&wide).as_str(), verdict_ratio(&wide).as_str()), ("0.021\u{a0}…\u{a0}61", "1.10"));
        assert_eq!(interval(&verdict("throughput_bps", 1.1, [1e-9, 61.3])), "<\u{a0}0.001\u{a0}…\u{a0}61");
        let wider = verdict("throughput_bps", 1.1, [1e-9, 1.27e8]);
        assert_eq!(interval(&wider), "<\u{a0}0.001\u{a0}…\u{a0}>\u{a0}1000");
    }

    #[test]
    fn rows_are_marked_where_other_programs_ran_or_nothing_separates_hosts_and_adapters() {
        let sample = |other_cpus, is_separate| crate::model::Sample {
            other_cpus: Some(other_cpus),
            is_separate,
            ..crate::model::Sample::default()
        };
        let named = |samples| compare::summarise("on", samples);
        let mut experiment = experiment(None, Vec::new());
        experiment.variants = vec![named(vec![sample(0.1, Some(true)), sample(0.02, None)])];
        assert!(marks(&experiment.variants[0]).is_empty() && legend(&experiment).is_empty());
        experiment.variants.push(named(vec![sample(0.0, Some(true)), sample(0.64, Some(true))]));
        experiment.variants.push(named(vec![sample(0.3, Some(false))]));
        assert_eq!([1, 2].map(|of| marks(&experiment.variants[of])), ["*", "*†"]);
        let said = legend(&experiment);
        assert!(said.len() == 2 && said[0].contains("up to 0.6 processors"), "{said:?}");
    }

    #[test]
    fn a_ratio_reads_as_a_change_in_percent() {
        let of = |ratio| ordinary_spaces(&change(&verdict("throughput_bps", ratio, [ratio, ratio])));
        assert_eq!([2.35, 0.78, 1.004, 1.0].map(of), ["+135 %", "−22 %", "+0.4 %", "+0.0 %"]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
