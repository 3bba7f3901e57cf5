//! The path of a frame, the same for a [queue pair](crate::pair) and a port of a [switch](crate::switch).
//!
//! ```text
//! host port -> source: plan -> route -> wire, or sink: hold, deliver -> host port
//!                           wire ----------------> sink: hold, deliver -> host port
//! ```
//!
//! | stage | what it does |
//! |---|---|
//! | source | fetches from a host within its budget and limit, reads the VLAN, and plans |
//! | plan | reads the offload request, checks permissions, computes the resulting frames; refuses with a reason |
//! | route | selects the wire, or a station of the switch |
//! | hold | defers frames for moderation and the rate limit, on the wire or in a queue |
//! | deliver | opens, verifies, coalesces, segments for a host without the offload, marks, hands over |
//!
//! A queue pair is like a switch with one destination: every frame that passes over a cable also passes over a switch.

pub(crate) mod budget;
pub mod control;
pub(crate) mod deliver;
pub(crate) mod hold;
pub(crate) mod lent;
pub(crate) mod outlet;
pub(crate) mod plan;
pub(crate) mod sink;
pub(crate) mod source;

pub use budget::Progress;
