//! Interface attributes under `/sys/class/net`, including receive packet steering, for an interface in any namespace.
//!
//! A sysfs shows the interfaces of the network namespace in which it was mounted. Each call therefore makes a new sysfs
//! on a helper thread. The sysfs is mounted on no directory, so no other program sees it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::{NetNs, SysError, link};

/// Number of bits in one group of a processor mask in sysfs.
const MASK_GROUP_BITS: usize = 32;
/// Command that completes a file system (`FSCONFIG_CMD_CREATE` in Linux' `mount.h`).
const CREATE: libc::c_uint = 6;

/// Makes the kernel process frames received on any queue of the interface on the processors `cpus`. If `cpus` is empty,
/// the kernel processes a frame on the processor that received it.
///
/// # Errors
/// Returns an error if there is no such interface, or the kernel refuses. The kernel always refuses inside a user
/// namespace.
pub fn set(ns: &NetNs, name: &str, cpus: &[usize]) -> io::Result<()> {
    let mask = mask(cpus);
    with_sysfs(ns, name, |directory| {
        let mut queues = 0;
        for entry in fs::read_dir(format!("{directory}/queues"))? {
            let queue = entry?.file_name().to_string_lossy().into_owned();
            if queue.starts_with("rx-") {
                write(&format!("{directory}/queues/{queue}/rps_cpus"), &mask)?;
                queues += 1;
            }
        }
        if queues == 0 { Err(io::Error::new(io::ErrorKind::NotFound, "no receive queue found")) } else { Ok(()) }
    })
    .map_err(|e| explained(format!("setting receive packet steering of interface \"{name}\" to {cpus:?}"), e))
}

/// Writes an attribute of an interface (`gro_flush_timeout`, `napi_defer_hard_irqs`, `threaded`, …).
///
/// # Errors
/// Returns an error if there is no such interface or attribute, or the kernel refuses the value.
pub fn write_attribute(ns: &NetNs, name: &str, attribute: &str, value: &str) -> io::Result<()> {
    with_sysfs(ns, name, |directory| write(&attribute_path(directory, attribute)?, value))
        .map_err(|e| explained(format!("writing {attribute} = {value} of interface \"{name}\""), e))
}

/// Reads an attribute of an interface, without the trailing newline.
///
/// # Errors
/// Returns an error if there is no such interface or attribute.
pub fn read_attribute(ns: &NetNs, name: &str, attribute: &str) -> io::Result<String> {
    with_sysfs(ns, name, |directory| fs::read_to_string(attribute_path(directory, attribute)?))
        .map(|text| text.trim_end().to_owned())
        .map_err(|e| explained(format!("reading {attribute} of interface \"{name}\""), e))
}

/// Calls `f` with the path of the interface's directory in a sysfs of namespace `ns`.
fn with_sysfs<T: Send>(ns: &NetNs, name: &str, f: impl FnOnce(&str) -> io::Result<T> + Send) -> io::Result<T> {
    if !link::is_valid_name(name) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an interface name"));
    }
    ns.run(|| {
        let sysfs = open_sysfs()?;
        f(&format!("/proc/self/fd/{}/class/net/{name}", sysfs.as_raw_fd()))
    })?
}

/// Returns the root of a new sysfs of the current namespace, mounted on no directory. A mount on `/sys` would need a
/// private `/`. In a chroot, `/` is no mount point, and the kernel refuses to make it private (`EINVAL`).
fn open_sysfs() -> io::Result<OwnedFd> {
    // The owner of a new network namespace may mount a sysfs only in a mount namespace of its own.
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| SysError::new("making a mount namespace", e))?;
    // SAFETY: the only pointer is to a constant string, and the kernel only reads it.
    let context = descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), libc::FSOPEN_CLOEXEC) })?;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: the command takes neither key nor value, so both pointers are null.
    Errno::result(unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0) })
        .map_err(|e| SysError::new("mounting a sysfs", e))?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    // SAFETY: the call has no pointers.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), libc::FSMOUNT_CLOEXEC, attributes) })
}

/// Converts the result of a system call that returns a new descriptor.
fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let descriptor = Errno::result(result).map_err(|e| SysError::new("mounting a sysfs", e))?;
    let descriptor = RawFd::try_from(descriptor).expect("the kernel returns descriptors below 2^31");
    // SAFETY: the system call returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Writes an existing file. sysfs cannot create files.
fn write(path: &str, value: &str) -> io::Result<()> {
    use io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Returns the attribute's path, always inside the interface's directory.
fn attribute_path(directory: &str, attribute: &str) -> io::Result<String> {
    if attribute.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an attribute"));
    }
    Ok(format!("{directory}/{attribute}"))
}

/// Returns a processor mask: hexadecimal groups of 32 bits, the highest group first.
fn mask(cpus: &[usize]) -> String {
    let groups = cpus.iter().max().map_or(1, |max| max / MASK_GROUP_BITS + 1);
    let group = |g: usize| {
        let bits = cpus.iter().filter(|&&cpu| cpu / MASK_GROUP_BITS == g);
        bits.fold(0u32, |word, cpu| word | 1 << (cpu % MASK_GROUP_BITS))
    };
    (0..groups).rev().map(|g| format!("{:08x}", group(g))).collect::<Vec<_>>().join(",")
}

fn explained(doing: String, cause: io::Error) -> io::Error {
    let hint = match cause.kind() {
        io::ErrorKind::PermissionDenied => " (only root in the initial user namespace may do this; run as root)",
        _ => "",
    };
    SysError::new(doing + hint, cause).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_its_highest_group_first() {
        assert_eq!(mask(&[]), "00000000");
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[31, 32, 64]), "00000001,00000001,80000000");
    }

    #[test]
    fn an_attribute_stays_inside_its_interface() {
        assert!(attribute_path("/d", "../lo/mtu").is_err());
        assert!(attribute_path("/d", "/etc/passwd").is_err());
        assert_eq!(attribute_path("/d", "queues/rx-0/rps_cpus").unwrap(), "/d/queues/rx-0/rps_cpus");
    }
}
