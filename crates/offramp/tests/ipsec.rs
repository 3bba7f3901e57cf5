//! Tests of IPsec from a user's view. A daemon's ports protect their traffic, and the tests check the packets on the
//! wire between the ports. Further tests check the errors for a wrong association.

#[allow(dead_code, reason = "shared with the tests of `up`")]
#[path = "up/bed.rs"]
mod bed;

use bed::{Bed, Directory, offramp, on_switch, queue_sum, refused};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use offramp_offload::checksum;
use offramp_offload::esp::Arrival;
use offramp_offload::frame::Frame;
use offramp_ports::sys::{NetNs, link};
use offramp_testkit::{Guest, VnetHeader};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The veth pair between the adapters.
const LINE: [&str; 2] = ["ofrline0", "ofrline1"];
const PROTOCOL_ESP: u8 = 50;

/// Writes a key file for AES-128-GCM. The file for each `number` has a different key.
fn key_file(directory: &Path, number: u8) -> PathBuf {
    let file = directory.join(format!("{number}.key"));
    fs::write(&file, hex_key(number)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

fn hex_key(number: u8) -> String {
    (0..20_u8).map(|n| format!("{:02x}", n.wrapping_mul(7) ^ number)).collect::<Vec<_>>().concat()
}

/// Returns the lines of an association in the daemon's file.
fn sa(direction: &str, spi: u32, number: u8) -> String {
    format!(
        "[[port.sa]]\ndirection = \"{direction}\"\nspi = {spi:#x}\nsuite = \"aes128gcm16\"\nkey_file = \"{number}.key\"\n"
    )
}

/// Returns the lines for both ports in the daemon's file: SPI 0x1001 from a to b, and SPI 0x1002 from b to a.
fn both_ways() -> [String; 2] {
    [sa("out", 0x1001, 1) + &sa("in", 0x1002, 2), sa("out", 0x1002, 2) + &sa("in", 0x1001, 1)]
}

/// Returns a daemon, not started yet, whose ports protect all traffic.
fn unstarted(name: &str) -> Bed {
    let bed = Bed::unstarted(name, "");
    let state = format!("[daemon]\nstate_directory = \"{}\"\n", bed.file().with_file_name("state").display());
    bed.rewrite(|text| text.replace("[daemon]\n", &state));
    let directory = bed.file().parent().unwrap().to_owned();
    for number in 1..=2 {
        key_file(&directory, number);
    }
    let [a, b] = both_ways();
    bed.rewrite(|text| text.replace("# changes of a\n", &a).replace("# changes of b\n", &b));
    bed
}

fn associations(status: &Value, port: usize) -> Vec<(String, u64, String, u64)> {
    let all = status["ports"][port]["ipsec"]["associations"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |sa: &Value| {
        (text(&sa["direction"]), sa["spi"].as_u64().unwrap(), text(&sa["state"]), sa["packets"].as_u64().unwrap())
    };
    all.iter().map(row).collect()
}

/// Returns all losses on the queue pairs of both ports.
fn lost(status: &Value) -> Vec<String> {
    let mut lost = Vec::new();
    for port in status["ports"].as_array().unwrap() {
        for queue in port["queues"].as_array().unwrap() {
            for way in ["transmit", "receive"] {
                let counted = queue[way]["lost"].as_object().unwrap().iter().filter(|(_, count)| **count != 0);
                lost.extend(counted.map(|(reason, count)| format!("{} {way} {reason}: {count}", port["name"])));
            }
        }
    }
    lost
}

#[test]
fn tcp_crosses_a_protected_cable_in_super_frames_and_show_tells_the_associations() {
    let mut bed = unstarted("esp-cable");
    bed.start_again();
    bed.carry_tcp();
    let status = bed.show_at_rest();
    assert_eq!(lost(&status), Vec::<String>::new());
    for port in 0..2 {
        let shown = associations(&status, port);
        assert_eq!(shown.len(), 2);
        assert!(shown.iter().all(|(_, _, state, packets)| state == "alive" && *packets > 0), "{shown:?}");
    }
    let sealed = associations(&status, 0)[0].3;
    let on_line = queue_sum(&status, "a", "transmit", "frames_out");
    // The remaining frames on the wire are not IP packets, so they are not sealed.
    assert!(sealed <= on_line && on_line - sealed < 20, "{sealed} of {on_line}");
    // Segmentation and coalescing work as without encryption.
    for (port, way) in [("a", "transmit"), ("b", "receive")] {
        let (frames, host) =
            (queue_sum(&status, port, way, "frames_out"), queue_sum(&status, port, way, "host_frames"));
        assert!(host * 2 < frames, "{port} {way}: {host} super-frames of {frames} frames");
    }
    let text = bed.run(&["show", "a", "--interval", "0"]).stdout;
    let text = String::from_utf8(text).unwrap();
    for word in ["IPsec by ", "discard on transmit", "SA out 0x00001001: alive, aes128gcm16, transport", "packets"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains(&hex_key(1)[..16]));
}

#[test]
fn tcp_crosses_a_switch_between_two_protected_ports() {
    let mut bed = unstarted("esp-switch");
    bed.rewrite(on_switch);
    bed.start_again();
    bed.carry_tcp();
    let status = bed.show_at_rest();
    assert_eq!(lost(&status), Vec::<String>::new());
    for port in 0..2 {
        let shown = associations(&status, port);
        assert_eq!(shown.len(), 2);
        assert!(shown.iter().all(|(_, _, state, packets)| state == "alive" && *packets > 0), "{shown:?}");
    }
    // Segmentation and coalescing work as on a cable.
    for (port, way) in [("a", "transmit"), ("b", "receive")] {
        let (frames, host) =
            (queue_sum(&status, port, way, "frames_out"), queue_sum(&status, port, way, "host_frames"));
        assert!(host * 2 < frames, "{port} {way}: {host} super-frames of {frames} frames");
    }
    // An association of a port on a switch can be deleted, too.
    assert!(bed.run(&["sa", "del", "b", "in", "0x1001"]).status.success());
    bed.until(|| associations(&bed.show(), 1).len() == 1);
}

/// Guests on the switch, their addresses, and their number of queue pairs.
const GUESTS: [&str; 2] = ["vm0", "vm1"];
const GUEST_ADDRESSES: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];
const GUEST_PAIRS: usize = 4;
const FLOWS: u16 = 64;

/// Returns a complete UDP frame from guest `side` to `to`. `flow` is the source port.
fn datagram(side: usize, to: ([u8; 6], [u8; 4]), flow: u16) -> Vec<u8> {
    let mut frame = [to.0.as_slice(), &[2, 9, 0, 0, 0, side as u8], &[8, 0]].concat();
    frame.extend([0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([GUEST_ADDRESSES[side], to.1].concat());
    let header_checksum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&header_checksum.to_be_bytes());
    frame.extend(flow.to_be_bytes());
    frame.extend([0, 9, 0, 16, 0, 0]);
    frame.extend([7; 8]);
    Frame::received(&mut frame).write_checksum();
    frame
}

/// Sends a datagram of each flow, and waits until the port has fetched all datagrams.
fn send_flows(guest: &mut Guest, side: usize, to: ([u8; 6], [u8; 4])) {
    for flow in 0..FLOWS {
        guest.tx(0).stage(&VnetHeader::default(), &[&datagram(side, to, flow)]).expect("room in the ring");
    }
    guest.tx(0).publish();
    guest.tx(0).drain(Duration::from_secs(20));
}

/// Adds two guests to the daemon's file, on the same switch as the bed's two TAPs, and returns the guests' sockets. The
/// ports of the guests protect the traffic between the guests.
fn on_one_switch(bed: &Bed) -> [PathBuf; 2] {
    let directory = bed.file().parent().unwrap().to_owned();
    let text = fs::read_to_string(bed.file()).unwrap();
    let mut text = on_switch(&text.replace("queue_pairs = 1", "queue_pairs = 3"));
    for number in 1..=2_u8 {
        // Each file contains the keys of cipher and HMAC.
        let keys = [number, number + 2].map(|byte| format!("{byte:02x}").repeat(32)).join("\n");
        fs::write(key_file(&directory, number), keys).unwrap();
    }
    let sockets = GUESTS.map(|guest| directory.join(format!("{guest}.sock")));
    for (side, guest) in GUESTS.iter().enumerate() {
        let [own, other] = [GUEST_ADDRESSES[side], GUEST_ADDRESSES[1 - side]].map(Ipv4Addr::from);
        text = format!(
            "{text}[[port]]\nname = \"{guest}\"\nhost = {{ vhost_user = \"{}\", queue_pairs = {GUEST_PAIRS} }}\n\
             wire.switch = \"lan\"\n[port.ipsec]\ntransmit = \"bypass\"\nreceive = \"bypass\"\n",
            sockets[side].display()
        );
        for (direction, spi, from, to) in
            [("out", 0x1001 + side as u32, own, other), ("in", 0x1002 - side as u32, other, own)]
        {
            let sa = sa(direction, spi, (spi - 0x1000) as u8).replace("aes128gcm16", "aes256-sha256");
            text = format!("{text}{sa}selector = {{ source = \"{from}\", destination = \"{to}\" }}\n");
        }
    }
    fs::write(bed.file(), text).unwrap();
    sockets
}

/// Connects a guest and fills all its receive queues.
fn guest_with_all_pairs(socket: &Path) -> Guest {
    let mut guest = Guest::builder().queue_size(256).queue_pairs(GUEST_PAIRS as u16).connect(socket);
    (0..GUEST_PAIRS).for_each(|pair| assert!(guest.rx(pair).fill(200, 1526) > 0));
    guest
}

/// Sends a frame on a guest's last pair. A queue pair counts as running after its thread has fetched a frame. Until
/// further pairs run, the first pair receives all flows. The frame is too short for the switch to learn a station from
/// it.
fn run_last_pair(guest: &mut Guest) {
    let last = guest.tx(GUEST_PAIRS - 1);
    last.stage(&VnetHeader::default(), &[&[0; 10]]).expect("room in the ring");
    last.publish();
    last.drain(Duration::from_secs(20));
}

#[test]
fn a_switch_protects_steers_and_moderates_for_two_guests_and_a_tap() {
    let mut bed = Bed::unstarted("esp-guests", "");
    let sockets = on_one_switch(&bed);
    bed.start_again();
    let (tap, capture) = bed
        .host(0)
        .run(|| {
            let capture =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap();
            (link::mac(bed::INTERFACE).unwrap(), capture)
        })
        .unwrap();
    assert!(bed.run(&["set", "a", "moderation", "rx_usecs=100000"]).status.success());
    let mut guests = sockets.map(|socket| guest_with_all_pairs(&socket));
    run_last_pair(&mut guests[1]);

    // Traffic between the guests is encrypted on the switch and unencrypted in the guest. Each flow stays on one pair.
    let mut places = BTreeMap::new();
    for _ in 0..3 {
        send_flows(&mut guests[0], 0, ([2, 9, 0, 0, 0, 1], GUEST_ADDRESSES[1]));
        let mut came = 0;
        bed.until(|| {
            for pair in 0..GUEST_PAIRS {
                while let Some(received) = guests[1].rx(pair).try_recv() {
                    let flow = u16::from_be_bytes([received.frame[34], received.frame[35]]);
                    assert_eq!(received.frame, datagram(0, ([2, 9, 0, 0, 0, 1], GUEST_ADDRESSES[1]), flow));
                    assert_eq!(*places.entry(flow).or_insert(pair), pair, "flow {flow}");
                    came += 1;
                }
            }
            came == FLOWS
        });
    }
    // With a fair hash, the probability of an unused pair is 10^-7.
    assert_eq!(places.values().collect::<BTreeSet<_>>().len(), GUEST_PAIRS);
    let status = bed.show();
    for (port, way) in [("vm0", "out"), ("vm1", "in")] {
        let index = status["ports"].as_array().unwrap().iter().position(|shown| shown["name"] == port).unwrap();
        let shown = associations(&status, index);
        assert!(shown.iter().any(|sa| sa.0 == way && sa.3 == 3 * u64::from(FLOWS)), "{port}: {shown:?}");
    }
    // The switch had not learnt the second guest's address, so it flooded the frames to the TAP. The TAP received them
    // encrypted.
    let of_guests = |frame: &Vec<u8>| frame[6..11] == [2, 9, 0, 0, 0];
    let mut flooded = Vec::new();
    bed.until(|| {
        flooded.extend(captured(&capture).into_iter().filter(of_guests));
        flooded.len() == 3 * usize::from(FLOWS)
    });
    assert!(flooded.iter().all(|frame| frame[23] == PROTOCOL_ESP));

    // Traffic to the TAP is unencrypted. The TAP's port delivers more than two frames per interrupt.
    let before = queue_sum(&bed.show(), "a", "receive", "interrupts");
    send_flows(&mut guests[0], 0, (tap, [10, 9, 0, 3]));
    let mut clear = Vec::new();
    bed.until(|| {
        clear.extend(captured(&capture).into_iter().filter(of_guests));
        clear.len() == usize::from(FLOWS)
    });
    for (flow, frame) in clear.iter().enumerate() {
        assert_eq!(*frame, datagram(0, (tap, [10, 9, 0, 3]), flow as u16));
    }
    let interrupts = queue_sum(&bed.show(), "a", "receive", "interrupts") - before;
    assert!((1..u64::from(FLOWS) / 2).contains(&interrupts), "{interrupts} interrupts for {FLOWS} frames");
    drop(guests);
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
}

#[test]
fn several_queue_pairs_with_threads_of_their_own_share_the_associations() {
    let mut bed = unstarted("esp-queues");
    let text = fs::read_to_string(bed.file()).unwrap();
    let cpus = offramp_ports::sys::cpu::online();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let text = text
        .replace("queue_pairs = 1", "queue_pairs = 3")
        .replace("name = \"a\"", &format!("name = \"a\"\ncpus = [{first}]"));
    fs::write(bed.file(), text.replace("name = \"b\"", &format!("name = \"b\"\ncpus = [{last}]"))).unwrap();
    bed.start_again();
    for _ in 0..4 {
        // Open another connection, which may use another queue pair.
        bed.carry_tcp_for("0.1");
    }
    let status = bed.show();
    // On a busy machine, a thread may run too late for the replay window. No frame may be lost for another reason.
    assert!(lost(&status).iter().all(|line| line.contains("receive too_old")), "{:?}", lost(&status));
    for (port, spi) in [(0, 0x1001), (1, 0x1001)] {
        let protected = associations(&status, port).into_iter().find(|sa| sa.1 == spi).unwrap().3;
        let (name, way) = [("a", "transmit"), ("b", "receive")][port];
        assert!(protected <= queue_sum(&status, name, way, "frames_in"), "{protected}");
        assert!(protected > 0);
    }
    let windows = status["ports"][1]["ipsec"]["associations"].as_array().unwrap();
    assert!(windows.iter().all(|sa| sa["replay_window"] == 65_536));
}

#[test]
fn a_rekey_under_load_loses_no_frame() {
    let mut bed = unstarted("esp-rekey");
    bed.start_again();
    let directory = bed.file().parent().unwrap().to_owned();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| bed.carry_tcp_for("1.5"));
        let mut turn = 0;
        while !load.is_finished() {
            for (receiver, sender, base) in [("b", "a", 0x1001), ("a", "b", 0x1002)] {
                let (old, new) = (base + 0x10 * turn, base + 0x10 * (turn + 1));
                let file = key_file(&directory, (0x20 + turn * 2 + base % 0x10) as u8);
                let (old, new) = (format!("{old:#x}"), format!("spi={new:#x}"));
                let key = format!("key_file={}", file.display());
                for (port, way) in [(receiver, "in"), (sender, "out")] {
                    let done = bed.run(&["sa", "rekey", port, way, &old, &new, &key]);
                    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                }
            }
            turn += 1;
        }
        assert!(turn > 1);
        load.join().unwrap();
    });
    let status = bed.show_at_rest();
    assert_eq!(lost(&status), Vec::<String>::new());
    let shown = associations(&status, 1);
    assert!(
        shown.iter().any(|(way, _, state, packets)| way == "in" && state == "retiring" && *packets > 0),
        "{shown:?}"
    );
}

/// Returns the frames that a packet socket has captured since the last call.
fn captured(socket: &impl AsRawFd) -> Vec<Vec<u8>> {
    let (mut frames, mut buffer) = (Vec::new(), vec![0; 65536]);
    while let Ok(len) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        frames.push(buffer[..len].to_vec());
    }
    frames
}

/// Returns a namespace with a veth pair used as the wire, and a packet socket that captures its frames.
fn captured_line() -> (NetNs, OwnedFd) {
    let line = NetNs::new().unwrap();
    let capture = line.run(|| {
        link::create_veth(LINE[0], LINE[1]).unwrap();
        for end in LINE {
            if Path::new("/proc/sys/net/ipv6").exists() {
                link::disable_ipv6(end).unwrap();
            }
            link::set_up(end).unwrap();
        }
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap()
    });
    (line, capture.unwrap())
}

/// Replaces the cable by the veth pair in the daemon's file.
fn on_line(bed: &Bed) {
    bed.rewrite(|text| {
        text.replace("cable = \"b\"", "packet = \"ofrline0\"").replace("cable = \"a\"", "packet = \"ofrline1\"")
    });
}

/// Sets permanent neighbours on both hosts, to avoid ARP.
fn set_neighbours(bed: &Bed) {
    let macs = [0, 1].map(|side| bed.host(side).run(|| link::mac(bed::INTERFACE).unwrap()).unwrap());
    for (side, other) in [(0, 1), (1, 0)] {
        let address = IpAddr::V4(bed::ADDRESSES[other]);
        bed.host(side).run(|| link::add_neighbour(bed::INTERFACE, address, macs[other]).unwrap()).unwrap();
    }
}

#[test]
fn a_capture_on_the_line_between_two_adapters_sees_esp_and_nothing_else() {
    let (line, capture) = captured_line();
    let own = line.run(|| LINE.map(|end| link::mac(end).unwrap())).unwrap();
    let mut bed = unstarted("esp-capture");
    on_line(&bed);
    bed.start_in(line);
    set_neighbours(&bed);
    bed.carry_tcp();
    let mut frames = captured(&capture);
    // Remove frames that the kernel itself sends on the interfaces.
    frames.retain(|frame| own.iter().all(|mac| frame[6..12] != mac[..]));
    assert!(frames.len() > 20, "{} frames were captured", frames.len());
    for frame in &frames {
        // IPv6 multicasts of the hosts' kernels are encrypted after their hop-by-hop header.
        let layout = Frame::received(&mut frame.clone()).layout().copied().unwrap();
        assert_eq!(layout.protocol, PROTOCOL_ESP, "{:02x?}", &frame[..40]);
    }
    let status = bed.show();
    assert!(associations(&status, 1)[1].3 > 0);
    assert!(queue_sum(&status, "a", "transmit", "host_frames") < queue_sum(&status, "a", "transmit", "frames_out"));
    bed.signal(Signal::SIGTERM);
    assert_eq!(bed.wait().code(), Some(0), "{}", bed.stderr());
}

#[test]
fn associations_come_and_go_at_run_time_and_a_wrong_one_changes_nothing() {
    let bed = Bed::start("esp-sa", "");
    let directory = bed.file().parent().unwrap().to_owned();
    let open = key_file(&directory, 9);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let good = key_file(&directory, 8);
    let key = |file: &Path| format!("key_file={}", file.display());
    let add = |words: &[&str]| bed.run(&[&["sa", "add", "a", "direction=out", "suite=aes128gcm16"], words].concat());
    refused(&add(&["spi=0x1001", &key(&open)]), &["sa: key file", "mode 0644", "chmod 600"]);
    refused(&add(&["spi=0x1001", "key=0011"]), &["never written on a command line"]);
    refused(&add(&["spi=0xff", &key(&good)]), &["port \"a\": SA 0x000000ff", "reserved"]);
    refused(&add(&["spi=0x1001", "replay_window=9", &key(&good)]), &["port \"a\": SA 0x00001001", "replay window"]);
    let legacy = ["sa", "add", "a", "direction=out", "suite=3des-sha1", "spi=0x1001", &key(&good)];
    refused(&bed.run(&legacy), &["3des-sha1 takes 2 keys"]);
    assert_eq!(associations(&bed.show(), 0), []);
    assert!(add(&["spi=0x1001", &key(&good)]).status.success());
    refused(&add(&["spi=0x1001", &key(&good)]), &["port \"a\": SA 0x00001001", "another SA has this SPI"]);
    refused(&bed.run(&["sa", "del", "a", "in", "0x1001"]), &["port \"a\": SA in 0x00001001: there is none"]);
    refused(
        &bed.run(&["sa", "rekey", "a", "out", "0x1001", "spi=0x1002", &key(&good)]),
        &["new keys are the old ones"],
    );
    // The other port can use that key for receiving from this port, but not for sending.
    let other = |way: &str, spi: &str| bed.run(&["sa", "add", "b", way, "suite=aes128gcm16", spi, &key(&good)]);
    refused(
        &other("direction=out", "spi=0x2001"),
        &["port \"b\": SA out 0x00002001: port \"a\" seals with the same key"],
    );
    assert!(other("direction=in", "spi=0x1001").status.success());
    assert!(bed.run(&["sa", "del", "b", "in", "0x1001"]).status.success());
    // Read the key from standard input.
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(["sa", "rekey", "a", "out", "0x1001", "spi=0x1002", "key_file=-", "--control"]).arg(bed.control());
    let mut rekey = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut rekey.stdin.take().unwrap(), hex_key(7).as_bytes()).unwrap();
    let output = rekey.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("SA out 0x00001002: alive"));
    assert_eq!(associations(&bed.show(), 0), [("out".to_owned(), 0x1002, "alive".to_owned(), 0)]);
    assert!(bed.run(&["sa", "del", "a", "out", "0x1002"]).status.success());
    // The selector of the deleted association stays as a policy. Traffic that matches it is lost until the file is read
    // again.
    assert!(
        bed.show()["ports"][0]["ipsec"]["policies"][0].as_str().unwrap().starts_with("out protect: all of IP, of an")
    );
    let text = fs::read_to_string(bed.file()).unwrap();
    let [a, b] = ["out", "in"].map(|way| format!("[[port.policy]]\ndirection = \"{way}\"\naction = \"bypass\"\n"));
    fs::write(
        bed.file(),
        text.replace("# changes of a\n", &format!("{a}{b}")).replace("# changes of b\n", &format!("{a}{b}")),
    )
    .unwrap();
    bed.signal(Signal::SIGHUP);
    bed.until(|| bed.stderr().contains("reloaded\n"));
    bed.carry_tcp();
    assert!(!bed.stderr().contains(&hex_key(8)[..16]));
    // The log names the client that made a change.
    let who = format!("offramp: uid {}, process ", nix::unistd::geteuid());
    let stderr = bed.stderr();
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with(&who)).collect();
    for change in ["sa add \"out\"", "sa del \"out\"", ": done", ": refused"] {
        assert!(lines.iter().any(|line| line.contains(change)), "{change} in {stderr}");
    }
}

#[test]
fn nothing_goes_in_the_clear_when_an_association_is_deleted_or_its_daemon_has_started_again() {
    let (line, capture) = captured_line();
    let mut bed = Bed::unstarted("esp-open", "");
    on_line(&bed);
    // The file has no associations: only a client adds associations.
    let text = fs::read_to_string(bed.file()).unwrap();
    fs::write(
        bed.file(),
        text.replace("# changes of a\n", "[port.ipsec]\n").replace("# changes of b\n", "[port.ipsec]\n"),
    )
    .unwrap();
    let key = format!("key_file={}", key_file(bed.file().parent().unwrap(), 4).display());
    let add = ["sa", "add", "a", "direction=out", "spi=0x1001", "suite=aes128-sha256", &key];
    fs::write(
        bed.file().with_file_name("4.key"),
        format!("{} {}", &hex_key(4)[..32], hex_key(5).repeat(2).get(..64).unwrap()),
    )
    .unwrap();
    bed.start_in(line);
    let mut clear = 0;
    for round in 0..2 {
        set_neighbours(&bed);
        let send = || {
            let socket = UdpSocket::bind((bed::ADDRESSES[0], 0)).unwrap();
            (0..20).for_each(|_| drop(socket.send_to(b"secret", (bed::ADDRESSES[1], 9))));
        };
        let discarded = |lost: u64| bed.until(|| queue_lost(&bed.show(), "a", "transmit", "discard") >= lost);
        bed.host(0).run(send).unwrap();
        discarded(20);
        assert!(bed.run(&add).status.success());
        bed.host(0).run(send).unwrap();
        bed.until(|| associations(&bed.show(), 0)[0].3 >= 20);
        assert!(bed.run(&["sa", "del", "a", "out", "0x1001"]).status.success());
        bed.host(0).run(send).unwrap();
        discarded(40);
        if round == 0 {
            bed.signal(Signal::SIGKILL);
            bed.wait();
            bed.start_again();
        }
        let frames = captured(&capture);
        assert!(frames.iter().any(|frame| esp_of(frame).is_some()));
        clear += frames.iter().filter(|frame| frame.windows(6).any(|bytes| bytes == b"secret")).count();
    }
    assert_eq!(clear, 0, "datagrams in the clear");
}

/// Returns the number of frames lost for `reason` on a port's first queue pair.
fn queue_lost(status: &Value, port: &str, way: &str, reason: &str) -> u64 {
    bed::direction(status, port, way)["lost"][reason].as_u64().unwrap()
}

#[test]
fn a_lifetime_that_ends_is_printed_and_shown() {
    let mut bed = unstarted("esp-life");
    let limited = sa("out", 0x1001, 1) + "lifetime = { soft_packets = 1, hard_seconds = 1 }\n";
    bed.rewrite(|text| text.replacen(&sa("out", 0x1001, 1), &limited, 1));
    bed.start_again();
    bed.until(|| associations(&bed.show(), 0)[0].2 == "expired");
    bed.until(|| bed.stderr().contains("port \"a\": SA out 0x00001001: a hard lifetime is reached"));
    assert!(bed.show()["ports"][0]["ipsec"]["events"].to_string().contains("hard lifetime"));
}

#[test]
fn sighup_installs_what_is_new_in_the_file_and_retires_what_is_gone() {
    let mut bed = unstarted("esp-reload");
    bed.start_again();
    bed.carry_tcp();
    let directory = bed.file().parent().unwrap().to_owned();
    key_file(&directory, 5);
    let text = fs::read_to_string(bed.file()).unwrap();
    let renewed =
        text.replace(&sa("out", 0x1001, 1), &sa("out", 0x1005, 5)).replace(&sa("in", 0x1001, 1), &sa("in", 0x1005, 5));
    fs::write(bed.file(), &renewed).unwrap();
    bed.signal(Signal::SIGHUP);
    bed.until(|| bed.stderr().contains("reloaded\n"));
    let spis = |port: usize| associations(&bed.show(), port).into_iter().map(|sa| (sa.1, sa.2)).collect::<Vec<_>>();
    assert_eq!(spis(0), [(0x1005, "alive".to_owned()), (0x1002, "alive".to_owned())]);
    let right =
        [(0x1002, "alive"), (0x1001, "retiring"), (0x1005, "alive")].map(|(spi, state)| (spi, state.to_owned()));
    assert_eq!(spis(1), right);
    bed.carry_tcp();
    // The same SPI with other keys is refused, and no part of the file is applied.
    key_file(&directory, 1);
    fs::write(bed.file(), renewed.replace("5.key", "1.key")).unwrap();
    bed.signal(Signal::SIGHUP);
    bed.until(|| bed.stderr().contains("SA out 0x00001005 is in force and cannot change"));
    bed.carry_tcp();
    assert_eq!(lost(&bed.show_at_rest()), Vec::<String>::new());
}

#[test]
fn sighup_brings_back_nothing_that_a_rekey_has_replaced() {
    let mut bed = unstarted("esp-rekeyed");
    bed.start_again();
    bed.carry_tcp();
    let key = format!("key_file={}", key_file(bed.file().parent().unwrap(), 6).display());
    let receiver = ["sa", "rekey", "b", "in", "0x1001", "spi=0x1006", &key, "--grace-seconds", "0"];
    let sender = ["sa", "rekey", "a", "out", "0x1001", "spi=0x1006", &key];
    assert!(bed.run(&receiver).status.success() && bed.run(&sender).status.success());
    let spis = |port: usize| associations(&bed.show(), port).into_iter().map(|sa| sa.1).collect::<Vec<_>>();
    bed.until(|| spis(1) == [0x1002, 0x1006]);
    bed.signal(Signal::SIGHUP);
    bed.until(|| bed.stderr().contains("reloaded\n"));
    // Reinstalling the old key would start with an empty replay window.
    assert_eq!([spis(0), spis(1)], [[0x1006, 0x1002], [0x1002, 0x1006]]);
    bed.carry_tcp();
}

#[test]
fn a_key_that_has_sealed_on_one_port_seals_on_no_other_unless_it_continues() {
    let mut bed = unstarted("esp-moved");
    bed.start_again();
    bed.carry_tcp();
    let key = format!("key_file={}", bed.file().with_file_name("1.key").display());
    assert!(bed.run(&["sa", "del", "a", "out", "0x1001"]).status.success());
    assert!(bed.run(&["sa", "del", "b", "in", "0x1001"]).status.success());
    let add = |words: &[&str]| {
        bed.run(
            &[&["sa", "add", "b", "direction=out", "spi=0x1009", "suite=aes128gcm16", key.as_str()], words].concat(),
        )
    };
    let moved = add(&[]);
    refused(&moved, &["port \"b\": SA out 0x00001009: its key has sealed packets before"]);
    let message = String::from_utf8(moved.stderr).unwrap();
    let sequence = message.trim().rsplit(' ').next().unwrap();
    assert!(add(&[&format!("sequence={sequence}")]).status.success(), "{sequence} of {message}");
}

/// Returns the SPI and the sequence number of the ESP packet in a frame.
fn esp_of(frame: &[u8]) -> Option<(u32, u32)> {
    match Arrival::of(&Frame::received(&mut frame.to_vec()), None) {
        Ok(Arrival::Esp(packet)) => Some((packet.spi, packet.sequence)),
        _ => None,
    }
}

#[test]
fn a_daemon_that_is_killed_under_traffic_uses_no_number_of_a_key_twice() {
    const KILLS: usize = 10;
    let (line, capture) = captured_line();
    let mut bed = unstarted("esp-killed");
    on_line(&bed);
    bed.start_in(line);
    let mut numbers = BTreeMap::new();
    for kill in 0..KILLS {
        if kill > 0 {
            bed.start_again();
        }
        set_neighbours(&bed);
        let (mut frames, is_killed) = (Vec::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| bed.host(0).run(|| send_datagrams(kill, &is_killed)).unwrap());
            // Kill the daemon during the traffic, each time at a different point.
            bed.until(|| {
                frames.extend(captured(&capture));
                frames.len() > 100 + 150 * kill
            });
            bed.signal(Signal::SIGKILL);
            is_killed.store(true, Relaxed);
            sender.join().unwrap();
        });
        bed.wait();
        frames.extend(captured(&capture));
        let before = numbers.len();
        for frame in frames {
            let Some(number) = esp_of(&frame) else { continue };
            // Each frame is captured at both interfaces of the wire's veth pair.
            let known = numbers.entry(number).or_insert_with(|| frame.clone());
            assert!(*known == frame, "{number:x?} came twice, after {kill} kills");
        }
        assert!(numbers.len() > before + 50, "{} new numbers", numbers.len() - before);
    }
}

/// Sends datagrams to the other host until the daemon is killed.
fn send_datagrams(kill: usize, is_killed: &AtomicBool) {
    let socket = UdpSocket::bind((bed::ADDRESSES[0], 0)).unwrap();
    // The limit ends the loop if the test fails before the kill.
    for n in 0..10_000_000_u32 {
        if is_killed.load(Relaxed) {
            return;
        }
        // The interface's queue may be full, so an error is ignored.
        let _ = socket.send_to(format!("{kill} {n}").as_bytes(), (bed::ADDRESSES[1], 9));
    }
}

#[test]
fn a_wrong_association_in_the_file_is_one_line_that_names_the_entry() {
    let directory = Directory::new("esp-wrong");
    let file = directory.path("wrong.toml");
    key_file(file.parent().unwrap(), 1);
    let open = key_file(file.parent().unwrap(), 3);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).unwrap();
    let keys_of_3des: Vec<_> = (0..44_u8).map(|n| format!("{:02x}", 2 * n + 1)).collect();
    let old_peer = directory.path("3des.key");
    fs::write(&old_peer, keys_of_3des[..24].concat() + " " + &keys_of_3des[24..].concat()).unwrap();
    fs::set_permissions(&old_peer, fs::Permissions::from_mode(0o600)).unwrap();
    let port = "[daemon]\nstate_directory = \"/var/lib/offramp\"\n[[port]]\nname = \"a\"\nhost = { tap = \"ofr0\" }\n\
                wire = { packet = \"lo\" }\n";
    let good = sa("out", 0x1001, 1);
    let cases = [
        (good.clone() + &sa("out", 0x1001, 1), "number 2: SA 0x00001001: another SA has this SPI"),
        (sa("out", 0x10, 1), "number 1: SA 0x00000010: this SPI is reserved"),
        (sa("out", 0x1001, 3), "number 1: key file"),
        (sa("out", 0x1001, 4), "number 1: key file"),
        (good.replace("aes128gcm16", "aes129"), "number 1: suite \"aes129\" is not known"),
        (
            good.replace("aes128gcm16", "aes256gcm16"),
            "number 1: SA 0x00001001: aes256gcm16 takes an encryption key of 36",
        ),
        (good.clone() + "replay_window = 5\n", "number 1: SA 0x00001001: a replay window of 5"),
        (
            sa("in", 0x1001, 1).replace("aes128gcm16", "3des-sha1").replace("1.key", "3des.key"),
            "number 1: SA 0x00001001: 3des-sha1 is only for old peers",
        ),
        (good.clone() + "dscp = 9\n", "number 1: dscp belongs to mode"),
        (
            good.clone() + "lifetime = { soft_bytes = 9, hard_bytes = 3 }\n",
            "number 1: SA 0x00001001: lifetime in bytes",
        ),
        (good.clone() + "[port.ipsec]\ntransmit = \"drop\"\n", "port.ipsec.transmit: unknown policy \"drop\""),
    ];
    for (lines, said) in cases {
        fs::write(&file, format!("{port}{lines}")).unwrap();
        refused(&offramp(&["up", "--check", file.to_str().unwrap()]), &["up: ", "wrong.toml:", said]);
    }
    for suite in ["aes128gcm16", "aes128gmac"] {
        let without_state = port.replace("state_directory = \"/var/lib/offramp\"\n", "");
        fs::write(&file, without_state + &good.replace("aes128gcm16", suite)).unwrap();
        let said = "number 1: SA out 0x00001001: a daemon that starts again would use the numbers of this key again";
        refused(
            &offramp(&["up", "--check", file.to_str().unwrap()]),
            &[said, "daemon.state_directory", "offramp sa add"],
        );
    }
    let (_, second) = port.split_once("[[port]]").unwrap();
    let second =
        format!("[[port]]{second}").replace("\"a\"", "\"b\"").replace("ofr0", "ofr1").replace("\"lo\"", "\"eth0\"");
    fs::write(&file, format!("{port}{good}{second}{}{}", sa("in", 0x1001, 2), sa("out", 0x1009, 1))).unwrap();
    key_file(file.parent().unwrap(), 2);
    let said = "port \"b\": [[port.sa]] number 2: SA out 0x00001009: port \"a\" seals with the same key";
    refused(&offramp(&["up", "--check", file.to_str().unwrap()]), &["up: ", "wrong.toml:", said]);
    let on_switch = port.replace("packet = \"lo\"", "switch = \"s\"") + &good + "[[switch]]\nname = \"s\"\n";
    for text in [on_switch, format!("{port}{good}")] {
        fs::write(&file, text).unwrap();
        assert!(offramp(&["up", "--check", file.to_str().unwrap()]).status.success());
    }
}

#[test]
fn a_key_file_of_somebody_else_is_refused() {
    if !bed::is_root_of_the_machine() {
        return;
    }
    let bed = unstarted("esp-owner");
    let key = bed.file().with_file_name("1.key");
    std::os::unix::fs::chown(&key, Some(12_345), None).unwrap();
    refused(
        &offramp(&["up", "--check", bed.file().to_str().unwrap()]),
        &["number 1: key file", "belongs to uid 12345", "chown 0 "],
    );
    refused(
        &bed.run(&[
            "sa",
            "add",
            "a",
            "direction=out",
            "spi=0x1001",
            "suite=aes128gcm16",
            &format!("key_file={}", key.display()),
        ]),
        &["key file", "belongs to uid 12345"],
    );
    // The daemon's user can own the key file, because the daemon reads the file again on SIGHUP.
    bed.rewrite(|text| text.replace("user = \"root\"", "user = \"nobody\""));
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    std::os::unix::fs::chown(&key, Some(nobody.uid.as_raw()), None).unwrap();
    assert!(offramp(&["up", "--check", bed.file().to_str().unwrap()]).status.success());
}

#[test]
fn the_example_is_a_configuration_once_its_keys_are_there() {
    let directory = Directory::new("esp-example");
    let keys = directory.path("1.key").parent().unwrap().to_owned();
    let text = include_str!("../../../examples/ipsec-link.toml");
    let file = directory.path("ipsec-link.toml");
    let text = text.replace("/run/offramp-ipsec-link/left-to-right.key", "1.key");
    fs::write(&file, text.replace("/run/offramp-ipsec-link/right-to-left.key", "2.key")).unwrap();
    refused(&offramp(&["up", "--check", file.to_str().unwrap()]), &["key file", "1.key"]);
    key_file(&keys, 1);
    key_file(&keys, 2);
    assert!(offramp(&["up", "--check", file.to_str().unwrap()]).status.success());
}

/// Runs the script of the README in a private network and mount namespace, with the built program first in the path.
fn link_script(search_path: &str) -> std::process::Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ipsec-link.sh");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh"]).arg(script).env("PATH", search_path).stdin(Stdio::null());
    command.output().expect("unshare, from util-linux")
}

#[test]
fn the_script_of_the_readme_shows_a_link_with_nothing_but_esp_and_ends_if_a_step_fails() {
    let programs = Path::new(env!("CARGO_BIN_EXE_offramp")).parent().unwrap().to_owned();
    let search_path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let ran = link_script(&search_path);
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.ends_with("of them not ESP: 0\n"), "{out}{err}");
    assert!(!out.contains("frames on the wire: 0\n"), "{out}");
    // A sender that fails must not leave the receiver waiting, nor the daemon running.
    let directory = Directory::new("broken-ttcp");
    let broken = directory.path("offramp");
    let real = env!("CARGO_BIN_EXE_offramp");
    let text = format!("#!/bin/sh\ncase \"$*\" in *--seconds*) exit 7 ;; esac\nexec {real} \"$@\"\n");
    fs::write(&broken, text).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let ran = link_script(&format!("{}:{search_path}", broken.parent().unwrap().display()));
    assert_eq!(ran.status.code(), Some(7));
    assert!(!Path::new("/run/offramp-ipsec-link").exists());
}
