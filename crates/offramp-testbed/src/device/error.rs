//! Why a run on an interface that exists could not be made, or could not be undone.

use std::path::PathBuf;

/// Why a run on an interface that exists could not be made, or could not be undone. One line each.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no interface of that name in this network namespace.
    #[error("no interface \"{name}\" in this network namespace; there are: {known}")]
    NoInterface {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Nothing that was asked for can be switched on this interface.
    #[error("none of the features asked for ({asked}) can be changed on interface \"{interface}\" (driver {driver})")]
    NothingToChange {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// The experiments that were asked for.
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
        /// What became of the first test.
        reason: String,
    },
    /// The way to the peer does not lead through the interface, so that its features mean nothing.
    #[error(
        "traffic to {peer} does not go through interface \"{interface}\" (it counted {counted} bytes of {sent}); \
         see: ip route get {peer}"
    )]
    OtherRoute {
        /// The interface.
        interface: String,
        /// The other machine.
        peer: String,
        /// What the interface counted meanwhile, both ways.
        counted: u64,
        /// Payload that was sent.
        sent: u64,
    },
    /// A setting of the run is out of range.
    #[error("{0}")]
    Setting(String),
    /// Another run has switched features of this interface and still holds its state file.
    #[error("interface \"{interface}\" is in use by another run (process {pid}); stop that one first")]
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
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The state file does not describe the interface that is here.
    #[error(
        "state file {path} is not about this \"{interface}\" ({difference}); nothing was changed; \
         restore where it belongs, or delete the file if that interface is gone"
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The interface.
        interface: String,
        /// What differs.
        difference: String,
    },
    /// Settings that could not be put back.
    #[error("interface \"{interface}\" is not as it was: {left}; the state file {path} remains")]
    NotRestored {
        /// The interface.
        interface: String,
        /// Each setting that could not be put back.
        left: String,
        /// The file that says what it was.
        path: PathBuf,
    },
    /// More than one state file could not be used.
    #[error("{count} state files could not be restored; the first: {first}")]
    Several {
        /// How many.
        count: usize,
        /// What the first one's trouble is.
        first: Box<DeviceError>,
    },
    /// The traffic of every experiment failed.
    #[error("no experiment could be measured; the first: {0}")]
    NothingMeasured(String),
}
