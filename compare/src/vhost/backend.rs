//! offramp's vhost-user port between a guest and an unlimited wire, with counters and busy time.

use super::wire::{Discard, Generate};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::limit::{BITS_PER_SECOND, FRAMES_PER_SECOND, PortLimits, RateLimit};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, PortError, WirePort};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::vlan::PortVlans;
use offramp_offload::esp::Prefix;
use offramp_ports::sys::cpu;
use offramp_ports::sys::sandbox::{Reaction, Sandbox, ThreadKind};
use offramp_ports::vhost_user::{VhostUser, VhostUserConfig};
use offramp_testbed::echo::Echo;
use offramp_testbed::failure::{Doing, Result, failed};
use offramp_testbed::stop;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MTU: u16 = 1500;
/// Maximum number of frames per batch to the guest, equal to testpmd's bursts.
const RECEIVE_BATCH_FRAMES: usize = 32;
/// Number of poll rounds between two checks of the time and of signals.
const ROUNDS_PER_LOOK: u32 = 1024;

/// Ethernet address of DPDK's driver as the guest, and network of testpmd's frames (RFC 2544, C.2.2).
pub const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x20];
const GUEST_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// VLAN of the guest on a protected port.
const VLAN: u16 = 7;
/// Rate limits that no machine reaches with one queue.
const LIMIT: RateLimit = RateLimit {
    bits_per_second: Some(*BITS_PER_SECOND.end()),
    frames_per_second: Some(*FRAMES_PER_SECOND.end()),
    burst_bytes: None,
    burst_frames: None,
};

/// The kind of wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Discards the guest's frames
    Discard,
    /// Generates frames for the guest
    Generate,
    /// Sends the guest's frames back
    Echo,
}

/// Run offramp's vhost-user port on an unlimited wire; prints counters as JSON, one object per line.
#[derive(clap::Args)]
pub struct Args {
    /// The vhost-user socket
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The kind of wire
    #[arg(long, value_enum)]
    mode: Mode,
    /// Length of generated frames, without FCS
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// The processor for the port's thread
    #[arg(long)]
    cpu: Option<usize>,
    /// Protect the port as for an untrusted guest: sandbox, bound addresses, an access VLAN, and unreached limits
    #[arg(long)]
    protected: bool,
    /// Time between two reports, in milliseconds
    #[arg(long, default_value_t = 1000)]
    report_ms: u64,
}

/// Counters since the start, as printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Time since the start, in nanoseconds.
    pub t_ns: u64,
    /// Number of frames or super-frames taken from the guest.
    pub taken: u64,
    /// Number of frames sent on the wire; each segment counts as one frame.
    pub sent: u64,
    /// Number of bytes in the frames sent on the wire.
    pub sent_bytes: u64,
    /// Number of frames delivered to the guest.
    pub given: u64,
    /// Number of frames lost in both directions, for any reason.
    pub lost: u64,
    /// Total time of the poll rounds that moved at least one frame, in nanoseconds.
    pub busy_ns: u64,
}

/// Runs until a signal is received.
///
/// # Errors
/// Returns an error if the port cannot be opened, or the processor cannot be used.
pub fn run(args: &Args) -> Result<()> {
    let mut port = VhostUser::open(&VhostUserConfig { mtu: Some(MTU), ..VhostUserConfig::new(&args.socket) })
        .doing("opening the port")?;
    let Some(host) = port.queue(0) else { return failed("the port has no queue") };
    let mtu = usize::from(MTU);
    let config = AdapterConfig { mtu, receive_batch_frames: RECEIVE_BATCH_FRAMES, ..AdapterConfig::default() };
    config.check().doing("the adapter's configuration")?;
    // Pin this thread only after the port has started its own threads, so that those threads may run on other
    // processors.
    if let Some(cpu) = args.cpu {
        cpu::pin_current_thread(&[cpu]).doing("choosing a processor")?;
    }
    let control = if args.protected { protected(&config)? } else { PortControl::new(&config) };
    println!("ready");
    let period = Duration::from_millis(args.report_ms);
    let tag = args.protected.then_some(VLAN);
    match args.mode {
        Mode::Discard => drive(&config, &control, host, Discard::new(mtu), period),
        Mode::Generate => drive(&config, &control, host, Generate::new(mtu, args.bytes, tag), period),
        Mode::Echo => drive(&config, &control, host, Echo::new(mtu), period),
    }
}

/// Returns the control of a port that is protected as for an untrusted guest. Also puts the calling thread, which polls
/// the port, into the sandbox.
fn protected(config: &AdapterConfig) -> Result<Arc<PortControl>> {
    let security = PortSecurity {
        mac_addresses: vec![GUEST_MAC],
        ip_addresses: Prefix::new(GUEST_NETWORK.0.into(), GUEST_NETWORK.1).into_iter().collect(),
        vlans: PortVlans::new(Some(VLAN), &[]).doing("the guest's VLAN")?,
    };
    let control = PortControl::secured(config, security);
    control.set_limits(PortLimits { tx: LIMIT, rx: LIMIT });
    let sandbox = Sandbox::new(Reaction::Refuse).doing("the sandbox")?;
    for kind in [ThreadKind::Process, ThreadKind::Data] {
        sandbox.enter(kind).doing("the sandbox")?;
    }
    Ok(control)
}

/// Polls the queue pair without sleep, and reports every `period` until a signal is received.
fn drive<H: HostPort, W: WirePort>(
    config: &AdapterConfig,
    control: &Arc<PortControl>,
    host: H,
    wire: W,
    period: Duration,
) -> Result<()> {
    let mut pair = QueuePair::new(config, control, 0, host, wire);
    let mut meter = Meter::new(control);
    let mut next_report = Instant::now() + period;
    while !stop::requested() {
        for _ in 0..ROUNDS_PER_LOOK {
            meter.round(&mut pair)?;
        }
        if Instant::now() >= next_report {
            next_report += period;
            print(&meter.report())?;
        }
    }
    print(&meter.report())
}

fn print(report: &Report) -> Result<()> {
    let line = serde_json::to_string(report).doing("writing a report")?;
    writeln!(std::io::stdout().lock(), "{line}").doing("writing a report")
}

/// Polls a queue pair, and adds up the time of the poll rounds that moved frames.
struct Meter<'a> {
    control: &'a Arc<PortControl>,
    began: Instant,
    now_ns: u64,
    moved: u64,
    busy_ns: u64,
}

impl<'a> Meter<'a> {
    fn new(control: &'a Arc<PortControl>) -> Self {
        Self { control, began: Instant::now(), now_ns: 0, moved: 0, busy_ns: 0 }
    }

    /// Polls the pair once. One clock reading suffices per round, because the end of a round is the start of the next
    /// round.
    fn round<H: HostPort, W: WirePort>(&mut self, pair: &mut QueuePair<H, W>) -> Result<()> {
        if let Err(error @ PortError::Closed(_)) = pair.poll(self.now_ns) {
            return failed(format!("the port: {error}"));
        }
        let end_ns = self.began.elapsed().as_nanos() as u64;
        let moved = self.moved();
        if moved != self.moved {
            self.busy_ns += end_ns - self.now_ns;
        }
        (self.now_ns, self.moved) = (end_ns, moved);
        Ok(())
    }

    /// Returns the number of frames that the adapter took from the host or delivered to the host. A frame that the host
    /// had no room for does not count.
    fn moved(&self) -> u64 {
        let queues = self.control.queues().iter();
        queues.map(|queue| queue.transmit.host_frames.get() + queue.receive.frames_out.get()).sum()
    }

    fn report(&self) -> Report {
        let mut report = Report { t_ns: self.now_ns, busy_ns: self.busy_ns, ..Report::default() };
        for queue in self.control.queues() {
            report.taken += queue.transmit.host_frames.get();
            report.sent += queue.transmit.frames_out.get();
            report.sent_bytes += queue.transmit.bytes_out.get();
            report.given += queue.receive.frames_out.get();
            report.lost += queue.transmit.lost_total() + queue.receive.lost_total();
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_adapter::port::InPlace;
    use offramp_offload::caps::Offloads;
    use offramp_offload::frame::Frame;
    use offramp_offload::meta::{RxMeta, TxMeta};
    use offramp_testbed::frames;
    use std::collections::VecDeque;

    /// A guest in this process: frames to send, received frames, and the maximum number of received frames.
    #[derive(Default)]
    struct Guest {
        sends: VecDeque<(TxMeta, Vec<u8>)>,
        taken: (TxMeta, Vec<u8>),
        got: Vec<Vec<u8>>,
        room: usize,
    }

    impl InPlace for Guest {}

    impl HostPort for Guest {
        fn tx_next(&mut self, _now_ns: u64) -> std::result::Result<bool, PortError> {
            let next = self.sends.pop_front();
            let some = next.is_some();
            self.taken = next.unwrap_or_default();
            Ok(some)
        }

        fn tx_frame(&mut self) -> Frame<'_> {
            Frame::new(&mut self.taken.1, self.taken.0)
        }

        fn rx_deliver(&mut self, _: &RxMeta, frame: &[u8]) -> std::result::Result<(), PortError> {
            if self.got.len() == self.room {
                return Err(PortError::Full);
            }
            self.got.push(frame.to_vec());
            Ok(())
        }

        fn accepts(&self) -> Offloads {
            Offloads::TX
        }

        fn honours_data_valid(&self) -> bool {
            false
        }
    }

    fn sending(frames: &[Vec<u8>]) -> Guest {
        let sends = frames.iter().map(|frame| (TxMeta::default(), frame.clone())).collect();
        Guest { sends, room: usize::MAX, ..Guest::default() }
    }

    /// Polls a guest and a wire for `rounds` rounds.
    fn after_rounds<W: WirePort>(guest: Guest, wire: W, rounds: usize) -> (Report, Guest) {
        let config =
            AdapterConfig { mtu: 9000, receive_batch_frames: RECEIVE_BATCH_FRAMES, ..AdapterConfig::default() };
        let control = PortControl::new(&config);
        let mut pair = QueuePair::new(&config, &control, 0, guest, wire);
        let mut meter = Meter::new(&control);
        for _ in 0..rounds {
            meter.round(&mut pair).unwrap();
        }
        (meter.report(), std::mem::take(pair.host_mut()))
    }

    #[test]
    fn what_a_guest_sends_to_the_discard_is_counted() {
        let frames = frames::mixed(1, true);
        let (report, guest) = after_rounds(sending(&frames), Discard::new(9000), 100);
        assert_eq!((report.taken, report.sent, report.lost), (frames.len() as u64, frames.len() as u64, 0));
        assert_eq!(report.sent_bytes, frames.iter().map(Vec::len).sum::<usize>() as u64);
        assert!(guest.got.is_empty() && report.busy_ns > 0 && report.busy_ns <= report.t_ns);
    }

    #[test]
    fn what_a_guest_sends_to_the_echo_comes_back() {
        let frames = frames::mixed(2, true);
        let (report, guest) = after_rounds(sending(&frames), Echo::new(9000), 100);
        assert_eq!(guest.got, frames);
        assert_eq!((report.given, report.lost), (frames.len() as u64, 0));
    }

    #[test]
    fn a_guest_without_room_costs_the_generator_frames_and_no_busy_time() {
        let guest = Guest { room: 40, ..Guest::default() };
        let (report, guest) = after_rounds(guest, Generate::new(1500, 64, None), 2);
        assert_eq!((guest.got.len(), report.given, report.lost), (40, 40, 24));
        let full = Guest { room: 0, ..Guest::default() };
        assert_eq!(after_rounds(full, Generate::new(1500, 64, None), 10).0.busy_ns, 0);
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = Report { t_ns: 1, taken: 2, sent: 3, sent_bytes: 4, given: 5, lost: 6, busy_ns: 7 };
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}
