//! A daemon for tests, with two hosts on a cable. Each host is a TAP in its own network namespace.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use offramp_ports::sys::{NetNs, confine, link};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

pub const INTERFACE: &str = "ofr0";
/// The hosts' addresses, from the range for benchmarks (RFC 2544 C.2.2).
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Time limit that only detects a hang.
const HANG_GUARD: Duration = Duration::from_mins(1);

/// Runs the program, and returns its output.
pub fn offramp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_offramp")).args(args).output().unwrap()
}

/// Checks that the program failed at the start, with exit status 2 and one line that contains each of `texts`.
pub fn refused(output: &Output, texts: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    for text in texts {
        assert!(message.contains(text), "{text:?} in {message}");
    }
}

/// Moves the two ports in a daemon's file from their cable to a switch. The returned text ends with the section of the
/// switch, so that further keys of the switch can be appended.
pub fn on_switch(text: &str) -> String {
    text.replace("cable = \"b\"", "switch = \"lan\"").replace("cable = \"a\"", "switch = \"lan\"")
        + "[[switch]]\nname = \"lan\"\n"
}

/// Returns true if this process is root in the initial user namespace. In CI, the process must be this root.
pub fn is_root_of_the_machine() -> bool {
    // The map of the initial user namespace has one line, which maps every user to itself (user_namespaces(7)).
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_root = nix::unistd::geteuid().is_root() && map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "this test needs root of the machine, and CI skips nothing");
        println!("skipped: only root of the machine can become another user");
    }
    is_root
}

/// A directory that is deleted when its test ends.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ofr-up-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        // The daemon and its clients may run as other users.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub struct Bed {
    daemon: Option<Child>,
    hosts: [NetNs; 2],
    /// The daemon's namespace. If `None`, the namespace of this process.
    namespace: Option<NetNs>,
    notices: UnixDatagram,
    /// True if the test, in the role of the service manager, requests heartbeats from the daemon.
    wants_heartbeats: bool,
    directory: Directory,
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            // The daemon may already have ended.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Bed {
    /// Starts a daemon and waits until it is ready. `daemon` is added to the section `[daemon]` of the file.
    pub fn start(name: &str, daemon: &str) -> Self {
        Self::with_ports(name, daemon, "", "", 1)
    }

    /// Starts a daemon like [`Self::start`], with additional lines for each port, and a number of queue pairs.
    pub fn with_ports(name: &str, daemon: &str, a: &str, b: &str, queue_pairs: u16) -> Self {
        let mut bed = Self::new(name, daemon, [a, b], queue_pairs);
        bed.start_again();
        bed
    }

    /// Writes the daemon's file without starting the daemon.
    pub fn unstarted(name: &str, daemon: &str) -> Self {
        Self::new(name, daemon, ["", ""], 1)
    }

    fn new(name: &str, daemon: &str, ports: [&str; 2], queue_pairs: u16) -> Self {
        let directory = Directory::new(name);
        let hosts = [(); 2].map(|()| NetNs::new().expect("this test needs network namespaces; run as root"));
        let notices = UnixDatagram::bind(directory.path("notify.sock")).unwrap();
        // The daemon may run as another user.
        fs::set_permissions(directory.path("notify.sock"), fs::Permissions::from_mode(0o777)).unwrap();
        notices.set_read_timeout(Some(HANG_GUARD)).unwrap();
        let bed = Self { daemon: None, hosts, namespace: None, notices, wants_heartbeats: false, directory };
        let port = |side: usize| {
            let (name, peer) = [("a", "b"), ("b", "a")][side];
            let namespace = format!("/proc/{}/fd/{}", std::process::id(), bed.hosts[side].as_raw_fd());
            format!(
                "[[port]]\nname = \"{name}\"\n\
                 host = {{ tap = \"{INTERFACE}\", queue_pairs = {queue_pairs}, namespace = \"{namespace}\" }}\n\
                 wire = {{ cable = \"{peer}\" }}\n{}\n# changes of {name}\n",
                ports[side]
            )
        };
        // The files of the tests belong to root, so run the daemon as root unless `daemon` sets a user.
        let user = if daemon.contains("user = ") { "" } else { "user = \"root\"\n" };
        let control = bed.control();
        let text = format!("[daemon]\ncontrol = \"{}\"\n{user}{daemon}\n{}{}", control.display(), port(0), port(1));
        fs::write(bed.file(), text).unwrap();
        bed
    }

    /// Starts the daemon, waits until it is ready, and sets the hosts' addresses.
    pub fn start_again(&mut self) {
        self.start_without_hosts();
        for (side, host) in self.hosts.iter().enumerate() {
            host.run(|| set_up_host(side)).unwrap();
        }
    }

    /// Starts the daemon in `namespace`, like [`Self::start_again`].
    pub fn start_in(&mut self, namespace: NetNs) {
        self.namespace = Some(namespace);
        self.start_again();
    }

    /// Starts the daemon and waits until it is ready.
    pub fn start_without_hosts(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
        command.arg("up").arg(self.file()).env("NOTIFY_SOCKET", self.directory.path("notify.sock"));
        if self.wants_heartbeats {
            command.env("WATCHDOG_USEC", "30000000");
        }
        command.stdin(Stdio::null()).stderr(File::create(self.directory.path("stderr")).unwrap());
        command.stdout(Stdio::null());
        confine(&mut command, self.namespace.as_ref(), None).unwrap();
        // From here on, dropping this value kills the daemon.
        let daemon = self.daemon.insert(command.spawn().unwrap());
        self.notices.set_nonblocking(true).unwrap();
        let until = Instant::now() + HANG_GUARD;
        let ready = loop {
            match receive(&self.notices) {
                Ok(notice) if notice != "WATCHDOG=1" => break notice,
                _ => {}
            }
            let stderr = || fs::read_to_string(self.directory.path("stderr")).unwrap_or_default();
            assert!(daemon.try_wait().unwrap().is_none(), "it ended: {}", stderr());
            assert!(Instant::now() < until, "it is not ready: {}", stderr());
            std::thread::sleep(Duration::from_millis(2));
        };
        self.notices.set_nonblocking(false).unwrap();
        assert_eq!(ready, "READY=1");
    }

    /// Makes the next started daemon send heartbeats to the service manager.
    pub fn ask_for_heartbeats(&mut self) {
        self.wants_heartbeats = true;
    }

    /// Discards the received notifications.
    pub fn drop_notices(&self) {
        while !self.has_no_notice() {}
    }

    /// Returns true if no notification is queued. If a notification is queued, discards this notification and returns
    /// false.
    pub fn has_no_notice(&self) -> bool {
        self.notices.set_nonblocking(true).unwrap();
        let is_empty = receive(&self.notices).is_err();
        self.notices.set_nonblocking(false).unwrap();
        is_empty
    }

    pub fn control(&self) -> PathBuf {
        self.directory.path("control.sock")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    pub fn file(&self) -> PathBuf {
        self.directory.path("daemon.toml")
    }

    /// Changes the daemon's file.
    pub fn rewrite(&self, change: impl FnOnce(&str) -> String) {
        fs::write(self.file(), change(&fs::read_to_string(self.file()).unwrap())).unwrap();
    }

    pub fn host(&self, side: usize) -> &NetNs {
        &self.hosts[side]
    }

    pub fn process(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(self.directory.path("stderr")).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process() as i32), signal).unwrap();
    }

    /// Waits for the daemon's end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().unwrap();
        let until = Instant::now() + HANG_GUARD;
        loop {
            if let Some(status) = daemon.try_wait().unwrap() {
                return status;
            }
            if Instant::now() >= until {
                let _ = daemon.kill();
                panic!("the daemon does not end: {}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the next notification to the service manager.
    pub fn next_notice(&self) -> String {
        receive(&self.notices).unwrap()
    }

    /// Waits until `holds` returns true.
    pub fn until(&self, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + HANG_GUARD;
        while !holds() {
            assert!(Instant::now() < until, "it does not come about: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a command, such as `show` or `set`, with this daemon's control socket.
    pub fn run(&self, args: &[&str]) -> Output {
        offramp(&[args, &["--control", self.control().to_str().unwrap()]].concat())
    }

    /// Returns the path of a copy of the program that any user can run. The built program may be in a private
    /// directory.
    pub fn program_for_all(&self) -> PathBuf {
        let copy = self.directory.path("offramp");
        if !copy.exists() {
            // Let another process copy the file: a file open for writing cannot be run (ETXTBSY). A process started by
            // another thread during the copy would inherit the open descriptor.
            let install = ["-m", "755", env!("CARGO_BIN_EXE_offramp")];
            assert!(Command::new("install").args(install).arg(&copy).status().unwrap().success());
        }
        copy
    }

    /// Runs a command like [`Self::run`], as another user. The group id equals the user id.
    pub fn as_user(&self, user: u32, args: &[&str]) -> Output {
        let mut command = Command::new(self.program_for_all());
        command.args(args).arg("--control").arg(self.control()).uid(user).gid(user);
        command.output().unwrap()
    }

    /// Returns the output of `show --json`.
    pub fn show(&self) -> Value {
        let output = self.run(&["show", "--json", "--interval", "0"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until all frames sent by a port have reached the other port's host, and returns the output of `show`. The
    /// wait is necessary for two reasons: the last frames of a connection follow its data, and the counters of the two
    /// ports are not read at the same time. Fails if a frame is lost.
    pub fn show_at_rest(&self) -> Value {
        let mut status = self.show();
        let arrived = |status: &Value, from, to| {
            let stages = [(from, "transmit"), (to, "receive")]
                .map(|(port, way)| ["frames_in", "frames_out"].map(|counter| queue_sum(status, port, way, counter)));
            let [[taken, sent], [received, given]] = stages;
            taken == sent && sent == received && received == given
        };
        self.until(|| {
            status = self.show();
            arrived(&status, "a", "b") && arrived(&status, "b", "a")
        });
        status
    }

    /// Sends TCP data from host a to host b. Host b checks every byte.
    pub fn carry_tcp(&self) {
        self.carry_tcp_for("0.3");
    }

    /// Sends TCP data for `seconds`, like [`Self::carry_tcp`].
    pub fn carry_tcp_for(&self, seconds: &str) {
        let address = ADDRESSES[1].to_string();
        let mut serve = self.program_in(1, &["ttcp", "--serve", "--once", "--json", "--bind", &address]);
        let mut server = serve.stdout(Stdio::piped()).spawn().unwrap();
        let mut listening = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut listening).unwrap();
        assert!(listening.contains("listening"), "{listening}");
        let args = ["ttcp", "--to", &address, "--seconds", seconds, "--warmup", "0.02", "--pattern", "7"];
        let output = self.program_in(0, &args).output().unwrap();
        // The server's output is no longer read, so its exit status has no meaning.
        let _ = server.kill();
        let _ = server.wait();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn program_in(&self, side: usize, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_offramp"));
        command.args(args).stdin(Stdio::null());
        confine(&mut command, Some(&self.hosts[side]), None).unwrap();
        command
    }
}

fn receive(notices: &UnixDatagram) -> std::io::Result<String> {
    let mut buffer = [0; 256];
    let len = notices.recv(&mut buffer)?;
    Ok(String::from_utf8(buffer[..len].to_vec()).unwrap())
}

fn set_up_host(side: usize) {
    // IPv6 neighbour and router messages would be counted with the traffic.
    if Path::new("/proc/sys/net/ipv6").exists() {
        link::disable_ipv6(INTERFACE).unwrap();
    }
    link::add_address(INTERFACE, IpAddr::V4(ADDRESSES[side]), 24).unwrap();
}

fn port<'a>(status: &'a Value, port: &str) -> &'a Value {
    status["ports"].as_array().unwrap().iter().find(|found| found["name"] == port).unwrap()
}

/// Returns the status of one direction of a port's first queue pair.
pub fn direction<'a>(status: &'a Value, name: &str, way: &str) -> &'a Value {
    &port(status, name)["queues"][0][way]
}

/// Returns the sum of a counter over a port's queue pairs.
pub fn queue_sum(status: &Value, name: &str, way: &str, counter: &str) -> u64 {
    let queues = port(status, name)["queues"].as_array().unwrap();
    queues.iter().map(|queue| queue[way][counter].as_u64().unwrap()).sum()
}

/// Returns the status of a port's feature.
pub fn feature<'a>(status: &'a Value, name: &str, feature: &str) -> &'a Value {
    port(status, name)["features"].as_array().unwrap().iter().find(|found| found["name"] == feature).unwrap()
}
