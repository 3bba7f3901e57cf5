//! Measurements of `pcie-bench` on hosts with an NFP-6000, generation 3, 8 lanes (Neugebauer et al., SIGCOMM 2018;
//! <https://github.com/pcie-bench/data>), and the model's links for these hosts.
//!
//! All hosts had the same adapter, so the adapter's four numbers are the same for all hosts, and fitted to [`E5`].
//! Transfers of 64 bytes give the outstanding reads and the interval between writes. Transfers of 128 bytes give the
//! engine's time per read and per write. The latency of each host was measured separately. All other rates are
//! predictions.

use super::{Pcie, payload_bps};
use crate::bus::{Bus, Transfers};
use crate::config;
use crate::profile::Profile;
use serde::Deserialize;
use std::sync::LazyLock;

/// The measurements of `pcie-bench.toml`.
#[derive(Debug, Deserialize)]
pub struct Table {
    /// Payload rate by transfer size: one curve per host and kind of transfer.
    pub curves: Vec<Measured>,
    /// Reads of 64 bytes through the IOMMU of the [`E5`], with pages of 4 KiB: window of memory in KiB, and payload
    /// rate in Gbit/s.
    pub iommu_reads: Vec<(u64, f64)>,
}

/// The measurements.
///
/// # Panics
/// Never panics: the table is part of the program, and tests parse it.
pub static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("pcie-bench.toml")).unwrap_or_else(|error| panic!("{error}")));

impl Transfers {
    /// Returns the modelled payload rate of a link, Gbit/s in each direction.
    pub fn gbps(self, link: &Pcie, bytes: u64) -> f64 {
        payload_bps(bytes, link.transfer(self, bytes).limit().0) / 1e9
    }
}

/// One measured curve.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// Name of the host's processor.
    pub host: String,
    /// Kind of transfers by the adapter.
    pub transfers: Transfers,
    /// Median latency of a read of 64 bytes in this host, nanoseconds.
    pub read_latency_ns: u64,
    /// Size of a transfer in bytes, and payload rate in Gbit/s.
    pub rates: Vec<(u64, f64)>,
}

impl Measured {
    /// Returns the modelled link of this host.
    pub fn link(&self) -> Pcie {
        link(self.read_latency_ns)
    }
}

/// Returns the link of profile `pcie-3x8` with this read latency.
///
/// # Panics
/// Never panics: the profile is part of the program, and tests load it.
pub fn link(read_latency_ns: u64) -> Pcie {
    let profile = Profile::load_bus("pcie-3x8").unwrap_or_else(|error| panic!("{error}"));
    match config::bus(&profile.with("bus.read_latency", &format!("{read_latency_ns}ns"))).0 {
        Bus::Pcie(pcie) => pcie,
        other => panic!("pcie-3x8 is {other:?}"),
    }
}

/// The server whose rates at 64 and 128 bytes determine the adapter's numbers.
pub const E5: &str = "E5-2637v3";
