//! The reasons to refuse an association, a frame to seal, and a packet to open.

use super::replay::{REPLAY_WINDOW_MAX, REPLAY_WINDOW_MIN, ReplayRefused};
use super::suite::Suite;
use std::net::IpAddr;
use strum::VariantArray;

/// The reason to refuse a security association. Nothing is installed for a refused association.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("SA {spi:#010x}: {fault}")]
pub struct InvalidSa {
    /// SPI of the association.
    pub spi: u32,
    /// Fault of the association.
    pub fault: SaFault,
}

/// A fault of a security association.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaFault {
    /// The SPI is below [`SPI_MIN`](super::SPI_MIN).
    #[error("this SPI is reserved (RFC 4303 2.1); take one from 0x00000100 up")]
    ReservedSpi,
    /// Another association of the table has the same SPI.
    #[error("another SA has this SPI; delete that one first or take another SPI")]
    DuplicateSpi,
    /// The encryption key is too short or too long.
    #[error(
        "{suite} takes an encryption key of {expected} bytes{salt}, this one has {given}",
        salt = if suite.has_salt() { " (4 of them salt)" } else { "" }
    )]
    EncryptionKeyLen {
        /// Suite of the association.
        suite: Suite,
        /// Key length required by the suite, in bytes.
        expected: usize,
        /// Length of the given key, in bytes.
        given: usize,
    },
    /// The integrity key is too short or too long.
    #[error("{suite} takes an integrity key of {expected} bytes, this one has {given}")]
    IntegrityKeyLen {
        /// Suite of the association.
        suite: Suite,
        /// Key length required by the suite, in bytes.
        expected: usize,
        /// Length of the given key, in bytes.
        given: usize,
    },
    /// A legacy suite is used without the option `legacy`.
    #[error("{0} is only for old peers; set legacy = true to use it, or take aes128gcm16")]
    Legacy(Suite),
    /// The cipher library refuses the key, because parts of a 3DES key are weak or equal.
    #[error("the encryption key is weak for {0}; make a new one at random")]
    WeakKey(Suite),
    /// The size of the replay window is out of range. Holds the size in packets.
    #[error("a replay window of {0} packets is not offered; take {REPLAY_WINDOW_MIN} to {REPLAY_WINDOW_MAX}")]
    ReplayWindow(u32),
    /// The sequence number exceeds 32 bits without ESN.
    #[error("sequence number {0} needs more than 32 bits; switch esn on, or make a new SA")]
    Sequence(u64),
    /// The source and the destination address of a tunnel have different IP versions.
    #[error("the tunnel's source {source_address} and destination {destination} are of two IP versions")]
    TunnelAddresses {
        /// Source address of the tunnel.
        source_address: IpAddr,
        /// Destination address of the tunnel.
        destination: IpAddr,
    },
    /// The DSCP has more than six bits.
    #[error("a DSCP has six bits, {0} is too large; take 0 to 63")]
    Dscp(u8),
    /// A soft limit exceeds its hard limit, or a limit is 0.
    #[error("lifetime in {unit}: soft {soft} and hard {hard} must be above 0, the soft one not behind")]
    Lifetime {
        /// Unit of the limits: `packets`, `bytes` or `seconds`.
        unit: &'static str,
        /// Soft limit, in `unit`.
        soft: u64,
        /// Hard limit, in `unit`.
        hard: u64,
    },
    /// Keepalives are requested without UDP encapsulation, or with an interval of 0. Holds the interval in seconds.
    #[error("NAT-keepalives every {0} seconds need UDP encapsulation and at least 1 second; RFC 3948 uses 20")]
    Keepalive(u32),
    /// A UDP port is 0.
    #[error("UDP encapsulation needs ports above 0; RFC 3948 uses 4500")]
    UdpPorts,
}

/// The reason to refuse a packet. Each reason has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, VariantArray)]
pub enum Refused {
    /// No association has this SPI and destination address.
    #[error("unknown SPI")]
    UnknownSpi,
    /// The check value is wrong, because the packet is not genuine, or the keys differ.
    #[error("bad integrity check value")]
    BadTag,
    /// A packet with the same sequence number was accepted before.
    #[error("replayed")]
    Replayed,
    /// The sequence number is lower than all numbers in the anti-replay window, or is 0.
    #[error("older than the replay window")]
    TooOld,
    /// The packet is truncated, not aligned, has wrong padding, or contains a malformed packet.
    #[error("malformed")]
    Malformed,
    /// The packet is genuine, but does not match the association's selector, mode or encapsulation.
    #[error("against the policy of the SA")]
    Policy,
    /// The frame is a fragment of a protected packet (RFC 4303 3.4.1).
    #[error("a fragment of a protected packet")]
    Fragment,
    /// A hard lifetime of the association is reached.
    #[error("the SA's hard lifetime is reached")]
    Expired,
    /// Congestion was marked on a packet without ECN (RFC 6040 4.2).
    #[error("congestion marked on a packet without ECN")]
    Congestion,
    /// The packet is a genuine dummy packet, sent only to be discarded (RFC 4303 2.6).
    #[error("dummy packet")]
    Dummy,
}

impl Refused {
    /// All reasons, in the order of the counters.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

impl From<ReplayRefused> for Refused {
    fn from(refused: ReplayRefused) -> Self {
        match refused {
            ReplayRefused::Replayed => Self::Replayed,
            ReplayRefused::TooOld => Self::TooOld,
        }
    }
}

/// The numbers of refused packets, one number for each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedCounts([u64; Refused::ALL.len()]);

impl RefusedCounts {
    /// Counts a packet refused for this reason.
    pub fn count(&mut self, reason: Refused) {
        self.0[reason as usize] += 1;
    }

    /// Returns the number of packets refused for this reason.
    pub fn of(&self, reason: Refused) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the total number of refused packets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The reason to refuse to seal a frame. After a refusal, the caller must send no part of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SealRefused {
    /// The frame contains no IP packet, so ESP has nothing to protect.
    #[error("not an IP packet")]
    NotIp,
    /// The frame is a fragment, and the association uses transport mode (RFC 4303 3.3.4).
    #[error("a fragment cannot be sealed in transport mode; use a tunnel")]
    Fragment,
    /// The sealed packet would exceed the maximum length of an IP packet.
    #[error("the sealed packet would be longer than 65535 bytes")]
    TooLong,
    /// The buffer has too little room before or after the frame.
    #[error("no room for the sealed frame in the buffer")]
    NoRoom,
    /// The last possible sequence number was used (RFC 4303 3.3.3). The association can send no further packet.
    #[error("sequence numbers are used up; make a new SA, or one with esn")]
    SequenceExhausted,
    /// No reserved sequence number is left (see [`SharedOutbound::reserve`](super::SharedOutbound::reserve)).
    #[error("the next sequence numbers are not reserved yet")]
    Unreserved,
    /// A hard lifetime of the association is reached.
    #[error("the SA's hard lifetime is reached; make a new SA")]
    Expired,
    /// The cipher library failed, which is not expected to happen.
    #[error("the cipher library failed")]
    Cipher,
}
