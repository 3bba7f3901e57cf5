//! Checks `[daemon]`. Also refuses the keys that a text added by a client must not contain.

use super::check::{Check, SOCKET_MODE_DEFAULT};
use super::place::ConfigError;
use super::types::{DaemonConfig, MetricsAddress};
use crate::control::control_default;
use crate::schema::SandboxLevel;
use crate::schema::file::{self, Key};
use std::path::{Path, PathBuf};

/// Default permissions of the read-only control socket: every user with access to its directory may connect.
pub(super) const READ_ONLY_MODE_DEFAULT: u32 = 0o666;

impl Check<'_> {
    /// Refuses the tables and keys that are allowed only in the daemon's own file.
    pub(super) fn is_of_a_client(&self, written: &file::File) -> Result<(), ConfigError> {
        if let Some(daemon) = &written.daemon {
            return Err(self.0.wrong(daemon.span(), "[daemon] belongs to the daemon's own file; leave it out here"));
        }
        match written.port.iter().flat_map(|port| &port.as_ref().sa).next() {
            None => Ok(()),
            Some(sa) => {
                let message = "[[port.sa]] reads a key file, which no client may have the daemon do; leave it out here, and \
                               install the association by \"offramp sa add\"";
                Err(self.0.wrong(sa.span(), message))
            }
        }
    }

    pub(super) fn daemon(&self, written: &file::Daemon) -> Result<DaemonConfig, ConfigError> {
        let control = match &written.control {
            Some(path) => self.socket("daemon.control", path)?,
            None => control_default(),
        };
        let levels = [("full", SandboxLevel::Full), ("log", SandboxLevel::Log), ("off", SandboxLevel::Off)];
        let text = |key: &Key<String>| key.as_ref().map(|value| value.as_ref().clone());
        Ok(DaemonConfig {
            control,
            control_mode: self.permissions("daemon.control_mode", &written.control_mode, SOCKET_MODE_DEFAULT)?,
            control_group: text(&written.control_group),
            control_read_only: self.control_read_only(written)?,
            metrics: self.metrics(&written.metrics)?,
            user: text(&written.user),
            state_directory: self.state_directory(&written.state_directory)?,
            sandbox: self.one_of("daemon", "sandbox", &written.sandbox, &levels)?.unwrap_or_default(),
        })
    }

    pub(super) fn control_read_only(&self, written: &file::Daemon) -> Result<Option<(PathBuf, u32)>, ConfigError> {
        let key = "daemon.control_read_only_mode";
        let mode = self.permissions(key, &written.control_read_only_mode, READ_ONLY_MODE_DEFAULT)?;
        match (&written.control_read_only, &written.control_read_only_mode) {
            (Some(path), _) => Ok(Some((self.socket("daemon.control_read_only", path)?, mode))),
            (None, Some(mode)) => {
                Err(self.0.wrong(mode.span(), format!("{key} belongs to daemon.control_read_only; write that, too")))
            }
            (None, None) => Ok(None),
        }
    }

    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(super) fn metrics(&self, written: &Key<String>) -> Result<Option<MetricsAddress>, ConfigError> {
        let Some(text) = written else { return Ok(None) };
        if text.as_ref().starts_with('/') {
            return self.socket("daemon.metrics", text).map(|path| Some(MetricsAddress::Unix(path)));
        }
        text.as_ref().parse().map(|address| Some(MetricsAddress::Tcp(address))).map_err(|_| {
            let message = format!(
                "daemon.metrics {:?}: use an address with a port, as \"127.0.0.1:9099\" or \"[::1]:9099\", or an absolute path",
                text.as_ref()
            );
            self.0.wrong(text.span(), message)
        })
    }

    /// Parses `daemon.state_directory`. Without the key, returns the state directory that the service manager provides,
    /// if any.
    #[allow(clippy::ref_option, reason = "a key as it stands in the file")]
    pub(super) fn state_directory(&self, written: &Key<String>) -> Result<Option<PathBuf>, ConfigError> {
        match written {
            None => Ok(state_directory_of_service()),
            Some(text) if Path::new(text.as_ref()).is_absolute() => Ok(Some(text.as_ref().into())),
            Some(text) => {
                let message = format!("daemon.state_directory \"{}\": use an absolute path", text.as_ref());
                Err(self.0.wrong(text.span(), message))
            }
        }
    }
}

/// Returns the first directory of systemd's `StateDirectory=` (systemd.exec(5)).
fn state_directory_of_service() -> Option<PathBuf> {
    let listed = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&listed).find(|path| path.is_absolute())
}
