//! An event, for `monitor`.

use serde::{Deserialize, Serialize};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    #[serde(flatten)]
    pub event: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A frontend is there.
    Connected {
        port: String,
    },
    /// Frontend and port have agreed on features.
    Negotiated {
        port: String,
        virtio_features: Vec<String>,
    },
    /// The frontend is gone; `reason`: why the daemon disconnected it, if it did.
    Disconnected {
        port: String,
        reason: Option<String>,
    },
    /// The host has come to its limit; again after a time below it.
    LimitReached {
        port: String,
        direction: LimitDirection,
    },
    /// A thread stands still since a second, in the host of `port` if in one.
    Stalled {
        thread: i32,
        port: Option<String>,
    },
    /// It goes on.
    Resumed {
        thread: i32,
    },
    /// A host, or an interface on a wire, is gone for good.
    Gone {
        port: String,
        reason: String,
    },
    PortAdded {
        port: String,
    },
    PortRemoved {
        port: String,
    },
    SwitchAdded {
        switch: String,
    },
    SwitchRemoved {
        switch: String,
    },
    /// Events before this one that the client was too slow for.
    Lost {
        events: u64,
    },
}

/// Which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitDirection {
    /// What the host sends.
    Transmit,
    /// What it receives.
    Receive,
}
