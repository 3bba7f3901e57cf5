//! Two adapters connected back to back: bytes are conserved and stay in order, and every frame is counted as delivered
//! or as lost.

use crate::support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::{AdapterConfig, ConfigError};
use offramp_adapter::moderation::{
    AreaConfig, Coalescing, DimProfiles, E1000Mode, InterruptCost, ModerationConfig, Policy,
};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{Line, WirePort};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};
use proptest::prelude::*;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

type Pair = QueuePair<MemoryHost, CableEnd>;

/// Time after which a hung test fails.
const HANG_GUARD: Duration = Duration::from_mins(1);

struct Bench {
    left: Pair,
    right: Pair,
    controls: [Arc<PortControl>; 2],
    now_ns: u64,
}

impl Bench {
    fn new(config: &AdapterConfig, line: &CableConfig) -> Self {
        Self::with_hosts(config, line, MemoryHost::default)
    }

    fn with_hosts(config: &AdapterConfig, line: &CableConfig, host: impl Fn() -> MemoryHost) -> Self {
        let (a, b) = cable(line);
        let controls = [PortControl::new(config), PortControl::new(config)];
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
fn a_line_of_any_rate_does_no_harm_and_one_that_stands_still_is_refused() {
    for rate_bps in [0, 1, 999, u64::MAX] {
        let config = CableConfig { rate_bps: Some(rate_bps), ..CableConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains(&format!("{rate_bps} bit/s is out of range")));
        let (mut near, mut far) = cable(&config);
        for _ in 0..100 {
            if near.room(u64::MAX) > 0 && near.lend(1514, 1).is_some() {
                near.put(1514, 1, u64::MAX);
            }
        }
        near.flush();
        assert!(far.take(u64::MAX).is_some());
    }
    assert_eq!(CableConfig { rate_bps: Some(1000), ..CableConfig::default() }.check(), Ok(()));
    assert_eq!(CableConfig::default().check(), Ok(()));
}

#[test]
fn a_super_frame_crosses_as_frames_of_the_line_and_arrives_as_one() {
    let mut bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
    let payload = pattern(1, 60_000);
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &payload, 1460));
    bench.run_until_idle();
    assert_eq!(received_by(&bench.right), payload);
    assert_eq!(bench.right.host().given.len(), 1, "coalesced again");
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
    // 1460 bytes after 40 bytes of headers take the same line time as 1448 bytes after 52 bytes of headers.
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
    let config = moderated(Policy::FixedGap { max_interrupts_per_second: 8000 });
    let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
    let mut bench = Bench::new(&config, &line);
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &pattern(1, 44 * 1460), 1460));
    bench.run_until_idle();
    let segments: Vec<u16> = bench.right.host().given.iter().map(|(meta, _)| meta.segments).collect();
    // A frame arrives every 12.3 µs. The first frame is delivered at once, and the other frames in batches of ten.
    assert_eq!(segments, [1, 10, 10, 10, 10, 3]);
    assert_eq!(received_by(&bench.right), pattern(1, 44 * 1460));
    bench.assert_everything_is_accounted_for();
}

/// Returns an adapter configuration with this policy.
fn moderated(policy: Policy) -> AdapterConfig {
    AdapterConfig { moderation: moderation(policy), ..AdapterConfig::default() }
}

fn moderation(policy: Policy) -> ModerationConfig {
    ModerationConfig { policy, ..ModerationConfig::default() }
}

fn area(cost_ns: u64) -> AreaConfig {
    AreaConfig { cost: InterruptCost::Given { ns: cost_ns }, ..AreaConfig::default() }
}

/// Returns every policy, with settings a user might choose.
fn policies() -> [Policy; 8] {
    [
        Policy::Off,
        Policy::FixedGap { max_interrupts_per_second: 8000 },
        Policy::Coalescing(Coalescing { max_usecs: 50, max_packets: 32 }),
        Policy::NetDim(DimProfiles::ReceiveEvent),
        Policy::E1000(E1000Mode::Dynamic),
        Policy::Area(AreaConfig::default()),
        Policy::QuietOrArea(AreaConfig::default()),
        Policy::QuietOrArea(area(100_000)),
    ]
}

fn interrupts(bench: &Bench) -> u64 {
    bench.controls[1].queues()[0].receive.interrupts.get()
}

#[test]
fn frames_wait_until_so_many_have_come_or_the_first_has_waited_so_long() {
    let config = moderated(Policy::Coalescing(Coalescing { max_usecs: 100, max_packets: 4 }));
    let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
    let mut bench = Bench::new(&config, &line);
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &pattern(1, 10 * 1460), 1460));
    bench.run_until_idle();
    let segments: Vec<u16> = bench.right.host().given.iter().map(|(meta, _)| meta.segments).collect();
    assert_eq!(segments, [4, 4, 2]);
    // Ten frames arrive, of 1538 bytes each with the line overhead. The ninth frame waited for the timer.
    let ninth_ns = 9 * 12_304;
    assert_eq!(bench.now_ns, ninth_ns + 100_000);
    assert_eq!(interrupts(&bench), 3);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn frames_under_way_are_waited_for_without_a_wake_up_for_each() {
    // A frame arrives every 12.3 µs. Two frames wait for 0 + 12.3 µs in total. Three frames wait for 0 + 12.3 + 24.6 µs
    // in total, the limit of the area.
    let config = moderated(Policy::Area(area(3 * 12_304)));
    let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
    let mut bench = Bench::new(&config, &line);
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &pattern(1, 6 * 1460), 1460));
    bench.poll();
    bench.poll();
    assert_eq!(bench.right.next_deadline_ns(), Some(12_304 + 2 * 12_304));
    bench.run_until_idle();
    let segments: Vec<u16> = bench.right.host().given.iter().map(|(meta, _)| meta.segments).collect();
    assert_eq!(segments, [3, 3]);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_lone_frame_waits_for_nothing_under_quiet_or_area() {
    let mut bench = Bench::new(&moderated(Policy::QuietOrArea(area(50_000))), &CableConfig::default());
    for n in 0..5 {
        bench.now_ns = n * 1_000_000;
        let sent_ns = bench.now_ns;
        bench.left.host_mut().to_send.push_back(tcp_frame(0, n as u32, b"x"));
        bench.run_until_idle();
        assert_eq!((bench.now_ns, interrupts(&bench)), (sent_ns, n + 1));
    }
}

#[test]
fn what_is_let_through_at_once_is_one_decision_however_many_batches_it_takes() {
    let policy = Policy::FixedGap { max_interrupts_per_second: 1000 };
    let config = AdapterConfig { receive_batch_frames: 8, ..moderated(policy) };
    let mut bench = Bench::new(&config, &CableConfig::default());
    bench.left.host_mut().to_send.push_back(tcp_frame(0, 1, b"x"));
    bench.run_until_idle();
    bench.left.host_mut().to_send.push_back(tcp_super_frame(0, 2, &pattern(1, 40 * 1460), 1460));
    while bench.poll() {}
    assert_eq!(bench.right.host().given.len(), 1, "the next one is not due");
    bench.now_ns = 1_000_000;
    let mut batches = 0;
    while bench.poll() {
        batches += 1;
    }
    assert_eq!(batches, 5);
    assert_eq!(received_by(&bench.right).len(), 1 + 40 * 1460);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_line_that_can_hold_no_more_is_emptied_though_the_gap_is_not_over() {
    let policy = Policy::FixedGap { max_interrupts_per_second: 1 };
    let mut bench = Bench::new(&moderated(policy), &CableConfig::default());
    // The test sends far more than the line holds.
    for n in 0..200 {
        bench.left.host_mut().to_send.push_back(tcp_super_frame(0, n * 60_000, &pattern(1, 60_000), 1460));
    }
    while bench.poll() {}
    assert_eq!(bench.now_ns, 0);
    assert!(bench.left.host().to_send.is_empty(), "the host is not held back by moderation");
    bench.run_until_idle();
    assert_eq!(received_by(&bench.right).len(), 200 * 60_000);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_changed_moderation_holds_for_frames_that_wait() {
    let mut bench = Bench::new(&moderated(Policy::FixedGap { max_interrupts_per_second: 1 }), &CableConfig::default());
    let send = |bench: &mut Bench, n| bench.left.host_mut().to_send.push_back(tcp_frame(0, n, b"x"));
    send(&mut bench, 0);
    while bench.poll() {}
    send(&mut bench, 1);
    while bench.poll() {}
    assert_eq!(bench.right.host().given.len(), 1);
    bench.controls[1].set_moderation(ModerationConfig::default());
    bench.poll();
    assert_eq!(bench.right.host().given.len(), 2, "off: at once");
    assert_eq!(bench.controls[1].moderation(), ModerationConfig::default());
    // Moderation is switched on again, with frames that were put on the wire while moderation was off.
    bench.controls[1].set_moderation(moderation(Policy::Coalescing(Coalescing { max_usecs: 70, max_packets: 9 })));
    send(&mut bench, 2);
    while bench.poll() {}
    assert_eq!(bench.right.host().given.len(), 2);
    assert_eq!(bench.right.next_deadline_ns(), Some(70_000));
    bench.run_until_idle();
    assert_eq!(bench.right.host().given.len(), 3);
    assert_eq!(bench.controls[1].queues()[0].receive.wait_max_ns.get(), 70_000);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_change_of_moderation_wakes_what_drives_the_pair() {
    struct Woken(AtomicUsize);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let bench = Bench::new(&AdapterConfig::default(), &CableConfig::default());
    for _ in 0..3 {
        bench.right.register(&Waker::from(Arc::clone(&woken)));
    }
    bench.controls[1].set_moderation(moderation(Policy::Area(area(1))));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

#[test]
fn the_cost_of_an_interrupt_is_learned_from_how_long_batches_take() {
    let (batch_ns, frame_ns) = (4000, 100);
    let mut bench = Bench::new(&moderated(Policy::QuietOrArea(AreaConfig::default())), &CableConfig::default());
    let clock = Cell::new(0);
    for n in 0..500_u32 {
        let frames = 1 + n % 7;
        bench.left.host_mut().to_send.push_back(tcp_super_frame(0, n, &pattern(0, frames as usize * 1460), 1460));
        let now_ns = u64::from(n) * 1_000_000;
        bench.left.poll(now_ns).unwrap();
        // The clock is read before and after a batch.
        let readings = Cell::new(0);
        let read = || {
            clock.set(clock.get() + readings.replace(1) * (batch_ns + frame_ns * u64::from(frames)));
            clock.get()
        };
        bench.right.poll_timed(now_ns, &read).unwrap();
    }
    let cost_ns = bench.controls[1].queues()[0].receive.interrupt_cost_ns.get();
    assert!(cost_ns.abs_diff(batch_ns) < 50, "{cost_ns}");
}

#[test]
fn once_the_cost_is_known_one_batch_in_eight_is_measured() {
    let mut bench = Bench::new(&moderated(Policy::QuietOrArea(AreaConfig::default())), &CableConfig::default());
    let readings = Cell::new(0);
    let read = || {
        readings.set(readings.get() + 1);
        readings.get()
    };
    let mut readings_of = |batches: Range<u32>| {
        let before = readings.get();
        for n in batches {
            bench.left.host_mut().to_send.push_back(tcp_frame(0, n, b"x"));
            let now_ns = u64::from(n) * 1_000_000;
            bench.left.poll(now_ns).unwrap();
            bench.right.poll_timed(now_ns, &read).unwrap();
        }
        readings.get() - before
    };
    // The clock is read before and after each batch.
    assert_eq!(readings_of(0..100), 200);
    readings_of(100..1000);
    assert_eq!(readings_of(1000..1800), 200);
}

#[test]
fn without_moderation_the_clock_is_not_read() {
    let config = AdapterConfig { moderation: moderation(Policy::Off), ..AdapterConfig::default() };
    let mut bench = Bench::new(&config, &CableConfig::default());
    bench.left.host_mut().to_send.push_back(tcp_frame(0, 1, b"x"));
    bench.left.poll(0).unwrap();
    bench.right.poll_timed(0, &|| panic!("read")).unwrap();
    assert_eq!((bench.right.host().given.len(), interrupts(&bench)), (1, 1));
    assert_eq!(bench.controls[0].queues()[0].transmit.interrupts.get(), 1);
}

#[test]
fn no_policy_keeps_a_frame_longer_than_it_says() {
    for policy in policies() {
        let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
        let mut bench = Bench::new(&moderated(policy), &line);
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut longest_ns = 0;
        for n in 0..300 {
            bench.now_ns += rng.random_range(0..200_000);
            let (sent_ns, given) = (bench.now_ns, bench.right.host().given.len());
            bench.left.host_mut().to_send.push_back(tcp_frame(n % 3, u32::from(n), b"x"));
            bench.run_until_idle();
            longest_ns = longest_ns.max(bench.controls[1].queues()[0].receive.wait_max_ns.get());
            assert!(bench.right.host().given.len() > given, "{policy:?}");
            // The time in flight is the line time of 60 bytes and the line overhead.
            let waited_ns = bench.now_ns - sent_ns - 672;
            assert!(waited_ns <= longest_ns, "{policy:?}: {waited_ns} ns, and {longest_ns} ns were promised");
        }
        bench.assert_everything_is_accounted_for();
    }
}

#[test]
fn hosts_that_understand_verdicts_are_told_good_and_others_a_partial_sum() {
    for honours_data_valid in [false, true] {
        let config = AdapterConfig { offloads: Offloads::TX | Offloads::RX_CHECKSUM, ..AdapterConfig::default() };
        let host = || MemoryHost { honours_data_valid, ..MemoryHost::default() };
        let mut bench = Bench::with_hosts(&config, &CableConfig::default(), host);
        bench.left.host_mut().to_send.push_back(tcp_frame(0, 1, b"hello"));
        bench.run_until_idle();
        let (meta, frame) = &bench.right.host().given[0];
        assert_eq!(meta.checksum == ChecksumState::Good, honours_data_valid);
        assert_eq!(payload_of(meta, frame), b"hello");
    }
}

#[test]
fn a_configuration_out_of_range_is_named() {
    let config = AdapterConfig { mtu: 67, ..AdapterConfig::default() };
    assert_eq!(config.check(), Err(ConfigError::Mtu(67)));
    assert_eq!(config.check().unwrap_err().to_string(), "mtu 67 is out of range; use 68 to 65521 IP bytes");
}

/// The next sequence number of each flow. Each frame must start at the sequence number at which the previous frame of
/// the flow ended.
#[derive(Default)]
struct Arrived(Vec<u32>);

impl Arrived {
    fn take(&mut self, host: &mut MemoryHost) {
        for (meta, frame) in host.given.drain(..) {
            let flow = usize::from(u16::from_be_bytes([frame[34], frame[35]]) - 1000);
            let sequence = u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]);
            self.0.resize(self.0.len().max(flow + 1), 0);
            assert_eq!(sequence, self.0[flow], "flow {flow}");
            self.0[flow] += payload_of(&meta, &frame).len() as u32;
        }
    }
}

#[test]
fn settings_changed_ten_thousand_times_a_second_lose_and_reorder_nothing() {
    const CHANGES: u32 = 5000;
    const INTERVAL: Duration = Duration::from_micros(100);
    const FLOWS: usize = 64;
    let line = CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() };
    let mut bench = Bench::new(&AdapterConfig::default(), &line);
    let control = Arc::clone(&bench.controls[1]);
    let done = AtomicBool::new(false);
    let mut sent = vec![0; FLOWS];
    let mut arrived = Arrived::default();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            for change in 0..CHANGES {
                let policies = policies();
                control.set_moderation(ModerationConfig {
                    policy: policies[rng.random_range(0..policies.len())],
                    ring_guard_frames: rng.random_range(0..200),
                });
                if rng.random_bool(0.2) {
                    control.set_offloads(Offloads::from_bits_truncate(rng.random()));
                }
                let next = begun + INTERVAL * change;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let poll = |bench: &mut Bench, arrived: &mut Arrived| {
            bench.now_ns = begun.elapsed().as_nanos() as u64;
            bench.poll();
            arrived.take(bench.right.host_mut());
        };
        while !done.load(Ordering::Relaxed) {
            if bench.left.host().to_send.len() < 4 && rng.random_bool(0.3) {
                let flow = rng.random_range(0..FLOWS);
                let payload = pattern(rng.random(), rng.random_range(1..9000));
                let frame = tcp_super_frame(flow as u16, sent[flow], &payload, rng.random_range(100..=1460));
                bench.left.host_mut().to_send.push_back(frame);
                sent[flow] += payload.len() as u32;
            }
            poll(&mut bench, &mut arrived);
        }
        while begun.elapsed() < HANG_GUARD && arrived.0 != sent {
            poll(&mut bench, &mut arrived);
        }
    });
    assert_eq!(arrived.0, sent);
    let interrupts = interrupts(&bench);
    assert!(interrupts > 0 && interrupts <= bench.controls[1].queues()[0].receive.frames_out.get());
    bench.assert_everything_is_accounted_for();
}

proptest! {
    #[test]
    fn moderation_changed_at_any_moment_loses_and_reorders_nothing(seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rate_bps = [None, Some(1_000_000_000), Some(10_000_000)][rng.random_range(0..3)];
        let line = CableConfig { rate_bps, delay_ns: rng.random_range(0..100_000), ..CableConfig::default() };
        let config = AdapterConfig { receive_batch_frames: rng.random_range(1..40), ..AdapterConfig::default() };
        let mut bench = Bench::new(&config, &line);
        let mut sent = vec![0; 5];
        let mut arrived = Arrived::default();
        for _ in 0..100 {
            let flow = rng.random_range(0..sent.len());
            let payload = pattern(rng.random(), rng.random_range(1..9000));
            let frame = tcp_super_frame(flow as u16, sent[flow], &payload, rng.random_range(100..=1460));
            bench.left.host_mut().to_send.push_back(frame);
            sent[flow] += payload.len() as u32;
            if rng.random_bool(0.4) {
                let policies = policies();
                bench.controls[1].set_moderation(ModerationConfig {
                    policy: policies[rng.random_range(0..policies.len())],
                    ring_guard_frames: rng.random_range(0..200),
                });
            }
            for _ in 0..rng.random_range(0..6) {
                bench.now_ns += rng.random_range(0..30_000);
                bench.poll();
            }
            arrived.take(bench.right.host_mut());
        }
        bench.run_until_idle();
        arrived.take(bench.right.host_mut());
        arrived.0.resize(sent.len(), 0);
        prop_assert_eq!(arrived.0, sent);
        bench.assert_everything_is_accounted_for();
    }

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
        // Without offloads, no frame is parsed. With the receive checksum on, every frame is parsed.
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

/// Plans a frame without offload requests, and returns the resulting wire frame; `None` if the frame is malformed or
/// too long.
fn planned(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let mut copy = frame.to_vec();
    let frame = Frame::received(&mut copy);
    let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).ok()?;
    let mut out = vec![0; plan.next_len()];
    (out.len() - plan.link_header_len() <= mtu).then(|| plan.write_next(&frame, &mut out))?;
    Some(out)
}
