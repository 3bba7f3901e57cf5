//! The settings of a switch and of its ports.

use super::limit::FloodLimit;
use crate::config::MTU_DEFAULT;
use crate::moderation::ModerationConfig;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;

/// Ports of a switch that does not learn: a link has two ends.
pub const LINK_PORTS_MAX: usize = 2;

/// What becomes of a frame for a station of which nobody knows where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownUnicast {
    /// It goes to all other ports.
    #[default]
    Flood,
    /// It is lost: no other station sees it.
    Drop,
}

/// What a switch is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Learn which station is where. Off: a link of two ports, on which every frame passes, reserved
    /// addresses too, without a flood limit.
    pub learning: bool,
    /// Most ports.
    pub ports_max: usize,
    /// Stations that the table has room for; each port's quota is set aside from them.
    pub stations_max: usize,
    /// Divide `stations_max` equally among the ports that are there, whatever [`PortConfig::stations_max`] says.
    pub equal_shares: bool,
    /// Seconds after which an idle station is forgotten (IEEE 802.1D 7.9.2: 300).
    pub ageing_s: u64,
    /// What becomes of a frame for an unknown station.
    pub unknown_unicast: UnknownUnicast,
    /// Frames that a port may send, or have segmented, in one turn.
    pub turn_frames: usize,
    /// Bytes that a port may send in one turn. The frame that exceeds them still goes, and the port's next turns are
    /// shorter by that much. Pieces of a frame, refused frames, and fetches that bring no frame count, too
    /// ([`HostPort::tx_cost_bytes`]).
    pub turn_bytes: usize,
    /// How long a turn may take, nanoseconds: a port whose frames take longer than their bytes say ends its turn earlier.
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

/// What a port is added with.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// IP bytes that a frame for this port may carry.
    pub mtu: usize,
    /// Receive offloads that the user allows; may be changed later.
    pub offloads: Offloads,
    /// The port reaches only ports that are not isolated; may be changed later.
    pub isolated: bool,
    /// Stations that may be known behind this port. One more displaces the one that has been idle longest.
    pub stations_max: usize,
    /// Frames from this port that may go to every port; `None`: without limit.
    pub flood_limit: Option<FloodLimit>,
    /// How frames for this port are coalesced; `rx_csum` is the port's own.
    pub coalesce: CoalesceConfig,
    /// When the port's host is interrupted; where handing over is the interrupt, frames wait for it. May be changed
    /// later.
    pub moderation: ModerationConfig,
    /// Receive queues of the host that frames are spread over ([`RxMeta::queue`](offramp_offload::meta::RxMeta::queue)).
    pub queues: u16,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            offloads: Offloads::all(),
            isolated: false,
            stations_max: 128,
            flood_limit: Some(FloodLimit::default()),
            coalesce: CoalesceConfig::default(),
            moderation: ModerationConfig::default(),
            queues: 1,
        }
    }
}
