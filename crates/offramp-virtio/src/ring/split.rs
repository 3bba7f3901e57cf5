//! The split ring (virtio 1.3, 2.7): descriptor table, available ring, used ring.

use super::chain::{Batch, Chain, Used, add_buffer, close_chain};
use super::descriptor::{DESCRIPTOR_LEN, INDIRECT, NEXT, WRITE, indirect_table, need_event, prefetch, read_descriptor};
use super::{
    BadChain, BadRing, Broken, CHAIN_DESCRIPTORS_MAX, Direction, FETCH_MAX, Fetched, Published, QUEUE_SIZE_MAX,
    RingOptions, RingPlace,
};
use crate::memory::{GuestMemory, clamped};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Value of `flags` in the available ring: the driver requests no notifications.
const NO_INTERRUPT: u16 = 1;
/// Value of `flags` in the used ring: the device requests no kicks.
const NO_NOTIFY: u16 = 1;
/// Length of `flags` and `idx` before the entries of the available or used ring, in bytes.
const RING_HEADER_LEN: u64 = 4;
const AVAILABLE_ENTRY_LEN: u64 = 2;
const USED_ENTRY_LEN: u64 = 8;
/// Length of `used_event` or `avail_event` after the entries of the available or used ring, in bytes.
const EVENT_LEN: u64 = 2;

/// Returns the length of a used ring in bytes.
pub(crate) fn used_len(size: u64) -> u64 {
    RING_HEADER_LEN + size * USED_ENTRY_LEN + EVENT_LEN
}

/// A descriptor (virtio 1.3, 2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Descriptor {
    pub addr: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_LEN);

/// A split ring with the state of the device.
#[derive(Debug)]
pub(crate) struct Ring {
    size: u16,
    pub(crate) options: RingOptions,
    descriptors: NonNull<Descriptor>,
    available: NonNull<u16>,
    used: NonNull<u16>,
    /// Index of the next entry to read from the available ring, counted modulo 65536.
    next_available: u16,
    /// Used index that the driver sees.
    published: u16,
    /// Used chains not yet visible to the driver.
    staged: Vec<Used>,
}

// SAFETY: the pointers point into guest memory that the vring keeps mapped (see `Region`).
unsafe impl Send for Ring {}

impl Ring {
    pub(crate) fn new(
        memory: &GuestMemory,
        place: &RingPlace,
        base: u32,
        options: RingOptions,
    ) -> Result<Self, BadRing> {
        let size = place.size;
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(BadRing::Size);
        }
        u16::try_from(base).map_err(|_| BadRing::Base)?;
        let entries = u64::from(size);
        let part = |user, len| memory.at_user(user, len).map(|(host, _)| host).ok_or(BadRing::Address);
        let descriptors = part(place.descriptors, entries * DESCRIPTOR_LEN)?.cast::<Descriptor>();
        let available = part(place.driver, RING_HEADER_LEN + entries * AVAILABLE_ENTRY_LEN + EVENT_LEN)?.cast();
        let used = part(place.device, used_len(entries))?;
        if !descriptors.is_aligned() || !available.is_aligned() || !used.cast::<u32>().is_aligned() {
            return Err(BadRing::Alignment);
        }
        let used = used.cast();
        let staged = Vec::with_capacity(2 * FETCH_MAX);
        let mut ring = Self { size, options, descriptors, available, used, next_available: 0, published: 0, staged };
        // All fetched chains were used, in order, before the frontend could request a base. So the ring resumes at the
        // used index. The used index is also correct after a backend was killed, and for frontends that store no base
        // and send 0, such as DPDK's.
        ring.published = ring.word(ring.used, 1).load(Ordering::Acquire);
        ring.next_available = ring.published;
        Ok(ring)
    }

    /// Returns a 16-bit word of the available or used ring.
    #[inline]
    fn word(&self, ring: NonNull<u16>, at: usize) -> &AtomicU16 {
        debug_assert!(at < 3 + 4 * usize::from(self.size));
        // SAFETY: the available and used rings were checked to lie in guest memory including the event word, aligned to
        // 2. Atomics can be shared with another process.
        unsafe { AtomicU16::from_ptr(ring.add(at).as_ptr()) }
    }

    #[inline]
    pub(crate) fn fetch(&mut self, memory: &GuestMemory, batch: &mut Batch) -> Result<Fetched, Broken> {
        let available = self.word(self.available, 1).load(Ordering::Acquire);
        let waiting = available.wrapping_sub(self.next_available);
        // A correct driver waits for used chains when the ring is full, so at most `size` chains are at the device.
        // Without this check, a driver that does not wait could make a batch endless.
        if waiting > self.size || available.wrapping_sub(self.published) > self.size {
            return Err(Broken::AvailableIndex);
        }
        let mut fetched = Fetched::default();
        let count = usize::from(waiting).min(FETCH_MAX);
        let mut heads = [0u16; FETCH_MAX];
        for (n, head) in heads[..count].iter_mut().enumerate() {
            let at = self.next_available.wrapping_add(n as u16) & (self.size - 1);
            *head = self.word(self.available, 2 + usize::from(at)).load(Ordering::Relaxed);
            if *head >= self.size {
                return Err(Broken::Head);
            }
            // SAFETY: the head is within the table.
            prefetch(unsafe { self.descriptors.add(usize::from(*head)).as_ptr() }.cast());
        }
        let window = memory.window();
        let of_a_frame = self.options.direction.of_a_frame();
        let buffers = batch.buffers.len();
        for &head in &heads[..count] {
            self.next_available = self.next_available.wrapping_add(1);
            // SAFETY: the head is within the table, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(head))) };
            if batch.push_single(&window, (descriptor.addr, descriptor.len), descriptor.flags, head, of_a_frame) {
                fetched.chains += 1;
                continue;
            }
            let first = batch.buffers.len();
            match self.walk(memory, head, batch).and_then(|()| close_chain(head, 1, first, &batch.buffers)) {
                Ok(chain) => {
                    batch.chains.push(chain);
                    fetched.chains += 1;
                    if batch.is_full(buffers) {
                        break;
                    }
                }
                Err(reason) => {
                    batch.truncate(first);
                    // The bad chain must not overtake unused chains fetched before the bad chain.
                    batch.chains.push(Chain { id: head, slots: 1, first: first as u32, count: 0, len: 0 });
                    fetched.bad += 1;
                    fetched.reason = Some(reason);
                    // A bad chain ends the batch, because following the bad chain might have taken long.
                    break;
                }
            }
        }
        Ok(fetched)
    }

    #[inline]
    fn walk(&self, memory: &GuestMemory, head: u16, batch: &mut Batch) -> Result<(), BadChain> {
        let mut index = head;
        for _ in 0..self.size.min(CHAIN_DESCRIPTORS_MAX) {
            if index >= self.size {
                return Err(BadChain::Index);
            }
            // SAFETY: the index is within the table, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(index & (self.size - 1)))) };
            let flags = descriptor.flags;
            if flags & INDIRECT != 0 {
                return self.walk_indirect(memory, &descriptor, batch);
            }
            self.add(memory, &descriptor, batch)?;
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(if self.size > CHAIN_DESCRIPTORS_MAX { BadChain::TooMany } else { BadChain::Endless })
    }

    #[inline]
    fn add(&self, memory: &GuestMemory, descriptor: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        if !self.options.direction.takes(descriptor.flags) {
            return Err(BadChain::Direction);
        }
        add_buffer(memory, descriptor.addr, descriptor.len, &mut batch.buffers)?;
        if self.options.direction == Direction::Control {
            batch.mark(descriptor.flags & WRITE != 0);
        }
        Ok(())
    }

    fn walk_indirect(&self, memory: &GuestMemory, table: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        if !self.options.indirect || table.flags & NEXT != 0 {
            return Err(BadChain::Indirect);
        }
        let (table, entries) = indirect_table::<Descriptor>(memory, table.addr, table.len)?;
        let mut index = 0;
        for _ in 0..entries {
            if index >= entries {
                return Err(BadChain::Index);
            }
            // SAFETY: the index is within the table, which is aligned and mapped.
            let descriptor =
                unsafe { read_descriptor(table.add(clamped(index.into(), u64::from(entries) - 1) as usize)) };
            if descriptor.flags & INDIRECT != 0 {
                return Err(BadChain::Indirect);
            }
            self.add(memory, &descriptor, batch)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(BadChain::Endless)
    }

    #[inline]
    pub(crate) fn add_used(&mut self, chain: &Chain, written: u32) {
        self.staged.push(Used { id: chain.id, slots: chain.slots, written });
    }

    /// Writes the staged entries after the visible entries.
    fn write_used(&mut self) -> u16 {
        let mut next = self.published;
        for used in self.staged.drain(..) {
            let at = usize::from(next & (self.size - 1));
            // SAFETY: the entry lies in the used ring, which is aligned to 4. The driver reads the entry only after it
            // has seen the later store of `idx`, which has release ordering.
            unsafe {
                let words = self.used.cast::<u32>().as_ptr().add(1 + 2 * at);
                words.write_volatile(u32::from(used.id));
                words.add(1).write_volatile(used.written);
            }
            next = next.wrapping_add(1);
        }
        next
    }

    #[inline]
    pub(crate) fn publish(&mut self, unsignalled: u32) -> Published {
        if self.staged.is_empty() {
            return Published::default();
        }
        let (old, new) = (self.published, self.write_used());
        self.published = new;
        self.word(self.used, 1).store(new, Ordering::Release);
        // The driver writes its event suppression and then reads `idx`. The device writes `idx` and then reads the
        // event suppression.
        fence(Ordering::SeqCst);
        let slots = new.wrapping_sub(old);
        Published { slots, needs_notification: self.needs_notification(unsignalled.saturating_add(u32::from(slots))) }
    }

    #[inline]
    pub(crate) fn needs_notification(&self, unsignalled: u32) -> bool {
        if !self.options.event_idx {
            return self.word(self.available, 0).load(Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        let event = self.word(self.available, 2 + usize::from(self.size)).load(Ordering::Relaxed);
        // With more than 65535 unsignalled entries, every index was passed.
        let Ok(unsignalled) = u16::try_from(unsignalled) else { return true };
        need_event(event, self.published, self.published.wrapping_sub(unsignalled))
    }

    pub(crate) fn has_run(&self) -> bool {
        self.published != 0
    }

    pub(crate) fn has_ahead(&self, slots: u16) -> bool {
        let available = self.word(self.available, 1).load(Ordering::Relaxed);
        available.wrapping_sub(self.next_available) >= slots
    }

    pub(crate) fn enable_notifications(&mut self) {
        if self.options.event_idx {
            let event = 2 + usize::from(self.size) * (USED_ENTRY_LEN / 2) as usize;
            self.word(self.used, event).store(self.next_available, Ordering::Relaxed);
        } else {
            self.word(self.used, 0).store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    pub(crate) fn disable_notifications(&mut self) {
        // With EVENT_IDX, the ring has passed the requested index, so the driver sends no kick.
        if !self.options.event_idx {
            self.word(self.used, 0).store(NO_NOTIFY, Ordering::Relaxed);
        }
    }

    pub(crate) fn base(&self, batch: &Batch) -> u32 {
        u32::from(self.next_available.wrapping_sub(batch.waiting().len() as u16))
    }
}
