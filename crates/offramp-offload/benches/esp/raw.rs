//! aws-lc's AEADs, called through the crate `aws_lc_rs`.

use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use offramp_offload::esp::{Suite, TAG_LEN};

/// Length of SPI and sequence number in bytes. The AEAD authenticates SPI and sequence number.
const AAD_LEN: usize = 8;

/// The cipher of a suite, used without ESP.
pub struct Raw {
    key: LessSafeKey,
    sequence: u64,
}

impl Raw {
    pub fn new(suite: Suite) -> Self {
        let algorithm = if suite.name().starts_with("chacha") { &CHACHA20_POLY1305 } else { &AES_128_GCM };
        let key = vec![7; algorithm.key_len()];
        Self { key: LessSafeKey::new(UnboundKey::new(algorithm, &key).expect("a key of that length")), sequence: 0 }
    }

    fn nonce(sequence: u64) -> Nonce {
        let whole = (u128::from(sequence) << 32).to_le_bytes();
        Nonce::try_assume_unique_for_key(&whole[..12]).expect("a nonce of that length")
    }

    /// Encrypts `bytes` in place and writes the tag to the end of `bytes`.
    #[inline]
    pub fn seal(&mut self, bytes: &mut [u8]) {
        self.sequence += 1;
        let (body, tag) = bytes.split_at_mut(bytes.len() - TAG_LEN);
        let aad = Aad::from([1; AAD_LEN]);
        self.key.seal_in_place_scatter(Self::nonce(self.sequence), aad, body, &[], tag).expect("lengths that fit");
    }

    /// Encrypts `clear` into `out` and writes the tag to the end of `out`.
    #[inline]
    pub fn seal_from(&mut self, clear: &[u8], out: &mut [u8]) {
        self.sequence += 1;
        let (body, tag) = out.split_at_mut(clear.len());
        let aad = Aad::from([1; AAD_LEN]);
        self.key
            .seal_out_of_place_scatter(Self::nonce(self.sequence), aad, clear, body, &[], tag)
            .expect("lengths that fit");
    }

    /// Decrypts the packet sealed under `sequence`.
    #[inline]
    pub fn open(&self, sequence: u64, bytes: &mut [u8]) -> usize {
        let aad = Aad::from([1; AAD_LEN]);
        self.key.open_in_place(Self::nonce(sequence), aad, bytes).expect("a genuine packet").len()
    }

    /// Returns the sequence number of the last sealed packet.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}
