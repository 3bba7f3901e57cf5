//! A learning switch among host ports, in one thread.
//!
//! The switch connects a guest with other guests, a TAP and an existing interface. Every port of the switch is a
//! [`HostPort`]. A port sends frames with offload requests (a partial checksum, a segmentation), and receives frames
//! with a checksum state. Between two ports, a frame is changed only where the receiver needs the change. A port uses
//! the offloads that the host accepts and the user allows.
//!
//! | frame | receiving port | treatment |
//! |---|---|---|
//! | super-frame | takes its kind (see below), and the segments fit the MTU | passed untouched |
//! | super-frame | does not take its kind, or it is UDP to be fragmented | segmented; checksums are written meanwhile |
//! | partial checksum, and a payload of at least 536 bytes, or of at least 8 bytes while the coalescer holds a frame | coalesces frames of its kind | completed and coalesced |
//! | partial checksum | honours checksum marks (`RX_CHECKSUM`) | passed untouched, marked as partial |
//! | partial checksum | does not honour checksum marks | completed |
//! | no request | honours checksum marks | verified, and coalesced if coalescing is on |
//! | no request | does not honour checksum marks | passed untouched, checksum state unknown |
//! | longer than the MTU | | lost at the port, `too_long` |
//!
//! The kinds are `RSC4`, `RSC6` and `RSC_UDP`; a super-frame with CWR also needs `RSC_ECN` or `RSC_ACCECN`.
//!
//! No frame overtakes another: before a frame bypasses the coalescer of its destination, the coalescer is flushed. If a
//! destination port has no room, the frames for that port are lost, and no other port is delayed. Ports take turns with
//! a budget. If a super-frame makes more frames than the budget allows, the next turn sends the remaining frames.
//! Frames for unknown destinations and for groups are sent to all other ports, up to a limit per ingress port. No frame
//! returns to its ingress port. Frames for a port at its receive limit wait in a queue, and delay no other port.
//!
//! With [`SwitchConfig::learning`] off, the switch is a link: two ports, and every frame is sent to the other port.

mod config;
mod control;
mod limit;
mod port;
mod reserved;
mod route;
mod stations;
mod turn;
mod view;

pub use config::{LINK_PORTS_MAX, PortConfig, SwitchConfig, UnknownUnicast};
pub use control::{Serving, SwitchControl, SwitchError, SwitchPort};
pub use limit::FloodLimit;
pub use reserved::{LinkProtocol, LinkProtocols, reserved, reserved_address};
pub use stations::KnownStation;
pub use view::{RESERVED_ADDRESSES, StationList, SwitchCounts};

use crate::moderation::ModerationConfig;
use crate::pipeline::Progress;
use crate::pipeline::budget::{FRAME_ALIGN, SCRATCH_LEN, Scratch};
use crate::port::HostPort;
use crate::stats::{Loss, QueueStats};
use control::Request;
use offramp_offload::frame::FrameBuffer;
use port::Port;
use stations::Stations;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;
use view::Reading;

/// Offset of the first sealed frame in its buffer, in bytes. The space before the frame is for a VLAN tag.
const SEALED_AT: usize = FRAME_ALIGN;
const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

/// A learning switch. The [module](self) describes the rules.
#[derive(Debug)]
pub struct Switch<P> {
    config: SwitchConfig,
    /// The ports by number, up to the highest number in use: numbers above it cost no time in a batch.
    ports: Vec<Option<Box<Port<P>>>>,
    stations: Stations,
    scratch: Scratch,
    /// Memory for sealed frames before their delivery to the destination ports.
    sealed: FrameBuffer<Scratch>,
    /// Index of the port that gets the first turn in the next batch.
    first: usize,
    /// Stops fetching from all ports.
    is_draining: bool,
    control: Arc<SwitchControl<P>>,
    serving: Arc<Serving>,
    /// Waker registered while the switch sleeps; changes of a port's link, moderation, limits, or associations and
    /// policy wake the switch.
    waker: Option<Waker>,
    /// Lists of stations that are being read.
    readings: Vec<Reading>,
}

impl<P: HostPort> Switch<P> {
    /// Creates a switch without ports.
    pub fn new(config: &SwitchConfig) -> Self {
        Self {
            config: *config,
            ports: Vec::new(),
            stations: Stations::new(config.stations_max, config.ageing_s),
            scratch: vec![0; SCRATCH_LEN].into(),
            sealed: FrameBuffer::new(vec![0; SEALED_AT + SCRATCH_LEN].into()),
            first: 0,
            is_draining: false,
            control: Arc::new(SwitchControl::new(config)),
            serving: Arc::default(),
            waker: None,
            readings: Vec::new(),
        }
    }

    /// Returns the handle that adds and removes ports from any thread.
    pub fn control(&self) -> &Arc<SwitchControl<P>> {
        &self.control
    }

    /// Returns the index of the port currently served, readable by any thread.
    pub fn serving(&self) -> &Arc<Serving> {
        &self.serving
    }

    /// Returns the open ports, each with `true` if the port is at its transmit limit. The frames of a port at its limit
    /// wait until [`Switch::next_deadline_ns`] at the latest, and need not wake the caller.
    pub fn hosts(&self) -> impl Iterator<Item = (&P, bool)> {
        let open = self.ports.iter().flatten().filter(|port| port.is_open());
        open.map(|port| (&port.host, port.source.plan.meter.opens_ns().is_some()))
    }

    /// Returns the open ports, for changes between batches.
    pub fn hosts_mut(&mut self) -> impl Iterator<Item = &mut P> {
        let serving = &self.serving;
        self.ports.iter_mut().flatten().filter(|port| port.is_open()).map(|port| {
            serving.enter(port.shared.index);
            &mut port.host
        })
    }

    /// Returns the host of the port with this number, open or closed.
    pub fn host(&self, index: usize) -> Option<&P> {
        Some(&self.ports.get(index)?.as_ref()?.host)
    }

    /// Returns the host of the port with this number, for changes between batches.
    pub fn host_mut(&mut self, index: usize) -> Option<&mut P> {
        Some(&mut self.ports.get_mut(index)?.as_mut()?.host)
    }

    /// Stops or resumes fetching from the ports. Fetched frames are delivered in either case.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Returns the number of frames waiting for the port with this number: for coalescing, an interrupt, or the port's
    /// limit.
    pub fn held(&self, index: usize) -> usize {
        let port = self.ports.get(index).and_then(Option::as_ref);
        port.map_or(0, |port| port.sink.deliver.held() + port.sink.hold.queued())
    }

    /// Returns the next deadline if no further frame arrives: of waiting frames, an interrupt, an association, or the
    /// end of a wait for a limit.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.ports.iter().flatten().filter(|port| port.is_open()).filter_map(|port| port.next_deadline_ns()).min()
    }

    /// Registers `waker`, which is woken when a port is added or removed. `waker` is also woken when a port's link,
    /// moderation, limits, or associations and policy change. The caller must poll once more before it sleeps.
    pub fn register(&mut self, waker: &Waker) {
        self.control.register(Some(waker));
        self.waker = Some(waker.clone());
        self.ports.iter().flatten().for_each(|port| port.shared.register(waker));
    }

    /// Cancels [`Switch::register`].
    pub fn unregister(&mut self) {
        self.control.register(None);
        self.waker = None;
        self.ports.iter().flatten().for_each(|port| port.shared.unregister());
    }

    /// Polls as [`Switch::poll_timed`] does, but measures neither the interrupt cost nor the duration of a turn.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        self.poll_timed(now_ns, &|| now_ns, &|| now_ns)
    }

    /// Gives every port one turn, then ends the batch. A port that closes is skipped from then on
    /// ([`SwitchPort::closed`]), and the other ports continue. `thread_time` returns the caller's processor time,
    /// nanoseconds from any moment; the time is read only where frames wait for moderation. `clock` is the clock of
    /// `now_ns`, and is read in long turns.
    pub fn poll_timed(&mut self, now_ns: u64, thread_time: &impl Fn() -> u64, clock: &impl Fn() -> u64) -> Progress {
        let requests = self.control.requests();
        let mut progress = Progress { moved: !requests.is_empty(), ..Progress::default() };
        for request in requests {
            match request {
                Request::Add(host, shared) => self.add(host, shared, now_ns),
                Request::Remove(shared) => self.remove(&shared, now_ns),
                Request::List(reading) => self.readings.push(reading),
            }
        }
        self.ports.iter_mut().flatten().filter(|port| port.is_open()).for_each(|port| port.begin_batch(now_ns));
        let count = self.ports.len();
        for nth in 0..count {
            progress = progress.and(self.turn((self.first + nth) % count, now_ns, clock));
        }
        let mut after = (1..=count).map(|n| (self.first + n) % count);
        self.first = after.find(|&next| self.ports[next].is_some()).unwrap_or(0);
        self.end_batch(now_ns, thread_time);
        progress.moved |= self.read_stations(now_ns);
        progress
    }

    /// Reads a part of a list of stations. Returns `false` if no list is requested.
    fn read_stations(&mut self, now_ns: u64) -> bool {
        let Some(mut reading) = self.readings.pop() else { return false };
        if reading.read(&self.stations, now_ns / NANOSECONDS_PER_SECOND) {
            reading.finish();
        } else {
            self.readings.push(reading);
        }
        true
    }

    fn end_batch(&mut self, now_ns: u64, clock: &impl Fn() -> u64) {
        for port in self.ports.iter_mut().flatten() {
            if port.is_open() {
                self.serving.enter(port.shared.index);
                port.end_batch(self.is_draining, &mut self.scratch, now_ns, clock);
            }
            if !port.is_open() {
                self.stations.forget(port.shared.index);
            }
            port.shared.stations.store(self.stations.len(port.shared.index), Relaxed);
        }
    }

    fn add(&mut self, host: P, shared: Arc<SwitchPort>, now_ns: u64) {
        self.stations.set_quota(shared.index, self.control.quota(&shared.config));
        if self.ports.len() <= shared.index {
            self.ports.resize_with(shared.index + 1, || None);
        }
        let floods = shared.config.flood_limit.filter(|_| self.config.learning).map(FloodLimit::bucket);
        if let Some(waker) = &self.waker {
            shared.register(waker);
        }
        let index = shared.index;
        self.stations.bind(index, &shared.security().mac_addresses);
        let mut port = Box::new(Port::new(host, shared, floods));
        port.begin_batch(now_ns);
        self.ports[index] = Some(port);
        self.share_stations();
    }

    /// Divides the table equally among the present ports, if the configuration requires equal shares.
    fn share_stations(&mut self) {
        let Some(share) = self.config.stations_max.checked_div(self.ports.iter().flatten().count()) else { return };
        if self.config.equal_shares {
            let there = self.ports.iter().enumerate().filter(|(_, port)| port.is_some());
            there.for_each(|(index, _)| self.stations.set_quota(index, share));
        }
    }

    fn remove(&mut self, shared: &Arc<SwitchPort>, now_ns: u64) {
        let index = shared.index;
        let Some(mut port) = self.ports.get_mut(index).and_then(Option::take) else { return };
        port.note_offloads();
        port.end_batch(true, &mut self.scratch, now_ns, &|| now_ns);
        port.with_outlet(|deliver, outlet| {
            deliver.release(outlet);
            deliver.flush(outlet, now_ns);
        });
        let mut queue = 0;
        while let Some(interrupts) = port.host.interrupts(queue) {
            // Deferred interrupts are sent now, because the port is no longer polled.
            interrupts.moderate(&ModerationConfig::default());
            queue += 1;
        }
        let stats = QueueStats::of(shared.queues(), || port.host.tx_queue());
        port.source.conclude(&stats.transmit, Loss::NoDestination);
        for pending in self.ports.iter_mut().flatten().filter_map(|other| other.source.pending.as_mut()) {
            if pending.to.ports.start == index {
                pending.advance();
            }
        }
        self.stations.forget(index);
        self.stations.bind(index, &[]);
        self.stations.set_quota(index, 0);
        shared.stations.store(0, Relaxed);
        let used = self.ports.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.ports.truncate(used);
        self.share_stations();
        // The host must be dropped before the port's number is released. After the release, another port may use the
        // number, and the caller that removed the port may assume that the host is dropped.
        drop(port);
        self.control.release(shared);
    }
}
