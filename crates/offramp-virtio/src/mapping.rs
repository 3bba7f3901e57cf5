//! A mapped part of a shared file. The process survives an access to bytes that were removed from the file (see
//! [`crate::sigbus`]).

use crate::memory::REGIONS_MAX;
use crate::sigbus::{Alarm, Watch};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::statfs::fstatfs;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// The reason to refuse a memory region.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The extent is empty, or wraps around the address space.
    #[error("a region of no bytes, or one that wraps around")]
    Extent,
    /// The region overlaps another region in guest-physical memory.
    #[error("regions overlap")]
    Overlap,
    /// The guest already has [`REGIONS_MAX`] regions.
    #[error("more than {REGIONS_MAX} regions")]
    TooMany,
    /// The total length of all regions exceeds the limit for this guest.
    #[error("{bytes} bytes in all regions; no more than {bytes_max} are mapped")]
    TooLarge {
        /// Total length of all regions, in bytes.
        bytes: u64,
        /// Maximum total length of all regions, in bytes.
        bytes_max: u64,
    },
    /// The guest has no region with this extent.
    #[error("no such region")]
    Unknown,
    /// The file is shorter than the region.
    #[error("a file shorter than its region")]
    PastEnd,
    /// The file is on a file system other than tmpfs or hugetlbfs. The server of another file system could delay each
    /// access.
    #[error(
        "a file that is neither on tmpfs (as a memfd is) nor on hugetlbfs; in QEMU share memory-backend-memfd, else put \
         the file into /dev/shm"
    )]
    FileSystem,
    /// The file cannot be mapped.
    #[error("mapping: {0}")]
    Map(io::Error),
    /// The file's length cannot be read, or the mapping of the file cannot be watched.
    #[error("looking at the file, or watching its mapping: {0}")]
    Io(#[from] io::Error),
}

/// A mapped part of a file. Another process can write the file, and can shorten the file.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Address of the first mapped byte.
    start: NonNull<u8>,
    // Guard that watches the mapping. Rust drops this field before the pages.
    _watch: Watch,
    _pages: Pages,
}

// SAFETY: the pointer points into a mapping owned by the value, and mappings belong to the process, not to a thread.
// Bytes are accessed only by copies and atomics, because the guest can write concurrently.
unsafe impl Send for Mapping {}
// SAFETY: the mapping belongs to the process, and shared use only returns pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of a file, with further `flags` of mmap(2).
    pub fn new(file: &File, offset: u64, len: u64, flags: MapFlags, alarm: &Alarm) -> Result<Self, MemoryError> {
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(MemoryError::Extent)?;
        let page_len = page_len(file)?;
        if file.metadata()?.len() < end {
            return Err(MemoryError::PastEnd);
        }
        // The kernel maps, replaces and unmaps only whole pages, never a part of a huge page.
        let in_page = offset % page_len;
        let first = offset - in_page;
        let mapped_len = end.checked_next_multiple_of(page_len).and_then(|end| usize::try_from(end - first).ok());
        let mapped_len = mapped_len.and_then(NonZeroUsize::new).ok_or(MemoryError::Extent)?;
        let pages = Pages::map(file, first, mapped_len, flags)?;
        let watch = Watch::new(pages.start.as_ptr() as usize, mapped_len.get(), alarm)?;
        // SAFETY: the mapping has at least in_page + len bytes, and len is not 0.
        let start = unsafe { pages.start.cast::<u8>().add(in_page as usize) };
        Ok(Self { start, _watch: watch, _pages: pages })
    }

    /// Returns a copy of the first `len` bytes of the mapping.
    #[cfg(test)]
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        // SAFETY: tests read only mapped bytes, and no thread writes at the same time.
        (0..len).map(|at| unsafe { self.start.add(at).read() }).collect()
    }

    /// Overwrites the first bytes of the mapping.
    #[cfg(test)]
    pub fn fill(&self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: tests write only mapped bytes, and no other thread accesses these bytes at the same time.
            unsafe { self.start.add(at).write(*byte) };
        }
    }

    /// Maps anonymous memory for Miri. The mapping is not watched.
    #[cfg(test)]
    pub fn anonymous(len: usize) -> Self {
        use nix::sys::mman::mmap_anonymous;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let rounded = NonZeroUsize::new(len.next_multiple_of(4096)).unwrap();
        // SAFETY: the kernel chooses the address, so the new mapping replaces no memory in use.
        let start = unsafe { mmap_anonymous(None, rounded, protection, MapFlags::MAP_PRIVATE) }.unwrap();
        let pages = Pages { start, len: rounded.get() };
        let alarm = Alarm::new(nix::sys::eventfd::EventFd::new().unwrap());
        let watch = Watch::enter(start.as_ptr() as usize, rounded.get(), &alarm).unwrap();
        Self { start: start.cast(), _watch: watch, _pages: pages }
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// Returns the page size of a file in memory. Refuses other files.
fn page_len(file: &File) -> Result<u64, MemoryError> {
    // The kernel answers this request without the file system, and only for files on tmpfs and hugetlbfs. Another file
    // system must not be queried: the frontend can serve such a file system (FUSE), and never answer.
    fcntl(file, FcntlArg::F_GET_SEALS).map_err(|_| MemoryError::FileSystem)?;
    Ok(fstatfs(file).map_err(io::Error::from)?.block_size() as u64)
}

/// Mapped pages of a file.
#[derive(Debug)]
struct Pages {
    start: NonNull<libc::c_void>,
    len: usize,
}

impl Pages {
    /// Maps `len` bytes from offset `first`. The two values must be multiples of the file's page size.
    fn map(file: &File, first: u64, len: NonZeroUsize, flags: MapFlags) -> Result<Self, MemoryError> {
        let first = libc::off_t::try_from(first).map_err(|_| MemoryError::Extent)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no memory in use.
        let start = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED | flags, file, first) };
        let pages = Self { start: start.map_err(|error| MemoryError::Map(error.into()))?, len: len.get() };
        // SAFETY: the advice changes only the contents of a core dump, not the memory. A kernel without support for the
        // advice includes the pages in core dumps.
        let _ = unsafe { madvise(pages.start, pages.len, MmapAdvise::MADV_DONTDUMP) };
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, or remapped by the SIGBUS handler. No pointer into the range outlives
        // `self`.
        let unmapped = unsafe { munmap(self.start, self.len) };
        debug_assert_eq!(unmapped, Ok(()), "{} bytes stay mapped", self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    #[test]
    fn a_part_of_a_page_is_mapped_where_it_is_and_a_file_without_pages_of_memory_is_not() {
        let alarm = Alarm::new(EventFd::new().unwrap());
        let map = |file: &File, offset, len| Mapping::new(file, offset, len, MapFlags::empty(), &alarm);
        let memory = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        memory.set_len(5000).unwrap();
        nix::sys::uio::pwrite(&memory, b"here", 4990).unwrap();
        let mapping = map(&memory, 4990, 10).unwrap();
        // SAFETY: the read covers four of ten mapped bytes.
        assert_eq!(unsafe { mapping.start().cast::<[u8; 4]>().read_unaligned() }, *b"here");
        assert!(matches!(map(&memory, 4991, 10), Err(MemoryError::PastEnd)));
        assert!(matches!(map(&memory, u64::MAX, 1), Err(MemoryError::Extent)));
        let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
        assert!(matches!(map(&device, 0, 10), Err(MemoryError::FileSystem)));
    }
}
