//! Tests of the oracle: comparison of the expected frames with the segmenter's frames, and the permitted differences.

use super::*;
use crate::case::{Addressing, Case, Checksum, Load, Train};
use crate::packet::{Identity, Ip, Protocol};
use crate::plan::{self, Depth};
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::{CoalesceConfig, Coalescer};
use offramp_offload::meta::RxMeta;

const ADDRESSING: Addressing = Addressing { destination: [2; 6], source: [6; 6], seed: 7 };
const IDENTITY: Identity = Identity { run: 11, case: 12 };

fn built(case: &Case) -> Built {
    case.build(&ADDRESSING, IDENTITY)
}

/// Returns the frames of a case as captured after a path that changes nothing: each frame as sent, with its request as
/// metadata.
fn untouched(built: &Built) -> Vec<Captured> {
    let captured = |sent: &crate::case::Sent| {
        let checksum = sent.request.checksum.map_or(ChecksumState::Unknown, ChecksumState::Partial);
        let meta = RxMeta { checksum, segmentation: sent.request.segmentation, ..RxMeta::default() };
        Captured { bytes: sent.bytes.clone(), meta }
    };
    built.sent.iter().map(captured).collect()
}

/// Returns the wire frames of a case, as captured at the other end of a wire.
fn over_a_wire(built: &Built) -> Vec<Captured> {
    let captured = |frame: &Expected| Captured { bytes: frame.bytes.clone(), meta: RxMeta::default() };
    built.expected.iter().map(captured).collect()
}

fn fault(built: &Built, captured: &[Captured]) -> Option<Fault> {
    compare(built, captured, Allowed::default()).map(|difference| difference.fault)
}

fn segmented() -> Case {
    Case::new(Ip::V4, Protocol::Tcp, Load::Super { size: 100, segments: 4, last: 7 })
}

#[test]
fn frames_built_field_by_field_are_those_of_the_segmenter_for_every_case_of_the_plan() {
    for depth in [Depth::Quick, Depth::Full] {
        for mtu in [1280, 1500, 9000] {
            let cases = plan::path(mtu, depth);
            assert!(cases.len() > 300);
            for case in &cases {
                let built = built(case);
                let difference = compare(&built, &untouched(&built), Allowed::default());
                assert!(difference.is_none(), "{case}: {difference:?}");
                let longest = built.expected.iter().map(|frame| frame.bytes.len()).max().unwrap();
                assert!(longest <= mtu + 18, "{case}: {longest} bytes");
            }
        }
    }
}

#[test]
fn every_case_is_told_apart_and_found_by_its_addresses() {
    for case in plan::path(1500, Depth::Quick) {
        let built = built(&case);
        let frames = built.expected.iter().map(|frame| &frame.bytes).chain(built.sent.iter().map(|sent| &sent.bytes));
        for frame in frames {
            assert_eq!(Identity::of(frame), Some(IDENTITY), "{case}");
        }
    }
    assert_eq!(Identity::of(&[0; 60]), None);
    assert_eq!(Identity::of(&[]), None);
}

#[test]
fn any_byte_that_changes_on_the_wire_is_found() {
    for case in [segmented(), Case::new(Ip::V6, Protocol::Udp, Load::One { len: 30, checksum: Checksum::Asked })] {
        let built = built(&Case { vlan: Some(5), ..case });
        let right = over_a_wire(&built);
        assert_eq!(fault(&built, &right), None);
        let last = right.len() - 1;
        for at in 0..right[last].bytes.len() {
            let mut wrong = right.clone();
            wrong[last].bytes[at] ^= 0x20;
            assert!(fault(&built, &wrong).is_some(), "byte {at}");
        }
    }
}

#[test]
fn the_two_ways_to_write_a_checksum_of_zero_are_the_same_for_tcp_and_not_for_udp() {
    let zero = |protocol| {
        let case = Case::new(Ip::V4, protocol, Load::One { len: 40, checksum: Checksum::Asked });
        built(&Case { folds_to_zero: true, ..case })
    };
    for (protocol, at, other, expected) in [
        (Protocol::Tcp, 14 + 20 + 16, [0xff, 0xff], None),
        (Protocol::Udp, 14 + 20 + 6, [0, 0], Some(Fault::ChecksumZero)),
    ] {
        let built = zero(protocol);
        let mut captured = over_a_wire(&built);
        assert_ne!(captured[0].bytes[at..at + 2], other);
        captured[0].bytes[at..at + 2].copy_from_slice(&other);
        assert_eq!(fault(&built, &captured), expected);
    }
}

#[test]
fn padding_is_no_difference_and_ids_may_differ_where_that_is_allowed() {
    let short = built(&Case::new(Ip::V4, Protocol::Udp, Load::One { len: 3, checksum: Checksum::Asked }));
    let mut padded = over_a_wire(&short);
    padded[0].bytes.resize(60, 0);
    assert_eq!(fault(&short, &padded), None);
    let built = built(&segmented());
    let mut same_id = over_a_wire(&built);
    for frame in &mut same_id {
        frame.bytes[18..20].copy_from_slice(&[0, 1]);
        frame.bytes[24..26].fill(0);
        let checksum = !ones_complement_sum(&[&frame.bytes[14..34]]);
        frame.bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    assert_eq!(fault(&built, &same_id), Some(Fault::Ipv4Id));
    assert!(compare(&built, &same_id, Allowed { any_id: true, ..Allowed::default() }).is_none());
    same_id[2].bytes[25] ^= 1;
    let difference = compare(&built, &same_id, Allowed { any_id: true, ..Allowed::default() }).unwrap();
    assert_eq!(difference.fault, Fault::Ipv4Checksum);
}

#[test]
fn a_bad_frame_may_be_lost_or_arrive_as_it_is_and_nothing_else() {
    let built = built(&Case::new(Ip::V4, Protocol::Tcp, Load::One { len: 50, checksum: Checksum::Wrong }));
    let captured = over_a_wire(&built);
    assert_eq!(fault(&built, &[]), None);
    assert_eq!(fault(&built, &captured), None);
    let marked = |checksum| {
        let meta = RxMeta { checksum, ..RxMeta::default() };
        [Captured { meta, ..captured[0].clone() }]
    };
    assert_eq!(fault(&built, &marked(ChecksumState::Good)), Some(Fault::BadMarkedGood));
}

#[test]
fn a_request_that_does_not_fit_its_frame_contradicts_it() {
    let built = built(&Case::new(Ip::V4, Protocol::Tcp, Load::One { len: 50, checksum: Checksum::Asked }));
    let mut captured = untouched(&built);
    captured[0].meta.segmentation = Some(Segmentation::new(SegmentationKind::Tcp6, 20));
    assert_eq!(fault(&built, &captured), Some(Fault::Metadata));
}

#[test]
fn cwr_of_all_frames_may_be_coalesced_without_a_mark_and_is_lost_with_the_mark_for_the_first() {
    for (kind, aggregates) in [(Train::Counter, 1), (Train::Counters, 2)] {
        let built = built(&Case::new(Ip::V4, Protocol::Tcp, Load::Train { len: 90, kind }));
        let mut captured = Vec::new();
        let mut coalescer = Coalescer::new(CoalesceConfig::default());
        let mut out = |meta: &RxMeta, bytes: &[u8]| captured.push(Captured { bytes: bytes.to_vec(), meta: *meta });
        for frame in &built.expected {
            coalescer.push(Frame::received(&mut frame.bytes.clone()), Offloads::RX, None, 0, &mut out);
        }
        coalescer.flush(&mut out);
        assert_eq!(captured.len(), aggregates);
        let marked = |cwr| {
            let mut captured = captured.clone();
            captured.iter_mut().filter_map(|one| one.meta.segmentation.as_mut()).for_each(|one| one.cwr = cwr);
            captured
        };
        assert_eq!(fault(&built, &marked(Cwr::All)), None, "{kind:?}");
        assert_eq!(fault(&built, &marked(Cwr::Unmarked)), None, "as Linux 7.3 hands it over");
        let lost = fault(&built, &marked(Cwr::First));
        assert!(matches!(lost, Some(Fault::CwrLost | Fault::CoalescedUnequal)), "{kind:?}: {lost:?}");
    }
}

#[test]
fn a_frame_with_a_wrong_checksum_overtakes_no_other() {
    let built = built(&Case::new(Ip::V4, Protocol::Tcp, Load::Train { len: 90, kind: Train::Bad }));
    let bad = built.expected.iter().position(|frame| frame.is_bad).unwrap();
    let mut captured = over_a_wire(&built);
    captured[..=bad].rotate_right(1);
    assert_eq!(fault(&built, &captured), Some(Fault::BadOvertakes));
    let allowed = Allowed { unheld_overtake: true, ..Allowed::default() };
    assert!(compare(&built, &captured, allowed).is_none(), "Linux' GRO hands it over at once");
    captured[..=bad].rotate_left(1);
    captured[bad..].rotate_left(1);
    assert_eq!(fault(&built, &captured), None, "it may come later");
}

/// On a veth pair, Linux 6.18 delivered frames in the order that this test uses.
#[test]
fn a_fragment_and_a_padded_datagram_overtake_what_linux_holds_and_nothing_else() {
    let allowed = Allowed { unheld_overtake: true, ..Allowed::default() };
    for (ip, protocol, kind) in [(Ip::V6, Protocol::Tcp, Train::Fragment), (Ip::V4, Protocol::Udp, Train::Padded)] {
        let built = built(&Case::new(ip, protocol, Load::Train { len: 90, kind }));
        let n = built.expected.iter().position(|frame| is_unheld(&frame.bytes)).unwrap();
        let mut captured = over_a_wire(&built);
        captured.swap(n - 1, n);
        assert_eq!(fault(&built, &captured), Some(Fault::Reordered), "{kind:?}");
        assert!(compare(&built, &captured, allowed).is_none(), "{kind:?}");
        captured.swap(0, 1);
        assert!(compare(&built, &captured, allowed).is_some(), "{kind:?}: others keep their order");
    }
}

#[test]
fn padding_and_trailers_may_be_lost_and_must_not_become_payload() {
    for kind in [Train::Padded, Train::Trailed] {
        let built = built(&Case::new(Ip::V4, Protocol::Tcp, Load::Train { len: 90, kind }));
        let mut captured = over_a_wire(&built);
        let last = captured.len() - 1;
        assert_eq!(fault(&built, &captured), None);
        let end = Frame::received(&mut captured[last].bytes.clone()).layout().unwrap().packet_end;
        assert!(end < captured[last].bytes.len(), "{kind:?}");
        captured[last].bytes.truncate(end);
        assert_eq!(fault(&built, &captured), None);
        captured[last].bytes.resize(80, 7);
        assert!(fault(&built, &captured).is_some(), "other bytes");
    }
}

#[test]
fn an_ip_fragment_is_none_of_the_others() {
    for ip in [Ip::V4, Ip::V6] {
        let built = built(&Case::new(ip, Protocol::Udp, Load::Train { len: 90, kind: Train::Fragment }));
        let fragments = |frame: &&Expected| {
            let mut bytes = frame.bytes.clone();
            Frame::received(&mut bytes).layout().unwrap().fragment
        };
        assert_eq!(built.expected.iter().filter(fragments).count(), 2, "{ip:?}");
    }
}
