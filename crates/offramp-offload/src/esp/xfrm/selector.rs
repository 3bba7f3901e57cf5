//! Selectors in Linux' text format.

use super::fault::{Fault, XfrmError};
use super::words::Words;
use crate::esp::selector::{Prefix, Selector};
use crate::layout::{PROTOCOL_TCP, PROTOCOL_UDP};
use std::net::IpAddr;

/// Named protocols (IANA, as in `/etc/protocols`).
const PROTOCOLS: [(&str, u8); 13] = [
    ("icmp", 1),
    ("igmp", 2),
    ("ipencap", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("ipv6-icmp", 58),
    ("icmpv6", 58),
    ("ospf", 89),
    ("sctp", 132),
    ("udplite", 136),
];

/// Parses the words of a selector, in any order, up to the first word that belongs to no selector.
pub(super) fn parse_into(selector: &mut Selector, words: &mut Words) -> Result<(), XfrmError> {
    const NO_SENDER: &str = "the adapter does not see who sends; select by address, protocol and port";
    const NO_FIELD: &str = "selectors have addresses, a protocol, and ports of TCP and UDP";
    while let Some(word) = words.next() {
        match word.text {
            "src" => selector.source = prefix(words, "src")?,
            "dst" => selector.destination = prefix(words, "dst")?,
            "proto" => selector.protocol = protocol(words)?,
            "sport" => selector.source_ports = port(words, "sport")?,
            "dport" => selector.destination_ports = port(words, "dport")?,
            "uid" if words.number("uid", u64::MAX)? == 0 => {}
            "dev" if words.take("none") => {}
            "uid" => return Err(word.unsupported(NO_SENDER)),
            "dev" => return Err(word.unsupported("an adapter is one interface; leave it out")),
            "type" | "code" | "key" => return Err(word.unsupported(NO_FIELD)),
            _ => {
                words.put_back();
                break;
            }
        }
    }
    check_ports(selector, words.line())
}

/// Parses a network. Returns `None` for a word that means all IPv4 and IPv6 addresses.
fn prefix(words: &mut Words, after: &'static str) -> Result<Option<Prefix>, XfrmError> {
    let word = words.required("an address")?;
    if matches!(word.text, "any" | "all" | "default") {
        return Ok(None);
    }
    let (address, len) = word.prefixed();
    let address = address.parse::<IpAddr>().ok();
    let prefix = address.and_then(|address| match len {
        None => Some(Prefix::of(address)),
        Some(len) => Prefix::new(address, len.parse().ok()?),
    });
    let expected = "an address in figures, with or without the length of its prefix, such as 192.0.2.0/24";
    prefix.map(Some).ok_or(Fault::Value { after, expected }.at(word.line))
}

fn protocol(words: &mut Words) -> Result<Option<u8>, XfrmError> {
    let word = words.required("a protocol")?;
    if word.text == "any" {
        return Ok(None);
    }
    let named = PROTOCOLS.iter().find(|(name, _)| *name == word.text).map(|(_, number)| *number);
    let expected = "a protocol's number, or a name such as tcp, udp or icmp";
    let number = named.or_else(|| word.text.parse().ok());
    // Linux prints "any" as 0.
    let number = number.ok_or(Fault::Value { after: "proto", expected }.at(word.line))?;
    Ok(Some(number).filter(|&number| number != 0))
}

/// Parses a port. Returns `None` for port 0, which means all ports.
fn port(words: &mut Words, after: &'static str) -> Result<Option<std::ops::RangeInclusive<u16>>, XfrmError> {
    let port = words.number(after, u64::from(u16::MAX))? as u16;
    Ok((port != 0).then_some(port..=port))
}

fn check_ports(selector: &Selector, line: usize) -> Result<(), XfrmError> {
    let has_ports = selector.source_ports.is_some() || selector.destination_ports.is_some();
    if has_ports && !matches!(selector.protocol, Some(PROTOCOL_TCP | PROTOCOL_UDP)) {
        let expected = "tcp or udp where there is a sport or a dport";
        return Err(Fault::Value { after: "proto", expected }.at(line));
    }
    Ok(())
}

/// Returns the intersection of two selectors, or `None` if no packet can match the two selectors.
pub(super) fn both(one: &Selector, other: &Selector) -> Option<Selector> {
    let (one, other) = (one.clone(), other.clone());
    Some(Selector {
        source: narrower(one.source, other.source, Prefix::and)?,
        destination: narrower(one.destination, other.destination, Prefix::and)?,
        protocol: narrower(one.protocol, other.protocol, |a, b| (a == b).then_some(a))?,
        source_ports: narrower(one.source_ports, other.source_ports, |a, b| (a == b).then_some(a))?,
        destination_ports: narrower(one.destination_ports, other.destination_ports, |a, b| (a == b).then_some(a))?,
    })
}

/// Returns the intersection of two optional conditions. Returns `None` if no packet matches, and `Some(None)` if every
/// packet matches.
#[allow(clippy::option_option, reason = "one says whether there is a meeting, the other whether it is limited")]
fn narrower<T>(one: Option<T>, other: Option<T>, meet: impl Fn(T, T) -> Option<T>) -> Option<Option<T>> {
    match (one, other) {
        (Some(one), Some(other)) => meet(one, other).map(Some),
        (one, other) => Some(one.or(other)),
    }
}
