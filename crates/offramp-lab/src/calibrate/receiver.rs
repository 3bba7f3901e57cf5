//! The costs of a receive-only host, derived from samples.

use super::cost::{Cost, named_costs};
use super::experiments::{LEARNED_OF_RECEIVER, RECEIVER_UNCOALESCED};
use super::least_squares::least_squares;
use super::samples::Samples;
use super::setup::MSS;
use super::units::NANOSECONDS_PER_SECOND;

named_costs! {
    /// The costs of a receive-only host and of its peer, in nanoseconds.
    ReceiverCosts {
        /// Cost to the receiving host per byte, in nanoseconds.
        byte_ns: RECEIVER_BYTE = "receiving host, ns/byte",
        /// Cost to the receiving host per hand-over, in nanoseconds. A hand-over is a received frame, a coalesced
        /// frame, or a sent acknowledgement.
        hand_over_ns: RECEIVER_HAND_OVER = "receiving host, ns/hand-over",
        /// Number of segments per acknowledgement without coalescing.
        segments_per_ack: RECEIVER_SEGMENTS_PER_ACK = "receiving host, segments/acknowledgement",
        /// Cost to the processor shared by the sending host and the adapters, per byte, in nanoseconds.
        peer_byte_ns: PEER_BYTE = "its peer and adapters, ns/byte",
        /// Cost to the shared processor per frame on the link, in nanoseconds.
        peer_frame_ns: PEER_FRAME = "its peer and adapters, ns/frame",
        /// Cost to the shared processor per hand-over to or from the receiving host, in nanoseconds.
        peer_hand_over_ns: PEER_HAND_OVER = "its peer and adapters, ns/hand-over",
    }
}

impl ReceiverCosts {
    /// Derives the costs. `None` if a variant lacks the receiving host's processor time.
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
