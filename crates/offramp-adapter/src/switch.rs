//! A learning switch among host ports, in one thread.
//!
//! It connects a guest with other guests, a TAP and an interface that exists: every side is
//! a [`HostPort`], which sends with what it asks for (a partial checksum, a segmentation) and is given
//! frames with what is known of them. Between two sides a frame is touched only as far as the receiver
//! needs it: what it accepts ∩ what the user allows decides, port by port.
//!
//! | a frame | for a port that | happens |
//! |---|---|---|
//! | super-frame | takes its kind (`RSC4`, `RSC6`, `RSC_UDP`, with CWR `RSC_ECN` too), and its segments fit the MTU | goes untouched |
//! | super-frame | does not; or it is UDP to be fragmented | is segmented; checksums are written on the way |
//! | partial checksum | honours checksum marks (`RX_CHECKSUM`) | goes untouched, marked as partial |
//! | partial checksum | is not | is completed |
//! | nothing asked | honours checksum marks | is verified, and coalesced if that is on too |
//! | nothing asked | is not | goes untouched, unknown |
//! | one that is longer than the MTU | | is lost there, `too_long` |
//!
//! Nothing overtakes: before a frame goes past the coalescer of its destination, the coalescer is flushed. A destination without room loses its own frames and holds nobody back. Ports take
//! turns with a budget; a super-frame that makes more frames than are left of it is continued in the
//! next turn. Frames of which the destination is not known, and those for groups, go to all other
//! ports, up to a limit per ingress port; no frame goes back to where it came from. A port that may receive no more at the
//! moment has a queue, and holds nobody back either.
//!
//! With [`SwitchConfig::learning`] off it is a link: two ports, and everything goes to the other one.

mod control;
mod limit;
mod stations;

pub use control::{LINK_PORTS_MAX, Serving, SwitchControl, SwitchError, SwitchPort};
pub use limit::FloodLimit;

use crate::config::MTU_DEFAULT;
use crate::limit::{TokenBucket, wire_bytes};
use crate::moderation::ModerationConfig;
use crate::pipeline::backlog::Backlog;
use crate::pipeline::deliver::{Budget, Deliver, FRAME_ALIGN, Lent, Outlet, SCRATCH_LEN, Scratch, Work};
use crate::pipeline::plan::{Plan, Planned};
use crate::port::{HostPort, PortError};
use crate::stats::Loss;
use crate::transmit::{Progress, lent};
use crate::vlan::{FrameVlan, PortVlans};
use control::Request;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::TxMeta;
use offramp_offload::segment::Segmenter;
use offramp_offload::vlan::TagChange;
use stations::{Station, Stations};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
/// Bytes that a turn carries between two looks at the clock: longer than that takes nothing that is worth a look.
const TIMED_BYTES: usize = 16 * 1024;
/// Where sealed frames begin: there is room for a tag before the first one.
const SEALED_AT: usize = FRAME_ALIGN;
/// The addresses that no bridge forwards, but for their last four bits (IEEE 802.1D 7.12.6).
const RESERVED_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00];
const RESERVED_LAST_MASK: u8 = 0xf0;

/// What becomes of a frame for a station of which nobody knows where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownUnicast {
    /// It goes to all other ports.
    #[default]
    Flood,
    /// It is lost: no other station sees it.
    Drop,
}

/// What a switch is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Learn which station is where. Off: a link of two ports, on which every frame passes, reserved
    /// addresses too, without a flood limit.
    pub learning: bool,
    /// Most ports.
    pub ports_max: usize,
    /// Stations that the table has room for; each port's quota is set aside from them.
    pub stations_max: usize,
    /// Divide `stations_max` equally among the ports that are there, whatever [`PortConfig::stations_max`] says.
    pub equal_shares: bool,
    /// Seconds after which an idle station is forgotten (IEEE 802.1D 7.9.2: 300).
    pub ageing_s: u64,
    /// What becomes of a frame for an unknown station.
    pub unknown_unicast: UnknownUnicast,
    /// Frames that a port may send, or have segmented, in one turn.
    pub turn_frames: usize,
    /// Bytes that a port may send in one turn. The frame that exceeds them still goes, and the port's next turns are
    /// shorter by that much. Pieces of a frame, refused frames, and fetches that bring no frame count, too
    /// ([`HostPort::tx_cost_bytes`]).
    pub turn_bytes: usize,
    /// How long a turn may take, nanoseconds: a port whose frames take longer than their bytes say ends its turn earlier.
    pub turn_ns: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            learning: true,
            ports_max: 64,
            stations_max: 8192,
            equal_shares: false,
            ageing_s: 300,
            unknown_unicast: UnknownUnicast::Flood,
            turn_frames: 256,
            turn_bytes: 256 * 1024,
            turn_ns: 200_000,
        }
    }
}

impl SwitchConfig {
    /// A link: two ports, everything goes to the other one.
    pub fn link() -> Self {
        Self { learning: false, ports_max: LINK_PORTS_MAX, stations_max: 0, ..Self::default() }
    }
}

/// What a port is added with.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// IP bytes that a frame for this port may carry.
    pub mtu: usize,
    /// Receive offloads that the user allows; may be changed later.
    pub offloads: Offloads,
    /// The port reaches only ports that are not isolated; may be changed later.
    pub isolated: bool,
    /// Stations that may be known behind this port. One more displaces the one that has been idle longest.
    pub stations_max: usize,
    /// Frames from this port that may go to every port; `None`: without limit.
    pub flood_limit: Option<FloodLimit>,
    /// How frames for this port are coalesced; `rx_csum` is the port's own.
    pub coalesce: CoalesceConfig,
    /// When the port's host is interrupted; where handing over is the interrupt, frames wait for it. May be changed
    /// later.
    pub moderation: ModerationConfig,
    /// Receive queues of the host that frames are spread over ([`RxMeta::queue`](offramp_offload::meta::RxMeta::queue)).
    pub queues: u16,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_DEFAULT,
            offloads: Offloads::all(),
            isolated: false,
            stations_max: 128,
            flood_limit: Some(FloodLimit::default()),
            coalesce: CoalesceConfig::default(),
            moderation: ModerationConfig::default(),
            queues: 1,
        }
    }
}

/// A frame on its way.
#[derive(Debug)]
struct Pending {
    planned: Planned,
    /// Bytes of the frame that was planned.
    frame_len: usize,
    vlan: FrameVlan,
    /// The ports that are still to be visited.
    to: Range<usize>,
    /// Frames of it that were handed to a port; the most where there was more than one.
    frames_handed: usize,
    /// The rest of a segmentation for the next port, if it has begun.
    segments: Option<Segmenter>,
}

impl Pending {
    /// Goes on to the next port, whether or not the frame was brought to this one as a whole.
    fn advance(&mut self) {
        self.note_segments();
        self.to.start += 1;
    }

    /// Counts what was written of a segmentation as handed; the rest is not written any more.
    fn note_segments(&mut self) {
        if let Some(rest) = self.segments.take() {
            self.frames_handed = self.frames_handed.max(self.planned.frames_left() - rest.frames_left());
        }
    }
}

#[derive(Debug)]
struct Port<P> {
    host: P,
    shared: Arc<SwitchPort>,
    vlans: PortVlans,
    plan: Plan,
    deliver: Deliver,
    backlog: Backlog,
    floods: Option<TokenBucket>,
    /// Bytes by which its last turn was too long.
    debt_bytes: usize,
    pending: Option<Pending>,
    /// Changes of the moderation that were taken over.
    moderation_changes: u32,
    /// Set for a host that sees frames before it is interrupted.
    next_interrupt_ns: Option<u64>,
}

impl<P: HostPort> Port<P> {
    /// Takes over settings that have changed.
    fn begin_batch(&mut self, now_ns: u64) {
        let Self { shared, plan, deliver, backlog, pending, .. } = self;
        deliver.take_over(shared, now_ns);
        let planned = pending.as_ref().map(|pending| &pending.planned);
        plan.take_over(shared, planned, shared.mtu(), false, now_ns);
        if deliver.interrupts_by_handing_over
            && let Some(moderation) = shared.changed_moderation(&mut self.moderation_changes)
        {
            backlog.set(moderation, &shared.stats().receive);
        }
        if !self.plan.is_link_on {
            conclude(self, Loss::LinkOff);
        }
    }

    /// Hands frames over by `work`, and notes what became of the host.
    fn with_outlet<R>(&mut self, work: impl FnOnce(&mut Deliver, &mut Outlet<'_, P>) -> R) -> R {
        let mut outlet = outlet(&mut self.host, &self.shared);
        let done = work(&mut self.deliver, &mut outlet);
        self.deliver.note(&mut outlet);
        close(&self.shared, outlet.closed);
        done
    }

    /// Brings one frame of another port, or queues it until it may pass; whether that is done.
    fn push(&mut self, mut lent: Lent<'_>, segments: &mut Option<Segmenter>, work: &mut Work<'_>) -> bool {
        // The rest of a super-frame follows what was delivered of it.
        if segments.is_none() {
            if !self.takes_at_once(work.now_ns) {
                work.budget.spend(1, lent.frame.bytes().len());
                self.queue(&lent.frame, lent.frames(), work);
                return true;
            }
            self.deliver.meter.spend_frame(&lent.frame, lent.frames());
        }
        self.with_outlet(|deliver, outlet| deliver.push(outlet, &mut lent, segments, work))
    }

    /// How the tag of a frame changes for the host.
    ///
    /// # Errors
    /// Why the host does not get it.
    #[inline]
    fn change_for(&self, vlan: FrameVlan) -> Result<TagChange, Loss> {
        if self.plan.is_link_on { self.vlans.change_for(vlan) } else { Err(Loss::LinkOff) }
    }

    /// Counts frames that the host cannot be given.
    fn lose(&self, reason: Loss, frames: usize, work: &mut Work<'_>) {
        work.budget.spend(1, 0);
        let stats = &self.shared.stats().receive;
        stats.frames_in.add(frames as u64);
        stats.lose(reason, frames);
    }

    /// Brings one frame as it would stand on a wire. Other ports may get it, too.
    fn push_received(&mut self, frame: &mut Frame<'_>, work: &mut Work<'_>) {
        if !self.takes_at_once(work.now_ns) {
            return self.queue(frame, 1, work);
        }
        self.deliver.meter.spend_frame(frame, 1);
        self.with_outlet(|deliver, outlet| deliver.push_shared(outlet, frame, work));
    }

    /// Whether a frame need not wait, for moderation or the limit.
    #[inline]
    fn takes_at_once(&mut self, now_ns: u64) -> bool {
        self.backlog.is_passed_by() && self.deliver.meter.is_open(now_ns)
    }

    /// Queues a frame that makes `frames`, unless the limit has filled the queue.
    fn queue(&mut self, frame: &Frame<'_>, frames: usize, work: &mut Work<'_>) {
        if self.is_queue_full() {
            self.release_backlog(false, work.scratch, work.now_ns, &|| work.now_ns);
        }
        if self.is_queue_full() {
            self.lose_to_limit(frame, frames);
        } else {
            self.backlog.push(frame, work.now_ns);
        }
    }

    fn lose_to_limit(&mut self, frame: &Frame<'_>, frames: usize) {
        self.with_outlet(|_, outlet| outlet.lose(Loss::RateLimit, frames));
        self.host.rx_lost_to_limit(frame, frames, wire_bytes(frame, frames));
    }

    /// Whether the limit leaves no room for one more frame. Without a limit, the end of the batch makes room.
    fn is_queue_full(&self) -> bool {
        let Self { deliver: Deliver { meter, .. }, backlog, .. } = self;
        meter.is_limited() && (backlog.is_full() || meter.delays_too_long(backlog.len(), backlog.bytes()))
    }

    /// Hands over what waits and is due, as far as the limit allows; `is_forced`: all of it.
    fn release_backlog(&mut self, is_forced: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        while self.backlog.is_due(now_ns, is_forced || self.is_queue_full())
            && (is_forced || self.deliver.meter.is_open(now_ns))
        {
            self.release_due(is_forced, scratch, now_ns, clock);
        }
    }

    fn release_due(&mut self, is_forced: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        let Self { host, shared, plan, deliver, backlog, .. } = self;
        let is_link_on = plan.is_link_on;
        let mut outlet = outlet(host, shared);
        let mut budget = Budget::UNLIMITED;
        let mut work = Work { scratch, budget: &mut budget, now_ns };
        backlog.release(&shared.stats().receive, now_ns, clock, |frame| {
            if !is_forced && !deliver.meter.is_open(now_ns) {
                return false;
            }
            // It was planned once already: on these bytes the same can be done.
            if let Ok(plan) = plan.in_the_clear(&frame) {
                if !is_link_on {
                    outlet.lose(Loss::LinkOff, plan.frames_left());
                    return true;
                }
                deliver.meter.spend_frame(&frame, plan.frames_left());
                deliver.push(&mut outlet, &mut Lent { frame, plan: &plan }, &mut None, &mut work);
            }
            true
        });
        deliver.note(&mut outlet);
        close(shared, outlet.closed);
    }

    /// Ends a batch: the host sees what it was handed, and is interrupted where that is due.
    fn end_batch(&mut self, is_draining: bool, scratch: &mut Scratch, now_ns: u64, clock: &impl Fn() -> u64) {
        self.release_backlog(is_draining, scratch, now_ns, clock);
        if !self.deliver.is_idle() {
            self.with_outlet(|deliver, outlet| deliver.end_batch(outlet, now_ns));
        }
        if let Some(interrupts) = self.host.interrupts() {
            let seen = &mut self.moderation_changes;
            self.next_interrupt_ns = self.shared.send_interrupts(0, interrupts, seen, now_ns);
        }
    }
}

impl<P> Port<P> {
    fn is_open(&self) -> bool {
        self.shared.closed().is_none()
    }

    /// Whether frames of that VLAN go from this port to the other one.
    fn reaches(&self, other: &Self, vlan: FrameVlan) -> bool {
        other.is_in(vlan) && !(self.shared.is_isolated() && other.shared.is_isolated())
    }

    /// Whether the port is open, and gets frames of that VLAN.
    fn is_in(&self, vlan: FrameVlan) -> bool {
        self.is_open() && self.vlans.takes(vlan)
    }

    /// When something is due without any new frame.
    fn next_deadline_ns(&self) -> Option<u64> {
        let limit_ns = self.deliver.meter.opens_ns().unwrap_or(0);
        let backlog_ns = self.backlog.next_due_ns().map(|at| at.max(limit_ns));
        let held_ns = self.deliver.next_deadline_ns().into_iter().chain(backlog_ns);
        held_ns.chain(self.plan.next_deadline_ns()).chain(self.next_interrupt_ns).min()
    }
}

fn outlet<'a, P: HostPort>(host: &'a mut P, shared: &'a SwitchPort) -> Outlet<'a, P> {
    Outlet::new(host, &shared.stats().receive, shared.offloads(), shared.mtu())
}

/// Notes why a port is of no more use, if it is so.
fn close(shared: &SwitchPort, error: Option<PortError>) {
    if let Some(PortError::Closed(errno)) = error {
        shared.close(errno);
    }
}

/// The switch. See the [module](self) for the rules.
#[derive(Debug)]
pub struct Switch<P> {
    config: SwitchConfig,
    /// As long as the highest number in use: a turn costs nothing for ports that may come.
    ports: Vec<Option<Port<P>>>,
    stations: Stations,
    scratch: Scratch,
    /// Sealed frames before they are brought to each port.
    sealed: FrameBuffer<Scratch>,
    /// The port whose turn comes first in the next batch.
    first: usize,
    /// Nothing more is fetched from any port.
    is_draining: bool,
    control: Arc<SwitchControl<P>>,
    serving: Arc<Serving>,
    /// Woken by changes of the ports' settings while the switch sleeps.
    waker: Option<Waker>,
}

impl<P: HostPort> Switch<P> {
    /// A switch without ports.
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
        }
    }

    /// How ports are added and removed, from any thread.
    pub fn control(&self) -> &Arc<SwitchControl<P>> {
        &self.control
    }

    /// Which port it serves, for any thread.
    pub fn serving(&self) -> &Arc<Serving> {
        &self.serving
    }

    /// The ports that are open, and whether each has sent as much as its limit allows. Such a port's frames wait until
    /// [`Switch::next_deadline_ns`] at the latest, and need not wake the caller.
    pub fn hosts(&self) -> impl Iterator<Item = (&P, bool)> {
        let open = self.ports.iter().flatten().filter(|port| port.is_open());
        open.map(|port| (&port.host, port.plan.meter.opens_ns().is_some()))
    }

    /// The ports that are open, to change them between batches.
    pub fn hosts_mut(&mut self) -> impl Iterator<Item = &mut P> {
        let serving = &self.serving;
        self.ports.iter_mut().flatten().filter(|port| port.is_open()).map(|port| {
            serving.enter(port.shared.index);
            &mut port.host
        })
    }

    /// The port of that number, open or not.
    pub fn host(&self, index: usize) -> Option<&P> {
        Some(&self.ports.get(index)?.as_ref()?.host)
    }

    /// The port of that number, to change it between batches.
    pub fn host_mut(&mut self, index: usize) -> Option<&mut P> {
        Some(&mut self.ports.get_mut(index)?.as_mut()?.host)
    }

    /// Sets whether frames are still fetched from the ports. What was fetched is delivered in either case.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Frames that wait for the port of that number: to be coalesced, until an interrupt is due, or for the port's limit.
    pub fn held(&self, index: usize) -> usize {
        let port = self.ports.get(index).and_then(Option::as_ref);
        port.map_or(0, |port| port.deliver.held() + port.backlog.len())
    }

    /// When something is due without any new frame: held frames, an interrupt, an association, the end of a wait for a
    /// limit.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.ports.iter().flatten().filter(|port| port.is_open()).filter_map(Port::next_deadline_ns).min()
    }

    /// Wakes `waker` when a port is added or removed, or its settings change. The caller must poll once more before it
    /// sleeps.
    pub fn register(&mut self, waker: &Waker) {
        self.control.register(Some(waker));
        self.waker = Some(waker.clone());
        self.ports.iter().flatten().for_each(|port| port.shared.register(waker));
    }

    /// Takes back [`Switch::register`].
    pub fn unregister(&mut self) {
        self.control.register(None);
        self.waker = None;
        self.ports.iter().flatten().for_each(|port| port.shared.unregister());
    }

    /// As [`Switch::poll_timed`], but does not measure what an interrupt costs, nor how long a turn takes.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        self.poll_timed(now_ns, &|| now_ns, &|| now_ns)
    }

    /// Gives every port one turn, then ends the batch. A port that is found closed is left alone from
    /// then on ([`SwitchPort::closed`]); the others go on. `thread_time` is the processor's time that the caller has had,
    /// nanoseconds from any moment; it is read only where frames wait for moderation. `clock` is the clock of `now_ns`; it
    /// is read in long turns.
    pub fn poll_timed(&mut self, now_ns: u64, thread_time: &impl Fn() -> u64, clock: &impl Fn() -> u64) -> Progress {
        let requests = self.control.requests();
        let mut progress = Progress { moved: !requests.is_empty(), ..Progress::default() };
        for request in requests {
            match request {
                Request::Add(host, shared) => self.add(host, shared, now_ns),
                Request::Remove(shared) => self.remove(&shared, now_ns),
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
        progress
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

    fn add(&mut self, mut host: P, shared: Arc<SwitchPort>, now_ns: u64) {
        self.stations.set_quota(shared.index, self.control.quota(&shared.config));
        if self.ports.len() <= shared.index {
            self.ports.resize_with(shared.index + 1, || None);
        }
        let deliver = Deliver::new(&shared.config.coalesce, shared.config.queues, &shared, &mut host);
        let floods = shared.config.flood_limit.filter(|_| self.config.learning).map(FloodLimit::bucket);
        if let Some(waker) = &self.waker {
            shared.register(waker);
        }
        let index = shared.index;
        let plan = Plan::new(&shared);
        let vlans = shared.security().vlans.clone();
        self.stations.bind(index, &shared.security().mac_addresses);
        let mut port = Port {
            host,
            shared,
            vlans,
            plan,
            deliver,
            backlog: Backlog::default(),
            floods,
            debt_bytes: 0,
            pending: None,
            moderation_changes: 0,
            next_interrupt_ns: None,
        };
        port.begin_batch(now_ns);
        self.ports[index] = Some(port);
        self.share_stations();
    }

    /// Divides the table among the ports that are there, if they have equal shares.
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
        port.end_batch(true, &mut self.scratch, now_ns, &|| now_ns);
        port.with_outlet(|deliver, outlet| {
            deliver.release(outlet);
            deliver.flush(outlet, now_ns);
        });
        if let Some(interrupts) = port.host.interrupts() {
            // What is due later is sent now: the port is not polled any more.
            interrupts.moderate(&ModerationConfig::default());
        }
        conclude(&mut port, Loss::NoDestination);
        for other in self.ports.iter_mut().flatten() {
            leave_out(other, index);
        }
        self.stations.forget(index);
        self.stations.bind(index, &[]);
        self.stations.set_quota(index, 0);
        shared.stations.store(0, Relaxed);
        let used = self.ports.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.ports.truncate(used);
        self.share_stations();
        // Whoever sees that the number is free has the host to itself.
        drop(port);
        self.control.release(shared);
    }

    /// Moves frames of one port until it has none, or its budget is spent.
    fn turn(&mut self, from: usize, now_ns: u64, clock: &impl Fn() -> u64) -> Progress {
        self.send_keepalives(from, now_ns);
        let Some(port) = &mut self.ports[from] else { return Progress::default() };
        let bytes = self.config.turn_bytes.max(1);
        let paid_bytes = port.debt_bytes.min(bytes);
        port.debt_bytes -= paid_bytes;
        let mut budget = Budget::new(self.config.turn_frames.max(1), bytes - paid_bytes);
        let progress = self.move_frames(from, &mut budget, now_ns, clock);
        if let Some(port) = &mut self.ports[from] {
            port.debt_bytes += budget.debt_bytes;
            port.shared.stats().transmit.end_batch();
        }
        progress
    }

    fn move_frames(&mut self, from: usize, budget: &mut Budget, now_ns: u64, clock: &impl Fn() -> u64) -> Progress {
        let mut progress = Progress::default();
        let mut timer = TurnTimer { bytes: budget.bytes, since_ns: None };
        while budget.is_left() && !timer.is_over(budget, self.config.turn_ns, clock) {
            let is_pending = matches!(&self.ports[from], Some(Port { pending: Some(_), .. }));
            let mut cost_bytes = 0;
            if !is_pending {
                let Some(cost) = self.take(from, now_ns, budget) else { return progress };
                cost_bytes = cost;
            }
            if let Some(port) = &self.ports[from]
                && !progress.moved
                && port.deliver.interrupts_by_handing_over
            {
                // Its buffers are free again.
                port.shared.stats().transmit.interrupts.add(1);
            }
            progress.moved = true;
            self.forward(from, now_ns, budget);
            budget.spend(0, cost_bytes);
        }
        Progress { moved: true, more: true, ..Progress::default() }
    }

    /// Takes the next frame of a port and decides where it goes. Returns what fetching it cost, in bytes; `None` when there
    /// is none, or the port is at its limit.
    fn take(&mut self, from: usize, now_ns: u64, budget: &mut Budget) -> Option<usize> {
        let is_draining = self.is_draining;
        let port = self.ports[from].as_mut().filter(|port| port.is_open() && !is_draining)?;
        self.serving.enter(from);
        if !port.plan.meter.is_open(now_ns) {
            port.host.tx_hold();
            budget.spend(0, port.host.tx_cost_bytes());
            return None;
        }
        let refused = match port.host.tx_next(now_ns) {
            Ok(true) => None,
            Err(PortError::Refused(_)) => {
                port.plan.meter.spend_refused();
                Some((Loss::BadRequest, 1))
            }
            Ok(false) | Err(PortError::Full | PortError::Filtered) => {
                budget.spend(0, port.host.tx_cost_bytes());
                return None;
            }
            Err(PortError::Closed(errno)) => {
                port.shared.close(errno);
                self.stations.forget(from);
                return None;
            }
        };
        let cost_bytes = port.host.tx_cost_bytes();
        if let Some((loss, frames)) = refused.or_else(|| self.admit(from, now_ns).err()) {
            self.refuse(from, loss, frames, budget);
        }
        Some(cost_bytes)
    }

    /// Plans the frame that was fetched from a port and decides where it goes. Errors say why it goes nowhere,
    /// and how many frames that is.
    fn admit(&mut self, from: usize, now_ns: u64) -> Result<(), (Loss, usize)> {
        let Some(port) = &mut self.ports[from] else { return Ok(()) };
        let stats = &port.shared.stats().transmit;
        stats.host_frames.add(1);
        let mut frame = port.host.tx_frame();
        let frame_len = frame.bytes().len();
        let stations = FrameStations::of(frame.bytes(), &port.vlans).map_err(|loss| {
            port.plan.meter.spend_frame(&frame, 1);
            (loss, 1)
        })?;
        let planned = port.plan.plan(&mut frame, stats, now_ns);
        port.backlog.sent(frame_len as u64);
        if let Some(outcome) = port.plan.answer(&mut port.host, false) {
            close(&port.shared, outcome.err());
            port.deliver.is_unflushed = true;
        }
        let planned = planned.map_err(|loss| (loss, 1))?;
        let frames = planned.frames_left();
        let to = self.route(from, &stations, frames, now_ns).map_err(|loss| (loss, frames))?;
        if let Some(port) = &mut self.ports[from] {
            port.shared.stats().transmit.frames_in.add(frames as u64);
            let vlan = stations.vlan;
            port.pending = Some(Pending { planned, frame_len, vlan, to, frames_handed: 0, segments: None });
        }
        Ok(())
    }

    /// Counts what goes nowhere.
    fn refuse(&self, from: usize, loss: Loss, frames: usize, budget: &mut Budget) {
        budget.spend(1, 0);
        if let Some(port) = &self.ports[from] {
            let stats = &port.shared.stats().transmit;
            stats.frames_in.add(frames as u64);
            stats.lose(loss, frames);
        }
    }

    /// The ports that a frame from `from` is for.
    fn route(&mut self, from: usize, frame: &FrameStations, frames: usize, now_ns: u64) -> Result<Range<usize>, Loss> {
        let Self { config, ports, stations, .. } = self;
        let Some(port) = &ports[from] else { return Err(Loss::NoDestination) };
        if config.learning {
            let now_s = now_ns / NANOSECONDS_PER_SECOND;
            if frame.is_reserved {
                return Err(Loss::Reserved);
            }
            if frame.source.is_some_and(|source| !stations.learn(source, from, now_s)) {
                return Err(Loss::Spoofed);
            }
            if let Some(to) = frame.destination.and_then(|station| stations.find(station, now_s)) {
                return match &ports[to] {
                    _ if to == from => Err(Loss::Hairpin),
                    Some(other) if port.reaches(other, frame.vlan) => Ok(to..to + 1),
                    Some(other) if other.is_in(frame.vlan) => Err(Loss::Isolated),
                    Some(other) if other.is_open() => Err(Loss::Vlan),
                    _ => Err(Loss::NoDestination),
                };
            }
            if frame.destination.is_some() && config.unknown_unicast == UnknownUnicast::Drop {
                return Err(Loss::NoDestination);
            }
        }
        let others = || ports.iter().enumerate().filter(|&(index, _)| index != from).filter_map(|(_, p)| p.as_ref());
        if !others().any(|other| port.reaches(other, frame.vlan)) {
            let loss = if others().any(|other| other.is_in(frame.vlan)) {
                Loss::Isolated
            } else if !config.learning && others().any(Port::is_open) {
                Loss::Vlan
            } else {
                Loss::NoDestination
            };
            return Err(loss);
        }
        let end = ports.len();
        let bucket = ports[from].as_mut().and_then(|port| port.floods.as_mut());
        if bucket.is_some_and(|bucket| !bucket.take(frames as u64, now_ns)) {
            return Err(Loss::FloodLimit);
        }
        Ok(0..end)
    }

    /// Brings the pending frame of a port to all that it is for, or as many as the budget lasts.
    fn forward(&mut self, from: usize, now_ns: u64, budget: &mut Budget) {
        if matches!(&self.ports[from], Some(Port { pending: Some(Pending { planned: Planned::Sealed(..), .. }), .. })) {
            return self.forward_sealed(from, now_ns, budget);
        }
        let Self { ports, stations, scratch, serving, .. } = self;
        while let Some(next) = next_of(ports, from) {
            if !budget.is_left() {
                return;
            }
            if let Ok([Some(source), Some(port)]) = ports.get_disjoint_mut([from, next])
                && let Some(vlan) = source.pending.as_ref().map(|pending| pending.vlan)
                && source.reaches(port, vlan)
                && let Some(Pending { planned: Planned::Clear(plan), frame_len, segments, .. }) = &mut source.pending
            {
                let mut work = Work { scratch, budget, now_ns };
                let is_done = match port.change_for(vlan) {
                    Err(reason) => {
                        // Some may have been handed over before the link went off.
                        let frames = segments.take().map_or_else(|| plan.frames_left(), |rest| rest.frames_left());
                        port.lose(reason, frames, &mut work);
                        true
                    }
                    Ok(change) => {
                        let planned_len = frame_len.wrapping_add_signed(change.added_len());
                        let frame = lent(&mut source.host, change);
                        let Some(frame) = frame.filter(|frame| frame.bytes().len() == planned_len) else {
                            conclude(source, Loss::NoDestination); // The port took back what it lent.
                            return;
                        };
                        let changed = (change != TagChange::Keep).then(|| plan.after_tag_change(change));
                        serving.enter(next);
                        port.push(Lent { frame, plan: changed.as_ref().unwrap_or(plan) }, segments, &mut work)
                    }
                };
                if !port.is_open() {
                    stations.forget(next);
                }
                if !is_done {
                    return;
                }
                if let Some(pending) = &mut source.pending {
                    pending.frames_handed = pending.planned.frames_left();
                    pending.advance();
                }
            } else if let Some(source) = &mut ports[from] {
                leave_out(source, next);
            }
        }
        if let Some(port) = &mut ports[from] {
            conclude(port, Loss::NoDestination);
        }
    }

    /// Seals the pending frame of a port run by run, and brings each to all ports that it is for.
    fn forward_sealed(&mut self, from: usize, now_ns: u64, budget: &mut Budget) {
        while budget.is_left() {
            let Some(Port { host, shared, plan, pending, .. }) = &mut self.ports[from] else { return };
            let Some(Pending { planned, to, vlan, .. }) = pending else { return };
            if planned.frames_left() == 0 {
                *pending = None;
                return;
            }
            let (to, vlan) = (to.clone(), *vlan);
            let out = &mut self.sealed.memory_mut()[SEALED_AT..];
            let (len, stride, count) = match write_sealed(plan, planned, &mut host.tx_frame(), out, now_ns) {
                Ok(run) => run,
                Err(reason) => {
                    // When its association ends, the rest of a frame is lost.
                    shared.stats().transmit.lose(reason, planned.frames_left());
                    *pending = None;
                    return;
                }
            };
            budget.spend(count, count * len);
            let handed = (0..count).filter(|nth| {
                let start = SEALED_AT + nth * stride;
                self.bring(from, &to, vlan, start..start + len, now_ns)
            });
            let handed = handed.count();
            let Some(port) = &self.ports[from] else { return };
            let stats = &port.shared.stats().transmit;
            stats.lose(Loss::NoDestination, count - handed);
            stats.frames_out.add(handed as u64);
            stats.bytes_out.add((handed * len) as u64);
        }
    }

    /// Brings one frame of the sealed ones, which is in `vlan`, to all ports that it is for; whether there was one.
    fn bring(&mut self, from: usize, to: &Range<usize>, vlan: FrameVlan, place: Range<usize>, now_ns: u64) -> bool {
        let Self { ports, stations, scratch, sealed, serving, .. } = self;
        sealed.set(place, TxMeta::default());
        let mut budget = Budget::UNLIMITED;
        let mut is_handed = false;
        for to in to.clone() {
            if let Ok([Some(source), Some(port)]) = ports.get_disjoint_mut([from, to])
                && source.reaches(port, vlan)
            {
                serving.enter(to);
                let mut work = Work { scratch, budget: &mut budget, now_ns };
                match port.change_for(vlan).map(|change| sealed.frame_with_tag(change)) {
                    Ok(frame) => frame.into_iter().for_each(|mut frame| port.push_received(&mut frame, &mut work)),
                    Err(reason) => port.lose(reason, 1, &mut work),
                }
                if !port.is_open() {
                    stations.forget(to);
                }
                is_handed = true;
            }
        }
        is_handed
    }

    /// Sends the keepalives of a port that are due.
    fn send_keepalives(&mut self, from: usize, now_ns: u64) {
        let Some(Port { plan, shared, .. }) = &mut self.ports[from] else { return };
        let mut due = Vec::new();
        plan.send_keepalives(&shared.stats().transmit, now_ns, |frame| {
            due.push(frame.to_vec());
            true
        });
        for bytes in due {
            let place = SEALED_AT..SEALED_AT + bytes.len();
            self.sealed.memory_mut()[place.clone()].copy_from_slice(&bytes);
            let Some(port) = &self.ports[from] else { return };
            // It is no frame of the host's, so that nothing is counted where it cannot go.
            if let Ok(stations) = FrameStations::of(&bytes, &port.vlans)
                && let Ok(to) = self.route(from, &stations, 1, now_ns)
            {
                self.bring(from, &to, stations.vlan, place, now_ns);
            }
        }
    }
}

/// How long a turn takes.
struct TurnTimer {
    /// Bytes of the budget that were left at the last look at the clock.
    bytes: usize,
    /// The first look.
    since_ns: Option<u64>,
}

impl TurnTimer {
    /// Whether the turn has taken as long as it may.
    #[inline]
    fn is_over(&mut self, budget: &Budget, turn_ns: u64, clock: &impl Fn() -> u64) -> bool {
        if self.bytes - budget.bytes < TIMED_BYTES {
            return false;
        }
        self.bytes = budget.bytes;
        let now_ns = clock();
        now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns)) >= turn_ns
    }
}

/// The addresses that a switch reads of a frame, and its VLAN.
struct FrameStations {
    source: Option<Station>,
    destination: Option<Station>,
    is_reserved: bool,
    vlan: FrameVlan,
}

impl FrameStations {
    /// Of a frame that the host of a port with these VLANs sends.
    fn of(frame: &[u8], vlans: &PortVlans) -> Result<Self, Loss> {
        let vlan = vlans.of_sent(frame)?;
        let (source, destination) = (Station::source(frame, vlan.vid), Station::destination(frame, vlan.vid));
        Ok(Self { source, destination, is_reserved: is_reserved(frame), vlan })
    }
}

/// Seals the next frames of one length into the front of `out`: their length, the distance from one to the next, and how
/// many.
fn write_sealed(
    plan: &mut Plan,
    planned: &mut Planned,
    frame: &mut Frame<'_>,
    out: &mut [u8],
    now_ns: u64,
) -> Result<(usize, usize, usize), Loss> {
    let (len, frames_left) = plan.next_run(frame, planned, usize::MAX)?;
    let stride = len.next_multiple_of(FRAME_ALIGN);
    let slots = out.len().checked_div(stride).unwrap_or(0).min(frames_left);
    if slots == 0 {
        return Err(Loss::TooLong);
    }
    let count = plan.write_run(frame, planned, &mut out[..slots * stride], stride, now_ns)?;
    Ok((len, stride, count))
}

/// The port that the pending frame of a port is for next.
fn next_of<P>(ports: &[Option<Port<P>>], from: usize) -> Option<usize> {
    let pending = ports[from].as_ref()?.pending.as_ref()?;
    pending.to.clone().next()
}

/// Leaves out a port that the pending frame cannot be brought to, or no further.
fn leave_out<P>(port: &mut Port<P>, unreachable: usize) {
    if let Some(pending) = port.pending.as_mut().filter(|pending| pending.to.start == unreachable) {
        pending.advance();
    }
}

/// Ends the way of the pending frame of a port: what no port was handed of it is lost for `reason`.
fn conclude<P>(port: &mut Port<P>, reason: Loss) {
    let Some(mut pending) = port.pending.take() else { return };
    pending.note_segments();
    let (handed, stats) = (pending.frames_handed, &port.shared.stats().transmit);
    stats.lose(reason, pending.planned.frames_left() - handed);
    stats.frames_out.add(handed as u64);
    if handed > 0 {
        stats.bytes_out.add(pending.frame_len as u64);
    }
}

/// Whether the frame is for one of 01-80-C2-00-00-00 to -0F.
fn is_reserved(frame: &[u8]) -> bool {
    match frame.first_chunk::<6>() {
        Some([rest @ .., last]) => *rest == RESERVED_ADDRESS[..5] && last & RESERVED_LAST_MASK == 0,
        None => false,
    }
}
