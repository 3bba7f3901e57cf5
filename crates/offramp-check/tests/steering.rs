//! Tests of receive queues. An adapter that distributes frames over a TAP's queues by the rule that it reports passes
//! the check. For other adapters, the check names each fault.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{Bed, NAMES};
use offramp_adapter::port::HostPort;
use offramp_check::Captured;
use offramp_check::end::{Description, End, LocalEnd, Offered, Outgoing};
use offramp_check::error::CheckError;
use offramp_check::fault::Fault;
use offramp_check::rss::{Hashed, Steering};
use offramp_check::run::{Config, RSS, run};
use offramp_check::verdict::{Blame, Row, Verdict};
use offramp_offload::meta::RxMeta;
use offramp_offload::rss::{KEY_LEN, MICROSOFT_KEY, Toeplitz};
use offramp_ports::packet::Arrival;
use offramp_ports::tap::{Tap, TapConfig, TapQueue};

/// Number of queues of the receiver's TAP.
const QUEUES: u16 = 4;
const ENTRIES: u32 = 128;
/// Offsets of the addresses' start and end, and of the ports, in a frame with IPv4 and with IPv6.
const OF_IP: [(usize, usize, usize); 2] = [(26, 34, 34), (22, 54, 54)];

/// An adapter's choice of the queue from the hashed fields.
type Choose = fn(addresses: &[u8], ports: &[u8]) -> u32;

/// Returns the queue for `input` by a Toeplitz hash with `key` and the indirection `table`.
fn by(key: &[u8; KEY_LEN], input: &[u8], table: impl Fn(u32) -> u32) -> u32 {
    table(Toeplitz::new(key).hash(input) % ENTRIES)
}

fn entry(index: u32) -> u32 {
    // The queue must depend on all bits of the index, not only on its low bits.
    (index + index / 7) % u32::from(QUEUES)
}

fn right(addresses: &[u8], ports: &[u8]) -> u32 {
    by(&MICROSOFT_KEY, &[addresses, ports].concat(), entry)
}

fn steering() -> Steering {
    Steering::ByHash {
        key: MICROSOFT_KEY.to_vec(),
        table: (0..ENTRIES).map(entry).collect(),
        hashed: [Hashed::AddressesAndPorts; 4],
    }
}

/// Forwards frames from the first TAP to the queues of the second TAP, and from all these queues to the first TAP.
/// Dropping the value ends the adapter.
struct Adapter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Adapter {
    fn start(mut near: TapQueue, mut far: Vec<TapQueue>, choose: Choose) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let mut is_idle = true;
                while let Some(frame) = next(&mut near) {
                    let (start, end, ports) = OF_IP[usize::from(frame[12..14] != [8, 0])];
                    let queue = choose(&frame[start..end], &frame[ports..ports + 4]);
                    far[0].rx_deliver(&RxMeta { queue: queue as u16, ..RxMeta::default() }, &frame).unwrap();
                    is_idle = false;
                }
                for queue in &mut far {
                    while let Some(frame) = next(queue) {
                        near.rx_deliver(&RxMeta::default(), &frame).unwrap();
                        is_idle = false;
                    }
                }
                if is_idle {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

/// Returns the host's next frame. A frame from the host's stack may end before the ports, so short frames are padded.
fn next(tap: &mut TapQueue) -> Option<Vec<u8>> {
    let is_there = tap.tx_next(0).unwrap();
    let frame = is_there.then(|| tap.tx_frame().bytes().to_vec());
    frame.map(|mut frame| {
        frame.resize(frame.len().max(60), 0);
        frame
    })
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A TAP whose adapter reports its distribution of received frames.
struct Steered {
    tap: LocalEnd,
    steering: Steering,
}

impl End for Steered {
    fn description(&self) -> &Description {
        self.tap.description()
    }

    fn offered(&self, feature: &str) -> Offered {
        self.tap.offered(feature)
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        self.tap.apply(features)
    }

    fn is_on(&self, feature: &str) -> bool {
        self.tap.is_on(feature)
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        self.tap.send(frame)
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        self.tap.receive(wait)
    }

    fn steering(&mut self) -> Result<Steering, CheckError> {
        Ok(self.steering.clone())
    }

    fn arrival(&mut self, wait: Duration) -> Result<Option<Arrival>, CheckError> {
        self.tap.arrival(wait)
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        self.tap.check_link()
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        self.tap.finish()
    }
}

/// Returns the verdict on an adapter that chooses queues by `choose` and reports `steering`.
fn verdict(choose: Choose, steering: Steering) -> Row {
    let bed = Bed::new("steering");
    let open = |side: usize, queues| {
        Tap::open_in(&bed.namespaces[side], &TapConfig { queues, ..TapConfig::new(NAMES[side]) }).unwrap()
    };
    let (near, far) = (open(0, 1), open(1, QUEUES));
    let far_queues = (0..far.queue_count()).map(|queue| far.queue(queue).unwrap()).collect();
    bed.set_up(1500);
    let _adapter = Adapter::start(near.queue(0).unwrap(), far_queues, choose);
    let steered = Steered { tap: bed.end(1).unwrap(), steering };
    let mut ends: [Box<dyn End>; 2] = [Box::new(bed.end(0).unwrap()), Box::new(steered)];
    let config = Config { only: vec![RSS.to_owned()], ..common::quick() };
    let mut report = run(&mut ends, &config, &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert_eq!(report.rows.len(), 2);
    assert!(matches!(report.rows[1].verdict, Verdict::NotOffered), "a TAP has no key: {:?}", report.rows[1]);
    assert_eq!(report.commands, Vec::<String>::new());
    report.rows.swap_remove(0)
}

#[test]
fn frames_on_the_queues_that_key_and_table_say_are_right() {
    let row = verdict(right, steering());
    assert!(matches!(row.verdict, Verdict::Right), "{row:?}");
    assert_eq!(row.cases, 4 * 64);
    // The hash omits the ports, as many adapters do for UDP.
    let addresses_alone: Choose = |addresses, _| by(&MICROSOFT_KEY, addresses, entry);
    let Steering::ByHash { key, table, .. } = steering() else { unreachable!() };
    let row = verdict(addresses_alone, Steering::ByHash { key, table, hashed: [Hashed::Addresses; 4] });
    assert!(matches!(row.verdict, Verdict::Right), "{row:?}");
}

#[test]
fn each_fault_of_an_adapter_that_spreads_frames_is_named() {
    let faults: [(Choose, Fault); 8] = [
        (|_, _| 0, Fault::RssOneQueue),
        (
            |addresses, ports| {
                let mut key = MICROSOFT_KEY;
                key.chunks_mut(4).for_each(<[u8]>::reverse);
                by(&key, &[addresses, ports].concat(), entry)
            },
            Fault::RssKeyByteOrder,
        ),
        (|addresses, _| by(&MICROSOFT_KEY, addresses, entry), Fault::RssFields),
        (|addresses, ports| by(&MICROSOFT_KEY, &[addresses, ports].concat(), |index| index % 4), Fault::RssTable),
        (
            |addresses, ports| by(&MICROSOFT_KEY, &[addresses, ports].concat(), |index| entry(index ^ 1)),
            Fault::RssTable,
        ),
        (
            |addresses, ports| {
                let (source, destination) = addresses.split_at(addresses.len() / 2);
                by(&MICROSOFT_KEY, &[destination, source, ports].concat(), entry)
            },
            Fault::RssHash,
        ),
        (
            |addresses, ports| {
                by(&MICROSOFT_KEY, &[addresses, &[ports[2], ports[3], ports[0], ports[1]]].concat(), entry)
            },
            Fault::RssHash,
        ),
        (
            |addresses, ports| {
                let mut key = MICROSOFT_KEY;
                key[37] ^= 1;
                by(&key, &[addresses, ports].concat(), entry)
            },
            Fault::RssHash,
        ),
    ];
    for (number, (choose, fault)) in faults.into_iter().enumerate() {
        let row = verdict(choose, steering());
        // A wrong key byte at an offset that is hashed only for IPv6 must also be found, although the queues for IPv4
        // are right.
        let Verdict::Wrong(finding) = &row.verdict else { panic!("fault {number}: {row:?}") };
        assert_eq!((finding.fault, finding.blame), (fault, Blame::Receiver), "fault {number}: {finding:?}");
    }
}

#[test]
fn what_is_not_known_of_the_queues_is_not_judged() {
    let row = verdict(right, Steering::NotReachable("one receive queue".to_owned()));
    assert!(matches!(&row.verdict, Verdict::NotReachable { why } if why.contains("one receive queue")), "{row:?}");
    let Steering::ByHash { key, table, .. } = steering() else { unreachable!() };
    // The driver reports hashed fields only for TCP over IPv4.
    let hashed = [Hashed::AddressesAndPorts, Hashed::Unknown, Hashed::Unknown, Hashed::Unknown];
    let tcp4_alone: Choose = |addresses, ports| if addresses.len() == 8 { right(addresses, ports) } else { 0 };
    let row = verdict(tcp4_alone, Steering::ByHash { key, table, hashed });
    assert!(matches!(row.verdict, Verdict::Right) && row.cases == 64, "{row:?}");
}
