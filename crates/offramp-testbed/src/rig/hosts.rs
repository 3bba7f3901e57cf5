//! Two hosts in namespaces, or a guest and a namespace.

use super::config::RigConfig;
use super::counts::Counts;
use crate::guest::Machine;
use offramp_ports::sys::NetNs;

/// The hosts, adapters and wire needed by a sample.
pub trait Hosts {
    /// Returns the configuration.
    fn config(&self) -> &RigConfig;
    /// Returns the kernel numbers of the adapters' threads.
    fn adapter_threads(&self) -> Vec<i32>;
    /// Returns the counters of both adapters.
    fn counts(&self) -> Counts;
    /// Returns the counters of the adapter of host 0 or 1.
    fn counts_of(&self, side: usize) -> Counts;
    /// Returns the packets lost by the hosts' programs for sealing and opening.
    fn program_lost(&self) -> u64 {
        0
    }
    /// Returns whether the receive work of hosts in namespaces was moved to the hosts' processors.
    fn has_rps(&self) -> bool;
    /// Returns the namespace of host 0 or 1; `None`: it is the guest.
    fn namespace(&self, side: usize) -> Option<&NetNs>;
    /// Returns the guest, if a host is one.
    fn guest(&mut self) -> Option<&mut Machine>;
}
