//! Associations on ports of a switch, which behave as on a cable.

use super::bed::{NS_PER_SECOND, SPI, add, gcm, modes};
use crate::support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{NoMatch, Policy, SaChange, SaDirection};
use offramp_adapter::pair::PortControl;
use offramp_adapter::stats::Loss;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::esp::{Arrival, Lifetime, SaConfig};
use offramp_offload::frame::Frame;
use std::sync::Arc;

/// A switch that floods every frame, and the controls of its ports.
struct Lan {
    switch: Switch<MemoryHost>,
    controls: Vec<Arc<PortControl>>,
    now_ns: u64,
}

impl Lan {
    fn new(ports: usize, now_ns: u64) -> Self {
        let switch = Switch::new(&SwitchConfig::default());
        let controls: Vec<_> = (0..ports).map(|_| PortControl::new(&AdapterConfig::default())).collect();
        for control in &controls {
            let config = PortConfig { flood_limit: None, ..PortConfig::default() };
            switch.control().add_controlled(MemoryHost::default(), control, &config).unwrap();
        }
        let mut lan = Self { switch, controls, now_ns };
        lan.run();
        lan
    }

    fn protect(&self, port: usize, direction: SaDirection, sa: &SaConfig) {
        self.controls[port].change_ipsec(&[add(direction, sa)]).unwrap();
    }

    fn run(&mut self) {
        for _ in 0..100 {
            self.switch.poll(self.now_ns);
            self.now_ns += 1000;
        }
    }

    fn send(&mut self, frame: (offramp_offload::meta::TxMeta, Vec<u8>)) {
        self.switch.host_mut(0).unwrap().to_send.push_back(frame);
        self.run();
    }

    /// Returns the TCP payload received by a port.
    fn payload(&self, port: usize) -> Vec<u8> {
        let given = &self.switch.host(port).unwrap().given;
        given.iter().flat_map(|(meta, frame)| payload_of(meta, frame).to_vec()).collect()
    }

    fn lost(&self, port: usize, reason: Loss) -> u64 {
        self.controls[port].queues()[0].receive.lost(reason)
    }
}

#[test]
fn a_super_frame_between_two_protected_ports_arrives_as_it_was_sent() {
    for mode in modes() {
        let (mut lan, sa) = (Lan::new(2, 0), SaConfig { mode, ..gcm() });
        lan.protect(0, SaDirection::Out, &sa);
        lan.protect(1, SaDirection::In, &sa);
        let data = pattern(3, 60_000);
        lan.send(tcp_super_frame(0, 0, &data, 1448));
        assert!(lan.payload(1) == data);
        let (sent, received) = (&lan.controls[0].queues()[0].transmit, &lan.controls[1].queues()[0].receive);
        assert_eq!((sent.lost_total(), received.lost_total()), (0, 0));
        assert_eq!(sent.frames_out.get(), received.frames_out.get());
    }
}

#[test]
fn a_port_without_the_key_gets_esp_and_each_port_its_own_copy() {
    let (mut lan, sa) = (Lan::new(4, 0), gcm());
    lan.protect(0, SaDirection::Out, &sa);
    lan.protect(1, SaDirection::In, &sa);
    lan.protect(3, SaDirection::In, &sa);
    let data = pattern(4, 1000);
    lan.send(tcp_frame(0, 0, &data));
    assert!(lan.payload(1) == data && lan.payload(3) == data, "opening for one port leaves the others theirs");
    let given = &lan.switch.host(2).unwrap().given;
    let [(_, sealed)] = &given[..] else { panic!("{} frames", given.len()) };
    assert!(
        matches!(Arrival::of(&Frame::received(&mut sealed.clone()), None), Ok(Arrival::Esp(esp)) if esp.spi == SPI)
    );
}

#[test]
fn what_should_be_protected_and_comes_in_the_clear_is_refused_also_in_super_frames() {
    let mut lan = Lan::new(2, 0);
    lan.protect(1, SaDirection::In, &gcm());
    lan.send(tcp_frame(0, 0, &pattern(5, 100)));
    assert_eq!(lan.lost(1, Loss::Unprotected), 1);
    lan.send(tcp_super_frame(0, 100, &pattern(6, 14_480), 1448));
    assert_eq!(lan.lost(1, Loss::Unprotected), 11);
    assert!(lan.switch.host(1).unwrap().given.is_empty());
}

#[test]
fn an_association_on_a_port_that_is_added_late_lives_its_whole_time() {
    let lifetime = Lifetime { hard_seconds: Some(30), ..Lifetime::default() };
    let sa = SaConfig { lifetime, ..gcm() };
    // One hour after its start, a daemon adds a port with associations from a file.
    let switch = Switch::new(&SwitchConfig::default());
    let mut lan = Lan { switch, controls: Vec::new(), now_ns: 3600 * NS_PER_SECOND };
    lan.run();
    for direction in [SaDirection::Out, SaDirection::In] {
        let control = PortControl::new(&AdapterConfig::default());
        control.change_ipsec(&[add(direction, &sa)]).unwrap();
        let config = PortConfig { flood_limit: None, ..PortConfig::default() };
        lan.switch.control().add_controlled(MemoryHost::default(), &control, &config).unwrap();
        lan.controls.push(control);
    }
    lan.run();
    lan.now_ns += 29 * NS_PER_SECOND;
    lan.send(tcp_frame(0, 0, &pattern(7, 100)));
    assert_eq!(lan.payload(1), pattern(7, 100));
    lan.now_ns += 2 * NS_PER_SECOND;
    lan.send(tcp_frame(0, 100, &pattern(8, 100)));
    assert_eq!(lan.controls[0].queues()[0].transmit.lost(Loss::SaExpired), 1);
}

#[test]
fn what_an_association_protected_and_what_is_not_listed_goes_no_way_over_a_switch() {
    let discard = Policy { transmit: NoMatch::Discard, receive: NoMatch::Discard, ..Policy::default() };
    for (port, direction) in [(0, SaDirection::Out), (1, SaDirection::In)] {
        let mut lan = Lan::new(2, 0);
        lan.protect(port, direction, &gcm());
        lan.controls[port].change_ipsec(&[SaChange::Remove { direction, spi: SPI }]).unwrap();
        lan.send(tcp_frame(0, 0, &pattern(9, 100)));
        assert!(lan.switch.host(1).unwrap().given.is_empty(), "{direction}");
        lan.controls[port].change_ipsec(&[SaChange::Policy(discard.clone())]).unwrap();
        let (_, mut mpls) = tcp_frame(0, 100, &pattern(9, 100));
        mpls[12..14].copy_from_slice(&[0x88, 0x47]);
        lan.send((offramp_offload::meta::TxMeta::default(), mpls));
        assert!(lan.switch.host(1).unwrap().given.is_empty(), "{direction}");
        let stats = &lan.controls[port].queues()[0];
        let lost = if port == 0 { &stats.transmit } else { &stats.receive };
        assert_eq!((lost.lost_total(), lost.lost(Loss::Discard)), (2, 1 + u64::from(port == 0)));
    }
}
