//! The running daemon: answers requests, changes settings of running ports, and stops all ports and switches.

use super::change::{Asked, Change, Outcome as Changes};
use super::config::{Config, PortConfig};
use super::port::Port;
use super::show::{AskedSwitch, Detail, FeatureStates, STATIONS_TIME_MAX, port_status, switch_mtus};
use super::switch::RunningSwitch;
use super::threads::Threads;
use super::touched::Mapping;
use crate::control::line::Peer;
use crate::control::server::Handler;
use crate::schema::{
    Answer, Changed, Event, EventKind, Limit, Moderation, Names, Outcome, RefusalCode, Request, SandboxStatus,
    Settings, Status, feature, unknown,
};
use offramp_offload::caps::Offloads;
use offramp_offload::sync::lock;
use offramp_ports::capture::Capture;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum wait for the end of another client's capture.
const CAPTURE_END_TIME_MAX: Duration = Duration::from_secs(2);
/// Interval between two attempts to start a capture.
const CAPTURE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The running ports and switches of a configuration. Dropping the daemon ends the ports and switches; [`Daemon::stop`]
/// sends queued frames first.
#[derive(Debug)]
pub struct Daemon {
    started: Instant,
    /// The configuration file; `None` if the configuration is not from a file.
    file: Option<PathBuf>,
    threads: Threads,
    sandbox: SandboxStatus,
    changes: Sender<Asked>,
    /// Changes of settings and of associations hold this lock, so that they are made one after the other.
    state: Mutex<State>,
}

/// The ports of one running configuration.
pub type Ports = Arc<Vec<Arc<Port>>>;

/// The part of the daemon that changes at run time. A panic in a thread that holds the lock leaves the state
/// consistent, because every update replaces a field with a checked value.
#[derive(Debug)]
pub struct State {
    /// The running configuration.
    pub config: Config,
    /// The running ports, in the order of `config`. A change replaces the list.
    pub ports: Ports,
    pub switches: Vec<RunningSwitch>,
    /// Names of ports and switches that clients added and the file does not contain.
    pub of_clients: Names,
}

impl Daemon {
    /// Creates the daemon for running ports and switches. Also returns the receiver of requested changes, for the
    /// thread that makes the changes.
    pub(crate) fn new(
        file: Option<PathBuf>,
        config: Config,
        (ports, switches): (Vec<Arc<Port>>, Vec<RunningSwitch>),
        threads: Threads,
        sandbox: SandboxStatus,
    ) -> (Arc<Self>, Receiver<Asked>) {
        let (changes, asked) = channel();
        let state = Mutex::new(State { config, ports: ports.into(), switches, of_clients: Names::default() });
        (Arc::new(Self { started: Instant::now(), file, threads, sandbox, changes, state }), asked)
    }

    /// Locks the daemon's state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the path of the daemon's configuration file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the objects that threads and sockets share.
    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Requests a change, and waits for its outcome.
    ///
    /// # Errors
    /// Returns the reason for refusing the change.
    pub(crate) fn change(&self, change: Change) -> Changes {
        let (outcome, answer) = sync_channel(1);
        let is_asked = self.changes.send(Asked { change, outcome }).is_ok();
        let made = is_asked.then(|| answer.recv().ok()).flatten();
        made.unwrap_or_else(|| Err((RefusalCode::Busy, "the daemon is about to end".to_owned())))
    }

    /// Returns the status of all ports and switches, with their counters.
    pub fn status(&self) -> Status {
        let mappings = self.mappings(None);
        self.status_of(self.state(), None, &Detail::Full(mappings))
    }

    fn show(&self, name: Option<&str>, is_summary: bool) -> Result<Status, Answer> {
        name.map(|name| self.state().port_or_switch(name)).transpose()?;
        // The kernel counts the touched pages of every mapping, and this takes time. So the mappings are read while the
        // state is not locked.
        let detail = if is_summary { Detail::Summary } else { Detail::Full(self.mappings(name)) };
        Ok(self.status_of(self.state(), name, &detail))
    }

    /// Returns the process's mappings, with which `show` counts the touched memory of guests. The list is empty if the
    /// answer about `name` includes no guest with memory. Returns `None` if the kernel provides no list of mappings.
    fn mappings(&self, name: Option<&str>) -> Option<Vec<Mapping>> {
        let has_memory = |port: &Arc<Port>| port.with_guest(|guest| guest.status().memory_bytes > 0) == Some(true);
        let is_shown = |(_, port): &(_, &Arc<PortConfig>)| is_shown(port, name);
        let state = self.state();
        let is_needed = state.ports.iter().zip(&state.config.ports).filter(is_shown).any(|(port, _)| has_memory(port));
        drop(state);
        if is_needed { self.threads.touched.read() } else { Some(Vec::new()) }
    }

    /// Returns the status of the port `name`, of the switch `name` and its ports, or, without a name, of all ports and
    /// switches.
    fn status_of(&self, state: MutexGuard<'_, State>, name: Option<&str>, detail: &Detail) -> Status {
        let (config, until) = (&state.config, Instant::now() + STATIONS_TIME_MAX);
        let ports = || state.ports.iter().zip(&config.ports);
        let switches = config.switches.iter().filter(|switch| name.is_none_or(|name| switch.name == name));
        // The threads of the switches read their stations while the ports are read.
        let asked = switches.filter_map(|config| {
            let switch = state.switches.iter().find(|switch| switch.name == config.name)?;
            Some(AskedSwitch::ask(switch, config, ports(), name.is_some()))
        });
        let asked: Vec<_> = asked.collect();
        let mtus = switch_mtus(config);
        let shown = ports().filter(|(_, port)| is_shown(port, name));
        let ports = shown.map(|(port, of)| port_status(port, of, &mtus, detail)).collect();
        let uptime_ns = self.started.elapsed().as_nanos() as u64;
        drop(state);
        Status {
            offramp: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            uptime_ns,
            sandbox: Some(self.sandbox.clone()),
            ports,
            switches: asked.into_iter().map(|switch| switch.finish(until)).collect(),
        }
    }

    fn set(&self, port: &str, settings: Box<Settings>, peer: Option<Peer>) -> Result<Changed, Answer> {
        let Settings { features: wanted, moderation, limit, link } = &*settings;
        let (limit, link) = (*limit, *link);
        let state = self.state();
        let port = state.port(port)?;
        if wanted.is_empty() && moderation.is_none() && limit.is_none() && link.is_none() {
            let message = "nothing is to be set; name features, a moderation, a limit or the link";
            return Err(Answer::refuse(RefusalCode::BadRequest, message));
        }
        let moderation = moderation.as_ref().map(Moderation::config);
        let (mut on, mut off) = (Offloads::empty(), Offloads::empty());
        for (name, allow) in wanted {
            let offloads = feature(name).map_err(|error| Answer::refuse(RefusalCode::UnknownFeature, error))?;
            if *allow { on |= offloads } else { off |= offloads }
        }
        if on.intersects(off) {
            let message = "a feature is to be on and off at once; name each once, by itself or in a group";
            return Err(Answer::refuse(RefusalCode::BadRequest, message));
        }
        let before = port.host.in_use(port.control.offloads());
        let was_link_on = port.control.is_link_on();
        set_link_on(port, link.unwrap_or(was_link_on))
            .and_then(|()| allow(port, (port.control.offloads() | on) - off))
            .map_err(|error| {
                // If the host is gone, its link cannot be set back to the old state; this second error is ignored.
                drop(set_link_on(port, was_link_on));
                Answer::refuse(RefusalCode::HostRefused, error)
            })?;
        if let Some(moderation) = moderation {
            port.control.set_moderation(moderation);
        }
        if let Some(Limit(limits)) = limit {
            port.control.set_limits(limits);
        }
        port.wake();
        // The list also includes a feature not named in the request, if its use changes because it depends on a named
        // feature.
        let changed = before.symmetric_difference(port.host.in_use(port.control.offloads()));
        let answer = Changed {
            port: port.name.clone(),
            features: FeatureStates::of(port).list(on | off | changed),
            moderation: moderation.map(|moderation| Box::new(moderation.into())),
            limit: limit.map(Box::new),
            link,
        };
        let (uid, process) = peer.map(|peer| (peer.uid, peer.process)).unzip();
        self.threads.events.publish(EventKind::Set { port: port.name.clone(), uid, process, settings });
        Ok(answer)
    }

    fn answer_change(&self, change: Change) -> Result<Outcome, Answer> {
        self.change(change).map(Outcome::Difference).map_err(|(code, message)| Answer::refuse(code, message))
    }

    /// Changes the associations of a port. The state stays locked during the change, so no other change interferes.
    fn change_sa(&self, port: &str, change: impl FnOnce(&Port) -> Result<Outcome, String>) -> Result<Outcome, Answer> {
        let state = self.state();
        change(state.port(port)?)
            .map_err(|error| Answer::refuse(RefusalCode::BadAssociation, format!("port \"{port}\": {error}")))
    }

    /// Returns the running ports. The caller must not drop the last reference to a port; [`crate::apply`] explains the
    /// reason.
    pub(crate) fn ports(&self) -> Ports {
        Arc::clone(&self.state().ports)
    }

    /// Stops fetching from all hosts, and sends the queued frames. Returns whether all queued frames were sent. Removes
    /// the guests' sockets. Later requests to add or remove ports and switches are refused.
    pub fn stop(&self) -> bool {
        // This change makes the daemon refuse all later changes.
        let _ = self.change(Change::Stop);
        let marks = |port: &Arc<Port>| {
            let queues = port.queues.iter().map(|queue| Arc::clone(&queue.mark));
            queues.collect::<Vec<_>>()
        };
        let marks: Vec<_> = self.ports().iter().flat_map(marks).collect();
        let is_at_rest = self.threads.rest.bring_about(&marks);
        if let Err(error) = self.threads.keys.close() {
            log!("offramp: noting how far keys have come: {error}; they continue after what was reserved");
        }
        // Other references may keep the ports alive until the process ends, so sockets and devices are released here.
        for port in self.state().ports.iter() {
            port.with_guest(|guest| guest.remove_socket());
            if is_at_rest {
                port.host.restore();
            }
        }
        self.threads.events.end();
        is_at_rest
    }

    /// Answers a request as the control socket does, except for the data that follow an answer to `monitor` or
    /// `capture`.
    pub fn answer(&self, request: Request) -> Answer {
        self.answer_to(request, None)
    }

    fn answer_to(&self, request: Request, peer: Option<Peer>) -> Answer {
        let outcome = match request {
            Request::Show { port, summary, .. } => {
                self.show(port.as_deref(), summary).map(|status| Outcome::Status(Box::new(status)))
            }
            // The thread that owns the connection sends the data that follow this answer.
            Request::Monitor { .. } => Ok(Outcome::Monitoring {}),
            Request::Capture { .. } => Ok(Outcome::Capturing {}),
            Request::Set { port, features, moderation, limit, link, .. } => {
                self.set(&port, Box::new(Settings { features, moderation, limit, link }), peer).map(Outcome::Changed)
            }
            Request::Add { source, toml, .. } => self.answer_change(Change::Add { source, toml }),
            Request::Remove { ports, switches, .. } => self.answer_change(Change::Remove { ports, switches }),
            Request::SaAdd { port, sa, key, .. } => self.change_sa(&port, |port| port.add_sa(&sa, &key)),
            Request::SaDel { port, direction, spi, .. } => self.change_sa(&port, |port| port.del_sa(&direction, spi)),
            Request::SaRekey { port, direction, spi, to, key, grace_seconds, .. } => {
                self.change_sa(&port, |port| port.rekey_sa(&direction, spi, &to, &key, grace_seconds))
            }
        };
        outcome.map_or_else(|refusal| refusal, Answer::new)
    }
}

impl State {
    fn port(&self, name: &str) -> Result<&Arc<Port>, Answer> {
        let found = self.ports.iter().find(|port| port.name == name);
        found.ok_or_else(|| {
            let known = self.ports.iter().map(|port| port.name.as_str());
            Answer::refuse(RefusalCode::UnknownPort, unknown("port", name, known))
        })
    }

    /// Refuses a name that is neither a port nor a switch.
    fn port_or_switch(&self, name: &str) -> Result<(), Answer> {
        let switches = || self.switches.iter().map(|switch| switch.name.as_str());
        let known = self.ports.iter().map(|port| port.name.as_str()).chain(switches());
        if known.clone().any(|known| known == name) {
            return Ok(());
        }
        let what = if switches().next().is_some() { "port or switch" } else { "port" };
        Err(Answer::refuse(RefusalCode::UnknownPort, unknown(what, name, known)))
    }
}

impl Handler for Daemon {
    /// Waits if another client captures the port: that client may have died, and its capture is about to end.
    fn capture(&self, port: &str, snaplen: u32, buffer_bytes: u64) -> Result<Capture, Answer> {
        let until = Instant::now() + CAPTURE_END_TIME_MAX;
        loop {
            let state = self.state();
            let captured = state.port(port)?;
            if let Some(started) = captured.capture.start(snaplen as usize, buffer_bytes as usize) {
                captured.wake();
                return Ok(started);
            }
            drop(state);
            if Instant::now() >= until {
                let message = format!("port \"{port}\" is captured already by another client; stop that capture first");
                return Err(Answer::refuse(RefusalCode::Busy, message));
            }
            thread::sleep(CAPTURE_CHECK_INTERVAL);
        }
    }

    fn events(&self) -> Receiver<Event> {
        self.threads.events.subscribe()
    }

    fn answer(&self, request: Request, peer: Option<Peer>) -> Answer {
        self.answer_to(request, peer)
    }
}

/// Returns whether an answer about `name`, a port or a switch, includes this port. An answer without a name includes
/// all ports.
fn is_shown(port: &PortConfig, name: Option<&str>) -> bool {
    name.is_none_or(|name| port.name == name || port.is_on(name))
}

/// Changes the features allowed on a port. The adapter first allows the old and the new features together. Then the new
/// features are offered to the host. Last, the adapter disallows the old features. So the adapter never receives a
/// frame with a disallowed feature.
pub fn allow(port: &Port, offloads: Offloads) -> Result<(), String> {
    let before = port.control.offloads();
    port.control.set_offloads(before | offloads);
    let offered = port.host.offer(offloads);
    port.control.set_offloads(if offered.is_ok() { offloads } else { before });
    offered
}

/// Switches the link of a port on or off. When the link goes off, frames stop before the host is notified. When the
/// link goes on, frames pass before the host is notified.
fn set_link_on(port: &Port, is_on: bool) -> Result<(), String> {
    let before = port.control.is_link_on();
    if is_on == before {
        return Ok(());
    }
    port.control.set_link_on(is_on);
    port.host.set_link_on(is_on).inspect_err(|_| port.control.set_link_on(before))
}
