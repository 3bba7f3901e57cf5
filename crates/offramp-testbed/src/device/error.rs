//! Errors of a run on an existing interface, and of the restoration.

use std::path::PathBuf;

/// An error of a run on an existing interface, or of the restoration. Each error is one line.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The network namespace has no interface with that name.
    #[error("no interface \"{name}\" in this network namespace; there are: {known}")]
    NoInterface {
        /// Name of the requested interface.
        name: String,
        /// Names of the existing interfaces.
        known: String,
    },
    /// None of the requested features can be switched on this interface.
    #[error("none of the requested features ({asked}) can be changed on interface \"{interface}\" (driver {driver})")]
    NothingToChange {
        /// Name of the interface.
        interface: String,
        /// Name of the interface's driver.
        driver: String,
        /// Names of the experiments that the user requested.
        asked: String,
    },
    /// The kernel does not permit this process to change the interface.
    #[error(
        "not permitted to change interface \"{interface}\"; run as root, or with CAP_NET_ADMIN in its network namespace"
    )]
    NotPermitted {
        /// Name of the interface.
        interface: String,
    },
    /// The peer did not answer the test that runs before any change of the interface.
    #[error("peer {peer}: {reason}")]
    Peer {
        /// Name or address of the peer.
        peer: String,
        /// Result of the test.
        reason: String,
    },
    /// The route to the peer bypasses the interface, so that the interface's features have no effect.
    #[error(
        "traffic to {peer} does not go through interface \"{interface}\" (the interface counted {counted} bytes of \
         {sent}); see: ip route get {peer}"
    )]
    OtherRoute {
        /// Name of the interface.
        interface: String,
        /// Name or address of the peer.
        peer: String,
        /// Bytes counted by the interface during the test, in both directions.
        counted: u64,
        /// Payload bytes sent by the test.
        sent: u64,
    },
    /// A setting of the run is out of range.
    #[error("{0}")]
    Setting(String),
    /// Another run has switched features of this interface, is still active, and has locked the state file.
    #[error("interface \"{interface}\" is in use by another run; stop process {pid} first")]
    Busy {
        /// Name of the interface.
        interface: String,
        /// Number of the process that wrote the state file.
        pid: u32,
    },
    /// The state file cannot be read or written.
    #[error("state file {path}: {reason}")]
    StateFile {
        /// Path of the state file.
        path: PathBuf,
        /// The problem, and the remedy.
        reason: String,
    },
    /// The state file does not describe the present interface.
    #[error(
        "state file {path} is for another interface \"{interface}\" ({difference}); nothing was changed; restore in \
         that interface's namespace, or delete the file if that interface is gone"
    )]
    Mismatch {
        /// Path of the state file.
        path: PathBuf,
        /// Name of the interface.
        interface: String,
        /// The first difference between the state file and the present interface.
        difference: String,
    },
    /// Some settings could not be restored.
    #[error("interface \"{interface}\" was not fully restored: {left}; the state file {path} remains")]
    NotRestored {
        /// Name of the interface.
        interface: String,
        /// Settings that could not be restored, with their values before the run.
        left: String,
        /// Path of the state file with the interface's settings before the run.
        path: PathBuf,
    },
    /// Several state files could not be used.
    #[error("{count} state files could not be restored; the first: {first}")]
    Several {
        /// Number of unusable state files.
        count: usize,
        /// Error of the first unusable state file.
        first: Box<DeviceError>,
    },
    /// The traffic of every experiment failed.
    #[error("no experiment could be measured; the first: {0}")]
    NothingMeasured(String),
}
