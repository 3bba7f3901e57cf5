//! The report of a lab run as one HTML page. The page is self-contained: it has no scripts, and loads no fonts or
//! images.

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use offramp_model::claims::Case;
use serde::Serialize;

use super::chart::{self, Forest, ForestAxis, ForestRow};
use super::claims::{self, Row};
use super::figure::{self, Drawn};
use super::limit;
use super::numbers::{self, NOT_MEASURED};
use super::opening::{self, AnswerGroup, anchor};
use super::tradeoff::{self, Panel};
use super::words::{self, Finding};
use crate::compare::spread;
use crate::metric::{METRICS, Metric};
use crate::model::{Experiment, Judgement, LabReport, Variant, Verdict};

/// Name of the template. The extension makes minijinja escape all values for HTML.
const TEMPLATE_NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("page.html");

#[derive(Serialize)]
struct Page {
    offramp: String,
    /// `true` if the run used software adapters, not an existing interface.
    in_software: bool,
    /// Sources of the run's claims.
    sources: Vec<String>,
    reading_of_claims: &'static str,
    machine: Vec<Fact>,
    settings: Vec<Fact>,
    cpu_split: String,
    /// Answers to "what should I switch on here?", by advice. Groups without an answer are omitted.
    answers: Vec<AnswerGroup>,
    /// Warnings that affect all results, such as a busy machine.
    warnings: Vec<String>,
    /// Address of the project's files, for links to the documentation.
    docs: &'static str,
    axis: ForestAxis,
    /// Panels that compare the policies of interrupt moderation, one per load.
    tradeoff: Vec<Panel>,
    experiments: Vec<Section>,
}

/// An entry of a description list.
#[derive(Serialize)]
struct Fact {
    term: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Section {
    /// Value of the `id` attribute of the section, for links to the section.
    anchor: String,
    name: String,
    question: String,
    fixed: String,
    headline: String,
    /// The change in percent, if a difference was shown.
    gain: String,
    /// Explanations of the marks of variants.
    marks: Vec<String>,
    rounds: String,
    forest: Option<ForestRow>,
    sentences: Vec<String>,
    charts: Vec<Drawn>,
    variants: Vec<String>,
    figures: Vec<FigureRow>,
    /// Names of the compared pairs of variants.
    pairs: Vec<String>,
    comparisons: Vec<ComparisonRow>,
    claims: Vec<Claim>,
    judgements: Vec<JudgementRow>,
    reading: Vec<String>,
    notes: Vec<String>,
}

/// The result for a bound of the experiment's file.
#[derive(Serialize)]
struct JudgementRow {
    variant: String,
    /// Name of the base variant of the bound.
    of: String,
    measured: String,
    interval: String,
    bound: String,
    result: &'static str,
    /// `true` if the whole interval misses the bound.
    is_missed: bool,
}

impl From<&Judgement> for JudgementRow {
    fn from(judgement: &Judgement) -> Self {
        let verdict = &judgement.verdict;
        let what = capitalised(words::noun(&verdict.metric).trim_start_matches("the "));
        Self {
            variant: verdict.variant.clone(),
            of: format!("{what}, against {}", verdict.base),
            measured: words::verdict_ratio(verdict),
            interval: words::interval(verdict),
            bound: words::bound(judgement),
            result: words::result(judgement),
            is_missed: judgement.is_kept() == Some(false),
        }
    }
}

/// A row of the table of figures: one metric of all variants.
#[derive(Serialize)]
struct FigureRow {
    heading: &'static str,
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    median: String,
    /// Minimum and maximum sample, if the two differ.
    range: Option<String>,
}

/// A row of the table of comparisons: one metric of all pairs of variants.
#[derive(Serialize)]
struct ComparisonRow {
    heading: String,
    cells: Vec<Option<Comparison>>,
}

#[derive(Serialize)]
struct Comparison {
    ratio: String,
    interval: String,
    /// The values whose quotient is the ratio.
    pair: Option<String>,
    rounds: usize,
    is_difference: bool,
}

impl From<&Verdict> for Comparison {
    fn from(verdict: &Verdict) -> Self {
        Self {
            ratio: words::verdict_ratio(verdict),
            interval: words::interval(verdict),
            pair: words::pair(verdict),
            rounds: verdict.rounds,
            is_difference: Finding::of(verdict).is_difference(),
        }
    }
}

#[derive(Serialize)]
struct Claim {
    id: &'static str,
    published: &'static str,
    found: &'static str,
    measured: String,
    why: String,
    note: &'static str,
    source: String,
}

impl From<Row> for Claim {
    fn from(Row { claim, live, found }: Row) -> Self {
        let measured = format!("{} vs {}: {}", live.variant, live.base, live.measured);
        let found = found.unwrap_or("not compared");
        let source = claims::cited(claim);
        Self { id: &claim.id, published: &claim.published, found, measured, why: live.why, note: &claim.note, source }
    }
}

/// Writes the page to `path`. An existing page is renamed to `NAME.previous.html`, or to `NAME.previous-2.html` and so
/// on if that file exists. Returns the new name of the existing page.
///
/// # Errors
/// Returns an error with the path if the page cannot be written, or the existing page cannot be renamed.
pub fn write_html(report: &LabReport, path: &Path) -> io::Result<Option<PathBuf>> {
    let explained = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot write the report to {}: {error}", path.display()))
    };
    let previous = keep_previous(path).map_err(explained)?;
    std::fs::write(path, render(report)).map_err(explained)?;
    Ok(previous)
}

/// Renames an existing file. A device such as `/dev/null` stays.
fn keep_previous(path: &Path) -> io::Result<Option<PathBuf>> {
    if !path.is_file() {
        return Ok(None);
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
    let numbered = (2..).map(|number| format!("{stem}.previous-{number}{end}"));
    let names = std::iter::once(format!("{stem}.previous{end}")).chain(numbered);
    let mut free = names.map(|name| path.with_file_name(name)).filter(|name| name.symlink_metadata().is_err());
    let previous = free.next().expect("the numbers do not end");
    std::fs::rename(path, &previous)?;
    Ok(Some(previous))
}

/// Returns the page as HTML. All text of the report is escaped.
///
/// # Panics
/// Never panics: the template is part of the program, and all its fields exist.
#[must_use]
pub fn render(report: &LabReport) -> String {
    let mut environment = figure::environment();
    environment.add_template(TEMPLATE_NAME, TEMPLATE).expect("the template is well-formed");
    let template = environment.get_template(TEMPLATE_NAME).expect("the template was just added");
    template.render(Serde(page(report))).expect("the template names only fields of the page")
}

fn page(report: &LabReport) -> Page {
    let forest = Forest::of(report.experiments.iter().filter_map(|experiment| experiment.verdict.as_ref()));
    let sections = report.experiments.iter().enumerate();
    Page {
        offramp: report.offramp.clone(),
        in_software: is_in_software(report),
        sources: sources(report),
        reading_of_claims: claims::READING,
        machine: machine(report),
        settings: settings(report),
        cpu_split: report.machine.cpu_split.clone(),
        answers: opening::answer_groups(report),
        warnings: opening::warnings(report),
        docs: concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main"),
        axis: forest.axis(),
        tradeoff: tradeoff::panels(&report.experiments),
        experiments: sections.map(|(position, experiment)| section(position, experiment, report, &forest)).collect(),
    }
}

/// Returns the sources of the run's claims, such as "M1: Microsoft, …".
fn sources(report: &LabReport) -> Vec<String> {
    let touched: Vec<&Case> = claims::by_claim(report).into_iter().map(|(claim, _)| claim).collect();
    let of = |claims: &[&Case]| {
        let ids: Vec<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        format!("{}: {}.", ids.join(", "), claims[0].source)
    };
    touched.chunk_by(|one, next| one.source == next.source).map(of).collect()
}

/// Returns whether the adapters of the run were software adapters. Only software adapters use processor time.
fn is_in_software(report: &LabReport) -> bool {
    let mut variants = report.experiments.iter().flat_map(|experiment| &experiment.variants);
    variants.any(|variant| variant.adapter_cpu_s_per_gb.is_some())
}

fn machine(report: &LabReport) -> Vec<Fact> {
    let machine = &report.machine;
    let distance = machine.line_distance_ns.map_or_else(
        || NOT_MEASURED.to_owned(),
        |[smallest, median, largest]| format!("{median:.0} ns one way (smallest {smallest:.0}, largest {largest:.0})"),
    );
    let mut facts = vec![
        Fact { term: "Processor", text: machine.processor.clone() },
        Fact { term: "Kernel", text: format!("Linux {}", machine.kernel) },
        Fact { term: "Processors in use", text: machine.cpus.to_string() },
    ];
    if let Some(guest) = &machine.guest {
        facts.push(Fact { term: "Host A", text: words::guest(guest) });
    }
    if is_in_software(report) {
        facts.extend([
            Fact { term: "Hosts on", text: cpus(&machine.host_cpus) },
            Fact { term: "Adapters on", text: cpus(&machine.adapter_cpus) },
            Fact { term: "Cache line from host to adapter", text: distance },
            Fact { term: "Checksum code", text: machine.checksum_kernel.clone() },
        ]);
    }
    facts
}

fn cpus(cpus: &[usize]) -> String {
    match cpus {
        [] => "any processor".to_owned(),
        [one] => format!("processor {one}"),
        many => format!("processors {}", many.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn settings(report: &LabReport) -> Vec<Fact> {
    let settings = &report.settings;
    let samples = format!("{} of {} s, in turn", settings.repeats, settings.seconds);
    let mut facts = vec![
        Fact { term: "Samples of each variant", text: samples },
        Fact { term: "TCP congestion control", text: settings.congestion.clone() },
        Fact { term: "The whole run", text: format!("{:.0} s", settings.elapsed_s) },
    ];
    if is_in_software(report) {
        facts.push(Fact { term: "Adapters' threads", text: settings.threads.clone() });
    }
    facts
}

fn section(position: usize, experiment: &Experiment, report: &LabReport, forest: &Forest) -> Section {
    let main = experiment.verdict.as_ref();
    let groups = words::groups(experiment);
    let charts = [chart::traffic(experiment), chart::processor_time(experiment)];
    Section {
        anchor: anchor(position),
        name: experiment.name.clone(),
        question: experiment.question.clone(),
        fixed: experiment.fixed.clone(),
        headline: words::headline(experiment),
        gain: main
            .filter(|verdict| Finding::of(verdict).is_difference())
            .map_or_else(|| NOT_MEASURED.to_owned(), words::change),
        marks: words::legend(experiment),
        rounds: main.map_or_else(|| NOT_MEASURED.to_owned(), |verdict| verdict.rounds.to_string()),
        forest: main.map(|verdict| forest.row(verdict)),
        sentences: words::sentences(experiment),
        charts: charts.into_iter().flatten().map(|figure| figure.drawn()).collect(),
        variants: experiment.variants.iter().map(|variant| variant.name.clone() + &words::marks(variant)).collect(),
        figures: METRICS.iter().filter_map(|metric| figure_row(experiment, metric)).collect(),
        pairs: groups.iter().map(|group| format!("{} against {}", group[0].variant, group[0].base)).collect(),
        comparisons: METRICS.iter().filter_map(|metric| comparison_row(&groups, metric)).collect(),
        claims: claims::rows(experiment, &report.machine).into_iter().map(Claim::from).collect(),
        judgements: experiment.judgements.iter().map(JudgementRow::from).collect(),
        reading: limit::reading(experiment, &report.machine),
        notes: experiment.notes.clone(),
    }
}

/// Returns the row of comparisons of a metric; `None` if no pair of variants compares the metric.
fn comparison_row(groups: &[Vec<&Verdict>], metric: &Metric) -> Option<ComparisonRow> {
    let of_group = |group: &Vec<&Verdict>| {
        let verdict = group.iter().find(|verdict| verdict.metric == metric.name)?;
        Some(Comparison::from(*verdict))
    };
    let cells: Vec<Option<Comparison>> = groups.iter().map(of_group).collect();
    let heading = capitalised(metric.noun.trim_start_matches("the "));
    cells.iter().any(Option::is_some).then_some(ComparisonRow { heading, cells })
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Returns the row of figures of a metric; `None` if no variant has a figure.
fn figure_row(experiment: &Experiment, metric: &Metric) -> Option<FigureRow> {
    let measured = words::is_shown(experiment, metric);
    let cells = || experiment.variants.iter().map(|variant| cell(variant, metric)).collect();
    measured.then(|| FigureRow { heading: metric.heading, cells: cells() })
}

fn cell(variant: &Variant, metric: &Metric) -> Cell {
    let range = spread(variant, metric.name).map(|spread| [spread.min, spread.max].map(metric.text));
    Cell {
        median: numbers::or_dash(metric.median(variant), metric.text),
        range: range.filter(|[low, high]| low != high).map(|[low, high]| format!("{low} … {high}")),
    }
}
