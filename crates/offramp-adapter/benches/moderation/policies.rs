//! The policies in the comparison, with a name for each setting.

use offramp_adapter::moderation::{
    AreaConfig, Coalescing, DEADLINE_NS_DEFAULT, DimProfiles, E1000Mode, InterruptCost, ModerationConfig, Moderator,
    Policy,
};

/// Interrupts per second with a fixed gap of 125 µs, the default of some drivers.
const FIXED_PER_SECOND: u32 = 8000;
/// Coalescing by a timer that starts at the first waiting frame, without a limit on the number of frames.
const TIMER: Coalescing = Coalescing { max_usecs: 50, max_packets: u32::MAX };

/// Returns all policies, for interrupts that cost `interrupt_ns`. Only the two area policies are configured with this
/// cost.
pub fn all(interrupt_ns: u64) -> Vec<(&'static str, Moderator)> {
    let area = AreaConfig { cost: InterruptCost::Given { ns: interrupt_ns }, deadline_ns: DEADLINE_NS_DEFAULT };
    let adaptive = AreaConfig::default();
    let policies = [
        ("off", Policy::Off),
        ("fixed gap 125 µs", Policy::FixedGap { max_interrupts_per_second: FIXED_PER_SECOND }),
        ("timer 50 µs from the first frame", Policy::Coalescing(TIMER)),
        ("e1000 conservative (mode 3)", Policy::E1000(E1000Mode::Conservative)),
        ("e1000 dynamic (mode 1)", Policy::E1000(E1000Mode::Dynamic)),
        ("e1000 simplified (mode 4)", Policy::E1000(E1000Mode::Simplified)),
        ("net_dim, receive, event", Policy::NetDim(DimProfiles::ReceiveEvent)),
        ("net_dim, receive, completion", Policy::NetDim(DimProfiles::ReceiveCompletion)),
        ("area", Policy::Area(area)),
        ("quiet-or-area", Policy::QuietOrArea(area)),
        ("quiet-or-area, adaptive", Policy::QuietOrArea(adaptive)),
    ];
    let moderator = |policy| Moderator::new(ModerationConfig { policy, ..ModerationConfig::default() });
    policies.into_iter().map(|(name, policy)| (name, moderator(policy))).collect()
}
