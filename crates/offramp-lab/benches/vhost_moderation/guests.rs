//! The two guests: one guest sends frames and measures times, and the other guest answers requests.

use offramp_testkit::VnetHeader;
use offramp_testkit::guest::{RxQueue, TxQueue};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::{BULK_LEN, BULK_TOGETHER, REQUEST_LEN};

/// Kinds of frames. The first payload byte of a frame holds the frame's kind.
const BULK: u8 = 1;
const REQUEST: u8 = 2;
pub const LAST_REQUEST: u8 = 3;
pub const LAST: u8 = 4;
const KIND_AT: usize = 14;
/// Offset of the sending time in a frame. The time is in nanoseconds, little-endian.
const SENT_AT: usize = 16;
const SENT_LEN: usize = 8;
/// Time limit for receiving a frame, longer than any expected delay.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval at which the last frame of a sample is repeated, because a guest without a free buffer loses the frame.
const END_EVERY: Duration = Duration::from_millis(10);

/// Builds a frame with an `EtherType` that is never coalesced (IEEE 802, local experimental).
fn frame(len: usize, kind: u8) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0x0b, 1, 2, 0, 0, 0, 0x0a, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[KIND_AT] = kind;
    frame
}

/// Writes the current time into a frame, as the sending time.
fn stamp(frame: &mut [u8], begun: Instant) {
    frame[SENT_AT..SENT_AT + SENT_LEN].copy_from_slice(&(begun.elapsed().as_nanos() as u64).to_le_bytes());
}

/// Returns the age of a frame. An answer has the sending time of its request.
fn age(frame: &[u8], begun: Instant) -> Duration {
    let sent = u64::from_le_bytes(frame[SENT_AT..SENT_AT + SENT_LEN].try_into().expect("eight bytes"));
    begun.elapsed().saturating_sub(Duration::from_nanos(sent))
}

fn request(tx: &mut TxQueue, kind: u8, begun: Instant) {
    let mut request = frame(REQUEST_LEN, kind);
    stamp(&mut request, begun);
    tx.send(&VnetHeader::default(), &[&request]);
}

/// Sends the last frame, of kind `kind`, and repeats this frame until the receiving `thread` ends.
pub fn end<T>(tx: &mut TxQueue, kind: u8, begun: Instant, thread: &ScopedJoinHandle<T>) {
    request(tx, kind, begun);
    let mut sent = Instant::now();
    while !thread.is_finished() {
        thread::yield_now();
        if sent.elapsed() >= END_EVERY {
            request(tx, kind, begun);
            sent = Instant::now();
        }
    }
}

/// Answers requests until the last frame. Returns the maximum delay of a received frame.
pub fn answer(rx: &mut RxQueue, tx: &mut TxQueue, begun: Instant) -> Duration {
    let mut delay_max = Duration::ZERO;
    loop {
        let received = rx.recv(PATIENCE).frame;
        delay_max = delay_max.max(age(&received, begun));
        match received[KIND_AT] {
            REQUEST | LAST_REQUEST => drop(tx.send(&VnetHeader::default(), &[&received])),
            LAST => return delay_max,
            _ => {}
        }
    }
}

pub fn one_by_one(rx: &mut RxQueue, tx: &mut TxQueue, begun: Instant, time: Duration, round_trips_ns: &mut Vec<u64>) {
    while begun.elapsed() < time {
        request(tx, REQUEST, begun);
        round_trips_ns.push(age(&rx.recv(PATIENCE).frame, begun).as_nanos() as u64);
    }
}

/// Receives answers until the answer to the last request. Returns the round-trip times.
pub fn time_answers(rx: &mut RxQueue, begun: Instant) -> Vec<u64> {
    let mut round_trips_ns = Vec::new();
    loop {
        let answer = rx.recv(PATIENCE).frame;
        round_trips_ns.push(age(&answer, begun).as_nanos() as u64);
        if answer[KIND_AT] == LAST_REQUEST {
            return round_trips_ns;
        }
    }
}

/// Sends a burst of full frames every `bulk_every`, and a request every `request_every`, if given.
pub fn send(tx: &mut TxQueue, begun: Instant, time: Duration, request_every: Option<Duration>, bulk_every: Duration) {
    let mut bulk = frame(BULK_LEN, BULK);
    let (mut bulk_due, mut request_due) = (Duration::ZERO, request_every);
    loop {
        let now = begun.elapsed();
        if now >= time {
            return;
        }
        if now >= bulk_due {
            for _ in 0..BULK_TOGETHER {
                stamp(&mut bulk, begun);
                while tx.stage(&VnetHeader::default(), &[&bulk]).is_none() {
                    tx.publish();
                    thread::yield_now();
                }
            }
            tx.publish();
            // After a full ring, the guest makes up at most `bulk_every` of the lost time, and thus hardly exceeds the
            // link rate.
            bulk_due = (bulk_due + bulk_every).max(now.saturating_sub(bulk_every));
        }
        if request_due.is_some_and(|due| now >= due) {
            request(tx, REQUEST, begun);
            request_due = request_due.zip(request_every).map(|(due, every)| due + every);
        }
        let due = request_due.map_or(bulk_due, |request_due| request_due.min(bulk_due));
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}
