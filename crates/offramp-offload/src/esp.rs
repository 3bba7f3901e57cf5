//! IPsec: the Encapsulating Security Payload (ESP, RFC 4303), sealed and opened in the adapter.
//!
//! ```text
//! clear      | Ethernet | IP | TCP ........ |
//!
//! transport  | Ethernet | IP | [UDP] | SPI, sequence | IV | TCP ........ | padding, its length, next header | ICV |
//! tunnel     | Ethernet | outer IP | [UDP] | SPI, sequence | IV | IP | TCP ........ | padding, … | ICV |
//!                                                               |<-------- encrypted ------------>|
//! ```
//!
//! The payload stays in place: [`OutboundSa::seal_in_place`] moves the headers towards lower addresses, and
//! [`InboundSa::open`] moves the headers back. [`OutboundSa::seal`] copies into another buffer. [`SealedSegments`]
//! segments a super-frame and seals each segment.
//!
//! | feature | source |
//! |---|---|
//! | AES-GCM-16 | RFC 4106 |
//! | ChaCha20-Poly1305 | RFC 7634 |
//! | AES-GMAC | RFC 4543 |
//! | AES-CBC, NULL with HMAC-SHA-1-96, -256-128, -384-192, -512-256 | RFC 3602, 2410, 2404, 4868 |
//! | 3DES-CBC with HMAC-SHA-1-96, only as `legacy` | RFC 2451 |
//! | implicit IV | RFC 8750 |
//! | extended sequence numbers | RFC 4304, RFC 4303 appendix A |
//! | UDP encapsulation | RFC 3948 |
//! | DF, DSCP, ECN of tunnels | RFC 4301 5.1.2, RFC 6040 |
//!
//! A tunnel does not decrement the inner TTL: the packets originate from the host, and the adapter is no router. The
//! caller provides keys; this module has no key exchange. [`xfrm`] parses Linux' security associations from commands
//! and output of `ip xfrm`.
//!
//! A [`CipherLibrary`] provides the ciphers, by default [`aws_lc()`].

mod aws_lc;
mod cipher;
mod config;
mod error;
mod keys;
mod library;
mod lifetime;
mod open;
mod replay;
mod seal;
mod segments;
mod selector;
mod shared;
mod suite;
mod table;
#[cfg(test)]
mod tests;
mod trailer;
mod tunnel;
mod udp;
mod usual;
pub mod xfrm;

pub use config::{Mode, SPI_MIN, SaConfig};
pub use error::{InvalidSa, Refused, RefusedCounts, SaFault, SealRefused};
pub use keys::{FINGERPRINT_LEN, InvalidHex, SecretKey};
pub use library::{Aad, Aead, AeadAlgorithm, CipherFailed, CipherLibrary, NONCE_LEN, Nonce, aws_lc};
pub use lifetime::{Lifetime, LifetimeEvent};
pub use open::{Decrypted, InboundSa, NEXT_HEADER_NONE, Opened, Opener};
pub use replay::{REPLAY_WINDOW_DEFAULT, REPLAY_WINDOW_MAX, REPLAY_WINDOW_MIN, ReplayRefused, ReplayWindow};
pub use seal::{OutboundSa, Sealed};
pub use segments::{PlanRefused, SealedRun, SealedSegments};
pub use selector::{Prefix, Selector};
pub use shared::{Grant, SharedInbound, SharedOutbound};
pub use suite::{AesKey, Hmac, Suite, TAG_LEN, UnknownSuite};
pub use table::SaTable;
pub use tunnel::{DfRule, DscpRule, EcnRule, HOP_LIMIT_DEFAULT, Tunnel};
pub use udp::{Arrival, EspPacket, KEEPALIVE, NON_ESP_MARKER, UDP_ENCAPSULATION_PORT, UdpPorts, write_keepalive};
