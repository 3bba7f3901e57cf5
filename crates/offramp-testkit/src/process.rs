//! Process control for tests: runs a test in a separate process, so that the test can count its resources, and stops
//! threads of other processes.

use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Environment variable that names the test that runs alone.
const ALONE: &str = "OFFRAMP_TEST_ALONE";

/// Returns true in a process that runs only `test`. Such a process can count its descriptors, threads and mappings: no
/// other test of the program runs in it. In any other process, runs the test in a child process and returns false. If
/// the result is false, the caller must return.
///
/// # Panics
/// Panics if no test of this program has that name, or if the test fails in the child process.
#[track_caller]
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let mut alone = Command::new(program);
    alone.args([test, "--exact", "--nocapture"]).env(ALONE, test);
    // Limit glibc to one arena. By default, glibc maps a further arena when threads allocate at the same time, and
    // keeps it. The number of mappings would then grow.
    let ended = alone.env("MALLOC_ARENA_MAX", "1").output();
    let ended = ended.expect("starting a test in a process of its own");
    let [stdout, stderr] = [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    print!("{stdout}");
    // A test program with an unknown test name also succeeds, so check the number of passed tests.
    assert!(ended.status.success() && stdout.contains("1 passed"), "{test} alone: {}\n{stderr}", ended.status);
    false
}

/// A stopped thread of another process. The creating thread must drop the value, which resumes the stopped thread.
#[derive(Debug)]
pub struct StoppedThread(libc::pid_t);

impl StoppedThread {
    /// Stops the thread with this ID.
    ///
    /// # Errors
    /// Returns an error if this process is not permitted to trace the other process.
    pub fn new(thread: i32) -> nix::Result<Self> {
        ptrace::seize(Pid::from_raw(thread), ptrace::Options::empty())?;
        let stopped = Self(thread);
        ptrace::interrupt(Pid::from_raw(thread))?;
        // SAFETY: with a null status pointer, the kernel writes nothing.
        Errno::result(unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) })?;
        Ok(stopped)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // Ignore the error, because the process might have ended.
        let _ = ptrace::detach(Pid::from_raw(self.0), None);
    }
}
