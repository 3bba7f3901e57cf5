//! The client of the control protocol: sends one request and reads one answer.

use super::directory::DirectoryError;
use super::line::Lines;
use super::{ANSWER_LEN_MAX, LINE_TIME_MAX, REQUEST_LEN_MAX};
use crate::schema::{Answer, Outcome, Request, VERSION};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// Time limit for the answer to `add` and `remove`: the daemon may have to open or close many ports.
const CHANGE_TIME_MAX: Duration = Duration::from_mins(1);

/// Time limit for each answer after the first answer. The limit is a year, because events may be rare.
const FOLLOWING_TIME_MAX: Duration = Duration::from_hours(24 * 365);

/// The reason for a failed request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens at the socket, or the user of this process may not connect.
    #[error("no daemon answers at {}: {cause}; {}", path.display(), hint(cause))]
    NoDaemon {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The control socket may be another user's.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The connection ended or failed before the whole answer was received.
    #[error("{}: the daemon's answer was not received: {cause}", path.display())]
    NoAnswer {
        /// The path of the socket.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The daemon uses another version of the protocol.
    #[error("{}: the daemon speaks version {version} of the protocol, this program {VERSION}", path.display())]
    Version {
        /// The path of the socket.
        path: PathBuf,
        /// The daemon's version of the protocol.
        version: u32,
    },
    /// The daemon refused the request, with this message.
    #[error("{0}")]
    Refused(String),
    /// The answer belongs to another kind of request.
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

/// Sends a request to the daemon at `path`, and returns its answer.
///
/// # Errors
/// Fails if there is no daemon, or if the daemon does not answer in time or refuses the request.
pub fn ask(path: &Path, request: &Request) -> Result<Outcome, ClientError> {
    Subscription::start(path, request).map(|(outcome, _)| outcome)
}

/// A connection on which the daemon sends more data after its first answer.
#[derive(Debug)]
pub struct Subscription {
    lines: Lines,
    path: PathBuf,
}

impl Subscription {
    /// Sends a request to the daemon at `path`. Returns the first answer and the connection.
    ///
    /// # Errors
    /// Fails as [`ask`] does.
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
            Answer { outcome, .. } => Ok((outcome, Self { lines, path: path.to_owned() })),
        }
    }

    /// Waits for the next answer; `None` at the end of the connection.
    ///
    /// # Errors
    /// Fails if the received line is not an answer.
    pub fn receive(&mut self) -> io::Result<Option<Outcome>> {
        let Some(line) = self.lines.read_within(FOLLOWING_TIME_MAX)? else { return Ok(None) };
        Ok(Some(serde_json::from_slice::<Answer>(&line)?.outcome))
    }

    /// Returns whether the daemon of this connection still answers.
    pub fn is_daemon_alive(&self) -> bool {
        let Ok(stream) = UnixStream::connect(&self.path) else { return false };
        let mut lines = Lines::new(stream, ANSWER_LEN_MAX);
        // No port has an empty name, so the answer is short. The kernel may still accept a connection to a killed
        // daemon, but no answer follows.
        let request = Request::Show { version: VERSION, port: Some(String::new()), summary: false };
        lines.peer().is_some_and(|peer| self.lines.peer() == Some(peer)) && exchange(&mut lines, &request).is_ok()
    }

    /// Returns a reader of all data after the first answer.
    ///
    /// # Errors
    /// Fails if the system refuses to remove the time limits.
    pub fn bytes(&self) -> io::Result<impl Read + '_> {
        Ok(self.lines.rest().chain(self.lines.unlimited()?))
    }

    /// Returns a handle that can end the connection.
    ///
    /// # Errors
    /// Fails if the process has no free descriptor.
    pub fn end(&self) -> io::Result<UnixStream> {
        self.lines.unlimited()?.try_clone()
    }
}

fn exchange(lines: &mut Lines, request: &Request) -> io::Result<Answer> {
    // The buffer has its full capacity from the start: a growing vector would leave unwiped copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(REQUEST_LEN_MAX));
    serde_json::to_writer(&mut *text, request)?;
    lines.write(std::str::from_utf8(&text).map_err(io::Error::other)?)?;
    let time =
        if matches!(request, Request::Add { .. } | Request::Remove { .. }) { CHANGE_TIME_MAX } else { LINE_TIME_MAX };
    let line = lines.read_within(time)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&line)?)
}
