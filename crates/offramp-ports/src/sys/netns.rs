//! Network namespaces held by this process alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use super::SysError;
use super::cpu::cpu_set;

/// The calling thread's network namespace, as a file (namespaces(7)).
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// A network namespace, held by a descriptor and by nothing else: no name, no mount, no process.
///
/// When the last descriptor, thread and socket in it is gone the kernel takes it back, with every
/// interface inside.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Makes a new namespace with nothing in it but a loopback in state down. The calling thread stays in its own.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a namespace (no privilege, or `user.max_net_namespaces` reached).
    pub fn new() -> io::Result<Self> {
        let made = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| SysError::new("making a network namespace", e))?;
            Self::current()
        });
        made?
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// Returns an error if `/proc` is not there.
    pub fn current() -> io::Result<Self> {
        let file = File::open(OWN_NAMESPACE).map_err(|e| SysError::new(format!("opening {OWN_NAMESPACE}"), e))?;
        Ok(Self { fd: file.into() })
    }

    /// Opens the namespace of a file: one of `ip netns` in `/run/netns`, or `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened. Entering it shows whether it is a network namespace.
    pub fn open(file: &Path) -> io::Result<Self> {
        let opened = File::open(file).map_err(|e| SysError::new(format!("opening {}", file.display()), e))?;
        Ok(Self { fd: opened.into() })
    }

    /// A second handle to the same namespace.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// Runs `f` inside the namespace, on a thread of its own, and waits for it. A panic of `f` is
    /// passed on.
    ///
    /// Sockets, TAPs and files under `/proc/sys/net` opened by `f` belong to the namespace.
    ///
    /// # Errors
    /// Returns an error if no thread can be started or the namespace may not be entered; `f` then did not run.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| self.enter_current_thread().map(|()| f()))?
    }

    /// Moves the calling thread (and no other) into the namespace, for good.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses (no privilege over the namespace).
    pub fn enter_current_thread(&self) -> io::Result<()> {
        setns(&self.fd, CloneFlags::CLONE_NEWNET).map_err(|e| SysError::new("entering a network namespace", e).into())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs `f` on a new thread and waits for it; a panic is passed on.
fn on_a_thread<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let handle = thread::Builder::new().name("ofr-helper".into()).spawn_scoped(scope, f)?;
        Ok(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Lets `cmd` run in a namespace and on certain processors, and die with its parent thread.
///
/// The child gets `SIGKILL` when the *thread* of the call to `spawn` ends (`PR_SET_PDEATHSIG`), so start it from a
/// longer-lived thread; not inside [`NetNs::run`].
///
/// # Errors
/// Returns an error if the namespace's descriptor cannot be duplicated, or a processor number is out of range. The
/// kernel's refusals in the child come as the error of `spawn`.
pub fn confine(cmd: &mut Command, ns: Option<&NetNs>, cpus: Option<&[usize]>) -> io::Result<()> {
    let ns = ns.map(NetNs::try_clone).transpose()?;
    let cpus = cpus.map(cpu_set).transpose()?;
    let parent = nix::unistd::getpid();
    let prepare = move || {
        die_with(parent)?;
        if let Some(ns) = &ns {
            // No context text here: between fork and exec nothing may allocate.
            setns(&ns.fd, CloneFlags::CLONE_NEWNET)?;
        }
        if let Some(set) = &cpus {
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), set)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes only system calls (prctl, getppid, setns,
    // sched_setaffinity): it takes no lock and allocates nothing; its captures are owned by `cmd`.
    unsafe { cmd.pre_exec(prepare) };
    Ok(())
}

/// Asks for `SIGKILL` when the parent's thread ends; fails when it has ended already.
fn die_with(parent: nix::unistd::Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    if nix::unistd::getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// The descriptor's number, for a program with a namespace by number.
impl AsRawFd for NetNs {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}
