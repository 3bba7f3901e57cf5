//! Lifetimes by packets and bytes (RFC 4301 4.4.2.1).

/// Limits of a security association. `None` is no limit.
///
/// Bytes are those of the clear IP packets, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// After so many packets a new association should be made.
    pub soft_packets: Option<u64>,
    /// After so many packets the association is used up.
    pub hard_packets: Option<u64>,
    /// After so many bytes a new association should be made.
    pub soft_bytes: Option<u64>,
    /// After so many bytes the association is used up.
    pub hard_bytes: Option<u64>,
}

/// What a packet brought about, beside being sealed or opened. Each is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifetimeEvent {
    /// A soft limit is reached: it is time to make a new association.
    Soft,
    /// A hard limit is reached: this was the last packet.
    Hard,
}

/// What was spent of a lifetime. A limit that there is not is the largest number.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    hard_packets: u64,
    hard_bytes: u64,
    /// [`u64::MAX`] once the soft limits were told of.
    soft_packets: u64,
    soft_bytes: u64,
    packets: u64,
    bytes: u64,
}

impl Spent {
    pub(super) fn new(limits: Lifetime) -> Self {
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        Self {
            hard_packets: limit(limits.hard_packets),
            hard_bytes: limit(limits.hard_bytes),
            soft_packets: limit(limits.soft_packets),
            soft_bytes: limit(limits.soft_bytes),
            packets: 0,
            bytes: 0,
        }
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a hard limit is reached.
    #[inline]
    pub(super) fn is_used_up(&self) -> bool {
        self.packets >= self.hard_packets || self.bytes >= self.hard_bytes
    }

    /// How many more packets of `packet_len` bytes may go.
    pub(super) fn packets_left(&self, packet_len: usize) -> u64 {
        let by_packets = self.hard_packets.saturating_sub(self.packets);
        let by_bytes = self.hard_bytes.saturating_sub(self.bytes).div_ceil((packet_len as u64).max(1));
        if self.hard_bytes == u64::MAX { by_packets } else { by_packets.min(by_bytes) }
    }

    /// Counts a packet.
    #[inline]
    pub(super) fn spend(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(packet_len as u64);
        let is_used_up = self.is_used_up();
        let is_soft = self.packets >= self.soft_packets || self.bytes >= self.soft_bytes;
        if !is_used_up && !is_soft {
            return None;
        }
        (self.soft_packets, self.soft_bytes) = (u64::MAX, u64::MAX);
        Some(if is_used_up { LifetimeEvent::Hard } else { LifetimeEvent::Soft })
    }
}
