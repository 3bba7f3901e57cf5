//! Several receive queues: how many connections it takes until they pay.

use super::{Curve, Mechanism, Panel, curves, in_unit, metric};
use crate::config::Workload::TtcpReceive;
use crate::metrics::Metric;
use crate::profile::Profile;
use crate::simulation::ModelError;

const FLOWS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
const QUEUES: [&str; 3] = ["1", "2", "4"];
/// Hands of connections that the mean is taken over: which queue one has follows from its ports, and these from the seed.
const SEEDS: [&str; 4] = ["1", "2", "3", "4"];
const GIGABITS_PER_BYTE: f64 = 8e-9;

/// A host of four processors that gets each segment by itself.
fn host(system: &str) -> Result<Profile, ModelError> {
    let base = Profile::load(system)?.with("host.processors", "4").with("host.placement", "spread");
    let base = base.with("workload.warmup", "5ms").with("workload.time", "10ms");
    // What is under way fits into one ring, whatever the hash does: losses would hide what queues bring.
    let base = base.with("adapter.receive_descriptors", "4096").with("host.receive_window", "128KiB");
    Ok(base.with("adapter.coalesce", "off"))
}

/// Receive side scaling, above what one processor does and below it.
pub(super) fn queues() -> Result<Mechanism, ModelError> {
    let mut speeds = over_queues(&host("server-100g")?, metric("throughput_bytes_per_s"))?;
    for point in speeds.iter_mut().flat_map(|curve| &mut curve.points) {
        point[1] *= GIGABITS_PER_BYTE;
    }
    Ok(Mechanism {
        name: "queues",
        title: "Several receive queues",
        claims: &[],
        says: "The interrupts and the protocol of a queue are the work of one processor. A hash gives each connection \
               a queue, so one connection gains nothing, and several gain as far as the hash keeps them apart: it takes \
               several times as many connections as queues until all have work. Where one processor does it all, queues \
               only even the load out.",
        command: "offramp model sweep server-100g --workload ttcp-receive --set host.processors=4 \
                  --set host.placement=spread --set adapter.coalesce=off --set adapter.receive_descriptors=4096 \
                  --set host.receive_window=128KiB --set workload.warmup=5ms --set workload.time=10ms \
                  --vary adapter.queues=1,2,4 --vary workload.flows=1,2,4,8,16,32 --vary workload.seed=1..4/4 \
                  --out queues.csv",
        panels: vec![
            Panel {
                title: "Throughput at 100 Gbit/s, each segment by itself",
                x_title: "connections",
                y_title: "Gbit/s",
                x_is_log: true,
                curves: speeds,
            },
            Panel {
                title: "Load at 10 Gbit/s, each segment by itself",
                x_title: "connections",
                y_title: "% of the busiest processor",
                x_is_log: true,
                curves: over_queues(&host("server-82599")?, metric("cpu_busiest_percent"))?,
            },
        ],
    })
}

/// A curve for each number of queues, each point the mean over the hands of connections.
fn over_queues(base: &Profile, metric: &Metric) -> Result<Vec<Curve>, ModelError> {
    QUEUES
        .iter()
        .map(|&queues| {
            // With one queue no hash has a say.
            let seeds = if queues == "1" { &SEEDS[..1] } else { &SEEDS };
            let hands = seeds.iter().map(|seed| {
                let base = base.clone().with("adapter.queues", queues).with("workload.seed", seed);
                curves("", &base, TtcpReceive, "workload.flows", &in_unit(&FLOWS, ""), [metric]).map(|[curve]| curve)
            });
            let hands = hands.collect::<Result<Vec<_>, ModelError>>()?;
            let mean = |at: usize| hands.iter().map(|curve| curve.points[at][1]).sum::<f64>() / hands.len() as f64;
            let points = FLOWS.iter().enumerate().map(|(at, &flows)| [flows, mean(at)]).collect();
            let name = format!("{queues} queue{}", if queues == "1" { "" } else { "s" });
            Ok(Curve { name, is_published: false, points })
        })
        .collect()
}
