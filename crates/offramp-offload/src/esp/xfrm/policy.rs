//! A policy: the association needed by some packets.

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

/// The packets of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyDirection {
    /// Packets to the machine itself.
    In,
    /// Packets from the machine.
    Out,
    /// Forwarded packets.
    #[strum(serialize = "fwd")]
    Forward,
}

/// The action on the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyAction {
    /// They pass: protected if the policy has a template, else in the clear.
    Allow,
    /// They are dropped.
    Block,
}

/// A policy as Linux has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XfrmPolicy {
    /// Its first line, counted from 1.
    pub line: usize,
    /// The direction of its packets.
    pub direction: PolicyDirection,
    /// The action on them.
    pub action: PolicyAction,
    /// The selected packets.
    pub selector: Selector,
    /// The priority. Of several matching policies, the smallest number wins.
    pub priority: u32,
    /// The required protection.
    pub template: Option<Template>,
}

/// A policy's requirements for a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// Source address of the state, if it matters: unspecified matches any.
    pub source: Option<IpAddr>,
    /// Its destination address, likewise.
    pub destination: Option<IpAddr>,
    /// Its SPI; `None` for any.
    pub spi: Option<u32>,
    /// Its reqid; 0 for any inbound one.
    pub reqid: u32,
    /// True for tunnel mode.
    pub is_tunnel: bool,
}

/// Reads the words after `ip xfrm policy add`, or an entry of the output. Returns `None` for the policy of a single
/// socket: a key daemon keeps its own packets clear by it.
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
        // A command may have its selector anywhere.
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

/// Takes the flags. `localok` concerns sockets of the machine itself.
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

/// Reads limits by `take` and refuses any.
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
