//! The port methods that an impairment does not change.

use offramp_adapter::port::Arrival;

/// Implements the named methods of a port by those of the port in a field.
macro_rules! pass_on {
    ($port:ident: $($method:ident)+) => { $($crate::pass_on::pass_on!(@$method $port);)+ };

    // Frames sent over a wire.
    (@room $port:ident) => { fn room(&mut self, now_ns: u64) -> usize { self.$port.room(now_ns) } };
    (@lend $port:ident) => {
        fn lend(&mut self, len: usize, count: usize) -> Option<offramp_adapter::port::Loan<'_>> {
            self.$port.lend(len, count)
        }
    };
    (@put $port:ident) => {
        fn put(&mut self, len: usize, count: usize, now_ns: u64) { self.$port.put(len, count, now_ns); }
    };
    (@flush $port:ident) => { fn flush(&mut self) { self.$port.flush(); } };
    (@sent_ns $port:ident) => { fn sent_ns(&self) -> u64 { self.$port.sent_ns() } };
    (@next_room_ns $port:ident) => {
        fn next_room_ns(&self, now_ns: u64) -> Option<u64> { self.$port.next_room_ns(now_ns) }
    };

    // Frames received over a wire, and the thread that sleeps until they arrive.
    (@is_idle $port:ident) => { fn is_idle(&self) -> bool { self.$port.is_idle() } };
    (@register $port:ident) => { fn register(&self, waker: &std::task::Waker) { self.$port.register(waker); } };
    (@unregister $port:ident) => { fn unregister(&self) { self.$port.unregister(); } };

    // A host.
    (@tx_next $port:ident) => {
        fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> { self.$port.tx_next(now_ns) }
    };
    (@tx_hold $port:ident) => { fn tx_hold(&mut self) { self.$port.tx_hold(); } };
    (@tx_frame $port:ident) => { fn tx_frame(&mut self) -> Frame<'_> { self.$port.tx_frame() } };
    (@tx_frame_with_tag $port:ident) => {
        fn tx_frame_with_tag(&mut self, change: offramp_offload::vlan::TagChange) -> Option<Frame<'_>> {
            self.$port.tx_frame_with_tag(change)
        }
    };
    (@interrupts $port:ident) => {
        fn interrupts(&mut self) -> Option<&mut dyn offramp_adapter::port::Interrupts> { self.$port.interrupts() }
    };
    (@accepts $port:ident) => { fn accepts(&self) -> offramp_offload::caps::Offloads { self.$port.accepts() } };
    (@honours_data_valid $port:ident) => {
        fn honours_data_valid(&self) -> bool { self.$port.honours_data_valid() }
    };
}

/// Skips the first `skip` arrivals and names the others.
pub(crate) fn skipping(mut skip: usize, mut note: impl FnMut(Arrival)) -> impl FnMut(Arrival) {
    move |arrival| {
        if skip == 0 {
            note(arrival);
        }
        skip = skip.saturating_sub(1);
    }
}

/// Copies a frame into a free buffer, or a new one.
pub(crate) fn copied(free: &mut Vec<Vec<u8>>, frame: &[u8]) -> Vec<u8> {
    let mut copy = free.pop().unwrap_or_default();
    copy.clear();
    copy.extend_from_slice(frame);
    copy
}

pub(crate) use pass_on;
