//! Tests with faults planted in offramp's adapter. A check finds each fault, names it correctly, and blames the right
//! side.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod stage;
mod sweep;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::rig::Rig;
use common::tunnel;
use faults::{Row, rows};
use offramp_check::fault::Fault;
use offramp_check::run::{Config, run};
use offramp_check::verdict::{Blame, Report, Verdict};
use offramp_offload::caps::Offloads;
use stage::{Planted, Stage};

/// Index of the side with the faulty adapter, in [`common::NAMES`].
const FAULTY: usize = 0;

/// Number of faults tested in parallel.
const THREADS: usize = 6;

fn report_with(planted: Planted, offload: &str) -> Report {
    let rig = Rig::new(offload, 1500, |side, tap, settings| {
        Stage::new(tap, settings, if side == FAULTY { planted } else { Planted::None })
    });
    let config = Config { only: vec![offload.to_owned()], ..common::quick() };
    run(&mut rig.ends(), &config, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

/// Maximum number of attempts for a fault of coalescing. A fault of coalescing shows only in frames received together,
/// and their reception depends on the machine's load.
const LOOKS_MAX: usize = 3;

/// Returns the mistake in the verdict on a planted fault, or `None` if the verdict is right.
fn mistake(row: &Row) -> Option<String> {
    let looks = if matches!(row.planted, Planted::Coalesces(_)) { LOOKS_MAX } else { 1 };
    (1..looks).fold(mistake_at_a_look(row), |mistake, _| mistake.and_then(|_| mistake_at_a_look(row)))
}

fn mistake_at_a_look(row: &Row) -> Option<String> {
    let report = report_with(row.planted, row.offload);
    let name = common::NAMES[FAULTY];
    let mut found = false;
    for verdict in &report.rows {
        let is_judged = match row.blame {
            Blame::Receiver => verdict.to == name,
            _ => verdict.from == name,
        };
        match &verdict.verdict {
            Verdict::Wrong(finding) if is_judged && finding.fault == row.fault && finding.blame == row.blame => {
                found = true;
            }
            Verdict::Right if !is_judged => {}
            other => return Some(format!("{}: {} to {}: {other:?}\n", row.name, verdict.from, verdict.to)),
        }
    }
    // The report contains a command if an offload causes the fault.
    let has_command =
        report.commands.iter().any(|line| line.starts_with(&format!("ethtool -K {name} ")) && line.ends_with(" off"));
    match found {
        true if has_command == (row.blame != Blame::Path) => None,
        true => Some(format!("{}: {:?}\n", row.name, report.commands)),
        false => Some(format!("{}: not found\n", row.name)),
    }
}

#[test]
fn each_planted_fault_is_found_named_and_blamed_on_the_right_side() {
    let rows = rows();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len());
    assert!(rows.len() >= 100);
    // The tests run in parallel, because they mostly wait for missing frames.
    let next = AtomicUsize::new(0);
    let work = || {
        let rows = std::iter::from_fn(|| rows.get(next.fetch_add(1, Ordering::Relaxed)));
        rows.filter_map(mistake).collect::<String>()
    };
    let mistakes: String = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(mistakes, "");
}

#[test]
fn the_page_of_faults_lists_each_planted_one() {
    let side = |blame: Blame| format!("{blame:?}").to_lowercase();
    let line =
        |row: Row| format!("| {} | `{}` | {} | {} |\n", row.name, row.offload, row.fault.text(), side(row.blame));
    let table: String = rows().into_iter().map(line).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check-faults.md");
    let text = fs::read_to_string(&page).unwrap();
    let (head, _) = text.split_once("|---|---|---|---|\n").unwrap();
    let new = format!("{head}|---|---|---|---|\n{table}");
    if std::env::var_os("OFFRAMP_BLESS").is_some() {
        fs::write(&page, new).unwrap();
    } else {
        assert_eq!(text, new, "OFFRAMP_BLESS=1 writes the table of docs/check-faults.md again");
    }
}

#[test]
fn a_fault_of_one_in_many_is_blamed_on_its_side() {
    let spoil = |frame: &mut Vec<u8>| {
        if let Some(last) = frame.last_mut() {
            *last ^= 1;
        }
    };
    let rare = [
        (Planted::Transmit(|frames, _| frames[0][10] ^= 1), 400, "tx-checksum", Blame::Sender),
        (Planted::Always(spoil), 400, "path", Blame::Path),
        (Planted::Always(spoil), 400, "tx-checksum", Blame::Path),
        (
            Planted::Receive(Offloads::RSC4, |_, frame| {
                frame[10] ^= 1;
                1
            }),
            20,
            "rx-gro-hw",
            Blame::Receiver,
        ),
    ];
    std::thread::scope(|scope| {
        for (planted, one_in, offload, blame) in rare {
            scope.spawn(move || is_blamed_on(planted, one_in, offload, blame));
        }
    });
}

fn is_blamed_on(planted: Planted, one_in: u64, offload: &str, blame: Blame) {
    let rig = Rig::new("rare", 1500, |side, tap, settings| {
        Stage::rarely(tap, settings, if side == FAULTY { planted } else { Planted::None }, one_in)
    });
    let config = Config { only: vec![offload.to_owned()], ..common::quick() };
    let report = run(&mut rig.ends(), &config, &AtomicBool::new(false), &mut |_| ()).unwrap();
    let name = common::NAMES[FAULTY];
    for row in report.rows {
        let is_judged = if blame == Blame::Receiver { row.to == name } else { row.from == name };
        match &row.verdict {
            Verdict::Wrong(finding) if is_judged => assert_eq!(finding.blame, blame, "{offload}: {finding:?}"),
            Verdict::Right if !is_judged => {}
            other => panic!("{offload}, {} to {}: {other:?}", row.from, row.to),
        }
    }
}

#[test]
fn what_is_wrong_alone_is_off_when_all_others_are_together() {
    let rows = rows();
    let uso = rows.iter().find(|row| row.offload == "uso4").unwrap();
    let rig = Rig::new("together", 1500, |side, tap, settings| {
        Stage::new(tap, settings, if side == FAULTY { uso.planted } else { Planted::None })
    });
    let report = run(&mut rig.ends(), &common::quick(), &AtomicBool::new(false), &mut |_| ()).unwrap();
    let wrong: Vec<_> = report.rows.iter().filter(|row| matches!(row.verdict, Verdict::Wrong(_))).collect();
    assert_eq!(wrong.iter().map(|row| row.offload).collect::<Vec<_>>(), ["uso4", "uso6", "uso4-socket", "uso6-socket"]);
    assert_eq!(report.commands, ["ethtool -K cka tx-udp-segmentation off"]);
}

#[test]
fn an_adapter_without_a_fault_is_right() {
    let rig = Rig::new("right", 1500, |_, tap, _| tap);
    let report = run(&mut rig.ends(), &common::quick(), &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert_eq!(common::wrong(&report), "");
    let coalesced = |row: &&offramp_check::verdict::Row| row.offload == "rx-gro-hw" && row.coalesced > 0;
    assert_eq!(report.rows.iter().filter(coalesced).count(), 2, "{report:?}");
}

#[test]
fn a_fault_inside_of_a_tunnel_is_found() {
    // Offset of the inner TTL, after the outer Ethernet, IPv4, UDP and VXLAN headers.
    const INNER_TTL: usize = 14 + 20 + 8 + 8 + 14 + 8;
    if !tunnel::is_possible() {
        return;
    }
    let change = |frame: &mut Vec<u8>| {
        let is_ipv4_inside = frame.get(INNER_TTL - 10..INNER_TTL - 8) == Some(&[0x08, 0x00]);
        if is_ipv4_inside && frame[36..38] == 4789u16.to_be_bytes() {
            frame[INNER_TTL] -= 1;
        }
    };
    let rig =
        Rig::new("vxlan", tunnel::MTU_BELOW, |_, tap, settings| Stage::new(tap, settings, Planted::Always(change)));
    tunnel::vxlan(&rig.bed, "noudpcsum");
    let report = tunnel::check(&rig.bed, &["tso4"]);
    assert_eq!(report.rows.len(), 2);
    for row in &report.rows {
        let Verdict::Wrong(finding) = &row.verdict else { panic!("{row:?}") };
        assert_eq!((finding.fault, finding.blame), (Fault::HopLimit, Blame::Path), "{finding:?}");
    }
}
