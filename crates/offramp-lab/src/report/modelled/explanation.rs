//! Where each microsecond goes: of one system, or of two side by side.

use offramp_model::compare::{Compared, Comparison};
use offramp_model::explain::{Part, explain};
use offramp_model::profile::Profile;
use offramp_model::simulation::Outcome;

use super::parameters;
use crate::report::document::{Document, Section, Table};
use crate::report::figure::{Bar, BarPart, Bars, Figure, number};

/// Parts that are what is left over begin with one of these.
const RESTS: [&str; 2] = ["idle", "gaps"];

fn is_rest(name: &str) -> bool {
    RESTS.iter().any(|rest| name.starts_with(rest))
}

/// The time of each frame on the line and on the processor of one system.
pub fn chart(outcome: &Outcome) -> Figure {
    let explanation = explain(outcome);
    let bar = |name: &str, parts: &[Part]| Bar {
        name: name.to_owned(),
        parts: parts
            .iter()
            .map(|part| BarPart { name: part.name.to_owned(), value: part.us_per_frame, is_rest: is_rest(part.name) })
            .collect(),
        figure: format!("{} %", number(busy(parts))),
    };
    Figure::Bars(Bars {
        title: "Where each microsecond of a frame goes".to_owned(),
        x_title: "µs of each frame; right of the bars: the share that is busy".to_owned(),
        bars: [
            ("the line", &explanation.line),
            ("the bus", &explanation.bus),
            ("the processor", &explanation.processor),
        ]
        .into_iter()
        .filter(|(_, parts)| !parts.is_empty())
        .map(|(name, parts)| bar(name, parts))
        .collect(),
    })
}

/// Share of the time that is not left over, percent.
fn busy(parts: &[Part]) -> f64 {
    parts.iter().filter(|part| !is_rest(part.name)).map(|part| part.percent).sum()
}

/// The page of one system.
pub fn page(profile: &Profile, outcome: &Outcome, command: &str) -> Document {
    let explanation = explain(outcome);
    let row = |of: &str, part: &Part| {
        let figures = [number(part.us_per_frame), format!("{:.1} %", part.percent)];
        [of.to_owned(), part.name.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
    };
    let line = explanation.line.iter().map(|part| row("the line", part));
    let bus = explanation.bus.iter().map(|part| row("the bus", part));
    let processor = explanation.processor.iter().map(|part| row("the processor", part));
    let table = Table {
        caption: "Time of each frame".to_owned(),
        head: ["of", "part", "µs/frame", "share"].map(str::to_owned).to_vec(),
        rows: line.chain(bus).chain(processor).collect(),
        ..Table::default()
    };
    let says = format!(
        "A frame comes every {} µs and waits {} µs in the adapter's memory. Throughput {} KiB/s, processor {} %. \
         Limit: {}.",
        number(explanation.us_between_frames),
        number(explanation.ring_wait_us),
        number(outcome.kib_per_second),
        number(outcome.cpu_percent),
        explanation.limit
    );
    let section = Section {
        heading: format!("Under {}", outcome.workload),
        paragraphs: vec![says],
        command: Some(command.to_owned()),
        figures: vec![chart(outcome)],
        tables: vec![table, parameters(profile)],
    };
    Document { title: format!("{}: {}", profile.name, profile.title), lead: Vec::new(), sections: vec![section] }
}

/// The page of two systems.
pub fn comparison_page(comparison: &Comparison, command: &str) -> Document {
    let [first, second] = &comparison.systems;
    let bars = |title: &str, rows: &[Compared]| {
        let bar = |at: usize| Bar {
            name: comparison.systems[at].clone(),
            parts: rows
                .iter()
                .map(|row| BarPart { name: row.name.clone(), value: row.values[at], is_rest: is_rest(&row.name) })
                .collect(),
            figure: number(rows.iter().map(|row| row.values[at]).sum()),
        };
        Figure::Bars(Bars {
            title: title.to_owned(),
            x_title: "µs for each KiB of payload".to_owned(),
            bars: vec![bar(0), bar(1)],
        })
    };
    let row = |row: &Compared| {
        let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
        vec![row.name.clone(), number(row.values[0]), number(row.values[1]), ratio]
    };
    let table = |caption: &str, rows: &[Compared]| Table {
        caption: caption.to_owned(),
        head: vec![String::new(), first.clone(), second.clone(), "ratio".to_owned()],
        rows: rows.iter().map(row).collect(),
        ..Table::default()
    };
    let differences = Table {
        caption: "What they differ in".to_owned(),
        head: vec!["parameter".to_owned(), first.clone(), second.clone(), "known".to_owned()],
        rows: comparison
            .differences
            .iter()
            .map(|of| vec![of.name.to_owned(), of.values[0].clone(), of.values[1].clone(), of.tags.join(", ")])
            .collect(),
        ..Table::default()
    };
    let limits = comparison.systems.iter().zip(comparison.limits);
    let section = Section {
        heading: format!("Under {}", comparison.workload),
        paragraphs: limits.map(|(system, limit)| format!("Limit of {system}: {limit}.")).collect(),
        command: Some(command.to_owned()),
        figures: vec![
            bars("Time of the processor", &comparison.processor_us_per_kib),
            bars("Time of the line", &comparison.line_us_per_kib),
        ]
        .into_iter()
        .chain((!comparison.bus_us_per_kib.is_empty()).then(|| bars("Time of the bus", &comparison.bus_us_per_kib)))
        .collect(),
        tables: vec![
            table("Figures", &comparison.metrics),
            table("The processor, µs for each KiB", &comparison.processor_us_per_kib),
            table("The line, µs for each KiB", &comparison.line_us_per_kib),
            differences,
        ],
    };
    Document { title: format!("{first} and {second}"), lead: Vec::new(), sections: vec![section] }
}
