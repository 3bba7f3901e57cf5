//! Tests of the keys that restrict a port's frames: addresses, VLANs, link protocols and the IPsec policy.

use super::{PEER, parse, port, refused};
use offramp_adapter::ipsec::{NoMatch, Policy, PolicyAction, PolicyEntry, SaDirection};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::switch::{LinkProtocol, LinkProtocols, UnknownUnicast};
use offramp_offload::esp::{Prefix, Selector};

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
