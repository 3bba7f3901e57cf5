//! Judges each offload of an interface on this path, with this kernel and driver.
//!
//! | module | what it does |
//! |---|---|
//! | [`plan`] | which offloads are checked, with which cases: data |
//! | [`case`] | one case: what is sent, and the frames that must arrive for it |
//! | [`end`] | an interface: its features are switched, frames are sent and captured |
//! | [`peer`] | the same on another machine |
//! | [`reach`] | the kinds of frames a path does not carry |
//! | [`rss`] | on which receive queue a frame must arrive |
//! | [`run`] | the whole: every offload alone and together, and whose fault it is |
//! | [`fault`] | what may be wrong, by name |
//! | [`verdict`] | what was found |
//! | [`report`] | the same as text, `JSON`, `XML` and a capture |
//!
//! Every byte of a frame is known. Frames leave through a packet socket with the same request as from the kernel's own
//! stack (a partial checksum, a segmentation). Another packet socket captures them before the receiver's stack. The IP
//! addresses come from `198.18.0.0/15` and `fd00::/8`, the destination's Ethernet address is nobody's: no host answers.

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
