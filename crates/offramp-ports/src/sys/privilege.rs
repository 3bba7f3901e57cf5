//! The privilege to create network namespaces and TAP interfaces, with or without root.

use std::fs;
use std::io;

use caps::CapSet;
pub use caps::Capability;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use super::NetNs;

/// The device that creates TAP interfaces.
const TUN_DEVICE: &str = "/dev/net/tun";

/// The reason why this process cannot set up its networks.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel refuses a user and network namespace.
    #[error(
        "user and network namespaces are refused ({0}); run as root, or allow them: \
         sysctl user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
         kernel.apparmor_restrict_unprivileged_userns=0 (those that exist here), or in a container: --privileged"
    )]
    UserNamespace(io::Error),
    /// The process has the privilege, but the kernel refuses a network namespace.
    #[error("a network namespace is refused ({0}); in a container: --cap-add SYS_ADMIN, NET_ADMIN or --privileged")]
    NetworkNamespace(io::Error),
    /// The user namespace was created, but its identity map cannot be written.
    #[error("user namespaces are refused: cannot write {file} ({cause}); run as root")]
    IdentityMap {
        /// The file of the user or group id map that cannot be written.
        file: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// `/dev/net/tun` does not exist.
    #[error("/dev/net/tun does not exist; load the driver (modprobe tun), or in a container: --device /dev/net/tun")]
    NoTun,
    /// `/dev/net/tun` cannot be opened.
    #[error("/dev/net/tun cannot be opened ({0}); run as root, or let this user open it (chmod 666 /dev/net/tun)")]
    Tun(io::Error),
    /// The process already runs several threads.
    #[error("a process with several threads cannot enter a user namespace")]
    Threads,
}

/// Gives this process the privilege to create network namespaces and TAP interfaces.
///
/// A process that runs as root needs no change. Any other process enters a new user namespace as root, with new network
/// and mount namespaces. The new namespaces end with the process. Call this function first, while the process has one
/// thread.
///
/// # Errors
/// Returns an error if namespaces or `/dev/net/tun` are refused. The error names the remedy.
pub fn enter() -> Result<(), SetupError> {
    if has_privilege() {
        NetNs::new().map_err(SetupError::NetworkNamespace)?;
    } else {
        enter_user_namespace()?;
    }
    check_tun()
}

/// Returns whether the calling thread holds this capability in its user namespace.
pub fn holds(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).is_ok_and(|is_held| is_held)
}

/// Returns whether the process holds `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.
fn has_privilege() -> bool {
    holds(Capability::CAP_NET_ADMIN) && holds(Capability::CAP_SYS_ADMIN)
}

fn enter_user_namespace() -> Result<(), SetupError> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(SetupError::Threads);
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .map_err(|e| SetupError::UserNamespace(e.into()))?;
    // An ordinary user can map a group only after disabling setgroups (user_namespaces(7)).
    write_map("/proc/self/setgroups", "deny")?;
    write_map("/proc/self/uid_map", &format!("0 {uid} 1\n"))?;
    write_map("/proc/self/gid_map", &format!("0 {gid} 1\n"))
}

fn write_map(file: &'static str, text: &str) -> Result<(), SetupError> {
    fs::write(file, text).map_err(|cause| SetupError::IdentityMap { file, cause })
}

fn check_tun() -> Result<(), SetupError> {
    fs::OpenOptions::new().read(true).write(true).open(TUN_DEVICE).map_err(tun_refusal)?;
    Ok(())
}

/// Returns the error for a failure to open `/dev/net/tun`.
pub(crate) fn tun_refusal(cause: io::Error) -> SetupError {
    match cause.kind() {
        io::ErrorKind::NotFound => SetupError::NoTun,
        _ => SetupError::Tun(cause),
    }
}
