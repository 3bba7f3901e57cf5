//! Two adapters on a cable, polled by one thread. The adapters connect the tested host with a host of the test harness.

use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_offload::caps::Offloads;
use offramp_ports::tap::{Tap, TapConfig, TapError};
use offramp_ports::worker::{HostIo, Task, Worker};
use offramp_testbed::failure::{self, Doing};
use std::sync::Arc;

/// Two running adapters. Drop the adapters before the guests and TAPs whose queues the adapters use.
pub struct Adapters {
    worker: Worker,
    /// The control of the first port's adapter.
    pub control: Arc<PortControl>,
}

impl Adapters {
    /// Starts an adapter with the same configuration behind each port, and connects both adapters.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start<H, F>(name: &'static str, config: &AdapterConfig, host: H, far: F) -> failure::Result<Self>
    where
        H: HostIo + Send + 'static,
        F: HostIo + Send + 'static,
    {
        let (host_end, far_end) = cable(&CableConfig { mtu: config.mtu, ..CableConfig::default() });
        let (control, far_control) = (PortControl::new(config), PortControl::new(config));
        let tasks: Vec<Box<dyn Task>> = vec![
            Box::new(QueuePair::new(config, &control, 0, host, host_end)),
            Box::new(QueuePair::new(config, &far_control, 0, far, far_end)),
        ];
        let worker = Worker::start(name, tasks, None).doing("starting the worker")?;
        Ok(Self { worker, control })
    }

    /// Returns whether both ports are still open.
    pub fn is_running(&self) -> bool {
        self.worker.is_running()
    }
}

/// Creates a TAP that offers every offload.
///
/// # Errors
/// Returns an error if the kernel refuses the TAP or the offer.
pub fn open_tap(config: &TapConfig) -> Result<Tap, TapError> {
    let tap = Tap::open(config)?;
    tap.offer(Offloads::all())?;
    Ok(tap)
}
