//! PCI Express: bytes, engines, and the cache of an IOMMU.

use super::{Curve, Mechanism, Panel, published};
use crate::bus::Transfers;
use crate::bus::pcie::measured::{self, E5, IOMMU_READS, Measured, link};
use crate::bus::pcie::{Iommu, Pcie};
use crate::time::Span;

/// Bytes of a transfer.
const TRANSFERS: [u64; 15] = [64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1280, 1536, 2048];
/// Memory that buffers cover, KiB.
const WINDOWS_KIB: [u64; 11] = [64, 128, 256, 384, 512, 1024, 2048, 4096, 16_384, 65_536, 262_144];
const KIB: u64 = 1024;
/// A cache of 64 translations, six walks of 330 ns at once: as of the profile `pcie-3x8`.
const IOMMU: Iommu = Iommu { entries: 64, page_len: 4096, window_len: 0, walk_time: Span::ns(330), walkers: 6 };
const LARGE_PAGE_LEN: u64 = 2 << 20;

/// Transfers of all lengths, and small reads through an IOMMU.
pub(super) fn express() -> Mechanism {
    Mechanism {
        name: "pcie",
        title: "PCI Express",
        claims: &[],
        says: "Headers and the link's own messages leave 53 of 63 Gbit/s for payload in packets of 256 bytes. Small \
               transfers have less than that: the engine takes a time for each beside its bytes and moves whole lines, reads \
               under way are limited, and writes have a shortest interval. Each read whose translation is not in the IOMMU's cache waits for \
               a walk; pages of 2 MiB move the break beyond the chart.",
        command: "offramp model report --charts .",
        panels: vec![lengths(), translations()],
    }
}

fn lengths() -> Panel {
    let modelled = |name: &str, transfers: Transfers, link: &Pcie| Curve {
        name: name.to_owned(),
        is_published: false,
        points: TRANSFERS.iter().map(|&len| [len as f64, transfers.gbps(link, len)]).collect(),
    };
    let of_host: Vec<_> = measured::measured().into_iter().filter(|of| of.host == E5).collect();
    let host = of_host.first().map_or_else(|| link(600), Measured::link);
    let bytes_alone = Pcie { read_latency: Span::ZERO, read_engine: Span::ZERO, line_len: 1, ..host };
    let measured = |name: &str, transfers: Transfers| {
        let rates = of_host.iter().filter(|of| of.transfers == transfers).flat_map(|of| &of.rates);
        published(name, &rates.map(|&(bytes, rate)| [bytes as f64, rate]).collect::<Vec<_>>())
    };
    Panel {
        title: "Payload of an adapter in an E5-2637v3, generation 3 with 8 lanes",
        x_title: "bytes of a transfer",
        y_title: "Gbit/s",
        x_is_log: true,
        curves: vec![
            modelled("bytes alone, reading", Transfers::Read, &bytes_alone),
            modelled("reading", Transfers::Read, &host),
            modelled("writing", Transfers::Write, &host),
            measured("reading, measured", Transfers::Read),
            measured("writing, measured", Transfers::Write),
            modelled("both", Transfers::Both, &host),
            measured("both, measured", Transfers::Both),
        ],
    }
}

fn translations() -> Panel {
    let over = |name: &str, bytes: u64, page_len: u64| {
        let at = |&window_kib: &u64| {
            let iommu = Iommu { page_len, window_len: window_kib * KIB, ..IOMMU };
            let pcie = Pcie { iommu: Some(iommu), ..link(600) };
            [window_kib as f64, Transfers::Read.gbps(&pcie, bytes)]
        };
        Curve { name: name.to_owned(), is_published: false, points: WINDOWS_KIB.iter().map(at).collect() }
    };
    let points: Vec<_> = IOMMU_READS.iter().map(|&(len, rate)| [(len / KIB) as f64, rate]).collect();
    Panel {
        title: "Reading through an IOMMU that holds 64 translations",
        x_title: "memory that buffers cover, KiB",
        y_title: "Gbit/s",
        x_is_log: true,
        curves: vec![
            over("512 bytes, pages of 4 KiB", 512, IOMMU.page_len),
            over("64 bytes, pages of 2 MiB", 64, LARGE_PAGE_LEN),
            over("64 bytes, pages of 4 KiB", 64, IOMMU.page_len),
            published("64 bytes, measured in an E5-2637v3", &points),
        ],
    }
}
