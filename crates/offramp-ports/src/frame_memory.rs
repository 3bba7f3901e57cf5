//! The private buffer of a queue, for the frame that the queue last fetched from its host.

use offramp_offload::frame::FrameBuffer;

/// Alignment of the frame, in bytes: one cache line, the width of the widest vector load. The constant is also the
/// minimum free space before the frame, for a header or a VLAN tag.
const FRAME_ALIGN: usize = 64;

/// Returns a buffer for a frame of up to `len_max` bytes, and the aligned offset of the frame.
pub(crate) fn frame_memory(len_max: usize) -> (FrameBuffer<Box<[u8]>>, usize) {
    let memory = vec![0; 2 * FRAME_ALIGN + len_max].into_boxed_slice();
    // The box is never replaced, so its address and the alignment do not change.
    let start = memory.as_ptr() as usize;
    (FrameBuffer::new(memory), start.next_multiple_of(FRAME_ALIGN) - start + FRAME_ALIGN)
}
