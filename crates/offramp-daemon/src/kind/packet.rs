//! An existing network interface on a port's wire. The daemon sends and receives its frames through packet sockets.

use super::wire::{Interface, WireKind};
use crate::drain::AnyHost;
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::link;
use offramp_ports::sys::privilege::{Capability, holds};

/// The kind `packet` of interfaces on a wire.
pub const WIRE: WireKind = WireKind {
    name: "packet",
    noun: "interface",
    is_made: false,
    open: |interface, _| match Packet::open(&PacketConfig::new(interface)) {
        Ok(packet) => Ok(Box::new(Opened { mtu: packet.link().ok().map(|link| link.mtu as usize), packet })),
        Err(cause) => Err(format!("wire: {cause}")),
    },
    missing: |interface, _| {
        let is_there = link::list().map_or(true, |names| names.iter().any(|name| name == interface));
        if !is_there {
            return Some(format!("wire.packet: there is no interface \"{interface}\"; \"ip link\" lists them"));
        }
        (!holds(Capability::CAP_NET_RAW)).then(|| "wire.packet: needs CAP_NET_RAW; run as root or grant it".to_owned())
    },
};

/// An open interface.
#[derive(Debug)]
struct Opened {
    packet: Packet,
    mtu: Option<usize>,
}

impl Interface for Opened {
    fn switch_port(&self) -> Option<AnyHost> {
        Some(Box::new(self.packet.queue(0)?))
    }

    fn unread(&self) -> u64 {
        self.packet.dropped()
    }

    fn mtu(&self) -> Option<usize> {
        self.mtu
    }
}
