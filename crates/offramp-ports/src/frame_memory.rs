//! The private memory of a queue for the frame it fetched last.

use offramp_offload::frame::FrameBuffer;

/// Alignment of the frame, in bytes: one cache line, the widest vector load. As many bytes are free before it, for a
/// header or a VLAN tag.
const FRAME_ALIGN: usize = 64;

/// Returns a buffer for a frame of up to `len_max` bytes, and the aligned offset of the frame.
pub(crate) fn frame_memory(len_max: usize) -> (FrameBuffer<Box<[u8]>>, usize) {
    let memory = vec![0; 2 * FRAME_ALIGN + len_max].into_boxed_slice();
    // The box is never replaced, so its address, and with it the alignment, stays.
    let start = memory.as_ptr() as usize;
    (FrameBuffer::new(memory), start.next_multiple_of(FRAME_ALIGN) - start + FRAME_ALIGN)
}
