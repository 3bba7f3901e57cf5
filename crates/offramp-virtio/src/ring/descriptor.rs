//! The common parts of split and packed rings: flags, event indices, and reading of descriptors.

use super::{BadChain, CHAIN_DESCRIPTORS_MAX};
use crate::memory::GuestMemory;
use std::ptr::NonNull;

/// Descriptor flag: the chain continues (virtio 1.3, 2.7.5, 2.8.1).
pub(super) const NEXT: u16 = 1;
/// Descriptor flag: the device can write this buffer, and must not read this buffer.
pub(super) const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub(super) const INDIRECT: u16 = 4;
/// Length of a descriptor of a split or packed ring, in bytes.
pub(super) const DESCRIPTOR_LEN: u64 = 16;

/// Reads a descriptor that the guest can write at the same time.
///
/// # Safety
/// `at` points to a mapped, aligned descriptor. Every pattern of bytes is a valid `D`.
#[inline]
pub(super) unsafe fn read_descriptor<D: Copy>(at: NonNull<D>) -> D {
    // SAFETY: the caller guarantees a mapped, aligned descriptor. The volatile access makes the compiler read the
    // descriptor exactly once.
    unsafe { at.read_volatile() }
}

/// Returns the location of an indirect table of descriptors `D`, and the number of descriptors.
pub(super) fn indirect_table<D>(memory: &GuestMemory, addr: u64, len: u32) -> Result<(NonNull<D>, u16), BadChain> {
    let entries = u64::from(len) / DESCRIPTOR_LEN;
    if entries == 0 || entries > u64::from(CHAIN_DESCRIPTORS_MAX) || !u64::from(len).is_multiple_of(DESCRIPTOR_LEN) {
        return Err(BadChain::Indirect);
    }
    let table = memory.at_guest(addr, u64::from(len)).ok_or(BadChain::Address)?.cast::<D>();
    if !table.is_aligned() {
        return Err(BadChain::Indirect);
    }
    Ok((table, entries as u16))
}

/// Returns whether the ring's index, on its way from `old` to `new`, passed the index `event` that the driver requested
/// (`vring_need_event`; virtio 1.3, 2.7.7.2 and 2.7.10).
#[inline]
pub(super) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Prefetches a cache line for a later read or write.
#[inline]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address affects only the caches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches like [`prefetch`], and acquires ownership of the line.
#[inline]
pub(super) fn prefetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only the caches, and a processor without this instruction does nothing. The compiler's
    // intrinsic becomes a plain prefetch unless the whole program is compiled for newer processors.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = at;
}
