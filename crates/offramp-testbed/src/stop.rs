//! Signals: a harness stopped by one ends its waits, and so releases its resources.

use crate::failure::{Doing, Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Longest time until a waiting harness notices a signal.
const STEP: Duration = Duration::from_millis(20);

fn shared() -> &'static Arc<AtomicBool> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    STOP.get_or_init(Arc::default)
}

/// Lets SIGINT, SIGTERM and SIGHUP end waits instead of the process from now on.
///
/// # Errors
/// When the system takes no signal handler.
pub fn listen() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(shared())).doing("listening for signals")?;
    }
    Ok(())
}

/// Returns the flag set by these signals.
pub fn flag() -> &'static AtomicBool {
    shared()
}

/// Returns whether one of the signals came.
pub fn requested() -> bool {
    flag().load(Ordering::Relaxed)
}

/// Fails when one of the signals came.
///
/// # Errors
/// [`Failure::Stopped`].
pub fn check() -> Result<()> {
    if requested() { Err(Failure::Stopped) } else { Ok(()) }
}

/// Waits, in steps short enough to stop soon.
///
/// # Errors
/// [`Failure::Stopped`].
pub fn sleep(time: Duration) -> Result<()> {
    until(time, STEP, || Ok(None::<()>)).map(drop)
}

/// Polls every `interval` until there is a result. Returns `None` after `timeout`.
///
/// # Errors
/// When the poll fails, and [`Failure::Stopped`].
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
