//! A running guest. A type parameter selects the protocol with the guest: lines for a shell ([`Shell`]), or commands of
//! `offramp lab` ([`Remote`]).
//!
//! [`Shell`]: super::shell::Shell

use super::remote::Remote;
use super::vmm::{self, MachineConfig, SerialLines};
use crate::program::Program;
use offramp_ports::sys::{NetNs, cpu};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

/// A protocol with the guest, over the standard streams of the program that runs the guest.
pub trait Speech {
    /// The serial lines of a guest with this protocol.
    const LINES: SerialLines;
}

/// A running guest. Dropping the value ends the guest.
#[derive(Debug)]
pub struct Machine<S = Remote> {
    pub(super) program: Program,
    pub(super) speech: S,
    began: Instant,
    pub(super) boot_time: Duration,
}

impl<S: Speech> Machine<S> {
    /// Starts a guest on the processors `cpus`, with the card's backend in a namespace. The guest is killed when the
    /// calling thread ends.
    ///
    /// # Errors
    /// Returns an error if the guest's program cannot be started.
    pub(super) fn spawn(
        config: &MachineConfig,
        speech: S,
        ns: Option<&NetNs>,
        cpus: Option<&[usize]>,
    ) -> io::Result<Self> {
        let mut command = config.command(S::LINES);
        // The guest gets a process group of its own: Ctrl-C must reach only the harness, which then ends the guest.
        command.process_group(0);
        let began = Instant::now();
        let mut program = Program::spawn("guest", command, ns, cpus)?;
        program.give_up_at(vmm::REFUSED);
        Ok(Self { program, speech, began, boot_time: Duration::ZERO })
    }

    pub(super) fn booted(&mut self) {
        self.boot_time = self.began.elapsed();
    }

    /// Returns the process number of the guest's program.
    pub fn id(&self) -> u32 {
        self.program.id()
    }

    /// Returns the time from the guest's start to its first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Returns the processor time of all the guest's processes on this machine, in nanoseconds.
    ///
    /// # Errors
    /// Returns an error if the guest has ended.
    pub fn cpu_ns(&self) -> io::Result<u64> {
        let of_all = family(self.id()).into_iter().map(|pid| cpu::process_cpu_ns_of(pid as i32));
        // Processes that have ended are not counted. The guest's first process runs as long as the guest.
        let known: Vec<u64> = of_all.filter_map(Result::ok).collect();
        if known.is_empty() { Err(io::Error::other("the guest has ended")) } else { Ok(known.into_iter().sum()) }
    }
}

/// Returns the process numbers of a process and of all its descendants.
fn family(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        // The list of an ended process' children cannot be read and counts as empty.
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    family
}
