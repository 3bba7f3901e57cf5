//! Keys that associations have used, and how far: all ports of a process share one registry.
//!
//! A number of a counter-mode key is used once. So the registry gives a key to one outbound association at a time, and
//! remembers the last number of those that are gone. It remembers the highest number that an inbound key has accepted,
//! too: a packet that was recorded is not accepted by an association that is made again.
//!
//! With a [`KeyStore`] it remembers over a crash. Outbound numbers are reserved in steps: a step is written before a
//! number of it is granted, and the next step is asked for when half of the last one is gone. A process that starts again
//! continues after the last step. Where the next step is not written in time, nothing is sealed: the thread of the frames
//! never waits. An inbound mark is written ahead of the highest number by about what arrives in a second, and lowered to
//! that number when packets stop: it costs no packet but after a crash.

use super::SaDirection;
use super::association::{Inbound, Outbound};
use super::change::SaError;
use offramp_offload::esp::{FINGERPRINT_LEN, SaConfig};
use offramp_offload::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// Keys of associations that are gone which are remembered: a rekey of both directions each minute for three weeks. Then
/// the oldest is forgotten.
pub const KEYS_MAX: usize = 65_536;
/// Numbers that are reserved at a time, unless the registry is made with others: a second of a fast link, and 1/4096 of what
/// an association without extended sequence numbers has.
pub const RESERVED_NUMBERS: u64 = 1 << 20;
/// Most queue pairs that seal with an association (`IFF_MULTI_QUEUE`'s limit; a guest has fewer).
const QUEUES_MAX: u64 = 256;
/// Numbers that queue pairs may use after their association was taken out: each finishes its batch and the super-frame that
/// it is at, whose segments have at least a byte each.
const NUMBERS_UNDER_WAY: u64 = 2 * QUEUES_MAX * u16::MAX as u64;
/// An inbound mark leads by this multiple of the packets since the last look, less [`LEAD_OFF`]: about a second of a steady
/// stream, and little for single packets, of which a sender would have to repeat as many after a crash.
const LEAD: u64 = 8;
const LEAD_OFF: u64 = 4;
/// Looks without a packet after which an inbound mark leads no more.
const IDLE_LOOKS: u32 = 50;

/// A key in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId {
    /// Which way it protects.
    pub direction: SaDirection,
    /// The SPI where the key may have other numbers with another one; 0 where it may not: outbound, in a counter mode.
    pub spi: u32,
    /// SHA-256 of the key that protects the integrity.
    pub fingerprint: [u8; FINGERPRINT_LEN],
}

impl KeyId {
    /// The key of an association.
    pub fn of(direction: SaDirection, config: &SaConfig) -> Self {
        let is_shared = direction == SaDirection::Out && config.suite.is_counter_mode();
        let key = if config.integrity_key.is_empty() { &config.encryption_key } else { &config.integrity_key };
        Self { direction, spi: if is_shared { 0 } else { config.spi }, fingerprint: key.fingerprint() }
    }
}

/// How far a key has come: no number up to this one is used again, or accepted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMark {
    /// The key.
    pub key: KeyId,
    /// The last number that it may have used, or the highest that it may have accepted.
    pub number: u64,
}

/// Where marks outlive the process.
pub trait KeyStore: Send {
    /// Replaces all marks by these, the oldest key first. They last when it returns, also over a crash of the system.
    ///
    /// # Errors
    /// When that is not certain; the marks of before or the new ones last then.
    fn write(&mut self, marks: &[KeyMark]) -> io::Result<()>;
}

/// The keys of a process.
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
    /// Locked before the keys, and alone while it writes.
    store: Mutex<Box<dyn KeyStore>>,
    step: u64,
    /// Of the thread that calls [`KeyRegistry::keep`].
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
    /// The mark of associations that are gone; `None` when none has used the key.
    number: Option<u64>,
    /// The mark that lasts.
    written: Option<u64>,
    /// Outbound associations that use the key now, with the names of their ports; in a counter mode one.
    outbound: Vec<(Arc<Outbound>, Arc<str>)>,
    inbound: Vec<Arc<Inbound>>,
    /// The highest number at the last look, and looks since it was another one.
    looked: u64,
    idle: u32,
}

impl KeyRegistry {
    /// A registry that starts from `marks` and writes to `store`, reserving `step` numbers at a time. It wakes `waker` when
    /// [`KeyRegistry::keep`] has something to do.
    pub fn lasting(store: Box<dyn KeyStore>, marks: &[KeyMark], step: u64, waker: Waker) -> Self {
        let mut keys = Keys::default();
        for mark in marks {
            let key = keys.of(mark.key);
            (key.number, key.written) = (Some(mark.number), Some(mark.number));
        }
        Self { keys: Mutex::new(keys), disk: Some(Disk { store: Mutex::new(store), step: step.max(2), waker }) }
    }

    /// The last number that an association with this key may have used, or the highest that it may have accepted; `None`
    /// when there was none.
    pub fn last_number(&self, direction: SaDirection, config: &SaConfig) -> Option<u64> {
        lock(&self.keys).all.get(&KeyId::of(direction, config)).and_then(Key::used)
    }

    /// What new associations wake.
    pub(super) fn waker(&self) -> Option<&Waker> {
        self.disk.as_ref().map(|disk| &disk.waker)
    }

    /// Gives a key to an outbound association of that port. It seals nothing before [`KeyRegistry::keep`].
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

    /// Notes an inbound association.
    pub(super) fn take_inbound(&self, sa: &Arc<Inbound>) {
        let mut keys = lock(&self.keys);
        keys.of(KeyId::of(SaDirection::In, sa.shared.config())).inbound.push(Arc::clone(sa));
        keys.forget_oldest();
    }

    /// Takes the key back from an association that is taken out, which may seal what its threads are at. `is_replaced`:
    /// they may be sealing now, though nothing is counted yet.
    pub(super) fn release_outbound(&self, sa: &Arc<Outbound>, is_replaced: bool) {
        let id = KeyId::of(SaDirection::Out, sa.shared.config());
        let mut keys = lock(&self.keys);
        let key = keys.of(id);
        key.outbound.retain(|(user, _)| !Arc::ptr_eq(user, sa));
        // Of one that has sealed nothing, and now never will, the key may come again.
        if is_replaced || !sa.shared.end_unused() {
            key.number = key.number.max(Some(sa.shared.close(NUMBERS_UNDER_WAY)));
        }
        keys.forget_unused(id);
    }

    /// Ends an inbound association, and remembers how far it has come.
    pub(super) fn release_inbound(&self, sa: &Arc<Inbound>) {
        let id = KeyId::of(SaDirection::In, sa.shared.config());
        let mut keys = lock(&self.keys);
        let key = keys.of(id);
        key.inbound.retain(|user| !Arc::ptr_eq(user, sa));
        key.number = key.number.max(Some(sa.shared.end()).filter(|&highest| highest > 0));
        keys.forget_unused(id);
    }

    /// Reserves the next numbers and notes how far inbound keys have come, where it is time to. It waits for the
    /// [`KeyStore`], so it is not for a thread of frames. Returns whether to call it again soon, some ten times a second:
    /// packets arrive, or arrived lately. Otherwise the waker says when.
    ///
    /// # Errors
    /// When the store fails; associations continue up to what they have.
    pub fn keep(&self) -> io::Result<bool> {
        self.write(Keys::next_marks)
    }

    /// As [`KeyRegistry::keep`] when nothing moves any more: each mark is what was used, and no association may use more.
    ///
    /// # Errors
    /// When the store fails; the marks are higher than what was used then.
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

    /// The marks that should last, the oldest key first.
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
            // One that was forgotten meanwhile is in the next ones no more.
            let Some(key) = self.all.get_mut(&mark.key) else { continue };
            key.written = Some(mark.number);
            if mark.key.spi == 0 {
                key.outbound.iter().for_each(|(sa, _)| sa.shared.reserve(mark.number));
            }
            key.inbound.iter().for_each(|sa| sa.note_written(mark.number));
        }
    }

    /// Whether a mark leads what has arrived.
    fn is_ahead(&self) -> bool {
        self.all.values().any(|key| !key.inbound.is_empty() && key.written > key.used())
    }
}

impl Key {
    /// Whether no association has it now.
    fn is_free(&self) -> bool {
        self.outbound.is_empty() && self.inbound.is_empty()
    }

    /// The last number that was used so far, or the highest that was accepted.
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
        // The packets of the next look, if they are as many, are to lie below.
        let is_enough = |written: &u64| *written >= used.saturating_add(arrived) && self.idle < IDLE_LOOKS;
        let lead = arrived.saturating_mul(LEAD).saturating_sub(LEAD_OFF);
        let wanted = || if self.idle < IDLE_LOOKS { used.saturating_add(lead).min(last) } else { used };
        Some(self.written.filter(is_enough).unwrap_or_else(wanted))
    }
}
