//! Counts frames parsed and bytes copied, for tests. The counts are per thread. Without debug assertions, as in
//! a release build, nothing is counted.

#[cfg(debug_assertions)]
std::thread_local! {
    static PARSES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    static COPIED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of frames parsed by this thread.
#[cfg(debug_assertions)]
pub fn parses() -> u64 {
    PARSES.with(std::cell::Cell::get)
}

/// Returns the number of frame bytes copied by this thread.
#[cfg(debug_assertions)]
pub fn copied_bytes() -> u64 {
    COPIED.with(std::cell::Cell::get)
}

/// Counts a parsed frame.
#[inline]
pub(crate) fn parsed() {
    #[cfg(debug_assertions)]
    PARSES.with(|parses| parses.set(parses.get() + 1));
}

/// Counts `bytes` copied bytes of a frame.
#[inline]
pub fn copied(bytes: usize) {
    #[cfg(debug_assertions)]
    COPIED.with(|copied| copied.set(copied.get() + bytes as u64));
    let _ = bytes;
}
