//! The profiles that come with offramp, as they lie in `profiles/KIND/NAME.toml`.

macro_rules! profiles {
    ($($kind:literal: [$($name:literal),* $(,)?]),* $(,)?) => {
        &[$($(($kind, $name, include_str!(concat!("../../profiles/", $kind, "/", $name, ".toml"))),)*)*]
    };
}

/// Kind, name and text of each.
pub(super) static PROFILES: &[(&str, &str, &str)] = profiles! {
    "host": ["386sx-16", "486dx-40", "ndis-2011"],
    "adapter": ["3c503", "ndis-gigabit", "ne2000", "wd8003e", "wd8003ep", "wd8013"],
    "bus": ["isa-6.7", "isa-8", "isa-13.4", "isa-20.0", "isa-26.7", "master"],
    "link": ["ethernet-10", "ethernet-1000"],
    "peer": ["nfs-server-1995", "sender-1990", "sender-1995", "sender-2011"],
    "system": ["386-wd8003ep", "486-3c503", "486-ne2000", "486-wd8003e", "486-wd8003ep", "486-wd8013", "ndis-2011"],
};
