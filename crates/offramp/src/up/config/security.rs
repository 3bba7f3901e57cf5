//! Who a port's host may be, and whom it reaches: `port.mac_addresses`, `port.ip_addresses`, `port.isolated`.

use super::file;
use super::{Check, ConfigError, PortConfig, WireConfig};
use crate::ipsec::prefix;
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::switch::UnknownUnicast;
use toml::Spanned;

/// What `switch.unknown_unicast` may say.
pub const UNKNOWN_UNICAST: [(&str, UnknownUnicast); 2] =
    [("flood", UnknownUnicast::Flood), ("drop", UnknownUnicast::Drop)];

impl Check<'_> {
    /// A host that the file gives an address sends from that one, unless the file says others.
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
        Ok(PortSecurity { mac_addresses, ip_addresses, ..PortSecurity::default() })
    }

    pub(super) fn isolated(&self, written: &file::Port, wire: &WireConfig) -> Result<bool, ConfigError> {
        match &written.isolated {
            Some(isolated) if !matches!(wire, WireConfig::Switch(_)) => {
                Err(self.0.wrong(isolated.span(), "port.isolated belongs to a port on a switch; leave it out here"))
            }
            isolated => Ok(isolated.as_ref().is_some_and(|isolated| *isolated.as_ref())),
        }
    }

    /// On a switch an address is bound to one port.
    pub(super) fn ports_share_no_address(
        &self,
        ports: &[PortConfig],
        written: &[Spanned<file::Port>],
    ) -> Result<(), ConfigError> {
        for (at, (port, written)) in ports.iter().zip(written).enumerate() {
            let on_same_switch = |other: &&PortConfig| {
                matches!(port.wire, WireConfig::Switch(_)) && other.wire == port.wire && shares_address(port, other)
            };
            if let Some(other) = ports[..at].iter().find(on_same_switch) {
                let (name, other) = (&port.name, &other.name);
                let message = format!(
                    "port \"{name}\": mac_addresses: port \"{other}\" of the same switch has one of them; \
                     bind an address to one port"
                );
                return Err(self.0.wrong(written.span(), message));
            }
        }
        Ok(())
    }
}

fn shares_address(port: &PortConfig, other: &PortConfig) -> bool {
    port.security.mac_addresses.iter().any(|mac| other.security.mac_addresses.contains(mac))
}
