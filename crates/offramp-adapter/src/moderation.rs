//! Interrupt moderation: decides when waiting frames interrupt the host.
//!
//! A plain adapter interrupts for every received frame and every transmit completion (claim M11). Fewer interrupts cost
//! less processor time (claim M9) but delay frames, so a moderation tuned only for throughput slows down responses
//! (claim M10). As long as another resource is the bottleneck, a forced gap between interrupts changes the processor
//! load, but not the transfer rate (claims R3, R4, R6). The claims are in `crates/offramp-model/cases`, and
//! requirements such as V80 are in `docs/vhost-user.md`. A [`Moderator`] serves one queue, of received frames or of
//! transmit completions, under one of the [`Policy`] rules.
//!
//! # Use
//! Record each frame with [`Moderator::arrived`]. After a batch, call [`Moderator::is_due`]. If the interrupt is due,
//! interrupt the host and record the interrupt with [`Moderator::fired`]. Before sleeping, call
//! [`Moderator::next_due_ns`] to get the time of the interrupt if no further frame arrives.
//!
//! ```
//! use offramp_adapter::moderation::{Coalescing, ModerationConfig, Moderator, Policy};
//!
//! let policy = Policy::Coalescing(Coalescing { max_usecs: 10, max_packets: 2 });
//! let mut moderator = Moderator::new(ModerationConfig { policy, ..ModerationConfig::default() });
//! moderator.arrived(1_000, 60);
//! assert!(!moderator.is_due(1_000));
//! assert_eq!(moderator.next_due_ns(), Some(11_000));
//! moderator.arrived(4_000, 60);
//! assert!(moderator.is_due(4_000));
//! assert_eq!(moderator.fired(4_000), 2);
//! assert_eq!(moderator.next_due_ns(), None);
//! ```
//!
//! # How
//! Every policy is a set of limits on the waiting frames. A limit can be on the time since the first frame, the last
//! frame or the last interrupt. Other limits are on the number of frames, and on the area: the sum of the frames'
//! waiting times. A policy with feedback adapts its limits at an interrupt, and not at each frame. So a frame costs a
//! few additions and no allocation under every policy.
//!
//! # The bound
//! Let an interrupt cost K, and let each frame cost its waiting time. The interrupts of the area trigger
//! ([`Policy::Area`]) divide time into intervals. In each interval, the trigger pays at most K for waiting and K for
//! the interrupt.
//!
//! A schedule without an interrupt in the interval lets the same frames wait for at least K, or violates the deadline
//! or the ring's limit. So any valid schedule pays at least K per interval. The trigger pays at most twice as much as
//! any valid schedule, plus one K for a last interval without an interrupt.
//!
//! With [`Policy::QuietOrArea`], a frame after an idle gap of K raises an interrupt at once, at the cost K. This K is
//! charged to the interval after the interrupt, in which the best schedule also pays at least K. So this policy pays at
//! most three times as much as the best schedule, plus one K. Both bounds assume a constant K, and a host that
//! processes frames in no time. `tests/moderation_bounds.rs` compares the rules with a dynamic program over the whole
//! trace. `cargo bench -p offramp-adapter --bench moderation -- --table` prints the distance of each policy from the
//! optimum.
//!
//! # Time
//! Time is in nanoseconds since any fixed moment, the same for all calls. If the clock goes back to before the arrival
//! of the first waiting frame, the waiting frames are due at once, because their waiting time is unknown.

mod config;
mod cost;
mod cost_factor;
mod dim;
mod e1000;

pub use config::{
    AreaConfig, COST_FACTOR_PERCENT_MAX, COST_GIVEN_NS_MAX, Coalescing, DEADLINE_NS_DEFAULT, DEADLINE_NS_MAX,
    INTERRUPTS_PER_SECOND_MAX, ModerationConfig, ModerationConfigError, Policy,
};
pub use cost::{
    COST_NS_MAX, COST_NS_MIN, COST_NS_START, CostEstimator, InterruptCost, LOAD_INTERRUPTS_PER_SECOND_DEFAULT,
};
pub use dim::DimProfiles;
pub use e1000::E1000Mode;

use crate::stats::Direction;
use cost_factor::CostFactor;
use dim::Dim;
use e1000::{Balance, Class, Classes};

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

/// A time, or a number of frames, that is never reached.
const NEVER: u64 = u64::MAX;

/// The waiting frames: reported by no interrupt, and not yet seen by a polling host.
///
/// The arithmetic wraps, and is exact while the waiting times add up to less than 584 years. If the clock goes back to
/// before the first frame, the time since that frame exceeds any maximum wait.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    frames: u64,
    /// Arrival time of the first frame, in nanoseconds.
    first_ns: u64,
    /// Arrival time of the last frame, in nanoseconds.
    last_ns: u64,
    /// Sum of all frames' arrival delays relative to the first frame. The sum is negative, in two's complement, if the
    /// clock went back between frames.
    later_ns: u64,
    /// Maximum wait of the first frame, in nanoseconds.
    wait_ns: u64,
}

impl Waiting {
    #[inline]
    fn since_first_ns(&self, now_ns: u64) -> u64 {
        now_ns.wrapping_sub(self.first_ns)
    }

    /// Starts the count with `frames` frames that arrive at `now_ns`, none of which may wait longer than `wait_ns`.
    #[inline]
    fn begin(now_ns: u64, frames: u64, wait_ns: u64) -> Self {
        Self { frames, first_ns: now_ns, last_ns: now_ns, later_ns: 0, wait_ns }
    }

    #[inline]
    fn add(&mut self, now_ns: u64, frames: u64) {
        self.later_ns = self.later_ns.wrapping_add(frames.wrapping_mul(self.since_first_ns(now_ns)));
        self.frames = self.frames.wrapping_add(frames);
        self.last_ns = now_ns;
    }

    /// Returns the sum of the frames' waiting times.
    #[inline]
    fn area_ns(&self, now_ns: u64) -> u64 {
        self.frames.wrapping_mul(self.since_first_ns(now_ns)).wrapping_sub(self.later_ns)
    }

    /// Returns the time from the first frame until the area reaches `limit_ns` if no further frame arrives. At least
    /// one frame must wait.
    fn wait_for_area_ns(&self, limit_ns: u64) -> u64 {
        limit_ns.saturating_add_signed(self.later_ns.cast_signed()).div_ceil(self.frames)
    }
}

/// Maximum number of saved interrupts. While the interrupt rate is below its target, unused interrupts are saved, and
/// idle gaps can raise them later in addition to the target rate.
const SAVED_INTERRUPTS_MAX: u32 = 6;

/// The idle gap that ends a wait.
#[derive(Clone, Copy, Debug)]
struct IdleGap {
    /// Time without a frame after which the wait ends; [`NEVER`] if idle gaps end no wait.
    wait_ns: u64,
    /// Minimum mean time between two interrupts raised by idle gaps; [`NEVER`] if idle gaps raise no interrupts.
    interrupt_gap_ns: u64,
}

impl IdleGap {
    const NEVER: Self = Self { wait_ns: NEVER, interrupt_gap_ns: NEVER };

    /// Returns the earliest time, after an interrupt, at which an idle gap may again end a wait. Each interrupt moves
    /// this time forward by one `interrupt_gap_ns`. The time lags behind `now_ns` by at most [`SAVED_INTERRUPTS_MAX`]
    /// gaps, so at most this number of unused interrupts is saved.
    fn next_from_ns(self, from_ns: u64, now_ns: u64) -> u64 {
        let saved_ns = u64::from(SAVED_INTERRUPTS_MAX).saturating_mul(self.interrupt_gap_ns);
        from_ns.max(now_ns.saturating_sub(saved_ns)).min(now_ns).saturating_add(self.interrupt_gap_ns)
    }
}

/// The limits that a policy sets for a wait. The wait ends when any of the limits is reached.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Time after an interrupt until the host counts as rested, in nanoseconds.
    rested_ns: u64,
    /// Maximum wait of a first frame that arrives at a rested host, in nanoseconds.
    wait_ns: u64,
    /// Maximum wait of a first frame that arrives before the host is rested, in nanoseconds; `None` if the frame waits
    /// until the host is rested.
    early_wait_ns: Option<u64>,
    /// Maximum sum of all frames' waiting times, in nanoseconds.
    area_ns: u64,
    /// Maximum number of waiting frames.
    frames: u64,
    idle_gap: IdleGap,
}

impl Limits {
    /// No wait: every frame interrupts at once.
    const NONE: Self =
        Self { rested_ns: 0, wait_ns: 0, early_wait_ns: None, area_ns: NEVER, frames: NEVER, idle_gap: IdleGap::NEVER };

    fn gap(gap_ns: u64) -> Self {
        Self { rested_ns: gap_ns, ..Self::NONE }
    }

    /// Returns the limits of virtio's notification condition (requirement V80).
    fn coalescing(coalescing: &Coalescing) -> Self {
        Self { wait_ns: coalescing.wait_max_ns(), frames: u64::from(coalescing.max_packets), ..Self::NONE }
    }

    fn area(config: &AreaConfig, factor: Option<&CostFactor>, cost: &CostEstimator) -> Self {
        let cost_ns = config.cost.ns(cost);
        let limits = Self { wait_ns: config.deadline_ns, area_ns: cost_ns, ..Self::NONE };
        factor.map_or(limits, |factor| Self {
            wait_ns: config.deadline_ns.min(factor.gap_ns),
            area_ns: factor.of(cost_ns),
            idle_gap: factor.idle_gap(),
            ..limits
        })
    }

    /// Returns [`Limits::area`], except that a first frame does not wait if the last interrupt is at least `area_ns`
    /// ago.
    fn quiet_or_area(config: &AreaConfig, factor: Option<&CostFactor>, cost: &CostEstimator) -> Self {
        let area = Self::area(config, factor, cost);
        Self { rested_ns: area.area_ns, wait_ns: 0, early_wait_ns: Some(area.wait_ns), ..area }
    }

    /// Returns the maximum wait of a first frame that arrives after the host has rested for `rest_ns`.
    #[inline]
    fn wait_ns(&self, rest_ns: u64) -> u64 {
        match self.rested_ns.checked_sub(rest_ns) {
            None | Some(0) => self.wait_ns,
            Some(left_ns) => self.early_wait_ns.unwrap_or(left_ns),
        }
    }

    /// Returns the reason why the wait has ended.
    fn end(&self, waiting: &Waiting, now_ns: u64) -> End {
        if waiting.frames >= self.frames {
            End::Room
        } else if waiting.area_ns(now_ns) >= self.area_ns {
            End::Area
        } else if waiting.since_first_ns(now_ns) >= waiting.wait_ns {
            End::Time
        } else {
            End::Idle
        }
    }
}

/// The reason why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The first frame reached its maximum wait, or no frame waited.
    Time,
    /// The maximum number of frames waited.
    Room,
    /// The sum of the frames' waiting times reached the area limit.
    Area,
    /// No further frame arrived for the length of an idle gap.
    Idle,
}

/// An interrupt and the frames received before the interrupt, as input for a policy.
#[derive(Clone, Copy, Debug)]
struct Interrupt {
    now_ns: u64,
    /// Time of the previous interrupt; for the first interrupt, the start of the clock.
    before_ns: u64,
    /// Number of frames received since the previous interrupt, and total bytes of these frames.
    frames: u64,
    bytes: u64,
    /// Number of frames that waited for this interrupt. The host has seen all other frames counted in `frames` without
    /// an interrupt.
    waiting_frames: u64,
    /// True if the first waiting frame was allowed to wait, instead of interrupting at once.
    has_waited: bool,
}

impl Interrupt {
    /// Returns the time since the previous interrupt.
    #[inline]
    fn since_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.before_ns)
    }
}

/// The parameters and the learned state of a policy.
#[derive(Clone, Debug)]
#[repr(u8)] // Each interrupt reads the tag. `repr(u8)` gives the tag a separate byte, not a niche in a variant.
enum Rule {
    Off,
    Gap { gap_ns: u64 },
    Coalescing(Coalescing),
    Dim(Dim),
    Classes(Classes),
    Balance(Balance),
    Area(AreaConfig, Option<CostFactor>),
    QuietOrArea(AreaConfig, Option<CostFactor>),
}

impl Rule {
    fn new(policy: &Policy) -> Self {
        match *policy {
            Policy::Off => Self::Off,
            Policy::FixedGap { max_interrupts_per_second: rate } => {
                Self::Gap { gap_ns: NANOSECONDS_PER_SECOND.div_ceil(u64::from(rate.max(1))) }
            }
            Policy::Coalescing(coalescing) => Self::Coalescing(coalescing),
            Policy::NetDim(profiles) => Self::Dim(Dim::new(profiles)),
            Policy::E1000(E1000Mode::Dynamic) => Self::Classes(Classes::new(Class::Lowest)),
            Policy::E1000(E1000Mode::Conservative) => Self::Classes(Classes::new(Class::Low)),
            Policy::E1000(E1000Mode::Simplified) => Self::Balance(Balance::default()),
            Policy::Area(config) => Self::Area(config, config.cost.factor()),
            Policy::QuietOrArea(config) => Self::QuietOrArea(config, config.cost.factor()),
        }
    }

    /// Returns the current limits, from the parameters and the learned state.
    fn limits(&self, cost: &CostEstimator) -> Limits {
        match self {
            Self::Off => Limits::NONE,
            Self::Gap { gap_ns } => Limits::gap(*gap_ns),
            Self::Coalescing(coalescing) => Limits::coalescing(coalescing),
            Self::Dim(dim) => Limits::coalescing(dim.profile()),
            Self::Classes(classes) => Limits::gap(classes.gap_ns()),
            Self::Balance(balance) => Limits::gap(balance.gap_ns()),
            Self::Area(config, factor) => Limits::area(config, factor.as_ref(), cost),
            Self::QuietOrArea(config, factor) => Limits::quiet_or_area(config, factor.as_ref(), cost),
        }
    }

    /// Updates the learned state after an interrupt. Returns whether the limits have changed. `end` returns the reason
    /// why the wait has ended, and the measured interrupt cost; `end` is called for some interrupts only.
    #[expect(clippy::inline_always, reason = "a call costs as much as the decision")]
    #[inline(always)]
    fn fired(&mut self, interrupt: Interrupt, end: impl FnOnce() -> (End, u64)) -> bool {
        match self {
            Self::Dim(dim) => dim.fired(interrupt.now_ns, interrupt.frames, interrupt.bytes),
            Self::Classes(classes) => classes.fired(interrupt.frames, interrupt.bytes),
            Self::Balance(balance) => balance.fired(interrupt.now_ns, interrupt.bytes),
            Self::Area(_, Some(factor)) | Self::QuietOrArea(_, Some(factor)) => factor.fired(interrupt, end),
            _ => false,
        }
    }
}

/// Decides for one queue when to interrupt the host.
#[derive(Clone, Debug)]
pub struct Moderator {
    waiting: Waiting,
    limits: Limits,
    /// Time of the last interrupt, in nanoseconds; 0 before the first interrupt.
    fired_ns: u64,
    has_fired: bool,
    /// Time from which an idle gap may end a wait without exceeding the target interrupt rate, in nanoseconds.
    idle_from_ns: u64,
    /// Number of frames that the host has seen without an interrupt since the last interrupt.
    seen_frames: u64,
    /// Bytes received since the last interrupt.
    bytes: u64,
    rule: Rule,
    /// Room in the host's ring after an interrupt, in frames; [`NEVER`] until [`Moderator::ring_has`] sets the room.
    ring_frames: u64,
    cost: CostEstimator,
    config: ModerationConfig,
}

impl Default for Moderator {
    /// Returns a moderator that interrupts for every frame.
    fn default() -> Self {
        Self::new(ModerationConfig::default())
    }
}

impl Moderator {
    /// Creates the moderator of an empty queue without an earlier interrupt.
    pub fn new(config: ModerationConfig) -> Self {
        let mut moderator = Self {
            waiting: Waiting::default(),
            limits: Limits::NONE,
            fired_ns: 0,
            has_fired: false,
            idle_from_ns: 0,
            seen_frames: 0,
            bytes: 0,
            rule: Rule::new(&config.policy),
            ring_frames: NEVER,
            cost: CostEstimator::default(),
            config,
        };
        moderator.take_limits();
        moderator
    }

    /// Records the arrival of a frame with `bytes` bytes in the host's ring, without an interrupt so far.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64, bytes: u64) {
        self.arrived_together(now_ns, 1, bytes);
    }

    /// Records the simultaneous arrival of `frames` frames, with `bytes` bytes in total. Ignores a call with 0 frames.
    #[inline]
    pub fn arrived_together(&mut self, now_ns: u64, frames: u32, bytes: u64) {
        let frames = u64::from(frames);
        if frames == 0 {
            return;
        }
        if self.waiting.frames == 0 {
            self.waiting = Waiting::begin(now_ns, frames, self.first_wait_ns(now_ns));
        } else {
            self.waiting.add(now_ns, frames);
        }
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// Returns whether the host should be interrupted now. A result of `true` lasts until [`Moderator::fired`] or
    /// [`Moderator::seen`]. If only an idle gap has ended the wait, a further frame makes the result `false` again. A
    /// guest that suppresses notifications gets no interrupt, even if the result is `true` (requirement V78).
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let (waiting, limits) = (&self.waiting, &self.limits);
        let is_over = waiting.since_first_ns(now_ns) >= waiting.wait_ns
            || waiting.frames >= limits.frames
            || (limits.area_ns < NEVER && waiting.area_ns(now_ns) >= limits.area_ns)
            || (limits.idle_gap.wait_ns < NEVER && now_ns >= self.idle_due_ns());
        is_over && waiting.frames > 0
    }

    /// Returns the time at which the interrupt becomes due if no further frame arrives and no setting changes. The time
    /// is in the past if the interrupt is due already. Returns `None` if no frame waits.
    pub fn next_due_ns(&self) -> Option<u64> {
        let waiting = &self.waiting;
        if waiting.frames == 0 {
            return None;
        }
        if waiting.frames >= self.limits.frames {
            return Some(waiting.first_ns);
        }
        let area_ns = self.limits.area_ns;
        let for_area_ns = if area_ns < NEVER { waiting.wait_for_area_ns(area_ns) } else { NEVER };
        let due_ns = waiting.first_ns.saturating_add(waiting.wait_ns.min(for_area_ns));
        Some(due_ns.min(self.idle_due_ns()))
    }

    /// Returns the time at which an idle gap ends the wait if no further frame arrives.
    #[inline]
    fn idle_due_ns(&self) -> u64 {
        self.waiting.last_ns.saturating_add(self.limits.idle_gap.wait_ns).max(self.idle_from_ns)
    }

    /// Records an interrupt that reports all waiting frames to the host. Returns the number of frames that waited.
    #[expect(clippy::inline_always, reason = "a call costs as much as the decision")]
    #[inline(always)]
    pub fn fired(&mut self, now_ns: u64) -> u64 {
        let frames = self.waiting.frames;
        let interrupt = Interrupt {
            now_ns,
            before_ns: self.fired_ns,
            frames: self.seen_frames.wrapping_add(frames),
            bytes: self.bytes,
            waiting_frames: frames,
            has_waited: self.waiting.wait_ns > 0,
        };
        let (waiting, limits, cost) = (&self.waiting, &self.limits, &self.cost);
        let has_changed = self.rule.fired(interrupt, || (limits.end(waiting, now_ns), cost.cost_ns()));
        (self.waiting.frames, self.seen_frames, self.bytes) = (0, 0, 0);
        (self.fired_ns, self.has_fired) = (now_ns, true);
        if self.limits.idle_gap.interrupt_gap_ns < NEVER {
            self.idle_from_ns = self.limits.idle_gap.next_from_ns(self.idle_from_ns, now_ns);
        }
        if has_changed {
            self.take_limits();
        }
        frames
    }

    /// Records that the host needs no interrupt for the waiting frames: the host polls, or suppresses notifications
    /// (requirement V78). Returns the number of frames that waited.
    pub fn seen(&mut self) -> u64 {
        let frames = self.waiting.frames;
        self.seen_frames = self.seen_frames.wrapping_add(frames);
        self.waiting.frames = 0;
        frames
    }

    /// Returns whether to measure the cost of the next interrupt, for [`Moderator::handled`] or [`Moderator::costed`].
    /// Returns `true` for all interrupts until the estimate has settled, and for every eighth interrupt afterwards.
    pub fn measures_next(&mut self) -> bool {
        self.cost.measures_next()
    }

    /// Adds a measurement of the interrupt cost, under any policy. A batch of `frames` frames took `took_ns`, from the
    /// interrupt until the host had processed the batch.
    pub fn handled(&mut self, frames: u32, took_ns: u64) {
        self.cost.observe(frames, took_ns);
        self.take_limits();
    }

    /// Adds a measured cost `cost_ns` of an interrupt alone, without the work on frames. This method is for hosts whose
    /// handling of a batch cannot be measured. Do not call both this method and [`Moderator::handled`] for a host.
    pub fn costed(&mut self, cost_ns: u64) {
        self.cost.observe_interrupt(cost_ns);
        self.take_limits();
    }

    /// Records that the host's ring has room for `free_frames` frames in addition to the waiting frames. From now on,
    /// no frame waits once only [`ModerationConfig::ring_guard_frames`] free buffers are left. The moderator assumes
    /// the same room after each interrupt; call this method again if the room differs.
    pub fn ring_has(&mut self, free_frames: u32) {
        self.ring_frames = self.waiting.frames.saturating_add(u64::from(free_frames));
        self.take_limits();
    }

    /// Records that the queue's other direction carried `bytes` bytes. Only [`E1000Mode::Simplified`] uses this number.
    pub fn other_direction(&mut self, bytes: u64) {
        if let Rule::Balance(balance) = &mut self.rule {
            balance.other_direction(bytes);
        }
    }

    /// Changes the configuration, as if the new configuration had applied since the arrival of the waiting frames.
    /// After the change, call [`Moderator::is_due`] (requirement V82). A change of the policy discards the policy's
    /// learned state; the measured interrupt cost is always kept.
    pub fn set(&mut self, config: ModerationConfig) {
        if config.policy != self.config.policy {
            self.rule = Rule::new(&config.policy);
        }
        self.config = config;
        self.take_limits();
        self.waiting.wait_ns = self.first_wait_ns(self.waiting.first_ns);
    }

    /// Returns whether every frame interrupts the host.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.config.policy, Policy::Off)
    }

    /// Writes the current interrupt cost and maximum wait into the counters of a queue.
    pub(crate) fn show(&self, stats: &Direction) {
        stats.show_moderation(if self.is_off() { 0 } else { self.cost_ns() }, self.wait_max_ns());
    }

    /// Returns the current configuration.
    pub fn config(&self) -> &ModerationConfig {
        &self.config
    }

    /// Returns the wait of the oldest waiting frame up to now, in nanoseconds.
    #[inline]
    pub fn waited_ns(&self, now_ns: u64) -> u64 {
        if self.waiting.frames == 0 { 0 } else { now_ns.saturating_sub(self.waiting.first_ns) }
    }

    /// Returns the number of waiting frames.
    pub fn waiting(&self) -> u64 {
        self.waiting.frames
    }

    /// Returns the maximum wait of a frame, in nanoseconds.
    pub fn wait_max_ns(&self) -> u64 {
        let Limits { wait_ns, early_wait_ns, rested_ns, area_ns, .. } = self.limits;
        wait_ns.max(early_wait_ns.unwrap_or(rested_ns)).min(area_ns)
    }

    /// Returns the current estimate of the interrupt cost, in nanoseconds.
    pub fn cost_ns(&self) -> u64 {
        self.cost.cost_ns()
    }

    /// Returns the maximum wait of a batch whose first frame arrived at `first_ns`. Before its first interrupt, a host
    /// counts as rested. If the clock went back to before the last interrupt, the host counts as rested for no time.
    #[inline]
    fn first_wait_ns(&self, first_ns: u64) -> u64 {
        let rest_ns = if self.has_fired { first_ns.saturating_sub(self.fired_ns) } else { NEVER };
        self.limits.wait_ns(rest_ns)
    }

    /// Recomputes the limits from the policy and the ring.
    fn take_limits(&mut self) {
        let limits = self.rule.limits(&self.cost);
        let until_guard = self.ring_frames.saturating_sub(u64::from(self.config.ring_guard_frames));
        self.limits = Limits { frames: limits.frames.min(until_guard), ..limits };
    }
}
