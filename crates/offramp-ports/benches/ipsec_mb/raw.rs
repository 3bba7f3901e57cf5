//! The AEADs of ipsec-mb without ESP.

use offramp_offload::esp::{Aad, Aead, AeadAlgorithm, Nonce, Suite, TAG_LEN};

/// Returns additional data as in an ESP packet.
fn aad() -> Aad {
    Aad::new(0x1000, 1, false)
}

/// A cipher without ESP.
pub struct Raw {
    key: Box<dyn Aead>,
    sequence: u64,
}

impl Raw {
    pub fn new(suite: Suite) -> Self {
        let algorithm = AeadAlgorithm::of(suite).expect("an AEAD");
        let salt_len = 4;
        let key = vec![7; suite.encryption_key_len() - salt_len];
        Self { key: crate::library().aead(algorithm, &key).expect("a key of that length"), sequence: 0 }
    }

    fn nonce(sequence: u64) -> Nonce {
        Nonce::new([0; 4], sequence)
    }

    /// Encrypts in place, and writes the tag to the end of `bytes`.
    #[inline]
    pub fn seal(&mut self, bytes: &mut [u8]) {
        self.sequence += 1;
        self.key.seal(Self::nonce(self.sequence), aad(), bytes).expect("lengths that fit");
    }

    /// Encrypts `clear` into `out`.
    #[inline]
    pub fn seal_from(&mut self, clear: &[u8], out: &mut [u8]) {
        self.sequence += 1;
        self.key.seal_from(Self::nonce(self.sequence), aad(), clear, &[], out).expect("lengths that fit");
    }

    /// Decrypts bytes that were encrypted with `sequence`.
    #[inline]
    pub fn open(&self, sequence: u64, bytes: &mut [u8]) -> usize {
        self.key.open(Self::nonce(sequence), aad(), bytes).expect("a genuine packet");
        bytes.len() - TAG_LEN
    }

    /// Returns the sequence number of the last encryption.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}
