//! The buses of adapters that are master of theirs.

use super::{Curve, Mechanism, Panel, published};
use crate::bus::pci::shared::{Master, SHARED_33_32, SharedBus, WRITER};
use crate::bus::pci::{Command, PCI_33_32, Pci};

const MEGABYTE: f64 = 1e6;
/// Lengths of a burst, bytes.
const BURSTS: [u64; 14] = [8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1516, 4096];
/// A VIA VT8233A, which ends bursts after 24 data phases, and others, which do not, in MB/s (tecCHANNEL, "VIAs Crux mit
/// dem PCI-Bus"; the second figure holds a limit of the disks, too).
const BRIDGES: [[f64; 2]; 2] = [[96.0, 72.3], [4096.0, 102.5]];
/// The least that the specification allows a read: an address phase, a turn-around, one clock of `DEVSEL#`, an idle one.
const LEAST_OVERHEAD: u64 = 4;
/// Wait states of the second of two cards.
const WAIT_STATES: [u64; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
/// Clocks from a retry to the next try.
const RETRY_CYCLES: [u64; 12] = [0, 4, 8, 16, 24, 40, 60, 80, 100, 120, 150, 200];
/// Clocks that a slow bridge needs to fetch, as for M16.
const SLOW_FETCH_CYCLES: u64 = 120;
/// Clocks for which masters are run against each other.
const CYCLES: u64 = 1_000_000;
/// Bytes that a card waits for before it comes back.
const REFILL_LEN: u64 = 256;

/// The overhead of a transaction against its length.
pub(super) fn bursts() -> Mechanism {
    let curve = |label: &str, overhead_cycles| {
        let pci = Pci { overhead_cycles, burst_len_max: u64::MAX, ..PCI_33_32 };
        let point = |len: u64| [len as f64, pci.bytes_per_second(len) as f64 / MEGABYTE];
        Curve { name: label.to_owned(), is_published: false, points: BURSTS.map(point).to_vec() }
    };
    Mechanism {
        name: "pci-bursts",
        title: "The length of PCI bursts",
        claims: &["M12", "M13", "M14", "M15"],
        says: "A transaction has some clocks in which no data move: arbitration, the address, the wait for the first \
               word. Short bursts pay them for every few words. From about 256 bytes on most of the bus carries data, \
               and longer bursts bring little: a whole frame in one transaction only a quarter more.",
        command: "offramp model report --charts .",
        panels: vec![Panel {
            title: "PCI at 33 MHz with 32 bits",
            x_title: "bytes of a burst",
            y_title: "MB/s",
            x_is_log: true,
            curves: vec![
                curve("20 clocks for each transaction", PCI_33_32.overhead_cycles),
                curve("4 clocks, the least", LEAST_OVERHEAD),
                published("measured bridges", &BRIDGES),
            ],
        }],
    }
}

/// Megabytes per second of each master on a bus.
fn moved<const MASTERS: usize>(bus: &SharedBus, masters: [Master; MASTERS]) -> [f64; MASTERS] {
    let seconds = CYCLES as f64 / bus.pci.clock_hz as f64;
    let counts = bus.run(&masters, CYCLES);
    std::array::from_fn(|at| counts[at].bytes as f64 / seconds / MEGABYTE)
}

fn curve(name: &str, points: Vec<[f64; 2]>) -> Curve {
    Curve { name: name.to_owned(), is_published: false, points }
}

/// Two cards, of which one has habits.
pub(super) fn shared() -> Mechanism {
    Mechanism {
        name: "pci-shared",
        title: "A PCI bus that others use",
        claims: &["M15", "M16", "M17", "M19"],
        says: "A card that waits in each data phase holds the bus and moves little on it: with some wait states the two cards \
               together move half of what they could, and the latency timer alone keeps the other one from less than before. One \
               that gives the bus up instead, and comes back with 256 bytes at once, leaves the rest to the other. A \
               read that the bridge has not fetched yet ends with a retry, and the retries of a card that asks again at \
               once are taken from the others. PCI-X splits reads: every card has then what on PCI only the delay brings \
               that is as long as the bridge needs.",
        command: "offramp model report --charts .",
        panels: vec![waits(), retries()],
    }
}

fn waits() -> Panel {
    let beside = |of: fn([f64; 2]) -> f64, disconnect_len: Option<u64>| {
        let at = |&wait_states: &u64| {
            let ill = Master { wait_states, disconnect_len, ..WRITER };
            [wait_states as f64, of(moved(&SHARED_33_32, [WRITER, ill]))]
        };
        WAIT_STATES.iter().map(at).collect()
    };
    Panel {
        title: "Two cards that write packets, one with wait states",
        x_title: "wait states of the second card",
        y_title: "MB/s",
        x_is_log: false,
        curves: vec![
            curve("both, the second disconnects instead", beside(|[first, second]| first + second, Some(REFILL_LEN))),
            curve("both, the second waits", beside(|[first, second]| first + second, None)),
            curve("the first alone of these", beside(|[first, _]| first, None)),
        ],
    }
}

fn retries() -> Panel {
    let beside = |which: usize, is_split: bool| {
        let bus = SharedBus { fetch_cycles: SLOW_FETCH_CYCLES, is_split, ..SHARED_33_32 };
        let at = |&retry_cycles: &u64| {
            let writer = Master { burst_len: 64, ..WRITER };
            let reader = Master { command: Command::ReadLine, retry_cycles, ..WRITER };
            [retry_cycles as f64, moved(&bus, [writer, reader])[which]]
        };
        RETRY_CYCLES.iter().map(at).collect()
    };
    Panel {
        title: "A card that reads lines through a bridge that needs 120 clocks, beside one that writes",
        x_title: "clocks from a retry to the next try",
        y_title: "MB/s",
        x_is_log: false,
        curves: vec![
            curve("the one that writes, if reads are split", beside(0, true)),
            curve("the one that writes", beside(0, false)),
            curve("the one that reads, if they are split", beside(1, true)),
            curve("the one that reads", beside(1, false)),
        ],
    }
}
