//! Memory shared by frontend and backend in addition to guest memory: the dirty log and the inflight region.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::hugepages::HugePages;
use crate::memory::{GuestMemory, PAGE_LEN, RegionSpec};

/// The log of pages written by the backend, with one bit per page of guest memory ("Migration" in the specification).
#[derive(Clone, Debug)]
pub struct DirtyLog {
    /// The log's file, mapped like guest memory from address 0. A guest address in `log` is therefore an offset in the
    /// log.
    log: GuestMemory,
}

impl DirtyLog {
    /// Makes a clean log for the whole `memory`.
    pub fn new(memory: &GuestMemory) -> Self {
        Self { log: GuestMemory::new(&[Self::place(memory)]) }
    }

    /// Does the same as [`DirtyLog::new`], but in a file of huge pages.
    pub fn on_huge_pages(memory: &GuestMemory, pages: &HugePages) -> Self {
        Self { log: GuestMemory::on_huge_pages(&[Self::place(memory)], pages) }
    }

    fn place(memory: &GuestMemory) -> RegionSpec {
        let end = memory.regions().iter().map(|region| region.guest_addr() + region.len()).max().unwrap_or(0);
        RegionSpec::new(0, (end / PAGE_LEN / 8 + 1).next_multiple_of(PAGE_LEN))
    }

    /// Returns the length of the log in bytes.
    pub fn len(&self) -> u64 {
        self.log.border()
    }

    /// Returns true if the log has no bytes, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the file of the log.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.log.regions()[0].fd()
    }

    /// Returns true if the page of a guest address was written.
    pub fn is_dirty(&self, guest_addr: u64) -> bool {
        let page = guest_addr / PAGE_LEN;
        self.log.read_u8(page / 8) >> (page % 8) & 1 == 1
    }

    /// Returns the number of written pages.
    pub fn dirty_pages(&self) -> u32 {
        self.log.read_vec(0, self.len() as usize).iter().map(|byte| byte.count_ones()).sum()
    }

    /// Clears the log and returns the addresses of the written pages. Exchanges each word of the log atomically,
    /// because the backend can mark other pages at the same time.
    pub fn take(&self) -> Vec<u64> {
        let words = (0..self.len()).step_by(8);
        let marked = words.map(|at| (at * 8 * PAGE_LEN, self.log.take_u64(at))).filter(|(_, word)| *word != 0);
        let pages = marked.flat_map(|(first, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit * PAGE_LEN)
        });
        pages.collect()
    }

    /// Marks all pages as clean.
    pub fn clear(&self) {
        self.log.fill(0, self.len() as usize, 0);
    }
}

/// The region that tracks a backend's chains in flight, so that a new backend can continue after a crash ("Inflight I/O
/// tracking").
#[derive(Debug)]
pub struct Inflight {
    /// Length of the region in bytes.
    pub mmap_size: u64,
    /// Offset of the region in its file.
    pub mmap_offset: u64,
    /// Number of queues in the region.
    pub num_queues: u16,
    /// Number of descriptors per queue.
    pub queue_size: u16,
    /// File of the region.
    pub file: OwnedFd,
}

impl Inflight {
    /// Returns the file of the region.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
