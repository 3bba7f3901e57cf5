//! Associations used by several threads at once: their shared state is handed out under a short lock, and the cipher
//! runs outside it.
//!
//! An uncontended lock costs two atomic operations; a sender takes it once for a run of frames, a receiver twice for a
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

/// Sequence numbers for one thread; nobody else gets them, and nobody gets them twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    first: u64,
    count: u64,
    /// A lifetime that ends with them.
    pub event: Option<LifetimeEvent>,
    /// Half of the numbers reserved by [`SharedOutbound::reserve`] is gone. Reported once for each call of that.
    pub is_low: bool,
}

impl Grant {
    /// Returns the number of packets it covers.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first of the numbers.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number before the first, and the last.
    pub(super) fn into_range(self) -> (u64, u64) {
        (self.first - 1, self.first - 1 + self.count)
    }
}

/// An outbound association shared by several threads. Each seals with an [`OutboundSa`] of its own.
///
/// The numbers of one thread rise. Threads run apart, so a receiver needs a window as wide as all numbers in use at
/// once.
#[derive(Debug)]
pub struct SharedOutbound {
    config: SaConfig,
    library: &'static dyn CipherLibrary,
    ledger: Mutex<Ledger>,
}

/// The state of all grants.
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
    /// Returns the reason to refuse a grant now.
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

    /// As [`SharedOutbound::new`], with the ciphers of `library`, if it has them.
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

    /// Returns its description.
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// Returns the sealer of one thread. It needs granted numbers first. Lifetimes are counted here, not there.
    ///
    /// # Errors
    /// Returns an error if the cipher library cannot be set up a second time.
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

    /// Allows grants of numbers up to `last`, and none above it. Without a call there is no such bound. An owner that
    /// remembers used numbers over a crash writes `last` down first.
    pub fn reserve(&self, last: u64) {
        let mut ledger = self.ledger.lock();
        ledger.reserved = last;
        ledger.low_from = ledger.sent.saturating_add(last.saturating_sub(ledger.sent) / 2);
    }

    /// Allows grants of at most `more` numbers from now on, and returns the last of them: the association is being
    /// removed, and threads finish the packets begun.
    pub fn close(&self, more: u64) -> u64 {
        let mut ledger = self.ledger.lock();
        let last = ledger.sent.saturating_add(more).min(ledger.last).min(ledger.reserved);
        (ledger.reserved, ledger.low_from) = (last, u64::MAX);
        last
    }

    /// Returns the last number it can ever use.
    pub fn last(&self) -> u64 {
        self.ledger.lock().last
    }

    /// Ends an association before its first grant, so that its key stays unused for good. Returns false, and changes
    /// nothing, after a grant.
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

    /// Returns the next time with a possible event of [`SharedOutbound::tick`].
    pub fn next_due_ns(&self) -> Option<u64> {
        self.ledger.lock().spent.next_due_ns()
    }

    /// Returns the last granted sequence number, 0 before the first.
    pub fn sequence(&self) -> u64 {
        self.ledger.lock().sent
    }

    /// Returns the number of packets covered by grants.
    pub fn packets(&self) -> u64 {
        self.ledger.lock().spent.packets()
    }

    /// Returns the bytes of the clear packets covered by grants.
    pub fn bytes(&self) -> u64 {
        self.ledger.lock().spent.bytes()
    }

    /// Returns the reason to refuse sealing now; `None` while sealing is possible.
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

    /// As [`SharedInbound::new`], with the ciphers of `library`, if it has them.
    ///
    /// # Errors
    /// Returns a one-line error if the description is invalid.
    pub fn with_library(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        let opener = Opener::with_library(config, library)?;
        Ok(Self { config: config.clone(), opener, seen: Mutex::new(Seen::new(config)) })
    }

    /// Returns its description.
    pub fn config(&self) -> &SaConfig {
        &self.config
    }

    /// Returns the constant part.
    pub fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Opens a frame in place, as [`super::InboundSa::open`]. Of several threads with the same packet one succeeds.
    ///
    /// # Errors
    /// Returns the reason to refuse the packet. The frame's bytes are then unspecified. The window has moved only if
    /// the packet was genuine.
    #[inline]
    pub fn open(&self, frame: &mut Frame<'_>, packet: &EspPacket) -> Result<Opened, Refused> {
        let sequence = self.seen.lock().check(packet.sequence)?;
        let decrypted = self.opener.decrypt(frame, packet, sequence)?;
        let opened = self.opener.unwrap(frame, decrypted, sequence);
        // A genuine, refused packet has used the key and its number, too.
        let event = self.seen.lock().take(sequence, opened.as_ref().ok())?;
        opened.map(|opened| Opened { event, ..opened })
    }

    /// Returns a lifetime that ended with a genuine, but refused packet, as [`super::InboundSa::pending_event`].
    pub fn pending_event(&self) -> Option<LifetimeEvent> {
        self.seen.lock().spent.take_pending()
    }

    /// Checks the limits of time at `now_ns`, nanoseconds since any fixed moment. Time counts from the first call.
    pub fn tick(&self, now_ns: u64) -> Option<LifetimeEvent> {
        self.seen.lock().spent.tick(now_ns)
    }

    /// Returns the next time with a possible event of [`SharedInbound::tick`].
    pub fn next_due_ns(&self) -> Option<u64> {
        self.seen.lock().spent.next_due_ns()
    }

    /// Returns the highest accepted sequence number.
    pub fn highest(&self) -> u64 {
        self.seen.lock().window.highest()
    }

    /// Ends it, and returns the highest accepted sequence number.
    pub fn end(&self) -> u64 {
        let mut seen = self.seen.lock();
        seen.spent.end();
        seen.window.highest()
    }

    /// Returns the number of genuine packets so far.
    pub fn packets(&self) -> u64 {
        self.seen.lock().spent.packets()
    }

    /// Returns the bytes of the clear packets so far.
    pub fn bytes(&self) -> u64 {
        self.seen.lock().spent.bytes()
    }

    /// Returns true once a hard limit is reached.
    pub fn has_expired(&self) -> bool {
        self.seen.lock().spent.is_used_up()
    }
}

impl Seen {
    /// Counts a genuine packet, unless another thread was faster. `opened` is `None` for a refused packet.
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
