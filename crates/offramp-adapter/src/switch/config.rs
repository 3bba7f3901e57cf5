//! The settings of a switch and of its ports.

use super::limit::FloodLimit;
use crate::config::MTU_DEFAULT;
use crate::moderation::ModerationConfig;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;

/// Ports of a switch that does not learn: a link has two ends.
pub const LINK_PORTS_MAX: usize = 2;

/// The treatment of a frame for a station at an unknown port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownUnicast {
    /// It goes to all other ports.
    #[default]
    Flood,
    /// It is lost: no other station sees it.
    Drop,
}

/// The settings of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Learn the port of each station. Off: a link of two ports; it passes every frame, reserved addresses too, without
    /// a flood limit.
    pub learning: bool,
    /// Maximum number of ports.
    pub ports_max: usize,
    /// The size of the table in stations; each port's quota is set aside from it.
    pub stations_max: usize,
    /// Divide `stations_max` equally among the present ports; [`PortConfig::stations_max`] does not count then.
    pub equal_shares: bool,
    /// Seconds after which an idle station is forgotten (IEEE 802.1D 7.9.2: 300).
    pub ageing_s: u64,
    /// The treatment of a frame for an unknown station.
    pub unknown_unicast: UnknownUnicast,
    /// The passing ones of the reserved addresses 01-80-C2-00-00-00 to -0F, a bit each; none by IEEE 802.1Q 8.6.3.
    pub forward_reserved: u16,
    /// Maximum frames sent by a port, or segmented for it, in one turn.
    pub turn_frames: usize,
    /// Maximum bytes sent by a port in one turn. A frame may exceed them; the port's next turns are shorter by the
    /// excess. Pieces of a frame, refused frames, and fetches without a frame count, too
    /// ([`HostPort::tx_cost_bytes`](crate::port::HostPort::tx_cost_bytes)).
    pub turn_bytes: usize,
    /// Maximum time of a turn, nanoseconds: it ends the turn of a port with frames that cost more than their bytes.
    pub turn_ns: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            learning: true,
            ports_max: 64,
            stations_max: 8192,
            equal_shares: false,
            ageing_s: 300,
            unknown_unicast: UnknownUnicast::Flood,
            forward_reserved: 0,
            turn_frames: 256,
            turn_bytes: 256 * 1024,
            turn_ns: 200_000,
        }
    }
}

impl SwitchConfig {
    /// A link: two ports, everything goes to the other one.
    pub fn link() -> Self {
        Self { learning: false, ports_max: LINK_PORTS_MAX, stations_max: 0, ..Self::default() }
    }
}

/// The initial settings of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Maximum IP bytes of a frame for this port.
    pub mtu: usize,
    /// Receive offloads that the user allows; may be changed later.
    pub offloads: Offloads,
    /// The port reaches only ports that are not isolated; may be changed later.
    pub isolated: bool,
    /// Maximum stations behind this port. A further one displaces the longest idle.
    pub stations_max: usize,
    /// Limit of flooded frames from this port; `None`: without limit.
    pub flood_limit: Option<FloodLimit>,
    /// Coalescing of frames for this port; `rx_csum` is the port's own.
    pub coalesce: CoalesceConfig,
    /// Moderation of the host's interrupts. Where delivery is the interrupt, frames wait for it. May be changed later.
    pub moderation: ModerationConfig,
    /// Number of the host's receive queues for receive-side scaling
    /// ([`RxMeta::queue`](offramp_offload::meta::RxMeta::queue)).
    pub queues: u16,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            offloads: Offloads::RATIFIED,
            isolated: false,
            stations_max: 128,
            flood_limit: Some(FloodLimit::default()),
            coalesce: CoalesceConfig::default(),
            moderation: ModerationConfig::default(),
            queues: 1,
        }
    }
}
