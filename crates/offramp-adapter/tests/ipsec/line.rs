//! Tests of one adapter on a line under the test's control: the sent packets, and the treatment of received packets.

use super::bed::{Bed, NS_PER_SECOND, SPI, add, config, gcm, layout, losses, modes, sa};
use crate::support::line::ScriptedLine;
use crate::support::{MemoryHost, pattern, payload_of, tcp_frame, tcp_super_frame};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{NoMatch, Policy, SaChange, SaDirection};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::checksum::{self, Sum};
use offramp_offload::esp::{Arrival, Mode, SaConfig, UDP_ENCAPSULATION_PORT, UdpPorts};
use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, PartialChecksum, Segmentation, SegmentationKind, TxMeta};
use std::sync::Arc;

/// An adapter between a host and a line under the test's control.
struct Alone {
    pair: QueuePair<MemoryHost, ScriptedLine>,
    control: Arc<PortControl>,
}

impl Alone {
    fn new(config: &AdapterConfig, direction: SaDirection, sa: &SaConfig) -> Self {
        let control = PortControl::new(config);
        control.change_ipsec(&[add(direction, sa)]).unwrap();
        let pair = QueuePair::new(config, &control, 0, MemoryHost::default(), ScriptedLine::default());
        Self { pair, control }
    }

    fn send(&mut self, frame: (TxMeta, Vec<u8>)) -> Vec<Vec<u8>> {
        self.pair.host_mut().to_send.push_back(frame);
        while self.pair.poll(0).unwrap().moved {}
        std::mem::take(&mut self.pair.wire_mut().put).into_iter().map(|(_, frame)| frame).collect()
    }

    fn bring(&mut self, frames: &[Vec<u8>]) {
        self.pair.wire_mut().to_come.extend(frames.iter().map(|frame| (0, frame.clone())));
        while self.pair.poll(0).unwrap().moved {}
    }

    fn receive(&self) -> Vec<(Loss, u64)> {
        let d = &self.control.queues()[0].receive;
        assert_eq!(d.frames_in.get(), d.frames_out.get() + d.lost_total());
        losses(d)
    }

    fn transmit(&self) -> Vec<(Loss, u64)> {
        let d = &self.control.queues()[0].transmit;
        assert_eq!(d.frames_in.get(), d.frames_out.get() + d.lost_total());
        losses(d)
    }
}

fn seal(sa: &SaConfig, frame: (TxMeta, Vec<u8>)) -> Vec<Vec<u8>> {
    Alone::new(&config(), SaDirection::Out, sa).send(frame)
}

fn esp_of(frame: &[u8]) -> Option<(u32, u32)> {
    match Arrival::of(&Frame::received(&mut frame.to_vec()), Some(UDP_ENCAPSULATION_PORT)) {
        Ok(Arrival::Esp(packet)) => Some((packet.spi, packet.sequence)),
        _ => None,
    }
}

/// Returns a UDP datagram over IPv4 whose checksum the adapter must complete.
fn datagram(payload_len: usize, has_df: bool) -> (TxMeta, Vec<u8>) {
    let (_, mut frame) = tcp_frame(0, 0, &[]);
    frame.truncate(34);
    let udp_len = 8 + payload_len as u16;
    frame[16..18].copy_from_slice(&(20 + udp_len).to_be_bytes());
    frame[20] = if has_df { 0x40 } else { 0 };
    frame[23] = 17;
    frame[24..26].fill(0);
    let header_sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    frame.extend_from_slice(&[0x10, 0, 0x20, 0]);
    frame.extend_from_slice(&udp_len.to_be_bytes());
    let pseudo = checksum::sum(&frame[26..34]).plus(Sum::word(17)).plus(Sum::word(udp_len)).fold();
    frame.extend_from_slice(&pseudo.to_be_bytes());
    frame.extend_from_slice(&pattern(5, payload_len));
    (TxMeta { checksum: Some(PartialChecksum { start: 34, offset: 6 }), segmentation: None }, frame)
}

#[test]
fn a_super_frame_is_on_the_line_as_esp_that_fills_the_mtu_and_nothing_else() {
    for mode in modes() {
        for udp in [None, Some(UdpPorts::default())] {
            let sa = SaConfig { mode, udp, ..gcm() };
            let payload = pattern(1, 60_000);
            let frames = seal(&sa, tcp_super_frame(0, 100, &payload, 1460));
            let numbers: Vec<_> = frames.iter().map(|frame| esp_of(frame).unwrap()).collect();
            let expected: Vec<_> = (1..=frames.len() as u32).map(|n| (SPI, n)).collect();
            assert_eq!(numbers, expected, "{sa:?}");
            let ip_lens: Vec<_> = frames.iter().map(|f| layout(f).packet_end - 14).collect();
            let (last, full) = ip_lens.split_last().unwrap();
            assert!(full.iter().all(|&len| (1497..=1500).contains(&len)) && *last <= 1500, "{ip_lens:?}");
            assert!(frames.iter().all(|frame| !frame.windows(16).any(|part| part == &payload[2000..2016])));
        }
    }
}

#[test]
fn sealed_frames_arrive_joined_as_if_they_had_crossed_in_the_clear() {
    for name in ["aes128gcm16", "chacha20poly1305-iiv", "aes256-sha256", "null-sha256", "aes128gmac"] {
        for mode in modes() {
            for udp in [None, Some(UdpPorts::default())] {
                let mut bed = Bed::protected(&SaConfig { mode, udp, esn: true, ..sa(name, SPI) });
                let payload = pattern(1, 60_000);
                bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &payload, 1460));
                bed.run_until_idle();
                assert_eq!(bed.received(), payload, "{name} {mode:?}");
                assert_eq!(bed.right.host().given.len(), 1, "coalesced again");
                bed.assert_everything_is_accounted_for();
            }
        }
    }
}

#[test]
fn without_receive_offloads_each_opened_frame_is_handed_over_as_it_was_cut() {
    let config = AdapterConfig { offloads: Offloads::TX, ..config() };
    let mut bed = Bed::new(&config);
    bed.protect(&gcm());
    bed.left.host_mut().to_send.push_back(tcp_super_frame(0, 100, &pattern(1, 20_000), 1460));
    bed.run_until_idle();
    let given = &bed.right.host().given;
    assert!(given.len() > 1 && given.iter().all(|(meta, frame)| meta.segments == 1 && frame.len() <= 1514));
    assert_eq!(bed.received(), pattern(1, 20_000));
    bed.assert_everything_is_accounted_for();
}

#[test]
fn a_tcp_frame_that_would_outgrow_the_line_is_cut_again_and_the_host_keeps_its_mtu() {
    for mode in modes() {
        let sa = SaConfig { mode, ..gcm() };
        // The frame is sent twice: with a partial checksum, and with a complete checksum.
        let partial = tcp_frame(0, 7, &pattern(2, 1460));
        let mut complete = partial.1.clone();
        checksum::complete(&mut complete, partial.0.checksum.unwrap(), partial.1.len()).unwrap();
        for frame in [partial, (TxMeta::default(), complete)] {
            let sealed = seal(&sa, frame);
            assert_eq!(sealed.len(), 2);
            let mut far = Alone::new(&config(), SaDirection::In, &sa);
            far.bring(&sealed);
            let given = &far.pair.host().given;
            let payload: Vec<u8> = given.iter().flat_map(|(m, f)| payload_of(m, f).to_vec()).collect();
            assert_eq!(payload, pattern(2, 1460));
            assert_eq!(far.receive(), []);
        }
    }
}

#[test]
fn a_wrong_checksum_of_the_host_is_not_made_right_by_cutting_or_sealing() {
    let mut alone = Alone::new(&config(), SaDirection::Out, &gcm());
    let (_, long) = tcp_frame(0, 7, &pattern(2, 1460));
    assert!(alone.send((TxMeta::default(), long)).is_empty());
    assert_eq!(alone.transmit(), [(Loss::BadRequest, 1)]);
    let mut bed = Bed::protected(&gcm());
    let (_, short) = tcp_frame(0, 7, &pattern(2, 1000));
    bed.left.host_mut().to_send.push_back((TxMeta::default(), short.clone()));
    bed.run_until_idle();
    assert_eq!(bed.right.host().given[0].1, short);
    assert_eq!(bed.receive().bad_checksum.get(), 1);
}

#[test]
fn checksums_that_the_host_left_are_complete_inside_the_sealed_packet() {
    let mut bed = Bed::protected(&gcm());
    let (meta, frame) = datagram(700, true);
    bed.left.host_mut().to_send.push_back((meta, frame.clone()));
    bed.run_until_idle();
    let mut expected = frame;
    let end = expected.len();
    checksum::complete(&mut expected, meta.checksum.unwrap(), end).unwrap();
    let (told, given) = &bed.right.host().given[0];
    // A partial checksum tells the host that the adapter has verified the full checksum.
    assert_eq!(told.checksum, ChecksumState::Partial(meta.checksum.unwrap()));
    let mut given = given.clone();
    checksum::complete(&mut given, meta.checksum.unwrap(), end).unwrap();
    assert_eq!(given, expected);
}

#[test]
fn a_datagram_too_long_to_be_sealed_is_counted_and_its_sender_told_what_fits() {
    let mut alone = Alone::new(&config(), SaDirection::Out, &gcm());
    assert!(alone.send(datagram(1472, true)).is_empty());
    assert_eq!(alone.transmit(), [(Loss::TooLong, 1)]);
    let given = std::mem::take(&mut alone.pair.host_mut().given);
    let [(_, answer)] = &given[..] else { panic!("{given:?}") };
    let at = layout(answer);
    assert!(Frame::received(&mut answer.clone()).has_good_ipv4_header());
    assert_eq!((&answer[..12], at.protocol), (&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], 1));
    assert_eq!(&answer[26..34], &[10, 0, 0, 2, 10, 0, 0, 1], "from where the datagram was to go");
    assert_eq!(&answer[34..36], &[3, 4], "fragmentation needed");
    assert_eq!(checksum::sum(&answer[34..]).fold(), 0xffff);
    assert_eq!(&answer[42..70], &datagram(1472, true).1[14..42], "the header that caused it, and eight bytes");
    let mtu = usize::from(u16::from_be_bytes([answer[40], answer[41]]));
    // A sealed packet has 20 bytes of IP header, 8 of ESP header, 8 of IV, 2 of trailer and 16 of tag. The lengths of
    // payload and trailer together are a multiple of four bytes.
    assert_eq!(mtu, 1466);
    assert_eq!(alone.send(datagram(mtu - 28, true)).len(), 1, "what fits goes");
    assert!(alone.send(datagram(mtu - 27, true)).is_empty());
}

#[test]
fn an_ipv6_packet_too_long_to_be_sealed_is_answered_by_packet_too_big() {
    let udp_len = 1460_u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend_from_slice(&udp_len.to_be_bytes());
    frame.extend_from_slice(&[17, 64]);
    let (source, destination) = ([0xfd; 16], [0xfe; 16]);
    frame.extend(source.iter().chain(&destination));
    frame.extend_from_slice(&[0x10, 0, 0x20, 0]);
    frame.extend_from_slice(&udp_len.to_be_bytes());
    frame.extend_from_slice(&[0xab, 0xcd]);
    frame.extend(pattern(3, usize::from(udp_len) - 8));
    let mut alone = Alone::new(&config(), SaDirection::Out, &gcm());
    assert!(alone.send((TxMeta::default(), frame.clone())).is_empty());
    assert_eq!(alone.transmit(), [(Loss::TooLong, 1)]);
    let given = std::mem::take(&mut alone.pair.host_mut().given);
    let [(_, answer)] = &given[..] else { panic!("{given:?}") };
    assert_eq!((answer.len() - 14, answer[20]), (1280, 58), "no longer than the least MTU");
    assert_eq!((&answer[22..38], &answer[38..54]), (&destination[..], &source[..]));
    assert_eq!((&answer[54..56], &answer[58..62]), (&[2, 0][..], &1466_u32.to_be_bytes()[..]));
    assert_eq!(answer[62..], frame[14..14 + 1280 - 48]);
    let icmp_len = (answer.len() - 54) as u16;
    let pseudo = checksum::sum(&answer[22..54]).plus(Sum::word(icmp_len)).plus(Sum::word(58));
    assert_eq!(pseudo.plus(checksum::sum(&answer[54..])).fold(), 0xffff);
}

#[test]
fn a_sender_that_lets_routers_fragment_is_told_nothing() {
    let mut alone = Alone::new(&config(), SaDirection::Out, &gcm());
    assert!(alone.send(datagram(1472, false)).is_empty());
    assert_eq!(alone.transmit(), [(Loss::TooLong, 1)]);
    assert!(alone.pair.host().given.is_empty());
}

#[test]
fn a_flood_of_datagrams_that_are_too_long_is_answered_now_and_then() {
    let mut alone = Alone::new(&config(), SaDirection::Out, &gcm());
    for n in 0..1000 {
        alone.pair.host_mut().to_send.push_back(datagram(1472, true));
        alone.pair.poll(n * NS_PER_SECOND / 10_000).unwrap();
    }
    assert_eq!(alone.transmit(), [(Loss::TooLong, 1000)]);
    assert_eq!(alone.pair.host().given.len(), 10, "ten in 0.1 s");
}

#[test]
fn datagrams_of_one_super_frame_keep_their_bounds() {
    let (meta, frame) = datagram(7000, true);
    for (size, frames) in [(1000, 7), (1400, 5), (1472, 0)] {
        let segmentation = Some(Segmentation::new(SegmentationKind::Udp, size));
        let mut alone = Alone::new(&config(), SaDirection::Out, &gcm());
        assert_eq!(alone.send((TxMeta { segmentation, ..meta }, frame.clone())).len(), frames, "{size}");
        assert_eq!(alone.transmit().len(), usize::from(frames == 0));
    }
}

#[test]
fn fragments_are_made_to_fit_a_tunnel_and_are_counted_in_transport_mode() {
    let (meta, frame) = datagram(7000, false);
    let segmentation = Some(Segmentation::new(SegmentationKind::UdpFragments, 1480));
    for mode in modes() {
        let mut alone = Alone::new(&config(), SaDirection::Out, &SaConfig { mode, ..gcm() });
        let sealed = alone.send((TxMeta { segmentation, ..meta }, frame.clone()));
        if mode == Mode::Transport {
            assert_eq!((sealed.len(), alone.transmit()), (0, vec![(Loss::EspFragment, 1)]));
        } else {
            assert!(sealed.len() >= 5 && sealed.iter().all(|frame| layout(frame).packet_end - 14 <= 1500));
        }
    }
}

#[test]
fn every_refusal_has_a_counter_of_its_own_and_nothing_of_it_reaches_the_host() {
    let sa = gcm();
    let mut near = Alone::new(&config(), SaDirection::Out, &sa);
    let sent = |n: u32| pattern(u64::from(n), 20 * 1400);
    let sealed: Vec<_> = (0..10).flat_map(|n| near.send(tcp_super_frame(0, n * 20 * 1400, &sent(n), 1400))).collect();
    let mut far = Alone::new(&config(), SaDirection::In, &sa);
    let (mut forged, mut foreign, mut cut_off, mut fragment) =
        (sealed[0].clone(), sealed[0].clone(), sealed[0].clone(), sealed[0].clone());
    *forged.last_mut().unwrap() ^= 1;
    foreign[34] ^= 0x40;
    cut_off.truncate(14 + 20 + 16);
    fragment[20] = 0x20;
    for frame in [&mut cut_off, &mut fragment] {
        let ip_len = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
        frame[24..26].fill(0);
        let checksum = checksum::sum(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    far.bring(&[forged, foreign, cut_off, fragment]);
    assert!(far.pair.host().given.is_empty());
    far.bring(&sealed[..200]);
    far.bring(&[sealed[199].clone(), sealed[0].clone()]);
    let expected = [
        (Loss::UnknownSpi, 1),
        (Loss::BadTag, 1),
        (Loss::Replayed, 1),
        (Loss::TooOld, 1),
        (Loss::EspMalformed, 1),
        (Loss::EspFragment, 1),
    ];
    assert_eq!(far.receive(), expected);
    let given = &far.pair.host().given;
    let payload: Vec<u8> = given.iter().flat_map(|(m, f)| payload_of(m, f).to_vec()).collect();
    assert_eq!(payload, (0..10).flat_map(sent).collect::<Vec<u8>>());
    let status = far.control.ipsec().status();
    let of_sa: u64 = status[0].refused.iter().map(|(_, count)| count).sum();
    assert_eq!((status[0].packets, of_sa), (200, 4), "an unknown SPI and a fragment are of no association");
}

/// Returns a UDP datagram to the port of UDP encapsulation.
fn to_4500(payload: &[u8]) -> Vec<u8> {
    let (_, mut frame) = datagram(payload.len(), true);
    frame[36..38].copy_from_slice(&UDP_ENCAPSULATION_PORT.to_be_bytes());
    frame[40..42].fill(0);
    frame[42..].copy_from_slice(payload);
    frame
}

#[test]
fn a_keepalive_is_counted_and_ike_goes_to_the_host_where_it_may() {
    let mut far = Alone::new(&config(), SaDirection::In, &SaConfig { udp: Some(UdpPorts::default()), ..gcm() });
    let frames = [to_4500(&[0xff]), to_4500(&[0, 0, 0, 0, 1, 2, 3, 4])];
    // The IKE packet is unencrypted, but an association should have protected it.
    far.bring(&frames);
    assert_eq!(far.receive(), [(Loss::Keepalive, 1), (Loss::Unprotected, 1)]);
    assert!(far.pair.host().given.is_empty());
    let policy = Policy { receive: NoMatch::Discard, ike: true, ..Policy::default() };
    far.control.change_ipsec(&[SaChange::Policy(policy)]).unwrap();
    far.bring(&frames);
    assert_eq!(far.receive(), [(Loss::Keepalive, 2), (Loss::Unprotected, 1)]);
    assert_eq!(far.pair.host().given.len(), 1);
}

#[test]
fn a_packet_whose_addresses_a_nat_has_changed_gets_a_checksum_that_is_right_again() {
    let sa = SaConfig { udp: Some(UdpPorts::default()), ..gcm() };
    let mut sealed = seal(&sa, tcp_frame(0, 9, &pattern(3, 800))).remove(0);
    sealed[29] = 77;
    sealed[24..26].fill(0);
    let checksum = checksum::sum(&sealed[14..34]).checksum();
    sealed[24..26].copy_from_slice(&checksum.to_be_bytes());
    let mut far = Alone::new(&config(), SaDirection::In, &sa);
    far.bring(&[sealed]);
    let given = &far.pair.host().given;
    assert_eq!(payload_of(&given[0].0, &given[0].1), pattern(3, 800));
}

#[test]
fn an_inbound_association_that_comes_again_remembers_what_it_has_received() {
    for name in ["aes128gcm16", "aes128-sha256"] {
        let sa = sa(name, SPI);
        let frames = seal(&sa, tcp_super_frame(0, 0, &pattern(1, 5000), 1000));
        let mut receiver = Alone::new(&config(), SaDirection::In, &sa);
        receiver.bring(&frames[..3]);
        assert_eq!(receiver.receive(), []);
        let remove = SaChange::Remove { direction: SaDirection::In, spi: SPI };
        receiver.control.change_ipsec(std::slice::from_ref(&remove)).unwrap();
        receiver.control.change_ipsec(&[add(SaDirection::In, &sa)]).unwrap();
        receiver.bring(&frames);
        assert_eq!(receiver.receive(), [(Loss::Replayed, 3)], "{name}");
        // The replay window belongs to the SPI: a recorded packet contains the old SPI, so the association with another
        // SPI does not accept it.
        let other = SaConfig { spi: SPI + 1, ..sa.clone() };
        receiver.control.change_ipsec(&[remove, add(SaDirection::In, &other)]).unwrap();
        receiver.bring(&seal(&other, tcp_frame(0, 5000, b"another SPI")));
        assert_eq!(receiver.receive(), [(Loss::Replayed, 3)], "{name}");
    }
}
