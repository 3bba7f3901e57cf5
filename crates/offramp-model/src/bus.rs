//! The cost of moving bytes between an adapter and the memory of its host.

pub mod pci;
pub mod pcie;
pub mod pcix;

use crate::time::{Span, Time};
use pci::{Command, Pci};
use pcie::Pcie;
use pcix::PciX;
use serde::Deserialize;

/// The ratio 1 in parts per million. The model stores all ratios in parts per million.
pub const PPM: u64 = 1_000_000;

/// An ISA card whose driver copies every byte. The processor waits for each transfer, so bus time is also processor
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsaTransfers {
    /// Clock of the bus, hertz.
    pub clock_hz: u64,
    /// Bytes per transfer: 1 on an 8-bit card, 2 on a 16-bit card.
    pub width: u64,
    /// Bus cycles per transfer, including wait states.
    pub cycles: u64,
    /// Recovery cycles between two port accesses. Memory accesses need no recovery.
    pub recovery_cycles: u64,
    /// Duration of a transfer while the network controller writes to the same memory, relative to an uncontended
    /// transfer, parts per million.
    pub contention_ppm: u64,
}

impl IsaTransfers {
    /// Returns the time to move `bytes`.
    pub fn time(&self, bytes: u64) -> Span {
        let transfers = bytes.div_ceil(self.width.max(1));
        let moved = Span::of_cycles(transfers.saturating_mul(self.cycles), self.clock_hz);
        moved.scaled_ppm(self.contention_ppm) + Span::of_cycles(transfers * self.recovery_cycles, self.clock_hz)
    }
}

/// The bus between an adapter and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// ISA: the processor copies the bytes of each frame.
    Isa(IsaTransfers),
    /// The adapter is master of a bus that never limits the rate. The processor takes no part in the adapter's
    /// transfers.
    Master,
    /// The adapter is master of a PCI bus. Transfers in both directions share the bus.
    Pci(Pci),
    /// The adapter is master of a PCI-X bus. Transfers in both directions share the bus.
    PciX(PciX),
    /// The adapter is connected to the host by a PCI Express link, which has separate lanes for each direction.
    Pcie(Pcie),
}

/// The kinds of transfers of a bus master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(strum::EnumString, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = no_transfers)]
pub enum Transfers {
    /// Only reads of host memory.
    Read,
    /// Only writes to host memory.
    Write,
    /// Concurrent reads and writes in equal number. A rate counts the payload of one direction only.
    Both,
}

/// The completion time of a bus master's transfer, and the time for which the transfer occupies the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Time at which the last byte reaches its destination.
    pub done: Time,
    /// Time at which the transfer begins to occupy the bus.
    pub from: Time,
    /// Duration for which the transfer occupies the bus.
    pub taken: Span,
}

fn no_transfers(_: &str) -> String {
    "use one of: read, write, both".to_owned()
}

impl Bus {
    /// Returns the interval between two back-to-back transfers of a bus master, and the resource that limits the rate.
    /// For [`Transfers::Both`], the interval is between two pairs of a read and a write. The result assumes that no
    /// other master uses the bus. `None` for ISA and for [`Bus::Master`].
    pub fn transfer(&self, transfers: Transfers, command: Command, bytes: u64) -> Option<(Span, &'static str)> {
        const BUS: &str = "the bus";
        let (read, write) = match self {
            Self::Pcie(pcie) => return Some(pcie.transfer(transfers, bytes).limit()),
            Self::Pci(pci) => ((pci.time(command, bytes), Span::ZERO), pci.time(Command::Write, bytes)),
            Self::PciX(pcix) => {
                let read = pcix.read(bytes);
                ((read.bus, read.engine), pcix.write(bytes).bus)
            }
            Self::Isa(_) | Self::Master => return None,
        };
        let (bus, reads) = match transfers {
            Transfers::Read => read,
            Transfers::Write => (write, Span::ZERO),
            Transfers::Both => (read.0 + write, read.1),
        };
        Some(if bus >= reads { (bus, BUS) } else { (reads, "reads under way") })
    }

    /// Returns the processor time to move `bytes` bytes of a frame over the bus.
    pub fn processor_time(&self, bytes: u64) -> Span {
        match self {
            Self::Isa(isa) => isa.time(bytes),
            Self::Master | Self::Pci(_) | Self::PciX(_) | Self::Pcie(_) => Span::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the transfer time of a frame of 1518 bytes, in microseconds.
    fn frame_us(width: u64, cycles: u64, clock_hz: u64) -> u64 {
        let isa = IsaTransfers { clock_hz, width, cycles, recovery_cycles: 0, contention_ppm: PPM };
        isa.time(1518).0.div_ceil(1_000_000)
    }

    #[test]
    fn a_full_frame_takes_what_arithmetic_says_at_every_clock() {
        let clocks_hz = [6_700_000, 8_000_000, 13_400_000, 20_000_000, 26_700_000];
        let standard8 = clocks_hz.map(|hz| frame_us(1, 6, hz));
        assert_eq!(standard8, [1360, 1139, 680, 456, 342]);
        let zero_wait8 = clocks_hz.map(|hz| frame_us(1, 3, hz));
        assert_eq!(zero_wait8, [680, 570, 340, 228, 171]);
        let standard16 = clocks_hz.map(|hz| frame_us(2, 3, hz));
        assert_eq!(standard16, [340, 285, 170, 114, 86]);
        let zero_wait16 = clocks_hz.map(|hz| frame_us(2, 2, hz));
        assert_eq!(zero_wait16, [227, 190, 114, 76, 57]);
    }

    #[test]
    fn recovery_and_contention_make_it_longer() {
        let plain = IsaTransfers { clock_hz: 8_000_000, width: 1, cycles: 6, recovery_cycles: 0, contention_ppm: PPM };
        let contended = IsaTransfers { contention_ppm: 1_500_000, ..plain };
        assert_eq!(contended.time(1000).0 * 2, plain.time(1000).0 * 3);
        let ports = IsaTransfers { recovery_cycles: 6, ..plain };
        assert_eq!(ports.time(1000), plain.time(1000).times(2));
    }
}
