//! Events of a port's security associations, and warnings to the operator.

use offramp_adapter::ipsec::SaDirection;
use offramp_adapter::pair::PortControl;
use offramp_offload::esp::{Mode, SaConfig, Selector};
use offramp_offload::sync::lock;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// Maximum number of stored events, which `show` reports.
const EVENTS_MAX: usize = 16;

/// The last events of a port's security associations.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<VecDeque<String>>);

impl EventLog {
    /// Prints and stores the events of the associations of `control`, from now on.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn watch(port: &str, control: &PortControl) -> io::Result<Arc<Self>> {
        let (log, (sender, events)) = (Arc::new(Self::default()), channel());
        control.ipsec().tell(sender);
        let (kept, port) = (Arc::clone(&log), port.to_owned());
        // The thread ends when the last association and the port's control are dropped.
        thread::Builder::new().name("ofr-sa-events".into()).spawn(move || {
            for event in events {
                log!("offramp: port \"{port}\": {event}");
                let mut kept = kept.lock();
                if kept.len() == EVENTS_MAX {
                    kept.pop_front();
                }
                kept.push_back(event.to_string());
            }
        })?;
        Ok(log)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        lock(&self.0)
    }

    /// Returns the last events, with the newest at the end.
    pub fn kept(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }
}

/// Warns of an association whose selector matches more than the operator may have intended.
pub fn warn_of(port: &str, direction: SaDirection, config: &SaConfig) {
    let takes_all = matches!(config.mode, Mode::Tunnel(_)) && config.selector == Selector::default();
    if direction == SaDirection::In && takes_all {
        log!(
            "offramp: port \"{port}\": SA in {:#010x}: its tunnel has no selector, so its peer may send any inner packet; \
             write port.sa.selector",
            config.spi
        );
    }
}
