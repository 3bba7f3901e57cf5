//! Hides the processors' extended state (XSAVE) from a tracer that supports only a part of this state.

use nix::errno::Errno;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The ptrace(2) request for a register set, and the set with the extended state (Linux `include/uapi/linux/ptrace.h`,
/// `elf.h`).
const PTRACE_GETREGSET: u32 = 0x4204;
const NT_X86_XSTATE: u32 = 0x202;
/// Offsets of the system call's number and of the low halves of two arguments in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARGUMENT_0_AT: u32 = 16;
const ARGUMENT_2_AT: u32 = 32;
/// The CPUID leaf that describes the extended state.
#[cfg(target_arch = "x86_64")]
const XSTATE_LEAF: u32 = 0xd;

/// Returns the size in bytes of the extended state enabled by the system. Returns 0 on processors other than x86-64.
pub fn len() -> usize {
    #[cfg(target_arch = "x86_64")]
    return std::arch::x86_64::__cpuid_count(XSTATE_LEAF, 0).ebx as usize;
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

/// Makes every request of `command` for the extended state of a traced process fail (`EINVAL`). A tracer that cannot
/// read the extended state saves and restores only the baseline x86-64 state (FXSAVE).
pub fn hide(command: &mut Command) {
    let load = |at: u32| (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    // Skips `skipped` instructions unless the loaded value equals `value`.
    let unless = |value: u32, skipped: u8| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skipped, value);
    let answer = |action: u32| (libc::BPF_RET | libc::BPF_K, 0, 0, action);
    let program = [
        load(NUMBER_AT),
        unless(libc::SYS_ptrace as u32, 5),
        load(ARGUMENT_0_AT),
        unless(PTRACE_GETREGSET, 3),
        load(ARGUMENT_2_AT),
        unless(NT_X86_XSTATE, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let filters = program.map(|(code, jt, jf, k)| libc::sock_filter { code: code as u16, jt, jf, k });
    let install = move || install(&filters);
    // SAFETY: between fork and exec the closure makes two system calls, takes no lock and allocates nothing.
    unsafe { command.pre_exec(install) };
}

fn install(filters: &[libc::sock_filter]) -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_ptr().cast_mut() };
    // SAFETY: the program points to `len` instructions, which the kernel copies.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    Errno::result(done)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_the_filter_runs() {
        let mut command = Command::new("true");
        hide(&mut command);
        assert!(command.status().unwrap().success());
    }
}
