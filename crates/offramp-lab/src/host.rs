//! What the hosts themselves are set to, beside their adapters.

/// Settings of both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// Receive packet steering: a host's receive work runs on the hosts' processors, where they have their own, and not
    /// on the adapter's that handed the frames over.
    pub rps: bool,
    /// `SO_BUSY_POLL` of every data socket, in microseconds; 0 leaves it to the kernel. Without effect behind a TAP,
    /// which has no NAPI.
    pub busy_poll_usecs: u32,
    /// The processors do not sleep: what waking one costs, many times the rest in a virtual machine, is in no figure.
    /// Their idle time is then told by those who keep them awake. A guest's cannot be kept awake.
    pub awake: bool,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self { rps: true, busy_poll_usecs: 0, awake: false }
    }
}
