//! Requests and responses over TCP. A fixed amount of work at each end models an application.

use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};

use super::params::TransactionParams;
use super::side::{Context, Phase, WorkerEnd};
use super::ttcp::{Source, finish, is_pause};

/// Maximum recorded transaction time in nanoseconds: one minute. A longer time is recorded as the maximum.
pub(super) const LATENCY_MAX_NSECS: u64 = 60_000_000_000;
/// Significant digits of a recorded transaction time.
pub(super) const LATENCY_DIGITS: u8 = 3;
/// Maximum number of bytes per read.
const READ_LEN: usize = 64 * 1024;
/// Rounds of work in one calibration sample.
const CALIBRATION_ITERATIONS: u64 = 200_000;
/// Number of calibration samples. The fastest sample is used, because the fastest sample is the least disturbed.
const CALIBRATION_SAMPLES: u32 = 9;

/// Does a fixed amount of work: a chain of `iterations` dependent multiplications without memory access. Under any
/// network load, the work needs the same number of processor cycles, so that two runs are comparable.
pub fn work(iterations: u64) -> u64 {
    // Each round is one step of a mixing function: a shift, an XOR and a multiplication. The multiplier is odd, so each
    // round is a bijection.
    (0..iterations).fold(1, |state, _| {
        let mixed = black_box(state ^ (state >> 29));
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Returns the number of rounds of [`work`] that take `usecs` microseconds of processor time on this machine.
///
/// Each call measures again and returns a different number. To compare two configurations, measure once and use the
/// same number for both configurations.
pub fn iterations_for_usecs(usecs: u64) -> u64 {
    let fastest = (0..CALIBRATION_SAMPLES).map(|_| thread_time_of_work()).min().unwrap_or_default();
    let nsecs = fastest.as_nanos().max(1);
    let iterations = u128::from(usecs) * 1000 * u128::from(CALIBRATION_ITERATIONS) / nsecs;
    iterations.try_into().unwrap_or(u64::MAX)
}

fn thread_time_of_work() -> Duration {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    let start = now();
    black_box(work(CALIBRATION_ITERATIONS));
    now().saturating_sub(start)
}

/// Returns an empty histogram of transaction times in nanoseconds, or `None` if there is no memory for the histogram.
pub(super) fn times() -> Option<Histogram<u64>> {
    Histogram::new_with_max(LATENCY_MAX_NSECS, LATENCY_DIGITS).ok()
}

/// Converts a transaction time to nanoseconds, limited to the histogram's range.
pub(super) fn nsecs(time: Duration) -> u64 {
    time.as_nanos().min(u128::from(LATENCY_MAX_NSECS)) as u64
}

/// The result of sending or receiving one message.
enum Message {
    /// The whole message was received or sent.
    Whole,
    /// The other end closed the stream before the first byte of the message.
    Closed,
    /// The test was aborted before the message was complete.
    Aborted,
}

/// Makes one request at a time until the phase reaches [`Phase::Stop`].
pub(super) fn request(
    stream: &TcpStream,
    params: &TransactionParams,
    source: &Source,
    context: &mut Context,
) -> WorkerEnd {
    let mut buffer = vec![0; READ_LEN];
    let mut end = WorkerEnd::default();
    let mut times = times();
    context.wait_begin();
    let outcome = loop {
        if context.phase() >= Phase::Stop {
            break Ok(());
        }
        if params.think_usecs > 0 {
            thread::sleep(Duration::from_micros(params.think_usecs));
        }
        black_box(work(params.client_work_iterations));
        let begun = Instant::now();
        match exchange(stream, params, source, &mut buffer, context) {
            Ok(Message::Whole) => {}
            Ok(Message::Closed) => break Err(io::Error::other("the server closed the stream")),
            Ok(Message::Aborted) => break Err(io::Error::other("aborted before the response")),
            Err(error) => break Err(error),
        }
        let nsecs = nsecs(begun.elapsed());
        end.bytes += u64::from(params.request_bytes) + u64::from(params.response_bytes);
        end.units += 1;
        if context.phase() == Phase::Measure
            && let Some(times) = &mut times
        {
            times.saturating_record(nsecs);
        }
        context.count(end.bytes, end.units);
    };
    end.histogram = times;
    finish(end, outcome.and_then(|()| stream.shutdown(Shutdown::Write)), context)
}

/// Answers one request at a time until the client closes the stream.
pub(super) fn respond(
    stream: &TcpStream,
    params: &TransactionParams,
    source: &Source,
    context: &mut Context,
) -> WorkerEnd {
    let mut buffer = vec![0; READ_LEN];
    let mut end = WorkerEnd::default();
    let outcome = loop {
        match read_message(stream, params.request_bytes, &mut buffer, context) {
            Ok(Message::Whole) => {}
            Ok(Message::Closed) => break Ok(()),
            Ok(Message::Aborted) => break Err(io::Error::other("aborted before the end of the stream")),
            Err(error) => break Err(error),
        }
        black_box(work(params.server_work_iterations));
        match write_message(stream, params.response_bytes, source, context) {
            Ok(Message::Whole) => {}
            Ok(_) => break Err(io::Error::other("aborted within a response")),
            Err(error) => break Err(error),
        }
        end.bytes += u64::from(params.request_bytes) + u64::from(params.response_bytes);
        end.units += 1;
        context.count(end.bytes, end.units);
    };
    finish(end, outcome, context)
}

fn exchange(
    stream: &TcpStream,
    params: &TransactionParams,
    source: &Source,
    buffer: &mut [u8],
    context: &mut Context,
) -> io::Result<Message> {
    match write_message(stream, params.request_bytes, source, context)? {
        Message::Whole => read_message(stream, params.response_bytes, buffer, context),
        other => Ok(other),
    }
}

fn write_message(stream: &TcpStream, len: u32, source: &Source, context: &mut Context) -> io::Result<Message> {
    let mut left = u64::from(len);
    while left > 0 {
        match (&*stream).write(source.slice(0, left)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => left -= written as u64,
            Err(error) if !is_pause(&error) => return Err(error),
            Err(_) if context.phase() == Phase::Abort => return Ok(Message::Aborted),
            Err(_) => {}
        }
    }
    Ok(Message::Whole)
}

fn read_message(stream: &TcpStream, len: u32, buffer: &mut [u8], context: &mut Context) -> io::Result<Message> {
    let mut left = len as usize;
    // The thread polls the phase between two messages, so that the thread reads its processor time when the measured
    // window ends.
    context.phase();
    while left > 0 {
        let room = left.min(buffer.len());
        match (&*stream).read(&mut buffer[..room]) {
            Ok(0) if left == len as usize => return Ok(Message::Closed),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => left -= read,
            Err(error) if !is_pause(&error) => return Err(error),
            Err(_) if context.phase() == Phase::Abort => return Ok(Message::Aborted),
            Err(_) => {}
        }
    }
    Ok(Message::Whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_work_is_more_iterations_and_none_is_none() {
        assert_eq!(iterations_for_usecs(0), 0);
        assert!(iterations_for_usecs(1000) > 100 * iterations_for_usecs(1));
        assert_ne!(work(10), work(11));
    }
}
