//! The report of a lab run as one HTML page. The page is self-contained: it has no scripts, and loads no fonts or
//! images.

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

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    /// To keep the page that the test writes, run `OFFRAMP_LAB_SAMPLE_PAGE=/tmp/page.html cargo test -p offramp-lab`.
    #[test]
    fn the_page_of_a_full_run_is_written() {
        let scratch = std::env::temp_dir().join(format!("offramp-lab-page-{}.html", std::process::id()));
        let wanted = std::env::var_os("OFFRAMP_LAB_SAMPLE_PAGE");
        let path = wanted.as_ref().map_or(scratch.as_path(), Path::new);
        write_html(&sample::with_moderation(), path).expect("a directory for temporary files");
        let page = std::fs::read_to_string(path).expect("what was written");
        assert_eq!(page, render(&sample::with_moderation()), "the same report gives the same page");
        if wanted.is_none() {
            std::fs::remove_file(path).expect("our own file");
        }
    }

    #[test]
    fn no_earlier_page_is_lost_and_a_device_stays() {
        let directory = std::env::temp_dir().join(format!("offramp-lab-pages-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory for temporary files");
        let path = directory.join("lab.html");
        let named = |number| Some(directory.join(format!("lab.previous{number}.html")));
        std::fs::write(&path, "first").expect("our directory");
        let report = sample::report();
        let write = || write_html(&report, &path).expect("our directory");
        assert_eq!([write(), write(), write()], ["", "-2", "-3"].map(named));
        assert_eq!(std::fs::read_to_string(named("").expect("a name")).expect("kept"), "first");
        std::fs::remove_dir_all(&directory).expect("our own directory");
        assert_eq!(write_html(&report, Path::new("/dev/null")).expect("a device"), None);
    }

    #[test]
    fn the_page_opens_with_the_answer_and_how_to_read_it() {
        let mut report = sample::report();
        report.machine.other_programs = Some(crate::model::OtherPrograms { before_cpus: 0.6, ..Default::default() });
        let page = render(&report);
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
        let order = [
            "What should I switch on here?",
            "Other programs used 0.6 of 2 processors before the run",
            "How to read a ratio",
            "<svg class=\"forest\"",
            "id=\"experiment-1\"",
            "<dt>Processor</dt>",
            "docs/results.md",
        ];
        assert!(order.windows(2).all(|two| at(two[0]) < at(two[1])), "{:?}", order.map(at));
        assert_eq!(page.matches("<p><a href=\"#experiment-").count(), report.experiments.len() - 1);
    }

    #[test]
    fn a_page_that_cannot_be_written_says_where() {
        let error = write_html(&sample::report(), Path::new("/nonexistent/page.html")).expect_err("no such directory");
        assert!(error.to_string().contains("/nonexistent/page.html"), "{error}");
    }

    #[test]
    fn every_experiment_has_its_section_and_its_line_in_the_summary() {
        let report = sample::report();
        let page = render(&report);
        for (position, experiment) in report.experiments.iter().enumerate() {
            let anchor = format!("experiment-{}", position + 1);
            assert!(page.contains(&format!("id=\"{anchor}\"")), "{}", experiment.name);
            assert!(page.contains(&format!("href=\"#{anchor}\"")), "{}", experiment.name);
        }
    }

    #[test]
    fn every_verdict_is_on_the_page() {
        let report = sample::report();
        let shown = page(&report).experiments;
        for (section, experiment) in shown.iter().zip(&report.experiments) {
            let cells = section.comparisons.iter().flat_map(|row| row.cells.iter().flatten()).count();
            assert_eq!(cells, words::verdicts(experiment).count(), "{}", experiment.name);
        }
    }

    #[test]
    fn the_trade_off_of_moderation_is_drawn_where_it_was_measured() {
        let page = render(&sample::with_moderation());
        let count = |what: &str| page.matches(what).count();
        assert_eq!(count("<svg class=\"scatter\""), 4);
        assert_eq!(count("<svg class=\"scatter\""), count("-desc\">\n<title id=\"tradeoff-"));
        for policy in ["off", "quiet-or-area", "area", "net-dim", "e1000", "8000/s", "50 us or 32"] {
            let escaped = policy.replace('/', "&#x2f;");
            assert!(count(&format!("<title>{escaped}: ")) >= 4, "{policy} has a tooltip in each panel");
        }
        assert!(!render(&sample::report()).contains("class=\"scatter\""));
    }

    #[test]
    fn what_cards_lose_is_on_the_page_where_there_are_cards() {
        let page = render(&sample::with_impairments());
        assert!(page.contains("Frames dropped, card memory full") && page.contains("RPC retransmits"));
        let trouble = "TCP segments received out of order";
        assert!(page.contains(trouble) && !render(&sample::report()).contains(trouble));
    }

    #[test]
    fn every_claim_of_the_run_is_on_the_page_with_its_note_and_its_source() {
        let report = sample::with_moderation();
        let shown = page(&report);
        let expected: usize = claims::by_claim(&report).iter().map(|(_, live)| live.len()).sum();
        let rows: Vec<&Claim> = shown.experiments.iter().flat_map(|section| &section.claims).collect();
        assert!(rows.len() == expected && rows.iter().all(|row| !row.measured.is_empty()));
        assert!(
            shown.sources[0].starts_with("M1, M2, ") && shown.sources[1].starts_with("H1, "),
            "{:?}",
            shown.sources
        );
        let of_h5 = "In the lab only the switch differs.";
        assert_eq!(render(&report).matches(of_h5).count(), 1);
    }

    #[test]
    fn a_claim_has_two_columns_and_its_details_have_a_row_of_their_own_beneath() {
        let page = render(&sample::with_moderation());
        let (_, table) = page.split_once("<table class=\"published\">").expect("a table of claims");
        let (table, _) = table.split_once("</table>").expect("an end");
        let rows: Vec<&str> = table.split("<tr").skip(2).collect();
        assert!(!rows.is_empty() && rows.len().is_multiple_of(2), "{table}");
        for two in rows.chunks(2) {
            assert!(two[0].matches("<td").count() == 1 && two[0].contains("<th scope=\"row\""), "{}", two[0]);
            assert!(two[1].matches("<td").count() == 1 && two[1].contains("colspan=\"2\""), "{}", two[1]);
        }
        assert!(table.contains("Source: Microsoft, performance in network adapters, about 2001"), "{table}");
        for found in ["as published", "lower here"] {
            assert!(page.contains(&format!("<td class=\"found-here\">{found}</td>")), "{found}");
        }
    }

    /// Returns the anchors of a document's headings.
    fn anchors(document: &str) -> Vec<String> {
        let headings =
            document.lines().filter_map(|line| line.strip_prefix('#').map(|rest| rest.trim_matches(['#', ' '])));
        let is_kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        headings
            .map(|heading| heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-"))
            .collect()
    }

    #[test]
    fn every_link_to_a_document_leads_to_a_file_and_a_heading_of_the_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = render(&sample::with_moderation()).replace("&#x2f;", "/");
        let links: Vec<&str> = page
            .split("href=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .filter(|link| !link.starts_with('#'))
            .collect();
        assert!(links.len() >= 4, "{links:?}");
        for link in links {
            let path = link.strip_prefix(concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/"));
            let path = path.unwrap_or_else(|| panic!("{link} leads out of the repository"));
            let (file, heading) = path.split_once('#').map_or((path, None), |(file, heading)| (file, Some(heading)));
            let document = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(heading.is_none_or(|heading| anchors(&document).iter().any(|one| one == heading)), "{link}");
        }
    }

    #[test]
    fn every_bound_is_on_the_page_with_whether_it_is_kept() {
        let report = sample::with_moderation();
        let page = render(&report);
        let judgements: Vec<_> = report.experiments.iter().flat_map(|one| &one.judgements).collect();
        let count = |result| judgements.iter().filter(|judgement| judgement.is_kept() == result).count();
        assert!([Some(true), Some(false), None].iter().all(|result| count(*result) > 0));
        assert_eq!(page.matches("<td>kept</td>").count(), count(Some(true)));
        assert_eq!(page.matches("<strong>NOT kept</strong>").count(), count(Some(false)));
        assert_eq!(page.matches("<td>not decided</td>").count(), count(None));
    }

    #[test]
    fn nothing_comes_from_outside_the_page() {
        let page = render(&sample::with_moderation());
        let links = page.matches("<a href=\"https:").count();
        assert!(links > 0 && page.matches("https:").count() == links, "a link loads nothing");
        for outside in ["http:", "<script", "<link", "@import", "url(", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn tables_have_captions_and_charts_have_titles() {
        let page = render(&sample::report());
        let count = |what: &str| page.matches(what).count();
        assert_eq!(count("<table"), count("<caption"));
        assert_eq!(count("<svg class=\"figure\""), count("role=\"img\""));
        assert_eq!(count("<svg class=\"figure\""), count("<desc"));
        assert!(count("<svg class=\"figure\"") == 24, "two for each experiment");
    }

    #[test]
    fn hostile_names_are_text_everywhere() {
        let hostile = "\"><script>alert('x')</script>&{{1234567*7}}";
        let mut report = sample::with_moderation();
        for variant in report.experiments.iter_mut().flat_map(|one| &mut one.variants) {
            variant.name.push_str(hostile);
        }
        let one = &mut report.experiments[0];
        for text in [&mut one.name, &mut one.question, &mut one.fixed] {
            *text = hostile.to_owned();
        }
        one.notes.push(hostile.to_owned());
        one.claims.push(hostile.to_owned());
        one.variants.iter_mut().for_each(|variant| variant.name = hostile.to_owned());
        for verdict in one.verdict.iter_mut().chain(&mut one.verdicts) {
            for text in [&mut verdict.base, &mut verdict.variant, &mut verdict.metric] {
                *text = hostile.to_owned();
            }
        }
        let (machine, settings) = (&mut report.machine, &mut report.settings);
        for text in [&mut machine.kernel, &mut machine.processor, &mut machine.checksum_kernel, &mut machine.cpu_split]
        {
            *text = hostile.to_owned();
        }
        for text in [&mut settings.congestion, &mut settings.threads, &mut report.offramp] {
            *text = hostile.to_owned();
        }
        let page = render(&report);
        assert!(!page.contains("<script") && !page.contains("8641969"), "not escaped");
        assert!(page.matches("&lt;script&gt;").count() > 10, "and still shown");
    }

    #[test]
    fn a_run_over_an_adapter_that_exists_is_not_said_to_be_in_software() {
        let mut report = sample::report();
        assert!(render(&report).contains("in software") && render(&report).contains("Hosts on"));
        for variant in report.experiments.iter_mut().flat_map(|experiment| &mut experiment.variants) {
            variant.adapter_cpu_s_per_gb = None;
        }
        report.experiments.iter_mut().for_each(|experiment| experiment.claims.clear());
        let page = render(&report);
        assert!(
            !page.contains("in software") && !page.contains("Hosts on") && !page.contains("<strong>Claims.</strong>")
        );
    }

    #[test]
    fn an_empty_report_and_an_experiment_without_samples_have_a_page() {
        let mut report = sample::report();
        report.machine.line_distance_ns = None;
        report.experiments.truncate(1);
        let one = &mut report.experiments[0];
        one.variants
            .iter_mut()
            .for_each(|variant| *variant = Variant { name: variant.name.clone(), ..Variant::default() });
        (one.verdict, one.verdicts) = (None, Vec::new());
        assert!(render(&report).contains("nothing was measured"));
        report.experiments.clear();
        assert!(render(&report).contains("</html>"));
    }
}
