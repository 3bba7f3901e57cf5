//! An event, for `monitor`.

use super::limit::Limit;
use super::moderation::Moderation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An event in the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event, milliseconds since 1970.
    pub unix_ms: u64,
    /// The kind of event, with its details.
    #[serde(flatten)]
    pub event: EventKind,
}

/// A kind of event, with its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A frontend has connected.
    Connected {
        /// The name of the port.
        port: String,
    },
    /// The frontend and the port have negotiated features.
    Negotiated {
        /// The name of the port.
        port: String,
        /// Negotiated virtio features, by their names in the specification.
        virtio_features: Vec<String>,
    },
    /// The frontend has disconnected.
    Disconnected {
        /// The name of the port.
        port: String,
        /// The reason, if the daemon disconnected the frontend.
        reason: Option<String>,
    },
    /// The host has reached its rate limit. The event is repeated only after a time in which the host was below its
    /// rate limit.
    LimitReached {
        /// The name of the port.
        port: String,
        /// The direction of the limit.
        direction: LimitDirection,
    },
    /// A thread has stalled for a second. `port` is set if the thread stalls in the code of a port's host.
    Stalled {
        /// The operating system's number of the thread.
        thread: i32,
        /// The name of the port.
        port: Option<String>,
    },
    /// A thread that was reported as stalled runs again.
    Resumed {
        /// The operating system's number of the thread.
        thread: i32,
    },
    /// A host, or an interface on a wire, is gone for good.
    Gone {
        /// The name of the port.
        port: String,
        /// The reason.
        reason: String,
    },
    /// A port was added.
    PortAdded {
        /// The name of the port.
        port: String,
    },
    /// A port was removed.
    PortRemoved {
        /// The name of the port.
        port: String,
    },
    /// A switch was added.
    SwitchAdded {
        /// The name of the switch.
        switch: String,
    },
    /// A switch was removed.
    SwitchRemoved {
        /// The name of the switch.
        switch: String,
    },
    /// A client has changed a port by the request `set`.
    Set {
        /// The name of the port.
        port: String,
        /// The uid of the client, as reported by the kernel; `null` if unknown.
        uid: Option<u32>,
        /// The process identifier of the client, in the daemon's process namespace; `null` if unknown.
        process: Option<i32>,
        /// The settings in the request.
        #[serde(flatten)]
        settings: Box<Settings>,
    },
    /// The daemon has ended.
    Ended {},
    /// Events before this event were lost because the client was too slow.
    Lost {
        /// The number of lost events.
        events: u64,
    },
}

/// The settings in a request `set`; an absent setting is unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Features or groups of features by name; `true` allows a feature.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, bool>,
    /// The interrupt moderation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderation: Option<Moderation>,
    /// The rate limits for sending and receiving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// The state of the link; `true` is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<bool>,
}

/// The direction of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitDirection {
    /// Frames sent by the host.
    Transmit,
    /// Frames received by the host.
    Receive,
}
