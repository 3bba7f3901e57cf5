//! The simulated processor, compared with queueing theory: the mean wait of jobs with random arrivals.

use offramp_model::cpu::{Completion, Cpu, PRIORITIES, Priority};
use offramp_model::events::EventQueue;
use offramp_model::time::{Span, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const JOBS: usize = 400_000;
/// Maximum relative deviation from theory of a mean over [`JOBS`] jobs.
const WITHIN: f64 = 0.04;
const NS: f64 = 1000.0;

/// Draws the service time of a job, in nanoseconds.
type Service = fn(&mut ChaCha8Rng) -> f64;

/// A class of jobs, with arrival rate and service time.
struct Class {
    priority: Priority,
    jobs_per_ns: f64,
    service_ns: Service,
}

enum Event {
    Arrival(usize),
    Done { generation: u64 },
}

struct Job {
    class: usize,
    came: Time,
    service: Span,
}

/// Returns the mean wait of each class, in nanoseconds: the time from arrival to completion, without the service time.
fn mean_waits(classes: &[Class]) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut events = EventQueue::default();
    let mut cpu = Cpu::default();
    let mut waits = vec![(0.0, 0usize); classes.len()];
    for (at, class) in classes.iter().enumerate() {
        events.schedule(Time::START + until_next(class, &mut rng), Event::Arrival(at));
    }
    let mut left = JOBS;
    while left > 0 {
        let (now, event) = events.next_before(Time::NEVER).unwrap();
        let next = match event {
            Event::Arrival(class) => {
                left -= 1;
                events.schedule(now + until_next(&classes[class], &mut rng), Event::Arrival(class));
                let service = span((classes[class].service_ns)(&mut rng));
                cpu.submit(now, classes[class].priority, Job { class, came: now, service }, service)
            }
            Event::Done { generation } => match cpu.complete(now, generation) {
                Some(job) => {
                    let wait = now.since(job.came) - job.service;
                    waits[job.class].0 += wait.0 as f64 / NS;
                    waits[job.class].1 += 1;
                    cpu.resume(now)
                }
                None => None,
            },
        };
        if let Some(Completion { at, generation }) = next {
            events.schedule(at, Event::Done { generation });
        }
    }
    waits.into_iter().map(|(sum, count)| sum / count as f64).collect()
}

fn span(ns: f64) -> Span {
    Span((ns * NS) as u64)
}

/// Draws an exponentially distributed span, so that arrivals form a Poisson process.
fn until_next(class: &Class, rng: &mut ChaCha8Rng) -> Span {
    span(-(1.0 - rng.random::<f64>()).ln() / class.jobs_per_ns)
}

fn exponential_1000(rng: &mut ChaCha8Rng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() * 1000.0
}

/// Draws a service time: 400 ns with probability 9/10, else 6400 ns. The mean is 1000 ns, and the mean square is 4.24
/// million ns².
fn mixed_1000(rng: &mut ChaCha8Rng) -> f64 {
    if rng.random_range(0..10) == 0 { 6400.0 } else { 400.0 }
}

fn assert_near(measured: f64, theory: f64, what: &str) {
    assert!((measured / theory - 1.0).abs() < WITHIN, "{what}: {measured} against {theory} ns");
}

#[test]
fn any_service_waits_as_in_m_g_1() {
    let constant: (Service, f64) = (|_| 1000.0, 1e6);
    let cases = [
        (0.3, constant),
        (0.6, constant),
        (0.8, constant),
        (0.6, (exponential_1000, 2e6)),
        (0.6, (mixed_1000, 4.24e6)),
    ];
    for (load, (service_ns, mean_square)) in cases {
        let class = Class { priority: Priority::Softirq, jobs_per_ns: load / 1000.0, service_ns };
        // Pollaczek–Khinchine formula: arrival rate × mean square of the service time / (2 × idle share).
        let theory = load / 1000.0 * mean_square / (2.0 * (1.0 - load));
        assert_near(mean_waits(&[class])[0], theory, "M/G/1");
    }
}

#[test]
fn preempted_jobs_wait_as_in_m_g_1_with_preemptive_priorities() {
    let [first, second, _] = PRIORITIES;
    let high = Class { priority: first, jobs_per_ns: 0.3 / 1000.0, service_ns: |_| 1000.0 };
    let low = Class { priority: second, jobs_per_ns: 0.4 / 1000.0, service_ns: exponential_1000 };
    let waits = mean_waits(&[high, low]);
    assert_near(waits[0], 0.3 / 1000.0 * 1e6 / (2.0 * 0.7), "the higher sees nothing of the lower");
    let residual = f64::midpoint(0.3 / 1000.0 * 1e6, 0.4 / 1000.0 * 2e6);
    let response = 1000.0 / 0.7 + residual / (0.7 * 0.3);
    assert_near(waits[1], response - 1000.0, "the lower waits, and is preempted");
}
