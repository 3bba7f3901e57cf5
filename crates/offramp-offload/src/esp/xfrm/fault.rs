//! The faults in the text of an `ip xfrm` configuration. Each error message is one line.

use super::meaning::Direction;
use crate::esp::error::InvalidSa;
use crate::esp::keys::InvalidHex;
use std::fmt;

/// A word of the text, as shown in an error message. The word is hidden if it can be part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(pub(super) Option<String>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(word) => write!(f, "\"{word}\""),
            None => f.write_str("a word (hidden, it may be part of a key)"),
        }
    }
}

/// The reason to refuse a text, and the line of the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct XfrmError {
    /// Number of the line with the faulty word, or with the first word of the faulty state or policy, counted from 1.
    pub line: usize,
    /// Fault in this line.
    pub fault: Fault,
}

/// A fault of a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A word is unknown.
    #[error("{word} is not known here; known are {known}")]
    Unknown {
        /// Word in the text.
        word: Shown,
        /// Words accepted at this position.
        known: &'static str,
    },
    /// The adapter does not support a feature of Linux.
    #[error("{word} is not supported: {why}")]
    Unsupported {
        /// Word in the text.
        word: Shown,
        /// Why the word is not supported, and what to use instead.
        why: &'static str,
    },
    /// A value is invalid.
    #[error("the value after {after} must be {expected}")]
    Value {
        /// Word before the value.
        after: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// A command or an entry ends early. Holds the missing part.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A key is invalid. The error message contains no part of the key.
    #[error("{0}")]
    Key(InvalidHex),
    /// The adapter cannot make an association from a state.
    #[error("{0}")]
    Association(InvalidSa),
    /// No policy defines the direction of the state with this SPI.
    #[error(
        "no policy uses SA {0:#010x}, so its direction is unknown; \
         give the output of \"ip xfrm policy\" too, or the commands that add its policies"
    )]
    NoDirection(u32),
    /// No policy selects the packets of an outbound state.
    #[error("no policy selects the packets of SA {spi:#010x}; give its policy with dir {direction} too")]
    NoPolicy {
        /// SPI of the state.
        spi: u32,
        /// Direction of the missing policy.
        direction: Direction,
    },
    /// Policies of both directions use the state with this SPI.
    #[error("policies with dir in and with dir out both use SA {0:#010x}; tell them apart by their reqid")]
    TwoDirections(u32),
    /// Several policies with different selectors use one state.
    #[error(
        "the policies of lines {first} and {second} select different packets for SA {spi:#010x}; \
         an association takes one selector: make an SA for each"
    )]
    TwoSelectors {
        /// SPI of the state.
        spi: u32,
        /// Line of the first policy.
        first: usize,
        /// Line of the second policy.
        second: usize,
    },
    /// The selectors of a state and its policy have no packet in common.
    #[error("no packet is both in the selector of SA {spi:#010x} and in its policy's of line {policy}")]
    NoPacket {
        /// SPI of the state.
        spi: u32,
        /// Line of the policy.
        policy: usize,
    },
    /// Two states select the same outbound packets.
    #[error("SA {spi:#010x} takes the same packets out as that of line {other}; leave out the older one of the two")]
    SamePackets {
        /// SPI of the state.
        spi: u32,
        /// Line of the other state.
        other: usize,
    },
    /// A policy has a template, but no state matches the template.
    #[error("no state fits this policy's tmpl; give the output of \"ip xfrm state\" too")]
    NoState,
    /// The key of a counter-mode suite was already used with this SPI, and the last sequence number is unknown.
    #[error(
        "the far end has received packets of SA {0:#010x} already; a sender that does not know \
         the last sequence number would use a nonce twice: make new keys at both ends (RFC 4106 2)"
    )]
    UsedKey(u32),
}

impl Fault {
    pub(super) fn at(self, line: usize) -> XfrmError {
        XfrmError { line, fault: self }
    }
}
