//! Kernel tunnels through a packet socket. The vnet header marks a tunnelled super-frame as plain TCP, and the checksum
//! starts after the inner IP header (observed with Linux 6.18.44; `virtio_net_hdr_from_skb`).

use super::*;
use std::process::Command;

const INNER_HERE: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const INNER_THERE: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

/// Creates a VXLAN interface over `device` and brings the interface up.
fn add_tunnel(ns: &NetNs, device: &str, kind: &str, address: Ipv4Addr) {
    let options = format!("link add tunnel type vxlan id 7 dstport 4789 dev {device} {kind}");
    let made = ns.run(|| Command::new("ip").args(options.split_whitespace()).output().unwrap()).unwrap();
    assert!(made.status.success(), "{options}: {}", String::from_utf8_lossy(&made.stderr));
    ns.run(|| {
        link::add_address("tunnel", IpAddr::V4(address), 24).unwrap();
        link::set_mtu("tunnel", 1400).unwrap();
        link::set_up("tunnel").unwrap();
    })
    .unwrap();
}

#[test]
fn tcp_in_a_tunnel_crosses_in_super_frames_and_nothing_of_it_is_lost() {
    let kinds = [
        ("noudpcsum local 10.9.0.1 remote 10.9.0.2", "noudpcsum local 10.9.0.2 remote 10.9.0.1"),
        ("udpcsum local 10.9.0.1 remote 10.9.0.2", "udpcsum local 10.9.0.2 remote 10.9.0.1"),
        ("local fd09::1 remote fd09::2", "local fd09::2 remote fd09::1"),
    ];
    for (here, there) in kinds {
        let wired = Wired::new();
        for (ns, name, address) in [(&wired.host, "ofr0", "fd09::1"), (&wired.cable.far, "far", "fd09::2")] {
            let address = address.parse().unwrap();
            let enable = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            ns.run(|| {
                std::fs::write(enable, "0").unwrap();
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
                link::add_address(name, address, 64).unwrap();
            })
            .unwrap();
        }
        add_tunnel(&wired.host, "ofr0", here, INNER_HERE);
        add_tunnel(&wired.cable.far, "far", there, INNER_THERE);
        let data: Vec<u8> = (0..8_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let before = wired.to_host();
        let got = transfer(&wired.cable.far, &wired.host, INNER_HERE, &data);
        assert_eq!(Sha256::digest(&got), Sha256::digest(&data), "{here}");
        let (frames, given) = wired.to_host();
        let (frames, given) = (frames - before.0, given - before.1);
        assert!(frames > 5000 && given * 5 < frames, "{here}: {frames} frames were given in {given}");
        for port in [&wired.tap_port, &wired.wire_port] {
            let stats = port.stats();
            let lost: Vec<_> =
                Loss::ALL.iter().map(|&why| stats.transmit.lost(why) + stats.receive.lost(why)).collect();
            assert_eq!(lost.iter().sum::<u64>(), 0, "{here}: {lost:?}");
        }
    }
}
