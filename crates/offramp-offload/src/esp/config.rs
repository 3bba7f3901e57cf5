//! What a security association is made from, and what is wrong with one that is not.

use super::keys::SecretKey;
use super::lifetime::Lifetime;
use super::replay::{REPLAY_WINDOW_DEFAULT, REPLAY_WINDOW_MAX, REPLAY_WINDOW_MIN};
use super::selector::Selector;
use super::suite::Suite;
use super::tunnel::Tunnel;
use super::udp::UdpPorts;
use std::net::IpAddr;

/// Smallest SPI that an association may have: 0 is local, 1 to 255 are reserved (RFC 4303 2.1).
pub const SPI_MIN: u32 = 256;

/// What a packet is wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The transport header and what follows are protected; the IP header stays (RFC 4303 3.1.1).
    Transport,
    /// The whole IP packet is protected, behind an IP header of its own (RFC 4303 3.1.2).
    Tunnel(Tunnel),
}

/// A security association in one direction (RFC 4301 4.1).
///
/// A counter-mode suite (GCM, ChaCha20, GMAC) must never meet the same key with the same sequence
/// number twice: a key that is used again after a restart must go on behind the last `sequence`
/// (RFC 4106 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaConfig {
    /// Security parameters index, [`SPI_MIN`] and up.
    pub spi: u32,
    /// Cipher and integrity check.
    pub suite: Suite,
    /// Key of the cipher, with its salt behind it where the suite has one.
    pub encryption_key: SecretKey,
    /// Key of the HMAC; none for an AEAD.
    pub integrity_key: SecretKey,
    /// Allows the suites that are only for old peers.
    pub legacy: bool,
    /// Transport or tunnel.
    pub mode: Mode,
    /// Extended sequence numbers of 64 bits (RFC 4304).
    pub esn: bool,
    /// Anti-replay window of a receiver, packets.
    pub replay_window: u32,
    /// The last sequence number sent, or the highest received; 0 for a new association.
    pub sequence: u64,
    /// Ports of UDP encapsulation (RFC 3948), if it is used.
    pub udp: Option<UdpPorts>,
    /// A sender behind a NAT: after so many seconds without a packet a NAT-keepalive goes (RFC 3948 4). `None` where
    /// no NAT is to be reminded. It is for whoever owns the line to send it; see [`super::write_keepalive`].
    pub keepalive_seconds: Option<u32>,
    /// Limits in packets, bytes and time.
    pub lifetime: Lifetime,
    /// Which packets may come out of it; a receiver refuses the others (RFC 4301 5.2).
    pub selector: Selector,
    /// Where packets to this association are addressed: the outer destination. `None` takes any.
    /// A tunnel's own destination counts beside it.
    pub destination: Option<IpAddr>,
}

/// Why a security association is not made. Nothing of it is then installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSa {
    /// Below [`SPI_MIN`].
    #[error("SA {spi:#010x}: this SPI is reserved (RFC 4303 2.1); take one from 0x00000100 up")]
    ReservedSpi {
        /// The SPI.
        spi: u32,
    },
    /// Another association of the table has it.
    #[error("SA {spi:#010x}: another SA has this SPI; delete that one first or take another SPI")]
    DuplicateSpi {
        /// The SPI.
        spi: u32,
    },
    /// The encryption key is too short or too long.
    #[error(
        "SA {spi:#010x}: {suite} takes an encryption key of {expected} bytes{salt}, this one has {given}",
        salt = if suite.has_salt() { " (4 of them salt)" } else { "" }
    )]
    EncryptionKeyLen {
        /// The SPI.
        spi: u32,
        /// The suite.
        suite: Suite,
        /// What the suite takes, bytes.
        expected: usize,
        /// What was given, bytes.
        given: usize,
    },
    /// The integrity key is too short or too long.
    #[error("SA {spi:#010x}: {suite} takes an integrity key of {expected} bytes, this one has {given}")]
    IntegrityKeyLen {
        /// The SPI.
        spi: u32,
        /// The suite.
        suite: Suite,
        /// What the suite takes, bytes.
        expected: usize,
        /// What was given, bytes.
        given: usize,
    },
    /// A legacy suite that was not asked for as such.
    #[error("SA {spi:#010x}: {suite} is only for old peers; set legacy = true to use it, or take aes128gcm16")]
    Legacy {
        /// The SPI.
        spi: u32,
        /// The suite.
        suite: Suite,
    },
    /// The cipher library refuses the key: parts of a 3DES key are weak or equal.
    #[error("SA {spi:#010x}: the encryption key is weak for {suite}; make a new one at random")]
    WeakKey {
        /// The SPI.
        spi: u32,
        /// The suite.
        suite: Suite,
    },
    /// A window that is not offered.
    #[error(
        "SA {spi:#010x}: a replay window of {given} packets is not offered; \
         take {REPLAY_WINDOW_MIN} to {REPLAY_WINDOW_MAX}"
    )]
    ReplayWindow {
        /// The SPI.
        spi: u32,
        /// What was asked for, packets.
        given: u32,
    },
    /// A sequence number that does not fit.
    #[error("SA {spi:#010x}: sequence number {given} needs more than 32 bits; switch esn on, or make a new SA")]
    Sequence {
        /// The SPI.
        spi: u32,
        /// What was given.
        given: u64,
    },
    /// The ends of a tunnel.
    #[error(
        "SA {spi:#010x}: the tunnel's source {source_address} and destination {destination} are of two IP versions"
    )]
    TunnelAddresses {
        /// The SPI.
        spi: u32,
        /// The tunnel's source.
        source_address: IpAddr,
        /// The tunnel's destination.
        destination: IpAddr,
    },
    /// A DSCP of more than six bits.
    #[error("SA {spi:#010x}: a DSCP has six bits, {given} is too large; take 0 to 63")]
    Dscp {
        /// The SPI.
        spi: u32,
        /// What was given.
        given: u8,
    },
    /// A soft limit that lies behind its hard limit, or a limit of 0.
    #[error("SA {spi:#010x}: lifetime in {unit}: soft {soft} and hard {hard} must be above 0, the soft one not behind")]
    Lifetime {
        /// The SPI.
        spi: u32,
        /// `packets`, `bytes` or `seconds`.
        unit: &'static str,
        /// The soft limit.
        soft: u64,
        /// The hard limit.
        hard: u64,
    },
    /// Keepalives without UDP encapsulation, or without a pause between them.
    #[error(
        "SA {spi:#010x}: NAT-keepalives every {given} seconds need UDP encapsulation and at least 1 second; \
         RFC 3948 uses 20"
    )]
    Keepalive {
        /// The SPI.
        spi: u32,
        /// What was given, seconds.
        given: u32,
    },
    /// UDP ports of 0.
    #[error("SA {spi:#010x}: UDP encapsulation needs ports above 0; RFC 3948 uses 4500")]
    UdpPorts {
        /// The SPI.
        spi: u32,
    },
}

impl SaConfig {
    /// A new association in transport mode with a window of 64 packets, without extended sequence
    /// numbers, encapsulation, limits or selectors.
    pub fn new(spi: u32, suite: Suite, encryption_key: SecretKey, integrity_key: SecretKey) -> Self {
        Self {
            spi,
            suite,
            encryption_key,
            integrity_key,
            legacy: false,
            mode: Mode::Transport,
            esn: false,
            replay_window: REPLAY_WINDOW_DEFAULT,
            sequence: 0,
            udp: None,
            keepalive_seconds: None,
            lifetime: Lifetime::default(),
            selector: Selector::default(),
            destination: None,
        }
    }

    /// Whether an association can be made of this.
    ///
    /// # Errors
    /// The first thing that is wrong, as one line that names the association.
    pub fn validate(&self) -> Result<(), InvalidSa> {
        let spi = self.spi;
        if spi < SPI_MIN {
            return Err(InvalidSa::ReservedSpi { spi });
        }
        self.validate_keys()?;
        if !(REPLAY_WINDOW_MIN..=REPLAY_WINDOW_MAX).contains(&self.replay_window) {
            return Err(InvalidSa::ReplayWindow { spi, given: self.replay_window });
        }
        if !self.esn && self.sequence > u64::from(u32::MAX) {
            return Err(InvalidSa::Sequence { spi, given: self.sequence });
        }
        if self.udp.is_some_and(|ports| ports.source == 0 || ports.destination == 0) {
            return Err(InvalidSa::UdpPorts { spi });
        }
        if let Some(given) = self.keepalive_seconds.filter(|&seconds| seconds == 0 || self.udp.is_none()) {
            return Err(InvalidSa::Keepalive { spi, given });
        }
        self.validate_lifetime("packets", self.lifetime.soft_packets, self.lifetime.hard_packets)?;
        self.validate_lifetime("bytes", self.lifetime.soft_bytes, self.lifetime.hard_bytes)?;
        self.validate_lifetime("seconds", self.lifetime.soft_seconds, self.lifetime.hard_seconds)?;
        match &self.mode {
            Mode::Transport => Ok(()),
            Mode::Tunnel(tunnel) => tunnel.validate(spi),
        }
    }

    fn validate_keys(&self) -> Result<(), InvalidSa> {
        let (spi, suite) = (self.spi, self.suite);
        if suite.is_legacy() && !self.legacy {
            return Err(InvalidSa::Legacy { spi, suite });
        }
        let (expected, given) = (suite.encryption_key_len(), self.encryption_key.len());
        if expected != given {
            return Err(InvalidSa::EncryptionKeyLen { spi, suite, expected, given });
        }
        let (expected, given) = (suite.integrity_key_len(), self.integrity_key.len());
        if expected != given {
            return Err(InvalidSa::IntegrityKeyLen { spi, suite, expected, given });
        }
        Ok(())
    }

    fn validate_lifetime(&self, unit: &'static str, soft: Option<u64>, hard: Option<u64>) -> Result<(), InvalidSa> {
        let (soft, hard) = (soft.unwrap_or(1), hard.unwrap_or(u64::MAX));
        if soft == 0 || hard == 0 || soft > hard {
            return Err(InvalidSa::Lifetime { spi: self.spi, unit, soft, hard });
        }
        Ok(())
    }
}
