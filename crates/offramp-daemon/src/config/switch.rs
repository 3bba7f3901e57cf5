//! Checks `[[switch]]`.

use super::check::{Check, parse_mac};
use super::place::ConfigError;
use super::types::SwitchConfig;
use crate::schema::file::{self, Key};
use crate::schema::unit::Amount;
use crate::schema::unknown;
use offramp_adapter::switch::{LinkProtocol, LinkProtocols, UnknownUnicast, reserved};
use std::ops::RangeInclusive;
use toml::Spanned;

/// Valid sizes of a switch's address table, and the default size, in entries. The default size has the order of
/// magnitude of a Linux bridge's table.
pub(super) const MAC_ENTRIES: RangeInclusive<i64> = 1..=1_048_576;
pub(super) const MAC_ENTRIES_DEFAULT: i64 = 4096;
/// Valid ageing times of a switch's addresses, and the default time, in seconds (IEEE 802.1Q 8.8.3: 10 to 1,000,000,
/// default 300).
pub(super) const AGE_SECONDS: RangeInclusive<i64> = 10..=1_000_000;
pub(super) const AGE_SECONDS_DEFAULT: i64 = 300;
/// Valid limits on flooded frames per second from one port, and the default limit.
pub(super) const FLOOD_FRAMES: RangeInclusive<i64> = 0..=1_000_000_000;
pub(super) const FLOOD_FRAMES_DEFAULT: i64 = 10_000;

/// The values of `switch.unknown_unicast`.
const UNKNOWN_UNICAST: [(&str, UnknownUnicast); 2] = [("flood", UnknownUnicast::Flood), ("drop", UnknownUnicast::Drop)];

/// The values of `switch.forward`.
const LINK_PROTOCOLS: [(&str, LinkProtocol); 5] = [
    ("stp", LinkProtocol::Stp),
    ("lacp", LinkProtocol::Lacp),
    ("eapol", LinkProtocol::Eapol),
    ("lldp", LinkProtocol::Lldp),
    ("ptp", LinkProtocol::Ptp),
];

impl Check<'_> {
    pub(super) fn switch(&self, written: &Spanned<file::Switch>) -> Result<SwitchConfig, ConfigError> {
        let name = self.name("switch", written.as_ref().name.as_ref(), written)?;
        let written = written.as_ref();
        let number =
            |key, value: &Key<Amount>, range, default| self.number(&format!("switch.{key}"), value, range, default);
        Ok(SwitchConfig {
            name,
            mac_entries_max: number("mac_entries_max", &written.mac_entries_max, MAC_ENTRIES, MAC_ENTRIES_DEFAULT)?
                as usize,
            age_seconds: number("age_seconds", &written.age_seconds, AGE_SECONDS, AGE_SECONDS_DEFAULT)? as u32,
            flood_frames_per_second: number(
                "flood_frames_per_second",
                &written.flood_frames_per_second,
                FLOOD_FRAMES,
                FLOOD_FRAMES_DEFAULT,
            )? as u32,
            unknown_unicast: self
                .one_of("switch", "unknown_unicast", &written.unknown_unicast, &UNKNOWN_UNICAST)?
                .unwrap_or_default(),
            forward_reserved: self.forward_reserved(&written.forward_reserved)?,
            forward: self.forward(&written.forward)?,
        })
    }

    /// Parses the forwarded link protocols.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn forward(&self, written: &Key<Vec<Spanned<String>>>) -> Result<LinkProtocols, ConfigError> {
        let listed = written.iter().flat_map(Spanned::as_ref);
        let protocol = |text: &Spanned<String>| {
            let found = LINK_PROTOCOLS.iter().find(|(name, _)| name == text.as_ref());
            found.map(|(_, protocol)| *protocol).ok_or_else(|| {
                let message = unknown("protocol", text.as_ref(), LINK_PROTOCOLS.iter().map(|(name, _)| *name));
                self.0.wrong(text.span(), format!("switch.forward: {message}"))
            })
        };
        listed.map(protocol).collect()
    }

    /// Parses the list of forwarded reserved addresses into a bit mask: bit *n* stands for the address that ends with
    /// *n*.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    fn forward_reserved(&self, written: &Key<Vec<Spanned<String>>>) -> Result<u16, ConfigError> {
        let mut listed = written.iter().flat_map(Spanned::as_ref);
        listed.try_fold(0, |bits, text| {
            let number = parse_mac(text.as_ref()).as_ref().and_then(reserved).ok_or_else(|| {
                let message = format!(
                    "switch.forward_reserved \"{}\" is no address that a switch discards; write some of \
                     \"01:80:c2:00:00:00\" to \"01:80:c2:00:00:0f\" (LLDP: \"01:80:c2:00:00:0e\")",
                    text.as_ref()
                );
                self.0.wrong(text.span(), message)
            })?;
            Ok(bits | 1 << number)
        })
    }
}
