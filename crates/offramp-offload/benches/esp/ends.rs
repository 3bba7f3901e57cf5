//! The sender and the receiver of an ESP association, and frames for the benchmarks.

use offramp_offload::esp::{Arrival, EspPacket, InboundSa, OutboundSa, SaConfig, SecretKey, Suite};
use offramp_offload::frame::Frame;

/// Name of the reference row: the AEAD without ESP, on the bytes encrypted by ESP.
pub const RAW_AEAD: &str = "raw aead";

/// Returns the suite with this name.
pub fn suite(name: &str) -> Suite {
    Suite::by_name(name).expect("a suite of the list")
}

/// Returns the description of an association in transport mode. Uses extended sequence numbers, so that no benchmark
/// exhausts the sequence numbers.
pub fn config(suite: Suite) -> SaConfig {
    let key = SecretKey::new(vec![7; suite.encryption_key_len()]);
    SaConfig { esn: true, ..SaConfig::new(0x1000, suite, key, SecretKey::none()) }
}

/// Returns a sender with the measured cipher library.
pub fn outbound(suite: Suite) -> OutboundSa {
    OutboundSa::with_library(&config(suite), crate::library()).expect("a right description")
}

/// Returns a receiver with the measured cipher library.
pub fn inbound(suite: Suite) -> InboundSa {
    InboundSa::with_library(&config(suite), crate::library()).expect("a right description")
}

/// Bytes aligned to a cache line, so all contenders have the same alignment. Buffers from an allocator would start at
/// different multiples of sixteen bytes.
pub struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    pub fn new(content: &[u8]) -> Self {
        const LINE_LEN: usize = 64;
        let mut bytes = vec![0; content.len() + LINE_LEN];
        let from = bytes.as_ptr().align_offset(LINE_LEN);
        bytes[from..from + content.len()].copy_from_slice(content);
        Self { bytes, from, len: content.len() }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Returns a TCP frame over IPv4 with a packet of `packet_len` bytes.
pub fn frame(packet_len: usize) -> Vec<u8> {
    let mut frame = [&[2; 12][..], &[8, 0, 0x45, 0]].concat();
    frame.extend_from_slice(&(packet_len as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = offramp_offload::checksum::sum(&frame[14..]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&[0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 9, 0x50, 0x10, 0, 9, 0, 0, 0, 0]);
    frame.resize(14 + packet_len, 0x5a);
    frame
}

/// Returns the ESP packet in a sealed frame.
pub fn esp_of(frame: &Frame<'_>) -> EspPacket {
    match Arrival::of(frame, None) {
        Ok(Arrival::Esp(packet)) => packet,
        other => panic!("no ESP packet: {other:?}"),
    }
}
