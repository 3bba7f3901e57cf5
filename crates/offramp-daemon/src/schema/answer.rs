//! An answer of the daemon: one JSON object per line.

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
    /// The answer to `show`.
    Status(Box<Status>),
    /// The answer to `set`.
    Changed(Changed),
    /// The answer to `add` and `remove`.
    Difference(Difference),
    /// The answer to `sa_add`, `sa_del` and `sa_rekey`: the current associations of the port.
    Ipsec(Box<IpsecStatus>),
    /// The answer to `monitor`; events follow.
    Monitoring {},
    /// An event, sent after `monitoring` for each occurrence.
    Event(Event),
    /// The answer to `capture`; pcapng data follow.
    Capturing {},
    /// The answer to a refused request.
    Error(Refusal),
}

/// An answer, with the version of the protocol and the outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The version of the protocol.
    pub version: u32,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Answer {
    /// Creates an answer with the current version of the protocol.
    pub fn new(outcome: Outcome) -> Self {
        Self { version: VERSION, outcome }
    }

    /// Creates a refusal.
    pub fn refuse(code: RefusalCode, message: impl Into<String>) -> Self {
        Self::new(Outcome::Error(Refusal { code, message: message.into() }))
    }
}

/// The reason for refusing a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of refusal.
    pub code: RefusalCode,
    /// The message, one line of text.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The line is not a valid request: it is not JSON, has an unknown field, is too long, or was sent too slowly.
    BadRequest,
    /// The client uses another version of the protocol.
    BadVersion,
    /// No port has this name.
    UnknownPort,
    /// No switch has this name.
    UnknownSwitch,
    /// No feature has this name.
    UnknownFeature,
    /// The added text is invalid, or the resulting configuration would be invalid.
    BadConfiguration,
    /// A socket or a thread of an added port or switch could not be opened.
    NotOpened,
    /// There are too many clients; the client should try again.
    Busy,
    /// The socket is read-only.
    ReadOnly,
    /// The host refused the change.
    HostRefused,
    /// The security association is invalid, or does not exist.
    BadAssociation,
}

/// The changes made by a `set`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The name of the port.
    pub port: String,
    /// The current states of the requested features, and of all features whose use the request has changed.
    pub features: Vec<FeatureStatus>,
    /// The new moderation; `null` if the request does not change the moderation.
    pub moderation: Option<Box<Moderation>>,
    /// The new rate limits; `null` if the request does not change the limits.
    pub limit: Option<Box<Limit>>,
    /// The new state of the link; `null` if the request does not change the link.
    pub link: Option<bool>,
}
