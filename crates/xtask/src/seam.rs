//! Opens offramp's vhost-user port for the other modules of this program, with the features that a test offers.

use offramp_offload::caps::Offloads;
use offramp_ports::vhost_user::{ControlQueue, Mode, RingFeatures, VhostQueue, VhostUser, VhostUserConfig};
use offramp_testbed::failure::{Doing, Result, failed};
use std::path::Path;

/// The offer of a port.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OfferArgs {
    /// Options of a card that the port does not offer, by QEMU's names
    #[arg(long, value_delimiter = ',', value_name = "OPTION")]
    pub without: Vec<String>,
    /// For User Mode Linux: give the guest an address, and offer no control queue
    #[arg(long)]
    pub user_mode_linux: bool,
}

/// The Ethernet address assigned to a guest in User Mode Linux.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
/// Names of QEMU's options, with the ring features of each.
const RINGS: [(&str, RingFeatures); 4] = [
    ("packed", RingFeatures::PACKED),
    ("mrg_rxbuf", RingFeatures::MRG_RXBUF),
    ("indirect_desc", RingFeatures::INDIRECT),
    ("event_idx", RingFeatures::EVENT_IDX),
];
const OFFLOADS: [(&str, Offloads); 8] = [
    ("csum", Offloads::TX_CHECKSUM),
    ("host_tso4", Offloads::TSO4),
    ("host_tso6", Offloads::TSO6),
    ("host_ecn", Offloads::TSO_ECN),
    ("guest_csum", Offloads::RX_CHECKSUM),
    ("guest_tso4", Offloads::RSC4),
    ("guest_tso6", Offloads::RSC6),
    ("guest_ecn", Offloads::RSC_ECN),
];

impl OfferArgs {
    fn rings(&self) -> RingFeatures {
        let off = RINGS.iter().filter(|(name, _)| self.lacks(name));
        off.fold(RingFeatures::all(), |rings, (_, off)| rings - *off)
    }

    fn offloads(&self) -> Offloads {
        let off = OFFLOADS.iter().filter(|(name, _)| self.lacks(name));
        off.fold(Offloads::RATIFIED, |offloads, (_, off)| offloads - *off)
    }

    fn lacks(&self, name: &str) -> bool {
        self.without.iter().any(|without| without == name)
    }
}

/// Opens the port, which then listens or connects. Returns the port, which the caller must keep alive, and the port's
/// queues in the order of their indexes.
///
/// # Errors
/// Returns an error if the socket cannot be opened.
pub fn open(
    socket: &Path,
    client: bool,
    queue_pairs: u16,
    mtu: u16,
    offer: &OfferArgs,
) -> Result<(VhostUser, Vec<VhostQueue>)> {
    let config = VhostUserConfig {
        mode: if client { Mode::Client } else { Mode::Server },
        queue_pairs,
        mtu: Some(mtu),
        mac: offer.user_mode_linux.then_some(MAC),
        control_queue: if offer.user_mode_linux { ControlQueue::None } else { ControlQueue::Frontend },
        rings: offer.rings(),
        offloads: offer.offloads(),
        ..VhostUserConfig::new(socket)
    };
    let mut port = VhostUser::open(&config).doing("opening the port")?;
    let queues: Vec<_> = (0..usize::from(queue_pairs)).filter_map(|index| port.queue(index)).collect();
    if queues.len() == usize::from(queue_pairs) { Ok((port, queues)) } else { failed("the port lacks queues") }
}

/// Describes the connected guest of a port and the errors of the connection in one line.
pub fn summary(port: &VhostUser) -> String {
    let (status, channel) = (port.status(), port.channel_counters());
    format!(
        "connected {}, features {:#x}, rings {:?}, {} connections ({} refused), {} messages ({} bad: {})",
        status.is_connected,
        status.features,
        status.ring_entries,
        channel.connections.get(),
        channel.refused_connections.get(),
        channel.messages.get(),
        channel.bad_messages.get(),
        status.last_refusal.as_deref().unwrap_or("none")
    )
}
