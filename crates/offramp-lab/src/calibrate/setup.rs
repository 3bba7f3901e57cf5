//! The settings of hosts and adapters in an experiment.

/// Length of Ethernet, IPv4 and TCP headers with timestamps, in bytes.
pub(super) const HEADERS_LEN: f64 = 66.0;
/// Payload of a segment with timestamps at an MTU of 1500, in bytes.
pub(super) const MSS: f64 = 1448.0;

/// Settings of hosts and adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "switches that have nothing to do with each other")]
pub(super) struct Setup {
    pub(super) lso: bool,
    pub(super) rsc: bool,
    pub(super) host_checksums_sent: bool,
    pub(super) host_checksums_received: bool,
    pub(super) mss: f64,
    /// `true` if the link, at 1 Gbit/s, is the limit.
    pub(super) is_gigabit: bool,
    /// `true` if the adapters' thread sleeps between two sends, so that the sending host must wake this thread.
    pub(super) adapters_sleep: bool,
}

impl Setup {
    pub(super) const ALL_ON: Self = Self {
        lso: true,
        rsc: true,
        host_checksums_sent: false,
        host_checksums_received: false,
        mss: MSS,
        is_gigabit: false,
        adapters_sleep: false,
    };
    pub(super) const BARE: Self = Self { lso: false, rsc: false, ..Self::ALL_ON };
}
