//! Network namespaces held only by this process.

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

/// The file of the calling thread's network namespace (namespaces(7)).
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// A network namespace, held only by a descriptor: without name, mount or process.
///
/// The kernel deletes the namespace and its interfaces after the last descriptor, thread and socket of the namespace is
/// gone.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Creates a namespace that contains only a loopback interface, which is down. The calling thread stays in its own
    /// namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a namespace, because of missing privilege or the limit
    /// `user.max_net_namespaces`.
    pub fn new() -> io::Result<Self> {
        Self::run_in_new(Self::current)?
    }

    /// Runs `f` on a new thread in a namespace of its own, and waits until `f` returns. As after [`NetNs::new`], the
    /// namespace contains only a loopback interface, and ends with its last descriptor.
    ///
    /// # Errors
    /// Returns the errors of [`NetNs::new`]. After an error, `f` has not run.
    pub fn run_in_new<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| SysError::new("making a network namespace", e))?;
            Ok(f())
        })?
    }

    /// Returns the calling thread's namespace.
    ///
    /// # Errors
    /// Returns an error if `/proc` is not mounted.
    pub fn current() -> io::Result<Self> {
        let file = File::open(OWN_NAMESPACE).map_err(|e| SysError::new(format!("opening {OWN_NAMESPACE}"), e))?;
        Ok(Self { fd: file.into() })
    }

    /// Opens the namespace of a file: a file of `ip netns` in `/run/netns`, or `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened. A file of another kind is detected only when the namespace is
    /// entered.
    pub fn open(file: &Path) -> io::Result<Self> {
        let opened = File::open(file).map_err(|e| SysError::new(format!("opening {}", file.display()), e))?;
        Ok(Self { fd: opened.into() })
    }

    /// Returns a second handle to the same namespace.
    ///
    /// # Errors
    /// Returns an error if the process has reached its limit of descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// Runs `f` in the namespace on a new thread, and waits until `f` returns. A panic of `f` propagates to the caller.
    ///
    /// Sockets, TAPs and files under `/proc/sys/net` opened by `f` belong to the namespace.
    ///
    /// # Errors
    /// Returns an error if no thread can be started or the namespace cannot be entered. After an error, `f` has not
    /// run.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| self.enter_current_thread().map(|()| f()))?
    }

    /// Moves only the calling thread into the namespace, permanently.
    ///
    /// # Errors
    /// Returns an error if the process lacks the privilege for the namespace.
    pub fn enter_current_thread(&self) -> io::Result<()> {
        setns(&self.fd, CloneFlags::CLONE_NEWNET).map_err(|e| SysError::new("entering a network namespace", e).into())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs `f` on a new thread and waits until `f` returns. A panic of `f` propagates to the caller.
fn on_a_thread<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let handle = thread::Builder::new().name("ofr-helper".into()).spawn_scoped(scope, f)?;
        Ok(handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Makes `cmd` run in a namespace and on the given processors, and end with its parent thread.
///
/// The child receives `SIGKILL` when the *thread* that called `spawn` ends (`PR_SET_PDEATHSIG`). Call `spawn` from a
/// long-lived thread, not inside [`NetNs::run`].
///
/// # Errors
/// Returns an error if the namespace's descriptor cannot be duplicated, or a processor number is out of range. If the
/// kernel refuses a request in the child, `spawn` returns the error.
pub fn confine(cmd: &mut Command, ns: Option<&NetNs>, cpus: Option<&[usize]>) -> io::Result<()> {
    let ns = ns.map(NetNs::try_clone).transpose()?;
    let cpus = cpus.map(cpu_set).transpose()?;
    let parent = nix::unistd::getpid();
    let prepare = move || {
        die_with(parent)?;
        if let Some(ns) = &ns {
            // Add no text to the error here: the code between fork and exec must not allocate.
            setns(&ns.fd, CloneFlags::CLONE_NEWNET)?;
        }
        if let Some(set) = &cpus {
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), set)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes only system calls (prctl, getppid, setns, sched_setaffinity),
    // takes no lock and allocates nothing. `cmd` owns the closure's captures.
    unsafe { cmd.pre_exec(prepare) };
    Ok(())
}

/// Makes the kernel send `SIGKILL` to this process when the parent thread ends. Fails if the parent process has already
/// ended.
fn die_with(parent: nix::unistd::Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    if nix::unistd::getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// The descriptor's number, for a program that receives the namespace as a number.
impl AsRawFd for NetNs {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}
