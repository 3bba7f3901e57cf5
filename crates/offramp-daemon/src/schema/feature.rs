//! Features by name, and their states.

use super::word::unknown_near;
use offramp_offload::caps::{NAMES, Offloads};
use offramp_offload::names;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Returns the bits of a feature or a group of features, by offramp's name or ethtool's name.
///
/// # Errors
/// Returns one line with the nearest known name.
pub fn feature(name: &str) -> Result<Offloads, String> {
    match names::offloads(name) {
        Some(offloads) if offloads.is_empty() => {
            Err(format!("feature \"{name}\" belongs to the host's interface, not to the adapter; use ethtool -K there"))
        }
        Some(offloads) => Ok(offloads),
        None => {
            let shown: Vec<&str> = NAMES.iter().map(|known| known.name).chain(names::GROUPS).collect();
            let meant = names::nearest(name, names::all());
            Err(format!("{}, or ethtool's names", unknown_near("feature", name, meant, &shown)))
        }
    }
}

/// The state of a port's feature, with the feature's names in other systems.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[allow(clippy::struct_excessive_bools, reason = "four states that are independent of each other")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureStatus {
    /// The name used by the daemon.
    pub name: Cow<'static, str>,
    /// The name used by ethtool.
    pub ethtool: Cow<'static, str>,
    /// The name of the feature bit in the virtio specification.
    pub virtio: Cow<'static, str>,
    /// The keyword used by Windows.
    pub ndis: Cow<'static, str>,
    /// The user allows the feature.
    pub allowed: bool,
    /// The daemon offers the feature to the host.
    pub offered: bool,
    /// The host has accepted the feature.
    pub negotiated: bool,
    /// The feature is currently in use.
    pub in_use: bool,
    /// The reason why `in_use` differs from `allowed`; `null` if both are equal.
    pub waits_for: Option<WaitsFor>,
}

/// The reason why the use of a feature differs from the user's setting.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The host does not support the feature.
    Host,
    /// A feature required by this feature is off.
    Prerequisite,
    /// The change takes effect at the host's next negotiation.
    Negotiation,
    /// No guest is connected.
    NoGuest,
    /// The guest's driver declined the feature, or a feature required by this feature.
    Declined,
}
