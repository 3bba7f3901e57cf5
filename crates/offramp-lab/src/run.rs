//! Runs experiments: samples of all variants in turn, then what they say.

use crate::compare;
use crate::error::LabError;
use crate::model::{Experiment, Sample, Variant, Verdict};
use crate::plan::{Plan, VariantPlan};
use crate::sample::{Bench, Stage};

/// Metrics that are compared besides the main one.
const METRICS: [&str; 5] =
    ["throughput_bps", "transactions_per_s", "host_cpu_s_per_gb", "adapter_cpu_s_per_gb", "machine_cpu_s_per_gb"];

/// Runs one experiment, `repeats` rounds of one sample per variant. Every second round goes through
/// the variants backwards, so that what drifts does not favour one of them.
///
/// `on_sample` is told before each sample: its round, its turn in it, and the variant.
///
/// # Errors
/// When a sample fails or the run is stopped.
pub fn run(
    bench: &Bench,
    stage: &mut Stage,
    plan: &Plan,
    repeats: usize,
    on_sample: &mut dyn FnMut(usize, usize, &str),
) -> Result<Experiment, LabError> {
    let count = plan.variants.len();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::with_capacity(repeats); count];
    for round in 0..repeats {
        for turn in 0..count {
            let index = if round % 2 == 0 { turn } else { count - 1 - turn };
            let VariantPlan { name, rig, traffic } = &plan.variants[index];
            on_sample(round, turn, name);
            samples[index].push(bench.sample(stage, round, rig, traffic)?);
        }
    }
    let named = plan.variants.iter().zip(samples);
    let variants: Vec<Variant> = named.map(|(plan, samples)| compare::summarise(plan.name, samples)).collect();
    Ok(conclude(plan, variants))
}

fn conclude(plan: &Plan, variants: Vec<Variant>) -> Experiment {
    let base = &variants[0];
    let verdict = variants.get(1).and_then(|variant| compare::verdict(base, variant, plan.metric));
    let mut notes = notes(plan, &variants);
    notes.extend(variants[1..].iter().filter_map(|variant| compare::note(base, variant, plan.metric)));
    let verdicts: Vec<Verdict> = variants[1..]
        .iter()
        .enumerate()
        .flat_map(|(n, variant)| METRICS.iter().map(move |metric| (n, variant, *metric)))
        .filter(|(n, _, metric)| *n > 0 || *metric != plan.metric)
        .filter_map(|(_, variant, metric)| compare::verdict(base, variant, metric))
        .collect();
    Experiment {
        name: plan.name.to_owned(),
        question: plan.question.to_owned(),
        claims: plan.claims.iter().map(|&claim| claim.to_owned()).collect(),
        fixed: plan.fixed.clone(),
        notes,
        variants,
        verdict,
        verdicts,
    }
}

/// What a reader must know of a result.
fn notes(plan: &Plan, variants: &[Variant]) -> Vec<String> {
    let mut notes = Vec::new();
    let unaccounted = variants.iter().flat_map(|v| &v.samples).filter_map(unaccounted_share).fold(0.0, f64::max);
    if unaccounted > UNACCOUNTED_SHARE_NOTED {
        notes.push(format!(
            "Up to {:.0} % of the machine's processor time in a sample was neither a host's nor an adapter's.",
            unaccounted * 100.0
        ));
    }
    if plan.variants.iter().any(|v| v.rig.between == crate::rig::Between::Relay) {
        notes.push("The relay's super-frames cross whole: there is no line in it, and nothing is summed.".to_owned());
    }
    notes
}

/// Share of the machine's processor time that may belong to neither side before it is noted.
const UNACCOUNTED_SHARE_NOTED: f64 = 0.1;

/// The part of the machine's own account that hosts and adapters together do not explain.
fn unaccounted_share(sample: &Sample) -> Option<f64> {
    let is_explained = sample.guest_cpu_s.is_none();
    // Beside a guest, the other host's time is known to be in neither.
    let machine = sample.machine_cpu_s.filter(|s| *s > 0.0 && is_explained)?;
    Some((machine - sample.host_cpu_s? - sample.adapter_cpu_s?).abs() / machine)
}
