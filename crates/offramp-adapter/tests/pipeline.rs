//! Two adapters back to back: bytes are conserved and stay in order, and every frame is accounted for.

mod support;

use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::{AdapterConfig, ConfigError};
use offramp_adapter::pair::{Control, QueuePair};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{ChecksumState, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use proptest::prelude::*;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};

type Pair = QueuePair<MemoryHost, CableEnd>;

struct Bench {
    left: Pair,
    right: Pair,
    controls: [Arc<Control>; 2],
    now_ns: u64,
}

impl Bench {
    fn new(config: &AdapterConfig, line: &CableConfig) -> Self {
        Self::with_hosts(config, line, MemoryHost::default)
    }

    fn with_hosts(config: &AdapterConfig, line: &CableConfig, host: impl Fn() -> MemoryHost) -> Self {
        let (a, b) = cable(line);
        let controls = [Control::new(config), Control::new(config)];
        let left = QueuePair::new(config, &controls[0], 0, host(), a);
        let right = QueuePair::new(config, &controls[1], 0, host(), b);
        Self { left, right, controls, now_ns: 0 }
    }

    fn poll(&mut self) -> bool {
        let left = self.left.poll(self.now_ns).unwrap();
        let right = self.right.poll(self.now_ns).unwrap();
        left.moved || right.moved
    }

    fn run_until_idle(&mut self) {
        loop {
            if self.poll() {
                continue;
            }
            let next = [&self.left, &self.right].map(Pair::next_deadline_ns).into_iter().flatten().min();
            let room =
                [&self.left, &self.right].map(|p| p.wire().next_room_ns(self.now_ns)).into_iter().flatten().min();
            match next.into_iter().chain(room).min() {
                Some(at) if at > self.now_ns => self.now_ns = at,
                _ => return,
            }
        }
    }

    fn assert_everything_is_accounted_for(&self) {
        assert_eq!(self.left.held() + self.right.held(), 0);
        for control in &self.controls {
            for d in [&control.queues()[0].transmit, &control.queues()[0].receive] {
                assert_eq!(d.frames_in.get(), d.frames_out.get() + d.lost_total(), "{d:?}");
            }
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = self.controls[from].queues()[0].transmit.frames_out.get();
            assert_eq!(sent, self.controls[to].queues()[0].receive.frames_in.get());
        }
    }
}

fn received_by(pair: &Pair) -> Vec<u8> {
    pair.host().given.iter().flat_map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect()
}

#[test]
fn a_super_frame_crosses_as_frames_of_the_line_and_arrives_as_one() {
    let mut bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
    let payload = pattern(1, 60_000);
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &payload, 1460));
    bench.run_until_idle();
    assert_eq!(received_by(&bench.right), payload);
    assert_eq!(bench.right.host().given.len(), 1, "joined again");
    assert_eq!(bench.controls[0].queues()[0].transmit.frames_out.get(), 60_000_u64.div_ceil(1460));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn without_coalescing_each_frame_of_the_line_is_at_most_the_mtu() {
    let config = AdapterConfig { offloads: Offloads::TX | Offloads::RX_CHECKSUM, ..AdapterConfig::default() };
    let mut bench = Bench::new(&config, &CableConfig::default());
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &pattern(1, 60_000), 1460));
    bench.run_until_idle();
    assert!(bench.right.host().given.iter().all(|(meta, frame)| frame.len() <= 1514 && meta.segments == 1));
    assert_eq!(received_by(&bench.right), pattern(1, 60_000));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_frame_longer_than_the_mtu_is_counted_and_the_next_one_arrives() {
    let mut bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
    bench.left.host_mut().to_send.push_back(tcp_frame(0, 1, &pattern(0, 1461)));
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 1, &pattern(0, 5000), 1461));
    bench.left.host_mut().to_send.push_back(tcp_frame(0, 1, &pattern(0, 1460)));
    bench.run_until_idle();
    let transmit = &bench.controls[0].queues()[0].transmit;
    assert_eq!(transmit.lost(Loss::TooLong), 4, "one frame, and the three full segments of four");
    assert_eq!(bench.right.host().given.len(), 2);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn what_the_host_has_no_room_for_is_counted_as_dropped() {
    let mut bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
    bench.right.host_mut().refuse = 1;
    for flow in 0..2 {
        bench.left.host_mut().to_send.push_back(tcp_super_frame(flow, 1, &pattern(0, 14_600), 1460));
    }
    bench.run_until_idle();
    assert_eq!(bench.controls[1].queues()[0].receive.lost(Loss::Drop), 10);
    assert_eq!(received_by(&bench.right), pattern(0, 14_600));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_gigabit_line_carries_941_megabits_of_tcp_with_timestamps() {
    let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
    let mut bench = Bench::new(&AdapterConfig::default(), &line);
    // 1460 bytes behind 40 bytes of headers take the line as long as 1448 behind 52.
    let frames = 44 * 200;
    for n in 0..200 {
        let payload = pattern(0, 44 * 1460);
        bench.left.host_mut().to_send.push_back(tcp_super_frame(0, n * 44 * 1460, &payload, 1460));
    }
    bench.run_until_idle();
    let bytes: u64 = bench.right.host().given.iter().map(|(m, f)| payload_of(m, f).len() as u64).sum();
    let carried = bench.controls[0].queues()[0].transmit.frames_out.get();
    assert_eq!(carried, frames);
    let with_timestamps_bps = (bytes - 12 * carried) as f64 * 8.0 / (bench.now_ns as f64 / 1e9);
    assert!((with_timestamps_bps / 1e6 - 941.5).abs() < 4.0, "{with_timestamps_bps}");
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_line_with_a_delay_holds_back_the_host_and_loses_nothing() {
    let line = CableConfig {
        rate_bps: Some(100_000_000),
        delay_ns: 5_000_000,
        queue_bytes: 16 * 1024,
        ..CableConfig::default()
    };
    let mut bench = Bench::new(&AdapterConfig::default(), &line);
    let mut expected = Vec::new();
    for n in 0..40 {
        let payload = pattern(n, 30_000);
        bench.left.host_mut().to_send.push_back(tcp_super_frame(0, n as u32 * 30_000, &payload, 1460));
        expected.extend_from_slice(&payload);
    }
    bench.poll();
    assert!(!bench.left.host().to_send.is_empty(), "the line is full before the host is empty");
    bench.run_until_idle();
    assert_eq!(received_by(&bench.right), expected);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn frames_that_arrive_between_two_hand_overs_are_handed_over_together() {
    let config = AdapterConfig { rx_usecs: 125, ..AdapterConfig::default() };
    let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
    let mut bench = Bench::new(&config, &line);
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &pattern(1, 44 * 1460), 1460));
    bench.run_until_idle();
    let segments: Vec<u16> = bench.right.host().given.iter().map(|(meta, _)| meta.segments).collect();
    // A frame every 12.3 us: the first at once, then ten at a time.
    assert_eq!(segments, [1, 10, 10, 10, 10, 3]);
    assert_eq!(received_by(&bench.right), pattern(1, 44 * 1460));
    bench.assert_everything_is_accounted_for();
}

#[test]
fn hosts_that_understand_verdicts_are_told_good_and_others_a_partial_sum() {
    for takes_verdicts in [false, true] {
        let config = AdapterConfig { offloads: Offloads::TX | Offloads::RX_CHECKSUM, ..AdapterConfig::default() };
        let host = || MemoryHost { takes_verdicts, ..MemoryHost::default() };
        let mut bench = Bench::with_hosts(&config, &CableConfig::default(), host);
        bench.left.host_mut().to_send.push_back(tcp_frame(0, 1, b"hello"));
        bench.run_until_idle();
        let (meta, frame) = &bench.right.host().given[0];
        assert_eq!(meta.checksum == ChecksumState::Good, takes_verdicts);
        assert_eq!(payload_of(meta, frame), b"hello");
    }
}

#[test]
fn a_configuration_out_of_range_is_named() {
    let config = AdapterConfig { mtu: 67, ..AdapterConfig::default() };
    assert_eq!(config.check(), Err(ConfigError::Mtu(67)));
    assert_eq!(config.check().unwrap_err().to_string(), "mtu 67 is out of range; use 68 to 65521 IP bytes");
}

proptest! {
    #[test]
    fn features_switched_at_any_moment_lose_and_reorder_nothing(seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
        let mut sent = vec![Vec::new(); 3];
        for _ in 0..60 {
            let flow = rng.random_range(0..3_usize);
            let payload = pattern(rng.random(), rng.random_range(1..9000));
            let sequence = sent[flow].len() as u32;
            let frame = tcp_super_frame(flow as u16, sequence, &payload, rng.random_range(100..=1460));
            bench.left.host_mut().to_send.push_back(frame);
            sent[flow].extend_from_slice(&payload);
            if rng.random_bool(0.5) {
                bench.controls[1].set_offloads(Offloads::from_bits_truncate(rng.random()));
            }
            if rng.random_bool(0.5) {
                bench.poll();
            }
        }
        bench.run_until_idle();
        let mut received = vec![Vec::new(); 3];
        for (meta, frame) in &bench.right.host().given {
            let flow = usize::from(u16::from_be_bytes([frame[34], frame[35]]) - 1000);
            received[flow].extend_from_slice(payload_of(meta, frame));
        }
        prop_assert!(received == sent);
        bench.assert_everything_is_accounted_for();
    }

    #[test]
    fn whatever_bytes_a_host_sends_nothing_panics_and_every_frame_is_accounted_for(seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
        for _ in 0..100 {
            let (mut meta, mut frame) = match rng.random_range(0..3) {
                0 => (TxMeta::default(), pattern(rng.random(), rng.random_range(0..2000))),
                1 => tcp_frame(rng.random_range(0..3), rng.random(), &pattern(1, rng.random_range(0..1400))),
                _ => tcp_super_frame(0, rng.random(), &pattern(1, rng.random_range(0..9000)), rng.random()),
            };
            for _ in 0..rng.random_range(0..4) {
                if !frame.is_empty() {
                    let at = rng.random_range(0..frame.len().min(60));
                    frame[at] = rng.random();
                }
            }
            if rng.random_bool(0.2) {
                meta.checksum = None;
            }
            if rng.random_bool(0.1) {
                frame.truncate(rng.random_range(0..60));
            }
            bench.left.host_mut().to_send.push_back((meta, frame));
        }
        bench.run_until_idle();
        bench.assert_everything_is_accounted_for();
    }
    #[test]
    fn frames_of_which_nothing_is_asked_cross_as_planning_and_parsing_them_would_have_it(seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mtu = rng.random_range(68..1600);
        let frames: Vec<Vec<u8>> = (0..100)
            .map(|_| {
                let mut frame = pattern(rng.random(), rng.random_range(0..mtu + 30));
                for at in [12, 16, 20].into_iter().take(rng.random_range(0..4)) {
                    if let Some(tag) = frame.get_mut(at..at + 2) {
                        tag.copy_from_slice(&[0x81, 0]);
                    }
                }
                frame
            })
            .collect();
        let crossed: Vec<_> = frames.iter().filter_map(|frame| planned(frame, mtu)).collect();
        // Nothing is on, so nothing is parsed; with the receive checksum on, everything is.
        for offloads in [Offloads::empty(), Offloads::RX_CHECKSUM] {
            let config = AdapterConfig { mtu, offloads, ..AdapterConfig::default() };
            let mut bench = Bench::new(&config, &CableConfig { mtu, ..CableConfig::default() });
            bench.left.host_mut().to_send.extend(frames.iter().map(|frame| (TxMeta::default(), frame.clone())));
            bench.run_until_idle();
            let given: Vec<_> = bench.right.host().given.iter().map(|(_, frame)| frame).collect();
            prop_assert_eq!(&given, &crossed.iter().collect::<Vec<_>>());
            bench.assert_everything_is_accounted_for();
        }
    }
}

/// The slow way of a frame onto the line.
fn planned(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let mut plan = Segmenter::new(frame, &TxMeta::default(), &SegmentPolicy::default()).ok()?;
    let mut out = vec![0; plan.next_len()];
    (out.len() - plan.link_header_len() <= mtu).then(|| plan.write_next(frame, &mut out))?;
    Some(out)
}
