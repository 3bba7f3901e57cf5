//! The result of a sweep as columns, and as CSV (RFC 4180).

use super::{Row, Sweep, SweepError};
use crate::metrics::METRICS;
use crate::profile::quantity::Dimension;

/// A column of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name of the column. The name ends with the unit.
    pub name: String,
    /// Cells of the column, one per row.
    pub cells: Cells,
}

/// The cells of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Numbers; `None` for a missing number.
    Numbers(Vec<Option<f64>>),
    /// Words.
    Words(Vec<String>),
}

/// Builds the columns of a result: the point, the varied parameters, every metric, and the errors.
///
/// # Errors
/// Fails like [`Sweep::points`].
pub fn columns(sweep: &Sweep, rows: &[Row]) -> Result<Vec<Column>, SweepError> {
    let points = sweep.points()?;
    let numbers = |name: &str, of: &dyn Fn(&Row) -> Option<f64>| Column {
        name: name.to_owned(),
        cells: Cells::Numbers(rows.iter().map(|row| of(row).filter(|value| value.is_finite())).collect()),
    };
    let mut columns = vec![numbers("point", &|row| Some(row.point as f64))];
    for (at, axis) in sweep.axes.iter().enumerate() {
        let values = rows.iter().map(|row| points[row.point][at]);
        columns.push(parameter(axis.key.name, axis.key.dimension, values));
    }
    for (at, metric) in METRICS.iter().enumerate() {
        columns.push(numbers(metric.name, &|row| row.result.as_ref().ok().map(|values| values[at])));
    }
    let errors = rows.iter().map(|row| row.result.as_ref().err().cloned().unwrap_or_default()).collect();
    columns.push(Column { name: "error".to_owned(), cells: Cells::Words(errors) });
    Ok(columns)
}

fn parameter(name: &str, dimension: Dimension, values: impl Iterator<Item = u64>) -> Column {
    if let Dimension::Choice(words) = dimension {
        let words = values.map(|value| words.get(value as usize).copied().unwrap_or_default().to_owned());
        return Column { name: name.to_owned(), cells: Cells::Words(words.collect()) };
    }
    let (suffix, base_units) = column_unit(dimension);
    let numbers = values.map(|value| Some(value as f64 / base_units)).collect();
    Column { name: format!("{name}{suffix}"), cells: Cells::Numbers(numbers) }
}

/// Returns the suffix of column names for the unit of a dimension, and the number of base units per unit.
pub(crate) fn column_unit(dimension: Dimension) -> (&'static str, f64) {
    match dimension {
        Dimension::Time => ("_us", 1e6),
        Dimension::TimePerByte => ("_ns_per_byte", 1e6),
        Dimension::Bytes => ("_bytes", 1.0),
        Dimension::Frequency => ("_hz", 1.0),
        Dimension::BitRate => ("_bps", 1.0),
        Dimension::Ratio => ("_percent", 1e4),
        Dimension::Count(_) | Dimension::Choice(_) => ("", 1.0),
    }
}

/// Formats columns as CSV, with the names in the first line. A missing number gives an empty cell.
pub fn csv(columns: &[Column]) -> String {
    let names: Vec<_> = columns.iter().map(|column| quoted(&column.name)).collect();
    let mut out = names.join(",") + "\n";
    let rows = columns.first().map_or(0, |column| match &column.cells {
        Cells::Numbers(cells) => cells.len(),
        Cells::Words(cells) => cells.len(),
    });
    for row in 0..rows {
        let cells: Vec<_> = columns.iter().map(|column| cell(&column.cells, row)).collect();
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

fn cell(cells: &Cells, row: usize) -> String {
    match cells {
        Cells::Numbers(cells) => cells[row].map(|value| value.to_string()).unwrap_or_default(),
        Cells::Words(cells) => quoted(&cells[row]),
    }
}

fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
