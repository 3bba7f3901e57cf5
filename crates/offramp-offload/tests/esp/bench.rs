//! The sender and the receiver of an association, and frames for the tests.

use crate::support::packet::Packet;
use offramp_offload::esp::{
    Arrival, EspPacket, InboundSa, Mode, Opened, OutboundSa, Refused, SaConfig, SealRefused, SecretKey, Suite, Tunnel,
    UDP_ENCAPSULATION_PORT, UdpPorts,
};
use offramp_offload::frame::Frame;
use offramp_offload::layout::FrameLayout;
use std::net::IpAddr;

pub const SPI: u32 = 0x1234_5678;

/// Returns a key of `len` different bytes.
pub fn key(len: usize, first: u8) -> SecretKey {
    SecretKey::new((0..len as u8).map(|n| first.wrapping_add(n.wrapping_mul(7))).collect())
}

/// Returns the description of an association in transport mode with keys of the required lengths.
pub fn config(suite: Suite) -> SaConfig {
    let keys = (key(suite.encryption_key_len(), 3), key(suite.integrity_key_len(), 101));
    SaConfig { legacy: true, ..SaConfig::new(SPI, suite, keys.0, keys.1) }
}

/// Returns the suite used in most tests.
pub fn gcm() -> Suite {
    Suite::by_name("aes128gcm16").unwrap()
}

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns transport mode, a tunnel over IPv4, and a tunnel over IPv6.
pub fn modes() -> [Mode; 3] {
    [
        Mode::Transport,
        Mode::Tunnel(Tunnel::new(address("192.0.2.1"), address("192.0.2.2"))),
        Mode::Tunnel(Tunnel::new(address("2001:db8::1"), address("2001:db8::2"))),
    ]
}

/// Returns every suite in every mode, with and without extended sequence numbers and UDP encapsulation.
pub fn every_config() -> Vec<SaConfig> {
    let mut configs = Vec::new();
    for suite in Suite::all() {
        for mode in modes() {
            for esn in [false, true] {
                for udp in [None, Some(UdpPorts::default())] {
                    configs.push(SaConfig { mode, esn, udp, ..config(suite) });
                }
            }
        }
    }
    configs
}

/// Builds a clear frame.
pub fn clear(payload_len: usize, is_ipv6: bool) -> Vec<u8> {
    Packet { is_ipv6, id: 7, ..Packet::tcp(payload_len) }.build()
}

pub fn layout(frame: &[u8]) -> FrameLayout {
    crate::support::layout(frame).unwrap()
}

/// Seals a frame into a new buffer.
pub fn try_seal(sa: &mut OutboundSa, frame: &[u8]) -> Result<Vec<u8>, SealRefused> {
    let mut out = vec![0xee; frame.len() + sa.front_len() + sa.tail_len_max()];
    let sealed = sa.seal(&Frame::received(&mut frame.to_vec()), &mut out)?;
    assert_eq!(sealed.start, 0);
    out.truncate(sealed.end);
    Ok(out)
}

pub fn seal(sa: &mut OutboundSa, frame: &[u8]) -> Vec<u8> {
    try_seal(sa, frame).unwrap()
}

/// Classifies a well-formed frame.
pub fn arrival_of(frame: &[u8], udp_port: Option<u16>) -> Result<Arrival, Refused> {
    let mut frame = frame.to_vec();
    let frame = Frame::received(&mut frame);
    frame.layout().unwrap();
    Arrival::of(&frame, udp_port)
}

/// Returns the layout of a frame from the wire, and the ESP packet in it.
pub fn esp_of(frame: &[u8]) -> (FrameLayout, EspPacket) {
    match arrival_of(frame, Some(UDP_ENCAPSULATION_PORT)) {
        Ok(Arrival::Esp(packet)) => (layout(frame), packet),
        other => panic!("no ESP packet: {other:?}"),
    }
}

/// Opens a copy of the frame. Returns the result of the opening, and the clear frame.
pub fn open_whole(sa: &mut InboundSa, frame: &[u8]) -> Result<(Opened, Vec<u8>), Refused> {
    let mut frame = frame.to_vec();
    let (_, packet) = esp_of(&frame);
    let mut opening = Frame::received(&mut frame);
    let opened = sa.open(&mut opening, &packet)?;
    assert_eq!(opening.layout(), Ok(&opened.layout));
    let handed_on = opening.bytes().to_vec();
    let clear = frame[opened.start..opened.end].to_vec();
    assert_eq!(handed_on, clear);
    assert_eq!(opened.layout, self::layout(&clear));
    Ok((opened, clear))
}

/// Opens a copy of the frame. Returns the clear frame.
pub fn open(sa: &mut InboundSa, frame: &[u8]) -> Result<Vec<u8>, Refused> {
    open_whole(sa, frame).map(|(_, clear)| clear)
}

/// Returns the sender and the receiver of one association.
pub fn pair(config: &SaConfig) -> (OutboundSa, InboundSa) {
    (
        OutboundSa::with_library(config, crate::library()).unwrap(),
        InboundSa::with_library(config, crate::library()).unwrap(),
    )
}
