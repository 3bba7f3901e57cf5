//! Both ends of an association, the raw AEAD beside them, and a frame.

use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use offramp_offload::esp::{Arrival, EspPacket, InboundSa, OutboundSa, SaConfig, SecretKey, Suite};
use offramp_offload::layout::{FrameLayout, LengthFrom};

/// The reference: the AEAD alone, on the bytes that ESP encrypts.
pub const RAW_AEAD: &str = "raw aead";
/// Bytes of the tag.
pub const TAG_LEN: usize = 16;
/// Bytes of SPI and sequence number, which are authenticated.
const AAD_LEN: usize = 8;

/// A suite by its name.
pub fn suite(name: &str) -> Suite {
    Suite::by_name(name).expect("a suite of the list")
}

/// An association in transport mode; extended numbers, so that no benchmark uses them up.
pub fn config(suite: Suite) -> SaConfig {
    let key = SecretKey::new(vec![7; suite.encryption_key_len()]);
    SaConfig { esn: true, ..SaConfig::new(0x1000, suite, key, SecretKey::none()) }
}

pub fn outbound(suite: Suite) -> OutboundSa {
    OutboundSa::new(&config(suite)).expect("a right description")
}

pub fn inbound(suite: Suite) -> InboundSa {
    InboundSa::new(&config(suite)).expect("a right description")
}

/// The same cipher without ESP.
pub struct Raw {
    key: LessSafeKey,
    sequence: u64,
}

impl Raw {
    pub fn new(suite: Suite) -> Self {
        let algorithm = if suite.name().starts_with("chacha") { &CHACHA20_POLY1305 } else { &AES_128_GCM };
        let key = vec![7; algorithm.key_len()];
        Self { key: LessSafeKey::new(UnboundKey::new(algorithm, &key).expect("a key of that length")), sequence: 0 }
    }

    fn nonce(sequence: u64) -> Nonce {
        let whole = (u128::from(sequence) << 32).to_le_bytes();
        Nonce::try_assume_unique_for_key(&whole[..12]).expect("a nonce of that length")
    }

    /// Encrypts in place and writes the tag to the end of `bytes`.
    #[inline]
    pub fn seal(&mut self, bytes: &mut [u8]) {
        self.sequence += 1;
        let (body, tag) = bytes.split_at_mut(bytes.len() - TAG_LEN);
        let aad = Aad::from([1; AAD_LEN]);
        self.key.seal_in_place_scatter(Self::nonce(self.sequence), aad, body, &[], tag).expect("lengths that fit");
    }

    /// Encrypts from elsewhere.
    #[inline]
    pub fn seal_from(&mut self, clear: &[u8], out: &mut [u8]) {
        self.sequence += 1;
        let (body, tag) = out.split_at_mut(clear.len());
        let aad = Aad::from([1; AAD_LEN]);
        self.key
            .seal_out_of_place_scatter(Self::nonce(self.sequence), aad, clear, body, &[], tag)
            .expect("lengths that fit");
    }

    /// Decrypts what was sealed under `sequence`.
    #[inline]
    pub fn open(&self, sequence: u64, bytes: &mut [u8]) -> usize {
        let aad = Aad::from([1; AAD_LEN]);
        self.key.open_in_place(Self::nonce(sequence), aad, bytes).expect("a genuine packet").len()
    }

    /// The number that the last sealing took.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// A TCP frame over IPv4 whose packet is `packet_len` bytes long.
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

pub fn layout(frame: &[u8]) -> FrameLayout {
    FrameLayout::parse(frame, LengthFrom::Ip).expect("a frame of our own")
}

/// The ESP packet in a sealed frame.
pub fn esp_of(frame: &[u8], layout: &FrameLayout) -> EspPacket {
    match Arrival::of(frame, layout, None) {
        Ok(Arrival::Esp(packet)) => packet,
        other => panic!("no ESP packet: {other:?}"),
    }
}
