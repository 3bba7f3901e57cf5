//! Filters that make the kernel refuse system calls of a thread, as under a limit or in a sandbox.

use nix::errno::Errno;
use nix::libc;

/// Offsets in `struct seccomp_data` of the call's number, and of the low half of argument `nth`.
const NUMBER_AT: u32 = 0;
const fn argument_at(nth: u32) -> u32 {
    16 + 8 * nth
}

/// Makes the kernel refuse anonymous mappings of at least `len` bytes that replace another mapping (`MAP_FIXED`). The
/// refusal applies to this thread and to all threads started by it later. `vm.overcommit_memory = 2` has the same
/// effect when memory is short.
pub fn refuse_anonymous_memory_in_place_of_other(len: u32) {
    let flags = (libc::MAP_FIXED | libc::MAP_ANONYMOUS) as u32;
    install(&[
        load(NUMBER_AT),
        unless_equal(libc::SYS_mmap as u32, 6),
        load(argument_at(1)),
        unless_at_least(len, 4),
        load(argument_at(3)),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, flags),
        unless_equal(flags, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
}

/// Makes the kernel refuse every munmap(2) of this thread and of the threads that this thread starts later.
pub fn refuse_munmap() {
    install(&[
        load(NUMBER_AT),
        unless_equal(libc::SYS_munmap as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
}

fn step(code: u32, skipped_unless: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: skipped_unless, k }
}

fn load(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, at)
}

/// Skips `skipped` steps unless the loaded value equals `value`.
fn unless_equal(value: u32, skipped: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skipped, value)
}

fn unless_at_least(value: u32, skipped: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, skipped, value)
}

fn answer(action: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, action)
}

fn install(filters: &[libc::sock_filter]) {
    nix::sys::prctl::set_no_new_privs().expect("giving up privileges of programs");
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_ptr().cast_mut() };
    // SAFETY: the program points to `len` steps, which the kernel copies.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    Errno::result(done).expect("installing a filter of system calls");
}
