//! Output and exit status of the program.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status of a program that started, and then failed or was interrupted.
pub const FAILED: u8 = 1;
/// Exit status of a program that did not start: wrong options, or a failed setup. The command line parser also exits
/// with this status.
pub const SETUP: u8 = 2;
/// Prints to standard output. A closed pipe (`| head`) is not a failure.
pub fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// Prints the reason in one line, and returns the exit status `code`.
pub fn fail(why: impl Display, code: u8) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}
