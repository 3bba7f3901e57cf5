//! Interrupt moderation: decides when to interrupt the host for waiting frames.
//!
//! A plain adapter interrupts for every received frame and every completed one (M11). Fewer interrupts
//! cost less of the processor (M9) and hold frames back, so a setting for throughput alone makes
//! responses slow (M10); a forced gap changes the processor's share and not the speed while something
//! else is the limit (R3, R4, R6). A [`Moderator`] decides for one queue, received frames or transmit
//! completions, by one of the [`Policy`] rules.
//!
//! # Use
//! Record each frame with [`Moderator::arrived`]. After a batch, ask [`Moderator::is_due`]; interrupt, and record the
//! interrupt with [`Moderator::fired`]. Before sleeping, ask [`Moderator::next_due_ns`]: the interrupt is due then even
//! if no other frame comes.
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
//! Every policy sets a few limits on the waiting frames: the time since the first frame, the last one or the last
//! interrupt, the number of frames, and the area, the sum of their waiting times. A policy with feedback learns at the
//! interrupt. So under every policy a frame costs a few additions and no allocation.
//!
//! # The bound
//! Let an interrupt cost K and each frame its waiting time. The interrupts of the area trigger divide time into
//! intervals. Per interval the trigger pays at most K of waiting and K for the interrupt. A schedule without an
//! interrupt in the interval lets the same frames wait at least as long (K), or breaks the deadline or the ring's
//! limit. So any valid schedule pays K per interval, and the trigger at most twice as much (and one K for an interval
//! without an end). With [`Policy::QuietOrArea`], a frame after an idle gap of K raises an interrupt at once, for K.
//! This K is charged to the interval after the interrupt, and there the best schedule pays K too: at most three times
//! as much, and one K. Both bounds assume a constant K and a host that takes frames in no time.
//! `tests/moderation_bounds.rs` compares the rules with a dynamic program over the whole trace; `cargo bench -p
//! offramp-adapter --bench moderation -- --table` prints the distance of each policy from it.
//!
//! # Time
//! Nanoseconds since any fixed moment, the same for all calls. If the clock goes back, waiting frames are due at once:
//! their waiting time is no longer known.

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

/// Never, or as many as anything can be.
const NEVER: u64 = u64::MAX;

/// Frames received since the last interrupt.
///
/// The arithmetic wraps: it is exact while the waiting times add up to less than 584 years. If the clock goes back to
/// before the first frame, the time since then exceeds any wait.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    frames: u64,
    /// Arrival of the first frame.
    first_ns: u64,
    /// Arrival of the last frame.
    last_ns: u64,
    /// Sum of the frames' delays after the first one. Negative, in two's complement, if the clock went back between
    /// frames.
    later_ns: u64,
    /// Longest wait of the first frame.
    wait_ns: u64,
}

impl Waiting {
    #[inline]
    fn since_first_ns(&self, now_ns: u64) -> u64 {
        now_ns.wrapping_sub(self.first_ns)
    }

    /// Starts with the first `frames`; none of them waits longer than `wait_ns`.
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

    /// Returns the time from the first frame until the area reaches `limit_ns` if no other frame comes. There is at
    /// least one frame.
    fn wait_for_area_ns(&self, limit_ns: u64) -> u64 {
        limit_ns.saturating_add_signed(self.later_ns.cast_signed()).div_ceil(self.frames)
    }
}

/// Most unused interrupts saved below the target rate, for idle gaps to raise later.
const SAVED_INTERRUPTS_MAX: u32 = 6;

/// The end of a wait when no further frame comes.
#[derive(Clone, Copy, Debug)]
struct IdleGap {
    /// Time without a frame until the wait ends; [`NEVER`] while idle gaps end none.
    wait_ns: u64,
    /// Mean time between two interrupts raised by idle gaps; [`NEVER`] without a limit.
    interrupt_gap_ns: u64,
}

impl IdleGap {
    const NEVER: Self = Self { wait_ns: NEVER, interrupt_gap_ns: NEVER };

    /// Returns the earliest time at which an idle gap may end a wait again, after any interrupt. Each interrupt uses up
    /// one gap; a few unused ones are saved.
    fn next_from_ns(self, from_ns: u64, now_ns: u64) -> u64 {
        let saved_ns = u64::from(SAVED_INTERRUPTS_MAX).saturating_mul(self.interrupt_gap_ns);
        from_ns.max(now_ns.saturating_sub(saved_ns)).min(now_ns).saturating_add(self.interrupt_gap_ns)
    }
}

/// Limits of a wait under any policy; the first one reached ends the wait.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Time after an interrupt until the host has rested.
    rested_ns: u64,
    /// Since the first frame, if the host had rested when it came.
    wait_ns: u64,
    /// Since the first frame, if not; `None`: until the host has rested.
    early_wait_ns: Option<u64>,
    /// Waiting time of all frames together.
    area_ns: u64,
    /// Number of waiting frames.
    frames: u64,
    idle_gap: IdleGap,
}

impl Limits {
    /// Every frame at once.
    const NONE: Self =
        Self { rested_ns: 0, wait_ns: 0, early_wait_ns: None, area_ns: NEVER, frames: NEVER, idle_gap: IdleGap::NEVER };

    fn gap(gap_ns: u64) -> Self {
        Self { rested_ns: gap_ns, ..Self::NONE }
    }

    /// Returns the limits of virtio's notification condition (V80).
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

    /// As [`Limits::area`]; a first frame does not wait when the host has rested for as long as the frames may
    /// wait together.
    fn quiet_or_area(config: &AreaConfig, factor: Option<&CostFactor>, cost: &CostEstimator) -> Self {
        let area = Self::area(config, factor, cost);
        Self { rested_ns: area.area_ns, wait_ns: 0, early_wait_ns: Some(area.wait_ns), ..area }
    }

    /// Returns the longest wait of a first frame after the host had rested for `rest_ns`.
    #[inline]
    fn wait_ns(&self, rest_ns: u64) -> u64 {
        match self.rested_ns.checked_sub(rest_ns) {
            None | Some(0) => self.wait_ns,
            Some(left_ns) => self.early_wait_ns.unwrap_or(left_ns),
        }
    }

    /// Returns the cause of the wait's end.
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

/// The cause of a wait's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The limit on the first frame's wait, or nothing waited.
    Time,
    /// No more frames could wait.
    Room,
    /// All frames together have waited as long as the interrupt costs.
    Area,
    /// No further frame came.
    Idle,
}

/// An interrupt, as a policy learns of it.
#[derive(Clone, Copy, Debug)]
struct Interrupt {
    now_ns: u64,
    /// Time of the previous interrupt; for the first, the start of the clock.
    before_ns: u64,
    /// Frames received since the previous interrupt, and their bytes.
    frames: u64,
    bytes: u64,
    /// Frames that waited for this interrupt; the host has seen the others without it.
    waiting_frames: u64,
    /// The first waiting frame was deferred.
    has_waited: bool,
}

impl Interrupt {
    /// Returns the time since the previous interrupt.
    #[inline]
    fn since_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.before_ns)
    }
}

/// The settings and learned state of a policy.
#[derive(Clone, Debug)]
#[repr(u8)] // The tag is read for each interrupt: by itself, not out of a value that a variant cannot have.
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

    /// Returns the limits by everything learned so far.
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

    /// Learns from an interrupt, and returns whether the limits have changed. `end` returns the end of the wait and the
    /// measured interrupt cost; only some interrupts need them.
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

/// Decides for one queue when the host is interrupted.
#[derive(Clone, Debug)]
pub struct Moderator {
    waiting: Waiting,
    limits: Limits,
    /// Time of the last interrupt; 0 before the first.
    fired_ns: u64,
    has_fired: bool,
    /// The time from which an idle gap may end a wait within the target rate.
    idle_from_ns: u64,
    /// Frames seen by the host since the last interrupt without another one.
    seen_frames: u64,
    /// Bytes received since the last interrupt.
    bytes: u64,
    rule: Rule,
    /// Room in the ring after an interrupt, frames; [`NEVER`] until [`Moderator::ring_has`] sets it.
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
    /// Creates the moderator of an empty queue without any interrupt so far.
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

    /// Records a frame of `bytes` in the host's ring, for which no interrupt was raised.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64, bytes: u64) {
        self.arrived_together(now_ns, 1, bytes);
    }

    /// Records the joint arrival of `frames` frames (`bytes` in total); 0 is ignored.
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

    /// Returns whether the host should be interrupted now. Remains true until [`Moderator::fired`] or
    /// [`Moderator::seen`]; if only an idle gap ended the wait, until another frame comes. A guest with suppressed
    /// notifications gets none all the same (V78).
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let (waiting, limits) = (&self.waiting, &self.limits);
        let is_over = waiting.since_first_ns(now_ns) >= waiting.wait_ns
            || waiting.frames >= limits.frames
            || (limits.area_ns < NEVER && waiting.area_ns(now_ns) >= limits.area_ns)
            || (limits.idle_gap.wait_ns < NEVER && now_ns >= self.idle_due_ns());
        is_over && waiting.frames > 0
    }

    /// Returns when the interrupt is due if nothing else happens; not after now if it is due already. `None` while
    /// nothing waits.
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

    /// Returns the end of the wait if no other frame comes until then.
    #[inline]
    fn idle_due_ns(&self) -> u64 {
        self.waiting.last_ns.saturating_add(self.limits.idle_gap.wait_ns).max(self.idle_from_ns)
    }

    /// Records that the host was interrupted and will find all waiting frames. Returns their number.
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

    /// Records that the host needs no interrupt for the waiting frames: it polls, or it suppresses notifications (V78).
    /// Returns their number.
    pub fn seen(&mut self) -> u64 {
        let frames = self.waiting.frames;
        self.seen_frames = self.seen_frames.wrapping_add(frames);
        self.waiting.frames = 0;
        frames
    }

    /// Returns whether to measure the cost of the next interrupt, for [`Moderator::handled`] or [`Moderator::costed`]:
    /// true for the first ones, later for one in several.
    pub fn measures_next(&mut self) -> bool {
        self.cost.measures_next()
    }

    /// Learns the cost of an interrupt, under any policy: a batch of `frames` took `took_ns` from the interrupt until the
    /// host was done with it.
    pub fn handled(&mut self, frames: u32, took_ns: u64) {
        self.cost.observe(frames, took_ns);
        self.take_limits();
    }

    /// Learns that an interrupt costs `cost_ns` by itself, without the work on frames. For hosts without a measure of
    /// batch handling; not to be mixed with [`Moderator::handled`].
    pub fn costed(&mut self, cost_ns: u64) {
        self.cost.observe_interrupt(cost_ns);
        self.take_limits();
    }

    /// Records that the host's ring has room for `free_frames` besides the waiting ones. From now on nothing waits if
    /// only [`ModerationConfig::ring_guard_frames`] of them are left. The moderator assumes the same room after each
    /// interrupt; call this again if it differs.
    pub fn ring_has(&mut self, free_frames: u32) {
        self.ring_frames = self.waiting.frames.saturating_add(u64::from(free_frames));
        self.take_limits();
    }

    /// Records `bytes` carried in the other direction. Only [`E1000Mode::Simplified`] uses it.
    pub fn other_direction(&mut self, bytes: u64) {
        if let Rule::Balance(balance) = &mut self.rule {
            balance.other_direction(bytes);
        }
    }

    /// Changes the setting, also for what waits already, from when it came; so ask [`Moderator::is_due`] next (V82). A
    /// change of the policy discards what the policy has learned; the cost of an interrupt is always kept.
    pub fn set(&mut self, config: ModerationConfig) {
        if config.policy != self.config.policy {
            self.rule = Rule::new(&config.policy);
        }
        self.config = config;
        self.take_limits();
        self.waiting.wait_ns = self.first_wait_ns(self.waiting.first_ns);
    }

    /// Returns whether the host is interrupted for every frame.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.config.policy, Policy::Off)
    }

    /// Shows the moderation in force in the counters of a queue.
    pub(crate) fn show(&self, stats: &Direction) {
        stats.show_moderation(if self.is_off() { 0 } else { self.cost_ns() }, self.wait_max_ns());
    }

    /// Returns the setting in force.
    pub fn config(&self) -> &ModerationConfig {
        &self.config
    }

    /// Returns the wait of the oldest waiting frame, nanoseconds.
    #[inline]
    pub fn waited_ns(&self, now_ns: u64) -> u64 {
        if self.waiting.frames == 0 { 0 } else { now_ns.saturating_sub(self.waiting.first_ns) }
    }

    /// Returns the number of waiting frames.
    pub fn waiting(&self) -> u64 {
        self.waiting.frames
    }

    /// Returns the longest wait of a frame, nanoseconds.
    pub fn wait_max_ns(&self) -> u64 {
        let Limits { wait_ns, early_wait_ns, rested_ns, area_ns, .. } = self.limits;
        wait_ns.max(early_wait_ns.unwrap_or(rested_ns)).min(area_ns)
    }

    /// Returns the interrupt cost measured so far, nanoseconds.
    pub fn cost_ns(&self) -> u64 {
        self.cost.cost_ns()
    }

    /// Returns the longest wait allowed for a batch whose first frame arrived at `first_ns`. Before its first
    /// interrupt, a host has rested. If the clock went back to before the last interrupt, the rest begins at the first
    /// frame.
    #[inline]
    fn first_wait_ns(&self, first_ns: u64) -> u64 {
        let rest_ns = if self.has_fired { first_ns.saturating_sub(self.fired_ns) } else { NEVER };
        self.limits.wait_ns(rest_ns)
    }

    /// Sets the limits by the policy and the ring.
    fn take_limits(&mut self) {
        let limits = self.rule.limits(&self.cost);
        let until_guard = self.ring_frames.saturating_sub(u64::from(self.config.ring_guard_frames));
        self.limits = Limits { frames: limits.frames.min(until_guard), ..limits };
    }
}
