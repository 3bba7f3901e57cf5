//! Requests and responses over UDP in an open loop. Each request is sent when due, regardless of earlier answers.
//!
//! A latency is measured from the time the request was **due**. If the client is delayed and sends late, the latencies
//! include the delay. A client that waited for each answer before its next request would omit exactly the requests that
//! a late answer delays (coordinated omission).

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::time::TimeSpec;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::pace::wake_on_time;
use super::params::{Arrivals, DATAGRAM_BYTES_MAX, RequestParams};
use super::rr::{nsecs, times};
use super::side::{Context, Phase, WorkerEnd};
use super::sockets::IO_TIMEOUT;
use super::ttcp::{finish, is_pause};
use super::udp::is_passing;

/// Length of the request number at the start of a request and of its response, in bytes (big-endian).
pub(super) const NUMBER_LEN: usize = 8;
/// Maximum number of stored unanswered requests. Above this number, the oldest request is counted as unanswered.
const OUTSTANDING_MAX: usize = 1 << 16;
/// Maximum number of requests that the client sends before it reads answers. Also the maximum number of answers that
/// the client reads before it sends again. The number exceeds a burst of usual size, so such a burst is sent at once.
const TURN_MAX: u32 = 64;
/// Maximum gap of a Poisson process, in seconds. At one request per second, a longer gap has a probability of e^-60.
const GAP_MAX_S: f64 = 60.0;
/// Time without a further answer after which the client stops waiting for answers at the end of a test.
const LINGER: Duration = Duration::from_millis(200);

/// Schedule of a stream's requests.
struct Schedule {
    arrivals: Arrivals,
    random: ChaCha8Rng,
    due: Instant,
    /// Number of remaining requests in the burst due at `due`.
    left: u32,
}

impl Schedule {
    fn new(arrivals: &Arrivals, index: u32, begin: Instant) -> Self {
        let (seed, left) = match arrivals {
            Arrivals::Poisson { seed, .. } => (*seed, 1),
            Arrivals::Bursts { requests, .. } => (0, *requests),
        };
        let random = ChaCha8Rng::seed_from_u64(seed.wrapping_add(u64::from(index)));
        let mut schedule = Self { arrivals: arrivals.clone(), random, due: begin, left };
        let gap = schedule.gap();
        schedule.due += gap;
        schedule
    }

    /// Returns the time from one burst or request to the next.
    fn gap(&mut self) -> Duration {
        match self.arrivals {
            Arrivals::Poisson { per_s, .. } => {
                let uniform: f64 = self.random.random();
                Duration::from_secs_f64((-(1.0 - uniform).ln() / f64::from(per_s)).min(GAP_MAX_S))
            }
            Arrivals::Bursts { every_usecs, .. } => Duration::from_micros(every_usecs.into()),
        }
    }

    /// Advances the schedule to the next request, after a due request was sent or counted as unanswered.
    fn advance(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            let gap = self.gap();
            self.due += gap;
            self.left = match self.arrivals {
                Arrivals::Poisson { .. } => 1,
                Arrivals::Bursts { requests, .. } => requests,
            };
        }
    }
}

/// The times at which the client's thread observed the begin and the end of the measured window.
#[derive(Clone, Copy, Default)]
struct Window {
    opened: Option<Instant>,
    closed: Option<Instant>,
}

impl Window {
    fn see(&mut self, phase: Phase, now: Instant) {
        if phase >= Phase::Measure {
            self.opened.get_or_insert(now);
        }
        if phase > Phase::Measure {
            self.closed.get_or_insert(now);
        }
    }

    /// Returns whether a request due at `due` counts in the measured window.
    fn holds(&self, due: Instant) -> bool {
        self.opened.is_some_and(|opened| due >= opened) && self.closed.is_none_or(|closed| due < closed)
    }
}

/// Requests that were sent and not yet answered, ordered by number.
#[derive(Default)]
struct Outstanding {
    /// Number of the first request in `due`.
    first: u64,
    /// Due time of each request, or `None` after the answer.
    due: VecDeque<Option<Instant>>,
    /// Number of unanswered requests.
    count: usize,
}

impl Outstanding {
    fn next_number(&self) -> u64 {
        self.first + self.due.len() as u64
    }

    /// Stores the next request. If [`OUTSTANDING_MAX`] requests are stored, first removes the oldest request, and
    /// returns its due time if it was unanswered.
    fn push(&mut self, due: Instant) -> Option<Instant> {
        let mut given_up = None;
        if self.due.len() == OUTSTANDING_MAX {
            given_up = self.due.pop_front().flatten();
            self.first += 1;
            self.count -= usize::from(given_up.is_some());
        }
        self.due.push_back(Some(due));
        self.count += 1;
        given_up
    }

    /// Removes request `number`. Returns the request's due time, or `None` if the request is not outstanding.
    fn answer(&mut self, number: u64) -> Option<Instant> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let due = self.due.get_mut(index)?.take()?;
        self.count -= 1;
        while self.due.front().is_some_and(Option::is_none) {
            self.due.pop_front();
            self.first += 1;
        }
        Some(due)
    }
}

/// The client's end of one stream.
struct Client<'a> {
    socket: &'a UdpSocket,
    params: &'a RequestParams,
    request: Vec<u8>,
    response: Vec<u8>,
    schedule: Schedule,
    outstanding: Outstanding,
    window: Window,
    times: Option<Histogram<u64>>,
    end: WorkerEnd,
}

/// Sends each request when due until the phase reaches [`Phase::Stop`], then waits for the last answers. `index` is the
/// index of the stream.
pub(super) fn request(socket: &UdpSocket, params: &RequestParams, index: u32, context: &mut Context) -> WorkerEnd {
    wake_on_time();
    context.wait_begin();
    let begin = Instant::now();
    let mut client = Client {
        socket,
        params,
        request: vec![0; params.request_bytes as usize],
        response: vec![0; DATAGRAM_BYTES_MAX as usize],
        schedule: Schedule::new(&params.arrivals, index, begin),
        outstanding: Outstanding::default(),
        window: Window::default(),
        times: times(),
        end: WorkerEnd::default(),
    };
    client.end.first = Some(begin);
    let outcome = client.ask(context).and_then(|()| client.linger(context));
    client.give_up_the_rest();
    // An empty datagram ends the server's thread at once. If the datagram is lost, the server's timeout ends the
    // thread.
    let _ = socket.send(&[]);
    let Client { times, mut end, .. } = client;
    end.last = Some(Instant::now());
    end.histogram = times;
    finish(end, outcome, context)
}

impl Client<'_> {
    fn ask(&mut self, context: &mut Context) -> io::Result<()> {
        loop {
            let phase = context.phase();
            self.window.see(phase, Instant::now());
            if phase >= Phase::Stop {
                return Ok(());
            }
            self.make_what_is_due()?;
            self.take_answers(context)?;
            let wait = self.schedule.due.saturating_duration_since(Instant::now()).min(IO_TIMEOUT);
            if !wait.is_zero() {
                wait_for_answers(self.socket, wait)?;
            }
        }
    }

    fn make_what_is_due(&mut self) -> io::Result<()> {
        for _ in 0..TURN_MAX {
            let due = self.schedule.due;
            if due > Instant::now() {
                break;
            }
            self.request[..NUMBER_LEN].copy_from_slice(&self.outstanding.next_number().to_be_bytes());
            match self.socket.send(&self.request) {
                Ok(_) => {}
                // The request was not sent and remains due.
                Err(error) if is_pause(&error) => break,
                // The kernel dropped the request, so the request stays unanswered.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
            if let Some(oldest) = self.outstanding.push(due) {
                self.give_up(oldest);
            }
            self.schedule.advance();
        }
        Ok(())
    }

    fn take_answers(&mut self, context: &mut Context) -> io::Result<()> {
        for _ in 0..TURN_MAX {
            let len = match recv(self.socket.as_raw_fd(), &mut self.response, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => len,
                Err(Errno::EAGAIN) => break,
                Err(errno) => {
                    let error = io::Error::from(errno);
                    if is_pause(&error) || is_passing(&error) {
                        break;
                    }
                    return Err(error);
                }
            };
            self.answered(len, Instant::now());
        }
        context.count(self.end.bytes, self.end.units);
        Ok(())
    }

    /// Processes a datagram of `len` bytes. Ignores a datagram that answers no outstanding request.
    fn answered(&mut self, len: usize, now: Instant) {
        if len != self.params.response_bytes as usize {
            return;
        }
        let number = self.response.first_chunk::<NUMBER_LEN>().map(|bytes| u64::from_be_bytes(*bytes));
        let Some(due) = number.and_then(|number| self.outstanding.answer(number)) else { return };
        self.end.bytes += u64::from(self.params.request_bytes) + u64::from(self.params.response_bytes);
        self.end.units += 1;
        self.record(due, now);
    }

    fn record(&mut self, due: Instant, now: Instant) {
        if self.window.holds(due)
            && let Some(times) = &mut self.times
        {
            times.saturating_record(nsecs(now.saturating_duration_since(due)));
        }
    }

    /// Waits for outstanding answers, until none was received for `LINGER`.
    fn linger(&mut self, context: &mut Context) -> io::Result<()> {
        let (mut came, mut left) = (Instant::now(), self.outstanding.count);
        while self.outstanding.count > 0 && came.elapsed() < LINGER {
            if context.phase() == Phase::Abort {
                return Err(io::Error::other("aborted before the last answers"));
            }
            wait_for_answers(self.socket, LINGER / 10)?;
            self.take_answers(context)?;
            if self.outstanding.count < left {
                (came, left) = (Instant::now(), self.outstanding.count);
            }
        }
        Ok(())
    }

    /// Counts the outstanding requests as unanswered, and also the requests that were due in the measured window but
    /// never sent.
    fn give_up_the_rest(&mut self) {
        let unanswered: Vec<Instant> = self.outstanding.due.drain(..).flatten().collect();
        for due in unanswered {
            self.give_up(due);
        }
        for _ in 0..OUTSTANDING_MAX {
            if self.window.closed.is_none_or(|closed| self.schedule.due >= closed) {
                break;
            }
            self.give_up(self.schedule.due);
            self.schedule.advance();
        }
    }

    /// Counts a request as unanswered. The latency recorded for the request is the time since the request was due.
    fn give_up(&mut self, due: Instant) {
        self.end.unanswered += u64::from(self.window.holds(due));
        self.record(due, Instant::now());
    }
}

/// Sleeps until a datagram is received, at most for `wait`.
fn wait_for_answers(socket: &UdpSocket, wait: Duration) -> io::Result<()> {
    let mut watched = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut watched, Some(TimeSpec::from_duration(wait)), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Answers requests until the client's empty datagram is received, or until a receive timeout in [`Phase::Stop`].
pub(super) fn respond(socket: &UdpSocket, params: &RequestParams, context: &mut Context) -> WorkerEnd {
    let exchange_bytes = u64::from(params.request_bytes) + u64::from(params.response_bytes);
    answer_each(socket, params.response_bytes, context, |request| {
        // A datagram of any other length does not belong to the test.
        let is_request = request.len() == params.request_bytes as usize;
        request.first_chunk().filter(|_| is_request).map(|number| (*number, exchange_bytes))
    })
}

/// Answers each request with a response that repeats the request's number. `read` parses a datagram: it returns the
/// number and the bytes to count for the exchange, or `None` if the datagram is no request. An empty datagram ends the
/// test.
pub(super) fn answer_each(
    socket: &UdpSocket,
    response_bytes: u32,
    context: &mut Context,
    read: impl Fn(&[u8]) -> Option<([u8; NUMBER_LEN], u64)>,
) -> WorkerEnd {
    let mut request = vec![0; DATAGRAM_BYTES_MAX as usize];
    let mut response = vec![0; response_bytes as usize];
    let mut end = WorkerEnd::default();
    let outcome = loop {
        let phase = context.phase();
        if phase == Phase::Abort {
            break Err(io::Error::other("aborted during the test"));
        }
        let (number, bytes) = match socket.recv(&mut request) {
            Ok(0) => break Ok(()),
            Ok(len) => match read(&request[..len]) {
                Some(found) => found,
                None => continue,
            },
            Err(error) if is_pause(&error) && phase >= Phase::Stop => break Ok(()),
            Err(error) if is_pause(&error) || is_passing(&error) => continue,
            Err(error) => break Err(error),
        };
        response[..NUMBER_LEN].copy_from_slice(&number);
        match socket.send(&response) {
            Ok(_) => {
                end.bytes += bytes;
                end.units += 1;
            }
            // The kernel did not send the response, so the client counts the request as unanswered.
            Err(error) if is_pause(&error) || is_passing(&error) => {}
            Err(error) => break Err(error),
        }
        context.count(end.bytes, end.units);
    };
    finish(end, outcome, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the due times of the first `count` requests, in seconds since the start.
    fn moments(arrivals: &Arrivals, index: u32, count: usize) -> Vec<f64> {
        let begin = Instant::now();
        let mut schedule = Schedule::new(arrivals, index, begin);
        let next = |_| {
            let due = (schedule.due - begin).as_secs_f64();
            schedule.advance();
            due
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn poisson_gaps_are_exponential_and_the_same_for_the_same_seed() {
        let arrivals = Arrivals::Poisson { per_s: 1000, seed: 7 };
        let found = moments(&arrivals, 0, 20_001);
        assert_eq!(found, moments(&arrivals, 0, 20_001));
        assert_ne!(found[..10], moments(&arrivals, 1, 10)[..]);
        let gaps: Vec<f64> = found.windows(2).map(|two| two[1] - two[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        // Mean and deviation are 1 ms. With 20,000 gaps, the standard error of the mean is below 1 %.
        assert!((mean * 1000.0 - 1.0).abs() < 0.04 && (deviation * 1000.0 - 1.0).abs() < 0.06, "{mean} {deviation}");
    }

    #[test]
    fn a_burst_is_due_at_one_moment_and_the_next_one_so_much_later() {
        let found = moments(&Arrivals::Bursts { requests: 3, every_usecs: 500 }, 0, 7);
        let in_usecs: Vec<f64> = found.iter().map(|seconds| (seconds * 1e6).round()).collect();
        assert_eq!(in_usecs, [500.0, 500.0, 500.0, 1000.0, 1000.0, 1000.0, 1500.0]);
    }

    #[test]
    fn an_answer_counts_once_in_any_order_and_a_strange_number_never() {
        let (mut outstanding, now) = (Outstanding::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(outstanding.push(now), None);
        }
        assert_eq!(
            [1, 1, 0, 3, u64::MAX, 2].map(|number| outstanding.answer(number).is_some()),
            [true, false, true, false, false, true]
        );
        assert_eq!((outstanding.count, outstanding.next_number(), outstanding.due.len()), (0, 3, 0));
        assert!(outstanding.answer(0).is_none());
    }

    #[test]
    fn the_oldest_request_is_given_up_where_there_is_no_room() {
        let (mut outstanding, now) = (Outstanding::default(), Instant::now());
        assert!((0..OUTSTANDING_MAX).all(|_| outstanding.push(now).is_none()));
        assert_eq!(outstanding.push(now), Some(now));
        assert!(outstanding.answer(0).is_none() && outstanding.answer(1).is_some());
        assert_eq!(outstanding.count, OUTSTANDING_MAX - 1);
    }

    #[test]
    fn a_request_counts_if_it_was_due_in_the_window_whenever_it_was_made_or_answered() {
        let (mut window, begin) = (Window::default(), Instant::now());
        let at = |usecs| begin + Duration::from_micros(usecs);
        window.see(Phase::Warmup, at(1));
        assert!(!window.holds(at(1)));
        window.see(Phase::Measure, at(10));
        assert!(!window.holds(at(9)) && window.holds(at(10)));
        window.see(Phase::Stop, at(20));
        assert!(window.holds(at(19)) && !window.holds(at(20)));
    }
}
