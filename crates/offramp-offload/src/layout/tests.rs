use super::*;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1000, 2000)
        .write(&mut frame, payload)
        .unwrap();
    frame
}

/// Builds Ethernet, then `headers` IPv6 destination-options headers of 8 bytes, then 8 bytes of UDP.
fn extended_frame(headers: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
    let payload_len = (headers * 8 + UDP_HEADER_LEN) as u16;
    frame.extend_from_slice(&[0x60, 0, 0, 0]);
    frame.extend_from_slice(&payload_len.to_be_bytes());
    frame.extend_from_slice(&[if headers == 0 { PROTOCOL_UDP } else { NEXT_HEADER_DESTINATION }, 64]);
    frame.extend_from_slice(&[0xfd; 32]);
    for n in 1..=headers {
        let next = if n == headers { PROTOCOL_UDP } else { NEXT_HEADER_DESTINATION };
        frame.extend_from_slice(&[next, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend_from_slice(&[3, 232, 7, 208, 0, 8, 0, 0]);
    frame
}

#[test]
fn padding_of_a_short_frame_is_known_from_the_ip_length() {
    let mut frame = udp_frame(b"x");
    let packet_end = frame.len();
    frame.resize(60, 0xaa);
    let layout = FrameLayout::parse(&frame, LengthFrom::Ip).unwrap();
    assert_eq!((layout.packet_end, layout.payload_len()), (packet_end, 1));
}

#[test]
fn up_to_two_vlan_tags_are_looked_through_and_a_third_hides_the_packet() {
    for tags in 0..4 {
        let mut frame = udp_frame(b"hello");
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        }
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip).unwrap();
        let expected = if tags <= VLAN_TAGS_MAX { Transport::Udp } else { Transport::Opaque };
        assert_eq!(layout.transport, expected, "{tags} tags");
        assert_eq!(layout.network_start, 14 + 4 * tags.min(2));
    }
}

#[test]
fn two_hundred_extension_headers_are_refused() {
    let layout = FrameLayout::parse(&extended_frame(EXTENSION_HEADERS_MAX), LengthFrom::Ip).unwrap();
    assert_eq!(layout.transport, Transport::Udp);
    assert_eq!(layout.transport_start, 14 + 40 + 8 * EXTENSION_HEADERS_MAX);
    assert_eq!(FrameLayout::parse(&extended_frame(200), LengthFrom::Ip), Err(Malformed::ExtensionHeaders));
}

#[test]
fn a_fragment_is_known_as_one_and_its_bytes_are_not_taken_for_a_header() {
    for bits in [0x2000_u16, 0x0001, 0x2001] {
        let mut frame = udp_frame(b"hello");
        frame[20..22].copy_from_slice(&bits.to_be_bytes());
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip).unwrap();
        assert!(layout.fragment);
        assert_eq!(layout.transport, Transport::Opaque);
    }
    let mut frame = udp_frame(b"hello");
    frame[20..22].copy_from_slice(&0x4000_u16.to_be_bytes());
    assert!(!FrameLayout::parse(&frame, LengthFrom::Ip).unwrap().fragment, "DF makes no fragment");
}

#[test]
fn lengths_that_lie_are_refused() {
    let frame = udp_frame(b"hello");
    let lie = |at: usize, value: u8| {
        let mut frame = frame.clone();
        frame[at] = value;
        FrameLayout::parse(&frame, LengthFrom::Ip)
    };
    assert_eq!(lie(14, 0x44), Err(Malformed::HeaderLength), "IPv4 header of 16 bytes");
    assert_eq!(lie(14, 0x4f), Err(Malformed::Truncated), "IPv4 header longer than the frame");
    assert_eq!(lie(14, 0x65), Err(Malformed::Version), "version 6 behind IPv4's EtherType");
    assert_eq!(lie(17, 255), Err(Malformed::Length), "IPv4 total length beyond the frame");
    assert_eq!(lie(17, 10), Err(Malformed::Length), "IPv4 total length below its header");
    assert_eq!(lie(39, 200), Err(Malformed::Length), "UDP length beyond the packet");
    assert_eq!(lie(39, 9), Err(Malformed::Length), "UDP length short of the packet");
}

#[test]
fn a_super_frame_takes_its_length_from_the_buffer() {
    let mut frame = udp_frame(&[7; 3000]);
    frame[16..18].copy_from_slice(&[0, 0]);
    assert_eq!(FrameLayout::parse(&frame, LengthFrom::Ip), Err(Malformed::Length));
    let layout = FrameLayout::parse(&frame, LengthFrom::Frame).unwrap();
    assert_eq!((layout.packet_end, layout.payload_len()), (frame.len(), 3000));
}

proptest! {
    #[test]
    fn offsets_are_ordered_and_inside_the_frame_whatever_the_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        kind in 0..4_u8,
        from_frame: bool,
    ) {
        let mut bytes = bytes;
        if bytes.len() > 14 && kind > 0 {
            let ethertype = [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN][usize::from(kind) - 1];
            bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            bytes[14] = match kind { 1 => 0x45, 2 => 0x60, _ => bytes[14] };
        }
        let from = if from_frame { LengthFrom::Frame } else { LengthFrom::Ip };
        if let Ok(l) = FrameLayout::parse(&bytes, from) {
            prop_assert!(l.network_start <= l.transport_start && l.transport_start <= l.payload_start);
            prop_assert!(l.payload_start <= l.packet_end && l.packet_end <= bytes.len());
            prop_assert!(l.protocol_at <= l.packet_end);
            prop_assert!(l.transport == Transport::Opaque || l.network != Network::Opaque);
        }
    }

    #[test]
    fn an_independent_parser_finds_the_same_headers(
        payload in proptest::collection::vec(any::<u8>(), 0..64),
        version6: bool, tcp: bool, options in 0..4_usize, vlan: bool,
    ) {
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        let tcp_options = vec![1_u8; options * 4];
        macro_rules! finish {
            ($ip:expr) => {
                if tcp {
                    $ip.tcp(1, 2, 3, 4).options_raw(&tcp_options).unwrap().write(&mut frame, &payload).unwrap();
                } else {
                    $ip.udp(1, 2).write(&mut frame, &payload).unwrap();
                }
            };
        }
        match (version6, vlan) {
            (false, false) => finish!(link.ipv4([1; 4], [2; 4], 9)),
            (false, true) => finish!(link.single_vlan(5.try_into().unwrap()).ipv4([1; 4], [2; 4], 9)),
            (true, false) => finish!(link.ipv6([1; 16], [2; 16], 9)),
            (true, true) => finish!(link.single_vlan(5.try_into().unwrap()).ipv6([1; 16], [2; 16], 9)),
        }
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip).unwrap();
        let judge = SlicedPacket::from_ethernet(&frame).unwrap();
        prop_assert_eq!(matches!(judge.net, Some(NetSlice::Ipv6(_))), layout.network == Network::Ipv6);
        let (judge_payload, judge_is_tcp) = match judge.transport {
            Some(TransportSlice::Tcp(t)) => (t.payload(), true),
            Some(TransportSlice::Udp(u)) => (u.payload(), false),
            _ => panic!("no transport"),
        };
        prop_assert_eq!(judge_is_tcp, layout.transport == Transport::Tcp);
        prop_assert_eq!(&frame[layout.payload_start..layout.packet_end], judge_payload);
    }
}
