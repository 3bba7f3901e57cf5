//! The AEADs of the cipher library aws-lc.

use super::library::{Aad, Aead, AeadAlgorithm, CipherFailed, CipherLibrary, NONCE_LEN, Nonce};
use super::suite::{AesKey, TAG_LEN};
use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use aws_lc_rs::error::Unspecified;

/// Maximum length of clear bytes that are first copied to the output buffer and then encrypted there with AES-GCM. For
/// more bytes, the library gets the trailer in a separate buffer, at a small cost.
const GCM_COPIED_LEN_MAX: usize = 512;

/// The built-in cipher library.
#[derive(Debug)]
pub(super) struct AwsLc;

impl From<Unspecified> for CipherFailed {
    fn from(_: Unspecified) -> Self {
        Self
    }
}

impl CipherLibrary for AwsLc {
    fn name(&self) -> &'static str {
        "aws-lc"
    }

    fn version(&self) -> &'static str {
        "built in"
    }

    fn aead(&self, algorithm: AeadAlgorithm, key: &[u8]) -> Result<Box<dyn Aead>, CipherFailed> {
        let (algorithm, copied_len_max) = match algorithm {
            AeadAlgorithm::AesGcm(AesKey::Bits128) => (&AES_128_GCM, GCM_COPIED_LEN_MAX),
            AeadAlgorithm::AesGcm(AesKey::Bits192) => (&AES_192_GCM, GCM_COPIED_LEN_MAX),
            AeadAlgorithm::AesGcm(AesKey::Bits256) => (&AES_256_GCM, GCM_COPIED_LEN_MAX),
            // With ChaCha20-Poly1305, a separate trailer costs more than a copy of the packet, at any length.
            AeadAlgorithm::ChaCha20Poly1305 => (&CHACHA20_POLY1305, usize::MAX),
        };
        Ok(Box::new(Key { key: LessSafeKey::new(UnboundKey::new(algorithm, key)?), copied_len_max }))
    }
}

struct Key {
    key: LessSafeKey,
    /// Maximum length of clear bytes that [`Aead::seal_from`] copies to `out` and encrypts there.
    copied_len_max: usize,
}

#[inline]
fn nonce_of(nonce: Nonce) -> Result<aws_lc_rs::aead::Nonce, CipherFailed> {
    Ok(aws_lc_rs::aead::Nonce::try_assume_unique_for_key(&nonce.to_bits().to_le_bytes()[..NONCE_LEN])?)
}

impl Aead for Key {
    fn seal(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed> {
        let (body, tag) = packet.split_last_chunk_mut::<TAG_LEN>().ok_or(CipherFailed)?;
        let bytes = aad.to_bits().to_le_bytes();
        let aad = aws_lc_rs::aead::Aad::from(&bytes[..aad.len()]);
        Ok(self.key.seal_in_place_scatter(nonce_of(nonce)?, aad, body, &[], tag)?)
    }

    fn seal_from(
        &self,
        nonce: Nonce,
        aad: Aad,
        clear: &[u8],
        trailer: &[u8],
        out: &mut [u8],
    ) -> Result<(), CipherFailed> {
        let (body, rest) = out.split_at_mut_checked(clear.len()).ok_or(CipherFailed)?;
        if clear.len() <= self.copied_len_max && rest.len() == trailer.len() + TAG_LEN {
            body.copy_from_slice(clear);
            rest[..trailer.len()].copy_from_slice(trailer);
            return self.seal(nonce, aad, out);
        }
        let bytes = aad.to_bits().to_le_bytes();
        let aad = aws_lc_rs::aead::Aad::from(&bytes[..aad.len()]);
        Ok(self.key.seal_out_of_place_scatter(nonce_of(nonce)?, aad, clear, body, trailer, rest)?)
    }

    fn open(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed> {
        let bytes = aad.to_bits().to_le_bytes();
        let aad = aws_lc_rs::aead::Aad::from(&bytes[..aad.len()]);
        self.key.open_in_place(nonce_of(nonce)?, aad, packet)?;
        Ok(())
    }

    fn authenticate(&self, nonce: Nonce, covered: &[u8]) -> Result<[u8; TAG_LEN], CipherFailed> {
        let aad = aws_lc_rs::aead::Aad::from(covered);
        let tag = self.key.seal_in_place_separate_tag(nonce_of(nonce)?, aad, &mut [])?;
        tag.as_ref().try_into().map_err(|_| CipherFailed)
    }
}
