//! Tests of a tunnel's outer header, and of the effects of congestion marks.

use crate::bench::{address, clear, config, gcm, layout, open, pair, seal};
use crate::support::packet::{DF, Packet};
use etherparse::{NetSlice, SlicedPacket};
use offramp_offload::checksum;
use offramp_offload::esp::{DfRule, DscpRule, EcnRule, Mode, OutboundSa, Refused, SaConfig, Tunnel, UdpPorts};
use offramp_offload::frame::Frame;

fn tunnel(is_ipv6: bool) -> Tunnel {
    if is_ipv6 {
        Tunnel::new(address("2001:db8::1"), address("2001:db8::2"))
    } else {
        Tunnel::new(address("192.0.2.1"), address("192.0.2.2"))
    }
}

fn sealed_through(tunnel: Tunnel, inner: &Packet) -> Vec<u8> {
    let config = SaConfig { mode: Mode::Tunnel(tunnel), ..config(gcm()) };
    seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &inner.build())
}

#[test]
fn the_outer_header_is_that_of_the_tunnel_and_valid() {
    for udp in [None, Some(UdpPorts { source: 4500, destination: 61_000 })] {
        for is_ipv6 in [false, true] {
            let tunnel = Tunnel { hop_limit: 17, ..tunnel(is_ipv6) };
            let config = SaConfig { mode: Mode::Tunnel(tunnel), udp, ..config(gcm()) };
            let sealed = seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &clear(33, !is_ipv6));
            let judge = SlicedPacket::from_ethernet(&sealed).unwrap();
            match judge.net.unwrap() {
                NetSlice::Ipv4(ip) => {
                    let header = ip.header();
                    assert_eq!((header.source(), header.destination()), ([192, 0, 2, 1], [192, 0, 2, 2]));
                    assert_eq!((header.ttl(), header.protocol().0), (17, if udp.is_some() { 17 } else { 50 }));
                    assert_eq!(usize::from(header.total_len()), sealed.len() - 14);
                    assert!(Frame::received(&mut sealed.clone()).has_good_ipv4_header());
                }
                NetSlice::Ipv6(ip) => {
                    assert_eq!(ip.header().destination_addr(), address("2001:db8::2"));
                    assert_eq!(ip.header().hop_limit(), 17);
                    assert_eq!(usize::from(ip.header().payload_length()), sealed.len() - 54);
                }
                NetSlice::Arp(other) => panic!("{other:?}"),
            }
            if let Some(ports) = udp {
                let at = layout(&sealed).transport_start;
                assert_eq!(sealed[at..at + 2], ports.source.to_be_bytes());
                assert_eq!(sealed[at + 2..at + 4], ports.destination.to_be_bytes());
                assert_eq!(sealed[at + 6..at + 8] == [0, 0], !is_ipv6, "no checksum over IPv4, one over IPv6");
            }
        }
    }
}

#[test]
fn the_dont_fragment_bit_is_copied_set_or_cleared() {
    let with_df = Packet { fragment: DF, ..Packet::tcp(9) };
    let of_ipv6 = Packet { is_ipv6: true, ..Packet::tcp(9) };
    let cases = [
        (DfRule::Copy, [true, false, true]),
        (DfRule::Set, [true, true, true]),
        (DfRule::Clear, [false, false, false]),
    ];
    for (df, expected) in cases {
        for (inner, expected) in [&with_df, &Packet::tcp(9), &of_ipv6].into_iter().zip(expected) {
            let sealed = sealed_through(Tunnel { df, ..tunnel(false) }, inner);
            assert_eq!(sealed[20] & 0x40 != 0, expected, "{df:?}");
            assert_eq!(sealed[18..20] != [0, 0], !expected, "what may be fragmented has an ID");
        }
    }
}

#[test]
fn dscp_and_ecn_are_copied_set_or_left_out_and_the_inner_ones_stay() {
    for is_ipv6 in [false, true] {
        for outer_is_ipv6 in [false, true] {
            for class in [0, 0b1011_1001, 0b1011_1010, 0b1011_1011, 0xff] {
                let inner = Packet { is_ipv6, class, ..Packet::tcp(9) };
                let class_through = |tunnel| {
                    let sealed = sealed_through(tunnel, &inner);
                    if outer_is_ipv6 { sealed[14] << 4 | sealed[15] >> 4 } else { sealed[15] }
                };
                let plain = tunnel(outer_is_ipv6);
                assert_eq!(class_through(plain), class);
                assert_eq!(class_through(Tunnel { dscp: DscpRule::Set(46), ..plain }), 46 << 2 | class & 3);
                assert_eq!(class_through(Tunnel { ecn: EcnRule::Compatibility, ..plain }), class & 0xfc);
                let (mut sender, mut receiver) =
                    pair(&SaConfig { mode: Mode::Tunnel(Tunnel { dscp: DscpRule::Set(1), ..plain }), ..config(gcm()) });
                let frame = inner.build();
                assert_eq!(open(&mut receiver, &seal(&mut sender, &frame)), Ok(frame), "the inner DSCP stays");
            }
        }
    }
}

/// Marks congestion in the outer header of a sealed frame, as a router does.
fn mark_congestion(sealed: &mut [u8]) {
    if sealed[12] == 8 {
        sealed[15] |= 3;
        sealed[24..26].fill(0);
        let sum = checksum::sum(&sealed[14..34]).checksum();
        sealed[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        sealed[15] |= 0x30;
    }
}

#[test]
fn congestion_on_the_way_reaches_an_inner_packet_that_can_say_so_and_drops_one_that_cannot() {
    for is_ipv6 in [false, true] {
        for outer_is_ipv6 in [false, true] {
            for ecn in 0..4 {
                let config = SaConfig { mode: Mode::Tunnel(tunnel(outer_is_ipv6)), ..config(gcm()) };
                let (mut sender, mut receiver) = pair(&config);
                let inner = Packet { class: 0xb8 | ecn, is_ipv6, ..Packet::tcp(9) };
                let mut sealed = seal(&mut sender, &inner.build());
                mark_congestion(&mut sealed);
                let marked = Packet { class: 0xbb, ..inner };
                let expected = if ecn == 0 { Err(Refused::Congestion) } else { Ok(marked.build()) };
                assert_eq!(open(&mut receiver, &sealed), expected, "ECN {ecn}");
            }
        }
    }
}
