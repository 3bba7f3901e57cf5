//! Errors of a test, each with a remedy.

use std::io;
use std::net::SocketAddr;

use nix::errno::Errno;

/// The reason why a test did not begin or was aborted.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// The parameters contradict each other or exceed a limit.
    #[error("{0}")]
    Params(String),
    /// The server's name cannot be resolved.
    #[error("cannot resolve \"{host}\": {reason}")]
    Resolve {
        /// The server's name as given.
        host: String,
        /// The resolver's message.
        reason: String,
    },
    /// The client could not connect to the control port.
    #[error("cannot connect to {address}: {reason}; start \"offramp ttcp --serve\" there")]
    Connect {
        /// Control address of the server.
        address: SocketAddr,
        /// The kernel's message.
        reason: String,
    },
    /// A socket of the client could not be set up.
    #[error("cannot {action}: {reason}")]
    Socket {
        /// The attempted action on the socket.
        action: String,
        /// The kernel's message.
        reason: String,
    },
    /// The server refused this test.
    #[error("{address} refused the test: {reason}")]
    Refused {
        /// Control address of the server.
        address: SocketAddr,
        /// The server's reason.
        reason: String,
    },
    /// The other end is not an offramp ttcp server, or has another version.
    #[error("{address} does not speak this version of the ttcp control protocol: {reason}")]
    Protocol {
        /// Control address of the other end.
        address: SocketAddr,
        /// The defect in the other end's answer.
        reason: String,
    },
    /// The test was aborted after its start.
    #[error("test with {address} cut off: {reason}")]
    Lost {
        /// Control address of the server.
        address: SocketAddr,
        /// The reason for the abort.
        reason: String,
    },
}

impl TrafficError {
    /// Returns whether the test never began, because of wrong parameters, a missing server or a refusal. Returns
    /// `false` for a test that was aborted after its start.
    pub fn is_setup(&self) -> bool {
        !matches!(self, Self::Lost { .. })
    }

    pub(super) fn socket(action: impl Into<String>, error: &io::Error) -> Self {
        Self::Socket { action: action.into(), reason: reason(error) }
    }
}

/// Returns the kernel's message in lower case, without the error number.
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
