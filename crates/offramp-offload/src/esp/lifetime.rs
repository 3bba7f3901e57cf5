//! Lifetimes limited by packets, bytes and time (RFC 4301 4.4.2.1).

/// Number of nanoseconds in a second.
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Length of the longest IP packet in bytes: an IPv6 header and the maximum of its length field (RFC 8200 3).
const PACKET_LEN_MAX: usize = 40 + u16::MAX as usize;

/// The limits of a security association. `None` means "no limit".
///
/// Bytes count the clear IP packets, headers included. Seconds count from the first call of
/// [`super::SharedOutbound::tick`] or [`super::SharedInbound::tick`]. Only these two functions receive the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Number of packets after which a new association should replace this association.
    pub soft_packets: Option<u64>,
    /// Number of packets after which the association expires.
    pub hard_packets: Option<u64>,
    /// Number of bytes after which a new association should replace this association.
    pub soft_bytes: Option<u64>,
    /// Number of bytes after which the association expires.
    pub hard_bytes: Option<u64>,
    /// Seconds after which a new association should replace this association.
    pub soft_seconds: Option<u64>,
    /// Seconds after which the association expires.
    pub hard_seconds: Option<u64>,
}

/// A lifetime limit that was reached by a packet or by elapsed time. Each limit is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifetimeEvent {
    /// A soft limit is reached: a new association should replace this association.
    Soft,
    /// A hard limit is reached. The association accepts no further packet.
    Hard,
}

/// A number of packets and bytes: the used amount, or a limit. The maximum value means "no limit".
#[derive(Clone, Copy, Debug)]
struct Amount {
    packets: u64,
    bytes: u64,
}

impl Amount {
    fn limit(packets: Option<u64>, bytes: Option<u64>) -> Self {
        Self { packets: packets.unwrap_or(u64::MAX), bytes: bytes.unwrap_or(u64::MAX) }
    }

    fn nearest(self, other: Self) -> Self {
        Self { packets: self.packets.min(other.packets), bytes: self.bytes.min(other.bytes) }
    }

    #[inline]
    fn reaches(self, limit: Self) -> bool {
        self.packets >= limit.packets || self.bytes >= limit.bytes
    }
}

/// The used part of an association's lifetime.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    /// True once a hard limit is reached.
    is_over: bool,
    used: Amount,
    /// Nearest packet limit and nearest byte limit that were not reported yet.
    next: Amount,
    /// Amount below which no packet reaches a limit and no counter overflows. The check against this amount costs two
    /// comparisons.
    quiet: Amount,
    hard: Amount,
    /// Soft limit, or "no limit" after the soft limit was reported.
    soft: Amount,
    /// Event of a limit that a refused packet reached, until [`Spent::take_pending`] returns the event. The error for a
    /// refused packet has no field for an event.
    pending: Option<LifetimeEvent>,
    time: Time,
}

/// The time limits in nanoseconds. Before the first tick, the values are durations. After the first tick, the values
/// are points in time.
#[derive(Clone, Debug)]
struct Time {
    has_begun: bool,
    /// Soft limit, or [`u64::MAX`] if there is no soft limit or the soft limit was already reported.
    soft_ns: u64,
    hard_ns: u64,
}

impl Time {
    fn new(limits: &Lifetime) -> Self {
        let limit = |seconds: Option<u64>| seconds.map_or(u64::MAX, |seconds| seconds.saturating_mul(NS_PER_SECOND));
        Self { has_begun: false, soft_ns: limit(limits.soft_seconds), hard_ns: limit(limits.hard_seconds) }
    }

    fn tick(&mut self, now_ns: u64) -> Option<LifetimeEvent> {
        if !self.has_begun {
            self.has_begun = true;
            self.soft_ns = self.soft_ns.saturating_add(now_ns);
            self.hard_ns = self.hard_ns.saturating_add(now_ns);
        }
        if now_ns >= self.hard_ns && self.hard_ns != u64::MAX {
            (self.soft_ns, self.hard_ns) = (u64::MAX, u64::MAX);
            return Some(LifetimeEvent::Hard);
        }
        if now_ns >= self.soft_ns && self.soft_ns != u64::MAX {
            self.soft_ns = u64::MAX;
            return Some(LifetimeEvent::Soft);
        }
        None
    }
}

impl Spent {
    pub(super) fn new(limits: Lifetime) -> Self {
        let hard = Amount::limit(limits.hard_packets, limits.hard_bytes);
        let soft = Amount::limit(limits.soft_packets, limits.soft_bytes);
        let used = Amount { packets: 0, bytes: 0 };
        let (next, time) = (hard.nearest(soft), Time::new(&limits));
        Self { is_over: false, used, next, quiet: quiet_below(next), hard, soft, pending: None, time }
    }

    /// Checks the time limits. Reports each limit once.
    pub(super) fn tick(&mut self, now_ns: u64) -> Option<LifetimeEvent> {
        let event = self.time.tick(now_ns);
        self.is_over |= event == Some(LifetimeEvent::Hard);
        event
    }

    /// Returns the next time at which [`Spent::tick`] can report an event. Before the first tick, returns 0, because a
    /// tick is due at once.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let Time { has_begun, soft_ns, hard_ns, .. } = self.time;
        let next = soft_ns.min(hard_ns);
        (next != u64::MAX).then_some(if has_begun { next } else { 0 })
    }

    pub(super) fn packets(&self) -> u64 {
        self.used.packets
    }

    pub(super) fn bytes(&self) -> u64 {
        self.used.bytes
    }

    /// Returns true once a hard limit is reached.
    #[inline]
    pub(super) fn is_used_up(&self) -> bool {
        self.is_over
    }

    /// Ends the lifetime, as if a hard limit were reached.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Returns how many more packets of `packet_len` bytes the hard limits allow.
    pub(super) fn packets_left(&self, packet_len: usize) -> u64 {
        let by_packets = self.hard.packets.saturating_sub(self.used.packets);
        let by_bytes = self.hard.bytes.saturating_sub(self.used.bytes).div_ceil((packet_len as u64).max(1));
        if self.hard.bytes == u64::MAX { by_packets } else { by_packets.min(by_bytes) }
    }

    /// Counts a packet and returns true if the packet cannot reach a limit. Otherwise counts nothing and returns false,
    /// and the caller must call [`Spent::spend_run`] or [`Spent::spend`].
    #[inline]
    pub(super) fn spend_quietly(&mut self, packet_len: usize) -> bool {
        debug_assert!(packet_len <= PACKET_LEN_MAX);
        let is_quiet = !self.used.reaches(self.quiet);
        if is_quiet {
            self.used.packets += 1;
            self.used.bytes += packet_len as u64;
        }
        is_quiet
    }

    /// Counts a packet, and returns the event of a limit reached by the packet.
    #[inline]
    pub(super) fn spend(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        if self.spend_quietly(packet_len) { None } else { self.spend_run(1, packet_len) }
    }

    /// Counts a genuine but refused packet, because this packet has used the key. [`Spent::take_pending`] reports a
    /// limit that the refused packet reached.
    pub(super) fn spend_refused(&mut self) {
        self.pending = self.spend(0).or(self.pending);
    }

    /// Returns the last limit reached by a refused packet. Reports each event once.
    pub(super) fn take_pending(&mut self) -> Option<LifetimeEvent> {
        self.pending.take()
    }

    /// Counts `packets` packets of `packet_len` bytes each.
    #[inline(never)]
    pub(super) fn spend_run(&mut self, packets: u64, packet_len: usize) -> Option<LifetimeEvent> {
        self.used.packets = self.used.packets.saturating_add(packets);
        self.used.bytes = self.used.bytes.saturating_add(packets.saturating_mul(packet_len as u64));
        if self.used.reaches(self.next) { self.limit_reached() } else { None }
    }

    /// Returns the event for a reached limit, or `None` if the event was already reported.
    #[cold]
    fn limit_reached(&mut self) -> Option<LifetimeEvent> {
        let (is_hard, is_soft) = (self.used.reaches(self.hard), self.used.reaches(self.soft));
        self.is_over |= is_hard;
        self.soft = Amount::limit(None, None);
        self.next = self.hard;
        self.quiet = quiet_below(self.next);
        match (is_hard, is_soft) {
            (true, _) => Some(LifetimeEvent::Hard),
            (false, true) => Some(LifetimeEvent::Soft),
            (false, false) => None,
        }
    }
}

/// Returns the amount below which a single packet cannot reach the limit.
fn quiet_below(limit: Amount) -> Amount {
    Amount { packets: limit.packets.saturating_sub(1), bytes: limit.bytes.saturating_sub(PACKET_LEN_MAX as u64) }
}
