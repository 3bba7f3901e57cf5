//! The system calls of a packet socket (packet(7), Linux `include/uapi/linux/if_packet.h`).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::LinkState;
use crate::vnet_hdr::HEADER_LEN;

/// Length in bytes of `struct virtio_net_hdr`, which `PACKET_VNET_HDR` adds before each frame.
const SHORT_HEADER_LEN: usize = 10;
/// First Linux version that supports USO in a vnet header (`VIRTIO_NET_HDR_GSO_UDP_L4`).
const USO_SINCE: (u32, u32) = (6, 2);
/// The fanout group's type and flags start at this bit of the value of `PACKET_FANOUT`.
const FANOUT_TYPE_SHIFT: u32 = 16;
/// Size of the buffer for control messages, in bytes. The kernel returns one `struct tpacket_auxdata` per frame.
const CONTROL_LEN: usize = 64;

/// The protocol number for all frames, in network byte order as required by bind(2).
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();

/// Opens a socket. The new socket is bound to no interface and receives nothing.
pub(super) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes its arguments by value.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Turns on the longest vnet header supported by the kernel, and returns the header's length.
pub(super) fn set_header(fd: BorrowedFd<'_>) -> io::Result<usize> {
    match set_int(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR_SZ, HEADER_LEN as libc::c_int) {
        Ok(()) => Ok(HEADER_LEN),
        // The kernel is older than Linux 6.6.
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => set_short_header(fd),
        Err(e) => Err(e),
    }
}

/// Turns on the short vnet header, supported since Linux 2.6.34, and returns its length.
pub(super) fn set_short_header(fd: BorrowedFd<'_>) -> io::Result<usize> {
    set_int(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    Ok(SHORT_HEADER_LEN)
}

/// Makes the kernel report removed VLAN tags, and receive no frames transmitted by this machine itself. With
/// `qdisc_bypass`, frames sent by the socket bypass the queueing discipline.
pub(super) fn set_options(fd: BorrowedFd<'_>, qdisc_bypass: bool) -> io::Result<()> {
    set_int(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    if qdisc_bypass {
        set_int(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
    }
    match set_int(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1) {
        // The kernel is older than Linux 4.20. On these kernels, `tx_next` recognizes this machine's own frames by
        // their packet type, and skips them.
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other,
    }
}

/// Sets the length of the receive and send buffers. With sufficient privilege, the length can exceed the system's
/// limit.
pub(super) fn set_buffers(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
    let pairs = [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (privileged, plain) in pairs {
        if set_int(fd, libc::SOL_SOCKET, privileged, len).is_err() {
            set_int(fd, libc::SOL_SOCKET, plain, len)?;
        }
    }
    Ok(())
}

/// Attaches a filter that rejects every frame until [`let_in`].
pub(super) fn keep_out(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_filter(fd, &mut [instruction(libc::BPF_RET | libc::BPF_K, 0, 0)])
}

/// Replaces the filter of [`keep_out`] by a filter that accepts frames to `destination`. Each frame is truncated to
/// `len` bytes plus the number of its receive queue, counted from 1, or plus 0 if the driver records no queue.
pub(super) fn let_in_by_queue(fd: BorrowedFd<'_>, destination: [u8; 6], len: u32) -> io::Result<()> {
    /// Index of the last instruction, to which failing comparisons jump.
    const REFUSE: u8 = 7;
    let first = u32::from_be_bytes(*destination.first_chunk().expect("6 bytes"));
    let last = u16::from_be_bytes(*destination.last_chunk().expect("6 bytes"));
    let load = libc::BPF_LD | libc::BPF_ABS;
    let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let queue = (libc::SKF_AD_OFF + libc::SKF_AD_QUEUE) as u32;
    set_filter(
        fd,
        &mut [
            instruction(load | libc::BPF_W, 0, 0),
            instruction(is_equal, REFUSE - 2, first),
            instruction(load | libc::BPF_H, 0, 4),
            instruction(is_equal, REFUSE - 4, last.into()),
            instruction(load | libc::BPF_W, 0, queue),
            instruction(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, 0, len),
            instruction(libc::BPF_RET | libc::BPF_A, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        ],
    )
}

fn instruction(code: u32, else_skip: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: else_skip, k: value }
}

fn set_filter(fd: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // The kernel copies the program before the call returns.
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Detaches the filter of [`keep_out`].
pub(super) fn let_in(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
}

/// Binds the socket to an interface.
pub(super) fn bind(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let mut address = empty_address();
    address.sll_ifindex = index as libc::c_int;
    address.sll_protocol = ALL_PROTOCOLS;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: bind(2) reads `len` bytes of the address, which lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

/// Returns whether the socket is still bound to an interface. The kernel unbinds the socket when the interface is
/// deleted.
pub(super) fn is_bound(fd: BorrowedFd<'_>) -> bool {
    let mut address = empty_address();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: getsockname(2) writes at most `len` bytes of the address, which lives through the call.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    result == 0 && address.sll_ifindex > 0
}

/// Turns on promiscuous mode until the socket is closed.
pub(super) fn set_promiscuous(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Creates a fanout group with the socket as its first member, and returns the group's value for [`join_group`].
pub(super) fn found_group(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    let unique = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_UNIQUEID;
    set_int(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, (unique << FANOUT_TYPE_SHIFT) as libc::c_int)?;
    let mut group: libc::c_int = 0;
    get(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &mut group)?;
    Ok(group & !((libc::PACKET_FANOUT_FLAG_UNIQUEID << FANOUT_TYPE_SHIFT) as libc::c_int))
}

/// Joins a group founded by another socket.
pub(super) fn join_group(fd: BorrowedFd<'_>, group: libc::c_int) -> io::Result<()> {
    set_int(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, group)
}

/// Returns the number of frames dropped for lack of buffer space since the last call.
pub(super) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut counted = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    get(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counted)?;
    Ok(counted.tp_drops)
}

/// Returns whether this kernel supports USO in a vnet header.
pub(super) fn knows_uso() -> bool {
    let Ok(system) = nix::sys::utsname::uname() else { return false };
    version_of(&system.release().to_string_lossy()).is_some_and(|version| version >= USO_SINCE)
}

/// Parses the first two numbers of a kernel's release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    numbers.next().zip(numbers.next())
}

/// Returns whether the interface is an Ethernet interface (`ARPHRD_ETHER`).
pub(super) fn is_ethernet(fd: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let request = interface_ioctl(fd, libc::SIOCGIFHWADDR as libc::Ioctl, name)?;
    // SAFETY: SIOCGIFHWADDR filled this member of the union; the member holds only integers.
    let family = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    Ok(family == libc::ARPHRD_ETHER)
}

/// Returns the MTU and the link state of the interface with this name in the socket's namespace.
pub(super) fn link_state(fd: BorrowedFd<'_>, name: &str) -> io::Result<LinkState> {
    let request = interface_ioctl(fd, libc::SIOCGIFMTU as libc::Ioctl, name)?;
    // SAFETY: SIOCGIFMTU filled this member of the union; every bit pattern is an int.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    let request = interface_ioctl(fd, libc::SIOCGIFFLAGS as libc::Ioctl, name)?;
    // SAFETY: SIOCGIFFLAGS filled this member of the union; every bit pattern is a short.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(LinkState {
        mtu: mtu as u32,
        is_up: flags & libc::IFF_UP != 0,
        has_carrier: flags & (libc::IFF_UP | libc::IFF_RUNNING) == libc::IFF_UP | libc::IFF_RUNNING,
    })
}

/// The metadata of a received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Length of the frame in the buffer, in bytes.
    pub(super) len: usize,
    /// True if the buffer was too short for the frame.
    pub(super) is_cut_off: bool,
    /// True if this machine itself sent the frame.
    pub(super) is_outgoing: bool,
    /// The VLAN tag removed by the kernel: protocol identifier and control information, in the frame's byte order.
    pub(super) tag: Option<[u8; 4]>,
}

/// The buffer for control messages, aligned for a control message header.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

// SAFETY: CMSG_SPACE only calculates.
const _: () = assert!(unsafe { libc::CMSG_SPACE(size_of::<libc::tpacket_auxdata>() as u32) } as usize <= CONTROL_LEN);

/// Receives one frame: the vnet header into `header`, and the frame's bytes into `frame`.
pub(super) fn receive(fd: BorrowedFd<'_>, header: &mut [u8], frame: &mut [u8]) -> io::Result<Received> {
    let header_len = header.len();
    let mut parts = [
        libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header_len },
        libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
    ];
    let mut address = empty_address();
    let mut control = Control([0; CONTROL_LEN]);
    let mut message = empty_message();
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LEN as _;
    // SAFETY: all memory that `message` points to lives through the call and is writable for the given lengths.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok(Received {
        len: len.saturating_sub(header_len).min(frame.len()),
        is_cut_off: message.msg_flags & libc::MSG_TRUNC != 0,
        is_outgoing: address.sll_pkttype == libc::PACKET_OUTGOING,
        tag: tag_of(&message),
    })
}

/// Returns the VLAN tag in the control messages of a frame.
fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: `message` and its control buffer were filled by recvmsg and are alive. The macros stay within
    // `msg_controllen`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: a non-null header lies within the control buffer, which is aligned for such a header.
    while let Some(head) = unsafe { next.as_ref() } {
        // SAFETY: CMSG_LEN only calculates.
        let len = unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) } as usize;
        let is_auxdata = head.cmsg_level == libc::SOL_PACKET && head.cmsg_type == libc::PACKET_AUXDATA;
        if is_auxdata && head.cmsg_len >= len as _ {
            // SAFETY: the message has room for the structure after its header, and the structure holds only integers.
            // The structure may be unaligned, so it is copied.
            let data = unsafe { libc::CMSG_DATA(head).cast::<libc::tpacket_auxdata>().read_unaligned() };
            return tag_in(&data);
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        next = unsafe { libc::CMSG_NXTHDR(message, head) };
    }
    None
}

fn tag_in(data: &libc::tpacket_auxdata) -> Option<[u8; 4]> {
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let has_protocol = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if has_protocol { data.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// Sends one frame after its vnet header.
pub(super) fn send(fd: BorrowedFd<'_>, header: &[u8], frame: &[u8]) -> io::Result<()> {
    let mut parts =
        [header, frame].map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let mut message = empty_message();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: all memory that `message` points to lives through the call; sendmsg only reads the two buffers.
    let len = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, 0) };
    if len < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn empty_address() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

fn empty_message() -> libc::msghdr {
    // SAFETY: every member is an integer or a pointer, and null is valid for each pointer.
    unsafe { std::mem::zeroed() }
}

fn interface_ioctl(fd: BorrowedFd<'_>, number: libc::Ioctl, name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is a name and a union of integers and pointers; zeros are valid for all.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero and terminates the name.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the SIOCGIF calls read and write one `struct ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), number, &raw mut request) })?;
    Ok(request)
}

fn set_int(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set(fd, level, option, &value)
}

/// Sets an option whose value is a C structure or an integer.
fn set<T>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: setsockopt(2) reads `len` bytes of `value`, which lives through the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) })?;
    Ok(())
}

/// Reads an option whose value is a C structure or an integer. Every bit pattern of the type is valid.
fn get<T: Copy>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let place = std::ptr::from_mut(value).cast();
    // SAFETY: getsockopt(2) writes at most `len` bytes of `value`, which lives through the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, place, &raw mut len) })?;
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_release_is_read_whatever_stands_behind_its_numbers() {
        assert_eq!(version_of("6.18.44-cloud-amd64"), Some((6, 18)));
        assert_eq!(version_of("6.2-rc1"), Some((6, 2)));
        assert_eq!((version_of("6"), version_of("next-20260101"), version_of("")), (None, None, None));
        assert!((7, 0) >= USO_SINCE && (6, 1) < USO_SINCE);
    }

    #[test]
    fn a_tag_without_its_protocol_is_a_customers() {
        let data = |status, tci, tpid| libc::tpacket_auxdata {
            tp_status: status,
            tp_len: 0,
            tp_snaplen: 0,
            tp_mac: 0,
            tp_net: 0,
            tp_vlan_tci: tci,
            tp_vlan_tpid: tpid,
        };
        let (has_tag, has_protocol) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        assert_eq!(tag_in(&data(0, 5, 0x88a8)), None);
        assert_eq!(tag_in(&data(has_tag, 5, 0)), Some([0x81, 0, 0, 5]));
        assert_eq!(tag_in(&data(has_tag | has_protocol, 0x2005, 0x88a8)), Some([0x88, 0xa8, 0x20, 5]));
    }
}
