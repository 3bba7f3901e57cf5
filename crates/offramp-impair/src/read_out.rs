//! Sequential reading of frames, while others may be lost.

use offramp_adapter::port::{Arrival, Line, WirePort};

/// A line whose frames are read out over some time. The current frame is safe meanwhile; later ones may be lost.
pub trait ReadOut: Line {
    /// Begins to read out the next frame that has arrived by `at_ns`, and returns it. The next [`WirePort::take`] lends
    /// it and ends the reading. Until then it is not lost.
    ///
    /// Returns `None` if the frame promised by [`WirePort::next_arrival_ns`] was lost meanwhile.
    ///
    /// A line that never loses an arrived frame has nothing to note.
    fn begin(&mut self, at_ns: u64) -> Option<Arrival> {
        first(self, at_ns)
    }
}

/// Returns the first frame that has arrived by `until_ns`.
pub(crate) fn first(wire: &(impl WirePort + ?Sized), until_ns: u64) -> Option<Arrival> {
    let mut found = None;
    wire.arrivals(0, until_ns, |arrival| {
        found.get_or_insert(arrival);
    });
    found
}
