//! What is wrong with a text, as one line.

use crate::esp::config::InvalidSa;
use crate::esp::keys::InvalidHex;
use std::fmt;

/// A word of the text as a message may show it: not if it may be a part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(pub(super) Option<String>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(word) => write!(f, "\"{word}\""),
            None => f.write_str("a word that is not shown, as it may be part of a key,"),
        }
    }
}

/// Why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XfrmError {
    /// A word that has no place there.
    #[error("line {line}: {word} is not known here; known are {known}")]
    Unknown {
        /// Line, counted from 1.
        line: usize,
        /// The word.
        word: Shown,
        /// What may stand there.
        known: &'static str,
    },
    /// Something of Linux that the adapter does not do.
    #[error("line {line}: {word} is not supported: {why}")]
    Unsupported {
        /// Line, counted from 1.
        line: usize,
        /// The word.
        word: Shown,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// A value that is none.
    #[error("line {line}: what follows {after} must be {expected}")]
    Value {
        /// Line, counted from 1.
        line: usize,
        /// The word in front of the value.
        after: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The end of a command or an entry where something must follow.
    #[error("line {line}: {what} is missing")]
    Missing {
        /// Line, counted from 1.
        line: usize,
        /// What must be there.
        what: &'static str,
    },
    /// A key that is none. It says nothing of the key itself.
    #[error("line {line}: {why}")]
    Key {
        /// Line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: InvalidHex,
    },
    /// What a state describes is no association that the adapter can make.
    #[error("line {line}: {why}")]
    Association {
        /// Line of the state, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: InvalidSa,
    },
    /// Nothing says whether a state is for packets that come or that go.
    #[error(
        "line {line}: no policy uses SA {spi:#010x}, so that its direction is not known; \
         give the output of \"ip xfrm policy\" too, or the commands that add its policies"
    )]
    NoDirection {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
    },
    /// Nothing says which packets go into a state.
    #[error(
        "line {line}: no policy says which packets go into SA {spi:#010x}; give its policy with dir {direction} too"
    )]
    NoPolicy {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
        /// Direction of the policy that is missing.
        direction: &'static str,
    },
    /// Policies of both directions use one state.
    #[error(
        "line {line}: policies with dir in and with dir out both use SA {spi:#010x}; tell them apart by their reqid"
    )]
    TwoDirections {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
    },
    /// Several policies with different selectors use one state.
    #[error(
        "line {line}: the policies of lines {first} and {second} select different packets for SA {spi:#010x}; \
         an association takes one selector: make an SA for each"
    )]
    TwoSelectors {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
        /// Line of the one policy.
        first: usize,
        /// Line of the other.
        second: usize,
    },
    /// A state's own selector and its policy's have no packet in common.
    #[error("line {line}: no packet is both in the selector of SA {spi:#010x} and in its policy's of line {policy}")]
    NoPacket {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
        /// Line of the policy.
        policy: usize,
    },
    /// Two states take the same packets that go out.
    #[error(
        "line {line}: SA {spi:#010x} takes the same packets out as that of line {other}; \
         leave out the older one of the two"
    )]
    SamePackets {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
        /// Line of the other state.
        other: usize,
    },
    /// A policy with a template that no state fits.
    #[error("line {line}: no state fits this policy's tmpl; give the output of \"ip xfrm state\" too")]
    NoState {
        /// Line of the policy, counted from 1.
        line: usize,
    },
    /// The key of a counter-mode suite was used, and how far is not known.
    #[error(
        "line {line}: the far end has received packets of SA {spi:#010x} already; a sender that does not know \
         the last sequence number would use a nonce twice: make new keys at both ends (RFC 4106 2)"
    )]
    UsedKey {
        /// Line of the state, counted from 1.
        line: usize,
        /// Its SPI.
        spi: u32,
    },
}

impl XfrmError {
    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        match self {
            Self::Unknown { line, .. }
            | Self::Unsupported { line, .. }
            | Self::Value { line, .. }
            | Self::Missing { line, .. }
            | Self::Key { line, .. }
            | Self::Association { line, .. }
            | Self::NoDirection { line, .. }
            | Self::NoPolicy { line, .. }
            | Self::TwoDirections { line, .. }
            | Self::TwoSelectors { line, .. }
            | Self::NoPacket { line, .. }
            | Self::SamePackets { line, .. }
            | Self::NoState { line }
            | Self::UsedKey { line, .. } => *line,
        }
    }
}
