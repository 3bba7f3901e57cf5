//! Notifications of the service manager (`sd_notify(3)`): one datagram to the socket in `NOTIFY_SOCKET`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable with the socket's name. A leading `@` marks an abstract socket.
pub const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// The notification that the daemon forwards frames.
pub const READY: &str = "READY=1";
/// The notification that the daemon is shutting down.
pub const STOPPING: &str = "STOPPING=1";

/// Notifies the service manager; does nothing without a service manager.
pub fn notify(state: &str) {
    let sent = connected().map(|socket| socket.and_then(|socket| socket.send(state.as_bytes())));
    if let Some(Err(error)) = sent {
        log!("offramp: cannot tell the service manager {state:?}: {error}");
    }
}

/// Returns a socket connected to the service manager; `None` without a service manager.
fn connected() -> Option<io::Result<UnixDatagram>> {
    let name = std::env::var_os(SOCKET_VARIABLE)?;
    let address = match name.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    Some(address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(socket)
    }))
}

/// The heartbeat for a service manager with `WatchdogSec=`.
#[derive(Debug)]
pub struct Heartbeat(Option<UnixDatagram>);

impl Heartbeat {
    /// Reads whether the service manager expects a heartbeat from this process (`sd_watchdog_enabled(3)`).
    pub fn new() -> Self {
        let is_others = std::env::var("WATCHDOG_PID").is_ok_and(|pid| pid != std::process::id().to_string());
        let is_wanted = std::env::var_os("WATCHDOG_USEC").is_some() && !is_others;
        let socket = connected().filter(|_| is_wanted).and_then(Result::ok);
        Self(socket.filter(|socket| socket.set_nonblocking(true).is_ok()))
    }

    /// Sends the heartbeat.
    pub fn beat(&self) {
        if let Some(socket) = &self.0 {
            // A manager that does not read cannot expect a heartbeat, so errors are ignored.
            let _ = socket.send(b"WATCHDOG=1");
        }
    }
}

/// Announces to the service manager that the daemon reads its configuration again; a later `READY=1` announces the end.
/// The announcement must also contain the current time.
pub fn reloading() {
    let Ok(now) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC) else { return };
    let usecs = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={usecs}"));
}
