//! Tests of `offramp lab` from a user's view: its output, and its end after an error.

#![cfg(feature = "lab")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Interval of a test's polls.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of polls before a hang is assumed.
const HANG_LOOKS: usize = 500;

fn offramp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_offramp")).args(args).output().unwrap()
}

fn page(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("offramp-{}-{name}.html", std::process::id()))
}

/// Checks that the program fails before the measurement starts, with exit status 2 and one line that contains `text`.
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
fn a_run_that_is_stopped_keeps_what_it_has_finished() {
    let page = page("stopped");
    let args = ["lab", "--only", "tso-udp,all", "--repeats", "1", "--seconds", "0.05", "--json", "--html"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(args).arg(&page).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    // Wait for the progress line at the start of the second experiment.
    let mut progress = BufReader::new(run.stderr.take().unwrap()).lines();
    assert!(progress.any(|line| line.unwrap().contains("all")));
    send("TERM", &run.id().to_string());
    let text: String = progress.map(Result::unwrap).collect();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = report["experiments"].as_array().unwrap().iter().map(|found| &found["name"]).collect();
    assert_eq!(names, ["tso-udp"], "the one that stands first in the list");
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    std::fs::remove_file(&page).unwrap();
}

#[test]
fn the_experiments_are_listed_with_their_claims() {
    let output = offramp(&["lab", "--list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for name in ["lso ", "tx-checksum", "rx-checksum", "rsc", "jumbo", "lso-1g ", "lso-1g-duplex", "lso-transactions"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} in {text}");
    }
    // The last column of every line starts at the same position. Only the last line of the list, about --device, has no
    // columns.
    let listed: Vec<&str> = text.lines().filter(|line| !line.starts_with("with --device")).collect();
    let column = listed[0].find("What").or_else(|| listed[0].find("Which")).unwrap_or(0);
    assert!(column > 0 && listed.iter().all(|line| line.as_bytes()[column - 1] == b' '), "{text}");
}

#[test]
fn the_columns_of_the_list_are_aligned_for_the_longest_name() {
    let text = String::from_utf8(offramp(&["lab", "--list"]).stdout).unwrap();
    let start = |name: &str, question: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.find(question).unwrap()
    };
    let first = start("lso", "What is large send");
    assert_eq!(start("packet-memory-tcp", "What are card memory"), first);
    assert_eq!(start("order", "What does it cost TCP"), first);
    assert_eq!(start("rpc-size", "Which NFS reads"), first);
}

#[test]
fn a_run_begins_with_the_load_ends_with_the_answer_and_keeps_the_previous_page() {
    let page = page("twice");
    let name = page.to_str().unwrap();
    let args = ["lab", "--only", "tso-udp", "--repeats", "1", "--seconds", "0.05", "--html", name];
    let output = offramp(&args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("Other programs used "), "{text}");
    let (_, end) = text.split_once("What should I switch on here?\n").unwrap();
    assert!(end.contains("not decided") && end.contains("tso-udp") && end.contains(name), "{text}");
    assert!(!text.contains("published, and measured here") && !text.contains("previous page"), "{text}");
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(progress.contains("1/1 tso-udp, about "), "{progress}");

    let text = String::from_utf8(offramp(&[&args[..], &["--claims"]].concat()).stdout).unwrap();
    assert!(text.contains("linux-kernel mailing list, 2 September 2002\n"), "{text}");
    let previous = page.with_extension("previous.html");
    assert!(text.contains(&format!("the previous page: {}", previous.display())), "{text}");
    for page in [page, previous] {
        assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
        std::fs::remove_file(&page).unwrap();
    }
}

#[test]
fn a_group_runs_all_its_experiments_and_their_bounds_are_judged() {
    let page = page("moderation");
    let args = ["lab", "--only", "moderation", "--repeats", "2", "--seconds", "0.05", "--json", "--html"];
    let output = offramp(&[&args[..], &[page.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let experiments = report["experiments"].as_array().unwrap();
    let names: Vec<&str> = experiments.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["moderation-rpc", "moderation-bulk", "moderation-mixed", "moderation-bursts"]);
    for one in experiments {
        let variants = one["variants"].as_array().unwrap();
        assert_eq!(variants.len(), 7, "{}", one["name"]);
        for variant in variants {
            assert!(variant["interrupts_per_frame"].as_f64().unwrap() > 0.0, "{variant}");
            assert_eq!(variant["latency_p99_us"].is_null(), one["name"] == "moderation-bulk");
            assert!(variant["rtt_p50_us"].is_null(), "nobody asked for round trips");
        }
    }
    assert!(!experiments[0]["judgements"].as_array().unwrap().is_empty());
    assert!(std::fs::read_to_string(&page).unwrap().contains("class=\"scatter\""));
    std::fs::remove_file(page).unwrap();
}

#[test]
fn a_wrong_option_is_one_clear_line_and_exit_status_2() {
    refused(&["lab", "--only", "warp"], "no experiment \"warp\"; there are: lso,");
    refused(&["lab", "--only", "lso", "--mtu", "67", "--repeats", "1"], "mtu 67 is out of range; use 68 to");
    refused(&["lab", "--repeats", "0"], "0 is not in 1..=1000");
    refused(&["lab", "--device", "nosuchif0", "--peer", "127.0.0.1"], "nosuchif0");
    refused(&["lab", "--peer", "127.0.0.1"], "--device");
    refused(&["lab", "--warp"], "--warp");
    refused(&["lab", "--only", "lso", "--seconds", "0"], "nothing can be measured in no time");
    refused(&["lab", "--only", "lso", "--html", "/nowhere/lab.html"], "there is no directory /nowhere");
    refused(&["lab", "--only", "lso", "--html", "/"], "it is a directory");
    refused(&["lab", "--only", "lso", "--html", "/proc/lab.html"], "--html /proc/lab.html: it cannot be written");
    refused(&["lab", "--only", "lso", "--rate", "0"], "link rate of 0 bit/s is out of range; use 1000 to");
    refused(&["lab", "--only", "lso", "--rate", "9k", "--queues", "10"], "link rate of 900 bit/s is out of range");
}

#[test]
fn what_a_guest_needs_is_said_when_it_is_not_there() {
    refused(&["lab", "--port", "vhost-user", "--queues", "2"], "one queue pair");
    refused(&["lab", "--port", "vhost-user", "--threads", "per-direction"], "one thread serves");
    refused(&["lab", "--port", "vhost-user", "--only", "relay"], "no experiment \"relay\"; there are: lso,");
    refused(&["lab", "--port", "vhost-user", "--device", "eth0", "--peer", "127.0.0.1"], "--port");
    refused(&["lab", "--port", "vhost-user", "--guest", "uml", "--guest-accel", "kvm"], "--guest-accel is QEMU's");
    refused(&["guest-agent"], "runs only inside the guest");
    let output = Command::new(env!("CARGO_BIN_EXE_offramp"))
        .args(["lab", "--port", "vhost-user"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("install QEMU") || message.contains("x86-64"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    let mut without = Command::new(env!("CARGO_BIN_EXE_offramp"));
    without.args(["lab", "--port", "vhost-user", "--guest", "uml"]).env("PATH", "/nowhere");
    let message = String::from_utf8(without.output().unwrap().stderr).unwrap();
    assert!(message.contains("install User Mode Linux") || message.contains("x86-64"), "{message}");
}

/// Returns the arguments of a run with a guest. The guest's kernel is given by `OFFRAMP_GUEST_KERNEL`, or is the newest
/// kernel in `/boot`.
fn with_guest(args: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = ["lab", "--port", "vhost-user"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
    if let Ok(kernel) = std::env::var("OFFRAMP_GUEST_KERNEL") {
        all.extend(["--guest-kernel".to_owned(), kernel]);
    }
    all
}

/// Returns the payload bytes per frame sent by the hosts of a variant.
fn bytes_per_sent_frame(variant: &serde_json::Value) -> f64 {
    let sample = &variant["samples"][0];
    sample["bytes"].as_f64().unwrap() / sample["sent_frames"].as_f64().unwrap()
}

#[test]
#[ignore = "needs QEMU and a guest kernel"]
fn a_guest_with_large_send_puts_fewer_and_larger_frames_into_its_ring() {
    fewer_and_larger_frames("qemu", &["kvm", "tcg"]);
}

#[test]
#[ignore = "needs User Mode Linux"]
fn a_guest_that_is_a_program_does_so_too() {
    fewer_and_larger_frames("uml", &["uml"]);
}

fn fewer_and_larger_frames(guest: &str, accelerators: &[&str]) {
    let page = page(guest);
    let options = ["--guest", guest, "--only", "lso", "--repeats", "1", "--json", "--html", page.to_str().unwrap()];
    let args = with_guest(&options);
    let output = Command::new(env!("CARGO_BIN_EXE_offramp")).args(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&page).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let guest = &report["machine"]["guest"];
    assert!(guest["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{guest}");
    assert!(accelerators.contains(&guest["accelerator"].as_str().unwrap()), "{guest}");
    let variants = report["experiments"][0]["variants"].as_array().unwrap();
    for variant in variants {
        assert!(variant["throughput_bps"].as_f64().unwrap() > 0.0, "{variant}");
        assert!(variant["host_cpu_s_per_gb"].as_f64().unwrap() > 0.0, "{variant}");
        assert!(variant["guest_cpu_percent"].as_f64().unwrap() > 0.0, "{variant}");
    }
    let [off, on] = [0, 1].map(|nth| &variants[nth]);
    assert_eq!((&off["name"], &on["name"]), (&"off".into(), &"on".into()));
    // Without TSO, no frame is larger than the MTU. Acknowledgements without payload only lower the mean.
    assert!(bytes_per_sent_frame(off) < 1500.0, "{off}");
    assert!(bytes_per_sent_frame(on) > 2.0 * 1500.0, "{on}");
}

#[test]
#[ignore = "needs QEMU 10.2 and a guest kernel of Linux 6.8"]
fn a_guests_driver_sets_its_own_moderation_and_adapts_it() {
    let page = page("driver");
    let options = ["--guest", "qemu-generic", "--only", "moderation-bulk", "--repeats", "1", "--json", "--html"];
    let args = with_guest(&[&options[..], &[page.to_str().unwrap()]].concat());
    let output = Command::new(env!("CARGO_BIN_EXE_offramp")).args(&args).output().unwrap();
    // The run fails if DIM has not changed the coalescing.
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&page).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let variants = report["experiments"][0]["variants"].as_array().unwrap();
    let set: Vec<_> = variants.iter().filter(|one| one["name"].as_str().unwrap().starts_with("ethtool")).collect();
    assert_eq!(set.len(), 4, "{report}");
    assert_eq!(set[3]["name"], "ethtool: adaptive");
    assert!(variants.iter().all(|one| one["interrupts_per_frame"].as_f64().unwrap() > 0.0), "{report}");
}

/// Returns the guest processes among the children of `parent`.
fn guests_of(parent: u32) -> Vec<i32> {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let pids = std::fs::read_to_string(children).unwrap_or_default();
    let is_guest = |pid: &&str| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("qemu") || name.starts_with("unshare")
    };
    pids.split_whitespace().filter(is_guest).map(|pid| pid.parse().unwrap()).collect()
}

/// Returns true if a guest has booted. A booted guest has removed its boot file system.
fn has_booted(guest: i32) -> bool {
    let command = std::fs::read_to_string(format!("/proc/{guest}/cmdline")).unwrap_or_default();
    let of_qemu = command.split('\0').skip_while(|argument| *argument != "-initrd").nth(1);
    let file = of_qemu.or_else(|| command.split('\0').find_map(|argument| argument.strip_prefix("initrd=")));
    file.is_some_and(|file| !PathBuf::from(file).exists())
}

/// Starts a run that takes minutes. Returns the run and the process id of the booted guest.
fn long_run_with_guest(how: [&str; 2]) -> (Child, i32) {
    let args = with_guest(&["--only", "lso", "--seconds", "60", how[0], how[1]]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    let mut lab = command.args(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    loop {
        assert!(lab.try_wait().unwrap().is_none(), "it ended before it had a guest");
        if let Some(guest) = guests_of(lab.id()).into_iter().find(|guest| has_booted(*guest)) {
            return (lab, guest);
        }
        std::thread::sleep(LOOK);
    }
}

fn send(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), pid]).status().unwrap().success());
}

/// Returns the guest's child processes and their children.
fn family_of(guest: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{guest}/task/{guest}/children")).unwrap_or_default();
    let children: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    children.iter().copied().chain(children.iter().copied().flat_map(family_of)).collect()
}

fn waits_until_gone(guest: i32) -> bool {
    let mut looks = (0..HANG_LOOKS).map(|_| PathBuf::from(format!("/proc/{guest}/exe")).exists());
    looks.any(|is_there| {
        std::thread::sleep(LOOK);
        !is_there
    })
}

#[test]
#[ignore = "needs QEMU and a guest kernel"]
fn a_guest_that_is_killed_ends_the_run() {
    killed_guest_ends_the_run(EMULATED);
}

#[test]
#[ignore = "needs User Mode Linux"]
fn a_guest_that_is_a_program_and_is_killed_ends_the_run() {
    killed_guest_ends_the_run(AS_A_PROGRAM);
}

/// Options for an emulated guest, and for a guest that runs as a program (User Mode Linux).
const EMULATED: [&str; 2] = ["--guest-accel", "tcg"];
const AS_A_PROGRAM: [&str; 2] = ["--guest", "uml"];

fn killed_guest_ends_the_run(how: [&str; 2]) {
    let (lab, guest) = long_run_with_guest(how);
    send("KILL", &guest.to_string());
    let ended = lab.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    // The kill may happen while a message to the guest is in transit.
    let told = message.contains("the guest accepts no commands");
    assert!(told || message.contains("the guest ended (signal: 9"), "{message}");
}

#[test]
#[ignore = "needs QEMU and a guest kernel"]
fn a_run_that_is_stopped_or_killed_takes_its_guest_with_it() {
    takes_its_guest_with_it(EMULATED);
}

#[test]
#[ignore = "needs User Mode Linux"]
fn a_run_that_is_stopped_or_killed_takes_all_processes_of_its_guest_with_it() {
    takes_its_guest_with_it(AS_A_PROGRAM);
}

fn takes_its_guest_with_it(how: [&str; 2]) {
    for (signal, status) in [("INT", Some(130)), ("KILL", None)] {
        let (lab, guest) = long_run_with_guest(how);
        let others = family_of(guest);
        send(signal, &lab.id().to_string());
        let ended = lab.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), status, "{}", String::from_utf8_lossy(&ended.stderr));
        assert!(waits_until_gone(guest), "after SIG{signal}, the guest is still there");
        for other in others {
            assert!(waits_until_gone(other), "after SIG{signal}, process {other} of the guest is still there");
        }
    }
}
