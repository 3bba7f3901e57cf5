//! Keys, and one packet at a time.

use super::Unavailable;
use super::functions::{Chacha, ChachaContext, Functions, Gcm, GcmContext, GcmKey};
use offramp_offload::esp::{Aad, Aead, AeadAlgorithm, AesKey, CipherFailed, CipherLibrary, Nonce, TAG_LEN};
use std::arch::x86_64::{__m128i, _mm_set_epi64x};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// Bytes of a ChaCha20 key.
const CHACHA_KEY_LEN: usize = 32;

/// The library, loaded.
pub struct IpsecMb {
    functions: Functions,
}

impl IpsecMb {
    pub fn new(functions: Functions) -> Self {
        Self { functions }
    }

    /// Holds one packet of every cipher against that of `judge`.
    pub fn check_against(&self, judge: &dyn CipherLibrary) -> Result<(), Unavailable> {
        let algorithms = [
            (AeadAlgorithm::AesGcm(AesKey::Bits128), 16, "AES-128-GCM"),
            (AeadAlgorithm::AesGcm(AesKey::Bits192), 24, "AES-192-GCM"),
            (AeadAlgorithm::AesGcm(AesKey::Bits256), 32, "AES-256-GCM"),
            (AeadAlgorithm::ChaCha20Poly1305, CHACHA_KEY_LEN, "ChaCha20-Poly1305"),
        ];
        for (algorithm, key_len, name) in algorithms {
            let key: Vec<u8> = (0..key_len as u8).collect();
            let agrees = || -> Result<bool, CipherFailed> {
                let (ours, theirs) = (self.aead(algorithm, &key)?, judge.aead(algorithm, &key)?);
                let (mut a, mut b) = (CHECK_PACKET, CHECK_PACKET);
                ours.seal(CHECK_NONCE.into(), CHECK_AAD.into(), &mut a)?;
                theirs.seal(CHECK_NONCE.into(), CHECK_AAD.into(), &mut b)?;
                let is_same = a == b;
                ours.open(CHECK_NONCE.into(), CHECK_AAD.into(), &mut b)?;
                Ok(is_same && b[..CHECK_PACKET.len() - TAG_LEN] == CHECK_PACKET[TAG_LEN..])
            };
            if agrees() != Ok(true) {
                return Err(Unavailable::WrongResult(name));
            }
        }
        Ok(())
    }
}
