//! Tests of lossy paths. If the path loses frames of every kind, no offload gets a verdict. If only one offload's
//! frames are lost, that offload has the verdict `Verdict::Wrong`. The wire is a queue in memory, and losses depend on
//! frame numbers, so that nothing depends on time.

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use common::segments;
use offramp_check::Captured;
use offramp_check::end::{Description, End, Offered, Outgoing};
use offramp_check::error::CheckError;
use offramp_check::fault::Fault;
use offramp_check::report::summary;
use offramp_check::rss::{Hashed, Steering};
use offramp_check::run::{Config, RSS, run};
use offramp_check::verdict::{Blame, Report, Row, Verdict};
use offramp_offload::meta::{ChecksumState, RxMeta, TxMeta};
use offramp_offload::rss::MICROSOFT_KEY;
use offramp_ports::packet::{Arrival, HEAD_LEN};

const TSO: &str = "tx-tcp-segmentation";
const FEATURES: [&str; 6] = [
    "tx-checksum-ip-generic",
    "tx-scatter-gather",
    TSO,
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "rx-vlan-hw-parse",
];

/// Length of a tagged TCP frame over IPv4, in bytes. Among the cases of checksums, exactly one has this length.
const LEN_OF_ONE_CASE: usize = 122;

/// The frames that the path loses.
#[derive(Clone, Copy, Debug)]
enum Loses {
    EverySecond,
    /// The last segment of each super-frame that the interface segments.
    LastOfTso,
    /// The first transmissions of one checksum case. The value is the number of lost transmissions.
    OneCase(usize),
    /// All frames for which the function returns true.
    Kind(fn(&[u8]) -> bool),
}

/// Frames on their way to one end.
type Wire = Rc<RefCell<VecDeque<Vec<u8>>>>;

struct Host {
    description: Description,
    loses: Loses,
    on: Vec<&'static str>,
    sent: usize,
    out: Wire,
    into: Wire,
}

impl Host {
    fn new(name: &str, mtu: u32, loses: Loses, out: &Wire, into: &Wire) -> Self {
        let description = Description {
            name: name.to_owned(),
            interface: name.to_owned(),
            shell_prefix: String::new(),
            driver: "memory".to_owned(),
            mtu,
            mac: [2, 0, 0, 0, 0, 7],
        };
        Self { description, loses, on: Vec::new(), sent: 0, out: Rc::clone(out), into: Rc::clone(into) }
    }

    /// Returns the next frame. If no frame is queued, sleeps for `wait` and returns `None`.
    fn next(&self, wait: Duration) -> Option<Vec<u8>> {
        let next = self.into.borrow_mut().pop_front();
        if next.is_none() {
            std::thread::sleep(wait);
        }
        next
    }
}

impl End for Host {
    fn description(&self) -> &Description {
        &self.description
    }

    fn offered(&self, feature: &str) -> Offered {
        if FEATURES.contains(&feature) { Offered::Switchable } else { Offered::No }
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        self.on.retain(|feature| !features.contains(&(*feature, false)));
        self.on.extend(features.iter().filter(|(_, is_on)| *is_on).map(|(feature, _)| *feature));
        Ok(())
    }

    fn is_on(&self, feature: &str) -> bool {
        self.on.contains(&feature)
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        let checksum = match frame.meta.checksum {
            ChecksumState::Partial(partial) => Some(partial),
            _ => None,
        };
        let request = TxMeta { checksum, segmentation: frame.meta.segmentation };
        let mut frames = segments(&frame.bytes, request);
        if matches!(self.loses, Loses::LastOfTso) && request.segmentation.is_some() && self.is_on(TSO) {
            frames.pop();
        }
        for frame in frames {
            let is_the_case = frame.len() == LEN_OF_ONE_CASE;
            self.sent += usize::from(is_the_case || matches!(self.loses, Loses::EverySecond));
            let is_lost = match self.loses {
                Loses::EverySecond => self.sent.is_multiple_of(2),
                Loses::LastOfTso => false,
                Loses::Kind(is_of_kind) => is_of_kind(&frame),
                Loses::OneCase(count) => is_the_case && self.sent <= count,
            };
            if !is_lost {
                self.out.borrow_mut().push_back(frame);
            }
        }
        Ok(Ok(()))
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        Ok(self.next(wait).map(|bytes| Captured { bytes, meta: RxMeta::default() }))
    }

    fn steering(&mut self) -> Result<Steering, CheckError> {
        let hashed = [Hashed::AddressesAndPorts; 4];
        Ok(Steering::ByHash { key: MICROSOFT_KEY.to_vec(), table: vec![0; 2], hashed })
    }

    fn arrival(&mut self, wait: Duration) -> Result<Option<Arrival>, CheckError> {
        Ok(self.next(wait).map(|bytes| Arrival { head: bytes[..HEAD_LEN].to_vec(), queue: Some(0) }))
    }

    fn takes_any_frame(&self) -> bool {
        true
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        Ok(Vec::new())
    }
}

/// Returns the verdicts on a path in both directions.
fn verdicts(loses: Loses, only: &str) -> Vec<Row> {
    let report = report([1500; 2], loses, only).unwrap();
    assert_eq!(report.rows.len(), 2, "{report:?}");
    report.rows
}

fn report(mtus: [u32; 2], loses: Loses, only: &str) -> Result<Report, CheckError> {
    let (there, back) = (Wire::default(), Wire::default());
    let [a, b] = [("a", mtus[0], &there, &back), ("b", mtus[1], &back, &there)]
        .map(|(name, mtu, out, into)| Box::new(Host::new(name, mtu, loses, out, into)));
    let mut ends: [Box<dyn End>; 2] = [a, b];
    let config = Config { only: vec![only.to_owned()], ..common::quick() };
    run(&mut ends, &config, &AtomicBool::new(false), &mut |_| ())
}

const TYPE: std::ops::Range<usize> = 12..14;

fn is_tagged(frame: &[u8]) -> bool {
    frame[TYPE] == [0x81, 0]
}

#[test]
fn where_other_frames_are_lost_too_no_offload_is_wrong() {
    for only in ["tso4", RSS] {
        for row in verdicts(Loses::EverySecond, only) {
            let Verdict::NotTested { why } = &row.verdict else { panic!("{row:?}") };
            assert!(why.contains("the path also loses frames"), "{only}: {why}");
        }
    }
}

#[test]
fn where_a_case_is_lost_for_a_while_no_offload_is_wrong() {
    // Each attempt sends the case up to six times. The check makes one attempt at first, four attempts to assign blame,
    // and four attempts after pauses. One more attempt follows each test for loss on the path, because the path may
    // recover during the test. The threads run in parallel, because they mostly wait.
    std::thread::scope(|scope| {
        for count in [50, 58, 64] {
            scope.spawn(move || {
                for row in verdicts(Loses::OneCase(count), "tx-checksum") {
                    assert!(matches!(row.verdict, Verdict::Right), "{count}: {row:?}");
                    assert_eq!(row.lost, 1, "{row:?}");
                }
            });
        }
        for row in verdicts(Loses::OneCase(usize::MAX), "tx-checksum") {
            let Verdict::Wrong(finding) = &row.verdict else { panic!("{row:?}") };
            assert_eq!(finding.blame, Blame::Path, "{finding:?}");
        }
    });
}

#[test]
fn where_only_the_frames_of_an_offload_are_lost_it_is_wrong() {
    for row in verdicts(Loses::LastOfTso, "tso4") {
        let Verdict::Wrong(finding) = &row.verdict else { panic!("{row:?}") };
        assert_eq!((finding.fault, finding.blame), (Fault::FrameMissing, Blame::Sender), "{finding:?}");
    }
    for row in verdicts(Loses::LastOfTso, RSS) {
        assert!(matches!(row.verdict, Verdict::Right), "{row:?}");
    }
}

#[test]
fn an_offload_is_judged_without_the_frames_that_the_path_does_not_carry() {
    // Access ports must drop tagged frames (IEEE 802.1Q 8.6.2), and small switches do not forward jumbo frames.
    for (loses, only, cause) in [
        (Loses::Kind(is_tagged), "tso4", "the path drops tagged frames"),
        (Loses::Kind(is_tagged), "path", "the path drops tagged frames"),
        (Loses::Kind(|frame| frame[12..16] == [0x81, 0, 0xff, 0xfe]), "path", "the path drops frames of VLAN 4094"),
        (Loses::Kind(|frame| frame.len() > 1514), "tso4", "the path drops tagged packets of more than 1496 bytes"),
        (Loses::Kind(|frame| frame[TYPE] == [0x86, 0xdd]), "path", "the path drops IPv6"),
        (
            Loses::Kind(|frame| frame[TYPE] == [8, 0] && frame[20..22] != [0x40, 0]),
            "path",
            "the path drops or reassembles IP fragments",
        ),
    ] {
        for row in verdicts(loses, only) {
            assert!(matches!(row.verdict, Verdict::Right) && row.cases > 10, "{row:?}");
            assert_eq!(row.left_out, [cause], "{row:?}");
        }
    }
}

#[test]
fn a_row_without_a_case_that_gets_through_is_not_tested_and_names_the_cause() {
    for (loses, only, cause) in [
        (Loses::Kind(is_tagged), "rx-vlan", "the path drops tagged frames"),
        (Loses::Kind(|frame| frame[0] & 1 != 0), "uso4-socket", "multicast group"),
        (Loses::Kind(|frame| frame[TYPE] == [0x86, 0xdd]), "tso6", "the path drops IPv6"),
    ] {
        let report = report([1500; 2], loses, only).unwrap();
        for row in &report.rows {
            let Verdict::NotTested { why } = &row.verdict else { panic!("{row:?}") };
            assert!(why.contains(cause), "{why}");
        }
        assert_eq!(report.not_tested(), 2);
        assert_eq!(summary(&report), "Not tested: 2 of 2 verdicts; nothing else is wrong.");
    }
}

#[test]
fn a_path_with_a_smaller_mtu_than_both_interfaces_is_named_with_its_longest_packet() {
    let loses = Loses::Kind(|frame| frame.len() > 14 + 4 + 1987);
    for (only, is_judged) in [("mtu", false), ("tso4", true)] {
        for row in report([9000; 2], loses, only).unwrap().rows {
            match &row.verdict {
                Verdict::Right if is_judged => assert!(row.cases > 10),
                Verdict::NotTested { why } if !is_judged => assert!(why.contains("more than 1991 bytes"), "{why}"),
                other => panic!("{only}: {other:?}"),
            }
        }
    }
}

#[test]
fn differing_mtus_are_wrong_in_both_directions() {
    let loses = Loses::Kind(|frame| frame.len() > 1514 + 4);
    for (row, got) in report([9000, 1500], loses, "mtu").unwrap().rows.iter().zip(["are lost", "arrive"]) {
        let Verdict::Wrong(finding) = &row.verdict else { panic!("{row:?}") };
        assert_eq!((finding.fault, finding.blame), (Fault::MtusDiffer, Blame::Path), "{finding:?}");
        assert!(finding.got.ends_with(got), "{finding:?}");
    }
}

#[test]
fn a_path_that_drops_foreign_source_addresses_is_named_as_one() {
    let loses = Loses::Kind(|frame| frame[TYPE] == [8, 0] || frame[TYPE] == [0x86, 0xdd]);
    let error = report([1500; 2], loses, "path").unwrap_err().to_string();
    assert!(error.contains("the path drops foreign source addresses"), "{error}");
}
