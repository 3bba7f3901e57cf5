//! The settings of a vhost-user port.

use super::error::VhostUserError;
use super::features::{ControlQueue, MTU_MIN, RingFeatures};
use crate::sys::socket_file::SocketRights;
use offramp_offload::caps::Offloads;
use offramp_virtio::ring::QUEUE_SIZE_MAX;
use std::path::PathBuf;

/// Default maximum length of a super-frame from a guest, in bytes: an Ethernet header with two VLAN tags and an IP
/// packet of 65536 bytes.
pub const FRAME_LEN_MAX: usize = 65536 + 22;

/// Default maximum of guest memory mapped for a frontend, in bytes: 1 TiB. The address space of a process has 128 TiB
/// for all its guests (x86-64 with four levels of page tables).
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The process that listens on the socket: the port or the frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// This port listens, and frontends connect (QEMU's `server=off`).
    #[default]
    Server,
    /// The frontend listens, and this port retries to connect until the frontend accepts.
    Client,
}

/// The settings of a vhost-user port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// The process that listens on the socket.
    pub mode: Mode,
    /// The access rights of a server's socket.
    pub socket_rights: SocketRights,
    /// The user id of a permitted frontend's process. If `None`, any user is permitted.
    pub allowed_uid: Option<u32>,
    /// Number of queue pairs, 1 to [`ControlQueue::queue_pairs_max`]. A guest can use fewer queue pairs.
    pub queue_pairs: u16,
    /// The guest's Ethernet address. If `None`, the frontend chooses the address.
    pub mac: Option<[u8; 6]>,
    /// True if one [`VhostPort`](super::VhostPort) serves all queue pairs, so that a guest can choose the receive pair
    /// of a flow.
    pub steers: bool,
    /// The addresses that the guest can set through its control queue. If empty, the guest can set any address.
    pub mac_addresses: Vec<[u8; 6]>,
    /// The speed of the wire in megabits per second, or `None` if unknown. A guest can read the speed only if the port
    /// serves its control queue.
    pub speed_mbps: Option<u32>,
    /// The MTU in the guest's configuration, in bytes of the IP packet. If `None`, the configuration has no MTU.
    pub mtu: Option<u16>,
    /// The offloads that the port can offer initially. [`VhostUser::allow`](super::VhostUser::allow) changes this set.
    pub offloads: Offloads,
    /// The process that serves the control queue, if any. Without a control queue, a guest uses one queue pair.
    pub control_queue: ControlQueue,
    /// The features of rings and guest memory that the port offers.
    pub rings: RingFeatures,
    /// Maximum size of a ring, in descriptors.
    pub queue_size_max: u16,
    /// Maximum length of a frame from the guest, in bytes including the Ethernet header.
    pub frame_len_max: usize,
    /// Maximum of guest memory mapped for a frontend, in bytes.
    pub memory_bytes_max: u64,
    /// Name of an interface in the namespace of the opening thread. The guest's link follows the carrier of this
    /// interface. If `None`, the link is up unless [`VhostUser::link`](super::VhostUser::link) or
    /// [`VhostUser::join`](super::VhostUser::join) sets it down.
    pub carrier: Option<String>,
}

impl VhostUserConfig {
    /// Returns the settings of a server on `socket` with one queue pair and all ratified offloads and ring features.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            mode: Mode::Server,
            socket_rights: SocketRights::default(),
            allowed_uid: None,
            queue_pairs: 1,
            mac: None,
            steers: false,
            mac_addresses: Vec::new(),
            speed_mbps: None,
            mtu: None,
            offloads: Offloads::RATIFIED,
            control_queue: ControlQueue::default(),
            rings: RingFeatures::all(),
            queue_size_max: QUEUE_SIZE_MAX,
            frame_len_max: FRAME_LEN_MAX,
            memory_bytes_max: MEMORY_BYTES_MAX,
            carrier: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), VhostUserError> {
        let most = self.control_queue.queue_pairs_max();
        if !(1..=most).contains(&self.queue_pairs) {
            return Err(VhostUserError::QueuePairs {
                socket: self.socket.clone(),
                queue_pairs: self.queue_pairs,
                most,
            });
        }
        if self.queue_pairs > 1 && self.control_queue == ControlQueue::None {
            return Err(VhostUserError::ControlQueue { socket: self.socket.clone(), queue_pairs: self.queue_pairs });
        }
        if self.queue_size_max == 0 || self.queue_size_max > QUEUE_SIZE_MAX {
            return Err(VhostUserError::QueueSize { socket: self.socket.clone(), queue_size: self.queue_size_max });
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < MTU_MIN) {
            return Err(VhostUserError::Mtu { socket: self.socket.clone(), mtu });
        }
        Ok(())
    }
}
