//! What moderation does to a guest that sleeps until it is called: requests one at a time, bulk data, and both
//! together, over two vhost-user ports and a line of 1 Gbit/s. The guests are scripted drivers in this process with
//! `EVENT_IDX`, as fast as a processor without an emulator is.
//!
//! `cargo bench -p offramp-ports --bench vhost_moderation`

#[path = "../tests/vhost_common/mod.rs"]
mod vhost_common;

use offramp_adapter::moderation::{ModerationConfig, Policy};
use offramp_adapter::stats::{Direction, Loss};
use offramp_testkit::guest::{RxQueue, TxQueue};
use offramp_testkit::{Guest, VnetHeader};
use std::thread;
use std::time::{Duration, Instant};
use vhost_common::{Rig, RigConfig};

/// Rounds, each with a sample of every policy under every load; medians count. Samples of one policy scatter by a tenth and
/// more, and with nine rounds so do their medians.
const ROUNDS: usize = 30;
const SAMPLE: Duration = Duration::from_millis(200);
const RATE_BPS: u64 = 1_000_000_000;
/// Full frames without FCS, and how many of them leave together: 81,274 a second fill the line.
const BULK_LEN: usize = 1514;
const BULK_TOGETHER: u32 = 10;
const BULK_EVERY: Duration = Duration::from_nanos(FRAME_NS * BULK_TOGETHER as u64);
/// A full frame on the line.
const FRAME_NS: u64 = 12_304;
/// Requests and answers.
const REQUEST_LEN: usize = 64;
/// Beside bulk data, which then takes half the line: one request in so long.
const REQUEST_EVERY: Duration = Duration::from_micros(250);
const RING: u16 = 1024;
const BUFFER_LEN: usize = 2048;
/// A guest that took no frame for so long may lose some: half of what its ring holds of a full line.
const ABSENCE_MIN: Duration = Duration::from_nanos(FRAME_NS * RING as u64 / 2);
/// What the first payload byte says.
const BULK: u8 = 1;
const REQUEST: u8 = 2;
const LAST_REQUEST: u8 = 3;
const LAST: u8 = 4;
const KIND_AT: usize = 14;
const SENT_AT: usize = 16;
/// Longer than any frame takes.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Requests,
    Bulk,
    Mixed,
}

const LOADS: [Load; 3] = [Load::Requests, Load::Bulk, Load::Mixed];
/// The base first, then the default, then a fixed setting.
const POLICIES: [&str; 3] = ["off", "quiet-or-area", "8000/s"];

fn moderation(name: &str) -> ModerationConfig {
    match name {
        "off" => ModerationConfig::default(),
        "quiet-or-area" => ModerationConfig::adaptive(),
        _ => ModerationConfig {
            policy: Policy::FixedGap { max_interrupts_per_second: 8000 },
            ..ModerationConfig::default()
        },
    }
}

/// Which policy comes when, in one round after the other: each follows each other one three times in six rounds, and none
/// follows itself. What a sample leaves behind, as how long a hypervisor or a kernel waits before it halts a processor,
/// then helps or hinders no policy more than another.
const ORDERS: [[usize; POLICIES.len()]; 6] = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [1, 0, 2], [0, 2, 1]];

/// What one sample shows.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    p50_us: f64,
    p99_us: f64,
    frames_per_s: f64,
    calls_per_s: f64,
    calls_per_frame: f64,
    /// Requests and answers: with a call for each, none waits for another.
    messages_per_s: f64,
    /// Frames that found no buffer, because the guest had not run for so long.
    lost: u64,
    absence: Duration,
}

fn main() {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let (rounds, time) = if is_test { (1, Duration::from_millis(5)) } else { (ROUNDS, SAMPLE) };
    for load in LOADS {
        let mut samples: [Vec<Sample>; POLICIES.len()] = Default::default();
        for round in 0..rounds {
            for index in ORDERS[round % ORDERS.len()] {
                samples[index].push(sample(load, moderation(POLICIES[index]), time));
            }
        }
        print(load, &samples);
    }
}

fn print(load: Load, samples: &[Vec<Sample>; POLICIES.len()]) {
    println!("{load:?}, median of {} rounds; in brackets the median ratio to off of the same round", samples[0].len());
    println!(
        "  {:<14} {:>18} {:>18} {:>18} {:>18} {:>18}",
        "policy", "p50 us", "p99 us", "frames/s", "calls/s", "calls/frame"
    );
    let columns: [fn(&Sample) -> f64; 5] =
        [|s| s.p50_us, |s| s.p99_us, |s| s.frames_per_s, |s| s.calls_per_s, |s| s.calls_per_frame];
    for (name, of_policy) in POLICIES.iter().zip(samples) {
        let cells = columns.map(|column| {
            let ratios = of_policy.iter().zip(&samples[0]).map(|(sample, base)| column(sample) / column(base));
            let value = median(of_policy.iter().map(column));
            if value == 0.0 { "-".to_owned() } else { format!("{value:.2} ({:.2})", median(ratios)) }
        });
        println!("  {name:<14} {:>18} {:>18} {:>18} {:>18} {:>18}", cells[0], cells[1], cells[2], cells[3], cells[4]);
    }
    for (name, of_policy) in POLICIES.iter().zip(samples) {
        for sample in of_policy.iter().filter(|sample| sample.lost > 0) {
            let (lost, absence_ms) = (sample.lost, sample.absence.as_secs_f64() * 1e3);
            println!(
                "  {name}: {lost} frames found no buffer in a sample whose guest took none for {absence_ms:.1} ms"
            );
        }
    }
    if load == Load::Mixed {
        let floor = median(samples[0].iter().map(|off| off.messages_per_s / off.calls_per_s));
        println!("  a call for each request and each answer, and none for bulk data: {floor:.2} of the calls of off");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Two guests, the one sending, the other answering requests, for so long.
fn sample(load: Load, moderation: ModerationConfig, time: Duration) -> Sample {
    let mut config = RigConfig { rate_bps: Some(RATE_BPS), apart: false, ..RigConfig::mtu(1500) };
    config.adapter.moderation = moderation;
    let rig = Rig::with(&config);
    let [mut a, mut b] = rig.guests(&Guest::builder().split().event_idx(true).interrupts(true).queue_size(RING));
    for guest in [&mut a, &mut b] {
        guest.rx(0).fill(usize::from(RING), BUFFER_LEN);
    }
    let (mut a_rx, mut a_tx) = a.take_pairs().remove(0);
    let (mut b_rx, mut b_tx) = b.take_pairs().remove(0);
    let begun = Instant::now();
    let mut round_trips_ns: Vec<u64> = Vec::new();
    let absence = thread::scope(|scope| {
        let answering = scope.spawn(|| answer(&mut b_rx, &mut b_tx));
        match load {
            Load::Requests => one_by_one(&mut a_rx, &mut a_tx, begun, time, &mut round_trips_ns),
            Load::Bulk => send(&mut a_tx, begun, time, None, BULK_EVERY),
            Load::Mixed => {
                let times = scope.spawn(|| time_answers(&mut a_rx, begun));
                send(&mut a_tx, begun, time, Some(REQUEST_EVERY), BULK_EVERY * 2);
                request(&mut a_tx, LAST_REQUEST, begun);
                round_trips_ns = times.join().expect("a thread that times answers");
            }
        }
        a_tx.send(&VnetHeader::default(), &[&frame(BULK_LEN, LAST)]);
        answering.join().expect("a thread that answers")
    });
    let elapsed_s = begun.elapsed().as_secs_f64();
    let frames = rig.received(0, |queue| queue.frames_out.get()) + rig.received(1, |queue| queue.frames_out.get());
    let calls = rig.received(0, |queue| queue.interrupts.get()) + rig.received(1, |queue| queue.interrupts.get());
    let lost = rig.received(1, Direction::lost_total);
    let without_buffer = rig.received(1, |queue| queue.lost(Loss::Drop));
    assert!(
        lost == 0 || lost == without_buffer && absence >= ABSENCE_MIN,
        "{load:?}: {lost} frames were lost, {without_buffer} of them for want of a buffer, and the guest took none for {absence:?} at \
         most"
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
        absence,
    }
}

fn frame(len: usize, kind: u8) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0x0b, 1, 2, 0, 0, 0, 0x0a, 1]);
    // Local experimental: nothing is joined.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[KIND_AT] = kind;
    frame
}

/// Sends a request with the time at which it was sent.
fn request(tx: &mut TxQueue, kind: u8, begun: Instant) {
    let mut request = frame(REQUEST_LEN, kind);
    request[SENT_AT..SENT_AT + 8].copy_from_slice(&(begun.elapsed().as_nanos() as u64).to_le_bytes());
    tx.send(&VnetHeader::default(), &[&request]);
}

fn round_trip_ns(answer: &[u8], begun: Instant) -> u64 {
    let sent = u64::from_le_bytes(answer[SENT_AT..SENT_AT + 8].try_into().expect("eight bytes"));
    (begun.elapsed().as_nanos() as u64).saturating_sub(sent)
}

/// Answers requests until the last frame. The longest time between two frames.
fn answer(rx: &mut RxQueue, tx: &mut TxQueue) -> Duration {
    let (mut absence, mut took) = (Duration::ZERO, Instant::now());
    loop {
        let received = rx.recv(PATIENCE).frame;
        let now = Instant::now();
        absence = absence.max(now - took);
        took = now;
        match received[KIND_AT] {
            REQUEST | LAST_REQUEST => drop(tx.send(&VnetHeader::default(), &[&received])),
            LAST => return absence,
            _ => {}
        }
    }
}

fn one_by_one(rx: &mut RxQueue, tx: &mut TxQueue, begun: Instant, time: Duration, round_trips_ns: &mut Vec<u64>) {
    while begun.elapsed() < time {
        request(tx, REQUEST, begun);
        round_trips_ns.push(round_trip_ns(&rx.recv(PATIENCE).frame, begun));
    }
}

/// Takes answers until that to the last request.
fn time_answers(rx: &mut RxQueue, begun: Instant) -> Vec<u64> {
    let mut round_trips_ns = Vec::new();
    loop {
        let answer = rx.recv(PATIENCE).frame;
        round_trips_ns.push(round_trip_ns(&answer, begun));
        if answer[KIND_AT] == LAST_REQUEST {
            return round_trips_ns;
        }
    }
}

/// Sends full frames, and requests between them if asked for, each at its time.
fn send(tx: &mut TxQueue, begun: Instant, time: Duration, request_every: Option<Duration>, bulk_every: Duration) {
    let bulk = frame(BULK_LEN, BULK);
    let (mut bulk_due, mut request_due) = (Duration::ZERO, request_every);
    loop {
        let now = begun.elapsed();
        if now >= time {
            return;
        }
        if now >= bulk_due {
            for _ in 0..BULK_TOGETHER {
                while tx.stage(&VnetHeader::default(), &[&bulk]).is_none() {
                    tx.publish();
                    thread::yield_now();
                }
            }
            tx.publish();
            // A line that is full is not made good for: nothing is sent faster than it carries.
            bulk_due = (bulk_due + bulk_every).max(now.saturating_sub(bulk_every));
        }
        if request_due.is_some_and(|due| now >= due) {
            request(tx, REQUEST, begun);
            request_due = request_due.zip(request_every).map(|(due, every)| due + every);
        }
        let due = request_due.map_or(bulk_due, |request_due| request_due.min(bulk_due));
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}
