//! The default directory of the control socket, the same for the daemon and its clients.
//!
//! | user | directory |
//! |---|---|
//! | root of the machine, and the owner of an existing `/run/offramp` | `/run/offramp` |
//! | everybody else, and root in a user namespace | `$XDG_RUNTIME_DIR/offramp` (XDG Base Directory Specification 0.8) |
//! | … without `XDG_RUNTIME_DIR`, or if that directory does not exist | `/tmp/offramp-UID`, a private directory |
//!
//! A private directory belongs to the user, and no other user can write to it. Otherwise another user could replace
//! the socket, and would receive the keys of security associations.

use super::CONTROL_DEFAULT;
use nix::unistd::{Uid, geteuid};
use offramp_ports::sys::socket_file::{Occupant, occupant};
use offramp_ports::sys::user::{is_root_of_system, outer_uid};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The directory of a daemon that root of the machine starts.
const SYSTEM_DIRECTORY: &str = "/run/offramp";
/// The name of the control socket in its directory.
const CONTROL_NAME: &str = "control.sock";
/// Permission bits with which other users can write to a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The reason for refusing a private directory, with the remedy, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DirectoryError(String);

/// A default directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Directory {
    System,
    /// The directory `offramp` in this directory of the user's session (`XDG_RUNTIME_DIR`).
    Session(PathBuf),
    /// A directory in `/tmp` whose name contains this uid: the user's uid outside the user namespace.
    Temporary(u32),
}

impl Directory {
    /// Returns the default directory for this process's user.
    fn of_user() -> Self {
        let user = geteuid();
        let owns = |found: Metadata| found.is_dir() && found.uid() == user.as_raw();
        if is_root_of_system() || fs::symlink_metadata(SYSTEM_DIRECTORY).is_ok_and(owns) {
            return Self::System;
        }
        let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        match session.filter(|path| path.is_absolute() && path.exists()) {
            Some(path) => Self::Session(path),
            None => Self::Temporary(outer_uid(user)),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::System => SYSTEM_DIRECTORY.into(),
            Self::Session(path) => path.join("offramp"),
            Self::Temporary(user) => PathBuf::from(format!("/tmp/offramp-{user}")),
        }
    }

    /// Checks that no other user can write to the directory. A missing directory is no error.
    fn check(&self) -> Result<(), DirectoryError> {
        let user = geteuid();
        if let Self::Session(path) = self
            && let Some(fault) = fault(path, user)
        {
            let path = path.display();
            let cure = "run \"unset XDG_RUNTIME_DIR\", or set it to a private directory of this user";
            return Err(DirectoryError(format!("XDG_RUNTIME_DIR {path}: {fault}; {cure}")));
        }
        match fault(&self.path(), user).filter(|_| *self != Self::System) {
            Some(fault) => {
                let path = self.path();
                let is_empty = || fs::read_dir(&path).is_ok_and(|mut files| files.next().is_none());
                let removal = if path.is_symlink() || !path.is_dir() || is_empty() { "remove it, or " } else { "" };
                let cure = format!("{removal}set XDG_RUNTIME_DIR to a private directory of this user");
                Err(DirectoryError(format!("{}: {fault}; {cure}", path.display())))
            }
            None => Ok(()),
        }
    }
}

/// Returns the reason why `path` is not a private directory of `user`: a directory owned by this user, and not writable
/// by any other user. Returns `None` if there is no such reason, or if nothing exists at `path`.
fn fault(path: &Path, user: Uid) -> Option<String> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(error.to_string()),
        Ok(found) if found.is_symlink() => Some("is a symbolic link".to_owned()),
        Ok(found) if !found.is_dir() => Some("is not a directory".to_owned()),
        Ok(found) if found.uid() != user.as_raw() => {
            Some(format!("belongs to the user with uid {}, not to this user (uid {user})", found.uid()))
        }
        Ok(found) if found.mode() & WRITABLE_BY_OTHERS != 0 => {
            Some(format!("other users can write to it (mode {:#o})", found.mode() & 0o7777))
        }
        Ok(_) => None,
    }
}

/// Returns the default directory of this process, determined at the first call: a daemon changes its user later.
fn own() -> &'static Directory {
    static OWN: OnceLock<Directory> = OnceLock::new();
    OWN.get_or_init(Directory::of_user)
}

/// Returns the default control socket of a daemon of this user.
pub fn control_default() -> PathBuf {
    own().path().join(CONTROL_NAME)
}

/// Returns whether `directory` is the default directory and must be private. Refuses a private directory to which
/// another user could write.
///
/// # Errors
/// Fails if another user owns the directory or can write to it.
pub(crate) fn is_private(directory: &Path) -> Result<bool, DirectoryError> {
    let own = own();
    let is_private = *own != Directory::System && directory == own.path();
    if is_private {
        own.check()?;
    }
    Ok(is_private)
}

/// A directory that the daemon created. Dropping this value removes the directory, unless it contains files.
///
/// The daemon cannot remove the directory itself: its user and its sandbox must not change the parent directory. So the
/// daemon starts a shell before it gives up its privileges. The shell waits until the daemon ends, even by a crash, and
/// then removes the directory.
#[derive(Debug)]
pub(crate) struct MadeDirectory(Option<Child>);

impl MadeDirectory {
    /// Starts the shell that will remove `path`. On a system without a shell, the directory is not removed.
    pub fn new(path: &Path) -> Self {
        let mut shell = Command::new("/bin/sh");
        // Signals to the daemon's group, such as Ctrl-C, must not end the shell before the daemon.
        shell.args(["-c", "trap '' HUP INT TERM; read _; exec rmdir -- \"$0\""]).arg(path).process_group(0);
        shell.env_clear().current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(shell.spawn().ok())
    }
}

impl Drop for MadeDirectory {
    fn drop(&mut self) {
        let Some(shell) = &mut self.0 else { return };
        drop(shell.stdin.take());
        // The read ends when `rmdir` has ended and has closed its output. The sandbox does not allow wait(2).
        if let Some(mut output) = shell.stdout.take() {
            let _ = output.read(&mut [0]);
        }
    }
}

/// Returns the control socket for a client without `--control`: the socket in the default directory of this user, or
/// else the system's socket. The system's socket also has precedence over the socket of a dead daemon. Returns the path
/// in the default directory if neither socket exists.
///
/// # Errors
/// Fails if the default directory has a socket that another user may have put there.
pub fn find_control() -> Result<PathBuf, DirectoryError> {
    let own = own();
    let socket = own.path().join(CONTROL_NAME);
    // A socket in a directory that this user cannot access counts as existing, so that the client reports the denied
    // access.
    let exists = |path: &Path| !matches!(fs::symlink_metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let is_dead = || matches!(occupant(&socket), Ok(Occupant::Nobody | Occupant::Dead));
    if exists(Path::new(CONTROL_DEFAULT)) && is_dead() {
        return Ok(CONTROL_DEFAULT.into());
    }
    if exists(&socket) {
        own.check()?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{DirBuilderExt, symlink};

    #[test]
    fn a_directory_that_another_user_could_change_is_refused() {
        let base = std::env::temp_dir().join(format!("ofr-dir-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&base).unwrap();
        let own = geteuid();
        let make = |name: &str, mode| {
            let path = base.join(name);
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let (good, open) = (make("good", 0o755), make("open", 0o770));
        assert_eq!(fault(&good, own), None);
        assert_eq!(fault(&base.join("missing"), own), None);
        assert!(fault(&open, own).unwrap().contains("other users can write to it (mode 0o770)"));
        let other = Uid::from_raw(own.as_raw() + 1);
        assert!(fault(&good, other).unwrap().contains("belongs to the user with uid"));
        symlink(&good, base.join("link")).unwrap();
        assert!(fault(&base.join("link"), own).unwrap().contains("symbolic link"));
        fs::write(base.join("file"), "").unwrap();
        assert!(fault(&base.join("file"), own).unwrap().contains("not a directory"));
        fs::remove_dir_all(&base).unwrap();
    }
}
