//! Tests of the control queue served by the port (virtio 1.3, 5.1.6.5): the driver's commands, byte for byte, and
//! arbitrary bytes from a guest. Numbers such as V56 refer to the table in `docs/vhost-user.md`.

mod configuration;
mod filters;
mod rss;
mod saved;
mod statistics;

use crate::vhost_common::packet::{Checksum, Packet};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, Scratch, carry, cut, frame, rng, wait_until};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_adapter::moderation::Coalescing;
use offramp_adapter::port::HostPort;
use offramp_adapter::stats::Loss;
use offramp_ports::vhost_user::{ControlQueue, ControlStatus, VhostQueue, VhostUser, VhostUserConfig};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::VringAddr;
use offramp_testkit::vnet::{GSO_NONE, GSO_TCPV4, NEEDS_CSUM};
use offramp_testkit::{Buffer, Dialect, Guest, GuestBuilder, Received, VnetHeader};
use rand::{Rng, RngExt};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

const OK: u8 = 0;
const ERR: u8 = 1;
/// Classes and numbers of commands (virtio 1.3, 5.1.6.5.5, .8 and .9).
const PAIRS_SET: [u8; 2] = [4, 0];
const OFFLOADS_SET: [u8; 2] = [5, 0];
const COALESCE_TX: [u8; 2] = [6, 0];
const COALESCE_RX: [u8; 2] = [6, 1];
const COALESCE_VQ: [u8; 2] = [6, 2];
const COALESCING_OF_VQ: [u8; 2] = [6, 3];
/// The features for commands that the test driver negotiates.
const COMMANDS: u64 = features::CTRL_GUEST_OFFLOADS | features::NOTF_COAL | features::VQ_NOTF_COAL;

fn rig(pairs: u16) -> Rig {
    Rig::with(&RigConfig { control_queue: ControlQueue::Backend, ..RigConfig::mtu(1500).queue_pairs(pairs) })
}

fn builder(case: &Case, pairs: u16) -> GuestBuilder {
    let features = if pairs > 1 { COMMANDS | features::MQ } else { COMMANDS };
    case.guest().queue_pairs(pairs).features(features).control_queue()
}

/// Sends a command in two buffers, like Linux. Returns the single byte of the answer.
fn command(guest: &mut Guest, command: [u8; 2], fields: &[u8]) -> u8 {
    match guest.control().command(&[&command, fields], &[1]).as_deref() {
        Some([ack]) => *ack,
        other => panic!("an answer of {other:?}"),
    }
}

/// Returns the bytes of a `virtio_net_ctrl_coal`.
fn coalescing(max_usecs: u32, max_packets: u32) -> Vec<u8> {
    [max_packets.to_le_bytes(), max_usecs.to_le_bytes()].concat()
}

/// Returns the bytes of a `virtio_net_ctrl_coal_vq`.
fn of_vq(vring: u16, max_usecs: u32, max_packets: u32) -> Vec<u8> {
    [&vring.to_le_bytes()[..], &[0; 2], &coalescing(max_usecs, max_packets)].concat()
}

fn status(rig: &Rig, side: usize) -> ControlStatus {
    rig.ports[side].status().control.expect("a control queue that runs")
}

fn wish(max_usecs: u32, max_packets: u32) -> Coalescing {
    Coalescing { max_usecs, max_packets }
}

#[test]
fn what_a_guest_sets_is_acknowledged_and_shown_and_can_be_asked_for() {
    for case in Case::rings() {
        let rig = rig(2);
        let mut guest = rig.guest(0, &builder(&case, 2));
        assert_eq!(command(&mut guest, PAIRS_SET, &2u16.to_le_bytes()), OK, "{case:?}");
        assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(50, 16)), OK);
        assert_eq!(command(&mut guest, COALESCE_VQ, &of_vq(3, 7, 9)), OK);
        let asked = [&COALESCING_OF_VQ[..], &of_vq(3, 0, 0)].concat();
        let answer = guest.control().command(&[&asked], &[1, 8]);
        assert_eq!(answer, Some([&[OK][..], &coalescing(7, 9)].concat()));
        wait_until("what was set", || {
            status(&rig, 0).coalescing == [Some(wish(50, 16)), None, Some(wish(50, 16)), Some(wish(7, 9))]
        });
        assert_eq!((status(&rig, 0).queue_pairs, status(&rig, 0).refused), (2, 0));
    }
}

/// Requirements V56 and V57: the guest chooses the pair, regardless of the rings enabled by the frontend.
#[test]
fn a_guest_receives_on_the_first_pair_alone_until_it_asks_for_more() {
    const SECOND_RECEIVE: u32 = 2;
    const CONTROL: u32 = 4;
    let rig = rig(2);
    for case in Case::layouts() {
        let mut a = rig.guest(0, &builder(&case, 2));
        let mut b = rig.guest(1, &builder(&case, 2));
        wait_until("both control queues", || rig.ports.iter().all(|port| port.status().control.is_some()));
        assert_eq!(status(&rig, 1).queue_pairs, 1);
        let mut rng = rng();
        for guest in [&mut a, &mut b] {
            guest.rx(0).fill(64, 2048);
            guest.rx(1).fill(64, 2048);
        }
        carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
        // The guest has not yet enabled its second pair. A disabled control queue does not change this: the guest still
        // receives nothing on the second pair. A monitor that resumes a guest enables the control queue last.
        b.frontend().set_vring_enable(CONTROL, false).unwrap();
        b.frontend().set_vring_enable(SECOND_RECEIVE, true).unwrap();
        let lost = || rig.received(1, |count| count.lost(Loss::Drop));
        let before = lost();
        a.tx(1).send(&VnetHeader::default(), &[&frame(&mut rng, 100)]);
        wait_until("the frame to be lost", || lost() == before + 1);
        b.frontend().set_vring_enable(CONTROL, true).unwrap();
        for guest in [&mut a, &mut b] {
            assert_eq!(command(guest, PAIRS_SET, &2u16.to_le_bytes()), OK);
        }
        carry(&mut a, &mut b, 1, &frame(&mut rng, 100), &case);
        // A pair that the guest no longer uses may still have earlier transmit frames.
        assert_eq!(command(&mut a, PAIRS_SET, &1u16.to_le_bytes()), OK);
        carry(&mut a, &mut b, 1, &frame(&mut rng, 100), &case);
        assert_eq!(command(&mut b, PAIRS_SET, &1u16.to_le_bytes()), OK);
        assert!(command(&mut b, PAIRS_SET, &3u16.to_le_bytes()) == ERR && command(&mut b, PAIRS_SET, &[0, 0]) == ERR);
        wait_until("one pair", || status(&rig, 1).queue_pairs == 1);
    }
}

/// A monitor can negotiate the control queue and serve the queue itself (Cloud Hypervisor).
#[test]
fn a_frontend_that_hears_the_commands_itself_says_which_pairs_are_used() {
    let rig = rig(2);
    for case in Case::layouts() {
        let builder = case.guest().queue_pairs(2).features(features::CTRL_VQ | features::MQ);
        let [mut a, mut b] = [0, 1].map(|side| rig.guest(side, &builder));
        for pair in [0, 1] {
            b.rx(pair).fill(64, 2048);
            carry(&mut a, &mut b, pair, &frame(&mut rng(), 100), &case);
        }
    }
}

#[test]
fn a_guest_that_coalesces_is_interrupted_once_for_its_number_of_frames_and_at_once_when_it_asks_for_less() {
    for case in Case::rings() {
        let rig = rig(1);
        let mut a = rig.guest(0, &builder(&case, 1));
        let mut b = rig.guest(1, &builder(&case, 1).interrupts(true).queue_size(256));
        b.rx(0).fill(250, 2048);
        let mut rng = rng();
        // The time limit is far longer than this test, so only the number of frames ends the wait (V80).
        assert_eq!(command(&mut b, COALESCE_RX, &coalescing(u32::MAX, 15)), OK);
        let calls = |b: &mut Guest| b.rx(0).signals().calls;
        let begun = calls(&mut b);
        for _ in 0..10 {
            a.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng, 100)]);
        }
        wait_until("ten frames", || rig.received(1, |count| count.frames_out.get()) == 10);
        assert_eq!(calls(&mut b), begun, "{case:?}: interrupted before the limit");
        // V82: the waiting frames are checked again when the limit changes.
        assert_eq!(command(&mut b, COALESCE_RX, &coalescing(u32::MAX, 8)), OK);
        wait_until("the interrupt", || calls(&mut b) > begun);
    }
}

/// Number of segments in the super-frame, and payload of each segment in bytes.
const SEGMENTS: usize = 8;
const MSS: u16 = 1000;

/// Returns a guest's frame that requests checksum and segmentation.
fn super_frame() -> (VnetHeader, Vec<u8>) {
    let packet = Packet { checksum: Checksum::Partial, ..Packet::tcp(SEGMENTS * usize::from(MSS)) };
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: packet.payload_start() as u16,
        gso_size: MSS,
        csum_start: packet.transport_start() as u16,
        csum_offset: packet.checksum_offset() as u16,
        num_buffers: 0,
    };
    (header, packet.build())
}

fn segments_of(received: &Received) -> usize {
    if received.vnet().gso_type == GSO_NONE { 1 } else { cut(&received.header, &received.frame).len() }
}

#[test]
fn offloads_that_a_guest_switches_off_are_not_used_until_it_switches_them_on() {
    const TAKES: u64 = features::GUEST_CSUM | features::GUEST_TSO4;
    let rig = rig(1);
    let case = Case::layouts().next().unwrap();
    let mut sender = rig.guest(1, &builder(&case, 1).features(features::CSUM | features::HOST_TSO4));
    let mut guest = rig.guest(0, &builder(&case, 1).features(TAKES));
    guest.rx(0).fill(64, 2048);
    let mut takes = |guest: &mut Guest, bits| {
        wait_until("the offloads", || rig.ports[0].status().control.is_some_and(|now| now.guest_offloads == bits));
        let (header, frame) = super_frame();
        sender.tx(0).send(&header, &[&frame]);
        let mut received = vec![guest.rx(0).recv(PATIENCE)];
        while received.iter().map(segments_of).sum::<usize>() < SEGMENTS {
            received.push(guest.rx(0).recv(PATIENCE));
        }
        assert_eq!(received.len() < SEGMENTS, bits & features::GUEST_TSO4 != 0, "{bits:#x}");
    };
    takes(&mut guest, TAKES);
    assert_eq!(command(&mut guest, OFFLOADS_SET, &features::GUEST_CSUM.to_le_bytes()), OK);
    takes(&mut guest, features::GUEST_CSUM);
    // A transmit feature, a feature that was not negotiated, and all bits.
    for wrong in [features::CSUM, features::GUEST_ECN, u64::MAX] {
        assert_eq!(command(&mut guest, OFFLOADS_SET, &wrong.to_le_bytes()), ERR);
    }
    wait_until("three refusals", || status(&rig, 0).refused == 3);
    takes(&mut guest, features::GUEST_CSUM);
    assert_eq!(command(&mut guest, OFFLOADS_SET, &TAKES.to_le_bytes()), OK);
    takes(&mut guest, TAKES);
}

/// A monitor that pauses and resumes a guest sends the same messages as after a reset, except for the base.
#[test]
fn what_was_set_outlives_a_pause_and_not_a_reset() {
    for case in Case::layouts() {
        let rig = rig(2);
        // Do not negotiate SET_STATUS, like QEMU's generic frontend.
        let builder = builder(&case, 2).protocol_features(protocol::MQ | protocol::REPLY_ACK);
        let mut guest = rig.guest(0, &builder);
        assert_eq!(command(&mut guest, PAIRS_SET, &2u16.to_le_bytes()), OK);
        assert_eq!(command(&mut guest, COALESCE_TX, &coalescing(3, 4)), OK);
        let before = status(&rig, 0);
        let bases = guest.stop().unwrap();
        wait_until("the end of the ring", || rig.ports[0].status().control.is_none());
        guest.start_at(&bases).unwrap();
        wait_until("what was set before", || rig.ports[0].status().control.as_ref() == Some(&before));
        assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(1, 1)), OK);
        drop(guest);
        let _guest = rig.guest(0, &builder);
        let after = || rig.ports[0].status().control;
        wait_until("a ring after a reset", || after().is_some_and(|after| after.queue_pairs == 1));
        assert_eq!(status(&rig, 0).coalescing, vec![None; 4]);
    }
}

/// After a driver reset, libkrun does not send `GET_VRING_BASE`. Instead, libkrun disables the rings and sends the
/// table of memory regions again.
#[test]
fn nothing_is_set_after_a_reset_without_get_vring_base() {
    for case in Case::layouts() {
        let rig = rig(2);
        // Do not negotiate SET_STATUS, because this message would report the reset.
        let mut a = rig.guest(0, &builder(&case, 2).protocol_features(protocol::MQ | protocol::REPLY_ACK));
        let mut b = rig.guest(1, &builder(&case, 2));
        let mut rng = rng();
        b.rx(0).fill(32, 2048);
        for is_disabled in [true, false] {
            assert_eq!(command(&mut a, PAIRS_SET, &2u16.to_le_bytes()), OK);
            assert_eq!(command(&mut a, COALESCE_TX, &coalescing(3, 4)), OK);
            a.rx(0).fill(8, 2048);
            carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
            if is_disabled {
                (0..5).for_each(|vring| a.frontend().set_vring_enable(vring, false).unwrap());
            }
            a.reset_rings();
            a.start().unwrap();
            let is_reset = |now: ControlStatus| now.queue_pairs == 1 && now.coalescing == vec![None; 4];
            wait_until("settings of a new driver", || rig.ports[0].status().control.is_some_and(is_reset));
        }
        a.rx(0).fill(8, 2048);
        carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
    }
}

/// Frontends send messages for all rings of the port, including rings that the driver does not use (QEMU).
#[test]
fn what_is_said_of_the_last_ring_does_not_concern_a_control_queue_that_is_the_third() {
    let rig = rig(2);
    for case in Case::rings() {
        let mut guest = rig.guest(0, &builder(&case, 1).interrupts(true));
        let other = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        guest.frontend().set_vring_call(4, Some(other.as_fd())).unwrap();
        guest.frontend().set_vring_enable(4, false).unwrap();
        assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(5, 6)), OK, "{case:?}");
        assert_eq!(other.read(), Err(Errno::EAGAIN), "{case:?}");
    }
}

/// Without `MQ`, the third ring is the control queue.
#[test]
fn a_ring_of_data_that_becomes_the_control_queue_receives_no_more() {
    let rig = rig(2);
    let case = Case::layouts().next().unwrap();
    let mut guest = rig.guest(0, &builder(&case, 2));
    assert_eq!(command(&mut guest, PAIRS_SET, &2u16.to_le_bytes()), OK);
    let features = guest.negotiated().features & !features::MQ;
    assert!(rig.ports[0].status().ring_entries[2] > 0);
    guest.frontend().set_features(features).unwrap();
    wait_until("the end of the ring", || rig.ports[0].status().ring_entries[2] == 0);
}

#[test]
fn a_control_queue_that_lies_on_a_ring_of_data_spoils_its_own_guest_alone() {
    for case in Case::rings() {
        for side in 0..2 {
            let rig = rig(1);
            let mut a = rig.guest(0, &builder(&case, 1));
            let mut b = rig.guest(1, &builder(&case, 1));
            b.rx(0).fill(64, 2048);
            let place = [a.rx(0).ring().addresses(), a.tx(0).ring().addresses()][side];
            let addr = VringAddr::new(a.memory(), 2, place);
            a.frontend().set_vring_addr(&addr).unwrap();
            a.frontend().set_vring_kick(2, None).unwrap();
            let bytes = frame(&mut rng(), 100);
            // Neither receive chains nor transmit chains contain a command.
            a.rx(0).fill(32, 2048);
            (0..32).for_each(|_| _ = a.tx(0).stage(&VnetHeader::default(), &[&bytes]));
            a.tx(0).publish();
            let refused = || rig.ports[0].status().control.is_some_and(|control| control.refused > 0);
            // In a packed ring, the queue that is served first uses the chains intended for the other queue.
            let is_sent = |b: &mut Guest| b.rx(0).try_recv().is_some();
            wait_until("any of it", || refused() || rig.bad_chains(0) > 0 || is_sent(&mut b));
            assert_eq!(command(&mut b, COALESCE_RX, &coalescing(5, 6)), OK, "{case:?}");
            a.stop().unwrap();
            a.reset_rings();
            a.start().unwrap();
            assert_eq!(command(&mut a, COALESCE_RX, &coalescing(7, 8)), OK, "{case:?}");
            while b.rx(0).try_recv().is_some() {}
            carry(&mut a, &mut b, 0, &bytes, &case);
        }
    }
}

#[test]
fn a_control_queue_without_kicks_is_looked_at_and_what_is_no_command_is_counted() {
    let rig = rig(1);
    let mut guest = rig.guest(0, &builder(&Case::layouts().next().unwrap(), 1));
    guest.frontend().set_vring_kick(2, None).unwrap();
    assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(5, 6)), OK);
    assert_eq!(guest.control().command(&[&COALESCE_RX, &coalescing(7, 8)], &[]), None, "no room for an answer");
    assert_eq!(status(&rig, 0).coalescing[0], Some(wish(5, 6)));
    assert_eq!(rig.bad_chains(0), 1);
}

/// Starts a thread that polls the first `driven` pairs until `driven` is 0. The remaining pairs exist, but do not
/// answer.
fn drive(mut queues: Vec<VhostQueue>, driven: &Arc<AtomicUsize>) -> JoinHandle<()> {
    let driven = Arc::clone(driven);
    std::thread::spawn(move || {
        loop {
            let count = driven.load(Ordering::Acquire);
            if count == 0 {
                return;
            }
            queues[..count].iter_mut().for_each(|queue| queue.rx_flush(0));
            std::thread::yield_now();
        }
    })
}

#[test]
fn what_a_queue_does_not_answer_to_is_refused_and_not_shown_and_the_others_go_back() {
    let scratch = Scratch::new();
    let config = VhostUserConfig {
        queue_pairs: 2,
        control_queue: ControlQueue::Backend,
        ..VhostUserConfig::new(scratch.path("port"))
    };
    let mut port = VhostUser::open(&config).unwrap();
    let driven = Arc::new(AtomicUsize::new(2));
    let thread = drive((0..2).map(|pair| port.queue(pair).unwrap()).collect(), &driven);
    let mut guest = builder(&Case::rings().next().unwrap(), 2).connect(scratch.path("port"));
    let status = |port: &VhostUser| port.status().control.expect("a control queue that runs");
    assert_eq!(command(&mut guest, PAIRS_SET, &2u16.to_le_bytes()), OK);
    assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(50, 16)), OK);
    let before = status(&port);
    driven.store(1, Ordering::Release);
    // The test kit waits longer than the port waits for the second pair.
    assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(7, 3)), ERR);
    wait_until("the refusal", || status(&port).refused == 1);
    assert_eq!(status(&port), ControlStatus { refused: 1, ..before.clone() });
    // A command for only the first pair needs no answer from the second pair.
    assert_eq!(command(&mut guest, COALESCE_VQ, &of_vq(1, 9, 9)), OK);
    let asked = [&COALESCING_OF_VQ[..], &of_vq(0, 0, 0)].concat();
    assert_eq!(guest.control().command(&[&asked], &[1, 8]), Some([&[OK][..], &coalescing(50, 16)].concat()));
    // The second pair answers again, so a command for all pairs succeeds.
    driven.store(2, Ordering::Release);
    assert_eq!(command(&mut guest, PAIRS_SET, &1u16.to_le_bytes()), OK);
    wait_until("one pair", || status(&port).queue_pairs == 1);
    port.close();
    driven.store(0, Ordering::Release);
    thread.join().unwrap();
}

#[test]
fn the_control_queue_of_a_guest_without_several_pairs_is_the_third_ring() {
    let rig = rig(1);
    for dialect in [Dialect::Qemu, Dialect::UserModeLinux] {
        let case = Case::layouts().next().unwrap();
        let mut guest = rig.guest(0, &builder(&case, 1).dialect(dialect));
        assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(5, 6)), OK, "{dialect:?}");
        // The feature for this command was not negotiated.
        assert_eq!(command(&mut guest, PAIRS_SET, &1u16.to_le_bytes()), ERR);
        wait_until("what was set", || status(&rig, 0).coalescing[0] == Some(wish(5, 6)));
    }
}

#[test]
fn whatever_a_guest_writes_into_its_control_queue_it_is_answered_or_given_back() {
    const COMMANDS_SENT: usize = 2000;
    for case in Case::rings() {
        let rig = rig(2);
        let mut a = rig.guest(0, &builder(&case, 2));
        let mut b = rig.guest(1, &builder(&case, 2));
        let mut rng = rng();
        for _ in 0..COMMANDS_SENT {
            let mut bytes = vec![0; rng.random_range(0..24)];
            rng.fill_bytes(&mut bytes);
            if let [class, number, ..] = &mut bytes[..] {
                (*class, *number) = (*class % 8, *number % 5);
            }
            let cut = rng.random_range(0..=bytes.len());
            let answer_len = rng.random_range(0..12);
            let pieces: Vec<&[u8]> = [&bytes[..cut], &bytes[cut..]].into_iter().filter(|p| !p.is_empty()).collect();
            if pieces.is_empty() && answer_len == 0 {
                continue;
            }
            let lens: Vec<usize> = Some(answer_len).filter(|len| *len > 0).into_iter().collect();
            let answer = a.control().command(&pieces, &lens);
            assert_eq!(answer.is_some(), answer_len > 0, "{case:?}: {bytes:?}");
            assert!(answer.is_none_or(|answer| answer[0] <= ERR && answer.len() <= answer_len));
        }
        // Send a chain with the answer before the command, and a command that exceeds the maximum length.
        let at = b.memory().alloc(1 << 17, 64);
        assert_eq!(a.control().chain(&[Buffer::writable(at, 1), Buffer::readable(at, 8)]), None);
        let long = vec![4; 1 << 16 | 1];
        assert_eq!(a.control().command(&[&long], &[1]), None);
        // Other guests, and the guest itself, are unaffected.
        assert_eq!(command(&mut a, PAIRS_SET, &1u16.to_le_bytes()), OK);
        a.rx(0).fill(8, 2048);
        b.rx(0).fill(8, 2048);
        carry(&mut a, &mut b, 0, &frame(&mut rng, 100), &case);
    }
}
