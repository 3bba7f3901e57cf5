//! The rules of a port's VLANs, frame by frame.

use super::*;
use proptest::prelude::*;

/// Returns a frame with `tail` after its addresses.
fn frame(tail: &[u8]) -> Vec<u8> {
    [&[2; 12][..], tail, &[0; 46]].concat()
}

fn vlans(untagged: Option<u16>, tagged: &[RangeInclusive<u16>]) -> PortVlans {
    PortVlans::new(untagged, tagged).unwrap()
}

const IP: [u8; 2] = [8, 0];
const PRIORITY: [u8; 4] = [0x81, 0, 0xa0, 0];
const TEN: [u8; 4] = [0x81, 0, 0, 10];
const SERVICE_TEN: [u8; 4] = [0x88, 0xa8, 0, 10];
const OLD_TEN: [u8; 4] = [0x91, 0, 0, 10];

#[test]
fn numbers_that_no_vlan_has_and_empty_ranges_are_refused() {
    for vid in [0, 4095, u16::MAX] {
        assert_eq!(PortVlans::new(Some(vid), &[]), Err(VlanError::Vid(vid)));
        assert_eq!(PortVlans::new(None, &[1..=vid]), Err(VlanError::Vid(vid)));
    }
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let reversed = PortVlans::new(None, &[5..=4]);
    assert_eq!(reversed, Err(VlanError::Empty(5, 4)));
}

#[test]
fn ranges_are_sorted_and_adjacent_ones_are_one() {
    let made = vlans(Some(7), &[30..=40, 1..=1, 41..=41, 35..=50, 2..=3, 60..=61]);
    assert_eq!(made.tagged(), [1..=3, 30..=50, 60..=61]);
    let has: Vec<u16> = (0..100).filter(|vid| made.has_tag(*vid)).collect();
    assert_eq!(has, (1..=3).chain(30..=50).chain(60..=61).collect::<Vec<_>>());
}

#[test]
fn a_host_sends_what_its_port_passes_and_it_goes_to_the_wire_with_the_tag_of_its_vlan() {
    let (access, trunk, native) = (vlans(Some(7), &[]), vlans(None, &[10..=19]), vlans(Some(7), &[10..=19]));
    let refused = Err(Loss::Vlan);
    let (keep, push) = (Ok(TagChange::Keep), Ok(TagChange::Push(7)));
    let cases = [
        ("no tag", frame(&IP), [push, refused, push]),
        (
            "a priority tag",
            frame(&[&PRIORITY[..], &IP].concat()),
            [Ok(TagChange::Set(0xa007)), refused, Ok(TagChange::Set(0xa007))],
        ),
        ("a tag", frame(&[&TEN[..], &IP].concat()), [refused, keep, keep]),
        ("its own tag", frame(&[0x81, 0, 0, 7, 8, 0]), [refused; 3]),
        ("another tag", frame(&[0x81, 0, 0, 20, 8, 0]), [refused; 3]),
        ("the reserved tag", frame(&[0x81, 0, 0x0f, 0xff, 8, 0]), [refused; 3]),
        ("two tags", frame(&[TEN, TEN].concat()), [refused, keep, keep]),
        ("a tag in a priority tag", frame(&[PRIORITY, TEN].concat()), [refused; 3]),
        ("a service tag", frame(&[&SERVICE_TEN[..], &IP].concat()), [refused; 3]),
        ("a tag in a service tag", frame(&[SERVICE_TEN, TEN].concat()), [refused; 3]),
        ("an old tag", frame(&[&OLD_TEN[..], &IP].concat()), [refused; 3]),
        ("half a tag", [&[2; 12][..], &TEN].concat(), [refused; 3]),
    ];
    for (name, frame, expected) in cases {
        assert_eq!([&access, &trunk, &native].map(|vlans| vlans.change_to_wire(&frame)), expected, "{name}");
        assert_eq!(PortVlans::default().change_to_wire(&frame), keep, "{name}");
    }
    assert_eq!(access.change_to_wire(&[2; 13]), Err(Loss::Malformed));
}

#[test]
fn a_host_gets_the_frames_of_its_vlans_with_the_tag_that_it_expects() {
    let (access, trunk, native) = (vlans(Some(10), &[]), vlans(None, &[10..=19]), vlans(Some(10), &[11..=19]));
    let (tagged, plain) = (frame(&[&TEN[..], &IP].concat()), frame(&IP));
    let stacked = frame(&[&TEN[..], &OLD_TEN, &IP].concat());
    let cases = [
        ("a tag", &tagged, [Some(&plain), Some(&tagged), Some(&plain)]),
        ("no tag", &plain, [None; 3]),
        ("a priority tag", &frame(&[&PRIORITY[..], &IP].concat()), [None; 3]),
        ("another tag", &frame(&[0x81, 0, 0, 20, 8, 0]), [None; 3]),
        ("a tag behind the tag", &stacked, [None, Some(&stacked), None]),
        ("a service tag", &frame(&[&SERVICE_TEN[..], &IP].concat()), [None; 3]),
        ("nothing", &Vec::new(), [None; 3]),
    ];
    for (name, frame, expected) in cases {
        for (vlans, expected) in [&access, &trunk, &native].into_iter().zip(expected) {
            let got = vlans.take_from_wire(&mut frame.clone()).map(|frame| frame.to_vec());
            assert_eq!(got, expected.cloned().ok_or(Loss::Vlan), "{name}");
        }
        assert_eq!(PortVlans::default().take_from_wire(&mut frame.clone()), Ok(&mut frame.clone()[..]), "{name}");
    }
}

proptest! {
    /// The fast path gives the same result as the general rules for every frame.
    #[test]
    fn a_port_treats_common_frames_by_the_rules_for_all(
        types in prop::collection::vec(prop::sample::select(vec![IP, CUSTOMER_TAG, SERVICE_TAG, [0x91, 0], [0, 7], [0xe0, 8]]), 0..5),
        untagged in prop::sample::select(vec![None, Some(7), Some(8)]),
        tagged in prop::sample::select(vec![vec![], vec![8..=9]]),
        len in 0_usize..24,
    ) {
        let mut bytes = frame(&types.concat());
        bytes.truncate(len);
        let vlans = vlans(untagged, &tagged);
        prop_assert_eq!(vlans.change_to_wire(&bytes), vlans.of_sent(&bytes).map(FrameVlan::tagged));
        let by_rules = vlans.take_of(FrameVlan::of(&bytes), &mut bytes.clone()).map(|frame| frame.to_vec());
        prop_assert_eq!(vlans.take_from_wire(&mut bytes).map(|frame| frame.to_vec()), by_rules);
    }
}
