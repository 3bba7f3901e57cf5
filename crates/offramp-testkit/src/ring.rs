//! Drivers of virtqueues (virtio 1.3, 2.7 split and 2.8 packed). Correct behaviour is available as `add`, `publish` and
//! `take_used`. Wrong behaviour is possible with raw access to every descriptor, index and flag.
//!
//! `add` writes chains into the ring, but the device does not see the chains yet. `publish` makes all added chains
//! visible in one step, and returns whether the device requested a kick.

mod packed;
mod split;

pub use packed::{PackedDescriptor, PackedDriver};
pub use split::{SplitDescriptor, SplitDriver};

use crate::memory::GuestMemory;

/// Descriptor flag: another descriptor of the chain follows (virtio 1.3, 2.7.5 and 2.8.6).
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer (virtio 1.3, 2.7.5 and 2.8.3).
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors (virtio 1.3, 2.7.5.3 and 2.8.7).
pub const DESC_INDIRECT: u16 = 4;
/// Descriptor flag of a packed ring: together with [`DESC_USED`], indicates the owner of the descriptor (virtio 1.3,
/// 2.8.1).
pub const DESC_AVAIL: u16 = 1 << 7;
/// Descriptor flag of a packed ring: together with [`DESC_AVAIL`], indicates the owner of the descriptor (virtio 1.3,
/// 2.8.1).
pub const DESC_USED: u16 = 1 << 15;

/// Value of `flags` in a split ring's available ring: no interrupts (virtio 1.3, 2.7.6).
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Value of `flags` in a split ring's used ring: no kicks (virtio 1.3, 2.7.8).
pub const USED_NO_NOTIFY: u16 = 1;

/// Event suppression of a packed ring: notify of every event (virtio 1.3, 2.8.14).
pub const EVENT_ENABLE: u16 = 0;
/// Event suppression of a packed ring: notify of no event (virtio 1.3, 2.8.14).
pub const EVENT_DISABLE: u16 = 1;
/// Event suppression of a packed ring: notify when the ring passes the descriptor named in `off_wrap` (virtio 1.3,
/// 2.8.14).
pub const EVENT_DESC: u16 = 2;

/// Length of a descriptor in bytes, in split and packed rings.
pub const DESC_LEN: u64 = 16;
/// Bit of the wrap counter in an `off_wrap` or in a vring base (virtio 1.3, 2.8.14).
pub const WRAP_BIT: u16 = 1 << 15;

/// A buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Length of the buffer in bytes.
    pub len: u32,
    /// True if the device writes the buffer, false if the device reads it.
    pub writable: bool,
}

impl Buffer {
    /// Returns a buffer that the device reads.
    pub fn readable(addr: u64, len: usize) -> Self {
        Self { addr, len: len as u32, writable: false }
    }

    /// Returns a buffer that the device writes.
    pub fn writable(addr: u64, len: usize) -> Self {
        Self { addr, len: len as u32, writable: true }
    }

    fn flags(&self) -> u16 {
        if self.writable { DESC_WRITE } else { 0 }
    }
}

/// Returns the total length of a chain's device-writable buffers in bytes.
fn writable_len(buffers: &[Buffer]) -> u32 {
    let writable = buffers.iter().filter(|buffer| buffer.writable);
    writable.fold(0, |sum, buffer| sum.saturating_add(buffer.len))
}

/// A chain used by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// ID of the chain, as returned by `add`.
    pub id: u16,
    /// Number of written bytes, as reported by the device. For a chain that an in-order device did not report, the
    /// number of all writable bytes.
    pub len: u32,
}

/// The negotiated options of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingOptions {
    /// True with `EVENT_IDX`: kicks and interrupts are requested by ring position.
    pub event_idx: bool,
    /// True with `IN_ORDER`: the device can report only the last chain of a batch.
    pub in_order: bool,
}

/// The guest addresses of a ring's three areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Address of the descriptors.
    pub descriptors: u64,
    /// Address of the driver area: the available ring, or driver event suppression in a packed ring.
    pub driver: u64,
    /// Address of the device area: the used ring, or device event suppression in a packed ring.
    pub device: u64,
}

/// The driver of a split or packed virtqueue.
#[derive(Debug)]
pub enum Virtqueue {
    /// The driver of a split ring.
    Split(SplitDriver),
    /// The driver of a packed ring.
    Packed(PackedDriver),
}

/// Makes the same call on a split or packed ring.
macro_rules! either {
    ($queue:ident, $ring:ident => $call:expr) => {
        match $queue {
            Virtqueue::Split($ring) => $call,
            Virtqueue::Packed($ring) => $call,
        }
    };
}

impl Virtqueue {
    /// Makes a ring of `size` descriptors in newly allocated guest memory.
    pub fn new(memory: &GuestMemory, packed: bool, size: u16, options: RingOptions) -> Self {
        if packed {
            Self::Packed(PackedDriver::new(memory, size, options))
        } else {
            Self::Split(SplitDriver::new(memory, size, options))
        }
    }

    /// Adds a chain (see [`SplitDriver::add`]).
    pub fn add(&mut self, direct: &[Buffer], indirect: &[Buffer]) -> Option<u16> {
        either!(self, ring => ring.add(direct, indirect))
    }

    /// Publishes added chains (see [`SplitDriver::publish`]).
    pub fn publish(&mut self) -> bool {
        either!(self, ring => ring.publish())
    }

    /// Takes the next used chain (see [`SplitDriver::take_used`]).
    pub fn take_used(&mut self) -> Option<Used> {
        either!(self, ring => ring.take_used())
    }

    /// Returns the used chains that `take_used` has not returned yet (see [`SplitDriver::snoop_used`]).
    pub fn snoop_used(&mut self) -> Vec<Used> {
        either!(self, ring => ring.snoop_used())
    }

    /// Returns how many of the used chains found by the last scan remain to be taken (see
    /// [`SplitDriver::snapshot_len`]).
    pub fn snapshot_len(&self) -> usize {
        either!(self, ring => ring.snapshot_len())
    }

    /// Requests an interrupt at the next used chain (see [`SplitDriver::enable_interrupts`]).
    pub fn enable_interrupts(&mut self) -> bool {
        either!(self, ring => ring.enable_interrupts())
    }

    /// Requests an interrupt after `chains` used chains (see [`SplitDriver::interrupt_after`]).
    pub fn interrupt_after(&mut self, chains: u16) {
        either!(self, ring => ring.interrupt_after(chains));
    }

    /// Disables interrupts (see [`SplitDriver::disable_interrupts`]).
    pub fn disable_interrupts(&mut self) {
        either!(self, ring => ring.disable_interrupts());
    }

    /// Returns the number of chains in flight: added, and not yet returned by [`Virtqueue::take_used`].
    pub fn in_flight(&self) -> usize {
        either!(self, ring => ring.in_flight())
    }

    /// Returns the number of free descriptors.
    pub fn free_descriptors(&self) -> usize {
        either!(self, ring => ring.free_descriptors())
    }

    /// Returns the number of descriptors of the ring.
    pub fn size(&self) -> u16 {
        either!(self, ring => ring.size())
    }

    /// Returns the addresses of the ring.
    pub fn addresses(&self) -> RingAddresses {
        either!(self, ring => ring.addresses())
    }

    /// Returns the base for a later device (see [`SplitDriver::resume_base`] and [`PackedDriver::resume_base`]).
    pub fn resume_base(&self) -> u32 {
        either!(self, ring => ring.resume_base())
    }

    /// Continues at the same addresses of `memory`, a copy of the old memory.
    pub(crate) fn move_to(&mut self, memory: &GuestMemory) {
        either!(self, ring => ring.memory = memory.clone());
    }

    /// Resets the ring as after a reset of the device: empty, at the first position. Drops chains in flight.
    pub fn reset(&mut self) {
        either!(self, ring => ring.reset());
    }

    /// Returns the split ring. Panics if the ring is packed.
    pub fn split(&mut self) -> &mut SplitDriver {
        match self {
            Self::Split(ring) => ring,
            Self::Packed(_) => panic!("the test wants a split ring, and negotiated a packed one"),
        }
    }

    /// Returns the packed ring. Panics if the ring is split.
    pub fn packed(&mut self) -> &mut PackedDriver {
        match self {
            Self::Packed(ring) => ring,
            Self::Split(_) => panic!("the test wants a packed ring, and negotiated a split one"),
        }
    }
}

/// Returns true if the step from `old` to `new` passes `event` (virtio 1.3, 2.7.10: `vring_need_event`).
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Indirect tables, one per chain ID, reused for the next chain with the same ID.
#[derive(Debug, Default)]
struct Tables {
    /// Address and number of descriptors of each table.
    by_id: Vec<Option<(u64, usize)>>,
}

impl Tables {
    fn new(size: u16) -> Self {
        Self { by_id: vec![None; size as usize] }
    }

    /// Returns a table for `len` descriptors of chain `id`.
    fn get(&mut self, memory: &GuestMemory, id: u16, len: usize) -> u64 {
        match self.by_id[id as usize] {
            Some((addr, room)) if room >= len => addr,
            _ => {
                let addr = memory.alloc(len as u64 * DESC_LEN, DESC_LEN);
                self.by_id[id as usize] = Some((addr, len));
                addr
            }
        }
    }

    fn addr(&self, id: u16) -> Option<u64> {
        self.by_id.get(id as usize).copied().flatten().map(|(addr, _)| addr)
    }
}

/// The state of a chain in flight.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Number of the ring's descriptors in the chain.
    descriptors: u16,
    /// Number of bytes that the device can write.
    writable_len: u32,
}

/// Value of `writable_len` for a chain made by the test. The test kit does not parse such a chain.
const UNKNOWN_LEN: u32 = u32::MAX;

/// The chains in flight of a split or packed ring, checked against the device's reports.
#[derive(Debug)]
struct InFlight {
    by_id: Vec<Option<Chain>>,
    /// IDs in the order of addition, stored only for an in-order device.
    order: std::collections::VecDeque<u16>,
    in_order: bool,
    len: usize,
}

impl InFlight {
    fn new(size: u16, in_order: bool) -> Self {
        Self { by_id: vec![None; size as usize], order: std::collections::VecDeque::new(), in_order, len: 0 }
    }

    fn insert(&mut self, id: u16, chain: Chain) {
        // A test that makes its own chains can use an ID twice.
        self.len += usize::from(self.by_id[id as usize].replace(chain).is_none());
        if self.in_order {
            self.order.push_back(id);
        }
    }

    /// Completes the chains of a used entry: one chain, or a batch of an in-order device.
    fn complete(&mut self, id: u32, len: u32, mut each: impl FnMut(Used, Chain)) {
        let known = u16::try_from(id).ok().filter(|&id| self.by_id.get(id as usize).is_some_and(Option::is_some));
        let Some(id) = known else { panic!("the device used id {id}, which is not in flight") };
        while self.in_order && self.order.front() != Some(&id) {
            let skipped = self.order.pop_front().unwrap_or_else(|| panic!("the device used id {id} out of order"));
            let chain = self.remove(skipped);
            each(Used { id: skipped, len: chain.writable_len }, chain);
        }
        self.order.pop_front();
        let chain = self.remove(id);
        let room = chain.writable_len;
        assert!(len <= room, "the device says that it wrote {len} bytes into the {room} writable bytes of id {id}");
        each(Used { id, len }, chain);
    }

    fn remove(&mut self, id: u16) -> Chain {
        self.len -= 1;
        self.by_id[id as usize].take().expect("a chain that is in flight")
    }

    fn clear(&mut self) {
        *self = Self::new(self.by_id.len() as u16, self.in_order);
    }
}
