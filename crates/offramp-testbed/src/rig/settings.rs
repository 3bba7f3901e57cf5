//! Deserialization of those settings of a rig whose types belong to other crates.

use crate::esp::{EspBy, EspLink};
use offramp_adapter::moderation::{AreaConfig, Coalescing, DimProfiles, E1000Mode, ModerationConfig, Policy};
use offramp_impair::fault::{BusConfig, FaultConfig, VerdictConfig, WrongVerdict};
use offramp_impair::memory::{MemoryConfig, OverflowPolicy, PAGE_LEN_DP8390, ReceiveMemory};
use offramp_offload::caps::{NAMES, Offloads};
use offramp_offload::esp::Suite;
use offramp_offload::names::{self, GROUPS};
use offramp_ports::worker::Polling;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::time::Duration;

#[derive(Deserialize)]
#[serde(untagged, expecting = "write a rate in bits per second, or \"unlimited\"")]
enum RateForm {
    BitsPerSecond(u64),
    Word(NoLimit),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum NoLimit {
    Unlimited,
}

/// Reads a rate in bits per second; `None` for `"unlimited"`.
pub(super) fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(match RateForm::deserialize(from)? {
        RateForm::BitsPerSecond(rate_bps) => Some(rate_bps),
        RateForm::Word(NoLimit::Unlimited) => None,
    })
}

/// The names in error messages; ethtool's names are valid too.
const OFFLOADS: &[&str] = &{
    let mut names = [""; GROUPS.len() + NAMES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = if at < GROUPS.len() { GROUPS[at] } else { NAMES[at - GROUPS.len()].name };
        at += 1;
    }
    names
};

/// Reads a list of offloads, from left to right. A leading minus removes an offload from the set.
pub(super) fn offloads<'de, D: Deserializer<'de>>(from: D) -> Result<Offloads, D::Error> {
    let mut set = Offloads::empty();
    for word in Vec::<String>::deserialize(from)? {
        let name = word.strip_prefix('-').unwrap_or(&word);
        let known = names::offloads(name).filter(|offloads| !offloads.is_empty());
        let offloads = known.ok_or_else(|| D::Error::unknown_variant(name, OFFLOADS))?;
        set.set(offloads, name == word);
    }
    Ok(set.with_prerequisites())
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum PolicyForm {
    Off,
    QuietOrArea,
    Area,
    NetDim,
    E1000,
    FixedGap { max_interrupts_per_second: u32 },
    Coalescing { max_usecs: u32, max_packets: u32 },
}

pub(super) fn moderation<'de, D: Deserializer<'de>>(from: D) -> Result<ModerationConfig, D::Error> {
    let policy = match PolicyForm::deserialize(from)? {
        PolicyForm::Off => Policy::Off,
        PolicyForm::QuietOrArea => Policy::QuietOrArea(AreaConfig::default()),
        PolicyForm::Area => Policy::Area(AreaConfig::default()),
        PolicyForm::NetDim => Policy::NetDim(DimProfiles::default()),
        PolicyForm::E1000 => Policy::E1000(E1000Mode::default()),
        PolicyForm::FixedGap { max_interrupts_per_second } => Policy::FixedGap { max_interrupts_per_second },
        PolicyForm::Coalescing { max_usecs, max_packets } => Policy::Coalescing(Coalescing { max_usecs, max_packets }),
    };
    let config = ModerationConfig { policy, ..ModerationConfig::default() };
    config.check().map(|()| config).map_err(D::Error::custom)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PollingForm {
    Off,
    FixedUsecs(u32),
    AdaptiveUsecs(u32),
}

pub(super) fn polling<'de, D: Deserializer<'de>>(from: D) -> Result<Polling, D::Error> {
    let time = |usecs: u32| Duration::from_micros(usecs.into());
    Ok(match PollingForm::deserialize(from)? {
        PollingForm::Off => Polling::Off,
        PollingForm::FixedUsecs(usecs) => Polling::Fixed(time(usecs)),
        PollingForm::AdaptiveUsecs(usecs) => Polling::Adaptive(time(usecs)),
    })
}

/// Names of placements in a file.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PlacementForm {
    Apart,
    ServerAlone,
    Free,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OverflowForm {
    Stop,
    Drop,
    Overrun,
}

/// Settings of a card with a DP8390.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryForm {
    card_bytes: usize,
    /// Bytes of memory for received frames, in place of the card's default.
    receive_bytes: Option<usize>,
    overflow: Option<OverflowForm>,
}

pub(super) fn memory<'de, D: Deserializer<'de>>(from: D) -> Result<MemoryConfig, D::Error> {
    let MemoryForm { card_bytes, receive_bytes, overflow } = MemoryForm::deserialize(from)?;
    let mut memory = MemoryConfig::dp8390(card_bytes).map_err(D::Error::custom)?;
    if let Some(bytes) = receive_bytes {
        memory.receive = ReceiveMemory::Pages { pages: bytes / PAGE_LEN_DP8390, page_len: PAGE_LEN_DP8390 };
    }
    match overflow {
        Some(OverflowForm::Drop) => memory.policy = OverflowPolicy::Drop,
        Some(OverflowForm::Overrun) => memory.policy = OverflowPolicy::Overrun,
        Some(OverflowForm::Stop) | None => {}
    }
    memory.check().map(|()| memory).map_err(D::Error::custom)
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct FaultForm {
    bus_bytes_per_second: Option<u64>,
    bus_frame_ns: u64,
    receive_first: bool,
    loss_one_in: Option<u32>,
    duplicate_one_in: Option<u32>,
    delay_ns: u64,
    reverse_frames: Option<usize>,
    good_is_bad_one_in: Option<u32>,
    seed: u64,
}

pub(super) fn faults<'de, D: Deserializer<'de>>(from: D) -> Result<FaultConfig, D::Error> {
    let form = FaultForm::deserialize(from)?;
    let faults = FaultConfig {
        bus: BusConfig { bytes_per_second: form.bus_bytes_per_second, frame_ns: form.bus_frame_ns },
        receive_first: form.receive_first,
        loss_one_in: form.loss_one_in,
        duplicate_one_in: form.duplicate_one_in,
        delay_ns: form.delay_ns,
        reverse_frames: form.reverse_frames,
        verdict: form.good_is_bad_one_in.map(|one_in| VerdictConfig { wrong: WrongVerdict::GoodIsBad, one_in }),
        seed: form.seed,
    };
    faults.check().map(|()| faults).map_err(D::Error::custom)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EspForm {
    suite: String,
    by: EspBy,
}

pub(super) fn esp<'de, D: Deserializer<'de>>(from: D) -> Result<Option<EspLink>, D::Error> {
    let EspForm { suite, by } = EspForm::deserialize(from)?;
    let suite = Suite::by_name(&suite).map_err(D::Error::custom)?;
    Ok(Some(EspLink { suite, by }))
}
