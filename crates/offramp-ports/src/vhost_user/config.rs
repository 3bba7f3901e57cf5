//! The settings of a vhost-user port.

use super::error::VhostUserError;
use super::features::{ControlQueue, MTU_MIN, RingFeatures};
use crate::sys::socket_file::SocketRights;
use offramp_offload::caps::Offloads;
use offramp_virtio::ring::QUEUE_SIZE_MAX;
use std::path::PathBuf;

/// Longest super-frame that a guest sends by default, in bytes: an Ethernet header with two VLAN tags and an
/// IP packet of 65536 bytes.
pub const FRAME_LEN_MAX: usize = 65536 + 22;

/// Most bytes of guest memory mapped for a frontend by default: 1 TiB. A process has 128 TiB of addresses for all
/// its guests (x86-64 with four levels of page tables).
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The listening side of the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// This port listens, and frontends connect (QEMU's `server=off`).
    #[default]
    Server,
    /// The frontend listens; this port connects, again and again until it is there.
    Client,
}

/// The settings of a vhost-user port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// The Unix socket.
    pub socket: PathBuf,
    /// The listening side.
    pub mode: Mode,
    /// The access rights of a server's socket.
    pub socket_rights: SocketRights,
    /// The user of a permitted frontend's process; `None`: any that can connect, or listens there.
    pub allowed_uid: Option<u32>,
    /// Queue pairs, 1 to [`ControlQueue::queue_pairs_max`]. A guest may use fewer.
    pub queue_pairs: u16,
    /// The guest's Ethernet address; `None`: the frontend chooses it.
    pub mac: Option<[u8; 6]>,
    /// All queue pairs are driven as one [`VhostPort`](super::VhostPort), so that a guest may choose the
    /// receive pair of a flow.
    pub steers: bool,
    /// The addresses that the guest may take by its control queue; any when empty.
    pub mac_addresses: Vec<[u8; 6]>,
    /// The speed of the wire in megabits per second; `None`: unknown. A guest reads it if the port serves its control
    /// queue.
    pub speed_mbps: Option<u32>,
    /// The MTU in the guest's configuration, in bytes of IP; `None`: the configuration has none.
    pub mtu: Option<u16>,
    /// The offloads that may be offered to the guest at first; [`VhostUser::allow`](super::VhostUser::allow)
    /// changes them.
    pub offloads: Offloads,
    /// The server of the control queue. Without a control queue a guest uses one queue pair.
    pub control_queue: ControlQueue,
    /// The offered features of rings and memory.
    pub rings: RingFeatures,
    /// Largest accepted ring, in descriptors.
    pub queue_size_max: u16,
    /// Longest frame accepted from the guest, in bytes with the Ethernet header.
    pub frame_len_max: usize,
    /// Most bytes of guest memory mapped for a frontend.
    pub memory_bytes_max: u64,
    /// The interface whose carrier the guest's link follows, in the namespace of the opening thread. `None`: the link
    /// is up unless [`VhostUser::link`](super::VhostUser::link) or [`VhostUser::join`](super::VhostUser::join) sets
    /// it down.
    pub carrier: Option<String>,
}

impl VhostUserConfig {
    /// Returns the settings of a server on `socket` with one queue pair and everything on.
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
