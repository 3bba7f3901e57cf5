//! States, Linux' name for security associations.

use super::fault::{Fault, Shown, XfrmError};
use super::meaning::Direction;
use super::selector;
use super::words::{HIDDEN_KEY, Word, Words};
use crate::esp::config::{Mode, SaConfig};
use crate::esp::keys::SecretKey;
use crate::esp::lifetime::Lifetime;
use crate::esp::selector::Selector;
use crate::esp::suite::{AesKey, Hmac, SALT_LEN, Suite};
use crate::esp::tunnel::Tunnel;
use crate::esp::udp::UdpPorts;
use std::net::IpAddr;
use strum::VariantArray;

/// Length of the check value of all supported AEADs, bits.
const AEAD_ICV_BITS: u64 = 128;
/// Linux' maximum replay window (`XFRMA_REPLAY_ESN_MAX`). [`SaConfig::validate`] checks the adapter's limit.
const WINDOW_MAX: u64 = 4096;

const KNOWN: &str = "src, dst, proto, spi, reqid, mode, enc, auth, auth-trunc, aead, encap, sel, limit, flag, \
                     extra-flag, replay-window, replay-seq, replay-seq-hi, replay-oseq, replay-oseq-hi, offload and dir";
const NO_MARK: &str =
    "the adapter sees no marks and no interfaces of the kernel; tell states apart by address and reqid";
const NO_USE: &str = "a lifetime counts from the beginning of an association, not from its first use; take time-soft and \
                      time-hard";

/// A state, with the fields of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XfrmState {
    /// Number of the line at which the state begins in the parsed text, counted from 1.
    pub line: usize,
    /// Source address of the packets.
    pub source: IpAddr,
    /// Destination address of the packets.
    pub destination: IpAddr,
    /// Number with which a policy's template names the state (reqid). 0 means no number.
    pub reqid: u32,
    /// Direction of the packets on the machine to which the state belongs, if the text contains a direction (`dir`,
    /// `offload`).
    pub direction: Option<Direction>,
    /// Flags, with different meanings for sender and receiver.
    pub flags: StateFlags,
    /// Last sequence number sent (`replay-oseq`).
    pub sent: u64,
    /// Highest sequence number received (`replay-seq`).
    pub received: u64,
    /// All other fields of the state. `replay_window` has the value of the text, 0 for no replay check. `sequence` is
    /// 0, `destination` is `None`, and a tunnel has the default rules.
    pub config: SaConfig,
}

/// Flags of a state.
#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other, as Linux' are")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFlags {
    /// `noecn`: ECN is not carried through the tunnel.
    pub no_ecn: bool,
    /// `decap-dscp`: the receiver copies the outer DSCP to the inner packet.
    pub decap_dscp: bool,
    /// `nopmtudisc`: the sender leaves DF clear on the outer packet.
    pub no_pmtu_discovery: bool,
    /// `dont-encap-dscp`: the sender leaves the outer DSCP 0.
    pub no_dscp: bool,
    /// `tfcpad`: the sender pads packets to this length in bytes, 0 for no padding.
    pub tfc_padding_len: u32,
}

/// The origin of the parsed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The words are a command for `ip`.
    Command,
    /// The words are output of `ip`.
    Output,
}

/// The fields of a state read so far.
#[derive(Default)]
struct Draft {
    line: usize,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    has_protocol: bool,
    spi: Option<u32>,
    reqid: u32,
    is_tunnel: bool,
    direction: Option<Direction>,
    flags: StateFlags,
    esn: bool,
    window: u32,
    /// Upper and lower half of the last sent sequence number.
    sent: (u32, u32),
    received: (u32, u32),
    cipher: Option<(Cipher, SecretKey)>,
    integrity: Option<(Hmac, SecretKey)>,
    aead: Option<(Aead, SecretKey)>,
    udp: Option<UdpPorts>,
    lifetime: Lifetime,
    selector: Selector,
}

#[derive(Clone, Copy)]
enum Cipher {
    AesCbc,
    TripleDesCbc,
    Null,
}

#[derive(Clone, Copy)]
enum Aead {
    Gcm,
    Gmac,
    ChaCha20Poly1305,
}

/// Parses the words after `ip xfrm state add`, or an entry of the output.
pub(super) fn parse(words: &mut Words, form: Form) -> Result<XfrmState, XfrmError> {
    let mut draft = Draft { line: words.line(), ..Draft::default() };
    while let Some(word) = words.next() {
        draft.take(word, words, form)?;
    }
    draft.finish()
}

impl Draft {
    fn take(&mut self, word: Word, words: &mut Words, form: Form) -> Result<(), XfrmError> {
        match word.text {
            "src" => self.source = Some(words.address("src")?),
            "dst" => self.destination = Some(words.address("dst")?),
            "proto" => self.take_protocol(words)?,
            "spi" => self.spi = Some(words.number32("spi")?),
            "reqid" => self.reqid = words.number32("reqid")?,
            "mode" => self.is_tunnel = is_tunnel(words)?,
            "enc" => self.take_cipher(word, words, form)?,
            "auth" | "auth-trunc" => self.take_integrity(word, words, form)?,
            "aead" => self.take_aead(word, words, form)?,
            "encap" => self.udp = Some(parse_encapsulation(words, form)?),
            "sel" => selector::parse_into(&mut self.selector, words)?,
            "flag" | "extra-flag" | "extra_flag" => self.take_flags(word, words, form)?,
            "limit" => take_limit(&mut self.lifetime, words)?,
            "dir" => self.direction = Some(words.one_of("in and out")?),
            "offload" => self.take_offload(words)?,
            "tfcpad" => self.flags.tfc_padding_len = words.number32("tfcpad")?,
            "seq" => drop(words.number32("seq")?),
            "mark" | "output-mark" | "if_id" | "pcpu-num" => return Err(word.unsupported(NO_MARK)),
            "comp" => return Err(word.unsupported("packets are not compressed")),
            "coa" => return Err(word.unsupported("Mobile IPv6 is not done here")),
            "ctx" | "security" => return Err(word.unsupported("the adapter knows no security contexts")),
            _ if word.text.starts_with("replay-") => self.take_replay(word, words)?,
            _ if form == Form::Output => self.take_output(word, words)?,
            _ => return Err(word.unknown(KNOWN)),
        }
        Ok(())
    }

    /// Parses words that occur only in output.
    fn take_output(&mut self, word: Word, words: &mut Words) -> Result<(), XfrmError> {
        match word.text {
            "anti-replay" => self.take_context(words)?,
            "lifetime" if words.take("config:") => take_lifetime(&mut self.lifetime, words)?,
            "lifetime" => words.skip_lines(2),
            "stats:" => words.skip_lines(1),
            "lastused" => words.skip_lines(0),
            "crypto" => {
                // An example is "crypto offload parameters: dev eth0 dir out".
                words.literal("offload parameters:")?;
                self.take_offload(words)?;
            }
            _ => return Err(word.unknown(KNOWN)),
        }
        Ok(())
    }

    fn take_protocol(&mut self, words: &mut Words) -> Result<(), XfrmError> {
        let word = words.required("a protocol")?;
        self.has_protocol = true;
        match word.text {
            "esp" => Ok(()),
            "ah" => {
                Err(word.unsupported("only esp is; esp with rfc4543(gcm(aes)) or ecb(cipher_null) is integrity alone"))
            }
            "comp" | "route2" | "hao" | "ipsec-any" => Err(word.unsupported("only esp is")),
            _ => Err(word.unknown("esp")),
        }
    }

    fn take_cipher(&mut self, kind: Word, words: &mut Words, form: Form) -> Result<(), XfrmError> {
        let name = words.required("the name of a cipher")?;
        let cipher = match name.text {
            "cbc(aes)" | "aes" => Cipher::AesCbc,
            "cbc(des3_ede)" | "des3_ede" => Cipher::TripleDesCbc,
            "ecb(cipher_null)" | "cipher_null" => Cipher::Null,
            _ => return Err(name.unknown("enc cbc(aes), cbc(des3_ede) and ecb(cipher_null)")),
        };
        // The null cipher has no key, and the output prints nothing in place of the key.
        let has_key = form == Form::Command || !words.is_at_line_end();
        let key = if has_key { key(words, form)? } else { SecretKey::none() };
        if self.cipher.replace((cipher, key)).is_some() || self.aead.is_some() {
            return Err(kind.unsupported("a state has one cipher"));
        }
        Ok(())
    }

    fn take_integrity(&mut self, kind: Word, words: &mut Words, form: Form) -> Result<(), XfrmError> {
        let name = words.required("the name of a hash")?;
        // Lengths of the check value in bits: Linux' default without auth-trunc (xfrm_algo.c), and the length in the
        // adapter's suites.
        let (hmac, default_bits, suite_bits) = match name.text {
            "hmac(sha1)" | "sha1" => (Hmac::Sha1, 96, 96),
            "hmac(sha256)" | "sha256" => (Hmac::Sha256, 96, 128),
            "hmac(sha384)" | "sha384" => (Hmac::Sha384, 192, 192),
            "hmac(sha512)" | "sha512" => (Hmac::Sha512, 256, 256),
            _ => return Err(name.unknown("auth-trunc hmac(sha1), hmac(sha256), hmac(sha384) and hmac(sha512)")),
        };
        let key = key(words, form)?;
        let bits =
            if kind.text == "auth" { default_bits } else { words.number(kind_name(kind), u64::from(u32::MAX))? };
        if bits != suite_bits {
            return Err(name.unsupported(truncation(hmac)));
        }
        if self.integrity.replace((hmac, key)).is_some() || self.aead.is_some() {
            return Err(kind.unsupported("a state has one integrity check"));
        }
        Ok(())
    }

    fn take_aead(&mut self, kind: Word, words: &mut Words, form: Form) -> Result<(), XfrmError> {
        let name = words.required("the name of an AEAD")?;
        let aead = match name.text {
            "rfc4106(gcm(aes))" => Aead::Gcm,
            "rfc4543(gcm(aes))" => Aead::Gmac,
            "rfc7539esp(chacha20,poly1305)" => Aead::ChaCha20Poly1305,
            _ => {
                let known = "aead rfc4106(gcm(aes)), rfc4543(gcm(aes)) and rfc7539esp(chacha20,poly1305)";
                return Err(name.unknown(known));
            }
        };
        let key = key(words, form)?;
        if words.number("the key of aead", u64::from(u32::MAX))? != AEAD_ICV_BITS {
            return Err(name.unsupported("its check value must have 128 bits: aead NAME KEY 128"));
        }
        if self.aead.replace((aead, key)).is_some() || self.cipher.is_some() || self.integrity.is_some() {
            return Err(kind.unsupported("a state has one cipher, and an aead no other check"));
        }
        Ok(())
    }

    fn take_flags(&mut self, kind: Word, words: &mut Words, form: Form) -> Result<(), XfrmError> {
        const FLAGS: &str = "noecn, decap-dscp, nopmtudisc, af-unspec, esn and the extra-flag dont-encap-dscp";
        let mut is_any = false;
        while let Some(word) = words.peek() {
            // After the flags, `ip -s` prints the extra flags. iproute2 6.1 omits the space before the extra flags:
            // "esnextra_flag".
            let name = word.text.strip_suffix("extra_flag").unwrap_or(word.text);
            match name {
                "noecn" => self.flags.no_ecn = true,
                "decap-dscp" => self.flags.decap_dscp = true,
                "nopmtudisc" => self.flags.no_pmtu_discovery = true,
                "dont-encap-dscp" => self.flags.no_dscp = true,
                "esn" => self.esn = true,
                // Every tunnel of the adapter carries both IP versions.
                "af-unspec" | "" => {}
                "oseq-may-wrap" => return Err(word.unsupported("a sequence number is used once; take esn")),
                "wildrecv" | "icmp" | "align4" => {
                    return Err(word.unsupported("leave it out; it is for Mobile IPv6, ICMP errors and AH"));
                }
                // `ip -s` prints the same flags as bits, for example "(0x00000000)".
                text if form == Form::Output && text.starts_with('(') => {}
                _ if is_any || form == Form::Output && words.is_at_line_end() => break,
                _ => return Err(word.unknown(FLAGS)),
            }
            is_any = true;
            words.next();
        }
        if is_any || form == Form::Output {
            return Ok(());
        }
        Err(Fault::Missing(FLAGS).at(kind.line))
    }

    fn take_replay(&mut self, word: Word, words: &mut Words) -> Result<(), XfrmError> {
        match word.text {
            "replay-window" => self.window = words.number("replay-window", WINDOW_MAX)? as u32,
            "replay-seq" => self.received.1 = words.number32("replay-seq")?,
            "replay-seq-hi" => self.received.0 = words.number32("replay-seq-hi")?,
            "replay-oseq" => self.sent.1 = words.number32("replay-oseq")?,
            "replay-oseq-hi" => self.sent.0 = words.number32("replay-oseq-hi")?,
            _ => return Err(word.unknown(KNOWN)),
        }
        Ok(())
    }

    /// Parses the counters in the output: `anti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000`. With `esn`, the
    /// counters span several lines.
    fn take_context(&mut self, words: &mut Words) -> Result<(), XfrmError> {
        let is_extended = words.take("esn");
        words.literal("context:")?;
        if is_extended {
            self.received.0 = words.labelled("seq-hi")?;
        }
        self.received.1 = words.labelled("seq")?;
        if is_extended {
            self.sent.0 = words.labelled("oseq-hi")?;
        }
        self.sent.1 = words.labelled("oseq")?;
        if !is_extended {
            return words.labelled("bitmap").map(drop);
        }
        words.literal("replay_window")?;
        self.window = words.number("replay_window", WINDOW_MAX)? as u32;
        words.literal("bitmap-length")?;
        let bitmap_words = words.number("bitmap-length", WINDOW_MAX / u64::from(u32::BITS))?;
        for _ in 0..bitmap_words {
            words.required("the rest of the bitmap")?;
        }
        Ok(())
    }

    /// Parses `dev eth0 dir out`, with `mode crypto` or `packet` before or after. The mode does not change the packets
    /// on the wire, so the parser ignores the mode.
    fn take_offload(&mut self, words: &mut Words) -> Result<(), XfrmError> {
        loop {
            if words.take("packet") || words.take("crypto") {
            } else if words.take("dev") {
                words.required("a device")?;
            } else if words.take("mode") {
                words.required("crypto or packet")?;
            } else if words.take("dir") {
                self.direction = Some(words.one_of("in and out")?);
            } else {
                return Ok(());
            }
        }
    }

    fn finish(self) -> Result<XfrmState, XfrmError> {
        let line = self.line;
        let missing = |what| Fault::Missing(what).at(line);
        let spi = self.spi.ok_or(missing("the spi"))?;
        let source = self.source.ok_or(missing("the address after src"))?;
        let destination = self.destination.ok_or(missing("the address after dst"))?;
        if !self.has_protocol {
            return Err(missing("proto esp"));
        }
        if source.is_ipv4() != destination.is_ipv4() {
            let expected = "an address of the same IP version as src";
            return Err(Fault::Value { after: "dst", expected }.at(line));
        }
        let (suite, encryption_key, integrity_key) = suite(self.aead, self.cipher, self.integrity, line)?;
        let mut config = SaConfig::new(spi, suite, encryption_key, integrity_key);
        if self.is_tunnel {
            config.mode = Mode::Tunnel(Tunnel::new(source, destination));
        }
        config.esn = self.esn;
        config.replay_window = self.window;
        config.udp = self.udp;
        config.lifetime = self.lifetime;
        config.selector = self.selector;
        let whole = |(high, low): (u32, u32)| u64::from(high) << u32::BITS | u64::from(low);
        Ok(XfrmState {
            line,
            source,
            destination,
            reqid: self.reqid,
            direction: self.direction,
            flags: self.flags,
            sent: whole(self.sent),
            received: whole(self.received),
            config,
        })
    }
}

fn kind_name(kind: Word) -> &'static str {
    if kind.text == "auth" { "the key of auth" } else { "the key of auth-trunc" }
}

/// Returns the reason to refuse a check value with another length than in the suite.
fn truncation(hmac: Hmac) -> &'static str {
    match hmac {
        Hmac::Sha1 => "its check value must have 96 bits (RFC 2404): auth-trunc hmac(sha1) KEY 96",
        Hmac::Sha256 => {
            "its check value must have 128 bits (RFC 4868), and Linux truncates it to 96 by default: \
             at both ends auth-trunc hmac(sha256) KEY 128"
        }
        Hmac::Sha384 => "its check value must have 192 bits (RFC 4868): auth-trunc hmac(sha384) KEY 192",
        Hmac::Sha512 => "its check value must have 256 bits (RFC 4868): auth-trunc hmac(sha512) KEY 256",
    }
}

/// Parses a key: hexadecimal digits after `0x`, or, in a command, the bytes of any other text.
fn key(words: &mut Words, form: Form) -> Result<SecretKey, XfrmError> {
    let word = words.required("the key")?;
    if word.text == HIDDEN_KEY {
        return Err(word.unsupported("the keys are hidden; run \"ip xfrm state\" as root and without nokeys"));
    }
    if form == Form::Command && !word.text.starts_with("0x") {
        return Ok(SecretKey::new(word.text.as_bytes().to_vec()));
    }
    let key = SecretKey::from_hex(word.text).map_err(|why| Fault::Key(why).at(word.line))?;
    if words.peek().is_some_and(|word| word.text.starts_with('(')) {
        // Skip the key length, for example "(160 bits)".
        words.next();
        words.required("bits)")?;
    }
    Ok(key)
}

fn suite(
    aead: Option<(Aead, SecretKey)>,
    cipher: Option<(Cipher, SecretKey)>,
    integrity: Option<(Hmac, SecretKey)>,
    line: usize,
) -> Result<(Suite, SecretKey, SecretKey), XfrmError> {
    let (salted, plain) = (true, false);
    if let Some((aead, key)) = aead {
        let implicit_iv = false;
        let suite = match aead {
            Aead::Gcm => Suite::AesGcm16 { key: aes_key(&key, salted, line)?, implicit_iv },
            Aead::Gmac => Suite::AesGmac { key: aes_key(&key, salted, line)? },
            Aead::ChaCha20Poly1305 => Suite::ChaCha20Poly1305 { implicit_iv },
        };
        return Ok((suite, key, SecretKey::none()));
    }
    let missing = |what| Fault::Missing(what).at(line);
    let (cipher, key) = cipher.ok_or(missing("enc or aead"))?;
    let (hmac, integrity_key) =
        integrity.ok_or(missing("auth-trunc (encryption without an integrity check is not offered, RFC 8221 4)"))?;
    let suite = match (cipher, hmac) {
        (Cipher::AesCbc, hmac) => Suite::AesCbc { key: aes_key(&key, plain, line)?, hmac },
        (Cipher::Null, hmac) => Suite::Null { hmac },
        (Cipher::TripleDesCbc, Hmac::Sha1) => Suite::TripleDesCbc,
        (Cipher::TripleDesCbc, _) => {
            let expected = "hmac(sha1) beside cbc(des3_ede)";
            return Err(Fault::Value { after: "auth-trunc", expected }.at(line));
        }
    };
    Ok((suite, key, integrity_key))
}

/// Returns the AES variant for the length of a key.
fn aes_key(key: &SecretKey, has_salt: bool, line: usize) -> Result<AesKey, XfrmError> {
    let (salt_len, after, expected) = if has_salt {
        (SALT_LEN, "aead", "a key of 20, 28 or 36 bytes (AES and 4 bytes of salt)")
    } else {
        (0, "enc cbc(aes)", "a key of 16, 24 or 32 bytes")
    };
    let aes = AesKey::VARIANTS.iter().find(|aes| aes.len() + salt_len == key.len());
    aes.copied().ok_or(Fault::Value { after, expected }.at(line))
}

/// Parses `transport` or `tunnel`, or a prefix accepted by `ip`. Returns true for `tunnel`.
pub(super) fn is_tunnel(words: &mut Words) -> Result<bool, XfrmError> {
    const KNOWN: &str = "transport and tunnel";
    let word = words.required(KNOWN)?;
    match word.text {
        text if "transport".starts_with(text) => Ok(false),
        text if "tunnel".starts_with(text) => Ok(true),
        "beet" | "ro" | "in_trigger" | "iptfs" => Err(word.unsupported("modes are transport and tunnel")),
        _ => Err(word.unknown(KNOWN)),
    }
}

fn parse_encapsulation(words: &mut Words, form: Form) -> Result<UdpPorts, XfrmError> {
    if form == Form::Output {
        words.literal("type")?;
    }
    let kind = words.required("espinudp")?;
    match kind.text {
        "espinudp" => {}
        "espinudp-nonike" | "espintcp" => return Err(kind.unsupported("only espinudp is (RFC 3948)")),
        _ => return Err(kind.unknown("espinudp")),
    }
    if form == Form::Output {
        words.literal("sport")?;
    }
    let source = words.number("the source port of encap", u64::from(u16::MAX))? as u16;
    if form == Form::Output {
        words.literal("dport")?;
    }
    let destination = words.number("the destination port of encap", u64::from(u16::MAX))? as u16;
    if form == Form::Output {
        words.literal("addr")?;
    }
    // Skip the original address. Linux stores this address and does not use it.
    words.address("the ports of encap")?;
    Ok(UdpPorts { source, destination })
}

/// Parses one limit of a command.
pub(super) fn take_limit(lifetime: &mut Lifetime, words: &mut Words) -> Result<(), XfrmError> {
    let kind = words.required("the kind of the limit")?;
    let after = "limit";
    let limit = words.number(after, u64::MAX)?;
    // In Linux, the maximum value means "no limit".
    let some = Some(limit).filter(|&limit| limit != u64::MAX);
    match kind.text {
        "byte-soft" => lifetime.soft_bytes = some,
        "byte-hard" => lifetime.hard_bytes = some,
        "packet-soft" => lifetime.soft_packets = some,
        "packet-hard" => lifetime.hard_packets = some,
        "time-soft" => lifetime.soft_seconds = seconds(limit),
        "time-hard" => lifetime.hard_seconds = seconds(limit),
        "time-use-soft" | "time-use-hard" if seconds(limit).is_none() => {}
        "time-use-soft" | "time-use-hard" => return Err(kind.unsupported(NO_USE)),
        _ => return Err(kind.unknown("byte-soft, byte-hard, packet-soft, packet-hard, time-soft and time-hard")),
    }
    Ok(())
}

/// Parses the limits printed by `ip -s`.
pub(super) fn take_lifetime(lifetime: &mut Lifetime, words: &mut Words) -> Result<(), XfrmError> {
    (lifetime.soft_bytes, lifetime.hard_bytes) = limits(words)?;
    (lifetime.soft_packets, lifetime.hard_packets) = limits(words)?;
    (lifetime.soft_seconds, lifetime.hard_seconds) = expiry(words, "expire add: soft")?;
    let line = words.line();
    if expiry(words, "expire use: soft")? != (None, None) {
        return Err(Fault::Unsupported { word: Shown(Some("expire use".to_owned())), why: NO_USE }.at(line));
    }
    Ok(())
}

/// Parses `expire add: soft 3600(sec), hard 7200(sec)`.
fn expiry(words: &mut Words, start: &'static str) -> Result<(Option<u64>, Option<u64>), XfrmError> {
    words.literal(start)?;
    let soft = words.number("soft", u64::MAX)?;
    words.literal("hard")?;
    Ok((seconds(soft), seconds(words.number("hard", u64::MAX)?)))
}

/// Returns a time limit. In Linux, 0 means "no limit".
fn seconds(limit: u64) -> Option<u64> {
    Some(limit).filter(|&limit| limit != 0 && limit != u64::MAX)
}

/// Parses `limit: soft (INF)(bytes), hard 2000000(bytes)`.
fn limits(words: &mut Words) -> Result<(Option<u64>, Option<u64>), XfrmError> {
    words.literal("limit: soft")?;
    let soft = limit(words, "soft")?;
    words.literal("hard")?;
    Ok((soft, limit(words, "hard")?))
}

fn limit(words: &mut Words, after: &'static str) -> Result<Option<u64>, XfrmError> {
    if words.peek().is_some_and(|word| word.text.starts_with("(INF)")) {
        words.next();
        return Ok(None);
    }
    words.number(after, u64::MAX).map(Some)
}
