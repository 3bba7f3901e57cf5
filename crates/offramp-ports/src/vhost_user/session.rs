//! The message channel: one frontend at a time, over a Unix socket that is ours or the frontend's.
//!
//! Crate `vhost` reads and answers the messages. Some are taken from the socket before it sees them: those of the
//! protocol that it does not know (`SET_STATUS`, `GET_STATUS`, `NET_SET_MTU`, `SEND_RARP`), `SET_VRING_ENABLE`, which it
//! refuses before `SET_FEATURES`, where QEMU sends it, `SET_MEM_TABLE`, which it refuses with bytes after the last region,
//! as User Mode Linux sends it, and `SET_BACKEND_REQ_FD`, of which it would make a channel that waits for each answer.
//!
//! It gets each message whole, on a socket of its own, and its answers are passed on: a frontend that stops in the middle
//! cannot hold the thread.

use super::channel::{Channel, Ended};
use super::counters::ChannelCounters;
use super::device::Device;
use super::link::{Link, Presence};
use super::mem_table;
use super::message::{
    HEADER_LEN, Header, Incoming, MESSAGE_LEN_MAX, Message, Next, Unreadable, receive_with_fds, send_with_fds,
};
use super::{Observer, PortEvent, PortStatus, VhostUserConfig};
use crate::sys::link::CarrierWatch;
use crate::worker::{LOOK, thread_time_ns};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use offramp_offload::sync::lock;
use offramp_virtio::sigbus::Alarm;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

const PAYLOAD_U64_LEN: usize = 8;
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
/// How long a full socket may take to be read.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long a server that cannot accept a frontend, as without a descriptor left, waits before it tries again.
const ACCEPT_INTERVAL_MS: u16 = 100;
/// How long a client waits before it tries to connect again.
const RECONNECT_INTERVAL_MS: u16 = 100;
/// Time that each command of the guest has, so that 500 are obeyed in a second. Chosen after runs of `benches/hostile_neighbour.rs`.
const COMMAND_INTERVAL: Duration = Duration::from_millis(2);
/// A command counts as this many times the processor time that it took: commands with large tables leave others seven eighths of
/// a processor. Chosen, not measured.
const COMMAND_SHARE: u32 = 8;
/// How many commands may be ahead of their time when the next is obeyed. Chosen like the interval.
const COMMAND_BURST: u32 = 32;

/// What the control thread works with.
pub(super) struct Session {
    pub config: VhostUserConfig,
    pub device: Arc<Mutex<Device>>,
    pub counters: Arc<ChannelCounters>,
    pub status: Arc<Mutex<PortStatus>>,
    pub stop: Arc<EventFd>,
    /// Why a frontend was last disconnected.
    pub last_refusal: Option<String>,
    /// Rings when the frontend took away memory that it had shared, or is to be disconnected.
    pub alarm: Alarm,
    /// Why it is to be disconnected.
    pub ended: Arc<Mutex<Option<String>>>,
    pub link: Arc<Link>,
    /// Sets the link, if an interface is on the wire.
    pub carrier: Option<CarrierWatch>,
    /// Tracks whether a frontend is connected.
    pub presence: Arc<Presence>,
    /// Where changes of the configuration are reported.
    pub channel: Option<Channel>,
    /// Hears what happens.
    pub observer: Observer,
}

/// Why a connection ended.
enum End {
    /// The port is dropped.
    Stopped,
    /// The frontend went, or was disconnected for that reason.
    Gone(Option<String>),
}

/// Crate `vhost`, which reads messages from a socket of its own.
struct Handler {
    near: UnixStream,
    far: BackendReqHandler<Mutex<Device>>,
}

/// How fast a guest's commands are obeyed. Each takes processor time from the frames of others.
#[derive(Debug, Default)]
struct Pace {
    /// When the commands so far have had their time.
    busy_until: Option<Instant>,
}

impl Pace {
    /// When the next command is obeyed, where that is not now.
    fn next_turn(&self, now: Instant) -> Option<Instant> {
        self.busy_until?.checked_sub(COMMAND_BURST * COMMAND_INTERVAL).filter(|turn| *turn > now)
    }

    fn obeyed(&mut self, now: Instant, took: Duration) {
        self.wait(now, COMMAND_INTERVAL.max(COMMAND_SHARE * took));
    }

    /// A guest that kicks without a command costs time, too.
    fn found_none(&mut self, now: Instant, took: Duration) {
        self.wait(now, COMMAND_SHARE * took);
    }

    fn wait(&mut self, now: Instant, wait: Duration) {
        let from = self.busy_until.map_or(now, |until| until.max(now));
        self.busy_until = Some(from + wait);
    }
}

impl Handler {
    fn new(device: &Arc<Mutex<Device>>) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        Ok(Self { near, far: BackendReqHandler::from_stream(far, Arc::clone(device)) })
    }

    /// Has a message handled, and passes the answer on.
    fn handle(&mut self, message: Message, stream: &UnixStream) -> Result<(), Unreadable> {
        message.send(&self.near)?;
        drop(message);
        let handled = self.far.handle_request();
        let mut answer = [0; MESSAGE_LEN_MAX];
        match receive_with_fds(&self.near, &mut answer) {
            Ok((len, fds)) => send_with_fds(stream, &answer[..len], &fds)?,
            Err(Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(handled?)
    }
}

impl Session {
    /// Serves frontends, one after the other, until the port is dropped.
    pub fn run(mut self, listener: Option<&UnixListener>) {
        while let Some(stream) = self.next_frontend(listener) {
            self.counters.connections.add(1);
            (self.observer)(PortEvent::Connected);
            let end = self.serve(&stream, listener);
            self.channel = None;
            self.device().reset();
            // After the reset nobody touches that memory. An error means that it never rang.
            let _ = self.alarm.read();
            let reason = match &end {
                End::Gone(reason) => reason.clone(),
                End::Stopped => Some("the port was removed".to_owned()),
            };
            if matches!(end, End::Gone(Some(_))) {
                self.last_refusal.clone_from(&reason);
            }
            self.tell(false);
            (self.observer)(PortEvent::Disconnected { reason });
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
            control: device.control_status(),
            last_refusal: self.last_refusal.clone(),
        };
        drop(device);
        self.presence.set(is_connected);
        let features = status.features;
        let before = std::mem::replace(&mut *lock(&self.status), status);
        if features != before.features && features != 0 {
            (self.observer)(PortEvent::Negotiated { features });
        }
    }

    /// Waits for a frontend; `None` when the port is dropped.
    fn next_frontend(&mut self, listener: Option<&UnixListener>) -> Option<UnixStream> {
        match listener {
            Some(listener) => loop {
                let mut fds = [readable(&*self.stop), readable(listener)];
                wait(&mut fds, PollTimeout::NONE);
                if is_ready(&fds[0]) {
                    return None;
                }
                match listener.accept() {
                    Ok((stream, _)) if self.is_allowed(&stream) => return Some(stream),
                    Ok(_) => self.counters.refused_connections.add(1),
                    // Without a descriptor for it, it waits, and is there at the next look, too.
                    Err(_) if self.is_stopped_within(ACCEPT_INTERVAL_MS) => return None,
                    Err(_) => {}
                }
            },
            None => loop {
                if let Ok(stream) = UnixStream::connect(&self.config.socket) {
                    if self.is_allowed(&stream) {
                        return Some(stream);
                    }
                    self.counters.refused_connections.add(1);
                }
                if self.is_stopped_within(RECONNECT_INTERVAL_MS) {
                    return None;
                }
            },
        }
    }

    /// Whether the peer is of the user that may be a frontend: of a server, who connected; of a client, who listens.
    fn is_allowed(&mut self, stream: &UnixStream) -> bool {
        let Some(allowed) = self.config.allowed_uid else { return true };
        let peer = getsockopt(stream, PeerCredentials).map(|peer| peer.uid());
        if peer == Ok(allowed) {
            return true;
        }
        let who = peer.map_or("an unknown user".to_owned(), |uid| format!("uid {uid}"));
        self.last_refusal = Some(format!("{who} is not the uid {allowed} that may be the frontend"));
        self.tell(false);
        false
    }

    fn is_stopped_within(&self, interval_ms: u16) -> bool {
        let mut fds = [readable(&*self.stop)];
        wait(&mut fds, PollTimeout::from(interval_ms));
        is_ready(&fds[0])
    }

    fn serve(&mut self, stream: &UnixStream, listener: Option<&UnixListener>) -> End {
        let Ok(mut handler) = Handler::new(&self.device) else {
            // It has taken the last descriptor: one that comes again at once would be turned away as fast as it comes.
            self.is_stopped_within(ACCEPT_INTERVAL_MS);
            return End::Gone(Some("the process has no descriptor left for it".to_owned()));
        };
        let mut incoming = Incoming::default();
        let mut pace = Pace::default();
        self.tell(true);
        loop {
            self.update_link();
            let commands_at = self.serve_control(&mut pace);
            let kick = if commands_at.is_none() { self.device().control_kick() } else { None };
            let mut fds = vec![readable(&*self.stop), readable(stream), readable(&*self.alarm), readable(&*self.link)];
            fds.extend(self.carrier.as_ref().map(readable));
            fds.extend(self.channel.as_ref().map(readable));
            fds.extend(kick.as_ref().map(readable));
            fds.extend(listener.map(readable));
            wait(&mut fds, until(incoming.deadline().into_iter().chain(commands_at).min()));
            if is_ready(&fds[0]) {
                return End::Stopped;
            }
            if is_ready(&fds[2]) {
                return End::Gone(lock(&self.ended).take().or_else(|| {
                    self.counters.lost_memories.add(1);
                    Some("the memory that was shared is gone: its file was made shorter".to_owned())
                }));
            }
            if !is_ready(&fds[1]) && !incoming.is_late() {
                self.turn_away(listener, stream);
                continue;
            }
            match self.receive(stream, &mut incoming, &mut handler) {
                Ok(Next::Whole(())) => self.counters.messages.add(1),
                Ok(Next::Part) => continue,
                Ok(Next::Gone) => return End::Gone(None),
                Err(Unreadable(why)) => {
                    self.counters.bad_messages.add(1);
                    return End::Gone(Some(why));
                }
            }
            self.tell(true);
        }
    }

    /// Obeys a command of the guest. Where there may be more, returns when it is their turn.
    fn serve_control(&self, pace: &mut Pace) -> Option<Instant> {
        let now = Instant::now();
        if let Some(turn) = pace.next_turn(now) {
            return Some(turn);
        }
        let began_ns = thread_time_ns();
        let took = || Duration::from_nanos(thread_time_ns().saturating_sub(began_ns));
        if !self.device().serve_control() {
            pace.found_none(now, took());
            return self.device().is_control_unannounced().then(|| now + LOOK);
        }
        self.tell(true);
        let now = Instant::now();
        pace.obeyed(now, took());
        Some(pace.next_turn(now).unwrap_or(now))
    }

    /// Reports a change of the link to the frontend, and reads its answer to the last report. This costs little beside
    /// a message, so it is done before each wait.
    fn update_link(&mut self) {
        self.link.clear();
        if let Some(carrier) = &mut self.carrier
            && let Some(is_up) = carrier.poll()
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
            self.counters.refused_config_changes.add(1);
        }
        if is_news {
            self.counters.config_changes.add(1);
            channel.report_config_change()?;
        }
        Ok(())
    }

    /// A second frontend cannot have the same device; one that comes after the end of the first can.
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
            Ok(_) => self.counters.refused_connections.add(1),
            // As above; what the first one says does not wait.
            Err(_) => wait(&mut [readable(&*self.stop), readable(own)], PollTimeout::from(ACCEPT_INTERVAL_MS)),
        }
    }

    /// Reads as much of a message as is there, and handles it once it is whole.
    fn receive(
        &mut self,
        stream: &UnixStream,
        incoming: &mut Incoming,
        handler: &mut Handler,
    ) -> Result<Next<()>, Unreadable> {
        if incoming.is_late() {
            return Err(Unreadable("half a message, and no more of it".to_owned()));
        }
        let message = match incoming.receive(stream)? {
            Next::Whole(message) => message,
            Next::Part => return Ok(Next::Part),
            Next::Gone => return Ok(Next::Gone),
        };
        has_room_for_an_answer(stream)?;
        let request = message.header.request;
        let handled = self.handle(stream, handler, message);
        handled.map_err(|Unreadable(why)| Unreadable(format!("message {request}: {why}")))?;
        Ok(Next::Whole(()))
    }

    fn handle(&mut self, stream: &UnixStream, handler: &mut Handler, message: Message) -> Result<(), Unreadable> {
        match message.header.request {
            SET_VRING_ENABLE | SEND_RARP | NET_SET_MTU | SET_BACKEND_REQ_FD | SET_STATUS | GET_STATUS => {
                self.handle_own(stream, message)
            }
            SET_MEM_TABLE => self.set_mem_table(stream, message),
            _ => handler.handle(message, stream),
        }
    }

    /// A message that crate `vhost` does not take. Their payloads have 8 bytes or none.
    fn handle_own(&mut self, stream: &UnixStream, message: Message) -> Result<(), Unreadable> {
        let header = message.header;
        let expected = if matches!(header.request, GET_STATUS | SET_BACKEND_REQ_FD) { 0 } else { PAYLOAD_U64_LEN };
        if header.size != expected || header.flags & 3 != 1 {
            return Err(Unreadable(format!("{} bytes and flags {:#x}", header.size, header.flags)));
        }
        let value = message.payload().try_into().map_or(0, u64::from_ne_bytes);
        let done = match header.request {
            GET_STATUS => {
                let status = self.device().device_status();
                return reply(stream, GET_STATUS, u64::from(status));
            }
            // A vring's state: its index in the first four bytes, then 0 or 1.
            SET_VRING_ENABLE => self.device().enable(value as u32 as usize, (value >> 32) as u32),
            SET_STATUS => self.device().set_status(value as u8),
            SEND_RARP => self.device().send_rarp(value, self.channel.is_some()),
            SET_BACKEND_REQ_FD => return self.set_channel(stream, header, message.fds),
            _ => self.device().set_mtu(value),
        };
        self.acknowledge(stream, header, done.is_ok())?;
        Ok(done?)
    }

    /// `SET_MEM_TABLE`.
    fn set_mem_table(&mut self, stream: &UnixStream, message: Message) -> Result<(), Unreadable> {
        let header = message.header;
        if header.flags & !NEED_REPLY != VERSION {
            return Err(Unreadable(format!("flags {:#x}", header.flags)));
        }
        let (payload, fds) = message.into_parts();
        let done = match mem_table::parse(&payload[HEADER_LEN..], fds) {
            Ok(table) => self.device().set_memory(&table).map_err(Unreadable::from),
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

/// Waits until an answer can be sent: a frontend that asks and never reads would hold the thread in `send`.
fn has_room_for_an_answer(stream: &UnixStream) -> Result<(), Unreadable> {
    // Writable means that most of the socket's buffer is free, which is more than any answer has.
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    wait(&mut fds, PollTimeout::try_from(ANSWER_PATIENCE).unwrap_or(PollTimeout::ZERO));
    if is_ready(&fds[0]) { Ok(()) } else { Err(Unreadable("answers that nobody reads".to_owned())) }
}

fn reply(stream: &UnixStream, request: u32, value: u64) -> Result<(), Unreadable> {
    let mut bytes = [0; HEADER_LEN + PAYLOAD_U64_LEN];
    for (at, word) in [request, REPLY_FLAGS, PAYLOAD_U64_LEN as u32].into_iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[HEADER_LEN..].copy_from_slice(&value.to_ne_bytes());
    send_with_fds(stream, &bytes, &[])
}

fn readable<F: AsFd>(fd: &F) -> PollFd<'_> {
    PollFd::new(fd.as_fd(), PollFlags::POLLIN)
}

fn is_ready(fd: &PollFd) -> bool {
    fd.any().unwrap_or(false)
}

/// How long to wait at most. A millisecond more than is left: the moment is then past.
fn until(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    left.and_then(|left| PollTimeout::try_from(left + Duration::from_millis(1)).ok()).unwrap_or(PollTimeout::ZERO)
}

fn wait(fds: &mut [PollFd], timeout: PollTimeout) {
    // Interrupted: the caller looks, finds nothing and waits again.
    let _ = poll(fds, timeout);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_sends_commands_without_end_is_obeyed_at_the_pace_and_another_one_at_once() {
        let began = Instant::now();
        let (mut pace, mut now, mut obeyed) = (Pace::default(), began, 0);
        while now < began + 1000 * COMMAND_INTERVAL {
            now = pace.next_turn(now).unwrap_or(now);
            pace.obeyed(now, Duration::ZERO);
            obeyed += 1;
        }
        assert!((1000..=1000 + COMMAND_BURST + 1).contains(&obeyed), "{obeyed}");
        // It has as many at once again when it has been quiet for their time.
        now += 2 * COMMAND_BURST * COMMAND_INTERVAL;
        for _ in 0..COMMAND_BURST {
            assert_eq!(pace.next_turn(now), None);
            pace.obeyed(now, Duration::ZERO);
        }
        for _ in 0..1000 {
            now += COMMAND_INTERVAL;
            assert_eq!(pace.next_turn(now), None, "a command each interval never waits");
            pace.obeyed(now, Duration::ZERO);
        }
    }

    #[test]
    fn a_long_time_for_commands_or_for_kicks_without_one_is_followed_by_a_longer_wait() {
        const TOOK: Duration = Duration::from_millis(10);
        for count in [Pace::obeyed, Pace::found_none] {
            let began = Instant::now();
            let (mut pace, mut now) = (Pace::default(), began);
            for _ in 0..100 {
                now = pace.next_turn(now).unwrap_or(now) + TOOK;
                count(&mut pace, now, TOOK);
            }
            // But for the last one, and for the burst.
            assert!(now - began + COMMAND_BURST * COMMAND_INTERVAL >= 99 * COMMAND_SHARE * TOOK);
        }
    }
}
