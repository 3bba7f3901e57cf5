//! What a driver does between the interrupt and TCP.

use super::{Mechanism, Panel, curves, in_unit, metric, published};
use crate::config::Workload::TtcpReceive;
use crate::profile::Profile;
use crate::simulation::ModelError;

const INTERRUPTS_PER_S: [f64; 9] = [500.0, 700.0, 1000.0, 1500.0, 2000.0, 4000.0, 8000.0, 16_000.0, 32_000.0];

/// The driver of R, with a gap between interrupts as its only reason for batches.
fn with_gap() -> Result<Profile, ModelError> {
    let base = Profile::load("ndis-2011")?;
    Ok(base.with("adapter.moderation", "fixed-gap").with("host.poll_interval", "0us"))
}

/// A batch that is handed over last frame first.
pub(super) fn order() -> Result<Mechanism, ModelError> {
    let base = with_gap()?;
    let metrics = || [metric("throughput_bytes_per_s"), metric("in_flight_segments")];
    let over = |label: &str, base: &Profile| {
        let found =
            curves(label, base, TtcpReceive, "adapter.interrupt_rate", &in_unit(&INTERRUPTS_PER_S, ""), metrics());
        found.map(|[mut speed, in_flight]| {
            const MEGABYTE: f64 = 1e6;
            for point in &mut speed.points {
                point[1] /= MEGABYTE;
            }
            [speed, in_flight]
        })
    };
    let [reversed, reversed_segments] = over("last frame first", &base)?;
    let [forward, forward_segments] = over("in order", &base.clone().with("host.order", "forward"))?;
    let summed = base.with("host.order", "forward").with("adapter.checksum", "on");
    let [summed, _] = over("in order, checksums by the adapter", &summed)?;
    let x_title = "interrupts per second at most";
    Ok(Mechanism {
        name: "order",
        title: "The order in which a driver hands frames over",
        claims: &["R1", "R9", "R10", "R11", "R12"],
        says: "Frames of a batch that come to TCP last first look like loss: each brings a duplicate acknowledgement, \
               three of them make the sender send again what was never lost and halve its window. The longer the batches, \
               the fewer segments are under way. Order is worth more than any offload.",
        command: "offramp model sweep ndis-2011 --workload ttcp-receive --set adapter.moderation=fixed-gap \
                  --set host.poll_interval=0us \
                  --vary adapter.interrupt_rate=500..32000:log/9 --vary host.order=forward,reversed --out order.csv",
        panels: vec![
            Panel {
                title: "Throughput of one connection",
                x_title,
                y_title: "MB/s",
                x_is_log: true,
                curves: vec![
                    forward,
                    summed,
                    reversed,
                    published("published at 1000 (R1, R11)", &[[1000.0, 3.0], [1000.0, 30.0]]),
                ],
            },
            Panel {
                title: "Segments under way",
                x_title,
                y_title: "segments",
                x_is_log: true,
                curves: vec![forward_segments, reversed_segments],
            },
        ],
    })
}

/// Fewer interrupts against the wait for them.
pub(super) fn moderation() -> Result<Mechanism, ModelError> {
    let base = with_gap()?.with("host.order", "forward").with("adapter.checksum", "on");
    let metrics = || [metric("cpu_percent"), metric("ring_wait_us")];
    let over = |label: &str, rate: &str| {
        let base = base.clone().with("workload.rate", rate);
        curves(label, &base, TtcpReceive, "adapter.interrupt_rate", &in_unit(&INTERRUPTS_PER_S, ""), metrics())
    };
    let [slow, slow_wait] = over("10 Mbit/s", "10Mbit/s")?;
    let [middle, middle_wait] = over("50 Mbit/s", "50Mbit/s")?;
    let [fast, fast_wait] = over("150 Mbit/s", "150Mbit/s")?;
    let x_title = "interrupts per second at most";
    Ok(Mechanism {
        name: "moderation",
        title: "Interrupt moderation: processor time against waiting",
        claims: &["M9", "M10", "M11", "R4", "R6"],
        says: "A gap between interrupts lets one of them serve several frames. What it spares grows with the load and \
               ends where the batches are long already; what it costs is paid at every load: a frame waits half a gap \
               on average, and a lone one a whole gap. So a gap that is right under load is wrong without, and has to \
               follow the load.",
        command: "offramp model sweep ndis-2011 --workload ttcp-receive --set adapter.moderation=fixed-gap \
                  --set host.poll_interval=0us --set host.order=forward \
                  --set adapter.checksum=on --vary adapter.interrupt_rate=500..32000:log/9 \
                  --vary workload.rate=10Mbit/s,50Mbit/s,150Mbit/s --out moderation.csv",
        panels: vec![
            Panel {
                title: "Processor",
                x_title,
                y_title: "% of the processor",
                x_is_log: true,
                curves: vec![slow, middle, fast],
            },
            Panel {
                title: "Wait of a frame in the adapter",
                x_title,
                y_title: "µs",
                x_is_log: true,
                curves: vec![slow_wait, middle_wait, fast_wait],
            },
        ],
    })
}
