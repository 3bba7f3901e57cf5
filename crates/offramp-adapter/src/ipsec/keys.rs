//! Used keys of associations, with their last numbers: all ports of a process share one registry.
//!
//! A number of a counter-mode key is used once. So the registry gives a key to one outbound association at a time, and
//! remembers its last number afterwards. It also remembers the highest number accepted with an inbound key: a recorded
//! packet is not accepted when the association is made again.
//!
//! With a [`KeyStore`] it remembers over a crash. Outbound numbers are reserved in steps. A step is written before a
//! number of it is granted, and the next step is requested when half of the last one is gone. After a restart the
//! process continues after the last step. If the next step is not written in time, nothing is sealed: the thread of the
//! frames never waits. An inbound mark is written ahead of the highest number by about the arrivals of a second, and
//! lowered to that number when packets stop: it costs packets only after a crash.

use super::SaDirection;
use super::association::{Inbound, Outbound};
use super::change::SaError;
use offramp_offload::esp::{FINGERPRINT_LEN, SaConfig};
use offramp_offload::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// Remembered keys of removed associations: a rekey of both directions each minute for three weeks. Then the oldest is
/// forgotten.
pub const KEYS_MAX: usize = 65_536;
/// Default number of sequence numbers reserved at a time: those of a second on a fast link, and 1/4096 of the space of
/// 32 bits.
pub const RESERVED_NUMBERS: u64 = 1 << 20;
/// Most queue pairs per association (`IFF_MULTI_QUEUE`'s limit; a guest has fewer).
const QUEUES_MAX: u64 = 256;
/// Most numbers used by queue pairs after the removal of their association: each finishes its batch and its current
/// super-frame, with at least a byte in each segment.
const NUMBERS_UNDER_WAY: u64 = 2 * QUEUES_MAX * u16::MAX as u64;
/// An inbound mark leads by this multiple of the packets since the last look, less [`LEAD_OFF`]. This is about a second
/// of a steady stream, and little for single packets: after a crash, a sender would have to repeat as many.
const LEAD: u64 = 8;
const LEAD_OFF: u64 = 4;
/// Looks without a packet until an inbound mark leads no more.
const IDLE_LOOKS: u32 = 50;

/// A key in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId {
    /// Its direction.
    pub direction: SaDirection,
    /// The SPI where the key may have other numbers with another one; 0 where it may not: outbound, in a counter mode.
    pub spi: u32,
    /// SHA-256 of the integrity key.
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

/// Progress of a key: no number up to this one is used again, or accepted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMark {
    /// The key.
    pub key: KeyId,
    /// The last number possibly used, or the highest possibly accepted.
    pub number: u64,
}

/// A store of marks that outlives the process.
pub trait KeyStore: Send {
    /// Replaces all marks by these, the oldest key first. They last when it returns, also over a crash of the system.
    ///
    /// # Errors
    /// When that is not certain; either the earlier marks or the new ones last then.
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
    /// The mark of removed associations; `None` when none has used the key.
    number: Option<u64>,
    /// The mark in the store.
    written: Option<u64>,
    /// Outbound associations with the key now, with the names of their ports; in a counter mode one.
    outbound: Vec<(Arc<Outbound>, Arc<str>)>,
    inbound: Vec<Arc<Inbound>>,
    /// The highest number at the last look, and looks since it was another one.
    looked: u64,
    idle: u32,
}

impl KeyRegistry {
    /// Creates a registry from `marks`. It writes to `store`, reserves `step` numbers at a time and wakes `waker` when
    /// [`KeyRegistry::keep`] has something to do.
    pub fn lasting(store: Box<dyn KeyStore>, marks: &[KeyMark], step: u64, waker: Waker) -> Self {
        let mut keys = Keys::default();
        for mark in marks {
            let key = keys.of(mark.key);
            (key.number, key.written) = (Some(mark.number), Some(mark.number));
        }
        Self { keys: Mutex::new(keys), disk: Some(Disk { store: Mutex::new(store), step: step.max(2), waker }) }
    }

    /// Returns the last number possibly used with this key, or the highest possibly accepted; `None` when there was
    /// none.
    pub fn last_number(&self, direction: SaDirection, config: &SaConfig) -> Option<u64> {
        lock(&self.keys).all.get(&KeyId::of(direction, config)).and_then(Key::used)
    }

    /// Returns the waker for new associations.
    pub(super) fn waker(&self) -> Option<&Waker> {
        self.disk.as_ref().map(|disk| &disk.waker)
    }

    /// Gives a key to an outbound association of the given port. It seals nothing before [`KeyRegistry::keep`].
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

    /// Takes the key back from a removed association. Its threads may still seal their current frames; with
    /// `is_replaced` even if no number is counted yet.
    pub(super) fn release_outbound(&self, sa: &Arc<Outbound>, is_replaced: bool) {
        let id = KeyId::of(SaDirection::Out, sa.shared.config());
        let mut keys = lock(&self.keys);
        let key = keys.of(id);
        key.outbound.retain(|(user, _)| !Arc::ptr_eq(user, sa));
        // If the association has sealed nothing and never will, the key may be used again.
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
    /// [`KeyStore`], so it is not for a thread of frames. Returns whether to call it again soon, some ten times a
    /// second: packets arrive, or arrived lately. Otherwise the waker signals the next call.
    ///
    /// # Errors
    /// When the store fails; associations continue up to their reserved numbers.
    pub fn keep(&self) -> io::Result<bool> {
        self.write(Keys::next_marks)
    }

    /// As [`KeyRegistry::keep`] when nothing moves any more: each mark is what was used, and no association may use
    /// more.
    ///
    /// # Errors
    /// When the store fails; the marks then exceed the numbers used.
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

    /// Returns the marks to store, the oldest key first.
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
            // The key was forgotten meanwhile: it is not in the next marks.
            let Some(key) = self.all.get_mut(&mark.key) else { continue };
            key.written = Some(mark.number);
            if mark.key.spi == 0 {
                key.outbound.iter().for_each(|(sa, _)| sa.shared.reserve(mark.number));
            }
            key.inbound.iter().for_each(|sa| sa.note_written(mark.number));
        }
    }

    /// Returns whether a mark leads the arrivals.
    fn is_ahead(&self) -> bool {
        self.all.values().any(|key| !key.inbound.is_empty() && key.written > key.used())
    }
}

impl Key {
    /// Returns whether no association has it now.
    fn is_free(&self) -> bool {
        self.outbound.is_empty() && self.inbound.is_empty()
    }

    /// Returns the last number used so far, or the highest accepted.
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
