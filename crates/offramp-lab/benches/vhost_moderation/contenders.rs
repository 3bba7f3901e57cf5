//! The compared policies (contenders), and their order in each round.

use offramp_adapter::moderation::{AreaConfig, InterruptCost, ModerationConfig, Policy};

pub const OFF: &str = "off";
pub const DEFAULT: &str = "quiet-or-area";
pub const FIXED: &str = "8000/s";
const FIXED_INTERRUPTS_PER_SECOND: u32 = 8000;

#[derive(Clone, Debug)]
pub struct Contender {
    pub name: String,
    pub moderation: ModerationConfig,
    /// `true` if the bounds of the default policy apply to this contender.
    pub is_bound: bool,
}

/// Returns the contenders: the base first, then the default policy, and a policy with a fixed interrupt rate. The
/// default policy follows once more for each interrupt rate in `load_interrupts`, a comma-separated list of interrupts
/// per second under load.
pub fn all(load_interrupts: &str) -> Vec<Contender> {
    let fixed = Policy::FixedGap { max_interrupts_per_second: FIXED_INTERRUPTS_PER_SECOND };
    let mut all = vec![
        contender(OFF, ModerationConfig::default(), false),
        contender(DEFAULT, ModerationConfig::adaptive(), true),
        contender(FIXED, ModerationConfig { policy: fixed, ..ModerationConfig::default() }, false),
    ];
    all.extend(load_interrupts.split(',').filter(|number| !number.is_empty()).map(|number| {
        let interrupts_per_second =
            number.parse().unwrap_or_else(|e| panic!("--load-interrupts {number}: {e}; as in 4000,7000"));
        let cost = InterruptCost::Adaptive { interrupts_per_second };
        let policy = Policy::QuietOrArea(AreaConfig { cost, ..AreaConfig::default() });
        contender(&format!("load {number}/s"), ModerationConfig { policy, ..ModerationConfig::default() }, true)
    }));
    all
}

fn contender(name: &str, moderation: ModerationConfig, is_bound: bool) -> Contender {
    Contender { name: name.to_owned(), moderation, is_bound }
}

/// Returns the order of the contenders in a round, as indices. The order is a Williams design, forwards and then
/// backwards. In a series of twice as many rounds as contenders, each contender follows every other contender about
/// equally often. No contender follows itself. After-effects of a sample, such as the delay before a hypervisor or
/// kernel halts a processor, thus favour no contender.
pub fn order(round: usize, contenders: usize) -> Vec<usize> {
    let round = round % (2 * contenders);
    let is_forwards = round < contenders;
    let shift = if is_forwards { round } else { 3 * contenders - 2 - round };
    let zigzag = |turn: usize| if turn.is_multiple_of(2) { contenders - turn / 2 } else { turn.div_ceil(2) };
    let mut order: Vec<usize> = (0..contenders).map(|turn| (zigzag(turn) + shift) % contenders).collect();
    if !is_forwards {
        order.reverse();
    }
    order
}
