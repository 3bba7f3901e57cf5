//! The page that explains where time is spent, for one system or for the comparison of two systems.

use offramp_model::compare::{Compared, Comparison};
use offramp_model::explain::{Explanation, Part, explain, limit};
use offramp_model::profile::Profile;
use offramp_model::simulation::{LatencyBucket, Outcome};
use offramp_model::uncertainty::{self, Joint, JointFigure, Spread, intervals};

use super::parameters;
use crate::report::document::{Document, Section, Table};
use crate::report::figure::{Bar, BarPart, Bars, Figure, Mark, Plot, Series, number};

/// Prefixes of the names of activities that count as idle time.
const RESTS: [&str; 2] = ["idle", "gaps"];

fn is_rest(name: &str) -> bool {
    RESTS.iter().any(|rest| name.starts_with(rest))
}

/// A resource, such as the link or a processor, with the times of its activities and its idle time.
struct TakenUp<'a> {
    name: String,
    parts: &'a [Part],
    /// Number of resources combined, such as the number of processors.
    count: usize,
}

impl TakenUp<'_> {
    /// Formats the mean utilization of the combined resources.
    fn figure(&self) -> String {
        let share = number(busy(self.parts) / self.count as f64);
        if self.count == 1 { format!("{share} %") } else { format!("{share} % of {}", self.count) }
    }
}

/// Returns the link, the bus if the bus has limits, and the processors. Several processors are listed first together,
/// and then individually.
fn taken_up(explanation: &Explanation) -> Vec<TakenUp<'_>> {
    let one = |name: String, parts| TakenUp { name, parts, count: 1 };
    let mut all = vec![one("the line".to_owned(), &explanation.line[..])];
    if !explanation.bus.is_empty() {
        all.push(one("the bus".to_owned(), &explanation.bus));
    }
    if explanation.processors.is_empty() {
        all.push(one("the processor".to_owned(), &explanation.processor));
    } else {
        let (parts, count) = (&explanation.processor, explanation.processors.len());
        all.push(TakenUp { name: "all processors".to_owned(), parts, count });
        let each = explanation.processors.iter().enumerate();
        all.extend(each.map(|(at, parts)| one(format!("processor {at}"), parts)));
    }
    all
}

/// Draws the utilization of the link, the bus and the processors of one system.
pub fn chart(outcome: &Outcome) -> Figure {
    let explanation = explain(outcome);
    let bar = |of: TakenUp| Bar {
        parts: of
            .parts
            .iter()
            .map(|part| BarPart { name: part.name.to_owned(), value: part.us_per_frame, is_rest: is_rest(part.name) })
            .collect(),
        figure: of.figure(),
        name: of.name,
        whisker: None,
    };
    Figure::Bars(Bars {
        title: "Time of each frame".to_owned(),
        x_title: "µs per frame; right of the bars: the busy share".to_owned(),
        bars: taken_up(&explanation).into_iter().map(bar).collect(),
    })
}

/// Returns the utilization of a resource, in percent: all parts of the time except idle time.
fn busy(parts: &[Part]) -> f64 {
    parts.iter().filter(|part| !is_rest(part.name)).map(|part| part.percent).sum()
}

/// Draws the distribution of the latencies; `None` for a workload without latencies.
fn latencies(systems: &[(&str, &Outcome)]) -> Option<Figure> {
    let series = |(name, outcome): &(&str, &Outcome)| {
        let buckets = &outcome.latency.as_ref()?.histogram;
        let all: u64 = buckets.iter().map(|bucket| bucket.count).sum();
        let point = |bucket: &LatencyBucket| [bucket.up_to_ns as f64 / 1e3, 100.0 * bucket.count as f64 / all as f64];
        Some(Series { name: (*name).to_owned(), mark: Mark::Line, points: buckets.iter().map(point).collect() })
    };
    let series: Vec<_> = systems.iter().filter_map(series).collect();
    (!series.is_empty()).then(|| {
        Figure::Plot(Plot {
            title: "Latency distribution".to_owned(),
            x_title: "µs, up to".to_owned(),
            y_title: "% of all".to_owned(),
            x_is_log: true,
            y_is_log: false,
            series,
        })
    })
}

fn interval([low, high]: [f64; 2]) -> String {
    format!("{} to {}", number(low), number(high))
}

/// Returns a table of the intervals of one system's metrics.
fn spread_table(spread: &Spread) -> Table {
    let row = |of: &uncertainty::Figure| vec![of.heading.to_owned(), number(of.nominal), interval(of.interval)];
    Table {
        caption: format!("Uncertainty, from {} runs over {}", spread.samples, intervals(&spread.varied)),
        head: ["", "nominal", "lowest to highest"].map(str::to_owned).to_vec(),
        rows: spread.figures.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Returns a table of the intervals of two systems' metrics.
fn joint_table(joint: &Joint, systems: &[String; 2]) -> Table {
    let row = |of: &JointFigure| {
        let higher = format!("{} of {}", of.second_is_higher, of.pairs);
        vec![of.heading.to_owned(), interval(of.intervals[0]), interval(of.intervals[1]), higher]
    };
    Table {
        caption: format!("Uncertainty, from {} runs over {}", joint.samples, intervals(&joint.varied)),
        head: vec![String::new(), systems[0].clone(), systems[1].clone(), "the second higher in".to_owned()],
        rows: joint.figures.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Returns the page of one system. Charts over load, and intervals, are included if given.
pub fn page(
    profile: &Profile,
    outcome: &Outcome,
    spread: Option<&Spread>,
    load: Vec<Figure>,
    command: &str,
) -> Document {
    let explanation = explain(outcome);
    let row = |of: &str, part: &Part| {
        let figures = [number(part.us_per_frame), format!("{:.1} %", part.percent)];
        [of.to_owned(), part.name.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
    };
    let rows = taken_up(&explanation);
    let rows = rows.iter().flat_map(|of| of.parts.iter().map(|part| row(&of.name, part)));
    let table = Table {
        caption: "Time of each frame".to_owned(),
        head: ["of", "part", "µs/frame", "share"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        ..Table::default()
    };
    let says = format!(
        "A frame comes every {} µs and waits {} µs in the adapter's memory. Throughput {} KiB/s, processor {} %. \
         Limit: {}.",
        number(explanation.us_between_frames),
        number(explanation.ring_wait_us),
        number(outcome.kib_per_second),
        number(outcome.cpu_percent),
        limit(profile, outcome)
    );
    let section = Section {
        heading: format!("Under {}", outcome.workload),
        paragraphs: vec![says],
        command: Some(command.to_owned()),
        figures: [Some(chart(outcome)), latencies(&[(&profile.name, outcome)])]
            .into_iter()
            .flatten()
            .chain(load)
            .collect(),
        tables: spread.map(spread_table).into_iter().chain([table, parameters(profile)]).collect(),
    };
    Document { title: format!("{}: {}", profile.name, profile.title), lead: Vec::new(), sections: vec![section] }
}

/// Returns the page that compares two systems. Charts over load are included if given.
pub fn comparison_page(comparison: &Comparison, outcomes: [&Outcome; 2], load: Vec<Figure>, command: &str) -> Document {
    let [first, second] = &comparison.systems;
    let bars = |title: &str, rows: &[Compared]| {
        let bar = |at: usize| Bar {
            name: comparison.systems[at].clone(),
            parts: rows
                .iter()
                .map(|row| BarPart { name: row.name.clone(), value: row.values[at], is_rest: is_rest(&row.name) })
                .collect(),
            figure: number(rows.iter().map(|row| row.values[at]).sum()),
            whisker: None,
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
        caption: "Differing parameters".to_owned(),
        head: vec!["parameter".to_owned(), first.clone(), second.clone(), "known".to_owned()],
        rows: comparison
            .differences
            .iter()
            .map(|of| vec![of.name.to_owned(), of.values[0].clone(), of.values[1].clone(), of.tags.join(", ")])
            .collect(),
        ..Table::default()
    };
    let joint = comparison.joint.as_ref().map(|joint| joint_table(joint, &comparison.systems));
    let limits = comparison.systems.iter().zip(comparison.limits);
    let section = Section {
        heading: format!("Under {}", comparison.workload),
        paragraphs: limits.map(|(system, limit)| format!("Limit of {system}: {limit}.")).collect(),
        command: Some(command.to_owned()),
        figures: vec![
            bars("Time of the processor", &comparison.processor_us_per_kib),
            bars("Time of the link", &comparison.line_us_per_kib),
        ]
        .into_iter()
        .chain((!comparison.bus_us_per_kib.is_empty()).then(|| bars("Time of the bus", &comparison.bus_us_per_kib)))
        .chain(latencies(&[(first, outcomes[0]), (second, outcomes[1])]))
        .chain(load)
        .collect(),
        tables: [Some(table("Figures", &comparison.metrics)), joint]
            .into_iter()
            .flatten()
            .chain([
                table("The processor, µs for each KiB", &comparison.processor_us_per_kib),
                table("The line, µs for each KiB", &comparison.line_us_per_kib),
                differences,
            ])
            .collect(),
    };
    Document { title: format!("{first} and {second}"), lead: Vec::new(), sections: vec![section] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_model::config::Workload::TtcpReceive;
    use offramp_model::simulation::run;

    /// Returns a server with one queue per processor, and eight connections.
    fn server(processors: &str) -> (Profile, Outcome) {
        let settings = [("host.processors", processors), ("host.placement", "spread"), ("adapter.queues", processors)];
        let base = Profile::load("server-100g").expect("it comes with offramp").with("workload.flows", "8");
        let base = base.with("workload.warmup", "2ms").with("workload.time", "3ms");
        let profile = settings.into_iter().fold(base, |profile, (key, value)| profile.with(key, value));
        let outcome = run(&profile, TtcpReceive).expect("it runs");
        (profile, outcome)
    }

    fn bars_of(outcome: &Outcome) -> Vec<Bar> {
        let Figure::Bars(bars) = chart(outcome) else { panic!("bars") };
        bars.bars
    }

    fn names(bars: &[Bar]) -> Vec<&str> {
        bars.iter().map(|bar| bar.name.as_str()).collect()
    }

    #[test]
    fn several_processors_have_a_bar_each_as_long_as_the_time_between_frames_and_one_for_all() {
        let (_, outcome) = server("4");
        let bars = bars_of(&outcome);
        let each = ["processor 0", "processor 1", "processor 2", "processor 3"];
        assert_eq!(names(&bars), [&["the line", "the bus", "all processors"][..], &each].concat());
        let explanation = explain(&outcome);
        let sum = |bar: &Bar| bar.parts.iter().map(|part| part.value).sum::<f64>();
        let [all, each @ ..] = &bars[2..] else { panic!("processors") };
        for (bar, load) in each.iter().zip(&outcome.processor_loads) {
            assert!((sum(bar) / explanation.us_between_frames - 1.0).abs() < 0.01, "{}: {} us", bar.name, sum(bar));
            let worked: f64 = bar.parts.iter().filter(|part| !part.is_rest).map(|part| part.value).sum();
            let busy_percent = 100.0 * worked / explanation.us_between_frames;
            // The parts count the time of a job when the job is submitted, and `busy_percent` counts the time as the
            // job runs.
            assert!((busy_percent - load.busy_percent).abs() < 1.0, "{}: {busy_percent} %", bar.name);
            assert_eq!(bar.figure, format!("{} %", number(busy_percent)));
            for part in bar.parts.iter().filter(|part| !part.is_rest) {
                let of_all = all.parts.iter().find(|of| of.name == part.name).expect("all have what one has");
                assert!(of_all.value >= part.value, "{} of {}", part.name, bar.name);
            }
        }
        assert!(all.figure.ends_with(" % of 4"), "{}", all.figure);
        let of_each: f64 = each.iter().map(sum).sum();
        assert!((sum(all) / of_each - 1.0).abs() < 0.01, "{} us, and {of_each} us one by one", sum(all));
    }

    #[test]
    fn one_processor_has_one_bar() {
        assert_eq!(names(&bars_of(&server("1").1)), ["the line", "the bus", "the processor"]);
    }

    #[test]
    fn the_page_has_the_bars_and_the_figures_of_each_processor_in_the_order_of_their_numbers() {
        let (profile, outcome) = server("4");
        let page = page(&profile, &outcome, None, Vec::new(), "offramp model run server-100g").html();
        let places: Vec<_> = (0..4).map(|at| page.find(&format!("processor {at}")).expect("it is named")).collect();
        assert!(places.is_sorted());
        let rows = |at: usize| page.matches(&format!("<th scope=\"row\">processor {at}</th>")).count();
        for (at, parts) in explain(&outcome).processors.iter().enumerate() {
            assert_eq!(rows(at), parts.len(), "processor {at}");
        }
    }
}
