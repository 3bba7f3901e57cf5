//! The device's side of a virtqueue: split (virtio 1.3, 2.7) and packed (2.8).
//!
//! Written here and not taken from `virtio-queue`. That crate has no packed ring, checks one descriptor at a
//! time through generic guest memory, and shows a chain to the driver as soon as it is used.
//! These rings fetch chains in batches: each descriptor is read, translated and prefetched once.
//! They publish used chains only when a batch ends, so that a frame over several buffers appears in one step.

use crate::inflight::Part;
use crate::memory::GuestMemory;

mod chain;
mod descriptor;
#[cfg(test)]
mod exhaustive;
mod packed;
mod position;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use chain::Batch;
pub use chain::{Buffer, Chain};
use descriptor::DESCRIPTOR_LEN;

/// Most chains that are fetched at once: enough to hide the latency of their cache lines.
pub const FETCH_MAX: usize = 32;
/// Most descriptors of a chain that are followed, as in Linux' vhost and in QEMU: a ring may have 32 times as many, and one
/// chain must not hold a thread for that long. A table may be longer than its ring, against virtio 1.3, 2.7.5.3.1: drivers
/// do so.
pub const CHAIN_DESCRIPTORS_MAX: u16 = 1024;
/// Buffers after which a fetch ends, however few chains they are.
const FETCH_BUFFERS_MAX: usize = CHAIN_DESCRIPTORS_MAX as usize;
/// Largest ring (virtio 1.3, 2.7 and 2.8.10.1).
pub const QUEUE_SIZE_MAX: u16 = 32768;

/// Why a chain cannot be used. The chain goes back to the driver unused, and the ring goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    /// A buffer lies outside guest memory.
    #[error("an address outside guest memory")]
    Address,
    /// `next` is beyond the table.
    #[error("a descriptor index beyond the ring")]
    Index,
    /// The chain has more descriptors than its table: a loop.
    #[error("a chain without end")]
    Endless,
    /// The chain has more than [`CHAIN_DESCRIPTORS_MAX`] descriptors.
    #[error("more than {CHAIN_DESCRIPTORS_MAX} descriptors")]
    TooMany,
    /// An indirect table that was not negotiated, is too long or empty, or not aligned.
    #[error("an indirect table that is none")]
    Indirect,
    /// A buffer to read in a receive ring, or one to write in a transmit ring.
    #[error("a buffer of the wrong direction")]
    Direction,
    /// The chain's length does not fit into 32 bits.
    #[error("more than 4 GiB")]
    TooLong,
}

/// Why a ring was stopped: its state makes no sense. Nothing can be fetched before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The driver made more chains available than it has.
    #[error("the available index ran past the ring")]
    AvailableIndex,
    /// A head beyond the ring, or a chain longer than the driver's descriptors: it cannot be given back.
    #[error("a chain that cannot be given back")]
    Head,
}

/// Why a ring cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRing {
    /// 0, more than [`QUEUE_SIZE_MAX`], or no power of two in a split ring.
    #[error("ring size out of range, or no power of two in a split ring")]
    Size,
    /// A part of the ring lies outside guest memory, or in two regions.
    #[error("a part of the ring lies outside guest memory")]
    Address,
    /// A part of the ring is not aligned (virtio 1.3, 2.7 and 2.8.10.1).
    #[error("a part of the ring is not aligned")]
    Alignment,
    /// The position to start from is beyond the ring.
    #[error("a base beyond the ring")]
    Base,
    /// The inflight region has positions beyond the ring.
    #[error("an inflight region whose positions are beyond the ring")]
    Inflight,
}

/// How a ring is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingOptions {
    /// `EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// Who writes the buffers.
    pub direction: Direction,
}

/// Who writes the buffers of a ring's chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The driver: a transmit ring.
    #[default]
    Transmit,
    /// The device: a receive ring.
    Receive,
    /// The driver the first of a chain, the device the others: a control queue (virtio 1.3, 5.1.6.5).
    Control,
}

impl Direction {
    /// The flags of a descriptor that is a whole chain, of a frame. A command is none.
    #[inline]
    fn of_a_frame(self) -> u16 {
        match self {
            Self::Transmit => 0,
            Self::Receive => descriptor::WRITE,
            Self::Control => u16::MAX,
        }
    }

    /// Whether a chain of this ring may have a buffer with those descriptor flags.
    #[inline]
    fn takes(self, flags: u16) -> bool {
        match self {
            Self::Transmit => flags & descriptor::WRITE == 0,
            Self::Receive => flags & descriptor::WRITE != 0,
            Self::Control => true,
        }
    }
}

/// Where a ring lies: addresses in the space of [`Extent::user`](crate::memory::Extent::user).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// Entries of the ring.
    pub size: u16,
    /// The descriptor table (split), or the descriptor ring (packed).
    pub descriptors: u64,
    /// The driver area: available ring (split), or driver event suppression (packed).
    pub driver: u64,
    /// The device area: used ring (split), or device event suppression (packed).
    pub device: u64,
}

/// What a fetch found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// New chains that can be used.
    pub chains: usize,
    /// Chains that cannot be used: none, or the last one. It comes with length 0.
    pub bad: usize,
    /// Why it cannot.
    pub reason: Option<BadChain>,
}

/// What became visible to the driver in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Slots: entries of a split ring, descriptors of a packed one.
    pub slots: u16,
    /// Whether the driver needs a notification for them, or for those before it that are unsignalled.
    pub needs_notification: bool,
}

/// Either ring.
#[derive(Debug)]
pub(crate) enum Ring {
    Split(split::Ring),
    Packed(packed::Ring),
}

impl Ring {
    /// Sets up a ring in guest memory. `base` is the transport's word on where to start. A packed ring goes on where
    /// `inflight` has it, if an earlier device left its position there.
    pub fn new(
        memory: &GuestMemory,
        is_packed: bool,
        place: &RingPlace,
        base: u32,
        options: RingOptions,
        inflight: Option<Part>,
    ) -> Result<Self, BadRing> {
        Ok(if is_packed {
            Self::Packed(packed::Ring::new(memory, place, base, options, inflight)?)
        } else {
            Self::Split(split::Ring::new(memory, place, base, options)?)
        })
    }

    /// Fetches at most [`FETCH_MAX`] chains, fewer long ones, and none after a bad one; adds them to `batch`.
    #[inline]
    pub fn fetch(&mut self, memory: &GuestMemory, batch: &mut Batch) -> Result<Fetched, Broken> {
        batch.make_room();
        batch.chains.reserve(FETCH_MAX);
        batch.buffers.reserve(FETCH_MAX);
        let from = batch.chains.len();
        let (fetched, direction) = match self {
            Self::Split(ring) => (ring.fetch(memory, batch)?, ring.options.direction),
            Self::Packed(ring) => (ring.fetch(memory, batch)?, ring.options.direction),
        };
        batch.prefetch(from, direction == Direction::Receive);
        Ok(fetched)
    }

    /// Adds a chain of which `written` bytes were written to the used ones. The driver sees it after
    /// [`Ring::publish`].
    #[inline]
    pub fn add_used(&mut self, chain: &Chain, written: u32) {
        match self {
            Self::Split(ring) => ring.add_used(chain, written),
            Self::Packed(ring) => ring.add_used(chain, written),
        }
    }

    /// Shows the driver all used chains that were added, in one step. `unsignalled`: slots that it saw before, and for
    /// which no notification was decided.
    #[inline]
    pub fn publish(&mut self, unsignalled: u32) -> Published {
        match self {
            Self::Split(ring) => ring.publish(unsignalled),
            Self::Packed(ring) => ring.publish(unsignalled),
        }
    }

    /// Whether the driver needs a notification now, for the last `unsignalled` slots that it was shown.
    ///
    /// A deferred notification is asked about with all slots since the last decision: the driver may have set
    /// `used_event` to any of them, and sleeps until the notification comes.
    pub fn needs_notification(&self, unsignalled: u32) -> bool {
        match self {
            Self::Split(ring) => ring.needs_notification(unsignalled),
            Self::Packed(ring) => ring.needs_notification(unsignalled),
        }
    }

    /// Whether the driver has ever got a used chain in this ring, as far as its position tells.
    pub fn has_run(&self) -> bool {
        match self {
            Self::Split(ring) => ring.has_run(),
            Self::Packed(ring) => ring.has_run(),
        }
    }

    /// Whether the driver has made at least `slots` more available than were fetched. One place of the ring says
    /// that, because drivers make them available in order.
    pub fn has_ahead(&self, slots: u16) -> bool {
        match self {
            Self::Split(ring) => ring.has_ahead(slots),
            Self::Packed(ring) => ring.has_ahead(slots),
        }
    }

    /// Asks the driver for a kick at its next chain.
    pub fn enable_notifications(&mut self) {
        match self {
            Self::Split(ring) => ring.enable_notifications(),
            Self::Packed(ring) => ring.enable_notifications(),
        }
    }

    /// Asks the driver for no kicks.
    pub fn disable_notifications(&mut self) {
        match self {
            Self::Split(ring) => ring.disable_notifications(),
            Self::Packed(ring) => ring.disable_notifications(),
        }
    }

    /// Where a later device starts, with the chains of `batch` as never fetched.
    pub fn base(&self, batch: &Batch) -> u32 {
        match self {
            Self::Split(ring) => ring.base(batch),
            Self::Packed(ring) => ring.base(batch),
        }
    }

    /// The parts of the ring that the device writes, for the dirty log: addresses as in [`RingPlace`], and lengths.
    pub fn written_extents(&self, place: &RingPlace) -> [(u64, u64); 2] {
        let size = u64::from(place.size);
        match self {
            Self::Split(_) => [(place.device, split::used_len(size)), (place.device, 0)],
            Self::Packed(_) => [(place.descriptors, size * DESCRIPTOR_LEN), (place.device, packed::EVENT_LEN)],
        }
    }
}
