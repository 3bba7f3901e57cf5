//! PCI: the duration of transactions in clocks.
//!
//! A transaction has an overhead: arbitration, address phase, the turn-around of a read, `DEVSEL#`, and the wait for
//! the first word. After the overhead, the transaction moves one word per `1 + wait_states` clocks. The transaction
//! ends when the transfer is complete, the bridge's prefetched data are used up, or the burst has reached its maximum
//! length. [`Pci`] implements this arithmetic. [`shared`] simulates several masters on one bus.

pub mod shared;

use crate::time::Span;
use serde::Deserialize;

/// A command of a master (PCI Local Bus Specification 2.2, 3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Memory Write, or Memory Write and Invalidate.
    Write,
    /// Memory Read of one or two words. The bridge can prefetch only a part of a cache line.
    #[serde(alias = "mr")]
    Read,
    /// Memory Read Line of one cache line.
    #[serde(alias = "mrl")]
    ReadLine,
    /// Memory Read Multiple of several cache lines.
    #[serde(alias = "mrm")]
    ReadMultiple,
}

/// A PCI bus, and the bridge between the bus and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "parameters of the bus")]
pub struct Pci {
    #[serde(rename = "clock")]
    pub clock_hz: u64,
    pub width: u64,
    #[serde(rename = "overhead")]
    pub overhead_cycles: u64,
    pub wait_states: u64,
    #[serde(rename = "burst")]
    pub burst_len_max: u64,
    #[serde(rename = "cache_line")]
    pub cache_line_len: u64,
}

/// The bus of profile `pci-33-32`: 33 MHz and 32 bits. The overhead follows from 72.3 MB/s in bursts of 24 words,
/// measured on a VIA VT8233A by tecCHANNEL.
pub const PCI_33_32: Pci = Pci {
    clock_hz: 33_333_333,
    width: 4,
    overhead_cycles: 20,
    wait_states: 0,
    burst_len_max: 4096,
    cache_line_len: 32,
};

impl Pci {
    /// Returns the maximum length of a burst with this command, in bytes.
    pub fn burst_len(&self, command: Command) -> u64 {
        let len = match command {
            Command::Write | Command::ReadMultiple => self.burst_len_max,
            Command::ReadLine => self.cache_line_len.min(self.burst_len_max),
            Command::Read => (2 * self.width).min(self.burst_len_max),
        };
        len.max(self.width)
    }

    /// Returns the number of clocks to move `bytes` bytes in bursts of at most `burst_len` bytes.
    pub fn clocks_in_bursts(&self, bytes: u64, burst_len: u64) -> u64 {
        let bursts = bytes.div_ceil(burst_len.max(self.width));
        bytes.div_ceil(self.width) * (1 + self.wait_states) + bursts * self.overhead_cycles
    }

    /// Returns the number of clocks to move `bytes` bytes with a command.
    pub fn clocks(&self, command: Command, bytes: u64) -> u64 {
        self.clocks_in_bursts(bytes, self.burst_len(command))
    }

    /// Returns the time to move `bytes` bytes with a command.
    pub fn time(&self, command: Command, bytes: u64) -> Span {
        Span::of_cycles(self.clocks(command, bytes), self.clock_hz)
    }

    /// Returns the rate of back-to-back bursts of `burst_len` bytes, in bytes per second.
    pub fn bytes_per_second(&self, burst_len: u64) -> u64 {
        burst_len * self.clock_hz / self.clocks_in_bursts(burst_len, burst_len)
    }

    /// Returns the rate during data phases, in bytes per second: the upper limit for any burst length.
    pub fn bytes_per_second_max(&self) -> u64 {
        self.width * self.clock_hz / (1 + self.wait_states)
    }

    /// Returns the number of clocks to move a packet of `bytes` that ends between two multiples of `boundary` bytes.
    /// With `is_padded`, one transaction moves the packet, padded up to the next boundary. Otherwise, one transaction
    /// moves the bytes up to the last boundary, and a second transaction moves the bytes after this boundary.
    pub fn clocks_of_tail(&self, bytes: u64, boundary: u64, is_padded: bool) -> u64 {
        if is_padded {
            return self.clocks_in_bursts(bytes.next_multiple_of(boundary), u64::MAX);
        }
        let aligned = bytes - bytes % boundary;
        self.clocks_in_bursts(aligned, u64::MAX) + self.clocks_in_bursts(bytes - aligned, u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use PCI_33_32 as PCI33;

    #[test]
    fn a_command_that_says_how_much_is_wanted_needs_fewer_transactions() {
        let clocks = [Command::Read, Command::ReadLine, Command::ReadMultiple].map(|c| PCI33.clocks(c, 1536));
        assert_eq!(clocks, [384 + 192 * 20, 384 + 48 * 20, 384 + 20]);
        assert_eq!(PCI33.clocks(Command::Write, 1536), clocks[2]);
    }

    #[test]
    fn wait_states_and_width_scale_the_data_phases_alone() {
        assert_eq!(PCI33.bytes_per_second_max(), 133_333_332);
        let waiting = Pci { wait_states: 2, ..PCI33 };
        assert_eq!(waiting.clocks(Command::Write, 400), 300 + 20);
        let wide = Pci { width: 8, ..PCI33 };
        assert_eq!(wide.clocks(Command::Write, 400), 50 + 20);
        assert_eq!(wide.clocks(Command::Write, 1), 21);
    }

    #[test]
    fn one_padded_burst_is_shorter_than_a_burst_and_its_tail() {
        assert_eq!(PCI33.clocks_of_tail(1516, 32, true), 384 + 20);
        assert_eq!(PCI33.clocks_of_tail(1516, 32, false), 376 + 20 + 3 + 20);
        assert_eq!(PCI33.clocks_of_tail(1536, 32, false), 384 + 20, "nothing is left over");
    }
}
