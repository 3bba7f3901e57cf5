//! Tests that every refusal is one line with the position, the fault and the reason.

use offramp_offload::esp::xfrm::{Owner, XfrmConfig};

const GCM: &str = "aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128";
const HASH_KEY: &str = "0x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const CIPHER: &str = "enc 'cbc(aes)' 0x00112233445566778899aabbccddeeff";

fn error(text: &str) -> String {
    let error = match XfrmConfig::parse(text) {
        Ok(config) => config.associations(Owner::Host, false).map(drop).unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().starts_with(&format!("line {}: ", error.line)));
    assert!(!error.to_string().contains('\n'));
    error.to_string()
}

/// Returns a state command that ends with `rest`. The part before `rest` is valid.
fn state(rest: &str) -> String {
    format!("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 reqid 1 mode tunnel {rest}")
}

#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    let error = error(text);
    for part in parts {
        assert!(error.contains(part), "{error:?} has no {part:?}");
    }
}

#[test]
fn a_hash_that_linux_cuts_to_96_bits_is_refused_with_the_reason() {
    refused(&state(&format!("{CIPHER} auth 'hmac(sha256)' {HASH_KEY}")), &["hmac(sha256)", "128", "96", "auth-trunc"]);
    refused(&state(&format!("{CIPHER} auth-trunc 'hmac(sha256)' {HASH_KEY} 96")), &["hmac(sha256)", "RFC 4868"]);
}

#[test]
fn algorithms_that_are_not_ours_are_named_beside_those_that_are() {
    let key = "0x00112233445566778899aabbccddeeff00112233";
    refused(&state(&format!("aead 'rfc4309(ccm(aes))' {key} 128")), &["\"rfc4309(ccm(aes))\"", "rfc4106(gcm(aes))"]);
    refused(&state(&format!("{CIPHER} auth-trunc 'hmac(md5)' {key} 96")), &["\"hmac(md5)\"", "hmac(sha256)"]);
    refused(&state(&format!("enc 'cbc(blowfish)' {key}")), &["\"cbc(blowfish)\"", "cbc(aes)"]);
    refused(&state(&format!("aead 'rfc4106(gcm(aes))' {key} 96")), &["128 bits"]);
    refused(&state(CIPHER), &["integrity check", "RFC 8221"]);
    refused(&state(&format!("{GCM} {CIPHER}")), &["one cipher"]);
    refused(&state(""), &["enc or aead is missing"]);
}

#[test]
fn modes_protocols_and_flags_that_are_not_ours_are_refused() {
    refused(&state(&format!("{GCM} mode beet")), &["\"beet\"", "transport and tunnel"]);
    refused(&state(&format!("{GCM} flag esn wildrecv")), &["\"wildrecv\"", "not supported"]);
    refused(&state(&format!("{GCM} extra-flag oseq-may-wrap")), &["oseq-may-wrap", "esn"]);
    refused(&state(&format!("{GCM} encap espintcp 4500 4500 0.0.0.0")), &["\"espintcp\"", "RFC 3948"]);
    refused(&state(&format!("{GCM} mark 5 mask 0xff")), &["\"mark\"", "reqid"]);
    refused(&state(&format!("{GCM} if_id 7")), &["\"if_id\""]);
    refused(&state(&format!("{GCM} limit time-use-hard 60")), &["\"time-use-hard\"", "time-hard"]);
    refused("ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto ah spi 0x1000", &["\"ah\"", "only esp"]);
}

#[test]
fn values_that_are_none_are_refused_with_what_they_should_be() {
    refused(&state(&format!("{GCM} replay-window 4097")), &["replay-window", "number"]);
    refused(&state(&format!("{GCM} replay-window x")), &["replay-window", "number"]);
    refused(&state(&format!("{GCM} spi +5")), &["spi", "number"]);
    refused("ip xfrm state add src host.example", &["src", "in figures"]);
    refused("ip xfrm state add src 192.0.2.1/24", &["src", "one host"]);
    refused("ip xfrm state add src 192.0.2.1 dst 2001:db8::1 proto esp spi 256", &["dst", "same IP version"]);
    refused("ip xfrm state add src", &["an address is missing"]);
    refused(&state("aead 'rfc4106(gcm(aes))' 0x0011 128"), &["20, 28 or 36 bytes"]);
    refused(&state("aead 'rfc4106(gcm(aes))' 0x001 128"), &["3 hexadecimal digits"]);
    refused(&state("aead 'rfc4106(gcm(aes))' 0x00zz 128"), &["character 5"]);
    refused(&state("aead 'rfc4106(gcm(aes))' $KEY 128"), &["shell"]);
    refused(&state("aead 'rfc4106(gcm(aes)) 0x00 128"), &["other quote"]);
}

#[test]
fn the_line_is_that_of_the_word_also_behind_continued_lines() {
    refused(
        "\n# a remark\nip xfrm state add src 192.0.2.1 \\\n  dst 192.0.2.2 \\\n  modus tunnel\n",
        &["line 5", "\"modus\""],
    );
    refused("ip xfrm state flush; frobnicate\n", &["line 1", "ip xfrm state add"]);
    refused("src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0x100 reqid 0 mode tunnel\n\tsomething new\n", &["line 3"]);
}

#[test]
fn commands_that_are_not_about_xfrm_are_passed_over_and_others_are_not() {
    let text =
        "set -e\nmodprobe esp4\nsudo ip -6 addr add 2001:db8::1/64 dev eth0\nip netns exec a ip xfrm policy flush\n";
    assert_eq!(XfrmConfig::parse(text), Ok(XfrmConfig::default()));
    refused("rm -rf x", &["line 1", "ip xfrm state add"]);
    refused("ip xfrm state delete src 192.0.2.1", &["\"delete\"", "flush"]);
    refused("ip xfrm monitor", &["\"monitor\"", "state and policy"]);
}

#[test]
fn what_stands_before_a_flush_is_forgotten() {
    let text = state(GCM) + "\nip xfrm state flush\nip xfrm policy add dir out src 0.0.0.0/0\nip xfrm policy flush";
    assert_eq!(XfrmConfig::parse(&text), Ok(XfrmConfig::default()));
}

#[test]
fn policies_that_an_adapter_cannot_carry_out_are_refused() {
    let policy = |rest: &str| format!("ip xfrm policy add src 192.0.2.1 dst 192.0.2.2 {rest}");
    refused(&policy("dir out tmpl proto ah mode tunnel"), &["\"ah\"", "proto esp"]);
    refused(&policy("dir out tmpl proto esp mode tunnel level use"), &["\"use\"", "clear"]);
    refused(&policy("dir out tmpl proto esp tmpl proto esp"), &["\"tmpl\"", "sealed once"]);
    refused(&policy("dir out mark 1"), &["\"mark\""]);
    refused(&policy("dir out ptype sub"), &["\"sub\""]);
    refused(&policy("dir out proto 50 sport 5"), &["proto", "tcp or udp"]);
    refused(&policy("dir out dev eth0"), &["\"dev\""]);
    refused(&policy("dir out limit packet-hard 5"), &["\"limit\""]);
    refused(&policy(""), &["dir in, out or fwd is missing"]);
    refused(&policy("dir out tmpl mode tunnel"), &["proto esp behind tmpl"]);
}

#[test]
fn a_word_that_may_be_a_key_is_not_shown() {
    for text in [
        state("aead 0x00112233445566778899aabbccddeeff00112233 'rfc4106(gcm(aes))' 128"),
        state("enc 'cbc(aes)' swordfish opensesame1234567"),
        state(&format!("{GCM} opensesame")),
        "00112233445566778899aabb 128\n".to_owned(),
        "src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0x100\n\taead rfc4106(gcm(aes)) 0x0011223344556677\n8899aabb 128"
            .to_owned(),
    ] {
        let error = error(&text);
        assert!(!error.contains("2233") && !error.contains("8899") && !error.contains("opensesame"), "{error}");
    }
}

#[test]
fn a_command_in_the_background_is_refused_with_its_line() {
    for text in ["& ip xfrm state flush", "ip xfrm state flush &", "ip xfrm state flush\n& "] {
        let error = XfrmConfig::parse(text).map(|_| ()).expect_err(text);
        assert!(error.to_string().contains("only a shell"), "{text:?}: {error}");
        assert_eq!(error.line, text.lines().count().max(1), "{text:?}");
    }
}
