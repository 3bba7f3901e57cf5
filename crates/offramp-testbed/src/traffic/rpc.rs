//! Remote procedure calls over UDP, similar to NFS. A request is short. A response is one datagram, fragmented by IP.
//! The client repeats a request after a timeout without a response. If one fragment is lost, the whole response is
//! lost.
//!
//! The calls read a file from its start to its end, with read-ahead. A new call begins only if its number exceeds the
//! number of the oldest unanswered call by less than the parameter `outstanding`.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::params::{DATAGRAM_BYTES_MAX, RpcParams};
use super::report::RpcCounts;
use super::requests::{NUMBER_LEN, answer_each};
use super::rr::{LATENCY_DIGITS, LATENCY_MAX_NSECS};
use super::side::{Context, Phase, WorkerEnd};
use super::sockets::IO_TIMEOUT;
use super::ttcp::{finish, is_pause};
use super::udp::is_passing;

/// Minimum timeout of a receive, because a timeout of zero would never expire.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// One outstanding call.
#[derive(Clone, Copy)]
struct Call {
    number: u64,
    begun: Instant,
    /// Time of the call's last request.
    sent: Instant,
}

/// The calls of one stream and their results.
struct Caller<'caller> {
    socket: &'caller UdpSocket,
    params: &'caller RpcParams,
    timer: Duration,
    request: Vec<u8>,
    calls: Vec<Call>,
    numbers: u64,
    counts: RpcCounts,
    times: Option<Histogram<u64>>,
    end: WorkerEnd,
}

/// Makes calls until the phase reaches [`Phase::Stop`], then gives up the outstanding calls.
pub(super) fn call(socket: &UdpSocket, params: &RpcParams, context: &mut Context) -> WorkerEnd {
    let mut caller = Caller::new(socket, params);
    context.wait_begin();
    caller.end.first = Some(Instant::now());
    let outcome = caller.run(context);
    caller.end.last = Some(Instant::now());
    caller.end.histogram = caller.times;
    caller.end.rpc = Some(caller.counts);
    finish(caller.end, outcome, context)
}

impl<'caller> Caller<'caller> {
    fn new(socket: &'caller UdpSocket, params: &'caller RpcParams) -> Self {
        Self {
            socket,
            params,
            timer: Duration::from_micros(params.timer_usecs),
            request: vec![0; params.request_bytes as usize],
            calls: Vec::with_capacity(params.outstanding as usize),
            numbers: 0,
            counts: RpcCounts::default(),
            times: Histogram::new_with_max(LATENCY_MAX_NSECS, LATENCY_DIGITS).ok(),
            end: WorkerEnd::default(),
        }
    }

    fn run(&mut self, context: &mut Context) -> io::Result<()> {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX as usize];
        self.begin_all()?;
        while context.phase() < Phase::Stop {
            self.send_again(context)?;
            self.socket.set_read_timeout(Some(self.wait()))?;
            match self.socket.recv(&mut buffer) {
                Ok(len) => self.accept(&buffer[..len], context.phase() == Phase::Measure)?,
                Err(error) if is_pause(&error) || is_passing(&error) => {}
                Err(error) => return Err(error),
            }
            context.count(self.end.bytes, self.end.units);
        }
        Ok(())
    }

    /// Begins all calls whose numbers exceed the number of the oldest unanswered call by less than `outstanding`.
    fn begin_all(&mut self) -> io::Result<()> {
        let oldest = self.calls.iter().map(|call| call.number).min().unwrap_or(self.numbers);
        while self.numbers < oldest + u64::from(self.params.outstanding) {
            self.begin()?;
        }
        Ok(())
    }

    /// Begins a call and sends its first request.
    fn begin(&mut self) -> io::Result<()> {
        let (number, now) = (self.numbers, Instant::now());
        self.numbers += 1;
        self.calls.push(Call { number, begun: now, sent: now });
        self.send(number)
    }

    /// Sends a request. If the kernel has no room, the request counts as lost.
    fn send(&mut self, number: u64) -> io::Result<()> {
        self.request[..NUMBER_LEN].copy_from_slice(&number.to_be_bytes());
        match self.socket.send(&self.request) {
            Err(error) if !is_pause(&error) && !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Repeats the requests whose retransmission timeout has elapsed.
    fn send_again(&mut self, context: &mut Context) -> io::Result<()> {
        let now = Instant::now();
        for position in 0..self.calls.len() {
            if now - self.calls[position].sent >= self.timer {
                self.calls[position].sent = now;
                self.counts.retransmits += u64::from(context.phase() == Phase::Measure);
                self.send(self.calls[position].number)?;
            }
        }
        Ok(())
    }

    /// Returns the time until the next retransmission is due.
    fn wait(&self) -> Duration {
        let oldest = self.calls.iter().map(|call| call.sent).min();
        let left = oldest.map_or(IO_TIMEOUT, |sent| self.timer.saturating_sub(sent.elapsed()));
        left.clamp(WAIT_MIN, IO_TIMEOUT)
    }

    /// Processes a response. If the response completes a call, begins the calls that `outstanding` now allows.
    fn accept(&mut self, response: &[u8], is_measured: bool) -> io::Result<()> {
        let number = call_number(response).filter(|_| response.len() == self.params.response_bytes as usize);
        let position = number.and_then(|number| self.calls.iter().position(|call| call.number == number));
        let Some(position) = position else {
            self.counts.unwanted += u64::from(is_measured);
            return Ok(());
        };
        let call = self.calls.swap_remove(position);
        self.end.bytes += response.len() as u64;
        self.end.units += 1;
        if let Some(times) = self.times.as_mut().filter(|_| is_measured) {
            times.saturating_record(call.begun.elapsed().as_nanos().min(u128::from(LATENCY_MAX_NSECS)) as u64);
        }
        self.begin_all()
    }
}

/// Answers requests until a receive timeout in [`Phase::Stop`].
pub(super) fn answer(socket: &UdpSocket, params: &RpcParams, context: &mut Context) -> WorkerEnd {
    answer_each(socket, params.response_bytes, context, |call| {
        call.first_chunk().map(|number| (*number, u64::from(params.response_bytes)))
    })
}

fn call_number(message: &[u8]) -> Option<u64> {
    message.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[..NUMBER_LEN].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    #[test]
    fn no_call_begins_further_beyond_the_oldest_than_may_be_under_way() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.local_addr().unwrap()).unwrap();
        let params = RpcParams { response_bytes: 100, outstanding: 4, ..RpcParams::default() };
        let mut caller = Caller::new(&socket, &params);
        let under_way = |caller: &Caller| {
            let mut numbers: Vec<u64> = caller.calls.iter().map(|call| call.number).collect();
            numbers.sort_unstable();
            numbers
        };
        caller.begin_all().unwrap();
        assert_eq!(under_way(&caller), [0, 1, 2, 3]);
        for number in [1, 3] {
            caller.accept(&response(number, 100), true).unwrap();
        }
        assert_eq!(under_way(&caller), [0, 2], "the oldest holds the others back");
        caller.accept(&response(0, 100), true).unwrap();
        assert_eq!(under_way(&caller), [2, 4, 5]);
        // Three unwanted responses: one already answered, one of wrong size, and one without a call number.
        for strange in [response(0, 100), response(2, 99), vec![1, 2, 3]] {
            caller.accept(&strange, true).unwrap();
        }
        assert_eq!((under_way(&caller), caller.counts.unwanted), (vec![2, 4, 5], 3));
        assert_eq!((caller.end.units, caller.end.bytes), (3, 300));
    }
}
