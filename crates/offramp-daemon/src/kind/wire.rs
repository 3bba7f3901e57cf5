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
