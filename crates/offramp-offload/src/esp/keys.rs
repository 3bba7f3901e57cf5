//! Key bytes: wiped, never shown, and compared in constant time.

use aws_lc_rs::digest::{self, SHA256_OUTPUT_LEN};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of a key's fingerprint.
pub const FINGERPRINT_LEN: usize = SHA256_OUTPUT_LEN;

/// Key bytes of a security association.
///
/// They are overwritten with zeros when dropped, `Debug` shows their number alone, and comparing two keys takes the
/// same time wherever they differ.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<Vec<u8>>);

/// The reason to refuse a text as a key. It says nothing of the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHex {
    /// An odd number of digits.
    #[error("key: {0} hexadecimal digits make no whole number of bytes; give two digits per byte")]
    Odd(usize),
    /// A character other than a hexadecimal digit.
    #[error("key: character {0} is no hexadecimal digit; give 0-9 and a-f, with or without 0x in front")]
    Digit(usize),
}

impl SecretKey {
    /// Takes the bytes over; they are wiped when the key is dropped.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns an empty key, for a suite without a separate integrity key or without encryption.
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Reads hexadecimal digits, with or without `0x` in front, as `ip xfrm` prints them.
    ///
    /// # Errors
    /// Returns an error if the text contains another character (its position counts from 1) or an odd number of digits.
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

    /// Returns the hexadecimal digits for [`SecretKey::from_hex`], to hand the key to its process. The text is wiped
    /// when it is dropped. Never print or log it.
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

    /// Returns SHA-256 of the bytes: recognizes an earlier key without keeping it.
    pub fn fingerprint(&self) -> [u8; FINGERPRINT_LEN] {
        let mut fingerprint = [0; FINGERPRINT_LEN];
        fingerprint.copy_from_slice(digest::digest(&digest::SHA256, &self.0).as_ref());
        fingerprint
    }

    /// Returns the bytes, for the cipher alone.
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
