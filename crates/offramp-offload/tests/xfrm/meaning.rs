//! Tests of the translation into associations, for an adapter in place of the configured kernel and for an adapter as
//! that kernel's peer.

use offramp_offload::esp::xfrm::{Association, Direction, Fault, Owner, XfrmConfig, XfrmError};
use offramp_offload::esp::{DfRule, DscpRule, EcnRule, Mode, Prefix, Tunnel};
use std::net::IpAddr;

const KEYS: [&str; 2] = ["0x00112233445566778899aabbccddeeff00112233", "0xff112233445566778899aabbccddeeff00112233"];

/// Returns the configuration of 192.0.2.1: the states and policies for the two directions between 192.0.2.1 and
/// 192.0.2.2. `more` is added to the two states.
fn host(mode: &str, more: &str) -> String {
    let [out, back] = KEYS;
    format!(
        "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 reqid 1 mode {mode} \
         aead 'rfc4106(gcm(aes))' {out} 128 {more}\n\
         ip xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002 reqid 2 mode {mode} \
         aead 'rfc4106(gcm(aes))' {back} 128 {more}\n\
         ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out \
         tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode {mode}\n\
         ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in \
         tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 2 mode {mode}\n\
         ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd \
         tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 2 mode {mode}\n"
    )
}

fn associations(text: &str, owner: Owner) -> Result<Vec<Association>, XfrmError> {
    XfrmConfig::parse(text).unwrap().associations(owner, false)
}

fn prefix(text: &str) -> Option<Prefix> {
    let (address, len) = text.split_once('/').unwrap();
    Prefix::new(address.parse().unwrap(), len.parse().unwrap())
}

fn tunnel(association: &Association) -> Tunnel {
    match association.config.mode {
        Mode::Tunnel(tunnel) => tunnel,
        Mode::Transport => panic!("no tunnel: {association:?}"),
    }
}

#[test]
fn a_hosts_own_tunnel_keeps_its_directions_and_a_peers_is_turned_round() {
    for (owner, directions) in
        [(Owner::Host, [Direction::Out, Direction::In]), (Owner::Peer, [Direction::In, Direction::Out])]
    {
        let found = associations(&host("tunnel", ""), owner).unwrap();
        assert_eq!(found.iter().map(|a| a.direction).collect::<Vec<_>>(), directions);
        assert_eq!(found.iter().map(|a| a.config.spi).collect::<Vec<_>>(), [0x1001, 0x1002]);
        // The addresses and the selector of a direction's packets are the same for both owners.
        let ends: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        assert_eq!((tunnel(&found[0]).source, tunnel(&found[0]).destination), (ends[0], ends[1]));
        assert_eq!(found[0].config.selector.source, prefix("10.1.0.0/16"));
        assert_eq!(found[1].config.selector.source, prefix("10.2.0.0/16"));
        // Only a receiver has a `destination`.
        let is_in = found[1].direction == Direction::In;
        assert_eq!(found[1].config.destination, is_in.then_some(ends[0]));
    }
}

#[test]
fn in_transport_mode_the_hosts_are_the_selector() {
    let text = host("transport", "").replace("10.1.0.0/16", "192.0.2.0/24").replace("10.2.0.0/16", "192.0.2.0/24");
    // The two policies select the same hosts, so reqid and addresses distinguish the states.
    let found = associations(&text, Owner::Host).unwrap();
    assert_eq!(found[0].config.mode, Mode::Transport);
    assert_eq!(found[0].config.selector.source, prefix("192.0.2.1/32"));
    assert_eq!(found[0].config.selector.destination, prefix("192.0.2.2/32"));
}

#[test]
fn a_sender_goes_on_behind_its_own_number_and_a_receiver_behind_the_far_ends() {
    let text = host("tunnel", "replay-window 64 flag esn replay-oseq 0xfffffff0 replay-seq 7");
    let own = associations(&text, Owner::Host).unwrap();
    assert_eq!([own[0].config.sequence, own[1].config.sequence], [0xffff_fff0, 7]);
    let text = text.replace("replay-seq 7", "");
    let peers = associations(&text, Owner::Peer).unwrap();
    assert_eq!([peers[0].config.sequence, peers[1].config.sequence], [0xffff_fff0, 0]);
}

#[test]
fn a_used_key_of_a_counter_mode_is_refused_for_sending_and_one_of_cbc_is_not() {
    let text = host("tunnel", "replay-window 64 replay-seq 7");
    let error = associations(&text, Owner::Peer).unwrap_err();
    assert_eq!(error, XfrmError { line: 2, fault: Fault::UsedKey(0x1002) });
    let mut cbc = text;
    for key in KEYS {
        let hash_key = "0x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        let suite = format!("enc 'cbc(aes)' {} auth-trunc 'hmac(sha256)' {hash_key} 128", &key[..34]);
        cbc = cbc.replace(&format!("aead 'rfc4106(gcm(aes))' {key} 128"), &suite);
    }
    assert_eq!(associations(&cbc, Owner::Peer).unwrap()[1].config.sequence, 7);
}

#[test]
fn windows_are_brought_to_what_a_receiver_has() {
    for (written, window) in [("0", 64), ("1", 32), ("32", 32), ("128", 128), ("4096", 4096)] {
        let found = associations(&host("tunnel", &format!("replay-window {written}")), Owner::Host).unwrap();
        assert!(found.iter().all(|a| a.config.replay_window == window), "{written}");
    }
}

#[test]
fn flags_are_the_business_of_the_end_that_they_are_about() {
    let sender = host("tunnel", "flag noecn nopmtudisc extra-flag dont-encap-dscp");
    let own = tunnel(&associations(&sender, Owner::Host).unwrap()[0]);
    assert_eq!((own.df, own.dscp, own.ecn), (DfRule::Clear, DscpRule::Set(0), EcnRule::Compatibility));
    // The peer's rules for sending do not apply to the adapter, but the peer's loss of ECN marks does.
    let ours = tunnel(&associations(&sender, Owner::Peer).unwrap()[1]);
    assert_eq!((ours.df, ours.dscp, ours.ecn), (DfRule::Copy, DscpRule::Copy, EcnRule::Compatibility));
    let receiver = host("tunnel", "flag decap-dscp");
    assert!(associations(&receiver, Owner::Host).unwrap_err().to_string().contains("decap-dscp"));
    assert!(associations(&receiver, Owner::Peer).is_ok());
}

#[test]
fn a_direction_is_found_without_a_policy_where_the_way_back_has_one() {
    let text = host("tunnel", "");
    let without_in: String = text
        .lines()
        .filter(|line| !line.contains("reqid 2 mode tunnel\n") && !line.contains("dir in") && !line.contains("dir fwd"))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let found = associations(&without_in, Owner::Host).unwrap();
    assert_eq!(found[1].direction, Direction::In);
    let states: String =
        text.lines().filter(|line| !line.contains("policy")).map(|line| line.to_owned() + "\n").collect();
    assert_eq!(
        associations(&states, Owner::Host).unwrap_err(),
        XfrmError { line: 1, fault: Fault::NoDirection(0x1001) }
    );
    let said = states.replacen(" 128 ", " 128 dir out ", 1);
    let error = associations(&said, Owner::Host).unwrap_err();
    assert_eq!(error, XfrmError { line: 1, fault: Fault::NoPolicy { spi: 0x1001, direction: Direction::Out } });
}

#[test]
fn policies_and_states_that_do_not_fit_are_refused() {
    let text = host("tunnel", "");
    let no_state = text.replacen("reqid 1 mode", "reqid 9 mode", 1);
    assert_eq!(associations(&no_state, Owner::Host).unwrap_err(), XfrmError { line: 3, fault: Fault::NoState });
    let two = text.clone()
        + "ip xfrm policy add src 10.3.0.0/16 dst 10.2.0.0/16 dir out \
                              tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel\n";
    let error = associations(&two, Owner::Host).unwrap_err();
    assert_eq!(error, XfrmError { line: 1, fault: Fault::TwoSelectors { spi: 0x1001, first: 3, second: 6 } });
    let none = text.replacen(" 128 ", " 128 sel src 10.9.0.0/16 dst 10.2.0.0/16 ", 1);
    assert_eq!(
        associations(&none, Owner::Host).unwrap_err(),
        XfrmError { line: 1, fault: Fault::NoPacket { spi: 0x1001, policy: 3 } }
    );
    let again = text.clone() + &text.lines().next().unwrap().replace("0x1001", "0x1003") + "\n";
    let error = associations(&again, Owner::Host).unwrap_err();
    assert_eq!(error, XfrmError { line: 6, fault: Fault::SamePackets { spi: 0x1003, other: 1 } });
    let double = text.clone() + text.lines().nth(1).unwrap() + "\n";
    assert!(associations(&double, Owner::Host).unwrap_err().to_string().contains("another SA has this SPI"));
    let reserved = text.replace("0x1001", "0x10");
    assert!(associations(&reserved, Owner::Host).unwrap_err().to_string().contains("line 1: SA 0x00000010"));
}

#[test]
fn a_legacy_suite_needs_to_be_asked_for() {
    let hash_key = "0x00112233445566778899aabbccddeeff00112233";
    let cipher_key = "0x00112233445566778899aabbccddeeff0123456789abcdef";
    let mut text = host("tunnel", "");
    for key in KEYS {
        let suite = format!("enc 'cbc(des3_ede)' {cipher_key} auth 'hmac(sha1)' {hash_key}");
        text = text.replace(&format!("aead 'rfc4106(gcm(aes))' {key} 128"), &suite);
    }
    let config = XfrmConfig::parse(&text).unwrap();
    assert!(config.associations(Owner::Host, false).unwrap_err().to_string().contains("legacy"));
    assert_eq!(config.associations(Owner::Host, true).unwrap()[0].config.suite.name(), "3des-sha1");
}

#[test]
fn policies_without_a_template_are_told_apart() {
    let text = host("tunnel", "") + "ip xfrm policy add dir out src 0.0.0.0/0 dst 0.0.0.0/0 action block priority 9\n";
    let config = XfrmConfig::parse(&text).unwrap();
    assert_eq!(config.clear_policies().map(|policy| policy.line).collect::<Vec<_>>(), [6]);
    assert_eq!(config.associations(Owner::Host, false).unwrap().len(), 2);
}
