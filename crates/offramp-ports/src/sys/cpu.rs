//! Processors: the existing ones, those allowed to a thread, and their time used.

use std::io;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::SysError;

/// The calling thread, as an argument.
const THIS_THREAD: Pid = Pid::from_raw(0);
/// The lowest priority. `/proc/stat` counts such threads as `nice`, apart from other programs.
const NICEST: libc::c_int = 19;
/// Nanoseconds of a second.
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Kernel clock of a thread's processor time: the complement of its id shifted by three, with
/// `CPUCLOCK_PERTHREAD_MASK` and `CPUCLOCK_SCHED` (Linux `include/linux/posix-timers_types.h`).
const CLOCK_OF_THREAD: libc::clockid_t = 4 | 2;
/// Largest number of a thread or process (Linux `PID_MAX_LIMIT`). A larger one would not fit into the
/// number of a clock, and 0 would mean the caller.
const PID_MAX: i32 = 1 << 22;

/// Returns the processors allowed to the calling thread, ascending.
pub fn online() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(THIS_THREAD) else {
        // A machine with more processors than the set can hold.
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// Keeps the calling thread, and the threads started by it, on these processors.
///
/// # Errors
/// Returns an error if none of them exists or may be used, or a number is out of range.
pub fn pin_current_thread(cpus: &[usize]) -> io::Result<()> {
    pin_thread(THIS_THREAD.as_raw(), cpus)
}

/// As [`pin_current_thread`], for any thread of this process by its number.
///
/// # Errors
/// Returns the errors of [`pin_current_thread`], and an error if there is no such thread.
pub fn pin_thread(thread: i32, cpus: &[usize]) -> io::Result<()> {
    let set = cpu_set(cpus)?;
    sched_setaffinity(Pid::from_raw(thread), &set)
        .map_err(|e| SysError::new(format!("pinning to processors {cpus:?}"), e).into())
}

/// Returns a set of processor numbers as the kernel takes it.
pub(super) fn cpu_set(cpus: &[usize]) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).map_err(|e| SysError::new(format!("processor {cpu}"), e))?;
    }
    Ok(set)
}

/// Lets the calling thread run only when nothing else wants to (`SCHED_IDLE`, nice 19).
///
/// # Errors
/// Returns an error if the kernel refuses.
pub fn set_idle_priority() -> io::Result<()> {
    // SAFETY: setpriority takes its arguments by value; 0 is the calling thread on Linux.
    let nice = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICEST) };
    let priority: libc::c_int = 0;
    // musl refuses sched_setscheduler(2), so this goes by its number. The kernel's `sched_param` is one int.
    // SAFETY: the kernel reads one int, which lives through the call; 0 is the calling thread.
    let idle = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_IDLE, &raw const priority) };
    Errno::result(idle.min(nice.into())).map_err(|e| SysError::new("giving a thread idle priority", e))?;
    Ok(())
}

/// Returns the calling thread's number, for [`thread_cpu_ns_of`] and `/proc`.
pub fn current_thread() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Returns the processor time of a thread of this process since it began, in nanoseconds.
///
/// # Errors
/// Returns an error if there is no such thread in this process.
pub fn thread_cpu_ns_of(thread: i32) -> io::Result<u64> {
    let clock = known(thread).map(|thread| ClockId::from_raw((!thread << 3) | CLOCK_OF_THREAD));
    clock
        .and_then(read_clock)
        .map_err(|e| SysError::new(format!("reading the processor time of thread {thread}"), e).into())
}

/// Returns the processor time of all threads of another process since it began, in nanoseconds.
///
/// # Errors
/// Returns an error if there is no such process.
pub fn process_cpu_ns_of(process: i32) -> io::Result<u64> {
    let clock = known(process).and_then(|process| nix::time::clock_getcpuclockid(Pid::from_raw(process)));
    clock
        .and_then(read_clock)
        .map_err(|e| SysError::new(format!("reading the processor time of process {process}"), e).into())
}

/// Returns the number, if a thread or process may have it.
fn known(pid: i32) -> nix::Result<i32> {
    if (1..=PID_MAX).contains(&pid) { Ok(pid) } else { Err(Errno::ESRCH) }
}

fn read_clock(clock: ClockId) -> nix::Result<u64> {
    let time = clock_gettime(clock)?;
    Ok(time.tv_sec() as u64 * NS_PER_SECOND + time.tv_nsec() as u64)
}
