//! The sandbox of a daemon.

use serde::{Deserialize, Serialize};

/// The level of a sandbox.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SandboxLevel {
    /// The kernel refuses every system call that the daemon does not need.
    #[default]
    Full,
    /// The kernel permits unneeded system calls, and records them in its audit log.
    Log,
    /// No sandbox.
    Off,
}

/// The status of a daemon's sandbox.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// The level that the file configures.
    pub level: SandboxLevel,
    /// Each thread has a system-call filter.
    pub seccomp: bool,
    /// Version of Landlock used for the file restrictions; `null` without Landlock.
    pub landlock: Option<u32>,
    /// Parts of the sandbox that this kernel lacks.
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
