//! A port of a running daemon as one end of the checked path: a TAP with its adapter. The check switches the adapter's
//! receive offloads over the daemon's control socket.

use crate::show::ask_status;
use offramp_check::Captured;
use offramp_check::end::{Description, End, LocalEnd, Offered, Outgoing};
use offramp_check::error::CheckError;
use offramp_daemon::control::client::{ClientError, ask};
use offramp_daemon::schema::{HostStatus, Outcome, PortStatus, Request, TapStatus, VERSION, WireStatus};
use offramp_offload::caps::{NAMES, OffloadName, Offloads};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Receive offloads that the adapter provides: ethtool's name of each offload, and the adapter's features that
/// implement it.
const RECEIVE: [(&str, &[&str]); 3] =
    [("rx-checksum", &["rx-checksum"]), ("rx-gro-hw", &["rsc4", "rsc6"]), ("rx-udp-gro-forwarding", &["rsc-udp"])];
/// The offload that a TAP lacks: Linux never coalesces frames from a TAP.
const NOT_OF_A_TAP: &str = "rx-gro";

/// A port of a running daemon, as one end of the checked path.
pub struct PortEnd {
    tap: LocalEnd,
    description: Description,
    control: PathBuf,
    /// The state of the adapter's features before the check.
    found: BTreeMap<String, bool>,
    /// The current state of the adapter's features.
    now: BTreeMap<String, bool>,
}

/// Returns the two named ports, or the only possible pair.
///
/// # Errors
/// Returns an error if no daemon answers, a port does not exist, or several pairs are possible.
pub fn two_of(control: &Path, names: &[String]) -> Result<[PortStatus; 2], CheckError> {
    let status = ask_status(control, None).map_err(|error| failed(&error))?;
    let taps: Vec<&PortStatus> = status.ports.iter().filter(|port| matches!(port.host, HostStatus::Tap(_))).collect();
    let find = |name: &str| {
        let known = || taps.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        let port = taps.iter().find(|port| port.name == name);
        port.map(|port| (*port).clone())
            .ok_or_else(|| CheckError::Daemon(format!("no port \"{name}\" with a TAP; there are: {}", known())))
    };
    if let [a, b] = names {
        return Ok([find(a)?, find(b)?]);
    }
    let pairs = pairs(&taps);
    match pairs.as_slice() {
        [[a, b]] if names.is_empty() => Ok([find(a)?, find(b)?]),
        [] => Err(CheckError::Daemon("no two ports with TAPs on one cable or switch".to_owned())),
        _ => {
            let known: Vec<String> = pairs.iter().map(|pair| pair.join(" ")).collect();
            Err(CheckError::Daemon(format!("name two ports after --self, such as: {}", known.join("; "))))
        }
    }
}

/// Returns pairs of connected ports: the two ends of a cable, and each port on a switch with the next port on the same
/// switch.
fn pairs(ports: &[&PortStatus]) -> Vec<[String; 2]> {
    let are_joined = |a: &PortStatus, b: &PortStatus| match (&a.wire, &b.wire) {
        (WireStatus::Cable { port }, _) => *port == b.name,
        (WireStatus::Switch { name }, WireStatus::Switch { name: other }) => name == other,
        _ => false,
    };
    let first_after = |at: usize| ports[at + 1..].iter().find(|other| are_joined(ports[at], other));
    let pair = |at: usize| first_after(at).map(|other| [ports[at].name.clone(), other.name.clone()]);
    (0..ports.len()).filter_map(pair).collect()
}

fn failed(error: &ClientError) -> CheckError {
    CheckError::Daemon(error.to_string())
}

impl PortEnd {
    /// Opens the TAP of a port, and records the features allowed by the daemon.
    ///
    /// # Errors
    /// Returns the errors of [`LocalEnd::open`].
    pub fn open(
        control: &Path,
        port: PortStatus,
        state_dir: &Path,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Self, CheckError> {
        let HostStatus::Tap(TapStatus { interface, namespace }) = port.host else {
            return Err(CheckError::Daemon(format!("port \"{}\" has no TAP", port.name)));
        };
        let within = namespace.map_or_else(String::new, |namespace| format!("{}/", namespace.display()));
        let tap = LocalEnd::open(&format!("{within}{interface}"), state_dir, progress)?;
        let description = Description { name: port.name, ..tap.description().clone() };
        let found: BTreeMap<String, bool> =
            port.features.into_iter().map(|feature| (feature.name.into_owned(), feature.allowed)).collect();
        Ok(Self { tap, description, control: control.to_owned(), now: found.clone(), found })
    }

    fn set(&mut self, features: BTreeMap<String, bool>) -> Result<(), CheckError> {
        let port = self.description.name.clone();
        let (control, moderation, limit) = (self.control.clone(), None, None);
        let request = Request::Set { version: VERSION, port, features, moderation, limit, link: None };
        match ask(&control, &request).map_err(|error| failed(&error))? {
            Outcome::Changed(changed) => {
                self.now
                    .extend(changed.features.into_iter().map(|feature| (feature.name.into_owned(), feature.allowed)));
                Ok(())
            }
            _ => Err(failed(&ClientError::Unexpected(control))),
        }
    }

    /// Returns the adapter's features that correspond to an ethtool feature.
    fn of_adapter(feature: &str) -> Option<&'static [&'static str]> {
        RECEIVE.iter().find(|(name, _)| *name == feature).map(|(_, features)| *features)
    }
}

impl End for PortEnd {
    fn description(&self) -> &Description {
        &self.description
    }

    fn offered(&self, feature: &str) -> Offered {
        match Self::of_adapter(feature) {
            // A feature turned off by the user stays off.
            Some(features) if features.iter().any(|name| self.found.get(*name) == Some(&true)) => Offered::Switchable,
            Some(_) => Offered::No,
            None if feature == NOT_OF_A_TAP => Offered::No,
            None => self.tap.offered(feature),
        }
    }

    /// Returns the command that switches the feature on, if the daemon's user has switched the adapter's feature off.
    fn off_by_user(&self, feature: &str) -> Option<String> {
        let is_meant = |known: &&OffloadName| known.ethtool == feature && Offloads::RATIFIED.contains(known.offload);
        let off: Vec<&str> = NAMES.iter().filter(is_meant).map(|known| known.name).collect();
        let are_off = !off.is_empty() && off.iter().all(|name| self.found.get(*name) == Some(&false));
        let on: Vec<String> = off.iter().map(|name| format!("{name} on")).collect();
        let port = &self.description.name;
        are_off.then(|| format!("the user switched it off at port {port}; offramp set {port} {}", on.join(" ")))
    }

    fn apply(&mut self, features: &[(&'static str, bool)]) -> Result<(), CheckError> {
        let mut wanted = self.found.clone();
        wanted.retain(|name, _| RECEIVE.iter().any(|(_, features)| features.contains(&name.as_str())));
        for (feature, on) in features {
            for name in Self::of_adapter(feature).unwrap_or_default() {
                wanted.entry((*name).to_owned()).and_modify(|allowed| *allowed &= on);
            }
        }
        wanted.retain(|name, on| self.now.get(name) != Some(on));
        if !wanted.is_empty() {
            self.set(wanted)?;
        }
        let of_tap: Vec<_> = features.iter().filter(|(name, _)| Self::of_adapter(name).is_none()).copied().collect();
        self.tap.apply(&of_tap)
    }

    fn is_on(&self, feature: &str) -> bool {
        match Self::of_adapter(feature) {
            Some(features) => features.iter().any(|name| self.now.get(*name) == Some(&true)),
            None => self.tap.is_on(feature),
        }
    }

    fn send(&mut self, frame: &Outgoing) -> Result<Result<(), i32>, CheckError> {
        self.tap.send(frame)
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Captured>, CheckError> {
        self.tap.receive(wait)
    }

    fn takes_any_frame(&self) -> bool {
        true
    }

    fn check_link(&mut self) -> Result<(), CheckError> {
        self.tap.check_link()
    }

    fn command_off(&self, features: &[&str]) -> String {
        let of_adapter: Vec<&str> = features.iter().copied().filter_map(Self::of_adapter).flatten().copied().collect();
        if of_adapter.is_empty() {
            return self.tap.command_off(features);
        }
        let off: Vec<String> = of_adapter.iter().map(|name| format!("{name} off")).collect();
        format!("offramp set {} {}", self.description.name, off.join(" "))
    }

    fn finish(&mut self) -> Result<Vec<String>, CheckError> {
        self.apply(&[])?;
        self.tap.finish()
    }
}

impl Drop for PortEnd {
    fn drop(&mut self) {
        // Restoring fails only if the daemon is gone. The daemon's settings end with the daemon, so none remains to
        // restore.
        let _ = self.finish();
    }
}
