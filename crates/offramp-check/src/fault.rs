//! Names of the faults that a check can report.

use serde::Serialize;
use strum::EnumMessage;

/// A fault, named after its symptom in the captured frames. Reports quote the comment of each variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, strum::EnumMessage)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// nothing arrives
    NothingArrives,
    /// frames are missing
    FrameMissing,
    /// a frame arrives twice
    Duplicate,
    /// frames of one flow arrive out of order
    Reordered,
    /// a frame with a wrong checksum overtakes others of its flow
    BadOvertakes,
    /// a frame is held for more than 50 ms before it is delivered
    HeldTooLong,
    /// a frame arrives that was not sent
    UnexpectedFrame,
    /// the super-frame arrives whole, without a mark as super-frame
    NotSegmented,
    /// the segment boundaries differ from the request
    SegmentSize,
    /// a segment is too short
    SegmentShort,
    /// a segment is too long
    SegmentLong,
    /// the frame length contradicts the headers
    FrameLength,
    /// the Ethernet header differs
    EthernetHeader,
    /// the VLAN tag is lost
    VlanTagLost,
    /// there is a VLAN tag that was not sent
    VlanTagAdded,
    /// the VLAN tag differs
    VlanTagChanged,
    /// each segment has the IPv4 length of the super-frame
    Ipv4LengthOfSuperFrame,
    /// the IPv4 length is wrong
    Ipv4Length,
    /// each segment has the IPv6 payload length of the super-frame
    Ipv6LengthOfSuperFrame,
    /// the IPv6 payload length is wrong
    Ipv6Length,
    /// all segments have the same IPv4 ID
    Ipv4IdNotCounted,
    /// an IPv4 ID is wrong
    Ipv4Id,
    /// the checksum of the IPv4 header is wrong
    Ipv4Checksum,
    /// TTL or hop limit differs
    HopLimit,
    /// type of service or traffic class differs
    TrafficClass,
    /// IP options or extension headers differ
    IpOptions,
    /// the IP header differs
    IpHeader,
    /// the ports differ
    Ports,
    /// all segments have the same sequence number
    SequenceNotAdvanced,
    /// a sequence number is wrong
    Sequence,
    /// PSH is set on a segment that is not the last
    PshAdded,
    /// PSH is lost
    PshLost,
    /// FIN is set on a segment that is not the last
    FinAdded,
    /// FIN is lost
    FinLost,
    /// CWR is set on a segment that is not the first
    CwrAdded,
    /// CWR is lost
    CwrLost,
    /// TCP flags differ
    TcpFlags,
    /// the TCP window differs
    TcpWindow,
    /// the TCP timestamp is lost
    TimestampLost,
    /// the TCP timestamp differs
    TimestampChanged,
    /// TCP options differ
    TcpOptions,
    /// the TCP header differs
    TcpHeader,
    /// each datagram has the UDP length of the super-frame
    UdpLengthOfSuperFrame,
    /// the UDP length is wrong
    UdpLength,
    /// the checksum was not written: the field holds the sum of the pseudo-header
    ChecksumNotWritten,
    /// the checksum contains the pseudo-header twice
    ChecksumPseudoHeaderTwice,
    /// the checksum does not contain the pseudo-header
    ChecksumWithoutPseudoHeader,
    /// the bytes of the checksum are swapped
    ChecksumByteOrder,
    /// the checksum does not contain the last byte of an odd length
    ChecksumOddByte,
    /// a UDP checksum of 0 was not written as 0xffff
    ChecksumZero,
    /// the checksum is wrong
    Checksum,
    /// a wrong checksum was replaced by a right one
    ChecksumRepaired,
    /// the payload differs
    Payload,
    /// a frame with a wrong checksum is marked as good
    BadMarkedGood,
    /// a frame with a wrong checksum was coalesced with good ones
    BadCoalesced,
    /// frames were coalesced although they differ
    CoalescedUnequal,
    /// frames were coalesced over a gap
    CoalescedOverGap,
    /// the padding or the trailer of a frame was coalesced as its payload
    PaddingCoalesced,
    /// an IP fragment was coalesced with other frames
    FragmentCoalesced,
    /// the coalesced packet exceeds the maximum packet length
    AggregateTooLong,
    /// the interface's report contradicts the frame
    Metadata,
    /// a frame longer than the MTU was accepted
    LongerThanMtu,
    /// the MTUs of the two ends differ
    MtusDiffer,
    /// every frame arrives on one receive queue
    RssOneQueue,
    /// the byte order of the hash key differs from the driver's report
    RssKeyByteOrder,
    /// the hashed fields differ from the driver's report
    RssFields,
    /// the indirection table differs from the driver's report
    RssTable,
    /// the receive queues contradict the hash key and the indirection table
    RssHash,
}

impl Fault {
    /// Returns whether the fault concerns the receive queue and not the frame.
    pub fn is_of_queue(self) -> bool {
        matches!(self, Self::RssOneQueue | Self::RssKeyByteOrder | Self::RssFields | Self::RssTable | Self::RssHash)
    }

    /// Returns the description of the fault, as printed in reports.
    pub fn text(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }
}
