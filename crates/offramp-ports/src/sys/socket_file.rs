//! The file under whose name a listening Unix socket is found: what is at its place, and whose it is (unix(7)).

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What is found where a socket is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// Nothing.
    Nobody,
    /// A socket on which nobody listens: who made it is dead.
    Dead,
    /// A socket on which somebody listens.
    Listener,
    /// What is no socket. The kernel refuses a connection to it in the same words as to a dead socket.
    NoSocket,
}

/// Looks at a place, and asks a socket that is there whether anybody listens.
///
/// # Errors
/// When the system tells neither.
pub fn occupant(path: &Path) -> io::Result<Occupant> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nobody),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => return Ok(Occupant::NoSocket),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Ok(Occupant::Listener),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Ok(Occupant::Dead),
            // It has just gone.
            io::ErrorKind::NotFound => Ok(Occupant::Nobody),
            // A queue that is full belongs to one that listens.
            io::ErrorKind::WouldBlock => Ok(Occupant::Listener),
            _ => Err(error),
        },
    }
}

/// The file of a socket that was made here. It goes when this is dropped, unless another has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file that is at `made`, under the name `path`, which is the same unless it is about to be given another.
    ///
    /// # Errors
    /// When there is none.
    pub fn new(made: &Path, path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(made)? })
    }

    /// Removes the file if it is still the one that was made.
    pub fn remove(&self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
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

/// What to do about a socket that cannot be made there, behind the system's answer.
#[must_use]
pub fn hint(cause: &io::Error, path: &Path) -> String {
    let directory = path.parent().unwrap_or(path).display();
    match cause.kind() {
        io::ErrorKind::NotFound => format!("; make the directory {directory}"),
        io::ErrorKind::PermissionDenied => {
            format!("; the user of this process must be able to write to the directory {directory}")
        }
        _ => String::new(),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_place_tells_who_is_there_and_a_file_goes_only_while_it_is_the_one_that_was_made() {
        let directory = std::env::temp_dir().join(format!("ofr-place-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("a.sock");
        assert_eq!(occupant(&path).unwrap(), Occupant::Nobody);
        let listener = UnixListener::bind(&path).unwrap();
        let first = SocketFile::new(&path, &path).unwrap();
        assert_eq!(occupant(&path).unwrap(), Occupant::Listener);
        drop(listener);
        assert_eq!(occupant(&path).unwrap(), Occupant::Dead);
        fs::rename(&path, directory.join("aside")).unwrap();
        fs::write(&path, "not a socket").unwrap();
        assert_eq!(occupant(&path).unwrap(), Occupant::NoSocket);
        drop(first);
        assert!(path.exists(), "another has taken its place");
        SocketFile::new(&path, &path).unwrap().remove();
        assert!(!path.exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
