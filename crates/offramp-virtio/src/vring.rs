//! A ring with its memory, its notifications and its fetched chains.

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

#[cfg(feature = "count")]
pub use frame::copied_bytes;

/// The parameters of a vring's start.
#[derive(Debug)]
pub struct VringSetup {
    /// Memory of the ring and all its buffers.
    pub memory: Arc<GuestMemory>,
    /// Location of the ring in that memory.
    pub place: RingPlace,
    /// `RING_PACKED` was negotiated.
    pub is_packed: bool,
    /// Options for reading and writing the ring.
    pub options: RingOptions,
    /// Start position. Packed: next available position in the low half, next used one in the high half, each with its
    /// wrap counter in the top bit. `0x8000_8000` is a new ring; 0 is a new ring if the memory shows it. Split: the
    /// used index in memory gives the position, and this must be below 65536.
    pub base: u32,
    /// The driver's kicks; `None`: the ring is polled.
    pub kick: Option<Event>,
    /// The ring's own pages are marked in the dirty log.
    pub is_logged: bool,
    /// The place that keeps a packed ring's position after the end of this process, if any.
    pub inflight: Option<Part>,
}

/// One virtqueue, for one thread. The crate's documentation shows its loop.
///
/// A vring before its start is empty: it has no chains, and publishes nothing.
#[derive(Debug, Default)]
pub struct Vring {
    ring: Option<Ring>,
    /// Keeps the memory of the ring and the batch mapped.
    memory: Arc<GuestMemory>,
    place: RingPlace,
    /// Fetched chains that wait.
    batch: Batch,
    /// Frames written piece by piece.
    open: open::OpenFrames,
    /// Used chains not yet visible to the driver.
    staged: usize,
    /// Slots visible to the driver, without a decision on their notification.
    unsignalled: u32,
    kick: Kick,
    /// The driver is asked for kicks.
    wants_kicks: bool,
    call: CallNotifier,
    err: CallNotifier,
    is_logged: bool,
}

impl Vring {
    /// Starts the ring, with kicks disabled.
    ///
    /// # Errors
    /// Returns an error if the ring lies outside the memory, is not aligned, or has an invalid size or base. The vring
    /// is then unchanged.
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

    /// Stops the ring. Returns the base for the next start, `None` when it did not run. Used chains that were not
    /// published will be fetched again. The descriptors of [`Vring::set_call`] and [`Vring::set_err`] stay.
    pub fn stop(&mut self) -> Option<u32> {
        let base = self.ring.take().map(|ring| ring.base(&self.batch));
        self.forget_chains();
        self.kick = Kick::default();
        // Nothing points into the memory any more.
        self.memory = Arc::default();
        base
    }

    /// Stops a ring found broken by [`Vring::fetch`], and reports it by the error descriptor.
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

    /// Sets the descriptor for notifications to the driver; `None` turns them off.
    pub fn set_call(&mut self, call: Option<Event>) {
        self.call = CallNotifier::new(call);
    }

    /// Sets the descriptor for [`Vring::fail`]'s report of a broken ring.
    pub fn set_err(&mut self, err: Option<Event>) {
        self.err = CallNotifier::new(err);
    }

    /// Sets whether the ring's own pages are marked in the dirty log.
    pub fn set_logged(&mut self, is_logged: bool) {
        self.is_logged = is_logged;
    }

    /// Fetches at most [`FETCH_MAX`](crate::ring::FETCH_MAX) chains after those that wait. Without a log it may write
    /// bytes without meaning into buffers before anything is received in them.
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

    /// Returns the fetched chains that wait, in order.
    #[inline]
    pub fn waiting(&self) -> &[Chain] {
        self.batch.waiting()
    }

    /// Takes the next waiting chain. It must be given back by [`Vring::add_used`], in the order of the chains.
    #[inline]
    pub fn pop(&mut self) -> Option<Chain> {
        self.batch.pop()
    }

    /// Returns the buffers of a chain that waits, or was taken since the last fetch.
    ///
    /// # Panics
    /// Panics if the chain belongs to an earlier start of the ring, or to another ring.
    #[inline]
    pub fn buffers(&self, chain: &Chain) -> &[Buffer] {
        self.batch.buffers(chain)
    }

    /// Gives a chain back, with `written` bytes written into it. The driver sees it after [`Vring::publish`].
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

    /// Shows the driver all used chains in one step; `None` when there are none. If it needs a notification, call
    /// [`Vring::notify`] now, or defer it: ask [`Vring::needs_notification`] later. Open frames are lost, and their chains
    /// go back empty.
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
        // Marked after the write: a page copied between the two is copied again.
        self.mark_written(log);
        // A driver that needs no notification polls, and sees all slots.
        self.unsignalled =
            if published.needs_notification { self.unsignalled.saturating_add(published.slots.into()) } else { 0 };
        Some(published)
    }

    /// Returns whether the driver still needs the deferred notification. This decides on it: nothing is unsignalled
    /// afterwards.
    pub fn needs_notification(&mut self) -> bool {
        let unsignalled = std::mem::take(&mut self.unsignalled);
        self.ring.as_ref().is_some_and(|ring| ring.needs_notification(unsignalled))
    }

    /// If the ring was driven before, counts all slots as unsignalled: an earlier device may have deferred a
    /// notification. Returns whether it was.
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

    /// Returns whether the driver has made at least `slots` more available than were fetched.
    pub fn has_ahead(&self, slots: u16) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.has_ahead(slots))
    }

    /// Asks the driver for a kick at its next chain. Fetch once more before you sleep: the driver may have added a
    /// chain before it saw this request.
    pub fn enable_notifications(&mut self, log: Option<&DirtyLog>) {
        self.wants_kicks = true;
        if let Some(ring) = &mut self.ring {
            ring.enable_notifications();
        }
        self.mark_written(log);
    }

    /// Asks the driver for no kicks, and forgets pending ones.
    pub fn disable_notifications(&mut self, log: Option<&DirtyLog>) {
        self.wants_kicks = false;
        if let Some(ring) = &mut self.ring {
            ring.disable_notifications();
        }
        self.mark_written(log);
        self.kick.drain();
    }

    /// Returns whether a running ring will not announce chains. It has no descriptor for kicks, or was started after
    /// the last request for them.
    pub fn is_unannounced(&self) -> bool {
        self.is_started() && !(self.wants_kicks && self.kick.fd().is_some())
    }

    /// Returns the descriptor to sleep on until the driver kicks.
    pub fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.fd()
    }

    /// Marks the written parts of the ring itself.
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
