//! The rows of the NDIS driver for a gigabit adapter: batches that are handed over in the wrong order.

use super::{Figures, Kind, Row};
use crate::config::Workload;
use crate::profile::Profile;
use crate::simulation::{ModelError, Outcome, run};

/// Fitted rows keep within this, percent.
const FITTED_PERCENT: f64 = 5.0;
/// Percentage points by which a predicted share of the processor may differ.
const CPU_POINTS: f64 = 5.0;
/// A throughput that the wrong order has brought down keeps within this factor.
const COLLAPSE_WITHIN: f64 = 2.0;
const MB: f64 = 1e6;
/// Connections of the rows that have several.
const FLOWS: &str = "4";
const SEVERAL: &str = "several connections are 4";
const BATCHES: &str = "the driver polls for frames by a timer of 1 ms: what makes the batches is not published, and a processor that is \
     busy with one slow connection does not form them";
/// The gap of R4 and R6, which stayed from then on.
const GAP: (&str, &str) = ("adapter.moderation", "fixed-gap");

/// All rows of the family that are modelled.
pub(super) fn rows() -> Result<Vec<Row>, ModelError> {
    let base = Profile::load("ndis-2011")?;
    let several = base.clone().with("workload.flows", FLOWS);
    let first = simulate(&base)?;
    let peak = simulate(&several)?;
    let moderated = several.clone().with(GAP.0, GAP.1);
    let offload = simulate(&moderated.with("adapter.checksum", "on"))?;
    let single = base.clone().with(GAP.0, GAP.1).with("adapter.checksum", "on");
    let in_order = simulate(&single.clone().with("host.order", "forward"))?;
    let [throughput, processor] = r7(&offload);
    Ok(vec![
        m11(&base)?,
        r1(&base, &first)?,
        r2(&peak),
        r3(&peak),
        r4(&base, &first)?,
        r5(&several, &peak)?,
        r6(&several, &peak)?,
        throughput,
        processor,
        r8(&single)?,
        r9(&first),
        r10(&first),
        r11(&in_order),
        r12(&single, &first, &in_order)?,
    ])
}

fn simulate(profile: &Profile) -> Result<Outcome, ModelError> {
    run(profile, Workload::TtcpReceive)
}

fn mb(outcome: &Outcome) -> f64 {
    outcome.bytes_per_second / MB
}

/// Share of the processor in interrupts and deferred procedures, percent.
fn dpc_percent(outcome: &Outcome) -> f64 {
    outcome.cpu_percent_by_priority[0] + outcome.cpu_percent_by_priority[1]
}

/// Wrong order has brought a throughput down to this.
fn collapsed(id: &'static str, published: f64, outcome: &Outcome, assumption: &str) -> Row {
    let factor = mb(outcome) / published;
    let modelled = format!("{:.1} MB/s", mb(outcome));
    let ok = (1.0 / COLLAPSE_WITHIN..=COLLAPSE_WITHIN).contains(&factor);
    let row = Row::words(id, Kind::Chosen, modelled, "within a factor of 2", ok, assumption);
    Row { error: Some(100.0 * (factor - 1.0)), ..row }
}

/// A plain adapter in a host that is never busy when something happens.
fn m11(base: &Profile) -> Result<Row, ModelError> {
    let plain = base.clone().with("host.poll_interval", "0us").with("host.cost_scale", "0.1%");
    let idle = plain.with("host.order", "forward").with("workload.rate", "100Mbit/s").with("workload.warmup", "0s");
    let counts = simulate(&idle)?.counts;
    let modelled = format!(
        "{} interrupts, {} frames received, {} sends completed",
        counts.interrupts, counts.frames_arrived, counts.frames_sent
    );
    let ok = counts.interrupts == counts.frames_arrived + counts.frames_sent && counts.frames_sent > 0;
    let assumption = "a host so fast that no interrupt finds the one before it unfinished";
    Ok(Row::words("M11", Kind::Structural, modelled, "exactly one for each", ok, assumption))
}

/// Intervals of the driver's timer over which what it causes is shown.
const TIMERS: [&str; 3] = ["500us", "1ms", "2ms"];

fn r1(base: &Profile, first: &Outcome) -> Result<Row, ModelError> {
    let speeds =
        TIMERS.map(|timer| simulate(&base.clone().with("host.poll_interval", timer)).map(|outcome| mb(&outcome)));
    let speeds = speeds.into_iter().collect::<Result<Vec<_>, _>>()?;
    let row = collapsed("R1", 3.0, first, BATCHES);
    let ensemble = format!(
        "{:.1} MB/s (with a timer of 0.5, 1, 2 ms: {:.1}, {:.1}, {:.1})",
        mb(first),
        speeds[0],
        speeds[1],
        speeds[2]
    );
    Ok(Row { modelled: Some(ensemble), ..row })
}

fn r2(peak: &Outcome) -> Row {
    let assumption = format!("{SEVERAL}; {BATCHES}; the cost of the checksum is derived from R2 and R7");
    collapsed("R2", 12.0, peak, &assumption)
}

fn r3(outcome: &Outcome) -> Row {
    let modelled = format!("{:.0} % of the processor, {:.0} % in DPCs", outcome.cpu_percent, dpc_percent(outcome));
    let ok = outcome.cpu_percent > 100.0 - CPU_POINTS && dpc_percent(outcome) > 90.0 - CPU_POINTS;
    let assumption = format!("{SEVERAL}; {BATCHES}; an interrupt for every event, of 25 us with its DPC");
    Row::words("R3", Kind::Chosen, modelled, "full, and above 90 % in DPCs, within 5 points", ok, &assumption)
}

fn r4(base: &Profile, first: &Outcome) -> Result<Row, ModelError> {
    let gap = simulate(&base.clone().with(GAP.0, GAP.1))?;
    let modelled = format!("{:.1} MB/s without a gap, {:.1} MB/s with it", mb(first), mb(&gap));
    let ok = (mb(&gap) / mb(first) - 1.0).abs() < 0.15;
    let emergent = simulate(&base.clone().with("host.poll_interval", "0us"))?;
    let assumption = format!("{BATCHES}: without the timer and the gap there is {:.1} MB/s", mb(&emergent));
    Ok(Row::words("R4", Kind::Chosen, modelled, "the same within 15 %", ok, &assumption))
}

fn r5(several: &Profile, peak: &Outcome) -> Result<Row, ModelError> {
    // A line of 32 bytes flushed in 50 ns is 1.6 ns per byte; the copy from the cache saves about as much.
    let cacheable = several.clone().with("host.copy_time", "2.8ns/byte").with("host.frame_time", "8.4us");
    let change = 100.0 * (mb(&simulate(&cacheable)?) / mb(peak) - 1.0);
    let modelled = format!("{change:+.1} % with buffers that are cached, and flushed for each frame");
    let assumption = "flushing a frame costs 2.4 us, and copying 2.8 instead of 4 ns per byte; neither is published";
    Ok(Row::words("R5", Kind::Shown, modelled, "from -5 % to 0", (-5.0..=0.0).contains(&change), assumption))
}

fn r6(several: &Profile, peak: &Outcome) -> Result<Row, ModelError> {
    const PUBLISHED: f64 = 60.0;
    let throttled = simulate(&several.clone().with(GAP.0, GAP.1))?;
    let dpc = dpc_percent(&throttled);
    let modelled = format!(
        "DPCs from {:.0} to {dpc:.0} % of the processor, {:.1} to {:.1} MB/s",
        dpc_percent(peak),
        mb(peak),
        mb(&throttled)
    );
    let is_same_speed = (mb(&throttled) / mb(peak) - 1.0).abs() < 0.15;
    let ok = (dpc - PUBLISHED).abs() <= CPU_POINTS && is_same_speed;
    let at_peak = dpc * mb(peak) / mb(&throttled);
    let slower = several.clone().with("host.poll_interval", "2ms");
    let slow = simulate(&slower)?;
    let slow_throttled = simulate(&slower.with(GAP.0, GAP.1))?;
    let assumption = format!(
        "{SEVERAL}. A miss: the connections of the model use the time that the interrupts gave back for more speed, where \
         something that is not published held the real ones; at the speed of before its DPCs would be {at_peak:.0} %. \
         With a timer of 2 ms order is that something: DPCs from {:.0} to {:.0} %, {:.1} to {:.1} MB/s; but R3, R7 and R11 then \
         come out too low",
        dpc_percent(&slow),
        dpc_percent(&slow_throttled),
        mb(&slow),
        mb(&slow_throttled)
    );
    Ok(Row::words("R6", Kind::Predicted, modelled, "60 % within 5 points, speed within 15 %", ok, &assumption))
}

fn r8(single: &Profile) -> Result<Row, ModelError> {
    let faulty = single.clone().with("host.order", "forward").with("adapter.verdict_fault", "1000");
    let wedged = match simulate(&faulty) {
        Err(ModelError::Stalled { waiting, .. }) => waiting,
        Err(error) => return Err(error),
        Ok(outcome) => format!("it went on at {:.1} MB/s", mb(&outcome)),
    };
    let captured = simulate(&faulty.with("host.capture", "on"))?;
    let ok = wedged.contains("called bad") && captured.counts.bytes > 0;
    let modelled = format!("{wedged}; with a capture running {:.1} MB/s", mb(&captured));
    let assumption = "the adapter reports every 1000th segment as bad each time that it comes, also when it is sent again; a \
                      capture makes the stack verify every checksum itself";
    Ok(Row::words("R8", Kind::Shown, modelled, "stands still; not under a capture", ok, assumption))
}

fn r7(offload: &Outcome) -> [Row; 2] {
    let assumption =
        format!("{SEVERAL}, still in the wrong order; {BATCHES}; the cost of the checksum is derived from R2 and R7");
    let processor = Figures {
        part: "processor".to_owned(),
        published: 100.0,
        modelled: offload.cpu_percent,
        unit: "% of the processor",
    };
    let waits = "a miss: the published processor was full, this one waits for windows that the order keeps small";
    let processor = Row { kind: Kind::Chosen, ..Row::points("R7", processor, CPU_POINTS, waits) };
    [collapsed("R7", 17.0, offload, &assumption).of_part("throughput"), processor]
}

fn r9(first: &Outcome) -> Row {
    let segments = first.in_flight_segments;
    let ok = (1.5..=4.5).contains(&segments);
    let modelled = format!("{segments:.1} segments under way on average");
    Row::words("R9", Kind::Chosen, modelled, "2 to 4 segments", ok, BATCHES)
}

fn r10(first: &Outcome) -> Row {
    let counts = &first.counts;
    let modelled = format!(
        "{} duplicate acknowledgements, {} segments sent again, {} lost",
        counts.duplicate_acks,
        counts.retransmissions,
        first.lost()
    );
    let ok = counts.duplicate_acks > 0 && counts.retransmissions > 0 && first.lost() == 0;
    Row::words("R10", Kind::Structural, modelled, "sent again without any loss", ok, BATCHES)
}

fn r11(in_order: &Outcome) -> Row {
    let part = format!("processor {:.0} %", in_order.cpu_percent);
    let figures = Figures { part, published: 30.0, modelled: mb(in_order), unit: "MB/s" };
    Row::figure("R11", Kind::Fitted, figures, FITTED_PERCENT, "published is \"more than 30\"")
}

fn r12(single: &Profile, first: &Outcome, in_order: &Outcome) -> Result<Row, ModelError> {
    const ORDER: f64 = 10.0;
    const OFFLOAD: f64 = 1.4;
    let reversed = simulate(single)?;
    let order = mb(in_order) / mb(&reversed);
    let offload = mb(&reversed) / mb(first);
    let factors = TIMERS.map(|timer| {
        let ill = single.clone().with("host.poll_interval", timer);
        let well = simulate(&ill.clone().with("host.order", "forward"))?;
        Ok::<_, ModelError>(mb(&well) / mb(&simulate(&ill)?))
    });
    let factors = factors.into_iter().collect::<Result<Vec<_>, _>>()?;
    let modelled = format!(
        "order {order:.1} (with a timer of 0.5, 1, 2 ms: {:.1}, {:.1}, {:.1}), offload {offload:.2}, of one connection",
        factors[0], factors[1], factors[2]
    );
    let is_ordered = (ORDER / COLLAPSE_WITHIN..=ORDER * COLLAPSE_WITHIN).contains(&order);
    let ok = is_ordered && (offload / OFFLOAD - 1.0).abs() < 0.1;
    let assumption = format!(
        "{BATCHES}. A miss: a connection in the wrong order waits for its window and not for the processor, so offload brings \
         it nothing"
    );
    Ok(Row::words("R12", Kind::Chosen, modelled, "order within a factor of 2, offload within 10 %", ok, &assumption))
}
