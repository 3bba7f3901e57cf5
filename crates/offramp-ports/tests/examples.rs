//! Tests that the examples run and forward frames.

use crate::common::namespace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use offramp_adapter::port::HostPort;
use offramp_offload::meta::RxMeta;
use offramp_ports::packet::{Packet, PacketConfig, PacketQueue};
use offramp_ports::sys::NetNs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

/// Maximum wait for a frame in one round, and number of rounds. Several rounds are needed because the kernel drops
/// frames until it has checked the carrier.
const ROUND_MS: u16 = 100;
const ROUNDS: usize = 100;

/// A running example. Dropping this value ends the example.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        // The example may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an example in `ns`, and waits until the example reports that it is up. `cargo test` builds the examples
/// together with the tests.
fn start(ns: &NetNs, name: &str, arguments: &[&str]) -> Example {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let spawned = ns.run(|| Command::new(&program).args(arguments).stdout(Stdio::piped()).spawn()).unwrap();
    let mut child = spawned.unwrap_or_else(|e| panic!("{}: {e}; run cargo build --examples", program.display()));
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("are up"), "{line:?}");
    Example(child)
}

/// Returns a broadcast frame of a protocol that no kernel supports.
fn frame() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.extend((0..100).map(|n| n as u8));
    frame
}

fn queue(ns: &NetNs, interface: &str) -> PacketQueue {
    Packet::open_in(ns, &PacketConfig::new(interface)).unwrap().queue(0).unwrap()
}

/// Sends frames on one interface until a frame arrives on the other interface.
fn assert_carries(ns: &NetNs, from: &str, to: &str) {
    let (mut sender, mut receiver) = (queue(ns, from), queue(ns, to));
    for _ in 0..ROUNDS {
        // An interface that is just coming up refuses frames.
        let _ = sender.rx_deliver(&RxMeta::default(), &frame());
        let mut fds = [PollFd::new(receiver.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(ROUND_MS)).unwrap();
        while receiver.tx_next(0).unwrap() {
            if receiver.tx_frame().bytes() == frame() {
                return;
            }
        }
    }
    panic!("no frame came from {from} to {to}");
}

#[test]
fn two_taps_carry_frames_to_each_other() {
    let ns = namespace();
    let _example = start(&ns, "two_taps", &["ofr0", "ofr1", "60"]);
    assert_carries(&ns, "ofr0", "ofr1");
    assert_carries(&ns, "ofr1", "ofr0");
}

#[test]
fn a_switch_floods_a_broadcast_to_every_other_port() {
    let ns = namespace();
    let socket = std::env::temp_dir().join(format!("offramp-example-{}.sock", std::process::id()));
    let _example = start(&ns, "switch", &["60", socket.to_str().unwrap(), "ofr0", "ofr1", "ofr2"]);
    assert_carries(&ns, "ofr0", "ofr1");
    assert_carries(&ns, "ofr2", "ofr0");
    // A killed process does not remove its socket.
    let _ = std::fs::remove_file(&socket);
}
