//! Errors of a run on an existing interface, and of undoing it.

use std::path::PathBuf;

/// An error of a run on an existing interface, or of undoing it. One line each.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no interface of that name in this network namespace.
    #[error("no interface \"{name}\" in this network namespace; there are: {known}")]
    NoInterface {
        /// The requested name.
        name: String,
        /// The existing interfaces.
        known: String,
    },
    /// None of the requested features can be switched on this interface.
    #[error("none of the requested features ({asked}) can be changed on interface \"{interface}\" (driver {driver})")]
    NothingToChange {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// The requested experiments.
        asked: String,
    },
    /// The kernel does not let this process change the interface.
    #[error(
        "not permitted to change interface \"{interface}\"; run as root, or with CAP_NET_ADMIN in its network namespace"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
    },
    /// No traffic with the peer, before anything was changed.
    #[error("peer {peer}: {reason}")]
    Peer {
        /// The other machine.
        peer: String,
        /// The result of the first test.
        reason: String,
    },
    /// The route to the peer bypasses the interface, so that its features have no effect.
    #[error(
        "traffic to {peer} does not go through interface \"{interface}\" (the interface counted {counted} bytes of \
         {sent}); see: ip route get {peer}"
    )]
    OtherRoute {
        /// The interface.
        interface: String,
        /// The other machine.
        peer: String,
        /// Bytes that the interface counted meanwhile, both ways.
        counted: u64,
        /// Bytes of payload sent.
        sent: u64,
    },
    /// A setting of the run is out of range.
    #[error("{0}")]
    Setting(String),
    /// Another run has switched features of this interface and still holds its state file.
    #[error("interface \"{interface}\" is in use by another run; stop process {pid} first")]
    Busy {
        /// The interface.
        interface: String,
        /// The process that wrote the state file.
        pid: u32,
    },
    /// The state file cannot be read or written.
    #[error("state file {path}: {reason}")]
    StateFile {
        /// The file.
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
        /// The file.
        path: PathBuf,
        /// The interface.
        interface: String,
        /// The first difference.
        difference: String,
    },
    /// Settings that could not be restored.
    #[error("interface \"{interface}\" was not fully restored: {left}; the state file {path} remains")]
    NotRestored {
        /// The interface.
        interface: String,
        /// Each setting that could not be restored.
        left: String,
        /// The file with the former settings.
        path: PathBuf,
    },
    /// More than one state file could not be used.
    #[error("{count} state files could not be restored; the first: {first}")]
    Several {
        /// The number of such files.
        count: usize,
        /// The error of the first file.
        first: Box<DeviceError>,
    },
    /// The traffic of every experiment failed.
    #[error("no experiment could be measured; the first: {0}")]
    NothingMeasured(String),
}
