//! Two Linux guests in QEMU with one daemon. One guest attacks the daemon, and the harness measures the TCP of the
//! other guest.
//!
//! ```text
//!  victim,  ttcp   ── vhost-user ──┐
//!                                  switch, offramp up ── TAP, namespace, ttcp
//!  hostile, root   ── vhost-user ──┘
//! ```
//!
//! Guests and daemon are placed as in `docs/deployment.md`: each guest has a separate processor, and the switch's
//! thread has priority. The victim is also measured next to a guest that only computes, without traffic. No adapter can
//! prevent the victim's loss of throughput in this case.

pub mod attack;
mod device;

use crate::guest::GuestArgs;
use attack::{Attack, HOSTILE, Station, VICTIM};
use clap::ValueEnum;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use offramp_ports::sys::{NetNs, cpu, link};
use offramp_testbed::daemon::{self, Daemon};
use offramp_testbed::failure::{Doing, Result, failed, inside, new_namespace};
use offramp_testbed::guest::busybox::{Extras, HOST, MTU, Small, TAP, prepare_host, vhost_user_network};
use offramp_testbed::guest::mac_text;
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::program::{self, Program};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stats::median;
use offramp_testbed::stop;
use offramp_testbed::traffic::{Latency, Report};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Minimum throughput of the victim under attack, as a share of its throughput next to an idle guest.
const SHARE_MIN: f64 = 0.45;
/// Maximum ratio of the victim's 99th percentile of round-trip times under attack to the same percentile next to an
/// idle guest.
const P99_RATIO_MAX: f64 = 2.0;
/// Minimum number of samples during each attack for a judgement.
const ROUNDS_MIN: u32 = 5;
/// Time from the start of an attack to the first measurement, and duration of each initial attack before all
/// measurements.
const SETTLE: Duration = Duration::from_secs(1);
/// Maximum growth of the daemon's own memory from the first attacks to the last, in KiB. Allocators do not return all
/// freed memory to the kernel, so growth up to this value does not indicate a leak.
const GROWTH_MAX_KIB: u64 = 1024;
/// Minimum number of frames or chains that counts as an attack.
const ATTACK_MIN: u64 = 1000;
/// Rate limit of the hostile guest's port while the guest sends to the host and to the other guest. The host and the
/// other guest process each of these frames, and an emulated guest is saturated by about 100,000 frames per second.
const LIMIT_FRAMES_PER_SECOND: u32 = 10_000;
/// The switch's limit on flooded frames: lower than the default, in proportion to an emulated guest's speed.
const FLOOD_FRAMES_PER_SECOND: u32 = 1000;
/// Ports of the daemon.
const PORTS: [&str; 3] = ["victim", "hostile", "host"];

/// Measures a Linux guest's TCP while another guest of the same daemon attacks.
#[derive(clap::Args)]
pub struct Args {
    /// Samples of each state, taken in turn; fewer than 5 leave the figures unjudged
    #[arg(long, default_value_t = ROUNDS_MIN, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of a sample, in seconds: once for throughput, once for round trips
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    guest: GuestArgs,
}

/// A measurement of the victim's TCP.
#[derive(Clone, Copy, Debug)]
struct Sample {
    bps: f64,
    p50_us: f64,
    p99_us: f64,
    /// Rate of frames from the hostile guest to its port, including bad chains, per second.
    frames_per_second: f64,
}

/// An attack of the hostile guest (or none), with the samples measured during the attack.
struct State {
    attack: Attack,
    samples: Vec<Sample>,
}

impl State {
    fn median(&self, of: fn(&Sample) -> f64) -> f64 {
        median(&self.samples.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    }

    /// Returns the median, over the rounds, of the ratio of this attack's sample to the other attack's sample.
    fn ratio(&self, other: &Self, of: fn(&Sample) -> f64) -> f64 {
        let pairs = self.samples.iter().zip(&other.samples);
        median(&pairs.map(|(mine, theirs)| of(mine) / of(theirs)).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    }
}

/// Boots both guests, takes the samples, and prints a line for each attack. Returns whether all results are within the
/// bounds.
///
/// # Errors
/// Returns an error if a process does not start, an attack reaches a forbidden target, the daemon grows or ends, or a
/// signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let mut bed = Bed::start(args)?;
    let judged = bed.measure(args);
    bed.victim.power_off();
    bed.hostile.power_off();
    let last_words = bed.daemon.terminate();
    let is_good = judge(&judged.map_err(|why| why.map(|why| why + &last_words))?)?;
    if args.rounds < ROUNDS_MIN {
        println!("not judged; use at least --rounds {ROUNDS_MIN}");
        return Ok(true);
    }
    Ok(is_good)
}

/// Both guests, the daemon, and a traffic server in the namespace. The fields are dropped in order of declaration.
struct Bed {
    victim: Machine,
    hostile: Machine,
    daemon: Daemon,
    _server: Program,
    /// The TAP's Ethernet address, in hexadecimal digits.
    host_mac: String,
    _scratch: Scratch,
    _ns: NetNs,
}

impl Bed {
    fn start(args: &Args) -> Result<Self> {
        let executable = daemon::build()?;
        let scratch = Scratch::new()?;
        let programs = [executable.clone(), std::env::current_exe().doing("finding this program")?];
        let base = args.guest.base(Extras { programs: &programs, modules: &[], files: &[] }, &scratch)?;
        let ns = new_namespace()?;
        let daemon = Daemon::start(&executable, &file(&scratch), &scratch, &ns)?;
        let start = |name: &str, station: Station, arguments| {
            let (socket, mac) = (scratch.file(&format!("{name}.sock")), mac_text(station.mac));
            let network = vhost_user_network(&socket, 1, "");
            base.start_small(Small { network, mac: &mac, address: station.ip.into(), mtu: MTU, arguments }, &ns)
        };
        let mut victim = start("victim", VICTIM, "")?;
        let mut hostile = start("hostile", HOSTILE, device::KERNEL_ARGUMENT)?;
        victim.wait_until_ready()?;
        hostile.wait_until_ready()?;
        let [first, last] = processors();
        pin(victim.id(), first)?;
        pin(hostile.id(), last)?;
        daemon.prefer()?;
        prepare_host(&ns, MTU)?;
        let host_mac = inside(&ns, "the TAP's address", || link::mac(TAP))?;
        let mut command = Command::new(&executable);
        command.args(["ttcp", "--serve"]);
        let server = Program::start("ttcp", command, Some(&ns))?;
        let host_mac = host_mac.map(|byte| format!("{byte:02x}")).concat();
        Ok(Self { victim, hostile, daemon, _server: server, host_mac, _scratch: scratch, _ns: ns })
    }

    fn measure(&mut self, args: &Args) -> Result<Vec<State>> {
        let mut states: Vec<_> =
            Attack::value_variants().iter().map(|&attack| State { attack, samples: Vec::new() }).collect();
        // Run each attack once, so that the daemon makes its one-time allocations.
        for state in &states {
            self.beside(state.attack, |_| stop::sleep(SETTLE))?;
        }
        self.sample(0.2)?;
        let before = self.account()?;
        for round in 0..args.rounds as usize {
            let count = states.len();
            for turn in 0..count {
                // Each round starts with another attack, so that the advantage of the first turn cancels out.
                let state = &mut states[(round + turn) % count];
                let sample = self.beside(state.attack, |bed| bed.sample(args.seconds))?;
                state.samples.push(sample);
            }
        }
        self.account()?.judge(&before)?;
        let Counts { frames, spoofed, bad_chains, broken_rings } = Counts::read(&self.daemon.show()?, "hostile")?;
        println!(
            "hostile guest: {frames} frames, {spoofed} of them spoofed and refused; {bad_chains} bad chains; \
             {broken_rings} rings stopped, each set up again"
        );
        Ok(states)
    }

    /// Runs `work` during an attack of the hostile guest, and judges the result of the attack.
    fn beside<T>(&mut self, attack: Attack, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let name: &str = attack.into();
        let before = Counts::read(&self.daemon.show()?, "hostile")?;
        if attack == Attack::LimitedFlood {
            self.daemon.set("hostile", &["limit", &format!("tx_frames_per_second={LIMIT_FRAMES_PER_SECOND}")])?;
        }
        self.hostile.run(&format!("xtask guest-attack {name} {} >/tmp/report 2>&1 &", self.host_mac))?;
        stop::sleep(SETTLE)?;
        let done = work(self)?;
        self.daemon.set("hostile", &["limit", "off"])?;
        self.hostile.run("kill $! && wait $! || { cat /tmp/report; false; }")?;
        let counts = Counts::read(&self.daemon.show()?, "hostile")?.since(&before);
        counts.judge(attack)?;
        Ok(done)
    }

    fn sample(&mut self, seconds: f64) -> Result<Sample> {
        let before = self.frames()?;
        let test = format!("offramp ttcp --to {HOST} --seconds {seconds} --json");
        let bps = Report::printed(&self.victim.run(&test)?).map(|report| report.throughput_bps);
        let printed = self.victim.run(&format!("{test} --rr"))?;
        let latency = Report::printed(&printed).and_then(|report| report.transactions).map(|all| all.latency);
        let after = self.frames()?;
        match bps.zip(latency) {
            Some((bps, Latency { p50_us, p99_us, .. })) if bps > 0.0 && p50_us > 0.0 => {
                let frames_per_second = (after.1 - before.1) as f64 / ((after.0 - before.0) as f64 / 1e9);
                Ok(Sample { bps, p50_us, p99_us, frames_per_second })
            }
            _ => failed(format!("ttcp in the victim measured nothing:\n{}", printed.trim())),
        }
    }

    /// Returns the daemon's uptime in nanoseconds, and the number of frames from the hostile guest at its port.
    fn frames(&self) -> Result<(u64, u64)> {
        let shown = self.daemon.show()?;
        let uptime_ns = shown["uptime_ns"].as_u64().unwrap_or_default();
        Ok((uptime_ns, Counts::read(&shown, "hostile")?.total()))
    }

    fn account(&self) -> Result<Account> {
        Account::read(&self.daemon)
    }
}

/// Returns the victim's processor, and the common processor of the hostile guest and the switch's thread.
fn processors() -> [usize; 2] {
    let online = cpu::online();
    [online.first(), online.last()].map(|cpu| cpu.copied().unwrap_or_default())
}

/// Pins process `id` to processor `cpu`.
fn pin(id: u32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).doing("choosing a processor")?;
    for thread in std::fs::read_dir(format!("/proc/{id}/task")).doing("a guest's threads")?.flatten() {
        let thread = thread.file_name().to_string_lossy().parse().unwrap_or_default();
        sched_setaffinity(Pid::from_raw(thread), &set).doing("pinning a guest")?;
    }
    Ok(())
}

/// Returns the daemon's configuration file, without `[daemon]`. Each guest is bound to its addresses.
fn file(scratch: &Scratch) -> String {
    let guest = |name: &str, station: Station| {
        let [socket, mac] = [scratch.file(&format!("{name}.sock")), mac_text(station.mac)];
        let [a, b, c, d] = station.ip;
        let [_, cpu] = processors();
        // Linux derives this address from the card's Ethernet address.
        let local = format!("fe80::ff:fe00:{:x}", station.mac[5]);
        format!(
            "[[port]]\nname = \"{name}\"\nhost = {{ vhost_user = \"{socket}\", mac = \"{mac}\" }}\n\
             ip_addresses = [\"{a}.{b}.{c}.{d}\", \"{local}\"]\ncpus = [{cpu}]\nwire = {{ switch = \"lan\" }}\n\n"
        )
    };
    [
        guest("victim", VICTIM),
        guest("hostile", HOSTILE),
        format!("[[port]]\nname = \"host\"\nhost = {{ tap = \"{TAP}\" }}\nwire = {{ switch = \"lan\" }}\n\n"),
        format!("[[switch]]\nname = \"lan\"\nflood_frames_per_second = {FLOOD_FRAMES_PER_SECOND}\n"),
    ]
    .concat()
}

/// Returns a port in the output of `offramp show --json` (`docs/control.md`).
fn port<'a>(shown: &'a Value, name: &str) -> Result<&'a Value> {
    let found = shown["ports"].as_array().and_then(|ports| ports.iter().find(|port| port["name"] == name));
    found.map_or_else(|| failed(format!("offramp show has no port {name}: {shown}")), Ok)
}

/// The number of frames and errors from a guest at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    frames: u64,
    spoofed: u64,
    bad_chains: u64,
    broken_rings: u64,
}

impl Counts {
    fn read(shown: &Value, name: &str) -> Result<Self> {
        let port = port(shown, name)?;
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let queues = port["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        let sum = |count: fn(&Value) -> &Value| {
            queues.iter().map(|queue| count(&queue["transmit"]).as_u64()).sum::<Option<u64>>()
        };
        let Some(frames) = sum(|transmit| &transmit["frames_in"]).filter(|_| !queues.is_empty()) else {
            return failed(format!("offramp show has no counters of {name}: {shown}"));
        };
        let [bad_chains, broken_rings] =
            ["bad_chains", "broken_rings"].map(|name| number(&port["host"]["counters"][name]));
        Ok(Self {
            frames,
            spoofed: sum(|transmit| &transmit["lost"]["spoofed"]).unwrap_or_default(),
            bad_chains,
            broken_rings,
        })
    }

    fn since(self, before: &Self) -> Self {
        Self {
            frames: self.frames - before.frames,
            spoofed: self.spoofed - before.spoofed,
            bad_chains: self.bad_chains - before.bad_chains,
            broken_rings: self.broken_rings - before.broken_rings,
        }
    }

    fn total(&self) -> u64 {
        self.frames + self.bad_chains
    }

    /// Checks that the attack took place and reached no forbidden target.
    fn judge(&self, attack: Attack) -> Result<()> {
        let (expected, is_right) = match attack {
            Attack::Idle | Attack::Busy => ("next to nothing", self.total() < ATTACK_MIN),
            Attack::Flood | Attack::LimitedFlood => ("frames alone", self.frames > ATTACK_MIN && self.spoofed == 0),
            // No spoofed frame passed: every arriving frame was refused.
            Attack::Spoof => {
                ("spoofed frames alone, all refused", self.spoofed > ATTACK_MIN && self.frames == self.spoofed)
            }
            Attack::BadChains => ("bad chains", self.bad_chains > ATTACK_MIN),
        };
        let name: &str = attack.into();
        if is_right { Ok(()) } else { failed(format!("{name}: expected {expected} from the hostile guest: {self:?}")) }
    }
}

/// The daemon's memory and descriptors, and the status of its ports.
#[derive(Debug)]
struct Account {
    memory_kib: u64,
    descriptors: usize,
    /// Values of the daemon's status that an attack must not change. A change would be a sign of a reset or a
    /// disconnection.
    ports: Vec<Value>,
}

impl Account {
    fn read(daemon: &Daemon) -> Result<Self> {
        let memory_kib = program::own_memory_kib(daemon.id())?;
        let process = format!("/proc/{}", daemon.id());
        let descriptors = std::fs::read_dir(format!("{process}/fd")).doing("the daemon's descriptors")?.count();
        let shown = daemon.show()?;
        let mut ports = vec![shown["process"].clone()];
        for name in PORTS {
            let port = port(&shown, name)?;
            let counters = &port["host"]["counters"];
            ports.extend([port["queues"][0]["running"].clone(), counters["connections"].clone()]);
            ports.extend(["refused_connections", "bad_messages", "lost_memories"].map(|name| counters[name].clone()));
            if name != "hostile" {
                ports.extend(["bad_chains", "broken_rings"].map(|name| counters[name].clone()));
            }
        }
        Ok(Self { memory_kib, descriptors, ports })
    }

    fn judge(&self, before: &Self) -> Result<()> {
        println!(
            "daemon: own memory {} KiB before, {} KiB after; descriptors {}, {}",
            before.memory_kib, self.memory_kib, before.descriptors, self.descriptors
        );
        if self.ports != before.ports {
            return failed(format!("a port was reset: {:?}, then {:?}", before.ports, self.ports));
        }
        if self.descriptors > before.descriptors || self.memory_kib > before.memory_kib + GROWTH_MAX_KIB {
            return failed("the daemon's memory or descriptors have grown");
        }
        Ok(())
    }
}

/// Prints the table. Returns whether all results are within the bounds.
fn judge(states: &[State]) -> Result<bool> {
    let find = |attack| states.iter().find(|state| state.attack == attack);
    let (Some(idle), Some(busy)) = (find(Attack::Idle), find(Attack::Busy)) else { return failed("states lack") };
    println!(
        "{:14}{:>12}{:>8}{:>14}{:>10}{:>10}{:>12}{:>12}",
        "hostile guest", "its 1000/s", "Gbit/s", "share of idle", "p50 us", "p99 us", "p99 / idle", "p99 / busy"
    );
    let mut is_good = true;
    for state in states {
        let name: &str = state.attack.into();
        let share = state.ratio(idle, |sample| sample.bps);
        let [to_idle, to_busy] = [idle, busy].map(|other| state.ratio(other, |sample| sample.p99_us));
        println!(
            "{name:14}{:>12.1}{:>8.2}{share:>14.2}{:>10.0}{:>10.0}{to_idle:>12.2}{to_busy:>12.2}",
            state.median(|sample| sample.frames_per_second) / 1e3,
            state.median(|sample| sample.bps) / 1e9,
            state.median(|sample| sample.p50_us),
            state.median(|sample| sample.p99_us),
        );
        if !matches!(state.attack, Attack::Idle | Attack::Busy) && (share < SHARE_MIN || to_idle > P99_RATIO_MAX) {
            println!(
                "  out of bounds; expected at least {SHARE_MIN} of the throughput and at most {P99_RATIO_MAX} times \
                 the p99 beside an idle guest"
            );
            is_good = false;
        }
    }
    Ok(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(attack: Attack, bps: f64, p99_us: f64) -> State {
        let sample = Sample { bps, p50_us: 1.0, p99_us, frames_per_second: 0.0 };
        State { attack, samples: vec![sample] }
    }

    #[test]
    fn a_victim_that_loses_throughput_or_waits_too_long_is_found() {
        let judged = |bps, p99_us| {
            let rest = [state(Attack::Idle, 1.0, 2.0), state(Attack::Busy, 0.6, 1.0)];
            judge(&rest.into_iter().chain([state(Attack::Flood, bps, p99_us)]).collect::<Vec<_>>()).unwrap()
        };
        assert!(judged(0.5, 3.9));
        assert!(!judged(0.4, 3.9) && !judged(0.5, 4.1));
    }

    #[test]
    fn a_spoofed_frame_that_passed_is_found() {
        let shown = |frames, spoofed| {
            let queue = json!({"transmit": {"frames_in": frames, "lost": {"spoofed": spoofed}}});
            json!({"ports": [{"name": "hostile", "host": {"counters": {"bad_chains": 0}}, "queues": [queue]}]})
        };
        let judged = |frames, spoofed| Counts::read(&shown(frames, spoofed), "hostile").unwrap().judge(Attack::Spoof);
        assert!(judged(5000, 5000).is_ok());
        assert!(judged(5001, 5000).is_err() && judged(0, 0).is_err());
        assert!(Counts::read(&shown(1, 1), "victim").is_err());
    }
}
