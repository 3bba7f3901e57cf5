//! The control protocol: one JSON object per line, in both directions. `docs/control.md` is the reference of the
//! protocol.

pub mod client;
pub(crate) mod directory;
pub(crate) mod line;
mod pcapng;
pub(crate) mod server;
pub(crate) mod socket;

pub use directory::{DirectoryError, control_default, find_control};

use std::time::Duration;

/// Path of the control socket of a daemon that root starts.
pub const CONTROL_DEFAULT: &str = "/run/offramp/control.sock";
/// Maximum length of a request in bytes, including the newline. A request with some hundred ports fits.
pub const REQUEST_LEN_MAX: usize = 64 * 1024;
/// Maximum length of an answer read by a client, in bytes: enough for many ports with 256 queue pairs each.
pub const ANSWER_LEN_MAX: usize = 64 * 1024 * 1024;
/// Time limit for sending or receiving a whole line.
pub const LINE_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of clients at a time. A further client gets an error and is disconnected.
pub const CLIENTS_MAX: usize = 32;
/// Maximum number of clients of one user, so that no user can lock out all others.
pub const CLIENTS_OF_USER_MAX: usize = CLIENTS_MAX / 2;
