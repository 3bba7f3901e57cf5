//! Guest sockets that replace the sockets in the configuration file. The daemon gets them from `--socket-path`, `--fd`,
//! or a service manager (`sd_listen_fds(3)`).

use super::config::Config;
use crate::schema::unknown;
use offramp_offload::sync::lock;
use offramp_ports::sys::socket_file::passed;
use std::collections::BTreeMap;
use std::env::var;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The first descriptor passed by a service manager.
const LISTEN_FDS_START: RawFd = 3;

/// The reason for rejecting a passed socket.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    #[error("{from}: {cause}; pass a Unix stream socket that listens")]
    NoSocket { from: String, cause: io::Error },
    #[error("{from}: {hint}; name the socket (FileDescriptorName=) after the port whose guest it is for")]
    NoPort { from: String, hint: String },
    #[error("{from}: port \"{port}\" has another socket already; pass one")]
    Twice { from: String, port: String },
    #[error(
        "{option}: the file has {guests} ports with a guest for which the daemon listens; use it with a file that has one"
    )]
    NotOneGuest { option: &'static str, guests: usize },
}

/// A passed socket, with its origin and its name.
#[derive(Debug)]
pub struct Passed {
    from: String,
    name: Option<String>,
    listener: UnixListener,
}

/// Takes the passed sockets: the descriptor of `--fd`, or the descriptors passed by a service manager. Must run before
/// the process opens any descriptor.
///
/// # Errors
/// Fails if a passed descriptor is not a listening socket.
pub fn take(fd: Option<RawFd>) -> Result<Vec<Passed>, GivenError> {
    let passed = |descriptor, from: String, name| match passed(descriptor) {
        Ok(listener) => Ok(Passed { from, name, listener }),
        Err(cause) => Err(GivenError::NoSocket { from, cause }),
    };
    if let Some(fd) = fd {
        return Ok(vec![passed(fd, format!("--fd {fd}"), None)?]);
    }
    // The variables `LISTEN_…` may be meant for the process that started this process.
    let is_own = var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let count = var("LISTEN_FDS").ok().filter(|_| is_own).and_then(|count| count.parse().ok()).unwrap_or(0);
    let names = var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    let descriptors = LISTEN_FDS_START..LISTEN_FDS_START.saturating_add(count);
    descriptors.zip(names).map(|(fd, name)| passed(fd, format!("LISTEN_FDS, descriptor {fd}"), Some(name))).collect()
}

/// The guests' sockets passed from outside the file, by port name.
#[derive(Debug, Default)]
pub struct Given {
    /// Passed listening sockets by port name. When a port is opened, the port's socket is removed from the map.
    listeners: Mutex<BTreeMap<String, UnixListener>>,
    /// Socket paths that replace the paths in the file, by port name.
    paths: BTreeMap<String, PathBuf>,
}

impl Given {
    /// Assigns each socket to a port: the port with the socket's name, or the only port of the file with a guest.
    ///
    /// # Errors
    /// Fails if no port fits, or if several ports fit.
    pub fn new(passed: Vec<Passed>, socket_path: Option<PathBuf>, config: &mut Config) -> Result<Self, GivenError> {
        let guests: Vec<String> = guests(config).cloned().collect();
        let (mut listeners, mut paths) = (BTreeMap::new(), BTreeMap::new());
        if let Some(path) = socket_path {
            let [guest] = &guests[..] else {
                return Err(GivenError::NotOneGuest { option: "--socket-path", guests: guests.len() });
            };
            paths.insert(guest.clone(), path);
        }
        let is_alone = passed.len() == 1 && guests.len() == 1;
        for Passed { from, name, listener } in passed {
            let port = match name {
                _ if is_alone => guests[0].clone(),
                None => return Err(GivenError::NotOneGuest { option: "--fd", guests: guests.len() }),
                Some(name) if guests.contains(&name) => name,
                Some(name) => {
                    let hint = unknown("port with a guest", &name, guests.iter().map(String::as_str));
                    return Err(GivenError::NoPort { from, hint });
                }
            };
            let bound = listener.local_addr().ok();
            paths.extend(bound.and_then(|to| Some((port.clone(), to.as_pathname()?.to_owned()))));
            if listeners.insert(port.clone(), listener).is_some() {
                return Err(GivenError::Twice { from, port });
            }
        }
        let given = Self { listeners: Mutex::new(listeners), paths };
        given.replace(config);
        Ok(given)
    }

    /// Replaces socket paths of the file with the path of `--socket-path` and the paths of the passed sockets.
    pub fn replace(&self, config: &mut Config) {
        for port in config.ports.iter_mut().filter(|port| port.host.socket.is_some()) {
            if let Some(given) = self.paths.get(&port.name)
                && let Some(socket) = &mut Arc::make_mut(port).host.socket
            {
                socket.path.clone_from(given);
            }
        }
    }

    /// Returns whether a socket was passed for a port, and not yet taken by [`Given::listener`].
    pub fn has(&self, port: &str) -> bool {
        lock(&self.listeners).contains_key(port)
    }

    /// Returns the socket passed for a port. A second call returns `None`.
    pub fn listener(&self, port: &str) -> Option<UnixListener> {
        lock(&self.listeners).remove(port)
    }
}

/// Returns the names of the ports whose guest connects to a listening socket of the daemon.
fn guests(config: &Config) -> impl Iterator<Item = &String> {
    config.ports.iter().filter(|port| port.host.socket.is_some()).map(|port| &port.name)
}
