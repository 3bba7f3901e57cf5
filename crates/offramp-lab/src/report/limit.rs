//! The resource that limits the throughput of each variant, and the change in processor time between two variants. The
//! same rules apply to all experiments. A variant has a limit only if all its samples have the same limit. A change
//! counts only if the whole confidence interval of the ratio shows it.

use super::numbers::{self, count, percent};
use super::words::{interval, pair, verdict_ratio};
use crate::compare;
use crate::metric::TOTAL_WORK;
use crate::model::{Experiment, Machine, Sample, Variant, Verdict};

/// Minimum load at which a processor counts as the limit, in percent.
const BUSY_PERCENT: f64 = 90.0;
/// Load above which the hosts must have run on several processors, in percent of one processor.
const ONE_PROCESSOR_PERCENT: f64 = 105.0;
/// Relative change up to which a processor time per byte counts as the same.
const SAME_WORK: f64 = 0.05;

/// The resource that limits a variant's throughput. A processor is busy from a load of [`BUSY_PERCENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Host,
    Adapter,
    Both,
    /// Hosts and adapters share the processors, and all processors are busy.
    Machine,
    /// No processor is busy.
    Idle,
    /// The samples have different limits.
    Differs,
}

impl Limit {
    /// Returns the limit that all samples of a variant have in common. `None` with a guest, or if the processor time of
    /// hosts or adapters is unknown.
    fn of(variant: &Variant, machine: &Machine) -> Option<Self> {
        if machine.guest.is_some() {
            // With a guest as host A, the hosts' processor time does not include host B, and host B can be the limit.
            return None;
        }
        let mut limits = variant.samples.iter().filter_map(|sample| Self::of_sample(sample, machine));
        let first = limits.next()?;
        Some(if limits.all(|limit| limit == first) { first } else { Self::Differs })
    }

    fn of_sample(sample: &Sample, machine: &Machine) -> Option<Self> {
        let percent = |name| compare::metric_value(sample, name);
        let (host, adapter) = (percent("host_cpu_percent")?, percent("adapter_cpu_percent")?);
        let shares = machine.adapter_cpus.iter().any(|cpu| machine.host_cpus.contains(cpu));
        if shares || host > ONE_PROCESSOR_PERCENT {
            let all = BUSY_PERCENT * machine.cpus.max(1) as f64;
            return Some(if host + adapter >= all { Self::Machine } else { Self::Idle });
        }
        Some(match (host >= BUSY_PERCENT, adapter >= BUSY_PERCENT) {
            (true, true) => Self::Both,
            (true, false) => Self::Host,
            (false, true) => Self::Adapter,
            (false, false) => Self::Idle,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Self::Host => "the hosts' processor",
            Self::Adapter => "the adapters' processor",
            Self::Both => "the processors of both hosts and adapters",
            Self::Machine => "the processors that hosts and adapters share",
            Self::Idle => "no processor, all have idle time",
            Self::Differs => "not the same in all samples",
        }
    }
}

/// Describes the limits of two variants; `None` if a limit is unknown.
pub fn limited_by(base: &Variant, variant: &Variant, machine: &Machine) -> Option<String> {
    let [of_base, of_variant] = [Limit::of(base, machine)?.text(), Limit::of(variant, machine)?.text()];
    Some(if of_base == of_variant {
        format!("limit: {of_variant}")
    } else {
        format!("limit: {of_variant} ({}: {of_base})", base.name)
    })
}

/// Explains the figures of an experiment in sentences: the limit of each variant, the change in processor time, and
/// lost frames.
pub fn reading(experiment: &Experiment, machine: &Machine) -> Vec<String> {
    let limits = limits(experiment, machine);
    // With a guest as host A, the processor time of host B is not measured.
    let work = if machine.guest.is_none() { where_the_work_went(experiment) } else { None };
    limits.into_iter().chain(work).chain(losses(experiment)).collect()
}

fn limits(experiment: &Experiment, machine: &Machine) -> Option<String> {
    let of = |variant: &Variant| {
        let limit = Limit::of(variant, machine)?.text();
        let [host, adapter] =
            [variant.host_cpu_percent, variant.adapter_cpu_percent].map(|share| numbers::or_dash(share, percent));
        Some(format!("{}: {limit} (hosts {host} %, adapters {adapter} % of one processor)", variant.name))
    };
    let limits: Vec<String> = experiment.variants.iter().filter_map(of).collect();
    (!limits.is_empty()).then(|| format!("Limit of the throughput: {}.", limits.join("; ")))
}

/// The change in a processor time, judged by the whole interval of its ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Less,
    Same,
    More,
    Undecided,
}

impl Change {
    fn of(verdict: &Verdict) -> Self {
        match verdict.ci95 {
            [_, high] if high < 1.0 - SAME_WORK => Self::Less,
            [low, _] if low > 1.0 + SAME_WORK => Self::More,
            [low, high] if 1.0 - SAME_WORK <= low && high <= 1.0 + SAME_WORK => Self::Same,
            _ => Self::Undecided,
        }
    }
}

fn where_the_work_went(experiment: &Experiment) -> Option<String> {
    let [base, variant, ..] = experiment.variants.as_slice() else { return None };
    let total = compare::verdict(base, variant, TOTAL_WORK)?;
    let part = |metric| compare::verdict(base, variant, metric).map(|verdict| Change::of(&verdict));
    let parts = [part("host_cpu_s_per_gb"), part("adapter_cpu_s_per_gb")];
    let verdict = match Change::of(&total) {
        Change::Less => "total work shrank",
        Change::More => "total work grew",
        Change::Same if parts == [Some(Change::Less), Some(Change::More)] => {
            "work moved from the hosts to the adapters"
        }
        Change::Same => "total work is unchanged",
        Change::Undecided => "the interval does not decide whether total work changed by more than 5 %",
    };
    let values = pair(&total).map_or_else(String::new, |pair| format!("; {pair}"));
    Some(format!(
        "Hosts and adapters together, {} against {}: {}\u{a0}× the CPU per GB (95\u{a0}%: {}{values}): {verdict}.",
        variant.name,
        base.name,
        verdict_ratio(&total),
        interval(&total),
    ))
}

fn losses(experiment: &Experiment) -> Option<String> {
    let of = |variant: &Variant| {
        let lost = variant.lost_frames.filter(|lost| *lost > 0.0)?;
        Some(format!("{} ({} frames)", variant.name, count(lost)))
    };
    let lossy: Vec<String> = experiment.variants.iter().filter_map(of).collect();
    (!lossy.is_empty()).then(|| format!("Frames were lost with {}.", lossy.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    /// Returns a variant with one sample of one second per pair of loads. A pair has the load of the hosts and the load
    /// of the adapters, in percent of one processor.
    fn busy_in(samples: &[[f64; 2]]) -> Variant {
        let sample = |[host, adapter]: &[f64; 2]| Sample {
            seconds: 1.0,
            host_cpu_s: Some(host / 100.0),
            adapter_cpu_s: Some(adapter / 100.0),
            ..Sample::default()
        };
        compare::summarise("on", samples.iter().map(sample).collect())
    }

    fn busy(host: f64, adapter: f64) -> Variant {
        busy_in(&[[host, adapter]])
    }

    fn apart() -> Machine {
        Machine { cpus: 2, host_cpus: vec![0], adapter_cpus: vec![1], ..Machine::default() }
    }

    #[test]
    fn the_limit_is_the_processor_that_is_busy() {
        let shared = Machine { cpus: 1, host_cpus: vec![0], adapter_cpus: vec![0], ..Machine::default() };
        let limit = |host, adapter| Limit::of(&busy(host, adapter), &apart());
        assert_eq!(limit(99.0, 40.0), Some(Limit::Host));
        assert_eq!(limit(50.0, 97.0), Some(Limit::Adapter));
        assert_eq!(limit(95.0, 97.0), Some(Limit::Both));
        assert_eq!(limit(30.0, 40.0), Some(Limit::Idle));
        assert_eq!(limit(120.0, 70.0), Some(Limit::Machine));
        assert_eq!(Limit::of(&busy(60.0, 38.0), &shared), Some(Limit::Machine));
        assert_eq!(Limit::of(&Variant::default(), &apart()), None);
    }

    #[test]
    fn samples_that_disagree_have_no_limit_in_common() {
        let variant = busy_in(&[[99.0, 40.0], [99.0, 40.0], [60.0, 40.0]]);
        assert_eq!(Limit::of(&variant, &apart()), Some(Limit::Differs));
    }

    #[test]
    fn two_variants_with_one_limit_name_it_once() {
        let of = |base, variant| limited_by(&base, &variant, &apart()).expect("both are known");
        assert_eq!(of(busy(99.0, 40.0), busy(95.0, 60.0)), "limit: the hosts' processor");
        let moved = of(Variant { name: "off".to_owned(), ..busy(99.0, 40.0) }, busy(50.0, 97.0));
        assert_eq!(moved, "limit: the adapters' processor (off: the hosts' processor)");
        assert_eq!(limited_by(&Variant::default(), &busy(99.0, 40.0), &apart()), None);
        assert_eq!(limited_by(&busy(99.0, 40.0), &busy(99.0, 40.0), &sample::with_guest().machine), None);
    }

    #[test]
    fn where_the_adapters_were_not_measured_no_limit_is_named() {
        let mut experiment = sample::report().experiments.remove(0);
        let samples = experiment.variants.iter_mut().flat_map(|variant| &mut variant.samples);
        samples.for_each(|sample| sample.adapter_cpu_s = None);
        assert_eq!(limits(&experiment, &Machine::default()), None);
    }

    /// Returns the sentence on the work of base and variant. Each round has the hosts' and the adapters' time.
    fn work(base: &[[f64; 2]], variant: &[[f64; 2]]) -> String {
        let sample = |(round, [host, adapter]): (usize, &[f64; 2])| Sample {
            round,
            bytes: 1_000_000_000,
            host_cpu_s: Some(*host),
            adapter_cpu_s: Some(*adapter),
            ..Sample::default()
        };
        let named =
            |name, rounds: &[[f64; 2]]| compare::summarise(name, rounds.iter().enumerate().map(sample).collect());
        let mut experiment = sample::report().experiments.remove(0);
        experiment.variants = vec![named("off", base), named("on", variant)];
        where_the_work_went(&experiment).expect("two rounds or more")
    }

    #[test]
    fn moved_work_is_not_saved_work() {
        let said = |base, variant| work(&[base; 3], &[variant; 3]);
        assert!(said([1.0, 0.5], [0.5, 0.5]).contains("total work shrank"));
        assert!(said([1.0, 0.5], [0.5, 1.0]).contains("moved from the hosts"));
        assert!(said([1.0, 0.5], [1.0, 0.9]).contains("total work grew"));
        assert!(said([1.0, 0.5], [1.0, 0.5]).contains("total work is unchanged"));
    }

    #[test]
    fn medians_alone_decide_nothing_about_the_work() {
        // The median of the total falls from 1.5 to 0.8 s/GB, but the interval of the ratio reaches from 0.2 to 2.6.
        let said = work(&[[0.5, 0.5], [0.5, 1.0], [1.0, 1.0]], &[[0.4, 0.4], [0.3, 0.3], [1.0, 1.2]]);
        assert!(said.contains("the interval does not decide") && !said.contains("shrank"), "{said}");
        // The interval excludes 1, and includes 0.95.
        let said = work(&[[0.5, 0.5]; 3], &[[0.45, 0.47], [0.46, 0.47], [0.47, 0.485]]);
        assert!(said.contains("the interval does not decide"), "{said}");
    }
}
