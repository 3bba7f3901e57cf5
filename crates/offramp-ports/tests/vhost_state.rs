//! Tests of a frontend that saves its guest and resumes the guest at another port: snapshots, clones and migration in
//! Cloud Hypervisor. The test frontend behaves like `vu_common_ctrl.rs` in Cloud Hypervisor 53.

use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, carry, frame, rng, wait_until};
use offramp_adapter::stats::Direction;
use offramp_testkit::features::protocol;
use offramp_testkit::frontend::request;
use offramp_testkit::memory::PAGE_LEN;
use offramp_testkit::{Dialect, Guest, GuestBuilder, GuestMemory, PeerError, RegionSpec, RxQueue, VnetHeader};
use rand::RngExt;

/// Memory of the guests, small enough to copy.
const MEMORY: RegionSpec = RegionSpec { guest_addr: 0x10_0000, len: 4 << 20, file_offset: 0 };
/// Number of receive buffers of a guest.
const BUFFERS: usize = 48;
const BUFFER_LEN: usize = 2048;
const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIGURE_MEM_SLOTS;

fn builder(case: &Case, keeps_state: bool) -> GuestBuilder {
    let state = if keeps_state { protocol::DEVICE_STATE } else { 0 };
    // The size of a packed ring need not be a power of two.
    let guest = case.guest().dialect(Dialect::CloudHypervisor).queue_size(if case.packed { 100 } else { 64 });
    guest.protocol_features(PROTOCOL | state).memory(&[MEMORY])
}

fn copy_of(memory: &GuestMemory) -> GuestMemory {
    let copy = memory.new_alike();
    let pages = (MEMORY.guest_addr..MEMORY.guest_addr + MEMORY.len).step_by(PAGE_LEN as usize);
    pages.for_each(|page| copy.copy_page(memory, page));
    copy
}

/// The bases that a frontend sets for a restored guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bases {
    /// The bases returned by the backend for `GET_VRING_BASE`.
    Saved,
    /// The driver's available index, which Cloud Hypervisor reads from guest memory. No chain is available at this
    /// position.
    Available,
}

impl Bases {
    fn of(self, guest: &mut Guest, saved: Vec<u32>) -> Vec<u32> {
        let at = [guest.rx(0).ring().addresses().driver, guest.tx(0).ring().addresses().driver];
        let available = at.map(|at| guest.memory().read_u16(at + 2).into());
        if self == Self::Saved { saved } else { available.to_vec() }
    }
}

fn numbered(number: u32) -> Vec<u8> {
    let mut frame = frame(&mut rng(), 100);
    frame[14..18].copy_from_slice(&number.to_le_bytes());
    frame
}

fn send(guest: &mut Guest, numbers: std::ops::Range<u32>) {
    for number in numbers {
        guest.tx(0).send(&VnetHeader::default(), &[&numbered(number)]);
    }
    guest.tx(0).drain(PATIENCE);
}

#[track_caller]
fn expect(rx: &mut RxQueue, numbers: std::ops::Range<u32>, what: &dyn std::fmt::Debug) {
    for number in numbers {
        let received = rx.recv_within(PATIENCE).unwrap_or_else(|| panic!("frame {number} is lost: {what:?}"));
        assert_eq!(received.frame[14..18], number.to_le_bytes(), "lost, doubled or out of order: {what:?}");
    }
}

/// Saves a guest with frames in flight at one port, and restores the guest at two other ports.
fn save_and_restore(case: Case, keeps_state: bool, bases: Bases) {
    let what = (case, keeps_state, bases);
    let mut rng = rng();
    let rigs = [(); 3].map(|()| Rig::with(&RigConfig::mtu(1500)));
    let mut guest = rigs[0].guest(0, &builder(&case, keeps_state));
    let mut peer = rigs[0].guest(1, &case.guest());
    assert_eq!(guest.rx(0).fill(BUFFERS, BUFFER_LEN), BUFFERS);
    peer.rx(0).fill(BUFFERS, BUFFER_LEN);
    // Send up to several times as many frames as the ring has entries.
    let before = rng.random_range(0..250);
    for number in 0..before {
        send(&mut peer, number..number + 1);
        expect(guest.rx(0), number..number + 1, &what);
        send(&mut guest, number..number + 1);
        expect(peer.rx(0), number..number + 1, &what);
    }
    // The driver is paused before it has seen these frames.
    guest.rx(0).set_recycle(false);
    let in_flight = rng.random_range(0..BUFFERS as u32);
    println!("{before} frames before, {in_flight} in flight");
    let received = || rigs[0].received(0, |count: &Direction| count.host_frames.get());
    send(&mut peer, before..before + in_flight);
    wait_until("all frames in the ring", || received() == u64::from(before + in_flight));
    (0..2).for_each(|vring| guest.frontend().set_vring_enable(vring, false).unwrap());
    let saved = guest.stop().unwrap();
    let state = keeps_state.then(|| guest.frontend().save_state().expect("the state"));
    let bases = bases.of(&mut guest, saved);
    let snapshot = copy_of(guest.memory());
    send(&mut peer, before + in_flight..before + in_flight + 3);
    drop(peer);

    // The driver exists only once, so the first clone tests only the device.
    for (rig, lives) in rigs[1..].iter().zip([false, true]) {
        let mut peer = rig.guest(1, &case.guest());
        peer.rx(0).fill(BUFFERS, BUFFER_LEN);
        guest.restore(copy_of(&snapshot), rig.socket(0), &bases, state.as_deref()).expect("the restored rings");
        let left = BUFFERS as u32 - in_flight;
        send(&mut peer, before + in_flight..before + in_flight + left);
        let received = || rig.received(0, |count: &Direction| count.host_frames.get());
        wait_until("every posted buffer to receive", || received() == u64::from(left));
        assert_eq!(rig.received(0, Direction::lost_total) + rig.broken_rings(0) + rig.bad_chains(0), 0, "{what:?}");
        if lives {
            expect(guest.rx(0), before..before + in_flight + left, &what);
            send(&mut guest, 0..BUFFERS as u32);
            expect(peer.rx(0), 0..BUFFERS as u32, &what);
        }
    }
}

#[test]
fn a_restored_guest_receives_in_every_posted_buffer_and_nothing_is_lost_or_doubled() {
    for case in Case::layouts().chain(Case::all().filter(|case| case.in_order && case.mergeable && !case.indirect)) {
        save_and_restore(case, true, Bases::Saved);
        // The base in the state takes precedence over the frontend's base.
        save_and_restore(case, true, Bases::Available);
        // The memory of a packed ring contains no available index, and Cloud Hypervisor does not negotiate packed
        // rings.
        if !case.packed {
            save_and_restore(case, false, Bases::Saved);
            save_and_restore(case, false, Bases::Available);
        }
    }
}

#[test]
fn a_guest_goes_on_at_the_same_port_after_its_state_was_saved() {
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let mut guest = rig.guest(0, &builder(&case, true));
        let mut peer = rig.guest(1, &case.guest());
        guest.rx(0).fill(BUFFERS, BUFFER_LEN);
        peer.rx(0).fill(BUFFERS, BUFFER_LEN);
        for round in 0..5 {
            carry(&mut peer, &mut guest, 0, &numbered(round), &case);
            carry(&mut guest, &mut peer, 0, &numbered(round), &case);
            let bases = guest.stop().unwrap();
            let states = [(); 2].map(|()| guest.frontend().save_state().unwrap());
            assert_eq!(states[0], states[1], "saving changes nothing");
            guest.start_at(&bases).unwrap();
        }
        assert_eq!(rig.received(0, Direction::lost_total), 0, "{case:?}");
    }
}

/// A driver that starts after the load has new rings.
#[test]
fn a_ring_that_is_set_up_anew_after_a_load_does_not_begin_at_the_saved_position() {
    for case in Case::layouts() {
        let rig = Rig::with(&RigConfig::mtu(1500));
        let mut peer = rig.guest(1, &case.guest());
        let mut guest = rig.guest(0, &builder(&case, true));
        guest.rx(0).fill(BUFFERS, BUFFER_LEN);
        for number in 0..7 {
            carry(&mut peer, &mut guest, 0, &numbered(number), &case);
        }
        guest.stop().unwrap();
        let state = guest.frontend().save_state().unwrap();
        guest.frontend().load_state(&state).unwrap();
        guest.reset_rings();
        guest.start().unwrap();
        guest.rx(0).fill(BUFFERS, BUFFER_LEN);
        for number in 0..7 {
            carry(&mut peer, &mut guest, 0, &numbered(number), &case);
        }
    }
}

#[test]
fn a_state_that_was_cut_grown_changed_or_made_elsewhere_is_refused_and_harms_nobody() {
    let case = Case::layouts().next().unwrap();
    let rig = Rig::with(&RigConfig::mtu(1500));
    let of_two_pairs = Rig::with(&RigConfig::mtu(1500).queue_pairs(2));
    let saved = |rig: &Rig, builder: &GuestBuilder| {
        let mut guest = rig.guest(0, builder);
        guest.stop().unwrap();
        guest.frontend().save_state().unwrap()
    };
    let mut bystander = rig.guest(1, &case.guest());
    bystander.rx(0).fill(BUFFERS, BUFFER_LEN);
    let good = saved(&rig, &builder(&case, true));
    let mut changed = good.clone();
    changed[20] ^= 1;
    let mut later = good.clone();
    later[8] = 9;
    let cases = [
        (good[..good.len() - 1].to_vec(), "bytes in place of"),
        (Vec::new(), "0 bytes in place of"),
        ([&good[..], &[0]].concat(), "bytes in place of"),
        (vec![0; 1 << 20], "exceeds the maximum"),
        (changed, "have changed"),
        (b"QEVM and other bytes".to_vec(), "offramp has not written"),
        (later, "version 9"),
        (saved(&of_two_pairs, &builder(&case, true)), "4 vrings, and this port has 2"),
        (saved(&of_two_pairs, &builder(&case, true).queue_pairs(2)), "not offered here"),
    ];
    for (state, why) in cases {
        let mut guest = builder(&case, true).enabled(false).connect(rig.socket(0));
        guest.stop().unwrap();
        let refused = Err(PeerError::Refused { request: request::CHECK_DEVICE_STATE, code: 1 });
        assert_eq!(guest.frontend().load_state(&state), refused, "{why}");
        assert!(guest.frontend().is_closed_within(PATIENCE), "{why}");
        wait_until("the reason", || {
            rig.ports[0]
                .status()
                .last_refusal
                .is_some_and(|reason| reason.contains("device state") && reason.contains(why))
        });
        drop(guest);
        let mut next = rig.guest(0, &builder(&case, true));
        next.rx(0).fill(BUFFERS, BUFFER_LEN);
        carry(&mut bystander, &mut next, 0, &numbered(1), &why);
        carry(&mut next, &mut bystander, 0, &numbered(2), &why);
    }
}

#[test]
fn a_state_is_transferred_only_while_every_ring_is_stopped_and_if_that_was_agreed() {
    let case = Case::layouts().next().unwrap();
    let rig = Rig::with(&RigConfig::mtu(1500));
    for (keeps_state, why) in [(true, "vring 0 runs"), (false, "DEVICE_STATE was not negotiated")] {
        let mut guest = rig.guest(0, &builder(&case, keeps_state));
        let refused = guest.frontend().save_state();
        assert_eq!(refused, Err(PeerError::Refused { request: request::SET_DEVICE_STATE_FD, code: 0x101 }));
        assert!(guest.frontend().is_closed_within(PATIENCE), "{why}");
        wait_until("the reason", || rig.ports[0].status().last_refusal.is_some_and(|reason| reason.contains(why)));
    }
}
