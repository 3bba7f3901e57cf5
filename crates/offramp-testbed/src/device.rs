//! An existing interface: a run switches its features, and every setting is put back.
//!
//! A [`Guard`] writes the state of the interface to a file before the first change. It puts the state back when it is
//! dropped; after a crash [`restore`] does, as the next guard of the interface does. The calling thread must be in the
//! interface's network namespace. It must not use [`privilege::enter`](offramp_ports::sys::privilege::enter): that
//! would leave the namespace.

mod error;
mod restore;
mod state;

pub use error::DeviceError;
pub use restore::{Change, Guard, check_permission, explained, find, restore};
pub use state::{State, default_state_dir};
