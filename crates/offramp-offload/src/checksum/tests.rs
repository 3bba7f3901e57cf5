use etherparse::{IpNumber, PacketBuilder};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smoltcp::wire::{IpAddress, TcpPacket};

use super::*;
use crate::layout::{FrameLayout, LengthFrom};
use crate::meta::{ChecksumState, PartialChecksum};

/// Value of the guard bytes after the end of a copy. A copy must not change these bytes.
const GUARD: u8 = 0xa5;
/// Maximum of the message lengths that the tests try one by one, in bytes. Above this length, the vectorized kernels
/// only repeat their loops.
const LEN_EXHAUSTIVE: usize = 600;
/// Start offsets after a cache line's boundary: aligned, odd, even, and around the lengths of a vector.
const STARTS: [usize; 9] = [0, 1, 2, 16, 31, 32, 33, 62, 63];

#[repr(align(64))]
struct Aligned<const N: usize>([u8; N]);

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Compares every kernel of this machine, and the public functions, with the oracle.
fn assert_all_agree(message: &[u8], dst: &mut [u8]) {
    let (expected, len) = (oracle(message), message.len());
    assert_eq!(sum(message).fold(), expected, "sum of {len} bytes");
    dst.fill(GUARD);
    assert_eq!(copy_and_sum(message, dst).fold(), expected, "copy_and_sum of {len} bytes");
    assert_copied(message, dst);
    for kernel in kernel::available() {
        let name = kernel.name;
        assert_eq!(Sum(kernel.sum(message)).fold(), expected, "{name}: sum of {len} bytes");
        dst.fill(GUARD);
        assert_eq!(Sum(kernel.copy_and_sum(message, dst)).fold(), expected, "{name}: copy of {len} bytes");
        assert_copied(message, dst);
    }
}

fn assert_copied(message: &[u8], dst: &[u8]) {
    let (copy, behind) = dst.split_at(message.len());
    assert!(copy == message, "{} bytes are copied as they are", message.len());
    assert!(behind.iter().all(|byte| *byte == GUARD), "nothing behind {} bytes is written", message.len());
}

#[test]
fn every_kernel_agrees_with_the_oracle_at_every_length_and_alignment() {
    let mut from = Aligned([0; 1024]);
    from.0.copy_from_slice(&random_bytes(1024, 1));
    let mut to = Aligned([0; 1024]);
    for len in 0..=LEN_EXHAUSTIVE {
        for (i, start) in STARTS.into_iter().enumerate() {
            let to_start = STARTS[(i * 2 + len) % STARTS.len()];
            assert_all_agree(&from.0[start..start + len], &mut to.0[to_start..to_start + len + 64]);
        }
    }
}

#[test]
fn every_kernel_agrees_with_the_oracle_on_long_messages() {
    let from = random_bytes(300_000, 2);
    let mut to = vec![0; 300_128];
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..300 {
        let (len, start, to_start) = (rng.next_u32() % 70_000, rng.next_u32() % 128, rng.next_u32() % 64);
        let (len, start, to_start) = (len as usize, start as usize, to_start as usize);
        assert_all_agree(&from[start..start + len], &mut to[to_start..to_start + len + 64]);
    }
    for len in [65_535, 65_536, 65_537, 65_600, 131_072, 131_073, 262_145, 299_000] {
        assert_all_agree(&from[7..7 + len], &mut to[..len + 64]);
    }
}

#[test]
fn no_accumulator_overflows_on_the_largest_and_smallest_bytes() {
    let mut to = vec![0; 300_064];
    for byte in [0x00, 0x7f, 0x80, 0xff] {
        let from = vec![byte; 300_000];
        for len in [1, 2, 127, 128, 129, 255, 1500, 9000, 65_534, 65_535, 65_536, 70_001, 300_000] {
            assert_all_agree(&from[..len], &mut to[..len + 64]);
        }
    }
}

#[test]
fn the_kernel_in_use_is_the_best_that_this_machine_has() {
    let best = kernel::available().next().map(|kernel| kernel.name);
    assert_eq!(Some(kernel_name()), best);
    assert!(["avx512-vnni", "avx512", "avx2", "portable"].contains(&kernel_name()));
}

#[test]
#[should_panic(expected = "out of range")]
fn a_destination_that_is_too_short_is_refused_before_a_byte_is_written() {
    copy_and_sum(&[1; 200], &mut [0; 199]);
}

#[test]
fn the_sum_of_rfc_1071_section_3_comes_out() {
    let message = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(oracle(&message), 0xddf2);
    assert_eq!(sum(&message).fold(), 0xddf2);
    assert_eq!(sum(&message).checksum(), !0xddf2);
}

#[test]
fn only_the_sum_of_zeros_folds_to_zero() {
    assert_eq!(Sum::ZERO.fold(), 0);
    assert_eq!(sum(&[0; 999]).fold(), 0);
    assert_eq!(sum(&[0xff; 2]).fold(), 0xffff);
    assert_eq!(Sum::word(0x1234).plus(Sum::word(!0x1234)).fold(), 0xffff);
    assert_eq!(Sum::word(7).minus(Sum::word(7)).fold(), 0xffff);
    assert_eq!(Sum(u64::MAX).plus(Sum(u64::MAX)).fold(), 0xffff);
}

#[test]
fn the_update_of_rfc_1624_section_4_comes_out() {
    assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

proptest! {
    #[test]
    fn the_crate_internet_checksum_agrees(message in proptest::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert_eq!(sum(&message).checksum().to_be_bytes(), internet_checksum::checksum(&message));
    }

    #[test]
    fn what_smoltcp_fills_in_sums_to_all_ones(
        mut segment in proptest::collection::vec(any::<u8>(), 20..3000),
        source: [u8; 4],
        destination: [u8; 4],
    ) {
        let (from, to) = (IpAddress::Ipv4(source.into()), IpAddress::Ipv4(destination.into()));
        TcpPacket::new_unchecked(&mut segment[..]).fill_checksum(&from, &to);
        let pseudo = sum(&source).plus(sum(&destination)).plus(Sum::word(6)).plus(Sum::word(segment.len() as u16));
        prop_assert_eq!(pseudo.plus(sum(&segment)).fold(), 0xffff);
    }

    #[test]
    fn a_message_may_be_summed_in_parts(message in proptest::collection::vec(any::<u8>(), 1..600), cut: usize) {
        let cut = cut % message.len();
        let (front, back) = (sum(&message[..cut]), sum(&message[cut..]));
        let back = if cut % 2 == 0 { back } else { back.at_odd_offset() };
        prop_assert_eq!(front.plus(back).fold(), oracle(&message));
        // Subtraction reverts the addition, up to the sign of zero.
        prop_assert_eq!(sum(&message).minus(back).fold() % 0xffff, front.fold() % 0xffff);
    }

    #[test]
    fn updating_a_word_equals_recomputing(
        mut message in proptest::collection::vec(any::<u8>(), 2..200),
        at: usize,
        new: u16,
    ) {
        let at = at % (message.len() / 2) * 2;
        let old = u16::from_be_bytes([message[at], message[at + 1]]);
        let before = sum(&message).checksum();
        message[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(update16(before, old, new) % 0xffff, sum(&message).checksum() % 0xffff);
    }

    #[test]
    fn completing_equals_recomputing_wherever_the_field_lies(
        mut frame in proptest::collection::vec(any::<u8>(), 64..2500),
        start in 0u16..50,
        half_offset in 0u16..6,
        padding in 0usize..4,
    ) {
        let partial = PartialChecksum { start, offset: half_offset * 2 };
        let (end, before) = (frame.len() - padding, frame.clone());
        let expected = match !oracle(&frame[usize::from(start)..end]) { 0 => 0xffff, checksum => checksum };
        prop_assert_eq!(complete(&mut frame, partial, end), Ok(()));
        let field = partial.field();
        prop_assert_eq!(u16::from_be_bytes([frame[field], frame[field + 1]]), expected);
        frame[field..field + 2].copy_from_slice(&before[field..field + 2]);
        prop_assert_eq!(frame, before, "nothing but the field is written");
    }

    #[test]
    fn no_frame_and_no_request_makes_a_function_panic(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        start: u16,
        offset: u16,
        end in 0usize..300,
    ) {
        for length_from in [LengthFrom::Ip, LengthFrom::Frame] {
            if let Ok(layout) = FrameLayout::parse(&frame, length_from) {
                verify(&frame, &layout);
            }
        }
        let near = PartialChecksum { start: start % 256, offset: offset % 256 };
        for partial in [near, PartialChecksum { start, offset }] {
            let before = frame.clone();
            if complete(&mut frame, partial, end).is_err() {
                prop_assert_eq!(&frame, &before);
            }
        }
    }
}

#[test]
fn a_checksum_of_zero_is_completed_to_all_ones() {
    let mut frame = [0xff, 0xfe, 0x00, 0x00, 0x00, 0x01];
    complete(&mut frame, PartialChecksum { start: 0, offset: 2 }, 6).unwrap();
    assert_eq!(frame[2..4], [0xff, 0xff]);
}

#[test]
fn a_field_outside_the_packet_is_refused() {
    let mut frame = [0; 60];
    let refused = |frame: &mut [u8], start, offset, end| complete(frame, PartialChecksum { start, offset }, end);
    assert_eq!(refused(&mut frame, 0, 0, 61), Err(CompleteError::End { end: 61, frame_len: 60 }));
    assert_eq!(refused(&mut frame, 42, 16, 59), Err(CompleteError::Field { field: 58, end: 59 }));
    assert_eq!(refused(&mut frame, 70, 0, 60), Err(CompleteError::Field { field: 70, end: 60 }));
    let far = CompleteError::Field { field: 131_070, end: 60 };
    assert_eq!(refused(&mut frame, u16::MAX, u16::MAX, 60), Err(far));
    assert_eq!(refused(&mut frame, 42, 16, 60), Ok(()));
}

/// Builds TCP and UDP packets over IPv4 and IPv6 with `etherparse`, independently of this crate.
fn packets(payload: &[u8]) -> Vec<Vec<u8>> {
    let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ipv4 = || ethernet().ipv4([192, 0, 2, 1], [198, 51, 100, 7], 64);
    let ipv6 = || ethernet().ipv6([0x20; 16], [0xfe; 16], 64);
    let mut packets = vec![Vec::new(); 5];
    ipv4().tcp(1, 2, 3, 4).write(&mut packets[0], payload).unwrap();
    ipv6().tcp(1, 2, 3, 4).write(&mut packets[1], payload).unwrap();
    ipv4().udp(1, 2).write(&mut packets[2], payload).unwrap();
    ipv6().udp(1, 2).write(&mut packets[3], payload).unwrap();
    let tagged = ethernet().single_vlan(5.try_into().unwrap()).ipv4([10, 1, 2, 3], [10, 3, 2, 1], 64);
    tagged.tcp(9, 8, 7, 6).write(&mut packets[4], payload).unwrap();
    packets
}

fn verdict(frame: &[u8]) -> ChecksumState {
    verify(frame, &FrameLayout::parse(frame, LengthFrom::Ip).unwrap())
}

#[test]
fn what_another_builder_made_is_good_with_and_without_padding() {
    for len in [0, 1, 2, 100, 101, 1460, 9001, 65_000] {
        for mut frame in packets(&random_bytes(len, 4)) {
            assert_eq!(verdict(&frame), ChecksumState::Good);
            frame.extend([0xff; 7]);
            assert_eq!(verdict(&frame), ChecksumState::Good, "no checksum covers padding");
        }
    }
}

#[test]
fn one_flipped_bit_under_a_checksum_is_never_good() {
    for frame in packets(&random_bytes(61, 5)) {
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip).unwrap();
        for at in layout.network_start..frame.len() {
            for bit in 0..8 {
                let mut bad = frame.clone();
                bad[at] ^= 1 << bit;
                let state = FrameLayout::parse(&bad, LengthFrom::Ip).map(|layout| verify(&bad, &layout));
                // No checksum covers version, traffic class, flow label and hop limit of IPv6.
                let uncovered = frame.get(12) == Some(&0x86) && matches!(at - layout.network_start, 0..4 | 7);
                assert!(uncovered || state != Ok(ChecksumState::Good), "byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn a_checksum_made_partial_is_completed_to_what_it_was() {
    for frame in packets(&random_bytes(333, 6)) {
        let layout = FrameLayout::parse(&frame, LengthFrom::Ip).unwrap();
        let mut changed = frame.clone();
        let partial = make_partial(&mut changed, &layout);
        assert_eq!(verify(&changed, &layout), ChecksumState::Bad, "on the wire it would be wrong");
        complete(&mut changed, partial, layout.packet_end).unwrap();
        assert_eq!(changed, frame);
    }
}

#[test]
fn a_udp_checksum_of_zero_is_none_over_ipv4_and_wrong_over_ipv6() {
    let [_, _, mut udp4, mut udp6, _] = packets(b"payload").try_into().unwrap();
    udp4[40..42].fill(0);
    assert_eq!(verdict(&udp4), ChecksumState::Unknown);
    udp6[60..62].fill(0);
    assert_eq!(verdict(&udp6), ChecksumState::Bad);
    udp4[22] ^= 1; // Change the TTL.
    assert_eq!(verdict(&udp4), ChecksumState::Bad, "the IPv4 header is verified all the same");
}

#[test]
fn what_cannot_be_summed_is_unknown_unless_the_ipv4_header_is_bad() {
    let mut icmp = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    builder.write(&mut icmp, IpNumber::ICMP, &[8, 0, 0, 0, 1, 2, 3, 4]).unwrap();
    assert_eq!(verdict(&icmp), ChecksumState::Unknown);
    icmp[24] ^= 0x80; // Change the header checksum.
    assert_eq!(verdict(&icmp), ChecksumState::Bad);
    let mut fragment = packets(&[0; 64]).swap_remove(0);
    fragment[20] = 0x20; // Set MF.
    assert_eq!(verdict(&fragment), ChecksumState::Bad);
    let header = sum(&fragment[14..24]).plus(sum(&fragment[26..34])).checksum();
    fragment[24..26].copy_from_slice(&header.to_be_bytes());
    assert_eq!(verdict(&fragment), ChecksumState::Unknown);
    assert_eq!(verdict(&[0; 60]), ChecksumState::Unknown);
    let opaque = FrameLayout::parse(&[0; 60], LengthFrom::Ip).unwrap();
    assert!(ipv4_header_is_good(&[0; 60], &opaque));
    assert_eq!(pseudo_header(&[0; 60], &opaque, 46).fold(), 0);
}

#[test]
fn a_pseudo_header_takes_a_length_beyond_16_bits() {
    let frame = &packets(b"")[1];
    let layout = FrameLayout::parse(frame, LengthFrom::Ip).unwrap();
    let mut bytes = frame[22..54].to_vec();
    bytes.extend([0x00, 0x01, 0x86, 0xa0, 0, 0, 0, 6]); // The length is 100,000 bytes of TCP (RFC 8200 8.1).
    assert_eq!(pseudo_header(frame, &layout, 100_000).fold(), oracle(&bytes));
}
