//! Comparison with scapy's ESP, which uses OpenSSL's AEADs. scapy opens offramp's packets, and offramp opens scapy's
//! packets.

use crate::bench::{clear, esp_of, every_config, open, pair, seal};
use crate::support::packet::Packet;
use offramp_offload::esp::{Mode, SaConfig};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../offramp-offload/tests/esp/scapy_judge.py");
/// Python interpreters to try. Debian's packages work only with Debian's interpreter, and another interpreter can
/// precede Debian's interpreter in `PATH`.
const INTERPRETERS: [&str; 2] = ["/usr/bin/python3", "python3"];

/// Returns an interpreter with scapy. Without such an interpreter, the test is skipped, except in CI.
fn interpreter() -> Option<&'static str> {
    let has_scapy = |python: &&str| {
        let probe = Command::new(python).args(["-c", "import scapy.layers.ipsec, cryptography"]).output();
        probe.is_ok_and(|output| output.status.success())
    };
    let found = INTERPRETERS.into_iter().find(has_scapy);
    if found.is_none() {
        let missing = "scapy is missing (Debian: apt install python3-scapy python3-cryptography)";
        assert!(std::env::var_os("CI").is_none(), "{missing}, and CI skips nothing");
        eprintln!("skipped: {missing}");
    }
    found
}

fn ask(python: &str, cases: &Value) -> Vec<Value> {
    let mut judge = Command::new(python)
        .arg(SCRIPT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {python}: {error}"));
    judge.stdin.take().unwrap().write_all(cases.to_string().as_bytes()).unwrap();
    let output = judge.wait_with_output().unwrap();
    assert!(output.status.success(), "the judge failed: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    crate::support::hex(bytes).replace(' ', "")
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Returns the bytes of a test key as hexadecimal digits, because a `SecretKey` does not reveal the bytes of the key.
fn key_hex(len: usize, first: u8) -> String {
    hex(&(0..len as u8).map(|n| first.wrapping_add(n.wrapping_mul(7))).collect::<Vec<_>>())
}

struct Case {
    config: SaConfig,
    clear: Vec<u8>,
    json: Value,
}

fn case(config: SaConfig, clear: Vec<u8>) -> Case {
    let (mut sender, _) = pair(&config);
    let sealed = seal(&mut sender, &clear);
    let tunnel = match &config.mode {
        Mode::Transport => None,
        Mode::Tunnel(tunnel) => Some([tunnel.source.to_string(), tunnel.destination.to_string()]),
    };
    let payload_at = if tunnel.is_some() { 14 } else { crate::bench::layout(&clear).transport_start };
    let json = json!({
        "suite": config.suite.name(),
        "spi": config.spi,
        "encryption_key": key_hex(config.suite.encryption_key_len(), 3),
        "integrity_key": key_hex(config.suite.integrity_key_len(), 101),
        "tunnel": tunnel,
        "udp": config.udp.is_some(),
        "esn": config.esn,
        "sequence": config.sequence + 1,
        "clear": hex(&clear[14..]),
        "sealed": hex(&sealed[14..]),
        "esp_at": esp_of(&sealed).1.esp_at - 14,
        "payload": hex(&clear[payload_at..]),
    });
    Case { config, clear, json }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, mut config) in every_config().into_iter().enumerate() {
        config.sequence = if config.esn { 0x7_0000_0123 } else { 0x123 };
        let is_ipv6_wrapped = matches!(&config.mode, Mode::Tunnel(tunnel) if tunnel.source.is_ipv6());
        for is_ipv6 in [false, true] {
            // scapy does not support ESP in UDP over IPv6.
            if config.udp.is_some() && (is_ipv6_wrapped || config.mode == Mode::Transport && is_ipv6) {
                continue;
            }
            let frame = if is_ipv6 { Packet { is_ipv6, ..Packet::udp(n % 23) }.build() } else { clear(n % 19, false) };
            cases.push(case(config.clone(), frame));
        }
    }
    cases
}

#[test]
fn scapy_opens_what_is_sealed_here_and_seals_what_is_opened_here() {
    let Some(python) = interpreter() else { return };
    let cases = cases();
    let answers = ask(python, &cases.iter().map(|case| case.json.clone()).collect());
    assert_eq!(answers.len(), cases.len());
    let (mut wrong, mut opened_here) = (Vec::new(), 0);
    for (case, answer) in cases.iter().zip(&answers) {
        if answer["wrong"] != "" {
            wrong.push(format!("{} {}", answer["wrong"], case.json));
        }
        let Some(sealed) = answer["sealed"].as_str() else { continue };
        let sealed = bytes(sealed);
        let ethertype: [u8; 2] = if sealed[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
        let frame = [&case.clear[..12], &ethertype, &sealed].concat();
        if let Err(malformed) = crate::support::layout(&frame) {
            wrong.push(format!("scapy's packet is malformed ({malformed}): {} {}", hex(&frame), case.json));
            continue;
        }
        let (_, mut receiver) = pair(&case.config);
        match open(&mut receiver, &frame) {
            Ok(clear) if clear == case.clear => opened_here += 1,
            other => wrong.push(format!("scapy's packet gives {other:?}: {}", case.json)),
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("{} packets judged, {opened_here} of scapy's opened", cases.len());
    assert!(opened_here > cases.len() / 2);
}
