//! Loads the library ipsec-mb and its functions. Prototypes, structures and sizes follow the documented interface of
//! version 1.3 (`intel-ipsec-mb.h`).

use super::{FILE_NAME, Unavailable};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::{self, NonNull};

/// The supported version of ipsec-mb: the major number in the upper byte, the minor number in the lower byte.
const VERSION: u32 = 0x0103;
/// Result of `imb_get_mb_mgr_size` in this version: the size in bytes of the manager and its job queues.
const MANAGER_LEN: usize = 200_744;
/// The offsets of the function pointers in the manager, in bytes. An offset `GCM_…` is that of the first of three
/// pointers, for keys of 128, 192 and 256 bits.
mod at {
    pub(super) const GCM_ENCRYPT: usize = 256;
    pub(super) const GCM_DECRYPT: usize = 280;
    pub(super) const GCM_INIT: usize = 304;
    pub(super) const GCM_ENCRYPT_UPDATE: usize = 328;
    pub(super) const GCM_ENCRYPT_FINALIZE: usize = 376;
    pub(super) const GCM_EXPAND_KEY: usize = 448;
    pub(super) const CHACHA_INIT: usize = 920;
    pub(super) const CHACHA_ENCRYPT_UPDATE: usize = 928;
    pub(super) const CHACHA_DECRYPT_UPDATE: usize = 936;
    pub(super) const CHACHA_FINALIZE: usize = 944;
}

/// `sizeof(struct gcm_key_data)` in 64-bit words, rounded up to a whole cache line.
const GCM_KEY_WORDS: usize = 128;

/// An expanded AES key and the powers of the hash key (`struct gcm_key_data`, aligned to a cache line).
#[repr(C, align(64))]
pub(super) struct GcmKey(pub [u64; GCM_KEY_WORDS]);

impl GcmKey {
    pub(super) const EMPTY: Self = Self([0; GCM_KEY_WORDS]);
}

/// The AES-GCM state between two calls for one packet (`struct gcm_context_data`).
pub(super) type GcmContext = [u64; 11];
/// The ChaCha20-Poly1305 state between two calls for one packet (`struct chacha20_poly1305_context_data`).
pub(super) type ChachaContext = [u64; 24];

/// Parameters: key, context, output, input, length, IV, additional data and its length, tag and its length.
pub(super) type GcmWhole = unsafe extern "C" fn(
    *const GcmKey,
    *mut GcmContext,
    *mut u8,
    *const u8,
    u64,
    *const u8,
    *const u8,
    u64,
    *mut u8,
    u64,
);
/// Parameters: key, context, IV, additional data and its length.
pub(super) type GcmInit = unsafe extern "C" fn(*const GcmKey, *mut GcmContext, *const u8, *const u8, u64);
/// Parameters: key, context, output, input, length.
pub(super) type GcmUpdate = unsafe extern "C" fn(*const GcmKey, *mut GcmContext, *mut u8, *const u8, u64);
/// Parameters: key, context, tag and its length.
pub(super) type GcmFinalize = unsafe extern "C" fn(*const GcmKey, *mut GcmContext, *mut u8, u64);
/// Parameters: the raw key, and the expanded key.
pub(super) type GcmExpandKey = unsafe extern "C" fn(*const u8, *mut GcmKey);
/// Parameters: key, context, IV, additional data and its length.
pub(super) type ChachaInit = unsafe extern "C" fn(*const u8, *mut ChachaContext, *const u8, *const u8, u64);
/// Parameters: key, context, output, input, length.
pub(super) type ChachaUpdate = unsafe extern "C" fn(*const u8, *mut ChachaContext, *mut u8, *const u8, u64);
/// Parameters: context, tag and its length.
pub(super) type ChachaFinalize = unsafe extern "C" fn(*mut ChachaContext, *mut u8, u64);

/// The functions of AES-GCM for one key length.
#[derive(Clone, Copy)]
pub(super) struct Gcm {
    pub encrypt: GcmWhole,
    pub decrypt: GcmWhole,
    pub init: GcmInit,
    pub encrypt_update: GcmUpdate,
    pub encrypt_finalize: GcmFinalize,
    pub expand_key: GcmExpandKey,
}

/// The functions of ChaCha20-Poly1305.
#[derive(Clone, Copy)]
pub(super) struct Chacha {
    pub init: ChachaInit,
    pub encrypt_update: ChachaUpdate,
    pub decrypt_update: ChachaUpdate,
    pub finalize: ChachaFinalize,
}

/// The functions of ipsec-mb that the adapter calls, in the library's variants for this processor.
pub(super) struct Functions {
    /// The functions of AES-GCM for keys of 128, 192 and 256 bits.
    pub gcm: [Gcm; 3],
    pub chacha: Chacha,
    /// The library's version as text.
    pub version: String,
}

/// Key length of each entry of [`Functions::gcm`], in bits.
const GCM_KEY_BITS: [u32; 3] = [128, 192, 256];

impl Functions {
    /// Loads the library. The library stays loaded, because `Functions` points into its code.
    pub(super) fn load() -> Result<Self, Unavailable> {
        let library = Library::open()?;
        let version = library.version()?;
        let manager = Manager::new(&library)?;
        let [gcm_128, gcm_192, gcm_256] = [0, 1, 2].map(|n| manager.gcm(n));
        Ok(Self { gcm: [gcm_128?, gcm_192?, gcm_256?], chacha: manager.chacha()?, version })
    }
}

/// The handle of the loaded library, which is never unloaded.
struct Library(NonNull<c_void>);

impl Library {
    fn open() -> Result<Self, Unavailable> {
        let name = CString::new(FILE_NAME).map_err(|_| Unavailable::NotInstalled(FILE_NAME.to_owned()))?;
        // SAFETY: the name is a null-terminated string. dlopen runs the constructors of the library, which are trusted
        // because the administrator installed the library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| Unavailable::NotInstalled(loader_error()))
    }

    /// Returns an exported function.
    ///
    /// # Safety
    /// `F` must be the function's prototype.
    unsafe fn function<F>(&self, name: &CStr) -> Result<F, Unavailable> {
        // SAFETY: the handle belongs to a loaded library, and the name is a null-terminated string.
        let found = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) });
        let found = found.ok_or_else(|| Unavailable::Layout(format!("it has no {}", name.to_string_lossy())))?;
        // SAFETY: the caller guarantees the prototype.
        Ok(unsafe { as_function(found) })
    }

    /// Returns the library's version as text, or an error if the version is not supported.
    fn version(&self) -> Result<String, Unavailable> {
        // SAFETY: `imb_get_version` has this prototype in every version that exports this function.
        let get_version: extern "C" fn() -> u32 = unsafe { self.function(c"imb_get_version")? };
        let version = get_version();
        let in_words = format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff);
        if version >> 8 == VERSION { Ok(in_words) } else { Err(Unavailable::Version(in_words)) }
    }
}

/// Returns the loader's message about the last failure.
fn loader_error() -> String {
    // SAFETY: dlerror has no precondition. The result of dlerror is null, or a string that is valid until the next call
    // of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{FILE_NAME} cannot be loaded");
    }
    // SAFETY: the pointer is not null, so it points to a null-terminated string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

type InitManager = unsafe extern "C" fn(*mut c_void, *mut c_int);
type GetError = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Converts an address to a function pointer.
///
/// # Safety
/// `address` must be the address of a function with prototype `F`.
unsafe fn as_function<F>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>(), "F is a function") }
    // SAFETY: the caller guarantees the prototype, and a function's address has the size of a pointer.
    unsafe { transmute_copy(&address) }
}

/// The library's manager, with its functions for this processor.
struct Manager {
    start: NonNull<c_void>,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Manager {
    fn new(library: &Library) -> Result<Self, Unavailable> {
        // SAFETY: these are the prototypes of version 1.3, and the library has this version.
        let get_len: extern "C" fn() -> usize = unsafe { library.function(c"imb_get_mb_mgr_size")? };
        // SAFETY: the prototypes are those of version 1.3, as for `imb_get_mb_mgr_size`.
        let allocate: extern "C" fn(u64) -> *mut c_void = unsafe { library.function(c"alloc_mb_mgr")? };
        // SAFETY: the prototypes are those of version 1.3, as for `imb_get_mb_mgr_size`.
        let free = unsafe { library.function(c"free_mb_mgr")? };
        // SAFETY: the prototypes are those of version 1.3, as for `imb_get_mb_mgr_size`.
        let init: InitManager = unsafe { library.function(c"init_mb_mgr_auto")? };
        // SAFETY: the prototypes are those of version 1.3, as for `imb_get_mb_mgr_size`.
        let get_error: GetError = unsafe { library.function(c"imb_get_errno")? };
        let len = get_len();
        if len != MANAGER_LEN {
            return Err(Unavailable::Layout(format!("the library's manager has {len} bytes, not {MANAGER_LEN}")));
        }
        // The flags 0 leave every instruction set of the processor enabled.
        let start = NonNull::new(allocate(0));
        let manager = Self { start: start.ok_or_else(|| Unavailable::Layout("no memory".to_owned()))?, free };
        // SAFETY: the library just allocated the manager. The second argument, in which the library returns the kind of
        // processor, can be null.
        unsafe { init(manager.start.as_ptr(), ptr::null_mut()) };
        // SAFETY: the library has initialized the manager.
        match unsafe { get_error(manager.start.as_ptr()) } {
            0 => Ok(manager),
            error => Err(Unavailable::Layout(format!("the library does not start on this processor (error {error})"))),
        }
    }

    /// Returns the function whose pointer is at offset `at` of the manager, and the function's name. The function must
    /// lie in the library. The name is empty if the function is not exported.
    fn function(&self, at: usize, expected: &str) -> Result<(NonNull<c_void>, String), Unavailable> {
        // SAFETY: the manager has `MANAGER_LEN` bytes, and `at` is the aligned offset of a pointer in the manager.
        let found = unsafe { self.start.as_ptr().byte_add(at).cast::<*mut c_void>().read() };
        let found = NonNull::new(found).ok_or_else(|| wrong("nothing", expected))?;
        let mut info = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        // SAFETY: dladdr accepts any address, and writes only `info`.
        if unsafe { libc::dladdr(found.as_ptr(), &raw mut info) } == 0 || !text(info.dli_fname).contains("IPSec_MB") {
            return Err(wrong("a pointer outside the library", expected));
        }
        let name = if info.dli_saddr == found.as_ptr() { text(info.dli_sname) } else { String::new() };
        Ok((found, name))
    }

    /// Returns the function whose pointer is at offset `at` of the manager, if the function's name starts with
    /// `expected`.
    fn exported<F>(&self, at: usize, expected: &str) -> Result<F, Unavailable> {
        let (found, name) = self.function(at, expected)?;
        if !name.starts_with(expected) {
            return Err(wrong(&name, expected));
        }
        // SAFETY: `F` is the prototype of the function at `at` in a manager of version 1.3 (see `Gcm` and `Chacha`).
        // The name of the function confirms that prototype.
        Ok(unsafe { as_function(found) })
    }

    /// Returns the functions of AES-GCM for keys of `GCM_KEY_BITS[n]` bits.
    fn gcm(&self, n: usize) -> Result<Gcm, Unavailable> {
        let (bits, at) = (GCM_KEY_BITS[n], |first: usize| first + n * size_of::<*const c_void>());
        Ok(Gcm {
            encrypt: self.exported(at(at::GCM_ENCRYPT), &format!("aes_gcm_enc_{bits}_"))?,
            decrypt: self.exported(at(at::GCM_DECRYPT), &format!("aes_gcm_dec_{bits}_"))?,
            init: self.exported(at(at::GCM_INIT), &format!("aes_gcm_init_{bits}_"))?,
            encrypt_update: self.exported(at(at::GCM_ENCRYPT_UPDATE), &format!("aes_gcm_enc_{bits}_update_"))?,
            encrypt_finalize: self.exported(at(at::GCM_ENCRYPT_FINALIZE), &format!("aes_gcm_enc_{bits}_finalize_"))?,
            expand_key: self.exported(at(at::GCM_EXPAND_KEY), &format!("aes_gcm_pre_{bits}_"))?,
        })
    }

    fn chacha(&self) -> Result<Chacha, Unavailable> {
        let (init, _) = self.function(at::CHACHA_INIT, "init_chacha20_poly1305")?;
        Ok(Chacha {
            // SAFETY: `ChachaInit` is the prototype of the function at this offset in a manager of version 1.3. The
            // function is not exported, so only the function's address is checked: the address lies in the library, and
            // the three next functions have the expected names.
            init: unsafe { as_function(init) },
            encrypt_update: self.exported(at::CHACHA_ENCRYPT_UPDATE, "update_enc_chacha20_poly1305_")?,
            decrypt_update: self.exported(at::CHACHA_DECRYPT_UPDATE, "update_dec_chacha20_poly1305_")?,
            finalize: self.exported(at::CHACHA_FINALIZE, "finalize_chacha20_poly1305_")?,
        })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: the library allocated the manager, and no reference to the manager remains: only function pointers
        // were copied.
        unsafe { (self.free)(self.start.as_ptr()) };
    }
}

fn wrong(found: &str, expected: &str) -> Unavailable {
    let found = if found.is_empty() { "a function without a name" } else { found };
    Unavailable::Layout(format!("the library's manager has {found} in place of {expected}"))
}

/// Returns the loader's string at this pointer, or an empty string for a null pointer.
fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the pointer is not null, so it points to a null-terminated string of a loaded library, which stays
    // loaded.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
