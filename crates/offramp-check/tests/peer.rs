//! Tests of a check with the server on another machine. Two namespaces represent the machines, and their veth pair also
//! carries the control connection.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{Bed, NAMES};
use offramp_check::end::End;
use offramp_check::error::CheckError;
use offramp_check::peer::{RemoteEnd, Serve, serve};
use offramp_check::run::run;
use offramp_check::verdict::Verdict;
use offramp_ports::sys::link;

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 61, 8, 1), Ipv4Addr::new(10, 61, 8, 2)];

/// A server in the second namespace. Dropping the value ends the server.
struct Server {
    bed: Bed,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    lines: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(name: &str) -> Self {
        let bed = Bed::veth(name, 1500);
        for ((namespace, name), address) in bed.namespaces.iter().zip(NAMES).zip(ADDRESSES) {
            namespace.run(|| link::add_address(name, IpAddr::V4(address), 24).unwrap()).unwrap();
        }
        let listener = bed.namespaces[1].run(|| TcpListener::bind((ADDRESSES[1], 0)).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, lines) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let config = Serve { interface: NAMES[1].to_owned(), state_dir: bed.state_dir.clone(), allows_public: false };
        let (until, log) = (Arc::clone(&stop), Arc::clone(&lines));
        let namespace = bed.namespaces[1].try_clone().unwrap();
        let thread = thread::spawn(move || {
            namespace.enter_current_thread().unwrap();
            serve(&listener, &config, &until, &mut |line| log.lock().unwrap().push(line.to_owned())).unwrap();
        });
        Self { bed, address, stop, lines, thread: Some(thread) }
    }

    fn connect(&self) -> Result<RemoteEnd, CheckError> {
        let stop = Arc::new(AtomicBool::new(false));
        self.bed.namespaces[0].run(|| RemoteEnd::connect(&self.address.to_string(), &stop)).unwrap()
    }

    fn raw(&self) -> TcpStream {
        let stream = self.bed.namespaces[0].run(|| TcpStream::connect(self.address).unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        stream
    }

    /// Sends bytes, and reads the answer until the server closes the connection.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.raw();
        let mut answer = Vec::new();
        stream.write_all(bytes).unwrap();
        // If the server resets the connection, the answer is complete.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn until(&self, text: &str) {
        let begun = Instant::now();
        while !self.lines.lock().unwrap().iter().any(|line| line.contains(text)) {
            assert!(begun.elapsed() < Duration::from_mins(1), "{text:?} in {:?}", self.lines.lock().unwrap());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn state_files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.bed.state_dir);
        files.map_or_else(|_| Vec::new(), |files| files.map(|file| file.unwrap().path()).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_be_bytes()[..], &[kind], body].concat()
}

#[test]
fn a_veth_pair_is_right_when_each_end_is_another_machines() {
    let server = Server::start("served");
    let before = server.bed.settings();
    let mut ends: [Box<dyn End>; 2] = [Box::new(server.bed.end(0).unwrap()), Box::new(server.connect().unwrap())];
    let report = run(&mut ends, &common::quick(), &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert_eq!(common::wrong(&report), "");
    assert_eq!(server.bed.settings(), before);
    let right = report.rows.iter().filter(|row| matches!(row.verdict, Verdict::Right)).count();
    assert!(right >= 24, "{report:?}");
    drop(ends);
    server.until("all settings restored");
}

#[test]
fn a_client_that_goes_away_leaves_every_setting_as_it_was() {
    let server = Server::start("gone");
    let before = server.bed.settings();
    let mut end = server.connect().unwrap();
    end.apply(&[("tx-checksum-ip-generic", false), ("rx-gro", true)]).unwrap();
    assert!(end.is_on("rx-gro") && !end.is_on("tx-checksum-ip-generic"));
    assert_ne!(server.bed.settings(), before);
    drop(end);
    server.until("all settings restored");
    assert_eq!(server.bed.settings(), before);
    assert!(server.state_files().is_empty());
}

/// The server sets the stop flag after the first bytes of an answer, and sends the rest after the client has stopped.
#[test]
fn a_client_that_is_stopped_within_an_answer_still_restores_the_settings() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut next = || {
            let mut len = [0; 4];
            stream.read_exact(&mut len).unwrap();
            let mut request = vec![0; u32::from_be_bytes(len) as usize];
            stream.read_exact(&mut request).unwrap();
            (request[0], stream.try_clone().unwrap())
        };
        let welcome = br#"{"interface":"i","driver":"d","mtu":1500,"mac":[2,0,0,0,0,1],"offered":{}}"#;
        let mut asked = Vec::new();
        for (kind, body) in [(0x81, welcome.as_slice()), (0x84, b""), (0x85, b"[]")] {
            let (request, mut stream) = next();
            asked.push(request);
            let answer = message(kind, body);
            let (first, rest) = answer.split_at(2);
            stream.write_all(first).unwrap();
            if kind == 0x84 {
                flag.store(true, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(500));
            }
            stream.write_all(rest).unwrap();
        }
        asked
    });
    let mut end = RemoteEnd::connect(&peer, &stop).unwrap();
    let stopped = end.receive(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(stopped, CheckError::Stopped), "{stopped}");
    assert_eq!(end.finish().unwrap(), [""; 0]);
    assert_eq!(server.join().unwrap(), [1, 4, 6], "hello, receive, finish");
}

#[test]
fn what_is_no_request_is_refused_with_a_reason_and_the_next_client_is_served() {
    let server = Server::start("hostile");
    assert!(server.say(&message(1, &7u16.to_be_bytes())).contains("version 7"));
    assert!(server.say(&message(3, &[0; 100])).contains("the client sent no greeting"));
    assert!(server.say(&message(99, b"?")).contains("a request of an unknown kind"));
    // There is no answer, because the server closes the connection before it reads such a long message.
    assert_eq!(server.say(&u32::MAX.to_be_bytes()), "");
    let hello = message(1, &2u16.to_be_bytes());
    let feature = message(2, br#"[["loopback", true]]"#);
    assert!(server.say(&[hello.clone(), feature].concat()).contains("a feature that no check covers"));
    let broadcast = message(3, &[[0; 12].as_slice(), &[0xff; 60]].concat());
    assert!(server.say(&[hello.clone(), broadcast].concat()).contains("a frame not made by a check"));
    let datagram = message(7, &[[0; 12].as_slice(), &[0; 60]].concat());
    assert!(server.say(&[hello, datagram].concat()).contains("a frame not made by a check"));
    assert!(server.connect().is_ok());
}

#[test]
fn a_peer_that_is_not_there_is_named() {
    let stop = Arc::new(AtomicBool::new(false));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = RemoteEnd::connect(&nobody, &stop).unwrap_err().to_string();
    assert!(refused.contains(&nobody) && refused.contains("start `offramp check --serve` there"), "{refused}");
}
