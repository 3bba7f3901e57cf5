//! The server: one control port, one thread per session, and limits for every parameter of a client.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::error::reason;
use super::params::{Amount, Params, Workload};
use super::report::EndFigures;
use super::side::{Side, SideFigures};
use super::sockets::{data_listener, ready_stream, sentence, udp_socket};
use super::streams::{End, Sources, spawn_tcp, spawn_udp};
use super::wire::{
    CLIENT_LINE_LEN_MAX, ClientLine, Control, DATA_HELLO_LEN, ServerLine, VERSION, WireError, stream_of_data_hello,
    token_text,
};

/// Maximum number of concurrent sessions. Further clients are refused.
const SESSIONS_MAX: u64 = 8;
/// Maximum time from a client's connection to its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time until a client has connected all its streams.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time from the connection of a data stream to its first bytes.
const DATA_HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time by which a timed test may exceed its requested duration.
const GRACE: Duration = Duration::from_mins(1);
/// Time from the requested end of a test until the server stops its datagrams by itself. The datagrams can fill the
/// path, and so delay the client's request to stop.
const FLOOD_GRACE: Duration = Duration::from_secs(1);
/// Maximum time without progress in a test that transfers a given number of bytes.
const STALL_MAX: Duration = Duration::from_mins(1);
/// Interval at which a waiting server checks its stop flag.
const STOP_POLL: Duration = Duration::from_millis(100);
/// Pause after a failed accept, usually caused by a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Options of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServeOptions {
    /// True if the server returns after the first test that began, complete or not.
    pub once: bool,
}

/// Counters of a server. Each control connection is counted in exactly one of the counters.
#[derive(Debug, Default)]
pub struct ServerStats {
    /// Number of complete tests whose results were sent.
    pub served: AtomicU64,
    /// Number of clients refused because of a wrong protocol or version, an exceeded limit, or a timeout before the
    /// test.
    pub refused: AtomicU64,
    /// Number of tests aborted after their start.
    pub lost: AtomicU64,
}

/// An event of a server, reported without delay.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// A test was completed.
    Served {
        /// Address of the client.
        peer: SocketAddr,
        /// Parameters of the test.
        params: Box<Params>,
        /// Figures of the data sent by the server, or `None` if the server sent no data.
        sent: Option<Box<EndFigures>>,
        /// Figures of the data received or the requests answered by the server, or `None` if there were none.
        received: Option<Box<EndFigures>>,
    },
    /// A client was refused.
    Refused {
        /// Address of the client.
        peer: SocketAddr,
        /// Reason for the refusal.
        reason: String,
    },
    /// A test was aborted.
    Lost {
        /// Address of the client.
        peer: SocketAddr,
        /// Reason for the abort.
        reason: String,
    },
}

/// The reason why a session ended without results.
enum Failure {
    Refused(String),
    Lost(String),
}

/// Serves tests from `listener` until `stop` is set, with one thread per session. All threads and sockets belong to the
/// caller's network namespace. When the function returns, all threads have ended and all sockets are closed.
///
/// A client that violates the protocol, exceeds a limit or disappears ends only the session of that client, and is
/// counted in `stats`.
///
/// # Errors
/// Returns the error of poll(2) if the listener is unusable.
pub fn serve(
    listener: &TcpListener,
    options: ServeOptions,
    stop: &AtomicBool,
    stats: &ServerStats,
    on_event: &(dyn Fn(ServerEvent) + Sync),
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let running = AtomicU64::new(0);
    let house = House { stop, stats, on_event, running: &running };
    thread::scope(|scope| {
        while !(house.stopping() || options.once && house.has_run_a_test()) {
            let Some((stream, peer)) = accept(listener, STOP_POLL)? else { continue };
            if running.fetch_add(1, Ordering::Relaxed) >= SESSIONS_MAX {
                running.fetch_sub(1, Ordering::Relaxed);
                house.turn_away(stream, peer);
                continue;
            }
            let spawned = thread::Builder::new().name("ttcp-session".to_owned()).spawn_scoped(scope, move || {
                house.session(stream, peer);
                house.running.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_err() {
                running.fetch_sub(1, Ordering::Relaxed);
                house.refused(peer, "this host cannot start another thread".to_owned());
            }
        }
        Ok(())
    })
}

/// Waits for a connection, at most for `wait`.
fn accept(listener: &TcpListener, wait: Duration) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    let mut watched = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
    match poll(&mut watched, timeout) {
        Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(None),
        Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    match listener.accept() {
        Ok((stream, peer)) => {
            stream.set_nonblocking(false)?;
            Ok(Some((stream, peer)))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
        Err(_) => {
            thread::sleep(ACCEPT_PAUSE);
            Ok(None)
        }
    }
}

/// Data shared by all sessions of a server.
#[derive(Clone, Copy)]
struct House<'house> {
    stop: &'house AtomicBool,
    stats: &'house ServerStats,
    on_event: &'house (dyn Fn(ServerEvent) + Sync),
    running: &'house AtomicU64,
}

impl House<'_> {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn has_run_a_test(&self) -> bool {
        self.stats.served.load(Ordering::Relaxed) + self.stats.lost.load(Ordering::Relaxed) > 0
    }

    fn refused(&self, peer: SocketAddr, reason: String) {
        self.stats.refused.fetch_add(1, Ordering::Relaxed);
        (self.on_event)(ServerEvent::Refused { peer, reason });
    }

    fn turn_away(&self, stream: TcpStream, peer: SocketAddr) {
        let reason = format!("{SESSIONS_MAX} tests already run; try again later");
        if let Ok(mut control) = Control::new(stream, CLIENT_LINE_LEN_MAX) {
            // The client is refused even if the message cannot be sent.
            let _ = control.send(&ServerLine::Refused { reason: reason.clone() });
        }
        self.refused(peer, reason);
    }

    fn session(&self, stream: TcpStream, peer: SocketAddr) {
        let mut control = match Control::new(stream, CLIENT_LINE_LEN_MAX) {
            Ok(control) => control,
            Err(error) => return self.refused(peer, reason(&error)),
        };
        match self.test(&mut control) {
            Ok((params, figures)) => {
                self.stats.served.fetch_add(1, Ordering::Relaxed);
                let (sent, received) = (figures.sending.map(Box::new), figures.receiving.map(Box::new));
                (self.on_event)(ServerEvent::Served { peer, params: Box::new(params), sent, received });
            }
            Err(failure) => {
                let (Failure::Refused(reason) | Failure::Lost(reason)) = &failure;
                // The client may have disconnected before it can receive the reason, so the reason is also passed to
                // `on_event`.
                let _ = control.send(&ServerLine::Refused { reason: reason.clone() });
                match failure {
                    Failure::Refused(reason) => self.refused(peer, reason),
                    Failure::Lost(reason) => {
                        self.stats.lost.fetch_add(1, Ordering::Relaxed);
                        (self.on_event)(ServerEvent::Lost { peer, reason });
                    }
                }
            }
        }
    }

    /// Runs one test from the client's hello to the results.
    fn test(&self, control: &mut Control) -> Result<(Params, SideFigures), Failure> {
        let (params, client_ports) = self.hello(control)?;
        let mut side = Side::new(&params);
        let udp_ports = start_udp(control, &params, &client_ports, &mut side)?;
        self.start_tcp(control, &params, udp_ports, &mut side)?;
        send(control, &ServerLine::Go)?;
        self.follow(control, &params, &mut side)?;
        side.stop();
        side.drain(|| !self.stopping());
        let (figures, _) = side.figures();
        send(control, &ServerLine::Results(Box::new(figures.clone()))).map_err(Failure::lost)?;
        Ok((params, figures))
    }

    fn hello(&self, control: &mut Control) -> Result<(Params, Vec<u16>), Failure> {
        let deadline = Instant::now() + HELLO_TIMEOUT;
        let line = loop {
            match control.receive(deadline.min(Instant::now() + STOP_POLL)) {
                Err(WireError::Timeout) if Instant::now() < deadline && !self.stopping() => {}
                other => break other.map_err(refused)?,
            }
        };
        let ClientLine::Hello { version, params, udp_ports } = line else {
            return Err(refused("the first line is not a hello"));
        };
        if version != VERSION {
            return Err(refused(format!("the client speaks version {version} of the protocol, the server {VERSION}")));
        }
        params.check().map_err(Failure::Refused)?;
        if udp_ports.len() != params.udp_sockets() as usize || udp_ports.contains(&0) {
            return Err(refused("the number of UDP ports differs from the streams"));
        }
        Ok((params, udp_ports))
    }

    /// Tells the client that the server is ready. If the test has TCP streams, waits for their connections.
    fn start_tcp(
        &self,
        control: &mut Control,
        params: &Params,
        udp_ports: Vec<u16>,
        side: &mut Side,
    ) -> Result<(), Failure> {
        if params.tcp_sockets() == 0 {
            return send(control, &ServerLine::Ready { port: 0, udp_ports, token: String::new() });
        }
        let token: u128 = rand::random();
        let local = control.local_addr().map_err(|error| refused(reason(&error)))?;
        let listener = data_listener(local.ip(), params).map_err(|failed| Failure::Refused(sentence(failed)))?;
        let port = listener.local_addr().map_err(|error| refused(reason(&error)))?.port();
        listener.set_nonblocking(true).map_err(|error| refused(reason(&error)))?;
        send(control, &ServerLine::Ready { port, udp_ports, token: token_text(token) })?;
        let sources = Sources::new(params);
        let mut missing: Vec<u32> = (0..params.tcp_sockets()).collect();
        let deadline = Instant::now() + STREAMS_TIMEOUT;
        while !missing.is_empty() {
            if Instant::now() >= deadline || self.stopping() {
                return Err(refused(format!("{} data streams did not connect in time", missing.len())));
            }
            let accepted = accept(&listener, STOP_POLL).map_err(|error| refused(reason(&error)))?;
            let Some((stream, _)) = accepted else { continue };
            // A connection without the token or with an unknown index is closed, and the server continues to wait for
            // the test's streams.
            let Some(index) = read_data_hello(&stream, token) else { continue };
            let Some(position) = missing.iter().position(|&wanted| wanted == index) else { continue };
            missing.swap_remove(position);
            ready_stream(&stream, params)
                .and_then(|()| spawn_tcp(side, End::Server, params, &sources, index, stream))
                .map_err(|error| refused(format!("cannot start stream {index}: {}", reason(&error))))?;
        }
        Ok(())
    }

    /// Reads the client's lines and changes the test's phase as each line requests, until the client sends
    /// [`ClientLine::Stop`].
    fn follow(&self, control: &mut Control, params: &Params, side: &mut Side) -> Result<(), Failure> {
        let deadline = deadline_of(params);
        let (mut moved, mut progress) = (Instant::now(), 0);
        let mut steps = Steps::of(params);
        let mut flood_end = None;
        loop {
            let wake = Instant::now() + STOP_POLL;
            match control.receive::<ClientLine>(side.next_tick().map_or(wake, |tick| tick.min(wake))) {
                Ok(line) => match steps.take(&line)? {
                    Step::Begin => {
                        side.begin();
                        flood_end = flood_end_of(params);
                    }
                    Step::Start => side.open_window(),
                    Step::End => {
                        side.close_window();
                        send(control, &ServerLine::Ended).map_err(Failure::lost)?;
                    }
                    Step::Stop => return Ok(()),
                },
                Err(WireError::Timeout) => {}
                Err(error) => return Err(Failure::Lost(error.into())),
            }
            if flood_end.is_some_and(|end| Instant::now() > end) {
                side.close_window();
                side.stop();
            }
            side.tick();
            if side.progress() != progress {
                (moved, progress) = (Instant::now(), side.progress());
            }
            let late = deadline.map_or(moved.elapsed() > STALL_MAX, |deadline| Instant::now() > deadline);
            if late || self.stopping() {
                let why = if late { "the client did not end the test in time" } else { "the server was stopped" };
                return Err(Failure::Lost(why.to_owned()));
            }
        }
    }
}

/// The allowed sequence of the client's lines.
struct Steps {
    awaited: &'static [Step],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Start,
    End,
    Stop,
}

impl Steps {
    fn of(params: &Params) -> Self {
        let timed: &[Step] = &[Step::Begin, Step::Start, Step::End, Step::Stop];
        Self { awaited: if params.is_timed() { timed } else { &[Step::Begin, Step::Stop] } }
    }

    fn take(&mut self, line: &ClientLine) -> Result<Step, Failure> {
        let step = match line {
            ClientLine::Begin => Some(Step::Begin),
            ClientLine::Start => Some(Step::Start),
            ClientLine::End => Some(Step::End),
            ClientLine::Stop => Some(Step::Stop),
            ClientLine::Hello { .. } => None,
        };
        match self.awaited.split_first() {
            Some((&awaited, rest)) if step == Some(awaited) => {
                self.awaited = rest;
                Ok(awaited)
            }
            _ => Err(Failure::Lost("the client's lines are out of order".to_owned())),
        }
    }
}

impl Failure {
    /// Converts a failure to [`Failure::Lost`] with the same reason, for a test that has begun.
    fn lost(self) -> Self {
        let (Self::Refused(reason) | Self::Lost(reason)) = self;
        Self::Lost(reason)
    }
}

/// Opens the UDP streams of the test and returns their ports. The list is empty for a test without UDP.
fn start_udp(control: &Control, params: &Params, client_ports: &[u16], side: &mut Side) -> Result<Vec<u16>, Failure> {
    let opened = (|| {
        let (local, peer) = (control.local_addr()?.ip(), control.peer_addr()?.ip().to_canonical());
        let sockets: Vec<UdpSocket> =
            client_ports.iter().map(|_| udp_socket(local, params)).collect::<io::Result<_>>()?;
        for (socket, &port) in sockets.iter().zip(client_ports) {
            socket.connect(SocketAddr::new(peer, port))?;
        }
        let ports: Vec<u16> =
            sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect::<io::Result<_>>()?;
        spawn_udp(side, End::Server, params, sockets)?;
        Ok(ports)
    })();
    opened.map_err(|error: io::Error| refused(format!("cannot open UDP: {}", reason(&error))))
}

fn read_data_hello(mut stream: &TcpStream, token: u128) -> Option<u32> {
    let deadline = Instant::now() + DATA_HELLO_TIMEOUT;
    let mut bytes = [0; DATA_HELLO_LEN];
    let mut filled = 0;
    while filled < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        // After the deadline, `left` is zero. The standard library refuses a timeout of zero, and this error ends the
        // wait.
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut bytes[filled..]).ok()? {
            0 => return None,
            len => filled += len,
        }
    }
    stream_of_data_hello(&bytes, token)
}

/// Returns the deadline of a timed test. Returns `None` for a test that transfers a given number of bytes, which may
/// take any time while data moves.
fn deadline_of(params: &Params) -> Option<Instant> {
    Some(Instant::now() + asked_time(params)? + GRACE)
}

/// Returns the time after which the server stops its datagrams without a request of the client. Returns `None` if the
/// server sends no datagrams, or if the test has no given duration.
fn flood_end_of(params: &Params) -> Option<Instant> {
    let is_flood = matches!(params.workload, Workload::Udp(_)) && params.direction.receives();
    asked_time(params).filter(|_| is_flood).map(|time| Instant::now() + time + FLOOD_GRACE)
}

fn asked_time(params: &Params) -> Option<Duration> {
    let Amount::Usecs(usecs) = params.amount else { return None };
    Some(Duration::from_micros(params.warmup_usecs + usecs))
}

fn send(control: &mut Control, line: &ServerLine) -> Result<(), Failure> {
    control.send(line).map_err(refused)
}

fn refused(reason: impl Into<String>) -> Failure {
    Failure::Refused(reason.into())
}
