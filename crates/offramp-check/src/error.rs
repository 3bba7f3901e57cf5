//! Errors of a check.

use std::io;

use offramp_ports::packet::PacketError;
use offramp_testbed::error::TestbedError;

/// The reason why a check could not be made, or not be undone. Each is one line with the fault, the place and the
/// remedy.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// An interface could not be changed or put back.
    #[error(transparent)]
    Settings(#[from] TestbedError),
    /// Frames cannot be sent or captured on an interface.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The system refuses another call.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// There is no such namespace.
    #[error("interface \"{interface}\": network namespace {namespace}: {cause}; see `ip netns list`")]
    Namespace {
        /// The interface as it was named.
        interface: String,
        /// The file of the namespace.
        namespace: String,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Both ends are the same interface.
    #[error("\"{0}\" is named twice; name the two ends of a path")]
    SameInterface(String),
    /// An interface is down.
    #[error("interface \"{0}\" is down or has no carrier; bring it up (`ip link set … up`) and connect it")]
    Down(String),
    /// An interface went down while it was checked.
    #[error("interface \"{0}\" went down during the check; all settings that could be changed were restored")]
    WentDown(String),
    /// An interface's MTU changed while it was checked.
    #[error("the MTU of interface \"{interface}\" changed from {before} to {now} during the check; run it again")]
    MtuChanged {
        /// The interface.
        interface: String,
        /// Bytes of IP at the beginning.
        before: u32,
        /// Bytes of IP now.
        now: u32,
    },
    /// The MTU is too small for any check.
    #[error("interface \"{interface}\" has an MTU of {mtu} bytes; a check needs {least}")]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: u32,
        /// The minimum MTU of any check.
        least: u32,
    },
    /// No frame arrives, so there is no verdict.
    #[error(
        "no frame of \"{from}\" arrives at \"{to}\" with every offload off; check that both are ends of one path, \
         and that nothing between them filters 198.18.0.0/15, fd00::/8 or Ethernet addresses"
    )]
    NothingArrives {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },
    /// A plain frame arrives, a packet does not.
    #[error(
        "frames of \"{from}\" arrive at \"{to}\", but no packet from 198.18.0.0/15 does: the path drops foreign source \
         addresses (a source guard, a firewall); take it away during the check, or check on another path"
    )]
    SourcesDropped {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },
    /// The other machine misbehaves.
    #[error("peer {peer}: {reason}")]
    Peer {
        /// The other machine.
        peer: String,
        /// Its fault.
        reason: String,
    },
    /// The daemon cannot be asked, or has no such pair of ports.
    #[error("daemon: {0}")]
    Daemon(String),
    /// A client of a server misbehaves.
    #[error("{0}")]
    Client(String),
    /// No offload has this name.
    #[error("no offload \"{name}\"; there are: {known}")]
    UnknownOffload {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The check was stopped from outside.
    #[error("stopped")]
    Stopped,
}
