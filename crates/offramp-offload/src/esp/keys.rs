//! Key bytes that are wiped on drop, never printed, and compared in constant time.

use aws_lc_rs::digest::{self, SHA256_OUTPUT_LEN};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Length of a key's fingerprint in bytes.
pub const FINGERPRINT_LEN: usize = SHA256_OUTPUT_LEN;

/// Key bytes of a security association.
///
/// The bytes are overwritten with zeros on drop. `Debug` prints only the number of bytes. A comparison of two keys
/// takes the same time wherever the keys differ.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<Vec<u8>>);

/// The reason to refuse a text as a key. The error message contains no part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHex {
    /// The number of hexadecimal digits is odd. Holds the number of digits.
    #[error("key: {0} hexadecimal digits make no whole number of bytes; give two digits per byte")]
    Odd(usize),
    /// A character is no hexadecimal digit. Holds the position of the character.
    #[error("key: character {0} is no hexadecimal digit; give 0-9 and a-f, with or without 0x in front")]
    Digit(usize),
}

impl SecretKey {
    /// Makes a key from `bytes`. The bytes are wiped when the key is dropped.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns an empty key, for a suite without a separate integrity key or without encryption.
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Parses hexadecimal digits, with or without the prefix `0x`, in the format of `ip xfrm`.
    ///
    /// # Errors
    /// Returns an error if the text contains a character that is no hexadecimal digit, or an odd number of digits. The
    /// position of a character counts from 1.
    pub fn from_hex(text: &str) -> Result<Self, InvalidHex> {
        let (skipped, digits) = text.strip_prefix("0x").map_or((0, text), |digits| (2, digits));
        let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
        let mut high = None;
        for (n, digit) in digits.bytes().enumerate() {
            let value = (digit as char).to_digit(16).ok_or(InvalidHex::Digit(skipped + n + 1))? as u8;
            match high.take() {
                None => high = Some(value),
                Some(high) => bytes.push(high << 4 | value),
            }
        }
        if high.is_some() { Err(InvalidHex::Odd(digits.len())) } else { Ok(Self(bytes)) }
    }

    /// Returns the key as hexadecimal digits for [`SecretKey::from_hex`], to pass the key to another process. The text
    /// is wiped on drop. Never print or log the text.
    pub fn to_hex(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = Zeroizing::new(String::with_capacity(2 * self.len()));
        for byte in self.0.iter() {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 0xf)]));
        }
        text
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the SHA-256 hash of the bytes. The hash identifies an earlier key without storing the key.
    pub fn fingerprint(&self) -> [u8; FINGERPRINT_LEN] {
        let mut fingerprint = [0; FINGERPRINT_LEN];
        fingerprint.copy_from_slice(digest::digest(&digest::SHA256, &self.0).as_ref());
        fingerprint
    }

    /// Returns the bytes, for use by the cipher only.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({} bytes)", self.len())
    }
}

impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretKey {}
