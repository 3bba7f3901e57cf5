//! Tests of the adapter's packet memory: the held frames, the lost frames, and the counters of both. The tests check
//! some claims of the Linux Ethernet HOWTO, named I1 to I15 (`offramp-model/cases`).

#[path = "../../offramp-adapter/tests/support/mod.rs"]
mod support;

use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{AreaConfig, Coalescing, InterruptCost, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{Arrival, Line, WirePort};
use offramp_adapter::stats::{Direction, Loss, NetDevColumns};
use offramp_impair::fault::{self, BusConfig, FaultConfig};
use offramp_impair::memory::{
    Fate, Memory, MemoryConfig, OverflowPolicy, PacketMemory, RECOVER_NS_DP8390, ReceiveMemory,
};
use offramp_offload::meta::{PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use proptest::prelude::*;
use std::sync::Arc;
use support::line::{ScriptedLine, number};
use support::{MemoryHost, pattern, tcp_super_frame};

const KIB: usize = 1024;
/// A full Ethernet frame, without FCS.
const FULL: usize = 1514;
/// Line time of a full frame at 10 Mbit/s, in nanoseconds, with preamble, FCS and inter-frame gap.
const FULL_NS: u64 = 1_230_400;
const TEN_MBIT: u64 = 10_000_000;

/// Returns an ISA bus with a clock of `clk_hz` that needs `clks_per_byte` clocks per byte.
fn isa(clk_hz: u64, clks_per_byte: u64) -> BusConfig {
    BusConfig { bytes_per_second: Some(clk_hz / clks_per_byte), frame_ns: 0 }
}

/// Returns the bus of an 8-bit card at 8 MHz. A byte takes 8 clocks: 6 clocks of a standard cycle, and a third more,
/// because the receiving controller takes a quarter of the card's memory cycles.
fn slow_isa() -> BusConfig {
    isa(8_000_000, 8)
}

/// Returns the bus of the same card with a clock of 13.4 MHz.
fn fast_isa() -> BusConfig {
    isa(13_400_000, 8)
}

fn card(kib: usize) -> MemoryConfig {
    MemoryConfig::dp8390(kib * KIB).unwrap()
}

fn with_policy(config: MemoryConfig, policy: OverflowPolicy) -> MemoryConfig {
    MemoryConfig { policy, ..config }
}

/// Returns frames of one length, back to back on a line of 10 Mbit/s.
fn back_to_back(frames: usize, len: usize) -> impl Iterator<Item = (u64, usize)> {
    (1..=frames as u64).map(move |n| (n * FULL_NS, len))
}

/// The result of [`run`]: the frames that the host has read from the memory, and the counters.
struct Outcome {
    /// Indices of the delivered frames, in the order of delivery.
    given: Vec<usize>,
    stats: Direction,
}

/// Passes `arrivals` through a memory behind a bus, polled in steps of `step_ns`.
fn run(
    arrivals: impl IntoIterator<Item = (u64, usize)>,
    memory: &MemoryConfig,
    bus: BusConfig,
    step_ns: u64,
) -> Outcome {
    let mut line =
        fault::wire(ScriptedLine::bringing(arrivals), &FaultConfig { bus, ..FaultConfig::default() }, memory);
    let (mut given, stats, mut now_ns) = (Vec::new(), Direction::default(), 0);
    while !line.is_idle() {
        now_ns += step_ns;
        line.advance(now_ns, &stats);
        while let Some(frame) = line.take(now_ns) {
            given.push(number(frame));
        }
    }
    line.advance(now_ns, &stats);
    Outcome { given, stats }
}

fn lost(stats: &Direction) -> u64 {
    stats.lost(Loss::Drop) + stats.lost(Loss::Overrun)
}

#[test]
fn a_card_with_8_kib_has_room_for_three_full_frames() {
    // Claim I5 (`offramp-model/cases/I5.toml`): 20 pages, one of which is always free. A full frame takes six pages.
    let config = card(8);
    assert_eq!(config.receive, ReceiveMemory::Pages { pages: 20, page_len: 256 });
    assert_eq!(config.transmit_buffers, Some(2));
    assert_eq!(config.frames(FULL), 3);
    assert_eq!(card(16).frames(FULL), 8);
    let five_kib = MemoryConfig { receive: ReceiveMemory::Bytes(5 * KIB), ..MemoryConfig::default() };
    assert_eq!(five_kib.frames(FULL), 3);
    let mut memory = Memory::new(&config);
    let fates: Vec<Fate> = (0..4).map(|n| memory.arrive(Arrival { at_ns: n, len: FULL })).collect();
    let held = Fate::Held { overrun: 0 };
    assert_eq!(fates, [held, held, held, Fate::Dropped]);
    assert_eq!(memory.counts().bytes_max, 18 * 256);
}

#[test]
fn a_frame_takes_whole_pages_with_its_header_and_its_check_sequence() {
    let fits = |lens: &[usize]| {
        let mut memory = Memory::new(&card(8));
        lens.iter().all(|&len| memory.arrive(Arrival { at_ns: 0, len }) == Fate::Held { overrun: 0 })
    };
    let tcp = |payload: usize| payload + 54;
    assert!(fits(&[tcp(1460), tcp(1460), tcp(1176)]), "a window of 4096 bytes takes 17 of 19 pages");
    assert!(!fits(&[tcp(1460); 4]), "one of 5840 takes 24");
    assert!(fits(&[248; 19]) && !fits(&[248; 20]), "248 bytes are one page");
    assert!(fits(&[249; 9]) && !fits(&[249; 10]), "249 are two");
    assert!(fits(&[14; 19]) && !fits(&[14; 20]), "the shortest frame takes one too");
}

#[test]
fn what_finds_no_room_is_lost_or_makes_room_by_separate_counts() {
    // Claim I2. The host reads no frame before the end of the burst.
    for (policy, given, columns) in [
        (OverflowPolicy::Drop, [0, 1, 2], NetDevColumns { drop: 3, fifo: 0, frame: 0 }),
        (OverflowPolicy::Overrun, [3, 4, 5], NetDevColumns { drop: 0, fifo: 3, frame: 0 }),
    ] {
        let outcome = run(back_to_back(6, FULL), &with_policy(card(8), policy), BusConfig::default(), 10 * FULL_NS);
        assert_eq!(outcome.given, given, "{policy:?}");
        assert_eq!(outcome.stats.net_dev(), columns, "{policy:?}");
        assert_eq!(outcome.stats.frames_in.get(), 3, "those that are lost came in");
    }
}

#[test]
fn the_frame_that_is_being_read_out_is_not_overrun() {
    let bus = BusConfig { bytes_per_second: None, frame_ns: 100 * FULL_NS };
    let outcome = run(back_to_back(6, FULL), &with_policy(card(8), OverflowPolicy::Overrun), bus, FULL_NS);
    assert_eq!(outcome.given, [0, 4, 5]);
    assert_eq!(outcome.stats.lost(Loss::Overrun), 3);
}

#[test]
fn a_frame_that_fits_in_no_way_displaces_no_other() {
    let config = MemoryConfig {
        receive: ReceiveMemory::Bytes(2000),
        policy: OverflowPolicy::Overrun,
        ..MemoryConfig::default()
    };
    let mut memory = Memory::new(&config);
    memory.arrive(Arrival { at_ns: 0, len: 1000 });
    assert_eq!(memory.arrive(Arrival { at_ns: 1, len: 2001 }), Fate::Dropped);
    assert_eq!(memory.arrive(Arrival { at_ns: 2, len: 2000 }), Fate::Held { overrun: 1 });
    memory.begin();
    assert_eq!(memory.arrive(Arrival { at_ns: 3, len: 60 }), Fate::Dropped, "the only frame is being read out");
    assert_eq!((memory.counts().dropped, memory.counts().overrun), (2, 1));
}

#[test]
fn a_controller_that_ran_over_misses_what_comes_until_it_has_recovered() {
    let mut memory = Memory::new(&card(8));
    let mut arrive = |at_ns| memory.arrive(Arrival { at_ns, len: FULL });
    assert_eq!([1, 2, 3, 4].map(&mut arrive)[3], Fate::Dropped);
    let up_again = 4 + RECOVER_NS_DP8390;
    assert_eq!(memory.end(), Some(Arrival { at_ns: 1, len: FULL }), "what is in the memory is read out meanwhile");
    assert_eq!(memory.arrive(Arrival { at_ns: up_again - 1, len: 60 }), Fate::Dropped, "though there is room");
    assert_eq!(memory.arrive(Arrival { at_ns: up_again, len: FULL }), Fate::Held { overrun: 0 });
    assert_eq!(memory.counts().dropped, 2);
}

#[test]
fn a_ring_holds_as_many_frames_as_it_has_entries() {
    let config = MemoryConfig { receive_ring_entries: Some(4), ..MemoryConfig::default() };
    assert_eq!(config.frames(60), 4);
    let outcome = run(back_to_back(10, 60), &config, BusConfig::default(), 20 * FULL_NS);
    assert_eq!((outcome.given, outcome.stats.lost(Loss::Drop)), (vec![0, 1, 2, 3], 6));
}

#[test]
fn more_memory_takes_a_longer_burst_before_the_first_loss() {
    // Claim I4, on a bus slower than the line: a full frame takes 1514 us instead of 1230 us.
    let burst = |pages| {
        let receive = ReceiveMemory::Pages { pages, page_len: 256 };
        let config = MemoryConfig { receive, ..MemoryConfig::default() };
        let outcome = run(back_to_back(200, FULL), &config, slow_isa(), FULL_NS);
        outcome.stats.burst_frames_max.get()
    };
    let bursts: Vec<u64> = (7..=64).map(burst).collect();
    assert!(bursts.is_sorted(), "{bursts:?}");
    assert!(bursts[57] > 2 * bursts[13], "{bursts:?}");
}

#[test]
fn a_bus_faster_than_the_line_loses_nothing_with_room_for_three_frames() {
    // Claims I1 and I6. On a bus slower than the line, a memory of any size loses frames eventually.
    let lost_over = |bus| lost(&run(back_to_back(2000, FULL), &card(8), bus, FULL_NS).stats);
    assert_eq!(lost_over(fast_isa()), 0);
    assert!(lost_over(slow_isa()) > 100);
    assert_eq!(lost(&run(back_to_back(2000, FULL), &card(8), fast_isa(), 5_000_000_000).stats), 0, "nor a late thread");
}

#[test]
fn a_window_of_4_kib_fits_the_small_card_and_one_of_32_kib_does_not() {
    // Claims I11 and I13: a sender transmits a whole window at once. The next window follows when the wire is idle.
    let lost_of = |window: usize, bus| {
        let full = window / 1460;
        let rest = window % 1460;
        let lens = std::iter::repeat_n(FULL, full).chain((rest > 0).then_some(rest + 54));
        let arrivals = lens.enumerate().map(|(n, len)| ((n as u64 + 1) * FULL_NS, len));
        lost(&run(arrivals, &card(8), bus, FULL_NS).stats)
    };
    let lossy: Vec<bool> = (1..=32).map(|kib| lost_of(kib * KIB, slow_isa()) > 0).collect();
    assert!(!lossy[3] && lossy[31], "{lossy:?}");
    assert!(lossy.is_sorted(), "a threshold: {lossy:?}");
    assert!((1..=32).all(|kib| lost_of(kib * KIB, fast_isa()) == 0));
}

#[test]
fn results_do_not_depend_on_how_often_a_bus_is_polled() {
    let outcome = |step_ns| {
        let outcome = run(back_to_back(300, FULL), &card(8), slow_isa(), step_ns);
        (outcome.given, lost(&outcome.stats), outcome.stats.memory_bytes_max.get())
    };
    let punctual = outcome(10_000);
    assert!(punctual.1 > 0);
    for step_ns in [77_777, FULL_NS, 50_000_000, 1_000_000_000] {
        assert_eq!(outcome(step_ns), punctual, "{step_ns}");
    }
}

type Wired = QueuePair<MemoryHost, fault::Wire<CableEnd>>;

/// A host that sends over a line of 10 Mbit/s to a host with a small card.
struct Bench {
    sender: QueuePair<MemoryHost, CableEnd>,
    card: Wired,
    controls: [Arc<PortControl>; 2],
    now_ns: u64,
}

impl Bench {
    fn new(memory: &MemoryConfig, bus: BusConfig, moderation: ModerationConfig) -> Self {
        let config = AdapterConfig { moderation, ..AdapterConfig::default() };
        let (near, far) = cable(&CableConfig { rate_bps: Some(TEN_MBIT), ..CableConfig::default() });
        let controls = [PortControl::new(&config), PortControl::new(&config)];
        let wire = fault::wire(far, &FaultConfig { bus, ..FaultConfig::default() }, memory);
        Self {
            sender: QueuePair::new(&config, &controls[0], 0, MemoryHost::default(), near),
            card: QueuePair::new(&config, &controls[1], 0, MemoryHost::default(), wire),
            controls,
            now_ns: 0,
        }
    }

    /// Polls the pairs only at their announced deadlines.
    fn run_until_idle(&mut self) {
        loop {
            let sent = self.sender.poll(self.now_ns).unwrap();
            let received = self.card.poll(self.now_ns).unwrap();
            if sent.moved || received.moved {
                continue;
            }
            let due = [
                self.sender.next_deadline_ns(),
                self.card.next_deadline_ns(),
                self.sender.wire().next_room_ns(self.now_ns),
                self.card.wire().next_room_ns(self.now_ns),
            ];
            match due.into_iter().flatten().filter(|&at_ns| at_ns > self.now_ns).min() {
                Some(at_ns) => self.now_ns = at_ns,
                None => return,
            }
        }
    }

    fn received(&self) -> &Direction {
        &self.controls[1].queues()[0].receive
    }

    fn assert_everything_is_accounted_for(&self) {
        assert!(self.card.wire().is_idle() && self.card.held() == 0, "nothing is left behind");
        let received = self.received();
        assert_eq!(received.frames_in.get(), received.frames_out.get() + received.lost_total());
        assert_eq!(received.frames_in.get(), self.controls[0].queues()[0].transmit.frames_out.get());
    }
}

/// Returns a UDP datagram, with a request to send it in IP fragments within the Ethernet MTU.
fn datagram(payload: &[u8]) -> (TxMeta, Vec<u8>) {
    let (_, mut frame) = support::tcp_frame(0, 0, &[]);
    frame.truncate(34);
    let udp_len = (8 + payload.len()) as u16;
    frame[16..18].copy_from_slice(&(20 + udp_len).to_be_bytes());
    frame[23] = 17;
    frame[24..26].fill(0);
    let header_sum = offramp_offload::checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    frame.extend([2049_u16.to_be_bytes(), 2049_u16.to_be_bytes(), udp_len.to_be_bytes(), [0; 2]].concat());
    frame.extend_from_slice(payload);
    let segmentation = Some(Segmentation::new(SegmentationKind::UdpFragments, 1480));
    (TxMeta { checksum: Some(PartialChecksum { start: 34, offset: 6 }), segmentation }, frame)
}

#[test]
fn an_nfs_reply_of_8_kib_is_six_frames_which_fit_into_16_kib_and_not_into_8() {
    // Claim I15. The loss of one fragment is the loss of the whole datagram.
    for (kib, fits) in [(8, false), (16, true)] {
        let mut bench =
            Bench::new(&card(kib), BusConfig { frame_ns: FULL_NS, ..slow_isa() }, ModerationConfig::default());
        bench.sender.host_mut().to_send.push_back(datagram(&pattern(7, 8192 + 100)));
        bench.run_until_idle();
        assert_eq!(bench.received().frames_in.get(), 6);
        assert_eq!(bench.received().lost_total() == 0, fits, "{kib} KiB");
        bench.assert_everything_is_accounted_for();
    }
}

fn policies() -> [ModerationConfig; 5] {
    let area = AreaConfig { cost: InterruptCost::Given { ns: 50_000 }, deadline_ns: 5_000_000 };
    let policies = [
        Policy::Off,
        Policy::FixedGap { max_interrupts_per_second: 100 },
        Policy::Coalescing(Coalescing { max_usecs: 20_000, max_packets: 64 }),
        Policy::Area(area),
        Policy::QuietOrArea(area),
    ];
    policies.map(|policy| ModerationConfig { policy, ..ModerationConfig::default() })
}

#[test]
fn moderation_waits_over_a_memory_and_a_bus_and_everything_arrives_or_is_counted() {
    let rules = [OverflowPolicy::Drop, OverflowPolicy::Overrun, card(8).policy];
    for (moderation, policy) in policies().into_iter().flat_map(|m| rules.map(|policy| (m, policy))) {
        for bus in [BusConfig::default(), slow_isa(), fast_isa()] {
            let mut bench = Bench::new(&with_policy(card(8), policy), bus, moderation);
            for n in 0..4 {
                bench.sender.host_mut().to_send.push_back(tcp_super_frame(
                    0,
                    1 + 30_000 * n,
                    &pattern(0, 30_000),
                    1460,
                ));
            }
            bench.run_until_idle();
            bench.assert_everything_is_accounted_for();
            let lost = bench.received().lost_total();
            // Only the slow bus loses frames. Without a bus, the moderator knows the room in the memory, and no policy
            // waits until the memory is full. The fast bus is faster than the line.
            assert_eq!(lost > 0, bus == slow_isa(), "{moderation:?} {policy:?} {bus:?}");
        }
    }
}

#[test]
fn moderation_forgets_frames_that_were_overrun() {
    // Coalescing delays three frames in the memory, and a long frame displaces two of these frames. The memory then has
    // no room for a further frame of this length, so moderation delivers the two held frames at once.
    let policy = Policy::Coalescing(Coalescing { max_usecs: 1000, max_packets: 64 });
    let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
    let config = AdapterConfig { moderation, mtu: 9000, ..AdapterConfig::default() };
    let control = PortControl::new(&config);
    let memory = MemoryConfig {
        receive: ReceiveMemory::Bytes(4600),
        policy: OverflowPolicy::Overrun,
        ..MemoryConfig::default()
    };
    let line = ScriptedLine::bringing([(10, 1000), (10, 1000), (10, 1000), (20, 3100), (30, 100)]);
    let mut pair = QueuePair::new(&config, &control, 0, MemoryHost::default(), PacketMemory::new(line, &memory));
    let mut given_by = |now_ns| {
        pair.poll(now_ns).unwrap();
        pair.host().given.iter().map(|(_, frame)| number(frame)).collect::<Vec<_>>()
    };
    assert_eq!(given_by(10), []);
    assert_eq!(given_by(20), [2, 3]);
    assert_eq!(given_by(30), [2, 3], "the next one waits again");
    assert_eq!(given_by(30 + 1_000_000), [2, 3, 4]);
    assert_eq!(control.queues()[0].receive.lost(Loss::Overrun), 2);
}

#[test]
fn a_frame_that_gets_on_the_line_late_is_named_once_it_is_held() {
    // The frame's arrival time has passed when the sending thread at the other end puts the frame on the line.
    let late = ScriptedLine::bringing([(900, 100)]).to_come;
    let named = |line: &fault::Wire<ScriptedLine>| {
        let mut named = 0;
        line.arrivals(0, 1000, |_| named += 1);
        named
    };
    for frame_ns in [0, 50] {
        let bus = BusConfig { bytes_per_second: None, frame_ns };
        let faults = FaultConfig { bus, ..FaultConfig::default() };
        let mut line = fault::wire(ScriptedLine::default(), &faults, &card(8));
        let stats = Direction::default();
        line.advance(1000, &stats);
        let scripted = &mut line.line.line.line.line.line;
        scripted.to_come.extend(late.iter().cloned());
        assert_eq!(named(&line), 0, "it may still find no room");
        line.advance(1000, &stats);
        assert_eq!(named(&line), 1);
    }
}

#[test]
fn a_sender_with_two_buffers_waits_for_one_and_loses_nothing() {
    let mut line = ScriptedLine::default();
    line.send_ns = 1000;
    let mut memory = PacketMemory::new(line, &card(8));
    let mut put = |now_ns| {
        let room = memory.room(now_ns);
        if room > 0 {
            let loan = memory.lend(FULL, room).unwrap();
            assert_eq!(loan.bytes.len(), FULL, "one at a time");
            memory.put(FULL, 1, now_ns);
        }
        (room, memory.next_room_ns(now_ns))
    };
    assert_eq!(put(0), (2, None));
    assert_eq!(put(0), (1, Some(1000)));
    assert_eq!(put(999), (0, Some(1000)));
    assert_eq!(put(1000), (1, Some(2000)));
    assert_eq!(put(5000), (2, None), "both are sent");
    assert_eq!(memory.line.put.len(), 4);
}

#[test]
fn a_card_sends_at_the_rate_of_its_line_however_few_buffers_it_has() {
    for buffers in [1, 2, 7] {
        let config = MemoryConfig { transmit_buffers: Some(buffers), ..MemoryConfig::default() };
        let mut bench = Bench::new(&config, BusConfig::default(), ModerationConfig::default());
        bench.card.host_mut().to_send.push_back(tcp_super_frame(0, 1, &pattern(0, 29_200), 1460));
        bench.run_until_idle();
        assert_eq!(bench.controls[0].queues()[0].receive.frames_in.get(), 20);
        assert_eq!(bench.now_ns, 20 * FULL_NS, "{buffers} buffers");
    }
}

#[test]
fn wrong_sizes_are_refused_with_their_range() {
    let refused = |config: MemoryConfig| config.check().unwrap_err().to_string();
    let base = MemoryConfig::default();
    let receive = |receive| refused(MemoryConfig { receive, ..base });
    assert_eq!(receive(ReceiveMemory::Bytes(59)), "receive memory of 59 bytes is out of range; use 60 to 1073741824");
    assert_eq!(
        receive(ReceiveMemory::Pages { pages: 1, page_len: 256 }),
        "receive memory of 1 pages is out of range; use 2 to 1048576; one page always stays free"
    );
    assert_eq!(
        receive(ReceiveMemory::Pages { pages: 20, page_len: 63 }),
        "pages of 63 bytes are out of range; use 64 to 65536"
    );
    assert_eq!(
        refused(MemoryConfig { receive_ring_entries: Some(0), ..base }),
        "receive ring of 0 entries is out of range; use 1 to 1048576"
    );
    assert_eq!(
        refused(MemoryConfig { transmit_buffers: Some(0), ..base }),
        "0 transmit buffers are out of range; use 1 to 65536"
    );
    assert_eq!(
        refused(with_policy(base, OverflowPolicy::StopAndRecover { recover_ns: 0 })),
        "recovering in 0 ns is out of range; use 1 to 10000000000"
    );
    assert_eq!(
        MemoryConfig::dp8390(3072).unwrap_err().to_string(),
        "card of 3072 bytes is out of range; use 3584 to 65536: 12 pages of 256 bytes are for transmitting"
    );
    assert_eq!(base.check(), Ok(()));
    assert!(base.is_none() && !card(8).is_none());
}

/// A second, simple implementation of the memory, with which the tests compare [`Memory`]. It processes every event
/// separately, with plain vectors.
mod oracle {
    use super::*;

    /// Indices and times of the delivered frames, number of dropped frames, and number of displaced frames.
    pub type Result = (Vec<(usize, u64)>, u64, u64);

    struct Model<'a> {
        config: &'a MemoryConfig,
        /// Index and length of each held frame, with the oldest first.
        held: Vec<(usize, usize)>,
        reading: Option<u64>,
        stopped_until: u64,
        out: Result,
    }

    fn pages(config: &MemoryConfig, len: usize) -> usize {
        let len = len.max(60);
        match config.receive {
            ReceiveMemory::Unlimited => 0,
            ReceiveMemory::Bytes(_) => len,
            ReceiveMemory::Pages { page_len, .. } => (len + 8).div_ceil(page_len),
        }
    }

    impl Model<'_> {
        fn fits(&self, held: &[(usize, usize)]) -> bool {
            let used: usize = held.iter().map(|(_, len)| pages(self.config, *len)).sum();
            let room = match self.config.receive {
                ReceiveMemory::Unlimited => true,
                ReceiveMemory::Bytes(bytes) => used <= bytes,
                ReceiveMemory::Pages { pages, .. } => used < pages,
            };
            room && self.config.receive_ring_entries.is_none_or(|entries| held.len() <= entries)
        }

        fn arrive(&mut self, at: u64, frame: (usize, usize)) {
            let mut with: Vec<_> = self.held.iter().copied().chain([frame]).collect();
            if at >= self.stopped_until && self.fits(&with) {
                self.held = with;
                return;
            }
            if let OverflowPolicy::Overrun = self.config.policy {
                let spared = usize::from(self.reading.is_some());
                let mut overrun = 0;
                while !self.fits(&with) && with.len() > spared + 1 {
                    with.remove(spared);
                    overrun += 1;
                }
                if self.fits(&with) {
                    self.held = with;
                    self.out.2 += overrun;
                    return;
                }
            }
            if let OverflowPolicy::StopAndRecover { recover_ns } = self.config.policy
                && at >= self.stopped_until
            {
                self.stopped_until = at + recover_ns;
            }
            self.out.1 += 1;
        }
    }

    fn model(config: &MemoryConfig) -> Model<'_> {
        Model { config, held: Vec::new(), reading: None, stopped_until: 0, out: (Vec::new(), 0, 0) }
    }

    /// Reads frames out over a bus, as soon as the bus is free.
    pub fn over_bus(arrivals: &[(u64, usize)], config: &MemoryConfig, bus: BusConfig) -> Result {
        let mut model = model(config);
        let mut times: Vec<u64> = arrivals.iter().map(|(at, _)| *at).collect();
        while let Some(now) = times.iter().copied().chain(model.reading).min() {
            times.retain(|&at| at > now);
            for (n, &(at, len)) in arrivals.iter().enumerate() {
                if at == now {
                    model.arrive(at, (n, len));
                }
            }
            if model.reading == Some(now) {
                model.reading = None;
                let (n, _) = model.held.remove(0);
                model.out.0.push((n, now));
            }
            if model.reading.is_none() && !model.held.is_empty() {
                model.reading = Some(now + bus.copy_ns(model.held[0].1));
            }
            // A copy that takes no time also ends at this time, after all arrivals at this time.
        }
        model.out
    }

    /// Reads frames out at each poll in `visits`: up to a given number of frames, without taking time.
    pub fn by_visits(arrivals: &[(u64, usize)], config: &MemoryConfig, visits: &[(u64, usize)]) -> Result {
        let mut model = model(config);
        let mut next = 0;
        for &(now, most) in visits {
            while next < arrivals.len() && arrivals[next].0 <= now {
                model.arrive(arrivals[next].0, (next, arrivals[next].1));
                next += 1;
            }
            for (n, _) in model.held.drain(..most.min(model.held.len())) {
                model.out.0.push((n, now));
            }
        }
        model.out
    }
}

fn any_memory() -> impl Strategy<Value = MemoryConfig> {
    let receive = prop_oneof![
        (60..20_000_usize).prop_map(ReceiveMemory::Bytes),
        (2..80_usize, 64..2000_usize).prop_map(|(pages, page_len)| ReceiveMemory::Pages { pages, page_len }),
        Just(ReceiveMemory::Unlimited),
    ];
    let policy = prop_oneof![
        Just(OverflowPolicy::Drop),
        Just(OverflowPolicy::Overrun),
        (1..20_000_u64).prop_map(|recover_ns| OverflowPolicy::StopAndRecover { recover_ns }),
    ];
    (receive, prop::option::of(1..20_usize), prop::option::of(1..4_usize), policy).prop_map(
        |(receive, receive_ring_entries, transmit_buffers, policy)| {
            let config = MemoryConfig { receive, receive_ring_entries, transmit_buffers, policy };
            config.check().unwrap();
            config
        },
    )
}

fn any_arrivals() -> impl Strategy<Value = Vec<(u64, usize)>> {
    // Some frames arrive at the same time.
    let gap = prop_oneof![Just(0_u64), 1..50_u64, 1..5000_u64];
    prop::collection::vec((gap, 18..3000_usize), 0..120).prop_map(|gaps| {
        let mut at_ns = 0;
        gaps.into_iter()
            .map(|(gap, len)| {
                at_ns += gap;
                (at_ns, len)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_memory_behind_a_bus_does_what_the_oracle_does(
        arrivals in any_arrivals(),
        memory in any_memory(),
        frame_ns in 1..4000_u64,
        bytes_per_second in prop::option::of(1_000_000..10_000_000_000_u64),
        steps in prop::collection::vec(1..30_000_u64, 1..10),
    ) {
        let bus = BusConfig { bytes_per_second, frame_ns };
        let expected = oracle::over_bus(&arrivals, &memory, bus);
        let faults = FaultConfig { bus, ..FaultConfig::default() };
        let mut line = fault::wire(ScriptedLine::bringing(arrivals.iter().copied()), &faults, &memory);
        let (mut given, stats, mut now_ns) = (Vec::new(), Direction::default(), 0);
        for step_ns in steps.iter().cycle() {
            line.advance(now_ns, &stats);
            while let Some(at_ns) = line.next_arrival_ns().filter(|&at_ns| at_ns <= now_ns) {
                given.push((number(line.take(now_ns).unwrap()), at_ns));
            }
            if line.is_idle() {
                break;
            }
            now_ns += step_ns;
        }
        line.advance(now_ns, &stats);
        prop_assert_eq!((given, stats.lost(Loss::Drop), stats.lost(Loss::Overrun)), expected);
    }

    #[test]
    fn a_memory_that_a_host_empties_now_and_then_does_what_the_oracle_does(
        arrivals in any_arrivals(),
        memory in any_memory(),
        visits in prop::collection::vec((0..20_000_u64, 0..12_usize), 1..40),
    ) {
        let mut at_ns = 0;
        let visits: Vec<_> = visits.into_iter().map(|(gap, most)| { at_ns += gap; (at_ns, most) }).collect();
        let expected = oracle::by_visits(&arrivals, &memory, &visits);
        let mut line = PacketMemory::new(ScriptedLine::bringing(arrivals.iter().copied()), &memory);
        let (mut given, stats) = (Vec::new(), Direction::default());
        for &(now_ns, most) in &visits {
            line.advance(now_ns, &stats);
            let mut named = Vec::new();
            line.arrivals(0, now_ns, |arrival| named.push(arrival.len));
            let taken: Vec<_> = std::iter::from_fn(|| line.take(now_ns).map(|f| (number(f), f.len()))).take(most).collect();
            prop_assert!(named.iter().zip(&taken).all(|(named, taken)| *named == taken.1));
            prop_assert_eq!(taken.len(), most.min(named.len()));
            given.extend(taken.into_iter().map(|(n, _)| (n, now_ns)));
        }
        prop_assert_eq!((given, stats.lost(Loss::Drop), stats.lost(Loss::Overrun)), expected);
    }

    #[test]
    fn every_frame_is_given_in_order_or_counted_under_any_moderation(
        arrivals in any_arrivals(),
        memory in any_memory(),
        frame_ns in prop::option::of(1..4000_u64),
        moderation in prop::sample::select(policies().to_vec()),
        late_ns in prop::collection::vec(0..3000_u64, 1..8),
    ) {
        let bus = BusConfig { bytes_per_second: None, frame_ns: frame_ns.unwrap_or(0) };
        let config = AdapterConfig { moderation, mtu: 9000, ..AdapterConfig::default() };
        let control = PortControl::new(&config);
        let frames = arrivals.len() as u64;
        let faults = FaultConfig { bus, ..FaultConfig::default() };
        let line = fault::wire(ScriptedLine::bringing(arrivals), &faults, &memory);
        let mut pair = QueuePair::new(&config, &control, 0, MemoryHost::default(), line);
        // The pair is polled only at its deadlines, each time a bit late, and must become idle.
        let mut now_ns = 0;
        for late_ns in late_ns.iter().cycle() {
            while pair.poll(now_ns).unwrap().moved {}
            match pair.next_deadline_ns() {
                Some(at_ns) => now_ns = now_ns.max(at_ns) + late_ns,
                None => break,
            }
        }
        prop_assert!(pair.wire().is_idle());
        let received = &control.queues()[0].receive;
        let given: Vec<usize> = pair.host().given.iter().map(|(_, frame)| number(frame)).collect();
        prop_assert!(given.is_sorted_by(|a, b| a < b));
        prop_assert_eq!(received.frames_in.get(), frames);
        prop_assert_eq!(given.len() as u64 + received.lost_total(), frames);
    }

    #[test]
    fn any_memory_that_is_accepted_takes_any_times_and_lengths(
        bytes in prop_oneof![Just(60_usize), Just(1 << 30)],
        page_len in prop_oneof![Just(64_usize), Just(65_536)],
        pages in prop_oneof![Just(2_usize), Just(1 << 20)],
        which in 0..3,
        ring in prop::option::of(prop_oneof![Just(1_usize), Just(1 << 20)]),
        overrun in any::<bool>(),
        trace in prop::collection::vec((any::<u64>(), 0..70_000_usize), 0..60),
    ) {
        let receive = match which {
            0 => ReceiveMemory::Unlimited,
            1 => ReceiveMemory::Bytes(bytes),
            _ => ReceiveMemory::Pages { pages, page_len },
        };
        let policy =
            if overrun { OverflowPolicy::Overrun } else { OverflowPolicy::StopAndRecover { recover_ns: 10_000_000_000 } };
        let config = MemoryConfig { receive, receive_ring_entries: ring, transmit_buffers: Some(1), policy };
        prop_assert_eq!(config.check(), Ok(()));
        let faults = FaultConfig { bus: BusConfig { bytes_per_second: Some(1000), frame_ns: 1 }, ..FaultConfig::default() };
        let mut line = fault::wire(ScriptedLine::bringing(trace), &faults, &config);
        let stats = Direction::default();
        for now_ns in [0, 1, u64::MAX / 2, u64::MAX] {
            line.advance(now_ns, &stats);
            line.arrivals(0, u64::MAX, |_| {});
            while line.take(now_ns).is_some() {}
            line.next_arrival_ns();
            line.next_room_ns(now_ns);
        }
    }
}
