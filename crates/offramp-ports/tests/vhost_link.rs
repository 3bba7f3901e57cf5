//! Tests of the state of a guest's link: its causes, and the reports to the frontend.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::namespace;
use crate::vhost_common::{PATIENCE, Rig, RigConfig, Scratch, carry, frame, rng, wait_until};
use offramp_adapter::stats::{Direction, Loss};
use offramp_ports::sys::link;
use offramp_ports::vhost_user::{VhostUser, VhostUserConfig};
use offramp_testkit::features::protocol;
use offramp_testkit::frontend::{FLAG_NEED_REPLY, FLAG_REPLY, Header, RawMessage, VERSION, backend_request, request};
use offramp_testkit::{Frontend, Guest, GuestBuilder, VnetHeader};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 77];
const CHANNEL: u64 = protocol::CONFIG | protocol::BACKEND_REQ | protocol::BACKEND_SEND_FD;
/// Offset and length of the status in the configuration, in bytes.
const STATUS_AT: u32 = 6;
const STATUS_LEN: u32 = 2;
/// A wait long enough for an unwanted message to arrive.
const A_WHILE: Duration = Duration::from_millis(100);

fn rig() -> Rig {
    Rig::with(&RigConfig { mac: Some(MAC), ..RigConfig::mtu(1500) })
}

fn builder(with_answers: bool) -> GuestBuilder {
    let answers = if with_answers { protocol::REPLY_ACK } else { 0 };
    Guest::builder().protocol_features(CHANNEL | answers)
}

fn is_up(frontend: &Frontend) -> bool {
    match frontend.get_config(STATUS_AT, STATUS_LEN).unwrap()[..] {
        [status, 0] if status <= 1 => status == 1,
        ref other => panic!("status {other:x?}"),
    }
}

/// Returns the next request from the backend, which must report a configuration change.
#[track_caller]
fn told(frontend: &Frontend, with_answers: bool) -> RawMessage {
    let message = frontend.backend_request(PATIENCE).expect("a channel that is open");
    let flags = if with_answers { VERSION | FLAG_NEED_REPLY } else { VERSION };
    assert_eq!(message.header, Header { flags, ..Header::new(backend_request::CONFIG_CHANGE_MSG, 0) });
    assert!(message.fds.is_empty());
    message
}

#[test]
fn a_guest_is_told_when_its_link_goes_down_and_comes_back() {
    for with_answers in [false, true] {
        let rig = rig();
        let mut guest = rig.guest(0, &builder(with_answers));
        let frontend = guest.frontend();
        assert!(is_up(frontend), "a line that nobody says anything of is up");
        for up in [false, true, false] {
            rig.ports[0].link().set_up(up);
            // A change without effect is not reported.
            rig.ports[0].link().set_up(up);
            let message = told(frontend, with_answers);
            if with_answers {
                assert!(frontend.acknowledge_backend(&message, 0));
            }
            assert_eq!(is_up(frontend), up);
        }
        assert_eq!(rig.ports[0].channel_counters().config_changes.get(), 3);
        assert_eq!(rig.ports[0].channel_counters().refused_config_changes.get(), 0);
    }
}

#[test]
fn a_frontend_that_has_not_read_the_configuration_is_told_nothing_and_reads_the_truth() {
    let rig = rig();
    let mut guest = rig.guest(0, &builder(true));
    for up in [false, true, false] {
        rig.ports[0].link().set_up(up);
    }
    assert!(!is_up(guest.frontend()));
    assert_eq!(rig.ports[0].channel_counters().config_changes.get(), 0);
}

#[test]
fn changes_that_come_before_the_answer_are_told_once_behind_it() {
    let rig = rig();
    let mut guest = rig.guest(0, &builder(true));
    let frontend = guest.frontend();
    assert!(is_up(frontend));
    rig.ports[0].link().set_up(false);
    let first = told(frontend, true);
    for n in 0..20 {
        rig.ports[0].link().set_up(n % 2 == 0);
        // The device sends this answer after it has processed the change.
        frontend.get_features().unwrap();
    }
    std::thread::sleep(A_WHILE);
    assert!(frontend.acknowledge_backend(&first, 0));
    let second = told(frontend, true);
    assert!(frontend.acknowledge_backend(&second, 0));
    assert!(!is_up(frontend));
    // No further message is pending: the next message reports the next change.
    rig.ports[0].link().set_up(true);
    assert!(frontend.acknowledge_backend(&told(frontend, true), 0));
    assert!(is_up(frontend));
}

#[test]
fn an_answer_that_refuses_is_counted_and_the_next_change_is_told() {
    let rig = rig();
    let mut guest = rig.guest(0, &builder(true));
    let frontend = guest.frontend();
    assert!(is_up(frontend));
    rig.ports[0].link().set_up(false);
    assert!(frontend.acknowledge_backend(&told(frontend, true), 22));
    wait_until("the refusal to be counted", || rig.ports[0].channel_counters().refused_config_changes.get() == 1);
    rig.ports[0].link().set_up(true);
    assert!(frontend.acknowledge_backend(&told(frontend, true), 0));
}

#[test]
fn a_frontend_that_closes_its_channel_or_talks_nonsense_on_it_keeps_its_connection() {
    let model = frame(&mut rng(), 60);
    for is_nonsense in [false, true] {
        let rig = rig();
        let mut a = rig.guest(0, &builder(true));
        let mut b = rig.guest(1, &Guest::builder());
        b.rx(0).fill(8, 1526);
        assert!(is_up(a.frontend()));
        if is_nonsense {
            // Send an answer without a request.
            let unasked =
                RawMessage { header: Header::new(backend_request::CONFIG_CHANGE_MSG, 0), payload: vec![], fds: vec![] };
            assert!(a.frontend().acknowledge_backend(&unasked, 0));
            assert!(a.frontend().backend_request(PATIENCE).is_none(), "the backend closes it");
        }
        // A new channel replaces the old channel.
        a.frontend().set_backend_req_fd().unwrap();
        rig.ports[0].link().set_up(false);
        let frontend = a.frontend();
        assert!(frontend.acknowledge_backend(&told(frontend, true), 0));
        assert!(!is_up(frontend));
        carry(&mut a, &mut b, 0, &model, &"the connection goes on");
        assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), 0);
    }
}

#[test]
fn a_channel_that_was_not_agreed_or_is_none_is_refused() {
    let rig = rig();
    let file = std::fs::File::open("/dev/null").unwrap();
    let no_socket = file.as_fd();
    let agreed = |protocol| {
        let mut frontend = Frontend::connect(rig.socket(0));
        frontend.get_features().unwrap();
        frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol | protocol::REPLY_ACK).unwrap();
        frontend
    };
    let refused = |frontend: Frontend| assert!(frontend.is_closed_within(PATIENCE));
    let mut frontend = agreed(0);
    frontend.set_backend_req_fd().unwrap_err();
    refused(frontend);
    for fds in [&[][..], &[no_socket], &[no_socket, no_socket]] {
        let frontend = agreed(CHANNEL);
        frontend.tell(request::SET_BACKEND_REQ_FD, &[], fds).unwrap_err();
        refused(frontend);
    }
    let frontend = agreed(CHANNEL);
    let answer = Header { flags: VERSION | FLAG_REPLY, ..Header::new(request::SET_BACKEND_REQ_FD, 8) };
    frontend.send_raw(answer, &[0; 8], &[no_socket]);
    refused(frontend);
    assert_eq!(rig.ports[0].channel_counters().bad_messages.get(), 5);
}

#[test]
fn the_link_of_a_cable_is_up_while_the_other_guest_is_there() {
    let rig = rig();
    rig.ports[0].join(&rig.ports[1]);
    let mut a = rig.guest(0, &builder(true));
    let frontend = a.frontend();
    assert!(!is_up(frontend), "there is nobody yet");
    for _ in 0..3 {
        let b = rig.guest(1, &Guest::builder());
        assert!(frontend.acknowledge_backend(&told(frontend, true), 0));
        assert!(is_up(frontend));
        assert!(rig.ports[1].link().is_up());
        drop(b);
        assert!(frontend.acknowledge_backend(&told(frontend, true), 0));
        assert!(!is_up(frontend));
    }
    drop(a);
    wait_until("the other end to be down", || !rig.ports[1].link().is_up());
}

#[test]
fn a_link_is_up_while_the_wire_is_up_and_the_operator_has_not_set_it_off() {
    let rig = rig();
    rig.ports[0].join(&rig.ports[1]);
    let mut b = rig.guest(1, &Guest::builder());
    let link = rig.ports[0].link();
    let mut a = rig.guest(0, &builder(false));
    assert!(is_up(a.frontend()));
    link.set_on(false);
    told(a.frontend(), false);
    assert!(!is_up(a.frontend()));
    // A change of the wire that does not affect the link is not reported, and does not switch the link on.
    link.set_on(false);
    drop(b);
    b = rig.guest(1, &Guest::builder());
    wait_until("the wire to be up", || rig.ports[1].status().is_connected);
    assert!(!is_up(a.frontend()));
    // The setting belongs to the port and applies to any frontend.
    drop(a);
    a = rig.guest(0, &builder(false));
    assert!(!is_up(a.frontend()));
    link.set_on(true);
    told(a.frontend(), false);
    assert!(is_up(a.frontend()));
    assert_eq!(rig.ports[0].channel_counters().config_changes.get(), 2);
    // Without a wire, switching on does not bring the link up.
    link.set_on(false);
    told(a.frontend(), false);
    drop(b);
    link.set_on(true);
    wait_until("the wire to be down", || !link.is_up());
    assert!(!is_up(a.frontend()));
}

#[test]
fn no_frame_passes_a_guest_whose_link_is_off_and_its_buffers_are_there_after_on() {
    const FRAMES: usize = 8;
    let model = frame(&mut rng(), 60);
    for on_switch in [false, true] {
        let rig = Rig::with(&RigConfig { on_switch, ..RigConfig::mtu(1500).unmoderated() });
        let [mut a, mut b] = rig.guests(&Guest::builder());
        // Post exactly as many buffers as expected frames.
        a.rx(0).fill(FRAMES, 1526);
        b.rx(0).fill(FRAMES, 1526);
        rig.controls[0].set_link_on(false);
        let lost = || [rig.refused(0, Loss::LinkOff), rig.received(0, |received| received.lost(Loss::LinkOff))];
        // Frames in a batch in progress may still pass. No frame passes after the first lost frame.
        let mut passed = [0; 2];
        for n in 1..=3 * FRAMES as u64 {
            a.tx(0).send(&VnetHeader::default(), &[&model]);
            b.tx(0).send(&VnetHeader::default(), &[&model]);
            wait_until("both frames to be lost", || {
                for (way, receiver) in [&mut b, &mut a].into_iter().enumerate() {
                    if lost()[way] == 0 && receiver.rx(0).try_recv().is_some() {
                        receiver.rx(0).fill(1, 1526);
                        passed[way] += 1;
                    }
                }
                [0, 1].map(|way| lost()[way] + passed[way]) == [n, n]
            });
        }
        assert!(a.rx(0).try_recv().is_none() && b.rx(0).try_recv().is_none());
        let lost = lost();
        assert!(lost.iter().all(|lost| *lost >= 2 * FRAMES as u64), "{lost:?}");
        // The frontend reconnects: the link setting belongs to the port and remains off.
        drop(a);
        wait_until("the frontend to be gone", || !rig.ports[0].status().is_connected);
        a = rig.guest(0, &Guest::builder());
        a.rx(0).fill(FRAMES, 1526);
        a.tx(0).send(&VnetHeader::default(), &[&model]);
        wait_until("its frame to be lost", || rig.refused(0, Loss::LinkOff) == lost[0] + 1);
        rig.controls[0].set_link_on(true);
        for _ in 0..FRAMES {
            carry(&mut a, &mut b, 0, &model, &"out");
            carry(&mut b, &mut a, 0, &model, &"in");
        }
        assert_eq!(rig.received(0, Direction::lost_total), lost[1]);
    }
}

#[test]
fn the_link_follows_the_carrier_of_an_interface() {
    let ns = namespace();
    let scratch = Scratch::new();
    let config = VhostUserConfig {
        mac: Some(MAC),
        carrier: Some("near".to_owned()),
        ..VhostUserConfig::new(scratch.path("guest"))
    };
    let mut port = ns.run(|| VhostUser::open(&config)).unwrap().unwrap();
    // No thread polls this queue. Drop the queue, so that the end of a connection need not wait for the queue.
    drop(port.queue(0));
    let mut frontend = Frontend::connect(&config.socket);
    frontend.get_features().unwrap();
    frontend.set_protocol_features(CHANNEL | protocol::REPLY_ACK).unwrap();
    frontend.set_backend_req_fd().unwrap();
    assert!(!is_up(&frontend), "there is no such interface yet");
    ns.run(|| {
        link::create_veth("near", "far").unwrap();
        link::set_up("near").unwrap();
    })
    .unwrap();
    assert!(!is_up(&frontend), "the other end is down");
    // The steps, each with the resulting state of the link.
    let steps: [(fn(), bool); 5] = [
        (|| link::set_up("far").unwrap(), true),
        (|| link::set_down("far").unwrap(), false),
        (|| link::set_up("far").unwrap(), true),
        (|| link::set_down("near").unwrap(), false),
        (|| link::set_up("near").unwrap(), true),
    ];
    for (n, (step, up)) in steps.into_iter().enumerate() {
        ns.run(step).unwrap();
        while is_up(&frontend) != up {
            assert!(frontend.acknowledge_backend(&told(&frontend, true), 0), "step {n}");
        }
    }
    // All pending messages have been read: the next message reports the end of the interface.
    ns.run(|| link::delete("near").unwrap()).unwrap();
    wait_until("the interface to be gone", || !port.link().is_up());
    assert!(!is_up(&frontend));
}
