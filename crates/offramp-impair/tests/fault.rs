//! Impairments change frames exactly as configured. Without configuration, impairments pass all frames unchanged.

#[path = "../../offramp-adapter/tests/support/mod.rs"]
mod support;

use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::PortError;
use offramp_adapter::port::{Arrival, HostPort, Line, WirePort};
use offramp_adapter::stats::{Direction, Loss};
use offramp_impair::ReadOut;
use offramp_impair::fault::{
    self, BusConfig, Delay, Duplicate, FaultConfig, Reverse, Slow, VerdictConfig, VerdictFault, WrongVerdict,
};
use offramp_impair::memory::{MemoryConfig, PacketMemory};
use offramp_offload::caps::Offloads;
use offramp_offload::checksum;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, RxMeta};
use proptest::prelude::*;
use std::sync::Arc;
use support::line::{ScriptedLine, number, numbered};
use support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};

impl ReadOut for ScriptedLine {}

/// Returns a line on which one frame arrives per microsecond.
fn every_microsecond(frames: usize) -> ScriptedLine {
    ScriptedLine::bringing((1..=frames as u64).map(|n| (n * 1000, 100)))
}

fn drain(line: &mut impl Line, now_ns: u64) -> Vec<usize> {
    std::iter::from_fn(|| line.take(now_ns).map(|frame| number(frame))).collect()
}

#[test]
fn one_frame_in_each_group_is_lost_and_the_seed_says_which() {
    let survivors = |seed| {
        let mut line = fault::Loss::new(every_microsecond(1000), Some(10), seed);
        let stats = Direction::default();
        let given = drain(&mut line, u64::MAX);
        line.advance(u64::MAX, &stats);
        assert_eq!((stats.frames_in.get(), stats.lost(Loss::Fault)), (100, 100));
        given
    };
    let first = survivors(1);
    assert_eq!(first.len(), 900);
    assert!((0..100).all(|group| (0..10).filter(|n| !first.contains(&(group * 10 + n))).count() == 1));
    assert_eq!(survivors(1), first);
    assert_ne!(survivors(2), first);
}

#[test]
fn one_frame_in_each_group_comes_twice_at_the_same_moment() {
    let mut line = Duplicate::new(every_microsecond(1000), Some(8), 3);
    let mut given = Vec::new();
    while let Some(at_ns) = line.next_arrival_ns() {
        let n = number(line.take(at_ns).unwrap());
        assert_eq!(at_ns, (n as u64 + 1) * 1000);
        given.push(n);
    }
    assert_eq!(given.len(), 1125);
    assert!(given.is_sorted());
    assert!((0..125).all(|group| given.iter().filter(|&&n| n / 8 == group).count() == 9));
    assert!(line.is_idle());
}

#[test]
fn a_delay_moves_each_arrival_and_nothing_else() {
    let mut line = Delay::new(every_microsecond(3), 500);
    assert_eq!(line.next_arrival_ns(), Some(1500));
    assert!(line.take(1499).is_none());
    assert_eq!(number(line.take(1500).unwrap()), 0);
    let mut named = Vec::new();
    line.arrivals(0, 2500, |arrival| named.push(arrival));
    assert_eq!(named, [Arrival { at_ns: 2500, len: 100 }]);
    assert_eq!(drain(&mut line, u64::MAX), [1, 2]);
    assert!(line.take(100).is_none(), "a moment before the delay");
}

/// A bus that takes one microsecond to copy a frame of 100 bytes, and one further microsecond per frame.
const BUS: BusConfig = BusConfig { bytes_per_second: Some(100_000_000), frame_ns: 1000 };

#[test]
fn a_bus_copies_one_frame_after_the_other() {
    let mut line = Slow::new(ScriptedLine::bringing([(0, 100), (1000, 100), (9000, 200)]), BUS);
    assert_eq!(line.next_arrival_ns(), Some(2000), "known before it begins");
    let mut ends = Vec::new();
    while let Some(at_ns) = line.next_arrival_ns() {
        assert!(line.take(at_ns - 1).is_none());
        assert_eq!(number(line.take(at_ns).unwrap()), ends.len());
        ends.push(at_ns);
    }
    assert_eq!(ends, [2000, 4000, 12_000]);
    assert!(line.is_idle());
}

#[test]
fn both_directions_have_one_bus() {
    let mut line = Slow::new(ScriptedLine::bringing([(1000, 100), (1500, 100)]), BUS);
    let stats = Direction::default();
    assert_eq!(line.room(0), 1);
    let put = |line: &mut Slow<ScriptedLine>, now_ns| {
        line.lend(100, 64).unwrap().bytes.copy_from_slice(&numbered(7, 100));
        line.put(100, 1, now_ns);
    };
    put(&mut line, 0);
    assert_eq!((line.room(1999), line.next_room_ns(1999)), (0, Some(2000)), "it is copied until 2000");
    line.advance(2000, &stats);
    assert_eq!(line.next_arrival_ns(), Some(4000), "then the received frame has its turn");
    assert_eq!((line.room(2000), line.next_room_ns(2000)), (1, None));
    put(&mut line, 2000);
    assert_eq!(line.next_room_ns(2000), Some(6000), "then the next one to be sent");
    line.advance(6000, &stats);
    assert!(line.take(6000).is_some());
    assert_eq!(line.next_arrival_ns(), Some(8000), "then the second received one");
    assert_eq!(line.line.put.iter().map(|(at_ns, _)| *at_ns).collect::<Vec<_>>(), [2000, 6000]);
}

#[test]
fn a_bus_that_receives_first_sends_when_nothing_is_left_to_read() {
    let mut line = Slow::new(ScriptedLine::bringing([(1000, 100), (1500, 100)]), BUS).receiving_first(true);
    let stats = Direction::default();
    assert_eq!(line.room(0), 1, "nothing has come yet");
    for now_ns in [1000, 2999, 3000, 4999] {
        line.advance(now_ns, &stats);
        assert_eq!(line.room(now_ns), 0, "at {now_ns}");
    }
    line.advance(5000, &stats);
    assert_eq!(line.room(5000), 1);
    assert_eq!(drain(&mut line, 5000), [0, 1]);
}

#[test]
fn a_bus_keeps_frames_where_they_are_while_nobody_takes_what_it_copied() {
    let mut line = Slow::new(every_microsecond(1000), BUS);
    let stats = Direction::default();
    line.advance(u64::MAX, &stats);
    assert_eq!(line.line.to_come.len(), 1000 - 256);
    assert_eq!(drain(&mut line, u64::MAX).len(), 1000);
}

proptest! {
    #[test]
    fn what_is_not_configured_changes_nothing(
        arrivals in prop::collection::vec((0..3000_u64, 18..2000_usize), 0..60),
        steps in prop::collection::vec((0..5000_u64, 0..6_usize, 0..4_usize), 1..40),
        seed in any::<u64>(),
    ) {
        let mut at_ns = 0;
        let arrivals: Vec<_> = arrivals.into_iter().map(|(gap, len)| { at_ns += gap; (at_ns, len) }).collect();
        let faults = FaultConfig { seed, ..FaultConfig::default() };
        prop_assert!(faults.is_none());
        let mut plain = ScriptedLine::bringing(arrivals.iter().copied());
        let mut wired = fault::wire(ScriptedLine::bringing(arrivals), &faults, &MemoryConfig::default());
        let stats = Direction::default();
        let mut now_ns = 0;
        for (gap, most, skip) in steps {
            now_ns += gap;
            wired.advance(now_ns, &stats);
            for until_ns in [now_ns, u64::MAX] {
                let named = |line: &dyn Fn(&mut Vec<Arrival>) -> u32| { let mut named = Vec::new(); (line(&mut named), named) };
                prop_assert_eq!(
                    named(&|named| plain.arrivals(skip, until_ns, |arrival| named.push(arrival))),
                    named(&|named| wired.arrivals(skip, until_ns, |arrival| named.push(arrival)))
                );
            }
            prop_assert_eq!(plain.next_arrival_ns(), wired.next_arrival_ns());
            prop_assert_eq!(plain.begin(now_ns), wired.begin(now_ns));
            prop_assert_eq!(plain.room(now_ns), wired.room(now_ns));
            for _ in 0..most {
                prop_assert_eq!(plain.take(now_ns).map(|f| f.to_vec()), wired.take(now_ns).map(|f| f.to_vec()));
            }
            prop_assert_eq!(plain.is_idle(), wired.is_idle());
        }
        prop_assert_eq!(stats.frames_in.get(), 0);
    }

    #[test]
    fn what_is_named_ahead_comes_at_that_time(
        arrivals in prop::collection::vec((0..3000_u64, 18..2000_usize), 0..60),
        loss in prop::option::of(2..9_u32),
        double in prop::option::of(2..9_u32),
        delay_ns in 0..5000_u64,
        frame_ns in 0..2000_u64,
        taken in 0..20_usize,
        seed in any::<u64>(),
    ) {
        let mut at_ns = 0;
        let arrivals: Vec<_> = arrivals.into_iter().map(|(gap, len)| { at_ns += gap; (at_ns, len) }).collect();
        let bus = BusConfig { bytes_per_second: None, frame_ns };
        let faults = FaultConfig { loss_one_in: loss, duplicate_one_in: double, delay_ns, seed, bus, ..FaultConfig::default() };
        let mut line = fault::wire(ScriptedLine::bringing(arrivals), &faults, &MemoryConfig::default());
        for _ in 0..taken {
            let Some(at_ns) = line.next_arrival_ns() else { break };
            line.take(at_ns);
        }
        let mut named = Vec::new();
        line.arrivals(0, u64::MAX, |arrival| named.push(arrival));
        let mut came = Vec::new();
        while let Some(at_ns) = line.next_arrival_ns() {
            came.extend(line.take(at_ns).map(|frame| Arrival { at_ns, len: frame.len() }));
        }
        prop_assert_eq!(named, came);
        prop_assert!(line.is_idle());
    }

    #[test]
    fn reversing_is_a_permutation_within_groups_and_batches(
        batches in prop::collection::vec(0..40_usize, 1..8),
        group in 1..20_usize,
    ) {
        let control = PortControl::new(&AdapterConfig::default());
        let mut host = Reverse::new(MemoryHost::default(), Some(group), &control, 0);
        let (mut next, mut expected) = (0, Vec::new());
        for batch in batches {
            let frames: Vec<usize> = (next..next + batch).collect();
            next += batch;
            for &n in &frames {
                prop_assert_eq!(host.rx_deliver(&RxMeta::default(), &numbered(n, 60)), Ok(()));
            }
            host.rx_flush(0);
            prop_assert_eq!(control.queues()[0].receive.lost_total(), 0);
            expected.extend(frames.chunks(group).flat_map(|group| group.iter().rev()));
            let given: Vec<usize> = host.host.given.iter().map(|(_, frame)| number(frame)).collect();
            prop_assert_eq!(&given, &expected, "nothing is left after a batch");
        }
    }

    #[test]
    fn any_faults_that_are_accepted_take_any_times(
        trace in prop::collection::vec((any::<u64>(), 0..70_000_usize), 0..40),
        slowest in any::<bool>(),
        one_in in 2..5_u32,
    ) {
        let faults = FaultConfig {
            bus: BusConfig { bytes_per_second: slowest.then_some(1000), frame_ns: 1_000_000_000 },
            loss_one_in: Some(one_in),
            duplicate_one_in: Some(1_000_000_000),
            delay_ns: 10_000_000_000,
            ..FaultConfig::default()
        };
        prop_assert_eq!(faults.check(), Ok(()));
        let mut line = fault::wire(ScriptedLine::bringing(trace), &faults, &MemoryConfig::dp8390(8192).unwrap());
        let stats = Direction::default();
        for now_ns in [0, 1, u64::MAX / 2, u64::MAX] {
            line.advance(now_ns, &stats);
            line.arrivals(1, now_ns, |_| {});
            while line.take(now_ns).is_some() {}
            if line.room(now_ns) > 0 && line.lend(1514, 1).is_some() {
                line.put(1514, 1, u64::MAX / 2);
            }
        }
    }
}

#[test]
fn what_a_host_refuses_late_is_counted_as_the_frames_that_it_was() {
    let control = PortControl::new(&AdapterConfig::default());
    let mut host = Reverse::new(MemoryHost { refuse: 1, ..MemoryHost::default() }, Some(4), &control, 0);
    let stats = &control.queues()[0].receive;
    for (segments, len) in [(10, 600), (3, 180)] {
        let meta = RxMeta { segments, checksum: ChecksumState::Bad, ..RxMeta::default() };
        stats.given(&meta, len, host.rx_deliver(&meta, &numbered(usize::from(segments), len)).map_err(PortError::loss));
    }
    host.rx_flush(0);
    assert_eq!((stats.frames_out.get(), stats.bytes_out.get(), stats.host_frames.get()), (10, 600, 1));
    assert_eq!(stats.lost(Loss::Drop), 3, "the last one was given first, and found no room");
    assert_eq!(stats.bad_checksum.get(), 13);
}

#[test]
fn a_host_that_takes_nothing_more_of_what_comes_in_the_wrong_order_is_counted_so_in_the_same_batch() {
    let faults = FaultConfig { reverse_frames: Some(16), ..FaultConfig::default() };
    let mut bench = Bench::new(&faults, &AdapterConfig::default());
    bench.send(1, &pattern(1, 30_000));
    bench.faulty.host_mut().host.host.refuse = usize::MAX;
    bench.send(30_001, &pattern(2, 30_000));
    let given = &bench.faulty.host().host.host.given;
    let given: u64 = given.iter().map(|(meta, _)| u64::from(meta.segments)).sum();
    let stats = &bench.controls[1].queues()[0].receive;
    assert_eq!((stats.frames_out.get(), stats.frames_in.get()), (given, given + stats.lost(Loss::Drop)));
    assert_eq!(stats.lost(Loss::Drop), 21);
}

/// Returns a TCP frame with a complete checksum.
fn summed(sequence: u32, payload: &[u8]) -> Vec<u8> {
    let (meta, mut frame) = tcp_frame(0, sequence, payload);
    let end = frame.len();
    checksum::complete(&mut frame, meta.checksum.unwrap(), end).unwrap();
    frame
}

fn verdict_fault(wrong: WrongVerdict, one_in: u32, honours_data_valid: bool) -> VerdictFault<MemoryHost> {
    let host = MemoryHost { honours_data_valid, ..MemoryHost::default() };
    VerdictFault::new(host, Some(VerdictConfig { wrong, one_in }))
}

fn with_verdict(checksum: ChecksumState) -> RxMeta {
    RxMeta { checksum, ..RxMeta::default() }
}

#[test]
fn a_wrong_verdict_hits_a_retransmission_again_and_no_frame_that_was_not_judged() {
    let mut host = verdict_fault(WrongVerdict::GoodIsBad, 7, true);
    let mut give = |n: u32, verdict| {
        host.rx_deliver(&with_verdict(verdict), &summed(n * 100, &pattern(u64::from(n), 100))).is_ok()
    };
    let first: Vec<bool> = (0..700).map(|n| give(n, ChecksumState::Good)).collect();
    let again: Vec<bool> = (0..700).map(|n| give(n, ChecksumState::Good)).collect();
    assert_eq!(first, again);
    let refused = first.iter().filter(|is_ok| !**is_ok).count();
    assert!((50..150).contains(&refused), "about one in seven: {refused}");
    for unjudged in [ChecksumState::Unknown, ChecksumState::Bad] {
        assert!((0..700).all(|n| give(n, unjudged)));
    }
    assert_eq!(host.wrong(), 2 * refused as u64);
    assert!(
        (0..50).all(|n| host.rx_deliver(&with_verdict(ChecksumState::Good), &summed(n, &[])).is_ok()),
        "bare ACKs pass"
    );
}

#[test]
fn a_bad_frame_that_is_marked_good_is_one_that_its_host_believes() {
    let mut frame = summed(1, &pattern(1, 500));
    *frame.last_mut().unwrap() ^= 1;
    for honours_data_valid in [true, false] {
        // With `one_in` = 2, the verdict is wrong for each even checksum. Of two frames with consecutive sequence
        // numbers, exactly one has an even checksum.
        let mut host = verdict_fault(WrongVerdict::BadIsGood, 2, honours_data_valid);
        for sequence in 1..3 {
            frame[41] = sequence;
            host.rx_deliver(&with_verdict(ChecksumState::Bad), &frame).unwrap();
        }
        assert_eq!(host.wrong(), 1);
        let believed: Vec<_> = host.host.given.iter().filter(|(meta, _)| meta.checksum != ChecksumState::Bad).collect();
        let [(meta, given)] = believed[..] else { panic!("one of two") };
        match meta.checksum {
            ChecksumState::Good => assert!(honours_data_valid),
            ChecksumState::Partial(partial) => {
                assert!(!honours_data_valid);
                let mut completed = given.clone();
                let layout = Frame::received(&mut completed.clone()).layout().copied().unwrap();
                checksum::complete(&mut completed, partial, layout.packet_end).unwrap();
                assert_eq!(Frame::received(&mut completed).verify(), ChecksumState::Good);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(given[54..], frame[54..], "with the payload that came");
    }
}

type Faulty = QueuePair<fault::Host<MemoryHost>, fault::Wire<CableEnd>>;

struct Bench {
    sender: QueuePair<MemoryHost, CableEnd>,
    faulty: Faulty,
    controls: [Arc<PortControl>; 2],
    now_ns: u64,
}

impl Bench {
    fn new(faults: &FaultConfig, config: &AdapterConfig) -> Self {
        let (near, far) = cable(&CableConfig { rate_bps: Some(1_000_000_000), ..CableConfig::default() });
        let controls = [PortControl::new(config), PortControl::new(config)];
        let host = fault::host(MemoryHost::default(), faults, &controls[1], 0);
        let wire = fault::wire(far, faults, &MemoryConfig::default());
        Self {
            sender: QueuePair::new(config, &controls[0], 0, MemoryHost::default(), near),
            faulty: QueuePair::new(config, &controls[1], 0, host, wire),
            controls,
            now_ns: 0,
        }
    }

    fn send(&mut self, sequence: u32, payload: &[u8]) {
        self.sender.host_mut().to_send.push_back(tcp_super_frame(0, sequence, payload, 1460));
        loop {
            let sent = self.sender.poll(self.now_ns).unwrap();
            let received = self.faulty.poll(self.now_ns).unwrap();
            if sent.moved || received.moved {
                continue;
            }
            let (sender, faulty) = (self.sender.wire(), self.faulty.wire());
            let rooms = [sender.next_room_ns(self.now_ns), faulty.next_room_ns(self.now_ns)];
            let due = rooms.into_iter().chain([self.faulty.next_deadline_ns()]).flatten();
            match due.filter(|&at_ns| at_ns > self.now_ns).min() {
                Some(at_ns) => self.now_ns = at_ns,
                None => return,
            }
        }
    }

    fn received(&self) -> &Direction {
        &self.controls[1].queues()[0].receive
    }

    fn given(&self) -> Vec<Vec<u8>> {
        let given = &self.faulty.host().host.host.given;
        given.iter().map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect()
    }
}

fn one_by_one() -> AdapterConfig {
    AdapterConfig { offloads: Offloads::TX | Offloads::RX_CHECKSUM, ..AdapterConfig::default() }
}

#[test]
fn a_segment_that_is_judged_wrongly_never_arrives_until_nobody_judges() {
    // Claim R8 (`offramp-model/cases/R8.toml`): a retransmission gets the wrong verdict again, so its connection
    // stalls. A packet capture switches `rx-checksum` off, to see the frames otherwise dropped by the adapter. The
    // connection then continues.
    let faults = FaultConfig {
        verdict: Some(VerdictConfig { wrong: WrongVerdict::GoodIsBad, one_in: 8 }),
        ..FaultConfig::default()
    };
    let mut bench = Bench::new(&faults, &one_by_one());
    let payload = |n: u32| pattern(u64::from(n), 1460);
    let stuck = (0..200)
        .find(|&n| {
            let before = bench.given().len();
            bench.send(n * 1460, &payload(n));
            bench.given().len() == before
        })
        .expect("one in eight is hit");
    let lost = bench.received().lost(Loss::HostRefused);
    for _ in 0..5 {
        bench.send(stuck * 1460, &payload(stuck));
    }
    assert_eq!(bench.received().lost(Loss::HostRefused), lost + 5);
    bench.controls[1].set_offloads(Offloads::TX);
    bench.send(stuck * 1460, &payload(stuck));
    assert_eq!(bench.given().last(), Some(&payload(stuck)));
}

#[test]
fn everything_at_once_is_accounted_for_under_moderation() {
    let faults = FaultConfig {
        bus: BusConfig { bytes_per_second: Some(20_000_000), frame_ns: 5000 },
        loss_one_in: Some(11),
        duplicate_one_in: Some(7),
        delay_ns: 300_000,
        reverse_frames: Some(4),
        verdict: Some(VerdictConfig { wrong: WrongVerdict::GoodIsBad, one_in: 5 }),
        seed: 9,
        receive_first: true,
    };
    let waiting = Policy::Coalescing(Coalescing { max_usecs: 2000, max_packets: 16 });
    for policy in [Policy::Off, waiting] {
        let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
        let mut bench = Bench::new(&faults, &AdapterConfig { moderation, ..one_by_one() });
        bench.send(1, &pattern(0, 60_000));
        bench.send(60_001, &pattern(60_000, 60_000));
        let received = bench.received();
        let (sent, lost) = (84, 84 / 11);
        assert_eq!(received.lost(Loss::Fault), lost);
        let doubled = received.frames_in.get() - sent;
        assert!((doubled as i64 - 11).abs() <= 1, "one in seven of 77: {doubled}");
        assert_eq!(received.frames_in.get(), received.frames_out.get() + received.lost_total());
        let refused = received.lost(Loss::HostRefused);
        assert!(refused > 0);
        assert_eq!(bench.given().len() as u64, received.frames_in.get() - lost - refused);
        assert!(bench.faulty.wire().is_idle());
        let interrupts = received.interrupts.get();
        assert_eq!(policy == Policy::Off, interrupts > 40, "{interrupts}");
    }
}

#[test]
fn a_reversed_batch_reaches_the_host_last_frame_first() {
    // Claim R10 (`offramp-model/cases/R10.toml`). With this moderation, the adapter interrupts the host once per four
    // frames, so a batch has four frames.
    let moderation = ModerationConfig {
        policy: Policy::Coalescing(Coalescing { max_usecs: 10_000, max_packets: 4 }),
        ..ModerationConfig::default()
    };
    let faults = FaultConfig { reverse_frames: Some(16), ..FaultConfig::default() };
    let mut bench = Bench::new(&faults, &AdapterConfig { moderation, ..one_by_one() });
    let payload = pattern(0, 8 * 1460);
    bench.send(1, &payload);
    let segments: Vec<&[u8]> = payload.chunks(1460).collect();
    let reversed: Vec<&[u8]> = segments.chunks(4).flat_map(|batch| batch.iter().rev().copied()).collect();
    assert_eq!(bench.given(), reversed);
}

#[test]
fn a_memory_under_a_bus_is_the_one_that_loses() {
    let mut line = Slow::new(PacketMemory::new(every_microsecond(100), &MemoryConfig::dp8390(8192).unwrap()), BUS);
    let stats = Direction::default();
    let mut given = 0;
    while let Some(at_ns) = line.next_arrival_ns() {
        line.advance(at_ns, &stats);
        given += drain(&mut line, at_ns).len() as u64;
    }
    line.advance(u64::MAX, &stats);
    assert_eq!(stats.lost(Loss::Drop) + given, 100);
    assert!(given > 19, "a page for each, and the bus goes on");
}

#[test]
fn wrong_faults_are_refused_with_their_range() {
    let refused = |config: FaultConfig| config.check().unwrap_err().to_string();
    let base = FaultConfig::default();
    let bus =
        |bytes_per_second, frame_ns| refused(FaultConfig { bus: BusConfig { bytes_per_second, frame_ns }, ..base });
    assert_eq!(bus(Some(0), 0), "bus of 0 bytes per second is out of range; use 1000 to 1000000000000");
    assert_eq!(bus(None, 1_000_000_001), "bus with 1000000001 ns for each frame is out of range; use 0 to 1000000000");
    assert_eq!(
        refused(FaultConfig { delay_ns: u64::MAX, ..base }),
        "delay of 18446744073709551615 ns is out of range; use 0 to 10000000000"
    );
    assert_eq!(
        refused(FaultConfig { reverse_frames: Some(1), ..base }),
        "reversing groups of 1 frames is out of range; use 2 to 1024"
    );
    assert_eq!(
        refused(FaultConfig { loss_one_in: Some(1), ..base }),
        "loss of one frame in 1 is out of range; use 2 to 1000000000"
    );
    let verdict = VerdictConfig { wrong: WrongVerdict::BadIsGood, one_in: 0 };
    assert_eq!(
        refused(FaultConfig { verdict: Some(verdict), ..base }),
        "a wrong verdict of one frame in 0 is out of range; use 2 to 1000000000"
    );
    assert_eq!(base.check(), Ok(()));
    assert!(base.is_none() && FaultConfig { seed: 1, ..base }.is_none());
    assert!(!FaultConfig { delay_ns: 1, ..base }.is_none());
}
