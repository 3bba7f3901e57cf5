//! The status of a port, and its events.

use super::control::ControlStatus;
use super::features;
use offramp_offload::caps::Offloads;
use std::ops::Range;

/// The current setup by a port's frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// A frontend is connected.
    pub is_connected: bool,
    /// Negotiated virtio features; names by [`feature_name`](super::feature_name).
    pub features: u64,
    /// Negotiated vhost-user protocol features.
    pub protocol_features: u64,
    /// The device status of the guest's driver, if the frontend reports it (virtio 1.3, 2.1).
    pub device_status: u8,
    /// The MTU that the frontend gave the guest, if it reports it.
    pub frontend_mtu: Option<u16>,
    /// Entries of each ring, 0 for a stopped one: receive and transmit of the first pair, then of the second.
    pub ring_entries: Vec<u16>,
    /// Mapped regions of guest memory.
    pub memory_regions: usize,
    /// Mapped bytes of guest memory.
    pub memory_bytes: u64,
    /// Addresses of the regions in this process.
    pub memory_places: Vec<Range<u64>>,
    /// The guest's settings through its control queue; `None` unless the port serves a running one.
    pub control: Option<ControlStatus>,
    /// The reason of the last disconnection of a frontend, if any.
    pub last_refusal: Option<String>,
}

impl PortStatus {
    /// Returns the negotiated offloads.
    pub fn offloads(&self) -> Offloads {
        features::offloads(self.features)
    }
}

/// An event at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A frontend has connected.
    Connected,
    /// Frontend and port have agreed on virtio features; names by [`feature_name`](super::feature_name).
    Negotiated {
        /// Their bits.
        features: u64,
    },
    /// The frontend is gone.
    Disconnected {
        /// The reason if the port disconnected it; `None`: it went by itself.
        reason: Option<String>,
    },
}

/// A receiver of events. The port's control thread calls it, and waits for its return.
pub type Observer = Box<dyn Fn(PortEvent) + Send>;
