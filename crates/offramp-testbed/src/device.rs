//! Changes to an existing interface. A run switches features of the interface, and restores every setting at its end.
//!
//! A [`Guard`] writes the interface's state to a file before the first change, and restores the state when dropped.
//! After a crash, [`restore()`] or the interface's next guard restores the state. The calling thread must be in the
//! interface's network namespace. The thread must not call [`privilege::enter`](offramp_ports::sys::privilege::enter),
//! because that call would leave the namespace.

mod error;
mod restore;
mod state;

pub use error::DeviceError;
pub use restore::{Change, Guard, check_permission, explained, find, restore, restore_interface};
pub use state::{State, default_state_dir};
