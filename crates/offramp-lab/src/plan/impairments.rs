//! Experiments with impairments of the receive side: frames in the wrong order, cards with little memory on a slow bus,
//! windows and calls too large for them, and wrong verdicts on checksums.
//!
//! The cards are those of the 8390 family, on a link of 10 Mbit/s: host B's adapter has such a card's memory, and its
//! frames cross a bus with the speed of such a machine's.

use super::{LATENCY_P99, Plan, Settings, THROUGHPUT, VariantPlan, at_a_gigabit, by, rig, traffic};
use crate::metric::RPC_HEADER_BYTES;
use offramp_adapter::config::MTU_DEFAULT;
use offramp_adapter::moderation::{Coalescing, Policy};
use offramp_impair::fault::{BusConfig, FaultConfig, VerdictConfig, WrongVerdict};
use offramp_impair::memory::{MemoryConfig, OverflowPolicy, PAGE_LEN_DP8390, ReceiveMemory};
use offramp_offload::caps::Offloads;
use offramp_testbed::host::HostSettings;
use offramp_testbed::rig::{Between, Card, RigConfig, Threads};
use offramp_testbed::traffic::{BulkParams, Params, RpcParams, UdpParams, Workload};

/// Names of the experiments, as `--only` takes them.
pub(crate) const ORDER: &str = "order";
pub(crate) const MEMORY_TCP: &str = "packet-memory-tcp";
pub(crate) const MEMORY_UDP: &str = "packet-memory-udp";
pub(crate) const WINDOW: &str = "rx-window";
pub(crate) const RPC: &str = "rpc-size";
pub(crate) const VERDICT: &str = "checksum-verdict";
/// All of them.
pub(crate) const ALL: [&str; 6] = [ORDER, MEMORY_TCP, MEMORY_UDP, WINDOW, RPC, VERDICT];

/// The metric of stalled connections: nothing has a ratio to a throughput of 0.
const STALL: &str = "stall_s";
/// Their compared metrics. Processor time is not among them: a program emulates the card, and a real card has no such
/// cost.
pub(super) const COMPARED: [&str; 2] = [THROUGHPUT, LATENCY_P99];

/// Maximum wait of a frame for its group: claim R1's driver handed frames over once per millisecond.
const GROUP_USECS: u32 = 1000;
/// Frames of the largest group.
const GROUP_FRAMES_MAX: u32 = 64;
/// Congestion control of a TCP of that time.
const STRICT_CONGESTION: &str = "reno";
/// Connections of claim R2.
const CONNECTIONS: u32 = 4;

/// A TCP with the plain rule of three duplicate acknowledgements for a loss, and no way to learn of its error: no
/// selective acknowledgements, no time-stamps to undo by, no loss detection by time, no probes.
const STRICT: &[(&str, &str)] = &[
    ("net.ipv4.tcp_sack", "0"),
    ("net.ipv4.tcp_dsack", "0"),
    ("net.ipv4.tcp_timestamps", "0"),
    ("net.ipv4.tcp_recovery", "0"),
    ("net.ipv4.tcp_reordering", "3"),
    ("net.ipv4.tcp_max_reordering", "3"),
    ("net.ipv4.tcp_early_retrans", "0"),
    ("net.ipv4.tcp_frto", "0"),
];

/// Returns the host with that TCP, otherwise unchanged.
fn strict(host: HostSettings) -> HostSettings {
    HostSettings { sysctls: STRICT, ..host }
}

/// Rate of the cards' link.
const CARD_BPS: u64 = 10_000_000;
/// A hop slower than the slowest card's drain rate: half the rate of the cards' link.
const SLOW_HOP_BPS: u64 = 5_000_000;
/// Bus clock of most ISA machines; and the fast one of claim I7's machine.
const ISA_HZ: u64 = 8_000_000;
const ISA_FAST_HZ: u64 = 13_400_000;
/// Clocks per byte from the memory of an 8-bit card: six, and a third more while the card's own DMA is active.
const CLOCKS_PER_BYTE_8_BIT: u64 = 8;
/// Clocks per byte from the memory of a 16-bit card: three, and a third more.
const CLOCKS_PER_BYTE_16_BIT: u64 = 4;
/// Time of the host's interrupt handler for each frame.
const HANDLER_NS: u64 = 60_000;
/// Memory of an 8-bit card and of a 16-bit card; two transmit buffers take 3 KiB of each.
const CARD_8_BIT_BYTES: usize = 8 * 1024;
const CARD_16_BIT_BYTES: usize = 16 * 1024;
/// A large memory for frames of such a card.
const LARGE_RECEIVE_BYTES: usize = 64 * 1024;
/// Shortest window of a sample on such a link: 400 frames.
const CARD_SECONDS_MIN: f64 = 0.5;

/// The receive window of the hosts of claim I11, and that of claim I13's remedy.
const WINDOW_LARGE_BYTES: u32 = 32 * 1024;
const WINDOW_SMALL_BYTES: u32 = 4 * 1024;

/// A burst of datagrams, at the maximum length of one system call.
const BURST_DATAGRAMS: u32 = 44;
const BURST_DATAGRAM_BYTES: u32 = 1472;
/// Mean rate of the bursts: below the slowest card's drain rate.
const BURSTS_BPS: u64 = 5_000_000;

/// Calls under way: those of the block input/output daemons of an NFS client during a file read.
const RPC_OUTSTANDING: u32 = 4;
/// NFS waits 700 ms before a retransmission; a sample would contain at most one such wait.
const RPC_TIMER_USECS: u64 = 100_000;
const NFS_TIMER_USECS: u64 = 700_000;

/// Frames per wrong verdict: some tens of milliseconds of a connection at full speed. The control connection has too
/// few frames to get more than a rare one.
const WRONG_ONE_IN: u32 = 20_000;
/// Seed of a payload with a different pattern in each segment, so that only some are misjudged.
const PATTERN_SEED: u64 = 8;

/// The bus of a card.
#[derive(Clone, Copy)]
enum Bus {
    /// 8 bit at 8 MHz: slower than the link.
    Slow,
    /// 8 bit at 13.4 MHz.
    Fast,
    /// 16 bit at 8 MHz.
    Wide,
}

impl Bus {
    fn config(self) -> BusConfig {
        let (clock_hz, clocks_per_byte) = match self {
            Self::Slow => (ISA_HZ, CLOCKS_PER_BYTE_8_BIT),
            Self::Fast => (ISA_FAST_HZ, CLOCKS_PER_BYTE_8_BIT),
            Self::Wide => (ISA_HZ, CLOCKS_PER_BYTE_16_BIT),
        };
        BusConfig { bytes_per_second: Some(clock_hz / clocks_per_byte), frame_ns: HANDLER_NS }
    }
}

fn dp8390(card_bytes: usize) -> MemoryConfig {
    MemoryConfig::dp8390(card_bytes).expect("a card that was made")
}

/// A card with the logic of the 8-bit one and 64 KiB for received frames.
fn large_memory() -> MemoryConfig {
    let pages = LARGE_RECEIVE_BYTES / PAGE_LEN_DP8390;
    MemoryConfig { receive: ReceiveMemory::Pages { pages, page_len: PAGE_LEN_DP8390 }, ..dp8390(CARD_8_BIT_BYTES) }
}

/// A rig with a card in host B, on the cards' link. The card offers no offloads and interrupts for every frame. The
/// adapter of host A makes the checksums; no experiment with a card depends on that.
fn card_rig(settings: &Settings, memory: MemoryConfig, bus: Bus) -> RigConfig {
    RigConfig {
        mtu: MTU_DEFAULT,
        rate_bps: Some(CARD_BPS),
        moderation: by(Policy::Off),
        queues: 1,
        // One thread, so one bus carries both directions.
        between: Between::Adapters(Threads::Shared),
        card: Card { memory, faults: FaultConfig { bus: bus.config(), receive_first: true, ..FaultConfig::default() } },
        ..rig(settings, Offloads::TX_CHECKSUM)
    }
}

/// Returns the variant with hosts that lack selective acknowledgements.
fn as_of_then(variant: VariantPlan) -> VariantPlan {
    let rig = RigConfig { host: strict(variant.rig.host), ..variant.rig };
    let traffic = Params { congestion: STRICT_CONGESTION.to_owned(), ..variant.traffic };
    VariantPlan { name: variant.name, rig, traffic }
}

fn for_cards(settings: &Settings) -> Settings {
    Settings { seconds: settings.seconds.max(CARD_SECONDS_MIN), streams: 1, queues: 1, ..settings.clone() }
}

/// Returns bulk data with that receive window; at the end of a sample, data in flight is cut off.
fn windowed(settings: &Settings, receive_window_bytes: u32) -> Params {
    let bulk = BulkParams { cut_off: true, ..BulkParams::default() };
    Params { receive_window_bytes, ..traffic(settings, Workload::Bulk(bulk)) }
}

const OF_STRICT: &str =
    "a TCP as of then, by sysctl (no SACK, DSACK, time-stamps, RACK or probes; reordering of 3 at most), with reno";
const OF_THE_CARDS: &str = "link of 10 Mbit/s; host B's card is of the 8390 family: pages of 256 B, stopped for 10 \
     ms when they run over; an 8-bit bus at 8 MHz moves 1.0 MB/s both ways, at 13.4 MHz 1.7 MB/s, a 16-bit bus at 8 \
     MHz 2.0 MB/s, and each frame \
     takes 60 µs besides; what has come is read before anything is sent; no offload, an interrupt for each frame";

pub(super) fn order(settings: &Settings) -> Plan {
    let settings = &at_a_gigabit(settings);
    let coalesced = |frames| by(Policy::Coalescing(Coalescing { max_usecs: GROUP_USECS, max_packets: frames }));
    let variant = |name, group: Option<u32>, host: HostSettings, streams| {
        let faults = FaultConfig { reverse_frames: group.map(|frames| frames as usize), ..FaultConfig::default() };
        let moderation = coalesced(group.unwrap_or(GROUP_FRAMES_MAX));
        let rig = RigConfig {
            queues: 1,
            moderation,
            host,
            card: Card { memory: MemoryConfig::default(), faults },
            ..rig(settings, Offloads::all() - Offloads::RSC)
        };
        let is_strict = !host.sysctls.is_empty();
        let congestion = if is_strict { STRICT_CONGESTION.to_owned() } else { settings.congestion.clone() };
        let bulk = BulkParams { cut_off: true, ..BulkParams::default() };
        let traffic = Params { streams, congestion, ..traffic(settings, Workload::Bulk(bulk)) };
        VariantPlan { name, rig, traffic }
    };
    let plain = settings.host;
    let strict = strict(plain);
    Plan {
        name: ORDER,
        question: "Frames handed over in order, or the last frame of each group first: what does it cost TCP?",
        fixed: format!(
            "MTU 1500, link of 1 Gbit/s, no loss; an interrupt for each group of the size in the variant's name, or \
             after {GROUP_USECS} µs; no receive coalescing; “strict”: {OF_STRICT}"
        ),
        metric: THROUGHPUT,
        variants: vec![
            variant("strict, in order", None, strict, 1),
            variant("strict, 64", Some(64), strict, 1),
            variant("strict, 16", Some(16), strict, 1),
            variant("strict, 4", Some(4), strict, 1),
            variant("strict, 2", Some(2), strict, 1),
            variant("strict, 64, four", Some(64), strict, CONNECTIONS),
            variant("in order", None, plain, 1),
            variant("reversed 64", Some(64), plain, 1),
            variant("reversed 16", Some(16), plain, 1),
            variant("reversed 4", Some(4), plain, 1),
            variant("reversed 2", Some(2), plain, 1),
        ],
    }
}

pub(super) fn memory_under_tcp(settings: &Settings) -> Plan {
    let settings = &for_cards(settings);
    let small = dp8390(CARD_8_BIT_BYTES);
    let overrun = MemoryConfig { policy: OverflowPolicy::Overrun, ..small };
    let drop = MemoryConfig { policy: OverflowPolicy::Drop, ..small };
    let variant = |name, memory, bus| {
        let traffic = windowed(settings, WINDOW_LARGE_BYTES);
        VariantPlan { name, rig: card_rig(settings, memory, bus), traffic }
    };
    let strict = |name, memory, bus| as_of_then(variant(name, memory, bus));
    Plan {
        name: MEMORY_TCP,
        question: "TCP into a host that drains slower than the link: what is memory on the card worth, and what a \
             faster bus?",
        fixed: format!("{OF_THE_CARDS}; receive window of 32 kB; “strict”: 5 kB, and {OF_STRICT}"),
        metric: THROUGHPUT,
        variants: vec![
            variant("5 kB, slow bus", small, Bus::Slow),
            variant("5 kB, fast bus", small, Bus::Fast),
            variant("13 kB, slow bus", dp8390(CARD_16_BIT_BYTES), Bus::Slow),
            variant("64 kB, slow bus", large_memory(), Bus::Slow),
            variant("5 kB, drops", drop, Bus::Slow),
            variant("5 kB, overruns", overrun, Bus::Slow),
            strict("strict, slow bus", small, Bus::Slow),
            strict("strict, fast bus", small, Bus::Fast),
        ],
    }
}

pub(super) fn memory_under_bursts(settings: &Settings) -> Plan {
    let settings = &for_cards(settings);
    let burst = UdpParams {
        datagram_bytes: BURST_DATAGRAM_BYTES,
        gso_segments: BURST_DATAGRAMS,
        gro: false,
        rate_bps: BURSTS_BPS,
    };
    let flood = UdpParams { gso_segments: 1, rate_bps: CARD_BPS, ..burst.clone() };
    let variant = |name, memory, bus, udp: &UdpParams| {
        let traffic = traffic(settings, Workload::Udp(udp.clone()));
        VariantPlan { name, rig: card_rig(settings, memory, bus), traffic }
    };
    let small = dp8390(CARD_8_BIT_BYTES);
    Plan {
        name: MEMORY_UDP,
        question: "Datagrams that nobody holds back, into a host that drains slower than the link: how long a burst \
             is taken?",
        fixed: format!(
            "{OF_THE_CARDS}; bursts of {BURST_DATAGRAMS} datagrams of {BURST_DATAGRAM_BYTES} B at link rate, 5 \
             Mbit/s on average; “flood”: without a pause"
        ),
        metric: THROUGHPUT,
        variants: vec![
            variant("5 kB, slow bus", small, Bus::Slow, &burst),
            variant("64 kB, slow bus", large_memory(), Bus::Slow, &burst),
            variant("13 kB, slow bus", dp8390(CARD_16_BIT_BYTES), Bus::Slow, &burst),
            variant("5 kB, fast bus", small, Bus::Fast, &burst),
            variant("5 kB, slow, flood", small, Bus::Slow, &flood),
            variant("5 kB, fast, flood", small, Bus::Fast, &flood),
        ],
    }
}

pub(super) fn receive_window(settings: &Settings) -> Plan {
    let settings = &for_cards(settings);
    let small = dp8390(CARD_8_BIT_BYTES);
    let variant = |name, bus, window, rate_bps| {
        let rig = RigConfig { rate_bps: Some(rate_bps), ..card_rig(settings, small, bus) };
        VariantPlan { name, rig, traffic: windowed(settings, window) }
    };
    let strict = |name, bus, window, rate_bps| as_of_then(variant(name, bus, window, rate_bps));
    Plan {
        name: WINDOW,
        question: "A small card on a slow bus: what is a receive window worth that its memory can hold?",
        fixed: format!(
            "{OF_THE_CARDS}; 5 kB for received frames; “slow hop”: the link has 5 Mbit/s, as behind a router"
        ),
        metric: THROUGHPUT,
        variants: vec![
            strict("32 kB", Bus::Slow, WINDOW_LARGE_BYTES, CARD_BPS),
            strict("4 kB", Bus::Slow, WINDOW_SMALL_BYTES, CARD_BPS),
            strict("32 kB, fast bus", Bus::Fast, WINDOW_LARGE_BYTES, CARD_BPS),
            strict("4 kB, fast bus", Bus::Fast, WINDOW_SMALL_BYTES, CARD_BPS),
            strict("32 kB, slow hop", Bus::Slow, WINDOW_LARGE_BYTES, SLOW_HOP_BPS),
            variant("32 kB, today", Bus::Slow, WINDOW_LARGE_BYTES, CARD_BPS),
            variant("4 kB, today", Bus::Slow, WINDOW_SMALL_BYTES, CARD_BPS),
        ],
    }
}

pub(super) fn rpc_size(settings: &Settings) -> Plan {
    let settings = &for_cards(settings);
    let (narrow, wide) = (dp8390(CARD_8_BIT_BYTES), dp8390(CARD_16_BIT_BYTES));
    let variant = |name, memory, bus, kilobytes: u32| {
        let rpc = RpcParams {
            response_bytes: kilobytes * 1024 + RPC_HEADER_BYTES,
            outstanding: RPC_OUTSTANDING,
            timer_usecs: RPC_TIMER_USECS,
            ..RpcParams::default()
        };
        // The client has the card.
        let rig = RigConfig { client: 1, ..card_rig(settings, memory, bus) };
        VariantPlan { name, rig, traffic: traffic(settings, Workload::Rpc(rpc)) }
    };
    Plan {
        name: RPC,
        question: "NFS reads of 1 to 8 kB, each one datagram of several frames: which does the client's card take?",
        fixed: format!(
            "{OF_THE_CARDS}; 8-bit cards have 8 kB of memory, 16-bit cards 16 kB; a file is read in order, \
             {RPC_OUTSTANDING} calls ahead; a call is made again after {} ms, for NFS' {} ms, as the samples are short",
            RPC_TIMER_USECS / 1000,
            NFS_TIMER_USECS / 1000
        ),
        metric: THROUGHPUT,
        variants: vec![
            variant("8-bit, 2 kB", narrow, Bus::Slow, 2),
            variant("8-bit, 4 kB", narrow, Bus::Slow, 4),
            variant("8-bit, 8 kB", narrow, Bus::Slow, 8),
            variant("8-bit, 1 kB", narrow, Bus::Slow, 1),
            variant("16-bit, 1 kB", wide, Bus::Wide, 1),
            variant("16-bit, 4 kB", wide, Bus::Wide, 4),
            variant("16-bit, 8 kB", wide, Bus::Wide, 8),
            variant("8-bit fast, 4 kB", narrow, Bus::Fast, 4),
            variant("8-bit fast, 8 kB", narrow, Bus::Fast, 8),
        ],
    }
}

pub(super) fn checksum_verdict(settings: &Settings) -> Plan {
    let settings = &Settings { queues: 1, ..settings.clone() };
    let verdict = VerdictConfig { wrong: WrongVerdict::GoodIsBad, one_in: WRONG_ONE_IN };
    let faulty = Card {
        memory: MemoryConfig::default(),
        faults: FaultConfig { verdict: Some(verdict), ..FaultConfig::default() },
    };
    let captured = HostSettings { captured: true, ..settings.host };
    let bulk = BulkParams { cut_off: true, pattern_seed: Some(PATTERN_SEED), ..BulkParams::default() };
    let all = Offloads::all() - Offloads::RSC;
    let variant = |name, card, offloads, host| {
        let rig = RigConfig { host, card, ..rig(settings, offloads) };
        VariantPlan { name, rig, traffic: traffic(settings, Workload::Bulk(bulk.clone())) }
    };
    Plan {
        name: VERDICT,
        question: "A checksum unit that takes some good segments for bad ones, each time they come: what becomes of \
             a connection?",
        fixed: format!(
            "MTU {}, {}; one segment in {WRONG_ONE_IN} is judged wrongly, by its bytes, so that sending it again \
             does not help; no receive coalescing; payload without repetition; a connection that stands still is cut \
             off at the end",
            settings.mtu,
            super::moderated_link(settings)
        ),
        metric: STALL,
        variants: vec![
            variant("correct verdicts", Card::default(), all, settings.host),
            variant("wrong verdicts", faulty, all, settings.host),
            variant("wrong, captured", faulty, all, captured),
            variant("wrong, Rx sum off", faulty, all - Offloads::RX_CHECKSUM, settings.host),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str) -> Plan {
        super::super::plans(&Settings::default()).into_iter().find(|plan| plan.name == name).expect("an experiment")
    }

    fn variant(name: &str, variant: &str) -> VariantPlan {
        plan(name).variants.into_iter().find(|found| found.name == variant).expect("a variant")
    }

    #[test]
    fn every_card_and_fault_can_be_made() {
        for name in ALL {
            for variant in plan(name).variants {
                assert_eq!(variant.rig.card.memory.check(), Ok(()), "{name}: {}", variant.name);
                assert_eq!(variant.rig.card.faults.check(), Ok(()), "{name}: {}", variant.name);
                assert_eq!(variant.traffic.check(), Ok(()), "{name}: {}", variant.name);
            }
        }
    }

    #[test]
    fn the_slow_bus_alone_is_slower_than_the_line() {
        // A full frame, without and with preamble, FCS and gap (IEEE 802.3).
        let (frame_len, wire_len) = (1514, 1538);
        let wire_ns = wire_len * 8 * 1_000_000_000 / CARD_BPS;
        assert!(Bus::Slow.config().copy_ns(frame_len) > wire_ns);
        for bus in [Bus::Fast, Bus::Wide] {
            assert!(bus.config().copy_ns(frame_len) < wire_ns);
        }
        assert!(BURSTS_BPS < CARD_BPS * wire_ns / Bus::Slow.config().copy_ns(frame_len));
        assert!(SLOW_HOP_BPS < CARD_BPS * wire_ns / Bus::Slow.config().copy_ns(frame_len));
    }

    #[test]
    fn the_cards_hold_as_many_full_frames_as_published() {
        assert_eq!(dp8390(CARD_8_BIT_BYTES).frames(1514), 3, "claim I5");
        assert_eq!(dp8390(CARD_16_BIT_BYTES).frames(1514), 8);
        assert!(large_memory().frames(1514) > 40);
    }

    #[test]
    fn a_full_group_comes_sooner_than_its_time() {
        let frame_ns = 1538 * 8;
        assert!(u64::from(GROUP_FRAMES_MAX) * frame_ns < u64::from(GROUP_USECS) * 1000);
        assert_eq!(variant(ORDER, "strict, 16").rig.card.faults.reverse_frames, Some(16));
        assert_eq!(variant(ORDER, "strict, in order").rig.card, Card::default());
        assert!(plan(ORDER).variants.iter().all(|variant| !variant.rig.offloads.intersects(Offloads::RSC)));
    }

    #[test]
    fn what_may_stall_is_cut_off_and_the_small_window_fits_the_small_card() {
        for name in [ORDER, MEMORY_TCP, WINDOW, VERDICT] {
            assert!(plan(name).variants.iter().all(|variant| variant.traffic.is_cut_off()), "{name}");
        }
        let small = variant(WINDOW, "4 kB");
        let frames = (small.traffic.receive_window_bytes as usize).div_ceil(1460);
        assert!(small.rig.card.memory.frames(1514) >= frames);
        assert!(variant(WINDOW, "32 kB").traffic.receive_window_bytes as usize > 3 * 1460);
    }

    #[test]
    fn the_client_that_calls_has_the_card() {
        assert!(plan(RPC).variants.iter().all(|variant| variant.rig.client == 1));
        let Workload::Rpc(rpc) = variant(RPC, "8-bit, 8 kB").traffic.workload else { panic!("calls") };
        // IP of 1500 carries 1480 bytes of a datagram in each frame but the last (claim I15).
        assert_eq!((rpc.response_bytes + 8).div_ceil(1480), 6);
    }
}
