//! Sends UDP datagrams on an interface that has no address, route or neighbour. Linux sends a datagram for a multicast
//! group on the interface to which the socket is bound. A transparent socket can use any source address.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, sendmsg, setsockopt, socket,
    sockopt,
};

/// Sends `payload` on an interface in the calling thread's namespace, from `from` to the multicast group `to`. The
/// source need not be an address of this machine. If `size` is given, the kernel segments the payload into datagrams of
/// `size` bytes (`UDP_SEGMENT`).
///
/// # Errors
/// Returns an error if there is no such interface, or the process has neither `CAP_NET_RAW` nor `CAP_NET_ADMIN`. The
/// kernel returns `ENETUNREACH` if IPv6 is off on the interface. Before Linux 6.11, the kernel returns `EIO` if the
/// interface does not compute checksums.
pub fn send_to_group(
    interface: &str,
    from: SocketAddr,
    to: SocketAddr,
    size: Option<u16>,
    payload: &[u8],
) -> io::Result<()> {
    let family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    setsockopt(&fd, sockopt::BindToDevice, &interface.into())?;
    if from.is_ipv4() {
        setsockopt(&fd, sockopt::IpTransparent, &true)?;
        // Without this option, a super-frame longer than the MTU lacks DF.
        set(fd.as_fd(), libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    } else {
        set(fd.as_fd(), libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1)?;
        // Take flow label and traffic class from the destination address.
        set(fd.as_fd(), libc::SOL_IPV6, libc::IPV6_FLOWINFO_SEND, 1)?;
    }
    if let Some(size) = size {
        setsockopt(&fd, sockopt::UdpGsoSegment, &size.into())?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
    // If the machine has no address, bind(2) does not fix the source address. The message therefore carries the source
    // address.
    let packet_info = match from {
        SocketAddr::V4(v4) => Some(libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
            ipi_addr: libc::in_addr { s_addr: 0 },
        }),
        SocketAddr::V6(_) => None,
    };
    let source: Vec<ControlMessage<'_>> = packet_info.iter().map(ControlMessage::Ipv4PacketInfo).collect();
    let (parts, to) = ([IoSlice::new(payload)], SockaddrStorage::from(to));
    sendmsg(fd.as_raw_fd(), &parts, &source, MsgFlags::empty(), Some(&to))?;
    Ok(())
}

fn set(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: setsockopt(2) reads `len` bytes of `value`, which lives through the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
