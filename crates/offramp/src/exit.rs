//! How the program ends.

use std::fmt::Display;
use std::process::ExitCode;

/// It ran, and failed or was cut off.
pub const FAILED: u8 = 1;
/// It did not begin: wrong options, or the set-up failed. The command line parser uses the same.
pub const SETUP: u8 = 2;
/// It was stopped by a signal: 128 and the number of SIGINT, as shells have it.
pub const STOPPED: u8 = 130;

/// Says in one line why, and ends with `code`.
pub fn fail(why: impl Display, code: u8) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}
