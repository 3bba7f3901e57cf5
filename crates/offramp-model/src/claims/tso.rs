//! The rows of segmentation offload in Linux 2.5.33 with Intel's gigabit adapter.
//!
//! What limited both directions at once is not published, so the host is run twice: with its first processor as the
//! limit, and with its PCI bus. Three times of the processor are fitted, to the two rows of H2 and to the processor of
//! H1 without TSO; both explanations use the same three.

use super::{Figures, Kind, Row};
use crate::config::Workload;
use crate::profile::Profile;
use crate::rpc::tcp_payloads;
use crate::simulation::{ModelError, Outcome, run};

/// Fitted rows keep within this, percent.
const FITTED_PERCENT: f64 = 3.0;
/// Throughput of both directions keeps within this, percent.
const THROUGHPUT_PERCENT: f64 = 10.0;
/// Percentage points by which a predicted share of the processor may differ.
const CPU_POINTS: f64 = 5.0;
const MBIT: f64 = 125_000.0;
/// What TSO hands down, bytes.
const LARGE_SEND_LEN: u64 = 64_000;
const MSS: u64 = 1448;
/// The systems, and what each says of the limit.
const EXPLANATIONS: [(&str, &str); 2] =
    [("p4-e1000-processor", "the first processor is the limit"), ("p4-e1000-pci", "the PCI bus is the limit")];

/// All rows of the family.
pub(super) fn rows() -> Result<Vec<Row>, ModelError> {
    let mut rows = Vec::new();
    for explanation in EXPLANATIONS {
        rows.extend(h1(explanation)?);
    }
    let [plain, large] = switched(EXPLANATIONS[0].0, Workload::TtcpSend)?;
    rows.extend(h2(&plain, &large));
    rows.extend([h3(&large), h4(&plain), h5()?, h6()?, h7()]);
    Ok(rows)
}

/// Without TSO and with it.
fn switched(system: &str, workload: Workload) -> Result<[Outcome; 2], ModelError> {
    let base = Profile::load(system)?;
    Ok([run(&base, workload)?, run(&base.with("adapter.lso", "on"), workload)?])
}

fn mbit(part: &str, published: f64, outcome: &Outcome) -> Figures {
    let modelled = outcome.bytes_per_second / MBIT;
    Figures { part: part.to_owned(), published, modelled, unit: "Mbit/s" }
}

fn cpu(part: &str, published: f64, outcome: &Outcome) -> Figures {
    Figures { part: part.to_owned(), published, modelled: outcome.cpu_percent, unit: "% of both processors" }
}

fn h1((system, limit): (&str, &str)) -> Result<Vec<Row>, ModelError> {
    let [plain, large] = switched(system, Workload::TtcpBoth)?;
    let said = format!(
        "{limit}; two connections each way with windows of 128 KiB; PCI transactions cost 20 clocks more than their \
         data, as tecCHANNEL's measurement implies. Without TSO the buses were {:.0} % busy, the interrupts and \
         protocols {:.0} % of both processors",
        plain.bus_percent[0] + plain.bus_percent[1],
        plain.cpu_percent_by_priority[0] + plain.cpu_percent_by_priority[1]
    );
    let speed = |part: &str, kind, published, outcome| {
        Row::figure("H1", kind, mbit(part, published, outcome), THROUGHPUT_PERCENT, &said)
    };
    let fitted = Row::figure(
        "H1",
        Kind::Fitted,
        cpu(&format!("processor without TSO, {limit}"), 82.0, &plain),
        FITTED_PERCENT,
        &said,
    );
    Ok(vec![
        // The same degree of freedom as the processor, whose cost was fitted.
        speed(&format!("without TSO, {limit}"), Kind::Fitted, 1500.0, &plain),
        fitted,
        speed(&format!("with TSO, {limit}"), Kind::Predicted, 1633.0, &large),
        Row::points("H1", cpu(&format!("processor with TSO, {limit}"), 75.0, &large), CPU_POINTS, &said),
    ])
}

fn h2(plain: &Outcome, large: &Outcome) -> Vec<Row> {
    let said = "one direction, where processors and bus have time to spare";
    let row = |kind, figures| Row::figure("H2", kind, figures, FITTED_PERCENT, said);
    vec![
        row(Kind::Predicted, mbit("without TSO", 940.0, plain)),
        row(Kind::Fitted, cpu("processor without TSO", 40.0, plain)),
        row(Kind::Predicted, mbit("with TSO", 940.0, large)),
        row(Kind::Fitted, cpu("processor with TSO", 19.0, large)),
    ]
}

fn h3(large: &Outcome) -> Row {
    let payloads = tcp_payloads(LARGE_SEND_LEN, MSS);
    let sum: u64 = payloads.iter().sum();
    let per_send = large.counts.bytes_sent as f64 / large.counts.sends.max(1) as f64;
    let modelled = format!(
        "{LARGE_SEND_LEN} bytes become {} frames; {:.0} bytes are handed down at once on average",
        payloads.len(),
        per_send
    );
    let ok = sum == LARGE_SEND_LEN && payloads.iter().all(|&payload| payload <= MSS) && per_send > 10.0 * MSS as f64;
    let said =
        "segmented by the adapter's own code; TCP waits until a large send is a third of its window, as Linux does";
    Row::words("H3", Kind::Structural, modelled, "no byte lost, no frame too long", ok, said)
}

fn h4(plain: &Outcome) -> Row {
    let line = plain.line_percent[0];
    let modelled = format!("{line:.1} % of the link without TSO, {:.0} % of both processors", plain.cpu_percent);
    let ok = line > 99.0 && plain.cpu_percent < 95.0;
    Row::words(
        "H4",
        Kind::Structural,
        modelled,
        "the link full, the processors not",
        ok,
        "gaps are not counted as used",
    )
}

fn h5() -> Result<Row, ModelError> {
    let profile = Profile::load(EXPLANATIONS[0].0)?;
    let modelled =
        format!("{} processors; the two kernels are adapter.lso off and on", profile.value("host.processors"));
    let ok = profile.value("host.processors") == 2;
    let said = "clock, chip set, number of pairs and direction of the interrupts are not published";
    Ok(Row::words("H5", Kind::Shown, modelled, "the configuration that is run", ok, said))
}

fn h6() -> Result<Row, ModelError> {
    let base = Profile::load(EXPLANATIONS[0].0)?.with("workload.write_size", "8KiB");
    let off = run(&base, Workload::UdpSend)?;
    let on = run(&base.with("adapter.lso", "on"), Workload::UdpSend)?;
    let show =
        |outcome: &Outcome| format!("{:.0} Mbit/s at {:.1} %", outcome.bytes_per_second / MBIT, outcome.cpu_percent);
    let modelled = format!("off: {}; on: {}", show(&off), show(&on));
    let ok = off == on && off.counts.bytes > 0;
    Ok(Row::words(
        "H6",
        Kind::Structural,
        modelled,
        "the same to the last event",
        ok,
        "datagrams of 8 KiB, fragmented by the host",
    ))
}

fn h7() -> Row {
    let said = "how mature code is has no figure; the model's large sends are those of a driver that is finished";
    Row::words("H7", Kind::Shown, "nothing to compute".to_owned(), "none", true, said)
}
