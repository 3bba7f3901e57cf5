//! The kernel's side: two TAPs on a bridge, in a namespace of their own.
//!
//! ```text
//!  write(2) ──▶ input TAP ──▶ bridge ──▶ output TAP ──▶ read(2)
//! ```
//!
//! What is written carries through to the output's ring before write(2) returns, so that all of it can
//! be read at once; when it is in doubt, [`Bench::wait`] makes sure with a frame of its own.

use super::support::packet::{DESTINATION_MAC, SOURCE_MAC};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::writev;
use nix::unistd::read;
use offramp_offload::caps::Offloads;
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{MTU_MAX, Tap, TapConfig, TapQueue};
use offramp_ports::vnet_hdr::HEADER_LEN;
use std::fs;
use std::io::IoSlice;
use std::os::fd::AsFd;

/// Name of the TAP that frames are written to.
pub const INPUT: &str = "tin";
/// Name of the TAP that frames are read from.
pub const OUTPUT: &str = "tout";
const BRIDGE: &str = "br";
/// Frames that the output holds: the segments of one super-frame of 65,495 bytes fit.
const OUTPUT_FRAMES_MAX: u32 = 70_000;
/// Room for the longest frame and its header, and more: a longer one would show.
const READ_LEN_MAX: usize = 140_000;
/// `EtherType` for local experiments (IEEE 802, clause 9.2): what a sentinel carries.
const SENTINEL_TYPE: [u8; 2] = [0x88, 0xb5];
/// Far longer than a frame takes: a sentinel that is not there by then will not come.
const PATIENCE_MS: u16 = 5_000;
/// How often a first sentinel is sent, until the bridge forwards.
const WARM_UPS_MAX: usize = 100;
const WARM_UP_MS: u16 = 50;
/// Shortest Ethernet frame without FCS (IEEE 802.3, 4A.4.2).
const SENTINEL_LEN: usize = 60;

/// What came out of the output: the virtio network header and the frame.
pub type Told = ([u8; HEADER_LEN], Vec<u8>);

/// What a bench is made with.
#[derive(Clone, Copy, Debug)]
pub struct BenchConfig {
    /// What the input offers.
    pub input: Offloads,
    /// What the output offers: all that it does not, the kernel must do.
    pub output: Offloads,
    /// Whether the input's frames go through GRO (`IFF_NAPI`).
    pub napi: bool,
}

/// Two TAPs on a bridge. Dropping it takes everything down.
pub struct Bench {
    ns: NetNs,
    input: TapQueue,
    output: TapQueue,
    buffer: Vec<u8>,
    sentinels: u64,
    // Kept for as long as the queues are used.
    _taps: [Tap; 2],
}

impl Bench {
    /// Makes the bench and waits until it forwards.
    pub fn new(config: BenchConfig) -> Self {
        let ns = NetNs::new().unwrap_or_else(|e| panic!("this test needs a network namespace: {e}; run as root"));
        let tap = |name: &str, napi, offloads| {
            let tx_queue_len = Some(OUTPUT_FRAMES_MAX);
            let tap = TapConfig { mtu: MTU_MAX, napi, tx_queue_len, ..TapConfig::new(name) };
            let tap = Tap::open_in(&ns, &tap).unwrap_or_else(|e| panic!("{e}"));
            tap.offer(offloads).unwrap();
            tap
        };
        let taps = [tap(INPUT, config.napi, config.input), tap(OUTPUT, false, config.output)];
        ns.run(connect_by_bridge).unwrap();
        let [input, output] = [0, 1].map(|n: usize| taps[n].queue(0).unwrap());
        let mut bench = Self { ns, input, output, buffer: vec![0; READ_LEN_MAX], sentinels: 0, _taps: taps };
        bench.warm_up();
        bench
    }

    /// The namespace with the bridge.
    pub fn ns(&self) -> &NetNs {
        &self.ns
    }

    /// Hands a frame with its header to the kernel.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn write(&self, header: &[u8], frame: &[u8]) -> Result<(), Errno> {
        writev(self.input.as_fd(), &[IoSlice::new(header), IoSlice::new(frame)]).map(|_| ())
    }

    /// Reads all that came out so far.
    pub fn drain(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(one) = self.read_one() {
            if one.1.get(6..11) == Some(&SOURCE_MAC[..5]) && !is_sentinel(&one.1) {
                told.push(one);
            }
        }
        told
    }

    /// Sends a sentinel and reads all that comes out before it.
    pub fn wait(&mut self) -> Vec<Told> {
        let sentinel = self.send_sentinel();
        let mut told = Vec::new();
        loop {
            match self.read_one() {
                Some((_, frame)) if frame == sentinel => return told,
                Some(one) if one.1.get(6..11) == Some(&SOURCE_MAC[..5]) && !is_sentinel(&one.1) => told.push(one),
                Some(_) => {}
                None => assert!(self.readable(PATIENCE_MS), "the kernel lost a sentinel"),
            }
        }
    }

    fn warm_up(&mut self) {
        for _ in 0..WARM_UPS_MAX {
            self.send_sentinel();
            if self.readable(WARM_UP_MS) {
                self.wait();
                return;
            }
        }
        panic!("the bridge does not forward");
    }

    fn send_sentinel(&mut self) -> Vec<u8> {
        self.sentinels += 1;
        let head = [&DESTINATION_MAC[..], &SOURCE_MAC, &SENTINEL_TYPE].concat();
        let mut frame = [&head[..], &self.sentinels.to_be_bytes()].concat();
        frame.resize(SENTINEL_LEN, 0);
        self.write(&[0; HEADER_LEN], &frame).unwrap();
        frame
    }

    fn read_one(&mut self) -> Option<Told> {
        loop {
            match read(self.output.as_fd(), &mut self.buffer) {
                Ok(len) => {
                    let (header, frame) = self.buffer[..len].split_first_chunk().expect("a header comes first");
                    return Some((*header, frame.to_vec()));
                }
                Err(Errno::EAGAIN) => return None,
                Err(Errno::EINTR) => {}
                Err(e) => panic!("reading from \"{OUTPUT}\": {e}"),
            }
        }
    }

    fn readable(&self, patience_ms: u16) -> bool {
        let mut fds = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(patience_ms)).unwrap() > 0
    }
}

fn is_sentinel(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&SENTINEL_TYPE)
}

fn connect_by_bridge() {
    // Only there when the kernel has bridge netfilter; it would parse what the bridge forwards.
    for name in ["iptables", "ip6tables", "arptables"] {
        let _ = fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{name}"), "0");
    }
    link::create_bridge(BRIDGE).unwrap();
    link::disable_ipv6(BRIDGE).unwrap();
    for name in [INPUT, OUTPUT] {
        link::disable_ipv6(name).unwrap();
        link::set_master(name, BRIDGE).unwrap();
        link::set_up(name).unwrap();
    }
    link::set_mtu(BRIDGE, MTU_MAX).unwrap();
    link::set_up(BRIDGE).unwrap();
}
