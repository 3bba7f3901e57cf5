//! Reading frames out one after another, while others may be lost.

use offramp_adapter::port::{Arrival, Line, WirePort};

/// A line from which a frame is read out over some time. The frame is safe meanwhile; those after it may be lost.
pub trait ReadOut: Line {
    /// Begins to read out the next frame that has arrived by `at_ns`, and says which. The next [`WirePort::take`] lends
    /// it and ends the reading. Until then it is not lost.
    ///
    /// `None` although [`WirePort::next_arrival_ns`] promised a frame: that one was lost meanwhile.
    ///
    /// A line that loses nothing of what has arrived has nothing to note.
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        first(self, at_ns)
    }
}

/// The first frame that has arrived by `until_ns`.
pub(crate) fn first(wire: &(impl WirePort + ?Sized), until_ns: u64) -> Option<Arrival> {
    let mut found = None;
    wire.arrivals(0, until_ns, |arrival| {
        found.get_or_insert(arrival);
    });
    found
}
