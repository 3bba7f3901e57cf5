//! Rate limits of a port: token buckets of bits and of frames, in each direction.
//!
//! | direction | a frame over the limit |
//! |---|---|
//! | transmit | stays in the host |
//! | receive, cable | stays in the cable's queue |
//! | receive, switch | waits in a queue; lost if it is full ([`Loss::RateLimit`](crate::stats::Loss::RateLimit)) |
//!
//! A frame passes while the bucket holds at least one token. If the frame costs more tokens than the bucket holds,
//! later frames wait until the missing tokens have arrived. So a super-frame of 64 KiB passes a bucket of any depth,
//! and the long-term rate is exact.

use offramp_offload::frame::Frame;
use offramp_offload::layout::{IPV6_FRAGMENT_HEADER_LEN, Network};
use offramp_offload::meta::SegmentationKind;
use offramp_offload::sync::lock;
use std::ops::RangeInclusive;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex};

/// Valid rates of a limit, in bits per second.
pub const BITS_PER_SECOND: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
/// Valid rates of a limit, in frames per second.
pub const FRAMES_PER_SECOND: RangeInclusive<u64> = 1..=1_000_000_000;
/// Valid depths of a bucket, in bytes.
pub const BURST_BYTES: RangeInclusive<u64> = 1..=1_000_000_000;
/// Valid depths of a bucket, frames.
pub const BURST_FRAMES: RangeInclusive<u64> = 1..=1_000_000_000;

/// Number of parts in a token. At a rate of one token per second, one part arrives in each nanosecond.
const PARTS_PER_TOKEN: i128 = 1_000_000_000;
const BITS_PER_BYTE: u64 = 8;
/// Divisor of a second. The tokens of this part of a second, 5 ms, are the default depth of a bucket. The traffic of
/// one second exceeds the rate by at most 0.5 %, and a thread that runs up to 5 ms late still reaches the rate.
const BURST_PART_OF_SECOND: u64 = 200;
/// Divisor of a second. The tokens of this part of a second, 1 ms, are divided among a port's queues, and a queue takes
/// its share at once. So the queues rarely lock the bucket.
const GRANT_PART_OF_SECOND: u64 = 1000;
/// Divisor of a second. A queued frame of a switch port waits at most this part of a second, 50 ms, for tokens.
const QUEUE_PART_OF_SECOND: u64 = 20;
/// Number of tokens that a queue gets from an unlimited rate, of bits or of frames.
const UNLIMITED: i64 = i64::MAX / 2;
/// Length of a full Ethernet frame without FCS, in bytes.
const FULL_FRAME_BYTES: usize = 1514;
/// Bytes charged for a frame of unknown length: the shortest Ethernet frame.
const REFUSED_FRAME_BYTES: usize = 60;

/// A token bucket, initially full.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: u64,
    parts_max: i128,
    /// Number of token parts in the bucket. The number is negative after a frame that cost more than the bucket held.
    parts: i128,
    filled_ns: u64,
}

impl TokenBucket {
    pub(crate) fn new(per_second: u64, burst: u64) -> Self {
        let parts_max = i128::from(burst) * PARTS_PER_TOKEN;
        Self { per_second, parts_max, parts: parts_max, filled_ns: 0 }
    }

    /// Adds the tokens of the elapsed time. A clock that goes back adds no tokens.
    fn fill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        let parts = i128::from(elapsed_ns).saturating_mul(self.per_second.into());
        self.parts = self.parts.saturating_add(parts).min(self.parts_max);
    }

    /// Takes `tokens` tokens if the bucket holds at least this number. Returns whether the tokens were taken.
    pub(crate) fn take(&mut self, tokens: u64, now_ns: u64) -> bool {
        self.fill(now_ns);
        let wanted = i128::from(tokens) * PARTS_PER_TOKEN;
        let has_enough = wanted <= self.parts;
        if has_enough {
            self.parts -= wanted;
        }
        has_enough
    }

    /// Charges `spent` tokens, then takes up to `wanted` of the tokens in the bucket. If the bucket is empty, reserves
    /// the next `wanted` tokens. Returns the number of taken or reserved tokens, and the time from which the caller may
    /// use these tokens. A later caller never gets an earlier time.
    fn reserve(&mut self, spent: u64, wanted: u64, now_ns: u64) -> (u64, u64) {
        self.fill(now_ns);
        self.parts -= i128::from(spent) * PARTS_PER_TOKEN;
        let tokens = match self.parts / PARTS_PER_TOKEN {
            left @ 1.. => wanted.min(u64::try_from(left).unwrap_or(u64::MAX)),
            _ => wanted,
        };
        self.parts -= i128::from(tokens) * PARTS_PER_TOKEN;
        let missing = (-self.parts).max(0) as u128;
        let wait_ns = missing.div_ceil(u128::from(self.per_second.max(1)));
        (tokens, self.filled_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
    }

    /// Returns the number of tokens granted at once to one of `queues` queues.
    fn grant(&self, queues: u64) -> u64 {
        let burst = (self.parts_max / PARTS_PER_TOKEN) as u64;
        (self.per_second / GRANT_PART_OF_SECOND).min(burst).div_euclid(queues).max(1)
    }
}

/// A rate limit in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits of frames per second, including Ethernet headers, excluding FCS; `None` if unlimited. See
    /// [`BITS_PER_SECOND`].
    pub bits_per_second: Option<u64>,
    /// Frames per second; `None` if unlimited. A super-frame counts as the number of its segments. See
    /// [`FRAMES_PER_SECOND`].
    pub frames_per_second: Option<u64>,
    /// Depth of the bucket for bits, in bytes: the bytes allowed at once after an idle time; `None` for 5 ms of the
    /// rate. See [`BURST_BYTES`].
    pub burst_bytes: Option<u64>,
    /// Depth of the bucket for frames: the frames allowed at once after an idle time; `None` for 5 ms of the rate. See
    /// [`BURST_FRAMES`].
    pub burst_frames: Option<u64>,
}

impl RateLimit {
    fn is_none(&self) -> bool {
        self.bits_per_second.is_none() && self.frames_per_second.is_none()
    }

    fn bucket(per_second: Option<u64>, burst: Option<u64>) -> Option<TokenBucket> {
        let per_second = per_second?;
        let burst = burst.unwrap_or(per_second / BURST_PART_OF_SECOND).max(1);
        Some(TokenBucket::new(per_second, burst))
    }
}

/// The rate limits of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLimits {
    /// Limit for frames from the host.
    pub tx: RateLimit,
    /// Limit for frames to the host.
    pub rx: RateLimit,
}

/// The buckets of one direction of a port, shared by the port's queues.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Number of changes of the limit so far. A batch compares this number with its previous value, so a batch without
    /// a change takes no lock.
    changes: AtomicU32,
    queues: u64,
    /// Number of times a queue waited for tokens.
    reached: AtomicU64,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    limit: RateLimit,
    bits: Option<TokenBucket>,
    frames: Option<TokenBucket>,
}

impl Limiter {
    /// Creates a limiter for a port with `queues` queues, initially unlimited.
    pub(crate) fn new(queues: u16) -> Arc<Self> {
        let queues = u64::from(queues.max(1));
        Arc::new(Self { changes: AtomicU32::new(0), queues, reached: AtomicU64::new(0), buckets: Mutex::default() })
    }

    /// Returns the current limit.
    pub(crate) fn limit(&self) -> RateLimit {
        lock(&self.buckets).limit
    }

    /// Returns how many times a queue waited for tokens.
    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(Relaxed)
    }

    /// Changes the limit from the next batch on. If `limit` equals the current limit, the buckets keep their tokens.
    pub(crate) fn set(&self, limit: RateLimit) {
        let mut buckets = lock(&self.buckets);
        if limit != buckets.limit {
            let burst_bits = limit.burst_bytes.map(|bytes| bytes.saturating_mul(BITS_PER_BYTE));
            *buckets = Buckets {
                limit,
                bits: RateLimit::bucket(limit.bits_per_second, burst_bits),
                frames: RateLimit::bucket(limit.frames_per_second, limit.burst_frames),
            };
            self.changes.fetch_add(1, Release);
        }
    }
}

/// The tokens of one queue, refilled from the port's buckets about once per millisecond.
#[derive(Debug)]
pub(crate) struct Meter {
    limiter: Arc<Limiter>,
    /// The value of the limiter's change counter when this queue last read the limit. A different value means that the
    /// limit has changed since.
    changes: u32,
    limit: RateLimit,
    is_limited: bool,
    tokens: Tokens,
    /// Time from which the next tokens may be used, in nanoseconds; `None` while the queue has tokens.
    opens_ns: Option<u64>,
    next: Tokens,
}

/// The numbers of bit tokens and frame tokens of a queue. No frame passes while either number is below 1.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    bits: i64,
    frames: i64,
}

impl Tokens {
    const NONE: Self = Self { bits: 0, frames: 0 };
}

impl Meter {
    pub(crate) fn new(limiter: &Arc<Limiter>) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            changes: 0,
            limit: RateLimit::default(),
            is_limited: false,
            tokens: Tokens::NONE,
            opens_ns: None,
            next: Tokens::NONE,
        }
    }

    /// Applies a changed limit. After this call, [`Meter::opens_ns`] is in the future or `None`.
    #[inline]
    pub(crate) fn take_over(&mut self, now_ns: u64) {
        let changes = self.limiter.changes.load(Acquire);
        if changes != self.changes {
            self.changes = changes;
            self.limit = self.limiter.limit();
            self.is_limited = !self.limit.is_none();
            (self.tokens, self.opens_ns) = (Tokens::NONE, None);
        }
        if self.opens_ns.is_some() {
            self.refill(now_ns);
        }
    }

    /// Returns whether the queue has a limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Returns whether a frame may pass now.
    #[inline]
    pub(crate) fn is_open(&mut self, now_ns: u64) -> bool {
        !self.is_limited || (self.tokens.bits > 0 && self.tokens.frames > 0) || self.refill(now_ns)
    }

    /// Charges the queue for frames that pass. The token counts may become negative.
    #[inline]
    pub(crate) fn spend(&mut self, frames: usize, bytes: usize) {
        if self.is_limited {
            self.tokens.frames -= frames as i64;
            self.tokens.bits -= (bytes as u64 * BITS_PER_BYTE) as i64;
        }
    }

    /// Charges the queue for a frame that becomes `frames` frames of the wire, as [`Meter::spend`] does.
    #[inline]
    pub(crate) fn spend_frame(&mut self, frame: &Frame<'_>, frames: usize) {
        if self.is_limited {
            self.spend(frames, wire_bytes(frame, frames));
        }
    }

    /// Charges the queue for a frame that the host port refused, and whose length is unknown, as [`Meter::spend`] does.
    pub(crate) fn spend_refused(&mut self) {
        self.spend(1, REFUSED_FRAME_BYTES);
    }

    /// Returns the time from which a frame may pass; `None` if a frame may pass now.
    #[inline]
    pub(crate) fn opens_ns(&self) -> Option<u64> {
        self.opens_ns
    }

    /// Returns whether a queue with `frames` frames or super-frames, and `bytes` bytes in total, delays the next frame
    /// for too long.
    pub(crate) fn delays_too_long(&self, frames: usize, bytes: usize) -> bool {
        let frames = frames.max(bytes / FULL_FRAME_BYTES);
        let exceeds = |waiting: u64, per_second: Option<u64>| {
            per_second.is_some_and(|per_second| waiting >= (per_second / QUEUE_PART_OF_SECOND).max(1))
        };
        exceeds(frames as u64, self.limit.frames_per_second)
            || exceeds(bytes as u64 * BITS_PER_BYTE, self.limit.bits_per_second)
    }

    /// Takes the reserved tokens if the queue may use them now. If no tokens are reserved, first reserves tokens from
    /// the port's buckets. Returns whether a frame may pass.
    #[cold]
    fn refill(&mut self, now_ns: u64) -> bool {
        let opens_ns = match self.opens_ns {
            Some(at) => at,
            None => self.reserve(now_ns),
        };
        let is_open = opens_ns <= now_ns;
        if !is_open && self.opens_ns.is_none() {
            self.limiter.reached.fetch_add(1, Relaxed);
        }
        (self.tokens, self.opens_ns) = if is_open { (self.next, None) } else { (Tokens::NONE, Some(opens_ns)) };
        is_open
    }

    /// Reserves the next tokens, and returns the time from which the queue may use the reserved tokens. Reserving the
    /// tokens of one frame at a time would wake the thread too often.
    fn reserve(&mut self, now_ns: u64) -> u64 {
        let reserve = |tokens: i64, bucket: &mut Option<TokenBucket>| match bucket {
            _ if tokens > 0 => (tokens, now_ns),
            None => (UNLIMITED, now_ns),
            Some(bucket) => {
                let wanted = bucket.grant(self.limiter.queues);
                let (tokens, at_ns) = bucket.reserve(tokens.unsigned_abs(), wanted, now_ns);
                (tokens as i64, at_ns)
            }
        };
        let buckets = &mut *lock(&self.limiter.buckets);
        let (bits, bits_ns) = reserve(self.tokens.bits, &mut buckets.bits);
        let (frames, frames_ns) = reserve(self.tokens.frames, &mut buckets.frames);
        self.next = Tokens { bits, frames };
        bits_ns.max(frames_ns)
    }
}

/// Returns the number of wire bytes of a frame that becomes `frames` frames, each with its own headers. Fragments
/// repeat only the IP headers, and IPv6 adds a fragment header to each fragment.
pub(crate) fn wire_bytes(frame: &Frame<'_>, frames: usize) -> usize {
    let len = frame.len();
    let (Ok(layout), 2..) = (frame.layout(), frames) else { return len };
    let segmentation = frame.request().segmentation;
    if segmentation.is_some_and(|wanted| wanted.kind == SegmentationKind::UdpFragments) {
        let added = if layout.network == Network::Ipv6 { IPV6_FRAGMENT_HEADER_LEN } else { 0 };
        len + (frames - 1) * layout.transport_start + frames * added
    } else {
        len + (frames - 1) * layout.payload_start
    }
}

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod tests;
