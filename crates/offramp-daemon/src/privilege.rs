//! Gives up privileges after the devices are open and before any thread is started.
//!
//! Capabilities belong to a thread, so no thread may be started before the capabilities are given up.

use super::config::Config;
use crate::schema::key::NOBODY;
use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, chown, getgrouplist, getgroups, setgroups, setresgid, setresuid};
use offramp_ports::sys::socket_file::SocketRights;
use offramp_ports::sys::user::{is_root_of_system, is_user_here};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// An error while giving up privileges. After this error, the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("daemon.user \"{0}\": there is no such user")]
    NoUser(String),
    #[error("{key} \"{name}\": there is no such group")]
    NoGroup { key: &'static str, name: String },
    #[error(
        "started by root without daemon.user, and there is no user \"nobody\" to become; write daemon.user = \"NAME\", or \
         \"root\" to stay root"
    )]
    NoNobody,
    #[error("daemon.user \"{0}\": only root can become another user; start as root, or leave the key out")]
    NotRoot(String),
    #[error("{doing}: {cause}")]
    System { doing: String, cause: io::Error },
}

fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> PrivilegeError {
    let doing = doing.into();
    move |cause| PrivilegeError::System { doing, cause }
}

/// The future user of the daemon, and the groups of its sockets.
#[derive(Debug)]
pub struct Identity {
    /// The user that the daemon becomes; `None` if the process keeps its user. The daemon stays root only if the file
    /// names root, or if the daemon's user namespace lacks "nobody".
    user: Option<User>,
    /// The groups of the sockets, by name.
    groups: Groups,
}

/// The groups named by a configuration.
#[derive(Clone, Debug, Default)]
pub struct Groups(BTreeMap<String, Gid>);

impl Groups {
    /// Looks up the groups named by a configuration.
    ///
    /// # Errors
    /// Fails if a group does not exist.
    pub fn find(config: &Config) -> Result<Self, PrivilegeError> {
        let control = config.daemon.control_group.iter().map(|name| ("daemon.control_group", name));
        let sockets = config.ports.iter().filter_map(|port| port.host.socket.as_ref());
        let of_guests = sockets.filter_map(|socket| Some(("port.host.socket_group", socket.group.as_ref()?)));
        let found = control.chain(of_guests).map(|(key, name)| {
            let group = known(Group::from_name(name)).map_err(|e| system("reading the groups")(e.into()))?;
            let group = group.ok_or_else(|| PrivilegeError::NoGroup { key, name: name.clone() })?;
            Ok((name.clone(), group.gid))
        });
        found.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether the group was looked up. An unprivileged process can give a socket only to a looked-up group,
    /// because it has joined only these groups.
    pub fn has(&self, group: &str) -> bool {
        self.0.contains_key(group)
    }

    /// Returns the rights of a socket with the permissions `mode` and the group `group`.
    pub fn rights(&self, mode: u32, group: Option<&String>) -> SocketRights {
        SocketRights { mode, group: group.and_then(|name| self.0.get(name)).copied() }
    }
}

/// Converts the result of a search for a user or group. If the file of users or groups (`/etc/passwd`, `/etc/group`) is
/// missing, the C library reports `ENOENT` (getpwnam(3)); this function then returns no entry.
fn known<T>(found: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    if matches!(found, Err(Errno::ENOENT | Errno::ESRCH)) { Ok(None) } else { found }
}

impl Identity {
    /// Looks up the user and the groups named by the configuration.
    ///
    /// # Errors
    /// Fails if a name does not exist, or if the process cannot become the user.
    pub fn find(config: &Config) -> Result<Self, PrivilegeError> {
        let groups = Groups::find(config)?;
        let own = Uid::effective();
        let find = |name| known(User::from_name(name)).map_err(|e| system("reading the users")(e.into()));
        let user = match &config.daemon.user {
            // Root needs no entry in `/etc/passwd` to stay root.
            Some(name) if name == "root" && own.is_root() => None,
            Some(name) => Some(find(name)?.ok_or_else(|| PrivilegeError::NoUser(name.clone()))?),
            // Root owns the machine's files, so the daemon must not stay root by accident.
            None if own.is_root() => {
                let nobody = find(NOBODY)?.ok_or(PrivilegeError::NoNobody)?;
                (is_root_of_system() && is_user_here(nobody.uid)).then_some(nobody)
            }
            None => None,
        };
        match user {
            Some(user) if user.uid == own => Ok(Self { user: None, groups }),
            Some(user) if !own.is_root() => Err(PrivilegeError::NotRoot(user.name)),
            user => Ok(Self { user, groups }),
        }
    }

    /// Creates a missing directory for the daemon's future user, if the parent directory exists. Returns whether the
    /// directory was missing.
    ///
    /// # Errors
    /// Fails if the system refuses the directory.
    pub fn make_directory(&self, directory: &Path, mode: u32) -> Result<bool, PrivilegeError> {
        match fs::DirBuilder::new().mode(mode).create(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(system(format!("making the directory {}", directory.display()))(error)),
        }
        if let Some(user) = &self.user {
            chown(directory, Some(user.uid), Some(user.gid))
                .map_err(|e| system(format!("giving {} to {}", directory.display(), user.name))(e.into()))?;
        }
        Ok(true)
    }

    /// Becomes the user, and gives up every capability for good.
    ///
    /// # Errors
    /// Fails if the system refuses a step.
    pub fn assume(&self) -> Result<(), PrivilegeError> {
        nix::sys::prctl::set_no_new_privs().map_err(|e| system("setting no_new_privs")(e.into()))?;
        drop_set(CapSet::Ambient)?;
        if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
            drop_set(CapSet::Bounding)?;
        }
        match &self.user {
            Some(user) => self.become_user(user)?,
            // Without capabilities, a process can give a socket only to a group of which the process is a member.
            None if Uid::effective().is_root() && !self.groups.0.is_empty() => self.join_groups()?,
            None => {}
        }
        // The effective set is dropped first, because the effective set must be a subset of the permitted set.
        [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable].into_iter().try_for_each(drop_set)
    }

    /// Returns the groups of the sockets.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    fn join_groups(&self) -> Result<(), PrivilegeError> {
        let doing = || system("joining the groups of sockets");
        let mut groups = getgroups().map_err(|e| doing()(e.into()))?;
        groups.extend(self.groups.0.values());
        setgroups(&groups).map_err(|e| doing()(e.into()))
    }

    fn become_user(&self, user: &User) -> Result<(), PrivilegeError> {
        let doing = || system(format!("becoming user \"{}\"", user.name));
        let name = CString::new(user.name.as_str()).map_err(|e| doing()(e.into()))?;
        let mut groups = getgrouplist(&name, user.gid).map_err(|e| doing()(e.into()))?;
        // The process must be a member of these groups to give sockets to them.
        groups.extend(self.groups.0.values());
        setgroups(&groups).map_err(|e| doing()(e.into()))?;
        setresgid(user.gid, user.gid, user.gid).map_err(|e| doing()(e.into()))?;
        setresuid(user.uid, user.uid, user.uid).map_err(|e| doing()(e.into()))
    }
}

fn drop_set(set: CapSet) -> Result<(), PrivilegeError> {
    caps::clear(None, set).map_err(|error| system("giving up capabilities")(io::Error::other(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_a_list_of_users_has_no_such_user() {
        assert_eq!(known::<u8>(Err(Errno::ENOENT)), Ok(None));
        assert_eq!(known::<u8>(Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(known(Ok(Some(1))), Ok(Some(1)));
    }
}
