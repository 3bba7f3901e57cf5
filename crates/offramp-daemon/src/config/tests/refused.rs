//! Tests of refused files: each error names the line, the key and the remedy.

use super::{PEER, parse, port, refused};
use crate::control::control_default;

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

/// Asserts that a file is refused if port "a" contains `lines`, with an error in their line number `line`.
fn wrong(lines: &str, line: usize, text: &str) {
    // Port "a" begins after the four lines of its peer.
    refused(&format!("{PEER}[[port]]\nname = \"a\"\n{lines}\n"), 6 + line, text);
}

/// Asserts that a host with the keys `keys` is refused.
fn wrong_host(keys: &str, text: &str) {
    wrong(&format!("host = {{ {keys} }}\nwire.cable = \"b\""), 1, text);
}

#[test]
fn a_value_out_of_range_is_refused_with_its_range() {
    let wrong = |line: &str, text: &str| wrong(&format!("host.tap = \"t0\"\nwire.cable = \"b\"\n{line}"), 3, text);
    wrong("mtu = 67", "port.mtu 67 is out of range; use 68 to 65521");
    wrong("mtu = 65522", "port.mtu 65522 is out of range");
    wrong("rx_usecs = -1", "port.rx_usecs -1 is out of range; use 0 to 1000000");
    wrong("cpus = [100000]", "port.cpus: no processor 100000; there are [");
    wrong_host("tap = \"t\", queue_pairs = 0", "queue_pairs 0 is out of range; use 1 to 256");
    wrong_host("vhost_user = \"/s\", socket_mode = 0o1777", "port.host.socket_mode 0o1777 is out of range");
    wrong_host("vhost_user = \"/s\", allowed_uid = -1", "port.host.allowed_uid -1 is out of range");
    let queue = "vhost_user = \"/s\", control_queue = \"backend\", queue_pairs = 128";
    wrong_host(queue, "queue_pairs 128 is out of range; use 1 to 127");
    refused("[daemon]\ncontrol_mode = 0o1777\n[[port]]\n", 2, "daemon.control_mode 0o1777 is out of range");
    let age = "[[switch]]\nname = \"s\"\nage_seconds = 5\n[[port]]\n";
    refused(age, 3, "switch.age_seconds 5 is out of range; use 10 to");
}

#[test]
fn a_key_of_another_kind_of_host_is_refused() {
    wrong_host("tap = \"t\", packed = true", "port.host.packed belongs to a host with vhost_user");
    let message = "port.host.control_queue belongs to a host with vhost_user";
    wrong_host("tap = \"t\", control_queue = \"none\"", message);
    wrong_host("vhost_user = \"/s\", namespace = \"n\"", "namespace belongs to a host with tap");
    let client = "vhost_user = \"/s\", mode = \"client\", socket_group = \"kvm\"";
    wrong_host(client, "belong to mode \"server\"");
    let pairs = "vhost_user = \"/s\", control_queue = \"none\", queue_pairs = 2";
    wrong_host(pairs, "port.host.queue_pairs: a guest without a control queue uses one; write 1");
    wrong_host("vhost_user = \"/s\", tap = \"t\"", "write either tap");
    wrong_host("", "write either tap");
    refused("[[port]]\nname = \"a\"\nwire.cable = \"b\"\n", 1, "port \"a\" has no host");
    let two = "host.tap = \"t\"\nwire = { cable = \"b\", tap = \"x\" }";
    wrong(two, 2, "exactly one of cable, tap, packet, switch");
    wrong("host.tap = \"t\"\nwire = { }", 2, "exactly one of");
}

#[test]
fn a_name_a_path_and_an_address_of_a_wrong_form_are_refused() {
    wrong_host("tap = \"a/b\"", "port.host.tap \"a/b\" is no interface name");
    wrong_host("vhost_user = \"/s\", control_queue = \"guest\"", "control_queue \"guest\"");
    wrong_host("vhost_user = \"\"", "use a path of at most 96 bytes");
    wrong_host(&format!("vhost_user = \"{}\"", "s".repeat(90)), "use a path of at most 96 bytes");
    wrong_host("vhost_user = \"/s\", mode = \"sever\"", "did you mean \"server\"?");
    for mac in [
        "02:00:00:00:00",
        "01:00:00:00:00:01",
        "00:00:00:00:00:00",
        "2:0:0:0:0:1",
        "02:00:00:00:00:0g",
        "é2:00:00:00:00:0",
    ] {
        wrong_host(&format!("tap = \"t\", mac = \"{mac}\""), "is no address of one host");
    }
    refused("[[switch]]\nname = \"s p\"\n[[port]]\n", 2, "switch.name \"s p\": use 1 to 32");
}

#[test]
fn a_socket_of_the_daemon_has_a_path_of_its_own() {
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
