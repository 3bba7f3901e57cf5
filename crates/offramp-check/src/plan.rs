//! The checked offloads, their cases, and the features needed on the two interfaces. This module contains only data.

use crate::case::{Case, Checksum, Load, TcpOptions, Train};
use crate::packet::{Ip, Protocol, Way};
use strum::VariantArray;

/// The extent of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A few cases of each kind.
    Quick,
    /// Every combination of boundary values: segment size × options × number of segments × payload of the last segment.
    Full,
}

/// The direction of an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The offload applies to transmitted frames.
    Transmit,
    /// The offload applies to received frames.
    Receive,
}

/// The cases of an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cases {
    Checksum,
    Segmentation(Ip, Protocol),
    /// UDP segmentation requested by a socket (`UDP_SEGMENT`).
    Socket(Ip),
    /// The cases of `Segmentation`, with CWR set.
    Ecn,
    Scatter,
    Verdict,
    Coalescing(Protocol),
    Tags,
    /// The cases of `Tags`, and super-frames with the tag in the metadata.
    TagsInSkb,
}

/// Names of features, as in ethtool.
type Names = &'static [&'static str];

/// A checked offload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    /// Short name of the offload, as in `--only`.
    pub name: &'static str,
    /// Description in a few words, as in `--list`.
    pub about: &'static str,
    pub side: Side,
    /// ethtool's names of the offload's features. The check turns on every feature that the interface offers, and needs
    /// at least one of them.
    pub features: Names,
    /// ethtool's names of further features that must be on for the offload.
    pub needs: Names,
    pub cases: Cases,
}

pub(crate) const TX_CHECKSUM: &[&str] = &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
const FOR_SEGMENTATION: &[&str] =
    &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-scatter-gather"];
const FOR_VARIANTS: &[&str] = &[
    "tx-checksum-ip-generic",
    "tx-checksum-ipv4",
    "tx-checksum-ipv6",
    "tx-scatter-gather",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
];

impl Offload {
    /// Returns whether a UDP socket sends the offload's cases.
    pub(crate) fn is_of_socket(&self) -> bool {
        matches!(self.cases, Cases::Socket(_))
    }
}

impl Offload {
    const fn transmit(name: &'static str, features: Names, needs: Names, cases: Cases, about: &'static str) -> Self {
        Self { name, about, side: Side::Transmit, features, needs, cases }
    }

    const fn receive(name: &'static str, features: Names, needs: Names, cases: Cases, about: &'static str) -> Self {
        Self { name, about, side: Side::Receive, features, needs, cases }
    }
}

/// Every offload, in the order of the check.
pub(crate) const OFFLOADS: &[Offload] = &[
    Offload::transmit(
        "tx-checksum",
        TX_CHECKSUM,
        &[],
        Cases::Checksum,
        "the interface completes the TCP and UDP checksums of sent frames",
    ),
    Offload::transmit(
        "tx-scatter-gather",
        &["tx-scatter-gather", "tx-scatter-gather-fraglist"],
        TX_CHECKSUM,
        Cases::Scatter,
        "the interface sends frames that lie in several pieces of memory",
    ),
    Offload::transmit(
        "tso4",
        &["tx-tcp-segmentation"],
        FOR_SEGMENTATION,
        Cases::Segmentation(Ip::V4, Protocol::Tcp),
        "the interface segments TCP over IPv4",
    ),
    Offload::transmit(
        "tso-ecn",
        &["tx-tcp-ecn-segmentation"],
        FOR_VARIANTS,
        Cases::Ecn,
        "the interface segments TCP with CWR set, which only the first segment keeps",
    ),
    Offload::transmit(
        "tso-mangleid",
        &["tx-tcp-mangleid-segmentation"],
        FOR_VARIANTS,
        Cases::Segmentation(Ip::V4, Protocol::Tcp),
        "the interface segments TCP over IPv4, and may give all segments one IP ID",
    ),
    Offload::transmit(
        "tso6",
        &["tx-tcp6-segmentation"],
        FOR_SEGMENTATION,
        Cases::Segmentation(Ip::V6, Protocol::Tcp),
        "the interface segments TCP over IPv6",
    ),
    Offload::transmit(
        "uso4",
        &["tx-udp-segmentation"],
        FOR_SEGMENTATION,
        Cases::Segmentation(Ip::V4, Protocol::Udp),
        "the interface segments UDP over IPv4 into datagrams",
    ),
    Offload::transmit(
        "uso6",
        &["tx-udp-segmentation"],
        FOR_SEGMENTATION,
        Cases::Segmentation(Ip::V6, Protocol::Udp),
        "the interface segments UDP over IPv6 into datagrams",
    ),
    Offload::transmit(
        "uso4-socket",
        &["tx-udp-segmentation"],
        FOR_SEGMENTATION,
        Cases::Socket(Ip::V4),
        "the same, requested by a UDP socket (UDP_SEGMENT) over IPv4",
    ),
    Offload::transmit(
        "uso6-socket",
        &["tx-udp-segmentation"],
        FOR_SEGMENTATION,
        Cases::Socket(Ip::V6),
        "the same, requested by a UDP socket (UDP_SEGMENT) over IPv6",
    ),
    Offload::transmit(
        "tx-vlan",
        &["tx-vlan-hw-insert"],
        FOR_SEGMENTATION,
        Cases::TagsInSkb,
        "the interface inserts the VLAN tag of sent frames",
    ),
    Offload::receive(
        "rx-checksum",
        &["rx-checksum"],
        &[],
        Cases::Verdict,
        "the interface verifies received checksums; a bad frame is never marked good",
    ),
    Offload::receive(
        "rx-gro",
        &["rx-gro"],
        &["rx-checksum"],
        Cases::Coalescing(Protocol::Tcp),
        "Linux coalesces received TCP (GRO), so that segmentation returns the same frames",
    ),
    Offload::receive(
        "rx-gro-hw",
        &["rx-gro-hw"],
        &["rx-checksum", "rx-gro"],
        Cases::Coalescing(Protocol::Tcp),
        "the interface coalesces received TCP under the rules of GRO",
    ),
    Offload::receive(
        "rx-lro",
        &["rx-lro"],
        &["rx-checksum"],
        Cases::Coalescing(Protocol::Tcp),
        "the interface coalesces received TCP (LRO)",
    ),
    Offload::receive(
        "rx-udp-gro",
        &["rx-udp-gro-forwarding"],
        &["rx-checksum", "rx-gro"],
        Cases::Coalescing(Protocol::Udp),
        "Linux coalesces received UDP that it forwards",
    ),
    Offload::receive(
        "rx-vlan",
        &["rx-vlan-hw-parse"],
        &[],
        Cases::Tags,
        "the interface removes the VLAN tag of received frames",
    ),
];

/// Returns whether the offload with this name segments super-frames.
pub(crate) fn is_segmentation(name: &str) -> bool {
    let segments = |cases| matches!(cases, Cases::Segmentation(..) | Cases::Socket(_) | Cases::Ecn);
    OFFLOADS.iter().any(|offload| offload.name == name && segments(offload.cases))
}

/// Returns the features of all offloads of a side, without duplicates.
pub(crate) fn features_of(side: Side) -> Vec<&'static str> {
    let mut features: Vec<&str> =
        OFFLOADS.iter().filter(|offload| offload.side == side).flat_map(|offload| offload.features).copied().collect();
    features.sort_unstable();
    features.dedup();
    features
}

/// Tag in tagged frames: priority 5, VLAN 1005.
const TAG: u16 = 5 << 13 | 0x3ed;
/// Tag control information of all VLAN tags in the cases.
pub(crate) const VLANS: [u16; 3] = [1, TAG, 0xfffe];
/// Length of a VLAN tag in bytes.
pub(crate) const TAG_LEN: usize = 4;
/// Minimum MTU of a path under check in bytes, equal to the minimum MTU of IPv6 (RFC 8200 5).
pub(crate) const LONG_MIN: usize = 1280;
/// Maximum length of an IP packet in bytes.
const PACKET_LEN_MAX: usize = 65_535;
/// Numbers of segments in a super-frame. The numbers lie around powers of two, and around the 17 fragments of an skb.
/// The largest number is the maximum of UDP GRO.
const SEGMENTS: [u16; 13] = [2, 3, 4, 7, 8, 15, 16, 17, 18, 32, 45, 63, 64];
const SEGMENTS_QUICK: [u16; 3] = [2, 17, 44];
/// Small segment sizes in bytes, even and odd, in addition to sizes that fill the MTU.
const SIZES_SMALL: [usize; 2] = [536, 61];
/// Payloads of unsegmented frames in bytes, in addition to payloads that fill the MTU.
const LENGTHS: [usize; 9] = [0, 1, 2, 3, 17, 18, 63, 64, 535];
/// Payload of each frame in a train, in bytes; an odd number.
const TRAIN_LEN: usize = 1201;

const BOTH: [Ip; 2] = [Ip::V4, Ip::V6];
const TAGS: [Option<u16>; 2] = [None, Some(TAG)];

/// Returns the cases of an offload for two interfaces with an MTU of at least `mtu`.
pub(crate) fn cases(cases: Cases, mtu: usize, depth: Depth) -> Vec<Case> {
    match cases {
        Cases::Checksum => checksums(mtu, depth),
        Cases::Segmentation(ip, protocol) => super_frames(ip, protocol, mtu, depth),
        Cases::Socket(ip) => by_socket(ip, mtu, depth),
        Cases::Ecn => ecn(mtu),
        Cases::Scatter => scattered(mtu, depth),
        Cases::Verdict => verdicts(mtu, depth),
        Cases::Coalescing(protocol) => trains(protocol, mtu, depth),
        Cases::Tags => tagged(mtu),
        Cases::TagsInSkb => tagged_beside(mtu),
    }
}

/// Returns the cases for the check of the path itself, with every offload off.
pub(crate) fn path(mtu: usize, depth: Depth) -> Vec<Case> {
    let each = [
        Cases::Checksum,
        Cases::Segmentation(Ip::V4, Protocol::Tcp),
        Cases::Segmentation(Ip::V6, Protocol::Tcp),
        Cases::Segmentation(Ip::V4, Protocol::Udp),
        Cases::Segmentation(Ip::V6, Protocol::Udp),
        Cases::Ecn,
        Cases::Verdict,
        Cases::Coalescing(Protocol::Tcp),
        Cases::Coalescing(Protocol::Udp),
        Cases::Tags,
    ];
    each.into_iter().flat_map(|which| cases(which, mtu, depth)).collect()
}

/// Returns frames whose packets are as long as the MTU: IPv4 and IPv6, each without and with a VLAN tag.
pub(crate) fn longest(mtu: usize) -> Vec<Case> {
    let of = |ip| filling(Case::new(ip, Protocol::Udp, one(0, Checksum::Complete)), mtu, 0);
    BOTH.into_iter().flat_map(|ip| TAGS.map(|vlan| Case { vlan, ..of(ip) })).collect()
}

/// Returns a frame whose packet is one byte longer than the MTU.
pub(crate) fn too_long(mtu: usize) -> Case {
    let case = filling(Case::new(Ip::V4, Protocol::Udp, one(0, Checksum::Complete)), mtu, 0);
    match case.load {
        Load::One { len, checksum } => Case { load: one(usize::from(len) + 1, checksum), ..case },
        _ => case,
    }
}

/// Returns the VLAN identifier in a VLAN tag.
pub(crate) fn vlan_of(tag: u16) -> u16 {
    tag & 0xfff
}

/// Returns an ordinary frame, to test whether any frame is received.
pub(crate) fn probe(ip: Ip) -> Case {
    Case::new(ip, Protocol::Udp, one(64, Checksum::Complete))
}

/// Returns a frame with an IPv4 packet of `len` bytes.
pub(crate) fn of_length(len: usize, vlan: Option<u16>) -> Case {
    Case { vlan, ..filling(probe(Ip::V4), len, 0) }
}

/// Returns a train that contains the fragments of a packet.
pub(crate) fn fragments() -> Case {
    Case { load: Load::Train { len: TRAIN_LEN as u16, kind: Train::Fragment }, ..probe(Ip::V4) }
}

/// Returns a datagram for a UDP socket, to test whether any datagram is received.
pub(crate) fn datagram(ip: Ip) -> Case {
    Case { way: Way::UdpSocket, ..Case::new(ip, Protocol::Udp, one(64, Checksum::Asked)) }
}

/// Returns a frame with its tag in the skb's metadata, to test whether the kernel can send such frames.
pub(crate) fn tag_in_skb() -> Case {
    Case { vlan: Some(TAG), way: Way::TagInSkb, ..probe(Ip::V4) }
}

fn one(len: usize, checksum: Checksum) -> Load {
    Load::One { len: len as u16, checksum }
}

/// Returns the case with a payload that makes the packet `less` bytes shorter than the MTU.
fn filling(case: Case, mtu: usize, less: usize) -> Case {
    let len = mtu.min(PACKET_LEN_MAX) - case.packet_header_len() - less;
    let load = match case.load {
        Load::One { checksum, .. } => one(len, checksum),
        other => other,
    };
    Case { load, ..case }
}

/// Returns the maximum payload of a packet with the length of the MTU.
fn room(case: &Case, mtu: usize) -> usize {
    mtu.min(PACKET_LEN_MAX) - case.packet_header_len()
}

/// Returns a super-frame, or `None` if it exceeds 64 KiB, or if `last` is not between 1 and `size`.
fn super_frame(case: Case, size: usize, segments: u16, last: usize) -> Option<Case> {
    let payload = size * (usize::from(segments) - 1) + last;
    let fits = case.packet_header_len() + payload <= PACKET_LEN_MAX && (1..=size).contains(&last);
    fits.then_some(Case { load: Load::Super { size: size as u16, segments, last: last as u16 }, ..case })
}

fn super_frames(ip: Ip, protocol: Protocol, mtu: usize, depth: Depth) -> Vec<Case> {
    let plain = Case::new(ip, protocol, one(0, Checksum::Asked));
    let options = match (protocol, depth) {
        (Protocol::Udp, _) => &[TcpOptions::None][..],
        (Protocol::Tcp, Depth::Quick) => &[TcpOptions::None, TcpOptions::Timestamps],
        (Protocol::Tcp, Depth::Full) => &[TcpOptions::None, TcpOptions::Timestamps, TcpOptions::Full],
    };
    let segments = if depth == Depth::Full { &SEGMENTS[..] } else { &SEGMENTS_QUICK };
    let mut cases = Vec::new();
    for &tcp_options in options {
        let case = Case { tcp_options, ..plain };
        let full = room(&case, mtu);
        let mut sizes = vec![full];
        sizes.extend(SIZES_SMALL.into_iter().filter(|size| *size < full));
        if depth == Depth::Full {
            sizes.push(full - 1);
        }
        for (size, &count) in sizes.iter().flat_map(|size| segments.iter().map(move |count| (*size, count))) {
            let lasts = if depth == Depth::Full { vec![size, 1, size - 1, (size / 2) | 1] } else { vec![size, 1] };
            cases.extend(lasts.into_iter().filter_map(|last| super_frame(case, size, count, last)));
        }
    }
    cases.extend(special_super_frames(&plain, mtu));
    if depth == Depth::Quick {
        // Tagged and untagged frames alternate.
        return cases.into_iter().enumerate().map(|(n, case)| Case { vlan: TAGS[n % 2], ..case }).collect();
    }
    cases.into_iter().flat_map(|case| TAGS.map(|vlan| Case { vlan, ..case })).collect()
}

/// Returns super-frames that are difficult to segment for reasons other than their lengths.
fn special_super_frames(plain: &Case, mtu: usize) -> Vec<Case> {
    let timestamps = if plain.protocol == Protocol::Tcp { TcpOptions::Timestamps } else { TcpOptions::None };
    let usual = Case { tcp_options: timestamps, ..*plain };
    let variants = [
        Case { ip_id: u16::MAX - 1, ..usual },
        Case { ip_id: 0x7ffe, ..usual },
        Case { sequence: u32::MAX - 3000, ..usual },
        Case { fin: plain.protocol == Protocol::Tcp, ..usual },
        Case { folds_to_zero: true, ..usual },
        Case { scattered: true, ..usual },
        Case { ip_options: 1, ..usual },
        Case { ip_options: if plain.ip == Ip::V4 { 10 } else { 3 }, ..usual },
    ];
    variants.into_iter().filter_map(|case| super_frame(case, room(&case, mtu), 5, 101)).collect()
}

/// Returns super-frames that a UDP socket can send. The kernel builds their headers, so the super-frames have no tag,
/// no options, and no wrapping IDs.
fn by_socket(ip: Ip, mtu: usize, depth: Depth) -> Vec<Case> {
    let cases = super_frames(ip, Protocol::Udp, mtu, depth).into_iter();
    let plain = cases.filter(|case| case.ip_options == 0 && !case.scattered && case.ip_id == datagram(ip).ip_id);
    plain
        .filter(|case| depth == Depth::Quick || case.vlan.is_none())
        .map(|case| Case { vlan: None, way: Way::UdpSocket, ..case })
        .collect()
}

fn ecn(mtu: usize) -> Vec<Case> {
    let of = |ip| Case { cwr: true, ..Case::new(ip, Protocol::Tcp, one(0, Checksum::Asked)) };
    let counts = [2, 3, 17, 40];
    let each = BOTH.into_iter().flat_map(|ip| counts.map(|count| (of(ip), count)));
    each.filter_map(|(case, count)| super_frame(case, room(&case, mtu), count, 99)).collect()
}

fn checksums(mtu: usize, depth: Depth) -> Vec<Case> {
    let mut cases = Vec::new();
    for (ip, protocol) in BOTH.into_iter().flat_map(|ip| [(ip, Protocol::Tcp), (ip, Protocol::Udp)]) {
        let plain = Case::new(ip, protocol, one(0, Checksum::Asked));
        let lengths = if depth == Depth::Full { &LENGTHS[..] } else { &[0, 1, 64] };
        cases.extend(lengths.iter().map(|len| Case { load: one(*len, Checksum::Asked), ..plain }));
        cases.extend([0, 1].map(|less| filling(plain, mtu, less)));
        cases.push(Case { folds_to_zero: true, load: one(100, Checksum::Asked), ..plain });
        cases.push(Case { ip_options: 2, load: one(101, Checksum::Asked), ..plain });
        // An adapter must not change a complete checksum, whether right or wrong.
        cases.push(Case { load: one(99, Checksum::Complete), ..plain });
        cases.push(Case { load: one(99, Checksum::Wrong), ..plain });
        cases.push(Case { load: one(98, Checksum::WrongPayload), ..plain });
    }
    cases.push(Case { load: one(97, Checksum::Absent), ..Case::new(Ip::V4, Protocol::Udp, one(0, Checksum::Absent)) });
    cases.extend(BOTH.map(|ip| Case::new(ip, Protocol::Udp, Load::Deep { len: 201 })));
    cases.into_iter().flat_map(|case| TAGS.map(|vlan| Case { vlan, ..case })).collect()
}

fn scattered(mtu: usize, depth: Depth) -> Vec<Case> {
    let all = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|protocol| {
        let of = move |ip| Case { scattered: true, ..Case::new(ip, protocol, one(0, Checksum::Asked)) };
        BOTH.into_iter().flat_map(move |ip| {
            let lengths = if depth == Depth::Full { &LENGTHS[..] } else { &[0, 64, 535] };
            lengths.iter().map(move |len| Case { load: one(*len, Checksum::Asked), ..of(ip) }).chain([filling(
                of(ip),
                mtu,
                0,
            )])
        })
    });
    all.collect()
}

fn verdicts(mtu: usize, depth: Depth) -> Vec<Case> {
    let mut cases = Vec::new();
    for (ip, protocol) in BOTH.into_iter().flat_map(|ip| [(ip, Protocol::Tcp), (ip, Protocol::Udp)]) {
        let plain = Case::new(ip, protocol, one(0, Checksum::Complete));
        let lengths = if depth == Depth::Full { &LENGTHS[..] } else { &[0, 1, 64] };
        cases.extend(lengths.iter().map(|len| Case { load: one(*len, Checksum::Complete), ..plain }));
        cases.push(filling(plain, mtu, 0));
        cases.push(Case { folds_to_zero: true, load: one(100, Checksum::Complete), ..plain });
        for len in [33, 34, 500] {
            cases.push(Case { load: one(len, Checksum::Wrong), ..plain });
            cases.push(Case { load: one(len, Checksum::WrongPayload), ..plain });
        }
        if ip == Ip::V4 {
            cases.push(Case { load: one(70, Checksum::WrongIpHeader), ..plain });
        }
    }
    cases.push(Case::new(Ip::V4, Protocol::Udp, one(97, Checksum::Absent)));
    cases.into_iter().flat_map(|case| TAGS.map(|vlan| Case { vlan, ..case })).collect()
}

/// Returns cases for coalescing: super-frames, segmented by the sender's kernel and received back to back, and trains
/// with one differing field.
fn trains(protocol: Protocol, mtu: usize, depth: Depth) -> Vec<Case> {
    use Train::{Bad, Congestion, Even, Fragment, Hops, IdGap, Long, Padded, Short, ShortLast, Trailed};
    let kinds = match protocol {
        Protocol::Tcp => Train::VARIANTS,
        Protocol::Udp => &[Even, ShortLast, Short, Congestion, Hops, IdGap, Bad, Long, Fragment, Padded, Trailed],
    };
    let tcp_options = if protocol == Protocol::Tcp { TcpOptions::Timestamps } else { TcpOptions::None };
    let mut cases = Vec::new();
    for ip in BOTH {
        let plain = Case { tcp_options, ..Case::new(ip, protocol, one(0, Checksum::Asked)) };
        let counts = if depth == Depth::Full { &SEGMENTS[..] } else { &SEGMENTS_QUICK };
        // All segments are equal, without PSH. Between two namespaces of one machine, the last segment still belongs to
        // the sender's socket. Linux' GRO therefore assigns the last segment to another flow. With PSH, the last
        // segment would end that flow at once, and overtake the other segments.
        let (size, burst) = (room(&plain, mtu), Case { push: false, ..plain });
        cases.extend(counts.iter().filter_map(|count| super_frame(burst, size, *count, size)));
        let len = TRAIN_LEN.min(room(&plain, mtu)) as u16;
        let of_kind = |kind: &Train| {
            // With TCP options, the frame would be too long to need padding.
            let tcp_options = if *kind == Padded { TcpOptions::None } else { tcp_options };
            Case { tcp_options, load: Load::Train { len, kind: *kind }, ..plain }
        };
        cases.extend(kinds.iter().filter(|kind| **kind != Padded || ip == Ip::V4).map(of_kind));
        cases.push(Case { ip_id: u16::MAX - 3, load: Load::Train { len, kind: Even }, ..plain });
        cases.push(Case { vlan: Some(TAG), load: Load::Train { len, kind: Even }, ..plain });
    }
    cases
}

/// Returns trains in which no frame ends coalescing, so that the receiver holds the last frame until a timer expires.
pub(crate) fn endless(protocol: Protocol) -> Vec<Case> {
    let load = Load::Train { len: TRAIN_LEN as u16, kind: Train::Even };
    BOTH.into_iter().map(|ip| Case::new(ip, protocol, load)).collect()
}

fn tagged(mtu: usize) -> Vec<Case> {
    let tags = [Some(VLANS[0]), Some(VLANS[1]), Some(VLANS[2]), None];
    let of = |ip, protocol| filling(Case::new(ip, protocol, one(0, Checksum::Complete)), mtu, 0);
    let plain = BOTH.into_iter().flat_map(|ip| [of(ip, Protocol::Tcp), of(ip, Protocol::Udp)]);
    plain.flat_map(|case| tags.map(|vlan| Case { vlan, ..case })).collect()
}

fn tagged_beside(mtu: usize) -> Vec<Case> {
    let whole = |case: &Case| super_frame(Case { load: one(0, Checksum::Asked), ..*case }, room(case, mtu), 5, 101);
    let frames = tagged(mtu);
    let super_frames: Vec<Case> = frames.iter().filter_map(whole).collect();
    frames.into_iter().chain(super_frames).map(|case| Case { way: Way::TagInSkb, ..case }).collect()
}
