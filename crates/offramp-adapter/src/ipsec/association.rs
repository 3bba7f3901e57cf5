//! An association of a port, shared by the port's queue pairs.

use super::keepalive::Keepalive;
use super::{SaDirection, SaEvent, SaEventKind};
use offramp_offload::esp::{
    CipherLibrary, EspPacket, Grant, InvalidSa, LifetimeEvent, Opened, Refused, SaConfig, SealRefused, SecretKey,
    SharedInbound, SharedOutbound,
};
use offramp_offload::frame::Frame;
use offramp_offload::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// The state of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaState {
    /// The association protects packets.
    Alive,
    /// The association protects packets, but has reached a soft limit.
    Soft,
    /// The association was replaced, and opens packets until its grace time ends.
    Retiring,
    /// The association has reached a hard limit.
    Expired,
    /// The association's sequence numbers are used up, or the next sequence numbers are not yet reserved.
    SequenceExhausted,
}

/// The status of an association, without keys.
#[derive(Clone, Debug)]
pub struct SaStatus {
    /// The association's direction.
    pub direction: SaDirection,
    /// The configuration, without the keys.
    pub config: SaConfig,
    /// The state.
    pub state: SaState,
    /// The last used sequence number (outbound), or the highest accepted sequence number (inbound).
    pub sequence: u64,
    /// Number of packets sealed (outbound), or opened and found genuine (inbound).
    pub packets: u64,
    /// Bytes of the sealed or opened IP packets, counted unencrypted.
    pub bytes: u64,
    /// Number of NAT-keepalives sent for the association.
    pub keepalives: u64,
    /// Number of packets refused by the association, by reason; empty for an outbound association.
    pub refused: Vec<(Refused, u64)>,
}

/// The channel for the events of an association. The channel never holds many events, because each association sends
/// each event only once.
pub(super) type Events = Option<Sender<SaEvent>>;

/// Reports each event of an association once.
#[derive(Debug)]
struct Reporter {
    direction: SaDirection,
    spi: u32,
    is_soft: AtomicBool,
    events: Events,
}

impl Reporter {
    fn new(direction: SaDirection, spi: u32, events: Events) -> Self {
        Self { direction, spi, is_soft: AtomicBool::new(false), events }
    }

    fn report(&self, kind: SaEventKind) {
        if let Some(events) = &self.events {
            // Without a receiver, the event is dropped.
            let _ = events.send(SaEvent { direction: self.direction, spi: self.spi, kind });
        }
    }

    fn report_lifetime(&self, event: Option<LifetimeEvent>) {
        match event {
            None => {}
            Some(LifetimeEvent::Soft) => {
                self.is_soft.store(true, Relaxed);
                self.report(SaEventKind::Soft);
            }
            Some(LifetimeEvent::Hard) => self.report(SaEventKind::Hard),
        }
    }
}

/// An outbound association.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(super) shared: SharedOutbound,
    reporter: Reporter,
    is_exhaustion_reported: AtomicBool,
    /// The keepalives of an association behind a NAT; `None` for any other association.
    pub(super) keepalive: Option<Arc<Keepalive>>,
    /// Waker of the keeper, the thread that reserves sequence numbers; `None` without a keeper.
    keeper: Option<Waker>,
}

impl Outbound {
    pub(super) fn new(
        config: &SaConfig,
        library: &'static dyn CipherLibrary,
        events: Events,
        keeper: Option<Waker>,
    ) -> Result<Self, InvalidSa> {
        let shared = SharedOutbound::with_library(config, library)?;
        let reporter = Reporter::new(SaDirection::Out, config.spi, events);
        let keepalive = config.keepalive_seconds.map(|seconds| Arc::new(Keepalive::new(seconds)));
        Ok(Self { shared, reporter, is_exhaustion_reported: AtomicBool::new(false), keepalive, keeper })
    }

    /// Replaces `old`. Continues the keepalives of `old` if both associations have the same mode, UDP ports and
    /// interval.
    pub(super) fn succeed(&mut self, old: &Self) {
        let (new, before) = (self.shared.config(), old.shared.config());
        if (new.udp, new.mode, new.keepalive_seconds) == (before.udp, before.mode, before.keepalive_seconds) {
            self.keepalive.clone_from(&old.keepalive);
        }
    }

    pub(super) fn spi(&self) -> u32 {
        self.shared.config().spi
    }

    #[inline]
    pub(super) fn grant(&self, packets: u64, packet_len: usize) -> Result<Grant, SealRefused> {
        let grant = self.shared.grant(packets, packet_len);
        match &grant {
            Ok(grant) => {
                self.reporter.report_lifetime(grant.event);
                if grant.is_low {
                    wake(self.keeper.as_ref());
                }
            }
            Err(SealRefused::SequenceExhausted) => {
                if !self.is_exhaustion_reported.swap(true, Relaxed) {
                    self.reporter.report(SaEventKind::SequenceExhausted);
                }
            }
            Err(_) => {}
        }
        grant
    }

    /// Advances the association's time to `now_ns`. Returns the time in nanoseconds at which this method must be called
    /// again; `None` if the association has no further time limit.
    pub(super) fn tick(&self, now_ns: u64) -> Option<u64> {
        self.reporter.report_lifetime(self.shared.tick(now_ns));
        self.shared.next_due_ns()
    }

    pub(super) fn status(&self) -> SaStatus {
        let shared = &self.shared;
        let state = match shared.ended() {
            Some(SealRefused::SequenceExhausted | SealRefused::Unreserved) => SaState::SequenceExhausted,
            Some(_) => SaState::Expired,
            None if self.reporter.is_soft.load(Relaxed) => SaState::Soft,
            None => SaState::Alive,
        };
        SaStatus {
            direction: SaDirection::Out,
            config: without_keys(shared.config()),
            state,
            sequence: shared.sequence(),
            packets: shared.packets(),
            bytes: shared.bytes(),
            keepalives: self.keepalive.as_ref().map_or(0, |keepalive| keepalive.sent.load(Relaxed)),
            refused: Vec::new(),
        }
    }
}

/// An inbound association.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(super) shared: SharedInbound,
    reporter: Reporter,
    refused: [AtomicU64; Refused::ALL.len()],
    retirement: Mutex<Retirement>,
    /// Waker of the keeper, the thread that records the highest sequence number; `None` without a keeper.
    keeper: Option<Waker>,
    /// The last sequence number recorded by the keeper. A packet with a higher sequence number wakes the keeper once.
    noted: AtomicU64,
    is_keeper_woken: AtomicBool,
}

/// The state of an inbound association's retirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retirement {
    No,
    /// The association ends this many nanoseconds after the next [`Inbound::tick`].
    After(u64),
    /// The association ends at this point of time, in nanoseconds.
    At(u64),
    Over,
}

/// The state of an inbound association after [`Inbound::tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// The association stays installed. The value is the time at which [`Inbound::tick`] must be called again, in
    /// nanoseconds; `None` if no further call is necessary.
    Until(Option<u64>),
    /// The grace time has ended, and the association must be removed.
    Over,
}

impl Inbound {
    pub(super) fn new(
        config: &SaConfig,
        library: &'static dyn CipherLibrary,
        events: Events,
        keeper: Option<Waker>,
    ) -> Result<Self, InvalidSa> {
        Ok(Self {
            shared: SharedInbound::with_library(config, library)?,
            reporter: Reporter::new(SaDirection::In, config.spi, events),
            refused: Default::default(),
            retirement: Mutex::new(Retirement::No),
            keeper,
            noted: AtomicU64::new(0),
            is_keeper_woken: AtomicBool::new(false),
        })
    }

    /// Records the sequence number up to which packets are refused after a crash.
    pub(super) fn note_written(&self, number: u64) {
        self.noted.store(number, Relaxed);
        self.is_keeper_woken.store(false, Relaxed);
    }

    /// Returns the highest sequence number that the association can ever accept.
    pub(super) fn last_number(&self) -> u64 {
        if self.shared.config().esn { u64::MAX } else { u64::from(u32::MAX) }
    }

    pub(super) fn spi(&self) -> u32 {
        self.shared.config().spi
    }

    #[inline]
    pub(super) fn open(&self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        match self.shared.open(frame, packet) {
            Ok(opened) => {
                if opened.event.is_some() {
                    self.reporter.report_lifetime(opened.event);
                }
                if self.keeper.is_some()
                    && opened.sequence > self.noted.load(Relaxed)
                    && !self.is_keeper_woken.swap(true, Relaxed)
                {
                    wake(self.keeper.as_ref());
                }
                Ok(opened)
            }
            Err(reason) => {
                self.refused[reason as usize].fetch_add(1, Relaxed);
                self.reporter.report_lifetime(self.shared.pending_event());
                Err(reason)
            }
        }
    }

    /// Retires a replaced association, which still opens packets for `grace_ns`.
    pub(super) fn retire(&self, grace_ns: u64) {
        *lock(&self.retirement) = Retirement::After(grace_ns);
    }

    pub(super) fn is_retiring(&self) -> bool {
        *lock(&self.retirement) != Retirement::No
    }

    /// Advances the association's time to `now_ns`.
    pub(super) fn tick(&self, now_ns: u64) -> Passed {
        self.reporter.report_lifetime(self.shared.tick(now_ns));
        let mut retirement = lock(&self.retirement);
        if let Retirement::After(grace_ns) = *retirement {
            *retirement = Retirement::At(now_ns.saturating_add(grace_ns));
        }
        match *retirement {
            Retirement::At(at_ns) if now_ns >= at_ns => {
                *retirement = Retirement::Over;
                drop(retirement);
                self.reporter.report(SaEventKind::Retired);
                Passed::Over
            }
            Retirement::Over => Passed::Over,
            Retirement::At(at_ns) => Passed::Until(self.shared.next_due_ns().into_iter().chain([at_ns]).min()),
            _ => Passed::Until(self.shared.next_due_ns()),
        }
    }

    pub(super) fn status(&self) -> SaStatus {
        let shared = &self.shared;
        let state = if shared.has_expired() {
            SaState::Expired
        } else if self.is_retiring() {
            SaState::Retiring
        } else if self.reporter.is_soft.load(Relaxed) {
            SaState::Soft
        } else {
            SaState::Alive
        };
        SaStatus {
            direction: SaDirection::In,
            config: without_keys(shared.config()),
            state,
            sequence: shared.highest(),
            packets: shared.packets(),
            bytes: shared.bytes(),
            keepalives: 0,
            refused: Refused::ALL.iter().map(|&reason| (reason, self.refused[reason as usize].load(Relaxed))).collect(),
        }
    }
}

fn wake(keeper: Option<&Waker>) {
    if let Some(waker) = keeper {
        waker.wake_by_ref();
    }
}

fn without_keys(config: &SaConfig) -> SaConfig {
    let none = SecretKey::none;
    SaConfig { encryption_key: none(), integrity_key: none(), ..config.clone() }
}
