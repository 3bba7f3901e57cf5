//! The receiving side of TCP: reassembly, acknowledgements, and the offered window.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The policy for acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct AckPolicy {
    /// Number of in-order segments that one acknowledgement covers (RFC 1122 4.2.3.2: at most two full segments).
    pub segments_per_ack: u32,
    /// Payload of a full segment, in bytes. A coalesced frame counts as several segments.
    #[serde(skip)]
    pub mss: u64,
    /// Receive buffer, in bytes. The offered window has this length when all data have been read.
    #[serde(rename = "receive_window")]
    pub window: u64,
}

/// The receiver's reaction to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Acknowledge at once.
    Acknowledge,
    /// Acknowledge when the delayed-ACK timer expires, unless another segment is received first.
    Delay,
}

/// The received part of a stream.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    policy: AckPolicy,
    /// Next expected byte.
    next: u64,
    /// Bytes received out of order: start and end of each range.
    early: BTreeMap<u64, u64>,
    /// Number of in-order bytes not yet read by the application.
    unread: u64,
    /// Number of unacknowledged segments.
    unacknowledged: u32,
    /// Right edge of the offered window, as a byte of the stream.
    offered_until: u64,
    /// Number of segments received out of order.
    pub out_of_order: u64,
    /// Number of segments without new bytes.
    pub duplicates: u64,
}

impl Receiver {
    /// Creates a receiver of an empty stream.
    pub fn new(policy: AckPolicy) -> Self {
        Self { policy, offered_until: policy.window, ..Self::default() }
    }

    /// Returns the number of bytes received in order.
    pub fn received(&self) -> u64 {
        self.next
    }

    /// Returns the number of in-order bytes not yet read.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// Processes a received segment.
    pub fn receive(&mut self, start: u64, len: u64) -> Received {
        let end = start + len;
        if end <= self.next {
            self.duplicates += 1;
            return Received::Acknowledge;
        }
        if start > self.next {
            self.out_of_order += 1;
            let known = self.early.entry(start).or_insert(end);
            *known = end.max(*known);
            return Received::Acknowledge;
        }
        let filled_hole = !self.early.is_empty();
        let before = self.next;
        self.next = end;
        self.take_early();
        self.unread += self.next - before;
        self.unacknowledged += u32::try_from(len.div_ceil(self.policy.mss)).unwrap_or(u32::MAX);
        if filled_hole || self.unacknowledged >= self.policy.segments_per_ack {
            Received::Acknowledge
        } else {
            Received::Delay
        }
    }

    fn take_early(&mut self) {
        while let Some((&start, &end)) = self.early.first_key_value()
            && start <= self.next
        {
            self.next = self.next.max(end);
            self.early.remove(&start);
        }
    }

    /// Returns the current acknowledgement: the next expected byte, and the window.
    pub fn ack(&mut self) -> (u64, u64) {
        self.unacknowledged = 0;
        let window = self.policy.window.saturating_sub(self.unread);
        self.offered_until = self.offered_until.max(self.next + window);
        (self.next, self.offered_until - self.next)
    }

    /// Reads `bytes` for the application. Returns whether to send a window update. BSD's `tcp_output` sends an update
    /// once the window has opened by half of the buffer. RFC 1122 4.2.3.3 requires an update at this point, if not
    /// earlier.
    pub fn read(&mut self, bytes: u64) -> bool {
        self.unread -= bytes.min(self.unread);
        let window_end = self.next + self.policy.window.saturating_sub(self.unread);
        window_end.saturating_sub(self.offered_until) * 2 >= self.policy.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver() -> Receiver {
        Receiver::new(AckPolicy { segments_per_ack: 2, mss: 4000, window: 8000 })
    }

    #[test]
    fn every_second_segment_in_order_is_acknowledged_at_once() {
        let mut receiver = receiver();
        assert_eq!(receiver.receive(0, 1000), Received::Delay);
        assert_eq!(receiver.receive(1000, 1000), Received::Acknowledge);
        assert_eq!(receiver.ack(), (2000, 6000));
        assert_eq!(receiver.receive(2000, 1000), Received::Delay);
    }

    #[test]
    fn a_segment_out_of_order_is_answered_at_once_and_kept() {
        let mut receiver = receiver();
        assert_eq!(receiver.receive(1000, 1000), Received::Acknowledge);
        assert_eq!(receiver.ack(), (0, 8000));
        assert_eq!(receiver.receive(0, 1000), Received::Acknowledge);
        assert_eq!((receiver.received(), receiver.unread()), (2000, 2000));
        assert_eq!(receiver.receive(0, 2000), Received::Acknowledge);
        assert_eq!((receiver.out_of_order, receiver.duplicates), (1, 1));
    }

    #[test]
    fn a_window_that_opens_by_half_is_told() {
        let mut receiver = receiver();
        receiver.receive(0, 4000);
        receiver.receive(4000, 4000);
        assert_eq!(receiver.ack(), (8000, 0));
        assert!(!receiver.read(3000));
        assert!(receiver.read(1000));
        assert_eq!(receiver.ack(), (8000, 4000));
    }
}
