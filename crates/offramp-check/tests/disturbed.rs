//! Tests of a check that is stopped, or whose interface changes: the check ends with a short error, and restores every
//! setting.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Bed, NAMES, quick};
use offramp_check::end::End;
use offramp_check::error::CheckError;
use offramp_check::run::run;
use offramp_ports::sys::link;

/// Runs a check and returns its error. `disturb` runs once, right before the first check of `tso4`.
fn disturbed(bed: &Bed, stop: &AtomicBool, disturb: impl Fn()) -> CheckError {
    let mut ends: [Box<dyn End>; 2] = [Box::new(bed.end(0).unwrap()), Box::new(bed.end(1).unwrap())];
    let mut is_done = false;
    let mut progress = |line: &str| {
        if line.contains("tso4") && !std::mem::replace(&mut is_done, true) {
            disturb();
        }
    };
    run(&mut ends, &quick(), stop, &mut progress).unwrap_err()
}

#[test]
fn a_check_that_is_stopped_puts_everything_back() {
    let bed = Bed::veth("stopped", 1500);
    let (before, stop) = (bed.settings(), AtomicBool::new(false));
    let error = disturbed(&bed, &stop, || stop.store(true, Ordering::Relaxed));
    assert!(matches!(error, CheckError::Stopped), "{error}");
    assert_eq!(bed.settings(), before);
}

#[test]
fn an_interface_that_goes_down_is_named_and_put_back() {
    for side in [0, 1] {
        let bed = Bed::veth("down", 1500);
        let before = bed.settings();
        let down = || bed.namespaces[side].run(|| link::set_down(NAMES[side]).unwrap()).unwrap();
        let error = disturbed(&bed, &AtomicBool::new(false), down);
        assert!(matches!(error, CheckError::WentDown(_)), "{error}");
        assert_eq!(bed.settings(), before);
    }
}

#[test]
fn an_mtu_that_changes_is_named_and_the_interface_put_back() {
    let bed = Bed::veth("mtu", 1500);
    let before = bed.settings();
    let change = || bed.namespaces[1].run(|| link::set_mtu(NAMES[1], 1400).unwrap()).unwrap();
    let error = disturbed(&bed, &AtomicBool::new(false), change);
    assert!(error.to_string().contains("the MTU of interface \"ckb\" changed from 1500 to 1400"), "{error}");
    assert_eq!(bed.settings(), before);
}

#[test]
fn an_interface_that_is_deleted_ends_the_check() {
    let bed = Bed::veth("deleted", 1500);
    let delete = || bed.namespaces[0].run(|| link::delete(NAMES[0]).unwrap()).unwrap();
    let error = disturbed(&bed, &AtomicBool::new(false), delete).to_string();
    assert!(error.contains("cka") || error.contains("ckb"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn an_interface_that_another_check_holds_is_busy() {
    let bed = Bed::veth("busy", 1500);
    let held = bed.end(0).unwrap();
    let refused = bed.end(0).unwrap_err().to_string();
    assert!(refused.contains("is in use by another run"), "{refused}");
    drop(held);
    assert!(bed.end(0).is_ok());
}
