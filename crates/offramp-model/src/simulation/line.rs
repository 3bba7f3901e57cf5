//! Who sends when: the two stations and the line between them.

use super::{Event, Frame, HOST, PEER, Simulation};
use crate::link::{Action, STATIONS, Station};
use crate::time::{Span, Time};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has nothing to send.
    Idle,
    /// It waits until it may ask for the line.
    Pausing,
    /// It waits for the line, or sends.
    Contending,
}

/// A station: the frames that it is to send.
#[derive(Debug)]
pub(super) struct StationState {
    queue: VecDeque<Frame>,
    phase: Phase,
    gap: Span,
    ready_at: Time,
    /// Which transmission is the one under way; a collision ends it.
    transmission: u64,
}

impl StationState {
    pub(super) fn new(gap: Span) -> Self {
        Self { queue: VecDeque::new(), phase: Phase::Idle, gap, ready_at: Time::START, transmission: 0 }
    }

    /// When it may send the next frame.
    pub(super) fn free_at(&self) -> Time {
        self.ready_at
    }
}

impl Simulation {
    /// A frame for a station to send.
    pub(super) fn send(&mut self, station: Station, frame: Frame) {
        if self.config.link.full_duplex {
            return self.send_alone(station, frame);
        }
        let state = &mut self.stations[station];
        state.queue.push_back(frame);
        if state.phase == Phase::Idle {
            self.pause(station);
        }
    }

    /// With a way of its own, a station sends each frame as soon as the one before it and its gap are over: the moments
    /// are known at once.
    fn send_alone(&mut self, station: Station, frame: Frame) {
        let taken = self.config.link.frame_time(frame.len);
        let gap = self.config.link.gap();
        let state = &mut self.stations[station];
        let over = state.ready_at.max(self.now) + taken;
        state.ready_at = over + state.gap.max(gap);
        self.counts.line_busy[station] += taken;
        if station == HOST {
            self.events.schedule(over, Event::Left(frame));
        } else {
            self.events.schedule(over + self.config.link.delay, Event::Arrive(HOST, frame));
        }
    }

    /// A frame of the host has left on a way of its own.
    pub(super) fn on_left(&mut self, frame: Frame) {
        self.on_transmitted(frame);
        self.on_peer_frame(frame, self.now + self.config.link.delay);
    }

    /// The station asks for the line as soon as it may.
    fn pause(&mut self, station: Station) {
        let state = &mut self.stations[station];
        state.phase = Phase::Pausing;
        if state.ready_at <= self.now {
            self.on_ready(station);
        } else {
            self.events.schedule(state.ready_at, Event::Ready(station));
        }
    }

    pub(super) fn on_ready(&mut self, station: Station) {
        self.stations[station].phase = Phase::Contending;
        let action = self.link.on_ready(station, self.now, &mut self.rng);
        self.act(action);
    }

    pub(super) fn on_free(&mut self, station: Station) {
        let action = self.link.on_free(station, self.now, &mut self.rng);
        self.act(action);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::None => {}
            Action::Start(station) => self.begin_transmission(station),
            Action::Collision { free, retry } => self.collide(free, retry),
        }
    }

    fn begin_transmission(&mut self, station: Station) {
        let state = &mut self.stations[station];
        let Some(frame) = state.queue.front() else { return };
        let config = self.link.config();
        // On a shared cable the line is not free before the last bit has come to its end.
        let delay = if config.full_duplex { Span::ZERO } else { config.delay };
        let sent = Event::Sent { station, transmission: state.transmission };
        self.events.schedule(self.now + config.frame_time(frame.len) + delay, sent);
    }

    fn collide(&mut self, free: Time, retry: [Option<Time>; STATIONS]) {
        for (station, retry) in retry.into_iter().enumerate() {
            let state = &mut self.stations[station];
            state.transmission += 1;
            let given_up = if retry.is_none() { state.queue.pop_front() } else { None };
            state.ready_at = retry.unwrap_or(free);
            if state.queue.is_empty() {
                state.phase = Phase::Idle;
            } else {
                self.pause(station);
            }
            if station == HOST
                && let Some(frame) = given_up
            {
                self.complete(frame);
            }
        }
        self.events.schedule(free, Event::Free(HOST));
    }

    pub(super) fn on_sent(&mut self, station: Station, transmission: u64) {
        let state = &mut self.stations[station];
        if state.transmission != transmission {
            return;
        }
        state.transmission += 1;
        let Some(frame) = state.queue.pop_front() else { return };
        state.ready_at = self.now + state.gap;
        let has_more = !state.queue.is_empty();
        state.phase = Phase::Idle;
        self.counts.line_busy[station] += self.link.config().frame_time(frame.len);
        let free = self.link.on_sent(station, self.now);
        let state = &mut self.stations[station];
        if has_more && state.ready_at <= free {
            // It would ask at the moment at which the line is free, and not before.
            state.phase = Phase::Contending;
            self.link.wait(station);
        } else if has_more {
            self.pause(station);
        }
        self.events.schedule(free, Event::Free(station));
        if station == HOST {
            self.on_transmitted(frame);
        }
        self.deliver(station, frame);
    }

    fn deliver(&mut self, from: Station, frame: Frame) {
        let to = if from == HOST { PEER } else { HOST };
        self.on_arrive(to, frame);
    }

    pub(super) fn on_arrive(&mut self, station: Station, frame: Frame) {
        if station == HOST { self.on_host_frame(frame) } else { self.on_peer_frame(frame, self.now) }
    }
}
