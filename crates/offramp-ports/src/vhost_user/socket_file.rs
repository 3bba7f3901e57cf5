//! The socket of a port that listens, and the file under whose name frontends find it.

use super::VhostUserError;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The file of a socket that listens. It goes when this is dropped, unless another has taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl SocketFile {
    /// Listens at `path`. The socket that a dead backend left there is replaced; one that is listened on is not, and
    /// what is no socket is never touched.
    pub fn listen(path: &Path) -> Result<(UnixListener, Self), VhostUserError> {
        let made = UnixListener::bind(path).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                remove_dead(path)?;
                UnixListener::bind(path).map_err(|cause| refused(path, cause))
            }
            _ => Err(refused(path, error)),
        })?;
        made.set_nonblocking(true).map_err(|cause| refused(path, cause))?;
        let file = identity(path).map_err(|cause| refused(path, cause))?;
        Ok((made, Self { path: path.to_owned(), file }))
    }

    /// Removes the file if it is still the one that was made.
    pub fn remove(&self) {
        if identity(&self.path).is_ok_and(|found| found == self.file) {
            // Gone meanwhile, or in a directory that is no longer ours to write to: nothing to do about it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Removes a socket on which nobody listens. The kernel refuses a connection to any other file in the same words, so
/// what it is must be looked at.
fn remove_dead(path: &Path) -> Result<(), VhostUserError> {
    let found = fs::symlink_metadata(path).map_err(|cause| refused(path, cause))?;
    if !found.file_type().is_socket() {
        return Err(VhostUserError::NoSocket(path.to_owned()));
    }
    let is_dead = UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if !is_dead {
        return Err(VhostUserError::SocketInUse(path.to_owned()));
    }
    fs::remove_file(path).map_err(|cause| refused(path, cause))
}

fn refused(path: &Path, cause: io::Error) -> VhostUserError {
    match cause.kind() {
        io::ErrorKind::AddrInUse => VhostUserError::SocketInUse(path.to_owned()),
        _ => VhostUserError::Listening { socket: path.to_owned(), cause },
    }
}

/// What to do about a socket that cannot be made.
pub(super) fn hint(cause: &io::Error, path: &Path) -> String {
    let directory = path.parent().unwrap_or(path).display();
    match cause.kind() {
        io::ErrorKind::NotFound => format!("; make the directory {directory}"),
        io::ErrorKind::PermissionDenied => {
            format!("; the user of this process must be able to write to the directory {directory}")
        }
        _ => String::new(),
    }
}
