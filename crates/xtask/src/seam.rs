//! The one place that opens offramp's vhost-user port.

use crate::failure::{Result, not_possible};
use offramp_adapter::port::{HostPort, PortError};
use offramp_offload::caps::Offloads;
use offramp_offload::meta::{RxMeta, TxMeta};
use offramp_ports::worker::HostIo;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// What a harness asks of a vhost-user port.
#[derive(Clone, Debug, clap::Args)]
pub struct PortArgs {
    /// The vhost-user socket
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Connect to the socket (again and again) instead of listening on it
    #[arg(long)]
    pub client: bool,
    /// Queue pairs
    #[arg(long, default_value_t = 1)]
    pub queues: u16,
    /// IP bytes that a frame may carry
    #[arg(long, default_value_t = 1500)]
    pub mtu: u16,
}

/// A vhost-user port with all its queues.
#[derive(Debug)]
pub struct Port {
    /// One host port per queue pair.
    pub queues: Vec<Queue>,
}

/// One queue pair of a vhost-user port. This build has none, so there is no value of this type.
#[derive(Debug)]
pub enum Queue {}

impl HostPort for Queue {
    fn take(&mut self) -> std::result::Result<bool, PortError> {
        match *self {}
    }

    fn taken(&self) -> (TxMeta, &[u8]) {
        match *self {}
    }

    fn give(&mut self, _: &RxMeta, _: &[u8]) -> std::result::Result<(), PortError> {
        match *self {}
    }

    fn flush(&mut self) {
        match *self {}
    }

    fn accepts(&self) -> Offloads {
        match *self {}
    }

    fn takes_verdicts(&self) -> bool {
        match *self {}
    }
}

impl HostIo for Queue {
    fn arm(&mut self) {
        match *self {}
    }

    fn disarm(&mut self) {
        match *self {}
    }

    fn watch<'a>(&'a self, _: &mut dyn FnMut(BorrowedFd<'a>)) {
        match *self {}
    }
}

/// Whether this build has a vhost-user port at all.
///
/// # Errors
/// [`Failure::NotPossible`](crate::failure::Failure::NotPossible) when not.
pub fn check() -> Result<()> {
    not_possible("this build of offramp has no vhost-user port")
}

/// Opens the port; it listens or connects from now on.
///
/// # Errors
/// When the socket cannot be had.
pub fn open(_args: &PortArgs) -> Result<Port> {
    check()?;
    Ok(Port { queues: Vec::new() })
}
