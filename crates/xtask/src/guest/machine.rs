//! A virtual machine and its console.

use crate::failure::{Doing, Result, failed};
use crate::program::Program;
use offramp_ports::sys::{NetNs, confine};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Memory of a guest in MiB: its file system lies there too.
const MEMORY_MIB: u32 = 384;
/// Processors of a guest: one for each queue pair.
const CPUS: u32 = 2;
/// From the start of QEMU to a guest that takes commands; emulated, on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);
/// From a command to its end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// Time to switch off.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// The guest's command line: quiet, and a panic ends the machine at once. The kernel counts no timer interrupts to see
/// whether they come: on a busy machine an emulated guest gets too few of them, and panics.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 rdinit=/init quiet loglevel=1 panic=-1 net.ifnames=0 no_timer_check";
/// Bits of the network part of all addresses.
pub const PREFIX_LEN: u8 = 24;
/// What the guest says when it takes commands.
const READY: &str = "@@ready";
/// What it says when something is wrong with itself.
const FAILED: &str = "@@failed";
/// What QEMU says, again and again, when it and a vhost-user backend do not agree.
const REFUSED: &str = "failed to init vhost_net";
/// What it says at the end of an answer, before the exit status.
const END: &str = "@@end ";

/// What makes a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The program.
    pub qemu: PathBuf,
    /// Accelerators, the preferred one first.
    pub accel: Vec<String>,
    /// The kernel.
    pub kernel: PathBuf,
    /// Its file system.
    pub initramfs: PathBuf,
    /// Arguments that make `net0`, the host's side of the card.
    pub network: Vec<String>,
    /// The card's options.
    pub device: String,
    /// The guest's address.
    pub address: Ipv4Addr,
}

impl MachineConfig {
    /// The command that boots it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.qemu);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
        command.args(["-machine", "q35,memory-backend=mem"]);
        for accel in &self.accel {
            command.args(["-accel", accel]);
        }
        command.args(["-cpu", "max", "-smp", &CPUS.to_string(), "-m", &format!("{MEMORY_MIB}M")]);
        // vhost-user hands the guest's memory to the backend: it must be a file that can be shared.
        command.args(["-object", &format!("memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on")]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initramfs);
        // What the kernel does not know becomes a variable of the first program.
        command.args(["-append", &format!("{KERNEL_ARGUMENTS} address={}/{PREFIX_LEN}", self.address)]);
        command.args(&self.network);
        command.args(["-device", &format!("virtio-net-pci,netdev=net0,romfile=,{}", self.device)]);
        command
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
    /// Boots a machine whose host side lies in a namespace, and waits until it takes commands.
    ///
    /// # Errors
    /// When QEMU refuses the options, or the guest does not come up.
    pub fn boot(config: &MachineConfig, ns: &NetNs) -> Result<Self> {
        let mut machine = Self::start(config, ns)?;
        machine.wait_until_ready()?;
        Ok(machine)
    }

    /// Starts a machine; [`Machine::wait_until_ready`] must follow. So several boot at once.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start(config: &MachineConfig, ns: &NetNs) -> Result<Self> {
        let mut command = config.command();
        confine(&mut command, Some(ns), None).doing("preparing QEMU")?;
        let began = Instant::now();
        let mut program = Program::start("guest", command)?;
        program.give_up_at(REFUSED);
        Ok(Self { program, began, boot_time: Duration::ZERO })
    }

    /// Waits until the guest takes commands.
    ///
    /// # Errors
    /// When QEMU refuses the options, or the guest does not come up.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let seen = |text: &str| text.contains(READY).then(|| text.replace('\r', ""));
        let text = self.program.wait_for("the guest to boot", 0, BOOT_TIMEOUT, seen)?;
        self.boot_time = self.began.elapsed();
        match text.lines().find(|line| line.contains(FAILED)) {
            Some(_) => failed(format!("the guest is not whole:\n{}", text.trim())),
            None => Ok(()),
        }
    }

    /// How long it took to boot.
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

    /// Waits for the end of a command and returns what it printed.
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

    /// Runs a command in the guest and returns what it printed.
    ///
    /// # Errors
    /// When it fails, or does not end in time.
    pub fn run(&mut self, command: &str) -> Result<String> {
        let begun = self.begin(command)?;
        self.finish(&begun)
    }

    /// Switches it off, in good order if it does.
    pub fn power_off(mut self) {
        // What does not switch itself off is killed when it is dropped.
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

/// What a command printed, and its exit status, once both are there.
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
