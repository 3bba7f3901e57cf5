//! Tests of associations shared by several threads, with every interleaving of the threads.

use crate::bench::{clear, config, esp_of, gcm, pair, seal};
use loom::thread;
use offramp_offload::esp::{Lifetime, LifetimeEvent, Refused, SaConfig, SealRefused, SharedInbound, SharedOutbound};
use offramp_offload::frame::Frame;
use std::sync::Arc;

/// Length of each packet in bytes.
const LEN: usize = 100;

#[test]
fn no_number_is_granted_twice_and_none_beyond_the_last() {
    loom::model(|| {
        let last = u64::from(u32::MAX);
        let config = SaConfig { sequence: last - 5, ..config(gcm()) };
        let shared = Arc::new(SharedOutbound::with_library(&config, crate::library()).unwrap());
        let grant = |packets| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.grant(packets, LEN).ok())
        };
        let threads = [grant(3), grant(2)];
        let mine = shared.grant(2, LEN).ok();
        let grants = threads.map(|thread| thread.join().unwrap()).into_iter().chain([mine]).flatten();
        let mut numbers: Vec<u64> = grants.flat_map(|grant| grant.first()..grant.first() + grant.count()).collect();
        numbers.sort_unstable();
        // The threads requested seven numbers, but only five are left.
        assert_eq!(numbers, (last - 4..=last).collect::<Vec<_>>());
        assert_eq!((shared.packets(), shared.bytes()), (5, 5 * LEN as u64));
        assert_eq!(shared.ended(), Some(SealRefused::SequenceExhausted));
    });
}

#[test]
fn a_hard_limit_ends_what_threads_share_once_and_for_all() {
    loom::model(|| {
        let lifetime = Lifetime { hard_packets: Some(3), ..Lifetime::default() };
        let config = SaConfig { lifetime, ..config(gcm()) };
        let shared = Arc::new(SharedOutbound::with_library(&config, crate::library()).unwrap());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || [other.grant(1, LEN), other.grant(1, LEN)]);
        let mine = [shared.grant(1, LEN), shared.grant(1, LEN)];
        let grants: Vec<_> = thread.join().unwrap().into_iter().chain(mine).collect();
        let events = grants.iter().flatten().filter_map(|grant| grant.event);
        assert!(events.eq([LifetimeEvent::Hard]), "the limit is reported once");
        assert_eq!(grants.iter().filter(|grant| **grant == Err(SealRefused::Expired)).count(), 1);
    });
}

#[test]
fn a_key_that_is_ended_unused_is_used_by_nobody() {
    loom::model(|| {
        let shared = Arc::new(SharedOutbound::with_library(&config(gcm()), crate::library()).unwrap());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.grant(1, LEN));
        let is_ended = shared.end_unused();
        assert_eq!(thread.join().unwrap().is_err(), is_ended);
    });
}

#[test]
fn of_threads_with_the_same_packet_one_hands_it_on_and_the_window_takes_all() {
    let config = SaConfig { replay_window: 32, ..config(gcm()) };
    let (mut sender, _) = pair(&config);
    let sealed: Arc<[_]> = (0..33).map(|_| seal(&mut sender, &clear(64, false))).collect();
    loom::model(move || {
        let open = {
            let sealed = Arc::clone(&sealed);
            move |sa: &SharedInbound, number: usize| {
                let mut frame = sealed[number - 1].clone();
                let (_, packet) = esp_of(&frame);
                sa.open(&mut Frame::received(&mut frame), &packet).map(|opened| opened.sequence)
            }
        };
        let shared = Arc::new(SharedInbound::with_library(&config, crate::library()).unwrap());
        let other = Arc::clone(&shared);
        // The other thread also receives packet 2, and moves the window so that 2 is the leftmost number in the window.
        let theirs = open.clone();
        let thread = thread::spawn(move || [theirs(&other, 2), theirs(&other, 33)]);
        let mine = [open(&shared, 1), open(&shared, 2)];
        let [second, last] = thread.join().unwrap();
        assert_eq!(last, Ok(33));
        assert!(matches!(mine[0], Ok(1) | Err(Refused::TooOld)), "{mine:?}");
        let mut both = [second, mine[1]];
        both.sort_unstable_by_key(Result::is_err);
        assert_eq!(both, [Ok(2), Err(Refused::Replayed)]);
        let packets = 2 + u64::from(mine[0].is_ok());
        assert_eq!((shared.packets(), shared.highest()), (packets, 33));
    });
}
