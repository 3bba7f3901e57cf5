//! Tests of a port's socket: its permissions, and the user permitted as its frontend.

use crate::common::is_root_of_the_machine;
use nix::unistd::{Gid, geteuid};
use offramp_ports::sys::socket_file::SocketRights;
use offramp_ports::vhost_user::{Mode, VhostUser, VhostUserConfig};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `GET_PROTOCOL_FEATURES`, version 1, without a payload.
const REQUEST: [u32; 3] = [15, 1, 0];
/// Id of the group of the user nobody, on every Linux.
const NOGROUP: u32 = 65534;

/// A directory that is removed at the end of its test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ofr-socket-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("guest")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until `is_so` returns true.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < until, "it does not come about: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns true if the port answers on a connection, and false if the port ends the connection.
fn is_answered(mut stream: &UnixStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A write fails after the port has ended the connection.
    let _ = stream.write_all(&REQUEST.map(u32::to_ne_bytes).concat());
    match stream.read(&mut [0; 20]) {
        Ok(len) => len > 0,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            false
        }
    }
}

#[test]
fn a_socket_has_the_rights_that_were_asked_for_and_is_its_users_alone_without() {
    let directory = Directory::new("rights");
    let config = VhostUserConfig::new(directory.socket());
    let mode = || fs::metadata(directory.socket()).unwrap().permissions().mode() & 0o777;
    let port = VhostUser::open(&config).unwrap();
    assert_eq!(mode(), 0o600);
    drop(port);
    let group = is_root_of_the_machine().then_some(Gid::from_raw(NOGROUP));
    let rights = SocketRights { mode: 0o660, group };
    let _port = VhostUser::open(&VhostUserConfig { socket_rights: rights, ..config }).unwrap();
    assert_eq!(mode(), 0o660);
    if let Some(group) = group {
        assert_eq!(fs::metadata(directory.socket()).unwrap().gid(), group.as_raw());
    }
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing is left of its making");
}

#[test]
fn only_the_user_that_may_is_taken_as_frontend() {
    let directory = Directory::new("server");
    let own = geteuid().as_raw();
    for (allowed, is_taken) in [(own + 1, false), (own, true)] {
        let config = VhostUserConfig { allowed_uid: Some(allowed), ..VhostUserConfig::new(directory.socket()) };
        let port = VhostUser::open(&config).unwrap();
        let stream = UnixStream::connect(directory.socket()).unwrap();
        assert_eq!(is_answered(&stream), is_taken);
        let (refused, refusal) =
            (u64::from(!is_taken), format!("uid {own} may not be the frontend, only uid {allowed}"));
        wait_until("the refusal to be counted", || port.channel_counters().refused_connections.get() == refused);
        wait_until("the reason", || port.status().last_refusal.is_some_and(|why| why.contains(&refusal)) != is_taken);
    }
}

#[test]
fn a_listener_of_another_user_is_no_frontend() {
    let directory = Directory::new("client");
    let listener = UnixListener::bind(directory.socket()).unwrap();
    let own = geteuid().as_raw();
    for (allowed, is_taken) in [(own + 1, false), (own, true)] {
        let mode = Mode::Client;
        let config = VhostUserConfig { mode, allowed_uid: Some(allowed), ..VhostUserConfig::new(directory.socket()) };
        let port = VhostUser::open(&config).unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert_eq!(is_answered(&stream), is_taken);
        assert_eq!(port.channel_counters().refused_connections.get() > 0, !is_taken);
        drop(port);
        // Accept the connections made before the port ended.
        listener.set_nonblocking(true).unwrap();
        while listener.accept().is_ok() {}
        listener.set_nonblocking(false).unwrap();
    }
}
