//! Output and exit status of the program.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// The program ran, and failed or was cut off.
pub const FAILED: u8 = 1;
/// The program did not begin: wrong options, or the set-up failed. The command line parser uses the same.
pub const SETUP: u8 = 2;
/// Prints to standard output. A closed pipe (`| head`) is not a failure.
pub fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// Prints the reason in one line, and exits with `code`.
pub fn fail(why: impl Display, code: u8) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}
