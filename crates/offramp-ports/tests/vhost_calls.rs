//! Tests of a guest's interrupts: used buffers are visible at once, and moderation delays only the interrupt. Numbers
//! such as V82 refer to the table in `docs/vhost-user.md`.

use crate::vhost_common::{Case, PATIENCE, Rig, RigConfig, Scratch, carry, frame, rng, wait_until};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{
    AreaConfig, COST_NS_START, Coalescing, DimProfiles, E1000Mode, InterruptCost, ModerationConfig, Policy,
};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InterruptCounts, Interrupts, PortError};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::meta::RxMeta;
use offramp_ports::vhost_user::{VhostPort, VhostQueue, VhostUser, VhostUserConfig};
use offramp_ports::worker::{HostIo, Task, Watch, Worker};
use offramp_testkit::{DataPlacement, Guest, GuestBuilder, HeaderPlacement, TxLayout, VnetHeader};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

const RING: u16 = 64;
/// The test kit's default number of buffers in a receive ring.
const QUEUE_SIZE: usize = 256;
const BUFFER_LEN: usize = 1526;
const MICROSECOND_NS: u64 = 1000;
/// A delay that exceeds the duration of any test, in microseconds.
const FAR_USECS: u32 = 1_000_000_000;

fn by(policy: Policy) -> ModerationConfig {
    ModerationConfig { policy, ..ModerationConfig::default() }
}

fn coalescing(max_usecs: u32, max_packets: u32) -> ModerationConfig {
    by(Policy::Coalescing(Coalescing { max_usecs, max_packets }))
}

fn area(ns: u64) -> ModerationConfig {
    by(Policy::Area(AreaConfig { cost: InterruptCost::Given { ns }, ..AreaConfig::default() }))
}

/// A port with one queue, polled by this test with a simulated time, and its guest.
struct Bench {
    guest: Guest,
    queue: VhostQueue,
    port: VhostUser,
    now_ns: u64,
    calls: InterruptCounts,
    _scratch: Scratch,
}

/// Polls a queue until another thread has done its work.
fn drive<R: Send>(queue: &mut VhostQueue, work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let done = scope.spawn(work);
        while !done.is_finished() {
            queue.rx_flush(0);
            std::thread::yield_now();
        }
        done.join().unwrap()
    })
}

impl Bench {
    fn new(builder: &GuestBuilder, moderation: ModerationConfig) -> Self {
        let scratch = Scratch::new();
        let mut port = VhostUser::open(&VhostUserConfig::new(scratch.path("guest"))).unwrap();
        let mut queue = port.queue(0).unwrap();
        queue.moderate(&moderation);
        let socket = port.config().socket.clone();
        let guest = drive(&mut queue, || builder.connect(&socket));
        let calls = InterruptCounts::default();
        Self { guest, queue, port, now_ns: 1_000_000, calls, _scratch: scratch }
    }

    /// Creates a sleeping guest that has a full receive ring and waits for an interrupt.
    fn asleep(case: Case, moderation: ModerationConfig) -> Self {
        let mut bench = Self::new(&case.guest().queue_size(RING), moderation);
        bench.guest.rx(0).fill(RING.into(), BUFFER_LEN);
        assert!(!bench.guest.rx(0).ring().enable_interrupts());
        bench
    }

    fn give(&mut self, frames: usize) {
        for _ in 0..frames {
            self.queue.rx_deliver(&RxMeta::default(), &[7; 60]).unwrap();
        }
    }

    /// Ends a batch: publishes the delivered frames, and interrupts the guest if an interrupt is due.
    fn end_batch(&mut self) {
        self.queue.rx_flush(0);
        let counts = self.queue.send_due(self.now_ns);
        self.calls.receive += counts.receive;
        self.calls.transmit += counts.transmit;
    }

    fn give_batch(&mut self, frames: usize) {
        self.give(frames);
        self.end_batch();
    }

    /// Advances the simulated time to `now_ns`, and handles each deadline before this time.
    fn advance_to(&mut self, now_ns: u64) {
        while let Some(due_ns) = self.queue.next_due_ns().filter(|due_ns| *due_ns <= now_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            self.end_batch();
        }
        self.now_ns = now_ns;
        self.end_batch();
    }

    fn calls_seen(&mut self) -> u64 {
        self.guest.rx(0).signals().calls
    }

    fn visible(&mut self) -> usize {
        self.guest.rx(0).snoop_used().len()
    }

    fn consume_all(&mut self) -> usize {
        std::iter::from_fn(|| self.guest.rx(0).try_recv()).count()
    }
}

#[test]
fn frames_are_there_before_the_call() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(50, u32::MAX));
        bench.give_batch(3);
        assert_eq!((bench.visible(), bench.calls_seen()), (3, 0), "{case:?}");
        assert_eq!(bench.queue.next_due_ns(), Some(bench.now_ns + 50 * MICROSECOND_NS), "{case:?}");
        let due_ns = bench.now_ns + 50 * MICROSECOND_NS;
        bench.advance_to(due_ns - 1);
        assert_eq!((bench.visible(), bench.calls_seen()), (3, 0), "{case:?}");
        bench.advance_to(due_ns);
        assert_eq!((bench.visible(), bench.calls_seen()), (3, 1), "{case:?}");
        assert_eq!(bench.queue.next_due_ns(), None, "{case:?}");
    }
}

#[test]
fn a_deferred_call_says_once_how_long_the_oldest_frame_has_waited() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(50, u32::MAX));
        bench.give_batch(1);
        bench.now_ns += 20 * MICROSECOND_NS;
        bench.give_batch(3);
        assert_eq!(bench.queue.take_wait_ns(), None, "{case:?}");
        bench.advance_to(bench.now_ns + 30 * MICROSECOND_NS);
        assert_eq!((bench.calls_seen(), bench.queue.take_wait_ns()), (1, Some(50 * MICROSECOND_NS)), "{case:?}");
        assert_eq!(bench.queue.take_wait_ns(), None, "{case:?}");
    }
}

#[test]
fn each_decision_is_one_call_however_many_batches_it_is_for() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, 8));
        for round in 1..=40 {
            // Use several batches, so that the eighth frame is always the last frame of a batch.
            for frames in [3, 4, 1] {
                assert_eq!(bench.calls_seen(), round - 1, "{case:?}");
                bench.give_batch(frames);
                bench.now_ns += MICROSECOND_NS;
            }
            assert_eq!((bench.calls_seen(), bench.calls.receive), (round, round), "{case:?}");
            assert_eq!(bench.consume_all(), 8, "{case:?}");
            assert!(!bench.guest.rx(0).ring().enable_interrupts());
        }
        assert_eq!(bench.port.queue_counters()[0].calls.get(), 40);
    }
}

#[test]
fn without_moderation_a_guest_is_called_when_it_is_shown_something() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, ModerationConfig::default());
        for round in 1..=40 {
            bench.give(2);
            assert_eq!(bench.calls_seen(), round - 1, "{case:?}");
            bench.queue.rx_flush(0);
            assert_eq!(bench.calls_seen(), round, "{case:?}");
            assert_eq!(bench.queue.send_due(0), InterruptCounts { receive: 1, transmit: 0 }, "{case:?}");
            assert_eq!((bench.queue.next_due_ns(), bench.queue.cost_ns()), (None, 0));
            assert_eq!(bench.consume_all(), 2, "{case:?}");
            assert!(!bench.guest.rx(0).ring().enable_interrupts());
        }
    }
}

#[test]
fn a_guest_that_wants_no_calls_is_owed_none() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(50, u32::MAX));
        bench.guest.rx(0).ring().disable_interrupts();
        bench.give_batch(5);
        assert_eq!(bench.queue.next_due_ns(), None, "{case:?}: nothing waits");
        // The driver polls on its own initiative, and requests an interrupt for the next frame.
        assert_eq!(bench.consume_all(), 5);
        assert!(!bench.guest.rx(0).ring().enable_interrupts());
        bench.advance_to(bench.now_ns + 1000 * MICROSECOND_NS);
        assert_eq!(bench.calls_seen(), 0, "{case:?}");
        bench.give_batch(1);
        bench.advance_to(bench.now_ns + 50 * MICROSECOND_NS);
        assert_eq!(bench.calls_seen(), 1, "{case:?}");
    }
}

#[test]
fn a_guest_that_begins_to_look_by_itself_is_spared_the_call_that_waits() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(50, u32::MAX));
        bench.give_batch(5);
        assert!(bench.queue.next_due_ns().is_some());
        assert_eq!(bench.consume_all(), 5);
        if case.event_idx {
            // The driver sleeps again, and requests an interrupt for later frames.
            assert!(!bench.guest.rx(0).ring().enable_interrupts());
        } else {
            bench.guest.rx(0).ring().disable_interrupts();
        }
        bench.advance_to(bench.now_ns + 1000 * MICROSECOND_NS);
        assert_eq!((bench.calls_seen(), bench.queue.next_due_ns()), (0, None), "{case:?}");
    }
}

#[test]
fn moderation_that_is_switched_off_makes_the_call_that_waits_at_once() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, u32::MAX));
        bench.give_batch(2);
        // The frame is published but not yet reported to the moderator.
        bench.give(1);
        bench.queue.rx_flush(0);
        assert_eq!(bench.calls_seen(), 0);
        bench.queue.moderate(&ModerationConfig::default());
        assert_eq!(bench.calls_seen(), 1, "{case:?}");
        bench.end_batch();
        assert_eq!((bench.calls_seen(), bench.calls.receive), (1, 1), "{case:?}");
    }
}

#[test]
fn a_changed_setting_holds_for_what_waits() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, 15));
        bench.give_batch(10);
        assert_eq!(bench.calls_seen(), 0);
        // V82: ten frames were published, and the new limit is eight.
        bench.queue.moderate(&coalescing(FAR_USECS, 8));
        bench.end_batch();
        assert_eq!(bench.calls_seen(), 1, "{case:?}");
    }
}

#[test]
fn a_guest_is_called_before_its_receive_ring_runs_dry() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, u32::MAX));
        let mut given = 0;
        while bench.calls_seen() == 0 {
            bench.give_batch(1);
            given += 1;
        }
        assert_eq!(given, usize::from(RING / 2) + 1, "{case:?}: called with fewer than half of its buffers left");
        // With a larger guard, the interrupt is sent earlier.
        let guard = ModerationConfig { ring_guard_frames: u32::from(RING) - 4, ..coalescing(FAR_USECS, u32::MAX) };
        let mut bench = Bench::asleep(case, guard);
        bench.give_batch(4);
        assert_eq!(bench.calls_seen(), 0, "{case:?}");
        bench.give_batch(1);
        assert_eq!(bench.calls_seen(), 1, "{case:?}");
    }
}

#[test]
fn rings_of_a_few_buffers_are_never_left_dry() {
    for case in Case::rings() {
        for size in [1, 2, 4] {
            let mut bench = Bench::new(&case.guest().queue_size(size), coalescing(FAR_USECS, u32::MAX));
            bench.guest.rx(0).fill(size.into(), BUFFER_LEN);
            assert!(!bench.guest.rx(0).ring().enable_interrupts());
            for _ in 0..size {
                bench.give_batch(1);
            }
            assert!(bench.calls_seen() > 0, "{case:?} {size}");
        }
    }
}

#[test]
fn transmit_completions_are_called_for_apart_and_put_off_too() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(50, u32::MAX));
        // Use one descriptor for each frame.
        let layout = TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::OneBuffer, indirect: false };
        bench.guest.tx(0).set_layout(layout);
        let calls = |bench: &mut Bench| bench.guest.tx(0).signals().calls;
        let send = |bench: &mut Bench, frames: usize| {
            for _ in 0..frames {
                bench.guest.tx(0).send(&VnetHeader::default(), &[&[9; 60]]);
            }
            assert!(!bench.guest.tx(0).ring().enable_interrupts());
            while bench.queue.tx_next(0).unwrap() {}
        };
        send(&mut bench, 2);
        bench.end_batch();
        assert_eq!((calls(&mut bench), bench.guest.tx(0).ring().snoop_used().len()), (0, 2), "{case:?}");
        bench.advance_to(bench.now_ns + 50 * MICROSECOND_NS);
        assert_eq!((calls(&mut bench), bench.calls), (1, InterruptCounts { receive: 0, transmit: 1 }), "{case:?}");
        while bench.guest.tx(0).take_used().is_some() {}
        // A driver whose ring fills up is interrupted without delay.
        send(&mut bench, usize::from(RING) / 4);
        bench.end_batch();
        assert_eq!((calls(&mut bench), bench.calls_seen()), (2, 0), "{case:?}");
        while bench.guest.tx(0).take_used().is_some() {}
        if case.event_idx {
            // A driver that requests one interrupt for many chains has stopped its transmit queue. The port sends the
            // interrupt when the device has used the last of these chains.
            bench.guest.tx(0).ring().interrupt_after(20);
            for sent in 1..=20 {
                assert_eq!(calls(&mut bench), 2, "{case:?}: {sent}");
                bench.guest.tx(0).send(&VnetHeader::default(), &[&[9; 60]]);
                while bench.queue.tx_next(0).unwrap() {}
                bench.end_batch();
            }
            assert_eq!(calls(&mut bench), 3, "{case:?}");
        }
    }
}

#[test]
fn what_a_call_costs_is_learned_while_calls_are_made() {
    let case = Case::layouts().next().unwrap();
    let measured = AreaConfig { cost: InterruptCost::MEASURED, ..AreaConfig::default() };
    let mut bench = Bench::asleep(case, by(Policy::Area(measured)));
    let at_first = bench.queue.cost_ns();
    assert_eq!(at_first, COST_NS_START);
    for _ in 0..100 {
        bench.give_batch(1);
        bench.advance_to(bench.now_ns + 1000 * MICROSECOND_NS);
        bench.consume_all();
        assert!(!bench.guest.rx(0).ring().enable_interrupts());
    }
    assert_eq!(bench.calls_seen(), 100);
    assert!(bench.queue.cost_ns() > at_first, "a call costs more than nothing here");
    assert_eq!(bench.queue.wait_max_ns(), bench.queue.cost_ns(), "a lone frame waits for the cost of its call");
}

#[test]
fn a_ring_that_is_stopped_leaves_no_call_behind() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, u32::MAX));
        bench.give_batch(2);
        assert_eq!(bench.calls_seen(), 0);
        let Bench { guest, queue, .. } = &mut bench;
        let bases = drive(queue, || guest.stop().unwrap());
        assert_eq!(bench.calls_seen(), 1, "{case:?}: stopped by a message");
        bench.consume_all();
        let Bench { guest, queue, .. } = &mut bench;
        drive(queue, || guest.start_at(&bases).unwrap());
        // A started ring interrupts its guest: the ring's previous backend may have been killed while an interrupt was
        // deferred.
        assert!(!bench.guest.rx(0).ring().enable_interrupts());
        bench.end_batch();
        bench.advance_to(bench.now_ns + u64::from(FAR_USECS) * MICROSECOND_NS);
        let before = bench.calls_seen();
        assert_eq!(before, 2, "{case:?}: started again");
        bench.give_batch(2);
        assert_eq!(bench.calls_seen(), before, "{case:?}");
        let Bench { guest, queue, port, .. } = bench;
        let mut guest = guest;
        drop(queue);
        assert_eq!(guest.rx(0).signals().calls, before + 1, "{case:?}: the queue ended");
        drop(port);
    }
}

#[test]
fn a_connection_that_ends_with_a_call_to_be_made_makes_it_and_the_next_one_goes_on() {
    for case in Case::rings() {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, u32::MAX));
        bench.give_batch(2);
        assert_eq!(bench.calls_seen(), 0);
        let socket = bench.port.config().socket.clone();
        let Bench { guest, queue, port, .. } = &mut bench;
        guest.frontend().stream().shutdown(std::net::Shutdown::Both).unwrap();
        wait_until("the port sees that its guest is gone", || {
            queue.rx_flush(0);
            !port.status().is_connected
        });
        assert_eq!(bench.calls_seen(), 1, "{case:?}");
        assert_eq!(bench.consume_all(), 2, "{case:?}");
        let Bench { guest, queue, .. } = &mut bench;
        drive(queue, || guest.reconnect(&socket));
        assert!(!bench.guest.rx(0).ring().enable_interrupts());
        bench.queue.moderate(&coalescing(50, u32::MAX));
        bench.advance_to(bench.now_ns + 100 * MICROSECOND_NS);
        let before = bench.calls_seen();
        bench.consume_all();
        assert!(!bench.guest.rx(0).ring().enable_interrupts());
        bench.give_batch(3);
        assert_eq!((bench.visible(), bench.calls_seen()), (3, before), "{case:?}");
        bench.advance_to(bench.now_ns + 50 * MICROSECOND_NS);
        assert_eq!(bench.calls_seen(), before + 1, "{case:?}");
    }
}

/// The interrupt expected by a sleeping driver.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    /// Number of chains that must be visible before the interrupt.
    chains: usize,
    calls_before: u64,
    /// Time since which `chains` were visible.
    since_ns: Option<u64>,
}

/// A driver and an adapter that both follow virtio's rules, with their steps in random order.
struct Interleaving {
    bench: Bench,
    case: Case,
    sleep: Option<Sleep>,
    /// The number of interrupts counted before the driver disabled interrupts. `None` while interrupts are enabled.
    forbidden_since: Option<u64>,
    wait_max_ns: u64,
}

impl Interleaving {
    fn fall_asleep(&mut self, chains: usize) {
        self.wake();
        self.forbidden_since = None;
        let rx = self.bench.guest.rx(0);
        // Chains that the driver has already seen need no interrupt.
        let seen = rx.snoop_used().len();
        if chains == 1 {
            // The device has used further chains, so the driver must not sleep (virtio 1.3, 2.7.7.1).
            if rx.ring().enable_interrupts() {
                return;
            }
        } else {
            rx.ring().interrupt_after(chains as u16);
        }
        let (visible, chains) = (rx.snoop_used().len(), seen + chains);
        let calls_before = rx.signals().calls;
        self.sleep = (visible < chains).then_some(Sleep { chains, calls_before, since_ns: None });
    }

    fn wake(&mut self) {
        self.sleep = None;
    }

    fn look(&mut self, what: &dyn std::fmt::Debug) {
        let (visible, calls, now_ns) = (self.bench.visible(), self.bench.calls_seen(), self.bench.now_ns);
        if let Some(before) = self.forbidden_since {
            assert_eq!(calls, before, "{:?}: a call that was forbidden, {what:?}", self.case);
        }
        let Some(sleep) = &mut self.sleep else { return };
        if calls > sleep.calls_before {
            return self.wake();
        }
        if visible >= sleep.chains {
            let since_ns = *sleep.since_ns.get_or_insert(now_ns);
            let waited_ns = now_ns - since_ns;
            let is_late = waited_ns > self.wait_max_ns;
            assert!(!is_late, "{:?}: {sleep:?}, {visible} visible for {waited_ns} ns, {what:?}", self.case);
        }
    }

    fn step(&mut self, rng: &mut ChaCha8Rng) {
        let step = rng.random_range(0..12);
        match step {
            0..3 => {
                let frames = rng.random_range(1..=5);
                for _ in 0..frames {
                    // The ring lacks room if the driver has not polled.
                    let _ = self.bench.queue.rx_deliver(&RxMeta::default(), &[7; 60]);
                }
                if rng.random_bool(0.3) {
                    self.bench.queue.rx_flush(0);
                }
                self.bench.end_batch();
            }
            3 => self.bench.advance_to(self.bench.now_ns + rng.random_range(0..self.wait_max_ns)),
            4 => self.bench.advance_to(self.bench.now_ns + self.wait_max_ns + 1),
            5..8 => {
                // If the driver is asleep, an interrupt for another reason wakes it.
                self.wake();
                for _ in 0..rng.random_range(0..20) {
                    self.bench.guest.rx(0).try_recv();
                }
            }
            8 | 9 => self.fall_asleep(1),
            10 if self.case.event_idx => self.fall_asleep(rng.random_range(2..=6)),
            // With an event index, a driver of a split ring cannot disable interrupts, but can only request a late
            // interrupt.
            _ if self.case.event_idx && !self.case.packed => self.wake(),
            _ => {
                self.wake();
                self.bench.guest.rx(0).ring().disable_interrupts();
                self.forbidden_since = Some(self.bench.calls_seen());
            }
        }
        self.look(&step);
    }
}

#[test]
fn a_driver_that_sleeps_is_called_in_time_whatever_it_did_before() {
    const STEPS: usize = 30_000;
    let mut rng = rng();
    for case in Case::rings() {
        // Only a packed ring can have a size that is not a power of two. Both rings are small, so that the rings wrap
        // around often.
        let size = if case.packed { 23 } else { 32 };
        for moderation in [
            coalescing(50, u32::MAX),
            coalescing(80, 4),
            area(20_000),
            by(Policy::FixedGap { max_interrupts_per_second: 20_000 }),
        ] {
            let mut bench = Bench::new(&case.guest().queue_size(size), moderation);
            bench.guest.rx(0).fill(size.into(), BUFFER_LEN);
            let wait_max_ns = bench.queue.wait_max_ns();
            let mut run = Interleaving { bench, case, sleep: None, forbidden_since: None, wait_max_ns };
            for _ in 0..STEPS {
                run.step(&mut rng);
            }
            let calls = run.bench.calls_seen();
            assert_eq!(calls, run.bench.calls.receive, "{case:?}: every call is counted");
            assert!(calls > STEPS as u64 / 100, "{case:?} {moderation:?}: {calls} calls");
        }
    }
}

#[test]
fn an_event_index_is_not_lost_over_laps_that_pass_while_a_call_waits() {
    const BATCH: usize = 32;
    for case in Case::rings().filter(|case| case.event_idx) {
        let mut bench = Bench::asleep(case, coalescing(FAR_USECS, u32::MAX));
        // The driver makes no further request, and the ring wraps until its index and wrap counter have their old
        // values.
        for _ in 0..(1 << 16) / BATCH {
            bench.give(BATCH);
            bench.queue.rx_flush(0);
            bench.consume_all();
        }
        assert_eq!(bench.calls_seen(), 0);
        bench.queue.moderate(&ModerationConfig::default());
        assert_eq!(bench.calls_seen(), 1, "{case:?}");
    }
}

/// A wrapper that counts how often a worker polls the wrapped task.
struct Counted<T>(T, Arc<AtomicU64>);

impl<T: Task> Task for Counted<T> {
    fn poll(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.1.fetch_add(1, Ordering::Relaxed);
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

/// Opens a port of one pair.
fn open(scratch: &Scratch, name: &str) -> (VhostUser, VhostQueue) {
    let mut port = VhostUser::open(&VhostUserConfig::new(scratch.path(name))).unwrap();
    let queue = port.queue(0).unwrap();
    (port, queue)
}

/// Starts one worker for all `tasks`. Returns the worker, and the number of polls of its tasks.
fn driven<T: Task + 'static>(tasks: Vec<T>) -> (Worker, Arc<AtomicU64>) {
    let polls = Arc::new(AtomicU64::new(0));
    let tasks = tasks.into_iter().map(|task| Counted(task, Arc::clone(&polls))).collect();
    (Worker::start("vhost-test", tasks, None).unwrap(), polls)
}

/// Checks that a frame crosses, and that its sleeping receiver is interrupted after `moderate` has set the wait to a
/// quarter of a second. Checks that the worker sleeps during this wait.
fn check_sleep(polls: &AtomicU64, from: &mut Guest, to: &mut Guest, moderate: impl Fn(ModerationConfig)) {
    // A worker that never sleeps polls many thousand times in a quarter of a second.
    const POLLS_MAX: u64 = 200;
    let before = polls.load(Ordering::Relaxed);
    assert!(!to.rx(0).ring().enable_interrupts());
    carry_unseen(from, to);
    assert_eq!(to.rx(0).signals().calls, 0);
    moderate(coalescing(QUARTER_SECOND_USECS, u32::MAX));
    wait_until("the guest is interrupted", || to.rx(0).signals().calls == 1);
    let polled = polls.load(Ordering::Relaxed) - before;
    assert!(polled < POLLS_MAX, "{polled} polls");
    to.rx(0).recv(PATIENCE);
}

const QUARTER_SECOND_USECS: u32 = 250_000;

#[test]
fn while_a_call_waits_the_worker_of_a_cable_sleeps_and_it_wakes_for_it() {
    for case in Case::layouts() {
        let scratch = Scratch::new();
        let ((one, first), (other, second)) = (open(&scratch, "one"), open(&scratch, "other"));
        let config = AdapterConfig { moderation: coalescing(FAR_USECS, u32::MAX), ..AdapterConfig::default() };
        let controls = [PortControl::new(&config), PortControl::new(&config)];
        let (near, far) = offramp_adapter::cable::cable(&offramp_adapter::cable::CableConfig::default());
        let pairs = vec![
            QueuePair::new(&config, &controls[0], 0, first, near),
            QueuePair::new(&config, &controls[1], 0, second, far),
        ];
        let (_worker, polls) = driven(pairs);
        let builder = case.guest();
        let [mut a, mut b] = [&one, &other].map(|port| builder.connect(&port.config().socket));
        b.rx(0).fill(QUEUE_SIZE, BUFFER_LEN);
        check_sleep(&polls, &mut a, &mut b, |moderation| controls[1].set_moderation(moderation));
        let stats = &controls[1].queues()[0].receive;
        wait_until("the call is counted", || stats.interrupts.get() == 1);
        assert_eq!(stats.wait_max_ns.get(), u64::from(QUARTER_SECOND_USECS) * MICROSECOND_NS);
        // If moderation is switched off during the wait, the worker wakes at once.
        controls[1].set_moderation(coalescing(FAR_USECS, u32::MAX));
        assert!(!b.rx(0).ring().enable_interrupts());
        carry_unseen(&mut a, &mut b);
        controls[1].set_moderation(ModerationConfig::default());
        wait_until("the guest is interrupted", || b.rx(0).signals().calls == 2);
    }
}

/// Sends a frame, and waits until it is published to the receiver without an interrupt.
fn carry_unseen(from: &mut Guest, to: &mut Guest) {
    from.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng(), 60)]);
    wait_until("the frame is there", || !to.rx(0).snoop_used().is_empty());
}

#[test]
fn a_switch_moderates_the_calls_of_each_port_by_its_own_setting() {
    for case in Case::layouts() {
        let scratch = Scratch::new();
        let switch = Switch::new(&SwitchConfig::default());
        let seat = |name: &str, moderation| {
            let (port, queue) = open(&scratch, name);
            let config = PortConfig { moderation, ..PortConfig::default() };
            let seat = switch.control().add(VhostPort::new(vec![queue]).unwrap(), &config).unwrap();
            (port, seat)
        };
        let (one, plain) = seat("one", ModerationConfig::default());
        let (other, moderated) = seat("other", coalescing(FAR_USECS, u32::MAX));
        let (_worker, polls) = driven(vec![switch]);
        let builder = case.guest();
        let [mut a, mut b] = [&one, &other].map(|port| builder.connect(&port.config().socket));
        for guest in [&mut a, &mut b] {
            guest.rx(0).fill(QUEUE_SIZE, BUFFER_LEN);
        }
        check_sleep(&polls, &mut a, &mut b, |moderation| moderated.set_moderation(moderation));
        wait_until("the call is counted", || moderated.stats().receive.interrupts.get() == 1);
        assert_eq!(moderated.stats().transmit.interrupts.get(), 0);
        assert_eq!(moderated.stats().receive.wait_max_ns.get(), u64::from(QUARTER_SECOND_USECS) * MICROSECOND_NS);
        // In the opposite direction, no interrupt is delayed.
        assert!(!a.rx(0).ring().enable_interrupts());
        b.tx(0).send(&VnetHeader::default(), &[&frame(&mut rng(), 60)]);
        wait_until("the other guest is interrupted", || a.rx(0).signals().calls == 1);
        wait_until("the call is counted", || plain.stats().receive.interrupts.get() == 1);
        // If moderation is switched off while an interrupt is deferred, the switch's worker wakes up.
        moderated.set_moderation(coalescing(FAR_USECS, u32::MAX));
        assert!(!b.rx(0).ring().enable_interrupts());
        carry_unseen(&mut a, &mut b);
        moderated.set_moderation(ModerationConfig::default());
        wait_until("the guest is interrupted", || b.rx(0).signals().calls == 2);
    }
}

#[test]
fn interrupts_are_the_calls_that_were_made_each_way() {
    const FRAMES: u64 = 500;
    let mut rng = rng();
    for case in Case::rings() {
        let config = RigConfig::mtu(1500);
        let policies = [ModerationConfig::default(), coalescing(20, 8), area(10_000)];
        for moderation in policies {
            let rig =
                Rig::with(&RigConfig { adapter: AdapterConfig { moderation, ..config.adapter }, ..config.clone() });
            let [mut a, mut b] = rig.guests(&case.guest().interrupts(true));
            b.rx(0).fill(QUEUE_SIZE, BUFFER_LEN);
            for _ in 0..FRAMES {
                carry(&mut a, &mut b, 0, &frame(&mut rng, 60), &(case, moderation));
            }
            a.tx(0).drain(PATIENCE);
            let (received, sent) = (b.rx(0).signals().calls, a.tx(0).signals().calls);
            assert!(received > 0 && received <= FRAMES, "{case:?} {moderation:?}: {received} calls");
            // A delayed interrupt may be sent after the last poll.
            let interrupts =
                |side: usize| [rig.received(side, |d| d.interrupts.get()), rig.sent(side, |d| d.interrupts.get())];
            wait_until("all calls are counted", || {
                let (received, sent) = (b.rx(0).signals().calls, a.tx(0).signals().calls);
                interrupts(0) == [0, sent] && interrupts(1) == [received, 0]
            });
            assert!(sent <= FRAMES);
        }
    }
}

#[test]
fn guests_that_sleep_get_every_frame_of_a_stream_under_every_policy() {
    const FRAMES: usize = 2000;
    // Maximum number of frames in flight, fewer than a receive ring holds, so that no frame is lost for lack of
    // buffers.
    const UNDER_WAY_MAX: usize = 200;
    let gap = Policy::FixedGap { max_interrupts_per_second: 20_000 };
    let policies = [
        by(gap),
        coalescing(50, 32),
        by(Policy::NetDim(DimProfiles::ReceiveEvent)),
        by(Policy::E1000(E1000Mode::Simplified)),
        area(10_000),
        by(Policy::QuietOrArea(AreaConfig::default())),
    ];
    for case in Case::rings() {
        for moderation in policies {
            let config = RigConfig::mtu(1500);
            let rig = Rig::with(&RigConfig { adapter: AdapterConfig { moderation, ..config.adapter }, ..config });
            let [mut a, mut b] = rig.guests(&case.guest().interrupts(true));
            b.rx(0).fill(QUEUE_SIZE, BUFFER_LEN);
            let received = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut rng = rng();
                    for n in 0..FRAMES {
                        while n - received.load(Ordering::Acquire) as usize >= UNDER_WAY_MAX {
                            std::thread::yield_now();
                        }
                        let mut frame = frame(&mut rng, 60);
                        frame[14..22].copy_from_slice(&(n as u64).to_le_bytes());
                        // When the ring is full, `send` waits for the interrupt for completions.
                        a.tx(0).send(&VnetHeader::default(), &[&frame]);
                    }
                    a.tx(0).drain(PATIENCE);
                });
                for n in 0..FRAMES as u64 {
                    let frame = b.rx(0).recv(PATIENCE).frame;
                    assert_eq!(frame[14..22], n.to_le_bytes(), "{case:?} {moderation:?}");
                    received.store(n + 1, Ordering::Release);
                }
            });
        }
    }
}

/// A queue also works without calls of its [`Interrupts`] methods.
#[test]
fn a_port_whose_calls_nobody_asks_about_calls_as_ever() {
    let case = Case::layouts().next().unwrap();
    let mut bench = Bench::asleep(case, ModerationConfig::default());
    bench.give(1);
    bench.queue.arm();
    assert_eq!(bench.calls_seen(), 1);
}
