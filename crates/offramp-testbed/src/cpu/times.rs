//! The time of each processor by kind of use, as accounted by the kernel (`/proc/stat`, `proc_stat(5)`).
//!
//! Time stolen by a hypervisor (`steal`) can overlap idle time:
//!
//! - A tickless kernel (`NO_HZ`) measures idle time by the clock (Linux `get_cpu_idle_time_us`, shown by
//!   `fs/proc/stat.c`). Idle time lasts from a processor's sleep to the processor's next run.
//! - KVM counts as stolen all time in which the virtual processor was runnable and did not run (`record_steal_time`).
//!   Stolen time therefore begins with the interrupt that wakes the virtual processor.
//!
//! If a hypervisor wakes a processor late, the delay counts as both idle and stolen. A guest's time (columns 9 and 10)
//! is already included in `user` and `nice`. `irq` and `softirq` do not overlap `system`.

use std::fs;
use std::io;
use std::iter::Sum;

use offramp_ports::sys::SysError;

/// Microseconds per second.
const US_PER_SECOND: u64 = 1_000_000;
/// Ticks per second in `/proc/stat` on common machines.
const USUAL_TICKS_PER_SECOND: u64 = 100;

/// Time of one processor since boot, in microseconds, with a resolution of one tick: see [`tick_us`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Number of this processor.
    pub cpu: usize,
    /// Time of programs at normal priority.
    pub user_us: u64,
    /// Time of programs at low priority, including the threads of [`AwakeCpus`](super::AwakeCpus).
    pub nice_us: u64,
    /// Time of the kernel on behalf of programs.
    pub system_us: u64,
    /// Idle time, including `iowait`. Also includes the stolen time by which a hypervisor woke the processor late.
    pub idle_us: u64,
    /// Time of hardware interrupts.
    pub irq_us: u64,
    /// Time of soft interrupts, including most of the kernel's network work.
    pub softirq_us: u64,
    /// Time in which the hypervisor did not run this processor although the processor had work or was to wake up.
    pub steal_us: u64,
}

impl CpuTime {
    /// Returns the time spent on any kind of work. Stolen time counts neither as work nor as idle time.
    pub fn busy_us(&self) -> u64 {
        self.user_us + self.nice_us + self.system_us + self.irq_us + self.softirq_us
    }

    /// Returns the working time, neither idle nor stolen, within a window of `elapsed_us`. `self` is the processor's
    /// time in this window. A spinning thread ([`AwakeCpus`](super::AwakeCpus)) ran on the processor for
    /// `kept_awake_us` of the window. The result excludes this time.
    ///
    /// The kernel measures idle time exactly, reports idle time in whole ticks, and samples the other columns. The
    /// share of stolen time that overlaps idle time is unknown, between 0 and 100 %. The likely value assumes that
    /// stolen time is the same share of the idle time as of the whole window.
    pub fn worked(&self, elapsed_us: u64, kept_awake_us: u64) -> Worked {
        let awake_us = elapsed_us.saturating_sub(self.idle_us);
        let stolen_us = self.steal_us.min(elapsed_us);
        let stolen_awake_us = u128::from(stolen_us) * u128::from(awake_us) / u128::from(elapsed_us.max(1));
        let without = |stolen_us: u64| awake_us.saturating_sub(kept_awake_us).saturating_sub(stolen_us);
        Worked {
            likely_us: without(stolen_awake_us as u64),
            min_us: without(stolen_us),
            max_us: without(stolen_us.saturating_sub(self.idle_us)),
        }
    }

    /// Returns the processor's time between an earlier reading and this reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            cpu: self.cpu,
            user_us: less(self.user_us, earlier.user_us),
            nice_us: less(self.nice_us, earlier.nice_us),
            system_us: less(self.system_us, earlier.system_us),
            // Idle time can decrease in `/proc/stat` (`proc_stat(5)`), so a negative difference counts as 0.
            idle_us: less(self.idle_us, earlier.idle_us),
            irq_us: less(self.irq_us, earlier.irq_us),
            softirq_us: less(self.softirq_us, earlier.softirq_us),
            steal_us: less(self.steal_us, earlier.steal_us),
        }
    }
}

/// Working time of processors, with bounds. The bounds differ if a hypervisor stole time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// Likely working time, in microseconds.
    pub likely_us: u64,
    /// Lower bound of the working time, in microseconds.
    pub min_us: u64,
    /// Upper bound of the working time, in microseconds.
    pub max_us: u64,
}

impl Sum for Worked {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, of| Self {
            likely_us: sum.likely_us + of.likely_us,
            min_us: sum.min_us + of.min_us,
            max_us: sum.max_us + of.max_us,
        })
    }
}

/// Times of all processors at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    times: Vec<CpuTime>,
}

impl CpuTimes {
    /// Reads the present times of all processors.
    ///
    /// # Errors
    /// Returns an error if `/proc/stat` cannot be read.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat").map_err(|e| SysError::new("reading /proc/stat", e))?;
        Ok(Self::parse(&text, tick_us()))
    }

    fn parse(text: &str, tick_us: u64) -> Self {
        Self { times: text.lines().filter_map(|line| parse_line(line, tick_us)).collect() }
    }

    /// Returns the times of every processor, in the kernel's order.
    pub fn all(&self) -> &[CpuTime] {
        &self.times
    }

    /// Returns the busy time of all processors together, in microseconds.
    pub fn busy_us(&self) -> u64 {
        self.times.iter().map(CpuTime::busy_us).sum()
    }

    /// Returns the times of processor `cpu`, or `None` if the kernel lists no such processor.
    pub fn of(&self, cpu: usize) -> Option<&CpuTime> {
        self.times.iter().find(|t| t.cpu == cpu)
    }

    /// Returns the share of the processors' total time that hypervisors stole, or 0 if no time has passed.
    pub fn stolen_share(&self) -> f64 {
        let stolen_us: u64 = self.times.iter().map(|time| time.steal_us).sum();
        let all_us: u64 = self.times.iter().map(|time| time.busy_us() + time.idle_us + time.steal_us).sum();
        if all_us == 0 { 0.0 } else { stolen_us as f64 / all_us as f64 }
    }

    /// Returns the processors' times between an earlier reading and this reading. Processors missing in either reading
    /// are omitted.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.times.iter().filter_map(|now| Some(now.since(earlier.of(now.cpu)?)));
        Self { times: pairs.collect() }
    }
}

/// Parses a `cpuN` line with the columns user, nice, system, idle, iowait, irq, softirq, steal, in ticks. Returns
/// `None` for the line of the sum (`cpu` without a number) and for all other lines.
fn parse_line(line: &str, tick_us: u64) -> Option<CpuTime> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = if line.starts_with("cpu ") { None } else { words.next()?.parse().ok() }?;
    let mut next = || words.next().and_then(|w| w.parse::<u64>().ok()).unwrap_or(0).saturating_mul(tick_us);
    let (user_us, nice_us, system_us) = (next(), next(), next());
    let idle_us = next() + next();
    Some(CpuTime { cpu, user_us, nice_us, system_us, idle_us, irq_us: next(), softirq_us: next(), steal_us: next() })
}

/// Returns the resolution of [`CpuTimes`] in microseconds: one tick, or 10 ms on common machines.
pub fn tick_us() -> u64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    US_PER_SECOND / ticks.and_then(|t| u64::try_from(t).ok()).filter(|&t| t > 0).unwrap_or(USUAL_TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_has_its_line_and_the_sum_has_none() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu12 10 0 0 1\nintr 5\nctxt 7\n";
        let times = CpuTimes::parse(text, 10_000);
        assert_eq!(times.all().len(), 2);
        let first = times.of(0).unwrap();
        assert_eq!((first.busy_us(), first.idle_us, first.steal_us), (190_000, 90_000, 80_000));
        assert_eq!(times.of(12).unwrap().busy_us(), 100_000);
        assert_eq!(times.of(1), None);
        // On one processor, 8 of 36 ticks are stolen; on the other processor, none of 11 ticks.
        assert!((times.stolen_share() - 8.0 / 47.0).abs() < 1e-9, "{}", times.stolen_share());
        assert!(CpuTimes::default().stolen_share().abs() < f64::EPSILON);
    }

    #[test]
    fn idle_time_that_runs_backwards_counts_as_none() {
        let earlier = CpuTimes::parse("cpu0 1 0 0 9\n", 1);
        let now = CpuTimes::parse("cpu0 3 0 0 8\ncpu1 1 1 1 1\n", 1);
        let spent = now.since(&earlier);
        assert_eq!(spent.all().len(), 1);
        assert_eq!((spent.all()[0].busy_us(), spent.all()[0].idle_us), (2, 0));
    }

    /// Returns the likely, minimum and maximum work of a processor in one second, in milliseconds. `begin` and `end`
    /// are the processor's lines at the start and at the end of the second.
    fn worked_in_a_second(begin: &str, end: &str, kept_awake_us: u64) -> [u64; 3] {
        let [begin, end] = [begin, end].map(|line| CpuTimes::parse(line, 10_000));
        let worked = end.since(&begin).all()[0].worked(1_000_000, kept_awake_us);
        [worked.likely_us, worked.min_us, worked.max_us].map(|us| us / 1000)
    }

    #[test]
    fn where_nothing_is_stolen_a_processor_worked_when_it_was_not_idle() {
        // Columns 9 and 10 are a guest's time, included in user and nice. Column 5 (iowait) is idle time.
        let worked = worked_in_a_second("cpu0 5 5 5 100 10 0 0 7 5 5", "cpu0 25 15 5 160 20 0 0 7 25 15", 0);
        assert_eq!(worked, [300; 3]);
    }

    #[test]
    fn a_processor_that_never_sleeps_worked_all_that_was_not_stolen() {
        assert_eq!(worked_in_a_second("cpu0 0 0 0 5 0 0 0 5", "cpu0 50 0 15 5 0 0 0 40", 0), [650; 3]);
    }

    #[test]
    fn time_that_is_stolen_from_a_processor_that_sleeps_is_not_taken_from_its_work_a_second_time() {
        // 0.7 s asleep and 0.35 s stolen exceed one second. If both times were subtracted from the second, no working
        // time would remain, but the processor worked.
        let worked = worked_in_a_second("cpu0 0 0 0 0 0 0 0 0", "cpu0 20 0 0 70 0 0 0 35", 0);
        assert_eq!(worked, [195, 0, 300]);
        // The stolen time exceeds the idle time, so the processor lost at least the difference while it had work.
        let worked = worked_in_a_second("cpu0 0 0 0 0 0 0 0 0", "cpu0 20 0 0 20 0 0 0 30", 0);
        assert_eq!(worked, [560, 500, 700]);
    }

    #[test]
    fn time_that_is_stolen_from_a_processor_that_is_kept_awake_is_in_no_other_column() {
        assert_eq!(worked_in_a_second("cpu0 0 0 0 0 0 0 0 0", "cpu0 30 60 0 0 0 0 0 10", 600_000), [300; 3]);
    }

    #[test]
    fn what_is_likely_lies_between_what_is_certain_whatever_the_columns_say() {
        for (idle, steal, kept_awake) in
            [(0, 0, 0), (100, 0, 0), (101, 3, 0), (0, 130, 0), (50, 50, 500_000), (20, 7, 900_000)]
        {
            let end = format!("cpu0 1 2 3 {idle} 0 4 5 {steal}");
            let [likely, min, max] = worked_in_a_second("cpu0 0 0 0 0 0 0 0 0", &end, kept_awake);
            assert!(min <= likely && likely <= max && max <= 1000, "{end}: {likely} {min} {max}");
        }
        assert_eq!(CpuTime { steal_us: 5, ..CpuTime::default() }.worked(0, 0), Worked::default());
    }

    #[test]
    fn this_machine_has_a_time_for_each_processor_it_may_use() {
        let times = CpuTimes::read().unwrap();
        assert!(
            offramp_ports::sys::cpu::online()
                .iter()
                .all(|&cpu| times.of(cpu).is_some_and(|t| t.busy_us() + t.idle_us > 0))
        );
    }
}
