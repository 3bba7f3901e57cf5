//! Renders states in Linux' text format, for tests of the parser.

use offramp_offload::esp::xfrm::{Direction, StateFlags, XfrmState};
use offramp_offload::esp::{Lifetime, Mode, Prefix, SaConfig, SecretKey, Selector, Suite, Tunnel, UdpPorts};
use proptest::prelude::*;
use std::fmt::Write;
use std::net::IpAddr;

/// A state and its key bytes, because a [`SecretKey`] does not return its bytes.
#[derive(Clone, Debug)]
pub struct Known {
    pub state: XfrmState,
    pub encryption_key: Vec<u8>,
    pub integrity_key: Vec<u8>,
}

/// The form of a rendered state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Command,
    Output,
    Statistics,
    Oneline,
}

pub const FORMS: [Form; 4] = [Form::Command, Form::Output, Form::Statistics, Form::Oneline];

/// Returns the suites supported by Linux: all suites without an implicit IV.
fn suites() -> Vec<Suite> {
    Suite::all().filter(|suite| !suite.name().ends_with("-iiv")).collect()
}

fn address(is_ipv6: bool) -> BoxedStrategy<IpAddr> {
    if is_ipv6 { any::<u128>().prop_map(|bits| IpAddr::from(bits.to_be_bytes())).boxed() } else { ipv4().boxed() }
}

fn ipv4() -> impl Strategy<Value = IpAddr> {
    any::<[u8; 4]>().prop_map(IpAddr::from)
}

fn prefix(is_ipv6: bool) -> impl Strategy<Value = Prefix> {
    let bits: u8 = if is_ipv6 { 128 } else { 32 };
    (address(is_ipv6), 0..=bits).prop_map(|(address, len)| Prefix::new(address, len).unwrap())
}

fn selector(is_ipv6: bool) -> impl Strategy<Value = Selector> {
    let port = || proptest::option::of((1..=u16::MAX).prop_map(|port| port..=port));
    let protocol = proptest::option::of(1..=u8::MAX);
    (prefix(is_ipv6), prefix(is_ipv6), protocol, port(), port()).prop_map(
        |(source, destination, protocol, source_ports, destination_ports)| {
            let has_ports = matches!(protocol, Some(6 | 17));
            Selector {
                source: Some(source),
                destination: Some(destination),
                protocol,
                source_ports: source_ports.filter(|_| has_ports),
                destination_ports: destination_ports.filter(|_| has_ports),
            }
        },
    )
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    let limit = || proptest::option::of(1..u64::MAX);
    (limit(), limit(), limit(), limit(), limit(), limit()).prop_map(|limits| Lifetime {
        soft_packets: limits.0,
        hard_packets: limits.1,
        soft_bytes: limits.2,
        hard_bytes: limits.3,
        soft_seconds: limits.4,
        hard_seconds: limits.5,
    })
}

fn flags() -> impl Strategy<Value = StateFlags> {
    (any::<[bool; 4]>(), 0..3_u32).prop_map(|(bits, tfc_padding_len)| StateFlags {
        no_ecn: bits[0],
        decap_dscp: bits[1],
        no_pmtu_discovery: bits[2],
        no_dscp: bits[3],
        tfc_padding_len,
    })
}

/// Generates any state that Linux and an adapter support.
pub fn known() -> impl Strategy<Value = Known> {
    any::<bool>().prop_flat_map(|is_ipv6| {
        let ends = (address(is_ipv6), address(is_ipv6));
        let numbers = (any::<u32>(), any::<u32>(), 0..=4096_u32, any::<u64>(), any::<u64>());
        let bits = (any::<bool>(), any::<bool>(), proptest::option::of((any::<u16>(), any::<u16>())));
        let parts = (flags(), lifetime(), selector(is_ipv6), any::<[u8; 128]>());
        let direction = proptest::option::of(prop_oneof![Just(Direction::In), Just(Direction::Out)]);
        (ends, numbers, bits, parts, direction, 0..suites().len()).prop_map(
            |((source, destination), numbers, bits, (flags, lifetime, selector, keys), direction, suite)| {
                let (spi, reqid, window, sent, received) = numbers;
                let (is_tunnel, esn, udp) = bits;
                let suite = suites()[suite];
                let (encryption_key, rest) = keys.split_at(suite.encryption_key_len());
                let integrity_key = &rest[..suite.integrity_key_len()];
                let key = |bytes: &[u8]| SecretKey::new(bytes.to_vec());
                let mut config = SaConfig::new(spi, suite, key(encryption_key), key(integrity_key));
                if is_tunnel {
                    config.mode = Mode::Tunnel(Tunnel::new(source, destination));
                }
                config.esn = esn;
                config.replay_window = window;
                config.udp = udp.map(|(source, destination)| UdpPorts { source, destination });
                config.lifetime = lifetime;
                config.selector = selector;
                let state = XfrmState { line: 1, source, destination, reqid, direction, flags, sent, received, config };
                let (encryption_key, integrity_key) = (encryption_key.to_vec(), integrity_key.to_vec());
                Known { state, encryption_key, integrity_key }
            },
        )
    })
}

/// Formats bytes as hexadecimal digits after `0x`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns Linux' name of the cipher or AEAD, and for suites with an HMAC, the hash and its truncated length in bits.
fn algorithms(suite: Suite) -> (&'static str, Option<(&'static str, u32)>) {
    let name = suite.name();
    let cipher = match name {
        _ if name.ends_with("gcm16") => "rfc4106(gcm(aes))",
        _ if name.ends_with("gmac") => "rfc4543(gcm(aes))",
        "chacha20poly1305" => "rfc7539esp(chacha20,poly1305)",
        "3des-sha1" => "cbc(des3_ede)",
        _ if name.starts_with("null") => "ecb(cipher_null)",
        _ => "cbc(aes)",
    };
    let hash = match name.rsplit('-').next() {
        Some("sha1") => Some(("hmac(sha1)", 96)),
        Some("sha256") => Some(("hmac(sha256)", 128)),
        Some("sha384") => Some(("hmac(sha384)", 192)),
        Some("sha512") => Some(("hmac(sha512)", 256)),
        _ => None,
    };
    (cipher, hash)
}

fn selector_words(selector: &Selector) -> String {
    let mut text = String::new();
    let prefix = |prefix: &Option<Prefix>| prefix.map(|p| format!("{}/{}", p.address(), p.prefix_len())).unwrap();
    write!(text, "src {} dst {} ", prefix(&selector.source), prefix(&selector.destination)).unwrap();
    let words = [
        ("proto", selector.protocol.map(u16::from)),
        ("sport", selector.source_ports.as_ref().map(|ports| *ports.start())),
        ("dport", selector.destination_ports.as_ref().map(|ports| *ports.start())),
    ];
    for (word, value) in words {
        text.extend(value.map(|value| format!("{word} {value} ")));
    }
    text
}

fn flag_words(known: &Known) -> (Vec<&'static str>, Vec<&'static str>) {
    let flags = &known.state.flags;
    let chosen = [
        (flags.no_ecn, "noecn"),
        (flags.decap_dscp, "decap-dscp"),
        (flags.no_pmtu_discovery, "nopmtudisc"),
        (known.state.config.esn, "esn"),
    ];
    let plain = chosen.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
    (plain, if flags.no_dscp { vec!["dont-encap-dscp"] } else { vec![] })
}

/// Renders the state in this form. Only `ip -s` prints some parts, so compare the parsed state with [`expected`].
pub fn render(known: &Known, form: Form) -> String {
    match form {
        Form::Command => command(known),
        Form::Output => output(known, false),
        Form::Statistics => output(known, true),
        // The last line ends with a backslash as well.
        Form::Oneline => output(known, false).replace('\n', "\\") + "\n",
    }
}

/// Returns the expected parsed state for this form.
pub fn expected(known: &Known, form: Form) -> XfrmState {
    let mut state = known.state.clone();
    if matches!(form, Form::Output | Form::Oneline) {
        state.config.lifetime = Lifetime::default();
        state.flags.no_dscp = false;
    }
    state
}

fn command(known: &Known) -> String {
    let state = &known.state;
    let config = &state.config;
    let mode = if config.mode == Mode::Transport { "transport" } else { "tunnel" };
    let mut text = format!(
        "ip xfrm state add src {} dst {} proto esp spi {:#x} reqid {} mode {mode} \\\n",
        state.source, state.destination, config.spi, state.reqid
    );
    let (cipher, hash) = algorithms(config.suite);
    let encryption_key = if known.encryption_key.is_empty() { "''".to_owned() } else { hex(&known.encryption_key) };
    match hash {
        Some((hash, bits)) => {
            write!(
                text,
                "  enc '{cipher}' {encryption_key} auth-trunc \"{hash}\" {} {bits}",
                hex(&known.integrity_key)
            )
            .unwrap();
        }
        None => write!(text, "  aead '{cipher}' {encryption_key} 128").unwrap(),
    }
    text.extend(config.udp.map(|udp| format!(" encap espinudp {} {} 0.0.0.0", udp.source, udp.destination)));
    write!(text, " sel {}", selector_words(&config.selector)).unwrap();
    let (flags, extra) = flag_words(known);
    for (word, flags) in [("flag", flags), ("extra-flag", extra)] {
        if !flags.is_empty() {
            write!(text, "{word} {} ", flags.join(" ")).unwrap();
        }
    }
    let limits = [
        ("byte-soft", config.lifetime.soft_bytes),
        ("byte-hard", config.lifetime.hard_bytes),
        ("packet-soft", config.lifetime.soft_packets),
        ("packet-hard", config.lifetime.hard_packets),
        ("time-soft", config.lifetime.soft_seconds),
        ("time-hard", config.lifetime.hard_seconds),
    ];
    for (word, limit) in limits {
        text.extend(limit.map(|limit| format!("limit {word} {limit} ")));
    }
    let halves = |number: u64| (number >> 32, number as u32);
    let ((oseq_hi, oseq), (seq_hi, seq)) = (halves(state.sent), halves(state.received));
    write!(
        text,
        "replay-window {} replay-seq {seq} replay-seq-hi {seq_hi:#x} replay-oseq {oseq:#x} replay-oseq-hi {oseq_hi}",
        config.replay_window
    )
    .unwrap();
    if state.flags.tfc_padding_len > 0 {
        write!(text, " tfcpad {}", state.flags.tfc_padding_len).unwrap();
    }
    text.extend(state.direction.map(|direction| format!(" dir {direction}")));
    text + "\n"
}

fn output(known: &Known, has_statistics: bool) -> String {
    let state = &known.state;
    let config = &state.config;
    let mode = if config.mode == Mode::Transport { "transport" } else { "tunnel" };
    let in_brackets = |text: String| if has_statistics { text } else { String::new() };
    let mut text = format!(
        "src {} dst {}\n\tproto esp spi {:#010x}{} reqid {}{} mode {mode}\n",
        state.source,
        state.destination,
        config.spi,
        in_brackets(format!("({})", config.spi)),
        state.reqid,
        in_brackets(format!("({:#010x})", state.reqid))
    );
    let (flags, extra) = flag_words(known);
    write!(text, "\treplay-window 0 {}", in_brackets("seq 0x00000000 ".to_owned())).unwrap();
    if has_statistics || !flags.is_empty() {
        // iproute2 6.1 omits the space between the last flag and the next word.
        write!(text, "flag {}", flags.join(" ")).unwrap();
        if has_statistics && !extra.is_empty() {
            write!(text, "{}extra_flag {}", if flags.is_empty() { " " } else { "" }, extra.join(" ")).unwrap();
        }
        text += &in_brackets(" (0x00000000)".to_owned());
    }
    text += "\n";
    let bits = |key: &[u8]| in_brackets(format!(" ({} bits)", key.len() * 8));
    let (encryption_key, integrity_key) = (&known.encryption_key, &known.integrity_key);
    let (cipher, hash) = algorithms(config.suite);
    match hash {
        Some((hash, trunc)) => {
            writeln!(text, "\tauth-trunc {hash} {}{} {trunc}", hex(integrity_key), bits(integrity_key)).unwrap();
            let key =
                if encryption_key.is_empty() { String::new() } else { hex(encryption_key) + &bits(encryption_key) };
            writeln!(text, "\tenc {cipher} {key}").unwrap();
        }
        None => writeln!(text, "\taead {cipher} {}{} 128", hex(encryption_key), bits(encryption_key)).unwrap(),
    }
    if let Some(udp) = config.udp {
        writeln!(text, "\tencap type espinudp sport {} dport {} addr 0.0.0.0", udp.source, udp.destination).unwrap();
    }
    if state.flags.tfc_padding_len > 0 {
        writeln!(text, "\ttfcpad {}", state.flags.tfc_padding_len).unwrap();
    }
    let halves = |number: u64| (number >> 32, number as u32);
    let ((oseq_hi, oseq), (seq_hi, seq)) = (halves(state.sent), halves(state.received));
    let words = config.replay_window.div_ceil(32) as usize;
    write!(
        text,
        "\tanti-replay esn context:\n\t seq-hi {seq_hi:#x}, seq {seq:#x}, oseq-hi {oseq_hi:#x}, oseq {oseq:#x}\n\
         \t replay_window {}, bitmap-length {words}\n",
        config.replay_window
    )
    .unwrap();
    // Each line has eight words.
    for line in vec!["ffff0000 "; words].chunks(8) {
        writeln!(text, "\t {}", line.concat()).unwrap();
    }
    text.extend(state.direction.map(|direction| format!("\tdir {direction}\n")));
    writeln!(text, "\tsel {}{}", selector_words(&config.selector), in_brackets("uid 0".to_owned())).unwrap();
    if has_statistics {
        text += &statistics(&config.lifetime);
    }
    text
}

fn statistics(lifetime: &Lifetime) -> String {
    let limit = |limit: Option<u64>, unit| limit.map_or("(INF)".to_owned(), |n| n.to_string()) + unit;
    let seconds = |limit: Option<u64>| format!("{}(sec)", limit.unwrap_or(0));
    let line = |soft: String, hard: String| format!("soft {soft}, hard {hard}\n");
    [
        "\tlifetime config:\n\t  limit: ".to_owned(),
        line(limit(lifetime.soft_bytes, "(bytes)"), limit(lifetime.hard_bytes, "(bytes)")),
        "\t  limit: ".to_owned(),
        line(limit(lifetime.soft_packets, "(packets)"), limit(lifetime.hard_packets, "(packets)")),
        "\t  expire add: ".to_owned(),
        line(seconds(lifetime.soft_seconds), seconds(lifetime.hard_seconds)),
        "\t  expire use: ".to_owned(),
        line(seconds(None), seconds(None)),
        "\tlifetime current:\n\t  5(bytes), 7(packets)\n\t  add 2026-11-22 06:34:52 use -\n".to_owned(),
        "\tstats:\n\t  replay-window 1 replay 2 failed 3\n".to_owned(),
    ]
    .concat()
}
