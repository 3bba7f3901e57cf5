//! The errors from opening a vhost-user port.

use super::features::MTU_MIN;
use crate::sys::socket_file::{GIVING, hint};
use offramp_virtio::ring::QUEUE_SIZE_MAX;
use std::io;
use std::path::{Path, PathBuf};

/// An error from opening a vhost-user port.
#[derive(Debug, thiserror::Error)]
pub enum VhostUserError {
    /// The number of queue pairs is out of range.
    #[error("vhost-user \"{}\": {queue_pairs} queue pairs; use 1 to {most}", socket.display())]
    QueuePairs {
        /// The port's socket.
        socket: PathBuf,
        /// The requested number of queue pairs.
        queue_pairs: u16,
        /// The maximum number of queue pairs.
        most: u16,
    },
    /// Several queue pairs were requested without a control queue, which a guest needs to enable several pairs.
    #[error(
        "vhost-user \"{}\": {queue_pairs} queue pairs without a control queue, needed for more than one pair; use 1, \
         or a frontend with a control queue",
        socket.display()
    )]
    ControlQueue {
        /// The port's socket.
        socket: PathBuf,
        /// The requested number of queue pairs.
        queue_pairs: u16,
    },
    /// The maximum ring size is out of range.
    #[error("vhost-user \"{}\": rings of {queue_size}; use 1 to {QUEUE_SIZE_MAX}", socket.display())]
    QueueSize {
        /// The port's socket.
        socket: PathBuf,
        /// The requested size, in descriptors.
        queue_size: u16,
    },
    /// The MTU for the guest is out of range.
    #[error("vhost-user \"{}\": mtu {mtu} for the guest; use {MTU_MIN} to 65535 bytes of IP", socket.display())]
    Mtu {
        /// The port's socket.
        socket: PathBuf,
        /// The requested MTU, in bytes of the IP packet.
        mtu: u16,
    },
    /// The socket already has a listener.
    #[error("vhost-user \"{}\": the socket is in use; choose another path, or stop the listening process", .0.display())]
    SocketInUse(PathBuf),
    /// The socket's path has a file of another kind, which is left unchanged.
    #[error("vhost-user \"{}\": the file exists and is not a socket; remove the file, or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The socket cannot be created.
    #[error("vhost-user \"{}\": the socket: {doing}: {cause}{}", socket.display(), listening_hint(doing, cause, socket))]
    Listening {
        /// The port's socket.
        socket: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// A system call failed.
    #[error("vhost-user \"{}\": {doing}: {cause}", socket.display())]
    System {
        /// The port's socket.
        socket: PathBuf,
        /// The failed operation.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

fn listening_hint(doing: &str, cause: &io::Error, socket: &Path) -> String {
    if doing == GIVING && cause.kind() == io::ErrorKind::PermissionDenied {
        return "; the user of this process must be a member of that group".to_owned();
    }
    hint(cause, socket)
}
