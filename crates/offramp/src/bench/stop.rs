//! A signal that ends a measurement in order.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::{Arc, atomic::AtomicBool};

/// It was stopped by a signal: 128 and the number of SIGINT, as shells have it.
pub const STOPPED: u8 = 130;

/// Is set by a signal that asks to end, so that what is under way ends in order. A second signal ends the process at once.
///
/// # Errors
/// When the system cannot watch for a signal.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, STOPPED.into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot watch for signal {signal}: {error}")))?;
    }
    Ok(stop)
}
