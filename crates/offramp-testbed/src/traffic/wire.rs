//! The control protocol: one TCP connection with one JSON object per line, in both directions.
//!
//! ```text
//! client                          server
//! hello {version, params, ports} ▶
//!                                ◀ ready {port, udp_ports, token}      or refused {reason}
//! data connections, each with token and stream number ▶ port
//!                                ◀ go                                  every receiver runs
//! begin                          ▶                                    senders start; warm-up
//! start                          ▶                                    the server's window begins   (timed test)
//! end                            ▶                                    the server's window ends     (timed test)
//!                                ◀ ended                               the load stays on until here
//! stop                           ▶                                    senders stop, receivers drain
//!                                ◀ results {figures of the server}
//! ```
//!
//! Lines have a maximum length, and each step has a deadline. A malformed line ends the session.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::reason;
use super::params::Params;
use super::side::SideFigures;

/// Version of the control protocol. Ends with different versions refuse each other.
pub(super) const VERSION: u32 = 2;
/// Maximum length of a line read by a server, in bytes. A line with the parameters and the ports of 128 sockets is far
/// shorter.
pub(super) const CLIENT_LINE_LEN_MAX: usize = 16 * 1024;
/// Maximum length of a line read by a client, in bytes. A line with results of [`super::marks::INTERVALS_MAX`]
/// intervals in each direction is shorter.
pub(super) const SERVER_LINE_LEN_MAX: usize = 8 * 1024 * 1024;
/// Number of bytes in the hello at the start of a TCP data connection: the token, then the stream's index (big-endian).
pub(super) const DATA_HELLO_LEN: usize = 20;
/// Minimum read timeout, because a timeout of zero would mean no timeout.
const READ_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// Maximum time that the send of a line waits for room in the socket.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes per read of the control connection.
const READ_CHUNK_LEN: usize = 4096;

/// A line from the client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ClientLine {
    /// Requests a test.
    Hello {
        /// Version of the protocol.
        version: u32,
        /// Parameters of the test.
        params: Params,
        /// Ports of the client's UDP sockets, in the order of the streams; empty without UDP.
        udp_ports: Vec<u16>,
    },
    /// Senders may start.
    Begin,
    /// The client's measured window has begun. The server opens its own measured window.
    Start,
    /// The client's measured window has ended. The server closes its own measured window.
    End,
    /// Senders stop; the client waits for results.
    Stop,
}

/// A line from the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ServerLine {
    /// The test is accepted.
    Ready {
        /// Port for the TCP data connections; 0 without TCP.
        port: u16,
        /// Ports of the server's UDP sockets, in the order of the streams; empty without UDP.
        udp_ports: Vec<u16>,
        /// Token at the start of each data connection, as 32 hexadecimal digits; empty without TCP.
        token: String,
    },
    /// Every stream is connected and every receiver runs.
    Go,
    /// The server's measured window has ended.
    Ended,
    /// The server's figures.
    Results(Box<SideFigures>),
    /// The server refuses or aborts this test.
    Refused {
        /// Reason for the refusal, in one sentence.
        reason: String,
    },
}

/// The reason why no line was received or sent.
#[derive(Debug)]
pub(super) enum WireError {
    /// The deadline has passed.
    Timeout,
    /// The other end closed the connection.
    Closed,
    /// The line is longer than this limit in bytes.
    TooLong(usize),
    /// The line is not allowed by the protocol.
    Malformed(String),
    /// The kernel reported an error.
    Io(io::Error),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Timeout => write!(formatter, "no answer in time"),
            Self::Closed => write!(formatter, "the other end closed the control connection"),
            Self::TooLong(limit) => write!(formatter, "a control line exceeds {limit} bytes"),
            Self::Malformed(what) => write!(formatter, "a control line violates the protocol ({what})"),
            Self::Io(error) => write!(formatter, "{}", reason(error)),
        }
    }
}

impl From<WireError> for String {
    fn from(error: WireError) -> Self {
        error.to_string()
    }
}

/// One end of a control connection.
pub(super) struct Control {
    stream: TcpStream,
    received: Vec<u8>,
    line_len_max: usize,
}

impl Control {
    /// Takes ownership of a connected socket.
    pub(super) fn new(stream: TcpStream, line_len_max: usize) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Self { stream, received: Vec::new(), line_len_max })
    }

    /// Returns the address of this end.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Returns the address of the other end.
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Sends one line.
    pub(super) fn send(&mut self, line: &impl Serialize) -> Result<(), WireError> {
        let mut text = serde_json::to_vec(line).map_err(|error| WireError::Malformed(error.to_string()))?;
        text.push(b'\n');
        self.stream.write_all(&text).map_err(WireError::Io)
    }

    /// Waits for one line until the deadline. After [`WireError::Timeout`], another call continues without loss of
    /// data.
    pub(super) fn receive<Line: DeserializeOwned>(&mut self, deadline: Instant) -> Result<Line, WireError> {
        let mut searched = 0;
        loop {
            if let Some(offset) = self.received[searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.received.split_off(searched + offset + 1);
                let line = std::mem::replace(&mut self.received, rest);
                return serde_json::from_slice(&line).map_err(|error| WireError::Malformed(error.to_string()));
            }
            searched = self.received.len();
            if searched >= self.line_len_max {
                return Err(WireError::TooLong(self.line_len_max));
            }
            self.read_some(deadline)?;
        }
    }

    fn read_some(&mut self, deadline: Instant) -> Result<(), WireError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(WireError::Timeout);
        }
        self.stream.set_read_timeout(Some(left.max(READ_TIMEOUT_MIN))).map_err(WireError::Io)?;
        let mut chunk = [0; READ_CHUNK_LEN];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(WireError::Closed),
            Ok(len) => {
                self.received.extend_from_slice(&chunk[..len]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(WireError::Timeout),
                ErrorKind::Interrupted => Ok(()),
                _ => Err(WireError::Io(error)),
            },
        }
    }
}

/// Returns the hello of a TCP data connection.
pub(super) fn data_hello(token: u128, index: u32) -> [u8; DATA_HELLO_LEN] {
    let mut bytes = [0; DATA_HELLO_LEN];
    bytes[..16].copy_from_slice(&token.to_be_bytes());
    bytes[16..].copy_from_slice(&index.to_be_bytes());
    bytes
}

/// Returns the stream's index from the hello of a data connection, or `None` if the token is wrong.
pub(super) fn stream_of_data_hello(bytes: &[u8; DATA_HELLO_LEN], token: u128) -> Option<u32> {
    let (found, index) = bytes.split_at(16);
    (found == token.to_be_bytes()).then(|| index.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
}

/// Formats a token as 32 hexadecimal digits.
pub(super) fn token_text(token: u128) -> String {
    format!("{token:032x}")
}

/// Parses a token from 32 hexadecimal digits.
pub(super) fn token_from_text(text: &str) -> Option<u128> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair(line_len_max: usize) -> (TcpStream, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, Control::new(listener.accept().unwrap().0, line_len_max).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn a_line_cut_into_pieces_is_read_whole_and_the_next_one_is_kept() {
        let (mut client, mut control) = pair(CLIENT_LINE_LEN_MAX);
        client.write_all(b"\"be").unwrap();
        let early = control.receive::<ClientLine>(Instant::now() + Duration::from_millis(5));
        assert!(matches!(early, Err(WireError::Timeout)));
        client.write_all(b"gin\"\n\"stop\"\n").unwrap();
        assert!(matches!(control.receive(soon()), Ok(ClientLine::Begin)));
        assert!(matches!(control.receive(soon()), Ok(ClientLine::Stop)));
        drop(client);
        assert!(matches!(control.receive::<ClientLine>(soon()), Err(WireError::Closed)));
    }

    #[test]
    fn an_endless_line_is_refused_at_its_limit() {
        let (mut client, mut control) = pair(100);
        client.write_all(&[b'x'; 200]).unwrap();
        assert!(matches!(control.receive::<ClientLine>(soon()), Err(WireError::TooLong(100))));
    }

    #[test]
    fn a_data_hello_gives_its_stream_only_with_the_right_token() {
        let bytes = data_hello(77, 0x0102_0304);
        assert_eq!(stream_of_data_hello(&bytes, 77), Some(0x0102_0304));
        assert_eq!(stream_of_data_hello(&bytes, 78), None);
        assert_eq!(token_from_text(&token_text(77)), Some(77));
        assert_eq!(token_from_text("77"), None);
    }
}
