//! Interrupt moderation as written by a user: in the file, on the command line, and in the control protocol.

use super::unit::with_unit;
use super::word::unknown;
use offramp_adapter::moderation::{
    AreaConfig, COST_GIVEN_NS_MAX, Coalescing, DEADLINE_NS_MAX, DimProfiles, E1000Mode, INTERRUPTS_PER_SECOND_MAX,
    InterruptCost, ModerationConfig, Policy,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use strum::VariantNames;

/// Maximum of `rx_usecs`, in microseconds: one second, far above the range of any network card.
pub const RX_USECS_MAX: i64 = 1_000_000;
/// Maximum of `rx_frames`.
pub const RX_FRAMES_MAX: i64 = 1_000_000;
const NANOSECONDS_PER_MICROSECOND: u64 = 1000;
const MICROSECONDS_PER_SECOND: u32 = 1_000_000;
const POLICY: &str = "policy";
/// The names of all policies.
pub const POLICIES: &[&str] = Keys::VARIANTS;

/// A key besides `policy`: its name, the policies that have the key, and the key's range if the value is a number.
type Key = (&'static str, &'static [&'static str], Option<RangeInclusive<i64>>);

/// All keys, in the order of display.
pub const KEYS: [Key; 7] = [
    ("mode", &["e1000"], None),
    ("max_interrupts_per_second", &["fixed-gap"], Some(1..=INTERRUPTS_PER_SECOND_MAX as i64)),
    ("rx_usecs", &["coalescing"], Some(0..=RX_USECS_MAX)),
    ("rx_frames", &["coalescing"], Some(1..=RX_FRAMES_MAX)),
    ("interrupt_cost_ns", &["area", "quiet-or-area"], Some(0..=COST_GIVEN_NS_MAX as i64)),
    ("load_interrupts_per_second", &["area", "quiet-or-area"], Some(0..=INTERRUPTS_PER_SECOND_MAX as i64)),
    ("deadline_usecs", &["area", "quiet-or-area"], Some(0..=(DEADLINE_NS_MAX / NANOSECONDS_PER_MICROSECOND) as i64)),
];

/// A policy and its parameters: a name, or a table with these keys. The name of the policy may be omitted if a key
/// belongs to only one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Moderation(Keys);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, VariantNames)]
#[strum(serialize_all = "kebab-case")]
#[serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields)]
enum Keys {
    Off {},
    FixedGap {
        max_interrupts_per_second: u32,
    },
    Coalescing {
        rx_usecs: u32,
        /// Maximum number of waiting frames; unlimited if the key is absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_frames: Option<u32>,
    },
    NetDim {},
    E1000 {
        #[serde(default, with = "Mode")]
        mode: E1000Mode,
    },
    Area(Area),
    QuietOrArea(Area),
}

/// The modes of the policy `e1000`, by name.
#[derive(Serialize, Deserialize, VariantNames)]
#[serde(remote = "E1000Mode", rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// Linux's `InterruptThrottleRate=1`.
    Dynamic,
    /// Linux's `InterruptThrottleRate=3`.
    Conservative,
    /// Linux's `InterruptThrottleRate=4`.
    Simplified,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Area {
    /// Cost of an interrupt, in nanoseconds; the cost is measured if the key is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupt_cost_ns: Option<u64>,
    /// Target number of interrupts per second under load. With 0, a measured cost is not raised under load.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_interrupts_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_usecs: Option<u64>,
}

impl TryFrom<Value> for Moderation {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(name) => Self::from_keys(Map::from_iter([(POLICY.to_owned(), name.into())])),
            Value::Object(keys) => Self::from_keys(keys),
            _ => Err("moderation is the name of a policy, or a table of its keys".to_owned()),
        }
    }
}

impl From<ModerationConfig> for Moderation {
    fn from(config: ModerationConfig) -> Self {
        Self(match config.policy {
            Policy::Off => Keys::Off {},
            Policy::FixedGap { max_interrupts_per_second } => Keys::FixedGap { max_interrupts_per_second },
            Policy::Coalescing(Coalescing { max_usecs, max_packets }) => {
                Keys::Coalescing { rx_usecs: max_usecs, rx_frames: (max_packets < u32::MAX).then_some(max_packets) }
            }
            Policy::NetDim(_) => Keys::NetDim {},
            Policy::E1000(mode) => Keys::E1000 { mode },
            Policy::Area(area) => Keys::Area(area.into()),
            Policy::QuietOrArea(area) => Keys::QuietOrArea(area.into()),
        })
    }
}

impl From<AreaConfig> for Area {
    fn from(AreaConfig { cost, deadline_ns }: AreaConfig) -> Self {
        let (interrupt_cost_ns, load_interrupts_per_second) = match cost {
            InterruptCost::Given { ns } => (Some(ns), None),
            InterruptCost::Measured { .. } => (None, Some(0)),
            InterruptCost::Adaptive { interrupts_per_second } => (None, Some(interrupts_per_second)),
        };
        let deadline_usecs = Some(deadline_ns / NANOSECONDS_PER_MICROSECOND);
        Self { interrupt_cost_ns, load_interrupts_per_second, deadline_usecs }
    }
}

impl Area {
    fn config(&self) -> AreaConfig {
        let default = AreaConfig::default();
        let cost = match (self.interrupt_cost_ns, self.load_interrupts_per_second) {
            (Some(ns), _) => InterruptCost::Given { ns },
            (None, Some(0)) => InterruptCost::MEASURED,
            (None, Some(interrupts_per_second)) => InterruptCost::Adaptive { interrupts_per_second },
            (None, None) => default.cost,
        };
        let deadline_ns = self.deadline_usecs.map_or(default.deadline_ns, |usecs| usecs * NANOSECONDS_PER_MICROSECOND);
        AreaConfig { cost, deadline_ns }
    }
}

impl Moderation {
    /// Parses the words of a command: the name of a policy, and `KEY=VALUE` for each parameter.
    ///
    /// # Errors
    /// Returns one line with the wrong word and the known words.
    pub fn from_words(words: &[String]) -> Result<Self, String> {
        let key = |word: &String| {
            let (key, value) = word.split_once('=').unwrap_or((POLICY, word));
            (key.to_owned(), value.parse::<i64>().map_or_else(|_| value.into(), Value::from))
        };
        Self::from_keys(words.iter().map(key).collect())
    }

    fn from_keys(mut keys: Map<String, Value>) -> Result<Self, String> {
        for (name, value) in &mut keys {
            if KEYS.iter().any(|(key, _, range)| key == name && range.is_some()) {
                *value = with_unit(name, value).map_err(|why| format!("moderation.{name} {value} {why}"))?;
            }
        }
        let policy = check(&keys)?;
        keys.insert(POLICY.to_owned(), policy.into());
        serde_json::from_value(keys.into()).map(Self).map_err(|error| format!("moderation {policy}: {error}"))
    }

    /// Returns the moderation as a setting of the adapter.
    pub fn config(&self) -> ModerationConfig {
        let policy = match &self.0 {
            Keys::Off {} => Policy::Off,
            &Keys::FixedGap { max_interrupts_per_second } => Policy::FixedGap { max_interrupts_per_second },
            &Keys::Coalescing { rx_usecs: max_usecs, rx_frames } => {
                Policy::Coalescing(Coalescing { max_usecs, max_packets: rx_frames.unwrap_or(u32::MAX) })
            }
            Keys::NetDim {} => Policy::NetDim(DimProfiles::default()),
            Keys::E1000 { mode } => Policy::E1000(*mode),
            Keys::Area(area) => Policy::Area(area.config()),
            Keys::QuietOrArea(area) => Policy::QuietOrArea(area.config()),
        };
        ModerationConfig { policy, ..ModerationConfig::default() }
    }

    /// Formats the moderation in one line.
    pub fn sentence(&self) -> String {
        let keys = serde_json::to_value(self).unwrap_or_default();
        let text = |key: &str| keys[key].as_str().map(str::to_owned);
        let number = |key: &str| keys[key].as_i64().map(|number| format!("{key} {number}"));
        let rest = KEYS.iter().filter_map(|(key, ..)| text(key).or_else(|| number(key)));
        text(POLICY).into_iter().chain(rest).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the name of the policy that `keys` select. Reports the errors for which serde's message would be less
/// helpful.
fn check(keys: &Map<String, Value>) -> Result<&'static str, String> {
    let mut given = Vec::new();
    for (name, value) in keys.iter().filter(|(name, _)| *name != POLICY) {
        let known = KEYS.iter().find(|(key, ..)| key == name);
        let all = || KEYS.iter().map(|(key, ..)| *key).chain([POLICY]);
        let (key, policies, range) = known.ok_or_else(|| unknown("key", name, all()))?;
        if let Some(range) = range {
            check_number(key, value, range)?;
        }
        given.push((*key, *policies));
    }
    let policy = policy(keys.get(POLICY), &given)?;
    if let Some((key, policies)) = given.iter().find(|(_, policies)| !policies.contains(&policy)) {
        return Err(format!("moderation.{key} belongs to {}, not to {policy}; leave it out", policies.join(" and ")));
    }
    if keys.contains_key("interrupt_cost_ns") && keys.contains_key("load_interrupts_per_second") {
        let message = "moderation has both interrupt_cost_ns and load_interrupts_per_second; a cost that is given does \
                       not adapt to load: leave one out";
        return Err(message.to_owned());
    }
    Ok(policy)
}

/// Returns the policy with this name. Without a name, returns the policy implied by the first given key that only one
/// policy has.
fn policy(name: Option<&Value>, given: &[(&str, &[&'static str])]) -> Result<&'static str, String> {
    if let Some(name) = name {
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        let known = POLICIES.iter().copied().find(|known| *known == name);
        return known.ok_or_else(|| unknown("moderation policy", &name, POLICIES.iter().copied()));
    }
    let only = given.iter().find_map(|(_, policies)| if let [only] = policies { Some(*only) } else { None });
    only.ok_or_else(|| format!("moderation has no policy; write one of {}", POLICIES.join(", ")))
}

fn check_number(key: &str, value: &Value, range: &RangeInclusive<i64>) -> Result<(), String> {
    let number = value.as_i64().ok_or_else(|| format!("moderation.{key} {value} is no whole number"))?;
    if range.contains(&number) {
        return Ok(());
    }
    Err(format!("moderation.{key} {number} is out of range; use {} to {}", range.start(), range.end()))
}

/// Returns a moderation with at least `usecs` microseconds between two interrupts; with 0, the moderation is off. The
/// time is rounded up, so the interrupt rate is a whole number of interrupts per second.
pub fn fixed_gap(usecs: u32) -> ModerationConfig {
    let policy = match MICROSECONDS_PER_SECOND.checked_div(usecs) {
        None => Policy::Off,
        Some(rate) => Policy::FixedGap { max_interrupts_per_second: rate.max(1) },
    };
    ModerationConfig { policy, ..ModerationConfig::default() }
}

/// Returns the minimum time between two interrupts of a moderation created by [`fixed_gap`], in microseconds; 0 for any
/// other policy.
pub fn gap_usecs(config: &ModerationConfig) -> u32 {
    match config.policy {
        Policy::FixedGap { max_interrupts_per_second: rate } => MICROSECONDS_PER_SECOND / rate.max(1),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<Policy, String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Moderation::from_words(&words).map(|moderation| moderation.config().policy)
    }

    #[test]
    fn every_policy_has_its_name_and_reads_back_as_it_is_told() {
        let given = AreaConfig { cost: InterruptCost::Given { ns: 20_000 }, deadline_ns: 300_000 };
        let cost = InterruptCost::Adaptive { interrupts_per_second: 9000 };
        let adaptive = AreaConfig { cost, ..AreaConfig::default() };
        let measured = AreaConfig { cost: InterruptCost::MEASURED, ..AreaConfig::default() };
        let policies = [
            ("off", Policy::Off),
            ("max_interrupts_per_second=8000", Policy::FixedGap { max_interrupts_per_second: 8000 }),
            ("rx_usecs=50 rx_frames=32", Policy::Coalescing(Coalescing { max_usecs: 50, max_packets: 32 })),
            ("rx_usecs=50us rx_frames=1k", Policy::Coalescing(Coalescing { max_usecs: 50, max_packets: 1000 })),
            ("coalescing rx_usecs=50", Policy::Coalescing(Coalescing { max_usecs: 50, max_packets: u32::MAX })),
            ("net-dim", Policy::NetDim(DimProfiles::ReceiveEvent)),
            ("e1000", Policy::E1000(E1000Mode::Conservative)),
            ("e1000 mode=simplified", Policy::E1000(E1000Mode::Simplified)),
            ("area", Policy::Area(AreaConfig::default())),
            ("quiet-or-area", Policy::QuietOrArea(AreaConfig::default())),
            ("quiet-or-area interrupt_cost_ns=20000 deadline_usecs=300", Policy::QuietOrArea(given)),
            ("quiet-or-area load_interrupts_per_second=9000", Policy::QuietOrArea(adaptive)),
            ("area load_interrupts_per_second=0", Policy::Area(measured)),
        ];
        for (words, policy) in policies {
            assert_eq!(parsed(words), Ok(policy), "{words}");
            assert!(POLICIES.contains(&policy.name()), "{words}");
            let config = ModerationConfig { policy, ..ModerationConfig::default() };
            let told = Moderation::from(config);
            assert_eq!(told.config(), config, "{words}");
            let text = serde_json::to_string(&told).unwrap();
            assert_eq!(serde_json::from_str::<Moderation>(&text).unwrap(), told, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_right() {
        let refused = |words: &str, text: &str| {
            let message = parsed(words).unwrap_err();
            assert!(message.contains(text), "{words}: {message}");
        };
        refused("quiet", "unknown moderation policy \"quiet\"; did you mean");
        refused("rx_usec=5", "unknown key \"rx_usec\"; did you mean \"rx_usecs\"?");
        refused("rx_usecs=soon", "moderation.rx_usecs \"soon\" is no whole number");
        refused("rx_usecs=1000001", "moderation.rx_usecs 1000001 is out of range; use 0 to 1000000");
        refused("rx_usecs=5 rx_frames=0", "moderation.rx_frames 0 is out of range; use 1 to");
        refused("rx_frames=5", "moderation coalescing: missing field `rx_usecs`");
        refused("fixed-gap", "moderation fixed-gap: missing field `max_interrupts_per_second`");
        refused("max_interrupts_per_second=0", "out of range; use 1 to 1000000");
        refused("off rx_usecs=5", "moderation.rx_usecs belongs to coalescing, not to off");
        refused(
            "e1000 mode=fast",
            "moderation e1000: unknown variant `fast`, expected one of `dynamic`, `conservative`",
        );
        refused("deadline_usecs=5", "moderation has no policy; write one of off,");
        refused("area deadline_usecs=2000000", "use 0 to 1000000");
        refused("area interrupt_cost_ns=-1", "use 0 to 10000000");
        refused("area load_interrupts_per_second=-1", "use 0 to 1000000");
        refused("area load_interrupts_per_second=9000 interrupt_cost_ns=1", "leave one out");
        refused("off load_interrupts_per_second=9000", "belongs to area and quiet-or-area, not to off");
    }

    #[test]
    fn a_gap_in_microseconds_is_never_made_shorter() {
        assert_eq!(fixed_gap(0), ModerationConfig::default());
        for usecs in [1, 12, 125, 7777, 700_000, 1_000_000] {
            let gap = gap_usecs(&fixed_gap(usecs));
            assert!(gap >= usecs, "{usecs}: {gap}");
        }
        assert_eq!(gap_usecs(&fixed_gap(125)), 125);
    }
}
