//! A TAP made by another program.

use super::*;
use std::process::Command;

/// Runs `ip` in the namespace with these arguments.
fn ip(ns: &offramp_ports::sys::NetNs, arguments: &str) -> String {
    let output = ns.run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap()).unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn attach(ns: &offramp_ports::sys::NetNs, name: &str, queues: u16) -> Result<Tap, TapError> {
    ns.run(|| Tap::attach(name, queues)).unwrap()
}

/// Attaches to an interface after its previous use. Retries while the interface is still in use: a process forked by
/// another test keeps copies of the old descriptors until it executes its program.
fn attach_again(ns: &offramp_ports::sys::NetNs, name: &str, queues: u16) -> Tap {
    loop {
        match attach(ns, name, queues) {
            Err(TapError::InUse(_)) => thread::yield_now(),
            attached => return attached.unwrap(),
        }
    }
}

/// Sends a datagram to the peer repeatedly, until the queue fetches it. The kernel drops frames until it has noticed
/// the carrier.
fn send_until_fetched(socket: &UdpSocket, queue: &mut TapQueue) -> (TxMeta, Vec<u8>) {
    loop {
        socket.send_to(b"packet", (PEER, 6000)).unwrap();
        while queue.tx_next(0).unwrap() {
            let frame = queue.tx_frame();
            if is_ipv4(frame.bytes(), UDP) {
                return (frame.request(), frame.bytes().to_vec());
            }
        }
        thread::yield_now();
    }
}

/// Returns the addresses, the MTU, the flags and the active features of an interface.
fn state(ns: &offramp_ports::sys::NetNs, name: &str) -> (String, Vec<String>) {
    let shown = ip(ns, &format!("-oneline address show dev {name}")) + &ip(ns, &format!("-oneline link show {name}"));
    let features = ns.run(|| Features::read(name).unwrap()).unwrap();
    let active = features.names().filter(|name| features.active(name) == Some(true));
    (shown, active.map(str::to_owned).collect())
}

#[test]
fn an_existing_tap_carries_frames_and_is_afterwards_as_before() {
    for (kind, queues) in [("", 1), (" vnet_hdr", 1), (" multi_queue", 1), (" multi_queue", 3)] {
        let ns = namespace();
        ip(&ns, &format!("tuntap add t0 mode tap{kind}"));
        // With a carrier, the kernel would add an IPv6 address.
        ns.run(|| link::disable_ipv6("t0").unwrap()).unwrap();
        ip(&ns, "link set t0 mtu 1400 address 02:00:00:00:00:01");
        ip(&ns, "address add 10.9.0.1/24 dev t0");
        ip(&ns, "link set t0 up");
        ip(&ns, "neighbour add 10.9.0.2 lladdr 02:00:00:00:00:02 dev t0");
        let before = state(&ns, "t0");
        for _ in 0..2 {
            let tap = attach_again(&ns, "t0", queues);
            assert_eq!((tap.name(), tap.mtu(), tap.queue_count()), ("t0", 1400, usize::from(queues)));
            tap.offer(Offloads::TX).unwrap();
            let socket = ns.run(|| UdpSocket::bind((HOST, 0)).unwrap()).unwrap();
            let mut queue = tap.queue(0).unwrap();
            if queues == 1 {
                let (meta, frame) = send_until_fetched(&socket, &mut queue);
                assert!(meta.checksum.is_some() && frame[..12] == [PEER_MAC, HOST_MAC].concat(), "{meta:?}");
            }
            assert_eq!(queue.rx_deliver(&RxMeta::default(), &[0xff; 60]), Ok(()));
            drop((queue, tap));
            // The kernel removes the carrier in a separate thread.
            while state(&ns, "t0") != before {
                thread::yield_now();
            }
        }
    }
}

#[test]
fn an_existing_tap_gets_its_vnet_header_and_its_offloads_back() {
    let ns = namespace();
    ip(&ns, "tuntap add t0 mode tap");
    let tap = attach(&ns, "t0", 1).unwrap();
    tap.offer(Offloads::TX).unwrap();
    let queue = tap.queue(0).unwrap();
    tap.restore();
    // After the restore, the vnet header has 10 bytes, Linux' default. A frame must have at least 14 bytes after this
    // header.
    drop(tap);
    assert_eq!(nix::unistd::write(&queue, &[0; 10 + 14]).unwrap_err(), nix::errno::Errno::EIO, "the interface is down");
    ip(&ns, "link set t0 up");
    assert_eq!(nix::unistd::write(&queue, &[0; 10 + 14]), Ok(24));
    assert_eq!(nix::unistd::write(&queue, &[0; 10 + 13]), Err(nix::errno::Errno::EINVAL));
}

#[test]
fn an_existing_tap_that_cannot_be_taken_is_refused_with_the_remedy() {
    let ns = namespace();
    for make in ["tuntap add single mode tap", "tuntap add several mode tap multi_queue", "tuntap add packets mode tun"]
    {
        ip(&ns, make);
    }
    let refusal = |name: &str, queues| attach(&ns, name, queues).map(drop).unwrap_err().to_string();
    for (line, expected) in [
        (refusal("none", 1), "tap \"none\": no such interface; make it: ip tuntap add none mode tap user USER"),
        (refusal("lo", 1), "tap \"lo\": the interface is of another kind, not a TAP"),
        (refusal("packets", 1), "tap \"packets\": the interface is a TUN, without Ethernet headers, not a TAP"),
        (
            refusal("single", 2),
            "tap \"single\": 2 queue pairs, but the interface has one; use 1, or make it again: ip tuntap add",
        ),
        (refusal("single", 0), "tap \"single\": 0 queues; use 1 to 256"),
        (refusal("a-name-with-16-b", 1), "tap \"a-name-with-16-b\": not an interface name; use 1 to 15 bytes"),
    ] {
        assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
    }
    for (name, queues) in [("single", 1), ("several", 2)] {
        let first = attach(&ns, name, queues).unwrap();
        let expected = format!("tap \"{name}\": another program uses the interface; end that program");
        assert!(refusal(name, 1).starts_with(&expected), "{}", refusal(name, 1));
        drop(first);
        attach_again(&ns, name, 1);
    }
    assert!(ns.run(|| link::index("none")).unwrap().is_err(), "no interface was made");
}

#[test]
fn a_name_of_15_bytes_is_attached_to() {
    let ns = namespace();
    ip(&ns, "tuntap add fifteen-bytes-x mode tap");
    assert_eq!(attach(&ns, "fifteen-bytes-x", 1).unwrap().name(), "fifteen-bytes-x");
}
