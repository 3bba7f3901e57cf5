//! Tests of accepted files.

mod document;
mod refused;
mod security;

use super::impair::{FaultConfig, MemoryConfig};
use super::*;
use crate::control::control_default;
use crate::kind::host::HostTraits;
use crate::kind::vhost_user::GUEST_POLL_TIME_MAX;
use crate::kind::{self, HostConfig, WireConfig};
use crate::schema::SandboxLevel;
use crate::schema::moderation::fixed_gap;
use offramp_adapter::limit::{PortLimits, RateLimit};
use offramp_adapter::moderation::{AreaConfig, Coalescing, ModerationConfig, Policy as ModerationPolicy};
use offramp_adapter::port_security::PortSecurity;
use offramp_offload::caps::Offloads;
use offramp_ports::sys::cpu;
use offramp_ports::vhost_user::{ControlQueue, RingFeatures};
use offramp_ports::worker::Polling;
use std::path::Path;
use std::time::Duration;

pub(super) const DOCUMENT: &str = include_str!("../../../../docs/config.md");
const EXAMPLES: [(&str, &str); 2] = [
    ("vm.toml", include_str!("../../../../examples/vm.toml")),
    ("two-taps.toml", include_str!("../../../../examples/two-taps.toml")),
];
/// Port "b" on a cable to port "a", with a valid configuration. The tests vary port "a".
pub(super) const PEER: &str = "[[port]]\nname = \"b\"\nhost = { tap = \"t1\" }\nwire = { cable = \"a\" }\n";

pub(super) fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
}

/// Parses a file with a valid port "b" and with port "a", whose table contains `lines` after its name.
fn port(lines: &str) -> Result<PortConfig, String> {
    parse(&format!("{PEER}[[port]]\nname = \"a\"\n{lines}")).map(|config| PortConfig::clone(&config.ports[1]))
}

/// Asserts that `file` is refused with an error in line `line`, and that the message contains `text`.
pub(super) fn refused(file: &str, line: usize, text: &str) {
    let message = parse(file).expect_err(file);
    assert!(message.starts_with(&format!("x.toml:{line}: ")), "{file}: {message}");
    assert!(message.contains(text), "{file}: {message}");
    assert!(!message.contains('\n'), "one line: {message}");
}

/// Asserts that the row of `key` in the documentation contains `text`.
pub(super) fn documented(key: &str, text: &dyn std::fmt::Display) {
    let row = DOCUMENT.lines().find(|line| line.starts_with(&format!("| `{key}`"))).unwrap();
    assert!(row.contains(&text.to_string()), "{key}: {text} in {row}");
}

#[test]
fn a_short_file_gets_the_defaults() {
    let config = parse(&format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"b\"\n")).unwrap();
    let DaemonConfig {
        control,
        control_mode,
        control_group,
        control_read_only,
        metrics,
        user,
        state_directory,
        sandbox,
    } = config.daemon;
    assert_eq!((control_read_only, metrics), (None, None));
    assert_eq!((control, control_mode), (control_default(), 0o600));
    assert_eq!((control_group, user, state_directory, sandbox), (None, None, None, SandboxLevel::Full));
    let made = Some("the interface t0".to_owned());
    let traits = HostTraits { is_steered: true, privileged_key: Some("host.tap"), made, ..HostTraits::default() };
    let host = kind::tap::Config { interface: "t0".into(), is_existing: false, namespace: None, traits };
    let a = PortConfig {
        name: "a".into(),
        host: HostConfig::Tap(host),
        wire: WireConfig::Cable("b".into()),
        mtu: 1500,
        offloads: Offloads::RATIFIED,
        moderation: ModerationConfig::adaptive(),
        limits: PortLimits::default(),
        poll_usecs: None,
        bits_per_second: None,
        memory: MemoryConfig::default(),
        faults: FaultConfig::default(),
        cpus: Vec::new(),
        ipsec: IpsecConfig::default(),
        security: PortSecurity::default(),
        isolated: false,
    };
    assert_eq!(*config.ports[1], a);
}

#[test]
fn what_can_be_moderated_is_unless_told_otherwise() {
    let on_cable = |keys: &str| port(&format!("host.tap = \"t0\"\nwire.cable = \"b\"\n{keys}")).unwrap().moderation;
    let on_interface = |host: &str| {
        let text = format!("[[port]]\nname = \"a\"\nhost = {{ {host} }}\nwire.packet = \"eth0\"\n");
        parse(&text).unwrap().ports[0].moderation
    };
    let (off, adaptive) = (ModerationConfig::default(), ModerationConfig::adaptive());
    assert_eq!(on_cable(""), adaptive);
    assert_eq!((on_cable("moderation = \"off\"\n"), on_cable("rx_usecs = 0\n")), (off, off));
    assert_eq!(on_interface("vhost_user = \"/run/a.sock\""), adaptive);
    assert_eq!(on_interface("tap = \"t1\""), off, "a TAP's frames cannot wait there");
}

#[test]
fn every_key_of_a_port_arrives() {
    let cpu = cpu::online()[0];
    let text = format!(
        "host = {{ vhost_user = \"/run/a.sock\", mode = \"client\", queue_pairs = 1, mac = \"02:00:00:0a:FF:01\", \
         control_queue = \"none\", packed = false, indirect = false, event_idx = false, in_order = false, mrg_rxbuf = false, \
         queue_size_max = 256, memory_bytes_max = 1048576, allowed_uid = 64055 }}\nwire = {{ cable = \"b\" }}\nfeatures = {{ tso4 = false, rsc = false }}\n\
         rx_usecs = 12\npoll_usecs = 7\ncpus = [{cpu}]\n"
    );
    let port = port(&text).unwrap();
    let vhost = kind::vhost_user::Config {
        traits: HostTraits {
            queue_pairs: 1,
            mac: Some([2, 0, 0, 10, 255, 1]),
            has_interrupts: true,
            polling: Polling::Adaptive(GUEST_POLL_TIME_MAX),
            ..HostTraits::default()
        },
        peer: Some("/run/a.sock".into()),
        control_queue: ControlQueue::None,
        // `RING_RESET` remains, because no key of the file can switch it off.
        rings: RingFeatures::RING_RESET,
        queue_size_max: 256,
        memory_bytes_max: 1 << 20,
        allowed_uid: Some(64055),
    };
    assert_eq!(port.host, HostConfig::VhostUser(vhost));
    assert_eq!(port.offloads, Offloads::RATIFIED - Offloads::TSO4 - Offloads::RSC);
    assert_eq!(port.polling(), Polling::Fixed(Duration::from_micros(7)));
    assert_eq!((port.moderation, port.cpus), (fixed_gap(12), vec![cpu]));
}

#[test]
fn a_guest_is_polled_for_an_adaptive_time_and_a_tap_is_not() {
    let polling = |host: &str, more: &str| port(&format!("host.{host}\nwire.cable = \"b\"\n{more}")).unwrap().polling();
    assert_eq!(polling("tap = \"t\"", ""), Polling::Off);
    assert_eq!(polling("vhost_user = \"/run/a.sock\"", ""), Polling::Adaptive(GUEST_POLL_TIME_MAX));
    assert_eq!(polling("vhost_user = \"/run/a.sock\"", "poll_usecs = 0"), Polling::Off);
}

#[test]
fn features_count_in_the_order_in_which_they_are_written() {
    let with = |features: &str| {
        port(&format!("host.tap = \"t0\"\nwire.cable = \"b\"\nfeatures = {{ {features} }}\n")).unwrap().offloads
    };
    assert_eq!(with("all = false, tso4 = true"), Offloads::TSO4);
    assert_eq!(with("tso4 = true, all = false"), Offloads::empty());
    assert_eq!(
        with("uso = false, lso = false, tso6 = true"),
        Offloads::RATIFIED - Offloads::USO - Offloads::TSO4 - Offloads::TSO_ECN
    );
}

#[test]
fn a_moderation_is_the_name_of_a_policy_or_a_table_of_its_keys() {
    let rest = "host.tap = \"t0\"\nwire.cable = \"b\"\n";
    let policy = |text: &str| port(&format!("{rest}moderation = {text}\n")).map(|port| port.moderation.policy);
    assert_eq!(policy("\"off\""), Ok(ModerationPolicy::Off));
    assert_eq!(policy("\"quiet-or-area\""), Ok(ModerationPolicy::QuietOrArea(AreaConfig::default())));
    let fixed = ModerationPolicy::FixedGap { max_interrupts_per_second: 8000 };
    assert_eq!(policy("{ max_interrupts_per_second = 8000 }"), Ok(fixed));
    let coalescing = ModerationPolicy::Coalescing(Coalescing { max_usecs: 50, max_packets: 32 });
    assert_eq!(policy("{ rx_usecs = 50, rx_frames = 32 }"), Ok(coalescing));
    // Port "a" begins after the four lines of its peer.
    let wrong = |text: &str, message: &str| {
        refused(&format!("{PEER}[[port]]\nname = \"a\"\n{rest}moderation = {text}\n"), 9, message);
    };
    wrong("\"quiet-or-aera\"", "unknown moderation policy \"quiet-or-aera\"; did you mean \"quiet-or-area\"?");
    wrong("{ rx_frame = 5 }", "unknown key \"rx_frame\"; did you mean \"rx_frames\"?");
    wrong("{ max_interrupts_per_second = 0 }", "moderation.max_interrupts_per_second 0 is out of range; use 1 to");
    wrong("{ }", "moderation has no policy; write one of off,");
    wrong("5", "the name of a policy, or a table of its keys");
    let both = format!("{PEER}[[port]]\nname = \"a\"\n{rest}rx_usecs = 5\nmoderation = \"off\"\n");
    refused(&both, 10, "port.moderation and port.rx_usecs both say");
}

#[test]
fn a_limit_is_a_table_of_its_keys() {
    let rest = "host.tap = \"t0\"\nwire.cable = \"b\"\n";
    let limits = |text: &str| port(&format!("{rest}limit = {text}\n")).map(|port| port.limits);
    let tx = RateLimit { bits_per_second: Some(1_000_000_000), burst_bytes: Some(262_144), ..RateLimit::default() };
    let rx = RateLimit { frames_per_second: Some(100_000), ..RateLimit::default() };
    let written = "{ tx_bits_per_second = 1_000_000_000, tx_burst_bytes = 262144, rx_frames_per_second = 100000 }";
    assert_eq!(limits(written), Ok(PortLimits { tx, rx }));
    assert_eq!(limits("{ }"), Ok(PortLimits::default()));
    let wrong = |text: &str, message: &str| {
        refused(&format!("{PEER}[[port]]\nname = \"a\"\n{rest}limit = {text}\n"), 9, message);
    };
    wrong("{ tx_bits_per_second = 0 }", "limit.tx_bits_per_second 0 is out of range; use 1000 to");
    wrong("{ tx_bits_second = 5000 }", "unknown key \"tx_bits_second\"; did you mean \"tx_bits_per_second\"?");
    wrong("{ tx_burst_frames = 5 }", "limit.tx_burst_frames belongs to tx_frames_per_second; write that too");
    wrong("5", "limit is a table of its keys");
}

#[test]
fn both_ends_of_a_cable_have_one_rate() {
    let file = |b: &str, a: &str| {
        format!("{PEER}{b}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire = {{ cable = \"b\"{a} }}\n")
    };
    let rated = file("wire.bits_per_second = 10000000\n", ", bits_per_second = 10000000");
    // TOML cannot extend an inline table, so the wire of port "b" is written with dotted keys.
    let rated = rated.replace("wire = { cable = \"a\" }\nwire.bits", "wire.cable = \"a\"\nwire.bits");
    let rates: Vec<_> = parse(&rated).unwrap().ports.iter().map(|port| port.bits_per_second).collect();
    assert_eq!(rates, [Some(10_000_000); 2]);
    refused(&file("", ", bits_per_second = 5000"), 4, "bits_per_second no limit here and 5000 at the other end");
    refused(&file("", ", bits_per_second = 999"), 8, "port.wire.bits_per_second 999 is out of range; use 1000 to");
}

#[test]
fn a_namespace_is_a_name_or_a_path() {
    let namespace = |given: &str| {
        let host =
            port(&format!("host = {{ tap = \"t0\", namespace = \"{given}\" }}\nwire.cable = \"b\"\n")).unwrap().host;
        let HostConfig::Tap(tap) = host else { panic!("a tap") };
        tap.namespace.unwrap()
    };
    assert_eq!(namespace("red"), Path::new("/run/netns/red"));
    assert_eq!(namespace("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
}

#[test]
fn a_number_may_be_a_text_with_a_unit() {
    let units = "[[port]]\nname = \"a\"\nhost.vhost_user = \"/run/a.sock\"\nhost.memory_bytes_max = \"1GiB\"\n\
                 wire = { cable = \"b\", bits_per_second = \"1G\" }\npoll_usecs = \"1ms\"\nrx_usecs = \"50us\"\n\
                 limit = { tx_bits_per_second = \"100M\" }\n\
                 [[port]]\nname = \"b\"\nhost.tap = \"b\"\nwire = { cable = \"a\", bits_per_second = 1000000000 }\n\
                 [[switch]]\nname = \"lan\"\nage_seconds = \"5min\"\nflood_frames_per_second = \"10k\"\n";
    let numbers = [("\"1GiB\"", "1073741824"), ("\"1G\"", "1000000000"), ("\"1ms\"", "1000"), ("\"50us\"", "50")];
    let numbers = numbers.into_iter().chain([("\"100M\"", "100000000"), ("\"5min\"", "300"), ("\"10k\"", "10000")]);
    let plain = numbers.fold(units.to_owned(), |text, (unit, number)| text.replace(unit, number));
    assert_eq!(parse(units).unwrap(), parse(&plain).unwrap());
    let wrong = units.replace("1ms", "1mm");
    refused(&wrong, 6, "port.poll_usecs \"1mm\" is no whole number, and no number with a unit such as 50us or 10ms");
}

#[test]
fn a_relative_socket_of_a_guest_is_beside_the_control_socket() {
    let text = "[daemon]\ncontrol = \"/run/x/control.sock\"\n[[port]]\nname = \"a\"\nhost.vhost_user = \"a.sock\"\nwire.packet = \"eth0\"\n";
    let socket = parse(text).unwrap().ports[0].host.socket.clone().unwrap();
    assert_eq!(socket.path, Path::new("/run/x/a.sock"));
}

#[test]
fn the_calls_of_a_guest_are_moderated_on_any_wire() {
    let switch = "[[switch]]\nname = \"lan\"\n";
    for wire in ["switch = \"lan\"", "packet = \"eth0\"", "tap = \"t0\"", "cable = \"b\""] {
        let peer = if wire.starts_with("cable") { PEER } else { "" };
        let host = "host.vhost_user = \"/run/a.sock\"\nmoderation = \"quiet-or-area\"\n";
        let config = parse(&format!("{switch}{peer}[[port]]\nname = \"a\"\nwire.{wire}\n{host}")).unwrap();
        let policy = config.ports.last().unwrap().moderation.policy;
        assert_eq!(policy, ModerationPolicy::QuietOrArea(AreaConfig::default()), "{wire}");
    }
}

#[test]
fn the_examples_are_right() {
    for (name, text) in EXAMPLES {
        let config = Config::parse(Path::new(name), text).unwrap();
        assert!(config.ports.len() > 1);
    }
}
