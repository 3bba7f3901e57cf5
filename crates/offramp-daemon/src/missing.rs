//! Finds the reasons why a configuration cannot start on this machine now.

use super::config::Config;
use super::control::directory::is_private;
use super::control::socket;
use super::given::Given;
use super::privilege::Identity;
use nix::unistd::{AccessFlags, eaccess};
use offramp_ports::sys::socket_file::{self, MakeError, Occupant, occupant};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Returns the reasons why `config` cannot start on this machine now, each in one line with its remedy. Gives up the
/// privileges of this process, since a daemon creates its sockets with the rights of its user.
pub fn missing(config: &Config, given: &Given) -> Vec<String> {
    // A running daemon with this control socket may be the user of the file's interfaces.
    let is_running =
        !matches!(occupant(&config.daemon.control), Ok(Occupant::Nobody | Occupant::Dead | Occupant::NoSocket));
    let of_ports = config.ports.iter().flat_map(|port| {
        let wire = port.wire.interface().and_then(|(kind, name)| (kind.missing)(name, is_running));
        let of_port = [port.host.missing(is_running), wire];
        of_port.into_iter().flatten().map(|missing| format!("port \"{}\": {missing}", port.name))
    });
    let mut missing: Vec<String> = of_ports.collect();
    match Identity::find(config) {
        Ok(identity) => missing.extend(refused_sockets(config, given, &identity)),
        Err(error) => missing.insert(0, error.to_string()),
    }
    missing
}

/// Returns the reasons why the daemon's user cannot create sockets, one for each directory.
fn refused_sockets(config: &Config, given: &Given, identity: &Identity) -> Vec<String> {
    let own = config.daemon.directory();
    if let Err(error) = is_private(own) {
        return vec![error.to_string()];
    }
    // A daemon creates the directory of its control socket before it gives up its privileges.
    let is_made = !own.exists();
    let mut refused: Vec<String> = is_made.then(|| cannot_make(own)).flatten().into_iter().collect();
    if let Err(error) = identity.assume() {
        refused.push(error.to_string());
        return refused;
    }
    let mut seen: BTreeSet<&Path> = is_made.then_some(own).into_iter().collect();
    for (key, path) in config.daemon.sockets() {
        let checked = if is_new(&mut seen, path) { socket::may_create(key, path) } else { Ok(()) };
        refused.extend(checked.err().map(|error| error.to_string()));
    }
    for port in config.ports.iter().filter(|port| !given.has(&port.name)) {
        let Some(socket) = port.host.socket.as_ref().filter(|socket| is_new(&mut seen, &socket.path)) else { continue };
        if let Err(MakeError::System { doing, cause }) = socket_file::may_create(&socket.path) {
            let (path, hint) = (socket.path.display(), socket_file::hint(&cause, &socket.path));
            refused.push(format!("port \"{}\": host.vhost_user {path}: {doing}: {cause}{hint}", port.name));
        }
    }
    refused
}

/// Returns whether the directory of `path` is not in `seen`, and adds the directory to `seen`.
fn is_new<'a>(seen: &mut BTreeSet<&'a Path>, path: &'a Path) -> bool {
    path.parent().is_some_and(|directory| seen.insert(directory))
}

/// Returns the reason why this process cannot create the directory of the control socket.
fn cannot_make(directory: &Path) -> Option<String> {
    let parent = directory.parent().unwrap_or(directory);
    let cause = io::Error::from(eaccess(parent, AccessFlags::W_OK | AccessFlags::X_OK).err()?);
    let hint = socket_file::hint(&cause, directory);
    Some(format!("daemon.control: making the directory {}: {cause}{hint}", directory.display()))
}
