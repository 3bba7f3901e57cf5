//! Two hosts: two network namespaces, or a guest and a namespace.

use super::config::RigConfig;
use super::counts::Counts;
use crate::guest::Machine;
use offramp_ports::sys::NetNs;

/// The hosts, adapters and wire used by a measurement.
pub trait Hosts {
    /// Returns the rig's configuration.
    fn config(&self) -> &RigConfig;
    /// Returns the kernel thread numbers of the adapters' threads.
    fn adapter_threads(&self) -> Vec<i32>;
    /// Returns the counters of both adapters.
    fn counts(&self) -> Counts;
    /// Returns the counters of the adapter of host 0 or 1.
    fn counts_of(&self, side: usize) -> Counts;
    /// Returns the number of packets lost by the hosts' encryption programs.
    fn program_lost(&self) -> u64 {
        0
    }
    /// Returns whether the receive work of hosts in namespaces runs on the hosts' processors.
    fn has_rps(&self) -> bool;
    /// Returns the namespace of host 0 or 1, or `None` if that host is the guest.
    fn namespace(&self, side: usize) -> Option<&NetNs>;
    /// Returns the guest, or `None` if no host is a guest.
    fn guest(&mut self) -> Option<&mut Machine>;
}
