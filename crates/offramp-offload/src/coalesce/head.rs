//! What of a frame's headers decides whether it joins: the key of its flow, the bytes that must be
//! equal in every frame of an aggregate, and the fields that count on.

use crate::checksum::{Sum, pseudo_header, sum};
use crate::layout::{FrameLayout, IPV6_HEADER_LEN, Network, Transport};

/// TCP's FIN bit: joins and closes.
const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;
/// TCP's PSH bit: joins and closes.
const TCP_PSH: u8 = 0x08;
const TCP_URG: u8 = 0x20;
const TCP_CWR: u8 = 0x80;
/// The two bits that only the last segment of a super-frame keeps.
pub(super) const TCP_LAST: u8 = TCP_FIN | TCP_PSH;
/// Flags that are handed over at once: they may neither start an aggregate nor join one.
/// FIN and PSH may join, and close; alone there is nothing to wait for.
const TCP_ALONE: u8 = TCP_SYN | TCP_RST | TCP_URG | TCP_CWR | TCP_LAST;

const TCP_SEQ_OFFSET: usize = 4;
/// Where TCP's flag byte lies in its header (RFC 9293 3.1).
pub(super) const TCP_FLAGS_OFFSET: usize = 13;
/// Where TCP's checksum field lies in its header.
pub(super) const TCP_CHECKSUM_OFFSET: usize = 16;
/// Where UDP's length field lies in its header (RFC 768).
pub(super) const UDP_LENGTH_OFFSET: usize = 4;
/// Where UDP's checksum field lies in its header.
pub(super) const UDP_CHECKSUM_OFFSET: usize = 6;
/// Where the total length lies in an IPv4 header (RFC 791 3.1); the ID lies behind it.
pub(super) const IPV4_TOTAL_LEN_OFFSET: usize = 2;
const IPV4_ID_OFFSET: usize = 4;
/// Where the header checksum lies in an IPv4 header.
pub(super) const IPV4_CHECKSUM_OFFSET: usize = 10;
/// Where the payload length lies in an IPv6 header (RFC 8200 3).
pub(super) const IPV6_PAYLOAD_LEN_OFFSET: usize = 4;

/// What a right message sums to, its checksum field included (RFC 1071 section 1).
const ALL_ONES: u16 = 0xffff;
/// What a key that no frame has looks like in its last word.
const NO_FRAME: u64 = u64::MAX;

/// Names a flow: both addresses, both ports, IP version and transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Addresses as they lie in memory; IPv4's are in the first word, the others are 0.
    addresses: [u64; 4],
    /// Ports as they lie in memory, above them IP version and transport.
    ports_and_kind: u64,
}

impl Key {
    /// Equal to the key of no frame.
    pub(super) const NONE: Self = Self { addresses: [0; 4], ports_and_kind: NO_FRAME };

    /// The key of a TCP or UDP frame; none for every other.
    #[inline(always)]
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

    /// Whether both name the same flow. Compared word by word, without branches and without a detour
    /// through memory, where words written one by one and read back as vectors would stall.
    #[inline(always)]
    pub(super) fn is(&self, other: &Self) -> bool {
        let difference = self.ports_and_kind ^ other.ports_and_kind;
        let pairs = self.addresses.iter().zip(&other.addresses);
        pairs.fold(difference, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    /// Whether the flow runs between these addresses, as [`FrameLayout::addresses`] gives them.
    pub(super) fn is_between(&self, addresses: &[u8]) -> bool {
        self.addresses.iter().zip(addresses.chunks(8)).all(|(word, bytes)| word64(bytes) == Some(*word))
    }

    /// A number that is hard to guess without `secrets`.
    #[inline(always)]
    pub(super) fn hash(&self, secrets: &[u64; 5]) -> u32 {
        let [a, b, c, d] = self.addresses;
        let high = multiply_and_fold(a ^ secrets[0], b ^ secrets[1]);
        let low = multiply_and_fold(c ^ secrets[2], d ^ secrets[3]);
        multiply_and_fold(high ^ low.rotate_left(32) ^ self.ports_and_kind, secrets[4]) as u32
    }
}

/// Both halves of the product, one over the other: every input bit reaches the result.
#[inline(always)]
fn multiply_and_fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Longest headers of a frame that is held, all together: room for two VLAN tags, IPv6, TCP with all
/// its options, and 70 bytes of extension headers.
pub(super) const HEADER_LEN_MAX: usize = 192;
/// Bytes that are compared at once. No TCP or UDP frame has shorter headers.
const BLOCK_LEN: usize = 32;
/// Words of a block.
const BLOCK_WORDS: usize = BLOCK_LEN / size_of::<u64>();
/// Whole blocks of the longest headers.
const BLOCKS: usize = HEADER_LEN_MAX / BLOCK_LEN;

/// Some bytes of a header, as they lie in memory. Aligned, so that vector instructions can take it
/// as an operand.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Block([u64; BLOCK_WORDS]);

impl Block {
    const ZERO: Self = Self([0; BLOCK_WORDS]);

    #[inline(always)]
    fn of(bytes: &[u8; BLOCK_LEN]) -> Self {
        let (words, _) = bytes.as_chunks();
        Self(std::array::from_fn(|n| u64::from_ne_bytes(words[n])))
    }
}

/// Bytes that are to be equal, and which of their bits count.
#[derive(Clone, Copy, Debug)]
struct Masked {
    bytes: Block,
    mask: Block,
}

impl Masked {
    const NOTHING: Self = Self { bytes: Block::ZERO, mask: Block::ZERO };

    /// Adds the bits that differ and count to `difference`.
    #[inline(always)]
    fn differ(&self, bytes: &[u8; BLOCK_LEN], difference: &mut Block) {
        let block = Block::of(bytes);
        for n in 0..BLOCK_WORDS {
            difference.0[n] |= (block.0[n] ^ self.bytes.0[n]) & self.mask.0[n];
        }
    }
}

/// The headers of an aggregate's first frame, and which bits of them must be equal in every other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    /// Bytes of all headers; 0 when vacant.
    len: usize,
    /// The last bytes, which overlap the whole blocks before them.
    last: Masked,
    whole: [Masked; BLOCKS],
}

impl Template {
    /// Equal to the headers of no frame.
    const VACANT: Self = Self { len: 0, last: Masked::NOTHING, whole: [Masked::NOTHING; BLOCKS] };

    /// From now on equal to the headers of no frame.
    pub(super) fn vacate(&mut self) {
        self.len = 0;
    }

    /// Takes over the headers of a first frame. False when they are longer than [`HEADER_LEN_MAX`].
    fn set(&mut self, frame: &[u8], layout: &FrameLayout) -> bool {
        let mut mask = [0xff; HEADER_LEN_MAX];
        let (Some(header), Some(mask)) = (frame.get(..layout.payload_start), mask.get_mut(..layout.payload_start))
        else {
            return false;
        };
        hide_what_varies(mask, layout);
        let masked = |(bytes, mask)| Masked { bytes: Block::of(bytes), mask: Block::of(mask) };
        for (block, pair) in self.whole.iter_mut().zip(header.as_chunks().0.iter().zip(mask.as_chunks().0)) {
            *block = masked(pair);
        }
        let Some(last) = header.last_chunk().zip(mask.last_chunk()) else { return false };
        self.last = masked(last);
        self.len = header.len();
        true
    }

    /// Whether the frame's headers are equal where they must be. The same bytes are parsed in the
    /// same way, so the layout then is that of the first frame but for the length.
    #[inline(always)]
    pub(super) fn is_of(&self, frame: &[u8], layout: &FrameLayout) -> bool {
        let Some(header) = frame.get(..self.len) else { return false };
        let Some(last) = header.last_chunk() else { return false };
        let mut difference = Block::ZERO;
        self.last.differ(last, &mut difference);
        for (bytes, block) in header.as_chunks().0.iter().zip(&self.whole) {
            block.differ(bytes, &mut difference);
        }
        let [a, b, c, d] = difference.0;
        a | b | c | d == 0 && layout.payload_start == self.len
    }
}

/// Clears the bits that may differ from one frame of an aggregate to the next.
fn hide_what_varies(mask: &mut [u8], layout: &FrameLayout) {
    let (network, transport) = mask.split_at_mut(layout.transport_start);
    let network = &mut network[layout.network_start..];
    if layout.network == Network::Ipv4 {
        network[IPV4_TOTAL_LEN_OFFSET..IPV4_ID_OFFSET + 2].fill(0);
        network[IPV4_CHECKSUM_OFFSET..IPV4_CHECKSUM_OFFSET + 2].fill(0);
    } else {
        network[IPV6_PAYLOAD_LEN_OFFSET..IPV6_PAYLOAD_LEN_OFFSET + 2].fill(0);
    }
    if layout.transport == Transport::Tcp {
        transport[TCP_SEQ_OFFSET..TCP_SEQ_OFFSET + 4].fill(0);
        transport[TCP_FLAGS_OFFSET] = !TCP_LAST;
        transport[TCP_CHECKSUM_OFFSET..TCP_CHECKSUM_OFFSET + 2].fill(0);
    } else {
        transport[UDP_LENGTH_OFFSET..UDP_CHECKSUM_OFFSET + 2].fill(0);
    }
}

/// The fields of a frame that differ from one to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    /// TCP sequence number; 0 for UDP.
    pub(super) seq: u32,
    /// IPv4 ID; 0 for IPv6.
    pub(super) id: u16,
    /// Payload, bytes.
    pub(super) payload_len: u16,
    /// TCP flags; 0 for UDP.
    pub(super) flags: u8,
    /// The IPv4 header's words that differ, added up.
    ip_varying: u32,
    /// The transport header's and the pseudo-header's words that differ, added up.
    transport_varying: u32,
    /// A checksum field is not what cutting would write, even if it is right.
    is_unusual: bool,
}

impl Fields {
    /// Reads them; none when the layout is not that of a TCP or UDP frame.
    #[inline(always)]
    pub(super) fn of(frame: &[u8], layout: &FrameLayout) -> Option<Self> {
        let network = frame.get(layout.network_start..)?.first_chunk()?;
        let transport = frame.get(layout.transport_start..)?;
        let mut fields = Self {
            seq: 0,
            id: 0,
            payload_len: layout.payload_len() as u16, // At most 65,535, as the length in the IP header.
            flags: 0,
            ip_varying: 0,
            transport_varying: layout.transport_len() as u32,
            is_unusual: false,
        };
        if layout.network == Network::Ipv4 {
            fields.read_ipv4(network);
        }
        match layout.transport {
            Transport::Tcp => fields.read_tcp(transport.first_chunk()?),
            Transport::Udp => fields.read_udp(transport.first_chunk()?),
            Transport::Opaque => return None,
        }
        Some(fields)
    }

    #[inline(always)]
    fn read_ipv4(&mut self, ip: &[u8; IPV4_CHECKSUM_OFFSET + 2]) {
        let checksum = be16(ip, IPV4_CHECKSUM_OFFSET);
        self.id = be16(ip, IPV4_ID_OFFSET);
        self.ip_varying = u32::from(be16(ip, IPV4_TOTAL_LEN_OFFSET)) + u32::from(self.id) + u32::from(checksum);
        self.is_unusual |= checksum == ALL_ONES;
    }

    #[inline(always)]
    fn read_tcp(&mut self, tcp: &[u8; TCP_CHECKSUM_OFFSET + 2]) {
        let checksum = be16(tcp, TCP_CHECKSUM_OFFSET);
        self.flags = tcp[TCP_FLAGS_OFFSET];
        self.seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let flags_last = u32::from(self.flags & TCP_LAST);
        self.transport_varying += (self.seq >> 16) + (self.seq & 0xffff) + flags_last + u32::from(checksum);
        self.is_unusual |= checksum == ALL_ONES;
    }

    #[inline(always)]
    fn read_udp(&mut self, udp: &[u8; UDP_CHECKSUM_OFFSET + 2]) {
        let checksum = be16(udp, UDP_CHECKSUM_OFFSET);
        self.transport_varying += u32::from(be16(udp, UDP_LENGTH_OFFSET)) + u32::from(checksum);
        self.is_unusual |= checksum == 0;
    }

    /// Whether cutting would write the checksum fields as they are, if they are right. It would not
    /// for UDP 0, where there is nothing to verify (RFC 768), and for the other zero, 0xffff, in an
    /// IPv4 or TCP header.
    #[inline(always)]
    pub(super) fn may_be_held(&self) -> bool {
        !self.is_unusual
    }

    /// Whether the frame may be the first of an aggregate: it carries data, and nothing in it is to
    /// be told at once.
    pub(super) fn may_be_first(&self) -> bool {
        self.may_be_held() && self.payload_len > 0 && self.flags & TCP_ALONE == 0
    }
}

/// What every frame of an aggregate has in common: its headers, and their sums, made once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    /// IPv4 header; all ones for IPv6, which has no header sum.
    pub(super) ip: u16,
    /// Pseudo-header without the length.
    pub(super) pseudo: u16,
    /// Pseudo-header and transport header.
    transport: u16,
    pub(super) template: Template,
}

impl Common {
    /// What a vacant slot has.
    pub(super) const VACANT: Self = Self { template: Template::VACANT, ip: 0, pseudo: 0, transport: 0 };

    /// Takes over the headers of a first frame. False when it can never be held, whatever its fields:
    /// IPv4 options, or headers that are too long.
    pub(super) fn set(&mut self, frame: &[u8], layout: &FrameLayout, fields: &Fields) -> bool {
        let is_ipv4 = layout.network == Network::Ipv4;
        if is_ipv4 && layout.network_options || !self.template.set(frame, layout) {
            return false;
        }
        let pseudo = pseudo_header(frame, layout, 0);
        let header = pseudo.plus(sum(&frame[layout.transport_start..layout.payload_start]));
        // The length is in the pseudo-header, whose sum was made without it.
        let in_header = fields.transport_varying - layout.transport_len() as u32;
        self.ip = ALL_ONES;
        if is_ipv4 {
            let ip = sum(&frame[layout.network_start..layout.transport_start]);
            self.ip = without(ip, fields.ip_varying);
        }
        self.pseudo = pseudo.fold();
        self.transport = without(header, in_header);
        true
    }

    /// Whether the IPv4 header's sum is right.
    #[inline(always)]
    pub(super) fn ip_is_right(&self, fields: &Fields) -> bool {
        fold(u32::from(self.ip) + fields.ip_varying) == ALL_ONES
    }

    /// Whether the transport's sum is right.
    #[inline(always)]
    pub(super) fn transport_is_right(&self, fields: &Fields, payload: Sum) -> bool {
        fold(u32::from(self.transport) + fields.transport_varying + u32::from(payload.fold())) == ALL_ONES
    }
}

/// A sum without some words that are part of it, which were added up.
fn without(sum: Sum, words: u32) -> u16 {
    fold(u32::from(sum.fold()) + u32::from(!fold(words)))
}

/// Some 16-bit words, added up, in 16 bits.
#[inline(always)]
pub(super) fn fold(total: u32) -> u16 {
    let once = (total & 0xffff) + (total >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The first eight bytes as they lie in memory.
#[inline(always)]
fn word64(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

const _: () = assert!(IPV6_HEADER_LEN > BLOCK_LEN && 14 + 20 + 8 > BLOCK_LEN, "headers are longer than a block");
