//! What each processor did, as the kernel accounts it (`/proc/stat`, `proc_stat(5)`).

use std::fs;
use std::io;

use super::super::SysError;

/// Microseconds of a second.
const US_PER_SECOND: u64 = 1_000_000;
/// Ticks of a second that every Linux for common machines uses for `/proc/stat`.
const USUAL_TICKS_PER_SECOND: u64 = 100;

/// The time of one processor since boot, in microseconds. The resolution is one tick: see [`tick_us`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// The processor's number.
    pub cpu: usize,
    /// Programs, without the nice ones.
    pub user_us: u64,
    /// Programs of low priority ([`AwakeCpus`](super::AwakeCpus) counts here).
    pub nice_us: u64,
    /// The kernel, on behalf of programs.
    pub system_us: u64,
    /// Idle, waiting for a disk or not.
    pub idle_us: u64,
    /// Hardware interrupts.
    pub irq_us: u64,
    /// Soft interrupts: most of a kernel's network work.
    pub softirq_us: u64,
    /// The hypervisor ran somebody else although this processor had work.
    pub steal_us: u64,
}

impl CpuTime {
    /// Time spent on work of any kind; stolen time is neither work nor idle.
    pub fn busy_us(&self) -> u64 {
        self.user_us + self.nice_us + self.system_us + self.irq_us + self.softirq_us
    }

    /// The time since an earlier reading of the same processor.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            cpu: self.cpu,
            user_us: less(self.user_us, earlier.user_us),
            nice_us: less(self.nice_us, earlier.nice_us),
            system_us: less(self.system_us, earlier.system_us),
            // Idle time may run backwards in /proc/stat (`proc_stat(5)`); so it saturates, as all do.
            idle_us: less(self.idle_us, earlier.idle_us),
            irq_us: less(self.irq_us, earlier.irq_us),
            softirq_us: less(self.softirq_us, earlier.softirq_us),
            steal_us: less(self.steal_us, earlier.steal_us),
        }
    }
}

/// The times of all processors at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    times: Vec<CpuTime>,
}

impl CpuTimes {
    /// Reads the times now.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat").map_err(|e| SysError::new("reading /proc/stat", e))?;
        Ok(Self::parse(&text, tick_us()))
    }

    fn parse(text: &str, tick_us: u64) -> Self {
        Self { times: text.lines().filter_map(|line| parse_line(line, tick_us)).collect() }
    }

    /// Every processor, in the kernel's order.
    pub fn all(&self) -> &[CpuTime] {
        &self.times
    }

    /// One processor.
    pub fn of(&self, cpu: usize) -> Option<&CpuTime> {
        self.times.iter().find(|t| t.cpu == cpu)
    }

    /// The share of the processors' time that a hypervisor gave to somebody else although they had work; 0 where no
    /// time has passed.
    pub fn stolen_share(&self) -> f64 {
        let stolen_us: u64 = self.times.iter().map(|time| time.steal_us).sum();
        let all_us: u64 = self.times.iter().map(|time| time.busy_us() + time.idle_us + time.steal_us).sum();
        if all_us == 0 { 0.0 } else { stolen_us as f64 / all_us as f64 }
    }

    /// The times since an earlier reading; processors that were not in both are left out.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.times.iter().filter_map(|now| Some(now.since(earlier.of(now.cpu)?)));
        Self { times: pairs.collect() }
    }
}

/// One `cpuN` line: user, nice, system, idle, iowait, irq, softirq, steal, in ticks. The line of the
/// sum (`cpu` alone) and all others give `None`.
fn parse_line(line: &str, tick_us: u64) -> Option<CpuTime> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = if line.starts_with("cpu ") { None } else { words.next()?.parse().ok() }?;
    let mut next = || words.next().and_then(|w| w.parse::<u64>().ok()).unwrap_or(0).saturating_mul(tick_us);
    let (user_us, nice_us, system_us) = (next(), next(), next());
    let idle_us = next() + next();
    Some(CpuTime { cpu, user_us, nice_us, system_us, idle_us, irq_us: next(), softirq_us: next(), steal_us: next() })
}

/// The resolution of [`CpuTimes`] in microseconds: one tick, 10 ms on common machines.
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
        // Of 36 and 11 ticks.
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

    #[test]
    fn this_machine_has_a_time_for_each_processor_it_may_use() {
        let times = CpuTimes::read().unwrap();
        assert!(super::super::online().iter().all(|&cpu| times.of(cpu).is_some_and(|t| t.busy_us() + t.idle_us > 0)));
    }
}
