//! Receive-side scaling: the Toeplitz hash of a flow, and the table that maps a hash to a queue.
//!
//! The hash input consists of source address, destination address, source port and destination port, in the byte order
//! of the headers (NDIS, "RSS hashing types"; virtio 1.3, 5.1.6.4.3). TCP and UDP packets are hashed with their ports.
//! Fragments and all other packets are hashed by their addresses only, so all fragments of a datagram reach one queue.
//!
//! The hash is the exclusive or of 32-bit windows of the key, one window for each set bit of the input. This exclusive
//! or is a carry-less product, and x86 processors have an instruction for carry-less products. Processors without such
//! an instruction use tables with the combined windows of four bits: 16 entries per half-byte, 4.5 KiB, two look-ups
//! per byte. The tables leave room in the first-level cache.

#[cfg(target_arch = "x86_64")]
mod x86;

use crate::frame::Frame;
use crate::layout::{FrameLayout, LengthFrom, Network, Transport, fixed_network, plain_ipv4_transport};
use std::array;

/// Length of a Toeplitz key in bytes.
pub const KEY_LEN: usize = 40;
/// Maximum length of the hash input in bytes: two IPv6 addresses and two ports.
pub const HASH_INPUT_LEN_MAX: usize = 36;
/// Default number of entries in an indirection table (NDIS and virtio allow 128).
pub const INDIRECTION_ENTRIES_DEFAULT: usize = 128;
/// Maximum number of entries in an indirection table. In virtio the number is a power of two that fits into 16 bits.
pub const INDIRECTION_ENTRIES_MAX: usize = 32_768;

/// The key of the test vectors in Microsoft's NDIS documentation ("Verifying the RSS hash calculation").
pub const MICROSOFT_KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// A key that repeats every 16 bits, so that both directions of a flow have the same hash. An exchange of the addresses
/// and the ports moves each input bit by a multiple of 16, which leaves the hash unchanged. (Woo and Park, "Scalable
/// TCP session monitoring with symmetric receive-side scaling", 2012.) The two halves of the hash are equal, so the
/// hash has only 16 bits of information.
pub const SYMMETRIC_KEY: [u8; KEY_LEN] = symmetric_key();

const fn symmetric_key() -> [u8; KEY_LEN] {
    let mut key = [0x6d; KEY_LEN];
    let mut odd = 1;
    while odd < KEY_LEN {
        key[odd] = 0x5a;
        odd += 2;
    }
    key
}

/// Offset of the addresses in an IPv4 frame without a tag. Without IPv4 options, the ports follow the addresses.
const PLAIN_IPV4_ADDRESSES_AT: usize = 26;
/// Length of a word of the hash input in bytes. Each address consists of whole words, and the two ports together are
/// one word.
const WORD_LEN: usize = 4;
type Word = [u8; WORD_LEN];
/// Number of half-bytes in the longest input.
const NIBBLES: usize = HASH_INPUT_LEN_MAX * 2;
/// Number of values of a half-byte.
const NIBBLE_VALUES: usize = 16;

/// A Toeplitz hash function with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toeplitz {
    /// For each half-byte of the input and each value of the half-byte: the exclusive or of the key windows of the set
    /// bits.
    tables: Box<[[u32; NIBBLE_VALUES]; NIBBLES]>,
    key: [u8; KEY_LEN],
    #[cfg(target_arch = "x86_64")]
    key_parts: Option<x86::KeyParts>,
}

impl Default for Toeplitz {
    fn default() -> Self {
        Self::new(&MICROSOFT_KEY)
    }
}

impl Toeplitz {
    /// Computes the tables for a key.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let mut tables = Box::new([[0; NIBBLE_VALUES]; NIBBLES]);
        for (nibble, table) in tables.iter_mut().enumerate() {
            for (value, entry) in table.iter_mut().enumerate() {
                *entry = (0..4)
                    .filter(|bit| value & (8 >> bit) != 0)
                    .fold(0, |hash, bit| hash ^ key_window(key, nibble * 4 + bit));
            }
        }
        Self {
            tables,
            key: *key,
            #[cfg(target_arch = "x86_64")]
            key_parts: x86::KeyParts::new(key),
        }
    }

    /// Returns a hash function with the same value for both directions of a flow: see [`SYMMETRIC_KEY`].
    pub fn symmetric() -> Self {
        Self::new(&SYMMETRIC_KEY)
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8; KEY_LEN] {
        &self.key
    }

    /// Returns the hash of `input`. Bytes after the first [`HASH_INPUT_LEN_MAX`] are not hashed.
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.look_up(0, input)
    }

    /// Returns the hash of a frame's addresses and ports. Hashes only the addresses if the frame has no ports. Returns
    /// `None` if the frame carries no IP.
    #[inline]
    pub fn hash_frame(&self, frame: &Frame<'_>) -> Option<u32> {
        let (frame, layout) = frame.parts().ok()?;
        let (of_addresses, ports_at) = self.hash_addresses(frame, layout)?;
        if layout.transport == Transport::Opaque {
            return Some(of_addresses);
        }
        let ports = frame[layout.transport_start..].first_chunk()?;
        Some(of_addresses ^ self.hash_words(ports_at, array::from_ref(ports)))
    }

    /// Returns the hash of a frame's addresses, and the word index of the ports in the input. Returns `None` if the
    /// frame carries no IP.
    #[inline]
    fn hash_addresses(&self, frame: &[u8], layout: &FrameLayout) -> Option<(u32, usize)> {
        let (words, _) = layout.addresses(frame).as_chunks();
        match layout.network {
            Network::Ipv4 => Some((self.hash_words::<2>(0, words.first_chunk()?), 2)),
            Network::Ipv6 => Some((self.hash_words::<8>(0, words.first_chunk()?), 8)),
            Network::Opaque => None,
        }
    }

    /// Returns the hash of `words`, the part of the input from word `at` on. The compiler unrolls the loop for a
    /// constant number of words.
    #[inline]
    fn hash_words<const WORDS: usize>(&self, at: usize, words: &[Word; WORDS]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(hash) = self.key_parts.as_ref().and_then(|parts| parts.hash(at, words)) {
            return hash;
        }
        self.look_up(at * WORD_LEN, words.as_flattened())
    }

    /// Returns the hash of `bytes` at offset `at` of the input, computed with the tables.
    fn look_up(&self, at: usize, bytes: &[u8]) -> u32 {
        let (pairs, _) = self.tables.as_chunks::<2>();
        bytes
            .iter()
            .zip(pairs.iter().skip(at))
            .fold(0, |hash, (byte, [high, low])| hash ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)])
    }
}

bitflags::bitflags! {
    /// Packet types to hash (virtio 1.3, 5.1.6.4.3.1). IPv6 extension headers are skipped: no hash includes a home
    /// address or a routing header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HashTypes: u32 {
        /// IPv4 packets, hashed by addresses.
        const IPV4 = 1 << 0;
        /// TCP over IPv4, hashed by addresses and ports.
        const TCPV4 = 1 << 1;
        /// UDP over IPv4, hashed by addresses and ports.
        const UDPV4 = 1 << 2;
        /// IPv6 packets, hashed by addresses.
        const IPV6 = 1 << 3;
        /// TCP over IPv6, hashed by addresses and ports.
        const TCPV6 = 1 << 4;
        /// UDP over IPv6, hashed by addresses and ports.
        const UDPV6 = 1 << 5;
    }
}

impl Toeplitz {
    /// Hashes a frame in the form delivered to a host. Returns the hash and the hash type. Hashes addresses and ports
    /// if `types` enables the transport protocol, else only the addresses. Returns 0 and no hash type if `types`
    /// enables neither the transport nor the network protocol. Fragments have no ports, and a frame with a malformed
    /// transport header is treated as a frame without ports. The function parses the frame itself, because a coalesced
    /// or segmented frame has another layout than the original frame.
    // A pair is returned in registers, unlike an `Option` of a pair.
    #[inline]
    pub fn hash_of_types(&self, bytes: &[u8], is_super_frame: bool, types: HashTypes) -> (u32, HashTypes) {
        let length_from = if is_super_frame { LengthFrom::Frame } else { LengthFrom::IpAlone };
        let with_ports = match plain_ipv4_transport(bytes, length_from) {
            Some(Transport::Tcp) => types & HashTypes::TCPV4,
            Some(Transport::Udp) => types & HashTypes::UDPV4,
            Some(Transport::Opaque) | None => HashTypes::empty(),
        };
        // In almost every packet the ports follow the addresses directly.
        match bytes.get(PLAIN_IPV4_ADDRESSES_AT..).and_then(|flow| flow.as_chunks().0.first_chunk::<3>()) {
            Some(flow) if !with_ports.is_empty() => (self.hash_words(0, flow), with_ports),
            _ => self.hash_of_parsed(bytes, length_from, types),
        }
    }

    fn hash_of_parsed(&self, bytes: &[u8], length_from: LengthFrom, types: HashTypes) -> (u32, HashTypes) {
        const UNHASHED: (u32, HashTypes) = (0, HashTypes::empty());
        let mut layout = FrameLayout::NOTHING;
        if layout.parse_into(bytes, length_from).is_err() {
            let Some(of_addresses) = fixed_network(bytes) else { return UNHASHED };
            layout = of_addresses;
        }
        let (by_addresses, with_ports) = match (layout.network, layout.transport) {
            (Network::Ipv4, Transport::Tcp) => (HashTypes::IPV4, HashTypes::TCPV4),
            (Network::Ipv4, Transport::Udp) => (HashTypes::IPV4, HashTypes::UDPV4),
            (Network::Ipv6, Transport::Tcp) => (HashTypes::IPV6, HashTypes::TCPV6),
            (Network::Ipv6, Transport::Udp) => (HashTypes::IPV6, HashTypes::UDPV6),
            (Network::Ipv4, Transport::Opaque) => (HashTypes::IPV4, HashTypes::empty()),
            (Network::Ipv6, Transport::Opaque) => (HashTypes::IPV6, HashTypes::empty()),
            (Network::Opaque, _) => return UNHASHED,
        };
        let Some((of_addresses, ports_at)) = self.hash_addresses(bytes, &layout) else { return UNHASHED };
        match bytes.get(layout.transport_start..).and_then(<[u8]>::first_chunk) {
            Some(ports) if types.intersects(with_ports) => {
                (of_addresses ^ self.hash_words(ports_at, array::from_ref(ports)), with_ports)
            }
            _ if types.intersects(by_addresses) => (of_addresses, by_addresses),
            _ => UNHASHED,
        }
    }
}

/// Returns 32 bits of the key from bit `at` on, counted from the most significant bit of the first byte.
fn key_window(key: &[u8; KEY_LEN], at: usize) -> u32 {
    let bytes: [u8; 8] = std::array::from_fn(|n| key.get(at / 8 + n).copied().unwrap_or(0));
    (u64::from_be_bytes(bytes) << (at % 8) >> 32) as u32
}

/// The reason to refuse a change of an indirection table. After a refusal, the table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndirectionError {
    /// The given number of entries is not a power of two up to [`INDIRECTION_ENTRIES_MAX`].
    #[error("indirection table: {0} entries; use a power of two from 1 to {INDIRECTION_ENTRIES_MAX}")]
    Entries(usize),
    /// The number of queues is 0.
    #[error("indirection table: no queues; configure at least 1")]
    NoQueues,
    /// An entry names a queue that does not exist.
    #[error("indirection table: entry {entry} names queue {queue}, but there are {queues}; use 0 to {}", queues - 1)]
    Queue {
        /// Index of the entry.
        entry: usize,
        /// Queue named by the entry.
        queue: u16,
        /// Number of queues.
        queues: u16,
    },
    /// The index lies past the end of the table.
    #[error("indirection table: entry {entry} of {entries}; use 0 to {}", entries - 1)]
    Index {
        /// Index passed by the caller.
        entry: usize,
        /// Number of entries in the table.
        entries: usize,
    },
}

/// A table that maps the low bits of a hash to a receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectionTable {
    entries: Box<[u16]>,
    queues: u16,
}

impl IndirectionTable {
    /// Returns a table with the queues assigned to the entries in rotation.
    ///
    /// # Errors
    /// Returns an error if `entries` is not a power of two up to [`INDIRECTION_ENTRIES_MAX`], or `queues` is 0.
    pub fn new(entries: usize, queues: u16) -> Result<Self, IndirectionError> {
        if !entries.is_power_of_two() || entries > INDIRECTION_ENTRIES_MAX {
            return Err(IndirectionError::Entries(entries));
        }
        if queues == 0 {
            return Err(IndirectionError::NoQueues);
        }
        let entries = (0..entries).map(|entry| (entry % usize::from(queues)) as u16).collect();
        Ok(Self { entries, queues })
    }

    /// Maps one entry to a queue.
    ///
    /// # Errors
    /// Returns an error if the entry or the queue does not exist.
    pub fn set(&mut self, entry: usize, queue: u16) -> Result<(), IndirectionError> {
        self.check(entry, queue)?;
        let entries = self.entries.len();
        *self.entries.get_mut(entry).ok_or(IndirectionError::Index { entry, entries })? = queue;
        Ok(())
    }

    /// Returns the queue for a hash.
    #[inline]
    pub fn queue(&self, hash: u32) -> u16 {
        self.entries[hash as usize & (self.entries.len() - 1)]
    }

    /// Returns the queues of all entries.
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    fn check(&self, entry: usize, queue: u16) -> Result<(), IndirectionError> {
        if queue < self.queues { Ok(()) } else { Err(IndirectionError::Queue { entry, queue, queues: self.queues }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    /// Computes the hash by the definition, bit by bit: the key window shifts by one bit per input bit.
    fn oracle(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
        let mut hash = 0;
        for bit in 0..input.len() * 8 {
            if input[bit / 8] & (0x80 >> (bit % 8)) != 0 {
                for n in 0..32 {
                    let at = bit + n;
                    let key_bit = at < KEY_LEN * 8 && key[at / 8] & (0x80 >> (at % 8)) != 0;
                    hash ^= u32::from(key_bit) << (31 - n);
                }
            }
        }
        hash
    }

    fn input(source: &str, destination: &str, ports: Option<(u16, u16)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for address in [source, destination] {
            match address.parse().unwrap() {
                IpAddr::V4(address) => bytes.extend(address.octets()),
                IpAddr::V6(address) => bytes.extend(address.octets()),
            }
        }
        if let Some((source, destination)) = ports {
            bytes.extend(source.to_be_bytes());
            bytes.extend(destination.to_be_bytes());
        }
        bytes
    }

    /// Known answers: source address, source port, destination address, destination port, hash of the addresses, hash
    /// of addresses and TCP ports.
    const KNOWN_ANSWERS: [(&str, u16, &str, u16, u32, u32); 8] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61_e985, 0x02d1_feef),
    ];

    #[test]
    fn the_sixteen_known_answers_of_ndis_come_out() {
        let toeplitz = Toeplitz::default();
        for (source, source_port, destination, destination_port, addresses_only, with_tcp) in KNOWN_ANSWERS {
            let short = input(source, destination, None);
            let long = input(source, destination, Some((source_port, destination_port)));
            assert_eq!(toeplitz.hash(&short), addresses_only, "{source}");
            assert_eq!(toeplitz.hash(&long), with_tcp, "{source}:{source_port}");
            assert_eq!(oracle(&MICROSOFT_KEY, &long), with_tcp);
        }
    }

    /// Builds an IPv4 frame with the addresses of the first known answer, `protocol`, and the given fragment field.
    fn ipv4_frame(protocol: u8, fragment_field: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 40, 0, 1]);
        frame.extend(fragment_field.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80]);
        frame.extend(2794u16.to_be_bytes());
        frame.extend(1766u16.to_be_bytes());
        frame.extend([0, 20, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn tcp_and_udp_are_hashed_with_ports_and_all_else_by_addresses() {
        let toeplitz = Toeplitz::default();
        let hash = |frame: &[u8]| {
            let mut bytes = frame.to_vec();
            let frame = Frame::received(&mut bytes);
            frame.layout().unwrap();
            toeplitz.hash_frame(&frame)
        };
        assert_eq!(hash(&ipv4_frame(6, 0)), Some(0x51cc_c178));
        assert_eq!(hash(&ipv4_frame(17, 0)), Some(0x51cc_c178));
        assert_eq!(hash(&ipv4_frame(1, 0)), Some(0x323e_8fc2));
        assert_eq!(hash(&ipv4_frame(6, 0x2000)), Some(0x323e_8fc2), "a first fragment");
        assert_eq!(hash(&ipv4_frame(6, 185)), Some(0x323e_8fc2), "a later fragment");
        let mut arp = ipv4_frame(6, 0);
        arp[13] = 0x06;
        assert_eq!(hash(&arp), None);
    }

    #[test]
    fn the_hash_of_a_frame_is_that_of_its_addresses_and_ports() {
        let toeplitz = Toeplitz::default();
        let mut ipv6 = vec![0; 12];
        ipv6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
        ipv6.extend(1..=32);
        ipv6.extend([9, 8, 7, 6, 0, 8, 0, 0]);
        for mut bytes in [ipv4_frame(6, 0), ipv4_frame(1, 0), ipv6] {
            let frame = Frame::received(&mut bytes);
            let (bytes, layout) = frame.parts().unwrap();
            let ports_len = if layout.transport == Transport::Opaque { 0 } else { 4 };
            let input = [layout.addresses(bytes), &bytes[layout.transport_start..][..ports_len]].concat();
            assert_eq!(toeplitz.hash_frame(&frame), Some(toeplitz.hash(&input)));
            assert_eq!(toeplitz.hash(&input), oracle(&MICROSOFT_KEY, &input));
        }
    }

    /// Computes the hash of virtio 1.3, 5.1.6.4.3.2 with simple code, as a reference. Returns `None` for a frame that
    /// is not hashed.
    fn slow(bytes: &[u8], types: HashTypes) -> Option<(u32, HashTypes)> {
        let is_v6 = bytes[12..14] == [0x86, 0xdd];
        let (addresses, protocol, transport) =
            if is_v6 { (&bytes[22..54], bytes[20], &bytes[54..]) } else { (&bytes[26..34], bytes[23], &bytes[34..]) };
        let is_fragment = !is_v6 && u16::from_be_bytes([bytes[20], bytes[21]]) & 0x3fff != 0;
        let (ip, tcp, udp) = if is_v6 {
            (HashTypes::IPV6, HashTypes::TCPV6, HashTypes::UDPV6)
        } else {
            (HashTypes::IPV4, HashTypes::TCPV4, HashTypes::UDPV4)
        };
        for (kind, number) in [(tcp, 6), (udp, 17)] {
            if types.contains(kind) && protocol == number && !is_fragment {
                return Some((oracle(&MICROSOFT_KEY, &[addresses, &transport[..4]].concat()), kind));
            }
        }
        types.contains(ip).then(|| (oracle(&MICROSOFT_KEY, addresses), ip))
    }

    proptest! {
        /// `hash_of_types` hashes a plain frame without parsing it. The hash equals the hash of the parsed frame.
        #[test]
        fn a_plain_frame_is_hashed_as_a_parse_says(
            is_tcp: bool,
            changes in prop::collection::vec((0usize..60, any::<u8>()), 0..3),
            len in 0usize..64,
            is_super_frame: bool,
            bits in 0..=HashTypes::all().bits(),
        ) {
            let mut frame = ipv4_frame(if is_tcp { 6 } else { 17 }, 0x4000);
            if !is_tcp {
                frame[38..40].copy_from_slice(&20u16.to_be_bytes());
            }
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            frame.resize(if len < 20 { len + 40 } else { 54 }, 0);
            let (types, length_from) = (
                HashTypes::from_bits_retain(bits),
                if is_super_frame { LengthFrom::Frame } else { LengthFrom::IpAlone },
            );
            let hash = Toeplitz::default();
            prop_assert_eq!(
                hash.hash_of_types(&frame, is_super_frame, types),
                hash.hash_of_parsed(&frame, length_from, types)
            );
        }
    }

    #[test]
    fn a_frame_is_hashed_by_the_first_of_its_kinds_that_is_enabled() {
        let mut ipv6 = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64], &[7; 32]].concat();
        ipv6.extend([9, 8, 7, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        let mut with_options = [ipv4_frame(17, 0), ipv6.clone()];
        with_options[0][38..40].copy_from_slice(&12u16.to_be_bytes());
        with_options[1][20] = 17;
        with_options[1][58..60].copy_from_slice(&12u16.to_be_bytes());
        let others =
            [ipv4_frame(6, 0), ipv4_frame(17, 0), ipv4_frame(1, 0), ipv4_frame(6, 0x2000), ipv4_frame(17, 9), ipv6];
        let frames = [&others[..], &with_options[..]].concat();
        for bits in 0..=HashTypes::all().bits() {
            let types = HashTypes::from_bits_retain(bits);
            for frame in &frames {
                assert_eq!(
                    Toeplitz::default().hash_of_types(frame, false, types),
                    slow(frame, types).unwrap_or_default(),
                    "{types:?}"
                );
            }
        }
        let mut arp = ipv4_frame(6, 0);
        arp[13] = 0x06;
        assert_eq!(Toeplitz::default().hash_of_types(&arp, false, HashTypes::all()), (0, HashTypes::empty()));
        // A packet without ports is hashed by its addresses, and a frame without IP is not hashed.
        let mut malformed = ipv4_frame(6, 0);
        malformed[46] = 0x10;
        let hash = |frame: &[u8]| Toeplitz::default().hash_of_types(frame, false, HashTypes::all());
        assert_eq!(hash(&malformed), (0x323e_8fc2, HashTypes::IPV4));
        malformed[14] = 0x65;
        assert_eq!(hash(&malformed), (0, HashTypes::empty()));
        // The IP length field of a super-frame can have any value.
        let mut long = ipv4_frame(6, 0);
        long[16..18].copy_from_slice(&[0, 0]);
        assert_eq!(Toeplitz::default().hash_of_types(&long, true, HashTypes::TCPV4), (0x51cc_c178, HashTypes::TCPV4));
    }

    #[test]
    fn input_past_the_longest_is_not_hashed() {
        let long: Vec<u8> = (0..100).collect();
        let toeplitz = Toeplitz::default();
        assert_eq!(toeplitz.hash(&long), toeplitz.hash(&long[..HASH_INPUT_LEN_MAX]));
    }

    #[test]
    fn a_new_table_spreads_its_entries_over_the_queues_in_turn() {
        let table = IndirectionTable::new(INDIRECTION_ENTRIES_DEFAULT, 3).unwrap();
        assert_eq!(table.entries().len(), 128);
        for hash in 0..1000 {
            assert_eq!(table.queue(hash), (hash % 128 % 3) as u16);
        }
        let flat = IndirectionTable::new(1, 4).unwrap();
        assert_eq!(flat.queue(u32::MAX), 0);
    }

    #[test]
    fn a_table_refuses_what_it_cannot_keep_and_stays_as_it_was() {
        for entries in [0, 3, 127, INDIRECTION_ENTRIES_MAX * 2] {
            assert_eq!(IndirectionTable::new(entries, 1), Err(IndirectionError::Entries(entries)));
        }
        assert_eq!(IndirectionTable::new(128, 0), Err(IndirectionError::NoQueues));
        let mut table = IndirectionTable::new(4, 2).unwrap();
        let before = table.clone();
        assert_eq!(table.set(0, 2), Err(IndirectionError::Queue { entry: 0, queue: 2, queues: 2 }));
        assert_eq!(table.set(4, 1), Err(IndirectionError::Index { entry: 4, entries: 4 }));
        assert_eq!(table, before);
    }

    #[test]
    fn a_set_entry_steers_the_hashes_that_end_in_its_index() {
        let mut table = IndirectionTable::new(4, 8).unwrap();
        table.set(2, 7).unwrap();
        assert_eq!([0, 1, 2, 3, 0x1006].map(|hash| table.queue(hash)), [0, 1, 7, 3, 7]);
    }

    /// Hashes an input, `WORDS` words at a time, and the remaining bytes with the tables.
    fn hash_in<const WORDS: usize>(toeplitz: &Toeplitz, input: &[u8]) -> u32 {
        let (groups, _) = input.as_chunks::<WORD_LEN>().0.as_chunks::<WORDS>();
        let of_groups = (0..).step_by(WORDS).zip(groups).map(|(at, group)| toeplitz.hash_words(at, group));
        let done = groups.len() * WORDS * WORD_LEN;
        of_groups.fold(toeplitz.look_up(done, &input[done..]), |sum, hash| sum ^ hash)
    }

    proptest! {
        #[test]
        fn products_and_tables_agree_with_the_definition(
            key in prop::array::uniform32(any::<u8>()),
            tail in prop::array::uniform8(any::<u8>()),
            bytes in prop::collection::vec(any::<u8>(), 0..=HASH_INPUT_LEN_MAX + 4),
            split in 0..=HASH_INPUT_LEN_MAX,
        ) {
            let mut whole = [0; KEY_LEN];
            whole[..32].copy_from_slice(&key);
            whole[32..].copy_from_slice(&tail);
            let (toeplitz, expected) = (Toeplitz::new(&whole), oracle(&whole, &bytes[..bytes.len().min(HASH_INPUT_LEN_MAX)]));
            prop_assert_eq!(toeplitz.hash(&bytes), expected);
            let (before, after) = bytes.split_at(split.min(bytes.len()));
            prop_assert_eq!(toeplitz.look_up(0, before) ^ toeplitz.look_up(before.len(), after), expected);
            for in_words in [hash_in::<1>, hash_in::<2>, hash_in::<3>, hash_in::<8>] {
                prop_assert_eq!(in_words(&toeplitz, &bytes), expected);
            }
        }

        #[test]
        fn both_directions_of_a_flow_hash_alike_with_the_symmetric_key(
            is_ipv6 in any::<bool>(),
            bytes in prop::array::uniform32(any::<u8>()),
            ports in any::<(u16, u16)>(),
        ) {
            let len = if is_ipv6 { 16 } else { 4 };
            let (here, there) = (&bytes[..len], &bytes[len..2 * len]);
            let (ours, theirs) = (ports.0.to_be_bytes(), ports.1.to_be_bytes());
            let toeplitz = Toeplitz::symmetric();
            let forth = toeplitz.hash(&[here, there, &ours, &theirs].concat());
            let back = toeplitz.hash(&[there, here, &theirs, &ours].concat());
            prop_assert_eq!(forth, back);
        }
    }
}
