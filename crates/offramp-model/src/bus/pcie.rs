//! PCI Express: the transfer rate, limited by packet overhead, credits, outstanding reads and an IOMMU.
//!
//! Bytes on the link are counted as in the model of `pcie-bench` (Neugebauer et al., SIGCOMM 2018). The bytes include
//! transaction layer packets with headers and framing, acknowledgements, credit updates and skip symbols. A model that
//! counts only bytes overestimates the rate, so this model adds three effects:
//!
//! - The adapter's engine takes a fixed time for each read request and each write, in addition to the time on the link.
//!   Transfers in both directions share the engine.
//! - The engine moves whole cache lines. With cache lines of 64 bytes, 65 bytes take as long as 128 bytes.
//! - The adapter limits the outstanding reads and the interval between writes. The root complex limits the posted bytes
//!   until credits return. The IOMMU limits the concurrent page walks. The tightest of these limits sets the rate.

pub mod measured;

use super::{PPM, Transfer, Transfers};
use crate::time::{PICOSECONDS_PER_SECOND, Span, Time};
use serde::Deserialize;

/// Overhead of a memory read or write with a 64-bit address, in bytes: 8 for sequence number, LCRC and framing, and 16
/// for the header. Source: PCI Express Base Specification 3.0, 2.2, 3.6, 4.2.2.
const REQUEST_HEADER_LEN: u64 = 24;
/// Overhead of a completion, in bytes: 8 for sequence number, LCRC and framing, and 12 for the header.
const COMPLETION_HEADER_LEN: u64 = 20;
/// Length of the optional end-to-end CRC of a packet, in bytes (2.7).
const ECRC_LEN: u64 = 4;
/// Length of an acknowledgement or a credit update on the link, including 2 bytes of framing, in bytes (3.5).
const DLLP_LEN: f64 = 8.0;
/// Length of a skip ordered set, and the interval between two skip ordered sets, symbols (4.2.7).
const SKIP_LEN: f64 = 4.0;
const SKIP_INTERVAL: f64 = 1538.0;
/// Length of header and framing of a transaction layer packet in the formula for the acknowledgement limit, in bytes
/// (3.5.3.1).
const ACK_FORMULA_OVERHEAD: f64 = 28.0;
/// Length of a register, in bytes.
pub const REGISTER_LEN: u64 = 4;

/// A PCI Express link, with the adapter and the root complex at its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the bus")]
pub struct Pcie {
    #[serde(rename = "clock")]
    pub transfers_per_second: u64,
    pub lanes: u64,
    #[serde(rename = "payload")]
    pub payload_len_max: u64,
    #[serde(rename = "read_request")]
    pub read_request_len_max: u64,
    #[serde(rename = "completion")]
    pub completion_len_max: u64,
    #[serde(rename = "ecrc")]
    pub has_ecrc: bool,
    pub read_latency: Span,
    pub write_latency: Span,
    pub outstanding_reads: u64,
    pub write_interval: Span,
    #[serde(rename = "read_time")]
    pub read_engine: Span,
    #[serde(rename = "write_time")]
    pub write_engine: Span,
    #[serde(rename = "cache_line")]
    pub line_len: u64,
    #[serde(rename = "posted_credit")]
    pub posted_credit_len: u64,
    pub credit_latency: Span,
    /// The IOMMU; `None` if address translation is off.
    #[serde(skip)]
    pub iommu: Option<Iommu>,
}

/// An IOMMU with a translation cache (IOTLB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the bus")]
pub struct Iommu {
    #[serde(rename = "iotlb")]
    pub entries: u64,
    #[serde(rename = "page")]
    pub page_len: u64,
    #[serde(rename = "window")]
    pub window_len: u64,
    pub walk_time: Span,
    pub walkers: u64,
}

impl Iommu {
    /// Returns the miss rate of the IOTLB, parts per million of the accesses.
    pub fn miss_ppm(&self) -> u64 {
        let reach = self.entries.saturating_mul(self.page_len);
        PPM - PPM * reach.min(self.window_len) / self.window_len.max(1)
    }

    /// Returns the share of accesses that start a page walk, parts per million, with `under_way` concurrent accesses.
    /// An access to a page with a walk in progress waits for that walk.
    pub fn walk_ppm(&self, under_way: u64) -> u64 {
        let (miss, pages) = (self.miss_ppm(), (self.window_len / self.page_len).max(1));
        let walked_for = under_way.saturating_mul(miss) / pages;
        miss - miss * walked_for.min(PPM) / PPM
    }

    /// Returns the mean time of the page walks for an access to `bytes`, divided by the number of walkers.
    fn walk_time_of(&self, bytes: u64, under_way: u64) -> Span {
        let pages = bytes.div_ceil(self.page_len).max(1);
        Span(self.walk_time.times(pages).scaled_ppm(self.walk_ppm(under_way)).0 / self.walkers.max(1))
    }
}

/// Time of a transfer on each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Time on the link to the host.
    pub up: Span,
    /// Time on the link from the host.
    pub down: Span,
    /// Time in the adapter's engine. The engine serves one transfer at a time.
    pub engine: Span,
    /// Minimum time until the next transfer of the same kind, limited by outstanding reads, write interval, credits or
    /// page walkers.
    pub interval: Span,
}

impl Use {
    /// Returns the interval between back-to-back transfers with these times on an otherwise idle link, and the resource
    /// that limits the rate.
    pub fn limit(&self) -> (Span, &'static str) {
        let bytes = self.up.max(self.down) + self.engine;
        let link = if self.up > self.down {
            "bytes to the host, and the engine"
        } else {
            "bytes from the host, and the engine"
        };
        if bytes >= self.interval { (bytes, link) } else { (self.interval, "what is under way") }
    }

    /// Returns the times of two transfers together: the sums of the link and engine times, and the longer of the two
    /// intervals.
    #[must_use]
    pub fn beside(&self, other: &Self) -> Self {
        Self {
            up: self.up + other.up,
            down: self.down + other.down,
            engine: self.engine + other.engine,
            interval: self.interval.max(other.interval),
        }
    }
}

impl Pcie {
    /// Returns the bits per second on the lanes, without the line code (4.2: 8b/10b, 128b/130b; from generation 6 on
    /// 242 of 256).
    pub fn raw_bps(&self) -> u64 {
        const GENERATION_2: u64 = 5_000_000_000;
        const GENERATION_5: u64 = 32_000_000_000;
        let (used, of) = match self.transfers_per_second {
            rate if rate <= GENERATION_2 => (8, 10),
            rate if rate <= GENERATION_5 => (128, 130),
            _ => (242, 256),
        };
        self.transfers_per_second * self.lanes * used / of
    }

    /// Returns the bits per second available to packets, after acknowledgements, credit updates and skip symbols.
    pub fn packet_bps(&self) -> u64 {
        let limit = self.ack_limit();
        let share = 1.0 - 2.0 * DLLP_LEN / limit - SKIP_LEN / SKIP_INTERVAL;
        (self.raw_bps() as f64 * share) as u64
    }

    /// Returns the interval between two acknowledgements, and between two credit updates, in symbols (2.6.1.2,
    /// 3.5.3.1). The specification's formula is (payload + overhead) × factor / lanes + internal delay.
    fn ack_limit(&self) -> f64 {
        let factor = match (self.payload_len_max, self.lanes) {
            (512.., _) => 1.0,
            (_, ..=4) => 1.4,
            (_, ..=8) => 2.5,
            _ => 3.0,
        };
        let internal_delay = match self.transfers_per_second {
            rate if rate <= 2_500_000_000 => 19.0,
            rate if rate <= 5_000_000_000 => 70.0,
            _ => 115.0,
        };
        let packet = self.payload_len_max as f64 + ACK_FORMULA_OVERHEAD;
        (packet * factor / self.lanes as f64 + internal_delay).floor()
    }

    fn ecrc_len(&self) -> u64 {
        if self.has_ecrc { ECRC_LEN } else { 0 }
    }

    fn link_time(&self, bytes: u64) -> Span {
        Span::of_bytes_at(bytes, self.packet_bps())
    }

    /// Returns the resource times of a write of `bytes` to host memory.
    pub fn write(&self, bytes: u64) -> Use {
        let bytes = self.lines(bytes);
        let packets = bytes.div_ceil(self.payload_len_max).max(1);
        let on_link = bytes + packets * (REQUEST_HEADER_LEN + self.ecrc_len());
        let interval = self.write_interval.max(self.credit_time(bytes)).max(self.walks(bytes));
        Use { up: self.link_time(on_link), down: Span::ZERO, engine: self.write_engine, interval }
    }

    /// Rounds `bytes` up to whole cache lines.
    fn lines(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.line_len.max(1))
    }

    fn walks(&self, bytes: u64) -> Span {
        self.iommu.map_or(Span::ZERO, |iommu| iommu.walk_time_of(bytes, self.outstanding_reads))
    }

    /// Returns the minimum time to post `bytes` under the credit limit.
    fn credit_time(&self, bytes: u64) -> Span {
        match self.posted_credit_len {
            0 => Span::ZERO,
            credits => Span((u128::from(self.credit_latency.0) * u128::from(bytes) / u128::from(credits)) as u64),
        }
    }

    /// Returns the resource times of a read of `bytes` from host memory.
    pub fn read(&self, bytes: u64) -> Use {
        let bytes = self.lines(bytes);
        let requests = bytes.div_ceil(self.read_request_len_max).max(1);
        let completions = bytes.div_ceil(self.completion_len_max).max(1);
        let up = self.link_time(requests * (REQUEST_HEADER_LEN + self.ecrc_len()));
        let down = self.link_time(bytes + completions * (COMPLETION_HEADER_LEN + self.ecrc_len()));
        let under_way = Span(self.read_latency.times(requests).0 / self.outstanding_reads.max(1));
        Use { up, down, engine: self.read_engine.times(requests), interval: under_way.max(self.walks(bytes)) }
    }

    /// Returns the resource times of one transfer, or of a pair of read and write.
    pub fn transfer(&self, transfers: Transfers, bytes: u64) -> Use {
        match transfers {
            Transfers::Read => self.read(bytes),
            Transfers::Write => self.write(bytes),
            Transfers::Both => self.write(bytes).beside(&self.read(bytes)),
        }
    }

    /// Returns the resource times of a register write by the processor. The write is posted, so the processor does not
    /// wait.
    pub fn register_write(&self, bytes: u64) -> Use {
        Use { down: self.link_time(bytes + REQUEST_HEADER_LEN + self.ecrc_len()), ..Use::default() }
    }
}

/// Returns the payload rate with one transfer of `bytes` per `interval`, in bits per second.
pub fn payload_bps(bytes: u64, interval: Span) -> f64 {
    bytes as f64 * 8.0 * PICOSECONDS_PER_SECOND as f64 / interval.0.max(1) as f64
}

/// The time at which each resource of a link is free again.
#[derive(Clone, Copy, Debug, Default)]
pub struct PcieState {
    up: Time,
    down: Time,
    read: Time,
    write: Time,
}

impl PcieState {
    /// Schedules a write by the adapter. The write occupies the engine and the link to the host, and completes when the
    /// host sees the data.
    pub fn write(&mut self, pcie: &Pcie, used: &Use, now: Time) -> Transfer {
        let from = now.max(self.up).max(self.write);
        self.write = from + used.interval;
        self.up = from + used.engine + used.up;
        // The engine cannot receive during the write, so the link from the host is delayed by the engine's time.
        self.down = self.down.max(now) + used.engine + used.down;
        Transfer { done: self.up + pcie.write_latency, from, taken: used.engine + used.up }
    }

    /// Schedules a read by the adapter. The read occupies the engine and the link from the host.
    pub fn read(&mut self, pcie: &Pcie, used: &Use, now: Time) -> Transfer {
        let begins = now.max(self.up).max(self.read);
        self.read = begins + used.interval;
        self.up = begins + used.engine + used.up;
        let from = (begins + used.up + pcie.read_latency).max(self.down);
        self.down = from + used.engine + used.down;
        Transfer { done: self.down, from, taken: used.engine + used.down }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the link of the adapter of `pcie-bench`: generation 3, 8 lanes.
    fn gen3x8() -> Pcie {
        Pcie {
            write_latency: Span::ns(300),
            outstanding_reads: u64::MAX,
            write_interval: Span::ZERO,
            read_engine: Span::ZERO,
            write_engine: Span::ZERO,
            ..measured::link(600)
        }
    }

    fn gbps(bytes: u64, used: &Use) -> f64 {
        payload_bps(bytes, used.limit().0) / 1e9
    }

    #[test]
    fn what_is_left_for_packets_is_what_the_published_model_says() {
        assert!((gen3x8().raw_bps() as f64 / 1e9 - 63.0).abs() < 0.05);
        assert!((gen3x8().packet_bps() as f64 / 1e9 - 57.9).abs() < 0.05, "{}", gen3x8().packet_bps());
    }

    #[test]
    fn a_window_that_the_translations_cover_costs_nothing_and_a_larger_one_bounds_by_walks() {
        let iommu =
            |window_len| Iommu { entries: 64, page_len: 4096, window_len, walk_time: Span::ns(330), walkers: 6 };
        let read = |window| Pcie { iommu: Some(iommu(window)), outstanding_reads: 34, ..gen3x8() }.read(64);
        assert_eq!(read(256 << 10), Pcie { outstanding_reads: 34, ..gen3x8() }.read(64));
        assert_eq!(iommu(512 << 10).miss_ppm(), 500_000);
        let walks_per_second = 6.0 / 330e-9 / (1.0 - 256.0 / 65_536.0);
        assert!((gbps(64, &read(64 << 20)) - walks_per_second * 512.0 / 1e9).abs() < 0.1);
        // 17 of 34 concurrent reads miss. A read thus finds a walk in progress for 17 of 128 pages.
        assert_eq!(iommu(512 << 10).walk_ppm(34), 500_000 - 500_000 * 17 / 128);
        assert_eq!(iommu(512 << 10).walk_ppm(0), 500_000);
    }

    proptest! {
        #[test]
        fn transfers_of_whole_lines_take_bytes_and_engine_and_both_directions_share_the_engine(
            (read_len, write_len, latency) in (1_u64..4097, 1_u64..4097, 0_u64..2_000),
            (read_engine, write_engine) in (0_u64..20_000, 0_u64..20_000),
        ) {
            const PAIRS: u64 = 200;
            let engines = (Span(read_engine), Span(write_engine));
            let pcie = Pcie { read_engine: engines.0, write_engine: engines.1, ..measured::link(latency) };
            prop_assert_eq!(pcie.write(write_len), pcie.write(write_len.next_multiple_of(64)));
            prop_assert_eq!(pcie.read(read_len), pcie.read(read_len.next_multiple_of(64)));
            let (read, write) = (pcie.read(read_len), pcie.write(write_len));
            let requests = read_len.next_multiple_of(64).div_ceil(pcie.read_request_len_max);
            let engine = engines.0.times(requests) + engines.1;
            let bytes = (read.up + write.up).max(read.down + write.down) + engine;
            let limit = write.beside(&read).limit().0;
            prop_assert_eq!(limit, bytes.max(read.interval).max(write.interval));
            let mut state = PcieState::default();
            let mut end = Time::START;
            for _ in 0..PAIRS {
                let written = state.write(&pcie, &write, Time::START).done;
                end = written.max(state.read(&pcie, &read, Time::START).done);
            }
            let took = end.since(Time::START).0;
            let law = limit.times(PAIRS).0;
            let latencies = pcie.read_latency + pcie.write_latency;
            prop_assert!(took.abs_diff(law) <= (limit.times(2) + latencies).0, "{took} ps, {law} by the law");
        }
    }

    #[test]
    fn a_crc_and_small_completions_cost_what_they_weigh() {
        let plain = gen3x8().read(1024);
        let split = Pcie { completion_len_max: 64, ..gen3x8() }.read(1024);
        let longer = split.down.0 as f64 / plain.down.0 as f64;
        assert!((longer / ((1024.0 + 16.0 * 20.0) / (1024.0 + 4.0 * 20.0)) - 1.0).abs() < 1e-4);
        let crc = Pcie { has_ecrc: true, ..gen3x8() }.write(256);
        assert!(crc.up > gen3x8().write(256).up);
    }

    #[test]
    fn reads_and_writes_share_the_way_up_and_without_an_engine_nothing_else() {
        let mut state = PcieState::default();
        let (write, read) = (gen3x8().write(1024), gen3x8().read(1024));
        let written = state.write(&gen3x8(), &write, Time::START);
        assert_eq!(written.done, Time::START + write.up + gen3x8().write_latency);
        let was_read = state.read(&gen3x8(), &read, Time::START);
        assert_eq!(was_read.done, Time::START + write.up + read.up + gen3x8().read_latency + read.down);
    }
}
