//! How the C library's allocator treats large blocks.

/// Length in bytes from which a block has a mapping of its own.
#[cfg(target_env = "gnu")]
const MAPPED_LEN: libc::c_int = 64 * 1024;

/// Gives each large block a mapping of its own, for good: it takes memory as it is touched, and gives it back when it is
/// freed. By itself glibc raises the length from which it does so to that of the largest block that was freed
/// (`mallopt(3)`). A port that came after another had gone would then have its whole coalescer zeroed by hand, 4 MiB.
pub fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes numbers; it runs before other threads allocate, and an answer of 0 changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_LEN);
    }
}
