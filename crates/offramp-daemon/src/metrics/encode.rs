//! The metrics of a daemon as `OpenMetrics` 1.0 text.
//!
//! The text of hundreds of ports has tens of thousands of samples, so the labels of a port and of its directions are
//! formatted once, and a sample is appended without further allocation where possible.

use crate::schema::{
    AssociationStatus, Counts, DirectionStatus, FeatureStatus, HistogramStatus, LostFrames, PortStatus, Status,
    SwitchStatus,
};
use offramp_adapter::stats::{Direction, Histogram, Row};
use offramp_ports::vhost_user::guest_rows;
use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

/// The prefix of every name.
const PREFIX: &str = "offramp_";
/// Units that a metric's name may end with. For such a metric, the format has a line with the unit.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// The labels of a sample: as text, such as `port="vm0",queue="0"`, then one more label, if any.
struct Labels<'a>(Cow<'a, str>, Option<(&'static str, &'a str)>);

impl<'a, T: Into<Cow<'a, str>>> From<T> for Labels<'a> {
    fn from(text: T) -> Self {
        Self(text.into(), None)
    }
}

/// A function that reads a counter.
type Of<T> = fn(&T) -> u64;

/// A function that reads a value, and returns `None` if the value is unknown.
type Known<T> = fn(&T) -> Option<u64>;

/// The kind of a metric.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// The value of a sample.
enum Value<'a> {
    Number(u64),
    Seconds(f64),
    /// A histogram: its counts, the upper bounds of its buckets, and the divisor that converts the histogram's unit to
    /// the metric's unit.
    Histogram(&'a HistogramStatus, fn() -> Vec<u64>, f64),
}

/// Returns one label.
fn label(name: &str, value: &str) -> String {
    with("", name, value)
}

/// Returns the labels with a further label.
fn with(labels: &str, name: &str, value: &str) -> String {
    let mut more = String::with_capacity(labels.len() + name.len() + value.len() + 4);
    more.push_str(labels);
    if !labels.is_empty() {
        more.push(',');
    }
    add_label(&mut more, name, value);
    more
}

fn add_label(labels: &mut String, name: &str, value: &str) {
    labels.extend([name, "=\""]);
    if value.bytes().any(|byte| matches!(byte, b'\\' | b'"' | b'\n')) {
        for c in value.chars() {
            match c {
                '\n' => labels.push_str("\\n"),
                '\\' | '"' => labels.extend(['\\', c]),
                _ => labels.push(c),
            }
        }
    } else {
        labels.push_str(value);
    }
    labels.push('"');
}

/// The text being written.
struct Text(String);

impl Text {
    /// Writes a metric with its samples. A unit of the metric is part of `name`, at its end.
    fn metric<'a, L: Into<Labels<'a>>>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (L, Value<'a>)>,
    ) {
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        let name = [PREFIX, name].concat();
        self.line(&["# HELP ", &name, " ", help]);
        self.line(&["# TYPE ", &name, " ", word]);
        if let Some(unit) = UNITS.iter().find(|unit| name.ends_with(&["_", unit].concat())) {
            self.line(&["# UNIT ", &name, " ", unit]);
        }
        // All histograms of a metric have the same bounds.
        let mut bounds = Vec::new();
        for (labels, value) in samples {
            let labels = labels.into();
            match value {
                Value::Number(number) => {
                    self.sample(&name, suffix(kind), &labels);
                    self.number(number);
                }
                Value::Seconds(seconds) => {
                    self.sample(&name, suffix(kind), &labels);
                    self.float(seconds);
                }
                Value::Histogram(of, upper_bounds, per) => {
                    if bounds.is_empty() {
                        let finite = upper_bounds().into_iter().map(|bound| format!("{:?}", bound as f64 / per));
                        let all = finite.chain(["+Inf".to_owned()]);
                        bounds = all.map(|bound| format!("{name}_bucket{{le=\"{bound}\",")).collect();
                    }
                    self.histogram(&name, &labels, of, &bounds, per);
                }
            }
        }
    }

    /// Writes a histogram. `buckets` contains the start of each bucket's sample, up to its labels: the name and the
    /// bound.
    fn histogram(&mut self, name: &str, labels: &Labels<'_>, of: &HistogramStatus, buckets: &[String], per: f64) {
        self.sample(name, "_sum", labels);
        self.float(of.sum as f64 / per);
        self.sample(name, "_count", labels);
        self.number(of.counts.iter().sum());
        let mut below = 0;
        for (bucket, count) in buckets.iter().zip(&of.counts) {
            below += count;
            self.0.push_str(bucket);
            self.labels(labels);
            self.0.push_str("} ");
            self.number(below);
        }
    }

    fn line(&mut self, parts: &[&str]) {
        self.0.extend(parts.iter().copied());
        self.0.push('\n');
    }

    /// Writes the name and the labels of a sample.
    fn sample(&mut self, name: &str, suffix: &str, labels: &Labels<'_>) {
        self.0.extend([name, suffix]);
        if !labels.0.is_empty() {
            self.0.push('{');
            self.labels(labels);
            self.0.push('}');
        }
        self.0.push(' ');
    }

    fn labels(&mut self, Labels(text, more): &Labels<'_>) {
        self.0.push_str(text);
        if let Some((name, value)) = more {
            self.0.push(',');
            add_label(&mut self.0, name, value);
        }
    }

    fn number(&mut self, number: u64) {
        self.0.push_str(itoa::Buffer::new().format(number));
        self.0.push('\n');
    }

    fn float(&mut self, number: f64) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{number:?}");
    }

    /// Writes one metric for each of the `rows` with a metric name, with one sample for each element of `counts`.
    fn rows(&mut self, prefix: &str, rows: impl Iterator<Item = &'static Row>, counts: &[(&str, &Counts)]) {
        for (place, row) in rows.enumerate() {
            let Some(metric) = row.metric else { continue };
            let kind = if row.is_gauge { Kind::Gauge } else { Kind::Counter };
            let is_time = row.name.ends_with("_ns");
            let samples = counts.iter().map(|(labels, counts)| {
                let count = counts.get_at(place, row.name).unwrap_or(0);
                let seconds = || Value::Seconds(Duration::from_nanos(count).as_secs_f64());
                (*labels, if is_time { seconds() } else { Value::Number(count) })
            });
            let unit = if is_time { "_seconds" } else { "" };
            self.metric(kind, &format!("{prefix}{metric}{unit}"), row.help, samples);
        }
    }
}

/// Returns the suffix that a sample's name has in addition to the name of its metric.
fn suffix(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "_total",
        Kind::Info => "_info",
        Kind::Gauge | Kind::Histogram => "",
    }
}

/// Returns all metrics of a daemon as text. `kernel` is the release of the kernel on which it runs.
pub fn text(status: &Status, kernel: &str) -> String {
    let metrics = Metrics::new(status);
    let mut text = Text(String::new());
    let build = with(&label("version", &status.offramp), "kernel", kernel);
    text.metric(Kind::Info, "build", "The program, and the kernel below it.", [(build, Value::Number(1))].into_iter());
    let uptime = Value::Seconds(Duration::from_nanos(status.uptime_ns).as_secs_f64());
    let uptime = [("", uptime)].into_iter();
    text.metric(Kind::Gauge, "uptime_seconds", "Time since the daemon began.", uptime);
    metrics.encode_directions(&mut text);
    metrics.encode_ports(&mut text);
    metrics.encode_guests(&mut text);
    metrics.encode_switches(&mut text);
    metrics.encode_associations(&mut text);
    text.line(&["# EOF"]);
    text.0
}

/// The status to be written.
struct Metrics<'a> {
    status: &'a Status,
    /// The ports, each with its label.
    ports: Vec<(String, &'a PortStatus)>,
}

impl<'a> Metrics<'a> {
    fn new(status: &'a Status) -> Self {
        Self { status, ports: status.ports.iter().map(|port| (label("port", &port.name), port)).collect() }
    }

    fn ports(&self) -> impl Iterator<Item = (&str, &PortStatus)> + Clone {
        self.ports.iter().map(|(labels, port)| (labels.as_str(), *port))
    }

    fn directions(&self) -> impl Iterator<Item = (String, &DirectionStatus)> {
        let queues = self.ports().flat_map(|(labels, port)| port.queues.iter().map(move |of| (labels, of)));
        queues.flat_map(|(labels, queue)| {
            [("transmit", &queue.transmit), ("receive", &queue.receive)].map(|(direction, of)| {
                (with(&with(labels, "direction", direction), "queue", &queue.index.to_string()), of)
            })
        })
    }

    fn encode_directions(&self, text: &mut Text) {
        let directions: Vec<_> = self.directions().collect();
        let directions = || directions.iter().map(|(labels, of)| (labels.as_str(), *of));
        let counts: Vec<_> = directions().map(|(labels, of)| (labels, &of.counts)).collect();
        text.rows("", Direction::ROWS.iter(), &counts);
        let lost = directions().flat_map(|(labels, of)| by_reason(labels, &of.lost));
        text.metric(Kind::Counter, "lost_frames", "Lost frames, each once, by reason.", lost);
        let help = "Frames and super-frames of the host in one batch. With few in each, threads wake for little.";
        let batches = directions().map(|(labels, of)| (labels, histogram::<1>(&of.batch_frames, 1.0)));
        text.metric(Kind::Histogram, "batch_frames", help, batches);
        let help = "Wait of the oldest frame for each interrupt deferred by moderation; none with the policy `off`. A guest \
                    that polls, or sees frames before the interrupt, did not wait.";
        let received = directions().filter(|(labels, _)| labels.contains(",direction=\"receive\","));
        let waits = received.map(|(labels, of)| (labels, histogram::<1000>(&of.interrupt_wait_ns, 1e9)));
        text.metric(Kind::Histogram, "interrupt_wait_seconds", help, waits);
    }

    fn encode_ports(&self, text: &mut Text) {
        let lost = self.ports().filter_map(|(labels, port)| Some((labels, port.wire_lost.as_ref()?)));
        let lost = lost.flat_map(|(labels, lost)| {
            let both = [("transmit", &lost.transmit), ("receive", &lost.receive)];
            both.map(|(direction, lost)| (with(labels, "direction", direction), lost))
        });
        let lost: Vec<_> = lost.collect();
        let lost = lost.iter().flat_map(|(labels, lost)| by_reason(labels, lost));
        let help = "Frames lost at the interface on the port's wire, by reason.";
        text.metric(Kind::Counter, "wire_lost_frames", help, lost);
        let stalled = |port: &PortStatus| port.queues.iter().filter(|queue| queue.stalled.is_some()).count() as u64;
        let stalled = self.ports().map(|(labels, port)| (labels, Value::Number(stalled(port))));
        text.metric(Kind::Gauge, "stalled_queues", "Queue pairs with a stalled thread.", stalled);
        let links = self.ports().map(|(labels, port)| (labels, Value::Number(port.link.unwrap_or(true).into())));
        text.metric(Kind::Gauge, "link_on", "0 while the operator has set the port's link off.", links);
        let features = self.ports().flat_map(|(labels, port)| {
            port.features.iter().map(move |of: &FeatureStatus| {
                (Labels(labels.into(), Some(("feature", &of.name))), Value::Number(of.in_use.into()))
            })
        });
        text.metric(Kind::Gauge, "feature_in_use", "1 for a feature in use.", features);
    }

    fn encode_guests(&self, text: &mut Text) {
        let guests = self.ports().filter_map(|(labels, port)| {
            let guest = port.host.guest()?;
            Some((labels, guest))
        });
        let counts: Vec<_> = guests.clone().map(|(labels, guest)| (labels, &guest.counters)).collect();
        text.rows("guest_", guest_rows(), &counts);
        let connected = guests.clone().map(|(labels, guest)| (labels, Value::Number(guest.connected.into())));
        text.metric(Kind::Gauge, "guest_connected", "1 while a frontend is connected.", connected);
        let memory = guests.clone().map(|(labels, guest)| (labels, Value::Number(guest.memory_bytes)));
        text.metric(Kind::Gauge, "guest_memory_bytes", "Mapped guest memory.", memory);
        let touched = guests.filter_map(|(labels, guest)| Some((labels, Value::Number(guest.memory_touched_bytes?))));
        let help = "Guest memory in the daemon's page tables. The guest has it in any case.";
        text.metric(Kind::Gauge, "guest_memory_touched_bytes", help, touched);
    }

    fn encode_switches(&self, text: &mut Text) {
        let switches = || self.status.switches.iter().map(|switch| (label("switch", &switch.name), switch));
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
            text.metric(Kind::Gauge, name, help, samples);
        }
        let floods = switches().flat_map(|(labels, switch)| {
            [("group", switch.floods.group_frames), ("unknown", switch.floods.unknown_frames)]
                .map(|(kind, frames)| (with(&labels, "kind", kind), Value::Number(frames)))
        });
        let help = "Frames sent to all other ports: for group addresses, or for unknown stations.";
        text.metric(Kind::Counter, "switch_flooded_frames", help, floods);
        let limited = switches().map(|(labels, switch)| (labels, Value::Number(switch.floods.limited_frames)));
        let help = "Frames lost at the flood limit of their ingress port.";
        text.metric(Kind::Counter, "switch_flood_limited_frames", help, limited);
        let reserved = switches().flat_map(|(labels, switch)| {
            switch.reserved.iter().map(move |reserved| {
                let labels = with(&labels, "address", &reserved.address);
                (with(&labels, "forwarded", &reserved.forwarded.to_string()), Value::Number(reserved.frames))
            })
        });
        let help = "Frames to a reserved address, forwarded or lost.";
        text.metric(Kind::Counter, "switch_reserved_frames", help, reserved);
    }

    fn encode_associations(&self, text: &mut Text) {
        let counters: [(_, _, Of<AssociationStatus>); 3] = [
            ("ipsec_packets", "Packets that an association protected or opened.", |sa| sa.packets),
            ("ipsec_bytes", "Bytes of the packets that an association protected or opened.", |sa| sa.bytes),
            ("ipsec_refused_packets", "Packets that an association refused.", |sa| sa.refused.values().sum()),
        ];
        for (name, help, count) in counters {
            let samples = self.ports().flat_map(|(labels, port)| {
                port.ipsec.iter().flat_map(|ipsec| &ipsec.associations).map(move |sa| {
                    let labels = with(labels, "direction", &sa.direction);
                    (with(&labels, "spi", &format!("{:#010x}", sa.spi)), Value::Number(count(sa)))
                })
            });
            text.metric(Kind::Counter, name, help, samples);
        }
    }
}

/// Returns one sample for each loss reason.
fn by_reason<'a>(labels: &'a str, lost: &'a LostFrames) -> impl Iterator<Item = (Labels<'a>, Value<'a>)> {
    lost.iter().map(move |(reason, count)| (Labels(labels.into(), Some(("reason", reason))), Value::Number(*count)))
}

fn histogram<const UNIT: u64>(of: &HistogramStatus, per: f64) -> Value<'_> {
    Value::Histogram(of, || Histogram::<UNIT>::bounds().collect(), per)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_label_are_escaped() {
        assert_eq!(with(&label("a", "x"), "b", "q\"\\\ny"), r#"a="x",b="q\"\\\ny""#);
        assert_eq!(label("a", ""), "a=\"\"");
    }

    #[test]
    fn the_buckets_of_a_histogram_are_cumulative_and_end_with_infinity() {
        let (mut text, of) = (Text(String::new()), HistogramStatus { counts: vec![1, 0, 2], sum: 5 });
        let samples = [(label("p", "a"), Value::Histogram(&of, || vec![1, 2], 2.0))];
        text.metric(Kind::Histogram, "wait_seconds", "Wait.", samples.into_iter());
        let lines = [
            "# HELP offramp_wait_seconds Wait.",
            "# TYPE offramp_wait_seconds histogram",
            "# UNIT offramp_wait_seconds seconds",
            "offramp_wait_seconds_sum{p=\"a\"} 2.5",
            "offramp_wait_seconds_count{p=\"a\"} 3",
            "offramp_wait_seconds_bucket{le=\"0.5\",p=\"a\"} 1",
            "offramp_wait_seconds_bucket{le=\"1.0\",p=\"a\"} 1",
            "offramp_wait_seconds_bucket{le=\"+Inf\",p=\"a\"} 3",
        ];
        assert_eq!(text.0.lines().collect::<Vec<_>>(), lines);
    }
}
