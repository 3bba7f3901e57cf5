//! Associations used by several threads at once. A short lock protects the shared state, and the cipher runs outside
//! the lock.
//!
//! An uncontended lock costs two atomic operations. A sender locks once per run of frames, and a receiver twice per
//! packet.

use super::config::SaConfig;
use super::error::{InvalidSa, Refused, SealRefused};
use super::library::{CipherLibrary, aws_lc};
use super::lifetime::{Lifetime, LifetimeEvent, Spent};
use super::open::{Opened, Opener, Seen};
use super::seal::OutboundSa;
use super::udp::EspPacket;
use crate::frame::Frame;
use crate::sync::Mutex;

/// A range of sequence numbers for one thread. Each number is granted only once.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    first: u64,
    count: u64,
    /// Lifetime limit that the packets of this grant reach, if any.
    pub event: Option<LifetimeEvent>,
    /// True if half of the numbers reserved by [`SharedOutbound::reserve`] is granted. Reported once for each call of
    /// `reserve`.
    pub is_low: bool,
}

impl Grant {
    /// Returns the number of packets covered by this grant.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first granted number.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number before the first granted number, and the last granted number.
    pub(super) fn into_range(self) -> (u64, u64) {
        (self.first - 1, self.first - 1 + self.count)
    }
}

/// An outbound association shared by several threads. Each thread seals with a separate [`OutboundSa`].
///
/// The sequence numbers of one thread increase. Threads use their grants concurrently, so the receiver's anti-replay
/// window must cover all numbers that are granted at one time.
#[derive(Debug)]
pub struct SharedOutbound {
    config: SaConfig,
    library: &'static dyn CipherLibrary,
    ledger: Mutex<Ledger>,
}

/// The common state of all grants.
#[derive(Debug)]
struct Ledger {
    sent: u64,
    last: u64,
    /// Last sequence number that can be granted before the next call of [`SharedOutbound::reserve`].
    reserved: u64,
    /// Sequence number from which on a grant sets [`Grant::is_low`].
    low_from: u64,
    spent: Spent,
}

impl Ledger {
    /// Returns the current reason to refuse a grant, or `None`.
    fn refusal(&self) -> Option<SealRefused> {
        if self.spent.is_used_up() {
            Some(SealRefused::Expired)
        } else if self.sent >= self.last {
            Some(SealRefused::SequenceExhausted)
        } else {
            (self.sent >= self.reserved).then_some(SealRefused::Unreserved)
        }
    }
}

impl SharedOutbound {
    /// Makes an association from its description.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// Does the same as [`SharedOutbound::new`], with the AEADs of `library`.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn with_library(config: &SaConfig, library: &'static dyn CipherLibrary) -> Result<Self, InvalidSa> {
        OutboundSa::with_library(config, library)?;
        let last = if config.esn { u64::MAX } else { u64::from(u32::MAX) };
        let spent = Spent::new(config.lifetime);
        let ledger = Ledger { sent: config.sequence, last, reserved: u64::MAX, low_from: u64::MAX, spent };
        Ok(Self { config: config.clone(), library, ledger: Mutex::new(ledger) })
    }

    /// Returns the description of the association.
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// Returns a sealer for one thread. The sealer needs granted numbers before it can seal. `SharedOutbound`, not the
    /// sealer, counts the lifetimes.
    ///
    /// # Errors
    /// Returns an error if the cipher library cannot be set up a second time.
    pub fn sealer(&self) -> Result<OutboundSa, InvalidSa> {
        let config = SaConfig { lifetime: Lifetime::default(), ..self.config.clone() };
        let mut sealer = OutboundSa::with_library(&config, self.library)?;
        // The sealer has no sequence numbers yet.
        sealer.take_over(Grant { first: 1, count: 0, event: None, is_low: false });
        Ok(sealer)
    }

    /// Grants sequence numbers for 1 to `packets` packets of `packet_len` clear bytes each, and counts the packets as
    /// sent.
    ///
    /// # Errors
    /// Returns [`SealRefused::Expired`], [`SealRefused::SequenceExhausted`] or [`SealRefused::Unreserved`] if no
    /// sequence number is left.
    pub fn grant(&self, packets: u64, packet_len: usize) -> Result<Grant, SealRefused> {
        let mut ledger = self.ledger.lock();
        if let Some(refusal) = ledger.refusal() {
            return Err(refusal);
        }
        let left = (ledger.last.min(ledger.reserved) - ledger.sent).min(ledger.spent.packets_left(packet_len));
        let (first, count) = (ledger.sent + 1, packets.max(1).min(left));
        ledger.sent += count;
        let event = ledger.spent.spend_run(count, packet_len);
        let is_low = ledger.sent >= ledger.low_from;
        if is_low {
            ledger.low_from = u64::MAX;
        }
        Ok(Grant { first, count, event, is_low })
    }

    /// Limits grants to numbers up to `last`. Before the first call of this function, grants have no such limit. A
    /// caller that must remember used numbers across a crash stores `last` before the call.
    pub fn reserve(&self, last: u64) {
        let mut ledger = self.ledger.lock();
        ledger.reserved = last;
        ledger.low_from = ledger.sent.saturating_add(last.saturating_sub(ledger.sent) / 2);
    }

    /// Limits further grants to `more` numbers, and returns the last of these numbers. Call this function to remove an
    /// association while threads finish the current packets.
    pub fn close(&self, more: u64) -> u64 {
        let mut ledger = self.ledger.lock();
        let last = ledger.sent.saturating_add(more).min(ledger.last).min(ledger.reserved);
        (ledger.reserved, ledger.low_from) = (last, u64::MAX);
        last
    }

    /// Returns the last sequence number that the association can ever use.
    pub fn last(&self) -> u64 {
        self.ledger.lock().last
    }

    /// Ends the association before the first grant, so that the key of the association is never used. If numbers were
    /// already granted, returns false and changes nothing.
    pub fn end_unused(&self) -> bool {
        let mut ledger = self.ledger.lock();
        let is_unused = ledger.spent.packets() == 0;
        if is_unused {
            ledger.spent.end();
        }
        is_unused
    }

    /// Checks the time limits at `now_ns`, nanoseconds since any fixed moment. The association's time limits count from
    /// the first call of this function.
    pub fn tick(&self, now_ns: u64) -> Option<LifetimeEvent> {
        self.ledger.lock().spent.tick(now_ns)
    }

    /// Returns the next time at which [`SharedOutbound::tick`] can report an event.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.ledger.lock().spent.next_due_ns()
    }

    /// Returns the last granted sequence number, 0 before the first grant.
    pub fn sequence(&self) -> u64 {
        self.ledger.lock().sent
    }

    /// Returns the number of packets covered by grants.
    pub fn packets(&self) -> u64 {
        self.ledger.lock().spent.packets()
    }

    /// Returns the total length of the clear packets covered by grants, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ledger.lock().spent.bytes()
    }

    /// Returns the current reason to refuse sealing, or `None` while sealing is possible.
    pub fn ended(&self) -> Option<SealRefused> {
        self.ledger.lock().refusal()
    }
}

/// An inbound association shared by several threads.
#[derive(Debug)]
pub struct SharedInbound {
    config: SaConfig,
    opener: Opener,
    seen: Mutex<Seen>,
}

impl SharedInbound {
    /// Makes an association from its description.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// Does the same as [`SharedInbound::new`], with the AEADs of `library`.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        let opener = Opener::with_library(config, library)?;
        Ok(Self { config: config.clone(), opener, seen: Mutex::new(Seen::new(config)) })
    }

    /// Returns the description of the association.
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// Returns the constant part of the association.
    pub fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Opens a frame in place, as [`super::InboundSa::open`] does. If several threads open the same packet, only one
    /// call succeeds.
    ///
    /// # Errors
    /// Returns the reason to refuse the packet. After an error, the frame's bytes are unspecified. The anti-replay
    /// window has moved only if the packet was genuine.
    #[inline]
    pub fn open(&self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        let sequence = self.seen.lock().check(packet.sequence)?;
        let decrypted = self.opener.decrypt(frame, packet, sequence)?;
        let opened = self.opener.unwrap(frame, decrypted, sequence);
        // A genuine but refused packet has used the key and a sequence number.
        let event = self.seen.lock().take(sequence, opened.as_ref().ok())?;
        opened.map(|opened| Opened { event, ..opened })
    }

    /// Returns the last lifetime limit that a genuine but refused packet reached, as
    /// [`super::InboundSa::pending_event`] does.
    pub fn pending_event(&self) -> Option<LifetimeEvent> {
        self.seen.lock().spent.take_pending()
    }

    /// Checks the time limits at `now_ns`, nanoseconds since any fixed moment. The association's time limits count from
    /// the first call of this function.
    pub fn tick(&self, now_ns: u64) -> Option<LifetimeEvent> {
        self.seen.lock().spent.tick(now_ns)
    }

    /// Returns the next time at which [`SharedInbound::tick`] can report an event.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.seen.lock().spent.next_due_ns()
    }

    /// Returns the highest accepted sequence number.
    pub fn highest(&self) -> u64 {
        self.seen.lock().window.highest()
    }

    /// Ends the association, and returns the highest accepted sequence number.
    pub fn end(&self) -> u64 {
        let mut seen = self.seen.lock();
        seen.spent.end();
        seen.window.highest()
    }

    /// Returns the number of genuine packets so far.
    pub fn packets(&self) -> u64 {
        self.seen.lock().spent.packets()
    }

    /// Returns the total length of the clear packets so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.seen.lock().spent.bytes()
    }

    /// Returns true once a hard limit is reached.
    pub fn has_expired(&self) -> bool {
        self.seen.lock().spent.is_used_up()
    }
}

impl Seen {
    /// Counts a genuine packet, unless another thread has already counted it. `opened` is `None` for a refused packet.
    fn take(&mut self, sequence: u64, opened: Option<&Opened>) -> Result<Option<LifetimeEvent>, Refused> {
        if self.spent.is_used_up() {
            return Err(Refused::Expired);
        }
        self.window.advance(sequence)?;
        let Some(opened) = opened else {
            self.spent.spend_refused();
            return Ok(None);
        };
        Ok(self.spent.spend(opened.packet_len()))
    }
}
