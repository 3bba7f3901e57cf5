//! The planted faults, each with the expected name and the side to blame.

use std::time::Duration;

use offramp_check::fault::Fault;
use offramp_check::verdict::Blame;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::{Sum, sum};
use offramp_offload::frame::Frame;
use offramp_offload::layout::{FrameLayout, Network, Transport};
use offramp_offload::meta::{ChecksumState, RxMeta};

use crate::stage::{Ignored, Planted, edit, layout, write_ip_checksum};

/// A planted fault, and the expected finding.
pub struct Row {
    pub name: &'static str,
    pub planted: Planted,
    /// Name of the checked offload.
    pub offload: &'static str,
    pub fault: Fault,
    pub blame: Blame,
}

pub const fn sent(name: &'static str, offload: &'static str, change: crate::stage::Transmit, fault: Fault) -> Row {
    Row { name, planted: Planted::Transmit(change), offload, fault, blame: Blame::Sender }
}

pub const fn received(name: &'static str, planted: Planted, offload: &'static str, fault: Fault) -> Row {
    Row { name, planted, offload, fault, blame: Blame::Receiver }
}

pub const fn inserted(name: &'static str, change: fn(&mut Vec<u8>), fault: Fault) -> Row {
    Row { name, planted: Planted::Inserts(change), offload: "tx-vlan", fault, blame: Blame::Sender }
}

/// Returns all planted faults.
pub fn rows() -> Vec<Row> {
    let mut rows = transmit_checksums();
    rows.extend(transmit_segments());
    rows.extend(insertion());
    rows.extend(receive());
    rows.extend(crate::sweep::rows());
    rows.push(Row {
        name: "the path decrements the TTL",
        planted: Planted::Always(|frame| edit(frame, |bytes, at| bytes[hops_at(at.network, at.network_start)] -= 1)),
        offload: "path",
        fault: Fault::HopLimit,
        blame: Blame::Path,
    });
    rows
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn transmit_checksums() -> Vec<Row> {
    vec![
        sent(
            "the checksum is not written",
            "tx-checksum",
            |frames, whole| frames[0].clone_from(&whole.bytes),
            Fault::ChecksumNotWritten,
        ),
        sent(
            "the pseudo-header is added twice",
            "tx-checksum",
            |frames, _| {
                checksum_of(&mut frames[0], |pseudo, transport| pseudo.plus(pseudo).plus(transport).checksum());
            },
            Fault::ChecksumPseudoHeaderTwice,
        ),
        sent(
            "the pseudo-header is not added",
            "tx-checksum",
            |frames, _| {
                checksum_of(&mut frames[0], |_, transport| transport.checksum());
            },
            Fault::ChecksumWithoutPseudoHeader,
        ),
        sent(
            "the bytes of the checksum are swapped",
            "tx-checksum",
            |frames, _| {
                checksum_of(&mut frames[0], |pseudo, transport| pseudo.plus(transport).checksum().swap_bytes());
            },
            Fault::ChecksumByteOrder,
        ),
        sent(
            "the last byte of an odd length is not added",
            "tx-checksum",
            |frames, _| {
                let Some(last) = frames[0].last().copied() else { return };
                let is_odd = layout(&frames[0]).is_some_and(|at| at.transport_len() % 2 == 1);
                if is_odd {
                    checksum_of(&mut frames[0], |pseudo, transport| {
                        pseudo.plus(transport).minus(Sum::word(u16::from(last) << 8)).checksum()
                    });
                }
            },
            Fault::ChecksumOddByte,
        ),
        sent(
            "a UDP checksum of 0 is written as 0",
            "tx-checksum",
            |frames, _| {
                if layout(&frames[0]).is_some_and(|at| at.transport == Transport::Udp) {
                    checksum_of(&mut frames[0], |pseudo, transport| pseudo.plus(transport).checksum());
                }
            },
            Fault::ChecksumZero,
        ),
        sent(
            "one checksum of 32 is one off",
            "tx-checksum",
            |frames, _| {
                checksum_of(&mut frames[0], |pseudo, transport| {
                    let right = pseudo.plus(transport).checksum();
                    if right.is_multiple_of(32) { right ^ 1 } else { right }
                });
            },
            Fault::Checksum,
        ),
        sent(
            "the checksum is one off",
            "tx-checksum",
            |frames, _| {
                checksum_of(&mut frames[0], |pseudo, transport| pseudo.plus(transport).checksum() ^ 1);
            },
            Fault::Checksum,
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn transmit_segments() -> Vec<Row> {
    vec![
        sent(
            "each datagram has the UDP length of the super-frame",
            "uso4",
            |frames, whole| {
                let len = whole.bytes.len() - layout(&frames[0]).unwrap().transport_start;
                for_each_datagram(frames, |bytes, at| put16(bytes, at + 4, len as u16));
            },
            Fault::UdpLengthOfSuperFrame,
        ),
        sent(
            "the same over IPv6",
            "uso6",
            |frames, whole| {
                let len = whole.bytes.len() - layout(&frames[0]).unwrap().transport_start;
                for_each_datagram(frames, |bytes, at| put16(bytes, at + 4, len as u16));
            },
            Fault::UdpLengthOfSuperFrame,
        ),
        sent(
            "each datagram of a socket has the UDP length of the super-frame",
            "uso4-socket",
            |frames, whole| {
                let len = whole.bytes.len() - layout(&frames[0]).unwrap().transport_start;
                for_each_datagram(frames, |bytes, at| put16(bytes, at + 4, len as u16));
            },
            Fault::UdpLengthOfSuperFrame,
        ),
        sent(
            "the pseudo-header is not added to the checksums of a socket's datagrams",
            "uso6-socket",
            |frames, _| {
                for frame in frames.iter_mut().filter(|frame| frame[..2] == [0x33, 0x33]) {
                    checksum_of(frame, |_, transport| transport.checksum());
                }
            },
            Fault::ChecksumWithoutPseudoHeader,
        ),
        sent(
            "the last datagram of a socket is lost",
            "uso4-socket",
            |frames, _| {
                if frames.len() > 1 {
                    frames.pop();
                }
            },
            Fault::FrameMissing,
        ),
        sent(
            "the UDP length is one too much",
            "uso4",
            |frames, _| {
                for_each_datagram(frames, |bytes, at| put16(bytes, at + 4, get16(bytes, at + 4) + 1));
            },
            Fault::UdpLength,
        ),
        sent(
            "the last segment is short",
            "tso4",
            |frames, _| {
                if let Some(last) = frames.last_mut().filter(|last| layout(last).is_some_and(|at| at.payload_len() > 8))
                {
                    resize(last, -4);
                }
            },
            Fault::SegmentShort,
        ),
        sent(
            "the segments are 12 bytes shorter than asked for",
            "tso6",
            |frames, whole| {
                let mut request = whole.request;
                if let Some(segmentation) = request.segmentation.as_mut() {
                    segmentation.size -= 12;
                }
                *frames = crate::common::segments(&whole.bytes, request);
            },
            Fault::SegmentSize,
        ),
        sent("PSH on all segments", "tso4", |frames, _| flags(frames, |_, flags| flags | 8), Fault::PshAdded),
        sent("PSH on no segment", "tso6", |frames, _| flags(frames, |_, flags| flags & !8), Fault::PshLost),
        sent(
            "FIN on all segments",
            "tso4",
            |frames, whole| {
                let at = layout(&whole.bytes).unwrap().transport_start;
                let fin = whole.bytes[at + 13] & 1;
                flags(frames, |_, flags| flags | fin);
            },
            Fault::FinAdded,
        ),
        sent("FIN is lost", "tso6", |frames, _| flags(frames, |_, flags| flags & !1), Fault::FinLost),
        sent("CWR on all segments", "tso-ecn", |frames, _| flags(frames, |_, flags| flags | 0x80), Fault::CwrAdded),
        sent("CWR on no segment", "tso-ecn", |frames, _| flags(frames, |_, flags| flags & !0x80), Fault::CwrLost),
        sent(
            "ACK is lost on segments after the first",
            "tso4",
            |frames, _| {
                flags(frames, |n, flags| if n > 0 { flags & !0x10 } else { flags });
            },
            Fault::TcpFlags,
        ),
        sent(
            "all segments have one ID",
            "tso4",
            |frames, _| {
                let id = get16(&frames[0], layout(&frames[0]).unwrap().network_start + 4);
                edit_all(frames, |bytes, at| put16(bytes, at.network_start + 4, id));
            },
            Fault::Ipv4IdNotCounted,
        ),
        sent(
            "IDs wrap at 0x7fff",
            "tso4",
            |frames, _| {
                edit_all(frames, |bytes, at| {
                    let id = get16(bytes, at.network_start + 4);
                    put16(bytes, at.network_start + 4, id & 0x7fff);
                });
            },
            Fault::Ipv4Id,
        ),
        sent(
            "each segment has the IPv4 length of the super-frame",
            "tso4",
            |frames, whole| {
                let at = layout(&frames[0]).unwrap();
                let len = whole.bytes.len() - at.network_start;
                for frame in frames.iter_mut() {
                    put16(frame, at.network_start + 2, len as u16);
                    write_ip_checksum(frame, at);
                }
            },
            Fault::Ipv4LengthOfSuperFrame,
        ),
        sent(
            "each segment has the IPv6 payload length of the super-frame",
            "tso6",
            |frames, whole| {
                let at = layout(&frames[0]).unwrap();
                let len = whole.bytes.len() - at.network_start - 40;
                for_each(frames, |bytes, _| put16(bytes, at.network_start + 4, len as u16));
            },
            Fault::Ipv6LengthOfSuperFrame,
        ),
        sent(
            "the IPv4 checksum is not updated",
            "uso4",
            |frames, _| {
                let at = layout(&frames[0]).unwrap().network_start + 10;
                let checksum = get16(&frames[0], at);
                for_each(frames, |bytes, _| put16(bytes, at, checksum));
            },
            Fault::Ipv4Checksum,
        ),
        sent(
            "the sequence number is not advanced",
            "tso6",
            |frames, _| {
                let at = layout(&frames[0]).unwrap().transport_start + 4;
                let sequence = frames[0][at..at + 4].to_vec();
                edit_all(frames, |bytes, _| bytes[at..at + 4].copy_from_slice(&sequence));
            },
            Fault::SequenceNotAdvanced,
        ),
        sent(
            "the sequence number does not wrap",
            "tso4",
            |frames, _| {
                edit_all(frames, |bytes, at| {
                    let sequence = &mut bytes[at.transport_start + 4..at.transport_start + 8];
                    if sequence[..2] == [0, 0] {
                        sequence.fill(0xff);
                    }
                });
            },
            Fault::Sequence,
        ),
        sent(
            "the second segment is lost",
            "tso4",
            |frames, _| {
                if frames.len() > 1 {
                    frames.remove(1);
                }
            },
            Fault::FrameMissing,
        ),
        sent(
            "nothing is sent of more than 16 segments",
            "tso6",
            |frames, _| {
                if frames.len() > 16 {
                    frames.clear();
                }
            },
            Fault::NothingArrives,
        ),
        sent(
            "the last segment is sent twice",
            "uso6",
            |frames, _| frames.extend(frames.last().cloned()),
            Fault::Duplicate,
        ),
        sent("the segments are sent backwards", "tso6", |frames, _| frames.reverse(), Fault::Reordered),
        sent(
            "the VLAN tag is lost",
            "tso4",
            |frames, _| {
                for frame in frames.iter_mut().filter(|frame| frame[12..14] == [0x81, 0]) {
                    frame.drain(12..16);
                }
            },
            Fault::VlanTagLost,
        ),
        sent(
            "the priority of the VLAN tag is lost",
            "tso6",
            |frames, _| {
                for frame in frames.iter_mut().filter(|frame| frame[12..14] == [0x81, 0]) {
                    frame[14] &= 0x1f;
                }
            },
            Fault::VlanTagChanged,
        ),
        sent(
            "timestamps are lost after the first segment",
            "tso4",
            |frames, _| {
                for frame in frames.iter_mut().skip(1) {
                    edit(frame, |bytes, at| bytes[at.transport_start + 20..at.payload_start].fill(1));
                }
            },
            Fault::TimestampLost,
        ),
        sent(
            "IP options are lost after the first segment",
            "tso4",
            |frames, _| {
                for frame in frames.iter_mut().skip(1) {
                    edit(frame, |bytes, at| bytes[at.network_start + 20..at.transport_start].fill(0));
                }
            },
            Fault::IpOptions,
        ),
        sent(
            "the window is cleared",
            "tso4",
            |frames, _| {
                edit_all(frames, |bytes, at| put16(bytes, at.transport_start + 14, 0));
            },
            Fault::TcpWindow,
        ),
        sent(
            "the TTL is decremented",
            "tso4",
            |frames, _| {
                edit_all(frames, |bytes, at| bytes[hops_at(at.network, at.network_start)] -= 1);
            },
            Fault::HopLimit,
        ),
        sent(
            "a byte of the payload is changed under a right checksum",
            "tso6",
            |frames, _| {
                let last = frames.len() - 1;
                edit(&mut frames[last], |bytes, at| bytes[at.packet_end - 1] ^= 0x80);
            },
            Fault::Payload,
        ),
    ]
}

pub fn is_tagged(frame: &[u8]) -> bool {
    frame[12..14] == [0x81, 0]
}

fn insertion() -> Vec<Row> {
    vec![
        inserted(
            "the VLAN tag is not inserted",
            |frame| {
                if is_tagged(frame) {
                    frame.drain(12..16);
                }
            },
            Fault::VlanTagLost,
        ),
        inserted(
            "the VLAN tag is inserted twice",
            |frame| {
                if is_tagged(frame) {
                    let tag: Vec<u8> = frame[12..16].to_vec();
                    frame.splice(12..12, tag);
                }
            },
            Fault::VlanTagChanged,
        ),
        inserted(
            "the VLAN tag is inserted without its priority",
            |frame| {
                if is_tagged(frame) {
                    frame[14] &= 0x0f;
                }
            },
            Fault::VlanTagChanged,
        ),
        inserted(
            "a frame without a VLAN tag gets that of VLAN 0",
            |frame| {
                if !is_tagged(frame) {
                    frame.splice(12..12, [0x81, 0, 0, 0]);
                }
            },
            Fault::VlanTagAdded,
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn receive() -> Vec<Row> {
    let coalesces = |name, ignored, fault| received(name, Planted::Coalesces(ignored), "rx-gro-hw", fault);
    let changes = |name, change, fault| received(name, Planted::Receive(Offloads::RSC4, change), "rx-gro-hw", fault);
    let judges =
        |name, change, fault| received(name, Planted::Receive(Offloads::RX_CHECKSUM, change), "rx-checksum", fault);
    vec![
        judges(
            "bad frames are marked as good",
            |meta, frame| {
                if meta.checksum == ChecksumState::Bad {
                    mark_good(meta, frame);
                }
                1
            },
            Fault::BadMarkedGood,
        ),
        judges(
            "bad frames are repaired",
            |meta, frame| {
                if meta.checksum == ChecksumState::Bad {
                    edit(frame, |_, _| ());
                }
                1
            },
            Fault::ChecksumRepaired,
        ),
        judges(
            "good frames are discarded as bad",
            |meta, _| usize::from(meta.checksum == ChecksumState::Bad || meta.checksum == ChecksumState::Unknown),
            Fault::NothingArrives,
        ),
        coalesces("a bad frame is coalesced", Ignored::BadChecksum, Fault::BadCoalesced),
        coalesces("frames are coalesced across PSH", Ignored::Push, Fault::CoalescedUnequal),
        coalesces("frames with two timestamps are coalesced", Ignored::Timestamp, Fault::CoalescedUnequal),
        coalesces("congestion experienced is coalesced away", Ignored::Congestion, Fault::CoalescedUnequal),
        coalesces("frames with two TTLs are coalesced", Ignored::HopLimit, Fault::CoalescedUnequal),
        coalesces("frames are coalesced over a gap", Ignored::Gap, Fault::CoalescedOverGap),
        coalesces("more than a packet is coalesced", Ignored::PacketLength, Fault::AggregateTooLong),
        received("frames are handed over backwards", Planted::Reverses, "rx-gro-hw", Fault::Reordered),
        received("a bad frame overtakes the held ones", Planted::BadFirst, "rx-gro-hw", Fault::BadOvertakes),
        received(
            "frames are held for 250 ms",
            Planted::Holds(Duration::from_millis(250)),
            "rx-gro-hw",
            Fault::HeldTooLong,
        ),
        changes(
            "padding is coalesced as payload",
            |meta, frame| {
                // In the train with padding, the last frame has 3 bytes of payload and 3 bytes of padding.
                let Some(segmentation) = meta.segmentation else { return 1 };
                let Some(at) = layout(frame).filter(|at| at.payload_len() % usize::from(segmentation.size) == 3) else {
                    return 1;
                };
                frame.extend([0; 3]);
                let len = get16(frame, at.network_start + 2) + 3;
                put16(frame, at.network_start + 2, len);
                write_ip_checksum(frame, at);
                mark_good(meta, frame);
                1
            },
            Fault::PaddingCoalesced,
        ),
        coalesces("a first fragment is coalesced", Ignored::Fragment, Fault::FragmentCoalesced),
        changes(
            "timestamps of aggregates are lost",
            |meta, frame| {
                if meta.segmentation.is_some()
                    && let Some(at) = layout(frame)
                {
                    frame[at.transport_start + 20..at.payload_start].fill(1);
                }
                1
            },
            Fault::TimestampLost,
        ),
        changes(
            "the segment size of aggregates is one too much",
            |meta, _| {
                if let Some(segmentation) = meta.segmentation.as_mut() {
                    segmentation.size += 1;
                }
                1
            },
            Fault::SegmentSize,
        ),
        changes(
            "aggregates are handed over twice",
            |meta, _| 1 + usize::from(meta.segmentation.is_some()),
            Fault::Duplicate,
        ),
        changes("aggregates are lost", |meta, _| usize::from(meta.segmentation.is_none()), Fault::NothingArrives),
        received(
            "the VLAN tag is stripped and lost",
            Planted::Strips(|meta, frame| {
                if frame[12..14] == [0x81, 0] {
                    frame.drain(12..16);
                    if let ChecksumState::Partial(partial) = &mut meta.checksum {
                        partial.start -= 4;
                    }
                }
                1
            }),
            "rx-vlan",
            Fault::VlanTagLost,
        ),
    ]
}

/// Marks a frame's checksum as good by a partial checksum, as an adapter does for a TAP.
pub fn mark_good(meta: &mut RxMeta, frame: &mut [u8]) {
    if let Some(partial) = Frame::received(frame).make_partial() {
        meta.checksum = ChecksumState::Partial(partial);
    }
}

fn hops_at(network: Network, ip: usize) -> usize {
    ip + if network == Network::Ipv4 { 8 } else { 7 }
}

/// Writes a checksum computed by `value` from the sums of pseudo-header and segment.
pub fn checksum_of(frame: &mut [u8], value: impl Fn(Sum, Sum) -> u16) {
    let Some(at) = layout(frame) else { return };
    let field = at.transport_start + if at.transport == Transport::Udp { 6 } else { 16 };
    if at.transport == Transport::Opaque {
        return;
    }
    put16(frame, field, 0);
    let pseudo = Frame::received(frame).pseudo_header(at.transport_len() as u32);
    let value = value(pseudo, sum(&frame[at.transport_start..at.packet_end]));
    put16(frame, field, value);
}

/// Changes each UDP header. `change` receives the frame and the header's offset. Checksums are not updated.
pub fn for_each_datagram(frames: &mut [Vec<u8>], change: impl Fn(&mut [u8], usize)) {
    for frame in frames {
        if let Some(at) = layout(frame).filter(|at| at.transport == Transport::Udp) {
            change(frame, at.transport_start);
        }
    }
}

/// Changes each frame. `change` receives the frame and the offset of the TCP or UDP header. Checksums are not updated.
pub fn for_each(frames: &mut [Vec<u8>], change: impl Fn(&mut [u8], usize)) {
    for frame in frames {
        if let Some(at) = layout(frame) {
            change(frame, at.transport_start);
        }
    }
}

/// Changes each frame and updates its checksums.
pub fn edit_all(frames: &mut [Vec<u8>], change: impl Fn(&mut Vec<u8>, FrameLayout)) {
    for frame in frames {
        edit(frame, &change);
    }
}

/// Changes the TCP flags of each segment.
pub fn flags(frames: &mut [Vec<u8>], change: impl Fn(usize, u8) -> u8) {
    for (n, frame) in frames.iter_mut().enumerate() {
        edit(frame, |bytes, at| bytes[at.transport_start + 13] = change(n, bytes[at.transport_start + 13]));
    }
}

/// Changes the length of a frame by `by`, which is negative, and updates the length fields and checksums.
fn resize(frame: &mut Vec<u8>, by: isize) {
    let Some(at) = layout(frame) else { return };
    frame.truncate(at.packet_end.saturating_add_signed(by));
    let len_at = at.network_start + if at.network == Network::Ipv4 { 2 } else { 4 };
    let len = get16(frame, len_at).saturating_add_signed(by as i16);
    put16(frame, len_at, len);
    write_ip_checksum(frame, at);
    Frame::received(frame).write_checksum();
}

pub fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
