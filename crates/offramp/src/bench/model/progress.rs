//! A progress line for many runs.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between updates.
const INTERVAL: Duration = Duration::from_millis(200);

/// A progress line, shown only on a terminal.
pub(super) struct Progress {
    started: Instant,
    shown_at: Option<Instant>,
    before: usize,
    done: usize,
    of: usize,
    what: &'static str,
    is_terminal: bool,
}

impl Progress {
    /// Starts the line for `of` runs, named `what`. `before` runs are already done.
    pub(super) fn new(before: usize, of: usize, what: &'static str) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { started: Instant::now(), shown_at: None, before, done: before, of, what, is_terminal }
    }

    pub(super) fn step(&mut self) {
        self.done += 1;
        let is_due = self.shown_at.unwrap_or(self.started).elapsed() >= INTERVAL;
        if self.is_terminal && is_due {
            let new = (self.done - self.before).max(1) as f64;
            let left_s = self.seconds() / new * (self.of - self.done) as f64;
            eprint!("\r\x1b[K{} of {} {}, {left_s:.0} s left", self.done, self.of, self.what);
            let _ = io::stderr().flush();
            self.shown_at = Some(Instant::now());
        }
    }

    pub(super) fn clear(&self) {
        if self.shown_at.is_some() {
            eprint!("\r\x1b[K");
        }
    }

    /// Returns the time since the start, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
