//! All input and output of the adapter: TAP interfaces, packet sockets, vhost-user, namespaces, netlink, ethtool,
//! processors.
//!
//! | module | purpose |
//! |---|---|
//! | [`tap`] | a TAP interface created by the adapter; the kernel's network stack is its host |
//! | [`packet`] | an existing interface, through packet sockets |
//! | [`null`] | a sink and a source of frames; no host |
//! | [`vhost_user`] | the network device of a virtual machine, over vhost-user |
//! | [`vnet_hdr`] | the virtio network header before each frame: requests of the host, and reports to the host |
//! | [`worker`] | a thread that polls tasks: queue pairs on a cable, and the switch |
//! | [`ipsec_mb`] | the optional cipher library `intel-ipsec-mb`, loaded if installed |
//! | [`socket`] | options and statistics of TCP sockets |
//! | [`sys`] | namespaces, links, features, processors, privilege |
//!
//! This crate contains no code that edits packet headers, except that it restores a VLAN tag removed by the kernel.
//! `offramp-offload` edits the headers. Only `offramp-virtio` accesses guest memory. Namespaces and interfaces are held
//! by open descriptors, so the kernel removes both even if the process crashes.

mod bell;
pub mod capture;
mod frame_memory;
pub mod ipsec_mb;
pub mod null;
pub mod packet;
pub mod socket;
mod switch_task;
pub mod sys;
pub mod tap;
pub mod vhost_user;
pub mod vnet_hdr;
pub mod worker;
