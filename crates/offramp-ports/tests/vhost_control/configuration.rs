//! Tests of the device configuration read by a driver, and of change reports (virtio 1.3, 5.1.4 and 5.1.6.5.4; V9,
//! V55).

use super::{ERR, OK, command, rig};
use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig};
use offramp_ports::vhost_user::ControlQueue;
use offramp_testkit::frontend::{Header, RawMessage, VERSION, backend_request};
use offramp_testkit::{Frontend, Guest, GuestBuilder, features, features::protocol};

const ANNOUNCE_ACK: [u8; 2] = [3, 0];
/// Bits of `status`: the link is up, and the guest must announce itself.
const LINK_UP: u16 = 1;
const ANNOUNCE: u16 = 2;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x55];
const CHANNEL: u64 = protocol::CONFIG | protocol::BACKEND_REQ | protocol::BACKEND_SEND_FD;

fn builder(case: &Case, protocol_features: u64) -> GuestBuilder {
    let protocol = protocol::MQ | protocol::STATUS | protocol::RARP | protocol_features;
    case.guest().features(features::GUEST_ANNOUNCE).control_queue().protocol_features(protocol)
}

fn link_status(frontend: &Frontend) -> u16 {
    u16::from_le_bytes(frontend.get_config(6, 2).unwrap().try_into().unwrap())
}

#[test]
fn v9_the_speed_of_the_wire_is_the_cards_where_it_is_known() {
    for (rate_bps, control_queue, speed, duplex) in [
        (Some(2_500_000_000), ControlQueue::Backend, 2500, 1),
        (None, ControlQueue::Backend, u32::MAX, u8::MAX),
        (Some(2_500_000_000), ControlQueue::Frontend, u32::MAX, u8::MAX),
    ] {
        let rig = Rig::with(&RigConfig { rate_bps, control_queue, mac: Some(MAC), ..RigConfig::mtu(1500) });
        let mut frontend = Frontend::connect(rig.socket(0));
        let is_offered = frontend.get_features().unwrap() & features::SPEED_DUPLEX != 0;
        frontend.set_protocol_features(protocol::CONFIG).unwrap();
        assert_eq!(is_offered, speed != u32::MAX, "{control_queue:?}");
        assert_eq!(frontend.get_config(12, 5).unwrap(), [&speed.to_le_bytes()[..], &[duplex]].concat());
    }
}

#[test]
fn v55_a_guest_that_announces_itself_is_asked_to_and_says_when_it_has_heard() {
    for case in Case::rings() {
        let rig = rig(1);
        let mut guest = rig.guest(0, &builder(&case, CHANNEL));
        assert_eq!(link_status(guest.frontend()), LINK_UP);
        assert_eq!(command(&mut guest, ANNOUNCE_ACK, &[]), ERR, "{case:?}: nobody has asked");
        guest.frontend().send_rarp(MAC).unwrap();
        let message = guest.frontend().backend_request(PATIENCE).expect("a channel that is open");
        assert_eq!(message.header, Header { flags: VERSION, ..Header::new(backend_request::CONFIG_CHANGE_MSG, 0) });
        assert_eq!(link_status(guest.frontend()), LINK_UP | ANNOUNCE);
        assert_eq!(command(&mut guest, ANNOUNCE_ACK, &[]), OK);
        // The status is updated before the command is answered.
        assert_eq!(link_status(guest.frontend()), LINK_UP);
        assert_eq!(command(&mut guest, ANNOUNCE_ACK, &[]), ERR);
        assert_eq!(rig.ports[0].channel_counters().config_changes.get(), 1, "{case:?}");
    }
}

#[test]
fn a_guest_that_cannot_be_asked_is_announced_by_its_port() {
    for has_had_a_channel in [false, true] {
        let rig = rig(1);
        let case = Case::rings().next().unwrap();
        let mut other = rig.guest(1, &case.guest());
        other.rx(0).fill(8, 2048);
        let protocol_features = if has_had_a_channel { CHANNEL } else { protocol::CONFIG };
        let mut guest: Guest = rig.guest(0, &builder(&case, protocol_features));
        assert_eq!(link_status(guest.frontend()), LINK_UP);
        if has_had_a_channel {
            // The backend closes the channel after an unrequested answer.
            let header = Header::new(backend_request::CONFIG_CHANGE_MSG, 0);
            let unasked = RawMessage { header, payload: vec![], fds: vec![] };
            assert!(guest.frontend().acknowledge_backend(&unasked, 0));
            assert!(guest.frontend().backend_request(PATIENCE).is_none());
        }
        guest.frontend().send_rarp(MAC).unwrap();
        let received = other.rx(0).recv(PATIENCE);
        assert_eq!(
            (&received.frame[..6], &received.frame[6..14]),
            (&[0xff; 6][..], &[&MAC[..], &[0x80, 0x35]].concat()[..])
        );
        assert_eq!(link_status(guest.frontend()), LINK_UP);
        assert_eq!(rig.ports[0].channel_counters().config_changes.get(), 0);
    }
}
