//! Tests of the selection of protected packets, and of the treatment of all other packets.

use super::bed::{Bed, SPI, add, config, gcm, losses, sa};
use crate::support::{pattern, tcp_frame, tcp_super_frame};
use offramp_adapter::ipsec::{NoMatch, Policy, PolicyAction, PolicyEntry, SaChange, SaDirection, SaError};
use offramp_adapter::stats::Loss;
use offramp_offload::checksum;
use offramp_offload::esp::{InvalidSa, Prefix, SaConfig, SaFault, SecretKey, Selector, UdpPorts};
use offramp_offload::meta::TxMeta;

fn discard() -> Policy {
    Policy { transmit: NoMatch::Discard, receive: NoMatch::Discard, ..Policy::default() }
}

/// Returns an association for packets with source port 1000 + `flow`.
fn for_flow(flow: u16) -> SaConfig {
    let ports = 1000 + flow..=1000 + flow;
    SaConfig { selector: Selector { source_ports: Some(ports), ..Selector::default() }, ..sa("aes128gcm16", SPI) }
}

fn arp() -> (TxMeta, Vec<u8>) {
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 8, 6]);
    (TxMeta::default(), frame)
}

#[test]
fn what_matches_no_selector_goes_on_as_it_is_or_is_discarded_at_either_end() {
    for (left, right, given, lost) in [
        (NoMatch::Bypass, NoMatch::Bypass, 2, [vec![], vec![]]),
        (NoMatch::Discard, NoMatch::Bypass, 1, [vec![(Loss::Discard, 1)], vec![]]),
        (NoMatch::Bypass, NoMatch::Discard, 1, [vec![], vec![(Loss::Discard, 1)]]),
    ] {
        let mut bed = Bed::protected(&for_flow(0));
        for (control, no_match) in bed.controls.iter().zip([left, right]) {
            let policy = Policy { transmit: no_match, receive: no_match, ..Policy::default() };
            control.change_ipsec(&[SaChange::Policy(policy)]).unwrap();
        }
        bed.left.host_mut().to_send.extend([tcp_frame(0, 1, b"sealed"), tcp_frame(1, 1, b"clear")]);
        bed.run_until_idle();
        assert_eq!(bed.right.host().given.len(), given);
        assert_eq!([losses(bed.transmit()), losses(bed.receive())], lost);
        let passed = (bed.transmit().bypassed.get(), bed.receive().bypassed.get());
        assert_eq!(passed, (u64::from(left == NoMatch::Bypass), given as u64 - 1));
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn what_should_have_been_protected_is_refused_in_the_clear_whatever_the_policy() {
    let mut bed = Bed::new(&config());
    bed.controls[1].change_ipsec(&[add(SaDirection::In, &for_flow(0))]).unwrap();
    bed.left.host_mut().to_send.extend([tcp_frame(0, 1, b"should be sealed"), tcp_frame(1, 1, b"may be clear")]);
    bed.run_until_idle();
    assert_eq!(losses(bed.receive()), [(Loss::Unprotected, 1)]);
    assert_eq!(bed.received(), b"may be clear");
    bed.assert_everything_is_accounted_for();
}

/// Returns a fragment over IPv4 or IPv6 from 10.0.0.1 or `fd00::1` without ports, with the transport `protocol`.
fn fragment(is_ipv6: bool, protocol: u8) -> Vec<u8> {
    let mut frame = tcp_frame(0, 1, &pattern(0, 400)).1;
    if is_ipv6 {
        let payload = frame.split_off(34);
        frame.truncate(12);
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[44, 64]);
        frame.extend([0xfd, 0].iter().chain(&[0; 13]).chain(&[1, 0xfd, 0]).chain(&[0; 13]).chain(&[2]));
        frame.extend_from_slice(&[protocol, 0, 0, 1, 0, 0, 0, 9]);
        frame.extend(payload);
    } else {
        frame[20..22].copy_from_slice(&[0x20, 0]);
        frame[23] = protocol;
        frame[24..26].fill(0);
        let header_sum = checksum::sum(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    }
    frame
}

#[test]
fn a_fragment_of_what_a_selector_with_ports_names_goes_in_the_clear_neither_way() {
    const DESTINATION_OPTIONS: u8 = 60;
    let tcp_of_a_flow = Selector { protocol: Some(6), ..for_flow(0).selector };
    let sa = SaConfig { selector: tcp_of_a_flow, ..gcm() };
    for (is_ipv6, protocol, is_named) in
        [(false, 6, true), (false, 17, false), (true, 6, true), (true, 17, false), (true, DESTINATION_OPTIONS, true)]
    {
        for direction in [SaDirection::Out, SaDirection::In] {
            let mut bed = Bed::new(&config());
            let control = usize::from(direction == SaDirection::In);
            bed.controls[control].change_ipsec(&[add(direction, &sa)]).unwrap();
            bed.left.host_mut().to_send.push_back((TxMeta::default(), fragment(is_ipv6, protocol)));
            bed.run_until_idle();
            let lost = [losses(bed.transmit()), losses(bed.receive())];
            let (out, into) = match (is_named, direction) {
                (false, _) => (vec![], vec![]),
                (true, SaDirection::Out) => (vec![(Loss::EspFragment, 1)], vec![]),
                (true, SaDirection::In) => (vec![], vec![(Loss::Unprotected, 1)]),
            };
            assert_eq!(lost, [out, into], "IPv6 {is_ipv6}, protocol {protocol}, {direction}");
            assert_eq!(bed.right.host().given.len(), usize::from(!is_named));
            bed.assert_everything_is_accounted_for();
        }
    }
}

#[test]
fn a_packet_that_only_a_host_can_read_is_refused_in_the_clear_where_it_should_be_protected() {
    // Linux accepts a datagram with two bytes after its end, but the adapter's parser cannot parse the datagram.
    let mut frame = fragment(false, 17);
    frame[20] = 0;
    frame[24..26].fill(0);
    let header_sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    let udp_len = (frame.len() - 34 - 2) as u16;
    frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
    let from = |address: &str| Selector { source: Some(Prefix::of(address.parse().unwrap())), ..for_flow(0).selector };
    for (selector, is_named) in [(from("10.0.0.1"), true), (from("10.0.0.7"), false), (Selector::default(), true)] {
        let mut bed = Bed::new(&config());
        bed.controls[1].change_ipsec(&[add(SaDirection::In, &SaConfig { selector, ..gcm() })]).unwrap();
        bed.left.host_mut().to_send.push_back((TxMeta::default(), frame.clone()));
        bed.run_until_idle();
        let expected = if is_named { vec![(Loss::Unprotected, 1)] } else { vec![] };
        assert_eq!(losses(bed.receive()), expected);
        assert_eq!(bed.right.host().given.len(), usize::from(!is_named));
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn genuine_packets_outside_the_selector_of_their_association_are_refused() {
    let mut bed = Bed::new(&config());
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap();
    bed.controls[1].change_ipsec(&[add(SaDirection::In, &for_flow(0))]).unwrap();
    bed.left.host_mut().to_send.extend([tcp_frame(1, 1, b"another flow"), tcp_frame(0, 1, b"the flow")]);
    bed.run_until_idle();
    assert_eq!(losses(bed.receive()), [(Loss::SaPolicy, 1)]);
    assert_eq!(bed.received(), b"the flow");
}

/// Returns a frame with these tags and this `EtherType`, followed by an IPv4 packet.
fn with_types(types: &[u16]) -> (TxMeta, Vec<u8>) {
    let (_, clear) = tcp_frame(0, 1, b"clear");
    let mut frame = clear[..12].to_vec();
    for (n, ethertype) in types.iter().enumerate() {
        frame.extend_from_slice(&ethertype.to_be_bytes());
        // Each type except the last is the type of a tag, and is followed by the number of the VLAN.
        if n + 1 < types.len() {
            frame.extend_from_slice(&[0, 5]);
        }
    }
    frame.extend_from_slice(&clear[14..]);
    (TxMeta::default(), frame)
}

/// `EtherTypes` of `PPPoE`, MPLS, tags from before IEEE 802.1ad, three tags, LLDP, IEEE 802.1X, and a length.
const OTHER: [&[u16]; 10] = [
    &[0x8863],
    &[0x8864],
    &[0x8847],
    &[0x9100, 0x0800],
    &[0x9200, 0x0800],
    &[0x8100, 0x8100, 0x8100, 0x0800],
    &[0x8100, 0x9100, 0x0800],
    &[0x88cc],
    &[0x888e],
    &[0x0026],
];

#[test]
fn what_is_no_ip_passes_under_discard_only_if_it_is_listed() {
    for direction in [SaDirection::Out, SaDirection::In] {
        let mut bed = Bed::new(&config());
        let control = usize::from(direction == SaDirection::In);
        bed.controls[control].change_ipsec(&[SaChange::Policy(discard())]).unwrap();
        bed.left.host_mut().to_send.push_back(arp());
        bed.left.host_mut().to_send.extend(OTHER.map(with_types));
        bed.run_until_idle();
        assert_eq!(bed.right.host().given.len(), 1, "{direction}");
        assert_eq!(bed.right.host().given[0].1, arp().1);
        let lost = [losses(bed.transmit()), losses(bed.receive())];
        assert_eq!(lost[control], [(Loss::Discard, OTHER.len() as u64)]);
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn what_an_association_has_protected_is_lost_when_it_is_removed() {
    let mut bed = Bed::protected(&for_flow(0));
    for (control, direction) in bed.controls.iter().zip([SaDirection::Out, SaDirection::In]) {
        control.change_ipsec(&[SaChange::Remove { direction, spi: SPI }]).unwrap();
    }
    bed.left.host_mut().to_send.extend([tcp_frame(0, 1, b"secret"), tcp_frame(1, 1, b"clear")]);
    bed.left.host_mut().to_send.push_back((TxMeta::default(), fragment(false, 6)));
    bed.run_until_idle();
    assert_eq!(bed.received(), b"clear");
    assert_eq!(losses(bed.transmit()), [(Loss::EspFragment, 1), (Loss::Discard, 1)]);
    // A receiving end whose association was removed discards such frames, from any sender.
    let mut far = Bed::new(&config());
    far.controls[1].change_ipsec(&[add(SaDirection::In, &for_flow(0))]).unwrap();
    far.controls[1].change_ipsec(&[SaChange::Remove { direction: SaDirection::In, spi: SPI }]).unwrap();
    far.left.host_mut().to_send.extend([tcp_frame(0, 1, b"secret"), tcp_frame(1, 1, b"clear")]);
    far.run_until_idle();
    assert_eq!((far.received(), losses(far.receive())), (b"clear".to_vec(), vec![(Loss::Unprotected, 1)]));
}

fn entry(direction: SaDirection, action: PolicyAction, selector: Selector) -> PolicyEntry {
    PolicyEntry { direction, action, selector }
}

#[test]
fn entries_are_asked_in_their_order_and_before_associations() {
    use PolicyAction::{Bypass, Discard, Protect};
    let of_flow = |flow| for_flow(flow).selector;
    for no_match in [NoMatch::Bypass, NoMatch::Discard] {
        // Flow 0 is sealed by an association for all flows. Flow 1 passes unprotected. Flow 2 is lost, although a later
        // entry would let it pass.
        let mut bed = Bed::protected(&gcm());
        for (control, direction) in bed.controls.iter().zip([SaDirection::Out, SaDirection::In]) {
            let entries = vec![
                entry(direction, Bypass, of_flow(1)),
                entry(direction, Discard, of_flow(2)),
                entry(direction, Bypass, of_flow(2)),
                entry(direction, Protect, Selector::default()),
            ];
            let policy = Policy { transmit: no_match, receive: no_match, entries, ..Policy::default() };
            control.change_ipsec(&[SaChange::Policy(policy)]).unwrap();
        }
        let frames = [0, 1, 2].map(|flow| tcp_frame(flow, 1, &[b'0' + flow as u8]));
        bed.left.host_mut().to_send.extend(frames);
        bed.run_until_idle();
        assert_eq!(bed.received(), b"01");
        assert_eq!(losses(bed.transmit()), [(Loss::Discard, 1)]);
        assert_eq!(bed.controls[0].ipsec().status()[0].packets, 1);
        // Without the association, packets that an entry protects are lost, and packets that an entry bypasses pass.
        bed.controls[0].change_ipsec(&[SaChange::Remove { direction: SaDirection::Out, spi: SPI }]).unwrap();
        bed.left.host_mut().to_send.extend([0, 1].map(|flow| tcp_frame(flow, 2, &[b'a' + flow as u8])));
        bed.run_until_idle();
        assert_eq!(bed.received(), b"01b");
        assert_eq!(losses(bed.transmit()), [(Loss::Discard, 2)]);
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn entries_hold_for_what_comes_in_the_clear_and_a_discard_for_what_is_opened_too() {
    use PolicyAction::{Bypass, Discard, Protect};
    let entries = [(0, Protect), (1, Bypass), (2, Discard)]
        .map(|(flow, action)| entry(SaDirection::In, action, for_flow(flow).selector));
    let policy = || SaChange::Policy(Policy { entries: entries.to_vec(), ..Policy::default() });
    let frames = || [0, 1, 2, 3].map(|flow| tcp_frame(flow, 1, &[b'0' + flow as u8]));
    let mut clear = Bed::new(&config());
    clear.controls[1].change_ipsec(&[policy()]).unwrap();
    clear.left.host_mut().to_send.extend(frames());
    clear.run_until_idle();
    assert_eq!(
        (clear.received(), losses(clear.receive())),
        (b"13".to_vec(), vec![(Loss::Unprotected, 1), (Loss::Discard, 1)])
    );
    clear.assert_everything_is_accounted_for();
    let mut sealed = Bed::protected(&gcm());
    sealed.controls[1].change_ipsec(&[policy()]).unwrap();
    sealed.left.host_mut().to_send.extend(frames());
    sealed.run_until_idle();
    assert_eq!((sealed.received(), losses(sealed.receive())), (b"013".to_vec(), vec![(Loss::SaPolicy, 1)]));
}

#[test]
fn a_fragment_does_not_bypass_what_an_entry_before_may_name() {
    use PolicyAction::{Bypass, Discard, Protect};
    let all = Selector::default;
    for (action, loss) in [(Protect, true), (Discard, true), (Bypass, false)] {
        for direction in [SaDirection::Out, SaDirection::In] {
            let mut bed = Bed::new(&config());
            let entries = vec![entry(direction, action, for_flow(0).selector), entry(direction, Bypass, all())];
            let policy = Policy { entries, ..discard() };
            bed.controls[usize::from(direction == SaDirection::In)].change_ipsec(&[SaChange::Policy(policy)]).unwrap();
            bed.left.host_mut().to_send.push_back((TxMeta::default(), fragment(false, 6)));
            bed.run_until_idle();
            assert_eq!(bed.right.host().given.len(), usize::from(!loss), "{action} {direction}");
            bed.assert_everything_is_accounted_for();
        }
    }
}

#[test]
fn what_is_listed_passes_under_discard_and_nothing_else_does_under_bypass() {
    let lldp_and_lengths = Some(vec![0x88cc, 0]);
    for no_match in [NoMatch::Bypass, NoMatch::Discard] {
        let mut bed = Bed::new(&config());
        let policy =
            Policy { transmit: no_match, receive: no_match, other: lldp_and_lengths.clone(), ..Policy::default() };
        bed.controls[0].change_ipsec(&[SaChange::Policy(policy)]).unwrap();
        bed.left.host_mut().to_send.push_back(arp());
        bed.left.host_mut().to_send.extend(OTHER.map(with_types));
        bed.run_until_idle();
        let types: Vec<_> = bed.right.host().given.iter().map(|(_, frame)| [frame[12], frame[13]]).collect();
        assert_eq!(types, [[0x88, 0xcc], [0, 0x26]]);
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn many_associations_that_are_gone_leave_everything_protected() {
    let mut bed = Bed::new(&config());
    for flow in 0..300_u16 {
        let sa = SaConfig { spi: SPI + u32::from(flow), ..for_flow(flow) };
        bed.controls[0].change_ipsec(&[add(SaDirection::Out, &sa)]).unwrap();
        bed.controls[0].change_ipsec(&[SaChange::Remove { direction: SaDirection::Out, spi: sa.spi }]).unwrap();
    }
    bed.left.host_mut().to_send.extend([0, 299, 2000].map(|flow| tcp_frame(flow, 1, b"clear")));
    bed.run_until_idle();
    assert_eq!(losses(bed.transmit()), [(Loss::Discard, 3)]);
    bed.controls[0].change_ipsec(&[SaChange::ForgetRemoved]).unwrap();
    bed.left.host_mut().to_send.push_back(tcp_frame(0, 1, b"clear"));
    bed.run_until_idle();
    assert_eq!(bed.received(), b"clear");
}

#[test]
fn a_super_frame_of_tiny_segments_uses_no_numbers() {
    let mut bed = Bed::protected(&gcm());
    for (size, lost, numbers) in [(1, 1, 0), (7, 2, 0), (8, 2, 100)] {
        bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(0, 800), size));
        bed.run_until_idle();
        assert_eq!(losses(bed.transmit()), [(Loss::BadRequest, lost)]);
        assert_eq!(bed.controls[0].ipsec().status()[0].sequence, numbers, "{size} bytes a segment");
    }
    bed.assert_everything_is_accounted_for();
}

#[test]
fn a_frame_that_cannot_be_judged_never_goes_in_the_clear() {
    let mut bed = Bed::protected(&gcm());
    let (meta, mut frame) = tcp_frame(0, 1, &pattern(0, 500));
    frame[14] = 0x41;
    bed.left.host_mut().to_send.push_back((meta, frame));
    bed.run_until_idle();
    assert_eq!(losses(bed.transmit()), [(Loss::Malformed, 1)]);
    assert!(bed.right.host().given.is_empty());
    bed.assert_everything_is_accounted_for();
}

#[test]
fn the_first_association_that_matches_seals() {
    let bed = &mut Bed::new(&config());
    let (first, second) = (for_flow(1), sa("chacha20poly1305", SPI + 1));
    bed.protect(&first);
    bed.protect(&second);
    bed.left.host_mut().to_send.extend([0, 1, 1, 2].map(|flow| tcp_super_frame(flow, 0, &pattern(1, 5000), 1000)));
    bed.run_until_idle();
    let status = bed.controls[0].ipsec().status();
    assert_eq!(status.iter().map(|sa| (sa.config.spi, sa.packets)).collect::<Vec<_>>(), [(SPI, 10), (SPI + 1, 10)]);
    assert_eq!(bed.received().len(), 20_000);
}

#[test]
fn of_changes_with_a_fault_among_them_none_is_made() {
    let bed = Bed::protected(&gcm());
    let good = add(SaDirection::In, &sa("aes128gcm16", SPI + 1));
    let short = SaConfig { encryption_key: SecretKey::new(vec![1; 7]), ..sa("aes128gcm16", SPI + 2) };
    let faults = [
        add(SaDirection::In, &gcm()),
        add(SaDirection::In, &short),
        add(SaDirection::Out, &SaConfig { spi: 255, ..gcm() }),
        SaChange::Remove { direction: SaDirection::Out, spi: 77 },
        SaChange::Retire { spi: 77, grace_ns: 0 },
    ];
    for fault in faults {
        let before = format!("{:?}", bed.controls[1].ipsec().status());
        let changes = [good.clone(), SaChange::Policy(discard()), fault];
        let (at, error) = bed.controls[1].change_ipsec(&changes).unwrap_err();
        assert_eq!(at, 2, "{error}");
        assert!(!error.to_string().contains('\n'));
        assert_eq!(format!("{:?}", bed.controls[1].ipsec().status()), before, "{error}");
        assert_eq!(bed.controls[1].ipsec().policy(), Policy::default());
    }
    let (_, error) = bed.controls[1].change_ipsec(&[add(SaDirection::In, &gcm())]).unwrap_err();
    assert_eq!(error, SaError::Invalid(InvalidSa { spi: SPI, fault: SaFault::DuplicateSpi }));
}

#[test]
fn encapsulation_arrives_at_one_port() {
    let bed = Bed::new(&config());
    let at = |spi, destination| {
        let udp = Some(UdpPorts { source: 4500, destination });
        add(SaDirection::In, &SaConfig { udp, ..sa("aes128gcm16", spi) })
    };
    bed.controls[0].change_ipsec(&[at(SPI, 4500), at(SPI + 1, 4500)]).unwrap();
    let (_, error) = bed.controls[0].change_ipsec(&[at(SPI + 2, 4501)]).unwrap_err();
    assert_eq!(error, SaError::UdpPort { spi: SPI + 2, given: 4501, taken: 4500 });
}

#[test]
fn one_key_never_seals_in_two_associations_or_directions() {
    let bed = Bed::new(&config());
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap();
    let twin = SaConfig { spi: SPI + 1, ..gcm() };
    for direction in [SaDirection::Out, SaDirection::In] {
        let (_, error) = bed.controls[0].change_ipsec(&[add(direction, &twin)]).unwrap_err();
        let expected = SaError::SharedKey { direction, spi: SPI + 1, other_direction: SaDirection::Out, other: SPI };
        assert_eq!(error, expected);
    }
    // With CBC, both associations may have the same key. A shared key is refused only for the counter modes, in which
    // the sequence number is the IV.
    let cbc = sa("aes128-sha256", SPI + 2);
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &cbc), add(SaDirection::In, &cbc)]).unwrap();
}

#[test]
fn a_key_that_has_sealed_goes_on_behind_its_last_number_or_not_at_all() {
    let mut bed = Bed::protected(&gcm());
    let remove = SaChange::Remove { direction: SaDirection::Out, spi: SPI };
    // The key can be added again if the association has not sealed any packet.
    bed.controls[0].change_ipsec(std::slice::from_ref(&remove)).unwrap();
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap();
    bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(0, 5000), 1000));
    bed.run_until_idle();
    bed.controls[0].change_ipsec(std::slice::from_ref(&remove)).unwrap();
    let (_, error) = bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap_err();
    let SaError::UsedKey { sequence, .. } = error else { panic!("{error}") };
    assert!(sequence >= 5);
    let behind = SaConfig { sequence, ..gcm() };
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &behind)]).unwrap();
    bed.left.host_mut().to_send.push_back(tcp_frame(0, 5000, b"behind"));
    bed.run_until_idle();
    assert_eq!(bed.received().len(), 5006);
}

#[test]
fn a_key_that_seals_until_a_change_does_not_come_again_in_the_same_change() {
    let bed = Bed::protected(&gcm());
    let (next, remove) = (sa("aes128gcm16", SPI + 1), SaChange::Remove { direction: SaDirection::Out, spi: SPI });
    let rekey = SaChange::Rekey { direction: SaDirection::Out, spi: SPI, config: Box::new(next), grace_ns: 0 };
    for goes in [remove, rekey.clone()] {
        for (direction, spi) in [(SaDirection::Out, SPI), (SaDirection::In, SPI + 7)] {
            let again = add(direction, &SaConfig { spi, ..gcm() });
            let (at, error) = bed.controls[0].change_ipsec(&[goes.clone(), again]).unwrap_err();
            assert!(at == 1 && matches!(error, SaError::SharedKey { other: SPI, .. }), "{error}");
        }
    }
    // The replaced association may be sealing at this moment, although no sequence number is counted yet.
    bed.controls[0].change_ipsec(&[rekey]).unwrap();
    let (_, error) = bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap_err();
    assert!(matches!(error, SaError::UsedKey { .. }), "{error}");
}

#[test]
fn the_keys_are_in_nothing_that_is_shown() {
    let bed = Bed::protected(&gcm());
    let status = &bed.controls[0].ipsec().status()[0];
    assert!(status.config.encryption_key.is_empty() && status.config.integrity_key.is_empty());
}
