//! A full ring triggers the interrupt: in the model, and between two of offramp's own ports.

#[path = "../../offramp-adapter/tests/support/mod.rs"]
mod support;

use offramp_adapter::config::AdapterConfig;
use offramp_adapter::moderation::{Coalescing, ModerationConfig, Policy};
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_impair::memory::{MemoryConfig, OverflowPolicy, PacketMemory, ReceiveMemory};
use offramp_model::config::Workload::NfsRead;
use offramp_model::profile::Profile;
use offramp_model::simulation::run;
use support::MemoryHost;
use support::line::ScriptedLine;

/// Number of consecutive frames in a reply of 16 KiB.
const BURST_FRAMES: u64 = 12;
/// Time of a full frame and its gap on a link of 1 Gbit/s, in nanoseconds.
const FRAME_NS: u64 = 12_304;
/// Interrupt delay, in microseconds: far longer than a burst, and shorter than the timeout of an RPC.
const WAIT_USECS: u32 = 20_000;
/// Frame threshold of the moderation: more than any ring of this test holds.
const WAITING_FRAMES_MAX: u32 = 1000;

/// The outcome of a burst: number of lost frames, and number of interrupts of the host.
#[derive(Debug, PartialEq, Eq)]
struct Burst {
    lost: u64,
    interrupts: u64,
}

fn in_the_product(ring_entries: usize) -> Burst {
    let policy = Policy::Coalescing(Coalescing { max_usecs: WAIT_USECS, max_packets: WAITING_FRAMES_MAX });
    let moderation = ModerationConfig { policy, ..ModerationConfig::default() };
    let config = AdapterConfig { moderation, ..AdapterConfig::default() };
    let memory = MemoryConfig {
        receive: ReceiveMemory::Unlimited,
        receive_ring_entries: Some(ring_entries),
        transmit_buffers: None,
        policy: OverflowPolicy::Drop,
    };
    let control = PortControl::new(&config);
    let line = ScriptedLine::bringing((1..=BURST_FRAMES).map(|n| (n * FRAME_NS, 1514)));
    let mut pair = QueuePair::new(&config, &control, 0, MemoryHost::default(), PacketMemory::new(line, &memory));
    pair.poll(0).unwrap();
    while let Some(at_ns) = pair.next_deadline_ns() {
        pair.poll(at_ns).unwrap();
    }
    let received = &control.queues()[0].receive;
    assert_eq!(pair.host().given.len() as u64 + received.lost_total(), BURST_FRAMES);
    Burst { lost: received.lost_total(), interrupts: received.interrupts.get() }
}

/// Returns the number of frames lost in a run of the model, and the number of interrupts per complete reply. As with
/// offramp's ports, the host empties the ring before the next reply.
fn in_the_model(ring_entries: usize) -> Burst {
    let settings = [
        ("adapter.receive_descriptors", format!("{ring_entries}frame")),
        ("adapter.moderation", "coalescing".to_owned()),
        ("adapter.interrupt_wait", format!("{WAIT_USECS}us")),
        ("adapter.interrupt_frames", format!("{WAITING_FRAMES_MAX}frame")),
        ("host.poll_interval", "0us".to_owned()),
        ("host.order", "forward".to_owned()),
        ("host.interrupt_time", "500ns".to_owned()),
        ("host.frame_time", "100ns".to_owned()),
        ("host.udp_time", "100ns".to_owned()),
        ("adapter.checksum", "on".to_owned()),
        ("workload.rpc_size", "16KiB".to_owned()),
        ("workload.rpc_outstanding", "1".to_owned()),
    ];
    let base = Profile::load("ndis-2011").unwrap();
    let profile = settings.iter().fold(base, |profile, (key, value)| profile.with(key, value));
    let outcome = run(&profile, NfsRead).unwrap();
    let counts = &outcome.counts;
    let replies = counts.frames_arrived as f64 / BURST_FRAMES as f64;
    assert!(replies > 20.0, "{replies} replies");
    Burst { lost: counts.dropped + counts.overrun, interrupts: (counts.interrupts as f64 / replies).round() as u64 }
}

#[test]
fn a_burst_on_a_small_ring_with_a_long_wait_is_told_and_lost_as_between_the_products_ports() {
    for ring_entries in [1, 2, 3, 5, 8, 11, 12, 13, 256] {
        let product = in_the_product(ring_entries);
        assert_eq!(in_the_model(ring_entries), product, "ring of {ring_entries}");
        assert_eq!(product.lost, 0, "ring of {ring_entries}");
        assert_eq!(product.interrupts, BURST_FRAMES.div_ceil(ring_entries as u64), "ring of {ring_entries}");
    }
}
