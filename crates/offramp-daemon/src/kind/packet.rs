//! An existing interface on the wire, over packet sockets.

use super::wire::{Interface, WireKind};
use crate::drain::AnyHost;
use offramp_ports::packet::{Packet, PacketConfig};

/// The interface on a wire.
pub const WIRE: WireKind = WireKind {
    name: "packet",
    noun: "interface",
    is_made: false,
    open: |interface, _| match Packet::open(&PacketConfig::new(interface)) {
        Ok(packet) => Ok(Box::new(packet)),
        Err(cause) => Err(format!("wire: {cause}")),
    },
};

impl Interface for Packet {
    fn switch_port(&self) -> Option<AnyHost> {
        Some(Box::new(self.queue(0)?))
    }

    fn unread(&self) -> u64 {
        self.dropped()
    }

    fn mtu(&self) -> Option<usize> {
        Some(self.link().ok()?.mtu as usize)
    }
}
