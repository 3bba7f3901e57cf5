//! Tests of a flow's receiving queue pair, and of the order of the flow's frames at the host.

use crate::packet::{MF, Packet};
use offramp_adapter::steering::{AGE_MAX_NS, Choice, FLOWS_MAX, FlowHash, Steering};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{Segmentation, SegmentationKind, TxMeta};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

const PAIRS: usize = 4;

/// Returns a frame of flow `number`.
fn packet(number: u16) -> Packet {
    Packet { ports: (1000 + number, 80), is_ipv6: number % 2 == 1, is_udp: number % 3 == 1, ..Packet::tcp(40) }
}

/// Returns the frame in the opposite direction of flow `number`.
fn answer(number: u16) -> Vec<u8> {
    let packet = packet(number);
    let ports = (packet.ports.1, packet.ports.0);
    let mut frame = Packet { ports, ..packet }.build();
    let (start, len) = if number % 2 == 1 { (14 + 8, 16) } else { (14 + 12, 4) };
    let (source, destination) = frame[start..start + 2 * len].split_at_mut(len);
    source.swap_with_slice(destination);
    frame
}

fn flow_of_bytes(steering: &Steering, bytes: &[u8]) -> Option<FlowHash> {
    steering.flow(&Frame::received(&mut bytes.to_vec()))
}

/// Hashes the header template of a super-frame; its IP length is ignored.
fn flow_of_template(steering: &Steering, bytes: &[u8]) -> Option<FlowHash> {
    let segmentation = Some(Segmentation::new(SegmentationKind::Udp, 1));
    steering.flow(&Frame::new(&mut bytes.to_vec(), TxMeta { checksum: None, segmentation }))
}

fn flow_of(steering: &Steering, number: u16) -> FlowHash {
    flow_of_bytes(steering, &packet(number).build()).expect("an IP frame")
}

fn steering(pairs: usize) -> Steering {
    let mut steering = Steering::new();
    assert_eq!(steering.set_pairs(0..pairs), pairs > 1);
    assert!(!steering.set_pairs(0..pairs), "nothing changed");
    steering
}

fn received_on(steering: &mut Steering, flow: FlowHash) -> usize {
    steering.receive(Some(flow)).pair
}

#[test]
fn both_directions_of_a_flow_are_one_and_other_flows_are_others() {
    let steering = steering(PAIRS);
    let flows: Vec<_> = (0..200).map(|number| flow_of(&steering, number)).collect();
    for (number, flow) in flows.iter().enumerate() {
        assert_eq!(flow_of_bytes(&steering, &answer(number as u16)), Some(*flow), "flow {number}");
    }
    let different: std::collections::HashSet<_> = flows.iter().collect();
    assert_eq!(different.len(), flows.len());
}

#[test]
fn a_tag_a_checksum_or_a_length_that_is_a_template_make_no_other_flow() {
    let steering = steering(PAIRS);
    let flow = flow_of(&steering, 0);
    let tagged = Packet { tags: vec![(0x8100, 7)], ip_checksum_is_wrong: true, ..packet(0) };
    assert_eq!(flow_of_bytes(&steering, &tagged.build()), Some(flow));
    let mut template = packet(0).build();
    template[16..18].fill(0);
    assert_eq!(flow_of_template(&steering, &template), Some(flow));
    assert_eq!(flow_of_bytes(&steering, &template), None, "a frame from the wire that lies about its length");
}

#[test]
fn all_fragments_of_a_datagram_are_of_one_flow() {
    let steering = steering(PAIRS);
    let fragment = |fragment, payload: usize| {
        let packet = Packet { fragment, ports: (5, payload as u16), ..Packet::udp(payload) };
        flow_of_bytes(&steering, &packet.build())
    };
    assert!(fragment(MF, 64).is_some());
    assert_eq!(fragment(MF, 64), fragment(9, 1));
}

#[test]
fn what_is_no_ip_goes_to_the_first_pair_in_use() {
    let mut steering = steering(PAIRS);
    let arp = [[0xff; 12].as_slice(), &[8, 6], &[0; 46]].concat();
    assert_eq!(flow_of_bytes(&steering, &arp), None);
    assert_eq!(flow_of_bytes(&steering, &[]), None);
    assert_eq!(steering.receive(None), Choice { pair: 0, left: None });
    assert!(steering.set_pairs([2, 3].into_iter()));
    assert_eq!(steering.receive(None), Choice { pair: 2, left: None });
    assert_eq!(steering.would_receive(None), 2);
    assert!(steering.set_pairs([].into_iter()));
    assert_eq!(steering.receive(None), Choice { pair: 0, left: None });
}

#[test]
fn flows_that_the_host_never_sent_spread_over_the_pairs_in_use_alone() {
    let mut steering = steering(PAIRS);
    for pairs in [vec![0, 1, 2, 3], vec![1, 3], vec![2]] {
        steering.set_pairs(pairs.iter().copied());
        let mut flows = BTreeMap::new();
        for number in 0..1000 {
            let flow = flow_of(&steering, number);
            let pair = received_on(&mut steering, flow);
            assert_eq!(received_on(&mut steering, flow), pair, "it stays");
            *flows.entry(pair).or_insert(0) += 1;
        }
        assert_eq!(flows.keys().copied().collect::<Vec<_>>(), pairs);
        // A fair hash is this uneven with a probability of 10^-20.
        assert!(flows.values().all(|&count| count > 1000 / pairs.len() / 2), "{flows:?}");
    }
}

#[test]
fn a_flow_is_received_where_the_host_last_sent_it() {
    let mut steering = steering(PAIRS);
    let flow = flow_of(&steering, 0);
    let mut before = received_on(&mut steering, flow);
    for pair in [3, 1, 1, 0, 2] {
        let left = (pair != before).then_some(before);
        assert_eq!(steering.sent(flow, pair), Choice { pair, left });
        assert_eq!(steering.receive(Some(flow)), Choice { pair, left: None });
        before = pair;
    }
}

#[test]
fn a_flow_is_never_received_on_a_pair_that_is_not_in_use() {
    let mut steering = steering(PAIRS);
    let flow = flow_of(&steering, 0);
    steering.sent(flow, 3);
    steering.set_pairs(0..2);
    assert!(received_on(&mut steering, flow) < 2);
    steering.sent(flow, 3);
    assert!(received_on(&mut steering, flow) < 2);
    steering.set_pairs(0..PAIRS);
    assert_eq!(received_on(&mut steering, flow), 3, "the host still sends it there");
}

#[test]
fn a_flow_that_the_host_does_not_send_any_more_goes_by_its_hash_again() {
    let mut steering = steering(PAIRS);
    let flow = flow_of(&steering, 0);
    let by_hash = received_on(&mut steering, flow);
    let sent_on = (by_hash + 1) % PAIRS;
    steering.sent(flow, sent_on);
    steering.set_now(AGE_MAX_NS);
    assert_eq!(received_on(&mut steering, flow), sent_on);
    steering.set_now(AGE_MAX_NS + 1_000_000);
    assert_eq!(steering.would_receive(Some(flow)), by_hash);
    assert_eq!(steering.receive(Some(flow)), Choice { pair: by_hash, left: Some(sent_on) });
    assert_eq!(steering.receive(Some(flow)), Choice { pair: by_hash, left: None });
}

#[test]
fn a_flood_of_flows_moves_no_flow_that_is_known_and_grows_nothing() {
    let mut steering = steering(2);
    // The steering cannot distinguish two flows with the same hash, so only one of the two flows is counted.
    let mut seen = HashSet::new();
    let mut hashes: Vec<_> = (0..60_000).map(|number| flow_of(&steering, number)).collect();
    hashes.retain(|flow| seen.insert(*flow));
    let mut known = 0;
    for &flow in &hashes {
        let other = 1 - received_on(&mut steering, flow);
        known += usize::from(steering.sent(flow, other).pair == other);
    }
    assert!((FLOWS_MAX * 9 / 10..=FLOWS_MAX).contains(&known), "{known}");
    let placed: Vec<_> = hashes.iter().map(|&flow| received_on(&mut steering, flow)).collect();
    let more: Vec<_> = (0..5000).map(|number| Packet { ack: 1, ports: (number, 443), ..Packet::tcp(1) }).collect();
    for packet in more {
        let flow = flow_of_bytes(&steering, &packet.build()).unwrap();
        if seen.insert(flow) {
            steering.sent(flow, 0);
        }
    }
    assert_eq!(hashes.iter().map(|&flow| received_on(&mut steering, flow)).collect::<Vec<_>>(), placed);
}

#[test]
fn a_flow_that_is_forgotten_for_another_one_leaves_its_pair_by_name() {
    let mut steering = steering(2);
    // Each flow moves to pair 1 because the host sends on pair 1, and to pair 0 after the flow is forgotten.
    let flows: Vec<_> = (0..20_000).map(|number| flow_of(&steering, number)).collect();
    let known: Vec<_> =
        flows.into_iter().filter(|&flow| steering.sent(flow, 1) == Choice { pair: 1, left: Some(0) }).collect();
    steering.set_now(AGE_MAX_NS + 1_000_000);
    let newer = (0..5000).map(|port| Packet { ack: 1, ports: (port, 443), ..Packet::tcp(1) }.build());
    let flows: Vec<_> = newer.map(|packet| flow_of_bytes(&steering, &packet).unwrap()).collect();
    let named = flows.iter().filter(|&&flow| steering.sent(flow, 1).left == Some(1)).count();
    let kept = known.iter().filter(|&&flow| steering.receive(Some(flow)).left == Some(1)).count();
    assert!(kept < known.len(), "some were forgotten");
    assert!(named >= known.len() - kept, "{named} named, {} of {} left", known.len() - kept, known.len());
}

/// An event at a host.
#[derive(Clone, Copy, Debug)]
enum Event {
    Sent { flow: u16, pair: usize },
    Received { flow: u16 },
    InUse { pairs: u8 },
    Later { ms: u64 },
    Shown { pair: usize },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let flow = 0..6u16;
    let event = prop_oneof![
        3 => (flow.clone(), 0..PAIRS).prop_map(|(flow, pair)| Event::Sent { flow, pair }),
        8 => flow.prop_map(|flow| Event::Received { flow }),
        1 => (0..1u8 << PAIRS).prop_map(|pairs| Event::InUse { pairs }),
        1 => (0..4000u64).prop_map(|ms| Event::Later { ms }),
        2 => (0..PAIRS).prop_map(|pair| Event::Shown { pair }),
    ];
    proptest::collection::vec(event, 1..200)
}

/// A host that processes the frames of one ring at a time, in any order of the rings.
#[derive(Default)]
struct Host {
    /// Frames in each ring, not yet seen by the host: flow and number.
    staged: [Vec<(u16, u32)>; PAIRS],
    given: BTreeMap<u16, u32>,
    shown: BTreeMap<u16, u32>,
}

impl Host {
    /// Lets the host process the frames of a pair. The frames of each flow must be in order, whatever frames wait in
    /// the other pairs.
    fn show(&mut self, pair: usize) {
        for (flow, number) in self.staged[pair].drain(..) {
            let next = self.shown.entry(flow).or_insert(0);
            assert_eq!(number, *next, "flow {flow} on pair {pair}");
            *next += 1;
        }
    }

    fn follow(&mut self, choice: Choice) -> usize {
        if let Some(left) = choice.left {
            self.show(left);
        }
        choice.pair
    }
}

proptest! {
    /// Random flows, with a random set of pairs in use that changes at random. The host sees no frame before an earlier
    /// frame of the same flow, and each frame is received by the expected pair.
    #[test]
    fn no_frame_is_shown_before_an_earlier_one_of_its_flow(events in events()) {
        let mut steering = steering(PAIRS);
        let flows: Vec<_> = (0..6).map(|number| flow_of(&steering, number)).collect();
        let (mut host, mut now_ms, mut in_use) = (Host::default(), 0, vec![0, 1, 2, 3]);
        for event in events {
            match event {
                Event::Sent { flow, pair } => {
                    let choice = steering.sent(flows[usize::from(flow)], pair);
                    let chosen = host.follow(choice);
                    prop_assert!(chosen == pair || !in_use.contains(&pair), "{choice:?}");
                }
                Event::Received { flow } => {
                    let expected = steering.would_receive(Some(flows[usize::from(flow)]));
                    let choice = steering.receive(Some(flows[usize::from(flow)]));
                    let pair = host.follow(choice);
                    prop_assert_eq!(pair, expected);
                    prop_assert!(in_use.contains(&pair) || (in_use.is_empty() && pair == 0));
                    let number = host.given.entry(flow).or_insert(0);
                    host.staged[pair].push((flow, *number));
                    *number += 1;
                }
                Event::InUse { pairs } => {
                    in_use = (0..PAIRS).filter(|pair| pairs >> pair & 1 == 1).collect();
                    if steering.set_pairs(in_use.iter().copied()) {
                        (0..PAIRS).for_each(|pair| host.show(pair));
                    }
                }
                Event::Later { ms } => {
                    now_ms += ms;
                    steering.set_now(now_ms * 1_000_000);
                }
                Event::Shown { pair } => host.show(pair),
            }
        }
        (0..PAIRS).for_each(|pair| host.show(pair));
        prop_assert_eq!(host.shown, host.given);
    }
}
