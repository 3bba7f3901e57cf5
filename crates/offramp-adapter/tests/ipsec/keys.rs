//! Tests of a key registry's marks, the highest sequence numbers that must not be used or accepted again. The ports of
//! a process share the marks, and the marks outlive a crash.

use super::bed::{Bed, Pair, SPI, add, config, gcm, losses, sa};
use crate::support::{MemoryHost, pattern, tcp_frame, tcp_super_frame};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::ipsec::{KeyMark, KeyRegistry, KeyStore, SaChange, SaDirection, SaError, SaState};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::WirePort;
use offramp_adapter::stats::Loss;
use offramp_offload::esp::{Arrival, SaConfig};
use offramp_offload::frame::Frame;
use offramp_offload::sync::lock;
use proptest::prelude::*;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

/// Number of sequence numbers reserved at a time.
const STEP: u64 = 16;
/// Number of calls of [`KeyRegistry::keep`] without a packet after which an inbound mark no longer exceeds the highest
/// accepted sequence number.
const LOOKS: usize = 60;

/// A disk whose contents outlive the registry.
#[derive(Clone, Default)]
struct Disk {
    marks: Arc<Mutex<Vec<KeyMark>>>,
    is_broken: Arc<Mutex<bool>>,
    woken: Arc<Counter>,
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl KeyStore for Disk {
    fn write(&mut self, marks: &[KeyMark]) -> io::Result<()> {
        if *lock(&self.is_broken) {
            return Err(io::Error::other("no space"));
        }
        *lock(&self.marks) = marks.to_vec();
        Ok(())
    }
}

impl Disk {
    /// Creates the registry of a restarted process.
    fn start(&self) -> Arc<KeyRegistry> {
        let marks = lock(&self.marks).clone();
        let waker = Waker::from(Arc::clone(&self.woken));
        Arc::new(KeyRegistry::lasting(Box::new(self.clone()), &marks, STEP, waker))
    }

    fn wakes(&self) -> usize {
        self.woken.0.swap(0, Relaxed)
    }

    fn fail(&self, is_broken: bool) {
        *lock(&self.is_broken) = is_broken;
    }
}

/// Creates a bed whose ends are two processes with these registries.
fn bed(left: &Arc<KeyRegistry>, right: &Arc<KeyRegistry>) -> Bed {
    let bed = Bed::new(&config());
    bed.controls[0].ipsec().share_keys(left, "left");
    bed.controls[1].ipsec().share_keys(right, "right");
    bed
}

/// Returns the change that adds an association as the daemon adds an association of its file: the sequence numbers
/// continue after the last used number.
fn add_again(keys: &KeyRegistry, direction: SaDirection, sa: &SaConfig) -> SaChange {
    let sequence = keys.last_number(direction, sa).unwrap_or(0).max(sa.sequence);
    add(direction, &SaConfig { sequence, ..sa.clone() })
}

fn send(bed: &mut Bed, frames: u32) {
    for n in 0..frames {
        bed.left.host_mut().to_send.push_back(tcp_frame(n as u16, 0, &pattern(u64::from(n), 4)));
    }
    bed.run_until_idle();
}

#[test]
fn numbers_that_are_not_written_are_not_used_and_their_frames_are_lost() {
    for is_esn in [false, true] {
        let (disk, sa) = (Disk::default(), SaConfig { esn: is_esn, ..gcm() });
        let keys = disk.start();
        let mut bed = bed(&keys, &Arc::default());
        bed.protect(&sa);
        assert_eq!(lock(&disk.marks)[0].number, STEP);
        disk.fail(true);
        send(&mut bed, 7);
        assert_eq!(disk.wakes(), 0, "more than half is left");
        send(&mut bed, 33);
        assert_eq!(disk.wakes(), 1, "once for each step");
        assert!(keys.keep().is_err());
        assert_eq!(losses(bed.transmit()), [(Loss::SequenceExhausted, 40 - STEP)]);
        let status = &bed.controls[0].ipsec().status()[0];
        assert_eq!((status.sequence, status.state), (STEP, SaState::SequenceExhausted));
        disk.fail(false);
        keys.keep().unwrap();
        assert_eq!(lock(&disk.marks)[0].number, 2 * STEP);
        send(&mut bed, 3);
        assert_eq!(bed.right.host().given.len() as u64, STEP + 3);
        assert_eq!(bed.controls[0].ipsec().status()[0].state, SaState::Alive);
        bed.assert_everything_is_accounted_for();
    }
}

#[test]
fn an_association_whose_numbers_cannot_be_written_is_not_made_and_its_key_stays_free() {
    let disk = Disk::default();
    let keys = disk.start();
    let bed = bed(&keys, &Arc::default());
    disk.fail(true);
    let (at, error) = bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap_err();
    assert!(at == 0 && error.to_string().contains("no space"), "{error}");
    assert!(bed.controls[0].ipsec().status().is_empty());
    disk.fail(false);
    bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap();
}

#[test]
fn a_process_that_starts_again_continues_after_what_was_reserved_and_a_clean_one_after_what_was_used() {
    for is_crash in [true, false] {
        let disk = Disk::default();
        let keys = disk.start();
        let mut first = bed(&keys, &Arc::default());
        first.protect(&gcm());
        send(&mut first, 5);
        if !is_crash {
            keys.close().unwrap();
            send(&mut first, 1);
            assert_eq!(losses(first.transmit()), [(Loss::SequenceExhausted, 1)], "closed");
        }
        let keys = disk.start();
        let bed = bed(&keys, &Arc::default());
        let used = if is_crash { STEP } else { 5 };
        let refused = bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap_err();
        assert_eq!(refused, (0, SaError::UsedKey { spi: SPI, sequence: used }));
        bed.controls[0].change_ipsec(&[add_again(&keys, SaDirection::Out, &gcm())]).unwrap();
        assert_eq!(bed.controls[0].ipsec().status()[0].sequence, used);
        assert_eq!(lock(&disk.marks)[0].number, used + STEP);
    }
}

#[test]
fn a_key_has_one_port_at_a_time_and_continues_on_the_next_one() {
    for keys in [Arc::default(), Disk::default().start()] {
        let mut bed = bed(&keys, &keys);
        // Both ports seal for a peer outside the test bed.
        let (elsewhere, other_spi) = (add(SaDirection::Out, &gcm()), SaConfig { spi: SPI + 9, ..gcm() });
        bed.controls[0].change_ipsec(&[elsewhere]).unwrap();
        let moved = |sequence| add(SaDirection::Out, &SaConfig { sequence, ..other_spi.clone() });
        let refused = bed.controls[1].change_ipsec(&[moved(1 << 20)]).unwrap_err().1;
        assert_eq!(refused, SaError::KeyOfAnotherPort { spi: SPI + 9, port: "left".to_owned() });
        send(&mut bed, 5);
        bed.controls[0].change_ipsec(&[SaChange::Remove { direction: SaDirection::Out, spi: SPI }]).unwrap();
        let refused = bed.controls[1].change_ipsec(&[moved(0)]).unwrap_err().1;
        let SaError::UsedKey { sequence, .. } = refused else { panic!("{refused}") };
        assert!(sequence >= 5);
        bed.controls[1].change_ipsec(&[moved(sequence)]).unwrap();
        // With CBC, both associations may have the same key. A shared key is refused only for the counter modes, in
        // which the sequence number is the IV.
        let cbc = sa("aes128-sha256", SPI + 1);
        for control in &bed.controls {
            control.change_ipsec(&[add(SaDirection::Out, &cbc)]).unwrap();
        }
    }
}

#[test]
fn a_port_that_ends_gives_its_keys_back() {
    let keys: Arc<KeyRegistry> = Arc::default();
    let control = PortControl::new(&config());
    control.ipsec().share_keys(&keys, "gone");
    control.change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap();
    drop(control);
    let bed = bed(&keys, &keys);
    let refused = bed.controls[0].change_ipsec(&[add(SaDirection::Out, &gcm())]).unwrap_err().1;
    assert!(matches!(refused, SaError::UsedKey { .. }), "{refused}");
    bed.controls[0].change_ipsec(&[add_again(&keys, SaDirection::Out, &gcm())]).unwrap();
}

/// Creates a queue pair, and returns its wire to the test.
fn alone(control: &Arc<PortControl>) -> (Pair, CableEnd) {
    let (near, far) = cable(&CableConfig::default());
    (QueuePair::new(&config(), control, 0, MemoryHost::default(), near), far)
}

fn bring(pair: &mut Pair, wire: &mut CableEnd, frames: &[Vec<u8>]) {
    for frame in frames {
        wire.lend(frame.len(), 1).unwrap().bytes[..frame.len()].copy_from_slice(frame);
        wire.put(frame.len(), 1, 0);
        wire.flush();
        while pair.poll(u64::MAX / 2).unwrap().moved {}
    }
}

/// Returns frames sealed by the left end, as recorded on the wire.
fn recorded(sa: &SaConfig, frames: u32) -> Vec<Vec<u8>> {
    let control = PortControl::new(&config());
    control.change_ipsec(&[add(SaDirection::Out, sa)]).unwrap();
    let (mut pair, mut wire) = alone(&control);
    let mut captured = Vec::new();
    for n in 0..frames {
        pair.host_mut().to_send.push_back(tcp_frame(n as u16, 0, &pattern(u64::from(n), 4)));
        while pair.poll(0).unwrap().moved {}
        captured.extend(std::iter::from_fn(|| wire.take(u64::MAX / 2).map(|frame| frame.to_vec())));
    }
    captured
}

/// Creates a receiving process with the contents of its disk.
fn receiver(disk: &Disk, sa: &SaConfig) -> (Arc<KeyRegistry>, Arc<PortControl>) {
    let keys = disk.start();
    let control = PortControl::new(&config());
    control.ipsec().share_keys(&keys, "receiver");
    control.change_ipsec(&[add_again(&keys, SaDirection::In, sa)]).unwrap();
    (keys, control)
}

#[test]
fn a_recorded_packet_is_refused_after_a_crash() {
    for name in ["aes128gcm16", "aes128-sha256"] {
        let (disk, sa) = (Disk::default(), sa(name, SPI));
        let frames = recorded(&sa, 40);
        let (keys, control) = receiver(&disk, &sa);
        let (mut pair, mut wire) = alone(&control);
        // The first packet wakes the thread that would call [`KeyRegistry::keep`]. Later packets do not wake the thread
        // while they arrive at the same rate.
        bring(&mut pair, &mut wire, &frames[..1]);
        assert_eq!(disk.wakes(), 1);
        assert!(keys.keep().unwrap(), "packets arrive");
        for group in frames[1..20].chunks(2) {
            bring(&mut pair, &mut wire, group);
            assert!(keys.keep().unwrap());
        }
        assert!(disk.wakes() <= 2);
        assert_eq!(pair.host().given.len(), 20);
        let (_, control) = receiver(&disk, &sa);
        let (mut pair, mut wire) = alone(&control);
        bring(&mut pair, &mut wire, &frames[..20]);
        assert!(pair.host().given.is_empty());
        // Further packets are refused, too: about as many packets as arrive during ten checks.
        bring(&mut pair, &mut wire, &frames[20..]);
        let given = pair.host().given.len();
        assert!((5..20).contains(&given), "{name}: {given}");
    }
}

#[test]
fn a_crash_when_nothing_has_come_for_long_costs_no_packet() {
    let (disk, sa) = (Disk::default(), gcm());
    let frames = recorded(&sa, 2000);
    let (keys, control) = receiver(&disk, &sa);
    let (mut pair, mut wire) = alone(&control);
    bring(&mut pair, &mut wire, &frames[..1000]);
    assert!((0..LOOKS).any(|_| !keys.keep().unwrap()), "it sleeps at last");
    assert_eq!(lock(&disk.marks)[0].number, 1000);
    let (_, control) = receiver(&disk, &sa);
    let (mut pair, mut wire) = alone(&control);
    bring(&mut pair, &mut wire, &frames);
    assert_eq!(pair.host().given.len(), 1000);
}

/// A disk that reports each write request, and completes the write after a permission of the test.
struct Slow {
    asked: Sender<()>,
    may_answer: Receiver<()>,
}

impl KeyStore for Slow {
    fn write(&mut self, _: &[KeyMark]) -> io::Result<()> {
        self.asked.send(()).unwrap();
        self.may_answer.recv().map_err(io::Error::other)
    }
}

#[test]
fn frames_go_on_while_the_disk_is_waited_for() {
    let ((asked, is_asked), (answer, may_answer)) = (channel(), channel());
    let store = Box::new(Slow { asked, may_answer });
    let keys = Arc::new(KeyRegistry::lasting(store, &[], STEP, Waker::noop().clone()));
    let mut bed = bed(&keys, &Arc::default());
    let next = sa("aes256gcm16", SPI + 1);
    answer.send(()).unwrap();
    bed.protect(&gcm());
    is_asked.recv().unwrap();
    let control = Arc::clone(&bed.controls[0]);
    std::thread::scope(|scope| {
        let change = scope.spawn(move || control.change_ipsec(&[add(SaDirection::Out, &next)]));
        is_asked.recv().unwrap();
        // Only the first association is installed at this time, and it seals.
        send(&mut bed, 5);
        let (given, associations) = (bed.right.host().given.len(), bed.controls[0].ipsec().status().len());
        answer.send(()).unwrap();
        change.join().unwrap().unwrap();
        assert_eq!((given, associations), (5, 1));
    });
    assert_eq!(bed.controls[0].ipsec().status().len(), 2);
}

/// An event during the life of a sealing process.
#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    SuperFrame(usize),
    Keep,
    Break(bool),
    Remove,
    Rekey,
    Move,
    Crash,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..40_u32).prop_map(Step::Send),
        2 => (1..20_000_usize).prop_map(Step::SuperFrame),
        4 => Just(Step::Keep),
        1 => any::<bool>().prop_map(Step::Break),
        1 => Just(Step::Remove),
        1 => Just(Step::Rekey),
        1 => Just(Step::Move),
        2 => Just(Step::Crash),
        1 => Just(Step::Close),
    ]
}

/// A process with two ports, which send one after the other with one of two keys.
struct Process {
    keys: Arc<KeyRegistry>,
    ports: [(Arc<PortControl>, Pair, CableEnd); 2],
    /// Index of the port in use, and number of the key in use.
    port: usize,
    key: u32,
}

impl Process {
    fn start(disk: &Disk) -> Self {
        let keys = disk.start();
        let ports = ["a", "b"].map(|name| {
            let control = PortControl::new(&config());
            control.ipsec().share_keys(&keys, name);
            let (pair, wire) = alone(&control);
            (control, pair, wire)
        });
        Self { keys, ports, port: 0, key: 0 }
    }

    fn change(&self, change: &SaChange) -> bool {
        self.ports[self.port].0.change_ipsec(std::slice::from_ref(change)).is_ok()
    }

    fn config(key: u32) -> SaConfig {
        sa("aes128gcm16", SPI + key)
    }

    /// Executes a step. If no association is left, adds an association if possible.
    fn step(&mut self, step: &Step, disk: &Disk) {
        let remove = SaChange::Remove { direction: SaDirection::Out, spi: SPI + self.key };
        let to_send = &mut self.ports[self.port].1.host_mut().to_send;
        match *step {
            Step::Send(frames) => to_send.extend((0..frames).map(|n| tcp_frame(0, n, b"data"))),
            Step::SuperFrame(len) => to_send.push_back(tcp_super_frame(0, 0, &pattern(0, len), 536)),
            Step::Keep => drop(self.keys.keep()),
            Step::Break(is_broken) => disk.fail(is_broken),
            Step::Remove => drop(self.change(&remove)),
            Step::Move => {
                self.change(&remove);
                self.port = 1 - self.port;
            }
            Step::Rekey => {
                let next = Self::config(1 - self.key);
                let sequence = self.keys.last_number(SaDirection::Out, &next).unwrap_or(0);
                let config = Box::new(SaConfig { sequence, ..next });
                let (direction, spi) = (SaDirection::Out, SPI + self.key);
                if self.change(&SaChange::Rekey { direction, spi, config, grace_ns: 0 }) {
                    self.key = 1 - self.key;
                }
            }
            Step::Close => {
                let _ = self.keys.close();
                *self = Self::start(disk);
            }
            Step::Crash => *self = Self::start(disk),
        }
        if self.ports[self.port].0.ipsec().status().is_empty() {
            self.change(&add_again(&self.keys, SaDirection::Out, &Self::config(self.key)));
        }
    }

    /// Returns the packets currently on the wires.
    fn sent(&mut self) -> Vec<(u32, u32)> {
        let mut sent = Vec::new();
        for (control, pair, wire) in &mut self.ports {
            // Without an association, the port would send the frames unencrypted, so they are removed here. Other tests
            // cover frames without an association.
            if control.ipsec().status().is_empty() {
                pair.host_mut().to_send.clear();
            }
            while pair.poll(0).unwrap().moved {
                while let Some(frame) = wire.take(u64::MAX / 2) {
                    let Ok(Arrival::Esp(packet)) = Arrival::of(&Frame::received(frame), None) else { continue };
                    sent.push((packet.spi, packet.sequence));
                }
            }
        }
        sent
    }
}

proptest! {
    #[test]
    fn no_key_seals_with_a_number_twice_whatever_happens(steps in prop::collection::vec(step(), 1..60)) {
        let (disk, mut used) = (Disk::default(), HashSet::new());
        let mut process = Process::start(&disk);
        for step in steps {
            process.step(&step, &disk);
            for number in process.sent() {
                prop_assert!(used.insert(number), "{number:x?} twice, after {step:?}");
            }
        }
    }
}
