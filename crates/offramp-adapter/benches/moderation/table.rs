//! Each policy's cost as a multiple of the optimum.

use crate::policies;
use crate::trial::{Trial, optimum_ns};
use crate::workloads::{self, Workload};

/// Costs of an interrupt, in microseconds.
const INTERRUPT_USECS: [u64; 2] = [10, 50];
const NANOSECONDS_PER_MICROSECOND: u64 = 1000;

/// Prints one table for each cost of an interrupt.
pub fn print(is_test: bool) {
    let workloads = workloads::all(is_test);
    for usecs in INTERRUPT_USECS {
        println!("Cost / optimum; an interrupt costs {usecs} µs of a waiting frame; the host takes frames in no time.");
        print_for(&workloads, usecs * NANOSECONDS_PER_MICROSECOND);
        println!();
    }
}

fn print_for(workloads: &[Workload], interrupt_ns: u64) {
    let names: Vec<_> = workloads.iter().map(|workload| workload.name).collect();
    println!("| policy | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    let optima_ns: Vec<_> = workloads.iter().map(|workload| optimum_ns(&workload.frames, interrupt_ns)).collect();
    for (name, moderator) in policies::all(interrupt_ns) {
        let ratio = |(workload, &best_ns): (&Workload, &u64)| {
            let outcome = Trial::of_trace(moderator.clone(), workload.frames.iter().copied());
            format!("{:.2}", outcome.cost_ns(interrupt_ns) as f64 / best_ns as f64)
        };
        let ratios: Vec<_> = workloads.iter().zip(&optima_ns).map(ratio).collect();
        println!("| {name} | {} |", ratios.join(" | "));
    }
}
