//! Tests that a saved state preserves the settings made through the control queue.

use super::{COALESCE_RX, COALESCE_VQ, OK, PAIRS_SET, builder, coalescing, command, of_vq, rig, status};
use crate::vhost_common::{Case, Rig, carry, frame, rng, wait_until};
use offramp_testkit::features::{self, protocol};
use offramp_testkit::{Dialect, Guest, GuestBuilder};

const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::DEVICE_STATE;

fn settled(rig: &Rig, builder: &GuestBuilder) -> Guest {
    let mut guest = rig.guest(0, builder);
    assert_eq!(command(&mut guest, PAIRS_SET, &2u16.to_le_bytes()), OK);
    assert_eq!(command(&mut guest, COALESCE_RX, &coalescing(50, 16)), OK);
    assert_eq!(command(&mut guest, COALESCE_VQ, &of_vq(3, 7, 9)), OK);
    // The command is VIRTIO_NET_CTRL_VLAN_ADD.
    assert_eq!(command(&mut guest, [2, 0], &5u16.to_le_bytes()), OK);
    guest
}

#[test]
fn what_a_guest_has_set_is_in_force_after_it_was_restored_at_another_port() {
    for case in Case::rings() {
        let builder = builder(&case, 2).features(features::CTRL_VLAN | features::CTRL_RX);
        let builder = builder.protocol_features(PROTOCOL).dialect(Dialect::CloudHypervisor);
        let rigs = [rig(2), rig(2)];
        let mut guest = settled(&rigs[0], &builder);
        // The port publishes its status after its answer.
        wait_until("the last command", || status(&rigs[0], 0).filter.vlans == Some(vec![5]));
        let settings = status(&rigs[0], 0);
        let bases = guest.stop().unwrap();
        let state = guest.frontend().save_state().unwrap();
        let memory = guest.memory().clone();
        guest.restore(memory, rigs[1].socket(0), &bases, Some(&state)).unwrap();
        wait_until("the control queue", || rigs[1].ports[0].status().control.is_some_and(|now| now == settings));
        // The control queue continues.
        assert_eq!(command(&mut guest, PAIRS_SET, &1u16.to_le_bytes()), OK, "{case:?}");
        let mut peer = rigs[1].guest(1, &case.guest());
        guest.rx(0).fill(16, 2048);
        carry(&mut peer, &mut guest, 0, &frame(&mut rng(), 100), &case);
    }
}
