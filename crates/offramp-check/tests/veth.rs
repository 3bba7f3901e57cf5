//! `offramp check --pair` on a veth pair between two namespaces: all right, and every setting as it was.

mod common;

use common::{Bed, check, wrong};
use offramp_check::run::Config;
use offramp_check::verdict::Verdict;

#[test]
fn every_offload_of_a_veth_pair_is_right_and_every_setting_is_back() {
    let bed = Bed::veth("right", 1500);
    let before = bed.settings();
    let report = check(&bed, &Config { only: Vec::new(), ..common::quick() });
    assert_eq!(wrong(&report), "");
    assert_eq!(bed.settings(), before);
    let of = |offload: &str| report.rows.iter().filter(|row| row.offload == offload).collect::<Vec<_>>();
    for offload in ["tx-checksum", "tso4", "tso6", "tso-ecn", "uso4", "uso6", "rx-checksum", "path", "mtu", "together"]
    {
        let rows = of(offload);
        assert_eq!(rows.len(), 2, "{offload}: once in each direction");
        assert!(rows.iter().all(|row| matches!(row.verdict, Verdict::Right) && row.cases > 0), "{rows:?}");
    }
    assert!(of("rx-gro").iter().all(|row| row.coalesced > 0), "{:?}", of("rx-gro"));
}
