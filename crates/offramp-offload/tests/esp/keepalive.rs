//! Tests of NAT-keepalives (RFC 3948 2.3), parsed with `etherparse`.

use crate::bench::{arrival_of, clear, config, gcm, modes, seal};
use crate::support::addresses;
use crate::support::packet::Packet;
use etherparse::{SlicedPacket, TransportSlice};
use offramp_offload::esp::{Arrival, OutboundSa, SaConfig, UdpPorts, write_keepalive};
use offramp_offload::frame::Frame;

#[test]
fn a_keepalive_is_a_valid_datagram_of_one_byte_from_the_same_port_to_the_same_port() {
    let udp = UdpPorts { source: 61_000, destination: 4500 };
    for mode in modes() {
        for is_ipv6 in [false, true] {
            let config = SaConfig { mode, udp: Some(udp), ..config(gcm()) };
            let mut sender = OutboundSa::with_library(&config, crate::library()).unwrap();
            let inner = Packet { is_ipv6, ip_options: vec![1; 4], tags: vec![(0x8100, 5)], ..Packet::tcp(40) };
            let sealed = seal(&mut sender, &inner.build());
            let mut keepalive = vec![7; 3];
            write_keepalive(&Frame::received(&mut sealed.clone()), &mut keepalive).unwrap();
            let judge = SlicedPacket::from_ethernet(&keepalive).unwrap();
            let Some(TransportSlice::Udp(datagram)) = &judge.transport else { panic!("{judge:?}") };
            assert_eq!((datagram.source_port(), datagram.destination_port()), (61_000, 4500));
            assert_eq!(datagram.payload(), [0xff]);
            let net = judge.net.unwrap();
            if let Some(ip) = net.ipv4_ref() {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                assert_eq!((header.total_len, header.dont_fragment, datagram.checksum()), (29, true, 0));
            } else if let Some(ip) = net.ipv6_ref() {
                let header = datagram.to_header();
                let expected = header.calc_checksum_ipv6(&ip.header().to_header(), datagram.payload()).unwrap();
                assert_eq!(datagram.checksum(), expected);
            }
            assert_eq!(addresses(&sealed), addresses(&keepalive));
            assert_eq!(arrival_of(&keepalive, Some(4500)), Ok(Arrival::Keepalive));
        }
    }
}

#[test]
fn of_a_packet_that_is_not_in_udp_there_is_no_keepalive() {
    let sealed = seal(&mut OutboundSa::with_library(&config(gcm()), crate::library()).unwrap(), &clear(40, false));
    let mut keepalive = vec![7; 3];
    assert_eq!(write_keepalive(&Frame::received(&mut sealed.clone()), &mut keepalive), None);
    assert!(keepalive.is_empty());
}
