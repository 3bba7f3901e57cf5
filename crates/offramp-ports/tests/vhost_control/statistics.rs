//! Tests of statistics requested by a driver (virtio 1.4, 5.1.9.5.11; V83 to V86).

use super::rss::{self, PAIRS, RSS_CONFIG, datagram, toeplitz};
use super::{ERR, MSS, OK, PAIRS_SET, SEGMENTS, command, rig, segments_of, status, super_frame};
use crate::vhost_common::{Case, PATIENCE, carry, frame, rng, wait_until};
use offramp_adapter::limit::{PortLimits, RateLimit};
use offramp_adapter::stats::Loss;
use offramp_testkit::{Guest, GuestBuilder, VnetHeader, features};
use rand::{Rng, RngExt};
use std::time::Duration;

const QUERY: [u8; 2] = [8, 0];
const GET: [u8; 2] = [8, 1];
/// Bits of the types of statistics in a command. A reply has the number of the bit as its type.
const CVQ: u64 = 1 << 32;
const RX_BASIC: u64 = 1;
const RX_CSUM: u64 = 2;
const RX_GSO: u64 = 4;
const RX_SPEED: u64 = 8;
const TX_BASIC: u64 = 1 << 16;
const TX_CSUM: u64 = 1 << 17;
const TX_GSO: u64 = 1 << 18;
const TX_SPEED: u64 = 1 << 19;
/// Types that do not depend on negotiated offloads.
const ALWAYS: u64 = CVQ | RX_BASIC | RX_SPEED | TX_BASIC | TX_SPEED;
const OFFLOADS: u64 = features::CSUM | features::HOST_TSO4 | features::GUEST_CSUM | features::GUEST_TSO4;

fn builder(case: &Case, offloads: u64) -> GuestBuilder {
    case.guest().features(features::DEVICE_STATS | offloads).control_queue()
}

/// Returns the bytes of an element of `virtio_net_ctrl_queue_stats`.
fn of(vring: u16, types: u64) -> Vec<u8> {
    [&vring.to_le_bytes()[..], &[0; 6], &types.to_le_bytes()].concat()
}

/// Requests statistics with `room` bytes after `ack`, and returns the bytes written by the device.
fn get(guest: &mut Guest, elements: &[Vec<u8>], room: usize) -> Vec<u8> {
    let answer = guest.control().command(&[&GET, &elements.concat()], &[1, room]).expect("an answer");
    assert_eq!(answer[0], OK, "{elements:?}");
    answer[1..].to_vec()
}

/// Returns the counters of each reply, after checking the reply's header.
fn replies(bytes: &[u8]) -> Vec<(u8, u16, Vec<u64>)> {
    let mut rest = bytes;
    let mut replies = Vec::new();
    while let [kind, 0, low, high, 0, 0, size, 0, ..] = *rest {
        let (reply, later) = rest.split_at(size.into());
        let (counters, []) = reply[8..].as_chunks() else { panic!("half a counter") };
        let counters = counters.iter().map(|counter| u64::from_le_bytes(*counter)).collect();
        replies.push((kind, u16::from_le_bytes([low, high]), counters));
        rest = later;
    }
    assert!(rest.is_empty(), "{rest:?}");
    replies
}

#[test]
fn v83_the_types_that_there_are_follow_from_what_was_negotiated() {
    let rig = rig(1);
    for case in Case::rings() {
        for (offloads, expected) in [
            (0, ALWAYS),
            (features::CSUM | features::GUEST_CSUM, ALWAYS | RX_CSUM | TX_CSUM),
            (OFFLOADS, ALWAYS | RX_CSUM | RX_GSO | TX_CSUM | TX_GSO),
        ] {
            let mut guest = rig.guest(0, &builder(&case, offloads));
            let answer = guest.control().command(&[&QUERY], &[1, 8]);
            assert_eq!(answer, Some([&[OK][..], &u64::to_le_bytes(expected)].concat()), "{case:?}");
            // The room is one byte too short for the answer.
            assert_eq!(guest.control().command(&[&QUERY], &[1, 7]), Some(vec![ERR]));
        }
    }
}

#[test]
fn v84_one_bad_element_makes_the_whole_command_fail() {
    let rig = rig(1);
    let case = Case::rings().next().unwrap();
    let mut guest = rig.guest(0, &builder(&case, features::CSUM));
    let wrong = [(0, RX_CSUM), (0, TX_BASIC), (1, RX_BASIC), (1, TX_GSO), (2, RX_BASIC), (0, CVQ), (3, CVQ), (3, 0)];
    let of_speed = [(0, TX_SPEED), (1, RX_SPEED), (2, RX_SPEED)];
    let unknown = [(0, RX_SPEED << 1), (1, TX_SPEED << 1), (0, 1 << 63), (u16::MAX, RX_BASIC)];
    for (vring, types) in wrong.into_iter().chain(of_speed).chain(unknown) {
        let elements = [of(0, RX_BASIC), of(vring, types)].concat();
        let answer = guest.control().command(&[&GET, &elements], &[1, 512]);
        assert_eq!(answer, Some(vec![ERR]), "{vring} {types:#x}");
    }
    assert_eq!(command(&mut guest, GET, &of(1, TX_BASIC | TX_CSUM | TX_SPEED)), OK);
    assert_eq!(command(&mut guest, GET, &[of(0, 0), of(2, 0)].concat()), OK, "nothing is asked for");
    let mut without = rig.guest(1, &case.guest().control_queue());
    assert_eq!(command(&mut without, GET, &of(0, RX_BASIC)), ERR);
    assert_eq!(command(&mut without, QUERY, &[]), ERR);
}

#[test]
fn v85_v86_replies_have_their_size_type_and_queue_and_fill_only_the_room_that_there_is() {
    let rig = rig(1);
    for case in Case::rings() {
        let mut guest = rig.guest(0, &builder(&case, OFFLOADS));
        let of_receive = RX_BASIC | RX_CSUM | RX_GSO | RX_SPEED;
        let all = [of(0, of_receive), of(1, TX_BASIC | TX_CSUM | TX_GSO | TX_SPEED), of(2, CVQ)];
        let sizes = [56, 40, 40, 24, 56, 24, 56, 24, 24];
        let kinds = [(0, 0), (1, 0), (2, 0), (3, 0), (16, 1), (17, 1), (18, 1), (19, 1), (32, 2)];
        for room in 1..=sizes.iter().sum::<usize>() + 9 {
            let fit = (1..=sizes.len()).rev().find(|count| sizes[..*count].iter().sum::<usize>() <= room).unwrap_or(0);
            let found = replies(&get(&mut guest, &all, room));
            assert_eq!(
                found.iter().map(|(kind, vring, _)| (*kind, *vring)).collect::<Vec<_>>(),
                kinds[..fit],
                "{room}"
            );
        }
    }
}

#[test]
fn what_a_guest_sends_and_receives_is_counted_for_it() {
    for case in Case::rings() {
        let rig = rig(1);
        let mut a = rig.guest(0, &builder(&case, OFFLOADS));
        let mut b = rig.guest(1, &builder(&case, OFFLOADS));
        let mut rng = rng();
        // Two frames are dropped, because the ring has no buffers yet.
        for _ in 0..2 {
            a.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng, 100)]);
        }
        wait_until("two drops", || rig.received(1, |count| count.lost(Loss::Drop)) == 2);
        b.rx(0).fill(64, 2048);
        for _ in 0..3 {
            carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
        }
        let (header, bytes) = super_frame();
        a.tx(0).send(&header, &[&bytes]);
        let (mut segments, mut packets, mut received, mut gso) = (0, 3, 300, [0; 4]);
        let mut checksums = [0, 0, 3, 0];
        while segments < SEGMENTS {
            let got = b.rx(0).recv(PATIENCE);
            let (count, len) = (segments_of(&got) as u64, got.frame.len() as u64);
            (segments, packets, received) = (segments + count as usize, packets + 1, received + len);
            checksums[usize::from(got.vnet().flags == 1)] += 1;
            if count > 1 {
                let headers = u64::from(got.vnet().hdr_len);
                let of_frame = [1, len, count, len + (count - 1) * headers];
                gso.iter_mut().zip(of_frame).for_each(|(sum, of_one)| *sum += of_one);
            }
        }
        // Send a chain without a frame.
        a.tx(0).send(&VnetHeader::default(), &[]);
        wait_until("it to be refused", || rig.refused(0, Loss::BadRequest) == 1);
        let [len, headers] = [bytes.len(), bytes.len() - SEGMENTS * usize::from(MSS)].map(|len| len as u64);
        let on_wire = len + (SEGMENTS as u64 - 1) * headers;
        let sent = replies(&get(&mut a, &[of(1, TX_BASIC | TX_CSUM | TX_GSO)], 136));
        assert_eq!(sent[0].2[1..3], [6, 500 + len], "{case:?}");
        assert_eq!((&sent[0].2[4..], &sent[1].2[..]), (&[1, 1][..], &[5, 1][..]), "{case:?}");
        assert_eq!(sent[2].2, [1, len, SEGMENTS as u64, on_wire, 0, 0], "{case:?}");
        let got = replies(&get(&mut b, &[of(0, RX_BASIC | RX_CSUM | RX_GSO)], 136));
        assert_eq!((&got[0].2[1..3], &got[0].2[4..]), (&[packets, received][..], &[2, 2][..]), "{case:?}");
        assert_eq!((got[1].2.clone(), got[2].2.clone()), (checksums.to_vec(), gso.to_vec()), "{case:?}");
        // The current command is the second command and counts as successful. An invalid command does not count as
        // successful.
        assert_eq!(replies(&get(&mut b, &[of(2, CVQ)], 24)), [(32, 2, vec![2, 2])]);
        assert_eq!(command(&mut b, [8, 9], &[]), ERR);
        assert_eq!(replies(&get(&mut b, &[of(2, CVQ)], 24)), [(32, 2, vec![4, 3])]);
        assert_eq!(status(&rig, 1).refused, 1);
    }
}

#[test]
fn the_statistics_of_a_guest_begin_with_it() {
    for case in Case::rings() {
        let rig = rig(1);
        let mut sender = rig.guest(1, &case.guest());
        sender.rx(0).fill(64, 2048);
        for _ in 0..2 {
            let mut guest = rig.guest(0, &builder(&case, 0).interrupts(true));
            let of_both = |guest: &mut Guest| replies(&get(guest, &[of(0, RX_BASIC), of(1, TX_BASIC)], 112));
            assert!(of_both(&mut guest).iter().all(|(_, _, counters)| *counters == [0; 6]), "{case:?}");
            guest.rx(0).fill(64, 2048);
            carry(&mut sender, &mut guest, 0, &frame(&mut rng(), 100), &case);
            carry(&mut guest, &mut sender, 0, &frame(&mut rng(), 100), &case);
            assert!(of_both(&mut guest)[0].2[3] > 0, "its interrupts: {case:?}");
        }
    }
}

/// With this limit, one of several simultaneous frames passes, one waits, and all others are lost.
const ONE_PER_SECOND: RateLimit =
    RateLimit { bits_per_second: None, frames_per_second: Some(1), burst_bytes: None, burst_frames: Some(1) };

/// Returns for each receive queue the frames lost to the limit, their bytes, and all lost frames.
fn lost_of_queues(guest: &mut Guest) -> Vec<[u64; 3]> {
    let all: Vec<_> = (0..PAIRS).map(|pair| of(2 * pair, RX_BASIC | RX_SPEED)).collect();
    let replies = replies(&get(guest, &all, usize::from(PAIRS) * (56 + 24)));
    replies.chunks(2).map(|of_queue| [of_queue[1].2[0], of_queue[1].2[1], of_queue[0].2[4]]).collect()
}

fn total(of_queues: &[[u64; 3]]) -> [u64; 3] {
    [0, 1, 2].map(|nth| of_queues.iter().map(|of_queue| of_queue[nth]).sum())
}

#[test]
fn a_guest_reads_what_the_limit_of_its_port_has_lost_on_each_of_its_queues() {
    const FRAMES: usize = 64;
    const LEN: u64 = 60;
    for case in Case::rings() {
        let rig = rss::rig();
        let mut sender = rig.guest(1, &case.guest().features(features::CSUM | features::HOST_TSO4));
        let mut guest = rig.guest(0, &rss::builder(&case).features(features::DEVICE_STATS));
        let mut rng = rng();
        for pair in 0..PAIRS {
            guest.rx(pair.into()).fill(64, 2048);
        }
        assert_eq!(command(&mut guest, PAIRS_SET, &PAIRS.to_le_bytes()), OK);
        // From the next batch on, the port steers flows to all pairs.
        sender.tx(0).send(&VnetHeader::default(), &[&datagram(&mut rng).0]);
        wait_until("a frame", || (0..PAIRS).any(|pair| guest.rx(pair.into()).recv_within(Duration::ZERO).is_some()));
        rig.controls[0].set_limits(PortLimits { rx: ONE_PER_SECOND, ..PortLimits::default() });

        // Sends the frames, waits until the sender's port has carried all of them, and returns the number of frames
        // lost to the limit so far.
        let mut sent = 1;
        let mut send = |header: &VnetHeader, frames: &[Vec<u8>], wire_frames: usize| {
            for frame in frames {
                sender.tx(0).send(header, &[frame]);
            }
            sent += (frames.len() * wire_frames) as u64;
            wait_until("all to be carried", || rig.sent(1, |count| count.frames_out.get()) == sent);
            rig.received(0, |count| count.lost(Loss::RateLimit))
        };
        let datagrams: Vec<_> = (0..FRAMES).map(|_| datagram(&mut rng).0).collect();
        let mut lost = send(&VnetHeader::default(), &datagrams, 1);
        let mut counted = lost_of_queues(&mut guest);
        assert_eq!(total(&counted), [lost, lost * LEN, lost], "{case:?}");
        // With a fair hash, the probability of an unused queue is 10^-10.
        assert!(lost > 0 && counted.iter().all(|of_queue| of_queue[0] > 0), "{case:?}: {counted:?}");

        let (header, super_frame) = super_frame();
        let headers = super_frame.len() - SEGMENTS * usize::from(MSS);
        let of_super_frame = (super_frame.len() + (SEGMENTS - 1) * headers) as u64;
        // The flow consists of both addresses and both ports.
        let flow_of_super_frame = super_frame[26..38].to_vec();
        let (plain, _, flow) = datagram(&mut rng);
        for (header, frame, flow, wire_frames, bytes) in [
            (VnetHeader::default(), plain, flow, 1, LEN),
            (header, super_frame, flow_of_super_frame, SEGMENTS, of_super_frame),
        ] {
            let mut key = [0; rss::KEY_LEN];
            rng.fill_bytes(&mut key);
            let table: Vec<u16> = (0..16).map(|_| rng.random_range(0..PAIRS)).collect();
            let fields = rss::config(rss::ALL, 15, 0, &table, PAIRS, &key);
            assert_eq!(command(&mut guest, RSS_CONFIG, &fields), OK, "{case:?}");
            let lost_now = send(&header, &vec![frame; 20], wire_frames);
            let frames = lost_now - std::mem::replace(&mut lost, lost_now);
            assert!(frames > 0, "{case:?}");
            let of_now = [frames, frames / wire_frames as u64 * bytes, frames];
            let pair = usize::from(table[toeplitz(&key, &flow) as usize & 15]);
            counted[pair].iter_mut().zip(of_now).for_each(|(count, of_now)| *count += of_now);
            assert_eq!(lost_of_queues(&mut guest), counted, "{case:?}: all on pair {pair}");
        }
    }
}

#[test]
fn what_waits_for_a_limit_in_the_guest_or_on_a_cable_is_not_counted_as_lost() {
    const FRAMES: usize = 20;
    let limit = RateLimit { frames_per_second: Some(200), burst_frames: Some(1), ..RateLimit::default() };
    for case in Case::layouts() {
        let rig = rig(1);
        let mut a = rig.guest(0, &builder(&case, 0));
        let mut b = rig.guest(1, &builder(&case, 0));
        rig.controls[0].set_limits(PortLimits { tx: limit, rx: limit });
        let mut rng = rng();
        a.rx(0).fill(64, 2048);
        b.rx(0).fill(64, 2048);
        for guest in [&mut a, &mut b] {
            for _ in 0..FRAMES {
                guest.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng, 100)]);
            }
        }
        for guest in [&mut a, &mut b] {
            for _ in 0..FRAMES {
                guest.rx(0).recv(PATIENCE);
            }
        }
        assert!(rig.controls[0].limits_reached().iter().all(|reached| *reached > 0), "{case:?}");
        let all = [of(0, RX_SPEED), of(1, TX_SPEED), of(0, RX_BASIC), of(1, TX_BASIC)];
        let found: Vec<_> =
            replies(&get(&mut a, &all, 2 * 24 + 2 * 56)).into_iter().map(|(.., counters)| counters).collect();
        let drops = [found[2][4], found[2][5], found[3][4], found[3][5]];
        assert_eq!((&found[0][..], &found[1][..], drops), (&[0; 2][..], &[0; 2][..], [0; 4]), "{case:?}");
    }
}
