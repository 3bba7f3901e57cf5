//! What happens on a vhost-user port besides frames.

use offramp_adapter::stats::Counter;

/// Events of one queue pair, or of a control queue. Frames are counted by the adapter.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Interrupts of the guest, for either ring.
    pub calls: Counter,
    /// Chains that could not be used: an address outside guest memory, a loop, a wrong direction, a bad
    /// indirect table. Each went back to the driver unused.
    pub bad_chains: Counter,
    /// Rings whose state made no sense (an index that ran past the ring): stopped until set up again.
    pub broken_rings: Counter,
    /// Frames of a disabled transmit ring, which are discarded (vhost-user, "Ring states").
    pub discarded: Counter,
}

/// Events of the message channel.
#[derive(Debug, Default)]
pub struct ChannelCounters {
    /// Frontends that connected.
    pub connections: Counter,
    /// Frontends that connected while there was another, or of a user that may not, and were disconnected.
    pub refused_connections: Counter,
    /// Messages that were handled.
    pub messages: Counter,
    /// Messages that were refused; each ended its connection.
    pub bad_messages: Counter,
    /// Frontends that took away memory which they had shared (a file that was made shorter); each was disconnected.
    pub lost_memories: Counter,
    /// Changes of the configuration that were reported on the backend's channel. Changes that come while the frontend
    /// has not answered are reported together.
    pub config_changes: Counter,
    /// Times that a frontend answered that it could not take over a changed configuration.
    pub refused_config_changes: Counter,
}
