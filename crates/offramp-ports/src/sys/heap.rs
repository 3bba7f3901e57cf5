//! The C library's treatment of large blocks.

/// Length in bytes of the smallest block with a mapping of its own.
#[cfg(target_env = "gnu")]
const MAPPED_LEN: libc::c_int = 64 * 1024;

/// Gives each large block a mapping of its own, for good: it takes memory as it is touched, and returns it when freed.
/// By default glibc raises this limit to the largest freed block (`mallopt(3)`). A port opened after another was closed
/// would then have its whole coalescer zeroed by hand, 4 MiB.
pub fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes numbers; it runs before other threads allocate, and an answer of 0 changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_LEN);
    }
}
