//! PCI Express against what `pcie-bench` measured with an NFP-6000, generation 3, 8 lanes (Neugebauer et al., SIGCOMM
//! 2018; <https://github.com/pcie-bench/data>): payload in Gbit/s by the size of a transfer.
//!
//! Two numbers are taken from the table: the reads under way (64-byte reads of the E5-2637v3 times its latency, Little's
//! law) and the interval between writes (its 64-byte writes). All other figures are predicted. Targets: 3 % from 512
//! bytes on, 15 % at 64; between them bytes, latency and engine overlap, and there is no target. What leaves its target
//! is named in `MISSES` and stays.

use offramp_model::bus::pcie::{Iommu, Pcie, Use, payload_bps};
use offramp_model::time::Span;

/// Bytes of a transfer.
const SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 1536, 2048];
/// Zero stands for a figure that is not published.
type Curve = [f64; SIZES.len()];

const E5_READ: Curve = [28.7, 43.0, 46.9, 55.1, 49.1, 55.3, 55.2];
const E5_WRITE: Curve = [24.3, 42.4, 50.6, 54.4, 54.4, 0.0, 0.0];
const BDW_READ: Curve = [31.9, 43.8, 47.7, 55.0, 0.0, 55.4, 55.6];
const BDW_WRITE: Curve = [24.3, 42.4, 50.5, 53.0, 0.0, 0.0, 0.0];
const E5_READ_WRITE: Curve = [23.0, 33.8, 42.1, 42.7, 43.8, 47.8, 49.2];
/// Curve and size of the figures that leave their target. The dip of the reads at 1024 bytes is the adapter's, and no
/// byte explains it; long reads are up to 3.4 % faster than the published formula allows, which counts
/// acknowledgements as if both ways were full; read and write together are short of the links between 512 and 2048
/// bytes, as if the engines hindered each other there.
const MISSES: [(&str, u64); 7] = [
    ("E5 read", 1024),
    ("BDW read", 1536),
    ("BDW read", 2048),
    ("E5 read and write", 512),
    ("E5 read and write", 1024),
    ("E5 read and write", 1536),
    ("E5 read and write", 2048),
];

fn host(read_latency_ns: u64) -> Pcie {
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

fn gbps(bytes: u64, used: &Use) -> f64 {
    payload_bps(bytes, used.interval()) / 1e9
}

fn target_percent(bytes: u64) -> Option<f64> {
    match bytes {
        64 => Some(15.0),
        512.. => Some(3.0),
        _ => None,
    }
}

fn misses(name: &'static str, measured: &Curve, modelled: impl Fn(u64) -> f64) -> Vec<(&'static str, u64)> {
    let mut missed = Vec::new();
    for (&bytes, &figure) in SIZES.iter().zip(measured).filter(|(_, figure)| **figure > 0.0) {
        let error = 100.0 * (modelled(bytes) / figure - 1.0);
        println!("{name:18} {bytes:5} bytes: {figure:5.1} measured, {:5.1} modelled, {error:+5.1} %", modelled(bytes));
        if target_percent(bytes).is_some_and(|target| error.abs() > target) {
            missed.push((name, bytes));
        }
    }
    missed
}

#[test]
fn the_measured_curves_are_met_but_for_the_misses_that_are_named() {
    let (e5, bdw) = (host(600), host(546));
    let both = |bytes| gbps(bytes, &e5.write(bytes).beside(&e5.read(bytes)));
    let found = [
        misses("E5 read", &E5_READ, |bytes| gbps(bytes, &e5.read(bytes))),
        misses("E5 write", &E5_WRITE, |bytes| gbps(bytes, &e5.write(bytes))),
        misses("BDW read", &BDW_READ, |bytes| gbps(bytes, &bdw.read(bytes))),
        misses("BDW write", &BDW_WRITE, |bytes| gbps(bytes, &bdw.write(bytes))),
        misses("E5 read and write", &E5_READ_WRITE, both),
    ]
    .concat();
    assert_eq!(found, MISSES);
}

#[test]
fn an_iommu_whose_cache_is_too_small_bounds_small_reads_and_spares_large_ones() {
    const WINDOWS: [(u64, f64); 4] = [(256 << 10, 28.0), (512 << 10, 20.2), (1 << 20, 14.3), (64 << 20, 9.84)];
    // 64 entries of 4 KiB are where the measured curve bends; walks of 330 ns are of the paper; how many run at once
    // is taken from the last figure, and the two between are predicted.
    let with = |window_len| {
        let iommu = Iommu { entries: 64, page_len: 4096, window_len, walk_time: Span::ns(330), walkers: 6 };
        Pcie { iommu: Some(iommu), ..host(621) }
    };
    for (window, measured) in WINDOWS {
        let modelled = gbps(64, &with(window).read(64));
        assert!((modelled / measured - 1.0).abs() < 0.15, "{window}: {modelled} against {measured}");
    }
    let [covered, uncovered] = [256 << 10, 64 << 20].map(|window| gbps(512, &with(window).read(512)));
    assert!(uncovered / covered > 0.96, "measured: 55.0 and 53.6 Gbit/s");
}
