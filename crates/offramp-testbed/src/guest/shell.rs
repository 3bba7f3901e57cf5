//! A guest with a shell, in which busybox runs each line of the console.

use super::machine::{self, Speech};
use super::vmm::{MachineConfig, SerialLines};
use crate::failure::{Doing, Result, failed};
use offramp_ports::sys::NetNs;
use std::time::Duration;

/// Maximum time from a guest's start to its first command, sufficient for emulation on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum run time of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum time from the command `poweroff` to the guest's end.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// Text that the guest prints when the guest accepts commands.
const READY: &str = "@@ready";
/// Text that the guest prints when the guest's set-up has failed.
const FAILED: &str = "@@failed";
/// Text printed by the guest after a command's output, before the exit status.
const END: &str = "@@end ";

/// Marker type for a guest with a shell on its console.
#[derive(Clone, Copy, Debug)]
pub struct Shell;

impl Speech for Shell {
    const LINES: SerialLines = SerialLines { qemu: &["-serial", "stdio"], uml: &["con0=fd:0,fd:1"] };
}

/// A running guest with a shell.
pub type Machine = machine::Machine<Shell>;

impl Machine {
    /// Boots a guest with its card's backend in a namespace, and waits until the guest accepts commands.
    ///
    /// # Errors
    /// Returns an error if the options are refused, or the guest does not boot.
    pub fn boot(config: &MachineConfig, ns: &NetNs) -> Result<Self> {
        let mut machine = Self::start(config, ns)?;
        machine.wait_until_ready()?;
        Ok(machine)
    }

    /// Starts a guest without waiting for its boot, so that several guests can boot at once. After the start, the
    /// caller must call [`Machine::wait_until_ready`].
    ///
    /// # Errors
    /// Returns an error if the guest cannot be started.
    pub fn start(config: &MachineConfig, ns: &NetNs) -> Result<Self> {
        Self::spawn(config, Shell, Some(ns), None).doing("starting a guest")
    }

    /// Waits until the guest accepts commands.
    ///
    /// # Errors
    /// Returns an error if the options are refused, or the guest does not boot.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let seen = |text: &str| text.contains(READY).then(|| text.replace('\r', ""));
        let text = self.program.wait_for("the guest to boot", 0, BOOT_TIMEOUT, seen)?;
        self.booted();
        match text.lines().find(|line| line.contains(FAILED)) {
            Some(_) => failed(format!("the guest lacks a file or module:\n{}", text.trim())),
            None => Ok(()),
        }
    }

    /// Returns the last part of the guest's output, for an error message.
    pub fn tail(&self) -> String {
        self.program.tail()
    }

    /// Starts a command in the guest. [`Machine::finish`] waits for the command's end.
    ///
    /// # Errors
    /// Returns an error if the guest has ended.
    pub fn begin(&mut self, command: &str) -> Result<Begun> {
        let mark = self.program.mark();
        self.program.say(command)?;
        Ok(Begun { command: command.to_owned(), mark })
    }

    /// Returns whether a command still runs.
    pub fn is_under_way(&self, begun: &Begun) -> bool {
        answer(&self.program.said_since(begun.mark)).is_none()
    }

    /// Waits for the end of a command and returns its output.
    ///
    /// # Errors
    /// Returns an error if the command fails, or does not end in time.
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
    /// Returns an error if the command fails, or does not end in time.
    pub fn run(&mut self, command: &str) -> Result<String> {
        let begun = self.begin(command)?;
        self.finish(&begun)
    }

    /// Switches the guest off with `poweroff`, or kills the guest after a timeout.
    pub fn power_off(mut self) {
        // The drop of `self` kills the guest if the guest still runs.
        let _ = self.program.say("poweroff -f");
        let _ = self.program.wait_end(POWER_OFF_TIMEOUT);
    }
}

/// A command that runs in a guest.
#[derive(Debug)]
pub struct Begun {
    command: String,
    mark: usize,
}

impl Begun {
    /// Returns a handle of this command for another [`Machine`], to which the guest was migrated.
    #[must_use]
    pub fn elsewhere(self) -> Self {
        Self { mark: 0, ..self }
    }
}

/// Returns a command's output and exit status, or `None` before the command's end.
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
