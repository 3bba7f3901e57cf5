//! Tests of a link switched off by the operator: no frame from its host or for its host passes, and each frame is
//! counted as lost.

use crate::support::line::numbered;
use crate::support::{MemoryHost, pattern, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::limit::{PortLimits, RateLimit};
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::stats::{Direction, Loss};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::TxMeta;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;
const MSS: u16 = 1448;
/// Number of wire frames of the super-frame in the tests.
const SEGMENTS: u64 = 40;

/// Returns a frame from the first host to the second.
fn plain(n: usize) -> (TxMeta, Vec<u8>) {
    (TxMeta::default(), numbered(n, 60))
}

fn super_frame(sequence: u32) -> (TxMeta, Vec<u8>) {
    tcp_super_frame(0, sequence, &pattern(0, SEGMENTS as usize * usize::from(MSS)), MSS)
}

/// Connected hosts.
trait Net {
    fn poll(&mut self) -> bool;
    fn host(&mut self, port: usize) -> &mut MemoryHost;
    fn control(&self, port: usize) -> &PortControl;

    fn sent(&self, port: usize) -> &Direction {
        &self.control(port).queues()[0].transmit
    }

    fn received(&self, port: usize) -> &Direction {
        &self.control(port).queues()[0].receive
    }

    /// Sends three frames. The adapter parses the first frame, and passes on the second frame unparsed. The third frame
    /// is a super-frame. Returns the number of host frames received by the other host.
    fn carry(&mut self) -> usize {
        for (lends_unasked, frame) in [(false, plain(1)), (true, plain(2)), (false, super_frame(1))] {
            self.host(0).lends_unasked = lends_unasked;
            self.host(0).to_send.push_back(frame);
            while self.poll() {}
        }
        std::mem::take(&mut self.host(1).given).len()
    }
}

struct Cable([QueuePair<MemoryHost, CableEnd>; 2], [Arc<PortControl>; 2]);

impl Cable {
    fn new() -> Self {
        let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
        let controls = [(); 2].map(|()| PortControl::new(&config));
        let (near, far) = cable(&CableConfig::default());
        let pair = |side: usize, end| QueuePair::new(&config, &controls[side], 0, MemoryHost::default(), end);
        Self([pair(0, near), pair(1, far)], controls)
    }
}

impl Net for Cable {
    fn poll(&mut self) -> bool {
        self.0.iter_mut().fold(false, |moved, pair| pair.poll(0).unwrap().moved | moved)
    }

    fn host(&mut self, port: usize) -> &mut MemoryHost {
        self.0[port].host_mut()
    }

    fn control(&self, port: usize) -> &PortControl {
        &self.1[port]
    }
}

struct Lan(Switch<MemoryHost>, Vec<Arc<SwitchPort>>);

impl Lan {
    fn new(turn_frames: usize, ports: usize) -> Self {
        let mut switch = Switch::new(&SwitchConfig { turn_frames, ..SwitchConfig::default() });
        let config = PortConfig { flood_limit: None, ..PortConfig::default() };
        let ports = (0..ports).map(|_| switch.control().add(MemoryHost::default(), &config).unwrap()).collect();
        switch.poll(0);
        Self(switch, ports)
    }
}

impl Net for Lan {
    fn poll(&mut self) -> bool {
        self.0.poll(0).moved
    }

    fn host(&mut self, port: usize) -> &mut MemoryHost {
        self.0.host_mut(port).unwrap()
    }

    fn control(&self, port: usize) -> &PortControl {
        &self.1[port]
    }
}

fn nets() -> [(&'static str, Box<dyn Net>); 2] {
    [("cable", Box::new(Cable::new())), ("switch", Box::new(Lan::new(256, 2)))]
}

/// Checks that each incoming frame was sent on or lost, `lost` of them because the link was off.
#[track_caller]
fn assert_accounted(direction: &Direction, lost: u64, what: &str) {
    assert_eq!(direction.lost(Loss::LinkOff), lost, "{what}");
    assert_eq!(direction.lost_total(), lost, "{what}: for another reason");
    assert_eq!(direction.frames_in.get(), direction.frames_out.get() + lost, "{what}");
}

#[test]
fn frames_of_a_host_whose_link_is_off_are_lost_and_counted_and_pass_again_after_on() {
    for (what, mut net) in nets() {
        assert_eq!(net.carry(), 3, "{what}");
        net.control(0).set_link_on(false);
        assert_eq!(net.carry(), 0, "{what}");
        // A refused frame is not segmented, so a super-frame counts as one frame.
        assert_accounted(net.sent(0), 3, what);
        assert_accounted(net.received(1), 0, what);
        net.control(0).set_link_on(true);
        assert_eq!(net.carry(), 3, "{what}");
        assert_accounted(net.sent(0), 3, what);
    }
}

#[test]
fn frames_for_a_host_whose_link_is_off_are_lost_and_counted_and_pass_again_after_on() {
    for (what, mut net) in nets() {
        assert_eq!(net.carry(), 3, "{what}");
        net.control(1).set_link_on(false);
        assert_eq!(net.carry(), 0, "{what}");
        assert_accounted(net.sent(0), 0, what);
        assert_accounted(net.received(1), 2 + SEGMENTS, what);
        net.control(1).set_link_on(true);
        assert_eq!(net.carry(), 3, "{what}");
        assert_accounted(net.received(1), 2 + SEGMENTS, what);
    }
}

#[test]
fn other_ports_of_a_switch_get_what_is_for_all_while_a_link_is_off() {
    let mut lan = Lan::new(256, 3);
    lan.control(1).set_link_on(false);
    lan.host(0).to_send.extend((0..10).map(plain));
    while lan.poll() {}
    assert_eq!([1, 2].map(|port| lan.host(port).given.len()), [0, 10]);
    assert_accounted(lan.received(1), 10, "off");
    assert_accounted(lan.received(2), 0, "on");
    assert_accounted(lan.sent(0), 0, "the sender");
}

#[test]
fn what_waits_for_room_on_the_wire_is_lost_when_the_link_goes_off() {
    let mut cable = Cable::new();
    // Fills the wire up to the middle of a super-frame.
    cable.host(0).to_send.extend((0..10).map(plain));
    cable.0[0].poll(0).unwrap();
    for n in 0..100 {
        cable.host(0).to_send.push_back(super_frame(n * 100_000));
    }
    while cable.0[0].poll(0).unwrap().moved {}
    let held = cable.0[0].held() as u64;
    assert!(held > 0, "the wire is full");
    cable.control(0).set_link_on(false);
    cable.0[0].poll(0).unwrap();
    assert_eq!(cable.0[0].held(), 0);
    assert_accounted(cable.sent(0), held, "the rest of a super-frame");
}

#[test]
fn a_link_that_goes_off_amid_a_super_frame_ends_it_and_each_segment_is_counted_once() {
    for off in [0, 1] {
        // A host without super-frames gets seven segments of a super-frame per turn.
        let mut lan = Lan::new(7, 2);
        lan.host(1).accepts = Some(Offloads::empty());
        lan.host(0).to_send.push_back(super_frame(1));
        lan.poll();
        assert_eq!(lan.host(1).given.len(), 7);
        lan.control(off).set_link_on(false);
        while lan.poll() {}
        assert_eq!(lan.host(1).given.len(), 7);
        let lost = SEGMENTS - 7;
        assert_accounted(lan.sent(0), if off == 0 { lost } else { 0 }, "the sender");
        assert_accounted(lan.received(1), if off == 1 { lost } else { 0 }, "the receiver");
    }
}

#[test]
fn frames_that_wait_for_a_limit_when_the_link_goes_off_are_lost() {
    let mut lan = Lan::new(256, 2);
    let rx = RateLimit { frames_per_second: Some(1000), burst_frames: Some(1), ..RateLimit::default() };
    lan.control(1).set_limits(PortLimits { rx, ..PortLimits::default() });
    lan.host(0).to_send.extend((0..20).map(plain));
    while lan.0.poll(1).moved {}
    let (given, waiting) = (lan.host(1).given.len(), lan.0.held(1) as u64);
    assert!(waiting > 0);
    lan.control(1).set_link_on(false);
    for batch in 1..20 {
        lan.0.poll(batch * SECOND_NS);
    }
    assert_eq!((lan.host(1).given.len(), lan.0.held(1)), (given, 0));
    assert_accounted(lan.received(1), waiting, "the queue");
}
