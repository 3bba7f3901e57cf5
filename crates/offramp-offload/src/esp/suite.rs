//! The suites: the cipher and the integrity check of a packet, and the bytes they add to it.

use std::fmt;

/// Bytes of the tag of every AEAD here.
pub const TAG_LEN: usize = 16;

/// Length of an AES key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::VariantArray)]
pub enum AesKey {
    /// 16 bytes.
    Bits128 = 16,
    /// 24 bytes.
    Bits192 = 24,
    /// 32 bytes.
    Bits256 = 32,
}

impl AesKey {
    pub(super) const fn len(self) -> usize {
        self as usize
    }
}

/// Integrity check of the suites with a cipher that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hmac {
    /// HMAC-SHA-1-96 (RFC 2404).
    Sha1 = 20,
    /// HMAC-SHA-256-128 (RFC 4868).
    Sha256 = 32,
    /// HMAC-SHA-384-192 (RFC 4868).
    Sha384 = 48,
    /// HMAC-SHA-512-256 (RFC 4868).
    Sha512 = 64,
}

impl Hmac {
    /// Returns the bytes of the key: as many as the hash has (RFC 2404 3, RFC 4868 2.1.1).
    const fn key_len(self) -> usize {
        self as usize
    }

    /// Returns the bytes of the check value on the wire: half of the hash (RFC 4868 2.1), 96 bits of SHA-1 (RFC 2404
    /// 2).
    const fn icv_len(self) -> usize {
        match self {
            Self::Sha1 => 12,
            _ => self.key_len() / 2,
        }
    }
}

/// The protection of a security association's packets.
///
/// Every suite has an integrity check: encryption alone is not offered (RFC 8221 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES in Galois/counter mode, 16-byte tag (RFC 4106).
    AesGcm16 {
        /// Length of the AES key, without the salt.
        key: AesKey,
        /// The IV is the sequence number and not on the wire (RFC 8750).
        implicit_iv: bool,
    },
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305 {
        /// The IV is the sequence number and not on the wire (RFC 8750).
        implicit_iv: bool,
    },
    /// Integrity alone, by AES-GMAC (RFC 4543).
    AesGmac {
        /// Length of the AES key, without the salt.
        key: AesKey,
    },
    /// AES in CBC mode (RFC 3602) with an HMAC.
    AesCbc {
        /// Length of the AES key.
        key: AesKey,
        /// The integrity check.
        hmac: Hmac,
    },
    /// Integrity alone, by an HMAC (RFC 2410).
    Null {
        /// The integrity check.
        hmac: Hmac,
    },
    /// Triple DES in CBC mode (RFC 2451) with HMAC-SHA-1-96: for old peers, only on request as legacy. It should not be
    /// used (RFC 8221 5).
    TripleDesCbc,
}

/// Bytes of the salt that follows the key of an AEAD (RFC 4106 4, RFC 7634 2, RFC 4543 3.2).
pub(super) const SALT_LEN: usize = 4;
/// Bytes of a ChaCha20 key.
const CHACHA20_KEY_LEN: usize = 32;
/// Bytes of three DES keys.
const TRIPLE_DES_KEY_LEN: usize = 24;
/// Bytes of the IV of the counter-mode suites.
const COUNTER_IV_LEN: usize = 8;
/// Bytes of an AES block, and of the IV of CBC.
pub(super) const AES_BLOCK_LEN: usize = 16;
/// Bytes of a DES block.
pub(super) const DES_BLOCK_LEN: usize = 8;
/// Alignment of every trailer's end (RFC 4303 2.4).
const TRAILER_ALIGNMENT: usize = 4;

use AesKey::{Bits128, Bits192, Bits256};
use Hmac::{Sha1, Sha256, Sha384, Sha512};

/// Every suite with its name.
const SUITES: [(&str, Suite); 28] = [
    ("aes128gcm16", gcm(Bits128, false)),
    ("aes192gcm16", gcm(Bits192, false)),
    ("aes256gcm16", gcm(Bits256, false)),
    ("aes128gcm16-iiv", gcm(Bits128, true)),
    ("aes192gcm16-iiv", gcm(Bits192, true)),
    ("aes256gcm16-iiv", gcm(Bits256, true)),
    ("chacha20poly1305", Suite::ChaCha20Poly1305 { implicit_iv: false }),
    ("chacha20poly1305-iiv", Suite::ChaCha20Poly1305 { implicit_iv: true }),
    ("aes128gmac", Suite::AesGmac { key: Bits128 }),
    ("aes192gmac", Suite::AesGmac { key: Bits192 }),
    ("aes256gmac", Suite::AesGmac { key: Bits256 }),
    ("aes128-sha256", cbc(Bits128, Sha256)),
    ("aes128-sha384", cbc(Bits128, Sha384)),
    ("aes128-sha512", cbc(Bits128, Sha512)),
    ("aes128-sha1", cbc(Bits128, Sha1)),
    ("aes192-sha256", cbc(Bits192, Sha256)),
    ("aes192-sha384", cbc(Bits192, Sha384)),
    ("aes192-sha512", cbc(Bits192, Sha512)),
    ("aes192-sha1", cbc(Bits192, Sha1)),
    ("aes256-sha256", cbc(Bits256, Sha256)),
    ("aes256-sha384", cbc(Bits256, Sha384)),
    ("aes256-sha512", cbc(Bits256, Sha512)),
    ("aes256-sha1", cbc(Bits256, Sha1)),
    ("null-sha256", Suite::Null { hmac: Sha256 }),
    ("null-sha384", Suite::Null { hmac: Sha384 }),
    ("null-sha512", Suite::Null { hmac: Sha512 }),
    ("null-sha1", Suite::Null { hmac: Sha1 }),
    ("3des-sha1", Suite::TripleDesCbc),
];

const fn gcm(key: AesKey, implicit_iv: bool) -> Suite {
    Suite::AesGcm16 { key, implicit_iv }
}

const fn cbc(key: AesKey, hmac: Hmac) -> Suite {
    Suite::AesCbc { key, hmac }
}

/// An unknown suite name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("suite \"{0}\" is not known; known are {known}", known = Suite::names())]
pub struct UnknownSuite(pub String);

impl Suite {
    /// Returns every suite, the legacy one last.
    pub fn all() -> impl Iterator<Item = Self> {
        SUITES.iter().map(|(_, suite)| *suite)
    }

    /// Returns the suite of that name: `aes128gcm16`, `chacha20poly1305`, `aes256-sha512`, `3des-sha1`, … (strongSwan's
    /// proposal words; `-iiv` marks an implicit IV).
    ///
    /// # Errors
    /// Returns an error with the list of known suites if no suite has that name.
    pub fn by_name(name: &str) -> Result<Self, UnknownSuite> {
        let found = SUITES.iter().find(|(known, _)| *known == name);
        found.map(|(_, suite)| *suite).ok_or_else(|| UnknownSuite(name.to_owned()))
    }

    /// Returns the name for [`Suite::by_name`].
    pub fn name(self) -> &'static str {
        SUITES.iter().find(|(_, suite)| *suite == self).map_or("?", |(name, _)| name)
    }

    fn names() -> String {
        SUITES.map(|(name, _)| name).join(", ")
    }

    /// Returns true for a suite for old peers only.
    pub fn is_legacy(self) -> bool {
        self == Self::TripleDesCbc
    }

    /// Returns the bytes of the encryption key, with the salt of the AEADs and GMAC after it (RFC 4106 8.1), as IKE and
    /// `ip xfrm` hand it over.
    pub fn encryption_key_len(self) -> usize {
        match self {
            Self::AesGcm16 { key, .. } | Self::AesGmac { key } => key.len() + SALT_LEN,
            Self::ChaCha20Poly1305 { .. } => CHACHA20_KEY_LEN + SALT_LEN,
            Self::AesCbc { key, .. } => key.len(),
            Self::Null { .. } => 0,
            Self::TripleDesCbc => TRIPLE_DES_KEY_LEN,
        }
    }

    /// Returns the bytes of the integrity key; 0 for suites without one.
    pub fn integrity_key_len(self) -> usize {
        self.hmac().map_or(0, Hmac::key_len)
    }

    /// Returns the bytes of the integrity check value on the wire.
    pub fn icv_len(self) -> usize {
        self.hmac().map_or(TAG_LEN, Hmac::icv_len)
    }

    /// Returns the bytes of the IV on the wire.
    pub fn iv_len(self) -> usize {
        match self {
            Self::Null { .. } => 0,
            Self::AesCbc { .. } => AES_BLOCK_LEN,
            Self::TripleDesCbc => DES_BLOCK_LEN,
            _ if self.has_implicit_iv() => 0,
            _ => COUNTER_IV_LEN,
        }
    }

    /// Returns the alignment of payload and trailer together, bytes.
    pub fn alignment(self) -> usize {
        match self {
            Self::AesCbc { .. } => AES_BLOCK_LEN,
            Self::TripleDesCbc => DES_BLOCK_LEN,
            _ => TRAILER_ALIGNMENT,
        }
    }

    /// Returns the HMAC, if the suite has one.
    pub(super) fn hmac(self) -> Option<Hmac> {
        match self {
            Self::AesCbc { hmac, .. } | Self::Null { hmac } => Some(hmac),
            Self::TripleDesCbc => Some(Hmac::Sha1),
            _ => None,
        }
    }

    /// Returns true for suites with the sequence number as IV. Two packets with one sequence number under one key give
    /// the key stream, or the authentication key, away (RFC 4106 2, RFC 7634 2).
    pub fn is_counter_mode(self) -> bool {
        self.has_salt()
    }

    /// Returns true for a key that ends in a salt.
    pub(super) fn has_salt(self) -> bool {
        matches!(self, Self::AesGcm16 { .. } | Self::ChaCha20Poly1305 { .. } | Self::AesGmac { .. })
    }

    /// Returns true if the sequence number takes the place of an IV.
    pub(super) fn has_implicit_iv(self) -> bool {
        matches!(self, Self::AesGcm16 { implicit_iv: true, .. } | Self::ChaCha20Poly1305 { implicit_iv: true })
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
