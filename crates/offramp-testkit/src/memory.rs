//! Guest memory: one or several shared files at chosen guest-physical addresses.
//!
//! Another process or thread reads and writes the same bytes at the same time. So aligned integers are read and written
//! as atomics, and ranges of bytes are copied. A copy during a write by the peer contains a mix of old and new bytes,
//! as with real memory.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::unistd::ftruncate;

use crate::hugepages::HugePages;

/// Length of a memory page on the test machines, in bytes.
pub const PAGE_LEN: u64 = 4096;
/// Number of unmapped bytes before and after every region, so that regions are never adjacent in the address space of
/// this process.
const GUARD_LEN: u64 = 64 * 1024;

/// The description of a region of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// First guest-physical address, a multiple of [`PAGE_LEN`].
    pub guest_addr: u64,
    /// Length in bytes, a multiple of [`PAGE_LEN`].
    pub len: u64,
    /// Offset in the region's file (the backend's mmap offset), a multiple of [`PAGE_LEN`].
    pub file_offset: u64,
}

impl RegionSpec {
    /// Returns a region of `len` bytes at `guest_addr`, from the start of a file.
    pub fn new(guest_addr: u64, len: u64) -> Self {
        Self { guest_addr, len, file_offset: 0 }
    }
}

/// A region of guest memory: a separate mapped file, with unmapped guards before and after it in the address space.
#[derive(Debug)]
pub struct Region {
    spec: RegionSpec,
    file: OwnedFd,
    /// Reserved address range: the region and the guards around it.
    reserved: NonNull<libc::c_void>,
    reserved_len: NonZeroUsize,
    base: NonNull<u8>,
    next_free: AtomicU64,
    /// Pages written by the guest since the last call of `take_written`.
    written: Vec<AtomicBool>,
}

// SAFETY: the pointers stay valid until the region is dropped. Every access through the pointers is atomic, or a copy
// of plain bytes without any reference to the bytes.
unsafe impl Send for Region {}
// SAFETY: every shared access is atomic, or a copy of plain bytes without any reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the region. `huge_page_len` is the page length of the region's file if the file has huge pages.
    fn map(spec: RegionSpec, huge_page_len: Option<u64>) -> Self {
        for (what, value) in [("guest address", spec.guest_addr), ("length", spec.len), ("offset", spec.file_offset)] {
            assert!(value % PAGE_LEN == 0, "the {what} {value:#x} of a memory region is no multiple of {PAGE_LEN}");
        }
        assert!(spec.guest_addr.checked_add(spec.len).is_some(), "the memory region {spec:x?} wraps around");
        let mut flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        flags.set(MFdFlags::MFD_HUGETLB, huge_page_len.is_some());
        let page_len = huge_page_len.unwrap_or(PAGE_LEN);
        let file = memfd_create("offramp-guest", flags).expect("creating a file for guest memory");
        let file_len = (spec.file_offset + spec.len).next_multiple_of(page_len);
        ftruncate(&file, file_len as i64).expect("sizing the file for guest memory");
        // A huge page can only be mapped as a whole.
        let first_page = spec.file_offset - spec.file_offset % page_len;
        let guard_len = GUARD_LEN.next_multiple_of(page_len);
        let reserved_len = size(file_len - first_page + 2 * guard_len + page_len);
        // SAFETY: the kernel chooses the address, so the new mapping replaces no memory in use.
        let reserved = unsafe { mmap_anonymous(None, reserved_len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }
            .expect("reserving address space for guest memory");
        let start = (reserved.as_ptr() as u64 + guard_len).next_multiple_of(page_len);
        if huge_page_len.is_some() {
            HugePages::wait_for((file_len - first_page) / page_len);
        }
        // SAFETY: the range lies in the address space reserved above, and no pointer into it exists yet.
        let mapped = unsafe {
            mmap(
                NonZeroUsize::new(start as usize),
                size(file_len - first_page),
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED | MapFlags::MAP_FIXED,
                &file,
                first_page as i64,
            )
        }
        .expect("mapping guest memory");
        // SAFETY: the region begins in the first mapped page.
        let base = unsafe { mapped.cast().add((spec.file_offset - first_page) as usize) };
        let written = (0..spec.len / PAGE_LEN).map(|_| AtomicBool::new(false)).collect();
        Self { spec, file, reserved, reserved_len, base, next_free: AtomicU64::new(spec.guest_addr), written }
    }

    /// Returns the region's first guest-physical address.
    pub fn guest_addr(&self) -> u64 {
        self.spec.guest_addr
    }

    /// Returns the region's length in bytes.
    pub fn len(&self) -> u64 {
        self.spec.len
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.spec.len == 0
    }

    /// Returns the region's offset in its file.
    pub fn file_offset(&self) -> u64 {
        self.spec.file_offset
    }

    /// Returns the address of the region's first byte in this process: the "user address" of vhost-user.
    pub fn user_addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the region's file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn end(&self) -> u64 {
        self.spec.guest_addr + self.spec.len
    }

    fn contains(&self, guest_addr: u64) -> bool {
        (self.spec.guest_addr..self.end()).contains(&guest_addr)
    }

    /// Returns a pointer to `guest_addr` in this region.
    fn pointer(&self, guest_addr: u64) -> *mut u8 {
        // SAFETY: the offset is below the length of the mapping.
        unsafe { self.base.as_ptr().add((guest_addr - self.spec.guest_addr) as usize) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range reserved by `map`, and no pointer into the region is left. Ignore a failure
        // of the call, because the failure would only leak address space of the test process.
        let _ = unsafe { munmap(self.reserved, self.reserved_len.get()) };
    }
}

/// Returns `len` as a nonzero number, and panics if `len` is 0.
fn size(len: u64) -> NonZeroUsize {
    NonZeroUsize::new(len as usize).expect("a length above zero")
}

/// The memory of a guest. Clones share the memory, so that one thread can change bytes just written by another thread.
///
/// All addresses are guest-physical. An access outside all regions is a mistake of the test and panics. A range can
/// continue from one region into the next if there is no hole between the regions.
#[derive(Clone, Debug)]
pub struct GuestMemory {
    regions: Arc<Vec<Region>>,
}

/// Defines accessors for aligned little-endian integers. Each access is a single load (acquire) or store (release).
macro_rules! integers {
    ($($int:ident $atomic:ident $read:ident $write:ident)*) => {$(
        #[doc = concat!("Reads a little-endian `", stringify!($int), "`. When it is aligned, in one access that no")]
        #[doc = "later access overtakes (acquire)."]
        pub fn $read(&self, addr: u64) -> $int {
            const LEN: usize = size_of::<$int>();
            if addr % LEN as u64 != 0 {
                let mut bytes = [0; LEN];
                self.read(addr, &mut bytes);
                return $int::from_le_bytes(bytes);
            }
            #[allow(clippy::cast_ptr_alignment)] // Regions start at page boundaries in both address spaces.
            let place = self.region_of(addr).pointer(addr).cast::<$int>();
            // SAFETY: the address is aligned, and lies inside the region, whose length is a multiple of a page.
            $int::from_le(unsafe { $atomic::from_ptr(place) }.load(Ordering::Acquire))
        }

        #[doc = concat!("Writes a little-endian `", stringify!($int), "`. When it is aligned, in one access that no")]
        #[doc = "earlier access is overtaken by (release)."]
        pub fn $write(&self, addr: u64, value: $int) {
            const LEN: usize = size_of::<$int>();
            if addr % LEN as u64 != 0 {
                return self.write(addr, &value.to_le_bytes());
            }
            #[allow(clippy::cast_ptr_alignment)] // Regions start at page boundaries in both address spaces.
            let place = self.region_of(addr).pointer(addr).cast::<$int>();
            // SAFETY: the address is aligned, and lies inside the region, whose length is a multiple of a page.
            unsafe { $atomic::from_ptr(place) }.store(value.to_le(), Ordering::Release);
            self.note_written(addr, LEN as u64);
        }
    )*};
}

impl GuestMemory {
    /// Maps memory with the given regions, filled with zeros. Regions can overlap or have holes between them.
    pub fn new(regions: &[RegionSpec]) -> Self {
        Self::map(regions, None)
    }

    /// Does the same as [`GuestMemory::new`], but in files of huge pages. `pages` must have reserved enough pages. A
    /// region can be shorter than its file, because a file has whole pages.
    pub fn on_huge_pages(regions: &[RegionSpec], pages: &HugePages) -> Self {
        Self::map(regions, Some(pages.page_len()))
    }

    fn map(regions: &[RegionSpec], huge_page_len: Option<u64>) -> Self {
        assert!(!regions.is_empty(), "a guest needs a region of memory");
        Self { regions: Arc::new(regions.iter().map(|spec| Region::map(*spec, huge_page_len)).collect()) }
    }

    /// Maps memory with one region of `len` bytes (rounded up to pages) at guest address 0.
    pub fn contiguous(len: u64) -> Self {
        Self::new(&[RegionSpec::new(0, len.next_multiple_of(PAGE_LEN))])
    }

    /// Returns the regions, in the given order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the first guest address after the first region.
    pub fn border(&self) -> u64 {
        self.regions[0].end()
    }

    /// Converts a guest address to the address in this process, for `SET_VRING_ADDR`.
    pub fn user_addr(&self, addr: u64) -> u64 {
        self.region_of(addr).pointer(addr) as u64
    }

    /// Allocates `len` bytes, aligned to `align`, from the first region with room. The bytes cannot be freed.
    pub fn alloc(&self, len: u64, align: u64) -> u64 {
        (0..self.regions.len())
            .find_map(|region| self.try_alloc_in(region, len, align))
            .unwrap_or_else(|| panic!("guest memory has no {len} bytes left: give the guest more memory"))
    }

    /// Allocates `len` bytes, aligned to `align`, from one region.
    pub fn alloc_in(&self, region: usize, len: u64, align: u64) -> u64 {
        self.try_alloc_in(region, len, align)
            .unwrap_or_else(|| panic!("region {region} of guest memory has no {len} bytes left"))
    }

    fn try_alloc_in(&self, region: usize, len: u64, align: u64) -> Option<u64> {
        let region = &self.regions[region];
        let take = |free: u64| {
            let start = free.checked_next_multiple_of(align)?;
            let end = start.checked_add(len)?;
            (end <= region.end()).then_some((start, end))
        };
        let update = |free| take(free).map(|(_, end)| end);
        let free = region.next_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()?;
        take(free).map(|(start, _)| start)
    }

    /// Copies bytes from guest memory.
    pub fn read(&self, addr: u64, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (place, len) = self.longest_piece(addr + done as u64, bytes.len() - done);
            let into = &mut bytes[done..done + len];
            // SAFETY: `place` is valid for `len` bytes of the mapping, and no Rust reference into the mapping exists.
            unsafe { std::ptr::copy_nonoverlapping(place, into.as_mut_ptr(), len) };
            done += len;
        }
    }

    /// Copies bytes from guest memory.
    pub fn read_vec(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(addr, &mut bytes);
        bytes
    }

    /// Copies bytes into guest memory.
    pub fn write(&self, addr: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (place, len) = self.longest_piece(addr + done as u64, bytes.len() - done);
            // SAFETY: `place` is valid for `len` bytes of the mapping, and no Rust reference into the mapping exists.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), place, len) };
            done += len;
        }
        self.note_written(addr, bytes.len() as u64);
    }

    /// Sets `len` bytes to `byte`.
    pub fn fill(&self, addr: u64, len: usize, byte: u8) {
        let mut done = 0;
        while done < len {
            let (place, piece_len) = self.longest_piece(addr + done as u64, len - done);
            // SAFETY: `place` is valid for `piece_len` bytes of the mapping, and no Rust reference into the mapping
            // exists.
            unsafe { std::ptr::write_bytes(place, byte, piece_len) };
            done += piece_len;
        }
        self.note_written(addr, len as u64);
    }

    /// Marks pages as written by the guest. Called after each write.
    fn note_written(&self, addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        for page in addr / PAGE_LEN..(addr + len).div_ceil(PAGE_LEN) {
            let region = self.region_of(page * PAGE_LEN);
            let at = page - region.spec.guest_addr / PAGE_LEN;
            region.written[at as usize].store(true, Ordering::Relaxed);
        }
    }

    /// Returns the addresses of the pages written by the guest since the last call. A virtual machine monitor has the
    /// same information during a live migration. The guest must not write during the call. Only a
    /// [`DirtyLog`](crate::frontend::DirtyLog) contains the device's writes.
    pub fn take_written(&self) -> Vec<u64> {
        let of_region = |region: &Region| {
            let is_written = |page: &&AtomicBool| page.swap(false, Ordering::Relaxed);
            let written = region.written.iter().enumerate().filter(|(_, page)| is_written(page));
            written.map(|(at, _)| region.spec.guest_addr + at as u64 * PAGE_LEN).collect::<Vec<_>>()
        };
        self.regions.iter().flat_map(of_region).collect()
    }

    /// Replaces an aligned word by 0, and returns the old value.
    pub(crate) fn take_u64(&self, addr: u64) -> u64 {
        #[allow(clippy::cast_ptr_alignment)] // Regions start at page boundaries in both address spaces.
        let place = self.region_of(addr).pointer(addr).cast::<u64>();
        assert!(addr.is_multiple_of(8), "{addr:#x} is not aligned");
        // SAFETY: the address is aligned, and lies inside the region, whose length is a multiple of a page.
        u64::from_le(unsafe { AtomicU64::from_ptr(place) }.swap(0, Ordering::AcqRel))
    }

    /// Maps the same regions in new files, filled with zeros, for the migration of a guest.
    #[must_use]
    pub fn new_alike(&self) -> Self {
        Self::new(&self.regions.iter().map(|region| region.spec).collect::<Vec<_>>())
    }

    /// Copies a page from `from` to the same guest address.
    pub fn copy_page(&self, from: &Self, addr: u64) {
        self.write(addr, &from.read_vec(addr, PAGE_LEN as usize));
    }

    /// Marks the bytes that are allocated in `from` as allocated in this memory too.
    pub(crate) fn take_over_allocations(&self, from: &Self) {
        for (mine, theirs) in self.regions.iter().zip(from.regions.iter()) {
            mine.next_free.store(theirs.next_free.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    integers! {
        u8 AtomicU8 read_u8 write_u8
        u16 AtomicU16 read_u16 write_u16
        u32 AtomicU32 read_u32 write_u32
        u64 AtomicU64 read_u64 write_u64
    }

    /// Orders all earlier accesses before all later accesses, for every observer (a full fence).
    pub fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Shortens the file of one region while the peer has the file mapped. A hostile frontend shortens a file to raise
    /// `SIGBUS` at the peer's next access. This process must not access the removed pages either.
    pub fn shrink(&self, region: usize, file_len: u64) {
        ftruncate(self.regions[region].fd(), file_len as i64).expect("shrinking the file of guest memory");
    }

    fn region_of(&self, addr: u64) -> &Region {
        let found = self.regions.iter().find(|region| region.contains(addr));
        found.unwrap_or_else(|| panic!("the test touches guest address {addr:#x}, where no memory is"))
    }

    /// Returns a pointer to `addr`, and the number of contiguous bytes from `addr` on, at most `wanted`.
    fn longest_piece(&self, addr: u64, wanted: usize) -> (*mut u8, usize) {
        let region = self.region_of(addr);
        (region.pointer(addr), wanted.min((region.end() - addr) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cross_from_one_region_into_the_next() {
        let memory = GuestMemory::new(&[RegionSpec::new(0, PAGE_LEN), RegionSpec::new(PAGE_LEN, PAGE_LEN)]);
        let across = memory.border() - 3;
        memory.write(across, b"abcdef");
        assert_eq!(memory.read_vec(across, 6), b"abcdef");
        let gap = memory.user_addr(memory.border()).abs_diff(memory.user_addr(memory.border() - 1));
        assert!(gap > 1, "the halves must not be neighbours in this process");
    }

    #[test]
    fn integers_are_little_endian_whether_aligned_or_not() {
        let memory = GuestMemory::contiguous(PAGE_LEN);
        for addr in [8, 17] {
            memory.write_u32(addr, 0x0102_0304);
            assert_eq!(memory.read_vec(addr, 4), [4, 3, 2, 1]);
            assert_eq!(memory.read_u16(addr), 0x0304);
        }
    }

    #[test]
    fn the_allocator_aligns_and_moves_on_to_the_next_region() {
        let memory = GuestMemory::new(&[RegionSpec::new(0x1000, PAGE_LEN), RegionSpec::new(0x10_0000, PAGE_LEN)]);
        assert_eq!(memory.alloc(1, 1), 0x1000);
        assert_eq!(memory.alloc(16, 16), 0x1010);
        assert_eq!(memory.alloc(PAGE_LEN, 4096), 0x10_0000);
    }

    #[test]
    fn pages_that_were_written_are_named_once() {
        let memory = GuestMemory::new(&[RegionSpec::new(0x1000, PAGE_LEN), RegionSpec::new(0x2000, 3 * PAGE_LEN)]);
        memory.write_u16(0x1ffe, 1);
        memory.write(0x3fff, b"ab");
        memory.fill(0x2000, 0, 1);
        assert_eq!(memory.take_written(), [0x1000, 0x3000, 0x4000]);
        assert_eq!(memory.take_written(), [0; 0]);
        let copy = memory.new_alike();
        copy.copy_page(&memory, 0x3000);
        copy.copy_page(&memory, 0x4000);
        assert_eq!((copy.read_vec(0x3fff, 2), copy.read_u16(0x1ffe)), (b"ab".to_vec(), 0));
    }

    #[test]
    fn the_file_holds_what_the_guest_wrote_at_its_offset() {
        let memory = GuestMemory::new(&[RegionSpec { guest_addr: 0, len: PAGE_LEN, file_offset: PAGE_LEN }]);
        memory.write(5, b"here");
        let mut bytes = [0; 4];
        let read = nix::sys::uio::pread(memory.regions()[0].fd(), &mut bytes, PAGE_LEN as i64 + 5);
        assert_eq!((read, &bytes), (Ok(4), b"here"));
    }

    #[test]
    #[should_panic(expected = "where no memory is")]
    fn an_access_into_a_hole_panics() {
        GuestMemory::new(&[RegionSpec::new(0, PAGE_LEN), RegionSpec::new(2 * PAGE_LEN, PAGE_LEN)]).read_u8(PAGE_LEN);
    }
}
