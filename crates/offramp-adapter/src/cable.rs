//! A link between two adapters: a rate, a delay and a bounded queue in each direction.
//!
//! Frames are handed over in batches. A transmitter fills its own batch, and `flush` hands the whole batch over to the
//! receiver: one lock per batch, and no lock per frame. The receiver returns emptied batches to the transmitter. The
//! transmitter fills the batch returned last, because the bytes of that batch are still in the cache.
//!
//! On a link with a rate, the arrival time of a frame is the arrival time of the frame's last bit. Preamble, FCS and
//! inter-frame gap take line time (IEEE 802.3 4.2). So a link of 1 Gbit/s carries 941 Mbit/s of TCP with timestamps at
//! MTU 1500.

use crate::config::frame_len_max;
use crate::port::{Arrival, Line, Loan, WirePort};
use offramp_offload::count;
use offramp_offload::sync::Mutex;
use offramp_offload::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::mem;
use std::ops::RangeInclusive;
use std::slice;
use std::sync::Arc;
use std::task::Waker;

/// Bytes of line time that each frame takes in addition to its own bytes. The overhead is preamble and start delimiter
/// (8), FCS (4) and inter-frame gap (12) (IEEE 802.3).
pub const LINE_OVERHEAD_LEN: usize = 24;
/// Length of the shortest frame without FCS, in bytes. A shorter frame takes the line time of a frame of this length
/// (IEEE 802.3 4.2.3.3).
pub const LINE_FRAME_LEN_MIN: usize = 60;
/// Maximum number of frames in one batch: a 64 KiB super-frame at MSS 1448 makes 45 frames.
const BATCH_FRAMES_MAX: usize = 64;
/// Capacity of one batch, bytes, unless a single frame is longer. A batch holds two super-frames, which stay in the
/// second-level caches of the transmitting and the receiving processor.
const BATCH_BYTES: usize = 128 * 1024;
/// Number of batches per direction of a cable without delay. The transmitter fills one batch, the receiver empties
/// another batch, and the other batches wait to be received or refilled.
const BATCHES: usize = 8;
/// Alignment of frames in a batch, in bytes: a cache line.
const FRAME_ALIGN: usize = 64;
/// A flushed batch with at most this number of frames is copied into the last waiting batch if it fits, to save a
/// buffer.
const APPENDED_FRAMES_MAX: usize = 4;
const NANOSECONDS: u128 = 1_000_000_000;

/// The parameters of a link. Each of the two directions has these parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableConfig {
    /// Maximum number of IP bytes in a frame.
    pub mtu: usize,
    /// Bits per second; `None` if unlimited.
    pub rate_bps: Option<u64>,
    /// Propagation delay of a bit, in nanoseconds.
    pub delay_ns: u64,
    /// Maximum number of bytes queued on a link with a rate; a link with more queued bytes accepts no further frame.
    pub queue_bytes: usize,
}

/// Valid rates of a cable, in bits per second: from a modem's rate to more than the rate of today's fastest links.
pub const RATE_BPS: RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// The reason for refusing the parameters of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CableConfigError {
    /// The rate is outside the valid range.
    #[error("link rate of {0} bit/s is out of range; use {min} to {max}", min = RATE_BPS.start(), max = RATE_BPS.end())]
    Rate(u64),
}

impl CableConfig {
    /// Checks the parameters that a user can get wrong. A cable with refused parameters is harmless, but may carry no
    /// frames.
    ///
    /// # Errors
    /// Returns an error whose text is one line, with the setting's name, value and range.
    pub fn check(&self) -> Result<(), CableConfigError> {
        let wrong = self.rate_bps.filter(|rate_bps| !RATE_BPS.contains(rate_bps));
        wrong.map_or(Ok(()), |rate_bps| Err(CableConfigError::Rate(rate_bps)))
    }
}

impl Default for CableConfig {
    fn default() -> Self {
        Self { mtu: crate::config::MTU_DEFAULT, rate_bps: None, delay_ns: 0, queue_bytes: 256 * 1024 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    start: usize,
    len: usize,
    arrival_ns: u64,
}

/// Returns the distance between the starts of two consecutive frames of length `len` in a batch, in bytes.
fn stride(len: usize) -> usize {
    len.next_multiple_of(FRAME_ALIGN)
}

/// Frames that a transmitter hands over to the receiver together.
#[derive(Debug)]
struct Batch {
    bytes: Box<[u8]>,
    frames: Vec<Slot>,
    next: usize,
    used: usize,
}

impl Batch {
    fn new(frame_len_max: usize) -> Self {
        let bytes = frame_len_max.max(BATCH_BYTES).next_multiple_of(FRAME_ALIGN);
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
            frames: Vec::with_capacity(BATCH_FRAMES_MAX),
            next: 0,
            used: 0,
        }
    }

    /// Returns the number of further frames of `len` bytes that fit into the batch.
    fn room_for(&self, len: usize) -> usize {
        let free = self.bytes.len().saturating_sub(self.used);
        let fit = if free < len { 0 } else { (free - len) / stride(len) + 1 };
        fit.min(BATCH_FRAMES_MAX - self.frames.len())
    }

    fn push(&mut self, len: usize, arrival_ns: u64) {
        self.frames.push(Slot { start: self.used, len, arrival_ns });
        self.used += stride(len);
    }

    fn append(&mut self, other: &Self) {
        for slot in &other.frames {
            count::copied(slot.len);
            self.bytes[self.used..self.used + slot.len]
                .copy_from_slice(&other.bytes[slot.start..slot.start + slot.len]);
            self.push(slot.len, slot.arrival_ns);
        }
    }

    /// Takes the next frames, at most `frames_max`, that arrived by `now_ns`.
    fn take_run(&mut self, now_ns: u64, frames_max: usize) -> Frames<'_> {
        let left = &self.frames[self.next..];
        // A link delivers frames in order.
        let arrived = left.iter().take(frames_max).take_while(|slot| slot.arrival_ns <= now_ns).count();
        self.next += arrived;
        Frames { slots: left[..arrived].iter(), bytes: &mut self.bytes, start: 0 }
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.next = 0;
        self.used = 0;
    }
}

/// Frames of a batch, in order.
#[derive(Debug, Default)]
struct Frames<'a> {
    slots: slice::Iter<'a, Slot>,
    /// The bytes of the batch from offset `start` on: all frames of `slots`, and perhaps earlier frames.
    bytes: &'a mut [u8],
    start: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a mut [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a mut [u8]> {
        let slot = self.slots.next()?;
        let (_, from) = mem::take(&mut self.bytes).split_at_mut_checked(slot.start - self.start)?;
        let (frame, rest) = from.split_at_mut_checked(slot.len)?;
        (self.bytes, self.start) = (rest, slot.start + slot.len);
        Some(frame)
    }
}

/// One direction of a cable, shared by the cable's two ends.
#[derive(Debug)]
struct Lane {
    state: Mutex<LaneState>,
    /// The receiving thread, which sleeps until frames arrive.
    receiver: Sleeper,
    /// The transmitting thread, which sleeps until the lane has room.
    transmitter: Sleeper,
}

#[derive(Debug)]
struct LaneState {
    full: VecDeque<Batch>,
    free: Vec<Batch>,
}

/// A thread at one end of a lane, which is woken by the thread at the other end.
#[derive(Debug)]
struct Sleeper {
    /// Set while the thread sleeps. While the flag is unset, the thread at the other end takes no lock to wake the
    /// sleeper.
    is_waiting: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Sleeper {
    fn new() -> Self {
        Self { is_waiting: AtomicBool::new(false), waker: Mutex::new(None) }
    }

    fn register(&self, waker: &Waker) {
        *self.waker.lock() = Some(waker.clone());
        // A swap costs the same as a store, and also reads the flag. If `wake` ran before the swap, this thread sees
        // the new frames or the new room when it polls once more. So no wake-up is lost.
        self.is_waiting.swap(true, Ordering::SeqCst);
    }

    fn unregister(&self) {
        self.is_waiting.swap(false, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.is_waiting.swap(false, Ordering::SeqCst)
            && let Some(waker) = &*self.waker.lock()
        {
            waker.wake_by_ref();
        }
    }
}

impl Lane {
    fn new(config: &CableConfig) -> Self {
        let len_max = frame_len_max(config.mtu);
        let batches = BATCHES + batches_under_way(config, len_max);
        Self {
            state: Mutex::new(LaneState {
                full: VecDeque::with_capacity(batches),
                free: (0..batches).map(|_| Batch::new(len_max)).collect(),
            }),
            receiver: Sleeper::new(),
            transmitter: Sleeper::new(),
        }
    }
}

/// Converts nanoseconds to 64 bits. Times above 584 years become the maximum value, which means "never".
fn saturating(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Returns the number of batches in flight per direction of a link with a rate, in addition to [`BATCHES`]; 0 without a
/// rate.
fn batches_under_way(config: &CableConfig, frame_len_max: usize) -> usize {
    let Some(rate_bps) = config.rate_bps else { return 0 };
    let line_bytes = u128::from(rate_bps) / 8 * u128::from(config.delay_ns) / NANOSECONDS;
    let held_bytes = line_bytes as usize + config.queue_bytes;
    held_bytes.div_ceil(BATCH_BYTES.max(frame_len_max) / 2)
}

/// One end of a cable: transmits into one lane and receives from the other lane.
#[derive(Debug)]
pub struct CableEnd {
    config: CableConfig,
    transmits: bool,
    receives: bool,
    out: Arc<Lane>,
    filling: Option<Batch>,
    /// Time at which the last bit of all frames put so far leaves this end, in nanoseconds.
    line_free_ns: u64,
    into: Arc<Lane>,
    emptying: Option<Batch>,
}

/// Creates a cable and returns its two ends.
pub fn cable(config: &CableConfig) -> (CableEnd, CableEnd) {
    let (there, back) = (Arc::new(Lane::new(config)), Arc::new(Lane::new(config)));
    let end = |out, into| CableEnd::new(config, (true, true), out, into);
    (end(&there, &back), end(&back, &there))
}

impl CableEnd {
    fn new(config: &CableConfig, (transmits, receives): (bool, bool), out: &Arc<Lane>, into: &Arc<Lane>) -> Self {
        Self {
            config: *config,
            transmits,
            receives,
            out: Arc::clone(out),
            filling: None,
            line_free_ns: 0,
            into: Arc::clone(into),
            emptying: None,
        }
    }

    /// Splits an unused end into a transmit-only half and a receive-only half, for two threads. A queue pair on one
    /// half works in one direction only, and idles in the other direction.
    pub fn split(self) -> (Self, Self) {
        let half = |transmits| Self::new(&self.config, (transmits, !transmits), &self.out, &self.into);
        (half(true), half(false))
    }

    /// Returns the transmission time of a frame of `len` bytes on the link, in nanoseconds.
    fn line_time_ns(&self, len: usize) -> u64 {
        let Some(rate_bps) = self.config.rate_bps else { return 0 };
        let bits = (len.max(LINE_FRAME_LEN_MIN) + LINE_OVERHEAD_LEN) as u128 * 8;
        saturating(bits * NANOSECONDS / u128::from(rate_bps.max(1)))
    }

    fn queue_time_ns(&self) -> u64 {
        let Some(rate_bps) = self.config.rate_bps else { return u64::MAX };
        saturating(self.config.queue_bytes as u128 * 8 * NANOSECONDS / u128::from(rate_bps.max(1)))
    }

    fn recycle(&mut self) {
        if let Some(mut batch) = self.emptying.take() {
            batch.clear();
            self.into.state.lock().free.push(batch);
            self.into.transmitter.wake();
        }
    }
}

impl WirePort for CableEnd {
    fn room(&mut self, now_ns: u64) -> usize {
        if !self.transmits || self.line_free_ns.saturating_sub(now_ns) > self.queue_time_ns() {
            return 0;
        }
        if self.filling.is_none() {
            self.filling = self.out.state.lock().free.pop();
        }
        self.filling.as_ref().map_or(0, |batch| BATCH_FRAMES_MAX - batch.frames.len())
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        if self.filling.as_ref().is_some_and(|batch| batch.room_for(len) == 0) {
            self.flush();
        }
        if self.filling.is_none() {
            self.filling = self.out.state.lock().free.pop();
        }
        let batch = self.filling.as_mut()?;
        let count = count.min(batch.room_for(len));
        let end = batch.used + count.checked_sub(1)? * stride(len) + len;
        Some(Loan { bytes: &mut batch.bytes[batch.used..end], stride: stride(len) })
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        let line_time_ns = self.line_time_ns(len);
        let Some(batch) = &mut self.filling else { return };
        self.line_free_ns = self.line_free_ns.max(now_ns);
        for _ in 0..count {
            self.line_free_ns = self.line_free_ns.saturating_add(line_time_ns);
            batch.push(len, self.line_free_ns.saturating_add(self.config.delay_ns));
        }
        if batch.frames.len() == BATCH_FRAMES_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(mut batch) = self.filling.take_if(|batch| !batch.frames.is_empty()) else { return };
        let mut lane = self.out.state.lock();
        match lane.full.back_mut() {
            Some(last)
                if batch.frames.len() <= APPENDED_FRAMES_MAX
                    && last.frames.len() + batch.frames.len() <= BATCH_FRAMES_MAX
                    && last.used + batch.used <= last.bytes.len() =>
            {
                last.append(&batch);
                batch.clear();
                lane.free.push(batch);
            }
            _ => lane.full.push_back(batch),
        }
        drop(lane);
        self.out.receiver.wake();
    }

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        self.take_run(now_ns, 1).next()
    }

    #[inline]
    fn take_run(&mut self, now_ns: u64, frames_max: usize) -> impl Iterator<Item = &mut [u8]> {
        if self.emptying.as_ref().is_some_and(|batch| batch.next == batch.frames.len()) {
            self.recycle();
        }
        if self.emptying.is_none() && self.receives {
            self.emptying = self.into.state.lock().full.pop_front();
        }
        self.emptying.as_mut().map(|batch| batch.take_run(now_ns, frames_max)).unwrap_or_default()
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        if let Some(batch) = &self.emptying
            && let Some(slot) = batch.frames.get(batch.next)
        {
            return Some(slot.arrival_ns);
        }
        if !self.receives {
            return None;
        }
        self.into.state.lock().full.front().and_then(|batch| batch.frames.first()).map(|slot| slot.arrival_ns)
    }

    fn arrivals(&self, mut skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        if !self.receives {
            return u32::MAX;
        }
        let lane = self.into.state.lock();
        for batch in self.emptying.iter().chain(&lane.full) {
            let left = &batch.frames[batch.next..];
            let Some(new) = left.get(skip..) else {
                skip -= left.len();
                continue;
            };
            skip = 0;
            // A link delivers frames in order: if a frame arrives after `until_ns`, all further frames also do.
            let arrived = new.iter().take_while(|slot| slot.arrival_ns <= until_ns);
            arrived.for_each(|slot| note(Arrival { at_ns: slot.arrival_ns, len: slot.len }));
        }
        // Batches in flight count as room, because the line delivers batches at its own rate, regardless of the host.
        let is_under_way = |batch: &&Batch| batch.frames.last().is_some_and(|slot| slot.arrival_ns > until_ns);
        let under_way = lane.full.iter().filter(is_under_way).count();
        // The result assumes full batches. Batches may hold fewer frames, so the moderator evaluates the ring guard
        // again as batches are used up.
        ((lane.free.len() + under_way) * BATCH_FRAMES_MAX) as u32
    }
}

impl Line for CableEnd {
    fn register(&self, waker: &Waker) {
        if self.receives {
            self.into.receiver.register(waker);
        }
        if self.transmits {
            self.out.transmitter.register(waker);
        }
    }

    fn unregister(&self) {
        if self.receives {
            self.into.receiver.unregister();
        }
        if self.transmits {
            self.out.transmitter.unregister();
        }
    }

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        let at = self.line_free_ns.checked_sub(self.queue_time_ns())?;
        (at > now_ns).then_some(at)
    }

    fn sent_ns(&self) -> u64 {
        self.line_free_ns
    }

    fn is_idle(&self) -> bool {
        let is_emptied = self.emptying.as_ref().is_none_or(|batch| batch.next == batch.frames.len());
        is_emptied && self.into.state.lock().full.is_empty()
    }
}
