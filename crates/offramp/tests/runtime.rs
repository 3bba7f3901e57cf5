//! Tests of the start of `offramp up` by root and by plain users: its directory, its readiness, and a start without a
//! file.

#[allow(dead_code, reason = "shared with other tests")]
#[path = "up/bed.rs"]
mod bed;

use bed::{Directory, is_root_of_the_machine, offramp, refused};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use offramp_ports::sys::NetNs;
use offramp_ports::sys::confine;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Uid of a user without an entry in `/etc/passwd`.
const USER: u32 = 45_454;
/// A configuration with one guest on a switch. The path of the guest's socket is relative.
const ONE_GUEST: &str =
    "[[switch]]\nname = \"lan\"\n[[port]]\nname = \"vm0\"\nhost.vhost_user = \"vm0.sock\"\nwire.switch = \"lan\"\n";

/// A directory with a daemon's file, and with a copy of the program that every user may run.
struct Place {
    directory: Directory,
    program: PathBuf,
    file: PathBuf,
}

impl Place {
    fn new(name: &str, text: &str) -> Self {
        let directory = Directory::new(name);
        let (program, file) = (directory.path("offramp"), directory.path("daemon.toml"));
        let install = ["-m", "755", env!("CARGO_BIN_EXE_offramp")];
        assert!(Command::new("install").args(install).arg(&program).status().unwrap().success());
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        Self { directory, program, file }
    }

    /// Returns a command that runs the program as the user `user`, with `session` as the user's session directory
    /// (`XDG_RUNTIME_DIR`).
    fn command(&self, user: u32, session: Option<&Path>, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).uid(user).gid(user).stdin(Stdio::null()).env_remove("XDG_RUNTIME_DIR");
        if let Some(session) = session {
            command.env("XDG_RUNTIME_DIR", session);
        }
        command
    }

    /// Creates a session directory of the user `owner`.
    fn session(&self, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.directory.path(name);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn up(&self, user: u32, session: Option<&Path>) -> Command {
        self.command(user, session, &["up", self.file.to_str().unwrap()])
    }
}

/// A running daemon, killed if its test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts a daemon, and waits until it reports readiness. Also returns the line of this report without its prefix.
    fn start(command: &mut Command) -> (Self, String) {
        let mut daemon = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready = lines.into_iter().find_map(|line| line.strip_prefix("offramp: ready: ").map(str::to_owned));
        let Some(ready) = ready else {
            let ended = daemon.wait_with_output().unwrap();
            panic!("it ended: {}", String::from_utf8_lossy(&ended.stderr));
        };
        (Self(daemon), ready)
    }

    fn stop(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_plain_user_has_a_daemon_in_the_session_directory_and_clients_find_it() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("session", ONE_GUEST);
    let session = place.session("session", USER, 0o700);
    let (daemon, ready) = Running::start(&mut place.up(USER, Some(&session)));
    let own = session.join("offramp");
    assert_eq!(ready, format!("1 port, 1 switch, control {}", own.join("control.sock").display()));
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(own.join("vm0.sock").exists(), "a relative socket is beside the control socket");
    let shown = place.command(USER, Some(&session), &["show", "--interval", "0"]).output().unwrap();
    assert!(shown.status.success() && text(&shown).contains("vm0"), "{}", text(&shown));
    assert_eq!(daemon.stop(), Some(0));
    assert!(!own.exists(), "the daemon removes the directory that it made");
    assert!(session.exists());
}

#[test]
fn without_a_session_directory_a_plain_user_has_a_private_one_in_tmp() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("tmp", ONE_GUEST);
    let (user, missing) = (USER + 1, place.directory.path("missing"));
    let own = PathBuf::from(format!("/tmp/offramp-{user}"));
    let (daemon, ready) = Running::start(&mut place.up(user, Some(&missing)));
    assert!(ready.ends_with(&format!("control {}/control.sock", own.display())), "{ready}");
    let found = fs::metadata(&own).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o777), (user, 0o700));
    assert_eq!(daemon.stop(), Some(0));
    assert!(!own.exists());
}

#[test]
fn root_of_a_user_namespace_shares_the_directory_of_its_user_outside() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("userns", ONE_GUEST);
    let user = USER + 2;
    let up = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net"]).arg(&place.program).arg("up").arg(&place.file);
        command.env_remove("XDG_RUNTIME_DIR").uid(user).gid(user);
        command
    };
    let (daemon, ready) = Running::start(&mut up());
    assert!(ready.ends_with(&format!("control /tmp/offramp-{user}/control.sock")), "{ready}");
    let shown = place.command(user, None, &["show", "--interval", "0"]).output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown));
    // A second daemon of the user, in another namespace, needs a socket of its own.
    let second = format!("/tmp/offramp-{user}/second.sock");
    let cure = format!("write daemon.control = \"{second}\" into the file of this daemon");
    refused(&up().output().unwrap(), &["a daemon answers there, perhaps in another namespace", &cure]);
    let other_guest = ONE_GUEST.replace("vm0.sock", "vm1.sock");
    fs::write(&place.file, format!("daemon.control = {second:?}\n{other_guest}")).unwrap();
    let (other, _) = Running::start(&mut up());
    assert_eq!(other.stop(), Some(0));
    assert_eq!(daemon.stop(), Some(0));
    assert!(!Path::new(&format!("/tmp/offramp-{user}")).exists());
}

#[test]
fn a_directory_that_another_user_could_change_is_refused_and_left_alone() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("foreign", ONE_GUEST);
    let user = USER + 3;
    let own = format!("/tmp/offramp-{user}");
    let foreign = place.session("foreign", 0, 0o755);
    let open = place.session("open", user, 0o777);
    for (session, fault) in [(&foreign, "belongs to the user with uid 0, not to this user"), (&open, "0o777")] {
        let output = place.up(user, Some(session)).output().unwrap();
        refused(&output, &["up: XDG_RUNTIME_DIR ", fault, "run \"unset XDG_RUNTIME_DIR\""]);
        assert_eq!(fs::read_dir(session).unwrap().count(), 0);
    }
    let elsewhere = place.session("elsewhere", user, 0o700);
    symlink(&elsewhere, &own).unwrap();
    refused(&place.up(user, None).output().unwrap(), &[&format!("up: {own}: is a symbolic link"), "remove it"]);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    fs::remove_file(&own).unwrap();
    // Another user (here root) owns the directory, and listens there for a client that sends keys.
    fs::create_dir(&own).unwrap();
    let _trap = std::os::unix::net::UnixListener::bind(Path::new(&own).join("control.sock")).unwrap();
    let shown = place.command(user, None, &["show"]).output().unwrap();
    refused(&shown, &[&format!("show: {own}: belongs to the user with uid 0")]);
    refused(&place.up(user, None).output().unwrap(), &[&format!("up: {own}: belongs to the user with uid 0")]);
    fs::remove_dir_all(&own).unwrap();
}

#[test]
fn the_directory_and_the_socket_of_another_user_are_refused_with_the_cure() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("other", "");
    let (user, other) = (USER + 4, USER + 5);
    let left = place.session("left", other, 0o755);
    let control = left.join("control.sock");
    fs::write(&place.file, format!("[daemon]\ncontrol = {control:?}\n{ONE_GUEST}")).unwrap();
    let cure = format!("run \"rmdir {0}\" if no daemon uses it, or \"chown {user} {0}\"", left.display());
    refused(
        &place.up(user, None).output().unwrap(),
        &["up: daemon.control", &format!("belongs to uid {other}"), &cure],
    );
    let (daemon, _) = Running::start(&mut place.up(other, None));
    let control = control.to_str().unwrap();
    let shown = place.command(user, None, &["show", "--control", control]).output().unwrap();
    refused(&shown, &["show: no daemon answers at", "this user may not use it"]);
    refused(&place.up(user, None).output().unwrap(), &["up: daemon.control", "ermission denied"]);
    assert_eq!(daemon.stop(), Some(0));
    assert!(left.exists(), "the daemon did not make this directory");
}

#[test]
fn a_daemon_of_root_that_became_nobody_still_removes_its_directory() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("root", "");
    let made = place.session("parent", 0, 0o755).join("made");
    fs::write(&place.file, format!("[daemon]\ncontrol = {:?}\n{ONE_GUEST}", made.join("control.sock"))).unwrap();
    let (daemon, _) = Running::start(&mut place.up(0, None));
    assert_eq!(fs::metadata(&made).unwrap().uid(), 65534);
    assert_eq!(daemon.stop(), Some(0));
    assert!(!made.exists());
    // The directory is not removed if it contains another file.
    let (daemon, _) = Running::start(&mut place.up(0, None));
    fs::write(made.join("precious"), "").unwrap();
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(fs::read_dir(&made).unwrap().count(), 1);
}

#[test]
fn detach_returns_when_the_daemon_is_ready_and_its_addresses_are_set() {
    let directory = Directory::new("detach");
    let control = directory.path("made/control.sock");
    let file = directory.path("daemon.toml");
    let tap = "[[port]]\nname = \"a\"\nwire.switch = \"lan\"\n\
               host = { tap = \"ofr0\", address = [\"198.18.77.1/24\", \"fd00:77::1/64\"] }\n";
    let daemon = format!("[daemon]\nuser = \"root\"\ncontrol = {control:?}\n[[switch]]\nname = \"lan\"\n");
    fs::write(&file, format!("{daemon}{tap}")).unwrap();
    let namespace = NetNs::new().expect("this test needs network namespaces; run as root");
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args);
        confine(&mut command, Some(&namespace), None).unwrap();
        // The daemon inherits standard error. With a pipe, `output` would wait until the daemon ends.
        command.stderr(Stdio::null()).output().unwrap()
    };
    let up = run(env!("CARGO_BIN_EXE_offramp"), &["up", "--detach", file.to_str().unwrap()]);
    assert!(up.status.success(), "{}", text(&up));
    assert!(text(&up).ends_with(&format!("ready: 1 port, 1 switch, control {}\n", control.display())), "{}", text(&up));
    let addresses = text(&run("ip", &["-o", "address", "show", "dev", "ofr0"]));
    assert!(addresses.contains("198.18.77.1/24") && addresses.contains("fd00:77::1/64"), "{addresses}");
    assert!(!addresses.lines().any(|line| line.contains("fd00:77") && line.contains("tentative")), "{addresses}");
    let shown = offramp(&["show", "--json", "--interval", "0", "--control", control.to_str().unwrap()]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    kill(Pid::from_raw(shown["process"].as_i64().unwrap() as i32), Signal::SIGTERM).unwrap();
    while control.parent().unwrap().exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::write(&file, format!("{daemon}[[port]]\nname = \"a\"\nmutt = 1\n")).unwrap();
    let wrong = offramp(&["up", "--detach", file.to_str().unwrap()]);
    refused(&wrong, &["unknown key \"mutt\""]);
    assert!(!control.parent().unwrap().exists());
}

#[test]
fn taps_and_guests_of_the_command_line_make_one_switch_without_a_file() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("simple", "");
    let session = place.session("session", USER + 6, 0o700);
    let socket = session.join("vm0.sock");
    let options = ["up", "--vhost-user", socket.to_str().unwrap()];
    let command = |more: &[&str]| place.command(USER + 6, Some(&session), &[&options[..], more].concat());
    let printed = command(&["--print-config"]).output().unwrap();
    fs::write(&place.file, &printed.stdout).unwrap();
    let checked = place.command(USER + 6, None, &["up", "--check", place.file.to_str().unwrap()]).output().unwrap();
    assert!(checked.status.success() && text(&checked).ends_with("1 port, nothing wrong\n"), "{}", text(&checked));
    let (mut daemon, ready) = Running::start(&mut command(&[]));
    assert!(ready.starts_with("1 port, 1 switch, control ") && socket.exists(), "{ready}");
    kill(Pid::from_raw(daemon.0.id() as i32), Signal::SIGHUP).unwrap();
    let mut line = String::new();
    BufReader::new(daemon.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("started without a file") && line.contains("nothing has changed"), "{line}");
    let shown = place.command(USER + 6, Some(&session), &["show", "vm0", "--interval", "0"]).output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown));
    assert_eq!(daemon.stop(), Some(0));
    let wrong = place.command(USER + 6, None, &["up", "--tap", "interface-of-16b"]).output().unwrap();
    refused(&wrong, &["up: --tap interface-of-16b: port.host.tap \"interface-of-16b\" is no interface name"]);
    let twice = ["up", "--tap", "a=198.18.0.1/24", "--tap", "b=198.18.0.1/24"];
    refused(
        &place.command(USER + 6, None, &twice).output().unwrap(),
        &["up: --tap b=198.18.0.1/24: port \"b\": the address 198.18.0.1 is that of port \"a\""],
    );
    let missing = place.command(USER + 6, None, &["up", "/no/vm.toml"]).output().unwrap();
    refused(&missing, &["up: /no/vm.toml: cannot be read", "examples/vm.toml, or without a file: offramp up --tap "]);
}

/// Returns the commands that docs/guests.md gives to the shell inside of pasta.
fn pasta_recipe() -> String {
    let guests = include_str!("../../../docs/guests.md");
    let (_, section) = guests.split_once("## Give guests the host's network without root (pasta)").unwrap();
    let (_, block) = section.split_once("```sh\npasta --config-net -- sh ").unwrap();
    let (_, commands) = block.split_once('\n').unwrap();
    commands.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_recipe_for_the_hosts_network_with_pasta_works_for_a_plain_user() {
    let lacks = |program: &&str| Command::new(program).arg("--version").output().is_err();
    if let Some(lacking) = ["pasta", "nft"].iter().find(|program| lacks(program)) {
        assert!(std::env::var_os("CI").is_none(), "{lacking} is missing, and CI skips nothing");
        println!("skipped: {lacking} is missing");
        return;
    }
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("pasta", "");
    let user = USER + 7;
    let home = place.session("home", user, 0o700);
    // This namespace stands for the machine. pasta copies the namespace's interface and its route.
    let machine = NetNs::new().unwrap();
    let in_machine = |command: &mut Command| confine(command, Some(&machine), None).unwrap();
    let mut set_up = Command::new("sh");
    set_up.args([
        "-ec",
        "ip link add eth0 type veth peer up0; ip link set lo up; ip link set eth0 up; ip link set up0 up
         ip address add 192.0.2.2/24 dev eth0; ip route add default via 192.0.2.1",
    ]);
    in_machine(&mut set_up);
    assert!(set_up.status().unwrap().success());

    let own = format!("/tmp/offramp-{user}");
    let after = format!(
        "echo IN-SHELL; ip -o address show dev ofr-lan; nft list table ip nat; ls vm0.sock; offramp show --interval 0
         kill $(offramp show --json --interval 0 | sed 's/.*\"process\":\\([0-9]*\\).*/\\1/')
         while [ -e {own} ]; do sleep 0.01; done; echo GONE\n"
    );
    let id = user.to_string();
    let mut pasta = Command::new("setpriv");
    pasta.args(["--reuid", &id, "--regid", &id, "--clear-groups", "pasta", "--config-net", "--", "sh", "-e"]);
    let program = place.program.parent().unwrap().to_owned();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.display());
    pasta.env("PATH", path).env_remove("XDG_RUNTIME_DIR").current_dir(&home);
    // The output goes to a file, because a pipe would stay open until the daemon ends.
    let (script, log) = (home.join("script"), home.join("log"));
    fs::write(&script, pasta_recipe() + &after).unwrap();
    let file = fs::File::create(&log).unwrap();
    pasta.stdin(fs::File::open(&script).unwrap()).stdout(file.try_clone().unwrap()).stderr(file);
    in_machine(&mut pasta);
    let ended = pasta.status().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let words = ["ready: 2 ports, 1 switch", "198.18.0.1/24", "masquerade", "\nvm0.sock\n", "\n  ofr-lan  up ", "GONE"];
    for word in words {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(ended.success(), "{text}");
}

#[test]
fn a_check_names_what_the_machine_lacks() {
    let directory = Directory::new("lacks");
    let file = directory.path("daemon.toml");
    fs::write(
        &file,
        "[[port]]\nname = \"a\"\nhost = { tap = \"ofr0\", namespace = \"ofr-no-such\" }\nwire.packet = \"ofr-no-such\"\n",
    )
    .unwrap();
    let checked = offramp(&["up", "--check", file.to_str().unwrap()]);
    let text = text(&checked);
    assert!(checked.status.success() && !text.contains("nothing wrong"), "{text}");
    for lack in ["host.namespace: opening /run/netns/ofr-no-such", "no interface \"ofr-no-such\"", "cannot start here"]
    {
        assert!(text.contains(lack), "{lack} in {text}");
    }
}

#[test]
fn a_check_names_the_rights_that_its_user_lacks() {
    if !is_root_of_the_machine() {
        return;
    }
    let netns = format!("ofr-rights-{}", std::process::id());
    let ip = |verb: &str| assert!(Command::new("ip").args(["netns", verb, &netns]).status().unwrap().success());
    let file = format!(
        "[[port]]\nname = \"a\"\nhost.tap = \"ofrrights0\"\nwire.packet = \"lo\"\n\n\
         [[port]]\nname = \"b\"\nhost = {{ tap = \"ofr0\", namespace = \"{netns}\" }}\nwire.cable = \"c\"\n\n\
         [[port]]\nname = \"c\"\nhost.tap = \"ofrrights1\"\nwire.cable = \"b\"\n"
    );
    let place = Place::new("check-caps", &file);
    ip("add");
    let command = |verb: &[&str]| {
        let arguments = [&["up"], verb, &[place.file.to_str().unwrap()]].concat();
        text(&place.command(USER, None, &arguments).output().unwrap())
    };
    let (checked, started) = (command(&["--check"]), command(&[]));
    ip("delete");
    for lack in [
        "port \"a\": host.tap: a new TAP needs CAP_NET_ADMIN; run as root or grant it",
        "port \"a\": wire.packet: needs CAP_NET_RAW; run as root or grant it",
        // Where /run/netns can be read, the file of the namespace is opened, but the namespace cannot be entered.
        "); run as root, or start the daemon in the namespace without host.namespace",
        "cannot start here",
    ] {
        assert!(checked.contains(lack), "{lack} in {checked}");
    }
    assert!(started.contains("run as root"), "{started}");
}

#[test]
fn a_check_tries_the_directories_of_sockets_as_the_user_of_the_daemon() {
    if !is_root_of_the_machine() {
        return;
    }
    let place = Place::new("check-rights", "");
    let left = place.session("left", USER + 8, 0o755);
    let write = |control: &Path, guest: &Path| {
        let guest = ONE_GUEST.replace("vm0.sock", guest.join("vm0.sock").to_str().unwrap());
        fs::write(&place.file, format!("daemon.control = {:?}\n{guest}", control.join("control.sock"))).unwrap();
    };
    let check = |user: u32| {
        let checked = place.command(user, None, &["up", "--check", place.file.to_str().unwrap()]).output().unwrap();
        assert!(checked.status.success(), "{}", text(&checked));
        text(&checked)
    };
    let missing = place.directory.path("missing");
    write(&left, &missing);
    let said = check(0);
    for part in [
        "1 port, the file is right, but cannot start here now\n",
        &format!("up: daemon.control {}/control.sock: creating the socket: Permission denied", left.display()),
        &format!(
            "(uid 65534) must be able to write to the directory {0}, which belongs to uid {1}",
            left.display(),
            USER + 8
        ),
        &format!("run \"rmdir {}\"", left.display()),
        &format!("up: port \"vm0\": host.vhost_user {}/vm0.sock: creating the socket: No such file", missing.display()),
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    fs::write(left.join("precious"), "").unwrap();
    let said = check(0);
    assert!(said.contains("Permission denied") && !said.contains("rmdir") && !said.contains("chown"), "{said}");
    // The daemon of root makes the directory of its control socket for its user; a plain user cannot make it there.
    let closed = place.session("closed", 0, 0o755).join("made");
    write(&closed, &closed);
    assert!(check(0).ends_with("1 port, nothing wrong\n"), "{}", check(0));
    assert!(!closed.exists());
    let said = check(USER + 8);
    assert!(said.contains(&format!("making the directory {}: Permission denied", closed.display())), "{said}");
}
