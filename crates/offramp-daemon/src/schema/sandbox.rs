//! The sandbox of a daemon.

use serde::{Deserialize, Serialize};

/// The strictness of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SandboxLevel {
    /// Everything that the daemon does not need is refused.
    #[default]
    Full,
    /// System calls that it does not need are done, and named in the kernel's audit log.
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
    /// Version of Landlock that restricts files; `null`: none does.
    pub landlock: Option<u32>,
    /// Parts that this kernel lacks.
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
