//! The state file: an interface's settings before the first change, kept for the restoration.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::geteuid;
use offramp_ports::sys::ethtool::{self, Features};
use offramp_ports::sys::{SysError, link, user};
use serde::{Deserialize, Serialize};

use super::error::DeviceError;

/// Version of the state file's format. A file with another version is refused.
pub(super) const VERSION: u32 = 1;
/// Default directory of the state files of the machine's root.
const ROOT_DIR: &str = "/var/lib/offramp";
/// Directory of a user's state, relative to the home directory (XDG base directory specification).
const HOME_DIR: &str = ".local/state";
/// offramp's directory within `HOME_DIR`.
const OWN_DIR: &str = "offramp";
/// Start of the path of the directory for a user without a home directory.
const TEMPORARY_PREFIX: &str = "/tmp/offramp-state-";
/// Prefix of every state file's name.
const NAME_PREFIX: &str = "device-";
/// Suffix of every state file's name.
const NAME_SUFFIX: &str = ".json";
/// Maximum size of a state file in bytes. Real state files have a few thousand bytes.
const LEN_MAX: u64 = 1 << 20;
/// Directory mode that gives access only to the owner.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The calling thread's network namespace as a file (namespaces(7)).
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// A random number drawn by the kernel at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the default directory of state files: `/var/lib/offramp` for root of the machine or of a container. For any
/// other user, and for root in a user namespace: `$XDG_STATE_HOME/offramp`, else `~/.local/state/offramp`, else a
/// private directory in `/tmp`.
pub fn default_state_dir() -> PathBuf {
    if user::is_root_of_system() {
        return ROOT_DIR.into();
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The home directory of a system's user may not exist.
    let home = || absolute("HOME").filter(|home| home.is_dir());
    let state_home = absolute("XDG_STATE_HOME").or_else(|| home().map(|home| home.join(HOME_DIR)));
    state_home.map_or_else(temporary_dir, |path| path.join(OWN_DIR))
}

/// Returns the directory of a user without a home directory. The name contains the user's uid outside the user
/// namespace.
fn temporary_dir() -> PathBuf {
    PathBuf::from(format!("{TEMPORARY_PREFIX}{}", user::outer_uid(geteuid())))
}

/// Refuses the directory in `/tmp` if another user made it: the other user could choose the settings to restore.
fn check_owner(dir: &Path) -> Result<(), DeviceError> {
    if dir != temporary_dir() {
        return Ok(());
    }
    match fs::symlink_metadata(dir) {
        Ok(found) if !found.is_dir() || found.uid() != geteuid().as_raw() => {
            Err(trouble(dir, "is no directory of this user; remove it, or name another with --state-dir"))
        }
        // The caller reports a directory that cannot be read.
        _ => Ok(()),
    }
}

/// The identity of an interface. A setting is restored only if every field matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    /// The kernel's index of the interface, never reused in a namespace until reboot.
    pub ifindex: u32,
    /// Ethernet address, or `None` if the interface has none.
    pub mac: Option<String>,
    /// Name of the driver.
    pub driver: String,
    /// The adapter's bus address (PCI), empty for many virtual adapters.
    pub bus: String,
    /// Inode of the network namespace.
    pub net_namespace: u64,
    /// Identifier of the boot in which the other fields are valid.
    pub boot_id: String,
}

impl Identity {
    /// Reads the identity of an interface in the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, or `/proc` is not available.
    pub(super) fn read(interface: &str) -> io::Result<Self> {
        let driver = ethtool::driver_info(interface).or_else(without_driver)?;
        Ok(Self {
            ifindex: link::index(interface)?,
            mac: link::mac(interface).ok().map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
            driver: driver.driver,
            bus: driver.bus,
            net_namespace: net_namespace()?,
            boot_id: boot_id()?,
        })
    }

    /// Returns the first field that differs from `now`, in words, or `None` if all fields agree.
    pub(super) fn difference(&self, now: &Self) -> Option<String> {
        let mac = |identity: &Self| identity.mac.clone().unwrap_or_else(|| "none".to_owned());
        let pairs = [
            ("network namespace", self.net_namespace.to_string(), now.net_namespace.to_string()),
            ("interface number", self.ifindex.to_string(), now.ifindex.to_string()),
            ("driver", self.driver.clone(), now.driver.clone()),
            ("bus address", self.bus.clone(), now.bus.clone()),
            ("Ethernet address", mac(self), mac(now)),
        ];
        let differing = pairs.iter().find(|(_, then, now)| then != now);
        differing.map(|(what, then, now)| format!("{what} was {then}, is {now}"))
    }
}

/// Returns an empty description for an interface without driver information (`lo`, tunnels).
fn without_driver(error: SysError) -> Result<ethtool::DriverInfo, SysError> {
    if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
        return Err(error);
    }
    let empty = String::new;
    Ok(ethtool::DriverInfo { driver: empty(), version: empty(), firmware: empty(), bus: empty() })
}

/// Returns the inode of the calling thread's network namespace.
pub(super) fn net_namespace() -> io::Result<u64> {
    Ok(fs::metadata(OWN_NAMESPACE).map_err(|e| SysError::new(format!("reading {OWN_NAMESPACE}"), e))?.ino())
}

/// Reads the identifier of this boot.
pub(super) fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string(BOOT_ID).map_err(|e| SysError::new(format!("reading {BOOT_ID}"), e))?;
    Ok(text.trim().to_owned())
}

/// The recorded state of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of the file's format.
    pub(super) version: u32,
    /// Name of the interface.
    pub interface: String,
    /// Identity of the interface.
    pub(super) identity: Identity,
    /// The user's requested state of each changeable feature. The restoration requests these states from the kernel.
    pub(super) requested: BTreeMap<String, bool>,
    /// The active state of each feature. The active states follow from the requested states, and the restoration only
    /// compares the active states.
    pub active: BTreeMap<String, bool>,
    /// The interface's segment limit for super-frames (`gso_max_segs`), or `None` if the kernel does not report a
    /// limit.
    pub gso_segs_max: Option<u32>,
    /// Process number of the run that wrote the file.
    pub(super) pid: u32,
    /// Time at which the state was read, in seconds since 1970.
    pub(super) written_unix_s: u64,
}

impl State {
    /// Reads the interface's present state in the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist.
    pub(super) fn read(interface: &str) -> io::Result<Self> {
        let features = Features::read(interface)?;
        let of = |value: &dyn Fn(&str) -> Option<bool>| -> BTreeMap<String, bool> {
            features.names().filter_map(|name| Some((name.to_owned(), value(name)?))).collect()
        };
        let changeable = |name: &str| features.changeable(name) == Some(true);
        Ok(Self {
            version: VERSION,
            interface: interface.to_owned(),
            identity: Identity::read(interface)?,
            requested: of(&|name| features.requested(name).filter(|_| changeable(name))),
            active: of(&|name| features.active(name)),
            gso_segs_max: link::gso_segs_max(interface)?,
            pid: std::process::id(),
            written_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
        })
    }

    /// Returns the interface's driver.
    pub fn driver(&self) -> &str {
        &self.identity.driver
    }

    /// Returns whether the user may switch `feature`.
    pub fn is_changeable(&self, feature: &str) -> bool {
        self.requested.contains_key(feature)
    }
}

/// Returns the path of the state file of an interface in a network namespace.
pub(super) fn path_of(dir: &Path, interface: &str, net_namespace: u64) -> PathBuf {
    dir.join(format!("{NAME_PREFIX}{interface}-{net_namespace}{NAME_SUFFIX}"))
}

/// Lists every state file of the directory, sorted by name. The list is empty if the directory does not exist.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, DeviceError> {
    let is_state = |name: &str| name.starts_with(NAME_PREFIX) && name.ends_with(NAME_SUFFIX);
    check_owner(dir)?;
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(trouble(dir, &format!("cannot be listed: {e}"))),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| trouble(dir, &format!("cannot be listed: {e}")))?;
        if entry.file_name().to_str().is_some_and(is_state) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// A state file locked by this process, so that no other process can use the file. The kernel unlocks the file however
/// the process ends.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    state: State,
    // The file stays open, because closing it would release the lock.
    _file: File,
}

impl StateFile {
    /// Writes a new state file. The complete file is on the disk when this function returns.
    ///
    /// # Errors
    /// Returns an error if the file already exists, or the directory cannot be written.
    pub(super) fn create(dir: &Path, state: State) -> Result<Self, DeviceError> {
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(dir)
            .map_err(|e| trouble(dir, &format!("the directory cannot be created: {e}")))?;
        check_owner(dir)?;
        let path = path_of(dir, &state.interface, state.identity.net_namespace);
        let draft = draft_path(&path);
        let file = write_draft(&draft, &state).and_then(|file| {
            // The draft gets its final name by a link and not by a rename. A link fails if another process already
            // created the file.
            fs::hard_link(&draft, &path)?;
            File::open(dir)?.sync_all()?;
            Ok(file)
        });
        // The draft is no longer needed, whether or not the link succeeded.
        let _ = fs::remove_file(&draft);
        match file {
            Ok(file) => Ok(Self { path, state, _file: file }),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Err(trouble(&path, "another run has just written this file; try again after that run ends"))
            }
            Err(e) => Err(trouble(&path, &format!("cannot be written: {e}"))),
        }
    }

    /// Opens and locks a leftover state file; returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Returns an error if the run that wrote the file still runs, or the file is not a state file.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, DeviceError> {
        path.parent().map_or(Ok(()), check_owner)?;
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(trouble(path, &format!("cannot be opened: {e}"))),
        };
        let is_free = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(e)) => return Err(trouble(path, &format!("cannot be locked: {e}"))),
        };
        let is_gone = |file: &File| file.metadata().map_or(true, |metadata| metadata.nlink() == 0);
        if is_free && is_gone(&file) {
            // Between the opening and the locking, the run that wrote the file restored the settings and removed the
            // file.
            return Ok(None);
        }
        let state = parse(path, &mut file)?;
        if !is_free {
            return Err(DeviceError::Busy { interface: state.interface, pid: state.pid });
        }
        Ok(Some(Self { path: path.to_owned(), state, _file: file }))
    }

    /// Returns the recorded state.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the path of the state file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the state file after the restoration.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub(super) fn remove(self) -> Result<(), DeviceError> {
        fs::remove_file(&self.path).map_err(|e| trouble(&self.path, &format!("cannot be removed: {e}")))
    }
}

/// Returns the path of a hidden file in the same directory, unique among drafts.
fn draft_path(path: &Path) -> PathBuf {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.{number}", std::process::id()))
}

/// Writes and locks the draft. The lock belongs to the file and not to a name, so that the lock remains when the draft
/// is linked to its final name.
fn write_draft(draft: &Path, state: &State) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(draft)?;
    serde_json::to_writer_pretty(&mut file, state)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    file.lock()?;
    Ok(file)
}

fn parse(path: &Path, file: &mut File) -> Result<State, DeviceError> {
    let mut text = Vec::new();
    file.take(LEN_MAX).read_to_end(&mut text).map_err(|e| trouble(path, &format!("cannot be read: {e}")))?;
    let state: State = serde_json::from_slice(&text).map_err(|e| {
        trouble(
            path,
            &format!("is not a state file of offramp lab ({e}); delete the file if there is nothing to restore"),
        )
    })?;
    if state.version != VERSION {
        let other = state.version;
        return Err(trouble(
            path,
            &format!("version {other} is not supported, only {VERSION}; restore with the offramp that wrote the file"),
        ));
    }
    Ok(state)
}

fn trouble(path: &Path, reason: &str) -> DeviceError {
    DeviceError::StateFile { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let identity = Identity {
            ifindex: 7,
            mac: Some("02:00:00:00:00:01".to_owned()),
            driver: "veth".to_owned(),
            bus: String::new(),
            net_namespace: 4_026_531_840,
            boot_id: "b".to_owned(),
        };
        State {
            version: VERSION,
            interface: "va".to_owned(),
            identity,
            requested: [("rx-gro".to_owned(), false)].into(),
            active: [("rx-gro".to_owned(), false), ("loopback".to_owned(), false)].into(),
            gso_segs_max: Some(65_535),
            pid: std::process::id(),
            written_unix_s: 1,
        }
    }

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("offramp-state-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_file_that_is_held_is_busy_and_one_that_was_let_go_is_read_back() {
        let dir = directory("held");
        let held = StateFile::create(&dir, state()).unwrap();
        let path = held.path().to_owned();
        assert_eq!(list(&dir).unwrap(), std::slice::from_ref(&path), "the draft is gone");
        let busy = StateFile::open(&path).unwrap_err();
        assert!(matches!(&busy, DeviceError::Busy { pid, .. } if *pid == std::process::id()), "{busy}");
        let again = StateFile::create(&dir, state()).unwrap_err().to_string();
        assert!(again.contains("another run has just written this file"), "{again}");
        drop(held);
        let left = StateFile::open(&path).unwrap().expect("it was left");
        assert_eq!(left.state(), &state());
        left.remove().unwrap();
        assert!(StateFile::open(&path).unwrap().is_none() && list(&dir).unwrap().is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_not_a_state_is_refused_in_one_line() {
        let dir = directory("garbage");
        fs::create_dir_all(&dir).unwrap();
        let path = path_of(&dir, "va", 1);
        let mut other = serde_json::to_value(state()).unwrap();
        other["version"] = 2.into();
        for text in ["", "\u{0}\u{1}", "{}", "[1, 2]", "{\"version\": 1}", &other.to_string()] {
            fs::write(&path, text).unwrap();
            let refused = StateFile::open(&path).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("state file {}", path.display())), "{refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_identity_names_its_first_difference() {
        let then = state().identity;
        assert_eq!(then.difference(&then), None);
        let now = Identity { net_namespace: 9, driver: "igb".to_owned(), ..then.clone() };
        assert_eq!(then.difference(&now).unwrap(), "network namespace was 4026531840, is 9");
        let now = Identity { mac: None, ..then.clone() };
        assert_eq!(then.difference(&now).unwrap(), "Ethernet address was 02:00:00:00:00:01, is none");
    }
}
