//! An initramfs archive for the kernel (cpio format "newc", Linux
//! `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;

/// Magic number of a header without checksum.
const MAGIC: &str = "070701";
/// Name of the last entry.
const TRAILER: &str = "TRAILER!!!";
/// Alignment of headers and data, in bytes.
const ALIGN: usize = 4;
/// File types in a mode (`inode(7)`).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive under construction.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds a file and its parent directories. `path` has no leading slash.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | mode, (0, 0), data);
    }

    /// Adds a directory and its parents.
    pub fn directory(&mut self, path: &str) {
        self.parents(&format!("{path}/"));
    }

    /// Adds a character device and its parent directories.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// Adds the last entry and returns the complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            let directory = &path[..end];
            if self.directories.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY | 0o755, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.entries += 1;
        // Fields of a header: inode, mode, owner, group, links, time, size, device of the file (major, minor), device
        // number (major, minor), name length, checksum.
        let fields =
            [self.entries, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, device.0, device.1, path.len() as u32 + 1, 0];
        self.bytes.extend(MAGIC.bytes());
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns names, modes and sizes of an archive's entries, parsed independently of [`Archive`].
    fn list(mut bytes: &[u8]) -> Vec<(String, u32, usize)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], MAGIC.as_bytes());
            let field =
                |n: usize| u32::from_str_radix(std::str::from_utf8(&bytes[6 + 8 * n..][..8]).unwrap(), 16).unwrap();
            let (mode, size, name_len) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_len - 1].to_vec()).unwrap();
            bytes = &bytes[(110 + name_len).next_multiple_of(4) + size.next_multiple_of(4)..];
            if name == TRAILER {
                assert!(bytes.is_empty());
                return entries;
            }
            entries.push((name, mode, size));
        }
    }

    #[test]
    fn an_archive_lists_what_was_put_in_with_its_directories_before_it_and_once() {
        let mut archive = Archive::default();
        archive.file("lib/a/one.ko", 0o644, b"12345");
        archive.file("lib/a/two.ko", 0o644, b"");
        archive.directory("proc");
        archive.character_device("dev/console", 5, 1);
        let names: Vec<_> =
            list(&archive.finish()).into_iter().map(|(name, mode, size)| format!("{name} {mode:o} {size}")).collect();
        let expected = [
            "lib 40755 0",
            "lib/a 40755 0",
            "lib/a/one.ko 100644 5",
            "lib/a/two.ko 100644 0",
            "proc 40755 0",
            "dev 40755 0",
            "dev/console 20600 0",
        ];
        assert_eq!(names, expected);
    }
}
