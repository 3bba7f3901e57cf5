//! The ciphers of the suites. The [`CipherLibrary`] chosen by the caller provides the AEADs, and aws-lc provides all
//! other ciphers. This crate implements no cipher.
//!
//! Other parts of the `esp` module use only [`Protection`].

use super::config::SaConfig;
use super::error::{InvalidSa, SaFault};
use super::library::{Aad, Aead, AeadAlgorithm, CipherFailed, CipherLibrary, Nonce, aws_lc};
use super::suite::{AES_BLOCK_LEN, AesKey, DES_BLOCK_LEN, Hmac, SALT_LEN, Suite};
use super::udp::ESP_HEADER_LEN;
#[expect(deprecated, reason = "triple DES is offered for old peers alone, where it is asked for as legacy")]
use aws_lc_rs::cipher::DES_EDE3_FOR_LEGACY_USE_ONLY;
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// Length of the upper half of an extended sequence number in bytes. A packet does not carry this half.
const ESN_HIGH_LEN: usize = 4;
/// Label for the derivation of the key that generates CBC's IVs.
const IV_KEY_LABEL: &[u8] = b"offramp ESP: IV of CBC";

/// The offsets of a packet's parts in its frame, bytes from the start: ESP header, encrypted part, check value, end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) esp_at: usize,
    pub(super) body_at: usize,
    pub(super) icv_at: usize,
    pub(super) end: usize,
}

/// The cipher and integrity check of one security association, with keys.
pub(super) struct Protection {
    kind: Kind,
    pub(super) spi: u32,
    pub(super) suite: Suite,
    /// Length of the suite's IV in a packet, in bytes.
    pub(super) iv_len: usize,
    pub(super) icv_len: usize,
    pub(super) alignment: usize,
    salt: [u8; SALT_LEN],
    has_implicit_iv: bool,
    is_extended: bool,
    pub(super) library_name: &'static str,
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spi = format_args!("{:#010x}", self.spi);
        f.debug_struct("Protection").field("spi", &spi).field("suite", &self.suite).finish_non_exhaustive()
    }
}

enum Kind {
    /// An AEAD, which encrypts and authenticates in one step.
    Aead(Box<dyn Aead>),
    /// An AEAD used for authentication only, without encryption.
    Gmac(Box<dyn Aead>),
    /// A CBC cipher, if any, followed by an HMAC.
    Mac { cbc: Option<Box<Cbc>>, key: Box<hmac::Key> },
}

impl Protection {
    /// # Errors
    /// Returns an error if the library refuses the key: wrong length, or weak (3DES).
    pub(super) fn new(
        spi: u32,
        suite: Suite,
        encryption: &[u8],
        integrity: &[u8],
        is_extended: bool,
        library: &dyn CipherLibrary,
    ) -> Result<Self, CipherFailed> {
        let salt_len = if suite.has_salt() { SALT_LEN } else { 0 };
        let salt_at = encryption.len().checked_sub(salt_len).ok_or(CipherFailed)?;
        let (cipher_key, salt) = encryption.split_at(salt_at);
        let library = if AeadAlgorithm::of(suite).is_some() { library } else { aws_lc() };
        let kind = match suite {
            Suite::AesGcm16 { key, .. } => Kind::Aead(library.aead(AeadAlgorithm::AesGcm(key), cipher_key)?),
            Suite::ChaCha20Poly1305 { .. } => Kind::Aead(library.aead(AeadAlgorithm::ChaCha20Poly1305, cipher_key)?),
            Suite::AesGmac { key } => Kind::Gmac(library.aead(AeadAlgorithm::AesGcm(key), cipher_key)?),
            Suite::AesCbc { key, hmac } => {
                Kind::Mac { cbc: Some(Cbc::aes(key, cipher_key)?), key: mac_key(hmac, integrity) }
            }
            Suite::Null { hmac } => Kind::Mac { cbc: None, key: mac_key(hmac, integrity) },
            Suite::TripleDesCbc => {
                Kind::Mac { cbc: Some(Cbc::triple_des(cipher_key)?), key: mac_key(Hmac::Sha1, integrity) }
            }
        };
        Ok(Self {
            kind,
            spi,
            suite,
            iv_len: suite.iv_len(),
            icv_len: suite.icv_len(),
            alignment: suite.alignment(),
            salt: salt.first_chunk().copied().unwrap_or_default(),
            has_implicit_iv: suite.has_implicit_iv(),
            is_extended,
            library_name: library.name(),
        })
    }

    /// Returns the keyed cipher of an association.
    pub(super) fn of(config: &SaConfig, library: &dyn CipherLibrary) -> Result<Self, InvalidSa> {
        let (encryption, integrity) = (config.encryption_key.bytes(), config.integrity_key.bytes());
        Self::new(config.spi, config.suite, encryption, integrity, config.esn, library)
            .map_err(|_| config.invalid(SaFault::WeakKey(config.suite)))
    }

    /// Returns true for an AEAD that sends the IV in the packet.
    pub(super) fn is_aead_with_iv(&self) -> bool {
        matches!(self.kind, Kind::Aead(_)) && !self.has_implicit_iv
    }

    /// Encrypts `packet` in place and writes the check value to the packet's end. Valid only for an AEAD.
    #[inline]
    pub(super) fn seal_usual(&self, packet: &mut [u8], sequence: u64) -> Result<(), CipherFailed> {
        let Kind::Aead(aead) = &self.kind else { return Err(CipherFailed) };
        aead.seal(self.nonce(sequence), self.aad(sequence), packet)
    }

    /// Does the same as [`Protection::seal_usual`], but reads body and trailer from the two slices in `from`.
    #[inline]
    pub(super) fn seal_usual_from(
        &self,
        from: [&[u8]; 2],
        packet: &mut [u8],
        sequence: u64,
    ) -> Result<(), CipherFailed> {
        let Kind::Aead(aead) = &self.kind else { return Err(CipherFailed) };
        aead.seal_from(self.nonce(sequence), self.aad(sequence), from[0], from[1], packet)
    }

    /// Verifies and decrypts `packet`, which ends with the check value. Valid only for an AEAD.
    #[inline]
    pub(super) fn open_usual(&self, packet: &mut [u8], sequence: u64, counter_iv: u64) -> Result<(), CipherFailed> {
        let Kind::Aead(aead) = &self.kind else { return Err(CipherFailed) };
        aead.open(self.nonce(counter_iv), self.aad(sequence), packet)
    }

    /// Returns ESP header and IV in packet order, for a suite with the sequence number as IV.
    #[inline]
    pub(super) fn header_and_iv(&self, sequence: u64) -> [u8; ESP_HEADER_LEN + size_of::<u64>()] {
        let header = u64::from(self.spi) << u32::BITS | sequence & u64::from(u32::MAX);
        (u128::from(header) << u64::BITS | u128::from(sequence)).to_be_bytes()
    }

    /// Writes ESP header and IV, encrypts the body in place and writes the check value. For the counter modes, the IV
    /// is the sequence number (RFC 4106 3.1). For CBC, the IV is a block that is unpredictable without the key (RFC
    /// 3602 3).
    #[inline]
    pub(super) fn seal(&self, frame: &mut [u8], parts: &Parts, sequence: u64) -> Result<(), CipherFailed> {
        let header = u64::from(self.spi) << u32::BITS | sequence & u64::from(u32::MAX);
        let iv_at = parts.esp_at + ESP_HEADER_LEN;
        frame[parts.esp_at..iv_at].copy_from_slice(&header.to_be_bytes());
        match &self.kind {
            Kind::Aead(_) if self.has_implicit_iv => {}
            Kind::Aead(_) | Kind::Gmac(_) => frame[iv_at..parts.body_at].copy_from_slice(&sequence.to_be_bytes()),
            Kind::Mac { cbc: Some(cbc), .. } => {
                cbc.write_iv(&mut frame[iv_at..parts.body_at], self.spi, sequence)?;
            }
            Kind::Mac { cbc: None, .. } => {}
        }
        self.seal_with_iv(frame, parts, sequence, sequence)
    }

    /// Does the same as [`Protection::seal`], for a packet in which header and IV are already written. For the counter
    /// modes, `counter_iv` is the same IV as in the packet, passed in a register.
    #[inline]
    pub(super) fn seal_with_iv(
        &self,
        frame: &mut [u8],
        parts: &Parts,
        sequence: u64,
        counter_iv: u64,
    ) -> Result<(), CipherFailed> {
        let Kind::Aead(key) = &self.kind else { return self.seal_in_two_steps(frame, parts, sequence, counter_iv) };
        key.seal(self.nonce(counter_iv), self.aad(sequence), &mut frame[parts.body_at..parts.end])
    }

    /// Seals for suites that encrypt first, or not at all, and authenticate in a second step. A separate function keeps
    /// the AEAD path short.
    #[inline(never)]
    fn seal_in_two_steps(
        &self,
        frame: &mut [u8],
        parts: &Parts,
        sequence: u64,
        counter_iv: u64,
    ) -> Result<(), CipherFailed> {
        match &self.kind {
            Kind::Aead(_) => return Err(CipherFailed),
            Kind::Gmac(key) => {
                let nonce = self.nonce(counter_iv);
                let tag = self.with_whole_header(frame, parts, sequence, |covered| key.authenticate(nonce, covered))?;
                frame[parts.icv_at..parts.end].copy_from_slice(&tag);
            }
            Kind::Mac { cbc, key } => {
                if let Some(cbc) = cbc {
                    cbc.encrypt(frame, parts)?;
                }
                let tag = self.mac(key, frame, parts, sequence);
                let icv_len = parts.end - parts.icv_at;
                frame[parts.icv_at..parts.end].copy_from_slice(&tag.as_ref()[..icv_len]);
            }
        }
        Ok(())
    }

    /// Verifies the packet and decrypts the body in place. After a failure, the bytes of the body are unspecified.
    #[inline]
    pub(super) fn open(&self, frame: &mut [u8], parts: &Parts, sequence: u64) -> Result<(), CipherFailed> {
        let Kind::Aead(key) = &self.kind else { return self.open_in_two_steps(frame, parts, sequence) };
        let nonce = self.nonce(self.counter_iv_of(frame, parts, sequence));
        key.open(nonce, self.aad(sequence), &mut frame[parts.body_at..parts.end])
    }

    /// Opens for suites that authenticate first, and decrypt in a second step or not at all.
    #[inline(never)]
    fn open_in_two_steps(&self, frame: &mut [u8], parts: &Parts, sequence: u64) -> Result<(), CipherFailed> {
        match &self.kind {
            Kind::Aead(_) => Err(CipherFailed),
            Kind::Gmac(key) => {
                let nonce = self.nonce(self.counter_iv_of(frame, parts, sequence));
                let tag = self.with_whole_header(frame, parts, sequence, |covered| key.authenticate(nonce, covered))?;
                is_equal(&tag, &frame[parts.icv_at..parts.end])
            }
            Kind::Mac { cbc, key } => {
                let tag = self.mac(key, frame, parts, sequence);
                let icv = &frame[parts.icv_at..parts.end];
                is_equal(&tag.as_ref()[..icv.len()], icv)?;
                cbc.as_ref().map_or(Ok(()), |cbc| cbc.decrypt(frame, parts))
            }
        }
    }

    /// Returns the IV in the packet, or the sequence number for an implicit IV (RFC 8750 4).
    #[inline]
    fn counter_iv_of(&self, frame: &[u8], parts: &Parts, sequence: u64) -> u64 {
        match frame[parts.esp_at + ESP_HEADER_LEN..].first_chunk() {
            Some(iv) if !self.has_implicit_iv => u64::from_be_bytes(*iv),
            _ => sequence,
        }
    }

    #[inline]
    pub(super) fn nonce(&self, counter_iv: u64) -> Nonce {
        Nonce::new(self.salt, counter_iv)
    }

    #[inline]
    pub(super) fn aad(&self, sequence: u64) -> Aad {
        Aad::new(self.spi, sequence, self.is_extended)
    }

    /// Calls `work` with the packet from the SPI up to the check value, in the form covered by GMAC (RFC 4543 3.3).
    /// During the call, the upper half of an extended sequence number is stored between the SPI and the lower half. The
    /// SPI moves to the preceding four bytes, which belong to another header. After the call, the function restores
    /// these bytes and the SPI.
    fn with_whole_header<R>(&self, frame: &mut [u8], parts: &Parts, sequence: u64, work: impl FnOnce(&[u8]) -> R) -> R {
        if !self.is_extended {
            return work(&frame[parts.esp_at..parts.icv_at]);
        }
        let from = parts.esp_at - ESN_HIGH_LEN;
        let borrowed = from..parts.esp_at + ESN_HIGH_LEN;
        let mut saved = [0; 2 * ESN_HIGH_LEN];
        saved.copy_from_slice(&frame[borrowed.clone()]);
        frame.copy_within(parts.esp_at..parts.esp_at + ESN_HIGH_LEN, from);
        frame[parts.esp_at..parts.esp_at + ESN_HIGH_LEN].copy_from_slice(&high_of(sequence));
        let result = work(&frame[from..parts.icv_at]);
        frame[borrowed].copy_from_slice(&saved);
        result
    }

    /// Authenticates the bytes from the SPI to the next header, then the upper half of an extended sequence number (RFC
    /// 4303 2.8).
    fn mac(&self, key: &hmac::Key, frame: &[u8], parts: &Parts, sequence: u64) -> hmac::Tag {
        let mut context = hmac::Context::with_key(key);
        context.update(&frame[parts.esp_at..parts.icv_at]);
        if self.is_extended {
            context.update(&high_of(sequence));
        }
        context.sign()
    }
}

fn high_of(sequence: u64) -> [u8; ESN_HIGH_LEN] {
    ((sequence >> u32::BITS) as u32).to_be_bytes()
}

fn is_equal(made: &[u8], given: &[u8]) -> Result<(), CipherFailed> {
    if made.ct_eq(given).into() { Ok(()) } else { Err(CipherFailed) }
}

fn mac_key(hmac: Hmac, key: &[u8]) -> Box<hmac::Key> {
    let algorithm = match hmac {
        Hmac::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        Hmac::Sha256 => hmac::HMAC_SHA256,
        Hmac::Sha384 => hmac::HMAC_SHA384,
        Hmac::Sha512 => hmac::HMAC_SHA512,
    };
    Box::new(hmac::Key::new(algorithm, key))
}

/// A block cipher in CBC mode, and the generator of its IVs.
struct Cbc {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
    /// Encrypts SPI and sequence number under a separate key. The result is unpredictable, as required for CBC's IV
    /// (NIST SP 800-38A appendix C), and needs no random numbers per packet. The SPI ensures that two associations with
    /// the same key, one per direction, share no IV.
    iv_maker: EncryptingKey,
    block_len: usize,
}

impl Cbc {
    fn aes(len: AesKey, key: &[u8]) -> Result<Box<Self>, CipherFailed> {
        let algorithm = match len {
            AesKey::Bits128 => &AES_128,
            AesKey::Bits192 => &AES_192,
            AesKey::Bits256 => &AES_256,
        };
        Self::new(algorithm, key, AES_BLOCK_LEN)
    }

    #[expect(deprecated, reason = "as above")]
    fn triple_des(key: &[u8]) -> Result<Box<Self>, CipherFailed> {
        Self::new(&DES_EDE3_FOR_LEGACY_USE_ONLY, key, DES_BLOCK_LEN)
    }

    fn new(
        algorithm: &'static aws_lc_rs::cipher::Algorithm,
        key: &[u8],
        block_len: usize,
    ) -> Result<Box<Self>, CipherFailed> {
        let mut iv_key = [0; AES_BLOCK_LEN];
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), IV_KEY_LABEL);
        iv_key.copy_from_slice(&derived.as_ref()[..AES_BLOCK_LEN]);
        let iv_maker = EncryptingKey::ecb(UnboundCipherKey::new(&AES_128, &iv_key)?)?;
        iv_key.zeroize();
        Ok(Box::new(Self {
            encrypting: EncryptingKey::cbc(UnboundCipherKey::new(algorithm, key)?)?,
            decrypting: DecryptingKey::cbc(UnboundCipherKey::new(algorithm, key)?)?,
            iv_maker,
            block_len,
        }))
    }

    fn write_iv(&self, iv: &mut [u8], spi: u32, sequence: u64) -> Result<(), CipherFailed> {
        let mut block = (u128::from(spi) << u64::BITS | u128::from(sequence)).to_be_bytes();
        self.iv_maker.less_safe_encrypt(&mut block, EncryptionContext::None)?;
        iv.copy_from_slice(&block[..self.block_len]);
        Ok(())
    }

    fn encrypt(&self, frame: &mut [u8], parts: &Parts) -> Result<(), CipherFailed> {
        let context = self.iv_of(frame, parts)?;
        self.encrypting.less_safe_encrypt(&mut frame[parts.body_at..parts.icv_at], context)?;
        Ok(())
    }

    fn decrypt(&self, frame: &mut [u8], parts: &Parts) -> Result<(), CipherFailed> {
        let context = DecryptionContext::from(self.iv_of(frame, parts)?);
        self.decrypting.decrypt(&mut frame[parts.body_at..parts.icv_at], context)?;
        Ok(())
    }

    fn iv_of(&self, frame: &[u8], parts: &Parts) -> Result<EncryptionContext, CipherFailed> {
        let iv = &frame[parts.body_at - self.block_len..parts.body_at];
        Ok(match self.block_len {
            DES_BLOCK_LEN => EncryptionContext::Iv64(FixedLength::from(iv.first_chunk().ok_or(CipherFailed)?)),
            _ => EncryptionContext::Iv128(FixedLength::from(iv.first_chunk().ok_or(CipherFailed)?)),
        })
    }
}
