//! The device's implementation of a virtqueue, split (virtio 1.3, 2.7) or packed (2.8).
//!
//! The crate `virtio-queue` is not suitable: it has no packed ring, and checks one descriptor at a time through generic
//! guest memory. `virtio-queue` also publishes each chain as soon as the chain is used. The rings of this module fetch
//! chains in batches, and read, translate and prefetch each descriptor once. Used chains are published at the end of a
//! batch, so that all buffers of a frame become visible to the driver in one step.

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

/// Maximum number of chains per fetch. This number is enough to hide the latency of the chains' cache lines.
pub const FETCH_MAX: usize = 32;
/// Maximum number of descriptors per chain, as in Linux' vhost and in QEMU. A ring can have 32 times as many
/// descriptors, but a chain of that length would occupy the device's thread for too long. An indirect table can be
/// longer than the ring, contrary to virtio 1.3, 2.7.5.3.1, because drivers use longer tables.
pub const CHAIN_DESCRIPTORS_MAX: u16 = 1024;
/// Number of buffers after which a fetch ends, even after few chains.
const FETCH_BUFFERS_MAX: usize = CHAIN_DESCRIPTORS_MAX as usize;
/// Maximum size of a ring (virtio 1.3, 2.7 and 2.8.10.1).
pub const QUEUE_SIZE_MAX: u16 = 32768;

/// The reason to refuse a chain. The device returns the chain to the driver without using its buffers, and the ring
/// continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    /// A buffer lies outside guest memory.
    #[error("an address outside guest memory")]
    Address,
    /// The field `next` of a descriptor exceeds the descriptor table.
    #[error("a descriptor index beyond the ring")]
    Index,
    /// The chain has more descriptors than the descriptor table, so the chain is a loop.
    #[error("a chain without end")]
    Endless,
    /// The chain has more than [`CHAIN_DESCRIPTORS_MAX`] descriptors.
    #[error("more than {CHAIN_DESCRIPTORS_MAX} descriptors")]
    TooMany,
    /// The indirect table was not negotiated, is empty, too long, or not aligned.
    #[error("an invalid indirect table")]
    Indirect,
    /// A chain of a receive ring has a device-readable buffer, or a chain of a transmit ring has a device-writable
    /// buffer.
    #[error("a buffer of the wrong direction")]
    Direction,
    /// The chain's length does not fit into 32 bits.
    #[error("more than 4 GiB")]
    TooLong,
}

/// The invalid state that stopped a ring. Fetching is possible only after a new start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The driver made more chains available than the ring can hold.
    #[error("the available index ran past the ring")]
    AvailableIndex,
    /// A chain cannot be returned, because the chain's head exceeds the ring, or the chain has more descriptors than
    /// the driver can own.
    #[error("a chain with an invalid head")]
    Head,
}

/// The reason to refuse the start of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRing {
    /// The size is 0, exceeds [`QUEUE_SIZE_MAX`], or is no power of two in a split ring.
    #[error("ring size out of range, or no power of two in a split ring")]
    Size,
    /// A part of the ring lies outside guest memory, or crosses a region border.
    #[error("a part of the ring lies outside guest memory")]
    Address,
    /// A part of the ring is not aligned (virtio 1.3, 2.7 and 2.8.10.1).
    #[error("a part of the ring is not aligned")]
    Alignment,
    /// The start position exceeds the ring.
    #[error("a base beyond the ring")]
    Base,
    /// A position in the inflight region exceeds the ring.
    #[error("an inflight region with positions beyond the ring")]
    Inflight,
}

/// The options of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingOptions {
    /// True if `EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// True if `INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// The side that writes the buffers: driver, device or both.
    pub direction: Direction,
}

/// The side that writes the buffers in a ring's chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The driver writes all buffers, in a transmit ring.
    #[default]
    Transmit,
    /// The device writes all buffers, in a receive ring.
    Receive,
    /// The driver writes the first buffers of a chain, and the device writes the remaining buffers, in a control queue
    /// (virtio 1.3, 5.1.6.5).
    Control,
}

impl Direction {
    /// Returns the flags of the single descriptor of a chain, if that chain holds a whole frame. For a control queue,
    /// returns flags that no descriptor has.
    #[inline]
    fn of_a_frame(self) -> u16 {
        match self {
            Self::Transmit => 0,
            Self::Receive => descriptor::WRITE,
            Self::Control => u16::MAX,
        }
    }

    /// Returns whether a chain of this ring can have a buffer with these descriptor flags.
    #[inline]
    fn takes(self, flags: u16) -> bool {
        match self {
            Self::Transmit => flags & descriptor::WRITE == 0,
            Self::Receive => flags & descriptor::WRITE != 0,
            Self::Control => true,
        }
    }
}

/// The location of a ring. Addresses are in the address space of [`Extent::user`](crate::memory::Extent::user).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// Number of entries in the ring.
    pub size: u16,
    /// Address of the descriptor table (split), or the descriptor ring (packed).
    pub descriptors: u64,
    /// Address of the driver area: available ring (split), or driver event suppression (packed).
    pub driver: u64,
    /// Address of the device area: used ring (split), or device event suppression (packed).
    pub device: u64,
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Number of new usable chains.
    pub chains: usize,
    /// Number of unusable chains, 0 or 1. The unusable chain is the last fetched chain and has length 0.
    pub bad: usize,
    /// Reason why the unusable chain is refused.
    pub reason: Option<BadChain>,
}

/// The part of a ring that the device made visible to the driver in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of slots: entries of a split ring, or descriptors of a packed ring.
    pub slots: u16,
    /// True if the driver needs a notification for these slots, or for earlier unsignalled slots.
    pub needs_notification: bool,
}

/// A split or packed ring.
#[derive(Debug)]
pub(crate) enum Ring {
    Split(split::Ring),
    Packed(packed::Ring),
}

impl Ring {
    /// Sets up a ring in guest memory. `base` is the start position from the transport. A packed ring resumes at the
    /// position in `inflight`, if an earlier device stored a position there.
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

    /// Fetches at most [`FETCH_MAX`] chains into `batch`. Fetches fewer chains if the chains have many buffers, and no
    /// chain after a bad chain.
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

    /// Adds a chain to the used chains. `written` is the number of bytes that the device has written into the chain.
    /// The driver sees the chain after [`Ring::publish`].
    #[inline]
    pub fn add_used(&mut self, chain: &Chain, written: u32) {
        match self {
            Self::Split(ring) => ring.add_used(chain, written),
            Self::Packed(ring) => ring.add_used(chain, written),
        }
    }

    /// Publishes all added used chains in one step. `unsignalled` is the number of slots published earlier, for which
    /// the device has not yet decided whether to notify the driver.
    #[inline]
    pub fn publish(&mut self, unsignalled: u32) -> Published {
        match self {
            Self::Split(ring) => ring.publish(unsignalled),
            Self::Packed(ring) => ring.publish(unsignalled),
        }
    }

    /// Returns whether the driver now needs a notification for the last `unsignalled` published slots.
    ///
    /// For a deferred notification, pass the number of all slots published since the last decision about a
    /// notification. The driver might have set `used_event` to the position of any of these slots, and might sleep
    /// until the notification.
    pub fn needs_notification(&self, unsignalled: u32) -> bool {
        match self {
            Self::Split(ring) => ring.needs_notification(unsignalled),
            Self::Packed(ring) => ring.needs_notification(unsignalled),
        }
    }

    /// Returns whether the ring's position shows that the driver has already received a used chain.
    pub fn has_run(&self) -> bool {
        match self {
            Self::Split(ring) => ring.has_run(),
            Self::Packed(ring) => ring.has_run(),
        }
    }

    /// Returns whether the driver has made at least `slots` unfetched slots available. Reads only one word of the ring,
    /// because drivers make slots available in order.
    pub fn has_ahead(&self, slots: u16) -> bool {
        match self {
            Self::Split(ring) => ring.has_ahead(slots),
            Self::Packed(ring) => ring.has_ahead(slots),
        }
    }

    /// Requests a kick from the driver when the driver adds the next chain.
    pub fn enable_notifications(&mut self) {
        match self {
            Self::Split(ring) => ring.enable_notifications(),
            Self::Packed(ring) => ring.enable_notifications(),
        }
    }

    /// Tells the driver that no kicks are needed.
    pub fn disable_notifications(&mut self) {
        match self {
            Self::Split(ring) => ring.disable_notifications(),
            Self::Packed(ring) => ring.disable_notifications(),
        }
    }

    /// Returns the start position for a later device. The later device fetches the chains of `batch` again.
    pub fn base(&self, batch: &Batch) -> u32 {
        match self {
            Self::Split(ring) => ring.base(batch),
            Self::Packed(ring) => ring.base(batch),
        }
    }

    /// Returns the parts of the ring to which the device writes, for the dirty log. Each part has an address as in
    /// [`RingPlace`], and a length.
    pub fn written_extents(&self, place: &RingPlace) -> [(u64, u64); 2] {
        let size = u64::from(place.size);
        match self {
            Self::Split(_) => [(place.device, split::used_len(size)), (place.device, 0)],
            Self::Packed(_) => [(place.descriptors, size * DESCRIPTOR_LEN), (place.device, packed::EVENT_LEN)],
        }
    }
}
