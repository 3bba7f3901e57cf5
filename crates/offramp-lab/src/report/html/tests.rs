//! Tests of the page.

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
    assert!(shown.sources[0].starts_with("M1, M2, ") && shown.sources[1].starts_with("H1, "), "{:?}", shown.sources);
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
    let headings = document.lines().filter_map(|line| line.strip_prefix('#').map(|rest| rest.trim_matches(['#', ' '])));
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
    for text in [&mut machine.kernel, &mut machine.processor, &mut machine.checksum_kernel, &mut machine.cpu_split] {
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
    assert!(!page.contains("in software") && !page.contains("Hosts on") && !page.contains("<strong>Claims.</strong>"));
}

#[test]
fn an_empty_report_and_an_experiment_without_samples_have_a_page() {
    let mut report = sample::report();
    report.machine.line_distance_ns = None;
    report.experiments.truncate(1);
    let one = &mut report.experiments[0];
    one.variants.iter_mut().for_each(|variant| *variant = Variant { name: variant.name.clone(), ..Variant::default() });
    (one.verdict, one.verdicts) = (None, Vec::new());
    assert!(render(&report).contains("nothing was measured"));
    report.experiments.clear();
    assert!(render(&report).contains("</html>"));
}
