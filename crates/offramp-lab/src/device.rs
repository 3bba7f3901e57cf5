//! The on/off matrix on an existing interface: switches features one at a time, measures traffic with a peer, and
//! restores every setting.
//!
//! Only the named interface is changed. Before the first change, a state file records the settings of the interface.
//! The settings are restored when the run ends, fails, panics or is stopped. If the process is killed, a later call of
//! [`restore`](device::restore) restores the settings. The calling thread must be in the interface's network namespace.
//! The calling thread must not use [`privilege::enter`](offramp_ports::sys::privilege::enter), because `enter` leaves
//! the namespace.

use std::sync::atomic::AtomicBool;

use offramp_ports::sys::ethtool::Features;
use offramp_ports::sys::{cpu, link};

use crate::compare;
use crate::machine;
use crate::model::{Experiment, Sample, Variant, Verdict};
use crate::report::words;
use offramp_testbed::error::TestbedError;

mod matrix;
mod measure;

pub use matrix::experiments;
pub use measure::DeviceConfig;

use matrix::{Plan, VariantPlan};
use measure::Bench;
use offramp_testbed::device::{self, DeviceError, Guard, State, check_permission};

/// The metric of the main verdict. If the link is the limit, an offload changes processor time, but not throughput.
const METRIC: &str = "host_cpu_s_per_gb";
/// Metrics compared in addition to [`METRIC`].
const OTHER_METRICS: [&str; 3] = ["throughput_bps", "rtt_p50_us", "rtt_p99_us"];

/// Runs the matrix. `stop` ends the run after the current test. `progress` receives one line per step.
///
/// After the run, even if it fails, `experiments` contains all completed experiments. An experiment with failed traffic
/// is included, with the samples taken before the failure and a note. An experiment interrupted by `stop` is omitted.
/// If an earlier run left the interface changed, the settings of the interface are restored first.
///
/// # Errors
/// Returns an error in these cases:
/// - The interface does not exist, no setting of the interface can be changed, or another run uses the interface.
/// - The kernel refuses a change, because the process lacks the permission.
/// - The peer cannot be reached, or the route to the peer does not use the interface.
/// - Traffic failed in every experiment before the first sample.
/// - The run was stopped.
/// - A setting could not be restored. In all other cases, the interface has its original settings.
pub fn run(
    config: &DeviceConfig,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str),
    experiments: &mut Vec<Experiment>,
) -> Result<(), TestbedError> {
    let bench = Bench::new(config, stop)?;
    let interface = config.interface.as_str();
    let found = device::find(&config.state_dir, interface, progress)?;
    let plans = plans(config, &found)?;
    check_permission(&found)?;
    progress(&format!("{interface} (driver {}): {}", found.driver(), names(&plans)));
    let busy_cpus = machine::busy_cpus()?;
    progress(&words::load_before(busy_cpus, cpu::online().len()));
    let busy = words::is_busy(busy_cpus).then(|| words::load_before(busy_cpus, cpu::online().len()));
    bench.probe()?;
    let guard = Guard::new(&config.state_dir, found)?;
    let measured = measure(&bench, &guard, &plans, config.repeats, progress, experiments);
    for experiment in &mut *experiments {
        experiment.notes.extend(busy.clone());
    }
    // A changed interface is worse than a failed measurement, so an error of the restoration takes precedence.
    let changed = guard.finish()?;
    progress(&format!("{interface}: all settings restored"));
    for line in &changed {
        progress(&format!("{interface}: except: {line}"));
    }
    for experiment in experiments {
        experiment.notes.extend(changed.iter().map(|line| format!("After the run {line}.")));
    }
    measured
}

fn plans(config: &DeviceConfig, found: &State) -> Result<Vec<Plan>, TestbedError> {
    let has_gso_limit = found.gso_segs_max.is_some_and(|segs| link::set_gso_segs_max(&found.interface, segs).is_ok());
    let changeable = |feature: &str| found.is_changeable(feature);
    matrix::plans(&found.interface, found.driver(), &changeable, has_gso_limit, &config.only)
}

fn names(plans: &[Plan]) -> String {
    plans.iter().map(|plan| plan.name).collect::<Vec<_>>().join(", ")
}

/// Runs the experiments one after the other. If traffic fails, only the current experiment ends.
fn measure(
    bench: &Bench,
    guard: &Guard,
    plans: &[Plan],
    repeats: usize,
    progress: &mut dyn FnMut(&str),
    experiments: &mut Vec<Experiment>,
) -> Result<(), TestbedError> {
    let mut failures = Vec::new();
    for plan in plans {
        let mut experiment = Running::new(plan);
        let outcome = experiment.measure(bench, guard, repeats, progress);
        if let Err(TestbedError::Traffic(reason)) = outcome {
            progress(&format!("{}: {reason}", plan.name));
            experiment.note(format!("Cut off: {reason}."));
            failures.push(reason);
        } else {
            outcome?;
        }
        experiments.push(experiment.conclude());
    }
    match failures.into_iter().next() {
        Some(first) if experiments.iter().all(|e| e.variants.iter().all(|v| v.samples.is_empty())) => {
            experiments.clear();
            Err(DeviceError::NothingMeasured(first).into())
        }
        _ => Ok(()),
    }
}

/// An experiment in progress.
struct Running<'a> {
    plan: &'a Plan,
    samples: Vec<Vec<Sample>>,
    notes: Vec<String>,
}

impl<'a> Running<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self { plan, samples: vec![Vec::new(); plan.variants.len()], notes: plan.notes.clone() }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Takes samples of the variants one after the other. Every second round runs in reverse order, so that drift does
    /// not favour a variant.
    fn measure(
        &mut self,
        bench: &Bench,
        guard: &Guard,
        repeats: usize,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), TestbedError> {
        let (plan, count) = (self.plan, self.plan.variants.len());
        for round in 0..repeats {
            for turn in 0..count {
                bench.check_stop()?;
                let index = if round % 2 == 0 { turn } else { count - 1 - turn };
                let variant = &plan.variants[index];
                progress(&format!("{} {}/{}: {}", plan.name, round * count + turn + 1, repeats * count, variant.name));
                let features = guard.apply(&variant.change)?;
                for note in effects(variant, guard.found(), &features) {
                    self.note(note);
                }
                self.samples[index].push(bench.sample(round, plan.traffic)?);
            }
        }
        Ok(())
    }

    fn conclude(self) -> Experiment {
        let named = self.plan.variants.iter().zip(self.samples);
        let variants: Vec<Variant> =
            named.map(|(variant, samples)| compare::summarise(variant.name, samples)).collect();
        let (base, others) = (&variants[0], &variants[1..]);
        let verdict = others.first().and_then(|variant| compare::verdict(base, variant, METRIC));
        let further = others.iter().skip(1).filter_map(|variant| compare::verdict(base, variant, METRIC));
        let of_others = |metric| others.iter().filter_map(move |variant| compare::verdict(base, variant, metric));
        let verdicts: Vec<Verdict> = further.chain(OTHER_METRICS.iter().flat_map(|metric| of_others(metric))).collect();
        Experiment {
            name: self.plan.name.to_owned(),
            question: self.plan.question.to_owned(),
            claims: Vec::new(),
            fixed: format!(
                "{}; switched: {}; host CPU: all work on this machine",
                self.plan.fixed,
                self.plan.features.join(", ")
            ),
            variants,
            verdict,
            verdicts,
            notes: self.notes,
            judgements: Vec::new(),
        }
    }
}

/// Returns "on" or "off".
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Describes features that the kernel did not switch as requested, and features that it switched without a request.
fn effects(variant: &VariantPlan, found: &State, now: &Features) -> Vec<String> {
    let change = &variant.change;
    let mut effects: Vec<String> = change
        .features
        .iter()
        .filter(|(feature, on)| now.active(feature).is_some_and(|active| active != *on))
        .map(|(feature, on)| {
            format!("\"{}\": {feature} was requested {} and is {}.", variant.name, on_off(*on), on_off(!*on))
        })
        .collect();
    let is_asked = |feature: &str| change.features.iter().any(|(asked, _)| *asked == feature);
    let follows = |on: bool| {
        let turned =
            |(feature, was): &(&String, &bool)| !is_asked(feature) && **was != on && now.active(feature) == Some(on);
        found.active.iter().filter(turned).map(|(feature, _)| feature.as_str()).collect::<Vec<_>>()
    };
    for on in [false, true] {
        let followers = follows(on);
        if !followers.is_empty() {
            effects.push(format!("\"{}\" also turned {} {}.", variant.name, on_off(on), followers.join(", ")));
        }
    }
    effects
}
