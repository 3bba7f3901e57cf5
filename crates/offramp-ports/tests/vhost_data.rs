//! Tests of the data path of a vhost-user port: frames from one guest arrive at the other guest, with all kinds of
//! rings. Numbers such as V34, and the numbers of attacks, refer to the tables in `docs/vhost-user.md`.

use crate::vhost_common::packet::{Checksum, Packet, pattern};
use crate::vhost_common::{
    Case, PATIENCE, Rig, RigConfig, carry, check_received, cut, frame, log_writes, random_len, rng, wait_until,
};
use offramp_adapter::stats::{Direction, Loss};
use offramp_offload::frame::Frame;
use offramp_testkit::features::{self, protocol};
use offramp_testkit::vnet::{DATA_VALID, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM};
use offramp_testkit::{Buffer, DataPlacement, Guest, GuestMemory, HeaderPlacement, RegionSpec, TxLayout, VnetHeader};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Maximum length of a frame with the largest MTU, in bytes.
const FRAME_LEN_MAX: usize = 65_535;
/// Size of a page in the dirty log, in bytes.
const PAGE_LEN: u64 = 4096;
/// Offload requests available to a sending guest.
const SENDS: u64 = features::CSUM
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::HOST_USO
    | features::HOST_UFO;
/// Receive features negotiated by a guest.
const RECEIVES: u64 = features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::GUEST_USO4
    | features::GUEST_USO6;

fn random_layout(rng: &mut ChaCha8Rng, indirect: bool) -> TxLayout {
    let header = match rng.random_range(0..4) {
        0 => HeaderPlacement::Own,
        1 => HeaderPlacement::Split(rng.random_range(2..=12)),
        _ => HeaderPlacement::WithData,
    };
    let data = match rng.random_range(0..4) {
        0 => DataPlacement::Scattered(rng.random_range(2..=100)),
        1 => DataPlacement::Parts,
        _ => DataPlacement::OneBuffer,
    };
    TxLayout { header, data, indirect: indirect && rng.random_bool(0.7) }
}

#[test]
fn frames_of_every_length_cross_from_guest_to_guest_in_any_layout() {
    const RING: u16 = 256;
    let mut rng = rng();
    for case in Case::all() {
        let rig = Rig::new();
        let mut guests = rig.guests(&case.guest().queue_size(RING));
        for guest in &mut guests {
            guest.tx(0).set_compare(true);
            let room: usize = if case.mergeable {
                // Use chains of random shape that together hold the longest frame.
                let lens = [rng.random_range(1..500), rng.random_range(600..3000)];
                guest.rx(0).fill_chains(120, &lens) * (lens[0] + lens[1])
            } else {
                let first = rng.random_range(1..40_000);
                guest.rx(0).fill_chains(12, &[first, FRAME_LEN_MAX + 12 - first]) * (FRAME_LEN_MAX + 12)
            };
            assert!(room > FRAME_LEN_MAX, "{case:?}");
        }
        for round in 0..30 {
            let len = random_len(&mut rng, FRAME_LEN_MAX);
            let frame = frame(&mut rng, len);
            let [one, other] = &mut guests;
            let (from, to) = if round % 2 == 0 { (one, other) } else { (other, one) };
            let layout = random_layout(&mut rng, case.indirect);
            from.tx(0).set_layout(layout);
            let what = (case, layout, round);
            let received = carry(from, to, 0, &frame, &what);
            check_received(&received, case.mergeable, &what);
            let expected = VnetHeader { num_buffers: received.num_buffers, ..VnetHeader::default() };
            assert_eq!(received.vnet(), expected, "{what:?}");
        }
        let [one, other] = &mut guests;
        one.tx(0).drain(PATIENCE);
        other.tx(0).drain(PATIENCE);
        assert_eq!((rig.bad_chains(0), rig.bad_chains(1)), (0, 0), "{case:?}");
    }
}

#[test]
fn a_frame_may_lie_in_buffers_of_one_byte_and_arrive_in_such() {
    let mut rng = rng();
    for case in Case::layouts() {
        for indirect in [false, true] {
            let rig = Rig::with(&RigConfig::mtu(1500));
            let [mut a, mut b] = rig.guests(&case.guest().indirect(indirect).queue_size(1024));
            b.rx(0).fill_chains(78, &[1; 13]);
            let layout =
                TxLayout { header: HeaderPlacement::Split(12), data: DataPlacement::Scattered(2000), indirect };
            a.tx(0).set_layout(layout);
            for len in [14, 15, 60, 999] {
                let received = carry(&mut a, &mut b, 0, &frame(&mut rng, len), &(case, layout));
                check_received(&received, true, &(case, layout));
                assert_eq!(received.chains.len(), (len + 12).div_ceil(13));
            }
        }
    }
}

#[test]
fn many_frames_over_many_small_buffers_show_no_gap_and_no_half_frame() {
    let mut rng = rng();
    for case in Case::all().filter(|case| case.mergeable) {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest().queue_size(512));
        // The buffer length of 64 divides neither header nor frame lengths.
        b.rx(0).fill(511, 64);
        for _ in 0..100 {
            let frames: Vec<_> = (0..16)
                .map(|_| {
                    let len = random_len(&mut rng, 1514);
                    frame(&mut rng, len)
                })
                .collect();
            for frame in &frames {
                assert!(a.tx(0).stage(&VnetHeader::default(), &[frame]).is_some());
            }
            a.tx(0).publish();
            for frame in &frames {
                let received = b.rx(0).recv(PATIENCE);
                assert!(received.frame == *frame, "{case:?}");
                check_received(&received, true, &case);
            }
            a.tx(0).drain(PATIENCE);
        }
    }
}

/// Returns a super-frame with a header that requests its segmentation.
fn super_frame(packet: &Packet, gso_type: u8, gso_size: u16) -> (VnetHeader, Vec<u8>) {
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: packet.payload_start() as u16,
        gso_size,
        csum_start: packet.transport_start() as u16,
        csum_offset: packet.checksum_offset() as u16,
        num_buffers: 0,
    };
    (header, Packet { checksum: Checksum::Partial, ..packet.clone() }.build())
}

/// Returns super-frames of every kind. The flag is true if the receiver's adapter can coalesce the segments again.
fn super_frames(rng: &mut ChaCha8Rng) -> Vec<(VnetHeader, Vec<u8>, bool)> {
    let mut frames = Vec::new();
    for is_ipv6 in [false, true] {
        let (tcp, header_len) = if is_ipv6 { (GSO_TCPV6, 60) } else { (GSO_TCPV4, 40) };
        for len in [1461, 9000, 65_535 - header_len, rng.random_range(1500..60_000)] {
            let packet = Packet { is_ipv6, ..Packet::tcp(len) };
            let gso_size = (1500 - header_len) as u16;
            let (header, frame) = super_frame(&packet, tcp, gso_size);
            frames.push((header, frame, true));
        }
        let udp = Packet { is_ipv6, ..Packet::udp(rng.random_range(2000..60_000)) };
        let (header, frame) = super_frame(&udp, GSO_UDP_L4, 1400);
        frames.push((header, frame, true));
        let (header, frame) = super_frame(&udp, GSO_UDP, 1400);
        frames.push((header, frame, false));
    }
    frames
}

#[test]
fn super_frames_arrive_cut_as_the_segmenter_cuts_them() {
    let mut rng = rng();
    for case in Case::all() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let a_builder = case.guest().features(SENDS);
        let (mut a, mut b) = (rig.guest(0, &a_builder), rig.guest(1, &case.guest()));
        b.rx(0).fill(256, 1526);
        for (header, frame, _) in super_frames(&mut rng) {
            let mut expected = cut(&header.to_bytes(), &frame);
            let layout = random_layout(&mut rng, case.indirect);
            a.tx(0).set_layout(layout);
            a.tx(0).send(&header, &[&frame[..54], &frame[54..]]);
            for (n, segment) in expected.iter_mut().enumerate() {
                let received = b.rx(0).recv(PATIENCE);
                // The adapter chooses the identification of a datagram's IPv6 fragments.
                let is_v6_fragment = header.gso_type == GSO_UDP && segment[12..14] == [0x86, 0xdd];
                if is_v6_fragment {
                    segment[58..62].copy_from_slice(&received.frame[58..62]);
                }
                assert!(received.frame == *segment, "{case:?}: segment {n} of {header:?}");
                check_received(&received, case.mergeable, &case);
                // V26, V36: no receive offload was negotiated, so no mark is allowed.
                let vnet = received.vnet();
                assert_eq!((vnet.flags, vnet.gso_type), (0, GSO_NONE), "{case:?}");
            }
        }
        a.tx(0).drain(PATIENCE);
        assert_eq!(rig.sent(0, Direction::lost_total) + rig.received(1, Direction::lost_total), 0, "{case:?}");
    }
}

#[test]
fn what_was_cut_is_joined_for_a_guest_that_takes_super_frames() {
    let mut rng = rng();
    for case in Case::all() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest().features(SENDS | RECEIVES));
        let room = 65_535 + 14 + 12;
        let filled = if case.mergeable { b.rx(0).fill(250, 1526) } else { b.rx(0).fill(250, room) };
        assert_eq!(filled, 250);
        for (header, frame, _) in super_frames(&mut rng).into_iter().filter(|(_, _, may_be_joined)| *may_be_joined) {
            a.tx(0).send(&header, &[&frame]);
            let expected = cut(&header.to_bytes(), &frame);
            let mut came = Vec::new();
            while came.len() < expected.len() {
                let received = b.rx(0).recv(PATIENCE);
                check_received(&received, case.mergeable, &case);
                let vnet = received.vnet();
                if vnet.gso_type == GSO_NONE {
                    // V40: a last segment that is not coalesced must be marked as verified.
                    assert_eq!(vnet.flags, DATA_VALID, "{case:?}");
                    came.push(received.frame);
                    continue;
                }
                // Check requirements V34, V37 and V39.
                assert_eq!((vnet.flags, vnet.gso_type, vnet.gso_size), (NEEDS_CSUM, header.gso_type, header.gso_size));
                assert_eq!((vnet.csum_start, vnet.csum_offset), (header.csum_start, header.csum_offset), "{case:?}");
                assert!(vnet.hdr_len >= header.hdr_len, "{case:?}: {vnet:?}");
                came.extend(cut(&received.header, &received.frame));
            }
            assert!(came == expected, "{case:?}: {header:?}");
        }
        let coalesced = rig.received(1, |d| d.host_frames.get()) < rig.received(1, |d| d.frames_out.get());
        assert!(coalesced, "{case:?}: nothing was coalesced");
    }
}

/// Returns interleaved frames of several flows. Each flow is in order, and some frames have a wrong checksum.
fn interleaved_flows(rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let mut flows: Vec<Packet> = (0..5u16)
        .map(|n| {
            let payload = pattern(u32::from(n), rng.random_range(1..1400));
            Packet {
                ports: (6000 + n, 80),
                is_udp: n == 4,
                is_ipv6: n % 2 == 1,
                id: 100 * n,
                payload,
                ..Packet::tcp(0)
            }
        })
        .collect();
    (0..120)
        .map(|_| {
            let packet = &mut flows[rng.random_range(0..5)];
            let checksum = if rng.random_bool(0.05) { Checksum::Wrong } else { Checksum::Full };
            let frame = Packet { checksum, ..packet.clone() }.build();
            packet.seq = packet.seq.wrapping_add(packet.payload.len() as u32);
            packet.id += 1;
            frame
        })
        .collect()
}

/// Returns the bytes that identify the flow in a frame of [`interleaved_flows`].
fn flow_of(frame: &[u8]) -> Vec<u8> {
    let start = if frame[12] == 0x86 { 54 } else { 34 };
    frame[start..start + 4].to_vec()
}

#[test]
fn flows_that_interleave_are_coalesced_in_buffers_of_any_shape() {
    let mut rng = rng();
    for case in Case::all() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let (mut a, mut b) = (rig.guest(0, &case.guest()), rig.guest(1, &case.guest().features(RECEIVES)));
        let whole = 65_535 + 14 + 12;
        let first = rng.random_range(700..2000);
        let second = if case.mergeable { 777 } else { whole - first };
        b.rx(0).fill_chains(120, &[first, second]);
        for _ in 0..5 {
            let sent = interleaved_flows(&mut rng);
            for frame in &sent {
                a.tx(0).stage(&VnetHeader::default(), &[frame]).expect("room in the ring");
            }
            a.tx(0).publish();
            let mut came = Vec::new();
            while came.len() < sent.len() {
                let received = b.rx(0).recv(PATIENCE);
                check_received(&received, case.mergeable, &case);
                match received.vnet().gso_type {
                    GSO_NONE => came.push(received.frame),
                    _ => came.extend(cut(&received.header, &received.frame)),
                }
            }
            let of_flow = |frames: &[Vec<u8>], flow: &[u8]| -> Vec<Vec<u8>> {
                frames.iter().filter(|frame| flow_of(frame) == flow).cloned().collect()
            };
            for flow in sent.iter().map(|frame| flow_of(frame)) {
                assert!(of_flow(&came, &flow) == of_flow(&sent, &flow), "{case:?}: flow {flow:?}");
            }
            a.tx(0).drain(PATIENCE);
        }
        let coalesced = rig.received(1, |d| d.host_frames.get()) < rig.received(1, |d| d.frames_out.get());
        assert!(coalesced, "{case:?}: nothing was coalesced");
    }
}

#[test]
fn a_ring_that_runs_out_within_an_aggregate_loses_counted_frames_and_no_chain() {
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let (mut a, mut b) = (rig.guest(0, &case.guest()), rig.guest(1, &case.guest().features(RECEIVES)));
        b.rx(0).set_recycle(false);
        // The buffers hold only some of the frames.
        b.rx(0).fill(10, 2048);
        let packet = Packet::tcp(0);
        let frames: Vec<_> = (0..60u32)
            .map(|n| {
                let payload = pattern(n, 1400);
                Packet { seq: 1000 + 1400 * n, id: n as u16, payload, ..packet.clone() }.build()
            })
            .collect();
        for frame in &frames {
            a.tx(0).stage(&VnetHeader::default(), &[frame]).expect("room in the ring");
        }
        a.tx(0).publish();
        let accounted = || rig.received(1, |d| d.frames_out.get()) + rig.received(1, Direction::lost_total);
        wait_until("every frame is delivered or counted", || accounted() == frames.len() as u64);
        let mut came = Vec::new();
        while let Some(received) = b.rx(0).try_recv() {
            check_received(&received, case.mergeable, &case);
            match received.vnet().gso_type {
                GSO_NONE => came.push(received.frame),
                _ => came.extend(cut(&received.header, &received.frame)),
            }
        }
        assert_eq!(came.len() as u64, rig.received(1, |d| d.frames_out.get()), "{case:?}");
        assert!(!came.is_empty() && came.iter().all(|frame| frames.contains(frame)), "{case:?}");
        assert!(rig.received(1, Direction::lost_total) > 0, "{case:?}");
        // With new buffers, the ring continues.
        b.rx(0).fill(10, 2048);
        carry(&mut a, &mut b, 0, &frame(&mut rng(), 600), &case);
    }
}

#[test]
fn checksums_are_completed_for_the_line_and_verified_for_the_guest() {
    for case in Case::all() {
        for is_udp in [false, true] {
            let rig = Rig::with(&RigConfig::mtu(1500));
            let told = case.guest().features(features::CSUM | features::GUEST_CSUM);
            let [mut a, mut b] = rig.guests(&told);
            let packet = Packet { is_udp, ..Packet::tcp(700) };
            let full = packet.build();
            let start = (packet.transport_start() as u16, packet.checksum_offset() as u16);
            b.rx(0).fill(8, 1526);
            let partial = Packet { checksum: Checksum::Partial, ..packet.clone() }.build();
            let header =
                VnetHeader { flags: NEEDS_CSUM, csum_start: start.0, csum_offset: start.1, ..VnetHeader::default() };
            a.tx(0).send(&header, &[&partial]);
            let received = b.rx(0).recv(PATIENCE);
            assert!(received.frame == full, "{case:?}");
            assert_eq!((received.vnet().flags, received.vnet().gso_type), (DATA_VALID, GSO_NONE), "{case:?}");

            // A frame with a wrong checksum arrives unchanged, and is not marked valid (V40). Without NEEDS_CSUM, the
            // checksum position has no meaning (V13).
            let wrong = Packet { checksum: Checksum::Wrong, ..packet.clone() }.build();
            a.tx(0).send(&VnetHeader { flags: 0, ..header }, &[&wrong]);
            let received = b.rx(0).recv(PATIENCE);
            assert!(received.frame == wrong, "{case:?}");
            assert_eq!(received.vnet().flags, 0, "{case:?}");
            assert_eq!(rig.received(1, |d| d.bad_checksum.get()), 1);
        }
    }
}

#[test]
fn a_legacy_driver_without_mergeable_buffers_has_a_header_of_ten_bytes() {
    let mut rng = rng();
    for case in Case::all().filter(|case| !case.packed && !case.in_order) {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let builder = case.guest().legacy().features(features::CSUM | features::HOST_TSO4 | features::GUEST_CSUM);
        let [mut a, mut b] = rig.guests(&builder);
        b.rx(0).fill(64, 1526);
        for _ in 0..20 {
            let len = random_len(&mut rng, 1514);
            a.tx(0).set_layout(random_layout(&mut rng, case.indirect));
            let received = carry(&mut a, &mut b, 0, &frame(&mut rng, len), &case);
            assert_eq!(received.header.len(), if case.mergeable { 12 } else { 10 }, "{case:?}");
            check_received(&received, case.mergeable, &case);
        }
        let (header, frame) = super_frame(&Packet::tcp(5000), GSO_TCPV4, 1460);
        a.tx(0).send(&header, &[&frame]);
        for segment in cut(&header.to_bytes(), &frame) {
            assert!(b.rx(0).recv(PATIENCE).frame == segment, "{case:?}");
        }
    }
}

#[test]
fn rings_of_every_size_carry_frames_round_and_round() {
    const SPLIT: [u16; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
    const PACKED: [u16; 14] = [1, 2, 3, 5, 7, 8, 31, 64, 100, 255, 256, 257, 1000, 1024];
    let mut rng = rng();
    for case in Case::all().filter(|case| !case.indirect) {
        for &size in if case.packed { &PACKED[..] } else { &SPLIT[..] } {
            let rig = Rig::with(&RigConfig::mtu(1500));
            let [mut a, mut b] = rig.guests(&case.guest().queue_size(size));
            b.rx(0).fill(usize::from(size), 1526);
            let one = TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::OneBuffer, indirect: false };
            a.tx(0).set_layout(one);
            let laps = if size > 100 { 1 } else { 3 };
            for _ in 0..laps * usize::from(size) + 3 {
                let received = carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &(case, size));
                check_received(&received, case.mergeable, &(case, size));
            }
        }
    }
}

#[test]
fn indices_wrap_around_many_times() {
    const BURST: usize = 64;
    let mut rng = rng();
    for case in Case::all().filter(|case| case.mergeable && !case.indirect) {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let size = if case.packed { 255 } else { 256 };
        let [mut a, mut b] = rig.guests(&case.guest().queue_size(size));
        b.rx(0).fill(128, 1526);
        let mut frame = frame(&mut rng, 60);
        let mut sent = 0u32;
        // Send more chains than a 16-bit index can count.
        while sent < 66_000 {
            for n in 0..BURST as u32 {
                frame[20..24].copy_from_slice(&(sent + n).to_le_bytes());
                a.tx(0).send(&VnetHeader::default(), &[&frame]);
            }
            for n in 0..BURST as u32 {
                frame[20..24].copy_from_slice(&(sent + n).to_le_bytes());
                let received = b.rx(0).recv(PATIENCE);
                assert!(received.frame == frame, "{case:?}: frame {}", sent + n);
            }
            sent += BURST as u32;
        }
        a.tx(0).drain(PATIENCE);
        assert_eq!(rig.sent(0, |d| d.frames_out.get()), u64::from(sent), "{case:?}");
    }
}

#[test]
fn queue_pairs_carry_each_its_own() {
    const PAIRS: u16 = 4;
    let mut rng = rng();
    for case in Case::rings() {
        let rig = Rig::with(&RigConfig::mtu(1500).queue_pairs(PAIRS));
        let [mut a, mut b] = rig.guests(&case.guest().queue_pairs(PAIRS));
        for pair in 0..usize::from(PAIRS) {
            b.rx(pair).fill(32, 1526);
            a.rx(pair).fill(32, 1526);
        }
        for _ in 0..100 {
            let pair = rng.random_range(0..usize::from(PAIRS));
            let len = random_len(&mut rng, 1514);
            carry(&mut a, &mut b, pair, &frame(&mut rng, len), &(case, pair));
            carry(&mut b, &mut a, pair, &frame(&mut rng, len), &(case, pair));
        }
        let frames = rig.controls[0].queues().iter().map(|queue| queue.transmit.frames_out.get());
        assert_eq!(frames.sum::<u64>(), 100);
        assert_eq!(rig.ports[0].status().ring_entries.iter().filter(|entries| **entries > 0).count(), 8);
    }
}

#[test]
fn a_buffer_may_cross_from_one_region_of_memory_into_the_next() {
    const REGION_LEN: u64 = 16 << 20;
    let mut rng = rng();
    let two =
        [RegionSpec::new(0, REGION_LEN), RegionSpec { guest_addr: REGION_LEN, len: REGION_LEN, file_offset: 0x7000 }];
    for case in Case::all() {
        let rig = Rig::new();
        let builder = case.guest().memory(&two);
        let [mut a, mut b] = rig.guests(&builder);
        for len in [14, 60, 1514, FRAME_LEN_MAX] {
            let frame = frame(&mut rng, len);
            let chain_len = len + 12;
            for before in [1, 11, 12, 13, len as u64 + 11, rng.random_range(1..chain_len as u64)] {
                let at = REGION_LEN - before;
                let (from, to) = (a.memory().clone(), b.memory().clone());
                from.write(at, &[&[0; 12][..], &frame].concat());
                to.fill(at, chain_len, 0xee);
                add(b.rx(0).ring(), &[Buffer::writable(at, chain_len)], case.indirect);
                b.rx(0).publish();
                add(a.tx(0).ring(), &[Buffer::readable(at, chain_len)], case.indirect);
                a.tx(0).publish();
                wait_until("the frame across the border", || !b.rx(0).snoop_used().is_empty());
                let used = b.rx(0).ring().take_used().expect("a used chain");
                assert_eq!(used.len as usize, chain_len, "{case:?}");
                assert!(to.read_vec(at + 12, len) == frame, "{case:?}: {before} of {len} bytes before the border");
                a.tx(0).drain(PATIENCE);
            }
        }
    }
}

fn add(ring: &mut offramp_testkit::Virtqueue, buffers: &[Buffer], indirect: bool) -> u16 {
    let id = if indirect { ring.add(&[], buffers) } else { ring.add(buffers, &[]) };
    id.expect("room in the ring")
}

#[test]
fn memory_may_have_many_regions_with_holes_in_any_order() {
    let mut rng = rng();
    let regions: Vec<_> = [7, 3, 5, 1, 8, 2, 6, 4]
        .map(|n| RegionSpec { guest_addr: n << 30, len: 4 << 20, file_offset: n << 12 })
        .to_vec();
    for case in Case::layouts() {
        for slots in [0, protocol::CONFIGURE_MEM_SLOTS] {
            let rig = Rig::with(&RigConfig::mtu(1500));
            let builder = case.guest().memory(&regions).protocol_features(protocol::REPLY_ACK | slots);
            let [mut a, mut b] = rig.guests(&builder);
            // Use buffers in every region.
            for region in 0..regions.len() {
                let buffer = |memory: &GuestMemory| memory.alloc_in(region, 2048, 64);
                let (from, to) = (buffer(a.memory()), buffer(b.memory()));
                let frame = frame(&mut rng, 1000);
                a.memory().write(from + 12, &frame);
                add(b.rx(0).ring(), &[Buffer::writable(to, 2048)], false);
                b.rx(0).publish();
                add(a.tx(0).ring(), &[Buffer::readable(from, 1012)], false);
                a.tx(0).publish();
                wait_until("the frame", || !b.rx(0).snoop_used().is_empty());
                assert!(b.rx(0).ring().take_used().is_some());
                assert!(b.memory().read_vec(to + 12, 1000) == frame, "{case:?}: region {region}");
            }
            assert_eq!(rig.ports[0].status().memory_regions, regions.len());
        }
    }
}

#[test]
fn a_guest_that_sleeps_and_kicks_only_when_asked_never_stalls() {
    const ROUNDS: usize = 10_000;
    let mut rng = rng();
    for case in Case::rings() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest().interrupts(true));
        for guest in [&mut a, &mut b] {
            guest.rx(0).fill(16, 1526);
        }
        let frame = frame(&mut rng, 60);
        // A round carries two frames, so each kind of ring carries `ROUNDS` frames.
        for round in 0..ROUNDS / 2 {
            if round % 500 == 0 {
                // Pause long enough for the worker to fall asleep.
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            carry(&mut a, &mut b, 0, &frame, &(case, round));
            carry(&mut b, &mut a, 0, &frame, &(case, round));
        }
        a.tx(0).drain(PATIENCE);
        let (kicks, calls) = (a.tx(0).signals().kicks, b.rx(0).signals().calls);
        assert!(kicks > 0 && calls > 0, "{case:?}: {kicks} kicks, {calls} calls");
        assert!(kicks <= ROUNDS as u64, "{case:?}: more kicks than frames");
        assert!(rig.is_running());
    }
}

#[test]
fn a_guest_that_wants_no_calls_gets_none() {
    let mut rng = rng();
    for case in Case::rings() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(64, 1526);
        a.rx(0).fill(64, 1526);
        for _ in 0..300 {
            carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
        }
        // The reply was handled after every interrupt for the earlier frames.
        carry(&mut b, &mut a, 0, &frame(&mut rng, 60), &case);
        let calls = b.rx(0).signals().calls + a.tx(0).signals().calls;
        assert_eq!(calls, 0, "{case:?}");
    }
}

#[test]
fn a_guest_is_called_exactly_when_its_event_index_is_passed() {
    let mut rng = rng();
    for case in Case::rings().filter(|case| case.event_idx) {
        for size in [8, 64] {
            let rig = Rig::with(&RigConfig::mtu(1500).unmoderated());
            let [mut a, mut b] = rig.guests(&case.guest().queue_size(size));
            a.rx(0).fill(4, 1526);
            b.rx(0).fill(usize::from(size), 1526);
            for after in [1, 3, 2, 5, 1, 4].into_iter().cycle().take(60) {
                b.rx(0).ring().interrupt_after(after);
                let before = b.rx(0).signals().calls;
                for _ in 1..after {
                    carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
                }
                carry(&mut b, &mut a, 0, &frame(&mut rng, 60), &case);
                assert_eq!(b.rx(0).signals().calls, before, "{case:?}: a call before {after} frames");
                carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
                carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
                carry(&mut b, &mut a, 0, &frame(&mut rng, 60), &case);
                assert_eq!(b.rx(0).signals().calls, before + 1, "{case:?}: after {after} frames");
                b.tx(0).drain(PATIENCE);
            }
        }
    }
}

#[test]
fn every_page_that_the_device_writes_is_in_the_log() {
    let mut rng = rng();
    for case in Case::all() {
        // Place rings and receive buffers far apart, in a memory small enough to compare.
        let regions = [RegionSpec::new(0x10_0000, 8 << 20)];
        let rig = Rig::with(&RigConfig::mtu(9000));
        let builder = case.guest().queue_size(256).memory(&regions).features(RECEIVES);
        let protocol = protocol::REPLY_ACK | protocol::STATUS | protocol::LOG_SHMFD;
        let [mut a, mut b] = [rig.guest(0, &builder), rig.guest(1, &builder.protocol_features(protocol))];
        b.rx(0).set_recycle(false);
        let len = if case.mergeable { 1500 } else { 9100 };
        b.rx(0).fill(200, len);
        carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &case);
        let rings = [b.rx(0).ring().addresses(), b.tx(0).ring().addresses()];
        let log = log_writes(&mut b, &rings);
        let memory = b.memory().clone();
        let pages = || memory.read_vec(regions[0].guest_addr, regions[0].len as usize);
        let before = pages();
        for _ in 0..25 {
            let len = random_len(&mut rng, 9014);
            carry(&mut a, &mut b, 0, &frame(&mut rng, len), &case);
        }
        // Send frames that are coalesced in place and fit into one buffer.
        for n in 0..12u32 {
            let payload = pattern(n, 700);
            let packet = Packet { seq: 1000 + 700 * n, id: n as u16, payload, ..Packet::tcp(0) };
            a.tx(0).stage(&VnetHeader::default(), &[&packet.build()]).expect("room in the ring");
        }
        a.tx(0).publish();
        let mut bytes = 0;
        while bytes < 12 * 700 {
            bytes += b.rx(0).recv(PATIENCE).frame.len() - 54;
        }
        let after = pages();
        let (mut changed, mut unmarked) = (0, Vec::new());
        for (page, (old, new)) in before.chunks(PAGE_LEN as usize).zip(after.chunks(PAGE_LEN as usize)).enumerate() {
            let addr = regions[0].guest_addr + page as u64 * PAGE_LEN;
            changed += u32::from(old != new);
            if old != new && !log.is_dirty(addr) {
                unmarked.push(addr);
            }
        }
        assert!(unmarked.is_empty(), "{case:?}: written and not marked: {unmarked:x?}");
        assert!(changed > 10, "{case:?}");
        let rings_len = 4 * 256 * 16 / PAGE_LEN as u32;
        assert!(log.dirty_pages() <= changed + rings_len, "{case:?}: {} of {changed}", log.dirty_pages());
        log.clear();

        // The port only reads the guest's transmitted frames, but writes to the ring.
        a.rx(0).fill(8, 9100);
        carry(&mut b, &mut a, 0, &frame(&mut rng, 60), &case);
        b.tx(0).drain(PATIENCE);
        let used = if case.packed { rings[1].descriptors } else { rings[1].device };
        assert!(log.is_dirty(used), "{case:?}: the used ring");
        wait_until("the wish for kicks to be marked", || log.is_dirty(rings[1].device));
    }
}

#[test]
fn a_received_frame_is_verified_only_as_far_as_it_can_be() {
    // Check that a coalesced frame is complete: the checksum completed from the partial checksum equals the checksum of
    // the segments.
    let rig = Rig::with(&RigConfig::mtu(1500));
    let [mut a, mut b] = rig.guests(&Guest::builder().mergeable(true).features(SENDS | RECEIVES));
    b.rx(0).fill(200, 1526);
    let packet = Packet { payload: pattern(7, 20_000), ..Packet::tcp(0) };
    let (header, frame) = super_frame(&packet, GSO_TCPV4, 1460);
    a.tx(0).send(&header, &[&frame]);
    let received = b.rx(0).recv(PATIENCE);
    assert_eq!(received.vnet().gso_type, GSO_TCPV4);
    let mut whole = received.frame.clone();
    assert!(Frame::received(&mut whole).has_good_ipv4_header());
    let partial = Frame::received(&mut whole).make_partial().unwrap();
    // V34: the field already held the checksum of the pseudo-header.
    assert!(whole == received.frame);
    assert_eq!((partial.start, partial.offset), (received.vnet().csum_start, received.vnet().csum_offset));
}

#[test]
fn a_frame_longer_than_the_line_is_counted_and_the_next_one_goes() {
    // Covers requirements V5 and V6, and attack 31.
    let mut rng = rng();
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let [mut a, mut b] = rig.guests(&case.guest());
        b.rx(0).fill(16, 1526);
        for (n, len) in [1515, 1519, 9000, 65_535, 65_549].into_iter().enumerate() {
            a.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng, len)]);
            carry(&mut a, &mut b, 0, &frame(&mut rng, 1514), &case);
            assert_eq!(rig.refused(0, Loss::TooLong), n as u64 + 1, "{case:?}: {len} bytes");
        }
    }
}
