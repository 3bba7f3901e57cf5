//! ipsec-mb's AEADs without ESP.

use offramp_offload::esp::{Aad, Aead, AeadAlgorithm, Nonce, Suite, TAG_LEN};

/// Returns additional data as in a packet.
fn aad() -> Aad {
    Aad::new(0x1000, 1, false)
}

/// The same cipher without ESP.
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

    /// Encrypts in place and writes the tag to the end of `bytes`.
    #[inline]
    pub fn seal(&mut self, bytes: &mut [u8]) {
        self.sequence += 1;
        self.key.seal(Self::nonce(self.sequence), aad(), bytes).expect("lengths that fit");
    }

    /// Encrypts from elsewhere.
    #[inline]
    pub fn seal_from(&mut self, clear: &[u8], out: &mut [u8]) {
        self.sequence += 1;
        self.key.seal_from(Self::nonce(self.sequence), aad(), clear, &[], out).expect("lengths that fit");
    }

    /// Decrypts bytes sealed under `sequence`.
    #[inline]
    pub fn open(&self, sequence: u64, bytes: &mut [u8]) -> usize {
        self.key.open(Self::nonce(sequence), aad(), bytes).expect("a genuine packet");
        bytes.len() - TAG_LEN
    }

    /// Returns the number of the last sealing.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}
