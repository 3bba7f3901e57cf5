//! Further planted faults. Together with `faults.rs`, the tests plant at least one hundred faults.

use offramp_check::fault::Fault;
use offramp_check::verdict::Blame;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::Sum;
use offramp_offload::layout::{FrameLayout, Network, Transport};
use offramp_offload::meta::{ChecksumState, RxMeta};

use crate::faults::{
    Row, checksum_of, edit_all, flags, for_each, for_each_datagram, get16, inserted, is_tagged, mark_good, put16,
    received, sent,
};
use crate::stage::{Planted, Transmit, edit, layout, write_ip_checksum};

/// Returns all faults of this file.
pub fn rows() -> Vec<Row> {
    let mut rows = checksums();
    rows.extend(tcp_segments());
    rows.extend(ip_segments());
    rows.extend(datagrams());
    rows.extend(tags());
    rows.extend(verdicts());
    rows.extend(aggregates());
    rows.extend(path());
    rows
}

fn checksums() -> Vec<Row> {
    let of = |name, change: Transmit, fault| sent(name, "tx-checksum", change, fault);
    vec![
        of(
            "the checksum is not inverted",
            |frames, _| checksum_of(&mut frames[0], |pseudo, segment| pseudo.plus(segment).fold()),
            Fault::Checksum,
        ),
        of(
            "the pseudo-header has no length",
            |frames, _| {
                let Some(at) = layout(&frames[0]) else { return };
                let len = Sum::word(at.transport_len() as u16);
                checksum_of(&mut frames[0], |pseudo, segment| pseudo.minus(len).plus(segment).checksum());
            },
            Fault::Checksum,
        ),
        of("the checksum field is cleared", |frames, _| checksum_of(&mut frames[0], |_, _| 0), Fault::Checksum),
        of(
            "the checksums of IPv6 alone are not written",
            |frames, whole| {
                if layout(&frames[0]).is_some_and(|at| at.network == Network::Ipv6) {
                    frames[0].clone_from(&whole.bytes);
                }
            },
            Fault::ChecksumNotWritten,
        ),
        of(
            "the checksums of UDP alone are not written",
            |frames, whole| {
                if layout(&frames[0]).is_some_and(|at| at.transport == Transport::Udp) {
                    frames[0].clone_from(&whole.bytes);
                }
            },
            Fault::ChecksumNotWritten,
        ),
        of(
            "the checksums behind IP options are not written",
            |frames, whole| {
                if layout(&frames[0]).is_some_and(|at| at.network_options) {
                    frames[0].clone_from(&whole.bytes);
                }
            },
            Fault::ChecksumNotWritten,
        ),
        of(
            "the last byte of the payload is cleared",
            |frames, _| {
                edit(&mut frames[0], |bytes, at| {
                    if at.payload_len() > 0 {
                        bytes[at.packet_end - 1] = 0;
                    }
                });
            },
            Fault::Payload,
        ),
        of("the type of service is cleared", |frames, _| traffic_class(frames, 0x5a), Fault::TrafficClass),
        of("the frame is lost", |frames, _| frames.clear(), Fault::NothingArrives),
        of("the frame is sent twice", |frames, _| frames.extend(frames.first().cloned()), Fault::Duplicate),
    ]
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn tcp_segments() -> Vec<Row> {
    vec![
        sent(
            "the first segment alone has a right checksum",
            "tso4",
            |frames, _| frames.iter_mut().skip(1).for_each(|frame| checksum_of(frame, |_, _| 0x1234)),
            Fault::Checksum,
        ),
        sent(
            "the checksum of the last segment counts a full one",
            "tso6",
            |frames, _| {
                let full = frames[0].len();
                let Some(last) = frames.last_mut() else { return };
                let more = Sum::word((full - last.len()) as u16);
                checksum_of(last, |pseudo, segment| pseudo.plus(more).plus(segment).checksum());
            },
            Fault::Checksum,
        ),
        sent("the sequence number advances by one too much", "tso4", |frames, _| advance(frames, 1), Fault::Sequence),
        sent(
            "the sequence number advances by the headers too",
            "tso6",
            |frames, _| advance(frames, 40),
            Fault::Sequence,
        ),
        sent("the first segment is lost", "tso6", |frames, _| drop(frames.remove(0)), Fault::FrameMissing),
        sent("the last segment is lost", "tso4", |frames, _| drop(frames.pop()), Fault::FrameMissing),
        sent(
            "the last two segments change places",
            "tso4",
            |frames, _| {
                if let [.., a, b] = &mut frames[..] {
                    std::mem::swap(a, b);
                }
            },
            Fault::Reordered,
        ),
        sent(
            "each segment carries the payload of the first",
            "tso6",
            |frames, _| {
                let Some(first) = layout(&frames[0]).map(|at| frames[0][at.payload_start..at.packet_end].to_vec())
                else {
                    return;
                };
                edit_all(frames, |bytes, at| {
                    bytes[at.payload_start..at.packet_end].copy_from_slice(&first[..at.payload_len()]);
                });
            },
            Fault::Payload,
        ),
        sent(
            "the first byte of each segment is changed",
            "tso4",
            |frames, _| edit_all(frames, |bytes, at| bytes[at.payload_start] ^= 1),
            Fault::Payload,
        ),
        sent(
            "the acknowledgement number is cleared after the first segment",
            "tso4",
            |frames, _| {
                for frame in frames.iter_mut().skip(1) {
                    edit(frame, |bytes, at| bytes[at.transport_start + 8..at.transport_start + 12].fill(0));
                }
            },
            Fault::TcpHeader,
        ),
        sent("URG on all segments", "tso4", |frames, _| flags(frames, |_, flags| flags | 0x20), Fault::TcpFlags),
        sent("ECE is lost", "tso6", |frames, _| flags(frames, |_, flags| flags ^ 0x40), Fault::TcpFlags),
        sent(
            "the ports change places",
            "tso6",
            |frames, _| {
                edit_all(frames, |bytes, at| bytes[at.transport_start..at.transport_start + 4].rotate_left(2));
            },
            Fault::Ports,
        ),
        sent(
            "an empty segment follows",
            "tso4",
            |frames, _| {
                let Some(mut last) = frames.last().cloned() else { return };
                let Some(at) = layout(&last) else { return };
                last.truncate(at.payload_start);
                put16(&mut last, at.network_start + 2, (at.payload_start - at.network_start) as u16);
                edit(&mut last, |bytes, at| bytes[at.transport_start + 7] ^= 1);
                frames.push(last);
            },
            Fault::UnexpectedFrame,
        ),
        sent(
            "the super-frame is sent whole",
            "tso4",
            |frames, whole| *frames = vec![whole.bytes.clone()],
            Fault::NotSegmented,
        ),
    ]
}

fn ip_segments() -> Vec<Row> {
    vec![
        sent(
            "the IDs count down",
            "tso4",
            |frames, _| {
                let first = get16(&frames[0], layout(&frames[0]).unwrap().network_start + 4);
                edit_all(frames, |bytes, at| {
                    let id = get16(bytes, at.network_start + 4);
                    put16(bytes, at.network_start + 4, first.wrapping_sub(id.wrapping_sub(first)));
                });
            },
            Fault::Ipv4Id,
        ),
        sent("DF is cleared", "tso4", |frames, _| edit_all(frames, |b, at| clear_df(b, at)), Fault::IpHeader),
        sent(
            "the type of service is cleared after the first segment",
            "tso4",
            |frames, _| traffic_class(&mut frames[1..], 0x5a),
            Fault::TrafficClass,
        ),
        sent("the traffic class is changed", "tso6", |frames, _| traffic_class(frames, 0x5a), Fault::TrafficClass),
        sent(
            "the flow label is changed",
            "tso6",
            |frames, _| edit_all(frames, |bytes, at| bytes[at.network_start + 3] ^= 1),
            Fault::IpHeader,
        ),
        sent(
            "the IPv4 checksum is cleared",
            "tso4",
            |frames, _| {
                let at = layout(&frames[0]).unwrap().network_start + 10;
                for_each(frames, |bytes, _| put16(bytes, at, 0));
            },
            Fault::Ipv4Checksum,
        ),
        sent(
            "the IPv4 length counts the Ethernet header",
            "tso4",
            |frames, _| {
                for frame in frames {
                    let Some(at) = layout(frame) else { continue };
                    let len = get16(frame, at.network_start + 2) + 14;
                    put16(frame, at.network_start + 2, len);
                    write_ip_checksum(frame, at);
                }
            },
            Fault::Ipv4Length,
        ),
        sent(
            "the IPv6 payload length counts the IPv6 header",
            "uso6",
            |frames, _| {
                let at = layout(&frames[0]).unwrap().network_start + 4;
                for_each(frames, |bytes, _| put16(bytes, at, get16(bytes, at) + 40));
            },
            Fault::Ipv6Length,
        ),
        sent("the hop limit is decremented", "uso6", |frames, _| hops(frames), Fault::HopLimit),
        sent(
            "the source MAC address is cleared",
            "tso4",
            |frames, _| frames.iter_mut().for_each(|frame| frame[6..12].fill(0)),
            Fault::EthernetHeader,
        ),
    ]
}

fn datagrams() -> Vec<Row> {
    vec![
        sent(
            "datagrams after the first have no checksum",
            "uso4",
            |frames, _| frames.iter_mut().skip(1).for_each(|frame| checksum_of(frame, |_, _| 0)),
            Fault::Checksum,
        ),
        sent(
            "the last datagram has the UDP length of a full one",
            "uso6",
            |frames, _| {
                let full = get16(&frames[0], layout(&frames[0]).unwrap().transport_start + 4);
                for_each_datagram(frames, |bytes, at| put16(bytes, at + 4, full));
            },
            Fault::UdpLength,
        ),
        sent(
            "all datagrams have one ID",
            "uso4",
            |frames, _| {
                let id = get16(&frames[0], layout(&frames[0]).unwrap().network_start + 4);
                edit_all(frames, |bytes, at| put16(bytes, at.network_start + 4, id));
            },
            Fault::Ipv4IdNotCounted,
        ),
        sent("the datagrams are sent backwards", "uso6", |frames, _| frames.reverse(), Fault::Reordered),
        sent(
            "the datagrams are two bytes shorter than asked for",
            "uso4",
            |frames, whole| {
                let mut request = whole.request;
                if let Some(segmentation) = request.segmentation.as_mut() {
                    segmentation.size -= 2;
                }
                *frames = crate::common::segments(&whole.bytes, request);
            },
            Fault::SegmentSize,
        ),
        sent(
            "a datagram of a socket is sent twice",
            "uso4-socket",
            |frames, _| {
                if frames.len() > 1 {
                    frames.insert(1, frames[1].clone());
                }
            },
            Fault::Duplicate,
        ),
    ]
}

fn tags() -> Vec<Row> {
    let strips = |name, change, fault| received(name, Planted::Strips(change), "rx-vlan", fault);
    vec![
        inserted(
            "the tag of the next VLAN is inserted",
            |frame| {
                if is_tagged(frame) {
                    frame[15] ^= 1;
                }
            },
            Fault::VlanTagChanged,
        ),
        inserted(
            "the inserted tag has the drop eligible indicator",
            |frame| {
                if is_tagged(frame) {
                    frame[14] ^= 0x10;
                }
            },
            Fault::VlanTagChanged,
        ),
        strips(
            "the tag of another VLAN is handed over",
            |_, frame| {
                if is_tagged(frame) {
                    frame[15] ^= 2;
                }
                1
            },
            Fault::VlanTagChanged,
        ),
        strips("tagged frames are lost", |_, frame| usize::from(!is_tagged(frame)), Fault::NothingArrives),
    ]
}

fn verdicts() -> Vec<Row> {
    let of =
        |name, change, fault| received(name, Planted::Receive(Offloads::RX_CHECKSUM, change), "rx-checksum", fault);
    vec![
        of(
            "the last byte of good frames is changed",
            |meta, frame| {
                if meta.checksum != ChecksumState::Bad
                    && let Some(at) = layout(frame).filter(|at| at.payload_len() > 0)
                {
                    frame[at.packet_end - 1] ^= 1;
                }
                1
            },
            Fault::Payload,
        ),
        of(
            "bad datagrams alone are marked as good",
            |meta, frame| {
                let is_udp = layout(frame).is_some_and(|at| at.transport == Transport::Udp);
                if meta.checksum == ChecksumState::Bad && is_udp {
                    mark_good(meta, frame);
                }
                1
            },
            Fault::BadMarkedGood,
        ),
        of(
            "the frame check sequence is handed over",
            |meta, frame| {
                if meta.checksum != ChecksumState::Bad {
                    edit(frame, |_, _| ());
                    meta.checksum = ChecksumState::Unknown;
                }
                frame.extend([0xde, 0xad, 0xbe, 0xef]);
                1
            },
            Fault::FrameLength,
        ),
        of(
            "the last four bytes are cut off",
            |meta, frame| {
                meta.checksum = ChecksumState::Unknown;
                frame.truncate(frame.len() - 4);
                1
            },
            Fault::FrameLength,
        ),
        of("frames are handed over twice", |_, _| 2, Fault::Duplicate),
    ]
}

fn aggregates() -> Vec<Row> {
    let of = |name, change, fault| received(name, Planted::Receive(Offloads::RSC4, change), "rx-gro-hw", fault);
    vec![
        of(
            "the last byte of an aggregate is changed",
            |meta, frame| of_aggregate(meta, frame, |bytes, at| bytes[at.packet_end - 1] ^= 1),
            Fault::Payload,
        ),
        of(
            "PSH of an aggregate is lost",
            |meta, frame| of_aggregate(meta, frame, |bytes, at| bytes[at.transport_start + 13] &= !8),
            Fault::PshLost,
        ),
        of(
            "FIN of an aggregate is lost",
            |meta, frame| of_aggregate(meta, frame, |bytes, at| bytes[at.transport_start + 13] &= !1),
            Fault::FinLost,
        ),
        of(
            "the window of an aggregate is cleared",
            |meta, frame| of_aggregate(meta, frame, |bytes, at| put16(bytes, at.transport_start + 14, 0)),
            Fault::TcpWindow,
        ),
        of(
            "the sequence number of an aggregate is that of the second frame",
            |meta, frame| {
                let size = meta.segmentation.map_or(0, |segmentation| u32::from(segmentation.size));
                of_aggregate(meta, frame, |bytes, at| add_to_sequence(bytes, at, size))
            },
            Fault::Sequence,
        ),
        of(
            "the type of service of an aggregate is changed",
            |meta, frame| of_aggregate(meta, frame, |bytes, at| set_traffic_class(bytes, at, 0x5a)),
            Fault::TrafficClass,
        ),
        of(
            "the hop limit of an aggregate is decremented",
            |meta, frame| {
                of_aggregate(meta, frame, |bytes, at| {
                    bytes[at.network_start + if at.network == Network::Ipv4 { 8 } else { 7 }] -= 1;
                })
            },
            Fault::HopLimit,
        ),
        of(
            "the acknowledgement number of an aggregate is cleared",
            |meta, frame| {
                of_aggregate(meta, frame, |bytes, at| bytes[at.transport_start + 8..at.transport_start + 12].fill(0))
            },
            Fault::TcpHeader,
        ),
        of(
            "the IPv4 checksum of an aggregate is cleared",
            |meta, frame| {
                if meta.segmentation.is_some()
                    && let Some(at) = layout(frame).filter(|at| at.network == Network::Ipv4)
                {
                    put16(frame, at.network_start + 10, 0);
                }
                1
            },
            Fault::Ipv4Checksum,
        ),
    ]
}

fn path() -> Vec<Row> {
    let of = |name, change, fault| Row {
        name,
        planted: Planted::Always(change),
        offload: "path",
        fault,
        blame: Blame::Path,
    };
    vec![
        of(
            "the path clears the type of service",
            |frame| edit(frame, |bytes, at| set_traffic_class(bytes, at, 0x5a)),
            Fault::TrafficClass,
        ),
        of(
            "the path changes the last byte under a right checksum",
            |frame| edit(frame, |bytes, at| bytes[at.packet_end - 1] ^= u8::from(at.payload_len() > 0)),
            Fault::Payload,
        ),
        of("the path pads each frame", |frame| frame.extend([0xee; 6]), Fault::FrameLength),
        of(
            "the path changes the source MAC address",
            |frame| frame[6..12].copy_from_slice(&[2, 0xff, 0, 0, 0, 9]),
            Fault::EthernetHeader,
        ),
        of(
            "the path rewrites the window",
            |frame| {
                edit(frame, |bytes, at| {
                    if at.transport == Transport::Tcp {
                        put16(bytes, at.transport_start + 14, 77);
                    }
                });
            },
            Fault::TcpWindow,
        ),
    ]
}

/// Changes a coalesced frame, and makes its checksum partial again.
fn of_aggregate(meta: &mut RxMeta, frame: &mut Vec<u8>, change: impl FnOnce(&mut Vec<u8>, FrameLayout)) -> usize {
    if meta.segmentation.is_some() {
        edit(frame, change);
        mark_good(meta, frame);
    }
    1
}

/// Adds `by` times the index of each segment to the segment's sequence number.
fn advance(frames: &mut [Vec<u8>], by: u32) {
    for (n, frame) in frames.iter_mut().enumerate() {
        edit(frame, |bytes, at| add_to_sequence(bytes, at, by * n as u32));
    }
}

fn add_to_sequence(bytes: &mut [u8], at: FrameLayout, by: u32) {
    let field = &mut bytes[at.transport_start + 4..at.transport_start + 8];
    let sequence = field.iter().fold(0, |sequence, byte| sequence << 8 | u32::from(*byte));
    field.copy_from_slice(&sequence.wrapping_add(by).to_be_bytes());
}

/// Inverts the bits of `by` in the type of service or the traffic class of each frame.
fn traffic_class(frames: &mut [Vec<u8>], by: u8) {
    for frame in frames {
        edit(frame, |bytes, at| set_traffic_class(bytes, at, by));
    }
}

fn set_traffic_class(bytes: &mut [u8], at: FrameLayout, by: u8) {
    match at.network {
        Network::Ipv4 => bytes[at.network_start + 1] ^= by,
        Network::Ipv6 => bytes[at.network_start] ^= by >> 4,
        Network::Opaque => {}
    }
}

fn clear_df(bytes: &mut [u8], at: FrameLayout) {
    if at.network == Network::Ipv4 {
        bytes[at.network_start + 6] ^= 0x40;
    }
}

fn hops(frames: &mut [Vec<u8>]) {
    edit_all(frames, |bytes, at| {
        bytes[at.network_start + if at.network == Network::Ipv4 { 8 } else { 7 }] -= 1;
    });
}
