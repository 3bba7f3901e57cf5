//! A host port that a thread can sleep on.

use crate::pair::QueuePair;
use crate::port::{HostPort, PortError, WirePort};
use std::os::fd::BorrowedFd;

/// A host port that a worker can sleep on.
#[auto_impl::auto_impl(Box)]
pub trait HostIo: HostPort {
    /// Asks the host to make a descriptor readable when it has something. The caller polls once more
    /// before it sleeps: a frame from before this call does not show.
    fn arm(&mut self) {}

    /// Takes back what [`HostIo::arm`] asked for, and empties the descriptors.
    fn disarm(&mut self) {}

    /// Names each descriptor that becomes readable when the host has something. If `is_held`, something other than a
    /// frame: the host's frames wait for its limit.
    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>));

    /// Returns true if the host may have something and yet no descriptor becomes readable. The worker then polls it
    /// again and again.
    fn is_unannounced(&self) -> bool {
        false
    }

    /// Moves a batch of a queue pair with this host, as [`QueuePair::poll_timed`]. Returns whether anything moved. A
    /// wrapper with nothing to add has the host inside polled.
    ///
    /// # Errors
    /// [`PortError::Closed`] when the host is gone.
    #[auto_impl(keep_default_for(Box))]
    fn poll_pair<W: WirePort>(
        pair: &mut QueuePair<Self, W>,
        now_ns: u64,
        clock: &impl Fn() -> u64,
    ) -> Result<bool, PortError>
    where
        Self: Sized,
    {
        Ok(pair.poll_timed(now_ns, clock)?.moved)
    }
}
