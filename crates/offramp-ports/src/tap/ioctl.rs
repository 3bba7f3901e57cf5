//! The ioctls of the TUN driver (Linux `include/uapi/linux/if_tun.h`).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use offramp_offload::caps::{NAMES, Offloads};

use crate::sys::link::NAME_LEN_MAX;
use crate::vnet_hdr::HEADER_LEN;

mod numbers {
    #![allow(missing_docs)]
    use super::{Ifreq, c_int_value};
    nix::ioctl_write_ptr_bad!(tun_set_iff, libc::TUNSETIFF, Ifreq);
    nix::ioctl_write_ptr_bad!(tun_set_carrier, libc::TUNSETCARRIER, c_int_value);
    nix::ioctl_write_int_bad!(tun_set_offload, libc::TUNSETOFFLOAD);
    nix::ioctl_write_ptr_bad!(tun_set_vnet_hdr_sz, libc::TUNSETVNETHDRSZ, c_int_value);
    nix::ioctl_write_ptr_bad!(tun_set_vnet_le, libc::TUNSETVNETLE, c_int_value);
    nix::ioctl_read_bad!(tun_get_vnet_hdr_sz, libc::TUNGETVNETHDRSZ, c_int_value);
    nix::ioctl_read_bad!(tun_get_vnet_le, libc::TUNGETVNETLE, c_int_value);
}

#[allow(non_camel_case_types)]
type c_int_value = libc::c_int;

/// `struct ifreq` in the layout read by `TUNSETIFF`: name, flags, and the remaining bytes of the union.
#[repr(C)]
struct Ifreq {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Ifreq>() == size_of::<libc::ifreq>());

/// Opens the TUN device for one queue, in the calling thread's namespace.
pub(super) fn open_device() -> io::Result<OwnedFd> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
    Ok(file.into())
}

/// Attaches the descriptor to the interface `name`. The first descriptor creates the interface.
pub(super) fn attach(fd: BorrowedFd<'_>, name: &str, multi_queue: bool, napi: bool) -> io::Result<()> {
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    if napi {
        flags |= libc::IFF_NAPI;
    }
    let mut request = Ifreq { name: [0; libc::IFNAMSIZ], flags: flags as libc::c_short, rest: [0; 22] };
    let len = name.len().min(NAME_LEN_MAX);
    request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`. `request` has that size (asserted above), lives through
    // the call and is not used after the call.
    unsafe { numbers::tun_set_iff(fd.as_raw_fd(), &raw const request) }?;
    Ok(())
}

/// The format of an interface's vnet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Length in bytes.
    len: c_int_value,
    /// 1 for little-endian fields, 0 for the processor's byte order.
    is_little_endian: c_int_value,
}

impl Header {
    /// The format of this crate's headers.
    pub(super) const OWN: Self = Self { len: HEADER_LEN as c_int_value, is_little_endian: 1 };
}

/// Returns the format of the interface's vnet header.
pub(super) fn header(fd: BorrowedFd<'_>) -> io::Result<Header> {
    let mut header = Header { len: 0, is_little_endian: 0 };
    // SAFETY: TUNGETVNETHDRSZ writes one int, which lives through the call.
    unsafe { numbers::tun_get_vnet_hdr_sz(fd.as_raw_fd(), &raw mut header.len) }?;
    // SAFETY: TUNGETVNETLE writes one int, which lives through the call.
    unsafe { numbers::tun_get_vnet_le(fd.as_raw_fd(), &raw mut header.is_little_endian) }?;
    Ok(header)
}

/// Sets the format of the interface's vnet header.
pub(super) fn set_header(fd: BorrowedFd<'_>, header: Header) -> io::Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one int, which lives through the call.
    unsafe { numbers::tun_set_vnet_hdr_sz(fd.as_raw_fd(), &raw const header.len) }?;
    // SAFETY: TUNSETVNETLE reads one int, which lives through the call.
    unsafe { numbers::tun_set_vnet_le(fd.as_raw_fd(), &raw const header.is_little_endian) }?;
    Ok(())
}

/// Sets the offloads that the host can use.
pub(super) fn set_offload(fd: BorrowedFd<'_>, bits: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value and accesses no memory of this process.
    unsafe { numbers::tun_set_offload(fd.as_raw_fd(), bits as libc::c_int) }?;
    Ok(())
}

/// Sets the carrier of the interface (Linux 5.0).
pub(super) fn set_carrier(fd: BorrowedFd<'_>, is_on: bool) -> io::Result<()> {
    let is_on = libc::c_int::from(is_on);
    // SAFETY: TUNSETCARRIER reads one int, which lives through the call.
    unsafe { numbers::tun_set_carrier(fd.as_raw_fd(), &raw const is_on) }?;
    Ok(())
}

/// Returns the TUN driver's bits for the transmit offloads in `offloads`.
pub(super) fn offload_bits(offloads: Offloads) -> u32 {
    NAMES.iter().filter(|row| offloads.contains(row.offload)).fold(0, |bits, row| bits | row.tun_flags)
}
