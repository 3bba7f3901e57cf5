//! Namespaces with a TAP, and checks of the TAP's frames.
#![allow(dead_code)]

use std::net::{IpAddr, Ipv4Addr};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use offramp_adapter::port::HostPort;
use offramp_offload::meta::TxMeta;
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use std::os::fd::AsFd;

/// The host's address on its TAP, and the address of its neighbour on the wire.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Time limit in milliseconds, far above the transit time of a frame. A test that reaches this limit has failed.
const PATIENCE_MS: u16 = 10_000;

/// Returns a new namespace, or panics with the reason.
pub fn namespace() -> NetNs {
    NetNs::new().unwrap_or_else(|e| panic!("this test needs a network namespace: {e}; run as root"))
}

/// Returns whether this process is root in the initial user namespace. Only that root can change a few kernel settings.
///
/// In any other process, a test that requires this root prints the requirement and is skipped. In CI, a test that
/// requires this root fails in any other process.
pub fn is_root_of_the_machine() -> bool {
    // The map of the initial user namespace has one line, which maps every user to itself (user_namespaces(7)).
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_root = nix::unistd::geteuid().is_root() && map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "this test needs root of the machine, and CI skips nothing");
        println!("skipped: the kernel lets only root of the machine do this");
    }
    is_root
}

/// Opens a TAP in `ns` and brings the interface up, with an address, a neighbour and no IPv6.
pub fn tap_with_address(ns: &NetNs, config: &TapConfig, own: (Ipv4Addr, [u8; 6]), peer: (Ipv4Addr, [u8; 6])) -> Tap {
    let config = TapConfig { mac: Some(own.1), ..config.clone() };
    let tap = Tap::open_in(ns, &config).unwrap_or_else(|e| panic!("{e}"));
    ns.run(|| {
        link::disable_ipv6(tap.name()).unwrap();
        link::add_address(tap.name(), IpAddr::V4(own.0), 24).unwrap();
        link::set_up(tap.name()).unwrap();
        link::add_neighbour(tap.name(), IpAddr::V4(peer.0), peer.1).unwrap();
    })
    .unwrap();
    tap
}

/// Returns the host's TAP with the addresses used by most tests.
pub fn host_tap(ns: &NetNs) -> Tap {
    tap_with_address(ns, &TapConfig::new("ofr0"), (HOST, HOST_MAC), (PEER, PEER_MAC))
}

/// Waits for the next frame accepted by `wanted`.
pub fn wait_for(queue: &mut TapQueue, wanted: impl Fn(&TxMeta, &[u8]) -> bool) -> (TxMeta, Vec<u8>) {
    loop {
        while queue.tx_next(0).unwrap() {
            let frame = queue.tx_frame();
            let (meta, frame) = (frame.request(), frame.bytes());
            if wanted(&meta, frame) {
                return (meta, frame.to_vec());
            }
        }
        let mut fds = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
        assert!(poll(&mut fds, PollTimeout::from(PATIENCE_MS)).unwrap() > 0, "the frame never came");
    }
}

/// Returns whether `frame` contains an IPv4 packet with this protocol and without options.
pub fn is_ipv4(frame: &[u8], protocol: u8) -> bool {
    frame.len() >= 34 && frame[12..15] == [8, 0, 0x45] && frame[23] == protocol
}
