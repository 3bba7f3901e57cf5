//! Types of the daemon's text formats: the keys of its file, and the requests and answers of its control socket.
//!
//! A daemon may be older than its client. So a field added later to an answer is an `Option`, or has a default that is
//! correct for older daemons.

mod answer;
mod association;
mod counts;
mod event;
mod feature;
pub(crate) mod file;
mod guest;
pub(crate) mod ipsec;
pub(crate) mod key;
pub mod limit;
pub mod moderation;
mod names;
mod request;
mod sandbox;
mod status;
mod switch;
#[cfg(test)]
pub(crate) mod tests;
pub mod unit;
mod word;

pub use crate::kind::{HostStatus, WireStatus, tap::Status as TapStatus, vhost_user::Status as GuestStatus};
pub use answer::{Answer, Changed, Outcome, Refusal, RefusalCode};
pub use association::{AssociationStatus, IpsecStatus};
pub use counts::Counts;
pub use event::{Event, EventKind, LimitDirection, Settings};
pub use feature::{FeatureStatus, WaitsFor, feature};
pub use guest::{CoalescingStatus, ControlQueueStatus, FilterStatus, HashStatus};
pub use ipsec::{LifetimeKeys, SaKeys, SelectorKeys, Shape, UdpKeys, Word, direction};
pub use key::{KeyText, open_private};
pub use limit::Limit;
pub use moderation::Moderation;
pub use names::{Difference, Names};
pub use request::{CAPTURE_BUFFER, CAPTURE_BUFFER_DEFAULT, Request, SNAPLEN_MAX, VERSION};
pub use sandbox::{SandboxLevel, SandboxStatus};
pub use status::{DirectionStatus, HistogramStatus, PortStatus, QueueStatus, Rates, Status, WireLost};
pub(crate) use status::{LostFrames, lost_frames};
pub use switch::{FloodStatus, ReservedStatus, STATIONS_MAX, StationStatus, SwitchStatus};
pub use word::unknown;
