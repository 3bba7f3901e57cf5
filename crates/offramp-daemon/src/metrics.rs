//! The counters of `show` for Prometheus: `OpenMetrics` text over HTTP.
//!
//! A scrape is a snapshot, as `show` takes it: no thread of frames waits for it, or knows of it. A client has some seconds
//! for its request and for taking the answer.

use super::config::MetricsAddress;
use super::privilege::Groups;
use crate::control::LINE_TIME_MAX;
use crate::control::line::left;
use crate::control::server::{Handler, Listener, serve_each};
use crate::control::socket::SocketError;
use crate::schema::{
    Answer, AssociationStatus, DirectionStatus, GuestCounters, HistogramStatus, Outcome, PortStatus, Request, Status,
    VERSION,
};
use nix::sys::utsname::uname;
use offramp_adapter::stats::Histogram;
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::sys::socket_file::{self, MakeError, SocketFile};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Permissions of a socket file: it shows the same as the read-only control socket.
const SOCKET_MODE: u32 = 0o666;
/// Longest head of a request, bytes, and most of its fields.
const HEAD_LEN_MAX: usize = 8192;
const HEAD_FIELDS_MAX: usize = 64;
/// `OpenMetrics` 1.0.
const TEXT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A listening socket. Its file, if it has one, goes with it.
#[derive(Debug)]
pub enum MetricsSocket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Goes with it.
        _file: SocketFile,
    },
}

impl MetricsSocket {
    /// Listens where the file says.
    ///
    /// # Errors
    /// When the place is taken, or the system refuses it.
    pub fn listen(address: &MetricsAddress, groups: &Groups) -> Result<Self, SocketError> {
        const KEY: &str = "daemon.metrics";
        // A thread in the sandbox may not ask.
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

    /// Serves clients on threads of its own, until the process ends.
    ///
    /// # Errors
    /// When the process has no descriptor left, or no thread can be started.
    pub fn serve(&self, handler: Arc<impl Handler>, sandbox: Sandbox) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => serve(listener.try_clone()?, handler, sandbox),
            Self::Unix { listener, .. } => serve(listener.try_clone()?, handler, sandbox),
        }
    }
}

/// Returns the release of the kernel, as of the first call.
fn kernel() -> &'static str {
    static KERNEL: OnceLock<String> = OnceLock::new();
    KERNEL.get_or_init(|| uname().map(|of| of.release().to_string_lossy().into_owned()).unwrap_or_default())
}

/// A client's connection.
trait Stream: Read + Write + Send + 'static {
    /// Limits the time of one read or write.
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
    // One too many sees the end of its connection.
    serve_each("ofr-metrics", listener, move |stream| answer(stream, handler.as_ref()), drop, sandbox)
}

/// Answers one request; the connection ends with it.
fn answer(mut stream: impl Stream, handler: &impl Handler) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let (status, kind, text) = match head {
        Head::Metrics { .. } => ("200 OK", TEXT_TYPE, metrics(handler)?),
        Head::Elsewhere => ("404 Not Found", "text/plain", "the counters are at /metrics\n".to_owned()),
        Head::Method => ("405 Method Not Allowed", "text/plain", "use GET\n".to_owned()),
        Head::Wrong => ("400 Bad Request", "text/plain", "not a request of HTTP/1\n".to_owned()),
    };
    let len = text.len();
    let mut out =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    if !matches!(head, Head::Metrics { wants_body: false }) {
        out.push_str(&text);
    }
    write_before(&mut stream, out.as_bytes(), Instant::now() + LINE_TIME_MAX)
}

/// The kind of a request, by its head.
enum Head {
    Metrics { wants_body: bool },
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
                return Ok(match (path.split('?').next(), request.method) {
                    (Some("/metrics"), Some("GET")) => Head::Metrics { wants_body: true },
                    (Some("/metrics"), Some("HEAD")) => Head::Metrics { wants_body: false },
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
    match handler.answer(Request::Show { version: VERSION, port: None }) {
        Answer { outcome: Outcome::Status(status), .. } => text(status).map_err(io::Error::other),
        Answer { .. } => Err(io::Error::other("nothing to show")),
    }
}

/// Returns the metrics of a daemon as `OpenMetrics` text.
fn text(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("offramp");
    registry.register_collector(Box::new(Metrics(status)));
    let mut out = String::new();
    encode(&mut out, &registry)?;
    Ok(out)
}

/// Labels of a sample.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A counter of each direction of each queue pair.
type OfDirection = (&'static str, &'static str, fn(&DirectionStatus) -> u64);

/// `docs/metrics.md` lists them.
const OF_DIRECTIONS: [OfDirection; 8] = [
    ("frames_in", "Frames that came: from the host (transmit) or from the wire (receive)", |of| of.frames_in),
    ("frames_out", "Frames that went on, after segmentation or coalescing", |of| of.frames_out),
    ("bytes_out", "Bytes of them, without FCS", |of| of.bytes_out),
    ("host_frames", "Frames and super-frames that the host handed over or was given", |of| of.host_frames),
    ("interrupts", "Interrupts of a guest, or batches of a TAP", |of| of.interrupts.unwrap_or(0)),
    ("bypassed", "Packets that matched no association and went on as they were", |of| of.bypassed),
    ("bad_checksums", "Frames with a wrong checksum that were passed on as such", |of| of.bad_checksum),
    ("unparsed", "Frames that are of no protocol that the adapter works on", |of| of.unparsed),
];

type OfGuest = (&'static str, &'static str, fn(&GuestCounters) -> u64);

const OF_GUESTS: [OfGuest; 8] = [
    ("guest_connections", "Frontends that connected", |of| of.connections),
    ("guest_refused_connections", "Frontends that were turned away", |of| of.refused_connections),
    ("guest_messages", "Messages of frontends", |of| of.messages),
    ("guest_bad_messages", "Messages that were refused", |of| of.bad_messages),
    ("guest_lost_memories", "Memories that a frontend took away while they were in use", |of| of.lost_memories),
    ("guest_bad_chains", "Chains of descriptors that cannot be used", |of| of.bad_chains),
    ("guest_broken_rings", "Rings that were stopped because of what stands in them", |of| of.broken_rings),
    ("guest_discarded", "Frames for which the guest has no buffer, when nothing waits for it", |of| of.discarded),
];

type OfAssociation = (&'static str, &'static str, fn(&AssociationStatus) -> u64);

const OF_ASSOCIATIONS: [OfAssociation; 3] = [
    ("ipsec_packets", "Packets that an association has protected or opened", |sa| sa.packets),
    ("ipsec_bytes", "Bytes of them", |sa| sa.bytes),
    ("ipsec_refused_packets", "Packets that an association has refused", |sa| sa.refused.values().sum()),
];

#[derive(Debug)]
struct Metrics(Status);

impl Metrics {
    fn directions(&self) -> impl Iterator<Item = (Labels<'_>, String, &DirectionStatus)> {
        self.0.ports.iter().flat_map(|port| {
            port.queues.iter().flat_map(move |queue| {
                [("transmit", &queue.transmit), ("receive", &queue.receive)].map(|(direction, of)| {
                    (vec![("port", port.name.as_str()), ("direction", direction)], queue.index.to_string(), of)
                })
            })
        })
    }

    fn guests(&self) -> impl Iterator<Item = (&PortStatus, &GuestCounters, bool, u64)> {
        let guests = self.0.ports.iter().filter_map(|port| Some((port, port.host.guest()?)));
        guests.map(|(port, guest)| (port, &guest.counters, guest.connected, guest.memory_bytes))
    }

    fn associations(&self) -> impl Iterator<Item = (&PortStatus, &AssociationStatus)> {
        let ports = self.0.ports.iter().filter_map(|port| Some((port, port.ipsec.as_ref()?)));
        ports.flat_map(|(port, ipsec)| ipsec.associations.iter().map(move |sa| (port, sa)))
    }

    fn encode_directions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in OF_DIRECTIONS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (mut labels, queue, of) in self.directions() {
                labels.push(("queue", &queue));
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(of), None)?;
            }
        }
        let help = "Frames that were lost, by reason";
        let mut family = encoder.encode_descriptor("lost_frames", help, None, MetricType::Counter)?;
        for (labels, queue, of) in self.directions() {
            for (reason, count) in &of.lost {
                let labels = [&labels[..], &[("queue", &queue), ("reason", reason)]].concat();
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        let help = "Longest that a frame waits for an interrupt, as moderation has it now";
        let mut family =
            encoder.encode_descriptor("interrupt_wait_max", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        for (mut labels, queue, of) in self.directions() {
            labels.push(("queue", &queue));
            let seconds = Duration::from_nanos(of.wait_max_ns).as_secs_f64();
            family.encode_family(&labels)?.encode_gauge(&seconds)?;
        }
        Ok(())
    }

    fn encode_histograms(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Frames and super-frames of the host in a batch";
        let mut family = encoder.encode_descriptor("batch_frames", help, None, MetricType::Histogram)?;
        for (mut labels, queue, of) in self.directions() {
            labels.push(("queue", &queue));
            encode_histogram::<1>(family.encode_family(&labels)?, &of.batch_frames, 1.0)?;
        }
        let help = "How long the oldest frame waited for an interrupt that moderation deferred";
        let mut family =
            encoder.encode_descriptor("interrupt_wait", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (mut labels, queue, of) in
            self.directions().filter(|(labels, ..)| labels.contains(&("direction", "receive")))
        {
            labels.push(("queue", &queue));
            encode_histogram::<1000>(family.encode_family(&labels)?, &of.interrupt_wait_ns, 1e9)?;
        }
        Ok(())
    }

    fn encode_wires(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Frames that were lost at the interface on the wire of a port, by reason";
        let mut family = encoder.encode_descriptor("wire_lost_frames", help, None, MetricType::Counter)?;
        for port in &self.0.ports {
            let Some(lost) = &port.wire_lost else { continue };
            for (direction, reasons) in [("transmit", &lost.transmit), ("receive", &lost.receive)] {
                for (reason, count) in reasons {
                    let labels = vec![("port", port.name.as_str()), ("direction", direction), ("reason", reason)];
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
                }
            }
        }
        Ok(())
    }

    fn encode_guests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in OF_GUESTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (port, counters, ..) in self.guests() {
                let labels = [("port", port.name.as_str())];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(counters), None)?;
            }
        }
        let help = "Whether a frontend is connected";
        let mut family = encoder.encode_descriptor("guest_connected", help, None, MetricType::Gauge)?;
        for (port, _, connected, _) in self.guests() {
            family.encode_family(&[("port", port.name.as_str())])?.encode_gauge(&u64::from(connected))?;
        }
        let help = "Guest memory that is mapped";
        let mut family = encoder.encode_descriptor("guest_memory", help, Some(&Unit::Bytes), MetricType::Gauge)?;
        for (port, _, _, memory_bytes) in self.guests() {
            family.encode_family(&[("port", port.name.as_str())])?.encode_gauge(&memory_bytes)?;
        }
        Ok(())
    }

    fn encode_ports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Queue pairs whose thread stands still";
        let mut family = encoder.encode_descriptor("stalled_queues", help, None, MetricType::Gauge)?;
        for port in &self.0.ports {
            let stalled = port.queues.iter().filter(|queue| queue.stalled.is_some()).count() as u64;
            family.encode_family(&[("port", port.name.as_str())])?.encode_gauge(&stalled)?;
        }
        let help = "Whether the operator has set the link on";
        let mut family = encoder.encode_descriptor("link_on", help, None, MetricType::Gauge)?;
        for port in &self.0.ports {
            let is_on = port.link.unwrap_or(true);
            family.encode_family(&[("port", port.name.as_str())])?.encode_gauge(&u64::from(is_on))?;
        }
        let help = "Whether a feature is done now";
        let mut family = encoder.encode_descriptor("feature_in_use", help, None, MetricType::Gauge)?;
        for port in &self.0.ports {
            for feature in &port.features {
                let labels = [("port", port.name.as_str()), ("feature", feature.name.as_str())];
                family.encode_family(&labels)?.encode_gauge(&u64::from(feature.in_use))?;
            }
        }
        Ok(())
    }

    fn encode_associations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in OF_ASSOCIATIONS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (port, sa) in self.associations() {
                let spi = format!("{:#010x}", sa.spi);
                let labels = [("port", port.name.as_str()), ("direction", sa.direction.as_str()), ("spi", &spi)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(sa), None)?;
            }
        }
        Ok(())
    }
}

/// Encodes a histogram. `per` units of its values make one unit of the metric.
fn encode_histogram<const UNIT: u64>(mut encoder: MetricEncoder<'_>, of: &HistogramStatus, per: f64) -> fmt::Result {
    let bounds = Histogram::<UNIT>::bounds().map(|bound| bound as f64 / per).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(of.counts.iter().copied()).collect();
    encoder.encode_histogram::<NoLabelSet>(of.sum as f64 / per, of.counts.iter().sum(), &buckets, None)
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [("version", self.0.offramp.as_str()), ("kernel", kernel())];
        let help = "The program and the kernel that it runs on";
        encoder.encode_descriptor("build", help, None, MetricType::Info)?.encode_info(&labels)?;
        let uptime = Duration::from_nanos(self.0.uptime_ns).as_secs_f64();
        let help = "Time since the daemon began";
        encoder.encode_descriptor("uptime", help, Some(&Unit::Seconds), MetricType::Gauge)?.encode_gauge(&uptime)?;
        self.encode_directions(&mut encoder)?;
        self.encode_histograms(&mut encoder)?;
        self.encode_wires(&mut encoder)?;
        self.encode_ports(&mut encoder)?;
        self.encode_guests(&mut encoder)?;
        self.encode_associations(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::CLIENTS_OF_USER_MAX;
    use crate::schema::{Event, RefusalCode};
    use offramp_ports::capture::Capture;
    use std::collections::BTreeSet;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Receiver;
    use std::thread;

    /// A daemon without ports.
    struct Empty;

    impl Handler for Empty {
        fn answer(&self, _: Request) -> Answer {
            Answer::new(Outcome::Status(Status {
                offramp: "0.0.0".to_owned(),
                process: 0,
                uptime_ns: 1_500_000_000,
                sandbox: None,
                ports: vec![],
            }))
        }

        fn capture(&self, port: &str, _: u32) -> Result<Capture, Answer> {
            Err(Answer::refuse(RefusalCode::UnknownPort, port))
        }

        fn events(&self) -> Receiver<Event> {
            std::sync::mpsc::channel().1
        }
    }

    /// Returns the address of a served socket without a file.
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
        // A client too many finds its connection closed or reset.
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

    /// Returns the names of all samples, by the text of a daemon without ports.
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
        // The names on the page, except for abbreviated ones.
        let listed =
            page.split('`').filter(|name| name.starts_with("offramp_") && !name.contains(['{', '>', '=', '*']));
        listed.for_each(|name| {
            let name = if known.contains(name) { name.to_owned() } else { format!("{name}_bucket") };
            assert!(known.contains(&name), "docs/metrics.md: {name}");
        });
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
        // Their threads notice one by one.
        while !ask(&address, GET).contains("# EOF") {
            thread::yield_now();
        }
    }
}
