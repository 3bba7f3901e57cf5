//! Runs the kernel's test programs for checksums and receive coalescing between a guest and the host.
//!
//! ```text
//!  guest (QEMU) ── vhost-user ── adapter ══ cable ══ adapter ── TAP, in a namespace
//!  csum, gro                                                    csum, gro
//! ```
//!
//! The programs are under GPL-2.0 and not in this repository. [`source`] fetches and builds the programs.

mod source;

use super::{Bench, behind_port, options, relay_command, start_relay};
use crate::tally::Tally;
use offramp_ports::sys::{NetNs, link};
use offramp_testbed::failure::{Doing, Failure, Result, failed, new_namespace};
use offramp_testbed::guest::busybox::{Extras, GUEST, HOST, TAP, prepare_host, vhost_user_network};
use offramp_testbed::guest::mac_text;
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::program::Program;
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use source::Programs;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// MTU in bytes for the large cases of `gro`, whose segments are IP packets of 4096 bytes.
const MTU: u16 = 4096;
const HOST_MTU: &str = "4096";
/// Time for which an adapter holds a frame for coalescing. The time exceeds an emulated sender's pause between two
/// frames of a case, but not the program's pause of 100 ms between two cases.
const HOLD_USECS: u32 = 40_000;
/// Time limit from the start of a receiver until its sockets exist.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit from the start of a program to its end. `csum` receives for [`RECEIVE_SECONDS`], and `gro` ends after
/// three seconds.
const END_TIMEOUT: Duration = Duration::from_mins(1);
/// Interval between two checks of a receiver's sockets.
const LOOK: Duration = Duration::from_millis(10);
/// Receive time of `csum`, in seconds. An emulated sender starts within about one second.
const RECEIVE_SECONDS: u32 = 3;
/// Number of packets sent by `csum`, as in the kernel's own script.
const PACKETS: u32 = 100;
/// The UDP port of `csum` in every test.
const CSUM_PORT: u16 = 34_000;
/// Maximum number of attempts for a case of `gro`, as in the kernel's own script. A case tests nothing if its sender is
/// interrupted for longer than the adapter's hold time.
const GRO_ATTEMPTS_MAX: u32 = 3;
/// The groups of cases in `gro`.
const GRO_TESTS: [&str; 6] = ["data", "ack", "flags", "tcp", "ip", "large"];
/// The addresses of host and guest (unique local, RFC 4193).
const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x18, 0, 0, 0, 0, 0, 1);
const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x18, 0, 0, 0, 0, 0, 2);
const PREFIX_V6_LEN: u8 = 64;

/// The kinds of packets of `csum`, with the arguments for each kind.
const CSUM_TESTS: [(&str, &str); 9] = [
    ("tcp", "-t"),
    ("tcp with a wrong checksum", "-t -E"),
    ("udp", ""),
    ("udp with a wrong checksum", "-E"),
    ("udp of a socket", "-U"),
    ("udp with a checksum of zero", "-U -Z"),
    ("tcp, checksum by the adapter", "-P -t"),
    ("udp, checksum by the adapter", "-P"),
    ("tcp in udp, checksum by the adapter", "-P -t -e"),
];

/// The sender of a test: the guest or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Guest,
    Host,
}

impl Sender {
    const BOTH: [Self; 2] = [Self::Guest, Self::Host];

    fn direction(self) -> &'static str {
        match self {
            Self::Guest => "guest to host",
            Self::Host => "host to guest",
        }
    }
}

/// The Internet protocol of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }
}

/// One run of a test program in the guest and on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    program: &'static str,
    family: Family,
    sender: Sender,
    /// The group of cases for `gro`, or the kind of packets for `csum`.
    what: &'static str,
    /// The program's arguments.
    arguments: &'static str,
}

impl Test {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for sender in Sender::BOTH {
            for family in Family::BOTH {
                let csum = |(what, arguments)| Self { program: "csum", family, sender, what, arguments };
                all.extend(CSUM_TESTS.map(csum));
                // Frames from the guest are coalesced for the TAP, which `.ci/kernel-gro` tests.
                if sender == Sender::Host {
                    all.extend(GRO_TESTS.map(|what| Self { program: "gro", family, sender, what, arguments: what }));
                }
            }
        }
        all
    }

    fn name(&self) -> String {
        format!("kernel's {}, {} {}, {}", self.program, self.family.name(), self.what, self.sender.direction())
    }

    fn attempts_max(&self) -> u32 {
        if self.program == "gro" { GRO_ATTEMPTS_MAX } else { 1 }
    }

    /// Returns the program's arguments for the receiver or the sender.
    fn arguments(&self, macs: &Macs, receives: bool, interface: &str) -> String {
        let (source, destination) = match self.sender {
            Sender::Guest => (&macs.guest, &macs.host),
            Sender::Host => (&macs.host, &macs.guest),
        };
        let arguments = self.arguments;
        if self.program == "gro" {
            let role = if receives { " --rx" } else { "" };
            let family = self.family.name();
            return format!(
                "--{family} --test {arguments} --iface {interface} --smac {source} --dmac {destination}{role}"
            );
        }
        let (number, host, guest) = match self.family {
            Family::V4 => (4, HOST.to_string(), GUEST.to_string()),
            Family::V6 => (6, HOST_V6.to_string(), GUEST_V6.to_string()),
        };
        let (from, to) = if self.sender == Sender::Guest { (guest, host) } else { (host, guest) };
        let role = if receives { format!("-R -L {RECEIVE_SECONDS}") } else { "-T".to_owned() };
        // `-r 1` gives the packets random contents. The program prints the seed, which differs in each run. `-Z`
        // excludes random contents, because it computes contents whose checksum is zero.
        let seed = if arguments.contains("-Z") { "" } else { " -r 1" };
        format!(
            "-i {interface} -n {PACKETS} -{number} -S {from} -D {to} -s {source} -d {destination} {role}{seed} {arguments}"
        )
    }
}

/// The Ethernet addresses of the guest and the host.
struct Macs {
    host: String,
    guest: String,
}

/// Runs all tests with one guest, and counts each result. If the programs cannot be built or the guest cannot be
/// started, counts this error as the only result.
///
/// # Errors
/// Returns an error if a signal arrives.
pub fn run(bench: &Bench, tally: &mut Tally) -> Result<()> {
    let tests: Vec<_> = Test::all().into_iter().filter(|test| bench.args.only.has(&test.name())).collect();
    if tests.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    match Ends::start(bench) {
        Ok(mut ends) => {
            for test in &tests {
                let began = Instant::now();
                tally.count(&test.name(), began, ends.judge(test))?;
            }
            ends.stop();
            Ok(())
        }
        Err(why) => tally.count("the kernel's test programs", began, Err(why)),
    }
}

/// A guest, a namespace, and the adapters between them. The fields are dropped in order of declaration.
struct Ends {
    machine: Machine,
    relay: Program,
    ns: NetNs,
    programs: Programs,
    macs: Macs,
    _scratch: Scratch,
}

impl Ends {
    fn start(bench: &Bench) -> Result<Self> {
        let scratch = Scratch::new()?;
        let programs = source::build(&scratch)?;
        let programs_in_guest = programs.paths();
        let extras = Extras { programs: &programs_in_guest, modules: &[], files: &[] };
        let base = bench.args.guest.base(extras, &scratch)?;
        let ns = new_namespace()?;
        let socket = scratch.file("guest.sock");
        let relay = relay(&socket, &ns)?;
        let options = options::short(&[("mq", "off"), ("host_mtu", HOST_MTU)]);
        let network = vhost_user_network(&socket, 1, "");
        let mut machine = Machine::boot(&behind_port(&base, &options, network, "")?, &ns)?;
        set_up_guest(&mut machine)?;
        let host = set_up_host(&ns)?;
        let guest = machine.run("cat /sys/class/net/eth0/address")?.trim().to_owned();
        Ok(Self { machine, relay, ns, programs, macs: Macs { host, guest }, _scratch: scratch })
    }

    fn stop(self) {
        self.machine.power_off();
        drop(self.relay);
    }

    fn judge(&mut self, test: &Test) -> Result<()> {
        let mut judged = self.attempt(test);
        for _ in 1..test.attempts_max() {
            if matches!(judged, Ok(()) | Err(Failure::Stopped)) {
                break;
            }
            judged = self.attempt(test);
        }
        judged
    }

    fn attempt(&mut self, test: &Test) -> Result<()> {
        match test.sender {
            Sender::Guest => self.guest_sends(test),
            Sender::Host => self.host_sends(test),
        }
    }

    fn guest_sends(&mut self, test: &Test) -> Result<()> {
        let mut receiver = self.start_on_host(test, true)?;
        wait_for_sockets(test, &mut receiver)?;
        let sent = self.machine.run(&format!("{} {}", test.program, test.arguments(&self.macs, false, "eth0")));
        let judged = end_well(receiver);
        // A receiver that ends successfully has received every expected packet.
        judged.and(sent.map(drop))
    }

    fn host_sends(&mut self, test: &Test) -> Result<()> {
        let arguments = test.arguments(&self.macs, true, "eth0");
        // The later commands run in the same shell, so $! is still the id of this program.
        self.machine.run(&format!("{} {arguments} >/tmp/log 2>&1 &", test.program))?;
        self.machine.run(&format!("while kill -0 $! && ! {}; do usleep 10000; done", sockets_there(test)))?;
        let sent = self.start_on_host(test, false).and_then(end_well);
        let received = self.machine.run("wait $! || { tail -n 12 /tmp/log; false; }");
        received.map(drop).and(sent)
    }

    fn start_on_host(&self, test: &Test, receives: bool) -> Result<Program> {
        let mut command = Command::new(self.programs.path(test.program));
        command.args(test.arguments(&self.macs, receives, TAP).split_whitespace());
        Program::start(test.program, command, Some(&self.ns))
    }
}

/// Waits until a program has ended, and returns its verdict.
fn end_well(mut program: Program) -> Result<()> {
    let status = program.wait_end(END_TIMEOUT)?;
    if status.success() {
        return Ok(());
    }
    // The last output of the program may not have arrived yet.
    stop::sleep(LOOK)?;
    failed(format!("on the host: {status}{}", program.tail()))
}

/// Waits until a receiver on the host is ready.
fn wait_for_sockets(test: &Test, receiver: &mut Program) -> Result<()> {
    let net = format!("/proc/{}/net", receiver.id());
    let is_ready = |receiver: &mut Program| Ok(has_sockets(test, Path::new(&net)) || receiver.has_ended()?);
    stop::until(READY_TIMEOUT, LOOK, || Ok(is_ready(receiver)?.then_some(())))?;
    if has_sockets(test, Path::new(&net)) {
        return Ok(());
    }
    failed(format!("the receiver opened no sockets within {READY_TIMEOUT:?}{}", receiver.tail()))
}

/// Returns whether a receiver is ready, according to the socket tables of the receiver's namespace. As its last step,
/// `csum` opens its UDP socket, and `gro` binds its only socket.
fn has_sockets(test: &Test, net: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(net.join(file)).unwrap_or_default();
    if test.program == "csum" {
        let port = format!(":{CSUM_PORT:04X} ");
        return ["udp", "udp6"].iter().any(|file| read(file).contains(&port));
    }
    // The columns are sk, RefCnt, Type, Proto, Iface, …. The interface is 0 before the socket is bound.
    let is_bound = |line: &str| line.split_whitespace().nth(4).is_some_and(|index| index != "0");
    read("packet").lines().skip(1).any(is_bound)
}

/// Returns the check of [`has_sockets`] as a command for the guest's shell.
fn sockets_there(test: &Test) -> String {
    if test.program == "csum" {
        format!("grep -q ':{CSUM_PORT:04X} ' /proc/net/udp /proc/net/udp6")
    } else {
        "awk 'NR > 1 && $5 != 0 { found = 1 } END { exit !found }' /proc/net/packet".to_owned()
    }
}

fn relay(socket: &str, ns: &NetNs) -> Result<Program> {
    let mut command = relay_command(socket, MTU)?;
    // The adapter reports a verified checksum to a TAP as a partial checksum, and `csum` skips frames with a partial
    // checksum.
    command.args(["--hold-usecs", &HOLD_USECS.to_string(), "--tap-without-rx-checksum"]);
    start_relay(command, socket, ns)
}

/// Turns off coalescing in the guest's kernel, so that only the adapter coalesces. Turns off duplicate address
/// detection, so that addresses are valid at once.
fn set_up_guest(machine: &mut Machine) -> Result<()> {
    machine.run("ethtool -K eth0 gro off")?;
    machine.run("echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad")?;
    machine.run(&format!("ip -6 address add {GUEST_V6}/{PREFIX_V6_LEN} dev eth0")).map(drop)
}

/// Sets the addresses of the host's TAP, and returns the Ethernet address of the TAP.
fn set_up_host(ns: &NetNs) -> Result<String> {
    prepare_host(ns, MTU)?;
    let prepared = ns.run(|| {
        fs::write(format!("/proc/sys/net/ipv6/conf/{TAP}/accept_dad"), "0").doing("accept_dad")?;
        link::add_address(TAP, IpAddr::V6(HOST_V6), PREFIX_V6_LEN).doing("the address")?;
        link::mac(TAP).doing("the Ethernet address")
    });
    Ok(mac_text(prepared.doing("entering a namespace")??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn macs() -> Macs {
        Macs { host: "h".to_owned(), guest: "g".to_owned() }
    }

    #[test]
    fn every_test_has_a_name_of_its_own() {
        let mut names: Vec<_> = Test::all().iter().map(Test::name).collect();
        let len = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), len), (2 * 2 * CSUM_TESTS.len() + 2 * GRO_TESTS.len(), len));
    }

    #[test]
    fn both_ends_name_the_same_sender() {
        let test = Test { program: "csum", family: Family::V6, sender: Sender::Host, what: "udp", arguments: "-U" };
        let (sends, receives) = (test.arguments(&macs(), false, "t"), test.arguments(&macs(), true, "eth0"));
        for arguments in [&sends, &receives] {
            assert!(arguments.contains("-6 -S fd00:18::1 -D fd00:18::2 -s h -d g"), "{arguments}");
        }
        assert!(sends.contains(" -T ") && receives.contains(" -R "));
    }

    #[test]
    fn what_sums_to_zero_is_not_chosen_at_random() {
        for (_, arguments) in CSUM_TESTS {
            let test = Test { program: "csum", family: Family::V4, sender: Sender::Guest, what: "", arguments };
            assert_eq!(test.arguments(&macs(), true, "t").contains("-r 1"), !arguments.contains("-Z"));
        }
    }
}
