//! The methods of a port that a wrapper does not change.

/// Implements the named methods of a port's trait by calling the same methods on the port in a field.
#[macro_export]
macro_rules! pass_on {
    ($port:ident: $($method:ident)+) => { $($crate::pass_on!(@$method $port);)+ };

    // Methods for frames sent over a wire.
    (@room $port:ident) => { fn room(&mut self, now_ns: u64) -> usize { self.$port.room(now_ns) } };
    (@lend $port:ident) => {
        fn lend(&mut self, len: usize, count: usize) -> Option<$crate::port::Loan<'_>> { self.$port.lend(len, count) }
    };
    (@put $port:ident) => {
        fn put(&mut self, len: usize, count: usize, now_ns: u64) { self.$port.put(len, count, now_ns); }
    };
    (@flush $port:ident) => { fn flush(&mut self) { self.$port.flush(); } };
    (@sent_ns $port:ident) => { fn sent_ns(&self) -> u64 { self.$port.sent_ns() } };
    (@next_room_ns $port:ident) => {
        fn next_room_ns(&self, now_ns: u64) -> Option<u64> { self.$port.next_room_ns(now_ns) }
    };

    // Methods for frames received over a wire, and for the wake-up of a sleeping thread by the wire.
    (@is_idle $port:ident) => { fn is_idle(&self) -> bool { self.$port.is_idle() } };
    (@register $port:ident) => { fn register(&self, waker: &std::task::Waker) { self.$port.register(waker); } };
    (@unregister $port:ident) => { fn unregister(&self) { self.$port.unregister(); } };

    // Methods for frames sent by a host.
    (@tx_next $port:ident) => {
        #[inline]
        fn tx_next(&mut self, now_ns: u64) -> Result<bool, $crate::port::PortError> { self.$port.tx_next(now_ns) }
    };
    (@tx_hold $port:ident) => { fn tx_hold(&mut self) { self.$port.tx_hold(); } };
    (@tx_frame $port:ident) => {
        #[inline]
        fn tx_frame(&mut self) -> offramp_offload::frame::Frame<'_> { self.$port.tx_frame() }
    };
    (@tx_frame_with_tag $port:ident) => {
        #[inline]
        fn tx_frame_with_tag(
            &mut self,
            change: offramp_offload::vlan::TagChange,
        ) -> Option<offramp_offload::frame::Frame<'_>> {
            self.$port.tx_frame_with_tag(change)
        }
    };
    (@tx_lend $port:ident) => {
        #[inline]
        fn tx_lend(&mut self) -> offramp_offload::frame::Frame<'_> { self.$port.tx_lend() }
    };
    (@tx_lend_with_tag $port:ident) => {
        #[inline]
        fn tx_lend_with_tag(
            &mut self,
            change: offramp_offload::vlan::TagChange,
        ) -> Option<offramp_offload::frame::Frame<'_>> {
            self.$port.tx_lend_with_tag(change)
        }
    };
    (@tx_unasked $port:ident) => { #[inline] fn tx_unasked(&self) -> Option<&[u8]> { self.$port.tx_unasked() } };
    (@tx_queue $port:ident) => { #[inline] fn tx_queue(&self) -> usize { self.$port.tx_queue() } };
    (@tx_cost_bytes $port:ident) => { #[inline] fn tx_cost_bytes(&self) -> usize { self.$port.tx_cost_bytes() } };

    // Methods for frames delivered to a host.
    (@steering $port:ident) => {
        #[inline]
        fn steering(&self) -> Option<&$crate::steering::Steering> { self.$port.steering() }
    };
    (@rx_deliver_lent $port:ident) => {
        #[inline]
        fn rx_deliver_lent(
            &mut self,
            meta: &offramp_offload::meta::RxMeta,
            frame: &offramp_offload::frame::Frame<'_>,
        ) -> Result<(), $crate::port::PortError> {
            self.$port.rx_deliver_lent(meta, frame)
        }
    };
    (@rx_deliver $port:ident) => {
        #[inline]
        fn rx_deliver(
            &mut self,
            meta: &offramp_offload::meta::RxMeta,
            frame: &[u8],
        ) -> Result<(), $crate::port::PortError> {
            self.$port.rx_deliver(meta, frame)
        }
    };
    (@rx_queue $port:ident) => { #[inline] fn rx_queue(&self) -> usize { self.$port.rx_queue() } };
    (@rx_room $port:ident) => {
        #[inline]
        fn rx_room(&mut self, slot: usize, len: usize, count: usize) -> offramp_offload::checksum::Room<'_> {
            self.$port.rx_room(slot, len, count)
        }
    };
    (@rx_fill $port:ident) => {
        #[inline]
        fn rx_fill(&mut self, slot: usize, len: usize) { self.$port.rx_fill(slot, len); }
    };
    (@rx_wants_commit $port:ident) => {
        #[inline]
        fn rx_wants_commit(&self) -> bool { self.$port.rx_wants_commit() }
    };
    (@rx_lost_to_limit $port:ident) => {
        fn rx_lost_to_limit(&mut self, frame: &offramp_offload::frame::Frame<'_>, frames: usize, bytes: usize) {
            self.$port.rx_lost_to_limit(frame, frames, bytes);
        }
    };
    (@rx_flush $port:ident) => { #[inline] fn rx_flush(&mut self, now_ns: u64) { self.$port.rx_flush(now_ns); } };
    (@interrupts $port:ident) => {
        #[inline]
        fn interrupts(&mut self, queue: usize) -> Option<&mut dyn $crate::port::Interrupts> { self.$port.interrupts(queue) }
    };
    (@accepts $port:ident) => {
        #[inline]
        fn accepts(&self) -> offramp_offload::caps::Offloads { self.$port.accepts() }
    };
    (@honours_data_valid $port:ident) => {
        #[inline]
        fn honours_data_valid(&self) -> bool { self.$port.honours_data_valid() }
    };

    // Methods for the wake-up of a sleeping thread by a host.
    (@arm $port:ident) => { fn arm(&mut self) { self.$port.arm(); } };
    (@disarm $port:ident) => { fn disarm(&mut self) { self.$port.disarm(); } };
    (@watch $port:ident) => {
        fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(std::os::fd::BorrowedFd<'a>)) {
            self.$port.watch(is_held, watch);
        }
    };
    (@is_unannounced $port:ident) => { fn is_unannounced(&self) -> bool { self.$port.is_unannounced() } };
}
