//! Tests of `offramp model claims --live`: the lab's results next to the published and the modelled figures. The tests
//! need root, because the lab creates network namespaces.

#![cfg(feature = "lab")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn offramp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_offramp")).args(args).output().unwrap()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("offramp-model-live-{}-{name}", std::process::id()))
}

/// Writes a report of two short experiments, as printed by the lab.
fn measure(path: &Path) {
    let page = file("page.html");
    let args = ["lab", "--only", "lso-1g,tso-udp", "--repeats", "2", "--seconds", "0.05", "--json", "--html"];
    let output = offramp(&[&args[..], &[page.to_str().unwrap()]].concat());
    std::fs::remove_file(&page).ok();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(path, output.stdout).unwrap();
}

fn rows<'a>(table: &'a Value, id: &str) -> Vec<&'a Value> {
    table["rows"].as_array().unwrap().iter().filter(|row| row["id"] == id).collect()
}

#[test]
fn what_the_lab_measured_stands_beside_its_claims_and_nothing_beside_the_others() {
    let path = file("lab.json");
    measure(&path);
    let lab: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let output = offramp(&["model", "claims", "--json", "--live", path.to_str().unwrap()]);
    std::fs::remove_file(&path).ok();
    // The program exits with 1, because some rows miss their targets regardless of the measurement.
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(table["live_run"]["experiments"], serde_json::json!(["lso-1g", "tso-udp"]));
    assert_eq!(table["live_run"]["kernel"], lab["machine"]["kernel"]);
    for row in table["rows"].as_array().unwrap() {
        for field in ["id", "published", "modelled", "live", "error", "kind", "target", "ok", "assumption"] {
            assert!(row.get(field).is_some(), "{field} of {row}");
        }
        let is_measured = ["H2", "H4", "H5", "H6"].contains(&row["id"].as_str().unwrap());
        assert_eq!(row["live"].is_null(), !is_measured, "{row}");
    }
    let of_h2 = rows(&table, "H2");
    assert!(of_h2.len() > 1 && of_h2.iter().all(|row| row["live"] == of_h2[0]["live"]), "every part has it");
    let live = &of_h2[0]["live"][0];
    assert_eq!([&live["experiment"], &live["base"], &live["variant"]], ["lso-1g", "off", "on"]);
    let on = &lab["experiments"][0]["variants"][1];
    let cost = live["figures"].as_array().unwrap().iter().find(|of| of["metric"] == "host_cpu_s_per_gb").unwrap();
    assert_eq!((&cost["value"], &cost["unit"]), (&on["host_cpu_s_per_gb"], &Value::from("s/GB")));
    let verdict = &lab["experiments"][0]["verdict"];
    assert_eq!((&cost["ratio"], &cost["ci95"]), (&verdict["ratio"], &verdict["ci95"]));
}

#[test]
fn a_file_that_is_no_report_of_the_lab_is_refused_before_anything_is_computed() {
    let path = file("wrong.json");
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let output = offramp(&["model", "claims", "--live", path.to_str().unwrap()]);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("speed: 940").contains("not a lab report"));
    assert!(refused("{\"version\": 99}").contains("is version 99"));
    std::fs::remove_file(&path).ok();
    let output = offramp(&["model", "report", "--html", "claims.html", "--live", "/nowhere/lab.json"]);
    assert!(output.status.code() == Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
