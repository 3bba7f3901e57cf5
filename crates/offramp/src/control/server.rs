//! The daemon's side: a thread for each client, so that none of them waits for another.

use super::line::Lines;
use super::{Answer, CLIENTS_MAX, Outcome, REQUEST_LEN_MAX, RefusalCode, Request, VERSION};
use offramp_ports::sys::sandbox::{Sandbox, ThreadKind};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Name of a thread that serves a client.
pub const CLIENT_THREAD: &str = "ofr-client";
/// Pause when no client can be accepted, as when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who answers.
pub trait Handler: Send + Sync + 'static {
    /// The answer to one request.
    fn answer(&self, request: Request) -> Answer;
}

/// Serves clients on threads of its own, until the process ends.
///
/// # Errors
/// When no thread can be started.
pub fn serve(listener: UnixListener, handler: Arc<impl Handler>, sandbox: Sandbox) -> io::Result<()> {
    thread::Builder::new().name("ofr-control".into()).spawn(move || {
        sandbox.enter_thread(ThreadKind::Control);
        let clients = Arc::new(AtomicUsize::new(0));
        loop {
            match listener.accept() {
                Ok((stream, _)) => welcome(stream, &handler, &clients, &sandbox),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    })?;
    Ok(())
}

/// Counts a client for as long as it lives.
struct Client(Arc<AtomicUsize>);

impl Client {
    fn count(clients: &Arc<AtomicUsize>) -> (Self, usize) {
        let others = clients.fetch_add(1, Ordering::Relaxed);
        (Self(Arc::clone(clients)), others)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn welcome(stream: UnixStream, handler: &Arc<impl Handler>, clients: &Arc<AtomicUsize>, sandbox: &Sandbox) {
    let (client, others) = Client::count(clients);
    if others >= CLIENTS_MAX {
        // A few bytes into an empty buffer: this does not wait.
        let busy = Answer::refuse(RefusalCode::Busy, format!("{CLIENTS_MAX} clients are served already; try again"));
        return say(&mut Lines::new(stream, REQUEST_LEN_MAX), &busy).unwrap_or(());
    }
    let (handler, sandbox) = (Arc::clone(handler), sandbox.clone());
    let started = thread::Builder::new().name(CLIENT_THREAD.into()).spawn(move || {
        sandbox.enter_thread(ThreadKind::Client);
        // One that is too slow, or has gone, is parted with; nobody else has to know.
        let _ = converse(Lines::new(stream, REQUEST_LEN_MAX), handler.as_ref());
        drop(client);
    });
    // Without a thread the stream was dropped: the client sees the end, and others go on.
    drop(started);
}

fn converse(mut lines: Lines, handler: &impl Handler) -> io::Result<()> {
    let client = lines.peer();
    loop {
        match lines.read() {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => say(&mut lines, &answer(&line, handler, &client))?,
            Err(error) => {
                let message = format!("no request: {error}; the connection ends");
                return say(&mut lines, &Answer::refuse(RefusalCode::BadRequest, message));
            }
        }
    }
}

fn say(lines: &mut Lines, answer: &Answer) -> io::Result<()> {
    lines.write(&serde_json::to_string(answer)?)
}

fn answer(line: &[u8], handler: &impl Handler, client: &str) -> Answer {
    // The version first: another one may know other fields.
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_slice::<Versioned>(line) {
        Ok(Versioned { version: VERSION }) => {}
        Ok(Versioned { version }) => {
            let message = format!("the request has version {version}; this daemon speaks {VERSION}");
            return Answer::refuse(RefusalCode::BadVersion, message);
        }
        Err(error) => return Answer::refuse(RefusalCode::BadRequest, format!("not a request: {error}")),
    }
    match serde_json::from_slice(line) {
        Ok(request) => {
            let change = sa_change(&request);
            let answer = handler.answer(request);
            if let Some(change) = change {
                let end = if matches!(answer.outcome, Outcome::Error(_)) { "refused" } else { "done" };
                eprintln!("offramp: {client}: {change}: {end}");
            }
            answer
        }
        Err(error) => Answer::refuse(RefusalCode::BadRequest, format!("not a request: {error}")),
    }
}

/// What a request changes of security associations, for the log: who changed them must be found afterwards.
fn sa_change(request: &Request) -> Option<String> {
    match request {
        Request::Show { .. } | Request::Set { .. } => None,
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
    use crate::control::Status;
    use std::io::{BufRead, BufReader, Write};

    struct Empty;

    impl Handler for Empty {
        fn answer(&self, _: Request) -> Answer {
            Answer::new(Outcome::Status(Status {
                offramp: String::new(),
                process: 0,
                uptime_ns: 0,
                sandbox: None,
                ports: vec![],
            }))
        }
    }

    /// A served socket that has no file.
    fn served() -> std::os::unix::net::SocketAddr {
        use std::os::linux::net::SocketAddrExt;
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("offramp-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        serve(UnixListener::bind_addr(&address).unwrap(), Arc::new(Empty), Sandbox::default()).unwrap();
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
    fn silent_clients_delay_no_other_and_too_many_are_told_so() {
        let address = served();
        let connect = || UnixStream::connect_addr(&address).unwrap();
        let silent: Vec<UnixStream> = (1..CLIENTS_MAX).map(|_| connect()).collect();
        let last = connect();
        assert!(say_and_hear(&last, SHOW).contains("\"status\""));
        assert!(hear(&connect()).contains("\"busy\""));
        drop(silent);
        // Their threads notice one by one.
        while !say_and_hear_or_end(&connect()) {
            thread::yield_now();
        }
    }

    /// Whether a new client is served.
    fn say_and_hear_or_end(stream: &UnixStream) -> bool {
        let mut line = String::new();
        let sent = (&mut &*stream).write_all(SHOW.as_bytes());
        sent.is_ok() && BufReader::new(stream).read_line(&mut line).is_ok() && line.contains("\"status\"")
    }
}
