//! The log of pages written by the device, for live migration.

use crate::mapping::{Mapping, MemoryError};
use crate::sigbus::Alarm;
use nix::sys::mman::MapFlags;
use std::fs::File;
use std::sync::atomic::{AtomicU8, Ordering};

/// Length of the guest-physical memory per bit of the log, in bytes (vhost-user, "Migration").
const LOG_PAGE_LEN: u64 = 4096;

/// The dirty log: one bit for each page of guest-physical memory. A bit is set after the page was written, and before
/// the driver is notified.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
    len: usize,
}

impl DirtyLog {
    /// Maps a log of `len` bytes at `offset` of `file`.
    ///
    /// # Errors
    /// Returns an error if the log is empty, wraps around, lies past the end of `file`, or cannot be mapped.
    pub fn map(file: &File, offset: u64, len: u64, alarm: &Alarm) -> Result<Self, MemoryError> {
        Ok(Self { mapping: Mapping::new(file, offset, len, MapFlags::empty(), alarm)?, len: len as usize })
    }

    /// Marks the pages of a write of `len` bytes at the guest-physical address `guest`. Pages beyond the log are
    /// ignored, because the virtual machine monitor made the log too short.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len - 1) / LOG_PAGE_LEN;
        for page in guest / LOG_PAGE_LEN..=last {
            let at = (page / 8) as usize;
            if at >= self.len {
                return;
            }
            // SAFETY: at < len, and len bytes stay mapped during the lifetime of `self`.
            let byte = unsafe { AtomicU8::from_ptr(self.mapping.start().add(at).as_ptr()) };
            // Release ordering: a reader that sees the mark also sees the write, and copies the new bytes. If the mark
            // preceded the write, the reader could copy the old bytes.
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

    const PAGE: u64 = 4096;

    #[test]
    fn a_log_has_the_pages_that_were_written_and_no_others() {
        let file = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(PAGE).unwrap();
        let alarm = Alarm::new(EventFd::new().unwrap());
        let log = DirtyLog::map(&file, 8, 2, &alarm).unwrap();
        log.mark(PAGE - 1, 2);
        log.mark(15 * PAGE, 1);
        log.mark(16 * PAGE, u64::MAX);
        log.mark(0, 0);
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0b11, 0x80, 0, 0, 0, 0, 0, 0]);
    }
}
