//! PCI-X: transactions with a byte count, and split reads.
//!
//! An attribute phase after the address phase carries the byte count of the transaction. A bridge without the requested
//! data does not answer with a retry. The bridge accepts the request, and later sends the data in a separate
//! transaction, a split completion (PCI-X Addendum 1.0a, 2.10). The bus is free between the request and the split
//! completion, and the master does not repeat the request. An interrupted transaction ends at a boundary of 128 bytes
//! (2.2). A read request is limited to the maximum memory read byte count.

use super::Transfer;
use crate::time::{Span, Time};
use serde::Deserialize;

/// Clocks of the attribute phase (PCI-X Addendum 1.0a, 2.5).
pub const ATTRIBUTE_CYCLES: u64 = 1;
/// Distance between allowable disconnect boundaries, in bytes (2.2). A transaction can be interrupted only at such a
/// boundary.
pub const DISCONNECT_BOUNDARY_LEN: u64 = 128;
/// Clocks of the data phase in a split response to a read request (2.10.2).
const SPLIT_RESPONSE_CYCLES: u64 = 1;

/// A PCI-X bus, and the bridge between the bus and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the bus")]
pub struct PciX {
    #[serde(rename = "clock")]
    pub clock_hz: u64,
    pub width: u64,
    #[serde(rename = "overhead")]
    pub overhead_cycles: u64,
    #[serde(rename = "burst")]
    pub burst_len_max: u64,
    #[serde(rename = "read_request")]
    pub read_request_len_max: u64,
    pub read_latency: Span,
    pub outstanding_reads: u64,
}

/// Time of a transfer on the bus and in the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Time on the bus.
    pub bus: Span,
    /// Time until the adapter can issue the next read, limited by the adapter's number of outstanding reads.
    pub engine: Span,
}

impl PciX {
    /// Returns the longest transaction that ends at a disconnect boundary, in bytes.
    pub fn burst_len(&self) -> u64 {
        (self.burst_len_max - self.burst_len_max % DISCONNECT_BOUNDARY_LEN).max(DISCONNECT_BOUNDARY_LEN)
    }

    fn transaction_cycles(&self) -> u64 {
        self.overhead_cycles + ATTRIBUTE_CYCLES
    }

    /// Returns the number of clocks for the transactions that carry `bytes`: writes, or the completions of a read.
    pub fn data_clocks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.width) + bytes.div_ceil(self.burst_len()).max(1) * self.transaction_cycles()
    }

    fn requests(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.read_request_len_max).max(1)
    }

    /// Returns the number of clocks to read `bytes`, for requests and completions. A completion never holds bytes of
    /// two requests.
    pub fn read_clocks(&self, bytes: u64) -> u64 {
        let requests = self.requests(bytes);
        let whole = bytes / self.read_request_len_max;
        let rest = bytes % self.read_request_len_max;
        let completions = whole * self.data_clocks(self.read_request_len_max);
        let last = if rest > 0 { self.data_clocks(rest) } else { 0 };
        requests * (self.transaction_cycles() + SPLIT_RESPONSE_CYCLES) + completions + last
    }

    /// Returns the times of a write of `bytes` to host memory.
    pub fn write(&self, bytes: u64) -> Use {
        Use { bus: Span::of_cycles(self.data_clocks(bytes), self.clock_hz), engine: Span::ZERO }
    }

    /// Returns the times of a read of `bytes` from host memory.
    pub fn read(&self, bytes: u64) -> Use {
        let bus = Span::of_cycles(self.read_clocks(bytes), self.clock_hz);
        // An outstanding read waits for its data, and for the transfer over the bus.
        let whole = self.read_latency.times(self.requests(bytes)) + bus;
        Use { bus, engine: Span(whole.0 / self.outstanding_reads.max(1)) }
    }
}

/// The times at which the bus is free again, and at which the adapter can issue the next read.
#[derive(Clone, Copy, Debug, Default)]
pub struct PciXState {
    bus: Time,
    read: Time,
}

impl PciXState {
    /// Schedules a write by the adapter.
    pub fn write(&mut self, used: &Use, now: Time) -> Transfer {
        let from = now.max(self.bus);
        self.bus = from + used.bus;
        Transfer { done: self.bus, from, taken: used.bus }
    }

    /// Schedules a read by the adapter. The read occupies the bus during the request and during the completion, but not
    /// between the request and the completion.
    pub fn read(&mut self, pcix: &PciX, used: &Use, now: Time) -> Transfer {
        let begins = now.max(self.bus).max(self.read);
        self.read = begins + used.engine;
        let on_bus = self.write(used, now);
        Transfer { done: on_bus.done.max(begins + pcix.read_latency + used.bus), ..on_bus }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCIX133: PciX = PciX {
        clock_hz: 133_333_333,
        width: 8,
        overhead_cycles: 7,
        burst_len_max: 4096,
        read_request_len_max: 512,
        read_latency: Span::ns(500),
        outstanding_reads: 4,
    };

    #[test]
    fn a_write_takes_its_words_and_one_overhead_with_the_attribute_phase() {
        assert_eq!(PCIX133.data_clocks(1536), 192 + 8);
        assert_eq!(PCIX133.data_clocks(1), 1 + 8);
        assert_eq!(PCIX133.data_clocks(8192), 1024 + 2 * 8, "no transaction is longer than its count can say");
    }

    #[test]
    fn a_read_is_a_request_for_each_maximum_read_count_and_the_data_in_transactions_of_their_own() {
        // A request takes 9 clocks: overhead, attributes and the split response. The completion takes 64 clocks for the
        // data (64 words), and 8 clocks for overhead and attributes.
        assert_eq!(PCIX133.read_clocks(512), 9 + 64 + 8);
        assert_eq!(PCIX133.read_clocks(1536), 3 * (9 + 64 + 8));
        assert_eq!(PCIX133.read_clocks(1600), 3 * (9 + 64 + 8) + 9 + 8 + 8);
        let large = PciX { read_request_len_max: 4096, ..PCIX133 };
        assert_eq!(large.read_clocks(1536), 9 + 192 + 8);
        let requests = [512, 1024, 2048, 4096]
            .map(|read_request_len_max| PciX { read_request_len_max, ..PCIX133 }.read_clocks(4096));
        assert_eq!(requests, [8 * 81, 4 * (9 + 128 + 8), 2 * (9 + 256 + 8), 9 + 512 + 8]);
    }

    #[test]
    fn a_bridge_that_cuts_transactions_cuts_them_at_boundaries_of_128_bytes() {
        let cutting = PciX { burst_len_max: 300, ..PCIX133 };
        assert_eq!(cutting.burst_len(), 256);
        assert_eq!(cutting.data_clocks(1536), 192 + 6 * 8);
        assert_eq!(PciX { burst_len_max: 4, ..PCIX133 }.burst_len(), 128);
        assert_eq!(cutting.read_clocks(512), 9 + 64 + 2 * 8, "the data of one request come in two completions");
    }

    #[test]
    fn the_wait_of_a_split_read_is_not_time_of_the_bus() {
        let (read, write) = (PCIX133.read(512), PCIX133.write(512));
        let mut state = PciXState::default();
        let there = state.read(&PCIX133, &read, Time::START);
        assert_eq!(there.done, Time::START + Span::ns(500) + read.bus);
        let written = state.write(&write, Time::START);
        assert_eq!(written.done, Time::START + read.bus + write.bus, "it goes into the gap");
    }

    #[test]
    fn reads_under_way_over_latency_bound_what_one_adapter_reads() {
        let rate = |outstanding_reads| {
            let pcix = PciX { outstanding_reads, ..PCIX133 };
            let used = pcix.read(512);
            let mut state = PciXState::default();
            let last = (0..1000).map(|_| state.read(&pcix, &used, Time::START).done).last().unwrap();
            512_000.0 / (last.0 as f64 / 1e12)
        };
        // With one outstanding read, the read latency limits the rate. With 64 outstanding reads, the bus limits the
        // rate.
        let of_bus = 512.0 * 133_333_333.0 / 81.0;
        assert!((512.0 / rate(1) / (500e-9 + 512.0 / of_bus) - 1.0).abs() < 0.01, "{}", rate(1));
        assert!((rate(64) / of_bus - 1.0).abs() < 0.01, "{}", rate(64));
    }
}
