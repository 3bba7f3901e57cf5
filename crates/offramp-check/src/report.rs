//! The report as text, JSON, `JUnit`'s XML and KTAP, and the faulty frames as a pcapng capture.

mod pcapng;

use std::fmt::Write;

use crate::verdict::{Blame, Effect, Finding, Report, Row, Verdict};

pub use pcapng::pcapng;

/// Returns the report for a terminal.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let [a, b] = &report.ends;
    let end = |end: &crate::verdict::Interface| format!("{} ({}, MTU {})", end.name, end.driver, end.mtu);
    let _ = writeln!(out, "{} and {}, kernel {}, seed {}", end(a), end(b), report.kernel, report.seed);
    for (from, to) in [(a, b), (b, a)] {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.from == from.name && row.to == to.name).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{} to {}", from.name, to.name);
        for row in rows {
            let _ = writeln!(out, "  {:<18} {:<14} {}", row.offload, verdict_word(&row.verdict), remark(row));
            if let Verdict::Wrong(finding) = &row.verdict {
                for line in details(finding) {
                    let _ = writeln!(out, "      {line}");
                }
            }
        }
    }
    for (n, worth) in report.worth.iter().enumerate() {
        if n == 0 {
            let _ = writeln!(out, "\nworth on {}", worth.interface);
        }
        let _ = writeln!(out, "  {:<18} {:<14} {}", worth.offloads.join(", "), effect_word(worth.effect), worth.found);
    }
    let _ = writeln!(out, "\n{} ({:.1} s, {})", summary(report), report.elapsed_s, loss(report));
    for command in &report.commands {
        let _ = writeln!(out, "  {command}");
    }
    out
}

/// Returns the report as one JSON object.
///
/// # Panics
/// Never panics, because every key is a string.
pub fn json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("a report has no map with other keys")
}

/// Returns the report as a `JUnit` test suite for a CI, with one test case per verdict.
pub fn junit(report: &Report) -> String {
    let count = |of: fn(&Verdict) -> bool| report.rows.iter().filter(|row| of(&row.verdict)).count();
    let failures = count(|verdict| matches!(verdict, Verdict::Wrong(_)));
    let skipped = count(|verdict| !matches!(verdict, Verdict::Right | Verdict::Wrong(_)));
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"offramp check\" tests=\"{}\" failures=\"{failures}\" \
         skipped=\"{skipped}\" time=\"{:.3}\">\n",
        report.rows.len(),
        report.elapsed_s
    );
    for row in &report.rows {
        let class = escaped(&format!("{} to {}", row.from, row.to));
        let _ = write!(out, "  <testcase classname=\"{class}\" name=\"{}\"", row.offload);
        let _ = match &row.verdict {
            Verdict::Right => writeln!(out, "/>"),
            Verdict::Wrong(finding) => {
                let lines = escaped(&details(finding).join("\n"));
                writeln!(out, "><failure message=\"{}\">{lines}</failure></testcase>", escaped(finding.what))
            }
            _ => writeln!(out, "><skipped message=\"{}\"/></testcase>", escaped(&remark(row))),
        };
    }
    out + "</testsuite>\n"
}

/// Returns the report in the kernel's test format (`Documentation/dev-tools/ktap.rst`), with one test per verdict.
pub fn ktap(report: &Report) -> String {
    let mut out = format!("KTAP version 1\n1..{}\n", report.rows.len());
    for (n, row) in report.rows.iter().enumerate() {
        let name = format!("{} {} to {}", row.offload, row.from, row.to).replace('#', "_");
        let (result, directive) = match &row.verdict {
            Verdict::Right => {
                let _ = writeln!(out, "# {}", remark(row));
                ("ok", String::new())
            }
            Verdict::Wrong(finding) => {
                for line in std::iter::once(finding.what.to_owned()).chain(details(finding)) {
                    let _ = writeln!(out, "# {line}");
                }
                ("not ok", String::new())
            }
            other => ("ok", format!(" # SKIP {}: {}", verdict_word(other), remark(row))),
        };
        let _ = writeln!(out, "{result} {} {name}{directive}", n + 1);
    }
    out + &format!("# {}\n", loss(report))
}

/// Returns a sentence about the loss in the whole check.
pub fn loss(report: &Report) -> String {
    let [lost, cases] = report.loss();
    match lost {
        0 => format!("no loss in {cases} cases"),
        _ => format!("{lost} of {cases} cases lost frames: {:.3} %", report.loss_percent()),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the one or two words that reports print for a verdict.
pub fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Right => "right",
        Verdict::Wrong(_) => "WRONG",
        Verdict::NotOffered => "not offered",
        Verdict::NotTested { .. } => "not tested",
        Verdict::NotReachable { .. } => "not reachable",
    }
}

/// Returns the one or two words that reports print for an effect.
pub fn effect_word(effect: Effect) -> &'static str {
    match effect {
        Effect::Pays => "pays",
        Effect::SlowsDown => "slows down",
        Effect::NoDifference => "no difference",
        Effect::Unknown => "unknown",
    }
}

/// Returns the text printed after a verdict: the number of cases, and any exceptions or causes.
pub fn remark(row: &Row) -> String {
    let mut cases = format!("{} cases", row.cases);
    if row.is_never_segmented() {
        let _ = write!(cases, ", all arrived as super-frames: nothing on this path segments them");
    } else if row.coalesced > 0 {
        let _ = write!(cases, ", {} arrived as super-frames", row.coalesced);
    }
    if row.lost > 0 {
        let _ = write!(cases, ", {} lost frames and were right on a retry", row.lost);
    }
    if !row.left_out.is_empty() {
        let _ = write!(cases, "; not tested: {}", row.left_out.join("; "));
    }
    if let Some(why) = &row.off_by_user {
        return why.clone();
    }
    match &row.verdict {
        Verdict::Right => cases,
        Verdict::Wrong(finding) => finding.what.to_owned(),
        Verdict::NotOffered => format!("{} does not offer it", row.interface),
        Verdict::NotTested { why } | Verdict::NotReachable { why } => why.clone(),
    }
}

/// Returns the details of a fault, line by line.
pub fn details(finding: &Finding) -> Vec<String> {
    vec![
        format!("{}: expected {}, got {}", finding.place, finding.expected, finding.got),
        format!("case: {}", finding.case),
        format!("blame: {}", if finding.fault.is_of_queue() { OF_QUEUE } else { blame(finding.blame) }),
    ]
}

/// Text after `blame:` for a fault of the receive queue.
const OF_QUEUE: &str = "the receiver; its adapter or driver alone chooses the queue";

fn blame(blame: Blame) -> &'static str {
    match blame {
        Blame::Sender => "the sender: right with the sender's offloads off",
        Blame::Receiver => "the receiver: right with the receiver's offloads off",
        Blame::Both => "both ends together: right with the offloads of either end off",
        Blame::Path => "the path between, or a feature that cannot be turned off: wrong with every offload off",
        Blame::Unrepeatable => "unknown: the fault did not recur",
    }
}

/// Returns a summary of the report in one sentence.
pub fn summary(report: &Report) -> String {
    let wrong = report.rows.iter().filter(|row| matches!(row.verdict, Verdict::Wrong(_))).count();
    let is_unproven = report.rows.iter().any(Row::is_never_segmented);
    let is_partial = report.rows.iter().any(|row| !row.left_out.is_empty());
    match (wrong, report.commands.is_empty()) {
        (0, _) if report.not_tested() > 0 => {
            format!("Not tested: {} of {} verdicts; nothing else is wrong.", report.not_tested(), report.rows.len())
        }
        (0, _) if is_partial => "Nothing that the path carries is wrong.".to_owned(),
        (0, _) if is_unproven => {
            "Nothing is wrong. Where all super-frames arrived whole, this path tests no segmentation.".to_owned()
        }
        (0, _) => "Nothing is wrong.".to_owned(),
        (1, true) => "One verdict is wrong.".to_owned(),
        (1, false) => "One verdict is wrong. To turn that offload off:".to_owned(),
        (wrong, true) => format!("{wrong} verdicts are wrong."),
        (wrong, false) => format!("{wrong} verdicts are wrong. To turn off the offloads that can be:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use crate::verdict::{Evidence, Interface, VERSION, Worth};

    pub(super) fn report() -> Report {
        let interface = |name: &str| Interface { name: name.to_owned(), driver: "veth".to_owned(), mtu: 1500 };
        let row = |offload, verdict| Row {
            offload,
            interface: "a".to_owned(),
            from: "a".to_owned(),
            to: "ns/b".to_owned(),
            features: vec!["tx-udp-segmentation"],
            cases: 7,
            coalesced: 0,
            lost: 0,
            left_out: Vec::new(),
            off_by_user: None,
            verdict,
        };
        let finding = Finding {
            fault: Fault::UdpLengthOfSuperFrame,
            what: Fault::UdpLengthOfSuperFrame.text(),
            blame: Blame::Sender,
            case: "UDP over IPv4, 2 segments of 100 bytes, the last of 1".to_owned(),
            wrong_cases: 3,
            place: "UDP length of frame 1 of 2".to_owned(),
            expected: "108".to_owned(),
            got: "<109>".to_owned(),
            evidence: Evidence { sent: vec![vec![1; 60]], expected: vec![vec![2; 61]], captured: vec![vec![3; 62]; 2] },
        };
        Report {
            version: VERSION,
            offramp: "0.1.0".to_owned(),
            kernel: "6.18".to_owned(),
            seed: 1,
            depth: "quick",
            elapsed_s: 1.5,
            ends: [interface("a"), interface("ns/b")],
            rows: vec![
                row("tso4", Verdict::Right),
                row("uso4", Verdict::Wrong(Box::new(finding))),
                row("tso6", Verdict::NotOffered),
                row("tx-vlan", Verdict::NotReachable { why: "no".to_owned() }),
            ],
            commands: vec!["ethtool -K a tx-udp-segmentation off".to_owned()],
            worth: vec![Worth {
                offloads: vec!["tso4", "tso6"],
                interface: "a".to_owned(),
                effect: Effect::SlowsDown,
                found: "on against off: 0.9 × throughput.".to_owned(),
            }],
        }
    }

    #[test]
    fn the_text_names_what_is_wrong_where_and_what_to_do() {
        let text = text(&report());
        for part in [
            "a to ns/b\n",
            "uso4               WRONG          each datagram has the UDP length of the super-frame",
            "UDP length of frame 1 of 2: expected 108, got <109>",
            "blame: the sender",
            "worth on a\n  tso4, tso6         slows down     on against off: 0.9 × throughput.\n",
            "  ethtool -K a tx-udp-segmentation off\n",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }

    #[test]
    fn a_path_without_segmentation_and_a_choice_of_the_user_are_said() {
        let mut report = report();
        report.rows.truncate(1);
        report.rows[0].coalesced = 7;
        let text_of_path = text(&report);
        assert!(text_of_path.contains("7 cases, all arrived as super-frames: nothing on this path segments them"));
        assert!(text_of_path.contains("Nothing is wrong. Where all super-frames arrived whole, this path tests no "));
        report.rows[0].coalesced = 6;
        assert!(
            text(&report).contains("7 cases, 6 arrived as super-frames\n") && text(&report).contains("wrong. (1.5 s")
        );
        report.rows[0].verdict = Verdict::NotOffered;
        report.rows[0].off_by_user = Some("the user switched it off".to_owned());
        assert!(text(&report).contains("tso4               not offered    the user switched it off\n"));
    }

    #[test]
    fn the_test_suite_counts_and_escapes() {
        let xml = junit(&report());
        assert!(xml.contains("tests=\"4\" failures=\"1\" skipped=\"2\""), "{xml}");
        assert!(xml.contains("got &lt;109&gt;") && xml.ends_with("</testsuite>\n"), "{xml}");
        assert_eq!(xml.matches("<testcase ").count(), 4);
    }

    #[test]
    fn the_test_results_are_read_by_the_grammar_of_ktap() {
        let mut report = report();
        report.rows[0].lost = 1;
        let ktap = ktap(&report);
        let mut lines = ktap.lines();
        assert_eq!(lines.next(), Some("KTAP version 1"));
        let count: usize = lines.next().unwrap().strip_prefix("1..").unwrap().parse().unwrap();
        let mut results = Vec::new();
        for line in lines.filter(|line| !line.starts_with("# ")) {
            let (is_ok, rest) = match line.strip_prefix("not ok ") {
                Some(rest) => (false, rest),
                None => (true, line.strip_prefix("ok ").unwrap_or_else(|| panic!("{line}"))),
            };
            let (number, rest) = rest.split_once(' ').unwrap();
            let (name, directive) = rest.split_once(" # ").map_or((rest, None), |(name, why)| (name, Some(why)));
            results.push((is_ok, name.to_owned(), directive.map(str::to_owned)));
            assert_eq!(number.parse(), Ok(results.len()), "counted from 1");
        }
        assert_eq!(results.len(), count);
        let skipped = |why: &str| Some(why.to_owned());
        assert_eq!(
            results,
            [
                (true, "tso4 a to ns/b".to_owned(), None),
                (false, "uso4 a to ns/b".to_owned(), None),
                (true, "tso6 a to ns/b".to_owned(), skipped("SKIP not offered: a does not offer it")),
                (true, "tx-vlan a to ns/b".to_owned(), skipped("SKIP not reachable: no")),
            ]
        );
        assert!(ktap.contains("# UDP length of frame 1 of 2: expected 108, got <109>\n# case: "), "{ktap}");
        assert!(ktap.ends_with("\n# 1 of 28 cases lost frames: 3.571 %\n"), "{ktap}");
    }

    /// The page that describes the JSON object.
    const PAGE: &str = include_str!("../../../docs/check.md");

    #[test]
    fn the_page_describes_every_field_of_the_object_and_every_offload() {
        let object: serde_json::Value = serde_json::from_str(&json(&report())).unwrap();
        let lists = ["rows", "worth"].into_iter().flat_map(|list| object[list].as_array().unwrap());
        let rows = lists.filter_map(serde_json::Value::as_object);
        let fields = object.as_object().into_iter().chain(rows).flat_map(serde_json::Map::keys).map(String::as_str);
        for name in fields.chain(crate::run::names()) {
            assert!(PAGE.contains(&format!("`{name}`")), "{name} is not in docs/check.md");
        }
    }

    #[test]
    fn the_object_says_its_version_and_each_verdict_by_name() {
        let object: serde_json::Value = serde_json::from_str(&json(&report())).unwrap();
        assert_eq!(object["version"], VERSION);
        let verdicts: Vec<_> = object["rows"].as_array().unwrap().iter().map(|row| row["verdict"].clone()).collect();
        assert_eq!(verdicts, ["right", "wrong", "not-offered", "not-reachable"]);
        assert_eq!(object["rows"][1]["fault"], "udp-length-of-super-frame");
        assert_eq!(object["rows"][1]["blame"], "sender");
    }
}
