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
use serde::Deserialize;
use std::sync::LazyLock;

/// The table.
#[derive(Debug, Deserialize)]
pub struct Table {
    /// All curves.
    pub curves: Vec<Measured>,
    /// Reads of 64 bytes through the IOMMU of the [`E5`], in pages of 4 KiB: KiB of memory read, and Gbit/s.
    pub iommu_reads: Vec<(u64, f64)>,
}

/// What was measured.
///
/// # Panics
/// Never: the table is part of the program, and tests read it.
pub static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("pcie-bench.toml")).unwrap_or_else(|error| panic!("{error}")));

impl Transfers {
    /// What the model says of a link, Gbit/s of payload each way.
    pub fn gbps(self, link: &Pcie, bytes: u64) -> f64 {
        payload_bps(bytes, link.transfer(self, bytes).limit().0) / 1e9
    }
}

/// One curve.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// The host's processor.
    pub host: String,
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
