//! A trait for lines with slow reads: reading a frame out takes time, and other frames can be lost meanwhile.

use offramp_adapter::port::{Arrival, Line, WirePort};

/// A line whose frames take time to be read out. The frame being read cannot be lost; later frames can be lost during
/// the read.
pub trait ReadOut: Line {
    /// Begins to read out the next frame that has arrived by `at_ns`, and returns that frame. The next
    /// [`WirePort::take`] lends the frame and ends the read. Until the end of the read, the frame cannot be lost.
    ///
    /// Returns `None` if the frame announced by [`WirePort::next_arrival_ns`] was lost in the meantime.
    ///
    /// For a line that never loses an arrived frame, the default implementation is sufficient.
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
