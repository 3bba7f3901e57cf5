//! The message channel: one frontend at a time, over a Unix socket that is ours or the frontend's.
//!
//! Crate `vhost` reads and answers the messages. Some are taken from the socket before it sees them: those of the
//! protocol that it does not know (`SET_STATUS`, `GET_STATUS`, `NET_SET_MTU`, `SEND_RARP`), `SET_VRING_ENABLE`, which it
//! refuses before `SET_FEATURES`, where QEMU sends it, `SET_MEM_TABLE`, which it refuses with bytes after the last region,
//! as User Mode Linux sends it, and `SET_BACKEND_REQ_FD`, of which it would make a channel that waits for each answer. It also reads a message without looking whether all of it is there: it is called only when it
//! is, so that a frontend that stops in the middle cannot hold the thread.

use super::channel::{Channel, Ended};
use super::counters::ChannelCounters;
use super::device::Device;
use super::link::{Link, Presence};
use super::mem_table;
use super::{PortStatus, VhostUserConfig};
use crate::sys::link::CarrierWatch;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};
use offramp_offload::sync::lock;
use offramp_virtio::memory::REGIONS_MAX;
use offramp_virtio::sigbus::Alarm;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// Bytes of a message's header: request, flags, size (vhost-user, "Message specification").
const HEADER_LEN: usize = 12;
/// Longest payload that any message has: a table of 32 regions and some room.
const PAYLOAD_LEN_MAX: usize = 4096;
const PAYLOAD_U64_LEN: usize = 8;
/// Most descriptors of a message: one for each region of a table.
const FDS_MAX: usize = REGIONS_MAX;
/// Bytes of control data in which the kernel hands over as many descriptors as one message can have
/// (`SCM_MAX_FD` of unix(7), 253), and their header.
const CONTROL_LEN: usize = 16 + 253 * FD_LEN;
/// Bytes of a descriptor in control data.
const FD_LEN: usize = size_of::<libc::c_int>();
/// Header flags: version 1.
const VERSION: u32 = 0x1;
/// Header flags: version 1, and that this is a reply.
const REPLY_FLAGS: u32 = VERSION | 0x4;
/// Header flag: the sender wants an answer.
const NEED_REPLY: u32 = 0x8;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_ENABLE: u32 = 18;
const SEND_RARP: u32 = 19;
const NET_SET_MTU: u32 = 20;
const SET_BACKEND_REQ_FD: u32 = 21;
const SET_STATUS: u32 = 39;
const GET_STATUS: u32 = 40;
/// How long the rest of a message may take to come, and a full socket to be read.
const REST_PATIENCE: Duration = Duration::from_secs(1);
const REST_POLL: Duration = Duration::from_millis(1);
/// How long a server that cannot accept a frontend, as without a descriptor left, waits before it tries again.
const ACCEPT_INTERVAL_MS: u16 = 100;
/// How long a client waits before it tries to connect again.
const RECONNECT_INTERVAL_MS: u16 = 100;

/// What the control thread works with.
pub(super) struct Session {
    pub config: VhostUserConfig,
    pub device: Arc<Mutex<Device>>,
    pub counters: Arc<ChannelCounters>,
    pub status: Arc<Mutex<PortStatus>>,
    pub stop: Arc<EventFd>,
    /// Why a frontend was last sent away.
    pub last_refusal: Option<String>,
    /// Rings when the frontend took away memory that it had shared.
    pub alarm: Alarm,
    pub link: Arc<Link>,
    /// What sets the link, if an interface is on the line.
    pub carrier: Option<CarrierWatch>,
    /// Where it is said whether a frontend is there.
    pub presence: Arc<Presence>,
    /// Where the frontend hears of this side.
    pub channel: Option<Channel>,
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

/// A message that cannot be read or was refused, and why: the connection is of no more use.
struct Unreadable(String);

impl<E: std::error::Error> From<E> for Unreadable {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl Session {
    /// Serves frontends, one after the other, until the port is dropped.
    pub fn run(mut self, listener: Option<&UnixListener>) {
        while let Some(stream) = self.next_frontend(listener) {
            self.counters.connected();
            let end = self.serve(stream, listener);
            self.channel = None;
            self.device().reset();
            // Behind the reset: nobody touches that memory any more. Empty: it never rang.
            let _ = self.alarm.read();
            self.tell(false);
            // A client whose frontend hangs up at once does not call again at once.
            if matches!(end, End::Stopped) || (listener.is_none() && self.is_stopped_within(RECONNECT_INTERVAL_MS)) {
                return;
            }
        }
    }

    /// A panic in a handler leaves a device that a reset makes whole again.
    fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.device)
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
            last_refusal: self.last_refusal.clone(),
        };
        drop(device);
        self.presence.set(is_connected);
        *lock(&self.status) = status;
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
                match listener.accept() {
                    Ok((stream, _)) => return Some(stream),
                    // Without a descriptor for it, it waits, and is there at the next look, too.
                    Err(_) if self.is_stopped_within(ACCEPT_INTERVAL_MS) => return None,
                    Err(_) => {}
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
        let Ok(own) = stream.try_clone() else {
            // It has taken the last descriptor: one that comes again at once would be turned away as fast as it comes.
            self.is_stopped_within(ACCEPT_INTERVAL_MS);
            return End::Gone;
        };
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&self.device));
        self.tell(true);
        loop {
            self.look_at_the_line();
            let mut fds = vec![readable(&*self.stop), readable(&own), readable(&*self.alarm), readable(&*self.link)];
            fds.extend(self.carrier.as_ref().map(readable));
            fds.extend(self.channel.as_ref().map(readable));
            fds.extend(listener.map(readable));
            wait(&mut fds, PollTimeout::NONE);
            if is_ready(&fds[0]) {
                return End::Stopped;
            }
            if is_ready(&fds[2]) {
                self.counters.lost_memory();
                self.last_refusal = Some("the memory that was shared is gone: its file was made shorter".to_owned());
                return End::Gone;
            }
            if !is_ready(&fds[1]) {
                self.turn_away(listener, &own);
                continue;
            }
            match self.handle(&own, &mut handler) {
                Ok(true) => self.counters.message(),
                Ok(false) => return End::Gone,
                Err(Unreadable(why)) => {
                    self.counters.bad_message();
                    self.last_refusal = Some(why);
                    return End::Gone;
                }
            }
            self.tell(true);
        }
    }

    /// Tells the frontend of a change of the line, and hears what it says of one that it was told. Both may have
    /// something at any time; a look costs little beside a message.
    fn look_at_the_line(&mut self) {
        self.link.silence();
        if let Some(carrier) = &mut self.carrier
            && let Some(is_up) = carrier.look()
        {
            self.link.set_up(is_up);
        }
        if let Err(ended) = self.serve_channel() {
            // The frontend has still the connection, on which it may give another channel.
            self.channel = None;
            self.last_refusal = Some(ended.to_string());
        }
    }

    fn serve_channel(&mut self) -> Result<(), Ended> {
        if self.channel.is_none() {
            return Ok(());
        }
        let is_news = self.device().is_config_news();
        let Some(channel) = &mut self.channel else { return Ok(()) };
        if channel.serve()? == Some(false) {
            self.counters.refused_config_change();
        }
        if is_news {
            self.counters.config_change();
            channel.tell_config_changed()?;
        }
        Ok(())
    }

    /// A second frontend cannot have the same device; one that comes behind the end of the first can.
    fn turn_away(&self, listener: Option<&UnixListener>, own: &UnixStream) {
        let Some(listener) = listener else { return };
        let mut fds = [readable(listener), readable(own)];
        // Whoever waits has come before this look, so that a first one that has gone shows in it.
        wait(&mut fds[..1], PollTimeout::ZERO);
        wait(&mut fds[1..], PollTimeout::ZERO);
        if !is_ready(&fds[0]) || is_ready(&fds[1]) {
            return;
        }
        match listener.accept() {
            Ok(_) => self.counters.refused(),
            // As above; what the first one says does not wait.
            Err(_) => wait(&mut [readable(&*self.stop), readable(own)], PollTimeout::from(ACCEPT_INTERVAL_MS)),
        }
    }

    /// Handles one message; `false` when the frontend has gone.
    fn handle(
        &mut self,
        stream: &UnixStream,
        handler: &mut BackendReqHandler<Mutex<Device>>,
    ) -> Result<bool, Unreadable> {
        let Some(header) = peek(stream)? else { return Ok(false) };
        has_room_for_an_answer(stream)?;
        let handled = self.handle_whole(stream, handler, header);
        handled.map_err(|Unreadable(why)| Unreadable(format!("message {}: {why}", header.request)))
    }

    /// Handles a message that is there as a whole.
    fn handle_whole(
        &mut self,
        stream: &UnixStream,
        handler: &mut BackendReqHandler<Mutex<Device>>,
        header: Header,
    ) -> Result<bool, Unreadable> {
        match header.request {
            SET_VRING_ENABLE | SEND_RARP | NET_SET_MTU | SET_BACKEND_REQ_FD | SET_STATUS | GET_STATUS => {
                self.handle_own(stream, header)?;
            }
            SET_MEM_TABLE => self.set_mem_table(stream, header)?,
            _ => handler.handle_request()?,
        }
        Ok(true)
    }

    /// A message that crate `vhost` does not take. Their payloads have 8 bytes or none.
    fn handle_own(&mut self, stream: &UnixStream, header: Header) -> Result<(), Unreadable> {
        let expected = if matches!(header.request, GET_STATUS | SET_BACKEND_REQ_FD) { 0 } else { PAYLOAD_U64_LEN };
        if header.size != expected || header.flags & 3 != 1 {
            return Err(Unreadable(format!("{} bytes and flags {:#x}", header.size, header.flags)));
        }
        let mut bytes = [0; HEADER_LEN + PAYLOAD_U64_LEN];
        let message = &mut bytes[..HEADER_LEN + expected];
        // Descriptors that do not belong to it are closed.
        let fds = receive(stream, message)?;
        let value = bytes[HEADER_LEN..].try_into().map_or(0, u64::from_ne_bytes);
        let done = match header.request {
            GET_STATUS => {
                let status = self.device().device_status();
                return reply(stream, GET_STATUS, u64::from(status));
            }
            // A vring's state: its index in the first four bytes, 0 or 1 behind it.
            SET_VRING_ENABLE => self.device().enable(value as u32 as usize, (value >> 32) as u32),
            SET_STATUS => self.device().set_status(value as u8),
            SEND_RARP => self.device().send_rarp(value),
            SET_BACKEND_REQ_FD => return self.set_channel(stream, header, fds),
            _ => self.device().set_mtu(value),
        };
        self.acknowledge(stream, header, done.is_ok())?;
        Ok(done?)
    }

    /// `SET_MEM_TABLE`. Its payload is as long as the header says, which was found to be no more than any message has.
    fn set_mem_table(&mut self, stream: &UnixStream, header: Header) -> Result<(), Unreadable> {
        if header.flags & !NEED_REPLY != VERSION {
            return Err(Unreadable(format!("flags {:#x}", header.flags)));
        }
        let mut message = vec![0; HEADER_LEN + header.size];
        let fds = receive(stream, &mut message)?;
        let done = match mem_table::parse(&message[HEADER_LEN..], fds) {
            Ok(table) => self.device().set_memory(table).map_err(Unreadable::from),
            Err(bad) => Err(bad.into()),
        };
        self.acknowledge(stream, header, done.is_ok())?;
        done
    }

    fn acknowledge(&self, stream: &UnixStream, header: Header, is_done: bool) -> Result<(), Unreadable> {
        if header.flags & NEED_REPLY != 0 && self.device().speaks(VhostUserProtocolFeatures::REPLY_ACK) {
            reply(stream, header.request, u64::from(!is_done))?;
        }
        Ok(())
    }

    /// `SET_BACKEND_REQ_FD`: a channel in the place of the one before.
    fn set_channel(&mut self, stream: &UnixStream, header: Header, fds: Vec<OwnedFd>) -> Result<(), Unreadable> {
        let is_agreed = self.device().speaks(VhostUserProtocolFeatures::BACKEND_REQ);
        let wants_answers = self.device().speaks(VhostUserProtocolFeatures::REPLY_ACK);
        let made = match <[OwnedFd; 1]>::try_from(fds) {
            Ok([fd]) if is_agreed => Channel::new(fd, wants_answers).map_err(Unreadable::from),
            Ok(_) => Err(Unreadable("BACKEND_REQ was not negotiated".to_owned())),
            Err(fds) => Err(Unreadable(format!("{} descriptors for the backend's channel", fds.len()))),
        };
        self.acknowledge(stream, header, made.is_ok())?;
        self.channel = Some(made?);
        Ok(())
    }
}

/// Takes a message that is there as a whole, and the descriptors that came with it.
fn receive(stream: &UnixStream, message: &mut [u8]) -> Result<Vec<OwnedFd>, Unreadable> {
    let expected = message.len();
    let mut control = nix::cmsg_space!([RawFd; FDS_MAX]);
    let mut parts = [IoSliceMut::new(message)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut fds = Vec::new();
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors, and nobody else knows them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if received.bytes == expected { Ok(fds) } else { Err(Unreadable(format!("{} bytes of it", received.bytes))) }
}

/// Looks at the next message once all of it is there; `None` when the frontend has gone.
fn peek(stream: &UnixStream) -> Result<Option<Header>, Unreadable> {
    let deadline = Instant::now() + REST_PATIENCE;
    loop {
        match peek_bytes(stream) {
            Ok((_, 0, _)) => return Ok(None),
            Ok((bytes, HEADER_LEN, fds)) => {
                let header = Header::parse(bytes);
                if header.size > PAYLOAD_LEN_MAX || fds > FDS_MAX {
                    let Header { request, size, .. } = header;
                    return Err(Unreadable(format!("message {request} of {size} bytes, {fds} descriptors or more")));
                }
                if waiting_len(stream)? >= HEADER_LEN + header.size {
                    return Ok(Some(header));
                }
            }
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => return Ok(None),
        }
        if Instant::now() > deadline {
            return Err(Unreadable("half a message, and no more of it".to_owned()));
        }
        std::thread::sleep(REST_POLL);
    }
}

/// The first bytes that wait in a socket, how many those are, and how many descriptors came with them.
///
/// Descriptors are counted before crate `vhost` sees them: at more than it takes, it loses the message and
/// waits without an end for the rest of it. Looking makes copies of them, which are closed again.
fn peek_bytes(stream: &UnixStream) -> nix::Result<([u8; HEADER_LEN], usize, usize)> {
    let mut bytes = [0; HEADER_LEN];
    let mut control = [0u64; CONTROL_LEN.div_ceil(8)];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all fields of the structure may be 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to buffers of the lengths that it says, which outlive the call.
    let len = Errno::result(unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) })?;
    // SAFETY: the kernel has filled the message in.
    let mut fds = unsafe { close_copies(&message) };
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // More than any message may have.
        fds += FDS_MAX + 1;
    }
    Ok((bytes, len as usize, fds))
}

/// Closes the descriptors of a received message, and says how many they were.
///
/// # Safety
/// The message is one that `recvmsg` has filled in, and nobody else closes its descriptors.
unsafe fn close_copies(message: &libc::msghdr) -> usize {
    let mut count = 0;
    // SAFETY: the message and its control buffer are whole, as the caller promises.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while let Some(header) = NonNull::new(control) {
        // SAFETY: the kernel has written this header.
        let (level, kind, len) =
            unsafe { (header.as_ref().cmsg_level, header.as_ref().cmsg_type, header.as_ref().cmsg_len) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above; the data begins behind the header.
            let data = unsafe { libc::CMSG_DATA(control) };
            // SAFETY: the length of a header without data is a constant.
            let fds = (len - unsafe { libc::CMSG_LEN(0) } as usize) / FD_LEN;
            for at in 0..fds {
                let mut fd = [0; FD_LEN];
                // SAFETY: `fds` descriptors of that length lie there.
                unsafe { std::ptr::copy_nonoverlapping(data.add(at * FD_LEN), fd.as_mut_ptr(), FD_LEN) };
                // SAFETY: the kernel has just made it, and nobody else knows it.
                drop(unsafe { OwnedFd::from_raw_fd(libc::c_int::from_ne_bytes(fd)) });
            }
            count += fds;
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    count
}

/// Waits until an answer can be sent: a frontend that asks and never reads would hold the thread in `send`.
fn has_room_for_an_answer(stream: &UnixStream) -> Result<(), Unreadable> {
    // Writable means that most of the socket's buffer is free, which is more than any answer has.
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    wait(&mut fds, PollTimeout::try_from(REST_PATIENCE).unwrap_or(PollTimeout::ZERO));
    if is_ready(&fds[0]) { Ok(()) } else { Err(Unreadable("answers that nobody reads".to_owned())) }
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
        Ok(len) => Err(Unreadable(format!("the frontend took {len} bytes of an answer"))),
        Err(error) => Err(error.into()),
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
