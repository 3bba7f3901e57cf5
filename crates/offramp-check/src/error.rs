//! Errors of a check.

use std::io;

use offramp_ports::packet::PacketError;
use offramp_testbed::error::TestbedError;

/// The reason why a check could not be run, or why a setting could not be restored. Each error is one line with the
/// fault, the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The settings of an interface could not be changed or restored.
    #[error(transparent)]
    Settings(#[from] TestbedError),
    /// Frames cannot be sent or captured on an interface.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The system refused a call that no other variant covers.
    #[error("{}{}", .0, remedy(.0))]
    Io(#[from] io::Error),
    /// The namespace does not exist.
    #[error("interface \"{interface}\": network namespace {namespace}: {cause}; see `ip netns list`")]
    Namespace {
        /// The interface as named by the user.
        interface: String,
        /// Path of the namespace's file.
        namespace: String,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Both ends are the same interface.
    #[error("\"{0}\" is named twice; name the two ends of a path")]
    SameInterface(String),
    /// An interface is down.
    #[error("interface \"{0}\" is down or has no carrier; bring it up (`ip link set … up`) and connect it")]
    Down(String),
    /// An interface went down during the check.
    #[error("interface \"{0}\" went down during the check; all settings that could be changed were restored")]
    WentDown(String),
    /// An interface's MTU changed during the check.
    #[error("the MTU of interface \"{interface}\" changed from {before} to {now} during the check; run it again")]
    MtuChanged {
        /// Name of the interface.
        interface: String,
        /// MTU at the start of the check, in IP bytes.
        before: u32,
        /// Present MTU, in IP bytes.
        now: u32,
    },
    /// The interface's MTU is too small for any check.
    #[error("interface \"{interface}\" has an MTU of {mtu} bytes; a check needs {least}")]
    MtuTooSmall {
        /// Name of the interface.
        interface: String,
        /// MTU of the interface.
        mtu: u32,
        /// Minimum MTU of a check, in IP bytes.
        least: u32,
    },
    /// No frame was received, so there is no verdict.
    #[error(
        "no frame of \"{from}\" arrives at \"{to}\" with every offload off; check that both are ends of one path, \
         and that nothing between them filters 198.18.0.0/15, fd00::/8 or Ethernet addresses"
    )]
    NothingArrives {
        /// Name of the sending interface.
        from: String,
        /// Name of the receiving interface.
        to: String,
    },
    /// Plain Ethernet frames were received, but no IP packets.
    #[error(
        "frames of \"{from}\" arrive at \"{to}\", but no packet from 198.18.0.0/15 does: the path drops foreign source \
         addresses (a source guard, a firewall); take it away during the check, or check on another path"
    )]
    SourcesDropped {
        /// Name of the sending interface.
        from: String,
        /// Name of the receiving interface.
        to: String,
    },
    /// The other machine violated the protocol, or the check failed on the other machine.
    #[error("peer {peer}: {reason}")]
    Peer {
        /// Name of the other machine.
        peer: String,
        /// Description of the violation or failure.
        reason: String,
    },
    /// The daemon does not answer, or has no two ports that the check can use: ports with TAPs on one cable or switch.
    #[error("daemon: {0}")]
    Daemon(String),
    /// The server ended a client's session. The client violated the protocol, exceeded a time limit, or used a public
    /// address.
    #[error("{0}")]
    Client(String),
    /// No offload has the requested name.
    #[error("no offload \"{name}\"; {hint}there are: {known}, and ethtool's names")]
    UnknownOffload {
        /// The requested name.
        name: String,
        /// The suggestion of a near name; empty without one.
        hint: String,
        /// Names of the existing offloads.
        known: String,
    },
    /// A signal stopped the check.
    #[error("stopped")]
    Stopped,
}

/// Returns the remedy for an error of the system.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN",
        _ => "",
    }
}
