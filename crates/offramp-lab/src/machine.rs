//! The description of the machine of a run.

use crate::model::{Experiment, Guest, Machine, OtherPrograms};
use offramp_offload::checksum;
use offramp_ports::sys::cpu;
use offramp_testbed::cpu::{CpuTimes, Worked};
use offramp_testbed::guest::CPUS;
use offramp_testbed::guest::Guests;
use offramp_testbed::rig::Placement;
use offramp_testbed::stats::median;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Duration of the measurement of other programs' load before a run: 50 ticks of `/proc/stat` at the usual 100 ticks
/// per second.
const BUSY_WINDOW: Duration = Duration::from_millis(500);

/// Describes this machine for a run on an existing interface. A run on an existing interface has no offramp adapter.
pub fn describe_device() -> Machine {
    Machine {
        host_cpus: cpu::online(),
        cpu_split: "All busy time of this machine counts as the host's; the adapter has its own processor, or none."
            .to_owned(),
        ..describe(&Placement { host_cpus: Vec::new(), adapter_cpus: Vec::new(), server_cpus: None }, None)
    }
}

/// Describes this machine, and how the processor time of hosts and adapters is separated. `without_rps` is the
/// reason if the hosts' receive work cannot be moved to the hosts' processors
/// ([`Rig::without_rps`](offramp_testbed::rig::Rig::without_rps)).
pub fn describe(placement: &Placement, without_rps: Option<&str>) -> Machine {
    Machine {
        kernel: nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default(),
        processor: processor().unwrap_or_else(|| "unknown".to_owned()),
        cpus: cpu::online().len(),
        checksum_kernel: checksum::kernel_name().to_owned(),
        host_cpus: placement.host_cpus.clone(),
        adapter_cpus: placement.adapter_cpus.clone(),
        cpu_split: split(placement, without_rps),
        without_rps: without_rps.map(str::to_owned),
        other_programs: None,
        line_distance_ns: None,
        guest: None,
    }
}

/// The method of switching offloads between variants with a guest.
const SWITCHED: &str = "Transmit offloads are switched in the guest's driver (ethtool features, segment limit of \
     super-frames), all negotiated at boot. Receive offloads are switched in the adapter.";

/// Describes the guest as host A. `None` until the first guest has booted.
fn describe_guest(guests: &Guests) -> Option<Guest> {
    let (machine, runner) = guests.first()?;
    Some(Guest {
        accelerator: machine.accelerator().name().to_owned(),
        accelerator_note: guests.note().map(str::to_owned),
        kernel: machine.kernel().to_owned(),
        qemu: runner.version.clone(),
        cpus: CPUS,
        memory_mib: machine.memory_mib(),
        boot_s: machine.boot_time().as_secs_f64(),
        switched: SWITCHED.to_owned(),
    })
}

/// Describes this machine for a run with a guest as host A.
pub fn describe_with_guest(placement: &Placement, guests: &Guests) -> Machine {
    Machine {
        cpu_split: format!(
            "Host: the time of the guest's processes on processors {:?}, without host B's programs there. Adapters \
             on processors {:?}: the time of their threads, copies in and out of the guest's memory included. Guest: \
             by its own /proc/stat.",
            placement.host_cpus, placement.adapter_cpus
        ),
        guest: describe_guest(guests),
        ..describe(placement, None)
    }
}

/// Returns the load of other programs before the run (`before_cpus`) and around all samples of the run. The load around
/// the samples is `None` if it is unknown for a sample, because the known samples could be the idle ones.
pub fn other_programs(before_cpus: f64, experiments: &[Experiment]) -> OtherPrograms {
    let samples = experiments.iter().flat_map(|e| &e.variants).flat_map(|v| &v.samples);
    let during: Vec<f64> = samples.map(|sample| sample.other_cpus).collect::<Option<_>>().unwrap_or_default();
    OtherPrograms {
        before_cpus,
        during_cpus: median(&during),
        during_cpus_max: during.into_iter().max_by(f64::total_cmp),
    }
}

/// Measures the mean number of busy processors for half a second, while this program does nothing.
///
/// # Errors
/// Returns an error if `/proc/stat` cannot be read.
pub fn busy_cpus() -> io::Result<f64> {
    let (before, begin) = (CpuTimes::read()?, Instant::now());
    thread::sleep(BUSY_WINDOW);
    let (after, elapsed_us) = (CpuTimes::read()?, begin.elapsed().as_micros() as u64);
    let worked: Worked = after.since(&before).all().iter().map(|time| time.worked(elapsed_us, 0)).sum();
    Ok(worked.likely_us as f64 / elapsed_us.max(1) as f64)
}

/// Returns the one-way latency of a cache line between a host's and an adapter's processor, in nanoseconds: minimum,
/// median and maximum over all samples.
pub fn line_distance_ns(experiments: &[Experiment]) -> Option<[f64; 3]> {
    let samples = experiments.iter().flat_map(|e| &e.variants).flat_map(|v| &v.samples);
    let mut all: Vec<f64> = samples.filter_map(|s| s.line_distance_ns).flatten().collect();
    all.sort_by(f64::total_cmp);
    Some([*all.first()?, all[all.len() / 2], *all.last()?])
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn split(placement: &Placement, without_rps: Option<&str>) -> String {
    let Placement { host_cpus, adapter_cpus, .. } = placement;
    match (placement.is_apart(), without_rps) {
        (true, None) => format!(
            "Hosts (programs, sockets, receive work moved there by RPS) on processors {host_cpus:?}: all their busy \
             time. Adapters on processors {adapter_cpus:?}: the time of their threads, copies in and out of the \
             hosts included."
        ),
        (true, Some(reason)) => format!(
            "Hosts' programs on processors {host_cpus:?}, adapters on processors {adapter_cpus:?}. The hosts' receive \
             work was not moved to the hosts' processors (RPS: {reason}). It runs inside the adapters' writes and \
             counts as adapter time. All other busy time counts as the hosts', that of other programs included."
        ),
        (false, _) => "One processor for all: adapter time is the time of the adapters' threads, with the hosts' \
             receive work inside their writes. The rest of the busy time is the hosts'."
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Sample;
    use crate::report::sample::planned;

    #[test]
    fn the_load_during_a_run_is_unknown_if_it_is_unknown_for_a_sample() {
        let run = |first: Option<f64>| {
            let of = |name: &str| Sample {
                other_cpus: if name == "32 kB" { first } else { Some(0.0) },
                ..Sample::default()
            };
            other_programs(1.5, &[planned("rx-window", of)])
        };
        let (known, unknown) = (run(Some(0.5)), run(None));
        assert_eq!(known.during_cpus_max, Some(0.5));
        assert_eq!((unknown.before_cpus, unknown.during_cpus, unknown.during_cpus_max), (1.5, None, None));
    }
}
