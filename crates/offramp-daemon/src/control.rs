//! The control protocol: one JSON object per line, each way. `docs/control.md` is its reference.

pub mod client;
pub(crate) mod line;
mod pcapng;
pub(crate) mod server;
pub(crate) mod socket;

pub use pcapng::io_error;

use std::time::Duration;

/// Path of the control socket, unless the file names another one.
pub const CONTROL_DEFAULT: &str = "/run/offramp/control.sock";
/// Longest request in bytes with its newline: some hundred ports fit.
pub const REQUEST_LEN_MAX: usize = 64 * 1024;
/// Longest answer in bytes read by a client: 256 queue pairs on each of many ports.
pub const ANSWER_LEN_MAX: usize = 64 * 1024 * 1024;
/// Time for a whole line, for either side.
pub const LINE_TIME_MAX: Duration = Duration::from_secs(5);
/// Clients at once; the next one gets an error and is disconnected.
pub const CLIENTS_MAX: usize = 32;
/// Most of them of one user: no user can keep all others out.
pub const CLIENTS_OF_USER_MAX: usize = CLIENTS_MAX / 2;
