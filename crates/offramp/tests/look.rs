//! Tests of `offramp show` and `offramp monitor`: the overview, switches and their stations, states, and the schema.

#[allow(dead_code, reason = "shared with other tests of the daemon")]
#[path = "up/bed.rs"]
mod bed;
#[path = "look/schema.rs"]
mod schema;

use bed::{ADDRESSES, Bed, on_switch, refused};
use nix::sys::signal::Signal;
use offramp_daemon::schema::STATIONS_MAX;
use offramp_testkit::{Guest, VnetHeader, features};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const BROADCAST: [u8; 6] = [0xff; 6];
const LLDP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
const UNKNOWN: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// Stations of a large table: more than an answer may have.
const STATIONS: u32 = 20_000;

/// Starts a daemon with two TAPs and a guest on the switch "lan". The guest's port is named "guest", and `guest` are
/// further keys of this port. Returns the daemon and the guest's socket.
fn start(name: &str, guest: &str) -> (Bed, PathBuf) {
    let mut bed = Bed::unstarted(name, "");
    let socket = bed.file().with_file_name("guest.sock");
    let port = format!(
        "[[port]]\nname = \"guest\"\nhost.vhost_user = \"{}\"\nwire.switch = \"lan\"\n{guest}",
        socket.display()
    );
    bed.rewrite(|text| text.to_owned() + &port);
    bed.rewrite(on_switch);
    bed.start_again();
    (bed, socket)
}

fn shown(bed: &Bed, args: &[&str]) -> String {
    let output = bed.run(&[&["show"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn shown_json(bed: &Bed, args: &[&str]) -> Value {
    serde_json::from_str(&shown(bed, &[args, &["--json"]].concat())).unwrap()
}

/// Returns a frame of a protocol that nobody answers.
fn frame(source: u8, destination: [u8; 6]) -> Vec<u8> {
    [&destination[..], &[2, 0, 0, 0, 1, source], &[0x88, 0xb5], &[source; 46]].concat()
}

fn send(guest: &mut Guest, frame: &[u8]) {
    guest.tx(0).send(&VnetHeader::default(), &[frame]);
    guest.tx(0).drain(PATIENCE);
}

#[test]
fn a_switch_shows_its_ports_stations_floods_and_reserved_frames() {
    let (bed, socket) = start("stations", "vlan = 7\nmac_addresses = [\"02:00:00:00:01:01\", \"02:00:00:00:01:02\"]\n");
    let mut guest = Guest::builder().connect(&socket);
    // The hosts of the TAPs are in no VLAN, and ignore the guest's frames. The test checks the count of reserved
    // frames, and the guest's addresses.
    send(&mut guest, &frame(1, LLDP));
    send(&mut guest, &frame(1, BROADCAST));
    let lan = || shown_json(&bed, &["lan"])["switches"][0].clone();
    bed.until(|| lan()["stations"].as_array().unwrap().iter().any(|station| station["vlan"] == 7));
    let (lan, text) = (lan(), shown(&bed, &["lan"]));
    assert_eq!(lan["ports"], json!(["a", "b", "guest"]));
    let stations = lan["stations"].as_array().unwrap();
    let of = |mac: &str| stations.iter().find(|station| station["mac"] == mac).unwrap();
    let learned = of("02:00:00:00:01:01");
    assert_eq!((&learned["port"], &learned["vlan"]), (&json!("guest"), &json!(7)));
    assert!(learned["age_s"].as_u64().unwrap() < 300, "{learned}");
    let silent = of("02:00:00:00:01:02");
    assert_eq!((&silent["port"], &silent["age_s"]), (&json!("guest"), &Value::Null));
    let lldp = json!({"address": "01:80:c2:00:00:0e", "forwarded": false, "frames": 1});
    assert!(lan["reserved"].as_array().unwrap().contains(&lldp), "{lan}");
    for words in ["02:00:00:00:01:01  7     guest", "guest  bound", "(LLDP): 1 lost", "flooded: "] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let all = shown_json(&bed, &[]);
    assert_eq!(all["switches"][0]["stations"], Value::Null, "a list of stations needs the switch's name");
    assert!(all["switches"][0]["stations_known"].as_u64().unwrap() >= 1, "{all}");
}

#[test]
fn listing_a_large_table_loses_no_frame_and_the_list_is_bounded() {
    let mut bed = Bed::unstarted("table", "");
    let socket = bed.file().with_file_name("guest.sock");
    let port =
        format!("[[port]]\nname = \"guest\"\nhost.vhost_user = \"{}\"\nwire.switch = \"lan\"\n", socket.display());
    bed.rewrite(|text| on_switch(&(text.to_owned() + &port)) + "mac_entries_max = 131072\n");
    bed.start_again();
    let mut guest = Guest::builder().connect(&socket);
    for n in 0..STATIONS {
        let [_, b, c, d] = n.to_be_bytes();
        // The destination is one of the guest's own addresses, so the switch sends the frames to no port.
        let frame = [&[2, 0, 7, 0, 0, 0], &[2, 0, 7, b, c, d][..], &[0x88, 0xb5], &[0; 46]].concat();
        guest.tx(0).send(&VnetHeader::default(), &[&frame]);
        if n % 64 == 63 {
            guest.tx(0).drain(PATIENCE);
        }
    }
    guest.tx(0).drain(PATIENCE);
    let [sender, receiver] = [0, 1].map(|side| bed.host(side).run(|| UdpSocket::bind((ADDRESSES[side], 0)).unwrap()));
    let (sender, receiver) = (sender.unwrap(), receiver.unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let (to, is_over) = (receiver.local_addr().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let carry = scope.spawn(|| {
            for round in 0u32.. {
                for n in 0..32 {
                    sender.send_to(&(32 * round + n).to_be_bytes(), to).unwrap();
                }
                for n in 0..32 {
                    let mut bytes = [0; 4];
                    assert_eq!(receiver.recv(&mut bytes).expect("a frame was lost"), 4);
                    assert_eq!(u32::from_be_bytes(bytes), 32 * round + n);
                }
                if is_over.load(Ordering::Relaxed) && round > 100 {
                    return;
                }
            }
        });
        for _ in 0..5 {
            let status = shown_json(&bed, &["lan"]);
            let lan = &status["switches"][0];
            assert!(lan["stations_known"].as_u64().unwrap() >= u64::from(STATIONS), "{}", lan["stations_known"]);
            assert_eq!(lan["stations"].as_array().unwrap().len(), STATIONS_MAX);
        }
        is_over.store(true, Ordering::Relaxed);
        carry.join().unwrap();
    });
    assert!(shown(&bed, &["lan"]).contains(" more stations"));
}

#[test]
fn floods_count_by_the_kind_of_their_destination() {
    let (bed, socket) = start("floods", "");
    let floods = || shown_json(&bed, &["lan"])["switches"][0]["floods"].clone();
    let mut guest = Guest::builder().connect(&socket);
    let before = floods();
    (0..5).for_each(|_| send(&mut guest, &frame(1, UNKNOWN)));
    (0..3).for_each(|_| send(&mut guest, &frame(1, BROADCAST)));
    let more = |kind: &str| floods()[kind].as_u64().unwrap() - before[kind].as_u64().unwrap();
    // The kernel's own multicast (MLD) is flooded too.
    bed.until(|| more("unknown_frames") == 5 && more("group_frames") >= 3);
    assert_eq!(more("limited_frames"), 0);
}

#[test]
fn the_overview_has_one_line_per_port_and_switch_within_100_columns() {
    let (bed, socket) = start("overview", "");
    let text = shown(&bed, &[]);
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert_eq!(lines.len(), 6, "a heading, three ports, an empty line and a switch: {text}");
    assert!(text.lines().skip(1).all(|line| line.chars().count() <= 100), "{text}");
    let line =
        |text: &str, name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
    assert!(line(&text, "guest").contains("no guest"), "{text}");
    assert!(line(&text, "a").contains("tap ofr0") && line(&text, "a").contains("tso uso"), "{text}");
    assert!(line(&text, "switch lan").contains("3 ports, "), "{text}");
    let _guest = Guest::builder().features(features::CSUM | features::HOST_TSO4).connect(&socket);
    bed.until(|| line(&shown(&bed, &[]), "guest").contains(" up "));
    let up = line(&shown(&bed, &[]), "guest");
    assert!(up.contains("guest.sock") && up.contains("switch lan") && up.contains("tso / -"), "{up}");
    assert!(bed.run(&["set", "guest", "link", "off"]).status.success());
    assert!(line(&shown(&bed, &[]), "guest").contains("link off"));
    // The daemon samples the rates itself, once per second, so they do not depend on requests.
    bed.until(|| shown_json(&bed, &[])["ports"][0]["queues"][0]["transmit"]["rates"]["bits_per_s"].is_number());
}

#[test]
fn a_feature_is_pending_only_after_a_change_and_else_the_guest_is_missing_or_declined() {
    let (bed, socket) = start("states", "features = { uso = false }\n");
    let waits = |name: &str| {
        let status = shown_json(&bed, &["guest"]);
        bed::feature(&status, "guest", name)["waits_for"].clone()
    };
    assert_eq!((waits("tso4"), waits("uso")), (json!("no_guest"), Value::Null));
    let text = shown(&bed, &["guest"]);
    assert!(text.contains("off, no guest") && !text.contains("pending"), "{text}");

    let guest = Guest::builder().features(features::CSUM | features::HOST_TSO4).connect(&socket);
    bed.until(|| waits("tso4").is_null());
    assert_eq!(waits("tso6"), "declined");
    let text = shown(&bed, &["guest"]);
    assert!(text.contains("off, declined by the guest") && !text.contains("pending"), "{text}");

    assert!(bed.run(&["set", "guest", "tso4", "off", "uso", "on"]).status.success());
    assert_eq!(
        (waits("tso4"), waits("uso"), waits("tso6")),
        (json!("negotiation"), json!("negotiation"), json!("declined"))
    );
    let text = shown(&bed, &["guest"]);
    assert!(text.contains("on, pending") && text.contains("driver is reset"), "{text}");

    drop(guest);
    bed.until(|| waits("uso") == "no_guest");
    assert!(waits("tso4").is_null(), "a feature that is off waits for nothing");
    let _guest = Guest::builder().features(features::CSUM).connect(&socket);
    bed.until(|| waits("uso") == "declined");
}

#[test]
fn an_unknown_name_suggests_a_port_or_a_switch() {
    let (bed, _) = start("suggest", "");
    refused(&bed.run(&["show", "lna"]), &["show: unknown port or switch \"lna\"; did you mean \"lan\"?"]);
    refused(&bed.run(&["show", "gest"]), &["did you mean \"guest\"?"]);
}

#[test]
fn what_show_prints_as_json_matches_the_published_schema() {
    let (bed, socket) = start("schema", "mac_addresses = [\"02:00:00:00:01:01\"]\n");
    let schema = schema::Schema::read();
    let check = || {
        for args in [&[][..], &["a"], &["guest"], &["lan"], &["lan", "--interval", "0.1"]] {
            schema.check(&shown_json(&bed, args));
        }
    };
    check();
    let mut guest = Guest::builder().features(features::CSUM | features::HOST_TSO4).connect(&socket);
    send(&mut guest, &frame(1, LLDP));
    bed.until(|| shown_json(&bed, &[])["ports"][0]["queues"][0]["receive"]["rates"].is_object());
    check();
    let mut wrong = shown_json(&bed, &[]);
    wrong["ports"][0]["mtu"] = json!("1500");
    assert!(std::panic::catch_unwind(|| schema.check(&wrong)).is_err(), "the check finds a wrong type");
}

#[test]
fn watch_prints_a_block_each_interval_until_it_is_stopped() {
    let (bed, _) = start("watch", "");
    for json in [false, true] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
        command.args(["show", "--watch", "--interval", "0.05", "--control"]).arg(bed.control());
        command.args(json.then_some("--json"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let blocks = lines.filter(|line| line.contains(if json { "\"uptime_ns\"" } else { "switch lan:" }));
        assert_eq!(blocks.inspect(|line| assert!(!line.contains('\x1b'))).take(3).count(), 3);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    refused(&bed.run(&["show", "--watch", "--interval", "0"]), &["--watch needs an --interval above 0"]);
}

fn monitor(bed: &Bed) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(["monitor", "--control"]).arg(bed.control());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Changes the port "a" until the monitor reports a change, because no output tells when the monitor has subscribed.
fn first_change(bed: &Bed, events: &mut impl Iterator<Item = Value>) -> Value {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while receiver.recv_timeout(Duration::from_millis(50)).is_err() {
                assert!(bed.run(&["set", "a", "tso4", "off"]).status.success());
            }
        });
        let first = events.next().unwrap();
        sender.send(()).unwrap();
        first
    })
}

#[test]
fn monitor_and_the_log_have_each_set_with_its_user_and_monitor_names_the_end() {
    let (mut bed, _) = start("record", "");
    let mut child = monitor(&bed);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first = first_change(&bed, &mut events);
    assert_eq!((&first["event"], &first["port"], &first["uid"]), (&json!("set"), &json!("a"), &json!(0)), "{first}");
    assert_eq!(first["features"], json!({"tso4": false}));
    assert!(first["process"].as_u64().unwrap() > 1, "{first}");
    for change in [&["link", "off"][..], &["limit", "tx_frames_per_second=1000"], &["moderation", "rx_usecs=50"]] {
        assert!(bed.run(&[&["set", "b"], change].concat()).status.success());
    }
    let mut of_b = events.by_ref().filter(|event| event["port"] == "b" && event["event"] == "set");
    assert_eq!(of_b.next().unwrap()["link"], false);
    assert_eq!(of_b.next().unwrap()["limit"], json!({"tx_frames_per_second": 1000}));
    assert_eq!(of_b.next().unwrap()["moderation"]["rx_usecs"], 50);
    let log = bed.stderr();
    for words in [
        "port \"a\": set tso4 off: done",
        "port \"b\": set link off: done",
        "port \"b\": set limit tx_frames_per_second 1000: done",
        "port \"b\": set moderation ",
        "offramp: uid 0, process ",
    ] {
        assert!(log.contains(words), "{words} in {log}");
    }
    bed.signal(Signal::SIGTERM);
    assert_eq!(events.last().unwrap()["event"], "ended");
    let mut why = String::new();
    child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert_eq!((child.wait().unwrap().code(), why.as_str()), (Some(1), "monitor: the daemon has ended\n"));
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
}

#[test]
fn a_monitor_says_that_it_was_too_slow_or_that_the_daemon_was_killed() {
    let (mut bed, _) = start("slow", "");
    // The pipe of the slow monitor is not read, so the monitor does not read its socket either.
    let (mut slow, mut killed) = (monitor(&bed), monitor(&bed));
    let lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    first_change(&bed, &mut events);
    let reader = std::thread::spawn(move || events.count());
    let mut stream = UnixStream::connect(bed.control()).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    let until = std::time::Instant::now() + PATIENCE;
    let clients = || {
        fs::read_dir(format!("/proc/{}/task", bed.process()))
            .unwrap()
            .filter(|task| {
                let name = fs::read_to_string(task.as_ref().unwrap().path().join("comm")).unwrap_or_default();
                name.trim() == "ofr-client"
            })
            .count()
    };
    bed.until(|| clients() == 3);
    while clients() == 3 {
        assert!(std::time::Instant::now() < until, "the daemon does not disconnect the slow monitor");
        stream
            .write_all(b"{\"version\":1,\"request\":\"set\",\"port\":\"a\",\"features\":{\"tso4\":false}}\n")
            .unwrap();
        answers.next().unwrap().unwrap();
    }
    let mut why = String::new();
    std::io::copy(&mut slow.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    slow.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert!(why.contains("did not read an event for 5 s"), "{why}");
    assert_eq!(slow.wait().unwrap().code(), Some(1));
    bed.signal(Signal::SIGKILL);
    bed.wait();
    assert!(reader.join().unwrap() > 0);
    why.clear();
    killed.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert!(why.contains("has ended without notice"), "{why}");
}

#[test]
fn the_queue_pairs_of_a_tap_on_a_switch_are_shown_as_counted_together() {
    let mut bed = Bed::unstarted("pairs", "");
    bed.rewrite(|text| on_switch(&text.replace("queue_pairs = 1", "queue_pairs = 3")));
    bed.start_again();
    let text = shown(&bed, &["a"]);
    assert!(text.contains("3 queue pairs") && text.contains("\n  all 3 "), "{text}");
}
