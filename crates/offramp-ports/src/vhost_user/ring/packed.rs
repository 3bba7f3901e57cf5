//! The packed ring (virtio 1.3, 2.8): one ring of descriptors that either side overwrites.

use super::{
    BadChain, BadRing, Batch, Broken, Chain, DESCRIPTOR_LEN, Descriptor, FETCH_MAX, Fetched, INDIRECT, NEXT, Published,
    RingOptions, RingPlace, Used, WRITE, add_buffer, close_chain, indirect_table, is_passed, prefetch, read_descriptor,
};
use crate::vhost_user::inflight::{Part, Place, Progress, Saved};
use crate::vhost_user::memory::GuestMemory;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Largest ring (virtio 1.3, 2.8.10.1).
const SIZE_MAX: u16 = 32768;
/// Descriptors, ahead of the one that is read, whose cache line is asked for: two lines.
const AHEAD: usize = 8;
/// Descriptor flag: available in a lap whose counter is this bit (2.8.1).
const AVAIL: u16 = 1 << 7;
/// Descriptor flag: used in a lap whose counter is this bit (2.8.1).
const USED: u16 = 1 << 15;
/// Bytes of an event suppression structure (2.8.14).
pub(super) const EVENT_LEN: u64 = 4;
/// Event flags: every event is wanted (2.8.14).
const EVENT_ENABLE: u16 = 0;
/// Event flags: no event is wanted.
const EVENT_DISABLE: u16 = 1;
/// Event flags: an event is wanted for one descriptor (only with `EVENT_IDX`).
const EVENT_DESCRIPTOR: u16 = 2;
/// The wrap counter's bit beside a 15-bit index.
const WRAP: u16 = 1 << 15;

/// Base of a ring that has never run: both positions at its start, both wrap counters 1 (2.8.1).
const BASE_NEW: u32 = 0x8000_8000;

/// Whether no device has ever used a descriptor of this ring.
///
/// A base of 0 is said by frontends that know no wrap counters (User Mode Linux), of a new ring; by others, of a ring
/// that ended at its start after an odd number of laps. The memory tells which. The last chain before that start was
/// used with wrap counter 1, so its first descriptor has `USED`; it keeps it when the driver makes it available again,
/// with wrap counter 0. A driver that has seen nothing used is in its first lap, and sets `AVAIL` alone.
///
/// # Safety
/// `size` descriptors are mapped there, aligned.
unsafe fn is_new(descriptors: NonNull<Descriptor>, size: u16) -> bool {
    // SAFETY: `at` is below `size`, as the caller promises.
    let flags = |at: u16| unsafe { read_descriptor(descriptors.as_ptr().add(at.into())) }.fourth;
    (0..size).all(|at| flags(at) & USED == 0)
}

/// A place in the ring and the lap's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    index: u16,
    wrap: bool,
}

impl From<Place> for Position {
    fn from(Place { index, wrap }: Place) -> Self {
        Self { index, wrap }
    }
}

impl Position {
    fn from_bits(bits: u16) -> Self {
        Self { index: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    fn place(self) -> Place {
        Place { index: self.index, wrap: self.wrap }
    }

    fn bits(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    #[inline]
    fn advance(&mut self, slots: u16, size: u16) {
        self.index += slots;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    /// Slots from `earlier` to here: a lap at most.
    fn ahead_of(self, earlier: Self, size: u16) -> u16 {
        let lap = if self.wrap == earlier.wrap { 0 } else { size };
        (self.index + lap).saturating_sub(earlier.index)
    }

    fn retreat(&mut self, slots: u16, size: u16) {
        if self.index < slots {
            self.index += size;
            self.wrap = !self.wrap;
        }
        self.index -= slots;
    }
}

/// The second half of a used descriptor: 4 bytes of `len`, 2 of `id`, 2 of `flags` (virtio 1.3, 2.8.13).
#[inline]
fn used_half(used: &Used, flags: u16) -> u64 {
    let [len, id, flags] = [u64::from(used.written), u64::from(used.id), u64::from(flags)];
    u64::from_le(len | id << 32 | flags << 48)
}

/// The device's side of a packed ring.
#[derive(Debug)]
pub(in crate::vhost_user) struct PackedRing {
    size: u16,
    pub(super) options: RingOptions,
    descriptors: NonNull<Descriptor>,
    driver_event: NonNull<u16>,
    device_event: NonNull<u16>,
    next_available: Position,
    /// Where the driver sees the next chain used.
    next_used: Position,
    /// What it is given back from there on.
    staged: Vec<Used>,
    /// Where the position lies for a backend that comes after this one.
    inflight: Option<Part>,
}

// SAFETY: the pointers are into guest memory that the ring's queue keeps mapped; see `Region`.
unsafe impl Send for PackedRing {}

impl PackedRing {
    /// `base`: the next available position in the low half and the next used one in the high half,
    /// each with its wrap counter in the top bit (vhost-user, "Vring state").
    pub(super) fn new(
        memory: &GuestMemory,
        place: &RingPlace,
        base: u32,
        options: RingOptions,
        inflight: Option<Part>,
    ) -> Result<Self, BadRing> {
        let size = place.size;
        if size == 0 || size > SIZE_MAX {
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
        // SAFETY: `size` descriptors lie there, aligned, in memory that the caller keeps mapped.
        let base = if base == 0 && unsafe { is_new(descriptors, size) } { BASE_NEW } else { base };
        let next_available = Position::from_bits(base as u16);
        // Everything that is fetched is used in order, so both positions are one when a ring starts; a
        // frontend that knows only one says the other as 0.
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
            // What was fetched and not used when the ring stopped is fetched again.
            next_available: next_used,
            next_used,
            staged: Vec::with_capacity(2 * FETCH_MAX),
            inflight,
        };
        ring.resume()?;
        Ok(ring)
    }

    /// Goes on where an earlier backend ended, which the frontend cannot know.
    fn resume(&mut self) -> Result<(), BadRing> {
        let Some(inflight) = &self.inflight else { return Ok(()) };
        if let Some(progress) = inflight.progress(self.size) {
            let Progress { before, behind, saved } = progress;
            if before.index >= self.size || behind.index >= self.size || saved > self.size {
                return Err(BadRing::Inflight);
            }
            // Whether the driver has the last batch shows at its first descriptor.
            let is_shown = before == behind || !self.is_available(before.into());
            if !is_shown {
                self.put_back(inflight, before.into(), saved);
            }
            self.next_used = if is_shown { behind } else { before }.into();
            self.next_available = self.next_used;
        }
        inflight.settle(self.next_used.place(), self.size);
        Ok(())
    }

    /// Writes the descriptors of a batch as they were before they were overwritten for the driver to see.
    fn put_back(&self, inflight: &Part, first: Position, count: u16) {
        let mut at = first;
        for number in 0..count {
            let Saved { addr, len, id, flags, .. } = inflight.saved(number);
            let descriptor = Descriptor { addr, len, third: id, fourth: flags };
            // SAFETY: the position is within the ring, which is aligned and mapped. The driver looks at none of these
            // descriptors before it sees the flags of the first one change.
            unsafe { self.descriptors.add(usize::from(at.index)).write_volatile(descriptor) };
            at.advance(1, self.size);
        }
        // Before the region forgets them.
        fence(Ordering::SeqCst);
    }

    /// Saves what [`PackedRing::publish`] will overwrite.
    #[inline(never)]
    fn save_staged(&self, inflight: &Part) {
        let heads = self.staged.iter().flat_map(|used| {
            let nths = 0..used.slots;
            nths.map(move |nth| if nth == 0 { used.slots } else { 0 })
        });
        let mut at = self.next_used;
        let mut behind = self.next_used;
        self.staged.iter().for_each(|used| behind.advance(used.slots, self.size));
        let batch = heads.map(|slots| {
            // SAFETY: the position is within the ring, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(at.index)).as_ptr()) };
            at.advance(1, self.size);
            let Descriptor { addr, len, third: id, fourth: flags } = descriptor;
            Saved { addr, len, id, flags, slots }
        });
        inflight.begin(self.next_used.place(), behind.place(), self.size, batch);
    }

    /// The flags of a descriptor.
    #[inline]
    fn flags(&self, index: u16) -> &AtomicU16 {
        const FLAGS_AT: usize = 7;
        // SAFETY: the index is within the ring, which is aligned and mapped; an atomic may be shared with
        // another process.
        unsafe { AtomicU16::from_ptr(self.descriptors.add(usize::from(index)).cast::<u16>().add(FLAGS_AT).as_ptr()) }
    }

    #[inline]
    fn is_available(&self, at: Position) -> bool {
        let flags = self.flags(at.index).load(Ordering::Acquire);
        (flags & AVAIL != 0) == at.wrap && (flags & USED != 0) != at.wrap
    }

    #[inline]
    pub(super) fn fetch(&mut self, memory: &GuestMemory, batch: &mut Batch) -> Result<Fetched, Broken> {
        let window = memory.window();
        let (size, writable) = (self.size, self.options.writable);
        let mut fetched = Fetched::default();
        let mut at = self.next_available;
        // What the driver was not given back it cannot make available again. If it does all the same, a batch would
        // never come to its end, and overwrite itself when it is shown.
        let mut free = size.saturating_sub(at.ahead_of(self.next_used, size));
        for _ in 0..FETCH_MAX {
            if free == 0 || !self.is_available(at) {
                break;
            }
            let ahead = usize::from(at.index) + AHEAD;
            // SAFETY: only an address for a prefetch is made; it is never read when beyond the ring.
            prefetch(self.descriptors.as_ptr().wrapping_add(ahead).cast());
            // SAFETY: the position is within the ring, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(at.index)).as_ptr()) };
            let (id, flags) = (descriptor.third, descriptor.fourth);
            let slots = if id < size && batch.push_single(&window, &descriptor, flags, id, writable) {
                fetched.chains += 1;
                1
            } else {
                self.next_available = at;
                self.fetch_chain(memory, batch, free, &mut fetched)?
            };
            at.advance(slots, size);
            free -= slots;
        }
        self.next_available = at;
        Ok(fetched)
    }

    /// Fetches a chain of any shape, also a bad one, of `free` slots at most; how many it takes.
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
                batch.buffers.truncate(first);
                batch.chains.push(Chain { id, slots, first: first as u32, count: 0, len: 0 });
                fetched.bad += 1;
                fetched.reason = Some(reason);
            }
        }
        Ok(slots)
    }

    /// Follows a chain: its ID (which the last descriptor holds), the slots that it occupies, and
    /// whether its buffers can be used. A chain without an end cannot be given back, nor one of more than `free` slots.
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
            let descriptor = unsafe { read_descriptor(self.descriptors.add(usize::from(at.index)).as_ptr()) };
            let flags = descriptor.fourth;
            if walked.is_ok() {
                walked = match flags & INDIRECT {
                    0 => self.add(memory, &descriptor, batch),
                    _ => self.walk_indirect(memory, &descriptor, batch),
                };
            }
            if flags & NEXT == 0 {
                let id = descriptor.third;
                return if id < self.size { Ok((id, slots, walked)) } else { Err(Broken::Head) };
            }
            at.advance(1, self.size);
        }
        Err(Broken::Head)
    }

    #[inline]
    fn add(&self, memory: &GuestMemory, descriptor: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        if (descriptor.fourth & WRITE != 0) != self.options.writable {
            return Err(BadChain::Direction);
        }
        Self::add_any(memory, descriptor, batch)
    }

    #[inline]
    fn add_any(memory: &GuestMemory, descriptor: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        add_buffer(memory, descriptor.addr, descriptor.len, &mut batch.buffers)
    }

    fn walk_indirect(&self, memory: &GuestMemory, table: &Descriptor, batch: &mut Batch) -> Result<(), BadChain> {
        if !self.options.indirect || table.fourth & NEXT != 0 {
            return Err(BadChain::Indirect);
        }
        let (table, entries) = indirect_table(memory, table.addr, table.len)?;
        for index in 0..usize::from(entries) {
            // SAFETY: the index is within the table, which is aligned and mapped.
            let descriptor = unsafe { read_descriptor(table.add(index).as_ptr()) };
            if descriptor.fourth & INDIRECT != 0 {
                return Err(BadChain::Indirect);
            }
            if self.options.writable {
                self.add(memory, &descriptor, batch)?;
            } else {
                // DPDK's driver leaves WRITE set in tables for transmit. Reading such a buffer harms nobody.
                Self::add_any(memory, &descriptor, batch)?;
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn put_used(&mut self, chain: &Chain, written: u32) {
        self.staged.push(Used { id: chain.id, slots: chain.slots, written });
    }

    /// What a driver reads of a used descriptor: `len`, `id` and `flags`, which are written in one go.
    #[inline]
    fn used_half(&self, index: u16) -> &AtomicU64 {
        // SAFETY: the index is within the ring, which is aligned to 8 and mapped; an atomic may be shared with
        // another process.
        unsafe { AtomicU64::from_ptr(self.descriptors.add(usize::from(index)).cast::<u64>().add(1).as_ptr()) }
    }

    /// Overwrites the descriptors of what is staged, the first one last: its flags show the whole batch.
    #[inline]
    pub(super) fn publish(&mut self, undecided: u32) -> Published {
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
        // The driver writes what it wants and then looks at the flags; the device the other way round.
        fence(Ordering::SeqCst);
        if let Some(inflight) = &self.inflight {
            inflight.settle(self.next_used.place(), self.size);
        }
        Published { slots, wants_call: self.wants_call(undecided.saturating_add(u32::from(slots))) }
    }

    #[inline]
    pub(super) fn wants_call(&self, undecided: u32) -> bool {
        // SAFETY: the structure was found to lie in guest memory, aligned to 4.
        let event = unsafe { AtomicU32::from_ptr(self.driver_event.cast().as_ptr()) }.load(Ordering::Relaxed);
        let (wanted, flags) = (Position::from_bits(event as u16), (event >> 16) as u16 & 3);
        match flags {
            EVENT_DISABLE => false,
            // More than a lap passes every place, and the one bit of a lap says no more which is meant.
            EVENT_DESCRIPTOR if self.options.event_idx && undecided <= u32::from(self.size) => {
                let new = self.next_used.index;
                let old = new.wrapping_sub(undecided as u16);
                // A descriptor of the lap before lies that much behind.
                let lap = if wanted.wrap == self.next_used.wrap { 0 } else { self.size };
                is_passed(wanted.index.wrapping_sub(lap), new, old)
            }
            _ => true,
        }
    }

    pub(super) fn has_run(&self) -> bool {
        self.next_used != Position { index: 0, wrap: true }
    }

    pub(super) fn has_ahead(&self, slots: u16) -> bool {
        let Some(before) = slots.min(self.size).checked_sub(1) else { return true };
        let mut at = self.next_available;
        at.advance(before, self.size);
        self.is_available(at)
    }

    pub(super) fn arm(&mut self) {
        let wanted = u32::from(self.next_available.bits());
        let flags = if self.options.event_idx { EVENT_DESCRIPTOR } else { EVENT_ENABLE };
        self.set_device_event(wanted | u32::from(flags) << 16);
        fence(Ordering::SeqCst);
    }

    pub(super) fn disarm(&mut self) {
        self.set_device_event(u32::from(EVENT_DISABLE) << 16);
    }

    fn set_device_event(&self, event: u32) {
        // SAFETY: the structure was found to lie in guest memory, aligned to 4.
        unsafe { AtomicU32::from_ptr(self.device_event.cast().as_ptr()) }.store(event, Ordering::Relaxed);
    }

    pub(super) fn base(&self, batch: &Batch) -> u32 {
        let mut next = self.next_available;
        for chain in batch.waiting() {
            next.retreat(chain.slots, self.size);
        }
        u32::from(next.bits()) | u32::from(self.next_used.bits()) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::inflight;
    use crate::vhost_user::memory::Extent;
    use crate::vhost_user::sigbus::Alarm;
    use nix::sys::eventfd::EventFd;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const SIZE: u16 = 8;
    const USER: u64 = 0x7000_0000;
    const RING_LEN: usize = SIZE as usize * DESCRIPTOR_LEN as usize;
    const PLACE: RingPlace = RingPlace {
        size: SIZE,
        descriptors: USER,
        driver: USER + RING_LEN as u64,
        device: USER + RING_LEN as u64 + EVENT_LEN,
    };

    fn bytes(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// A ring over the given bytes of memory and of an inflight region.
    fn ring_over(memory: &[u8], region: &[u8], base: u32) -> (PackedRing, GuestMemory, File, File) {
        let (memory_file, region_file) = (inflight::tests::file(4096), inflight::tests::file(region.len() as u64));
        memory_file.write_all_at(memory, 0).unwrap();
        region_file.write_all_at(region, 0).unwrap();
        let alarm = Alarm::new(EventFd::new().unwrap());
        let extent = Extent { guest: 0, user: USER, len: 4096, file_offset: 0 };
        let guest = GuestMemory::map(vec![(extent, memory_file.try_clone().unwrap())], &alarm).unwrap();
        let part = inflight::tests::region(&region_file, 1, SIZE).unwrap().part(0, SIZE);
        let ring = PackedRing::new(&guest, &PLACE, base, RingOptions::default(), part).unwrap();
        (ring, guest, memory_file, region_file)
    }

    /// Three chains around the end of a ring: of one descriptor, of two, and of one.
    fn three_chains() -> (Vec<u8>, Position, Position) {
        let mut memory = vec![0; 4096];
        for (index, flags, id) in [(6, AVAIL, 5), (7, AVAIL | NEXT, 0), (0, USED, 2), (1, USED, 7u16)] {
            let descriptor = [
                &(0x100 * index as u64).to_le_bytes()[..],
                &60u32.to_le_bytes(),
                &id.to_le_bytes(),
                &flags.to_le_bytes(),
            ];
            memory[16 * index..16 * index + 16].copy_from_slice(&descriptor.concat());
        }
        (memory, Position { index: 6, wrap: true }, Position { index: 2, wrap: false })
    }

    #[test]
    fn a_ring_goes_on_rightly_wherever_the_backend_was_killed_while_it_showed_a_batch() {
        let (memory, before, behind) = three_chains();
        let base = u32::from(before.bits()) * 0x1_0001;
        let (mut ring, guest, memory_file, region_file) = ring_over(&memory, &[0; 512], base);
        let mut batch = Batch::default();
        assert_eq!(ring.fetch(&guest, &mut batch).unwrap().chains, 3);
        while let Some(chain) = batch.pop() {
            ring.put_used(&chain, 0);
        }
        let region_before = bytes(&region_file);
        let part = ring.inflight.take().unwrap();
        ring.save_staged(&part);
        let region_between = bytes(&region_file);
        ring.inflight = Some(part);
        ring.publish(0);
        let (shown, region_behind) = (bytes(&memory_file), bytes(&region_file));
        // All is overwritten but what shows it.
        let mut torn = shown.clone();
        let flags_at = 6 * DESCRIPTOR_LEN as usize + 14;
        torn[flags_at..flags_at + 2].copy_from_slice(&memory[flags_at..flags_at + 2]);
        assert!(torn != memory && torn != shown);
        let cases = [
            (&memory, &region_before, before),
            (&memory, &region_between, before),
            (&torn, &region_between, before),
            (&shown, &region_between, behind),
            (&shown, &region_behind, behind),
        ];
        for (n, (left, region, expected)) in cases.into_iter().enumerate() {
            let (mut ring, guest, memory_file, region_file) = ring_over(left, region, 0x8000_8000);
            assert_eq!((ring.next_used, ring.next_available), (expected, expected), "case {n}");
            let chains = if expected == before { 3 } else { 0 };
            assert!(bytes(&memory_file) == if expected == before { &*memory } else { &*shown }, "case {n}");
            let mut batch = Batch::default();
            assert_eq!(ring.fetch(&guest, &mut batch).unwrap().chains, chains, "case {n}");
            // Whoever comes next finds nothing under way.
            drop(ring);
            let settled = inflight::tests::region(&region_file, 1, SIZE).unwrap().part(0, SIZE).unwrap().progress(SIZE);
            assert_eq!(settled, Some(Progress { before: expected.place(), behind: expected.place(), saved: 0 }));
        }
    }

    #[test]
    fn a_base_of_0_is_the_start_of_a_new_ring_or_of_a_lap_with_wrap_counter_0() {
        let laps = [
            ("new, nothing available", vec![], true),
            ("new, some chains available", vec![(0, AVAIL), (1, AVAIL | NEXT), (2, AVAIL)], true),
            ("new and full", (0..8).map(|at| (at, AVAIL)).collect(), true),
            ("all used in the first lap", (0..8).map(|at| (at, AVAIL | USED)).collect(), false),
            (
                "used as one chain, its other descriptors as the driver left them",
                {
                    let rest = (1..8).map(|at| (at, AVAIL | NEXT));
                    [(0, AVAIL | USED)].into_iter().chain(rest).collect()
                },
                false,
            ),
            (
                "the last chain used, and one before it that crossed the start",
                { vec![(0, AVAIL), (1, AVAIL | USED), (5, AVAIL | USED), (6, AVAIL | NEXT), (7, AVAIL)] },
                false,
            ),
            ("available again, all of it", (0..8).map(|at| (at, USED)).collect(), false),
        ];
        for (what, descriptors, wrap) in laps {
            let mut memory = vec![0; 4096];
            for (at, flags) in descriptors {
                memory[16 * at + 14..16 * at + 16].copy_from_slice(&flags.to_le_bytes());
            }
            let (ring, ..) = ring_over(&memory, &[0; 512], 0);
            let start = Position { index: 0, wrap };
            assert_eq!((ring.next_available, ring.next_used), (start, start), "{what}");
            // Any other base is what it says.
            let (ring, ..) = ring_over(&memory, &[0; 512], 0x0003_0003);
            assert_eq!(ring.next_used, Position { index: 3, wrap: false }, "{what}");
        }
    }

    #[test]
    fn a_region_that_makes_no_sense_is_refused() {
        let (memory, ..) = three_chains();
        // Version, descriptors, free lists, positions, wrap counters.
        for words in [[1, 8, 0, 0, 8, 0, 0], [1, 8, 0, 0, 0, 9, 0], [1, 8, 0, 9, 1, 0, 0]] {
            let mut region = vec![0; 512];
            let words: Vec<u8> = words.iter().flat_map(|word: &u16| word.to_le_bytes()).collect();
            region[8..8 + words.len()].copy_from_slice(&words);
            let (ring, guest, _, region_file) = ring_over(&memory, &[0; 512], 0x8000_8000);
            drop(ring);
            region_file.write_all_at(&region, 0).unwrap();
            let part = inflight::tests::region(&region_file, 1, SIZE).unwrap().part(0, SIZE);
            let refused = PackedRing::new(&guest, &PLACE, 0x8000_8000, RingOptions::default(), part);
            assert_eq!(refused.unwrap_err(), BadRing::Inflight);
        }
    }

    #[test]
    fn a_position_goes_back_the_way_it_came_across_the_end_of_the_ring() {
        for size in [1, 2, 7, 256] {
            let mut at = Position { index: 0, wrap: true };
            for step in 0..5 * u32::from(size) {
                let expected =
                    Position { index: (step % u32::from(size)) as u16, wrap: (step / u32::from(size)) % 2 == 0 };
                assert_eq!(at, expected);
                for slots in 0..=size {
                    let mut there = at;
                    there.advance(slots, size);
                    there.retreat(slots, size);
                    assert_eq!(there, at, "{slots} slots of {size}");
                }
                assert_eq!(Position::from_bits(at.bits()), at);
                at.advance(1, size);
            }
        }
    }
}
