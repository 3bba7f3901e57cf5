//! System calls refused by the kernel to a thread, as under a limit or in a sandbox.

use nix::errno::Errno;
use nix::libc;

/// Location in a filter's data of the call's number, and of the low half of argument `nth` (`struct seccomp_data`).
const NUMBER_AT: u32 = 0;
const fn argument_at(nth: u32) -> u32 {
    16 + 8 * nth
}

/// From now on refuses this thread, and each started by it, to map `len` bytes or more over another mapping, except of
/// a file. This is the effect of `vm.overcommit_memory = 2` when memory is short.
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

/// From now on refuses every munmap(2) of this thread and of each started by it.
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

/// Jumps over `skipped` steps unless the value is `value`.
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
    // SAFETY: the program points to as many steps as it says, and the kernel copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    Errno::result(done).expect("installing a filter of system calls");
}
