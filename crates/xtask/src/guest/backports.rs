//! QEMU and Linux from Debian 13's backports, unpacked into a cache directory without installing the packages.

use super::kernel::default_cache;
use offramp_testbed::failure::{Doing, Result, failed};
use offramp_testbed::guest::kernel::Kernel;
use offramp_testbed::packages;
use offramp_testbed::program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUITE: &str = "trixie-backports";
/// File with the keys of trusted packages.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Packages for QEMU. `base-files` has the links from `/lib` to `/usr/lib` on the loader's path.
const QEMU_PACKAGES: [&str; 2] = ["qemu-system-x86", "base-files"];
/// The package that depends on the package of the newest kernel.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// Prefixes of the packages with the kernel, its modules, and the list of built-in modules.
const KERNEL_PARTS: [&str; 3] = ["linux-binary", "linux-modules", "linux-base"];
/// Script that starts QEMU with its own loader and libraries.
const QEMU_SCRIPT: &str = r#"#!/bin/sh
root=$(dirname "$0")
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/qemu-system-x86_64" \
    -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
"#;

/// A QEMU with the generic vhost-user device (10.2 and later), and a Linux kernel newer than the system's kernel.
#[derive(Debug)]
pub struct Backports {
    /// Path of the QEMU program.
    pub qemu: PathBuf,
    /// The guest's kernel.
    pub kernel: Kernel,
}

impl Backports {
    /// Returns QEMU and the kernel from the cache, after a download if necessary.
    ///
    /// # Errors
    /// Returns an error if the packages are not available.
    pub fn get(cache: Option<&Path>) -> Result<Self> {
        let root = cache.map_or_else(default_cache, Path::to_owned).join(SUITE);
        if !root.is_dir() {
            download_into(&root)?;
        }
        let modules = packages::only_entry(&root.join("usr/lib/modules"), "")?;
        let kernel = Kernel::find(Some(&modules.join("vmlinuz")), Some(&modules)).doing("the guest's kernel")?;
        Ok(Self { qemu: root.join("qemu"), kernel })
    }

    /// Returns the first line of QEMU's version output.
    ///
    /// # Errors
    /// Returns an error if QEMU does not run.
    pub fn qemu_version(&self) -> Result<String> {
        let mut command = Command::new(&self.qemu);
        command.arg("--version");
        Ok(program::output(command, None)?.lines().next().unwrap_or_default().to_owned())
    }
}

/// Downloads and unpacks all packages into a directory, atomically.
fn download_into(root: &Path) -> Result<()> {
    let part = root.with_extension(std::process::id().to_string());
    fs::create_dir_all(&part).doing(part.display())?;
    let unpacked = AptRoot::new(&part).and_then(|apt| unpack_into(&part.join("root"), &apt));
    // Another run of this program may have unpacked the same packages first. The directories of both runs are valid.
    let moved = unpacked.and_then(|()| match fs::rename(part.join("root"), root) {
        Err(_) if root.is_dir() => Ok(()),
        other => other.doing(root.display()),
    });
    let _ = fs::remove_dir_all(&part);
    moved
}

fn unpack_into(root: &Path, apt: &AptRoot) -> Result<()> {
    eprintln!("downloading QEMU and Linux from {SUITE}");
    apt.get(&["update"])?;
    let depends = apt.cache(&["depends", KERNEL_PACKAGE])?;
    let mut images = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let Some(version) = images.next() else { return failed(format!("{SUITE} has no {KERNEL_PACKAGE}")) };
    apt.get(&[&["install", "-y", "--download-only"][..], &QEMU_PACKAGES].concat())?;
    for part in KERNEL_PARTS {
        apt.get(&["download", &format!("{part}-{version}")])?;
    }
    for file in apt.packages()? {
        packages::unpack(&file, root)?;
    }
    let script = root.join("qemu");
    fs::write(&script, QEMU_SCRIPT).doing(script.display())?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).doing(script.display())
}

/// A directory in which apt works as in an empty system, with the sources of [`SUITE`].
struct AptRoot {
    debs: PathBuf,
    options: Vec<String>,
}

impl AptRoot {
    fn new(directory: &Path) -> Result<Self> {
        let at = |name: &str| directory.join(name).to_string_lossy().into_owned();
        for name in ["lists/partial", "debs/partial"] {
            fs::create_dir_all(at(name)).doing(directory.display())?;
        }
        let sources = format!(
            "Types: deb\nURIs: {}\nSuites: {} {SUITE}\nComponents: main\nSigned-By: {KEYS}\n",
            mirror()?,
            SUITE.trim_end_matches("-backports")
        );
        fs::write(at("suite.sources"), sources).doing(at("suite.sources"))?;
        fs::write(at("status"), "").doing(at("status"))?;
        let settings = [
            format!("Dir::Etc::SourceList={}", at("suite.sources")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::Status={}", at("status")),
            format!("Dir::Cache={}", at("")),
            format!("Dir::Cache::Archives={}", at("debs")),
            format!("APT::Default-Release={SUITE}"),
            "APT::Install-Recommends=false".to_owned(),
            // By default, apt downloads as a separate user, which cannot write to this directory.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect();
        Ok(Self { debs: directory.join("debs"), options })
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let options = self.options.iter().map(String::as_str);
        options.chain(["-q"]).chain(arguments.iter().copied()).collect()
    }

    fn get(&self, arguments: &[&str]) -> Result<()> {
        packages::apt_get_in(&self.debs, &self.arguments(arguments))
    }

    fn cache(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("apt-cache");
        command.args(self.arguments(arguments));
        program::output(command, None)
    }

    /// Returns the files of the downloaded packages.
    fn packages(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.debs).doing(self.debs.display())?;
        let files = entries.flatten().map(|entry| entry.path());
        Ok(files.filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect())
    }
}

/// Returns the mirror from which the system's packages come.
fn mirror() -> Result<String> {
    let targets = ["indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"];
    let mut command = Command::new("apt-get");
    command.args(targets);
    let sites = program::output(command, None)?;
    match sites.lines().next() {
        Some(site) => Ok(site.to_owned()),
        None => failed("apt knows no packages of Debian; run apt-get update, on Debian"),
    }
}
