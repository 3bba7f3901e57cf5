//! What happens on a vhost-user port besides frames.

use offramp_adapter::stats::Counter;
use std::sync::atomic::{AtomicU64, Ordering};

/// Events of one queue pair. Frames are counted by the adapter.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Times the guest was called, for either ring.
    pub calls: Counter,
    /// Chains that could not be used: an address outside guest memory, a loop, a wrong direction, a bad
    /// indirect table. Each went back to the driver unused.
    pub bad_chains: Counter,
    /// Rings whose state made no sense (an index that ran past the ring): stopped until set up again.
    pub broken_rings: Counter,
    /// Frames of a disabled transmit ring, which are thrown away (vhost-user, "Ring states").
    pub discarded: Counter,
}

/// Events of the message channel.
#[derive(Debug, Default)]
pub struct ChannelCounters {
    connections: AtomicU64,
    refused_connections: AtomicU64,
    messages: AtomicU64,
    bad_messages: AtomicU64,
    lost_memories: AtomicU64,
    config_changes: AtomicU64,
    refused_config_changes: AtomicU64,
}

impl ChannelCounters {
    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused_connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn bad_message(&self) {
        self.bad_messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn lost_memory(&self) {
        self.lost_memories.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn config_change(&self) {
        self.config_changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused_config_change(&self) {
        self.refused_config_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes of the configuration of which a frontend was to be told on the backend's channel; changes that come
    /// while it has not answered are told once.
    pub fn config_changes(&self) -> u64 {
        self.config_changes.load(Ordering::Relaxed)
    }

    /// Times that a frontend answered that it could not take over a changed configuration.
    pub fn refused_config_changes(&self) -> u64 {
        self.refused_config_changes.load(Ordering::Relaxed)
    }

    /// Frontends that took away memory which they had shared (a file that was made shorter); each was dropped.
    pub fn lost_memories(&self) -> u64 {
        self.lost_memories.load(Ordering::Relaxed)
    }

    /// Frontends that came.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Frontends that came while there was another, and were sent away.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Messages that were handled.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Messages that were refused; each ended its connection.
    pub fn bad_messages(&self) -> u64 {
        self.bad_messages.load(Ordering::Relaxed)
    }
}
