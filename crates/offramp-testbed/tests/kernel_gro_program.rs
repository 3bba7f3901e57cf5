//! The kernel's own test program for receive coalescing (`tools/testing/selftests/net/gro.c`) against two adapters. The
//! program sends frames from one namespace. In the other namespace, the program checks which frames were coalesced.
//!
//! ```text
//!  namespace a                 this process                   namespace b
//!  gro (sends) ── TAP ── adapter ══ cable ══ adapter ── TAP ── gro --rx (exit code)
//! ```
//!
//! The receiving TAP lacks `IFF_NAPI`, so the kernel does not coalesce frames from this TAP. If a frame is coalesced,
//! the adapter coalesced it. The program is not part of this repository. `.ci/kernel-gro` fetches and builds the
//! program, names its path in `OFFRAMP_GRO_SELFTEST`, and runs these tests. By default, the tests are ignored.

use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;
use offramp_ports::sys::{NetNs, confine, link};
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::worker::Worker;
use std::ffi::OsString;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Environment variable with the program's path.
const PROGRAM_VARIABLE: &str = "OFFRAMP_GRO_SELFTEST";
/// MTU needed by the program's large cases: IP packets of 4096 bytes.
const MTU: usize = 4096;
/// Maximum time for which the adapter holds a frame to coalesce, in nanoseconds. The time exceeds a sender's delay
/// between two frames on a busy machine, but not the program's pause of 100 ms between two cases.
const HOLD_NS: u64 = 20_000_000;
const INTERFACE: &str = "ofr0";
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0x18, 1], [2, 0, 0, 0, 0x18, 2]];
/// Groups of cases in the program.
const TESTS: [&str; 6] = ["data", "ack", "flags", "tcp", "ip", "large"];
const FAMILIES: [&str; 2] = ["--ipv4", "--ipv6"];
/// Maximum number of attempts per group, as in the kernel's own script. If the sender is interrupted for longer than
/// the adapter holds frames, the attempt tests nothing.
const ATTEMPTS_MAX: usize = 3;
/// Maximum time until the receiver's packet socket is bound, far longer than the usual time.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Two hosts and the adapters between them. The fields are in drop order: first the worker, which uses the TAPs.
struct Bench {
    _worker: Worker,
    _taps: [Tap; 2],
    hosts: [NetNs; 2],
}

impl Bench {
    fn new(offloads: Offloads) -> Self {
        let hosts = [0, 1].map(|_| NetNs::new().unwrap_or_else(|e| panic!("{e}; run as root")));
        let taps = [0, 1].map(|side: usize| {
            let config = TapConfig { mtu: MTU as u32, mac: Some(MACS[side]), ..TapConfig::new(INTERFACE) };
            let tap = Tap::open_in(&hosts[side], &config).unwrap();
            tap.offer(offloads).unwrap();
            // IPv6 on a new interface would send its own packets, which the program does not expect.
            hosts[side].run(|| link::disable_ipv6(INTERFACE).and_then(|()| link::set_up(INTERFACE))).unwrap().unwrap();
            tap
        });
        let coalesce = CoalesceConfig { hold_ns: HOLD_NS, ..CoalesceConfig::default() };
        let config = AdapterConfig { mtu: MTU, offloads, coalesce, ..AdapterConfig::default() };
        let (a, b) = cable(&CableConfig { mtu: MTU, ..CableConfig::default() });
        let pair = |tap: &Tap, end| QueuePair::new(&config, &PortControl::new(&config), 0, tap.queue(0).unwrap(), end);
        let pairs = vec![pair(&taps[0], a), pair(&taps[1], b)];
        let worker = Worker::start("ofr-adapters", pairs, None).unwrap();
        Self { _worker: worker, _taps: taps, hosts }
    }

    /// Runs one group of cases. Returns the receiver's output and exit status.
    fn run(&self, program: &OsString, family: &str, test: &str) -> Output {
        let command = |side: usize| {
            let mut command = Command::new(program);
            command.args([family, "--verbose", "--test", test, "--iface", INTERFACE]);
            command.args(["--smac", &text(MACS[0]), "--dmac", &text(MACS[1])]);
            confine(&mut command, Some(&self.hosts[side]), None).unwrap();
            command
        };
        let receiver = command(1).arg("--rx").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut receiver = receiver.unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        wait_until_bound(&mut receiver);
        let sent = command(0).output().unwrap();
        assert!(sent.status.success(), "the sender failed: {}", String::from_utf8_lossy(&sent.stderr));
        receiver.wait_with_output().unwrap()
    }
}

/// Waits until the program's packet socket is bound, so that the receiver misses no frame.
fn wait_until_bound(receiver: &mut Child) {
    let path = format!("/proc/{}/net/packet", receiver.id());
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Columns: sk, RefCnt, Type, Proto, Iface, …. The interface is 0 before the bind.
        let sockets = std::fs::read_to_string(&path).unwrap_or_default();
        let is_bound = |line: &str| line.split_whitespace().nth(4).is_some_and(|index| index != "0");
        if sockets.lines().skip(1).any(is_bound) {
            return;
        }
        assert!(receiver.try_wait().unwrap().is_none(), "the receiver ended before it was bound");
        assert!(Instant::now() < deadline, "the receiver never bound its socket");
        thread::sleep(POLL_INTERVAL);
    }
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn program() -> OsString {
    std::env::var_os(PROGRAM_VARIABLE)
        .unwrap_or_else(|| panic!("{PROGRAM_VARIABLE} does not name the program; run .ci/kernel-gro"))
}

#[test]
#[ignore = "needs the kernel's program; .ci/kernel-gro fetches it and runs this"]
fn the_kernels_program_finds_the_coalesced_frames_that_it_expects() {
    let program = program();
    let bench = Bench::new(Offloads::all());
    let mut failed = Vec::new();
    for family in FAMILIES {
        for test in TESTS {
            let mut attempts = 0;
            let output = loop {
                attempts += 1;
                let output = bench.run(&program, family, test);
                if output.status.success() || attempts == ATTEMPTS_MAX {
                    break output;
                }
            };
            let verdict = if output.status.success() { "passed" } else { "FAILED" };
            println!("{test} {family}: {verdict} in attempt {attempts}");
            print!("{}", String::from_utf8_lossy(&output.stdout));
            if !output.status.success() {
                failed.push(format!("{test} {family}:\n{}", String::from_utf8_lossy(&output.stderr)));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
#[ignore = "needs the kernel's program; .ci/kernel-gro fetches it and runs this"]
fn the_kernels_program_fails_with_an_adapter_that_coalesces_nothing() {
    let program = program();
    let bench = Bench::new(Offloads::all() - Offloads::RSC - Offloads::RSC_UDP);
    for family in FAMILIES {
        let output = bench.run(&program, family, "data");
        assert!(!output.status.success(), "it passes although nothing is coalesced");
    }
}
