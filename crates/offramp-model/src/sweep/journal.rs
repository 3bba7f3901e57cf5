//! The journal of a sweep: a file with one line per completed point, so that an interrupted sweep can continue.
//!
//! The first line is the fingerprint of the sweep. A file with another first line is rejected and left unchanged, so
//! that rows of two sweeps never mix. An incomplete last line is discarded, and the point is run again.

use super::{Row, Sweep, SweepError};
use crate::metrics::METRICS;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Marks a failed point in the journal. The error follows in place of the metrics.
const FAILED: &str = "failed";
/// Advice at the end of an error about a journal that belongs to another sweep.
const OTHER: &str =
    "; finish that sweep with the command and the version that started it, or remove the file to start again";

/// An open journal of a sweep.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or creates the journal of a sweep, and returns the rows found.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, or is not a journal of this sweep.
    pub fn open(path: &Path, sweep: &Sweep) -> Result<(Self, Vec<Row>), SweepError> {
        let points = sweep.points()?.len();
        let failed = failed(path);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut journal = Self { path: path.to_owned(), file: open.map_err(&failed)? };
        let mut text = String::new();
        journal.file.read_to_string(&mut text).map_err(&failed)?;
        let head = format!("{}\n", sweep.fingerprint());
        let other = |what: String| SweepError::Wrong { of: path.display().to_string(), why: what + OTHER };
        // A complete line ends in a newline.
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        if whole == 0 && head.starts_with(&text) {
            journal.begin(&head).map_err(&failed)?;
            return Ok((journal, Vec::new()));
        }
        let Some(lines) = text[..whole].strip_prefix(&head) else {
            return Err(other(sweep.difference(text.lines().next().unwrap_or_default())));
        };
        let rows = read_all(lines, points).map_err(other)?;
        journal.cut(whole as u64).map_err(failed)?;
        Ok((journal, rows))
    }

    fn begin(&mut self, head: &str) -> io::Result<()> {
        self.cut(0)?;
        self.file.write_all(head.as_bytes())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.file.seek(SeekFrom::Start(len)).map(|_| ())
    }

    /// Appends a row with a single write, so that an abrupt end of the process can truncate only the last line.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn add(&mut self, row: &Row) -> Result<(), SweepError> {
        let what = match &row.result {
            Ok(values) => values.iter().map(f64::to_string).collect::<Vec<_>>().join("\t"),
            Err(why) => format!("{FAILED}\t{why}"),
        };
        let line = format!("{}\t{what}\n", row.point);
        self.file.write_all(line.as_bytes()).map_err(failed(&self.path))
    }

    /// Removes the journal, after the result is written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed.
    pub fn remove(self) -> Result<(), SweepError> {
        std::fs::remove_file(&self.path).map_err(failed(&self.path))
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> SweepError {
    move |error| SweepError::File { file: path.display().to_string(), error }
}

/// Parses the rows of all lines after the first line.
fn read_all(lines: &str, points: usize) -> Result<Vec<Row>, String> {
    let mut is_done = vec![false; points];
    let rows = lines.lines().enumerate().map(|(at, line)| {
        let number = at + 2;
        let row = read(line, points).ok_or_else(|| format!("line {number} is not a point of this sweep"))?;
        if std::mem::replace(&mut is_done[row.point], true) {
            return Err(format!("line {number} has point {} a second time", row.point));
        }
        Ok(row)
    });
    rows.collect()
}

/// Parses one line. `None` if the line is not a row of this sweep.
fn read(line: &str, points: usize) -> Option<Row> {
    let (point, what) = line.split_once('\t')?;
    let point = point.parse().ok().filter(|point| *point < points)?;
    if let Some(why) = what.strip_prefix(FAILED) {
        return Some(Row { point, result: Err(why.trim_start().to_owned()) });
    }
    let values: Vec<f64> = what.split('\t').map(str::parse).collect::<Result<_, _>>().ok()?;
    (values.len() == METRICS.len()).then_some(Row { point, result: Ok(values) })
}
