//! A guest with a shell: busybox runs each line of the console.

use super::machine::{self, Speech};
use super::vmm::{MachineConfig, SerialLines};
use crate::failure::{Doing, Result, failed};
use offramp_ports::sys::NetNs;
use std::time::Duration;

/// Time from its start to its first command; emulated, on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);
/// Time from a command to its end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// Time to switch off.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// The guest's text when it takes commands.
const READY: &str = "@@ready";
/// Its text when it has failed itself.
const FAILED: &str = "@@failed";
/// Its text at the end of an answer, before the exit status.
const END: &str = "@@end ";

/// Lines on the console.
#[derive(Clone, Copy, Debug)]
pub struct Shell;

impl Speech for Shell {
    const LINES: SerialLines = SerialLines { qemu: &["-serial", "stdio"], uml: &["con0=fd:0,fd:1"] };
}

/// A running guest with a shell.
pub type Machine = machine::Machine<Shell>;

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
        Self::spawn(config, Shell, Some(ns), None).doing("starting a guest")
    }

    /// Waits until the guest takes commands.
    ///
    /// # Errors
    /// When the options are refused, or the guest does not come up.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let seen = |text: &str| text.contains(READY).then(|| text.replace('\r', ""));
        let text = self.program.wait_for("the guest to boot", 0, BOOT_TIMEOUT, seen)?;
        self.booted();
        match text.lines().find(|line| line.contains(FAILED)) {
            Some(_) => failed(format!("the guest lacks a file or module:\n{}", text.trim())),
            None => Ok(()),
        }
    }

    /// Returns the end of its output, for a message.
    pub fn tail(&self) -> String {
        self.program.tail()
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
