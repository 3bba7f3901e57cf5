//! Huge pages for a test or a measurement, reserved temporarily.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

/// Kernel file with the number of huge pages of the default size.
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// Kernel file with memory statistics.
const MEMINFO: &str = "/proc/meminfo";

/// Maximum time to wait until the huge pages of an ended guest are free. If they are still in use after this time, the
/// new mapping fails.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(30);

/// Huge pages added to the kernel's pool. Dropping the value restores the earlier size of the pool.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    page_len: u64,
    /// Lock that allows only one test in all processes to change the pool.
    _turn: Flock<fs::File>,
}

impl HugePages {
    /// Ensures that `count` huge pages are free. Returns `None` if this process is not permitted to reserve huge pages.
    /// In CI, a missing permission is a failure.
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

    /// Ensures that `mib` MiB of huge pages are free.
    ///
    /// # Errors
    /// Returns an error if this process is not permitted to reserve huge pages, or the machine lacks contiguous memory.
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

    /// Returns the length of one page in bytes.
    pub fn page_len(&self) -> u64 {
        self.page_len
    }

    /// Waits until `count` huge pages can be mapped, because a backend can still hold the pages of an ended guest.
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

/// Returns a value from [`MEMINFO`], without the unit.
fn meminfo(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(MEMINFO)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("{MEMINFO}: no {name}: this kernel has no huge pages")))
}
