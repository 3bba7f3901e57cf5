//! Policies, which define the protection that packets require.

use super::fault::{Fault, XfrmError};
use super::selector;
use super::state::{is_tunnel, take_lifetime, take_limit};
use super::words::{Word, Words};
use crate::esp::lifetime::Lifetime;
use crate::esp::selector::Selector;
use std::net::IpAddr;

const KNOWN: &str = "src, dst, proto, sport, dport, dir, action, priority, index, ptype, flag and tmpl";
const NO_MARK: &str = "the adapter sees no marks and no interfaces of the kernel; select by address, protocol and port";
const NO_LIFETIME: &str = "policies have no lifetimes here; remove them from the policy";

/// The direction of a policy's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyDirection {
    /// Packets to this machine.
    In,
    /// Packets from this machine.
    Out,
    /// Forwarded packets.
    #[strum(serialize = "fwd")]
    Forward,
}

/// The action of a policy on its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyAction {
    /// The packets pass: protected if the policy has a template, else unencrypted.
    Allow,
    /// The packets are dropped.
    Block,
}

/// A policy, with the fields of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XfrmPolicy {
    /// Number of the line at which the policy begins in the parsed text, counted from 1.
    pub line: usize,
    /// Direction of the packets.
    pub direction: PolicyDirection,
    /// Action on the packets.
    pub action: PolicyAction,
    /// Selector of the packets.
    pub selector: Selector,
    /// Priority. If several policies match, the smallest number wins.
    pub priority: u32,
    /// Required protection, if any.
    pub template: Option<Template>,
}

/// A policy's requirements for a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// Source address of the state. An unspecified address matches any state.
    pub source: Option<IpAddr>,
    /// Destination address of the state. An unspecified address matches any state.
    pub destination: Option<IpAddr>,
    /// SPI of the state, or `None` for any SPI.
    pub spi: Option<u32>,
    /// The reqid of the state. 0 matches any inbound state.
    pub reqid: u32,
    /// True for tunnel mode.
    pub is_tunnel: bool,
}

/// Parses the words after `ip xfrm policy add`, or an entry of the output. Returns `None` for the policy of a single
/// socket: a key daemon uses such a policy to exempt its own packets.
pub(super) fn parse(words: &mut Words) -> Result<Option<XfrmPolicy>, XfrmError> {
    let line = words.line();
    let mut direction = None;
    let mut policy = XfrmPolicy {
        line,
        direction: PolicyDirection::In,
        action: PolicyAction::Allow,
        selector: Selector::default(),
        priority: 0,
        template: None,
    };
    selector::parse_into(&mut policy.selector, words)?;
    while let Some(word) = words.next() {
        match word.text {
            "dir" => direction = Some(words.one_of("in, out and fwd")?),
            "socket" => return Ok(None),
            _ => policy.take(word, words)?,
        }
        // In a command, the words of the selector can be at any position.
        selector::parse_into(&mut policy.selector, words)?;
    }
    policy.direction = direction.ok_or(Fault::Missing("dir in, out or fwd").at(line))?;
    Ok(Some(policy))
}

impl XfrmPolicy {
    fn take(&mut self, word: Word, words: &mut Words) -> Result<(), XfrmError> {
        match word.text {
            "action" => self.action = words.one_of("allow and block")?,
            "priority" => self.priority = words.number32("priority")?,
            "index" => drop(words.number32("index")?),
            "ptype" => require(words, "main", "sub-policies are not kept; take ptype main")?,
            "share" => require(words, "any", "associations are shared by all")?,
            "flag" => take_flags(words)?,
            "tmpl" => {
                if self.template.replace(parse_template(words)?).is_some() {
                    return Err(word.unsupported("one policy, one tmpl: packets are sealed once"));
                }
            }
            "limit" => without_lifetime(word, words, take_limit)?,
            "lifetime" if words.take("config:") => without_lifetime(word, words, take_lifetime)?,
            "lifetime" => words.skip_lines(2),
            "lastused" => words.skip_lines(0),
            "mark" | "if_id" => return Err(word.unsupported(NO_MARK)),
            "ctx" | "security" => return Err(word.unsupported("the adapter knows no security contexts")),
            "offload" | "crypto" => {
                return Err(
                    word.unsupported("a policy that another device carries out is not imported; add it without")
                );
            }
            _ => return Err(word.unknown(KNOWN)),
        }
        Ok(())
    }
}

fn require(words: &mut Words, only: &'static str, why: &'static str) -> Result<(), XfrmError> {
    let word = words.required(only)?;
    if word.text == only { Ok(()) } else { Err(word.unsupported(why)) }
}

/// Parses the flags of a policy. `localok` is ignored, because this flag concerns only sockets of the local machine.
fn take_flags(words: &mut Words) -> Result<(), XfrmError> {
    loop {
        match words.peek() {
            Some(word) if word.text == "localok" || word.text.starts_with('(') => drop(words.next()),
            Some(word) if word.text == "icmp" => {
                return Err(word.unsupported("errors of ICMP are not matched by the packet inside; leave it out"));
            }
            _ => return Ok(()),
        }
    }
}

/// Parses the lifetime limits of a policy with `take`. Returns an error if a limit is set, because the adapter supports
/// no lifetimes of policies.
fn without_lifetime(
    word: Word,
    words: &mut Words,
    take: impl FnOnce(&mut Lifetime, &mut Words) -> Result<(), XfrmError>,
) -> Result<(), XfrmError> {
    let mut lifetime = Lifetime::default();
    take(&mut lifetime, words)?;
    if lifetime == Lifetime::default() { Ok(()) } else { Err(word.unsupported(NO_LIFETIME)) }
}

fn parse_template(words: &mut Words) -> Result<Template, XfrmError> {
    let mut template = Template { source: None, destination: None, spi: None, reqid: 0, is_tunnel: false };
    let given = |address: IpAddr| Some(address).filter(|address| !address.is_unspecified());
    let line = words.line();
    let mut has_protocol = false;
    while let Some(word) = words.next() {
        match word.text {
            "src" => template.source = given(words.address("src")?),
            "dst" => template.destination = given(words.address("dst")?),
            "spi" => template.spi = Some(words.number32("spi")?).filter(|&spi| spi != 0),
            "reqid" => template.reqid = words.number32("reqid")?,
            "mode" => template.is_tunnel = is_tunnel(words)?,
            "proto" => {
                require(words, "esp", "only proto esp is")?;
                has_protocol = true;
            }
            "level" => {
                let why = "packets without an association would pass in the clear; take level required";
                require(words, "required", why)?;
            }
            "share" => require(words, "any", "associations are shared by all")?,
            "enc-mask" | "auth-mask" | "comp-mask" => {
                let why = "the algorithms are those of the state; ip prints ffffffff for any";
                require(words, "ffffffff", why)?;
            }
            _ => {
                words.put_back();
                break;
            }
        }
    }
    if has_protocol { Ok(template) } else { Err(Fault::Missing("proto esp behind tmpl").at(line)) }
}
