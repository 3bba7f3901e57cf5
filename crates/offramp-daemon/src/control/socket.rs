//! A control socket with its file: created with the configured permissions, and removed at the end.

use offramp_ports::sys::socket_file::{self, GIVING, MakeError, SocketFile, SocketRights};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// An error at the creation of a control socket or a metrics socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(
        "{key} {}: a daemon answers there, perhaps in another namespace; stop it, or write {key} = \"{}\" into the file \
         of this daemon", path.display(), path.with_file_name("second.sock").display()
    )]
    InUse { key: &'static str, path: PathBuf },
    #[error("{key} {}: the file exists and is not a socket; remove the file, or choose another path", path.display())]
    NoSocket { key: &'static str, path: PathBuf },
    #[error("{key} {}: {doing}: {cause}{}", path.display(), hint(doing, cause, path))]
    System { key: &'static str, path: PathBuf, doing: &'static str, cause: io::Error },
}

impl SocketError {
    /// Returns the error for the socket of `key`.
    pub fn new(key: &'static str, path: &Path, error: MakeError) -> Self {
        let path = path.to_owned();
        match error {
            MakeError::InUse => Self::InUse { key, path },
            MakeError::NoSocket => Self::NoSocket { key, path },
            MakeError::System { doing, cause } => Self::System { key, path, doing, cause },
        }
    }
}

fn hint(doing: &str, cause: &io::Error, path: &Path) -> String {
    if doing == GIVING && cause.kind() == io::ErrorKind::PermissionDenied {
        return "; its user must be a member of daemon.control_group".to_owned();
    }
    socket_file::hint(cause, path)
}

/// A listening control socket. Dropping this value removes the socket's file, unless another socket has replaced the
/// file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    /// The socket's file, removed when this value is dropped.
    _file: SocketFile,
}

/// Checks that `path`, the value of `key` in the configuration file, is free. The path is free if no file exists, or if
/// a dead daemon has left the file.
///
/// # Errors
/// Fails if a daemon answers at `path`, or if the file is not a socket.
pub fn check_free(key: &'static str, path: &Path) -> Result<(), SocketError> {
    socket_file::check_free(path).map_err(|error| SocketError::new(key, path, error))
}

/// Checks that this process may create a socket at `path`, the value of `key` in the configuration file.
///
/// # Errors
/// Fails if the directory of `path` is missing or refuses this process.
pub fn may_create(key: &'static str, path: &Path) -> Result<(), SocketError> {
    socket_file::may_create(path).map_err(|error| SocketError::new(key, path, error))
}

impl ControlSocket {
    /// Listens at `path`, the value of `key` in the configuration file.
    ///
    /// # Errors
    /// Fails if the path is in use, or if the system refuses the socket.
    pub fn listen(key: &'static str, path: &Path, rights: SocketRights) -> Result<Self, SocketError> {
        let made = socket_file::listen(path, rights).map_err(|error| SocketError::new(key, path, error));
        made.map(|(listener, file)| Self { listener, _file: file })
    }

    /// Returns the listening socket.
    ///
    /// # Errors
    /// Fails if the process has no free descriptor.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    const KEY: &str = "daemon.control";

    fn rights(mode: u32) -> SocketRights {
        SocketRights { mode, group: None }
    }

    /// A separate directory for each test.
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
    fn the_file_has_its_permissions_and_goes_with_the_socket() {
        let directory = Directory::new("mode");
        let socket = ControlSocket::listen(KEY, &directory.socket(), rights(0o640)).unwrap();
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
        assert!(matches!(check_free(KEY, &directory.socket()), Err(SocketError::InUse { .. })));
        assert!(matches!(
            ControlSocket::listen(KEY, &directory.socket(), rights(0o600)),
            Err(SocketError::InUse { .. })
        ));
        UnixStream::connect(directory.socket()).expect("it was left in its place");
        drop(alive);
        let _new = ControlSocket::listen(KEY, &directory.socket(), rights(0o600)).unwrap();
        UnixStream::connect(directory.socket()).unwrap();
        assert_eq!(directory.files(), 1);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let directory = Directory::new("file");
        fs::write(directory.socket(), "precious").unwrap();
        assert!(matches!(
            ControlSocket::listen(KEY, &directory.socket(), rights(0o600)),
            Err(SocketError::NoSocket { .. })
        ));
        assert_eq!(fs::read(directory.socket()).unwrap(), b"precious");
        assert_eq!(directory.files(), 1);
    }

    #[test]
    fn a_socket_that_has_taken_the_place_is_not_removed() {
        let directory = Directory::new("taken");
        let socket = ControlSocket::listen(KEY, &directory.socket(), rights(0o600)).unwrap();
        fs::remove_file(directory.socket()).unwrap();
        let _other = UnixListener::bind(directory.socket()).unwrap();
        drop(socket);
        UnixStream::connect(directory.socket()).unwrap();
    }

    #[test]
    fn a_missing_directory_is_named() {
        let path = Path::new("/nonexistent-directory/control.sock");
        let message = ControlSocket::listen(KEY, path, rights(0o600)).unwrap_err().to_string();
        assert!(message.ends_with("create the directory /nonexistent-directory"), "{message}");
    }
}
