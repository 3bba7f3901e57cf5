//! The other side: one request, one answer.

use super::line::Lines;
use super::{ANSWER_LEN_MAX, LINE_TIME_MAX, REQUEST_LEN_MAX};
use crate::schema::{Answer, Outcome, Request, VERSION};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// Time for the answer to a change of many ports: each of them takes a moment.
const CHANGE_TIME_MAX: Duration = Duration::from_mins(1);

/// Time for what follows: an event may come once in a year.
const FOLLOWING_TIME_MAX: Duration = Duration::from_hours(24 * 365);

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens at the socket, or this user may not use it.
    #[error("no daemon answers at {}: {cause}; {}", path.display(), hint(cause))]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The connection failed before the whole answer.
    #[error("{}: the daemon's answer was not received: {cause}", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The daemon speaks another version of the protocol.
    #[error("{}: the daemon speaks version {version} of the protocol, this program {VERSION}", path.display())]
    Version {
        /// The socket.
        path: PathBuf,
        /// The daemon's version.
        version: u32,
    },
    /// The daemon refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The answer is one to another kind of request.
    #[error("{}: the answer does not belong to the request", .0.display())]
    Unexpected(PathBuf),
}

fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            "this user may not use it: daemon.control_mode and daemon.control_group of the configuration say who may"
        }
        _ => "start one with \"offramp up FILE\", or name its socket with --control",
    }
}

/// Asks the daemon at `path`.
///
/// # Errors
/// When there is none, it does not answer in time, or it refuses.
pub fn ask(path: &Path, request: &Request) -> Result<Outcome, ClientError> {
    Subscription::start(path, request).map(|(outcome, _)| outcome)
}

/// A connection with more data after the first answer.
#[derive(Debug)]
pub struct Subscription(Lines);

impl Subscription {
    /// Asks the daemon at `path`.
    ///
    /// # Errors
    /// As [`ask`].
    pub fn start(path: &Path, request: &Request) -> Result<(Outcome, Self), ClientError> {
        let stream =
            UnixStream::connect(path).map_err(|cause| ClientError::NoDaemon { path: path.to_owned(), cause })?;
        let mut lines = Lines::new(stream, ANSWER_LEN_MAX);
        let answer =
            exchange(&mut lines, request).map_err(|cause| ClientError::NoAnswer { path: path.to_owned(), cause })?;
        match answer {
            Answer { version, .. } if version != VERSION => {
                Err(ClientError::Version { path: path.to_owned(), version })
            }
            Answer { outcome: Outcome::Error(refusal), .. } => Err(ClientError::Refused(refusal.message)),
            Answer { outcome, .. } => Ok((outcome, Self(lines))),
        }
    }

    /// Waits for the next outcome; `None` at the end.
    ///
    /// # Errors
    /// When it is no answer.
    pub fn receive(&mut self) -> io::Result<Option<Outcome>> {
        let Some(line) = self.0.read_within(FOLLOWING_TIME_MAX)? else { return Ok(None) };
        Ok(Some(serde_json::from_slice::<Answer>(&line)?.outcome))
    }

    /// Returns everything after the first answer, as it arrives.
    ///
    /// # Errors
    /// When the system refuses a wait without an end.
    pub fn bytes(&self) -> io::Result<impl Read + '_> {
        Ok(self.0.rest().chain(self.0.unlimited()?))
    }

    /// Returns a handle of the connection, to end it.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn end(&self) -> io::Result<UnixStream> {
        self.0.unlimited()?.try_clone()
    }
}

fn exchange(lines: &mut Lines, request: &Request) -> io::Result<Answer> {
    // At its full length from the beginning: a growing vector leaves unwiped copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(REQUEST_LEN_MAX));
    serde_json::to_writer(&mut *text, request)?;
    lines.write(std::str::from_utf8(&text).map_err(io::Error::other)?)?;
    let time =
        if matches!(request, Request::Add { .. } | Request::Remove { .. }) { CHANGE_TIME_MAX } else { LINE_TIME_MAX };
    let line = lines.read_within(time)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&line)?)
}
