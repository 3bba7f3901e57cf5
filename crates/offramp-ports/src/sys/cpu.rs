//! The processors on which a thread may run, its scheduling priority, and the processor time that it has used.

use std::io;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::SysError;

/// The id that denotes the calling thread in system calls.
const THIS_THREAD: Pid = Pid::from_raw(0);
/// The nice value of the lowest priority. `/proc/stat` reports the processor time of these threads as `nice`,
/// separately from the time of other threads.
const NICEST: libc::c_int = 19;
/// Nanoseconds per second.
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Low bits of the clock id for a thread's processor time: `CPUCLOCK_PERTHREAD_MASK` and `CPUCLOCK_SCHED`. The high
/// bits are the complement of the thread id, shifted by three (Linux `include/linux/posix-timers_types.h`).
const CLOCK_OF_THREAD: libc::clockid_t = 4 | 2;
/// Largest id of a thread or process (Linux `PID_MAX_LIMIT`). A larger id would not fit into a clock id, and id 0 would
/// mean the calling thread.
const PID_MAX: i32 = 1 << 22;

/// Returns the processors allowed to the calling thread, in ascending order.
pub fn online() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(THIS_THREAD) else {
        // The machine has more processors than the set can hold.
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// Pins the calling thread, and the threads that this thread starts later, to these processors.
///
/// # Errors
/// Returns an error if the thread may run on none of these processors, or a number is out of range.
pub fn pin_current_thread(cpus: &[usize]) -> io::Result<()> {
    pin_thread(THIS_THREAD.as_raw(), cpus)
}

/// Pins any thread of this process, given by its id, like [`pin_current_thread`].
///
/// # Errors
/// Returns the errors of [`pin_current_thread`], and an error if there is no such thread.
pub fn pin_thread(thread: i32, cpus: &[usize]) -> io::Result<()> {
    let set = cpu_set(cpus)?;
    sched_setaffinity(Pid::from_raw(thread), &set)
        .map_err(|e| SysError::new(format!("pinning to processors {cpus:?}"), e).into())
}

/// Returns a set of processor numbers in the kernel's format.
pub(super) fn cpu_set(cpus: &[usize]) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).map_err(|e| SysError::new(format!("processor {cpu}"), e))?;
    }
    Ok(set)
}

/// Lets the calling thread run only on an otherwise idle processor (`SCHED_IDLE`, nice 19).
///
/// # Errors
/// Returns an error if the kernel refuses.
pub fn set_idle_priority() -> io::Result<()> {
    // SAFETY: setpriority takes its arguments by value. On Linux, 0 is the calling thread.
    let nice = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICEST) };
    let priority: libc::c_int = 0;
    // musl refuses sched_setscheduler(2), so the system call is made by number. The kernel's `sched_param` is one int.
    // SAFETY: the kernel reads one int, which lives through the call. Thread id 0 means the calling thread.
    let idle = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_IDLE, &raw const priority) };
    Errno::result(idle.min(nice.into())).map_err(|e| SysError::new("giving a thread idle priority", e))?;
    Ok(())
}

/// Returns the calling thread's id, for [`thread_cpu_ns_of`] and `/proc`.
pub fn current_thread() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Returns the processor time used by a thread of this process since its start, in nanoseconds.
///
/// # Errors
/// Returns an error if there is no such thread in this process.
pub fn thread_cpu_ns_of(thread: i32) -> io::Result<u64> {
    let clock = known(thread).map(|thread| ClockId::from_raw((!thread << 3) | CLOCK_OF_THREAD));
    clock
        .and_then(read_clock)
        .map_err(|e| SysError::new(format!("reading the processor time of thread {thread}"), e).into())
}

/// Returns the processor time used by all threads of another process since its start, in nanoseconds.
///
/// # Errors
/// Returns an error if there is no such process.
pub fn process_cpu_ns_of(process: i32) -> io::Result<u64> {
    let clock = known(process).and_then(|process| nix::time::clock_getcpuclockid(Pid::from_raw(process)));
    clock
        .and_then(read_clock)
        .map_err(|e| SysError::new(format!("reading the processor time of process {process}"), e).into())
}

/// Returns `pid` if it is in the range of thread and process ids.
fn known(pid: i32) -> nix::Result<i32> {
    if (1..=PID_MAX).contains(&pid) { Ok(pid) } else { Err(Errno::ESRCH) }
}

fn read_clock(clock: ClockId) -> nix::Result<u64> {
    let time = clock_gettime(clock)?;
    Ok(time.tv_sec() as u64 * NS_PER_SECOND + time.tv_nsec() as u64)
}
