//! The guests' kernel: a Debian kernel, downloaded once and cached.

use super::backports::Backports;
use offramp_testbed::failure::{Doing, Result, failed};
use offramp_testbed::packages;
use offramp_testbed::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's newest kernel for virtual machines. This package depends on the package that contains the kernel.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// The path of a kernel for guests; its modules lie in `lib/modules/VERSION` beside the kernel's directory.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the kernel (default: offramp-xtask in the user's cache directory)
    #[arg(long, value_name = "DIRECTORY")]
    cache: Option<PathBuf>,
    /// Use the kernel of `control-queue-matrix`, from Debian 13's backports; also downloads QEMU
    #[arg(long)]
    backports: bool,
}

/// Prints the path of the kernel.
///
/// # Errors
/// Returns an error if the kernel is missing and cannot be downloaded.
pub fn run(args: &Args) -> Result<()> {
    let cache = args.cache.as_deref();
    let image = if args.backports { Backports::get(cache)?.kernel.path } else { path(cache)? };
    println!("{}", image.display());
    Ok(())
}

/// Returns the kernel in `cache` or in the user's cache directory. Downloads a missing kernel.
///
/// # Errors
/// Returns an error if the package is not available, or has unexpected contents.
pub fn path(cache: Option<&Path>) -> Result<PathBuf> {
    let root = kernel_root(&cache.map_or_else(default_cache, Path::to_owned))?;
    packages::only_entry(&root.join("boot"), "vmlinuz-")
}

/// Returns the default cache directory for the guests' packages.
pub fn default_cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    user.unwrap_or_else(std::env::temp_dir).join("offramp-xtask")
}

/// Returns the directory with the unpacked kernel package.
fn kernel_root(cache: &Path) -> Result<PathBuf> {
    if kernel_package().is_none() {
        packages::apt_get(&["update", "-q"])?;
    }
    let Some(package) = kernel_package() else {
        return failed(format!("apt knows no {KERNEL_PACKAGE}; this needs Debian 12 on x86-64"));
    };
    let root = cache.join(&package);
    if root.join("boot").is_dir() {
        return Ok(root);
    }
    let part = cache.join(format!("{package}.{}", std::process::id()));
    fs::create_dir_all(&part).doing(part.display())?;
    let unpacked = download_and_unpack(&package, &part);
    // Rename the directory atomically. Another run of this program may have created the same directory first. The
    // directories of both runs are valid.
    let moved = unpacked.and_then(|()| match fs::rename(part.join("root"), &root) {
        Err(_) if root.join("boot").is_dir() => Ok(()),
        other => other.doing(root.display()),
    });
    let _ = fs::remove_dir_all(&part);
    moved.map(|()| root)
}

/// Returns the name of the package that contains the kernel, as listed by apt.
fn kernel_package() -> Option<String> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", KERNEL_PACKAGE]);
    // The command fails if apt has no package index.
    let text = program::output(command, None).unwrap_or_default();
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    depends.map(str::to_owned).find(|package| package.starts_with("linux-image-"))
}

fn download_and_unpack(package: &str, part: &Path) -> Result<()> {
    let file = packages::download(package, part)?;
    packages::unpack(&file, &part.join("root"))
}
