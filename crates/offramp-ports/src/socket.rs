//! Socket options: the state of a TCP connection (`TCP_INFO`), the limit of its window (`TCP_WINDOW_CLAMP`), busy
//! polling (`SO_BUSY_POLL`), and a packet filter (`SO_ATTACH_FILTER`).
//!
//! Source: tcp(7), and `struct tcp_info` of the kernel's `include/uapi/linux/tcp.h`. New kernels extend the structure
//! only at its end.

use nix::errno::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The kernel's state of a TCP connection. A field is 0 if the kernel is too old to have the field.
pub use libc::tcp_info as TcpInfo;

/// Limits the window offered by a TCP socket to `bytes` (`TCP_WINDOW_CLAMP`). Received but unread bytes do not count
/// against the limit. The kernel rounds the offered window to whole segments.
///
/// Set the limit before connecting, and again after each read. The kernel removes this limit when it grows the receive
/// buffer. Since Linux 6.5, the kernel also removes the limit on the first full segment, when it estimates the ratio of
/// payload to memory.
///
/// # Errors
/// Returns the error of setsockopt(2).
pub fn set_tcp_window_clamp(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes.try_into().unwrap_or(libc::c_int::MAX))
}

fn set_option(socket: &impl AsFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (descriptor, len) = (socket.as_fd().as_raw_fd(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: `value` is readable for `len` bytes during the call. The descriptor stays open, because it is borrowed
    // from `socket`.
    let result = unsafe { libc::setsockopt(descriptor, level, option, (&raw const value).cast(), len) };
    Errno::result(result)?;
    Ok(())
}

/// Reads `TCP_INFO` of a TCP socket.
///
/// # Errors
/// Returns the error of getsockopt(2): `EOPNOTSUPP` or `ENOPROTOOPT` if the descriptor is not a TCP socket.
pub fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<TcpInfo>::zeroed();
    let (descriptor, mut len) = (socket.as_fd().as_raw_fd(), size_of::<TcpInfo>() as libc::socklen_t);
    let (level, option, to) = (libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast());
    // SAFETY: `info` is writable for `len` bytes, and the kernel writes at most `len` bytes. The descriptor stays open
    // during the call, because it is borrowed from `socket`.
    Errno::result(unsafe { libc::getsockopt(descriptor, level, option, to, &raw mut len) })?;
    // SAFETY: `tcp_info` holds only integers, for which every bit pattern is valid. The structure was zeroed before the
    // kernel wrote its prefix.
    Ok(unsafe { info.assume_init() })
}

/// Makes a read of the socket poll the adapter's receive queue for up to `usecs` microseconds before sleeping
/// (`SO_BUSY_POLL`, socket(7)). Busy polling works only with an adapter that uses NAPI.
///
/// # Errors
/// Returns the error of setsockopt(2): `EPERM` without `CAP_NET_ADMIN` in the network namespace's user namespace.
pub fn set_busy_poll(socket: &impl AsFd, usecs: u32) -> io::Result<()> {
    let usecs = usecs.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, usecs)
}

/// An instruction of a BPF filter: `code`, `jt`, `jf`, `k` (the kernel's `Documentation/networking/filter.rst`).
pub type FilterInstruction = (u16, u8, u8, u32);

/// Attaches a filter to a socket, which then drops each packet rejected by the filter (`SO_ATTACH_FILTER`).
///
/// # Errors
/// Returns the error of setsockopt(2): `EINVAL` for a program refused by the kernel's checker.
pub fn attach_filter(socket: &impl AsFd, program: &[FilterInstruction]) -> io::Result<()> {
    let mut filters: Vec<_> = program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let len = filters.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: filters.as_mut_ptr() };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let (descriptor, size) = (socket.as_fd().as_raw_fd(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: `program` is readable for `size` bytes and points to the `len` instructions of `filters`, which live
    // until the kernel has copied them. The descriptor stays open, because it is borrowed from `socket`.
    let result = unsafe { libc::setsockopt(descriptor, level, option, (&raw const program).cast(), size) };
    Errno::result(result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_connection_that_carried_data_tells_its_segments() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        server.write_all(&[7]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        let info = tcp_info(&client).unwrap();
        assert!(info.tcpi_snd_cwnd > 0 && info.tcpi_snd_mss > 0);
        assert_eq!((info.tcpi_data_segs_out, info.tcpi_data_segs_in), (1, 1));
        // The SYN adds one byte to the count.
        assert_eq!(info.tcpi_bytes_acked, 1001);
    }

    #[test]
    fn a_socket_that_is_clamped_after_each_read_offers_no_more_than_its_window() {
        let window = 8192;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        nix::sys::socket::setsockopt(&listener, nix::sys::socket::sockopt::TcpMaxSeg, &1460).unwrap();
        set_tcp_window_clamp(&listener, window).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let watched = client.try_clone().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let sender = std::thread::spawn(move || {
            (0..1000).for_each(|_| client.write_all(&[7; 1000]).unwrap());
            client
        });
        let (mut left, mut buffer, mut offers) = (1_000_000, [0; 4096], Vec::new());
        while left > 0 {
            left -= server.read(&mut buffer).unwrap();
            set_tcp_window_clamp(&server, window).unwrap();
            offers.push(tcp_info(&watched).unwrap().tcpi_snd_wnd);
        }
        // A single offer can exceed the limit: the kernel does not retract an earlier offer, and recomputes the window
        // after a short segment. So the test compares the median of all offers with the limit.
        offers.sort_unstable();
        assert!(offers[offers.len() / 2] <= window, "{offers:?}");
        sender.join().unwrap();
    }

    #[test]
    fn a_time_that_no_socket_can_busy_poll_is_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Any user can request a value below the kernel's current setting.
        assert!(set_busy_poll(&socket, 0).is_ok());
        assert!(set_busy_poll(&socket, u32::MAX).is_err());
    }

    #[test]
    fn a_socket_takes_what_its_filter_accepts_and_a_filter_without_an_end_is_refused() {
        use std::os::unix::net::UnixDatagram;
        let (near, far) = UnixDatagram::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        // ldb [0]; jeq #7, +0, +1; ret #1; ret #0.
        attach_filter(&far, &[(0x30, 0, 0, 0), (0x15, 0, 1, 7), (6, 0, 0, 1), (6, 0, 0, 0)]).unwrap();
        for (first, is_taken) in [(7, true), (8, false)] {
            assert_eq!(near.send(&vec![first; 70_000]).unwrap(), 70_000);
            assert_eq!(far.recv(&mut [0]).is_ok(), is_taken, "{first}");
        }
        assert!(attach_filter(&far, &[(0x30, 0, 0, 0)]).is_err());
        assert!(attach_filter(&far, &[]).is_err());
    }

    #[test]
    fn a_udp_socket_is_refused_with_an_error() {
        assert!(tcp_info(&UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
