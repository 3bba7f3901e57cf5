//! Measurements of `pcie-bench` on hosts with an NFP-6000, generation 3, 8 lanes (Neugebauer et al., SIGCOMM 2018;
//! <https://github.com/pcie-bench/data>), and the model's links for these hosts.
//!
//! All hosts had the same adapter, so its four numbers are the same, and fitted to the first host. Transfers of 64
//! bytes give the reads under way and the interval between writes; transfers of 128 bytes give the engine's time for
//! each. The latency of each host was measured apart. All else is predicted.

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

/// The measurements.
///
/// # Panics
/// Never: the table is part of the program, and tests read it.
pub static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("pcie-bench.toml")).unwrap_or_else(|error| panic!("{error}")));

impl Transfers {
    /// Returns the model's payload rate of a link, Gbit/s each way.
    pub fn gbps(self, link: &Pcie, bytes: u64) -> f64 {
        payload_bps(bytes, link.transfer(self, bytes).limit().0) / 1e9
    }
}

/// One curve.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// The host's processor.
    pub host: String,
    /// Transfers of the adapter.
    pub transfers: Transfers,
    /// Median latency of a read of 64 bytes in this host, ns.
    pub read_latency_ns: u64,
    /// Bytes of a transfer, and payload in Gbit/s.
    pub rates: Vec<(u64, f64)>,
}

impl Measured {
    /// Returns the link of this host.
    pub fn link(&self) -> Pcie {
        link(self.read_latency_ns)
    }
}

/// Returns the adapter's link in a host with that latency: the profile `pcie-3x8`.
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

/// The server whose rows of 64 and 128 bytes fitted the adapter's numbers.
pub const E5: &str = "E5-2637v3";
