//! The settings of a guest.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use super::{Guest, TxLayout};
use crate::features::{self, protocol};
use crate::frontend::{Dialect, Frontend, HandshakeOptions};
use crate::hugepages::HugePages;
use crate::memory::{GuestMemory, RegionSpec};

/// Default length of a guest's memory in bytes. Untouched pages cost nothing.
const MEMORY_LEN: u64 = 256 << 20;
/// Guest address of the default memory. The address is not 0, so that guest addresses and offsets differ.
const MEMORY_AT: u64 = 0x4000_0000;
/// Default number of descriptors of a ring.
const QUEUE_SIZE: u16 = 256;

/// A builder for a [`Guest`].
#[derive(Clone, Debug)]
pub struct GuestBuilder {
    pub(super) handshake: HandshakeOptions,
    pub(super) queue_size: u16,
    pub(super) queue_pairs: u16,
    pub(super) interrupts: bool,
    pub(super) layout: TxLayout,
    memory: Vec<RegionSpec>,
    huge_pages: Option<Arc<HugePages>>,
    pub(super) inflight: bool,
    pub(super) control_queue: bool,
}

impl Default for GuestBuilder {
    fn default() -> Self {
        Self {
            handshake: HandshakeOptions {
                dialect: Dialect::Qemu,
                required: features::VERSION_1,
                optional: 0,
                protocol: protocol::MQ | protocol::REPLY_ACK | protocol::STATUS,
                enables: true,
            },
            queue_size: QUEUE_SIZE,
            queue_pairs: 1,
            interrupts: false,
            layout: TxLayout::default(),
            memory: vec![RegionSpec::new(MEMORY_AT, MEMORY_LEN)],
            huge_pages: None,
            inflight: false,
            control_queue: false,
        }
    }
}

impl GuestBuilder {
    /// Uses split rings.
    #[must_use]
    pub fn split(self) -> Self {
        self.require(features::RING_PACKED, false)
    }

    /// Uses packed rings.
    #[must_use]
    pub fn packed(self) -> Self {
        self.require(features::RING_PACKED, true)
    }

    /// Makes the backend track the chains in flight in an inflight region (`INFLIGHT_SHMFD`), and passes this region to
    /// the new backend after a reconnect.
    #[must_use]
    pub fn inflight(mut self) -> Self {
        self.handshake.protocol |= protocol::INFLIGHT_SHMFD;
        Self { inflight: true, ..self }
    }

    /// Sets the number of descriptors of every ring: a power of two for split rings, any number up to 32768 for packed
    /// rings.
    #[must_use]
    pub fn queue_size(self, descriptors: u16) -> Self {
        Self { queue_size: descriptors, ..self }
    }

    /// Sets the number of queue pairs. With more than one pair, the guest needs vhost-user's protocol feature `MQ`, and
    /// accepts virtio's features `MQ` and `CTRL_VQ` if the backend offers them.
    #[must_use]
    pub fn queue_pairs(self, pairs: u16) -> Self {
        let optional = if pairs > 1 { features::MQ | features::CTRL_VQ } else { 0 };
        Self { queue_pairs: pairs, ..self.features_if_offered(optional) }
    }

    /// Adds required features (see [`crate::features`]): the negotiation panics if the backend does not offer one of
    /// these features.
    #[must_use]
    pub fn features(self, mask: u64) -> Self {
        self.require(mask, true)
    }

    /// Uses a driver older than virtio 1.0. The driver does not negotiate `VERSION_1`, and its header has 10 bytes if
    /// buffers are not mergeable (virtio 1.3, 5.1.6.1).
    #[must_use]
    pub fn legacy(self) -> Self {
        self.require(features::VERSION_1, false)
    }

    /// Adds features that the guest accepts if the backend offers them.
    #[must_use]
    pub fn features_if_offered(mut self, mask: u64) -> Self {
        self.handshake.optional |= mask;
        self
    }

    /// Sets the protocol features that the guest accepts if the backend offers them. The default is `MQ`, `REPLY_ACK`
    /// and `STATUS`.
    #[must_use]
    pub fn protocol_features(mut self, mask: u64) -> Self {
        self.handshake.protocol = mask;
        self
    }

    /// Sets whether one received frame can fill several buffers (`MRG_RXBUF`).
    #[must_use]
    pub fn mergeable(self, on: bool) -> Self {
        self.require(features::MRG_RXBUF, on)
    }

    /// Sets whether indirect tables are negotiated. Also sets [`TxLayout::indirect`], which controls whether sent
    /// frames use indirect tables.
    #[must_use]
    pub fn indirect(mut self, on: bool) -> Self {
        self.layout.indirect = on;
        self.require(features::INDIRECT_DESC, on)
    }

    /// Sets whether kicks and interrupts are requested by ring position (`EVENT_IDX`).
    #[must_use]
    pub fn event_idx(self, on: bool) -> Self {
        self.require(features::EVENT_IDX, on)
    }

    /// Sets whether the device must use chains in the order in which they were made available (`IN_ORDER`).
    #[must_use]
    pub fn in_order(self, on: bool) -> Self {
        self.require(features::IN_ORDER, on)
    }

    /// Sets whether the queues sleep until an interrupt of the device. If `on` is true, a wait fails if the device
    /// sends no interrupt. If `on` is false, the queues request no interrupts and poll the rings.
    #[must_use]
    pub fn interrupts(self, on: bool) -> Self {
        Self { interrupts: on, ..self }
    }

    /// Adds a control queue handled by the backend. The vring of the control queue follows the vrings of all pairs.
    #[must_use]
    pub fn control_queue(self) -> Self {
        Self { control_queue: true, ..self.require(features::CTRL_VQ, true) }
    }

    /// Sets whether the guest sends `SET_VRING_ENABLE` for each ring after the start of the ring. If `on` is false, the
    /// test can enable the rings later.
    #[must_use]
    pub fn enabled(mut self, on: bool) -> Self {
        self.handshake.enables = on;
        self
    }

    /// Sets the order of the requests in the handshake.
    #[must_use]
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.handshake.dialect = dialect;
        self
    }

    /// Sets the regions of guest memory.
    #[must_use]
    pub fn memory(self, regions: &[RegionSpec]) -> Self {
        Self { memory: regions.to_vec(), ..self }
    }

    /// Uses huge pages for the guest's memory.
    #[must_use]
    pub fn huge_pages(self, pages: &Arc<HugePages>) -> Self {
        Self { huge_pages: Some(Arc::clone(pages)), ..self }
    }

    /// Sets the layout of sent frames in descriptors. The queues can change the layout later.
    #[must_use]
    pub fn tx_layout(self, layout: TxLayout) -> Self {
        Self { layout, ..self }
    }

    fn require(mut self, mask: u64, on: bool) -> Self {
        let required = self.handshake.required;
        self.handshake.required = if on { required | mask } else { required & !mask };
        self
    }

    /// Connects to the backend that listens at `path`, negotiates features, and starts the guest's rings.
    pub fn connect(&self, path: impl AsRef<Path>) -> Guest {
        self.over(Frontend::connect(path))
    }

    /// Waits for a backend that connects to `listener`, negotiates features, and starts the guest's rings.
    pub fn accept(&self, listener: &UnixListener) -> Guest {
        self.over(Frontend::accept(listener))
    }

    /// Negotiates features over a connection on which no message was sent yet, and starts the guest's rings.
    pub fn over(&self, frontend: Frontend) -> Guest {
        Guest::new(self, frontend)
    }

    pub(super) fn new_memory(&self) -> GuestMemory {
        match &self.huge_pages {
            Some(pages) => GuestMemory::on_huge_pages(&self.memory, pages),
            None => GuestMemory::new(&self.memory),
        }
    }
}
