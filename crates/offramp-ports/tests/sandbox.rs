//! Tests of the operations permitted in the sandbox. A filter cannot be removed, so each case runs in a separate
//! process.

use nix::errno::Errno;
use nix::sys::signal::Signal;
use offramp_ports::sys::sandbox::{FileAccess, Reaction, Sandbox, ThreadKind, restrict_files};
use offramp_testkit::process::is_alone;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A file readable by every user.
const READABLE: &str = "/etc/passwd";
/// Environment variable that marks the process to be ended by the sandbox.
const TO_BE_ENDED: &str = "OFFRAMP_TEST_SANDBOX_VICTIM";
const THREADS: [ThreadKind; 6] =
    [ThreadKind::Main, ThreadKind::Control, ThreadKind::Client, ThreadKind::Data, ThreadKind::Port, ThreadKind::Keys];

/// A directory that is removed at the end of its test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ofr-sandbox-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn refusal<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
}

/// Returns the seccomp mode of a thread: 2 for a thread with a filter (proc(5)).
fn seccomp_mode(thread: &Path) -> String {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Seccomp:")).unwrap().trim().to_owned()
}

fn seccomp_modes() -> Vec<String> {
    fs::read_dir("/proc/self/task").unwrap().map(|entry| seccomp_mode(&entry.unwrap().path())).collect()
}

/// Performs operations that every thread needs.
fn live() {
    let memory = vec![1u8; 64 << 20];
    assert_eq!(memory.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 64 << 20);
    thread::sleep(Duration::from_millis(1));
    // A panic captures a backtrace.
    assert!(!std::backtrace::Backtrace::force_capture().to_string().is_empty());
}

#[test]
fn no_kind_of_thread_opens_a_file_that_is_not_the_daemons() {
    if !is_alone("no_kind_of_thread_opens_a_file_that_is_not_the_daemons") {
        return;
    }
    let directory = Directory::new("files");
    fs::write(directory.0.join("daemon.toml"), "text").unwrap();
    assert!(File::open(READABLE).is_ok());
    let files =
        FileAccess { read: vec![directory.0.clone()], sockets: vec![directory.0.clone()], ..FileAccess::default() };
    restrict_files(&files).expect("this test needs a kernel with Landlock");
    assert_eq!(refusal(File::open(READABLE)), Some(Errno::EACCES), "by Landlock alone");
    let sandbox = Sandbox::new(Reaction::Refuse).unwrap();
    sandbox.enter(ThreadKind::Process).unwrap();
    for kind in THREADS {
        let (sandbox, directory) = (sandbox.clone(), directory.0.clone());
        let thread = thread::Builder::new().name(format!("{kind:?}")).spawn(move || {
            sandbox.enter(kind).unwrap();
            live();
            assert_eq!(refusal(File::open(READABLE)), Some(Errno::EACCES), "{kind:?}");
            assert_eq!(refusal(fs::read_dir("/etc")), Some(Errno::EACCES), "{kind:?}");
            let read = fs::read(directory.join("daemon.toml"));
            assert_eq!(refusal(read), Some(Errno::EACCES), "{kind:?}");
        });
        thread.unwrap().join().unwrap_or_else(|_| panic!("{kind:?}"));
    }
    // The thread that opens ports keeps the filter of the process, and reads the daemon's own files.
    assert!(fs::read(directory.0.join("daemon.toml")).is_ok());
    // In the sockets' directory, sockets can be created and removed, but no other files.
    let socket = directory.0.join("a.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    UnixStream::connect(&socket).unwrap();
    assert_eq!(refusal(fs::write(directory.0.join("b"), "text")), Some(Errno::EACCES));
    assert_eq!(refusal(UnixListener::bind(std::env::temp_dir().join("ofr-elsewhere.sock"))), Some(Errno::EACCES));
    fs::remove_file(&socket).unwrap();
}

#[test]
fn threads_of_threads_are_filtered_too() {
    if !is_alone("threads_of_threads_are_filtered_too") {
        return;
    }
    let sandbox = Sandbox::new(Reaction::Refuse).unwrap();
    for kind in [ThreadKind::Control, ThreadKind::Port] {
        let sandbox = sandbox.clone();
        let outer = thread::spawn(move || {
            sandbox.enter(kind).unwrap();
            thread::Builder::new().name("inner".to_owned()).spawn(live).unwrap().join().unwrap();
            thread::spawn(|| refusal(File::open(READABLE))).join().unwrap()
        });
        assert_eq!(outer.join().unwrap(), Some(Errno::EACCES), "{kind:?}");
    }
    sandbox.enter(ThreadKind::Process).unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        begun.send(()).unwrap();
        let _ = ends.recv();
    });
    begins.recv().unwrap();
    // The main thread of the harness was started earlier and has no filter.
    assert_eq!(seccomp_modes().iter().filter(|mode| *mode == "2").count(), 2);
    drop(end);
}

#[test]
fn a_call_that_no_thread_makes_ends_the_process_or_is_logged() {
    const TEST: &str = "a_call_that_no_thread_makes_ends_the_process_or_is_logged";
    if let Ok(reaction) = std::env::var(TO_BE_ENDED) {
        let reaction = if reaction == "log" { Reaction::Log } else { Reaction::Refuse };
        let sandbox = Sandbox::new(reaction).unwrap();
        sandbox.enter(ThreadKind::Process).unwrap();
        sandbox.enter(ThreadKind::Data).unwrap();
        let _ = Command::new("/bin/true").status();
        // With `Reaction::Refuse`, the kernel ends the process before this line.
        std::process::exit(0);
    }
    let run = |reaction| {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args([TEST, "--exact"]).env(TO_BE_ENDED, reaction).output().unwrap();
        ended.status
    };
    assert_eq!(run("refuse").signal(), Some(Signal::SIGSYS as i32));
    assert_eq!(run("log").code(), Some(0));
}
