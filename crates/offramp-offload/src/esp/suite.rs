//! The suites: cipher and integrity check of a packet, and the number of added bytes.

use std::fmt;

/// Length of an AEAD's tag in bytes.
pub const TAG_LEN: usize = 16;

/// Length of an AES key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::VariantArray)]
pub enum AesKey {
    /// AES-128, 16 bytes.
    Bits128 = 16,
    /// AES-192, 24 bytes.
    Bits192 = 24,
    /// AES-256, 32 bytes.
    Bits256 = 32,
}

impl AesKey {
    pub(super) const fn len(self) -> usize {
        self as usize
    }
}

/// The integrity check of suites without an AEAD.
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
    /// Returns the length of the key in bytes, equal to the length of the hash (RFC 2404 3, RFC 4868 2.1.1).
    const fn key_len(self) -> usize {
        self as usize
    }

    /// Returns the length of the check value on the wire in bytes: half of the hash (RFC 4868 2.1), or 96 bits for
    /// SHA-1 (RFC 2404 2).
    const fn icv_len(self) -> usize {
        match self {
            Self::Sha1 => 12,
            _ => self.key_len() / 2,
        }
    }
}

/// The protection of a security association's packets.
///
/// Every suite has an integrity check. Encryption without integrity is not offered (RFC 8221 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES in Galois/counter mode, 16-byte tag (RFC 4106).
    AesGcm16 {
        /// Length of the AES key, without the salt.
        key: AesKey,
        /// True if the IV is the sequence number, and the wire carries no IV (RFC 8750).
        implicit_iv: bool,
    },
    /// ChaCha20 and Poly1305 (RFC 7634).
    ChaCha20Poly1305 {
        /// True if the IV is the sequence number, and the wire carries no IV (RFC 8750).
        implicit_iv: bool,
    },
    /// AES-GMAC, integrity without encryption (RFC 4543).
    AesGmac {
        /// Length of the AES key, without the salt.
        key: AesKey,
    },
    /// AES in CBC mode (RFC 3602) with an HMAC.
    AesCbc {
        /// Length of the AES key.
        key: AesKey,
        /// Integrity check.
        hmac: Hmac,
    },
    /// An HMAC, integrity without encryption (RFC 2410).
    Null {
        /// Integrity check.
        hmac: Hmac,
    },
    /// Triple DES in CBC mode (RFC 2451) with HMAC-SHA-1-96. Only for old peers, and only with the option `legacy`. The
    /// suite should not be used (RFC 8221 5).
    TripleDesCbc,
}

/// Length of the salt after the key of an AEAD, in bytes (RFC 4106 4, RFC 7634 2, RFC 4543 3.2).
pub(super) const SALT_LEN: usize = 4;
/// Length of a ChaCha20 key in bytes.
const CHACHA20_KEY_LEN: usize = 32;
/// Length of three DES keys in bytes.
const TRIPLE_DES_KEY_LEN: usize = 24;
/// Length of the IV of the counter-mode suites in bytes.
const COUNTER_IV_LEN: usize = 8;
/// Length of an AES block, and of CBC's IV, in bytes.
pub(super) const AES_BLOCK_LEN: usize = 16;
/// Length of a DES block in bytes.
pub(super) const DES_BLOCK_LEN: usize = 8;
/// Alignment of the trailer's end in bytes (RFC 4303 2.4).
const TRAILER_ALIGNMENT: usize = 4;

use AesKey::{Bits128, Bits192, Bits256};
use Hmac::{Sha1, Sha256, Sha384, Sha512};

/// All suites with their names.
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

/// The error for an unknown suite name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("suite \"{0}\" is not known; known are {known}", known = Suite::names())]
pub struct UnknownSuite(pub String);

impl Suite {
    /// Returns all suites, with the legacy suite last.
    pub fn all() -> impl Iterator<Item = Self> {
        SUITES.iter().map(|(_, suite)| *suite)
    }

    /// Returns the suite with this name, for example `aes128gcm16`, `chacha20poly1305`, `aes256-sha512` or `3des-sha1`.
    /// The names are strongSwan's proposal keywords, and `-iiv` marks an implicit IV.
    ///
    /// # Errors
    /// Returns an error with the list of known suites if no suite has that name.
    pub fn by_name(name: &str) -> Result<Self, UnknownSuite> {
        let found = SUITES.iter().find(|(known, _)| *known == name);
        found.map(|(_, suite)| *suite).ok_or_else(|| UnknownSuite(name.to_owned()))
    }

    /// Returns the suite's name, as accepted by [`Suite::by_name`].
    pub fn name(self) -> &'static str {
        SUITES.iter().find(|(_, suite)| *suite == self).map_or("?", |(name, _)| name)
    }

    fn names() -> String {
        SUITES.map(|(name, _)| name).join(", ")
    }

    /// Returns true for a suite that exists only for old peers.
    pub fn is_legacy(self) -> bool {
        self == Self::TripleDesCbc
    }

    /// Returns the length of the encryption key in bytes. For the AEADs and GMAC, this length includes the salt after
    /// the key (RFC 4106 8.1), as in IKE and `ip xfrm`.
    pub fn encryption_key_len(self) -> usize {
        match self {
            Self::AesGcm16 { key, .. } | Self::AesGmac { key } => key.len() + SALT_LEN,
            Self::ChaCha20Poly1305 { .. } => CHACHA20_KEY_LEN + SALT_LEN,
            Self::AesCbc { key, .. } => key.len(),
            Self::Null { .. } => 0,
            Self::TripleDesCbc => TRIPLE_DES_KEY_LEN,
        }
    }

    /// Returns the length of the integrity key in bytes, or 0 for suites without an integrity key.
    pub fn integrity_key_len(self) -> usize {
        self.hmac().map_or(0, Hmac::key_len)
    }

    /// Returns the length of the integrity check value on the wire in bytes.
    pub fn icv_len(self) -> usize {
        self.hmac().map_or(TAG_LEN, Hmac::icv_len)
    }

    /// Returns the length of the IV on the wire in bytes.
    pub fn iv_len(self) -> usize {
        match self {
            Self::Null { .. } => 0,
            Self::AesCbc { .. } => AES_BLOCK_LEN,
            Self::TripleDesCbc => DES_BLOCK_LEN,
            _ if self.has_implicit_iv() => 0,
            _ => COUNTER_IV_LEN,
        }
    }

    /// Returns the alignment of the total length of payload and trailer, in bytes.
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

    /// Returns true for suites with the sequence number as IV. Two packets with the same sequence number under the same
    /// key reveal the key stream or the authentication key (RFC 4106 2, RFC 7634 2).
    pub fn is_counter_mode(self) -> bool {
        self.has_salt()
    }

    /// Returns true if the encryption key ends with a salt.
    pub(super) fn has_salt(self) -> bool {
        matches!(self, Self::AesGcm16 { .. } | Self::ChaCha20Poly1305 { .. } | Self::AesGmac { .. })
    }

    /// Returns true if the sequence number replaces an IV on the wire.
    pub(super) fn has_implicit_iv(self) -> bool {
        matches!(self, Self::AesGcm16 { implicit_iv: true, .. } | Self::ChaCha20Poly1305 { implicit_iv: true })
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
