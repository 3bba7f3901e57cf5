//! Adds, removes and changes ports and switches while other ports and switches run. A client's request or a changed
//! configuration file causes the changes.
//!
//! One thread makes all changes, one after the other. Each change is made completely or not at all. The thread first
//! opens and prepares everything that can fail. Until everything is prepared, nothing changes for running ports. The
//! thread also ends removed ports, because threads on the frame path must not close anything.

use super::build::{Devices, connect_to, open, privileged_key};
use super::change::{Asked, Change, Outcome};
use super::config::{Config, PortConfig, SwitchConfig};
use super::daemon::{Daemon, State, allow};
use super::error::BuildError;
use super::events::Events;
use super::port::Port;
use super::switch::RunningSwitch;
use crate::schema::{Difference, EventKind, RefusalCode, unknown};
use offramp_adapter::ipsec::{KeyRegistry, SaChange};
use offramp_adapter::pair::PreparedIpsec;
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::mem::take;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

/// Time between two checks whether other references to a port exist.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// Starts the thread that makes the changes. The thread keeps the system-call filter of the whole process and enters no
/// stricter filter, because it opens sockets and starts threads of every kind.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn start(daemon: &Arc<Daemon>, asked: Receiver<Asked>) -> io::Result<()> {
    let daemon = Arc::clone(daemon);
    thread::Builder::new().name("ofr-ports".into()).spawn(move || {
        for Asked { change, outcome } in asked {
            let is_last = matches!(change, Change::Stop);
            let made = daemon.make(change);
            if let Ok(difference) = &made {
                publish(difference, &daemon.threads().events);
            }
            // Sending fails only if the requesting thread has panicked; the error is ignored.
            let _ = outcome.send(made);
            if is_last {
                return;
            }
        }
    })?;
    Ok(())
}

fn publish(Difference { added, removed, .. }: &Difference, events: &Events) {
    let ports = removed.ports.iter().map(|port| EventKind::PortRemoved { port: port.clone() });
    let switches = removed.switches.iter().map(|switch| EventKind::SwitchRemoved { switch: switch.clone() });
    ports.chain(switches).for_each(|event| events.publish(event));
    let switches = added.switches.iter().map(|switch| EventKind::SwitchAdded { switch: switch.clone() });
    let ports = added.ports.iter().map(|port| EventKind::PortAdded { port: port.clone() });
    switches.chain(ports).for_each(|event| events.publish(event));
}

#[allow(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
fn wrong(message: impl Display) -> (RefusalCode, String) {
    (RefusalCode::BadConfiguration, message.to_string())
}

impl Daemon {
    fn make(&self, change: Change) -> Outcome {
        match change {
            Change::Add { source, toml } => self.add(&source, &toml),
            Change::Remove { ports, switches } => self.remove(&ports, &switches),
            Change::Reload => self.reload(),
            Change::Stop => Ok(Difference::default()),
        }
    }

    fn add(&self, source: &str, toml: &str) -> Outcome {
        let running = self.state().config.clone();
        let target = running.parse_added(Path::new(source), toml).map_err(wrong)?;
        let difference = self.apply(target, Vec::new())?;
        let mut state = self.state();
        state.of_clients.ports.extend_from_slice(&difference.added.ports);
        state.of_clients.switches.extend_from_slice(&difference.added.switches);
        Ok(difference)
    }

    fn remove(&self, ports: &[String], switches: &[String]) -> Outcome {
        let mut target = self.state().config.clone();
        let known: Vec<&str> = target.ports.iter().map(|port| &*port.name).collect();
        if let Some(name) = ports.iter().find(|name| !known.contains(&name.as_str())) {
            return Err((RefusalCode::UnknownPort, unknown("port", name, known)));
        }
        let known: Vec<&str> = target.switches.iter().map(|switch| &*switch.name).collect();
        if let Some(name) = switches.iter().find(|name| !known.contains(&name.as_str())) {
            return Err((RefusalCode::UnknownSwitch, unknown("switch", name, known)));
        }
        target.ports.retain(|port| !ports.contains(&port.name));
        target.switches.retain(|switch| !switches.contains(&switch.name));
        if let Some(message) = target.loose_end() {
            return Err(wrong(message));
        }
        self.apply(target, Vec::new())
    }

    fn reload(&self) -> Outcome {
        let Some(path) = self.file() else {
            return Err(wrong("the daemon was started without a file; use \"offramp port\", or restart it"));
        };
        let running = self.state().config.clone();
        let of_clients = self.state().of_clients.clone();
        let file = Config::load(path).map_err(wrong)?;
        // A port or switch that is now in the file no longer belongs to a client.
        let mut others = Config { daemon: running.daemon.clone(), ..running.clone() };
        let is_in_file = |name: &String| file.ports.iter().any(|port| port.name == *name);
        others.ports.retain(|port| of_clients.ports.contains(&port.name) && !is_in_file(&port.name));
        let is_in_file = |name: &String| file.switches.iter().any(|switch| switch.name == *name);
        others.switches.retain(|switch| of_clients.switches.contains(&switch.name) && !is_in_file(&switch.name));
        let mut target = Config::load_beside(path, &others).map_err(wrong)?;
        self.threads().given.replace(&mut target);
        if target.daemon != running.daemon {
            return Err(wrong("[daemon] cannot change while the daemon runs; restart it"));
        }
        target.ports.extend(others.ports.iter().cloned());
        target.switches.extend(others.switches.iter().cloned());
        if let Some(message) = target.loose_end() {
            return Err(wrong(message));
        }
        let kept = kept(&self.state(), &target, &self.threads().keys).map_err(wrong)?;
        let difference = self.apply(target, kept)?;
        others.retain_own(&mut self.state().of_clients);
        Ok(difference)
    }

    /// Makes `target` the running configuration, or changes nothing. `kept` lists the ports in both the running
    /// configuration and `target`, with their changes.
    fn apply(&self, target: Config, kept: Vec<Kept>) -> Outcome {
        let threads = self.threads();
        let (added, new_switches) = self.state().config.lacks(&target);
        let order = target.ports.clone();
        let places: HashMap<&str, usize> = order.iter().map(|port| &*port.name).zip(0..).collect();
        added.iter().try_for_each(|port| self.may_open(port)).map_err(wrong)?;
        let not_opened = |error: BuildError| (RefusalCode::NotOpened, error.to_string());
        let mut opened = open(&added, Devices::none(added.len()), threads).map_err(not_opened)?;
        let start = |switch| RunningSwitch::start(switch, &added, &mut opened, threads);
        let started = new_switches.iter().map(start).collect::<Result<Vec<_>, _>>().map_err(not_opened)?;

        let mut state = self.state();
        change_kept(&kept).map_err(|message| (RefusalCode::HostRefused, message))?;
        // From here on, the change is made and cannot be undone. No later step can fail. Even a stalled switch accepts
        // a new port in place of a removed port, although it has not yet dropped the removed port.
        let ports = Arc::unwrap_or_clone(take(&mut state.ports));
        let (stay, gone) = ports.into_iter().partition(|port| places.contains_key(&*port.name));
        state.ports = Arc::new(stay);
        let (stay, gone_switches): (_, Vec<_>) =
            take(&mut state.switches).into_iter().partition(|switch| target.has_switch(&switch.name));
        state.switches = stay;
        state.switches.extend(started);
        target.retain_own(&mut state.of_clients);
        let gone_ports = state.config.ports.iter().filter(|port| !places.contains_key(&*port.name));
        let deleted_interfaces = gone_ports.flat_map(|port| port.own_interfaces()).collect();
        state.config = target;
        state.config.ports.retain(|port| !added.iter().any(|added| Arc::ptr_eq(added, port)));
        drop(state);
        drop(kept);

        let mut difference = Difference { deleted_interfaces, ..Difference::default() };
        let gone: Vec<Arc<Port>> = gone;
        for port in &gone {
            port.with_guest(|guest| guest.begin_close());
        }
        for port in gone {
            difference.removed.ports.push(port.name.clone());
            alone(port).end();
        }
        difference.removed.switches = gone_switches.iter().map(|switch| switch.name.clone()).collect();
        drop(gone_switches);

        let mut state = self.state();
        for (mut port, config) in opened.into_iter().zip(&added) {
            // The switch does not refuse the port: its settings and addresses were already checked.
            connect_to(&mut port, config, &state.switches).map_err(not_opened)?;
            Arc::make_mut(&mut state.ports).push(Arc::new(port));
            state.config.ports.push(Arc::clone(config));
        }
        Arc::make_mut(&mut state.ports).sort_by_cached_key(|port| places.get(&*port.name));
        state.config.ports.sort_by_cached_key(|port| places.get(&*port.name));
        state.switches.iter().for_each(|switch| switch.place(&state.config.ports));
        state.config.warnings(&added).for_each(|warning| log!("offramp: {warning}"));
        difference.added.ports = added.iter().map(|port| port.name.clone()).collect();
        difference.added.switches = new_switches.into_iter().map(|switch| switch.name).collect();
        Ok(difference)
    }

    /// Refuses a port if only a privileged process can open the port.
    fn may_open(&self, config: &PortConfig) -> Result<(), String> {
        let name = &config.name;
        if let Some(key) = privileged_key(config) {
            return Err(format!(
                "port \"{name}\": {key}: it takes privileges that the daemon has given up; write the port into the daemon's \
                 file and restart it, or give the port a guest (host.vhost_user) and a cable or a switch"
            ));
        }
        let Some(socket) = &config.host.socket else { return Ok(()) };
        let threads = self.threads();
        if let Some(group) = socket.group.as_ref().filter(|group| !threads.groups.has(group)) {
            return Err(format!(
                "port \"{name}\": host.socket_group \"{group}\": the daemon is a member of the groups that its file named when it \
                 started, and this is none of them; name it there and restart the daemon"
            ));
        }
        let listed = threads.socket_directories.iter().flatten();
        if threads.socket_directories.is_some() && !listed.clone().any(|directory| socket.path.starts_with(directory)) {
            let listed: Vec<_> = listed.map(|directory| directory.display().to_string()).collect();
            return Err(format!(
                "port \"{name}\": host.vhost_user {}: the sandbox lets this daemon make sockets in {} alone; use one of \
                 these directories, or restart the daemon with a file that has a socket in yours",
                socket.path.display(),
                listed.join(", ")
            ));
        }
        Ok(())
    }
}

/// A port in both the running and the new configuration, with its new settings and the changes of its associations.
struct Kept {
    port: Arc<Port>,
    new: Arc<PortConfig>,
    ipsec: Vec<SaChange>,
}

/// Returns the ports in both the running configuration and `target`. Fails if a port cannot change to its settings in
/// `target`.
fn kept(state: &State, target: &Config, keys: &KeyRegistry) -> Result<Vec<Kept>, String> {
    let mut kept = Vec::new();
    let named: HashMap<&str, &Arc<PortConfig>> = target.ports.iter().map(|port| (&*port.name, port)).collect();
    for (port, old) in state.ports.iter().zip(&state.config.ports) {
        let Some(&new) = named.get(&*old.name) else { continue };
        if let Some(key) = fixed_key(old, new) {
            return Err(format!(
                "port \"{}\": {key} cannot change while the port runs; remove the port and add it again, or restart the daemon",
                new.name
            ));
        }
        let ipsec = port.ipsec_changes(&old.ipsec, &new.ipsec, keys);
        let ipsec = ipsec.map_err(|error| format!("port \"{}\": {error}", new.name))?;
        kept.push(Kept { port: Arc::clone(port), new: Arc::clone(new), ipsec });
    }
    let changed = |old: &&SwitchConfig| target.switches.iter().any(|new| new.name == old.name && new != *old);
    match state.config.switches.iter().find(changed) {
        Some(switch) => Err(format!(
            "switch \"{}\" cannot change while it runs; give the new one another name, or restart the daemon",
            switch.name
        )),
        None => Ok(kept),
    }
}

/// Changes all ports of `kept`, or none.
fn change_kept(kept: &[Kept]) -> Result<(), String> {
    let mut prepared = Vec::new();
    for Kept { port, ipsec, .. } in kept.iter().filter(|kept| !kept.ipsec.is_empty()) {
        let ready = port.control.prepare_ipsec(ipsec);
        prepared.push(ready.map_err(|(_, error)| format!("port \"{}\": {error}", port.name))?);
    }
    let before: Vec<_> = kept.iter().map(|kept| kept.port.control.offloads()).collect();
    for (at, Kept { port, new, .. }) in kept.iter().enumerate() {
        if let Err(error) = allow(port, new.offloads) {
            // If a host is gone, its old offloads cannot be restored; this second error is ignored.
            kept[..at].iter().zip(&before).for_each(|(kept, offloads)| drop(allow(&kept.port, *offloads)));
            return Err(format!("port \"{}\": {error}", port.name));
        }
    }
    prepared.into_iter().for_each(PreparedIpsec::make);
    for Kept { port, new, .. } in kept {
        port.control.set_moderation(new.moderation);
        port.control.set_limits(new.limits);
    }
    Ok(())
}

/// Waits until no other reference to the port exists, and returns the port. Dropping the last reference ends the port.
/// Only the thread of this module may end a port.
fn alone(mut port: Arc<Port>) -> Port {
    loop {
        match Arc::try_unwrap(port) {
            Ok(port) => return port,
            Err(shared) => port = shared,
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Returns the first configuration key whose values in `old` and `new` differ, but which cannot change while the port
/// runs.
fn fixed_key(old: &PortConfig, new: &PortConfig) -> Option<&'static str> {
    let differs = [
        ("host", old.host != new.host),
        ("wire", (&old.wire, old.bits_per_second) != (&new.wire, new.bits_per_second)),
        ("mtu", old.mtu != new.mtu),
        ("memory", old.memory != new.memory),
        ("faults", old.faults != new.faults),
        ("poll_usecs", old.poll_usecs != new.poll_usecs),
        ("cpus", old.cpus != new.cpus),
        ("mac_addresses", old.security.mac_addresses != new.security.mac_addresses),
        ("ip_addresses", old.security.ip_addresses != new.security.ip_addresses),
        ("vlan", old.security.vlans.untagged() != new.security.vlans.untagged()),
        ("vlans", old.security.vlans.tagged() != new.security.vlans.tagged()),
        ("isolated", old.isolated != new.isolated),
    ];
    differs.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
}
