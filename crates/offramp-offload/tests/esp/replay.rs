//! Anti-replay tests for the window and for whole associations.

use crate::bench::{clear, config, esp_of, gcm, open, open_whole, pair, seal, try_seal};
use offramp_offload::esp::{
    InboundSa, Lifetime, LifetimeEvent, Opener, OutboundSa, Refused, ReplayRefused, ReplayWindow, SaConfig,
    SealRefused, SecretKey,
};
use offramp_offload::frame::Frame;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Barrier, Mutex};

/// Window sizes in packets: the usual sizes, and some sizes that do not fill whole words.
const WINDOWS: [u32; 9] = [32, 33, 63, 64, 65, 100, 1024, 4096, 65_536];

/// Checks and accepts a sequence number, as for a genuine packet.
fn take(window: &mut ReplayWindow, low: u32) -> Result<u64, ReplayRefused> {
    let sequence = window.check(low)?;
    window.advance(sequence)?;
    Ok(sequence)
}

const REPLAYED: Result<u64, ReplayRefused> = Err(ReplayRefused::Replayed);
const TOO_OLD: Result<u64, ReplayRefused> = Err(ReplayRefused::TooOld);

#[test]
fn numbers_are_taken_once_and_not_left_of_the_window() {
    for len in WINDOWS {
        let mut window = ReplayWindow::new(len, false, 0);
        for low in 1..=3 {
            assert_eq!(take(&mut window, low), Ok(u64::from(low)));
        }
        assert_eq!(take(&mut window, 3), REPLAYED);
        assert_eq!(take(&mut window, len + 10), Ok(u64::from(len) + 10));
        assert_eq!(take(&mut window, 10), TOO_OLD, "window {len}");
        assert_eq!(take(&mut window, 11), Ok(11), "window {len}");
        assert_eq!(take(&mut window, 11), REPLAYED);
        assert_eq!(take(&mut window, 0), TOO_OLD);
    }
}

#[test]
fn a_whole_window_is_filled_in_reverse_each_number_once() {
    for len in WINDOWS {
        let mut window = ReplayWindow::new(len, false, 0);
        for low in (1..=len).rev() {
            assert_eq!(take(&mut window, low), Ok(u64::from(low)), "window {len}");
        }
        for low in 1..=len {
            assert_eq!(take(&mut window, low), REPLAYED, "window {len}");
        }
    }
}

#[test]
fn a_jump_over_more_than_two_windows_forgets_what_was_seen() {
    for len in WINDOWS {
        let mut window = ReplayWindow::new(len, false, 0);
        for low in 1..=len {
            take(&mut window, low).unwrap();
        }
        let far = 5 * len + 7;
        assert_eq!(take(&mut window, far), Ok(u64::from(far)));
        for low in far - len + 1..far {
            assert_eq!(take(&mut window, low), Ok(u64::from(low)), "window {len}");
        }
        assert_eq!(take(&mut window, far - len), TOO_OLD);
    }
}

#[test]
fn a_run_in_order_is_remembered_when_a_number_comes_out_of_order() {
    for (len, run) in WINDOWS.into_iter().flat_map(|len| [1, 63, 64, 65, 200, 5 * len].map(|run| (len, run))) {
        let mut window = ReplayWindow::new(len, false, 0);
        assert_eq!(take(&mut window, 7), Ok(7));
        for low in 8..8 + run {
            assert_eq!(take(&mut window, low), Ok(u64::from(low)));
        }
        let ahead = 8 + run + 2;
        assert_eq!(take(&mut window, ahead), Ok(u64::from(ahead)), "window {len}, run of {run}");
        for low in (ahead + 1).saturating_sub(len).max(1)..ahead {
            let expected = if (7..8 + run).contains(&low) { REPLAYED } else { Ok(u64::from(low)) };
            assert_eq!(take(&mut window, low), expected, "window {len}, run of {run}");
        }
    }
}

#[test]
fn a_window_that_goes_on_from_a_number_takes_nothing_up_to_it() {
    for len in WINDOWS {
        let mut window = ReplayWindow::new(len, false, 500_000);
        assert_eq!(take(&mut window, 500_000), REPLAYED);
        assert_eq!(take(&mut window, 499_999), REPLAYED);
        assert_eq!(take(&mut window, 500_000 - len), TOO_OLD);
        assert_eq!(take(&mut window, 500_001), Ok(500_001));
        assert_eq!(take(&mut window, 500_001 - len + 1), REPLAYED, "window {len}");
    }
}

/// A slow and obvious window: the set of accepted numbers, and the highest number.
#[derive(Default)]
struct Oracle {
    accepted: BTreeSet<u64>,
    highest: u64,
}

impl Oracle {
    fn take(&mut self, sequence: u64, len: u32) -> Result<u64, ReplayRefused> {
        if sequence == 0 || sequence + u64::from(len) <= self.highest {
            return Err(ReplayRefused::TooOld);
        }
        if !self.accepted.insert(sequence) {
            return Err(ReplayRefused::Replayed);
        }
        self.highest = self.highest.max(sequence);
        Ok(sequence)
    }
}

/// Returns the next number in a trace with delayed, duplicated and lost packets.
fn next_of_trace(rng: &mut ChaCha8Rng, highest: u64, len: u32) -> u64 {
    let len = u64::from(len);
    match rng.random_range(0..10) {
        0..4 => highest + 1,
        4..8 => (highest + 2).saturating_sub(rng.random_range(0..len + 70)),
        8 => highest + rng.random_range(1..len),
        _ if rng.random_bool(0.1) => highest + rng.random_range(1..4 * len + 200),
        _ => highest,
    }
}

#[test]
fn a_trace_of_delayed_and_doubled_packets_is_judged_as_by_a_set_of_numbers() {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for len in WINDOWS {
        let (mut window, mut oracle) = (ReplayWindow::new(len, false, 0), Oracle::default());
        for _ in 0..20_000 {
            let sequence = next_of_trace(&mut rng, oracle.highest, len);
            assert_eq!(take(&mut window, sequence as u32), oracle.take(sequence, len), "window {len}, {sequence}");
        }
    }
}

#[test]
fn extended_numbers_are_judged_as_by_a_set_of_numbers_across_the_wrap() {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for len in WINDOWS {
        let start = (3 << 32) - 3000;
        let (mut window, mut oracle) = (ReplayWindow::new(len, true, start), Oracle::default());
        oracle.highest = start;
        oracle.accepted.extend(start - u64::from(len)..=start);
        for _ in 0..20_000 {
            let sequence = next_of_trace(&mut rng, oracle.highest, len);
            // The integrity check fails if the window infers another number than the sender used.
            let guess = window.check(sequence as u32);
            let is_genuine = guess.is_ok_and(|guess| guess == sequence);
            let judged = oracle.take(sequence, len);
            assert_eq!(is_genuine, judged.is_ok(), "window {len}, {sequence:#x}: {guess:?}, {judged:?}");
            if is_genuine {
                window.advance(sequence).unwrap();
            }
            assert_eq!(window.highest(), oracle.highest);
        }
        assert!(oracle.highest > 3 << 32, "the trace crossed the wrap");
    }
}

#[test]
fn a_forged_packet_far_ahead_does_not_move_the_window() {
    let config = config(gcm());
    let (mut sender, mut receiver) = pair(&config);
    let frame = clear(50, false);
    let first = seal(&mut sender, &frame);
    let second = seal(&mut sender, &frame);
    assert!(open(&mut receiver, &second).is_ok());
    let mut forged = seal(&mut sender, &frame);
    forged[38..42].copy_from_slice(&1_000_000_u32.to_be_bytes());
    assert_eq!(open(&mut receiver, &forged), Err(Refused::BadTag));
    assert_eq!(receiver.window().highest(), 2);
    assert_eq!(open(&mut receiver, &first), Ok(frame));
}

#[test]
fn a_sender_without_extended_numbers_stops_at_the_last_and_says_so() {
    let config = SaConfig { sequence: 0xffff_fffe, ..config(gcm()) };
    let (mut sender, mut receiver) = pair(&config);
    let frame = clear(50, false);
    assert_eq!(sender.packets_left(64), 1);
    assert!(open(&mut receiver, &seal(&mut sender, &frame)).is_ok());
    for _ in 0..3 {
        assert_eq!(try_seal(&mut sender, &frame), Err(SealRefused::SequenceExhausted));
    }
    assert_eq!((sender.sequence(), sender.packets_left(64)), (0xffff_ffff, 0));
    let config = SaConfig { esn: true, sequence: u64::MAX - 1, ..config };
    let (mut sender, mut receiver) = pair(&config);
    assert!(open(&mut receiver, &seal(&mut sender, &frame)).is_ok());
    assert_eq!(try_seal(&mut sender, &frame), Err(SealRefused::SequenceExhausted));
}

#[test]
fn extended_numbers_cross_the_wrap_in_any_order_within_the_window() {
    for len in [32, 64, 1024, 4096, 65_536] {
        let config = SaConfig { esn: true, sequence: 0xffff_fff0, replay_window: len, ..config(gcm()) };
        let (mut sender, mut receiver) = pair(&config);
        let frame = clear(50, false);
        let mut sealed: Vec<_> = (0..30).map(|_| seal(&mut sender, &frame)).collect();
        // Receive the packet with the lower half 0 first, then packets before the wrap, then packets after the wrap.
        sealed.swap(0, 15);
        assert_eq!(sealed[0][38..42], [0; 4]);
        for packet in &sealed {
            assert_eq!(open(&mut receiver, packet).as_ref(), Ok(&frame), "window {len}");
        }
        for packet in &sealed {
            assert_eq!(open(&mut receiver, packet), Err(Refused::Replayed), "window {len}");
        }
        assert_eq!(receiver.window().highest(), 0x1_0000_000e);
    }
}

#[test]
fn a_number_left_of_the_window_is_taken_for_the_next_subspace_and_fails_its_check() {
    let config = SaConfig { esn: true, ..config(gcm()) };
    let (mut sender, mut receiver) = pair(&config);
    let frame = clear(50, false);
    let sealed: Vec<_> = (0..200).map(|_| seal(&mut sender, &frame)).collect();
    assert!(open(&mut receiver, &sealed[199]).is_ok());
    assert_eq!(receiver.window().check(1), Ok(0x1_0000_0001));
    assert_eq!(open(&mut receiver, &sealed[0]), Err(Refused::BadTag));
    assert_eq!(receiver.window().highest(), 200);
}

#[test]
fn the_last_of_64_bits_is_sent_and_taken_once_and_nothing_wraps() {
    let config = SaConfig { esn: true, sequence: u64::MAX - 40, ..config(gcm()) };
    let (mut sender, mut receiver) = pair(&config);
    let frame = clear(30, false);
    let sealed: Vec<_> = (0..40).map(|_| seal(&mut sender, &frame)).collect();
    assert_eq!(try_seal(&mut sender, &frame), Err(SealRefused::SequenceExhausted));
    assert_eq!((sender.sequence(), sender.packets_left(1)), (u64::MAX, 0));
    // Receive the last packet first, then the other packets, each once.
    for sealed in sealed.iter().rev() {
        assert!(open(&mut receiver, sealed).is_ok());
        assert_eq!(open(&mut receiver, sealed), Err(Refused::Replayed));
    }
    assert_eq!(receiver.window().highest(), u64::MAX);
    for low in [0, 1, 63] {
        assert_eq!(receiver.window().check(low), Err(ReplayRefused::TooOld), "there is no next subspace");
    }
}

#[test]
fn two_associations_of_one_peer_have_windows_of_their_own() {
    let first = config(gcm());
    let second = SaConfig { encryption_key: SecretKey::new(vec![9; 20]), spi: first.spi + 1, ..first.clone() };
    let (mut sender_a, mut receiver_a) = pair(&first);
    let (mut sender_b, mut receiver_b) = pair(&second);
    let frame = clear(50, false);
    for _ in 0..3 {
        let (a, b) = (seal(&mut sender_a, &frame), seal(&mut sender_b, &frame));
        assert!(open(&mut receiver_a, &a).is_ok());
        assert!(open(&mut receiver_b, &b).is_ok());
        assert_eq!(open(&mut receiver_a, &a), Err(Refused::Replayed));
        assert_eq!(open(&mut receiver_a, &b), Err(Refused::Replayed), "another key, a number seen");
    }
}

#[test]
fn of_two_threads_with_the_same_packet_exactly_one_hands_it_on() {
    const PACKETS: usize = 2000;
    let config = SaConfig { replay_window: 4096, ..config(gcm()) };
    let mut sender = OutboundSa::with_library(&config, crate::library()).unwrap();
    let frame = clear(64, false);
    let sealed: Vec<_> = (0..PACKETS).map(|_| seal(&mut sender, &frame)).collect();
    let opener = Opener::with_library(&config, crate::library()).unwrap();
    let window = Mutex::new(ReplayWindow::new(config.replay_window, config.esn, 0));
    let (taken, start) = (Mutex::new(BTreeMap::<u64, u32>::new()), Barrier::new(2));
    let open_all = || {
        start.wait();
        for packet in &sealed {
            let mut copy = packet.clone();
            let (_, esp) = esp_of(&copy);
            let mut opening = Frame::received(&mut copy);
            let Ok(sequence) = window.lock().unwrap().check(esp.sequence) else { continue };
            let decrypted = opener.decrypt(&mut opening, &esp, sequence).unwrap();
            if window.lock().unwrap().advance(sequence).is_ok() {
                assert!(opener.unwrap(&mut opening, decrypted, sequence).is_ok());
                *taken.lock().unwrap().entry(sequence).or_default() += 1;
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(open_all);
        scope.spawn(open_all);
    });
    let taken = taken.into_inner().unwrap();
    assert_eq!(taken.len(), PACKETS);
    assert!(taken.values().all(|&times| times == 1));
}

#[test]
fn a_window_outlives_a_soft_limit_and_starts_anew_with_a_new_association() {
    let lifetime = Lifetime { soft_packets: Some(3), ..Lifetime::default() };
    let config = SaConfig { lifetime, ..config(gcm()) };
    let (mut sender, mut receiver) = pair(&config);
    let frame = clear(50, false);
    let sealed: Vec<_> = (0..6).map(|_| seal(&mut sender, &frame)).collect();
    let events: Vec<_> = sealed.iter().map(|packet| open_whole(&mut receiver, packet).unwrap().0.event).collect();
    assert_eq!(events, [None, None, Some(LifetimeEvent::Soft), None, None, None]);
    assert!(sealed.iter().all(|packet| open(&mut receiver, packet) == Err(Refused::Replayed)));
    let mut again = InboundSa::with_library(&config, crate::library()).unwrap();
    assert!(sealed.iter().all(|packet| open(&mut again, packet).is_ok()));
}

#[test]
fn frames_are_handed_on_in_the_order_of_arrival_whatever_is_refused_between() {
    let (mut sender, mut receiver) = pair(&config(gcm()));
    let frames: Vec<_> = (0..40).map(|n| clear(n, false)).collect();
    let sealed: Vec<_> = frames.iter().map(|frame| seal(&mut sender, frame)).collect();
    let arrivals = [3, 1, 1, 2, 0, 39, 3, 38, 5, 39, 7, 6];
    let handed: Vec<_> = arrivals.iter().filter_map(|&n: &usize| open(&mut receiver, &sealed[n]).ok()).collect();
    let expected: Vec<_> = [3, 1, 2, 0, 39, 38, 5, 7, 6].map(|n: usize| frames[n].clone()).to_vec();
    assert_eq!(handed, expected);
}

#[test]
fn hard_limits_end_an_association_after_the_packet_that_reaches_them() {
    let frame = clear(1000, false);
    let packet_len = frame.len() as u64 - 14;
    let limits = [
        Lifetime { soft_packets: Some(2), hard_packets: Some(4), ..Lifetime::default() },
        Lifetime { soft_bytes: Some(packet_len + 1), hard_bytes: Some(3 * packet_len + 1), ..Lifetime::default() },
    ];
    for lifetime in limits {
        let (mut sender, _) = pair(&SaConfig { lifetime, ..config(gcm()) });
        let (mut unlimited, _) = pair(&config(gcm()));
        let (_, mut receiver) = pair(&SaConfig { lifetime, ..config(gcm()) });
        let expected = [None, Some(LifetimeEvent::Soft), None, Some(LifetimeEvent::Hard)];
        for (n, expected) in expected.into_iter().enumerate() {
            assert_eq!(sender.packets_left(packet_len as usize), 4 - n as u64);
            let mut out = vec![0; 2000];
            let sealed = sender.seal(&Frame::received(&mut frame.clone()), &mut out).unwrap();
            assert_eq!(sealed.event, expected, "sealing, {lifetime:?}");
            let opened = open_whole(&mut receiver, &seal(&mut unlimited, &frame)).unwrap().0;
            assert_eq!(opened.event, expected, "opening, {lifetime:?}");
        }
        assert_eq!(try_seal(&mut sender, &frame), Err(SealRefused::Expired));
        assert_eq!(sender.sequence(), 4, "no number is used up");
        assert_eq!(open(&mut receiver, &seal(&mut unlimited, &frame)), Err(Refused::Expired));
        assert_eq!((sender.packets(), sender.bytes()), (4, 4 * packet_len));
    }
}
