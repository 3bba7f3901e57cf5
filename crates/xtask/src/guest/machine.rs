//! A virtual machine and its console.

use crate::failure::{Doing, Result, failed};
use crate::program::Program;
use offramp_ports::sys::{NetNs, confine};
use offramp_testbed::guest::kernel::Kernel;
use offramp_testbed::guest::vmm::{self, Hardware};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Memory of a guest in MiB, its file system included.
const MEMORY_MIB: u64 = 384;
/// Default number of processors of a guest: one for each queue pair.
pub const CPUS: usize = 2;
/// Time from its start to its first command; emulated, on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);
/// Time from a command to its end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// Time to switch off.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// Bits of the network part of all addresses.
pub const PREFIX_LEN: u8 = 24;
/// The guest's text when it takes commands.
const READY: &str = "@@ready";
/// Its text when it has failed itself.
const FAILED: &str = "@@failed";
/// Its text at the end of an answer, before the exit status.
const END: &str = "@@end ";

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The program for it, and its network card.
    pub monitor: Monitor,
    /// The kernel.
    pub kernel: Kernel,
    /// Its file system.
    pub initramfs: PathBuf,
    /// The guest's address.
    pub address: Ipv4Addr,
    /// Its processors.
    pub cpus: usize,
    /// Additions to the kernel's command line.
    pub arguments: &'static str,
}

/// A program for machines.
#[derive(Clone, Debug)]
pub enum Monitor {
    /// QEMU.
    Qemu {
        /// The program.
        program: PathBuf,
        /// Accelerators, the preferred one first.
        accel: Vec<String>,
        /// Arguments for `net0`, the host's side of the card, and any others.
        network: Vec<String>,
        /// The card (`-device`).
        device: String,
    },
    /// User Mode Linux: the kernel itself is the program.
    Uml {
        /// The port's socket.
        socket: PathBuf,
        /// Directory of its files while it runs.
        directory: PathBuf,
    },
}

impl MachineConfig {
    /// Returns its boot command.
    pub fn command(&self) -> Command {
        // The kernel turns unknown arguments into variables of the first program.
        let arguments = format!("{} address={}/{PREFIX_LEN}", self.arguments, self.address);
        let (kernel, initramfs) = (&self.kernel, self.initramfs.as_path());
        let hardware = Hardware { kernel, initramfs, memory_mib: MEMORY_MIB, cpus: self.cpus, arguments: &arguments };
        match &self.monitor {
            Monitor::Uml { socket, directory } => vmm::uml(&hardware, socket, directory, &["con0=fd:0,fd:1"]),
            Monitor::Qemu { program, accel, network, device } => {
                let mut command = vmm::qemu(program, accel, &hardware);
                command.args(["-serial", "stdio"]).args(network);
                command.args(["-device", device]);
                command
            }
        }
    }
}

/// A running machine.
#[derive(Debug)]
pub struct Machine {
    program: Program,
    began: Instant,
    boot_time: Duration,
}

impl Machine {
    /// Boots a machine with its host side in a namespace, and waits until it takes commands.
    ///
    /// # Errors
    /// When the options are refused, or the guest does not come up.
    pub fn boot(config: &MachineConfig, ns: &NetNs) -> Result<Self> {
        let mut machine = Self::start(config, ns)?;
        machine.wait_until_ready()?;
        Ok(machine)
    }

    /// Starts a machine; [`Machine::wait_until_ready`] must follow. So several can boot at once.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(config: &MachineConfig, ns: &NetNs) -> Result<Self> {
        let mut command = config.command();
        confine(&mut command, Some(ns), None).doing("preparing a guest")?;
        let began = Instant::now();
        let mut program = Program::start("guest", command)?;
        program.give_up_at(vmm::REFUSED);
        Ok(Self { program, began, boot_time: Duration::ZERO })
    }

    /// Waits until the guest takes commands.
    ///
    /// # Errors
    /// When the options are refused, or the guest does not come up.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let seen = |text: &str| text.contains(READY).then(|| text.replace('\r', ""));
        let text = self.program.wait_for("the guest to boot", 0, BOOT_TIMEOUT, seen)?;
        self.boot_time = self.began.elapsed();
        match text.lines().find(|line| line.contains(FAILED)) {
            Some(_) => failed(format!("the guest is not whole:\n{}", text.trim())),
            None => Ok(()),
        }
    }

    /// Returns QEMU's process.
    pub fn id(&self) -> u32 {
        self.program.id()
    }

    /// Returns the end of its output, for a message.
    pub fn tail(&self) -> String {
        self.program.tail()
    }

    /// Returns the time of its boot.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Starts a command in the guest; [`Machine::finish`] waits for it.
    ///
    /// # Errors
    /// When the machine has ended.
    pub fn begin(&mut self, command: &str) -> Result<Begun> {
        let mark = self.program.mark();
        self.program.say(command)?;
        Ok(Begun { command: command.to_owned(), mark })
    }

    /// Returns whether a command has not ended.
    pub fn is_under_way(&self, begun: &Begun) -> bool {
        answer(&self.program.said_since(begun.mark)).is_none()
    }

    /// Waits for the end of a command and returns its output.
    ///
    /// # Errors
    /// When it fails, or does not end in time.
    pub fn finish(&mut self, begun: &Begun) -> Result<String> {
        let what = format!("the end of \"{}\"", begun.command);
        let (text, status) = self.program.wait_for(&what, begun.mark, COMMAND_TIMEOUT, answer)?;
        match status.as_str() {
            "0" => Ok(text),
            status => failed(format!("in the guest, \"{}\" ended with {status}:\n{}", begun.command, text.trim())),
        }
    }

    /// Runs a command in the guest and returns its output.
    ///
    /// # Errors
    /// When it fails, or does not end in time.
    pub fn run(&mut self, command: &str) -> Result<String> {
        let begun = self.begin(command)?;
        self.finish(&begun)
    }

    /// Switches the machine off, in good order if possible.
    pub fn power_off(mut self) {
        // Dropping kills a machine still running.
        let _ = self.program.say("poweroff -f");
        let _ = self.program.wait_end(POWER_OFF_TIMEOUT);
    }
}

/// A command under way in a guest.
#[derive(Debug)]
pub struct Begun {
    command: String,
    mark: usize,
}

impl Begun {
    /// Returns the same command in the machine after a move.
    #[must_use]
    pub fn elsewhere(self) -> Self {
        Self { mark: 0, ..self }
    }
}

/// Returns the output of a command and its exit status, once both are there.
fn answer(text: &str) -> Option<(String, String)> {
    let (printed, rest) = text.split_once(END)?;
    let (status, _) = rest.split_once('\n')?;
    Some((printed.replace('\r', ""), status.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_status() {
        assert_eq!(answer("1500\r\n@@end 0\r\n"), Some(("1500\n".to_owned(), "0".to_owned())));
        assert_eq!(answer("1500\r\n@@end 12"), None);
        assert_eq!(answer("1500\r\n"), None);
    }
}
