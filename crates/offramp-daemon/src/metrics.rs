//! The counters of `show` for Prometheus, as `OpenMetrics` text over HTTP.
//!
//! A scrape reads a snapshot, as `show` does, and delays no thread on the frame path. A client has a few seconds to
//! send its request and to read the answer.

use super::config::MetricsAddress;
use super::privilege::Groups;
use crate::control::LINE_TIME_MAX;
use crate::control::line::left;
use crate::control::server::{Handler, Listener, serve_each};
use crate::control::socket::SocketError;
use crate::schema::{
    Answer, AssociationStatus, Counts, DirectionStatus, HistogramStatus, Outcome, PortStatus, Request, Status,
    SwitchStatus, VERSION,
};
use nix::sys::utsname::uname;
use offramp_adapter::stats::{Direction, Histogram, Row};
use offramp_ports::sys::sandbox::Sandbox;
use offramp_ports::sys::socket_file::{self, MakeError, SocketFile};
use offramp_ports::vhost_user::guest_rows;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
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
/// Content type of `OpenMetrics` 1.0.
const TEXT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A listening socket. Dropping this value removes the socket's file, if any.
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
        // The release is read here, because a thread in the sandbox must not call `uname`.
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
    // A client above the limit sees the end of its connection.
    serve_each("ofr-metrics", listener, move |stream| answer(stream, handler.as_ref()), drop, sandbox)
}

/// Answers one request, and ends the connection.
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

/// The kind of a request, from its head.
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
    match handler.answer(Request::Show { version: VERSION, port: None }, None) {
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
type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A function that reads a counter.
type Of<T> = fn(&T) -> u64;

/// A function that reads a value; `None` if it is not known.
type Known<T> = fn(&T) -> Option<u64>;

/// The value of a sample.
enum Value<'a> {
    Number(u64),
    Seconds(f64),
    /// A histogram: its counts, the bounds of its buckets, and the number of histogram units in one unit of the metric.
    Histogram(&'a HistogramStatus, Vec<u64>, f64),
}

/// The encoder of the metrics' text.
struct Text<'a>(DescriptorEncoder<'a>);

impl Text<'_> {
    /// Writes a metric. The name of the metric ends with the unit.
    fn metric<'a>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (Labels<'a>, Value<'a>)>,
    ) -> fmt::Result {
        let (units, last) = ([Unit::Seconds, Unit::Bytes], name.rsplit_once('_'));
        let unit = units.iter().find_map(|unit| Some((last.filter(|(_, last)| *last == unit.as_str())?.0, unit)));
        let name = unit.map_or(name, |(stem, _)| stem);
        let mut family = self.0.encode_descriptor(name, help, unit.map(|(_, unit)| unit), kind)?;
        for (labels, value) in samples {
            let mut sample = family.encode_family(&labels)?;
            match (value, kind) {
                (Value::Number(count), MetricType::Counter) => {
                    sample.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
                (Value::Number(number), _) => sample.encode_gauge(&number)?,
                (Value::Seconds(seconds), _) => sample.encode_gauge(&seconds)?,
                (Value::Histogram(of, bounds, per), _) => {
                    let bounds = bounds.into_iter().map(|bound| bound as f64 / per).chain([f64::INFINITY]);
                    let buckets: Vec<(f64, u64)> = bounds.zip(of.counts.iter().copied()).collect();
                    let (sum, count) = (of.sum as f64 / per, of.counts.iter().sum());
                    sample.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the metrics of a table of rows.
    fn rows<'a>(
        &mut self,
        prefix: &str,
        rows: impl Iterator<Item = &'static Row>,
        counts: &[(Labels<'a>, &'a Counts)],
    ) -> fmt::Result {
        for row in rows {
            let Some(metric) = row.metric else { continue };
            let kind = if row.is_gauge { MetricType::Gauge } else { MetricType::Counter };
            let is_time = row.name.ends_with("_ns");
            let samples = counts.iter().map(|(labels, counts)| {
                let count = counts.get(row.name).unwrap_or(0);
                let seconds = || Value::Seconds(Duration::from_nanos(count).as_secs_f64());
                (labels.clone(), if is_time { seconds() } else { Value::Number(count) })
            });
            let unit = if is_time { "_seconds" } else { "" };
            self.metric(kind, &format!("{prefix}{metric}{unit}"), row.help, samples)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Metrics(Status);

impl Metrics {
    fn ports(&self) -> impl Iterator<Item = (Labels<'_>, &PortStatus)> + Clone {
        self.0.ports.iter().map(|port| (vec![("port", port.name.as_str().into())], port))
    }

    fn directions(&self) -> impl Iterator<Item = (Labels<'_>, &DirectionStatus)> + Clone {
        let queues = self.ports().flat_map(|(labels, port)| port.queues.iter().map(move |of| (labels.clone(), of)));
        queues.flat_map(|(labels, queue)| {
            [("transmit", &queue.transmit), ("receive", &queue.receive)].map(|(direction, of)| {
                let further = [("direction", direction.into()), ("queue", queue.index.to_string().into())];
                (labels.iter().cloned().chain(further).collect(), of)
            })
        })
    }

    fn encode_directions(&self, text: &mut Text<'_>) -> fmt::Result {
        let directions = self.directions();
        let counts: Vec<_> = directions.clone().map(|(labels, of)| (labels, &of.counts)).collect();
        text.rows("", Direction::ROWS.iter(), &counts)?;
        let lost = directions.clone().flat_map(|(labels, of)| by_reason(labels, &of.lost));
        text.metric(MetricType::Counter, "lost_frames", "Lost frames, each once, by reason.", lost)?;
        let help = "Frames and super-frames of the host in one batch. With few in each, threads wake for little.";
        let batches = directions.clone().map(|(labels, of)| (labels, histogram::<1>(&of.batch_frames, 1.0)));
        text.metric(MetricType::Histogram, "batch_frames", help, batches)?;
        let help = "Wait of the oldest frame for each interrupt deferred by moderation; none with the policy `off`. A guest \
                    that polls, or sees frames before the interrupt, did not wait.";
        let received = directions.filter(|(labels, _)| labels.contains(&("direction", "receive".into())));
        let waits = received.map(|(labels, of)| (labels, histogram::<1000>(&of.interrupt_wait_ns, 1e9)));
        text.metric(MetricType::Histogram, "interrupt_wait_seconds", help, waits)
    }

    fn encode_ports(&self, text: &mut Text<'_>) -> fmt::Result {
        let lost = self.ports().filter_map(|(labels, port)| Some((labels, port.wire_lost.as_ref()?)));
        let lost = lost.flat_map(|(labels, lost)| {
            [("transmit", &lost.transmit), ("receive", &lost.receive)].into_iter().flat_map(move |(direction, lost)| {
                by_reason([&labels[..], &[("direction", direction.into())]].concat(), lost)
            })
        });
        let help = "Frames lost at the interface on the port's wire, by reason.";
        text.metric(MetricType::Counter, "wire_lost_frames", help, lost)?;
        let stalled = |port: &PortStatus| port.queues.iter().filter(|queue| queue.stalled.is_some()).count() as u64;
        let stalled = self.ports().map(|(labels, port)| (labels, Value::Number(stalled(port))));
        text.metric(MetricType::Gauge, "stalled_queues", "Queue pairs with a stalled thread.", stalled)?;
        let links = self.ports().map(|(labels, port)| (labels, Value::Number(port.link.unwrap_or(true).into())));
        text.metric(MetricType::Gauge, "link_on", "0 while the operator has set the port's link off.", links)?;
        let features = self.ports().flat_map(|(labels, port)| {
            let label = move |name: &'_ str| [&labels[..], &[("feature", name.to_owned().into())]].concat();
            port.features.iter().map(move |of| (label(&of.name), Value::Number(of.in_use.into())))
        });
        text.metric(MetricType::Gauge, "feature_in_use", "1 for a feature in use.", features)
    }

    fn encode_guests(&self, text: &mut Text<'_>) -> fmt::Result {
        let guests = self.ports().filter_map(|(labels, port)| {
            let guest = port.host.guest()?;
            Some((labels, guest))
        });
        let counts: Vec<_> = guests.clone().map(|(labels, guest)| (labels, &guest.counters)).collect();
        text.rows("guest_", guest_rows(), &counts)?;
        let connected = guests.clone().map(|(labels, guest)| (labels, Value::Number(guest.connected.into())));
        text.metric(MetricType::Gauge, "guest_connected", "1 while a frontend is connected.", connected)?;
        let memory = guests.clone().map(|(labels, guest)| (labels, Value::Number(guest.memory_bytes)));
        text.metric(MetricType::Gauge, "guest_memory_bytes", "Mapped guest memory.", memory)?;
        let touched = guests.filter_map(|(labels, guest)| Some((labels, Value::Number(guest.memory_touched_bytes?))));
        let help = "Guest memory in the daemon's page tables. The guest has it in any case.";
        text.metric(MetricType::Gauge, "guest_memory_touched_bytes", help, touched)
    }

    fn encode_switches(&self, text: &mut Text<'_>) -> fmt::Result {
        let switches = || self.0.switches.iter().map(|switch| (vec![("switch", switch.name.as_str().into())], switch));
        let gauges: [(_, _, Known<SwitchStatus>); 4] = [
            ("switch_ports", "Ports of a switch.", |switch| Some(switch.ports.len() as u64)),
            ("switch_stations", "Stations that a switch knows, within the ageing time.", |switch| {
                Some(switch.stations_known? as u64)
            }),
            ("switch_station_age_max_seconds", "Time since the last frame of the longest idle station.", |switch| {
                switch.oldest_age_s
            }),
            ("switch_station_age_min_seconds", "Time since the last frame of any station.", |switch| {
                switch.newest_age_s
            }),
        ];
        for (name, help, value) in gauges {
            let samples = switches().filter_map(|(labels, switch)| Some((labels, Value::Number(value(switch)?))));
            text.metric(MetricType::Gauge, name, help, samples)?;
        }
        let floods = switches().flat_map(|(labels, switch)| {
            [("group", switch.floods.group_frames), ("unknown", switch.floods.unknown_frames)]
                .map(|(kind, frames)| ([&labels[..], &[("kind", kind.into())]].concat(), Value::Number(frames)))
        });
        let help = "Frames sent to all other ports: for group addresses, or for unknown stations.";
        text.metric(MetricType::Counter, "switch_flooded_frames", help, floods)?;
        let limited = switches().map(|(labels, switch)| (labels, Value::Number(switch.floods.limited_frames)));
        let help = "Frames lost at the flood limit of their ingress port.";
        text.metric(MetricType::Counter, "switch_flood_limited_frames", help, limited)?;
        let reserved = switches().flat_map(|(labels, switch)| {
            switch.reserved.iter().map(move |reserved| {
                let further = [
                    ("address", reserved.address.as_str().into()),
                    ("forwarded", reserved.forwarded.to_string().into()),
                ];
                (labels.iter().cloned().chain(further).collect(), Value::Number(reserved.frames))
            })
        });
        let help = "Frames to a reserved address, forwarded or lost.";
        text.metric(MetricType::Counter, "switch_reserved_frames", help, reserved)
    }

    fn encode_associations(&self, text: &mut Text<'_>) -> fmt::Result {
        let counters: [(_, _, Of<AssociationStatus>); 3] = [
            ("ipsec_packets", "Packets that an association protected or opened.", |sa| sa.packets),
            ("ipsec_bytes", "Bytes of the packets that an association protected or opened.", |sa| sa.bytes),
            ("ipsec_refused_packets", "Packets that an association refused.", |sa| sa.refused.values().sum()),
        ];
        for (name, help, count) in counters {
            let samples = self.ports().flat_map(|(labels, port)| {
                port.ipsec.iter().flat_map(|ipsec| &ipsec.associations).map(move |sa| {
                    let spi = format!("{:#010x}", sa.spi).into();
                    let further = [("direction", sa.direction.as_str().into()), ("spi", spi)];
                    (labels.iter().cloned().chain(further).collect(), Value::Number(count(sa)))
                })
            });
            text.metric(MetricType::Counter, name, help, samples)?;
        }
        Ok(())
    }
}

/// Returns one sample for each loss reason.
fn by_reason<'a>(labels: Labels<'a>, lost: &'a BTreeMap<String, u64>) -> impl Iterator<Item = (Labels<'a>, Value<'a>)> {
    lost.iter().map(move |(reason, count)| {
        ([&labels[..], &[("reason", reason.as_str().into())]].concat(), Value::Number(*count))
    })
}

fn histogram<const UNIT: u64>(of: &HistogramStatus, per: f64) -> Value<'_> {
    Value::Histogram(of, Histogram::<UNIT>::bounds().collect(), per)
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [("version", self.0.offramp.as_str()), ("kernel", kernel())];
        let help = "The program, and the kernel below it.";
        encoder.encode_descriptor("build", help, None, MetricType::Info)?.encode_info(&labels)?;
        let mut text = Text(encoder);
        let uptime = (Labels::new(), Value::Seconds(Duration::from_nanos(self.0.uptime_ns).as_secs_f64()));
        text.metric(MetricType::Gauge, "uptime_seconds", "Time since the daemon began.", [uptime].into_iter())?;
        self.encode_directions(&mut text)?;
        self.encode_ports(&mut text)?;
        self.encode_guests(&mut text)?;
        self.encode_switches(&mut text)?;
        self.encode_associations(&mut text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::CLIENTS_OF_USER_MAX;
    use crate::control::line::Peer;
    use crate::schema::tests::{compare_table, example};
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
        fn answer(&self, _: Request, _: Option<Peer>) -> Answer {
            Answer::new(Outcome::Status(Status {
                offramp: "0.0.0".to_owned(),
                process: 0,
                uptime_ns: 1_500_000_000,
                sandbox: None,
                ports: vec![],
                switches: vec![],
            }))
        }

        fn capture(&self, port: &str, _: u32) -> Result<Capture, Answer> {
            Err(Answer::refuse(RefusalCode::UnknownPort, port))
        }

        fn events(&self) -> Receiver<Event> {
            std::sync::mpsc::channel().1
        }
    }

    /// Returns the address of a served socket. The socket is abstract, without a file.
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
        // Names of metrics on the page, except abbreviated names.
        let listed =
            page.split('`').filter(|name| name.starts_with("offramp_") && !name.contains(['{', '>', '=', '*']));
        listed.for_each(|name| {
            let name = if known.contains(name) { name.to_owned() } else { format!("{name}_bucket") };
            assert!(known.contains(&name), "docs/metrics.md: {name}");
        });
    }

    #[test]
    fn the_page_has_each_metric_with_its_labels_and_its_help() {
        let text = text(example()).unwrap();
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
        // The threads of the clients end one after the other.
        while !ask(&address, GET).contains("# EOF") {
            thread::yield_now();
        }
    }
}
