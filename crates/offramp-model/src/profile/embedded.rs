//! The profiles shipped with offramp, from `profiles/KIND/NAME.toml`.

macro_rules! profiles {
    ($($kind:literal: [$($name:literal),* $(,)?]),* $(,)?) => {
        &[$($(($kind, $name, include_str!(concat!("../../profiles/", $kind, "/", $name, ".toml"))),)*)*]
    };
}

/// Kind, name and text of each profile.
pub(super) static PROFILES: &[(&str, &str, &str)] = profiles! {
    "host": ["386sx-16", "486dx-40", "i7-870", "ndis-2011", "p4-dual-2002", "pentium-pro-167", "pentium3-450", "server-2024", "windows-business", "windows-lab", "xeon-e5-1650v4"],
    "adapter": ["3c503", "82599", "e1000", "lab-gigabit", "ndis-gigabit", "ne2000", "pcie-100g", "wd8003e", "wd8003ep", "wd8013"],
    "bus": ["isa-13.4", "isa-20.0", "isa-26.7", "isa-6.7", "isa-8", "master", "pci-33-32", "pci-33-64", "pci-66-64", "pcie-2x8", "pcie-3x8", "pcie-4x16", "pcix-100-64", "pcix-133-64", "pcix-66-64"],
    "link": ["ethernet-10", "ethernet-100", "ethernet-1000", "ethernet-100g", "ethernet-10g"],
    "peer": ["lab-client", "nfs-server-1995", "sender-1990", "sender-1995", "sender-2011", "server-2024", "workstation-2002"],
    "system": ["386-wd8003ep", "486-3c503", "486-ne2000", "486-wd8003e", "486-wd8003ep", "486-wd8013", "i7-870-82599", "ndis-2011", "p4-e1000-pci", "p4-e1000-pcix", "p4-e1000-processor", "pentium-pro-e1000", "pentium3-e1000", "server-100g", "server-82599", "windows-business", "windows-ipsec-rate", "windows-ipsec-share", "windows-lab", "xeon-e5-82599"],
};
