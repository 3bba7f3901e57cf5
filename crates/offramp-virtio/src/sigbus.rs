//! Handling of mapped memory that was removed from the mapped file.
//!
//! A virtual machine monitor shares memory as files, and can make a file shorter than the mapping of the file in this
//! process. An access to a removed page raises `SIGBUS`. By default, `SIGBUS` ends the process, including the service
//! of all other guests. A huge page that is missing from the pool at the first access to the page has the same effect.
//! This handler replaces the whole mapping by zero pages and signals the device's alarm, so that the device's owner can
//! drop the guest. Every other `SIGBUS` is passed to the previous action.
//!
//! The handler can interrupt any code. So the handler uses only atomics, `mmap`, `write` and `sigaction`, and neither
//! locks nor allocates.

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{SysconfVar, sysconf};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum number of watched mappings in this process. The number exceeds the kernel's limit per process
/// (`vm.max_map_count` is 65530), so no port can exhaust the table for other ports. Under Miri the table is short,
/// because Miri walks through the whole table at each use.
const WATCHED_MAX: usize = if cfg!(miri) { 1 << 9 } else { 1 << 16 };
/// Number by which the handler increments an alarm's counter.
static RING: u64 = 1;

/// An eventfd that is signalled when watched memory was removed.
pub type Alarm = Arc<EventFd>;

/// A watched mapping. The handler reads all fields except `is_taken`. A free slot contains only zeros, so an unused
/// table occupies no memory.
struct Slot {
    is_taken: AtomicBool,
    /// First address of the mapping, or 0 for a free slot.
    start: AtomicUsize,
    len: AtomicUsize,
    alarm: AtomicI32,
}

static WATCHED: [Slot; WATCHED_MAX] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        alarm: AtomicI32::new(0),
    }
}; WATCHED_MAX];

/// Length of an ordinary page in bytes, set before the handler is installed.
static PAGE_LEN: AtomicUsize = AtomicUsize::new(0);
/// Descriptor of an empty file, set before the handler is installed.
static EMPTY: AtomicI32 = AtomicI32::new(-1);

/// `SIGBUS` action before the handler was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLING: Mutex<()> = Mutex::new(());

/// A guard that watches a mapping during the guard's lifetime. The mapping must outlive the guard.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: usize,
    // Keeps the descriptor open, because the handler can write to the descriptor.
    _alarm: Alarm,
}

impl Watch {
    /// Watches the mapping of `len` bytes at address `start`. The two values must be multiples of the file's page size.
    ///
    /// # Errors
    /// Returns an error if too many mappings are watched, or the handler cannot be installed.
    pub fn new(start: usize, len: usize, alarm: &Alarm) -> io::Result<Self> {
        install()?;
        Self::enter(start, len, alarm)
    }

    /// Adds a mapping to the table searched by the handler.
    pub(crate) fn enter(start: usize, len: usize, alarm: &Alarm) -> io::Result<Self> {
        let take = |slot: &Slot| !slot.is_taken.swap(true, Ordering::Acquire);
        let slot = WATCHED.iter().position(take).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // The fence orders the stores below after the stores that ended the slot's previous watch, because a handler
        // can read the slot at the same time.
        fence(Ordering::Release);
        WATCHED[slot].len.store(len, Ordering::Relaxed);
        WATCHED[slot].alarm.store(alarm.as_fd().as_raw_fd(), Ordering::Relaxed);
        WATCHED[slot].start.store(start, Ordering::Release);
        Ok(Self { slot, _alarm: Arc::clone(alarm) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let slot = &WATCHED[self.slot];
        slot.start.store(0, Ordering::Relaxed);
        slot.is_taken.store(false, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let page_len = sysconf(SysconfVar::PAGE_SIZE)?.ok_or(Errno::ENOSYS)?;
    PAGE_LEN.store(page_len as usize, Ordering::Relaxed);
    EMPTY.store(memfd_create(c"offramp-lost", MFdFlags::MFD_CLOEXEC)?.into_raw_fd(), Ordering::Relaxed);
    // SAFETY: the value 0 is valid for all fields of the structure.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only queries the action, and writes the action to a local structure.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) })?;
    // Set `BEFORE` before the handler is installed, because the handler reads `BEFORE`.
    let _ = BEFORE.set(before);
    // SAFETY: the value 0 is valid for all fields of this structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature required by SA_SIGINFO, and calls only async-signal-safe functions.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) })?;
    Ok(())
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the kernel passes the signal's information. A SIGBUS raised by the kernel has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A positive code means that the kernel raised the signal for an access.
    let is_replaced = code > 0 && WATCHED.iter().any(|slot| replace_if_inside(slot, address));
    if !is_replaced {
        pass_on(code);
    }
    Errno::set_raw(errno);
}

/// Replaces a mapping by zero pages if the address lies in the mapping.
fn replace_if_inside(slot: &Slot, address: usize) -> bool {
    let start = slot.start.load(Ordering::Acquire);
    let len = slot.len.load(Ordering::Relaxed);
    // A slot reused by another thread at this moment could have the start of one mapping and the length of another.
    fence(Ordering::Acquire);
    if slot.start.load(Ordering::Relaxed) != start || start == 0 || !(start..start + len).contains(&address) {
        return false;
    }
    let page_len = PAGE_LEN.load(Ordering::Relaxed);
    let page = address - address % page_len;
    let is_replaced = map_zeros(start, len)
        // If private memory is limited (overcommit_memory 2, RLIMIT_DATA), one zero page is still available.
        || map_zeros(page, page_len)
        // A huge page cannot be replaced in part, so an empty file replaces the mapping. Every further access to the
        // mapping faults again.
        || (map_empty(start, len) && map_zeros(page, page_len));
    if is_replaced {
        // SAFETY: the call writes eight bytes of a constant. The descriptor is open while the mapping is watched.
        unsafe { libc::write(slot.alarm.load(Ordering::Relaxed), (&raw const RING).cast(), size_of_val(&RING)) };
    }
    is_replaced
}

fn map_zeros(start: usize, len: usize) -> bool {
    map_over(start, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
}

/// Maps an empty file, which needs no memory.
fn map_empty(start: usize, len: usize) -> bool {
    map_over(start, len, libc::MAP_SHARED, EMPTY.load(Ordering::Relaxed))
}

/// Replaces a watched mapping, or one of its pages, by another mapping.
fn map_over(start: usize, len: usize, flags: libc::c_int, file: RawFd) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range lies in one watched mapping. The mapping outlives its watch, and all code accesses it only
    // through raw pointers.
    let at = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags | libc::MAP_FIXED, file, 0) };
    at != libc::MAP_FAILED
}

/// Restores the previous action. The access is repeated after the handler returns, and fails again.
fn pass_on(code: libc::c_int) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the restored action was valid before. `sigaction` and `raise` are safe in a handler.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        if code <= 0 {
            // A process sent the signal, so raise it again for delivery after the handler's return.
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_with_all_the_mappings_that_they_may_have_leave_room_for_others() {
        // A port has 33 mappings for memory and log, and an inflight region for each of 256 vrings.
        const OF_A_PORT: usize = 33 + 256;
        let ports = if cfg!(miri) { 1 } else { 20 };
        let alarm = Alarm::new(EventFd::new().unwrap());
        let watches: Vec<_> = (1..=ports * OF_A_PORT).map(|at| Watch::enter(at << 12, 1, &alarm).unwrap()).collect();
        assert!(
            watches.iter().enumerate().all(|(n, watch)| watches[..n].iter().all(|before| before.slot != watch.slot))
        );
    }
}
