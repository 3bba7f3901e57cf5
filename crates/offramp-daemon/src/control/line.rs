//! Lines over a socket, with limits on the length of a line and on the time to send or receive a line.

use super::LINE_TIME_MAX;
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt::PeerCredentials};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use zeroize::{Zeroize, Zeroizing};

/// Maximum number of bytes per read.
const READ_LEN: usize = 4096;

/// Initial capacity for received bytes: the maximum length of a request.
const REST_LEN: usize = super::REQUEST_LEN_MAX;

/// The process at the other end of a connection, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// The process identifier, in the process namespace of this process.
    pub process: i32,
}

impl Peer {
    /// Returns the peer of a connection: the process that connected, or the process that listened.
    pub fn of(stream: &UnixStream) -> Option<Self> {
        let who = getsockopt(stream, PeerCredentials).ok()?;
        Some(Self { uid: who.uid(), process: who.pid() })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, process {}", self.uid, self.process)
    }
}

/// One end of a connection. The buffers of the connection are wiped, because lines may contain keys.
#[derive(Debug)]
pub struct Lines {
    stream: UnixStream,
    len_max: usize,
    /// Bytes received after the last line.
    rest: Vec<u8>,
}

impl Lines {
    /// Creates a connection with lines of at most `len_max` bytes, including the newline.
    pub fn new(stream: UnixStream, len_max: usize) -> Self {
        // The buffer has its full capacity from the start: a growing vector would leave unwiped copies behind.
        Self { stream, len_max, rest: Vec::with_capacity(len_max.min(REST_LEN)) }
    }

    /// Returns the peer; `None` if the kernel does not report the peer.
    pub fn peer(&self) -> Option<Peer> {
        Peer::of(&self.stream)
    }

    /// Returns whether the peer has ended the connection. The result is correct only after all received data were read.
    pub fn has_ended(&self) -> bool {
        matches!(recv(self.stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT), Ok(0))
    }

    /// Removes the read and write timeouts from the socket, and returns the socket, for data that are not lines.
    ///
    /// # Errors
    /// Fails if the system refuses to change a timeout.
    pub fn unlimited(&self) -> io::Result<&UnixStream> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        Ok(&self.stream)
    }

    /// Returns the bytes read after the last line.
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// Reads the next line, without its newline; `None` at the end of the connection.
    ///
    /// # Errors
    /// Returns `TimedOut` if the line is not received in time. Returns `InvalidData` if the line is too long or has no
    /// newline.
    pub fn read(&mut self) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        self.read_within(LINE_TIME_MAX)
    }

    /// Reads a line as [`Lines::read`] does, with another time limit.
    ///
    /// # Errors
    /// Fails as [`Lines::read`] does.
    pub fn read_within(&mut self, time: Duration) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let until = Instant::now() + time;
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest[searched..].iter().position(|&byte| byte == b'\n') {
                let end = searched + at;
                let line = Zeroizing::new(self.rest[..end].to_vec());
                let rest_len = self.rest.len() - (end + 1);
                self.rest.copy_within(end + 1.., 0);
                self.rest[rest_len..].zeroize();
                self.rest.truncate(rest_len);
                return Ok(Some(line));
            }
            searched = self.rest.len();
            if searched >= self.len_max {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
            }
            let mut chunk = [0; READ_LEN];
            let room = READ_LEN.min(self.len_max - searched);
            self.stream.set_read_timeout(Some(left(until)?))?;
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) if searched == 0 => return Ok(None),
                Ok(0) => return Err(io::Error::new(io::ErrorKind::InvalidData, "the line has no end")),
                Ok(len) => {
                    self.rest.extend_from_slice(&chunk[..len]);
                    chunk.zeroize();
                }
                Err(error) => pass(error)?,
            }
        }
    }

    /// Sends a line; `text` must not contain a newline.
    ///
    /// # Errors
    /// Returns `TimedOut` if the peer does not receive the line in time.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        let until = Instant::now() + LINE_TIME_MAX;
        let line = Zeroizing::new([text.as_bytes(), b"\n"].concat());
        let mut sent = 0;
        while sent < line.len() {
            self.stream.set_write_timeout(Some(left(until)?))?;
            match self.stream.write(&line[sent..]) {
                Ok(len) => sent += len,
                Err(error) => pass(error)?,
            }
        }
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.rest.zeroize();
    }
}

/// Returns the time that remains until `until`. The time is never 0, since a time limit of 0 would mean no limit.
///
/// # Errors
/// Returns `TimedOut` if no time remains.
pub fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Ignores errors that mean "try again": the caller checks the remaining time.
fn pass(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(len_max: usize) -> (UnixStream, Lines) {
        let (far, near) = UnixStream::pair().unwrap();
        (far, Lines::new(near, len_max))
    }

    #[test]
    fn lines_that_come_together_are_told_apart_and_the_end_is_seen() {
        let (mut far, mut near) = ends(16);
        far.write_all(b"one\n\ntwo\n").unwrap();
        drop(far);
        let lines: Vec<_> = std::iter::from_fn(|| near.read().unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line.as_slice()).collect::<Vec<_>>(), [&b"one"[..], b"", b"two"]);
    }

    #[test]
    fn a_line_that_is_too_long_or_has_no_end_is_refused() {
        let (mut far, mut near) = ends(4);
        far.write_all(b"long and more\n").unwrap();
        assert_eq!(near.read().unwrap_err().kind(), io::ErrorKind::InvalidData);
        let (mut far, mut near) = ends(16);
        far.write_all(b"half").unwrap();
        drop(far);
        assert_eq!(near.read().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_line_of_exactly_the_longest_length_is_taken() {
        let (mut far, mut near) = ends(4);
        far.write_all(b"abc\n").unwrap();
        assert_eq!(near.read().unwrap().unwrap().as_slice(), b"abc");
    }

    #[test]
    fn one_that_sends_nothing_or_takes_nothing_is_given_up() {
        let (far, mut near) = ends(16);
        let far_read = far.try_clone().unwrap();
        let reading = std::thread::spawn(move || near.read().unwrap_err().kind());
        let (_idle, mut writer) = ends(16);
        // The text is longer than any socket buffer.
        let writing = std::thread::spawn(move || writer.write(&"x".repeat(1 << 26)).unwrap_err().kind());
        assert_eq!(reading.join().unwrap(), io::ErrorKind::TimedOut);
        assert_eq!(writing.join().unwrap(), io::ErrorKind::TimedOut);
        drop(far_read);
    }
}
