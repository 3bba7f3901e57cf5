//! The switch with random ports, frames and requests. All sent frames must arrive. Independent code segments the
//! super-frames that a port receives whole.

use crate::support::{MemoryHost, pattern};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::stats::Loss;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::esp::{SaConfig, SecretKey, Suite};
use offramp_offload::frame::Frame;
use offramp_offload::layout::Transport;
use offramp_offload::meta::{ChecksumState, Cwr, PartialChecksum, RxMeta, Segmentation, SegmentationKind, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const MTUS: [usize; 3] = [600, 1500, 9000];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The random properties of one port.
#[derive(Clone, Debug)]
struct Side {
    accepts: Offloads,
    offloads: Offloads,
    honours_data_valid: bool,
    mtu: usize,
    isolated: bool,
}

fn side() -> impl Strategy<Value = Side> {
    let any_offloads = prop_oneof![
        3 => Just(Offloads::all()),
        1 => Just(Offloads::RX_CHECKSUM),
        2 => any::<u32>().prop_map(Offloads::from_bits_truncate)
    ];
    (any_offloads.clone(), any_offloads, any::<bool>(), prop::sample::select(&MTUS[..]), prop::bool::weighted(0.3))
        .prop_map(|(accepts, offloads, honours_data_valid, mtu, isolated)| Side {
            accepts,
            offloads,
            honours_data_valid,
            mtu,
            isolated,
        })
}

/// The form of a frame, with its offload requests.
#[derive(Clone, Debug)]
enum Form {
    /// A complete checksum, right or wrong.
    Complete { protocol: u8, is_right: bool },
    /// A partial checksum.
    Partial { protocol: u8 },
    /// A super-frame to be segmented.
    Super { kind: SegmentationKind, size: u16, ecn: Cwr, cwr: bool, has_partial: bool },
    /// Arbitrary bytes after the addresses.
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Step {
    from: usize,
    /// Index of the destination port. The number of ports stands for an unknown station, and a number above the number
    /// of ports stands for broadcast.
    to: usize,
    flow: u16,
    is_ipv6: bool,
    payload_len: usize,
    form: Form,
    /// True if the switch moves the frames of this step before the next step.
    polls: bool,
}

fn form() -> impl Strategy<Value = Form> {
    use SegmentationKind::{Tcp4, Tcp6, Udp, UdpFragments};
    let protocol = prop_oneof![4 => Just(TCP), 1 => Just(UDP)];
    let kind = prop::sample::select(&[Tcp4, Tcp6, Udp, UdpFragments][..]);
    prop_oneof![
        12 => (protocol.clone(), prop::bool::weighted(0.95))
            .prop_map(|(protocol, is_right)| Form::Complete { protocol, is_right }),
        2 => protocol.prop_map(|protocol| Form::Partial { protocol }),
        4 => (kind, prop::sample::select(&[8_u16, 400, 536, 1200, 1448][..]), cwr(),
              prop::bool::weighted(0.1), prop::bool::weighted(0.9))
            .prop_map(|(kind, size, ecn, cwr, has_partial)| Form::Super { kind, size, ecn, cwr, has_partial }),
        1 => prop::collection::vec(any::<u8>(), 2..80).prop_map(Form::Bytes),
    ]
}

fn cwr() -> impl Strategy<Value = Cwr> {
    prop_oneof![8 => Just(Cwr::Unmarked), 1 => Just(Cwr::First), 1 => Just(Cwr::All)]
}

fn step() -> impl Strategy<Value = Step> {
    // Most frames belong to a few flows between two ports, so that these frames are coalesced, and wait while other
    // frames bypass the coalescer.
    let payload_len = prop_oneof![3 => Just(500_usize), 1 => 1..3000_usize];
    let from = prop_oneof![4 => Just(0_usize), 1 => 0..5_usize];
    let to = prop_oneof![4 => Just(1_usize), 1 => 0..7_usize];
    (from, to, 0..2_u16, prop::bool::weighted(0.2), payload_len, form(), prop::bool::weighted(0.2)).prop_map(
        |(from, to, flow, is_ipv6, payload_len, form, polls)| Step {
            from,
            to,
            flow,
            is_ipv6,
            payload_len,
            form,
            polls,
        },
    )
}

fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8 + 1]
}

/// The progress of each sender's flows: the next sequence number and the next IPv4 ID.
type Flows = BTreeMap<(usize, u16, u8, bool), (u32, u16)>;

/// Builds a TCP or UDP frame with a partial checksum.
fn packet(step: &Step, protocol: u8, is_ipv6: bool, frames: u16, flows: &mut Flows) -> (PartialChecksum, Vec<u8>) {
    let next = flows.entry((step.from, step.flow, protocol, is_ipv6)).or_insert((1000, 1));
    let transport_header_len = if protocol == TCP { 20 } else { 8 };
    let transport_len = transport_header_len + step.payload_len;
    let mut frame = vec![0; 12];
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((transport_len as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0x20; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((transport_len as u16 + 20).to_be_bytes());
        frame.extend(next.1.to_be_bytes());
        frame.extend([0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let header_sum = checksum::sum(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    }
    let start = frame.len();
    frame.extend((1000 + step.flow).to_be_bytes());
    frame.extend([0, 80]);
    let offset = if protocol == TCP {
        frame.extend(next.0.to_be_bytes());
        frame.extend([0, 0, 0, 0, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
        16
    } else {
        frame.extend((transport_len as u16).to_be_bytes());
        frame.extend([0, 0]);
        6
    };
    frame.extend(pattern(u64::from(next.0), step.payload_len));
    next.0 = next.0.wrapping_add(step.payload_len as u32);
    next.1 = next.1.wrapping_add(frames);
    let pseudo = Frame::received(&mut frame).pseudo_header(transport_len as u32).fold();
    frame[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
    (PartialChecksum { start: start as u16, offset: offset as u16 }, frame)
}

/// Builds the frame of a step, without addresses.
fn build(step: &Step, flows: &mut Flows) -> (TxMeta, Vec<u8>) {
    match &step.form {
        Form::Bytes(tail) => (TxMeta::default(), [&[0; 12], &tail[..]].concat()),
        Form::Complete { protocol, is_right } => {
            let (partial, mut frame) = packet(step, *protocol, step.is_ipv6, 1, flows);
            let len = frame.len();
            checksum::complete(&mut frame, partial, len).unwrap();
            if !is_right {
                frame[len - 1] ^= 0x55;
            }
            (TxMeta::default(), frame)
        }
        Form::Partial { protocol } => {
            let (partial, frame) = packet(step, *protocol, step.is_ipv6, 1, flows);
            (TxMeta { checksum: Some(partial), segmentation: None }, frame)
        }
        Form::Super { kind, size, ecn, cwr, has_partial } => {
            let is_tcp = matches!(kind, SegmentationKind::Tcp4 | SegmentationKind::Tcp6);
            let is_ipv6 = match kind {
                SegmentationKind::Tcp4 => false,
                SegmentationKind::Tcp6 => true,
                _ => step.is_ipv6,
            };
            let frames = step.payload_len.div_ceil(usize::from(*size)) as u16;
            let protocol = if is_tcp { TCP } else { UDP };
            let (partial, mut frame) = packet(step, protocol, is_ipv6, frames, flows);
            if is_tcp && *cwr {
                frame[usize::from(partial.start) + 13] |= 0x80;
            }
            let needs_partial = *has_partial || *kind == SegmentationKind::Udp;
            let segmentation =
                Some(Segmentation { kind: *kind, size: *size, cwr: if is_tcp { *ecn } else { Cwr::Unmarked } });
            (TxMeta { checksum: needs_partial.then_some(partial), segmentation }, frame)
        }
    }
}

/// Segments a frame and completes the checksums. Returns `None` if the frame cannot be segmented.
fn frames_of(meta: &TxMeta, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut copy = frame.to_vec();
    let frame = Frame::new(&mut copy, *meta);
    let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).ok()?;
    let mut frames = Vec::new();
    while plan.frames_left() > 0 {
        let mut out = vec![0; plan.next_len()];
        plan.write_next(&frame, &mut out);
        frames.push(normal(out));
    }
    Some(frames)
}

/// Replaces one of the two forms of a zero checksum by the other form. Sets the ID of IPv6 fragments to 0, because each
/// port counts these IDs separately.
fn normal(mut frame: Vec<u8>) -> Vec<u8> {
    let Ok(layout) = Frame::received(&mut frame).layout().copied() else { return frame };
    let field = match layout.transport {
        Transport::Tcp => 16,
        Transport::Udp => 6,
        Transport::Opaque if layout.fragment && frame[12..14] == [0x86, 0xdd] => {
            frame[58..62].fill(0);
            return frame;
        }
        Transport::Opaque => return frame,
    };
    let at = layout.transport_start + field;
    if frame[at..at + 2] == [0xff, 0xff] {
        frame[at..at + 2].fill(0);
    }
    frame
}

/// Returns the key of a frame's flow. Frames keep their order within a flow. A flow is the TCP or UDP frames from one
/// sender to one station between two ports. All other frames from one sender to one station are also one flow.
fn flow_of(frame: &[u8]) -> Flow {
    match Frame::received(&mut frame.to_vec()).layout().copied() {
        Ok(layout) if layout.transport != Transport::Opaque => {
            let addresses = Frame::received(&mut frame.to_vec()).addresses().to_vec();
            let ports = &frame[layout.transport_start..layout.transport_start + 4];
            (frame[..12].to_vec(), layout.protocol, [&addresses[..], ports].concat())
        }
        _ => (frame[..12].to_vec(), 0, Vec::new()),
    }
}

/// Addresses, protocol and ports of a flow.
type Flow = (Vec<u8>, u8, Vec<u8>);
type Arrivals = BTreeMap<Flow, Vec<Vec<u8>>>;

/// Checks the metadata of a received frame, and segments the frame.
fn check_given(meta: &RxMeta, frame: &[u8], side: &Side) -> Vec<Vec<u8>> {
    let enabled = Offloads::offer(Offloads::RX, side.accepts, side.offloads);
    let is_told = meta.checksum != ChecksumState::Unknown;
    assert!(enabled.contains(Offloads::RX_CHECKSUM) || !is_told);
    let checksum = match meta.checksum {
        ChecksumState::Partial(partial) => Some(partial),
        state => {
            if is_told {
                assert_eq!(Frame::received(&mut frame.to_vec()).verify(), state);
                assert!(side.honours_data_valid || state == ChecksumState::Bad);
            }
            None
        }
    };
    if let Some(segmentation) = meta.segmentation {
        let needed = match segmentation.kind {
            SegmentationKind::Tcp4 => Offloads::RSC4,
            SegmentationKind::Tcp6 => Offloads::RSC6,
            SegmentationKind::Udp => Offloads::RSC_UDP,
            SegmentationKind::UdpFragments => panic!("fragments have no mark"),
        };
        assert!(enabled.contains(needed) && checksum.is_some());
        let is_tcp = segmentation.kind != SegmentationKind::Udp;
        let has_cwr = is_tcp && frame[usize::from(checksum.unwrap().start) + 13] & 0x80 != 0;
        let agreed = match segmentation.cwr {
            Cwr::Unmarked => {
                assert!(!has_cwr, "CWR that is not told");
                Offloads::empty()
            }
            Cwr::First => Offloads::RSC_ECN,
            Cwr::All => Offloads::RSC_ACCECN,
        };
        assert!(agreed.is_empty() || (is_tcp && enabled.contains(agreed)), "ECN without agreement");
    }
    let frames = frames_of(&TxMeta { checksum, segmentation: meta.segmentation }, frame).unwrap();
    assert_eq!(frames.len(), usize::from(meta.segments));
    frames
}

/// Creates a switch whose ports have learned each other's stations, except pairs of isolated ports.
fn switch(sides: &[Side], turn_frames: usize, hold_ns: u64) -> Switch<MemoryHost> {
    let mut switch = Switch::new(&SwitchConfig { turn_frames, ..SwitchConfig::default() });
    for side in sides {
        let mut config = PortConfig {
            mtu: side.mtu,
            offloads: side.offloads,
            isolated: side.isolated,
            flood_limit: None,
            ..PortConfig::default()
        };
        config.coalesce.hold_ns = hold_ns;
        let host = MemoryHost {
            accepts: Some(side.accepts),
            honours_data_valid: side.honours_data_valid,
            ..MemoryHost::default()
        };
        switch.control().add(host, &config).unwrap();
    }
    switch.poll(0);
    for n in 0..sides.len() {
        let hello = [&[0xff; 6], &mac(n)[..], &[0x88, 0xb5], &[0; 46]].concat();
        switch.host_mut(n).unwrap().to_send.push_back((TxMeta::default(), hello));
    }
    while switch.poll(0).moved {}
    for n in 0..sides.len() {
        switch.host_mut(n).unwrap().given.clear();
    }
    switch
}

/// Sends the frames of all steps through the switch, and changes settings between the steps. Checks that each port
/// received its frames, and that every frame is counted.
fn carry(sides: &[Side], steps: &[Step], settings: &[Offloads], mut switch: Switch<MemoryHost>, hold_ns: u64) {
    let count = sides.len();
    let ports = switch.control().ports();
    let (mut flows, mut now_ns) = (Flows::new(), 0);
    let mut expected = vec![Arrivals::new(); count];
    for (nth, step) in steps.iter().enumerate() {
        let step = Step { from: step.from % count, to: step.to % (count + 2), ..step.clone() };
        let (meta, mut frame) = build(&step, &mut flows);
        frame[..6].copy_from_slice(&if step.to > count { [0xff; 6] } else { mac(step.to) });
        frame[6..12].copy_from_slice(&mac(step.from));
        // A VLAN tag among the random bytes would make the destination an unknown station of a VLAN.
        let is_known = step.to < count && !matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
        for to in (0..count).filter(|&to| to != step.from && (!is_known || to == step.to)) {
            if sides[step.from].isolated && sides[to].isolated {
                continue;
            }
            for cut in frames_of(&meta, &frame).unwrap_or_default() {
                if cut.len() - 14 <= sides[to].mtu {
                    expected[to].entry(flow_of(&cut)).or_default().push(cut);
                }
            }
        }
        switch.host_mut(step.from).unwrap().to_send.push_back((meta, frame));
        if step.polls {
            now_ns += 1;
            switch.poll(now_ns);
            if let Some(setting) = settings.get(nth % settings.len().max(1)) {
                ports[nth % count].set_offloads(*setting);
            }
        }
    }
    while switch.poll(now_ns).moved {}
    switch.poll(now_ns + hold_ns);
    for (n, side) in sides.iter().enumerate() {
        let mut arrived = Arrivals::new();
        for (meta, frame) in &switch.host(n).unwrap().given {
            for cut in check_given(meta, frame, side) {
                assert!(cut.len() - 14 <= side.mtu);
                arrived.entry(flow_of(&cut)).or_default().push(cut);
            }
        }
        assert!(arrived == expected[n], "port {n} of {sides:?}");
        for direction in [&ports[n].stats().transmit, &ports[n].stats().receive] {
            assert_eq!(direction.frames_in.get(), direction.frames_out.get() + direction.lost_total());
        }
        assert_eq!(switch.held(n), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_arrives_is_what_was_sent_in_the_order_of_its_flow(
        sides in prop::collection::vec(side(), 2..=5),
        steps in prop::collection::vec(step(), 1..60),
        turn_frames in prop::sample::select(&[1_usize, 7, 256][..]),
        hold_ns in prop::sample::select(&[0_u64, 3][..]),
    ) {
        carry(&sides, &steps, &[], switch(&sides, turn_frames, hold_ns), hold_ns);
    }

    #[test]
    fn offloads_switched_at_any_moment_lose_and_reorder_nothing(
        sides in prop::collection::vec(side(), 2..=5),
        steps in prop::collection::vec(step(), 1..60),
        settings in prop::collection::vec(any::<u32>().prop_map(Offloads::from_bits_truncate), 1..30),
        turn_frames in prop::sample::select(&[1_usize, 7, 256][..]),
    ) {
        let all = |side: &Side| Side { accepts: Offloads::all(), offloads: Offloads::all(), ..side.clone() };
        let sides: Vec<_> = sides.iter().map(all).collect();
        carry(&sides, &steps, &settings, switch(&sides, turn_frames, 3), 3);
    }

    #[test]
    fn whatever_a_port_sends_and_asks_nothing_panics_and_every_frame_is_accounted_for(
        sides in prop::collection::vec(side(), 2..=5),
        frames in prop::collection::vec(
            (0..5_usize, prop::collection::vec(any::<u8>(), 0..200), prop::option::of((any::<u16>(), any::<u16>())),
             prop::option::of((0..4_usize, any::<u16>(), cwr())), 0..1500_usize),
            0..60,
        ),
        turn_frames in 1..300_usize,
    ) {
        use SegmentationKind::{Tcp4, Tcp6, Udp, UdpFragments};
        let mut switch = switch(&sides, turn_frames, 0);
        let ports = switch.control().ports();
        for (from, mut frame, checksum, segmentation, tail_len) in frames {
            frame.resize(frame.len() + tail_len, 7);
            let checksum = checksum.map(|(start, offset)| PartialChecksum { start: start % 200, offset: offset % 200 });
            let segmentation = segmentation
                .map(|(kind, size, cwr)| Segmentation { kind: [Tcp4, Tcp6, Udp, UdpFragments][kind], size, cwr });
            let to_send = &mut switch.host_mut(from % sides.len()).unwrap().to_send;
            to_send.push_back((TxMeta { checksum, segmentation }, frame));
        }
        while switch.poll(0).moved {}
        for port in ports {
            for direction in [&port.stats().transmit, &port.stats().receive] {
                prop_assert_eq!(direction.frames_in.get(), direction.frames_out.get() + direction.lost_total());
            }
        }
    }
}

/// The outcome of one host's frames to another host. The outcome contains the wire frames by flow, with their checksum
/// state, and the number of frames lost for each reason.
#[derive(Debug, PartialEq)]
struct Fate {
    arrived: BTreeMap<Flow, Vec<(Vec<u8>, &'static str)>>,
    lost: Vec<(Loss, u64)>,
}

impl Fate {
    fn of(given: &[(RxMeta, Vec<u8>)], side: &Side, controls: [&PortControl; 2]) -> Self {
        let mut arrived: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (meta, frame) in given {
            let mark = match meta.checksum {
                ChecksumState::Unknown => "unknown",
                ChecksumState::Bad => "bad",
                ChecksumState::Good | ChecksumState::Partial(_) => "good",
            };
            for cut in check_given(meta, frame, side) {
                arrived.entry(flow_of(&cut)).or_default().push((cut, mark));
            }
        }
        // A switch detects a frame above the MTU on delivery; a cable detects it on transmission.
        let stats = controls.map(|control| &control.queues()[0]);
        let lost = |reason| stats.iter().map(|s| s.transmit.lost(reason) + s.receive.lost(reason)).sum();
        let lost = Loss::ALL.iter().map(|&reason| (reason, lost(reason))).filter(|(_, lost)| *lost > 0).collect();
        Self { arrived, lost }
    }
}

/// An association from the first port to the second.
fn association() -> SaConfig {
    let suite = Suite::by_name("aes128gcm16").unwrap();
    let key = |len| SecretKey::new((0..len).map(|n| n as u8 + 1).collect());
    SaConfig::new(0x1001, suite, key(suite.encryption_key_len()), key(suite.integrity_key_len()))
}

fn controls(sides: &[Side; 2], moderation: ModerationConfig, is_protected: bool) -> [Arc<PortControl>; 2] {
    let controls = sides.each_ref().map(|side| {
        PortControl::new(&AdapterConfig { offloads: side.offloads, moderation, ..AdapterConfig::default() })
    });
    if is_protected {
        for (control, direction) in controls.iter().zip([SaDirection::Out, SaDirection::In]) {
            let config = Box::new(association());
            control.change_ipsec(&[SaChange::Add { direction, config }]).unwrap();
        }
    }
    controls
}

fn host(side: &Side, to_send: &[(TxMeta, Vec<u8>)]) -> MemoryHost {
    MemoryHost {
        accepts: Some(side.accepts),
        honours_data_valid: side.honours_data_valid,
        to_send: to_send.iter().cloned().collect(),
        ..MemoryHost::default()
    }
}

/// Number of polls, enough for any moderation in this test.
const POLLS: u64 = 400;

fn over_a_switch(sides: &[Side; 2], frames: &[(TxMeta, Vec<u8>)], controls: &[Arc<PortControl>; 2]) -> Fate {
    let mut switch = Switch::new(&SwitchConfig::link());
    for ((side, control), sends) in sides.iter().zip(controls).zip([frames, &[]]) {
        let config = PortConfig { mtu: side.mtu, flood_limit: None, ..PortConfig::default() };
        switch.control().add_controlled(host(side, sends), control, &config).unwrap();
    }
    for poll in 0..POLLS {
        switch.poll(poll * 1000);
    }
    Fate::of(&switch.host(1).unwrap().given, &sides[1], [&controls[0], &controls[1]])
}

fn over_a_cable(sides: &[Side; 2], frames: &[(TxMeta, Vec<u8>)], controls: &[Arc<PortControl>; 2]) -> Fate {
    let mtu = sides[0].mtu;
    let (near, far) = cable(&CableConfig { mtu, ..CableConfig::default() });
    let config = |n: usize| AdapterConfig { mtu, moderation: controls[n].moderation(), ..AdapterConfig::default() };
    let mut sender = QueuePair::new(&config(0), &controls[0], 0, host(&sides[0], frames), near);
    let mut receiver = QueuePair::new(&config(1), &controls[1], 0, host(&sides[1], &[]), far);
    for poll in 0..POLLS {
        sender.poll(poll * 1000).unwrap();
        receiver.poll(poll * 1000).unwrap();
    }
    Fate::of(&receiver.host().given, &sides[1], [&controls[0], &controls[1]])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_switch_does_to_frames_what_a_cable_does(
        sender in side(),
        receiver in side(),
        steps in prop::collection::vec(step(), 1..40),
        is_protected in any::<bool>(),
        max_usecs in prop::option::of(1..50_u32),
    ) {
        let mtu = receiver.mtu;
        let open = |side: Side| Side { mtu, isolated: false, ..side };
        let sides = [open(sender), open(receiver)];
        let policy = max_usecs.map_or(Policy::Off, |max_usecs| {
            Policy::Coalescing(Coalescing { max_usecs, max_packets: u32::MAX })
        });
        let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
        let mut flows = Flows::new();
        let frames: Vec<_> = steps.iter().map(|step| {
            let (meta, mut frame) = build(&Step { from: 0, to: 1, ..step.clone() }, &mut flows);
            frame[..6].copy_from_slice(&mac(1));
            frame[6..12].copy_from_slice(&mac(0));
            (meta, frame)
        }).collect();
        let on_switch = over_a_switch(&sides, &frames, &controls(&sides, moderation, is_protected));
        let on_cable = over_a_cable(&sides, &frames, &controls(&sides, moderation, is_protected));
        prop_assert_eq!(on_switch, on_cable);
    }
}
