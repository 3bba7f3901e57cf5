//! The registry of the keys of associations, with the last sequence number of each key. All ports of a process share
//! one registry.
//!
//! A sequence number of a counter-mode key must be used only once. So the registry gives a key to only one outbound
//! association at a time. When the association ends, the registry stores the last sequence number used with the key.
//! The registry also stores the highest sequence number accepted with an inbound key. So a replayed packet is refused
//! even after the association was removed and created again.
//!
//! With a [`KeyStore`], the registry survives a crash. Outbound sequence numbers are reserved in steps of a fixed
//! number of sequence numbers. The end of a step is written to the store before any sequence number of the step is
//! granted. When half of a step is used, the next step is requested. After a restart, the process continues after the
//! last reserved step. If the next step is not written in time, no packet is sealed, because a thread on the frame path
//! never waits for the store.
//!
//! The stored sequence number of an inbound key, its mark ([`KeyMark`]), exceeds the highest accepted sequence number
//! by about the number of packets in one second. When packets stop, the mark is lowered to the highest accepted
//! sequence number. So the excess causes genuine packets to be refused only after a crash.

use super::SaDirection;
use super::association::{Inbound, Outbound};
use super::change::SaError;
use offramp_offload::esp::{FINGERPRINT_LEN, SaConfig};
use offramp_offload::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// Maximum number of keys in the registry: the keys of three weeks with one rekey of both directions per minute. Above
/// this number, the registry forgets the oldest key that no association uses.
pub const KEYS_MAX: usize = 65_536;
/// Default number of sequence numbers reserved at a time: the packets of one second on a fast link, or 1/4096 of the
/// 32-bit number space.
pub const RESERVED_NUMBERS: u64 = 1 << 20;
/// Maximum queue pairs per association (the limit of `IFF_MULTI_QUEUE`; a guest has fewer queue pairs).
const QUEUES_MAX: u64 = 256;
/// Maximum number of sequence numbers that queue pairs use after the removal of their association. Each queue pair
/// finishes its batch and its current super-frame, with at least one byte per segment.
const NUMBERS_UNDER_WAY: u64 = 2 * QUEUES_MAX * u16::MAX as u64;
/// Factor for the lead of an inbound mark. The lead is the distance from the highest accepted sequence number to the
/// mark: this factor times the number of packets since the last check, minus [`LEAD_OFF`]. So the lead is about the
/// packets of one second in a steady stream, and small for single packets. After a crash, a sender has to repeat as
/// many packets as the lead.
const LEAD: u64 = 8;
const LEAD_OFF: u64 = 4;
/// Number of consecutive checks without a packet after which an inbound mark is lowered to the highest accepted
/// sequence number.
const IDLE_LOOKS: u32 = 50;

/// The identity of a key in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId {
    /// The direction in which the key is used.
    pub direction: SaDirection,
    /// The SPI, because the same key may have other sequence numbers under another SPI. The value is 0 for an outbound
    /// counter-mode key, whose sequence numbers must be unique under all SPIs.
    pub spi: u32,
    /// SHA-256 of the integrity key, or of the encryption key if there is no integrity key.
    pub fingerprint: [u8; FINGERPRINT_LEN],
}

impl KeyId {
    /// Returns the identity of an association's key.
    pub fn of(direction: SaDirection, config: &SaConfig) -> Self {
        let is_shared = direction == SaDirection::Out && config.suite.is_counter_mode();
        let key = if config.integrity_key.is_empty() { &config.encryption_key } else { &config.integrity_key };
        Self { direction, spi: if is_shared { 0 } else { config.spi }, fingerprint: key.fingerprint() }
    }
}

/// Progress of a key: no sequence number up to `number` is used or accepted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMark {
    /// The key.
    pub key: KeyId,
    /// The last sequence number possibly used (outbound), or the highest sequence number possibly accepted (inbound).
    pub number: u64,
}

/// Persistent storage of marks.
pub trait KeyStore: Send {
    /// Replaces all marks by `marks`, with the oldest key first. On return, the marks are durable, even after a system
    /// crash.
    ///
    /// # Errors
    /// Fails if durability is uncertain. After a failure, the store contains either the earlier marks or the new marks.
    fn write(&mut self, marks: &[KeyMark]) -> io::Result<()>;
}

/// The keys of all associations in a process.
#[derive(Default)]
pub struct KeyRegistry {
    keys: Mutex<Keys>,
    disk: Option<Disk>,
}

impl std::fmt::Debug for KeyRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRegistry").field("keys", &self.keys).finish_non_exhaustive()
    }
}

struct Disk {
    /// The store. A thread locks the store before the keys, and holds only the lock of the store while the store
    /// writes.
    store: Mutex<Box<dyn KeyStore>>,
    step: u64,
    /// Waker of the thread that calls [`KeyRegistry::keep`].
    waker: Waker,
}

#[derive(Debug, Default)]
struct Keys {
    all: HashMap<KeyId, Key>,
    next_age: u64,
}

#[derive(Debug, Default)]
struct Key {
    age: u64,
    /// Last sequence number that removed associations possibly used with the key; `None` if no removed association has
    /// used the key.
    number: Option<u64>,
    /// The sequence number in the key's stored mark; `None` if the store does not contain the key.
    written: Option<u64>,
    /// Outbound associations that currently use the key, with the names of their ports; at most one association in a
    /// counter mode.
    outbound: Vec<(Arc<Outbound>, Arc<str>)>,
    inbound: Vec<Arc<Inbound>>,
    /// The highest sequence number at the last check, and the number of consecutive checks at which the number was
    /// unchanged.
    looked: u64,
    idle: u32,
}

impl KeyRegistry {
    /// Creates a registry from `marks`. The registry writes marks to `store`, reserves `step` sequence numbers of a key
    /// at a time, and wakes `waker` when [`KeyRegistry::keep`] must be called.
    pub fn lasting(store: Box<dyn KeyStore>, marks: &[KeyMark], step: u64, waker: Waker) -> Self {
        let mut keys = Keys::default();
        for mark in marks {
            let key = keys.of(mark.key);
            (key.number, key.written) = (Some(mark.number), Some(mark.number));
        }
        Self { keys: Mutex::new(keys), disk: Some(Disk { store: Mutex::new(store), step: step.max(2), waker }) }
    }

    /// Returns the last sequence number possibly used with the association's key, or the highest number possibly
    /// accepted. Returns `None` if no number was used or accepted.
    pub fn last_number(&self, direction: SaDirection, config: &SaConfig) -> Option<u64> {
        lock(&self.keys).all.get(&KeyId::of(direction, config)).and_then(Key::used)
    }

    /// Returns the waker for new associations.
    pub(super) fn waker(&self) -> Option<&Waker> {
        self.disk.as_ref().map(|disk| &disk.waker)
    }

    /// Registers an outbound association of port `port` as a user of its key. With a [`KeyStore`], a counter-mode
    /// association seals no packet before the next [`KeyRegistry::keep`].
    pub(super) fn take_outbound(&self, sa: &Arc<Outbound>, port: &Arc<str>) -> Result<(), SaError> {
        let config = sa.shared.config();
        let mut keys = lock(&self.keys);
        let key = keys.of(KeyId::of(SaDirection::Out, config));
        if config.suite.is_counter_mode() {
            let spi = config.spi;
            if let Some((_, port)) = key.outbound.first() {
                return Err(SaError::KeyOfAnotherPort { spi, port: port.to_string() });
            }
            if let Some(sequence) = key.number.filter(|&number| config.sequence < number) {
                return Err(SaError::UsedKey { spi, sequence });
            }
            if self.disk.is_some() {
                sa.shared.reserve(config.sequence);
            }
        }
        key.outbound.push((Arc::clone(sa), Arc::clone(port)));
        keys.forget_oldest();
        Ok(())
    }

    /// Registers an inbound association as a user of its key.
    pub(super) fn take_inbound(&self, sa: &Arc<Inbound>) {
        let mut keys = lock(&self.keys);
        keys.of(KeyId::of(SaDirection::In, sa.shared.config())).inbound.push(Arc::clone(sa));
        keys.forget_oldest();
    }

    /// Ends the use of a key by a removed association. Threads may still seal their current frames with the key. With
    /// `is_replaced`, threads may still seal with the key even if the association has counted no sequence number so
    /// far.
    pub(super) fn release_outbound(&self, sa: &Arc<Outbound>, is_replaced: bool) {
        let id = KeyId::of(SaDirection::Out, sa.shared.config());
        let mut keys = lock(&self.keys);
        let key = keys.of(id);
        key.outbound.retain(|(user, _)| !Arc::ptr_eq(user, sa));
        // If the association has sealed no packet and will never seal a packet, another association may use the key.
        if is_replaced || !sa.shared.end_unused() {
            key.number = key.number.max(Some(sa.shared.close(NUMBERS_UNDER_WAY)));
        }
        keys.forget_unused(id);
    }

    /// Ends an inbound association, and records its highest accepted sequence number.
    pub(super) fn release_inbound(&self, sa: &Arc<Inbound>) {
        let id = KeyId::of(SaDirection::In, sa.shared.config());
        let mut keys = lock(&self.keys);
        let key = keys.of(id);
        key.inbound.retain(|user| !Arc::ptr_eq(user, sa));
        key.number = key.number.max(Some(sa.shared.end()).filter(|&highest| highest > 0));
        keys.forget_unused(id);
    }

    /// Reserves the next outbound sequence numbers, and stores the progress of inbound keys, as needed. Waits for the
    /// [`KeyStore`], so a thread on the frame path must not call this method. Returns `true` if packets arrive, or
    /// arrived recently: the caller must call again after about a tenth of a second. If the method returns `false`, the
    /// waker signals the next call.
    ///
    /// # Errors
    /// Fails if the store fails. Associations continue to seal up to their reserved sequence numbers.
    pub fn keep(&self) -> io::Result<bool> {
        self.write(Keys::next_marks)
    }

    /// After all traffic has stopped, stores as marks the sequence numbers that were actually used. After this call, no
    /// association may use a further sequence number.
    ///
    /// # Errors
    /// Fails if the store fails. After a failure, the stored marks exceed the sequence numbers used.
    pub fn close(&self) -> io::Result<()> {
        self.write(|keys, _| keys.final_marks()).map(|_| ())
    }

    fn write(&self, marks: impl FnOnce(&mut Keys, u64) -> Vec<KeyMark>) -> io::Result<bool> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let mut store = lock(&disk.store);
        let mut keys = lock(&self.keys);
        let marks = marks(&mut keys, disk.step);
        if !keys.are_written(&marks) {
            drop(keys);
            store.write(&marks)?;
            keys = lock(&self.keys);
            keys.written(&marks);
        }
        Ok(keys.is_ahead())
    }
}

impl Keys {
    fn of(&mut self, id: KeyId) -> &mut Key {
        let next_age = &mut self.next_age;
        self.all.entry(id).or_insert_with(|| {
            *next_age += 1;
            Key { age: *next_age, ..Key::default() }
        })
    }

    fn forget_unused(&mut self, id: KeyId) {
        if self.all.get(&id).is_some_and(|key| key.is_free() && key.number.is_none()) {
            self.all.remove(&id);
        }
    }

    fn forget_oldest(&mut self) {
        if self.all.len() > KEYS_MAX
            && let Some((&id, _)) = self.all.iter().filter(|(_, key)| key.is_free()).min_by_key(|(_, key)| key.age)
        {
            self.all.remove(&id);
        }
    }

    /// Returns the marks to store, with the oldest key first.
    fn marks(&mut self, mut number_of: impl FnMut(&KeyId, &mut Key) -> Option<u64>) -> Vec<KeyMark> {
        let mut marks: Vec<_> = self
            .all
            .iter_mut()
            .filter_map(|(id, key)| Some((key.age, KeyMark { key: *id, number: number_of(id, key)? })))
            .collect();
        marks.sort_unstable_by_key(|(age, _)| *age);
        marks.into_iter().map(|(_, mark)| mark).collect()
    }

    fn next_marks(&mut self, step: u64) -> Vec<KeyMark> {
        self.marks(|id, key| match id.direction {
            SaDirection::Out => key.next_reserved(step),
            SaDirection::In => key.next_seen(),
        })
    }

    fn final_marks(&mut self) -> Vec<KeyMark> {
        self.marks(|_, key| {
            for (sa, _) in &key.outbound {
                sa.shared.close(0);
            }
            key.used()
        })
    }

    fn are_written(&self, marks: &[KeyMark]) -> bool {
        let is_written = |mark: &KeyMark| self.all.get(&mark.key).is_some_and(|key| key.written == Some(mark.number));
        let written = self.all.values().filter(|key| key.written.is_some()).count();
        written == marks.len() && marks.iter().all(is_written)
    }

    fn written(&mut self, marks: &[KeyMark]) {
        self.all.values_mut().for_each(|key| key.written = None);
        for mark in marks {
            // If the registry has forgotten a key during the write, the key is also missing in the next marks.
            let Some(key) = self.all.get_mut(&mark.key) else { continue };
            key.written = Some(mark.number);
            if mark.key.spi == 0 {
                key.outbound.iter().for_each(|(sa, _)| sa.shared.reserve(mark.number));
            }
            key.inbound.iter().for_each(|sa| sa.note_written(mark.number));
        }
    }

    /// Returns whether the mark of an inbound key exceeds the highest accepted sequence number.
    fn is_ahead(&self) -> bool {
        self.all.values().any(|key| !key.inbound.is_empty() && key.written > key.used())
    }
}

impl Key {
    /// Returns whether no association currently uses the key.
    fn is_free(&self) -> bool {
        self.outbound.is_empty() && self.inbound.is_empty()
    }

    /// Returns the last sequence number used so far (outbound), or the highest sequence number accepted (inbound).
    fn used(&self) -> Option<u64> {
        let outbound = self.outbound.iter().map(|(sa, _)| sa.shared.sequence());
        let used = outbound.chain(self.inbound.iter().map(|sa| sa.shared.highest())).max();
        self.number.max(used.filter(|&used| used > 0))
    }

    fn next_reserved(&self, step: u64) -> Option<u64> {
        let Some(last) = self.outbound.iter().map(|(sa, _)| sa.shared.last()).max() else { return self.number };
        let used = self.used().unwrap_or(0);
        let is_enough = |written: &u64| *written >= last || written.saturating_sub(used) > step / 2;
        Some(self.written.filter(is_enough).unwrap_or_else(|| used.saturating_add(step).min(last)))
    }

    fn next_seen(&mut self) -> Option<u64> {
        let used = self.used()?;
        let Some(last) = self.inbound.iter().map(|sa| sa.last_number()).max() else { return Some(used) };
        let arrived = used.saturating_sub(self.looked);
        self.looked = used;
        self.idle = if arrived == 0 { self.idle.saturating_add(1) } else { 0 };
        // The mark must cover the packets that arrive until the next check. As many packets are expected as have
        // arrived since the last check.
        let is_enough = |written: &u64| *written >= used.saturating_add(arrived) && self.idle < IDLE_LOOKS;
        let lead = arrived.saturating_mul(LEAD).saturating_sub(LEAD_OFF);
        let wanted = || if self.idle < IDLE_LOOKS { used.saturating_add(lead).min(last) } else { used };
        Some(self.written.filter(is_enough).unwrap_or_else(wanted))
    }
}
