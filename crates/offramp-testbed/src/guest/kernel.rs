//! Selection of the guest's kernel, its version, and its modules.

use super::GuestError;
use super::program::{self, by_version};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory searched for kernels.
const BOOT: &str = "/boot";
/// Prefix of kernel file names.
const NAME: &str = "vmlinuz-";
/// The set-up header of an x86 kernel (Linux `Documentation/arch/x86/boot.rst`): its magic number, the pointer to the
/// version, and the pointer's base.
const HEADER_MARK: &[u8] = b"HdrS";
const HEADER_MARK_AT: usize = 0x202;
const VERSION_POINTER_AT: usize = 0x20e;
const VERSION_BASE: usize = 0x200;
/// Number of bytes read to find a kernel's version: the range of the 16-bit pointer, its base, and room for a long
/// version.
const HEADER_LEN: u64 = 0x1_0400;

/// Module directory of the User Mode Linux package, with one subdirectory for each version.
const UML_MODULES: &str = "/usr/lib/uml/modules";

/// A kernel and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Path of the kernel file to boot.
    pub path: PathBuf,
    /// Version as in `uname -r`.
    pub version: String,
    /// Directory of the kernel's modules.
    pub modules: PathBuf,
    /// Modules for the guest's network card.
    pub card: &'static [&'static str],
}

impl Kernel {
    /// Finds the kernel at `path`, or the newest in `/boot`. Without `modules`, the kernel's modules are searched in
    /// this order:
    ///
    /// 1. in the kernel's directory
    /// 2. in `lib/modules/VERSION` and `usr/lib/modules/VERSION` next to the kernel's directory
    /// 3. in `/lib/modules/VERSION`
    ///
    /// # Errors
    /// Returns an error if there is no kernel, the file is not a kernel, or there are no modules for the kernel.
    pub fn find(path: Option<&Path>, modules: Option<&Path>) -> Result<Self, GuestError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => newest(Path::new(BOOT)).ok_or_else(|| GuestError::NoKernel(Path::new(BOOT).join("vmlinuz-*")))?,
        };
        let version = read_version(&path)?;
        let directory = modules.map_or_else(|| modules_of(&path, &version), Path::to_owned);
        if !directory.join("kernel").is_dir() {
            return Err(GuestError::NoModules { directory, version });
        }
        Ok(Self { path, version, modules: directory, card: &["virtio_pci", "virtio_net"] })
    }

    /// Finds User Mode Linux, with its modules in `modules` or in Debian's directory.
    ///
    /// # Errors
    /// Returns an error if User Mode Linux is not installed, or its modules are missing.
    pub fn user_mode(modules: Option<&Path>) -> Result<Self, GuestError> {
        let path = program::find(program::UML).ok_or(GuestError::NoUml(program::UML))?;
        let said = Command::new(&path).arg("--version").output().map_err(GuestError::at(&path))?;
        let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let directory = modules.map_or_else(|| Path::new(UML_MODULES).join(&version), Path::to_owned);
        if !directory.join("kernel").is_dir() {
            return Err(GuestError::NoModules { directory, version });
        }
        Ok(Self { path, version, modules: directory, card: &["virtio_net"] })
    }

    /// Reads modules and their dependencies. Returns the modules' names and contents in load order.
    ///
    /// # Errors
    /// Returns an error if a module is neither a file nor built into the kernel, or cannot be read.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>, GuestError> {
        let mut files = BTreeMap::new();
        find_modules(&self.modules.join("kernel"), &mut files)?;
        let builtin = fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        let mut loader =
            Loader { files, builtin: builtin.lines().filter_map(module_name).collect(), loaded: Vec::new() };
        for module in wanted {
            if !loader.add(module)? {
                let (module, directory) = ((*module).to_owned(), self.modules.clone());
                return Err(GuestError::NoModule { module, directory });
            }
        }
        Ok(loader.loaded)
    }
}

/// Returns the directory of a kernel's modules. Debian's packages place a kernel in `boot`. Since Linux 7.2, the
/// packages place the kernel in the directory of its modules.
fn modules_of(kernel: &Path, version: &str) -> PathBuf {
    let directory = kernel.parent().unwrap_or(kernel);
    let root = directory.parent().unwrap_or(directory);
    let beside = ["lib/modules", "usr/lib/modules"].map(|modules| root.join(modules).join(version));
    let mut known = [directory.to_owned()].into_iter().chain(beside);
    let system = || Path::new("/lib/modules").join(version);
    known.find(|directory| directory.join("kernel").is_dir()).unwrap_or_else(system)
}

/// Returns the path of the newest kernel in a directory.
fn newest(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let version = |path: &PathBuf| Some(path.file_name()?.to_str()?.strip_prefix(NAME)?.to_owned());
    let kernels = entries.filter_map(|path| Some((version(&path)?, path)));
    kernels.max_by(|a, b| by_version(&a.0, &b.0)).map(|(_, path)| path)
}

fn read_version(path: &Path) -> Result<String, GuestError> {
    let mut header = Vec::new();
    let file = fs::File::open(path).map_err(GuestError::at(path))?;
    file.take(HEADER_LEN).read_to_end(&mut header).map_err(GuestError::at(path))?;
    version(&header)
        .ok_or_else(|| GuestError::BadKernel { kernel: path.to_owned(), why: "not an x86 kernel".to_owned() })
}

/// Returns the version in a kernel's set-up header, up to the first space or zero byte.
fn version(kernel: &[u8]) -> Option<String> {
    if kernel.get(HEADER_MARK_AT..)?.get(..HEADER_MARK.len())? != HEADER_MARK {
        return None;
    }
    let pointer = kernel.get(VERSION_POINTER_AT..)?.first_chunk().map(|&bytes| u16::from_le_bytes(bytes))?;
    let text = kernel.get(VERSION_BASE + usize::from(pointer)..)?;
    let word = text.split(|&byte| byte == b' ' || byte == 0).next()?;
    let word = std::str::from_utf8(word).ok()?;
    // Other characters are refused, because paths are built from the version.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+~".contains(c);
    (pointer != 0 && !word.is_empty() && word.chars().all(is_plain)).then(|| word.to_owned())
}

/// Collects modules in load order: each module after its dependencies.
struct Loader {
    files: BTreeMap<String, PathBuf>,
    builtin: Vec<String>,
    loaded: Vec<(String, Vec<u8>)>,
}

impl Loader {
    /// Adds a module after its dependencies. Returns `false` if the module is neither a file nor built into the kernel.
    fn add(&mut self, name: &str) -> Result<bool, GuestError> {
        if self.loaded.iter().any(|(loaded, _)| loaded == name) {
            return Ok(true);
        }
        let Some(path) = self.files.remove(name) else { return Ok(self.builtin.iter().any(|b| b == name)) };
        let bytes = read_module(&path)?;
        for needed in needed_by(&bytes) {
            if !self.add(&needed)? {
                let directory = path.parent().unwrap_or(&path).to_owned();
                return Err(GuestError::NoModule { module: needed, directory });
            }
        }
        self.loaded.push((name.to_owned(), bytes));
        Ok(true)
    }
}

fn find_modules(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), GuestError> {
    for entry in fs::read_dir(directory).map_err(GuestError::at(directory))? {
        let entry = entry.map_err(GuestError::at(directory))?;
        let path = entry.path();
        if entry.file_type().map_err(GuestError::at(&path))?.is_dir() {
            find_modules(&path, files)?;
        } else if let Some(name) = module_name(&path.to_string_lossy()) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Returns the kernel's name of a module, from the path of the module's file, compressed or not.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (stem, packed) = file.split_once(".ko")?;
    matches!(packed, "" | ".xz" | ".zst" | ".gz").then(|| stem.replace('-', "_"))
}

/// Reads a module's file, and decompresses the contents if necessary.
fn read_module(path: &Path) -> Result<Vec<u8>, GuestError> {
    let (program, package) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => ("xz", "xz-utils"),
        Some("zst") => ("zstd", "zstd"),
        Some("gz") => ("gzip", "gzip"),
        _ => return fs::read(path).map_err(GuestError::at(path)),
    };
    let failed = |why: String| GuestError::Unpack { path: path.to_owned(), program, package, why };
    let output = Command::new(program).arg("-dc").arg(path).output().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// Returns the modules in a module's `depends=` (Linux `include/linux/module.h`, `MODULE_INFO`).
fn needed_by(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(list).replace('-', "_");
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header of a kernel with the version `text`.
    fn kernel(text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x300];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x80u16.to_le_bytes());
        bytes[0x280..0x280 + text.len()].copy_from_slice(text);
        bytes
    }

    #[test]
    fn a_kernel_says_its_version() {
        assert_eq!(version(&kernel(b"6.1.0-56-cloud-amd64 (a@b) #1 SMP")).as_deref(), Some("6.1.0-56-cloud-amd64"));
        assert_eq!(version(&kernel(b"7.0.0\0rest")).as_deref(), Some("7.0.0"));
    }

    #[test]
    fn what_is_no_kernel_has_no_version() {
        assert_eq!(version(b""), None);
        assert_eq!(version(&kernel(b"../../etc ")), None);
        assert_eq!(version(&kernel(b"\0")), None);
        assert_eq!(version(&kernel(b"6.1 ")[..0x210]), None);
        assert_eq!(version(&[0; 0x300]), None);
    }

    #[test]
    fn modules_are_found_where_a_package_puts_them() {
        let root = std::env::temp_dir().join(format!("offramp-packages-{}", std::process::id()));
        let found = ["lib/modules/1", "usr/lib/modules/2"].map(|place| {
            fs::create_dir_all(root.join(place).join("kernel")).unwrap();
            let version = &place[place.len() - 1..];
            let from = |kernel: &str| modules_of(&root.join(kernel), version) == root.join(place);
            from("boot/vmlinuz") && from(&format!("{place}/vmlinuz"))
        });
        let elsewhere = modules_of(&root.join("boot/vmlinuz"), "3");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [true, true]);
        assert_eq!(elsewhere, Path::new("/lib/modules/3"));
    }

    #[test]
    fn a_module_that_cannot_be_unpacked_names_the_package_of_the_program() {
        let path = std::env::temp_dir().join(format!("offramp-module-{}.ko.xz", std::process::id()));
        fs::write(&path, "not compressed").unwrap();
        let message = read_module(&path).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(message.ends_with("; install xz (Debian: apt-get install xz-utils)"), "{message}");
    }

    #[test]
    fn what_a_module_needs_is_read_from_it() {
        assert_eq!(
            needed_by(b"\x7fELF\0license=GPL\0depends=net-failover,virtio\0name=x\0"),
            ["net_failover", "virtio"]
        );
        assert!(needed_by(b"\0depends=\0name=virtio\0").is_empty());
        assert!(needed_by(b"no module").is_empty());
    }

    #[test]
    fn a_modules_name_is_the_kernels_whatever_packs_its_file() {
        assert_eq!(module_name("kernel/drivers/net/virtio-net.ko.xz").as_deref(), Some("virtio_net"));
        assert_eq!(module_name("virtio_pci.ko").as_deref(), Some("virtio_pci"));
        assert_eq!(module_name("modules.order"), None);
        assert_eq!(module_name("a.ko.bak"), None);
    }

    #[test]
    fn modules_come_behind_what_they_need_and_what_is_in_the_kernel_is_left_out() {
        let root = std::env::temp_dir().join(format!("offramp-modules-{}", std::process::id()));
        let directory = root.join("kernel/net");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("a.ko"), b"\0depends=b,c\0").unwrap();
        fs::write(directory.join("b.ko"), b"\0depends=c\0").unwrap();
        fs::write(root.join("modules.builtin"), "kernel/lib/c.ko\n").unwrap();
        let kernel = Kernel { path: root.clone(), version: "1".to_owned(), modules: root.clone(), card: &[] };
        let names: Vec<_> = kernel.modules(&["a", "b", "c"]).unwrap().into_iter().map(|(name, _)| name).collect();
        let missing = kernel.modules(&["d"]).unwrap_err().to_string();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(names, ["b", "a"]);
        assert!(missing.contains("no module d"), "{missing}");
    }
}
