//! A guest's memory: regions of files shared by the guest's virtual machine monitor.
//!
//! No Rust reference into guest memory exists, because another processor can write every byte at any time. Bytes are
//! copied between guest memory and private memory. Each value that affects the device is read exactly once.

use crate::mapping::{Mapping, MemoryError};
use crate::sigbus::Alarm;
use nix::sys::mman::MapFlags;
use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Maximum number of regions of a guest. Each address translation can search all regions.
pub const REGIONS_MAX: usize = 32;

/// The location of a region, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Guest-physical address of the region, as in descriptors.
    pub guest: u64,
    /// Address of the region in the transport's address space for rings. For vhost-user, this address is the frontend's
    /// virtual address. Equals `guest` if rings use guest-physical addresses.
    pub user: u64,
    /// Length of the region in bytes.
    pub len: u64,
    /// Offset of the region in its file.
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
    mapping: Mapping,
}

impl Region {
    fn map(extent: Extent, file: &File, alarm: &Alarm) -> Result<Self, MemoryError> {
        extent.check()?;
        let mapping = Mapping::new(file, extent.file_offset, extent.len, MapFlags::MAP_NORESERVE, alarm)?;
        Ok(Self { extent, mapping })
    }

    #[inline]
    fn host(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    #[inline]
    fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let last = self.extent.len.checked_sub(len)?;
        // SAFETY: offset + len ≤ length of the mapped region, so the result lies inside the region or one past its end.
        (offset <= last).then(|| unsafe { self.host().add(clamped(offset, last) as usize) })
    }
}

/// The whole memory of a guest. A change of the memory makes a new `GuestMemory`, and each vring uses the old
/// `GuestMemory` until the vring's next start.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Slot>,
}

/// A region, and the number of times that the frontend has added the region. QEMU adds and removes a region once for
/// each queue pair.
#[derive(Clone, Debug)]
struct Slot {
    region: Arc<Region>,
    times: u32,
}

impl GuestMemory {
    /// Maps a whole memory table with a total length of at most `bytes_max` bytes. `alarm` is signalled on an access to
    /// memory that was removed from the mapped file.
    ///
    /// # Errors
    /// Returns an error if a region is out of range, overlaps another region, exceeds a limit, lies past its file's
    /// end, or cannot be mapped.
    pub fn map(table: &[(Extent, File)], bytes_max: u64, alarm: &Alarm) -> Result<Self, MemoryError> {
        let mut memory = Self::default();
        for (extent, file) in table {
            memory = memory.with_new(*extent, file, bytes_max, alarm)?;
        }
        Ok(memory)
    }

    /// Returns the mapping of the largest region.
    #[cfg(test)]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.regions[0].region.mapping
    }

    /// Returns memory without files, for tests under Miri.
    #[cfg(test)]
    pub(crate) fn anonymous(extents: &[Extent]) -> Self {
        let region = |&extent: &Extent| Region { extent, mapping: Mapping::anonymous(extent.len as usize) };
        let slot = |extent| Slot { region: Arc::new(region(extent)), times: 1 };
        let mut regions: Vec<Slot> = extents.iter().map(slot).collect();
        regions.sort_by_key(|slot| std::cmp::Reverse(slot.region.extent.len));
        Self { regions }
    }

    /// Returns the same memory with one more region. If the region already exists, only increments the region's count.
    ///
    /// # Errors
    /// Returns the errors of [`GuestMemory::map`].
    pub fn with(&self, extent: Extent, file: &File, bytes_max: u64, alarm: &Alarm) -> Result<Self, MemoryError> {
        let mut regions = self.regions.clone();
        match regions.iter_mut().find(|slot| slot.region.extent == extent) {
            Some(slot) => slot.times = slot.times.saturating_add(1),
            None => return self.with_new(extent, file, bytes_max, alarm),
        }
        Ok(Self { regions })
    }

    fn with_new(&self, extent: Extent, file: &File, bytes_max: u64, alarm: &Alarm) -> Result<Self, MemoryError> {
        extent.check()?;
        // Check the limit before any mapping. Otherwise, one guest could use up the addresses of this process, and no
        // memory of other guests could be mapped.
        let bytes = self.size().1.saturating_add(extent.len);
        if bytes > bytes_max {
            return Err(MemoryError::TooLarge { bytes, bytes_max });
        }
        if self.regions.len() >= REGIONS_MAX {
            return Err(MemoryError::TooMany);
        }
        if self.regions.iter().any(|slot| slot.region.extent.overlaps(&extent)) {
            return Err(MemoryError::Overlap);
        }
        let mut regions = self.regions.clone();
        regions.push(Slot { region: Arc::new(Region::map(extent, file, alarm)?), times: 1 });
        // The largest region is first, because it contains most buffers.
        regions.sort_by_key(|slot| std::cmp::Reverse(slot.region.extent.len));
        Ok(Self { regions })
    }

    /// Returns the same memory without the region at these addresses. If the region was added several times, only
    /// decrements the region's count.
    ///
    /// # Errors
    /// Returns an error if the memory has no region at these addresses.
    pub fn without(&self, guest: u64, user: u64, len: u64) -> Result<Self, MemoryError> {
        let is_it = |e: &Extent| e.guest == guest && e.user == user && e.len == len;
        let mut regions = self.regions.clone();
        let slot = regions.iter_mut().find(|slot| is_it(&slot.region.extent)).ok_or(MemoryError::Unknown)?;
        slot.times -= 1;
        regions.retain(|slot| slot.times > 0);
        Ok(Self { regions })
    }

    /// Returns the number of regions and their total length in bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.regions.len(), self.regions.iter().map(|slot| slot.region.extent.len).sum())
    }

    /// Returns the address ranges of the regions in this process.
    pub fn places(&self) -> Vec<Range<u64>> {
        let place = |Slot { region, .. }: &Slot| {
            let start = region.host().as_ptr() as u64;
            start..start + region.extent.len
        };
        self.regions.iter().map(place).collect()
    }

    /// Returns the end of the highest region in guest-physical memory, or 0 without memory.
    pub fn end(&self) -> u64 {
        self.regions.iter().map(|slot| slot.region.extent.guest + slot.region.extent.len).max().unwrap_or_default()
    }

    /// Returns the host address of `len` bytes at a guest-physical address, if the bytes lie in one region.
    #[inline]
    pub(crate) fn at_guest(&self, guest: u64, len: u64) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|Slot { region, .. }| {
            let offset = guest.wrapping_sub(region.extent.guest);
            region.at(offset, len)
        })
    }

    /// Returns the largest region, which contains most buffers.
    #[inline]
    pub(crate) fn window(&self) -> Window {
        self.regions.first().map_or(
            Window { guest: 0, len: 0, host: NonNull::dangling() },
            |Slot { region, .. }| Window { guest: region.extent.guest, len: region.extent.len, host: region.host() },
        )
    }

    /// Returns the number of bytes from a guest-physical address to the end of its region. A buffer can cross the
    /// border of two regions.
    pub(crate) fn left_at_guest(&self, guest: u64) -> Option<u64> {
        self.regions.iter().find_map(|Slot { region, .. }| {
            let offset = guest.wrapping_sub(region.extent.guest);
            region.extent.len.checked_sub(offset).filter(|left| *left > 0)
        })
    }

    /// Returns the host address and the guest address of `len` bytes at the frontend's address `user`, if the bytes lie
    /// in one region.
    pub(crate) fn at_user(&self, user: u64, len: u64) -> Option<(NonNull<u8>, u64)> {
        self.regions.iter().find_map(|Slot { region, .. }| {
            let offset = user.wrapping_sub(region.extent.user);
            Some((region.at(offset, len)?, region.extent.guest + offset))
        })
    }
}

/// A region in a form that a loop over descriptors can keep in registers. A window is used only while the memory is
/// borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    guest: u64,
    len: u64,
    host: NonNull<u8>,
}

impl Window {
    /// Translates an address like [`GuestMemory::at_guest`], but only in this region.
    #[inline]
    pub fn at(&self, guest: u64, len: u64) -> Option<NonNull<u8>> {
        let offset = guest.wrapping_sub(self.guest);
        let last = self.len.checked_sub(len)?;
        // SAFETY: offset + len ≤ length of the mapped region, so the result lies inside the region or one past its end.
        (offset <= last).then(|| unsafe { self.host.add(clamped(offset, last) as usize) })
    }
}

/// Returns `index`, which the caller has checked to be at most `last`. Returns 0 for a greater index, if a processor
/// speculates past the check (Spectre, variant 1). The code has no branch that can be mispredicted.
#[inline]
pub(crate) fn clamped(index: u64, last: u64) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut clamped = index;
        // SAFETY: the code computes in registers, and accesses no memory.
        unsafe {
            std::arch::asm!(
                "cmp {last}, {clamped}",
                "cmovb {clamped}, {zero}",
                last = in(reg) last,
                clamped = inout(reg) clamped,
                zero = in(reg) 0u64,
                options(pure, nomem, nostack),
            );
        }
        clamped
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    std::hint::select_unpredictable(index <= last, index, 0)
}

/// A number at an unaligned address. A volatile access to an array of bytes would access one byte at a time.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Unaligned<T>(pub T);

/// Copies bytes from or to guest memory, which the driver can write at the same time. The copy is opaque to the
/// compiler, which can neither read a byte twice nor reuse an earlier value.
///
/// # Safety
/// `len` bytes are mapped at `from` and at `to`. If one range is private memory, the two ranges do not overlap. If both
/// are guest memory and overlap, the copied bytes have arbitrary values.
#[inline]
pub(crate) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees the two ranges. `memcpy` follows the C calling convention, reads only `from` and
    // writes only `to`. A byte that is written concurrently has the old or the new value.
    unsafe {
        std::arch::asm!(
            "call {memcpy}",
            memcpy = sym libc::memcpy,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len => _,
            clobber_abi("C"),
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    // SAFETY: the caller guarantees the two ranges, and `at` stays below `len`.
    unsafe {
        let mut at = 0;
        while len - at >= size_of::<u64>() {
            let word = from.add(at).cast::<Unaligned<u64>>().read_volatile();
            to.add(at).cast::<Unaligned<u64>>().write_volatile(word);
            at += size_of::<u64>();
        }
        while at < len {
            to.add(at).write_volatile(from.add(at).read_volatile());
            at += 1;
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
    fn a_number_beyond_the_last_is_clamped_and_no_other() {
        let borders = [0, 1, 2, 0x7fff_ffff, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for (index, last) in borders.iter().flat_map(|index| borders.map(|last| (*index, last))) {
            assert_eq!(clamped(index, last), if index <= last { index } else { 0 }, "{index:#x} to {last:#x}");
        }
    }

    #[test]
    fn bytes_are_copied_at_every_length_and_place() {
        let source: Vec<u8> = (0..100).collect();
        for (from, to, len) in
            (0..9).flat_map(|from| (0..9).flat_map(move |to| (0..64).map(move |len| (from, to, len))))
        {
            let mut copy = [0xff; 100];
            // SAFETY: source and copy have enough bytes, and the copy is private.
            unsafe { copy_shared(source[from..].as_ptr(), copy[to..].as_mut_ptr(), len) };
            assert_eq!(copy[to..to + len], source[from..from + len]);
            assert!(copy[..to].iter().chain(&copy[to + len..]).all(|byte| *byte == 0xff));
        }
    }

    #[test]
    fn an_address_is_found_in_its_region_alone() {
        let table = [
            (extent(0, 0x7000_0000, 2 * PAGE, 0), file(2 * PAGE)),
            (extent(4 * PAGE, 0x9000_0000, PAGE, PAGE), file(2 * PAGE)),
        ];
        let memory = GuestMemory::map(&table, u64::MAX, &alarm()).unwrap();
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
        let refuse = |e: Extent, len| GuestMemory::map(&[(e, file(len))], u64::MAX, &alarm()).unwrap_err();
        assert!(matches!(refuse(extent(0, 0, 0, 0), PAGE), MemoryError::Extent));
        assert!(matches!(refuse(extent(u64::MAX, 0, PAGE, 0), PAGE), MemoryError::Extent));
        assert!(matches!(refuse(extent(0, 0, PAGE, u64::MAX), PAGE), MemoryError::Extent));
        assert!(matches!(refuse(extent(0, 0, 2 * PAGE, 0), PAGE), MemoryError::PastEnd));
        let one = GuestMemory::map(&[(extent(0, 0, PAGE, 0), file(PAGE))], 2 * PAGE, &alarm()).unwrap();
        assert!(matches!(
            one.with(extent(PAGE - 1, 0, PAGE, 0), &file(PAGE), 2 * PAGE, &alarm()).unwrap_err(),
            MemoryError::Overlap
        ));
        assert!(matches!(one.without(0, 1, PAGE).unwrap_err(), MemoryError::Unknown));
        let twice = one.with(extent(0, 0, PAGE, 0), &file(PAGE), 2 * PAGE, &alarm()).unwrap();
        assert_eq!(twice.size(), (1, PAGE));
        assert_eq!(twice.without(0, 0, PAGE).unwrap().size(), (1, PAGE), "QEMU removes it as often as it added it");
        assert_eq!(one.without(0, 0, PAGE).unwrap().size(), (0, 0));
    }
}
