//! Our end: a TAP whose adapter does IPsec, and a cable to the guest's vhost-user port.

use super::judge::AdapterCounts;
use crate::failure::{Doing, Result, failed};
use crate::guest::{self, TAP};
use crate::seam::{self, PortArgs};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection};
use offramp_adapter::pair::{Control, QueuePair};
use offramp_offload::caps::Offloads;
use offramp_offload::esp::xfrm::{Association, Direction, Owner, XfrmConfig};
use offramp_ports::sys::NetNs;
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::vhost_user::VhostUser;
use offramp_ports::worker::{Task, Worker};
use std::path::Path;
use std::sync::Arc;

/// The name of the worker thread.
const WORKER_NAME: &str = "xtask-ipsec";

/// Both adapters, running. Dropped in this order: the worker uses the ports.
pub struct Link {
    worker: Worker,
    control: Arc<Control>,
    _tap: Tap,
    _port: VhostUser,
}

impl Link {
    /// Opens both ports, the TAP in the namespace, and joins them.
    ///
    /// # Errors
    /// When a port cannot be opened or the worker cannot start.
    pub fn start(socket: &Path, ns: &NetNs) -> Result<Self> {
        let args = PortArgs { socket: socket.to_owned(), client: false, queues: 1, mtu: guest::MTU };
        let (port, mut guests) = seam::open(&args)?;
        let tap = ns.run(open_tap).doing("entering the namespace")??;
        let (Some(host), Some(guest)) = (tap.queue(0), guests.pop()) else { return failed("a port has no queue") };
        let config = AdapterConfig { mtu: usize::from(guest::MTU), ..AdapterConfig::default() };
        let (host_end, guest_end) = cable(&CableConfig { mtu: config.mtu, ..CableConfig::default() });
        let (control, guest_control) = (Control::new(&config), Control::new(&config));
        let tasks: Vec<Box<dyn Task>> = vec![
            Box::new(QueuePair::new(&config, &control, 0, host, host_end)),
            Box::new(QueuePair::new(&config, &guest_control, 0, guest, guest_end)),
        ];
        let worker = Worker::start(WORKER_NAME, tasks, None).doing("starting the worker")?;
        Ok(Self { worker, control, _tap: tap, _port: port })
    }

    /// Installs what a text of `ip xfrm` means for this end.
    ///
    /// # Errors
    /// When the text is refused, or the adapter refuses what it says.
    pub fn install(&self, text: &str, owner: Owner) -> Result<()> {
        let config = XfrmConfig::parse(text).doing("the import")?;
        let associations = config.associations(owner, false).doing("the import")?;
        let changes: Vec<_> = associations.into_iter().map(added).collect();
        self.control.change_ipsec(&changes).map_err(|(_, why)| why).doing("installing associations")
    }

    /// Takes out every association.
    ///
    /// # Errors
    /// When the adapter does not.
    pub fn remove_all(&self) -> Result<()> {
        let status = self.control.ipsec().status();
        let removed =
            |sa: &offramp_adapter::ipsec::SaStatus| SaChange::Remove { direction: sa.direction, spi: sa.config.spi };
        let changes: Vec<_> = status.iter().map(removed).collect();
        self.control.change_ipsec(&changes).map_err(|(_, why)| why).doing("removing associations")
    }

    /// What the adapter has counted.
    pub fn counts(&self) -> AdapterCounts {
        AdapterCounts::of(&self.control)
    }

    /// Whether the worker still runs.
    pub fn is_running(&self) -> bool {
        self.worker.is_running()
    }
}

fn added(association: Association) -> SaChange {
    let direction = match association.direction {
        Direction::In => SaDirection::In,
        Direction::Out => SaDirection::Out,
    };
    SaChange::Add { direction, config: Box::new(association.config) }
}

fn open_tap() -> Result<Tap> {
    let tap = Tap::open(&TapConfig { mtu: u32::from(guest::MTU), ..TapConfig::new(TAP) }).doing("making the TAP")?;
    tap.offer(Offloads::all()).doing("making the TAP")?;
    Ok(tap)
}
