//! Tests of the order of delivery, of time limits and of a full flow table.

use super::*;

fn names(delivered: &[Delivered]) -> Vec<(u16, usize)> {
    delivered
        .iter()
        .map(|delivered| (u16::from_be_bytes([delivered.1[34], delivered.1[35]]), payload_len(delivered)))
        .collect()
}

fn on_port(port: u16, spec: &Spec) -> Vec<u8> {
    Spec { source_port: port, ..spec.clone() }.build()
}

#[test]
fn a_flush_hands_out_flows_in_the_order_of_their_starts() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    let run = tcp_run(&[100; 2]);
    for port in [30, 10, 20] {
        push_one(&mut coalescer, &on_port(port, &run[0]), ALL, 0, &mut delivered);
    }
    for port in [20, 30] {
        push_one(&mut coalescer, &on_port(port, &run[1]), ALL, 0, &mut delivered);
    }
    assert_eq!(coalescer.held(), 5);
    flush(&mut coalescer, &mut delivered);
    assert_eq!(names(&delivered), [(30, 200), (10, 100), (20, 200)]);
}

#[test]
fn a_flow_that_starts_anew_is_the_newest() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    let run = tcp_run(&[100, 200]);
    for (port, at) in [(1, 0), (2, 0), (1, 1)] {
        push_one(&mut coalescer, &on_port(port, &run[at]), ALL, 0, &mut delivered);
    }
    flush(&mut coalescer, &mut delivered);
    assert_eq!(names(&delivered), [(1, 100), (2, 100), (1, 200)]);
}

#[test]
fn a_full_table_hands_out_the_flow_that_was_started_earliest() {
    let mut coalescer = Coalescer::new(CoalesceConfig { flows_max: 2, ..CoalesceConfig::default() });
    let mut delivered = Vec::new();
    let first = tcp(1, 100);
    for port in [1, 2, 3, 4] {
        push_one(&mut coalescer, &on_port(port, &first), ALL, 0, &mut delivered);
        assert!(coalescer.held() <= 2);
    }
    assert_eq!(names(&delivered), [(1, 100), (2, 100)]);
    flush(&mut coalescer, &mut delivered);
    assert_eq!(names(&delivered[2..]), [(3, 100), (4, 100)]);
}

#[test]
fn a_table_of_no_flows_is_brought_to_one() {
    let config = CoalesceConfig { flows_max: 0, packet_len_max: usize::MAX, segments_max: 0, ..Default::default() };
    assert_eq!(sizes_with(config, &tcp_run(&[100, 100])), [100, 100]);
}

#[test]
fn a_pause_splits_a_burst_when_time_is_up() {
    let mut coalescer = Coalescer::new(CoalesceConfig { hold_ns: 50_000, ..CoalesceConfig::default() });
    let mut delivered = Vec::new();
    let frames: Vec<_> = tcp_run(&[100; 4]).iter().map(Spec::build).collect();
    push_one(&mut coalescer, &frames[0], ALL, 1_000, &mut delivered);
    push_one(&mut coalescer, &frames[1], ALL, 30_000, &mut delivered);
    assert_eq!(coalescer.next_deadline_ns(), Some(51_000), "it counts from the first frame");
    coalescer.flush_expired(50_999, &mut |_: &RxMeta, _: &[u8]| panic!("too early"));
    coalescer.flush_expired(51_000, &mut |meta: &RxMeta, bytes: &[u8]| delivered.push((*meta, bytes.to_vec())));
    assert_eq!((coalescer.held(), coalescer.next_deadline_ns()), (0, None));
    push_one(&mut coalescer, &frames[2], ALL, 100_000_000, &mut delivered);
    push_one(&mut coalescer, &frames[3], ALL, 100_000_000, &mut delivered);
    flush(&mut coalescer, &mut delivered);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [200, 200]);
    assert_segments_into(&delivered, &frames);
}

#[test]
fn only_flows_whose_time_is_up_are_handed_out() {
    let mut coalescer = Coalescer::new(CoalesceConfig { hold_ns: 10, ..CoalesceConfig::default() });
    let mut delivered = Vec::new();
    for (port, now) in [(1, 0), (2, 5), (3, 9)] {
        push_one(&mut coalescer, &on_port(port, &tcp(1, 100)), ALL, now, &mut delivered);
    }
    coalescer.flush_expired(15, &mut |meta: &RxMeta, bytes: &[u8]| delivered.push((*meta, bytes.to_vec())));
    assert_eq!(names(&delivered), [(1, 100), (2, 100)]);
    assert_eq!(coalescer.next_deadline_ns(), Some(19));
}

#[test]
fn a_deadline_at_the_end_of_time_does_not_overflow() {
    let mut coalescer = Coalescer::new(CoalesceConfig { hold_ns: u64::MAX, ..CoalesceConfig::default() });
    push_one(&mut coalescer, &tcp(1, 100).build(), ALL, u64::MAX, &mut Vec::new());
    assert_eq!(coalescer.next_deadline_ns(), Some(u64::MAX));
}

#[test]
fn switching_off_hands_out_what_is_held_before_the_next_frame() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    let frames: Vec<_> = tcp_run(&[100; 4]).iter().map(Spec::build).collect();
    push_one(&mut coalescer, &frames[0], ALL, 0, &mut delivered);
    push_one(&mut coalescer, &frames[1], ALL, 0, &mut delivered);
    push_one(&mut coalescer, &frames[2], ALL - Offloads::RSC4, 0, &mut delivered);
    assert_eq!(coalescer.held(), 0);
    assert_eq!(delivered.iter().map(payload_len).collect::<Vec<_>>(), [200, 100]);
    assert_eq!(delivered[1].0.checksum, ChecksumState::Good);
    push_one(&mut coalescer, &frames[3], ALL, 0, &mut delivered);
    assert_eq!(coalescer.held(), 1);
    flush(&mut coalescer, &mut delivered);
    assert_segments_into(&delivered, &frames);
}

#[test]
fn each_switch_holds_its_own_kind_alone() {
    let cases = [
        (tcp_run(&[100; 2]), Offloads::RSC4),
        (to_ipv6(tcp_run(&[100; 2])), Offloads::RSC6),
        (udp_run(&[100; 2]), Offloads::RSC_UDP),
        (to_ipv6(udp_run(&[100; 2])), Offloads::RSC_UDP),
    ];
    for (specs, switch) in cases {
        for (enabled, held) in [(switch | Offloads::RX_CHECKSUM, 1), (switch, 0), (ALL - switch, 0)] {
            let mut coalescer = Coalescer::new(CoalesceConfig::default());
            push_one(&mut coalescer, &specs[0].build(), enabled, 0, &mut Vec::new());
            assert_eq!(coalescer.held(), held);
        }
    }
}

#[test]
fn a_fragment_flushes_every_flow_between_its_addresses_and_no_other() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    let first = tcp(1, 100);
    push_one(&mut coalescer, &on_port(1, &first), ALL, 0, &mut delivered);
    push_one(&mut coalescer, &on_port(2, &Spec { source: 7, ..first.clone() }), ALL, 0, &mut delivered);
    push_one(&mut coalescer, &on_port(3, &Spec { is_udp: true, ..first.clone() }), ALL, 0, &mut delivered);
    let fragment = Spec { fragment_field: 0x2000, source_port: 9, ..first };
    push_one(&mut coalescer, &fragment.build(), ALL, 0, &mut delivered);
    assert_eq!(names(&delivered)[..2], [(1, 100), (3, 100)]);
    assert_eq!((delivered.len(), coalescer.held()), (3, 1));
}

#[test]
fn a_malformed_frame_flushes_everything() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    for port in [1, 2] {
        push_one(&mut coalescer, &on_port(port, &tcp(1, 100)), ALL, 0, &mut delivered);
    }
    let mut malformed = tcp(1, 100).build();
    malformed.truncate(60);
    push_one(&mut coalescer, &malformed, ALL, 0, &mut delivered);
    assert_eq!(coalescer.held(), 0);
    assert_eq!(delivered[2], (RxMeta::default(), malformed));
}

#[test]
fn what_is_neither_tcp_nor_udp_passes_what_is_held() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    push_one(&mut coalescer, &tcp(1, 100).build(), ALL, 0, &mut delivered);
    let mut icmp = tcp(1, 100).build();
    icmp[14 + 9] = 1;
    icmp[24..26].fill(0);
    let checksum = !slow_sum(&[&icmp[14..34]]);
    icmp[24..26].copy_from_slice(&checksum.to_be_bytes());
    let arp = [vec![0xff; 12], vec![0x08, 0x06], vec![0; 46]].concat();
    push_one(&mut coalescer, &icmp, ALL, 0, &mut delivered);
    push_one(&mut coalescer, &arp, ALL, 0, &mut delivered);
    assert_eq!(delivered, [(RxMeta::default(), icmp), (RxMeta::default(), arp)]);
    assert_eq!(coalescer.held(), 1);
}

#[test]
fn a_frame_that_passes_alone_keeps_its_padding_and_one_that_was_held_does_not() {
    let held = padded(tcp(1, 4)).build();
    let passed = padded(tcp(5, 0)).build();
    let delivered = coalesce_with(CoalesceConfig::default(), &[held.clone(), passed.clone()]);
    assert_eq!(delivered[0].1, held[..held.len() - 2]);
    assert_eq!(delivered[1].1, passed);
}

/// Tests three trailers: a redundancy control trailer (IEC 62439-3), padding beyond the minimum, and nonzero padding.
#[test]
fn a_frame_with_a_trailer_goes_alone_and_unchanged_after_what_its_flow_held() {
    let trailed = |spec: &Spec, trailer: &[u8]| [&spec.build(), trailer].concat();
    for run in [tcp_run(&[100, 0, 100]), tcp_run(&[100; 3]), udp_run(&[100; 3]), to_ipv6(tcp_run(&[100; 3]))] {
        for (trailer, last_len) in [(&[0x12, 0x34, 0xa0, 0x68, 0x88, 0xfb][..], 100), (&[0; 7], 100), (&[0xee; 5], 1)] {
            let frames = [0, 1, 2].map(|n: usize| {
                let spec =
                    Spec { payload: run[n].payload[..run[n].payload.len().min(last_len)].to_vec(), ..run[n].clone() };
                if n == 1 { trailed(&spec, trailer) } else { run[n].build() }
            });
            for (rx_csum, state) in
                [(RxCsum::DataValid, ChecksumState::Good), (RxCsum::NeedsCsum, ChecksumState::Unknown)]
            {
                let config = CoalesceConfig { rx_csum, ..CoalesceConfig::default() };
                let delivered = coalesce_with(config, &frames);
                let lens: Vec<_> = delivered.iter().map(|(_, bytes)| bytes.len()).collect();
                assert_eq!(lens, frames.each_ref().map(Vec::len), "{rx_csum:?}");
                assert_eq!(delivered[1].1, frames[1]);
                assert_eq!(delivered[1].0.checksum, state);
            }
            let alone = coalesce_with(CoalesceConfig::default(), &frames[1..2]);
            assert_eq!(alone[0].1, frames[1]);
        }
    }
}

#[test]
fn memory_does_not_grow() {
    let mut coalescer = Coalescer::new(CoalesceConfig { flows_max: 4, ..CoalesceConfig::default() });
    let before = (coalescer.buffers.bytes.capacity(), coalescer.table.flows.capacity());
    for seq in 0..50u32 {
        for port in 0..20 {
            push_one(&mut coalescer, &on_port(port, &tcp(seq * 100, 100)), ALL, 0, &mut Vec::new());
        }
    }
    assert_eq!((coalescer.buffers.bytes.capacity(), coalescer.table.flows.capacity()), before);
}

#[test]
fn a_right_checksum_can_be_marked_by_a_partial_one_that_completes_to_the_same_frame() {
    let config = CoalesceConfig { rx_csum: RxCsum::NeedsCsum, ..CoalesceConfig::default() };
    let held = [tcp(1, 5), udp_run(&[5])[0].clone()];
    let passed = [tcp(101, 0), Spec { flags: ACK | PSH, ..tcp(101, 5) }, Spec { ip_options: vec![1; 4], ..tcp(1, 1) }];
    for spec in held.into_iter().chain(passed).flat_map(|spec| [to_ipv6(vec![spec.clone()]).remove(0), spec]) {
        let frame = padded(spec).build();
        let (meta, mut bytes) = coalesce_with(config, std::slice::from_ref(&frame)).remove(0);
        let ChecksumState::Partial(partial) = meta.checksum else { panic!("{:?}", meta.checksum) };
        assert_eq!((meta.segments, meta.segmentation), (1, None));
        let end = bytes.len();
        crate::checksum::complete(&mut bytes, partial, end).unwrap();
        assert_eq!(bytes, trimmed(&frame));
    }
    let wrong = padded(Spec { checksum: Checksum::Wrong, ..tcp(1, 4) }).build();
    let expected = RxMeta { checksum: ChecksumState::Bad, header_len: 54, ..RxMeta::default() };
    assert_eq!(coalesce_with(config, std::slice::from_ref(&wrong)), [(expected, wrong)]);
}

#[test]
fn a_reply_to_a_dhcp_client_keeps_its_checksum() {
    let config = CoalesceConfig { rx_csum: RxCsum::NeedsCsum, ..CoalesceConfig::default() };
    let other = Spec { source_port: 68, ..udp_run(&[300])[0].clone() }.build();
    // Exchanging the two ports does not change the checksum.
    let mut reply = other.clone();
    reply[34..38].rotate_left(2);
    let delivered = coalesce_with(config, &[reply.clone(), other]);
    assert_eq!((delivered[0].0.checksum, &delivered[0].1), (ChecksumState::Unknown, &reply));
    assert!(matches!(delivered[1].0.checksum, ChecksumState::Partial(_)));
}

#[test]
fn without_rx_checksum_nothing_is_held_and_nobody_looks() {
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut delivered = Vec::new();
    push_one(&mut coalescer, &tcp(1, 100).build(), ALL, 0, &mut delivered);
    push_one(&mut coalescer, &tcp(101, 100).build(), ALL - Offloads::RX_CHECKSUM, 0, &mut delivered);
    assert_eq!(
        delivered.iter().map(|(meta, _)| meta.checksum).collect::<Vec<_>>(),
        [ChecksumState::Good, ChecksumState::Unknown]
    );
    assert_eq!(coalescer.held(), 0);
}
