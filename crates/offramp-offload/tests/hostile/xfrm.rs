//! Text of `ip xfrm`: arbitrary text, and valid statements that need not match each other.

use offramp_offload::esp::OutboundSa;
use offramp_offload::esp::xfrm::{Owner, XfrmConfig};

/// Maximum number of statements in one input.
const STATEMENTS_MAX: usize = 12;
/// Values of address fields. The set is small, so that statements often match each other.
const ADDRESSES: [&str; 4] = ["198.18.0.1", "198.18.0.2", "2001:db8::1", "2001:db8::2"];
const NETWORKS: [&str; 6] = ["198.18.0.1/32", "198.18.0.2/32", "198.18.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "::/0"];
const SPIS: [&str; 5] = ["0x1001", "0x1002", "4097", "0xff", "0xffffffff"];
const MODES: [&str; 2] = ["transport", "tunnel"];
const ALGORITHMS: [&str; 8] = [
    "aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff00112233 128",
    "aead 'rfc4543(gcm(aes))' 0x00112233445566778899aabbccddeeff00112234 128",
    "aead 'rfc7539esp(chacha20,poly1305)' \
     0x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff00112233 128",
    "enc 'cbc(aes)' 0x00112233445566778899aabbccddeeff auth-trunc 'hmac(sha1)' \
     0x00112233445566778899aabbccddeeff00112233 96",
    "enc 'ecb(cipher_null)' '' auth-trunc 'hmac(sha256)' \
     0x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 128",
    "enc 'cbc(des3_ede)' 0x00112233445566778899aabbccddeeff0011223344556677 auth-trunc 'hmac(sha1)' \
     0x00112233445566778899aabbccddeeff00112233 96",
    "aead 'rfc4106(gcm(aes))' 0x00112233445566778899aabbccddeeff 128",
    "enc 'cbc(aes)' 0x00112233445566778899aabbccddeeff",
];
/// Optional words of a state command.
const STATE_EXTRAS: [&str; 16] = [
    "",
    "flag esn",
    "flag noecn",
    "flag nopmtudisc",
    "flag decap-dscp",
    "extra-flag dont-encap-dscp",
    "replay-window 64",
    "replay-window 4096",
    "replay-seq 9",
    "replay-oseq 7",
    "replay-oseq 4294967295 replay-oseq-hi 1",
    "limit packet-soft 9 limit packet-hard 3",
    "limit byte-soft 1000 limit time-hard 60",
    "encap espinudp 4500 4501 0.0.0.0",
    "sel src 10.0.0.0/8 dst 0.0.0.0/0",
    "tfcpad 8",
];
const DIRECTIONS: [&str; 3] = ["in", "out", "fwd"];
const PROTOCOLS: [&str; 4] = ["", "proto tcp", "proto udp dport 80", "proto 1"];

/// Parses a text. The text must be accepted, or refused with a one-line error that names a line of the text. The
/// associations of an accepted text must be installable in an adapter. Returns the number of associations for each
/// `Owner`, or `None` if the text is refused.
pub fn text(bytes: &[u8]) -> [Option<usize>; 2] {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split('\n').count();
    let read = XfrmConfig::parse(&text);
    [Owner::Host, Owner::Peer].map(|owner| {
        match read.as_ref().map_err(Clone::clone).and_then(|config| config.associations(owner, true)) {
            Ok(associations) => {
                for association in &associations {
                    assert_eq!(association.config.validate(), Ok(()));
                    // A sender can still be refused, because only the library recognizes a weak 3DES key.
                    drop(OutboundSa::new(&association.config));
                }
                Some(associations.len())
            }
            Err(error) => {
                assert!((1..=lines).contains(&error.line), "{error}");
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
                None
            }
        }
    })
}

/// Returns statements built from `bytes`, one field per byte.
pub fn statements(bytes: &[u8]) -> String {
    let mut bytes = bytes.iter().copied();
    let mut text = String::new();
    for _ in 0..STATEMENTS_MAX {
        let Some(kind) = bytes.next() else { break };
        let mut field = |of: &[&'static str]| of[usize::from(bytes.next().unwrap_or(0)) % of.len()];
        let (source, destination) = (field(&ADDRESSES), field(&ADDRESSES));
        let (reqid, mode) = (field(&["0", "1", "2"]), field(&MODES));
        let statement = if kind % 2 == 0 {
            let (spi, algorithm) = (field(&SPIS), field(&ALGORITHMS));
            let extras = [field(&STATE_EXTRAS), field(&STATE_EXTRAS)].join(" ");
            format!(
                "ip xfrm state add src {source} dst {destination} proto esp spi {spi} reqid {reqid} mode {mode} \
                 {algorithm} {extras}\n"
            )
        } else {
            let (from, to) = (field(&NETWORKS), field(&NETWORKS));
            let (protocol, direction) = (field(&PROTOCOLS), field(&DIRECTIONS));
            let template = format!("tmpl src {source} dst {destination} proto esp reqid {reqid} mode {mode}");
            let template = if kind & 0x70 == 0x70 { "" } else { &template };
            format!("ip xfrm policy add src {from} dst {to} {protocol} dir {direction} {template}\n")
        };
        text.push_str(&statement);
    }
    text
}

/// Runs a fuzzer's input: statements if the first byte is zero, else text.
pub fn xfrm(bytes: &[u8]) -> [Option<usize>; 2] {
    match bytes.split_first() {
        Some((0, rest)) => text(statements(rest).as_bytes()),
        _ => text(bytes),
    }
}
