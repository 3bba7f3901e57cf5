//! Placement of the adapter and the guests on processors.

use offramp_ports::sys::cpu::{online, pin_current_thread};
use offramp_testbed::cpu::AwakeCpus;
use std::fmt;

/// The role of a thread. The role decides the thread's processor. A thread that is started later by this thread
/// inherits the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Adapter,
    Asking,
    Answering,
}

/// The placement of threads. Either each role has its own processor, kept awake, or the kernel and the hypervisor
/// choose the processors.
///
/// Without a fixed placement, a hypervisor can deschedule a halted processor, and resume the processor late. The kernel
/// can wake a thread on the waker's processor or on a sleeping processor. These delays vary from second to second, by
/// more than the bounds on the moderation policies permit.
#[derive(Debug)]
pub struct Placement {
    /// Processors in order of [`Role`]. The guests share a processor if the machine has only two.
    cpus: Option<[usize; 3]>,
    _awake: Option<AwakeCpus>,
}

impl Placement {
    /// Chooses a processor for each role, if this machine has at least two processors.
    pub fn apart() -> Self {
        let online = online();
        let [adapter, asking, rest @ ..] = online.as_slice() else {
            return Self::free();
        };
        let cpus = [*adapter, *asking, *rest.first().unwrap_or(asking)];
        let awake = AwakeCpus::start(&online).unwrap_or_else(|e| panic!("keeping processors awake: {e}"));
        Self { cpus: Some(cpus), _awake: Some(awake) }
    }

    /// Leaves the placement of threads to the kernel. Idle processors can sleep.
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
