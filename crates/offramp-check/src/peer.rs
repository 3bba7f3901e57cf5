//! The other end on another machine: what `offramp check --serve` does there, and how it is asked.
//!
//! The server switches the one interface that it was given, sends the frames that it is handed, and hands back those that it
//! captured. It needs no trust: it opens the interface for one client at a time, puts every setting back when the client is
//! gone, switches no feature but those that are checked, sends no frame but with its own Ethernet address as source and the
//! check's own destinations, and hands back no other traffic.

mod message;
mod remote;
mod serve;

pub use remote::RemoteEnd;
pub use serve::{Serve, converse, serve};

/// Port of the server.
pub const PORT_DEFAULT: u16 = 5011;
