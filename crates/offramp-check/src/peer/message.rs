//! Requests and answers as bytes: a length, a kind and a body. All input from the other machine is checked here, and
//! its length is limited.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use offramp_ports::packet::Arrival;
use offramp_ports::vnet_hdr::{HEADER_LEN, decode_rx, encode_rx};
use serde::{Deserialize, Serialize};

use crate::end::{Offered, Outgoing};
use crate::packet::{Captured, Way};
use crate::plan::{self, Side};
use crate::steering::Steering;

/// Version of the protocol. Both ends must have the same version.
pub(super) const VERSION: u16 = 2;
/// Maximum length of a message in bytes. An answer can contain a frame of 128 KiB in addition to [`FRAMES_LEN`] bytes
/// of frames.
pub(super) const LEN_MAX: usize = 320 << 10;
/// Number of frame bytes after which no further frame is added to an answer.
pub(super) const FRAMES_LEN: usize = 128 << 10;
/// Maximum number of frame heads, each with its receive queue, in one answer.
pub(super) const ARRIVALS_MAX: usize = 256;
/// Maximum time for which the server waits for a captured frame. A request for a longer wait is reduced to this time.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Interval at which a reader or writer checks the stop flag.
pub(super) const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// A request from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Hello { version: u16 },
    Apply(Vec<(&'static str, bool)>),
    Send(Outgoing),
    Receive(Duration),
    CheckLink,
    Finish,
    Steering,
    Arrivals(Duration),
}

/// An answer from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Welcome(Welcome),
    /// Names of the enabled features.
    Applied(Vec<String>),
    /// The kernel's error number; 0 if the frame was sent.
    Sent(i32),
    Frames(Vec<Captured>),
    /// The lines of [`Request::Finish`] about settings that were not restored; empty for [`Request::CheckLink`].
    Done(Vec<String>),
    Steering(Steering),
    Arrivals(Vec<Arrival>),
    Refused(String),
}

/// The server's description of its interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub interface: String,
    pub driver: String,
    pub mtu: u32,
    pub mac: [u8; 6],
    /// Availability of each feature, by its ethtool name.
    pub offered: BTreeMap<String, Offered>,
    /// True if the server supports [`Request::Steering`]; earlier versions did not.
    #[serde(default)]
    pub has_steering: bool,
}

/// The defect of an invalid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(&'static str);

const HELLO: u8 = 1;
const APPLY: u8 = 2;
const SEND: u8 = 3;
const RECEIVE: u8 = 4;
const CHECK_LINK: u8 = 5;
const FINISH: u8 = 6;
const SEND_BY_SOCKET: u8 = 7;
const SEND_TAG_IN_SKB: u8 = 8;
const STEERING: u8 = 9;
const ARRIVALS: u8 = 10;
const WELCOME: u8 = 0x81;
const APPLIED: u8 = 0x82;
const SENT: u8 = 0x83;
const FRAMES: u8 = 0x84;
const DONE: u8 = 0x85;
const STEERED: u8 = 0x86;
const ARRIVED: u8 = 0x87;
const REFUSED: u8 = 0xff;

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version } => message(HELLO, &version.to_be_bytes()),
            Self::Apply(features) => message(APPLY, &json(features)),
            Self::Send(frame) => {
                let kind = match frame.way {
                    Way::PacketSocket => SEND,
                    Way::UdpSocket => SEND_BY_SOCKET,
                    Way::TagInSkb => SEND_TAG_IN_SKB,
                };
                message(kind, &[&encode_rx(&frame.meta)[..], &frame.bytes].concat())
            }
            Self::Receive(wait) => message(RECEIVE, &usecs(*wait)),
            Self::Arrivals(wait) => message(ARRIVALS, &usecs(*wait)),
            Self::Steering => message(STEERING, &[]),
            Self::CheckLink => message(CHECK_LINK, &[]),
            Self::Finish => message(FINISH, &[]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, body) = bytes.split_first().ok_or(Malformed("an empty message"))?;
        match *kind {
            HELLO => {
                let version = <[u8; 2]>::try_from(body).map_err(|_| Malformed("a greeting without a version"))?;
                Ok(Self::Hello { version: u16::from_be_bytes(version) })
            }
            APPLY => {
                let named: Vec<(String, bool)> = from_json(body)?;
                let known = |(name, on): (String, bool)| Some((known_feature(&name)?, on));
                let features: Option<Vec<_>> = named.into_iter().map(known).collect();
                features.map(Self::Apply).ok_or(Malformed("a feature that no check covers"))
            }
            SEND | SEND_BY_SOCKET | SEND_TAG_IN_SKB => {
                let way = match *kind {
                    SEND => Way::PacketSocket,
                    SEND_BY_SOCKET => Way::UdpSocket,
                    _ => Way::TagInSkb,
                };
                captured(body).map(|frame| Self::Send(Outgoing { way, bytes: frame.bytes, meta: frame.meta }))
            }
            RECEIVE => wait(body).map(Self::Receive),
            ARRIVALS => wait(body).map(Self::Arrivals),
            STEERING => Ok(Self::Steering),
            CHECK_LINK => Ok(Self::CheckLink),
            FINISH => Ok(Self::Finish),
            _ => Err(Malformed("a request of an unknown kind")),
        }
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(welcome) => message(WELCOME, &json(welcome)),
            Self::Applied(features) => message(APPLIED, &json(features)),
            Self::Sent(errno) => message(SENT, &errno.to_be_bytes()),
            Self::Frames(frames) => {
                let one = |frame: &Captured| {
                    let len = (frame.bytes.len() as u32).to_be_bytes();
                    [&len[..], &encode_rx(&frame.meta), &frame.bytes].concat()
                };
                message(FRAMES, &frames.iter().flat_map(one).collect::<Vec<u8>>())
            }
            Self::Done(lines) => message(DONE, &json(lines)),
            Self::Steering(steering) => message(STEERED, &json(steering)),
            Self::Arrivals(arrivals) => message(ARRIVED, &arrivals.iter().flat_map(arrival_bytes).collect::<Vec<u8>>()),
            Self::Refused(reason) => message(REFUSED, reason.as_bytes()),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, body) = bytes.split_first().ok_or(Malformed("an empty message"))?;
        match *kind {
            WELCOME => from_json(body).map(Self::Welcome),
            APPLIED => from_json(body).map(Self::Applied),
            SENT => {
                let errno = <[u8; 4]>::try_from(body).map_err(|_| Malformed("an outcome without a number"))?;
                Ok(Self::Sent(i32::from_be_bytes(errno)))
            }
            FRAMES => frames(body).map(Self::Frames),
            DONE => from_json(body).map(Self::Done),
            STEERED => from_json(body).map(Self::Steering),
            ARRIVED => arrivals(body).map(Self::Arrivals),
            REFUSED => Ok(Self::Refused(String::from_utf8_lossy(body).replace(char::is_control, " "))),
            _ => Err(Malformed("an answer of an unknown kind")),
        }
    }
}

fn usecs(wait: Duration) -> [u8; 4] {
    (wait.as_micros().min(u128::from(u32::MAX)) as u32).to_be_bytes()
}

fn wait(body: &[u8]) -> Result<Duration, Malformed> {
    let usecs = <[u8; 4]>::try_from(body).map_err(|_| Malformed("a capture without a time"))?;
    Ok(Duration::from_micros(u32::from_be_bytes(usecs).into()).min(WAIT_MAX))
}

/// Encodes a received frame in three parts: the number of its queue plus 1 (0 for an unknown queue), the length of its
/// head, and its head.
fn arrival_bytes(arrival: &Arrival) -> Vec<u8> {
    let number = arrival.queue.map_or(0, |queue| queue.saturating_add(1));
    [&number.to_be_bytes()[..], &[arrival.head.len() as u8], &arrival.head].concat()
}

fn arrivals(mut bytes: &[u8]) -> Result<Vec<Arrival>, Malformed> {
    const TRUNCATED: Malformed = Malformed("a receive queue without its frame");
    let mut arrivals = Vec::new();
    while !bytes.is_empty() {
        let ([high, low, len], rest) = bytes.split_first_chunk::<3>().ok_or(TRUNCATED)?;
        let (head, rest) = rest.split_at_checked(usize::from(*len)).ok_or(TRUNCATED)?;
        let queue = u16::from_be_bytes([*high, *low]).checked_sub(1);
        arrivals.push(Arrival { head: head.to_vec(), queue });
        bytes = rest;
    }
    Ok(arrivals)
}

fn known_feature(name: &str) -> Option<&'static str> {
    let features = [Side::Transmit, Side::Receive].into_iter().flat_map(plan::features_of);
    features.into_iter().find(|feature| *feature == name)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], body].concat()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(bytes).map_err(|_| Malformed("a message with an invalid JSON object"))
}

/// Decodes a vnet header and a frame.
fn captured(bytes: &[u8]) -> Result<Captured, Malformed> {
    let (header, frame) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Malformed("a frame without a header"))?;
    let meta = decode_rx(header).map_err(|_| Malformed("a frame with an unknown segmentation"))?;
    Ok(Captured { bytes: frame.to_vec(), meta })
}

fn frames(mut bytes: &[u8]) -> Result<Vec<Captured>, Malformed> {
    const CUT_OFF: Malformed = Malformed("a truncated frame");
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<4>().ok_or(CUT_OFF)?;
        let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| CUT_OFF)?;
        let end = len.checked_add(HEADER_LEN).filter(|end| *end <= rest.len()).ok_or(CUT_OFF)?;
        frames.push(captured(&rest[..end])?);
        bytes = &rest[end..];
    }
    Ok(frames)
}

/// Writes the length of a message, and then the message. The stream's write timeout must be [`STOP_INTERVAL`].
pub(super) fn write(stream: &mut impl Write, message: &[u8], patience: Duration, stop: &AtomicBool) -> io::Result<()> {
    let limit = Limit::new(patience, stop);
    let bytes = [&(message.len() as u32).to_be_bytes()[..], message].concat();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        limit.check()?;
        match stream.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => rest = &rest[len..],
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a message. Returns `None` if the other machine has closed the connection. The stream's read timeout must be
/// [`STOP_INTERVAL`].
pub(super) fn read(stream: &mut impl Read, patience: Duration, stop: &AtomicBool) -> io::Result<Option<Vec<u8>>> {
    let limit = Limit::new(patience, stop);
    let mut len = [0; 4];
    if !fill(stream, &mut len, &limit)? {
        return Ok(None);
    }
    let len = u32::from_be_bytes(len) as usize;
    if len > LEN_MAX {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!(
                "a message of {len} bytes exceeds the maximum of \
             {LEN_MAX}"
            ),
        ));
    }
    let mut message = vec![0; len];
    if !fill(stream, &mut message, &limit)? {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(message))
}

/// Reads until `bytes` is full. Returns `false` if the stream ends before the first byte.
fn fill(stream: &mut impl Read, bytes: &mut [u8], limit: &Limit<'_>) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        limit.check()?;
        match stream.read(&mut bytes[done..]) {
            Ok(0) if done == 0 => return Ok(false),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => done += len,
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Returns whether a call ended without data because of a timeout or a signal. After a timeout or a signal, the caller
/// can repeat the call.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The time limit for the transfer of a whole message, and the stop flag. A slow sender of single bytes cannot extend
/// the limit.
struct Limit<'a> {
    begun: Instant,
    patience: Duration,
    stop: &'a AtomicBool,
}

impl<'a> Limit<'a> {
    fn new(patience: Duration, stop: &'a AtomicBool) -> Self {
        Self { begun: Instant::now(), patience, stop }
    }

    fn check(&self) -> io::Result<()> {
        let is_over = self.stop.load(Ordering::Relaxed) || self.begun.elapsed() > self.patience;
        if is_over { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rss::Hashed;
    use offramp_offload::meta::{ChecksumState, Cwr, PartialChecksum, RxMeta, Segmentation, SegmentationKind};
    use proptest::prelude::*;

    fn frame(checksum: ChecksumState) -> Captured {
        let segmentation = Some(Segmentation { kind: SegmentationKind::Tcp4, size: 1448, cwr: Cwr::First });
        Captured { bytes: vec![7; 100], meta: RxMeta { checksum, segmentation, ..RxMeta::default() } }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let partial = frame(ChecksumState::Partial(PartialChecksum { start: 34, offset: 16 }));
        let good = frame(ChecksumState::Good);
        for request in [
            Request::Hello { version: VERSION },
            Request::Apply(vec![("rx-gro", true), ("tx-udp-segmentation", false)]),
            Request::Send(Outgoing { way: Way::PacketSocket, bytes: partial.bytes.clone(), meta: partial.meta }),
            Request::Send(Outgoing { way: Way::UdpSocket, bytes: partial.bytes.clone(), meta: partial.meta }),
            Request::Send(Outgoing { way: Way::TagInSkb, bytes: partial.bytes.clone(), meta: partial.meta }),
            Request::Receive(Duration::from_millis(250)),
            Request::CheckLink,
            Request::Finish,
            Request::Steering,
            Request::Arrivals(Duration::from_millis(50)),
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let welcome = Welcome {
            interface: "eth0".to_owned(),
            driver: "veth".to_owned(),
            mtu: 1500,
            mac: [2; 6],
            offered: [("rx-gro".to_owned(), Offered::Switchable)].into(),
            has_steering: true,
        };
        let arrival = |queue| Arrival { head: vec![7; 64], queue };
        let hashed = [Hashed::Addresses, Hashed::AddressesAndPorts, Hashed::Unknown, Hashed::Addresses];
        for answer in [
            Answer::Welcome(welcome),
            Answer::Applied(vec!["rx-gro".to_owned()]),
            Answer::Sent(90),
            Answer::Frames(vec![partial, good]),
            Answer::Done(vec!["a".to_owned()]),
            Answer::Steering(Steering::ByHash { key: vec![1; 40], table: vec![0, 1], hashed }),
            Answer::Steering(Steering::NotReachable("no".to_owned())),
            Answer::Arrivals(vec![arrival(None), arrival(Some(0)), arrival(Some(255))]),
            Answer::Refused("no".to_owned()),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    /// An endless stream that transfers one byte per call. Call number `left` sets the stop flag.
    struct Trickle<'a> {
        left: usize,
        stop: &'a AtomicBool,
    }

    impl Trickle<'_> {
        fn one(&mut self) -> usize {
            self.left -= 1;
            self.stop.store(self.left == 0, Ordering::Relaxed);
            1
        }
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            bytes[0] = 0;
            Ok(self.one())
        }
    }

    impl Write for Trickle<'_> {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Ok(self.one())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_whose_bytes_come_and_go_one_by_one_can_be_stopped_and_ends_in_time() {
        let stop = AtomicBool::new(false);
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let long = vec![0; 100];
        for patience in [Duration::ZERO, Duration::MAX] {
            let mut trickle = Trickle { left: 50, stop: &stop };
            assert_eq!(kind(write(&mut trickle, &long, patience, &stop)), ErrorKind::TimedOut);
            stop.store(false, Ordering::Relaxed);
            let limit = Limit::new(patience, &stop);
            let mut trickle = Trickle { left: 50, stop: &stop };
            assert_eq!(kind(fill(&mut trickle, &mut [0; 100], &limit).map(drop)), ErrorKind::TimedOut);
            stop.store(false, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_feature_that_is_not_checked_is_refused() {
        let request = message(APPLY, &json(&[("loopback", true)]));
        assert_eq!(Request::decode(&request), Err(Malformed("a feature that no check covers")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(kind in prop_oneof![any::<u8>(), 1..11u8, 0x81..0x88u8], body: Vec<u8>) {
            let message = message(kind, &body);
            let _ = (Request::decode(&message), Answer::decode(&message));
        }

        #[test]
        fn any_frames_that_are_cut_off_are_refused(len in 0..140usize) {
            let whole = Answer::Frames(vec![frame(ChecksumState::Good)]).encode();
            prop_assert_eq!(Answer::decode(&whole[..len.min(whole.len())]).is_ok(), len == 1 || len >= whole.len());
        }
    }
}
