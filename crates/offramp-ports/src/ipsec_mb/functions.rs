//! Finds the library's functions. Prototypes, structures and their sizes are those of the documented
//! interface of version 1.3 (`intel-ipsec-mb.h`).

use super::{FILE_NAME, Unavailable};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::{self, NonNull};

/// Major and minor version with known structures.
const VERSION: u32 = 0x0103;
/// Result of `imb_get_mb_mgr_size` in this version: the manager and its job queues.
const MANAGER_LEN: usize = 200_744;
/// The offsets of the functions in the manager, in bytes from its start.
mod at {
    /// The first of a group of functions, one each for keys of 128, 192 and 256 bits.
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

/// `sizeof(struct gcm_key_data)` in words, up to the whole cache line.
const GCM_KEY_WORDS: usize = 128;

/// An expanded AES key and the powers of the hash key (`struct gcm_key_data`, on a cache line).
#[repr(C, align(64))]
pub(super) struct GcmKey(pub [u64; GCM_KEY_WORDS]);

impl GcmKey {
    pub(super) const EMPTY: Self = Self([0; GCM_KEY_WORDS]);
}

/// State between two calls for one packet (`struct gcm_context_data`).
pub(super) type GcmContext = [u64; 11];
/// State between two calls for one packet (`struct chacha20_poly1305_context_data`).
pub(super) type ChachaContext = [u64; 24];

/// Key, context, out, in, length, IV, additional data and its length, tag and its length.
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
/// Key, context, IV, additional data and its length.
pub(super) type GcmInit = unsafe extern "C" fn(*const GcmKey, *mut GcmContext, *const u8, *const u8, u64);
/// Key, context, out, in, length.
pub(super) type GcmUpdate = unsafe extern "C" fn(*const GcmKey, *mut GcmContext, *mut u8, *const u8, u64);
/// Key, context, tag and its length.
pub(super) type GcmFinalize = unsafe extern "C" fn(*const GcmKey, *mut GcmContext, *mut u8, u64);
/// Key as it comes, and expanded.
pub(super) type GcmExpandKey = unsafe extern "C" fn(*const u8, *mut GcmKey);
/// Key, context, IV, additional data and its length.
pub(super) type ChachaInit = unsafe extern "C" fn(*const u8, *mut ChachaContext, *const u8, *const u8, u64);
/// Key, context, out, in, length.
pub(super) type ChachaUpdate = unsafe extern "C" fn(*const u8, *mut ChachaContext, *mut u8, *const u8, u64);
/// Context, tag and its length.
pub(super) type ChachaFinalize = unsafe extern "C" fn(*mut ChachaContext, *mut u8, u64);

/// Returns AES-GCM with keys of one length.
#[derive(Clone, Copy)]
pub(super) struct Gcm {
    pub encrypt: GcmWhole,
    pub decrypt: GcmWhole,
    pub init: GcmInit,
    pub encrypt_update: GcmUpdate,
    pub encrypt_finalize: GcmFinalize,
    pub expand_key: GcmExpandKey,
}

/// ChaCha20-Poly1305.
#[derive(Clone, Copy)]
pub(super) struct Chacha {
    pub init: ChachaInit,
    pub encrypt_update: ChachaUpdate,
    pub decrypt_update: ChachaUpdate,
    pub finalize: ChachaFinalize,
}

/// All functions in use, as the library chose them for this processor.
pub(super) struct Functions {
    /// For keys of 128, 192 and 256 bits.
    pub gcm: [Gcm; 3],
    pub chacha: Chacha,
    /// The version, in the library's words.
    pub version: String,
}

/// Key bits of each entry of [`Functions::gcm`].
const GCM_KEY_BITS: [u32; 3] = [128, 192, 256];

impl Functions {
    /// Loads the library. It stays loaded, because `Functions` points into it.
    pub(super) fn load() -> Result<Self, Unavailable> {
        let library = Library::open()?;
        let version = library.version()?;
        let manager = Manager::new(&library)?;
        let [gcm_128, gcm_192, gcm_256] = [0, 1, 2].map(|n| manager.gcm(n));
        Ok(Self { gcm: [gcm_128?, gcm_192?, gcm_256?], chacha: manager.chacha()?, version })
    }
}

/// The library, loaded for good.
struct Library(NonNull<c_void>);

impl Library {
    fn open() -> Result<Self, Unavailable> {
        let name = CString::new(FILE_NAME).map_err(|_| Unavailable::NotInstalled(FILE_NAME.to_owned()))?;
        // SAFETY: the name is a string that ends in 0. The administrator installed this library, so its
        // constructors, run by dlopen, are trusted to do nothing unsound.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| Unavailable::NotInstalled(loader_error()))
    }

    /// Returns an exported function.
    ///
    /// # Safety
    /// `F` must be the function's prototype.
    unsafe fn function<F>(&self, name: &CStr) -> Result<F, Unavailable> {
        // SAFETY: the handle is of a loaded library, the name a string that ends in 0.
        let found = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) });
        let found = found.ok_or_else(|| Unavailable::Layout(format!("it has no {}", name.to_string_lossy())))?;
        // SAFETY: the caller vouches for the prototype.
        Ok(unsafe { as_function(found) })
    }

    /// Returns its version in words, if the version is known.
    fn version(&self) -> Result<String, Unavailable> {
        // SAFETY: `imb_get_version` has this prototype in every version that has it.
        let get_version: extern "C" fn() -> u32 = unsafe { self.function(c"imb_get_version")? };
        let version = get_version();
        let in_words = format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff);
        if version >> 8 == VERSION { Ok(in_words) } else { Err(Unavailable::Version(in_words)) }
    }
}

/// Returns the loader's message of the last failure.
fn loader_error() -> String {
    // SAFETY: dlerror has no precondition. It returns 0, or a string that stays until the next call of the loader in
    // this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{FILE_NAME} cannot be loaded");
    }
    // SAFETY: not 0, so a string that ends in 0.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

type InitManager = unsafe extern "C" fn(*mut c_void, *mut c_int);
type GetError = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Takes an address for a function.
///
/// # Safety
/// A function with prototype `F` must lie there.
unsafe fn as_function<F>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>(), "F is a function") }
    // SAFETY: the caller vouches for the prototype, and a function's address has the size of a pointer.
    unsafe { transmute_copy(&address) }
}

/// The library's manager, with its functions for this processor.
struct Manager {
    start: NonNull<c_void>,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Manager {
    fn new(library: &Library) -> Result<Self, Unavailable> {
        // SAFETY: these are the prototypes of version 1.3, which the library is.
        let get_len: extern "C" fn() -> usize = unsafe { library.function(c"imb_get_mb_mgr_size")? };
        // SAFETY: as above.
        let allocate: extern "C" fn(u64) -> *mut c_void = unsafe { library.function(c"alloc_mb_mgr")? };
        // SAFETY: as above.
        let free = unsafe { library.function(c"free_mb_mgr")? };
        // SAFETY: as above.
        let init: InitManager = unsafe { library.function(c"init_mb_mgr_auto")? };
        // SAFETY: as above.
        let get_error: GetError = unsafe { library.function(c"imb_get_errno")? };
        let len = get_len();
        if len != MANAGER_LEN {
            return Err(Unavailable::Layout(format!("the library's manager has {len} bytes, not {MANAGER_LEN}")));
        }
        // Flags 0 switch no instruction set off.
        let start = NonNull::new(allocate(0));
        let manager = Self { start: start.ok_or_else(|| Unavailable::Layout("no memory".to_owned()))?, free };
        // SAFETY: the manager was just allocated by the library; the place for the kind of processor may be 0.
        unsafe { init(manager.start.as_ptr(), ptr::null_mut()) };
        // SAFETY: the manager was set up by the library.
        match unsafe { get_error(manager.start.as_ptr()) } {
            0 => Ok(manager),
            error => Err(Unavailable::Layout(format!("the library does not start on this processor (error {error})"))),
        }
    }

    /// Returns the function at this offset and its name. The function must lie in the library; the name is empty if it
    /// is not exported.
    fn function(&self, at: usize, expected: &str) -> Result<(NonNull<c_void>, String), Unavailable> {
        // SAFETY: the manager has `MANAGER_LEN` bytes, and `at` is the offset of a pointer in it, aligned as the
        // structure is.
        let found = unsafe { self.start.as_ptr().byte_add(at).cast::<*mut c_void>().read() };
        let found = NonNull::new(found).ok_or_else(|| wrong("nothing", expected))?;
        let mut info = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        // SAFETY: any address may be asked for; `info` is written.
        if unsafe { libc::dladdr(found.as_ptr(), &raw mut info) } == 0 || !text(info.dli_fname).contains("IPSec_MB") {
            return Err(wrong("a pointer outside the library", expected));
        }
        let name = if info.dli_saddr == found.as_ptr() { text(info.dli_sname) } else { String::new() };
        Ok((found, name))
    }

    /// Returns a function with the expected start of its name.
    fn exported<F>(&self, at: usize, expected: &str) -> Result<F, Unavailable> {
        let (found, name) = self.function(at, expected)?;
        if !name.starts_with(expected) {
            return Err(wrong(&name, expected));
        }
        // SAFETY: `F` is the prototype of the function at `at` in a manager of version 1.3 (see `Gcm` and
        // `Chacha`), and the function bears the name of one with that prototype.
        Ok(unsafe { as_function(found) })
    }

    /// Returns AES-GCM with keys of `GCM_KEY_BITS[n]` bits.
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
            // SAFETY: `ChachaInit` is the prototype of the function there in a manager of version 1.3. The function is
            // not exported: it lies in the library, and its three neighbours bear the expected names.
            init: unsafe { as_function(init) },
            encrypt_update: self.exported(at::CHACHA_ENCRYPT_UPDATE, "update_enc_chacha20_poly1305_")?,
            decrypt_update: self.exported(at::CHACHA_DECRYPT_UPDATE, "update_dec_chacha20_poly1305_")?,
            finalize: self.exported(at::CHACHA_FINALIZE, "finalize_chacha20_poly1305_")?,
        })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: the library allocated it, and nobody uses it any more: functions alone were taken out.
        unsafe { (self.free)(self.start.as_ptr()) };
    }
}

fn wrong(found: &str, expected: &str) -> Unavailable {
    let found = if found.is_empty() { "a function without a name" } else { found };
    Unavailable::Layout(format!("the library's manager has {found} in place of {expected}"))
}

/// Returns the loader's string at this pointer; an empty one for 0.
fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not 0, so a string of a loaded library, which ends in 0; the library stays loaded.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
