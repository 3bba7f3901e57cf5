//! The header layouts for which seal and open have a fast path. In a fast path, the offsets of the headers are
//! constants, known to the compiler.

use super::udp::ESP_HEADER_LEN;
use crate::layout::{
    ETHERNET_HEADER_LEN, FrameLayout, IPV4_HEADER_LEN_MIN as IPV4_HEADER_LEN, IPV6_HEADER_LEN, Network, VLAN_TAG_LEN,
};

/// Length of ESP header and IV on the fast path, in bytes (RFC 4106 3.1).
pub(super) const COMMON_FRONT_LEN: usize = ESP_HEADER_LEN + 8;

/// Offset of the IP header after an Ethernet header without a tag.
const PLAIN: usize = ETHERNET_HEADER_LEN;
/// Offset of the IP header after an Ethernet header with a tag.
const TAGGED: usize = ETHERNET_HEADER_LEN + VLAN_TAG_LEN;
/// Offset of the bytes after an IPv4 header in a frame without a tag.
const PLAIN_IPV4: usize = PLAIN + IPV4_HEADER_LEN;
const TAGGED_IPV4: usize = TAGGED + IPV4_HEADER_LEN;
const PLAIN_IPV6: usize = PLAIN + IPV6_HEADER_LEN;
const TAGGED_IPV6: usize = TAGGED + IPV6_HEADER_LEN;
pub(super) const PLACES_OF_USUAL: [[usize; 3]; 4] = [
    [PLAIN, PLAIN_IPV4, PLAIN_IPV4 + COMMON_FRONT_LEN],
    [TAGGED, TAGGED_IPV4, TAGGED_IPV4 + COMMON_FRONT_LEN],
    [PLAIN, PLAIN_IPV6, PLAIN_IPV6 + COMMON_FRONT_LEN],
    [TAGGED, TAGGED_IPV6, TAGGED_IPV6 + COMMON_FRONT_LEN],
];

/// Calls the method specialized for the given header layout. In this method, the compiler knows the offsets of IP
/// header, transport header or ESP header, and encrypted part.
macro_rules! of_usual {
    ($kind:literal, $this:ident.$method:ident($($argument:expr),*)) => {
        $this.$method::<
            { super::usual::PLACES_OF_USUAL[$kind][0] },
            { super::usual::PLACES_OF_USUAL[$kind][1] },
            { super::usual::PLACES_OF_USUAL[$kind][2] },
        >($($argument),*)
    };
    ($usual:expr, $this:ident.$method:ident($($argument:expr),*)) => {
        match $usual {
            super::usual::Usual::Ipv4 => of_usual!(0, $this.$method($($argument),*)),
            super::usual::Usual::TaggedIpv4 => of_usual!(1, $this.$method($($argument),*)),
            super::usual::Usual::Ipv6 => of_usual!(2, $this.$method($($argument),*)),
            super::usual::Usual::TaggedIpv6 => of_usual!(3, $this.$method($($argument),*)),
        }
    };
}
pub(super) use of_usual;

/// The header layouts of the fast paths. Nearly every frame has one of them: Ethernet with one tag or none, and IP
/// without options or extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usual {
    Ipv4,
    TaggedIpv4,
    Ipv6,
    TaggedIpv6,
}

impl Usual {
    /// Returns the layout of a frame's headers, or `None` if no fast path supports the headers.
    #[inline]
    pub(super) fn of(layout: &FrameLayout) -> Option<Self> {
        match (layout.network, layout.network_start, layout.transport_start) {
            (Network::Ipv4, PLAIN, PLAIN_IPV4) => Some(Self::Ipv4),
            (Network::Ipv4, TAGGED, TAGGED_IPV4) => Some(Self::TaggedIpv4),
            (Network::Ipv6, PLAIN, PLAIN_IPV6) => Some(Self::Ipv6),
            (Network::Ipv6, TAGGED, TAGGED_IPV6) => Some(Self::TaggedIpv6),
            _ => None,
        }
    }
}

/// Moves headers of `len` bytes within a frame. Headers of 32 to 64 bytes are moved with two overlapping loads and
/// stores of constant length.
#[inline]
pub(super) fn move_headers(frame: &mut [u8], from: usize, to: usize, len: usize) {
    const HALF: usize = 32;
    if !(HALF..=2 * HALF).contains(&len) {
        frame.copy_within(from..from + len, to);
        return;
    }
    let headers = &frame[from..from + len];
    let (Some(&first), Some(&last)) = (headers.first_chunk::<HALF>(), headers.last_chunk::<HALF>()) else { return };
    let moved = &mut frame[to..to + len];
    if let Some(place) = moved.first_chunk_mut() {
        *place = first;
    }
    if let Some(place) = moved.last_chunk_mut() {
        *place = last;
    }
}
