//! Published packets as test vectors.

use super::*;
use crate::esp::{Arrival, EspPacket};
use crate::frame::Frame;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A published packet from the SPI to the check value, with its clear text.
struct Published {
    suite: Suite,
    encryption_key: &'static str,
    integrity_key: &'static str,
    /// Upper half of the sequence number, if the packet uses an extended sequence number.
    sequence_high: Option<u32>,
    header_and_iv: &'static str,
    /// Payload, padding and trailer.
    clear: &'static str,
    sealed: &'static str,
    icv: &'static str,
}

const RFC_7634: Published = Published {
    suite: Suite::ChaCha20Poly1305 { implicit_iv: false },
    encryption_key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3",
    integrity_key: "",
    sequence_high: None,
    header_and_iv: "01020304 00000005 1011121314151617",
    clear: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10000736270809
            0a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637
            01020204",
    sealed: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7
             2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0",
    icv: "76aaa8266b7fb0f7b11b369907e1ad43",
};

/// First packet of the test cases for RFC 4106 (draft-mcgrew-gcm-test-01), with an extended sequence number.
const GCM_EXTENDED: Published = Published {
    suite: Suite::AesGcm16 { key: AesKey::Bits128, implicit_iv: false },
    encryption_key: "4c80cdefbb5d10da906ac73c3613a6342e443b68",
    integrity_key: "",
    sequence_high: Some(0x8765_4321),
    header_and_iv: "00004321 00000000 4956ed7e3b244cfe",
    clear: "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000
            00000000045f736970045f756470037369700963796265726369747902646b0000210001
            01020201",
    sealed: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d
             15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732",
    icv: "459018148f6cbe722fd04796562dfdb4",
};

impl Published {
    fn protection(&self) -> Protection {
        let (encryption, integrity) = (bytes(self.encryption_key), bytes(self.integrity_key));
        let spi = u32::from_be_bytes(*bytes(self.header_and_iv).first_chunk().unwrap());
        Protection::new(spi, self.suite, &encryption, &integrity, self.sequence_high.is_some(), aws_lc()).unwrap()
    }

    fn sequence(&self, header: &[u8]) -> u64 {
        let low = u32::from_be_bytes(*header[4..].first_chunk().unwrap());
        u64::from(self.sequence_high.unwrap_or(0)) << 32 | u64::from(low)
    }

    fn check(&self) {
        let (header, clear) = (bytes(self.header_and_iv), bytes(self.clear));
        let (sealed, icv) = (bytes(self.sealed), bytes(self.icv));
        let icv_at = header.len() + clear.len();
        let parts = Parts { esp_at: 0, body_at: header.len(), icv_at, end: icv_at + icv.len() };
        let (protection, sequence) = (self.protection(), self.sequence(&header));
        let expected = [header.clone(), sealed, icv.clone()].concat();

        let mut packet = [header.clone(), clear.clone(), vec![0; icv.len()]].concat();
        let iv = u64::from_be_bytes(*header[8..].first_chunk().unwrap());
        protection.seal_with_iv(&mut packet, &parts, sequence, iv).unwrap();
        assert_eq!(packet, expected, "sealed in place");

        protection.open(&mut packet, &parts, sequence).unwrap();
        assert_eq!(packet[parts.body_at..icv_at], clear, "opened");
    }
}

#[test]
fn the_packet_of_rfc_7634_appendix_a_is_sealed_and_opened() {
    RFC_7634.check();
}

#[test]
fn the_first_packet_of_the_gcm_test_cases_is_sealed_and_opened() {
    GCM_EXTENDED.check();
}

/// Checks the packet of RFC 3602 section 4, case 5. The published packet has no check value, so only the encryption is
/// compared.
#[test]
fn the_packet_of_rfc_3602_case_5_is_encrypted_as_published() {
    let suite = Suite::AesCbc { key: AesKey::Bits128, hmac: Hmac::Sha256 };
    let protection =
        Protection::new(0x4321, suite, &bytes("90d382b410eeba7ad938c46cec1a82bf"), &[7; 32], false, aws_lc()).unwrap();
    let header = bytes("00004321 00000001 e96e8c08ab465763fd098d45dd3ff893");
    let mut clear = bytes("08000ebda70a00008e9c083db95b0700");
    clear.extend(0x08..0x38);
    clear.extend((1..15).chain([14, 1]));
    let sealed = bytes(
        "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db080b59ec3a8e4b7e52
         775b07d1db34ed9c538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6",
    );
    let icv_at = header.len() + clear.len();
    let parts = Parts { esp_at: 0, body_at: header.len(), icv_at, end: icv_at + 16 };
    let mut packet = [header, clear.clone(), vec![0; 16]].concat();
    protection.seal_with_iv(&mut packet, &parts, 1, 1).unwrap();
    assert_eq!(packet[parts.body_at..icv_at], sealed);
    protection.open(&mut packet, &parts, 1).unwrap();
    assert_eq!(packet[parts.body_at..icv_at], clear);
}

/// Checks that RFC 7634's packet in a tunnel opens to the original frame.
#[test]
fn the_packet_of_rfc_7634_comes_out_of_a_tunnel_as_the_clear_one() {
    let key = SecretKey::new(bytes(RFC_7634.encryption_key));
    let ends = [198, 51, 100, 5].into();
    let mut config = SaConfig::new(0x0102_0304, RFC_7634.suite, key, SecretKey::none());
    config.mode = Mode::Tunnel(Tunnel::new(ends, ends));
    let mut sa = InboundSa::new(&config).unwrap();
    let esp = [bytes(RFC_7634.header_and_iv), bytes(RFC_7634.sealed), bytes(RFC_7634.icv)].concat();
    let mut frame = [&[2; 12][..], &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + esp.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 50, 0, 0, 198, 51, 100, 5, 198, 51, 100, 5]);
    let sum = crate::checksum::sum(&frame[14..]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(esp);
    let mut sealed = Frame::received(&mut frame);
    let arrival = Arrival::of(&sealed, None).unwrap();
    let packet = EspPacket { spi: 0x0102_0304, sequence: 5, is_encapsulated: false, esp_at: 34 };
    assert_eq!(arrival, Arrival::Esp(packet));
    let opened = sa.open(&mut sealed, &packet).unwrap();
    let inner = bytes(RFC_7634.clear);
    assert_eq!(frame[opened.start + 14..opened.end], inner[..84]);
    assert_eq!(frame[opened.start..opened.start + 14], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8, 0]);
}
