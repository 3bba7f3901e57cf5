//! Memory that its file no longer has.
//!
//! A monitor shares memory as files, and may make a file shorter than its mapping here. Touching a page that is gone
//! raises `SIGBUS`, which by default ends the process and with it every other guest. This handler replaces the
//! whole mapping by pages of zeros and rings the device's alarm, so that its owner can drop that guest. Every
//! other `SIGBUS` goes where it went before.
//!
//! The handler runs on top of anything: it uses atomics, `mmap`, `write` and `sigaction`, nothing that
//! locks or allocates.

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Mappings that are watched at once in this process: those of 128 ports with all their regions and a log.
const WATCHED_MAX: usize = 128 * 33;
/// What an alarm's counter is raised by.
static RING: u64 = 1;

/// Rings when watched memory is gone.
pub type Alarm = Arc<EventFd>;

/// A mapping that is watched. All fields but `is_taken` are the handler's to read.
struct Slot {
    is_taken: AtomicBool,
    /// 0: none.
    start: AtomicUsize,
    len: AtomicUsize,
    alarm: AtomicI32,
}

static WATCHED: [Slot; WATCHED_MAX] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        alarm: AtomicI32::new(-1),
    }
}; WATCHED_MAX];

/// What happened at `SIGBUS` before this module was there.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLING: Mutex<()> = Mutex::new(());

/// Watches a mapping for as long as it lives; the mapping must live longer.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: usize,
    // Keeps the descriptor open that the handler may write to.
    _alarm: Alarm,
}

impl Watch {
    /// Watches the mapping of `len` bytes at address `start`, both multiples of a page.
    ///
    /// # Errors
    /// When too many mappings are watched, or the handler cannot be installed.
    pub fn new(start: usize, len: usize, alarm: &Alarm) -> io::Result<Self> {
        install()?;
        let take = |slot: &Slot| !slot.is_taken.swap(true, Ordering::Acquire);
        let slot = WATCHED.iter().position(take).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // After the end of the one before, for a handler that reads the slot meanwhile.
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
    // SAFETY: all fields of the structure may be 0.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the structure is ours.
    Errno::result(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) })?;
    // Known before the handler is, which reads it.
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
    // A positive code is the kernel's: the signal is of an access.
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
    // A slot that another thread takes over meanwhile might have the start of one mapping and the length of another.
    fence(Ordering::Acquire);
    if slot.start.load(Ordering::Relaxed) != start || start == 0 || !(start..start + len).contains(&address) {
        return false;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is exactly one mapping, which lives for as long as it is watched, and of which
    // everybody has pointers alone.
    let zeros = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags, -1, 0) };
    if zeros == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: eight bytes of a constant; the descriptor is open for as long as the mapping is watched.
    unsafe { libc::write(slot.alarm.load(Ordering::Relaxed), (&raw const RING).cast(), size_of_val(&RING)) };
    true
}

/// Lets happen what happened before. An access is done again when the handler returns, and fails again.
fn pass_on(code: libc::c_int) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: what is set is what was set once; both calls are safe in a handler.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        if code <= 0 {
            // Sent by somebody, and not by an access: it comes again when the handler has returned.
            libc::raise(libc::SIGBUS);
        }
    }
}
