//! The sandbox of a running process: seccomp limits system calls, and Landlock limits files.
//!
//! A seccomp filter belongs to a thread, and a new thread inherits the filters of its parent. The first thread
//! therefore installs the filter of the process before it starts other threads, so that every thread has a filter. In
//! addition, each thread installs the stricter filter of its [`ThreadKind`]. For a thread with several filters, the
//! kernel takes the strictest result.
//!
//! A system call outside the lists of permitted calls ends the process (`SIGSYS`). A correct thread makes no forbidden
//! call, so the caller is an attacker. Only optional calls of libraries fail with an error. `clone3` fails because a
//! filter cannot read its flags; the C library then uses `clone`. Calls to open or find files fail in threads that need
//! no files.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The Landlock version of the rules. An older kernel enforces only the rights that it supports.
const LANDLOCK: ABI = ABI::V7;

/// The reaction to a forbidden call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The process ends, or the call fails if the call is optional for libraries.
    Refuse,
    /// The kernel records the call in its audit log, and executes the call.
    Log,
}

/// The kind of a thread, which determines its permitted calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Does the work of all other kinds, starts threads, and opens and closes descriptors for these threads.
    Process,
    /// Waits for signals and ends the process.
    Main,
    /// Accepts clients of the control socket, and starts a thread for each client.
    Control,
    /// Answers one client.
    Client,
    /// Moves frames.
    Data,
    /// Exchanges messages with the frontend of one vhost-user port.
    Port,
    /// Reserves ESP sequence numbers of keys, by writes to files that are already open.
    Keys,
}

const KINDS: [ThreadKind; 7] = [
    ThreadKind::Process,
    ThreadKind::Main,
    ThreadKind::Control,
    ThreadKind::Client,
    ThreadKind::Data,
    ThreadKind::Port,
    ThreadKind::Keys,
];

/// The reason why a sandbox cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel refuses a system call filter, or no filters exist for this processor architecture.
    #[error("seccomp: {0}")]
    Seccomp(String),
    /// The kernel cannot restrict access to files.
    #[error("Landlock: {0}")]
    Landlock(String),
}

/// Filters for the threads of a process. [`Sandbox::default`] contains no filters and restricts nothing.
#[derive(Clone, Debug, Default)]
pub struct Sandbox(Option<Arc<[KindFilters]>>);

/// The filters of one kind of thread.
type KindFilters = (ThreadKind, Vec<BpfProgram>);

impl Sandbox {
    /// Compiles the filters of all kinds of thread, without installing any filter.
    ///
    /// # Errors
    /// Returns an error if no filters exist for this processor architecture.
    pub fn new(reaction: Reaction) -> Result<Self, SandboxError> {
        let filters = KINDS.into_iter().map(|kind| Ok((kind, programs(kind, reaction)?)));
        let filters = filters.collect::<Result<_, BackendError>>();
        filters.map(|filters| Self(Some(filters))).map_err(|error| SandboxError::Seccomp(error.to_string()))
    }

    /// Restricts the calling thread permanently to the calls of its kind. Threads started later inherit the
    /// restriction.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a filter.
    pub fn enter(&self, kind: ThreadKind) -> Result<(), SandboxError> {
        let filters = self.0.iter().flat_map(|filters| filters.iter());
        let mut programs = filters.filter(|(of, _)| *of == kind).flat_map(|(_, programs)| programs);
        programs.try_for_each(|program| {
            seccompiler::apply_filter(program).map_err(|error| SandboxError::Seccomp(error.to_string()))
        })
    }

    /// Like [`Sandbox::enter`], but for a thread that already has the filter of its process. If the kernel refuses the
    /// additional filter, the thread keeps the filter of its process.
    pub fn enter_thread(&self, kind: ThreadKind) {
        if let Err(error) = self.enter(kind) {
            eprintln!("offramp: a thread keeps the process's seccomp filter: {error}");
        }
    }
}

/// The files that a process can still access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileAccess {
    /// Readable files and directories. Missing paths are ignored.
    pub read: Vec<PathBuf>,
    /// Directories in which the process can create and remove sockets.
    pub sockets: Vec<PathBuf>,
    /// True to allow connections to sockets with an abstract name, used by some service managers.
    pub abstract_sockets: bool,
}

/// Restricts the calling thread, and the threads that this thread starts later, permanently to these files. The
/// restricted threads cannot bind or connect TCP ports, and cannot signal processes that do not have the same
/// restriction. Connections to sockets with a file name remain allowed.
///
/// Returns the version of Landlock enforced by the kernel.
///
/// # Errors
/// Returns an error if the kernel lacks Landlock, or a path cannot be examined.
pub fn restrict_files(files: &FileAccess) -> Result<u32, SandboxError> {
    restrict(files).map_err(|error| SandboxError::Landlock(error.to_string()))?.ok_or_else(|| {
        SandboxError::Landlock(
            "this kernel lacks Landlock; set CONFIG_SECURITY_LANDLOCK and landlock in lsm=".to_owned(),
        )
    })
}

fn restrict(files: &FileAccess) -> Result<Option<u32>, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(LANDLOCK))?;
    let scope = if files.abstract_sockets { Scope::Signal.into() } else { Scope::from_all(LANDLOCK) };
    let ruleset = ruleset.handle_access(AccessNet::from_all(LANDLOCK))?.scope(scope)?;
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
    let status = ruleset
        .create()?
        .add_rules(rules(&files.read, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(rules(&files.sockets, sockets))?
        .restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as u32),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    })
}

/// Returns a rule for each existing path. The rule for a file lacks the right to read directories.
fn rules(
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<PathFd>, RulesetError>> + '_ {
    paths.iter().filter_map(move |path| {
        let fd = open_path(path).ok()?;
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) };
        Some(Ok(PathBeneath::new(fd, access)))
    })
}

fn open_path(path: &Path) -> Result<PathFd, PathFdError> {
    // The parent of a bare file name is an empty path, which stands for the current directory.
    PathFd::new(if path.as_os_str().is_empty() { Path::new(".") } else { path })
}

/// The condition under which a call is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permit {
    /// The call is permitted with any arguments.
    Any,
    /// The bits in `mask` of argument `argument` must equal `value`.
    Bits { argument: u8, mask: u64, value: u64 },
}

type Call = (libc::c_long, Permit);

const fn any(number: libc::c_long) -> Call {
    (number, Permit::Any)
}

const fn bits(number: libc::c_long, argument: u8, mask: u64, value: u64) -> Call {
    (number, Permit::Bits { argument, mask, value })
}

/// Compares a 32-bit argument: the kernel uses only the lower half of the register.
const fn equal(number: libc::c_long, argument: u8, value: u64) -> Call {
    bits(number, argument, u32::MAX as u64, value)
}

/// Permits a memory call without `PROT_EXEC`, so that an attacker cannot add code.
const fn without_execution(number: libc::c_long) -> Call {
    bits(number, 2, libc::PROT_EXEC as u64, 0)
}

/// The calls needed by every thread: for the allocator, locks, clocks, signals, the start and end of a thread, and the
/// message of a panic.
const EVERY_THREAD: &[Call] = &[
    any(libc::SYS_brk),
    any(libc::SYS_clock_getres),
    any(libc::SYS_clock_gettime),
    any(libc::SYS_clock_nanosleep),
    any(libc::SYS_close),
    any(libc::SYS_exit),
    any(libc::SYS_exit_group),
    any(libc::SYS_fcntl),
    any(libc::SYS_futex),
    any(libc::SYS_getpid),
    any(libc::SYS_getrandom),
    any(libc::SYS_gettid),
    any(libc::SYS_madvise),
    any(libc::SYS_mremap),
    any(libc::SYS_munmap),
    any(libc::SYS_nanosleep),
    any(libc::SYS_ppoll),
    any(libc::SYS_read),
    any(libc::SYS_readv),
    any(libc::SYS_restart_syscall),
    any(libc::SYS_rseq),
    any(libc::SYS_rt_sigaction),
    any(libc::SYS_rt_sigprocmask),
    any(libc::SYS_rt_sigreturn),
    any(libc::SYS_sched_getaffinity),
    any(libc::SYS_sched_yield),
    any(libc::SYS_set_robust_list),
    any(libc::SYS_sigaltstack),
    any(libc::SYS_write),
    any(libc::SYS_writev),
    without_execution(libc::SYS_mmap),
    without_execution(libc::SYS_mprotect),
    // A signal handler can run in any thread. The handler wakes the first thread through a socket pair, with `sendto`
    // but without a destination address.
    bits(libc::SYS_sendto, 4, u64::MAX, 0),
    // A thread installs the filter of its kind, names itself or a mapping, and sets the precision of its timers.
    any(libc::SYS_seccomp),
    equal(libc::SYS_prctl, 0, libc::PR_SET_NO_NEW_PRIVS as u64),
    equal(libc::SYS_prctl, 0, libc::PR_SET_NAME as u64),
    equal(libc::SYS_prctl, 0, libc::PR_SET_TIMERSLACK as u64),
    equal(libc::SYS_prctl, 0, libc::PR_SET_VMA as u64),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_poll),
];

/// System calls for TAPs and packet sockets, and for the eventfds of a guest's rings: to read kicks, to interrupt the
/// guest, and to close an eventfd that the frontend has replaced.
const DATA: &[Call] = &[
    any(libc::SYS_getsockname),
    any(libc::SYS_io_cancel),
    any(libc::SYS_io_getevents),
    any(libc::SYS_io_submit),
    any(libc::SYS_preadv2),
    any(libc::SYS_recvfrom),
    any(libc::SYS_recvmsg),
    any(libc::SYS_sendmsg),
];

/// System calls for a frontend's messages, memory, descriptors and eventfds, and for the threads that interrupt a guest
/// through a pipe.
const PORT: &[Call] = &[
    any(libc::SYS_accept4),
    any(libc::SYS_bind),
    any(libc::SYS_connect),
    any(libc::SYS_eventfd2),
    any(libc::SYS_fstat),
    any(libc::SYS_fstatfs),
    any(libc::SYS_ftruncate),
    any(libc::SYS_getsockname),
    any(libc::SYS_getsockopt),
    any(libc::SYS_io_cancel),
    any(libc::SYS_io_destroy),
    any(libc::SYS_io_getevents),
    any(libc::SYS_io_setup),
    any(libc::SYS_io_submit),
    any(libc::SYS_lseek),
    any(libc::SYS_memfd_create),
    any(libc::SYS_preadv2),
    any(libc::SYS_recvfrom),
    any(libc::SYS_recvmsg),
    any(libc::SYS_sendmsg),
    any(libc::SYS_setsockopt),
    any(libc::SYS_shutdown),
    equal(libc::SYS_ioctl, 1, FIONBIO),
    equal(libc::SYS_ioctl, 1, FIONREAD),
    // The port watches the carrier of an interface.
    equal(libc::SYS_socket, 0, libc::AF_NETLINK as u64),
    equal(libc::SYS_socket, 0, libc::AF_UNIX as u64),
    equal(libc::SYS_socketpair, 0, libc::AF_UNIX as u64),
    // These calls are permitted only for an open file, not for a path.
    bits(libc::SYS_newfstatat, 3, libc::AT_EMPTY_PATH as u64, libc::AT_EMPTY_PATH as u64),
    bits(libc::SYS_statx, 2, libc::AT_EMPTY_PATH as u64, libc::AT_EMPTY_PATH as u64),
];

/// Calls for reading and answering a control client's lines, for listing memory mappings, and for setting a TAP's
/// features and carrier.
const CLIENT: &[Call] = &[
    any(libc::SYS_getsockname),
    any(libc::SYS_getsockopt),
    any(libc::SYS_lseek),
    any(libc::SYS_recvfrom),
    any(libc::SYS_recvmsg),
    any(libc::SYS_sendmsg),
    any(libc::SYS_setsockopt),
    any(libc::SYS_shutdown),
    equal(libc::SYS_ioctl, 1, FIONBIO),
    equal(libc::SYS_ioctl, 1, TUNSETCARRIER),
    equal(libc::SYS_ioctl, 1, TUNSETOFFLOAD),
];

/// Values from Linux `include/uapi/asm-generic/ioctls.h`. C libraries declare these constants with different types.
const FIONREAD: u64 = 0x541b;
const FIONBIO: u64 = 0x5421;
/// `_IOW('T', 226, int)` in Linux `include/uapi/linux/if_tun.h`.
const TUNSETCARRIER: u64 = 0x4004_54e2;
/// `_IOW('T', 208, unsigned int)` in Linux `include/uapi/linux/if_tun.h`.
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
/// `_IOW('T', 216, int)` and `_IOW('T', 220, int)` in Linux `include/uapi/linux/if_tun.h`.
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
const TUNSETVNETLE: u64 = 0x4004_54dc;

/// Calls that store the reserved sequence numbers of keys, in files that are already open. A thread that installs an
/// association also needs these calls, to reserve the first sequence numbers.
const KEYS: &[Call] = &[
    any(libc::SYS_fstat),
    any(libc::SYS_fsync),
    any(libc::SYS_ftruncate),
    any(libc::SYS_pwrite64),
    // These calls are permitted only for an open file, not for a path.
    bits(libc::SYS_newfstatat, 3, libc::AT_EMPTY_PATH as u64, libc::AT_EMPTY_PATH as u64),
    bits(libc::SYS_statx, 2, libc::AT_EMPTY_PATH as u64, libc::AT_EMPTY_PATH as u64),
];

/// Calls that start a thread of this process, but no new process.
const STARTING_THREADS: &[Call] =
    &[bits(libc::SYS_clone, 0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64), any(libc::SYS_clone3)];

const CONTROL: &[Call] = &[any(libc::SYS_accept4)];

/// Calls that notify the service manager through its socket, and that remove the files of sockets.
const MAIN: &[Call] = &[
    any(libc::SYS_connect),
    any(libc::SYS_io_destroy),
    any(libc::SYS_newfstatat),
    any(libc::SYS_statx),
    any(libc::SYS_unlinkat),
    equal(libc::SYS_socket, 0, libc::AF_UNIX as u64),
    // At shutdown, the daemon restores the previous vnet header of an existing TAP.
    equal(libc::SYS_ioctl, 1, TUNSETVNETHDRSZ),
    equal(libc::SYS_ioctl, 1, TUNSETVNETLE),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_unlink),
    // musl makes these calls where glibc makes other calls.
    #[cfg(all(target_arch = "x86_64", target_env = "musl"))]
    any(libc::SYS_lstat),
    #[cfg(all(target_arch = "x86_64", target_env = "musl"))]
    any(libc::SYS_open),
    #[cfg(all(target_arch = "x86_64", target_env = "musl"))]
    any(libc::SYS_stat),
];

/// Calls that read the configuration and the files of keys.
const FILES: &[Call] = &[
    any(libc::SYS_fstat),
    any(libc::SYS_getdents64),
    any(libc::SYS_getegid),
    any(libc::SYS_geteuid),
    any(libc::SYS_getgid),
    any(libc::SYS_getuid),
    any(libc::SYS_lseek),
    any(libc::SYS_openat),
    any(libc::SYS_pread64),
];

/// Calls for creating sockets with owners and permissions, and for pinning threads.
const MAKING: &[Call] = &[
    any(libc::SYS_fchmod),
    any(libc::SYS_fchmodat),
    any(libc::SYS_fchown),
    any(libc::SYS_fchownat),
    any(libc::SYS_fdatasync),
    any(libc::SYS_fsync),
    any(libc::SYS_getgroups),
    any(libc::SYS_linkat),
    any(libc::SYS_listen),
    any(libc::SYS_mkdirat),
    any(libc::SYS_pwrite64),
    any(libc::SYS_renameat),
    any(libc::SYS_renameat2),
    any(libc::SYS_sched_setaffinity),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_chmod),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_chown),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_link),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_mkdir),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_rename),
];

/// Calls made by libraries in any thread. The filter lets these calls fail with `EACCES`, unless the kind of thread
/// permits them. The allocator reads the number of processors and the overcommit mode. A panic reads the program's file
/// and the working directory.
const TRIED: &[libc::c_long] = &[
    libc::SYS_faccessat,
    libc::SYS_getcwd,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_prlimit64,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Returns the permitted calls of a kind of thread.
fn allowed(kind: ThreadKind) -> Vec<Call> {
    let lists: &[&[Call]] = match kind {
        ThreadKind::Process => {
            &[EVERY_THREAD, DATA, PORT, CLIENT, KEYS, STARTING_THREADS, CONTROL, MAIN, FILES, MAKING]
        }
        ThreadKind::Main => &[EVERY_THREAD, CLIENT, KEYS, MAIN],
        // A client's thread inherits this filter.
        ThreadKind::Control => &[EVERY_THREAD, CLIENT, KEYS, STARTING_THREADS, CONTROL],
        ThreadKind::Client => &[EVERY_THREAD, CLIENT, KEYS],
        ThreadKind::Keys => &[EVERY_THREAD, KEYS],
        ThreadKind::Data => &[EVERY_THREAD, DATA],
        // A thread that interrupts a guest through a pipe inherits this filter.
        ThreadKind::Port => &[EVERY_THREAD, PORT, STARTING_THREADS],
    };
    let end_of_this = process_ends_itself();
    lists.iter().copied().flatten().copied().chain([end_of_this]).collect()
}

/// Permits `tgkill` to threads of this process, as used by `abort`.
fn process_ends_itself() -> Call {
    equal(libc::SYS_tgkill, 0, u64::from(std::process::id()))
}

/// Returns the calls that fail with `EACCES` for a kind of thread.
fn refused(kind: ThreadKind) -> Vec<Call> {
    let permitted = allowed(kind);
    let tried = TRIED.iter().filter(|number| !permitted.iter().any(|(allowed, _)| allowed == *number));
    tried.map(|&number| any(number)).collect()
}

/// Returns the filters of a kind of thread. The kernel applies all filters to each call, and an error overrides a
/// permission.
fn programs(kind: ThreadKind, reaction: Reaction) -> Result<Vec<BpfProgram>, BackendError> {
    let mut listed = allowed(kind);
    if reaction == Reaction::Log {
        return Ok(vec![program(&listed, SeccompAction::Log, SeccompAction::Allow)?]);
    }
    let refused = refused(kind);
    listed.extend(&refused);
    listed.push(any(libc::SYS_clone3));
    let error = |errno: i32| SeccompAction::Errno(errno as u32);
    let mut programs = vec![
        program(&[any(libc::SYS_clone3)], SeccompAction::Allow, error(libc::ENOSYS))?,
        program(&listed, SeccompAction::KillProcess, SeccompAction::Allow)?,
    ];
    if !refused.is_empty() {
        programs.push(program(&refused, SeccompAction::Allow, error(libc::EACCES))?);
    }
    Ok(programs)
}

/// Returns a filter that answers `is_listed` to the listed calls, and `otherwise` to all other calls.
fn program(calls: &[Call], otherwise: SeccompAction, is_listed: SeccompAction) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for &(number, permit) in calls {
        if let Permit::Bits { argument, mask, value } = permit {
            let len = if mask > u64::from(u32::MAX) { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
            let condition = SeccompCondition::new(argument, len, SeccompCmpOp::MaskedEq(mask), value)?;
            rules.entry(number).or_default().push(SeccompRule::new(vec![condition])?);
        }
    }
    // A call with an empty list of rules matches any arguments.
    let any = calls.iter().filter(|(_, permit)| *permit == Permit::Any);
    rules.extend(any.map(|&(number, _)| (number, Vec::new())));
    SeccompFilter::new(rules, otherwise, is_listed, std::env::consts::ARCH.try_into()?)?.try_into()
}
