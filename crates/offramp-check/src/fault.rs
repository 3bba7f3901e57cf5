//! The faults of frames, by name.

use serde::Serialize;

/// A fault, named after its symptom on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// No frame of the case arrives.
    NothingArrives,
    /// Some frames are missing.
    FrameMissing,
    /// A frame arrives twice.
    Duplicate,
    /// Frames of a flow arrive in another order.
    Reordered,
    /// A frame arrives without being sent.
    UnexpectedFrame,
    /// The super-frame arrives in one piece, without a mark as a super-frame.
    NotSegmented,
    /// The payload is segmented at the wrong places.
    SegmentSize,
    /// A segment has less payload, and its length fields say so.
    SegmentShort,
    /// A segment has more payload, and its length fields say so.
    SegmentLong,
    /// Bytes are missing at the end of a frame, or there are more; its length fields do not say so.
    FrameLength,
    /// An Ethernet address or the `EtherType` differs.
    EthernetHeader,
    /// The VLAN tag is gone.
    VlanTagLost,
    /// A VLAN tag was added.
    VlanTagAdded,
    /// VLAN, priority or protocol of the tag differ.
    VlanTagChanged,
    /// The IPv4 length of a segment is the super-frame's.
    Ipv4LengthOfSuperFrame,
    /// The IPv4 length is wrong.
    Ipv4Length,
    /// The IPv6 payload length of a segment is the super-frame's.
    Ipv6LengthOfSuperFrame,
    /// The IPv6 payload length is wrong.
    Ipv6Length,
    /// All segments have the ID of the first.
    Ipv4IdNotCounted,
    /// An IPv4 ID is wrong.
    Ipv4Id,
    /// The IPv4 header's checksum is wrong.
    Ipv4Checksum,
    /// TTL or hop limit differs.
    HopLimit,
    /// Type of service or traffic class (with ECN) differs.
    TrafficClass,
    /// IP options or extension headers differ.
    IpOptions,
    /// Another field of the IP header differs.
    IpHeader,
    /// Ports differ.
    Ports,
    /// All segments have the sequence number of the first.
    SequenceNotAdvanced,
    /// A sequence number is wrong.
    Sequence,
    /// PSH is set where it must not be.
    PshAdded,
    /// PSH is not set where it must be.
    PshLost,
    /// FIN is set where it must not be.
    FinAdded,
    /// FIN is not set where it must be.
    FinLost,
    /// CWR is set where it must not be.
    CwrAdded,
    /// CWR is not set where it must be.
    CwrLost,
    /// Another TCP flag differs.
    TcpFlags,
    /// The TCP window differs.
    TcpWindow,
    /// The timestamps option is gone.
    TimestampLost,
    /// A timestamp differs.
    TimestampChanged,
    /// Other TCP options differ.
    TcpOptions,
    /// Another field of the TCP header differs.
    TcpHeader,
    /// The UDP length of a segment is the super-frame's.
    UdpLengthOfSuperFrame,
    /// The UDP length is wrong.
    UdpLength,
    /// The checksum field holds the host's initial value: the sum of the pseudo-header.
    ChecksumNotWritten,
    /// The pseudo-header was added twice.
    ChecksumPseudoHeaderTwice,
    /// The pseudo-header was not added.
    ChecksumWithoutPseudoHeader,
    /// The bytes of the checksum are swapped.
    ChecksumByteOrder,
    /// The last byte of an odd length was not added.
    ChecksumOddByte,
    /// A UDP checksum of 0 was not written as 0xffff: 0 means no checksum.
    ChecksumZero,
    /// The checksum is wrong.
    Checksum,
    /// A complete but wrong checksum was repaired.
    ChecksumRepaired,
    /// The payload differs.
    Payload,
    /// A frame with a wrong checksum is marked as good.
    BadMarkedGood,
    /// A frame with a wrong checksum was coalesced: segmenting the aggregate makes it right.
    BadCoalesced,
    /// Frames with different values of a field were coalesced, so the field is lost.
    CoalescedUnequal,
    /// Frames were coalesced over a gap.
    CoalescedOverGap,
    /// More than a packet holds, or more than 128 datagrams, was coalesced.
    AggregateTooLong,
    /// The interface's metadata of a super-frame or a checksum contradicts the frame.
    Metadata,
    /// A frame longer than the MTU was accepted.
    LongerThanMtu,
    /// Every frame arrives on one receive queue.
    RssOneQueue,
    /// The hash uses a key with byte-swapped words.
    RssKeyByteOrder,
    /// The hash covers other header fields.
    RssFields,
    /// Frames are spread by the right hash, but by another indirection table.
    RssTable,
    /// Frames arrive on other receive queues than key and table determine.
    RssHash,
}

impl Fault {
    /// Returns true if the fault concerns the receive queue, not the frame.
    pub fn is_of_queue(self) -> bool {
        matches!(self, Self::RssOneQueue | Self::RssKeyByteOrder | Self::RssFields | Self::RssTable | Self::RssHash)
    }

    /// Describes the fault, after "what arrived:".
    pub fn text(self) -> &'static str {
        match self {
            Self::NothingArrives => "nothing arrives",
            Self::FrameMissing => "frames are missing",
            Self::Duplicate => "a frame arrives twice",
            Self::Reordered => "frames of one flow arrive in another order",
            Self::UnexpectedFrame => "a frame arrives that was not sent",
            Self::NotSegmented => "the super-frame arrives whole, and nothing reports that it is one",
            Self::SegmentSize => "the payload is segmented at other places than requested",
            Self::SegmentShort => "a segment is too short",
            Self::SegmentLong => "a segment is too long",
            Self::FrameLength => "a frame ends at another place than its headers say",
            Self::EthernetHeader => "the Ethernet header differs",
            Self::VlanTagLost => "the VLAN tag is lost",
            Self::VlanTagAdded => "there is a VLAN tag that was not sent",
            Self::VlanTagChanged => "the VLAN tag differs",
            Self::Ipv4LengthOfSuperFrame => "each segment has the IPv4 length of the super-frame",
            Self::Ipv4Length => "the IPv4 length is wrong",
            Self::Ipv6LengthOfSuperFrame => "each segment has the IPv6 payload length of the super-frame",
            Self::Ipv6Length => "the IPv6 payload length is wrong",
            Self::Ipv4IdNotCounted => "all segments have the same IPv4 ID",
            Self::Ipv4Id => "an IPv4 ID is wrong",
            Self::Ipv4Checksum => "the checksum of the IPv4 header is wrong",
            Self::HopLimit => "TTL or hop limit differs",
            Self::TrafficClass => "type of service or traffic class differs",
            Self::IpOptions => "IP options or extension headers differ",
            Self::IpHeader => "the IP header differs",
            Self::Ports => "the ports differ",
            Self::SequenceNotAdvanced => "all segments have the same sequence number",
            Self::Sequence => "a sequence number is wrong",
            Self::PshAdded => "PSH is set on a segment that is not the last",
            Self::PshLost => "PSH is lost",
            Self::FinAdded => "FIN is set on a segment that is not the last",
            Self::FinLost => "FIN is lost",
            Self::CwrAdded => "CWR is set on a segment that is not the first",
            Self::CwrLost => "CWR is lost",
            Self::TcpFlags => "TCP flags differ",
            Self::TcpWindow => "the TCP window differs",
            Self::TimestampLost => "the TCP timestamp is lost",
            Self::TimestampChanged => "the TCP timestamp differs",
            Self::TcpOptions => "TCP options differ",
            Self::TcpHeader => "the TCP header differs",
            Self::UdpLengthOfSuperFrame => "each datagram has the UDP length of the super-frame",
            Self::UdpLength => "the UDP length is wrong",
            Self::ChecksumNotWritten => "the checksum was not written: the field holds the sum of the pseudo-header",
            Self::ChecksumPseudoHeaderTwice => "the checksum contains the pseudo-header twice",
            Self::ChecksumWithoutPseudoHeader => "the checksum does not contain the pseudo-header",
            Self::ChecksumByteOrder => "the bytes of the checksum are swapped",
            Self::ChecksumOddByte => "the checksum does not contain the last byte of an odd length",
            Self::ChecksumZero => "a UDP checksum of 0 was not written as 0xffff",
            Self::Checksum => "the checksum is wrong",
            Self::ChecksumRepaired => "a wrong checksum was replaced by a right one",
            Self::Payload => "the payload differs",
            Self::BadMarkedGood => "a frame with a wrong checksum is marked as good",
            Self::BadCoalesced => "a frame with a wrong checksum was coalesced with good ones",
            Self::CoalescedUnequal => "frames were coalesced although they differ",
            Self::CoalescedOverGap => "frames were coalesced over a gap",
            Self::AggregateTooLong => "more was coalesced than one packet may hold",
            Self::Metadata => "what the interface reports contradicts the frame",
            Self::LongerThanMtu => "a frame longer than the MTU was accepted",
            Self::RssOneQueue => "every frame arrives on one receive queue",
            Self::RssKeyByteOrder => "the bytes of the hash key are in another order than the driver says",
            Self::RssFields => "other fields are hashed than the driver says",
            Self::RssTable => "the indirection table is another one than the driver says",
            Self::RssHash => "frames arrive on other receive queues than key and table say",
        }
    }
}
