//! The number of parses of a frame on each path: one per frame, plus one per newly written frame.

use crate::support::{pattern, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::count::parses;
use offramp_offload::esp::{SaConfig, SecretKey, Suite};
use offramp_offload::frame::{Frame, FrameBuffer};
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::collections::VecDeque;

/// Number of segments of a super-frame.
const SEGMENTS: u64 = 45;
const MSS: u16 = 1448;
/// Start of a frame in its buffer, with room for a tag before the frame.
const AT: usize = 64;

/// A host that stores its frame in a buffer, as the real ports do, and counts received frames.
struct Host {
    to_send: VecDeque<(TxMeta, Vec<u8>)>,
    frame: FrameBuffer<Vec<u8>>,
    accepts: Offloads,
    honours_data_valid: bool,
    delivered: u64,
}

impl Host {
    fn new(accepts: Offloads, honours_data_valid: bool) -> Self {
        let frame = FrameBuffer::new(vec![0; 1 << 17]);
        Self { to_send: VecDeque::new(), frame, accepts, honours_data_valid, delivered: 0 }
    }

    fn sending(frames: impl IntoIterator<Item = (TxMeta, Vec<u8>)>) -> Self {
        Self { to_send: frames.into_iter().collect(), ..Self::new(Offloads::all(), true) }
    }
}

impl InPlace for Host {}

impl HostPort for Host {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        let Some((request, bytes)) = self.to_send.pop_front() else { return Ok(false) };
        let place = AT..AT + bytes.len();
        self.frame.memory_mut()[place.clone()].copy_from_slice(&bytes);
        self.frame.set(place, request);
        Ok(true)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.frame.frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.frame.frame_with_tag(change)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, _frame: &[u8]) -> Result<(), PortError> {
        self.delivered += u64::from(meta.segments);
        Ok(())
    }

    fn accepts(&self) -> Offloads {
        self.accepts
    }

    fn honours_data_valid(&self) -> bool {
        self.honours_data_valid
    }
}

fn super_frame() -> (TxMeta, Vec<u8>) {
    tcp_super_frame(0, 0, &pattern(1, SEGMENTS as usize * usize::from(MSS)), MSS)
}

/// Returns the number of parses while `sent` crosses a switch to `receiver`, and the number of received frames.
fn parses_on_a_switch(sent: (TxMeta, Vec<u8>), receiver: Host, config: &PortConfig) -> (u64, u64) {
    let mut switch = Switch::new(&SwitchConfig::link());
    switch.control().add(Host::sending([sent]), &PortConfig::default()).unwrap();
    switch.control().add(receiver, config).unwrap();
    let before = parses();
    for now_us in 0..1000 {
        switch.poll(now_us * 1000);
    }
    (parses() - before, switch.host(1).unwrap().delivered)
}

#[test]
fn a_super_frame_that_passes_a_switch_untouched_is_parsed_once() {
    let receiver = Host::new(Offloads::all(), true);
    assert_eq!(parses_on_a_switch(super_frame(), receiver, &PortConfig::default()), (1, SEGMENTS));
}

#[test]
fn a_super_frame_that_is_segmented_for_a_guest_is_parsed_once() {
    let receiver = Host::new(Offloads::RX_CHECKSUM, true);
    assert_eq!(parses_on_a_switch(super_frame(), receiver, &PortConfig::default()), (1, SEGMENTS));
}

#[test]
fn each_segment_that_is_marked_by_a_partial_checksum_is_parsed_once_more() {
    let receiver = Host::new(Offloads::RX_CHECKSUM, false);
    assert_eq!(parses_on_a_switch(super_frame(), receiver, &PortConfig::default()), (1 + SEGMENTS, SEGMENTS));
}

#[test]
fn a_finished_frame_that_is_verified_for_a_tap_is_parsed_once() {
    let (_, frame) = tcp_frame(0, 0, &pattern(1, 100));
    let receiver = Host::new(Offloads::all(), false);
    assert_eq!(parses_on_a_switch((TxMeta::default(), frame), receiver, &PortConfig::default()), (1, 1));
}

#[test]
fn a_frame_that_waits_for_moderation_on_a_switch_is_not_parsed_again() {
    let policy = Policy::Coalescing(Coalescing { max_usecs: 100, max_packets: u32::MAX });
    let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
    let config = PortConfig { moderation, ..PortConfig::default() };
    assert_eq!(parses_on_a_switch(super_frame(), Host::new(Offloads::all(), true), &config), (1, SEGMENTS));
}

fn gcm() -> SaConfig {
    let suite = Suite::by_name("aes128gcm16").unwrap();
    let key = |len| SecretKey::new((0..len).map(|n| n as u8).collect());
    let (encryption, integrity) = (key(suite.encryption_key_len()), key(suite.integrity_key_len()));
    SaConfig::new(0x1001, suite, encryption, integrity)
}

/// Sends a super-frame over a cable, between a sender and a receiver with all offloads. Returns the number of parses by
/// the sender, the number of parses by the receiver, and the number of wire frames.
fn parses_on_a_cable(sa: Option<&SaConfig>) -> (u64, u64, u64) {
    parses_on_a_cable_to(Host::new(Offloads::all(), true), sa)
}

fn parses_on_a_cable_to(receiver: Host, sa: Option<&SaConfig>) -> (u64, u64, u64) {
    parses_of(super_frame(), receiver, sa)
}

fn parses_of(sent: (TxMeta, Vec<u8>), receiver: Host, sa: Option<&SaConfig>) -> (u64, u64, u64) {
    let config = AdapterConfig::default();
    let (near, far) = cable(&CableConfig::default());
    let controls = [PortControl::new(&config), PortControl::new(&config)];
    if let Some(sa) = sa {
        for (control, direction) in controls.iter().zip([SaDirection::Out, SaDirection::In]) {
            control.change_ipsec(&[SaChange::Add { direction, config: Box::new(sa.clone()) }]).unwrap();
        }
    }
    let mut sender = QueuePair::new(&config, &controls[0], 0, Host::sending([sent]), near);
    let mut receiver = QueuePair::new(&config, &controls[1], 0, receiver, far);
    let mut counts = (0, 0);
    for now_us in 0..1000 {
        let before = parses();
        sender.poll(now_us * 1000).unwrap();
        let between = parses();
        receiver.poll(now_us * 1000).unwrap();
        counts = (counts.0 + between - before, counts.1 + parses() - between);
    }
    assert!(receiver.host().delivered >= SEGMENTS);
    (counts.0, counts.1, controls[0].queues()[0].transmit.frames_out.get())
}

#[test]
fn a_cable_parses_a_super_frame_once_and_of_the_wire_only_the_first_two_frames_and_a_shorter_last_one() {
    // The first two frames determine the expected headers of the others.
    assert_eq!(parses_on_a_cable(None), (1, 2, SEGMENTS));
    let shorter = tcp_super_frame(0, 0, &pattern(1, SEGMENTS as usize * usize::from(MSS) - 100), MSS);
    let with_a_shorter_last_segment = parses_of(shorter, Host::new(Offloads::all(), true), None);
    assert_eq!(with_a_shorter_last_segment, (1, 3, SEGMENTS));
}

#[test]
fn a_host_that_takes_no_receive_offloads_is_given_frames_that_nobody_parsed() {
    assert_eq!(parses_on_a_cable_to(Host::new(Offloads::empty(), true), None), (1, 0, SEGMENTS));
}

#[test]
fn sealing_parses_a_super_frame_once_and_opening_each_frame_and_what_was_sealed_in_it_once() {
    let (sealing, opening, wire_frames) = parses_on_a_cable(Some(&gcm()));
    assert_eq!((sealing, opening), (1, 2 * wire_frames));
}
