//! The first part of the HTML page: the answers to "what should I switch on here?", and warnings that affect all
//! results.

use serde::Serialize;

use super::answer::{Advice, Answer, answers};
use super::words::{self, Finding};
use crate::model::{LabReport, OtherPrograms};

/// The answers with the same advice.
#[derive(Serialize)]
pub struct AnswerGroup {
    advice: &'static str,
    class: &'static str,
    answers: Vec<AnswerRow>,
}

#[derive(Serialize)]
pub struct AnswerRow {
    anchor: String,
    experiment: String,
    /// The change in percent; `None` if the verdict shows no difference.
    gain: Option<String>,
    line: String,
}

/// Returns the answers of a run by advice, without empty groups.
pub fn answer_groups(report: &LabReport) -> Vec<AnswerGroup> {
    let all = answers(report);
    let row = |answer: &Answer| AnswerRow {
        anchor: anchor(answer.position),
        experiment: answer.experiment.to_owned(),
        gain: answer.verdict.filter(|verdict| Finding::of(verdict).is_difference()).map(words::change),
        line: answer.line(),
    };
    let group = |advice: Advice| AnswerGroup {
        advice: advice.text(),
        class: match advice {
            Advice::SwitchOn => "on",
            Advice::CostsMore => "costs",
            Advice::NoDifference | Advice::NotDecided => "open",
        },
        answers: all.iter().filter(|answer| answer.advice == advice).map(row).collect(),
    };
    Advice::ALL.map(group).into_iter().filter(|group| !group.answers.is_empty()).collect()
}

/// Returns the value of the `id` attribute of an experiment's section.
pub fn anchor(position: usize) -> String {
    format!("experiment-{}", position + 1)
}

/// Returns the warnings that affect all results: other programs ran, or the times of hosts and adapters are not
/// separated.
pub fn warnings(report: &LabReport) -> Vec<String> {
    let machine = &report.machine;
    let is_busy = |programs: &&OtherPrograms| {
        words::is_busy(programs.before_cpus) || programs.during_cpus_max.is_some_and(words::is_busy)
    };
    let busy = machine.other_programs.as_ref().filter(is_busy);
    let busy =
        busy.map(|programs| format!("{} Affected variants have the mark *.", words::load(programs, machine.cpus)));
    let mixed = machine.without_rps.as_ref().map(|reason| {
        format!("Host and adapter CPU are not separated (RPS: {reason}). Affected variants have the mark †.")
    });
    busy.into_iter().chain(mixed).collect()
}
