//! IPsec in the adapter: selects the packets to protect and their security association, and passes or discards all
//! other packets.
//!
//! The host sends and receives unencrypted frames; the wire carries ESP. Transmit seals a packet with the first
//! outbound association whose selector matches. Receive finds the inbound association by the packet's SPI. The policy's
//! entries are checked before the associations, and an entry protects, bypasses or discards a packet. A packet that
//! matches neither an entry nor an association passes unprotected or is discarded ([`Policy`]). An unencrypted packet
//! that an inbound association should have protected is always discarded (RFC 4301 5.2). After an association is
//! removed, packets that the association would have protected are discarded.
//!
//! Associations can change while frames flow ([`PortControl::change_ipsec`](crate::pair::PortControl::change_ipsec)).
//! All requested changes are checked first. Each queue pair then applies the changes between two super-frames. All
//! queue pairs of a port share the port's associations. Each queue pair seals with sequence numbers granted only to
//! this queue pair.

mod association;
mod change;
mod keepalive;
mod keys;
mod open;
mod policy;
mod seal;
mod too_big;

pub use association::{SaState, SaStatus};
pub(crate) use change::Prepared;
pub use change::{Ipsec, SaChange, SaError};
pub(crate) use keepalive::Keepalives;
pub use keys::{KEYS_MAX, KeyId, KeyMark, KeyRegistry, KeyStore, RESERVED_NUMBERS};
pub(crate) use open::Opening;
pub use policy::{ETHERTYPE_ARP, NoMatch, Policy, PolicyAction, PolicyEntry};
pub(crate) use seal::Sealing;

use crate::stats::Loss;
use association::{Inbound, Outbound};
use offramp_offload::esp::{Refused, SealRefused};
use policy::Removed;
use std::fmt;
use std::sync::Arc;

/// Default time for which a replaced inbound association still opens packets, in nanoseconds. The time exceeds any
/// delay of a frame, and is long enough for an operator to rekey the peer by hand.
pub const REKEY_GRACE_NS_DEFAULT: u64 = 30_000_000_000;

/// The direction of an association: `out` or `in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum SaDirection {
    /// Host to wire: the association seals.
    Out,
    /// Wire to host: the association opens.
    In,
}

/// An event of a security association. Each event is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaEvent {
    /// The direction of the association.
    pub direction: SaDirection,
    /// The association's security parameters index.
    pub spi: u32,
    /// The kind of event.
    pub kind: SaEventKind,
}

/// The kind of an association's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
pub enum SaEventKind {
    /// A soft limit is reached: the association should be replaced.
    #[strum(to_string = "a soft lifetime is reached; rekey it")]
    Soft,
    /// A hard limit is reached: the association no longer protects packets.
    #[strum(to_string = "a hard lifetime is reached; it protects nothing more")]
    Hard,
    /// The last sequence number was used: the association seals no more packets (RFC 4303 3.3.3).
    #[strum(to_string = "its sequence numbers are used up and it sends nothing more; rekey it, or make it with esn")]
    SequenceExhausted,
    /// The association was replaced, and was removed at the end of its grace time.
    #[strum(to_string = "was replaced, and its time of grace is over")]
    Retired,
}

impl fmt::Display for SaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SA {} {:#010x}: {}", self.direction, self.spi, self.kind)
    }
}

/// The current associations and the current policy of a port. A change replaces the whole value, and never modifies it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InForce {
    policy: Policy,
    removed: Removed,
    /// Outbound associations in order of precedence: the first association with a matching selector seals a packet.
    outbound: Vec<Arc<Outbound>>,
    inbound: Vec<Arc<Inbound>>,
}

impl InForce {
    /// Returns whether frames in this direction that match no association pass as they would without IPsec.
    fn is_open(&self, direction: SaDirection) -> bool {
        self.policy.is_open(direction) && self.removed.of(direction).next().is_none()
    }
}

fn loss_of(refused: Refused) -> Loss {
    match refused {
        Refused::UnknownSpi => Loss::UnknownSpi,
        Refused::BadTag => Loss::BadTag,
        Refused::Replayed => Loss::Replayed,
        Refused::TooOld => Loss::TooOld,
        Refused::Malformed => Loss::EspMalformed,
        Refused::Policy => Loss::SaPolicy,
        Refused::Fragment => Loss::EspFragment,
        Refused::Expired => Loss::SaExpired,
        Refused::Congestion => Loss::Congestion,
        Refused::Dummy => Loss::Dummy,
    }
}

fn loss_of_sealing(refused: SealRefused) -> Loss {
    match refused {
        // `NotIp` and `NoRoom` are unreachable: frames other than IP are never sealed, and the buffers of a wire with
        // room are large enough.
        SealRefused::NotIp => Loss::Malformed,
        SealRefused::TooLong | SealRefused::NoRoom => Loss::TooLong,
        SealRefused::Fragment => Loss::EspFragment,
        SealRefused::SequenceExhausted | SealRefused::Unreserved => Loss::SequenceExhausted,
        SealRefused::Expired => Loss::SaExpired,
        SealRefused::Cipher => Loss::Cipher,
    }
}
