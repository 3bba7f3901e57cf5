//! The processor time of other programs: of all processes except this process, its descendants, and the kernel's
//! threads.

use std::fs;
use std::io;
use std::time::Instant;

use offramp_ports::sys::SysError;

use super::{CpuTimes, tick_us};

/// Flag of the kernel's threads in `/proc/PID/stat` (`PF_KTHREAD` in Linux' `sched.h`).
const KERNEL_THREAD: u64 = 0x0020_0000;
const US_PER_SECOND: f64 = 1e6;
/// Mean number of processors that processes missing in `/proc` may use. Lower values can be errors of the two clocks:
/// the kernel samples `/proc/stat` at each tick, and measures the times of processes.
const HIDDEN_CPUS_MAX: f64 = 0.1;

/// A reading of the processor time that other programs have used so far. Only programs listed in `/proc` count. In a
/// container, programs outside the container are missing.
#[derive(Clone, Copy, Debug)]
pub struct OtherPrograms {
    at: Instant,
    /// Time of the other programs in `/proc`, microseconds.
    used_us: u64,
    /// Time of all processes in `/proc`, including this program's, microseconds.
    listed_us: u64,
    /// Time of all processes by `/proc/stat`, without interrupts, microseconds.
    total_us: u64,
    /// True if the kernel's threads are in `/proc`. Then every process is.
    lists_all: bool,
}

impl OtherPrograms {
    /// Reads the present time. The times of ended children count with their parents, so that short programs count too.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be listed.
    pub fn read() -> io::Result<Self> {
        let at = Instant::now();
        let entries = fs::read_dir("/proc").map_err(|e| SysError::new("listing /proc", e))?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        // A process can end between the listing and the reading.
        let all: Vec<Process> =
            pids.filter_map(|pid| Process::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect();
        let total_us = CpuTimes::read()?.all().iter().map(|time| time.user_us + time.nice_us + time.system_us).sum();
        Ok(Self {
            at,
            used_us: used_by_others(&all, std::process::id()) * tick_us(),
            listed_us: all.iter().map(|process| process.ticks).sum::<u64>() * tick_us(),
            total_us,
            lists_all: all.iter().any(|process| process.is_kernel_thread),
        })
    }

    /// Returns the mean number of processors that other programs used since an earlier reading. Returns `None` if
    /// `/proc` lacks processes that used processors, such as those outside a container.
    pub fn cpus_since(&self, earlier: &Self) -> Option<f64> {
        let elapsed_us = (self.at - earlier.at).as_secs_f64() * US_PER_SECOND;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let cpus = |us: u64| if elapsed_us > 0.0 { us as f64 / elapsed_us } else { 0.0 };
        let listed_us = since(self.listed_us, earlier.listed_us);
        let hidden = cpus(since(self.total_us, earlier.total_us).saturating_sub(listed_us));
        let is_known = self.lists_all || hidden <= HIDDEN_CPUS_MAX;
        is_known.then(|| cpus(since(self.used_us, earlier.used_us)))
    }
}

/// The fields of a process in `/proc/PID/stat` (`proc_pid_stat(5)`).
#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    is_kernel_thread: bool,
    /// Processor time of the process and of its ended children, ticks.
    ticks: u64,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(' ')?;
        // The name of the program can contain spaces and parentheses.
        let fields: Vec<&str> = rest.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let ticks = [11, 12, 13, 14].into_iter().map(number).sum::<Option<u64>>()?;
        Some(Self {
            pid: pid.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            is_kernel_thread: number(6)? & KERNEL_THREAD != 0,
            ticks,
        })
    }
}

fn used_by_others(all: &[Process], own: u32) -> u64 {
    let parent_of = |pid: u32| all.iter().find(|process| process.pid == pid).map(|process| process.parent);
    // A pid reused during the reading can create a cycle of parents, so the number of steps is bounded.
    let is_ours = |process: &&Process| {
        let mut ancestors = std::iter::successors(Some(process.pid), |pid| parent_of(*pid)).take(all.len() + 1);
        ancestors.any(|pid| pid == own)
    };
    let others = all.iter().filter(|process| !process.is_kernel_thread).filter(|process| !is_ours(process));
    others.map(|process| process.ticks).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn process(pid: u32, parent: u32, ticks: u64) -> Process {
        Process { pid, parent, is_kernel_thread: false, ticks }
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_no_field() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 99 1 2";
        assert_eq!(Process::parse(stat), Some(process(42, 7, 100)));
        let kernel = Process::parse("15 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 9 0 0 20 0 1 0 1 0 0");
        assert!(kernel.is_some_and(|process| process.is_kernel_thread));
        assert_eq!(Process::parse("42 (short) S 7"), None);
    }

    #[test]
    fn this_process_and_its_descendants_are_no_other_programs() {
        let all =
            [process(1, 0, 5), process(10, 1, 100), process(11, 10, 100), process(12, 11, 100), process(20, 1, 7)];
        assert_eq!(used_by_others(&all, 10), 12);
    }

    #[test]
    fn the_time_of_an_ended_child_stays_with_its_parent() {
        let begin = used_by_others(&[process(20, 1, 7), process(21, 20, 3)], 10);
        let end = used_by_others(&[process(20, 1, 7 + 9)], 10);
        assert_eq!(end - begin, 6);
    }

    #[test]
    fn a_circle_of_reused_pids_ends() {
        assert_eq!(used_by_others(&[process(20, 21, 1), process(21, 20, 1)], 10), 2);
    }

    #[test]
    fn a_load_that_proc_does_not_explain_is_unknown() {
        let begin = OtherPrograms { at: Instant::now(), used_us: 0, listed_us: 0, total_us: 0, lists_all: false };
        let at = begin.at + Duration::from_secs(1);
        let idle = OtherPrograms { at, used_us: 300_000, listed_us: 800_000, total_us: 850_000, ..begin };
        assert_eq!(idle.cpus_since(&begin), Some(0.3));
        let busy = OtherPrograms { total_us: 2_000_000, ..idle };
        assert_eq!(busy.cpus_since(&begin), None);
        assert_eq!(OtherPrograms { lists_all: true, ..busy }.cpus_since(&begin), Some(0.3));
    }

    #[test]
    fn reading_this_machine_gives_no_negative_load() {
        let before = OtherPrograms::read().expect("/proc");
        assert!(OtherPrograms::read().expect("/proc").cpus_since(&before).is_none_or(|cpus| cpus >= 0.0));
    }
}
