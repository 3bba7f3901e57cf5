//! Errors of an experiment.

use crate::device::DeviceError;
use crate::failure::Failure;
use crate::guest::GuestError;
use offramp_adapter::cable::CableConfigError;
use offramp_adapter::config::ConfigError;
use offramp_adapter::ipsec::SaError;
use offramp_impair::OutOfRange;
use offramp_offload::esp::InvalidSa;
use offramp_ports::packet::PacketError;
use offramp_ports::sys::SysError;
use offramp_ports::sys::privilege::SetupError;
use offramp_ports::tap::TapError;
use std::io;

/// A failure of an experiment. Each error is one line with the place, the defect, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The system refused a namespace or `/dev/net/tun`.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A TAP could not be made.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A setting of an adapter is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting of the cable is out of range.
    #[error("{0} (split over the queue pairs)")]
    Line(#[from] CableConfigError),
    /// A setting of a card's memory or of a card's faults is out of range.
    #[error(transparent)]
    Card(#[from] OutOfRange),
    /// A security association cannot be made.
    #[error(transparent)]
    Sa(#[from] InvalidSa),
    /// A security association cannot be installed.
    #[error(transparent)]
    SaChange(#[from] SaError),
    /// A packet socket could not be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// An interface could not be set up.
    #[error("{0}")]
    System(#[from] SysError),
    /// The system refused an operation that no other variant covers.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The traffic could not be run.
    #[error("traffic: {0}")]
    Traffic(String),
    /// A run on an existing interface was refused, or the interface's settings could not be restored.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The guest could not be started or failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// No experiment has the requested name.
    #[error("no experiment \"{name}\"; {hint}there are: {known}")]
    UnknownExperiment {
        /// The requested name.
        name: String,
        /// The suggestion of a near name; empty without one.
        hint: String,
        /// Names of the existing experiments.
        known: String,
    },
    /// The file of an experiment is invalid.
    #[error("{0}")]
    Experiment(String),
    /// A signal stopped the run.
    #[error("stopped")]
    Stopped,
}

impl From<Failure> for TestbedError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Stopped => Self::Stopped,
            other => Self::Io(io::Error::other(other)),
        }
    }
}
