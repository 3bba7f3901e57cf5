//! Tests of `host.existing`: a daemon without capabilities attaches to an existing TAP that the daemon's user owns.

use super::bed::{Directory, is_root_of_the_machine, refused};
use offramp_ports::sys::ethtool::Features;
use offramp_ports::sys::{NetNs, link};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Id of the user nobody, the owner of the TAP.
const NOBODY: u32 = 65534;
/// Time limit that only detects a hang.
const HANG_GUARD: Duration = Duration::from_mins(1);

/// A namespace with a TAP that belongs to the user "nobody", and a daemon's file with a port whose host is this TAP.
struct Bed {
    directory: Directory,
    ns: NetNs,
}

impl Bed {
    fn new(name: &str, options: &str) -> Self {
        let bed = Self { directory: Directory::new(name), ns: NetNs::new().unwrap() };
        bed.ip(&format!("tuntap add t0 mode tap user {NOBODY}{options}"));
        // With a carrier, the kernel would add an IPv6 address.
        bed.ns.run(|| link::disable_ipv6("t0").unwrap()).unwrap();
        bed.ip("address add 198.18.0.1/24 dev t0");
        bed.write("existing = true", "");
        bed
    }

    fn write(&self, host: &str, port: &str) {
        let control = self.directory.path("control.sock").display().to_string();
        let text = format!(
            "[daemon]\ncontrol = {control:?}\n[[port]]\nname = \"a\"\nhost = {{ tap = \"t0\", {host} }}\n{port}\nwire.cable = \"b\"\n\
             [[port]]\nname = \"b\"\nhost = {{ null = \"source\" }}\n{port}\nlimit.tx_frames_per_second = 1000\nwire.cable = \"a\"\n"
        );
        fs::write(self.directory.path("daemon.toml"), text).unwrap();
    }

    fn ip(&self, arguments: &str) -> String {
        let output = self.ns.run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap()).unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns a command that runs the program as the user `user`. The caller starts the command in [`Self::ns`].
    fn command(&self, user: u32, args: &[&str]) -> Command {
        let copy = self.directory.path("offramp");
        if !copy.exists() {
            let install = ["-m", "755", env!("CARGO_BIN_EXE_offramp")];
            assert!(Command::new("install").args(install).arg(&copy).status().unwrap().success());
        }
        let mut command = Command::new(copy);
        command.args(args).stdin(Stdio::null()).uid(user).gid(user);
        command
    }

    fn up(&self, user: u32) -> Command {
        self.command(user, &["up", self.directory.path("daemon.toml").to_str().unwrap()])
    }

    /// Checks that a user's daemon ends with an error that contains each of `texts`.
    fn refuse(&self, user: u32, texts: &[&str]) {
        refused(&self.ns.run(|| self.up(user).output().unwrap()).unwrap(), texts);
    }

    fn start(&self) -> Child {
        let errors = fs::File::create(self.directory.path("stderr")).unwrap();
        self.ns.run(|| self.up(NOBODY).stdout(Stdio::null()).stderr(errors).spawn().unwrap()).unwrap()
    }

    fn active_features(&self) -> Vec<String> {
        let features = self.ns.run(|| Features::read("t0").unwrap()).unwrap();
        features.names().filter(|name| features.active(name) == Some(true)).map(str::to_owned).collect()
    }

    fn show(&self) -> Option<Value> {
        let control = self.directory.path("control.sock");
        let args = ["show", "--json", "--interval", "0", "--control", control.to_str().unwrap()];
        serde_json::from_slice(&self.command(NOBODY, &args).output().unwrap().stdout).ok()
    }

    fn until(&self, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + HANG_GUARD;
        while !holds() {
            let errors = fs::read_to_string(self.directory.path("stderr"));
            assert!(Instant::now() < until, "it does not come about: {errors:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn end(mut daemon: Child) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_plain_user_takes_the_tap_of_his_own_and_leaves_it_as_it_was() {
    if !is_root_of_the_machine() {
        return;
    }
    for options in ["", " multi_queue", " vnet_hdr"] {
        let bed = Bed::new("existing", options);
        bed.ip("link set t0 up");
        let state = || (bed.ip("-oneline address show dev t0"), bed.ip("-oneline link show t0"), bed.active_features());
        let before = state();
        // The first daemon restores the interface, so the second daemon finds the same state.
        for _ in 0..2 {
            let received = || bed.ns.run(|| link::statistics("t0").unwrap().rx_packets).unwrap();
            let earlier = received();
            let daemon = bed.start();
            bed.until(|| received() > earlier + 10);
            bed.until(|| bed.show().is_some());
            let socket = bed.ns.run(|| std::net::UdpSocket::bind("198.18.0.1:0").unwrap()).unwrap();
            let sent = || bed.show().unwrap()["ports"][0]["queues"][0]["transmit"]["frames_in"].as_u64().unwrap();
            // Makes the kernel send an ARP request for the peer.
            socket.send_to(b"packet", "198.18.0.2:9").unwrap();
            bed.until(|| sent() > 0);
            end(daemon);
            bed.until(|| state() == before);
            assert_eq!(fs::read_to_string(bed.directory.path("stderr")).unwrap(), "");
        }
    }
}

#[test]
fn an_existing_tap_with_another_mtu_or_down_is_reported_and_served() {
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::new("existing-mtu", "");
    bed.ip("link set t0 mtu 9000");
    let daemon = bed.start();
    bed.until(|| bed.show().is_some());
    end(daemon);
    let errors = fs::read_to_string(bed.directory.path("stderr")).unwrap();
    for line in [
        "offramp: port \"a\": mtu 1500 differs from the 9000 of interface t0; make them equal",
        "run `ip link set t0 mtu 1500`, or set mtu = 9000",
        "offramp: port \"a\": interface t0 is down and loses every frame (host_refused); run `ip link set t0 up`",
    ] {
        assert!(errors.contains(line), "{line} in {errors}");
    }
    assert!(bed.ip("link show t0").contains("mtu 9000"));
    bed.write("existing = true", "mtu = 9000");
    bed.ip("link set t0 up");
    let daemon = bed.start();
    bed.until(|| bed.show().is_some());
    end(daemon);
    assert_eq!(fs::read_to_string(bed.directory.path("stderr")).unwrap(), "");
}

#[test]
fn a_check_finds_an_existing_tap_in_use_and_a_removed_port_leaves_it() {
    if !is_root_of_the_machine() {
        return;
    }
    for options in ["", " multi_queue"] {
        let bed = Bed::new("existing-check", options);
        let file = bed.directory.path("daemon.toml");
        let check = || {
            let mut command = bed.command(NOBODY, &["up", "--check", file.to_str().unwrap()]);
            let output = bed.ns.run(|| command.output().unwrap()).unwrap();
            assert!(output.status.success());
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
        };
        assert!(check().ends_with("2 ports, nothing wrong\n"), "{}", check());
        let held = bed.ns.run(|| offramp_ports::tap::Tap::attach("t0", 1).unwrap()).unwrap();
        let in_use = "up: port \"a\": host.existing: tap \"t0\": another program uses the interface";
        assert!(check().contains(in_use) && check().contains("cannot start here now"), "{}", check());
        drop(held);
        bed.write("existing = false", "");
        assert!(check().contains("host.tap: another TAP has the name \"t0\"; choose another name"), "{}", check());
        bed.write("existing = true", "");
        let daemon = bed.start();
        bed.until(|| bed.show().is_some());
        // The TAP is in use, but by the daemon of this file, so the check finds nothing wrong.
        assert!(check().ends_with("2 ports, nothing wrong\n"), "{}", check());
        let control = bed.directory.path("control.sock").display().to_string();
        let removed = bed.command(NOBODY, &["port", "remove", "a", "b", "--control", &control]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&removed.stdout), "port a removed\nport b removed\n");
        bed.ip("link show t0");
        end(daemon);
    }
}

#[test]
fn an_existing_tap_that_is_in_use_or_of_another_user_is_refused_and_keeps_its_user() {
    if !is_root_of_the_machine() {
        return;
    }
    let bed = Bed::new("existing-refused", "");
    bed.ip("link set t0 up");
    let refuse = |user, text| bed.refuse(user, &["port \"a\": host.existing: tap \"t0\": ", text]);
    refuse(1, "the interface belongs to uid 65534; run as this owner, or as root");
    let held = bed.ns.run(|| offramp_ports::tap::Tap::attach("t0", 1).unwrap()).unwrap();
    refuse(NOBODY, "another program uses the interface; end that program, or choose another interface");
    assert!(held.offer(offramp_offload::caps::Offloads::TX).is_ok());
    drop(held);
    bed.ip("tuntap del t0 mode tap");
    refuse(NOBODY, "no such interface; make it: ip tuntap add t0 mode tap user USER");
    bed.ip("tuntap add t0 mode tun user 65534");
    refuse(NOBODY, "the interface is a TUN, without Ethernet headers, not a TAP");
    bed.write("existing = true, mac = \"02:00:00:00:00:01\"", "");
    bed.refuse(NOBODY, &["port.host.mac: an existing interface keeps its own"]);
    bed.write("existing = true, namespace = \"x\"", "");
    bed.refuse(NOBODY, &["port.host.namespace: an existing interface keeps its own"]);
    assert!(!bed.directory.path("control.sock").exists());
}
