//! Lifetimes by packets, bytes and time (RFC 4301 4.4.2.1).

/// Nanoseconds in a second.
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Bytes of the longest IP packet: an IPv6 header and the largest value of its length field (RFC 8200 3).
const PACKET_LEN_MAX: usize = 40 + u16::MAX as usize;

/// Limits of a security association. `None` is no limit.
///
/// Bytes are those of the clear IP packets, headers included. Seconds count from the first call of
/// [`super::SharedOutbound::tick`] or [`super::SharedInbound::tick`]; only these know the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Packets until a new association should be made.
    pub soft_packets: Option<u64>,
    /// Packets until the association is used up.
    pub hard_packets: Option<u64>,
    /// Bytes until a new association should be made.
    pub soft_bytes: Option<u64>,
    /// Bytes until the association is used up.
    pub hard_bytes: Option<u64>,
    /// Seconds until a new association should be made.
    pub soft_seconds: Option<u64>,
    /// Seconds until the association is used up.
    pub hard_seconds: Option<u64>,
}

/// A limit reached by a packet or by time. Each is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifetimeEvent {
    /// A soft limit is reached: it is time to make a new association.
    Soft,
    /// A hard limit is reached: no packet follows.
    Hard,
}

/// Packets and bytes: the spent ones, or a limit. The largest number means "no limit".
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

/// The spent part of a lifetime.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    /// A hard limit is reached.
    is_over: bool,
    used: Amount,
    /// The nearest limit not reported yet.
    next: Amount,
    /// Below this a packet reaches no limit, and no number its end: the check costs two comparisons.
    quiet: Amount,
    hard: Amount,
    /// The soft limit; no limit once it was reported.
    soft: Amount,
    /// The event of a refused packet, because its result reports nothing.
    pending: Option<LifetimeEvent>,
    time: Time,
}

/// Limits of time in nanoseconds: durations until the first tick, moments after it.
#[derive(Clone, Debug)]
struct Time {
    has_begun: bool,
    /// [`u64::MAX`] without a limit, and once it was reported.
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

    /// Checks the limits of time. Each is reported once.
    pub(super) fn tick(&mut self, now_ns: u64) -> Option<LifetimeEvent> {
        let event = self.time.tick(now_ns);
        self.is_over |= event == Some(LifetimeEvent::Hard);
        event
    }

    /// Returns the next time with a possible event of [`Spent::tick`]; now before the first tick.
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

    /// Returns the number of packets of `packet_len` bytes left.
    pub(super) fn packets_left(&self, packet_len: usize) -> u64 {
        let by_packets = self.hard.packets.saturating_sub(self.used.packets);
        let by_bytes = self.hard.bytes.saturating_sub(self.used.bytes).div_ceil((packet_len as u64).max(1));
        if self.hard.bytes == u64::MAX { by_packets } else { by_packets.min(by_bytes) }
    }

    /// Counts a packet and returns true, unless the packet may reach a limit: then the caller must call
    /// [`Spent::spend`].
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

    /// Counts a packet.
    #[inline]
    pub(super) fn spend(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        if self.spend_quietly(packet_len) { None } else { self.spend_run(1, packet_len) }
    }

    /// Counts a genuine packet that is refused, as it has used the key too. [`Spent::take_pending`] reports a limit
    /// reached by it.
    pub(super) fn spend_refused(&mut self) {
        self.pending = self.spend(0).or(self.pending);
    }

    /// Returns the last limit reached by refused packets, once.
    pub(super) fn take_pending(&mut self) -> Option<LifetimeEvent> {
        self.pending.take()
    }

    /// Counts packets of `packet_len` bytes each.
    #[inline(never)]
    pub(super) fn spend_run(&mut self, packets: u64, packet_len: usize) -> Option<LifetimeEvent> {
        self.used.packets = self.used.packets.saturating_add(packets);
        self.used.bytes = self.used.bytes.saturating_add(packets.saturating_mul(packet_len as u64));
        if self.used.reaches(self.next) { self.limit_reached() } else { None }
    }

    /// Returns the event of a limit, or none if it was reached before.
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

/// Returns the amount below which no packet reaches the limit.
fn quiet_below(limit: Amount) -> Amount {
    Amount { packets: limit.packets.saturating_sub(1), bytes: limit.bytes.saturating_sub(PACKET_LEN_MAX as u64) }
}
