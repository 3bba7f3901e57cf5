//! The message channel: one frontend at a time, over a Unix socket that is ours or the frontend's.
//!
//! Crate `vhost` reads and answers the messages. Three of the protocol's it does not know (`SET_STATUS`,
//! `GET_STATUS`, `NET_SET_MTU`), and `SET_VRING_ENABLE` it refuses before `SET_FEATURES`, where QEMU sends it:
//! those are taken from the socket before it sees them. It also reads a message
//! without looking whether all of it is there: it is called only when it is, so that a frontend that stops
//! in the middle cannot hold the thread.

use super::counters::ChannelCounters;
use super::device::Device;
use super::{Mode, PortStatus, VhostUserConfig};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{MsgFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// Bytes of a message's header: request, flags, size (vhost-user, "Message specification").
const HEADER_LEN: usize = 12;
/// Longest payload that any message has: a table of 32 regions and some room.
const PAYLOAD_LEN_MAX: usize = 4096;
const PAYLOAD_U64_LEN: usize = 8;
/// Header flags: version 1, and that this is a reply.
const REPLY_FLAGS: u32 = 0x1 | 0x4;
/// Header flag: the sender wants an answer.
const NEED_REPLY: u32 = 0x8;
const SET_VRING_ENABLE: u32 = 18;
const NET_SET_MTU: u32 = 20;
const SET_STATUS: u32 = 39;
const GET_STATUS: u32 = 40;
/// How long the rest of a message may take to come.
const REST_PATIENCE: Duration = Duration::from_secs(1);
const REST_POLL: Duration = Duration::from_millis(1);
/// How long a client waits before it tries to connect again.
const RECONNECT_INTERVAL_MS: u16 = 100;

/// What the control thread works with.
pub(super) struct Session {
    pub config: VhostUserConfig,
    pub device: Arc<Mutex<Device>>,
    pub counters: Arc<ChannelCounters>,
    pub status: Arc<Mutex<PortStatus>>,
    pub stop: Arc<EventFd>,
}

/// Why a connection ended.
enum End {
    /// The port is dropped.
    Stopped,
    /// The frontend went, or said something that it may not.
    Gone,
}

/// The header of a message that is not taken from the socket yet.
#[derive(Clone, Copy)]
struct Header {
    request: u32,
    flags: u32,
    size: usize,
}

impl Header {
    fn parse(bytes: [u8; HEADER_LEN]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { request: word(0), flags: word(4), size: word(8) as usize }
    }
}

/// A message that cannot be read: the connection is of no more use.
struct Unreadable;

impl Session {
    /// Serves frontends, one after the other, until the port is dropped.
    pub fn run(mut self, listener: Option<&UnixListener>) {
        while let Some(stream) = self.next_frontend(listener) {
            self.counters.connected();
            let end = self.serve(stream, listener);
            self.device().reset();
            self.tell(false);
            // A client whose frontend hangs up at once does not call again at once.
            if matches!(end, End::Stopped) || (listener.is_none() && self.is_stopped_within(RECONNECT_INTERVAL_MS)) {
                return;
            }
        }
    }

    /// A panic in a handler leaves a device that a reset makes whole again.
    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings up to date what the outside sees.
    fn tell(&self, is_connected: bool) {
        let device = self.device();
        let status = PortStatus {
            is_connected,
            features: device.features(),
            protocol_features: device.protocol_features(),
            device_status: device.device_status(),
            frontend_mtu: device.frontend_mtu(),
            ring_entries: device.ring_entries(),
            memory_regions: device.memory_size().0,
            memory_bytes: device.memory_size().1,
        };
        drop(device);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Waits for a frontend; `None` when the port is dropped.
    fn next_frontend(&self, listener: Option<&UnixListener>) -> Option<UnixStream> {
        match listener {
            Some(listener) => loop {
                let mut fds = [readable(&*self.stop), readable(listener)];
                wait(&mut fds, PollTimeout::NONE);
                if is_ready(&fds[0]) {
                    return None;
                }
                if let Ok((stream, _)) = listener.accept() {
                    return Some(stream);
                }
            },
            None => loop {
                if let Ok(stream) = UnixStream::connect(&self.config.socket) {
                    return Some(stream);
                }
                if self.is_stopped_within(RECONNECT_INTERVAL_MS) {
                    return None;
                }
            },
        }
    }

    fn is_stopped_within(&self, interval_ms: u16) -> bool {
        let mut fds = [readable(&*self.stop)];
        wait(&mut fds, PollTimeout::from(interval_ms));
        is_ready(&fds[0])
    }

    fn serve(&mut self, stream: UnixStream, listener: Option<&UnixListener>) -> End {
        let Ok(own) = stream.try_clone() else { return End::Gone };
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&self.device));
        self.tell(true);
        loop {
            let mut fds = vec![readable(&*self.stop), readable(&own)];
            fds.extend(listener.map(readable));
            wait(&mut fds, PollTimeout::NONE);
            if is_ready(&fds[0]) {
                return End::Stopped;
            }
            if fds.get(2).is_some_and(is_ready) {
                self.turn_away(listener);
            }
            if !is_ready(&fds[1]) {
                continue;
            }
            match self.handle(&own, &mut handler) {
                Ok(true) => self.counters.message(),
                Ok(false) => return End::Gone,
                Err(Unreadable) => {
                    self.counters.bad_message();
                    return End::Gone;
                }
            }
            self.tell(true);
        }
    }

    /// A second frontend cannot have the same device.
    fn turn_away(&self, listener: Option<&UnixListener>) {
        if listener.is_some_and(|listener| listener.accept().is_ok()) {
            self.counters.refused();
        }
    }

    /// Handles one message; `false` when the frontend has gone.
    fn handle(
        &mut self,
        stream: &UnixStream,
        handler: &mut BackendReqHandler<Mutex<Device>>,
    ) -> Result<bool, Unreadable> {
        let Some(header) = peek(stream)? else { return Ok(false) };
        match header.request {
            SET_VRING_ENABLE | NET_SET_MTU | SET_STATUS | GET_STATUS => self.handle_own(stream, header)?,
            _ => handler.handle_request().map_err(|_| Unreadable)?,
        }
        Ok(true)
    }

    /// A message that crate `vhost` does not take. Their payloads have 8 bytes or none.
    fn handle_own(&self, stream: &UnixStream, header: Header) -> Result<(), Unreadable> {
        let expected = if header.request == GET_STATUS { 0 } else { PAYLOAD_U64_LEN };
        if header.size != expected || header.flags & 3 != 1 {
            return Err(Unreadable);
        }
        let mut bytes = [0; HEADER_LEN + PAYLOAD_U64_LEN];
        let message = &mut bytes[..HEADER_LEN + expected];
        // Descriptors that came along are closed by the kernel: there is no room for them.
        match recv(stream.as_raw_fd(), message, MsgFlags::MSG_DONTWAIT) {
            Ok(len) if len == message.len() => {}
            _ => return Err(Unreadable),
        }
        let value = bytes[HEADER_LEN..].try_into().map_or(0, u64::from_ne_bytes);
        let done = match header.request {
            GET_STATUS => {
                let status = self.device().device_status();
                return reply(stream, GET_STATUS, u64::from(status));
            }
            // A vring's state: its index in the first four bytes, 0 or 1 behind it.
            SET_VRING_ENABLE => self.device().enable(value as u32 as usize, (value >> 32) as u32),
            SET_STATUS => self.device().set_status(value as u8),
            _ => self.device().set_mtu(value),
        };
        let can_ack = VhostUserProtocolFeatures::REPLY_ACK.bits();
        if header.flags & NEED_REPLY != 0 && self.device().protocol_features() & can_ack != 0 {
            reply(stream, header.request, u64::from(done.is_err()))?;
        }
        done.map_err(|_| Unreadable)
    }
}

/// Looks at the next message once all of it is there; `None` when the frontend has gone.
fn peek(stream: &UnixStream) -> Result<Option<Header>, Unreadable> {
    let deadline = Instant::now() + REST_PATIENCE;
    loop {
        let mut bytes = [0; HEADER_LEN];
        match recv(stream.as_raw_fd(), &mut bytes, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Ok(None),
            Ok(HEADER_LEN) => {
                let header = Header::parse(bytes);
                if header.size > PAYLOAD_LEN_MAX {
                    return Err(Unreadable);
                }
                if waiting_len(stream).map_err(|_| Unreadable)? >= HEADER_LEN + header.size {
                    return Ok(Some(header));
                }
            }
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => return Ok(None),
        }
        if Instant::now() > deadline {
            return Err(Unreadable);
        }
        std::thread::sleep(REST_POLL);
    }
}

/// Bytes that wait in a socket.
fn waiting_len(stream: &UnixStream) -> io::Result<usize> {
    let mut len: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which `len` is, and the descriptor is open.
    Errno::result(unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut len) })?;
    Ok(usize::try_from(len).unwrap_or(0))
}

fn reply(stream: &UnixStream, request: u32, value: u64) -> Result<(), Unreadable> {
    let mut bytes = [0; HEADER_LEN + PAYLOAD_U64_LEN];
    for (at, word) in [request, REPLY_FLAGS, PAYLOAD_U64_LEN as u32].into_iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[HEADER_LEN..].copy_from_slice(&value.to_ne_bytes());
    match send(stream.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL) {
        Ok(len) if len == bytes.len() => Ok(()),
        _ => Err(Unreadable),
    }
}

fn readable<F: AsFd>(fd: &F) -> PollFd<'_> {
    PollFd::new(fd.as_fd(), PollFlags::POLLIN)
}

fn is_ready(fd: &PollFd) -> bool {
    fd.any().unwrap_or(false)
}

fn wait(fds: &mut [PollFd], timeout: PollTimeout) {
    // Interrupted: the caller looks, finds nothing and waits again.
    let _ = poll(fds, timeout);
}

/// Opens the socket of a server. One that a dead backend left is replaced; one that is listened on is not.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let is_dead = UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
            if !is_dead {
                return Err(e);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
    .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
}

impl Mode {
    /// The listener of a server, none for a client.
    pub(super) fn listener(self, path: &Path) -> io::Result<Option<UnixListener>> {
        match self {
            Self::Server => listen(path).map(Some),
            Self::Client => Ok(None),
        }
    }
}
