//! The control socket's file: who may use it, and whose it is.

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, chown};
use offramp_ports::sys::socket_file::{self, Occupant, SocketFile, occupant};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// No permission for anyone but the owner while the socket is made.
const MAKING_MODE: Mode = Mode::from_bits_truncate(0o600);
/// What is being done when the socket's group is set.
const GIVING: &str = "giving it to daemon.control_group";
/// How often a place that others take and leave at the same time is tried.
const TRIES_MAX: usize = 8;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(
        "daemon.control {}: a daemon answers there; stop it first, or choose another socket for this one", .0.display()
    )]
    InUse(PathBuf),
    #[error("daemon.control {}: it exists and is no socket; remove it, or choose another path", .0.display())]
    NoSocket(PathBuf),
    #[error("daemon.control {}: {doing}: {cause}{}", path.display(), hint(doing, cause, path))]
    System { path: PathBuf, doing: &'static str, cause: io::Error },
}

fn hint(doing: &str, cause: &io::Error, path: &Path) -> String {
    if doing == GIVING && cause.kind() == io::ErrorKind::PermissionDenied {
        return "; its user must be a member of that group".to_owned();
    }
    socket_file::hint(cause, path)
}

/// A listening control socket. Its file goes with it, unless another has taken its place.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    /// Goes with it.
    _file: SocketFile,
}

/// Whether the place is free: nothing there, or the file of a daemon that is dead.
///
/// # Errors
/// When a daemon answers there, or there is something else.
pub fn check_free(path: &Path) -> Result<(), SocketError> {
    let system = |doing, cause| SocketError::System { path: path.to_owned(), doing, cause };
    match occupant(path).map_err(|cause| system("asking whether a daemon answers there", cause))? {
        Occupant::Nobody | Occupant::Dead => Ok(()),
        Occupant::Listener => Err(SocketError::InUse(path.to_owned())),
        Occupant::NoSocket => Err(SocketError::NoSocket(path.to_owned())),
    }
}

impl ControlSocket {
    /// Listens at `path`. The file has its permissions and group before it has its name, so that nobody
    /// else gets in between.
    ///
    /// # Errors
    /// When the place is taken, or the system refuses it.
    pub fn listen(path: &Path, mode: u32, group: Option<Gid>) -> Result<Self, SocketError> {
        let system = |doing| move |cause| SocketError::System { path: path.to_owned(), doing, cause };
        let making = Made(made_name(path));
        // Left by a process of the same number that was killed in the middle of this.
        let _ = fs::remove_file(&making.0);
        let listener = listen_private(&making.0).map_err(system("making it"))?;
        // The group first: permissions must never hold for the wrong one.
        if group.is_some() {
            chown(&making.0, None, group).map_err(|e| system(GIVING)(e.into()))?;
        }
        fs::set_permissions(&making.0, fs::Permissions::from_mode(mode)).map_err(system("setting its permissions"))?;
        let file = SocketFile::new(&making.0, path).map_err(system("looking at it"))?;
        put_in_place(&making.0, path)?;
        Ok(Self { listener, _file: file })
    }

    /// The socket, to accept clients from.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

/// Listens at a path that only the owner may use: the permissions of a socket become those of its file.
fn listen_private(path: &Path) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&fd, MAKING_MODE)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::MAXCONN)?;
    Ok(fd.into())
}

/// A file under its first name, which goes in any case.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = fs::remove_file(&self.0);
    }
}

/// The name under which the socket is made: beside its place, with the number of this process.
fn made_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

/// Gives the made file its name. A link fails where a file is, so of two daemons only one gets the place.
fn put_in_place(made: &Path, path: &Path) -> Result<(), SocketError> {
    let system = |doing, cause| SocketError::System { path: path.to_owned(), doing, cause };
    for _ in 0..TRIES_MAX {
        match fs::hard_link(made, path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(system("putting it in its place", error)),
        }
        remove_dead(path, &Made(made_name(&made_name(path))))?;
    }
    Err(SocketError::InUse(path.to_owned()))
}

/// Removes the socket of a daemon that is dead. It is moved aside before it is looked at: another daemon may
/// have taken the place a moment ago, and gets it back then.
fn remove_dead(path: &Path, aside: &Made) -> Result<(), SocketError> {
    check_free(path)?;
    match fs::rename(path, &aside.0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => {
            let doing = "removing the socket of a daemon that is dead";
            return Err(SocketError::System { path: path.to_owned(), doing, cause });
        }
        Ok(()) => {}
    }
    if check_free(&aside.0).is_ok() {
        return Ok(());
    }
    // Where a third one has the place by now, that one keeps it.
    let _ = fs::hard_link(&aside.0, path);
    Err(SocketError::InUse(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A directory of its own for each test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ofr-sock-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("control.sock")
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn while_it_is_made_only_the_owner_may_use_it() {
        let directory = Directory::new("made");
        let _listener = listen_private(&directory.socket()).unwrap();
        let mode = fs::metadata(directory.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_file_has_its_permissions_and_goes_with_the_socket() {
        let directory = Directory::new("mode");
        let socket = ControlSocket::listen(&directory.socket(), 0o640, None).unwrap();
        let mode = fs::metadata(directory.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        UnixStream::connect(directory.socket()).unwrap();
        assert_eq!(directory.files(), 1, "nothing is left of its making");
        drop(socket);
        assert_eq!(directory.files(), 0);
    }

    #[test]
    fn the_socket_of_a_daemon_that_lives_is_refused_and_that_of_a_dead_one_replaced() {
        let directory = Directory::new("stale");
        let alive = UnixListener::bind(directory.socket()).unwrap();
        assert!(matches!(check_free(&directory.socket()), Err(SocketError::InUse(_))));
        assert!(matches!(ControlSocket::listen(&directory.socket(), 0o600, None), Err(SocketError::InUse(_))));
        UnixStream::connect(directory.socket()).expect("it was left in its place");
        drop(alive);
        let _new = ControlSocket::listen(&directory.socket(), 0o600, None).unwrap();
        UnixStream::connect(directory.socket()).unwrap();
        assert_eq!(directory.files(), 1);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let directory = Directory::new("file");
        fs::write(directory.socket(), "precious").unwrap();
        assert!(matches!(ControlSocket::listen(&directory.socket(), 0o600, None), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read(directory.socket()).unwrap(), b"precious");
        assert_eq!(directory.files(), 1);
    }

    #[test]
    fn a_socket_that_has_taken_the_place_is_not_removed() {
        let directory = Directory::new("taken");
        let socket = ControlSocket::listen(&directory.socket(), 0o600, None).unwrap();
        fs::remove_file(directory.socket()).unwrap();
        let _other = UnixListener::bind(directory.socket()).unwrap();
        drop(socket);
        UnixStream::connect(directory.socket()).unwrap();
    }

    #[test]
    fn a_missing_directory_is_named() {
        let path = Path::new("/nonexistent-directory/control.sock");
        let message = ControlSocket::listen(path, 0o600, None).unwrap_err().to_string();
        assert!(message.ends_with("make the directory /nonexistent-directory"), "{message}");
    }
}
