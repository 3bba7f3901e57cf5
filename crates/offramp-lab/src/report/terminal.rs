//! The report in a terminal: a table and findings after each experiment, and a summary at the end.

use std::io::IsTerminal;

use super::answer::answers;
use super::claims;
use super::numbers::{NOT_MEASURED, SLOW_BPS, count, cpu_seconds, gbit, mbit, microseconds, percent, share};
use super::words::{self, printable};
use crate::metric;
use crate::model::{Experiment, LabReport, Variant};
use offramp_model::claims::Live;

/// Width of the report, in characters.
pub const WIDTH: usize = 120;
/// Minimum width of the column of names in a table.
const NAME_WIDTH_MIN: usize = 8;
/// Names up to this length are not shortened: columns of figures are dropped to make room for them.
const NAME_WIDTH_KEPT: usize = 24;
/// Separator between two columns.
const GAP: &str = "  ";
/// Indentation of an experiment's lines.
const INDENT: &str = "  ";

/// The style of text output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// `true` to use bold and dim text.
    pub colour: bool,
}

impl Style {
    /// Returns a plain style if `output` is not a terminal, or if `NO_COLOR` is set and not empty (no-color.org).
    pub fn of(output: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: output.is_terminal() && !refused }
    }

    /// Returns `text` in bold if colour is on.
    #[must_use]
    pub fn bold(self, text: &str) -> String {
        self.wrap("\x1b[1m", text)
    }

    /// Returns `text` dimmed if colour is on.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.wrap("\x1b[2m", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Formats an experiment: question, table, findings and notes.
pub fn experiment(experiment: &Experiment, style: Style) -> String {
    let mut lines = vec![style.bold(&printable(&experiment.name))];
    lines.extend(paragraph(&experiment.question, ""));
    if !experiment.fixed.is_empty() {
        lines.extend(paragraph(&experiment.fixed, "fixed: ").iter().map(|line| style.dim(line)));
    }
    lines.push(String::new());
    lines.extend(table(experiment, style));
    lines.extend(words::legend(experiment).iter().flat_map(|line| paragraph(line, "")).map(|line| style.dim(&line)));
    lines.push(String::new());
    lines.extend(
        words::sentences(experiment).iter().flat_map(|sentence| paragraph(sentence, "")).map(|l| style.bold(&l)),
    );
    lines.extend(words::judged(experiment).iter().flat_map(|line| paragraph(line, "bounds: ")));
    lines.extend(experiment.notes.iter().flat_map(|note| paragraph(note, "note: ")));
    lines.join("\n") + "\n"
}

/// Formats the summary of a run: the machine, the duration, and one line per finding.
pub fn summary(report: &LabReport, style: Style) -> String {
    let mut lines = Vec::new();
    lines.extend(paragraph(&where_and_how(report), "").iter().map(|line| style.dim(line)));
    if let Some(guest) = &report.machine.guest {
        lines.extend(paragraph(&words::guest(guest), "").iter().map(|line| style.dim(line)));
    }
    if let Some(programs) = &report.machine.other_programs {
        lines.extend(paragraph(&words::load(programs, report.machine.cpus), ""));
    }
    lines.push(String::new());
    lines.extend(findings(report, style));
    lines.join("\n") + "\n"
}

/// Formats one line per experiment: the answers by group, and then the experiments that have nothing to switch on.
fn findings(report: &LabReport, style: Style) -> Vec<String> {
    let widest = report.experiments.iter().map(|experiment| experiment.name.chars().count()).max().unwrap_or(0);
    let line = |group: &str, name: &str, text: &str| {
        let name = pad_right(&printable(name), widest);
        let line = format!("{INDENT}{group:GROUP_WIDTH$}{GAP}{name}{GAP}{}", printable(text));
        words::ordinary_spaces(&shorten(&line, WIDTH))
    };
    let answers = answers(report);
    let mut lines = Vec::new();
    if !answers.is_empty() {
        lines.push(style.bold("What should I switch on here?"));
    }
    let mut last = None;
    for answer in &answers {
        let group = if last.replace(answer.advice) == Some(answer.advice) { "" } else { answer.advice.text() };
        lines.push(line(group, answer.experiment, &answer.line()));
    }
    let has_answer = |position| answers.iter().any(|answer| answer.position == position);
    let others = report.experiments.iter().enumerate().filter(|(position, _)| !has_answer(*position));
    let others: Vec<&Experiment> = others.map(|(_, experiment)| experiment).collect();
    if !others.is_empty() {
        lines.push(style.bold("Other comparisons"));
    }
    lines.extend(others.into_iter().map(|one| line("", &one.name, &words::headline(one))));
    lines
}

/// Width of the column with the group of an answer.
const GROUP_WIDTH: usize = 13;

/// Formats each claim that the run tested: the published result with its source, the measured result, and caveats. The
/// text is empty if the run tested no claim.
pub fn published(report: &LabReport, style: Style) -> String {
    let measured = claims::by_claim(report);
    if measured.is_empty() {
        return String::new();
    }
    let mut lines = vec![style.bold("published, and measured here")];
    lines.extend(paragraph(claims::READING, "").iter().map(|line| style.dim(line)));
    for (claim, all) in measured {
        lines.extend(paragraph(&claim.published, &format!("{:<5}", claim.id)));
        lines.extend(paragraph(&claims::cited(claim), CLAIM_INDENT).iter().map(|line| style.dim(line)));
        for live in all {
            let Live { experiment, base, variant, measured, why, .. } = live;
            let end = if why.is_empty() { String::new() } else { format!("; {why}") };
            lines.extend(paragraph(&format!("{experiment}, {variant} vs {base}: {measured}{end}"), CLAIM_INDENT));
        }
        if !claim.note.is_empty() {
            lines.extend(paragraph(&claim.note, &format!("{CLAIM_INDENT}note: ")).iter().map(|line| style.dim(line)));
        }
    }
    lines.join("\n") + "\n"
}

/// Indentation of the results of a claim.
const CLAIM_INDENT: &str = "     ";

fn where_and_how(report: &LabReport) -> String {
    let (machine, settings) = (&report.machine, &report.settings);
    format!(
        "offramp {} on Linux {}, {}, {} processors; {} rounds of {} s, {}; {:.0} s in all. {}",
        report.offramp,
        machine.kernel,
        machine.processor,
        machine.cpus,
        settings.repeats,
        settings.seconds,
        settings.congestion,
        settings.elapsed_s,
        machine.cpu_split
    )
}

/// A column of the table: two lines of heading, and one cell per variant.
struct Column {
    heading: [&'static str; 2],
    cells: Vec<Option<String>>,
}

impl Column {
    fn of(experiment: &Experiment, heading: [&'static str; 2], cell: impl Fn(&Variant) -> Option<String>) -> Self {
        Self { heading, cells: experiment.variants.iter().map(cell).collect() }
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().flatten().map(|cell| cell.chars().count());
        cells.chain(self.heading.map(|line| line.chars().count())).max().unwrap_or(0)
    }
}

/// Columns that are dropped, in this order, until the variants' names fit. Each is identified by the second line of its
/// heading. The HTML page has all columns.
const GIVE_WAY: [&str; 4] = ["sent", "wire, k", "CPU s/GB", INTERRUPTS_PER_FRAME];
/// The column dropped first if round trips are shown, because latencies already show the cost of interrupts.
const INTERRUPTS_PER_FRAME: &str = "/frame";

/// Returns the columns, without those dropped to make room for the variants' names.
fn columns_that_fit(experiment: &Experiment) -> Vec<Column> {
    let marked =
        |variant: &Variant| variant.name.chars().count().min(NAME_WIDTH_KEPT) + words::marks(variant).chars().count();
    let name_width = experiment.variants.iter().map(marked).max().unwrap_or(0).max(NAME_WIDTH_MIN);
    let width = |columns: &[Column]| columns.iter().map(|column| column.width() + GAP.len()).sum::<usize>();
    let has_round_trips = experiment.variants.iter().any(|variant| variant.rtt_p50_us.is_some());
    let mut columns = columns(experiment);
    for heading in has_round_trips.then_some(INTERRUPTS_PER_FRAME).into_iter().chain(GIVE_WAY) {
        if INDENT.len() + name_width + width(&columns) > WIDTH {
            columns.retain(|column| column.heading[1] != heading);
        }
    }
    columns
}

/// Returns the columns with a figure for at least one variant.
fn columns(experiment: &Experiment) -> Vec<Column> {
    let of = |heading, cell: fn(&Variant) -> Option<String>| Column::of(experiment, heading, cell);
    let rtt = |p50: Option<f64>, p99: Option<f64>| Some(format!("{} / {}", microseconds(p50?), microseconds(p99?)));
    let mut columns = vec![
        throughput(experiment),
        of(["transact.", "1/s"], |variant| variant.transactions_per_s.map(count)),
        of(["host CPU", "s/GB"], |variant| variant.host_cpu_s_per_gb.map(cpu_seconds)),
        of(["adapter", "CPU s/GB"], |variant| variant.adapter_cpu_s_per_gb.map(cpu_seconds)),
        of(["host", "CPU %"], |variant| variant.host_cpu_percent.map(percent)),
        of(["adapter", "CPU %"], |variant| variant.adapter_cpu_percent.map(percent)),
        of(["guest", "CPU %"], |variant| variant.guest_cpu_percent.map(percent)),
        of(["frames on", "wire, k"], |variant| variant.wire_frames.map(thousands)),
        of(["inter-", "rupts/s"], |variant| variant.interrupts_per_s.map(count)),
        of(["inter-", "/frame"], |variant| variant.interrupts_per_frame.map(share)),
        of(["re-", "sent"], |variant| variant.retransmits.map(count)),
        Column::of(experiment, ["answer", "p50/p99 µs"], |variant| {
            rtt(variant.latency_p50_us, variant.latency_p99_us)
        }),
        Column::of(experiment, ["RTT p50/p99 µs", "CPUs may sleep"], |variant| {
            rtt(variant.rtt_p50_us, variant.rtt_p99_us)
        }),
        Column::of(experiment, ["RTT p50/p99 µs", "CPUs awake"], |variant| {
            rtt(variant.rtt_awake_p50_us, variant.rtt_awake_p99_us)
        }),
    ];
    if experiment.variants.iter().any(|variant| variant.transactions_per_s.is_some()) {
        // For requests, the transaction rate is the result, so the first column (throughput) is redundant.
        columns.remove(0);
    }
    if words::has_impairments(experiment) {
        // The experiment is about a card or a fault, not about the processor time of the emulation.
        columns.retain(|column| !OF_THE_ADAPTER.contains(&column.heading));
        columns.extend(of_trouble(experiment));
    }
    columns.retain(|column| column.cells.iter().any(Option::is_some));
    columns
}

/// Columns removed in experiments with impaired cards or links. Each column is identified by the two lines of its
/// heading.
const OF_THE_ADAPTER: [[&str; 2]; 4] =
    [["host CPU", "s/GB"], ["adapter", "CPU s/GB"], ["adapter", "CPU %"], ["frames on", "wire, k"]];

/// Returns the throughput column, in the unit suitable for the throughput of the fastest variant.
fn throughput(experiment: &Experiment) -> Column {
    let fastest = experiment.variants.iter().filter_map(|variant| variant.throughput_bps).fold(0.0, f64::max);
    if fastest < SLOW_BPS {
        Column::of(experiment, ["throughput", "Mbit/s"], |variant| variant.throughput_bps.map(mbit))
    } else {
        Column::of(experiment, ["throughput", "Gbit/s"], |variant| variant.throughput_bps.map(gbit))
    }
}

/// Returns the columns of a card's losses, and of their effects on TCP and RPC.
fn of_trouble(experiment: &Experiment) -> Vec<Column> {
    let of = |heading, name: &str| {
        let metric = metric::find(name).filter(|metric| words::is_shown(experiment, metric));
        metric.map(|metric| Column::of(experiment, heading, |variant| metric.median(variant).map(metric.text)))
    };
    let columns = [
        of(["", "drop"], "dropped_frames"),
        of(["over-", "run"], "overrun_frames"),
        of(["loss-free", "burst"], "burst_frames_max"),
        of(["most", "bytes"], "memory_bytes_max"),
        of(["out of", "order"], "out_of_order"),
        of(["spurious", "retrans."], "dsacks"),
        of(["cwnd", "segm."], "cwnd_segments"),
        of(["stall", "s"], "stall_s"),
        of(["RPC", "resent"], "rpc_retransmits"),
    ];
    columns.into_iter().flatten().collect()
}

fn thousands(frames: f64) -> String {
    let thousands = frames / 1e3;
    if thousands < 100.0 { format!("{thousands:.1}") } else { format!("{thousands:.0}") }
}

fn table(experiment: &Experiment, style: Style) -> Vec<String> {
    let columns = columns_that_fit(experiment);
    let widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let figures: usize = widths.iter().map(|width| width + GAP.len()).sum();
    let room = WIDTH.saturating_sub(INDENT.len() + figures).max(NAME_WIDTH_MIN);
    let name = |variant: &Variant| {
        let marks = words::marks(variant);
        shorten(&printable(&variant.name), room.saturating_sub(marks.chars().count())) + &marks
    };
    let names: Vec<String> = experiment.variants.iter().map(name).collect();
    let name_width = names.iter().map(|name| name.chars().count()).chain(["variant".len()]).max().unwrap_or(0);

    let heading = |line: usize| {
        let cells = columns.iter().map(|column| column.heading[line]);
        style.dim(&row(if line == 1 { "variant" } else { "" }, name_width, cells, &widths))
    };
    let mut lines = vec![heading(0), heading(1)];
    for (position, name) in names.iter().enumerate() {
        let cells = columns.iter().map(|column| column.cells[position].as_deref().unwrap_or(NOT_MEASURED));
        lines.push(row(name, name_width, cells, &widths));
    }
    lines
}

fn row<'a>(name: &str, name_width: usize, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let mut line = format!("{INDENT}{}", pad_right(name, name_width));
    for (cell, width) in cells.zip(widths) {
        line.push_str(GAP);
        line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
        line.push_str(&words::ordinary_spaces(cell));
    }
    line
}

fn pad_right(text: &str, width: usize) -> String {
    format!("{text:width$}")
}

pub(super) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Wraps `text` at spaces to [`WIDTH`]. The first line begins with `label`, and further lines are indented to match.
fn paragraph(text: &str, label: &str) -> Vec<String> {
    let hanging = " ".repeat(label.chars().count());
    let width = WIDTH.saturating_sub(INDENT.len() + hanging.len());
    let mut lines = vec![String::new()];
    // `split_whitespace` would also break at the no-break spaces in figures.
    for word in printable(text).split(' ').filter(|word| !word.is_empty()) {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            let space = if used > 0 { " " } else { "" };
            lines[last].push_str(space);
            lines[last].push_str(word);
        }
    }
    let prefix = |position| if position == 0 { label } else { hanging.as_str() };
    lines
        .iter()
        .enumerate()
        .map(|(position, line)| words::ordinary_spaces(&format!("{INDENT}{}{line}", prefix(position))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    use crate::model::OtherPrograms;

    const PLAIN: Style = Style { colour: false };

    fn find(name: &str) -> Experiment {
        sample::report().experiments.into_iter().find(|experiment| experiment.name == name).expect("in the sample")
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn everything_fits_into_the_width() {
        for report in [sample::report(), sample::with_guest(), sample::with_moderation(), sample::with_impairments()] {
            for one in &report.experiments {
                let text = experiment(one, PLAIN);
                assert!(widest(&text) <= WIDTH, "{}:\n{text}", widest(&text));
            }
            assert!(widest(&summary(&report, PLAIN)) <= WIDTH);
        }
    }

    #[test]
    fn a_guest_is_named_with_what_ran_it() {
        let text = summary(&sample::with_guest(), PLAIN);
        assert!(text.contains("Host A is a guest: Linux 6.1.0-56-cloud-amd64, emulated by QEMU 7.2.22"), "{text}");
        assert!(!summary(&sample::report(), PLAIN).contains("guest"));
    }

    #[test]
    fn names_of_a_usual_length_are_never_cut() {
        for one in sample::with_moderation().experiments.iter_mut().chain(&mut sample::with_guest().experiments) {
            one.variants[1].name = "as long as names may be!".to_owned();
            let text = experiment(one, PLAIN);
            assert!(text.contains("as long as names may be!  ") && widest(&text) <= WIDTH, "{text}");
        }
        let of_moderation = experiment(&sample::moderation("moderation-bulk", true), PLAIN);
        for heading in ["quiet-or-area", "rupts/s", "/frame", "answer"] {
            assert!(of_moderation.contains(heading), "{of_moderation}");
        }
    }

    #[test]
    fn slow_links_have_mbit_and_losses_have_their_columns() {
        let report = sample::with_impairments();
        let text = |name: &str| {
            let one = report.experiments.iter().find(|one| one.name == name).expect("in the sample");
            let text = experiment(one, PLAIN);
            assert!(widest(&text) <= WIDTH, "{text}");
            assert!(one.variants.iter().all(|variant| text.contains(&format!("  {} ", variant.name))), "{text}");
            text
        };
        let memory = text("packet-memory-tcp");
        assert!(memory.contains("Mbit/s") && memory.contains("over-") && memory.contains("burst"), "{memory}");
        let order = text("order");
        assert!(order.contains("Gbit/s") && order.contains("out of") && order.contains("cwnd"), "{order}");
        assert!(!order.contains("burst") && !order.contains("calls"), "{order}");
        assert!(text("rpc-size").contains("again") && text("checksum-verdict").contains("stall"));
    }

    #[test]
    fn every_claim_of_the_run_stands_once_with_what_was_published_measured_and_noted() {
        let report = sample::with_moderation();
        let text = published(&report, PLAIN);
        let (_, claims) = text.split_once("published, and measured here").expect("a heading");
        assert!(!summary(&report, PLAIN).contains("published"));
        assert!(claims.contains("Microsoft, performance in network adapters, about 2001\n"), "{text}");
        assert!(claims.contains("linux-kernel mailing list, 2 September 2002\n"), "{text}");
        for (claim, live) in claims::by_claim(&report) {
            assert_eq!(
                claims.matches(&format!("\n  {:<5}{}", claim.id, &claim.published[..20])).count(),
                1,
                "{}",
                claim.id
            );
            for of in live {
                assert!(
                    claims.contains(&format!("       {}, {} vs {}: ", of.experiment, of.variant, of.base)),
                    "{text}"
                );
            }
        }
        assert!(claims.contains("note: Whatever else changed between"), "{text}");
        let without = LabReport { experiments: vec![find("uso")], ..report };
        assert!(published(&without, PLAIN).is_empty());
    }

    #[test]
    fn the_summary_ends_with_one_line_for_each_experiment() {
        let report = sample::report();
        let text = summary(&report, PLAIN);
        let (_, list) = text.split_once("What should I switch on here?\n").expect("a heading");
        for one in &report.experiments {
            let named = |line: &&str| line.split_whitespace().any(|word| word == one.name);
            assert_eq!(list.lines().filter(named).count(), 1, "{}: {text}", one.name);
        }
        assert_eq!(list.lines().count(), report.experiments.len() + 1, "{text}");
        assert!(list.starts_with("  switch on      ") && widest(list) <= WIDTH, "{text}");
    }

    #[test]
    fn a_busy_machine_marks_its_rows_and_says_so() {
        let mut report = sample::report();
        report.machine.other_programs =
            Some(OtherPrograms { before_cpus: 0.62, during_cpus: Some(0.3), during_cpus_max: Some(0.71) });
        let text = summary(&report, PLAIN);
        let expected =
            "Other programs used 0.6 of 2 processors before the run, and 0.3 during the samples (median; at most 0.7).";
        assert!(text.contains(expected), "{text}");
        let mut one = find("lso");
        one.variants[1].samples.iter_mut().for_each(|sample| sample.other_cpus = Some(0.7));
        let text = experiment(&one, PLAIN);
        assert!(
            text.contains("\n  on*") && text.contains("\n  off ") && text.contains("* Other programs used up to 0.7"),
            "{text}"
        );
    }

    #[test]
    fn bounds_stand_under_the_table() {
        let text = experiment(&sample::moderation("moderation-mixed", true), PLAIN);
        assert!(text.contains("bounds: quiet-or-area: ") && text.contains("at most 1.25: NOT kept"), "{text}");
        assert!(text.contains("at most 1.25: not"), "{text}");
    }

    #[test]
    fn a_long_name_gives_way_to_the_figures() {
        let mut long = find("lso");
        long.variants[0].name = "a name that is far too long to stand before eleven columns of figures".to_owned();
        let text = experiment(&long, PLAIN);
        let row = text.lines().find(|line| line.contains('…') && line.contains("a name")).expect("its row");
        assert!(row.chars().count() <= WIDTH, "{row}");
    }

    #[test]
    fn the_figures_stand_under_their_headings() {
        let text = experiment(&find("lso"), PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        let units = lines.iter().position(|line| line.contains("variant")).expect("the headings");
        let end_of = |line: &str, word: &str| line[..line.find(word).expect(word) + word.len()].chars().count();
        let throughput_end = end_of(lines[units], "Gbit/s");
        assert_eq!(end_of(lines[units - 1], "throughput"), throughput_end);
        let cell_end: String = lines[units + 2].chars().take(throughput_end).collect();
        assert!(cell_end.ends_with(|letter: char| letter.is_ascii_digit()), "{text}");
        assert!(lines[units + 2].chars().nth(throughput_end) == Some(' '), "{text}");
    }

    #[test]
    fn what_nobody_measured_has_no_column_and_what_one_lacks_has_a_dash() {
        let mut some = find("lso");
        some.variants.iter_mut().for_each(|variant| variant.retransmits = None);
        some.variants[1].host_cpu_percent = None;
        let text = experiment(&some, PLAIN);
        assert!(!text.contains("sent") && text.contains(" –"), "{text}");
    }

    #[test]
    fn transactions_stand_in_the_place_of_the_throughput() {
        let text = experiment(&find("lso-transactions"), PLAIN);
        assert!(text.contains("transact.") && !text.contains("Gbit/s"), "{text}");
    }

    #[test]
    fn an_experiment_without_a_sample_is_shown_and_not_judged() {
        let mut empty = find("lso");
        empty.variants = vec![Variant { name: "off".to_owned(), ..Variant::default() }];
        (empty.verdict, empty.verdicts) = (None, Vec::new());
        assert!(experiment(&empty, PLAIN).contains("No verdict: nothing was measured."));
        empty.variants.clear();
        assert!(experiment(&empty, PLAIN).contains("No verdict"));
    }

    #[test]
    fn plain_text_has_no_escape_and_coloured_text_says_the_same() {
        let one = find("relay");
        let plain = experiment(&one, PLAIN);
        assert!(!plain.contains('\x1b'));
        let coloured = experiment(&one, Style { colour: true });
        assert_eq!(coloured.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", ""), plain);
    }

    #[test]
    fn a_name_from_outside_cannot_steer_the_terminal() {
        let mut hostile = find("lso");
        hostile.name = "\x1b[2J".to_owned();
        hostile.question = "a\rb".to_owned();
        hostile.variants[0].name = "\x07bell".to_owned();
        hostile.notes = vec!["\x1b]0;title\x07".to_owned()];
        let text = experiment(&hostile, PLAIN);
        assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
    }
}
