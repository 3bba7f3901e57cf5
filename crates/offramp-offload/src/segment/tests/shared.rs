//! Tests of frames whose payload lies in memory of the host.

use super::*;
use crate::checksum::{SharedBytes, with_each_kernel};

const AT: usize = 64;

/// Returns a buffer with the first `front_len` bytes of `sent`. The other bytes stay in `sent`, in pieces that end at
/// `cuts`.
fn lending(sent: &[u8], request: TxMeta, front_len: usize, cuts: &[usize]) -> FrameBuffer<Vec<u8>> {
    let mut buffer = FrameBuffer::new(vec![0; AT + sent.len()]);
    buffer.memory_mut()[AT..AT + front_len].copy_from_slice(&sent[..front_len]);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| front_len + cut % (sent.len() - front_len + 1)).collect();
    ends.push(sent.len());
    ends.sort_unstable();
    let starts = [front_len].into_iter().chain(ends.clone());
    let pieces = starts.zip(ends).map(|(start, end)| {
        // SAFETY: the tests use the buffer only while `sent` exists, and change no byte of `sent`.
        unsafe { SharedBytes::new(sent[start..end].as_ptr(), end - start) }
    });
    buffer.set_shared(AT..AT + front_len, request, pieces);
    buffer
}

fn segments(frame: &Frame<'_>, slots: usize) -> Option<Vec<Vec<u8>>> {
    let mut plan = Segmenter::new(frame, &SegmentPolicy::default()).ok()?;
    let mut out = Vec::new();
    while plan.frames_left() > 0 {
        let (len, stride) = (plan.next_len(), plan.next_len() + 7);
        let mut slots = vec![0; slots * stride];
        let count = plan.write_run(frame, &mut slots, stride);
        out.extend(slots.chunks(stride).take(count).map(|slot| slot[..len].to_vec()));
    }
    Some(out)
}

proptest! {
    #[test]
    fn segments_of_a_payload_in_pieces_are_those_of_a_private_payload(
        kind in 0..4_usize, version6: bool, len in 1..9000_usize, front_len in 0..400_usize,
        cuts in prop::collection::vec(any::<usize>(), 0..6), slots in 1..5_usize, gather_after in 0..9_usize,
        tci: Option<u16>,
    ) {
        let payload = pattern(len);
        let (mut sent, request) = match kind {
            0 => tcp_super_frame(version6, &payload, 0x18, 7, 9),
            1 => udp_super_frame(version6, &payload, SegmentationKind::Udp, 400),
            2 => udp_super_frame(version6, &payload, SegmentationKind::UdpFragments, 400),
            _ => (tcp_super_frame(version6, &payload, 0x18, 7, 9).0, TxMeta::default()),
        };
        let change = tci.map_or(TagChange::Keep, TagChange::Push);
        let front_len = front_len.min(sent.len());
        let mut buffer = lending(&sent, request, front_len, &cuts);
        prop_assert_eq!(buffer.frame_len(), sent.len());
        let mut whole = FrameBuffer::new(vec![0; AT + sent.len()]);
        whole.memory_mut()[AT..].copy_from_slice(&sent);
        whole.set(AT..AT + sent.len(), request);
        let expected = segments(&whole.frame_with_tag(change).unwrap(), slots);
        with_each_kernel(|_| {
            let mut buffer = lending(&sent, request, front_len, &cuts);
            assert_eq!(segments(&buffer.lent_with_tag(change).unwrap(), slots), expected);
        });
        // The rest of a frame is copied in the middle of the segmentation.
        if let Ok(mut plan) = Segmenter::new(&buffer.lent(), &SegmentPolicy::default()) {
            let mut rest = Segmenter::new(&whole.frame(), &SegmentPolicy::default()).unwrap();
            for n in 0..plan.frames_left() {
                if n == gather_after {
                    buffer.gather();
                    sent.fill(0);
                }
                let (mut of_pieces, mut of_whole) = (vec![0; plan.next_len()], vec![0; rest.next_len()]);
                plan.write_next(&buffer.lent(), &mut of_pieces);
                rest.write_next(&whole.frame(), &mut of_whole);
                prop_assert!(of_pieces == of_whole, "frame {}", n);
            }
        }
    }
}

#[test]
fn a_super_frame_keeps_its_payload_in_place_and_every_other_frame_is_copied() {
    let payload = pattern(3000);
    let (sent, request) = tcp_super_frame(false, &payload, 0x18, 7, 9);
    assert!(!lending(&sent, request, 256, &[]).lent().shared().is_empty());
    let (udp, fragments) = udp_super_frame(false, &payload, SegmentationKind::UdpFragments, 400);
    let cases = [
        ("headers past the front", &sent, request, 40),
        ("a request without segmentation", &sent, TxMeta { segmentation: None, ..request }, 256),
        ("fragments, with one checksum over the datagram", &udp, fragments, 256),
    ];
    for (what, sent, request, front_len) in cases {
        let mut buffer = lending(sent, request, front_len, &[100]);
        assert!(buffer.lent().shared().is_empty(), "{what}");
        assert_eq!(buffer.frame().bytes(), &sent[..], "{what}");
    }
}

#[test]
fn a_frame_that_exceeds_the_memory_is_empty() {
    let (sent, request) = tcp_super_frame(false, &pattern(3000), 0x18, 7, 9);
    let mut buffer = FrameBuffer::new(vec![0; 1000]);
    // SAFETY: `sent` exists until the end of the test.
    let rest = unsafe { SharedBytes::new(sent[256..].as_ptr(), sent.len() - 256) };
    buffer.set_shared(0..256, request, [rest].into_iter());
    assert!(buffer.lent().bytes().is_empty());
}
