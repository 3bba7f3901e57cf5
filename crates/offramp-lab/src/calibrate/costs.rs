//! The cost of a machine's work, learned from samples.

use super::cost::{Cost, named_costs};
use super::error::CalibrateError;
use super::experiments::{
    CHECKSUM_RECEIVED, CHECKSUM_SENT, LARGE_SENDS, LEARNED, PACED, PACED_ADAPTERS_SLEEP, UNCOALESCED,
};
use super::least_squares::least_squares;
use super::receiver::ReceiverCosts;
use super::samples::{PerByte, Samples};
use super::setup::{HEADERS_LEN, MSS, Setup};
use super::waits::Waits;
use crate::plan::GIGABIT_INTERRUPTS_PER_SECOND;

/// Maximum large send of the model's profiles.
pub(super) const CHUNK_LEN_MAX: f64 = 65_400.0;
/// Delay of one way over the link, as the profile assumes it.
pub(super) const LINK_DELAY_NS: f64 = 10_000.0;
/// Where round trips are measured.
const GIGABIT: Setup = Setup { is_gigabit: true, ..Setup::ALL_ON };
/// Checksums made by the adapters for hosts: one on sending, one on receiving.
const CHECKSUMS: f64 = 2.0;

named_costs! {
    /// The costs of this machine's work, in nanoseconds, and the lengths of its pieces.
    Costs {
        /// The hosts, for each byte, at both ends together.
        byte_ns: BYTE = "host, ns/byte, both ends",
        /// The hosts, for each frame or super-frame handed down, acknowledgements among them.
        send_ns: SEND = "host, ns/send",
        /// The hosts, for each frame or coalesced frame handed up.
        receive_ns: RECEIVE = "host, ns/receive",
        /// The hosts, for each byte sent with a checksum of their own.
        checksum_sent_ns: CHECKSUM_SENT = "host, ns/byte checksum, sent",
        /// The hosts, for each byte received with a checksum verified by themselves. Negative if hosts with
        /// verification were measured to take less.
        checksum_received_ns: CHECKSUM_RECEIVED = "host, ns/byte checksum, received",
        /// The hosts, for each interrupt after sleep, on top of the hand-over.
        wake_ns: WAKE = "host, ns/interrupt when idle",
        /// The hosts, for each send to a sleeping adapters' thread, on top of [`Self::send_ns`].
        doorbell_ns: DOORBELL = "host, ns/send when adapters sleep",
        /// The adapters, for each byte, checksums included.
        adapter_byte_ns: ADAPTER_BYTE = "adapters, ns/byte",
        /// The adapters, for each frame on the wire.
        adapter_frame_ns: ADAPTER_FRAME = "adapters, ns/frame on the wire",
        /// The adapters, for each frame or super-frame to or from a host.
        adapter_hand_over_ns: ADAPTER_HAND_OVER = "adapters, ns/hand-over",
        /// The adapters, for each byte sent with a checksum they compute for the hosts.
        adapter_checksum_sent_ns: ADAPTER_CHECKSUM_SENT = "adapters, ns/byte checksum, sent",
        /// The adapters, for each byte received with a checksum they verify for the hosts.
        adapter_checksum_received_ns: ADAPTER_CHECKSUM_RECEIVED = "adapters, ns/byte checksum, received",
        /// Bytes handed down at once with large sends, acknowledgements included.
        chunk_len: CHUNK_LEN = "bytes/send with LSO",
        /// Bytes handed up at once with receive coalescing, acknowledgements included.
        coalesced_len: COALESCED_LEN = "bytes/receive with RSC",
        /// Bytes handed down at once if the link is the limit, acknowledgements included.
        paced_sent_len: PACED_SENT_LEN = "bytes/send with LSO, link the limit",
        /// Bytes handed up at once if the link is the limit, acknowledgements included.
        paced_coalesced_len: PACED_COALESCED_LEN = "bytes/receive with RSC, link the limit",
        /// Frames on the wire for each segment: one, and its share of an acknowledgement.
        frames_per_segment: FRAMES_PER_SEGMENT = "frames/segment",
        ;
        /// Costs of receiving alone. `None`: the system cannot move the receive work of a host to its processor, or
        /// has no second one.
        receiver: ReceiverCosts,
        /// Waits of a request besides work; `None` if not measured.
        waits: Waits,
    }
}

/// Hand-overs between hosts and adapters for each segment, and the length of a piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HandOvers {
    /// To a host, acknowledgements included.
    pub(super) up: f64,
    /// From a host: data alone if the model makes large sends of it, else data and acknowledgements.
    pub(super) down: f64,
    /// Acknowledgements from a host not counted in `down`.
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
        let [sent, received] =
            [SwitchedChecksum::of(samples, CHECKSUM_SENT)?, SwitchedChecksum::of(samples, CHECKSUM_RECEIVED)?];
        let [polled, paced] = [samples.get(PACED)?, samples.get(PACED_ADAPTERS_SLEEP)?];
        let waking_ns = |of: &PerByte| of.host_ns - (byte_ns + of.sends * send_ns + of.receives * receive_ns);
        let interrupts = |of: &PerByte| of.time_s * f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
        let wake_ns = (waking_ns(&polled) / interrupts(&polled)).max(0.0);
        let (plain, large) = (samples.get(UNCOALESCED)?, samples.get(LARGE_SENDS)?);
        let costs = Self {
            byte_ns,
            send_ns,
            receive_ns,
            checksum_sent_ns: sent.host_ns().max(0.0),
            checksum_received_ns: received.host_ns(),
            wake_ns,
            doorbell_ns: ((waking_ns(&paced) - wake_ns * interrupts(&paced)) / paced.sends).max(0.0),
            adapter_byte_ns,
            adapter_frame_ns,
            adapter_hand_over_ns,
            adapter_checksum_sent_ns: sent.adapter_ns(adapter_byte_ns),
            adapter_checksum_received_ns: received.adapter_ns(adapter_byte_ns),
            chunk_len: 1.0 / large.sends,
            coalesced_len: 1.0 / large.receives,
            paced_sent_len: 1.0 / paced.sends,
            paced_coalesced_len: 1.0 / paced.receives,
            frames_per_segment: plain.wire_frames * MSS,
            receiver: ReceiverCosts::learn(samples),
            waits: None,
        };
        Ok(Self { waits: Waits::learn(samples, costs.round_trip_ns(&GIGABIT)), ..costs })
    }

    /// Counts hand-overs, with separate measurements for a link at its limit and elsewhere. At the limit, hand-downs
    /// beyond large sends of the maximum length are acknowledgements; large send does not change their number.
    pub(super) fn hand_overs(&self, setup: &Setup) -> HandOvers {
        let one = self.frames_per_segment;
        let paced_acks = (setup.mss / self.paced_sent_len - setup.mss / CHUNK_LEN_MAX).max(0.0);
        let (chunk_len, coalesced_len, acks, plain) = if setup.is_gigabit {
            (CHUNK_LEN_MAX, self.paced_coalesced_len, paced_acks, 1.0 + paced_acks)
        } else {
            (self.chunk_len, self.coalesced_len, 0.0, one)
        };
        let up = if setup.rsc { setup.mss / coalesced_len } else { one };
        if setup.lso {
            HandOvers { up, down: setup.mss / chunk_len, acks, chunk_len }
        } else {
            HandOvers { up, down: plain, acks: 0.0, chunk_len }
        }
    }

    /// Returns the work and delay of a small request and its response, as the model charges them.
    pub(super) fn round_trip_ns(&self, setup: &Setup) -> f64 {
        let received_ns = self.receiver.map_or(0.0, |of| of.hand_over_ns);
        2.0 * LINK_DELAY_NS + received_ns + self.send_ns * self.frames_per_segment + self.engine_ns(setup)
    }

    /// The processor of the adapters and of the host that sends to `receiver`, for each segment.
    pub(super) fn peer_ns(&self, receiver: &ReceiverCosts, setup: &Setup) -> f64 {
        let spared = if setup.host_checksums_received { self.adapter_checksum_received_ns } else { 0.0 };
        // Between the receiving host and the adapters, both ways.
        let hand_overs =
            if setup.rsc { 2.0 * setup.mss / self.coalesced_len } else { 1.0 + 1.0 / receiver.segments_per_ack };
        (receiver.peer_byte_ns - spared) * setup.mss
            + receiver.peer_frame_ns * self.frames_per_segment
            + receiver.peer_hand_over_ns * hand_overs
    }

    /// The adapters, for each segment.
    pub(super) fn engine_ns(&self, setup: &Setup) -> f64 {
        let pieces = self.hand_overs(setup);
        let sums = [
            (setup.host_checksums_sent, self.adapter_checksum_sent_ns),
            (setup.host_checksums_received, self.adapter_checksum_received_ns),
        ];
        let spared: f64 = sums.iter().filter(|(is_of_host, _)| *is_of_host).map(|(_, checksum_ns)| checksum_ns).sum();
        (self.adapter_byte_ns - spared) * (setup.mss + HEADERS_LEN)
            + self.adapter_frame_ns * self.frames_per_segment
            + self.adapter_hand_over_ns * (pieces.up + pieces.down + pieces.acks)
    }
}

/// An experiment on a checksum: the hosts compute it in `off`, the adapters in `on`.
struct SwitchedChecksum {
    by_hosts: PerByte,
    by_adapters: PerByte,
}

impl SwitchedChecksum {
    fn of(samples: Samples, experiment: &str) -> Result<Self, CalibrateError> {
        Ok(Self { by_hosts: samples.get((experiment, "off"))?, by_adapters: samples.get((experiment, "on"))? })
    }

    /// Cost of the checksum for the hosts, for each byte.
    fn host_ns(&self) -> f64 {
        self.by_hosts.host_ns - self.by_adapters.host_ns
    }

    /// Cost of the checksum for the adapters, for each byte. `adapter_byte_ns` includes all checksums.
    fn adapter_ns(&self, adapter_byte_ns: f64) -> f64 {
        (self.by_adapters.adapter_ns - self.by_hosts.adapter_ns).clamp(0.0, adapter_byte_ns / CHECKSUMS)
    }
}
