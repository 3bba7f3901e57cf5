//! The device's side of a virtqueue: split (virtio 1.3, 2.7) and packed (2.8).
//!
//! `virtio-queue` does not serve here: it has no packed ring, and checks one descriptor at a time through generic guest
//! memory. It also shows a chain to the driver as soon as it is used. These rings fetch chains in batches: each
//! descriptor is read, translated and prefetched once. They publish used chains only when a batch ends, so that a frame
//! over several buffers appears in one step.

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

/// Maximum number of chains per fetch: enough to hide the latency of their cache lines.
pub const FETCH_MAX: usize = 32;
/// Maximum number of descriptors per chain, as in Linux' vhost and in QEMU. A ring may have 32 times as many, and one
/// chain must not hold a thread for that long. A table may be longer than its ring, against virtio 1.3, 2.7.5.3.1,
/// because drivers use such tables.
pub const CHAIN_DESCRIPTORS_MAX: u16 = 1024;
/// A fetch ends after this many buffers, even with few chains.
const FETCH_BUFFERS_MAX: usize = CHAIN_DESCRIPTORS_MAX as usize;
/// Largest ring (virtio 1.3, 2.7 and 2.8.10.1).
pub const QUEUE_SIZE_MAX: u16 = 32768;

/// The reason for rejecting a chain. The chain goes back to the driver unused, and the ring goes on.
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
    #[error("an invalid indirect table")]
    Indirect,
    /// A buffer to read in a receive ring, or one to write in a transmit ring.
    #[error("a buffer of the wrong direction")]
    Direction,
    /// The chain's length does not fit into 32 bits.
    #[error("more than 4 GiB")]
    TooLong,
}

/// The invalid state that stopped a ring. Nothing can be fetched before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The driver made more chains available than it has.
    #[error("the available index ran past the ring")]
    AvailableIndex,
    /// A head beyond the ring, or a chain longer than the driver's descriptors: it cannot be given back.
    #[error("a chain with an invalid head")]
    Head,
}

/// The reason for refusing to start a ring.
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
    #[error("an inflight region with positions beyond the ring")]
    Inflight,
}

/// Options for reading and writing a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingOptions {
    /// `EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// The writer of the buffers.
    pub direction: Direction,
}

/// The writer of the buffers of a ring's chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The driver: a transmit ring.
    #[default]
    Transmit,
    /// The device: a receive ring.
    Receive,
    /// The driver writes the first buffers of a chain, the device the others: a control queue (virtio 1.3, 5.1.6.5).
    Control,
}

impl Direction {
    /// Returns the flags of a single-descriptor chain with a frame. No command has these.
    #[inline]
    fn of_a_frame(self) -> u16 {
        match self {
            Self::Transmit => 0,
            Self::Receive => descriptor::WRITE,
            Self::Control => u16::MAX,
        }
    }

    /// Returns whether a chain of this ring may have a buffer with those descriptor flags.
    #[inline]
    fn takes(self, flags: u16) -> bool {
        match self {
            Self::Transmit => flags & descriptor::WRITE == 0,
            Self::Receive => flags & descriptor::WRITE != 0,
            Self::Control => true,
        }
    }
}

/// The location of a ring: addresses in the space of [`Extent::user`](crate::memory::Extent::user).
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

/// The result of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// New chains, all usable.
    pub chains: usize,
    /// Unusable chains: none, or the last one. It has length 0.
    pub bad: usize,
    /// The reason for rejecting it.
    pub reason: Option<BadChain>,
}

/// The part of a ring made visible to the driver in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Slots: entries of a split ring, descriptors of a packed one.
    pub slots: u16,
    /// The driver needs a notification for these slots, or for earlier unsignalled ones.
    pub needs_notification: bool,
}

/// A ring of either layout.
#[derive(Debug)]
pub(crate) enum Ring {
    Split(split::Ring),
    Packed(packed::Ring),
}

impl Ring {
    /// Sets up a ring in guest memory. `base` is the transport's start position. A packed ring resumes at the position
    /// in `inflight`, if an earlier device left one there.
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

    /// Fetches at most [`FETCH_MAX`] chains into `batch`: fewer long ones, and none after a bad one.
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

    /// Adds a chain with `written` written bytes to the used ones. The driver sees it after [`Ring::publish`].
    #[inline]
    pub fn add_used(&mut self, chain: &Chain, written: u32) {
        match self {
            Self::Split(ring) => ring.add_used(chain, written),
            Self::Packed(ring) => ring.add_used(chain, written),
        }
    }

    /// Shows the driver all added used chains in one step. `unsignalled`: earlier visible slots without a decision on
    /// their notification.
    #[inline]
    pub fn publish(&mut self, unsignalled: u32) -> Published {
        match self {
            Self::Split(ring) => ring.publish(unsignalled),
            Self::Packed(ring) => ring.publish(unsignalled),
        }
    }

    /// Returns whether the driver needs a notification now for its last `unsignalled` visible slots.
    ///
    /// For a deferred notification, pass all slots since the last decision: the driver may have set `used_event` to any
    /// of them, and sleeps until the notification comes.
    pub fn needs_notification(&self, unsignalled: u32) -> bool {
        match self {
            Self::Split(ring) => ring.needs_notification(unsignalled),
            Self::Packed(ring) => ring.needs_notification(unsignalled),
        }
    }

    /// Returns whether the ring's position shows that the driver has ever received a used chain.
    pub fn has_run(&self) -> bool {
        match self {
            Self::Split(ring) => ring.has_run(),
            Self::Packed(ring) => ring.has_run(),
        }
    }

    /// Returns whether the driver has made at least `slots` more available than were fetched. One place of the ring
    /// tells it, because drivers make slots available in order.
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

    /// Returns the start position for a later device; it fetches the chains of `batch` again.
    pub fn base(&self, batch: &Batch) -> u32 {
        match self {
            Self::Split(ring) => ring.base(batch),
            Self::Packed(ring) => ring.base(batch),
        }
    }

    /// Returns the parts of the ring written by the device, for the dirty log: addresses as in [`RingPlace`], and
    /// lengths.
    pub fn written_extents(&self, place: &RingPlace) -> [(u64, u64); 2] {
        let size = u64::from(place.size);
        match self {
            Self::Split(_) => [(place.device, split::used_len(size)), (place.device, 0)],
            Self::Packed(_) => [(place.descriptors, size * DESCRIPTOR_LEN), (place.device, packed::EVENT_LEN)],
        }
    }
}
