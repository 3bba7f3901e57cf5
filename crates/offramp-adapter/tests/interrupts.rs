//! Tests with a host whose interrupts are separate from delivery, so the host can see frames before an interrupt. The
//! adapter delivers frames at once, and asks the host's port to send the interrupts when they are due.

use crate::support::{MemoryHost, tcp_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Moderator, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, InterruptCounts, Interrupts, PortError};
use offramp_adapter::stats::{Direction, QueueStats};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_offload::vlan::TagChange;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// A host in memory that wants every interrupt.
#[derive(Default)]
struct RingHost {
    memory: MemoryHost,
    receive: Moderator,
    told: usize,
    interrupts: InterruptCounts,
    /// True if the adapter asked for a frame while the host's moderator had not yet recorded all received frames.
    asked_untold: bool,
    /// The number of interrupts when the adapter last asked for a frame.
    interrupts_when_asked: u64,
    interrupts_sent: u64,
    waited_ns: Option<u64>,
    settings: Vec<ModerationConfig>,
}

impl InPlace for RingHost {}

impl HostPort for RingHost {
    fn tx_next(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.asked_untold |= self.told < self.memory.given.len();
        self.interrupts_when_asked = self.interrupts_sent;
        let has_frame = self.memory.tx_next(now_ns)?;
        // This host does not defer interrupts for completions.
        self.interrupts.transmit += u64::from(has_frame);
        Ok(has_frame)
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        self.memory.tx_frame()
    }

    fn tx_frame_with_tag(&mut self, change: TagChange) -> Option<Frame<'_>> {
        self.memory.tx_frame_with_tag(change)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.memory.rx_deliver(meta, frame)
    }

    fn rx_flush(&mut self, now_ns: u64) {
        self.memory.rx_flush(now_ns);
    }

    fn interrupts(&mut self, queue: usize) -> Option<&mut dyn Interrupts> {
        (queue == 0).then_some(self)
    }

    fn accepts(&self) -> Offloads {
        self.memory.accepts()
    }

    fn honours_data_valid(&self) -> bool {
        self.memory.honours_data_valid()
    }
}

impl Interrupts for RingHost {
    fn moderate(&mut self, config: &ModerationConfig) {
        self.settings.push(*config);
        self.receive.set(*config);
    }

    fn send_due(&mut self, now_ns: u64) -> InterruptCounts {
        let given = self.memory.given.len();
        self.receive.arrived_together(now_ns, (given - self.told) as u32, 0);
        self.told = given;
        if self.receive.is_due(now_ns) {
            self.waited_ns = Some(self.receive.waited_ns(now_ns));
            self.receive.fired(now_ns);
            self.interrupts.receive += 1;
            self.interrupts_sent += 1;
        }
        std::mem::take(&mut self.interrupts)
    }

    fn take_wait_ns(&mut self) -> Option<u64> {
        self.waited_ns.take()
    }

    fn next_due_ns(&self) -> Option<u64> {
        self.receive.next_due_ns()
    }

    fn cost_ns(&self) -> u64 {
        7
    }

    fn wait_max_ns(&self) -> u64 {
        self.receive.wait_max_ns()
    }
}

fn coalescing(max_usecs: u32) -> ModerationConfig {
    let policy = Policy::Coalescing(Coalescing { max_usecs, max_packets: u32::MAX });
    ModerationConfig { policy, ..ModerationConfig::default() }
}

fn interrupts(stats: &QueueStats) -> (u64, u64) {
    (stats.receive.interrupts.get(), stats.transmit.interrupts.get())
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates a sender without moderation and a receiver with `moderation`.
fn pairs(moderation: ModerationConfig) -> ([QueuePair<RingHost, CableEnd>; 2], [Arc<PortControl>; 2]) {
    let (a, b) = cable(&CableConfig::default());
    let configs = [ModerationConfig::default(), moderation]
        .map(|moderation| AdapterConfig { moderation, ..AdapterConfig::default() });
    let controls = configs.map(|config| PortControl::new(&config));
    let left = QueuePair::new(&configs[0], &controls[0], 0, RingHost::default(), a);
    let right = QueuePair::new(&configs[1], &controls[1], 0, RingHost::default(), b);
    ([left, right], controls)
}

#[test]
fn on_a_cable_frames_are_handed_over_at_once_and_the_interrupt_waits() {
    let ([mut left, mut right], controls) = pairs(coalescing(50));
    for sequence in 0..3 {
        left.host_mut().memory.to_send.push_back(tcp_frame(0, sequence * 10, b"x"));
        left.poll(1000).unwrap();
    }
    assert!(right.poll(1000).unwrap().moved);
    assert_eq!(right.host().memory.given.len(), 3);
    let stats = &controls[1].queues()[0];
    assert_eq!((interrupts(stats), right.next_deadline_ns()), ((0, 0), Some(51_000)));
    assert_eq!(right.poll(50_999), Ok(offramp_adapter::pipeline::Progress::default()));
    assert_eq!((interrupts(stats), right.next_deadline_ns()), ((0, 0), Some(51_000)));
    assert!(!right.poll(51_000).unwrap().moved, "an interrupt is no frame");
    assert_eq!((interrupts(stats), right.next_deadline_ns()), ((1, 0), None));
    assert_eq!((stats.receive.interrupt_cost_ns.get(), stats.receive.wait_max_ns.get()), (7, 50_000));
    // The host reports its own interrupts, so batches are not counted as interrupts.
    assert_eq!(interrupts(&controls[0].queues()[0]), (0, 3));
}

#[test]
fn on_a_cable_a_host_is_told_of_what_came_before_it_is_asked_for_what_it_sends() {
    let ([mut left, mut right], controls) = pairs(ModerationConfig::default());
    for host in [left.host_mut(), right.host_mut()] {
        host.memory.to_send.push_back(tcp_frame(0, 1, b"x"));
    }
    left.poll(0).unwrap();
    right.poll(0).unwrap();
    assert_eq!(interrupts(&controls[1].queues()[0]), (1, 1));
    assert!(!right.host().asked_untold);
}

#[test]
fn an_interrupt_that_was_put_off_is_sent_in_its_time_before_the_hosts_own_frames_are_taken() {
    let ([mut left, mut right], _) = pairs(coalescing(50));
    left.host_mut().memory.to_send.push_back(tcp_frame(0, 1, b"x"));
    left.poll(0).unwrap();
    right.poll(0).unwrap();
    right.host_mut().memory.to_send.push_back(tcp_frame(0, 1, b"y"));
    right.poll(49_999).unwrap();
    assert_eq!(right.host().interrupts_when_asked, 0);
    right.host_mut().memory.to_send.push_back(tcp_frame(0, 2, b"z"));
    right.poll(50_000).unwrap();
    assert_eq!(right.host().interrupts_when_asked, 1);
}

#[test]
fn a_changed_moderation_reaches_the_host_of_a_cable_and_no_frame_waits_for_it() {
    let ([mut left, mut right], controls) = pairs(coalescing(50));
    left.host_mut().memory.to_send.push_back(tcp_frame(0, 1, b"x"));
    left.poll(0).unwrap();
    right.poll(0).unwrap();
    controls[1].set_moderation(coalescing(500));
    right.poll(1000).unwrap();
    assert_eq!(right.next_deadline_ns(), Some(500_000));
    assert_eq!(controls[1].queues()[0].receive.wait_max_ns.get(), 500_000);
    controls[1].set_moderation(ModerationConfig::default());
    right.poll(2000).unwrap();
    assert_eq!((interrupts(&controls[1].queues()[0]), right.next_deadline_ns()), ((1, 0), None));
    assert_eq!(right.host().settings, [coalescing(50), coalescing(500), ModerationConfig::default()]);
}

/// Returns a broadcast frame.
fn broadcast() -> (TxMeta, Vec<u8>) {
    (TxMeta::default(), [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 46]].concat())
}

#[test]
fn a_switch_interrupts_each_port_in_its_time() {
    let mut switch = Switch::new(&SwitchConfig::default());
    let moderations = [ModerationConfig::default(), coalescing(50), coalescing(80)];
    let add = |moderation| {
        let config = PortConfig { moderation, ..PortConfig::default() };
        switch.control().add(RingHost::default(), &config).unwrap()
    };
    let ports: Vec<Arc<SwitchPort>> = moderations.map(add).into();
    switch.poll(0);
    for (index, moderation) in moderations.iter().enumerate() {
        assert_eq!(switch.host(index).unwrap().settings, [*moderation]);
    }
    switch.host_mut(0).unwrap().memory.to_send.push_back(broadcast());
    let counts = |ports: &[Arc<SwitchPort>]| ports.iter().map(|port| interrupts(port.stats())).collect::<Vec<_>>();
    for (now_ns, due_ns, expected) in [
        (1000, Some(51_000), [(0, 1), (0, 0), (0, 0)]),
        (51_000, Some(81_000), [(0, 1), (1, 0), (0, 0)]),
        (81_000, None, [(0, 1), (1, 0), (1, 0)]),
    ] {
        switch.poll(now_ns);
        assert!(
            (1..3).all(|index| switch.host(index).unwrap().memory.given.len() == 1),
            "visible before the interrupt"
        );
        assert_eq!((switch.next_deadline_ns(), counts(&ports)), (due_ns, expected.to_vec()));
    }
    assert_eq!(ports[1].stats().receive.wait_max_ns.get(), 50_000);
}

#[test]
fn a_changed_moderation_wakes_a_switch_and_reaches_its_port() {
    let mut switch = Switch::new(&SwitchConfig::default());
    let add = || switch.control().add(RingHost::default(), &PortConfig::default()).unwrap();
    let ports = [add(), add()];
    switch.poll(0);
    let wakes = Arc::new(Counting::default());
    switch.register(&Waker::from(Arc::clone(&wakes)));
    ports[1].set_moderation(coalescing(50));
    assert_eq!((wakes.0.load(Ordering::Relaxed), ports[1].moderation()), (1, coalescing(50)));
    switch.poll(0);
    assert_eq!(switch.host(1).unwrap().settings, [ModerationConfig::default(), coalescing(50)]);
    assert_eq!(switch.host(0).unwrap().settings.len(), 1);
    switch.unregister();
    ports[1].set_moderation(coalescing(60));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "it does not sleep");
    switch.poll(0);
    assert_eq!(ports[1].stats().receive.wait_max_ns.get(), 60_000);
}

#[test]
fn a_host_whose_handing_over_is_the_interrupt_is_moderated_on_the_line_as_ever() {
    let (a, b) = cable(&CableConfig::default());
    let config = AdapterConfig { moderation: coalescing(50), ..AdapterConfig::default() };
    let controls = [PortControl::new(&config), PortControl::new(&config)];
    let mut left = QueuePair::new(&config, &controls[0], 0, MemoryHost::default(), a);
    let mut right = QueuePair::new(&config, &controls[1], 0, MemoryHost::default(), b);
    left.host_mut().to_send.push_back(tcp_frame(0, 1, b"x"));
    left.poll(0).unwrap();
    right.poll(0).unwrap();
    assert_eq!((right.host().given.len(), right.next_deadline_ns()), (0, Some(50_000)));
    right.poll(50_000).unwrap();
    assert_eq!((right.host().given.len(), interrupts(&controls[1].queues()[0])), (1, (1, 0)));
}

/// Returns the number of waits for an interrupt up to each power of two in microseconds, and the sum of all waits in
/// nanoseconds.
fn waits(stats: &QueueStats) -> (Vec<u64>, u64) {
    let histogram = &stats.receive.interrupt_wait_ns;
    let counts: Vec<u64> = histogram.counts().collect();
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    (counts[..used].to_vec(), histogram.sum())
}

#[test]
fn each_interrupt_that_was_deferred_is_counted_by_how_long_its_oldest_frame_has_waited() {
    // A cable to a host that is interrupted after delivery, then a cable to a host for which delivery is the interrupt.
    let ([mut left, mut right], controls) = pairs(coalescing(50));
    for now_ns in [1000, 2000, 51_000, 52_000, 112_000] {
        left.host_mut().memory.to_send.push_back(tcp_frame(0, 1, b"x"));
        left.poll(now_ns).unwrap();
        right.poll(now_ns).unwrap();
    }
    // The third frame arrived at the time of the first interrupt. The fourth frame waited 60 µs, until the poll that
    // delivered the fifth frame.
    assert_eq!(waits(&controls[1].queues()[0]), (vec![0, 0, 0, 0, 0, 0, 2], 50_000 + 60_000));
    let (a, b) = cable(&CableConfig::default());
    let config = AdapterConfig { moderation: coalescing(3), ..AdapterConfig::default() };
    let controls = [PortControl::new(&config), PortControl::new(&config)];
    let mut left = QueuePair::new(&config, &controls[0], 0, MemoryHost::default(), a);
    let mut right = QueuePair::new(&config, &controls[1], 0, MemoryHost::default(), b);
    for (now_ns, frames) in [(0, 3), (3000, 0), (9000, 1), (12_500, 0)] {
        left.host_mut().to_send.extend((0..frames).map(|n| tcp_frame(n, 1, b"x")));
        left.poll(now_ns).unwrap();
        right.poll(now_ns).unwrap();
    }
    let stats = &controls[1].queues()[0];
    assert_eq!(waits(stats), (vec![0, 0, 2], 3000 + 3500));
    let batches = |direction: &Direction| direction.batch_frames.counts().take(4).collect::<Vec<_>>();
    assert_eq!(batches(&stats.receive), [1, 0, 1, 0]);
    assert_eq!(batches(&controls[0].queues()[0].transmit), [1, 0, 1, 0]);
    // Without moderation, no interrupt is deferred.
    controls[1].set_moderation(ModerationConfig::default());
    left.host_mut().to_send.push_back(tcp_frame(0, 2, b"x"));
    left.poll(20_000).unwrap();
    right.poll(20_000).unwrap();
    assert_eq!((waits(stats).1, batches(&stats.receive)), (6500, vec![2, 0, 1, 0]));
    // The test repeats the steps on a switch.
    let mut switch = Switch::new(&SwitchConfig::default());
    let moderations = [ModerationConfig::default(), coalescing(50)];
    let add = |moderation| {
        let config = PortConfig { moderation, ..PortConfig::default() };
        switch.control().add(MemoryHost::default(), &config).unwrap()
    };
    let ports: Vec<Arc<SwitchPort>> = moderations.map(add).into();
    switch.poll(0);
    switch.host_mut(0).unwrap().to_send.extend([broadcast(), broadcast()]);
    for now_ns in [1000, 51_000, 60_000] {
        switch.poll(now_ns);
    }
    assert_eq!(waits(ports[1].stats()), (vec![0, 0, 0, 0, 0, 0, 1], 50_000));
    assert_eq!(batches(&ports[1].stats().receive), [0, 1, 0, 0]);
    assert_eq!(batches(&ports[0].stats().transmit), [0, 1, 0, 0]);
}
