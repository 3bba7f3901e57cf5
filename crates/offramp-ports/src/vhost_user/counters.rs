//! Events of a vhost-user port besides frames.

use offramp_adapter::stats::Counter;

/// Events of one queue pair, or of a control queue. Frames are counted by the adapter.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Interrupts of the guest, for either ring.
    pub calls: Counter,
    /// Unusable chains: an address outside guest memory, a loop, a wrong direction, a bad indirect table. Each went
    /// back to the driver unused.
    pub bad_chains: Counter,
    /// Rings in an invalid state (an index past the ring): stopped until set up again.
    pub broken_rings: Counter,
    /// Frames discarded from a disabled transmit ring (vhost-user, "Ring states").
    pub discarded: Counter,
}

/// Events of the message channel.
#[derive(Debug, Default)]
pub struct ChannelCounters {
    /// Frontends that connected.
    pub connections: Counter,
    /// Frontends disconnected because another was connected, or because their user is not allowed.
    pub refused_connections: Counter,
    /// Handled messages.
    pub messages: Counter,
    /// Refused messages; each ended its connection.
    pub bad_messages: Counter,
    /// Frontends disconnected after they took away shared memory (truncated the file).
    pub lost_memories: Counter,
    /// Configuration changes reported on the backend's channel. Changes before the frontend's answer are reported
    /// together.
    pub config_changes: Counter,
    /// Failures to take over a changed configuration, as answered by the frontend.
    pub refused_config_changes: Counter,
}
