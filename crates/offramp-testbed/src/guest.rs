//! A Linux guest as a host: QEMU with a kernel of this machine, or User Mode Linux. Except in guests of [`busybox`],
//! the guest's only program is the executable of this process.
//!
//! ```text
//!  guest ── vhost-user ── adapter ══ cable ══ adapter ── TAP ── namespace b
//!     │ second serial port: one JSON object a line
//!  this process
//! ```
//!
//! The guest boots from a file system in memory. The file system contains this executable, its libraries, and the
//! modules of the guest's network card. The guest needs no installation and no download.

pub mod agent;
pub mod busybox;
mod command;
pub mod cpio;
mod error;
pub mod image;
pub mod kernel;
mod machine;
mod program;
pub mod protocol;
mod remote;
mod rig;
mod runner;
pub mod shell;
mod tap;
pub mod vmm;

pub use command::{CPUS, mac_text};
pub use error::GuestError;
pub use machine::{Machine, Speech};
pub use remote::Remote;
pub use rig::{GuestRig, Guests};
pub use runner::{Accelerator, Choice, DriverCoalescing, GuestSpec, Runner};
pub use tap::TapGuest;
