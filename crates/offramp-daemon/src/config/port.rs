//! Checks `[[port]]`, except its host, its wire, its security and its associations.

use super::check::Check;
use super::place::ConfigError;
use super::types::{DaemonConfig, PortConfig};
use crate::kind::{self, WireConfig};
use crate::schema::feature;
use crate::schema::file;
use crate::schema::moderation::{RX_USECS_MAX, fixed_gap};
use offramp_adapter::config::{MTU_DEFAULT, MTU_MAX, MTU_MIN};
use offramp_adapter::moderation::ModerationConfig;
use offramp_offload::caps::Offloads;
use offramp_ports::sys::cpu;
use std::collections::BTreeMap;
use std::path::Path;
use toml::Spanned;
use toml::de::DeValue;

/// Maximum polling time of a thread, in microseconds. With a longer time, a thread would hardly ever sleep.
pub(super) const POLL_USECS_MAX: i64 = 1_000_000;

/// Minimum MTU of a link with IPv6, in bytes (RFC 8200, 5).
const IPV6_MTU_MIN: i64 = 1280;

impl Check<'_> {
    pub(super) fn port(
        &self,
        whole: &Spanned<file::Port>,
        table: &DeValue<'_>,
        faults: Option<&Spanned<bool>>,
        directory: &Path,
        daemon: &DaemonConfig,
    ) -> Result<PortConfig, ConfigError> {
        let written = whole.as_ref();
        let host = table.get("host").map(|value| kind::host(self, value)).transpose()?;
        let wire = table.get("wire").map(|value| kind::wire(self, value)).transpose()?;
        let name = self.name("port", written.name.as_ref(), whole)?;
        let missing = |key: &str, what: &str| {
            self.0.wrong(whole.span(), format!("port \"{name}\" has no {key}; write {key} = {{ {what} }}"))
        };
        let host = host.ok_or_else(|| missing("host", "tap = \"NAME\""))?;
        let (wire, rate) = wire.ok_or_else(|| missing("wire", "cable = \"PORT\""))?;
        let mtu = self.number("port.mtu", &written.mtu, MTU_MIN as i64..=MTU_MAX as i64, MTU_DEFAULT as i64)?;
        if host.addresses.iter().any(|host| host.address.is_ipv6()) && mtu < IPV6_MTU_MIN {
            let message = format!("port.host.address: IPv6 needs port.mtu of at least {IPV6_MTU_MIN}, and it is {mtu}");
            return Err(self.0.wrong(written.host.as_ref().map_or(whole.span(), Spanned::span), message));
        }
        let poll_usecs = self.number("port.poll_usecs", &written.poll_usecs, 0..=POLL_USECS_MAX, 0)?;
        // On a cable, moderation delays frames. On any other wire, moderation delays only interrupts, so the host must
        // be able to find frames before an interrupt.
        let can_moderate = matches!(wire, WireConfig::Cable(_)) || host.has_interrupts;
        Ok(PortConfig {
            ipsec: self.ipsec(&name, written, directory, host.queue_pairs, daemon)?,
            security: self.security(written, host.mac)?,
            isolated: self.isolated(written, &wire)?,
            mtu: mtu as usize,
            offloads: self.features(&written.features)?,
            moderation: self.moderation(written, can_moderate)?,
            limits: written.limit.as_ref().map(|limit| limit.as_ref().0).unwrap_or_default(),
            poll_usecs: written.poll_usecs.is_some().then_some(poll_usecs as u32),
            bits_per_second: self.bits_per_second(&wire, &rate)?,
            memory: self.memory(written.memory.as_ref(), mtu as usize)?,
            faults: self.faults(written.faults.as_ref(), faults)?,
            cpus: self.cpus(written.cpus.as_ref())?,
            host,
            wire,
            name,
        })
    }

    pub(super) fn moderation(&self, written: &file::Port, can_moderate: bool) -> Result<ModerationConfig, ConfigError> {
        let rx_usecs = self.number("port.rx_usecs", &written.rx_usecs, 0..=RX_USECS_MAX, 0)?;
        match (&written.moderation, &written.rx_usecs) {
            (Some(moderation), None) => Ok(moderation.as_ref().config()),
            (Some(moderation), Some(_)) => {
                let message = "port.moderation and port.rx_usecs both say when the host is interrupted; leave one out";
                Err(self.0.wrong(moderation.span(), message))
            }
            (None, Some(_)) => Ok(fixed_gap(rx_usecs as u32)),
            (None, None) if can_moderate => Ok(ModerationConfig::adaptive()),
            (None, None) => Ok(ModerationConfig::default()),
        }
    }

    pub(super) fn features(&self, written: &BTreeMap<Spanned<String>, Spanned<bool>>) -> Result<Offloads, ConfigError> {
        // Keys apply in the file's order: `all = false` before `tso4 = true` leaves TSO4 on.
        let mut ordered: Vec<_> = written.iter().collect();
        ordered.sort_by_key(|(name, _)| name.span().start);
        ordered.into_iter().try_fold(Offloads::RATIFIED, |allowed, (name, on)| {
            let offloads = feature(name.as_ref()).map_err(|message| self.0.wrong(name.span(), message))?;
            Ok(if *on.as_ref() { allowed | offloads } else { allowed - offloads })
        })
    }

    pub(super) fn cpus(&self, written: Option<&Spanned<Vec<Spanned<i64>>>>) -> Result<Vec<usize>, ConfigError> {
        let Some(written) = written else { return Ok(Vec::new()) };
        let online = cpu::online();
        let checked = written.as_ref().iter().map(|number| {
            let known = usize::try_from(*number.as_ref()).ok().filter(|cpu| online.contains(cpu));
            let message = || format!("port.cpus: no processor {}; there are {online:?}", number.as_ref());
            known.ok_or_else(|| self.0.wrong(number.span(), message()))
        });
        checked.collect()
    }
}
