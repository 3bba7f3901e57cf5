//! Opens data sockets. The socket options are set before the TCP handshake, because the handshake negotiates the window
//! scale.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use offramp_ports::socket::set_tcp_window_clamp;

use super::error::reason;
use super::params::{Params, RECEIVE_WINDOW_BUFFERS, UdpParams, Workload};

/// Timeout of a data thread's sends and receives. After each timeout, the thread reads the phase.
pub(super) const IO_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum time to connect a data stream.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel's list of congestion controls available in this namespace.
const CONGESTION_AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Default receive buffer of a UDP socket in bytes, a few milliseconds at 10 Gbit/s. The kernel limits the buffer to
/// `net.core.rmem_max`.
const UDP_RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// A result whose error names the attempted action.
type Outcome<T> = Result<T, (String, io::Error)>;

/// Opens a listener for the data connections of one test, on a free port of this host's address `ip`.
pub(super) fn data_listener(ip: IpAddr, params: &Params) -> Outcome<TcpListener> {
    let address = SocketAddr::new(ip.to_canonical(), 0);
    let made = stream_socket(address)?;
    set_stream_options(&made, params)?;
    let listening = (|| {
        bind(made.as_raw_fd(), &SockaddrStorage::from(address))?;
        listen(&made, Backlog::MAXALLOWABLE)
    })();
    listening.map_err(|errno| (format!("listen at {address}"), errno.into()))?;
    Ok(TcpListener::from(made))
}

/// Connects one data stream.
pub(super) fn data_connect(address: SocketAddr, params: &Params) -> Outcome<TcpStream> {
    let made = stream_socket(address)?;
    set_stream_options(&made, params)?;
    let micros = TimeVal::microseconds(CONNECT_TIMEOUT.as_micros() as i64);
    // The send timeout of a blocking socket also limits connect(2): see socket(7).
    setsockopt(&made, sockopt::SendTimeout, &micros).map_err(|errno| ("set a timeout".to_owned(), errno.into()))?;
    connect(made.as_raw_fd(), &SockaddrStorage::from(address)).map_err(|errno| {
        let errno = if errno == Errno::EINPROGRESS { Errno::ETIMEDOUT } else { errno };
        (format!("connect a data stream to {address}"), errno.into())
    })?;
    Ok(TcpStream::from(made))
}

/// Prepares a connected data stream for its thread, after the data hello.
pub(super) fn ready_stream(stream: &TcpStream, params: &Params) -> io::Result<()> {
    stream.set_nodelay(params.nodelay || matches!(params.workload, Workload::Transaction(_)))?;
    set_busy_poll(stream, params)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))
}

/// Opens a UDP socket on a free port of this host's address `ip`.
pub(super) fn udp_socket(ip: IpAddr, params: &Params) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(ip.to_canonical(), 0))?;
    socket.set_read_timeout(Some(IO_TIMEOUT))?;
    socket.set_write_timeout(Some(IO_TIMEOUT))?;
    set_busy_poll(&socket, params)?;
    if params.window_bytes > 0 {
        set_buffers(&socket, params.window_bytes as usize)?;
    } else {
        setsockopt(&socket, sockopt::RcvBuf, &UDP_RECEIVE_BUFFER_BYTES)?;
    }
    Ok(socket)
}

/// Sets `UDP_SEGMENT` on the socket of a sender, or `UDP_GRO` on the socket of a receiver, if the test uses them.
pub(super) fn set_udp_offloads(socket: &UdpSocket, udp: &UdpParams, sends: bool) -> io::Result<()> {
    if sends && udp.gso_segments > 1 {
        setsockopt(socket, sockopt::UdpGsoSegment, &(udp.datagram_bytes as i32))?;
    }
    if !sends && udp.gro {
        setsockopt(socket, sockopt::UdpGroSegment, &true)?;
    }
    Ok(())
}

/// Returns the kernel's name of a TCP socket's congestion control; empty if unknown.
pub(super) fn congestion_of(stream: &TcpStream) -> String {
    let name = nix::sys::socket::getsockopt(stream, sockopt::TcpCongestion).unwrap_or_default();
    name.to_string_lossy().trim_end_matches('\0').to_owned()
}

fn stream_socket(address: SocketAddr) -> Outcome<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|errno| ("open a TCP socket".to_owned(), errno.into()))
}

fn set_stream_options(socket: &OwnedFd, params: &Params) -> Outcome<()> {
    let congestion = OsString::from(&params.congestion);
    setsockopt(socket, sockopt::TcpCongestion, &congestion).map_err(|errno| {
        let available = std::fs::read_to_string(CONGESTION_AVAILABLE).unwrap_or_default();
        let action = format!("set congestion control \"{}\" (available: {})", params.congestion, available.trim());
        (action, errno.into())
    })?;
    if params.window_bytes > 0 {
        let window = params.window_bytes as usize;
        set_buffers(socket, window).map_err(|error| (format!("set socket buffers of {window} bytes"), error))?;
    }
    if params.receive_window_bytes > 0 {
        let window = params.receive_window_bytes;
        limit_receive_window(socket, window)
            .map_err(|error| (format!("limit the receive window to {window} bytes"), error))?;
    }
    Ok(())
}

/// Limits the receive window and fixes the receive buffer. With an automatically sized buffer, the kernel would let the
/// window grow.
fn limit_receive_window(socket: &OwnedFd, bytes: u32) -> io::Result<()> {
    setsockopt(socket, sockopt::RcvBuf, &(bytes as usize * RECEIVE_WINDOW_BUFFERS as usize))?;
    set_tcp_window_clamp(socket, bytes)
}

fn set_busy_poll(socket: &impl AsFd, params: &Params) -> io::Result<()> {
    if params.busy_poll_usecs == 0 {
        Ok(())
    } else {
        offramp_ports::socket::set_busy_poll(socket, params.busy_poll_usecs)
    }
}

fn set_buffers(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    setsockopt(socket, sockopt::RcvBuf, &bytes)?;
    Ok(setsockopt(socket, sockopt::SndBuf, &bytes)?)
}

/// Formats a failure as one sentence for the other end of the control connection.
pub(super) fn sentence((action, error): (String, io::Error)) -> String {
    format!("cannot {action}: {}", reason(&error))
}
