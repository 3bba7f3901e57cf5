//! The server of the control protocol: one thread per client, so that no client waits for another client.

use super::line::{Lines, Peer};
use super::pcapng;
use super::{CLIENTS_MAX, CLIENTS_OF_USER_MAX, REQUEST_LEN_MAX};
use crate::schema::limit::OFF;
use crate::schema::{Answer, CAPTURE_BUFFER, CAPTURE_BUFFER_DEFAULT, Event, EventKind, Outcome, RefusalCode, Request};
use crate::schema::{SNAPLEN_MAX, VERSION};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use offramp_offload::sync::lock;
use offramp_ports::capture::Capture;
use offramp_ports::sys::sandbox::{Sandbox, ThreadKind};
use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Name of the thread of a client.
pub const CLIENT_THREAD: &str = "ofr-client";
/// Pause after a failed accept, for example when the process has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between two checks whether a client has disconnected, while there is nothing to send.
const GONE_INTERVAL: Duration = Duration::from_millis(500);

/// The daemon, as the server sees it: answers requests, and provides events and captures.
pub trait Handler: Send + Sync + 'static {
    /// Returns the answer to one request of a client; `peer` is `None` if the client is unknown.
    fn answer(&self, request: Request, peer: Option<Peer>) -> Answer;

    /// Subscribes to all events from now on.
    fn events(&self) -> Receiver<Event>;

    /// Captures the packets of a port from now on. At most `buffer_bytes` bytes of packets wait for the client.
    ///
    /// # Errors
    /// Returns the refusal if the packets cannot be captured.
    fn capture(&self, port: &str, snaplen: u32, buffer_bytes: u64) -> Result<Capture, Answer>;
}

/// The rights of a socket's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All requests.
    Full,
    /// Only the requests `show` and `monitor`, which change nothing.
    ReadOnly,
}

/// Serves clients on separate threads, until the process ends.
///
/// # Errors
/// Fails if no thread can be started.
pub fn serve(listener: UnixListener, access: Access, handler: Arc<impl Handler>, sandbox: Sandbox) -> io::Result<()> {
    let busy = |stream| {
        // The send buffer of a new connection is empty, so sending this short message never blocks.
        let message =
            format!("{CLIENTS_MAX} clients, or {CLIENTS_OF_USER_MAX} of this user, are served already; try again");
        let busy = Answer::refuse(RefusalCode::Busy, message);
        say(&mut Lines::new(stream, REQUEST_LEN_MAX), &busy).unwrap_or(());
    };
    let converse = move |stream| converse(Lines::new(stream, REQUEST_LEN_MAX), access, handler.as_ref());
    serve_each("ofr-control", listener, converse, busy, sandbox)
}

/// A listening socket, such as a Unix or TCP socket.
pub trait Listener: Send + 'static {
    /// A client's connection.
    type Stream: Send + 'static;

    /// Returns the next client's connection.
    ///
    /// # Errors
    /// Fails if the process has no free descriptor, or if the client has disconnected.
    fn next(&self) -> io::Result<Self::Stream>;

    /// Returns the uid of a client; `None` if the kernel does not provide it.
    fn user(stream: &Self::Stream) -> Option<u32>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn next(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }

    fn user(stream: &UnixStream) -> Option<u32> {
        getsockopt(stream, PeerCredentials).ok().map(|peer| peer.uid())
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn next(&self) -> io::Result<TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }

    fn user(_: &TcpStream) -> Option<u32> {
        None
    }
}

/// Accepts clients on a thread named `name`, and calls `converse` for each client on a separate thread. Calls `busy`
/// for clients above [`CLIENTS_MAX`], or above [`CLIENTS_OF_USER_MAX`] of one user.
///
/// # Errors
/// Fails if no thread can be started.
pub fn serve_each<L: Listener>(
    name: &str,
    listener: L,
    converse: impl Fn(L::Stream) -> io::Result<()> + Send + Sync + 'static,
    busy: impl Fn(L::Stream) + Send + 'static,
    sandbox: Sandbox,
) -> io::Result<()> {
    let converse = Arc::new(converse);
    thread::Builder::new().name(name.into()).spawn(move || {
        sandbox.enter_thread(ThreadKind::Control);
        let clients = Arc::new(Clients::default());
        loop {
            let Ok(stream) = listener.next() else {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            match Client::count(&clients, L::user(&stream)) {
                Some(client) => serve_one(stream, client, &converse, &sandbox),
                None => busy(stream),
            }
        }
    })?;
    Ok(())
}

fn serve_one<S: Send + 'static>(
    stream: S,
    client: Client,
    converse: &Arc<impl Fn(S) -> io::Result<()> + Send + Sync + 'static>,
    sandbox: &Sandbox,
) {
    let (converse, sandbox) = (Arc::clone(converse), sandbox.clone());
    let started = thread::Builder::new().name(CLIENT_THREAD.into()).spawn(move || {
        sandbox.enter_thread(ThreadKind::Client);
        // A slow or disconnected client is dropped; the error is ignored.
        let _ = converse(stream);
        drop(client);
    });
    // If the thread could not be started, the stream is dropped, and the client sees the end of its connection.
    drop(started);
}

/// The number of clients of each uid. The key `None` is for clients whose uid the kernel does not provide.
#[derive(Debug, Default)]
struct Clients(Mutex<BTreeMap<Option<u32>, usize>>);

/// A served client, counted until it is dropped.
struct Client {
    clients: Arc<Clients>,
    user: Option<u32>,
}

impl Client {
    /// Counts a new client; returns `None` at the maximum.
    fn count(clients: &Arc<Clients>, user: Option<u32>) -> Option<Self> {
        let mut counts = lock(&clients.0);
        let has_room = counts.values().sum::<usize>() < CLIENTS_MAX;
        let of_user = counts.entry(user).or_default();
        (has_room && *of_user < CLIENTS_OF_USER_MAX).then(|| {
            *of_user += 1;
            Self { clients: Arc::clone(clients), user }
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut counts = lock(&self.clients.0);
        if let Some(of_user) = counts.get_mut(&self.user) {
            *of_user -= 1;
        }
        counts.retain(|_, of_user| *of_user > 0);
    }
}

fn converse(mut lines: Lines, access: Access, handler: &impl Handler) -> io::Result<()> {
    let peer = lines.peer();
    loop {
        match lines.read() {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => match parse(&line, access) {
                Ok(Request::Monitor { .. }) => return monitor(lines, &handler.events()),
                Ok(Request::Capture { port, snaplen, buffer_bytes, .. }) => {
                    let buffer_bytes = buffer_bytes.unwrap_or(CAPTURE_BUFFER_DEFAULT);
                    let started = start_capture(handler, &port, snaplen, buffer_bytes);
                    log(peer, &format!("capture of port {port:?}"), started.is_ok());
                    match started {
                        Ok(packets) => return capture(lines, &port, snaplen, &packets),
                        Err(refused) => say(&mut lines, &refused)?,
                    }
                }
                Ok(request) => say(&mut lines, &answer(request, handler, peer))?,
                Err(refused) => say(&mut lines, &refused)?,
            },
            Err(error) => {
                let message = format!("no request: {error}; the connection ends");
                return say(&mut lines, &Answer::refuse(RefusalCode::BadRequest, message));
            }
        }
    }
}

/// Sends all events until the client has disconnected or no longer reads.
fn monitor(mut lines: Lines, events: &Receiver<Event>) -> io::Result<()> {
    say(&mut lines, &Answer::new(Outcome::Monitoring {}))?;
    loop {
        match events.recv_timeout(GONE_INTERVAL) {
            Ok(event) => {
                let is_last = event.event == EventKind::Ended {};
                say(&mut lines, &Answer::new(Outcome::Event(event)))?;
                if is_last {
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Timeout) if !lines.has_ended() => {}
            Err(_) => return Ok(()),
        }
    }
}

fn start_capture(handler: &impl Handler, port: &str, snaplen: u32, buffer_bytes: u64) -> Result<Capture, Answer> {
    let refuse = |message| Err(Answer::refuse(RefusalCode::BadRequest, message));
    if !(1..=SNAPLEN_MAX).contains(&snaplen) {
        return refuse(format!("snaplen {snaplen} is out of range; use 1 to {SNAPLEN_MAX}"));
    }
    if !CAPTURE_BUFFER.contains(&buffer_bytes) {
        let (least, most) = CAPTURE_BUFFER.into_inner();
        return refuse(format!("buffer_bytes {buffer_bytes} is out of range; use {least} to {most}"));
    }
    handler.capture(port, snaplen, buffer_bytes)
}

/// Sends the packets of a port. A client may pause reading without delaying any other thread.
fn capture(mut lines: Lines, port: &str, snaplen: u32, packets: &Capture) -> io::Result<()> {
    say(&mut lines, &Answer::new(Outcome::Capturing {}))?;
    pcapng::write(port, snaplen, packets, lines.unlimited()?, || lines.has_ended())
}

fn say(lines: &mut Lines, answer: &Answer) -> io::Result<()> {
    lines.write(&serde_json::to_string(answer)?)
}

/// Parses a request line. Returns the refusal if the request is invalid.
fn parse(line: &[u8], access: Access) -> Result<Request, Answer> {
    // The version is parsed first, because a request of another version may have other fields.
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_slice::<Versioned>(line) {
        Ok(Versioned { version: VERSION }) => {}
        Ok(Versioned { version }) => {
            let message = format!("the request has version {version}; this daemon speaks {VERSION}");
            return Err(Answer::refuse(RefusalCode::BadVersion, message));
        }
        Err(error) => return Err(Answer::refuse(RefusalCode::BadRequest, format!("not a request: {error}"))),
    }
    match serde_json::from_slice(line) {
        Ok(request) if access == Access::ReadOnly && !only_shows(&request) => Err(Answer::refuse(
            RefusalCode::ReadOnly,
            "this socket only shows; daemon.control is the one that changes things",
        )),
        Ok(request) => Ok(request),
        Err(error) => Err(Answer::refuse(RefusalCode::BadRequest, format!("not a request: {error}"))),
    }
}

fn only_shows(request: &Request) -> bool {
    matches!(request, Request::Show { .. } | Request::Monitor { .. })
}

fn answer(request: Request, handler: &impl Handler, peer: Option<Peer>) -> Answer {
    let change = logged(&request);
    let answer = handler.answer(request, peer);
    if let Some(change) = change {
        log(peer, &change, !matches!(answer.outcome, Outcome::Error(_)));
    }
    answer
}

fn log(peer: Option<Peer>, change: &str, is_done: bool) {
    let client = peer.map_or("unknown client".to_owned(), |peer| peer.to_string());
    log!("offramp: {client}: {change}: {}", if is_done { "done" } else { "refused" });
}

/// Returns the text of a log line about the changes by a request; `None` if the request changes nothing. With the log,
/// an operator can later find the client that made a change.
fn logged(request: &Request) -> Option<String> {
    match request {
        Request::Show { .. } | Request::Monitor { .. } | Request::Capture { .. } => None,
        Request::Set { port, features, moderation, limit, link, .. } => {
            let on = |is_on: bool| if is_on { "on" } else { "off" };
            let features = features.iter().map(|(name, is_on)| format!("{} {}", name.escape_default(), on(*is_on)));
            let moderation = moderation.iter().map(|moderation| format!("moderation {}", moderation.sentence()));
            let limit = limit.iter().map(|limit| match limit.sentence() {
                none if none.is_empty() => format!("limit {OFF}"),
                limits => format!("limit {limits}"),
            });
            let link = link.iter().map(|is_on| format!("link {}", on(*is_on)));
            let settings: Vec<_> = features.chain(moderation).chain(limit).chain(link).collect();
            Some(format!("port {port:?}: set {}", settings.join(", ")))
        }
        Request::Add { source, .. } => Some(format!("add {source:?}")),
        Request::Remove { ports, switches, .. } => Some(format!("remove ports {ports:?}, switches {switches:?}")),
        Request::SaAdd { port, sa, .. } => {
            let (direction, spi) = (sa.direction.as_deref().unwrap_or_default(), sa.spi.unwrap_or_default());
            Some(format!("port {port:?}: sa add {direction:?} {spi:#010x}"))
        }
        Request::SaDel { port, direction, spi, .. } => Some(format!("port {port:?}: sa del {direction:?} {spi:#010x}")),
        Request::SaRekey { port, direction, spi, .. } => {
            Some(format!("port {port:?}: sa rekey {direction:?} {spi:#010x}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Status;
    use std::io::{BufRead, BufReader, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Empty;

    impl Handler for Empty {
        fn answer(&self, _: Request, _: Option<Peer>) -> Answer {
            Answer::new(Outcome::Status(Box::new(Status {
                offramp: String::new(),
                process: 0,
                uptime_ns: 0,
                sandbox: None,
                ports: vec![],
                switches: vec![],
            })))
        }

        fn capture(&self, port: &str, _: u32, _: u64) -> Result<Capture, Answer> {
            Err(Answer::refuse(RefusalCode::UnknownPort, port))
        }

        fn events(&self) -> Receiver<Event> {
            let (events, receiver) = std::sync::mpsc::channel();
            let event = crate::schema::EventKind::PortAdded { port: "a".to_owned() };
            events.send(Event { unix_ms: 7, event }).unwrap();
            // Dropping the sender ends the connection, as the end of a daemon does.
            receiver
        }
    }

    #[test]
    fn events_follow_on_either_socket_until_one_side_ends() {
        for access in [Access::Full, Access::ReadOnly] {
            let stream = UnixStream::connect_addr(&served_with(access)).unwrap();
            (&stream).write_all(b"{\"version\":1,\"request\":\"monitor\"}\n").unwrap();
            let lines: Vec<_> = BufReader::new(&stream).lines().map(Result::unwrap).collect();
            let event = "{\"version\":1,\"event\":{\"unix_ms\":7,\"event\":\"port_added\",\"port\":\"a\"}}";
            assert_eq!(lines, ["{\"version\":1,\"monitoring\":{}}", event]);
        }
    }

    /// Serves a new abstract socket, which has no file, and returns its address.
    fn served() -> std::os::unix::net::SocketAddr {
        served_with(Access::Full)
    }

    fn served_with(access: Access) -> std::os::unix::net::SocketAddr {
        use std::os::linux::net::SocketAddrExt;
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("offramp-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        serve(UnixListener::bind_addr(&address).unwrap(), access, Arc::new(Empty), Sandbox::default()).unwrap();
        address
    }

    fn say_and_hear(stream: &UnixStream, text: &str) -> String {
        (&mut &*stream).write_all(text.as_bytes()).unwrap();
        hear(stream)
    }

    fn hear(stream: &UnixStream) -> String {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }

    const SHOW: &str = "{\"version\":1,\"request\":\"show\"}\n";

    #[test]
    fn what_is_no_request_is_refused_and_the_next_one_is_answered() {
        let stream = UnixStream::connect_addr(&served()).unwrap();
        for wrong in [
            "\n",
            "hello\n",
            "{}\n",
            "{\"version\":1}\n",
            "{\"version\":1,\"request\":\"shout\"}\n",
            "{\"version\":1,\"request\":\"show\",\"prot\":\"a\"}\n",
            "{\"version\":1,\"request\":\"set\",\"port\":\"a\",\"features\":{\"tso4\":1}}\n",
        ] {
            assert!(say_and_hear(&stream, wrong).contains("\"bad_request\""), "{wrong}");
        }
        let newer = "{\"version\":2,\"request\":\"show\",\"new\":1}\n";
        assert!(say_and_hear(&stream, newer).contains("\"bad_version\""));
        assert!(say_and_hear(&stream, SHOW).contains("\"status\""));
    }

    #[test]
    fn bytes_that_are_no_text_and_deep_nesting_are_refused() {
        let stream = UnixStream::connect_addr(&served()).unwrap();
        (&stream).write_all(b"\xff\xfe\0\n").unwrap();
        assert!(hear(&stream).contains("bad_request"));
        assert!(say_and_hear(&stream, &("[".repeat(REQUEST_LEN_MAX - 1) + "\n")).contains("bad_request"));
        assert!(say_and_hear(&stream, SHOW).contains("\"status\""));
    }

    #[test]
    fn a_line_without_end_is_refused_and_the_connection_ends() {
        let stream = UnixStream::connect_addr(&served()).unwrap();
        assert!(say_and_hear(&stream, &"x".repeat(REQUEST_LEN_MAX)).contains("too long"));
        assert_eq!(hear(&stream), "");
    }

    #[test]
    fn a_capture_of_no_bytes_or_of_more_than_a_packet_has_is_refused() {
        let stream = UnixStream::connect_addr(&served_with(Access::Full)).unwrap();
        for (snaplen, code) in [(0, "bad_request"), (SNAPLEN_MAX + 1, "bad_request"), (1, "unknown_port")] {
            let request = format!("{{\"version\":1,\"request\":\"capture\",\"port\":\"a\",\"snaplen\":{snaplen}}}\n");
            let answer = say_and_hear(&stream, &request);
            assert!(answer.contains(code), "{snaplen}: {answer}");
        }
        for (size, code) in [("1", "bad_request"), ("\"1GiB\"", "bad_request"), ("\"64MiB\"", "unknown_port")] {
            let request = format!("{{\"version\":1,\"request\":\"capture\",\"port\":\"a\",\"buffer_bytes\":{size}}}\n");
            let answer = say_and_hear(&stream, &request);
            assert!(answer.contains(code), "{size}: {answer}");
        }
    }

    #[test]
    fn silent_clients_delay_no_other_and_too_many_are_told_so() {
        let address = served();
        let connect = || UnixStream::connect_addr(&address).unwrap();
        let silent: Vec<UnixStream> = (1..CLIENTS_OF_USER_MAX).map(|_| connect()).collect();
        let last = connect();
        assert!(say_and_hear(&last, SHOW).contains("\"status\""));
        assert!(hear(&connect()).contains("\"busy\""));
        drop(silent);
        // A place for a client becomes free when the thread of an earlier client has ended.
        while !say_and_hear_or_end(&connect()) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_user_with_many_clients_leaves_room_for_others() {
        let clients = Arc::new(Clients::default());
        let of = |user| std::iter::from_fn(|| Client::count(&clients, user)).collect::<Vec<_>>();
        let (first, second) = (of(Some(1)), of(Some(2)));
        assert_eq!((first.len(), second.len(), of(None).len()), (CLIENTS_OF_USER_MAX, CLIENTS_OF_USER_MAX, 0));
        drop(first);
        assert_eq!(of(Some(3)).len(), CLIENTS_OF_USER_MAX);
        drop(second);
        assert!(lock(&clients.0).is_empty());
    }

    #[test]
    fn a_socket_that_only_shows_refuses_whatever_changes_something() {
        let stream = UnixStream::connect_addr(&served_with(Access::ReadOnly)).unwrap();
        for change in [
            "{\"version\":1,\"request\":\"set\",\"port\":\"a\",\"features\":{\"tso4\":true}}\n",
            "{\"version\":1,\"request\":\"capture\",\"port\":\"a\"}\n",
            "{\"version\":1,\"request\":\"sa_del\",\"port\":\"a\",\"direction\":\"out\",\"spi\":4096}\n",
        ] {
            assert!(say_and_hear(&stream, change).contains("\"read_only\""), "{change}");
        }
        assert!(say_and_hear(&stream, SHOW).contains("\"status\""));
    }

    /// Returns whether a new client is served.
    fn say_and_hear_or_end(stream: &UnixStream) -> bool {
        let mut line = String::new();
        let sent = (&mut &*stream).write_all(SHOW.as_bytes());
        sent.is_ok() && BufReader::new(stream).read_line(&mut line).is_ok() && line.contains("\"status\"")
    }
}
