//! Tests of rate limits in virtual time: their accuracy on a cable and a switch, and the absence of effects on other
//! ports.

use crate::support::{pattern, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::limit::{PortLimits, RateLimit};
use offramp_adapter::moderation::{ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::{HostPort, InPlace, PortError};
use offramp_adapter::port_security::PortSecurity;
use offramp_adapter::stats::{Loss, QueueStats};
use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig, SwitchPort};
use offramp_adapter::vlan::PortVlans;
use offramp_offload::caps::Offloads;
use offramp_offload::frame::Frame;
use offramp_offload::meta::{RxMeta, TxMeta};
use proptest::prelude::*;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;
/// Time between batches, in nanoseconds.
const BATCH_NS: u64 = 200_000;
const MSS: u16 = 1448;
const SEGMENTS: usize = 40;
/// Position of the sequence number in a numbered frame.
const NUMBER: std::ops::Range<usize> = 14..18;

/// A host that sends any number of frames, and counts the received frames.
struct Flood {
    to_send: (TxMeta, Vec<u8>),
    left: u64,
    sent: u32,
    /// Number of calls of `tx_hold`.
    held: u64,
    given: u64,
    /// Number of wire frames lost because of the port's limit, and the bytes of these frames.
    lost: [u64; 2],
    /// Number in the last received frame, for each sender.
    last: [u32; 8],
}

impl Flood {
    /// Creates a host that sends `left` frames of `len` bytes without FCS from station `from` to station `to`. The
    /// frames are numbered from 1.
    fn plain(from: u8, to: u8, len: usize, left: u64) -> Self {
        let mut frame = vec![0; len];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
        // IEEE 802 local experimental EtherType 1.
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        Self { to_send: (TxMeta::default(), frame), left, sent: 0, held: 0, given: 0, lost: [0; 2], last: [0; 8] }
    }

    /// Creates a host that sends super-frames without end.
    fn super_frames(from: u8, to: u8) -> Self {
        let (meta, mut frame) = tcp_super_frame(0, 1, &pattern(0, SEGMENTS * usize::from(MSS)), MSS);
        frame[5] = to;
        frame[11] = from;
        Self { to_send: (meta, frame), ..Self::plain(from, to, 60, u64::MAX) }
    }

    /// Creates a host that sends one frame, from which a switch learns the host's port.
    fn sink(station: u8) -> Self {
        Self::plain(station, 0xf0, 60, 1)
    }
}

impl InPlace for Flood {}

impl HostPort for Flood {
    fn tx_next(&mut self, _: u64) -> Result<bool, PortError> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        self.sent += 1;
        if self.to_send.0 == TxMeta::default() {
            self.to_send.1[NUMBER].copy_from_slice(&self.sent.to_be_bytes());
        }
        Ok(true)
    }

    fn tx_hold(&mut self) {
        self.held += 1;
    }

    fn tx_frame(&mut self) -> Frame<'_> {
        Frame::new(&mut self.to_send.1, self.to_send.0)
    }

    fn rx_deliver(&mut self, meta: &RxMeta, frame: &[u8]) -> Result<(), PortError> {
        self.given += u64::from(meta.segments);
        if frame[12..14] == [0x88, 0xb5] && frame[5] != 0xf0 {
            let number = u32::from_be_bytes(frame[NUMBER].try_into().unwrap());
            let last = &mut self.last[usize::from(frame[11])];
            assert!(number > *last, "frame {number} comes after {last}");
            *last = number;
        }
        Ok(())
    }

    fn rx_lost_to_limit(&mut self, frame: &Frame<'_>, frames: usize, bytes: usize) {
        assert_eq!(frame.bytes()[5], 2, "a frame for this host");
        self.lost = [self.lost[0] + frames as u64, self.lost[1] + bytes as u64];
    }

    fn rx_flush(&mut self, _: u64) {}

    fn accepts(&self) -> Offloads {
        Offloads::all()
    }

    fn honours_data_valid(&self) -> bool {
        true
    }
}

/// Connected hosts, of which the first sends to the second.
trait Net {
    fn poll(&mut self, now_ns: u64) -> bool;
    fn next_deadline_ns(&self) -> Option<u64>;
    fn host(&mut self, port: usize) -> &mut Flood;
    fn control(&self, port: usize) -> &PortControl;
    fn is_held(&self, port: usize) -> bool;

    fn stats(&self, port: usize) -> &QueueStats {
        &self.control(port).queues()[0]
    }

    /// Advances the time to `end_ns`. Returns the number of polls.
    fn run(&mut self, now_ns: u64, end_ns: u64) -> u32 {
        let mut now_ns = now_ns;
        let mut polls = 0;
        while now_ns < end_ns {
            polls += 1;
            if self.poll(now_ns) {
                now_ns += BATCH_NS;
            } else {
                let next_ns = self.next_deadline_ns().unwrap_or(u64::MAX);
                assert!(next_ns > now_ns, "a deadline in the past has the thread spin: {next_ns}, {now_ns}");
                now_ns = next_ns;
            }
        }
        polls
    }
}

struct Cable(Vec<QueuePair<Flood, CableEnd>>, Vec<Arc<PortControl>>);

impl Cable {
    fn new(sender: Flood) -> Self {
        Self::with_queues(&[(), ()].map(|()| PortControl::new(&AdapterConfig::default())), vec![sender])
    }

    /// Connects each sender with its own cable.
    fn with_queues(controls: &[Arc<PortControl>; 2], senders: Vec<Flood>) -> Self {
        let mut pairs = Vec::new();
        for (queue, sender) in senders.into_iter().enumerate() {
            let (near, far) = cable(&CableConfig::default());
            let config = AdapterConfig { moderation: controls[1].moderation(), ..AdapterConfig::default() };
            pairs.push(QueuePair::new(&config, &controls[0], queue, sender, near));
            pairs.push(QueuePair::new(&config, &controls[1], queue, Flood::sink(2), far));
        }
        Self(pairs, controls.to_vec())
    }
}

impl Net for Cable {
    fn poll(&mut self, now_ns: u64) -> bool {
        self.0.iter_mut().fold(false, |moved, pair| pair.poll(now_ns).unwrap().moved | moved)
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.0.iter().filter_map(QueuePair::next_deadline_ns).min()
    }

    fn host(&mut self, port: usize) -> &mut Flood {
        self.0[port].host_mut()
    }

    fn control(&self, port: usize) -> &PortControl {
        &self.1[port]
    }

    fn is_held(&self, port: usize) -> bool {
        self.0[port].is_host_held()
    }
}

struct Lan(Switch<Flood>, Vec<Arc<SwitchPort>>);

impl Lan {
    /// Creates a switch that has learned the port of every host.
    fn new(hosts: Vec<Flood>, config: &PortConfig) -> Self {
        let mut switch = Switch::new(&SwitchConfig::default());
        let floods: Vec<_> = hosts.iter().map(|host| host.left).collect();
        let silent = hosts.into_iter().map(|host| Flood { left: 0, ..host });
        let ports = silent.map(|host| switch.control().add(host, config).unwrap()).collect();
        switch.poll(0);
        for (port, &left) in floods.iter().enumerate() {
            switch.host_mut(port).unwrap().left = left.min(1);
            while switch.poll(0).moved {}
        }
        for (host, left) in switch.hosts_mut().zip(floods) {
            (host.left, host.given) = (if left > 1 { left } else { 0 }, 0);
        }
        Self(switch, ports)
    }
}

impl Net for Lan {
    fn poll(&mut self, now_ns: u64) -> bool {
        self.0.poll(now_ns).moved
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.0.next_deadline_ns()
    }

    fn host(&mut self, port: usize) -> &mut Flood {
        self.0.host_mut(port).unwrap()
    }

    fn control(&self, port: usize) -> &PortControl {
        &self.1[port]
    }

    fn is_held(&self, port: usize) -> bool {
        self.0.hosts().nth(port).unwrap().1
    }
}

fn lan(sender: Flood) -> Lan {
    Lan::new(vec![sender, Flood::sink(2)], &PortConfig::default())
}

/// Returns both kinds of network, in which the host of the first port sends.
fn nets(sender: fn() -> Flood) -> [(&'static str, Box<dyn Net>); 2] {
    [("cable", Box::new(Cable::new(sender()))), ("switch", Box::new(lan(sender())))]
}

fn bits(bits_per_second: u64) -> RateLimit {
    RateLimit { bits_per_second: Some(bits_per_second), ..RateLimit::default() }
}

fn frames(frames_per_second: u64) -> RateLimit {
    RateLimit { frames_per_second: Some(frames_per_second), ..RateLimit::default() }
}

fn tx(tx: RateLimit) -> PortLimits {
    PortLimits { tx, ..PortLimits::default() }
}

fn rx(rx: RateLimit) -> PortLimits {
    PortLimits { rx, ..PortLimits::default() }
}

/// Sets the limit of the sender or of the receiver.
fn limit(net: &mut dyn Net, is_transmit: bool, limit: RateLimit) {
    if is_transmit { net.control(0).set_limits(tx(limit)) } else { net.control(1).set_limits(rx(limit)) }
}

fn is_near(found: u64, expected: f64, way: &str) {
    assert!((found as f64 / expected - 1.0).abs() <= 0.01, "{way}: {found} frames, not {expected}");
}

#[test]
fn frames_of_other_vlans_do_not_use_up_the_limit_of_a_receiver() {
    const FRAMES: u64 = 50_000;
    let config = AdapterConfig::default();
    let vlans = PortVlans::new(Some(10), &[]).unwrap();
    let receiver = PortControl::secured(&config, PortSecurity { vlans, ..PortSecurity::default() });
    let mut net = Cable::with_queues(&[PortControl::new(&config), receiver], vec![Flood::plain(1, 2, 60, FRAMES)]);
    limit(&mut net, false, frames(1000));
    net.run(0, SECOND_NS);
    assert_eq!(net.stats(1).receive.lost(Loss::Vlan), FRAMES);
}

/// A sender, the wire bytes of each frame, the rate limit, and the permitted number of frames per second.
type Workload = (fn() -> Flood, u64, RateLimit, f64);

#[test]
fn a_second_is_exact_within_one_percent_on_a_cable_and_a_switch_in_each_direction() {
    let segment_len = u64::from(MSS) + 54;
    let segment_bits = segment_len as f64 * 8.0;
    let workloads: [Workload; 5] = [
        (|| Flood::plain(1, 2, 60, u64::MAX), 60, frames(200_000), 200_000.0),
        (|| Flood::plain(1, 2, 60, u64::MAX), 60, bits(100_000_000), 100e6 / 480.0),
        (|| Flood::plain(1, 2, 1514, u64::MAX), 1514, bits(1_000_000_000), 1e9 / 1514.0 / 8.0),
        (|| Flood::super_frames(1, 2), segment_len, bits(1_000_000_000), 1e9 / segment_bits),
        (|| Flood::super_frames(1, 2), segment_len, frames(50_000), 50_000.0),
    ];
    for (sender, len, rate, expected) in workloads {
        for is_transmit in [true, false] {
            for (name, mut net) in nets(sender) {
                limit(&mut *net, is_transmit, rate);
                let polls = net.run(0, SECOND_NS);
                let way = format!("{name}, {}, {rate:?}", if is_transmit { "transmit" } else { "receive" });
                is_near(net.host(1).given, expected, &way);
                let is_lossy = name == "switch" && !is_transmit;
                let lost = net.stats(1).receive.lost(Loss::RateLimit);
                assert_eq!(lost > 0, is_lossy, "{way}");
                assert_eq!(net.host(1).lost, [lost, lost * len], "{way}");
                let lost_otherwise = net.stats(0).transmit.lost_total() + net.stats(1).receive.lost_total() - lost;
                assert_eq!(lost_otherwise, 0, "{way}");
                assert_eq!(net.host(0).held > 0, is_transmit, "{way}");
                assert!(is_transmit || !net.is_held(0), "{way}");
                if !is_lossy {
                    assert!(polls < 20_000, "{way}: {polls} polls in a second");
                }
            }
        }
    }
}

#[test]
fn a_burst_passes_at_once_after_an_idle_time_and_no_more() {
    let burst = RateLimit { burst_frames: Some(30), ..frames(1000) };
    for is_transmit in [true, false] {
        for (name, mut net) in nets(|| Flood::plain(1, 2, 60, 0)) {
            limit(&mut *net, is_transmit, burst);
            for second in [5, 9] {
                net.host(0).left = 100;
                let lost_before = net.stats(1).receive.lost_total();
                while net.poll(second * SECOND_NS) {}
                let given = std::mem::take(&mut net.host(1).given);
                // A queue may also have the tokens of one further millisecond.
                assert!((30..=31).contains(&given), "{name}, transmit: {is_transmit}: {given} frames");
                net.run(second * SECOND_NS, (second + 1) * SECOND_NS);
                let lost = net.stats(1).receive.lost_total() - lost_before;
                let left = std::mem::take(&mut net.host(1).given) + lost;
                assert_eq!(left + given, 100, "{name}, transmit: {is_transmit}");
            }
        }
    }
}

#[test]
fn a_limit_that_changes_holds_at_once() {
    for is_transmit in [true, false] {
        for (name, mut net) in nets(|| Flood::plain(1, 2, 60, u64::MAX)) {
            let mut now_ns = 0;
            for rate in [1000, 20_000, 4000] {
                limit(&mut *net, is_transmit, frames(rate));
                net.run(now_ns, now_ns + SECOND_NS);
                now_ns += SECOND_NS;
                is_near(std::mem::take(&mut net.host(1).given), rate as f64, name);
            }
            net.host(0).left = 5000;
            limit(&mut *net, is_transmit, RateLimit::default());
            net.run(now_ns, now_ns + SECOND_NS);
            assert_eq!(net.host(0).left, 0, "{name}: everything goes without a limit");
            assert!(net.host(1).given >= 5000 && !net.is_held(0));
        }
    }
}

#[test]
fn a_change_wakes_whoever_drives_the_port() {
    struct Counter(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let counter = Arc::new(Counter(0.into()));
    let waker = std::task::Waker::from(Arc::clone(&counter));
    let cable = Cable::new(Flood::sink(1));
    cable.0[0].register(&waker);
    cable.1[0].set_limits(tx(frames(1)));
    let mut lan = lan(Flood::sink(1));
    lan.0.register(&waker);
    lan.1[0].set_limits(tx(frames(1)));
    assert_eq!(counter.0.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!((lan.1[0].limits(), lan.1[1].limits()), (tx(frames(1)), PortLimits::default()));
}

/// Port 0 sends to port 1 and port 2 sends to port 3. Either port 0 or port 1 is limited.
#[test]
fn ports_at_their_limits_leave_the_others_of_the_switch_alone() {
    const OTHERS: u64 = 100_000;
    for limits in [(tx(frames(1000)), PortLimits::default()), (PortLimits::default(), rx(frames(1000)))] {
        let hosts =
            vec![Flood::plain(1, 2, 60, u64::MAX), Flood::sink(2), Flood::plain(3, 4, 60, OTHERS), Flood::sink(4)];
        let mut lan = Lan::new(hosts, &PortConfig::default());
        lan.1[0].set_limits(limits.0);
        lan.1[1].set_limits(limits.1);
        while lan.host(2).left > 0 {
            assert!(lan.poll(1));
        }
        while lan.host(3).given < OTHERS {
            lan.poll(1);
        }
        assert_eq!((lan.host(3).given, lan.stats(3).receive.lost_total()), (OTHERS, 0), "not a nanosecond was needed");
        assert!(lan.host(1).given < 100);
    }
}

#[test]
fn a_port_that_receives_too_much_loses_the_frames_of_every_sender_and_delays_none_of_the_rest_for_long() {
    let hosts = vec![Flood::plain(1, 2, 1514, u64::MAX), Flood::sink(2), Flood::plain(3, 2, 1514, u64::MAX)];
    let mut lan = Lan::new(hosts, &PortConfig::default());
    lan.1[1].set_limits(rx(bits(10_000_000)));
    lan.run(0, SECOND_NS);
    is_near(lan.host(1).given, 10e6 / 1514.0 / 8.0, "two senders");
    // The queue holds the frames of 50 ms at the limit, and one further frame.
    let waiting = lan.0.held(1) as u64;
    assert!((1..=10e6 as u64 / 20 / 1514 / 8 + 1).contains(&waiting), "{waiting} frames wait");
    let receive = &lan.stats(1).receive;
    assert_eq!(receive.frames_in.get(), receive.frames_out.get() + receive.lost(Loss::RateLimit));
}

#[test]
fn queues_share_the_limit_of_their_port() {
    for is_transmit in [true, false] {
        let config = AdapterConfig { queues: 4, ..AdapterConfig::default() };
        let controls = [PortControl::new(&config), PortControl::new(&config)];
        let senders = (0..4).map(|_| Flood::plain(1, 2, 1514, u64::MAX)).collect();
        let mut net = Cable::with_queues(&controls, senders);
        limit(&mut net, is_transmit, bits(1_000_000_000));
        net.run(0, SECOND_NS);
        let given: Vec<_> = (0..4).map(|queue| net.0[2 * queue + 1].host().given).collect();
        is_near(given.iter().sum(), 1e9 / 1514.0 / 8.0, "four queues");
        assert!(given.iter().all(|&frames| frames > 1000), "{given:?}");
    }
}

#[test]
fn frames_wait_for_the_limit_and_moderation_and_an_interrupt_is_not_spent_on_each() {
    let policy = Policy::FixedGap { max_interrupts_per_second: 100 };
    let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
    let cable = {
        let config = AdapterConfig { moderation, ..AdapterConfig::default() };
        let controls = [PortControl::new(&config), PortControl::new(&config)];
        Cable::with_queues(&controls, vec![Flood::plain(1, 2, 60, u64::MAX)])
    };
    let config = PortConfig { moderation, ..PortConfig::default() };
    let lan = Lan::new(vec![Flood::plain(1, 2, 60, u64::MAX), Flood::sink(2)], &config);
    let nets: [(_, Box<dyn Net>); 2] = [("cable", Box::new(cable)), ("switch", Box::new(lan))];
    for (name, mut net) in nets {
        limit(&mut *net, false, frames(10_000));
        net.run(0, SECOND_NS);
        is_near(net.host(1).given, 10_000.0, name);
        let interrupts = net.stats(1).receive.interrupts.get();
        assert!(interrupts <= 1100, "{name}: {interrupts} interrupts for 10000 frames");
    }
}

#[test]
fn what_was_taken_is_brought_out_at_once_when_a_port_is_drained() {
    let mut cable = Cable::new(Flood::plain(1, 2, 60, 400));
    cable.1[1].set_limits(rx(frames(10)));
    while cable.poll(1) {}
    assert_eq!((cable.host(0).left, cable.host(1).given), (0, 1), "399 are on the wire");
    cable.0.iter_mut().for_each(|pair| pair.set_draining(true));
    while cable.poll(1) {}
    assert_eq!((cable.host(1).given, cable.0[1].held()), (400, 0));

    let mut lan = lan(Flood::plain(1, 2, 60, 400));
    lan.1[1].set_limits(rx(frames(1000)));
    while lan.poll(1) {}
    let waiting = lan.0.held(1) as u64;
    assert!(waiting > 40);
    lan.0.set_draining(true);
    lan.poll(1);
    assert_eq!((lan.host(1).given, lan.0.held(1)), (400 - lan.stats(1).receive.lost(Loss::RateLimit), 0));

    lan.0.set_draining(false);
    lan.host(0).left = 10;
    lan.1[0].set_limits(tx(RateLimit { burst_frames: Some(1), ..frames(10) }));
    while lan.poll(2) {}
    lan.0.set_draining(true);
    lan.run(2, SECOND_NS);
    assert_eq!(lan.host(0).left, 9, "nothing is fetched for the sake of draining");
}

/// A change during the run: a new limit in one direction, another moderation of the receiver, or more frames to send.
#[derive(Clone, Copy, Debug)]
enum Change {
    Limit(bool, RateLimit),
    Moderation(Policy),
    Frames(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let rate = prop_oneof![
        Just(RateLimit::default()),
        (100u64..100_000).prop_map(frames),
        (1_000_000u64..1_000_000_000).prop_map(bits),
    ];
    let gap = (100u32..10_000).prop_map(|max| Policy::FixedGap { max_interrupts_per_second: max });
    prop_oneof![
        (any::<bool>(), rate).prop_map(|(is_transmit, limit)| Change::Limit(is_transmit, limit)),
        prop_oneof![Just(Policy::Off), gap].prop_map(Change::Moderation),
        (1u64..2000).prop_map(Change::Frames),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn limits_and_moderation_changed_at_any_moment_reorder_nothing_and_account_for_every_frame(
        changes in prop::collection::vec((change(), 0u64..20_000_000), 1..40),
        len in 60usize..1514,
    ) {
        for (name, mut net) in nets(|| Flood::plain(1, 2, 60, 0)) {
            let frame = &mut net.host(0).to_send.1;
            frame.resize(len, 0);
            let (mut now_ns, mut sent) = (0, 0);
            for &(change, wait_ns) in &changes {
                match change {
                    Change::Limit(is_transmit, rate) => limit(&mut *net, is_transmit, rate),
                    Change::Moderation(policy) => {
                        net.control(1).set_moderation(ModerationConfig { policy, ..ModerationConfig::default() });
                    }
                    Change::Frames(frames) => {
                        net.host(0).left += frames;
                        sent += frames;
                    }
                }
                net.run(now_ns, now_ns + wait_ns);
                now_ns += wait_ns;
            }
            net.control(0).set_limits(PortLimits::default());
            net.control(1).set_limits(PortLimits::default());
            net.run(now_ns, now_ns + SECOND_NS);
            let lost = net.stats(1).receive.lost_total();
            prop_assert_eq!(net.host(1).given + lost, sent, "{}", name);
            prop_assert!(name == "switch" || lost == 0);
            prop_assert_eq!(net.stats(1).receive.lost(Loss::RateLimit), lost);
        }
    }
}
