//! The report of `offramp check` as an HTML page, in the style of the lab's pages.

use offramp_check::report::{details, effect_word, remark, summary, verdict_word};
use offramp_check::verdict::{Report, Row, Verdict, Worth};
use offramp_lab::report::document::{Document, Section, Table};

/// Returns the page for a report.
pub fn document(report: &Report) -> Document {
    let [a, b] = &report.ends;
    let mut sections: Vec<Section> =
        [(a, b), (b, a)].into_iter().filter_map(|(from, to)| section(report, &from.name, &to.name)).collect();
    if !report.commands.is_empty() {
        sections.insert(
            0,
            Section {
                heading: "What turns off what is wrong?".to_owned(),
                command: Some(report.commands.join("\n")),
                ..Section::default()
            },
        );
    }
    sections.extend(worth(report));
    Document {
        title: format!("Are the offloads of {} and {} right?", a.name, b.name),
        lead: vec![
            summary(report),
            format!(
                "{} (driver {}, MTU {}) and {} (driver {}, MTU {}), Linux {}, offramp {}, {:.1} s, seed {}.",
                a.name,
                a.driver,
                a.mtu,
                b.name,
                b.driver,
                b.mtu,
                report.kernel,
                report.offramp,
                report.elapsed_s,
                report.seed
            ),
        ],
        sections,
    }
}

fn worth(report: &Report) -> Option<Section> {
    let interface = &report.worth.first()?.interface;
    let cells =
        |worth: &Worth| vec![worth.offloads.join(", "), effect_word(worth.effect).to_owned(), worth.found.clone()];
    let table = Table {
        head: ["offloads", "effect", "found"].map(str::to_owned).to_vec(),
        rows: report.worth.iter().map(cells).collect(),
        notes: report.worth.iter().map(|_| Vec::new()).collect(),
        ..Table::default()
    };
    let heading = format!("What are they worth on {interface}?");
    Some(Section { heading, tables: vec![table], ..Section::default() })
}

fn section(report: &Report, from: &str, to: &str) -> Option<Section> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.from == from && row.to == to).collect();
    let cells = |row: &&Row| {
        vec![row.offload.to_owned(), verdict_word(&row.verdict).to_owned(), row.interface.clone(), remark(row)]
    };
    // Put the features into the notes: a separate column would leave the other columns only a word per line.
    let notes = |row: &&Row| {
        let features = (!row.features.is_empty()).then(|| format!("on: {}", row.features.join(", ")));
        let details = match &row.verdict {
            Verdict::Wrong(finding) => details(finding),
            _ => Vec::new(),
        };
        details.into_iter().chain(features).collect()
    };
    let table = Table {
        head: ["offload", "verdict", "interface", "found"].map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
        notes: rows.iter().map(notes).collect(),
        ..Table::default()
    };
    (!rows.is_empty()).then(|| Section {
        heading: format!("{from} to {to}"),
        tables: vec![table],
        ..Section::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use offramp_check::fault::Fault;
    use offramp_check::verdict::{Blame, Effect, Evidence, Finding, Interface, VERSION};

    fn row(offload: &'static str, verdict: Verdict) -> Row {
        Row {
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
        }
    }

    fn report() -> Report {
        let interface = |name: &str| Interface { name: name.to_owned(), driver: "veth".to_owned(), mtu: 1500 };
        let finding = Finding {
            fault: Fault::UdpLengthOfSuperFrame,
            what: Fault::UdpLengthOfSuperFrame.text(),
            blame: Blame::Sender,
            case: "UDP over IPv4".to_owned(),
            wrong_cases: 3,
            place: "UDP length of frame 1 of 2".to_owned(),
            expected: "108".to_owned(),
            got: "<109>".to_owned(),
            evidence: Evidence { sent: Vec::new(), expected: Vec::new(), captured: Vec::new() },
        };
        Report {
            version: VERSION,
            offramp: "0.1.0".to_owned(),
            kernel: "6.18".to_owned(),
            seed: 1,
            depth: "quick",
            elapsed_s: 1.5,
            ends: [interface("a"), interface("ns/b")],
            rows: vec![row("uso4", Verdict::Wrong(Box::new(finding))), row("tso6", Verdict::NotOffered)],
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
    fn the_page_has_every_verdict_and_escapes_what_was_captured() {
        let page = document(&report()).html();
        for part in [
            "WRONG",
            "not offered",
            "got &lt;109&gt;",
            "ethtool -K a tx-udp-segmentation off",
            "on: tx-udp-segmentation",
            "slows down",
            "ns&#x2f;b",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
    }
}
