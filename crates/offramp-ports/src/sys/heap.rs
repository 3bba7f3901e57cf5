//! Sets how the C library allocates large blocks.

/// Length in bytes of the smallest block that gets a separate mapping.
#[cfg(target_env = "gnu")]
const MAPPED_LEN: libc::c_int = 64 * 1024;

/// Makes the allocator use a separate mapping for each large block, permanently. A block with a separate mapping
/// occupies memory only after the first access, and its memory returns to the kernel when the block is freed. By
/// default, glibc raises the size limit for separate mappings to the size of the largest freed block (`mallopt(3)`).
/// With a raised limit, a port opened after another port was closed would explicitly zero its whole coalescer of 4 MiB.
pub fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes numbers and runs before other threads allocate. A result of 0 means that mallopt did not
    // change the setting.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_LEN);
    }
}
