use super::*;
use crate::profile::tests::{Files, wrong};
use std::path::{Path, PathBuf};

fn sweep(axes: &[&str], design: Design) -> Sweep {
    let profile = Profile::load("486-wd8003ep").unwrap().with("workload.time", "200ms").with("workload.warmup", "0s");
    let axes = axes.iter().map(|axis| Axis::parse(axis).unwrap()).collect();
    Sweep { profile, workload: Workload::TtcpReceive, axes, design }
}

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// Returns a temporary directory, and the path of a journal in that directory. The directory is removed on drop.
fn scratch(name: &str) -> (Files, PathBuf) {
    let files = Files::new(&format!("sweep-{name}"), &[]);
    let path = files.0.join("journal");
    (files, path)
}

/// Returns the error for a journal with this text, and checks that the file is unchanged.
fn refused(path: &Path, text: &str, sweep: &Sweep) -> String {
    std::fs::write(path, text).unwrap();
    let error = Journal::open(path, sweep).unwrap_err().to_string();
    assert_eq!(std::fs::read_to_string(path).unwrap(), text);
    error
}

#[test]
fn a_grid_has_every_value_with_every_other_the_last_one_changing_fastest() {
    let sweep = sweep(&["bus.clock=8MHz,16MHz", "host.receive_window=4KiB,8KiB,32KiB"], Design::Grid);
    let points = sweep.points().unwrap();
    let (slow, fast) = (8_000_000, 16_000_000);
    let expected = [[slow, 4096], [slow, 8192], [slow, 32_768], [fast, 4096], [fast, 8192], [fast, 32_768]];
    assert_eq!(points, expected.map(Vec::from));
}

#[test]
fn a_name_alone_is_varied_over_the_interval_that_the_profile_has_of_it() {
    let text = "kind = \"system\"\ntitle = \"x\"\nextends = \"486-wd8003ep\"\n[bus]\nclock = { value = 8, unit = \"MHz\", \
                interval = [6, 10], tag = \"measured\", source = \"a test\" }\n";
    let profile = Files::new("sweep-interval", &[("a.toml", text)]).load("a.toml").unwrap();
    let axis = Axis::parse_for("bus.clock/3", &profile).unwrap();
    assert_eq!(axis.listed().unwrap(), [6_000_000, 8_000_000, 10_000_000]);
    let axis = Axis::parse_for("bus.clock=7MHz..9MHz/2", &profile).unwrap();
    assert_eq!(axis.listed().unwrap(), [7_000_000, 9_000_000], "a range that is named is taken");
    for [text, why, _] in &wrong("intervals") {
        let error = Axis::parse_for(text, &profile).unwrap_err().to_string();
        assert!(error.starts_with(text) && error.contains(why), "{text}: {error}");
    }
    assert!(Axis::parse_for("bus.clock", &profile).unwrap().listed().is_err(), "a grid needs a count");
}

#[test]
fn a_parameter_that_is_varied_twice_is_refused() {
    for design in [Design::Grid, Design::Latin { points: 3, seed: 1 }] {
        let error = sweep(&["bus.clock=8MHz,16MHz", "bus.clock=4MHz..5MHz/2"], design).points().unwrap_err();
        assert_eq!(error.to_string(), "bus.clock: varied twice; give all values at once");
    }
}

#[test]
fn a_latin_hypercube_has_one_point_in_each_part_of_each_range() {
    let axes = ["bus.clock=4MHz..32MHz:log", "peer.gap=10us..110us"];
    for count in [1, 7, 50] {
        let sweep = sweep(&axes, Design::Latin { points: count, seed: 3 });
        let points = sweep.points().unwrap();
        let part = |place: f64| (place * count as f64).floor().min(count as f64 - 1.0) as usize;
        let mut clocks: Vec<_> = points.iter().map(|point| part((point[0] as f64 / 4e6).log2() / 3.0)).collect();
        let mut gaps: Vec<_> = points.iter().map(|point| part((point[1] as f64 - 1e7) / 1e8)).collect();
        clocks.sort_unstable();
        gaps.sort_unstable();
        assert_eq!(clocks, (0..count).collect::<Vec<_>>());
        assert_eq!(gaps, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_latin_hypercube_hangs_on_its_seed_alone() {
    let points = |seed| sweep(&["peer.gap=10us..110us"], Design::Latin { points: 20, seed }).points().unwrap();
    assert_eq!(points(1), points(1));
    assert_ne!(points(1), points(2));
}

#[test]
fn a_sweep_that_was_interrupted_anywhere_ends_with_the_same_bytes() {
    let sweep = sweep(&["bus.clock=8MHz..24MHz/4", "host.receive_window=1460byte,4KiB"], Design::Grid);
    let whole = sweep.run(Vec::new(), threads(2), |_| true).unwrap();
    let table = |rows: &[Row]| csv(&columns(&sweep, rows).unwrap());
    for ended_after in 0..whole.len() {
        let (_files, path) = scratch(&format!("resumes-{ended_after}"));
        let (mut journal, done) = Journal::open(&path, &sweep).unwrap();
        assert!(done.is_empty());
        for row in &whole[..ended_after] {
            journal.add(row).unwrap();
        }
        drop(journal);
        // The last line is incomplete, like after an abrupt end of the process.
        let half_a_line = format!("{}{ended_after}\t3.14", std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, half_a_line).unwrap();
        let (mut journal, done) = Journal::open(&path, &sweep).unwrap();
        assert_eq!(done.len(), ended_after);
        let mut begun = 0;
        let rows = sweep.run(done, threads(1), |row| {
            begun += 1;
            journal.add(row).is_ok()
        });
        assert_eq!(begun, whole.len() - ended_after, "what was done is not done again");
        assert_eq!(table(&rows.unwrap()), table(&whole));
        let (journal, done) = Journal::open(&path, &sweep).unwrap();
        assert_eq!(done.len(), whole.len());
        journal.remove().unwrap();
        assert!(!path.exists());
    }
}

#[test]
fn a_journal_of_another_sweep_is_refused_with_what_is_other_and_left_as_it_is() {
    let (_files, path) = scratch("other");
    let first = sweep(&["bus.clock=8MHz,16MHz"], Design::Grid);
    let (mut journal, _) = Journal::open(&path, &first).unwrap();
    journal.add(&Row { point: 0, result: Err("none".to_owned()) }).unwrap();
    let with = |change: fn(&mut Sweep)| {
        let mut other = first.clone();
        change(&mut other);
        other
    };
    let text = std::fs::read_to_string(&path).unwrap();
    for (other, what) in [
        (sweep(&["bus.clock=8MHz,20MHz"], Design::Grid), "different varied parameters;"),
        (sweep(&["bus.clock=8MHz,16MHz", "peer.gap=10us,20us"], Design::Grid), "different varied parameters;"),
        (sweep(&["bus.clock=8MHz,16MHz"], Design::Latin { points: 2, seed: 1 }), "different design;"),
        (
            with(|other| other.workload = Workload::TtcpSend),
            "different version or workload (ttcp-receive there, ttcp-send here);",
        ),
        (
            with(|other| other.profile.set("peer.gap", "50us").unwrap()),
            "different profile (peer.gap=100000000 there, peer.gap=50000000 here);",
        ),
    ] {
        let error = refused(&path, &text, &other);
        assert!(error.starts_with(&format!("{}: holds points of a sweep with {what}", path.display())), "{error}");
        assert!(error.ends_with("or remove the file to start again"), "{error}");
    }
}

#[test]
fn a_journal_of_a_binary_with_other_columns_is_refused_and_left_as_it_is() {
    let (_files, path) = scratch("columns");
    let sweep = sweep(&["bus.clock=8MHz,16MHz"], Design::Grid);
    let head = sweep.fingerprint();
    let metric = METRICS.last().unwrap().name;
    let figures = vec!["1"; METRICS.len()].join("\t");
    for (other_head, what) in [
        (format!("{head} gone_metric"), "different metrics (gone_metric there)".to_owned()),
        (head.replace(metric, "renamed_metric"), format!("different metrics (renamed_metric there, {metric} here)")),
        (head.replacen("throughput_bytes_per_s ", "", 1), "different metrics (throughput_bytes_per_s here)".to_owned()),
        (head.replace(" peer.gap=100000000", ""), "different profile (peer.gap=100000000 here)".to_owned()),
        (head.replacen("offramp ", "offramp 9", 1), "different version or workload".to_owned()),
    ] {
        assert_ne!(other_head, head, "{what}");
        // Three journals of the other sweep: with a row, without a row, and with an incomplete first line.
        for text in [format!("{other_head}\n0\t{figures}\n"), format!("{other_head}\n"), other_head.clone()] {
            let error = refused(&path, &text, &sweep);
            assert!(error.contains(&format!("holds points of a sweep with {what}")), "{error}");
        }
    }
}

#[test]
fn a_journal_that_is_damaged_or_none_is_refused_with_the_line_and_left_as_it_is() {
    let (_files, path) = scratch("damaged");
    let sweep = sweep(&["bus.clock=8MHz,16MHz"], Design::Grid);
    let head = sweep.fingerprint();
    let figures = vec!["1"; METRICS.len()].join("\t");
    for (text, what) in [
        (format!("{head}\n0\t{figures}\n7\tnonsense\n"), "line 3 is not a point of this sweep"),
        (format!("{head}\n0\t{figures}\t1\n"), "line 2 is not a point of this sweep"),
        (format!("{head}\n2\t{figures}\n"), "line 2 is not a point of this sweep"),
        (format!("{head}\n1\t{figures}\n0\t{figures}\n1\t{figures}\n"), "line 4 has point 1 a second time"),
        ("a file of somebody else's".to_owned(), "holds no points of a known sweep"),
        ("point,bus.clock_hz\n0,8000000\n".to_owned(), "holds no points of a known sweep"),
    ] {
        let error = refused(&path, &text, &sweep);
        assert!(error.contains(what), "{error}");
    }
    for begun in 0..=head.len() {
        std::fs::write(&path, &head[..begun]).unwrap();
        let (_, done) = Journal::open(&path, &sweep).unwrap();
        assert!(done.is_empty(), "a head that was not written to its end is written anew");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{head}\n"));
    }
}

#[test]
fn a_point_that_cannot_be_run_says_why_and_the_others_are_run() {
    let sweep = sweep(&["workload.mss=1460byte,9000byte", "host.receive_window=4KiB,32KiB"], Design::Grid);
    let rows = sweep.run(Vec::new(), threads(2), |_| true).unwrap();
    let failed: Vec<_> = rows.iter().filter(|row| row.result.is_err()).map(|row| row.point).collect();
    assert_eq!(failed, [2, 3], "9000 bytes do not fit into a window of 4 KiB, and such a frame not into the card");
    let columns = columns(&sweep, &rows).unwrap();
    let Cells::Words(errors) = &columns.last().unwrap().cells else { panic!("words") };
    assert!(errors[2].contains("is smaller than one segment") && errors[0].is_empty());
    assert!(errors[3].contains("no data arrived") && errors[3].contains("without room"), "{}", errors[3]);
    let Cells::Numbers(throughput) = &columns[3].cells else { panic!("numbers") };
    assert!(throughput[2].is_none() && throughput[0].is_some_and(|value| value > 0.0));
}

#[test]
fn a_table_has_a_line_for_each_point_and_names_with_units() {
    let sweep = sweep(&["bus.clock=8MHz,16MHz", "adapter.overflow=drop,overrun"], Design::Grid);
    let rows = sweep.run(Vec::new(), threads(1), |_| true).unwrap();
    let text = csv(&columns(&sweep, &rows).unwrap());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(lines[0].starts_with("point,bus.clock_hz,adapter.overflow,throughput_bytes_per_s,"), "{}", lines[0]);
    assert!(lines[1].starts_with("0,8000000,drop,") && lines[4].starts_with("3,16000000,overrun,"));
    let quotes = Column { name: "a,b".to_owned(), cells: Cells::Words(vec!["say \"no\"".to_owned()]) };
    assert_eq!(csv(&[quotes]), "\"a,b\"\n\"say \"\"no\"\"\"\n");
}

#[test]
fn too_many_points_are_refused() {
    let axis = "bus.clock=4MHz..30MHz/2000";
    let error = sweep(&[axis, "peer.gap=1us..1ms/2000"], Design::Grid).points().unwrap_err();
    assert!(error.to_string().contains("4000000 points"), "{error}");
    assert!(sweep(&[axis], Design::Latin { points: 0, seed: 1 }).points().is_err());
}
