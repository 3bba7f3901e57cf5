//! Tests of keepalives to a NAT for idle associations (RFC 3948 4).

use super::bed::{Bed, NS_PER_SECOND, SPI, add, config, gcm, losses, modes, sa};
use crate::support::line::ScriptedLine;
use crate::support::{MemoryHost, pattern, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::stats::Loss;
use offramp_offload::esp::{Arrival, Lifetime, SaConfig, UDP_ENCAPSULATION_PORT, UdpPorts};
use offramp_offload::frame::Frame;

/// The keepalive interval in RFC 3948, in seconds.
const SECONDS: u32 = 20;
const GAP_NS: u64 = SECONDS as u64 * NS_PER_SECOND;

fn reminding(sa: SaConfig) -> SaConfig {
    SaConfig { udp: Some(UdpPorts::default()), keepalive_seconds: Some(SECONDS), ..sa }
}

fn send(bed: &mut Bed) {
    bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 0, &pattern(1, 5000), 1460));
    bed.run_until_idle();
}

/// Advances the time to `now_ns`. Returns the number of keepalives received until this time.
fn keepalives_at(bed: &mut Bed, now_ns: u64) -> u64 {
    bed.now_ns = now_ns;
    bed.run_until_idle();
    bed.assert_everything_is_accounted_for();
    bed.receive().lost(Loss::Keepalive)
}

fn sent(bed: &Bed) -> u64 {
    bed.controls[0].ipsec().status()[0].keepalives
}

#[test]
fn a_keepalive_goes_when_nothing_else_went_for_so_long_and_the_far_end_throws_it_away() {
    for mode in modes() {
        let mut bed = Bed::protected(&reminding(SaConfig { mode, ..gcm() }));
        assert_eq!(keepalives_at(&mut bed, 1000 * NS_PER_SECOND), 0, "there is nothing to remind of yet");
        assert_eq!(bed.left.next_deadline_ns(), None);
        send(&mut bed);
        let first_ns = bed.left.next_deadline_ns().unwrap();
        assert!((1020 * NS_PER_SECOND..1021 * NS_PER_SECOND).contains(&first_ns), "{first_ns}");
        assert_eq!(keepalives_at(&mut bed, first_ns - 1), 0);
        assert_eq!(keepalives_at(&mut bed, first_ns), 1, "{mode:?}");
        assert_eq!(bed.left.next_deadline_ns(), Some(first_ns + GAP_NS));
        assert_eq!(keepalives_at(&mut bed, first_ns + GAP_NS), 2);
        // A data packet also keeps the NAT entry alive.
        bed.now_ns += GAP_NS - 1;
        send(&mut bed);
        assert_eq!(keepalives_at(&mut bed, first_ns + 2 * GAP_NS), 2);
        assert!(keepalives_at(&mut bed, first_ns + 3 * GAP_NS) == 3);
        assert_eq!(sent(&bed), 3);
        assert_eq!(losses(bed.receive()), [(Loss::Keepalive, 3)]);
        assert_eq!(losses(bed.transmit()), []);
    }
}

#[test]
fn no_keepalive_goes_while_the_link_is_off_and_the_thread_does_not_spin() {
    let mut bed = Bed::protected(&reminding(gcm()));
    send(&mut bed);
    bed.controls[0].set_link_on(false);
    for _ in 0..3 {
        let due_ns = bed.left.next_deadline_ns().unwrap();
        assert!(due_ns > bed.now_ns);
        assert_eq!((keepalives_at(&mut bed, due_ns), sent(&bed)), (0, 0));
    }
    bed.controls[0].set_link_on(true);
    let due_ns = bed.left.next_deadline_ns().unwrap();
    assert_eq!((keepalives_at(&mut bed, due_ns), sent(&bed)), (1, 1));
}

#[test]
fn nothing_goes_unless_it_is_asked_for() {
    let mut bed = Bed::protected(&SaConfig { udp: Some(UdpPorts::default()), ..gcm() });
    send(&mut bed);
    assert_eq!(bed.left.next_deadline_ns(), None);
    assert_eq!((keepalives_at(&mut bed, 1000 * NS_PER_SECOND), sent(&bed)), (0, 0));
}

#[test]
fn a_keepalive_has_the_addresses_and_ports_of_the_packets_before_it() {
    let udp = UdpPorts { source: 61_000, destination: UDP_ENCAPSULATION_PORT };
    for mode in modes() {
        let config = config();
        let control = PortControl::new(&config);
        let sa = SaConfig { mode, udp: Some(udp), ..reminding(gcm()) };
        control.change_ipsec(&[add(SaDirection::Out, &sa)]).unwrap();
        let mut pair = QueuePair::new(&config, &control, 0, MemoryHost::default(), ScriptedLine::default());
        pair.host_mut().to_send.push_back(tcp_frame(0, 0, &pattern(1, 300)));
        while pair.poll(0).unwrap().moved {}
        pair.poll(GAP_NS).unwrap();
        let [(_, sealed), (_, keepalive)] = &pair.wire().put[..] else { panic!("{:?}", pair.wire().put.len()) };
        let layouts = [sealed, keepalive].map(|frame| super::bed::layout(frame));
        let [sealed_addresses, addresses] =
            [sealed, keepalive].map(|frame| Frame::received(&mut frame.clone()).addresses().to_vec());
        assert_eq!(sealed_addresses, addresses);
        assert_eq!(sealed[..14], keepalive[..14]);
        let ports = [(sealed, layouts[0]), (keepalive, layouts[1])].map(|(f, l)| f[l.transport_start..][..4].to_vec());
        assert_eq!(ports[0], ports[1]);
        assert_eq!(
            Arrival::of(&Frame::received(&mut keepalive.clone()), Some(UDP_ENCAPSULATION_PORT)),
            Ok(Arrival::Keepalive)
        );
    }
}

#[test]
fn a_rekey_does_not_make_the_nat_forget() {
    let mut bed = Bed::protected(&reminding(gcm()));
    send(&mut bed);
    assert_eq!(keepalives_at(&mut bed, GAP_NS + NS_PER_SECOND), 1);
    for direction in [SaDirection::In, SaDirection::Out] {
        let next = reminding(sa("aes128gcm16", SPI + 1));
        let change = SaChange::Rekey { direction, spi: SPI, config: Box::new(next), grace_ns: NS_PER_SECOND };
        bed.controls[usize::from(direction == SaDirection::In)].change_ipsec(&[change]).unwrap();
    }
    assert_eq!(keepalives_at(&mut bed, 3 * GAP_NS), 2, "although the new one has sealed nothing yet");
    assert_eq!(sent(&bed), 2);
}

#[test]
fn an_association_that_has_ended_is_remembered_by_nobody() {
    let lifetime = Lifetime { hard_seconds: Some(30), ..Lifetime::default() };
    let mut bed = Bed::protected(&SaConfig { lifetime, ..reminding(gcm()) });
    send(&mut bed);
    assert_eq!(keepalives_at(&mut bed, 25 * NS_PER_SECOND), 1);
    assert_eq!(keepalives_at(&mut bed, 31 * NS_PER_SECOND), 1);
    assert_eq!(keepalives_at(&mut bed, 100 * NS_PER_SECOND), 1);
    assert_eq!(bed.left.next_deadline_ns(), None);
}

#[test]
fn of_several_queue_pairs_one_sends_it() {
    let config = AdapterConfig { queues: 2, ..config() };
    let control = PortControl::new(&config);
    control.change_ipsec(&[add(SaDirection::Out, &reminding(gcm()))]).unwrap();
    let mut pairs = [0, 1].map(|queue| {
        let (a, b) = cable(&CableConfig::default());
        (QueuePair::new(&config, &control, queue, MemoryHost::default(), a), b)
    });
    for (n, (pair, _)) in pairs.iter_mut().enumerate() {
        pair.host_mut().to_send.push_back(tcp_frame(n as u16, 0, &pattern(1, 300)));
        pair.poll(n as u64 * NS_PER_SECOND).unwrap();
    }
    for now_ns in [GAP_NS, GAP_NS + NS_PER_SECOND, GAP_NS + 2 * NS_PER_SECOND] {
        for (pair, _) in &mut pairs {
            pair.poll(now_ns).unwrap();
        }
        let keepalives = control.ipsec().status()[0].keepalives;
        assert_eq!(keepalives, u64::from(now_ns > GAP_NS), "the last packet went a second after the first");
    }
    let out: u64 = control.queues().iter().map(|queue| queue.transmit.frames_out.get()).sum();
    assert_eq!(out, 3);
}
