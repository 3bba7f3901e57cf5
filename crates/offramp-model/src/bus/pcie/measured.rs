//! What `pcie-bench` measured of hosts with an NFP-6000, generation 3, 8 lanes (Neugebauer et al., SIGCOMM 2018;
//! <https://github.com/pcie-bench/data>), and the links of the model that stand for them.
//!
//! One adapter was in all of them, so its two numbers are the same: the reads under way (64-byte reads of the E5-2637v3
//! times its latency, Little's law) and the interval between its writes (64-byte writes of the same host). A host has a
//! latency of its own, which was measured apart. All else is predicted.

use super::{Pcie, Use, payload_bps};
use crate::time::Span;

/// Bytes of the transfers that were measured.
pub const SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 1536, 2048];
/// Payload in Gbit/s for each size; zero stands for a figure that is not published.
pub type Rates = [f64; SIZES.len()];

/// What the adapter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfers {
    /// Reads alone.
    Read,
    /// Writes alone.
    Write,
    /// As many of both at once; the rate is that of one of them.
    Both,
}

impl Transfers {
    fn used(self, link: &Pcie, bytes: u64) -> Use {
        match self {
            Self::Read => link.read(bytes),
            Self::Write => link.write(bytes),
            Self::Both => link.write(bytes).beside(&link.read(bytes)),
        }
    }

    /// What the model says of a link, Gbit/s of payload each way.
    pub fn gbps(self, link: &Pcie, bytes: u64) -> f64 {
        payload_bps(bytes, self.used(link, bytes).interval()) / 1e9
    }
}

/// One curve.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The host's processor.
    pub host: &'static str,
    /// What the adapter did.
    pub transfers: Transfers,
    /// Median latency of a read of 64 bytes in this host, ns.
    pub read_latency_ns: u64,
    /// What was measured.
    pub rates: Rates,
}

impl Measured {
    /// The link of this host.
    pub fn link(&self) -> Pcie {
        link(self.read_latency_ns)
    }
}

/// The adapter's link in a host with that latency.
pub const fn link(read_latency_ns: u64) -> Pcie {
    Pcie {
        transfers_per_second: 8_000_000_000,
        lanes: 8,
        payload_len_max: 256,
        read_request_len_max: 512,
        completion_len_max: 256,
        has_ecrc: false,
        read_latency: Span::ns(read_latency_ns),
        write_latency: Span::ns(200),
        // 28.7 Gbit/s in 64 bytes are 56 million reads per second, times 600 ns.
        outstanding_reads: 34,
        // 24.3 Gbit/s in 64 bytes are 47.5 million writes per second.
        write_interval: Span(21_070),
        posted_credit_len: 0,
        credit_latency: Span::ZERO,
        iommu: None,
    }
}

/// The server whose 64-byte rows the adapter's two numbers are of.
pub const E5: &str = "E5-2637v3";
/// A server of the next generation.
pub const BROADWELL: &str = "E5-2630v4";
/// A desktop.
pub const DESKTOP: &str = "E3-1226v3";

const fn of(host: &'static str, transfers: Transfers, read_latency_ns: u64, rates: Rates) -> Measured {
    Measured { host, transfers, read_latency_ns, rates }
}

/// All curves.
pub const MEASURED: [Measured; 7] = [
    of(E5, Transfers::Read, 600, [28.7, 43.0, 46.9, 55.1, 49.1, 55.3, 55.2]),
    of(E5, Transfers::Write, 600, [24.3, 42.4, 50.6, 54.4, 54.4, 0.0, 0.0]),
    of(E5, Transfers::Both, 600, [23.0, 33.8, 42.1, 42.7, 43.8, 47.8, 49.2]),
    of(BROADWELL, Transfers::Read, 546, [31.9, 43.8, 47.7, 55.0, 0.0, 55.4, 55.6]),
    of(BROADWELL, Transfers::Write, 546, [24.3, 42.4, 50.5, 53.0, 0.0, 0.0, 0.0]),
    of(DESKTOP, Transfers::Read, 1226, [23.0, 42.4, 29.0, 51.3, 0.0, 0.0, 0.0]),
    of(DESKTOP, Transfers::Write, 1226, [10.7, 18.0, 34.1, 35.3, 31.8, 21.6, 40.2]),
];

/// Reads of 64 bytes through the IOMMU of the E5-2630v4, in pages of 4 KiB: bytes of memory read, and Gbit/s.
pub const IOMMU_READS: [(u64, f64); 4] = [(256 << 10, 28.0), (512 << 10, 20.2), (1 << 20, 14.3), (64 << 20, 9.84)];
/// Latency at which its reads through a cache that covers everything have the measured rate, ns.
pub const IOMMU_READ_LATENCY_NS: u64 = 621;
