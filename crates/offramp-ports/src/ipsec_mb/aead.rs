//! AEAD ciphers of ipsec-mb, applied to one packet at a time.

use super::Unavailable;
use super::functions::{Chacha, ChachaContext, Functions, Gcm, GcmContext, GcmKey};
use offramp_offload::esp::{Aad, Aead, AeadAlgorithm, AesKey, CipherFailed, CipherLibrary, Nonce, TAG_LEN};
use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_set_epi64x};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// Length of a ChaCha20 key, in bytes.
const CHACHA_KEY_LEN: usize = 32;
/// Maximum length in bytes of a clear text that [`GcmAead`] copies in front of the trailer, to encrypt both in one
/// call. A longer clear text is not copied, and the packet needs four calls. The three additional calls cost more than
/// copying a frame of 1,500 bytes, and less than copying a jumbo frame.
const GCM_COPIED_LEN_MAX: usize = 2048;
/// Length in bytes of the packet that checks each cipher: five vectors of 64 bytes, and a part of a vector.
const CHECK_LEN: usize = 333;

/// The loaded library ipsec-mb.
pub(super) struct IpsecMb {
    functions: Functions,
}

impl IpsecMb {
    pub(super) fn new(functions: Functions) -> Self {
        Self { functions }
    }

    /// Checks every cipher with one packet: the results must equal those of the library `judge`.
    pub(super) fn check_against(&self, judge: &dyn CipherLibrary) -> Result<(), Unavailable> {
        let algorithms = [
            (AeadAlgorithm::AesGcm(AesKey::Bits128), 16, "AES-128-GCM"),
            (AeadAlgorithm::AesGcm(AesKey::Bits192), 24, "AES-192-GCM"),
            (AeadAlgorithm::AesGcm(AesKey::Bits256), 32, "AES-256-GCM"),
            (AeadAlgorithm::ChaCha20Poly1305, CHACHA_KEY_LEN as u8, "ChaCha20-Poly1305"),
        ];
        let wrong = algorithms.into_iter().find(|&(algorithm, len, _)| self.agrees(judge, algorithm, len) != Ok(true));
        wrong.map_or(Ok(()), |(_, _, name)| Err(Unavailable::WrongResult(name)))
    }

    fn agrees(&self, judge: &dyn CipherLibrary, algorithm: AeadAlgorithm, key_len: u8) -> Result<bool, CipherFailed> {
        let key: Vec<u8> = (0..key_len).collect();
        let (ours, theirs) = (self.aead(algorithm, &key)?, judge.aead(algorithm, &key)?);
        let (nonce, aad) = (Nonce::new([1, 2, 3, 4], 5), Aad::new(6, 7, true));
        let clear: Vec<u8> = (0..CHECK_LEN).map(|n| n as u8).collect();
        let (mut sealed, mut from, mut expected) = (clear.clone(), clear.clone(), clear.clone());
        ours.seal(nonce, aad, &mut sealed)?;
        theirs.seal(nonce, aad, &mut expected)?;
        let (head, trailer) = clear[..CHECK_LEN - TAG_LEN].split_at(CHECK_LEN / 2);
        ours.seal_from(nonce, aad, head, trailer, &mut from)?;
        let is_sealed = sealed == expected && from == expected;
        ours.open(nonce, aad, &mut expected)?;
        let is_opened = expected[..CHECK_LEN - TAG_LEN] == clear[..CHECK_LEN - TAG_LEN];
        Ok(is_sealed && is_opened && ours.authenticate(nonce, &clear)? == theirs.authenticate(nonce, &clear)?)
    }
}

impl CipherLibrary for IpsecMb {
    fn name(&self) -> &'static str {
        "ipsec-mb"
    }

    fn version(&self) -> &str {
        &self.functions.version
    }

    fn aead(&self, algorithm: AeadAlgorithm, key: &[u8]) -> Result<Box<dyn Aead>, CipherFailed> {
        let [gcm_128, gcm_192, gcm_256] = self.functions.gcm;
        let (gcm, key_len) = match algorithm {
            AeadAlgorithm::AesGcm(AesKey::Bits128) => (gcm_128, 16),
            AeadAlgorithm::AesGcm(AesKey::Bits192) => (gcm_192, 24),
            AeadAlgorithm::AesGcm(AesKey::Bits256) => (gcm_256, 32),
            AeadAlgorithm::ChaCha20Poly1305 => {
                let key = Zeroizing::new(*key.as_array::<CHACHA_KEY_LEN>().ok_or(CipherFailed)?);
                return Ok(Box::new(ChachaAead { functions: self.functions.chacha, key }));
            }
        };
        if key.len() != key_len {
            return Err(CipherFailed);
        }
        let mut aead = Box::new(GcmAead { functions: gcm, key: GcmKey::EMPTY });
        // SAFETY: the key has the length that this function reads, and `aead.key` has room for the expanded key.
        unsafe { (gcm.expand_key)(key.as_ptr(), &raw mut aead.key) };
        Ok(aead)
    }
}

/// Returns the bytes in one vector register, so that one store instruction writes all of them. The library reads the
/// bytes with one load, which would stall after several smaller stores.
#[inline]
fn in_one(bits: u128) -> __m128i {
    // SAFETY: SSE2 is a part of x86-64.
    let mut vector = unsafe { _mm_set_epi64x((bits >> u64::BITS) as i64, bits as i64) };
    // SAFETY: the assembly contains no instruction. The assembly prevents the compiler from storing the halves
    // separately.
    unsafe { asm!("/* {0} */", inout(xmm_reg) vector, options(pure, nomem, nostack, preserves_flags)) };
    vector
}

/// AES-GCM with one key. The structure is never moved, so no copy of the key remains in memory.
struct GcmAead {
    key: GcmKey,
    functions: Gcm,
}

impl Drop for GcmAead {
    fn drop(&mut self) {
        self.key.0.zeroize();
    }
}

impl GcmAead {
    /// Encrypts or decrypts a whole packet in one call, from `from` to `to`. Both pointers can be equal.
    ///
    /// # Safety
    /// `len` bytes must be readable at `from` and writable at `to`. Both ranges must be identical or must not overlap.
    /// `aad_len` bytes must be readable at `aad`.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "they are the library's own")]
    unsafe fn whole(
        &self,
        run: super::functions::GcmWhole,
        nonce: Nonce,
        aad: *const u8,
        aad_len: usize,
        from: *const u8,
        to: *mut u8,
        len: usize,
        tag: &mut [u8; TAG_LEN],
    ) {
        let nonce = in_one(nonce.to_bits());
        // `Zeroizing` wipes the context, which holds a value derived from key and nonce.
        let mut context = Zeroizing::<GcmContext>::default();
        // SAFETY: the caller guarantees `from`, `to` and `aad`. The same library expanded `self.key`, for the key
        // length of `run`. The context has the library's layout, the nonce has at least twelve bytes, and the tag has
        // `TAG_LEN` bytes.
        unsafe {
            run(
                &raw const self.key,
                &raw mut *context,
                to,
                from,
                len as u64,
                (&raw const nonce).cast(),
                aad,
                aad_len as u64,
                tag.as_mut_ptr(),
                TAG_LEN as u64,
            );
        }
    }
}

/// The three parts of the output buffer: for the clear text, for the trailer, and for the tag.
type Places<'a> = (&'a mut [u8], &'a mut [u8], &'a mut [u8; TAG_LEN]);

/// Splits `out` into the three parts. Fails unless the length of `out` is the sum of all three lengths.
#[inline]
fn places(out: &mut [u8], clear_len: usize, trailer_len: usize) -> Result<Places<'_>, CipherFailed> {
    let (body, tag) = out.split_last_chunk_mut().ok_or(CipherFailed)?;
    let (body, rest) = body.split_at_mut_checked(clear_len).ok_or(CipherFailed)?;
    if rest.len() == trailer_len { Ok((body, rest, tag)) } else { Err(CipherFailed) }
}

impl Aead for GcmAead {
    fn seal(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed> {
        let (body, tag) = packet.split_last_chunk_mut().ok_or(CipherFailed)?;
        let (bytes, body_at) = (in_one(aad.to_bits()), body.as_mut_ptr());
        let aad_at = (&raw const bytes).cast();
        // SAFETY: body and additional data have the given lengths, and the body is encrypted in place.
        unsafe {
            self.whole(self.functions.encrypt, nonce, aad_at, aad.len(), body_at, body_at, body.len(), tag);
        }
        Ok(())
    }

    fn seal_from(
        &self,
        nonce: Nonce,
        aad: Aad,
        clear: &[u8],
        trailer: &[u8],
        out: &mut [u8],
    ) -> Result<(), CipherFailed> {
        let (body, rest, tag) = places(out, clear.len(), trailer.len())?;
        let bytes = in_one(aad.to_bits());
        if rest.is_empty() {
            let (aad_at, from, to) = ((&raw const bytes).cast(), clear.as_ptr(), body.as_mut_ptr());
            // SAFETY: `aad.len()` is the length of the additional data. The body has the length of `clear`, and does
            // not overlap `clear`.
            unsafe { self.whole(self.functions.encrypt, nonce, aad_at, aad.len(), from, to, clear.len(), tag) };
            return Ok(());
        }
        if clear.len() <= GCM_COPIED_LEN_MAX {
            body.copy_from_slice(clear);
            rest.copy_from_slice(trailer);
            return self.seal(nonce, aad, out);
        }
        let nonce = in_one(nonce.to_bits());
        let (functions, key) = (&self.functions, &raw const self.key);
        let mut context = Zeroizing::<GcmContext>::default();
        let at = &raw mut *context;
        // SAFETY: the same library expanded the key, for the key length of these functions. The context has the
        // library's layout, and nonce and additional data have the given lengths. Each part has the length of its
        // target and does not overlap the target. The tag has `TAG_LEN` bytes.
        unsafe {
            (functions.init)(key, at, (&raw const nonce).cast(), (&raw const bytes).cast(), aad.len() as u64);
            (functions.encrypt_update)(key, at, body.as_mut_ptr(), clear.as_ptr(), clear.len() as u64);
            (functions.encrypt_update)(key, at, rest.as_mut_ptr(), trailer.as_ptr(), trailer.len() as u64);
            (functions.encrypt_finalize)(key, at, tag.as_mut_ptr(), TAG_LEN as u64);
        }
        Ok(())
    }

    fn open(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed> {
        let (body, tag) = packet.split_last_chunk_mut::<TAG_LEN>().ok_or(CipherFailed)?;
        let (bytes, body_at) = (in_one(aad.to_bits()), body.as_mut_ptr());
        let aad_at = (&raw const bytes).cast();
        let mut made = [0; TAG_LEN];
        // SAFETY: body and additional data have the given lengths, and the body is decrypted in place.
        unsafe {
            self.whole(self.functions.decrypt, nonce, aad_at, aad.len(), body_at, body_at, body.len(), &mut made);
        }
        is_equal(&made, tag)
    }

    fn authenticate(&self, nonce: Nonce, covered: &[u8]) -> Result<[u8; TAG_LEN], CipherFailed> {
        let (mut nothing, mut tag) = ([0; 1], [0; TAG_LEN]);
        let (at, encrypt) = (nothing.as_mut_ptr(), self.functions.encrypt);
        // SAFETY: the additional data have the given length, and no byte is encrypted.
        unsafe { self.whole(encrypt, nonce, covered.as_ptr(), covered.len(), at, at, 0, &mut tag) };
        Ok(tag)
    }
}

/// ChaCha20-Poly1305 with one key.
struct ChachaAead {
    key: Zeroizing<[u8; CHACHA_KEY_LEN]>,
    functions: Chacha,
}

/// The state of ChaCha20-Poly1305 for one packet. The context is wiped, because it holds a key derived for the packet.
struct ChachaPacket<'a> {
    aead: &'a ChachaAead,
    context: Zeroizing<ChachaContext>,
}

impl ChachaPacket<'_> {
    /// Encrypts or decrypts the next `len` bytes of the packet. Reads the bytes at `from`, and writes the result at
    /// `to`. Both pointers can be equal.
    ///
    /// # Safety
    /// `len` bytes must be readable at `from` and writable at `to`. Both ranges must be identical or must not overlap.
    #[inline]
    unsafe fn update(&mut self, run: super::functions::ChachaUpdate, to: *mut u8, from: *const u8, len: usize) {
        let key = self.aead.key.as_ptr();
        // SAFETY: the caller guarantees the ranges, and the context was initialized with this key.
        unsafe { run(key, &raw mut *self.context, to, from, len as u64) };
    }

    #[inline]
    fn finish(mut self, tag: &mut [u8; TAG_LEN]) {
        let finalize = self.aead.functions.finalize;
        // SAFETY: the context was initialized, and the tag has `TAG_LEN` bytes.
        unsafe { finalize(&raw mut *self.context, tag.as_mut_ptr(), TAG_LEN as u64) };
    }
}

impl ChachaAead {
    /// Starts a packet with `aad_len` bytes of additional data.
    ///
    /// # Safety
    /// `aad_len` bytes must be readable at `aad`.
    unsafe fn begin(&self, nonce: Nonce, aad: *const u8, aad_len: usize) -> ChachaPacket<'_> {
        let mut packet = ChachaPacket { aead: self, context: Zeroizing::default() };
        let nonce = in_one(nonce.to_bits());
        let (key, context) = (self.key.as_ptr(), &raw mut *packet.context);
        // SAFETY: the caller guarantees the additional data. Key, context and nonce have the lengths expected by the
        // library.
        unsafe { (self.functions.init)(key, context, (&raw const nonce).cast(), aad, aad_len as u64) };
        packet
    }

    #[inline]
    fn begin_with(&self, nonce: Nonce, aad: Aad) -> ChachaPacket<'_> {
        let bytes = in_one(aad.to_bits());
        // SAFETY: the additional data have at most sixteen bytes, the length of the vector.
        unsafe { self.begin(nonce, (&raw const bytes).cast(), aad.len()) }
    }
}

impl Aead for ChachaAead {
    fn seal(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed> {
        let (body, tag) = packet.split_last_chunk_mut().ok_or(CipherFailed)?;
        let (mut on_its_way, at) = (self.begin_with(nonce, aad), body.as_mut_ptr());
        // SAFETY: the body is encrypted in place.
        unsafe { on_its_way.update(self.functions.encrypt_update, at, at, body.len()) };
        on_its_way.finish(tag);
        Ok(())
    }

    fn seal_from(
        &self,
        nonce: Nonce,
        aad: Aad,
        clear: &[u8],
        trailer: &[u8],
        out: &mut [u8],
    ) -> Result<(), CipherFailed> {
        let (body, rest, tag) = places(out, clear.len(), trailer.len())?;
        let (mut on_its_way, run) = (self.begin_with(nonce, aad), self.functions.encrypt_update);
        // SAFETY: each part has the length of its target and does not overlap the target.
        unsafe {
            on_its_way.update(run, body.as_mut_ptr(), clear.as_ptr(), clear.len());
            on_its_way.update(run, rest.as_mut_ptr(), trailer.as_ptr(), trailer.len());
        }
        on_its_way.finish(tag);
        Ok(())
    }

    fn open(&self, nonce: Nonce, aad: Aad, packet: &mut [u8]) -> Result<(), CipherFailed> {
        let (body, tag) = packet.split_last_chunk_mut::<TAG_LEN>().ok_or(CipherFailed)?;
        let (mut on_its_way, at) = (self.begin_with(nonce, aad), body.as_mut_ptr());
        // SAFETY: the body is decrypted in place.
        unsafe { on_its_way.update(self.functions.decrypt_update, at, at, body.len()) };
        let mut made = [0; TAG_LEN];
        on_its_way.finish(&mut made);
        is_equal(&made, tag)
    }

    fn authenticate(&self, nonce: Nonce, covered: &[u8]) -> Result<[u8; TAG_LEN], CipherFailed> {
        let mut tag = [0; TAG_LEN];
        // SAFETY: `covered.len()` is the length of the bytes.
        let packet = unsafe { self.begin(nonce, covered.as_ptr(), covered.len()) };
        packet.finish(&mut tag);
        Ok(tag)
    }
}

/// Compares two tags in constant time.
#[inline]
fn is_equal(made: &[u8; TAG_LEN], given: &[u8; TAG_LEN]) -> Result<(), CipherFailed> {
    // Comparing two words costs less than comparing sixteen bytes.
    let halves = |tag: &[u8; TAG_LEN]| {
        let whole = u128::from_ne_bytes(*tag);
        ((whole >> u64::BITS) as u64, whole as u64)
    };
    let (made, given) = (halves(made), halves(given));
    if (made.0.ct_eq(&given.0) & made.1.ct_eq(&given.1)).into() { Ok(()) } else { Err(CipherFailed) }
}
