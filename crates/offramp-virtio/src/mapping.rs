//! A part of a shared file, mapped and watched.

use crate::memory::REGIONS_MAX;
use crate::sigbus::{Alarm, Watch};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use vm_memory::FileOffset;
use vm_memory::mmap::{MmapRegion, MmapRegionError};

/// Why memory was refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The extent is empty, or wraps around the address space.
    #[error("a region of no bytes, or one that wraps around")]
    Extent,
    /// The region overlaps another in guest-physical memory.
    #[error("regions overlap")]
    Overlap,
    /// There are [`REGIONS_MAX`] regions already.
    #[error("more than {REGIONS_MAX} regions")]
    TooMany,
    /// No region has these addresses.
    #[error("no such region")]
    Unknown,
    /// The file is shorter than the region.
    #[error("a file that is shorter than the region in it")]
    PastEnd,
    /// The file cannot be mapped.
    #[error("mapping: {0}")]
    Map(#[from] MmapRegionError),
    /// The file's length cannot be read, or its mapping not be watched.
    #[error("looking at the file, or watching its mapping: {0}")]
    Io(#[from] io::Error),
}

/// A mapped part of a file that another process may write, and may make shorter.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Where the part's first byte is mapped.
    start: NonNull<u8>,
    // Dropped before the mapping.
    _watch: Watch,
    _region: MmapRegion,
}

// SAFETY: the pointer is into a mapping that the value owns, and mappings belong to the process, not to a
// thread. Bytes are read and written through it by copies and atomics, because the guest races anyway.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared use only yields pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of a file, with further `flags` of mmap(2).
    pub fn new(file: File, offset: u64, len: u64, flags: libc::c_int, alarm: &Alarm) -> Result<Self, MemoryError> {
        // Mapping from the file's start keeps every offset usable, also with huge pages.
        let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok());
        let end = end.filter(|_| len > 0).ok_or(MemoryError::Extent)?;
        if file.metadata()?.len() < end as u64 {
            return Err(MemoryError::PastEnd);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = MmapRegion::build(Some(FileOffset::new(file, 0)), end, protection, libc::MAP_SHARED | flags)?;
        // SAFETY: the mapping has offset + len bytes, and len is not 0.
        let start = unsafe { mapping.as_ptr().add(offset as usize) };
        let start = NonNull::new(start).ok_or(MemoryError::Extent)?;
        let watch = Watch::new(mapping.as_ptr() as usize, mapping.size(), alarm)?;
        Ok(Self { start, _watch: watch, _region: mapping })
    }

    /// The first byte.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}
