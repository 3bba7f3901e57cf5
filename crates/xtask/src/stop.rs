//! Signals: a harness stopped by one ends its waits, and so releases its resources.

use crate::failure::{Doing, Failure, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Lets SIGINT, SIGTERM and SIGHUP end waits instead of the process from now on.
///
/// # Errors
/// When the system takes no signal handler.
pub fn listen() -> Result<()> {
    let flag = STOP.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).doing("listening for signals")?;
    }
    Ok(())
}

/// Returns whether one of the signals came.
pub fn requested() -> bool {
    STOP.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
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
pub fn sleep(time: std::time::Duration) -> Result<()> {
    /// Longest time until a signal is noticed.
    const STEP: std::time::Duration = std::time::Duration::from_millis(20);
    let end = std::time::Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(STEP));
    }
}
