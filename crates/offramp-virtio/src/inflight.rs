//! The positions of packed rings, stored for the next backend after this backend is killed (vhost-user, "Inflight I/O
//! tracking", packed virtqueues).
//!
//! A split ring contains the device's position. A packed ring does not contain the device's position, and the frontend
//! knows only the initial position. So the frontend owns a shared region with the position, and a new backend resumes
//! at this position.
//!
//! Chains are used in the order of arrival, so no chain is in flight between two batches: a new backend fetches unused
//! chains again. While a batch is published, its descriptors are partly overwritten, and the region holds their old
//! contents. If the backend is killed before the driver can see the batch's first descriptor as used, a new backend
//! copies the old contents back into the ring. A batch is published in these steps:
//!
//! 1. the batch's descriptors are copied into entries of the region, and these entries are removed from the free list;
//! 2. `used` is set to the position after the batch, and `old_used` keeps the position before the batch;
//! 3. the descriptors are overwritten, with the flags of the first descriptor last: from then on, the driver owns the
//!    batch;
//! 4. `old_used` is set to the position after the batch, and the entries return to the free list.
//!
//! A single store of one word completes each step. So the region and the ring are consistent even if a backend is
//! killed between two instructions. The frontend can also write the region, so each field is read once and checked.

use crate::mapping::{Mapping, MemoryError};
use crate::sigbus::Alarm;
use nix::sys::mman::MapFlags;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Alignment of each queue's part of the region, in bytes.
const ALIGN: u64 = 64;
/// Length of `QueueRegionPacked` without its entries, in bytes. A split queue needs fewer bytes.
const HEADER_LEN: u64 = 32;
/// Length of `DescStatePacked` in bytes.
const ENTRY_LEN: u64 = 32;
/// Version of the region's layout. 0 means not initialized.
const VERSION: u16 = 1;
/// Offset of the word with version, number of entries, and heads of the free list.
const SHAPE_AT: usize = 8;
/// Offset of the word with the positions.
const POSITIONS_AT: usize = 16;

/// A position in a packed ring: index and wrap counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub index: u16,
    pub wrap: bool,
}

/// A saved descriptor, with the contents written by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    pub addr: u64,
    pub len: u32,
    pub id: u16,
    pub flags: u16,
    /// Number of descriptors in the chain, set in the chain's first descriptor.
    pub slots: u16,
}

/// Returns the length of a region for `queues` rings of up to `entries` descriptors, in bytes.
pub fn region_len(queues: u16, entries: u16) -> u64 {
    (HEADER_LEN + u64::from(entries) * ENTRY_LEN).next_multiple_of(ALIGN) * u64::from(queues)
}

/// The inflight region, with one part per queue.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    part_len: usize,
    queues: u16,
    entries: u16,
}

impl Region {
    /// Maps `len` bytes at `offset` of a file, for `queues` rings of up to `entries` descriptors.
    ///
    /// # Errors
    /// Returns an error if the region is too small or not aligned, lies past the end of the file, or cannot be mapped.
    pub fn map(
        file: &File,
        offset: u64,
        len: u64,
        queues: u16,
        entries: u16,
        alarm: &Alarm,
    ) -> Result<Self, MemoryError> {
        let part_len = len.checked_div(u64::from(queues)).ok_or(MemoryError::Extent)?;
        let needed = HEADER_LEN + u64::from(entries) * ENTRY_LEN;
        let is_aligned = [offset, part_len].iter().all(|at| at.is_multiple_of(size_of::<AtomicU64>() as u64));
        if part_len < needed || !is_aligned {
            return Err(MemoryError::Extent);
        }
        let mapping = Mapping::new(file, offset, len, MapFlags::empty(), alarm)?;
        Ok(Self { mapping, part_len: part_len as usize, queues, entries })
    }

    /// Returns a region without a file, for tests under Miri.
    #[cfg(test)]
    pub(crate) fn anonymous(len: usize, queues: u16, entries: u16) -> Arc<Self> {
        let (mapping, part_len) = (Mapping::anonymous(len), len / usize::from(queues));
        Arc::new(Self { mapping, part_len, queues, entries })
    }

    #[cfg(test)]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the part of the region for vring number `vring`. Returns `None` if the region has too few parts, or too
    /// few entries for a vring of `size` descriptors.
    pub fn part(self: &Arc<Self>, vring: usize, size: u16) -> Option<Part> {
        let is_there = vring < usize::from(self.queues) && size <= self.entries;
        is_there.then(|| Part { region: Arc::clone(self), start: vring * self.part_len })
    }

    /// Clears the stored position of a vring. Call this function after the frontend has received the position: the
    /// frontend passes the position at the next start.
    pub fn forget(self: &Arc<Self>, vring: usize) {
        if let Some(part) = self.part(vring, 0) {
            part.word(SHAPE_AT).store(0, Ordering::Release);
        }
    }
}

/// The part of the region for one packed ring.
#[derive(Debug)]
pub struct Part {
    region: Arc<Region>,
    start: usize,
}

/// The progress of an earlier backend, as stored in the region when that backend ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Position before the last published batch. Equals `after` if the whole batch was published.
    pub before: Place,
    /// Position after the last published batch.
    pub after: Place,
    /// Number of saved descriptors of the last published batch.
    pub saved: u16,
}

impl Part {
    /// Returns the word at offset `at`, a multiple of 8 bytes within the part.
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.region.part_len);
        // SAFETY: the part has at least a header, and `entry_at` returns only offsets inside the part. The mapping
        // lives as long as `self`, and region and part begin at multiples of 8. Atomics can be shared with another
        // process.
        unsafe { AtomicU64::from_ptr(self.region.mapping.start().add(self.start + at).cast().as_ptr()) }
    }

    /// Returns the progress of an earlier backend in a ring of `size` descriptors, or `None` if no earlier backend
    /// stored a position.
    pub(crate) fn progress(&self, size: u16) -> Option<Progress> {
        let [version, entries, _, old_free_head] = halves(self.word(SHAPE_AT).load(Ordering::Acquire));
        let positions = self.word(POSITIONS_AT).load(Ordering::Acquire);
        let [used, old_used, wraps, _] = halves(positions);
        let [wrap, old_wrap] = wraps.to_le_bytes();
        (version == VERSION && entries == size).then_some(Progress {
            before: Place { index: old_used, wrap: old_wrap != 0 },
            after: Place { index: used, wrap: wrap != 0 },
            saved: old_free_head,
        })
    }

    /// Stores the position `place`, with no batch in progress.
    pub(crate) fn settle(&self, place: Place, size: u16) {
        self.set_positions(place, place);
        // Store the positions before the number of saved descriptors. A crash after the opposite order could leave two
        // different positions without saved descriptors, which is invalid.
        self.word(SHAPE_AT).store(word([VERSION, size, 0, 0]), Ordering::Release);
    }

    /// Saves the descriptors of a batch and the positions before and after the batch. Call this function before the
    /// batch is published.
    pub(crate) fn begin(&self, before: Place, after: Place, size: u16, batch: impl Iterator<Item = Saved>) {
        let mut count = 0;
        // A batch lies in the ring, so it has at most `size` descriptors.
        for saved in batch.take(usize::from(size)) {
            self.save(count, &saved);
            count += 1;
        }
        self.word(SHAPE_AT).store(word([VERSION, size, 0, count]), Ordering::Release);
        self.set_positions(before, after);
        // The stores to the region precede any change of the ring.
        fence(Ordering::SeqCst);
    }

    fn set_positions(&self, before: Place, after: Place) {
        let wraps = u16::from_le_bytes([after.wrap.into(), before.wrap.into()]);
        self.word(POSITIONS_AT).store(word([after.index, before.index, wraps, 0]), Ordering::Release);
    }

    fn entry_at(number: u16) -> usize {
        HEADER_LEN as usize + usize::from(number) * ENTRY_LEN as usize
    }

    fn save(&self, number: u16, saved: &Saved) {
        let at = Self::entry_at(number);
        let is_head = saved.slots > 0;
        let last = if is_head { number.wrapping_add(saved.slots - 1) } else { 0 };
        let state = [u16::from(is_head), number.wrapping_add(1), last, saved.slots];
        // The first entry is the oldest, so the entry's number serves as the field `counter`.
        let content =
            [word(state), number.into(), word([saved.id, saved.flags, 0, 0]) | u64::from(saved.len) << 32, saved.addr];
        for (nth, content) in content.into_iter().enumerate() {
            self.word(at + 8 * nth).store(content, Ordering::Relaxed);
        }
    }

    /// Returns a saved descriptor. `number` must be below the ring's size.
    pub(crate) fn saved(&self, number: u16) -> Saved {
        let at = Self::entry_at(number);
        let [_, _, _, slots] = halves(self.word(at).load(Ordering::Relaxed));
        let identity = self.word(at + 16).load(Ordering::Relaxed);
        let [id, flags, _, _] = halves(identity);
        Saved { addr: self.word(at + 24).load(Ordering::Relaxed), len: (identity >> 32) as u32, id, flags, slots }
    }
}

/// Packs four 16-bit fields into a word, in memory order.
fn word(halves: [u16; 4]) -> u64 {
    halves.iter().rev().fold(0, |word, &half| word << u16::BITS | u64::from(half))
}

fn halves(word: u64) -> [u16; 4] {
    [0, 1, 2, 3].map(|nth| (word >> (nth * u16::BITS)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn file(len: u64) -> File {
        let file = File::from(memfd_create(c"inflight", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    fn region(file: &File, queues: u16, entries: u16) -> Result<Arc<Region>, MemoryError> {
        let alarm = Alarm::new(EventFd::new().unwrap());
        let len = file.metadata().unwrap().len();
        Region::map(file, 0, len, queues, entries, &alarm).map(Arc::new)
    }

    #[test]
    fn what_is_written_lies_where_the_specification_has_it() {
        let region = Region::anonymous(2 * 64 * 8, 2, 4);
        let part = region.part(1, 4).unwrap();
        assert_eq!(part.progress(4), None, "nobody was there");
        let (before, after) = (Place { index: 3, wrap: true }, Place { index: 1, wrap: false });
        let first = Saved { addr: 0x0807_0605_0403_0201, len: 0x1122_3344, id: 0x5566, flags: 0x7788, slots: 2 };
        let second = Saved { slots: 0, ..first };
        part.begin(before, after, 4, [first, second].into_iter());
        let bytes = region.mapping().bytes(512 + 96)[512..].to_vec();
        // The header: features, version, desc_num, free_head, old_free_head, used_idx, old_used_idx, the two wrap
        // counters.
        let header = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0, 0, 2, 0, 1, 0, 3, 0, 0, 1, 0, 0];
        assert_eq!(bytes[..24], header);
        // An entry: inflight, padding, next, last, num, counter, id, flags, len, addr.
        let entry = [1, 0, 1, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x66, 0x55, 0x88, 0x77, 0x44, 0x33, 0x22, 0x11];
        assert_eq!(bytes[32..56], entry);
        assert_eq!(bytes[56..64], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(part.progress(4), Some(Progress { before, after, saved: 2 }));
        assert_eq!([part.saved(0), part.saved(1)], [first, second]);
        part.settle(after, 4);
        assert_eq!(part.progress(4), Some(Progress { before: after, after, saved: 0 }));
        assert_eq!(part.progress(5), None, "a ring of another size");
    }

    #[test]
    fn what_is_forgotten_is_as_if_nobody_had_been_there() {
        let region = Region::anonymous(1024, 2, 4);
        let parts = [0, 1].map(|vring| region.part(vring, 4).unwrap());
        for part in &parts {
            part.settle(Place { index: 2, wrap: true }, 4);
        }
        region.forget(0);
        region.forget(7);
        assert_eq!((parts[0].progress(4), parts[1].progress(4).is_some()), (None, true));
    }

    #[test]
    fn a_region_that_is_too_small_or_askew_is_refused() {
        for (len, queues, entries) in [(0, 0, 0), (0, 1, 0), (63, 1, 1), (64, 2, 1), (1020, 3, 8), (512, 1, 16)] {
            assert!(region(&file(len), queues, entries).is_err(), "{len} bytes, {queues} queues of {entries}");
        }
        let region = region(&file(64), 1, 1).unwrap();
        assert!(region.part(1, 1).is_none() && region.part(0, 2).is_none() && region.part(0, 1).is_some());
    }
}
