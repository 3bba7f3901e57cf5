//! Debian packages with the programs that a test harness needs.

use crate::failure::{Doing, Result, failed};
use crate::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, and its packages on Debian 12.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// Name of the program.
    pub program: &'static str,
    /// Packages to install if the program is missing.
    pub packages: &'static [&'static str],
}

/// DPDK's test program, with DPDK's drivers.
pub const TESTPMD: Needed = Needed { program: "dpdk-testpmd", packages: &["dpdk", "dpdk-dev"] };
/// QEMU for x86 machines.
pub const QEMU: Needed = Needed { program: "qemu-system-x86_64", packages: &["qemu-system-x86"] };
/// User Mode Linux: Linux as a program.
pub const UML: Needed = Needed { program: "linux.uml", packages: &["user-mode-linux"] };
/// busybox: one program as a whole user space.
pub const BUSYBOX: Needed = Needed { program: "busybox", packages: &["busybox-static"] };
/// ethtool, which switches features of a network interface.
pub const ETHTOOL: Needed = Needed { program: "ethtool", packages: &["ethtool"] };
/// Open vSwitch over DPDK, in user space.
pub const OVS_DPDK: Needed = Needed { program: "ovs-vswitchd-dpdk", packages: &["openvswitch-switch-dpdk"] };
/// `WireGuard`'s tunnel in user space.
pub const WIREGUARD_GO: Needed = Needed { program: "wireguard-go", packages: &["wireguard-go"] };
/// `WireGuard`'s set-up tool.
pub const WG: Needed = Needed { program: "wg", packages: &["wireguard-tools"] };
/// strongSwan's key daemon, with ESP in user space.
pub const CHARON: Needed = Needed {
    program: "charon-systemd",
    packages: &[
        "charon-systemd",
        "libcharon-extra-plugins",
        "libstrongswan-standard-plugins",
        "libstrongswan-extra-plugins",
    ],
};
/// strongSwan's set-up tool.
pub const SWANCTL: Needed = Needed { program: "swanctl", packages: &["strongswan-swanctl"] };

/// iproute2, which configures Linux networking.
pub const IP: Needed = Needed { program: "ip", packages: &["iproute2"] };
/// Perl, part of every Debian.
pub const PERL: Needed = Needed { program: "perl", packages: &["perl-base"] };
/// A C compiler, with the libraries for static programs.
pub const CC: Needed = Needed { program: "cc", packages: &["gcc", "libc6-dev"] };
/// valgrind, which counts instructions.
pub const VALGRIND: Needed = Needed { program: "valgrind", packages: &["valgrind"] };
/// xz, which decompresses the kernel's source.
pub const XZ: Needed = Needed { program: "xz", packages: &["xz-utils"] };

/// Returns the path of a program, found in `PATH` and in the directories of system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/lib/openvswitch-switch-dpdk"]);
    places.map(|place| Path::new(place).join(program)).find(|file| file.is_file())
}

/// Finds a program, and installs its packages if the program is missing.
///
/// # Errors
/// Returns an error if the program is missing and cannot be installed.
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

/// Runs `apt-get`, without output unless `apt-get` fails.
///
/// # Errors
/// Returns an error if `apt-get` fails. The message contains the standard error of `apt-get`.
pub fn apt_get(args: &[&str]) -> Result<()> {
    apt_get_in(Path::new("/"), args)
}

/// Runs `apt-get` in a directory, like [`apt_get`].
///
/// # Errors
/// Returns the errors of [`apt_get`].
pub fn apt_get_in(directory: &Path, args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(args).current_dir(directory).env("DEBIAN_FRONTEND", "noninteractive");
    program::output(command, None).map(drop)
}

/// Downloads a package's file into a directory. Returns the path of the file.
///
/// # Errors
/// Returns an error if the package cannot be downloaded.
pub fn download(package: &str, directory: &Path) -> Result<PathBuf> {
    eprintln!("downloading {package}");
    // By default, apt downloads as a separate user without write permission in this directory.
    let download = ["download", "-q", "-o", "APT::Sandbox::User=root", package];
    if apt_get_in(directory, &download).is_err() {
        // An outdated package index can name a file that was since replaced by a security update.
        apt_get(&["update", "-q"])?;
        apt_get_in(directory, &download)?;
    }
    only_entry(directory, &format!("{package}_"))
}

/// Unpacks a package into a directory.
///
/// # Errors
/// Returns an error if the file is not a package, or the directory cannot be written.
pub fn unpack(package: &Path, directory: &Path) -> Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").arg(package).arg(directory);
    program::output(command, None).map(drop)
}

/// Returns the only entry of a directory with this prefix.
///
/// # Errors
/// Returns an error if no entry or several entries have this prefix.
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
