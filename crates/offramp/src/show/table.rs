//! Tables of a daemon's ports, for a terminal.

use super::style::Style;
use comfy_table::{CellAlignment, Table, presets};
use offramp_daemon::schema::{AssociationStatus, IpsecStatus};
use offramp_daemon::schema::{
    ControlQueueStatus, DirectionStatus, FeatureStatus, FilterStatus, GuestStatus, HashStatus, HostStatus, PortStatus,
    QueueStatus, Rates, Status, WaitsFor, WireLost,
};
use std::collections::BTreeSet;

/// Indent of a port's lines.
const INDENT: &str = "  ";
/// Gap before each column, as wide as the indent.
const GAP: u16 = 2;
/// Text for a feature whose setting has changed since the guest's driver negotiated.
const PENDING: &str = "pending: takes effect when the guest's driver is reset";
/// Placeholder for an absent value.
pub const NONE: &str = "-";
const KILO: f64 = 1e3;
const MEBI: f64 = 1_048_576.0;

/// Formats the daemon's sandbox, and then all tables of a port.
pub fn port(status: &Status, shown: &PortStatus, style: Style) -> String {
    let sandbox = status.sandbox.iter().map(|sandbox| format!("{sandbox}\n"));
    sandbox.chain([tables(shown, style)]).collect::<Vec<_>>().join("\n")
}

fn tables(port: &PortStatus, style: Style) -> String {
    let mut lines = vec![style.bold(&port.name), format!("{INDENT}{}", about(port))];
    lines.extend(guest(&port.host).iter().map(|line| format!("{INDENT}{line}")));
    lines.push(String::new());
    lines.extend(features(&port.features, style));
    lines.push(String::new());
    lines.extend(queues(port, style));
    lines.extend(waits(&port.host, &port.queues));
    lines.extend(memories(&port.queues));
    lines.extend(losses(&port.queues));
    lines.extend(port.wire_lost.iter().flat_map(losses_on_wire));
    lines.extend(port.ipsec.iter().filter(|ipsec| is_used(ipsec)).flat_map(|ipsec| {
        let mut lines = vec![String::new()];
        lines.extend(ipsec_lines(ipsec));
        lines
    }));
    lines.join("\n") + "\n"
}

fn about(port: &PortStatus) -> String {
    let (host, wire) = (&port.host, &port.wire);
    let gone = if port.wire_running { "" } else { " (gone)" };
    let mut parts = vec![format!("host: {host}"), format!("wire: {wire}{gone}"), format!("MTU {}", port.mtu)];
    parts.extend(port.queue_pairs.filter(|&pairs| pairs > 1).map(|pairs| format!("{pairs} queue pairs")));
    let less = port.wire_mtu.filter(|&mtu| mtu < port.mtu);
    parts.extend(less.map(|mtu| format!("but {mtu} on its wire")));
    parts.extend(port.vlan.map(|vid| format!("VLAN {vid} untagged")));
    if !port.vlans.is_empty() {
        parts.push(format!("VLANs {} tagged", port.vlans.join(" ")));
    }
    parts.extend(port.moderation.iter().map(|moderation| format!("moderation {}", moderation.sentence())));
    let limit = port.limit.map(|limit| limit.sentence()).filter(|limit| !limit.is_empty());
    parts.extend(limit.map(|limit| format!("limit {limit}")));
    if port.link == Some(false) {
        parts.push("link off".to_owned());
    }
    if !port.cpus.is_empty() {
        parts.push(format!("CPUs {:?}", port.cpus));
    }
    parts.join(", ")
}

/// Formats the memory, the rings, the negotiated features, the settings and the counters of a guest, and the reason why
/// the last frontend was disconnected.
fn guest(host: &HostStatus) -> Vec<String> {
    let Some(guest) = host.guest() else { return Vec::new() };
    let GuestStatus {
        virtio_features,
        ring_entries,
        memory_bytes,
        memory_touched_bytes,
        control_queue,
        counters,
        last_refusal,
        ..
    } = guest;
    let mut lines = Vec::new();
    lines.extend(memory_touched_bytes.filter(|_| *memory_bytes > 0).map(|touched| {
        let mib = |bytes: u64| bytes as f64 / MEBI;
        format!("memory: {:.1} of {:.1} MiB touched", mib(touched), mib(*memory_bytes))
    }));
    if ring_entries.iter().any(|&entries| entries > 0) {
        lines.push(format!("ring entries (receive, transmit of each pair): {ring_entries:?}"));
    }
    if !virtio_features.is_empty() {
        lines.push(format!("virtio: {}", virtio_features.join(" ")));
    }
    lines.extend(control_queue.iter().map(|control| guests_settings(control)));
    let counted: Vec<String> = counters.shown().map(|(words, count)| format!("{words} {count}")).collect();
    if !counted.is_empty() {
        lines.push(counted.join(", "));
    }
    lines.extend(last_refusal.iter().map(|why| format!("last frontend disconnected: {why}")));
    lines
}

/// Formats the settings that the guest has made through its control queue.
fn guests_settings(control: &ControlQueueStatus) -> String {
    let offloads = if control.guest_offloads.is_empty() { "none".into() } else { control.guest_offloads.join(" ") };
    let mut parts = vec![format!("queue pairs {}", control.queue_pairs), format!("offloads on receive {offloads}")];
    let rings = ["receive", "transmit"].into_iter().cycle();
    for (nth, (wish, ring)) in control.coalescing.iter().zip(rings).enumerate() {
        parts.extend(wish.map(|wish| format!("{ring} {} {} µs or {} frames", nth / 2, wish.usecs, wish.frames)));
    }
    parts.extend(guests_filter(&control.filter));
    parts.extend(control.hash.as_ref().map(hashing));
    let refused = Some(control.refused).filter(|refused| *refused > 0);
    parts.extend(refused.map(|refused| format!("refused {refused}")));
    format!("control queue: {}", parts.join(", "))
}

/// Formats the hash and the flow steering of a guest's received frames.
fn hashing(hash: &HashStatus) -> String {
    let pairs: BTreeSet<_> = hash.table.iter().chain(&hash.unclassified).collect();
    let spread = if pairs.is_empty() { "hash".into() } else { format!("RSS over pairs {pairs:?}") };
    let reported = if hash.reported { ", reported" } else { "" };
    format!("{spread} by {}{reported}", if hash.types.is_empty() { "nothing".into() } else { hash.types.join(" ") })
}

/// Formats the guest's receive filter, if the guest has set a filter.
fn guests_filter(filter: &FilterStatus) -> Vec<String> {
    let mut parts: Vec<String> = filter.mac.iter().map(|mac| format!("address {mac}")).collect();
    if let Some(modes) = &filter.modes {
        let addresses = [(filter.unicast_addresses, "unicast"), (filter.multicast_addresses, "multicast")];
        parts.push(format!(
            "receives {}",
            [&["own"], &modes.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat().join(" ")
        ));
        parts.extend(
            addresses.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind} addresses")),
        );
    }
    parts.extend(
        filter.vlans.as_ref().map(
            |vlans| {
                if vlans.is_empty() { "no tags".to_owned() } else { format!("VLANs {vlans:?}") }
            },
        ),
    );
    parts
}

fn features(features: &[FeatureStatus], style: Style) -> Vec<String> {
    let heading = ["feature", "allowed", "offered", "negotiated", "in use", "ethtool", "virtio", "NDIS"];
    let on = |on: bool| if on { "on" } else { "off" }.to_owned();
    let row = |feature: &FeatureStatus| {
        let in_use = match feature.waits_for {
            None => on(feature.in_use),
            Some(WaitsFor::Negotiation) => format!("{}, pending", on(feature.in_use)),
            Some(reason) => format!("{}, {}", on(feature.in_use), waits_text(reason)),
        };
        let names = [&feature.ethtool, &feature.virtio, &feature.ndis].map(ToString::to_string);
        let states = [feature.allowed, feature.offered, feature.negotiated].map(on);
        [vec![feature.name.to_string()], states.to_vec(), vec![in_use], names.to_vec()].concat()
    };
    let mut lines = table(&heading, features.iter().map(row), usize::MAX, style);
    if features.iter().any(|feature| feature.waits_for == Some(WaitsFor::Negotiation)) {
        lines.push(format!("{INDENT}{PENDING}"));
    }
    lines
}

/// Returns the text for the reason why the use of a feature differs from the user's setting.
pub fn waits_text(reason: WaitsFor) -> &'static str {
    match reason {
        WaitsFor::Host => "not supported by the host",
        WaitsFor::Prerequisite => "needs another feature",
        WaitsFor::Negotiation => PENDING,
        WaitsFor::NoGuest => "no guest",
        WaitsFor::Declined => "declined by the guest",
    }
}

fn queues(port: &PortStatus, style: Style) -> Vec<String> {
    // A TAP on a switch counts all its queue pairs together.
    let all = port.queue_pairs.filter(|&pairs| pairs > 1 && port.queues.len() == 1);
    let counters = ["frames_in", "frames_out", "bytes_out", "host_frames", "interrupts", "drop", "fifo", "frame"];
    let names = counters.map(|name| name.replace('_', " "));
    let heading: Vec<&str> = ["queue pair", ""]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .chain(["frames/s", "Mbit/s", "interrupts/s"])
        .collect();
    let row = |name: String, way: &str, direction: &DirectionStatus| {
        let rate = |of: fn(&Rates) -> Option<f64>, decimals: usize| {
            direction.rates.as_ref().and_then(of).map_or(NONE.to_owned(), |rate| format!("{rate:.decimals$}"))
        };
        let mut row = vec![name, way.to_owned()];
        let counts = counters.map(|name| direction.counts.get(name));
        row.extend(counts.map(|count| count.map_or(NONE.to_owned(), |count| count.to_string())));
        row.push(rate(|rates| Some(rates.frames_per_s), 0));
        row.push(rate(|rates| Some(rates.bits_per_s / KILO / KILO), 1));
        row.push(rate(|rates| rates.interrupts_per_s, 0));
        row
    };
    let rows = port.queues.iter().flat_map(|queue| {
        let index = all.map_or(queue.index.to_string(), |pairs| format!("all {pairs}"));
        let name = match (&queue.stalled, queue.running) {
            (Some(port), _) if port.is_empty() => format!("{index} (stalled)"),
            (Some(port), _) => format!("{index} (stalled by {port})"),
            (None, true) => index,
            (None, false) => format!("{index} (host gone)"),
        };
        [row(name, "transmit", &queue.transmit), row(String::new(), "receive", &queue.receive)]
    });
    table(&heading, rows, 2, style)
}

/// Formats the maximum wait and the measured interrupt cost of moderation, if moderation is active.
fn waits(host: &HostStatus, queues: &[QueueStatus]) -> Vec<String> {
    let what = if host.guest().is_some() { "interrupts" } else { "frames" };
    let line = |queue: &QueueStatus| {
        let us = |name| received(queue, name).map(|ns| ns as f64 / KILO);
        let cost = us("interrupt_cost_ns").map_or(String::new(), |us| format!(", interrupt cost {us:.1} us"));
        let wait = us("wait_max_ns")?;
        Some(format!("{INDENT}queue pair {}, receive: {what} wait at most {wait:.1} us{cost}", queue.index))
    };
    queues.iter().filter_map(line).collect()
}

/// Returns a counter of the receive direction if its value is above 0.
fn received(queue: &QueueStatus, name: &str) -> Option<u64> {
    queue.receive.counts.get(name).filter(|count| *count > 0)
}

/// Formats the maximum number of used bytes of the adapter's memory, and the longest burst without a loss, if the
/// memory has a limit and has stored a frame.
fn memories(queues: &[QueueStatus]) -> Vec<String> {
    let line = |queue: &QueueStatus| {
        let bytes = received(queue, "memory_bytes_max");
        let bytes = bytes.map_or(String::new(), |bytes| format!("up to {bytes} bytes in use, "));
        let (pair, burst) = (queue.index, received(queue, "burst_frames_max")?);
        Some(format!("{INDENT}queue pair {pair}, memory: {bytes}longest burst without a loss {burst} frames"))
    };
    queues.iter().filter_map(line).collect()
}

/// Returns whether IPsec is in use and must be shown.
fn is_used(ipsec: &IpsecStatus) -> bool {
    let bypasses = ipsec.transmit == "bypass" && ipsec.receive == "bypass";
    !ipsec.associations.is_empty() || !ipsec.events.is_empty() || !ipsec.policies.is_empty() || !bypasses
}

/// Returns the reason why a port does not use the faster cipher library, if the daemon names one.
pub fn library_reason(ipsec: &IpsecStatus) -> Option<&str> {
    ipsec.library.split_once(" (")?.1.strip_suffix(')')
}

/// Formats the policy, the associations and their events. The reason for the choice of the cipher library is the same
/// for all ports, and therefore not included.
pub fn ipsec_lines(ipsec: &IpsecStatus) -> Vec<String> {
    let IpsecStatus { library, transmit, receive, .. } = ipsec;
    let library = library.split(" (").next().unwrap_or_default();
    let mut lines = vec![format!("{INDENT}IPsec by {library}; no match: {transmit} on transmit, {receive} on receive")];
    lines.extend(ipsec.policies.iter().map(|policy| format!("{INDENT}policy {policy}")));
    for sa in &ipsec.associations {
        let ends = match (sa.source, sa.destination) {
            (Some(source), Some(destination)) => format!(" {source} to {destination}"),
            _ => String::new(),
        };
        let esn = if sa.esn { ", esn" } else { "" };
        let AssociationStatus { direction, spi, suite, mode, state, sequence, packets, bytes, .. } = sa;
        lines.push(format!(
            "{INDENT}SA {direction} {spi:#010x}: {state}, {suite}, {mode}{ends}{esn}, sequence {sequence}, \
             {packets} packets, {bytes} bytes"
        ));
        if sa.keepalives > 0 {
            lines.push(format!("{INDENT}{INDENT}NAT-keepalives: {}", sa.keepalives));
        }
        let refused: Vec<String> = sa.refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        if !refused.is_empty() {
            lines.push(format!("{INDENT}{INDENT}refused: {}", refused.join(", ")));
        }
    }
    lines.extend(ipsec.events.iter().map(|event| format!("{INDENT}{event}")));
    lines
}

/// Formats a line for each reason of losses that occurred, and for each other counter above 0 that a terminal shows.
fn losses(queues: &[QueueStatus]) -> Vec<String> {
    let mut lines = Vec::new();
    for queue in queues {
        for (way, direction) in [("transmit", &queue.transmit), ("receive", &queue.receive)] {
            let lost = direction.lost.iter().map(|(reason, &count)| (format!("lost, {reason}"), count));
            let all = lost.chain(direction.counts.shown().map(|(words, count)| (words.to_owned(), count)));
            for (what, count) in all.filter(|(_, count)| *count > 0) {
                lines.push(format!("{INDENT}queue pair {}, {way}: {what}: {count}", queue.index));
            }
        }
    }
    lines
}

/// Formats a line for each reason of losses at the interface on a port's wire.
fn losses_on_wire(lost: &WireLost) -> Vec<String> {
    let ways = [("transmit", &lost.transmit), ("receive", &lost.receive)];
    let all = ways.into_iter().flat_map(|(way, lost)| lost.iter().map(move |(reason, count)| (way, reason, *count)));
    let line = |(way, reason, count)| format!("{INDENT}interface on the wire, {way}: lost, {reason}: {count}");
    all.filter(|(.., count)| *count > 0).map(line).collect()
}

/// Formats a heading and rows; cells are right-aligned from column `figures_from` on.
pub fn table(
    heading: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    figures_from: usize,
    style: Style,
) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heading.iter().copied()).add_rows(rows);
    for (n, column) in table.column_iter_mut().enumerate() {
        column.set_padding((GAP, 0));
        if n >= figures_from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.trim_fmt();
    let (heading, rows) = text.split_once('\n').unwrap_or((&text, ""));
    [style.dim(heading)].into_iter().chain(rows.lines().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_figures_right_under_their_heading() {
        let rows = vec![vec!["a".to_owned(), "5".to_owned()], vec!["longer".to_owned(), "12345".to_owned()]];
        let lines = table(&["name", "n"], rows.into_iter(), 1, Style::default());
        assert_eq!(lines, ["  name        n", "  a           5", "  longer  12345"]);
    }

    fn direction(drop: u64) -> DirectionStatus {
        DirectionStatus {
            counts: [("memory_bytes_max", drop * 256), ("burst_frames_max", drop)].into_iter().collect(),
            lost: [("drop".into(), drop), ("malformed".into(), 0)].into(),
            ..DirectionStatus::default()
        }
    }

    fn queue_of(transmit: DirectionStatus) -> QueueStatus {
        QueueStatus { index: 1, running: true, stalled: None, thread: 1, transmit, receive: direction(0) }
    }

    #[test]
    fn a_loss_is_told_with_its_reason() {
        let queue = queue_of(direction(3));
        assert_eq!(losses(&[queue]), ["  queue pair 1, transmit: lost, drop: 3"]);
    }

    #[test]
    fn a_hash_without_a_table_is_not_called_rss() {
        let reported = HashStatus {
            types: vec!["IPV4".into(), "TCPV4".into()],
            key: "6d5a".into(),
            reported: true,
            table: vec![],
            unclassified: None,
        };
        assert_eq!(hashing(&reported), "hash by IPV4 TCPV4, reported");
        let spread = HashStatus { reported: false, table: vec![1, 0, 1], unclassified: Some(2), ..reported };
        assert_eq!(hashing(&spread), "RSS over pairs {0, 1, 2} by IPV4 TCPV4");
        assert_eq!(hashing(&HashStatus { types: vec![], ..spread }), "RSS over pairs {0, 1, 2} by nothing");
    }

    #[test]
    fn a_memory_with_a_limit_is_told_of_once_anything_came() {
        let queue = |drop| QueueStatus { receive: direction(drop), ..queue_of(direction(0)) };
        let line = "  queue pair 1, memory: up to 768 bytes in use, longest burst without a loss 3 frames";
        assert_eq!(memories(&[queue(3), queue(0)]), [line]);
    }
}
