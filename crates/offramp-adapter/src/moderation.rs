//! When the host is interrupted for frames that wait.
//!
//! A plain adapter interrupts for every received frame and every completed one (M11). Fewer interrupts
//! cost less of the processor (M9) and hold frames back, so a setting for throughput alone makes
//! responses slow (M10); a forced gap changes the processor's share and not the speed while something
//! else is the limit (R3, R4, R6). A [`Moderator`] decides for one queue, received frames or transmit
//! completions, by one of the [`Policy`] rules.
//!
//! # Use
//! Tell it of each frame with [`Moderator::arrived`]; ask [`Moderator::is_due`] after a batch of them;
//! interrupt and say so with [`Moderator::fired`]. Before sleeping, ask [`Moderator::next_due_ns`]: at
//! that moment it is due even if no other frame comes.
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
//! Every policy is three limits on what waits: a moment, a number of frames, and an area, which is the
//! time that the frames have waited together. The limits are set when the first frame comes to an empty
//! queue and hold until the interrupt; a policy that learns does so at the interrupt. So a frame costs
//! two additions, whatever the policy, and nothing is allocated.
//!
//! # The bound
//! Let an interrupt cost K and each frame the time that it waits. Cut time at the interrupts of the area
//! trigger. Per interval it pays at most K of waiting and K for the interrupt. A schedule that does not
//! interrupt within the interval lets the same frames wait at least as long, which is K, or breaks the
//! deadline or the ring's limit; so any schedule that keeps those pays K per interval, and the trigger at
//! most twice as much (and one K for an interval without an end). With [`Policy::QuietOrArea`], a frame
//! after a silence of K is told at once, for K; that is charged to the interval behind it, in which the
//! best schedule pays K too: at most three times as much, and one K. Both hold for a host that takes
//! frames in no time and a K that stays. `tests/moderation_bounds.rs` holds the rules against a dynamic
//! program that knows the future; `cargo bench -p offramp-adapter --bench moderation -- --table` prints
//! how far each policy is from it.
//!
//! # Time
//! Nanoseconds since any fixed moment, the same for all calls. A clock that goes back makes waiting
//! frames due at once: how long they have waited is not known any more.

mod config;
mod cost;
mod dim;
mod e1000;
mod notification;

pub use config::{
    AreaConfig, COST_GIVEN_NS_MAX, Coalescing, DEADLINE_NS_DEFAULT, DEADLINE_NS_MAX, INTERRUPTS_PER_SECOND_MAX,
    ModerationConfig, ModerationConfigError, PRICE_PERCENT_MAX, Policy, ring_guard_frames,
};
pub use cost::{COST_NS_MAX, COST_NS_MIN, COST_NS_START, CostEstimator, InterruptCost};
pub use dim::DimProfiles;
pub use e1000::E1000Mode;
pub use notification::{CommandError, NotificationCoalescing, Outcome, command, feature};

use dim::Dim;
use e1000::E1000;

const NANOSECONDS_PER_MICROSECOND: u64 = 1000;
const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

/// Frames that came and that the host has not been told of.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    frames: u64,
    bytes: u64,
    /// When the first of them came.
    first_ns: u64,
    /// How much later than the first each of them came, summed.
    later_ns: u64,
}

impl Waiting {
    /// The time that they have waited, summed.
    fn area_ns(&self, now_ns: u64) -> u64 {
        let since_first_ns = now_ns.saturating_sub(self.first_ns);
        self.frames.saturating_mul(since_first_ns).saturating_sub(self.later_ns)
    }

    /// When the area will be `limit_ns` if no other frame comes. There is at least one frame.
    fn area_reaches_at_ns(&self, limit_ns: u64) -> u64 {
        let since_first_ns = limit_ns.saturating_add(self.later_ns).div_ceil(self.frames);
        self.first_ns.saturating_add(since_first_ns)
    }
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    frames: u64,
    bytes: u64,
}

/// What ends the wait; the first of the three does.
#[derive(Clone, Copy, Debug)]
struct Limits {
    due_ns: u64,
    frames: u64,
    area_ns: u64,
}

impl Limits {
    const NEVER: u64 = u64::MAX;

    fn at(due_ns: u64) -> Self {
        Self { due_ns, frames: Self::NEVER, area_ns: Self::NEVER }
    }

    /// `gap_ns` after the last interrupt, and no later than that after the first frame, whatever the
    /// clock does.
    fn after_gap(first_ns: u64, fired_ns: Option<u64>, gap_ns: u64) -> Self {
        let gap_ends_ns = fired_ns.map_or(first_ns, |fired_ns| fired_ns.saturating_add(gap_ns));
        Self::at(gap_ends_ns.clamp(first_ns, first_ns.saturating_add(gap_ns)))
    }

    /// Virtio's notification condition (V80).
    fn of_coalescing(first_ns: u64, coalescing: &Coalescing) -> Self {
        let due_ns = first_ns.saturating_add(coalescing.wait_max_ns());
        Self { frames: u64::from(coalescing.max_packets), ..Self::at(due_ns) }
    }
}

/// What a policy knows besides its setting.
#[derive(Clone, Debug)]
enum Rule {
    Off,
    Gap { gap_ns: u64 },
    Coalescing(Coalescing),
    Dim(Dim),
    E1000(E1000),
    Area { config: AreaConfig, fires_when_quiet: bool },
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
            Policy::E1000(mode) => Self::E1000(E1000::new(mode)),
            Policy::Area(config) => Self::Area { config, fires_when_quiet: false },
            Policy::QuietOrArea(config) => Self::Area { config, fires_when_quiet: true },
        }
    }

    /// The limits for frames of which the first came at `first_ns`.
    fn limits(&self, first_ns: u64, fired_ns: Option<u64>, cost: &CostEstimator) -> Limits {
        match self {
            Self::Off => Limits::at(first_ns),
            Self::Gap { gap_ns } => Limits::after_gap(first_ns, fired_ns, *gap_ns),
            Self::Coalescing(coalescing) => Limits::of_coalescing(first_ns, coalescing),
            Self::Dim(dim) => Limits::of_coalescing(first_ns, dim.profile()),
            Self::E1000(e1000) => Limits::after_gap(first_ns, fired_ns, e1000.gap_ns()),
            Self::Area { config, fires_when_quiet } => {
                let cost_ns = config.cost.ns(cost);
                if *fires_when_quiet && is_quiet(first_ns, fired_ns, cost_ns) {
                    return Limits::at(first_ns);
                }
                Limits { area_ns: cost_ns, ..Limits::at(first_ns.saturating_add(config.deadline_ns)) }
            }
        }
    }

    /// The longest that a frame waits now.
    fn wait_max_ns(&self, cost: &CostEstimator) -> u64 {
        match self {
            Self::Off => 0,
            Self::Gap { gap_ns } => *gap_ns,
            Self::Coalescing(coalescing) => coalescing.wait_max_ns(),
            Self::Dim(dim) => dim.profile().wait_max_ns(),
            Self::E1000(e1000) => e1000.gap_ns(),
            Self::Area { config, .. } => config.cost.ns(cost).min(config.deadline_ns),
        }
    }

    /// Learns of an interrupt and of what came since the one before.
    fn fired(&mut self, now_ns: u64, batch: Tally) {
        match self {
            Self::Dim(dim) => dim.fired(now_ns, batch.frames, batch.bytes),
            Self::E1000(e1000) => e1000.fired(now_ns, batch.frames, batch.bytes),
            Self::Off | Self::Gap { .. } | Self::Coalescing(_) | Self::Area { .. } => {}
        }
    }
}

/// Whether the last interrupt is as long ago as an interrupt is worth. A clock that went back is quiet.
fn is_quiet(first_ns: u64, fired_ns: Option<u64>, cost_ns: u64) -> bool {
    let since_fired_ns = fired_ns.and_then(|fired_ns| first_ns.checked_sub(fired_ns));
    since_fired_ns.is_none_or(|since_fired_ns| since_fired_ns >= cost_ns)
}

/// Decides for one queue when the host is interrupted.
#[derive(Clone, Debug)]
pub struct Moderator {
    waiting: Waiting,
    /// Of the frames that wait; without meaning when none does.
    limits: Limits,
    /// Frames that the ring takes after an interrupt; [`Limits::NEVER`] while nobody said.
    ring_frames: u64,
    fired_ns: Option<u64>,
    /// What the host has seen since the last interrupt without another one.
    seen: Tally,
    rule: Rule,
    cost: CostEstimator,
    config: ModerationConfig,
}

impl Default for Moderator {
    /// One that interrupts for every frame.
    fn default() -> Self {
        Self::new(ModerationConfig::default())
    }
}

impl Moderator {
    /// A moderator of an empty queue that was never interrupted.
    pub fn new(config: ModerationConfig) -> Self {
        Self {
            waiting: Waiting::default(),
            limits: Limits::at(0),
            ring_frames: Limits::NEVER,
            fired_ns: None,
            seen: Tally::default(),
            rule: Rule::new(&config.policy),
            cost: CostEstimator::default(),
            config,
        }
    }

    /// A frame of `bytes` came: it is where the host will find it, and the host does not know.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64, bytes: u64) {
        self.arrived_together(now_ns, 1, bytes);
    }

    /// So many frames of so many bytes in all came at once. None is no event.
    #[inline]
    pub fn arrived_together(&mut self, now_ns: u64, frames: u32, bytes: u64) {
        if self.waiting.frames == 0 {
            self.begin(now_ns);
        }
        let frames = u64::from(frames);
        let later_ns = now_ns.saturating_sub(self.waiting.first_ns);
        self.waiting.frames += frames;
        self.waiting.bytes = self.waiting.bytes.saturating_add(bytes);
        self.waiting.later_ns = self.waiting.later_ns.saturating_add(frames.saturating_mul(later_ns));
    }

    /// Whether the host should be interrupted now. Stays so until [`Moderator::fired`] or
    /// [`Moderator::seen`]. A guest that suppresses notifications gets none all the same (V78).
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let waiting = &self.waiting;
        let is_over = now_ns >= self.limits.due_ns
            || waiting.frames >= self.limits.frames
            || waiting.area_ns(now_ns) >= self.limits.area_ns
            || now_ns < waiting.first_ns;
        is_over && waiting.frames > 0
    }

    /// When it is due if nothing else happens; not after now when it is due already. `None` while
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
        let area = (area_ns < Limits::NEVER).then(|| waiting.area_reaches_at_ns(area_ns));
        Some(self.limits.due_ns.min(area.unwrap_or(Limits::NEVER)))
    }

    /// The host was interrupted and will find all that waits. Returns how many frames that are.
    #[inline]
    pub fn fired(&mut self, now_ns: u64) -> u64 {
        let frames = self.waiting.frames;
        let batch =
            Tally { frames: self.seen.frames + frames, bytes: self.seen.bytes.saturating_add(self.waiting.bytes) };
        self.rule.fired(now_ns, batch);
        self.seen = Tally::default();
        self.waiting = Waiting::default();
        self.fired_ns = Some(now_ns);
        frames
    }

    /// The host has seen, or will look for, all that waits without an interrupt: it polls, or it
    /// suppresses notifications (V78). Returns how many frames that are.
    pub fn seen(&mut self) -> u64 {
        let frames = self.waiting.frames;
        self.seen.frames += frames;
        self.seen.bytes = self.seen.bytes.saturating_add(self.waiting.bytes);
        self.waiting = Waiting::default();
        frames
    }

    /// A batch of `frames` took `took_ns` from the interrupt until the host was done with it. From this
    /// the cost of an interrupt is learned, under any policy.
    pub fn handled(&mut self, frames: u32, took_ns: u64) {
        self.cost.observe(frames, took_ns);
    }

    /// The host's ring takes `free_frames` more than what waits. From now on nothing waits when only
    /// [`ModerationConfig::ring_guard_frames`] of them are left. The host is believed to make the same room
    /// again after each interrupt; where it does not, say so again.
    pub fn ring_has(&mut self, free_frames: u32) {
        self.ring_frames = self.waiting.frames.saturating_add(u64::from(free_frames));
        self.limit(self.waiting.first_ns);
    }

    /// So many bytes went the other way. Only [`E1000Mode::Simplified`] wants to know.
    pub fn other_direction(&mut self, bytes: u64) {
        if let Rule::E1000(e1000) = &mut self.rule {
            e1000.other_direction(bytes);
        }
    }

    /// Changes the setting. It holds at once and for what waits already, from when it came; so ask
    /// [`Moderator::is_due`] next (V82). What a policy has learned is lost when the policy changes, and
    /// only then; the cost of an interrupt never is.
    pub fn set(&mut self, config: ModerationConfig) {
        if config.policy != self.config.policy {
            self.rule = Rule::new(&config.policy);
        }
        self.config = config;
        self.limit(self.waiting.first_ns);
    }

    /// The setting in force.
    pub fn config(&self) -> &ModerationConfig {
        &self.config
    }

    /// Frames that wait.
    pub fn waiting(&self) -> u64 {
        self.waiting.frames
    }

    /// The longest that a frame which comes now will wait, nanoseconds.
    pub fn wait_max_ns(&self) -> u64 {
        self.rule.wait_max_ns(&self.cost)
    }

    /// What an interrupt costs as far as it was measured, nanoseconds.
    pub fn cost_ns(&self) -> u64 {
        self.cost.cost_ns()
    }

    /// The first frame comes to an empty queue.
    #[inline]
    fn begin(&mut self, now_ns: u64) {
        self.waiting.first_ns = now_ns;
        self.limit(now_ns);
    }

    #[inline]
    fn limit(&mut self, first_ns: u64) {
        let limits = self.rule.limits(first_ns, self.fired_ns, &self.cost);
        let until_guard = self.ring_frames.saturating_sub(u64::from(self.config.ring_guard_frames));
        self.limits = Limits { frames: limits.frames.min(until_guard), ..limits };
    }
}
