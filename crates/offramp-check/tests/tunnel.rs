//! Tests of segmentation inside a tunnel. The pair under check is two VXLAN interfaces over a path.

mod common;

use common::tunnel::{MTU_BELOW, check, is_possible, vxlan};
use common::{Bed, NAMES, wrong};
use offramp_check::verdict::Verdict;
use offramp_ports::sys::ethtool::set_features;

/// Features for super-frames in a tunnel, without and with a checksum in the outer UDP header.
const FEATURES: [&str; 2] = ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];

#[test]
fn what_a_veth_pair_segments_inside_of_vxlan_is_right_and_so_is_what_linux_does() {
    if !is_possible() {
        return;
    }
    for checksum in ["udpcsum", "noudpcsum"] {
        for is_on in [true, false] {
            let bed = Bed::veth("vxlan", MTU_BELOW);
            for (namespace, lower) in bed.namespaces.iter().zip(NAMES) {
                let switch = || set_features(lower, &FEATURES.map(|feature| (feature, is_on))).unwrap();
                namespace.run(switch).unwrap();
            }
            vxlan(&bed, checksum);
            let report = check(&bed, &["tx-checksum", "tso4", "tso6", "rx-gro", "together"]);
            assert_eq!(wrong(&report), "", "{checksum}, segmentation below {is_on}");
            let segmented: Vec<_> = report.rows.iter().filter(|row| row.offload.starts_with("tso")).collect();
            assert_eq!(segmented.len(), 4);
            for row in segmented {
                assert!(matches!(row.verdict, Verdict::Right) && row.cases > 0, "{row:?}");
                // A veth pair with segmentation inside tunnels delivers the super-frame unsegmented.
                assert!(!is_on || row.coalesced == row.cases, "{checksum}: {row:?}");
            }
        }
    }
}
