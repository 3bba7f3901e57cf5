//! The state of a queue pair, and changes requested by the frontend.

use super::statistics::Statistics;
use super::vring::{PortVring, RingState};
use crate::vhost_user::counters::QueueCounters;
use crate::vhost_user::filter::Filter;
use crate::vhost_user::rss::Rss;
use crate::vhost_user::{features, rarp};
use crate::vnet_hdr::HEADER_LEN;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::port::InterruptCounts;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::RoomPiece;
use offramp_virtio::control::statistics::StatisticsTypes;
use offramp_virtio::dirty_log::DirtyLog;
use offramp_virtio::inflight::Part;
use offramp_virtio::memory::GuestMemory;
use offramp_virtio::notifier::Event;
use offramp_virtio::ring::{BadRing, Chain, Direction, RingOptions, RingPlace};
use offramp_virtio::vring::VringSetup;
use std::sync::Arc;

/// A ring of a queue pair (virtio 1.3, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vhost_user) enum Side {
    /// `receiveq`: the guest receives.
    Receive,
    /// `transmitq`: the guest transmits.
    Transmit,
}

impl Side {
    /// Returns the ring and the queue pair that a vring index denotes.
    pub(crate) fn of(vring: usize) -> (Self, usize) {
        (if vring.is_multiple_of(2) { Self::Receive } else { Self::Transmit }, vring / 2)
    }
}

/// The parameters for starting a ring.
#[derive(Debug)]
pub(in crate::vhost_user) struct Start {
    /// The negotiated features.
    pub features: u64,
    pub place: RingPlace,
    pub base: u32,
    pub kick: Option<Event>,
    pub is_logged: bool,
    /// The record of a packed ring's position in the inflight region, which outlives this backend.
    pub inflight: Option<Part>,
}

/// The data that the port reads and counts from a transmit chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reads {
    /// Only the frame, because the guest negotiated no transmit offload.
    #[default]
    Frames,
    /// The frame and the offload request in its header.
    Requests,
    /// The frame and the offload request in its header, both counted in the guest's statistics.
    Counted,
}

/// The state of a queue, owned by the queue's thread. The frontend's changes arrive through the mailbox.
#[derive(Debug)]
pub(in crate::vhost_user) struct QueueState {
    memory: Arc<GuestMemory>,
    pub(super) log: Option<Arc<DirtyLog>>,
    pub(super) header_len: usize,
    pub(super) is_mergeable: bool,
    /// True if buffers must be returned in the order of the available ring.
    pub(super) is_in_order: bool,
    pub(super) offloads: Offloads,
    pub(super) reads: Reads,
    /// The guest's statistics. `None` unless the guest negotiated statistics.
    pub(super) statistics: Option<Box<Statistics>>,
    /// Direction of the transmit ring. For a control queue, the direction is `Control`, and the receive ring is unused.
    transmit_direction: Direction,
    /// The port's moderation, for rings without coalescing settings of the guest.
    moderation: ModerationConfig,
    pub(super) receive: PortVring,
    pub(super) transmit: PortVring,
    /// True if the receive ring ran out of buffers in this batch. The ring is not polled again in this batch: each poll
    /// takes the cache line of the ring's index from the guest and slows the refill.
    pub(super) out_of_buffers: bool,
    /// Number of receive chains returned unused in this batch.
    pub(super) returned_unused: usize,
    /// The memory lent by the last call of [`Self::room`].
    pub(super) room: Vec<RoomPiece>,
    /// The chain of the last fetched frame, if the frame's payload stays in the guest's memory.
    pub(super) kept: Option<Chain>,
    /// Cost of the last fetch in addition to the frame's own bytes, in the unit of
    /// [`tx_cost_bytes`](offramp_adapter::port::HostPort::tx_cost_bytes). A fetch without a frame can also have a cost.
    pub(super) tx_cost_bytes: usize,
    /// The guest's receive filter. If `None`, the guest receives every frame.
    pub(super) filter: Option<Arc<Filter>>,
    /// The guest's hash and steering settings. If `None`, the port steers the flows.
    pub(super) rss: Option<Arc<Rss>>,
    /// The frame that announces the guest to switches; sent before the guest's next frame.
    pub(super) announcement: Option<[u8; rarp::FRAME_LEN]>,
    pub(super) counters: Arc<QueueCounters>,
}

impl QueueState {
    pub(crate) fn new(counters: Arc<QueueCounters>) -> Self {
        Self {
            memory: Arc::default(),
            log: None,
            header_len: HEADER_LEN,
            is_mergeable: false,
            is_in_order: false,
            offloads: Offloads::empty(),
            reads: Reads::default(),
            statistics: None,
            transmit_direction: Direction::Transmit,
            moderation: ModerationConfig::default(),
            receive: PortVring::default(),
            transmit: PortVring::default(),
            out_of_buffers: false,
            returned_unused: 0,
            room: Vec::new(),
            kept: None,
            tx_cost_bytes: 0,
            filter: None,
            rss: None,
            announcement: None,
            counters,
        }
    }

    /// Returns the state of a control queue: its ring is the transmit ring.
    pub(crate) fn of_commands(counters: Arc<QueueCounters>) -> Self {
        let mut state = Self::new(counters);
        state.transmit_direction = Direction::Control;
        state
    }

    /// Stops both rings and clears this frontend's settings.
    pub(crate) fn reset(&mut self) {
        for side in [Side::Receive, Side::Transmit] {
            self.stop(side);
            self.set_call(side, None);
            self.set_err(side, None);
            self.forget_enabled(side);
            self.coalesce(side, None);
        }
        self.set_filter(None);
        self.set_rss(None);
        self.set_log(None);
        self.announce(None);
        self.set_features(0);
        self.set_memory(Arc::default());
    }

    fn side(&mut self, side: Side) -> &mut PortVring {
        match side {
            Side::Receive => &mut self.receive,
            Side::Transmit => &mut self.transmit,
        }
    }

    /// Applies the negotiated features.
    pub(crate) fn set_features(&mut self, negotiated: u64) {
        self.header_len = features::header_len(negotiated);
        self.is_mergeable = negotiated & features::MRG_RXBUF != 0;
        self.is_in_order = negotiated & features::IN_ORDER != 0;
        self.offloads = features::offloads(negotiated);
        if self.statistics.is_none() {
            (self.receive.notified, self.transmit.notified) = (0, 0);
        }
        self.statistics =
            (negotiated & features::DEVICE_STATS != 0).then(|| self.statistics.take().unwrap_or_default());
        self.reads = match self.offloads.intersects(Offloads::TX) {
            _ if self.statistics.is_some() => Reads::Counted,
            true => Reads::Requests,
            false => Reads::Frames,
        };
        self.inspect();
    }

    /// Updates whether received frames are inspected.
    fn inspect(&mut self) {
        if self.receive.state.is_enabled() {
            self.set_enabled(Side::Receive, true);
        }
    }

    /// Returns the statistics of both rings by type. Returns `None` if the guest has not negotiated statistics.
    pub(crate) fn all_statistics(&self) -> Option<Vec<(StatisticsTypes, Vec<u64>)>> {
        let statistics = self.statistics.as_ref()?;
        let of_rings = [(StatisticsTypes::RX, &self.receive), (StatisticsTypes::TX, &self.transmit)];
        let kinds = of_rings.into_iter().flat_map(|(kinds, ring)| kinds.iter().map(|kind| (kind, ring.notified)));
        Some(kinds.map(|(kind, notified)| (kind, statistics.counters(kind, notified))).collect())
    }

    /// Returns the counters of events other than frames.
    pub(crate) fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.counters)
    }

    /// Sets the guest memory for rings started later. Running rings use the old memory until their restart.
    pub(crate) fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.memory = memory;
    }

    pub(crate) fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        self.log = log;
    }

    /// Queues a frame to be sent as if from the guest. `None` cancels a queued frame.
    pub(crate) fn announce(&mut self, frame: Option<[u8; rarp::FRAME_LEN]>) {
        self.announcement = frame;
    }

    /// Starts a ring with the current memory and the features in `start`.
    pub(crate) fn start(&mut self, side: Side, start: Start) -> Result<(), BadRing> {
        let Start { features: negotiated, place, base, kick, is_logged, inflight } = start;
        let is_on = |feature: u64| negotiated & feature != 0;
        let options = RingOptions {
            event_idx: is_on(features::EVENT_IDX),
            indirect: is_on(features::INDIRECT_DESC),
            direction: match side {
                Side::Receive => Direction::Receive,
                Side::Transmit => self.transmit_direction,
            },
        };
        let (memory, log) = (Arc::clone(&self.memory), self.log.clone());
        let is_packed = is_on(features::RING_PACKED);
        let setup = VringSetup { memory, place, is_packed, options, base, kick, is_logged, inflight };
        self.side(side).start(setup, log.as_deref())
    }

    /// Stops a ring. Returns the ring's base, or `None` if the ring did not run.
    pub(crate) fn stop(&mut self, side: Side) -> Option<u32> {
        self.side(side).is_in_use = false;
        self.pause(side)
    }

    /// Stops a ring before an immediate restart, but leaves it marked as in use.
    pub(crate) fn pause(&mut self, side: Side) -> Option<u32> {
        let (log, counters) = (self.log.clone(), Arc::clone(&self.counters));
        self.side(side).pause(log.as_deref(), &counters)
    }

    /// Enables or disables a ring. Received frames are published before a receive ring is disabled, because no frame
    /// must arrive after the answer that confirms the change (requirement V57 in `docs/vhost-user.md`).
    pub(crate) fn set_enabled(&mut self, side: Side, is_enabled: bool) {
        if side == Side::Receive && !is_enabled {
            self.publish_receive();
        }
        self.side(side).state = match is_enabled {
            true if side == Side::Receive
                && (self.filter.is_some() || self.statistics.is_some() || self.reports_hashes()) =>
            {
                RingState::Inspecting
            }
            true => RingState::Enabled,
            false => RingState::Disabled,
        };
    }

    /// Sets the guest's hash and steering settings. If `None`, the port steers the flows.
    pub(crate) fn set_rss(&mut self, rss: Option<Arc<Rss>>) {
        self.rss = rss;
        self.inspect();
    }

    /// Returns whether the guest requests the hash of each frame.
    pub(super) fn reports_hashes(&self) -> bool {
        self.rss.is_some() && self.header_len > HEADER_LEN
    }

    /// Sets the guest's receive filter. If `None`, the guest receives every frame.
    pub(crate) fn set_filter(&mut self, filter: Option<Arc<Filter>>) {
        self.filter = filter;
        self.inspect();
    }

    /// Clears the enabled state of a ring, for a reset or another frontend.
    pub(crate) fn forget_enabled(&mut self, side: Side) {
        self.side(side).state = RingState::Unset;
    }

    pub(crate) fn set_logged(&mut self, side: Side, is_logged: bool) {
        self.side(side).vring.set_logged(is_logged);
    }

    pub(crate) fn set_call(&mut self, side: Side, call: Option<Event>) {
        self.side(side).vring.set_call(call);
    }

    pub(crate) fn set_err(&mut self, side: Side, err: Option<Event>) {
        self.side(side).vring.set_err(err);
    }

    /// Sets the port's moderation. Rings with coalescing settings of the guest keep those settings.
    pub(super) fn moderate(&mut self, config: &ModerationConfig) {
        self.moderation = *config;
        for side in [Side::Receive, Side::Transmit] {
            let wish = self.side(side).wish;
            self.coalesce(side, wish);
        }
    }

    /// Sets the guest's coalescing settings for a ring, which override the port's moderation. If `None`, the port's
    /// moderation applies.
    pub(crate) fn coalesce(&mut self, side: Side, wish: Option<Coalescing>) {
        let of_wish = |wish| ModerationConfig { policy: Policy::Coalescing(wish), ..self.moderation };
        let config = wish.map_or(self.moderation, of_wish);
        let counters = Arc::clone(&self.counters);
        let ring = self.side(side);
        ring.wish = wish;
        ring.moderate(&config, &counters);
    }

    /// Sends notifications that are due now. Returns the number of notifications since the last call.
    #[inline]
    pub(super) fn notify_due(&mut self, now_ns: u64) -> InterruptCounts {
        if !(self.receive.moderation.is_off() && self.transmit.moderation.is_off()) {
            self.notify_moderated(now_ns);
        }
        InterruptCounts { receive: self.receive.take_made(), transmit: self.transmit.take_made() }
    }

    fn notify_moderated(&mut self, now_ns: u64) {
        let Self { receive, transmit, counters, .. } = self;
        let (received, sent) = (receive.moderation.note(now_ns), transmit.moderation.note(now_ns));
        receive.moderation.other_direction(sent.bytes);
        transmit.moderation.other_direction(received.bytes);
        if receive.moderation.is_deferred()
            && (receive.moderation.is_due(now_ns) || (received.frames > 0 && receive.is_running_out()))
        {
            receive.decide(Some(now_ns), counters);
        }
        if transmit.moderation.is_deferred() && (transmit.moderation.is_due(now_ns) || transmit.is_filling_up()) {
            transmit.decide(Some(now_ns), counters);
        }
    }

    /// Publishes all used chains at the end of a batch.
    pub(super) fn publish(&mut self) {
        self.out_of_buffers = false;
        self.returned_unused = 0;
        self.publish_receive();
        self.publish_transmit();
    }

    #[inline]
    pub(super) fn publish_receive(&mut self) {
        self.receive.publish(self.log.as_deref(), &self.counters);
    }

    #[inline]
    pub(super) fn publish_transmit(&mut self) {
        self.transmit.publish(self.log.as_deref(), &self.counters);
    }
}

impl Drop for QueueState {
    /// Sends the deferred notifications, because no other code sends these notifications after the drop.
    fn drop(&mut self) {
        self.moderation = ModerationConfig::default();
        self.coalesce(Side::Receive, None);
        self.coalesce(Side::Transmit, None);
    }
}
