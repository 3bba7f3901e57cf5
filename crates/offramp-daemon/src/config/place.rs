//! The position of an error in the file.

use crate::schema::unknown;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Maximum number of characters quoted from a line of the file in a message.
const QUOTE_CHARS_MAX: usize = 60;

/// The reason for refusing a configuration, as a one-line message.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {cause}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The file has an invalid key or value.
    #[error("{}:{line}: {message}", file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The error in this line, and the remedy.
        message: String,
    },
    /// An option of the command line has an invalid value.
    #[error("{option}: {message}")]
    Option {
        /// The option.
        option: String,
        /// The error, and the remedy.
        message: String,
    },
}

/// A file and its text, from which the line of an error is computed.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    file: &'a Path,
    text: &'a str,
}

impl<'a> Place<'a> {
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text }
    }

    /// Returns the error for the bytes `at` of the text.
    pub fn wrong(&self, at: Range<usize>, message: impl Into<String>) -> ConfigError {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = 1 + before.matches('\n').count();
        ConfigError::Wrong { file: self.file.to_owned(), line, message: message.into() }
    }

    /// Converts an error of the parser. For an unknown key, the message suggests the nearest known key.
    pub fn refused(&self, error: &toml::de::Error) -> ConfigError {
        let at = error.span().unwrap_or(0..0);
        let reason = error.message().trim();
        let message = unknown_key(reason).unwrap_or_else(|| {
            let reason = reason.lines().collect::<Vec<_>>().join(", ");
            format!("{reason}, in: {}", self.quote(at.start))
        });
        self.wrong(at, message)
    }

    /// Returns the line that contains byte `at`, shortened to at most [`QUOTE_CHARS_MAX`] characters.
    fn quote(&self, at: usize) -> String {
        let line_start = self.text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
        let line = self.text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or("").trim();
        if line.chars().count() <= QUOTE_CHARS_MAX {
            return line.to_owned();
        }
        line.chars().take(QUOTE_CHARS_MAX - 1).chain(['…']).collect()
    }
}

/// Returns the message for an unknown key, from serde's message. Serde's message contains the keys in backquotes, with
/// the unknown key first.
fn unknown_key(reason: &str) -> Option<String> {
    let rest = reason.strip_prefix("unknown field ")?;
    let mut names = rest.split('`').skip(1).step_by(2);
    let key = names.next()?;
    Some(unknown("key", key, names))
}
