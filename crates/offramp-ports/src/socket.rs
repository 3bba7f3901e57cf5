//! What a TCP socket of the kernel says about its connection, `TCP_INFO`; a limit that it can be given,
//! `TCP_WINDOW_CLAMP`; and busy polling, `SO_BUSY_POLL`.
//!
//! Source: tcp(7), and `struct tcp_info` of the kernel's `include/uapi/linux/tcp.h`, which only ever grows at its end.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// The part of the kernel's `struct tcp_info` that a measurement needs.
///
/// A kernel older than a field leaves it at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// Mean deviation of the round-trip time, in microseconds.
    pub rttvar_us: u32,
    /// Smallest round-trip time seen lately, in microseconds.
    pub min_rtt_us: u32,
    /// Congestion window, in segments of `snd_mss` bytes.
    pub snd_cwnd: u32,
    /// Largest segment that is sent, in bytes of payload.
    pub snd_mss: u32,
    /// Segments sent again since the connection began.
    pub total_retrans: u32,
    /// Payload bytes sent again since the connection began.
    pub bytes_retrans: u64,
    /// Segments sent since the connection began, pure acknowledgements among them.
    pub segs_out: u32,
    /// Segments received since the connection began.
    pub segs_in: u32,
    /// Segments with payload sent since the connection began.
    pub data_segs_out: u32,
    /// Segments with payload received since the connection began.
    pub data_segs_in: u32,
    /// Payload bytes that the peer acknowledged since the connection began.
    pub bytes_acked: u64,
    /// Segments that arrived out of order since the connection began.
    pub rcv_ooopack: u32,
    /// Duplicate selective acknowledgements received since the connection began (RFC 2883): the peer had the segment
    /// already, so it was sent again for nothing.
    pub dsack_dups: u32,
    /// Times that what seemed lost was found to be only out of order, since the connection began.
    pub reord_seen: u32,
    /// Window that the peer offered last, in bytes.
    pub snd_wnd: u32,
}

/// Limits the window that a TCP socket offers its peer, in bytes (`TCP_WINDOW_CLAMP`): so many may be under way, and
/// more may have arrived that nobody has read. The kernel offers whole segments of it.
///
/// The kernel forgets it when it learns what the memory of a segment holds (since 6.5, with the first full segment) and
/// when it lets the receive buffer grow: set it before the connection is made and after each read.
///
/// # Errors
/// What setsockopt(2) reports.
pub fn set_tcp_window_clamp(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: `value` is readable for its size during the call, and the descriptor is borrowed from `socket`, so it
    // stays open.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads `TCP_INFO` of a TCP socket.
///
/// # Errors
/// What getsockopt(2) reports: `EOPNOTSUPP` or `ENOPROTOOPT` when the descriptor is not a TCP socket.
pub fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes, the kernel writes at most `len` bytes into it, and the descriptor is
    // borrowed from `socket`, so it stays open during the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `tcp_info` holds integers alone, for which every bit pattern is valid, and was zeroed as a whole before
    // the kernel wrote a prefix of it.
    let info = unsafe { info.assume_init() };
    Ok(TcpInfo {
        rtt_us: info.tcpi_rtt,
        rttvar_us: info.tcpi_rttvar,
        min_rtt_us: info.tcpi_min_rtt,
        snd_cwnd: info.tcpi_snd_cwnd,
        snd_mss: info.tcpi_snd_mss,
        total_retrans: info.tcpi_total_retrans,
        bytes_retrans: info.tcpi_bytes_retrans,
        segs_out: info.tcpi_segs_out,
        segs_in: info.tcpi_segs_in,
        data_segs_out: info.tcpi_data_segs_out,
        data_segs_in: info.tcpi_data_segs_in,
        bytes_acked: info.tcpi_bytes_acked,
        rcv_ooopack: info.tcpi_rcv_ooopack,
        dsack_dups: info.tcpi_dsack_dups,
        reord_seen: info.tcpi_reord_seen,
        snd_wnd: info.tcpi_snd_wnd,
    })
}

/// Lets a read of the socket look at the adapter's receive queue itself for up to `usecs` microseconds before it sleeps
/// (`SO_BUSY_POLL`, socket(7)). Only an adapter with NAPI can be looked at so.
///
/// # Errors
/// What setsockopt(2) reports: `EPERM` without `CAP_NET_ADMIN` in the network namespace's user namespace.
pub fn set_busy_poll(socket: &impl AsFd, usecs: u32) -> io::Result<()> {
    let usecs = libc::c_int::try_from(usecs).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the value is read from `usecs`, which lives through the call, and its length is given; the descriptor is
    // borrowed from `socket`, so it stays open during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw const usecs).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        assert!(info.snd_cwnd > 0 && info.snd_mss > 0);
        assert_eq!((info.data_segs_out, info.data_segs_in), (1, 1));
        // The SYN counts as one byte.
        assert_eq!(info.bytes_acked, 1001);
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
            offers.push(tcp_info(&watched).unwrap().snd_wnd);
        }
        // What was offered before is not taken back, and a lone short segment lets the kernel think anew.
        offers.sort_unstable();
        assert!(offers[offers.len() / 2] <= window, "{offers:?}");
        sender.join().unwrap();
    }

    #[test]
    fn a_time_that_no_socket_can_busy_poll_is_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Less than what the kernel's setting is already may be asked for by everybody.
        assert!(set_busy_poll(&socket, 0).is_ok());
        assert!(set_busy_poll(&socket, u32::MAX).is_err());
    }

    #[test]
    fn a_udp_socket_is_refused_with_an_error() {
        assert!(tcp_info(&UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
