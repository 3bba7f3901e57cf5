//! Port security: a host can send only from its own addresses, and on a switch no other host can use these addresses.

use crate::support::{MemoryHost, pattern, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::stats::Loss;
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchError, SwitchPort, UnknownUnicast};
use offramp_offload::esp::Prefix;
use offramp_offload::meta::{PartialChecksum, TxMeta};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

const BROADCAST: [u8; 6] = [0xff; 6];
const VICTIM: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ANY4: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 3);
const THEIRS6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Link-local addresses made from the Ethernet addresses (RFC 4862 5.3).
const OURS_OF_MAC: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 3);
const THEIRS_OF_MAC: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
const ANY6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

/// Returns the bindings that the operator set for the attacker's port.
fn bound() -> PortSecurity {
    PortSecurity {
        mac_addresses: vec![ATTACKER],
        ip_addresses: [IpAddr::V4(OURS), IpAddr::V6(OURS6)].map(Prefix::of).to_vec(),
        ..PortSecurity::default()
    }
}

fn of_macs(macs: &[[u8; 6]]) -> PortSecurity {
    PortSecurity { mac_addresses: macs.to_vec(), ..PortSecurity::default() }
}

fn ethernet(source: [u8; 6], destination: [u8; 6], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [&destination[..], &source, &ethertype.to_be_bytes(), packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn plain(source: [u8; 6], destination: [u8; 6]) -> Vec<u8> {
    ethernet(source, destination, 0x88b5, &[])
}

/// Returns an ARP packet for Ethernet and IPv4 addresses.
fn arp(operation: u8, sender: ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &sender.0, &sender.1.octets(), &[0; 6], &target.octets()].concat()
}

fn ipv4(source: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total_len = (20 + payload.len()) as u16;
    let head = [&[0x45, 0], &total_len.to_be_bytes()[..], &[0, 0, 0, 0, 64, protocol, 0, 0]].concat();
    [&head[..], &source.octets(), &[10, 0, 0, 9], payload].concat()
}

fn ipv6(source: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    let destination = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets();
    [&[0x60, 0, 0, 0], &len[..], &[next_header, 255], &source.octets(), &destination, payload].concat()
}

/// Returns a neighbour-discovery message: a fixed part of `fixed_len` bytes, then an option.
fn discovery(kind: u8, fixed_len: usize, target: Option<Ipv6Addr>, option: Option<(u8, [u8; 6])>) -> Vec<u8> {
    let mut message = vec![0; fixed_len];
    message[0] = kind;
    if let Some(target) = target {
        message[8..24].copy_from_slice(&target.octets());
    }
    if let Some((kind, mac)) = option {
        message.extend([&[kind, 1], &mac[..]].concat());
    }
    message
}

fn udp(destination_port: u16) -> Vec<u8> {
    [&[0, 68], &destination_port.to_be_bytes()[..], &[0, 8, 0, 0]].concat()
}

/// Returns permitted and forbidden frames sent by the attacker, each with a name.
fn cases() -> Vec<(&'static str, bool, Vec<u8>)> {
    let frame = |ethertype, packet: Vec<u8>| ethernet(ATTACKER, BROADCAST, ethertype, &packet);
    let from = |source, packet: Vec<u8>| ethernet(source, BROADCAST, 0x0806, &packet);
    let of4 = |source, protocol, payload: &[u8]| frame(0x0800, ipv4(source, protocol, payload));
    let of6 = |source, payload: &[u8]| frame(0x86dd, ipv6(source, 58, payload));
    let tagged = |tags: &[u8], ethertype: [u8; 2], packet: Vec<u8>| {
        [&BROADCAST[..], &ATTACKER, tags, &ethertype, &packet, &[0; 20]].concat()
    };
    let tag = [0x81, 0, 0, 5];
    let (ns, na, rs, ra) = (135, 136, 133, 134);
    let mut nine_headers = [[60, 0, 1, 4, 0, 0, 0, 0]; 9];
    nine_headers[8][0] = 58;
    let advertisement = discovery(na, 24, Some(THEIRS6), Some((2, ATTACKER)));
    let no_length = [discovery(na, 24, Some(OURS6), None), vec![2; 1], vec![0; 7]].concat();
    let behind_nine = [&nine_headers.concat()[..], &advertisement].concat();
    vec![
        ("its own address", true, plain(ATTACKER, BROADCAST)),
        ("another's address", false, plain(VICTIM, BROADCAST)),
        ("an ARP request", true, frame(0x0806, arp(1, (ATTACKER, OURS), THEIRS))),
        ("an ARP reply", true, frame(0x0806, arp(2, (ATTACKER, OURS), THEIRS))),
        ("ARP of another's hardware address", false, frame(0x0806, arp(2, (VICTIM, OURS), THEIRS))),
        ("ARP of another's IP address", false, frame(0x0806, arp(2, (ATTACKER, THEIRS), OURS))),
        ("ARP in another's frame", false, from(VICTIM, arp(2, (ATTACKER, OURS), THEIRS))),
        ("an ARP probe for its own address", true, frame(0x0806, arp(1, (ATTACKER, ANY4), OURS))),
        ("an ARP probe for another's address", false, frame(0x0806, arp(1, (ATTACKER, ANY4), THEIRS))),
        ("ARP that is cut off", false, tagged(&[], [8, 6], Vec::new())),
        ("RARP", true, frame(0x8035, arp(3, (ATTACKER, ANY4), ANY4))),
        ("RARP of another", false, frame(0x8035, arp(3, (VICTIM, ANY4), ANY4))),
        ("ARP behind two tags", false, tagged(&[tag, tag].concat(), [8, 6], arp(2, (ATTACKER, THEIRS), OURS))),
        ("ARP behind three tags", false, tagged(&[tag; 3].concat(), [8, 6], arp(2, (ATTACKER, OURS), OURS))),
        ("ARP behind an old tag", false, tagged(&[0x91, 0, 0, 5], [8, 6], arp(2, (ATTACKER, OURS), OURS))),
        ("IPv4", true, of4(OURS, 17, &udp(53))),
        ("IPv4 from another", false, of4(THEIRS, 17, &udp(53))),
        ("IPv4 from another behind a tag", false, tagged(&tag, [8, 0], ipv4(THEIRS, 17, &udp(53)))),
        ("a request to a DHCP server", true, of4(ANY4, 17, &udp(67))),
        ("an IGMP report from nowhere", true, of4(ANY4, 2, &[0x22, 0, 0, 0, 0, 0, 0, 0])),
        ("an IGMP report from another", false, of4(THEIRS, 2, &[0x22, 0, 0, 0, 0, 0, 0, 0])),
        ("a ping from nowhere", false, of4(ANY4, 1, &[8, 0, 0, 0, 0, 0, 0, 0])),
        ("other UDP from nowhere", false, of4(ANY4, 17, &udp(53))),
        ("IPv4 that does not parse", false, of4(OURS, 17, &[0, 1])),
        ("IPv6", true, frame(0x86dd, ipv6(OURS6, 59, &[]))),
        ("IPv6 from another", false, frame(0x86dd, ipv6(THEIRS6, 59, &[]))),
        ("IPv6 from nowhere", false, frame(0x86dd, ipv6(ANY6, 59, &[]))),
        ("a solicitation", true, of6(OURS6, &discovery(ns, 24, Some(THEIRS6), Some((1, ATTACKER))))),
        ("a solicitation from another", false, of6(THEIRS6, &discovery(ns, 24, Some(OURS6), Some((1, ATTACKER))))),
        ("a solicitation with another's MAC", false, of6(OURS6, &discovery(ns, 24, Some(THEIRS6), Some((1, VICTIM))))),
        ("duplicate address detection", true, of6(ANY6, &discovery(ns, 24, Some(OURS6), None))),
        ("DAD with a nonce", true, of6(ANY6, &discovery(ns, 24, Some(OURS6), Some((14, VICTIM))))),
        ("DAD for its own link-local address", true, of6(ANY6, &discovery(ns, 24, Some(OURS_OF_MAC), None))),
        ("DHCPv6", true, frame(0x86dd, ipv6(OURS_OF_MAC, 17, &[2, 34, 2, 35, 0, 8, 0, 0]))),
        ("DHCPv6 from another", false, frame(0x86dd, ipv6(THEIRS_OF_MAC, 17, &[2, 34, 2, 35, 0, 8, 0, 0]))),
        ("DAD for another's address", false, of6(ANY6, &discovery(ns, 24, Some(THEIRS6), None))),
        ("an advertisement", true, of6(OURS6, &discovery(na, 24, Some(OURS6), Some((2, ATTACKER))))),
        ("an advertisement for another", false, of6(OURS6, &advertisement)),
        ("an advertisement of another's MAC", false, of6(OURS6, &discovery(na, 24, Some(OURS6), Some((2, VICTIM))))),
        ("an advertisement that is cut off", false, of6(OURS6, &discovery(na, 20, None, None))),
        ("an option without length", false, of6(OURS6, &no_length)),
        ("an advertisement from nowhere", false, of6(ANY6, &discovery(na, 24, Some(OURS6), None))),
        ("behind nine headers", false, frame(0x86dd, ipv6(OURS6, 60, &behind_nine))),
        ("a router solicitation", true, of6(ANY6, &discovery(rs, 8, None, Some((1, ATTACKER))))),
        ("one with another's MAC", false, of6(OURS6, &discovery(rs, 8, None, Some((1, VICTIM))))),
        ("a router advertisement of another's MAC", false, of6(OURS6, &discovery(ra, 16, None, Some((1, VICTIM))))),
        ("a report of multicast listeners", true, of6(ANY6, &discovery(143, 8, None, None))),
        ("a report of MLD version 1", true, of6(ANY6, &discovery(131, 24, None, None))),
        ("a listener's end", true, of6(ANY6, &discovery(132, 24, None, None))),
        ("a query from nowhere", false, of6(ANY6, &discovery(130, 24, None, None))),
    ]
}

/// A switch whose ports have hosts in memory.
struct Bench {
    switch: Switch<MemoryHost>,
    ports: Vec<Arc<SwitchPort>>,
    now_ns: u64,
}

impl Bench {
    fn new(config: &SwitchConfig, ports: &[(PortSecurity, PortConfig)]) -> Self {
        let mut bench = Self { switch: Switch::new(config), ports: Vec::new(), now_ns: 0 };
        for (security, port) in ports {
            bench.add(security, port).unwrap();
        }
        bench
    }

    fn secured(ports: &[PortSecurity]) -> Self {
        let ports: Vec<_> = ports.iter().map(|security| (security.clone(), PortConfig::default())).collect();
        Self::new(&SwitchConfig::default(), &ports)
    }

    fn add(&mut self, security: &PortSecurity, port: &PortConfig) -> Result<(), SwitchError> {
        let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
        let control = PortControl::secured(&config, security.clone());
        self.ports.push(self.switch.control().add_controlled(MemoryHost::default(), &control, port)?);
        self.switch.poll(self.now_ns);
        Ok(())
    }

    /// Sends a frame. Returns the number of resulting frames received by each port.
    fn send(&mut self, from: usize, frame: (TxMeta, Vec<u8>)) -> Vec<usize> {
        self.switch.host_mut(from).unwrap().to_send.push_back(frame);
        while self.switch.poll(self.now_ns).moved {}
        (0..self.ports.len()).map(|n| std::mem::take(&mut self.switch.host_mut(n).unwrap().given).len()).collect()
    }

    fn say(&mut self, from: usize, source: [u8; 6], destination: [u8; 6]) -> Vec<usize> {
        self.send(from, (TxMeta::default(), plain(source, destination)))
    }

    fn lost(&self, port: usize, reason: Loss) -> u64 {
        self.ports[port].stats().transmit.lost(reason)
    }

    fn assert_everything_is_accounted_for(&self) {
        for port in &self.ports {
            for direction in [&port.stats().transmit, &port.stats().receive] {
                assert_eq!(direction.frames_in.get(), direction.frames_out.get() + direction.lost_total());
            }
        }
    }
}

#[test]
fn on_a_switch_a_host_sends_from_its_own_addresses_alone() {
    let mut bench = Bench::secured(&[bound(), PortSecurity::default()]);
    let mut spoofed = 0;
    for (name, passes, frame) in cases() {
        assert_eq!(bench.send(0, (TxMeta::default(), frame)), [0, usize::from(passes)], "{name}");
        spoofed += u64::from(!passes);
        assert_eq!(bench.lost(0, Loss::Spoofed), spoofed, "{name}");
    }
    bench.assert_everything_is_accounted_for();
}

#[test]
fn on_a_cable_a_host_sends_from_its_own_addresses_alone() {
    let config = AdapterConfig::default();
    let (near, far) = cable(&CableConfig::default());
    let control = PortControl::secured(&config, bound());
    let far_control = PortControl::new(&config);
    let mut near: QueuePair<MemoryHost, CableEnd> = QueuePair::new(&config, &control, 0, MemoryHost::default(), near);
    let mut far = QueuePair::new(&config, &far_control, 0, MemoryHost::default(), far);
    let sent = &control.queues()[0].transmit;
    let mut spoofed = 0;
    for (nth, (name, passes, frame)) in cases().into_iter().enumerate() {
        near.host_mut().to_send.push_back((TxMeta::default(), frame));
        let now_ns = (nth as u64 + 1) * 1_000_000;
        near.poll(now_ns).unwrap();
        far.poll(now_ns + 500_000).unwrap();
        assert_eq!(std::mem::take(&mut far.host_mut().given).len(), usize::from(passes), "{name}");
        spoofed += u64::from(!passes);
        assert_eq!(sent.lost(Loss::Spoofed), spoofed, "{name}");
    }
    assert_eq!(sent.frames_in.get(), sent.frames_out.get() + sent.lost_total());
}

#[test]
fn a_super_frame_passes_from_an_address_of_the_host_alone() {
    let addresses = |source: [u8; 6], octet: u8| {
        let (meta, mut frame) = tcp_super_frame(0, 1, &pattern(1, 20_000), 1448);
        frame[6..12].copy_from_slice(&source);
        frame[29] = octet;
        (meta, frame)
    };
    let mut bench = Bench::secured(&[bound(), PortSecurity::default()]);
    assert_eq!(bench.send(0, addresses(ATTACKER, 3)), [0, 1]);
    assert_eq!(bench.send(0, addresses(ATTACKER, 1)), [0, 0]);
    assert_eq!(bench.send(0, addresses(VICTIM, 3)), [0, 0]);
    assert_eq!(bench.lost(0, Loss::Spoofed), 2);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_checksum_that_is_asked_for_changes_no_address() {
    let at = |field: u16, frame: Vec<u8>| {
        let checksum = Some(PartialChecksum { start: field.min(8), offset: field - field.min(8) });
        (TxMeta { checksum, segmentation: None }, frame)
    };
    let advertisement = ipv6(OURS6, 58, &discovery(136, 24, Some(OURS6), Some((2, ATTACKER))));
    let neighbour = || ethernet(ATTACKER, BROADCAST, 0x86dd, &advertisement);
    let packet = || ethernet(ATTACKER, BROADCAST, 0x0800, &ipv4(OURS, 17, &udp(53)));
    let request = || ethernet(ATTACKER, BROADCAST, 0x0806, &arp(1, (ATTACKER, OURS), THEIRS));
    let mut bench = Bench::secured(&[bound(), PortSecurity::default()]);
    let spoofs = [
        ("the source", at(6, packet())),
        ("the type", at(12, plain(ATTACKER, BROADCAST))),
        ("the source of IPv4", at(28, packet())),
        ("the source of IPv6", at(36, neighbour())),
        ("the target", at(76, neighbour())),
        ("an option", at(84, neighbour())),
        ("the sender of ARP", at(30, request())),
    ];
    for (nth, (name, frame)) in spoofs.into_iter().enumerate() {
        assert_eq!(bench.send(0, frame), [0, 0], "{name}");
        assert_eq!(bench.lost(0, Loss::Spoofed), nth as u64 + 1, "{name}");
    }
    for (name, frame) in [("of UDP", at(40, packet())), ("of ICMPv6", at(56, neighbour()))] {
        assert_eq!(bench.send(0, frame), [0, 1], "{name}");
    }
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_host_that_takes_anothers_address_gets_none_of_its_frames() {
    // The attacker's own port has no binding, but the victim's port has one.
    let mut bench = Bench::secured(&[of_macs(&[VICTIM]), PortSecurity::default(), PortSecurity::default()]);
    assert_eq!(bench.say(1, GATEWAY, VICTIM), [1, 0, 0], "known before it says anything");
    for destination in [BROADCAST, GATEWAY, VICTIM] {
        assert_eq!(bench.say(2, VICTIM, destination), [0, 0, 0]);
    }
    assert_eq!(bench.lost(2, Loss::Spoofed), 3);
    assert_eq!(bench.say(1, GATEWAY, VICTIM), [1, 0, 0]);
    // The address is also protected in a VLAN before the victim's first frame in this VLAN.
    let mut tagged = plain(VICTIM, BROADCAST);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(bench.send(2, (TxMeta::default(), tagged)), [0, 0, 0]);
    assert_eq!(bench.lost(2, Loss::Spoofed), 4);
    assert_eq!(bench.say(0, VICTIM, GATEWAY), [0, 1, 0]);
    bench.now_ns = 1_000_000_000_000;
    assert_eq!(bench.say(1, GATEWAY, VICTIM), [1, 0, 0], "however long it sends nothing");
    bench.assert_everything_is_accounted_for();
}

#[test]
fn an_address_that_was_taken_before_it_was_bound_is_given_back() {
    let mut bench = Bench::secured(&[PortSecurity::default(), PortSecurity::default()]);
    bench.say(1, VICTIM, BROADCAST);
    assert_eq!(bench.say(0, GATEWAY, VICTIM), [0, 1]);
    bench.add(&of_macs(&[VICTIM]), &PortConfig::default()).unwrap();
    assert_eq!(bench.say(0, GATEWAY, VICTIM), [0, 0, 1]);
    // After the victim's port is removed, the address is free again.
    let port = bench.ports.pop().unwrap();
    bench.switch.control().remove(&port);
    bench.switch.poll(0);
    assert_eq!(bench.say(1, VICTIM, GATEWAY), [1, 0]);
    assert_eq!(bench.say(0, GATEWAY, VICTIM), [0, 1]);
}

#[test]
fn an_address_is_bound_to_one_port() {
    let mut bench = Bench::secured(&[of_macs(&[VICTIM, GATEWAY])]);
    let refused = bench.add(&of_macs(&[ATTACKER, GATEWAY]), &PortConfig::default()).unwrap_err();
    assert_eq!(refused, SwitchError::Bound(GATEWAY));
    assert!(refused.to_string().contains("02:00:00:00:00:02 is bound to another port"));
    bench.add(&of_macs(&[ATTACKER]), &PortConfig::default()).unwrap();
}

#[test]
fn two_routers_share_the_address_of_their_virtual_router_and_nobody_else_has_it() {
    const VIRTUAL: [u8; 6] = [0, 0, 0x5e, 0, 1, 7];
    let routers = [of_macs(&[VICTIM, VIRTUAL]), of_macs(&[GATEWAY, VIRTUAL])];
    let mut bench = Bench::secured(&[&routers[..], &[PortSecurity::default(), PortSecurity::default()]].concat());
    for (master, backup) in [(0, 1), (1, 0), (0, 1)] {
        bench.now_ns += 3_000_000_000;
        assert_eq!(bench.say(master, VIRTUAL, BROADCAST)[backup], 1, "an advertisement");
        let mut received = [0; 4];
        received[master] = 1;
        assert_eq!(bench.say(2, ATTACKER, VIRTUAL), received, "the last one to advertise gets it");
    }
    assert_eq!(bench.say(3, VIRTUAL, BROADCAST), [0; 4]);
    assert_eq!(bench.lost(3, Loss::Spoofed), 1);
    bench.assert_everything_is_accounted_for();
}

#[test]
fn an_address_that_is_not_known_is_looked_for_nowhere_when_the_switch_says_so() {
    let config = SwitchConfig { unknown_unicast: UnknownUnicast::Drop, ..SwitchConfig::default() };
    let open = || (PortSecurity::default(), PortConfig::default());
    let mut bench = Bench::new(&config, &[(of_macs(&[VICTIM]), PortConfig::default()), open(), open()]);
    assert_eq!(bench.say(1, GATEWAY, ATTACKER), [0, 0, 0]);
    assert_eq!(bench.lost(1, Loss::NoDestination), 1);
    assert_eq!(bench.say(1, GATEWAY, VICTIM), [1, 0, 0], "a bound address is known");
    assert_eq!(bench.say(2, ATTACKER, BROADCAST), [1, 1, 0]);
    assert_eq!(bench.say(1, GATEWAY, ATTACKER), [0, 0, 1], "it was heard");
    bench.assert_everything_is_accounted_for();
}

#[test]
fn a_host_without_bound_addresses_sends_whatever_it_likes() {
    let mut bench = Bench::secured(&[PortSecurity::default(), PortSecurity::default()]);
    let (meta, frame) = tcp_frame(0, 1, &[7; 100]);
    assert_eq!(bench.send(0, (meta, frame)), [0, 1]);
    for (name, _, frame) in cases() {
        assert_eq!(bench.send(0, (TxMeta::default(), frame)), [0, 1], "{name}");
    }
}
