//! The buses of adapters that are master of theirs.

use super::{Curve, Mechanism, Panel, published};
use crate::bus::pci::Pci;

const MEGABYTE: f64 = 1e6;
/// Lengths of a burst, bytes.
const BURSTS: [u64; 14] = [8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1516, 4096];
/// A VIA VT8233A, which ends bursts after 24 data phases, and others, which do not, in MB/s (tecCHANNEL, "VIAs Crux mit
/// dem PCI-Bus"; the second figure holds a limit of the disks, too).
const BRIDGES: [[f64; 2]; 2] = [[96.0, 72.3], [4096.0, 102.5]];
/// PCI at 33 MHz with 32 bits.
const PCI_CLOCK_HZ: u64 = 33_333_333;
const PCI_WIDTH: u64 = 4;
/// Clocks of a transaction without data that 72.3 MB/s in bursts of 24 words imply.
const MEASURED_OVERHEAD: u64 = 20;
/// The least that the specification allows a read: an address phase, a turn-around, one clock of `DEVSEL#`, an idle one.
const LEAST_OVERHEAD: u64 = 4;
const CACHE_LINE: u64 = 32;

/// The overhead of a transaction against its length.
pub(super) fn bursts() -> Mechanism {
    let curve = |label: &str, overhead_cycles| {
        let pci = Pci {
            clock_hz: PCI_CLOCK_HZ,
            width: PCI_WIDTH,
            overhead_cycles,
            wait_states: 0,
            burst_len_max: u64::MAX,
            cache_line_len: CACHE_LINE,
        };
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
                curve("20 clocks for each transaction", MEASURED_OVERHEAD),
                curve("4 clocks, the least", LEAST_OVERHEAD),
                published("measured bridges", &BRIDGES),
            ],
        }],
    }
}
