//! The costs of a machine's work, derived from samples.

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

/// Maximum length of a super-frame in the model's profiles, in bytes.
pub(super) const CHUNK_LEN_MAX: f64 = 65_400.0;
/// One-way delay of the link, as assumed in the profile, in nanoseconds.
pub(super) const LINK_DELAY_NS: f64 = 10_000.0;
/// Settings of the experiment that measures round trips.
const GIGABIT: Setup = Setup { is_gigabit: true, ..Setup::ALL_ON };
/// Number of checksums computed by the adapters per byte: one on sending, and one on receiving.
const CHECKSUMS: f64 = 2.0;

named_costs! {
    /// The costs of this machine's work, in nanoseconds, and the lengths of sends and receives, in bytes.
    Costs {
        /// Cost to the hosts per byte, at both ends together, in nanoseconds.
        byte_ns: BYTE = "host, ns/byte, both ends",
        /// Cost to the hosts per send, in nanoseconds. A send is a frame, a super-frame or an acknowledgement.
        send_ns: SEND = "host, ns/send",
        /// Cost to the hosts per receive, in nanoseconds. A receive is a frame or a coalesced frame.
        receive_ns: RECEIVE = "host, ns/receive",
        /// Cost of the checksum to the hosts per sent byte, if the hosts compute the checksum, in nanoseconds.
        checksum_sent_ns: CHECKSUM_SENT = "host, ns/byte checksum, sent",
        /// Cost of the checksum to the hosts per received byte, if the hosts verify the checksum, in nanoseconds. The
        /// cost is negative if hosts with verification took less time in the measurement.
        checksum_received_ns: CHECKSUM_RECEIVED = "host, ns/byte checksum, received",
        /// Additional cost to the hosts per interrupt that wakes a sleeping host, in nanoseconds.
        wake_ns: WAKE = "host, ns/interrupt when idle",
        /// Additional cost to the hosts per send that wakes the adapters' thread, in nanoseconds.
        doorbell_ns: DOORBELL = "host, ns/send when adapters sleep",
        /// Cost to the adapters per byte, including checksums, in nanoseconds.
        adapter_byte_ns: ADAPTER_BYTE = "adapters, ns/byte",
        /// Cost to the adapters per frame on the link, in nanoseconds.
        adapter_frame_ns: ADAPTER_FRAME = "adapters, ns/frame on the wire",
        /// Cost to the adapters per hand-over, in nanoseconds. A hand-over is a frame, a super-frame or a coalesced
        /// frame that passes from a host to an adapter or back.
        adapter_hand_over_ns: ADAPTER_HAND_OVER = "adapters, ns/hand-over",
        /// Cost of the checksum to the adapters per sent byte, if the adapters compute the checksum, in nanoseconds.
        adapter_checksum_sent_ns: ADAPTER_CHECKSUM_SENT = "adapters, ns/byte checksum, sent",
        /// Cost of the checksum to the adapters per received byte, if the adapters verify the checksum, in nanoseconds.
        adapter_checksum_received_ns: ADAPTER_CHECKSUM_RECEIVED = "adapters, ns/byte checksum, received",
        /// Mean length of a send with LSO, bytes. Acknowledgements count as sends.
        chunk_len: CHUNK_LEN = "bytes/send with LSO",
        /// Mean length of a receive with receive coalescing, in bytes. Acknowledgements count as receives.
        coalesced_len: COALESCED_LEN = "bytes/receive with RSC",
        /// Mean length of a send if the link is the limit, in bytes. Acknowledgements count as sends.
        paced_sent_len: PACED_SENT_LEN = "bytes/send with LSO, link the limit",
        /// Mean length of a receive if the link is the limit, in bytes. Acknowledgements count as receives.
        paced_coalesced_len: PACED_COALESCED_LEN = "bytes/receive with RSC, link the limit",
        /// Frames on the link per segment: the frame of the segment, and the segment's share of an acknowledgement.
        frames_per_segment: FRAMES_PER_SEGMENT = "frames/segment",
        ;
        /// Costs of a receive-only host. `None` if the system cannot move the receive work of a host to the host's
        /// processor, or has no second processor.
        receiver: ReceiverCosts,
        /// Times that a request waits, in addition to the time of the work for the request; `None` if not measured.
        waits: Waits,
    }
}

/// Number of hand-overs between hosts and adapters per segment, and the length of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HandOvers {
    /// Hand-overs to a host, including acknowledgements.
    pub(super) up: f64,
    /// Hand-overs from a host: with LSO, only of data; without LSO, of data and acknowledgements.
    pub(super) down: f64,
    /// Hand-overs of acknowledgements from a host that are not included in `down`.
    pub(super) acks: f64,
    /// Length of a super-frame, in bytes.
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

    /// Returns the hand-overs per segment. On a saturated link, sends and receives have other lengths, so these lengths
    /// are measured separately. There, all sends in excess of full super-frames are acknowledgements. Their number does
    /// not depend on LSO.
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

    /// Returns the time that the model charges for a small request and its response, in nanoseconds. The time consists
    /// of the work and the delay of the link.
    pub(super) fn round_trip_ns(&self, setup: &Setup) -> f64 {
        let received_ns = self.receiver.map_or(0.0, |of| of.hand_over_ns);
        2.0 * LINK_DELAY_NS + received_ns + self.send_ns * self.frames_per_segment + self.engine_ns(setup)
    }

    /// Returns the processor time per segment of the adapters and of the host that sends to `receiver`, in nanoseconds.
    pub(super) fn peer_ns(&self, receiver: &ReceiverCosts, setup: &Setup) -> f64 {
        let spared = if setup.host_checksums_received { self.adapter_checksum_received_ns } else { 0.0 };
        // Hand-overs between the receiving host and the adapters, in both directions.
        let hand_overs =
            if setup.rsc { 2.0 * setup.mss / self.coalesced_len } else { 1.0 + 1.0 / receiver.segments_per_ack };
        (receiver.peer_byte_ns - spared) * setup.mss
            + receiver.peer_frame_ns * self.frames_per_segment
            + receiver.peer_hand_over_ns * hand_overs
    }

    /// Returns the processor time of the adapters per segment, in nanoseconds.
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

/// The two variants of a checksum experiment: the hosts compute the checksum in `off`, and the adapters in `on`.
struct SwitchedChecksum {
    by_hosts: PerByte,
    by_adapters: PerByte,
}

impl SwitchedChecksum {
    fn of(samples: Samples, experiment: &str) -> Result<Self, CalibrateError> {
        Ok(Self { by_hosts: samples.get((experiment, "off"))?, by_adapters: samples.get((experiment, "on"))? })
    }

    /// Returns the cost of the checksum to the hosts, in nanoseconds per byte.
    fn host_ns(&self) -> f64 {
        self.by_hosts.host_ns - self.by_adapters.host_ns
    }

    /// Returns the cost of the checksum to the adapters, in nanoseconds per byte. The result is at most half of
    /// `adapter_byte_ns`, which includes both checksums.
    fn adapter_ns(&self, adapter_byte_ns: f64) -> f64 {
        (self.by_adapters.adapter_ns - self.by_hosts.adapter_ns).clamp(0.0, adapter_byte_ns / CHECKSUMS)
    }
}
