//! The limit of each variant and the change in work, derived from the samples. One rule finds the limits in all
//! experiments.

use super::numbers::{self, count, cpu_seconds, percent};
use crate::model::{Experiment, Machine, Variant};

/// Minimum load at which a processor counts as the limit, percent.
const BUSY_PERCENT: f64 = 90.0;
/// Load above which the hosts must have run on several processors, percent of one processor.
const ONE_PROCESSOR_PERCENT: f64 = 105.0;
/// Minimum relative change at which the total work of hosts and adapters counts as changed.
const SAME_WORK: f64 = 0.05;

/// The resource that limits a variant's throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Host,
    Adapter,
    Both,
    /// Hosts and adapters share the processors, and all processors are busy.
    Machine,
    /// No processor is busy.
    Rate,
}

impl Limit {
    /// Returns the limit of a variant; `None` if the processor time of hosts or adapters is unknown, or with a guest.
    fn of(variant: &Variant, machine: &Machine) -> Option<Self> {
        let (host, adapter) = (variant.host_cpu_percent?, variant.adapter_cpu_percent?);
        if machine.guest.is_some() {
            // With a guest as host A, the hosts' processor time does not include host B, and host B can be the limit.
            return None;
        }
        let shares = machine.adapter_cpus.iter().any(|cpu| machine.host_cpus.contains(cpu));
        if shares || host > ONE_PROCESSOR_PERCENT {
            let all = BUSY_PERCENT * machine.cpus.max(1) as f64;
            return Some(if host + adapter >= all { Self::Machine } else { Self::Rate });
        }
        Some(match (host >= BUSY_PERCENT, adapter >= BUSY_PERCENT) {
            (true, true) => Self::Both,
            (true, false) => Self::Host,
            (false, true) => Self::Adapter,
            (false, false) => Self::Rate,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Self::Host => "the hosts' processor",
            Self::Adapter => "the adapters' processor",
            Self::Both => "the processors of both hosts and adapters",
            Self::Machine => "the processors that hosts and adapters share",
            Self::Rate => "the link's rate or waiting, not a processor",
        }
    }
}

/// Describes the limits of two variants; `None` if a limit is unknown.
pub fn limited_by(base: &Variant, variant: &Variant, machine: &Machine) -> Option<String> {
    let [of_base, of_variant] = [Limit::of(base, machine)?.text(), Limit::of(variant, machine)?.text()];
    Some(if of_base == of_variant {
        format!("limited by {of_variant}")
    } else {
        format!("limited by {of_variant} ({}: by {of_base})", base.name)
    })
}

/// Explains the figures of an experiment in sentences: the limit of each variant, the change in work, and losses.
pub fn reading(experiment: &Experiment, machine: &Machine) -> Vec<String> {
    let limits = limits(experiment, machine);
    // With a guest as host A, host B does a part of the work, and the part of host B is not measured.
    let work = if machine.guest.is_none() { where_the_work_went(experiment) } else { None };
    limits.into_iter().chain(work).chain(losses(experiment)).collect()
}

fn limits(experiment: &Experiment, machine: &Machine) -> Option<String> {
    let of = |variant: &Variant| {
        let limit = Limit::of(variant, machine)?.text();
        let [host, adapter] =
            [variant.host_cpu_percent, variant.adapter_cpu_percent].map(|share| numbers::or_dash(share, percent));
        Some(format!("{} by {limit} (hosts {host} %, adapters {adapter} % of one processor)", variant.name))
    };
    let limits: Vec<String> = experiment.variants.iter().filter_map(of).collect();
    (!limits.is_empty()).then(|| format!("Limited: {}.", limits.join("; ")))
}

fn where_the_work_went(experiment: &Experiment) -> Option<String> {
    let [base, variant, ..] = experiment.variants.as_slice() else { return None };
    let both = |variant: &Variant| Some((variant.host_cpu_s_per_gb?, variant.adapter_cpu_s_per_gb?));
    let ((base_host, base_adapter), (host, adapter)) = (both(base)?, both(variant)?);
    let (before, after) = (base_host + base_adapter, host + adapter);
    if before <= 0.0 {
        return None;
    }
    let verdict = match after / before - 1.0 {
        change if change < -SAME_WORK => "total work shrank",
        change if change > SAME_WORK => "total work grew",
        _ if host < base_host && adapter > base_adapter => "work moved from the hosts to the adapters",
        _ => "total work is unchanged",
    };
    Some(format!(
        "Hosts and adapters together took {} s/GB ({}) and {} s/GB ({}): {verdict}.",
        cpu_seconds(before),
        base.name,
        cpu_seconds(after),
        variant.name
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

    fn busy(host: f64, adapter: f64) -> Variant {
        Variant {
            name: "on".to_owned(),
            host_cpu_percent: Some(host),
            adapter_cpu_percent: Some(adapter),
            ..Variant::default()
        }
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
        assert_eq!(limit(30.0, 40.0), Some(Limit::Rate));
        assert_eq!(limit(120.0, 70.0), Some(Limit::Machine));
        assert_eq!(Limit::of(&busy(60.0, 38.0), &shared), Some(Limit::Machine));
        assert_eq!(Limit::of(&Variant::default(), &apart()), None);
    }

    #[test]
    fn two_variants_with_one_limit_name_it_once() {
        let of = |base, variant| limited_by(&base, &variant, &apart()).expect("both are known");
        assert_eq!(of(busy(99.0, 40.0), busy(95.0, 60.0)), "limited by the hosts' processor");
        let moved = of(Variant { name: "off".to_owned(), ..busy(99.0, 40.0) }, busy(50.0, 97.0));
        assert_eq!(moved, "limited by the adapters' processor (off: by the hosts' processor)");
        assert_eq!(limited_by(&Variant::default(), &busy(99.0, 40.0), &apart()), None);
        assert_eq!(limited_by(&busy(99.0, 40.0), &busy(99.0, 40.0), &sample::with_guest().machine), None);
    }

    #[test]
    fn where_the_adapters_were_not_measured_no_limit_is_named() {
        let mut experiment = sample::report().experiments.remove(0);
        experiment.variants.iter_mut().for_each(|variant| variant.adapter_cpu_percent = None);
        assert_eq!(limits(&experiment, &Machine::default()), None);
    }

    #[test]
    fn moved_work_is_not_saved_work() {
        let mut experiment = sample::report().experiments.remove(0);
        let mut say = |host: [f64; 2], adapter: [f64; 2]| {
            for position in 0..2 {
                experiment.variants[position].host_cpu_s_per_gb = Some(host[position]);
                experiment.variants[position].adapter_cpu_s_per_gb = Some(adapter[position]);
            }
            where_the_work_went(&experiment).expect("both were measured")
        };
        assert!(say([1.0, 0.5], [0.5, 0.5]).contains("total work shrank"));
        assert!(say([1.0, 0.5], [0.5, 1.0]).contains("moved from the hosts"));
        assert!(say([1.0, 1.0], [0.5, 0.9]).contains("total work grew"));
        assert!(say([1.0, 1.0], [0.5, 0.5]).contains("total work is unchanged"));
    }
}
