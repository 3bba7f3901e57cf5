//! What a machine's work costs, learned from samples.

use super::CalibrateError;
use super::experiments::{LARGE_SENDS, LEARNED, PACED, SUM_RECEIVED, SUM_SENT, UNJOINED};
use super::least_squares::least_squares;
use super::receiver::ReceiverCosts;
use super::samples::{PerByte, Samples};
use super::setup::{HEADERS_LEN, MSS, Setup};
use crate::plan::GIGABIT_INTERRUPTS_PER_SECOND;

/// Largest large send that the model's profiles know.
pub(super) const CHUNK_LEN_MAX: f64 = 65_400.0;
/// Sums that adapters make for hosts: of what is sent, and of what is received.
const SUMS: f64 = 2.0;

/// What this machine's work costs, in nanoseconds, and how long the pieces are in which it is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The hosts, for each byte, at both ends together.
    pub byte_ns: f64,
    /// The hosts, for each frame or super-frame handed down, acknowledgements among them.
    pub send_ns: f64,
    /// The hosts, for each frame or joined frame handed up.
    pub receive_ns: f64,
    /// The hosts, for each byte sent that they sum themselves.
    pub sum_sent_ns: f64,
    /// The hosts, for each byte received that they sum themselves.
    pub sum_received_ns: f64,
    /// The hosts, for each interrupt after which they had slept, on top of what is handed over.
    pub wake_ns: f64,
    /// The adapters, for each byte, sums included.
    pub adapter_byte_ns: f64,
    /// The adapters, for each frame on the line.
    pub adapter_frame_ns: f64,
    /// The adapters, for each frame or super-frame that goes to or from a host.
    pub adapter_hand_over_ns: f64,
    /// The adapters, for each byte sent that they sum for the hosts.
    pub adapter_sum_sent_ns: f64,
    /// The adapters, for each byte received that they sum for the hosts.
    pub adapter_sum_received_ns: f64,
    /// Bytes handed down at once with large sends, acknowledgements counted in.
    pub chunk_len: f64,
    /// Bytes handed up at once with receive coalescing, acknowledgements counted in.
    pub joined_len: f64,
    /// Bytes handed down at once where the line is the limit, acknowledgements counted in.
    pub paced_sent_len: f64,
    /// Bytes handed up at once where the line is the limit, acknowledgements counted in.
    pub paced_joined_len: f64,
    /// Frames on the line for each segment: one, and its share of an acknowledgement.
    pub frames_per_segment: f64,
    /// What receiving takes alone; `None`: the system does not let the receive work of a host be moved to its processor, or
    /// there is no second one.
    pub receiver: Option<ReceiverCosts>,
}

/// One of the [`Costs`], to be named and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    Byte,
    Send,
    Receive,
    SumSent,
    SumReceived,
    Wake,
    AdapterByte,
    AdapterFrame,
    AdapterHandOver,
    AdapterSumSent,
    AdapterSumReceived,
    ChunkLen,
    JoinedLen,
    PacedSentLen,
    PacedJoinedLen,
    FramesPerSegment,
    ReceiverByte,
    ReceiverHandOver,
    ReceiverSegmentsPerAck,
    PeerByte,
    PeerFrame,
    PeerHandOver,
}

impl Cost {
    /// For people: whose it is, and its unit.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Byte => "host, ns/byte, both ends",
            Self::Send => "host, ns/send",
            Self::Receive => "host, ns/receive",
            Self::SumSent => "host, ns/byte summed, sent",
            Self::SumReceived => "host, ns/byte summed, received",
            Self::Wake => "host, ns/interrupt when idle",
            Self::AdapterByte => "adapters, ns/byte",
            Self::AdapterFrame => "adapters, ns/frame on the line",
            Self::AdapterHandOver => "adapters, ns/hand-over",
            Self::AdapterSumSent => "adapters, ns/byte summed, sent",
            Self::AdapterSumReceived => "adapters, ns/byte summed, received",
            Self::ChunkLen => "bytes/send with LSO",
            Self::JoinedLen => "bytes/receive with RSC",
            Self::PacedSentLen => "bytes/send with LSO, line the limit",
            Self::PacedJoinedLen => "bytes/receive with RSC, line the limit",
            Self::FramesPerSegment => "frames/segment",
            Self::ReceiverByte => "receiving host, ns/byte",
            Self::ReceiverHandOver => "receiving host, ns/hand-over",
            Self::ReceiverSegmentsPerAck => "receiving host, segments/acknowledgement",
            Self::PeerByte => "its peer and adapters, ns/byte",
            Self::PeerFrame => "its peer and adapters, ns/frame",
            Self::PeerHandOver => "its peer and adapters, ns/hand-over",
        }
    }
}

/// What goes up and down between hosts and adapters for each segment, and in what pieces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HandOvers {
    /// To a host, acknowledgements counted in.
    pub(super) up: f64,
    /// From a host, data alone where the model cuts it into large sends, else with acknowledgements.
    pub(super) down: f64,
    /// Acknowledgements from a host that are not in `down`.
    pub(super) acks: f64,
    /// Bytes of a large send.
    pub(super) chunk_len: f64,
}

impl Costs {
    pub(super) fn learn(samples: Samples) -> Result<Self, CalibrateError> {
        let learned = LEARNED.iter().map(|&of| samples.get(of)).collect::<Result<Vec<_>, _>>()?;
        let host: Vec<_> = learned.iter().map(|of| ([1.0, of.sends, of.receives], of.host_ns)).collect();
        let adapter: Vec<_> =
            learned.iter().map(|of| ([1.0, of.wire_frames, of.sends + of.receives], of.adapter_ns)).collect();
        let [byte_ns, send_ns, receive_ns] = least_squares(&host);
        let [adapter_byte_ns, adapter_frame_ns, adapter_hand_over_ns] = least_squares(&adapter);
        let [sent, received] = [SwitchedSum::of(samples, SUM_SENT)?, SwitchedSum::of(samples, SUM_RECEIVED)?];
        let paced = samples.get(PACED)?;
        let handed_over_ns = byte_ns + paced.sends * send_ns + paced.receives * receive_ns;
        let interrupts = paced.time_s * f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
        let (plain, large) = (samples.get(UNJOINED)?, samples.get(LARGE_SENDS)?);
        Ok(Self {
            byte_ns,
            send_ns,
            receive_ns,
            sum_sent_ns: sent.host_ns(),
            sum_received_ns: received.host_ns(),
            wake_ns: ((paced.host_ns - handed_over_ns) / interrupts).max(0.0),
            adapter_byte_ns,
            adapter_frame_ns,
            adapter_hand_over_ns,
            adapter_sum_sent_ns: sent.adapter_ns(adapter_byte_ns),
            adapter_sum_received_ns: received.adapter_ns(adapter_byte_ns),
            chunk_len: 1.0 / large.sends,
            joined_len: 1.0 / large.receives,
            paced_sent_len: 1.0 / paced.sends,
            paced_joined_len: 1.0 / paced.receives,
            frames_per_segment: plain.wire_frames * MSS,
            receiver: ReceiverCosts::learn(samples),
        })
    }

    /// All that were measured, in the order in which people read them.
    pub(super) fn values(&self) -> Vec<(Cost, f64)> {
        let mut values = vec![
            (Cost::Byte, self.byte_ns),
            (Cost::Send, self.send_ns),
            (Cost::Receive, self.receive_ns),
            (Cost::SumSent, self.sum_sent_ns),
            (Cost::SumReceived, self.sum_received_ns),
            (Cost::Wake, self.wake_ns),
            (Cost::AdapterByte, self.adapter_byte_ns),
            (Cost::AdapterFrame, self.adapter_frame_ns),
            (Cost::AdapterHandOver, self.adapter_hand_over_ns),
            (Cost::AdapterSumSent, self.adapter_sum_sent_ns),
            (Cost::AdapterSumReceived, self.adapter_sum_received_ns),
            (Cost::ChunkLen, self.chunk_len),
            (Cost::JoinedLen, self.joined_len),
            (Cost::PacedSentLen, self.paced_sent_len),
            (Cost::PacedJoinedLen, self.paced_joined_len),
            (Cost::FramesPerSegment, self.frames_per_segment),
        ];
        values.extend(self.receiver.iter().flat_map(ReceiverCosts::values));
        values
    }

    /// As was measured, where the line is the limit and elsewhere. What is handed down then beyond large sends as long as
    /// they may be is acknowledgements, of which large send makes neither more nor less.
    pub(super) fn hand_overs(&self, setup: &Setup) -> HandOvers {
        let one = self.frames_per_segment;
        let paced_acks = (setup.mss / self.paced_sent_len - setup.mss / CHUNK_LEN_MAX).max(0.0);
        let (chunk_len, joined_len, acks, plain) = if setup.is_gigabit {
            (CHUNK_LEN_MAX, self.paced_joined_len, paced_acks, 1.0 + paced_acks)
        } else {
            (self.chunk_len, self.joined_len, 0.0, one)
        };
        let up = if setup.rsc { setup.mss / joined_len } else { one };
        if setup.lso {
            HandOvers { up, down: setup.mss / chunk_len, acks, chunk_len }
        } else {
            HandOvers { up, down: plain, acks: 0.0, chunk_len }
        }
    }

    /// The adapters, for each segment.
    pub(super) fn engine_ns(&self, setup: &Setup) -> f64 {
        let pieces = self.hand_overs(setup);
        let sums = [
            (setup.host_sums_sent, self.adapter_sum_sent_ns),
            (setup.host_sums_received, self.adapter_sum_received_ns),
        ];
        let spared: f64 = sums.iter().filter(|(is_of_host, _)| *is_of_host).map(|(_, sum_ns)| sum_ns).sum();
        (self.adapter_byte_ns - spared) * (setup.mss + HEADERS_LEN)
            + self.adapter_frame_ns * self.frames_per_segment
            + self.adapter_hand_over_ns * (pieces.up + pieces.down + pieces.acks)
    }
}

/// An experiment in which now the hosts make a sum (`off`), now the adapters (`on`).
struct SwitchedSum {
    by_hosts: PerByte,
    by_adapters: PerByte,
}

impl SwitchedSum {
    fn of(samples: Samples, experiment: &str) -> Result<Self, CalibrateError> {
        Ok(Self { by_hosts: samples.get((experiment, "off"))?, by_adapters: samples.get((experiment, "on"))? })
    }

    /// What it costs the hosts for each byte.
    fn host_ns(&self) -> f64 {
        (self.by_hosts.host_ns - self.by_adapters.host_ns).max(0.0)
    }

    /// What it costs the adapters for each byte, whose whole cost has all sums in it.
    fn adapter_ns(&self, adapter_byte_ns: f64) -> f64 {
        (self.by_adapters.adapter_ns - self.by_hosts.adapter_ns).clamp(0.0, adapter_byte_ns / SUMS)
    }
}
