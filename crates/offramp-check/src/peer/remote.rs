//! The end of a path on another machine.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use offramp_ports::packet::Arrival;

use super::message::{self, Answer, Request, STOP_INTERVAL, VERSION, Welcome};
use crate::end::{Description, End, Offered, Outgoing};
use crate::error::CheckError;
use crate::packet::Captured;
use crate::steering::Steering;

/// Maximum time to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time to wait for an answer of the server. The adapter's driver may reset the adapter first.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// An interface of another machine that runs `offramp check --serve`.
#[derive(Debug)]
pub struct RemoteEnd {
    peer: String,
    connection: Connection,
    description: Description,
    welcome: Welcome,
    is_on: BTreeSet<String>,
    /// Captured frames received from the server and not yet returned.
    captured: VecDeque<Captured>,
    arrivals: VecDeque<Arrival>,
    is_finished: bool,
    stop: Arc<AtomicBool>,
}

impl RemoteEnd {
    /// Connects to a server. `peer` is `host:port`.
    ///
    /// # Errors
    /// Returns an error if there is no server, if the server has another version, or if the server cannot open its
    /// interface.
    pub fn connect(peer: &str, stop: &Arc<AtomicBool>) -> Result<Self, CheckError> {
        let failed = |reason: String| CheckError::Peer { peer: peer.to_owned(), reason };
        let addresses = peer.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let mut reason = "no address".to_owned();
        let mut connected = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => reason = format!("{error}; start `offramp check --serve` there"),
            }
        }
        let stream = connected.ok_or_else(|| failed(reason))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STOP_INTERVAL))?;
        stream.set_write_timeout(Some(STOP_INTERVAL))?;
        let mut connection = Connection { stream, answer: Vec::new(), read_len: 0, is_behind: false };
        let answer = connection.ask(&Request::Hello { version: VERSION }, peer, stop)?;
        let Answer::Welcome(welcome) = answer else { return Err(failed("an unexpected answer".to_owned())) };
        let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
        let description = Description {
            name: format!("{host}:{}", welcome.interface),
            interface: welcome.interface.clone(),
            shell_prefix: format!("ssh {host} "),
            driver: welcome.driver.clone(),
            mtu: welcome.mtu,
            mac: welcome.mac,
        };
        Ok(Self {
            peer: peer.to_owned(),
            connection,
            description,
            welcome,
            is_on: BTreeSet::new(),
            captured: VecDeque::new(),
            arrivals: VecDeque::new(),
            is_finished: false,
            stop: Arc::clone(stop),
        })
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, CheckError> {
        self.connection.ask(request, &self.peer, &self.stop)
    }

    fn unexpected(&self) -> CheckError {
        CheckError::Peer { peer: self.peer.clone(), reason: "an unexpected answer".to_owned() }
    }
}

/// A connection to a server. A stop may interrupt the wait for an answer. The next request first reads that answer to
/// its end, so that each answer belongs to its request.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// The received bytes of an incomplete answer.
    answer: Vec<u8>,
    /// Number of bytes of `answer` that the present reader has read.
    read_len: usize,
    /// True if the previous request's answer is still to be read.
    is_behind: bool,
}

impl Connection {
    fn ask(&mut self, request: &Request, peer: &str, stop: &AtomicBool) -> Result<Answer, CheckError> {
        let failed = |reason: String| CheckError::Peer { peer: peer.to_owned(), reason };
        let answer = match self.exchange(request, stop) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(failed("the peer closed the connection".to_owned())),
            Err(_) if stop.load(Ordering::Relaxed) => return Err(CheckError::Stopped),
            Err(error) => return Err(failed(error.to_string())),
        };
        match Answer::decode(&answer) {
            Ok(Answer::Refused(reason)) => Err(failed(reason)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(failed(format!("the peer sent {error}; use the same version of offramp at both ends"))),
        }
    }

    fn exchange(&mut self, request: &Request, stop: &AtomicBool) -> io::Result<Option<Vec<u8>>> {
        if self.is_behind && self.read_answer(stop)?.is_none() {
            return Ok(None);
        }
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // A stop must not interrupt a write, because the server would take the next request for the rest of this one.
        message::write(&mut self.stream, &request.encode(), ANSWER_PATIENCE, &AtomicBool::new(false))?;
        self.is_behind = true;
        self.read_answer(stop)
    }

    /// Reads an answer from its first byte, including the bytes received before a stop.
    fn read_answer(&mut self, stop: &AtomicBool) -> io::Result<Option<Vec<u8>>> {
        self.read_len = 0;
        let answer = message::read(self, ANSWER_PATIENCE, stop)?;
        self.answer.clear();
        self.is_behind = false;
        Ok(answer)
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let received = &self.answer[self.read_len..];
        let len = if received.is_empty() {
            let len = self.stream.read(bytes)?;
            self.answer.extend_from_slice(&bytes[..len]);
            len
        } else {
            let len = received.len().min(bytes.len());
            bytes[..len].copy_from_slice(&received[..len]);
            len
        };
        self.read_len += len;
        Ok(len)
    }
}

impl End for RemoteEnd {
    fn description(&self) -> &Description {
        &self.description
    }

    fn offered(&self, feature: &str) -> Offered {
        self.welcome.offered.get(feature).copied().unwrap_or(Offered::No)
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        let Answer::Applied(on) = self.ask(&Request::Apply(features.to_vec()))? else { return Err(self.unexpected()) };
        self.is_on = on.into_iter().collect();
        Ok(())
    }

    fn is_on(&self, feature: &str) -> bool {
        self.is_on.contains(feature)
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        let Answer::Sent(errno) = self.ask(&Request::Send(frame.clone()))? else { return Err(self.unexpected()) };
        Ok(if errno == 0 { Ok(()) } else { Err(errno) })
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        if self.captured.is_empty() {
            let Answer::Frames(frames) = self.ask(&Request::Receive(wait))? else { return Err(self.unexpected()) };
            self.captured.extend(frames);
        }
        Ok(self.captured.pop_front())
    }

    fn steering(&mut self) -> Result<Steering, CheckError> {
        if !self.welcome.has_steering {
            return Ok(Steering::NotReachable("the offramp there is too old to report it".to_owned()));
        }
        let Answer::Steering(steering) = self.ask(&Request::Steering)? else { return Err(self.unexpected()) };
        Ok(steering)
    }

    fn arrival(&mut self, wait: Duration) -> Result<Option<Arrival>, CheckError> {
        if self.arrivals.is_empty() {
            let Answer::Arrivals(arrivals) = self.ask(&Request::Arrivals(wait))? else { return Err(self.unexpected()) };
            self.arrivals.extend(arrivals);
        }
        Ok(self.arrivals.pop_front())
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        let Answer::Done(_) = self.ask(&Request::CheckLink)? else { return Err(self.unexpected()) };
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(Vec::new());
        }
        // This function ignores the stop flag, so that a stopped check still restores the settings.
        let answer = self.connection.ask(&Request::Finish, &self.peer, &AtomicBool::new(false))?;
        let Answer::Done(lines) = answer else { return Err(self.unexpected()) };
        Ok(lines)
    }
}
