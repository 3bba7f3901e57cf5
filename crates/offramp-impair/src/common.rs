//! Helper functions of the impairments.

use offramp_adapter::port::Arrival;

/// Skips the first `skip` arrivals, and passes the further arrivals to `note`.
pub(crate) fn skipping(mut skip: usize, mut note: impl FnMut(Arrival)) -> impl FnMut(Arrival) {
    move |arrival| {
        if skip == 0 {
            note(arrival);
        }
        skip = skip.saturating_sub(1);
    }
}

/// Copies a frame into a reused buffer, or into a new one.
pub(crate) fn copied(free: &mut Vec<Vec<u8>>, frame: &[u8]) -> Vec<u8> {
    let mut copy = free.pop().unwrap_or_default();
    copy.clear();
    copy.extend_from_slice(frame);
    copy
}
