//! Tests of `offramp check --pair` on a veth pair between two namespaces. All offloads have the verdict
//! `Verdict::Right`, and every setting is restored.

mod common;

use common::{Bed, NAMES, check, wrong};
use offramp_check::run::Config;
use offramp_check::verdict::Verdict;
use offramp_ports::sys::link;

#[test]
fn every_offload_of_a_veth_pair_is_right_and_every_setting_is_back() {
    let bed = Bed::veth("right", 1500);
    let before = bed.settings();
    let report = check(&bed, &Config { only: Vec::new(), ..common::quick() });
    assert_eq!(wrong(&report), "");
    assert_eq!(bed.settings(), before);
    let of = |offload: &str| report.rows.iter().filter(|row| row.offload == offload).collect::<Vec<_>>();
    let names = "path mtu tx-checksum tso4 tso6 tso-ecn uso4 uso6 uso4-socket uso6-socket tx-vlan rx-checksum together";
    for offload in names.split(' ') {
        let rows = of(offload);
        assert_eq!(rows.len(), 2, "{offload}: once in each direction");
        assert!(rows.iter().all(|row| matches!(row.verdict, Verdict::Right) && row.cases > 0), "{rows:?}");
    }
    assert!(of("rx-gro").iter().all(|row| row.coalesced > 0), "{:?}", of("rx-gro"));
}

#[test]
fn a_socket_whose_datagrams_the_kernel_refuses_is_not_reachable_and_nothing_is_wrong() {
    let bed = Bed::veth("without-ipv6", 1500);
    let off = || link::disable_ipv6(NAMES[0]).unwrap();
    bed.namespaces[0].run(off).unwrap();
    let only = ["uso4-socket", "uso6-socket", "together"].map(str::to_owned).to_vec();
    let report = check(&bed, &Config { only, ..common::quick() });
    assert_eq!(wrong(&report), "");
    let unreachable: Vec<_> = report
        .rows
        .iter()
        .filter_map(|row| match &row.verdict {
            Verdict::NotReachable { why } => Some((row.from.as_str(), row.offload, why.as_str())),
            _ => None,
        })
        .collect();
    let [("cka", "uso6-socket", why)] = unreachable[..] else { panic!("{unreachable:?}") };
    assert!(why.contains("refuses datagrams of a UDP socket"), "{why}");
}
