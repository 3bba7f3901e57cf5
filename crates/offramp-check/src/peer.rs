//! The other end on another machine: the server of `offramp check --serve`, and its client.
//!
//! The server switches its one interface, sends the client's frames, and returns the captured ones. It needs no trust.
//! It opens the interface for one client at a time, and restores every setting when the client is gone. It switches
//! only checked features. It sends only frames with its own Ethernet address as source and the check's own
//! destinations, and returns no other traffic.

mod message;
mod remote;
mod serve;

pub use remote::RemoteEnd;
pub use serve::{Serve, converse, serve};

/// Port of the server.
pub const PORT_DEFAULT: u16 = 5011;
