//! The description of a security association, and its validation.

use super::error::{InvalidSa, SaFault};
use super::keys::SecretKey;
use super::lifetime::Lifetime;
use super::replay::{REPLAY_WINDOW_DEFAULT, REPLAY_WINDOW_MAX, REPLAY_WINDOW_MIN};
use super::selector::Selector;
use super::suite::Suite;
use super::tunnel::Tunnel;
use super::udp::UdpPorts;
use std::net::IpAddr;

/// Minimum SPI of an association. SPI 0 is for local use, and SPIs 1 to 255 are reserved (RFC 4303 2.1).
pub const SPI_MIN: u32 = 256;

/// The encapsulation mode of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The transport header and the bytes after it are protected. The IP header stays unprotected before the ESP header
    /// (RFC 4303 3.1.1).
    Transport,
    /// The whole IP packet is protected and follows an outer IP header (RFC 4303 3.1.2).
    Tunnel(Tunnel),
}

/// A security association in one direction (RFC 4301 4.1).
///
/// A counter-mode suite (GCM, ChaCha20, GMAC) must never use one sequence number twice with the same key. So after a
/// restart, an association with the same key continues with the sequence number after `sequence` (RFC 4106 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaConfig {
    /// Security parameters index, [`SPI_MIN`] or higher.
    pub spi: u32,
    /// Suite of cipher and integrity check.
    pub suite: Suite,
    /// Key of the cipher, followed by the salt if the suite uses a salt.
    pub encryption_key: SecretKey,
    /// Key of the HMAC. Empty for an AEAD.
    pub integrity_key: SecretKey,
    /// True to allow the suites that exist only for old peers.
    pub legacy: bool,
    /// Transport or tunnel mode.
    pub mode: Mode,
    /// True for extended sequence numbers of 64 bits (RFC 4304).
    pub esn: bool,
    /// Size of a receiver's anti-replay window, packets.
    pub replay_window: u32,
    /// Last sequence number that the sender used, or highest sequence number that the receiver accepted. 0 for a new
    /// association.
    pub sequence: u64,
    /// Ports of UDP encapsulation (RFC 3948), or `None` without encapsulation.
    pub udp: Option<UdpPorts>,
    /// Idle time in seconds before a sender behind a NAT sends a NAT-keepalive (RFC 3948 4), or `None` for no
    /// keepalives. The owner of the wire sends the keepalive, see [`super::write_keepalive`].
    pub keepalive_seconds: Option<u32>,
    /// Limits of the association in packets, bytes and time.
    pub lifetime: Lifetime,
    /// Selector of the allowed clear packets. A receiver refuses all other packets (RFC 4301 5.2).
    pub selector: Selector,
    /// Required outer destination address of the packets that this association receives. `None` means the tunnel's
    /// destination in tunnel mode, and any destination in transport mode.
    pub destination: Option<IpAddr>,
}

impl SaConfig {
    /// Returns a new association in transport mode with a window of 64 packets, without extended sequence numbers,
    /// encapsulation, limits or selectors.
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

    /// Validates the description.
    ///
    /// # Errors
    /// Returns the first fault found. The text of the error is one line that names the association.
    pub fn validate(&self) -> Result<(), InvalidSa> {
        self.check().map_err(|fault| self.invalid(fault))
    }

    pub(super) fn invalid(&self, fault: SaFault) -> InvalidSa {
        InvalidSa { spi: self.spi, fault }
    }

    fn check(&self) -> Result<(), SaFault> {
        if self.spi < SPI_MIN {
            return Err(SaFault::ReservedSpi);
        }
        self.check_keys()?;
        if !(REPLAY_WINDOW_MIN..=REPLAY_WINDOW_MAX).contains(&self.replay_window) {
            return Err(SaFault::ReplayWindow(self.replay_window));
        }
        if !self.esn && self.sequence > u64::from(u32::MAX) {
            return Err(SaFault::Sequence(self.sequence));
        }
        if self.udp.is_some_and(|ports| ports.source == 0 || ports.destination == 0) {
            return Err(SaFault::UdpPorts);
        }
        if let Some(given) = self.keepalive_seconds.filter(|&seconds| seconds == 0 || self.udp.is_none()) {
            return Err(SaFault::Keepalive(given));
        }
        check_lifetime("packets", self.lifetime.soft_packets, self.lifetime.hard_packets)?;
        check_lifetime("bytes", self.lifetime.soft_bytes, self.lifetime.hard_bytes)?;
        check_lifetime("seconds", self.lifetime.soft_seconds, self.lifetime.hard_seconds)?;
        self.tunnel().map_or(Ok(()), Tunnel::check)
    }

    fn check_keys(&self) -> Result<(), SaFault> {
        let suite = self.suite;
        if suite.is_legacy() && !self.legacy {
            return Err(SaFault::Legacy(suite));
        }
        let (expected, given) = (suite.encryption_key_len(), self.encryption_key.len());
        if expected != given {
            return Err(SaFault::EncryptionKeyLen { suite, expected, given });
        }
        let (expected, given) = (suite.integrity_key_len(), self.integrity_key.len());
        if expected != given {
            return Err(SaFault::IntegrityKeyLen { suite, expected, given });
        }
        Ok(())
    }

    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        match &self.mode {
            Mode::Transport => None,
            Mode::Tunnel(tunnel) => Some(tunnel),
        }
    }
}

fn check_lifetime(unit: &'static str, soft: Option<u64>, hard: Option<u64>) -> Result<(), SaFault> {
    let (soft, hard) = (soft.unwrap_or(1), hard.unwrap_or(u64::MAX));
    if soft == 0 || hard == 0 || soft > hard {
        return Err(SaFault::Lifetime { unit, soft, hard });
    }
    Ok(())
}
