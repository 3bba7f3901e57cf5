//! Giving up privileges, once the devices are open and before any thread is started.
//!
//! Capabilities belong to a thread: what starts threads comes after this.

use super::config::DaemonConfig;
use caps::{CapSet, Capability};
use nix::unistd::{Gid, Group, Uid, User, chown, getgrouplist, getgroups, setgroups, setresgid, setresuid};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Permissions of a control directory that the daemon makes: anyone may see that the socket is there.
const DIRECTORY_MODE: u32 = 0o755;

/// Why privileges could not be given up. The daemon does not run then.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("daemon.user \"{0}\": there is no such user")]
    NoUser(String),
    #[error("daemon.control_group \"{0}\": there is no such group")]
    NoGroup(String),
    #[error("daemon.user \"{0}\": only root can become another user; start as root, or leave the key out")]
    NotRoot(String),
    #[error("{doing}: {cause}")]
    System { doing: String, cause: io::Error },
}

fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> PrivilegeError {
    let doing = doing.into();
    move |cause| PrivilegeError::System { doing, cause }
}

/// Who the daemon will be.
#[derive(Debug)]
pub struct Identity {
    /// The user to become; `None`: as started.
    user: Option<User>,
    /// The control socket's group.
    pub control_group: Option<Gid>,
}

impl Identity {
    /// Looks up the names of the configuration.
    ///
    /// # Errors
    /// When one of them does not exist, or the user cannot be had.
    pub fn find(config: &DaemonConfig) -> Result<Self, PrivilegeError> {
        let control_group = match &config.control_group {
            None => None,
            Some(name) => {
                let found = Group::from_name(name).map_err(|e| system("reading the groups")(e.into()))?;
                Some(found.ok_or_else(|| PrivilegeError::NoGroup(name.clone()))?.gid)
            }
        };
        let user = match &config.user {
            None => None,
            Some(name) => {
                let found = User::from_name(name).map_err(|e| system("reading the users")(e.into()))?;
                Some(found.ok_or_else(|| PrivilegeError::NoUser(name.clone()))?)
            }
        };
        let own = Uid::effective();
        match user {
            Some(user) if user.uid == own => Ok(Self { user: None, control_group }),
            Some(user) if !own.is_root() => Err(PrivilegeError::NotRoot(user.name)),
            user => Ok(Self { user, control_group }),
        }
    }

    /// Makes the last directory on the way to the control socket if it is not there, for the user that the
    /// daemon will be.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn make_directory(&self, directory: &Path) -> Result<(), PrivilegeError> {
        match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(system(format!("making the directory {}", directory.display()))(error)),
        }
        match &self.user {
            None => Ok(()),
            Some(user) => chown(directory, Some(user.uid), Some(user.gid))
                .map_err(|e| system(format!("giving {} to {}", directory.display(), user.name))(e.into())),
        }
    }

    /// Becomes the user and gives up every capability, for good.
    ///
    /// # Errors
    /// When the system refuses any of it.
    pub fn assume(&self) -> Result<(), PrivilegeError> {
        nix::sys::prctl::set_no_new_privs().map_err(|e| system("setting no_new_privs")(e.into()))?;
        drop_set(CapSet::Ambient)?;
        if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
            drop_set(CapSet::Bounding)?;
        }
        match (&self.user, self.control_group) {
            (Some(user), _) => self.become_user(user)?,
            // Without capabilities a socket can only be given to a group that one is a member of.
            (None, Some(group)) if Uid::effective().is_root() => join(group)?,
            _ => {}
        }
        // The effective set first: it may hold nothing that the permitted one does not.
        [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable].into_iter().try_for_each(drop_set)
    }

    fn become_user(&self, user: &User) -> Result<(), PrivilegeError> {
        let doing = || system(format!("becoming user \"{}\"", user.name));
        let name = CString::new(user.name.as_str()).map_err(|e| doing()(e.into()))?;
        let mut groups = getgrouplist(&name, user.gid).map_err(|e| doing()(e.into()))?;
        // To give it to the control socket.
        groups.extend(self.control_group);
        setgroups(&groups).map_err(|e| doing()(e.into()))?;
        setresgid(user.gid, user.gid, user.gid).map_err(|e| doing()(e.into()))?;
        setresuid(user.uid, user.uid, user.uid).map_err(|e| doing()(e.into()))
    }
}

fn join(group: Gid) -> Result<(), PrivilegeError> {
    let doing = || system("joining daemon.control_group");
    let mut groups = getgroups().map_err(|e| doing()(e.into()))?;
    groups.push(group);
    setgroups(&groups).map_err(|e| doing()(e.into()))
}

fn drop_set(set: CapSet) -> Result<(), PrivilegeError> {
    caps::clear(None, set).map_err(|error| system("giving up capabilities")(io::Error::other(error.to_string())))
}
