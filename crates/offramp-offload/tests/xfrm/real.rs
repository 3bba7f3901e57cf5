//! Tests with real output of a Linux kernel 6.1 and iproute2 6.1.

use offramp_offload::esp::xfrm::{PolicyAction, PolicyDirection, XfrmConfig};
use offramp_offload::esp::{Lifetime, Mode, Suite, UdpPorts};

const COMMANDS: &str = include_str!("commands.sh");
const STATES: &str = include_str!("states.txt");
const POLICIES: &str = include_str!("policies.txt");

/// Parses a text, and removes what depends on the position in the text: line numbers, and the order, which the kernel
/// reverses.
fn sorted(text: &str) -> XfrmConfig {
    let mut config = XfrmConfig::parse(text).unwrap();
    for state in &mut config.states {
        state.line = 0;
    }
    for policy in &mut config.policies {
        policy.line = 0;
    }
    config.states.sort_by_key(|state| state.config.spi);
    config.policies.sort_by_key(|policy| format!("{:?} {:?}", policy.direction, policy.selector));
    config
}

#[test]
fn what_ip_prints_means_what_it_was_given() {
    let given = sorted(COMMANDS);
    assert_eq!((given.states.len(), given.policies.len()), (7, 5));
    assert_eq!(sorted(&[include_str!("states-statistics.txt"), POLICIES].concat()).policies, given.policies);
    let mut printed = sorted(include_str!("states-statistics.txt")).states;
    for (printed, given) in printed.iter_mut().zip(&given.states) {
        // The kernel adds a selector with the state's IP version to a state without selector, unless af-unspec is set.
        if given.config.selector.source.is_none() {
            printed.config.selector = given.config.selector.clone();
        }
    }
    assert_eq!(printed, given.states);
}

#[test]
fn every_form_of_the_output_means_the_same() {
    let plain = sorted(STATES).states;
    assert_eq!(sorted(include_str!("states-oneline.txt")).states, plain);
    let mut statistics = sorted(include_str!("states-statistics.txt")).states;
    for state in &mut statistics {
        // Only `-s` prints lifetimes.
        state.config.lifetime = Lifetime::default();
        // Only `-s` prints extra flags.
        state.flags.no_dscp = false;
    }
    assert_eq!(statistics, plain);
    for text in [include_str!("policies-oneline.txt"), include_str!("policies-statistics.txt")] {
        assert_eq!(sorted(text).policies, sorted(POLICIES).policies);
    }
}

#[test]
fn every_part_of_a_state_is_read() {
    let states = sorted(include_str!("states-statistics.txt")).states;
    let suites: Vec<_> = states.iter().map(|state| state.config.suite.name()).collect();
    let expected =
        ["aes128gcm16", "aes128-sha256", "chacha20poly1305", "3des-sha1", "null-sha512", "aes128gmac", "aes128-sha256"];
    assert_eq!(suites, expected);
    assert_eq!(states[0].sent, 0xffff_fff0);
    assert!(states[0].config.esn && !states[1].config.esn);
    assert_eq!(states.iter().map(|s| s.config.replay_window).collect::<Vec<_>>(), [64, 32, 0, 0, 128, 32, 0]);
    assert_eq!((states[3].received, states[3].sent), (7, 9));
    assert_eq!(states[1].config.udp, Some(UdpPorts { source: 4500, destination: 4501 }));
    let lifetime = Lifetime {
        soft_bytes: Some(1_000_000),
        hard_bytes: Some(2_000_000),
        soft_packets: Some(10),
        hard_packets: Some(100),
        ..Lifetime::default()
    };
    assert_eq!(states[1].config.lifetime, lifetime);
    assert!(states[1].flags.decap_dscp && states[1].flags.no_pmtu_discovery && !states[1].flags.no_ecn);
    assert!(states[4].flags.no_ecn && states[5].flags.no_dscp);
    assert_eq!(states[2].config.selector.source_ports, Some(80..=80));
    assert_eq!(states[2].config.mode, Mode::Transport);
    assert!(matches!(states[5].config.mode, Mode::Tunnel(_)));
    assert_eq!(states[0].reqid, 1);
    assert!(matches!(states[6].config.suite, Suite::AesCbc { .. }));
}

#[test]
fn every_part_of_a_policy_is_read() {
    let policies = XfrmConfig::parse(POLICIES).unwrap().policies;
    let directions: Vec<_> = policies.iter().map(|policy| policy.direction).collect();
    let [out, forward, within] = [PolicyDirection::Out, PolicyDirection::Forward, PolicyDirection::In];
    assert_eq!(directions, [out, out, forward, within, out]);
    assert_eq!(policies[1].action, PolicyAction::Block);
    assert_eq!(policies[0].selector.protocol, Some(58));
    assert_eq!(policies[3].selector.destination_ports, Some(90..=90));
    let template = policies[3].template.unwrap();
    assert_eq!((template.spi, template.reqid, template.is_tunnel), (Some(0x1001), 2, false));
    assert_eq!(policies[3].priority, 100);
}

#[test]
fn hidden_keys_are_said_to_be_hidden() {
    let error = XfrmConfig::parse(include_str!("states-nokeys.txt")).unwrap_err().to_string();
    assert!(error.starts_with("line 4: ") && error.contains("nokeys"), "{error}");
}
