//! The table for people.

use super::{LiveRun, MET_PERCENT, MET_POINTS, Row, Table};
use std::fmt::Write;

/// The table as text: a line for each row, what was assumed below it, and at the end how much was fitted. What the lab
/// measured of a claim stands below the first of its rows.
pub fn text(table: &Table) -> String {
    let mut out = String::new();
    if let Some(run) = &table.live_run {
        write_run(&mut out, run);
    }
    let mut last = "";
    for row in &table.rows {
        write_row(&mut out, row);
        if row.id != last {
            write_live(&mut out, row, table.live_run.is_some());
        }
        last = &row.id;
    }
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{} numbers fitted and {} chosen; {} rows fitted, {} decided by a choice, {} predicted; {} published figures are met by \
         predictions within {MET_PERCENT} % or {MET_POINTS} points; {} rows outside their target",
        table.fitted_numbers.len(),
        table.chosen_numbers.len(),
        table.fitted_rows,
        table.chosen_rows,
        table.predicted_rows,
        table.predicted_figures_met,
        table.missed_rows
    );
    for (numbers, how) in [(&table.fitted_numbers, "fitted to"), (&table.chosen_numbers, "chosen for")] {
        for number in numbers {
            let _ = writeln!(out, "  {} = {}, {how} {}", number.name, number.value, number.rows.join(", "));
        }
    }
    out
}

fn write_row(out: &mut String, row: &Row) {
    let verdict = match row.ok {
        Some(true) => "ok  ",
        Some(false) => "MISS",
        None => "    ",
    };
    let part = if row.part.is_empty() { String::new() } else { format!(" ({})", row.part) };
    let error = row.error.map(|error| format!(", {error:+.1} {}", row.error_unit)).unwrap_or_default();
    let modelled = row.modelled.as_deref().unwrap_or("-");
    let interval = row.interval.as_ref().map(|[low, high]| format!(" ({low} to {high})")).unwrap_or_default();
    let _ = writeln!(out, "{:4} {verdict} {:10} {}{part}", row.id, row.kind, row.published);
    let _ = writeln!(out, "     modelled: {modelled}{interval}{error}; target: {}", row.target);
    if !row.assumption.is_empty() {
        let _ = writeln!(out, "     assumed: {}", row.assumption);
    }
    let hangs_on = row.hangs_on.iter().flatten().map(|of| {
        let fitted_to = if of.fitted_to.is_empty() { String::new() } else { format!(": {}", of.fitted_to.join(", ")) };
        format!("{} {:+.2} ({}{fitted_to})", of.name, of.elasticity, of.tag)
    });
    let hangs_on: Vec<_> = hangs_on.collect();
    if !hangs_on.is_empty() {
        let _ = writeln!(out, "     hangs on, percent for a percent: {}", hangs_on.join(", "));
    }
}

fn write_run(out: &mut String, run: &LiveRun) {
    let guest = if run.has_guest { ", one host a guest" } else { "" };
    let _ = writeln!(
        out,
        "live: measured by offramp {} on Linux {}, {}, {} processors{guest}; {} samples of {} s of each variant",
        run.offramp, run.kernel, run.processor, run.cpus, run.repeats, run.seconds
    );
}

fn write_live(out: &mut String, row: &Row, has_run: bool) {
    for live in row.live.iter().flatten() {
        let (experiment, base, variant) = (&live.experiment, &live.base, &live.variant);
        let _ = writeln!(out, "     live: {experiment}, \"{variant}\" against \"{base}\": {}", live.measured);
        if !live.why.is_empty() {
            let _ = writeln!(out, "           {}", live.why);
        }
    }
    if has_run && row.live.is_none() {
        let _ = writeln!(out, "     live: not measured");
    }
}
