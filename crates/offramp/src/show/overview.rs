//! The overview of a daemon: one line per port and switch, and the view of one switch.

use super::style::Style;
use super::table::{NONE, table};
use offramp_daemon::schema::{
    DirectionStatus, FeatureStatus, HostStatus, PortStatus, Rates, ReservedStatus, Status, SwitchStatus, WireStatus,
};
use std::path::Path;

const INDENT: &str = "  ";
/// Maximum length of the text for a host or a wire in the overview, in characters.
const PEER_LEN_MAX: usize = 22;
/// Index of the first column with right-aligned figures. All later columns are right-aligned, too.
const FIGURES_FROM: usize = 5;
const KILO: f64 = 1e3;
/// Offloads in the overview: a short name, and the features that it stands for. The name is shown if any of its
/// features is in use. Checksum offload is shown only if no other offload is in use, because every other offload needs
/// it.
const TRANSMIT: [(&str, &[&str]); 3] = [("tso", &["tso4", "tso6"]), ("uso", &["uso"]), ("ufo", &["ufo"])];
const RECEIVE: [(&str, &[&str]); 2] = [("gro", &["rsc4", "rsc6"]), ("udp-gro", &["rsc-udp"])];

/// Formats one line per port and per switch.
pub fn overview(status: &Status, style: Style) -> String {
    let mut lines: Vec<String> = status.sandbox.iter().map(|sandbox| format!("{sandbox}\n")).collect();
    if !status.ports.is_empty() {
        lines.extend(ports(&status.ports, style));
    }
    if !status.switches.is_empty() {
        lines.push(String::new());
        lines.extend(status.switches.iter().map(|switch| format!("{INDENT}{}", line(switch))));
    }
    lines.join("\n") + "\n"
}

/// Formats a switch: its ports, stations and counters.
pub fn switch(status: &Status, switch: &SwitchStatus, style: Style) -> String {
    let mut lines = vec![style.bold(&switch.name), format!("{INDENT}{}", summary(switch))];
    let on_it: Vec<_> = status.ports.iter().filter(|port| switch.ports.contains(&port.name)).cloned().collect();
    if !on_it.is_empty() {
        lines.push(String::new());
        lines.extend(ports(&on_it, style));
    }
    let shown = switch.stations.as_deref().unwrap_or_default();
    if !shown.is_empty() {
        lines.push(String::new());
        let row = |station: &offramp_daemon::schema::StationStatus| {
            let vlan = station.vlan.map_or(NONE.to_owned(), |vlan| vlan.to_string());
            let age = station.age_s.map_or("bound".to_owned(), |age_s| format!("{age_s} s"));
            vec![station.mac.clone(), vlan, station.port.clone(), age]
        };
        lines.extend(table(&["station", "VLAN", "port", "age"], shown.iter().map(row), usize::MAX, style));
        let learned = shown.iter().filter(|station| station.age_s.is_some()).count();
        let more = switch.stations_known.unwrap_or_default().saturating_sub(learned);
        if more > 0 {
            lines.push(format!("{INDENT}and {more} more stations"));
        }
    }
    lines.push(String::new());
    lines.push(format!("{INDENT}{}", floods(switch)));
    lines.extend(switch.reserved.iter().map(|reserved| format!("{INDENT}{}", reserved_line(reserved))));
    lines.join("\n") + "\n"
}

fn line(switch: &SwitchStatus) -> String {
    let lost: u64 = switch.reserved.iter().filter(|of| !of.forwarded).map(|of| of.frames).sum();
    let reserved = if lost > 0 { format!("; reserved: {lost} lost") } else { String::new() };
    format!("switch {}: {}; {}{reserved}", switch.name, summary(switch), floods(switch))
}

fn summary(switch: &SwitchStatus) -> String {
    let stations = match (switch.stations_known, switch.oldest_age_s) {
        (None, _) => "stations unknown: its thread does not answer".to_owned(),
        (Some(known), None) => format!("{known} of {} stations", switch.mac_entries_max),
        (Some(known), Some(oldest)) => {
            format!("{known} of {} stations, the oldest {oldest} of {} s", switch.mac_entries_max, switch.age_seconds)
        }
    };
    format!("{} ports, {stations}", switch.ports.len())
}

fn floods(switch: &SwitchStatus) -> String {
    let floods = switch.floods;
    let limited = Some(floods.limited_frames).filter(|frames| *frames > 0);
    let limited = limited.map_or(String::new(), |frames| format!(", {frames} lost at the limit"));
    format!("flooded: {} group, {} unknown{limited}", floods.group_frames, floods.unknown_frames)
}

fn reserved_line(ReservedStatus { address, forwarded, frames }: &ReservedStatus) -> String {
    let name = match address.rsplit(':').next() {
        Some("00") => " (STP)",
        Some("01") => " (pause)",
        Some("02") => " (LACP)",
        Some("03") => " (802.1X)",
        Some("0e") => " (LLDP)",
        _ => "",
    };
    format!("reserved {address}{name}: {frames} {}", if *forwarded { "forwarded" } else { "lost" })
}

fn ports(ports: &[PortStatus], style: Style) -> Vec<String> {
    let heading = ["port", "state", "host", "wire", "offloads tx / rx", "tx bit/s", "rx bit/s", "lost"];
    table(&heading, ports.iter().map(row), FIGURES_FROM, style)
}

fn row(port: &PortStatus) -> Vec<String> {
    let rate = |way: fn(&(&DirectionStatus, &DirectionStatus)) -> Option<Rates>| {
        let rates: Option<Vec<Rates>> =
            port.queues.iter().map(|queue| way(&(&queue.transmit, &queue.receive))).collect();
        rates.map_or(NONE.to_owned(), |rates| short(rates.iter().map(|rates| rates.bits_per_s).sum()))
    };
    vec![
        port.name.clone(),
        state(port).to_owned(),
        cut(host(&port.host)),
        cut(wire(&port.wire)),
        offloads(&port.features),
        rate(|(transmit, _)| transmit.rates),
        rate(|(_, receive)| receive.rates),
        lost(port),
    ]
}

/// Returns the state of a port. The most serious state wins.
fn state(port: &PortStatus) -> &'static str {
    let guest = port.host.guest();
    if port.queues.iter().any(|queue| queue.stalled.is_some()) {
        "stalled"
    } else if !port.wire_running || port.queues.iter().any(|queue| !queue.running) {
        "gone"
    } else if port.link == Some(false) {
        "link off"
    } else if guest.is_some_and(|guest| !guest.connected) {
        "no guest"
    } else if guest.is_some_and(|guest| guest.virtio_features.is_empty()) {
        "no driver"
    } else {
        "up"
    }
}

fn host(host: &HostStatus) -> String {
    match host {
        HostStatus::VhostUser(guest) => {
            let file = guest.socket.file_name().map_or(&*guest.socket, Path::new);
            file.display().to_string()
        }
        HostStatus::Tap(tap) => format!("tap {}", tap.interface),
        HostStatus::Null(_) => "null".to_owned(),
    }
}

fn wire(wire: &WireStatus) -> String {
    match wire {
        WireStatus::Cable { port } => format!("cable {port}"),
        WireStatus::Switch { name } => format!("switch {name}"),
        WireStatus::Interface { interface, .. } => interface.clone(),
    }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(PEER_LEN_MAX - 1) {
        Some((at, _)) if text[at..].chars().count() > 1 => format!("{}…", &text[..at]),
        _ => text,
    }
}

/// Formats the offloads in use, for example `tso uso / gro`.
fn offloads(features: &[FeatureStatus]) -> String {
    let is_on = |name: &str| features.iter().any(|feature| feature.name == name && feature.in_use);
    let side = |groups: &[(&'static str, &[&str])], checksum: &str| {
        let on = groups.iter().filter(|(_, names)| names.iter().any(|name| is_on(name)));
        let on: Vec<&str> = on.map(|(short, _)| *short).collect();
        match on.is_empty() {
            true if is_on(checksum) => "csum".to_owned(),
            true => NONE.to_owned(),
            false => on.join(" "),
        }
    };
    let (transmit, receive) = (side(&TRANSMIT, "tx-checksum"), side(&RECEIVE, "rx-checksum"));
    if transmit == NONE && receive == NONE { NONE.to_owned() } else { format!("{transmit} / {receive}") }
}

/// Formats the number of frames lost since the daemon's start, and the number lost per second if it is above 0.
fn lost(port: &PortStatus) -> String {
    let directions = || port.queues.iter().flat_map(|queue| [&queue.transmit, &queue.receive]);
    let total: u64 = directions().flat_map(|direction| direction.lost.values()).sum();
    let on_wire = port.wire_lost.iter().flat_map(|lost| lost.transmit.values().chain(lost.receive.values()));
    let total = total + on_wire.sum::<u64>();
    let per_s: f64 = directions().filter_map(|direction| direction.rates).map(|rates| rates.lost_per_s).sum();
    if per_s > 0.0 { format!("{total} (+{}/s)", short(per_s)) } else { total.to_string() }
}

/// Formats a number with three digits and a decimal prefix.
fn short(number: f64) -> String {
    let (number, prefix) = match number {
        n if n < KILO => return format!("{n:.0}"),
        n if n < KILO.powi(2) => (n / KILO, "k"),
        n if n < KILO.powi(3) => (n / KILO.powi(2), "M"),
        n => (n / KILO.powi(3), "G"),
    };
    let decimals = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.decimals$} {prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_three_digits_and_a_prefix() {
        let shown = [0.0, 999.4, 1234.0, 56_780.0, 943_000_000.0, 12_300_000_000.0].map(short);
        assert_eq!(shown, ["0", "999", "1.23 k", "56.8 k", "943 M", "12.3 G"]);
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(cut("a".repeat(PEER_LEN_MAX)), "a".repeat(PEER_LEN_MAX));
        assert_eq!(cut("ä".repeat(PEER_LEN_MAX + 1)), "ä".repeat(PEER_LEN_MAX - 1) + "…");
    }

    #[test]
    fn offloads_in_use_are_shown_by_groups() {
        let feature = |name: &str, in_use| FeatureStatus {
            name: name.to_owned().into(),
            ethtool: "".into(),
            virtio: "".into(),
            ndis: "".into(),
            allowed: true,
            offered: true,
            negotiated: in_use,
            in_use,
            waits_for: None,
        };
        assert_eq!(offloads(&[feature("tso4", false)]), "-");
        assert_eq!(offloads(&[feature("tx-checksum", true), feature("rx-checksum", false)]), "csum / -");
        let all = ["tx-checksum", "tso4", "uso", "rx-checksum", "rsc6"].map(|name| feature(name, true));
        assert_eq!(offloads(&all), "tso uso / gro");
    }
}
