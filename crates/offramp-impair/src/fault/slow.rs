//! A bus between the adapter and its host. The bus makes one copy at a time; both directions share the bus.

use super::config::BusConfig;
use crate::common::{copied, skipping};
use crate::read_out::{ReadOut, first};
use offramp_adapter::pass_on;
use offramp_adapter::port::{Arrival, Line, Loan, WirePort};
use offramp_adapter::stats::Direction;
use std::collections::VecDeque;

/// Maximum number of copied frames not yet taken by the host: a full receive batch. At this maximum, the host's thread
/// is the bottleneck, and the bus waits for the host's thread.
const READY_FRAMES_MAX: usize = 256;

/// A wire behind a slow bus, in both directions.
///
/// A received frame stays in the adapter's memory or on the wire until its copy is finished. The frame arrives at the
/// host at the end of the copy. The bus executes the copies one after another, ordered by the earliest possible start
/// of each copy. The start and end of each copy depend only on the time of the wire, not on the times of polls. A
/// transmitted frame is copied when the bus is free, and is put on the wire at the end of the copy. Until the end of
/// the copy, the host cannot send another frame.
#[derive(Debug)]
pub struct Slow<W> {
    /// The wrapped wire.
    pub line: W,
    bus: BusConfig,
    /// `true` if the host sends no frame while a received frame is being copied or waits for its copy.
    receive_first: bool,
    /// End time of the latest copy that has begun, in nanoseconds.
    bus_free_ns: u64,
    /// The received frame being copied, with the end time of the copy as its arrival time.
    reading: Option<Arrival>,
    /// Time up to which all copies are finished, in nanoseconds.
    now_ns: u64,
    /// Time at which the copy of the last transmitted frame ends, in nanoseconds.
    written_ns: u64,
    /// Frames copied for the host and not yet taken, each with the time at which its copy ended.
    ready: VecDeque<(u64, Vec<u8>)>,
    free: Vec<Vec<u8>>,
    lent: Vec<u8>,
}

impl<W: ReadOut> Slow<W> {
    /// Wraps a wire in a bus.
    pub fn new(line: W, bus: BusConfig) -> Self {
        Self {
            line,
            bus,
            receive_first: false,
            bus_free_ns: 0,
            reading: None,
            now_ns: 0,
            written_ns: 0,
            ready: VecDeque::new(),
            free: Vec::new(),
            lent: Vec::new(),
        }
    }

    /// If `receive_first` is true, the bus sends no frame while a received frame is being copied or waits for its copy.
    /// This setting models a machine whose processor does the copies, and reads all arrived frames before a program
    /// continues.
    #[must_use]
    pub fn receiving_first(self, receive_first: bool) -> Self {
        Self { receive_first, ..self }
    }

    /// Returns whether a received frame is being copied, or waits for its copy.
    fn is_receiving(&self, now_ns: u64) -> bool {
        self.reading.is_some_and(|reading| reading.at_ns > now_ns) || first(&self.line, now_ns).is_some()
    }

    /// Finishes all copies for the host that end by `now_ns`. Also begins a copy that starts by `now_ns` and ends
    /// later.
    fn run(&mut self, now_ns: u64) {
        while self.ready.len() < READY_FRAMES_MAX
            && let Some(Arrival { at_ns: end_ns, .. }) = self.reading.or_else(|| self.begin_reading(now_ns))
            && end_ns <= now_ns
        {
            self.reading = None;
            let Some(frame) = self.line.take(end_ns) else { continue };
            self.ready.push_back((end_ns, copied(&mut self.free, frame)));
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Begins the next copy for the host if the copy can begin by `now_ns`.
    fn begin_reading(&mut self, now_ns: u64) -> Option<Arrival> {
        loop {
            let arrival_ns = self.line.next_arrival_ns()?;
            let begin_ns = arrival_ns.max(self.bus_free_ns);
            if begin_ns > now_ns {
                return None;
            }
            if let Some(arrival) = self.line.begin(begin_ns) {
                let copied = self.copied(begin_ns, arrival);
                self.bus_free_ns = copied.at_ns;
                self.reading = Some(copied);
                return self.reading;
            }
            // The frame was lost before its copy began, so the loop tries the next frame.
            if self.line.next_arrival_ns() == Some(arrival_ns) {
                return None;
            }
        }
    }

    /// Returns `arrival` with the end time of the frame's copy as the arrival time at the host. The bus is free from
    /// `free_ns` on.
    fn copied(&self, free_ns: u64, arrival: Arrival) -> Arrival {
        let begin_ns = arrival.at_ns.max(free_ns);
        Arrival { at_ns: begin_ns.saturating_add(self.bus.copy_ns(arrival.len)), ..arrival }
    }

    /// Predicts the copies for the host that end by `until_ns`: the current copy, and the copies of frames still to be
    /// read. Skips the first `skip` copies, and passes the others to `note`, with the end of each copy as the arrival
    /// time.
    fn foresee(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) {
        let mut free_ns = self.bus_free_ns;
        let mut note = skipping(skip, |copied| {
            if copied.at_ns <= until_ns {
                note(copied);
            }
        });
        self.reading.into_iter().for_each(&mut note);
        self.line.arrivals(usize::from(self.reading.is_some()), until_ns, |arrival| {
            let copied = self.copied(free_ns, arrival);
            free_ns = copied.at_ns;
            note(copied);
        });
    }
}

impl<W: ReadOut> WirePort for Slow<W> {
    fn room(&mut self, now_ns: u64) -> usize {
        if self.bus.is_none() {
            return self.line.room(now_ns);
        }
        let is_busy = self.written_ns > now_ns || self.receive_first && self.is_receiving(now_ns);
        if is_busy { 0 } else { self.line.room(now_ns).min(1) }
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let count = if self.bus.is_none() { count } else { count.min(1) };
        self.line.lend(len, count)
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        if self.bus.is_none() || count == 0 {
            return self.line.put(len, count, now_ns);
        }
        self.bus_free_ns = self.bus_free_ns.max(now_ns).saturating_add(self.bus.copy_ns(len));
        self.written_ns = self.bus_free_ns;
        self.line.put(len, count, self.written_ns);
    }

    pass_on!(line: flush);

    fn take(&mut self, now_ns: u64) -> Option<&mut [u8]> {
        if self.bus.is_none() {
            return self.line.take(now_ns);
        }
        self.run(now_ns);
        let (_, frame) = self.ready.pop_front_if(|(ready_ns, _)| *ready_ns <= now_ns)?;
        self.free.push(std::mem::replace(&mut self.lent, frame));
        Some(&mut self.lent)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        if self.bus.is_none() {
            return self.line.next_arrival_ns();
        }
        let ready = self.ready.front().map(|(ready_ns, _)| *ready_ns);
        let read = ready.or(self.reading.map(|reading| reading.at_ns));
        let copied = || first(&self.line, u64::MAX).map(|arrival| self.copied(self.bus_free_ns, arrival).at_ns);
        // If there is no frame to copy, returns the wire's next arrival. At this time, the wire drops a frame chosen
        // for loss.
        read.or_else(copied).or_else(|| self.line.next_arrival_ns())
    }

    /// Predicts the arrivals after the last [`WirePort::advance`] or [`WirePort::take`], on the assumption that no
    /// frame is lost before its copy begins.
    fn arrivals(&self, skip: usize, until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        if self.bus.is_none() {
            return self.line.arrivals(skip, until_ns, note);
        }
        let ready = self.ready.iter().map(|(ready_ns, frame)| Arrival { at_ns: *ready_ns, len: frame.len() });
        ready.skip(skip).take_while(|ready| ready.at_ns <= until_ns).for_each(&mut note);
        if until_ns > self.now_ns {
            self.foresee(skip.saturating_sub(self.ready.len()), until_ns, note);
        }
        (READY_FRAMES_MAX - self.ready.len()) as u32
    }

    fn advance(&mut self, now_ns: u64, stats: &Direction) -> usize {
        if self.bus.is_none() {
            return self.line.advance(now_ns, stats);
        }
        self.run(now_ns);
        // The result is 0: the frames reported by `arrivals` are already copied, and the wire lost only other frames.
        // With the maximum number of copied frames, the wire must not advance past the end of the latest copy. The next
        // copy can begin at that time, and a packet memory must record arrivals and reads in order of time.
        let is_full = self.ready.len() >= READY_FRAMES_MAX;
        self.line.advance(if is_full { now_ns.min(self.bus_free_ns) } else { now_ns }, stats);
        0
    }
}

impl<W: ReadOut> Line for Slow<W> {
    pass_on!(line: register unregister sent_ns);

    fn next_room_ns(&self, now_ns: u64) -> Option<u64> {
        let written = (self.written_ns > now_ns).then_some(self.written_ns);
        written.into_iter().chain(self.line.next_room_ns(now_ns)).max()
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.reading.is_none() && self.line.is_idle()
    }
}

impl<W: ReadOut> ReadOut for Slow<W> {
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        if self.bus.is_none() {
            return self.line.begin(at_ns);
        }
        self.run(at_ns);
        first(self, at_ns)
    }
}
