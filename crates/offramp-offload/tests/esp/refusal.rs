//! Tests that every invalid packet is refused with the correct reason.

use crate::bench::{
    SPI, address, arrival_of, clear, config, esp_of, every_config, gcm, key, layout, modes, open, pair, seal,
};
use crate::support::packet::{Checksum, DESTINATION, Packet};
use offramp_offload::checksum;
use offramp_offload::esp::{
    Arrival, InboundSa, KEEPALIVE, Mode, NON_ESP_MARKER, OutboundSa, Prefix, Refused, SaConfig, SaTable, Selector,
    Suite, UDP_ENCAPSULATION_PORT, UdpPorts,
};
use offramp_offload::frame::Frame;
use offramp_offload::layout::FrameLayout;
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use proptest::prelude::*;
use std::net::IpAddr;

/// Returns the table's verdict on a frame from the wire, or `None` for a frame that is no longer ESP.
fn judge(table: &mut SaTable, frame: &[u8]) -> Option<Result<Vec<u8>, Refused>> {
    let mut frame = frame.to_vec();
    let mut opening = Frame::received(&mut frame);
    opening.layout().ok()?;
    match Arrival::of(&opening, Some(UDP_ENCAPSULATION_PORT)) {
        Ok(Arrival::Esp(packet)) => {
            let opened = table.open(&mut opening, &packet);
            Some(opened.map(|opened| frame[opened.start..opened.end].to_vec()))
        }
        Ok(_) => None,
        Err(reason) => {
            table.count(reason);
            Some(Err(reason))
        }
    }
}

fn table_of(config: &SaConfig) -> SaTable {
    let mut table = SaTable::with_library(crate::library());
    table.insert(config).unwrap();
    table
}

#[test]
fn a_packet_with_any_one_byte_changed_is_refused_and_counted_by_reason() {
    for config in every_config() {
        let (mut sender, mut table) = (OutboundSa::with_library(&config, crate::library()).unwrap(), table_of(&config));
        let frame = clear(23, false);
        for _ in 0..6 {
            seal(&mut sender, &frame);
        }
        let sealed = seal(&mut sender, &frame);
        let esp_at = esp_of(&sealed).1.esp_at;
        let (mut spi, mut tag) = (0, 0);
        for at in esp_at..sealed.len() {
            for bit in [0x01, 0x80] {
                let mut tampered = sealed.clone();
                tampered[at] ^= bit;
                let expected = if at < esp_at + 4 { Refused::UnknownSpi } else { Refused::BadTag };
                *(if at < esp_at + 4 { &mut spi } else { &mut tag }) += 1;
                assert_eq!(
                    judge(&mut table, &tampered),
                    Some(Err(expected)),
                    "{config:?}, byte {at} of {}",
                    sealed.len()
                );
            }
        }
        let counted = (table.refused().of(Refused::UnknownSpi), table.refused().of(Refused::BadTag));
        assert_eq!((counted, table.refused().total()), ((spi, tag), spi + tag));
        assert_eq!(judge(&mut table, &sealed), Some(Ok(frame)), "the genuine one is still taken: {config:?}");
    }
}

#[test]
fn no_changed_byte_of_an_outer_ipv4_header_lets_a_packet_through() {
    for config in modes().map(|mode| SaConfig { mode, ..config(gcm()) }) {
        let (mut sender, mut table) = (OutboundSa::with_library(&config, crate::library()).unwrap(), table_of(&config));
        let sealed = seal(&mut sender, &clear(23, false));
        if sealed[12] != 8 {
            continue;
        }
        for at in 14..34 {
            let mut tampered = sealed.clone();
            tampered[at] ^= 1;
            if let Some(judged) = judge(&mut table, &tampered) {
                let reason = judged.expect_err("a changed byte");
                assert!(
                    matches!(reason, Refused::Malformed | Refused::UnknownSpi | Refused::Fragment),
                    "byte {at}: {reason}"
                );
            }
        }
        assert!(matches!(judge(&mut table, &sealed), Some(Ok(_))), "the window has not moved");
    }
}

#[test]
fn a_packet_cut_short_anywhere_is_refused() {
    for config in every_config().into_iter().step_by(7) {
        let (mut sender, mut receiver) = pair(&config);
        let sealed = seal(&mut sender, &clear(40, false));
        let (whole, packet) = esp_of(&sealed);
        for end in packet.esp_at + 8..sealed.len() {
            let mut cut = sealed[..end].to_vec();
            // The IP length field of a super-frame can have any value: the packet ends at the end of the bytes,
            // regardless of the header.
            let segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, 1));
            let mut cut = Frame::new(&mut cut, TxMeta { segmentation, checksum: None });
            assert_eq!(cut.layout(), Ok(&FrameLayout { packet_end: end, ..whole }));
            let reason = receiver.open(&mut cut, &packet).unwrap_err();
            assert!(matches!(reason, Refused::Malformed | Refused::BadTag), "{config:?}: {reason}");
        }
        assert!(open(&mut receiver, &sealed).is_ok());
    }
}

#[test]
fn esp_that_ends_in_its_own_header_is_malformed() {
    let header = [&[2; 12][..], &[8, 0, 0x45, 0, 0, 27, 0, 0, 0, 0, 64, 50, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]].concat();
    let frame = [&header[..], &[0x12, 0x34, 0x56, 0x78, 0, 0, 0]].concat();
    assert_eq!(arrival_of(&frame, None), Err(Refused::Malformed));
}

#[test]
fn a_fragment_of_a_protected_packet_is_never_decrypted() {
    let (mut sender, _) = pair(&config(gcm()));
    let mut table = table_of(&config(gcm()));
    for bits in [0x20, 0x01] {
        let mut sealed = seal(&mut sender, &clear(40, false));
        sealed[if bits == 0x20 { 20 } else { 21 }] |= bits;
        assert_eq!(judge(&mut table, &sealed), Some(Err(Refused::Fragment)));
    }
    assert_eq!(table.refused().of(Refused::Fragment), 2);
}

#[test]
fn a_packet_to_another_address_than_its_association_names_has_an_unknown_spi() {
    for mode in modes() {
        let destination = if mode == Mode::Transport { Some(address("10.9.0.2")) } else { None };
        let config = SaConfig { mode, destination, ..config(gcm()) };
        let sealed = seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &clear(40, false));
        assert!(matches!(judge(&mut table_of(&config), &sealed), Some(Ok(_))), "{mode:?}");
        let elsewhere = SaConfig { destination: Some(address("10.9.0.3")), ..config };
        assert_eq!(judge(&mut table_of(&elsewhere), &sealed), Some(Err(Refused::UnknownSpi)));
    }
}

#[test]
fn encapsulation_that_does_not_agree_with_the_association_is_against_its_policy() {
    for (sends, expects) in [(Some(UdpPorts::default()), None), (None, Some(UdpPorts::default()))] {
        let sealed = seal(
            &mut OutboundSa::with_library(&SaConfig { udp: sends, ..config(gcm()) }, crate::library()).unwrap(),
            &clear(40, false),
        );
        let mut table = table_of(&SaConfig { udp: expects, ..config(gcm()) });
        assert_eq!(judge(&mut table, &sealed), Some(Err(Refused::Policy)));
    }
}

#[test]
fn keepalives_and_ike_are_distinguished_from_esp_and_from_other_traffic() {
    let udp =
        |port, payload: &[u8]| Packet { ports: (4500, port), payload: payload.to_vec(), ..Packet::udp(0) }.build();
    let judged = |frame: Vec<u8>, port| arrival_of(&frame, port);
    let port = Some(UDP_ENCAPSULATION_PORT);
    assert_eq!(judged(udp(4500, &KEEPALIVE), port), Ok(Arrival::Keepalive));
    assert_eq!(judged(udp(4500, &[&NON_ESP_MARKER[..], b"ike"].concat()), port), Ok(Arrival::Ike));
    assert_eq!(judged(udp(4500, &[1, 2, 3, 4, 0, 0, 0]), port), Err(Refused::Malformed));
    assert_eq!(judged(udp(4500, b""), port), Err(Refused::Malformed));
    assert_eq!(judged(udp(4501, &[1; 40]), port), Ok(Arrival::Clear));
    assert_eq!(judged(udp(4500, &[1; 40]), None), Ok(Arrival::Clear));
    assert!(matches!(judged(udp(4500, &[1; 40]), port), Ok(Arrival::Esp(packet)) if packet.is_encapsulated));
    assert_eq!(judged(Packet::tcp(40).build(), port), Ok(Arrival::Clear));
    assert_eq!(judged([&[2; 12][..], &[8, 6], &[0; 28]].concat(), port), Ok(Arrival::Clear));
}

/// Parses a network. Returns `None` if `len` exceeds the address length.
fn prefix(text: &str, len: u8) -> Option<Prefix> {
    Prefix::new(text.parse::<IpAddr>().unwrap(), len)
}

#[test]
fn what_the_selector_does_not_name_is_refused_although_it_is_genuine() {
    let fits = Selector {
        source: prefix("10.9.0.0", 24),
        destination: prefix("10.9.0.2", 32),
        protocol: Some(6),
        source_ports: Some(1000..=1111),
        destination_ports: Some(2222..=2222),
    };
    let misfits = [
        Selector { source: prefix("10.8.0.0", 16), ..fits.clone() },
        Selector { source: prefix("fd09::", 16), ..fits.clone() },
        Selector { destination: prefix("10.9.0.3", 32), ..fits.clone() },
        Selector { protocol: Some(17), ..fits.clone() },
        Selector { source_ports: Some(1..=1110), ..fits.clone() },
        Selector { destination_ports: Some(2223..=65535), ..fits.clone() },
    ];
    for mode in modes() {
        let with = |selector: &Selector| SaConfig { mode, selector: selector.clone(), ..config(gcm()) };
        let (mut sender, mut receiver) = pair(&with(&fits));
        let sealed = seal(&mut sender, &clear(40, false));
        assert!(open(&mut receiver, &sealed).is_ok(), "{mode:?}");
        for misfit in &misfits {
            let mut table = table_of(&with(misfit));
            assert_eq!(judge(&mut table, &sealed), Some(Err(Refused::Policy)), "{mode:?} {misfit:?}");
            assert_eq!(judge(&mut table, &sealed), Some(Err(Refused::Replayed)), "its number is used up");
        }
    }
    assert_eq!(prefix("10.0.0.0", 33), None);
    assert!(prefix("::", 0).unwrap().contains(address("fd00::1")));
    assert!(Prefix::of(address("fd00::1")).contains(address("fd00::1")));
}

/// Segments a datagram into fragments of `size` bytes each.
fn fragments(datagram: &Packet, size: u16) -> Vec<Vec<u8>> {
    let mut frame = datagram.build();
    let segmentation = Some(Segmentation::new(SegmentationKind::UdpFragments, size));
    let checksum = Some(PartialChecksum { start: layout(&frame).transport_start as u16, offset: 6 });
    let frame = Frame::new(&mut frame, TxMeta { checksum, segmentation });
    let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).unwrap();
    let mut fragments = Vec::new();
    while plan.frames_left() > 0 {
        let mut fragment = vec![0; plan.next_len()];
        plan.write_next(&frame, &mut fragment);
        fragments.push(fragment);
    }
    fragments
}

/// Truncates the frame after the fixed part of its IP header, so that the frame has no layout.
fn without_payload(frame: &[u8]) -> Vec<u8> {
    let cut = frame[..if frame[12] == 8 { 34 } else { 54 }].to_vec();
    assert!(crate::support::layout(&cut).is_err());
    cut
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_fragment_of_a_datagram_that_a_selector_names_may_be_one_that_it_names(
        is_ipv6: bool,
        has_options: bool,
        ports in (1000..1004_u16, 2000..2004_u16),
        wanted in (1000..1004_u16, 2000..2004_u16),
        protocol in prop_oneof![Just(None), Just(Some(17)), Just(Some(6))],
        units in 1..40_u16,
    ) {
        let extensions = if is_ipv6 && has_options { vec![(DESTINATION, vec![0, 1, 4, 0, 0, 0, 0])] } else { vec![] };
        let datagram = Packet {
            is_ipv6, is_udp: true, ports, extensions, checksum: Checksum::Partial, ..Packet::tcp(700)
        };
        let mut bytes = datagram.build();
        let mut malformed = without_payload(&bytes);
        let frame = Frame::received(&mut bytes);
        let selector = Selector {
            protocol,
            source_ports: Some(wanted.0..=1003),
            destination_ports: Some(2000..=wanted.1),
            ..Selector::default()
        };
        let is_named = selector.matches(&frame);
        prop_assert_eq!(is_named, selector.may_match(&frame), "a whole packet shows everything");
        prop_assert!(!is_named || selector.may_match(&Frame::received(&mut malformed)));
        for mut bytes in fragments(&datagram, units * 8) {
            let mut malformed = without_payload(&bytes);
            let fragment = Frame::received(&mut bytes);
            prop_assert!(!selector.matches(&fragment), "it shows no ports");
            prop_assert!(!is_named || selector.may_match(&fragment));
            // A selector with another protocol or other addresses does not match the fragments.
            let elsewhere = Selector { source: Some(Prefix::of(address("9.9.9.9"))), ..selector.clone() };
            prop_assert!(!elsewhere.may_match(&fragment));
            prop_assert!(!elsewhere.may_match(&Frame::received(&mut malformed)));
            prop_assert!(protocol != Some(6) || !selector.may_match(&fragment));
        }
    }
}

/// Builds a packet with NULL encryption and HMAC-SHA-256 around any `body`, without the sealing code. Returns the
/// receiver and the packet.
fn handmade(mode: Mode, body: &[u8]) -> (InboundSa, Vec<u8>) {
    let suite = Suite::by_name("null-sha256").unwrap();
    let config = SaConfig { mode, ..config(suite) };
    let mut sealed = seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &clear(0, false));
    let esp_at = esp_of(&sealed).1.esp_at;
    sealed.truncate(esp_at + 8);
    sealed.extend_from_slice(body);
    let bytes: Vec<u8> = (0..32_u8).map(|n| 101_u8.wrapping_add(n.wrapping_mul(7))).collect();
    assert_eq!(config.integrity_key, key(32, 101));
    let tag =
        aws_lc_rs::hmac::sign(&aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &bytes), &sealed[esp_at..]);
    sealed.extend_from_slice(&tag.as_ref()[..16]);
    let len = (sealed.len() - 14) as u16;
    sealed[16..18].copy_from_slice(&len.to_be_bytes());
    sealed[24..26].fill(0);
    let sum = checksum::sum(&sealed[14..34]).checksum();
    sealed[24..26].copy_from_slice(&sum.to_be_bytes());
    (InboundSa::with_library(&config, crate::library()).unwrap(), sealed)
}

fn open_handmade(mode: Mode, body: &[u8]) -> Result<Vec<u8>, Refused> {
    let (mut sa, sealed) = handmade(mode, body);
    let opened = open(&mut sa, &sealed);
    assert_eq!(sa.window().highest(), 1, "a genuine packet moves the window, whatever is inside");
    opened
}

#[test]
fn a_dummy_packet_is_thrown_away_and_uses_up_its_number() {
    for mode in &modes()[..2] {
        assert_eq!(open_handmade(*mode, &[0xaa, 0xbb, 0, 59]), Err(Refused::Dummy));
        assert_eq!(open_handmade(*mode, &[1, 2, 2, 59]), Err(Refused::Dummy));
    }
}

#[test]
fn wrong_padding_and_trailers_are_malformed() {
    // The packets carry ICMP, so that only the trailer can be wrong.
    assert!(open_handmade(Mode::Transport, &[1, 2, 2, 1]).is_ok());
    for body in [&[9, 9, 2, 1][..], &[2, 1, 2, 1], &[1, 2, 255, 1], &[1, 2, 3, 1], &[0; 3], &[0], &[]] {
        let (mut sa, sealed) = handmade(Mode::Transport, body);
        assert_eq!(open(&mut sa, &sealed), Err(Refused::Malformed), "{body:?}");
        assert_eq!((sa.opener().spi(), sa.packets()), (SPI, u64::from(body.len() % 4 == 0 && !body.is_empty())));
    }
}

#[test]
fn a_tunnel_carries_ip_and_nothing_else() {
    let tunnel = modes()[1];
    assert_eq!(
        open_handmade(tunnel, &[0xaa; 20].iter().chain(&[1, 2, 2, 6]).copied().collect::<Vec<_>>()),
        Err(Refused::Policy)
    );
    // The inner packet is truncated, or its version differs from the trailer's next header.
    assert_eq!(open_handmade(tunnel, &[0x45, 0, 0, 0, 1, 2, 2, 4]), Err(Refused::Malformed));
    let inner = clear(2, false)[14..].to_vec();
    assert_eq!(open_handmade(tunnel, &[&inner[..], &[0, 41]].concat()), Err(Refused::Malformed));
    assert!(open_handmade(tunnel, &[&inner[..], &[0, 4]].concat()).is_ok());
}

#[test]
fn padding_against_traffic_analysis_is_cut_off_by_the_length_inside() {
    let (tcp, udp) = (clear(10, false), Packet::udp(10).build());
    let tfc = [0x77; 500];
    let tunnel_body = [&tcp[14..], &tfc, &[1, 2, 2, 4]].concat();
    let body_len = tunnel_body.len() - 4;
    let aligned = [&tunnel_body[..body_len - (body_len + 4) % 4], &[1, 2, 2, 4]].concat();
    assert_eq!(open_handmade(modes()[1], &aligned), Ok(tcp));
    // In transport mode, only UDP has a length field. 18 + 500 + 2 bytes are aligned.
    let opened = open_handmade(Mode::Transport, &[&udp[34..], &tfc, &[0, 17]].concat()).unwrap();
    assert_eq!(opened[34..], udp[34..]);
    assert_eq!(layout(&opened).payload_len(), 10);
    let too_long = [&udp[34..38], &[0, 99], &udp[40..], &[0, 17]].concat();
    assert_eq!(open_handmade(Mode::Transport, &too_long), Err(Refused::Malformed));
}

#[test]
fn a_packet_of_another_spi_is_refused_although_the_keys_are_the_same() {
    for suite in Suite::all() {
        let other = SaConfig { spi: SPI + 1, ..config(suite) };
        let sealed = seal(&mut OutboundSa::with_library(&other, crate::library()).unwrap(), &clear(40, false));
        let (_, mut receiver) = pair(&config(suite));
        assert_eq!(open(&mut receiver, &sealed), Err(Refused::UnknownSpi), "{suite}");
        assert_eq!(receiver.window().highest(), 0);
    }
}

#[test]
fn the_upper_half_of_an_extended_number_is_covered_by_the_check_of_every_suite() {
    for config in every_config().into_iter().filter(|config| config.esn) {
        let sealed = seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &clear(40, false));
        let ahead = SaConfig { sequence: 1 << 32, ..config.clone() };
        let mut receiver = InboundSa::with_library(&ahead, crate::library()).unwrap();
        assert_eq!(open(&mut receiver, &sealed), Err(Refused::BadTag), "{config:?}");
        assert_eq!(receiver.window().highest(), 1 << 32);
    }
}
