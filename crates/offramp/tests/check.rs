//! Tests of `offramp check` from a user's view: verdicts, files, exit status, and errors.

#![cfg(feature = "lab")]

#[allow(dead_code, reason = "shared with the tests of the daemon")]
#[path = "up/bed.rs"]
mod bed;
#[path = "../../offramp-check/tests/common/traffic.rs"]
mod traffic;

use bed::{ADDRESSES, Bed, Directory, INTERFACE, is_root_of_the_machine, offramp};
use offramp_ports::sys::ethtool::{Features, set_features};
use offramp_ports::sys::{NetNs, confine, link};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use traffic::{Traffic, runs};

/// Names of the two ends of a test's veth pair.
const NAMES: [&str; 2] = ["cva", "cvb"];

/// Id of the user nobody, an ordinary user on every Linux.
const NOBODY: u32 = 65534;

/// A veth pair between two namespaces.
struct Pair {
    namespaces: [NetNs; 2],
    directory: Directory,
}

impl Pair {
    fn new(name: &str) -> Self {
        let namespaces = [(); 2].map(|()| NetNs::new().expect("this test needs network namespaces; run as root"));
        namespaces[0]
            .run(|| {
                link::create_veth(NAMES[0], NAMES[1]).unwrap();
                link::move_to(NAMES[1], &namespaces[1]).unwrap();
            })
            .unwrap();
        for (namespace, name) in namespaces.iter().zip(NAMES) {
            namespace.run(|| link::set_up(name).unwrap()).unwrap();
        }
        Self { namespaces, directory: Directory::new(&format!("check-{name}")) }
    }

    /// Returns the name of an end on the command line.
    fn end(&self, side: usize) -> String {
        name_in(&self.namespaces[side], NAMES[side])
    }

    fn settings(&self) -> [Features; 2] {
        [0, 1].map(|side| self.namespaces[side].run(|| Features::read(NAMES[side]).unwrap()).unwrap())
    }

    fn state_dir(&self) -> String {
        self.directory.path("state").display().to_string()
    }

    fn file(&self, name: &str) -> String {
        self.directory.path(name).display().to_string()
    }

    fn check(&self, more: &[&str]) -> Output {
        let (a, b, state_dir) = (self.end(0), self.end(1), self.state_dir());
        offramp(&[&["check", "--pair", &a, &b, "--state-dir", &state_dir], more].concat())
    }
}

/// Returns the name, for the command line, of an interface in a namespace that only a descriptor of this process keeps.
fn name_in(namespace: &NetNs, interface: &str) -> String {
    format!("/proc/{}/fd/{}/{interface}", std::process::id(), namespace.as_raw_fd())
}

fn refused(output: &Output, text: &str) {
    bed::refused(output, &[text]);
}

fn verdicts(report: &Value) -> Vec<(&str, &str)> {
    let text = |row: &'_ Value, key: &str| row[key].as_str().unwrap().to_owned().leak() as &str;
    report["rows"].as_array().unwrap().iter().map(|row| (text(row, "offload"), text(row, "verdict"))).collect()
}

#[test]
fn a_veth_pair_is_right_in_text_json_and_files_and_its_settings_are_back() {
    let pair = Pair::new("right");
    let before = pair.settings();
    let (html, junit, pcapng) = (pair.file("page.html"), pair.file("suite.xml"), pair.file("wrong.pcapng"));
    let ktap = pair.file("results.ktap");
    let files = ["--html", &html, "--junit", &junit, "--pcapng", &pcapng, "--ktap", &ktap];
    let output = pair.check(&[&["--quick", "--json"][..], &files].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["version"], 1);
    assert!(verdicts(&report).contains(&("tso4", "right")) && verdicts(&report).contains(&("rx-lro", "not-offered")));
    assert!(fs::read_to_string(&html).unwrap().contains("Nothing is wrong."));
    assert!(fs::read_to_string(&junit).unwrap().contains("failures=\"0\""));
    assert!(fs::metadata(&pcapng).unwrap().len() > 0);
    let results = fs::read_to_string(&ktap).unwrap();
    let rows = report["rows"].as_array().unwrap().len();
    assert!(results.starts_with(&format!("KTAP version 1\n1..{rows}\n# ")), "{results}");
    assert!(!results.contains("not ok"), "{results}");
    let words = pair.check(&["--quick", "--json", "--only", "tx-tcp-segmentation,rx-checksumming"]);
    let report: Value = serde_json::from_slice(&words.stdout).unwrap();
    let names: Vec<_> = verdicts(&report).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["tso4", "rx-checksum", "tso4", "rx-checksum"]);
    refused(&pair.check(&["--only", "tsoo4"]), "no offload \"tsoo4\"; did you mean \"tso4\"?");
    let only = pair.check(&["--quick", "--only", "uso4,mtu"]);
    let text = String::from_utf8_lossy(&only.stdout);
    assert_eq!((only.status.code(), text.matches(" right ").count()), (Some(0), 4), "{text}");
    assert_eq!(pair.settings(), before);
}

#[test]
fn what_a_right_offload_is_worth_is_measured_if_asked_for() {
    let pair = Pair::new("worth");
    let addresses = ["10.61.9.1", "10.61.9.2"];
    for (side, address) in addresses.iter().enumerate() {
        pair.namespaces[side].run(|| link::add_address(NAMES[side], address.parse().unwrap(), 24).unwrap()).unwrap();
    }
    let before = pair.settings();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_offramp"));
    serve.args(["ttcp", "--serve", "--json", "--bind", addresses[1]]).stdin(Stdio::null()).stdout(Stdio::piped());
    // The kernel ends the server with this test, even if the test fails.
    confine(&mut serve, Some(&pair.namespaces[1]), None).unwrap();
    let mut server = serve.spawn().unwrap();
    let mut listening = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut listening).unwrap();
    let output = pair.check(&["--quick", "--json", "--only", "tso4,rx-gro,rx-lro", "--worth", addresses[1]]);
    server.kill().unwrap();
    server.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    let worth = report["worth"].as_array().unwrap();
    let of = |key: &str| worth.iter().map(|worth| worth[key].clone()).collect::<Vec<_>>();
    assert_eq!(
        of("offloads"),
        [Value::from(vec!["tso4"]), Value::from(vec!["rx-gro"])],
        "what is not offered is not measured"
    );
    assert!(of("interface").iter().all(|interface| *interface == pair.end(0)), "{text}");
    assert!(of("found").iter().all(|found| found.as_str().unwrap().contains("× processor time per GB")), "{text}");
    assert_eq!(pair.settings(), before);
    // Without a server for `--worth`, the check ends with an error, but the verdicts are still printed.
    let alone = pair.check(&["--quick", "--only", "tso4", "--worth", addresses[1]]);
    refused(&alone, "check: --worth: ");
    assert!(String::from_utf8_lossy(&alone.stdout).contains("Nothing is wrong."));
    assert_eq!(pair.settings(), before);
}

#[test]
fn two_taps_of_a_daemon_are_right() {
    let bed = Bed::start("check", "");
    let directory = Directory::new("check-daemon");
    let state_dir = directory.path("state").display().to_string();
    let ends = [0, 1].map(|side| name_in(bed.host(side), INTERFACE));
    let output = offramp(&["check", "--pair", &ends[0], &ends[1], "--quick", "--state-dir", &state_dir]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn two_ports_of_a_daemon_are_right_and_its_features_are_as_they_were() {
    let bed = Bed::start("check-self", "");
    let directory = Directory::new("check-self-state");
    let (state_dir, control) = (directory.path("state").display().to_string(), bed.control().display().to_string());
    let check = |more: &[&str]| {
        offramp(&[&["check", "--quick", "--json", "--state-dir", &state_dir, "--control", &control], more].concat())
    };
    offramp(&["set", "--control", &control, "b", "rsc-udp", "off"]);
    let before =
        bed.show()["ports"].as_array().unwrap().iter().map(|port| port["features"].clone()).collect::<Vec<_>>();
    let output = check(&["--self"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    let of = |offload: &str| {
        let rows = report["rows"].as_array().unwrap().iter().filter(move |row| row["offload"] == offload);
        rows.map(|row| (row["interface"].as_str().unwrap(), row["verdict"].as_str().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(of("tso4"), [("a", "right"), ("b", "right")]);
    assert_eq!(of("rx-checksum"), [("b", "right"), ("a", "right")]);
    assert_eq!(of("rx-gro-hw"), [("b", "right"), ("a", "right")]);
    assert_eq!(of("rx-udp-gro"), [("b", "not-offered"), ("a", "right")]);
    let after = bed.show()["ports"].as_array().unwrap().iter().map(|port| port["features"].clone()).collect::<Vec<_>>();
    assert_eq!(after, before);
    // The daemon knows that its user, not a driver, has switched a feature off.
    offramp(&["set", "--control", &control, "a", "tso", "off"]);
    let output = check(&["--self", "--only", "tso4,rx-udp-gro"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said: Vec<_> =
        report["rows"].as_array().unwrap().iter().filter_map(|row| row["off_by_user"].as_str()).collect();
    assert_eq!(
        said,
        [
            "the user switched it off at port a; offramp set a tso4 on",
            "the user switched it off at port b; offramp set b rsc-udp on"
        ]
    );
    refused(&check(&["--self", "a", "c"]), "no port \"c\" with a TAP; there are: a, b");
    refused(&check(&["--self", "a"]), "name two ports after --self, such as: a b");
}

#[test]
fn two_ports_of_a_daemon_are_never_wrong_beside_other_traffic() {
    for mtu in [1500, 9000] {
        let port = format!("mtu = {mtu}");
        let bed = Bed::with_ports(&format!("check-never-{mtu}"), "", &port, &port, 1);
        let directory = Directory::new(&format!("check-never-state-{mtu}"));
        let (state_dir, control) = (directory.path("state").display().to_string(), bed.control().display().to_string());
        let traffic = Traffic::start(bed.host(0), ADDRESSES);
        for seed in (0..runs()).map(|seed| seed.to_string()) {
            let before = traffic.sent();
            let places = ["--state-dir", &state_dir, "--control", &control];
            let output = offramp(&[&["check", "--self", "--quick", "--seed", &seed], &places[..]].concat());
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "seed {seed}: {text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains(&format!("MTU {mtu}")), "{text}");
            assert!(traffic.sent() > before, "the other traffic stands still");
        }
    }
}

#[test]
fn offloads_behind_access_ports_are_right_and_the_rows_about_tags_are_not_tested() {
    // IEEE 802.1Q 8.6.2: a port for only untagged frames drops tagged frames.
    let mut bed = Bed::unstarted("check-access", "");
    let cables = fs::read_to_string(bed.file()).unwrap();
    let switched = cables.replace("cable = \"b\"", "switch = \"lan\"").replace("cable = \"a\"", "switch = \"lan\"");
    let access = switched.replace("# changes of ", "vlan = 10\n# changes of ") + "[[switch]]\nname = \"lan\"\n";
    fs::write(bed.file(), access).unwrap();
    bed.start_again();
    let directory = Directory::new("check-access-state");
    let state_dir = directory.path("state").display().to_string();
    let ends = [0, 1].map(|side| name_in(bed.host(side), INTERFACE));
    let check = |only: &str| {
        let options = ["--quick", "--state-dir", &state_dir, "--only", only];
        let output = offramp(&[&["check", "--pair", &ends[0], &ends[1]], &options[..]].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (status, text) = check("tx-checksum,tso4");
    assert_eq!((status, text.matches(" right ").count()), (Some(0), 4), "{text}");
    assert!(text.contains("; not tested: the path drops tagged frames"), "{text}");
    assert!(text.contains("Nothing that the path carries is wrong."), "{text}");
    let (status, text) = check("tso4,tx-vlan");
    assert_eq!((status, text.matches("not tested     the path drops tagged frames").count()), (Some(2), 2), "{text}");
    assert!(!text.contains("WRONG") && !text.contains("Nothing "), "{text}");
}

#[test]
fn more_loss_than_permitted_ends_with_status_1() {
    let pair = Pair::new("loss");
    let lossless = pair.check(&["--quick", "--only", "mtu", "--fail-on-loss", "0"]);
    let text = String::from_utf8_lossy(&lossless.stdout);
    assert_eq!(lossless.status.code(), Some(0), "{text}");
    assert!(text.contains(", no loss in 10 cases)"), "{text}");
    let refused = pair.check(&["--fail-on-loss", "101"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not a number from 0 to 100"));
}

#[test]
fn the_action_checks_a_pair_and_leaves_its_files() {
    let action = include_str!("../../../action.yml");
    let (_, step) = action.split_once("- name: Check\n").unwrap();
    let (_, script) = step.split_once("run: |\n").unwrap();
    let (script, _) = script.split_once("    - name: ").unwrap();
    let pair = Pair::new("action");
    let (place, program) = (pair.file("."), pair.file("offramp-check/offramp"));
    fs::create_dir_all(pair.file("offramp-check")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_offramp"), program).unwrap();
    // GitHub runs `shell: bash` with these options.
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]).current_dir(place);
    bash.env("PAIR", format!("{} {}", pair.end(0), pair.end(1))).env("PORTS", "");
    let status = |options: &str, bash: &mut Command| {
        let options = format!("{options} --state-dir {}", pair.state_dir());
        bash.env("OPTIONS", options).output().unwrap().status.code()
    };
    assert_eq!(status("--quick --only mtu", &mut bash), Some(0));
    for file in ["index.html", "junit.xml", "results.ktap", "wrong.pcapng", "check.txt"] {
        assert!(fs::metadata(pair.file(&format!("offramp-check/{file}"))).unwrap().len() > 0, "{file}");
    }
    assert_eq!(status("--only nothing", &mut bash), Some(2), "the step fails with the check");
}

#[test]
fn an_adapter_that_marks_bad_frames_as_good_ends_with_status_1() {
    let mut bed = Bed::unstarted("check-bad", "");
    let text = fs::read_to_string(bed.file()).unwrap();
    let faults = "faults = { verdict = \"bad-is-good\", verdict_one_in = 2 }\n# changes of b";
    fs::write(bed.file(), format!("faults = true\n{}", text.replace("# changes of b", faults))).unwrap();
    bed.start_again();
    let directory = Directory::new("check-bad-state");
    let state_dir = directory.path("state").display().to_string();
    let ends = [0, 1].map(|side| name_in(bed.host(side), INTERFACE));
    let only = ["--quick", "--json", "--only", "path", "--state-dir", &state_dir];
    let output = offramp(&[&["check", "--pair", &ends[0], &ends[1]], &only[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["fault"], &rows[0]["blame"]), (&"bad-marked-good".into(), &"path".into()), "{text}");
    assert_eq!(rows[1]["verdict"], "right", "{text}");
}

#[test]
fn what_cannot_be_checked_is_refused_in_one_line_and_nothing_is_changed() {
    let pair = Pair::new("refused");
    let before = pair.settings();
    let (a, b, state_dir) = (pair.end(0), pair.end(1), pair.state_dir());
    let check = |one: &str, other: &str| offramp(&["check", "--pair", one, other, "--state-dir", &state_dir]);
    refused(&check(&a, &a), "is named twice");
    refused(&check(&a, "nowhere/cvb"), "network namespace /run/netns/nowhere");
    refused(&check(&a, &b.replace("cvb", "none")), "interface \"none\": not found");
    refused(
        &pair.check(&["--only", "tso5"]),
        "no offload \"tso5\"; did you mean \"tso4\"? there are: path, mtu, tx-checksum",
    );
    pair.namespaces[1].run(|| link::create_veth("other", "peer").unwrap()).unwrap();
    let other = b.replace("cvb", "other");
    refused(&check(&a, &other), "is down or has no carrier");
    let both_up = || ["other", "peer"].map(|name| link::set_up(name).unwrap());
    pair.namespaces[1].run(both_up).unwrap();
    refused(&check(&a, &other), "with every offload off; check that both are ends of one path");
    assert_eq!(pair.settings(), before);
    assert!(!Path::new(&state_dir).exists() || fs::read_dir(&state_dir).unwrap().next().is_none());
}

#[test]
fn a_check_by_a_plain_user_names_the_missing_rights_and_the_remedy() {
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::unstarted("check-plain", "");
    let mut check = Command::new(bed.program_for_all());
    check.args(["check", "--quick", "--pair", "lo", "/proc/self/ns/net/lo"]).uid(NOBODY).gid(NOBODY);
    refused(
        &check.output().unwrap(),
        "Operation not permitted (os error 1); run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN",
    );
}

#[test]
fn a_check_by_root_in_a_user_namespace_keeps_its_settings_in_the_home_directory() {
    if Command::new("ip").arg("-V").output().is_err() {
        println!("skipped: ip makes the interfaces");
        return;
    }
    let home = Directory::new("check-home");
    let script = "ip link add cva type veth peer name cvb && ip link set cva up && ip link set cvb up && \
                  exec \"$0\" check --quick --only path --pair cva cvb";
    let mut check = Command::new("unshare");
    check.args(["--user", "--map-root-user", "--net", "sh", "-c", script, env!("CARGO_BIN_EXE_offramp")]);
    let output = check.env_remove("XDG_STATE_HOME").env("HOME", home.path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(home.path(".local/state/offramp").is_dir());
}

#[test]
fn the_list_explains_each_name() {
    let output = offramp(&["check", "--list"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<_> = text.lines().map(|line| line.split_once("  ").unwrap_or_else(|| panic!("{line}"))).collect();
    assert!(rows.len() > 15, "{text}");
    for (name, about) in rows {
        assert!(about.split_whitespace().count() > 3, "{name}: {about}");
    }
}

#[test]
fn a_check_that_was_killed_is_put_back_by_the_next_one() {
    let pair = Pair::new("killed");
    let off = || set_features(NAMES[1], &[("rx-gro", false)]).unwrap();
    pair.namespaces[1].run(off).unwrap();
    let before = pair.settings();
    let mut child = Command::new(env!("CARGO_BIN_EXE_offramp"))
        .args(["check", "--pair", &pair.end(0), &pair.end(1), "--state-dir", &pair.state_dir()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while pair.settings() == before {
        assert!(begun.elapsed() < Duration::from_mins(1), "the check never switched anything");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(pair.settings(), before, "nobody has put anything back");
    let next = pair.check(&["--quick", "--only", "mtu"]);
    let message = String::from_utf8_lossy(&next.stderr);
    assert_eq!(next.status.code(), Some(0), "{message}");
    assert!(message.contains("all settings restored as process"), "{message}");
    assert_eq!(pair.settings(), before);
}

#[test]
#[ignore = "needs QEMU and a guest kernel"]
fn nothing_is_wrong_in_a_guest() {
    for path in ["veth", "virtio-net"] {
        let kernel = std::env::var("OFFRAMP_GUEST_KERNEL").expect("OFFRAMP_GUEST_KERNEL names a kernel");
        let directory = Directory::new(&format!("check-guest-{path}"));
        let state_dir = directory.path("state").display().to_string();
        let guest = ["check", "--guest-kernel", &kernel, "--guest-path", path, "--state-dir", &state_dir];
        let output = offramp(&[&guest[..], &["--quick", "--json"]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{message}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let right =
            |offload: &str| rows.iter().filter(|row| row["offload"] == offload && row["verdict"] == "right").count();
        assert_eq!(["path", "tx-checksum"].map(right), [2; 2], "{report}");
        // QEMU turns off its TAP's super-frames together with the guest's receive features.
        let ways = if path == "veth" { 2 } else { 1 };
        assert!(["tso4", "tso6"].into_iter().all(|offload| right(offload) >= ways), "{report}");
        let ends = report["ends"].as_array().unwrap();
        assert!(ends.iter().any(|end| end["driver"] == if path == "veth" { "veth" } else { "virtio_net" }), "{ends:?}");
    }
}

#[test]
#[ignore = "needs QEMU and a guest kernel"]
fn a_guest_receives_frames_on_the_queues_that_its_card_says() {
    let kernel = std::env::var("OFFRAMP_GUEST_KERNEL").expect("OFFRAMP_GUEST_KERNEL names a kernel");
    let directory = Directory::new("check-guest-rss");
    let state_dir = directory.path("state").display().to_string();
    let guest = ["check", "--guest-kernel", &kernel, "--guest-path", "virtio-net-rss", "--state-dir", &state_dir];
    let output = offramp(&[&guest[..], &["--quick", "--json", "--only", "rss"]].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    let found = rows.map(|row| (row["to"] == "tap0", row["verdict"].as_str().unwrap(), row["cases"].as_u64().unwrap()));
    assert_eq!(found.collect::<Vec<_>>(), [(true, "not-offered", 0), (false, "right", 256)], "{report}");
}

#[test]
fn a_guest_that_cannot_be_booted_is_refused() {
    let output = offramp(&["check", "--guest-kernel", "/dev/null"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.starts_with("check: ") && message.lines().count() == 1, "{message}");
    let agent = offramp(&["check-guest"]);
    let message = String::from_utf8_lossy(&agent.stderr);
    assert!(message.contains("runs only inside the guest"), "{message}");
}
