//! An answer of the daemon: one JSON object on a line.

use super::association::IpsecStatus;
use super::event::Event;
use super::feature::FeatureStatus;
use super::limit::Limit;
use super::moderation::Moderation;
use super::names::Difference;
use super::request::VERSION;
use super::status::Status;
use serde::{Deserialize, Serialize};

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// To `show`.
    Status(Status),
    /// To `set`.
    Changed(Changed),
    /// To `add` and `remove`.
    Difference(Difference),
    /// To `sa_add`, `sa_del` and `sa_rekey`: the port's associations as they are now.
    Ipsec(Box<IpsecStatus>),
    /// To `monitor`: events follow.
    Monitoring {},
    /// After `monitoring`, as often as something happens.
    Event(Event),
    /// To `capture`: pcapng follows.
    Capturing {},
    /// To any request not carried out.
    Error(Refusal),
}

/// An answer: its version and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The version of the protocol.
    pub version: u32,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Answer {
    /// Returns an answer of this version.
    pub fn new(outcome: Outcome) -> Self {
        Self { version: VERSION, outcome }
    }

    /// Returns a refusal.
    pub fn refuse(code: RefusalCode, message: impl Into<String>) -> Self {
        Self::new(Outcome::Error(Refusal { code, message: message.into() }))
    }
}

/// The reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of refusal.
    pub code: RefusalCode,
    /// One line for a human.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// Not a request: no JSON, an unknown field, too long, too slow.
    BadRequest,
    /// The client speaks another version.
    BadVersion,
    /// No port has this name.
    UnknownPort,
    /// No switch has this name.
    UnknownSwitch,
    /// No feature has this name.
    UnknownFeature,
    /// The text to add is wrong, or the rest would be.
    BadConfiguration,
    /// A socket or a thread of what is to be added cannot be had.
    NotOpened,
    /// Too many clients; try again.
    Busy,
    /// The socket is read-only.
    ReadOnly,
    /// The host did not take the change.
    HostRefused,
    /// The security association is not as it must be, or there is none.
    BadAssociation,
}

/// The changes of a `set`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The port.
    pub port: String,
    /// The requested features and the features affected by them, in their present state.
    pub features: Vec<FeatureStatus>,
    /// The moderation, if requested.
    pub moderation: Option<Box<Moderation>>,
    /// The limit, if requested.
    pub limit: Option<Box<Limit>>,
    /// The link, if requested.
    pub link: Option<bool>,
}
