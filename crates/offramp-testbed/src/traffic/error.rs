//! What can go wrong with a test, in words that say where and what to do.

use std::io;
use std::net::SocketAddr;

use nix::errno::Errno;

/// Why a test did not happen, or did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// The parameters contradict each other or exceed a limit.
    #[error("{0}")]
    Params(String),
    /// The name of the server has no address.
    #[error("cannot resolve \"{host}\": {reason}")]
    Resolve {
        /// The name as given.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// Nobody answers at the control port.
    #[error("cannot connect to {address}: {reason}; start \"offramp ttcp --serve\" there")]
    Connect {
        /// The control address.
        address: SocketAddr,
        /// What the kernel said.
        reason: String,
    },
    /// A socket of this end could not be set up.
    #[error("cannot {action}: {reason}")]
    Socket {
        /// What was tried.
        action: String,
        /// What the kernel said.
        reason: String,
    },
    /// The server answered, and does not want this test.
    #[error("{address} refused the test: {reason}")]
    Refused {
        /// The control address.
        address: SocketAddr,
        /// The server's reason.
        reason: String,
    },
    /// The other end is not an offramp ttcp server, or one of another version.
    #[error("{address} does not speak this version of the ttcp control protocol: {reason}")]
    Protocol {
        /// The control address.
        address: SocketAddr,
        /// What was wrong with its answer.
        reason: String,
    },
    /// The test began and was cut off.
    #[error("test with {address} cut off: {reason}")]
    Lost {
        /// The control address.
        address: SocketAddr,
        /// What ended it.
        reason: String,
    },
}

impl TrafficError {
    /// Says whether the test never began: wrong parameters, no server, refused. `false` for a test that failed under
    /// way.
    pub fn is_setup(&self) -> bool {
        !matches!(self, Self::Lost { .. })
    }

    pub(super) fn socket(action: impl Into<String>, error: &io::Error) -> Self {
        Self::Socket { action: action.into(), reason: reason(error) }
    }
}

/// The kernel's reason in lower case, without the number.
pub(super) fn reason(error: &io::Error) -> String {
    let text = match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    };
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_is_told_in_one_line_with_what_to_do() {
        let address = "10.0.0.2:5010".parse().unwrap();
        let refused = io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32);
        let error = TrafficError::Connect { address, reason: reason(&refused) };
        assert_eq!(
            error.to_string(),
            "cannot connect to 10.0.0.2:5010: connection refused; start \"offramp ttcp --serve\" there"
        );
        assert!(error.is_setup());
    }
}
