//! Tests that each sealed frame opens to the original frame.

use crate::bench::{SPI, clear, config, esp_of, every_config, gcm, layout, modes, open, open_whole, pair, seal};
use crate::support::packet::{DESTINATION, FRAGMENT, HOP_BY_HOP, Packet, ROUTING};
use offramp_offload::checksum;
use offramp_offload::esp::{Mode, OutboundSa, SaConfig, SealRefused, Suite, UdpPorts};
use offramp_offload::frame::Frame;
use offramp_offload::meta::ChecksumState;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Payload lengths in bytes: every length of padding, empty payload, and full frames.
const PAYLOAD_LENS: [usize; 22] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 63, 64, 1400, 8900];

#[test]
fn every_suite_mode_and_ip_version_gives_back_what_was_sealed_in_both_ways_of_sealing() {
    for config in every_config() {
        let (mut sender, mut receiver) = pair(&config);
        let mut other_sender = OutboundSa::with_library(&config, crate::library()).unwrap();
        for is_ipv6 in [false, true] {
            for payload_len in PAYLOAD_LENS {
                let frame = clear(payload_len, is_ipv6);
                let sealed = seal(&mut sender, &frame);
                assert_eq!(seal_in_place(&mut other_sender, &frame), sealed, "{config:?}");
                assert_ne!(Frame::received(&mut sealed.clone()).verify(), ChecksumState::Bad, "{config:?}");
                assert_eq!(open(&mut receiver, &sealed), Ok(frame), "{config:?}, {payload_len} bytes");
            }
        }
    }
}

/// Seals a frame in place, with only the required room around the frame.
fn seal_in_place(sa: &mut OutboundSa, frame: &[u8]) -> Vec<u8> {
    let front_len = sa.front_len();
    let sealed_len = sa.sealed_len(&Frame::received(&mut frame.to_vec())).unwrap();
    assert!(sealed_len <= front_len + frame.len() + sa.tail_len_max());
    let mut buffer = vec![0xee; sealed_len];
    buffer[front_len..front_len + frame.len()].copy_from_slice(frame);
    let sealed = sa.seal_in_place(&mut buffer, front_len).unwrap();
    assert_eq!((sealed.start, sealed.end), (0, sealed_len));
    buffer
}

#[test]
fn no_clear_byte_is_left_in_an_encrypted_packet() {
    let mut frame = clear(64, false);
    frame[54..].fill(0x5a);
    for config in
        every_config().into_iter().filter(|c| !c.suite.name().contains("null") && !c.suite.name().contains("gmac"))
    {
        let sealed = seal(&mut OutboundSa::with_library(&config, crate::library()).unwrap(), &frame);
        assert!(!sealed.windows(8).any(|window| window == [0x5a; 8]), "{config:?}");
    }
}

#[test]
fn vlan_tags_options_extension_headers_and_udp_come_through() {
    let hop_by_hop = (HOP_BY_HOP, vec![0, 1, 4, 0, 0, 0, 0]);
    let routing = (ROUTING, vec![0, 4, 0, 0, 0, 0, 0]);
    let destination = (DESTINATION, vec![0, 1, 4, 0, 0, 0, 0]);
    let packets = [
        Packet { tags: vec![(0x8100, 5)], ..Packet::tcp(100) },
        Packet { tags: vec![(0x88a8, 5), (0x8100, 6)], is_ipv6: true, ..Packet::tcp(100) },
        Packet { ip_options: vec![1; 8], options: vec![1; 12], ..Packet::tcp(100) },
        Packet { is_ipv6: true, extensions: vec![hop_by_hop, routing, destination], ..Packet::udp(100) },
        Packet::udp(0),
        Packet { padding: 9, ..Packet::udp(3) },
    ];
    for mode in modes() {
        for udp in [None, Some(UdpPorts::default())] {
            let (mut sender, mut receiver) = pair(&SaConfig { mode, udp, ..config(gcm()) });
            for packet in &packets {
                let sealed = seal(&mut sender, &packet.build());
                let without_padding = Packet { padding: 0, ..packet.clone() }.build();
                assert_eq!(open(&mut receiver, &sealed), Ok(without_padding), "{mode:?} {packet:?}");
            }
        }
    }
}

#[test]
fn ivs_of_cbc_differ_from_packet_to_packet_and_from_association_to_association_of_one_key() {
    for suite in Suite::all().filter(|suite| suite.iv_len() > 0 && !suite.is_counter_mode()) {
        let mut ivs = BTreeSet::new();
        for spi in [SPI, SPI + 1] {
            let (mut sender, _) = pair(&SaConfig { spi, ..config(suite) });
            for _ in 0..100 {
                let sealed = seal(&mut sender, &clear(0, false));
                let iv_at = esp_of(&sealed).1.esp_at + 8;
                ivs.insert(sealed[iv_at..iv_at + suite.iv_len()].to_vec());
            }
        }
        assert_eq!(ivs.len(), 200, "{suite}");
    }
}

#[test]
fn packets_of_a_bare_ip_header_come_through() {
    /// Protocol number for experiments (RFC 3692 2.1), so that no code parses the payload.
    const PROTOCOL: u8 = 253;
    for config in every_config() {
        let (mut sender, mut receiver) = pair(&config);
        for is_ipv6 in [false, true] {
            let mut frame = clear(0, is_ipv6);
            frame.truncate(layout(&frame).transport_start);
            if is_ipv6 {
                frame[18..20].fill(0);
                frame[20] = PROTOCOL;
            } else {
                frame[16..18].copy_from_slice(&[0, 20]);
                frame[23] = PROTOCOL;
                frame[24..26].fill(0);
                let checksum = checksum::sum(&frame[14..34]).checksum();
                frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            }
            let sealed = seal(&mut sender, &frame);
            assert_eq!(open(&mut receiver, &sealed), Ok(frame), "{config:?}");
        }
    }
}

#[test]
fn fragments_go_through_a_tunnel_and_not_through_transport_mode() {
    let of_v4 = Packet { fragment: 0x2000, ..Packet::udp(64) }.build();
    let of_v6 = Packet { is_ipv6: true, extensions: vec![(FRAGMENT, vec![0, 0, 1, 0, 0, 0, 9])], ..Packet::udp(64) };
    for frame in [of_v4, of_v6.build()] {
        for mode in modes() {
            let (mut sender, mut receiver) = pair(&SaConfig { mode, ..config(gcm()) });
            if mode == Mode::Transport {
                let mut out = vec![0; 500];
                assert_eq!(sender.seal(&Frame::received(&mut frame.clone()), &mut out), Err(SealRefused::Fragment));
                assert_eq!(sender.sequence(), 0, "no number is used up");
            } else {
                let sealed = seal(&mut sender, &frame);
                assert_eq!(open(&mut receiver, &sealed), Ok(frame.clone()));
            }
        }
    }
}

#[test]
fn what_cannot_be_sealed_is_refused_without_using_up_a_number() {
    let mut sa = OutboundSa::with_library(&config(gcm()), crate::library()).unwrap();
    let mut out = vec![0; 1 << 17];
    let mut arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(sa.seal(&Frame::received(&mut arp), &mut out), Err(SealRefused::NotIp));
    let frame = clear(100, false);
    let mut bytes = frame.clone();
    let parsed = Frame::received(&mut bytes);
    let len = sa.sealed_len(&parsed).unwrap();
    assert_eq!(sa.seal(&parsed, &mut out[..len - 1]), Err(SealRefused::NoRoom));
    let front_len = sa.front_len();
    assert_eq!(sa.seal_in_place(&mut frame.clone(), 0), Err(SealRefused::NoRoom));
    assert_eq!(sa.seal_in_place(&mut frame.clone(), 1 << 20), Err(SealRefused::NoRoom));
    let mut without_tail = [vec![0; front_len], frame.clone()].concat();
    assert_eq!(sa.seal_in_place(&mut without_tail, front_len), Err(SealRefused::NoRoom));
    assert_eq!(without_tail[front_len..], frame, "the frame is unchanged");
    let mut longest = clear(65_535 - 40, false);
    assert_eq!(sa.seal(&Frame::received(&mut longest), &mut out), Err(SealRefused::TooLong));
    assert_eq!(sa.sequence(), 0);
    assert!(sa.seal(&parsed, &mut out[..len]).is_ok());
}

#[test]
fn the_longest_packet_for_a_path_just_fits_and_one_byte_more_does_not() {
    for mut config in every_config() {
        config.sequence = 9;
        let mut sa = OutboundSa::with_library(&config, crate::library()).unwrap();
        for (path_mtu, is_ipv6) in
            [(1280, true), (1400, false), (1500, true), (1501, false), (1507, true), (9000, false)]
        {
            let network_len = if is_ipv6 { 40 } else { 20 };
            let payload_len = sa.payload_max(path_mtu, network_len, 20).unwrap();
            assert_eq!(sa.packet_len_max(path_mtu, network_len), Some(network_len + 20 + payload_len));
            assert!(seal(&mut sa, &clear(payload_len, is_ipv6)).len() <= 14 + path_mtu, "{config:?}");
            assert!(seal(&mut sa, &clear(payload_len + 1, is_ipv6)).len() > 14 + path_mtu, "{config:?}");
        }
        assert_eq!(sa.packet_len_max(30, 20), None);
        assert_eq!(sa.payload_max(80, 20, 60), None);
    }
}

#[test]
fn a_transport_mode_packet_behind_a_nat_is_said_to_have_a_stale_checksum() {
    for mode in modes() {
        for udp in [None, Some(UdpPorts::default())] {
            let (mut sender, mut receiver) = pair(&SaConfig { mode, udp, ..config(gcm()) });
            let sealed = seal(&mut sender, &clear(100, false));
            let (opened, _) = open_whole(&mut receiver, &sealed).unwrap();
            assert_eq!(opened.checksum_is_stale, mode == Mode::Transport && udp.is_some());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn opening_undoes_sealing_for_any_payload_and_sequence_number(
        which in 0..336_usize,
        payload in proptest::collection::vec(any::<u8>(), 0..3000),
        sequence in 0..u64::MAX - 1,
        is_ipv6: bool,
        is_udp: bool,
    ) {
        let mut config = every_config().swap_remove(which);
        config.sequence = if config.esn { sequence } else { sequence >> 32 & 0xffff_fffe };
        let (mut sender, mut receiver) = pair(&config);
        let frame = Packet { is_ipv6, is_udp, payload, ..Packet::tcp(0) }.build();
        let sealed = seal(&mut sender, &frame);
        let (opened, clear) = open_whole(&mut receiver, &sealed).unwrap();
        prop_assert_eq!(clear, frame);
        prop_assert_eq!(opened.sequence, config.sequence + 1);
    }
}
