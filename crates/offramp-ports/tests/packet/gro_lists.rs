//! Super-frames of `rx-gro-list`, which Linux stores as a list of frames. The checksum field of such a super-frame
//! covers only the first frame. If the sender completed this checksum, the vnet header does not request a new checksum
//! (Linux 6.18, `udp4_gro_complete`).

use super::*;
use std::net::UdpSocket;
use std::process::Command;

const DATAGRAMS: usize = 32;

/// Delays the end of GRO on the interface `near`, so that a burst is coalesced.
fn defer_gro(ns: &NetNs) {
    let settings = "mount -t sysfs none /sys && cd /sys/class/net/near && \
                    echo 20000000 > gro_flush_timeout && echo 50 > napi_defer_hard_irqs";
    let set = ns.run(|| Command::new("unshare").args(["--mount", "sh", "-ec", settings]).output().unwrap()).unwrap();
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
}

#[test]
fn datagrams_coalesced_as_a_list_leave_with_right_checksums() {
    let cable = Cable::new();
    for (ns, name, address) in [(&cable.near, "near", HERE), (&cable.far, "far", THERE)] {
        ns.run(|| link::add_address(name, IpAddr::V4(address), 24).unwrap()).unwrap();
    }
    defer_gro(&cable.near);
    cable.near.run(|| ethtool::set_features("near", &[("rx-gro", true), ("rx-gro-list", true)]).unwrap()).unwrap();
    for has_partial in [true, false] {
        let features = [("tx-checksum-ip-generic", has_partial)];
        cable.far.run(|| ethtool::set_features("far", &features).unwrap()).unwrap();
        let (mut near, _far) = cable.ports();
        let socket = cable.far.run(|| UdpSocket::bind((THERE, 0)).unwrap()).unwrap();
        for _ in 0..DATAGRAMS {
            socket.send_to(&[7; 1000], (HERE, 9)).unwrap();
        }
        let (mut datagrams, mut super_frames) = (0, 0);
        eventually("a datagram is missing", || {
            while near.tx_next(0).unwrap() {
                let frame = near.tx_frame();
                if !frame.layout().is_ok_and(|layout| layout.protocol == 17 && layout.payload_len() >= 1000) {
                    continue;
                }
                super_frames += usize::from(frame.request().segmentation.is_some());
                let mut plan = Segmenter::new(&frame, &SegmentPolicy::default()).unwrap();
                while plan.frames_left() > 0 {
                    let mut out = vec![0; plan.next_len()];
                    plan.write_next(&frame, &mut out);
                    assert_eq!(Frame::received(&mut out).verify(), ChecksumState::Good, "partial: {has_partial}");
                    datagrams += 1;
                }
            }
            datagrams == DATAGRAMS
        });
        assert!(super_frames > 0, "the kernel coalesced nothing, partial: {has_partial}");
    }
}
