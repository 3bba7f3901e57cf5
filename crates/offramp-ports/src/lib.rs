//! All input and output of the adapter: TAP ports, packet sockets, namespaces, netlink, ethtool, processors.
//!
//! Nothing here edits a packet header, and nearly all `unsafe` of the workspace lives here. What is
//! made outlives no process: namespaces and interfaces are held by descriptors alone, so that the
//! kernel takes them back however the process ends.

pub mod packet;
pub mod relay;
pub mod socket;
mod switch_task;
pub mod sys;
pub mod tap;
pub mod vhost_user;
pub mod vnet_hdr;
pub mod worker;
