//! TCP for a model: a sender and a receiver decide on times and lengths, in bytes of a stream, without headers.

mod receiver;
mod sender;

pub use receiver::{AckPolicy, Received, Receiver};
pub use sender::{Segment, Sender, SenderConfig, Variant};

/// Bytes of an Ethernet, an IPv4 and a TCP header without options.
pub const HEADERS_LEN: u64 = 54;
