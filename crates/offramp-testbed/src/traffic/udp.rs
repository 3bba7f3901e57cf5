//! UDP datagrams with sequence numbers. The sender is paced. The sender can use UDP GSO (`UDP_SEGMENT`), and the
//! receiver UDP GRO (`UDP_GRO`).

use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::pace::Pace;
use super::params::{DATAGRAM_BYTES_MAX, UdpParams};
use super::report::Datagrams;
use super::side::{Context, Phase, WorkerEnd};
use super::ttcp::{finish, is_pause};

/// Buffer length for one read, in bytes. The kernel coalesces up to 65,535 bytes including headers.
const READ_LEN: usize = 64 * 1024;
/// Length of the sequence number at the start of a datagram, in bytes (big-endian).
const SEQUENCE_LEN: usize = 8;
/// Sends datagrams until the phase reaches [`Phase::Stop`]. `rate_bps` is this stream's share of the rate; 0 means no
/// limit.
pub(super) fn send(socket: &UdpSocket, params: &UdpParams, rate_bps: u64, context: &mut Context) -> WorkerEnd {
    let datagram_len = params.datagram_bytes as usize;
    let mut burst = vec![0; datagram_len * params.gso_segments as usize];
    let mut end = WorkerEnd::default();
    context.wait_begin();
    let mut pace = Pace::new(rate_bps);
    end.first = Some(Instant::now());
    let outcome = loop {
        if context.phase() >= Phase::Stop {
            break Ok(());
        }
        if !pace.wait(context) {
            break Ok(());
        }
        for (datagram, sequence) in burst.chunks_exact_mut(datagram_len).zip(end.units..) {
            datagram[..SEQUENCE_LEN].copy_from_slice(&sequence.to_be_bytes());
        }
        match socket.send(&burst) {
            Ok(len) => {
                end.bytes += len as u64;
                end.units += u64::from(params.gso_segments);
            }
            Err(error) if is_pause(&error) || is_passing(&error) => {}
            Err(error) => break Err(explained(error, params)),
        }
        pace.sent(burst.len());
        context.count(end.bytes, end.units);
    };
    end.last = Some(Instant::now());
    finish(end, outcome, context)
}

/// Receives datagrams until a receive timeout in [`Phase::Stop`].
pub(super) fn receive(socket: &UdpSocket, params: &UdpParams, context: &mut Context) -> WorkerEnd {
    let mut buffer = vec![0; READ_LEN.max(DATAGRAM_BYTES_MAX as usize)];
    let mut ancillary = cmsg_space!(i32);
    let mut end = WorkerEnd::default();
    let mut order = Order::new(params.datagram_bytes as usize);
    let outcome = loop {
        let phase = context.phase();
        if phase == Phase::Abort {
            break Err(io::Error::other("aborted during the test"));
        }
        let read = if params.gro {
            read_coalesced(socket, &mut buffer, &mut ancillary)
        } else {
            read_one(socket, &mut buffer)
        };
        match read {
            Ok((len, segment_len)) => {
                order.take(&buffer[..len], segment_len);
                end.bytes += len as u64;
                end.units = order.datagrams;
            }
            Err(error) if is_pause(&error) && phase >= Phase::Stop => break Ok(()),
            Err(error) if is_pause(&error) || is_passing(&error) => {}
            Err(error) => break Err(error),
        }
        context.count(end.bytes, end.units);
    };
    end.datagrams = Some(order.seen);
    finish(end, outcome, context)
}

fn read_one(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
    let len = socket.recv(buffer)?;
    Ok((len, len))
}

fn read_coalesced(socket: &UdpSocket, buffer: &mut [u8], ancillary: &mut [u8]) -> io::Result<(usize, usize)> {
    let mut room = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut room, Some(ancillary), MsgFlags::empty())?;
    let coalesced = message.cmsgs()?.find_map(|ancillary| match ancillary {
        ControlMessageOwned::UdpGroSegments(segment_len) => usize::try_from(segment_len).ok(),
        _ => None,
    });
    Ok((message.bytes, coalesced.unwrap_or(message.bytes)))
}

/// Counts received datagrams, and checks their size and order.
struct Order {
    datagram_len: usize,
    datagrams: u64,
    sequence_next: u64,
    seen: Datagrams,
}

impl Order {
    fn new(datagram_len: usize) -> Self {
        Self { datagram_len, datagrams: 0, sequence_next: 0, seen: Datagrams::default() }
    }

    /// Counts the datagrams of one read. Each datagram has `segment_len` bytes, except a possibly shorter last
    /// datagram.
    fn take(&mut self, bytes: &[u8], segment_len: usize) {
        self.seen.reads += 1;
        if bytes.is_empty() {
            self.datagrams += 1;
            self.seen.wrong_size += 1;
        }
        for datagram in bytes.chunks(segment_len.max(1)) {
            self.take_one(datagram);
        }
    }

    fn take_one(&mut self, datagram: &[u8]) {
        self.datagrams += 1;
        let sequence = datagram.first_chunk::<SEQUENCE_LEN>().filter(|_| datagram.len() == self.datagram_len);
        let Some(sequence) = sequence.map(|bytes| u64::from_be_bytes(*bytes)) else {
            self.seen.wrong_size += 1;
            return;
        };
        if sequence < self.sequence_next {
            self.seen.out_of_order += 1;
        } else {
            self.sequence_next = sequence.saturating_add(1);
        }
    }
}

/// Returns whether the error of a send or receive concerns only one datagram, so that the test continues. The cause is
/// a full queue, or an ICMP error about an earlier datagram. A connected UDP socket reports such an error at a later
/// call. The receiver detects the lost datagram by the sequence numbers.
pub(super) fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::ECONNREFUSED, Errno::ENOBUFS, Errno::EHOSTUNREACH, Errno::ENETUNREACH];
    error.raw_os_error().is_some_and(|number| passing.contains(&Errno::from_raw(number)))
}

fn explained(error: io::Error, params: &UdpParams) -> io::Error {
    let number = error.raw_os_error().map(Errno::from_raw);
    if params.gso_segments > 1 && matches!(number, Some(Errno::EINVAL | Errno::EMSGSIZE)) {
        return io::Error::other(format!(
            "the kernel does not segment {} datagrams of {} bytes; each datagram must fit the MTU; older kernels \
             accept at most 64",
            params.gso_segments, params.datagram_bytes
        ));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(sequence: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[..SEQUENCE_LEN].copy_from_slice(&sequence.to_be_bytes());
        bytes
    }

    #[test]
    fn a_coalesced_read_counts_its_datagrams_their_order_and_their_size() {
        let mut order = Order::new(100);
        let read: Vec<u8> = [datagram(0, 100), datagram(2, 100), datagram(1, 100), datagram(3, 60)].concat();
        order.take(&read, 100);
        order.take(&[], 0);
        order.take(&datagram(u64::MAX, 100), 100);
        assert_eq!(order.datagrams, 6);
        assert_eq!(order.seen, Datagrams { out_of_order: 1, wrong_size: 2, reads: 3 });
    }
}
