//! The answer to "what should I switch on here?": one line per experiment, in four groups. Each answer rests on a whole
//! confidence interval, never on a ratio or median alone.

use super::words::{self, Finding};
use crate::model::{Experiment, LabReport, Verdict};

/// Relative difference up to which two variants count as equal.
const SAME: f64 = 0.05;
/// Metrics in which a higher value is better. In all other compared metrics, a lower value is better.
const HIGHER_IS_BETTER: [&str; 2] = ["throughput_bps", "transactions_per_s"];
/// Metrics that decide the answer, in this order, if the main metric shows no difference or does not decide.
const FURTHER: [&str; 3] = ["throughput_bps", "transactions_per_s", "host_cpu_s_per_gb"];
/// Name of the experiment that compares the adapters with a bare relay. The experiment offers nothing to switch on.
const NO_SWITCH: &str = "relay";

/// The group of an answer, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The interval lies on the better side of 1, and not within 5 % of 1.
    SwitchOn,
    /// The interval lies within 5 % of 1.
    NoDifference,
    /// The interval lies on the worse side of 1, and not within 5 % of 1.
    CostsMore,
    /// The interval contains 1 and is not within 5 % of 1, or there is no interval.
    NotDecided,
}

impl Advice {
    /// The groups in the order of the report.
    pub const ALL: [Self; 4] = [Self::SwitchOn, Self::NoDifference, Self::CostsMore, Self::NotDecided];

    /// Returns the name of the group.
    pub fn text(self) -> &'static str {
        match self {
            Self::SwitchOn => "switch on",
            Self::NoDifference => "no difference",
            Self::CostsMore => "costs more",
            Self::NotDecided => "not decided",
        }
    }

    /// Judges a verdict by its interval.
    fn of(verdict: &Verdict) -> Self {
        let [low, high] = verdict.ci95;
        let is_higher_better = HIGHER_IS_BETTER.contains(&verdict.metric.as_str());
        match Finding::of(verdict) {
            _ if 1.0 - SAME <= low && high <= 1.0 + SAME => Self::NoDifference,
            Finding::Difference if (low > 1.0) == is_higher_better => Self::SwitchOn,
            Finding::Difference => Self::CostsMore,
            Finding::Noise | Finding::TooNoisy => Self::NotDecided,
        }
    }
}

/// The answer of one experiment.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Index of the experiment in the report.
    pub position: usize,
    /// Name of the experiment.
    pub experiment: &'a str,
    /// Group of the answer.
    pub advice: Advice,
    /// The comparison behind the answer; `None` without a comparison.
    pub verdict: Option<&'a Verdict>,
}

impl Answer<'_> {
    /// Returns the comparison in one line, such as "on: 2.4 × the throughput (1.5 … 3.8; 7.17 → 17.04 Gbit/s)".
    pub fn line(&self) -> String {
        let Some(verdict) = self.verdict else { return "not compared".to_owned() };
        format!("{}: {}", verdict.variant, words::measured(verdict))
    }
}

/// Returns the answers of all experiments about a switch, group by group. Experiments about faulty or small cards have
/// nothing to switch on.
pub fn answers(report: &LabReport) -> Vec<Answer<'_>> {
    let all = report.experiments.iter().enumerate();
    let about_a_switch = all.filter(|(_, one)| one.name != NO_SWITCH && !words::has_impairments(one));
    let answers: Vec<Answer> = about_a_switch.map(|(position, experiment)| answer(position, experiment)).collect();
    let mut sorted = answers;
    sorted.sort_by_key(|answer| Advice::ALL.iter().position(|advice| *advice == answer.advice));
    sorted
}

/// Judges the main comparison of an experiment. If the main metric shows no difference, or decides nothing, the first
/// further metric with a difference decides.
fn answer(position: usize, experiment: &Experiment) -> Answer<'_> {
    let answer = |advice, verdict| Answer { position, experiment: &experiment.name, advice, verdict };
    let Some(main) = &experiment.verdict else { return answer(Advice::NotDecided, None) };
    let of_main = Advice::of(main);
    if matches!(of_main, Advice::SwitchOn | Advice::CostsMore) {
        return answer(of_main, Some(main));
    }
    let is_same = |of: &&Verdict| of.base == main.base && of.variant == main.variant;
    let find = |metric: &&str| words::verdicts(experiment).filter(is_same).find(|of| of.metric == **metric);
    let mut further = FURTHER.iter().filter_map(|metric| find(metric).map(|verdict| (Advice::of(verdict), verdict)));
    let decided = further.find(|(advice, _)| matches!(advice, Advice::SwitchOn | Advice::CostsMore));
    decided.map_or_else(|| answer(of_main, Some(main)), |(advice, verdict)| answer(advice, Some(verdict)))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn verdict(metric: &str, ci95: [f64; 2]) -> Verdict {
        let ratio = (ci95[0] * ci95[1]).sqrt();
        Verdict {
            metric: metric.to_owned(),
            base: "off".to_owned(),
            variant: "on".to_owned(),
            ratio,
            ci95,
            significant: ci95[0] > 1.0 || ci95[1] < 1.0,
            rounds: 4,
            pair: None,
        }
    }

    #[test]
    fn the_whole_interval_decides_between_gain_cost_and_no_difference() {
        let of = |metric, ci95| Advice::of(&verdict(metric, ci95));
        assert_eq!(of("throughput_bps", [1.5, 3.8]), Advice::SwitchOn);
        assert_eq!(of("throughput_bps", [0.6, 0.9]), Advice::CostsMore);
        assert_eq!(of("host_cpu_s_per_gb", [0.6, 0.9]), Advice::SwitchOn);
        assert_eq!(of("latency_p99_us", [1.1, 1.9]), Advice::CostsMore);
        assert_eq!(of("throughput_bps", [0.96, 1.04]), Advice::NoDifference);
        assert_eq!(of("throughput_bps", [1.01, 1.03]), Advice::NoDifference);
        // The ratios of the next two verdicts are far above 1.05, but their intervals contain 1.
        assert_eq!(of("throughput_bps", [0.9, 1.6]), Advice::NotDecided);
        assert_eq!(of("throughput_bps", [0.6, 9.0]), Advice::NotDecided);
    }

    #[test]
    fn processor_time_decides_if_the_link_limits_the_throughput() {
        let mut experiment = sample::report().experiments.remove(0);
        experiment.verdict = Some(verdict("throughput_bps", [0.99, 1.01]));
        experiment.verdicts = vec![verdict("host_cpu_s_per_gb", [0.5, 0.7])];
        let found = answer(0, &experiment);
        assert_eq!(found.advice, Advice::SwitchOn);
        assert!(found.line().contains("host CPU per GB"), "{}", found.line());
        experiment.verdicts.clear();
        assert_eq!(answer(0, &experiment).advice, Advice::NoDifference);
        experiment.verdict = None;
        assert_eq!(answer(0, &experiment).line(), "not compared");
    }

    #[test]
    fn every_switch_of_a_run_has_one_answer_and_a_relay_has_none() {
        let report = sample::with_impairments();
        assert!(answers(&report).is_empty());
        let report = sample::report();
        let found = answers(&report);
        assert_eq!(found.len(), report.experiments.len() - 1);
        assert!(found.iter().all(|answer| answer.experiment != "relay"));
        let groups: Vec<Advice> = found.iter().map(|answer| answer.advice).collect();
        let mut sorted = groups.clone();
        sorted.sort_by_key(|advice| Advice::ALL.iter().position(|one| one == advice));
        assert_eq!(groups, sorted);
    }
}
