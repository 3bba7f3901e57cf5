//! An end of the path on another machine: the server of `offramp check --serve`, and its client.
//!
//! For its client, the server switches features of one interface, sends frames and returns the captured frames. The
//! server need not trust its clients:
//!
//! - The server opens the interface for one client at a time, and restores every setting when the client has
//!   disconnected.
//! - The server switches only features that a check uses.
//! - The server sends only frames with its own Ethernet address as source, and with a check's destinations.
//! - The server returns only frames of a check.

mod message;
mod remote;
mod serve;

pub use remote::RemoteEnd;
pub use serve::{Serve, converse, serve};

/// Default port of the server.
pub const PORT_DEFAULT: u16 = 5011;
