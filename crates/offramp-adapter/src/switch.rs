//! A learning switch among host ports, in one thread.
//!
//! It is how a guest is joined to other guests, to a TAP and to an interface that exists: every side is
//! a [`HostPort`], which sends with what it asks for (a partial checksum, a segmentation) and is given
//! frames with what is known of them. Between two sides a frame is touched only as far as the receiver
//! needs it: what it accepts ∩ what the user allows decides, port by port.
//!
//! | a frame | for a port that | happens |
//! |---|---|---|
//! | super-frame | takes its kind (`RSC4`, `RSC6`, `RSC_UDP`, with CWR `RSC_ECN` too), and its segments fit the MTU | goes untouched |
//! | super-frame | does not; or it is UDP to be fragmented | is cut; sums are written on the way |
//! | partial checksum | is told of checksums (`RX_CHECKSUM`) | goes untouched, told as partial |
//! | partial checksum | is not | is completed |
//! | nothing asked | is told of checksums | is verified, and joined if that is on too |
//! | nothing asked | is not | goes untouched, unknown |
//! | one that is longer than the MTU | | is lost there, `too_long` |
//!
//! Nothing overtakes: before a frame goes past the coalescer of its destination, all that is held there
//! is handed over. A destination without room loses its own frames and holds nobody back. Ports take
//! turns with a budget; a super-frame that makes more frames than are left of it is continued in the
//! next turn. Frames of which the destination is not known, and those for groups, go to all other
//! ports, up to a limit per ingress port; no frame goes back to where it came from.
//!
//! With [`SwitchConfig::learning`] off it is a link: two ports, and everything goes to the other one.

mod control;
mod egress;
mod limit;
mod stations;

pub use control::{LINK_PORTS_MAX, SwitchControl, SwitchError, SwitchPort};
pub use limit::FloodLimit;

use crate::config::MTU_DEFAULT;
use crate::moderation::ModerationConfig;
use crate::port::{HostPort, PortError};
use crate::stats::Loss;
use crate::transmit::Progress;
use control::Request;
use egress::{Egress, Lent, Outlet, Scratch, Work};
use limit::TokenBucket;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;
use offramp_offload::segment::{IdRange, Refused, SegmentPolicy, Segmenter};
use stations::{Station, Stations};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
/// The addresses that no bridge forwards, but for their last four bits (IEEE 802.1D 7.12.6).
const RESERVED_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00];
const RESERVED_LAST_MASK: u8 = 0xf0;

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
    /// Seconds after which a silent station is forgotten (IEEE 802.1D 7.9.2: 300).
    pub ageing_s: u64,
    /// Frames that a port may send or have cut in one turn.
    pub turn_frames: usize,
    /// Bytes that a port may send in one turn; the frame that exceeds them still goes.
    pub turn_bytes: usize,
    /// How IPv4 IDs run in segments.
    pub id_range: IdRange,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            learning: true,
            ports_max: 64,
            stations_max: 8192,
            ageing_s: 300,
            turn_frames: 256,
            turn_bytes: 256 * 1024,
            id_range: IdRange::default(),
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
    /// What the user allows to be told to this port (receive offloads); may be changed later.
    pub offloads: Offloads,
    /// The port reaches only ports that are not isolated; may be changed later.
    pub isolated: bool,
    /// Stations that may be known behind this port. One more displaces that which was silent longest.
    pub stations_max: usize,
    /// Frames from this port that may go to every port; `None`: without limit.
    pub flood_limit: Option<FloodLimit>,
    /// How frames for this port are joined; `telling` is the port's own.
    pub coalesce: CoalesceConfig,
    /// When the port's host is interrupted, where that is apart from handing over
    /// ([`HostPort::interrupts`]); without effect elsewhere. May be changed later.
    pub moderation: ModerationConfig,
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
        }
    }
}

/// What is left of a port's turn.
#[derive(Debug)]
struct Budget {
    frames: usize,
    bytes: usize,
}

impl Budget {
    fn is_left(&self) -> bool {
        self.frames > 0 && self.bytes > 0
    }

    fn spend(&mut self, frames: usize, bytes: usize) {
        self.frames = self.frames.saturating_sub(frames);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// A frame on its way: the ports from `next` up to `end` are still to be visited.
#[derive(Debug)]
struct Pending {
    plan: Segmenter,
    /// Bytes of the frame that was planned.
    frame_len: usize,
    next: usize,
    end: usize,
    /// Frames of it that were handed to a port; the most where there was more than one.
    frames_handed: usize,
    /// What is left to be written for the port `next`, if it has begun.
    cut: Option<Segmenter>,
}

impl Pending {
    /// Goes on to the next port, whether or not the frame was brought to this one as a whole.
    fn advance(&mut self) {
        self.note_cut();
        self.next += 1;
    }

    /// Counts what was written of a cut as handed; the rest is not written any more.
    fn note_cut(&mut self) {
        if let Some(rest) = self.cut.take() {
            self.frames_handed = self.frames_handed.max(self.plan.frames_left() - rest.frames_left());
        }
    }
}

#[derive(Debug)]
struct Port<P> {
    host: P,
    shared: Arc<SwitchPort>,
    egress: Egress,
    floods: Option<TokenBucket>,
    pending: Option<Pending>,
    /// Changes of the moderation that the port's host knows of.
    moderation_changes: u32,
    /// Of a host whose interrupts are apart from handing over.
    next_interrupt_ns: Option<u64>,
}

impl<P: HostPort> Port<P> {
    /// Sends the interrupts that are due to a host that sees what it is given before them.
    fn interrupt(&mut self, now_ns: u64) {
        let Some(interrupts) = self.host.interrupts() else { return };
        let stats = self.shared.stats();
        if let Some(moderation) = self.shared.changed_moderation(&mut self.moderation_changes) {
            interrupts.moderate(&moderation);
            stats.note_moderation(interrupts);
        }
        let counts = interrupts.send_due(now_ns);
        stats.interrupted(counts, interrupts);
        self.next_interrupt_ns = interrupts.next_due_ns();
    }
}

impl<P> Port<P> {
    fn is_open(&self) -> bool {
        self.shared.closed().is_none()
    }

    fn reaches(&self, other: &Self) -> bool {
        other.is_open() && !(self.shared.is_isolated() && other.shared.is_isolated())
    }
}

/// The switch. See the [module](self) for the rules.
#[derive(Debug)]
pub struct Switch<P> {
    config: SwitchConfig,
    policy: SegmentPolicy,
    ports: Box<[Option<Port<P>>]>,
    stations: Stations,
    scratch: Scratch,
    /// Whose turn comes first in the next batch.
    first: usize,
    /// Nothing more is fetched from any port.
    is_draining: bool,
    control: Arc<SwitchControl<P>>,
}

impl<P: HostPort> Switch<P> {
    /// A switch without ports.
    pub fn new(config: &SwitchConfig) -> Self {
        Self {
            config: *config,
            policy: SegmentPolicy { id_range: config.id_range, fragment_id: 0 },
            ports: (0..config.ports_max).map(|_| None).collect(),
            stations: Stations::new(config.stations_max, config.ports_max, config.ageing_s),
            scratch: Scratch::new(),
            first: 0,
            is_draining: false,
            control: Arc::new(SwitchControl::new(config)),
        }
    }

    /// How ports are added and removed, from any thread.
    pub fn control(&self) -> &Arc<SwitchControl<P>> {
        &self.control
    }

    /// The ports that are open.
    pub fn hosts(&self) -> impl Iterator<Item = &P> {
        self.ports.iter().flatten().filter(|port| port.is_open()).map(|port| &port.host)
    }

    /// The ports that are open, to change them between batches.
    pub fn hosts_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.ports.iter_mut().flatten().filter(|port| port.is_open()).map(|port| &mut port.host)
    }

    /// The port of that number, open or not.
    pub fn host(&self, index: usize) -> Option<&P> {
        Some(&self.ports.get(index)?.as_ref()?.host)
    }

    /// The port of that number, to change it between batches.
    pub fn host_mut(&mut self, index: usize) -> Option<&mut P> {
        Some(&mut self.ports.get_mut(index)?.as_mut()?.host)
    }

    /// Says whether frames are still fetched from the ports. What was fetched is delivered in either case.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Frames that are held to be coalesced for the port of that number.
    pub fn held(&self, index: usize) -> usize {
        self.ports.get(index).and_then(Option::as_ref).map_or(0, |port| port.egress.held())
    }

    /// When held frames or an interrupt are due without any new frame.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let open = self.ports.iter().flatten().filter(|port| port.is_open());
        open.filter_map(|port| port.egress.next_deadline_ns().into_iter().chain(port.next_interrupt_ns).min()).min()
    }

    /// Asks for `waker` to be called when a port is added or removed, or its moderation changed. The
    /// caller must poll once more before it sleeps.
    pub fn register(&self, waker: &Waker) {
        self.control.register(Some(waker));
    }

    /// Takes back what [`Switch::register`] asked for.
    pub fn unregister(&self) {
        self.control.register(None);
    }

    /// Gives every port one turn, then ends the batch. A port that is found closed is left alone from
    /// then on ([`SwitchPort::closed`]); the others go on.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        let mut progress = Progress { moved: self.apply_requests(now_ns), more: false };
        let count = self.ports.len();
        for nth in 0..count {
            progress = progress.or(self.turn((self.first + nth) % count, now_ns));
        }
        self.first = self.after(self.first);
        self.end_batch(now_ns);
        progress
    }

    /// The number of the next port that is there.
    fn after(&self, index: usize) -> usize {
        let count = self.ports.len();
        let mut next = (1..=count).map(|n| (index + n) % count);
        next.find(|&next| self.ports[next].is_some()).unwrap_or(0)
    }

    fn end_batch(&mut self, now_ns: u64) {
        for port in self.ports.iter_mut().flatten() {
            if port.is_open() && !port.egress.is_idle() {
                port.egress.end_batch(Outlet::new(&mut port.host, &port.shared), now_ns);
            }
            if port.is_open() {
                port.interrupt(now_ns);
            }
            if !port.is_open() {
                self.stations.forget(port.shared.index);
            }
            port.shared.stations.store(self.stations.len(port.shared.index), Relaxed);
        }
    }

    /// Whether ports came or went.
    fn apply_requests(&mut self, now_ns: u64) -> bool {
        let requests = self.control.requests();
        let has_any = !requests.is_empty();
        for request in requests {
            match request {
                Request::Add(host, shared) => self.add(host, shared),
                Request::Remove(shared) => self.remove(&shared, now_ns),
            }
        }
        has_any
    }

    fn add(&mut self, mut host: P, shared: Arc<SwitchPort>) {
        self.stations.set_quota(shared.index, self.control.quota(&shared.config));
        let is_interrupted_apart = host.interrupts().is_some();
        let egress = Egress::new(&shared.config.coalesce, host.honours_data_valid(), is_interrupted_apart);
        let floods = shared.config.flood_limit.filter(|_| self.config.learning).map(TokenBucket::new);
        let index = shared.index;
        let (moderation_changes, next_interrupt_ns) = (0, None);
        self.ports[index] =
            Some(Port { host, shared, egress, floods, pending: None, moderation_changes, next_interrupt_ns });
    }

    fn remove(&mut self, shared: &Arc<SwitchPort>, now_ns: u64) {
        let index = shared.index;
        let Some(mut port) = self.ports[index].take() else { return };
        port.egress.release(Outlet::new(&mut port.host, shared), now_ns);
        if let Some(interrupts) = port.host.interrupts() {
            // Nobody would send what is due later.
            interrupts.moderate(&ModerationConfig::default());
        }
        conclude(&mut port);
        for other in self.ports.iter_mut().flatten() {
            leave_out(other, index);
        }
        self.stations.forget(index);
        self.stations.set_quota(index, 0);
        shared.stations.store(0, Relaxed);
        self.control.release(shared);
    }

    /// Moves frames of one port until it has none, or its budget is spent.
    fn turn(&mut self, from: usize, now_ns: u64) -> Progress {
        let mut progress = Progress::default();
        let mut budget = Budget { frames: self.config.turn_frames.max(1), bytes: self.config.turn_bytes.max(1) };
        while budget.is_left() {
            let is_pending = matches!(&self.ports[from], Some(Port { pending: Some(_), .. }));
            if !is_pending && !self.take(from, now_ns, &mut budget) {
                return progress;
            }
            if let Some(port) = self.ports[from].as_ref().filter(|_| !progress.moved) {
                port.egress.count_taken(port.shared.stats());
            }
            progress.moved = true;
            self.forward(from, now_ns, &mut budget);
        }
        Progress { moved: true, more: true }
    }

    /// Takes the next frame of a port and decides where it goes; `false` when there is none.
    fn take(&mut self, from: usize, now_ns: u64, budget: &mut Budget) -> bool {
        let is_draining = self.is_draining;
        let Some(port) = self.ports[from].as_mut().filter(|port| port.is_open() && !is_draining) else { return false };
        match port.host.tx_next(now_ns) {
            Ok(true) => {
                if let Err((loss, frames)) = self.admit(from, now_ns) {
                    self.refuse(from, loss, frames, budget);
                }
                true
            }
            Ok(false) | Err(PortError::Full | PortError::Held) => false,
            Err(PortError::Refused(_)) => {
                self.refuse(from, Loss::BadRequest, 1, budget);
                true
            }
            Err(PortError::Closed(errno)) => {
                port.shared.close(errno);
                self.stations.forget(from);
                false
            }
        }
    }

    /// Plans the frame last taken from a port and decides where it goes. Errors say why it goes nowhere,
    /// and how many frames that is.
    fn admit(&mut self, from: usize, now_ns: u64) -> Result<(), (Loss, usize)> {
        let Some(port) = &mut self.ports[from] else { return Ok(()) };
        port.shared.stats().transmit.host_frames.add(1);
        let frame = port.host.tx_frame();
        let plan = Segmenter::new(&frame, &self.policy).map_err(|refused| (reason(refused), 1))?;
        let (frames, frame_len) = (plan.frames_left(), frame.bytes().len());
        let Route { next, end } = self.route(from, frames, now_ns).map_err(|loss| (loss, frames))?;
        self.policy.fragment_id = self.policy.fragment_id.wrapping_add(1);
        if let Some(port) = &mut self.ports[from] {
            port.shared.stats().transmit.frames_in.add(frames as u64);
            port.pending = Some(Pending { plan, frame_len, next, end, frames_handed: 0, cut: None });
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

    /// The ports that the frame last taken from a port is for.
    fn route(&mut self, from: usize, frames: usize, now_ns: u64) -> Result<Route, Loss> {
        let Self { config, ports, stations, .. } = self;
        let Some(port) = &mut ports[from] else { return Err(Loss::NoDestination) };
        let frame = port.host.tx_frame();
        let (source, destination) = (Station::source(frame.bytes()), Station::destination(frame.bytes()));
        let is_reserved = is_reserved(frame.bytes());
        let Some(port) = &ports[from] else { return Err(Loss::NoDestination) };
        if config.learning {
            let now_s = now_ns / NANOSECONDS_PER_SECOND;
            if is_reserved {
                return Err(Loss::Reserved);
            }
            if let Some(source) = source {
                stations.learn(source, from, now_s);
            }
            if let Some(to) = destination.and_then(|station| stations.find(station, now_s)) {
                return match &ports[to] {
                    _ if to == from => Err(Loss::Hairpin),
                    Some(other) if port.reaches(other) => Ok(Route { next: to, end: to + 1 }),
                    _ => Err(Loss::Isolated),
                };
            }
        }
        let others = || ports.iter().enumerate().filter(|&(index, _)| index != from).filter_map(|(_, p)| p.as_ref());
        if !others().any(|other| port.reaches(other)) {
            let loss = if others().any(Port::is_open) { Loss::Isolated } else { Loss::NoDestination };
            return Err(loss);
        }
        let end = ports.len();
        let bucket = ports[from].as_mut().and_then(|port| port.floods.as_mut());
        if bucket.is_some_and(|bucket| !bucket.take(frames, now_ns)) {
            return Err(Loss::FloodLimit);
        }
        Ok(Route { next: 0, end })
    }

    /// Brings the pending frame of a port to all that it is for, or as many as the budget lasts.
    fn forward(&mut self, from: usize, now_ns: u64, budget: &mut Budget) {
        let Self { ports, stations, scratch, .. } = self;
        while let Some(next) = next_of(ports, from) {
            if !budget.is_left() {
                return;
            }
            if let Ok([Some(source), Some(port)]) = ports.get_disjoint_mut([from, next])
                && source.reaches(port)
                && let Some(pending) = &mut source.pending
            {
                let frame = source.host.tx_frame();
                if frame.bytes().len() != pending.frame_len {
                    conclude(source); // The port took back what it lent.
                    return;
                }
                let hash = port.host.flow_hash(&frame);
                let mut lent = Lent { frame, plan: &pending.plan, hash };
                let mut outlet = Outlet::new(&mut port.host, &port.shared);
                let mut work = Work { scratch, budget, now_ns };
                let is_done = port.egress.deliver(&mut outlet, &mut lent, &mut pending.cut, &mut work);
                if !port.is_open() {
                    stations.forget(next);
                }
                if !is_done {
                    return;
                }
                pending.frames_handed = pending.plan.frames_left();
                pending.advance();
            } else if let Some(source) = &mut ports[from] {
                leave_out(source, next);
            }
        }
        if let Some(port) = &mut ports[from] {
            conclude(port);
        }
    }
}

/// The ports that a frame is for.
struct Route {
    next: usize,
    end: usize,
}

/// The port that the pending frame of a port is for next.
fn next_of<P>(ports: &[Option<Port<P>>], from: usize) -> Option<usize> {
    let pending = ports[from].as_ref()?.pending.as_ref()?;
    (pending.next < pending.end).then_some(pending.next)
}

/// Leaves out a port that the pending frame cannot be brought to, or no further.
fn leave_out<P>(port: &mut Port<P>, unreachable: usize) {
    if let Some(pending) = port.pending.as_mut().filter(|pending| pending.next == unreachable) {
        pending.advance();
    }
}

/// Ends the way of the pending frame of a port: what no port was handed of it is lost.
fn conclude<P>(port: &mut Port<P>) {
    let Some(mut pending) = port.pending.take() else { return };
    pending.note_cut();
    let (handed, stats) = (pending.frames_handed, &port.shared.stats().transmit);
    stats.lose(Loss::NoDestination, pending.plan.frames_left() - handed);
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

fn reason(refused: Refused) -> Loss {
    match refused {
        Refused::Malformed(_) => Loss::Malformed,
        _ => Loss::BadRequest,
    }
}
