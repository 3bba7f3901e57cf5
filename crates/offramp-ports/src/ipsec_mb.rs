//! ipsec-mb as the library of ciphers: Intel's Multi-Buffer Crypto for IPsec, also used by DPDK. It is loaded at run
//! time if it is installed (Debian: `apt install libipsec-mb1`), never linked.
//!
//! [`library`] loads it; [`preferred`] returns the library for a program to use. AES-GCM, GMAC and ChaCha20-Poly1305
//! come from it. CBC and HMAC stay with aws-lc: ipsec-mb computes those for many packets at once, through a manager for
//! one thread only, and a packet alone would fill one lane of sixteen.
//!
//! The library exports its functions once per kind of processor and hands out the right ones in its manager. The layout
//! of this structure changes from version to version. So four checks guard its use: the version must be known here, the
//! size of the manager must match, every function must bear the expected name, and one packet of each cipher must equal
//! the result of aws-lc.

#[cfg(target_arch = "x86_64")]
mod aead;
#[cfg(target_arch = "x86_64")]
mod functions;

use offramp_offload::esp::{CipherLibrary, aws_lc};
use std::sync::OnceLock;

/// Name of the library for the loader.
pub const FILE_NAME: &str = "libIPSec_MB.so.1";

/// Why ipsec-mb is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It is for x86-64 alone, and without AES-NI it would be slow.
    #[error("ipsec-mb: this processor has no AES-NI; aws-lc is used")]
    Processor,
    /// It would work, but aws-lc is no slower here.
    #[error("ipsec-mb: not known to be faster without VAES and AVX-512; aws-lc is used")]
    NotFaster,
    /// The loader does not find it.
    #[error("ipsec-mb: {0}; install it (Debian: apt install libipsec-mb1); aws-lc is used")]
    NotInstalled(String),
    /// A version with structures not known here.
    #[error("ipsec-mb: version {0} is unknown, 1.3 is supported; aws-lc is used")]
    Version(String),
    /// Its manager differs from the known one of its version.
    #[error("ipsec-mb: {0}; the build differs from Debian's; aws-lc is used")]
    Layout(String),
    /// It makes another packet than aws-lc.
    #[error("ipsec-mb: {0}: the result differs from aws-lc's; aws-lc is used")]
    WrongResult(&'static str),
}

/// Returns ipsec-mb, loaded and checked at the first call; it stays loaded.
///
/// # Errors
/// The reason why it cannot be used.
pub fn library() -> Result<&'static dyn CipherLibrary, &'static Unavailable> {
    static LOADED: OnceLock<Result<Box<dyn CipherLibrary>, Unavailable>> = OnceLock::new();
    LOADED.get_or_init(load).as_deref()
}

/// Returns the library for this machine: ipsec-mb if it can be loaded and is faster, on processors with VAES and
/// AVX-512; else aws-lc, with the reason.
pub fn preferred() -> (&'static dyn CipherLibrary, Option<&'static Unavailable>) {
    match library() {
        Ok(library) if has_wide_aes() => (library, None),
        Ok(_) => (aws_lc(), Some(&Unavailable::NotFaster)),
        Err(reason) => (aws_lc(), Some(reason)),
    }
}

#[cfg(target_arch = "x86_64")]
fn has_wide_aes() -> bool {
    std::arch::is_x86_feature_detected!("vaes") && std::arch::is_x86_feature_detected!("avx512bw")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_wide_aes() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn load() -> Result<Box<dyn CipherLibrary>, Unavailable> {
    if !std::arch::is_x86_feature_detected!("aes") {
        return Err(Unavailable::Processor);
    }
    let loaded = aead::IpsecMb::new(functions::Functions::load()?);
    loaded.check_against(aws_lc())?;
    Ok(Box::new(loaded))
}

#[cfg(not(target_arch = "x86_64"))]
fn load() -> Result<Box<dyn CipherLibrary>, Unavailable> {
    Err(Unavailable::Processor)
}
