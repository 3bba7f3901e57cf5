//! A host port with descriptors that wake a sleeping thread.

use crate::pair::QueuePair;
use crate::port::{HostPort, PortError, WirePort};
use std::os::fd::BorrowedFd;

/// A host port with descriptors that wake a sleeping worker.
#[auto_impl::auto_impl(Box)]
pub trait HostIo: HostPort {
    /// Asks the host to make a descriptor readable when the host has a frame or other work. A frame already waiting
    /// before this call makes no descriptor readable. So the caller must poll once more before it sleeps.
    fn arm(&mut self) {}

    /// Cancels the wake-up requested by [`HostIo::arm`], and drains the descriptors.
    fn disarm(&mut self) {}

    /// Passes to `watch` each descriptor that becomes readable when the host has work. With `is_held`, the host is at
    /// its transmit limit, and only descriptors for work other than frames are passed.
    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>));

    /// Returns whether the host may have work that makes no descriptor readable. While the method returns `true`, the
    /// worker sleeps only for a short interval and then polls the host again.
    fn is_unannounced(&self) -> bool {
        false
    }

    /// Moves a batch of frames in each direction of a queue pair with this host, as [`QueuePair::poll_timed`] does.
    /// Returns whether any frame moved. A wrapper of a host overrides this method, to poll the wrapped host directly in
    /// a batch without work for the wrapper.
    ///
    /// # Errors
    /// Returns [`PortError::Closed`] if the host is gone.
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
