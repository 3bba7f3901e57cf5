//! Tests of the bytes of a stream: unchanged by segmentation, ESP, coalescing and rekeys. Further tests have several
//! queue pairs with one shared association, or send corrupted and random frames.
//!
//! `OFFRAMP_ESP_STREAM_BYTES` sets the length of the stream (1073741824 for the long run).

use super::bed::{Bed, NS_PER_SECOND, SPI, add, config, gcm, modes, sa};
use crate::support::{MemoryHost, pattern, payload_of, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_offload::esp::SaConfig;
use offramp_offload::frame::Frame;
use offramp_offload::meta::TxMeta;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Default length of the stream, in bytes.
const STREAM_BYTES_DEFAULT: u64 = 24 << 20;
/// Bytes of the stream per second of virtual time. Both ends rekey at the start of each second.
const BYTES_PER_SECOND: u64 = 2 << 20;
/// Time after which a hung test fails.
const HANG_GUARD: Duration = Duration::from_mins(1);

fn stream_bytes() -> u64 {
    let given = std::env::var("OFFRAMP_ESP_STREAM_BYTES").ok();
    given.map_or(STREAM_BYTES_DEFAULT, |text| text.parse().expect("OFFRAMP_ESP_STREAM_BYTES is a number of bytes"))
}

/// Returns the next association. The suite and the mode alternate from one association to the next.
fn next_sa(turn: u32) -> SaConfig {
    let names = ["aes128gcm16", "chacha20poly1305", "aes256gcm16-iiv", "aes128-sha256"];
    let (mode, esn) = (modes()[turn as usize % 3], turn.is_multiple_of(2));
    SaConfig { mode, esn, ..sa(names[turn as usize % names.len()], SPI + turn) }
}

fn rekey(bed: &Bed, turn: u32) {
    let change = |direction| SaChange::Rekey {
        direction,
        spi: SPI + turn - 1,
        config: Box::new(next_sa(turn)),
        grace_ns: 3 * NS_PER_SECOND / 2,
    };
    bed.controls[1].change_ipsec(&[change(SaDirection::In)]).unwrap();
    bed.controls[0].change_ipsec(&[change(SaDirection::Out)]).unwrap();
}

#[test]
fn a_stream_is_the_same_to_the_bit_through_cutting_sealing_joining_and_a_rekey_every_second() {
    let bytes = stream_bytes();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut bed = Bed::protected(&next_sa(0));
    let (mut sent, mut received) = (Sha256::new(), Sha256::new());
    let (mut done, mut turn, mut arrived) = (0, 0, 0);
    while done < bytes {
        let payload = pattern(rng.random(), rng.random_range(1..65_000));
        sent.update(&payload);
        bed.left.host_mut().to_send.push_back(tcp_super_frame(0, done as u32, &payload, rng.random_range(500..1461)));
        done += payload.len() as u64;
        bed.now_ns = done * NS_PER_SECOND / BYTES_PER_SECOND;
        if done / BYTES_PER_SECOND > u64::from(turn) {
            // Frames fetched so far are sealed by the old association and in flight.
            bed.left.poll(bed.now_ns).unwrap();
            turn += 1;
            rekey(&bed, turn);
        }
        bed.run_until_idle();
        for (meta, frame) in std::mem::take(&mut bed.right.host_mut().given) {
            received.update(payload_of(&meta, &frame));
            arrived += payload_of(&meta, &frame).len() as u64;
        }
    }
    assert!(turn as u64 >= bytes / BYTES_PER_SECOND - 1);
    assert_eq!(arrived, done);
    assert_eq!(sent.finalize(), received.finalize());
    assert_eq!((bed.transmit().lost_total(), bed.receive().lost_total()), (0, 0));
    assert!(bed.controls[1].ipsec().status().len() <= 3, "the old ones are gone");
    bed.assert_everything_is_accounted_for();
}

#[test]
fn several_queue_pairs_share_one_association_and_nothing_is_lost_or_out_of_order() {
    const QUEUES: usize = 3;
    const SUPER_FRAMES: u32 = 60;
    let config = AdapterConfig { queues: QUEUES as u16, ..super::bed::config() };
    let sa = SaConfig { replay_window: 4096, ..gcm() };
    let controls = [PortControl::new(&config), PortControl::new(&config)];
    controls[0].change_ipsec(&[add(SaDirection::Out, &sa)]).unwrap();
    controls[1].change_ipsec(&[add(SaDirection::In, &sa)]).unwrap();
    let (meet, begun) = (Barrier::new(QUEUES), Instant::now());
    let drive = |queue: usize| {
        let (a, b) = cable(&CableConfig::default());
        let mut left = QueuePair::new(&config, &controls[0], queue, MemoryHost::default(), a);
        let mut right = QueuePair::new(&config, &controls[1], queue, MemoryHost::default(), b);
        let (mut expected, mut received) = (Vec::new(), Vec::new());
        for n in 0..SUPER_FRAMES {
            // If one queue pair stalled while the other queue pairs seal more packets than the replay window, the
            // stalled pair's packets would be too old. The distance between the queue pairs depends on the machine, so
            // the threads of the queue pairs synchronise after each super-frame.
            meet.wait();
            let payload = pattern(u64::from(n) + queue as u64, 60_000);
            left.host_mut().to_send.push_back(tcp_super_frame(queue as u16, n * 60_000, &payload, 1460));
            expected.extend(payload);
            while received.len() < expected.len() && begun.elapsed() < HANG_GUARD {
                left.poll(0).unwrap();
                right.poll(0).unwrap();
                for (meta, frame) in std::mem::take(&mut right.host_mut().given) {
                    received.extend_from_slice(payload_of(&meta, &frame));
                }
            }
        }
        assert!(received == expected, "queue {queue}: {} of {} bytes", received.len(), expected.len());
    };
    std::thread::scope(|scope| {
        for queue in 0..QUEUES {
            let drive = &drive;
            scope.spawn(move || drive(queue));
        }
    });
    for control in &controls {
        for queue in control.queues() {
            assert_eq!((queue.transmit.lost_total(), queue.receive.lost_total()), (0, 0));
        }
    }
    let (sent, opened) = (&controls[0].ipsec().status()[0], &controls[1].ipsec().status()[0]);
    assert_eq!(opened.packets, controls[1].queues().iter().map(|queue| queue.receive.frames_in.get()).sum::<u64>());
    assert!(sent.sequence >= opened.packets);
}

#[test]
fn a_queue_pair_whose_packets_wait_while_the_other_goes_on_loses_nothing_within_the_window() {
    const SUPER_FRAMES: u32 = 1000;
    for (replay_window, is_wide) in [(4096, false), (65_536, true)] {
        let config = AdapterConfig { queues: 2, ..super::bed::config() };
        let sa = SaConfig { replay_window, ..gcm() };
        let controls = [PortControl::new(&config), PortControl::new(&config)];
        controls[0].change_ipsec(&[add(SaDirection::Out, &sa)]).unwrap();
        controls[1].change_ipsec(&[add(SaDirection::In, &sa)]).unwrap();
        let mut pairs = [0, 1].map(|queue| {
            let (a, b) = cable(&CableConfig::default());
            let pair = |end: usize, wire| QueuePair::new(&config, &controls[end], queue, MemoryHost::default(), wire);
            (pair(0, a), pair(1, b))
        });
        let [(still_left, still_right), (left, right)] = &mut pairs;
        still_left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(0, 60_000), 1460));
        still_left.poll(0).unwrap();
        for n in 0..SUPER_FRAMES {
            left.host_mut().to_send.push_back(tcp_super_frame(1, n * 60_000, &pattern(u64::from(n), 60_000), 1460));
            while left.poll(0).unwrap().moved | right.poll(0).unwrap().moved {}
            right.host_mut().given.clear();
        }
        while still_left.poll(0).unwrap().moved | still_right.poll(0).unwrap().moved {}
        let [still, busy] = [0, 1].map(|queue: usize| controls[1].queues()[queue].receive.lost_total());
        assert_eq!((still == 0, busy), (is_wide, 0), "{still} lost");
        assert!(controls[1].ipsec().status()[0].packets > 40_000);
    }
}

#[test]
fn tampered_frames_are_refused_and_counted_whatever_byte_was_changed() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let mut bed = Bed::new(&config());
    bed.controls[1].change_ipsec(&[add(SaDirection::In, &gcm())]).unwrap();
    let mut sender = offramp_offload::esp::OutboundSa::new(&gcm()).unwrap();
    let (_, mut clear) = crate::support::tcp_frame(0, 0, &pattern(0, 300));
    let (mut frames, mut buffer) = (0, vec![0; 2000]);
    for _ in 0..2000 {
        let sealed = sender.seal(&Frame::received(&mut clear), &mut buffer).unwrap();
        let mut frame = buffer[..sealed.end].to_vec();
        // Corrupts a byte after the start of the ESP header, because earlier bytes are not protected.
        frame[rng.random_range(34..sealed.end)] ^= 1 << rng.random_range(0..8);
        bed.left.host_mut().to_send.push_back((TxMeta::default(), frame));
        frames += 1;
    }
    bed.run_until_idle();
    assert!(bed.right.host().given.is_empty());
    assert_eq!(bed.receive().lost_total(), frames);
    bed.assert_everything_is_accounted_for();
}

#[test]
fn whatever_hosts_and_line_bring_nothing_panics_and_every_frame_is_accounted_for() {
    for seed in 0..60 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let sa = next_sa(seed as u32);
        let mut bed = Bed::new(&super::bed::config());
        // Some packets are sealed; the other packets only look like ESP to the receiving end.
        bed.controls[1].change_ipsec(&[add(SaDirection::In, &sa)]).unwrap();
        if seed % 3 > 0 {
            bed.controls[0].change_ipsec(&[add(SaDirection::Out, &sa)]).unwrap();
        }
        for _ in 0..100 {
            let size = rng.random();
            let (mut meta, mut frame) =
                tcp_super_frame(rng.random_range(0..3), rng.random(), &pattern(1, rng.random_range(0..9000)), size);
            if rng.random_bool(0.5) {
                meta = TxMeta::default();
                frame.truncate(rng.random_range(0..1600));
            }
            if frame.len() > 23 && rng.random_bool(0.3) {
                // The protocol is ESP, or UDP with any port.
                frame[23] = if rng.random() { 50 } else { 17 };
            }
            for _ in 0..rng.random_range(0..4) {
                if !frame.is_empty() {
                    let at = rng.random_range(0..frame.len().min(60));
                    frame[at] = rng.random();
                }
            }
            bed.left.host_mut().to_send.push_back((meta, frame));
        }
        bed.run_until_idle();
        bed.assert_everything_is_accounted_for();
    }
}
