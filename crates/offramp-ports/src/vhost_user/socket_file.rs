//! The socket file of a listening port.

use super::error::VhostUserError;
use crate::sys::socket_file::{self, MakeError, SocketFile, SocketRights};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Listens at `path`. The socket of a dead backend is replaced. A socket with a listener or a file of another kind is
/// never touched.
pub(super) fn listen(path: &Path, rights: SocketRights) -> Result<(UnixListener, SocketFile), VhostUserError> {
    let refused = |error| match error {
        MakeError::InUse => VhostUserError::SocketInUse(path.to_owned()),
        MakeError::NoSocket => VhostUserError::NoSocket(path.to_owned()),
        MakeError::System { doing, cause } => VhostUserError::Listening { socket: path.to_owned(), doing, cause },
    };
    let (listener, file) = socket_file::listen(path, rights).map_err(refused)?;
    let nonblocking = listener.set_nonblocking(true);
    nonblocking.map_err(|cause| refused(MakeError::System { doing: "making it", cause }))?;
    Ok((listener, file))
}
