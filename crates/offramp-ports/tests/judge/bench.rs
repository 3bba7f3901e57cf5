//! The kernel's side of a comparison: two TAPs on a bridge, in a new namespace.
//!
//! ```text
//!  write(2) ──▶ input TAP ──▶ bridge ──▶ output TAP ──▶ read(2)
//! ```
//!
//! A written frame is in the output TAP's queue before write(2) returns, so all frames can be read at once. If frames
//! seem to be missing, [`Bench::wait`] sends an additional sentinel frame and reads until the sentinel arrives.

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

/// Name of the TAP for written frames.
pub const INPUT: &str = "tin";
/// Name of the TAP for read frames.
pub const OUTPUT: &str = "tout";
const BRIDGE: &str = "br";
/// Capacity of the output TAP in frames: the segments of one super-frame of 65,495 bytes fit.
const OUTPUT_FRAMES_MAX: u32 = 70_000;
/// Size of the read buffer in bytes, larger than the longest frame and its header, so that an unexpectedly long frame
/// is detected.
const READ_LEN_MAX: usize = 140_000;
/// `EtherType` for local experiments (IEEE 802, clause 9.2), used by sentinels.
const SENTINEL_TYPE: [u8; 2] = [0x88, 0xb5];
/// Time limit for a sentinel in milliseconds, far above the transit time of a frame.
const PATIENCE_MS: u16 = 5_000;
/// Maximum number of sentinels sent until the bridge forwards frames.
const WARM_UPS_MAX: usize = 100;
const WARM_UP_MS: u16 = 50;
/// Minimum length of an Ethernet frame without FCS, in bytes (IEEE 802.3, 4A.4.2).
const SENTINEL_LEN: usize = 60;

/// An output frame of the bench, with its virtio network header.
pub type Told = ([u8; HEADER_LEN], Vec<u8>);

/// The settings of a bench.
#[derive(Clone, Copy, Debug)]
pub struct BenchConfig {
    /// The offloads offered by the input TAP.
    pub input: Offloads,
    /// The offloads offered by the output TAP. The kernel must perform all other offloads.
    pub output: Offloads,
    /// True if the input's frames pass through GRO (`IFF_NAPI`).
    pub napi: bool,
}

/// Two TAPs on a bridge. Dropping the bench removes the TAPs, the bridge and the namespace.
pub struct Bench {
    ns: NetNs,
    input: TapQueue,
    output: TapQueue,
    buffer: Vec<u8>,
    sentinels: u64,
    // The TAPs must exist as long as their queues are used.
    _taps: [Tap; 2],
}

impl Bench {
    /// Creates the bench and waits until the bridge forwards frames.
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

    /// Returns the namespace with the bridge.
    pub fn ns(&self) -> &NetNs {
        &self.ns
    }

    /// Writes a frame with its header to the input TAP.
    ///
    /// # Errors
    /// Returns the error of writev(2).
    pub fn write(&self, header: &[u8], frame: &[u8]) -> Result<(), Errno> {
        writev(self.input.as_fd(), &[IoSlice::new(header), IoSlice::new(frame)]).map(|_| ())
    }

    /// Reads all frames available at the output TAP.
    pub fn drain(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(one) = self.read_one() {
            if one.1.get(6..11) == Some(&SOURCE_MAC[..5]) && !is_sentinel(&one.1) {
                told.push(one);
            }
        }
        told
    }

    /// Sends a sentinel, and returns all output frames before the sentinel.
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
    // Disable bridge netfilter, which would parse the forwarded frames. These files exist only in a kernel with bridge
    // netfilter.
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
