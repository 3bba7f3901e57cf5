//! The profile of a machine: parameters derived from the costs, and assumed parameters.

use std::fmt::Write as _;

use offramp_model::profile::schema::SECTIONS;

use super::Calibration;
use super::cost::Cost;
use super::costs::{CHUNK_LEN_MAX, Costs, LINK_DELAY_NS};
use super::receiver::ReceiverCosts;
use super::setup::{MSS, Setup};
use super::waits::Waits;
use crate::plan::GIGABIT_INTERRUPTS_PER_SECOND;

/// Maximum of the model's parameter `host.segments_per_ack`.
const SEGMENTS_PER_ACK_MAX: f64 = 64.0;

impl Calibration {
    /// Returns the text of this machine's profile: a system with LSO and receive coalescing on, and an unlimited link.
    #[must_use]
    pub fn profile(&self, machine: &str) -> String {
        let mut out = format!(
            "# Written by `offramp calibrate`; each run overwrites this file.\nkind = \"system\"\ntitle = \"{}\"\n",
            machine.replace(['"', '\\', '\n'], " ")
        );
        let mut section = "";
        for Line { key, value, source } in self.lines() {
            let (of, name) = key.split_once('.').unwrap_or((key, ""));
            if of != section {
                // Writing to a string does not fail.
                let _ = write!(out, "\n[{of}]\n");
                section = of;
            }
            let (tag, source) = match source {
                Source::Measured(cost) => ("measured", format!("the lab: {cost}, {} rounds", self.rounds.len())),
                Source::Assumed(why) => ("assumed", why.to_owned()),
            };
            let _ = writeln!(out, "{name} = {{ {value}, tag = \"{tag}\", source = \"{source}\" }}");
        }
        out
    }

    /// Returns the lines of the profile, ordered by section. A measured value replaces an assumed value.
    fn lines(&self) -> Vec<Line> {
        let mut lines = self.measured();
        let is_measured = |key: &str, lines: &[Line]| lines.iter().any(|line| line.key == key);
        let assumed: Vec<Line> = assumed().into_iter().filter(|line| !is_measured(line.key, &lines)).collect();
        lines.extend(assumed);
        let place = |line: &Line| SECTIONS.iter().position(|section| line.key.starts_with(section));
        lines.sort_by_key(place);
        lines
    }

    fn measured(&self) -> Vec<Line> {
        let of_rounds: Vec<Setting> = self.rounds.iter().flat_map(|costs| settings(costs, &Setup::ALL_ON)).collect();
        let line = |setting: Setting| {
            // A single round can lack the costs of a receive-only host.
            let found = of_rounds.iter().filter(|of| of.key == setting.key).map(|of| of.value);
            Line { key: setting.key, value: setting.with_interval(found), source: Source::Measured(setting.cost) }
        };
        settings(&self.costs, &Setup::ALL_ON).into_iter().map(line).collect()
    }
}

/// A line of a profile.
struct Line {
    key: &'static str,
    value: String,
    source: Source,
}

enum Source {
    /// The value was measured, and is derived mainly from this cost.
    Measured(Cost),
    /// The value is assumed, for this reason.
    Assumed(&'static str),
}

/// Returns the parameters that no experiment measures.
fn assumed() -> Vec<Line> {
    let word = |key, word: &str, why| Line { key, value: format!("value = \"{word}\""), source: Source::Assumed(why) };
    let size = |key, size: f64, unit: &str, why| {
        let value = format!("value = {size}, unit = \"{unit}\"");
        Line { key, value, source: Source::Assumed(why) }
    };
    let interrupts_per_s = f64::from(GIGABIT_INTERRUPTS_PER_SECOND);
    vec![
        word("host.receive", "deferred", "Linux: softirqs"),
        word("host.tcp", "cubic", "Linux' default"),
        size("host.send_buffer", 4.0, "MiB", "Linux grows the buffer on demand"),
        size("host.receive_window", 4.0, "MiB", "Linux grows the buffer on demand"),
        size(
            "host.delayed_ack_time",
            100.0,
            "us",
            "Linux acknowledges when a process has read all data; the model uses a timer",
        ),
        word("adapter.memory_kind", "descriptors", "a TAP's queue"),
        word("adapter.access", "master", "part of the adapter thread's time per frame"),
        word("adapter.checksum", "on", "offramp's default"),
        word("adapter.lso", "on", "offramp's default"),
        word("adapter.coalesce", "on", "offramp's default"),
        size("adapter.receive_descriptors", 4096.0, "frame", "more than a window: the adapter's thread waits for room"),
        word("adapter.moderation", "fixed-gap", "the lab's, where a link is the limit"),
        size("adapter.interrupt_rate", interrupts_per_s, "interrupt/s", "the same"),
        size(
            "adapter.transmit_fifo",
            256.0,
            "KiB",
            "more than a large send, so that the thread never waits for the link",
        ),
        word("link.duplex", "full", "offramp's cable"),
        size("link.rate", 1000.0, "Gbit/s", "a cable in memory: the thread is the limit, and not the link"),
        size("link.delay", LINK_DELAY_NS / 1000.0, "us", "about the lab's measured round trip without processor time"),
        size("peer.gap", 0.0, "ns", "the peer shares the processor; its time is in the costs above"),
        size("peer.receive_window", 4.0, "MiB", "Linux grows the buffer on demand"),
        word("peer.tcp", "cubic", "Linux' default"),
        size("workload.mss", MSS, "byte", "an MTU of 1500 with timestamps"),
        size("workload.tcp_options", 12.0, "byte", "RFC 7323: timestamps"),
        size(
            "workload.write_size",
            256.0,
            "KiB",
            "as large as the lab's own writes, or larger: their costs are in the bytes",
        ),
        size("workload.warmup", 20.0, "ms", "longer than slow start"),
        size("workload.time", 100.0, "ms", "some ten thousand round trips"),
    ]
}

/// A parameter derived from the costs.
pub(super) struct Setting {
    pub(super) key: &'static str,
    value: f64,
    /// Number of digits after the decimal point.
    decimals: usize,
    unit: &'static str,
    /// Cost from which the value is mainly derived.
    cost: Cost,
}

impl Setting {
    fn per_byte(key: &'static str, value: f64, cost: Cost) -> Self {
        Self { key, value, decimals: 6, unit: "ns/byte", cost }
    }

    fn time(key: &'static str, value: f64, cost: Cost) -> Self {
        Self { key, value, decimals: 3, unit: "ns", cost }
    }

    fn count(key: &'static str, value: f64, unit: &'static str, cost: Cost) -> Self {
        Self { key, value, decimals: 0, unit, cost }
    }

    /// Formats the value as a setting.
    pub(super) fn text(&self) -> String {
        format!("{:.*}{}", self.decimals, self.value, self.unit)
    }

    /// Formats the value as in a profile, with the smallest interval that contains the value and all values in `found`.
    fn with_interval(&self, found: impl Iterator<Item = f64>) -> String {
        let (low, high) = found.fold((self.value, self.value), |(low, high), of| (low.min(of), high.max(of)));
        let (decimals, value) = (self.decimals, self.value);
        format!(
            "value = {value:.decimals$}, unit = \"{}\", interval = [{low:.decimals$}, {high:.decimals$}]",
            self.unit
        )
    }
}

/// Derives the parameters of a profile from the costs, for hosts and adapters with the settings `setup`.
pub(super) fn settings(costs: &Costs, setup: &Setup) -> Vec<Setting> {
    let pieces = costs.hand_overs(setup);
    let send_ns = costs.send_ns + if setup.adapters_sleep { costs.doorbell_ns } else { 0.0 };
    let checksum_ns = if setup.host_checksums_received { costs.checksum_received_ns } else { 0.0 };
    let byte_ns = costs.byte_ns + (costs.receive_ns * pieces.up + send_ns * pieces.acks) / setup.mss + checksum_ns;
    let segment_sends = if setup.lso { costs.frames_per_segment } else { pieces.down };
    let chunk_len = pieces.chunk_len.clamp(MSS, CHUNK_LEN_MAX);
    let mut settings = vec![
        Setting::per_byte("host.write_copy_time", byte_ns.max(0.0), Costs::BYTE),
        Setting::time("host.segment_time", costs.send_ns * segment_sends, Costs::SEND),
        Setting::time("host.chunk_time", send_ns, Costs::SEND),
        Setting::per_byte("host.checksum_time", costs.checksum_sent_ns, Costs::CHECKSUM_SENT),
        Setting::time("host.wake_time", costs.wake_ns, Costs::WAKE),
        Setting::time("adapter.segment_time", costs.engine_ns(setup), Costs::ADAPTER_BYTE),
        Setting::count("adapter.segment_chunk", chunk_len, "byte", Costs::CHUNK_LEN),
    ];
    if let Some(receiver) = costs.receiver {
        settings.push(Setting::time("peer.gap", costs.peer_ns(&receiver, setup), ReceiverCosts::PEER_BYTE));
        settings.extend(receiver_settings(&receiver, checksum_ns));
    }
    if let Some(waits) = costs.waits {
        settings.push(Setting::time("host.wake_up_time", waits.wake_up_ns, Waits::WAKE_UP));
        settings.push(Setting::time("host.wake_up_tail", waits.wake_up_tail_ns, Waits::WAKE_UP_TAIL));
        settings.push(Setting::time("adapter.timer_latency", waits.timer_ns, Waits::TIMER));
    }
    settings
}

fn receiver_settings(receiver: &ReceiverCosts, checksum_ns: f64) -> [Setting; 4] {
    let segments_per_ack = receiver.segments_per_ack.clamp(1.0, SEGMENTS_PER_ACK_MAX);
    [
        Setting::per_byte("host.copy_time", (receiver.byte_ns + checksum_ns).max(0.0), ReceiverCosts::RECEIVER_BYTE),
        Setting::time("host.tcp_time", receiver.hand_over_ns, ReceiverCosts::RECEIVER_HAND_OVER),
        Setting::time("host.ack_time", receiver.hand_over_ns, ReceiverCosts::RECEIVER_HAND_OVER),
        Setting::count("host.segments_per_ack", segments_per_ack, "segment", ReceiverCosts::RECEIVER_SEGMENTS_PER_ACK),
    ]
}
