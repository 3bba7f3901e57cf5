//! `offramp model` as its users meet it: what it refuses, who reads what it prints, and sweeps that are interrupted.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest that a few points of a sweep may take: a guard, not a bound.
const PATIENCE: Duration = Duration::from_mins(1);

fn offramp(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    offramp(args).output().unwrap()
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("offramp-model-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_cannot_be_is_refused_in_one_line_that_says_what_would_be_right() {
    let of = ["486-wd8003ep", "--workload", "ttcp-receive"];
    let cases: [(&str, &[&str], &str); 13] = [
        ("run", &["--set", "bus.clok=8MHz"], "bus.clok: there is no such parameter; did you mean \"bus.clock\"?"),
        ("run", &["--set", "bus.clock=8"], "bus.clock: the unit is missing; use one of: Hz, kHz, MHz, GHz"),
        ("run", &["--set", "bus.clock=-8MHz"], "bus.clock: \"-8\" is not a number of 0 or more"),
        ("run", &["--set", "bus.clock=0Hz"], "bus.clock: 0 Hz is out of range"),
        ("run", &["--set", "host.receive_window=1000byte"], "host.receive_window: 1000 byte is out of range"),
        ("run", &["--set", "adapter.receive_descriptors=0"], "adapter.receive_descriptors: 0 frame is out of range"),
        ("sweep", &["--out", "x.csv", "--vary", "bus.clock=1MHz..2MHz/99999999999"], "at most 1000000"),
        ("sweep", &["--out", "x.csv", "--vary", "bus.clock=1MHz..2MHz"], "bus.clock: a grid needs to know how many"),
        ("sensitivity", &["--method", "sobol", "--samples", "99999999999999"], "runs are too many"),
        ("sensitivity", &["--method", "morris", "--paths", "99999999999999"], "runs are too many"),
        ("sensitivity", &["--parameters", "bus.clock,bus.clock"], "bus.clock: it is named twice"),
        ("explain", &["--set", "adapter.lso=on"], "adapter.lso: \"on\" needs adapter.access to be \"master\""),
        ("run", &["--set", "adapter.queues=4"], "adapter.queues: 4 queues need adapter.access to be \"master\""),
    ];
    for (name, why) in [
        ("486-wd8003", "there is no system profile \"486-wd8003\"; did you mean \"486-wd8003e\"?"),
        ("this-host", "there is no system profile \"this-host\"; `offramp calibrate` makes it"),
        ("nowhere.toml", "nowhere.toml: No such file"),
    ] {
        let home = Scratch::new("no-home");
        let mut command = offramp(&["model", "run", name, "--workload", "ttcp"]);
        let output = command.env("XDG_DATA_HOME", &home.0).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(why), "{name}: {text}");
    }
    for (command, more, why) in cases {
        let output = run(&[&["model", command], &of[..], more].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{command} {more:?}: {text}");
        assert!(text.starts_with("model: ") && text.contains(why), "{command} {more:?}: {text}");
    }
}

#[test]
fn a_run_in_which_nothing_comes_through_ends_with_who_waits_for_what() {
    let descriptors = ["--set", "adapter.receive_descriptors=1"];
    let output = run(&[&["model", "run", "server-82599", "--workload", "ttcp-receive"], &descriptors[..]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
    assert!(text.contains("the peer waits for byte"), "{text}");
}

#[test]
fn a_sweep_with_points_that_failed_has_its_table_and_is_no_success() {
    let scratch = Scratch::new("failed-points");
    let table = scratch.path("table.csv");
    let vary = ["--vary", "adapter.receive_descriptors=1,512", "--out", &table];
    let output = run(&[&["model", "sweep", "server-82599", "--workload", "ttcp-receive"], &vary[..]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("1 of 2 points could not be run"), "{text}");
    assert_eq!(lines(&table), 3);
}

#[test]
fn parameters_workloads_and_transfers_of_a_bus_are_listed() {
    for (args, holds) in [
        (&["model", "params", "bus.lanes"][..], &["PCI Express: lanes", "1 lane to 32 lane", "bus/pcie-3x8"][..]),
        (&["model", "workloads"], &["ttcp-receive", "nfs-read"]),
        (&["model", "dma", "pcie-3x8", "--bytes", "64,1514", "--op", "both"], &["Gbit/s", "1514 both"]),
        (&["model", "dma", "pci-33-32", "--bytes", "256"], &["256 read", "256 write", "256 both", "the bus"]),
    ] {
        let output = run(args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{args:?}");
        for part in holds {
            assert!(text.contains(part), "{args:?}: {text}");
        }
    }
    for (args, code, why) in [
        (&["model", "params", "bus.lains"][..], 2, "did you mean \"bus.lanes\""),
        (&["model", "dma", "isa-8"], 1, "nobody is master"),
        (&["model", "dma", "pcie-3x8", "--set", "bus.lanes=3"], 2, "there is no pcie bus of 3 lane"),
        (
            &["model", "run", "486-wd8003ep", "--workload", "ttcp", "--set", "clock=8MHz"],
            2,
            "with its section: bus.clock",
        ),
    ] {
        let output = run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && text.contains(why), "{args:?}: {text}");
    }
}

#[test]
fn a_reader_that_is_gone_is_no_failure() {
    for args in [&["model", "list"][..], &["model", "run", "486-wd8003ep", "--workload", "ttcp-receive"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = offramp(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
    }
}

fn lines(path: &str) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_sweep_that_a_signal_interrupts_goes_on_and_ends_with_the_same_bytes() {
    const POINTS: usize = 300;
    let directory = Scratch::new("sweep");
    let (out, whole) = (directory.path("out.csv"), directory.path("whole.csv"));
    let partial = format!("{out}.partial");
    let vary = format!("bus.clock=4MHz..30MHz/{POINTS}");
    let sweep = |out: &str| {
        let args = ["model", "sweep", "486-wd8003ep", "--workload", "ttcp-receive", "--set", "workload.time=2s"];
        offramp(&[&args[..], &["--vary", &vary, "--out", out]].concat())
    };
    let child = sweep(&out).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while lines(&partial) < 3 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(
        text.contains(&format!("of {POINTS} points are kept in {partial}, and the same command goes on")),
        "{text}"
    );
    assert!(!Path::new(&out).exists());

    let output = sweep(&out).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.contains("going on behind"), "{text}");
    assert!(!Path::new(&partial).exists());
    assert!(sweep(&whole).output().unwrap().status.success());
    assert_eq!(lines(&out), POINTS + 1);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&whole).unwrap());
}
