//! A guest's memory as its frontend shares it: regions mapped from descriptors.
//!
//! Nothing here is ever lent as a reference: another processor may write every byte at any time. Callers
//! get pointers, copy into or out of private memory, and read what decides anything exactly once.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::sigbus::{Alarm, Watch};
use vm_memory::FileOffset;
use vm_memory::mmap::{MmapRegion, MmapRegionError};

/// Most regions that are taken (vhost-user `GET_MAX_MEM_SLOTS`): every translation looks through them.
pub(super) const REGIONS_MAX: usize = 32;
/// Guest-physical bytes that one bit of the dirty log stands for (vhost-user, "Migration").
const LOG_PAGE_LEN: u64 = 4096;

/// Why memory was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error("a region of no bytes, or one that wraps around")]
    Extent,
    #[error("regions overlap")]
    Overlap,
    #[error("more than {REGIONS_MAX} regions")]
    TooMany,
    #[error("no such region")]
    Unknown,
    #[error("a file that is shorter than the region in it")]
    PastEnd,
    #[error("mapping: {0}")]
    Map(#[from] MmapRegionError),
    #[error("looking at the file, or watching its mapping: {0}")]
    Io(#[from] io::Error),
}

/// Where a region lies for guest, frontend and file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Guest-physical address: what descriptors hold.
    pub guest: u64,
    /// Address in the frontend's own space: what `SET_VRING_ADDR` holds.
    pub user: u64,
    pub len: u64,
    pub file_offset: u64,
}

impl Extent {
    fn check(&self) -> Result<(), MemoryError> {
        let wraps = |start: u64| start.checked_add(self.len).is_none();
        if self.len == 0 || wraps(self.guest) || wraps(self.user) || wraps(self.file_offset) {
            return Err(MemoryError::Extent);
        }
        Ok(())
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.guest < other.guest + other.len && other.guest < self.guest + self.len
    }
}

/// One mapped region.
#[derive(Debug)]
struct Region {
    extent: Extent,
    /// Where the region's first byte is mapped.
    host: NonNull<u8>,
    // Dropped before the mapping.
    _watch: Watch,
    mapping: MmapRegion,
}

// SAFETY: the pointer is into a mapping that the region owns, and mappings belong to the process, not to
// a thread. What is read and written through it races with the guest anyway and is done by copies.
unsafe impl Send for Region {}
// SAFETY: as above; shared use only yields pointers.
unsafe impl Sync for Region {}

impl Region {
    fn map(extent: Extent, file: File, alarm: &Alarm) -> Result<Self, MemoryError> {
        extent.check()?;
        // Mapping from the file's start keeps every offset usable, also with huge pages.
        let map_len = usize::try_from(extent.file_offset + extent.len).map_err(|_| MemoryError::Extent)?;
        if file.metadata()?.len() < map_len as u64 {
            return Err(MemoryError::PastEnd);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mapping = MmapRegion::build(Some(FileOffset::new(file, 0)), map_len, protection, flags)?;
        // SAFETY: the mapping has file_offset + len bytes, and len is not 0.
        let host = unsafe { mapping.as_ptr().add(extent.file_offset as usize) };
        let host = NonNull::new(host).ok_or(MemoryError::Extent)?;
        let watch = Watch::new(mapping.as_ptr() as usize, mapping.size(), alarm)?;
        Ok(Self { extent, host, _watch: watch, mapping })
    }
}

/// All memory of a guest. Changing it makes a new one; queues hold the old until they take the new.
#[derive(Debug, Default)]
pub(super) struct GuestMemory {
    regions: Vec<Slot>,
}

/// A region, and how often it was added: QEMU adds and removes it once for each queue pair.
#[derive(Clone, Debug)]
struct Slot {
    region: Arc<Region>,
    times: u32,
}

impl GuestMemory {
    /// Maps a whole table. `alarm` rings when memory is touched that its file no longer has.
    pub fn map(table: Vec<(Extent, File)>, alarm: &Alarm) -> Result<Self, MemoryError> {
        let mut memory = Self::default();
        for (extent, file) in table {
            memory = memory.with_new(extent, file, alarm)?;
        }
        Ok(memory)
    }

    /// The same memory with one more region, or with one of its own once more.
    pub fn with(&self, extent: Extent, file: File, alarm: &Alarm) -> Result<Self, MemoryError> {
        let mut regions = self.regions.clone();
        match regions.iter_mut().find(|slot| slot.region.extent == extent) {
            Some(slot) => slot.times = slot.times.saturating_add(1),
            None => return self.with_new(extent, file, alarm),
        }
        Ok(Self { regions })
    }

    fn with_new(&self, extent: Extent, file: File, alarm: &Alarm) -> Result<Self, MemoryError> {
        extent.check()?;
        if self.regions.len() >= REGIONS_MAX {
            return Err(MemoryError::TooMany);
        }
        if self.regions.iter().any(|slot| slot.region.extent.overlaps(&extent)) {
            return Err(MemoryError::Overlap);
        }
        let mut regions = self.regions.clone();
        regions.push(Slot { region: Arc::new(Region::map(extent, file, alarm)?), times: 1 });
        // Most buffers are in the largest region.
        regions.sort_by_key(|slot| std::cmp::Reverse(slot.region.extent.len));
        Ok(Self { regions })
    }

    /// The same memory without the region at these addresses, or with it once less.
    pub fn without(&self, guest: u64, user: u64, len: u64) -> Result<Self, MemoryError> {
        let is_it = |e: &Extent| e.guest == guest && e.user == user && e.len == len;
        let mut regions = self.regions.clone();
        let slot = regions.iter_mut().find(|slot| is_it(&slot.region.extent)).ok_or(MemoryError::Unknown)?;
        slot.times -= 1;
        regions.retain(|slot| slot.times > 0);
        Ok(Self { regions })
    }

    /// How many regions there are, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.regions.len(), self.regions.iter().map(|slot| slot.region.extent.len).sum())
    }

    /// `len` bytes at a guest-physical address, if they lie in one region.
    #[inline]
    pub fn at_guest(&self, guest: u64, len: u64) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|Slot { region, .. }| {
            let offset = guest.wrapping_sub(region.extent.guest);
            region.at(offset, len)
        })
    }

    /// The largest region, where most buffers are.
    #[inline]
    pub fn window(&self) -> Window {
        self.regions.first().map_or(
            Window { guest: 0, len: 0, host: NonNull::dangling() },
            |Slot { region, .. }| Window { guest: region.extent.guest, len: region.extent.len, host: region.host },
        )
    }

    /// Bytes from a guest-physical address to the end of its region: for what crosses a border.
    pub fn left_at_guest(&self, guest: u64) -> Option<u64> {
        self.regions.iter().find_map(|Slot { region, .. }| {
            let offset = guest.wrapping_sub(region.extent.guest);
            region.extent.len.checked_sub(offset).filter(|left| *left > 0)
        })
    }

    /// `len` bytes at an address of the frontend, if they lie in one region; also their guest address.
    pub fn at_user(&self, user: u64, len: u64) -> Option<(NonNull<u8>, u64)> {
        self.regions.iter().find_map(|Slot { region, .. }| {
            let offset = user.wrapping_sub(region.extent.user);
            Some((region.at(offset, len)?, region.extent.guest + offset))
        })
    }
}

/// A region as a loop over descriptors keeps it in registers. It is used only while the memory is borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    guest: u64,
    len: u64,
    host: NonNull<u8>,
}

impl Window {
    /// As [`GuestMemory::at_guest`], in this region alone.
    #[inline]
    pub fn at(&self, guest: u64, len: u64) -> Option<NonNull<u8>> {
        let offset = guest.wrapping_sub(self.guest);
        let left = self.len.checked_sub(offset)?;
        // SAFETY: offset ≤ len of the mapped region, so the result is inside it or one past its end.
        (len <= left).then(|| unsafe { self.host.add(offset as usize) })
    }
}

impl Region {
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let left = self.extent.len.checked_sub(offset)?;
        debug_assert!(self.mapping.size() as u64 >= self.extent.file_offset + self.extent.len);
        // SAFETY: offset ≤ len of the mapped region, so the result is inside it or one past its end.
        (len <= left).then(|| unsafe { self.host.add(offset as usize) })
    }
}

/// The log of pages that the device wrote, for live migration (vhost-user, "Migration"): one bit per
/// page of guest-physical memory, set before the page is reported as used.
#[derive(Debug)]
pub(super) struct DirtyLog {
    // Dropped before the mapping.
    _watch: Watch,
    mapping: MmapRegion,
    offset: usize,
    len: usize,
}

impl DirtyLog {
    /// Maps `len` bytes of a log at `offset` of its file.
    pub fn map(file: File, offset: u64, len: u64, alarm: &Alarm) -> Result<Self, MemoryError> {
        let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok()).ok_or(MemoryError::Extent)?;
        if len == 0 {
            return Err(MemoryError::Extent);
        }
        if file.metadata()?.len() < end as u64 {
            return Err(MemoryError::PastEnd);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = MmapRegion::build(Some(FileOffset::new(file, 0)), end, protection, libc::MAP_SHARED)?;
        let watch = Watch::new(mapping.as_ptr() as usize, mapping.size(), alarm)?;
        Ok(Self { _watch: watch, mapping, offset: offset as usize, len: len as usize })
    }

    /// Marks the pages of a write. Pages beyond the log are the frontend's mistake and are passed over.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len - 1) / LOG_PAGE_LEN;
        for page in guest / LOG_PAGE_LEN..=last {
            let at = (page / 8) as usize;
            if at >= self.len {
                return;
            }
            // SAFETY: at < len, and offset + len bytes are mapped for as long as `self` is.
            let byte = unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(self.offset + at)) };
            byte.fetch_or(1 << (page % 8), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    const PAGE: u64 = 4096;

    fn file(len: u64) -> File {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    fn alarm() -> Alarm {
        Alarm::new(nix::sys::eventfd::EventFd::new().unwrap())
    }

    fn extent(guest: u64, user: u64, len: u64, file_offset: u64) -> Extent {
        Extent { guest, user, len, file_offset }
    }

    #[test]
    fn an_address_is_found_in_its_region_alone() {
        let table = vec![
            (extent(0, 0x7000_0000, 2 * PAGE, 0), file(2 * PAGE)),
            (extent(4 * PAGE, 0x9000_0000, PAGE, PAGE), file(2 * PAGE)),
        ];
        let memory = GuestMemory::map(table, &alarm()).unwrap();
        assert!(memory.at_guest(0, 2 * PAGE).is_some());
        assert!(memory.at_guest(1, 2 * PAGE).is_none());
        assert!(memory.at_guest(3 * PAGE, 1).is_none());
        assert!(memory.at_guest(4 * PAGE, PAGE).is_some());
        assert!(memory.at_guest(u64::MAX, 1).is_none());
        for (guest, len) in [(0, 2 * PAGE), (1, 2 * PAGE), (2 * PAGE, 1), (4 * PAGE, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let expected = memory.at_guest(guest, len).filter(|_| guest < 2 * PAGE);
            assert_eq!(memory.window().at(guest, len), expected, "{guest:#x}");
        }
        assert!(GuestMemory::default().window().at(0, 1).is_none());
        assert!(memory.at_guest(0, u64::MAX).is_none());
        assert_eq!(memory.at_user(0x9000_0010, 16).unwrap().1, 4 * PAGE + 16);
        assert!(memory.at_user(0x9000_0000, PAGE + 1).is_none());
        assert_eq!(memory.left_at_guest(PAGE), Some(PAGE));
        assert_eq!(memory.size(), (2, 3 * PAGE));
    }

    #[test]
    fn a_region_that_is_no_region_is_refused() {
        let refuse = |e: Extent, len| GuestMemory::map(vec![(e, file(len))], &alarm()).unwrap_err();
        assert!(matches!(refuse(extent(0, 0, 0, 0), PAGE), MemoryError::Extent));
        assert!(matches!(refuse(extent(u64::MAX, 0, PAGE, 0), PAGE), MemoryError::Extent));
        assert!(matches!(refuse(extent(0, 0, PAGE, u64::MAX), PAGE), MemoryError::Extent));
        assert!(matches!(refuse(extent(0, 0, 2 * PAGE, 0), PAGE), MemoryError::PastEnd));
        let one = GuestMemory::map(vec![(extent(0, 0, PAGE, 0), file(PAGE))], &alarm()).unwrap();
        assert!(matches!(
            one.with(extent(PAGE - 1, 0, PAGE, 0), file(PAGE), &alarm()).unwrap_err(),
            MemoryError::Overlap
        ));
        assert!(matches!(one.without(0, 1, PAGE).unwrap_err(), MemoryError::Unknown));
        let twice = one.with(extent(0, 0, PAGE, 0), file(PAGE), &alarm()).unwrap();
        assert_eq!(twice.size(), (1, PAGE));
        assert_eq!(twice.without(0, 0, PAGE).unwrap().size(), (1, PAGE), "QEMU removes it as often as it added it");
        assert_eq!(one.without(0, 0, PAGE).unwrap().size(), (0, 0));
    }

    #[test]
    fn a_log_has_the_pages_that_were_written_and_no_others() {
        let log_file = file(PAGE);
        let log = DirtyLog::map(log_file.try_clone().unwrap(), 8, 2, &alarm()).unwrap();
        log.mark(PAGE - 1, 2);
        log.mark(15 * PAGE, 1);
        log.mark(16 * PAGE, u64::MAX);
        log.mark(0, 0);
        let mut bytes = [0; 16];
        std::os::unix::fs::FileExt::read_exact_at(&log_file, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0b11, 0x80, 0, 0, 0, 0, 0, 0]);
    }
}
