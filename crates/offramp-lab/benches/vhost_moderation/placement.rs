//! The processors of the adapter and the guests.

use offramp_ports::sys::cpu::{online, pin_current_thread};
use offramp_testbed::cpu::AwakeCpus;
use std::fmt;

/// The role of the calling thread and of the threads it starts from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Adapter,
    Asking,
    Answering,
}

/// A processor for each role, all kept awake; or the choice of the kernel and a hypervisor.
///
/// A hypervisor gives a halted processor away and returns it late. A thread may wake another one on its own processor
/// or on a sleeping one. Both change from second to second, by more than the bounds of moderation.
#[derive(Debug)]
pub struct Placement {
    /// In the order of [`Role`]; the guests share one if there are only two.
    cpus: Option<[usize; 3]>,
    _awake: Option<AwakeCpus>,
}

impl Placement {
    /// Chooses a processor for each role, if this machine has two at least.
    pub fn apart() -> Self {
        let online = online();
        let [adapter, asking, rest @ ..] = online.as_slice() else {
            return Self::free();
        };
        let cpus = [*adapter, *asking, *rest.first().unwrap_or(asking)];
        let awake = AwakeCpus::start(&online).unwrap_or_else(|e| panic!("keeping processors awake: {e}"));
        Self { cpus: Some(cpus), _awake: Some(awake) }
    }

    /// Leaves the placement of each thread to the kernel; idle processors sleep.
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
