//! Huge pages for a test or a measurement, taken for a while and given back.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

/// The kernel's number of pages of the default size.
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// The kernel's account of its memory.
const MEMINFO: &str = "/proc/meminfo";

/// Maximum wait for the pages of an ended guest; after it, the mapping reports that there are none.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(30);

/// Huge pages in the kernel's pool. Dropping this restores the pool.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    page_len: u64,
    /// One test at a time changes the pool, in all processes.
    _turn: Flock<fs::File>,
}

impl HugePages {
    /// Makes sure that there are `count` free huge pages. Returns `None` if this process may not ask for them. In CI
    /// that is a failure.
    pub fn reserve(count: u64) -> Option<Self> {
        match Self::try_reserve(count) {
            Ok(pages) => Some(pages),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{count} huge pages: {error}, and CI skips nothing");
                println!("skipped: {count} huge pages: {error}; run as root");
                None
            }
        }
    }

    /// Makes sure of `mib` MiB of free huge pages.
    ///
    /// # Errors
    /// Returns an error if this process must not ask for huge pages, or the machine has not enough contiguous memory.
    pub fn of_mib(mib: u64) -> io::Result<Self> {
        Self::try_reserve((mib * 1024).div_ceil(meminfo("Hugepagesize")?))
    }

    fn try_reserve(count: u64) -> io::Result<Self> {
        let turn = Flock::lock(fs::File::open(POOL)?, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let pages = Self { before: pool()?, page_len: meminfo("Hugepagesize")? * 1024, _turn: turn };
        let missing = count.saturating_sub(meminfo("HugePages_Free")?);
        fs::write(POOL, (pages.before + missing).to_string())?;
        if pool()? < pages.before + missing {
            return Err(io::Error::other("the machine has not enough memory in one piece"));
        }
        Ok(pages)
    }

    /// Returns the bytes of one page.
    pub fn page_len(&self) -> u64 {
        self.page_len
    }

    /// Waits until `count` pages can be mapped: a backend may still hold those of an ended guest.
    pub(crate) fn wait_for(count: u64) {
        let until = Instant::now() + GIVEN_BACK_WITHIN;
        let promised = || meminfo("HugePages_Rsvd").expect("the kernel's account of huge pages");
        while Self::free().saturating_sub(promised()) < count && Instant::now() < until {
            thread::yield_now();
        }
    }

    /// Returns the number of free pages.
    pub fn free() -> u64 {
        meminfo("HugePages_Free").expect("the kernel's account of huge pages")
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = fs::write(POOL, self.before.to_string()) {
            println!("left behind: {POOL}: {error}; write {} there", self.before);
        }
    }
}

fn pool() -> io::Result<u64> {
    fs::read_to_string(POOL)?.trim().parse().map_err(io::Error::other)
}

/// Returns a value of [`MEMINFO`], without its unit.
fn meminfo(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(MEMINFO)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("{MEMINFO}: no {name}: this kernel has no huge pages")))
}
