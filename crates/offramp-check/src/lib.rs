//! Judges each offload of an interface, on its path and with its kernel and driver.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the checked offloads and their cases, as data |
//! | [`case`] | one case: the frames to send, and the expected frames |
//! | [`end`] | an interface: switches its features, sends and captures frames |
//! | [`peer`] | an interface of another machine |
//! | [`reach`] | the kinds of frames that a path does not carry |
//! | [`rss`] | the receive queues of frames |
//! | [`run`] | the whole check: every offload alone and together, and the side at fault |
//! | [`fault`] | names of the faults |
//! | [`verdict`] | the results |
//! | [`report`] | the results as text, `JSON`, `XML` and a capture |
//!
//! The check chooses every byte of a sent frame. A packet socket sends frames with the same requests as the kernel's
//! own stack (a partial checksum, a segmentation). On the receiver, another packet socket captures the frames before
//! they reach the receiver's stack.
//!
//! UDP segmentation requested by a socket is an exception: a UDP socket sends to a multicast group, and the kernel
//! builds the headers. All other frames have IP addresses from `198.18.0.0/15` or `fd00::/8`, and an Ethernet
//! destination that no host has, so no host answers.

pub mod case;
pub mod end;
pub mod error;
mod exchange;
pub mod fault;
mod oracle;
mod packet;
pub mod peer;
pub mod plan;
mod reach;
pub mod report;
pub mod rss;
pub mod run;
mod steering;
pub mod verdict;

pub use case::Case;
pub use packet::{Captured, Ip, Protocol, Way};
