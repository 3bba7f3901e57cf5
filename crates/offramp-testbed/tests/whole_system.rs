//! Tests with the kernel's TCP through two adapters whose features are switched during the transfer.

use offramp_impair::fault::{BusConfig, FaultConfig, VerdictConfig, WrongVerdict};
use offramp_impair::memory::MemoryConfig;
use offramp_offload::caps::Offloads;
use offramp_offload::esp::{AesKey, Suite};
use offramp_testbed::esp::{EspBy, EspLink};
use offramp_testbed::host::HostSettings;
use offramp_testbed::rig::{ADDRESSES, Between, Card, Rig, RigConfig, Threads};
use offramp_testkit::process::is_alone;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 5020;
const TOGGLE_EVERY: Duration = Duration::from_millis(50);
/// Minimum number of changes of the adapters' features during a transfer. A transfer with fewer changes is repeated.
const SWITCHES_MIN: usize = 3;
const CHUNK: usize = 256 * 1024;

/// Sends `bytes` of pseudo-random data from host 0 to host 1. Returns the digests of both ends.
fn transfer(rig: &Rig, bytes: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let listener = rig.host(1).run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))).unwrap().unwrap();
    let stream = rig.host(0).run(|| TcpStream::connect((ADDRESSES[1], PORT))).unwrap().unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(move || send(stream, bytes, seed));
        let receiver = scope.spawn(move || {
            let (mut hash, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
            loop {
                match peer.read(&mut buffer).unwrap() {
                    0 => return hash.finalize().to_vec(),
                    n => hash.update(&buffer[..n]),
                }
            }
        });
        (sender.join().unwrap(), receiver.join().unwrap())
    })
}

fn send(mut stream: TcpStream, bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut hash, mut buffer, mut left) = (Sha256::new(), vec![0; CHUNK], bytes);
    while left > 0 {
        let n = left.min(rng.random_range(1..=CHUNK));
        rng.fill_bytes(&mut buffer[..n]);
        hash.update(&buffer[..n]);
        stream.write_all(&buffer[..n]).unwrap();
        left -= n;
    }
    hash.finalize().to_vec()
}

fn wait_until_balanced(rig: &Rig) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !rig.counts().is_balanced() {
        assert!(Instant::now() < deadline, "frames unaccounted for: {:?}", rig.counts());
        thread::sleep(Duration::from_millis(5));
    }
}

fn toggle_until(stop: &AtomicBool, rig: &Rig, seed: u64, switches: &AtomicUsize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        rig.set_offloads(rng.random_range(0..2), Offloads::from_bits_truncate(rng.random())).unwrap();
        switches.fetch_add(1, Ordering::Relaxed);
        thread::sleep(TOGGLE_EVERY);
    }
}

#[test]
fn a_gibibyte_arrives_unchanged_while_features_are_switched_at_random() {
    let seed = std::env::var("OFFRAMP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let modes = [
        (Threads::Shared, 1, 512 << 20),
        (Threads::Shared, 3, 256 << 20),
        (Threads::PerAdapter, 1, 128 << 20),
        (Threads::PerDirection, 1, 128 << 20),
    ];
    for (threads, queues, bytes) in modes {
        let config = RigConfig { between: Between::Adapters(threads), queues, ..RigConfig::default() };
        let rig = Rig::start(&config).unwrap();
        let (stop, switches) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| toggle_until(&stop, &rig, seed, &switches));
            // On a busy machine, a transfer can end before the features are switched. A transfer with too few changes
            // of features tests nothing, and is repeated.
            loop {
                let (sent, received) = transfer(&rig, bytes, seed);
                if sent != received || switches.load(Ordering::Relaxed) >= SWITCHES_MIN {
                    stop.store(true, Ordering::Relaxed);
                    assert_eq!(sent, received, "seed {seed}");
                    break;
                }
            }
        });
        wait_until_balanced(&rig);
    }
}

#[test]
fn a_slow_line_and_a_small_mtu_carry_tcp_as_well() {
    for (mtu, rate_bps) in [(576, Some(200_000_000)), (9000, None), (65_521, None)] {
        let rig = Rig::start(&RigConfig { mtu, rate_bps, ..RigConfig::default() }).unwrap();
        let (sent, received) = transfer(&rig, 4 << 20, 7);
        assert_eq!(sent, received, "MTU {mtu}");
        wait_until_balanced(&rig);
    }
}

/// Returns a rig with a link of 200 Mbit/s, and a card of 8 KiB on a bus of 20 MB/s. The card also loses one in 500
/// received frames, and delivers the others in reversed groups of four.
fn impaired(threads: Threads) -> RigConfig {
    let faults = FaultConfig {
        bus: BusConfig { bytes_per_second: Some(20_000_000), frame_ns: 1000 },
        receive_first: true,
        loss_one_in: Some(500),
        reverse_frames: Some(4),
        ..FaultConfig::default()
    };
    let card = Card { memory: MemoryConfig::dp8390(8192).unwrap(), faults };
    let between = Between::Adapters(threads);
    RigConfig { card, rate_bps: Some(200_000_000), offloads: Offloads::empty(), between, ..RigConfig::default() }
}

#[test]
fn what_a_card_loses_and_turns_round_is_counted_and_tcp_makes_good() {
    for threads in [Threads::Shared, Threads::PerAdapter, Threads::PerDirection] {
        let rig = Rig::start(&impaired(threads)).unwrap();
        let (sent, received) = transfer(&rig, 1 << 20, 3);
        assert_eq!(sent, received, "{threads:?}");
        wait_until_balanced(&rig);
        let counts = rig.counts().receive;
        assert!(counts.lost > 0 && counts.dropped <= counts.lost, "{counts:?}");
        assert!(counts.burst_frames_max > 0 && counts.memory_bytes_max <= 19 * 256, "{counts:?}");
    }
}

#[test]
fn a_capture_sees_the_frames_and_a_wrong_verdict_is_bypassed_meanwhile() {
    // The card marks every second data segment as bad, also in each retransmission. Without a capture, the host would
    // never get these segments.
    let verdict = VerdictConfig { wrong: WrongVerdict::GoodIsBad, one_in: 2 };
    let faults = FaultConfig { verdict: Some(verdict), ..FaultConfig::default() };
    let card = Card { memory: MemoryConfig::default(), faults };
    let host = HostSettings { captured: true, ..HostSettings::default() };
    let rig = Rig::start(&RigConfig { card, host, ..RigConfig::default() }).unwrap();
    let (sent, received) = transfer(&rig, 1 << 20, 4);
    assert_eq!(sent, received);
    assert_eq!(rig.counts().receive.lost, 0);
    assert!(rig.capture().is_some_and(|capture| capture.frames() > 0));
}

#[test]
fn an_encrypted_link_carries_tcp_unchanged_whoever_seals_and_opens() {
    let suites = [Suite::AesGcm16 { key: AesKey::Bits128, implicit_iv: false }, Suite::TripleDesCbc];
    for (suite, by) in suites.into_iter().flat_map(|suite| [EspBy::Adapter, EspBy::Host].map(|by| (suite, by))) {
        for offloads in [Offloads::TX_CHECKSUM | Offloads::RX_CHECKSUM, Offloads::all()] {
            let esp = Some(EspLink { suite, by });
            let rig = Rig::start(&RigConfig { esp, offloads, ..RigConfig::default() }).unwrap();
            let (sent, received) = transfer(&rig, 2 << 20, 6);
            assert_eq!(sent, received, "{suite} by {by:?} with {offloads:?}");
            wait_until_balanced(&rig);
            assert_eq!((rig.counts().lost(), rig.program_lost()), (0, 0), "{suite} by {by:?} with {offloads:?}");
        }
    }
}

#[test]
fn a_host_with_gro_joins_what_its_adapter_hands_over_and_loses_nothing() {
    let host = HostSettings { gro: true, ..HostSettings::default() };
    let rig =
        Rig::start(&RigConfig { host, offloads: Offloads::all() - Offloads::RSC, ..RigConfig::default() }).unwrap();
    let (sent, received) = transfer(&rig, 16 << 20, 5);
    assert_eq!(sent, received);
    wait_until_balanced(&rig);
}

#[test]
fn a_card_or_a_setting_that_cannot_be_is_refused_by_name() {
    let refused = |config: &RigConfig| Rig::start(config).unwrap_err().to_string();
    let faults = FaultConfig { reverse_frames: Some(1), ..FaultConfig::default() };
    let card = Card { memory: MemoryConfig::default(), faults };
    assert!(refused(&RigConfig { card, ..RigConfig::default() }).contains("reversing groups of 1"));
    let memory = MemoryConfig { receive_ring_entries: Some(0), ..MemoryConfig::default() };
    let card = Card { memory, faults: FaultConfig::default() };
    assert!(refused(&RigConfig { card, ..RigConfig::default() }).contains("0 entries"));
    let host = HostSettings { sysctls: vec![("net.ipv4.no_such_thing".into(), "1".into())], ..HostSettings::default() };
    assert!(refused(&RigConfig { host, ..RigConfig::default() }).contains("net.ipv4.no_such_thing"));
}

/// Returns the number of descriptors and of threads of this process.
fn held() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|dir| std::fs::read_dir(dir).unwrap().count())
}

/// Checks that this process has no more descriptors and threads than in `before`. The kernel may still list an ended
/// thread briefly after `join`.
fn expect_no_more_than(before: [usize; 2], round: usize) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while held().iter().zip(before).any(|(&held, before)| held > before) {
        assert!(Instant::now() < deadline, "round {round}: {:?}, and {before:?} before", held());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_hundred_starts_and_stops_leave_nothing_behind() {
    if !is_alone("a_hundred_starts_and_stops_leave_nothing_behind") {
        return;
    }
    let start = || Rig::start(&RigConfig::default());
    let captured = HostSettings { captured: true, ..HostSettings::default() };
    let start_impaired = || Rig::start(&RigConfig { host: captured.clone(), ..impaired(Threads::Shared) });
    drop((start().unwrap(), start_impaired().unwrap()));
    let before = held();
    for round in 0..100 {
        drop(if round % 10 == 0 { start_impaired() } else { start() }.unwrap());
        assert!(Rig::start(&RigConfig { mtu: 67, ..RigConfig::default() }).is_err());
        expect_no_more_than(before, round);
    }
    let interfaces = offramp_ports::sys::link::list().unwrap();
    assert!(!interfaces.iter().any(|name| name == offramp_testbed::rig::INTERFACE));
}
