//! Signals that stop a test harness. A signal ends the harness' waits, so that the harness releases its resources.

use crate::failure::{Doing, Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Maximum time until a harness in [`sleep`] notices a signal.
const STEP: Duration = Duration::from_millis(20);

fn shared() -> &'static Arc<AtomicBool> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    STOP.get_or_init(Arc::default)
}

/// Installs handlers of SIGINT, SIGTERM and SIGHUP. After the call, a signal no longer ends the process, but ends the
/// waits of the harness.
///
/// # Errors
/// Returns an error if the system refuses a signal handler.
pub fn listen() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(shared())).doing("listening for signals")?;
    }
    Ok(())
}

/// Returns the flag set by SIGINT, SIGTERM and SIGHUP.
pub fn flag() -> &'static AtomicBool {
    shared()
}

/// Returns whether SIGINT, SIGTERM or SIGHUP was received.
pub fn requested() -> bool {
    flag().load(Ordering::Relaxed)
}

/// Checks for a received signal.
///
/// # Errors
/// Returns [`Failure::Stopped`] if SIGINT, SIGTERM or SIGHUP was received.
pub fn check() -> Result<()> {
    if requested() { Err(Failure::Stopped) } else { Ok(()) }
}

/// Sleeps in steps, so that a signal soon ends the sleep.
///
/// # Errors
/// Returns [`Failure::Stopped`] if SIGINT, SIGTERM or SIGHUP was received.
pub fn sleep(time: Duration) -> Result<()> {
    until(time, STEP, || Ok(None::<()>)).map(drop)
}

/// Polls every `interval` until the poll has a result. Returns `None` after `timeout`.
///
/// # Errors
/// Returns an error if the poll fails, and [`Failure::Stopped`] if a signal was received.
pub fn until<T>(
    timeout: Duration,
    interval: Duration,
    mut poll: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = Instant::now() + timeout;
    loop {
        check()?;
        let found = poll()?;
        let left = end.saturating_duration_since(Instant::now());
        if found.is_some() || left.is_zero() {
            return Ok(found);
        }
        std::thread::sleep(interval.min(left));
    }
}
