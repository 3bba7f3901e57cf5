//! The end of a path on another machine.

use std::collections::{BTreeSet, VecDeque};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
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
    stream: TcpStream,
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
        let mut stream = connected.ok_or_else(|| failed(reason))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STOP_INTERVAL))?;
        stream.set_write_timeout(Some(STOP_INTERVAL))?;
        let answer = ask(&mut stream, &Request::Hello { version: VERSION }, peer, stop)?;
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
            stream,
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
        ask(&mut self.stream, request, &self.peer, &self.stop)
    }

    fn unexpected(&self) -> CheckError {
        CheckError::Peer { peer: self.peer.clone(), reason: "an unexpected answer".to_owned() }
    }
}

fn ask(stream: &mut TcpStream, request: &Request, peer: &str, stop: &AtomicBool) -> Result<Answer, CheckError> {
    let failed = |reason: String| CheckError::Peer { peer: peer.to_owned(), reason };
    let written = message::write(stream, &request.encode(), ANSWER_PATIENCE, stop);
    let answer = match written.and_then(|()| message::read(stream, ANSWER_PATIENCE, stop)) {
        Ok(Some(answer)) => answer,
        Ok(None) => return Err(failed("the peer closed the connection".to_owned())),
        Err(_) if stop.load(std::sync::atomic::Ordering::Relaxed) => return Err(CheckError::Stopped),
        Err(error) => return Err(failed(error.to_string())),
    };
    match Answer::decode(&answer) {
        Ok(Answer::Refused(reason)) => Err(failed(reason)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(failed(format!("the peer sent {error}; use the same version of offramp at both ends"))),
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
        let answer = ask(&mut self.stream, &Request::Finish, &self.peer, &AtomicBool::new(false))?;
        let Answer::Done(lines) = answer else { return Err(self.unexpected()) };
        Ok(lines)
    }
}
