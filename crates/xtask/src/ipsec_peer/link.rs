//! The host's end: a TAP with an IPsec adapter, and a cable to the guest's vhost-user port.

use super::judge::AdapterCounts;
use crate::adapters::{Adapters, open_tap};
use crate::seam::{self, OfferArgs};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_offload::esp::xfrm::{Association, Direction, Owner, XfrmConfig};
use offramp_ports::sys::NetNs;
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::vhost_user::VhostUser;
use offramp_testbed::failure::{Doing, Result, failed, inside};
use offramp_testbed::guest::busybox::{MTU, TAP};
use std::path::Path;

/// The name of the worker thread.
const WORKER_NAME: &str = "xtask-ipsec";

/// Time in nanoseconds for which the adapter holds a frame for coalescing. The time is long, because an emulated guest
/// sends segments far apart.
const HOLD_NS: u64 = 2_000_000;

/// Both running adapters. The fields are dropped in order of declaration, so that the adapters end before the ports
/// that they use.
pub struct Link {
    adapters: Adapters,
    _tap: Tap,
    _port: VhostUser,
}

impl Link {
    /// Opens the vhost-user port and the TAP in the namespace, and connects the two ports by two adapters and a cable.
    ///
    /// # Errors
    /// Returns an error if a port cannot be opened or the worker cannot start.
    pub fn start(socket: &Path, ns: &NetNs) -> Result<Self> {
        let (port, mut guests) = seam::open(socket, false, 1, MTU, &OfferArgs::default())?;
        let tap = inside(ns, "making the TAP", || open_tap(&TapConfig { mtu: MTU.into(), ..TapConfig::new(TAP) }))?;
        let (Some(host), Some(guest)) = (tap.queue(0), guests.pop()) else { return failed("a port has no queue") };
        let mut config = AdapterConfig { mtu: usize::from(MTU), ..AdapterConfig::default() };
        config.coalesce.hold_ns = HOLD_NS;
        Ok(Self { adapters: Adapters::start(WORKER_NAME, &config, host, guest)?, _tap: tap, _port: port })
    }

    /// Installs the host's part of a text with `ip xfrm` commands.
    ///
    /// # Errors
    /// Returns an error if the text is invalid, or the adapter refuses an association.
    pub fn install(&self, text: &str, owner: Owner) -> Result<()> {
        let config = XfrmConfig::parse(text).doing("the import")?;
        let associations = config.associations(owner, false).doing("the import")?;
        let changes: Vec<_> = associations.into_iter().map(added).collect();
        self.adapters.control.change_ipsec(&changes).map_err(|(_, why)| why).doing("installing associations")
    }

    /// Removes every association.
    ///
    /// # Errors
    /// Returns an error if the adapter refuses the removal.
    pub fn remove_all(&self) -> Result<()> {
        let status = self.adapters.control.ipsec().status();
        let removed =
            |sa: &offramp_adapter::ipsec::SaStatus| SaChange::Remove { direction: sa.direction, spi: sa.config.spi };
        // Also forget removed associations, because the next case has different associations for the same packets, or
        // none.
        let changes: Vec<_> = status.iter().map(removed).chain([SaChange::ForgetRemoved]).collect();
        self.adapters.control.change_ipsec(&changes).map_err(|(_, why)| why).doing("removing associations")
    }

    /// Returns the adapter's counters.
    pub fn counts(&self) -> AdapterCounts {
        AdapterCounts::of(&self.adapters.control)
    }

    /// Returns whether the worker still runs.
    pub fn is_running(&self) -> bool {
        self.adapters.is_running()
    }
}

fn added(association: Association) -> SaChange {
    let direction = match association.direction {
        Direction::In => SaDirection::In,
        Direction::Out => SaDirection::Out,
    };
    SaChange::Add { direction, config: Box::new(association.config) }
}
