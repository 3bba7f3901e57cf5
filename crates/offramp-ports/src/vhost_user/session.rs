//! The message channel to one frontend at a time, over a Unix socket created by the port or by the frontend.
//!
//! Crate `vhost` reads and answers most messages. The session itself handles these messages:
//! - `SET_STATUS`, `GET_STATUS`, `NET_SET_MTU` and `SEND_RARP`, because the crate does not support these messages.
//! - `SET_VRING_ENABLE`, because QEMU sends this message before `SET_FEATURES`, where the crate refuses it.
//! - `SET_MEM_TABLE`, because the crate refuses bytes after the last region, which User Mode Linux sends.
//! - `SET_DEVICE_STATE_FD` and `CHECK_DEVICE_STATE`, because the crate loses the reason for a refusal.
//! - `SET_BACKEND_REQ_FD`, because the crate would create a channel that waits for each answer.
//!
//! The session passes each whole message to the crate on a separate socket, and forwards the crate's answer. A frontend
//! that stops in the middle of a message therefore cannot block the thread.

use super::channel::{Channel, Ended};
use super::config::VhostUserConfig;
use super::counters::ChannelCounters;
use super::device::Device;
use super::link::{Link, Presence};
use super::mem_table;
use super::message::{
    HEADER_LEN, Header, Incoming, MESSAGE_LEN_MAX, Message, Next, Unreadable, receive_with_fds, send_with_fds,
};
use super::status::{Observer, PortEvent, PortStatus};
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
/// Header flags: version 1, and the flag of a reply.
const REPLY_FLAGS: u32 = VERSION | 0x4;
/// Header flag: the sender requests a reply.
const NEED_REPLY: u32 = 0x8;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_ENABLE: u32 = 18;
const SEND_RARP: u32 = 19;
const NET_SET_MTU: u32 = 20;
const SET_BACKEND_REQ_FD: u32 = 21;
const SET_STATUS: u32 = 39;
const GET_STATUS: u32 = 40;
const SET_DEVICE_STATE_FD: u32 = 42;
const CHECK_DEVICE_STATE: u32 = 43;
/// Answer to `SET_DEVICE_STATE_FD` that reports an error and no descriptor.
const STATE_REFUSED: u64 = 0x101;
/// Maximum wait for the frontend to read from a full socket.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// Interval in milliseconds before a server retries to accept a frontend, for example after reaching the descriptor
/// limit.
const ACCEPT_INTERVAL_MS: u16 = 100;
/// Interval in milliseconds before a client retries to connect.
const RECONNECT_INTERVAL_MS: u16 = 100;
/// Minimum mean interval between commands of a guest: at most 500 commands/s. The value was chosen after runs of
/// `benches/hostile_neighbour.rs`.
const COMMAND_INTERVAL: Duration = Duration::from_millis(2);
/// Minimum ratio of the interval between two commands to the processor time of the first command. Even commands with
/// large tables therefore leave seven eighths of a processor to other work. The value was chosen, not measured.
const COMMAND_SHARE: u32 = 8;
/// Maximum burst of commands without a wait. Like [`COMMAND_INTERVAL`], the value was chosen after runs of
/// `benches/hostile_neighbour.rs`.
const COMMAND_BURST: u32 = 32;

/// The state of the control thread.
pub(super) struct Session {
    pub config: VhostUserConfig,
    pub device: Arc<Mutex<Device>>,
    pub counters: Arc<ChannelCounters>,
    pub status: Arc<Mutex<PortStatus>>,
    pub stop: Arc<EventFd>,
    /// The reason why a frontend was last refused or disconnected, or why its backend channel ended.
    pub last_refusal: Option<String>,
    /// Wakes this thread when the frontend has truncated the file of shared memory in use, or must be disconnected.
    pub alarm: Alarm,
    /// The reason for a requested disconnection of the frontend.
    pub ended: Arc<Mutex<Option<String>>>,
    pub link: Arc<Link>,
    /// The watch on the interface whose carrier sets the link state, if configured.
    pub carrier: Option<CarrierWatch>,
    /// The presence of a frontend.
    pub presence: Arc<Presence>,
    /// The backend channel, for reports of configuration changes.
    pub channel: Option<Channel>,
    /// The receiver of the port's events.
    pub observer: Observer,
}

/// The reason for the end of a connection.
enum End {
    /// The port was dropped.
    Stopped,
    /// The frontend was disconnected for this reason, or closed the connection (`None`).
    Gone(Option<String>),
}

/// The message handler of crate `vhost`, on a separate socket.
struct Handler {
    near: UnixStream,
    far: BackendReqHandler<Mutex<Device>>,
}

/// The pacing of a guest's commands, because each command takes processor time from other guests' frames.
#[derive(Debug, Default)]
struct Pace {
    /// The time at which the intervals charged for all commands so far end. `None` before the first command.
    busy_until: Option<Instant>,
}

impl Pace {
    /// Returns the earliest time of the next command, or `None` if the next command need not wait.
    fn next_turn(&self, now: Instant) -> Option<Instant> {
        self.busy_until?.checked_sub(COMMAND_BURST * COMMAND_INTERVAL).filter(|turn| *turn > now)
    }

    fn obeyed(&mut self, now: Instant, took: Duration) {
        self.wait(now, COMMAND_INTERVAL.max(COMMAND_SHARE * took));
    }

    /// Charges the processor time of a kick without a command.
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

    /// Passes a message to the crate, and forwards the answer.
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
    /// Serves frontends, one after another, until the port is dropped.
    pub(super) fn run(mut self, listener: Option<&UnixListener>) {
        while let Some(stream) = self.next_frontend(listener) {
            self.counters.connections.add(1);
            (self.observer)(PortEvent::Connected);
            let end = self.serve(&stream, listener);
            self.channel = None;
            self.device().reset();
            // After the reset, no thread accesses the frontend's memory, so clear the alarm's eventfd. The read fails
            // only if no thread has signalled the eventfd.
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
            // A client waits before reconnecting, because the frontend may disconnect immediately.
            if matches!(end, End::Stopped) || (listener.is_none() && self.is_stopped_within(RECONNECT_INTERVAL_MS)) {
                return;
            }
        }
    }

    /// Locks the device, even after a panic in a handler, because a reset restores a consistent state.
    fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.device)
    }

    /// Updates the port's public status.
    fn tell(&self, is_connected: bool) {
        let device = self.device();
        let status = PortStatus {
            is_connected,
            features: device.features(),
            declined: device.declined(),
            protocol_features: device.protocol_features(),
            device_status: device.device_status(),
            frontend_mtu: device.frontend_mtu(),
            ring_entries: device.ring_entries(),
            memory_regions: device.memory().size().0,
            memory_bytes: device.memory().size().1,
            memory_places: device.memory().places(),
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

    /// Waits for a frontend. Returns `None` if the port is dropped.
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
                    // Without a free descriptor, the frontend stays in the backlog until the next attempt.
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

    /// Returns whether the peer belongs to the allowed user. The peer of a server is the connecting process, and the
    /// peer of a client is the listening process.
    fn is_allowed(&mut self, stream: &UnixStream) -> bool {
        let Some(allowed) = self.config.allowed_uid else { return true };
        let peer = getsockopt(stream, PeerCredentials).map(|peer| peer.uid());
        if peer == Ok(allowed) {
            return true;
        }
        let who = peer.map_or("an unknown user".to_owned(), |uid| format!("uid {uid}"));
        self.last_refusal = Some(format!("{who} may not be the frontend, only uid {allowed}"));
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
            // The connection used the last free descriptor. Without this wait, the frontend would reconnect and be
            // refused in a loop.
            self.is_stopped_within(ACCEPT_INTERVAL_MS);
            return End::Gone(Some("no file descriptors left for a connection".to_owned()));
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
                    Some("shared memory lost: the frontend truncated the file".to_owned())
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

    /// Executes one command of the guest. Returns the time of the next attempt if more commands may be available.
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

    /// Reports a change of the link to the frontend, and reads the frontend's answer to the last report. The thread
    /// calls this function before each wait, because the call costs little compared with a message.
    fn update_link(&mut self) {
        self.link.clear();
        if let Some(carrier) = &mut self.carrier
            && let Some(is_up) = carrier.poll()
        {
            self.link.set_up(is_up);
        }
        if let Err(ended) = self.serve_channel() {
            // The connection continues, and the frontend can set another channel.
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

    /// Refuses a second frontend while the first frontend is connected.
    fn turn_away(&self, listener: Option<&UnixListener>, own: &UnixStream) {
        let Some(listener) = listener else { return };
        let mut fds = [readable(listener), readable(own)];
        // Poll the listener first: if the waiting frontend connected after the end of the first connection, the second
        // poll shows that end.
        wait(&mut fds[..1], PollTimeout::ZERO);
        wait(&mut fds[1..], PollTimeout::ZERO);
        if !is_ready(&fds[0]) || is_ready(&fds[1]) {
            return;
        }
        match listener.accept() {
            Ok(_) => self.counters.refused_connections.add(1),
            // Wait as in `next_frontend`, but a message from the first frontend ends the wait.
            Err(_) => wait(&mut [readable(&*self.stop), readable(own)], PollTimeout::from(ACCEPT_INTERVAL_MS)),
        }
    }

    /// Reads the available part of a message, and handles the message as soon as it is complete.
    fn receive(
        &mut self,
        stream: &UnixStream,
        incoming: &mut Incoming,
        handler: &mut Handler,
    ) -> Result<Next<()>, Unreadable> {
        if incoming.is_late() {
            return Err(Unreadable("message incomplete at the deadline".to_owned()));
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
            SET_VRING_ENABLE | SEND_RARP | NET_SET_MTU | SET_BACKEND_REQ_FD | SET_STATUS | GET_STATUS
            | SET_DEVICE_STATE_FD | CHECK_DEVICE_STATE => self.handle_own(stream, message),
            SET_MEM_TABLE => self.set_mem_table(stream, message),
            _ => handler.handle(message, stream),
        }
    }

    /// Handles a message without crate `vhost`. Every message handled here has a payload of 8 bytes or of 0 bytes.
    fn handle_own(&mut self, stream: &UnixStream, message: Message) -> Result<(), Unreadable> {
        let header = message.header;
        let has_none = matches!(header.request, GET_STATUS | SET_BACKEND_REQ_FD | CHECK_DEVICE_STATE);
        let expected = if has_none { 0 } else { PAYLOAD_U64_LEN };
        if header.size != expected || header.flags & 3 != 1 {
            return Err(Unreadable(format!("{} bytes and flags {:#x}", header.size, header.flags)));
        }
        let value = message.payload().try_into().map_or(0, u64::from_ne_bytes);
        let done = match header.request {
            GET_STATUS => {
                let status = self.device().device_status();
                return reply(stream, GET_STATUS, u64::from(status));
            }
            // The payload is a vring's state: the index in the first four bytes, then 0 or 1.
            SET_VRING_ENABLE => self.device().enable(value as u32 as usize, (value >> 32) as u32),
            SET_STATUS => self.device().set_status(value as u8),
            SEND_RARP => self.device().send_rarp(value, self.channel.is_some()),
            SET_DEVICE_STATE_FD => {
                let file = self.device().transfer_state(value);
                let (answer, file) =
                    file.map_or_else(|refused| (Err(refused), None), |file| (Ok(()), Some(file.into())));
                reply_with(stream, header.request, if answer.is_ok() { 0 } else { STATE_REFUSED }, file.as_slice())?;
                return Ok(answer?);
            }
            CHECK_DEVICE_STATE => {
                let checked = self.device().check_state();
                reply(stream, header.request, u64::from(checked.is_err()))?;
                return Ok(checked?);
            }
            SET_BACKEND_REQ_FD => return self.set_channel(stream, header, message.fds),
            _ => self.device().set_mtu(value),
        };
        self.acknowledge(stream, header, done.is_ok())?;
        Ok(done?)
    }

    /// Handles `SET_MEM_TABLE`.
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

    /// Handles `SET_BACKEND_REQ_FD`: replaces the channel.
    fn set_channel(&mut self, stream: &UnixStream, header: Header, fds: Vec<OwnedFd>) -> Result<(), Unreadable> {
        let is_agreed = self.device().speaks(VhostUserProtocolFeatures::BACKEND_REQ);
        let wants_answers = self.device().speaks(VhostUserProtocolFeatures::REPLY_ACK);
        let made = match <[OwnedFd; 1]>::try_from(fds) {
            Ok([fd]) if is_agreed => Channel::new(fd, wants_answers).map_err(Unreadable::from),
            Ok(_) => Err(Unreadable("BACKEND_REQ was not negotiated".to_owned())),
            Err(fds) => Err(Unreadable(format!("{} descriptors for the backend channel, not 1", fds.len()))),
        };
        self.acknowledge(stream, header, made.is_ok())?;
        self.channel = Some(made?);
        Ok(())
    }
}

/// Waits up to [`ANSWER_PATIENCE`] until an answer can be sent. The thread sends an answer without waiting, so a full
/// socket would otherwise end the connection of a frontend that reads its answers late.
fn has_room_for_an_answer(stream: &UnixStream) -> Result<(), Unreadable> {
    // A socket is writable only if most of its send buffer is free. The free space exceeds the longest answer.
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    wait(&mut fds, PollTimeout::try_from(ANSWER_PATIENCE).unwrap_or(PollTimeout::ZERO));
    if is_ready(&fds[0]) { Ok(()) } else { Err(Unreadable("the frontend does not read answers".to_owned())) }
}

fn reply(stream: &UnixStream, request: u32, value: u64) -> Result<(), Unreadable> {
    reply_with(stream, request, value, &[])
}

fn reply_with(stream: &UnixStream, request: u32, value: u64, fds: &[OwnedFd]) -> Result<(), Unreadable> {
    let mut bytes = [0; HEADER_LEN + PAYLOAD_U64_LEN];
    for (at, word) in [request, REPLY_FLAGS, PAYLOAD_U64_LEN as u32].into_iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[HEADER_LEN..].copy_from_slice(&value.to_ne_bytes());
    send_with_fds(stream, &bytes, fds)
}

fn readable<F: AsFd>(fd: &F) -> PollFd<'_> {
    PollFd::new(fd.as_fd(), PollFlags::POLLIN)
}

fn is_ready(fd: &PollFd) -> bool {
    fd.any().unwrap_or(false)
}

/// Returns the timeout for a deadline: the remaining time plus a millisecond, so that the deadline has passed after the
/// wait.
fn until(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    left.and_then(|left| PollTimeout::try_from(left + Duration::from_millis(1)).ok()).unwrap_or(PollTimeout::ZERO)
}

fn wait(fds: &mut [PollFd], timeout: PollTimeout) {
    // If a signal interrupts the poll, no descriptor is ready, and the caller waits again.
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
        // After a pause that covers the intervals of a full burst, the guest can send a full burst again.
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
            // The measured time lacks the wait after the last command, and the waits that the first burst skipped.
            assert!(now - began + COMMAND_BURST * COMMAND_INTERVAL >= 99 * COMMAND_SHARE * TOOK);
        }
    }
}
