//! All cases of Linux' `gro` self-test, and further cases, with the results of Linux 6.18's GRO.

use super::*;

/// Runs one test case over IPv4 and over IPv6.
fn both(specs: &[Spec]) -> Vec<usize> {
    let over_ipv4 = sizes(specs);
    assert_eq!(sizes(&to_ipv6(specs.to_vec())), over_ipv4, "IPv6 differs from IPv4");
    over_ipv4
}

// ---- data ----

#[test]
fn segments_of_one_size_are_coalesced() {
    assert_eq!(both(&tcp_run(&[100, 100])), [200]);
}

#[test]
fn a_single_frame_stays_as_it_was() {
    let frames = [tcp(1, 100).build()];
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_eq!(delivered[0].1, frames[0]);
    let expected = RxMeta { checksum: ChecksumState::Good, header_len: 54, ..RxMeta::default() };
    assert_eq!(delivered[0].0, expected);
}

#[test]
fn a_shorter_segment_joins_and_closes() {
    assert_eq!(both(&tcp_run(&[100, 50])), [150]);
    assert_eq!(both(&tcp_run(&[100, 50, 100])), [150, 100]);
    assert_eq!(both(&tcp_run(&[100, 50, 50])), [150, 50]);
}

#[test]
fn a_single_byte_in_a_padded_frame_joins_without_its_padding() {
    let specs = tcp_run(&[100, 1]).into_iter().map(padded).collect::<Vec<_>>();
    assert_eq!((specs[1].padding, sizes(&specs)), (5, vec![101]));
    // A tag was added to a padded frame: Ethernet's minimum length applies to the data after the tag (IEEE 802.3
    // 3.2.7).
    assert_eq!(sizes(&with_all(specs, |_, spec| spec.tags = vec![0x81, 0, 0, 7])), [101]);
}

#[test]
fn a_longer_segment_starts_anew() {
    assert_eq!(both(&tcp_run(&[50, 100])), [50, 100]);
    assert_eq!(both(&tcp_run(&[50, 100, 100])), [50, 200]);
}

#[test]
fn pure_acks_are_never_held() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    for spec in [tcp(1, 0), tcp(1, 0), Spec { ack: 78, ..tcp(1, 0) }] {
        push_one(&mut coalescer, &spec.build(), ALL, 0, &mut delivered);
        assert_eq!(coalescer.held(), 0);
    }
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [0, 0, 0]);
}

#[test]
fn a_pure_ack_comes_after_the_data_before_it() {
    assert_eq!(both(&tcp_run(&[100, 100, 0, 100])), [200, 0, 100]);
}

#[test]
fn a_gap_an_overlap_and_a_swap_are_not_coalesced() {
    assert_eq!(both(&with(tcp_run(&[100, 100]), 1, |spec| spec.seq += 1)), [100, 100]);
    assert_eq!(both(&with(tcp_run(&[100, 100]), 1, |spec| spec.seq -= 1)), [100, 100]);
    let mut swapped = tcp_run(&[100, 100, 100]);
    swapped.swap(1, 2);
    assert_eq!(both(&swapped), [100, 100, 100]);
}

#[test]
fn a_duplicate_is_not_coalesced() {
    let mut specs = tcp_run(&[100, 100]);
    specs.insert(1, specs[0].clone());
    assert_eq!(both(&specs), [100, 200]);
}

#[test]
fn sequence_numbers_wrap() {
    let specs = with_all(tcp_run(&[100, 100, 100]), |n, spec| spec.seq = (u32::MAX - 150).wrapping_add(100 * n as u32));
    assert_eq!(both(&specs), [300]);
}

// ---- TCP flags ----

#[test]
fn psh_joins_and_closes() {
    assert_eq!(both(&with(tcp_run(&[100; 5]), 2, |spec| spec.flags |= PSH)), [300, 200]);
    assert_eq!(both(&with(tcp_run(&[100; 3]), 1, |spec| spec.flags |= PSH)), [200, 100]);
}

#[test]
fn psh_on_the_first_goes_alone() {
    assert_eq!(both(&with(tcp_run(&[100; 3]), 0, |spec| spec.flags |= PSH)), [100, 200]);
}

#[test]
fn fin_joins_and_closes() {
    assert_eq!(both(&with(tcp_run(&[100; 3]), 1, |spec| spec.flags |= FIN)), [200, 100]);
    assert_eq!(both(&with(tcp_run(&[100, 100, 0]), 2, |spec| spec.flags |= FIN)), [200, 0]);
}

#[test]
fn psh_and_fin_of_the_last_are_set_in_the_aggregate() {
    let frames: Vec<_> = with(tcp_run(&[100; 2]), 1, |spec| spec.flags |= PSH | FIN).iter().map(Spec::build).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_eq!(delivered[0].1[14 + 20 + 13], ACK | PSH | FIN);
}

#[test]
fn syn_rst_and_urg_go_alone_after_what_was_held() {
    for flag in [SYN, RST, URG] {
        let mut empty = tcp_run(&[100, 100, 0, 100, 100]);
        empty[2].flags |= flag;
        assert_eq!(both(&empty), [200, 0, 200]);
        assert_eq!(both(&with(tcp_run(&[100; 3]), 1, |spec| spec.flags |= flag)), [100, 100, 100]);
        assert_eq!(both(&with_all(tcp_run(&[100; 3]), |_, spec| spec.flags |= flag)), [100, 100, 100]);
    }
}

#[test]
fn ae_and_ece_join_while_they_stay_and_a_change_closes() {
    let five = with_all(tcp_run(&[100; 6]), |_, spec| (spec.ae, spec.flags) = (AE, ACK | ECE));
    assert_eq!(both(&five), [600], "5 is the counter's first value");
    assert_eq!(both(&with_all(five.clone(), |n, spec| spec.ae = if n < 3 { AE } else { 0 })), [300, 300]);
    assert_eq!(both(&with_all(five.clone(), |n, spec| spec.flags = if n < 2 { ACK | ECE } else { ACK })), [200, 400]);
}

#[test]
fn cwr_joins_for_a_host_that_knows_accecn_and_the_aggregate_says_so() {
    let seven = with_all(tcp_run(&[100; 4]), |_, spec| (spec.ae, spec.flags) = (AE, ACK | CWR | ECE));
    for specs in [seven.clone(), to_ipv6(seven)] {
        let delivered = coalesce_for(Offloads::RX, &specs);
        assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [400]);
        assert_eq!(delivered[0].0.segmentation.map(|s| s.cwr), Some(Cwr::All));
        let changed = with_all(specs, |n, spec| spec.flags = if n < 2 { ACK | CWR } else { ACK });
        let delivered = coalesce_for(Offloads::RX, &changed);
        let marks: Vec<_> = delivered.iter().map(|(meta, _)| meta.segmentation.map(|s| s.cwr)).collect();
        assert_eq!(marks, [Some(Cwr::All), Some(Cwr::Unmarked)]);
        assert_eq!(coalesce_for(ALL, &changed).iter().map(payload_len).collect::<Vec<_>>(), [100, 100, 200]);
    }
}

/// Coalesces for a host with these offloads, and checks that segmentation restores the frames.
fn coalesce_for(enabled: Offloads, specs: &[Spec]) -> Vec<Delivered> {
    let frames: Vec<_> = specs.iter().map(Spec::build).collect();
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    for frame in &frames {
        push_one(&mut coalescer, frame, enabled, 0, &mut delivered);
    }
    flush(&mut coalescer, &mut delivered);
    assert_segments_into(&delivered, &frames);
    delivered
}

#[test]
fn each_frame_with_cwr_goes_alone() {
    let second_and_third = with_all(tcp_run(&[100; 5]), |n, spec| spec.flags |= if n == 1 || n == 2 { CWR } else { 0 });
    assert_eq!(both(&second_and_third), [100, 100, 100, 200]);
    assert_eq!(both(&with_all(tcp_run(&[100; 3]), |_, spec| spec.flags |= CWR)), [100, 100, 100]);
}

#[test]
fn ece_joins_when_every_frame_has_it() {
    assert_eq!(both(&with_all(tcp_run(&[100; 3]), |_, spec| spec.flags |= ECE)), [300]);
    assert_eq!(both(&with(tcp_run(&[100; 3]), 1, |spec| spec.flags |= ECE)), [100, 100, 100]);
}

#[test]
fn an_urgent_pointer_without_its_flag_joins_when_every_frame_has_it() {
    assert_eq!(both(&with_all(tcp_run(&[100; 3]), |_, spec| spec.urgent = 9)), [300]);
    assert_eq!(both(&with(tcp_run(&[100; 3]), 2, |spec| spec.urgent = 9)), [200, 100], "segmenting would change it");
}

#[test]
fn a_frame_without_ack_joins_its_like() {
    assert_eq!(both(&with_all(tcp_run(&[100; 3]), |_, spec| spec.flags = 0)), [300]);
}

// ---- TCP header ----

#[test]
fn another_window_or_acknowledgement_is_not_coalesced() {
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.window += 1)), [100, 100]);
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.ack += 1)), [100, 100]);
}

#[test]
fn a_wrong_tcp_checksum_does_not_join_and_does_not_overtake() {
    let frames: Vec<_> =
        with(tcp_run(&[100; 3]), 1, |spec| spec.checksum = Checksum::Wrong).iter().map(Spec::build).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_segments_into(&delivered, &frames);
    let verdicts: Vec<_> = delivered.iter().map(|(meta, _)| meta.checksum).collect();
    assert_eq!(verdicts, [ChecksumState::Good, ChecksumState::Bad, ChecksumState::Good]);
}

#[test]
fn a_first_frame_with_a_wrong_checksum_is_delivered_at_once_as_bad() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    let wrong = Spec { checksum: Checksum::Wrong, ..tcp(1, 100) };
    push_one(&mut coalescer, &wrong.build(), ALL, 0, &mut delivered);
    assert_eq!((delivered.len(), coalescer.held()), (1, 0));
    assert_eq!(delivered[0].0.checksum, ChecksumState::Bad);
}

#[test]
fn other_timestamps_close_and_another_order_of_options_too() {
    let stamped = |ts: u8, order: u8| {
        let stamp = [8, 10, 0, 0, 0, ts, 0, 0, 0, 0];
        let [a, b, c] = match order {
            0 => [&[1, 1][..], &stamp, &[]],
            1 => [&[1][..], &stamp, &[1]],
            _ => [&stamp[..], &[1, 1], &[]],
        };
        [a, b, c].concat()
    };
    let options = [stamped(0, 0), stamped(0, 0), stamped(100, 0), stamped(100, 1), stamped(100, 2)];
    let specs = with_all(tcp_run(&[100; 5]), |n, spec| spec.tcp_options.clone_from(&options[n]));
    assert_eq!(both(&specs), [200, 100, 100, 100]);
}

#[test]
fn equal_timestamps_are_coalesced() {
    assert_eq!(both(&with_all(tcp_run(&[100; 3]), |_, spec| spec.tcp_options = TIMESTAMPS.to_vec())), [300]);
    let mixed = with_all(tcp_run(&[100; 3]), |n, spec| {
        spec.tcp_options = TIMESTAMPS.to_vec();
        spec.tcp_options[7] += (n / 2) as u8;
    });
    assert_eq!(both(&mixed), [200, 100]);
}

#[test]
fn other_options_close_and_equal_ones_of_any_length_are_coalesced() {
    let window_scale = |n: usize, spec: &mut Spec| {
        spec.tcp_options = if n < 2 { TIMESTAMPS.to_vec() } else { vec![1, 3, 3, 0] };
    };
    assert_eq!(both(&with_all(tcp_run(&[100; 3]), window_scale)), [200, 100]);
    for len in (0..=40).step_by(4) {
        let equal = with_all(tcp_run(&[100; 3]), |_, spec| spec.tcp_options = vec![1; len]);
        assert_eq!(both(&equal), [300], "{len} bytes");
        if len > 0 {
            let last_byte = with(equal, 1, |spec| spec.tcp_options[len - 1] = 0);
            assert_eq!(both(&last_byte), [100, 100, 100], "{len} bytes");
        }
    }
}

// ---- IP ----

#[test]
fn another_ecn_class_or_hop_limit_is_not_coalesced() {
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.tos = 1)), [100, 100]);
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.tos = 0x10)), [100, 100]);
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.ttl -= 1)), [100, 100]);
}

#[test]
fn another_flow_label_is_not_coalesced() {
    let specs = to_ipv6(with(tcp_run(&[100; 2]), 1, |spec| spec.flow_label += 1));
    assert_eq!(sizes(&specs), [100, 100]);
}

#[test]
fn a_wrong_ipv4_header_checksum_is_not_coalesced() {
    let frames: Vec<_> =
        with(tcp_run(&[100; 2]), 1, |spec| spec.ip_checksum_is_bad = true).iter().map(Spec::build).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_segments_into(&delivered, &frames);
    assert_eq!(delivered[1].0.checksum, ChecksumState::Bad);
}

#[test]
fn ipv4_options_are_never_coalesced() {
    let timestamp_option = vec![68, 8, 5, 0, 0, 0, 0, 0];
    let middle = with(tcp_run(&[100; 3]), 1, |spec| spec.ip_options.clone_from(&timestamp_option));
    assert_eq!(sizes(&middle), [100, 100, 100]);
    let all = with_all(tcp_run(&[100; 3]), |_, spec| spec.ip_options.clone_from(&timestamp_option));
    assert_eq!(sizes(&all), [100, 100, 100]);
}

#[test]
fn an_ipv4_fragment_does_not_join_and_does_not_overtake() {
    assert_eq!(fragment_case(false), [100, 100, 100]);
}

#[test]
fn an_ipv6_fragment_does_not_join_and_does_not_overtake() {
    assert_eq!(fragment_case(true), [100, 100, 100]);
}

/// Coalesces three frames, of which the second is a fragment. Returns the sizes of the payload after the TCP header.
fn fragment_case(is_ipv6: bool) -> Vec<usize> {
    let mut frames: Vec<_> =
        tcp_run(&[100; 3]).into_iter().map(|spec| Spec { is_ipv6, ..spec }).map(|spec| spec.build()).collect();
    let fragment = &mut frames[1];
    if is_ipv6 {
        fragment[14 + 6] = 44;
        let payload_len = u16::from_be_bytes([fragment[18], fragment[19]]) + 8;
        fragment[18..20].copy_from_slice(&payload_len.to_be_bytes());
        fragment.splice(54..54, [6, 0, 0, 1, 0, 0, 0, 9]);
    } else {
        fragment[14 + 6] = 0x20;
        fragment[24..26].fill(0);
        let checksum = !slow_sum(&[&fragment[14..34]]);
        fragment[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_segments_into(&delivered, &frames);
    assert_eq!(delivered[1].0.checksum, ChecksumState::Unknown);
    delivered.iter().map(|(_, bytes)| bytes.len() - frames[0].len() + 100).map(|len| len.min(100)).collect()
}

#[test]
fn another_df_bit_or_the_reserved_bit_is_not_coalesced() {
    assert_eq!(sizes(&with(tcp_run(&[100; 2]), 1, |spec| spec.fragment_field = 0)), [100, 100]);
    assert_eq!(sizes(&with(tcp_run(&[100; 2]), 1, |spec| spec.fragment_field |= 0x8000)), [100, 100]);
}

#[test]
fn ids_that_count_join_with_and_without_df_and_across_the_wrap() {
    for fragment_field in [0, 0x4000] {
        for first in [8u16, 65_534] {
            let specs = with_all(tcp_run(&[100; 4]), |n, spec| {
                spec.fragment_field = fragment_field;
                spec.id = first.wrapping_add(n as u16);
            });
            assert_eq!(sizes(&specs), [400]);
        }
    }
}

#[test]
fn ids_that_are_all_equal_join_with_df_alone() {
    for (fragment_field, expected) in [(0, vec![100; 4]), (0x4000, vec![400])] {
        for id in [0, 8] {
            let specs = with_all(tcp_run(&[100; 4]), |_, spec| {
                spec.fragment_field = fragment_field;
                spec.id = id;
            });
            assert_eq!(sizes(&specs), expected);
            let datagrams: Vec<_> = specs.into_iter().map(|spec| Spec { is_udp: true, ..spec }).collect();
            assert_eq!(sizes(&datagrams), expected);
        }
    }
}

#[test]
fn ids_of_mixed_patterns_close() {
    let ids = |ids: [u16; 3]| sizes(&with_all(tcp_run(&[100; 3]), |n, spec| spec.id = ids[n]));
    assert_eq!(ids([8, 9, 9]), [200, 100]);
    assert_eq!(ids([8, 8, 9]), [200, 100]);
    assert_eq!(ids([8, 8, 10]), [200, 100]);
    assert_eq!(ids([8, 10, 12]), [100, 100, 100]);
    assert_eq!(ids([8, 7, 6]), [100, 100, 100]);
}

#[test]
fn equal_ipv6_destination_options_join_and_others_do_not() {
    let padn = [1, 4, 0, 0, 0, 0];
    let equal = to_ipv6(with_all(tcp_run(&[100; 3]), |_, spec| spec.destination_options = Some(padn)));
    assert_eq!(sizes(&equal), [300]);
    let other = with(equal.clone(), 1, |spec| spec.destination_options = Some([1, 4, 0, 0, 0, 1]));
    assert_eq!(sizes(&other), [100, 100, 100]);
    let absent = with(equal, 1, |spec| spec.destination_options = None);
    assert_eq!(sizes(&absent), [100, 100, 100]);
}

#[test]
fn headers_of_up_to_192_bytes_join_and_longer_ones_go_alone() {
    for (padding_units, expected) in [(14, vec![300]), (15, vec![100, 100, 100])] {
        // Ethernet, IPv6 and TCP with four bytes of options are 78 bytes.
        let extension_len = padding_units * 8;
        let specs = to_ipv6(with_all(tcp_run(&[100; 3]), |_, spec| spec.tcp_options = vec![1; 4]));
        let frames: Vec<_> = specs.iter().map(|spec| long_headers(spec, extension_len)).collect();
        let header_len = frames[0].len() - 100;
        assert_eq!(header_len > 192, expected.len() > 1, "{header_len}");
        let delivered = coalesce_with(CoalesceConfig::default(), &frames);
        assert_segments_into(&delivered, &frames);
        assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), expected);
    }
}

/// Returns the frame with `extension_len` bytes of destination options between IPv6 and TCP.
fn long_headers(spec: &Spec, extension_len: usize) -> Vec<u8> {
    let mut frame = spec.build();
    let mut extension = vec![0; extension_len];
    extension[..4].copy_from_slice(&[6, (extension_len / 8 - 1) as u8, 1, (extension_len - 4) as u8]);
    frame[20] = 60;
    let payload_len = u16::from_be_bytes([frame[18], frame[19]]) + extension_len as u16;
    frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
    frame.splice(54..54, extension);
    frame
}

// ---- link ----

#[test]
fn another_mac_address_or_tag_is_not_coalesced() {
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.source_mac = 9)), [100, 100]);
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.destination_mac = 9)), [100, 100]);
    assert_eq!(both(&with(tcp_run(&[100; 2]), 1, |spec| spec.tags = vec![0x81, 0, 0, 7])), [100, 100]);
    let tagged = with_all(tcp_run(&[100; 2]), |n, spec| spec.tags = vec![0x81, 0, 0, n as u8]);
    assert_eq!(both(&tagged), [100, 100]);
}

#[test]
fn equal_tags_are_coalesced() {
    for tags in [vec![0x81, 0, 0, 7], vec![0x88, 0xa8, 0, 7, 0x81, 0, 0, 8]] {
        let specs = with_all(tcp_run(&[100; 3]), |_, spec| spec.tags.clone_from(&tags));
        assert_eq!(both(&specs), [300]);
        for at in [2, tags.len() - 1] {
            let other = with(specs.clone(), 2, |spec| spec.tags[at] ^= 1);
            assert!(both(&other).len() > 1);
        }
    }
}

// ---- size ----

#[test]
fn sixty_segments_of_1448_bytes_make_45_and_15() {
    let specs = with_all(tcp_run(&[1448; 60]), |_, spec| spec.tcp_options = TIMESTAMPS.to_vec());
    assert_eq!(sizes(&specs), [45 * 1448, 15 * 1448]);
}

/// Runs Linux' `gro --test large_*`: as many segments as fit, then `rest` bytes, then `rest` bytes after a gap. (The
/// program increments the sequence number by a full segment.)
fn large(rest: usize) -> Vec<usize> {
    const MSS: usize = 4096 - 20 - 40;
    let full = (65_535 - 40) / MSS;
    let mut run = vec![MSS; full];
    run.extend([rest, rest]);
    sizes(&with(tcp_run(&run), full + 1, |spec| spec.seq += (MSS - rest) as u32))
}

#[test]
fn an_aggregate_grows_to_exactly_65535_bytes_of_ip() {
    let rest = (65_535 - 40) % 4036;
    assert_eq!(large(rest), [65_535 - 40, rest]);
}

#[test]
fn a_segment_that_would_exceed_65535_bytes_closes_and_the_one_after_a_gap_stays_alone() {
    let rest = (65_535 - 40) % 4036 + 1;
    assert_eq!(large(rest), [65_535 - 40 - (rest - 1), rest, rest]);
}

#[test]
fn a_segment_that_was_refused_for_size_starts_anew() {
    let config = CoalesceConfig { packet_len_max: 1000, ..CoalesceConfig::default() };
    assert_eq!(sizes_with(config, &tcp_run(&[300; 8])), [900, 900, 600]);
    let segments = CoalesceConfig { segments_max: 3, ..CoalesceConfig::default() };
    assert_eq!(sizes_with(segments, &tcp_run(&[100; 7])), [300, 300, 100]);
}

#[test]
fn a_frame_longer_than_the_limit_goes_alone() {
    let config = CoalesceConfig { packet_len_max: 300, ..CoalesceConfig::default() };
    assert_eq!(sizes_with(config, &tcp_run(&[400, 400, 100, 100])), [400, 400, 200]);
}

// ---- UDP ----

#[test]
fn datagrams_of_one_size_join_and_a_shorter_one_closes() {
    assert_eq!(both(&udp_run(&[100; 3])), [300]);
    assert_eq!(both(&udp_run(&[100, 50, 100])), [150, 100]);
    assert_eq!(both(&udp_run(&[50, 100])), [50, 100]);
}

#[test]
fn sixty_four_datagrams_are_the_most() {
    assert_eq!(both(&udp_run(&[100; 70])), [6400, 600]);
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    for spec in udp_run(&[100; 64]) {
        push_one(&mut coalescer, &spec.build(), ALL, 0, &mut delivered);
    }
    assert_eq!((delivered.len(), coalescer.held()), (1, 0), "a full aggregate does not wait");
}

#[test]
fn a_datagram_without_checksum_never_joins() {
    let specs = with_all(udp_run(&[100; 3]), |_, spec| spec.checksum = Checksum::Absent);
    assert_eq!(both(&specs), [100, 100, 100]);
    assert_eq!(both(&with(udp_run(&[100; 3]), 1, |spec| spec.checksum = Checksum::Absent)), [100, 100, 100]);
}

#[test]
fn an_empty_datagram_goes_alone() {
    assert_eq!(both(&udp_run(&[100, 0, 100])), [100, 0, 100]);
}

#[test]
fn datagram_ids_count_or_are_equal_as_for_tcp() {
    let ids = |ids: [u16; 3]| sizes(&with_all(udp_run(&[100; 3]), |n, spec| spec.id = ids[n]));
    assert_eq!(ids([8, 9, 10]), [300]);
    assert_eq!(ids([8, 8, 8]), [300]);
    assert_eq!(ids([8, 9, 11]), [200, 100]);
    assert_eq!(ids([8, 10, 12]), [100, 100, 100]);
}

#[test]
fn a_bad_datagram_splits_what_is_around_it() {
    let frames: Vec<_> =
        with(udp_run(&[100; 5]), 2, |spec| spec.checksum = Checksum::Wrong).iter().map(Spec::build).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_segments_into(&delivered, &frames);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [200, 100, 200]);
    assert_eq!(delivered[1].0.checksum, ChecksumState::Bad);
}

// ---- flows ----

#[test]
fn two_flows_that_interleave_are_both_coalesced() {
    let ours = tcp_run(&[100; 3]);
    let theirs = with_all(tcp_run(&[100; 3]), |_, spec| spec.source_port += 1);
    let mixed: Vec<_> = ours.iter().zip(&theirs).flat_map(|(a, b)| [a.build(), b.build()]).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &mixed);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [300, 300]);
    let first: Vec<_> = ours.iter().map(Spec::build).collect();
    let second: Vec<_> = theirs.iter().map(Spec::build).collect();
    assert_segments_into(&delivered[..1], &first);
    assert_segments_into(&delivered[1..], &second);
}

#[test]
fn a_tcp_and_a_udp_flow_on_the_same_ports_are_two_flows() {
    let frames: Vec<_> =
        tcp_run(&[100; 2]).iter().zip(&udp_run(&[100; 2])).flat_map(|(a, b)| [a.build(), b.build()]).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [200, 200]);
}

#[test]
fn flows_that_interleave_on_the_same_ports_between_other_addresses_are_all_coalesced() {
    let flow = |n: usize, spec: &Spec| Spec { source: n as u8, is_ipv6: n.is_multiple_of(2), ..spec.clone() }.build();
    let run = tcp_run(&[100; 3]);
    let mixed: Vec<_> = run.iter().flat_map(|spec| (1..=6).map(|n| flow(n, spec))).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &mixed);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [300; 6]);
    for (n, one) in (1..=6).zip(&delivered) {
        let frames: Vec<_> = run.iter().map(|spec| flow(n, spec)).collect();
        assert_segments_into(std::slice::from_ref(one), &frames);
    }
}

/// Runs Linux' `gro --test capacity --order-check`: A1..An, then A2..An with PSH.
#[test]
fn as_many_flows_as_there_are_slots_all_join_in_the_order_of_their_start() {
    let flows = FLOWS_MAX_DEFAULT as u16;
    let of = |n: u16, at: usize| {
        let mut spec = tcp_run(&[200, 200])[at].clone();
        spec.source_port = 2000 + n;
        spec.flags |= if at == 1 { PSH } else { 0 };
        spec.build()
    };
    let frames: Vec<_> = (0..2).flat_map(|at| (0..flows).map(move |n| of(n, at))).collect();
    let delivered = coalesce_with(CoalesceConfig::default(), &frames);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), vec![400; usize::from(flows)]);
    let ports: Vec<_> = delivered.iter().map(|(_, bytes)| u16::from_be_bytes([bytes[34], bytes[35]])).collect();
    assert!(ports.is_sorted());
}
