//! One end of a running test: its data threads, their common phase, and their counters.
//!
//! The controlling thread changes the phase and reads the counters. Each data thread reads the phase with one relaxed
//! load per system call, and is the only writer of its counters.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use offramp_ports::socket::{TcpInfo, tcp_info};
use serde::{Deserialize, Serialize};

use super::marks::{Mark, Mean, Moment, Role, interval_between, keep, merge_last};
use super::params::Params;
use super::polls::Polls;
use super::report::{CpuTime, Datagrams, EndFigures, Interval, RpcCounts, TcpFigures};
use super::sockets::{IO_TIMEOUT, congestion_of};

/// Interval at which a sender checks whether the test has begun.
const BEGIN_POLL: Duration = Duration::from_millis(1);
/// Maximum time without progress during a drain.
pub(super) const DRAIN_STALL: Duration = Duration::from_secs(5);
/// Maximum duration of a drain.
pub(super) const DRAIN_MAX: Duration = Duration::from_mins(1);
/// Minimum duration of the last interim result. A shorter remainder of the measured window is added to the previous
/// interim result.
const LAST_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Microseconds per second.
const USECS_PER_SEC: f64 = 1e6;

/// The phase of a test. Later phases compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Receivers run, and senders wait.
    Idle,
    /// The load runs and is not measured.
    Warmup,
    /// The load runs and is measured: the measured window is open.
    Measure,
    /// The measured window is closed, and the load still runs.
    After,
    /// Senders stop, and receivers read to the end of their streams.
    Stop,
    /// All threads stop at once.
    Abort,
}

impl Phase {
    fn from_u8(value: u8) -> Self {
        const ALL: [Phase; 6] = [Phase::Idle, Phase::Warmup, Phase::Measure, Phase::After, Phase::Stop, Phase::Abort];
        ALL.get(usize::from(value)).copied().unwrap_or(Phase::Abort)
    }
}

/// Counters of one thread, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Meter {
    bytes: AtomicU64,
    units: AtomicU64,
}

/// A data thread's access to the test's phase and to the thread's counters.
pub(super) struct Context {
    shared: Arc<AtomicU8>,
    meter: Arc<Meter>,
    seen: Phase,
    cpu_at_start: Option<CpuTime>,
    cpu: Option<CpuTime>,
}

impl Context {
    /// Returns the current phase. Reads the thread's processor time when the measured window opens and when it closes.
    pub(super) fn phase(&mut self) -> Phase {
        let phase = Phase::from_u8(self.shared.load(Ordering::Relaxed));
        if phase != self.seen {
            self.enter(phase);
        }
        phase
    }

    /// Waits until senders may start.
    pub(super) fn wait_begin(&mut self) {
        while self.phase() == Phase::Idle {
            thread::sleep(BEGIN_POLL);
        }
    }

    /// Publishes the thread's number of bytes, and of units (datagrams or transactions), since the start of the test.
    pub(super) fn count(&self, bytes: u64, units: u64) {
        self.meter.bytes.store(bytes, Ordering::Relaxed);
        self.meter.units.store(units, Ordering::Relaxed);
    }

    #[cold]
    fn enter(&mut self, phase: Phase) {
        self.seen = phase;
        if phase == Phase::Measure {
            self.cpu_at_start = Some(thread_cpu());
        } else if phase > Phase::Measure {
            self.close_cpu_window();
        }
    }

    fn close_cpu_window(&mut self) {
        if let (Some(start), None) = (self.cpu_at_start, self.cpu) {
            self.cpu = Some(thread_cpu() - start);
        }
    }
}

/// Results of a data thread.
#[derive(Default)]
pub(super) struct WorkerEnd {
    /// Payload bytes carried.
    pub(super) bytes: u64,
    /// Datagrams or transactions carried.
    pub(super) units: u64,
    /// Time of the first payload byte.
    pub(super) first: Option<Instant>,
    /// Time of the last payload byte.
    pub(super) last: Option<Instant>,
    /// True if the thread has sent all data, or received the end of the stream.
    pub(super) complete: bool,
    /// Reason for an incomplete stream.
    pub(super) error: Option<String>,
    /// Number of bytes that differ from the pattern.
    pub(super) corrupt_bytes: u64,
    /// Counters of a UDP receiver.
    pub(super) datagrams: Option<Datagrams>,
    /// Counters of an RPC client.
    pub(super) rpc: Option<RpcCounts>,
    /// Number of requests due in the measured window that were not answered.
    pub(super) unanswered: u64,
    /// Transaction times in the measured window, in nanoseconds.
    pub(super) histogram: Option<Histogram<u64>>,
    cpu: CpuTime,
}

struct Worker {
    role: Role,
    meter: Arc<Meter>,
    socket: Option<Arc<TcpStream>>,
    thread: Option<JoinHandle<()>>,
    end: Option<WorkerEnd>,
}

/// Figures of one end of the test. The server sends its figures to the client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SideFigures {
    /// Figures of the data sent or the requests made by this end.
    pub(super) sending: Option<EndFigures>,
    /// Figures of the data received or the requests answered by this end.
    pub(super) receiving: Option<EndFigures>,
    /// Figures of the requests made or answered by this end during bulk data.
    #[serde(default)]
    pub(super) exchanging: Option<EndFigures>,
}

impl SideFigures {
    /// Returns the figures of all roles.
    pub(super) fn ends(&self) -> impl Iterator<Item = &EndFigures> {
        self.sending.iter().chain(&self.receiving).chain(&self.exchanging)
    }
}

/// One interim result: data sent, and data received. Requests during bulk data have no interim results.
pub(super) type Intervals = (Option<Interval>, Option<Interval>);

/// The threads of one end and their common phase. Dropping the value stops all threads.
pub(super) struct Side {
    shared: Arc<AtomicU8>,
    timed: bool,
    cut_off: bool,
    workers: Vec<Worker>,
    running: usize,
    ends_sender: Option<mpsc::Sender<(usize, WorkerEnd)>>,
    ends: mpsc::Receiver<(usize, WorkerEnd)>,
    start: Option<Moment>,
    end: Option<Moment>,
    interval: Option<Duration>,
    interval_start: Option<Moment>,
    intervals: SideIntervals,
    polls: Option<Polls>,
}

#[derive(Default)]
struct SideIntervals {
    sending: Vec<Interval>,
    receiving: Vec<Interval>,
}

impl Side {
    /// Creates an end without threads.
    pub(super) fn new(params: &Params) -> Self {
        let (ends_sender, ends) = mpsc::channel();
        Self {
            shared: Arc::new(AtomicU8::new(Phase::Idle as u8)),
            timed: params.is_timed(),
            cut_off: params.is_cut_off(),
            workers: Vec::new(),
            running: 0,
            ends_sender: Some(ends_sender),
            ends,
            start: None,
            end: None,
            interval: params.interval(),
            interval_start: None,
            intervals: SideIntervals::default(),
            polls: None,
        }
    }

    /// Starts a data thread with this role. `TCP_INFO` is read from `socket`.
    pub(super) fn spawn(
        &mut self,
        role: Role,
        socket: Option<Arc<TcpStream>>,
        carry: impl FnOnce(&mut Context) -> WorkerEnd + Send + 'static,
    ) -> std::io::Result<()> {
        let meter = Arc::new(Meter::default());
        let mut context = Context {
            shared: Arc::clone(&self.shared),
            meter: Arc::clone(&meter),
            seen: Phase::Idle,
            cpu_at_start: None,
            cpu: None,
        };
        let index = self.workers.len();
        let ends = self.ends_sender.clone();
        let thread = thread::Builder::new().name(format!("ttcp-{index}")).spawn(move || {
            let mut end = carry(&mut context);
            context.close_cpu_window();
            end.cpu = context.cpu.unwrap_or_default();
            if let Some(ends) = ends {
                // The send fails if the controlling thread no longer waits for the figures.
                let _ = ends.send((index, end));
            }
        })?;
        self.workers.push(Worker { role, meter, socket, thread: Some(thread), end: None });
        self.running += 1;
        Ok(())
    }

    /// Lets the senders start. A timed test enters the warm-up. A test that transfers a given number of bytes opens its
    /// measured window at once.
    pub(super) fn begin(&mut self) {
        self.ends_sender = None;
        if self.timed {
            self.set_phase(Phase::Warmup);
        } else {
            self.open_window();
        }
    }

    /// Opens the measured window.
    pub(super) fn open_window(&mut self) {
        let now = self.moment();
        self.set_phase(Phase::Measure);
        self.start = Some(now);
        self.interval_start = Some(now);
        let has_tcp = self.workers.iter().any(|worker| worker.socket.is_some());
        self.polls = has_tcp.then(|| Polls::new(now.at, self.progress()));
    }

    /// Closes the measured window while the load still runs. Returns the last interim result. Returns `None` without
    /// interim results, or if the last interim result is shorter than [`LAST_INTERVAL_MIN`].
    pub(super) fn close_window(&mut self) -> Option<Intervals> {
        let now = self.moment();
        if self.timed {
            self.set_phase(Phase::After);
        }
        if self.start.is_none() || self.end.is_some() {
            return None;
        }
        self.poll(now.at);
        self.end = Some(now);
        let begun = self.interval_start.filter(|_| self.interval.is_some())?;
        if now.at - begun.at > LAST_INTERVAL_MIN {
            return Some(self.close_interval(now));
        }
        self.add_rest(now);
        None
    }

    /// Stops the senders and lets the receivers read to the end of their streams.
    pub(super) fn stop(&mut self) {
        self.set_phase(Phase::Stop);
    }

    /// Stops all threads at once.
    pub(super) fn abort(&mut self) {
        self.set_phase(Phase::Abort);
        for socket in self.workers.iter().filter_map(|worker| worker.socket.as_ref()) {
            // The shutdown wakes a thread blocked in the kernel. On a closed socket, no thread is blocked, and the
            // shutdown fails.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Waits until every thread has ended, at most until `until`. Returns whether all threads have ended.
    pub(super) fn wait(&mut self, until: Instant) -> bool {
        while self.running > 0 {
            match self.ends.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((index, end)) => {
                    self.workers[index].end = Some(end);
                    self.running -= 1;
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => self.running = 0,
            }
        }
        true
    }

    /// Waits until every thread has ended. Aborts the threads after [`DRAIN_STALL`] without progress, after
    /// [`DRAIN_MAX`], or if `keep_on` returns `false`. If the test's parameters set `cut_off`, aborts all threads at
    /// once.
    pub(super) fn drain(&mut self, mut keep_on: impl FnMut() -> bool) {
        if self.cut_off {
            self.abort();
            self.wait(Instant::now() + DRAIN_STALL);
            return;
        }
        let began = Instant::now();
        let (mut moved, mut progress) = (began, self.progress());
        while !self.wait(Instant::now() + IO_TIMEOUT) {
            let now = Instant::now();
            if self.progress() != progress {
                (moved, progress) = (now, self.progress());
            }
            if now - moved > DRAIN_STALL || now - began > DRAIN_MAX || !keep_on() {
                self.abort();
                self.wait(Instant::now() + DRAIN_STALL);
                return;
            }
        }
    }

    /// Returns the bytes carried so far in both directions, so that callers can detect a stall.
    pub(super) fn progress(&self) -> u64 {
        self.workers.iter().map(|worker| worker.meter.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the time of the next poll or interim result while the measured window is open.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        let poll = self.polls.as_ref().map(Polls::due);
        poll.into_iter().chain(self.interval_end()).min().filter(|_| self.end.is_none())
    }

    /// Polls if a poll is due, and returns an interim result if its interval has ended.
    pub(super) fn tick(&mut self) -> Option<Intervals> {
        if self.end.is_some() {
            return None;
        }
        let now = Instant::now();
        if self.polls.as_ref().is_some_and(|polls| now >= polls.due()) {
            self.poll(now);
        }
        (now >= self.interval_end()?).then(|| self.close_interval(self.moment()))
    }

    fn interval_end(&self) -> Option<Instant> {
        Some(self.interval_start?.at + self.interval?)
    }

    fn poll(&mut self, now: Instant) {
        let Some(mut polls) = self.polls.take() else { return };
        let windows = self.of(Role::Sending).filter_map(Worker::tcp_info).map(|info| info.tcpi_snd_cwnd);
        polls.take(now, self.progress(), windows);
        self.polls = Some(polls);
    }

    /// Returns the figures of this end, and the transaction times in its measured window in nanoseconds. All threads
    /// must have ended before the call.
    pub(super) fn figures(&mut self) -> (SideFigures, Option<Histogram<u64>>) {
        if self.end.is_none() {
            self.close_window();
        }
        let figures = SideFigures {
            sending: self.end_figures(Role::Sending),
            receiving: self.end_figures(Role::Receiving),
            exchanging: self.end_figures(Role::Exchanging),
        };
        let mut times: Option<Histogram<u64>> = None;
        for histogram in self.workers.iter_mut().filter_map(|worker| worker.end.as_mut()?.histogram.take()) {
            match &mut times {
                None => times = Some(histogram),
                // All histograms have the same bounds and precision, so the addition cannot fail.
                Some(sum) => sum.add(&histogram).unwrap_or_default(),
            }
        }
        (figures, times)
    }

    fn set_phase(&self, phase: Phase) {
        self.shared.fetch_max(phase as u8, Ordering::Relaxed);
    }

    fn moment(&self) -> Moment {
        Moment {
            at: Instant::now(),
            sending: self.mark(Role::Sending),
            receiving: self.mark(Role::Receiving),
            exchanging: self.mark(Role::Exchanging),
        }
    }

    fn mark(&self, role: Role) -> Mark {
        let mut mark = Mark::default();
        let mut cwnd = Mean::default();
        for worker in self.of(role) {
            mark.bytes += worker.meter.bytes.load(Ordering::Relaxed);
            mark.units += worker.meter.units.load(Ordering::Relaxed);
            if let Some(info) = worker.tcp_info() {
                mark.retransmits += u64::from(info.tcpi_total_retrans);
                mark.segments_sent += u64::from(info.tcpi_segs_out);
                mark.segments_received += u64::from(info.tcpi_segs_in);
                mark.segments_out_of_order += u64::from(info.tcpi_rcv_ooopack);
                mark.dsacks += u64::from(info.tcpi_dsack_dups);
                mark.reorderings += u64::from(info.tcpi_reord_seen);
                cwnd.add(info.tcpi_snd_cwnd);
            }
        }
        mark.cwnd_segments = cwnd.get();
        mark
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(move |worker| worker.role == role)
    }

    fn close_interval(&mut self, now: Moment) -> Intervals {
        let (sent, received) = self.interval_to(now);
        keep(&mut self.intervals.sending, sent);
        keep(&mut self.intervals.receiving, received);
        (sent, received)
    }

    fn add_rest(&mut self, now: Moment) {
        let (sent, received) = self.interval_to(now);
        merge_last(&mut self.intervals.sending, sent);
        merge_last(&mut self.intervals.receiving, received);
    }

    fn interval_to(&mut self, now: Moment) -> Intervals {
        let (Some(start), Some(previous)) = (self.start, self.interval_start.replace(now)) else {
            return (None, None);
        };
        let has = |role| self.of(role).next().is_some();
        let between = |from: Mark, to: Mark| interval_between(start.at, (previous.at, from), (now.at, to));
        let sent = has(Role::Sending).then(|| between(previous.sending, now.sending));
        let received = has(Role::Receiving).then(|| between(previous.receiving, now.receiving));
        (sent, received)
    }

    fn end_figures(&mut self, role: Role) -> Option<EndFigures> {
        self.of(role).next()?;
        let mut figures = EndFigures { complete: true, ..EndFigures::default() };
        for (index, worker) in self.of(role).enumerate() {
            worker.add_to(&mut figures, index);
        }
        figures.tcp = self.tcp_figures(role);
        figures.stall_seconds = self.polls.as_ref().map(|polls| polls.stall().as_secs_f64());
        figures.intervals = match role {
            Role::Sending => std::mem::take(&mut self.intervals.sending),
            Role::Receiving => std::mem::take(&mut self.intervals.receiving),
            Role::Exchanging => Vec::new(),
        };
        self.fill_window(role, &mut figures);
        Some(figures)
    }

    fn fill_window(&self, role: Role, figures: &mut EndFigures) {
        let (Some(start), Some(end)) = (self.start, self.end) else { return };
        if self.timed {
            let (from, to) = (start.of(role), end.of(role));
            figures.bytes = to.bytes - from.bytes;
            figures.units = to.units - from.units;
            figures.seconds = (end.at - start.at).as_secs_f64();
            return;
        }
        figures.bytes = figures.bytes_total;
        figures.units = figures.units_total;
        let ends = || self.of(role).filter_map(|worker| worker.end.as_ref());
        let first = ends().filter_map(|end| end.first).min();
        let last = ends().filter_map(|end| end.last).max().unwrap_or(end.at);
        // If one read returned all data, the first and the last byte have the same time, so the duration counts from
        // the test's start.
        let from = first.filter(|&first| first < last).unwrap_or(start.at);
        figures.seconds = last.saturating_duration_since(from).as_secs_f64();
    }

    fn tcp_figures(&self, role: Role) -> Option<TcpFigures> {
        let congestion = self.of(role).find_map(|worker| worker.socket.as_deref().map(congestion_of))?;
        let (start, end) = (self.start?.of(role), self.end?.of(role));
        let (mut mss, mut cwnd, mut rtt, mut rttvar) =
            (Mean::default(), Mean::default(), Mean::default(), Mean::default());
        for info in self.of(role).filter_map(Worker::tcp_info) {
            mss.add(info.tcpi_snd_mss);
            cwnd.add(info.tcpi_snd_cwnd);
            rtt.add(info.tcpi_rtt);
            rttvar.add(info.tcpi_rttvar);
        }
        Some(TcpFigures {
            congestion,
            retransmits: end.retransmits.saturating_sub(start.retransmits),
            segments_sent: end.segments_sent.saturating_sub(start.segments_sent),
            segments_received: end.segments_received.saturating_sub(start.segments_received),
            segments_out_of_order: end.segments_out_of_order.saturating_sub(start.segments_out_of_order),
            mss_bytes: mss.get(),
            cwnd_segments: cwnd.get(),
            rtt_us: rtt.get(),
            rttvar_us: rttvar.get(),
            dsacks: end.dsacks.saturating_sub(start.dsacks),
            reorderings: end.reorderings.saturating_sub(start.reorderings),
            cwnd_median_segments: self.polls.as_ref().filter(|_| role == Role::Sending).and_then(Polls::window_median),
        })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.abort();
        for thread in self.workers.iter_mut().filter_map(|worker| worker.thread.take()) {
            // The result of the join is not needed. If the thread panicked, the report lists the thread's stream as a
            // stream that did not end.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn tcp_info(&self) -> Option<TcpInfo> {
        self.socket.as_ref().and_then(|socket| tcp_info(socket).ok())
    }

    fn add_to(&self, figures: &mut EndFigures, index: usize) {
        let Some(end) = &self.end else {
            figures.complete = false;
            figures.errors.push(format!("stream {index}: did not end within the time limit"));
            return;
        };
        figures.bytes_total += end.bytes;
        figures.units_total += end.units;
        figures.cpu += end.cpu;
        figures.corrupt_bytes += end.corrupt_bytes;
        figures.unanswered += end.unanswered;
        figures.complete &= end.complete;
        if let Some(error) = &end.error {
            figures.errors.push(format!("stream {index}: {error}"));
        }
        if let Some(seen) = end.datagrams {
            let sum = figures.datagrams.get_or_insert_default();
            sum.out_of_order += seen.out_of_order;
            sum.wrong_size += seen.wrong_size;
            sum.reads += seen.reads;
        }
        if let Some(seen) = end.rpc {
            let sum = figures.rpc.get_or_insert_default();
            sum.retransmits += seen.retransmits;
            sum.unwanted += seen.unwanted;
        }
    }
}

/// Returns the processor time of the calling thread since its start.
fn thread_cpu() -> CpuTime {
    // `RUSAGE_THREAD` with a valid buffer cannot fail. A failed call would be visible as a processor time of 0.
    getrusage(UsageWho::RUSAGE_THREAD).map_or_else(
        |_| CpuTime::default(),
        |usage| CpuTime {
            user_seconds: usage.user_time().num_microseconds() as f64 / USECS_PER_SEC,
            system_seconds: usage.system_time().num_microseconds() as f64 / USECS_PER_SEC,
        },
    )
}
