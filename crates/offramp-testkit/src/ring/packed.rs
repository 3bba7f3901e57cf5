//! The driver of a packed virtqueue (virtio 1.3, 2.8).

use std::collections::VecDeque;

use super::{
    Buffer, Chain, DESC_AVAIL, DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_USED, DESC_WRITE, EVENT_DESC, EVENT_DISABLE,
    EVENT_ENABLE, InFlight, RingAddresses, RingOptions, Tables, UNKNOWN_LEN, Used, WRAP_BIT, passes, writable_len,
};
use crate::memory::GuestMemory;

/// Length of an event suppression structure in bytes (virtio 1.3, 2.8.14).
const EVENT_LEN: u64 = 4;
/// Offset of `flags` in an event suppression structure.
const EVENT_FLAGS_AT: u64 = 2;

/// A `struct pvirtq_desc` (virtio 1.3, 2.8.13). The fields can have any values, valid or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedDescriptor {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Length of the buffer in bytes. In a used descriptor, the number of written bytes.
    pub len: u32,
    /// Buffer ID.
    pub id: u16,
    /// Flags: [`super::DESC_NEXT`], [`super::DESC_WRITE`], [`super::DESC_INDIRECT`], [`super::DESC_AVAIL`],
    /// [`super::DESC_USED`].
    pub flags: u16,
}

impl PackedDescriptor {
    /// Writes the descriptor at a guest address. Writes the flags last.
    pub fn write(&self, memory: &GuestMemory, addr: u64) {
        memory.write_u64(addr, self.addr);
        memory.write_u32(addr + 8, self.len);
        memory.write_u16(addr + 12, self.id);
        memory.write_u16(addr + 14, self.flags);
    }

    /// Reads the descriptor at a guest address. Reads the flags first.
    pub fn read(memory: &GuestMemory, addr: u64) -> Self {
        let flags = memory.read_u16(addr + 14);
        Self { addr: memory.read_u64(addr), len: memory.read_u32(addr + 8), id: memory.read_u16(addr + 12), flags }
    }
}

/// A position in the ring: slot and wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    slot: u16,
    wrap: bool,
}

impl Position {
    /// Start position of driver and device (virtio 1.3, 2.8.1: the two wrap counters are 1).
    const START: Self = Self { slot: 0, wrap: true };

    fn advance(&mut self, slots: u16, size: u16) {
        self.slot += slots;
        if self.slot >= size {
            self.slot -= size;
            self.wrap = !self.wrap;
        }
    }

    fn off_wrap(self) -> u16 {
        self.slot | if self.wrap { WRAP_BIT } else { 0 }
    }
}

/// The driver of a packed virtqueue.
#[derive(Debug)]
pub struct PackedDriver {
    pub(super) memory: GuestMemory,
    size: u16,
    addresses: RingAddresses,
    options: RingOptions,
    /// Number of free slots of the ring.
    free_slots: u16,
    free_ids: VecDeque<u16>,
    tables: Tables,
    in_flight: InFlight,
    /// Position at which the next chain is added.
    next_avail: Position,
    /// First unpublished slot, and the flags that publish it.
    unpublished: Option<(u16, u16)>,
    /// Number of unpublished slots.
    unpublished_slots: u16,
    /// Position of the next used descriptor.
    next_used: Position,
    /// Used chains that the driver has read from the ring, and that [`PackedDriver::take_used`] has not returned yet.
    /// `take_used` also frees the chain's ID and slots.
    seen: VecDeque<(Used, Chain)>,
}

impl PackedDriver {
    /// Makes a ring of `size` descriptors (any number up to 32768) in newly allocated guest memory.
    pub fn new(memory: &GuestMemory, size: u16, options: RingOptions) -> Self {
        assert!((1..=WRAP_BIT).contains(&size), "a packed ring has 1 to 32768 descriptors, not {size}");
        let addresses = RingAddresses {
            descriptors: memory.alloc(u64::from(size) * DESC_LEN, 16),
            driver: memory.alloc(EVENT_LEN, 4),
            device: memory.alloc(EVENT_LEN, 4),
        };
        let mut ring = Self {
            memory: memory.clone(),
            size,
            addresses,
            options,
            free_slots: size,
            free_ids: VecDeque::new(),
            tables: Tables::new(size),
            in_flight: InFlight::new(size, options.in_order),
            next_avail: Position::START,
            unpublished: None,
            unpublished_slots: 0,
            next_used: Position::START,
            seen: VecDeque::new(),
        };
        ring.reset();
        ring
    }

    /// Adds a chain: the `direct` buffers in descriptors of the ring, then the `indirect` buffers, if any, in a table
    /// named by one more descriptor. Returns the chain's ID, or `None` if too few descriptors are free. The device sees
    /// the chain after [`PackedDriver::publish`].
    ///
    /// Only the last descriptor of a chain carries the chain's ID (virtio 1.3, 2.8.6). The other descriptors carry a
    /// wrong ID on purpose.
    pub fn add(&mut self, direct: &[Buffer], indirect: &[Buffer]) -> Option<u16> {
        let descriptors = direct.len() + usize::from(!indirect.is_empty());
        assert!(descriptors > 0, "a chain needs a buffer");
        if usize::from(self.free_slots) < descriptors {
            return None;
        }
        let id = self.free_ids.pop_front().expect("as many ids as slots");
        let table = (!indirect.is_empty()).then(|| self.write_table(id, indirect));
        for (at, buffer) in direct.iter().copied().chain(table).enumerate() {
            let is_last = at + 1 == descriptors;
            let kind = if at == direct.len() { DESC_INDIRECT } else { buffer.flags() };
            let next = if is_last { 0 } else { DESC_NEXT };
            self.write_next(buffer, kind | next, if is_last { id } else { !id });
        }
        let writable_len = writable_len(direct).saturating_add(writable_len(indirect));
        self.in_flight.insert(id, Chain { descriptors: descriptors as u16, writable_len });
        self.free_slots -= descriptors as u16;
        Some(id)
    }

    /// Writes the next descriptor. The first descriptor since the last `publish` keeps its old flags, so that the
    /// device stops at this descriptor.
    fn write_next(&mut self, buffer: Buffer, flags: u16, id: u16) {
        let flags = flags | self.available_flags();
        let slot = self.next_avail.slot;
        let is_first = self.unpublished.is_none();
        let written = if is_first { self.read_descriptor(slot).flags } else { flags };
        if is_first {
            self.unpublished = Some((slot, flags));
        }
        self.write_descriptor(slot, PackedDescriptor { addr: buffer.addr, len: buffer.len, id, flags: written });
        self.next_avail.advance(1, self.size);
        self.unpublished_slots += 1;
    }

    /// Makes all added chains visible. Returns true if the device requested a kick for these chains (virtio 1.3,
    /// 2.8.14).
    pub fn publish(&mut self) -> bool {
        let Some((slot, flags)) = self.unpublished.take() else { return false };
        let added = std::mem::take(&mut self.unpublished_slots);
        self.write_flags(slot, flags);
        self.memory.fence(); // The device must see the flags before the driver reads whether it needs a notification.
        let (off_wrap, wish) = self.device_event();
        match wish {
            EVENT_DISABLE => false,
            EVENT_DESC if self.options.event_idx => self.passed_event(off_wrap, added),
            EVENT_ENABLE => true,
            _ => panic!("the device's event suppression flags are {wish}"),
        }
    }

    /// Returns true if one of the last `added` slots is the descriptor named by the device's event suppression.
    fn passed_event(&self, off_wrap: u16, added: u16) -> bool {
        let new = self.next_avail.slot;
        let mut event = off_wrap & !WRAP_BIT;
        if (off_wrap & WRAP_BIT != 0) != self.next_avail.wrap {
            event = event.wrapping_sub(self.size);
        }
        passes(event, new, new.wrapping_sub(added))
    }

    /// Takes the next chain used by the device, and frees the chain's descriptors. Panics if the device reports a chain
    /// that is not in flight, or more bytes than are writable.
    pub fn take_used(&mut self) -> Option<Used> {
        if self.seen.is_empty() {
            self.look();
        }
        let (used, chain) = self.seen.pop_front()?;
        self.free_ids.push_back(used.id);
        self.free_slots += chain.descriptors;
        Some(used)
    }

    /// Returns all visible used chains that [`PackedDriver::take_used`] has not returned yet. A later `take_used` still
    /// returns these chains.
    pub fn snoop_used(&mut self) -> Vec<Used> {
        self.look();
        self.seen.iter().map(|&(used, _)| used).collect()
    }

    /// Returns how many used chains of the ring's last scan [`PackedDriver::take_used`] has yet to return. `take_used`
    /// scans the ring only if it has returned every chain found earlier. Right after such a scan, the number therefore
    /// shows how many chains the device made visible together with the returned chain.
    pub fn snapshot_len(&self) -> usize {
        self.seen.len()
    }

    /// Reads used descriptors from the next used position on, up to the first descriptor that is not used.
    fn look(&mut self) {
        while self.in_flight.len > 0 && self.is_used() {
            let descriptor = self.read_descriptor(self.next_used.slot);
            // Without WRITE, the length is reserved, and drivers ignore the length (virtio 1.3, 2.8.4).
            let len = if descriptor.flags & DESC_WRITE != 0 { descriptor.len } else { 0 };
            let seen = &mut self.seen;
            let mut slots = 0;
            self.in_flight.complete(u32::from(descriptor.id), len, |used, chain| {
                seen.push_back((used, chain));
                slots += chain.descriptors;
            });
            self.next_used.advance(slots, self.size);
        }
    }

    /// Returns true if the device has used the descriptor at the next used position. In this case, `AVAIL` and `USED`
    /// equal the driver's wrap counter.
    fn is_used(&self) -> bool {
        let flags = self.read_descriptor(self.next_used.slot).flags;
        let (avail, used) = (flags & DESC_AVAIL != 0, flags & DESC_USED != 0);
        avail == used && used == self.next_used.wrap
    }

    /// Requests an interrupt at the next used chain. Returns true if some chains are already used. The device need not
    /// send a notification for these chains.
    pub fn enable_interrupts(&mut self) -> bool {
        if self.options.event_idx {
            self.write_driver_event(self.next_used.off_wrap(), EVENT_DESC);
        } else {
            self.write_driver_event(0, EVENT_ENABLE);
        }
        self.memory.fence(); // The device must see the request before the driver scans the ring.
        !self.seen.is_empty() || (self.in_flight.len > 0 && self.is_used())
    }

    /// Requests an interrupt when the device has used `chains` more descriptors. The count starts at the driver's next
    /// used position, so 1 means the next descriptor. Valid only with `EVENT_IDX`.
    pub fn interrupt_after(&mut self, chains: u16) {
        assert!(self.options.event_idx, "interrupts after a number of chains need EVENT_IDX");
        let mut at = self.next_used;
        at.advance(chains - 1, self.size);
        self.write_driver_event(at.off_wrap(), EVENT_DESC);
    }

    /// Disables interrupts.
    pub fn disable_interrupts(&mut self) {
        self.write_driver_event(0, EVENT_DISABLE);
    }

    /// Returns the number of chains in flight: the chains that the device has not used yet, and the used chains that
    /// [`PackedDriver::take_used`] has not returned yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len + self.seen.len()
    }

    /// Returns the number of free descriptors.
    pub fn free_descriptors(&self) -> usize {
        self.free_slots.into()
    }

    /// Returns the number of descriptors of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the addresses of the ring.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// Returns the value of `SET_VRING_BASE` for a device that continues after the last chain seen as used. The
    /// available position is in the low half, and the used position in the high half, each with its wrap counter
    /// (vhost-user, "vring base").
    pub fn resume_base(&self) -> u32 {
        let position = u32::from(self.next_used.off_wrap());
        position | position << 16
    }

    /// Resets the ring as after a reset of the device: empty, at the first position, with interrupts enabled.
    pub fn reset(&mut self) {
        self.memory.fill(self.addresses.descriptors, usize::from(self.size) * DESC_LEN as usize, 0);
        self.memory.write_u32(self.addresses.driver, 0);
        self.memory.write_u32(self.addresses.device, 0);
        self.free_slots = self.size;
        self.free_ids = (0..self.size).collect();
        self.in_flight.clear();
        self.seen.clear();
        (self.next_avail, self.next_used) = (Position::START, Position::START);
        (self.unpublished, self.unpublished_slots) = (None, 0);
    }
}

/// Raw access, for actions that no driver should do.
impl PackedDriver {
    fn write_table(&mut self, id: u16, buffers: &[Buffer]) -> Buffer {
        let table = self.tables.get(&self.memory, id, buffers.len());
        for (at, buffer) in buffers.iter().enumerate() {
            let descriptor = PackedDescriptor { addr: buffer.addr, len: buffer.len, id: 0, flags: buffer.flags() };
            descriptor.write(&self.memory, table + at as u64 * DESC_LEN);
        }
        Buffer::readable(table, buffers.len() * DESC_LEN as usize)
    }

    /// Adds a chain of descriptors, unchanged except for the bits `AVAIL` and `USED`. The device sees the chain after
    /// [`PackedDriver::publish`]. When the device uses the ID of the last descriptor, [`PackedDriver::take_used`]
    /// returns the chain like any other chain. The ID must differ from the IDs of [`PackedDriver::add`], because a test
    /// could not distinguish the chains otherwise.
    pub fn add_raw(&mut self, descriptors: &[PackedDescriptor]) {
        let count = descriptors.len() as u16;
        assert!(count <= self.free_slots, "{count} slots are wanted, {} are free", self.free_slots);
        for descriptor in descriptors {
            let buffer = Buffer { addr: descriptor.addr, len: descriptor.len, writable: false };
            self.write_next(buffer, descriptor.flags, descriptor.id);
        }
        if let Some(last) = descriptors.last().filter(|last| last.id < self.size) {
            self.free_ids.retain(|&id| id != last.id);
            self.in_flight.insert(last.id, Chain { descriptors: count, writable_len: UNKNOWN_LEN });
        }
        self.free_slots -= count;
    }

    /// Returns the address of chain `id`'s indirect table.
    pub fn indirect_table(&self, id: u16) -> Option<u64> {
        self.tables.addr(id)
    }

    /// Returns the address of the descriptor in `slot`.
    pub fn descriptor_addr(&self, slot: u16) -> u64 {
        self.addresses.descriptors + u64::from(slot) * DESC_LEN
    }

    /// Writes the descriptor in `slot`.
    pub fn write_descriptor(&self, slot: u16, descriptor: PackedDescriptor) {
        descriptor.write(&self.memory, self.descriptor_addr(slot));
    }

    /// Writes only the flags of the descriptor in `slot`.
    pub fn write_flags(&self, slot: u16, flags: u16) {
        self.memory.write_u16(self.descriptor_addr(slot) + 14, flags);
    }

    /// Reads the descriptor in `slot`.
    pub fn read_descriptor(&self, slot: u16) -> PackedDescriptor {
        PackedDescriptor::read(&self.memory, self.descriptor_addr(slot))
    }

    /// Returns the bits that make a descriptor available at the next position: `AVAIL` equals the wrap counter, and
    /// `USED` equals the inverse.
    pub fn available_flags(&self) -> u16 {
        if self.next_avail.wrap { DESC_AVAIL } else { DESC_USED }
    }

    /// Writes driver event suppression, the driver's request for interrupts.
    pub fn write_driver_event(&self, off_wrap: u16, flags: u16) {
        self.memory.write_u16(self.addresses.driver, off_wrap);
        self.memory.write_u16(self.addresses.driver + EVENT_FLAGS_AT, flags);
    }

    /// Returns device event suppression, the device's request for kicks: `off_wrap` and flags.
    pub fn device_event(&self) -> (u16, u16) {
        let flags = self.memory.read_u16(self.addresses.device + EVENT_FLAGS_AT);
        (self.memory.read_u16(self.addresses.device), flags)
    }
}
