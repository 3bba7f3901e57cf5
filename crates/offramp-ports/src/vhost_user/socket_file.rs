//! The socket of a port that listens.

use super::VhostUserError;
use crate::sys::socket_file::{Occupant, SocketFile, occupant};
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Listens at `path`. The socket that a dead backend left there is replaced; one that is listened on is not, and what is
/// no socket is never touched.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), VhostUserError> {
    let made = UnixListener::bind(path).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            remove_dead(path)?;
            UnixListener::bind(path).map_err(|cause| refused(path, cause))
        }
        _ => Err(refused(path, error)),
    })?;
    made.set_nonblocking(true).map_err(|cause| refused(path, cause))?;
    let file = SocketFile::new(path, path).map_err(|cause| refused(path, cause))?;
    Ok((made, file))
}

fn remove_dead(path: &Path) -> Result<(), VhostUserError> {
    match occupant(path).map_err(|cause| refused(path, cause))? {
        Occupant::Nobody => Ok(()),
        Occupant::Dead => fs::remove_file(path).map_err(|cause| refused(path, cause)),
        Occupant::Listener => Err(VhostUserError::SocketInUse(path.to_owned())),
        Occupant::NoSocket => Err(VhostUserError::NoSocket(path.to_owned())),
    }
}

fn refused(path: &Path, cause: io::Error) -> VhostUserError {
    match cause.kind() {
        io::ErrorKind::AddrInUse => VhostUserError::SocketInUse(path.to_owned()),
        _ => VhostUserError::Listening { socket: path.to_owned(), cause },
    }
}
