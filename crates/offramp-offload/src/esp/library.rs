//! The interface to a cipher library. Two libraries are supported: the built-in aws-lc ([`aws_lc`]), and ipsec-mb,
//! which `offramp_ports::ipsec_mb` loads if the library is installed. Both libraries are tested with the same test
//! vectors.

use super::aws_lc::AwsLc;
use super::suite::{AesKey, Suite, TAG_LEN};
use std::fmt;

/// Length of an AEAD's nonce (salt and IV) in bytes.
pub const NONCE_LEN: usize = 12;
/// Length of SPI and sequence number in bytes (RFC 4106 5).
const AAD_LEN: usize = 8;
/// Length of SPI and extended sequence number in bytes (RFC 4106 5).
const EXTENDED_AAD_LEN: usize = 12;

/// The error of a cipher library: a refused key or length, or a packet that is not genuine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cipher library refused, or the packet is not genuine")]
pub struct CipherFailed;

/// A cipher that encrypts and authenticates in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AeadAlgorithm {
    /// AES in Galois/counter mode (NIST SP 800-38D) with a key of this length.
    AesGcm(AesKey),
    /// ChaCha20 and Poly1305 (RFC 8439).
    ChaCha20Poly1305,
}

impl AeadAlgorithm {
    /// Returns the AEAD of a suite. Returns `None` for suites other than AES-GCM, GMAC and ChaCha20-Poly1305.
    pub fn of(suite: Suite) -> Option<Self> {
        match suite {
            Suite::AesGcm16 { key, .. } | Suite::AesGmac { key } => Some(Self::AesGcm(key)),
            Suite::ChaCha20Poly1305 { .. } => Some(Self::ChaCha20Poly1305),
            Suite::AesCbc { .. } | Suite::Null { .. } | Suite::TripleDesCbc => None,
        }
    }
}

/// A nonce of twelve bytes: salt and IV (RFC 4106 4). The nonce is passed in registers. If the nonce were assembled in
/// memory, the cipher's load would wait for the stores of salt and IV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(u128);

impl Nonce {
    /// Returns the nonce from salt and IV. A packet carries `iv` in big-endian order.
    #[inline]
    pub fn new(salt: [u8; 4], iv: u64) -> Self {
        Self(u128::from(u32::from_le_bytes(salt)) | u128::from(iv.swap_bytes()) << u32::BITS)
    }

    /// Returns a number with the nonce as its first [`NONCE_LEN`] little-endian bytes. The other bytes are 0.
    #[inline]
    pub fn to_bits(self) -> u128 {
        self.0
    }
}

/// The SPI and the sequence number in the form authenticated by an AEAD (RFC 4106 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aad {
    bits: u128,
    is_extended: bool,
}

impl Aad {
    /// Returns the authenticated data from a packet's SPI and sequence number. The upper half of the sequence number is
    /// used only if `is_extended` is true.
    #[inline]
    pub fn new(spi: u32, sequence: u64, is_extended: bool) -> Self {
        // The bits are in memory order: big-endian, with the upper half of the sequence number, if used, before the
        // lower half.
        let shift = if is_extended { 0 } else { u32::BITS };
        let number = sequence.swap_bytes() >> shift;
        Self { bits: u128::from(spi.swap_bytes()) | u128::from(number) << u32::BITS, is_extended }
    }

    /// Returns a number with the authenticated bytes as its first [`Aad::len`] little-endian bytes. The other bytes are
    /// 0.
    #[inline]
    pub fn to_bits(self) -> u128 {
        self.bits
    }

    /// Returns the length of the authenticated data in bytes: 8, or 12 for an extended sequence number.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(self) -> usize {
        if self.is_extended { EXTENDED_AAD_LEN } else { AAD_LEN }
    }
}

/// A keyed AEAD. The key is wiped on drop, and tags are compared in constant time.
///
/// Wrong lengths cause the error [`CipherFailed`], never a panic.
pub trait Aead: Send + Sync {
    /// Encrypts `packet` in place, except its last [`TAG_LEN`] bytes, and writes the tag to these bytes.
    ///
    /// # Errors
    /// Returns an error if `packet` has no room for a tag.
    fn seal(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed>;

    /// Encrypts `clear` and then `trailer` into `out`. Writes the tag to the last [`TAG_LEN`] bytes of `out`.
    ///
    /// # Errors
    /// Returns an error if the length of `out` is not the sum of the three lengths.
    fn seal_from(
        &self,
        nonce: Nonce,
        aad: Aad,
        clear: &[u8],
        trailer: &[u8],
        out: &mut [u8],
    ) -> Result<(), CipherFailed>;

    /// Verifies the tag in the last [`TAG_LEN`] bytes of `packet` and decrypts the other bytes in place.
    ///
    /// # Errors
    /// Returns an error if the packet is not genuine. After an error, the bytes of `packet` are unspecified.
    fn open(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed>;

    /// Returns the tag over `covered`, without encryption.
    ///
    /// # Errors
    /// Returns an error if the library fails.
    fn authenticate(&self, nonce: Nonce, covered: &[u8]) -> Result<[u8; TAG_LEN], CipherFailed>;
}

/// A library of AEADs. The suites without an AEAD (CBC and NULL with HMAC, 3DES) always use aws-lc.
pub trait CipherLibrary: Send + Sync {
    /// Returns the library's name: `aws-lc` or `ipsec-mb`.
    fn name(&self) -> &'static str;

    /// Returns the library's version, or a note that the library reports none.
    fn version(&self) -> &str;

    /// Returns an AEAD with `key`. `key` excludes the salt.
    ///
    /// # Errors
    /// Returns an error if the key has a wrong length.
    fn aead(&self, algorithm: AeadAlgorithm, key: &[u8]) -> Result<Box<dyn Aead>, CipherFailed>;
}

impl fmt::Debug for dyn CipherLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

/// Returns the built-in library.
pub fn aws_lc() -> &'static dyn CipherLibrary {
    &AwsLc
}
