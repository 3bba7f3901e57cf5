//! Tests of rate limits with threads and guests: a host at its limit does not keep a thread awake, and delays only its
//! own frames.

use crate::vhost_common::{Case, PATIENCE, Scratch, frame, rng, wait_until};
use nix::sys::eventfd::{EfdFlags, EventFd};
use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::limit::{PortLimits, RateLimit};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::RxMeta;
use offramp_ports::vhost_user::{VhostUser, VhostUserConfig};
use offramp_ports::worker::{HostIo, Task, Watch, Worker};
use offramp_testkit::VnetHeader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Waker;
use std::thread;

/// Number of frames forwarded at the limit.
const FRAMES: u64 = 20;
const FRAMES_PER_SECOND: u64 = 100;

/// A host that always has a frame, so that its descriptor is always readable.
struct Flood {
    fd: EventFd,
    frame: Vec<u8>,
}

impl Flood {
    fn new(station: u8) -> Self {
        let frame = [&[2, 0, 0, 0, 0, station ^ 1, 2, 0, 0, 0, 0, station, 0x88, 0xb5][..], &[0; 46]].concat();
        Self { fd: EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK).unwrap(), frame }
    }
}

impl InPlace for Flood {}

impl HostPort for Flood {
    fn tx_next(&mut self, _: u64) -> Result<bool, PortError> {
        Ok(true)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        Frame::received(&mut self.frame)
    }

    fn rx_deliver(&mut self, _: &RxMeta, _: &[u8]) -> Result<(), PortError> {
        Ok(())
    }

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }
}

impl HostIo for Flood {
    fn arm(&mut self) {}

    fn disarm(&mut self) {}

    fn watch<'a>(&'a self, is_held: bool, watch: &mut dyn FnMut(BorrowedFd<'a>)) {
        if !is_held {
            watch(self.fd.as_fd());
        }
    }
}

/// A wrapper that counts how often a worker polls the wrapped task.
struct Counted<T>(T, Arc<AtomicU64>);

impl<T: Task> Task for Counted<T> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.1.fetch_add(1, Relaxed);
        self.0.poll(now_ns)
    }

    fn arm(&mut self, waker: &Waker) {
        self.0.arm(waker);
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn watch<'a>(&'a mut self, now_ns: u64, watch: &mut Watch<'a>) {
        self.0.watch(now_ns, watch);
    }
}

/// Starts a worker, and waits until frames have crossed at the limit of `control`. Checks that the worker slept between
/// the frames.
fn check_sleep<T: Task + 'static>(tasks: Vec<T>, control: &PortControl) {
    let polls = Arc::new(AtomicU64::new(0));
    let tasks = tasks.into_iter().map(|task| Counted(task, Arc::clone(&polls))).collect();
    let _worker = Worker::start("limit-test", tasks, None).unwrap();
    wait_until("frames cross", || control.queues()[0].transmit.frames_in.get() >= FRAMES);
    // A worker that never sleeps polls many thousand times between two frames.
    let polled = polls.load(Relaxed);
    assert!(polled < 50 * FRAMES, "{polled} polls for {FRAMES} frames");
}

fn limits() -> PortLimits {
    let tx = RateLimit { frames_per_second: Some(FRAMES_PER_SECOND), burst_frames: Some(1), ..RateLimit::default() };
    PortLimits { tx, ..PortLimits::default() }
}

#[test]
fn a_host_at_its_limit_does_not_keep_the_worker_of_a_cable_awake() {
    let config = AdapterConfig::default();
    let controls = [(), ()].map(|()| PortControl::new(&config));
    let (near, far) = cable(&CableConfig::default());
    let pair = |side: usize, wire| {
        controls[side].set_limits(limits());
        QueuePair::new(&config, &controls[side], 0, Flood::new(side as u8), wire)
    };
    check_sleep(vec![pair(0, near), pair(1, far)], &controls[0]);
}

#[test]
fn a_host_at_its_limit_does_not_keep_the_worker_of_a_switch_awake() {
    let switch = Switch::new(&SwitchConfig::default());
    let add = |station| {
        let port = switch.control().add(Flood::new(station), &PortConfig::default()).unwrap();
        port.set_limits(limits());
        port
    };
    let ports = [add(0), add(1)];
    check_sleep(vec![switch], &ports[0]);
}

#[test]
fn while_its_frames_wait_for_the_limit_a_guest_gets_completions_and_a_disabled_ring_is_emptied() {
    for case in Case::layouts() {
        let scratch = Scratch::new();
        let mut port = VhostUser::open(&VhostUserConfig::new(scratch.path("held"))).unwrap();
        let mut queue = port.queue(0).unwrap();
        let sent = frame(&mut rng(), 60);
        let is_over = Arc::new(AtomicBool::new(false));
        let held = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Relaxed) {
                    queue.tx_hold();
                }
                queue
            }
        });
        // The thread that owns the queue calls only `tx_hold`. These calls must apply the ring setup and discard the
        // frames of a disabled ring.
        let mut guest = case.guest().connect(&port.config().socket);
        guest.frontend().set_vring_enable(1, false).unwrap();
        guest.tx(0).send(&VnetHeader::default(), &[&sent]);
        guest.tx(0).drain(PATIENCE);
        assert_eq!(port.queue_counters()[0].discarded.get(), 1, "{case:?}");
        guest.frontend().set_vring_enable(1, true).unwrap();
        // The port answers this message after applying the earlier messages.
        guest.frontend().get_features().unwrap();
        is_over.store(true, Relaxed);
        let mut queue = held.join().unwrap();
        guest.tx(0).send(&VnetHeader::default(), &[&sent]);
        queue.tx_hold();
        assert_eq!(guest.tx(0).take_used(), None, "{case:?}: it is not fetched");
        assert!(queue.tx_next(0).unwrap());
        assert_eq!(queue.tx_frame().bytes(), sent);
        queue.tx_hold();
        guest.tx(0).drain(PATIENCE);
    }
}
