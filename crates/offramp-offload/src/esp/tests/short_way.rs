//! Compares the fast paths for frequent header layouts with the general path.

use super::*;
use crate::esp::{EspPacket, OutboundSa};
use crate::frame::Frame;
use crate::layout::{FrameLayout, LengthFrom};
use etherparse::PacketBuilder;
use proptest::prelude::*;

/// Room in front of a frame for sealing in place.
const FRONT: usize = 64;

/// Builds a TCP or UDP frame. Options lengthen the IPv4 header, and a tag lengthens the Ethernet header.
fn frame(is_ipv6: bool, is_udp: bool, is_tagged: bool, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let options = etherparse::Ipv4Options::try_from(options).unwrap();
    let mut v4 = etherparse::Ipv4Header::new(0, 61, etherparse::IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
    v4.options = options;
    let v6 = etherparse::IpHeaders::Ipv6(
        etherparse::Ipv6Header { hop_limit: 9, source: [3; 16], destination: [5; 16], ..Default::default() },
        etherparse::Ipv6Extensions::default(),
    );
    let v4 = etherparse::IpHeaders::Ipv4(v4, etherparse::Ipv4Extensions::default());
    let ip = if is_ipv6 { v6 } else { v4 };
    let step = if is_tagged { link.single_vlan(7.try_into().unwrap()).ip(ip) } else { link.ip(ip) };
    if is_udp {
        step.udp(1, 2).write(&mut frame, payload).unwrap();
    } else {
        step.tcp(1, 2, 3, 4).write(&mut frame, payload).unwrap();
    }
    frame
}

fn senders(config: &SaConfig) -> (OutboundSa, OutboundSa) {
    (OutboundSa::new(config).unwrap(), OutboundSa::new(config).unwrap())
}

/// Opens a packet in separate steps, as threads with a shared association do. The separate steps have no fast path.
fn open_step_by_step(
    receiver: &InboundSa,
    frame: &mut [u8],
    packet: &EspPacket,
) -> Result<super::super::Opened, Refused> {
    let mut frame = Frame::received(frame);
    let sequence = receiver.window().check(packet.sequence)?;
    let decrypted = receiver.opener().decrypt(&mut frame, packet, sequence)?;
    receiver.opener().unwrap(&mut frame, decrypted, sequence)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_usual_packets_are_sealed_and_opened_as_by_the_way_that_all_can_go(
        is_ipv6: bool, is_udp: bool, is_tagged: bool,
        options in 0..4_usize,
        payload in prop_oneof![proptest::collection::vec(any::<u8>(), 0..200), proptest::collection::vec(any::<u8>(), 400..700)],
        suite in 0..4_usize,
        esn: bool, sequence in 0..u64::from(u32::MAX) - 9,
        cut in 0..3_usize, padded in 0..20_usize,
        hard_packets in 1..3_u64,
        protocol: Option<u8>,
    ) {
        let names = ["aes128gcm16", "aes256gcm16", "chacha20poly1305", "aes192gcm16-iiv"];
        let suite = Suite::by_name(names[suite]).unwrap();
        let key = SecretKey::new((0..suite.encryption_key_len() as u8).collect());
        let mut config = SaConfig { esn, sequence, ..SaConfig::new(0x1234, suite, key, SecretKey::none()) };
        config.lifetime.hard_packets = Some(hard_packets);
        let mut clear = frame(is_ipv6, is_udp, is_tagged, &[1; 40][..options * 4], &payload);
        let layout = FrameLayout::parse(&clear, LengthFrom::Ip).unwrap();
        clear.extend(vec![0xaa; padded]);
        // With another `protocol`, the sealed packet has a next header that contradicts its contents. The code that
        // opens packets must handle such a packet.
        let layout = FrameLayout { protocol: protocol.unwrap_or(layout.protocol), ..layout };
        let (mut short, mut any) = senders(&config);

        let room = clear.len() + short.front_len() + short.tail_len_max() - cut * 8;
        let (mut ours, mut expected) = (vec![0xee; room], vec![0xee; room]);
        let sealed = any.seal_any(&clear, &layout, &mut expected);
        let mut clear_bytes = clear.clone();
        let mut clear_frame = Frame::received(&mut clear_bytes);
        clear_frame.narrow(0..clear.len(), layout);
        prop_assert_eq!(short.seal(&clear_frame, &mut ours), sealed);
        let Ok(sealed) = sealed else { return Ok(()) };
        prop_assert_eq!(&ours[..sealed.end], &expected[..sealed.end]);

        let (mut short, mut any) = senders(&config);
        let mut ours = [&[0xcc; FRONT][..], &clear, &vec![0xdd; short.tail_len_max()]].concat();
        let mut in_place = ours.clone();
        let sealed_any = any.seal_any_in_place(&mut in_place, FRONT, &layout).unwrap();
        prop_assert_eq!(short.seal_at(&mut ours, FRONT, &layout), Ok(sealed_any));
        prop_assert_eq!(&ours[sealed_any.start..sealed_any.end], &in_place[sealed_any.start..sealed_any.end]);
        prop_assert_eq!(&ours[..sealed_any.start], &[0xcc; FRONT][..sealed_any.start], "nothing in front is touched");

        let mut line = expected[..sealed.end].to_vec();
        let mut step_by_step = line.clone();
        let esp_at = layout.transport_start;
        let packet = EspPacket { spi: 0x1234, sequence: sealed.sequence as u32, is_encapsulated: false, esp_at };
        let mut receiver = InboundSa::new(&config).unwrap();
        let opened_any = open_step_by_step(&receiver, &mut step_by_step, &packet);
        let opened = receiver.open(&mut Frame::received(&mut line), &packet);
        prop_assert_eq!(receiver.packets(), 1);
        match (opened, opened_any) {
            (Ok(opened), Ok(expected)) => {
                prop_assert_eq!(super::super::Opened { event: None, ..opened }, expected);
                prop_assert_eq!(&line[opened.start..opened.end], &step_by_step[expected.start..expected.end]);
                prop_assert_eq!(opened.event.is_some(), hard_packets == 1);
            }
            (opened, expected) => prop_assert_eq!(opened, expected),
        }
    }
}
