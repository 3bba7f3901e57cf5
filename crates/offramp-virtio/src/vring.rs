//! A ring with its memory, notifications and fetched chains.

use crate::dirty_log::DirtyLog;
use crate::inflight::Part;
use crate::memory::GuestMemory;
use crate::notifier::{CallNotifier, Event, Kick};
use crate::ring::{BadRing, Batch, Broken, Buffer, Chain, Fetched, Published, Ring, RingOptions, RingPlace};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

mod command;
mod frame;
mod open;
#[cfg(test)]
mod tests;

#[cfg(debug_assertions)]
pub use frame::copied_bytes;

/// The parameters of a vring's start.
#[derive(Debug)]
pub struct VringSetup {
    /// Memory of the ring and of all its buffers.
    pub memory: Arc<GuestMemory>,
    /// Location of the ring in `memory`.
    pub place: RingPlace,
    /// True if `RING_PACKED` was negotiated.
    pub is_packed: bool,
    /// Options of the ring.
    pub options: RingOptions,
    /// Start position. For a packed ring, the low half is the next available position, and the high half the next used
    /// position. The top bit of each half is the wrap counter. `0x8000_8000` means a new ring, and 0 means a new ring
    /// if the descriptors in memory show that no device has used the ring. For a split ring, the used index in memory
    /// is the position, and `base` must be below 65536.
    pub base: u32,
    /// Eventfd for the driver's kicks, or `None` if the ring is polled.
    pub kick: Option<Event>,
    /// True if the device marks the parts of the ring that it writes in the dirty log (`VHOST_VRING_F_LOG`).
    pub is_logged: bool,
    /// Part of the inflight region that stores a packed ring's position beyond the end of this process, if any.
    pub inflight: Option<Part>,
}

/// One virtqueue, for one thread. The crate's documentation shows the loop of a device.
///
/// A vring is empty before its start: it has no chains, and publishes nothing.
#[derive(Debug, Default)]
pub struct Vring {
    ring: Option<Ring>,
    /// Memory of the ring and the batch, kept mapped by this reference.
    memory: Arc<GuestMemory>,
    place: RingPlace,
    /// Fetched chains, including the waiting chains.
    batch: Batch,
    /// Frames that are written piece by piece.
    open: open::OpenFrames,
    /// Number of used chains not yet visible to the driver.
    staged: usize,
    /// Number of slots visible to the driver, for which the device has not yet decided whether to notify the driver.
    unsignalled: u32,
    kick: Kick,
    /// True if kicks are requested from the driver.
    wants_kicks: bool,
    call: CallNotifier,
    err: CallNotifier,
    is_logged: bool,
}

impl Vring {
    /// Starts the ring, with kicks disabled.
    ///
    /// # Errors
    /// Returns an error if the ring lies outside the memory, is not aligned, or has an invalid size or base. After an
    /// error, the vring is unchanged.
    pub fn start(&mut self, setup: VringSetup, log: Option<&DirtyLog>) -> Result<(), BadRing> {
        let VringSetup { memory, place, is_packed, options, base, kick, is_logged, inflight } = setup;
        let mut ring = Ring::new(&memory, is_packed, &place, base, options, inflight)?;
        ring.disable_notifications();
        self.forget_chains();
        self.ring = Some(ring);
        self.memory = memory;
        self.place = place;
        self.kick = Kick::new(kick);
        self.wants_kicks = false;
        self.is_logged = is_logged;
        self.mark_written(log);
        Ok(())
    }

    /// Stops the ring. Returns the base for the next start, or `None` if the ring was not started. After the next
    /// start, the device fetches unpublished used chains again. The descriptors of [`Vring::set_call`] and
    /// [`Vring::set_err`] stay set.
    pub fn stop(&mut self) -> Option<u32> {
        let base = self.ring.take().map(|ring| ring.base(&self.batch));
        self.forget_chains();
        self.kick = Kick::default();
        // No pointer into the memory is left.
        self.memory = Arc::default();
        base
    }

    /// Stops a ring in an invalid state found by [`Vring::fetch`], and reports the failure on the error descriptor.
    pub fn fail(&mut self) {
        self.err.notify();
        self.stop();
    }

    fn forget_chains(&mut self) {
        self.batch.clear();
        self.open.clear().for_each(drop);
        (self.staged, self.unsignalled) = (0, 0);
    }

    /// Returns whether the ring was started and not stopped.
    pub fn is_started(&self) -> bool {
        self.ring.is_some()
    }

    /// Returns the number of entries of the ring.
    #[inline]
    pub fn size(&self) -> u16 {
        self.place.size
    }

    /// Sets the descriptor for notifications to the driver. `None` turns notifications off.
    pub fn set_call(&mut self, call: Option<Event>) {
        self.call = CallNotifier::new(call);
    }

    /// Sets the descriptor on which [`Vring::fail`] reports a failed ring.
    pub fn set_err(&mut self, err: Option<Event>) {
        self.err = CallNotifier::new(err);
    }

    /// Sets whether the device marks the parts of the ring that it writes in the dirty log.
    pub fn set_logged(&mut self, is_logged: bool) {
        self.is_logged = is_logged;
    }

    /// Fetches at most [`FETCH_MAX`](crate::ring::FETCH_MAX) chains after the waiting chains. Without a log, the fetch
    /// can write meaningless bytes into receive buffers before a frame is written into these buffers.
    ///
    /// # Errors
    /// Returns an error if the ring's state is invalid. The caller must then call [`Vring::fail`].
    #[inline]
    pub fn fetch(&mut self, log: Option<&DirtyLog>) -> Result<Fetched, Broken> {
        self.batch.claims = log.is_none();
        match &mut self.ring {
            Some(ring) => ring.fetch(&self.memory, &mut self.batch),
            None => Ok(Fetched::default()),
        }
    }

    /// Returns the waiting chains, in order.
    #[inline]
    pub fn waiting(&self) -> &[Chain] {
        self.batch.waiting()
    }

    /// Takes the next waiting chain. The caller must return taken chains with [`Vring::add_used`], in the same order.
    #[inline]
    pub fn pop(&mut self) -> Option<Chain> {
        self.batch.pop()
    }

    /// Returns the buffers of a waiting chain, or of a chain taken since the last fetch.
    ///
    /// # Panics
    /// Can panic if the chain was taken before the last fetch, or belongs to another ring.
    #[inline]
    pub fn buffers(&self, chain: &Chain) -> &[Buffer] {
        self.batch.buffers(chain)
    }

    /// Adds a chain to the used chains. `written` is the number of bytes that the device has written into the chain.
    /// The driver sees the used chain after [`Vring::publish`].
    #[inline]
    pub fn add_used(&mut self, chain: &Chain, written: u32) {
        if let Some(ring) = &mut self.ring {
            ring.add_used(chain, written);
            self.staged += 1;
        }
    }

    /// Returns the number of used chains not yet visible to the driver.
    #[inline]
    pub fn staged(&self) -> usize {
        self.staged
    }

    /// Publishes all used chains in one step. Returns `None` if every used chain is already published. If the driver
    /// needs a notification, call [`Vring::notify`] now. To defer the notification, call [`Vring::needs_notification`]
    /// later. Open frames are dropped, and the chains of open frames are published with length 0.
    #[inline]
    pub fn publish(&mut self, log: Option<&DirtyLog>) -> Option<Published> {
        if self.open.has_chains() {
            self.cancel_open_frames();
        }
        if self.staged == 0 {
            return None;
        }
        self.staged = 0;
        let published = self.ring.as_mut()?.publish(self.unsignalled);
        // Mark the pages after the write, so that a page copied before the mark is copied again.
        self.mark_written(log);
        // A driver that needs no notification is polling, and sees all slots.
        self.unsignalled =
            if published.needs_notification { self.unsignalled.saturating_add(published.slots.into()) } else { 0 };
        Some(published)
    }

    /// Returns whether the driver still needs the deferred notification. After this call, no slot is unsignalled, so
    /// the caller must act on the result.
    pub fn needs_notification(&mut self) -> bool {
        let unsignalled = std::mem::take(&mut self.unsignalled);
        self.ring.as_ref().is_some_and(|ring| ring.needs_notification(unsignalled))
    }

    /// Treats all slots as unsignalled if the ring was used before, because an earlier device might have deferred a
    /// notification. Returns whether the ring was used before.
    pub fn inherit_unsignalled(&mut self) -> bool {
        let has_run = self.ring.as_ref().is_some_and(Ring::has_run);
        if has_run {
            self.unsignalled = u32::MAX;
        }
        has_run
    }

    /// Notifies the driver. Returns `false` without a descriptor.
    #[inline]
    pub fn notify(&mut self) -> bool {
        self.unsignalled = 0;
        self.call.notify()
    }

    /// Returns whether the driver has made at least `slots` unfetched slots available.
    pub fn has_ahead(&self, slots: u16) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.has_ahead(slots))
    }

    /// Requests a kick from the driver when the driver adds the next chain. Fetch once more before you sleep: the
    /// driver might have added a chain before the driver saw the request.
    pub fn enable_notifications(&mut self, log: Option<&DirtyLog>) {
        self.wants_kicks = true;
        if let Some(ring) = &mut self.ring {
            ring.enable_notifications();
        }
        self.mark_written(log);
    }

    /// Tells the driver that no kicks are needed, and drops pending kicks.
    pub fn disable_notifications(&mut self, log: Option<&DirtyLog>) {
        self.wants_kicks = false;
        if let Some(ring) = &mut self.ring {
            ring.disable_notifications();
        }
        self.mark_written(log);
        self.kick.drain();
    }

    /// Returns whether a started ring will receive no kicks: the ring has no descriptor for kicks, or kicks are not
    /// requested from the driver.
    pub fn is_unannounced(&self) -> bool {
        self.is_started() && !(self.wants_kicks && self.kick.fd().is_some())
    }

    /// Returns the eventfd to wait for until the driver kicks.
    pub fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.fd()
    }

    /// Marks the written parts of the ring in the dirty log.
    #[inline]
    fn mark_written(&self, log: Option<&DirtyLog>) {
        let (Some(log), Some(ring)) = (log.filter(|_| self.is_logged), &self.ring) else { return };
        for (user, len) in ring.written_extents(&self.place) {
            if let Some((_, guest)) = self.memory.at_user(user, len) {
                log.mark(guest, len);
            }
        }
    }
}
