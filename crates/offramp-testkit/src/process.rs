//! A separate process for a test that counts its process' resources, and stopped threads of other processes.

use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Set for a test that runs alone.
const ALONE: &str = "OFFRAMP_TEST_ALONE";

/// Returns true in a process with `test` alone, so that its counts (descriptors, threads, mappings) include no test
/// that begins or ends beside it. Otherwise runs the test in another process and returns false; the caller must then
/// return.
///
/// # Panics
/// Panics if no test of this program has that name, or if the test fails in the child process.
#[track_caller]
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let ended = Command::new(program).args([test, "--exact", "--nocapture"]).env(ALONE, test).output();
    let ended = ended.expect("starting a test in a process of its own");
    let [stdout, stderr] = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    print!("{stdout}");
    // A run with an unknown name succeeds, too.
    assert!(ended.status.success() && stdout.contains("1 passed"), "{test} alone: {}\n{stderr}", ended.status);
    false
}

/// A thread of another process, stopped until this is dropped by the thread that made it.
#[derive(Debug)]
pub struct StoppedThread(libc::pid_t);

impl StoppedThread {
    /// Stops the thread of that number.
    ///
    /// # Errors
    /// Returns an error if this process must not trace the other process.
    pub fn new(thread: i32) -> nix::Result<Self> {
        ptrace::seize(Pid::from_raw(thread), ptrace::Options::empty())?;
        let stopped = Self(thread);
        ptrace::interrupt(Pid::from_raw(thread))?;
        // SAFETY: the kernel writes nothing where no place is given.
        Errno::result(unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) })?;
        Ok(stopped)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = ptrace::detach(Pid::from_raw(self.0), None);
    }
}
