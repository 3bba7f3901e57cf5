//! Checks the guarantees that the server keeps for arbitrary bytes from a client. A fuzz target and ordinary tests use
//! this module.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use offramp_check::end::{Description, End, Offered, Outgoing};
use offramp_check::error::CheckError;
use offramp_check::peer::converse;
use offramp_check::{Captured, Way};
use offramp_offload::frame::Frame;
use offramp_offload::layout::link_header_len;
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};

/// Ethernet address of the interface.
pub const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];
/// Maximum number of bytes sent per byte received from a client.
const OUT_PER_IN_MAX: usize = 3;
/// Maximum length of an answer in bytes, as accepted by a client.
const ANSWER_LEN_MAX: usize = 320 << 10;
/// First bytes of the known answers.
const ANSWERS: [u8; 8] = [0x81, 0x82, 0x83, FRAMES, 0x85, 0x86, 0x87, REFUSED];
const FRAMES: u8 = 0x84;
const REFUSED: u8 = 0xff;
/// Length of the length field before each message and each frame, in bytes. [`HEADER_LEN`]: length of the vnet header
/// before each frame of an answer.
const LENGTH_LEN: usize = 4;
const HEADER_LEN: usize = 12;
/// Maximum number of bytes per read, so that messages are received in pieces.
const READ_MAX: usize = 37;

/// A client that sends `input` and disconnects.
struct Client<'a> {
    input: &'a [u8],
    answers: Vec<u8>,
}

impl Read for Client<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.input.len().min(bytes.len()).min(READ_MAX);
        bytes[..len].copy_from_slice(&self.input[..len]);
        self.input = &self.input[len..];
        Ok(len)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answers.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An interface that captures its own frames, followed by endless frames of other hosts.
struct Loopback {
    description: Description,
    captured: VecDeque<Captured>,
    count: Rc<Count>,
}

/// Records whether the interface is open, and the number of bytes sent.
#[derive(Default)]
struct Count {
    is_open: Cell<bool>,
    bytes_out: Cell<usize>,
}

impl Loopback {
    fn new(count: &Rc<Count>) -> Self {
        assert!(!count.is_open.replace(true), "the interface is opened twice");
        let description = Description {
            name: "eth0".to_owned(),
            interface: "eth0".to_owned(),
            shell_prefix: String::new(),
            driver: "loopback".to_owned(),
            mtu: 1500,
            mac: OWN,
        };
        Self { description, captured: VecDeque::new(), count: Rc::clone(count) }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.count.is_open.set(false);
    }
}

impl End for Loopback {
    fn description(&self) -> &Description {
        &self.description
    }

    fn offered(&self, _feature: &str) -> Offered {
        Offered::Switchable
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        let is_checked = |name: &str| name.starts_with("tx-") || name.starts_with("rx-");
        assert!(features.iter().all(|(name, _)| is_checked(name)), "{features:?}");
        Ok(())
    }

    fn is_on(&self, _feature: &str) -> bool {
        true
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        assert!(is_of_a_check(&frame.bytes), "{:x?} goes out", frame.bytes);
        assert_eq!(frame.bytes[6..12], OWN);
        if frame.way == Way::UdpSocket {
            let mut bytes = frame.bytes.clone();
            let at = Frame::received(&mut bytes).layout().expect("a datagram").transport_start;
            assert_eq!(bytes[at + 2..at + 4], [0, 9], "somebody may listen there");
        }
        let out = wire_len(frame);
        assert!(out <= OUT_PER_IN_MAX * frame.bytes.len(), "{out} bytes go out for {}", frame.bytes.len());
        self.count.bytes_out.set(self.count.bytes_out.get() + out);
        self.captured.push_back(Captured { bytes: frame.bytes.clone(), meta: frame.meta });
        Ok(Ok(()))
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        assert!(wait <= Duration::from_secs(1), "it waits for {wait:?}");
        let others = || Captured { bytes: vec![0xff; 1514], meta: RxMeta::default() };
        Ok(Some(self.captured.pop_front().unwrap_or_else(others)))
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        Ok(Vec::new())
    }
}

/// Returns the number of bytes of a frame on the wire: the total length of its segments.
fn wire_len(frame: &Outgoing) -> usize {
    let Some(segmentation) = frame.meta.segmentation else { return frame.bytes.len() };
    let checksum = match frame.meta.checksum {
        ChecksumState::Partial(partial) => Some(partial),
        _ => None,
    };
    let mut bytes = frame.bytes.clone();
    let request = Frame::new(&mut bytes, TxMeta { checksum, segmentation: Some(segmentation) });
    let mut segmenter = Segmenter::new(&request, &SegmentPolicy::default()).expect("a request that can be done");
    let (mut total, mut out) = (0, vec![0; frame.bytes.len() + 8]);
    while segmenter.frames_left() > 0 {
        total += segmenter.write_next(&request, &mut out);
    }
    total
}

/// Returns whether a frame belongs to a check: it has IP addresses of a check, and a check's Ethernet address or
/// multicast group as destination.
fn is_of_a_check(frame: &[u8]) -> bool {
    let is_to = |prefix: &[u8]| frame.starts_with(prefix);
    let to_nobody = is_to(&[0x02, 0x6f, 0x66, 0x72, 0x61, 0x6d]);
    let packet = link_header_len(frame).ok().and_then(|at| frame.get(at..)).unwrap_or_default();
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => {
            let to = if to_nobody { [198, 19] } else { [239, 194] };
            (to_nobody || is_to(&[1, 0, 0x5e, 0x42])) && packet[12..14] == [198, 18] && packet[16..18] == to
        }
        Some(6) if packet.len() >= 40 => {
            let to: &[u8] = if to_nobody { &[0xfd, 0x6f] } else { &[0xff, 0x12] };
            (to_nobody || is_to(&[0x33, 0x33])) && packet[8..10] == [0xfd, 0x6f] && packet[24..26] == *to
        }
        _ => false,
    }
}

/// Runs the server with a client that sends `bytes`. The server must send only frames of a check, and at most
/// [`OUT_PER_IN_MAX`] bytes per received byte. Answers must be short, and the interface must be closed at the end.
pub fn messages(bytes: &[u8]) {
    let count = Rc::new(Count::default());
    let mut client = Client { input: bytes, answers: Vec::new() };
    let mut open = || -> Result<Box<dyn End>, CheckError> { Ok(Box::new(Loopback::new(&count))) };
    let outcome = converse(&mut client, &mut open, &AtomicBool::new(false));
    assert!(!count.is_open.get(), "the interface stays open");
    assert!(count.bytes_out.get() <= OUT_PER_IN_MAX * bytes.len());
    let mut rest = &client.answers[..];
    while let Some((len, after)) = rest.split_first_chunk::<LENGTH_LEN>() {
        let len = u32::from_be_bytes(*len) as usize;
        assert!(len <= ANSWER_LEN_MAX, "an answer of {len} bytes");
        let (answer, after) = after.split_at(len);
        assert!(ANSWERS.contains(&answer[0]));
        if answer[0] == FRAMES {
            frames(&answer[1..]);
        }
        assert!(answer[0] != REFUSED || after.is_empty() && outcome.is_err(), "it goes on after a refusal");
        rest = after;
    }
    assert!(rest.is_empty());
}

/// Checks that every frame of an answer belongs to a check.
fn frames(mut bytes: &[u8]) {
    while let Some((len, after)) = bytes.split_first_chunk::<LENGTH_LEN>() {
        let (frame, after) = after.split_at(HEADER_LEN + u32::from_be_bytes(*len) as usize);
        assert!(is_of_a_check(&frame[HEADER_LEN..]), "{frame:x?} is handed over");
        bytes = after;
    }
}
