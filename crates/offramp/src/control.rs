//! The option `--control` of every client of the daemon.

use offramp_daemon::control::{DirectoryError, find_control};
use std::path::PathBuf;

/// The daemon's control socket.
#[derive(clap::Args)]
pub struct Control {
    /// The daemon's control socket [default: control.sock in the user's runtime directory, else /run/offramp]
    #[arg(id = "control", long = "control", value_name = "SOCKET", global = true)]
    path: Option<PathBuf>,
}

impl Control {
    /// Returns whether the option is on the command line.
    #[cfg(feature = "lab")]
    pub fn is_given(&self) -> bool {
        self.path.is_some()
    }

    /// Returns the path of the socket: the path of the option, or the path that [`find_control`] finds.
    ///
    /// # Errors
    /// Fails if another user may have put the socket there.
    pub fn path(&self) -> Result<PathBuf, DirectoryError> {
        self.path.clone().map_or_else(find_control, Ok)
    }
}
