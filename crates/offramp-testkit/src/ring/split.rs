//! The driver of a split virtqueue (virtio 1.3, 2.7).

use std::collections::VecDeque;

use super::{
    AVAIL_NO_INTERRUPT, Buffer, Chain, DESC_INDIRECT, DESC_LEN, DESC_NEXT, InFlight, RingAddresses, RingOptions,
    Tables, UNKNOWN_LEN, USED_NO_NOTIFY, Used, passes, writable_len,
};
use crate::memory::GuestMemory;

/// Length of `flags` and `idx` before the entries of the available and the used ring, in bytes.
const RING_HEAD_LEN: u64 = 4;
/// Length of an entry of the available ring in bytes.
const AVAIL_ENTRY_LEN: u64 = 2;
/// Length of an entry of the used ring in bytes.
const USED_ENTRY_LEN: u64 = 8;
/// Length of `used_event` or `avail_event` in bytes.
const EVENT_LEN: u64 = 2;
/// Offset of `idx` in the available and the used ring.
const IDX_AT: u64 = 2;

/// A `struct virtq_desc` (virtio 1.3, 2.7.5). The fields can have any values, valid or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitDescriptor {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Length of the buffer in bytes.
    pub len: u32,
    /// Flags: [`super::DESC_NEXT`], [`super::DESC_WRITE`], [`super::DESC_INDIRECT`].
    pub flags: u16,
    /// Index of the next descriptor, with [`super::DESC_NEXT`].
    pub next: u16,
}

impl SplitDescriptor {
    /// Writes the descriptor at a guest address, in the descriptor table or an indirect table.
    pub fn write(&self, memory: &GuestMemory, addr: u64) {
        memory.write_u64(addr, self.addr);
        memory.write_u32(addr + 8, self.len);
        memory.write_u16(addr + 12, self.flags);
        memory.write_u16(addr + 14, self.next);
    }

    /// Reads the descriptor at a guest address.
    pub fn read(memory: &GuestMemory, addr: u64) -> Self {
        Self {
            addr: memory.read_u64(addr),
            len: memory.read_u32(addr + 8),
            flags: memory.read_u16(addr + 12),
            next: memory.read_u16(addr + 14),
        }
    }
}

/// The driver of a split virtqueue.
#[derive(Debug)]
pub struct SplitDriver {
    pub(super) memory: GuestMemory,
    size: u16,
    addresses: RingAddresses,
    options: RingOptions,
    /// Free descriptors, first in, first out: an in-order device returns descriptors in ring order, as required by
    /// 2.7.9.
    free: VecDeque<u16>,
    /// Next descriptor of the chain, for every descriptor in use.
    next: Vec<u16>,
    tables: Tables,
    in_flight: InFlight,
    /// Available index that the next added chain gets.
    avail_idx: u16,
    /// Published available index.
    published_idx: u16,
    /// Used index up to which the driver has read the used ring.
    seen_used: u16,
    /// Used chains that the driver has read from the ring, and that [`SplitDriver::take_used`] has not returned yet.
    /// `take_used` also frees the chain's ID and descriptors.
    seen: VecDeque<(Used, Chain)>,
}

impl SplitDriver {
    /// Makes a ring of `size` descriptors in newly allocated guest memory. `size` must be a power of two for a device
    /// that conforms to virtio 1.3, 2.7.
    pub fn new(memory: &GuestMemory, size: u16, options: RingOptions) -> Self {
        assert!(size > 0, "a ring needs descriptors");
        let entries = u64::from(size);
        let addresses = RingAddresses {
            descriptors: memory.alloc(entries * DESC_LEN, 16),
            driver: memory.alloc(RING_HEAD_LEN + entries * AVAIL_ENTRY_LEN + EVENT_LEN, 2),
            device: memory.alloc(RING_HEAD_LEN + entries * USED_ENTRY_LEN + EVENT_LEN, 4),
        };
        let mut ring = Self {
            memory: memory.clone(),
            size,
            addresses,
            options,
            free: VecDeque::new(),
            next: vec![0; size as usize],
            tables: Tables::new(size),
            in_flight: InFlight::new(size, options.in_order),
            avail_idx: 0,
            published_idx: 0,
            seen_used: 0,
            seen: VecDeque::new(),
        };
        ring.reset();
        ring
    }

    /// Adds a chain: the `direct` buffers in descriptors of the ring, then the `indirect` buffers, if any, in a table
    /// named by one more descriptor. Returns the chain's ID, or `None` if too few descriptors are free. The device sees
    /// the chain after [`SplitDriver::publish`].
    pub fn add(&mut self, direct: &[Buffer], indirect: &[Buffer]) -> Option<u16> {
        let descriptors = direct.len() + usize::from(!indirect.is_empty());
        assert!(descriptors > 0, "a chain needs a buffer");
        if self.free.len() < descriptors {
            return None;
        }
        let head = self.free[0];
        let table = (!indirect.is_empty()).then(|| self.write_table(head, indirect));
        for (at, buffer) in direct.iter().copied().chain(table).enumerate() {
            let index = self.free.pop_front().expect("a free descriptor");
            let is_last = at + 1 == descriptors;
            let mut flags = if at == direct.len() { DESC_INDIRECT } else { buffer.flags() };
            let next = if is_last { 0 } else { self.free[0] };
            if !is_last {
                flags |= DESC_NEXT;
                self.next[index as usize] = next;
            }
            self.write_descriptor(index, SplitDescriptor { addr: buffer.addr, len: buffer.len, flags, next });
        }
        let writable_len = writable_len(direct).saturating_add(writable_len(indirect));
        self.in_flight.insert(head, Chain { descriptors: descriptors as u16, writable_len });
        self.write_avail(self.avail_idx, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        Some(head)
    }

    /// Makes all added chains visible. Returns true if the device requested a kick for these chains (virtio 1.3,
    /// 2.7.10).
    pub fn publish(&mut self) -> bool {
        let old = std::mem::replace(&mut self.published_idx, self.avail_idx);
        if old == self.avail_idx {
            return false;
        }
        self.set_avail_idx(self.avail_idx);
        self.memory.fence(); // The device must see the index before the driver reads whether it needs a notification.
        if self.options.event_idx {
            passes(self.avail_event(), self.avail_idx, old)
        } else {
            self.used_flags() & USED_NO_NOTIFY == 0
        }
    }

    /// Takes the next chain used by the device, and frees the chain's descriptors. Panics if the device reports a chain
    /// that is not in flight, or more bytes than are writable.
    pub fn take_used(&mut self) -> Option<Used> {
        if self.seen.is_empty() {
            self.look();
        }
        let (used, chain) = self.seen.pop_front()?;
        free_chain(&mut self.free, &self.next, used.id, chain.descriptors);
        Some(used)
    }

    /// Returns all visible used chains that [`SplitDriver::take_used`] has not returned yet. A later `take_used` still
    /// returns these chains.
    pub fn snoop_used(&mut self) -> Vec<Used> {
        self.look();
        self.seen.iter().map(|&(used, _)| used).collect()
    }

    /// Returns how many used chains of the ring's last scan [`SplitDriver::take_used`] has yet to return. `take_used`
    /// scans the ring only if it has returned every chain found earlier. Right after such a scan, the number therefore
    /// shows how many chains the device made visible together with the returned chain.
    pub fn snapshot_len(&self) -> usize {
        self.seen.len()
    }

    /// Reads the used index once, and every entry before the used index.
    fn look(&mut self) {
        let used_idx = self.used_idx();
        while self.seen_used != used_idx {
            let pending = used_idx.wrapping_sub(self.seen_used);
            assert!(pending <= self.size, "the used index {used_idx} is {pending} entries ahead of the driver");
            let (id, len) = self.used_entry(self.seen_used);
            let seen = &mut self.seen;
            let mut chains = 0;
            self.in_flight.complete(id, len, |used, chain| {
                seen.push_back((used, chain));
                chains += 1;
            });
            assert!(chains <= pending, "the device used a batch of {chains} and moved its index by {pending}");
            self.seen_used = self.seen_used.wrapping_add(chains);
        }
    }

    /// Requests an interrupt at the next used chain. Returns true if some chains are already used. The device need not
    /// send a notification for these chains.
    pub fn enable_interrupts(&mut self) -> bool {
        if self.options.event_idx {
            self.set_used_event(self.seen_used);
        } else {
            self.set_avail_flags(0);
        }
        self.memory.fence(); // The device must see the request before the driver scans the ring.
        !self.seen.is_empty() || self.used_idx() != self.seen_used
    }

    /// Requests an interrupt when the device has used `chains` more chains. The count starts after the chains that the
    /// driver has already found used, so 1 means the next chain. Valid only with `EVENT_IDX`.
    pub fn interrupt_after(&mut self, chains: u16) {
        assert!(self.options.event_idx, "interrupts after a number of chains need EVENT_IDX");
        self.set_used_event(self.seen_used.wrapping_add(chains).wrapping_sub(1));
    }

    /// Disables interrupts. With `EVENT_IDX`, the driver requests the most distant entry, so interrupts are disabled
    /// for 65535 entries.
    pub fn disable_interrupts(&mut self) {
        if self.options.event_idx {
            self.set_used_event(self.seen_used.wrapping_sub(1));
        } else {
            self.set_avail_flags(AVAIL_NO_INTERRUPT);
        }
    }

    /// Returns the number of chains in flight: the chains that the device has not used yet, and the used chains that
    /// [`SplitDriver::take_used`] has not returned yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len + self.seen.len()
    }

    /// Returns the number of free descriptors.
    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of descriptors of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the addresses of the ring.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// Returns the value of `SET_VRING_BASE` for a device that fetches every unused chain again: the used index.
    pub fn resume_base(&self) -> u32 {
        u32::from(self.used_idx())
    }

    /// Resets the ring as after a reset of the device: empty, with all indices 0 and interrupts enabled.
    pub fn reset(&mut self) {
        let entries = usize::from(self.size);
        self.memory.fill(self.addresses.descriptors, entries * DESC_LEN as usize, 0);
        let driver_len = RING_HEAD_LEN + EVENT_LEN + u64::from(self.size) * AVAIL_ENTRY_LEN;
        self.memory.fill(self.addresses.driver, driver_len as usize, 0);
        let device_len = RING_HEAD_LEN + EVENT_LEN + u64::from(self.size) * USED_ENTRY_LEN;
        self.memory.fill(self.addresses.device, device_len as usize, 0);
        self.free = (0..self.size).collect();
        self.in_flight.clear();
        self.seen.clear();
        (self.avail_idx, self.published_idx, self.seen_used) = (0, 0, 0);
    }
}

/// Frees the descriptors of the chain that begins at `head`.
fn free_chain(free: &mut VecDeque<u16>, next: &[u16], head: u16, descriptors: u16) {
    let chain = std::iter::successors(Some(head), |&index| Some(next[index as usize]));
    free.extend(chain.take(descriptors as usize));
}

/// Raw access, for actions that no driver should do.
impl SplitDriver {
    fn write_table(&mut self, id: u16, buffers: &[Buffer]) -> Buffer {
        let table = self.tables.get(&self.memory, id, buffers.len());
        for (at, buffer) in buffers.iter().enumerate() {
            let (flags, next) = if at + 1 < buffers.len() { (DESC_NEXT, at as u16 + 1) } else { (0, 0) };
            let descriptor =
                SplitDescriptor { addr: buffer.addr, len: buffer.len, flags: flags | buffer.flags(), next };
            descriptor.write(&self.memory, table + at as u64 * DESC_LEN);
        }
        Buffer::readable(table, buffers.len() * DESC_LEN as usize)
    }

    /// Reserves `count` descriptors for chains written by the test. The descriptors stay reserved until a reset.
    pub fn reserve(&mut self, count: usize) -> Vec<u16> {
        assert!(count <= self.free.len(), "{count} descriptors are wanted, {} are free", self.free.len());
        self.free.drain(..count).collect()
    }

    /// Adds the chain at descriptor `head`, which the test writes before or after this call. `head` can be any number,
    /// even a number without a descriptor. The device sees the chain after [`SplitDriver::publish`]. When the device
    /// uses the chain, [`SplitDriver::take_used`] returns the chain like any other chain.
    pub fn add_raw(&mut self, head: u16) {
        if head < self.size {
            self.in_flight.insert(head, Chain { descriptors: 0, writable_len: UNKNOWN_LEN });
        }
        self.write_avail(self.avail_idx, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    /// Returns the address of chain `id`'s indirect table.
    pub fn indirect_table(&self, id: u16) -> Option<u64> {
        self.tables.addr(id)
    }

    /// Returns the address of descriptor `index`.
    pub fn descriptor_addr(&self, index: u16) -> u64 {
        self.addresses.descriptors + u64::from(index) * DESC_LEN
    }

    /// Writes descriptor `index`.
    pub fn write_descriptor(&self, index: u16, descriptor: SplitDescriptor) {
        descriptor.write(&self.memory, self.descriptor_addr(index));
    }

    /// Reads descriptor `index`.
    pub fn read_descriptor(&self, index: u16) -> SplitDescriptor {
        SplitDescriptor::read(&self.memory, self.descriptor_addr(index))
    }

    /// Writes the entry of the available ring for position `idx` (modulo the size): the head of a chain.
    pub fn write_avail(&self, idx: u16, head: u16) {
        let slot = u64::from(idx % self.size);
        self.memory.write_u16(self.addresses.driver + RING_HEAD_LEN + slot * AVAIL_ENTRY_LEN, head);
    }

    /// Returns the available index seen by the device.
    pub fn avail_idx(&self) -> u16 {
        self.memory.read_u16(self.addresses.driver + IDX_AT)
    }

    /// Writes the available index in memory. The driver continues from the index that it stores internally.
    pub fn set_avail_idx(&self, idx: u16) {
        self.memory.write_u16(self.addresses.driver + IDX_AT, idx);
    }

    /// Writes the available index, and makes the driver continue from `idx`.
    pub fn jump_avail_idx(&mut self, idx: u16) {
        (self.avail_idx, self.published_idx) = (idx, idx);
        self.set_avail_idx(idx);
    }

    /// Writes `flags` of the available ring.
    pub fn set_avail_flags(&self, flags: u16) {
        self.memory.write_u16(self.addresses.driver, flags);
    }

    /// Writes `used_event`: the index of the used entry for which the driver requests its next interrupt.
    pub fn set_used_event(&self, idx: u16) {
        let at = RING_HEAD_LEN + u64::from(self.size) * AVAIL_ENTRY_LEN;
        self.memory.write_u16(self.addresses.driver + at, idx);
    }

    /// Returns `avail_event`: the index of the available entry for which the device requests its next kick.
    pub fn avail_event(&self) -> u16 {
        let at = RING_HEAD_LEN + u64::from(self.size) * USED_ENTRY_LEN;
        self.memory.read_u16(self.addresses.device + at)
    }

    /// Returns `flags` of the used ring.
    pub fn used_flags(&self) -> u16 {
        self.memory.read_u16(self.addresses.device)
    }

    /// Returns the used index.
    pub fn used_idx(&self) -> u16 {
        self.memory.read_u16(self.addresses.device + IDX_AT)
    }

    /// Returns id and length in the used entry for position `idx` (modulo the size), visible or not.
    pub fn used_entry(&self, idx: u16) -> (u32, u32) {
        let at = self.addresses.device + RING_HEAD_LEN + u64::from(idx % self.size) * USED_ENTRY_LEN;
        (self.memory.read_u32(at), self.memory.read_u32(at + 4))
    }
}
