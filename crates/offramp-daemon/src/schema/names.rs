//! Names of ports and switches, and the ports and switches added and removed by a change.

use serde::{Deserialize, Serialize};

/// Ports and switches by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Names of ports.
    pub ports: Vec<String>,
    /// Names of switches.
    pub switches: Vec<String>,
}

/// The ports and switches added and removed by a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Added ports and switches.
    pub added: Names,
    /// Removed ports and switches.
    pub removed: Names,
    /// The interfaces that ended with their ports.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub deleted_interfaces: Box<[String]>,
}

/// Formats one line per port, switch or interface.
impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (names, what) in [(&self.added, "added"), (&self.removed, "removed")] {
            names.switches.iter().try_for_each(|name| writeln!(f, "switch {name} {what}"))?;
            names.ports.iter().try_for_each(|name| writeln!(f, "port {name} {what}"))?;
        }
        let mut interfaces = self.deleted_interfaces.iter();
        interfaces.try_for_each(|interface| writeln!(f, "{interface} deleted, with its addresses and routes"))
    }
}
