//! Signals that end a measurement in an orderly way.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::{Arc, atomic::AtomicBool};

/// Exit status after a signal: 128 plus the number of SIGINT, as in shells.
pub const STOPPED: u8 = 130;

/// Returns a flag that the first SIGHUP, SIGINT or SIGTERM sets, for an orderly end. A second signal ends the process
/// at once.
///
/// # Errors
/// Returns an error if a signal handler cannot be installed.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, STOPPED.into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot watch for signal {signal}: {error}")))?;
    }
    Ok(stop)
}
