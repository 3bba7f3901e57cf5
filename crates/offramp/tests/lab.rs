//! `offramp lab` as a user meets it: what it prints, and how it ends when something is wrong.

use std::path::PathBuf;
use std::process::{Command, Output};

fn offramp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_offramp")).args(args).output().unwrap()
}

fn page(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("offramp-{}-{name}.html", std::process::id()))
}

/// The run fails before anything begins: exit status 2 and one line that holds `text`.
fn refused(args: &[&str], text: &str) {
    let output = offramp(args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert!(message.contains(text), "{args:?}: {message}");
}

#[test]
fn a_short_run_prints_one_object_with_hosts_and_adapters_apart_and_writes_a_page() {
    let page = page("short");
    let args = ["lab", "--only", "lso", "--repeats", "2", "--seconds", "0.1", "--json", "--html"];
    let output = offramp(&[&args[..], &[page.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], 1);
    let lso = &report["experiments"][0];
    assert_eq!(lso["name"], "lso");
    for variant in lso["variants"].as_array().unwrap() {
        assert!(variant["throughput_bps"].as_f64().unwrap() > 0.0, "{variant}");
        assert!(variant["adapter_cpu_s_per_gb"].as_f64().unwrap() > 0.0, "{variant}");
        assert!(variant["host_cpu_s_per_gb"].as_f64().is_some(), "{variant}");
        assert!(variant["wire_frames"].as_f64().unwrap() > 0.0, "{variant}");
        assert_eq!(variant["samples"].as_array().unwrap().len(), 2);
    }
    assert_eq!(lso["verdict"]["metric"], "throughput_bps");
    let html = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(html.contains("<svg") && !html.contains("http-equiv") && !html.contains("src=\"http"));
}

#[test]
fn the_experiments_are_listed_with_their_claims() {
    let output = offramp(&["lab", "--list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for name in ["lso ", "tx-checksum", "rx-checksum", "rsc", "jumbo", "lso-1g ", "lso-1g-duplex", "lso-transactions"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} in {text}");
    }
}

#[test]
fn a_wrong_option_is_one_clear_line_and_exit_status_2() {
    refused(&["lab", "--only", "warp"], "no experiment \"warp\"; there are: lso,");
    refused(&["lab", "--only", "lso", "--mtu", "67", "--repeats", "1"], "mtu 67 is out of range; use 68 to");
    refused(&["lab", "--repeats", "0"], "0 is not in 1..=1000");
    refused(&["lab", "--device", "nosuchif0", "--peer", "127.0.0.1"], "nosuchif0");
    refused(&["lab", "--peer", "127.0.0.1"], "--device");
    refused(&["lab", "--warp"], "--warp");
}
