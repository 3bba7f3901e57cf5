//! Unlimited wires: one discards frames, and one generates frames.

use offramp_adapter::config::frame_len_max;
use offramp_adapter::port::{Arrival, Loan, WirePort};
use offramp_offload::vlan::{CUSTOMER_TAG, TAG_AT};
use offramp_testbed::frames;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Alignment of frames in bytes, a multiple of a cache line.
const FRAME_ALIGN: usize = 64;
/// Number of frames accepted at a time, more than the segments of a 64-KiB super-frame at MSS 1448.
const ROOM: usize = 64;
/// Number of the generator's buffers, equal to testpmd's burst. The generator sends the buffers in rotation.
const GENERATED_BUFFERS: usize = 32;
/// Number of bytes that are written anew for each generated frame, as testpmd writes the headers of each frame.
const GENERATED_HEAD_LEN: usize = frames::UDP_HEADERS_LEN;
/// A wire that discards every frame. The same buffers are reused for all frames.
#[derive(Debug)]
pub struct Discard {
    bytes: Box<[u8]>,
    frame_len_max: usize,
    flushes: u64,
}

impl Discard {
    /// Creates a wire for frames with up to `mtu` bytes of IP.
    pub fn new(mtu: usize) -> Self {
        let frame_len_max = frame_len_max(mtu);
        let bytes = vec![0; ROOM * frame_len_max.next_multiple_of(FRAME_ALIGN)].into_boxed_slice();
        Self { bytes, frame_len_max, flushes: 0 }
    }
}

impl WirePort for Discard {
    fn room(&mut self, _now_ns: u64) -> usize {
        ROOM
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        let count = count.min(ROOM);
        let stride = len.next_multiple_of(FRAME_ALIGN);
        let end = count.checked_sub(1)? * stride + len;
        (len <= self.frame_len_max).then(|| Loan { bytes: &mut self.bytes[..end], stride })
    }

    fn put(&mut self, _len: usize, _count: usize, _now_ns: u64) {}

    fn flush(&mut self) {
        self.flushes += 1;
    }

    fn take(&mut self, _now_ns: u64) -> Option<&mut [u8]> {
        None
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    fn arrivals(&self, _skip: usize, _until_ns: u64, _note: impl FnMut(Arrival)) -> u32 {
        u32::MAX
    }
}

/// A wire that generates UDP frames for the guest without end, and discards the guest's frames.
#[derive(Debug)]
pub struct Generate {
    swallow: Discard,
    template: Vec<u8>,
    buffers: Vec<Vec<u8>>,
    next: usize,
}

impl Generate {
    /// Creates a wire that always offers frames of `len` bytes (without FCS), tagged with the VLAN `vid` if given.
    pub fn new(mtu: usize, len: usize, vid: Option<u16>) -> Self {
        let mut template = frames::udp(len.max(frames::UDP_HEADERS_LEN), 1024, &mut SmallRng::seed_from_u64(0));
        if let Some(vid) = vid {
            template.splice(TAG_AT..TAG_AT, [CUSTOMER_TAG, vid.to_be_bytes()].concat());
        }
        Self { swallow: Discard::new(mtu), buffers: vec![template.clone(); GENERATED_BUFFERS], template, next: 0 }
    }
}

impl WirePort for Generate {
    fn room(&mut self, now_ns: u64) -> usize {
        self.swallow.room(now_ns)
    }

    fn lend(&mut self, len: usize, count: usize) -> Option<Loan<'_>> {
        self.swallow.lend(len, count)
    }

    fn put(&mut self, len: usize, count: usize, now_ns: u64) {
        self.swallow.put(len, count, now_ns);
    }

    fn flush(&mut self) {
        self.swallow.flush();
    }

    fn take(&mut self, _now_ns: u64) -> Option<&mut [u8]> {
        let frame = &mut self.buffers[self.next];
        self.next = (self.next + 1) % GENERATED_BUFFERS;
        frame[..GENERATED_HEAD_LEN].copy_from_slice(&self.template[..GENERATED_HEAD_LEN]);
        Some(frame)
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        Some(0)
    }

    fn arrivals(&self, skip: usize, _until_ns: u64, mut note: impl FnMut(Arrival)) -> u32 {
        // The generator always has a next frame, so it is sufficient to announce one batch at a time.
        let new = GENERATED_BUFFERS.saturating_sub(skip);
        (0..new).for_each(|_| note(Arrival { at_ns: 0, len: self.template.len() }));
        u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_too_long_for_the_line_is_lent_no_buffer() {
        assert!(Discard::new(1500).lend(9000, 1).is_none());
        assert!(Discard::new(9000).lend(9014, ROOM).is_some());
    }

    #[test]
    fn the_generator_makes_the_same_frame_again_whatever_was_done_to_it() {
        let mut generator = Generate::new(1500, 64, None);
        let first = generator.take(0).unwrap().to_vec();
        for _ in 0..3 * GENERATED_BUFFERS {
            let frame = generator.take(0).unwrap();
            assert_eq!(frame, first);
            frame[..14].fill(0xff);
        }
        assert_eq!(first.len(), 64);
    }
}
