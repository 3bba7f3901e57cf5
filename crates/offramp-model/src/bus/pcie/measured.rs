//! What `pcie-bench` measured of hosts with an NFP-6000, generation 3, 8 lanes (Neugebauer et al., SIGCOMM 2018;
//! <https://github.com/pcie-bench/data>), and the links of the model that stand for them.
//!
//! One adapter was in all of them, so its four numbers are the same, and fitted to the first host: the reads under way
//! and the interval between writes to transfers of 64 bytes, and the engine's time for each to transfers of 128. A host
//! has a latency of its own, which was measured apart. All else is predicted.

use super::{Pcie, payload_bps};
use crate::bus::{Bus, Transfers};
use crate::config;
use crate::profile::Profile;

/// The table, a line for each curve.
const TABLE: &str = include_str!("pcie-bench.csv");

impl Transfers {
    /// What the model says of a link, Gbit/s of payload each way.
    pub fn gbps(self, link: &Pcie, bytes: u64) -> f64 {
        payload_bps(bytes, link.transfer(self, bytes).limit().0) / 1e9
    }
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The host's processor.
    pub host: &'static str,
    /// What the adapter did.
    pub transfers: Transfers,
    /// Median latency of a read of 64 bytes in this host, ns.
    pub read_latency_ns: u64,
    /// Bytes of a transfer, and payload in Gbit/s.
    pub rates: Vec<(u64, f64)>,
}

impl Measured {
    /// The link of this host.
    pub fn link(&self) -> Pcie {
        link(self.read_latency_ns)
    }
}

/// All curves.
pub fn measured() -> Vec<Measured> {
    let mut lines = TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(','));
    let sizes: Vec<u64> = lines.next().into_iter().flatten().skip(3).filter_map(|size| size.parse().ok()).collect();
    let curve = |mut fields: std::str::Split<'static, char>| {
        let (host, latency, name) = (fields.next()?, fields.next()?, fields.next()?);
        let transfers = name.parse().ok()?;
        let rates = sizes.iter().copied().zip(fields.filter_map(|rate| rate.parse().ok())).collect();
        Some(Measured { host, transfers, read_latency_ns: latency.parse().ok()?, rates })
    };
    lines.filter_map(curve).collect()
}

/// The adapter's link in a host with that latency: the profile `pcie-3x8`.
///
/// # Panics
/// Never: the profile is part of the program, and tests read it.
pub fn link(read_latency_ns: u64) -> Pcie {
    let profile = Profile::load_bus("pcie-3x8").unwrap_or_else(|error| panic!("{error}"));
    match config::bus(&profile.with("bus.read_latency", &format!("{read_latency_ns}ns"))).0 {
        Bus::Pcie(pcie) => pcie,
        other => panic!("pcie-3x8 is {other:?}"),
    }
}

/// The server whose rows of 64 and 128 bytes the adapter's numbers are fitted to.
pub const E5: &str = "E5-2637v3";

/// Reads of 64 bytes through the IOMMU of the E5-2637v3, in pages of 4 KiB: bytes of memory read, and Gbit/s.
pub const IOMMU_READS: [(u64, f64); 8] = [
    (256 << 10, 30.0),
    (512 << 10, 22.2),
    (1 << 20, 15.2),
    (2 << 20, 12.2),
    (4 << 20, 10.9),
    (8 << 20, 10.4),
    (16 << 20, 10.1),
    (64 << 20, 9.8),
];
