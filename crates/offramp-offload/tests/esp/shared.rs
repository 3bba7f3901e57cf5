//! Tests of associations shared by several threads.

use crate::bench::{clear, config, esp_of, gcm, open_whole, pair, seal};
use offramp_offload::esp::{
    Lifetime, LifetimeEvent, Refused, SaConfig, SealRefused, SecretKey, SharedInbound, SharedOutbound,
};
use offramp_offload::frame::Frame;
use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex};

const NS_PER_SECOND: u64 = 1_000_000_000;

fn open(sa: &SharedInbound, frame: &[u8]) -> Result<u64, Refused> {
    let mut frame = frame.to_vec();
    let (_, packet) = esp_of(&frame);
    sa.open(&mut Frame::received(&mut frame), &packet).map(|opened| opened.sequence)
}

#[test]
fn numbers_are_granted_in_rising_runs_up_to_the_last_one() {
    let shared = SharedOutbound::with_library(
        &SaConfig { sequence: u64::from(u32::MAX) - 5, ..config(gcm()) },
        crate::library(),
    )
    .unwrap();
    let first = shared.grant(3, 100).unwrap();
    assert_eq!((first.first(), first.count()), (u64::from(u32::MAX) - 4, 3));
    assert_eq!(shared.grant(3, 100).unwrap().count(), 2);
    assert_eq!(shared.grant(1, 100), Err(SealRefused::SequenceExhausted));
    assert_eq!(shared.ended(), Some(SealRefused::SequenceExhausted));
    assert_eq!((shared.sequence(), shared.packets(), shared.bytes()), (u64::from(u32::MAX), 5, 500));
}

#[test]
fn a_sealer_uses_what_it_was_granted_and_nothing_more() {
    let config = config(gcm());
    let shared = SharedOutbound::with_library(&config, crate::library()).unwrap();
    let (mut sealer, (mut alone, mut receiver)) = (shared.sealer().unwrap(), pair(&config));
    let frame = clear(50, false);
    assert_eq!(crate::bench::try_seal(&mut sealer, &frame), Err(SealRefused::SequenceExhausted));
    sealer.take_over(shared.grant(2, 90).unwrap());
    for _ in 0..2 {
        let sealed = seal(&mut sealer, &frame);
        assert_eq!(sealed, seal(&mut alone, &frame));
        assert!(open_whole(&mut receiver, &sealed).is_ok());
    }
    assert_eq!(crate::bench::try_seal(&mut sealer, &frame), Err(SealRefused::SequenceExhausted));
}

#[test]
fn an_association_that_is_ended_unused_grants_nothing_and_a_used_one_is_not_ended_so() {
    let config = SaConfig { sequence: 9, ..config(gcm()) };
    let [unused, used] = [(); 2].map(|()| SharedOutbound::with_library(&config, crate::library()).unwrap());
    used.grant(1, 100).unwrap();
    assert!(unused.end_unused() && !used.end_unused());
    assert_eq!(unused.grant(1, 100), Err(SealRefused::Expired));
    assert_eq!((unused.sequence(), used.grant(1, 100).map(|grant| grant.first())), (9, Ok(11)));
}

#[test]
fn several_threads_never_seal_with_one_number_and_each_sees_its_own_rise() {
    const RUNS: usize = 500;
    let config = SaConfig { replay_window: 4096, ..config(gcm()) };
    let shared = SharedOutbound::with_library(&config, crate::library()).unwrap();
    let (start, used) = (Barrier::new(3), Mutex::new(BTreeSet::new()));
    let seal_all = || {
        let (mut sealer, frame, mut last) = (shared.sealer().unwrap(), clear(64, false), 0);
        let mut numbers = Vec::new();
        start.wait();
        for run in 0..RUNS {
            let grant = shared.grant(1 + run as u64 % 7, 104).unwrap();
            let count = grant.count();
            sealer.take_over(grant);
            for _ in 0..count {
                let (_, packet) = esp_of(&seal(&mut sealer, &frame));
                assert!(packet.sequence > last);
                last = packet.sequence;
                numbers.push(last);
            }
        }
        let mut used = used.lock().unwrap();
        for number in numbers {
            assert!(used.insert(number), "{number} was used twice");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(seal_all);
        }
    });
    let used = used.into_inner().unwrap();
    assert_eq!(shared.packets(), used.len() as u64);
    assert_eq!(used.last().map(|&last| u64::from(last)), Some(shared.sequence()));
}

#[test]
fn of_several_threads_with_the_same_packets_one_hands_each_on() {
    const PACKETS: usize = 3000;
    let config = SaConfig { replay_window: 4096, ..config(gcm()) };
    let (mut sender, _) = pair(&config);
    let frame = clear(64, false);
    let sealed: Vec<_> = (0..PACKETS).map(|_| seal(&mut sender, &frame)).collect();
    let (shared, start) = (SharedInbound::with_library(&config, crate::library()).unwrap(), Barrier::new(3));
    let taken = Mutex::new(Vec::new());
    let open_all = || {
        start.wait();
        let mine: Vec<_> = sealed.iter().filter_map(|packet| open(&shared, packet).ok()).collect();
        taken.lock().unwrap().extend(mine);
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(open_all);
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    assert_eq!(taken, (1..=PACKETS as u64).collect::<Vec<_>>());
    assert_eq!((shared.packets(), shared.highest()), (PACKETS as u64, PACKETS as u64));
}

#[test]
fn lifetimes_of_several_threads_are_one_lifetime() {
    let lifetime = Lifetime { soft_packets: Some(10), hard_bytes: Some(1500), ..Lifetime::default() };
    let shared = SharedOutbound::with_library(&SaConfig { lifetime, ..config(gcm()) }, crate::library()).unwrap();
    let events: Vec<_> = (0..3).map(|_| shared.grant(6, 100).map(|grant| (grant.count(), grant.event))).collect();
    let expected = [Ok((6, None)), Ok((6, Some(LifetimeEvent::Soft))), Ok((3, Some(LifetimeEvent::Hard)))];
    assert_eq!(events, expected);
    assert_eq!(shared.grant(1, 100), Err(SealRefused::Expired));
}

#[test]
fn seconds_count_from_the_first_tick_and_each_limit_is_reported_once() {
    let lifetime = Lifetime { soft_seconds: Some(10), hard_seconds: Some(20), ..Lifetime::default() };
    let config = SaConfig { lifetime, ..config(gcm()) };
    let (sender, receiver) = (
        SharedOutbound::with_library(&config, crate::library()).unwrap(),
        SharedInbound::with_library(&config, crate::library()).unwrap(),
    );
    let begun = 7 * NS_PER_SECOND;
    let moments = [0, 10 * NS_PER_SECOND - 1, 10 * NS_PER_SECOND, 15 * NS_PER_SECOND, 20 * NS_PER_SECOND, u64::MAX / 2];
    let expected = [None, None, Some(LifetimeEvent::Soft), None, Some(LifetimeEvent::Hard), None];
    assert_eq!((sender.next_due_ns(), receiver.next_due_ns()), (Some(0), Some(0)), "due at once");
    for (after_ns, expected) in moments.into_iter().zip(expected) {
        assert_eq!(sender.tick(begun + after_ns), expected);
        assert_eq!(receiver.tick(begun + after_ns), expected);
        assert_eq!(sender.grant(1, 100).is_err(), after_ns >= 20 * NS_PER_SECOND);
    }
    let (mut unlimited, _) = pair(&crate::bench::config(gcm()));
    assert_eq!(open(&receiver, &seal(&mut unlimited, &clear(50, false))), Err(Refused::Expired));
    assert_eq!((sender.next_due_ns(), receiver.next_due_ns()), (None, None));
}

#[test]
fn a_forged_packet_moves_nothing_that_is_shared() {
    let config = config(gcm());
    let forger = SaConfig { encryption_key: SecretKey::new(vec![1; 20]), sequence: 1_000_000, ..config.clone() };
    let ((mut sender, _), (mut forger, _)) = (pair(&config), pair(&forger));
    let (shared, frame) = (SharedInbound::with_library(&config, crate::library()).unwrap(), clear(50, false));
    assert_eq!(open(&shared, &seal(&mut forger, &frame)), Err(Refused::BadTag));
    assert_eq!((shared.highest(), shared.packets()), (0, 0));
    assert_eq!(open(&shared, &seal(&mut sender, &frame)), Ok(1));
}
