//! Notifications of the service manager (`sd_notify(3)`): one datagram to the socket that `NOTIFY_SOCKET` names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the socket; `@` in front stands for an abstract name.
pub const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// The daemon carries frames.
pub const READY: &str = "READY=1";
/// The daemon is about to end.
pub const STOPPING: &str = "STOPPING=1";

/// Tells the service manager; does nothing where there is none.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os(SOCKET_VARIABLE) else { return };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        eprintln!("offramp: cannot tell the service manager {state:?}: {error}");
    }
}

/// The configuration is being read again; `READY=1` ends it. The manager wants the moment, too.
pub fn reloading() {
    let Ok(now) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC) else { return };
    let usecs = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={usecs}"));
}
