//! Security associations and policies as written by a user: in the daemon's file, on the command line, and over the
//! control socket. `docs/ipsec.md` describes the associations and policies.

use super::key::KeyText;
use super::unit;
use super::word::unknown;
use offramp_adapter::ipsec::{ETHERTYPE_ARP, NoMatch, PolicyAction, PolicyEntry, SaDirection};
use offramp_offload::esp::{
    DfRule, DscpRule, EcnRule, HOP_LIMIT_DEFAULT, Lifetime, Mode, Prefix, REPLAY_WINDOW_DEFAULT, REPLAY_WINDOW_MAX,
    SaConfig, Selector, Suite, Tunnel, UdpPorts,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Replay window, in packets, of an inbound association shared by several queue pairs. The wires and threads of several
/// queue pairs reorder more packets than the default window for one wire allows.
const REPLAY_WINDOW_SHARED: u32 = REPLAY_WINDOW_MAX;

/// The `EtherTypes` that `port.ipsec.other` may name (numbers of IANA and IEEE). The number 0 stands for frames with a
/// length field instead of an `EtherType`.
const OTHER: [(&str, u16); 6] =
    [("arp", ETHERTYPE_ARP), ("rarp", 0x8035), ("lldp", 0x88cc), ("eapol", 0x888e), ("ptp", 0x88f7), ("llc", 0)];
/// Smallest `EtherType`.
const ETHERTYPE_MIN: u16 = 0x0600;

/// The types not allowed in `port.ipsec.other`, because their frames could carry IP packets past the policy: IP itself,
/// VLAN tags, MPLS and `PPPoE`.
const CARRIES_IP: [u16; 10] = [0x0800, 0x86dd, 0x8100, 0x88a8, 0x9100, 0x9200, 0x8847, 0x8848, 0x8863, 0x8864];

/// Protocols with a name in selectors (IANA's protocol numbers).
const PROTOCOLS: [(&str, u8); 4] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58)];

/// The settings of an association: the keys of `[[port.sa]]` in the file, and the options of `offramp sa add`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaKeys {
    /// `in` or `out`.
    pub direction: Option<String>,
    /// The security parameters index.
    pub spi: Option<i64>,
    /// The cipher suite by name.
    pub suite: Option<String>,
    /// The file with the association's keys.
    pub key_file: Option<PathBuf>,
    /// Allows legacy suites, for old peers only.
    pub legacy: Option<bool>,
    /// `transport` or `tunnel`.
    pub mode: Option<String>,
    /// The source address of the tunnel's outer packets.
    pub source: Option<IpAddr>,
    /// The destination address of the tunnel's outer packets.
    pub destination: Option<IpAddr>,
    /// The hop limit of outer packets.
    pub hop_limit: Option<u8>,
    /// The rule for the outer packet's DF bit (don't fragment).
    pub df: Option<String>,
    /// The DSCP of outer packets; copied from the inner packet if absent.
    pub dscp: Option<i64>,
    /// The rule for the ECN bits of outer packets.
    pub ecn: Option<String>,
    /// Uses extended sequence numbers.
    pub esn: Option<bool>,
    /// The replay window in packets.
    pub replay_window: Option<u32>,
    /// The last sequence number that an earlier association with the key used. The new association continues after this
    /// number.
    pub sequence: Option<u64>,
    /// Encapsulation of ESP in UDP.
    pub udp: Option<UdpKeys>,
    /// The limits on the association's use.
    pub lifetime: Option<LifetimeKeys>,
    /// The selector of protected packets.
    pub selector: Option<SelectorKeys>,
}

/// The keys of `port.sa.udp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpKeys {
    /// The source port of the UDP header.
    pub source: Option<u16>,
    /// The destination port of the UDP header.
    pub destination: Option<u16>,
    /// The interval between NAT-keepalives, in seconds.
    pub keepalive_seconds: Option<u32>,
}

/// The keys of `port.sa.lifetime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LifetimeKeys(#[serde(with = "LifetimeFields")] pub Lifetime);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Lifetime", deny_unknown_fields)]
struct LifetimeFields {
    #[serde(default, deserialize_with = "unit::count")]
    soft_packets: Option<u64>,
    #[serde(default, deserialize_with = "unit::count")]
    hard_packets: Option<u64>,
    #[serde(default, deserialize_with = "unit::bytes")]
    soft_bytes: Option<u64>,
    #[serde(default, deserialize_with = "unit::bytes")]
    hard_bytes: Option<u64>,
    #[serde(default, deserialize_with = "unit::seconds")]
    soft_seconds: Option<u64>,
    #[serde(default, deserialize_with = "unit::seconds")]
    hard_seconds: Option<u64>,
}

/// The keys of `port.sa.selector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorKeys {
    /// The network of source addresses.
    pub source: Option<String>,
    /// The network of destination addresses.
    pub destination: Option<String>,
    /// The IP protocol, by name or number.
    pub protocol: Option<Word>,
    /// The source port, or a range of source ports.
    pub source_ports: Option<Word>,
    /// The destination port, or a range of destination ports.
    pub destination_ports: Option<Word>,
}

/// The keys of `[[port.policy]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyKeys {
    pub direction: Option<String>,
    pub action: Option<String>,
    pub selector: Option<SelectorKeys>,
}

/// A value that a user may write as text or as a number, such as a protocol or a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Word {
    /// A string, as written in quotes.
    Text(String),
    /// A number without quotes.
    Number(u16),
}

impl Word {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// The properties of a port that affect an association.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of queue pairs that share an association.
    pub queue_pairs: u16,
}

impl SaKeys {
    /// Parses the direction.
    ///
    /// # Errors
    /// Returns the fault and its remedy, in one line.
    pub fn direction(&self) -> Result<SaDirection, String> {
        let given = self.direction.as_deref().ok_or("has no direction; write direction = \"in\" or \"out\"")?;
        direction(given)
    }

    /// Parses the SPI. A later check refuses reserved SPIs.
    fn spi(&self) -> Result<u32, String> {
        let given = self.spi.ok_or("has no spi; write spi = 0x1000 or another number")?;
        u32::try_from(given).map_err(|_| format!("spi {given} is out of range; use 0x100 to 0xffffffff"))
    }

    /// Parses the cipher suite.
    fn suite(&self) -> Result<Suite, String> {
        let given = self.suite.as_deref().ok_or("has no suite; write suite = \"aes128gcm16\" or another one")?;
        Suite::by_name(given).map_err(|error| error.to_string())
    }

    /// Returns the configuration of an association with these settings and with the keys in `key`.
    ///
    /// # Errors
    /// Returns the first error, in one line. Values that depend on the suite are checked when the association is
    /// installed.
    pub fn config(&self, key: &KeyText, shape: Shape) -> Result<SaConfig, String> {
        let (spi, suite) = (self.spi()?, self.suite()?);
        let (encryption_key, integrity_key) = key.keys(suite)?;
        let default_window = if shape.queue_pairs > 1 { REPLAY_WINDOW_SHARED } else { REPLAY_WINDOW_DEFAULT };
        let mode = self.mode()?;
        // An inbound association accepts only packets to the receiver's address, which is the outer destination of a
        // tunnel.
        let destination = self.destination.filter(|_| self.direction().is_ok_and(|way| way == SaDirection::In));
        Ok(SaConfig {
            legacy: self.legacy.unwrap_or(false),
            mode,
            esn: self.esn.unwrap_or(false),
            replay_window: self.replay_window.unwrap_or(default_window),
            sequence: self.sequence.unwrap_or(0),
            udp: self.udp.map(UdpKeys::ports),
            keepalive_seconds: self.keepalive_seconds()?,
            lifetime: self.lifetime.unwrap_or_default().0,
            selector: self.selector.as_ref().map(SelectorKeys::selector).transpose()?.unwrap_or_default(),
            destination,
            ..SaConfig::new(spi, suite, encryption_key, integrity_key)
        })
    }

    fn mode(&self) -> Result<Mode, String> {
        match self.mode.as_deref() {
            None | Some("transport") => {
                let of_tunnels = [
                    ("hop_limit", self.hop_limit.is_some()),
                    ("df", self.df.is_some()),
                    ("dscp", self.dscp.is_some()),
                    ("ecn", self.ecn.is_some()),
                    ("source", self.source.is_some()),
                    ("destination", self.destination.is_some() && self.direction.as_deref() == Some("out")),
                ];
                match of_tunnels.iter().find(|(_, is_given)| *is_given) {
                    Some((key, _)) => Err(format!("{key} belongs to mode = \"tunnel\"; leave it out")),
                    None => Ok(Mode::Transport),
                }
            }
            Some("tunnel") => self.tunnel().map(Mode::Tunnel),
            Some(other) => Err(unknown("mode", other, ["transport", "tunnel"])),
        }
    }

    fn keepalive_seconds(&self) -> Result<Option<u32>, String> {
        let given = self.udp.and_then(|udp| udp.keepalive_seconds);
        if given.is_some() && self.direction.as_deref() == Some("in") {
            return Err("udp.keepalive_seconds belongs to direction = \"out\"; leave it out".to_owned());
        }
        Ok(given)
    }

    fn tunnel(&self) -> Result<Tunnel, String> {
        let (Some(source), Some(destination)) = (self.source, self.destination) else {
            return Err("a tunnel needs source and destination, the addresses of its ends".to_owned());
        };
        let df = match self.df.as_deref() {
            None | Some("copy") => DfRule::Copy,
            Some("set") => DfRule::Set,
            Some("clear") => DfRule::Clear,
            Some(other) => return Err(unknown("df", other, ["copy", "set", "clear"])),
        };
        let dscp = match self.dscp {
            None => DscpRule::Copy,
            Some(value) => {
                DscpRule::Set(u8::try_from(value).map_err(|_| format!("dscp {value} is out of range; use 0 to 63"))?)
            }
        };
        let ecn = match self.ecn.as_deref() {
            None | Some("normal") => EcnRule::Normal,
            Some("compatibility") => EcnRule::Compatibility,
            Some(other) => return Err(unknown("ecn", other, ["normal", "compatibility"])),
        };
        let hop_limit = self.hop_limit.unwrap_or(HOP_LIMIT_DEFAULT);
        Ok(Tunnel { source, destination, hop_limit, df, dscp, ecn })
    }

    /// Returns the settings without the name of the key file, because the process that receives the settings must not
    /// read the file.
    #[must_use]
    pub fn without_file(self) -> Self {
        Self { key_file: None, ..self }
    }

    /// Returns the configuration of the successor of `old`: the association with another SPI and other keys, and
    /// possibly another suite.
    ///
    /// # Errors
    /// Returns the fault and its remedy, in one line.
    pub fn next_of(&self, old: &SaConfig, key: &KeyText) -> Result<SaConfig, String> {
        let only = Self {
            spi: self.spi,
            suite: self.suite.clone(),
            key_file: self.key_file.clone(),
            legacy: self.legacy,
            ..Self::default()
        };
        if *self != only {
            return Err("a rekey takes spi, suite, legacy and key_file; everything else stays".to_owned());
        }
        let suite = if self.suite.is_some() { self.suite()? } else { old.suite };
        let (encryption_key, integrity_key) = key.keys(suite)?;
        if (&encryption_key, &integrity_key) == (&old.encryption_key, &old.integrity_key) {
            return Err("the new keys are the old ones; make new ones at random".to_owned());
        }
        let legacy = self.legacy.unwrap_or(old.legacy);
        Ok(SaConfig { spi: self.spi()?, suite, encryption_key, integrity_key, legacy, sequence: 0, ..old.clone() })
    }
}

impl UdpKeys {
    fn ports(self) -> UdpPorts {
        let UdpPorts { source, destination } = UdpPorts::default();
        UdpPorts { source: self.source.unwrap_or(source), destination: self.destination.unwrap_or(destination) }
    }
}

impl SelectorKeys {
    fn selector(&self) -> Result<Selector, String> {
        Ok(Selector {
            source: self.source.as_deref().map(network).transpose()?,
            destination: self.destination.as_deref().map(network).transpose()?,
            protocol: self.protocol.as_ref().map(|word| protocol(&word.text())).transpose()?,
            source_ports: self.source_ports.as_ref().map(|word| ports(&word.text())).transpose()?,
            destination_ports: self.destination_ports.as_ref().map(|word| ports(&word.text())).transpose()?,
        })
    }
}

/// Parses `in` or `out`.
///
/// # Errors
/// Returns the fault and its remedy, in one line.
pub fn direction(text: &str) -> Result<SaDirection, String> {
    match text {
        "in" => Ok(SaDirection::In),
        "out" => Ok(SaDirection::Out),
        other => Err(unknown("direction", other, ["in", "out"])),
    }
}

fn network(text: &str) -> Result<Prefix, String> {
    prefix(text).map_err(|wrong| format!("selector {wrong}"))
}

/// Parses an address, or a network.
///
/// # Errors
/// Returns the fault and its remedy, in one line.
pub fn prefix(text: &str) -> Result<Prefix, String> {
    let wrong = || format!("\"{text}\" is no network; write an address, or ADDRESS/BITS");
    let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
    let address = address.parse().map_err(|_| wrong())?;
    match len {
        None => Ok(Prefix::of(address)),
        Some(len) => len.parse().ok().and_then(|len| Prefix::new(address, len)).ok_or_else(wrong),
    }
}

fn protocol(text: &str) -> Result<u8, String> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    let number = named.or_else(|| text.parse().ok());
    number.ok_or_else(|| unknown("protocol", text, PROTOCOLS.map(|(name, _)| name)) + ", or a number")
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("selector ports \"{text}\": write a port, or FIRST-LAST");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first <= last { Ok(first..=last) } else { Err(wrong()) }
}

impl PolicyKeys {
    /// Parses the policy entry.
    ///
    /// # Errors
    /// Returns the first error, in one line.
    pub fn entry(&self) -> Result<PolicyEntry, String> {
        let given = self.direction.as_deref().ok_or("has no direction; write direction = \"in\" or \"out\"")?;
        let action = match self.action.as_deref() {
            Some("protect") => PolicyAction::Protect,
            Some("bypass") => PolicyAction::Bypass,
            Some("discard") => PolicyAction::Discard,
            Some(other) => return Err(unknown("action", other, ["protect", "bypass", "discard"])),
            None => return Err("has no action; write action = \"protect\", \"bypass\" or \"discard\"".to_owned()),
        };
        let selector = self.selector.as_ref().map(SelectorKeys::selector).transpose()?.unwrap_or_default();
        Ok(PolicyEntry { direction: direction(given)?, action, selector })
    }
}

/// Parses an `EtherType` of `port.ipsec.other`.
///
/// # Errors
/// Returns the fault and its remedy, in one line.
pub fn other(word: &Word) -> Result<u16, String> {
    match word {
        Word::Text(text) => {
            let named = OTHER.iter().find(|(name, _)| name == text).map(|(_, number)| *number);
            named.ok_or_else(|| unknown("type", text, OTHER.map(|(name, _)| name)) + ", or a number")
        }
        Word::Number(number) if CARRIES_IP.contains(number) => Err(format!(
            "{number:#06x} carries IP past the policy; leave it out, or write transmit or receive = \"bypass\""
        )),
        Word::Number(number) if *number < ETHERTYPE_MIN => {
            Err(format!("{number:#06x} is no EtherType; use {ETHERTYPE_MIN:#06x} to 0xffff"))
        }
        Word::Number(number) => Ok(*number),
    }
}

/// Parses `bypass` or `discard`.
///
/// # Errors
/// Returns the fault and its remedy, in one line.
pub fn no_match(text: &str) -> Result<NoMatch, String> {
    match text {
        "bypass" => Ok(NoMatch::Bypass),
        "discard" => Ok(NoMatch::Discard),
        other => Err(unknown("policy", other, ["bypass", "discard"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> SaKeys {
        toml::from_str(text).unwrap()
    }

    fn text(key: &str) -> KeyText {
        KeyText::from_reader(key.as_bytes()).unwrap()
    }

    const KEY: &str =
        "000102030405060708090a0b0c0d0e0f 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const GCM_KEY: &str = "# of the cipher\n0x000102030405060708090a0b0c0d0e0f10111213\n";

    #[test]
    fn every_key_of_an_association_arrives() {
        let written = keys(
            "direction = \"in\"\nspi = 0x1000\nsuite = \"aes128-sha256\"\nmode = \"tunnel\"\nsource = \"192.0.2.1\"\n\
             destination = \"192.0.2.2\"\nhop_limit = 9\ndf = \"set\"\ndscp = 46\necn = \"compatibility\"\nesn = true\n\
             replay_window = 128\nsequence = 7\nudp = { source = 4501 }\n\
             lifetime = { soft_seconds = 10, hard_bytes = 5 }\nselector = { source = \"10.0.0.0/8\", protocol = \"tcp\", \
             destination_ports = \"80-90\" }\n",
        );
        let config = written.config(&text(KEY), Shape { queue_pairs: 1 }).unwrap();
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        let tunnel = Tunnel {
            hop_limit: 9,
            df: DfRule::Set,
            dscp: DscpRule::Set(46),
            ecn: EcnRule::Compatibility,
            ..Tunnel::new(address("192.0.2.1"), address("192.0.2.2"))
        };
        assert_eq!((config.mode, config.esn, config.replay_window), (Mode::Tunnel(tunnel), true, 128));
        assert_eq!((config.sequence, config.destination), (7, Some(address("192.0.2.2"))));
        assert_eq!(config.udp, Some(UdpPorts { source: 4501, destination: 4500 }));
        let lifetime = Lifetime { soft_seconds: Some(10), hard_bytes: Some(5), ..Lifetime::default() };
        let selector = Selector {
            source: Prefix::new(address("10.0.0.0"), 8),
            protocol: Some(6),
            destination_ports: Some(80..=90),
            ..Selector::default()
        };
        assert_eq!((config.lifetime, config.selector), (lifetime, selector));
        assert_eq!((config.encryption_key.len(), config.integrity_key.len()), (16, 32));
    }

    #[test]
    fn several_queue_pairs_get_a_wider_window() {
        let written = keys("direction = \"in\"\nspi = 256\nsuite = \"aes128gcm16\"\n");
        let window = |queue_pairs| written.config(&text(GCM_KEY), Shape { queue_pairs }).unwrap().replay_window;
        assert_eq!((window(1), window(2)), (64, 65_536));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let base = "direction = \"out\"\nspi = 0x1000\nsuite = \"aes128gcm16\"\n";
        for (changed, said) in [
            ("spi = 0x1000\nsuite = \"aes128gcm16\"\n".to_owned(), "direction"),
            (base.replace("out", "up"), "in, out"),
            (base.replace("0x1000", "-1"), "out of range"),
            (base.replace("aes128gcm16", "rot13"), "aes128gcm16"),
            (format!("{base}mode = \"tunnel\"\n"), "source and destination"),
            (format!("{base}mode = \"pipe\"\n"), "transport, tunnel"),
            (format!("{base}df = \"set\"\n"), "belongs to mode"),
            (base.replace("out", "in") + "udp.keepalive_seconds = 20\n", "belongs to direction"),
            (format!("{base}selector = {{ source = \"10.0.0.0/33\" }}\n"), "no network"),
            (format!("{base}selector = {{ source_ports = \"9-3\" }}\n"), "FIRST-LAST"),
            (format!("{base}selector = {{ protocol = \"tpc\" }}\n"), "did you mean \"tcp\""),
        ] {
            let written = keys(&changed);
            let error = written.config(&text(GCM_KEY), Shape { queue_pairs: 1 }).err();
            let error = written.direction().err().or(error).expect(&changed);
            assert!(error.contains(said) && !error.contains('\n'), "{changed}: {error}");
        }
        let error = keys(base).config(&text(KEY), Shape { queue_pairs: 1 }).unwrap_err();
        assert!(error.contains("takes 1 keys") && !error.contains("0001"), "{error}");
    }

    #[test]
    fn a_rekey_changes_spi_keys_and_suite_and_nothing_else() {
        let first = "direction = \"out\"\nspi = 256\nsuite = \"aes128gcm16\"\nesn = true\nsequence = 9\n";
        let old = keys(first).config(&text(GCM_KEY), Shape { queue_pairs: 1 }).unwrap();
        let next = keys("spi = 257\nsuite = \"aes128-sha256\"\n").next_of(&old, &text(KEY)).unwrap();
        assert_eq!((next.spi, next.esn, next.sequence, next.suite.name()), (257, true, 0, "aes128-sha256"));
        assert!(keys("spi = 257\n").next_of(&old, &text(GCM_KEY)).unwrap_err().contains("old ones"));
        assert!(keys("spi = 257\nesn = false\n").next_of(&old, &text(KEY)).unwrap_err().contains("everything else"));
    }
}
