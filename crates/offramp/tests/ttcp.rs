//! Tests of `offramp ttcp` as used by people and scripts: two processes, exit status, and one line of JSON per event.

#![cfg(feature = "lab")]

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

fn offramp(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.arg("ttcp").args(args).stdin(Stdio::null());
    command
}

/// A process that prints one JSON object per line. Dropping this value kills the process.
struct Talker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talker {
    fn start(args: &[&str]) -> Self {
        let mut child = offramp(args).arg("--json").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn wait_for(&mut self, event: &str) -> Value {
        for line in self.lines.by_ref() {
            let value: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if value["event"] == event {
                return value;
            }
        }
        panic!("it ended without saying {event}");
    }

    /// Returns the number of open descriptors and of threads.
    fn holdings(&self) -> (usize, usize) {
        let count = |what: &str| {
            let path = Path::new("/proc").join(self.child.id().to_string()).join(what);
            std::fs::read_dir(path).unwrap().count()
        };
        (count("fd"), count("task"))
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server(more: &[&str]) -> (Talker, String) {
    let mut server = Talker::start(&[&["--serve", "--bind", "127.0.0.1", "--port", "0"], more].concat());
    let port = server.wait_for("listening")["port"].to_string();
    (server, port)
}

fn client(port: &str, more: &[&str]) -> Output {
    offramp(&[&["--to", "127.0.0.1", "--port", port], more].concat()).output().unwrap()
}

const SHORT: [&str; 4] = ["--seconds", "0.2", "--warmup", "0.02"];

#[test]
fn a_killed_client_leaves_nothing_behind_and_the_server_serves_the_next() {
    let (mut server, port) = server(&[]);
    let before = server.holdings();
    let endless = ["--to", "127.0.0.1", "--port", &port, "--streams", "3", "--direction", "both", "--seconds", "600"];
    let mut client_to_kill = Talker::start(&endless);
    client_to_kill.wait_for("start");
    assert!(server.holdings() > before);
    client_to_kill.child.kill().unwrap();
    server.wait_for("lost");
    // The session reports its end before its thread has ended.
    while server.holdings() != before {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(client(&port, &SHORT).status.success());
    server.wait_for("served");
}

#[test]
fn the_events_of_a_run_come_one_per_line_with_the_report_last() {
    let (_server, port) = server(&[]);
    let output = client(&port, &[&SHORT[..], &["--json", "--interval", "0.05", "--direction", "both"]].concat());
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[1], names[2]), ("connected", "start", "interval"));
    assert_eq!(names[names.len() - 2..], ["end", "report"]);
    let report: offramp_testbed::traffic::Report = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(report.is_complete() && report.throughput_bps > 0.0);
    assert_eq!(report.congestion, "cubic");
}

#[test]
fn a_server_asked_for_one_test_ends_well_after_it() {
    let (mut server, port) = server(&["--once"]);
    assert!(client(&port, &[&SHORT[..], &["--rr"]].concat()).status.success());
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn calls_and_limited_streams_are_made_as_the_options_say() {
    let (_server, port) = server(&[]);
    let report_of = |more: &[&str]| -> offramp_testbed::traffic::Report {
        let output = client(&port, &[&SHORT[..], &["--json"], more].concat());
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(output.stdout.split(|&byte| byte == b'\n').rev().nth(1).unwrap()).unwrap()
    };
    let report = report_of(&["--rpc", "--reply-bytes", "2K", "--outstanding", "3", "--timer-usecs", "50000"]);
    assert_eq!(report.rpc.map(|rpc| rpc.client.bytes), Some(report.bytes));
    let report = report_of(&["--receive-window", "4K", "--cut-off"]);
    assert!(report.params.receive_window_bytes == 4096 && report.bytes > 0);
}

#[test]
fn requests_at_given_moments_are_timed_alone_and_beside_bulk_data() {
    let (_server, port) = server(&[]);
    let report = |more: &[&str]| -> offramp_testbed::traffic::Report {
        let output = client(&port, &[&SHORT[..], &["--json", "--busy-poll-usecs", "0"], more].concat());
        assert!(output.status.success(), "{more:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    };
    let bursts = report(&["--requests", "--burst", "4", "--every-usecs", "2000", "--response-bytes", "1K"]);
    let found = bursts.transactions.unwrap();
    assert!(found.latency.count > 0 && bursts.send.is_none());
    assert_eq!(found.client.bytes_total, found.client.units_total * (64 + 1024));
    let mixed = report(&["--mixed", "--per-second", "2000", "--rate", "80M", "--length", "8K"]);
    assert!(mixed.transactions.unwrap().latency.count > 0 && mixed.send.unwrap().bytes > 0);
    let text = client(&port, &[&SHORT[..], &["--mixed"]].concat()).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("TCP bulk data beside UDP requests") && text.contains("latency us: min"), "{text}");
}

#[test]
fn wrong_options_and_a_missing_server_exit_with_2_and_say_why() {
    let wrong: [(&[&str], &str); 12] = [
        (&["--to", "127.0.0.1", "--burst", "8", "--every-usecs", "100"], "--requests"),
        (&["--to", "127.0.0.1", "--requests", "--burst", "8"], "--every-usecs"),
        (&["--to", "127.0.0.1", "--requests", "--mixed"], "--mixed"),
        (&["--to", "127.0.0.1", "--requests", "--rate", "1M"], "--rate"),
        (&[], "--serve"),
        (&["--serve", "--streams", "2"], "--streams"),
        (&["--to", "127.0.0.1", "--gro"], "--udp"),
        (&["--to", "127.0.0.1", "--streams", "0"], "streams: 0"),
        (&["--to", "127.0.0.1", "--reply-bytes", "8K"], "--rpc"),
        (&["--to", "127.0.0.1", "--rpc", "--receive-window", "4K"], "--receive-window"),
        (&["--to", "127.0.0.1", "--rpc", "--outstanding", "0"], "outstanding calls: 0"),
        (&["--to", "127.0.0.1", "--port", "1"], "connection refused; start \"offramp ttcp --serve\" there"),
    ];
    for (args, expected) in wrong {
        let output = offramp(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}
