//! Frames that an interface receives but cannot pass to a packet socket. The port counts each of these frames under its
//! loss reason.

use super::*;
use nix::unistd::write;
use offramp_offload::meta::Cwr;
use offramp_ports::vnet_hdr::encode_rx;

/// Linux does not deliver a super-frame of UDP fragments to packet sockets, because the vnet header cannot describe
/// such a super-frame (observed with Linux 6.18.44; `virtio_net_hdr_from_skb`). The same branch of
/// `virtio_net_hdr_from_skb` withholds super-frames of SCTP and ESP.
#[test]
fn a_super_frame_that_linux_keeps_and_one_too_long_are_counted_by_name_and_the_next_frame_passes() {
    let ns = namespace();
    let guest = Tap::open_in(&ns, &TapConfig::new("guest")).unwrap();
    ns.run(|| {
        link::disable_ipv6("guest").unwrap();
        link::set_up("guest").unwrap();
    })
    .unwrap();
    let config = PacketConfig { frame_len_max: 2000, ..PacketConfig::new("guest") };
    let packet_port = Packet::open_in(&ns, &config).unwrap();
    let mut switch = Switch::new(&SwitchConfig::link());
    let control = Arc::clone(switch.control());
    let port = control.add(packet_port.queue(0).unwrap(), &PortConfig::default()).unwrap();
    let queue = guest.queue(0).unwrap();
    let (partial, frame) = packet(&[], false, 5000, 1800);
    let checksum = ChecksumState::Partial(partial);
    let kinds = [SegmentationKind::UdpFragments, SegmentationKind::Udp].map(|kind| Segmentation {
        kind,
        size: 1000,
        cwr: Cwr::Unmarked,
    });
    for segmentation in kinds {
        let meta = RxMeta { checksum, segmentation: Some(segmentation), ..RxMeta::default() };
        write(queue.as_fd(), &[&encode_rx(&meta)[..], &frame].concat()).unwrap();
    }
    write(queue.as_fd(), &[&encode_rx(&RxMeta::default())[..], &packet(&[], false, 5000, 3000).1].concat()).unwrap();
    let sent = || &port.stats().transmit;
    eventually("a frame is missing", || {
        switch.poll(0);
        sent().frames_in.get() >= 4
    });
    let lost: Vec<_> = Loss::ALL.iter().map(|&why| (why, sent().lost(why))).filter(|(_, lost)| *lost > 0).collect();
    assert_eq!(lost, [(Loss::TooLong, 1), (Loss::Unsupported, 1), (Loss::NoDestination, 2)]);
}
