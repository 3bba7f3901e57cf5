//! What a guest boots: Debian's kernel, and a file system with busybox, ethtool and the virtio modules.

use super::tcp;
use crate::failure::{Doing, Result, failed};
use crate::packages::{self, BUSYBOX, ETHTOOL};
use crate::scratch::Scratch;
use offramp_lab::guest::cpio::Archive;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's newest kernel for virtual machines; it depends on the package with the kernel itself.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// What the guest needs; what these need comes with them.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
/// Bytes that the guest sends.
const PAYLOAD_LEN: usize = 8 << 20;
/// Chooses those bytes.
const PAYLOAD_SEED: u64 = 1;
/// The terminal of a program without another (Linux `Documentation/admin-guide/devices.txt`).
const CONSOLE: (u32, u32) = (5, 1);

/// The guest's first and only program of its own: it sets up the card, then does what the console says.
const INIT: &str = include_str!("init.sh");

/// A kernel and its file system.
#[derive(Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The archive of the file system.
    pub initramfs: PathBuf,
    /// What lies in the guest's `/payload`.
    pub payload: Vec<u8>,
}

impl Image {
    /// Gets the kernel, once, and builds the file system.
    ///
    /// # Errors
    /// When a package cannot be had, or has other contents than it should.
    pub fn build(cache: Option<&Path>, scratch: &Scratch) -> Result<Self> {
        let root = kernel_root(&cache.map_or_else(default_cache, Path::to_owned))?;
        let kernel = only_entry(&root.join("boot"), "vmlinuz-")?;
        let payload = tcp::random_bytes(PAYLOAD_SEED, PAYLOAD_LEN);
        let archive = file_system(&only_entry(&root.join("lib/modules"), "")?, &payload)?;
        let initramfs = scratch.path().join("initramfs");
        fs::write(&initramfs, archive).doing(initramfs.display())?;
        Ok(Self { kernel, initramfs, payload })
    }
}

fn default_cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    user.unwrap_or_else(std::env::temp_dir).join("offramp-xtask")
}

/// The directory with the unpacked kernel package.
fn kernel_root(cache: &Path) -> Result<PathBuf> {
    if kernel_package()?.is_none() {
        packages::apt_get(&["update", "-q"])?;
    }
    let Some(package) = kernel_package()? else {
        return failed(format!("apt knows no {KERNEL_PACKAGE}; this needs Debian 12 on x86-64"));
    };
    let root = cache.join(&package);
    if root.join("boot").is_dir() {
        return Ok(root);
    }
    let part = cache.join(format!("{package}.{}", std::process::id()));
    fs::create_dir_all(&part).doing(part.display())?;
    let unpacked = download_and_unpack(&package, &part);
    // Whole or not at all: another run may do the same meanwhile, and either result is good.
    let moved = unpacked.and_then(|()| match fs::rename(part.join("root"), &root) {
        Err(_) if root.join("boot").is_dir() => Ok(()),
        other => other.doing(root.display()),
    });
    let _ = fs::remove_dir_all(&part);
    moved.map(|()| root)
}

/// The package with the kernel itself, as far as apt knows.
fn kernel_package() -> Result<Option<String>> {
    let output = Command::new("apt-cache").args(["depends", KERNEL_PACKAGE]).output().doing("running apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(depends.map(str::to_owned).find(|package| package.starts_with("linux-image-")))
}

fn download_and_unpack(package: &str, part: &Path) -> Result<()> {
    eprintln!("downloading {package}");
    // apt downloads as a user of its own otherwise, which may not write here.
    let download = ["download", "-q", "-o", "APT::Sandbox::User=root", package];
    if packages::apt_get_in(part, &download).is_err() {
        // An index older than the last security update names a file that is gone.
        packages::apt_get(&["update", "-q"])?;
        packages::apt_get_in(part, &download)?;
    }
    let file = only_entry(part, package)?;
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(&file).arg(part.join("root"));
    let status = unpack.status().doing("running dpkg-deb")?;
    if status.success() { Ok(()) } else { failed(format!("dpkg-deb -x {}: {status}", file.display())) }
}

/// The one entry of a directory whose name begins so.
fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).doing(directory.display())?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    let mut found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named).collect();
    match (found.pop(), found.len()) {
        (Some(path), 0) => Ok(path),
        (_, others) => failed(format!("{}: {others} more entries \"{prefix}…\" than one", directory.display())),
    }
}

fn file_system(modules: &Path, payload: &[u8]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["proc", "sys", "dev", "bin", "tmp"] {
        archive.directory(directory);
    }
    archive.character_device("dev/console", CONSOLE.0, CONSOLE.1);
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("payload", 0o644, payload);
    let busybox = packages::need(BUSYBOX)?;
    archive.file("bin/busybox", 0o755, &fs::read(&busybox).doing(busybox.display())?);
    add_with_libraries(&mut archive, &packages::need(ETHTOOL)?)?;
    add_modules(&mut archive, modules)?;
    Ok(archive.finish())
}

/// Adds a program to `/bin`, and the libraries it needs where it looks for them.
fn add_with_libraries(archive: &mut Archive, program: &Path) -> Result<()> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    archive.file(&format!("bin/{name}"), 0o755, &fs::read(program).doing(program.display())?);
    let output = Command::new("ldd").arg(program).output().doing("running ldd")?;
    for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
        archive.file(library.trim_start_matches('/'), 0o755, &fs::read(library).doing(library)?);
    }
    Ok(())
}

/// The files that `ldd` names.
fn libraries(ldd: &str) -> Vec<&str> {
    ldd.split_whitespace().filter(|word| word.starts_with('/')).collect()
}

/// Adds the modules and what they need, and a list of them in the order in which they can be loaded.
fn add_modules(archive: &mut Archive, root: &Path) -> Result<()> {
    let mut files = BTreeMap::new();
    find_modules(&root.join("kernel"), &mut files)?;
    let mut order = Vec::new();
    for module in MODULES {
        add_module(archive, &files, module, &mut order)?;
    }
    archive.file("modules/order", 0o644, order.join("\n").as_bytes());
    Ok(())
}

fn find_modules(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).doing(directory.display())? {
        let path = entry.doing(directory.display())?.path();
        if path.is_dir() {
            find_modules(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Adds a module behind all that it needs.
fn add_module(
    archive: &mut Archive,
    files: &BTreeMap<String, PathBuf>,
    name: &str,
    order: &mut Vec<String>,
) -> Result<()> {
    if order.iter().any(|loaded| loaded == name) {
        return Ok(());
    }
    // What is no file is in the kernel itself.
    let Some(path) = files.get(name) else { return Ok(()) };
    let bytes = fs::read(path).doing(path.display())?;
    for needed in needed_by(&bytes) {
        add_module(archive, files, &needed, order)?;
    }
    archive.file(&format!("modules/{name}.ko"), 0o644, &bytes);
    order.push(name.to_owned());
    Ok(())
}

/// The modules that a module names in its `depends=` (Linux `include/linux/module.h`, `MODULE_INFO`).
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

    #[test]
    fn the_files_that_ldd_names_are_found() {
        let ldd = "\tlinux-vdso.so.1 (0x00007f)\n\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x0)\n\t\
                   /lib64/ld-linux-x86-64.so.2 (0x0)\n";
        assert_eq!(libraries(ldd), ["/lib/x86_64-linux-gnu/libmnl.so.0", "/lib64/ld-linux-x86-64.so.2"]);
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
}
