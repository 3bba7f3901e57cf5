//! The test suite for every kind of host port.

use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::checksum::{self, Sum};
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::time::{Duration, Instant};

/// Time limit for an answer. A slower port fails the test.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of frames in a burst, more than a port fetches at once.
const BURST: usize = 100;
/// EtherType of the test frames, with opaque contents (IEEE 802, local experimental).
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

/// A port under test, together with its host.
pub trait Bed {
    /// Returns the port.
    fn port(&mut self) -> &mut dyn HostPort;

    /// Sends a frame as the host, without a request.
    fn send(&mut self, frame: &[u8]);

    /// Returns the host's next received frame, if any.
    fn recv(&mut self) -> Option<Vec<u8>>;

    /// Leaves the host without room for received frames. Returns false if this kind of host always has room.
    /// [`Bed::make_room`] restores the room.
    fn take_room(&mut self) -> bool;

    /// Restores the host's room for received frames.
    fn make_room(&mut self);
}

/// Runs the whole suite on ports created by `make`, each with its host.
pub fn check<B: Bed>(make: impl Fn() -> B) {
    a_quiet_host_sends_nothing(&mut make());
    what_the_host_sends_comes_once_whole_and_in_order(&mut make());
    a_lent_frame_stays_until_the_next_one(&mut make());
    a_frame_is_lent_with_another_tag_and_then_as_it_was(&mut make());
    what_is_delivered_is_seen_once_whole_and_in_order(&mut make());
    frames_written_in_place_are_seen_when_they_are_committed(&mut make());
    a_frame_that_is_not_committed_is_never_seen(&mut make());
    a_frame_begun_anew_has_nothing_of_the_one_before(&mut make());
    both_directions_work_at_once(&mut make());
    a_host_without_room_loses_frames_until_it_has_some(&mut make());
}

/// Builds a frame of `len` bytes that contains `number`.
fn frame(number: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| (at * 31 + number * 7) as u8).collect();
    frame[..14].copy_from_slice(&[[2, 0, 0, 0, 0x0b, 1, 2, 0, 0, 0, 0x0a].as_slice(), &[1], &EXPERIMENTAL].concat());
    frame[14..16].copy_from_slice(&(number as u16).to_be_bytes());
    frame
}

/// Builds frames with lengths from the minimum (60 bytes) to the maximum at MTU 1500.
fn frames() -> Vec<Vec<u8>> {
    (0..BURST).map(|number| frame(number, 60 + number * 1454 / (BURST - 1))).collect()
}

/// Fetches the next frame of the test. Skips frames sent by the kernel.
fn fetch(port: &mut dyn HostPort) -> Vec<u8> {
    let end = Instant::now() + PATIENCE;
    loop {
        match port.tx_next(0) {
            Ok(true) if port.tx_frame().bytes()[12..14] == EXPERIMENTAL => return port.tx_frame().bytes().to_vec(),
            Ok(true) => {}
            Ok(false) => assert!(Instant::now() < end, "the host's frame did not come"),
            Err(error) => panic!("a frame was refused: {error}"),
        }
    }
}

/// Waits until the host receives the next frame of the test.
fn receive(bed: &mut impl Bed) -> Vec<u8> {
    let end = Instant::now() + PATIENCE;
    loop {
        match bed.recv() {
            Some(frame) if frame[12..14] == EXPERIMENTAL => return frame,
            Some(_) => {}
            None => assert!(Instant::now() < end, "the host did not see its frame"),
        }
    }
}

fn deliver(bed: &mut impl Bed, frame: &[u8]) {
    bed.port().rx_deliver(&RxMeta::default(), frame).unwrap_or_else(|error| panic!("a frame was refused: {error}"));
}

fn a_quiet_host_sends_nothing(bed: &mut impl Bed) {
    while let Ok(true) = bed.port().tx_next(0) {
        assert_ne!(bed.port().tx_frame().bytes()[12..14], EXPERIMENTAL);
    }
    assert_eq!(bed.port().tx_next(0), Ok(false));
}

fn what_the_host_sends_comes_once_whole_and_in_order(bed: &mut impl Bed) {
    for burst in frames().chunks(20) {
        for frame in burst {
            bed.send(frame);
        }
        for sent in burst {
            assert!(fetch(bed.port()) == *sent);
            assert_eq!(bed.port().tx_frame().request(), TxMeta::default());
        }
    }
    assert_eq!(bed.port().tx_next(0), Ok(false));
}

fn a_lent_frame_stays_until_the_next_one(bed: &mut impl Bed) {
    let (first, second) = (frame(1, 1000), frame(2, 70));
    bed.send(&first);
    bed.send(&second);
    assert!(fetch(bed.port()) == first);
    // The port must not change the lent frame while the port delivers other frames to the host.
    for number in 3..9 {
        deliver(bed, &frame(number, 1514));
    }
    bed.port().rx_flush(0);
    assert!(bed.port().tx_frame().bytes() == first);
    assert!(fetch(bed.port()) == second);
}

fn a_frame_is_lent_with_another_tag_and_then_as_it_was(bed: &mut impl Bed) {
    for number in 0..5 {
        let sent = frame(number, 60 + number * 300);
        let tagged = [&sent[..12], &[0x81, 0, 0xa0, 7], &sent[12..]].concat();
        bed.send(&sent);
        assert!(fetch(bed.port()) == sent);
        for _ in 0..2 {
            let lent = bed.port().tx_frame_with_tag(TagChange::Push(0xa007)).expect("room for a tag");
            assert!(lent.bytes() == tagged);
            // The port must not change the lent frame while the port delivers other frames to the host.
            deliver(bed, &frame(number, 1514));
            let lent = bed.port().tx_frame_with_tag(TagChange::Push(0xa007)).expect("room for a tag");
            assert!(lent.bytes() == tagged);
            assert!(bed.port().tx_frame().bytes() == sent);
        }
    }
}

fn what_is_delivered_is_seen_once_whole_and_in_order(bed: &mut impl Bed) {
    for burst in frames().chunks(20) {
        for frame in burst {
            deliver(bed, frame);
        }
        bed.port().rx_flush(0);
        for delivered in burst {
            assert!(receive(bed) == *delivered);
        }
    }
    assert!(bed.recv().is_none_or(|frame| frame[12..14] != EXPERIMENTAL));
}

/// Writes `payload` to the frame of a slot in the port's memory, and keeps the payload if the checksum over the payload
/// and `headers_sum` is right. Returns whether the checksum is right, or `None` if the port has no room.
pub fn append_in_place(port: &mut dyn HostPort, slot: usize, payload: &[u8], headers_sum: Sum) -> Option<bool> {
    let sum = port.rx_room(slot, payload.len(), 1).copy_and_sum(payload);
    let is_right = sum.map(|sum| sum.plus(headers_sum).is_right());
    port.rx_fill(slot, if is_right == Some(true) { payload.len() } else { 0 });
    is_right
}

/// Returns a sum of headers that makes the checksum over headers and `payload` correct.
fn headers_sum(payload: &[u8]) -> Sum {
    Sum::word(checksum::sum(payload).checksum())
}

fn frames_written_in_place_are_seen_when_they_are_committed(bed: &mut impl Bed) {
    const HEAD_LEN: usize = 54;
    let wanted = [frame(1, 1514), frame(2, 1201), frame(3, 300)];
    let lends = bed.port().rx_reserve(0, &[0; HEAD_LEN]);
    if !lends {
        return; // A port without in-place writes skips this test.
    }
    assert!(bed.port().rx_reserve(1, &[0; HEAD_LEN]) && bed.port().rx_reserve(2, &[0; HEAD_LEN]));
    // In each round, append one piece of payload to each frame. Before each piece, append a piece with a wrong
    // checksum, which the port must refuse.
    let payloads: Vec<Vec<&[u8]>> = wanted.iter().map(|frame| frame[HEAD_LEN..].chunks(331).collect()).collect();
    for round in 0..5 {
        for (slot, payloads) in payloads.iter().enumerate() {
            let Some(payload) = payloads.get(round) else { continue };
            let wrong = headers_sum(payload).plus(Sum::word(1));
            assert_eq!(append_in_place(bed.port(), slot, payload, wrong), Some(false));
            assert_eq!(append_in_place(bed.port(), slot, payload, headers_sum(payload)), Some(true));
        }
    }
    // Commit the frames in an order other than the order of reservation, and deliver another frame in between.
    let meta = RxMeta { header_len: HEAD_LEN as u16, ..RxMeta::default() };
    for slot in [2, 0, 1] {
        let (head, len) = (&wanted[slot][..HEAD_LEN], wanted[slot].len());
        assert_eq!(bed.port().rx_commit(slot, &meta, head, len), Ok(()));
        if slot == 0 {
            deliver(bed, &frame(9, 90));
        }
    }
    bed.port().rx_flush(0);
    for expected in [&wanted[2], &wanted[0], &frame(9, 90), &wanted[1]] {
        assert!(receive(bed) == *expected);
    }
}

fn a_frame_that_is_not_committed_is_never_seen(bed: &mut impl Bed) {
    for round in 0..BURST {
        if !bed.port().rx_reserve(round % 3, &[0; 54]) {
            break;
        }
        let payload = frame(round, 500);
        assert_eq!(append_in_place(bed.port(), round % 3, &payload, Sum::ZERO), Some(false));
        deliver(bed, &frame(round, 100));
        bed.port().rx_flush(0);
        assert!(receive(bed) == frame(round, 100));
    }
}

fn a_frame_begun_anew_has_nothing_of_the_one_before(bed: &mut impl Bed) {
    const HEAD_LEN: usize = 54;
    let (forgotten, wanted) = (frame(1, 1400), frame(2, 1300));
    for bytes in [&forgotten, &wanted] {
        if !bed.port().rx_reserve(0, &[0; HEAD_LEN]) {
            return;
        }
        let payload = &bytes[HEAD_LEN..];
        assert_eq!(append_in_place(bed.port(), 0, payload, headers_sum(payload)), Some(true));
    }
    let meta = RxMeta { header_len: HEAD_LEN as u16, ..RxMeta::default() };
    assert_eq!(bed.port().rx_commit(0, &meta, &wanted[..HEAD_LEN], wanted.len()), Ok(()));
    bed.port().rx_flush(0);
    assert!(receive(bed) == wanted);
    deliver(bed, &frame(3, 90));
    bed.port().rx_flush(0);
    assert!(receive(bed) == frame(3, 90));
}

fn both_directions_work_at_once(bed: &mut impl Bed) {
    for number in 0..BURST {
        let (there, back) = (frame(number, 60 + number), frame(number, 1514 - number));
        bed.send(&there);
        deliver(bed, &back);
        bed.port().rx_flush(0);
        assert!(fetch(bed.port()) == there);
        assert!(receive(bed) == back);
    }
}

fn a_host_without_room_loses_frames_until_it_has_some(bed: &mut impl Bed) {
    if !bed.take_room() {
        return; // A kernel always has room, so a port to a kernel skips this test.
    }
    assert_eq!(bed.port().rx_deliver(&RxMeta::default(), &frame(0, 1000)), Err(PortError::Full));
    bed.port().rx_flush(0);
    bed.make_room();
    deliver(bed, &frame(1, 1000));
    bed.port().rx_flush(0);
    assert!(receive(bed) == frame(1, 1000));
}
