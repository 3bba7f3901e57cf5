//! Checks `port.wire`.

use super::check::Check;
use super::place::ConfigError;
use super::types::{Config, PortConfig, SwitchConfig};
use crate::kind::WireConfig;
use crate::schema::file::{self, Key};
use crate::schema::unit::Amount;
use crate::schema::unknown;
use offramp_adapter::cable::RATE_BPS;
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use toml::Spanned;

/// Valid rates of a cable, in bits per second.
pub(super) const BITS_PER_SECOND: RangeInclusive<i64> = *RATE_BPS.start() as i64..=*RATE_BPS.end() as i64;

impl Check<'_> {
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(super) fn bits_per_second(&self, wire: &WireConfig, written: &Key<Amount>) -> Result<Option<u64>, ConfigError> {
        let rate = self.number("port.wire.bits_per_second", written, BITS_PER_SECOND, 0)?;
        match written {
            Some(written) if !matches!(wire, WireConfig::Cable(_)) => {
                Err(self.0.wrong(written.span(), "port.wire.bits_per_second belongs to a cable; leave it out here"))
            }
            written => Ok(written.is_some().then_some(rate as u64)),
        }
    }

    pub(super) fn wire_leads_somewhere(
        &self,
        port: &PortConfig,
        written: &Spanned<file::Port>,
        ports: &[Arc<PortConfig>],
        switches: &[SwitchConfig],
    ) -> Result<(), ConfigError> {
        let at = written.as_ref().wire.as_ref().map_or(written.span(), Spanned::span);
        let wrong = |message: String| Err(self.0.wrong(at, message));
        let has_impairments = !port.memory.is_none() || !port.faults.is_none();
        if has_impairments && !matches!(port.wire, WireConfig::Cable(_)) {
            return wrong("port.wire: memory and faults need a cable; leave them out".to_owned());
        }
        match &port.wire {
            WireConfig::Switch(name) if switches.iter().any(|switch| &switch.name == name) => Ok(()),
            WireConfig::Switch(name) => {
                let known = switches.iter().map(|switch| switch.name.as_str());
                wrong(format!("port.wire: {}", unknown("switch", name, known)))
            }
            WireConfig::Cable(name) => match cable_peer(port, name, ports) {
                Ok(()) => Ok(()),
                Err(message) => wrong(format!("port.wire: {message}")),
            },
            WireConfig::Interface(..) => Ok(()),
        }
    }
}

impl Config {
    /// Returns the port with the smallest MTU on this port's switch; `None` if the port is on no switch.
    pub(crate) fn least_mtu_on_switch(&self, port: &PortConfig) -> Option<&Arc<PortConfig>> {
        let WireConfig::Switch(switch) = &port.wire else { return None };
        self.ports.iter().filter(|other| other.is_on(switch)).min_by_key(|other| other.mtu)
    }

    /// Returns warnings about `ports`, which are ports of this configuration.
    pub(crate) fn warnings(&self, ports: &[Arc<PortConfig>]) -> impl Iterator<Item = String> {
        let names: HashSet<&str> = ports.iter().map(|port| &*port.name).collect();
        let of_port = move |port: &Arc<PortConfig>| [self.mtu_mismatch(port), self.shared_ip_address(port, &names)];
        ports.iter().flat_map(of_port).flatten()
    }

    /// Returns a message if the port has a larger MTU than another port of its switch. On a cable, unequal MTUs are
    /// refused. The MTU of an interface is checked when the interface is opened.
    fn mtu_mismatch(&self, port: &PortConfig) -> Option<String> {
        let least = self.least_mtu_on_switch(port).filter(|least| least.mtu < port.mtu)?;
        Some(format!(
            "port \"{}\": mtu {} exceeds the {} of port \"{}\" on the same switch; make them equal, or longer frames are \
             lost there (too_long)",
            port.name, port.mtu, least.mtu, least.name
        ))
    }
}

/// Checks the far end of a cable, and that the settings of both ends match.
fn cable_peer(port: &PortConfig, peer: &str, ports: &[Arc<PortConfig>]) -> Result<(), String> {
    let name = &port.name;
    if name == peer {
        return Err(format!("the cable of port \"{name}\" ends at the port itself; name another port"));
    }
    let Some(other) = ports.iter().find(|other| other.name == peer) else {
        return Err(unknown("port", peer, ports.iter().map(|other| other.name.as_str()).filter(|other| other != name)));
    };
    if other.wire != WireConfig::Cable(name.clone()) {
        return Err(format!(
            "the cable of port \"{name}\" ends at port \"{peer}\", which must say wire = {{ cable = \"{name}\" }}"
        ));
    }
    if other.mtu != port.mtu {
        return Err(format!("mtu {} here and {} at the other end of the cable; make them equal", port.mtu, other.mtu));
    }
    if other.bits_per_second != port.bits_per_second {
        let rate = |port: &PortConfig| port.bits_per_second.map_or("no limit".to_owned(), |rate| rate.to_string());
        let (here, there) = (rate(port), rate(other));
        return Err(format!("bits_per_second {here} here and {there} at the other end of the cable; make them equal"));
    }
    let (here, there) = (port.host.queue_pairs, other.host.queue_pairs);
    if here != there {
        return Err(format!("queue_pairs {here} here and {there} at the other end of the cable; make them equal"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_a_larger_mtu_than_its_switch_is_named() {
        let port = |name: &str, mtu: usize| {
            format!("[[port]]\nname = \"{name}\"\nhost.null = \"sink\"\nmtu = {mtu}\nwire.switch = \"lan\"\n")
        };
        let text = [port("a", 9000), port("b", 1500), port("c", 1500), "[[switch]]\nname = \"lan\"\n".to_owned()];
        let config = Config::parse("test.toml".as_ref(), &text.concat()).unwrap();
        let named: Vec<_> = config.ports.iter().filter_map(|port| config.mtu_mismatch(port)).collect();
        let [line] = &named[..] else { panic!("{named:?}") };
        let expected = "port \"a\": mtu 9000 exceeds the 1500 of port \"b\" on the same switch; make them equal, or ";
        assert!(line.starts_with(expected), "{line}");
    }
}
