//! Counters of a vhost-user port for events other than frames.

use offramp_adapter::counters;
use offramp_adapter::stats::Row;

counters! {
    /// Events of the message channel.
    #[derive(Debug, Default)]
    pub struct ChannelCounters {
        /// Number of connections by frontends.
        connections: Counter { shown: Some("connections") },
        /// Frontends disconnected because another frontend was connected, or because their user is not `allowed_uid`.
        refused_connections: Counter { shown: Some("refused connections"), logged: Some("refused frontends") },
        /// Handled messages from frontends.
        messages: Counter,
        /// Refused messages. Each refused message ended its connection.
        bad_messages: Counter { shown: Some("bad messages"), logged: Some("refused messages") },
        /// Frontends disconnected because they truncated the file of shared memory in use.
        lost_memories: Counter { shown: Some("lost memories"), logged: Some("lost memories") },
        ..
        /// Configuration changes reported on the backend channel. Changes before the frontend's answer are reported
        /// together.
        pub config_changes: offramp_adapter::stats::Counter,
        /// Configuration changes that the frontend reported as failed.
        pub refused_config_changes: offramp_adapter::stats::Counter,
    }
}

counters! {
    /// Events of one queue pair, or of a control queue. Frames are counted by the adapter.
    #[derive(Debug, Default)]
    pub struct QueueCounters {
        /// Interrupts sent to the guest, for both rings.
        calls: Counter { metric: None, shown: Some("interrupts") },
        /// Unusable descriptor chains, returned unused: an address outside guest memory, a loop, a wrong direction, or
        /// a bad indirect table.
        bad_chains: Counter { shown: Some("bad chains"), logged: Some("bad chains") },
        /// Rings in an invalid state, such as an index beyond the ring. Such a ring stays stopped until the frontend
        /// sets it up again.
        broken_rings: Counter { shown: Some("broken rings"), logged: Some("broken rings") },
        /// Frames discarded from a disabled transmit ring.
        discarded: Counter { shown: Some("discarded") },
    }
}

/// Returns the rows of a guest: the rows of its channel, then the rows of its queues.
pub fn guest_rows() -> impl Iterator<Item = &'static Row> {
    ChannelCounters::ROWS.iter().chain(QueueCounters::ROWS)
}
