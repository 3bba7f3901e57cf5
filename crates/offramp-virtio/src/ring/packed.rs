//! The packed ring (virtio 1.3, 2.8): one ring of descriptors, overwritten by driver and device.

use super::chain::{Batch, Chain, Used, add_buffer, close_chain};
use super::descriptor::{DESCRIPTOR_LEN, INDIRECT, NEXT, WRITE, indirect_table, need_event, prefetch, read_descriptor};
use super::position::Position;
use super::{
    BadChain, BadRing, Broken, CHAIN_DESCRIPTORS_MAX, Direction, FETCH_MAX, Fetched, Published, QUEUE_SIZE_MAX,
    RingOptions, RingPlace,
};
use crate::inflight::{Part, Progress, Saved};
use crate::memory::GuestMemory;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(test)]
mod tests;

/// Distance from the current descriptor to the prefetched cache line, in descriptors. The distance equals two cache
/// lines.
const AHEAD: usize = 8;
/// Descriptor flag: equals the driver's wrap counter when the descriptor is available (2.8.1).
const AVAIL: u16 = 1 << 7;
/// Descriptor flag: equals [`AVAIL`] when the descriptor is used (2.8.1).
const USED: u16 = 1 << 15;
/// Length of an event suppression structure in bytes (2.8.14).
pub(crate) const EVENT_LEN: u64 = 4;
/// Event flags: every event is requested (2.8.14).
const EVENT_ENABLE: u16 = 0;
/// Event flags: no event is requested.
const EVENT_DISABLE: u16 = 1;
/// Event flags: an event is requested for one descriptor (only with `EVENT_IDX`).
const EVENT_DESCRIPTOR: u16 = 2;
/// Base of a ring that has never run: the two positions are 0, and the two wrap counters are 1 (2.8.1).
const BASE_NEW: u32 = 0x8000_8000;

/// Returns whether no device has ever used a descriptor of this ring.
///
/// Frontends without wrap counters (User Mode Linux) send a base of 0 for a new ring. For other frontends, a base of 0
/// means that the ring stopped at index 0 with wrap counter 0, after an odd number of laps. The descriptors in memory
/// distinguish a new ring from a stopped ring. In the stopped ring, the last chain was used with wrap counter 1, so the
/// chain's first descriptor has `USED`. `USED` stays set when the driver makes the descriptor available again, with
/// wrap counter 0. In a new ring, the driver is in its first lap, and sets only `AVAIL`.
///
/// # Safety
/// `descriptors` is aligned, and `size` descriptors are mapped there.
unsafe fn is_new(descriptors: NonNull<Descriptor>, size: u16) -> bool {
    // SAFETY: `at` is below `size`, and the caller guarantees `size` mapped descriptors.
    let flags = |at: u16| unsafe { read_descriptor(descriptors.add(at.into())) }.flags;
    (0..size).all(|at| flags(at) & USED == 0)
}

/// A descriptor (virtio 1.3, 2.8.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Descriptor {
    pub addr: u64,
    pub len: u32,
    /// Buffer ID.
    pub id: u16,
    pub flags: u16,
}

const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_LEN);

/// Returns the second half of a used descriptor: 4 bytes of `len`, 2 of `id`, 2 of `flags` (virtio 1.3, 2.8.13).
#[inline]
fn used_half(used: &Used, flags: u16) -> u64 {
    let [len, id, flags] = [u64::from(used.written), u64::from(used.id), u64::from(flags)];
    u64::from_le(len | id << 32 | flags << 48)
}

/// A packed ring with the state of the device.
#[derive(Debug)]
pub(crate) struct Ring {
    size: u16,
    pub(crate) options: RingOptions,
    descriptors: NonNull<Descriptor>,
    driver_event: NonNull<u16>,
    device_event: NonNull<u16>,
    next_available: Position,
    /// Position of the next chain to publish.
    next_used: Position,
    /// Used chains to publish, from `next_used` on.
    staged: Vec<Used>,
    /// Part of the inflight region that stores the position for the next backend.
    inflight: Option<Part>,
}

// SAFETY: the pointers point into guest memory that the vring keeps mapped (see `Region`).
unsafe impl Send for Ring {}

impl Ring {
    /// Sets up the ring. `base` has the next available position in the low half, and the next used position in the high
    /// half. The top bit of each half is the wrap counter (vhost-user, "Vring state").
    pub(crate) fn new(
        memory: &GuestMemory,
        place: &RingPlace,
        base: u32,
        options: RingOptions,
        inflight: Option<Part>,
    ) -> Result<Self, BadRing> {
        let size = place.size;
        if size == 0 || size > QUEUE_SIZE_MAX {
            return Err(BadRing::Size);
        }
        let part = |user, len| memory.at_user(user, len).map(|(host, _)| host).ok_or(BadRing::Address);
        let descriptors = part(place.descriptors, u64::from(size) * DESCRIPTOR_LEN)?.cast::<Descriptor>();
        let driver_event = part(place.driver, EVENT_LEN)?;
        let device_event = part(place.device, EVENT_LEN)?;
        let is_aligned = |event: NonNull<u8>| event.cast::<u32>().is_aligned();
        if !descriptors.is_aligned() || !is_aligned(driver_event) || !is_aligned(device_event) {
            return Err(BadRing::Alignment);
        }
        // SAFETY: `descriptors` is aligned, and `size` descriptors start there, in memory that the caller keeps mapped.
        let base = if base == 0 && unsafe { is_new(descriptors, size) } { BASE_NEW } else { base };
        let next_available = Position::from_bits(base as u16);
        // All fetched chains are used in order, so the two positions are equal when a ring starts. A frontend that
        // stores only one position sends 0 for the other position.
        let next_used = match (base >> 16) as u16 {
            0 => next_available,
            bits => Position::from_bits(bits),
        };
        if next_available.index >= size || next_used.index >= size {
            return Err(BadRing::Base);
        }
        let mut ring = Self {
            size,
            options,
            descriptors,
            driver_event: driver_event.cast(),
            device_event: device_event.cast(),
            // Chains that were fetched but unused when the ring stopped are fetched again.
            next_available: next_used,
            next_used,
            staged: Vec::with_capacity(2 * FETCH_MAX),
            inflight,
        };
        ring.resume()?;
        Ok(ring)
    }

    /// Resumes at the position at which an earlier backend ended. The frontend cannot know this position.
    fn resume(&mut self) -> Result<(), BadRing> {
        let Some(inflight) = &self.inflight else { return Ok(()) };
        if let Some(progress) = inflight.progress(self.size) {
            let Progress { before, after, saved } = progress;
            if before.index >= self.size || after.index >= self.size || saved > self.size {
                return Err(BadRing::Inflight);
            }
            // The first descriptor of the last batch shows whether the batch was published.
            let is_shown = before == after || !self.is_available(before.into());
            if !is_shown {
                self.put_back(inflight, before.into(), saved);
            }
            self.next_used = if is_shown { after } else { before }.into();
            self.next_available = self.next_used;
        }
        inflight.settle(self.next_used.place(), self.size);
        Ok(())
    }

    /// Restores the descriptors of a batch that were overwritten but not yet published.
    fn put_back(&self, inflight: &Part, first: Position, count: u16) {
        let mut at = first;
        for number in 0..count {
            let Saved { addr, len, id, flags, .. } = inflight.saved(number);
            let descriptor = Descriptor { addr, len, id, flags };
            // SAFETY: the position is within the ring, which is aligned and mapped. The driver reads these descriptors
            // only after the flags of the first descriptor change.
            unsafe { self.descriptors.add(usize::from(at.index)).write_volatile(descriptor) };
            at.advance(1, self.size);
        }
        // The descriptors must be restored before the inflight region drops the saved contents.
        fence(Ordering::SeqCst);
    }

    /// Saves the descriptors overwritten by [`Ring::publish`].
    #[inline(never)]
    fn save_staged(&self, inflight: &Part) {
        let heads = self.staged.iter().flat_map(|used| {
            let nths = 0..used.slots;
            nths.map(move |nth| if nth == 0 { used.slots } else { 0 })
        });
        let mut at = self.next_used;
        let mut after = self.next_used;
        self.staged.iter().for_each(|used| after.advance(used.slots, self.size));
        let batch = heads.map(|slots| {
            // SAFETY: the position is within the ring, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(at.index))) };
            at.advance(1, self.size);
            let Descriptor { addr, len, id, flags } = descriptor;
            Saved { addr, len, id, flags, slots }
        });
        inflight.begin(self.next_used.place(), after.place(), self.size, batch);
    }

    /// Reads the flags of a descriptor with acquire ordering: later reads of the descriptor return no older values.
    #[inline]
    fn flags(&self, index: u16) -> u16 {
        const FLAGS_AT: usize = 7;
        if cfg!(miri) {
            // The driver's store covers this whole word, and Miri reports atomics of two sizes at one place as a race.
            return (self.used_half(index).load(Ordering::Acquire) >> 48) as u16;
        }
        let descriptor = usize::from(index);
        // SAFETY: the index is within the ring, which is aligned and mapped. Atomics can be shared with another
        // process.
        let flags =
            unsafe { AtomicU16::from_ptr(self.descriptors.add(descriptor).cast::<u16>().add(FLAGS_AT).as_ptr()) };
        flags.load(Ordering::Acquire)
    }

    #[inline]
    fn is_available(&self, at: Position) -> bool {
        let flags = self.flags(at.index);
        (flags & AVAIL != 0) == at.wrap && (flags & USED != 0) != at.wrap
    }

    #[inline]
    pub(crate) fn fetch(&mut self, memory: &GuestMemory, batch: &mut Batch) -> Result<Fetched, Broken> {
        let window = memory.window();
        let (size, of_a_frame) = (self.size, self.options.direction.of_a_frame());
        let mut fetched = Fetched::default();
        let mut at = self.next_available;
        // A driver cannot make a descriptor available before the device has returned the descriptor. Without this
        // limit, a violation would make a batch endless, and the published batch would overwrite itself.
        let mut free = size.saturating_sub(at.ahead_of(self.next_used, size));
        let buffers = batch.buffers.len();
        for _ in 0..FETCH_MAX {
            if free == 0 || !self.is_available(at) {
                break;
            }
            let ahead = usize::from(at.index) + AHEAD;
            // SAFETY: the address is only prefetched, and never read if it lies past the ring.
            prefetch(self.descriptors.as_ptr().wrapping_add(ahead).cast());
            // SAFETY: the position is within the ring, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(at.index))) };
            let Descriptor { addr, len, id, flags } = descriptor;
            if id < size && batch.push_single(&window, (addr, len), flags, id, of_a_frame) {
                fetched.chains += 1;
                at.advance(1, size);
                free -= 1;
                continue;
            }
            self.next_available = at;
            let slots = self.fetch_chain(memory, batch, free, &mut fetched)?;
            at.advance(slots, size);
            free -= slots;
            // A bad chain ends the batch, because following the bad chain might have taken long.
            if fetched.bad > 0 || batch.is_full(buffers) {
                break;
            }
        }
        self.next_available = at;
        Ok(fetched)
    }

    /// Fetches a chain of any shape, even a bad chain, of at most `free` slots. Returns the chain's number of slots.
    #[inline(never)]
    fn fetch_chain(
        &self,
        memory: &GuestMemory,
        batch: &mut Batch,
        free: u16,
        fetched: &mut Fetched,
    ) -> Result<u16, Broken> {
        let first = batch.buffers.len();
        let (id, slots, walked) = self.walk(memory, batch, free)?;
        match walked.and_then(|()| close_chain(id, slots, first, &batch.buffers)) {
            Ok(chain) => {
                batch.chains.push(chain);
                fetched.chains += 1;
            }
            Err(reason) => {
                batch.truncate(first);
                batch.chains.push(Chain { id, slots, first: first as u32, count: 0, len: 0 });
                fetched.bad += 1;
                fetched.reason = Some(reason);
            }
        }
        Ok(slots)
    }

    /// Follows a chain. Returns the chain's ID (from the last descriptor), the number of slots, and whether the buffers
    /// are usable. A chain without an end, or of more than `free` slots, cannot be returned and is an error.
    #[inline]
    fn walk(
        &self,
        memory: &GuestMemory,
        batch: &mut Batch,
        free: u16,
    ) -> Result<(u16, u16, Result<(), BadChain>), Broken> {
        let mut at = self.next_available;
        let mut walked = Ok(());
        for slots in 1..=free {
            // SAFETY: the position is within the ring, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(at.index))) };
            let flags = descriptor.flags;
            if walked.is_ok() {
                walked = match flags & INDIRECT {
                    _ if slots > CHAIN_DESCRIPTORS_MAX => Err(BadChain::TooMany),
                    0 => self.add(memory, &descriptor, batch),
                    _ => self.walk_indirect(memory, &descriptor, batch),
                };
            }
            if flags & NEXT == 0 {
                let id = descriptor.id;
                return if id < self.size { Ok((id, slots, walked)) } else { Err(Broken::Head) };
            }
            at.advance(1, self.size);
        }
        Err(Broken::Head)
    }

    #[expect(clippy::inline_always, reason = "a call for each buffer takes more instructions than its work")]
    #[inline(always)]
    fn add(&self, memory: &GuestMemory, descriptor: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        if !self.options.direction.takes(descriptor.flags) {
            return Err(BadChain::Direction);
        }
        Self::add_any(memory, descriptor, batch)?;
        if self.options.direction == Direction::Control {
            batch.mark(descriptor.flags & WRITE != 0);
        }
        Ok(())
    }

    #[inline]
    fn add_any(memory: &GuestMemory, descriptor: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        add_buffer(memory, descriptor.addr, descriptor.len, &mut batch.buffers)
    }

    fn walk_indirect(&self, memory: &GuestMemory, table: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        if !self.options.indirect || table.flags & NEXT != 0 {
            return Err(BadChain::Indirect);
        }
        let (table, entries) = indirect_table::<Descriptor>(memory, table.addr, table.len)?;
        for index in 0..usize::from(entries) {
            // SAFETY: the index is within the table, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(table.add(index)) };
            if descriptor.flags & INDIRECT != 0 {
                return Err(BadChain::Indirect);
            }
            if self.options.direction == Direction::Transmit {
                // DPDK's driver leaves WRITE set in tables for transmit. Reading such a buffer is harmless.
                Self::add_any(memory, &descriptor, batch)?;
            } else {
                self.add(memory, &descriptor, batch)?;
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn add_used(&mut self, chain: &Chain, written: u32) {
        // A chain fetched from a larger ring must not exceed the size of this ring.
        let slots = chain.slots.min(self.size);
        self.staged.push(Used { id: chain.id, slots, written });
    }

    /// Returns the second half of a descriptor: `len`, `id` and `flags`, written with one store.
    #[inline]
    fn used_half(&self, index: u16) -> &AtomicU64 {
        // SAFETY: the index is within the ring, which is aligned to 8 and mapped. Atomics can be shared with another
        // process.
        unsafe { AtomicU64::from_ptr(self.descriptors.add(usize::from(index)).cast::<u64>().add(1).as_ptr()) }
    }

    /// Overwrites the descriptors of the staged chains. The flags of the first descriptor are written last, and publish
    /// the whole batch.
    #[inline]
    pub(crate) fn publish(&mut self, unsignalled: u32) -> Published {
        if let Some(inflight) = &self.inflight {
            self.save_staged(inflight);
        }
        let (mut at, size) = (self.next_used, self.size);
        let mut first = None;
        let mut slots = 0u16;
        for used in &self.staged {
            let lap = if at.wrap { AVAIL | USED } else { 0 };
            let half = used_half(used, lap | if used.written > 0 { WRITE } else { 0 });
            match first {
                None => first = Some((at.index, half)),
                Some(_) => self.used_half(at.index).store(half, Ordering::Release),
            }
            slots = used.slots.wrapping_add(slots);
            at.advance(used.slots, size);
        }
        self.staged.clear();
        self.next_used = at;
        let Some((index, half)) = first else { return Published::default() };
        self.used_half(index).store(half, Ordering::Release);
        // The driver writes its event suppression and then reads the flags. The device writes the flags and then reads
        // the event suppression.
        fence(Ordering::SeqCst);
        if let Some(inflight) = &self.inflight {
            inflight.settle(self.next_used.place(), self.size);
        }
        Published { slots, needs_notification: self.needs_notification(unsignalled.saturating_add(u32::from(slots))) }
    }

    #[inline]
    pub(crate) fn needs_notification(&self, unsignalled: u32) -> bool {
        // SAFETY: the structure was checked to lie in guest memory, aligned to 4.
        let event = unsafe { AtomicU32::from_ptr(self.driver_event.cast().as_ptr()) }.load(Ordering::Relaxed);
        let (wanted, flags) = (Position::from_bits(event as u16), (event >> 16) as u16 & 3);
        match flags {
            EVENT_DISABLE => false,
            // After more than one lap, every position was passed, and a single wrap bit cannot identify the lap.
            EVENT_DESCRIPTOR if self.options.event_idx && unsignalled <= u32::from(self.size) => {
                let new = self.next_used.index;
                let old = new.wrapping_sub(unsignalled as u16);
                // A descriptor of the previous lap lies one ring size earlier.
                let lap = if wanted.wrap == self.next_used.wrap { 0 } else { self.size };
                need_event(wanted.index.wrapping_sub(lap), new, old)
            }
            _ => true,
        }
    }

    pub(crate) fn has_run(&self) -> bool {
        self.next_used != Position { index: 0, wrap: true }
    }

    pub(crate) fn has_ahead(&self, slots: u16) -> bool {
        let Some(before) = slots.min(self.size).checked_sub(1) else { return true };
        let mut at = self.next_available;
        at.advance(before, self.size);
        self.is_available(at)
    }

    pub(crate) fn enable_notifications(&mut self) {
        let wanted = u32::from(self.next_available.bits());
        let flags = if self.options.event_idx { EVENT_DESCRIPTOR } else { EVENT_ENABLE };
        self.set_device_event(wanted | u32::from(flags) << 16);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn disable_notifications(&mut self) {
        self.set_device_event(u32::from(EVENT_DISABLE) << 16);
    }

    fn set_device_event(&self, event: u32) {
        // SAFETY: the structure was checked to lie in guest memory, aligned to 4.
        unsafe { AtomicU32::from_ptr(self.device_event.cast().as_ptr()) }.store(event, Ordering::Relaxed);
    }

    pub(crate) fn base(&self, batch: &Batch) -> u32 {
        let mut next = self.next_available;
        for chain in batch.waiting() {
            next.retreat(chain.slots, self.size);
        }
        u32::from(next.bits()) | u32::from(self.next_used.bits()) << 16
    }
}
