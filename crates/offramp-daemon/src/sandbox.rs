//! Restricts the daemon to the resources it needs, after its devices are open and before it starts a thread.

use super::config::Config;
use crate::schema::{SandboxLevel, SandboxStatus};
use offramp_ports::ipsec_mb;
use offramp_ports::sys::sandbox::{FileAccess, Reaction, Sandbox, SandboxError, ThreadKind, restrict_files};
use std::path::{Path, PathBuf};

/// Enters the sandbox. Returns the filters for the process's threads, and the active restrictions. Also returns the
/// only directories in which sockets may be created; `None` if sockets may be created anywhere. Restrictions missing in
/// the kernel are reported, and the daemon runs without these restrictions.
pub fn enter(
    config: &Config,
    file: Option<&Path>,
    notify_socket: Option<&str>,
) -> (Sandbox, SandboxStatus, Option<Vec<PathBuf>>) {
    // The sandbox denies access to the directory of the cipher library, so the library is loaded first.
    ipsec_mb::preferred();
    let level = config.daemon.sandbox;
    let files = files(config, file, notify_socket);
    let mut lacks = Vec::new();
    let landlock = match level {
        SandboxLevel::Full => noted(restrict_files(&files), &mut lacks),
        // Landlock cannot only log accesses: it refuses them, or is off.
        SandboxLevel::Log | SandboxLevel::Off => None,
    };
    let filters = match level {
        SandboxLevel::Full => noted(filter(Reaction::Refuse), &mut lacks),
        SandboxLevel::Log => noted(filter(Reaction::Log), &mut lacks),
        SandboxLevel::Off => None,
    };
    let status = SandboxStatus { level, seccomp: filters.is_some(), landlock, lacks };
    (filters.unwrap_or_default(), status, landlock.map(|_| files.sockets))
}

fn filter(reaction: Reaction) -> Result<Sandbox, SandboxError> {
    let sandbox = Sandbox::new(reaction)?;
    sandbox.enter(ThreadKind::Process)?;
    Ok(sandbox)
}

/// Returns the value of `result`, or adds the error of `result` to `lacks`.
fn noted<T>(result: Result<T, SandboxError>, lacks: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| lacks.push(error.to_string())).ok()
}

/// Returns the directories to which the sandbox permits access. At `SIGHUP`, the daemon reads the configuration and its
/// key files again. Editors replace these files by new files, so access is permitted to their directories and not to
/// the single files. In the directories of sockets, the daemon creates and removes files.
fn files(config: &Config, file: Option<&Path>, notify_socket: Option<&str>) -> FileAccess {
    let directory = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
    let mut read: Vec<PathBuf> =
        file.into_iter().chain(config.key_files.iter().map(PathBuf::as_path)).map(directory).collect();
    read.dedup();
    let mut sockets: Vec<_> = config.sockets().map(|path| directory(path)).collect();
    sockets.sort();
    sockets.dedup();
    FileAccess { read, sockets, abstract_sockets: notify_socket.is_some_and(|name| name.starts_with('@')) }
}
