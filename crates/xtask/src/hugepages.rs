//! Huge pages for DPDK, taken for a while and given back.

use crate::failure::{Doing, Result, failed};
use std::fs;

/// The kernel's number of pages of the default size.
const POOL: &str = "/proc/sys/vm/nr_hugepages";
/// The kernel's account of its memory.
const MEMINFO: &str = "/proc/meminfo";

/// Huge pages added to the kernel's pool; dropping this restores the pool.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    taken: bool,
}

impl HugePages {
    /// Makes sure of `mib` MiB of free huge pages.
    ///
    /// No mount is needed: DPDK with `--in-memory` makes its own anonymous files (`memfd_create(2)`).
    ///
    /// # Errors
    /// When this is not root, or the memory is too fragmented or too small.
    pub fn reserve(mib: u64) -> Result<Self> {
        let meminfo = fs::read_to_string(MEMINFO).doing(MEMINFO)?;
        let (Some(page_kib), Some(free)) =
            (meminfo_value(&meminfo, "Hugepagesize"), meminfo_value(&meminfo, "HugePages_Free"))
        else {
            return failed("this kernel has no huge pages");
        };
        let before: u64 = fs::read_to_string(POOL).doing(POOL)?.trim().parse().doing(POOL)?;
        let missing = (mib * 1024).div_ceil(page_kib).saturating_sub(free);
        let pages = Self { before, taken: missing > 0 };
        if missing == 0 {
            return Ok(pages);
        }
        let wanted = before + missing;
        fs::write(POOL, wanted.to_string()).doing(format!("{POOL}: asking for {wanted} huge pages (run as root)"))?;
        let got: u64 = fs::read_to_string(POOL).doing(POOL)?.trim().parse().doing(POOL)?;
        if got < wanted {
            return failed(format!("{got} of {wanted} huge pages of {page_kib} KiB; free memory, or reboot"));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if self.taken
            && let Err(error) = fs::write(POOL, self.before.to_string())
        {
            eprintln!("left behind: {POOL}: {error}; write {} there", self.before);
        }
    }
}

/// Returns the value of one line of `/proc/meminfo`, without its unit.
fn meminfo_value(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let meminfo = "HugePages_Total:     600\nHugePages_Free:       12\nHugepagesize:       2048 kB\n";
        assert_eq!(meminfo_value(meminfo, "HugePages_Free"), Some(12));
        assert_eq!(meminfo_value(meminfo, "Hugepagesize"), Some(2048));
        assert_eq!(meminfo_value(meminfo, "HugePages"), None);
    }
}
