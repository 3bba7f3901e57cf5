//! Tests of accepted files, refused files, and the documentation of every key.

use super::check::SOCKET_MODE_DEFAULT;
use super::daemon::READ_ONLY_MODE_DEFAULT;
use super::impair::{FaultConfig, MemoryConfig};
use super::port::POLL_USECS_MAX;
use super::switch::{
    AGE_SECONDS, AGE_SECONDS_DEFAULT, FLOOD_FRAMES, FLOOD_FRAMES_DEFAULT, MAC_ENTRIES, MAC_ENTRIES_DEFAULT,
};
use super::wire::BITS_PER_SECOND;
use super::*;
use crate::control::{CONTROL_DEFAULT, control_default};
use crate::kind::host::HostTraits;
use crate::kind::tap::ADDRESSES_MAX;
use crate::kind::vhost_user::{GUEST_POLL_TIME_MAX, MEMORY_BYTES, QUEUE_SIZE, QUEUE_SIZE_DEFAULT};
use crate::kind::{self, HostConfig, WireConfig, host_keys, keys_of, wire_kinds};
use crate::schema::ipsec::PolicyKeys;
use crate::schema::moderation::{KEYS, Mode, POLICIES, RX_FRAMES_MAX, RX_USECS_MAX, fixed_gap};
use crate::schema::{LifetimeKeys, SaKeys, SandboxLevel, SelectorKeys, UdpKeys, file, limit};
use offramp_adapter::config::{MTU_DEFAULT, MTU_MAX, MTU_MIN};
use offramp_adapter::ipsec::{NoMatch, Policy, PolicyAction, PolicyEntry, SaDirection};
use offramp_adapter::limit::PortLimits;
use offramp_adapter::limit::RateLimit;
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::moderation::{
    AreaConfig, COST_GIVEN_NS_MAX, Coalescing, DEADLINE_NS_DEFAULT, DEADLINE_NS_MAX, INTERRUPTS_PER_SECOND_MAX,
    LOAD_INTERRUPTS_PER_SECOND_DEFAULT, Policy as ModerationPolicy,
};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::switch::{LinkProtocol, LinkProtocols, UnknownUnicast};
use offramp_adapter::vlan::VIDS;
use offramp_offload::caps::{NAMES, Offloads};
use offramp_offload::esp::{Prefix, Selector};
use offramp_offload::names::GROUPS;
use offramp_ports::sys::cpu;
use offramp_ports::tap::QUEUES_MAX;
use offramp_ports::vhost_user::{ControlQueue, MEMORY_BYTES_MAX, RingFeatures};
use offramp_ports::worker::Polling;
use std::path::Path;
use std::time::Duration;
use strum::VariantNames;

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
fn an_unknown_key_is_refused_in_its_line_with_the_nearest_known_one() {
    refused("[deamon]\n", 1, "unknown key \"deamon\"; did you mean \"daemon\"?");
    refused("\n[daemon]\ncontrol_mod = 0o600\n", 3, "unknown key \"control_mod\"; did you mean \"control_mode\"?");
    refused("[[port]]\nname = \"a\"\nmut = 1500\n", 3, "unknown key \"mut\"; did you mean \"mtu\"?");
    let host = "[[port]]\nname = \"a\"\nhost = { tap = \"t\", queu_pairs = 2 }\n";
    refused(host, 3, "unknown key \"queu_pairs\"; did you mean \"queue_pairs\"?");
    refused("[[port]]\n[port.wire]\ncabel = \"b\"\n", 3, "unknown key \"cabel\"; did you mean \"cable\"?");
    refused("[[switch]]\nage_secs = 5\n", 2, "unknown key \"age_secs\"; did you mean \"age_seconds\"?");
    let feature =
        "[[port]]\nname = \"a\"\nhost.tap = \"t\"\nwire.cable = \"b\"\n[port.features]\ntso4 = true\ntsO6 = true\n";
    refused(feature, 7, "unknown feature \"tsO6\"; did you mean \"tso6\"?");
}

#[test]
fn a_value_of_the_wrong_kind_is_refused_in_its_line_with_the_line() {
    refused("[daemon]\ncontrol = 5\n", 2, "in: control = 5");
    refused("[[port]]\nname = \"a\"\nmtu = \"big\"\n", 3, "expected i64, in: mtu = \"big\"");
    refused("[[port]]\nname = \"a\nmtu = 1\n", 2, "in: name = \"a");
    refused("port = 5\n", 1, "in: port = 5");
    refused("[[port]]\nname = \"a\"\nhost = 5\n", 3, "no table; write host = { tap");
    refused("[[port]]\nname = \"a\"\nhost.tap = 5\n", 3, "expected a string, in: host.tap = 5");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn a_value_out_of_range_is_refused_with_its_range() {
    let rest = "host.tap = \"t0\"\nwire.cable = \"b\"\n";
    // Port "a" begins after the four lines of its peer.
    let wrong = |lines: &str, line: usize, text: &str| {
        refused(&format!("{PEER}[[port]]\nname = \"a\"\n{lines}\n"), 6 + line, text);
    };
    wrong(&format!("{rest}mtu = 67"), 3, "port.mtu 67 is out of range; use 68 to 65521");
    wrong(&format!("{rest}mtu = 65522"), 3, "port.mtu 65522 is out of range");
    wrong(&format!("{rest}rx_usecs = -1"), 3, "port.rx_usecs -1 is out of range; use 0 to 1000000");
    wrong(&format!("{rest}cpus = [100000]"), 3, "port.cpus: no processor 100000; there are [");
    wrong("host = { tap = \"a/b\" }\nwire.cable = \"b\"", 1, "port.host.tap \"a/b\" is no interface name");
    wrong(
        "host = { tap = \"t\", queue_pairs = 0 }\nwire.cable = \"b\"",
        1,
        "queue_pairs 0 is out of range; use 1 to 256",
    );
    wrong(
        "host = { tap = \"t\", packed = true }\nwire.cable = \"b\"",
        1,
        "port.host.packed belongs to a host with vhost_user",
    );
    wrong(
        "host = { vhost_user = \"/s\", socket_mode = 0o1777 }\nwire.cable = \"b\"",
        1,
        "port.host.socket_mode 0o1777 is out of range",
    );
    wrong(
        "host = { vhost_user = \"/s\", allowed_uid = -1 }\nwire.cable = \"b\"",
        1,
        "port.host.allowed_uid -1 is out of range",
    );
    wrong(
        "host = { vhost_user = \"/s\", mode = \"client\", socket_group = \"kvm\" }\nwire.cable = \"b\"",
        1,
        "belong to mode \"server\"",
    );
    wrong(
        "host = { tap = \"t\", control_queue = \"none\" }\nwire.cable = \"b\"",
        1,
        "port.host.control_queue belongs to a host with vhost_user",
    );
    wrong(
        "host = { vhost_user = \"/s\", control_queue = \"guest\" }\nwire.cable = \"b\"",
        1,
        "control_queue \"guest\"",
    );
    wrong(
        "host = { vhost_user = \"/s\", control_queue = \"none\", queue_pairs = 2 }\nwire.cable = \"b\"",
        1,
        "port.host.queue_pairs: a guest without a control queue uses one; write 1",
    );
    wrong(
        "host = { vhost_user = \"/s\", control_queue = \"backend\", queue_pairs = 128 }\nwire.cable = \"b\"",
        1,
        "queue_pairs 128 is out of range; use 1 to 127",
    );
    wrong(
        "host = { vhost_user = \"/s\", namespace = \"n\" }\nwire.cable = \"b\"",
        1,
        "namespace belongs to a host with tap",
    );
    wrong("host = { vhost_user = \"\" }\nwire.cable = \"b\"", 1, "use a path of at most 96 bytes");
    let long = format!("host = {{ vhost_user = \"{}\" }}\nwire.cable = \"b\"", "s".repeat(90));
    wrong(&long, 1, "use a path of at most 96 bytes");
    wrong("host = { vhost_user = \"/s\", mode = \"sever\" }\nwire.cable = \"b\"", 1, "did you mean \"server\"?");
    wrong("host = { vhost_user = \"/s\", tap = \"t\" }\nwire.cable = \"b\"", 1, "write either tap");
    wrong("host = { }\nwire.cable = \"b\"", 1, "write either tap");
    for mac in [
        "02:00:00:00:00",
        "01:00:00:00:00:01",
        "00:00:00:00:00:00",
        "2:0:0:0:0:1",
        "02:00:00:00:00:0g",
        "é2:00:00:00:00:0",
    ] {
        wrong(
            &format!("host = {{ tap = \"t\", mac = \"{mac}\" }}\nwire.cable = \"b\""),
            1,
            "is no address of one host",
        );
    }
    wrong("host.tap = \"t\"\nwire = { cable = \"b\", tap = \"x\" }", 2, "exactly one of cable, tap, packet, switch");
    wrong("host.tap = \"t\"\nwire = { }", 2, "exactly one of");
    refused("[[port]]\nname = \"a\"\nwire.cable = \"b\"\n", 1, "port \"a\" has no host");
    refused("[daemon]\ncontrol_mode = 0o1777\n[[port]]\n", 2, "daemon.control_mode 0o1777 is out of range");
    for key in ["control_read_only", "metrics"] {
        let twice = format!(
            "[daemon]\n{key} = {:?}\n[[port]]\nname = \"a\"\nhost.tap = \"t\"\nwire.tap = \"u\"\n",
            control_default()
        );
        assert!(parse(&twice).unwrap_err().contains("is daemon.control already"), "{twice}");
    }
    refused("[daemon]\nmetrics = \"localhost\"\n[[port]]\n", 2, "use an address with a port");
    refused("[daemon]\ncontrol_read_only_mode = 0o644\n[[port]]\n", 2, "belongs to daemon.control_read_only");
    refused("[daemon]\ncontrol = \"sock\"\n[[port]]\n", 2, "daemon.control \"sock\": use an absolute path");
    refused(
        "[[switch]]\nname = \"s\"\nage_seconds = 5\n[[port]]\n",
        3,
        "switch.age_seconds 5 is out of range; use 10 to",
    );
    refused("[[switch]]\nname = \"s p\"\n[[port]]\n", 2, "switch.name \"s p\": use 1 to 32");
    refused("[daemon]\n", 1, "no port");
}

#[test]
fn a_wire_that_leads_nowhere_is_refused() {
    let file = |a: &str| format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\n{a}");
    // Port "b" is first in the file, so its cable is checked first.
    refused(
        &file("wire.cable = \"c\"\n"),
        4,
        "the cable of port \"b\" ends at port \"a\", which must say wire = { cable = \"b\" }",
    );
    refused(&file("wire.cable = \"b\"\nmtu = 9000\n"), 4, "mtu 1500 here and 9000 at the other end");
    let two = "[[port]]\nname = \"a\"\nhost = { tap = \"t0\", queue_pairs = 2 }\nwire.cable = \"b\"\n";
    refused(&format!("{two}{PEER}"), 4, "queue_pairs 2 here and 1 at the other end");
    refused("[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"a\"\n", 4, "ends at the port itself");
    refused(
        "[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"bb\"\n",
        4,
        "unknown port \"bb\"; there is none",
    );
    refused("[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.switch = \"lan\"\n", 4, "unknown switch \"lan\"");
    let lan = "[[switch]]\nname = \"lan\"\n[[port]]\nname = \"a\"\nwire.switch = \"lan\"\n";
    // On a switch, the same keys are accepted as on a cable.
    for works in ["moderation = \"area\"", "rx_usecs = 5"] {
        parse(&format!("{lan}host.tap = \"t\"\n{works}\n")).unwrap();
    }
    parse(&format!("{lan}host = {{ tap = \"t\", queue_pairs = 2 }}\n")).unwrap();
    refused(&format!("{PEER}{PEER}"), 6, "port.name \"b\" is taken by another port");
}

#[test]
fn an_address_of_a_tap_is_that_of_one_host_and_named_once() {
    let tap = |address: &str| format!("host = {{ tap = \"t0\", address = {address} }}\nwire.cable = \"b\"\n");
    let addresses = |address: &str| port(&tap(address)).unwrap().host.addresses.clone();
    assert_eq!(addresses("\"198.18.0.1/24\"").len(), 1);
    let both = addresses("[\"198.18.0.1/24\", \"fd00::1/64\"]");
    assert_eq!((both[1].address.to_string(), both[1].prefix_len), ("fd00::1".to_owned(), 64));
    // Networks with a prefix of 31 or 32 bits have no network address.
    assert_eq!(addresses("[\"198.18.0.0/31\", \"198.18.0.2/32\"]").len(), 2);
    let file = |address: &str| format!("{PEER}[[port]]\nname = \"a\"\n{}", tap(address));
    for (address, fault) in [
        ("\"198.18.0.1\"", "write ADDRESS/BITS"),
        ("\"198.18.0.1/33\"", "the network has 1 to 32 bits"),
        ("\"fd00::1/0\"", "the network has 1 to 128 bits"),
        ("\"198.18.0.0/24\"", "the address of the network, or its broadcast address"),
        ("\"198.18.0.255/24\"", "the address of the network, or its broadcast address"),
        ("\"224.0.0.1/24\"", "no address of one host"),
        ("\"ofr0/24\"", "no address with the bits of its network"),
        ("24", "port.host.address 24: no address"),
        ("[\"198.18.0.1/24\", \"198.18.0.1/16\"]", "the address 198.18.0.1 is that of port \"a\" already"),
    ] {
        refused(&file(address), 7, fault);
    }
    let many: Vec<String> = (1..=17).map(|n| format!("\"198.18.0.{n}/24\"")).collect();
    refused(&file(&format!("[{}]", many.join(", "))), 7, "17 addresses exceed the maximum of 16");
    refused(&(file("\"fd00::1/64\"") + "mtu = 1000\n"), 7, "IPv6 needs port.mtu of at least 1280, and it is 1000");
    let two = |namespace: &str| {
        let host = |name, namespace| {
            format!(
                "[[port]]\nname = \"{name}\"\nwire.switch = \"s\"\nhost = {{ tap = \"{name}\"{namespace}, \
                 address = \"198.18.0.1/24\" }}\n"
            )
        };
        format!("[[switch]]\nname = \"s\"\n{}{}", host("a", ""), host("b", namespace))
    };
    refused(&two(""), 10, "port \"b\": the address 198.18.0.1 is that of port \"a\" already; choose another");
    parse(&two(", namespace = \"n\"")).unwrap();
}

#[test]
fn an_interface_name_has_15_bytes_and_packet_is_a_wire() {
    let tap = |name: &str| format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"{name}\"\nwire.cable = \"b\"\n");
    parse(&tap(&"x".repeat(15))).unwrap();
    refused(&tap(&"x".repeat(16)), 7, "is no interface name; use 1 to 15 bytes");
    refused("[[port]]\nname = \"a\"\nhost = { packet = \"eth0\" }\n", 3, "packet is a kind of wire; write host = {");
}

#[test]
fn a_relative_socket_of_a_guest_is_beside_the_control_socket() {
    let text = "[daemon]\ncontrol = \"/run/x/control.sock\"\n[[port]]\nname = \"a\"\nhost.vhost_user = \"a.sock\"\nwire.packet = \"eth0\"\n";
    let socket = parse(text).unwrap().ports[0].host.socket.clone().unwrap();
    assert_eq!(socket.path, Path::new("/run/x/a.sock"));
}

#[test]
fn what_can_be_made_once_is_refused_the_second_time() {
    let on_switch = |name: &str, host: &str| {
        format!("[[port]]\nname = \"{name}\"\nhost = {{ {host} }}\nwire = {{ switch = \"s\" }}\n")
    };
    let two = |first: &str, second: &str| {
        on_switch("a", first) + &on_switch("b", second) + "[[switch]]\nname = \"s\"\nmac_entries_max = 2\n"
    };
    let guest = "vhost_user = \"/run/g.sock\"";
    refused(&two(guest, guest), 7, "port \"b\": the socket /run/g.sock is that of port \"a\" already; choose another");
    refused(&two("tap = \"t\"", "tap = \"t\""), 7, "port \"b\": the interface t is that of port \"a\" already");
    let within = "tap = \"t\", namespace = \"n\"";
    refused(&two(within, within), 7, "the interface t in /run/netns/n is that of port \"a\"");
    let control = format!("vhost_user = {:?}", control_default());
    refused(&two("tap = \"t\"", &control), 7, "is the daemon's control socket already");
    let both = "[[port]]\nname = \"a\"\nhost = { tap = \"t\" }\nwire = { tap = \"t\" }\n";
    refused(both, 4, "port \"a\": the interface t is that of port \"a\" already");
    // In another namespace, the same name is another interface. A port in mode `client` creates no socket.
    parse(&two("tap = \"t\"", within)).unwrap();
    let client = format!("{guest}, mode = \"client\"");
    parse(&two(&client, &client)).unwrap();
}

#[test]
fn a_switch_has_room_for_an_address_of_each_port() {
    let port = |name: &str| {
        format!("[[port]]\nname = \"{name}\"\nhost = {{ tap = \"{name}\" }}\nwire = {{ switch = \"s\" }}\n")
    };
    let file =
        |entries: u32| port("a") + &port("b") + &format!("[[switch]]\nname = \"s\"\nmac_entries_max = {entries}\n");
    refused(&file(1), 11, "switch.mac_entries_max 1 of switch \"s\" is less than its 2 ports");
    parse(&file(2)).unwrap();
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

/// Returns every key that a configuration file may contain, with its tables, such as `port.host.tap`, sorted.
fn known_keys() -> Vec<String> {
    let sections = [
        ("daemon", keys_of::<file::Daemon>()),
        ("port", keys_of::<file::Port>()),
        ("port.moderation", KEYS.iter().map(|(key, ..)| *key).chain(["policy"]).map(str::to_owned).collect()),
        ("port.limit", limit::KEYS.iter().map(|key| key.name.to_owned()).collect()),
        ("port.memory", keys_of::<file::Memory>()),
        ("port.faults", keys_of::<file::Faults>()),
        ("port.host", host_keys()),
        ("port.wire", wire_kinds().into_iter().chain(["bits_per_second"]).map(str::to_owned).collect()),
        ("port.ipsec", keys_of::<file::Ipsec>()),
        ("port.policy", keys_of::<PolicyKeys>()),
        ("port.sa", keys_of::<SaKeys>()),
        ("port.sa.udp", keys_of::<UdpKeys>()),
        ("port.sa.lifetime", keys_of::<LifetimeKeys>()),
        ("port.sa.selector", keys_of::<SelectorKeys>()),
        ("switch", keys_of::<file::Switch>()),
    ];
    assert_eq!(keys_of::<file::File>(), ["daemon", "faults", "port", "switch"]);
    let mut known: Vec<String> = sections
        .iter()
        .flat_map(|(section, fields)| fields.iter().map(move |field| format!("{section}.{field}")))
        .collect();
    known.push("faults".to_owned());
    known.sort();
    known
}

/// Appends the keys of a table to `keys`, each with the names of the tables around it.
fn collect_keys(section: &str, table: &toml::Table, keys: &mut Vec<String>) {
    for (name, value) in table {
        let key = format!("{section}{name}");
        let tables: Vec<&toml::Table> = match value {
            toml::Value::Table(table) if key != "port.features" => vec![table],
            toml::Value::Array(values) => values.iter().filter_map(toml::Value::as_table).collect(),
            _ => Vec::new(),
        };
        for table in tables {
            collect_keys(&format!("{key}."), table, keys);
        }
        keys.push(key);
    }
}

#[test]
fn one_example_has_every_key() {
    let mut keys = Vec::new();
    collect_keys("", &include_str!("../../../../examples/all-keys.toml").parse().unwrap(), &mut keys);
    let missing: Vec<String> = known_keys().into_iter().filter(|key| !keys.contains(key)).collect();
    assert!(missing.is_empty(), "examples/all-keys.toml lacks {missing:?}; add a line for each");
}

#[test]
fn every_key_is_documented_and_nothing_else_is() {
    let known = known_keys();
    let key_of_row = |row: &str| row.strip_prefix("| `")?.split_once('`').map(|(key, _)| key.to_owned());
    let mut documented: Vec<String> =
        DOCUMENT.lines().filter_map(key_of_row).filter(|key| !key.starts_with('"')).collect();
    documented.sort();
    documented.dedup();
    assert_eq!(documented, known);
    for name in NAMES.iter().map(|name| name.name).chain(GROUPS) {
        assert!(DOCUMENT.contains(&format!("`{name}`")), "docs/config.md does not name the feature {name}");
    }
}

#[test]
fn the_document_has_the_defaults_and_limits_of_the_program() {
    let has = documented;
    has("daemon.control", &CONTROL_DEFAULT);
    has("port.host.address", &format!("at most {ADDRESSES_MAX}"));
    has("daemon.control_mode", &format!("`0o{SOCKET_MODE_DEFAULT:o}`"));
    has("daemon.control_read_only_mode", &format!("`0o{READ_ONLY_MODE_DEFAULT:o}`"));
    has("port.host.socket_mode", &format!("`0o{SOCKET_MODE_DEFAULT:o}`"));
    has("port.mtu", &format!("`{MTU_DEFAULT}`"));
    has("port.mtu", &format!("{MTU_MIN} to {MTU_MAX}"));
    has("port.rx_usecs", &format!("0 to {RX_USECS_MAX}"));
    has("port.moderation.max_interrupts_per_second", &format!("1 to {INTERRUPTS_PER_SECOND_MAX}"));
    has("port.moderation.rx_usecs", &format!("0 to {RX_USECS_MAX}"));
    has("port.moderation.rx_frames", &format!("1 to {RX_FRAMES_MAX}"));
    has("port.moderation.interrupt_cost_ns", &format!("0 to {COST_GIVEN_NS_MAX}"));
    has("port.moderation.load_interrupts_per_second", &format!("0 to {INTERRUPTS_PER_SECOND_MAX}"));
    has("port.moderation.load_interrupts_per_second", &format!("`{LOAD_INTERRUPTS_PER_SECOND_DEFAULT}`"));
    has("port.moderation.deadline_usecs", &format!("0 to {}", DEADLINE_NS_MAX / 1000));
    has("port.moderation.deadline_usecs", &format!("`{}`", DEADLINE_NS_DEFAULT / 1000));
    for limit::Key { name, range, .. } in &limit::KEYS {
        has(&format!("port.limit.{name}"), &format!("{} to {}", range.start(), range.end()));
    }
    for name in POLICIES.iter().chain(Mode::VARIANTS) {
        assert!(DOCUMENT.contains(&format!("`\"{name}\"`")), "docs/config.md does not name {name}");
    }
    has("port.wire.bits_per_second", &format!("{} to {}", BITS_PER_SECOND.start(), BITS_PER_SECOND.end()));
    has("port.poll_usecs", &format!("0 to {POLL_USECS_MAX}"));
    has("port.poll_usecs", &format!("up to {}", GUEST_POLL_TIME_MAX.as_micros()));
    has("port.host.queue_pairs", &format!("1 to {QUEUES_MAX}"));
    has("port.host.queue_size_max", &format!("`{QUEUE_SIZE_DEFAULT}`"));
    has("port.host.queue_size_max", &format!("{} to {}", QUEUE_SIZE.start(), QUEUE_SIZE.end()));
    has("port.host.memory_bytes_max", &format!("`{MEMORY_BYTES_MAX}`"));
    has("port.host.memory_bytes_max", &format!("{} to {}", MEMORY_BYTES.start(), MEMORY_BYTES.end()));
    has("switch.mac_entries_max", &format!("`{MAC_ENTRIES_DEFAULT}`"));
    has("switch.mac_entries_max", &format!("1 to {}", MAC_ENTRIES.end()));
    has("switch.age_seconds", &format!("`{AGE_SECONDS_DEFAULT}`"));
    has("switch.age_seconds", &format!("{} to {}", AGE_SECONDS.start(), AGE_SECONDS.end()));
    has("port.vlan", &format!("{} to {}", VIDS.start(), VIDS.end()));
    has("switch.flood_frames_per_second", &format!("`{FLOOD_FRAMES_DEFAULT}`"));
    has("switch.flood_frames_per_second", &format!("0 to {}", FLOOD_FRAMES.end()));
}

#[test]
fn a_host_with_an_address_is_bound_to_it_unless_the_file_says_others() {
    let security = |keys: &str| port(&format!("wire.cable = \"b\"\n{keys}")).unwrap().security;
    let mac = |last| [2, 0, 0, 0, 0, last];
    assert_eq!(security("host.tap = \"t0\"\n"), PortSecurity::default());
    let host = "host = { vhost_user = \"/run/a.sock\", mac = \"02:00:00:00:00:01\" }\n";
    assert_eq!(security(host).mac_addresses, [mac(1)]);
    assert_eq!(security(&format!("{host}mac_addresses = []\n")).mac_addresses, [[0_u8; 6]; 0]);
    let listed =
        "mac_addresses = [\"02:00:00:00:00:02\", \"02:00:00:00:00:03\"]\nip_addresses = [\"10.0.0.0/8\", \"::1\"]\n";
    let security = security(&format!("{host}{listed}"));
    assert_eq!(security.mac_addresses, [mac(2), mac(3)]);
    assert_eq!(security.ip_addresses.iter().map(Prefix::prefix_len).collect::<Vec<_>>(), [8, 128]);
}

#[test]
fn wrong_addresses_and_an_isolated_port_without_a_switch_are_refused() {
    let file = |keys: &str| format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"b\"\n{keys}\n");
    refused(&file("mac_addresses = [\"01:00:00:00:00:01\"]"), 9, "port.mac_addresses \"01:00:00:00:00:01\" is no");
    refused(&file("ip_addresses = [\"10.0.0.0/33\"]"), 9, "port.ip_addresses \"10.0.0.0/33\" is no network");
    refused(&file("isolated = true"), 9, "port.isolated belongs to a port on a switch");
    let on_switch = |name: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nhost.tap = \"{name}\"\nwire.switch = \"s\"\nisolated = true\n\
             mac_addresses = [\"02:00:00:00:00:01\"]\n"
        )
    };
    let switch = "[[switch]]\nname = \"s\"\nunknown_unicast = \"drop\"\n";
    let config = parse(&format!("{}{switch}", on_switch("a"))).unwrap();
    assert!(config.ports[0].isolated && config.switches[0].unknown_unicast == UnknownUnicast::Drop);
    let twice = format!("{}{}{switch}", on_switch("a"), on_switch("b"));
    // RFC 9568 7.3: the routers of a group share one address.
    for shared in ["00:00:5e:00:01:07", "00:00:5e:00:02:07"] {
        assert_eq!(parse(&twice.replace("02:00:00:00:00:01", shared)).unwrap().ports.len(), 2);
    }
    let same = "of the same switch has the address 02:00:00:00:00:01, too; give each host its own";
    refused(&twice, 12, &format!("port \"b\": mac_addresses: port \"a\" {same}"));
    let own = |name: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nwire.switch = \"s\"\nhost = {{ vhost_user = \"/run/{name}\", \
             mac = \"02:00:00:00:00:01\" }}\n"
        )
    };
    refused(&format!("{}{}{switch}", own("a"), own("b")), 8, &format!("port \"b\": host.mac: port \"a\" {same}"));
    refused(
        "[[port]]\nname = \"a\"\n[[switch]]\nname = \"s\"\nunknown_unicast = \"dorp\"\n",
        5,
        "did you mean \"drop\"",
    );
}

#[test]
fn an_ip_address_of_two_ports_in_one_vlan_is_a_warning_unless_they_share_a_virtual_router() {
    let warnings = |a: &str, b: &str| {
        let port = |name: &str, keys: &str| {
            format!("[[port]]\nname = \"{name}\"\nhost.vhost_user = \"/run/{name}\"\nwire.switch = \"s\"\n{keys}\n")
        };
        let text = format!("{}{}[[switch]]\nname = \"s\"\n", port("a", a), port("b", b));
        let config = parse(&text).unwrap();
        config.warnings(&config.ports).collect::<Vec<_>>()
    };
    let ip = "ip_addresses = [\"192.0.2.0/24\", \"192.0.2.10\", \"2001:db8::/64\"]";
    assert_eq!(
        warnings(ip, ip),
        [
            "port \"b\": ip_addresses: port \"a\" of the same switch has 192.0.2.10, too; list it at one port only, unless \
          one host takes it over from the other"
        ]
    );
    assert_eq!(warnings(ip, "ip_addresses = [\"192.0.2.0/24\", \"192.0.2.11\"]").len(), 0);
    assert_eq!(warnings(&format!("{ip}\nvlan = 10"), &format!("{ip}\nvlan = 11")).len(), 0);
    let trunk = |vlans: &str| format!("{ip}\nvlans = [{vlans}]");
    assert_eq!(warnings(&trunk("10, 12"), &trunk("11")).len(), 0);
    assert_eq!(warnings(&trunk("10, 11"), &trunk("11")).len(), 1);
    assert_eq!(warnings(&trunk("10, 11"), &format!("{ip}\nvlan = 11")).len(), 1);
    let router = format!("{ip}\nmac_addresses = [\"00:00:5e:00:01:07\"]");
    assert_eq!(warnings(&router, &router).len(), 0);
}

#[test]
fn reserved_addresses_pass_a_switch_that_lists_them() {
    let file = |listed: &str| format!("[[switch]]\nname = \"s\"\nforward_reserved = [{listed}]\n");
    let config = parse(&file("\"01:80:c2:00:00:0e\", \"01:80:C2:00:00:03\"")).unwrap();
    assert_eq!(config.switches[0].forward_reserved, 1 << 14 | 1 << 3);
    for wrong in ["01:80:c2:00:00:10", "02:00:00:00:00:01", "lldp", ""] {
        let start = format!("switch.forward_reserved \"{wrong}\" is no address that a switch discards; write some of");
        refused(&file(&format!("\"{wrong}\"")), 3, &start);
    }
}

#[test]
fn link_protocols_pass_a_switch_that_lists_them() {
    let file = |listed: &str| format!("[[switch]]\nname = \"s\"\nforward = [{listed}]\n");
    let config = parse(&file("\"lldp\", \"lacp\"")).unwrap();
    let listed = [LinkProtocol::Lacp, LinkProtocol::Lldp].into_iter().collect::<LinkProtocols>();
    assert_eq!((config.switches[0].forward, config.switches[0].forward_reserved), (listed, 0));
    assert_eq!(parse(&file("")).unwrap().switches[0].forward, LinkProtocols::default());
    for (wrong, end) in
        [("lldb", "did you mean \"lldp\"? There are: stp, lacp, eapol, lldp, ptp"), ("cdp", "There are: stp")]
    {
        refused(&file(&format!("\"{wrong}\"")), 3, &format!("switch.forward: unknown protocol \"{wrong}\""));
        refused(&file(&format!("\"{wrong}\"")), 3, end);
    }
}

#[test]
fn vlans_are_numbers_and_ranges() {
    let vlans = |keys: &str| {
        let port = port(&format!("host.tap = \"t0\"\nwire.cable = \"b\"\n{keys}")).unwrap();
        (port.security.vlans.untagged(), port.security.vlans.tagged().to_vec())
    };
    assert_eq!(vlans(""), (None, vec![]));
    assert_eq!(vlans("vlan = 10\n"), (Some(10), vec![]));
    assert_eq!(
        vlans("vlans = [10, \"100-199\", \"11\", \"4000 - 4094\"]\n"),
        (None, vec![10..=11, 100..=199, 4000..=4094])
    );
    assert_eq!(vlans("vlan = 1\nvlans = [\"2-4094\"]\n"), (Some(1), vec![2..=4094]));
}

#[test]
fn wrong_vlans_are_refused_where_they_stand() {
    let file = |keys: &str| format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"b\"\n{keys}\n");
    refused(&file("vlan = 0"), 9, "port.vlan 0 is out of range; use 1 to 4094");
    refused(&file("vlan = 4095"), 9, "port.vlan 4095 is out of range; use 1 to 4094");
    refused(&file("vlans = []"), 9, "port.vlans: no VLAN; list some, or leave it out");
    refused(&file("vlans = [\n10,\n4095]"), 11, "port.vlans: 4095 is out of range; use 1 to 4094");
    refused(&file("vlans = [\"0-10\"]"), 9, "port.vlans: 0 is out of range");
    refused(&file("vlans = [\"20-10\"]"), 9, "port.vlans: the range 20-10 is empty; write the smaller number first");
    for no_vlan in ["\"ten\"", "\"1-2-3\"", "\"1,2\"", "-1", "70000", "1.5", "true"] {
        let message =
            format!("port.vlans: {no_vlan} is no VLAN; write a number of 1 to 4094, or a range as \"100-199\"");
        refused(&file(&format!("vlans = [{no_vlan}]")), 9, &message);
    }
}

#[test]
fn a_port_with_anything_of_ipsec_discards_what_nothing_names() {
    let policy = |lines: &str| port(&format!("host.tap = \"t0\"\nwire.cable = \"b\"\n{lines}")).unwrap().ipsec.policy;
    let bypass = Policy::default();
    assert_eq!((bypass.transmit, bypass.receive), (NoMatch::Bypass, NoMatch::Bypass));
    assert_eq!(policy(""), bypass);
    let discard = Policy { transmit: NoMatch::Discard, receive: NoMatch::Discard, ..Policy::default() };
    assert_eq!(policy("[port.ipsec]\n"), discard);
    assert_eq!(
        policy("[port.ipsec]\ntransmit = \"bypass\"\nike = true\nother = [\"arp\", \"lldp\", \"llc\", 0x8892]\n"),
        Policy {
            transmit: NoMatch::Bypass,
            ike: true,
            other: Some(vec![0x0806, 0x88cc, 0, 0x8892]),
            ..discard.clone()
        }
    );
    let written = "[[port.policy]]\ndirection = \"out\"\naction = \"bypass\"\nselector = { protocol = \"icmpv6\" }\n\
                   [[port.policy]]\ndirection = \"in\"\naction = \"protect\"\n";
    let entry = |direction, action, selector| PolicyEntry { direction, action, selector };
    let entries = vec![
        entry(SaDirection::Out, PolicyAction::Bypass, Selector { protocol: Some(58), ..Selector::default() }),
        entry(SaDirection::In, PolicyAction::Protect, Selector::default()),
    ];
    assert_eq!(policy(written), Policy { entries, ..discard });
}

#[test]
fn wrong_policies_are_refused_with_their_entry() {
    let file = |lines: &str| format!("{PEER}[[port]]\nname = \"a\"\nhost.tap = \"t0\"\nwire.cable = \"b\"\n{lines}\n");
    let entry = |lines: &str| file(&format!("[[port.policy]]\n{lines}"));
    let number = "port \"a\": [[port.policy]] number 1: ";
    refused(&entry("action = \"bypass\""), 9, &format!("{number}has no direction"));
    refused(&entry("direction = \"out\""), 9, &format!("{number}has no action"));
    refused(&entry("direction = \"out\"\naction = \"discrad\""), 9, "did you mean \"discard\"");
    refused(&entry("direction = \"out\"\naction = \"bypass\"\nselector = { source = \"x\" }"), 9, "is no network");
    let listed = |listed: &str| file(&format!("[port.ipsec]\nother = [{listed}]"));
    refused(&listed("\"lldb\""), 10, "did you mean \"lldp\"");
    for number in [0x0800, 0x86dd, 0x8100, 0x88a8, 0x9100, 0x9200, 0x8847, 0x8848, 0x8863, 0x8864] {
        refused(&listed(&number.to_string()), 10, "carries IP past the policy");
    }
    refused(&listed("0x5ff"), 10, "is no EtherType");
}
