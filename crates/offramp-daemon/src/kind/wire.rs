//! The interface of a kind of interface on a port's wire.

use crate::drain::AnyHost;
use std::fmt::Debug;

/// An interface on the wire of a port.
pub trait Interface: Debug + Send + Sync {
    /// Returns its port for a switch; `None` when it is in use.
    fn switch_port(&self) -> Option<AnyHost>;

    /// Returns the frames lost because nobody took them in time, if the kernel counts them.
    fn unread(&self) -> u64 {
        0
    }
}

/// An open interface, or the system's refusal.
pub type Opened = Result<Box<dyn Interface>, String>;

/// A kind of interface on a wire.
#[derive(Debug)]
pub struct WireKind {
    /// Its key in `port.wire`.
    pub name: &'static str,
    /// The word for it in `show`.
    pub noun: &'static str,
    /// The port makes the interface, so no other port may.
    pub is_made: bool,
    /// Opens the interface of this name, with this MTU.
    pub open: fn(&str, usize) -> Opened,
}
