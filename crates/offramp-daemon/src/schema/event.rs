//! An event, for `monitor`.

use serde::{Deserialize, Serialize};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The event.
    #[serde(flatten)]
    pub event: EventKind,
}

/// A kind of event, with its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A frontend is there.
    Connected {
        /// The port.
        port: String,
    },
    /// Frontend and port have agreed on features.
    Negotiated {
        /// The port.
        port: String,
        /// Negotiated virtio features, by the names of the specification.
        virtio_features: Vec<String>,
    },
    /// The frontend is gone; `reason`: why the daemon disconnected it, if it did.
    Disconnected {
        /// The port.
        port: String,
        /// The reason.
        reason: Option<String>,
    },
    /// The host has come to its limit; again after a time below it.
    LimitReached {
        /// The port.
        port: String,
        /// The direction.
        direction: LimitDirection,
    },
    /// A thread has stood still for a second. `port` is set if it stands in the code of this port's host.
    Stalled {
        /// The thread, as the system numbers it.
        thread: i32,
        /// The port.
        port: Option<String>,
    },
    /// It goes on.
    Resumed {
        /// The thread, as the system numbers it.
        thread: i32,
    },
    /// A host, or an interface on a wire, is gone for good.
    Gone {
        /// The port.
        port: String,
        /// The reason.
        reason: String,
    },
    /// A port was added.
    PortAdded {
        /// The port.
        port: String,
    },
    /// A port was removed.
    PortRemoved {
        /// The port.
        port: String,
    },
    /// A switch was added.
    SwitchAdded {
        /// The switch.
        switch: String,
    },
    /// A switch was removed.
    SwitchRemoved {
        /// The switch.
        switch: String,
    },
    /// Events lost before this one because the client was too slow.
    Lost {
        /// The number of lost events.
        events: u64,
    },
}

/// The direction of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitDirection {
    /// Frames sent by the host.
    Transmit,
    /// Frames received by the host.
    Receive,
}
