//! Names of ports and switches, and what a change added and removed.

use serde::{Deserialize, Serialize};

/// Ports and switches by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Names of ports.
    pub ports: Vec<String>,
    /// Names of switches.
    pub switches: Vec<String>,
}

/// Ports and switches added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Added ones.
    pub added: Names,
    /// Removed ones.
    pub removed: Names,
}

/// A line for each.
impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (names, what) in [(&self.added, "added"), (&self.removed, "removed")] {
            names.switches.iter().try_for_each(|name| writeln!(f, "switch {name} {what}"))?;
            names.ports.iter().try_for_each(|name| writeln!(f, "port {name} {what}"))?;
        }
        Ok(())
    }
}
