//! The cipher library ipsec-mb: Intel's Multi-Buffer Crypto for IPsec, which DPDK also uses. The library is loaded at
//! run time if installed (Debian: `apt install libipsec-mb1`), never linked.
//!
//! [`library`] loads ipsec-mb, and [`preferred`] returns the library to use. ipsec-mb computes AES-GCM, GMAC and
//! ChaCha20-Poly1305; aws-lc computes CBC and HMAC. For CBC and HMAC, ipsec-mb processes many packets at once, through
//! a manager bound to one thread. A single packet would fill only one lane of sixteen.
//!
//! The library exports its functions once per kind of processor, and stores pointers to the matching functions in its
//! manager. The manager's layout changes from version to version. Four checks therefore precede the use of ipsec-mb.
//! The version must be supported, the size of the manager must match, and every exported function must have the
//! expected name. For each cipher, one packet encrypted by ipsec-mb must equal the packet encrypted by aws-lc.

#[cfg(target_arch = "x86_64")]
mod aead;
#[cfg(target_arch = "x86_64")]
mod functions;

use offramp_offload::esp::{CipherLibrary, aws_lc};
use std::sync::OnceLock;

/// File name of the library, for the loader.
pub const FILE_NAME: &str = "libIPSec_MB.so.1";

/// The reason why ipsec-mb is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The processor is not an x86-64 processor or lacks AES-NI, without which ipsec-mb would be slow.
    #[error("ipsec-mb: this processor has no AES-NI; aws-lc is used")]
    Processor,
    /// ipsec-mb works, but is not known to be faster than aws-lc on this processor.
    #[error("ipsec-mb: not known to be faster without VAES and AVX-512; aws-lc is used")]
    NotFaster,
    /// The loader does not find the library.
    #[error("ipsec-mb: {0}; install it (Debian: apt install libipsec-mb1); aws-lc is used")]
    NotInstalled(String),
    /// The version of ipsec-mb is not supported, because its structures may differ from those of the supported version.
    #[error("ipsec-mb: version {0} is unknown, 1.3 is supported; aws-lc is used")]
    Version(String),
    /// The layout of the manager differs from the supported layout of this version.
    #[error("ipsec-mb: {0}; the build differs from Debian's; aws-lc is used")]
    Layout(String),
    /// A check packet encrypted by ipsec-mb differs from the same packet encrypted by aws-lc.
    #[error("ipsec-mb: {0}: the result differs from aws-lc's; aws-lc is used")]
    WrongResult(&'static str),
}

/// Returns ipsec-mb. The first call loads and checks the library, which then stays loaded.
///
/// # Errors
/// Returns the reason if ipsec-mb cannot be used.
pub fn library() -> Result<&'static dyn CipherLibrary, &'static Unavailable> {
    static LOADED: OnceLock<Result<Box<dyn CipherLibrary>, Unavailable>> = OnceLock::new();
    LOADED.get_or_init(load).as_deref()
}

/// Returns the preferred library for this machine. The preferred library is ipsec-mb if ipsec-mb can be loaded and the
/// processor has VAES and AVX-512, where ipsec-mb is faster. On other machines, the function returns aws-lc, and the
/// reason for not using ipsec-mb.
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
