//! Tests of `offramp capture`: a capture contains the packets of a running daemon's port, and the port does not wait
//! for a slow reader.

#[allow(dead_code, reason = "shared with other tests of the daemon")]
#[path = "up/bed.rs"]
mod bed;

use bed::{ADDRESSES, Bed, direction, on_switch, queue_sum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A captured packet. The direction is 1 for inbound and 2 for outbound.
#[derive(Debug)]
struct Packet {
    direction: u32,
    comment: String,
    data: Vec<u8>,
    len: u32,
}

/// Returns the packets on the interface `name`, and the number of packets missed by the capture.
fn read(bytes: &[u8], name: &str) -> (Vec<Packet>, u64) {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let (mut packets, mut lost, mut named) = (Vec::new(), None, false);
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                named = interface
                    .options
                    .iter()
                    .any(|option| matches!(option, InterfaceDescriptionOption::IfName(found) if found == name));
            }
            Block::EnhancedPacket(packet) => {
                let mut found = Packet {
                    direction: 0,
                    comment: String::new(),
                    data: packet.data.to_vec(),
                    len: packet.original_len,
                };
                for option in &packet.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => found.direction = *flags,
                        EnhancedPacketOption::Comment(comment) => found.comment = comment.to_string(),
                        _ => {}
                    }
                }
                packets.push(found);
            }
            Block::InterfaceStatistics(statistics) => {
                lost = statistics.options.iter().find_map(|option| match option {
                    InterfaceStatisticsOption::IsbOsDrop(lost) => Some(*lost),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    assert!(named);
    (packets, lost.expect("the statistics are its last block"))
}

/// Starts `offramp capture` for a port. The capture is running on return.
fn capture(bed: &Bed, port: &str, file: &Path, arguments: &[&str]) -> Child {
    let before = bed.stderr().matches("capture of port").count();
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(["capture", port, "-w"]).arg(file).args(arguments).arg("--control").arg(bed.control());
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    bed.until(|| bed.stderr().matches("capture of port").count() > before && file.exists());
    child
}

/// Stops a capture with SIGINT, as a user does.
fn stop(mut capture: Child) {
    kill(Pid::from_raw(capture.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(capture.wait().unwrap().code(), Some(0));
}

#[test]
fn a_capture_has_every_packet_of_the_host_with_its_vnet_header_on_a_cable_and_a_switch() {
    for wire in ["cable", "switch"] {
        let mut bed = Bed::unstarted(&format!("capture-{wire}"), "");
        if wire == "switch" {
            bed.rewrite(on_switch);
        }
        bed.start_again();
        let file = bed.file().with_file_name("b.pcapng");
        let before = bed.show_at_rest();
        let running = capture(&bed, "b", &file, &["--snaplen", "128"]);
        let second = bed.run(&["capture", "b", "-w", "/dev/null"]);
        assert!(String::from_utf8_lossy(&second.stderr).contains("is captured already"));
        // Wait until the threads of the idle port have woken up and joined the capture.
        std::thread::sleep(std::time::Duration::from_millis(300));
        bed.carry_tcp();
        let after = bed.show_at_rest();
        stop(running);
        let (packets, lost) = read(&fs::read(&file).unwrap(), "b");
        let counted = |way| {
            let host_frames = |status| queue_sum(status, "b", way, "host_frames");
            (host_frames(&after) - host_frames(&before)) as usize
        };
        let captured = |direction| packets.iter().filter(|packet| packet.direction == direction).count();
        // On a busy machine the reader may be too slow; the capture then reports losses.
        let [received, sent] = [counted("receive"), counted("transmit")];
        assert_eq!(captured(1) + captured(2) + lost as usize, received + sent, "{wire}");
        assert!(captured(1) <= received && captured(2) <= sent && captured(2) > 0, "{wire}");
        assert!(packets.iter().all(|packet| packet.data.len() == 128.min(packet.len as usize)));
        let coalesced = packets.iter().filter(|packet| packet.comment.contains("gso_type=tcpv4 gso_size=1448"));
        assert!(coalesced.filter(|packet| packet.direction == 1 && packet.len > 1514).count() > 10);
        assert!(packets.iter().all(|packet| !packet.comment.contains("lost=")));
        // The capture has ended: a new capture can start, and no more packets are copied.
        stop(capture(&bed, "b", &bed.file().with_file_name("c.pcapng"), &[]));
        bed.carry_tcp();
    }
}

#[test]
fn a_capture_follows_at_once_on_one_whose_client_was_killed() {
    let bed = Bed::start("capture-killed", "");
    let file = bed.file().with_file_name("b.pcapng");
    for _ in 0..3 {
        let mut killed = capture(&bed, "b", &file, &[]);
        killed.kill().unwrap();
        killed.wait().unwrap();
        fs::remove_file(&file).unwrap();
        stop(capture(&bed, "b", &file, &[]));
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_filter_leaves_the_packets_that_match_and_what_is_said_of_them() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "this test needs tcpdump, and CI skips nothing");
        return println!("skipped: tcpdump compiles filters");
    }
    let bed = Bed::start("capture-filter", "");
    let file = |name: &str| bed.file().with_file_name(name);
    let running = capture(&bed, "b", &file("tcp.pcapng"), &["--filter", "tcp", "--max-loss", "100"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    bed.carry_tcp();
    // Make the host's kernel send an ARP request for an absent neighbour.
    bed.host(1).run(|| drop(UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", ("198.18.0.77", 9)))).unwrap();
    bed.show_at_rest();
    stop(running);
    let (packets, _) = read(&fs::read(file("tcp.pcapng")).unwrap(), "b");
    assert!(packets.iter().all(|packet| packet.data[12..14] == [8, 0] && packet.data[23] == 6), "only TCP");
    assert!(packets.iter().filter(|packet| packet.comment.contains("gso_type=tcpv4")).count() > 10);
    let refused = bed.run(&["capture", "b", "-w", "/dev/null", "--filter", "no such thing"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--filter: tcpdump: "), "{refused:?}");
}

#[test]
fn a_packet_says_why_it_was_lost() {
    let mut bed = Bed::unstarted("capture-lost", "");
    bed.rewrite(|text| text.replace("# changes of a", "mac_addresses = [\"02:00:00:00:00:77\"]"));
    bed.start_again();
    let file = bed.file().with_file_name("a.pcapng");
    let running = capture(&bed, "a", &file, &[]);
    // The host's kernel sends its ARP requests from an address that is not in the port's `mac_addresses`.
    let spoofed = || direction(&bed.show(), "a", "transmit")["lost"]["spoofed"].as_u64().unwrap();
    let before = spoofed();
    bed.until(|| {
        let ask = || drop(UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", (ADDRESSES[1], 9)));
        bed.host(0).run(ask).unwrap();
        spoofed() > before + 2
    });
    stop(running);
    let (packets, _) = read(&fs::read(&file).unwrap(), "a");
    let lost = packets.iter().filter(|packet| packet.comment.starts_with("lost=spoofed frames=1"));
    assert!(lost.count() >= 2 && packets.iter().all(|packet| packet.direction == 2), "{packets:?}");
}

#[test]
fn a_reader_that_stalls_loses_packets_which_are_counted_and_the_port_goes_on() {
    let bed = Bed::start("capture-stalled", "");
    let mut stalled = UnixStream::connect(bed.control()).unwrap();
    stalled.write_all(b"{\"version\":1,\"request\":\"capture\",\"port\":\"b\"}\n").unwrap();
    let mut stalled = BufReader::with_capacity(64, stalled);
    let mut answer = String::new();
    stalled.read_line(&mut answer).unwrap();
    assert_eq!(answer, "{\"version\":1,\"capturing\":{}}\n");
    std::thread::sleep(std::time::Duration::from_millis(300));
    // Send more than the capture's queue holds, while nobody reads the capture.
    let sent = || queue_sum(&bed.show(), "b", "receive", "bytes_out");
    while sent() < 64 << 20 {
        bed.carry_tcp();
    }
    let status = bed.show_at_rest();
    assert!(direction(&status, "b", "receive")["lost"].as_object().unwrap().values().all(|lost| lost == 0));
    stalled.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    let mut bytes = Vec::new();
    stalled.read_to_end(&mut bytes).unwrap();
    let (packets, lost) = read(&bytes, "b");
    assert!(!packets.is_empty() && lost > 0, "{} packets, {lost} lost", packets.len());
}

#[test]
fn a_capture_ends_after_a_count_and_fills_a_ring_of_files() {
    let bed = Bed::start("capture-ring", "");
    let file = bed.file().with_file_name("ring");
    let arguments = ["--snaplen", "96", "-c", "300", "-C", "10kB", "-W", "3", "--max-loss", "100", "-B", "32MiB"];
    let before = bed.stderr().matches("capture of port").count();
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(["capture", "b", "-w"]).arg(&file).args(arguments).arg("--control").arg(bed.control());
    let running = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    bed.until(|| bed.stderr().matches("capture of port").count() > before);
    std::thread::sleep(std::time::Duration::from_millis(300));
    bed.carry_tcp();
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.lines().last().unwrap().starts_with("capture: 300 packets written, "), "{text}");
    let mut packets = Vec::new();
    for n in 0..3 {
        let bytes = fs::read(file.with_file_name(format!("ring{n}"))).unwrap();
        assert!(bytes.len() <= 10_000, "{}", bytes.len());
        packets.push(read(&bytes, "b").0.len());
    }
    assert!(packets.iter().all(|count| *count > 10) && packets.iter().sum::<usize>() <= 300, "{packets:?}");
    assert!(!file.exists());
}

#[test]
fn a_reader_that_loses_packets_says_how_many_and_fails() {
    let bed = Bed::start("capture-loss", "");
    let before = bed.stderr().matches("capture of port").count();
    let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
    command.args(["capture", "b", "-w", "-", "-B", "64KiB", "--control"]).arg(bed.control());
    let running = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    bed.until(|| bed.stderr().matches("capture of port").count() > before);
    std::thread::sleep(std::time::Duration::from_millis(300));
    // Nobody reads the pipe, so the capture stalls.
    bed.carry_tcp();
    let status = bed.show_at_rest();
    assert!(direction(&status, "b", "receive")["lost"].as_object().unwrap().values().all(|lost| lost == 0));
    kill(Pid::from_raw(running.id() as i32), Signal::SIGINT).unwrap();
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(" packets written, ") && text.contains("more than --max-loss 0.1"), "{text}");
    assert!(read(&output.stdout, "b").1 > 0);
}

#[test]
fn a_full_disk_ends_the_capture_with_a_readable_file_and_harms_no_port() {
    let bed = Bed::start("capture-full", "");
    let directory = bed.file().with_file_name("small");
    fs::create_dir(&directory).unwrap();
    let before = bed.stderr().matches("capture of port").count();
    let file = directory.join("b.pcapng");
    // The small disk exists only in the mount namespace of this shell.
    let script = "mount -t tmpfs -o size=64k none $0 && \"$@\"; status=$?; cat \"$0/b.pcapng\"; exit $status";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(&directory).arg(env!("CARGO_BIN_EXE_offramp"));
    command.args(["capture", "b", "--snaplen", "96", "-w"]).arg(&file).arg("--control").arg(bed.control());
    let running = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    bed.until(|| bed.stderr().matches("capture of port").count() > before);
    std::thread::sleep(std::time::Duration::from_millis(300));
    bed.carry_tcp();
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("b.pcapng: No space left on device"), "{text}");
    // Although the disk became full, the file ends with a whole block.
    let mut reader = PcapNgReader::new(&output.stdout[..]).unwrap();
    let mut blocks = 0;
    while let Some(block) = reader.next_block() {
        block.unwrap();
        blocks += 1;
    }
    assert!(blocks > 2 && output.stdout.len() <= 65_536, "{blocks} blocks");
    // The port still carries frames, and another capture can start.
    stop(capture(&bed, "b", &bed.file().with_file_name("c.pcapng"), &[]));
    bed.carry_tcp();
}

#[test]
fn a_capture_ends_with_its_port_and_a_wrong_one_says_why() {
    let bed = Bed::start("capture-end", "");
    let refused = bed.run(&["capture", "c", "-w", "/dev/null"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown port \"c\""));
    assert_eq!(bed.run(&["capture", "a", "--snaplen", "0"]).status.code(), Some(2));
    let file = bed.file().with_file_name("a.pcapng");
    let mut running = capture(&bed, "a", &file, &[]);
    assert!(bed.run(&["port", "remove", "a", "b"]).status.success());
    assert_eq!(running.wait().unwrap().code(), Some(1));
    assert_eq!(read(&fs::read(&file).unwrap(), "a").1, 0);
}
