//! How often frames are parsed and how many of their bytes are copied, for tests that count: with the feature `count`,
//! for each thread. Without it nothing is counted.

#[cfg(feature = "count")]
std::thread_local! {
    static PARSES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    static COPIED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Frames that this thread has parsed.
#[cfg(feature = "count")]
pub fn parses() -> u64 {
    PARSES.with(std::cell::Cell::get)
}

/// Bytes of frames that this thread has copied.
#[cfg(feature = "count")]
pub fn copied_bytes() -> u64 {
    COPIED.with(std::cell::Cell::get)
}

/// A frame is parsed.
#[inline]
pub(crate) fn parsed() {
    #[cfg(feature = "count")]
    PARSES.with(|parses| parses.set(parses.get() + 1));
}

/// Notes that `bytes` of a frame are copied.
#[inline]
pub fn copied(bytes: usize) {
    #[cfg(feature = "count")]
    COPIED.with(|copied| copied.set(copied.get() + bytes as u64));
    let _ = bytes;
}
