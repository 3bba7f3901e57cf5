//! Runs experiments: in each round, takes one sample of every variant, one after the other. After the last round,
//! compares the variants.

use crate::compare;
use crate::model::{Experiment, Judgement, Sample, Variant, Verdict};
use crate::plan::{Bound, Plan, VariantPlan};
use crate::sample::{Bench, Stage};
use offramp_testbed::error::TestbedError;

/// Runs one experiment: `repeats` rounds with one sample per variant. Every second round visits the variants in reverse
/// order, so that drift favours no variant.
///
/// `on_sample` is called before each sample, with the round, the position of the sample in the round, and the variant.
///
/// # Errors
/// Returns an error if a sample fails, or if the run is stopped.
pub fn run(
    bench: &Bench,
    stage: &mut Stage,
    plan: &Plan,
    repeats: usize,
    on_sample: &mut dyn FnMut(usize, usize, &str),
) -> Result<Experiment, TestbedError> {
    let mut on_sample = |_at: usize, round: usize, turn: usize, variant: &str| on_sample(round, turn, variant);
    let mut done = run_together(bench, stage, std::slice::from_ref(plan), repeats, &mut on_sample)?;
    Ok(done.remove(0))
}

/// Runs several experiments interleaved: each round has one sample of every variant of every experiment. A drift over
/// minutes, such as in a virtual machine's speed, thus affects all experiments alike.
///
/// `on_sample` is called before each sample. The arguments are the index of the experiment, the round, the position of
/// the sample in the round, and the variant.
///
/// # Errors
/// Returns an error if a sample fails, or if the run is stopped.
pub fn run_together(
    bench: &Bench,
    stage: &mut Stage,
    plans: &[Plan],
    repeats: usize,
    on_sample: &mut dyn FnMut(usize, usize, usize, &str),
) -> Result<Vec<Experiment>, TestbedError> {
    let mut samples: Vec<_> = plans.iter().map(|plan| vec![Vec::with_capacity(repeats); plan.variants.len()]).collect();
    for round in 0..repeats {
        for (at, plan) in plans.iter().enumerate() {
            let mut on_sample = |round: usize, turn: usize, variant: &str| on_sample(at, round, turn, variant);
            run_round(bench, stage, plan, round, &mut samples[at], &mut on_sample)?;
        }
    }
    Ok(plans.iter().zip(samples).map(|(plan, samples)| summarise(plan, samples)).collect())
}

fn run_round(
    bench: &Bench,
    stage: &mut Stage,
    plan: &Plan,
    round: usize,
    samples: &mut [Vec<Sample>],
    on_sample: &mut dyn FnMut(usize, usize, &str),
) -> Result<(), TestbedError> {
    let count = plan.variants.len();
    for turn in 0..count {
        let index = if round.is_multiple_of(2) { turn } else { count - 1 - turn };
        let VariantPlan { name, rig, traffic } = &plan.variants[index];
        on_sample(round, turn, name);
        samples[index].push(bench.sample(stage, round, rig, traffic, plan.has_round_trips())?);
    }
    Ok(())
}

fn summarise(plan: &Plan, samples: Vec<Vec<Sample>>) -> Experiment {
    let named = plan.variants.iter().zip(samples);
    conclude(plan, named.map(|(plan, samples)| compare::summarise(&plan.name, samples)).collect())
}

fn conclude(plan: &Plan, variants: Vec<Variant>) -> Experiment {
    let base = &variants[0];
    let verdict = variants.get(1).and_then(|variant| compare::verdict(base, variant, &plan.metric));
    let mut notes = notes(plan, &variants);
    notes.extend(compare::notes(base, &variants[1..], &plan.metric));
    // The main metric is the first metric, because the sentence on every variant begins with the main metric.
    let further = plan.compared.iter().filter(|metric| **metric != plan.metric);
    let compared: Vec<&str> = std::iter::once(&plan.metric).chain(further).map(String::as_str).collect();
    let verdicts: Vec<Verdict> = variants[1..]
        .iter()
        .enumerate()
        .flat_map(|(n, variant)| compared.iter().map(move |metric| (n, variant, *metric)))
        .filter(|(n, _, metric)| *n > 0 || *metric != plan.metric)
        .filter_map(|(_, variant, metric)| compare::verdict(base, variant, metric))
        .collect();
    Experiment {
        name: plan.name.clone(),
        question: plan.question.clone(),
        claims: plan.claims().into_iter().map(str::to_owned).collect(),
        fixed: plan.fixed.clone(),
        notes,
        judgements: judgements(&plan.bounds, &variants),
        variants,
        verdict,
        verdicts,
    }
}

/// Applies every bound to every variant except the first. A bound is omitted if the metric cannot be compared. A bound
/// is also omitted for the variant that is its base.
fn judgements(bounds: &[Bound], variants: &[Variant]) -> Vec<Judgement> {
    let each = variants.iter().skip(1).flat_map(|variant| bounds.iter().map(move |bound| (variant, bound)));
    each.filter_map(|(variant, bound)| judgement(bound, variants, variant)).collect()
}

fn judgement(bound: &Bound, variants: &[Variant], variant: &Variant) -> Option<Judgement> {
    let (at_most, at_least) = (bound.at_most, bound.at_least);
    let base = match &bound.best_of {
        None => variants.first()?,
        Some(names) => best(variants, names, bound)?,
    };
    // The best variant is not compared with itself.
    let verdict = compare::verdict(base, variant, &bound.metric).filter(|_| base.name != variant.name)?;
    let is_met =
        at_most.is_none_or(|most| verdict.ratio <= most) && at_least.is_none_or(|least| verdict.ratio >= least);
    Some(Judgement { verdict, at_most, at_least, is_met })
}

/// Returns the variant with the best median in a bound's metric, among `names`. An empty `names` means all variants.
fn best<'a>(variants: &'a [Variant], names: &[String], bound: &Bound) -> Option<&'a Variant> {
    let median = |variant: &Variant| Some(compare::spread(variant, &bound.metric)?.median);
    let named = variants.iter().filter(|variant| names.is_empty() || names.contains(&variant.name));
    let measured = named.filter_map(|variant| Some((variant, median(variant)?)));
    let by_value = |a: &(&Variant, f64), b: &(&Variant, f64)| a.1.total_cmp(&b.1);
    let best = if bound.at_most.is_some() { measured.min_by(by_value) } else { measured.max_by(by_value) };
    best.map(|(variant, _)| variant)
}

/// Returns the caveats of an experiment's result.
fn notes(plan: &Plan, variants: &[Variant]) -> Vec<String> {
    let mut notes = Vec::new();
    // If only the server is measured, the processor time of the client's host is part of neither the hosts' nor the
    // adapters' time.
    let is_partial = plan.variants.iter().any(|v| v.rig.placement.server_cpus.is_some());
    let unaccounted = variants.iter().flat_map(|v| &v.samples).filter_map(unaccounted_share).fold(0.0, f64::max);
    if unaccounted > UNACCOUNTED_SHARE_NOTED && !is_partial {
        notes.push(format!(
            "In a sample, up to {:.0} % of one processor's time was neither a host's nor an adapter's.",
            unaccounted * 100.0
        ));
    }
    if plan.variants.iter().any(|v| v.rig.between == offramp_testbed::rig::Between::Relay) {
        notes.push("The relay has no wire: super-frames cross whole, and no checksum is computed.".to_owned());
    }
    notes
}

/// Minimum unaccounted processor time at which a note is added, as a share of one processor.
const UNACCOUNTED_SHARE_NOTED: f64 = 0.1;

/// Returns the machine's processor time not attributed to hosts or adapters, as a share of one processor.
fn unaccounted_share(sample: &Sample) -> Option<f64> {
    let is_explained = sample.guest_cpu_s.is_none();
    // With a guest as host A, neither the hosts' nor the adapters' time contains the processor time of host B. The
    // unattributed time is then not computed.
    let machine = sample.machine_cpu_s.filter(|_| is_explained && sample.seconds > 0.0)?;
    Some((machine - sample.host_cpu_s? - sample.adapter_cpu_s?).abs() / sample.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(name: &str, latencies: [f64; 3], throughput_bps: f64) -> Variant {
        let sample = |(round, latency_us): (usize, f64)| Sample {
            round,
            seconds: 1.0,
            latency_p99_us: Some(latency_us),
            throughput_bps: Some(throughput_bps),
            ..Sample::default()
        };
        compare::summarise(name, latencies.into_iter().enumerate().map(sample).collect())
    }

    fn variants() -> [Variant; 3] {
        [
            variant("off", [100.0, 200.0, 100.0], 9e8),
            variant("rule", [120.0, 240.0, 120.0], 8e8),
            variant("fixed", [150.0, 300.0, 150.0], 1e9),
        ]
    }

    fn latency() -> Bound {
        Bound { metric: "latency_p99_us".to_owned(), at_most: Some(1.25), at_least: None, best_of: None }
    }

    #[test]
    fn a_bound_is_judged_by_the_ratio_of_the_rounds() {
        let found = judgements(&[latency()], &variants());
        let said: Vec<_> =
            found.iter().map(|j| (j.verdict.variant.as_str(), j.verdict.base.as_str(), j.is_met)).collect();
        assert_eq!(said, [("rule", "off", true), ("fixed", "off", false)]);
        assert!((found[0].verdict.ratio - 1.2).abs() < 1e-9);
        assert_eq!((found[0].at_most, found[0].at_least), (Some(1.25), None));
    }

    #[test]
    fn the_best_is_the_lowest_or_the_highest_of_those_that_are_named() {
        let of = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let throughput = |names| Bound {
            metric: "throughput_bps".to_owned(),
            at_most: None,
            at_least: Some(0.85),
            best_of: of(names),
        };
        let said = |bound| -> Vec<(String, String, bool)> {
            let found = judgements(&[bound], &variants());
            found.into_iter().map(|j| (j.verdict.variant, j.verdict.base, j.is_met)).collect()
        };
        // The base of the bound is the best variant, so that variant has no judgement.
        assert_eq!(said(throughput(&[])), [("rule".to_owned(), "fixed".to_owned(), false)]);
        let against_off = said(throughput(&["off"]));
        assert_eq!(against_off[0], ("rule".to_owned(), "off".to_owned(), true));
        let lowest = Bound { best_of: of(&["rule", "fixed"]), ..latency() };
        assert_eq!(said(lowest), [("fixed".to_owned(), "rule".to_owned(), true)]);
        assert!(said(Bound { metric: "rtt_p50_us".to_owned(), ..latency() }).is_empty(), "nothing was measured");
    }
}
