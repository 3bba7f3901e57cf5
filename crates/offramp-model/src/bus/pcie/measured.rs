//! Measurements of `pcie-bench` on hosts with an NFP-6000, generation 3, 8 lanes (Neugebauer et al., SIGCOMM 2018;
//! <https://github.com/pcie-bench/data>), and the model's links for these hosts.
//!
//! All hosts had the same adapter, so the four parameters of the adapter in the model are the same for all hosts. The
//! four parameters were fitted to the measurements of [`E5`]. The rates with transfers of 64 bytes determine the number
//! of outstanding reads and the interval between writes. The rates with transfers of 128 bytes determine the engine's
//! time per read and per write. The read latency of each host was measured separately. The rates at all other transfer
//! sizes, and of all other hosts, are predictions of the model.

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
    /// Reads of 64 bytes through the IOMMU of the [`E5`], with pages of 4 KiB. A point has the size of the accessed
    /// memory window in KiB, and the payload rate in Gbit/s.
    pub iommu_reads: Vec<(u64, f64)>,
}

/// The parsed measurements of `pcie-bench.toml`.
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
    /// Median latency of a read of 64 bytes in this host, in nanoseconds.
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

/// Returns the link of profile `pcie-3x8` with this read latency, in nanoseconds.
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

/// Processor of the server whose rates with transfers of 64 and 128 bytes determine the adapter's parameters.
pub const E5: &str = "E5-2637v3";
