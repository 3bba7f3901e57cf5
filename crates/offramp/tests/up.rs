//! Tests of `offramp up`, `show` and `set` from a user's view: a daemon, two hosts on a cable, and errors.

#[allow(dead_code, reason = "shared with the tests of IPsec")]
#[path = "up/bed.rs"]
mod bed;
#[path = "up/existing.rs"]
mod existing;

use bed::{
    ADDRESSES, Bed, INTERFACE, direction, feature, is_root_of_the_machine, offramp, on_switch, queue_sum, refused,
};
use nix::sys::signal::Signal;
use offramp_ports::sys::link::CarrierWatch;
use offramp_ports::sys::{NetNs, confine, link};
use offramp_testkit::features::protocol;
use offramp_testkit::process::StoppedThread;
use offramp_testkit::{Frontend, Guest, VnetHeader};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Id of the user nobody, an ordinary user on every Linux.
const NOBODY: u32 = 65534;

#[test]
fn two_taps_on_a_cable_carry_tcp_and_show_counts_it() {
    let bed = Bed::start("tcp", "");
    let before = bed.show_at_rest();
    bed.carry_tcp();
    let after = bed.show_at_rest();
    let counted = |status| queue_sum(status, "b", "receive", "frames_in");
    assert!(counted(&after) > counted(&before));
    for (from, to) in [("a", "b"), ("b", "a")] {
        let sent = direction(&after, from, "transmit");
        let received = direction(&after, to, "receive");
        assert!(sent["frames_out"].as_u64().unwrap() > 0);
        assert_eq!(sent["frames_out"], received["frames_in"]);
        assert_eq!((&sent["frames_in"], &received["frames_in"]), (&sent["frames_out"], &received["frames_out"]));
        for lost in [sent, received].iter().flat_map(|direction| direction["lost"].as_object().unwrap().values()) {
            assert_eq!(lost, 0);
        }
    }
    // The sender sent super-frames, and the receiver received coalesced frames.
    for (port, way) in [("a", "transmit"), ("b", "receive")] {
        let (frames, host) = (queue_sum(&after, port, way, "frames_out"), queue_sum(&after, port, way, "host_frames"));
        assert!(host * 2 < frames, "{port} {way}: {host} super-frames of {frames} frames");
    }
    let text = bed.run(&["show", "a"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for word in ["a\n", "cable to b", "tx-tcp-segmentation", "HOST_TSO4", "*LsoV2IPv4", "transmit", "Mbit/s"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn several_queue_pairs_with_threads_of_their_own_carry_tcp() {
    let cpus = offramp_ports::sys::cpu::online();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let bed = Bed::with_ports("queues", "", &format!("cpus = [{first}]"), &format!("cpus = [{last}]"), 2);
    bed.carry_tcp();
    let status = bed.show_at_rest();
    assert_eq!(status["ports"][0]["queues"].as_array().unwrap().len(), 2);
    let threads = |port: usize| status["ports"][port]["queues"][0]["thread"].as_i64().unwrap();
    assert_eq!(threads(0) == threads(1), first == last);
    assert!(queue_sum(&status, "a", "transmit", "frames_out") > 0);
}

#[test]
fn two_taps_on_a_switch_carry_tcp_and_its_features_switch_too() {
    let mut bed = Bed::unstarted("switch", "");
    bed.rewrite(on_switch);
    bed.start_again();
    bed.carry_tcp();
    let before = bed.show_at_rest();
    assert_eq!(before["ports"][0]["wire"]["name"], "lan");
    assert!(queue_sum(&before, "a", "transmit", "frames_out") > 0);
    assert!(bed.run(&["set", "b", "all", "off"]).status.success());
    bed.carry_tcp();
    let after = bed.show_at_rest();
    let counted = |key| queue_sum(&after, "b", "receive", key) - queue_sum(&before, "b", "receive", key);
    assert_eq!(
        counted("host_frames"),
        counted("frames_out"),
        "no frame for b is coalesced, every super-frame is segmented"
    );
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
}

#[test]
fn hosts_in_one_vlan_carry_tcp_and_hosts_in_two_are_apart() {
    for wire in ["cable", "switch"] {
        for (vlan, is_same) in [(10, true), (11, false)] {
            let mut bed = Bed::unstarted(&format!("vlan-{wire}-{vlan}"), "");
            let keys = ["vlan = 10".to_owned(), format!("vlan = {vlan}\nvlans = [12, \"100-199\"]")];
            bed.rewrite(|text| text.replace("# changes of a", &keys[0]).replace("# changes of b", &keys[1]));
            if wire == "switch" {
                bed.rewrite(on_switch);
            }
            bed.start_again();
            if is_same {
                bed.carry_tcp();
            } else {
                bed.host(0).run(ask_for_the_other).unwrap();
                let (port, way, reason) = match wire {
                    "cable" => ("b", "receive", "vlan"),
                    _ => ("a", "transmit", "no_destination"),
                };
                bed.until(|| direction(&bed.show(), port, way)["lost"][reason].as_u64().unwrap() > 0);
                assert_eq!(queue_sum(&bed.show(), "b", "receive", "frames_out"), 0);
            }
            let shown = &bed.show()["ports"][1];
            assert_eq!((&shown["vlan"], &shown["vlans"]), (&vlan.into(), &serde_json::json!(["12", "100-199"])));
            let text = String::from_utf8(bed.run(&["show", "b", "--interval", "0"]).stdout).unwrap();
            assert!(text.contains(&format!("VLAN {vlan} untagged, VLANs 12 100-199 tagged")), "{text}");
        }
    }
}

/// Replaces the first host by a guest in the daemon's file, and returns the guest's socket.
fn host_a_guest(bed: &Bed) -> PathBuf {
    let socket = bed.file().with_file_name("guest.sock");
    let guest = format!("host = {{ vhost_user = \"{}\" }}", socket.display());
    bed.rewrite(|text| {
        let first = text.lines().find(|line| line.starts_with("host =")).unwrap();
        text.replacen(first, &guest, 1)
    });
    socket
}

#[test]
fn a_guest_that_is_not_there_yet_is_shown_and_its_socket_goes_with_the_daemon() {
    for wire in ["cable", "switch"] {
        let mut bed = Bed::unstarted(&format!("guest-{wire}"), "");
        let socket = host_a_guest(&bed);
        if wire == "switch" {
            bed.rewrite(on_switch);
        }
        bed.start_without_hosts();
        assert!(socket.exists());
        let status = bed.show();
        assert_eq!(
            (&status["ports"][0]["host"]["kind"], &status["ports"][0]["host"]["connected"]),
            (&"vhost_user".into(), &false.into())
        );
        let tso4 = feature(&status, "a", "tso4");
        assert_eq!(
            (&tso4["offered"], &tso4["in_use"], &tso4["waits_for"]),
            (&true.into(), &false.into(), &"no_guest".into())
        );
        assert!(bed.run(&["set", "a", "lso", "off"]).status.success());
        assert_eq!(feature(&bed.show(), "a", "tso4")["offered"], false);
        assert_eq!(
            bed.show()["ports"][0]["moderation"],
            serde_json::json!({"policy": "quiet-or-area", "load_interrupts_per_second": 6250, "deadline_usecs": 250})
        );
        assert!(bed.run(&["set", "a", "moderation", "rx_usecs=50"]).status.success());
        let coalescing = serde_json::json!({"policy": "coalescing", "rx_usecs": 50});
        assert_eq!(bed.show()["ports"][0]["moderation"], coalescing);
        bed.until(|| direction(&bed.show(), "a", "receive")["wait_max_ns"] == 50_000);
        // The default for a TAP on a switch is off, because on a switch a delay costs an additional copy.
        let policy = if wire == "switch" { "off" } else { "quiet-or-area" };
        assert_eq!(bed.show()["ports"][1]["moderation"]["policy"], policy);
        bed.signal(Signal::SIGTERM);
        assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
        assert!(!socket.exists() && !bed.control().exists());
    }
}

/// Makes the kernel send an ARP request for the other host's unknown address. Call this function in the first host's
/// namespace.
fn ask_for_the_other() {
    UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", (bed::ADDRESSES[1], 9)).unwrap();
}

#[test]
fn a_switch_that_may_flood_nothing_floods_nothing() {
    let mut bed = Bed::unstarted("flood", "");
    bed.rewrite(|text| on_switch(text) + "flood_frames_per_second = 0\n");
    bed.start_again();
    bed.host(0).run(ask_for_the_other).unwrap();
    bed.until(|| direction(&bed.show(), "a", "transmit")["lost"]["flood_limit"].as_u64().unwrap() > 0);
    assert_eq!(queue_sum(&bed.show(), "b", "receive", "frames_in"), 0);
}

#[test]
fn why_a_frontend_was_sent_away_is_shown() {
    let mut bed = Bed::unstarted("refusal", "");
    let socket = host_a_guest(&bed);
    bed.start_without_hosts();
    assert!(bed.show()["ports"][0]["host"]["last_refusal"].is_null());
    // The message is SET_VRING_NUM (8) for ring 0 with 3000 entries, above queue_size_max.
    let message = [8u32, 1, 8, 0, 3000].map(u32::to_ne_bytes).concat();
    let mut frontend = UnixStream::connect(&socket).unwrap();
    frontend.write_all(&message).unwrap();
    bed.until(|| !bed.show()["ports"][0]["host"]["last_refusal"].is_null());
    let shown = String::from_utf8(bed.run(&["show", "a", "--interval", "0"]).stdout).unwrap();
    assert!(shown.contains("last frontend disconnected: message 8: "), "{shown}");
    bed.until(|| bed.stderr().contains("port \"a\": 1 refused messages; last frontend disconnected: message 8: "));
}

#[cfg(feature = "impair")]
#[test]
fn a_card_with_little_memory_on_a_slow_bus_loses_frames_and_tcp_stays_right() {
    let card =
        "wire.bits_per_second = 10000000\nmemory = { card_bytes = 8192 }\nfaults = { bus_bytes_per_second = 700000 }";
    let mut bed = Bed::unstarted("card", "");
    let text = fs::read_to_string(bed.file()).unwrap();
    let text = text
        .replace("wire = { cable = \"a\" }", &format!("wire.cable = \"a\"\n{card}"))
        .replace("cable = \"b\" }", "cable = \"b\", bits_per_second = 10000000 }");
    fs::write(bed.file(), &text).unwrap();
    refused(&offramp(&["up", bed.file().to_str().unwrap()]), &["port.faults", "write faults = true at the top"]);
    fs::write(bed.file(), format!("faults = true\n{text}")).unwrap();
    bed.start_again();
    bed.carry_tcp();
    // A retransmission may still be in flight. The counters agree when no frame is in flight.
    let mut received = serde_json::Value::Null;
    bed.until(|| {
        let status = bed.show();
        received = direction(&status, "b", "receive").clone();
        received["frames_in"] == direction(&status, "a", "transmit")["frames_out"]
    });
    let count = |key: &str| received[key].as_u64().unwrap();
    assert!(count("drop") > 0, "{received}");
    assert_eq!(count("frames_in"), count("frames_out") + count("drop") + count("fifo") + count("frame"));
    assert!((1..=19 * 256).contains(&count("memory_bytes_max")), "{received}");
    let text = bed.run(&["show", "b"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for word in ["drop", "fifo", "frame", "queue pair 0, memory: up to", "longest burst without a loss"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn a_feature_that_is_switched_off_is_out_of_use_at_once_and_tcp_stays_right() {
    let bed = Bed::start("set", "");
    bed.carry_tcp();
    let before = bed.show();
    assert_eq!(feature(&before, "b", "rsc4")["in_use"], true);
    let output = bed.run(&["set", "b", "rsc", "off", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let changed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = changed["features"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rsc4", "rsc6", "rsc-ecn"]);
    bed.carry_tcp();
    let after = bed.show();
    for name in ["rsc4", "rsc6", "rsc-ecn"] {
        assert_eq!(
            (&feature(&after, "b", name)["allowed"], &feature(&after, "b", name)["in_use"]),
            (&false.into(), &false.into())
        );
        assert_eq!(feature(&after, "a", name)["in_use"], true, "the other port keeps its own");
    }
    let counted = |key| queue_sum(&after, "b", "receive", key) - queue_sum(&before, "b", "receive", key);
    assert_eq!(counted("host_frames"), counted("frames_out"), "nothing was coalesced");
    assert!(counted("frames_out") > 0);

    // Dependent features are switched off together with the feature, and the output names them.
    let output = bed.run(&["set", "b", "rx-checksum", "off", "rsc", "on"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("b: rsc4 allowed on, negotiated off, in use off (needs another feature)"), "{text}");
    assert!(text.contains("b: rx-checksum allowed off"), "{text}");
    bed.carry_tcp();
}

#[test]
fn features_change_under_load_and_no_frame_is_lost() {
    let bed = Bed::start("load", "");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut changes = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let state = if changes % 2 == 0 { "off" } else { "on" };
                let feature = ["lso", "rsc", "all", "rx-checksum"][changes / 2 % 4];
                for port in ["a", "b"] {
                    assert!(bed.run(&["set", port, feature, state]).status.success());
                }
                changes += 1;
            }
            changes
        });
        bed.carry_tcp_for("2");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(changing.join().unwrap() > 1);
    });
    let status = bed.show_at_rest();
    for (from, to) in [("a", "b"), ("b", "a")] {
        let sent = direction(&status, from, "transmit");
        let received = direction(&status, to, "receive");
        assert_eq!((&sent["frames_in"], &received["frames_in"]), (&sent["frames_out"], &received["frames_out"]));
        assert_eq!(sent["frames_out"], received["frames_in"]);
    }
}

#[test]
fn moderation_changes_under_load_and_no_frame_is_lost() {
    let bed = Bed::start("moderated-load", "");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut changes = 0;
            for policy in MODERATIONS.into_iter().cycle() {
                for port in ["a", "b"] {
                    let output = bed.run(&[&["set", port, "moderation"], policy].concat());
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                }
                changes += 1;
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    return changes;
                }
            }
            changes
        });
        bed.carry_tcp_for("2");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(changing.join().unwrap() > MODERATIONS.len(), "each at least once");
    });
    let status = bed.show_at_rest();
    for (from, to) in [("a", "b"), ("b", "a")] {
        let sent = direction(&status, from, "transmit");
        let received = direction(&status, to, "receive");
        assert_eq!((&sent["frames_in"], &received["frames_in"]), (&sent["frames_out"], &received["frames_out"]));
        assert_eq!(sent["frames_out"], received["frames_in"]);
        assert!(received["interrupts"].as_u64().unwrap() > 0);
    }
}

/// Every policy, in the syntax of `set`.
const MODERATIONS: [&[&str]; 8] = [
    &["quiet-or-area"],
    &["max_interrupts_per_second=8000"],
    &["rx_usecs=50", "rx_frames=32"],
    &["net-dim"],
    &["e1000", "mode=dynamic"],
    &["area"],
    &["quiet-or-area", "interrupt_cost_ns=100000"],
    &["off"],
];

#[test]
fn moderation_is_set_shown_and_read_from_the_file() {
    let bed = Bed::with_ports("moderation", "", "moderation = { rx_usecs = 50, rx_frames = 32 }", "rx_usecs = 125", 1);
    let moderation = |port: usize| bed.show()["ports"][port]["moderation"].clone();
    assert_eq!(moderation(0), serde_json::json!({"policy": "coalescing", "rx_usecs": 50, "rx_frames": 32}));
    assert_eq!(moderation(1), serde_json::json!({"policy": "fixed-gap", "max_interrupts_per_second": 8000}));
    assert_eq!(bed.show()["ports"][1]["rx_usecs"], 125);
    bed.carry_tcp();
    let status = bed.show_at_rest();
    assert_eq!(direction(&status, "a", "receive")["wait_max_ns"], 50_000);
    assert!(direction(&status, "b", "receive")["interrupt_cost_ns"].as_u64().unwrap() > 0);
    // A frame for b waits at most 125 µs, the minimum time between two interrupts. Many frames arrive in this time, so
    // there are fewer interrupts than frames.
    let [interrupts, frames] = ["interrupts", "frames_out"].map(|key| queue_sum(&status, "b", "receive", key));
    assert!(interrupts > 0 && interrupts < frames, "{interrupts} of {frames}");

    let output = bed.run(&["set", "b", "moderation", "quiet-or-area", "interrupt_cost_ns=20000"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "b: moderation quiet-or-area interrupt_cost_ns 20000 deadline_usecs 250\n");
    bed.carry_tcp();
    let text = String::from_utf8(bed.run(&["show", "b"]).stdout).unwrap();
    for word in ["moderation quiet-or-area", "interrupts/s", "frames wait at most 20.0 us, interrupt cost"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    refused(&bed.run(&["set", "b", "moderation", "quiet"]), &["unknown moderation policy \"quiet\"; did you mean"]);
    refused(
        &bed.run(&["set", "b", "moderation", "rx_usec=5"]),
        &["unknown key \"rx_usec\"; did you mean \"rx_usecs\"?"],
    );

    // A reload restores the settings in the file.
    bed.rewrite(|text| text.replace("rx_usecs = 125", "moderation = \"e1000\""));
    bed.signal(Signal::SIGHUP);
    bed.until(|| moderation(1) == serde_json::json!({"policy": "e1000", "mode": "conservative"}));
    bed.until(|| bed.stderr().contains("reloaded\n"));
    bed.carry_tcp();
}

#[test]
fn a_tap_on_a_switch_is_moderated_as_on_a_cable() {
    let mut bed = Bed::unstarted("moderated-lan", "");
    // Flows are steered over several queue pairs of a TAP, as on a cable.
    bed.rewrite(|text| on_switch(&text.replace("queue_pairs = 1", "queue_pairs = 3")));
    bed.start_again();
    assert_eq!(bed.show()["ports"][0]["moderation"]["policy"], "off");
    for port in ["a", "b"] {
        assert!(bed.run(&["set", port, "moderation", "rx_usecs=200"]).status.success());
        bed.until(|| direction(&bed.show(), port, "receive")["wait_max_ns"] == 200_000);
    }
    bed.carry_tcp();
    let status = bed.show_at_rest();
    let (frames, interrupts) =
        (queue_sum(&status, "b", "receive", "host_frames"), queue_sum(&status, "b", "receive", "interrupts"));
    assert!(interrupts > 0 && interrupts < frames, "{interrupts} interrupts for {frames} frames");
    // The port also carries TCP after moderation is switched off again.
    assert!(bed.run(&["set", "b", "moderation", "off"]).status.success());
    bed.carry_tcp();
}

/// Carries TCP from a to b, and checks that the rate does not exceed `bits_per_second`, the limit of a's transmit rate
/// or b's receive rate.
fn carry_tcp_at_most(bed: &Bed, bits_per_second: u64) {
    let sent = |status: &serde_json::Value| queue_sum(status, "b", "receive", "bytes_out");
    let before = bed.show();
    bed.carry_tcp();
    let (after, later) = (bed.show(), bed.show());
    // The measured time includes the whole traffic. A burst and a super-frame can exceed the limit.
    let time_ns = later["uptime_ns"].as_u64().unwrap() - before["uptime_ns"].as_u64().unwrap();
    let most = (bits_per_second / 8) as f64 * (time_ns as f64 / 1e9 + 0.006) + 2.0 * 65_536.0;
    let carried = sent(&after) - sent(&before);
    assert!(carried as f64 <= most, "{carried} bytes in {time_ns} ns, not {most}");
}

#[test]
fn a_limit_is_set_shown_and_read_from_the_file_on_a_cable_and_a_switch() {
    for wire in ["cable", "switch"] {
        let mut bed = Bed::unstarted(&format!("limit-{wire}"), "");
        let limit = "limit = { tx_bits_per_second = 200_000_000, tx_burst_bytes = 125_000 }";
        bed.rewrite(|text| text.replace("# changes of a", limit));
        if wire == "switch" {
            bed.rewrite(on_switch);
        }
        bed.start_again();
        let limit = |port: usize| bed.show()["ports"][port]["limit"].clone();
        let of_file = serde_json::json!({"tx_bits_per_second": 200_000_000, "tx_burst_bytes": 125_000});
        assert_eq!((limit(0), limit(1)), (of_file.clone(), serde_json::json!({})));
        carry_tcp_at_most(&bed, 200_000_000);

        let output = bed.run(&["set", "a", "limit", "off"]);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a: limit off\n");
        let keys = ["rx_bits_per_second=100000000", "rx_frames_per_second=100000"];
        let output = bed.run(&[&["set", "b", "limit"], &keys[..]].concat());
        let sentence = "limit rx_bits_per_second 100000000 rx_frames_per_second 100000";
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("b: {sentence}\n"));
        assert!(String::from_utf8(bed.run(&["show", "b"]).stdout).unwrap().contains(sentence));
        carry_tcp_at_most(&bed, 100_000_000);
        refused(&bed.run(&["set", "a", "limit", "tx_bits=5000"]), &["unknown key \"tx_bits\"; did you mean"]);
        refused(&bed.run(&["set", "a", "limit", "tx_bits_per_second=5"]), &["is out of range; use 1000 to"]);

        // A reload restores the settings in the file.
        bed.signal(Signal::SIGHUP);
        bed.until(|| (limit(0), limit(1)) == (of_file.clone(), serde_json::json!({})));
        bed.until(|| bed.stderr().contains("reloaded\n"));
        carry_tcp_at_most(&bed, 200_000_000);
    }
}

#[test]
fn a_link_that_is_set_off_carries_nothing_until_it_is_set_on() {
    for wire in ["cable", "switch"] {
        let mut bed = Bed::unstarted(&format!("link-{wire}"), "");
        if wire == "switch" {
            bed.rewrite(on_switch);
        }
        bed.start_again();
        let set = |args: &[&str]| String::from_utf8(bed.run(&[&["set", "a"], args].concat()).stdout).unwrap();
        let links = || [0, 1].map(|port| bed.show()["ports"][port]["link"].as_bool().unwrap());
        let has_carrier =
            |side: usize| bed.host(side).run(|| CarrierWatch::new(INTERFACE).unwrap().poll()).unwrap() == Some(true);
        let shown = || String::from_utf8(bed.run(&["show", "a"]).stdout).unwrap();
        // After this transfer, the hosts have resolved each other's addresses.
        bed.carry_tcp();
        assert_eq!((links(), shown().contains("link off")), ([true, true], false));

        assert_eq!(set(&["link", "off"]), "a: link off\n");
        assert_eq!((links(), shown().contains("link off")), ([false, true], true));
        bed.until(|| !has_carrier(0));
        assert!(has_carrier(1), "nobody else's changes");
        let received = queue_sum(&bed.show(), "a", "receive", "frames_out");
        let socket = bed.host(1).run(|| UdpSocket::bind((ADDRESSES[1], 0)).unwrap()).unwrap();
        bed.until(|| {
            socket.send_to(b"lost", (ADDRESSES[0], 9)).unwrap();
            direction(&bed.show(), "a", "receive")["lost"]["link_off"].as_u64().unwrap() > 0
        });
        assert_eq!(queue_sum(&bed.show(), "a", "receive", "frames_out"), received);

        // The file has no key for the link, so a reload does not change the link.
        bed.signal(Signal::SIGHUP);
        bed.until(|| bed.stderr().contains("reloaded\n"));
        assert_eq!(links(), [false, true]);
        refused(&bed.run(&["set", "a", "link", "maybe"]), &["link: unknown state \"maybe\"", "on", "off"]);
        assert_eq!(links(), [false, true]);

        let changed: Value = serde_json::from_str(&set(&["link", "on", "--json"])).unwrap();
        assert_eq!((&changed["port"], &changed["link"]), (&"a".into(), &true.into()));
        bed.until(|| has_carrier(0));
        assert_eq!((links(), shown().contains("link off")), ([true, true], false));
        bed.carry_tcp();
    }
}

#[test]
fn the_link_of_a_guest_is_set_by_the_control_socket_and_wrong_words_are_refused() {
    let (bed, socket) = bed_with_the_guest("link-guest", "", "host.mac = \"02:00:00:00:00:11\"\n");
    let mut frontend = Frontend::connect(&socket);
    frontend.get_features().unwrap();
    frontend.set_protocol_features(protocol::CONFIG | protocol::REPLY_ACK).unwrap();
    // Reads `status` as the driver does (virtio 1.3, 5.1.4).
    let status = || frontend.get_config(6, 2).unwrap();
    let ask = |request: &str| -> Value {
        let mut stream = UnixStream::connect(bed.control()).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    let set = |rest: &str| ask(&format!("{{\"version\":1,\"request\":\"set\",\"port\":\"guest\"{rest}}}"));
    let is_on = || bed.show()["ports"][2]["link"].as_bool().unwrap();
    assert_eq!((is_on(), status()), (true, vec![1, 0]));
    assert_eq!(set(",\"link\":false")["changed"]["link"], false);
    assert_eq!((is_on(), status()), (false, vec![0, 0]));
    for wrong in ["", ",\"link\":\"maybe\"", ",\"link\":0"] {
        assert_eq!(set(wrong)["error"]["code"], "bad_request", "{wrong}");
    }
    assert!(!is_on());
    // The link and another setting can be changed in one request.
    let changed = set(",\"link\":true,\"limit\":{}");
    assert_eq!((&changed["changed"]["link"], is_on(), status()), (&true.into(), true, vec![1, 0]));
}

#[test]
fn a_wrong_file_is_one_clear_line_and_exit_status_2() {
    let directory = bed::Directory::new("wrong");
    let file = directory.path("wrong.toml");
    let up = |text: &str| {
        fs::write(&file, text).unwrap();
        offramp(&["up", file.to_str().unwrap()])
    };
    let place = |line: usize| format!("up: {}:{line}: ", file.display());
    let host = "host = { tap = \"ofr0\" }\n";
    refused(&up("[[port]]\nname = \"a\"\nmutt = 1\n"), &[&place(3), "unknown key \"mutt\"; did you mean \"mtu\"?"]);
    refused(&up(&format!("[[port]]\nname = \"a\"\nwire.cable = \"b\"\nmtu = 5\n{host}")), &[&place(4), "68 to 65521"]);
    refused(&up(&format!("[[port]]\nname = \"a\"\n{host}wire.cable = \"a\"\n")), &[&place(4), "the port itself"]);
    refused(&up("["), &[&place(1)]);
    refused(&offramp(&["up", "/nonexistent.toml"]), &["up: /nonexistent.toml: cannot be read"]);
    let long = "x".repeat(200);
    refused(&up(&format!("[daemon]\ncontrol = \"/{long}\"\n[[port]]\n")), &[&place(2), "at most"]);
}

#[test]
fn a_file_can_be_checked_without_running_it() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/two-taps.toml");
    let output = offramp(&["up", "--check", root]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn without_a_daemon_show_and_set_say_so() {
    let args = ["--control", "/nonexistent/control.sock"];
    refused(
        &offramp(&[&["show"], &args[..]].concat()),
        &["show: no daemon answers at /nonexistent", "offramp up FILE"],
    );
    refused(&offramp(&[&["set", "a", "lso", "off"], &args[..]].concat()), &["set: no daemon answers at"]);
    refused(
        &offramp(&[&["set", "a", "ls", "off"], &args[..]].concat()),
        &["unknown feature \"ls\"; did you mean \"lso\"?"],
    );
}

#[test]
fn an_unknown_port_is_refused_with_the_nearest_known_one() {
    let bed = Bed::start("unknown", "");
    refused(&bed.run(&["show", "aa"]), &["show: unknown port \"aa\"; did you mean \"a\"? There are: a, b"]);
    refused(&bed.run(&["set", "c", "lso", "off"]), &["set: unknown port \"c\""]);
}

#[test]
fn a_second_daemon_on_one_socket_is_refused_and_the_first_goes_on() {
    let bed = Bed::start("second", "");
    refused(
        &offramp(&["up", bed.file().to_str().unwrap()]),
        &["up: daemon.control ", "a daemon answers there", "daemon.control = "],
    );
    assert_eq!(bed.show()["process"], bed.process());
    bed.carry_tcp();
}

#[test]
fn sigterm_ends_the_daemon_and_nothing_is_left() {
    let mut bed = Bed::start("term", "");
    bed.carry_tcp();
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    assert_eq!(bed.next_notice(), "STOPPING=1");
    assert!(!bed.control().exists());
    let beside = fs::read_dir(bed.control().parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(beside.filter(|name| name.to_string_lossy().starts_with("control")).count(), 0);
    for side in 0..2 {
        bed.host(side).run(|| assert!(link::index(bed::INTERFACE).is_err(), "the interface is gone")).unwrap();
    }
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced() {
    let mut bed = Bed::start("killed", "");
    bed.signal(Signal::SIGKILL);
    bed.wait();
    assert!(bed.control().exists());
    bed.start_again();
    bed.carry_tcp();
    assert_eq!(bed.show()["process"], bed.process());
}

#[test]
fn sighup_changes_features_and_nothing_where_something_cannot_change() {
    let bed = Bed::start("hup", "");
    let text = fs::read_to_string(bed.file()).unwrap();
    let featured = text.replace("# changes of b", "features = { rsc = false }\n# changes of b");
    let resized = featured.replace("# changes of a", "mtu = 1400").replace("# changes of b", "mtu = 1400");
    for (changed, in_use) in [(resized, true), (featured, false)] {
        fs::write(bed.file(), changed).unwrap();
        bed.signal(Signal::SIGHUP);
        assert!(bed.next_notice().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(bed.next_notice(), "READY=1");
        let status = bed.show();
        let shown = (&feature(&status, "b", "rsc4")["in_use"], &status["ports"][1]["mtu"]);
        assert_eq!(shown, (&in_use.into(), &1500.into()));
        assert!(bed.stderr().contains("port \"a\": mtu cannot change while the port runs"), "{}", bed.stderr());
    }
    bed.carry_tcp();

    fs::write(bed.file(), "[[port]]\nnam = \"b\"\n").unwrap();
    bed.signal(Signal::SIGHUP);
    assert!(bed.next_notice().starts_with("RELOADING=1"));
    assert_eq!(bed.next_notice(), "READY=1");
    assert!(bed.stderr().contains("unknown key \"nam\"; did you mean \"name\"?"), "{}", bed.stderr());
    assert!(bed.stderr().contains("nothing has changed"), "{}", bed.stderr());
    bed.carry_tcp();
}

#[test]
fn a_deleted_interface_is_shown_as_gone_and_does_not_hold_the_end() {
    let mut bed = Bed::start("deleted", "");
    bed.host(0).run(|| link::delete(bed::INTERFACE).unwrap()).unwrap();
    bed.until(|| bed.show()["ports"][0]["queues"][0]["running"] == false);
    assert_eq!(bed.show()["ports"][1]["queues"][0]["running"], true);
    let output = bed.run(&["set", "a", "lso", "off"]);
    refused(&output, &["set: tap \"ofr0\": offering offloads"]);
    bed.until(|| bed.stderr().contains("port \"a\", queue pair 0: the host is gone"));
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
}

#[test]
fn a_port_ends_with_its_namespace_and_a_new_one_of_the_same_name_gets_no_interface() {
    let mut bed = Bed::unstarted("namespace-ends", "");
    let name = bed.path("namespace");
    let run_a_container = || {
        let namespace = NetNs::new().unwrap();
        let mut container = Command::new("sleep");
        confine(container.arg("600"), Some(&namespace), None).unwrap();
        let process = container.spawn().unwrap();
        let _ = fs::remove_file(&name);
        symlink(format!("/proc/{}/ns/net", process.id()), &name).unwrap();
        process
    };
    let end = |mut container: Child| container.kill().and_then(|()| container.wait()).unwrap();
    let interfaces = || NetNs::open(&name).unwrap().run(link::list).unwrap().unwrap();
    let container = run_a_container();
    let held = format!("/proc/{}/fd/{}", std::process::id(), bed.host(0).as_raw_fd());
    bed.rewrite(|text| text.replace(&held, name.to_str().unwrap()));
    bed.start_without_hosts();
    assert!(interfaces().contains(&INTERFACE.to_owned()));
    let mut next = events(&bed);
    end(container);
    let gone = next();
    assert_eq!((&gone["event"], &gone["port"]), (&"gone".into(), &"a".into()), "{gone}");
    let container = run_a_container();
    assert!(!interfaces().contains(&INTERFACE.to_owned()));
    assert_eq!(bed.show()["ports"][0]["queues"][0]["running"], false);
    assert!(bed.stderr().contains("port \"a\", queue pair 0: the host is gone"), "{}", bed.stderr());
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    bed.drop_notices();
    bed.start_without_hosts();
    assert!(interfaces().contains(&INTERFACE.to_owned()));
    assert_eq!(bed.show()["ports"][0]["queues"][0]["running"], true);
    end(container);
}

#[test]
fn a_port_with_a_larger_mtu_than_its_switch_is_named_at_the_start() {
    let mut bed = Bed::unstarted("mtu", "");
    bed.rewrite(|text| on_switch(&text.replace("# changes of a", "mtu = 9000")));
    bed.start_without_hosts();
    let line = "offramp: port \"a\": mtu 9000 exceeds the 1500 of port \"b\" on the same switch; ";
    assert!(bed.stderr().starts_with(line), "{}", bed.stderr());
    let shown = bed.show();
    assert_eq!((&shown["ports"][0]["wire_mtu"], &shown["ports"][1]["wire_mtu"]), (&1500.into(), &1500.into()));
}

#[test]
fn an_interface_on_a_wire_that_is_deleted_is_told_of_and_shown() {
    for ipsec in ["", "ipsec = { transmit = \"bypass\" }"] {
        let mut bed = Bed::unstarted("wire", "");
        let text = fs::read_to_string(bed.file()).unwrap();
        let text = text.replace("cable = \"b\"", "packet = \"ofrline\"").replace("cable = \"a\"", "switch = \"lan\"");
        fs::write(bed.file(), text.replace("# changes of a", ipsec) + "[[switch]]\nname = \"lan\"\n").unwrap();
        let here = NetNs::new().unwrap();
        let line = |change: fn()| here.run(change).unwrap();
        line(|| link::create_veth("ofrline", "ofrfar").and_then(|()| link::set_up("ofrline")).unwrap());
        bed.start_in(here.try_clone().unwrap());
        assert_eq!(bed.show()["ports"][0]["wire_running"], true);
        assert_eq!(bed.show()["ports"][0]["wire_mtu"], 1500);
        assert!(bed.stderr().contains("run `ip link set ofrline mtu 1508`"), "{}", bed.stderr());
        // An interface that is down refuses frames, which are counted with their reason. The host sends an ARP request.
        line(|| link::set_down("ofrline").unwrap());
        let wire_lost = |way: &str, reason: &str| bed.show()["ports"][0]["wire_lost"][way][reason].as_u64().unwrap();
        assert_eq!((wire_lost("receive", "drop"), wire_lost("receive", "bad_request")), (0, 0));
        bed.host(0).run(ask_for_the_other).unwrap();
        bed.until(|| wire_lost("transmit", "host_refused") > 0);
        let shown = String::from_utf8(bed.run(&["show", "a", "--interval", "0"]).stdout).unwrap();
        assert!(shown.contains("interface on the wire, transmit: lost, host_refused: "), "{shown}");
        line(|| link::delete("ofrline").unwrap());
        bed.until(|| bed.show()["ports"][0]["wire_running"] == false);
        let shown = String::from_utf8(bed.run(&["show", "a", "--interval", "0"]).stdout).unwrap();
        assert!(shown.contains("interface ofrline (gone)"), "{shown}");
        bed.until(|| bed.stderr().contains("port \"a\": the interface on its wire is gone"));
        // The daemon also reports that the host of a port on a switch is gone.
        bed.host(1).run(|| link::delete(bed::INTERFACE).unwrap()).unwrap();
        bed.until(|| bed.stderr().contains("port \"b\": the host is gone"));
        assert_eq!(bed.stderr().lines().count(), 3, "{}", bed.stderr());
    }
}

#[test]
fn what_comes_in_at_an_interface_and_finds_no_room_is_counted() {
    const FRAMES: u64 = 20_000;
    let far: std::net::Ipv4Addr = [198, 18, 1, 2].into();
    let mut bed = Bed::unstarted("unread", "");
    let text = fs::read_to_string(bed.file()).unwrap();
    let text = text.replace("cable = \"b\"", "packet = \"ofrline\"").replace("cable = \"a\"", "switch = \"lan\"");
    fs::write(bed.file(), text + "[[switch]]\nname = \"lan\"\n").unwrap();
    let here = NetNs::new().unwrap();
    let set_up = || {
        link::create_veth("ofrline", "ofrfar").unwrap();
        for name in ["ofrline", "ofrfar"] {
            link::disable_ipv6(name).unwrap();
            link::set_up(name).unwrap();
        }
        link::add_address("ofrfar", std::net::IpAddr::V4([198, 18, 1, 1].into()), 24).unwrap();
        link::add_neighbour("ofrfar", std::net::IpAddr::V4(far), [2, 0, 0, 0, 0, 9]).unwrap();
    };
    here.run(set_up).unwrap();
    bed.start_in(here.try_clone().unwrap());
    bed.signal(Signal::SIGSTOP);
    let send = move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        (0..FRAMES).for_each(|_| assert!(socket.send_to(&[0; 1400], (far, 9)).is_ok()));
    };
    here.run(send).unwrap();
    bed.signal(Signal::SIGCONT);
    let counts = || {
        let status = bed.show();
        let lost = status["ports"][0]["wire_lost"]["receive"]["drop"].as_u64().unwrap();
        (lost, queue_sum(&status, "a", "receive", "frames_in"))
    };
    // Every frame is counted either as lost at the wire or as received by the adapter.
    bed.until(|| counts().0 + counts().1 == FRAMES);
    assert!(counts().0 > 0 && counts().1 > 0, "{:?}", counts());
}

#[test]
fn capabilities_are_given_up_once_the_devices_are_open() {
    let bed = Bed::start("caps", "");
    let status = fs::read_to_string(format!("/proc/{}/status", bed.process())).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    // Each thread has separate capability sets.
    for task in fs::read_dir(format!("/proc/{}/task", bed.process())).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    }
    bed.carry_tcp();
}

#[test]
fn root_becomes_the_user_of_the_file() {
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::start("user", "user = \"nobody\"\n");
    let status = fs::read_to_string(format!("/proc/{}/status", bed.process())).unwrap();
    assert!(status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}")), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    bed.carry_tcp();
    assert!(bed.run(&["set", "a", "lso", "off"]).status.success(), "a TAP's offer needs no privilege");
}

#[test]
fn who_may_use_the_control_socket_is_what_its_permissions_say() {
    if !is_root_of_the_machine() {
        return;
    }
    let closed = Bed::start("closed", "control_mode = 0o600\n");
    refused(&closed.as_user(NOBODY, &["show"]), &["Permission denied", "daemon.control_mode"]);
    assert_eq!(fs::metadata(closed.control()).unwrap().permissions().mode() & 0o777, 0o600);
    let open = Bed::start("open", "control_mode = 0o660\ncontrol_group = \"nogroup\"\n");
    assert!(open.as_user(NOBODY, &["show", "--interval", "0"]).status.success());
}

#[test]
fn a_user_that_does_not_exist_or_cannot_be_had_is_refused() {
    let bed = Bed::unstarted("nouser", "user = \"no-such-user\"\n");
    refused(&offramp(&["up", bed.file().to_str().unwrap()]), &["daemon.user \"no-such-user\": there is no such user"]);
    let bed = Bed::unstarted("nogroup", "control_group = \"no-such-group\"\n");
    refused(&offramp(&["up", bed.file().to_str().unwrap()]), &["\"no-such-group\": there is no such group"]);
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::unstarted("notroot", "user = \"daemon\"\n");
    let mut command = Command::new(bed.program_for_all());
    let output = command.args(["up", bed.file().to_str().unwrap()]).uid(NOBODY).gid(NOBODY).output().unwrap();
    refused(&output, &["only root can become another user"]);
}

/// Returns a daemon with two TAPs and a guest on a switch, and the guest's socket.
fn bed_with_a_guest(name: &str, daemon: &str) -> (Bed, PathBuf) {
    bed_with_the_guest(name, daemon, "")
}

/// Returns the same daemon as [`bed_with_a_guest`], with more keys for the guest's host.
fn bed_with_the_guest(name: &str, daemon: &str, host: &str) -> (Bed, PathBuf) {
    let mut bed = Bed::unstarted(name, daemon);
    let socket = bed.file().with_file_name("guest.sock");
    let text = fs::read_to_string(bed.file()).unwrap();
    let text = text.replace("cable = \"b\"", "switch = \"lan\"").replace("cable = \"a\"", "switch = \"lan\"");
    let guest = format!("host.vhost_user = \"{}\"\n{host}wire.switch = \"lan\"\n", socket.display());
    fs::write(bed.file(), format!("{text}[[port]]\nname = \"guest\"\n{guest}[[switch]]\nname = \"lan\"\n")).unwrap();
    bed.start_again();
    (bed, socket)
}

/// Returns each thread's name and seccomp mode, which is 2 if a filter is installed (proc(5)).
fn seccomp_modes(bed: &Bed) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", bed.process())).unwrap();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |status: &str, key: &str| {
        status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim().to_owned()
    };
    statuses.map(|status| (value(&status, "Name:"), value(&status, "Seccomp:"))).collect()
}

#[test]
fn every_thread_is_in_the_sandbox_and_does_its_work_there() {
    let (mut bed, socket) = bed_with_a_guest("sandbox", "");
    let mut guest = Guest::builder().connect(&socket);
    let _client = UnixStream::connect(bed.control()).unwrap();
    let status = bed.show();
    assert_eq!((&status["sandbox"]["level"], &status["sandbox"]["seccomp"]), (&"full".into(), &true.into()));
    assert!(status["sandbox"]["landlock"].is_number(), "{}", status["sandbox"]);
    let modes = seccomp_modes(&bed);
    let has = |name: &str| modes.iter().any(|(thread, _)| thread == name);
    for name in ["offramp", "ofr-control", "ofr-client", "ofr-vhost-user", "ofr-sa-events", "ofr-ports", "ofr-lan-0"] {
        assert!(has(name), "{name} of {modes:?}");
    }
    assert!(modes.iter().all(|(_, mode)| mode == "2"), "{modes:?}");

    bed.carry_tcp();
    guest.tx(0).send(&VnetHeader::default(), &[&[0xff; 60]]);
    guest.tx(0).drain(Duration::from_secs(10));
    assert!(bed.run(&["set", "a", "lso", "off"]).status.success());
    bed.signal(Signal::SIGHUP);
    bed.until(|| bed.stderr().contains("reloaded\n"));
    drop(guest);
    Guest::builder().packed().connect(&socket);
    bed.carry_tcp();
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    assert!(!socket.exists() && !bed.control().exists());
}

#[test]
fn show_tells_how_much_of_a_guests_memory_the_daemon_has_touched() {
    let (bed, socket) = bed_with_a_guest("touched", "");
    let host = || bed.show()["ports"][2]["host"].clone();
    let touched = || host()["memory_touched_bytes"].as_u64().unwrap();
    assert_eq!(touched(), 0);
    let mut guest = Guest::builder().connect(&socket);
    let before = touched();
    // The guest reuses the buffer of a sent frame as soon as the device has used it. So the test stages all frames
    // before it publishes the first frame: each frame then has its own buffer.
    for _ in 0..64 {
        guest.tx(0).stage(&VnetHeader::default(), &[&[0xff; 1514]]).expect("a ring of 256 entries has room");
    }
    guest.tx(0).publish();
    guest.tx(0).drain(Duration::from_secs(10));
    assert!(touched() >= before + 64 * 1514, "{before} {}", host());
    assert!(touched() < host()["memory_bytes"].as_u64().unwrap(), "{}", host());
    let shown = bed.run(&["show", "guest"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("MiB touched"), "{shown:?}");
    drop(guest);
    bed.until(|| touched() == 0);
}

#[test]
fn the_sandbox_only_logs_or_is_off_where_the_file_says_so() {
    for (level, mode) in [("log", "2"), ("off", "0")] {
        let (mut bed, socket) = bed_with_a_guest(level, &format!("sandbox = \"{level}\"\n"));
        Guest::builder().connect(&socket);
        bed.carry_tcp();
        assert!(seccomp_modes(&bed).iter().all(|(_, of_thread)| of_thread == mode));
        let text = String::from_utf8(bed.run(&["show", "--interval", "0"]).stdout).unwrap();
        assert!(text.starts_with(&format!("sandbox: {level}")), "{text}");
        bed.signal(Signal::SIGTERM);
        assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    }
}

#[test]
fn root_becomes_nobody_unless_the_file_says_who() {
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::unstarted("by-accident", "");
    let text = fs::read_to_string(bed.file()).unwrap();
    for (said, uid) in [("", NOBODY), ("user = \"root\"\n", 0), ("user = \"daemon\"\n", 1)] {
        let mut bed = Bed::unstarted(&format!("user-{uid}"), "user = \"root\"\n");
        let text = fs::read_to_string(bed.file()).unwrap().replace("user = \"root\"\n", said);
        fs::write(bed.file(), text).unwrap();
        bed.start_again();
        let status = fs::read_to_string(format!("/proc/{}/status", bed.process())).unwrap();
        assert!(status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")), "{said} {status}");
        bed.signal(Signal::SIGHUP);
        bed.until(|| bed.stderr().contains("reloaded\n"));
    }
    // A directory that only root can write cannot hold the sockets. The message names the user.
    let closed = bed.file().with_file_name("closed");
    fs::create_dir(&closed).unwrap();
    let control = bed.control().display().to_string();
    let text = text.replace("user = \"root\"\n", "").replace(&control, closed.join("c.sock").to_str().unwrap());
    fs::write(bed.file(), text).unwrap();
    refused(
        &offramp(&["up", bed.file().to_str().unwrap()]),
        &["Permission denied", "(uid 65534) must be able to write"],
    );
}

#[test]
fn a_crash_leaves_no_memory_behind_and_descriptors_are_not_scarce() {
    if !is_root_of_the_machine() {
        return;
    }
    let (bed, socket) = bed_with_a_guest("crash", "user = \"nobody\"\n");
    // The frontend runs with the privileges of this test, and the daemon as another user.
    let guest = Guest::builder().connect(&socket);
    let process = |file: &str| format!("/proc/{}/{file}", bed.process());
    // The process is not dumpable, so its files belong to root. The files of a dumpable process would belong to its
    // user (proc(5)).
    assert_eq!(fs::metadata(process("mem")).unwrap().uid(), 0);
    let limits = fs::read_to_string(process("limits")).unwrap();
    let limit = |name: &str| -> Vec<String> {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(str::to_owned).collect()
    };
    assert_eq!(limit("Max core file size"), ["0", "0"]);
    let files = limit("Max open files");
    assert_eq!(files[0], files[1]);
    // Each mapping's flags follow its name (proc_pid_smaps(5)). The flag "dd" excludes a mapping from core dumps.
    let maps = fs::read_to_string(process("smaps")).unwrap();
    let mapped: Vec<&str> = maps.split("VmFlags:").collect();
    let of_guest = mapped.windows(2).filter(|pair| pair[0].contains("/memfd:"));
    let flags: Vec<&str> = of_guest.map(|pair| pair[1].lines().next().unwrap()).collect();
    assert!(!flags.is_empty() && flags.iter().all(|flags| flags.contains(" dd")), "{flags:?}");
    drop(guest);
}

#[test]
fn a_guests_socket_has_the_group_and_the_user_of_the_file() {
    if !is_root_of_the_machine() {
        return;
    }
    let host = "host.socket_mode = 0o660\nhost.socket_group = \"nogroup\"\nhost.allowed_uid = 1\n";
    let (bed, socket) = bed_with_the_guest("peer", "user = \"daemon\"\n", host);
    let file = fs::metadata(&socket).unwrap();
    assert_eq!((file.permissions().mode() & 0o777, file.uid(), file.gid()), (0o660, 1, NOBODY));
    // Root can connect to any socket, but the daemon refuses a frontend of another user than uid 1.
    let _refused = UnixStream::connect(&socket).unwrap();
    let guest = || bed.show()["ports"][2]["host"].clone();
    bed.until(|| guest()["counters"]["refused_connections"] == 1);
    assert!(
        guest()["last_refusal"].as_str().unwrap().contains("uid 0 may not be the frontend, only uid 1"),
        "{}",
        guest()
    );
}

#[test]
fn a_thread_that_stands_still_is_shown_and_the_service_manager_hears_nothing_meanwhile() {
    if !is_root_of_the_machine() {
        return;
    }
    let mut bed = Bed::unstarted("watchdog", "");
    bed.ask_for_heartbeats();
    bed.start_again();
    let stalled = |port: usize| bed.show()["ports"][port]["queues"][0]["stalled"].clone();
    let heartbeat = || assert_eq!(bed.next_notice(), "WATCHDOG=1");
    heartbeat();
    assert!(stalled(0).is_null());
    let thread = bed.show()["ports"][0]["queues"][0]["thread"].as_i64().unwrap();
    let stopped = StoppedThread::new(thread as i32).unwrap();
    bed.until(|| stalled(0).is_string());
    let said = format!("thread {thread} of port \"a\" has stood still for a second");
    assert!(bed.stderr().contains(&said), "{}", bed.stderr());
    let text = String::from_utf8(bed.run(&["show", "a", "--interval", "0"]).stdout).unwrap();
    assert!(text.contains("0 (stalled"), "{text}");
    // Drop the earlier notifications to the service manager. No notification may arrive while the thread is blocked.
    bed.drop_notices();
    bed.run(&["show"]);
    assert!(bed.has_no_notice());
    drop(stopped);
    bed.until(|| stalled(0).is_null());
    heartbeat();
    bed.carry_tcp();
}

/// Returns a function that waits for the next event of `monitor`.
fn events(bed: &Bed) -> impl FnMut() -> Value + use<> {
    let mut stream = UnixStream::connect(bed.control()).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.write_all(b"{\"version\":1,\"request\":\"monitor\"}\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "{\"version\":1,\"monitoring\":{}}");
    move || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["event"].take()
}

#[test]
fn monitor_says_which_thread_stands_still_and_that_it_goes_on() {
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::start("monitor-stalled", "");
    let mut next = events(&bed);
    let thread = bed.show()["ports"][0]["queues"][0]["thread"].as_i64().unwrap();
    let stopped = StoppedThread::new(thread as i32).unwrap();
    let stalled = next();
    assert_eq!((&stalled["event"], &stalled["thread"]), (&"stalled".into(), &thread.into()), "{stalled}");
    bed.until(|| bed.show()["ports"][0]["queues"][0]["stalled"].is_string());
    let shown = bed.show()["ports"][0]["queues"][0]["stalled"].take();
    assert_eq!(stalled["port"].as_str().unwrap_or_default(), shown.as_str().unwrap());
    drop(stopped);
    let resumed = next();
    assert_eq!((&resumed["event"], &resumed["thread"]), (&"resumed".into(), &thread.into()), "{resumed}");
}

#[test]
fn monitor_says_once_that_a_host_is_gone() {
    let bed = Bed::start("monitor-gone", "");
    let mut next = events(&bed);
    for (side, port) in ["a", "b"].iter().enumerate() {
        bed.host(side).run(|| link::delete(bed::INTERFACE).unwrap()).unwrap();
        let gone = next();
        assert_eq!((&gone["event"], &gone["port"]), (&"gone".into(), &Value::from(*port)), "{gone}");
        let reason = format!("port \"{port}\", queue pair 0: the host is gone: closed (error number ");
        assert!(gone["reason"].as_str().unwrap().starts_with(&reason), "{gone}");
    }
}

#[test]
fn a_second_control_socket_shows_and_changes_nothing() {
    let mut bed = Bed::unstarted("read-only", "");
    let socket = bed.file().with_file_name("show.sock");
    let key = format!("[daemon]\ncontrol_read_only = \"{}\"\n", socket.display());
    bed.rewrite(|text| text.replacen("[daemon]\n", &key, 1));
    bed.start_without_hosts();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let ask = |args: &[&str]| offramp(&[args, &["--control", socket.to_str().unwrap()]].concat());
    assert!(ask(&["show", "--json", "--interval", "0"]).status.success());
    let refused = ask(&["set", "a", "lso", "off"]);
    assert!(!refused.status.success());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("only shows") && message.contains("daemon.control "), "{message}");
    assert!(bed.run(&["set", "a", "lso", "off"]).status.success());
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    assert!(!socket.exists());
}

/// Sends the HTTP request of a scrape over a stream, and returns the answer without its head.
fn scraped(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: offramp\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn prometheus_reads_what_show_says_of_a_daemon_in_its_sandbox() {
    let mut bed = Bed::unstarted("metrics", "");
    let socket = bed.file().with_file_name("metrics.sock");
    let text = fs::read_to_string(bed.file()).unwrap();
    let with = |address: &str| text.replacen("[daemon]\n", &format!("[daemon]\nmetrics = \"{address}\"\n"), 1);
    fs::write(bed.file(), with(socket.to_str().unwrap())).unwrap();
    bed.start_again();
    bed.carry_tcp();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = release.trim_end();
    bed.until(|| {
        let (shown, text) = (bed.show(), scraped(UnixStream::connect(&socket).unwrap()));
        assert!(text.contains(&format!(",kernel=\"{release}\"}} 1\n")) && text.ends_with("# EOF\n"), "{text}");
        ["a", "b"].iter().enumerate().all(|(at, name)| {
            let transmit = &shown["ports"][at]["queues"][0]["transmit"];
            let labels = format!("{{port=\"{name}\",direction=\"transmit\",queue=\"0\"");
            text.contains(&format!("\nofframp_bytes_out_total{labels}}} {}\n", transmit["bytes_out"]))
                && text.contains(&format!("\nofframp_lost_frames_total{labels},reason=\"drop\"}} "))
                && text.contains(&format!("\nofframp_link_on{{port=\"{name}\"}} 1\n"))
                && text.contains(&format!(
                    "\nofframp_batch_frames_sum{labels}}} {:?}\n",
                    transmit["host_frames"].as_f64().unwrap()
                ))
                && text.contains(&format!(
                    "\nofframp_batch_frames_bucket{{le=\"+Inf\",port=\"{name}\",direction=\"transmit\",queue=\"0\"}} "
                ))
        })
    });
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
    assert!(!socket.exists());
}

#[test]
fn counters_are_served_on_an_address_of_the_machine_too() {
    let mut bed = Bed::unstarted("metrics-tcp", "");
    // Use a port that the kernel has just reported as free.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    bed.rewrite(|text| text.replacen("[daemon]\n", &format!("[daemon]\nmetrics = \"{address}\"\n"), 1));
    bed.start_without_hosts();
    assert!(scraped(TcpStream::connect(address).unwrap()).contains("offramp_feature_in_use{"));
    let second = offramp(&["up", bed.file().to_str().unwrap()]);
    refused(&second, &["daemon.control"]);
}
