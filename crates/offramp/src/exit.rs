//! What the program prints, and how it ends.

#[cfg(feature = "lab")]
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
#[cfg(feature = "lab")]
use std::sync::{Arc, atomic::AtomicBool};

/// It ran, and failed or was cut off.
pub const FAILED: u8 = 1;
/// It did not begin: wrong options, or the set-up failed. The command line parser uses the same.
pub const SETUP: u8 = 2;
/// It was stopped by a signal: 128 and the number of SIGINT, as shells have it.
#[cfg(feature = "lab")]
pub const STOPPED: u8 = 130;

/// Prints to standard output. A reader that has seen enough and is gone (`| head`) is no failure of what was done.
pub fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// Is set by a signal that asks to end, so that what is under way ends in order. A second signal ends the process at once.
///
/// # Errors
/// When the system cannot watch for a signal.
#[cfg(feature = "lab")]
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, STOPPED.into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot watch for signal {signal}: {error}")))?;
    }
    Ok(stop)
}

/// Says in one line why, and ends with `code`.
pub fn fail(why: impl Display, code: u8) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}
