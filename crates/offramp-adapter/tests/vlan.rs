//! VLANs of ports: a host receives only frames of its VLANs, each with exactly the expected tag.

use crate::support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::limit::{PortLimits, RateLimit};
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::stats::{Direction, Loss};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, UnknownUnicast};
use offramp_adapter::vlan::PortVlans;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::complete;
#[cfg(debug_assertions)]
use offramp_offload::count::{copied_bytes, parses};
use offramp_offload::esp::{Arrival, Lifetime, Prefix, SaConfig, SecretKey, Suite};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;

type Tag = [u8; 4];
type Sent = (TxMeta, Vec<u8>);

const BROADCAST: [u8; 6] = [0xff; 6];
const PRIORITY: u16 = 0xa000;

fn tag(tci: u16) -> Tag {
    let [high, low] = tci.to_be_bytes();
    [0x81, 0, high, low]
}

fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8 + 1]
}

/// Inserts these tags before the frame's EtherType.
fn with_tags((mut meta, mut frame): Sent, tags: &[Tag]) -> Sent {
    frame.splice(12..12, tags.concat());
    if let Some(partial) = &mut meta.checksum {
        partial.start += tags.len() as u16 * 4;
    }
    (meta, frame)
}

fn between((meta, mut frame): Sent, source: [u8; 6], destination: [u8; 6]) -> Sent {
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&source);
    (meta, frame)
}

fn plain(n: u8) -> Sent {
    (TxMeta::default(), [&[0; 12][..], &[0x88, 0xb5], &[n; 50]].concat())
}

fn vlans(untagged: Option<u16>, tagged: &[RangeInclusive<u16>]) -> PortVlans {
    PortVlans::new(untagged, tagged).unwrap()
}

fn access(vid: u16) -> PortVlans {
    vlans(Some(vid), &[])
}

fn trunk(range: RangeInclusive<u16>) -> PortVlans {
    vlans(None, &[range])
}

fn adapter() -> AdapterConfig {
    AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() }
}

fn control(vlans: &PortVlans) -> Arc<PortControl> {
    PortControl::secured(&adapter(), PortSecurity { vlans: vlans.clone(), ..PortSecurity::default() })
}

fn assert_accounted(direction: &Direction) {
    assert_eq!(direction.frames_in.get(), direction.frames_out.get() + direction.lost_total());
}

/// A switch whose ports have hosts in memory.
struct Bench {
    switch: Switch<MemoryHost>,
    controls: Vec<Arc<PortControl>>,
    now_ns: u64,
}

impl Bench {
    fn new(config: &SwitchConfig, ports: Vec<(Arc<PortControl>, MemoryHost)>, port: &PortConfig) -> Self {
        let mut bench = Self { switch: Switch::new(config), controls: Vec::new(), now_ns: 0 };
        for (control, host) in ports {
            bench.switch.control().add_controlled(host, &control, port).unwrap();
            bench.controls.push(control);
        }
        bench.switch.poll(0);
        bench
    }

    fn of(ports: &[PortVlans]) -> Self {
        let ports = ports.iter().map(|vlans| (control(vlans), MemoryHost::default())).collect();
        Self::new(&SwitchConfig::default(), ports, &PortConfig::default())
    }

    /// Sends frames from one port. Returns the frames received by each port.
    fn send(&mut self, from: usize, frames: impl IntoIterator<Item = Sent>) -> Vec<Vec<(RxMeta, Vec<u8>)>> {
        self.switch.host_mut(from).unwrap().to_send.extend(frames);
        for _ in 0..2 {
            while self.switch.poll(self.now_ns).moved {}
            self.now_ns += 1_000_000;
        }
        (0..self.controls.len()).map(|n| std::mem::take(&mut self.switch.host_mut(n).unwrap().given)).collect()
    }

    /// Sends a frame from one station to another station or to all. Returns the number of frames received by each port.
    fn say(&mut self, from: usize, destination: [u8; 6], tags: &[Tag]) -> Vec<usize> {
        let frame = with_tags(between(plain(1), mac(from), destination), tags);
        self.send(from, [frame]).iter().map(Vec::len).collect()
    }

    fn transmit_lost(&self, port: usize, reason: Loss) -> u64 {
        self.controls[port].queues()[0].transmit.lost(reason)
    }

    fn receive_lost(&self, port: usize, reason: Loss) -> u64 {
        self.controls[port].queues()[0].receive.lost(reason)
    }

    fn assert_everything_is_accounted_for(&self) {
        for control in &self.controls {
            let stats = &control.queues()[0];
            [&stats.transmit, &stats.receive].into_iter().for_each(assert_accounted);
        }
    }
}

/// Two adapters connected by a cable.
struct Line {
    pairs: [QueuePair<MemoryHost, CableEnd>; 2],
    controls: [Arc<PortControl>; 2],
    now_ns: u64,
}

impl Line {
    fn new(controls: [Arc<PortControl>; 2], hosts: [MemoryHost; 2]) -> Self {
        let (near, far) = cable(&CableConfig::default());
        let ([host, far_host], [a, b]) = (hosts, &controls);
        let pairs = [QueuePair::new(&adapter(), a, 0, host, near), QueuePair::new(&adapter(), b, 0, far_host, far)];
        Self { pairs, controls, now_ns: 0 }
    }

    fn of(vlans: [&PortVlans; 2]) -> Self {
        Self::new(vlans.map(control), Default::default())
    }

    /// Sends frames from one end of the cable. Returns the frames received at the other end.
    fn send(&mut self, from: usize, frames: impl IntoIterator<Item = Sent>) -> Vec<(RxMeta, Vec<u8>)> {
        self.pairs[from].host_mut().to_send.extend(frames);
        loop {
            self.now_ns += 1_000_000;
            let moved = [from, 1 - from].map(|end| self.pairs[end].poll(self.now_ns).unwrap().moved);
            if moved == [false; 2] {
                return std::mem::take(&mut self.pairs[1 - from].host_mut().given);
            }
        }
    }

    fn transmit(&self, end: usize) -> &Direction {
        &self.controls[end].queues()[0].transmit
    }

    fn receive(&self, end: usize) -> &Direction {
        &self.controls[end].queues()[0].receive
    }
}

// ---- random ports and frames, compared with a model of the rules ----

/// A port in this test's own model of the VLAN rules.
#[derive(Clone, Debug)]
struct Side {
    untagged: Option<u16>,
    tagged: Vec<u16>,
    accepts: Offloads,
    honours_data_valid: bool,
    lends_unasked: bool,
}

impl Side {
    fn is_aware(&self) -> bool {
        self.untagged.is_some() || !self.tagged.is_empty()
    }

    fn vlans(&self) -> PortVlans {
        vlans(self.untagged, &self.tagged.iter().map(|&vid| vid..=vid).collect::<Vec<_>>())
    }

    fn host(&self) -> MemoryHost {
        let Self { accepts, honours_data_valid, lends_unasked, .. } = *self;
        MemoryHost { accepts: Some(accepts), honours_data_valid, lends_unasked, ..MemoryHost::default() }
    }
}

const VLANS: [u16; 3] = [10, 11, 4094];

fn side() -> impl Strategy<Value = Side> {
    let vid = || prop::sample::select(&VLANS[..]);
    let tagged = prop_oneof![Just(Vec::new()), prop::collection::vec(vid(), 1..3)];
    let accepts = prop_oneof![
        2 => Just(Offloads::all()), 1 => Just(Offloads::RX_CHECKSUM), 1 => Just(Offloads::empty()),
        1 => any::<u32>().prop_map(Offloads::from_bits_truncate)
    ];
    (prop::option::of(vid()), tagged, accepts, any::<bool>(), any::<bool>()).prop_map(
        |(untagged, tagged, accepts, honours_data_valid, lends_unasked)| Side {
            untagged,
            tagged,
            accepts,
            honours_data_valid,
            lends_unasked,
        },
    )
}

#[derive(Clone, Debug)]
struct Step {
    from: usize,
    /// Index of the destination port. The maximum number of ports stands for an unknown station, and a number above the
    /// maximum stands for broadcast.
    to: usize,
    tags: Vec<Tag>,
    form: u8,
    payload_len: usize,
    frames: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let vid = prop_oneof![4 => prop::sample::select(&VLANS[..]), 1 => Just(0), 1 => Just(0xfff), 1 => 0..0x1000_u16];
    let tci = (vid, prop_oneof![Just(0), Just(PRIORITY)]).prop_map(|(vid, priority)| vid | priority);
    let protocol = prop_oneof![8 => Just([0x81, 0]), 1 => Just([0x88, 0xa8]), 1 => Just([0x91, 0])];
    let one = (protocol, tci).prop_map(|([a, b], tci)| [a, b, tci.to_be_bytes()[0], tci.to_be_bytes()[1]]);
    let tags = prop_oneof![3 => Just(0..1), 4 => Just(1..2), 1 => Just(2..4)];
    let tags = tags.prop_flat_map(move |count| prop::collection::vec(one.clone(), count));
    (0..5_usize, 0..7_usize, tags, 0..4_u8, prop_oneof![Just(1000_usize), 1..5000_usize], 1..4_usize)
        .prop_map(|(from, to, tags, form, payload_len, frames)| Step { from, to, tags, form, payload_len, frames })
}

impl Step {
    /// Returns whether the step's frames are sent: a super-frame cannot be segmented after unparsable tags.
    fn is_planned(&self) -> bool {
        self.form != 1 || (self.tags.len() < 3 && self.tags.iter().all(|tag| tag[0] != 0x91))
    }

    /// Returns the number of wire frames for each frame of the step.
    fn segments(&self) -> usize {
        if self.form == 1 { self.payload_len.div_ceil(1000) } else { 1 }
    }

    /// Returns the frames of the step, without tags.
    fn frames(&self, number: u32, destination: [u8; 6]) -> Vec<Sent> {
        let one = |n: usize| {
            let payload = pattern(u64::from(number) + n as u64, self.payload_len);
            let sequence = number + (n * self.payload_len) as u32;
            match self.form {
                0 => plain(number as u8),
                1 => tcp_super_frame(0, sequence, &payload, 1000),
                2 => tcp_frame(0, sequence, &payload[..self.payload_len.min(1400)]),
                _ => {
                    let (meta, mut frame) = tcp_frame(0, sequence, &payload[..self.payload_len.min(1400)]);
                    let end = frame.len();
                    complete(&mut frame, meta.checksum.unwrap(), end).unwrap();
                    (TxMeta::default(), frame)
                }
            }
        };
        (0..self.frames).map(|n| between(one(n), mac(self.from), destination)).collect()
    }
}

/// Returns the VLAN of a frame sent by `side` with these tags, and the tags of the frame on the wire or inside the
/// switch. Returns `None` if the frame is refused.
fn sent_by(side: &Side, tags: &[Tag]) -> Option<(u16, Vec<Tag>)> {
    let outer = tags.first().map(|&[a, b, high, low]| ([a, b], u16::from_be_bytes([high, low])));
    let vid = outer.map_or(0, |(_, tci)| tci & 0xfff);
    if !side.is_aware() {
        // The VLAN number in a tag from before IEEE 802.1ad (0x9100) has no meaning.
        let vid = if outer.is_some_and(|(protocol, _)| protocol == [0x91, 0]) { 0 } else { vid };
        return Some((vid, tags.to_vec()));
    }
    match (outer, side.untagged) {
        (None, Some(native)) => Some((native, vec![tag(native)])),
        (Some(([0x81, 0], tci)), Some(native)) if vid == 0 && tags.len() == 1 => {
            Some((native, vec![tag(native | tci)]))
        }
        (Some(([0x81, 0], _)), _) if vid != 0 && side.tagged.contains(&vid) => Some((vid, tags.to_vec())),
        _ => None,
    }
}

/// The outcome of a frame at a port.
enum Given {
    /// The host receives the frame with these tags.
    With(Vec<Tag>),
    /// The frame is lost at the port.
    Lost,
    /// The frame belongs to another VLAN.
    Other,
}

/// Returns the outcome at a port of a frame with these tags on the wire or inside the switch.
fn given_to(side: &Side, vid: u16, tags: &[Tag]) -> Given {
    let is_customer = tags.first().is_some_and(|tag| tag[..2] == [0x81, 0]) && vid != 0;
    match side.untagged {
        _ if !side.is_aware() => Given::With(tags.to_vec()),
        _ if !is_customer => Given::Other,
        Some(native) if native == vid && tags.len() == 1 => Given::With(Vec::new()),
        Some(native) if native == vid => Given::Lost,
        _ if side.tagged.contains(&vid) => Given::With(tags.to_vec()),
        _ => Given::Other,
    }
}

/// Returns the frames that a host without VLANs receives over a switch configured as a plain link. These frames are the
/// reference for all received frames.
fn over_a_link(side: &Side, frames: Vec<Sent>) -> Vec<(RxMeta, Vec<u8>)> {
    let none = || control(&PortVlans::default());
    let ports = vec![(none(), MemoryHost::default()), (none(), side.host())];
    Bench::new(&SwitchConfig::link(), ports, &PortConfig::default()).send(0, frames).remove(1)
}

/// Returns the frames that a host without VLANs receives over a cable. These frames are the reference for all received
/// frames.
fn over_a_cable(side: &Side, frames: Vec<Sent>) -> Vec<(RxMeta, Vec<u8>)> {
    let none = || control(&PortVlans::default());
    Line::new([none(), none()], [MemoryHost::default(), side.host()]).send(0, frames)
}

fn tagged_all(frames: &[Sent], tags: &[Tag]) -> Vec<Sent> {
    frames.iter().map(|frame| with_tags(frame.clone(), tags)).collect()
}

proptest! {
    /// A received frame and its metadata equal the frame and the metadata on a plain link, except for the tag expected
    /// by the host. No frame of another VLAN arrives, and refused frames are counted.
    #[test]
    fn on_a_switch_a_host_gets_the_frames_of_its_vlans_alone_with_the_tag_that_it_expects(
        sides in prop::collection::vec(side(), 2..6), steps in prop::collection::vec(step(), 1..12),
    ) {
        let config = PortConfig { flood_limit: None, ..PortConfig::default() };
        let ports = sides.iter().map(|side| (control(&side.vlans()), side.host())).collect();
        let mut bench = Bench::new(&SwitchConfig::default(), ports, &config);
        let mut known = HashMap::new();
        let mut refused = vec![(0, 0); sides.len()];
        for (nth, step) in steps.into_iter().enumerate() {
            let step = Step { from: step.from % sides.len(), ..step };
            let destination = match step.to {
                6 => BROADCAST,
                to => mac(to),
            };
            let frames = step.frames(nth as u32 * 100_000, destination);
            let given = bench.send(step.from, tagged_all(&frames, &step.tags));
            let inside = sent_by(&sides[step.from], &step.tags);
            if inside.is_none() {
                refused[step.from].0 += step.frames as u64;
            }
            let station = inside.as_ref().map(|(vid, _)| (*vid, destination));
            if let Some((vid, _)) = inside.as_ref().filter(|_| step.is_planned()) {
                known.insert((*vid, mac(step.from)), step.from);
            }
            let to = station.and_then(|station| known.get(&station)).copied();
            let is_out_of_reach = |(vid, tags): &(u16, Vec<Tag>)| {
                to.is_some_and(|to| to != step.from && matches!(given_to(&sides[to], *vid, tags), Given::Other))
            };
            if step.is_planned() && inside.as_ref().is_some_and(is_out_of_reach) {
                // The switch knows the destination station in this VLAN, but only a frame with a customer tag reaches
                // the station's port.
                refused[step.from].0 += (step.frames * step.segments()) as u64;
            }
            for (port, side) in sides.iter().enumerate() {
                let is_for = port != step.from && to.is_none_or(|to| to == port);
                let expected = inside.as_ref().filter(|_| is_for).map_or(Given::Other, |(vid, tags)| given_to(side, *vid, tags));
                let expected = match expected {
                    Given::With(tags) => over_a_link(side, tagged_all(&frames, &tags)),
                    Given::Lost => {
                        refused[port].1 += if step.is_planned() { (step.frames * step.segments()) as u64 } else { 0 };
                        Vec::new()
                    }
                    Given::Other => Vec::new(),
                };
                prop_assert_eq!(&given[port], &expected, "step {} to port {}", nth, port);
            }
        }
        for (port, refused) in refused.into_iter().enumerate() {
            let counted = (bench.transmit_lost(port, Loss::Vlan), bench.receive_lost(port, Loss::Vlan));
            prop_assert_eq!(counted, refused, "port {}", port);
        }
        bench.assert_everything_is_accounted_for();
    }

    /// Checks the same property on a cable, whose other end sees the tags.
    #[test]
    fn on_a_cable_a_host_gets_the_frames_of_its_vlans_alone_with_the_tag_that_it_expects(
        side in side(), far in side(), steps in prop::collection::vec((step(), any::<bool>()), 1..12),
    ) {
        let far = Side { untagged: None, tagged: Vec::new(), ..far };
        let controls = [control(&side.vlans()), control(&far.vlans())];
        let mut line = Line::new(controls, [side.host(), far.host()]);
        for (nth, (step, is_back)) in steps.into_iter().enumerate() {
            let frames = step.frames(nth as u32 * 100_000, BROADCAST);
            let (from, to) = if is_back { (&far, &side) } else { (&side, &far) };
            let before = (line.transmit(0).lost(Loss::Vlan), line.receive(0).lost(Loss::Vlan));
            let given = line.send(usize::from(is_back), tagged_all(&frames, &step.tags));
            let inside = sent_by(from, &step.tags);
            let arrives = inside.as_ref().map(|(vid, tags)| given_to(to, *vid, tags));
            let expected = match &arrives {
                Some(Given::With(tags)) => over_a_cable(to, tagged_all(&frames, tags)),
                _ => Vec::new(),
            };
            prop_assert_eq!(given, expected, "step {}", nth);
            let lost = (line.transmit(0).lost(Loss::Vlan) - before.0, line.receive(0).lost(Loss::Vlan) - before.1);
            let on_wire = step.frames * step.segments();
            match arrives {
                None => prop_assert_eq!(lost, (step.frames as u64, 0)),
                Some(Given::Lost | Given::Other) if step.is_planned() => {
                    prop_assert_eq!(lost, (0, on_wire as u64));
                }
                Some(_) => prop_assert_eq!(lost, (0, 0)),
            }
        }
        for end in 0..2 {
            assert_accounted(line.transmit(end));
            assert_accounted(line.receive(end));
        }
    }
}

// ---- single cases ----

const DATA_LEN: usize = 20_000;

fn super_frame(destination: [u8; 6]) -> Sent {
    between(tcp_super_frame(0, 1, &pattern(1, DATA_LEN), 1448), mac(0), destination)
}

fn payload(given: &[(RxMeta, Vec<u8>)]) -> Vec<u8> {
    given.iter().flat_map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect()
}

#[cfg(debug_assertions)]
#[test]
fn a_super_frame_stays_whole_from_access_to_trunk_to_access_and_is_parsed_once_and_copied_nowhere() {
    let mut bench = Bench::of(&[access(10), trunk(1..=4094), access(10), access(11), PortVlans::default()]);
    bench.switch.host_mut(0).unwrap().lends_whole = true; // A port copies what it lends in pieces to several ports.
    let sent = super_frame(BROADCAST);
    let (parses_before, copied_before) = (parses(), copied_bytes());
    let given = bench.send(0, [sent.clone()]);
    assert_eq!((parses() - parses_before, copied_bytes() - copied_before), (1, 0));
    let tagged = with_tags(sent.clone(), &[tag(10)]);
    for (port, expected) in [(1, Some(&tagged)), (2, Some(&sent)), (3, None), (4, Some(&tagged))] {
        let frames: Vec<_> =
            given[port].iter().map(|(meta, frame)| (meta.checksum, meta.segmentation, frame)).collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(meta, frame)| (ChecksumState::Partial(meta.checksum.unwrap()), meta.segmentation, frame))
            .collect();
        assert_eq!(frames, expected, "port {port}");
    }
    // A frame is sent in the opposite direction, from the trunk.
    let back = with_tags(between(super_frame(mac(0)), mac(1), mac(0)), &[tag(10)]);
    let given = bench.send(1, [back]);
    assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 0, 0, 0]);
    assert!(payload(&given[0]) == pattern(1, DATA_LEN) && given[0][0].1[12..14] == [8, 0]);
}

#[cfg(debug_assertions)]
#[test]
fn a_super_frame_is_segmented_with_its_tag_on_the_one_copy() {
    let plain_host = || MemoryHost { accepts: Some(Offloads::empty()), ..MemoryHost::default() };
    let ports = vec![(control(&access(10)), MemoryHost::default()), (control(&trunk(10..=10)), plain_host())];
    // Segmentation takes several turns.
    let config = SwitchConfig { turn_frames: 4, ..SwitchConfig::default() };
    let mut bench = Bench::new(&config, ports, &PortConfig::default());
    let sent = super_frame(BROADCAST);
    let (parses_before, copied_before) = (parses(), copied_bytes());
    let given = bench.send(0, [sent]);
    assert_eq!((parses() - parses_before, copied_bytes() - copied_before), (1, DATA_LEN as u64));
    assert_eq!(given[1].len(), DATA_LEN.div_ceil(1448));
    assert!(given[1].iter().all(|(_, frame)| frame[12..18] == [0x81, 0, 0, 10, 8, 0]));
    assert!(payload(&given[1]) == pattern(1, DATA_LEN));
}

#[test]
fn a_super_frame_that_waits_for_moderation_waits_with_its_tag() {
    let policy = Policy::Coalescing(Coalescing { max_usecs: 100, max_packets: u32::MAX });
    let config = AdapterConfig { moderation: ModerationConfig { policy, ..ModerationConfig::default() }, ..adapter() };
    let waiting = PortControl::secured(&config, PortSecurity { vlans: trunk(10..=10), ..PortSecurity::default() });
    let ports = vec![(control(&access(10)), MemoryHost::default()), (waiting, MemoryHost::default())];
    let mut bench = Bench::new(&SwitchConfig::default(), ports, &PortConfig::default());
    let given = bench.send(0, [super_frame(BROADCAST), super_frame(BROADCAST)]);
    assert_eq!(given[1].len(), 2);
    assert!(given[1].iter().all(|(_, frame)| frame[12..18] == [0x81, 0, 0, 10, 8, 0]));
}

#[test]
fn frames_of_a_flow_are_coalesced_after_their_tag_is_taken_out() {
    let mut line = Line::of([&access(10), &access(10)]);
    let given = line.send(0, [super_frame(BROADCAST)]);
    let [(meta, frame)] = &given[..] else { panic!("{} frames", given.len()) };
    assert_eq!((usize::from(meta.segments), &frame[12..14]), (DATA_LEN.div_ceil(1448), &[8, 0][..]));
    assert!(payload(&given) == pattern(1, DATA_LEN));
}

#[test]
fn a_tag_does_not_count_for_the_mtu() {
    let of_packet = |len: usize| tcp_frame(0, 1, &pattern(1, len - 40));
    for (vlans, tags) in [(access(10), vec![]), (trunk(10..=10), vec![tag(10)])] {
        let mut bench = Bench::of(&[vlans.clone(), access(10), trunk(10..=10)]);
        let mut line = Line::of([&vlans, &access(10)]);
        for (len, arrives) in [(1500, true), (1501, false)] {
            let sent = with_tags(between(of_packet(len), mac(0), BROADCAST), &tags);
            let given = bench.send(0, [sent.clone()]);
            assert_eq!([given[1].len(), given[2].len()], [usize::from(arrives); 2], "{len}");
            assert_eq!(line.send(0, [sent]).len(), usize::from(arrives), "{len}");
        }
        assert_eq!([1, 2].map(|port| bench.receive_lost(port, Loss::TooLong)), [1, 1]);
        assert_eq!(line.transmit(0).lost(Loss::TooLong), 1);
    }
}

#[test]
fn with_an_interface_as_the_wire_a_port_does_what_it_does_on_a_cable() {
    let ports = [access(10), PortVlans::default()].map(|vlans| (control(&vlans), MemoryHost::default()));
    let mut bench = Bench::new(&SwitchConfig::link(), ports.into(), &PortConfig::default());
    let sent = super_frame(BROADCAST);
    let given = bench.send(0, [sent.clone()]);
    let [(_, frame)] = &given[1][..] else { panic!("{} frames", given[1].len()) };
    assert_eq!(*frame, with_tags(sent.clone(), &[tag(10)]).1);
    let given = bench.send(1, [with_tags(sent.clone(), &[tag(10)])]);
    let [(_, frame)] = &given[0][..] else { panic!("{} frames", given[0].len()) };
    assert_eq!(*frame, sent.1);
    for (nth, tags) in [vec![], vec![tag(11)], vec![tag(PRIORITY)]].iter().enumerate() {
        assert_eq!(bench.say(1, BROADCAST, tags), [0, 0]);
        assert_eq!(bench.transmit_lost(1, Loss::Vlan), nth as u64 + 1);
    }
    assert_eq!(bench.say(1, BROADCAST, &[tag(10), tag(11)]), [0, 0]);
    assert_eq!(bench.receive_lost(0, Loss::Vlan), 1);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_station_is_known_in_its_vlan_alone() {
    let all = || trunk(10..=11);
    let mut bench = Bench::of(&[access(10), access(11), all(), all()]);
    assert_eq!(bench.say(0, BROADCAST, &[]), [0, 0, 1, 1]);
    assert_eq!(bench.say(2, mac(0), &[tag(10)]), [1, 0, 0, 0]);
    assert_eq!(bench.say(2, mac(0), &[tag(11)]), [0, 1, 0, 1], "unknown there");
    // The same address in another VLAN is another station.
    let frame = between(plain(1), mac(0), BROADCAST);
    bench.send(1, [frame]);
    assert_eq!(bench.say(2, mac(0), &[tag(10)]), [1, 0, 0, 0]);
    assert_eq!(bench.say(2, mac(0), &[tag(11)]), [0, 1, 0, 0]);
    assert_eq!(bench.say(0, mac(1), &[]), [0, 0, 1, 1], "flooded in its own VLAN");
    bench.assert_everything_is_accounted_for();
}

#[test]
fn isolation_and_unknown_stations_are_judged_within_a_vlan() {
    let ports = |vlans: [PortVlans; 4]| vlans.iter().map(|vlans| (control(vlans), MemoryHost::default())).collect();
    let vlans = || [access(10), access(10), access(11), trunk(10..=10)];
    let isolated = PortConfig { isolated: true, ..PortConfig::default() };
    let mut bench = Bench::new(&SwitchConfig::default(), ports(vlans()), &isolated);
    bench.switch.control().ports()[3].set_isolated(false);
    assert_eq!(bench.say(0, BROADCAST, &[]), [0, 0, 0, 1]);
    bench.switch.control().ports()[3].set_isolated(true);
    assert_eq!(bench.say(0, BROADCAST, &[]), [0; 4]);
    assert_eq!(bench.say(2, BROADCAST, &[]), [0; 4]);
    assert_eq!((bench.transmit_lost(0, Loss::Isolated), bench.transmit_lost(2, Loss::Isolated)), (1, 0));
    assert_eq!(bench.transmit_lost(2, Loss::NoDestination), 1, "alone in its VLAN");
    let config = SwitchConfig { unknown_unicast: UnknownUnicast::Drop, ..SwitchConfig::default() };
    let mut bench = Bench::new(&config, ports(vlans()), &PortConfig::default());
    assert_eq!(bench.say(0, BROADCAST, &[]), [0, 1, 0, 1]);
    assert_eq!(bench.say(1, mac(0), &[]), [1, 0, 0, 0]);
    assert_eq!(bench.say(2, mac(0), &[]), [0; 4], "unknown in that VLAN");
    assert_eq!(bench.transmit_lost(2, Loss::NoDestination), 1);
    bench.assert_everything_is_accounted_for();
}

/// Ports 0 and 4 flood VLAN 10 for a station at port 1, which neither sends nor accepts frames. Port 0 uses a new
/// source address for each frame. Port 4 is a trunk: its station in VLAN 20 exchanges frames with the stations at ports
/// 2 and 3 during the flood.
#[test]
fn a_flood_for_a_silent_station_loses_no_known_unicast_of_another_vlan() {
    const FRAMES: u16 = 20_000;
    let silent = || MemoryHost { refuse: usize::MAX, ..MemoryHost::default() };
    let rx = RateLimit { frames_per_second: Some(100), ..RateLimit::default() };
    let limited = PortLimits { rx, ..PortLimits::default() };
    for (unknown_unicast, limits, policy) in [
        (UnknownUnicast::Flood, PortLimits::default(), Policy::Off),
        (UnknownUnicast::Drop, limited, Policy::Off),
        (UnknownUnicast::Flood, limited, Policy::default()),
    ] {
        let vlans = [access(10), access(10), access(20), access(20), trunk(10..=20)];
        let ports = vlans
            .iter()
            .zip(0..)
            .map(|(vlans, n)| (control(vlans), if n == 1 { silent() } else { MemoryHost::default() }));
        let config = SwitchConfig { unknown_unicast, stations_max: 5 * 128, ..SwitchConfig::default() };
        let mut bench = Bench::new(&config, ports.collect(), &PortConfig::default());
        bench.controls[1].set_limits(limits);
        bench.controls[1].set_moderation(ModerationConfig { policy, ..ModerationConfig::default() });
        bench.say(2, BROADCAST, &[]);
        bench.say(3, BROADCAST, &[]);
        bench.say(4, BROADCAST, &[tag(20)]);
        let known = |from, to, n: u16, tags: &[Tag]| {
            let (meta, mut frame) = between(plain(0), mac(from), mac(to));
            frame[14..16].copy_from_slice(&n.to_be_bytes());
            with_tags((meta, frame), tags)
        };
        let flood = |n: u16, tags: &[Tag]| {
            let [high, low] = n.to_be_bytes();
            let destination = if n.is_multiple_of(3) { BROADCAST } else { mac(1) };
            with_tags(between(plain(0), [2, 1, 0, 0, high, low], destination), tags)
        };
        for n in 0..FRAMES {
            for (from, frames) in [
                (0, vec![flood(n, &[])]),
                (2, vec![known(2, 3, n, &[])]),
                (3, vec![known(3, 4, n, &[])]),
                (4, vec![known(4, 2, n, &[tag(20)]), with_tags(between(plain(0), mac(9), mac(1)), &[tag(10)])]),
            ] {
                bench.switch.host_mut(from).unwrap().to_send.extend(frames);
            }
        }
        let given = bench.send(0, []);
        for (to, from, tags) in [(3, 2, &[][..]), (2, 4, &[]), (4, 3, &[tag(20)])] {
            let source = mac(from);
            let came: Vec<_> =
                given[to].iter().filter(|(_, frame)| frame[6..12] == source).map(|(_, frame)| frame).collect();
            assert_eq!(came.len(), usize::from(FRAMES), "to {to}, {unknown_unicast:?}");
            assert!(came.iter().zip(0..).all(|(frame, n)| **frame == known(from, to, n, tags).1), "to {to}");
            assert_eq!(bench.controls[to].queues()[0].receive.lost_total(), 0);
        }
        assert!(given[1].is_empty());
        bench.assert_everything_is_accounted_for();
    }
}

#[test]
fn addresses_are_bound_in_a_vlan_as_elsewhere() {
    const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    let bound = |vlans: &PortVlans| {
        let ip_addresses = vec![Prefix::of(IpAddr::V4(OURS))];
        let security = PortSecurity { mac_addresses: vec![mac(0)], ip_addresses, vlans: vlans.clone() };
        PortControl::secured(&adapter(), security)
    };
    let data = |source: usize, octet: u8| {
        let (meta, mut frame) = between(tcp_frame(0, 1, &pattern(1, 100)), mac(source), BROADCAST);
        frame[29] = octet;
        (meta, frame)
    };
    let cases = [
        ("its own", data(0, 1), None),
        ("its own with a tag", with_tags(data(0, 1), &[tag(10)]), Some(Loss::Vlan)),
        ("its own with a priority", with_tags(data(0, 1), &[tag(PRIORITY)]), None),
        ("another's address", data(1, 1), Some(Loss::Spoofed)),
        ("another's IP address", data(0, 2), Some(Loss::Spoofed)),
        ("another's IP address with a priority", with_tags(data(0, 2), &[tag(PRIORITY)]), Some(Loss::Spoofed)),
    ];
    let host = MemoryHost::default;
    let ports = vec![(bound(&access(10)), host()), (control(&trunk(1..=4094)), host()), (control(&access(11)), host())];
    let mut bench = Bench::new(&SwitchConfig::default(), ports, &PortConfig::default());
    let mut line = Line::new([bound(&access(10)), control(&trunk(10..=10))], Default::default());
    for (name, sent, loss) in cases {
        let lost = |direction: &Direction| loss.map_or(0, |loss| direction.lost(loss));
        let before = (lost(&bench.controls[0].queues()[0].transmit), lost(line.transmit(0)));
        let counts: Vec<_> = bench.send(0, [sent.clone()]).iter().map(Vec::len).collect();
        assert_eq!(counts, [0, usize::from(loss.is_none()), 0], "{name}");
        assert_eq!(line.send(0, [sent]).len(), usize::from(loss.is_none()), "{name}");
        let more = u64::from(loss.is_some());
        let after = (lost(&bench.controls[0].queues()[0].transmit), lost(line.transmit(0)));
        assert_eq!(after, (before.0 + more, before.1 + more), "{name}");
    }
    // A bound address in another VLAN gives no access to that VLAN.
    assert_eq!(bench.say(2, mac(0), &[]), [0; 3]);
    assert_eq!(bench.transmit_lost(2, Loss::Vlan), 1);
    bench.assert_everything_is_accounted_for();
}

fn gcm() -> SaConfig {
    let suite = Suite::by_name("aes128gcm16").unwrap();
    let key = |len| SecretKey::new((0..len).map(|n| n as u8).collect());
    let (encryption, integrity) = (key(suite.encryption_key_len()), key(suite.integrity_key_len()));
    SaConfig { lifetime: Lifetime::default(), ..SaConfig::new(0x1001, suite, encryption, integrity) }
}

fn protect(control: &PortControl, direction: SaDirection) {
    control.change_ipsec(&[SaChange::Add { direction, config: Box::new(gcm()) }]).unwrap();
}

fn is_esp_in_tag(frame: &[u8], vid: u16) -> bool {
    let arrival = Arrival::of(&Frame::received(&mut frame.to_vec()), None);
    frame[12..16] == tag(vid) && matches!(arrival, Ok(Arrival::Esp(_)))
}

#[test]
fn what_is_sealed_is_sealed_inside_of_the_tag() {
    let data = pattern(1, DATA_LEN);
    // On a cable, the other end sees the tag, and opens the packet after the tag.
    for far in [access(10), trunk(10..=10)] {
        let mut line = Line::of([&access(10), &far]);
        protect(&line.controls[0], SaDirection::Out);
        protect(&line.controls[1], SaDirection::In);
        assert!(payload(&line.send(0, [super_frame(BROADCAST)])) == data);
    }
    let mut line = Line::of([&access(10), &PortVlans::default()]);
    protect(&line.controls[0], SaDirection::Out);
    let given = line.send(0, [super_frame(BROADCAST)]);
    assert!(given.len() > 1 && given.iter().all(|(_, frame)| is_esp_in_tag(frame, 10)));
    // On a switch, each port receives the frame in its own form.
    let mut bench = Bench::of(&[access(10), access(10), trunk(10..=10), access(11), PortVlans::default()]);
    protect(&bench.controls[0], SaDirection::Out);
    protect(&bench.controls[1], SaDirection::In);
    for _ in 0..2 {
        let given = bench.send(0, [super_frame(BROADCAST)]);
        assert!(payload(&given[1]) == data && given[1].iter().all(|(_, frame)| frame[12..14] == [8, 0]));
        assert!(given[3].is_empty());
        for port in [2, 4] {
            assert!(given[port].len() > 1 && given[port].iter().all(|(_, frame)| is_esp_in_tag(frame, 10)));
        }
    }
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_host_is_answered_in_the_form_in_which_it_sends() {
    // 1500 bytes with DF set do not fit after sealing.
    let datagram = || {
        let (meta, mut frame) = between(tcp_frame(0, 1, &pattern(1, 1460)), mac(0), mac(1));
        frame[23] = 17;
        frame[38..40].copy_from_slice(&1480_u16.to_be_bytes());
        let sum = offramp_offload::checksum::sum(&[&frame[14..24], &frame[26..34]].concat()).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        (TxMeta { checksum: None, ..meta }, frame)
    };
    for (vlans, tags, answered) in [
        (access(10), vec![], vec![8, 0]),
        (access(10), vec![tag(PRIORITY)], vec![8, 0]),
        (trunk(10..=10), vec![tag(10)], tag(10).to_vec()),
    ] {
        let mut line = Line::of([&vlans, &PortVlans::default()]);
        protect(&line.controls[0], SaDirection::Out);
        assert!(line.send(0, [with_tags(datagram(), &tags)]).is_empty());
        let given = std::mem::take(&mut line.pairs[0].host_mut().given);
        let [(_, answer)] = &given[..] else { panic!("{} frames", given.len()) };
        assert_eq!((&answer[..6], &answer[12..12 + answered.len()]), (&mac(0)[..], &answered[..]));
    }
}
