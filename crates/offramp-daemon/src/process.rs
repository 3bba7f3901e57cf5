//! Raises the limit of open files, forbids core dumps, and ends the process if a thread panics.

use crate::control::server::CLIENT_THREAD;
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use offramp_ports::sys::heap::map_large_blocks;
use std::io;
use std::panic;
use std::thread;

/// Prepares the process. Must run before the process has keys or guest memory.
///
/// # Errors
/// Fails if the system refuses a limit.
pub fn prepare() -> io::Result<()> {
    map_large_blocks();
    leave_no_core()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // A guest uses up to about forty descriptors, so the limit is raised to the maximum.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    end_with_any_thread();
    Ok(())
}

/// Forbids core dumps of the process, including core dumps that the kernel pipes to a program (core(5)). Also forbids
/// the process's own user to trace the process. A change of user undoes the setting, so this function must be called
/// again after the change.
///
/// # Errors
/// Fails if the system refuses the setting.
pub fn leave_no_core() -> io::Result<()> {
    Ok(set_dumpable(false)?)
}

/// Ends the process at a panic, so that a service manager restarts it. If only the panicking thread ended, the guests
/// served by that thread would stall for ever. Only the panic of a client's thread does not end the process.
fn end_with_any_thread() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        if thread::current().name() != Some(CLIENT_THREAD) {
            log!("offramp: a thread has failed, which is a defect of offramp; the process ends");
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use offramp_ports::sys::sandbox::{Reaction, Sandbox, ThreadKind};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Environment variable with the name of the thread that fails in this process.
    const FAILING: &str = "OFFRAMP_TEST_FAILING_THREAD";

    #[test]
    fn a_thread_that_fails_ends_the_process_unless_it_serves_a_client() {
        if let Ok(name) = std::env::var(FAILING) {
            prepare().unwrap();
            let sandbox = Sandbox::new(Reaction::Refuse).unwrap();
            let kind = if name == CLIENT_THREAD { ThreadKind::Client } else { ThreadKind::Data };
            let fail = move || {
                sandbox.enter(kind).unwrap();
                panic!("on purpose")
            };
            let ended = thread::Builder::new().name(name).spawn(fail).unwrap().join();
            std::process::exit(i32::from(ended.is_ok()));
        }
        let run = |thread| {
            let test = "process::tests::a_thread_that_fails_ends_the_process_unless_it_serves_a_client";
            let mut command = Command::new(std::env::current_exe().unwrap());
            let ended = command.args([test, "--exact", "--nocapture"]).env(FAILING, thread).output().unwrap();
            (ended.status, String::from_utf8(ended.stderr).unwrap())
        };
        let (status, stderr) = run("ofr-a-0");
        assert_eq!(status.signal(), Some(Signal::SIGABRT as i32), "{stderr}");
        assert!(stderr.contains("on purpose") && stderr.contains("a thread has failed"), "{stderr}");
        assert!(!status.core_dumped());
        assert_eq!(run(CLIENT_THREAD).0.code(), Some(0));
    }
}
