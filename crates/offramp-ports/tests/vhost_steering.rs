//! Tests of guests with several queue pairs on a switch: the receive pair of a flow, and the order of its frames.

use std::collections::{BTreeMap, BTreeSet};

use crate::vhost_common::packet::Packet;
use crate::vhost_common::{Case, Scratch, SwitchRig, rng, wait_until};
use offramp_adapter::port::HostPort;
use offramp_adapter::stats::{Counter, Loss, QueueStats};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::RxMeta;
use offramp_ports::vhost_user::{ControlQueue, VhostPort, VhostUser, VhostUserConfig};
use offramp_ports::worker::HostIo;
use offramp_testkit::features::{self, protocol};
use offramp_testkit::frontend::{Header, request};
use offramp_testkit::{Guest, GuestBuilder, Received, VnetHeader};
use rand::RngExt;

const PAIRS: usize = 4;
const BUFFERS: usize = 200;
const BUFFER_LEN: usize = 1526;
/// A flow used only to announce its sender.
const HELLO: u16 = 1000;

/// Connects a guest with `pairs` queue pairs and receive buffers in each.
fn guest(rig: &SwitchRig, side: usize, builder: GuestBuilder, pairs: usize) -> Guest {
    let mut guest = rig.guest(side, &builder.queue_pairs(pairs as u16).queue_size(256));
    for pair in 0..pairs {
        guest.rx(pair).fill(BUFFERS, BUFFER_LEN);
    }
    guest
}

/// Connects a guest to each port, and lets the switch learn both guests.
fn guests(rig: &SwitchRig, case: &Case, pairs: [usize; 2]) -> [Guest; 2] {
    guests_of(rig, &case.guest(), pairs)
}

/// Connects guests of any kind, like [`guests`].
fn guests_of(rig: &SwitchRig, builder: &GuestBuilder, pairs: [usize; 2]) -> [Guest; 2] {
    let mut guests = [0, 1].map(|side| guest(rig, side, builder.clone(), pairs[side]));
    for side in [0, 1] {
        guests[side].tx(0).send(&VnetHeader::default(), &[&bytes(side, HELLO, 0)]);
        receive(&mut guests[1 - side], 1);
    }
    guests
}

/// Returns frame `number` of a flow from guest `side`. The opposite direction has all addresses swapped.
fn bytes(side: usize, flow: u16, number: u32) -> Vec<u8> {
    let ports = [(2000 + flow, 80), (80, 2000 + flow)][side];
    let mut frame = Packet { ports, seq: number, ..Packet::tcp(20) }.build();
    if side == 1 {
        for (start, len) in [(0, 6), (26, 4)] {
            let (first, second) = frame[start..start + 2 * len].split_at_mut(len);
            first.swap_with_slice(second);
        }
    }
    frame
}

fn flow_and_number(received: &Received) -> (u16, u32) {
    let at = |at: usize| [received.frame[at], received.frame[at + 1]];
    let ports = [u16::from_be_bytes(at(34)), u16::from_be_bytes(at(36))];
    let seq = u32::from_be_bytes([at(38)[0], at(38)[1], at(40)[0], at(40)[1]]);
    (ports[0].max(ports[1]) - 2000, seq)
}

/// Waits for `count` frames. Returns each frame with its pair, grouped by pair.
fn receive(guest: &mut Guest, count: usize) -> Vec<(usize, Received)> {
    let mut came = Vec::new();
    wait_until("all frames", || {
        for pair in 0..guest.pairs() {
            while let Some(received) = guest.rx(pair).try_recv() {
                came.push((pair, received));
            }
        }
        came.len() >= count
    });
    assert_eq!(came.len(), count, "more frames than were sent");
    came
}

#[test]
fn a_guest_receives_a_flow_on_the_pair_on_which_it_sends_it() {
    let rig = SwitchRig::new(PAIRS as u16, Offloads::empty());
    for case in Case::layouts() {
        let [mut a, mut b] = guests(&rig, &case, [PAIRS; 2]);
        for round in 0..3 {
            for flow in 0..16 {
                let pair = usize::from(flow + round) % PAIRS;
                b.tx(pair).send(&VnetHeader::default(), &[&bytes(1, flow, 0)]);
                receive(&mut a, 1);
                a.tx(0).send(&VnetHeader::default(), &[&bytes(0, flow, 0)]);
                let came = receive(&mut b, 1);
                assert_eq!(flow_and_number(&came[0].1), (flow, 0));
                assert_eq!(came[0].0, pair, "flow {flow}: {case:?}");
            }
        }
    }
}

#[test]
fn flows_that_a_guest_never_sent_spread_over_its_pairs_and_stay_there() {
    let rig = SwitchRig::new(PAIRS as u16, Offloads::empty());
    for case in Case::layouts() {
        let [mut a, mut b] = guests(&rig, &case, [1, PAIRS]);
        let mut places = BTreeMap::new();
        for number in 0..3 {
            for flow in 0..64 {
                a.tx(0).send(&VnetHeader::default(), &[&bytes(0, flow, number)]);
            }
            for (pair, received) in receive(&mut b, 64) {
                let (flow, _) = flow_and_number(&received);
                assert_eq!(*places.entry(flow).or_insert(pair), pair, "flow {flow}: {case:?}");
            }
        }
        let used: BTreeSet<_> = places.values().collect();
        // With a fair hash, the probability of an unused pair is 10^-7.
        assert_eq!(used.len(), PAIRS, "{case:?}");
    }
}

#[test]
fn a_guest_with_fewer_pairs_than_its_port_receives_everything_on_those_that_it_uses() {
    let rig = SwitchRig::new(PAIRS as u16, Offloads::empty());
    for case in Case::layouts() {
        for pairs in 1..PAIRS {
            let [mut a, mut b] = guests(&rig, &case, [1, pairs]);
            for flow in 0..64 {
                a.tx(0).send(&VnetHeader::default(), &[&bytes(0, flow, 0)]);
            }
            let came = receive(&mut b, 64);
            let used: BTreeSet<_> = came.iter().map(|(pair, _)| *pair).collect();
            assert_eq!(used.len(), pairs, "{case:?}");
        }
    }
}

#[test]
fn memory_that_is_replaced_moves_no_flow() {
    let rig = SwitchRig::new(PAIRS as u16, Offloads::empty());
    let case = Case::layouts().next().expect("a layout");
    let [mut a, mut b] = guests(&rig, &case, [1, PAIRS]);
    let memory = b.memory().clone();
    let mut places = BTreeMap::new();
    for number in 0..50 {
        for flow in 0..32 {
            a.tx(0).send(&VnetHeader::default(), &[&bytes(0, flow, number)]);
        }
        for (pair, received) in receive(&mut b, 32) {
            let (flow, _) = flow_and_number(&received);
            assert_eq!(*places.entry(flow).or_insert(pair), pair, "flow {flow}");
        }
        b.frontend().set_mem_table(&memory).unwrap();
    }
}

/// Sends frames of random flows while pairs are switched on and off. The receiver also sends frames of these flows, on
/// random pairs. Each frame must arrive once, on an enabled pair, and in the order of its flow within every pair. After
/// a flow has moved, no frame of the flow may arrive on the old pair.
#[test]
fn no_flow_is_reordered_while_pairs_are_switched_on_and_off() {
    const FLOWS: u16 = 12;
    const ROUNDS: usize = 300;
    let mut rng = rng();
    let rig = SwitchRig::new(PAIRS as u16, Offloads::empty());
    for case in Case::layouts() {
        let [mut a, mut b] = guests(&rig, &case, [PAIRS; 2]);
        let mut next = [0u32; FLOWS as usize];
        let mut expected = next;
        let mut enabled = [true; PAIRS];
        for round in 0..ROUNDS {
            let toggled = rng.random_range(1..PAIRS);
            let is_on = !enabled[toggled];
            if rng.random_ratio(1, 3) {
                let flow = rng.random_range(0..FLOWS);
                // A disabled pair of the sender discards its frames.
                let on: Vec<_> = (0..PAIRS).filter(|&pair| enabled[pair]).collect();
                let pair = on[rng.random_range(0..on.len())];
                b.tx(pair).send(&VnetHeader::default(), &[&bytes(1, flow, 0)]);
                receive(&mut a, 1);
            }
            let burst = rng.random_range(1..40);
            for nth in 0..burst {
                let flow = rng.random_range(0..FLOWS);
                let number = &mut next[usize::from(flow)];
                a.tx(0).stage(&VnetHeader::default(), &[&bytes(0, flow, *number)]).expect("room in the ring");
                *number += 1;
                if nth == burst / 2 {
                    // Switch during the traffic, without waiting for an answer.
                    a.tx(0).publish();
                    if round % 2 == 0 {
                        let mut state = (2 * toggled as u32).to_le_bytes().to_vec();
                        state.extend(u32::from(is_on).to_le_bytes());
                        b.frontend().send_raw(Header::new(request::SET_VRING_ENABLE, 8), &state, &[]);
                        enabled[toggled] = is_on;
                    }
                }
            }
            a.tx(0).publish();
            let mut numbers: BTreeMap<u16, BTreeMap<usize, Vec<u32>>> = BTreeMap::new();
            for (pair, received) in receive(&mut b, burst) {
                let (flow, number) = flow_and_number(&received);
                numbers.entry(flow).or_default().entry(pair).or_default().push(number);
            }
            for (flow, by_pair) in numbers {
                let mut all: Vec<_> = by_pair.values().flatten().copied().collect();
                assert!(by_pair.values().all(|on_pair| on_pair.is_sorted()), "flow {flow}: {by_pair:?}, {case:?}");
                // Each pair received one contiguous sequence of frame numbers: the flow moved, and never returned while
                // frames were in flight.
                let mut runs: Vec<_> = by_pair.values().map(|run| (run[0], run[run.len() - 1])).collect();
                runs.sort_unstable();
                assert!(runs.is_sorted_by(|before, after| before.1 < after.0), "flow {flow}: {by_pair:?}, {case:?}");
                all.sort_unstable();
                let first = expected[usize::from(flow)];
                expected[usize::from(flow)] += all.len() as u32;
                assert!(all.iter().copied().eq(first..expected[usize::from(flow)]), "flow {flow}: {all:?}, {case:?}");
            }
            // Wait for an answer, so that the port has switched the pairs before the next check.
            b.frontend().get_features().unwrap();
        }
    }
}

/// A guest sends frames on each pair, and receives a different number of frames of the same flow on that pair. The last
/// pair has room for only some of its frames.
#[test]
fn each_pair_of_a_guest_counts_what_it_sent_and_received() {
    for case in Case::layouts() {
        let rig = SwitchRig::new(PAIRS as u16, Offloads::empty());
        let [mut a, mut b] = guests_of(&rig, &case.guest().interrupts(true), [1, PAIRS]);
        let counts = |pair: usize| {
            let QueueStats { transmit, receive } = &rig.seats[1].queues()[pair];
            let [sent, got] = [transmit, receive]
                .map(|way| [&way.frames_in, &way.frames_out, &way.bytes_out, &way.host_frames].map(Counter::get));
            (sent, got, receive.lost(Loss::Drop), transmit.lost_total() + receive.lost_total())
        };
        // One greeting has already passed in each direction.
        let before: Vec<_> = (0..PAIRS).map(counts).collect();
        let len = bytes(1, 0, 0).len() as u64;
        let (mut sent, mut received) = ([0; PAIRS], [0; PAIRS]);
        for pair in 0..PAIRS {
            (sent[pair], received[pair]) = (10 + pair as u64, 20 * (pair as u64 + 1));
            (0..sent[pair]).for_each(|_| _ = b.tx(pair).send(&VnetHeader::default(), &[&bytes(1, pair as u16, 0)]));
            receive(&mut a, sent[pair] as usize);
            if pair == PAIRS - 1 {
                received[pair] = 2 * BUFFERS as u64;
            }
            (0..received[pair]).for_each(|_| _ = a.tx(0).send(&VnetHeader::default(), &[&bytes(0, pair as u16, 0)]));
            wait_until("every frame to be counted", || counts(pair).1[0] - before[pair].1[0] == received[pair]);
            while b.rx(pair).try_recv().is_some() {}
        }
        for (pair, before) in before.iter().enumerate() {
            let (now, (sent, received)) = (counts(pair), (sent[pair], received[pair]));
            let lost = received.saturating_sub(BUFFERS as u64);
            let since = |now: [u64; 4], before: [u64; 4]| [0, 1, 2, 3].map(|n| now[n] - before[n]);
            let given = received - lost;
            assert_eq!(since(now.0, before.0), [sent, sent, sent * len, sent], "pair {pair}: {case:?}");
            assert_eq!(since(now.1, before.1), [received, given, given * len, given], "pair {pair}: {case:?}");
            assert_eq!((now.2, now.3), (lost, lost), "pair {pair}: {case:?}");
        }
        for (pair, stats) in rig.seats[1].queues().iter().enumerate() {
            // A deferred interrupt may be sent after the last poll.
            wait_until("all calls to be counted", || {
                let counted = [&stats.receive, &stats.transmit].map(|way| way.interrupts.get());
                counted[0] > 0 && counted == [b.rx(pair).signals().calls, b.tx(pair).signals().calls]
            });
        }
    }
}

/// Creates a guest with two pairs that sets its RSS table, and its port, which this thread polls.
fn driven_by_hand(case: &Case, scratch: &Scratch) -> (Guest, VhostUser, VhostPort) {
    let config = VhostUserConfig {
        queue_pairs: 2,
        control_queue: ControlQueue::Backend,
        steers: true,
        ..VhostUserConfig::new(scratch.path("port"))
    };
    let mut user = VhostUser::open(&config).unwrap();
    let mut port = VhostPort::new((0..2).map(|pair| user.queue(pair).unwrap()).collect()).unwrap();
    let (protocol, rss) = (protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG, features::MQ | features::RSS);
    let builder = case.guest().queue_pairs(2).protocol_features(protocol).features_if_offered(rss).control_queue();
    let mut guest = beside(|| builder.connect(&config.socket), || port.rx_flush(0));
    receive_on(&mut guest, 0, &mut port);
    (guest, user, port)
}

/// Runs `work` in another thread while this thread polls, and returns the result.
fn beside<R: Send>(work: impl FnOnce() -> R + Send, mut poll: impl FnMut()) -> R {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() {
            poll();
        }
        working.join().unwrap()
    })
}

/// Sets the guest's RSS table so that the guest receives all frames on `pair`. The port applies the change before it
/// fetches frames.
fn receive_on(guest: &mut Guest, pair: u8, port: &mut VhostPort) {
    // Class 4, command 1: no hashed types, `pair` for unhashed frames, one table entry, two transmit queues, no key.
    let command = [4, 1, 0, 0, 0, 0, 0, 0, pair, 0, 0, 0, 2, 0, 0];
    let answer = beside(|| guest.control().command(&[&command], &[1]), || assert!(!port.tx_next(0).unwrap()));
    assert_eq!(answer, Some(vec![0]));
}

#[test]
fn what_was_received_is_shown_before_flows_come_on_another_pair() {
    for case in Case::rings() {
        let scratch = Scratch::new();
        let (mut guest, _user, mut port) = driven_by_hand(&case, &scratch);
        (0..2).for_each(|pair| _ = guest.rx(pair).fill(BUFFERS, BUFFER_LEN));
        for pair in [1, 0, 1] {
            receive_on(&mut guest, pair, &mut port);
            port.rx_deliver(&RxMeta::default(), &bytes(0, 0, 0)).unwrap();
            assert_eq!(guest.rx(pair.into()).try_recv().map(|_| ()), None, "the batch goes on: {case:?}");
            receive_on(&mut guest, 1 - pair, &mut port);
            assert!(guest.rx(pair.into()).try_recv().is_some(), "{case:?}");
        }
    }
}

#[test]
fn a_frame_that_waits_on_a_pair_is_shown_before_the_pair_is_given_up() {
    const RECEIVE_OF_LAST: u32 = 2;
    for case in Case::rings() {
        let scratch = Scratch::new();
        let (mut guest, _user, mut port) = driven_by_hand(&case, &scratch);
        guest.rx(1).fill(BUFFERS, BUFFER_LEN);
        receive_on(&mut guest, 1, &mut port);
        port.rx_deliver(&RxMeta::default(), &bytes(0, 0, 0)).unwrap();
        let give_up = || {
            guest.frontend().set_vring_enable(RECEIVE_OF_LAST, false).unwrap();
            // The answer shows that the ring was disabled before.
            guest.frontend().get_features().unwrap();
        };
        beside(give_up, || assert!(!port.tx_next(0).unwrap()));
        assert!(guest.rx(1).try_recv().is_some(), "{case:?}");
    }
}

/// A guest refills a disabled ring before each frame of another pair, so that each time a batch is fetched and
/// discarded.
#[test]
fn what_is_fetched_from_a_disabled_ring_is_charged_to_its_port() {
    const TRANSMIT_OF_LAST: u32 = 3;
    const FRAMES: usize = 8;
    for case in Case::rings() {
        let scratch = Scratch::new();
        let (mut guest, _user, mut port) = driven_by_hand(&case, &scratch);
        let disable = || {
            guest.frontend().set_vring_enable(TRANSMIT_OF_LAST, false).unwrap();
            guest.frontend().get_features().unwrap();
        };
        beside(disable, || assert!(!port.tx_next(0).unwrap()));
        let cost_bytes = |guest: &mut Guest, port: &mut VhostPort| {
            guest.tx(0).send(&VnetHeader::default(), &[&[7; 60]]);
            assert!(port.tx_next(0).unwrap());
            port.tx_cost_bytes()
        };
        // From here on, polling starts with the other pair.
        let alone = cost_bytes(&mut guest, &mut port);
        for _ in 0..2 {
            (0..FRAMES).for_each(|_| _ = guest.tx(1).send(&VnetHeader::default(), &[&[7; 60]]));
            let of_both = cost_bytes(&mut guest, &mut port);
            // Each discarded frame costs at least a cache line.
            assert!(of_both >= alone + 64 * FRAMES, "{of_both}, {alone} alone: {case:?}");
            assert_eq!(cost_bytes(&mut guest, &mut port), alone, "{case:?}");
        }
        // The cost is also charged if no frame is fetched.
        for fetch in [|port: &mut VhostPort| assert!(!port.tx_next(0).unwrap()), VhostPort::tx_hold] {
            (0..FRAMES).for_each(|_| _ = guest.tx(1).send(&VnetHeader::default(), &[&[7; 60]]));
            fetch(&mut port);
            assert!(port.tx_cost_bytes() >= 64 * FRAMES, "{case:?}");
            fetch(&mut port);
            assert_eq!(port.tx_cost_bytes(), 0, "{case:?}");
        }
    }
}

#[test]
fn a_ring_that_is_started_while_its_port_falls_asleep_is_looked_at() {
    for case in Case::rings() {
        let scratch = Scratch::new();
        let (mut guest, _user, mut port) = driven_by_hand(&case, &scratch);
        port.arm();
        assert!(!port.is_unannounced(), "its guest kicks: {case:?}");
        let memory = guest.memory().clone();
        let replace = || {
            guest.frontend().set_mem_table(&memory).unwrap();
            guest.frontend().get_features().unwrap();
        };
        beside(replace, || assert!(!port.tx_next(0).unwrap()));
        assert!(port.is_unannounced(), "nobody has asked its guest for kicks: {case:?}");
        port.disarm();
        port.arm();
        assert!(!port.is_unannounced(), "{case:?}");
    }
}

#[test]
fn a_pair_that_always_has_a_frame_keeps_no_other_pair_waiting() {
    const LONG: usize = 60_000;
    let rare = bytes(0, 1, 0);
    for case in Case::rings() {
        let scratch = Scratch::new();
        // `port`, which holds the queues, is dropped first, so that the control thread need not wait for the queues.
        let (mut guest, _user, mut port) = driven_by_hand(&case, &scratch);
        // A frame of the other pair waits for at most one batch of the busy pair, or for one turn if the busy pair's
        // frames are long.
        for (busy, len, calls_max) in [(0, 60, 33), (1, 60, 33), (0, LONG, 2), (1, LONG, 2)] {
            let mut next = |guest: &mut Guest| {
                guest.tx(busy).send(&VnetHeader::default(), &[&vec![7; len]]);
                assert!(port.tx_next(0).unwrap(), "there are frames");
                port.tx_frame().bytes() == rare
            };
            // Keep more than one batch queued on the busy pair.
            (0..64).for_each(|_| _ = guest.tx(busy).send(&VnetHeader::default(), &[&vec![7; len]]));
            next(&mut guest);
            guest.tx(1 - busy).send(&VnetHeader::default(), &[&rare]);
            let calls = (1..100).find(|_| next(&mut guest));
            assert!(calls.is_some_and(|calls| calls <= calls_max), "{calls:?} of {len} bytes: {case:?}");
            next(&mut guest);
            let sent = guest.tx(1 - busy).take_used();
            assert!(sent.is_some(), "its guest sees that it is sent: {case:?}");
            while port.tx_next(0).unwrap() {}
        }
    }
}
