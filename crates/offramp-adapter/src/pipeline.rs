//! The path of a frame, the same for a [queue pair](crate::pair) and a port of a [switch](crate::switch).
//!
//! ```text
//! host port -> source: plan -> route -> wire, or sink: hold, deliver -> host port
//!                           wire ----------------> sink: hold, deliver -> host port
//! ```
//!
//! | stage | what it does |
//! |---|---|
//! | source | fetches a host's frames within the turn's budget and the transmit limit, reads the VLAN, and plans |
//! | plan | reads the offload request, checks permissions, and plans the resulting frames, or refuses with a reason |
//! | route | selects the wire, or destination ports of the switch |
//! | hold | defers frames for moderation and the receive limit, in the cable's or the switch port's queue |
//! | deliver | opens ESP, verifies, coalesces, segments for a host without the offload, hands over with marks |
//!
//! A queue pair is like a switch with one destination, so a frame that can pass over a cable can also pass over a
//! switch.

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
