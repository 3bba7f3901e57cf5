//! The table for people.

use super::{Kind, Row, Table};
use std::fmt::Write;

/// The table as text: a line for each row, what was assumed below it, and at the end how much was fitted.
pub fn text(table: &Table) -> String {
    let mut out = String::new();
    for row in table.rows.iter().filter(|row| row.kind != Kind::NotModelled) {
        write_row(&mut out, row);
    }
    let missing: Vec<_> = table.rows.iter().filter(|row| row.kind == Kind::NotModelled).map(|row| row.id).collect();
    if !missing.is_empty() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "not modelled yet ({}): {}", missing.len(), missing.join(" "));
    }
    let _ = writeln!(
        out,
        "{} numbers fitted, {} rows predicted, {} rows outside their target",
        table.fitted_numbers.len(),
        table.predicted_rows,
        table.missed_rows
    );
    for number in &table.fitted_numbers {
        let _ = writeln!(out, "  {} = {}, fitted to {}", number.name, number.value, number.rows.join(", "));
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
    let _ = writeln!(out, "{:4} {verdict} {:10} {}{part}", row.id, row.kind.name(), row.published);
    let _ = writeln!(out, "     modelled: {modelled}{error}; target: {}", row.target);
    if !row.assumption.is_empty() {
        let _ = writeln!(out, "     assumed: {}", row.assumption);
    }
}
