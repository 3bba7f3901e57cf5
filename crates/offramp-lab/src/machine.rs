//! The description of a run's machine.

use crate::model::{Experiment, Guest, Machine};
use offramp_offload::checksum;
use offramp_ports::sys::cpu;
use offramp_testbed::guest::CPUS;
use offramp_testbed::guest::Guests;
use offramp_testbed::rig::Placement;

/// Describes this machine for a run on an existing interface: there is no adapter of ours in it.
pub fn describe_device() -> Machine {
    Machine {
        host_cpus: cpu::online(),
        cpu_split: "All that this machine did not idle is the host's; the adapter has a processor of its own, or none."
            .to_owned(),
        ..describe(&Placement { host_cpus: Vec::new(), adapter_cpus: Vec::new(), server_cpus: None }, false)
    }
}

/// Describes this machine, and the separation of hosts and adapters in a run on it. `has_rps`: the hosts' receive work
/// can be moved to their processors ([`Rig::has_rps`](offramp_testbed::rig::Rig::has_rps)).
pub fn describe(placement: &Placement, has_rps: bool) -> Machine {
    Machine {
        kernel: nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default(),
        processor: processor().unwrap_or_else(|| "unknown".to_owned()),
        cpus: cpu::online().len(),
        checksum_kernel: checksum::kernel_name().to_owned(),
        host_cpus: placement.host_cpus.clone(),
        adapter_cpus: placement.adapter_cpus.clone(),
        cpu_split: split(placement, has_rps),
        line_distance_ns: None,
        guest: None,
    }
}

/// The difference between variants.
const SWITCHED: &str = "What the guest sends is switched in its driver (the features of ethtool, the limit of segments \
                        in a super-frame): the driver and the port agreed on all of it when the guest booted. What it \
                        receives is switched in the adapter.";

/// Describes host A; `None` before the first guest has booted.
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
            "Host: the time of the guest's processes on processors {:?}; host B's programs are there too, and not in it. \
             Adapters on processors {:?}: the time of their threads, copies in and out of the guest's memory included. \
             Guest: what its own /proc/stat says.",
            placement.host_cpus, placement.adapter_cpus
        ),
        guest: describe_guest(guests),
        ..describe(placement, false)
    }
}

/// Returns the smallest, median and largest distance between the processors in all samples.
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

fn split(placement: &Placement, has_rps: bool) -> String {
    let Placement { host_cpus, adapter_cpus, .. } = placement;
    match (placement.is_apart(), has_rps) {
        (true, true) => format!(
            "Hosts (programs, sockets, receive work moved there by RPS) on processors {host_cpus:?}: all that these did \
             not idle. Adapters on processors {adapter_cpus:?}: the time of their threads, copies in and out of the \
             hosts included."
        ),
        (true, false) => format!(
            "Hosts' programs on processors {host_cpus:?}, adapters on processors {adapter_cpus:?}. The system does not let \
             this user move the hosts' receive work (RPS): it runs inside the adapters' writes and counts as theirs; the \
             hosts' is the rest of what was not idle."
        ),
        (false, _) => "One processor for all: the adapters' is the time of their threads, which includes the hosts' \
                       receive work done inside their writes; the hosts' is the rest of what was not idle."
            .to_owned(),
    }
}
