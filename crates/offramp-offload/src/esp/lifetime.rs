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

/// What was spent of a lifetime.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    limits: Lifetime,
    packets: u64,
    bytes: u64,
    soft_told: bool,
}

impl Spent {
    pub(super) fn new(limits: Lifetime) -> Self {
        Self { limits, packets: 0, bytes: 0, soft_told: false }
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
        self.reached(self.limits.hard_packets, self.limits.hard_bytes)
    }

    #[inline]
    fn reached(&self, packets: Option<u64>, bytes: Option<u64>) -> bool {
        packets.is_some_and(|limit| self.packets >= limit) || bytes.is_some_and(|limit| self.bytes >= limit)
    }

    /// How many more packets of `packet_len` bytes may go.
    pub(super) fn packets_left(&self, packet_len: usize) -> u64 {
        let by_packets = self.limits.hard_packets.map_or(u64::MAX, |limit| limit.saturating_sub(self.packets));
        let by_bytes = self
            .limits
            .hard_bytes
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.bytes).div_ceil((packet_len as u64).max(1)));
        by_packets.min(by_bytes)
    }

    /// Counts a packet.
    #[inline]
    pub(super) fn spend(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(packet_len as u64);
        if self.is_used_up() {
            self.soft_told = true;
            return Some(LifetimeEvent::Hard);
        }
        if !self.soft_told && self.reached(self.limits.soft_packets, self.limits.soft_bytes) {
            self.soft_told = true;
            return Some(LifetimeEvent::Soft);
        }
        None
    }
}
