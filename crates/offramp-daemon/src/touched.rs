//! The touched bytes of each memory mapping: the bytes that are present in the process's page tables.

use offramp_offload::sync::lock;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::ops::Range;
use std::sync::Mutex;

/// The addresses of a mapping, and the number of its bytes in the process's page tables.
pub type Mapping = (Range<u64>, u64);

/// The kernel's list of the process's mappings (`/proc/self/smaps`). The file is opened before the process enters the
/// sandbox, in which no thread can open files.
#[derive(Debug, Default)]
pub struct TouchedMemory(Option<Mutex<File>>);

impl TouchedMemory {
    /// Opens the list. A kernel without `CONFIG_PROC_PAGE_MONITOR` provides no list of mappings.
    pub fn open() -> Self {
        Self(File::open("/proc/self/smaps").ok().map(Mutex::new))
    }

    /// Returns the mappings; `None` if the kernel provides no list.
    pub fn read(&self) -> Option<Vec<Mapping>> {
        let mut file = lock(self.0.as_ref()?);
        file.rewind().ok()?;
        mappings(BufReader::new(&*file)).ok()
    }
}

/// Parses the list. `Rss` excludes huge pages of hugetlbfs (Linux `Documentation/filesystems/proc.rst`), so their bytes
/// are added.
fn mappings(list: impl BufRead) -> io::Result<Vec<Mapping>> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in list.lines() {
        let line = line?;
        let Some((key, value)) = line.split_once(' ') else { continue };
        if let ("Rss:" | "Shared_Hugetlb:" | "Private_Hugetlb:", Some((_, bytes))) = (key, mappings.last_mut()) {
            *bytes += value.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib << 10);
        } else if let Some((start, end)) = key.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            mappings.push((start..end, 0));
        }
    }
    Ok(mappings)
}

/// Returns the touched bytes of the mappings that overlap `places`. The mappings are in the order of their addresses. A
/// mapping counts as a whole: the kernel may have merged adjacent mappings.
pub fn bytes_at(mappings: &[Mapping], places: &[Range<u64>]) -> u64 {
    let at_place = |place: &Range<u64>| {
        let first = mappings.partition_point(|(at, _)| at.end <= place.start);
        let end = mappings.partition_point(|(at, _)| at.start < place.end);
        first..end
    };
    let overlapping: BTreeSet<usize> = places.iter().flat_map(at_place).collect();
    overlapping.into_iter().map(|place| mappings[place].1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_mapping_count_once_whatever_their_size() {
        let list = "7f00-8000 rw-s 00001000 00:01 7    /memfd:guest (deleted)\nSize: 64 kB\nRss:      12 kB\n\
                    Pss:   6 kB\nShared_Hugetlb:  2048 kB\nPrivate_Hugetlb: 0 kB\nVmFlags: rd wr sh\n\
                    9000-a000 r--p 00000000 00:00 0\nRss: 4 kB\n";
        let mappings = mappings(list.as_bytes()).unwrap();
        assert_eq!(mappings, [(0x7f00..0x8000, 2060 << 10), (0x9000..0xa000, 4096)]);
        assert_eq!(bytes_at(&mappings, &[0x7f00..0x7f80, 0x7f80..0x8000]), 2060 << 10);
        assert_eq!(bytes_at(&mappings, &[0x8000..0x9000, 0xa000..0xb000]), 0);
    }
}
