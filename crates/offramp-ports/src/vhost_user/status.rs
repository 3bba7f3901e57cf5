//! The status of a port, and its events.

use super::control::ControlStatus;
use super::features;
use offramp_offload::caps::Offloads;
use std::ops::Range;

/// The current connection of a port, and the settings that its frontend has negotiated and made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// True if a frontend is connected.
    pub is_connected: bool,
    /// Negotiated virtio features. [`feature_name`](super::feature_name) returns their names.
    pub features: u64,
    /// Virtio features offered at the last negotiation, but not accepted; 0 before the negotiation.
    pub declined: u64,
    /// Negotiated vhost-user protocol features.
    pub protocol_features: u64,
    /// The device status of the guest's driver, if the frontend reports the status (virtio 1.3, 2.1).
    pub device_status: u8,
    /// The MTU assigned to the guest by the frontend, if the frontend reports the MTU.
    pub frontend_mtu: Option<u16>,
    /// Number of entries of each ring, in the order of the vrings. 0 for a stopped ring.
    pub ring_entries: Vec<u16>,
    /// Number of mapped regions of guest memory.
    pub memory_regions: usize,
    /// Size of mapped guest memory, in bytes.
    pub memory_bytes: u64,
    /// Address ranges of the mapped regions of guest memory in this process.
    pub memory_places: Vec<Range<u64>>,
    /// The guest's settings through its control queue. `None` unless the port serves the queue and the queue is
    /// running.
    pub control: Option<ControlStatus>,
    /// The reason why a frontend was last refused or disconnected, or why its backend channel ended, if any.
    pub last_refusal: Option<String>,
}

impl PortStatus {
    /// Returns the negotiated offloads.
    pub fn offloads(&self) -> Offloads {
        features::offloads(self.features)
    }

    /// Returns the offloads of which the guest declined a feature bit.
    pub fn declined_offloads(&self) -> Offloads {
        features::offloads_with_any(self.declined)
    }
}

/// An event at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A frontend has connected.
    Connected,
    /// Frontend and port have negotiated virtio features. [`feature_name`](super::feature_name) returns their names.
    Negotiated {
        /// The bits of the negotiated features.
        features: u64,
    },
    /// The frontend is disconnected.
    Disconnected {
        /// The reason if the port disconnected the frontend. `None` if the frontend closed the connection.
        reason: Option<String>,
    },
}

/// A receiver of events. The port's control thread calls the receiver, and waits for its return.
pub type Observer = Box<dyn Fn(PortEvent) + Send>;
