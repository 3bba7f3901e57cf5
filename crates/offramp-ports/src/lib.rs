//! All input and output of the adapter: TAP ports, packet sockets, namespaces, netlink, ethtool, processors.
//!
//! | module | purpose |
//! |---|---|
//! | [`tap`] | a TAP interface that the adapter makes, for the host's kernel |
//! | [`packet`] | an interface that exists, over packet sockets |
//! | [`null`] | a sink and a source of frames, without a host |
//! | [`vhost_user`] | a virtual machine's network device over vhost-user |
//! | [`vnet_hdr`] | requests and reports of the header in front of each frame |
//! | [`worker`] | a thread that drives tasks: queue pairs on a cable, and the switch |
//! | [`ipsec_mb`] | the second library of ciphers, loaded if installed |
//! | [`socket`] | options and statistics of TCP sockets |
//! | [`sys`] | namespaces, links, features, processors, privilege |
//!
//! Nothing here edits a packet header (only the VLAN tag removed by the kernel is put back), and only `offramp-virtio`
//! touches guest memory. Only descriptors hold namespaces and interfaces, so the kernel removes them however the
//! process ends.

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
