//! TCP for the model: a sender and a receiver compute the times and lengths of segments, without headers.

mod receiver;
mod sender;

pub use receiver::{AckPolicy, Received, Receiver};
pub use sender::{Segment, Sender, SenderConfig, Variant};

/// Total length of an Ethernet, an IPv4 and a TCP header without options, in bytes.
pub const HEADERS_LEN: u64 = 54;
