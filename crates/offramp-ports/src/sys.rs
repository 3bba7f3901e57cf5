//! Kernel services outside the data path: privilege, namespaces, links, features, processors.

use std::io;

pub mod cpu;
pub mod datagrams;
pub mod ethtool;
pub mod heap;
pub mod link;
mod netlink;
pub mod netns;
pub mod privilege;
pub mod rps;
pub mod sandbox;
pub mod socket_file;
pub mod tags_in_skb;
pub mod user;
pub mod xstate;

pub use netns::{NetNs, confine};

/// A failed kernel request: the action, and the kernel's error.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {cause}")]
pub struct SysError {
    doing: String,
    cause: io::Error,
}

impl SysError {
    /// Returns an error with its cause and the failed action, a phrase such as `setting the MTU of "ofr0"`.
    pub fn new(doing: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self { doing: doing.into(), cause: cause.into() }
    }

    /// Returns the kernel's error number, or `None` if the kernel did not cause the error.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }

    /// Returns the kind of the error that caused this error.
    pub fn kind(&self) -> io::ErrorKind {
        self.cause.kind()
    }
}

impl From<SysError> for io::Error {
    fn from(error: SysError) -> Self {
        io::Error::new(error.kind(), error)
    }
}
