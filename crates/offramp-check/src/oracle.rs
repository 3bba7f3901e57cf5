//! Compares captured frames with the expected frames, byte by byte, and names the fault behind the first differing
//! field.
//!
//! An interface can deliver super-frames, and frames with partial checksums. The oracle first segments super-frames and
//! completes partial checksums as the metadata requests. It then compares only wire frames.

mod fields;

use std::collections::BTreeMap;

use offramp_offload::frame::Frame;
use offramp_offload::layout::{Transport, link_header_len};
use offramp_offload::meta::{ChecksumState, Cwr, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter, UDP_SEGMENTS_MAX};

use crate::case::{Built, Expected};
use crate::fault::Fault;
use crate::packet::{self, Captured, ones_complement_sum};
use fields::{FieldDifference, Name, Parsed, be16, differences, first_difference, value_of};

pub(crate) use fields::Allowed;

/// Maximum length of an IP packet, in bytes.
const PACKET_LEN_MAX: usize = 65_535;
/// Kind of TCP's timestamps option (RFC 7323).
const TIMESTAMPS: u8 = 8;

/// A difference between expected and captured frames.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub fault: Fault,
    /// Description of the frame and the field.
    pub place: String,
    pub expected: String,
    pub got: String,
}

/// A wire frame derived from a captured frame.
#[derive(Clone, Debug)]
struct Wire {
    bytes: Vec<u8>,
    /// True if the interface's metadata marks the checksum as good.
    is_marked: bool,
    /// True if the frame is a segment of a super-frame.
    of_aggregate: bool,
    /// True if the frame is the last segment of a super-frame.
    is_last: bool,
}

/// Returns the number of wire frames in a captured frame. A super-frame counts as all its segments.
pub(crate) fn wire_frames(captured: &Captured) -> usize {
    let mut bytes = captured.bytes.clone();
    let frame = Frame::new(&mut bytes, request(captured));
    Segmenter::new(&frame, &SegmentPolicy::default()).map_or(1, |segmenter| segmenter.frames_left())
}

fn request(captured: &Captured) -> TxMeta {
    let checksum = match captured.meta.checksum {
        ChecksumState::Partial(partial) => Some(partial),
        _ => None,
    };
    let segmentation = captured.meta.segmentation.map(|segmentation| match segmentation.cwr {
        Cwr::Unmarked if has_cwr(&captured.bytes) => Segmentation { cwr: Cwr::All, ..segmentation },
        _ => segmentation,
    });
    TxMeta { checksum, segmentation }
}

/// Returns whether a TCP frame has CWR set. If only the first segment of a super-frame has CWR set, the vnet header has
/// the bit `VIRTIO_NET_HDR_GSO_ECN`. GRO in Linux 7.3 also merges frames that all have CWR set (AccECN), for which the
/// vnet header has no bit. A super-frame with CWR and without `VIRTIO_NET_HDR_GSO_ECN` therefore stands for segments
/// that all have CWR.
fn has_cwr(frame: &[u8]) -> bool {
    value_of(frame, Name::Flags).is_some_and(|flags| flags[0] & packet::CWR != 0)
}

/// Converts a captured frame to wire frames: segments super-frames, and completes partial checksums.
fn complete(captured: &Captured) -> Result<Vec<Wire>, Difference> {
    check_aggregate(captured)?;
    let mut bytes = captured.bytes.clone();
    let frame = Frame::new(&mut bytes, request(captured));
    let mut segmenter = Segmenter::new(&frame, &SegmentPolicy::default()).map_err(|refused| Difference {
        fault: Fault::Metadata,
        place: "metadata of a frame".to_owned(),
        expected: "a request that fits the frame".to_owned(),
        got: refused.to_string(),
    })?;
    let of_aggregate = segmenter.frames_left() > 1;
    let is_marked = captured.meta.checksum != ChecksumState::Unknown && captured.meta.checksum != ChecksumState::Bad;
    let mut frames = Vec::new();
    while segmenter.frames_left() > 0 {
        let mut out = vec![0; segmenter.next_len()];
        segmenter.write_next(&frame, &mut out);
        frames.push(Wire { bytes: out, is_marked, of_aggregate, is_last: segmenter.frames_left() == 0 });
    }
    Ok(frames)
}

/// Refuses a super-frame that exceeds a packet's maximum length, or has a wrong length or checksum in its IP header.
/// The receiver's stack reads this IP header. The segments made for the comparison would hide its errors, because each
/// segment gets a new IP header.
fn check_aggregate(captured: &Captured) -> Result<(), Difference> {
    let Some(Segmentation { kind, size, .. }) = captured.meta.segmentation else { return Ok(()) };
    let Ok(start) = link_header_len(&captured.bytes) else { return Ok(()) };
    let packet = &captured.bytes[start..];
    let (len_max, field) = match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => (PACKET_LEN_MAX, usize::from(be16(packet, 2))),
        Some(6) if packet.len() >= 40 => (PACKET_LEN_MAX + 40, usize::from(be16(packet, 4)) + 40),
        _ => return Ok(()),
    };
    let datagrams = packet.len() / usize::from(size.max(1));
    let is_too_long = packet.len() > len_max || kind == SegmentationKind::Udp && datagrams > UDP_SEGMENTS_MAX;
    if is_too_long || field != packet.len() {
        return Err(Difference {
            fault: if is_too_long { Fault::AggregateTooLong } else { Fault::Metadata },
            place: "length of a coalesced packet".to_owned(),
            expected: format!("at most {len_max} bytes, and the length in its header"),
            got: format!("{} bytes; its header says {field}", packet.len()),
        });
    }
    let header = packet.get(..usize::from(packet[0] & 0xf) * 4).unwrap_or_default();
    if packet[0] >> 4 == 4 && ones_complement_sum(&[header]) != 0xffff {
        return Err(Difference {
            fault: Fault::Ipv4Checksum,
            place: "IP header of a coalesced packet".to_owned(),
            expected: "the checksum of the header".to_owned(),
            got: format!("0x{:04x}", be16(packet, 10)),
        });
    }
    Ok(())
}

/// Compares captured frames with the expected frames. Returns `None` if captured and expected frames agree.
pub(crate) fn compare(built: &Built, captured: &[Captured], allowed: Allowed) -> Option<Difference> {
    let mut got = Vec::new();
    for one in captured {
        match complete(one) {
            Ok(frames) => got.extend(frames),
            Err(difference) => return Some(difference),
        }
    }
    Comparison::new(built, &got, allowed).difference()
}

/// The assignment of captured wire frames to the expected frames of a case.
struct Comparison<'a> {
    built: &'a Built,
    got: &'a [Wire],
    allowed: Allowed,
    /// Index of the captured frame for each expected frame.
    matched: Vec<Option<usize>>,
    is_used: Vec<bool>,
}

impl<'a> Comparison<'a> {
    fn new(built: &'a Built, got: &'a [Wire], allowed: Allowed) -> Self {
        let mut comparison =
            Self { built, got, allowed, matched: vec![None; built.expected.len()], is_used: vec![false; got.len()] };
        comparison.match_equal();
        comparison
    }

    /// Finds an equal captured frame for each expected frame, usually at the same position.
    fn match_equal(&mut self) {
        let mut next = 0;
        for (n, expected) in self.built.expected.iter().enumerate() {
            let order = (next..self.got.len()).chain(0..next);
            let found = order
                .filter(|&at| !self.is_used[at])
                .find(|&at| first_difference(&expected.bytes, &self.got[at].bytes, self.allowed).is_none());
            if let Some(at) = found {
                self.matched[n] = Some(at);
                self.is_used[at] = true;
                next = at + 1;
            }
        }
    }

    fn difference(&self) -> Option<Difference> {
        let frames = self.built.expected.iter().enumerate();
        if let Some(difference) =
            frames.clone().filter(|(_, frame)| frame.is_bad).find_map(|(n, frame)| self.bad(n, frame))
        {
            return Some(difference);
        }
        let missing: Vec<usize> =
            frames.filter(|(n, frame)| !frame.is_bad && self.matched[*n].is_none()).map(|(n, _)| n).collect();
        let unknown: Vec<usize> = (0..self.got.len()).filter(|at| !self.is_used[*at]).collect();
        match (missing.first(), unknown.first()) {
            (None, None) => self.reordered(),
            (Some(_), None) => Some(self.lost(&missing)),
            (None, Some(&at)) => Some(self.additional(at)),
            (Some(_), Some(_)) => Some(self.changed(&missing, &unknown)),
        }
    }

    /// Judges a frame sent with a wrong checksum. The path may drop the frame, but must neither change it nor mark it
    /// as good.
    fn bad(&self, n: usize, frame: &Expected) -> Option<Difference> {
        if let Some(at) = self.matched[n] {
            return self.got[at]
                .is_marked
                .then(|| self.of_frame(Fault::BadMarkedGood, n, "checksum", "not marked", "marked as good"));
        }
        let repaired = (0..self.got.len()).filter(|at| !self.is_used[*at]).find(|&at| {
            let difference = first_difference(&frame.bytes, &self.got[at].bytes, self.allowed);
            difference.is_some_and(|found| matches!(found.name, Name::Checksum | Name::IpChecksum))
        })?;
        let fault = match &self.got[repaired] {
            Wire { of_aggregate: true, .. } => Fault::BadCoalesced,
            Wire { is_marked: true, .. } => Fault::BadMarkedGood,
            _ => Fault::ChecksumRepaired,
        };
        Some(self.of_frame(fault, n, "checksum", "wrong, as sent", "right"))
    }

    fn reordered(&self) -> Option<Difference> {
        let unheld = |frame: &Expected| self.allowed.unheld_overtake && is_unheld(&frame.bytes);
        let all = self.built.expected.iter().zip(&self.matched);
        let good = all.filter(|(frame, _)| !frame.is_bad && !unheld(frame));
        let places: Vec<usize> = good.filter_map(|(_, at)| *at).collect();
        let (fault, n, earlier) = match places.windows(2).position(|pair| pair[0] > pair[1]) {
            Some(n) => (Fault::Reordered, n + 1, n),
            None if self.allowed.unheld_overtake => return None,
            None => {
                let (n, earlier) = self.overtaking()?;
                (Fault::BadOvertakes, n, earlier)
            }
        };
        let [expected, got] = ["after", "before"].map(|place| format!("{place} frame {}", earlier + 1));
        Some(self.of_frame(fault, n, "order", &expected, &got))
    }

    /// Returns the index of a frame with a wrong checksum, and the index of a frame that was sent before it and
    /// captured after it.
    fn overtaking(&self) -> Option<(usize, usize)> {
        let mut bad = (0..self.matched.len()).filter(|n| self.built.expected[*n].is_bad);
        bad.find_map(|n| {
            let at = self.matched[n]?;
            let earlier = (0..n).find(|earlier| self.matched[*earlier].is_some_and(|before| before > at))?;
            Some((n, earlier))
        })
    }

    fn lost(&self, missing: &[usize]) -> Difference {
        let total = self.built.expected.len();
        let fault = if missing.len() == total { Fault::NothingArrives } else { Fault::FrameMissing };
        let numbers: Vec<String> = missing.iter().take(5).map(|n| (n + 1).to_string()).collect();
        let more = if missing.len() > numbers.len() { ", …" } else { "" };
        Difference {
            fault,
            place: format!("frame {}{more} of {total}", numbers.join(", ")),
            expected: format!("{total} frames"),
            got: format!("{}", self.got.len()),
        }
    }

    fn additional(&self, at: usize) -> Difference {
        let same = self
            .built
            .expected
            .iter()
            .position(|frame| first_difference(&frame.bytes, &self.got[at].bytes, self.allowed).is_none());
        Difference {
            fault: if same.is_some() { Fault::Duplicate } else { Fault::UnexpectedFrame },
            place: same.map_or_else(|| format!("received frame {}", at + 1), |n| format!("frame {}", n + 1)),
            expected: format!("{} frames", self.built.expected.len()),
            got: format!("{}", self.got.len()),
        }
    }

    /// Names the fault if expected frames are missing and unexpected frames were received.
    fn changed(&self, missing: &[usize], unknown: &[usize]) -> Difference {
        let whole = self.built.sent.iter().find(|sent| sent.request.segmentation.is_some());
        if let Some(&at) =
            unknown.iter().find(|&&at| whole.is_some_and(|whole| whole.bytes.len() == self.got[at].bytes.len()))
        {
            let expected = format!("frames of at most {} bytes", self.built.expected[0].bytes.len());
            let got = format!("{} bytes", self.got[at].bytes.len());
            return self.of_frame(Fault::NotSegmented, missing[0], "length", &expected, &got);
        }
        let n = missing[0];
        let alike = |at: &&usize| differences(&self.built.expected[n].bytes, &self.got[**at].bytes, self.allowed).len();
        let at = *unknown.iter().min_by_key(alike).expect("there is one");
        if self.is_segmented_elsewhere() {
            let [expected, got] =
                [&self.built.expected[n].bytes, &self.got[at].bytes].map(|bytes| format!("{} bytes", bytes.len()));
            return self.of_frame(Fault::SegmentSize, n, "length", &expected, &got);
        }
        let found = first_difference(&self.built.expected[n].bytes, &self.got[at].bytes, self.allowed)
            .expect("they were not matched");
        let fault = self.name_of(&found, n, at);
        Difference {
            fault,
            place: format!("{} of frame {} of {}", found.name.text(), n + 1, self.built.expected.len()),
            expected: found.name.decode(&found.expected),
            got: found.name.decode(&found.got),
        }
    }

    /// Returns whether the payload is complete and in order, but split at other boundaries.
    fn is_segmented_elsewhere(&self) -> bool {
        let payload = |bytes: &[u8]| {
            Parsed::of(bytes).map(|parsed| bytes[parsed.layout.payload_start..parsed.layout.packet_end].to_vec())
        };
        let expected: Option<Vec<Vec<u8>>> = self.built.expected.iter().map(|frame| payload(&frame.bytes)).collect();
        let got: Option<Vec<Vec<u8>>> = self.got.iter().map(|wire| payload(&wire.bytes)).collect();
        let (Some(expected), Some(got)) = (expected, got) else { return false };
        let lengths = |pieces: &[Vec<u8>]| pieces.iter().map(Vec::len).collect::<Vec<_>>();
        lengths(&expected) != lengths(&got) && expected.concat() == got.concat()
    }

    fn of_frame(&self, fault: Fault, n: usize, what: &str, expected: &str, got: &str) -> Difference {
        Difference {
            fault,
            place: format!("{what} of frame {} of {}", n + 1, self.built.expected.len()),
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }

    /// Names the fault behind `found`, the first field in which captured frame `at` differs from expected frame `n`.
    fn name_of(&self, found: &FieldDifference, n: usize, at: usize) -> Fault {
        let (expected, got) = (&self.built.expected[n].bytes, &self.got[at].bytes);
        if self.got[at].of_aggregate && has_grown_by_its_tail(expected, got) {
            return Fault::PaddingCoalesced;
        }
        if self.got[at].of_aggregate && Parsed::of(expected).is_some_and(|parsed| parsed.layout.fragment) {
            return Fault::FragmentCoalesced;
        }
        let is_end = found.name == Name::Flags && self.got[at].is_last;
        if self.got[at].of_aggregate && !is_end && self.differs_between_frames(found.name) {
            let is_gap = matches!(found.name, Name::Sequence | Name::IpId);
            return if is_gap { Fault::CoalescedOverGap } else { Fault::CoalescedUnequal };
        }
        if let Some(fault) = resized(expected, got, found) {
            return fault;
        }
        let whole = self.built.sent.iter().find(|sent| sent.request.segmentation.is_some());
        let of_whole = whole.and_then(|whole| value_of(&whole.bytes, found.name));
        let is_of_whole = of_whole.is_some_and(|value| value == found.got);
        let is_of_first =
            n > 0 && value_of(&self.built.expected[0].bytes, found.name).is_some_and(|value| value == found.got);
        match found.name {
            Name::Ethernet => Fault::EthernetHeader,
            Name::VlanTag if found.got.is_empty() => Fault::VlanTagLost,
            Name::VlanTag if found.expected.is_empty() => Fault::VlanTagAdded,
            Name::VlanTag => Fault::VlanTagChanged,
            Name::TrafficClass => Fault::TrafficClass,
            Name::Ipv4Length if is_of_whole => Fault::Ipv4LengthOfSuperFrame,
            Name::Ipv4Length => Fault::Ipv4Length,
            Name::Ipv6Length if is_of_whole => Fault::Ipv6LengthOfSuperFrame,
            Name::Ipv6Length => Fault::Ipv6Length,
            Name::IpId if is_of_first => Fault::Ipv4IdNotCounted,
            Name::IpId => Fault::Ipv4Id,
            Name::HopLimit => Fault::HopLimit,
            Name::IpHeader => Fault::IpHeader,
            Name::IpOptions => Fault::IpOptions,
            Name::IpChecksum => Fault::Ipv4Checksum,
            Name::Ports => Fault::Ports,
            Name::Sequence if is_of_first => Fault::SequenceNotAdvanced,
            Name::Sequence => Fault::Sequence,
            Name::Flags => flag_fault(found.expected[0], found.got[0]),
            Name::TcpHeader => Fault::TcpHeader,
            Name::Window => Fault::TcpWindow,
            Name::TcpOptions => options_fault(&found.expected, &found.got),
            Name::UdpLength if is_of_whole => Fault::UdpLengthOfSuperFrame,
            Name::UdpLength => Fault::UdpLength,
            Name::Checksum => checksum_fault(expected, got, whole.map(|whole| whole.bytes.as_slice())),
            Name::Payload if found.expected.len() == found.got.len() => Fault::Payload,
            Name::Payload => Fault::FrameLength,
        }
    }

    /// Returns whether the frames of the case have different values of the field. An ID or a sequence number that
    /// counts up is not a difference.
    fn differs_between_frames(&self, name: Name) -> bool {
        if self.built.sent.len() < 2 {
            return false;
        }
        let values: Vec<_> = self.built.expected.iter().filter_map(|frame| value_of(&frame.bytes, name)).collect();
        match name {
            Name::Sequence => {
                let lens = self
                    .built
                    .expected
                    .iter()
                    .filter_map(|frame| value_of(&frame.bytes, Name::Payload))
                    .map(|p| p.len());
                let number = |value: &Vec<u8>| u32::from_be_bytes([value[0], value[1], value[2], value[3]]);
                values
                    .windows(2)
                    .zip(lens)
                    .any(|(pair, len)| number(&pair[1]).wrapping_sub(number(&pair[0])) != len as u32)
            }
            Name::IpId => {
                let number = |value: &Vec<u8>| be16(value, 0);
                values.windows(2).any(|pair| number(&pair[1]).wrapping_sub(number(&pair[0])) != 1)
            }
            Name::Payload
            | Name::Checksum
            | Name::IpChecksum
            | Name::Ipv4Length
            | Name::Ipv6Length
            | Name::UdpLength => false,
            _ => values.windows(2).any(|pair| pair[0] != pair[1]),
        }
    }
}

/// Returns whether Linux' GRO delivers the frame at once, ahead of earlier frames of the flow that GRO still holds. GRO
/// does so for a fragment, and for a UDP datagram with padding or a trailer (`udp_gro_receive_segment`).
fn is_unheld(frame: &[u8]) -> bool {
    Parsed::of(frame).is_some_and(|Parsed { layout, .. }| {
        layout.fragment || layout.transport == Transport::Udp && layout.packet_end < frame.len()
    })
}

/// Returns whether padding or a trailer, sent after the end of a packet, became part of the captured packet's payload.
fn has_grown_by_its_tail(expected: &[u8], got: &[u8]) -> bool {
    let (Some(sent), Some(arrived)) = (Parsed::of(expected), Parsed::of(got)) else { return false };
    let payload = &got[arrived.layout.payload_start..arrived.layout.packet_end];
    expected.len() > sent.layout.packet_end && payload == &expected[sent.layout.payload_start..]
}

/// Names the fault of a frame with a wrong length, if the frame's length fields agree with the wrong length.
fn resized(expected: &[u8], got: &[u8], found: &FieldDifference) -> Option<Fault> {
    if !matches!(found.name, Name::Ipv4Length | Name::Ipv6Length) || expected.len() == got.len() {
        return None;
    }
    let parsed = Parsed::of(got)?;
    (parsed.layout.packet_end == got.len()).then_some(if got.len() < expected.len() {
        Fault::SegmentShort
    } else {
        Fault::SegmentLong
    })
}

fn flag_fault(expected: u8, got: u8) -> Fault {
    let is_added = |flag: u8| got & !expected & flag != 0;
    let is_lost = |flag: u8| expected & !got & flag != 0;
    match () {
        () if is_added(packet::PSH) => Fault::PshAdded,
        () if is_added(packet::FIN) => Fault::FinAdded,
        () if is_added(packet::CWR) => Fault::CwrAdded,
        () if is_lost(packet::PSH) => Fault::PshLost,
        () if is_lost(packet::FIN) => Fault::FinLost,
        () if is_lost(packet::CWR) => Fault::CwrLost,
        () => Fault::TcpFlags,
    }
}

fn options_fault(expected: &[u8], got: &[u8]) -> Fault {
    let has_timestamps = |options: &[u8]| options.get(2..4) == Some(&[TIMESTAMPS, 10]);
    match (has_timestamps(expected), has_timestamps(got)) {
        (true, false) => Fault::TimestampLost,
        (true, true) if expected[4..12] != got[4..12] => Fault::TimestampChanged,
        _ => Fault::TcpOptions,
    }
}

/// Names the cause of a wrong checksum in an otherwise correct frame.
fn checksum_fault(expected: &[u8], got: &[u8], whole: Option<&[u8]>) -> Fault {
    let Some(parsed) = Parsed::of(expected) else { return Fault::Checksum };
    let layout = &parsed.layout;
    let at = parsed.checksum_at();
    let (right, found) = (be16(expected, at), be16(got, at));
    let transport_len = layout.packet_end - layout.transport_start;
    let pseudo = parsed.pseudo_header(expected, transport_len);
    let mut transport = expected[layout.transport_start..layout.packet_end].to_vec();
    let offset = at - layout.transport_start;
    transport[offset..offset + 2].fill(0);
    let sum = |parts: &[&[u8]]| ones_complement_sum(parts);
    let is_asked = |frame: &[u8]| sum(&[&parsed.pseudo_header(frame, frame.len() - layout.transport_start)]) == found;
    let without_last = &transport[..transport.len() - transport.len() % 2];
    match () {
        () if is_asked(&expected[..layout.packet_end]) || whole.is_some_and(is_asked) => Fault::ChecksumNotWritten,
        () if found == 0 && right == u16::MAX => Fault::ChecksumZero,
        () if found == !sum(&[&pseudo, &pseudo, &transport]) => Fault::ChecksumPseudoHeaderTwice,
        () if found == !sum(&[&transport]) => Fault::ChecksumWithoutPseudoHeader,
        () if found == right.swap_bytes() => Fault::ChecksumByteOrder,
        () if transport.len() % 2 == 1 && found == !sum(&[&pseudo, without_last]) => Fault::ChecksumOddByte,
        () => Fault::Checksum,
    }
}

/// Captured frames by case number.
pub(crate) type ByCase = BTreeMap<u16, Vec<Captured>>;

#[cfg(test)]
mod tests;
