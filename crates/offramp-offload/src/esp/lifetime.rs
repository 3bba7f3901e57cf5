//! Lifetimes by packets, bytes and time (RFC 4301 4.4.2.1).

/// Nanoseconds in a second.
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Bytes of the longest IP packet: an IPv6 header and what its length field can say (RFC 8200 3).
const PACKET_LEN_MAX: usize = 40 + u16::MAX as usize;

/// Limits of a security association. `None` is no limit.
///
/// Bytes are those of the clear IP packets, headers included. Seconds count from the first time that an
/// association is told, and only where it is told: by [`super::SharedOutbound::tick`] and
/// [`super::SharedInbound::tick`].
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
    /// After so many seconds a new association should be made.
    pub soft_seconds: Option<u64>,
    /// After so many seconds the association is used up.
    pub hard_seconds: Option<u64>,
}

/// What a packet brought about, beside being sealed or opened. Each is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifetimeEvent {
    /// A soft limit is reached: it is time to make a new association.
    Soft,
    /// A hard limit is reached: there was the last packet.
    Hard,
}

/// What was spent of a lifetime. A limit that there is not is the largest number.
#[derive(Clone, Debug)]
pub(super) struct Spent {
    /// A hard limit is reached.
    is_over: bool,
    /// The nearest limits that were not told of yet.
    next_packets: u64,
    next_bytes: u64,
    /// Below these a packet reaches no limit, and no number its end: it costs two comparisons.
    quiet_packets: u64,
    quiet_bytes: u64,
    hard_packets: u64,
    hard_bytes: u64,
    /// [`u64::MAX`] once the soft limits were told of.
    soft_packets: u64,
    soft_bytes: u64,
    packets: u64,
    bytes: u64,
    /// What a packet brought about that was refused, which therefore tells of nothing.
    untold: Option<LifetimeEvent>,
    time: Time,
}

/// Limits of time, in nanoseconds: from the beginning on while that is not known, then moments.
#[derive(Clone, Debug)]
struct Time {
    has_begun: bool,
    /// [`u64::MAX`] where there is none, and once it was told of.
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
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let [hard_packets, hard_bytes] = [limits.hard_packets, limits.hard_bytes].map(limit);
        let [soft_packets, soft_bytes] = [limits.soft_packets, limits.soft_bytes].map(limit);
        let mut spent = Self {
            is_over: false,
            quiet_packets: 0,
            quiet_bytes: 0,
            next_packets: hard_packets.min(soft_packets),
            next_bytes: hard_bytes.min(soft_bytes),
            hard_packets,
            hard_bytes,
            soft_packets,
            soft_bytes,
            packets: 0,
            bytes: 0,
            untold: None,
            time: Time::new(&limits),
        };
        spent.expect_quiet();
        spent
    }

    /// Works out up to where nothing happens.
    fn expect_quiet(&mut self) {
        self.quiet_packets = self.next_packets.saturating_sub(1);
        self.quiet_bytes = self.next_bytes.saturating_sub(PACKET_LEN_MAX as u64);
    }

    /// Says what time it is. A limit of time that is reached is told once.
    pub(super) fn tick(&mut self, now_ns: u64) -> Option<LifetimeEvent> {
        let event = self.time.tick(now_ns);
        self.is_over |= event == Some(LifetimeEvent::Hard);
        event
    }

    /// When [`Spent::tick`] has something to tell next; now before the first one.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let Time { has_begun, soft_ns, hard_ns, .. } = self.time;
        let next = soft_ns.min(hard_ns);
        (next != u64::MAX).then_some(if has_begun { next } else { 0 })
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
        self.is_over
    }

    /// As if a hard limit were reached.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// How many more packets of `packet_len` bytes may go.
    pub(super) fn packets_left(&self, packet_len: usize) -> u64 {
        let by_packets = self.hard_packets.saturating_sub(self.packets);
        let by_bytes = self.hard_bytes.saturating_sub(self.bytes).div_ceil((packet_len as u64).max(1));
        if self.hard_bytes == u64::MAX { by_packets } else { by_packets.min(by_bytes) }
    }

    /// Counts a packet, unless it may reach a limit: then it is left to [`Spent::spend`].
    #[inline]
    pub(super) fn spend_quietly(&mut self, packet_len: usize) -> bool {
        debug_assert!(packet_len <= PACKET_LEN_MAX);
        let is_quiet = self.packets < self.quiet_packets && self.bytes < self.quiet_bytes;
        if is_quiet {
            self.packets += 1;
            self.bytes += packet_len as u64;
        }
        is_quiet
    }

    /// Counts a packet.
    #[inline]
    pub(super) fn spend(&mut self, packet_len: usize) -> Option<LifetimeEvent> {
        if self.spend_quietly(packet_len) { None } else { self.spend_run(1, packet_len) }
    }

    /// Counts a genuine packet that is thrown away: it has used the key as well. A limit that it reaches is kept for
    /// [`Spent::take_untold`].
    pub(super) fn spend_refused(&mut self) {
        self.untold = self.spend(0).or(self.untold);
    }

    /// The last limit that packets reached which were thrown away, once.
    pub(super) fn take_untold(&mut self) -> Option<LifetimeEvent> {
        self.untold.take()
    }

    /// Counts packets of `packet_len` bytes each.
    #[inline(never)]
    pub(super) fn spend_run(&mut self, packets: u64, packet_len: usize) -> Option<LifetimeEvent> {
        self.packets = self.packets.saturating_add(packets);
        self.bytes = self.bytes.saturating_add(packets.saturating_mul(packet_len as u64));
        if self.packets < self.next_packets && self.bytes < self.next_bytes {
            return None;
        }
        self.limit_reached()
    }

    /// A limit is reached, or was before.
    #[cold]
    fn limit_reached(&mut self) -> Option<LifetimeEvent> {
        let is_hard = self.packets >= self.hard_packets || self.bytes >= self.hard_bytes;
        let is_soft = self.packets >= self.soft_packets || self.bytes >= self.soft_bytes;
        self.is_over |= is_hard;
        (self.soft_packets, self.soft_bytes) = (u64::MAX, u64::MAX);
        (self.next_packets, self.next_bytes) = (self.hard_packets, self.hard_bytes);
        self.expect_quiet();
        match (is_hard, is_soft) {
            (true, _) => Some(LifetimeEvent::Hard),
            (false, true) => Some(LifetimeEvent::Soft),
            (false, false) => None,
        }
    }
}
