//! Plants a fault in an adapter, by a stage between the adapter and its host.
//!
//! On transmit, the stage first processes the host's request correctly, and then changes the resulting frames. On
//! receive, the stage changes the adapter's frames, or coalesces them although a rule forbids it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::layout::{FrameLayout, Network, Transport};
use offramp_offload::meta::{ChecksumState, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_ports::tap::TapQueue;
use offramp_ports::worker::HostIo;

use crate::common::rig::Settings;
use crate::common::segments;

/// A fault of the sender: changes the frames made from the host's request `whole`.
pub type Transmit = fn(frames: &mut Vec<Vec<u8>>, whole: &Whole);
/// A fault of the receiver: changes a frame, and returns the number of times that the frame is delivered.
pub type Receive = fn(meta: &mut RxMeta, frame: &mut Vec<u8>) -> usize;

/// A frame from the host with its request.
pub struct Whole {
    pub bytes: Vec<u8>,
    pub request: TxMeta,
}

/// A rule against coalescing two frames. The planted fault ignores this rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    Push,
    Timestamp,
    Congestion,
    HopLimit,
    Gap,
    BadChecksum,
    PacketLength,
    Fragment,
}

/// A planted fault.
#[derive(Clone, Copy)]
pub enum Planted {
    None,
    Transmit(Transmit),
    /// A fault in frames that are received while these offloads are on.
    Receive(Offloads, Receive),
    /// A fault in the removal of VLAN tags on receive.
    Strips(Receive),
    /// A fault in the insertion of VLAN tags on transmit.
    Inserts(fn(&mut Vec<u8>)),
    Coalesces(Ignored),
    /// Batches are delivered in reverse order while coalescing is on.
    Reverses,
    /// Frames with a wrong checksum are delivered first while coalescing is on.
    BadFirst,
    /// Batches are delayed by this time while coalescing is on.
    Holds(Duration),
    /// A fault in transmitted frames, independent of offloads.
    Always(fn(&mut Vec<u8>)),
}

/// Seed of the random generator. With this seed and a fault probability of 1/400 per frame, the 46th frame is the first
/// faulty one, so a quick check sends it.
const SEED: u64 = 136;

/// A host port with a planted fault.
pub struct Stage {
    tap: TapQueue,
    settings: Arc<Settings>,
    planted: Planted,
    /// Faulty frames made from the host's last frame and not yet sent, in reverse order.
    made: Vec<Vec<u8>>,
    current: Option<FrameBuffer<Vec<u8>>>,
    /// Received frames of the present batch, not yet delivered to the host.
    gathered: Vec<(RxMeta, Vec<u8>)>,
    /// Average number of frames per faulty frame.
    one_in: u64,
    random: u64,
}

impl Stage {
    pub fn new(tap: TapQueue, settings: &Arc<Settings>, planted: Planted) -> Self {
        Self {
            tap,
            settings: Arc::clone(settings),
            planted,
            made: Vec::new(),
            current: None,
            gathered: Vec::new(),
            one_in: 1,
            random: SEED,
        }
    }

    /// Creates a stage with a rare fault, which affects a frame with a probability of 1/`one_in`.
    pub fn rarely(tap: TapQueue, settings: &Arc<Settings>, planted: Planted, one_in: u64) -> Self {
        Self { one_in, ..Self::new(tap, settings, planted) }
    }

    /// Returns whether the next frame gets the fault, chosen by a xorshift generator (Marsaglia 2003).
    fn is_due(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(self.one_in)
    }

    fn lend(&mut self, bytes: Vec<u8>) {
        let len = bytes.len();
        let mut buffer = FrameBuffer::new(bytes);
        buffer.set(0..len, TxMeta::default());
        self.current = Some(buffer);
    }

    fn hand_over(&mut self, mut meta: RxMeta, mut frame: Vec<u8>) {
        let planted = self.planted;
        let copies = match planted {
            Planted::Receive(offload, change) if self.settings.has(offload) && self.is_due() => {
                change(&mut meta, &mut frame)
            }
            Planted::Strips(change) if self.settings.strips.load(Ordering::Relaxed) => change(&mut meta, &mut frame),
            _ => 1,
        };
        for _ in 0..copies {
            // The frame is lost if the host has no room, as with any adapter.
            let _ = self.tap.rx_deliver(&meta, &frame);
        }
    }
}

impl InPlace for Stage {}

impl HostPort for Stage {
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        if let Some(frame) = self.made.pop() {
            self.lend(frame);
            return Ok(true);
        }
        self.current = None;
        if !self.tap.tx_next(now_ns)? {
            return Ok(false);
        }
        let frame = self.tap.tx_frame();
        let whole = Whole { bytes: frame.bytes().to_vec(), request: frame.request() };
        let planted = self.planted;
        match planted {
            Planted::Transmit(change) if whole.request != TxMeta::default() && self.is_due() => {
                self.made = segments(&whole.bytes, whole.request);
                change(&mut self.made, &whole);
                self.made.reverse();
            }
            Planted::Inserts(change) if self.settings.inserts.load(Ordering::Relaxed) => {
                self.made = segments(&whole.bytes, whole.request);
                self.made.iter_mut().for_each(change);
                self.made.reverse();
            }
            Planted::Always(change) if self.is_due() => {
                self.made = segments(&whole.bytes, whole.request);
                self.made.iter_mut().for_each(change);
                self.made.reverse();
            }
            _ => return Ok(true),
        }
        match self.made.pop() {
            Some(frame) => {
                self.lend(frame);
                Ok(true)
            }
            None => self.tx_next(now_ns),
        }
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        match &mut self.current {
            Some(buffer) => buffer.frame(),
            None => self.tap.tx_frame(),
        }
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.gathered.push((*meta, frame.to_vec()));
        Ok(())
    }

    fn rx_flush(&mut self, now_ns: u64) {
        let mut frames = std::mem::take(&mut self.gathered);
        match self.planted {
            Planted::Coalesces(ignored) if self.settings.has(Offloads::RSC4) => frames = coalesced(frames, ignored),
            Planted::BadFirst if self.settings.has(Offloads::RSC4) => {
                frames.sort_by_key(|(meta, _)| meta.checksum != ChecksumState::Bad);
            }
            Planted::Holds(time) if self.settings.has(Offloads::RSC4) && !frames.is_empty() => std::thread::sleep(time),
            Planted::Reverses if self.settings.has(Offloads::RSC4) => frames.reverse(),
            _ => {}
        }
        for (meta, frame) in frames {
            self.hand_over(meta, frame);
        }
        self.tap.rx_flush(now_ns);
    }

    fn accepts(&self) -> Offloads {
        self.tap.accepts()
    }

    fn honours_data_valid(&self) -> bool {
        self.tap.honours_data_valid()
    }
}

impl HostIo for Stage {
    fn arm(&mut self) {
        self.tap.arm();
    }

    fn disarm(&mut self) {
        self.tap.disarm();
    }

    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        self.tap.watch(is_held, watch);
    }
}

/// Returns the layout of a frame, or `None` if the frame cannot be parsed.
pub fn layout(frame: &[u8]) -> Option<FrameLayout> {
    let mut bytes = frame.to_vec();
    Frame::received(&mut bytes).layout().ok().copied()
}

/// Changes a frame and updates its checksums.
pub fn edit(frame: &mut Vec<u8>, change: impl FnOnce(&mut Vec<u8>, FrameLayout)) {
    let Some(at) = layout(frame) else { return };
    change(frame, at);
    write_ip_checksum(frame, at);
    Frame::received(frame).write_checksum();
}

/// Writes the checksum of an IPv4 header.
pub fn write_ip_checksum(frame: &mut [u8], at: FrameLayout) {
    if at.network == Network::Ipv4 {
        let header = at.network_start..at.transport_start;
        frame[at.network_start + 10..at.network_start + 12].fill(0);
        let sum = offramp_offload::checksum::sum(&frame[header]);
        frame[at.network_start + 10..at.network_start + 12].copy_from_slice(&sum.checksum().to_be_bytes());
    }
}

/// Coalesces the frames of each flow, even if the frames differ in the ignored field.
fn coalesced(frames: Vec<(RxMeta, Vec<u8>)>, ignored: Ignored) -> Vec<(RxMeta, Vec<u8>)> {
    let mut out: Vec<(RxMeta, Vec<u8>)> = Vec::new();
    for (meta, frame) in frames {
        let last_of_flow = out.iter_mut().rfind(|(_, earlier)| flow_of(earlier) == flow_of(&frame));
        match last_of_flow.filter(|earlier| belongs(earlier, &meta, &frame, ignored)) {
            Some(earlier) => append(earlier, &frame),
            None => out.push((meta, frame)),
        }
    }
    out
}

/// Returns whether a frame continues an aggregate, with a difference at most in the ignored field.
fn belongs((meta, last): &(RxMeta, Vec<u8>), next_meta: &RxMeta, next: &[u8], ignored: Ignored) -> bool {
    let of = |frame: &[u8]| if ignored == Ignored::Fragment { layout(&unfragmented(frame)) } else { layout(frame) };
    let (Some(a), Some(b)) = (of(last), of(next)) else { return false };
    if a.packet_end < last.len() || b.packet_end < next.len() {
        return false;
    }
    if a.transport != Transport::Tcp || a.transport != b.transport || a.payload_start != b.payload_start {
        return false;
    }
    let is_bad = [meta, next_meta].iter().any(|meta| meta.checksum == ChecksumState::Bad);
    let size = meta.segmentation.map_or(a.payload_len(), |segmentation| segmentation.size.into());
    let next_size = next_meta.segmentation.map_or(b.payload_len(), |segmentation| segmentation.size.into());
    let is_long = last.len() + b.payload_len() > 65_535;
    if is_bad && ignored != Ignored::BadChecksum
        || is_long && ignored != Ignored::PacketLength
        || !a.payload_len().is_multiple_of(size.max(1))
        || next_size > size
    {
        return false;
    }
    headers_of(last, a, ignored) == headers_of(next, b, ignored)
        && (goes_on(last, a, a.payload_len() / size.max(1), next) || ignored == Ignored::Gap)
}

/// Returns both addresses as the flow, because each case has separate addresses.
fn flow_of(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    Frame::received(&mut bytes).addresses().to_vec()
}

/// Returns whether the next frame has the next sequence number and, over IPv4, the next ID.
fn goes_on(last: &[u8], at: FrameLayout, frames: usize, next: &[u8]) -> bool {
    let sequence = |frame: &[u8]| u32::from_be_bytes(frame[at.transport_start + 4..][..4].try_into().unwrap());
    let id = |frame: &[u8]| u16::from_be_bytes(frame[at.network_start + 4..][..2].try_into().unwrap());
    let has_next_id = at.network != Network::Ipv4 || id(last).wrapping_add(frames as u16) == id(next);
    has_next_id && sequence(last).wrapping_add(at.payload_len() as u32) == sequence(next)
}

/// Returns the headers with the ignored field cleared, and with the fields that change in each frame cleared: lengths,
/// ID, sequence number and checksums.
fn headers_of(frame: &[u8], at: FrameLayout, ignored: Ignored) -> Vec<u8> {
    let mut headers = frame[..at.payload_start].to_vec();
    let (ip, tcp) = (at.network_start, at.transport_start);
    let is_ipv4 = at.network == Network::Ipv4;
    if is_ipv4 {
        headers[ip + 2..ip + 6].fill(0);
        headers[ip + 10..ip + 12].fill(0);
    } else {
        headers[ip + 4..ip + 6].fill(0);
    }
    headers[tcp + 4..tcp + 8].fill(0);
    headers[tcp + 16..tcp + 18].fill(0);
    match ignored {
        Ignored::Push => headers[tcp + 13] &= !8,
        Ignored::Timestamp => headers[tcp + 24..tcp + 28].fill(0),
        Ignored::Congestion if is_ipv4 => headers[ip + 1] = 0,
        Ignored::Congestion => headers[ip + 1] &= 0xf,
        Ignored::HopLimit => headers[ip + if is_ipv4 { 8 } else { 7 }] = 0,
        Ignored::Fragment if is_ipv4 => headers[ip + 6] = 0,
        Ignored::Gap | Ignored::BadChecksum | Ignored::PacketLength | Ignored::Fragment => {}
    }
    headers
}

/// Returns the frame with IPv4's more-fragments bit cleared.
fn unfragmented(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some(at) = layout(&frame).filter(|at| at.network == Network::Ipv4) {
        frame[at.network_start + 6] &= !0x20;
    }
    frame
}

fn append((meta, last): &mut (RxMeta, Vec<u8>), next: &[u8]) {
    let (Some(a), Some(b)) = (layout(last), layout(&unfragmented(next))) else { return };
    let size = meta.segmentation.map_or(a.payload_len() as u16, |segmentation| segmentation.size);
    last.truncate(a.packet_end);
    last.extend_from_slice(&next[b.payload_start..b.packet_end]);
    let (ip, is_ipv4) = (a.network_start, a.network == Network::Ipv4);
    let packet_len = last.len() - ip - if is_ipv4 { 0 } else { 40 };
    let len_at = ip + if is_ipv4 { 2 } else { 4 };
    last[len_at..len_at + 2].copy_from_slice(&(packet_len as u16).to_be_bytes());
    write_ip_checksum(last, a);
    let kind = if is_ipv4 { SegmentationKind::Tcp4 } else { SegmentationKind::Tcp6 };
    let partial = Frame::received(last).make_partial();
    *meta = RxMeta {
        checksum: partial.map_or(meta.checksum, ChecksumState::Partial),
        segmentation: Some(Segmentation::new(kind, size)),
        header_len: a.payload_start as u16,
        ..*meta
    };
}
