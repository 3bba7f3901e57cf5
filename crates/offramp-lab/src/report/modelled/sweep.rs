//! The page of a sweep.

use offramp_model::metrics::METRICS;
use offramp_model::sweep::{Cells, Column, Design, Row, Sweep, SweepError, columns};

use super::parameters;
use crate::report::document::{Document, Section};
use crate::report::figure::{Figure, Mark, Plot, Series};

/// Metrics drawn in the charts.
const DRAWN: [&str; 4] = ["throughput_kib_per_s", "cpu_percent", "ring_wait_us", "lost_frames"];
/// Maximum number of lines in a chart. A grid with more combinations of the other parameters is drawn as points.
const LINES_MAX: usize = 8;
/// Minimum ratio between a parameter's largest and smallest value for a logarithmic axis.
const LOG_FROM_RATIO: f64 = 10.0;

/// Returns the page of a completed sweep.
///
/// # Errors
/// Fails like [`Sweep::points`].
pub fn page(sweep: &Sweep, rows: &[Row], command: &str) -> Result<Document, SweepError> {
    let columns = columns(sweep, rows)?;
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    let lead = format!("{} points, {failed} of them failed.", rows.len());
    let varied: Vec<usize> = match sweep.design {
        // A grid has the first parameter on the horizontal axis, and the other parameters as lines.
        Design::Grid => vec![0],
        Design::Latin { .. } => (0..sweep.axes.len()).collect(),
    };
    let sections = varied.into_iter().map(|axis| section(sweep, &columns, axis));
    let mut sections: Vec<Section> = sections.collect();
    if let Some(first) = sections.first_mut() {
        first.command = Some(command.to_owned());
    }
    let made_with =
        Section { heading: "Parameters".to_owned(), tables: vec![parameters(&sweep.profile)], ..Section::default() };
    sections.push(made_with);
    let title = format!("{}, {}", sweep.profile.name, sweep.workload.name());
    Ok(Document { title, lead: vec![lead], sections })
}

fn section(sweep: &Sweep, columns: &[Column], axis: usize) -> Section {
    // The first column is the index of the point. The columns of the parameters follow.
    let x = &columns[1 + axis];
    let drawn = METRICS.iter().filter(|metric| DRAWN.contains(&metric.name));
    let figures = drawn.filter_map(|metric| {
        let y = columns.iter().find(|column| column.name == metric.name)?;
        plot(sweep, columns, x, y, metric.heading)
    });
    Section {
        heading: format!("Over {}", x.name),
        paragraphs: vec![format!("{}.", sweep.axes[axis].key.meaning)],
        figures: figures.collect(),
        ..Section::default()
    }
}

fn plot(sweep: &Sweep, columns: &[Column], x: &Column, y: &Column, y_title: &str) -> Option<Figure> {
    let (Cells::Numbers(xs), Cells::Numbers(ys)) = (&x.cells, &y.cells) else { return None };
    let is_all_zero = ys.iter().flatten().all(|value| *value == 0.0);
    if is_all_zero {
        return None;
    }
    let others: Vec<&Column> = columns[1..=sweep.axes.len()].iter().filter(|column| column.name != x.name).collect();
    let is_grid = sweep.design == Design::Grid;
    let name_of = |row: usize| {
        let names = others.iter().map(|column| format!("{} {}", column.name, shown(&column.cells, row)));
        if is_grid { names.collect::<Vec<_>>().join(", ") } else { String::new() }
    };
    let mut series: Vec<Series> = Vec::new();
    for (row, (x, y)) in xs.iter().zip(ys).enumerate() {
        let name = name_of(row);
        let point = [x.unwrap_or(f64::NAN), y.unwrap_or(f64::NAN)];
        match series.iter_mut().find(|of| of.name == name) {
            Some(of) => of.points.push(point),
            None => series.push(Series { name, mark: Mark::Line, points: vec![point] }),
        }
    }
    if !is_grid || series.len() > LINES_MAX {
        let points = series.into_iter().flat_map(|of| of.points).collect();
        series = vec![Series { name: "each point".to_owned(), mark: Mark::Points, points }];
    }
    for of in &mut series {
        of.points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        if of.name.is_empty() {
            sweep.workload.name().clone_into(&mut of.name);
        }
    }
    let (low, high) = xs.iter().flatten().fold((f64::INFINITY, 0.0_f64), |(low, high), x| (low.min(*x), high.max(*x)));
    Some(Figure::Plot(Plot {
        title: y_title.to_owned(),
        x_title: x.name.clone(),
        y_title: y_title.to_owned(),
        x_is_log: low > 0.0 && high / low >= LOG_FROM_RATIO,
        y_is_log: false,
        series,
    }))
}

fn shown(cells: &Cells, row: usize) -> String {
    match cells {
        Cells::Numbers(cells) => cells[row].map(|value| value.to_string()).unwrap_or_default(),
        Cells::Words(cells) => cells[row].clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_model::config::Workload;
    use offramp_model::profile::Profile;
    use offramp_model::sweep::Axis;

    fn page_of(axes: &[&str], design: Design) -> String {
        let profile = Profile::load("486-wd8003ep").expect("it comes with offramp");
        let profile = profile.with("workload.time", "200ms").with("workload.warmup", "0s");
        let axes = axes.iter().map(|axis| Axis::parse(axis).expect("an axis")).collect();
        let sweep = Sweep { profile, workload: Workload::TtcpReceive, axes, design };
        let rows = sweep.run(Vec::new(), offramp_model::pool::threads(), |_| true).expect("points");
        page(&sweep, &rows, "offramp model sweep").expect("points").html()
    }

    #[test]
    fn a_grid_has_a_line_for_each_value_of_the_second_parameter() {
        let axes = ["bus.clock=8MHz..24MHz/3", "host.receive_window=4KiB,32KiB"];
        let page = page_of(&axes, Design::Grid);
        assert!(page.contains("host.receive_window_bytes 4096") && page.contains("host.receive_window_bytes 32768"));
        assert!(page.contains("Over bus.clock_hz") && !page.contains("Over host.receive_window_bytes"));
    }

    #[test]
    fn a_hypercube_has_a_section_of_points_for_each_parameter() {
        let axes = ["bus.clock=8MHz..24MHz", "host.receive_window=4KiB..32KiB"];
        let page = page_of(&axes, Design::Latin { points: 6, seed: 1 });
        assert!(page.contains("Over bus.clock_hz") && page.contains("Over host.receive_window_bytes"));
        assert!(page.contains("each point"));
    }
}
