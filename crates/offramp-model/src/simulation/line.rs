//! The two stations and the link between them.

use super::exchange::{Place, Stage};
use super::frame::{Frame, HOST};
use super::state::{Adapter, Event, Simulation};
use crate::link::{Action, Begin, STATIONS, Station};
use crate::time::{Span, Time};

/// Maximum number of raw frames in the sender's queue (Linux' `DEFAULT_TX_QUEUE_LEN`). If a burst of the workload is
/// longer, the limit is the length of the burst.
pub(super) const SENDER_FRAMES: u64 = 1000;

impl Simulation {
    /// Queues a frame for transmission at a station.
    pub(super) fn send(&mut self, station: Station, frame: Frame) {
        if station == HOST {
            self.mark(&frame, Stage::Adapter);
        }
        let adapter = self.adapter_of(&frame);
        if self.config.link.full_duplex {
            return self.send_alone(adapter, station, frame);
        }
        let state = &mut self.adapters[adapter].stations[station];
        state.queue.push_back(frame);
        if state.is_idle {
            self.pause(adapter, station);
        }
    }

    /// Returns whether a station is behind by at least `frames` frames of `len` bytes. A station is behind if this
    /// number of frames waits in its queue. A station is also behind if earlier frames occupy its link (the first
    /// adapter's), or the peer's slower link, for at least the time of this number of frames.
    pub(super) fn is_behind(&self, station: Station, frames: u64, len: u64) -> bool {
        let state = &self.adapters[0].stations[station];
        let hop = Span::of_bytes_at(len, self.config.peer.hop_bps);
        state.queue.len() as u64 >= frames
            || state.ready_at.since(self.now) >= self.config.link.frame_time(len).times(frames)
            || self.hop_free.since(self.now) >= hop.times(frames)
    }

    /// Sends a frame on a full-duplex link. Each frame starts after the previous frame and its gap, so the end of the
    /// transmission is known at once.
    fn send_alone(&mut self, adapter: usize, station: Station, frame: Frame) {
        let taken = self.config.link.frame_time(frame.len);
        let gap = self.config.link.gap();
        let state = &mut self.adapters[adapter].stations[station];
        let over = state.ready_at.max(self.now) + taken;
        state.ready_at = over + state.gap.max(gap);
        self.counts.line_busy[station] += taken;
        if station == HOST {
            self.events.schedule(over, Event::Left(frame));
        } else {
            self.events.schedule(over + self.config.link.delay, Event::Arrive(HOST, frame));
        }
    }

    /// Completes a frame that the host has sent on a full-duplex link, and passes the frame on to the peer.
    pub(super) fn on_left(&mut self, frame: Frame) {
        self.on_transmitted(frame);
        self.on_peer_frame(frame, self.now + self.config.link.delay);
    }

    /// Requests the link once the station is ready.
    fn pause(&mut self, adapter: usize, station: Station) {
        let state = &mut self.adapters[adapter].stations[station];
        state.is_idle = false;
        if state.ready_at <= self.now {
            self.on_ready(adapter, station);
        } else {
            self.events.schedule(state.ready_at, Event::Ready { adapter, station });
        }
    }

    pub(super) fn on_ready(&mut self, adapter: usize, station: Station) {
        let begin = self.adapters[adapter].link.ask(station, self.now);
        self.events.schedule(begin.at, Event::Begin { adapter, begin });
    }

    pub(super) fn on_begin(&mut self, adapter: usize, begin: Begin) {
        let station = begin.station;
        let Adapter { link, stations, .. } = &mut self.adapters[adapter];
        let Some(frame) = stations[station].queue.front() else { return };
        let frame_time = self.config.link.frame_time(frame.len);
        match link.begin(begin, frame_time, &mut self.rng) {
            Action::None => {}
            Action::Start { ends, other } => {
                let transmission = stations[station].transmission;
                self.events.schedule(ends, Event::Sent { adapter, station, transmission });
                if let Some(begin) = other {
                    self.events.schedule(begin.at, Event::Begin { adapter, begin });
                }
            }
            Action::Collision { retry, gave_up } => (0..STATIONS).for_each(|station| {
                self.adapters[adapter].stations[station].transmission += 1;
                self.continue_at(adapter, station, retry[station], gave_up[station]);
            }),
        }
    }

    /// After a transmission or a collision, lets a station request the link at `ready_at`, for the first frame in its
    /// queue. After a collision, the first frame is the frame that collided. If the station gave up this frame, the
    /// frame is removed from the queue and lost.
    fn continue_at(&mut self, adapter: usize, station: Station, ready_at: Time, gave_up: bool) {
        let state = &mut self.adapters[adapter].stations[station];
        let given_up = if gave_up { state.queue.pop_front() } else { None };
        (state.ready_at, state.is_idle) = (ready_at, true);
        if !state.queue.is_empty() {
            self.pause(adapter, station);
        }
        if let Some(frame) = given_up {
            self.lose_frame(&frame, Place::Sender);
            if station == HOST {
                self.complete(frame);
            }
        }
    }

    pub(super) fn on_sent(&mut self, adapter: usize, station: Station, transmission: u64) {
        let Adapter { link, stations, .. } = &mut self.adapters[adapter];
        let state = &mut stations[station];
        if state.transmission != transmission {
            return;
        }
        state.transmission += 1;
        let Some(frame) = state.queue.pop_front() else { return };
        let ready_at = self.now + state.gap.max(self.config.link.gap());
        self.counts.line_busy[station] += self.config.link.frame_time(frame.len);
        link.sent(station, self.now);
        self.continue_at(adapter, station, ready_at, false);
        self.events.schedule(self.now + self.config.link.delay, Event::Arrive(1 - station, frame));
        if station == HOST {
            self.on_transmitted(frame);
        }
    }
}
