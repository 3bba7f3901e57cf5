//! Associations that several threads use at once: what they share is handed out under a short lock, and
//! the cipher runs outside it.
//!
//! A lock that nobody else holds costs two atomic operations; a sender takes it once for a run of frames,
//! a receiver twice for a packet.

use super::config::{InvalidSa, SaConfig};
use super::library::{CipherLibrary, aws_lc};
use super::lifetime::{Lifetime, LifetimeEvent, Spent};
use super::open::{Opened, Opener, Refused, Seen};
use super::seal::{OutboundSa, SealRefused};
use super::udp::EspPacket;
use crate::frame::Frame;
use crate::sync::Mutex;

/// Sequence numbers that one thread may use; nobody else gets them, and nobody gets them twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    first: u64,
    count: u64,
    /// A lifetime that ends with them.
    pub event: Option<LifetimeEvent>,
    /// Half of what [`SharedOutbound::reserve`] let be granted is gone. Reported once for each call of that.
    pub is_low: bool,
}

impl Grant {
    /// How many packets may be sealed with it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first of the numbers.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number in front of the first, and the last.
    pub(super) fn into_range(self) -> (u64, u64) {
        (self.first - 1, self.first - 1 + self.count)
    }
}

/// An association that several threads seal for, each with an [`OutboundSa`] of its own.
///
/// The numbers of one thread rise. Threads run apart, so a receiver needs a window as wide as the numbers that all
/// threads use at once.
#[derive(Debug)]
pub struct SharedOutbound {
    config: SaConfig,
    library: &'static dyn CipherLibrary,
    ledger: Mutex<Ledger>,
}

/// What was handed out.
#[derive(Debug)]
struct Ledger {
    sent: u64,
    last: u64,
    /// Numbers above it are not granted yet.
    reserved: u64,
    /// From this number on a grant reports that it is low.
    low_from: u64,
    spent: Spent,
}

impl Ledger {
    /// Why nothing can be granted now.
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
    /// When something is wrong with the description, as one line.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// As [`SharedOutbound::new`], with the ciphers of `library`, where it has them.
    ///
    /// # Errors
    /// When something is wrong with the description, as one line.
    pub fn with_library(config: &SaConfig, library: &'static dyn CipherLibrary) -> Result<Self, InvalidSa> {
        OutboundSa::with_library(config, library)?;
        let last = if config.esn { u64::MAX } else { u64::from(u32::MAX) };
        let spent = Spent::new(config.lifetime);
        let ledger = Ledger { sent: config.sequence, last, reserved: u64::MAX, low_from: u64::MAX, spent };
        Ok(Self { config: config.clone(), library, ledger: Mutex::new(ledger) })
    }

    /// What it was made from.
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// What one thread seals with, as soon as it has been granted numbers. Lifetimes are counted here, not there.
    ///
    /// # Errors
    /// When the cipher library cannot be had once more.
    pub fn sealer(&self) -> Result<OutboundSa, InvalidSa> {
        let config = SaConfig { lifetime: Lifetime::default(), ..self.config.clone() };
        let mut sealer = OutboundSa::with_library(&config, self.library)?;
        // None yet.
        sealer.take_over(Grant { first: 1, count: 0, event: None, is_low: false });
        Ok(sealer)
    }

    /// Hands out numbers for at most `packets` packets of `packet_len` clear bytes each, at least one, and
    /// counts them as sent.
    ///
    /// # Errors
    /// [`SealRefused::Expired`], [`SealRefused::SequenceExhausted`] or [`SealRefused::Unreserved`] when none is left.
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

    /// Lets numbers up to `last` be granted, and none above it. Without a call there is no such bound. Who remembers used
    /// numbers over a crash writes `last` down first.
    pub fn reserve(&self, last: u64) {
        let mut ledger = self.ledger.lock();
        ledger.reserved = last;
        ledger.low_from = ledger.sent.saturating_add(last.saturating_sub(ledger.sent) / 2);
    }

    /// Lets at most `more` numbers be granted from now on, and returns the last of them: the association is taken out,
    /// and threads finish what they have begun.
    pub fn close(&self, more: u64) -> u64 {
        let mut ledger = self.ledger.lock();
        let last = ledger.sent.saturating_add(more).min(ledger.last).min(ledger.reserved);
        (ledger.reserved, ledger.low_from) = (last, u64::MAX);
        last
    }

    /// The last number that it can ever use.
    pub fn last(&self) -> u64 {
        self.ledger.lock().last
    }

    /// Ends an association that has handed out no number, and never will, so that its key stays unused. `false`, and
    /// nothing changes, when it has handed out one.
    pub fn end_unused(&self) -> bool {
        let mut ledger = self.ledger.lock();
        let is_unused = ledger.spent.packets() == 0;
        if is_unused {
            ledger.spent.end();
        }
        is_unused
    }

    /// Checks the limits of time at `now_ns`, nanoseconds since any fixed moment. Time counts from the first call.
    pub fn tick(&self, now_ns: u64) -> Option<LifetimeEvent> {
        self.ledger.lock().spent.tick(now_ns)
    }

    /// When [`SharedOutbound::tick`] may report something next.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.ledger.lock().spent.next_due_ns()
    }

    /// The last sequence number that was handed out, 0 before the first.
    pub fn sequence(&self) -> u64 {
        self.ledger.lock().sent
    }

    /// Packets that numbers were handed out for.
    pub fn packets(&self) -> u64 {
        self.ledger.lock().spent.packets()
    }

    /// Bytes of the clear packets that numbers were handed out for.
    pub fn bytes(&self) -> u64 {
        self.ledger.lock().spent.bytes()
    }

    /// Why nothing can be sealed now; `None` while something can.
    pub fn ended(&self) -> Option<SealRefused> {
        self.ledger.lock().refusal()
    }
}

/// An association that several threads open with.
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
    /// When something is wrong with the description, as one line.
    pub fn new(config: &SaConfig) -> Result<Self, InvalidSa> {
        Self::with_library(config, aws_lc())
    }

    /// As [`SharedInbound::new`], with the ciphers of `library`, where it has them.
    ///
    /// # Errors
    /// When something is wrong with the description, as one line.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        let opener = Opener::with_library(config, library)?;
        Ok(Self { config: config.clone(), opener, seen: Mutex::new(Seen::new(config)) })
    }

    /// What it was made from.
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// The part that does not change.
    pub fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Opens a frame in place, as [`super::InboundSa::open`]. Of several threads that hold the same packet one succeeds.
    ///
    /// # Errors
    /// Why the packet is not handed on; the frame's bytes may then be anything. The window has moved only if
    /// the packet was genuine.
    #[inline]
    pub fn open(&self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        let sequence = self.seen.lock().check(packet.sequence)?;
        let decrypted = self.opener.decrypt(frame, packet, sequence)?;
        let opened = self.opener.unwrap(frame, decrypted, sequence);
        // A genuine packet that is refused has used the key and its number, too.
        let event = self.seen.lock().take(sequence, opened.as_ref().ok())?;
        opened.map(|opened| Opened { event, ..opened })
    }

    /// A lifetime that ended with a packet which was genuine, but refused, as [`super::InboundSa::pending_event`].
    pub fn pending_event(&self) -> Option<LifetimeEvent> {
        self.seen.lock().spent.take_pending()
    }

    /// Checks the limits of time at `now_ns`, nanoseconds since any fixed moment. Time counts from the first call.
    pub fn tick(&self, now_ns: u64) -> Option<LifetimeEvent> {
        self.seen.lock().spent.tick(now_ns)
    }

    /// When [`SharedInbound::tick`] may report something next.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.seen.lock().spent.next_due_ns()
    }

    /// The highest sequence number that was accepted.
    pub fn highest(&self) -> u64 {
        self.seen.lock().window.highest()
    }

    /// Ends it, and returns the highest sequence number that it accepted.
    pub fn end(&self) -> u64 {
        let mut seen = self.seen.lock();
        seen.spent.end();
        seen.window.highest()
    }

    /// Genuine packets so far.
    pub fn packets(&self) -> u64 {
        self.seen.lock().spent.packets()
    }

    /// Bytes of the clear packets so far.
    pub fn bytes(&self) -> u64 {
        self.seen.lock().spent.bytes()
    }

    /// Whether a hard limit is reached.
    pub fn has_expired(&self) -> bool {
        self.seen.lock().spent.is_used_up()
    }
}

impl Seen {
    /// Counts a genuine packet, unless another thread was faster. `opened` is `None` when it is refused.
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
