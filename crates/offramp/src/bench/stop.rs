//! Signals that end a measurement in order.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::{Arc, atomic::AtomicBool};

/// Exit status after a signal: 128 and the number of SIGINT, as in shells.
pub const STOPPED: u8 = 130;

/// Returns a flag set by the first SIGHUP, SIGINT or SIGTERM, for an orderly end. A second signal ends the process at
/// once.
///
/// # Errors
/// Returns an error if the system cannot watch for a signal.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, STOPPED.into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot watch for signal {signal}: {error}")))?;
    }
    Ok(stop)
}
