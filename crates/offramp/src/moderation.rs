//! Moderation as a user writes it: in the file, on the command line, and in the control protocol.

use crate::up::config::unknown;
use offramp_adapter::moderation::{
    AreaConfig, COST_GIVEN_NS_MAX, Coalescing, DEADLINE_NS_MAX, DimProfiles, E1000Mode, INTERRUPTS_PER_SECOND_MAX,
    InterruptCost, ModerationConfig, Policy,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Longest time that frames may wait for more in microseconds: a second, far above what any adapter takes.
pub const RX_USECS_MAX: i64 = 1_000_000;
/// Most frames that may wait.
pub const RX_FRAMES_MAX: i64 = 1_000_000;
const NANOSECONDS_PER_MICROSECOND: u64 = 1000;
const MICROSECONDS_PER_SECOND: u32 = 1_000_000;
/// The names of all policies.
pub const POLICIES: [&str; 7] = ["off", "fixed-gap", "coalescing", "net-dim", "e1000", "area", "quiet-or-area"];
/// The names of e1000's modes.
pub const MODES: [(&str, E1000Mode); 3] =
    [("conservative", E1000Mode::Conservative), ("dynamic", E1000Mode::Dynamic), ("simplified", E1000Mode::Simplified)];

/// A policy and its parameters: a name alone, or these keys. What a policy has no use for is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moderation {
    /// One of [`POLICIES`]; may be left out where the parameters say which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Of `fixed-gap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_interrupts_per_second: Option<i64>,
    /// Of `coalescing`: so long after the first frame that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_usecs: Option<i64>,
    /// Of `coalescing`: or when so many wait. Without it, as many as come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_frames: Option<i64>,
    /// Of `e1000`: one of [`MODES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Of `area` and `quiet-or-area`: waiting that an interrupt is worth. Measured when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_cost_ns: Option<i64>,
    /// Of `area` and `quiet-or-area`, when the cost is measured: its price rises under load until no more interrupts
    /// come than these; 0: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_interrupts_per_second: Option<i64>,
    /// Of `area` and `quiet-or-area`: longest that a frame waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_usecs: Option<i64>,
}

/// The same as a table of keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    policy: Option<String>,
    max_interrupts_per_second: Option<i64>,
    rx_usecs: Option<i64>,
    rx_frames: Option<i64>,
    mode: Option<String>,
    interrupt_cost_ns: Option<i64>,
    load_interrupts_per_second: Option<i64>,
    deadline_usecs: Option<i64>,
}

impl<'de> Deserialize<'de> for Moderation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrKeys;
        impl<'de> Visitor<'de> for NameOrKeys {
            type Value = Moderation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a policy, or a table of its keys")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Moderation, E> {
                Ok(Moderation { policy: Some(name.to_owned()), ..Moderation::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Moderation, A::Error> {
                let keys = Keys::deserialize(MapAccessDeserializer::new(map))?;
                let Keys { policy, max_interrupts_per_second, rx_usecs, rx_frames, .. } = keys;
                let Keys { mode, interrupt_cost_ns, load_interrupts_per_second, deadline_usecs, .. } = keys;
                let moderation = Moderation {
                    policy,
                    max_interrupts_per_second,
                    rx_usecs,
                    rx_frames,
                    mode,
                    interrupt_cost_ns,
                    load_interrupts_per_second,
                    deadline_usecs,
                };
                if moderation == Moderation::default() {
                    return Err(A::Error::custom("moderation says nothing; write a policy"));
                }
                Ok(moderation)
            }
        }
        deserializer.deserialize_any(NameOrKeys)
    }
}

impl From<ModerationConfig> for Moderation {
    fn from(config: ModerationConfig) -> Self {
        let named = Self { policy: Some(config.policy.name().to_owned()), ..Self::default() };
        match config.policy {
            Policy::Off | Policy::NetDim(_) => named,
            Policy::FixedGap { max_interrupts_per_second: rate } => {
                Self { max_interrupts_per_second: Some(rate.into()), ..named }
            }
            Policy::Coalescing(Coalescing { max_usecs, max_packets }) => Self {
                rx_usecs: Some(max_usecs.into()),
                rx_frames: (max_packets < u32::MAX).then_some(max_packets.into()),
                ..named
            },
            Policy::E1000(mode) => {
                let name = MODES.into_iter().find(|(_, known)| *known == mode).map(|(name, _)| name.to_owned());
                Self { mode: name, ..named }
            }
            Policy::Area(AreaConfig { cost, deadline_ns }) | Policy::QuietOrArea(AreaConfig { cost, deadline_ns }) => {
                let (interrupt_cost_ns, load_interrupts_per_second) = match cost {
                    InterruptCost::Given { ns } => (i64::try_from(ns).ok(), None),
                    InterruptCost::Measured { .. } => (None, Some(0)),
                    InterruptCost::Adaptive { interrupts_per_second } => (None, Some(interrupts_per_second.into())),
                };
                let deadline_usecs = i64::try_from(deadline_ns / NANOSECONDS_PER_MICROSECOND).ok();
                Self { interrupt_cost_ns, load_interrupts_per_second, deadline_usecs, ..named }
            }
        }
    }
}

impl Moderation {
    /// Out of the words of a command: the name of a policy, and `KEY=VALUE` for each parameter.
    ///
    /// # Errors
    /// One line that names the word, and what is known.
    pub fn from_words(words: &[String]) -> Result<Self, String> {
        let mut moderation = Self::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or(("policy", word));
            match key {
                "policy" => moderation.policy = Some(value.to_owned()),
                "mode" => moderation.mode = Some(value.to_owned()),
                _ => {
                    let place = moderation.number_mut(key)?;
                    let number = value.parse().map_err(|_| format!("moderation.{key} \"{value}\" is no whole number"));
                    *place = Some(number?);
                }
            }
        }
        moderation.config().map(|_| moderation)
    }

    fn number_mut(&mut self, key: &str) -> Result<&mut Option<i64>, String> {
        const KNOWN: [&str; 8] = [
            "policy",
            "mode",
            "max_interrupts_per_second",
            "rx_usecs",
            "rx_frames",
            "interrupt_cost_ns",
            "load_interrupts_per_second",
            "deadline_usecs",
        ];
        match key {
            "max_interrupts_per_second" => Ok(&mut self.max_interrupts_per_second),
            "rx_usecs" => Ok(&mut self.rx_usecs),
            "rx_frames" => Ok(&mut self.rx_frames),
            "interrupt_cost_ns" => Ok(&mut self.interrupt_cost_ns),
            "load_interrupts_per_second" => Ok(&mut self.load_interrupts_per_second),
            "deadline_usecs" => Ok(&mut self.deadline_usecs),
            _ => Err(unknown("key", key, KNOWN)),
        }
    }

    /// What it means to an adapter.
    ///
    /// # Errors
    /// One line that names the key, its value and its range.
    pub fn config(&self) -> Result<ModerationConfig, String> {
        let name = self.policy_name()?;
        self.has_only(name)?;
        let policy = match name {
            "off" => Policy::Off,
            "fixed-gap" => Policy::FixedGap { max_interrupts_per_second: self.interrupts_per_second()? },
            "coalescing" => Policy::Coalescing(self.coalescing()?),
            "net-dim" => Policy::NetDim(DimProfiles::default()),
            "e1000" => Policy::E1000(self.e1000_mode()?),
            "area" => Policy::Area(self.area()?),
            _ => Policy::QuietOrArea(self.area()?),
        };
        Ok(ModerationConfig { policy, ..ModerationConfig::default() })
    }

    fn policy_name(&self) -> Result<&'static str, String> {
        match &self.policy {
            Some(name) => {
                let known = POLICIES.into_iter().find(|known| known == name);
                known.ok_or_else(|| unknown("moderation policy", name, POLICIES))
            }
            None if self.max_interrupts_per_second.is_some() => Ok("fixed-gap"),
            None if self.rx_usecs.is_some() || self.rx_frames.is_some() => Ok("coalescing"),
            None if self.mode.is_some() => Ok("e1000"),
            None => Err(format!("moderation has no policy; write one of {}", POLICIES.join(", "))),
        }
    }

    /// Refuses keys that the policy has no use for.
    fn has_only(&self, policy: &str) -> Result<(), String> {
        let keys: [(&str, bool, &[&str]); 7] = [
            ("max_interrupts_per_second", self.max_interrupts_per_second.is_some(), &["fixed-gap"]),
            ("rx_usecs", self.rx_usecs.is_some(), &["coalescing"]),
            ("rx_frames", self.rx_frames.is_some(), &["coalescing"]),
            ("mode", self.mode.is_some(), &["e1000"]),
            ("interrupt_cost_ns", self.interrupt_cost_ns.is_some(), &["area", "quiet-or-area"]),
            ("load_interrupts_per_second", self.load_interrupts_per_second.is_some(), &["area", "quiet-or-area"]),
            ("deadline_usecs", self.deadline_usecs.is_some(), &["area", "quiet-or-area"]),
        ];
        match keys.into_iter().find(|(_, is_there, policies)| *is_there && !policies.contains(&policy)) {
            None => Ok(()),
            Some((key, _, policies)) => {
                Err(format!("moderation.{key} belongs to {}, not to {policy}; leave it out", policies.join(" and ")))
            }
        }
    }

    fn interrupts_per_second(&self) -> Result<u32, String> {
        let Some(rate) = self.max_interrupts_per_second else {
            return Err("moderation fixed-gap has no max_interrupts_per_second; write one, such as 8000".to_owned());
        };
        Ok(in_range("max_interrupts_per_second", rate, 1..=INTERRUPTS_PER_SECOND_MAX.into())? as u32)
    }

    fn coalescing(&self) -> Result<Coalescing, String> {
        let Some(usecs) = self.rx_usecs else {
            return Err("moderation coalescing has no rx_usecs; write one, such as 50".to_owned());
        };
        let max_usecs = in_range("rx_usecs", usecs, 0..=RX_USECS_MAX)? as u32;
        let max_packets = match self.rx_frames {
            Some(frames) => in_range("rx_frames", frames, 1..=RX_FRAMES_MAX)? as u32,
            None => u32::MAX,
        };
        Ok(Coalescing { max_usecs, max_packets })
    }

    fn e1000_mode(&self) -> Result<E1000Mode, String> {
        let Some(mode) = &self.mode else { return Ok(E1000Mode::default()) };
        let known = MODES.into_iter().find(|(name, _)| name == mode).map(|(_, mode)| mode);
        known.ok_or_else(|| unknown("moderation.mode", mode, MODES.map(|(name, _)| name)))
    }

    fn area(&self) -> Result<AreaConfig, String> {
        let mut area = AreaConfig::default();
        if let Some(ns) = self.interrupt_cost_ns {
            let ns = in_range("interrupt_cost_ns", ns, 0..=COST_GIVEN_NS_MAX as i64)?;
            area.cost = InterruptCost::Given { ns: ns as u64 };
        }
        if let Some(rate) = self.load_interrupts_per_second {
            if self.interrupt_cost_ns.is_some() {
                let message = "moderation has both interrupt_cost_ns and load_interrupts_per_second; a cost that is given has no price that adapts: leave one out";
                return Err(message.to_owned());
            }
            area.cost = match in_range("load_interrupts_per_second", rate, 0..=INTERRUPTS_PER_SECOND_MAX.into())? {
                0 => InterruptCost::MEASURED,
                rate => InterruptCost::Adaptive { interrupts_per_second: rate as u32 },
            };
        }
        if let Some(usecs) = self.deadline_usecs {
            let usecs_max = DEADLINE_NS_MAX / NANOSECONDS_PER_MICROSECOND;
            let usecs = in_range("deadline_usecs", usecs, 0..=usecs_max as i64)?;
            area.deadline_ns = usecs as u64 * NANOSECONDS_PER_MICROSECOND;
        }
        Ok(area)
    }

    /// In one line for a human.
    pub fn sentence(&self) -> String {
        let numbers = [
            ("max_interrupts_per_second", self.max_interrupts_per_second),
            ("rx_usecs", self.rx_usecs),
            ("rx_frames", self.rx_frames),
            ("interrupt_cost_ns", self.interrupt_cost_ns),
            ("load_interrupts_per_second", self.load_interrupts_per_second),
            ("deadline_usecs", self.deadline_usecs),
        ];
        let mut words: Vec<String> = self.policy.iter().chain(&self.mode).cloned().collect();
        words.extend(numbers.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?))));
        words.join(" ")
    }
}

fn in_range(key: &str, value: i64, range: RangeInclusive<i64>) -> Result<i64, String> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = range.into_inner();
    Err(format!("moderation.{key} {value} is out of range; use {least} to {most}"))
}

/// A shortest time between two interrupts, in microseconds; none when it is 0. It is as long or, for the whole number
/// of interrupts in a second that it becomes, a little longer.
pub fn fixed_gap(usecs: u32) -> ModerationConfig {
    let policy = match MICROSECONDS_PER_SECOND.checked_div(usecs) {
        None => Policy::Off,
        Some(rate) => Policy::FixedGap { max_interrupts_per_second: rate.max(1) },
    };
    ModerationConfig { policy, ..ModerationConfig::default() }
}

/// The gap that [`fixed_gap`] makes a moderation of, in microseconds; 0 for any other policy.
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
        Moderation::from_words(&words)?.config().map(|config| config.policy)
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
            assert_eq!(told.config(), Ok(config), "{words}");
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
        refused("rx_frames=5", "has no rx_usecs");
        refused("fixed-gap", "has no max_interrupts_per_second");
        refused("max_interrupts_per_second=0", "out of range; use 1 to 1000000");
        refused("off rx_usecs=5", "moderation.rx_usecs belongs to coalescing, not to off");
        refused("e1000 mode=fast", "unknown moderation.mode \"fast\"");
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
