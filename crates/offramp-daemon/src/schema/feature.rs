//! Features by name, and their state.

use super::word::unknown;
use offramp_offload::caps::{NAMES, Offloads};
use serde::{Deserialize, Serialize};

/// Names for groups of features.
pub const FEATURE_GROUPS: [(&str, Offloads); 3] =
    [("lso", Offloads::LSO), ("rsc", Offloads::RSC), ("all", Offloads::RATIFIED)];

/// Returns the bits of a feature or a group of features.
///
/// # Errors
/// One line with the nearest known name.
pub fn feature(name: &str) -> Result<Offloads, String> {
    let group = FEATURE_GROUPS.iter().find(|(group, _)| *group == name).map(|(_, offloads)| *offloads);
    let known = NAMES.iter().map(|known| known.name).chain(FEATURE_GROUPS.iter().map(|(group, _)| *group));
    Offloads::by_name(name).or(group).ok_or_else(|| unknown("feature", name, known))
}

/// One feature of one port, with its names in the field.
#[allow(clippy::struct_excessive_bools, reason = "four states that are independent of each other")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureStatus {
    /// The daemon's name for it.
    pub name: String,
    /// ethtool's name.
    pub ethtool: String,
    /// The name of its bit in the virtio specification.
    pub virtio: String,
    /// Windows' keyword for it.
    pub ndis: String,
    /// The user allows it.
    pub allowed: bool,
    /// The host is offered it.
    pub offered: bool,
    /// The host has accepted it.
    pub negotiated: bool,
    /// It is done now.
    pub in_use: bool,
    /// The reason for a difference between `allowed` and `in_use`; `null` without one.
    pub waits_for: Option<WaitsFor>,
}

/// The cause of a pending feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// The host cannot do it at all.
    Host,
    /// A prerequisite of the feature is off.
    Prerequisite,
    /// The host's next negotiation.
    Negotiation,
}
