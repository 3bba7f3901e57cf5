//! The way of a frame, the same for a [queue pair](crate::pair) and a port of a [switch](crate::switch).
//!
//! ```text
//! host port -> source: plan -> route -> wire, or sink: hold, deliver -> host port
//!                           wire ----------------> sink: hold, deliver -> host port
//! ```
//!
//! | stage | what it does |
//! |---|---|
//! | source | fetches from a host within its budget and limit, reads the VLAN, and plans |
//! | plan | the request of the host, its permissions, the resulting frames; refused with a reason |
//! | route | the wire, or a station of the switch |
//! | hold | frames wait for moderation and the limit, on the wire or in a queue |
//! | deliver | open, verify, coalesce, segment for a host that takes less, mark, hand over |
//!
//! A pair is a switch with one place to go: everything on a cable works on a switch.

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
