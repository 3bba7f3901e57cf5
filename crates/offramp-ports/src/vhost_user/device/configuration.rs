//! The device's configuration as read by the driver (`struct virtio_net_config`, virtio 1.3, 5.1.4), and its changes.

use super::{Device, Refused};
use crate::vhost_user::control::Control;
use crate::vhost_user::rss::TABLE_LEN_MAX;
use crate::vhost_user::{features, rarp};
use offramp_offload::rss::{HashTypes, KEY_LEN};
use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// Length of the configuration, in bytes. A frontend can read the whole configuration.
pub(super) const CONFIG_LEN: usize = 64;
/// Bits of `status`: the link is up, and the guest must announce itself.
const LINK_UP: u16 = 1;
const ANNOUNCE: u16 = 2;
/// The value of `speed` for an unknown speed, and the values of `duplex` for unknown and for full duplex. For full
/// duplex, the specification gives both 0 and 1 (virtio 1.3, 5.1.4.1); Linux uses 1.
const SPEED_UNKNOWN: u32 = u32::MAX;
const DUPLEX_UNKNOWN: u8 = u8::MAX;
const DUPLEX_FULL: u8 = 1;

impl Device {
    /// Returns whether the configuration has changed since the frontend read it, and records the change as reported. A
    /// cleared announcement bit is not a change to report, because the guest's own command clears this bit.
    pub(crate) fn is_config_news(&mut self) -> bool {
        let status = self.link_status();
        let Some(reported) = self.status_reported.replace(status) else {
            self.status_reported = None;
            return false;
        };
        (reported ^ status) & LINK_UP != 0 || status & !reported & ANNOUNCE != 0
    }

    fn link_status(&self) -> u16 {
        let is_asked = self.control.as_ref().is_some_and(Control::is_asked_to_announce);
        (if self.link.is_up() { LINK_UP } else { 0 }) | if is_asked { ANNOUNCE } else { 0 }
    }

    pub(super) fn net_config(&mut self) -> [u8; CONFIG_LEN] {
        let status = self.link_status();
        self.status_reported = Some(status);
        let taken = self.control.as_ref().and_then(Control::mac);
        let speed = self.config.speed_mbps.filter(|_| self.control.is_some());
        let mut bytes = [0; CONFIG_LEN];
        bytes[0..6].copy_from_slice(&taken.or(self.config.mac).unwrap_or_default());
        bytes[6..8].copy_from_slice(&status.to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.queues.len() as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&self.config.mtu.unwrap_or_default().to_le_bytes());
        bytes[12..16].copy_from_slice(&speed.unwrap_or(SPEED_UNKNOWN).to_le_bytes());
        bytes[16] = if speed.is_some() { DUPLEX_FULL } else { DUPLEX_UNKNOWN };
        if self.offered() & features::RSS != 0 {
            bytes[17] = KEY_LEN as u8;
            bytes[18..20].copy_from_slice(&(TABLE_LEN_MAX as u16).to_le_bytes());
            bytes[20..24].copy_from_slice(&HashTypes::all().bits().to_le_bytes());
        }
        bytes
    }

    /// Handles `SEND_RARP`: the guest has moved to this port. A guest with `GUEST_ANNOUNCE` announces itself at the
    /// request of its frontend. If the port serves the control queue and has a backend channel, the port makes this
    /// request. The port announces all other guests itself.
    pub(crate) fn send_rarp(&mut self, payload: u64, has_channel: bool) -> Result<(), Refused> {
        if !self.speaks(VhostUserProtocolFeatures::RARP) {
            return Err(Refused::NotNegotiated("RARP"));
        }
        // The address is in the first six bytes of the message.
        let bytes = payload.to_ne_bytes();
        let mac = std::array::from_fn(|nth| bytes[nth]);
        if !rarp::is_station(mac) {
            return Err(Refused::Address(mac));
        }
        match &mut self.control {
            _ if self.features & features::GUEST_ANNOUNCE == 0 => {}
            None => return Ok(()),
            Some(control) if has_channel && self.status_reported.is_some() => {
                control.ask_to_announce();
                return Ok(());
            }
            Some(_) => {}
        }
        self.run(1, move |state, _| state.announce(Some(rarp::frame(mac))))
    }
}
