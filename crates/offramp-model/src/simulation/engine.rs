//! The path of a frame through a bus-master adapter: FIFOs, engine, descriptors and bus.
//!
//! A received frame waits in the receive FIFO until the bus has transferred the frame to the host. The adapter reads a
//! frame for transmission in pieces, when the transmit FIFO has room. The engine segments a super-frame. offramp's own
//! code ([`offramp_offload::segment`]) decides the segments of a super-frame.

use super::frame::{Content, Frame};
use crate::bus::pci::{Command, Pci};
use crate::bus::pcie::{Pcie, PcieState, REGISTER_LEN, Use};
use crate::bus::pcix::{self, PciX, PciXState};
use crate::bus::{Bus, Transfer};
use crate::config::{AdapterConfig, Config, EngineConfig};
use crate::rpc::tcp_payloads;
use crate::time::{Span, Time};
use std::collections::VecDeque;

/// Busy time of one direction of the bus. Transfers are booked before they end.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Total booked time.
    booked: Span,
    /// Start and end of each booking that had not ended when the last booking was made, in order of time.
    pending: VecDeque<(Time, Time)>,
    /// Start of the measured time. A booking can begin before `counts_from`: the transfer of an arriving frame starts
    /// during the arrival, but is booked after the arrival.
    counts_from: Time,
}

impl Busy {
    /// Starts the measured time at `now`. Only the time after `now` of each later booking counts.
    pub(super) fn count_from(&mut self, now: Time) {
        self.counts_from = now;
    }

    /// Books the bus for `taken`, starting at `from`.
    fn book(&mut self, now: Time, from: Time, taken: Span) {
        let (from, until) = (from.max(self.counts_from), from + taken);
        while self.pending.front().is_some_and(|&(_, until)| until <= now) {
            self.pending.pop_front();
        }
        self.booked += until.since(from);
        if until > now {
            self.pending.push_back((from, until));
        }
    }

    /// Returns the booked time up to `now`.
    pub(super) fn until(&self, now: Time) -> Span {
        let to_come = |&(from, until): &(Time, Time)| until.since(now.max(from));
        self.pending.iter().map(to_come).fold(self.booked, |passed, span| passed - span)
    }
}

/// A bus with adapters as masters, and the time at which the bus is free again.
#[derive(Debug)]
pub(super) enum Master {
    /// A bus without limits.
    Unlimited,
    /// A PCI bus, the adapter's read command, and the time at which the bus is free again.
    Pci(Pci, Command, Time),
    PciX(PciX, PciXState),
    Pcie(Pcie, PcieState),
}

impl Master {
    /// Returns the buses of `adapters` adapters: one PCI Express link per adapter, or one shared bus.
    pub(super) fn buses(config: &AdapterConfig, adapters: usize) -> Vec<Self> {
        match config.bus {
            Bus::Pci(pci) => vec![Self::Pci(pci, config.engine.read_command, Time::START)],
            Bus::PciX(pcix) => vec![Self::PciX(pcix, PciXState::default())],
            Bus::Pcie(pcie) => (0..adapters).map(|_| Self::Pcie(pcie, PcieState::default())).collect(),
            Bus::Isa(_) | Bus::Master => vec![Self::Unlimited],
        }
    }

    /// Writes `bytes` to host memory.
    fn write(&mut self, now: Time, bytes: u64, descriptors: &Descriptors) -> Transfer {
        match self {
            Self::Unlimited => Transfer { done: now, from: now, taken: Span::ZERO },
            Self::Pci(pci, _, free) => {
                one_after_the_other(free, now, pci.time(Command::Write, bytes) + descriptors.on_pci(pci))
            }
            Self::PciX(pcix, state) => state.write(&descriptors.beside_on_pcix(pcix, pcix.write(bytes)), now),
            Self::Pcie(pcie, state) => state.write(pcie, &pcie.write(bytes).beside(&descriptors.on_pcie(pcie)), now),
        }
    }

    /// Reads `bytes` from host memory. `is_part` marks a part of a super-frame: a super-frame is contiguous in memory,
    /// so bursts cross segment boundaries.
    fn read(&mut self, now: Time, bytes: u64, is_part: bool, descriptors: &Descriptors) -> Transfer {
        match self {
            Self::Unlimited => Transfer { done: now, from: now, taken: Span::ZERO },
            Self::Pci(pci, command, free) => {
                let data = if is_part { part_of_burst(pci, *command, bytes) } else { pci.time(*command, bytes) };
                one_after_the_other(free, now, data + descriptors.on_pci(pci))
            }
            Self::PciX(pcix, state) => state.read(pcix, &descriptors.beside_on_pcix(pcix, pcix.read(bytes)), now),
            Self::Pcie(pcie, state) => state.read(pcie, &pcie.read(bytes).beside(&descriptors.on_pcie(pcie)), now),
        }
    }
}

/// Books a transfer on a bus that is free again at `free`.
fn one_after_the_other(free: &mut Time, now: Time, taken: Span) -> Transfer {
    let from = now.max(*free);
    *free = from + taken;
    Transfer { done: *free, from, taken }
}

/// Returns the time to read a part of a super-frame: the part's share of bursts of maximum length.
fn part_of_burst(pci: &Pci, command: Command, bytes: u64) -> Span {
    let burst = pci.burst_len(command);
    let of_burst = pci.time(command, burst);
    Span((u128::from(of_burst.0) * u128::from(bytes) / u128::from(burst)) as u64)
}

/// The descriptors of one frame, and the number of descriptors that one transaction fetches or writes back.
#[derive(Clone, Copy, Debug)]
struct Descriptors {
    count: u64,
    len: u64,
    fetch: u64,
    write_back: u64,
}

impl Descriptors {
    fn new(engine: &EngineConfig, count: u64) -> Self {
        let EngineConfig { descriptor, descriptor_fetch, descriptor_write_back, .. } = *engine;
        Self { count, len: descriptor, fetch: descriptor_fetch, write_back: descriptor_write_back }
    }

    /// Returns the bus time on PCI to fetch and write back the descriptors of one frame. A transaction fetches or
    /// writes back several descriptors, so each descriptor counts for its share.
    fn on_pci(&self, pci: &Pci) -> Span {
        let share = |command, batch: u64| Span(pci.time(command, self.len * batch).times(self.count).0 / batch);
        share(Command::ReadMultiple, self.fetch) + share(Command::Write, self.write_back)
    }

    /// Adds a frame's share of the descriptor transactions on PCI-X to the times of the frame's transfer.
    fn beside_on_pcix(&self, pcix: &PciX, frame: pcix::Use) -> pcix::Use {
        let share = |used: pcix::Use, batch: u64| Span(used.bus.times(self.count).0 / batch);
        let fetched = share(pcix.read(self.len * self.fetch), self.fetch);
        let written = share(pcix.write(self.len * self.write_back), self.write_back);
        pcix::Use { bus: frame.bus + fetched + written, ..frame }
    }

    /// Returns one frame's share of the resource times on PCI Express: for descriptor reads and writes, and for the
    /// driver's register write per batch.
    fn on_pcie(&self, pcie: &Pcie) -> Use {
        let share = |used: Use, batch: u64| {
            let part = |span: Span| Span(span.times(self.count).0 / batch);
            Use { up: part(used.up), down: part(used.down), engine: part(used.engine), interval: Span::ZERO }
        };
        let fetched = share(pcie.read(self.len * self.fetch), self.fetch);
        let announced = share(pcie.register_write(REGISTER_LEN), self.fetch);
        fetched.beside(&announced).beside(&share(pcie.write(self.len * self.write_back), self.write_back))
    }
}

/// A frame posted by the host, and not yet read completely by the adapter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) frame: Frame,
    /// Number of payload bytes read so far.
    pub(super) taken: u64,
    /// Index of the next segment.
    pub(super) piece: usize,
}

/// Size of a memory page, in bytes. The payload of a super-frame consists of pages.
pub(super) const PAGE_LEN: u64 = 4096;

/// The state of an adapter between bus and link: the FIFOs, the engine and the posted frames.
#[derive(Debug, Default)]
pub(super) struct Dma {
    pub(super) receive_free: Time,
    pub(super) transmit_free: Time,
    pub(super) crypt_free: Time,
    pub(super) receive_fifo: u64,
    pub(super) transmit_fifo: u64,
    pub(super) posted: VecDeque<Posted>,
    /// Length of the last segmented super-frame, and the payload lengths of its segments.
    pub(super) segmented: (u64, Vec<u64>),
    /// Number of frames dropped because the receive FIFO was full.
    pub(super) dropped: u64,
    /// Busy time of the bus: to the host, and from the host.
    pub(super) busy: [Busy; 2],
}

impl Dma {
    /// Returns the time at which encryption or decryption of a frame ends. The adapter has the complete frame at `at`.
    fn crypt(&mut self, engine: &EngineConfig, at: Time, bytes: u64) -> Time {
        if engine.crypt_bps == 0 {
            return at;
        }
        let whole = Span::of_bytes_at(bytes, engine.crypt_bps);
        self.crypt_free = self.crypt_free.max(at) + whole.scaled_ppm(engine.encrypted_ppm);
        self.crypt_free
    }

    /// Receives a frame, and returns the time at which the frame is in host memory. The transfer can begin at `began`.
    /// `None` if the frame is lost.
    pub(super) fn receive(
        &mut self,
        engine: &EngineConfig,
        master: &mut Master,
        began: Time,
        now: Time,
        len: u64,
    ) -> Option<Time> {
        if self.receive_fifo + len > engine.receive_fifo {
            self.dropped += 1;
            return None;
        }
        self.receive_fifo += len;
        self.receive_free = self.receive_free.max(began) + engine.receive_time;
        let ready = self.crypt(engine, self.receive_free, len);
        let descriptors = Descriptors::new(engine, len.div_ceil(engine.buffer));
        let Transfer { done, from, taken } = master.write(ready, len, &descriptors);
        self.busy[0].book(now, from, taken);
        Some(done.max(now))
    }

    /// Returns the next piece that fits into the transmit FIFO, and the time at which the piece is ready for the link.
    pub(super) fn next_piece(&mut self, config: &Config, master: &mut Master, now: Time) -> Option<(Frame, Time)> {
        let (mss, headers_len) = (config.host.send.sender.mss, config.workload.headers_len);
        let engine = &config.adapter.engine;
        let posted = *self.posted.front()?;
        let (piece, is_last) = self.piece(&posted, mss, headers_len);
        if self.transmit_fifo > 0 && self.transmit_fifo + piece.len > engine.transmit_fifo {
            return None;
        }
        self.transmit_fifo += piece.len;
        let is_part = posted.frame.flow().is_some() && posted.frame.len > headers_len + mss;
        let is_first = posted.piece == 0;
        let count = match (is_first, is_part) {
            // A super-frame needs one descriptor for its headers, and one for each page of its payload. An unaligned
            // payload can touch one page more than its length in pages. The constant 2 counts the headers and this
            // page.
            (true, true) => 2 + posted.frame.len.div_ceil(PAGE_LEN),
            (true, false) => 1,
            (false, _) => 0,
        };
        let bytes = if is_first { piece.len } else { piece.len - headers_len };
        let Transfer { done, from, taken } = master.read(now, bytes, is_part, &Descriptors::new(engine, count));
        self.busy[1].book(now, from, taken);
        self.transmit_free = self.transmit_free.max(done) + engine.segment_time;
        let ready = self.crypt(engine, self.transmit_free, piece.len);
        self.advance(is_last, piece.len - headers_len.min(piece.len));
        Some((piece, ready))
    }

    fn advance(&mut self, is_last: bool, payload: u64) {
        if is_last {
            self.posted.pop_front();
        } else if let Some(posted) = self.posted.front_mut() {
            posted.taken += payload;
            posted.piece += 1;
        }
    }

    /// Returns the next frame of a posted send: the next segment of a super-frame, or the posted frame. The second
    /// result is `true` for the last frame of the send.
    fn piece(&mut self, posted: &Posted, mss: u64, headers_len: u64) -> (Frame, bool) {
        let Content::Segment { flow, start, len } = posted.frame.content else { return (posted.frame, true) };
        if len <= mss {
            return (posted.frame, true);
        }
        if self.segmented.0 != len {
            self.segmented = (len, tcp_payloads(len, mss));
        }
        let payload = self.segmented.1[posted.piece];
        let is_last = posted.piece + 1 == self.segmented.1.len();
        let content = Content::Segment { flow, start: start + posted.taken, len: payload };
        (Frame { len: headers_len + payload, content, completes: is_last }, is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_away_counts_when_it_has_passed_and_gaps_never_do() {
        let mut busy = Busy::default();
        busy.book(Time(0), Time(0), Span(10));
        busy.book(Time(0), Time(30), Span(20));
        let passed = [0, 4, 10, 20, 30, 45, 50, 99].map(|now| busy.until(Time(now)).0);
        assert_eq!(passed, [0, 4, 10, 10, 10, 25, 30, 30]);
        busy.book(Time(60), Time(60), Span(5));
        assert_eq!((busy.pending.len(), busy.until(Time(62)), busy.until(Time(70))), (1, Span(32), Span(35)));
        busy.count_from(Time(80));
        busy.book(Time(90), Time(75), Span(10));
        assert_eq!(busy.until(Time(90)), Span(40), "half of it was before");
    }
}
