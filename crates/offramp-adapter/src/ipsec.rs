//! IPsec in the adapter: chooses the packets to protect and their security association, and judges all others.
//!
//! The host sends and takes clear frames; the wire carries ESP. Transmit seals a packet with the first outbound
//! association with a matching selector; receive finds the inbound association by the SPI of the packet. Before the
//! associations the entries of the policy protect, bypass or discard; a packet without any match passes unprotected or
//! is discarded ([`Policy`]). A clear packet that an inbound association should have protected is always discarded (RFC
//! 4301 5.2). After an association is removed, packets it protected are discarded.
//!
//! Associations change while frames flow ([`PortControl::change_ipsec`](crate::pair::PortControl::change_ipsec)): all
//! requested changes are checked first, then they come into force for each queue pair between two super-frames. Several
//! queue pairs share an association; each seals with numbers granted to it alone.

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

/// Default overlap of a replaced inbound association with the new one, nanoseconds: longer than any frame is under way,
/// and time enough for a peer that switches by hand.
pub const REKEY_GRACE_NS_DEFAULT: u64 = 30_000_000_000;

/// The direction of an association: `out` or `in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum SaDirection {
    /// Host to wire: it seals.
    Out,
    /// Wire to host: it opens.
    In,
}

/// An event for the owner of the associations. Each is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaEvent {
    /// The direction of the association.
    pub direction: SaDirection,
    /// Its security parameters index.
    pub spi: u32,
    /// The kind of event.
    pub kind: SaEventKind,
}

/// An event of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
pub enum SaEventKind {
    /// A soft limit is reached: it is time for a new one.
    #[strum(to_string = "a soft lifetime is reached; rekey it")]
    Soft,
    /// A hard limit is reached: it protects nothing more.
    #[strum(to_string = "a hard lifetime is reached; it protects nothing more")]
    Hard,
    /// The last sequence number was used: it seals nothing more (RFC 4303 3.3.3).
    #[strum(to_string = "its sequence numbers are used up and it sends nothing more; rekey it, or make it with esn")]
    SequenceExhausted,
    /// It was replaced, its time of grace is over, and it is gone.
    #[strum(to_string = "was replaced, and its time of grace is over")]
    Retired,
}

impl fmt::Display for SaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SA {} {:#010x}: {}", self.direction, self.spi, self.kind)
    }
}

/// The associations and policy in force: replaced as a whole, never changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct InForce {
    policy: Policy,
    removed: Removed,
    /// The first one with a matching selector seals.
    outbound: Vec<Arc<Outbound>>,
    inbound: Vec<Arc<Inbound>>,
}

impl InForce {
    /// Returns whether frames without an association pass as if there were no IPsec.
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
        // Frames other than IP are never sealed, and the buffers of a wire with room are large enough.
        SealRefused::NotIp => Loss::Malformed,
        SealRefused::TooLong | SealRefused::NoRoom => Loss::TooLong,
        SealRefused::Fragment => Loss::EspFragment,
        SealRefused::SequenceExhausted | SealRefused::Unreserved => Loss::SequenceExhausted,
        SealRefused::Expired => Loss::SaExpired,
        SealRefused::Cipher => Loss::Cipher,
    }
}
