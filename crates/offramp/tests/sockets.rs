//! Tests of guests' sockets passed by the process that starts the daemon.

#[allow(dead_code, reason = "shared with other tests of the daemon")]
#[path = "up/bed.rs"]
mod bed;

use bed::{Directory, offramp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use offramp_testkit::{Guest, VnetHeader};
use serde_json::Value;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon's file with a number of guests on a switch, in a directory of its own.
struct Setting {
    directory: Directory,
    guests: usize,
}

impl Setting {
    fn new(name: &str, guests: usize) -> Self {
        let setting = Self { directory: Directory::new(&format!("sockets-{name}")), guests };
        let user = if nix::unistd::geteuid().is_root() { "user = \"root\"\n" } else { "" };
        let control = setting.path("control.sock");
        let mut text = format!("[daemon]\ncontrol = \"{control}\"\n{user}[[switch]]\nname = \"lan\"\n");
        for n in 0..guests {
            let socket = setting.path(&format!("own{n}.sock"));
            let port = format!("[[port]]\nname = \"vm{n}\"\nhost.vhost_user = \"{socket}\"\nwire.switch = \"lan\"\n");
            text.push_str(&port);
        }
        fs::write(setting.path("daemon.toml"), text).unwrap();
        setting
    }

    fn path(&self, name: &str) -> String {
        self.directory.path(name).to_str().unwrap().to_owned()
    }

    /// Returns a shell command with two sockets as standard input and output. In `script`, `$@` is the command `offramp
    /// up`.
    fn command(&self, sockets: [&UnixListener; 2], script: &str) -> Command {
        let [first, second] = sockets.map(|socket| OwnedFd::from(socket.try_clone().unwrap()));
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_offramp"), "up", &self.path("daemon.toml")]);
        command.stdin(first).stdout(second).stderr(Stdio::piped());
        command
    }

    fn show(&self) -> Option<Value> {
        let shown = offramp(&["show", "--json", "--interval", "0", "--control", &self.path("control.sock")]);
        serde_json::from_slice(&shown.stdout).ok()
    }

    /// Waits until the daemon answers, and returns the sockets that it shows.
    fn sockets(&self) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.show() {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "it does not answer"),
            }
        };
        (0..self.guests).map(|n| status["ports"][n]["host"]["socket"].as_str().unwrap().to_owned()).collect()
    }
}

fn end(mut daemon: Child) {
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

fn refused(output: &Output, text: &str) {
    bed::refused(output, &[text]);
}

fn frame(source: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 1, source], &[0x88, 0xb5], &[source; 46]].concat()
}

/// Sends a frame from the guest of one socket to the guest of the other socket.
fn exchange(from: &Path, to: &Path) {
    let mut guests = [from, to].map(|socket| Guest::builder().connect(socket));
    let [sender, receiver] = &mut guests;
    receiver.rx(0).fill(64, 2048);
    receiver.rx(0).publish();
    receiver.rx(0).kick();
    sender.tx(0).send(&VnetHeader::default(), &[&frame(1)]);
    assert_eq!(receiver.rx(0).recv(PATIENCE).frame, frame(1));
}

#[test]
fn sockets_of_a_service_manager_go_to_the_ports_of_their_names_and_outlive_the_daemon() {
    let setting = Setting::new("activation", 2);
    let paths = [1, 0].map(|n| setting.directory.path(&format!("passed{n}.sock")));
    let sockets = [&paths[0], &paths[1]].map(|path| UnixListener::bind(path).unwrap());
    let activate =
        "exec 3<&0 4<&1 </dev/null >/dev/null; export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=vm1:vm0; exec \"$@\"";
    for _ in 0..2 {
        let daemon = setting.command([&sockets[0], &sockets[1]], activate).spawn().unwrap();
        assert_eq!(setting.sockets(), [setting.path("passed0.sock"), setting.path("passed1.sock")]);
        exchange(&paths[0], &paths[1]);
        end(daemon);
        // The paths in the file are unused, and the passed sockets still exist.
        assert!(!setting.directory.path("own0.sock").exists() && paths.iter().all(|path| path.exists()));
    }
    // The daemon ignores sockets passed for another process.
    let others = activate.replace("$$", "1");
    let daemon = setting.command([&sockets[0], &sockets[1]], &others).spawn().unwrap();
    assert_eq!(setting.sockets(), [setting.path("own0.sock"), setting.path("own1.sock")]);
    end(daemon);
    for (names, message) in [
        ("vm1:vm7", "LISTEN_FDS, descriptor 4: unknown port with a guest \"vm7\"; did you mean \"vm"),
        ("vm1:vm1", "LISTEN_FDS, descriptor 4: port \"vm1\" has another socket already"),
        ("vm1", "LISTEN_FDS, descriptor 4: unknown port with a guest \"\""),
    ] {
        let script = activate.replace("vm1:vm0", names);
        refused(&setting.command([&sockets[0], &sockets[1]], &script).output().unwrap(), message);
    }
}

#[test]
fn fd_is_the_socket_of_the_only_guest() {
    let setting = Setting::new("fd", 1);
    let path = setting.directory.path("passed.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let run = |more: &str| {
        setting.command([&socket, &socket], &format!("exec 7<&0 8</dev/null </dev/null >/dev/null; exec \"$@\" {more}"))
    };
    let daemon = run("--fd=7").spawn().unwrap();
    assert_eq!(setting.sockets(), [setting.path("passed.sock")]);
    Guest::builder().connect(&path).frontend();
    end(daemon);
    assert!(path.exists());
    refused(&run("--fd=8").output().unwrap(), "--fd 8: ");
    refused(&run("--fd=9").output().unwrap(), "--fd 9: Bad file descriptor");
    refused(&run("--fd=1").output().unwrap(), "--fd 1: 0 to 2 are standard input, output and error");
    assert_eq!(run("--fd=7 --socket-path=/a").output().unwrap().status.code(), Some(2));
    let both = Setting::new("fd-two", 2);
    let mut two = both.command([&socket, &socket], "exec 7<&0; exec \"$@\" --fd=7");
    refused(&two.output().unwrap(), "--fd: the file has 2 ports with a guest");
}

#[test]
fn socket_path_stands_in_the_place_of_the_path_in_the_file_also_when_that_is_read_again() {
    let setting = Setting::new("path", 1);
    let path = setting.path("given.sock");
    let up = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
        command.arg("up").arg(setting.path("daemon.toml")).args(more).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let daemon = up(&["--socket-path", &path]).spawn().unwrap();
    assert_eq!(setting.sockets(), [&*path]);
    let text = fs::read_to_string(setting.path("daemon.toml")).unwrap();
    fs::write(setting.path("daemon.toml"), text.clone() + "[port.features]\nlso = false\n").unwrap();
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGHUP).unwrap();
    let until = Instant::now() + PATIENCE;
    while setting.show().unwrap()["ports"][0]["features"]
        .as_array()
        .unwrap()
        .iter()
        .any(|feature| feature["name"] == "tso4" && feature["allowed"] == true)
    {
        assert!(Instant::now() < until, "the file is not read again");
    }
    Guest::builder().connect(&path).frontend();
    end(daemon);
    assert!(!Path::new(&path).exists() && !setting.directory.path("own0.sock").exists());
    let second = "[[port]]\nname = \"vm1\"\nhost.vhost_user = \"/a/b\"\nwire.switch = \"lan\"\n";
    fs::write(setting.path("daemon.toml"), text + second).unwrap();
    refused(&up(&["--socket-path", &path]).output().unwrap(), "--socket-path: the file has 2 ports with a guest");
}

#[test]
fn the_backend_says_what_it_is_and_so_does_its_description_for_managers() {
    let said = offramp(&["up", "--print-capabilities", "--fd=3"]);
    assert!(said.status.success());
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/vhost-user");
    let described: Value = serde_json::from_slice(&fs::read(format!("{dist}/50-offramp.json")).unwrap()).unwrap();
    // The members are those of `VHostUserBackendCapabilities` and `VhostUserBackend` in QEMU's `vhost-user.json`.
    assert_eq!(said, serde_json::json!({ "type": "net" }));
    assert_eq!(described["type"], said["type"]);
    assert!(described["description"].is_string() && described.as_object().unwrap().len() == 3);
    // The package installs the program at this path.
    let binary = described["binary"].as_str().unwrap();
    let package = include_str!("../Cargo.toml");
    let (directory, name) = binary.rsplit_once('/').unwrap();
    assert!(
        package.contains(&format!("dist/vhost-user/{name}\", \"{}/\", \"755\"", directory.trim_start_matches('/')))
    );
    assert!(fs::read_to_string(format!("{dist}/{name}")).unwrap().contains("exec /usr/bin/offramp up "));
}
