//! Tests the settings that a guest makes through its control queue, command by command, with QEMU's generic vhost-user
//! device.
//!
//! ```text
//!  guest (QEMU) ── vhost-user ── offramp up ── packet socket ── veth ── the host's TCP/IP
//! ```
//!
//! Each [`Step`] is a command in the guest or on the host, with its expected effects on `offramp show --json` and on
//! traffic. User Mode Linux also forwards its guest's control queue. A guest in User Mode Linux runs a shorter list of
//! steps.

mod steps;
mod traffic;
mod xdp;

use super::backports::Backports;
use super::{GuestArgs, socket};
use crate::tally::Tally;
use crate::tcp;
use nix::sys::signal::Signal;
use offramp_ports::sys::{NetNs, link};
use offramp_testbed::daemon::{self, Daemon};
use offramp_testbed::failure::{Doing, Failure, Result, failed, inside, new_namespace};
use offramp_testbed::guest::busybox::{Base, Extras, GUEST as GUEST_IP, HOST, MTU, PREFIX_LEN};
use offramp_testbed::guest::mac_text;
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::guest::vmm::MachineConfig;
use offramp_testbed::packages::{self, IP};
use offramp_testbed::program;
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};
use steps::{BROADCAST, By, Destination, Expected, GUEST, GUEST_MAC, STEPS, Step, USER_MODE_STEPS};

/// Number of queue pairs of a guest in QEMU, and of a guest in User Mode Linux.
const QUEUE_PAIRS: u16 = 2;
const USER_MODE_QUEUE_PAIRS: u16 = 1;
/// The guest's Ethernet address, as text.
const MAC: &str = "02:00:00:00:00:10";
/// Another Ethernet address permitted to the guest.
const OTHER_MAC: &str = "02:00:00:00:00:55";
/// The veth pair: the host's end, and the end used as the port's wire.
const VETHS: [&str; 2] = ["xtask0", "xtask1"];
/// Source address of datagrams. The guest has no route to this address, so the guest does not answer.
const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// Number of datagrams in a test of delivery, and maximum number of other frames that the guest receives meanwhile.
const DATAGRAMS: u16 = 64;
const OTHERS_MAX: u64 = 16;
/// Length of a frame sent to a given destination, in bytes.
const FRAME_LEN: usize = 128;
/// Number of datagrams for counting the guest's interrupts, and interval between two datagrams.
const PACED_DATAGRAMS: u16 = 256;
const PACE: Duration = Duration::from_millis(2);
/// Time limit for frames or settings to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit until the driver changes its coalescing settings under load. The driver compares samples of 64
/// interrupts, and does not change its settings while the samples are similar. Under continuous bursts, the driver
/// polls and gets hardly any interrupts.
const ADAPTS_WITHIN: Duration = Duration::from_mins(1);
/// Interval between two reads of a setting or a counter.
const LOOK: Duration = Duration::from_millis(50);
/// Number of datagrams sent at once, between two reads of the driver's coalescing settings.
const BURST: u16 = 2000;
/// Kernel modules needed by the guest's commands.
const MODULES: [&str; 2] = ["8021q", "macvlan"];
/// Duration for which the daemon is stopped, longer than the maximum time for which its threads wait for each other.
const STOPPED: Duration = Duration::from_secs(6);

/// Check the effect of each control-queue command of a guest in QEMU's generic vhost-user device.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// Run only guests with rings of this kind
    #[arg(long, value_name = "split|packed")]
    rings: Option<String>,
}

/// Runs the steps in a guest with each kind of rings, and prints a transcript. Returns `false` if a step failed. Runs
/// no step if the QEMU of Debian 13's backports is not available.
///
/// # Errors
/// Returns an error if a process does not start, or a signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let backports = match Backports::get(args.guest.cache.as_deref()) {
        Ok(backports) => backports,
        Err(Failure::Stopped) => return Err(Failure::Stopped),
        Err(why) => {
            println!("SKIPPED: THE CONTROL QUEUE WAS NOT TESTED: QEMU 10.2 or later is not available: {why}");
            return Ok(true);
        }
    };
    println!("{}, Linux {}", backports.qemu_version()?, backports.kernel.version);
    let scratch = Scratch::new()?;
    let extras = Extras { programs: &[packages::need(IP)?], modules: &MODULES, files: &[("pass.o", &xdp::object())] };
    let qemu = (backports.qemu, args.guest.accel.clone());
    let base = Base::new(Some(qemu), backports.kernel, extras, &scratch)?;
    let mut tally = Tally::default();
    for rings in ["split", "packed"].into_iter().filter(|rings| args.rings.as_ref().is_none_or(|only| only == rings)) {
        println!("\n## {rings} rings");
        let socket = socket(&scratch);
        let config = base.with_card(generic_card(&socket))?;
        let mut bench = Bench::start(&config, &socket, QUEUE_PAIRS, rings == "packed", &scratch)?;
        if rings == "packed" {
            bench.negotiated(&["RING_PACKED"])?;
        }
        for step in STEPS {
            let began = Instant::now();
            let judged = bench.judge(step);
            tally.count(&format!("{rings}: {}", step.line), began, judged)?;
        }
        bench.stop();
    }
    Ok(tally.end("control-queue-matrix"))
}

/// Runs the steps for a guest in User Mode Linux.
///
/// # Errors
/// Returns an error if a process does not start, or a command does not have its expected effect.
pub(super) fn run_in_user_mode(_: &super::Bench) -> Result<()> {
    let scratch = Scratch::new()?;
    let extras = Extras { programs: &[packages::need(IP)?], modules: &MODULES, files: &[] };
    let base = Base::user_mode(extras, &scratch)?;
    let socket = socket(&scratch);
    let config = base.in_user_mode(&socket, &scratch);
    let mut bench = Bench::start(&config, &socket, USER_MODE_QUEUE_PAIRS, false, &scratch)?;
    for step in USER_MODE_STEPS {
        bench.judge(step).map_err(|why| why.during(format!("after \"{}\"", step.line)))?;
    }
    bench.stop();
    Ok(())
}

/// Returns QEMU's arguments for its generic device, connected to the port at `socket`.
fn generic_card(socket: &str) -> Vec<String> {
    let device = "vhost-user-test-device-pci,chardev=vhost0,virtio-id=1,vq_size=256,config_size=28";
    let (socket, queues) = (format!("socket,id=vhost0,path={socket}"), 2 * QUEUE_PAIRS + 1);
    vec!["-chardev".to_owned(), socket, "-device".to_owned(), format!("{device},num_vqs={queues}")]
}

/// A guest whose card is a port of a running daemon. The fields are dropped in order of declaration.
struct Bench {
    machine: Machine,
    daemon: Daemon,
    ns: NetNs,
    queue_pairs: u16,
    /// Number of interrupts for the paced datagrams of the last step that expected frequent interrupts.
    interrupts_before: u64,
}

impl Bench {
    /// Boots a guest whose card is the port at `socket`.
    fn start(
        config: &MachineConfig,
        socket: &str,
        queue_pairs: u16,
        is_packed: bool,
        scratch: &Scratch,
    ) -> Result<Self> {
        let ns = new_namespace()?;
        prepare_host(&ns)?;
        let port = format!(
            "[[port]]\nname = \"vm0\"\nhost = {{ vhost_user = \"{socket}\", queue_pairs = {queue_pairs}, mac = \"{MAC}\", \
             control_queue = \"backend\", packed = {is_packed} }}\nwire = {{ packet = \"{}\" }}\n\
             mac_addresses = [\"{MAC}\", \"{OTHER_MAC}\"]\n",
            VETHS[1]
        );
        println!("{port}");
        let daemon = Daemon::start(&daemon::build()?, &port, scratch, &ns)?;
        let mut machine = Machine::boot(config, &ns)?;
        // Without the alias, the shell would use busybox's own `ip`, which lacks macvlan and maddress.
        machine.run("alias ip=/bin/ip")?;
        Ok(Self { machine, daemon, ns, queue_pairs, interrupts_before: 0 })
    }

    fn stop(self) {
        self.machine.power_off();
        self.daemon.terminate();
    }

    /// Runs a command, and judges its effects.
    fn judge(&mut self, step: &Step) -> Result<()> {
        let prompt = match step.by {
            By::Guest => "guest#",
            By::GuestOfStopped => "host# pkill -STOP offramp\nguest#",
            By::Host => "host#",
            By::Operator => "host# offramp set vm0",
        };
        println!("\n{prompt} {}", step.line);
        let printed = match step.by {
            By::Guest => self.machine.run(step.line)?,
            By::GuestOfStopped => self.run_at_stopped_daemon(step.line)?,
            By::Host => {
                let mut command = Command::new("sh");
                command.args(["-c", step.line]);
                program::output(command, Some(&self.ns))?
            }
            By::Operator => {
                self.daemon.set("vm0", &step.line.split(' ').collect::<Vec<_>>())?;
                String::new()
            }
        };
        for expected in step.expected {
            self.expect(expected, &printed)?;
        }
        Ok(())
    }

    /// Runs a command in the guest. The command starts while the daemon is stopped, and must end after the daemon
    /// continues.
    fn run_at_stopped_daemon(&mut self, line: &str) -> Result<String> {
        self.daemon.signal(Signal::SIGSTOP)?;
        let begun = self.machine.begin(line)?;
        let slept = stop::sleep(STOPPED);
        let is_under_way = self.machine.is_under_way(&begun);
        self.daemon.signal(Signal::SIGCONT)?;
        slept?;
        println!("host# sleep {}; pkill -CONT offramp", STOPPED.as_secs());
        let continued = Instant::now();
        let printed = self.machine.finish(&begun)?;
        if !is_under_way {
            return failed("the command ended while the daemon was stopped");
        }
        println!("  guest: the command ended {} ms later", continued.elapsed().as_millis());
        Ok(printed)
    }

    fn expect(&mut self, expected: &Expected, printed: &str) -> Result<()> {
        match *expected {
            Expected::Negotiated(features) => self.negotiated(features),
            Expected::Shown(pointer, json) => self.shown(pointer, json),
            Expected::Prints(pattern) => prints(printed, pattern),
            Expected::Pairs(pairs) => self.arrives_on(pairs),
            Expected::OnePair => self.arrives_on_one(),
            Expected::MostOnSecond => self.arrives_on_second(),
            Expected::Arrives(address, arrives) => self.arrives(address, arrives),
            Expected::SuperFrames(are_expected) => self.super_frames(are_expected),
            Expected::OftenInterrupted => self.often_interrupted(),
            Expected::FramesPerInterrupt(frames) => self.frames_per_interrupt(frames),
            Expected::Adapts => self.adapts(),
            Expected::Carrier(is_up) => self.carrier(is_up),
            Expected::StatisticsAgree => self.statistics_agree(),
            Expected::LimitLoses => self.limit_loses(),
        }
    }

    /// Returns the port's status, as reported by the daemon.
    fn port(&self) -> Result<Value> {
        let mut shown = self.daemon.show()?;
        Ok(shown["ports"][0].take())
    }

    fn negotiated(&self, features: &[&str]) -> Result<()> {
        let port = self.port()?;
        let negotiated = &port["host"]["virtio_features"];
        println!("  virtio_features: {negotiated}");
        let has = |feature: &&&str| negotiated.as_array().is_some_and(|all| all.iter().any(|one| one == **feature));
        let missing: Vec<_> = features.iter().filter(|feature| !has(feature)).collect();
        if missing.is_empty() { Ok(()) } else { failed(format!("not negotiated: {missing:?}")) }
    }

    /// Waits until the daemon's status of the control queue has the expected value at `pointer`.
    fn shown(&self, pointer: &str, json: &str) -> Result<()> {
        let expected: Value = serde_json::from_str(json).doing(json)?;
        let shown = || {
            let port = self.port()?;
            Ok(port["host"]["control_queue"].pointer(pointer).cloned().unwrap_or_default())
        };
        let found = settled(PATIENCE, shown, |found| *found == expected)?;
        if found != expected {
            return failed(format!("control_queue{pointer} is {found}, not {expected}"));
        }
        println!("  show: control_queue{pointer} = {found}");
        Ok(())
    }

    /// Sends datagrams until the driver has changed its coalescing settings.
    fn adapts(&self) -> Result<()> {
        let coalescing = || Ok(self.port()?["host"]["control_queue"]["coalescing"].take());
        let before = coalescing()?;
        let loaded = || {
            self.send(DATAGRAMS, BURST, Duration::ZERO)?;
            self.send(DATAGRAMS, PACED_DATAGRAMS, PACE)?;
            coalescing()
        };
        let now = settled(ADAPTS_WITHIN, loaded, |now| *now != before)?;
        if now == before {
            return failed(format!("the driver keeps its coalescing at {before} under load"));
        }
        println!("  show: control_queue/coalescing = {now}, was {before}");
        Ok(())
    }

    /// Sends datagrams of many flows. Returns the number of frames received on each pair.
    fn arrive_on(&mut self) -> Result<Vec<u64>> {
        let (before, by_queue) = (self.received()?, self.by_queue("packets")?);
        self.send(DATAGRAMS, DATAGRAMS, Duration::ZERO)?;
        let received = self.receives(before, u64::from(DATAGRAMS))?;
        let now = self.by_queue("packets")?;
        let more: Vec<u64> = now.iter().zip(by_queue).map(|(now, before)| now - before).collect();
        println!("  traffic: {DATAGRAMS} flows, a frame each: {received} arrived; on each pair: {more:?}");
        if received < u64::from(DATAGRAMS) {
            return failed(format!("{received} of {DATAGRAMS} frames arrived; on each pair: {more:?}"));
        }
        Ok(more)
    }

    /// Expects flows on all of the given pairs, and on no other pair.
    fn arrives_on(&mut self, pairs: &[u16]) -> Result<()> {
        let more = self.arrive_on()?;
        let is_right =
            |(pair, &count): (u16, &u64)| if pairs.contains(&pair) { count > OTHERS_MAX } else { count == 0 };
        if (0..).zip(&more).all(is_right) {
            return Ok(());
        }
        failed(format!("expected flows on the pairs {pairs:?}; on each pair: {more:?}"))
    }

    /// Expects all flows on a single pair.
    fn arrives_on_one(&mut self) -> Result<()> {
        let more = self.arrive_on()?;
        if more.iter().filter(|count| **count > 0).count() == 1 {
            return Ok(());
        }
        failed(format!("expected all flows on one pair; on each pair: {more:?}"))
    }

    /// Expects more flows on the second pair than on the first.
    fn arrives_on_second(&mut self) -> Result<()> {
        let more = self.arrive_on()?;
        if more.first() < more.get(1) {
            return Ok(());
        }
        failed(format!("expected more flows on the second pair; on each pair: {more:?}"))
    }

    /// Expects that frames with this destination arrive at the guest, or do not arrive. The broadcasts sent after these
    /// frames arrive in any case.
    fn arrives(&mut self, destination: Destination, is_expected: bool) -> Result<()> {
        let before = self.received()?;
        let lost_before = self.lost("guest_filter")?;
        self.send_to(&[destination, BROADCAST])?;
        let expected = u64::from(DATAGRAMS) * if is_expected { 2 } else { 1 };
        let received = self.receives(before, expected)?;
        let lost = self.lost("guest_filter")? - lost_before;
        let arrived = received.saturating_sub(u64::from(DATAGRAMS));
        let (mac, vid) = destination;
        let tag = vid.map_or_else(|| "no VLAN".to_owned(), |vid| format!("VLAN {vid}"));
        let what = format!("{}, {tag}", mac_text(mac));
        println!("  traffic: {DATAGRAMS} frames to {what}: {arrived} arrived; show: {lost} lost by the guest's filter");
        let is_right = (expected..expected + OTHERS_MAX).contains(&received);
        if is_right && (is_expected || lost >= u64::from(DATAGRAMS)) {
            return Ok(());
        }
        failed(format!(
            "frames to {what}: expected to arrive: {is_expected}; {arrived} arrived, {lost} lost by the filter"
        ))
    }

    /// Expects that the host's TCP segments arrive at the guest in super-frames, or one by one.
    fn super_frames(&mut self, are_expected: bool) -> Result<()> {
        let before = self.counts(["frames_out", "host_frames"])?;
        tcp::host_to_guest(&mut self.machine, &self.ns, HOST.into())?;
        let now = self.counts(["frames_out", "host_frames"])?;
        let (segments, frames) = (now.0 - before.0, now.1 - before.1);
        println!("  traffic: TCP from the host, right by its SHA-256: {segments} segments in {frames} frames");
        let are_there = segments >= 2 * frames;
        if are_there == are_expected && (are_there || segments == frames) {
            return Ok(());
        }
        failed(format!("super-frames expected: {are_expected}; {segments} segments came in {frames} frames"))
    }

    /// Sends datagrams with pauses. Returns the number of frames and the number of interrupts that the guest got
    /// meanwhile.
    fn interrupts(&mut self) -> Result<(u64, u64)> {
        let before = self.counts(["host_frames", "interrupts"])?;
        let received = self.received()?;
        self.send(1, PACED_DATAGRAMS, PACE)?;
        self.receives(received, u64::from(PACED_DATAGRAMS))?;
        let now = self.counts(["host_frames", "interrupts"])?;
        let (frames, interrupts) = (now.0 - before.0, now.1 - before.1);
        println!("  traffic: {frames} frames, {PACE:?} between two, with {interrupts} interrupts");
        if frames < u64::from(PACED_DATAGRAMS) {
            return failed(format!("{frames} of {PACED_DATAGRAMS} frames arrived"));
        }
        Ok((frames, interrupts))
    }

    fn often_interrupted(&mut self) -> Result<()> {
        let (frames, interrupts) = self.interrupts()?;
        self.interrupts_before = interrupts;
        if 4 * interrupts >= frames { Ok(()) } else { failed(format!("{interrupts} interrupts for {frames} frames")) }
    }

    /// Expects one interrupt per `count` frames. The last interrupt of each queue may signal fewer frames.
    fn frames_per_interrupt(&mut self, count: u64) -> Result<()> {
        let (frames, interrupts) = self.interrupts()?;
        let max = frames / count + u64::from(self.queue_pairs);
        if (1..=max).contains(&interrupts) && 4 * interrupts <= self.interrupts_before {
            return Ok(());
        }
        let before = self.interrupts_before;
        failed(format!("{interrupts} interrupts for {frames} frames, not 1 to {max}, or a quarter of {before}"))
    }

    /// Expects that the guest's driver sees the link up or down.
    fn carrier(&mut self, is_up: bool) -> Result<()> {
        let expected = if is_up { "1" } else { "0" };
        let read = || self.machine.run("cat /sys/class/net/eth0/carrier");
        let carrier = settled(PATIENCE, read, |carrier| carrier.trim() == expected)?;
        if carrier.trim() != expected {
            return failed(format!("the guest's carrier is {}, not {expected}", carrier.trim()));
        }
        println!("  guest: carrier {expected}");
        Ok(())
    }

    /// Expects that the port's statistics, as read by the guest, equal the driver's own counts.
    fn statistics_agree(&mut self) -> Result<()> {
        let of_driver = self.received()?;
        let of_port = self.by_queue("packets")?;
        println!("  guest: {of_driver} frames received; rx0_hw_packets and rx1_hw_packets: {of_port:?}");
        if of_driver.abs_diff(of_port.iter().sum()) <= OTHERS_MAX {
            return Ok(());
        }
        failed(format!("the driver has received {of_driver} frames, the port says {of_port:?}"))
    }

    /// Expects that the guest reads the number of bytes lost to the rate limit. `ethtool -S` does not show the number
    /// of lost frames; netlink's queue statistics show it as `rx-hw-drop-ratelimits`.
    fn limit_loses(&mut self) -> Result<()> {
        let before = (self.lost("rate_limit")?, self.by_queue("ratelimit_bytes")?);
        self.send_to(&[GUEST])?;
        settled(PATIENCE, || self.lost("rate_limit"), |lost| lost - before.0 >= u64::from(DATAGRAMS) / 2)?;
        let of_queues = self.by_queue("ratelimit_bytes")?;
        let bytes = of_queues.iter().sum::<u64>() - before.1.iter().sum::<u64>();
        // Read the daemon's counter after the guest's counter, so that the daemon's counter includes all frames in the
        // guest's counter.
        let lost = self.lost("rate_limit")? - before.0;
        println!("  traffic: {DATAGRAMS} frames of {FRAME_LEN} bytes; show: {lost} lost by the limit");
        println!("  guest: rx0_hw_ratelimit_bytes and rx1_hw_ratelimit_bytes: {of_queues:?}");
        // Some lost frames may be shorter frames from other senders (ARP), or were lost after the guest's counter was
        // read.
        let range = lost.saturating_sub(OTHERS_MAX) * FRAME_LEN as u64..=lost * FRAME_LEN as u64;
        if lost >= u64::from(DATAGRAMS) / 2 && range.contains(&bytes) {
            return Ok(());
        }
        failed(format!("the limit has lost {lost} frames of {FRAME_LEN} bytes, the guest reads {bytes} bytes"))
    }
}

/// Creates the veth pair, and sets addresses on the host's interface of the pair.
fn prepare_host(ns: &NetNs) -> Result<()> {
    inside(ns, "making the wire", || {
        link::create_veth(VETHS[0], VETHS[1])?;
        for veth in VETHS {
            link::disable_ipv6(veth)?;
            link::set_mtu(veth, u32::from(MTU))?;
            link::set_up(veth)?;
        }
        link::add_address(VETHS[0], IpAddr::V4(HOST), PREFIX_LEN)?;
        link::add_address(VETHS[0], IpAddr::V4(STRANGER), PREFIX_LEN)?;
        link::add_neighbour(VETHS[0], IpAddr::V4(GUEST_IP), GUEST_MAC)
    })
}

/// Reads a value repeatedly until `is_right` accepts the value, or the time limit is reached. Returns the last value.
fn settled<T>(timeout: Duration, mut read: impl FnMut() -> Result<T>, is_right: impl Fn(&T) -> bool) -> Result<T> {
    let found = stop::until(timeout, LOOK, || Ok(Some(read()?).filter(&is_right)))?;
    found.map_or_else(read, Ok)
}

/// Expects a line with these words, separated by any spaces, in the output of a command.
fn prints(printed: &str, words: &str) -> Result<()> {
    let found = printed.lines().find(|line| line.split_whitespace().eq(words.split_whitespace()));
    let Some(found) = found else { return failed(format!("no line \"{words}\" in\n{}", printed.trim())) };
    println!("  guest: {}", found.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_line_is_found_by_its_words() {
        assert!(prints("a\n\tSpeed:  1000Mb/s\n", "Speed: 1000Mb/s").is_ok());
        assert!(prints("Speed: 10000Mb/s\n", "Speed: 1000Mb/s").is_err());
    }
}
