//! The settings of a switch and of its ports.

use super::limit::FloodLimit;
use super::reserved::LinkProtocols;
use crate::config::MTU_DEFAULT;
use crate::moderation::ModerationConfig;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;

/// Maximum ports of a switch that does not learn: a link has two ends.
pub const LINK_PORTS_MAX: usize = 2;

/// The treatment of a frame for an unknown station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownUnicast {
    /// Sends the frame to all other ports.
    #[default]
    Flood,
    /// Drops the frame, so that no other station sees it.
    Drop,
}

/// The settings of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Enables learning of each station's port. If `false`, the switch is a link of two ports. A link passes every
    /// frame, including frames for reserved addresses, without a flood limit.
    pub learning: bool,
    /// Maximum number of ports.
    pub ports_max: usize,
    /// Size of the table in stations; the quota of each port is reserved from the table.
    pub stations_max: usize,
    /// Divides `stations_max` equally among the present ports, and ignores [`PortConfig::stations_max`].
    pub equal_shares: bool,
    /// Ageing time in seconds: a station idle for longer is forgotten (IEEE 802.1D 7.9.2: 300).
    pub ageing_s: u64,
    /// The treatment of a frame for an unknown station.
    pub unknown_unicast: UnknownUnicast,
    /// Bit mask of the forwarded reserved addresses 01-80-C2-00-00-00 to -0F; 0 forwards none, as IEEE 802.1Q 8.6.3
    /// requires.
    pub forward_reserved: u16,
    /// The protocols whose frames to reserved addresses are forwarded.
    pub forward: LinkProtocols,
    /// Maximum number of frames that a port sends in one turn. A super-frame that the switch segments counts as its
    /// segments.
    pub turn_frames: usize,
    /// Maximum bytes sent by a port in one turn. A frame may exceed the maximum; the excess shortens the port's next
    /// turns. Descriptors of a frame, refused frames, and fetches without a frame also count
    /// ([`HostPort::tx_cost_bytes`](crate::port::HostPort::tx_cost_bytes)).
    pub turn_bytes: usize,
    /// Maximum time of a turn, in nanoseconds. This limit ends turns with frames that take more time than the number of
    /// their bytes suggests.
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
            forward: LinkProtocols::default(),
            turn_frames: 256,
            turn_bytes: 256 * 1024,
            turn_ns: 200_000,
        }
    }
}

impl SwitchConfig {
    /// Returns the settings of a link: two ports, and each frame is sent to the other port.
    pub fn link() -> Self {
        Self { learning: false, ports_max: LINK_PORTS_MAX, stations_max: 0, ..Self::default() }
    }
}

/// The initial settings of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Maximum number of IP bytes in a frame for this port.
    pub mtu: usize,
    /// Receive offloads allowed by the user; changeable later.
    pub offloads: Offloads,
    /// Isolates the port: its frames reach only ports that are not isolated. Changeable later.
    pub isolated: bool,
    /// Maximum number of stations on this port. A further station displaces the station that has been idle for the
    /// longest time.
    pub stations_max: usize,
    /// Limit on flooded frames from this port; `None` if unlimited.
    pub flood_limit: Option<FloodLimit>,
    /// Coalescing of frames for this port; `rx_csum` is overridden by the host's capability.
    pub coalesce: CoalesceConfig,
    /// Moderation of the host's interrupts. If delivery interrupts the host, moderation defers the frames themselves.
    /// Changeable later.
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
