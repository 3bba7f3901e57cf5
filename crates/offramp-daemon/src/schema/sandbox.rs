//! The sandbox of a daemon.

use serde::{Deserialize, Serialize};

/// The strictness of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SandboxLevel {
    /// The kernel refuses everything the daemon does not need.
    #[default]
    Full,
    /// The kernel permits unneeded system calls, and names them in its audit log.
    Log,
    /// Nothing.
    Off,
}

/// The sandbox of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// As the file says.
    pub level: SandboxLevel,
    /// Each thread has a filter of system calls.
    pub seccomp: bool,
    /// Version of Landlock for the file restrictions; `null`: no Landlock.
    pub landlock: Option<u32>,
    /// Parts missing in this kernel.
    pub lacks: Vec<String>,
}

impl std::fmt::Display for SandboxStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sandbox: {}", self.level)?;
        let landlock = self.landlock.map(|version| format!("files by Landlock {version}"));
        let parts = self.seccomp.then(|| "system calls by seccomp".to_owned()).into_iter().chain(landlock);
        parts.chain(self.lacks.iter().map(|lack| format!("not {lack}"))).try_for_each(|part| write!(f, ", {part}"))
    }
}
