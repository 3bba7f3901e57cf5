//! The costs of a receive-only host, learned from samples.

use super::cost::Cost;
use super::experiments::{LEARNED_OF_RECEIVER, RECEIVER_UNCOALESCED};
use super::least_squares::least_squares;
use super::samples::Samples;
use super::setup::MSS;
use super::units::NANOSECONDS_PER_SECOND;

/// The costs of a receive-only host, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceiverCosts {
    /// For each byte.
    pub byte_ns: f64,
    /// For each frame or coalesced frame handed up, and for each acknowledgement handed down.
    pub hand_over_ns: f64,
    /// Segments per acknowledgement without coalescing.
    pub segments_per_ack: f64,
    /// The sending host and the adapters on one shared processor, for each byte.
    pub peer_byte_ns: f64,
    /// The sending host and the adapters, for each frame on the wire.
    pub peer_frame_ns: f64,
    /// The sending host and the adapters, for each frame or coalesced frame to or from the receiving host.
    pub peer_hand_over_ns: f64,
}

impl ReceiverCosts {
    /// Returns `None` if one of the variants lacks the receiving host's time.
    pub(super) fn learn(samples: Samples) -> Option<Self> {
        let learned = LEARNED_OF_RECEIVER.iter().map(|&of| samples.get(of).ok()).collect::<Option<Vec<_>>>()?;
        let rows: Vec<_> = learned.iter().map(|of| ([1.0, of.sends + of.receives, 0.0], of.host_ns)).collect();
        let [byte_ns, hand_over_ns, _] = least_squares(&rows);
        let times = learned.iter().map(|of| {
            let time_ns = of.time_s * NANOSECONDS_PER_SECOND;
            ([1.0, of.wire_frames, of.sends + of.receives], time_ns)
        });
        let [peer_byte_ns, peer_frame_ns, peer_hand_over_ns] = least_squares(&times.collect::<Vec<_>>());
        let segments_per_ack = 1.0 / (samples.get(RECEIVER_UNCOALESCED).ok()?.sends * MSS);
        Some(Self { byte_ns, hand_over_ns, segments_per_ack, peer_byte_ns, peer_frame_ns, peer_hand_over_ns })
    }

    /// Returns all costs, in reading order.
    pub(super) fn values(&self) -> [(Cost, f64); 6] {
        [
            (Cost::ReceiverByte, self.byte_ns),
            (Cost::ReceiverHandOver, self.hand_over_ns),
            (Cost::ReceiverSegmentsPerAck, self.segments_per_ack),
            (Cost::PeerByte, self.peer_byte_ns),
            (Cost::PeerFrame, self.peer_frame_ns),
            (Cost::PeerHandOver, self.peer_hand_over_ns),
        ]
    }
}
