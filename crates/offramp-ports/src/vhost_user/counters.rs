//! Events of a vhost-user port besides frames.

use offramp_adapter::counters;
use offramp_adapter::stats::Row;

counters! {
    /// Events of the message channel.
    #[derive(Debug, Default)]
    pub struct ChannelCounters {
        /// Frontends that connected.
        connections: Counter { shown: Some("connections") },
        /// Frontends disconnected because another was connected, or because their user is not `allowed_uid`.
        refused_connections: Counter { shown: Some("refused connections"), logged: Some("refused frontends") },
        /// Handled messages of frontends.
        messages: Counter,
        /// Refused messages; each ended its connection.
        bad_messages: Counter { shown: Some("bad messages"), logged: Some("refused messages") },
        /// Frontends disconnected after they took away shared memory in use (truncated the file).
        lost_memories: Counter { shown: Some("lost memories"), logged: Some("lost memories") },
        ..
        /// Configuration changes reported on the backend's channel. Changes before the frontend's answer are reported
        /// together.
        pub config_changes: offramp_adapter::stats::Counter,
        /// Failures to take over a changed configuration, as answered by the frontend.
        pub refused_config_changes: offramp_adapter::stats::Counter,
    }
}

counters! {
    /// Events of one queue pair, or of a control queue. Frames are counted by the adapter.
    #[derive(Debug, Default)]
    pub struct QueueCounters {
        /// Interrupts of the guest, for either ring.
        calls: Counter { metric: None, shown: Some("interrupts") },
        /// Unusable descriptor chains: an address outside guest memory, a loop, a wrong direction, a bad indirect table.
        /// Each went back to the driver unused.
        bad_chains: Counter { shown: Some("bad chains"), logged: Some("bad chains") },
        /// Rings in an invalid state (an index past the ring), stopped until set up again.
        broken_rings: Counter { shown: Some("broken rings"), logged: Some("broken rings") },
        /// Frames discarded from a disabled transmit ring.
        discarded: Counter { shown: Some("discarded") },
    }
}

/// Returns the rows of a guest: those of its channel, then those of its queues.
pub fn guest_rows() -> impl Iterator<Item = &'static Row> {
    ChannelCounters::ROWS.iter().chain(QueueCounters::ROWS)
}
