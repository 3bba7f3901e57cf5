//! The counters of `show` for Prometheus, as `OpenMetrics` text or in the text format 0.0.4, over HTTP.
//!
//! A scrape reads a snapshot, as `show` does, and delays no thread on the frame path. A client has a few seconds to
//! send its request and to read the answer.

mod encode;
mod format;

use super::config::MetricsAddress;
use super::privilege::Groups;
use crate::control::LINE_TIME_MAX;
use crate::control::line::left;
use crate::control::server::{Handler, Listener, serve_each};
use crate::control::socket::SocketError;
use crate::schema::{Answer, Outcome, Request, VERSION};
use format::Format;
use nix::sys::utsname::uname;
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::sys::socket_file::{self, MakeError, SocketFile};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Permissions of a socket file: everyone may connect, as to the read-only control socket.
const SOCKET_MODE: u32 = 0o666;
/// Maximum length of a request's head in bytes, and maximum number of its fields.
const HEAD_LEN_MAX: usize = 8192;
const HEAD_FIELDS_MAX: usize = 64;

/// The listening socket of the metrics server. Dropping this value removes the socket's file, if any.
#[derive(Debug)]
pub enum MetricsSocket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// The socket's file, removed when this value is dropped.
        _file: SocketFile,
    },
}

impl MetricsSocket {
    /// Listens at the address from the file.
    ///
    /// # Errors
    /// Fails if the address is in use, or if the system refuses the socket.
    pub fn listen(address: &MetricsAddress, groups: &Groups) -> Result<Self, SocketError> {
        const KEY: &str = "daemon.metrics";
        // The kernel's release is read here, because a thread in the sandbox must not call `uname`.
        kernel();
        match address {
            MetricsAddress::Tcp(address) => TcpListener::bind(address).map(Self::Tcp).map_err(|cause| {
                let error = MakeError::System { doing: "listening", cause };
                SocketError::new(KEY, address.to_string().as_ref(), error)
            }),
            MetricsAddress::Unix(path) => socket_file::listen(path, groups.rights(SOCKET_MODE, None))
                .map(|(listener, file)| Self::Unix { listener, _file: file })
                .map_err(|error| SocketError::new(KEY, path, error)),
        }
    }

    /// Serves clients on separate threads, until the process ends.
    ///
    /// # Errors
    /// Fails if the process has no free descriptor, or if no thread can be started.
    pub fn serve(&self, handler: Arc<impl Handler>, sandbox: Sandbox) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => serve(listener.try_clone()?, handler, sandbox),
            Self::Unix { listener, .. } => serve(listener.try_clone()?, handler, sandbox),
        }
    }
}

/// Returns the kernel's release, read at the first call.
fn kernel() -> &'static str {
    static KERNEL: OnceLock<String> = OnceLock::new();
    KERNEL.get_or_init(|| uname().map(|of| of.release().to_string_lossy().into_owned()).unwrap_or_default())
}

/// A client's connection.
trait Stream: Read + Write + Send + 'static {
    /// Sets the time limit for one read or write.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

fn serve<L: Listener<Stream: Stream>>(listener: L, handler: Arc<impl Handler>, sandbox: Sandbox) -> io::Result<()> {
    // A client above the limit of clients is disconnected without an answer.
    serve_each("ofr-metrics", listener, move |stream| answer(stream, handler.as_ref()), drop, sandbox)
}

/// Answers one request, and ends the connection.
fn answer(mut stream: impl Stream, handler: &impl Handler) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let (status, kind, text) = match head {
        Head::Metrics { format, .. } => ("200 OK", format.content_type(), format.converted(metrics(handler)?)),
        Head::Elsewhere => ("404 Not Found", "text/plain", "the counters are at /metrics\n".to_owned()),
        Head::Method => ("405 Method Not Allowed", "text/plain", "use GET\n".to_owned()),
        Head::Wrong => ("400 Bad Request", "text/plain", "not a request of HTTP/1\n".to_owned()),
    };
    let (len, until) = (text.len(), Instant::now() + LINE_TIME_MAX);
    let fields =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    write_before(&mut stream, fields.as_bytes(), until)?;
    match head {
        Head::Metrics { wants_body: false, .. } => Ok(()),
        _ => write_before(&mut stream, text.as_bytes(), until),
    }
}

/// The kind of a request, determined from its head (request line and header fields).
enum Head {
    Metrics { wants_body: bool, format: Format },
    Elsewhere,
    Method,
    Wrong,
}

fn read_head(stream: &mut impl Stream) -> io::Result<Head> {
    let until = Instant::now() + LINE_TIME_MAX;
    let (mut bytes, mut len) = ([0; HEAD_LEN_MAX], 0);
    loop {
        stream.limit(left(until)?)?;
        let read = stream.read(&mut bytes[len..])?;
        len += read;
        let mut fields = [httparse::EMPTY_HEADER; HEAD_FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&bytes[..len]) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.unwrap_or_default();
                let accept = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("accept"));
                let format = Format::accepted(accept.map(|field| field.value));
                return Ok(match (path.split('?').next(), request.method) {
                    (Some("/metrics"), Some("GET")) => Head::Metrics { wants_body: true, format },
                    (Some("/metrics"), Some("HEAD")) => Head::Metrics { wants_body: false, format },
                    (Some("/metrics"), _) => Head::Method,
                    _ => Head::Elsewhere,
                });
            }
            Ok(httparse::Status::Partial) if read > 0 && len < HEAD_LEN_MAX => {}
            Ok(httparse::Status::Partial) | Err(_) => return Ok(Head::Wrong),
        }
    }
}

fn write_before(stream: &mut impl Stream, bytes: &[u8], until: Instant) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        stream.limit(left(until)?)?;
        sent += match stream.write(&bytes[sent..])? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            len => len,
        };
    }
    Ok(())
}

fn metrics(handler: &impl Handler) -> io::Result<String> {
    match handler.answer(Request::Show { version: VERSION, port: None, summary: false }, None) {
        Answer { outcome: Outcome::Status(status), .. } => Ok(encode::text(&status, kernel())),
        Answer { .. } => Err(io::Error::other("nothing to show")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::CLIENTS_OF_USER_MAX;
    use crate::control::line::Peer;
    use crate::schema::tests::{compare_table, example};
    use crate::schema::{Event, RefusalCode, Status};
    use offramp_adapter::stats::Direction;
    use offramp_ports::capture::Capture;
    use offramp_ports::vhost_user::guest_rows;
    use std::collections::BTreeSet;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Receiver;
    use std::thread;

    /// A daemon without ports.
    struct Empty;

    impl Handler for Empty {
        fn answer(&self, _: Request, _: Option<Peer>) -> Answer {
            Answer::new(Outcome::Status(Box::new(Status {
                offramp: "0.0.0".to_owned(),
                process: 0,
                uptime_ns: 1_500_000_000,
                sandbox: None,
                ports: vec![],
                switches: vec![],
            })))
        }

        fn capture(&self, port: &str, _: u32, _: u64) -> Result<Capture, Answer> {
            Err(Answer::refuse(RefusalCode::UnknownPort, port))
        }

        fn events(&self) -> Receiver<Event> {
            std::sync::mpsc::channel().1
        }
    }

    /// Serves a new abstract socket, which has no file, and returns its address.
    fn served() -> SocketAddr {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("offramp-metrics-test-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        serve(UnixListener::bind_addr(&address).unwrap(), Arc::new(Empty), Sandbox::default()).unwrap();
        address
    }

    fn ask(address: &SocketAddr, request: &str) -> String {
        let mut stream = UnixStream::connect_addr(address).unwrap();
        let mut answer = String::new();
        // A client above the limit finds its connection closed or reset.
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        answer
    }

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn counters_are_text_of_the_length_that_its_head_says() {
        let answer = ask(&served(), GET);
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK") && head.contains(&format!("Content-Length: {}", text.len())),
            "{head}"
        );
        assert!(text.contains("offramp_build_info{version=\"0.0.0\",kernel=\"") && text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("\nofframp_uptime_seconds 1.5\n"), "{text}");
        let head_alone = ask(&served(), &GET.replace("GET", "HEAD"));
        assert!(head_alone.ends_with("\r\n\r\n") && head_alone.starts_with("HTTP/1.1 200 OK"), "{head_alone}");
    }

    #[test]
    fn a_scraper_of_the_old_format_keeps_the_kind_of_every_sample() {
        let old = "GET /metrics HTTP/1.1\r\nHost: a\r\naccept: text/plain;version=0.0.4\r\n\r\n";
        let (answer, head) = (ask(&served(), old), ask(&served(), &old.replace("GET", "HEAD")));
        assert!(answer.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
        assert_eq!(head.split("\r\n\r\n").next(), answer.split("\r\n\r\n").next());
        let text = Format::Text.converted(encode::text(&example(), kernel()));
        let (mut names, mut family) = (BTreeSet::new(), ("", ""));
        for line in text.lines() {
            let comment = line.strip_prefix("# ").map(|comment| comment.splitn(3, ' ').collect::<Vec<_>>());
            match comment.as_deref() {
                Some(["HELP", name, _]) => assert!(names.insert(*name), "{name} twice"),
                Some(["TYPE", name, kind @ ("counter" | "gauge" | "histogram")]) => family = (name, kind),
                Some(comment) => panic!("{comment:?}"),
                None => {
                    let name = line.split(['{', ' ']).next().unwrap();
                    let of_family = match family {
                        (of, "histogram") => {
                            ["_bucket", "_sum", "_count"].iter().any(|part| name == of.to_owned() + part)
                        }
                        (of, _) => name == of,
                    };
                    assert!(of_family && names.contains(family.0), "{line} in {family:?}");
                }
            }
        }
        let counters = text.matches(" counter\n").count();
        assert!(counters > 20 && text.contains("# TYPE offramp_build_info gauge\n"), "{counters} {text}");
    }

    /// Returns the names of all samples, from the text of a daemon without ports.
    fn sample_names() -> BTreeSet<String> {
        let text = ask(&served(), GET);
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let samples = |(name, kind): (&str, &str)| match kind {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["bucket", "count", "sum"].map(|part| format!("{name}_{part}")).into(),
            "info" => vec![format!("{name}_info")],
            _ => vec![name.to_owned()],
        };
        kinds.flat_map(samples).collect()
    }

    #[test]
    fn the_board_and_the_page_name_metrics_that_there_are() {
        let board: serde_json::Value = serde_json::from_str(include_str!("../../../dist/grafana.json")).unwrap();
        let panels = board["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let asked: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
        assert!(asked.len() > 15, "{asked:?}");
        let (known, page) = (sample_names(), include_str!("../../../docs/metrics.md"));
        let alerts = page.split("## What should I alert on?").nth(1).unwrap();
        for text in asked.into_iter().chain([alerts, board["templating"].to_string().as_str()]) {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let mut names = words.filter(|word| word.starts_with("offramp_")).peekable();
            assert!(names.peek().is_some(), "{text}");
            names.for_each(|name| assert!(known.contains(name), "{name} in {text}: there is none"));
        }
        // The names of metrics on the page. Patterns (`*`) and expressions are left out.
        let listed =
            page.split('`').filter(|name| name.starts_with("offramp_") && !name.contains(['{', '>', '=', '*']));
        listed.for_each(|name| {
            let name = if known.contains(name) { name.to_owned() } else { format!("{name}_bucket") };
            assert!(known.contains(&name), "docs/metrics.md: {name}");
        });
    }

    #[test]
    fn the_page_has_each_metric_with_its_labels_and_its_help() {
        let text = encode::text(&example(), kernel());
        let row = |metric: &str| {
            let mut lines = metric.lines();
            let (name, help) = lines.next().unwrap().split_once(' ').unwrap();
            let (_, kind) = lines.next().unwrap().rsplit_once(' ').unwrap();
            let sample = lines.find(|line| line.starts_with(name)).unwrap();
            let labels =
                sample.split(['{', ',', '}']).filter_map(|label| label.split_once("=\"")).map(|(label, _)| label);
            let name = sample.split(['{', ' ']).next().unwrap().trim_end_matches("_sum");
            format!("| `{name}` | {kind} | {} | {help} |", labels.collect::<Vec<_>>().join(", "))
        };
        let rows: Vec<_> = text.split("# HELP ").skip(1).map(row).collect();
        let counted = Direction::ROWS.iter().chain(guest_rows()).filter(|row| row.metric.is_some());
        counted.for_each(|counter| assert!(rows.iter().any(|row| row.contains(counter.help)), "{counter:?}"));
        let head = ["| metric | kind | labels | meaning |", "|---|---|---|---|"].map(str::to_owned);
        compare_table("metrics.md", "metrics", head.into_iter().chain(rows));
    }

    #[test]
    fn what_is_not_a_request_for_counters_is_refused_and_the_next_one_is_answered() {
        let address = served();
        for (wrong, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\u{1}\u{2}\r\n\r\n", "400"),
            (&format!("GET /metrics HTTP/1.1\r\na: {}", "b".repeat(HEAD_LEN_MAX)), "400"),
            (&format!("GET /metrics HTTP/1.1\r\n{}", "a: b\r\n".repeat(HEAD_FIELDS_MAX + 1)), "400"),
        ] {
            let answer = ask(&address, wrong);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{wrong}: {answer}");
        }
        assert!(ask(&address, GET).contains("# EOF"));
    }

    #[test]
    fn silent_clients_delay_no_other_and_too_many_are_disconnected() {
        let address = served();
        let silent: Vec<_> = (1..CLIENTS_OF_USER_MAX).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
        assert!(ask(&address, GET).contains("# EOF"));
        let last = UnixStream::connect_addr(&address).unwrap();
        while !ask(&address, "").is_empty() {}
        drop((silent, last));
        // A place for a client becomes free when the thread of an earlier client has ended.
        while !ask(&address, GET).contains("# EOF") {
            thread::yield_now();
        }
    }
}
