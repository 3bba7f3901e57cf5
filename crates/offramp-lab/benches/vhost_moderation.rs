//! The effect of moderation on guests that sleep between interrupts. The loads are single requests, bulk data, and both
//! together, over two vhost-user ports and a link of 1 Gbit/s. The guests are scripted virtio drivers in this process.
//! They use `EVENT_IDX`, and run at native speed, without an emulator.
//!
//! `cargo bench -p offramp-lab --bench vhost_moderation` pins the adapter to one processor, and the guests to another
//! processor. With at least three processors, each guest has its own processor. The bench keeps all processors of the
//! machine awake. The figures thus do not depend on the kernel's placement of threads, or on the time that a hypervisor
//! takes to resume a halted processor. With the argument `-- --free`, threads are not pinned, and processors can sleep.
//! The argument `-- --load-interrupts 4000,7000` adds the default policy with each of these interrupt rates under load.
//! The argument `-- --only mixed` selects one load. With `--test`, the run is too short for meaningful figures.

#[path = "vhost_moderation/contenders.rs"]
mod contenders;
#[path = "vhost_moderation/guests.rs"]
mod guests;
#[path = "vhost_moderation/placement.rs"]
mod placement;
#[path = "vhost_moderation/report.rs"]
mod report;
#[path = "../../offramp-ports/tests/vhost_common/mod.rs"]
mod vhost_common;

use contenders::order;
use guests::{LAST, LAST_REQUEST, answer, end, one_by_one, send, time_answers};
use offramp_adapter::moderation::ModerationConfig;
use offramp_adapter::stats::{Direction, Loss};
use offramp_testbed::cpu::CpuTimes;
use offramp_testkit::Guest;
use placement::{Placement, Role};
use std::thread;
use std::time::{Duration, Instant};
use vhost_common::{Rig, RigConfig};

/// Number of rounds. A round has a sample of every policy, and the report shows the median of each figure. In the mixed
/// load, a sample has 800 requests, so its p99 depends on the eight slowest requests. Pauses of the machine, of up to a
/// millisecond, can delay these requests. With half as many rounds, the uncertainty of the ratio of two 99th
/// percentiles would be at least 50 %.
const ROUNDS: usize = 60;
const SAMPLE: Duration = Duration::from_millis(200);
const RATE_BPS: u64 = 1_000_000_000;
/// Length of a full frame without FCS, bytes, and number of full frames per burst. The link carries at most 81,274 full
/// frames per second.
const BULK_LEN: usize = 1514;
const BULK_TOGETHER: u32 = 10;
const BULK_EVERY: Duration = Duration::from_nanos(FRAME_NS * BULK_TOGETHER as u64);
/// Time of a full frame on the link, in nanoseconds.
const FRAME_NS: u64 = 12_304;
/// Length of requests and responses, in bytes.
const REQUEST_LEN: usize = 64;
/// Interval between two requests in the mixed load. In this load, bulk data uses half of the link rate.
const REQUEST_EVERY: Duration = Duration::from_micros(250);
const RING: u16 = 1024;
const BUFFER_LEN: usize = 2048;
/// Minimum delay of a guest at which frames may be lost. Full frames alone fill a ring in twice this time. Full frames
/// mixed with short frames fill a ring sooner.
const DELAY_OF_LOSS_MIN: Duration = Duration::from_nanos(FRAME_NS * RING as u64 / 2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Requests,
    Bulk,
    Mixed,
}

impl Load {
    fn called(name: &str) -> Self {
        let is_called = |load: &Self| format!("{load:?}").eq_ignore_ascii_case(name);
        LOADS.into_iter().find(is_called).unwrap_or_else(|| panic!("--only {name}: use requests, bulk or mixed"))
    }
}

const LOADS: [Load; 3] = [Load::Requests, Load::Bulk, Load::Mixed];

/// The figures of one sample.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    p50_us: f64,
    p99_us: f64,
    frames_per_s: f64,
    calls_per_s: f64,
    calls_per_frame: f64,
    /// Number of requests and responses per second. If every message caused its own vhost call (interrupt), the number
    /// of calls per second would be equal to this number.
    messages_per_s: f64,
    /// Number of frames dropped because the receiving guest was late and had no free buffer.
    lost: u64,
    /// Maximum delay of a frame from one guest to the other.
    delay_max: Duration,
}

/// The samples of each contender, one per round.
type Samples = Vec<Vec<Sample>>;

fn main() {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let (rounds, time) = if has("--test") { (1, Duration::from_millis(5)) } else { (ROUNDS, SAMPLE) };
    let loads = match value_of("--only") {
        Some(only) => vec![Load::called(&only)],
        None => LOADS.to_vec(),
    };
    let contenders = contenders::all(&value_of("--load-interrupts").unwrap_or_default());
    let placement = if has("--free") { Placement::free() } else { Placement::apart() };
    println!("{placement}");
    for load in loads {
        let before = cpu_times();
        let mut samples: Samples = vec![Vec::new(); contenders.len()];
        for round in 0..rounds {
            for index in order(round, contenders.len()) {
                samples[index].push(sample(load, contenders[index].moderation, &placement, time));
            }
        }
        report::print(load, &contenders, &samples, cpu_times().since(&before).stolen_share());
    }
}

/// Returns the command-line argument after `flag`.
fn value_of(flag: &str) -> Option<String> {
    std::env::args().skip_while(|arg| arg != flag).nth(1)
}

fn cpu_times() -> CpuTimes {
    CpuTimes::read().unwrap_or_else(|e| panic!("{e}"))
}

/// Runs two guests for `time`: one guest sends, and the other answers requests.
fn sample(load: Load, moderation: ModerationConfig, placement: &Placement, time: Duration) -> Sample {
    let mut config = RigConfig { rate_bps: Some(RATE_BPS), apart: false, ..RigConfig::mtu(1500) };
    config.adapter.moderation = moderation;
    placement.take(Role::Adapter);
    let rig = Rig::with(&config);
    placement.take(Role::Asking);
    let [mut a, mut b] = rig.guests(&Guest::builder().split().event_idx(true).interrupts(true).queue_size(RING));
    for guest in [&mut a, &mut b] {
        guest.rx(0).fill(usize::from(RING), BUFFER_LEN);
    }
    let (mut a_rx, mut a_tx) = a.take_pairs().remove(0);
    let (mut b_rx, mut b_tx) = b.take_pairs().remove(0);
    let begun = Instant::now();
    let mut round_trips_ns: Vec<u64> = Vec::new();
    let delay_max = thread::scope(|scope| {
        let answering = scope.spawn(|| {
            placement.take(Role::Answering);
            answer(&mut b_rx, &mut b_tx, begun)
        });
        match load {
            Load::Requests => one_by_one(&mut a_rx, &mut a_tx, begun, time, &mut round_trips_ns),
            Load::Bulk => send(&mut a_tx, begun, time, None, BULK_EVERY),
            Load::Mixed => {
                let times = scope.spawn(|| time_answers(&mut a_rx, begun));
                send(&mut a_tx, begun, time, Some(REQUEST_EVERY), BULK_EVERY * 2);
                end(&mut a_tx, LAST_REQUEST, begun, &times);
                round_trips_ns = times.join().expect("a thread that times answers");
            }
        }
        end(&mut a_tx, LAST, begun, &answering);
        answering.join().expect("a thread that answers")
    });
    let elapsed_s = begun.elapsed().as_secs_f64();
    let both = |count: fn(&Direction) -> u64| rig.received(0, count) + rig.received(1, count);
    let (frames, calls) = (both(|queue| queue.frames_out.get()), both(|queue| queue.interrupts.get()));
    let (lost, without_buffer) = (both(Direction::lost_total), both(|queue| queue.lost(Loss::Drop)));
    assert!(
        lost == 0 || lost == without_buffer && delay_max >= DELAY_OF_LOSS_MIN,
        "{load:?}: {lost} frames were lost, {without_buffer} of them for want of a buffer, and none that arrived came later \
         than {delay_max:?}"
    );
    round_trips_ns.sort_unstable();
    let at =
        |percent: usize| round_trips_ns.get(round_trips_ns.len() * percent / 100).map_or(0.0, |ns| *ns as f64 / 1e3);
    Sample {
        p50_us: at(50),
        p99_us: at(99),
        frames_per_s: frames as f64 / elapsed_s,
        calls_per_s: calls as f64 / elapsed_s,
        calls_per_frame: calls as f64 / frames as f64,
        messages_per_s: 2.0 * round_trips_ns.len() as f64 / elapsed_s,
        lost,
        delay_max,
    }
}
