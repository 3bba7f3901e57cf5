//! What the program prints, and how it ends.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// It ran, and failed or was cut off.
pub const FAILED: u8 = 1;
/// It did not begin: wrong options, or the set-up failed. The command line parser uses the same.
pub const SETUP: u8 = 2;
/// Prints to standard output. A reader that has seen enough and is gone (`| head`) is no failure of what was done.
pub fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// Says in one line why, and ends with `code`.
pub fn fail(why: impl Display, code: u8) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}
