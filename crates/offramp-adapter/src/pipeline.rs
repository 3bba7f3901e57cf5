//! The way of a frame, the same for a [queue pair](crate::pair) and a port of a [switch](crate::switch).
//!
//! ```text
//! host port -> plan -> [route] -> wire, or deliver -> host port
//!              wire ------------------> deliver -> host port
//! ```
//!
//! | stage | what it does |
//! |---|---|
//! | plan | the request of the host, its permissions, the resulting frames; refused with a reason |
//! | route | the wire, or a station of the switch |
//! | deliver | open, verify, coalesce, segment for a host that takes less, mark, hand over |
//!
//! A pair is a switch with one place to go: everything on a cable works on a switch.

pub(crate) mod backlog;
pub mod control;
pub(crate) mod deliver;
pub(crate) mod plan;
