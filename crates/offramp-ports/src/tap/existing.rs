//! A persistent TAP made by another program, such as `ip tuntap add NAME mode tap user USER`. Its owner attaches
//! without a capability (Linux 6.18, `tun_set_iff`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{FRAME_LEN_MAX, QUEUES_MAX, Tap, TapError, device, ioctl, system};
use crate::sys::link::{self, TunInfo};

impl Tap {
    /// Attaches to the existing interface `name` in the calling thread's namespace, with `queues` queue pairs.
    /// Addresses, MTU and state of the interface do not change. The new handle offers no offloads.
    ///
    /// After the handle is dropped, the interface offers no offloads and has its previous vnet header. Until then, no
    /// other program can attach to an interface with one queue.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, is not a TAP, is in use, has too few queues, or belongs to
    /// another user.
    pub fn attach(name: &str, queues: u16) -> Result<Self, TapError> {
        let found = find(name, queues)?;
        let fds = (0..queues).map(|_| attach_queue(name, &found)).collect::<Result<Vec<_>, _>>()?;
        let header = ioctl::header(fds[0].as_fd()).map_err(|e| system(name, "reading the vnet header", e))?;
        ioctl::set_header(fds[0].as_fd(), ioctl::Header::OWN)
            .map_err(|e| system(name, "setting the vnet header", e))?;
        let mut tap = Self::of(name, fds, found.mtu, FRAME_LEN_MAX)?;
        tap.header_before = Some(header);
        Ok(tap)
    }

    /// Checks whether [`Tap::attach`] finds the interface unused, without attaching. Does not check the owner.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, is not a TAP, is in use, or has too few queues.
    pub fn check(name: &str, queues: u16) -> Result<(), TapError> {
        let found = find(name, queues)?;
        // For an interface with one queue, Linux does not report whether a program has attached. But the carrier is on
        // while a program is attached.
        if found.has_carrier && !found.is_multi_queue { Err(TapError::InUse(name.to_owned())) } else { Ok(()) }
    }

    /// Gives an existing interface the offloads and the vnet header that it had before [`Tap::attach`]. Does nothing
    /// for a created interface. Call this function when no queue is in use any more.
    pub fn restore(&self) {
        if let Some(header) = self.header_before {
            let fd = self.shared.fds[0].as_fd();
            // Both calls fail on a deleted interface, where nothing needs to be restored.
            let _ = ioctl::set_offload(fd, 0).and_then(|()| ioctl::set_header(fd, header));
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Returns the existing TAP with this name, after a check that `queues` queue pairs can be attached.
fn find(name: &str, queues: u16) -> Result<TunInfo, TapError> {
    if !link::is_valid_name(name) {
        return Err(TapError::Name(name.to_owned()));
    }
    if !(1..=QUEUES_MAX).contains(&queues) {
        return Err(TapError::Queues { name: name.to_owned(), queues });
    }
    let not_tap = |kind| TapError::NotTap { name: name.to_owned(), kind };
    let found = link::tun(name).map_err(|cause| match cause.raw_os_error() {
        Some(libc::ENODEV) => TapError::Missing(name.to_owned()),
        _ => TapError::Link { name: name.to_owned(), cause },
    })?;
    let found = found.ok_or_else(|| not_tap("of another kind"))?;
    if !found.is_tap {
        return Err(not_tap("a TUN, without Ethernet headers"));
    }
    if queues > 1 && !found.is_multi_queue {
        return Err(TapError::OneQueue { name: name.to_owned(), queues });
    }
    // The kernel refuses a second program only for an interface with one queue.
    if found.queues > 0 {
        return Err(TapError::InUse(name.to_owned()));
    }
    Ok(found)
}

fn attach_queue(name: &str, found: &TunInfo) -> Result<OwnedFd, TapError> {
    let fd = ioctl::open_device().map_err(|e| device(name, e))?;
    let refused = |e: io::Error| match e.raw_os_error() {
        Some(libc::EBUSY) => TapError::InUse(name.to_owned()),
        Some(libc::EPERM) => TapError::Owner { name: name.to_owned(), owner: owner(found) },
        _ => system(name, "attaching to the interface", e),
    };
    ioctl::attach(fd.as_fd(), name, found.is_multi_queue, false).map_err(refused)?;
    Ok(fd)
}

/// Returns the owner of an interface for an error.
fn owner(found: &TunInfo) -> String {
    match (found.owner, found.group) {
        (Some(user), Some(group)) => format!("uid {user} and gid {group}"),
        (Some(user), None) => format!("uid {user}"),
        (None, Some(group)) => format!("gid {group}"),
        (None, None) => "nobody in particular".to_owned(),
    }
}
