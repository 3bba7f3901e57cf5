//! Cards whose memory the processor copies from, byte by byte.

use super::{Mechanism, Panel, curves, in_unit, metric, published};
use crate::config::Workload::{NfsRead, TtcpReceive};
use crate::profile::Profile;
use crate::simulation::ModelError;

const CLOCKS_MHZ: [f64; 14] = [4.0, 5.0, 6.7, 8.0, 10.0, 12.0, 13.4, 15.0, 17.5, 20.0, 22.5, 25.0, 26.7, 30.0];
const I7: [[f64; 2]; 4] = [[6.7, 740.0], [13.4, 970.0], [20.0, 1030.0], [26.7, 1075.0]];
const WINDOWS_KIB: [f64; 9] = [1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 32.0];
const NFS_KIB: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// The time of the processor and of the bus for each frame.
pub(super) fn clock() -> Result<Mechanism, ModelError> {
    let base = Profile::load("486-wd8003ep")?;
    let over = |label: &str, base: &Profile| {
        let metrics = [metric("throughput_kib_per_s")];
        curves(label, base, TtcpReceive, "bus.clock", &in_unit(&CLOCKS_MHZ, "MHz"), metrics)
    };
    let [fast] = over("WD8003EP, no wait states", &base)?;
    let [slow] = over("the same with the standard four", &base.clone().with("adapter.transfer_cycles", "6"))?;
    let [wide] = over("the same with 16 bits", &base.clone().with("adapter.transfer_width", "2byte"))?;
    let held = base.with("workload.rate", "4Mbit/s");
    let load = [metric("cpu_percent")];
    let [load] = curves("WD8003EP", &held, TtcpReceive, "bus.clock", &in_unit(&CLOCKS_MHZ, "MHz"), load)?;
    let x_title = "clock of the bus, MHz";
    Ok(Mechanism {
        name: "isa-clock",
        title: "The clock of an ISA bus",
        claims: &["I6", "I7", "I8", "I10", "I16"],
        says: "The processor waits for every byte that it copies from the card, so the time of a frame is a fixed part \
               for the host and a part that shrinks with the clock. The curve bends until what is left is the sender's \
               own gap between frames. At equal throughput a faster bus leaves the processor more idle.",
        command: "offramp model sweep 486-wd8003ep --workload ttcp-receive --vary bus.clock=4MHz..30MHz/14 --out isa.csv",
        panels: vec![
            Panel {
                title: "Throughput",
                x_title,
                y_title: "KiB/s",
                x_is_log: false,
                curves: vec![fast, slow, wide, published("published, WD8003EP (I7)", &I7)],
            },
            Panel {
                title: "Processor at 4 Mbit/s",
                x_title,
                y_title: "% of the processor",
                x_is_log: false,
                curves: vec![load],
            },
        ],
    })
}

/// Bytes under way against the room on the card.
pub(super) fn window() -> Result<Mechanism, ModelError> {
    let base = Profile::load("486-3c503")?;
    let old = base.clone().with("workload.time", "30s");
    let metrics = || [metric("throughput_kib_per_s"), metric("lost_frames")];
    let over = |label: &str, base: &Profile| {
        curves(label, base, TtcpReceive, "host.receive_window", &in_unit(&WINDOWS_KIB, "KiB"), metrics())
    };
    let [old_speed, old_lost] = over("3c503, sender without congestion control", &old)?;
    let [reno_speed, reno_lost] = over("3c503, Reno", &old.clone().with("peer.tcp", "reno"))?;
    let fast = old.with("bus.clock", "13.4MHz");
    let [fast_speed, fast_lost] = over("3c503 at 13.4 MHz, without congestion control", &fast)?;
    let x_title = "receive window, KiB";
    Ok(Mechanism {
        name: "window",
        title: "The window of a connection against the memory of a card",
        claims: &["I2", "I3", "I5", "I11", "I13", "I19"],
        says: "8 KiB of memory, less the transmit buffers, hold three full frames. A window that fits is never lost, at \
               any speed of the bus. One that does not is lost as soon as the host reads a frame out more slowly than \
               the wire brings the next one; a sender without congestion control then sends the window again after a \
               timeout, and loses it again. A faster bus, a smaller window, or a sender that slows down each cure it.",
        command: "offramp model sweep 486-3c503 --workload ttcp-receive \
                  --vary host.receive_window=1.5KiB,2KiB,3KiB,4KiB,5KiB,6KiB,8KiB,16KiB,32KiB --out window.csv",
        panels: vec![
            Panel {
                title: "Throughput",
                x_title,
                y_title: "KiB/s",
                x_is_log: true,
                curves: vec![old_speed, reno_speed, fast_speed],
            },
            Panel {
                title: "Frames lost on the card in 30 s",
                x_title,
                y_title: "frames",
                x_is_log: true,
                curves: vec![old_lost, reno_lost, fast_lost],
            },
        ],
    })
}

/// Replies that come back to back.
pub(super) fn nfs() -> Result<Mechanism, ModelError> {
    let metrics = || [metric("throughput_kib_per_s"), metric("lost_frames")];
    let over = |label: &str, base: &Profile| {
        curves(label, base, NfsRead, "workload.rpc_size", &in_unit(&NFS_KIB, "KiB"), metrics())
    };
    let base = Profile::load("486-wd8003e")?;
    let [slow, slow_lost] = over("WD8003E at 8 MHz", &base)?;
    let [fast, fast_lost] = over("WD8003E at 13.4 MHz", &base.with("bus.clock", "13.4MHz"))?;
    let [wide, wide_lost] = over("WD8013 at 8 MHz", &Profile::load("486-wd8013")?)?;
    let x_title = "NFS read, KiB";
    Ok(Mechanism {
        name: "nfs",
        title: "NFS reads on 8-bit and 16-bit cards",
        claims: &["I15", "I17", "I18", "I19"],
        says: "A reply comes as fragments back to back, and a lost fragment costs the whole reply and a timer. Four \
               replies of 2 KiB fit into the three frames' room of an 8-bit card while it is read out; four of 4 KiB do \
               not, unless the bus is faster or the card wider. Where nothing is lost, larger reads are faster: fewer \
               calls for the same bytes.",
        command: "offramp model sweep 486-wd8003e --workload nfs-read --vary workload.rpc_size=1KiB,2KiB,4KiB,8KiB \
                  --vary bus.clock=8MHz,13.4MHz --out nfs.csv",
        panels: vec![
            Panel { title: "Throughput", x_title, y_title: "KiB/s", x_is_log: true, curves: vec![slow, fast, wide] },
            Panel {
                title: "Frames lost on the card",
                x_title,
                y_title: "frames",
                x_is_log: true,
                curves: vec![slow_lost, fast_lost, wide_lost],
            },
        ],
    })
}
