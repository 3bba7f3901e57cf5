//! Handling of memory removed from its file.
//!
//! A monitor shares memory as files, and may make a file shorter than its mapping here. An access to a removed page
//! raises `SIGBUS`. By default this ends the process and with it every other guest. A huge page that is missing from
//! the pool at its first access has the same effect. This handler replaces the whole mapping by pages of zeros and
//! rings the device's alarm, so that its owner can drop that guest. Every other `SIGBUS` goes to the previous action.
//!
//! The handler may interrupt any code: it uses atomics, `mmap`, `write` and `sigaction`, nothing that locks or
//! allocates.

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{SysconfVar, sysconf};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum number of watched mappings in this process. It exceeds the kernel's limit per process (`vm.max_map_count` is
/// 65530), so no port can take the last one from the others. Miri walks through the whole table at each use, so there
/// it is short.
const WATCHED_MAX: usize = if cfg!(miri) { 1 << 9 } else { 1 << 16 };
/// The increment of an alarm's counter.
static RING: u64 = 1;

/// An event that rings when watched memory is gone.
pub type Alarm = Arc<EventFd>;

/// A watched mapping. The handler reads all fields but `is_taken`. A free slot is all zeros: the table takes no memory
/// before it is used.
struct Slot {
    is_taken: AtomicBool,
    /// The first address; 0 if none.
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

/// Bytes of an ordinary page, and the descriptor of a file without any; both are set before the handler is installed.
static PAGE_LEN: AtomicUsize = AtomicUsize::new(0);
static EMPTY: AtomicI32 = AtomicI32::new(-1);

/// The `SIGBUS` action before this module was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLING: Mutex<()> = Mutex::new(());

/// Watches a mapping for as long as it lives; the mapping must live longer.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: usize,
    // Keeps the descriptor open: the handler may write to it.
    _alarm: Alarm,
}

impl Watch {
    /// Watches the mapping of `len` bytes at address `start`, both multiples of a page of its file.
    ///
    /// # Errors
    /// Returns an error if too many mappings are watched, or the handler cannot be installed.
    pub fn new(start: usize, len: usize, alarm: &Alarm) -> io::Result<Self> {
        install()?;
        Self::enter(start, len, alarm)
    }

    /// Enters a mapping into the table that the handler searches.
    pub(crate) fn enter(start: usize, len: usize, alarm: &Alarm) -> io::Result<Self> {
        let take = |slot: &Slot| !slot.is_taken.swap(true, Ordering::Acquire);
        let slot = WATCHED.iter().position(take).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // Ordered after the end of the previous watch, for a handler that reads the slot meanwhile.
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
    // SAFETY: all fields of the structure may be 0.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the structure is ours.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) })?;
    // Set before the handler is installed: the handler reads it.
    let _ = BEFORE.set(before);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and calls only what a handler may.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) })?;
    Ok(())
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the kernel passes the signal's information; a SIGBUS of its own has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A positive code is the kernel's: an access raised the signal.
    let is_replaced = code > 0 && WATCHED.iter().any(|slot| replace_if_inside(slot, address));
    if !is_replaced {
        pass_on(code);
    }
    Errno::set_raw(errno);
}

/// Puts zeros in the place of a mapping, if the address lies in it.
fn replace_if_inside(slot: &Slot, address: usize) -> bool {
    let start = slot.start.load(Ordering::Acquire);
    let len = slot.len.load(Ordering::Relaxed);
    // A slot taken over by another thread meanwhile might have the start of one mapping and the length of another.
    fence(Ordering::Acquire);
    if slot.start.load(Ordering::Relaxed) != start || start == 0 || !(start..start + len).contains(&address) {
        return false;
    }
    let page_len = PAGE_LEN.load(Ordering::Relaxed);
    let page = address - address % page_len;
    let is_replaced = map_zeros(start, len)
        // Where private memory is rationed (overcommit_memory 2, RLIMIT_DATA), zeros for one page are still available.
        || map_zeros(page, page_len)
        // A huge page cannot be replaced in part. Its mapping gives way to an empty one: every access there faults
        // again.
        || (map_empty(start, len) && map_zeros(page, page_len));
    if is_replaced {
        // SAFETY: eight bytes of a constant; the descriptor is open for as long as the mapping is watched.
        unsafe { libc::write(slot.alarm.load(Ordering::Relaxed), (&raw const RING).cast(), size_of_val(&RING)) };
    }
    is_replaced
}

fn map_zeros(start: usize, len: usize) -> bool {
    map_over(start, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
}

/// Maps an empty file: it takes no memory at all.
fn map_empty(start: usize, len: usize) -> bool {
    map_over(start, len, libc::MAP_SHARED, EMPTY.load(Ordering::Relaxed))
}

/// Replaces a watched mapping, or a page of it, by another mapping.
fn map_over(start: usize, len: usize, flags: libc::c_int, file: RawFd) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range lies in one mapping, which lives for as long as it is watched, and of which everybody has
    // pointers alone.
    let at = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags | libc::MAP_FIXED, file, 0) };
    at != libc::MAP_FAILED
}

/// Runs the previous action. The access is repeated when the handler returns, and fails again.
fn pass_on(code: libc::c_int) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: what is set is what was set once; both calls are safe in a handler.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        if code <= 0 {
            // A process sent the signal, not an access: raise it again, for after the handler's return.
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_with_all_the_mappings_that_they_may_have_leave_room_for_others() {
        // 33 mappings for memory and log, and an inflight region for each of 256 vrings.
        const OF_A_PORT: usize = 33 + 256;
        let ports = if cfg!(miri) { 1 } else { 20 };
        let alarm = Alarm::new(EventFd::new().unwrap());
        let watches: Vec<_> = (1..=ports * OF_A_PORT).map(|at| Watch::enter(at << 12, 1, &alarm).unwrap()).collect();
        assert!(
            watches.iter().enumerate().all(|(n, watch)| watches[..n].iter().all(|before| before.slot != watch.slot))
        );
    }
}
