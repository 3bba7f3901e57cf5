//! Fewer and larger pieces: large sends, jumbo frames.

use super::{Mechanism, Panel, curves, in_unit, metric, published};
use crate::config::Workload::{TtcpReceive, TtcpSend};
use crate::profile::Profile;
use crate::simulation::ModelError;

const MEGABIT: f64 = 1e6;
const BITS_PER_BYTE: f64 = 8.0;

/// How much slower than the workstation of H2 a host is, percent of its times.
const SCALES_PERCENT: [f64; 9] = [50.0, 70.0, 100.0, 150.0, 200.0, 250.0, 300.0, 400.0, 600.0];
/// H2: percent of both processors without and with large sends, at 940 Mbit/s.
const H2: [[f64; 2]; 2] = [[100.0, 40.0], [100.0, 19.0]];

/// One piece of work for many segments.
pub(super) fn large_send() -> Result<Mechanism, ModelError> {
    let base = Profile::load("p4-e1000-processor")?;
    let over = |label: &str, switch: &str| {
        let base = base.clone().with("adapter.lso", switch);
        let metrics = [metric("cpu_percent"), metric("throughput_bytes_per_s")];
        let scales = in_unit(&SCALES_PERCENT, "%");
        curves(label, &base, TtcpSend, "host.cost_scale", &scales, metrics).map(|[load, mut speed]| {
            for point in &mut speed.points {
                point[1] *= BITS_PER_BYTE / MEGABIT;
            }
            [load, speed]
        })
    };
    let [load_off, speed_off] = over("segment by segment", "off")?;
    let [load_on, speed_on] = over("large sends", "on")?;
    let x_title = "times of the host, % of those of the workstation of H2";
    Ok(Mechanism {
        name: "large-send",
        title: "Large sends (LSO, TSO)",
        claims: &["H2", "H3", "H4", "M5", "M6", "M7"],
        says: "What TCP, IP and the driver do for each piece that they hand down is done once for many segments. Where \
               the line is the limit, the gain is processor time and not throughput. Where the host is too slow to fill \
               the line, it is throughput.",
        command: "offramp model sweep p4-e1000-processor --workload ttcp-send --vary host.cost_scale=50%..600%:log/9 \
                  --vary adapter.lso=off,on --out lso.csv",
        panels: vec![
            Panel {
                title: "Processors, sending",
                x_title,
                y_title: "% of both processors",
                x_is_log: true,
                curves: vec![load_off, load_on, published("published (H2)", &H2)],
            },
            Panel {
                title: "Throughput",
                x_title,
                y_title: "Mbit/s",
                x_is_log: true,
                curves: vec![speed_off, speed_on],
            },
        ],
    })
}

const MSS: [f64; 6] = [536.0, 1000.0, 1448.0, 2948.0, 4448.0, 8948.0];

/// Fewer frames for the same bytes.
pub(super) fn jumbo() -> Result<Mechanism, ModelError> {
    let base = Profile::load("p4-e1000-processor")?.with("adapter.lso", "off");
    let metrics = || [metric("throughput_bytes_per_s"), metric("cpu_ns_per_byte")];
    let over = |label: &str, workload, base: &Profile| {
        curves(label, base, workload, "workload.mss", &in_unit(&MSS, "byte"), metrics()).map(|[mut speed, cost]| {
            for point in &mut speed.points {
                point[1] *= BITS_PER_BYTE / MEGABIT;
            }
            [speed, cost]
        })
    };
    // A gigabit is no limit to a host that is slower than it.
    let slow = base.clone().with("host.cost_scale", "200%");
    let [sent, sent_cost] = over("sending", TtcpSend, &base)?;
    let [received, received_cost] = over("receiving", TtcpReceive, &base)?;
    let [slow_received, slow_cost] = over("receiving, a host half as fast", TtcpReceive, &slow)?;
    let x_title = "bytes of a segment";
    Ok(Mechanism {
        name: "jumbo",
        title: "Jumbo frames",
        claims: &["M20"],
        says: "A larger segment saves the work for each frame; the work for each byte remains. Throughput grows \
               only where the processor is the limit; at the limit of the link the gain is the headers alone, 5.2 %.",
        command: "offramp model sweep p4-e1000-processor --workload ttcp-receive \
                  --vary workload.mss=536byte,1000byte,1448byte,2948byte,4448byte,8948byte --out jumbo.csv",
        panels: vec![
            Panel {
                title: "Throughput",
                x_title,
                y_title: "Mbit/s",
                x_is_log: true,
                curves: vec![sent, received, slow_received],
            },
            Panel {
                title: "Time of the processors",
                x_title,
                y_title: "ns for each byte",
                x_is_log: true,
                curves: vec![sent_cost, received_cost, slow_cost],
            },
        ],
    })
}
