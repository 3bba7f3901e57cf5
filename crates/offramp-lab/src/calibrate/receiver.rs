//! The costs of a receive-only host, learned from samples.

use super::cost::{Cost, named_costs};
use super::experiments::{LEARNED_OF_RECEIVER, RECEIVER_UNCOALESCED};
use super::least_squares::least_squares;
use super::samples::Samples;
use super::setup::MSS;
use super::units::NANOSECONDS_PER_SECOND;

named_costs! {
    /// The costs of a receive-only host, in nanoseconds.
    ReceiverCosts {
        /// For each byte.
        byte_ns: RECEIVER_BYTE = "receiving host, ns/byte",
        /// For each frame or coalesced frame handed up, and for each acknowledgement handed down.
        hand_over_ns: RECEIVER_HAND_OVER = "receiving host, ns/hand-over",
        /// Segments per acknowledgement without coalescing.
        segments_per_ack: RECEIVER_SEGMENTS_PER_ACK = "receiving host, segments/acknowledgement",
        /// The sending host and the adapters on one shared processor, for each byte.
        peer_byte_ns: PEER_BYTE = "its peer and adapters, ns/byte",
        /// The sending host and the adapters, for each frame on the wire.
        peer_frame_ns: PEER_FRAME = "its peer and adapters, ns/frame",
        /// The sending host and the adapters, for each frame or coalesced frame to or from the receiving host.
        peer_hand_over_ns: PEER_HAND_OVER = "its peer and adapters, ns/hand-over",
    }
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
}
