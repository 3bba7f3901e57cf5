//! A port without a host. The port discards every delivered frame, and can send one frame repeatedly.

use offramp_adapter::host_io::HostIo;
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::os::fd::BorrowedFd;

/// Offset of the frame in its buffer, in bytes. A VLAN tag fits before the frame. The offset is one cache line, so the
/// frame is aligned.
const FRAME_AT: usize = 64;

/// A sink of frames that can also send one frame repeatedly.
#[derive(Debug)]
pub struct NullPort {
    /// The frame to send. If empty, the port sends nothing.
    source: Vec<u8>,
    frame: FrameBuffer<Vec<u8>>,
}

impl NullPort {
    /// Returns a port that sends `source` repeatedly, or nothing if `source` is empty.
    pub fn new(source: Vec<u8>) -> Self {
        let frame = FrameBuffer::new(vec![0; FRAME_AT + source.len()]);
        Self { source, frame }
    }
}

impl InPlace for NullPort {}

impl HostPort for NullPort {
    /// Copies `source` again, because the adapter may have changed the previous copy.
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        self.frame.memory_mut()[FRAME_AT..].copy_from_slice(&self.source);
        self.frame.set(FRAME_AT..FRAME_AT + self.source.len(), TxMeta::default());
        Ok(!self.source.is_empty())
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.frame_with_tag(change)
    }

    fn tx_unasked(&self) -> Option<&[u8]> {
        self.frame.unasked()
    }

    fn rx_deliver(&mut self, _meta: &RxMeta, _frame: &[u8]) -> Result<(), PortError> {
        Ok(())
    }

    fn rx_flush(&mut self, _now_ns: u64) {}

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }

    fn honours_data_valid(&self) -> bool {
        true
    }
}

impl HostIo for NullPort {
    fn arm(&mut self) {}

    fn disarm(&mut self) {}

    fn watch<'a>(&'a self, _is_held: bool, _watch: &mut dyn FnMut(BorrowedFd<'a>)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_sends_its_frame_whatever_became_of_the_last_one_and_a_sink_nothing() {
        let mut source = NullPort::new(vec![7; 60]);
        for _ in 0..3 {
            assert!(source.tx_next(0).unwrap());
            assert_eq!(source.tx_unasked(), Some(&[7; 60][..]));
            let tag = TagChange::Push(10);
            assert_eq!(source.tx_frame_with_tag(tag).unwrap().bytes().len(), 64);
        }
        let mut sink = NullPort::new(Vec::new());
        assert!(!sink.tx_next(0).unwrap());
        assert_eq!(sink.rx_deliver(&RxMeta::default(), &[0; 60]), Ok(()));
    }
}
