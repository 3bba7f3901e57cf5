//! The device's side of a virtqueue, split (virtio 1.3, 2.7) and packed (2.8).
//!
//! Written here and not taken from `virtio-queue`: that crate has no packed ring, copies and checks one
//! descriptor at a time through generic guest memory, and makes a chain visible as soon as it is used.
//! These rings fetch chains in batches (each descriptor is read once, translated once, and prefetched),
//! and show what is used only when a batch ends, so that a frame over several buffers appears in one step.

use std::ptr::NonNull;

use super::inflight::Part;
use super::memory::{GuestMemory, Window};

mod packed;
mod split;
#[cfg(test)]
mod tests;

pub(super) use packed::PackedRing;
pub(super) use split::SplitRing;

/// Descriptor flag: the chain goes on (virtio 1.3, 2.7.5, 2.8.1).
const NEXT: u16 = 1;
/// Descriptor flag: the device may write (and not read) this buffer.
const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
const INDIRECT: u16 = 4;
/// Bytes of a descriptor, in either ring.
const DESCRIPTOR_LEN: u64 = 16;
/// Most descriptors of an indirect table that are followed. A table may not be longer than its ring
/// (virtio 1.3, 2.7.5.3.1), but drivers do so; QEMU's limit is the same.
const INDIRECT_MAX: u64 = 1024;
/// Most chains that are fetched at once: enough to hide the latency of their cache lines.
pub(super) const FETCH_MAX: usize = 32;
/// How many taken chains are kept before those that wait are moved to the front: seldom enough to cost
/// nothing, and what is kept stays in the cache.
const TAKEN_MAX: usize = 8 * FETCH_MAX;

/// What the driver lays out in a descriptor, read from shared memory in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Descriptor {
    addr: u64,
    len: u32,
    /// Split: flags. Packed: buffer ID.
    third: u16,
    /// Split: next. Packed: flags.
    fourth: u16,
}

const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_LEN);

/// Part of a chain, translated and checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub host: NonNull<u8>,
    /// Guest-physical address, for the dirty log.
    pub guest: u64,
    pub len: u32,
}

/// A chain that was fetched: its buffers are in the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// What the driver is given back: the head's index (split) or the buffer ID (packed).
    id: u16,
    /// Entries of the ring that it occupies: 1 in a split ring's available ring.
    slots: u16,
    first: u32,
    count: u32,
    /// Bytes of all buffers together.
    pub len: u32,
}

/// A chain that is given back, until the driver sees it. Kept in private memory so long: the driver looks at
/// the cache lines of its ring all the time, and each is to change hands once.
#[derive(Clone, Copy, Debug)]
struct Used {
    id: u16,
    slots: u16,
    written: u32,
}

/// Chains that were fetched and not used yet, in the order of the ring.
#[derive(Debug, Default)]
pub(super) struct Batch {
    chains: Vec<Chain>,
    buffers: Vec<Buffer>,
    next: usize,
}

// SAFETY: the pointers of a batch are into guest memory that its queue keeps mapped; see `Region`.
unsafe impl Send for Batch {}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.next == self.chains.len()
    }

    /// Chains that wait.
    pub fn waiting(&self) -> &[Chain] {
        &self.chains[self.next..]
    }

    pub fn buffers(&self, chain: &Chain) -> &[Buffer] {
        &self.buffers[chain.first as usize..][..chain.count as usize]
    }

    /// Adds a chain of one buffer that lies in the window, as almost every chain is; whether this was one.
    /// Everything else takes the long way.
    #[inline]
    fn push_single(&mut self, window: &Window, descriptor: &Descriptor, flags: u16, id: u16, writable: bool) -> bool {
        let wanted = if writable { WRITE } else { 0 };
        if flags & (NEXT | INDIRECT | WRITE) != wanted || descriptor.len == 0 {
            return false;
        }
        let Some(host) = window.at(descriptor.addr, u64::from(descriptor.len)) else { return false };
        let first = self.buffers.len() as u32;
        self.buffers.push(Buffer { host, guest: descriptor.addr, len: descriptor.len });
        self.chains.push(Chain { id, slots: 1, first, count: 1, len: descriptor.len });
        true
    }

    /// Takes the next chain.
    #[inline]
    pub fn pop(&mut self) -> Option<Chain> {
        let chain = *self.chains.get(self.next)?;
        self.next += 1;
        Some(chain)
    }

    /// Forgets what was taken. What waits stays.
    fn make_room(&mut self) {
        if self.is_empty() {
            self.clear();
        } else if self.next >= TAKEN_MAX {
            self.forget_taken();
        }
    }

    /// A receive ring may be such that some chains always wait: what was taken must not pile up before them.
    #[cold]
    fn forget_taken(&mut self) {
        self.chains.drain(..self.next);
        self.next = 0;
        let buffers = self.chains.first().map_or(self.buffers.len(), |chain| chain.first as usize);
        self.buffers.drain(..buffers);
        for chain in &mut self.chains {
            chain.first -= buffers as u32;
        }
    }

    pub fn clear(&mut self) {
        self.chains.clear();
        self.buffers.clear();
        self.next = 0;
    }

    /// Asks for the first lines of every buffer from chain `from` on.
    #[inline]
    fn prefetch(&self, from: usize, writable: bool) {
        const LINE: usize = 64;
        let first = self.chains.get(from).map_or(self.buffers.len(), |chain| chain.first as usize);
        for buffer in &self.buffers[first..] {
            let start = buffer.host.as_ptr();
            for line in [start, start.wrapping_add(LINE)] {
                if writable { prefetch_to_write(line) } else { prefetch(line) }
            }
        }
    }
}

/// A chain that cannot be used as it is. The chain goes back to the driver unused; the ring goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadChain {
    #[error("an address outside guest memory")]
    Address,
    #[error("a descriptor index beyond the ring")]
    Index,
    #[error("a chain without end")]
    Endless,
    #[error("an indirect table that is none")]
    Indirect,
    #[error("a buffer of the wrong direction")]
    Direction,
    #[error("more than 4 GiB")]
    TooLong,
}

/// A ring whose state makes no sense; nothing more can be taken from it until it is set up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("the available index ran past the ring")]
    AvailableIndex,
    #[error("a chain that cannot be given back")]
    Head,
}

/// Why a ring cannot be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadRing {
    #[error("ring size out of range, or no power of two in a split ring")]
    Size,
    #[error("a part of the ring lies outside guest memory")]
    Address,
    #[error("a part of the ring is not aligned")]
    Alignment,
    #[error("a base beyond the ring")]
    Base,
    #[error("an inflight region whose positions are beyond the ring")]
    Inflight,
}

/// What decides how a ring is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingOptions {
    pub event_idx: bool,
    pub indirect: bool,
    /// Buffers are the device's to write (receive).
    pub writable: bool,
}

/// Where a ring lies: addresses of the frontend (`SET_VRING_ADDR`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingPlace {
    pub size: u16,
    pub descriptors: u64,
    /// Split: available ring. Packed: driver event suppression.
    pub driver: u64,
    /// Split: used ring. Packed: device event suppression.
    pub device: u64,
}

/// What fetching found, besides chains.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// New chains in the batch.
    pub chains: usize,
    /// Chains that went back to the driver unused.
    pub bad: usize,
    /// Why the last of them did.
    pub reason: Option<BadChain>,
}

/// Either ring.
#[derive(Debug)]
pub(super) enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

impl Ring {
    /// Sets up a ring in guest memory. `base` is what `SET_VRING_BASE` said; of a packed ring `inflight` says more, if
    /// an earlier backend was there.
    pub fn new(
        memory: &GuestMemory,
        is_packed: bool,
        place: &RingPlace,
        base: u32,
        options: RingOptions,
        inflight: Option<Part>,
    ) -> Result<Self, BadRing> {
        Ok(if is_packed {
            Self::Packed(PackedRing::new(memory, place, base, options, inflight)?)
        } else {
            Self::Split(SplitRing::new(memory, place, base, options)?)
        })
    }

    /// Fetches chains behind those that wait in `batch`: at most [`FETCH_MAX`].
    #[inline]
    pub fn fetch(&mut self, memory: &GuestMemory, batch: &mut Batch) -> Result<Fetched, Broken> {
        batch.make_room();
        batch.chains.reserve(FETCH_MAX);
        batch.buffers.reserve(FETCH_MAX);
        let from = batch.chains.len();
        let (fetched, writable) = match self {
            Self::Split(ring) => (ring.fetch(memory, batch)?, ring.options.writable),
            Self::Packed(ring) => (ring.fetch(memory, batch)?, ring.options.writable),
        };
        batch.prefetch(from, writable);
        Ok(fetched)
    }

    /// Gives a chain back, `written` bytes of it written. The driver does not see it before
    /// [`Ring::publish`].
    #[inline]
    pub fn put_used(&mut self, chain: &Chain, written: u32) {
        match self {
            Self::Split(ring) => ring.put_used(chain, written),
            Self::Packed(ring) => ring.put_used(chain, written),
        }
    }

    /// Shows the driver everything that was put, in one step. How much that was, and whether the driver wants
    /// to be called for it or for the `undecided` slots before it, of which was not decided yet.
    #[inline]
    pub fn publish(&mut self, undecided: u32) -> Published {
        match self {
            Self::Split(ring) => ring.publish(undecided),
            Self::Packed(ring) => ring.publish(undecided),
        }
    }

    /// Whether the driver wants to be called, as it is now, for the last `undecided` slots that it was shown.
    ///
    /// It may have asked for a call, and not look again before it comes, as long as its wish is for one of these
    /// slots; so a call that was put off is asked about with all that was shown since the last decision.
    pub fn wants_call(&self, undecided: u32) -> bool {
        match self {
            Self::Split(ring) => ring.wants_call(undecided),
            Self::Packed(ring) => ring.wants_call(undecided),
        }
    }

    /// Whether the driver has been given anything back in this ring, as far as its position tells.
    pub fn has_run(&self) -> bool {
        match self {
            Self::Split(ring) => ring.has_run(),
            Self::Packed(ring) => ring.has_run(),
        }
    }

    /// Whether the driver has made at least `slots` more available than were fetched. A look at one place of the
    /// ring: drivers make them available in order.
    pub fn has_ahead(&self, slots: u16) -> bool {
        match self {
            Self::Split(ring) => ring.has_ahead(slots),
            Self::Packed(ring) => ring.has_ahead(slots),
        }
    }

    /// Asks the driver for a kick at its next chain.
    pub fn arm(&mut self) {
        match self {
            Self::Split(ring) => ring.arm(),
            Self::Packed(ring) => ring.arm(),
        }
    }

    /// Asks the driver for no kicks.
    pub fn disarm(&mut self) {
        match self {
            Self::Split(ring) => ring.disarm(),
            Self::Packed(ring) => ring.disarm(),
        }
    }

    /// What `GET_VRING_BASE` answers, with the chains of `batch` as never fetched.
    pub fn base(&self, batch: &Batch) -> u32 {
        match self {
            Self::Split(ring) => ring.base(batch),
            Self::Packed(ring) => ring.base(batch),
        }
    }

    /// What the device writes of the ring, as frontend addresses and lengths: what a dirty log must have.
    pub fn written_extents(&self, place: &RingPlace) -> [(u64, u64); 2] {
        let size = u64::from(place.size);
        match self {
            Self::Split(_) => [(place.device, split::used_len(size)), (place.device, 0)],
            Self::Packed(_) => [(place.descriptors, size * DESCRIPTOR_LEN), (place.device, packed::EVENT_LEN)],
        }
    }
}

/// What [`Ring::publish`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    /// Slots of the ring that became visible: entries of a split ring, descriptors of a packed one.
    pub slots: u16,
    pub wants_call: bool,
}

/// Whether an event index was passed on the way from `old` to `new` (virtio 1.3, 2.7.7.2).
fn is_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Reads a descriptor that the guest may be writing.
///
/// # Safety
/// `at` points to 16 readable bytes, aligned to 8.
#[inline]
unsafe fn read_descriptor(at: *const Descriptor) -> Descriptor {
    // SAFETY: as the caller promises. Volatile: it is read once, whatever the compiler thinks.
    unsafe { at.read_volatile() }
}

/// Adds one buffer of a chain, in pieces where it crosses the border of two regions.
#[inline]
fn add_buffer(memory: &GuestMemory, guest: u64, len: u32, buffers: &mut Vec<Buffer>) -> Result<(), BadChain> {
    if len == 0 {
        return Ok(());
    }
    match memory.at_guest(guest, u64::from(len)) {
        Some(host) => buffers.push(Buffer { host, guest, len }),
        None => add_pieces(memory, guest, len, buffers)?,
    }
    Ok(())
}

#[cold]
fn add_pieces(memory: &GuestMemory, mut guest: u64, len: u32, buffers: &mut Vec<Buffer>) -> Result<(), BadChain> {
    let mut left = u64::from(len);
    while left > 0 {
        let piece = memory.left_at_guest(guest).ok_or(BadChain::Address)?.min(left);
        let host = memory.at_guest(guest, piece).ok_or(BadChain::Address)?;
        buffers.push(Buffer { host, guest, len: piece as u32 });
        guest = guest.checked_add(piece).ok_or(BadChain::Address)?;
        left -= piece;
    }
    Ok(())
}

/// Opens an indirect table: where it is, and how many descriptors it has.
fn indirect_table(memory: &GuestMemory, addr: u64, len: u32) -> Result<(NonNull<Descriptor>, u16), BadChain> {
    let entries = u64::from(len) / DESCRIPTOR_LEN;
    if entries == 0 || entries > INDIRECT_MAX || !u64::from(len).is_multiple_of(DESCRIPTOR_LEN) {
        return Err(BadChain::Indirect);
    }
    let table = memory.at_guest(addr, u64::from(len)).ok_or(BadChain::Address)?.cast::<Descriptor>();
    if !table.is_aligned() {
        return Err(BadChain::Indirect);
    }
    Ok((table, entries as u16))
}

/// Closes a chain whose buffers were added from `first` on.
fn close_chain(id: u16, slots: u16, first: usize, buffers: &[Buffer]) -> Result<Chain, BadChain> {
    let len: u64 = buffers[first..].iter().map(|buffer| u64::from(buffer.len)).sum();
    let len = u32::try_from(len).map_err(|_| BadChain::TooLong)?;
    Ok(Chain { id, slots, first: first as u32, count: (buffers.len() - first) as u32, len })
}

/// Asks for a cache line that will be read or written soon.
#[inline]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on the caches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// As [`prefetch`], taking the line from whoever has it.
#[inline]
fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`; a processor that does not know the instruction does nothing. The intrinsic for it
    // becomes a plain prefetch unless the whole program is compiled for newer processors.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
