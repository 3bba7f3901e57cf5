//! loom tests of a sleeping worker, with every interleaving of the threads.

use super::*;
use loom::thread;
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{ModerationConfig, Policy};
use offramp_adapter::pair::PortControl;
use offramp_adapter::port::{HostPort, InPlace, InterruptCounts, Interrupts, WirePort};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;

/// Length of the shortest frame, in bytes.
const FRAME_LEN: usize = 60;
/// A moderation setting that differs from the initial setting of every port.
const CHANGED: ModerationConfig = ModerationConfig { policy: Policy::Off, ring_guard_frames: 77 };

fn shared() -> Arc<Shared> {
    let bell = Arc::new(Bell::new().unwrap());
    Arc::new(Shared {
        bell,
        stop: AtomicBool::new(false),
        thread_id: AtomicI32::new(0),
        turns: AtomicU64::new(0),
        task: AtomicUsize::new(NO_TASK),
        polling: Mutex::default(),
    })
}

fn drive<T: Task>(task: T, shared: &Shared) {
    run(vec![(0, task)], shared, PollTime::new(Polling::Off));
}

fn closed() -> PortError {
    PortError::Closed(1)
}

/// A host that ends its own worker: at the first poll, or only after its moderation has changed.
struct Host {
    shared: Arc<Shared>,
    ends_when_polled: bool,
}

impl InPlace for Host {}

impl HostPort for Host {
    fn tx_next(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        if self.ends_when_polled {
            self.shared.end();
        }
        Ok(false)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        Frame::received(&mut [])
    }

    fn rx_deliver(&mut self, _meta: &RxMeta, _frame: &[u8]) -> Result<(), PortError> {
        Ok(())
    }

    fn interrupts(&mut self, queue: usize) -> Option<&mut dyn Interrupts> {
        (queue == 0).then_some(self)
    }

    fn accepts(&self) -> Offloads {
        Offloads::empty()
    }
}

impl Interrupts for Host {
    fn moderate(&mut self, config: &ModerationConfig) {
        self.ends_when_polled |= *config == CHANGED;
    }

    fn send_due(&mut self, _now_ns: u64) -> InterruptCounts {
        InterruptCounts::default()
    }

    fn next_due_ns(&self) -> Option<u64> {
        None
    }

    fn cost_ns(&self) -> u64 {
        0
    }

    fn wait_max_ns(&self) -> u64 {
        0
    }
}

impl HostIo for Host {
    fn watch<'a>(&'a self, _is_held: bool, _watch: &mut dyn FnMut(BorrowedFd<'a>)) {}
}

fn send_one(end: &mut CableEnd) -> bool {
    let is_lent = end.lend(FRAME_LEN, 1).is_some();
    if is_lent {
        end.put(FRAME_LEN, 1, 0);
        end.flush();
    }
    is_lent
}

/// Receives frames from a cable until all expected frames have arrived.
struct Receiver {
    end: CableEnd,
    expected: usize,
}

impl Task for Receiver {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let mut taken = 0;
        while self.end.take(now_ns).is_some() {
            taken += 1;
        }
        self.expected -= taken;
        if self.expected == 0 { Err(closed()) } else { Ok(taken > 0) }
    }

    fn arm(&mut self, waker: &Waker) {
        self.end.register(waker);
    }

    fn disarm(&mut self) {
        self.end.unregister();
    }

    fn watch<'a>(&'a mut self, _now_ns: u64, _watch: &mut Watch<'a>) {}
}

/// Sends one frame as soon as the cable has room.
struct Transmitter(CableEnd);

impl Task for Transmitter {
    fn poll(&mut self, _now_ns: u64) -> Result<bool, PortError> {
        if send_one(&mut self.0) { Err(closed()) } else { Ok(false) }
    }

    fn arm(&mut self, waker: &Waker) {
        self.0.register(waker);
    }

    fn disarm(&mut self) {
        self.0.unregister();
    }

    fn watch<'a>(&'a mut self, _now_ns: u64, _watch: &mut Watch<'a>) {}
}

#[test]
fn a_worker_that_sleeps_wakes_for_each_frame_of_its_cable() {
    loom::model(|| {
        let (mut here, there) = cable(&CableConfig::default());
        let shared = shared();
        let worker = thread::spawn(move || {
            drive(Receiver { end: there, expected: 2 }, &shared);
        });
        assert!(send_one(&mut here) && send_one(&mut here));
        worker.join().unwrap();
    });
}

#[test]
fn a_worker_that_sleeps_on_a_full_cable_wakes_when_it_has_room() {
    loom::model(|| {
        let (mut here, mut there) = cable(&CableConfig::default());
        while let Some(loan) = here.lend(FRAME_LEN, usize::MAX) {
            let count = (loan.bytes.len() - FRAME_LEN) / loan.stride + 1;
            here.put(FRAME_LEN, count, 0);
            here.flush();
        }
        let shared = shared();
        let worker = thread::spawn(move || drive(Transmitter(here), &shared));
        let mut taken = 0;
        // Take one frame more than a batch: the slots of taken frames are returned with the first frame of the next
        // batch.
        while taken < 65 && there.take(0).is_some() {
            taken += 1;
        }
        assert_eq!(taken, 65);
        worker.join().unwrap();
    });
}

#[test]
fn a_pair_whose_worker_sleeps_has_a_changed_setting_at_once() {
    loom::model(|| {
        let config = AdapterConfig { moderation: ModerationConfig::default(), ..AdapterConfig::default() };
        let (_here, there) = cable(&CableConfig::default());
        let shared = shared();
        let control = PortControl::new(&config);
        let host = Host { shared: Arc::clone(&shared), ends_when_polled: false };
        let pair = QueuePair::new(&config, &control, 0, host, there);
        let worker = thread::spawn(move || drive(pair, &shared));
        control.set_moderation(CHANGED);
        worker.join().unwrap();
    });
}

#[test]
fn a_switch_whose_worker_sleeps_polls_a_port_that_is_added() {
    loom::model(|| {
        let config = SwitchConfig { ports_max: 1, stations_max: 1, ..SwitchConfig::default() };
        let switch = Switch::new(&config);
        let (shared, control) = (shared(), Arc::clone(switch.control()));
        let host = Host { shared: Arc::clone(&shared), ends_when_polled: true };
        let worker = thread::spawn(move || drive(switch, &shared));
        control.add(host, &PortConfig { stations_max: 1, ..PortConfig::default() }).unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn a_worker_that_sleeps_wakes_to_stop() {
    loom::model(|| {
        let (_here, there) = cable(&CableConfig::default());
        let shared = shared();
        let inside = Arc::clone(&shared);
        let worker = thread::spawn(move || {
            drive(Receiver { end: there, expected: 1 }, &inside);
        });
        shared.end();
        worker.join().unwrap();
    });
}
