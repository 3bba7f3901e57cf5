//! Runs of one workload over ranges of parameters: on a grid, or on a Latin hypercube.
//!
//! | file | content |
//! |---|---|
//! | `sweep.rs` | points and runs |
//! | `sweep/axis.rs` | a parameter and its values, in the format of the command line |
//! | `sweep/journal.rs` | completed points, so that an interrupted sweep can continue |
//! | `sweep/table.rs` | results as columns and as CSV |
//!
//! A Latin hypercube of n points divides the range of every parameter into n equal parts, with one point in each part.
//! Source: `McKay`, Beckman and Conover, Technometrics 21 (1979) 239.

mod axis;
mod journal;
mod table;

pub(crate) use axis::between;
pub use axis::{Axis, Values};
pub use journal::Journal;
pub use table::{Cells, Column, columns, csv};

use crate::config::Workload;
use crate::metrics::METRICS;
use crate::pool;
use crate::profile::Profile;
use crate::simulation::{Outcome, run as simulate};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use std::io;
use std::num::NonZeroUsize;

/// Separator between the parts of a sweep's fingerprint ([`Sweep::fingerprint`]).
const PART_END: &str = "; ";
/// Maximum number of points in a sweep.
pub const POINTS_MAX: usize = 1_000_000;

/// Reasons to reject a sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A range is invalid, or the journal is not from this sweep.
    #[error("{of}: {why}")]
    Wrong {
        /// The range as the user wrote it, or the path of the journal.
        of: String,
        /// The error, and the remedy.
        why: String,
    },
    /// The sweep has no points, or too many.
    #[error("{points} points; use 1 to {POINTS_MAX}")]
    Points {
        /// Number of points.
        points: String,
    },
    /// A file cannot be read or written.
    #[error("{file}: {error}")]
    File {
        /// Path of the file.
        file: String,
        /// Cause of the error.
        error: io::Error,
    },
}

/// The method that chooses the points of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// All combinations of values.
    Grid,
    /// A Latin hypercube.
    Latin {
        /// Number of points.
        points: usize,
        /// Seed of the random numbers.
        seed: u64,
    },
}

/// A sweep over ranges of parameters.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The swept system. All parameters without an axis have the values of this profile.
    pub profile: Profile,
    /// The workload.
    pub workload: Workload,
    /// The varied parameters.
    pub axes: Vec<Axis>,
    /// The method that chooses the points.
    pub design: Design,
}

/// The result of one point.
#[derive(Clone, Debug)]
pub struct Row {
    /// Index of the point in the sweep.
    pub point: usize,
    /// The values of [`METRICS`], or the error of the run.
    pub result: Result<Vec<f64>, String>,
}

impl Sweep {
    /// Returns the points of the sweep. A point has one value per axis, in base units.
    ///
    /// # Errors
    /// Returns an error if the sweep has too many points, or if a parameter is varied twice. Also fails if an axis of a
    /// grid lacks its number of values.
    pub fn points(&self) -> Result<Vec<Vec<u64>>, SweepError> {
        self.check_axes()?;
        match self.design {
            Design::Grid => self.grid(),
            Design::Latin { points, seed } => self.latin(points, seed),
        }
    }

    fn check_axes(&self) -> Result<(), SweepError> {
        for (at, axis) in self.axes.iter().enumerate() {
            if self.axes[..at].iter().any(|before| before.key.name == axis.key.name) {
                let why = "varied twice; give all values at once".to_owned();
                return Err(SweepError::Wrong { of: axis.key.name.to_owned(), why });
            }
        }
        Ok(())
    }

    fn grid(&self) -> Result<Vec<Vec<u64>>, SweepError> {
        let values = self.axes.iter().map(Axis::listed).collect::<Result<Vec<_>, _>>()?;
        allowed(values.iter().try_fold(1usize, |count, values| count.checked_mul(values.len())))?;
        let mut points = vec![Vec::new()];
        // The last axis varies fastest.
        for values in values {
            let with = |point: &Vec<u64>| values.iter().map(|value| [point.as_slice(), &[*value]].concat()).collect();
            points = points.iter().flat_map(|point| -> Vec<Vec<u64>> { with(point) }).collect();
        }
        Ok(points)
    }

    fn latin(&self, points: usize, seed: u64) -> Result<Vec<Vec<u64>>, SweepError> {
        let count = allowed(Some(points))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut rows = vec![Vec::with_capacity(self.axes.len()); count];
        for axis in &self.axes {
            let mut parts: Vec<usize> = (0..count).collect();
            parts.shuffle(&mut rng);
            for (row, part) in rows.iter_mut().zip(parts) {
                let within: f64 = rng.random_range(0.0..1.0);
                row.push(axis.at((part as f64 + within) / count as f64));
            }
        }
        Ok(rows)
    }

    /// Describes the sweep in one line. Sweeps with equal lines have equal points and results.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_parts().map(|part| part.text).join(PART_END)
    }

    fn fingerprint_parts(&self) -> [FingerprintPart; 5] {
        let axes: Vec<_> = self.axes.iter().map(Axis::text).collect();
        let kept: Vec<_> =
            self.profile.all().map(|(key, quantity)| format!("{}={}", key.name, quantity.value)).collect();
        let metrics: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        let begun_by = format!("offramp {} sweep of {}", env!("CARGO_PKG_VERSION"), self.workload.name());
        let part = |name, text, has_words| FingerprintPart { name, text, has_words };
        [
            part("version or workload", begun_by, true),
            part("design", format!("{:?}", self.design), false),
            part("varied parameters", axes.join(" "), false),
            part("profile", kept.join(" "), true),
            part("metrics", metrics.join(" "), true),
        ]
    }

    /// Describes the difference between this sweep and another fingerprint, for display.
    fn difference(&self, fingerprint: &str) -> String {
        let ours = self.fingerprint_parts();
        let theirs: Vec<_> = fingerprint.split(PART_END).collect();
        if theirs.len() != ours.len() {
            return "holds no points of a known sweep".to_owned();
        }
        let others = ours.iter().zip(theirs).filter(|(here, there)| here.text != *there);
        let named: Vec<_> = others.map(|(here, there)| here.difference(there)).collect();
        format!("holds points of a sweep with different {}", named.join(", other "))
    }

    /// Runs all points except those in `done`, on `threads` threads. `on_row` is called for each new row. Once `on_row`
    /// returns `false`, no further point begins. Returns the rows of all points, both from `done` and from this call,
    /// in order of points.
    ///
    /// # Errors
    /// Fails like [`Self::points`].
    pub fn run(
        &self,
        done: Vec<Row>,
        threads: NonZeroUsize,
        mut on_row: impl FnMut(&Row) -> bool,
    ) -> Result<Vec<Row>, SweepError> {
        let points = self.points()?;
        let mut is_done = vec![false; points.len()];
        for row in &done {
            if let Some(is_done) = is_done.get_mut(row.point) {
                *is_done = true;
            }
        }
        let left: Vec<usize> = (0..points.len()).filter(|point| !is_done[*point]).collect();
        let new = pool::map(&left, threads, |&point| self.row(point, &points[point]), |_, row| on_row(row));
        let mut rows = done;
        rows.extend(new.into_iter().flatten());
        rows.sort_by_key(|row| row.point);
        Ok(rows)
    }

    fn row(&self, point: usize, values: &[u64]) -> Row {
        let outcome = self.outcome(values).map_err(|error| error.replace(['\n', '\t'], " "));
        Row { point, result: outcome.map(|outcome| METRICS.iter().map(|metric| (metric.value)(&outcome)).collect()) }
    }

    fn outcome(&self, values: &[u64]) -> Result<Outcome, String> {
        let mut profile = self.profile.clone();
        let settings = self.axes.iter().map(|axis| axis.key).zip(values.iter().copied());
        profile.set_base_units(settings).map_err(|error| error.to_string())?;
        simulate(&profile, self.workload).map_err(|error| error.to_string())
    }
}

/// A part of a sweep's fingerprint.
struct FingerprintPart {
    /// Name for display.
    name: &'static str,
    text: String,
    /// `true` if the words of `text` are independent of each other. A message about a difference between two sweeps
    /// then names the differing words.
    has_words: bool,
}

impl FingerprintPart {
    /// Returns the part's name. If `has_words` is true, the name is followed by brackets. For each of the two sweeps,
    /// the brackets contain the first word that the other sweep lacks.
    fn difference(&self, there: &str) -> String {
        let only = |words: &str, others: &str| {
            let others: HashSet<&str> = others.split(' ').collect();
            words.split(' ').find(|word| !others.contains(word)).map(str::to_owned)
        };
        let there_only = only(there, &self.text).map(|word| format!("{word} there"));
        let here_only = only(&self.text, there).map(|word| format!("{word} here"));
        let words: Vec<_> = there_only.into_iter().chain(here_only).collect();
        if self.has_words && !words.is_empty() {
            format!("{} ({})", self.name, words.join(", "))
        } else {
            self.name.to_owned()
        }
    }
}

fn allowed(count: Option<usize>) -> Result<usize, SweepError> {
    match count {
        Some(count) if (1..=POINTS_MAX).contains(&count) => Ok(count),
        _ => Err(SweepError::Points { points: count.map_or_else(|| "too many".to_owned(), |count| count.to_string()) }),
    }
}

#[cfg(test)]
mod tests;
