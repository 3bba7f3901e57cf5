//! Checks the addresses, the isolation and the VLANs of a port's host: `port.mac_addresses`, `port.ip_addresses`,
//! `port.isolated`, `port.vlan`, `port.vlans`.

use super::check::Check;
use super::place::ConfigError;
use super::share::last;
use super::types::{Config, PortConfig};
use crate::kind::WireConfig;
use crate::schema::file;
use crate::schema::ipsec::prefix;
use offramp_adapter::port_security::{PortSecurity, is_virtual_router};
use offramp_adapter::vlan::{PortVlans, VIDS};
use offramp_offload::esp::Prefix;
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use toml::{Spanned, Value};

impl Check<'_> {
    /// Parses the allowed source addresses. A host whose MAC address is in the file may use only that address, unless
    /// the file lists other addresses.
    pub(super) fn security(&self, written: &file::Port, mac: Option<[u8; 6]>) -> Result<PortSecurity, ConfigError> {
        let mac_addresses = match &written.mac_addresses {
            None => mac.into_iter().collect(),
            Some(listed) => {
                let address = |mac| self.address_of_host("port.mac_addresses", mac);
                listed.as_ref().iter().map(address).collect::<Result<_, _>>()?
            }
        };
        let network = |text: &Spanned<String>| {
            prefix(text.as_ref()).map_err(|wrong| self.0.wrong(text.span(), format!("port.ip_addresses {wrong}")))
        };
        let listed = written.ip_addresses.iter().flat_map(Spanned::as_ref);
        let ip_addresses = listed.map(network).collect::<Result<_, _>>()?;
        Ok(PortSecurity { mac_addresses, ip_addresses, vlans: self.vlans(written)? })
    }

    /// Parses the VLAN of untagged frames, and the permitted tags.
    fn vlans(&self, written: &file::Port) -> Result<PortVlans, ConfigError> {
        let vids = i64::from(*VIDS.start())..=i64::from(*VIDS.end());
        let vid = self.number("port.vlan", &written.vlan, vids, 0)? as u16;
        let wrong = |at, cause: &str| self.0.wrong(at, format!("port.vlans: {cause}"));
        let listed = written.vlans.iter().flat_map(Spanned::as_ref);
        let range = |entry: &Spanned<Value>| vlans_in(entry.as_ref()).map_err(|cause| wrong(entry.span(), &cause));
        let tagged = listed.map(range).collect::<Result<Vec<_>, _>>()?;
        let span = written.vlans.as_ref().map(Spanned::span);
        if let Some(span) = span.clone().filter(|_| tagged.is_empty()) {
            return Err(wrong(span, "no VLAN; list some, or leave it out"));
        }
        let vlans = PortVlans::new(written.vlan.is_some().then_some(vid), &tagged);
        vlans.map_err(|cause| wrong(span.unwrap_or_default(), &cause.to_string()))
    }

    pub(super) fn isolated(&self, written: &file::Port, wire: &WireConfig) -> Result<bool, ConfigError> {
        match &written.isolated {
            Some(isolated) if !matches!(wire, WireConfig::Switch(_)) => {
                Err(self.0.wrong(isolated.span(), "port.isolated belongs to a port on a switch; leave it out here"))
            }
            isolated => Ok(isolated.as_ref().is_some_and(|isolated| *isolated.as_ref())),
        }
    }

    /// Refuses an Ethernet address shared by two ports of a switch, because the switch binds an address to one port.
    /// Only the address of a virtual router may be shared.
    pub(super) fn ports_share_no_address(
        &self,
        ports: &[Arc<PortConfig>],
        written: &[Spanned<file::Port>],
    ) -> Result<(), ConfigError> {
        for (at, (port, written)) in last(ports, written) {
            let shared = |other: &Arc<PortConfig>| {
                let bound = |mac: &&[u8; 6]| !is_virtual_router(mac) && other.security.mac_addresses.contains(*mac);
                let own = are_on_one_switch(port, other).then_some(&port.security.mac_addresses)?;
                own.iter().find(bound).map(|mac| (*mac, other.name.clone()))
            };
            if let Some((mac, other)) = ports[..at].iter().find_map(shared) {
                let (key, place) = match &written.as_ref().mac_addresses {
                    Some(listed) => ("mac_addresses", listed.span()),
                    None => ("host.mac", written.as_ref().host.as_ref().map_or(written.span(), Spanned::span)),
                };
                let (name, mac) = (&port.name, mac.map(|octet| format!("{octet:02x}")).join(":"));
                let message = format!(
                    "port \"{name}\": {key}: port \"{other}\" of the same switch has the address {mac}, too; give each \
                     host its own"
                );
                return Err(self.0.wrong(place, message));
            }
        }
        Ok(())
    }
}

fn are_on_one_switch(port: &PortConfig, other: &PortConfig) -> bool {
    matches!(port.wire, WireConfig::Switch(_)) && other.wire == port.wire
}

/// Returns whether two ports have a VLAN in common, or are both without VLANs.
fn share_vlan(one: &PortVlans, other: &PortVlans) -> bool {
    let all =
        |of: &PortVlans| of.tagged().iter().cloned().chain(of.untagged().map(|vid| vid..=vid)).collect::<Vec<_>>();
    let (ranges, others) = (all(one), all(other));
    let overlaps = |range: &RangeInclusive<u16>| {
        others.iter().any(|other| range.start() <= other.end() && other.start() <= range.end())
    };
    one.is_off() && other.is_off() || ranges.iter().any(overlaps)
}

impl Config {
    /// Returns a message if another port of the switch, in the same VLAN, lists an IP address of this port. The routers
    /// of a VRRP group may share the address of their virtual router. If both ports are in `names`, only the port with
    /// the later name gets the message.
    pub(super) fn shared_ip_address(&self, port: &PortConfig, names: &HashSet<&str>) -> Option<String> {
        let shared = |other: &Arc<PortConfig>| {
            let is_first = names.contains(&*other.name) && other.name >= port.name;
            let (own, others) = (&port.security, &other.security);
            let is_group = |mac| is_virtual_router(mac) && others.mac_addresses.contains(mac);
            let is_shared = |ip: &&Prefix| **ip == Prefix::of(ip.address()) && others.ip_addresses.contains(*ip);
            let ip = own.ip_addresses.iter().find(is_shared)?;
            let is_apart = !share_vlan(&own.vlans, &others.vlans) || !are_on_one_switch(port, other);
            let is_right = is_first || is_apart || own.mac_addresses.iter().any(is_group);
            (!is_right).then(|| (ip.address(), other.name.clone()))
        };
        let (ip, other) = self.ports.iter().find_map(shared)?;
        Some(format!(
            "port \"{}\": ip_addresses: port \"{other}\" of the same switch has {ip}, too; list it at one port only, \
             unless one host takes it over from the other",
            port.name
        ))
    }
}

/// Parses a VLAN number, or a range of VLAN numbers in a string.
fn vlans_in(value: &Value) -> Result<RangeInclusive<u16>, String> {
    let range = match value {
        Value::Integer(vid) => u16::try_from(*vid).ok().map(|vid| vid..=vid),
        Value::String(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            first.trim().parse().ok().zip(last.trim().parse().ok()).map(|(first, last)| first..=last)
        }
        _ => None,
    };
    let (first, last) = (VIDS.start(), VIDS.end());
    let range = range
        .ok_or_else(|| format!("{value} is no VLAN; write a number of {first} to {last}, or a range as \"100-199\""))?;
    PortVlans::new(None, std::slice::from_ref(&range)).map_err(|cause| cause.to_string())?;
    Ok(range)
}
