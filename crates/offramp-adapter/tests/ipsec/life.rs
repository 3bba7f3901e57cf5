//! Tests of lifetimes, of rekeys, and of associations without further sequence numbers.

use super::bed::{Bed, NS_PER_SECOND, SPI, add, config, gcm, losses, sa};
use crate::support::{pattern, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::CableConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection, SaEvent, SaEventKind, SaState};
use offramp_adapter::stats::Loss;
use offramp_offload::esp::{Lifetime, SaConfig, Selector};
use std::sync::mpsc::{Receiver, channel};

/// Creates a bed. Returns the bed and the event channels of both ends.
fn told(sa: &SaConfig) -> (Bed, [Receiver<SaEvent>; 2]) {
    let bed = Bed::new(&config());
    let events = [0, 1].map(|end: usize| {
        let (sender, receiver) = channel();
        bed.controls[end].ipsec().tell(sender);
        receiver
    });
    bed.protect(sa);
    (bed, events)
}

fn kinds(events: &Receiver<SaEvent>) -> Vec<SaEventKind> {
    events.try_iter().map(|event| event.kind).collect()
}

fn rekey(direction: SaDirection, spi: u32, config: &SaConfig) -> SaChange {
    SaChange::Rekey { direction, spi, config: Box::new(config.clone()), grace_ns: 5 * NS_PER_SECOND }
}

#[test]
fn limits_of_packets_and_bytes_end_an_association_and_are_told_once() {
    let limits = [
        Lifetime { soft_packets: Some(3), hard_packets: Some(5), ..Lifetime::default() },
        Lifetime { soft_bytes: Some(3000), hard_bytes: Some(4001), ..Lifetime::default() },
    ];
    for lifetime in limits {
        let (mut bed, events) = told(&SaConfig { lifetime, ..gcm() });
        bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(0, 8 * 960), 960));
        bed.run_until_idle();
        assert_eq!(bed.received(), pattern(0, 5 * 960));
        assert_eq!(losses(bed.transmit()), [(Loss::SaExpired, 3)]);
        for events in &events {
            let kinds = kinds(events);
            // One grant of sequence numbers may reach both limits at once; then only the hard limit is reported.
            assert!(kinds == [SaEventKind::Hard] || kinds == [SaEventKind::Soft, SaEventKind::Hard], "{kinds:?}");
        }
        let states = bed.controls.each_ref().map(|control| control.ipsec().status()[0].state);
        assert_eq!(states, [SaState::Expired, SaState::Expired]);
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn a_limit_that_a_refused_packet_reaches_is_told_as_well() {
    let mut bed = Bed::new(&config());
    let (sender, events) = channel();
    bed.controls[1].ipsec().tell(sender);
    let lifetime = Lifetime { soft_packets: Some(1), hard_packets: Some(2), ..Lifetime::default() };
    let selector = Selector { protocol: Some(17), ..Selector::default() };
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap();
    bed.controls[1].change_ipsec(&[add(SaDirection::In, &SaConfig { lifetime, selector, ..gcm() })]).unwrap();
    for (state, kind) in [(SaState::Soft, SaEventKind::Soft), (SaState::Expired, SaEventKind::Hard)] {
        bed.left.host_mut().to_send.push_back(tcp_frame(0, 0, b"genuine, but not what the selector names"));
        bed.run_until_idle();
        assert_eq!(kinds(&events), [kind]);
        assert_eq!(bed.controls[1].ipsec().status()[0].state, state);
    }
    assert_eq!(losses(bed.receive()), [(Loss::SaPolicy, 2)]);
}

#[test]
fn limits_of_time_are_told_without_any_frame() {
    let lifetime = Lifetime { soft_seconds: Some(10), hard_seconds: Some(20), ..Lifetime::default() };
    let (mut bed, events) = told(&SaConfig { lifetime, ..gcm() });
    bed.now_ns = 100 * NS_PER_SECOND;
    bed.run_until_idle();
    for (kind, state) in [(SaEventKind::Soft, SaState::Soft), (SaEventKind::Hard, SaState::Expired)] {
        for pair in [&bed.left, &bed.right] {
            let next = pair.next_deadline_ns().unwrap();
            assert_eq!(next % (10 * NS_PER_SECOND), 0);
        }
        bed.now_ns = bed.left.next_deadline_ns().unwrap();
        bed.run_until_idle();
        assert_eq!(events.each_ref().map(kinds), [vec![kind], vec![kind]]);
        assert_eq!(bed.controls[0].ipsec().status()[0].state, state);
    }
    assert_eq!((bed.left.next_deadline_ns(), bed.now_ns), (None, 120 * NS_PER_SECOND));
    bed.left.host_mut().to_send.push_back(tcp_frame(0, 0, b"too late"));
    bed.run_until_idle();
    assert_eq!(losses(bed.transmit()), [(Loss::SaExpired, 1)]);
    assert!(bed.right.host().given.is_empty());
}

#[test]
fn the_last_sequence_number_without_esn_stops_the_association_and_says_so() {
    let (mut bed, events) = told(&SaConfig { sequence: u64::from(u32::MAX) - 4, ..gcm() });
    bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(0, 6000), 1000));
    bed.left.host_mut().to_send.push_back(tcp_frame(0, 6000, b"after the end"));
    bed.run_until_idle();
    assert_eq!(bed.received(), pattern(0, 4000));
    assert_eq!(losses(bed.transmit()), [(Loss::SequenceExhausted, 3)]);
    assert_eq!(kinds(&events[0]), [SaEventKind::SequenceExhausted]);
    assert_eq!(bed.controls[0].ipsec().status()[0].state, SaState::SequenceExhausted);
    bed.assert_everything_is_accounted_for();
}

#[test]
fn with_esn_the_numbers_go_on_behind_32_bits() {
    let mut bed = Bed::protected(&SaConfig { sequence: u64::from(u32::MAX) - 4, esn: true, ..gcm() });
    bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(0, 60_000), 1000));
    bed.run_until_idle();
    assert_eq!(bed.received(), pattern(0, 60_000));
    let sequences = bed.controls.each_ref().map(|control| control.ipsec().status()[0].sequence);
    assert_eq!(sequences, [u64::from(u32::MAX) + 56; 2]);
    bed.assert_everything_is_accounted_for();
}

#[test]
fn a_new_association_is_made_before_the_old_one_is_broken_and_no_frame_is_lost() {
    let (mut bed, events) = told(&gcm());
    let next = sa("chacha20poly1305", SPI + 1);
    let mut sent = Vec::new();
    let mut send = |bed: &mut Bed| {
        let payload = pattern(sent.len() as u64, 30_000);
        bed.left.host_mut().to_send.push_back(tcp_super_frame(0, sent.len() as u32, &payload, 1460));
        sent.extend_from_slice(&payload);
    };
    send(&mut bed);
    // The old association has sealed frames that are in flight while both ends change.
    bed.left.poll(0).unwrap();
    bed.controls[1].change_ipsec(&[rekey(SaDirection::In, SPI, &next)]).unwrap();
    bed.controls[0].change_ipsec(&[rekey(SaDirection::Out, SPI, &next)]).unwrap();
    send(&mut bed);
    bed.left.poll(0).unwrap();
    bed.run_until_idle();
    assert_eq!(bed.received(), sent);
    assert_eq!((bed.transmit().lost_total(), bed.receive().lost_total()), (0, 0));
    let status = bed.controls[1].ipsec().status();
    let states: Vec<_> = status.iter().map(|sa| (sa.config.spi, sa.state, sa.packets > 0)).collect();
    assert_eq!(states, [(SPI, SaState::Retiring, true), (SPI + 1, SaState::Alive, true)]);
    bed.now_ns = bed.right.next_deadline_ns().unwrap();
    assert_eq!(bed.now_ns, 5 * NS_PER_SECOND);
    bed.run_until_idle();
    let left: Vec<_> = bed.controls[1].ipsec().status().iter().map(|sa| sa.config.spi).collect();
    assert_eq!((left, kinds(&events[1])), (vec![SPI + 1], vec![SaEventKind::Retired]));
    bed.assert_everything_is_accounted_for();
}

#[test]
fn an_association_that_is_removed_opens_nothing_more() {
    let mut bed = Bed::protected(&gcm());
    bed.left.host_mut().to_send.push_back(tcp_frame(0, 0, b"before"));
    bed.run_until_idle();
    let remove = SaChange::Remove { direction: SaDirection::In, spi: SPI };
    bed.controls[1].change_ipsec(&[add(SaDirection::In, &sa("aes128gcm16", 0x9999)), remove]).unwrap();
    bed.left.host_mut().to_send.push_back(tcp_frame(0, 6, b"after"));
    bed.run_until_idle();
    assert_eq!(bed.received(), b"before");
    assert_eq!(losses(bed.receive()), [(Loss::UnknownSpi, 1)]);
}

#[test]
fn a_frame_that_is_sealed_in_part_is_finished_by_the_association_that_began_it() {
    let line = CableConfig { rate_bps: Some(100_000_000), queue_bytes: 16 * 1024, ..CableConfig::default() };
    let mut bed = Bed::on(&config(), &line);
    bed.protect(&gcm());
    // The wire is full in the middle of a super-frame.
    for n in 0..64 {
        bed.left.host_mut().to_send.push_back(tcp_super_frame(0, n * 60_000, &pattern(u64::from(n), 60_000), 1460));
    }
    while bed.left.poll(0).unwrap().moved {}
    assert!(bed.left.held() > 0, "a frame is segmented in part");
    let next = sa("aes256-sha512", SPI + 1);
    bed.controls[1].change_ipsec(&[rekey(SaDirection::In, SPI, &next)]).unwrap();
    bed.controls[0].change_ipsec(&[rekey(SaDirection::Out, SPI, &next)]).unwrap();
    bed.run_until_idle();
    assert_eq!(bed.received().len(), 64 * 60_000);
    assert_eq!((bed.transmit().lost_total(), bed.receive().lost_total()), (0, 0));
    bed.assert_everything_is_accounted_for();
}
