//! Which processors the adapter and the guests have.

use offramp_ports::sys::cpu::{online, pin_current_thread};
use offramp_testbed::cpu::AwakeCpus;
use std::fmt;

/// Whose thread the calling one, and those that it starts from then on, are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Adapter,
    Asking,
    Answering,
}

/// A processor for each role, all kept awake; or whatever the kernel and a hypervisor make of it.
///
/// A processor that halts is given away by a hypervisor and comes back late; and a thread that wakes another may find it
/// on its own processor or on one that sleeps. Both change from second to second, by more than what moderation is to be
/// held to.
#[derive(Debug)]
pub struct Placement {
    /// In the order of [`Role`]; the guests share one where there are but two.
    cpus: Option<[usize; 3]>,
    _awake: Option<AwakeCpus>,
}

impl Placement {
    /// A processor for each role, if this machine has two at least.
    pub fn apart() -> Self {
        let online = online();
        let [adapter, asking, rest @ ..] = online.as_slice() else {
            return Self::free();
        };
        let cpus = [*adapter, *asking, *rest.first().unwrap_or(asking)];
        let awake = AwakeCpus::start(&online).unwrap_or_else(|e| panic!("keeping processors awake: {e}"));
        Self { cpus: Some(cpus), _awake: Some(awake) }
    }

    /// Wherever the kernel puts each thread, on processors that sleep when they have nothing to do.
    pub fn free() -> Self {
        Self { cpus: None, _awake: None }
    }

    /// Moves the calling thread to the processor of `role`.
    pub fn take(&self, role: Role) {
        if let Some(cpus) = self.cpus {
            let cpu = cpus[role as usize];
            pin_current_thread(&[cpu]).unwrap_or_else(|e| panic!("{role:?} on processor {cpu}: {e}"));
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.cpus {
            Some([adapter, asking, answering]) => {
                write!(f, "adapter on processor {adapter}, guests on {asking} and {answering}, all kept awake")
            }
            None => write!(f, "threads wherever the kernel puts them, processors that sleep"),
        }
    }
}
