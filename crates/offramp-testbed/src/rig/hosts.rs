//! Two hosts in namespaces, or a guest and a namespace.

use super::config::RigConfig;
use super::counts::Counts;
use crate::guest::Machine;
use offramp_ports::sys::NetNs;

/// Two hosts, their adapters and the line, as a sample needs them.
pub trait Hosts {
    /// What they are set to.
    fn config(&self) -> &RigConfig;
    /// Kernel numbers of the threads that drive the adapters.
    fn adapter_threads(&self) -> Vec<i32>;
    /// Counters of both adapters.
    fn counts(&self) -> Counts;
    /// Counters of the adapter of host 0 or 1.
    fn counts_of(&self, side: usize) -> Counts;
    /// Packets that programs of the hosts which seal and open have lost.
    fn program_lost(&self) -> u64 {
        0
    }
    /// Whether the receive work of hosts in namespaces was moved to the hosts' processors.
    fn has_rps(&self) -> bool;
    /// The namespace of host 0 or 1; `None`: it is the guest.
    fn namespace(&self, side: usize) -> Option<&NetNs>;
    /// The guest, if a host is one.
    fn guest(&mut self) -> Option<&mut Machine>;
}
