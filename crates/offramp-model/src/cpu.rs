//! A processor that runs jobs at three priorities, highest first: interrupt handlers, softirqs, processes. A job
//! preempts running jobs of lower priority. A preempted job continues once no job of higher priority is left.

use crate::time::{Span, Time};
use std::collections::VecDeque;

/// The priority of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Interrupt handlers.
    Interrupt,
    /// Softirqs, bottom halves, deferred procedure calls.
    Softirq,
    /// Processes.
    User,
}

/// All priorities, the highest first.
pub const PRIORITIES: [Priority; 3] = [Priority::Interrupt, Priority::Softirq, Priority::User];

#[derive(Debug)]
struct Job<J> {
    job: J,
    left: Span,
}

/// The expected completion of the running job. Preemption invalidates the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Time of the completion.
    pub at: Time,
    /// Serial number for [`Cpu::complete`]. Once another job starts, the number is invalid.
    pub generation: u64,
}

/// A processor. Jobs of one priority run in the order of submission.
///
/// After a completion ([`Cpu::complete`]), the caller submits the follow-up jobs, and then lets the processor continue
/// ([`Cpu::resume`]).
#[derive(Debug)]
pub struct Cpu<J> {
    queues: [VecDeque<Job<J>>; PRIORITIES.len()],
    running: Option<Priority>,
    /// `true` between [`Cpu::complete`] and [`Cpu::resume`], while follow-up jobs are submitted.
    is_deciding: bool,
    since: Time,
    generation: u64,
    busy: [Span; PRIORITIES.len()],
}

impl<J> Default for Cpu<J> {
    fn default() -> Self {
        Self {
            queues: std::array::from_fn(|_| VecDeque::new()),
            running: None,
            is_deciding: false,
            since: Time::START,
            generation: 0,
            busy: [Span::ZERO; PRIORITIES.len()],
        }
    }
}

impl<J> Cpu<J> {
    /// Submits a job of `cost` at a priority. Returns the new completion if the job starts at once.
    pub fn submit(&mut self, now: Time, priority: Priority, job: J, cost: Span) -> Option<Completion> {
        self.queues[priority as usize].push_back(Job { job, left: cost });
        if self.is_deciding || self.running.is_some_and(|running| running <= priority) {
            return None;
        }
        self.account(now);
        Some(self.start(now, priority))
    }

    /// Submits a follow-up job of the completed job, ahead of all other jobs of its priority.
    pub fn submit_next(&mut self, priority: Priority, job: J, cost: Span) {
        debug_assert!(self.is_deciding, "only what follows from a job may overtake others");
        self.queues[priority as usize].push_front(Job { job, left: cost });
    }

    /// Completes the running job and returns it. `None` if the job was preempted, so that this completion is invalid.
    /// No job runs until [`Cpu::resume`].
    pub fn complete(&mut self, now: Time, generation: u64) -> Option<J> {
        let done = self.running.filter(|_| generation == self.generation)?;
        self.account(now);
        self.running = None;
        self.is_deciding = true;
        self.queues[done as usize].pop_front().map(|job| job.job)
    }

    /// Starts the first job of the highest priority. `None` if no job is queued.
    pub fn resume(&mut self, now: Time) -> Option<Completion> {
        self.is_deciding = false;
        let next = PRIORITIES.into_iter().find(|&priority| !self.queues[priority as usize].is_empty());
        next.map(|priority| self.start(now, priority))
    }

    /// Returns the total time up to `now` that was spent on jobs of `priority`.
    pub fn busy(&self, now: Time, priority: Priority) -> Span {
        let of_running = if self.running == Some(priority) { now.since(self.since) } else { Span::ZERO };
        self.busy[priority as usize] + of_running
    }

    /// Returns the number of waiting and running jobs.
    pub fn jobs(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Returns the number of waiting and running jobs of a priority.
    pub fn waiting(&self, priority: Priority) -> usize {
        self.queues[priority as usize].len()
    }

    /// Starts the first queued job of `priority`.
    fn start(&mut self, now: Time, priority: Priority) -> Completion {
        self.running = Some(priority);
        self.since = now;
        self.generation += 1;
        let left = self.queues[priority as usize].front().map_or(Span::ZERO, |job| job.left);
        Completion { at: now + left, generation: self.generation }
    }

    /// Charges the time up to `now` to the running job.
    fn account(&mut self, now: Time) {
        if let Some(running) = self.running {
            let ran = now.since(self.since);
            self.busy[running as usize] += ran;
            if let Some(job) = self.queues[running as usize].front_mut() {
                job.left = job.left - ran;
            }
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_priority_preempts_and_the_lower_one_goes_on_where_it_was() {
        let mut cpu = Cpu::default();
        let user = cpu.submit(Time(0), Priority::User, "user", Span(10)).unwrap();
        assert_eq!(user.at, Time(10));
        let interrupt = cpu.submit(Time(4), Priority::Interrupt, "interrupt", Span(3)).unwrap();
        assert_eq!(interrupt.at, Time(7));
        assert!(cpu.complete(Time(10), user.generation).is_none(), "it was preempted");
        assert_eq!(cpu.complete(Time(7), interrupt.generation), Some("interrupt"));
        let rest = cpu.resume(Time(7)).unwrap();
        assert_eq!(rest.at, Time(13));
        assert_eq!(cpu.complete(Time(13), rest.generation), Some("user"));
        assert_eq!(cpu.busy(Time(13), Priority::User), Span(10));
        assert_eq!(cpu.busy(Time(13), Priority::Interrupt), Span(3));
        assert_eq!((cpu.resume(Time(13)), cpu.jobs()), (None, 0));
    }

    #[test]
    fn jobs_of_one_priority_run_in_order_but_for_what_follows_from_one() {
        let mut cpu = Cpu::default();
        let first = cpu.submit(Time(0), Priority::Softirq, 1, Span(5)).unwrap();
        assert!(cpu.submit(Time(1), Priority::Softirq, 2, Span(5)).is_none());
        assert!(cpu.submit(Time(1), Priority::User, 3, Span(5)).is_none());
        assert_eq!(cpu.complete(Time(5), first.generation), Some(1));
        cpu.submit_next(Priority::Softirq, 4, Span(2));
        let follows = cpu.resume(Time(5)).unwrap();
        assert_eq!((follows.at, cpu.complete(Time(7), follows.generation)), (Time(7), Some(4)));
        let second = cpu.resume(Time(7)).unwrap();
        assert_eq!(cpu.complete(Time(12), second.generation), Some(2));
    }
}
