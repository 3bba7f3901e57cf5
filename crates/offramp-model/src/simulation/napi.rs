//! Polling in a deferred driver. After a poll, the driver polls again, waits with interrupts off, or enables
//! interrupts, as in Linux (`Documentation/networking/napi.rst`; `napi_complete_done` and `napi_busy_loop` in
//! `net/core/dev.c`).
//!
//! | polling | start of a poll |
//! |---|---|
//! | interrupts | an interrupt; after the poll, interrupts are enabled |
//! | deferral (`host.defer_hard_irqs`) | a timer of `host.gro_flush_timeout`; at most `defer_hard_irqs` in a row |
//! | busy polling (`host.busy_poll`) | a process that waits for data, on the processor of the process |
//! | suspension (`host.irq_suspend_timeout`) | as in busy polling; interrupts stay off while the process works |

use super::outcome::Activity;
use super::state::{Event, Job, Simulation};
use crate::cpu::Priority;
use crate::time::{PICOSECONDS_PER_MICROSECOND, Span, Time};

/// Length of a jiffy at `CONFIG_HZ=1000`, in picoseconds. An aggregate begun in an earlier jiffy is passed to the stack
/// instead of being held.
const JIFFY_PS: u64 = 1000 * PICOSECONDS_PER_MICROSECOND;

impl Simulation {
    /// Schedules a poll of a queue in a softirq.
    pub(super) fn begin_poll(&mut self, queue: usize) {
        let job = Job::BatchBegin { queue };
        let processor = self.place(Priority::Softirq, &job);
        self.polls[processor].queues += 1;
        self.work(Priority::Softirq, job, &[]);
    }

    /// Returns whether the queues of the processor have used up their shared budget (`net_rx_action`). Completed sends
    /// do not count against the budget. The budget does not limit busy polling, nor polling at a fixed interval.
    pub(super) fn is_out_of_budget(&self, queue: usize) -> bool {
        let driver = &self.drivers[queue];
        let is_taken = self.deciding.is_some_and(|of| self.polls[of].taken >= self.config.host.poll.budget);
        is_taken && driver.memory.first().is_some() && driver.napi.polled_on.is_none() && !self.polls()
    }

    /// Lets processes run on the processor before the poll of a queue continues.
    pub(super) fn wait_for_turn(&mut self, queue: usize) {
        let Some(processor) = self.deciding else { return };
        let waiting = &mut self.polls[processor].waiting;
        waiting.push(queue);
        if waiting.len() == 1 {
            self.work(Priority::User, Job::PollTurn { queue }, &[]);
        }
    }

    /// Continues the waiting polls after processes have run.
    pub(super) fn poll_on(&mut self, processor: usize) {
        let polls = &mut self.polls[processor];
        polls.taken = 0;
        for queue in std::mem::take(&mut polls.waiting) {
            self.work(Priority::Softirq, Job::BatchBegin { queue }, &[]);
        }
    }

    /// Returns the maximum number of frames per batch.
    pub(super) fn batch_len_max(&self) -> usize {
        self.config.host.poll.weight.min(self.config.host.poll.budget)
    }

    /// Counts a batch of `found` frames against the budget of the processor. Returns `true` if GRO holds incomplete
    /// aggregates until the next poll, which a timer will start.
    pub(super) fn batch_holds(&mut self, queue: usize, found: usize) -> bool {
        let poll = self.config.host.poll;
        if let Some(processor) = self.deciding {
            self.polls[processor].taken += found;
        }
        let napi = &mut self.drivers[queue].napi;
        napi.found = found;
        poll.gro_flush_timeout > Span::ZERO && (found > 0 || napi.deferrals_left > 0)
    }

    /// Ends a batch after its last frame. The driver then polls the queue again, or completes the poll.
    pub(super) fn batch_ends(&mut self, queue: usize) {
        let (poll, len_max) = (self.config.host.poll, self.batch_len_max());
        let polls = &mut self.polls[self.deciding.unwrap_or_default()];
        let driver = &mut self.drivers[queue];
        let found = driver.napi.found;
        // With `host.poll_weight`, a poll that found fewer frames than the weight is complete, even if further frames
        // have arrived.
        let has_weight = poll.weight < usize::MAX;
        let goes_on = if has_weight { found == len_max } else { poll.budget < usize::MAX };
        if goes_on && driver.memory.first().is_some() {
            if !has_weight || polls.taken >= poll.budget {
                return self.wait_for_turn(queue);
            }
            return self.work(Priority::Softirq, Job::BatchBegin { queue }, &[]);
        }
        if driver.napi.polled_on.is_some() {
            driver.napi.is_waiting = true;
            return;
        }
        polls.queues -= 1;
        if polls.queues == 0 {
            polls.taken = 0;
        }
        self.poll_ends(queue);
    }

    /// Completes a poll, and enables interrupts unless a timer starts the next poll.
    fn poll_ends(&mut self, queue: usize) {
        let poll = self.config.host.poll;
        let driver = &mut self.drivers[queue];
        if driver.napi.found > 0 {
            driver.napi.deferrals_left = poll.defer_hard_irqs;
        }
        let is_deferred = driver.napi.deferrals_left > 0 && poll.gro_flush_timeout > Span::ZERO;
        driver.napi.deferrals_left = driver.napi.deferrals_left.saturating_sub(1);
        if is_deferred {
            return self.wait_for_timer(queue, poll.gro_flush_timeout);
        }
        if !driver.held.is_empty() {
            self.start_timer(queue, poll.gro_flush_timeout);
        }
        self.interrupts_on(queue);
    }

    /// Keeps interrupts off until a timer starts the next poll.
    fn wait_for_timer(&mut self, queue: usize, wait: Span) {
        self.drivers[queue].napi.is_waiting = true;
        self.start_timer(queue, wait);
    }

    fn start_timer(&mut self, queue: usize, wait: Span) {
        let at = self.now + wait;
        self.drivers[queue].napi.timer_at = Some(at);
        self.events.schedule(at, Event::NapiTimer { queue });
    }

    /// Starts a poll by the timer of a queue, unless a poll is in progress. The handler of the timer takes as much
    /// processor time as an interrupt handler.
    pub(super) fn on_napi_timer(&mut self, queue: usize) {
        let driver = &mut self.drivers[queue];
        if driver.napi.timer_at != Some(self.now) || driver.napi.polled_on.is_some() {
            return;
        }
        driver.napi.timer_at = None;
        if std::mem::take(&mut driver.napi.is_waiting) || !driver.is_active {
            self.enter_interrupt(queue);
        }
    }

    /// Starts busy polling before the process of a connection sleeps, if the processor has no other process to run.
    pub(super) fn process_waits(&mut self, flow: usize) {
        let wait = self.config.host.poll.busy_poll;
        if wait > Span::ZERO && !self.has_process_work() {
            self.poll_busily(flow, self.now + wait);
        }
    }

    /// Returns whether another process waits for the processor of the completed job.
    fn has_process_work(&self) -> bool {
        self.deciding.is_some_and(|processor| self.cpus[processor].waiting(Priority::User) > 0)
    }

    fn poll_busily(&mut self, flow: usize, until: Time) {
        let took = self.config.host.costs.poll_time;
        self.work(Priority::User, Job::BusyPoll { flow, until }, &[(Activity::Process, took)]);
    }

    /// Handles one iteration of busy polling by a process.
    pub(super) fn on_busy_poll(&mut self, flow: usize, until: Time) {
        let Some(processor) = self.deciding else { return };
        let queue = self.steering.of_flow(flow);
        if self.has_process_work() {
            return self.stop_polling(queue, processor, true);
        }
        let driver = &mut self.drivers[queue];
        if driver.napi.polled_on.is_none() && (!driver.is_active || driver.napi.is_waiting) {
            driver.is_active = true;
            (driver.napi.polled_on, driver.napi.is_waiting) = (Some(processor), true);
        }
        let is_ours = driver.napi.polled_on == Some(processor);
        if is_ours && driver.napi.is_waiting && driver.has_work() {
            driver.napi.is_waiting = false;
            driver.interrupted_at = self.now;
            self.work_next(Priority::Softirq, Job::BatchBegin { queue }, &[]);
        } else if self.now >= until {
            return self.stop_polling(queue, processor, false);
        }
        self.poll_busily(flow, until);
    }

    /// Ends the busy polling of a queue, because a process has work (`has_found`) or the polling time is over.
    fn stop_polling(&mut self, queue: usize, processor: usize, has_found: bool) {
        let poll = self.config.host.poll;
        let napi = &mut self.drivers[queue].napi;
        if napi.polled_on != Some(processor) {
            return;
        }
        napi.polled_on = None;
        if has_found && poll.irq_suspend_timeout > Span::ZERO {
            self.wait_for_timer(queue, poll.irq_suspend_timeout);
        } else if poll.defer_hard_irqs > 0 && poll.gro_flush_timeout > Span::ZERO {
            self.wait_for_timer(queue, poll.gro_flush_timeout);
        } else {
            napi.is_waiting = false;
            self.interrupts_on(queue);
        }
    }

    /// Returns whether an aggregate begun at `since` is too old to hold.
    pub(super) fn is_old(&self, since: Time) -> bool {
        since.0 / JIFFY_PS != self.now.0 / JIFFY_PS
    }
}
