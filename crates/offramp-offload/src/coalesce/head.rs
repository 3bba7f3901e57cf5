//! Header fields for coalescing: the flow's key, the bytes common to all frames of an aggregate, and the fields with an
//! increment per frame.

// A `Shape` passed by value would be packed into one register and unpacked with masks, for each frame.
#![allow(clippy::trivially_copy_pass_by_ref)]
// Only inlined functions are compiled for the vector instructions of a kernel.
#![allow(clippy::inline_always)]

use crate::checksum::{Sum, pseudo_header, sum};
use crate::layout::{
    FrameLayout, IPV4_CHECKSUM_OFFSET, IPV4_DONT_FRAGMENT, IPV4_FRAGMENT_OFFSET, IPV4_ID_OFFSET, IPV4_TOTAL_LEN_OFFSET,
    IPV6_HEADER_LEN, IPV6_PAYLOAD_LEN_OFFSET, Network, TCP_CHECKSUM_OFFSET, TCP_CWR, TCP_FIN, TCP_FLAGS_OFFSET,
    TCP_PSH, TCP_RST, TCP_SEQUENCE_OFFSET, TCP_SYN, TCP_URG, Transport, UDP_CHECKSUM_OFFSET, UDP_LENGTH_OFFSET, be16,
};

/// The two flags that only the last segment of a super-frame keeps.
pub(super) const TCP_LAST: u8 = TCP_FIN | TCP_PSH;
/// Flags of a frame that must not start an aggregate and is delivered at once. A frame with FIN or PSH can end an
/// aggregate. A frame with FIN or PSH that continues no aggregate need not wait for further frames. For a host without
/// AccECN support, a frame with CWR must not start an aggregate either.
const TCP_ALONE: u8 = TCP_SYN | TCP_RST | TCP_URG | TCP_LAST;

/// The folded sum of a message with a correct checksum inside (RFC 1071 section 1).
const ALL_ONES: u16 = 0xffff;
/// Value of `ports_and_kind` in a key that matches no frame.
const NO_FRAME: u64 = u64::MAX;

/// The key of a flow: both addresses, both ports, IP version and transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Addresses in memory order. IPv4 addresses are stored in the first word, and the other words are 0.
    addresses: [u64; 4],
    /// Ports in memory order in the low bits. IP version and transport in the bits above.
    ports_and_kind: u64,
}

/// The default matches no frame.
impl Default for Key {
    fn default() -> Self {
        Self { addresses: [0; 4], ports_and_kind: NO_FRAME }
    }
}

impl Key {
    /// Returns the key of a TCP or UDP frame, or `None` for every other frame.
    #[inline]
    pub(super) fn of(frame: &[u8], layout: &FrameLayout) -> Option<Self> {
        let addresses = layout.addresses(frame);
        let (is_ipv6, addresses) = match layout.network {
            Network::Ipv4 => (0, [word64(addresses)?, 0, 0, 0]),
            Network::Ipv6 => {
                let word = |n: usize| word64(&addresses[n * 8..]);
                (1, [word(0)?, word(1)?, word(2)?, word(3)?])
            }
            Network::Opaque => return None,
        };
        let is_udp = match layout.transport {
            Transport::Tcp => 0,
            Transport::Udp => 1,
            Transport::Opaque => return None,
        };
        let ports = u32::from_ne_bytes(*frame.get(layout.transport_start..)?.first_chunk()?);
        Some(Self { addresses, ports_and_kind: u64::from(ports) | is_ipv6 << 32 | is_udp << 33 })
    }

    /// Returns true if both keys name the same flow. Compares word by word in registers, without branches. A vector
    /// load of words that were stored one by one would stall.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        let difference = self.ports_and_kind ^ other.ports_and_kind;
        let pairs = self.addresses.iter().zip(&other.addresses);
        pairs.fold(difference, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    /// Returns true if the flow's addresses equal `addresses`, in the format of [`FrameLayout::addresses`].
    pub(super) fn is_between(&self, addresses: &[u8]) -> bool {
        self.addresses.iter().zip(addresses.chunks(8)).all(|(word, bytes)| word64(bytes) == Some(*word))
    }

    /// Returns a hash that is hard to predict without `secrets`.
    #[inline]
    pub(super) fn hash(&self, secrets: &[u64; 5]) -> u32 {
        let [a, b, c, d] = self.addresses;
        let high = multiply_and_fold(a ^ secrets[0], b ^ secrets[1]);
        let low = multiply_and_fold(c ^ secrets[2], d ^ secrets[3]);
        multiply_and_fold(high ^ low.rotate_left(32) ^ self.ports_and_kind, secrets[4]) as u32
    }
}

/// Returns the exclusive or of the two halves of the product of `a` and `b`. Every input bit affects the result.
#[inline]
fn multiply_and_fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Maximum total length of a coalesced frame's headers in bytes. Two VLAN tags, IPv6, TCP with all its options, and 70
/// bytes of extension headers fit.
pub(super) const HEADER_LEN_MAX: usize = 192;
/// Length in bytes of a block, the unit of comparison. No TCP or UDP frame has shorter headers.
const BLOCK_LEN: usize = 32;
/// Number of words in a block.
const BLOCK_WORDS: usize = BLOCK_LEN / size_of::<u64>();
/// Maximum number of blocks between the first and the last block of the headers.
const MIDDLE_BLOCKS_MAX: usize = HEADER_LEN_MAX / BLOCK_LEN - 2;

/// A block of header bytes in memory order. Aligned, so that vector instructions accept the block as a memory operand.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Block([u64; BLOCK_WORDS]);

impl Block {
    #[inline(always)]
    fn of(bytes: &[u8; BLOCK_LEN]) -> Self {
        let (words, _) = bytes.as_chunks();
        Self(std::array::from_fn(|n| u64::from_ne_bytes(words[n])))
    }
}

/// A block of expected header bytes, and a mask of the bits to compare.
#[derive(Clone, Copy, Debug, Default)]
struct Masked {
    bytes: Block,
    mask: Block,
}

impl Masked {
    /// Sets in `difference` the bits of the mask in which `bytes` differs from the expected bytes.
    #[inline(always)]
    fn differ(&self, bytes: &[u8; BLOCK_LEN], difference: &mut Block) {
        // Load the whole block, so that the compiler can use the alignment of a [`Block`].
        let (Block(frame), Block(expected), Block(mask)) = (Block::of(bytes), self.bytes, self.mask);
        for n in 0..BLOCK_WORDS {
            difference.0[n] |= (frame[n] ^ expected[n]) & mask[n];
        }
    }
}

/// The headers of an aggregate's first frame, and a mask of the bits common to all frames of the aggregate. The default
/// matches no frame's headers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Template {
    /// Length of all headers in bytes, 0 if the template is vacant.
    len: usize,
    first: Masked,
    /// The last [`BLOCK_LEN`] bytes of the headers. They can overlap the block before them.
    last: Masked,
    middle: [Masked; MIDDLE_BLOCKS_MAX],
    /// Number of blocks in `middle`. Without VLAN tags and TCP options, headers over IPv4 have none.
    middle_len: usize,
}

impl Template {
    /// Clears the template, so that it matches no frame's headers.
    pub(super) fn vacate(&mut self) {
        self.len = 0;
    }

    /// Stores the headers of a first frame, at most [`HEADER_LEN_MAX`] bytes.
    pub(super) fn set(&mut self, headers: &[u8], shape: &Shape) {
        let mut mask = [0xff; HEADER_LEN_MAX];
        let mask = &mut mask[..headers.len()];
        hide_what_varies(mask, shape);
        let masked = |(bytes, mask)| Masked { bytes: Block::of(bytes), mask: Block::of(mask) };
        let (Some(first), Some(last)) =
            (headers.first_chunk().zip(mask.first_chunk()), headers.last_chunk().zip(mask.last_chunk()))
        else {
            return;
        };
        (self.first, self.last) = (masked(first), masked(last));
        self.len = headers.len();
        self.middle_len = headers.len().div_ceil(BLOCK_LEN).saturating_sub(2);
        let middle = headers[BLOCK_LEN..].as_chunks().0.iter().zip(mask[BLOCK_LEN..].as_chunks().0);
        for (block, pair) in self.middle[..self.middle_len].iter_mut().zip(middle) {
            *block = masked(pair);
        }
    }

    /// Returns the frame's headers if the headers equal the template's headers within the mask. Equal bytes are parsed
    /// equally, so the layout of such a frame differs from the first frame's layout only in the packet length.
    #[inline]
    pub(super) fn match_headers<'a>(&self, frame: &'a [u8], layout: &FrameLayout) -> Option<&'a [u8]> {
        let headers = frame.get(..self.len)?;
        (self.is_like(headers) && layout.payload_start == self.len).then_some(headers)
    }

    /// Returns whether headers of the template's length equal the template's headers within the mask.
    #[inline(always)]
    pub(super) fn is_like(&self, headers: &[u8]) -> bool {
        let (Some((first, rest)), Some(last)) = (headers.split_first_chunk(), headers.last_chunk()) else {
            return false;
        };
        let mut difference = Block::default();
        self.first.differ(first, &mut difference);
        self.last.differ(last, &mut difference);
        if self.middle_len > 0 {
            for (bytes, block) in rest.as_chunks().0.iter().zip(&self.middle[..self.middle_len]) {
                block.differ(bytes, &mut difference);
            }
        }
        let [a, b, c, d] = difference.0;
        a | b | c | d == 0
    }
}

/// Clears the mask bits of the header fields that can differ between frames of an aggregate.
fn hide_what_varies(mask: &mut [u8], shape: &Shape) {
    let (network, transport) = mask.split_at_mut(usize::from(shape.transport_start));
    let network = &mut network[usize::from(shape.network_start)..];
    if shape.is_ipv6 {
        network[IPV6_PAYLOAD_LEN_OFFSET..IPV6_PAYLOAD_LEN_OFFSET + 2].fill(0);
    } else {
        network[IPV4_TOTAL_LEN_OFFSET..IPV4_ID_OFFSET + 2].fill(0);
        network[IPV4_CHECKSUM_OFFSET..IPV4_CHECKSUM_OFFSET + 2].fill(0);
    }
    if shape.is_udp {
        transport[UDP_LENGTH_OFFSET..UDP_CHECKSUM_OFFSET + 2].fill(0);
    } else {
        transport[TCP_SEQUENCE_OFFSET..TCP_SEQUENCE_OFFSET + 4].fill(0);
        transport[TCP_FLAGS_OFFSET] = !TCP_LAST;
        transport[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].fill(0);
    }
}

/// The offsets of a TCP or UDP frame's headers, and the protocols.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) network_start: u16,
    pub(super) transport_start: u16,
    pub(super) payload_start: u16,
    pub(super) is_ipv6: bool,
    pub(super) is_udp: bool,
}

impl Shape {
    /// Returns the shape of a frame, or `None` if the frame carries neither TCP nor UDP, or its headers exceed
    /// [`HEADER_LEN_MAX`].
    #[inline]
    pub(super) fn of(layout: &FrameLayout) -> Option<Self> {
        let is_tcp_or_udp = layout.network != Network::Opaque && layout.transport != Transport::Opaque;
        (is_tcp_or_udp && layout.payload_start <= HEADER_LEN_MAX).then_some(Self {
            network_start: layout.network_start as u16,
            transport_start: layout.transport_start as u16,
            payload_start: layout.payload_start as u16,
            is_ipv6: layout.network == Network::Ipv6,
            is_udp: layout.transport == Transport::Udp,
        })
    }
}

/// The fields of an IP header that differ from frame to frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkFields {
    /// IPv4 ID, 0 for IPv6.
    pub(super) id: u16,
    /// True if the next frame can carry the same ID. DF is set, so the ID has no meaning (RFC 6864 4.1), or the packet
    /// is IPv6 and has no ID.
    pub(super) may_repeat_id: bool,
    /// Sum of the IP header words that differ from frame to frame.
    varying: u32,
    /// True if the checksum field, even if correct, differs from the value written by segmentation: 0xffff in place of
    /// 0.
    pub(super) is_unusual: bool,
}

impl NetworkFields {
    /// Reads the fields from the header. Returns `None` for a truncated header, which a frame with a layout never has.
    #[inline]
    pub(super) fn of(headers: &[u8], shape: &Shape) -> Option<Self> {
        if shape.is_ipv6 {
            return Some(Self { id: 0, may_repeat_id: true, varying: 0, is_unusual: false });
        }
        let ip: &[u8; IPV4_CHECKSUM_OFFSET + 2] = field(headers, shape.network_start)?;
        let (id, checksum) = (be16(ip, IPV4_ID_OFFSET), be16(ip, IPV4_CHECKSUM_OFFSET));
        let varying = u32::from(be16(ip, IPV4_TOTAL_LEN_OFFSET)) + u32::from(id) + u32::from(checksum);
        let may_repeat_id = be16(ip, IPV4_FRAGMENT_OFFSET) & IPV4_DONT_FRAGMENT != 0;
        Some(Self { id, may_repeat_id, varying, is_unusual: checksum == ALL_ONES })
    }
}

/// The fields of a TCP or UDP header that differ from frame to frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransportFields {
    /// TCP sequence number, 0 for UDP.
    pub(super) seq: u32,
    /// TCP flags, 0 for UDP.
    pub(super) flags: u8,
    /// Sum of the transport header words that differ from frame to frame.
    varying: u32,
    /// True if the checksum field, even if correct, differs from the value written by segmentation: 0xffff in TCP, or 0
    /// in UDP, which means "no checksum" (RFC 768).
    pub(super) is_unusual: bool,
}

impl TransportFields {
    /// Reads the fields from the header. Returns `None` for a truncated header, which a frame with a layout never has.
    #[inline]
    pub(super) fn of(headers: &[u8], shape: &Shape) -> Option<Self> {
        if shape.is_udp {
            let udp: &[u8; UDP_CHECKSUM_OFFSET + 2] = field(headers, shape.transport_start)?;
            let checksum = be16(udp, UDP_CHECKSUM_OFFSET);
            let varying = u32::from(be16(udp, UDP_LENGTH_OFFSET)) + u32::from(checksum);
            return Some(Self { seq: 0, flags: 0, varying, is_unusual: checksum == 0 });
        }
        let tcp: &[u8; TCP_CHECKSUM_OFFSET + 2] = field(headers, shape.transport_start)?;
        let (flags, checksum) = (tcp[TCP_FLAGS_OFFSET], be16(tcp, TCP_CHECKSUM_OFFSET));
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let varying = (seq >> 16) + (seq & 0xffff) + u32::from(flags & TCP_LAST) + u32::from(checksum);
        Some(Self { seq, flags, varying, is_unusual: checksum == ALL_ONES })
    }

    /// Returns true for a frame that can start an aggregate. `knows_accecn` is true if the host keeps CWR on every
    /// segment of an aggregate.
    pub(super) fn may_be_first(&self, knows_accecn: bool) -> bool {
        let alone = if knows_accecn { TCP_ALONE } else { TCP_ALONE | TCP_CWR };
        self.flags & alone == 0
    }
}

/// The folded sums of the header words common to all frames of an aggregate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommonSums {
    /// Sum of the IPv4 header's common words. For IPv6, which has no header checksum, the value is [`ALL_ONES`].
    ip: u16,
    /// Sum of the pseudo-header without the length.
    pseudo: u16,
    /// Sum of the pseudo-header without the length, and of the transport header.
    transport: u16,
}

impl CommonSums {
    /// Computes the sums of a first frame's headers without the varying words of `ip` and `transport`.
    pub(super) fn of(frame: &[u8], layout: &FrameLayout, ip: &NetworkFields, transport: &TransportFields) -> Self {
        let ip_sum = match layout.network {
            Network::Ipv4 => without(sum(&frame[layout.network_start..layout.transport_start]), ip.varying),
            _ => ALL_ONES,
        };
        let pseudo = pseudo_header(frame, layout, 0);
        let header = sum(&frame[layout.transport_start..layout.payload_start]);
        Self { ip: ip_sum, pseudo: pseudo.fold(), transport: without(pseudo.plus(header), transport.varying) }
    }

    /// Returns true for a correct IPv4 header checksum.
    #[inline]
    pub(super) fn ip_is_right(&self, fields: &NetworkFields) -> bool {
        fold(u32::from(self.ip) + fields.varying) == ALL_ONES
    }

    /// Returns the sum of the pseudo-header and the transport header. `transport_len` is the length of transport header
    /// and payload in bytes.
    #[inline]
    pub(super) fn transport_headers(&self, fields: &TransportFields, transport_len: u16) -> Sum {
        Sum::word(fold(u32::from(self.transport) + u32::from(transport_len) + fields.varying))
    }

    /// Returns the IPv4 header checksum of a packet with this length in bytes and this ID.
    pub(super) fn ip_checksum(&self, packet_len: u16, id: u16) -> u16 {
        !fold(u32::from(self.ip) + u32::from(packet_len) + u32::from(id))
    }

    /// Returns the sum of the pseudo-header for a transport length in bytes.
    pub(super) fn pseudo_sum(&self, transport_len: u16) -> u16 {
        fold(u32::from(self.pseudo) + u32::from(transport_len))
    }
}

/// Removes some words from `sum` and folds the result. `words` is the total of the removed words.
fn without(sum: Sum, words: u32) -> u16 {
    fold(u32::from(sum.fold()) + u32::from(!fold(words)))
}

/// Folds a total of 16-bit words into 16 bits. The lower half of `x + x.rotate_left(16)` is the sum of the two halves
/// of `x`. The upper half is the same sum plus the carry.
#[inline]
fn fold(total: u32) -> u16 {
    (total.wrapping_add(total.rotate_left(16)) >> 16) as u16
}

/// Returns `N` bytes of `headers` from `at` on.
#[inline]
fn field<const N: usize>(headers: &[u8], at: u16) -> Option<&[u8; N]> {
    headers.get(usize::from(at)..usize::from(at) + N)?.try_into().ok()
}

/// Returns the first eight bytes as a word in memory order.
#[inline]
fn word64(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

const _: () = assert!(IPV6_HEADER_LEN > BLOCK_LEN && 14 + 20 + 8 > BLOCK_LEN, "headers are longer than a block");
