//! Tests of a guest's receive filters (virtio 1.3, 5.1.6.5.1 to .3; V49 to V54).

use super::{ERR, OK, SEGMENTS, command, segments_of, status, super_frame};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, wait_until};
use offramp_adapter::stats::Loss;
use offramp_ports::vhost_user::{ControlQueue, ReceiveModes};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::{Guest, GuestBuilder, VnetHeader};

/// Classes and numbers of commands.
const VLAN_ADD: [u8; 2] = [2, 0];
const VLAN_DEL: [u8; 2] = [2, 1];
const MAC_TABLE_SET: [u8; 2] = [1, 0];
const MAC_ADDR_SET: [u8; 2] = [1, 1];
const PROMISC: [u8; 2] = [0, 0];
const ALLMULTI: [u8; 2] = [0, 1];
const ALLUNI: [u8; 2] = [0, 2];
const NOMULTI: [u8; 2] = [0, 3];
const NOUNI: [u8; 2] = [0, 4];
const NOBCAST: [u8; 2] = [0, 5];

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0x71];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x72];
const FOREIGN: [u8; 6] = [2, 0, 0, 0, 0, 0x73];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 9];
const BROADCAST: [u8; 6] = [0xff; 6];
const FILTERS: u64 = features::CTRL_RX | features::CTRL_RX_EXTRA | features::CTRL_VLAN | features::CTRL_MAC_ADDR;

/// Creates a rig whose port 0 assigns an address to its guest and permits another address.
fn rig() -> Rig {
    Rig::with(&RigConfig {
        control_queue: ControlQueue::Backend,
        mac: Some(OWN),
        mac_addresses: vec![OWN, OTHER],
        ..RigConfig::mtu(1500)
    })
}

fn builder(case: &Case) -> GuestBuilder {
    let protocol = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS | protocol::CONFIG;
    case.guest().features(FILTERS).control_queue().protocol_features(protocol)
}

/// Returns the bytes of two `virtio_net_ctrl_mac`.
fn tables(unicast: &[[u8; 6]], multicast: &[[u8; 6]]) -> Vec<u8> {
    let table = |macs: &[[u8; 6]]| [&(macs.len() as u32).to_le_bytes()[..], &macs.concat()].concat();
    [table(unicast), table(multicast)].concat()
}

/// Returns six frames. Four frames are untagged, to the guest's station, another station, the broadcast address, and a
/// group. Two frames are to the guest's station, with tags of different VLANs.
fn frames() -> [Vec<u8>; 6] {
    let untagged = |to: [u8; 6]| [&to[..], &FOREIGN, &[0x88, 0xb5], &[0x5a; 50]].concat();
    let tagged = |vid: u8| [&OWN[..], &FOREIGN, &[0x81, 0, 0x60, vid], &[0x88, 0xb5], &[0x5a; 50]].concat();
    [untagged(OWN), untagged(OTHER), untagged(BROADCAST), untagged(GROUP), tagged(5), tagged(6)]
}

/// Sends all of [`frames`]. Checks that only the expected frames arrive, and that the lost frames are counted.
#[track_caller]
fn expect(rig: &Rig, sender: &mut Guest, guest: &mut Guest, expected: [u8; 6]) {
    let lost = || rig.received(0, |count| count.lost(Loss::GuestFilter));
    let before = lost();
    for frame in frames() {
        sender.tx(0).send(&VnetHeader::default(), &[&frame]);
    }
    for (frame, _) in frames().iter().zip(expected).filter(|(_, passes)| *passes == 1) {
        let received = guest.rx(0).recv_within(PATIENCE).expect("a frame that passes");
        assert_eq!(received.frame, *frame, "{expected:?}");
    }
    let refused = expected.map(|passes| u64::from(1 - passes)).iter().sum::<u64>();
    wait_until("the others to be counted", || lost() == before + refused);
}

#[test]
fn v49_to_v54_a_guest_receives_what_it_asked_for_and_the_rest_is_counted() {
    for case in Case::rings() {
        let rig = rig();
        let mut sender = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case));
        guest.rx(0).fill(64, 2048);
        let (on, off) = ([1], [0]);
        let own_alone = [1, 0, 1, 0, 0, 0];
        let steps: [([u8; 2], Vec<u8>, [u8; 6]); 20] = [
            (PROMISC, off.to_vec(), own_alone),
            (ALLMULTI, on.to_vec(), [1, 0, 1, 1, 0, 0]),
            (NOMULTI, on.to_vec(), own_alone),
            (ALLMULTI, off.to_vec(), own_alone),
            (NOMULTI, off.to_vec(), own_alone),
            (NOBCAST, on.to_vec(), [1, 0, 0, 0, 0, 0]),
            (NOBCAST, off.to_vec(), own_alone),
            (ALLUNI, on.to_vec(), [1, 1, 1, 0, 0, 0]),
            (NOUNI, on.to_vec(), [0, 0, 1, 0, 0, 0]),
            (ALLUNI, off.to_vec(), [0, 0, 1, 0, 0, 0]),
            (NOUNI, off.to_vec(), own_alone),
            (MAC_TABLE_SET, tables(&[OTHER], &[GROUP]), [1, 1, 1, 1, 0, 0]),
            (MAC_TABLE_SET, tables(&[], &[]), own_alone),
            (VLAN_ADD, vec![5, 0], [1, 0, 1, 0, 1, 0]),
            (VLAN_ADD, vec![6, 0], [1, 0, 1, 0, 1, 1]),
            (VLAN_DEL, vec![5, 0], [1, 0, 1, 0, 0, 1]),
            (VLAN_DEL, vec![6, 0], own_alone),
            (MAC_ADDR_SET, OTHER.to_vec(), [0, 1, 1, 0, 0, 0]),
            (PROMISC, on.to_vec(), [1; 6]),
            (MAC_ADDR_SET, OWN.to_vec(), [1; 6]),
        ];
        // The guest has set neither modes nor addresses, and its table of VLANs is empty.
        expect(&rig, &mut sender, &mut guest, [1, 1, 1, 1, 0, 0]);
        for (number, fields, expected) in steps {
            assert_eq!(command(&mut guest, number, &fields), OK, "{case:?}: {number:?} {fields:?}");
            expect(&rig, &mut sender, &mut guest, expected);
        }
        assert_eq!(status(&rig, 0).refused, 0);
    }
}

#[test]
fn what_a_port_binds_its_guest_to_wins_over_what_the_guest_asks_for() {
    let rig = rig();
    let mut guest = rig.guest(0, &builder(&Case::rings().next().unwrap()));
    let address = |guest: &mut Guest| guest.frontend().get_config(0, 6).unwrap();
    // An address of another guest, a group address, the zero address, and half of an address.
    for wrong in [&FOREIGN[..], &GROUP, &[0; 6], &OTHER[..3]] {
        assert_eq!(command(&mut guest, MAC_ADDR_SET, wrong), ERR);
        assert_eq!(address(&mut guest), OWN);
    }
    assert_eq!(command(&mut guest, MAC_ADDR_SET, &OTHER), OK);
    // V52: the configuration has the new address before the command is answered.
    assert_eq!(address(&mut guest), OTHER);
    wait_until("the address", || status(&rig, 0).filter.mac == Some(OTHER));
    drop(guest);
    let mut guest = rig.guest(0, &builder(&Case::rings().next().unwrap()));
    assert_eq!(address(&mut guest), OWN, "after a reset it is the port's again");
}

#[test]
fn filters_that_are_wrong_are_refused_and_change_nothing() {
    let rig = rig();
    let case = Case::rings().next().unwrap();
    let mut sender = rig.guest(1, &case.guest());
    let mut guest = rig.guest(0, &builder(&case));
    guest.rx(0).fill(64, 2048);
    assert_eq!(command(&mut guest, PROMISC, &[0]), OK);
    assert_eq!(command(&mut guest, MAC_TABLE_SET, &tables(&[OTHER], &[])), OK);
    let more_than_there_are = [&2u32.to_le_bytes()[..], &OTHER, &[0; 4]].concat();
    let wrong: [([u8; 2], &[u8]); 8] = [
        (PROMISC, &[]),
        ([0, 6], &[1]),
        (MAC_TABLE_SET, &[]),
        (MAC_TABLE_SET, &[0; 7]),
        (MAC_TABLE_SET, &more_than_there_are),
        (MAC_TABLE_SET, &[0xff; 16]),
        (VLAN_ADD, &[0, 0x10]),
        (VLAN_DEL, &[0]),
    ];
    for (number, fields) in wrong {
        assert_eq!(command(&mut guest, number, fields), ERR, "{number:?} {fields:?}");
    }
    expect(&rig, &mut sender, &mut guest, [1, 1, 1, 0, 0, 0]);
    wait_until("eight refusals", || status(&rig, 0).refused == 8);
    let filter = status(&rig, 0).filter;
    assert_eq!((filter.modes, filter.unicast_addresses), (Some(ReceiveModes::empty()), 1));
}

#[test]
fn a_super_frame_that_its_filter_does_not_take_costs_a_guest_no_buffer() {
    for case in Case::rings() {
        let rig = rig();
        let sends = features::CSUM | features::HOST_TSO4;
        let mut sender = rig.guest(1, &case.guest().features(sends));
        let mut guest = rig.guest(0, &builder(&case).features(features::GUEST_CSUM | features::GUEST_TSO4));
        guest.rx(0).fill(64, 2048);
        assert_eq!(command(&mut guest, PROMISC, &[0]), OK);
        let mut send = |to: [u8; 6]| {
            let (header, mut frame) = super_frame();
            frame[..6].copy_from_slice(&to);
            sender.tx(0).send(&header, &[&frame]);
        };
        send(FOREIGN);
        wait_until("its segments to be counted", || {
            rig.received(0, |count| count.lost(Loss::GuestFilter)) == SEGMENTS as u64
        });
        assert!(guest.rx(0).recv_within(std::time::Duration::ZERO).is_none(), "{case:?}: a buffer came back");
        send(OWN);
        let mut segments = 0;
        while segments < SEGMENTS {
            let received = guest.rx(0).recv(PATIENCE);
            assert_eq!(received.frame[..6], OWN);
            segments += segments_of(&received);
        }
    }
}

/// The changed features may be the only message by which a frontend starts a driver without a control queue.
#[test]
fn another_driver_finds_no_filter_of_the_one_before() {
    let rig = rig();
    let case = Case::layouts().next().unwrap();
    let (mut sender, mut guest) = (rig.guest(1, &case.guest()), rig.guest(0, &builder(&case)));
    guest.rx(0).fill(64, 2048);
    assert_eq!(command(&mut guest, NOBCAST, &[1]), OK);
    expect(&rig, &mut sender, &mut guest, [1, 0, 0, 0, 0, 0]);
    let features = guest.negotiated().features & !FILTERS;
    // Without a control queue, no command can add a VLAN.
    for features in [features, features & !features::CTRL_VQ | features::CTRL_VLAN] {
        guest.frontend().set_features(features).unwrap();
        expect(&rig, &mut sender, &mut guest, [1; 6]);
    }
}
