//! Helper functions of the impairments.

use offramp_adapter::port::Arrival;

/// Returns a function that ignores its first `skip` calls, and passes the arrivals of all later calls to `note`.
pub(crate) fn skipping(mut skip: usize, mut note: impl FnMut(Arrival)) -> impl FnMut(Arrival) {
    move |arrival| {
        if skip == 0 {
            note(arrival);
        }
        skip = skip.saturating_sub(1);
    }
}

/// Copies a frame into a buffer from `free`, or into a new buffer.
pub(crate) fn copied(free: &mut Vec<Vec<u8>>, frame: &[u8]) -> Vec<u8> {
    let mut copy = free.pop().unwrap_or_default();
    copy.clear();
    copy.extend_from_slice(frame);
    copy
}
