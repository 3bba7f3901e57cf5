//! Changes to an interface, and their restoration.

use std::path::Path;

use offramp_ports::sys::ethtool::{self, Features};
use offramp_ports::sys::{SysError, link};

use super::error::DeviceError;
use super::state::{self, Identity, State, StateFile};
use crate::error::TestbedError;

/// Settings to change on an interface. All other settings of the interface keep their recorded values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Names of features, and the state to request for each feature.
    pub features: Vec<(&'static str, bool)>,
    /// The interface's segment limit for super-frames (`gso_max_segs`).
    pub gso_segs_max: Option<u32>,
}

/// An interface whose settings a run may change. Dropping the guard restores every setting. After a crash, the settings
/// can be restored from the state file.
#[derive(Debug)]
pub struct Guard {
    // `None` after the restoration.
    file: Option<StateFile>,
}

impl Guard {
    /// Checks that an interface of the calling thread's network namespace may be changed, and records the interface's
    /// state. Settings that an earlier run changed and did not restore are restored first. `progress` receives one line
    /// for each restoration.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, may not be changed, or is used by another run. Also fails if
    /// the state file cannot be written.
    pub fn take(dir: &Path, interface: &str, progress: &mut dyn FnMut(&str)) -> Result<Self, TestbedError> {
        let found = find(dir, interface, progress)?;
        check_permission(&found)?;
        Ok(Self::new(dir, found)?)
    }

    /// Returns the interface's driver.
    pub fn driver(&self) -> &str {
        &self.found().identity.driver
    }

    /// Returns whether the user may switch `feature`.
    pub fn is_changeable(&self, feature: &str) -> bool {
        self.found().is_changeable(feature)
    }

    /// Returns whether `feature` was active in the recorded state, or `None` if the kernel does not support `feature`.
    pub fn was_active(&self, feature: &str) -> Option<bool> {
        self.found().active.get(feature).copied()
    }

    /// Records the interface's state in a file. With the returned guard, the interface may be changed.
    ///
    /// # Errors
    /// Returns an error if the state file cannot be written.
    pub fn new(dir: &Path, state: State) -> Result<Self, DeviceError> {
        Ok(Self { file: Some(StateFile::create(dir, state)?) })
    }

    /// Returns the recorded state of the interface.
    ///
    /// # Panics
    /// Never panics: only [`Guard::finish`] takes the state, and `finish` consumes the guard.
    pub fn found(&self) -> &State {
        self.file.as_ref().expect("only finish takes the file, and it takes the guard too").state()
    }

    /// Sets the interface to the recorded state with `change` applied. Returns the interface's features as read back
    /// after the change.
    ///
    /// # Errors
    /// Returns an error if the interface no longer exists or may not be changed.
    pub fn apply(&self, change: &Change) -> Result<Features, TestbedError> {
        let mut wanted = self.found().clone();
        for (feature, on) in &change.features {
            wanted.requested.insert((*feature).to_owned(), *on);
        }
        wanted.gso_segs_max = change.gso_segs_max.or(wanted.gso_segs_max);
        make(&wanted)
    }

    /// Restores every setting and removes the state file. Returns the features whose active state still differs from
    /// the recorded state.
    ///
    /// # Errors
    /// Returns an error if a setting could not be restored. After an error, the state file remains.
    pub fn finish(mut self) -> Result<Vec<String>, TestbedError> {
        self.file.take().map_or(Ok(Vec::new()), put_back)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // A drop cannot report an error. If the restoration fails, the state file remains for `restore`.
            let _ = put_back(file);
        }
    }
}

/// Reads the state of an interface in the calling thread's network namespace. Settings that an earlier run changed and
/// did not restore are restored first. `progress` receives one line for each restoration.
///
/// # Errors
/// Returns an error if the interface does not exist, or another run uses the interface.
pub fn find(dir: &Path, interface: &str, progress: &mut dyn FnMut(&str)) -> Result<State, TestbedError> {
    Features::read(interface).map_err(|e| explained(interface, e))?;
    restore_one(&state::path_of(dir, interface, state::net_namespace()?), progress)?;
    Ok(State::read(interface)?)
}

/// Checks that this process may change the interface: asks the kernel to set one feature to the state that is already
/// requested. The kernel refuses if the process lacks the permission.
///
/// # Errors
/// Returns an error if the kernel refuses the request.
pub fn check_permission(found: &State) -> Result<(), TestbedError> {
    let setting = found.requested.iter().next();
    setting.map_or(Ok(()), |(feature, on)| switch(&found.interface, &[(feature, *on)]))
}

/// Restores the settings recorded in a state file and removes the file. Returns the features whose active state still
/// differs from the recorded state.
fn put_back(file: StateFile) -> Result<Vec<String>, TestbedError> {
    let state = file.state();
    let now = make(state)?;
    let left = left_over(state, &now, link::gso_segs_max(&state.interface)?);
    if !left.is_empty() {
        let (interface, path) = (state.interface.clone(), file.path().to_owned());
        return Err(DeviceError::NotRestored { interface, left: left.join(", "), path }.into());
    }
    let changed = differences(state, &now);
    file.remove()?;
    Ok(changed)
}

/// Changes the interface's settings that differ from `wanted`. Returns the interface's features as read back, so that
/// the caller sees which features the kernel did not change.
fn make(wanted: &State) -> Result<Features, TestbedError> {
    let interface = wanted.interface.as_str();
    let now = Features::read(interface).map_err(|e| explained(interface, e))?;
    let differs = |(name, on): (&String, &bool)| now.requested(name).is_some_and(|requested| requested != *on);
    let differing: Vec<(&str, bool)> =
        wanted.requested.iter().filter(|setting| differs(*setting)).map(|(name, on)| (name.as_str(), *on)).collect();
    if !differing.is_empty() {
        switch(interface, &differing)?;
    }
    if let Some(segs) =
        wanted.gso_segs_max.filter(|_| link::gso_segs_max(interface).ok().flatten() != wanted.gso_segs_max)
    {
        link::set_gso_segs_max(interface, segs).map_err(|e| explained(interface, e))?;
    }
    Features::read(interface).map_err(|e| explained(interface, e))
}

/// Requests the features' states. A feature can keep its state because the feature is fixed or because another feature
/// prevents the change. This function reports no error for an unchanged feature, because the caller reads the features
/// back.
fn switch(interface: &str, wanted: &[(&str, bool)]) -> Result<(), TestbedError> {
    match ethtool::set_features(interface, wanted) {
        Err(error) if error.raw_os_error().is_some() => Err(explained(interface, error)),
        _ => Ok(()),
    }
}

/// Lists the settings that differ from `then`'s requested settings.
fn left_over(then: &State, now: &Features, gso_segs_max: Option<u32>) -> Vec<String> {
    let mut left: Vec<String> = then
        .requested
        .iter()
        .filter(|(name, on)| now.requested(name) != Some(**on))
        .map(|(name, on)| format!("{name} should be {}", on_off(*on)))
        .collect();
    if let Some(segs) = then.gso_segs_max.filter(|_| gso_segs_max != then.gso_segs_max) {
        left.push(format!("gso_max_segs should be {segs}"));
    }
    left
}

/// Lists the features whose active state differs from `then`.
fn differences(then: &State, now: &Features) -> Vec<String> {
    let differs = |name: &str, on: bool| now.active(name).is_some_and(|active| active != on);
    let text = |(name, on): (&String, &bool)| format!("{name} was {} and is {}", on_off(*on), on_off(!*on));
    then.active.iter().filter(|(name, on)| differs(name, **on)).map(text).collect()
}

/// Returns "on" or "off".
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Translates the kernel's error about an interface into an error with a remedy.
pub fn explained(interface: &str, error: SysError) -> TestbedError {
    match error.raw_os_error() {
        Some(libc::ENODEV) => {
            let mut known = link::list().unwrap_or_default();
            known.sort();
            DeviceError::NoInterface { name: interface.to_owned(), known: known.join(", ") }.into()
        }
        Some(libc::EPERM | libc::EACCES) => DeviceError::NotPermitted { interface: interface.to_owned() }.into(),
        _ => error.into(),
    }
}

/// Restores the settings in the state files of `state_dir`, left by runs that ended without a restoration. Each
/// interface is searched in the calling thread's network namespace. An interface that an active run uses is left alone.
/// `progress` receives a line for each action.
///
/// Returns the number of restored interfaces.
///
/// # Errors
/// Returns an error if a file is not a state file, or belongs to another interface, or if active runs use all
/// interfaces. Also fails if a setting could not be restored. After an error with one file, the other files are still
/// processed.
pub fn restore(state_dir: &Path, progress: &mut dyn FnMut(&str)) -> Result<usize, TestbedError> {
    let (mut restored, mut refused, mut busy) = (0, Vec::new(), Vec::new());
    for path in state::list(state_dir)? {
        match restore_one(&path, progress) {
            Ok(true) => restored += 1,
            Ok(false) => {}
            Err(TestbedError::Device(error @ DeviceError::Busy { .. })) => busy.push(error),
            Err(TestbedError::Device(error)) => refused.push(error),
            Err(other) => refused.push(DeviceError::StateFile { path, reason: other.to_string() }),
        }
    }
    if restored == 0 && refused.is_empty() {
        return busy.into_iter().next().map_or(Ok(0), |error| Err(error.into()));
    }
    for error in &busy {
        progress(&format!("left alone: {error}"));
    }
    let count = refused.len();
    if count > 1 {
        for error in &refused {
            progress(&error.to_string());
        }
    }
    match refused.into_iter().next() {
        None => Ok(restored),
        Some(error) if count == 1 => Err(error.into()),
        Some(first) => Err(DeviceError::Several { count, first: Box::new(first) }.into()),
    }
}

/// Restores the settings of one interface of the calling thread's network namespace, if an ended run left a state file.
/// Returns whether settings were restored.
///
/// # Errors
/// Returns the errors of [`restore`] for this interface.
pub fn restore_interface(
    state_dir: &Path,
    interface: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<bool, TestbedError> {
    restore_one(&state::path_of(state_dir, interface, state::net_namespace()?), progress)
}

/// Restores the settings in one state file, if the file exists. Returns whether settings were restored. Settings
/// recorded before a reboot are not restored.
fn restore_one(path: &Path, progress: &mut dyn FnMut(&str)) -> Result<bool, TestbedError> {
    let Some(file) = StateFile::open(path)? else { return Ok(false) };
    let state = file.state();
    let interface = state.interface.clone();
    if state.identity.boot_id != state::boot_id()? {
        progress(&format!("{interface}: the machine was rebooted since; nothing to restore"));
        file.remove()?;
        return Ok(false);
    }
    let mismatch =
        |difference| DeviceError::Mismatch { path: path.to_owned(), interface: interface.clone(), difference };
    let namespace = state::net_namespace()?;
    if namespace != state.identity.net_namespace {
        let then = state.identity.net_namespace;
        return Err(mismatch(format!("network namespace was {then}, is {namespace}")).into());
    }
    let now = Identity::read(&interface).map_err(|_| mismatch("the interface no longer exists".to_owned()))?;
    if let Some(difference) = state.identity.difference(&now) {
        return Err(mismatch(difference).into());
    }
    let pid = state.pid;
    let changed = put_back(file)?;
    progress(&format!("{interface}: all settings restored as process {pid} found them"));
    for line in changed {
        progress(&format!("{interface}: except: {line}"));
    }
    Ok(true)
}
