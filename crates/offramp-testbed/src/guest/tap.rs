//! A guest with its card on a TAP in a namespace, without offramp's adapter between card and TAP.

use super::command::{AgentConfig, Card};
use super::machine::Machine;
use super::runner::{GuestSpec, Runner, boot_first};
use crate::error::TestbedError;
use crate::rig::MACS;
use crate::scratch::Scratch;
use offramp_ports::sys::{NetNs, cpu, link};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// MTU in IP bytes, a TAP's default.
const MTU: usize = 1500;

/// A running QEMU guest, and the namespace with its card's TAP. Dropping the value ends the guest and the namespace.
#[derive(Debug)]
pub struct TapGuest {
    machine: Machine,
    host: NetNs,
}

impl TapGuest {
    /// Name of the TAP.
    pub const TAP: &str = "tap0";

    /// Boots a guest with `modules` in addition to its card's modules. `argument` selects the program's role in the
    /// guest. The TAP gets `address`. With several queue pairs, the card does RSS.
    ///
    /// # Errors
    /// Returns an error if the guest does not boot, or the run is stopped.
    pub fn boot(
        spec: &GuestSpec,
        argument: &str,
        modules: &[&str],
        address: (IpAddr, u8),
        queue_pairs: usize,
        stop: &AtomicBool,
    ) -> Result<Self, TestbedError> {
        let host = NetNs::new()?;
        let (machine, ..) = boot_first(&spec.runners, |runner| {
            boot(runner, &spec.program, argument, modules, (&host, queue_pairs), stop)
        })?;
        host.run(|| -> io::Result<()> {
            link::add_address(Self::TAP, address.0, address.1)?;
            Ok(link::set_up(Self::TAP)?)
        })??;
        Ok(Self { machine, host })
    }

    /// Returns the namespace of the TAP.
    pub fn host(&self) -> &NetNs {
        &self.host
    }

    /// Returns the guest's kernel version, as in `uname -r`.
    pub fn kernel(&self) -> &str {
        self.machine.kernel()
    }
}

fn boot(
    runner: &Runner,
    program: &Path,
    argument: &str,
    modules: &[&str],
    (namespace, queue_pairs): (&NetNs, usize),
    stop: &AtomicBool,
) -> Result<Machine, TestbedError> {
    let scratch = Scratch::new()?;
    let config = AgentConfig {
        runner,
        program,
        argument,
        modules,
        directory: scratch.path(),
        card: Card::Tap { namespace, name: TapGuest::TAP, queue_pairs },
        mac: MACS[0],
        mtu: MTU,
        cpus: &cpu::online(),
    };
    Machine::boot_agent(&config, stop)
}
