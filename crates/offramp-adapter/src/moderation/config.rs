//! The settings of a moderator: the policies, their parameters and their ranges.

use super::cost::{COST_NS_MAX, InterruptCost};
use super::dim::DimProfiles;
use super::e1000::E1000Mode;
use strum::IntoStaticStr;

/// Maximum rate of the fixed-gap policy, in interrupts per second: a gap of one microsecond.
pub const INTERRUPTS_PER_SECOND_MAX: u32 = 1_000_000;
/// Maximum deadline, in nanoseconds. For a host's transport protocol, a frame one second late is lost (RFC 6298 2.4: a
/// retransmission timeout of at least one second).
pub const DEADLINE_NS_MAX: u64 = 1_000_000_000;
/// Default deadline, in nanoseconds. Under the area trigger, a frame never waits longer than the interrupt cost
/// multiplied by its factor. A measured cost is at most [`COST_NS_MAX`]. So this default limits the wait only under a
/// higher configured cost, or under a factor above one.
pub const DEADLINE_NS_DEFAULT: u64 = COST_NS_MAX;
/// Maximum configured interrupt cost, in nanoseconds.
pub const COST_GIVEN_NS_MAX: u64 = 10_000_000;
/// Maximum factor on the measured cost, in percent.
pub const COST_FACTOR_PERCENT_MAX: u32 = 10_000;

const NANOSECONDS_PER_MICROSECOND: u64 = 1000;

/// Virtio's coalescing parameters: a time and a number of frames before a queue is notified (virtio 1.3, 5.1.6.5,
/// "Notifications Coalescing"; requirement V80 in `docs/vhost-user.md`). [`Default`] equals the state of a device after
/// reset (requirement V79).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Maximum wait of the first waiting frame, in microseconds. With 0, the host is notified of every frame.
    pub max_usecs: u32,
    /// Maximum number of waiting frames. With 0, the host is notified of every frame.
    pub max_packets: u32,
}

impl Coalescing {
    /// Returns the longest wait of a frame, in nanoseconds; 0 if every frame is notified.
    pub(super) fn wait_max_ns(&self) -> u64 {
        if self.max_packets == 0 { 0 } else { u64::from(self.max_usecs) * NANOSECONDS_PER_MICROSECOND }
    }
}

/// The settings of the area trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaConfig {
    /// Cost of an interrupt, in nanoseconds of waiting time of one frame.
    pub cost: InterruptCost,
    /// Maximum wait of a frame, in nanoseconds.
    pub deadline_ns: u64,
}

impl Default for AreaConfig {
    fn default() -> Self {
        Self { cost: InterruptCost::default(), deadline_ns: DEADLINE_NS_DEFAULT }
    }
}

/// The rule for interrupting the host when frames wait.
///
/// [`Moderator::wait_max_ns`](super::Moderator::wait_max_ns) bounds the wait of every frame, under any policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Policy {
    /// Interrupts for every frame, as a plain adapter does (claim M11 in `crates/offramp-model/cases`).
    #[default]
    Off,
    /// Interrupts at a limited rate: two interrupts are at least the gap of this rate apart. A frame that arrives later
    /// than one gap after the last interrupt interrupts at once. This policy is the forced gap between interrupts of
    /// claims R4 and R6.
    FixedGap {
        /// Maximum interrupts per second, 1…[`INTERRUPTS_PER_SECOND_MAX`].
        max_interrupts_per_second: u32,
    },
    /// Interrupts a fixed time after the first waiting frame, or at a fixed number of waiting frames. The time and the
    /// number are `rx_usecs` and `rx_frames` of `ethtool -C`, and virtio's coalescing parameters.
    Coalescing(Coalescing),
    /// Interrupts as `Coalescing` does, with both parameters tuned by Linux's dynamic interrupt moderation.
    NetDim(DimProfiles),
    /// Interrupts at the adaptive rates of Linux's e1000 driver.
    E1000(E1000Mode),
    /// Interrupts when the waiting times of the frames add up to the cost of an interrupt. The total cost is at most
    /// twice the cost of the best schedule with full knowledge of the future. See Dooly, Goldman and Scott, "On-line
    /// analysis of the TCP acknowledgment delay problem", J. ACM 48(2), 2001.
    Area(AreaConfig),
    /// Interrupts as `Area` does. In addition, a frame interrupts at once if the frame follows an idle gap as long as
    /// the interrupt cost. The total cost is at most three times the cost of the best schedule, plus the cost of one
    /// interrupt. A lone request does not wait, unlike under a moderation tuned for throughput alone (claim M10).
    QuietOrArea(AreaConfig),
}

impl Policy {
    /// Returns the name used in configuration and output.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

/// The settings of a moderator, changeable while the moderator runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModerationConfig {
    /// The rule for interrupting the host.
    pub policy: Policy,
    /// Number of free buffers in the host's ring at which no policy waits any longer. Frames that arrive until the host
    /// has refilled the ring must still fit into these buffers. Has no effect before
    /// [`Moderator::ring_has`](super::Moderator::ring_has).
    pub ring_guard_frames: u32,
}

/// The reason for refusing a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModerationConfigError {
    /// The gap between interrupts would be infinite, or shorter than a microsecond.
    #[error("max_interrupts_per_second {0} is out of range; use 1 to {INTERRUPTS_PER_SECOND_MAX}, or the policy off")]
    InterruptsPerSecond(u32),
    /// The gap between interrupts under load would be infinite, or shorter than a microsecond.
    #[error("load_interrupts_per_second {0} is out of range; use 1 to {INTERRUPTS_PER_SECOND_MAX}")]
    LoadInterruptsPerSecond(u32),
    /// Frames would wait for longer than a transport protocol accepts.
    #[error("moderation deadline of {0} ns is out of range; use 0 to {DEADLINE_NS_MAX}")]
    Deadline(u64),
    /// The configured cost exceeds the cost of any real interrupt.
    #[error("interrupt cost of {0} ns is out of range; use 0 to {COST_GIVEN_NS_MAX}")]
    Cost(u64),
    /// The cost factor is above its maximum.
    #[error("interrupt cost factor of {0} percent is out of range; use 0 to {COST_FACTOR_PERCENT_MAX}")]
    CostFactor(u32),
}

impl ModerationConfig {
    /// Returns quiet-or-area with a cost factor that adapts to the load: the default of an adapter.
    pub fn adaptive() -> Self {
        Self { policy: Policy::QuietOrArea(AreaConfig::default()), ..Self::default() }
    }

    /// Checks the settings that a user can get wrong. A moderator also runs with a refused value, but the value harms
    /// the host's traffic.
    ///
    /// # Errors
    /// Returns one line with the setting's name, value and range.
    pub fn check(&self) -> Result<(), ModerationConfigError> {
        use ModerationConfigError as Error;
        match self.policy {
            Policy::Off | Policy::Coalescing(_) | Policy::NetDim(_) | Policy::E1000(_) => Ok(()),
            Policy::FixedGap { max_interrupts_per_second: rate } => {
                let is_right = (1..=INTERRUPTS_PER_SECOND_MAX).contains(&rate);
                if is_right { Ok(()) } else { Err(Error::InterruptsPerSecond(rate)) }
            }
            Policy::Area(config) | Policy::QuietOrArea(config) => config.check(),
        }
    }
}

impl AreaConfig {
    fn check(&self) -> Result<(), ModerationConfigError> {
        use ModerationConfigError as Error;
        if self.deadline_ns > DEADLINE_NS_MAX {
            return Err(Error::Deadline(self.deadline_ns));
        }
        match self.cost {
            InterruptCost::Given { ns } if ns > COST_GIVEN_NS_MAX => Err(Error::Cost(ns)),
            InterruptCost::Measured { factor_percent } if factor_percent > COST_FACTOR_PERCENT_MAX => {
                Err(Error::CostFactor(factor_percent))
            }
            InterruptCost::Adaptive { interrupts_per_second: rate }
                if !(1..=INTERRUPTS_PER_SECOND_MAX).contains(&rate) =>
            {
                Err(Error::LoadInterruptsPerSecond(rate))
            }
            _ => Ok(()),
        }
    }
}
