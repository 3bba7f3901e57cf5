//! What must fit together in a profile, which no single value can show to be wrong.

use super::{Profile, ProfileError, key_error, schema};
use crate::link::LinkConfig;
use crate::tcp::HEADERS_LEN;
use crate::time::Span;

/// Transfers per second and lane of each generation of PCI Express.
const PCIE_TRANSFERS_PER_SECOND: &[u64] =
    &[2_500_000_000, 5_000_000_000, 8_000_000_000, 16_000_000_000, 32_000_000_000, 64_000_000_000];
/// Lanes of a PCI Express link (PCI Express Base Specification 3.0, 4.2.4: x1 to x32).
const PCIE_LANES: &[u64] = &[1, 2, 4, 8, 12, 16, 32];
/// Payloads and read requests (7.8.4); completions end at the same boundaries or at that of the read completion, 64 bytes.
const PCIE_PAYLOAD_LENS: &[u64] = &[64, 128, 256, 512, 1024, 2048, 4096];
/// Bytes of a data phase of PCI and PCI-X (PCI Local Bus Specification 2.2, 3.8: 32 and 64 bits).
const PCI_WIDTHS: &[u64] = &[4, 8];
/// Bytes of a transfer of a card that the processor reads: 8 and 16 bits of ISA, 32 of EISA and VESA's local bus.
const CARD_WIDTHS: &[u64] = &[1, 2, 4];

/// Which of the buses a parameter with few values belongs to, and these values.
const FEW: [(&str, &[&str], &[u64]); 8] = [
    ("adapter.transfer_width", &["isa"], CARD_WIDTHS),
    ("bus.width", &["pci", "pci-x"], PCI_WIDTHS),
    ("bus.clock", &["pcie"], PCIE_TRANSFERS_PER_SECOND),
    ("bus.lanes", &["pcie"], PCIE_LANES),
    ("bus.payload", &["pcie"], PCIE_PAYLOAD_LENS),
    ("bus.read_request", &["pcie"], PCIE_PAYLOAD_LENS),
    ("bus.completion", &["pcie"], PCIE_PAYLOAD_LENS),
    ("bus.read_request", &["pci-x"], PCIE_PAYLOAD_LENS),
];

impl Profile {
    fn refuse(&self, name: &str, why: String) -> ProfileError {
        key_error(&self.name, name, why)
    }

    /// What no single value can show to be wrong.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let mss = self.value("workload.mss");
        for name in ["host.receive_window", "peer.receive_window", "host.send_buffer"] {
            let window = self.value(name);
            if window < mss {
                let why = format!("a window of {window} bytes does not take one segment of {mss} bytes (workload.mss)");
                return Err(self.refuse(name, why));
            }
        }
        let frame_len = mss + self.value("workload.tcp_options") + HEADERS_LEN;
        for name in ["adapter.receive_fifo", "adapter.transmit_fifo"] {
            let fifo = self.value(name);
            if fifo < frame_len {
                let why = format!(
                    "{fifo} bytes do not take one frame of {frame_len} bytes (workload.mss and its headers): here a FIFO has \
                     whole frames"
                );
                return Err(self.refuse(name, why));
            }
        }
        self.check_bus()?;
        self.check_link()?;
        self.check_offloads()?;
        self.check_queues()
    }

    /// A card that the processor reads is on ISA, a bus master is not, and neither is of a width that does not exist.
    fn check_bus(&self) -> Result<(), ProfileError> {
        let (access, kind) = (self.word("adapter.access"), self.word("bus.kind"));
        if (access == "master") == (kind == "isa") {
            let needed = if access == "master" { "other than \"isa\"" } else { "\"isa\"" };
            return Err(self.refuse("adapter.access", format!("{access:?} needs a bus.kind {needed}; it is {kind:?}")));
        }
        for (name, kinds, values) in FEW {
            if kinds.contains(&kind) && !values.contains(&self.value(name)) {
                let show = |value| schema::find(name).map_or_else(String::new, |key| key.dimension.show(value));
                let values: Vec<_> = values.iter().map(|&value| show(value)).collect();
                let why =
                    format!("there is no {kind} bus of {}; use one of: {}", show(self.value(name)), values.join(", "));
                return Err(self.refuse(name, why));
            }
        }
        Ok(())
    }

    /// Stations that share a line must hear of a collision while they send the shortest frame.
    fn check_link(&self) -> Result<(), ProfileError> {
        let link = LinkConfig {
            rate_bps: self.value("link.rate"),
            full_duplex: self.word("link.duplex") == "full",
            delay: Span(self.value("link.delay")),
        };
        match link.check() {
            Ok(()) => Ok(()),
            Err((name, why)) => Err(self.refuse(name, why)),
        }
    }

    /// What an adapter cannot do that is no bus master, or whose frames are read out one by one.
    fn check_offloads(&self) -> Result<(), ProfileError> {
        let needs = [
            ("adapter.lso", "on", "adapter.access", "master"),
            ("adapter.ipsec", "adapter", "adapter.access", "master"),
            ("adapter.coalesce", "on", "adapter.access", "master"),
            ("adapter.coalesce", "on", "host.receive", "deferred"),
            ("adapter.coalesce", "host", "host.receive", "deferred"),
        ];
        for (name, set, needed, to_be) in needs {
            if self.word(name) == set && self.word(needed) != to_be {
                let why = format!("{set:?} needs {needed} to be {to_be:?}; it is {:?}", self.word(needed));
                return Err(self.refuse(name, why));
            }
        }
        Ok(())
    }

    /// Where there can be several queues. What they could not be combined with is refused, not left out.
    fn check_queues(&self) -> Result<(), ProfileError> {
        let queues = self.value("adapter.queues");
        if queues == 1 {
            return Ok(());
        }
        let refuse = |why: String| Err(self.refuse("adapter.queues", why));
        for (name, needed) in [("adapter.access", "master"), ("adapter.memory_kind", "descriptors")] {
            let is = self.word(name);
            if is != needed {
                return refuse(format!("{queues} queues need {name} to be {needed:?}; it is {is:?}"));
            }
        }
        if self.word("host.placement") == "balanced" {
            return refuse(format!(
                "{queues} queues have a processor each for their interrupts; use host.placement \"pinned\" or \"spread\", \
                 not \"balanced\""
            ));
        }
        if self.value("host.poll_interval") > 0 {
            return refuse(format!("{queues} queues need a driver with interrupts; set host.poll_interval to 0us"));
        }
        Ok(())
    }
}
