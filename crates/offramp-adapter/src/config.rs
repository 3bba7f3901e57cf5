//! Every size and limit of an adapter, with unit, default and source.

use crate::moderation::{ModerationConfig, ModerationConfigError};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;
use offramp_offload::layout::{ETHERNET_HEADER_LEN, VLAN_TAG_LEN, VLAN_TAGS_MAX};

/// Smallest valid MTU, in bytes: the packet size that every IPv4 link must carry (RFC 791 3.2).
pub const MTU_MIN: usize = 68;
/// Largest valid MTU, in bytes: the MTU of an Ethernet frame of 65,535 bytes including its header.
pub const MTU_MAX: usize = 65_535 - ETHERNET_HEADER_LEN;
/// Default MTU, in bytes: the MTU of Ethernet.
pub const MTU_DEFAULT: usize = 1500;

/// The settings of an adapter.
#[derive(Clone, Copy, Debug)]
pub struct AdapterConfig {
    /// Maximum number of IP bytes in a frame on the wire.
    pub mtu: usize,
    /// Offloads allowed by the user; changeable while the adapter runs.
    pub offloads: Offloads,
    /// Number of bytes in one transmit batch: the bytes fetched from the host before the wire is served again. With one
    /// super-frame per batch, the super-frame's bytes stay in the second-level cache until the adapter writes the bytes
    /// to the wire.
    pub transmit_batch_bytes: usize,
    /// Number of frames in one receive batch: the frames fetched from the wire before the host is served again.
    pub receive_batch_frames: usize,
    /// Interrupt moderation of each queue for received frames. If the delivery of a frame interrupts the host (a TAP),
    /// arrived frames stay in the queue of the wire port until the adapter delivers them together. For other hosts,
    /// frames are delivered at once and only the interrupt waits ([`Interrupts`](crate::port::Interrupts)). Changeable
    /// while the adapter runs.
    pub moderation: ModerationConfig,
    /// Settings for coalescing received frames.
    pub coalesce: CoalesceConfig,
    /// Number of the host's queues for received frames.
    pub queues: u16,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            offloads: Offloads::RATIFIED,
            transmit_batch_bytes: 64 * 1024,
            receive_batch_frames: 256,
            moderation: ModerationConfig::adaptive(),
            coalesce: CoalesceConfig::default(),
            queues: 1,
        }
    }
}

/// The reason for refusing a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MTU is outside [`MTU_MIN`]…[`MTU_MAX`].
    #[error("mtu {0} is out of range; use {MTU_MIN} to {MTU_MAX} IP bytes")]
    Mtu(usize),
    /// The moderation settings are invalid.
    #[error(transparent)]
    Moderation(#[from] ModerationConfigError),
    /// The number of queues is 0.
    #[error("queues is 0; use at least 1")]
    Queues,
}

impl AdapterConfig {
    /// Checks the settings that a user can get wrong.
    ///
    /// # Errors
    /// Returns an error whose text is one line, with the setting's name, value and range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if self.queues == 0 {
            return Err(ConfigError::Queues);
        }
        Ok(self.moderation.check()?)
    }
}

/// Returns the length of the longest frame on a wire with this MTU, in bytes, including VLAN tags, excluding FCS.
pub const fn frame_len_max(mtu: usize) -> usize {
    mtu + ETHERNET_HEADER_LEN + VLAN_TAG_LEN * VLAN_TAGS_MAX
}
