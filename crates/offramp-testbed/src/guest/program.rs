//! The programs that run guests: the search in `PATH`, and the comparison of versions.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// Name of QEMU's program.
pub const QEMU: &str = "qemu-system-x86_64";
/// Name of User Mode Linux's program.
pub const UML: &str = "linux.uml";

/// Returns the path of a program, found in `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').map(|place| Path::new(place).join(program)).find(|file| file.is_file())
}

/// Compares versions, with runs of digits as numbers and everything else as text.
pub(super) fn by_version(a: &str, b: &str) -> Ordering {
    parts(a).cmp(&parts(b))
}

/// Splits a version into runs of digits and of other text. Text sorts before a number, as `6.1-rc1` before `6.1.1`.
fn parts(version: &str) -> Vec<(Option<u64>, &str)> {
    let is_digit = |c: &char| c.is_ascii_digit();
    let mut rest = version;
    let mut parts = Vec::new();
    while let Some(first) = rest.chars().next() {
        let len = rest.chars().take_while(|c| is_digit(c) == is_digit(&first)).map(char::len_utf8).sum();
        let (part, after) = rest.split_at(len);
        parts.push((part.parse().ok(), part));
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_found_by_number_not_by_letter() {
        let mut versions =
            ["6.1.0-9-amd64", "6.1.0-56-amd64", "5.10.0-30-amd64", "6.12.1+deb13-amd64", "6.1.0-56-cloud-amd64"];
        versions.sort_by(|a, b| by_version(a, b));
        assert_eq!(
            versions,
            ["5.10.0-30-amd64", "6.1.0-9-amd64", "6.1.0-56-amd64", "6.1.0-56-cloud-amd64", "6.12.1+deb13-amd64"]
        );
    }
}
