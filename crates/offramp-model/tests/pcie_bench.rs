//! PCI Express against what `pcie-bench` measured ([`offramp_model::bus::pcie::measured`]).
//!
//! Targets: 3 % from 512 bytes on, 15 % at 64; between them bytes, latency and engine overlap, and there is no target.
//! What leaves its target is named in `MISSES` and stays.

use Transfers::{Both, Read, Write};
use offramp_model::bus::pcie::measured::{
    BROADWELL, DESKTOP, E5, IOMMU_READ_LATENCY_NS, IOMMU_READS, MEASURED, Measured, SIZES, Transfers, link,
};
use offramp_model::bus::pcie::{Iommu, Pcie};
use offramp_model::time::Span;

/// Host, transfers and sizes of the figures that leave their target, and why.
const MISSES: [(&str, Transfers, &[u64]); 5] = [
    // The adapter's: its reads dip at 1024 bytes alone, of as many packets for each byte as 512 and 2048 have.
    (E5, Read, &[1024]),
    // Each transfer of the pair takes some ns more than links and engines account for, whatever its length, and at 1024
    // bytes the dip of the reads besides: something that both engines share on the adapter and nobody has described.
    (E5, Both, &[512, 1024, 1536, 2048]),
    // 3.1 and 3.4 % faster than the published formula allows: it counts acknowledgements and credits as if the other way
    // were full of packets, too. Without them the same reads would be 5 % too fast.
    (BROADWELL, Read, &[1536, 2048]),
    // With the latency that was measured of it idle and the reads under way of the server, this host could not have done as
    // many small reads as it did; and its rates fall from 128 to 256 bytes and from 1024 to 1536, which no byte explains.
    (DESKTOP, Read, &[64, 512]),
    // The same; its posted writes reach two thirds of those of the same adapter in a server.
    (DESKTOP, Write, &[64, 512, 1024, 1536, 2048]),
];

fn target_percent(bytes: u64) -> Option<f64> {
    match bytes {
        64 => Some(15.0),
        512.. => Some(3.0),
        _ => None,
    }
}

fn missed_sizes(measured: &Measured) -> Vec<u64> {
    let link = measured.link();
    let mut missed = Vec::new();
    for (&bytes, &rate) in SIZES.iter().zip(&measured.rates).filter(|(_, rate)| **rate > 0.0) {
        let modelled = measured.transfers.gbps(&link, bytes);
        let error = 100.0 * (modelled / rate - 1.0);
        let (host, what) = (measured.host, format!("{:?}", measured.transfers));
        println!("{host:10} {what:6} {bytes:5} bytes: {rate:5.1} measured, {modelled:5.1} modelled, {error:+6.1} %");
        if target_percent(bytes).is_some_and(|target| error.abs() > target) {
            missed.push(bytes);
        }
    }
    missed
}

#[test]
fn the_measured_curves_are_met_but_for_the_misses_that_are_named() {
    for measured in &MEASURED {
        let named = MISSES.iter().find(|(host, of, _)| *host == measured.host && *of == measured.transfers);
        let expected = named.map_or(&[][..], |(.., sizes)| sizes);
        assert_eq!(missed_sizes(measured), expected, "{} {:?}", measured.host, measured.transfers);
    }
}

#[test]
fn an_iommu_whose_cache_is_too_small_bounds_small_reads_and_spares_large_ones() {
    // 64 entries of 4 KiB are where the measured curve bends; walks of 330 ns are of the paper; how many run at once
    // is taken from the last figure, and the two between are predicted.
    let with = |window_len| {
        let iommu = Iommu { entries: 64, page_len: 4096, window_len, walk_time: Span::ns(330), walkers: 6 };
        Pcie { iommu: Some(iommu), ..link(IOMMU_READ_LATENCY_NS) }
    };
    for (window, measured) in IOMMU_READS {
        let modelled = Read.gbps(&with(window), 64);
        assert!((modelled / measured - 1.0).abs() < 0.15, "{window}: {modelled} against {measured}");
    }
    let [covered, uncovered] = [256 << 10, 64 << 20].map(|window| Read.gbps(&with(window), 512));
    assert!(uncovered / covered > 0.96, "measured: 55.0 and 53.6 Gbit/s");
}
