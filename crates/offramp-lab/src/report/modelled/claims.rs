//! The page of claims: published and modelled figures, and charts of the mechanisms.

use std::io;
use std::path::Path;

use offramp_model::claims::mechanism::{Curve, Mechanism, Panel};
use offramp_model::claims::{Row, Table as ClaimTable};

use crate::report::document::{Document, Section, Table};
use crate::report::figure::{Figure, Mark, Plot, Series};

/// Returns the page of claims.
pub fn page(table: &ClaimTable, mechanisms: &[Mechanism], command: &str) -> Document {
    let claims = Section {
        heading: "The claims".to_owned(),
        command: Some(command.to_owned()),
        tables: vec![rows(table, mechanisms), fitted(table)],
        ..Section::default()
    };
    let lead = format!(
        "{} numbers are fitted and {} chosen. {} rows are predicted, and meet {} published figures within 10 % or 5 \
         points. {} rows miss their target.",
        table.fitted_numbers.len(),
        table.chosen_numbers.len(),
        table.predicted_rows,
        table.predicted_figures_met,
        table.missed_rows
    );
    let measured = table.live_run.as_ref().map(|run| {
        format!(
            "Live: measured by offramp {} on Linux {}, {}, {} processors, in {} samples of {} s of each variant. A \
             live figure is from this machine, with its experiment and two variants.",
            run.offramp, run.kernel, run.processor, run.cpus, run.repeats, run.seconds
        )
    });
    Document {
        title: "Published and modelled figures".to_owned(),
        lead: std::iter::once(lead).chain(measured).collect(),
        sections: std::iter::once(claims).chain(mechanisms.iter().map(section)).collect(),
    }
}

/// Returns the lab's results for a claim, if the row is the claim's first row.
fn live(table: &ClaimTable, at: usize) -> String {
    let row = &table.rows[at];
    let is_first = table.rows[..at].iter().all(|before| before.id != row.id);
    let said = row
        .live
        .iter()
        .flatten()
        .filter(|_| is_first)
        .map(|live| format!("{}, “{}” against “{}”: {}", live.experiment, live.variant, live.base, live.measured));
    said.collect::<Vec<_>>().join(" · ")
}

fn rows(table: &ClaimTable, mechanisms: &[Mechanism]) -> Table {
    let row = |row: &Row| {
        let verdict = match row.ok {
            Some(true) => "ok",
            Some(false) => "MISS",
            None => "",
        };
        let part = if row.part.is_empty() { String::new() } else { format!(" ({})", row.part) };
        let error = row.error.map(|error| format!("{error:+.1} {}", row.error_unit)).unwrap_or_default();
        let shown = mechanisms.iter().find(|mechanism| mechanism.claims.contains(&row.id));
        let cells = [
            row.id.clone(),
            format!("{}{part}", row.published),
            row.modelled.clone().unwrap_or_else(|| "–".to_owned()),
            error,
            row.kind.to_string(),
            row.target.clone(),
            verdict.to_owned(),
            shown.map(|mechanism| mechanism.title.clone()).unwrap_or_default(),
        ];
        cells.to_vec()
    };
    let notes = |(at, row): (usize, &Row)| {
        let named = |name: &str, text: String| Some(format!("{name}: {text}")).filter(|_| !text.is_empty());
        [named("live", live(table, at)), named("assumed", row.assumption.clone())].into_iter().flatten().collect()
    };
    let head = ["claim", "published", "modelled", "error", "kind", "target", "", "chart"];
    Table {
        caption: "A miss stays in the table.".to_owned(),
        head: head.map(str::to_owned).to_vec(),
        rows: table.rows.iter().map(row).collect(),
        notes: table.rows.iter().enumerate().map(notes).collect(),
    }
}

fn fitted(table: &ClaimTable) -> Table {
    let numbers = table.fitted_numbers.iter().chain(&table.chosen_numbers);
    Table {
        caption: "Fitted and chosen numbers".to_owned(),
        head: ["parameter", "value", "for"].map(str::to_owned).to_vec(),
        rows: numbers.map(|of| vec![of.name.to_owned(), of.value.clone(), of.rows.join(", ")]).collect(),
        ..Table::default()
    }
}

fn section(mechanism: &Mechanism) -> Section {
    Section {
        heading: mechanism.title.clone(),
        paragraphs: vec![format!("Claims: {}.", mechanism.claims.join(", ")), mechanism.says.clone()],
        command: Some(mechanism.command.clone()),
        figures: mechanism.panels.iter().map(|panel| figure(mechanism, panel)).collect(),
        tables: Vec::new(),
    }
}

fn figure(mechanism: &Mechanism, panel: &Panel) -> Figure {
    let axis = mechanism.axis(panel);
    let series = |curve: &Curve| Series {
        name: curve.name.clone(),
        mark: if curve.is_published() { Mark::Points } else { Mark::Line },
        points: curve.points.clone(),
    };
    Figure::Plot(Plot {
        title: panel.title.clone(),
        x_title: axis.title.clone(),
        y_title: panel.y_title.clone(),
        x_is_log: axis.is_log,
        y_is_log: false,
        series: panel.curves.iter().map(series).collect(),
    })
}

/// Writes all charts of all mechanisms into a directory. The first chart of a mechanism is `NAME.svg`, and further
/// charts are `NAME-2.svg` and so on. A missing directory is created.
///
/// # Errors
/// Returns an error with the path if a file cannot be written.
pub fn write_charts(mechanisms: &[Mechanism], directory: &Path) -> io::Result<usize> {
    let named = |path: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
    };
    std::fs::create_dir_all(directory).map_err(|error| named(directory, error))?;
    let mut written = 0;
    for mechanism in mechanisms {
        for (at, panel) in mechanism.panels.iter().enumerate() {
            let suffix = if at == 0 { String::new() } else { format!("-{}", at + 1) };
            let path = directory.join(format!("{}{suffix}.svg", mechanism.name));
            std::fs::write(&path, figure(mechanism, panel).svg()).map_err(|error| named(&path, error))?;
            written += 1;
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mechanism() -> Mechanism {
        let panel = r#"
            [[panel]]
            title = "speed"
            y_title = "KiB/s"
            curves = [{ name = "modelled", y = "2 * x" }, { name = "published", points = [[1, 2]] }]
        "#;
        let head = r#"
            title = "The clock"
            claims = ["I7"]
            says = "It bends."
            command = "offramp model sweep"
            x = { title = "MHz", values = [1] }
        "#;
        Mechanism::draw(&[head, panel, panel].concat(), Path::new("isa-clock.toml")).unwrap()
    }

    #[test]
    fn the_page_has_every_row_with_its_verdict_and_the_chart_that_shows_it() {
        let row = |id: &str, ok| Row {
            id: id.to_owned(),
            published: "970 KiB/s".to_owned(),
            modelled: Some("994 KiB/s".to_owned()),
            error: Some(2.5),
            error_unit: "%",
            ok: Some(ok),
            assumption: if ok { "no wait states".to_owned() } else { String::new() },
            ..Row::default()
        };
        let table = ClaimTable { rows: vec![row("I7", true), row("R4", false)], ..ClaimTable::default() };
        // The template writes a slash as a character reference.
        let html =
            |table: &ClaimTable| page(table, &[mechanism()], "offramp model report").html().replace("&#x2f;", "/");
        let without = html(&table);
        for part in ["I7", "994 KiB/s", "+2.5 %", "MISS", "It bends.", "<svg", "The clock"] {
            assert!(without.contains(part), "{part}");
        }
        assert!(!without.contains("Live: ") && !without.contains("live: "));
        assert_eq!(
            without.matches("assumed: no wait states</td></tr>").count(),
            1,
            "of the one row that assumes something"
        );
        let mut measured = ClaimTable { rows: vec![row("H2", true), row("H2", true)], ..table };
        super::super::live::fill(&mut measured, &crate::report::sample::report());
        let with = html(&measured);
        assert!(with.contains("Live: measured by offramp"));
        assert_eq!(with.matches("lso-1g, “on” against “off”: ").count(), 1, "at the first row alone");
    }

    #[test]
    fn every_chart_is_a_file() {
        let directory = std::env::temp_dir().join(format!("offramp-charts-{}", std::process::id()));
        assert_eq!(write_charts(&[mechanism()], &directory).unwrap(), 2);
        let second = std::fs::read_to_string(directory.join("isa-clock-2.svg")).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(second.starts_with("<svg") && second.trim_end().ends_with("</svg>"), "{second}");
        let no_directory = write_charts(&[mechanism()], Path::new("/dev/null/charts")).unwrap_err().to_string();
        assert!(no_directory.contains("/dev/null/charts"), "{no_directory}");
    }
}
