//! The trait of an open interface on a port's wire, and the type that describes a kind of interface.

use crate::drain::AnyHost;
use offramp_adapter::vlan::PortVlans;
use offramp_offload::layout::VLAN_TAG_LEN;
use std::fmt::Debug;

/// An interface on the wire of a port.
pub trait Interface: Debug + Send + Sync {
    /// Returns the interface's port for a switch; `None` if the port is in use.
    fn switch_port(&self) -> Option<AnyHost>;

    /// Returns the number of frames lost because the port did not read the frames in time, if the kernel counts these
    /// frames.
    fn unread(&self) -> u64 {
        0
    }

    /// Returns the MTU of the interface when it was opened, if the MTU limits the sent frames.
    fn mtu(&self) -> Option<usize> {
        None
    }
}

/// Returns a warning if an interface refuses frames with the full MTU of a port. A packet socket can send a frame of
/// the interface's MTU, plus one tag if the first EtherType is 0x8100 (Linux 6.18, `packet_snd`). All other tags count
/// towards the MTU.
pub fn too_small(interface: &str, interface_mtu: usize, mtu: usize, vlans: &PortVlans) -> Option<String> {
    let (tags, kind) = match (vlans.untagged(), vlans.tagged()) {
        (None, []) => (2, " with a service tag or two tags"),
        (_, []) => (0, ""),
        _ => (1, " with two tags"),
    };
    let needed = mtu + tags * VLAN_TAG_LEN;
    let kind = if interface_mtu < mtu { "" } else { kind };
    (interface_mtu < needed).then(|| {
        format!(
            "wire.packet: interface {interface} with MTU {interface_mtu} refuses frames of {mtu} bytes{kind}; run \
             `ip link set {interface} mtu {needed}`, or set mtu = {}",
            interface_mtu.saturating_sub(tags * VLAN_TAG_LEN)
        )
    })
}

/// An open interface, or the system's error.
pub type Opened = Result<Box<dyn Interface>, String>;

/// A kind of interface on a wire.
#[derive(Debug)]
pub struct WireKind {
    /// The key of the kind in `port.wire`.
    pub name: &'static str,
    /// The noun for the interface in `show`.
    pub noun: &'static str,
    /// True if the port creates the interface. Then no other port may use the same name.
    pub is_made: bool,
    /// Opens the interface with this name for a port with this MTU.
    pub open: fn(&str, usize) -> Opened,
    /// Returns the reason why the interface with this name cannot be opened on this machine now, with the remedy. The
    /// second argument is true if a daemon with the same control socket runs. An interface in use is then no reason,
    /// because that daemon may be its user.
    pub missing: fn(&str, bool) -> Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_needs_room_for_every_tag_but_one() {
        let [none, access, trunk] = [(None, &[][..]), (Some(10), &[]), (Some(10), &[20..=30])]
            .map(|(untagged, tagged)| PortVlans::new(untagged, tagged).unwrap());
        let warning = |vlans, mtu| too_small("eth0", mtu, 1500, vlans);
        for (vlans, enough) in [(&none, 1508), (&trunk, 1504), (&access, 1500)] {
            assert_eq!(warning(vlans, enough), None);
            assert!(warning(vlans, enough - 1).is_some());
        }
        assert_eq!(
            warning(&none, 1500).unwrap(),
            "wire.packet: interface eth0 with MTU 1500 refuses frames of 1500 bytes with a service tag or two tags; run \
             `ip link set eth0 mtu 1508`, or set mtu = 1492"
        );
        assert!(warning(&access, 1400).unwrap().contains("of 1500 bytes; run `ip link set eth0 mtu 1500`"));
    }
}
