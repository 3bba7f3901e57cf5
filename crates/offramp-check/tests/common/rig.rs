//! Two TAPs with offramp's adapters and a cable between them, run in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_check::Captured;
use offramp_check::end::{Description, End, LocalEnd, Offered, Outgoing};
use offramp_check::error::CheckError;
use offramp_offload::caps::Offloads;
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::worker::{HostIo, Worker};

use super::{Bed, NAMES};

/// Delay of received frames in microseconds, so that a train is delivered as one batch.
const RX_USECS: u32 = 2000;

/// Receive offloads of an offramp adapter, with ethtool's names.
const RECEIVE: [(&str, Offloads); 3] = [
    ("rx-checksum", Offloads::RX_CHECKSUM),
    ("rx-gro-hw", Offloads::RSC),
    ("rx-udp-gro-forwarding", Offloads::RSC_UDP),
];
/// Name of the feature that strips VLAN tags. An offramp adapter lacks this feature, but a test can plant a fault in
/// the removal of tags.
const STRIPS: &str = "rx-vlan-hw-parse";
/// Name of the feature that inserts VLAN tags, offered by a TAP. A test can plant a fault in the insertion of tags.
const INSERTS: &str = "tx-vlan-hw-insert";

/// Settings of one side's adapter.
#[derive(Debug)]
pub struct Settings {
    pub control: Arc<PortControl>,
    pub strips: AtomicBool,
    pub inserts: AtomicBool,
}

impl Settings {
    pub fn has(&self, offloads: Offloads) -> bool {
        self.control.offloads().contains(offloads)
    }
}

/// The test bed, the two TAPs, and the thread that runs their adapters.
pub struct Rig {
    // Fields in drop order: the worker, the TAPs, the bed.
    _worker: Worker,
    _taps: Vec<Tap>,
    pub settings: [Arc<Settings>; 2],
    pub bed: Bed,
}

impl Rig {
    /// Builds a rig. `decorate` can wrap the host port of a side.
    pub fn new<H: HostIo + Send + 'static>(
        name: &str,
        mtu: u32,
        decorate: impl Fn(usize, TapQueue, &Arc<Settings>) -> H,
    ) -> Self {
        let bed = Bed::new(name);
        let moderation = Coalescing { max_usecs: RX_USECS, max_packets: 4096 };
        let config = AdapterConfig {
            mtu: mtu as usize,
            moderation: ModerationConfig { policy: Policy::Coalescing(moderation), ..ModerationConfig::default() },
            ..AdapterConfig::default()
        };
        let settings = [0, 1].map(|_| {
            let control = PortControl::new(&config);
            Arc::new(Settings { control, strips: AtomicBool::new(false), inserts: AtomicBool::new(false) })
        });
        let ends = cable(&CableConfig { mtu: mtu as usize, ..CableConfig::default() });
        let (mut taps, mut pairs) = (Vec::new(), Vec::new());
        for (side, wire) in [ends.0, ends.1].into_iter().enumerate() {
            let tap_config = TapConfig { mtu, ..TapConfig::new(NAMES[side]) };
            let tap = Tap::open_in(&bed.namespaces[side], &tap_config).unwrap();
            tap.offer(Offloads::all()).unwrap();
            let host = decorate(side, tap.queue(0).unwrap(), &settings[side]);
            pairs.push(QueuePair::new(&config, &settings[side].control, 0, host, wire));
            taps.push(tap);
        }
        bed.set_up(mtu);
        let worker = Worker::start("check-rig", pairs, None).unwrap();
        Self { _worker: worker, _taps: taps, settings, bed }
    }

    pub fn ends(&self) -> [Box<dyn End>; 2] {
        [0, 1].map(|side| -> Box<dyn End> {
            let settings = Arc::clone(&self.settings[side]);
            Box::new(RigEnd { tap: self.bed.end(side).unwrap(), settings })
        })
    }
}

/// A TAP with the receive offloads of its adapter.
struct RigEnd {
    tap: LocalEnd,
    settings: Arc<Settings>,
}

impl RigEnd {
    fn set(&self, features: &[(&'static str, bool)]) {
        let mut offloads = Offloads::all();
        for (name, offload) in RECEIVE {
            if features.contains(&(name, false)) {
                offloads -= offload;
            }
        }
        self.settings.control.set_offloads(offloads);
        self.settings.strips.store(features.contains(&(STRIPS, true)), Ordering::Relaxed);
    }
}

impl End for RigEnd {
    fn description(&self) -> &Description {
        self.tap.description()
    }

    fn offered(&self, feature: &str) -> Offered {
        match feature {
            _ if feature == STRIPS || RECEIVE.iter().any(|(name, _)| *name == feature) => Offered::Switchable,
            // Linux does not coalesce frames received from a TAP without `IFF_NAPI`.
            "rx-gro" => Offered::No,
            _ => self.tap.offered(feature),
        }
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        let is_receive = features.iter().any(|(name, _)| name.starts_with("rx-"));
        if is_receive {
            self.set(features);
            // The adapter applies the new offloads with its next batch.
            std::thread::sleep(Duration::from_millis(5));
            return Ok(());
        }
        self.settings.inserts.store(features.contains(&(INSERTS, true)), Ordering::Relaxed);
        self.tap.apply(features)
    }

    fn is_on(&self, feature: &str) -> bool {
        match RECEIVE.iter().find(|(name, _)| *name == feature) {
            Some((_, offload)) => self.settings.has(*offload),
            None if feature == STRIPS => self.settings.strips.load(Ordering::Relaxed),
            None => self.tap.is_on(feature),
        }
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        self.tap.send(frame)
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        self.tap.receive(wait)
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        self.tap.check_link()
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        self.tap.finish()
    }
}
