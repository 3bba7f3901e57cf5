//! Debian packages for a harness.

use crate::failure::{Doing, Result, failed};
use crate::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program and its packages on Debian 12.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// The program's name.
    pub program: &'static str,
    /// The packages to install when it is missing.
    pub packages: &'static [&'static str],
}

/// DPDK's test program with its drivers.
pub const TESTPMD: Needed = Needed { program: "dpdk-testpmd", packages: &["dpdk", "dpdk-dev"] };
/// QEMU for x86 machines.
pub const QEMU: Needed = Needed { program: "qemu-system-x86_64", packages: &["qemu-system-x86"] };
/// Linux as a program.
pub const UML: Needed = Needed { program: "linux.uml", packages: &["user-mode-linux"] };
/// One program as a whole user space.
pub const BUSYBOX: Needed = Needed { program: "busybox", packages: &["busybox-static"] };
/// A tool for the features of a network interface.
pub const ETHTOOL: Needed = Needed { program: "ethtool", packages: &["ethtool"] };
/// A switch in user space over DPDK.
pub const OVS_DPDK: Needed = Needed { program: "ovs-vswitchd-dpdk", packages: &["openvswitch-switch-dpdk"] };
/// A tunnel in user space.
pub const WIREGUARD_GO: Needed = Needed { program: "wireguard-go", packages: &["wireguard-go"] };
/// Its set-up tool.
pub const WG: Needed = Needed { program: "wg", packages: &["wireguard-tools"] };
/// The key daemon `strongSwan` with ESP in user space.
pub const CHARON: Needed = Needed {
    program: "charon-systemd",
    packages: &[
        "charon-systemd",
        "libcharon-extra-plugins",
        "libstrongswan-standard-plugins",
        "libstrongswan-extra-plugins",
    ],
};
/// Its set-up tool.
pub const SWANCTL: Needed = Needed { program: "swanctl", packages: &["strongswan-swanctl"] };

/// The set-up tools of Linux' network.
pub const IP: Needed = Needed { program: "ip", packages: &["iproute2"] };
/// A language on every Debian.
pub const PERL: Needed = Needed { program: "perl", packages: &["perl-base"] };
/// A C compiler, with the libraries for static programs.
pub const CC: Needed = Needed { program: "cc", packages: &["gcc", "libc6-dev"] };
/// A counter of instructions.
pub const VALGRIND: Needed = Needed { program: "valgrind", packages: &["valgrind"] };
/// The decompressor for the kernel's source.
pub const XZ: Needed = Needed { program: "xz", packages: &["xz-utils"] };

/// Returns the path of a program, by `PATH` and the directories of system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/lib/openvswitch-switch-dpdk"]);
    places.map(|place| Path::new(place).join(program)).find(|file| file.is_file())
}

/// Finds a program, and installs its packages when it is missing.
///
/// # Errors
/// When it is missing and cannot be installed.
pub fn need(needed: Needed) -> Result<PathBuf> {
    if let Some(path) = find(needed.program) {
        return Ok(path);
    }
    eprintln!("installing {} (for {})", needed.packages.join(", "), needed.program);
    apt_get(&["update", "-q"])?;
    let mut args = vec!["install", "-y", "-q", "--no-install-recommends"];
    args.extend(needed.packages);
    apt_get(&args)?;
    let found = find(needed.program);
    found.map_or_else(|| failed(format!("{} is still missing; install it by hand", needed.program)), Ok)
}

/// Runs `apt-get`, quietly unless it fails.
///
/// # Errors
/// When it fails; its output is in the message.
pub fn apt_get(args: &[&str]) -> Result<()> {
    apt_get_in(Path::new("/"), args)
}

/// Runs `apt-get` like [`apt_get`], in a directory.
///
/// # Errors
/// As [`apt_get`].
pub fn apt_get_in(directory: &Path, args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(args).current_dir(directory).env("DEBIAN_FRONTEND", "noninteractive");
    program::output(command, None).map(drop)
}

/// Downloads a package's file into a directory.
///
/// # Errors
/// When it cannot be had.
pub fn download(package: &str, directory: &Path) -> Result<PathBuf> {
    eprintln!("downloading {package}");
    // By default apt downloads as a user of its own, without the right to write here.
    let download = ["download", "-q", "-o", "APT::Sandbox::User=root", package];
    if apt_get_in(directory, &download).is_err() {
        // An index older than the last security update names a missing file.
        apt_get(&["update", "-q"])?;
        apt_get_in(directory, &download)?;
    }
    only_entry(directory, &format!("{package}_"))
}

/// Unpacks a package into a directory.
///
/// # Errors
/// When it is no package, or the directory cannot be written.
pub fn unpack(package: &Path, directory: &Path) -> Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").arg(package).arg(directory);
    program::output(command, None).map(drop)
}

/// Returns the one entry of a directory with this prefix.
///
/// # Errors
/// When there is none, or there are several.
pub fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).doing(directory.display())?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    let mut found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named).collect();
    match (found.pop(), found.len()) {
        (Some(path), 0) => Ok(path),
        (_, others) => {
            failed(format!("{}: expected one entry \"{prefix}…\"; {others} more found", directory.display()))
        }
    }
}
