//! An existing interface on the wire, over packet sockets.

use super::wire::Interface;
use crate::drain::AnyHost;
use offramp_ports::packet::{Packet, PacketConfig};

/// The word for it on a wire, in `show`.
pub const NOUN: &str = "interface";

/// Returns `None`: the port does not make the interface.
pub fn made(_: &str) -> Option<String> {
    None
}

/// Opens the interface on a wire.
///
/// # Errors
/// The system's refusal.
pub fn open_wire(interface: &str, _mtu: usize) -> Result<Box<dyn Interface>, String> {
    let opened = Packet::open(&PacketConfig::new(interface)).map_err(|cause| format!("wire: {cause}"))?;
    Ok(Box::new(opened))
}

impl Interface for Packet {
    fn switch_port(&self) -> Option<AnyHost> {
        Some(Box::new(self.queue(0)?))
    }

    fn unread(&self) -> u64 {
        self.dropped()
    }
}
