//! The one place that opens offramp's vhost-user port.

use crate::failure::{Doing, Result, failed};
use offramp_ports::vhost_user::{Mode, VhostQueue, VhostUser, VhostUserConfig};
use std::path::PathBuf;

/// What a harness asks of a vhost-user port.
#[derive(Clone, Debug, clap::Args)]
pub struct PortArgs {
    /// The vhost-user socket
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Connect to the socket (again and again) instead of listening on it
    #[arg(long)]
    pub client: bool,
    /// Queue pairs
    #[arg(long, default_value_t = 1)]
    pub queues: u16,
    /// IP bytes that a frame may carry
    #[arg(long, default_value_t = 1500)]
    pub mtu: u16,
}

/// Opens the port, with everything on offer; it listens or connects from now on. Returns the port, which
/// must stay, and its queues in order.
///
/// # Errors
/// When the socket cannot be had.
pub fn open(args: &PortArgs) -> Result<(VhostUser, Vec<VhostQueue>)> {
    let mode = if args.client { Mode::Client } else { Mode::Server };
    let queue_pairs = args.queues;
    let config =
        VhostUserConfig { mode, queue_pairs, mtu: Some(args.mtu), ..VhostUserConfig::new(args.socket.clone()) };
    let mut port = VhostUser::open(&config).doing("opening the port")?;
    let queues: Vec<_> = (0..usize::from(queue_pairs)).filter_map(|index| port.queue(index)).collect();
    if queues.len() == usize::from(queue_pairs) { Ok((port, queues)) } else { failed("the port lacks queues") }
}

/// What a port says of its guest and of what went wrong, in a line.
pub fn summary(port: &VhostUser) -> String {
    let (status, channel) = (port.status(), port.channel_counters());
    format!(
        "connected {}, features {:#x}, rings {:?}, {} connections ({} refused), {} messages ({} bad: {})",
        status.is_connected,
        status.features,
        status.ring_entries,
        channel.connections(),
        channel.refused_connections(),
        channel.messages(),
        channel.bad_messages(),
        status.last_refusal.as_deref().unwrap_or("none")
    )
}
