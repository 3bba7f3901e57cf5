//! A VXLAN tunnel over the path of a test bed.

use std::process::Command;
use std::sync::atomic::AtomicBool;

use offramp_check::end::{End, LocalEnd};
use offramp_check::run::{Config, run};
use offramp_check::verdict::Report;
use offramp_ports::sys::link;

use super::{Bed, NAMES, quick};

/// MTU of the path below the tunnel, with room for the tunnel's headers.
pub const MTU_BELOW: u32 = 1600;
/// Name of the tunnel's interface in both namespaces.
const INTERFACE: &str = "vxlan0";

/// Returns whether this machine can make tunnels. Without `ip`, a test is skipped, except in CI.
pub fn is_possible() -> bool {
    let is_possible = Command::new("ip").arg("-V").output().is_ok();
    if !is_possible {
        assert!(std::env::var_os("CI").is_none(), "this test needs `ip`, and CI skips nothing");
        eprintln!("skipped: no `ip` here");
    }
    is_possible
}

/// Makes the tunnel. `checksum` is `udpcsum` or `noudpcsum`.
pub fn vxlan(bed: &Bed, checksum: &str) {
    for (side, namespace) in bed.namespaces.iter().enumerate() {
        let [own, other] = [side + 1, 2 - side].map(|host| format!("192.0.2.{host}"));
        let lower = NAMES[side];
        let make = format!(
            "link add {INTERFACE} type vxlan id 7 local {own} remote {other} dstport 4789 {checksum} dev {lower}"
        );
        let set_up = || {
            link::add_address(lower, own.parse().unwrap(), 24).unwrap();
            let made = Command::new("ip").args(make.split(' ')).output().unwrap();
            assert!(made.status.success(), "ip {make}: {}", String::from_utf8_lossy(&made.stderr));
            link::set_mtu(INTERFACE, 1500).unwrap();
            link::set_up(INTERFACE).unwrap();
        };
        namespace.run(set_up).unwrap();
    }
}

/// Checks the tunnel's two interfaces, named `left` and `right`.
pub fn check(bed: &Bed, only: &[&str]) -> Report {
    let end = |side: usize, name| -> Box<dyn End> {
        let namespace = bed.namespaces[side].try_clone().unwrap();
        Box::new(LocalEnd::open_in(namespace, name, INTERFACE, &bed.state_dir, &mut |_| ()).unwrap())
    };
    let only = only.iter().map(|name| (*name).to_owned()).collect();
    run(&mut [end(0, "left"), end(1, "right")], &Config { only, ..quick() }, &AtomicBool::new(false), &mut |_| ())
        .unwrap()
}
