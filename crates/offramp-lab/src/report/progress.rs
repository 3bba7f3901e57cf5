//! The progress of a run, with the time left.

use std::io::{self, IsTerminal, Write};

use super::terminal::{WIDTH, shorten};
use super::words::printable;

/// One step of a run, for progress output.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Number of the present step, from 1.
    pub done: usize,
    /// Total number of steps in the run.
    pub total: usize,
    /// Name of the experiment.
    pub experiment: &'a str,
    /// Estimated remaining time of the run, in seconds, if known.
    pub left_s: Option<f64>,
}

/// Shows the progress of a run. On a terminal, one line is updated in place. Another output receives one line per
/// experiment.
///
/// Output errors are ignored, so that a measurement continues even if its progress cannot be shown.
pub struct Progress<W: Write> {
    output: W,
    renews: bool,
    shown: bool,
    experiment: Option<String>,
}

impl Progress<io::Stderr> {
    /// Shows progress on standard error.
    pub fn stderr() -> Self {
        let output = io::stderr();
        let renews = output.is_terminal();
        Self::new(output, renews)
    }
}

impl<W: Write> Progress<W> {
    /// Shows progress on `output`. `renews` is `true` for a terminal.
    pub fn new(output: W, renews: bool) -> Self {
        Self { output, renews, shown: false, experiment: None }
    }

    /// Shows the current step.
    pub fn step(&mut self, step: &Step) {
        if self.renews {
            let line = shorten(&printable(&step_line(step)), WIDTH - 1);
            let _ = write!(self.output, "\r\x1b[K{line}");
            self.shown = true;
        } else if self.experiment.as_deref() != Some(step.experiment) {
            let _ = writeln!(self.output, "{}", printable(&step_line(step)));
        }
        self.experiment = Some(step.experiment.to_owned());
        let _ = self.output.flush();
    }

    /// Clears the progress line, so that other text can be printed.
    pub fn clear(&mut self) {
        if self.shown {
            let _ = write!(self.output, "\r\x1b[K");
            let _ = self.output.flush();
            self.shown = false;
        }
    }
}

impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        self.clear();
    }
}

fn step_line(step: &Step) -> String {
    let left = match step.left_s {
        Some(seconds) if seconds >= 120.0 => format!(", about {:.0} min left", seconds / 60.0),
        Some(seconds) => format!(", about {seconds:.0} s left"),
        None => String::new(),
    };
    let Step { done, total, experiment, .. } = step;
    format!("{done}/{total} {experiment}{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(experiment: &str, done: usize, left_s: f64) -> Step<'_> {
        Step { done, total: 12, experiment, left_s: Some(left_s) }
    }

    #[test]
    fn progress_is_a_line_for_each_experiment_where_there_is_no_terminal() {
        let mut output = Vec::new();
        let mut progress = Progress::new(&mut output, false);
        for at in [step("lso", 3, 60.4), step("lso", 3, 59.0), step("rsc", 4, 45.0)] {
            progress.step(&at);
        }
        drop(progress);
        assert_eq!(String::from_utf8(output).expect("text"), "3/12 lso, about 60 s left\n4/12 rsc, about 45 s left\n");
    }

    #[test]
    fn progress_on_a_terminal_renews_one_line_and_leaves_nothing() {
        let mut output = Vec::new();
        let mut progress = Progress::new(&mut output, true);
        progress.step(&step("lso", 2, 125.0));
        drop(progress);
        let text = String::from_utf8(output).expect("text");
        assert_eq!(text, "\r\x1b[K2/12 lso, about 2 min left\r\x1b[K");
    }
}
