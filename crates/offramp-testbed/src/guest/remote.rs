//! The exchange of commands and answers with the agent in a guest.

use super::command::AgentConfig;
use super::machine::{Machine, Speech};
use super::protocol::{Answer, Command};
use super::runner::Accelerator;
use super::vmm::SerialLines;
use super::{GuestError, image};
use crate::error::TestbedError;
use crate::program::Unfound;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Timeout for the guest's answer to a command that runs no test.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for a signal to this process after the guest has ended. A signal sent to all processes of a run may
/// reach the guest first.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// Text that marks a harmless line of the console.
const WARNING: &str = "warning: ";
/// Maximum number of bytes of the guest's last console output in an error message.
const TAIL_LEN: usize = 600;

/// Commands and answers on the second serial line. The kernel's console uses the first serial line.
#[derive(Debug)]
pub struct Remote {
    /// Number of bytes of answers read so far.
    mark: usize,
    kernel: String,
    accelerator: Accelerator,
    memory_mib: u64,
}

impl Speech for Remote {
    /// The console is written to standard error, which also contains the messages of the guest's program.
    const LINES: SerialLines = SerialLines {
        qemu: &[
            "-chardev",
            "file,id=console,append=on,path=/dev/stderr",
            "-serial",
            "chardev:console",
            "-serial",
            "stdio",
        ],
        uml: &["con0=null,fd:2", "ssl1=fd:0,fd:1"],
    };
}

impl Machine {
    /// Boots a guest, and waits for its first answer.
    pub(super) fn boot_agent(config: &AgentConfig, stop: &AtomicBool) -> Result<Self, TestbedError> {
        let archive = image::build(config.program, &config.runner.kernel, config.modules)?;
        let initramfs = config.directory.join("initramfs");
        fs::write(&initramfs, &archive).map_err(GuestError::at(&initramfs))?;
        let hardware = config.hardware(initramfs, archive.len() as u64);
        let (accelerator, memory_mib) = (config.runner.accelerator, hardware.memory_mib);
        let speech = Remote { mark: 0, kernel: String::new(), accelerator, memory_mib };
        let spawned = Self::spawn(&hardware, speech, config.card.namespace(), Some(config.cpus));
        let program = || config.runner.program.clone();
        let mut machine = spawned.map_err(|cause| GuestError::Start { program: program(), cause })?;
        machine.speech.kernel = machine.wait_until_ready(config.runner.timeout, stop)?;
        machine.booted();
        Ok(machine)
    }

    fn wait_until_ready(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<String, TestbedError> {
        let why = match self.line(timeout, stop) {
            Ok(line) => match parse(&line) {
                Ok(Answer::Ready { kernel }) => return Ok(kernel),
                Ok(Answer::Failed(why)) | Err(TestbedError::Traffic(why)) => why,
                Ok(other) => format!("it said {other:?}"),
                Err(error) => return Err(error),
            },
            Err(Unfound::Stopped) => return Err(TestbedError::Stopped),
            Err(Unfound::GaveUp) => self.last_words(),
            Err(Unfound::Ended(status)) => format!("the guest ended ({status}){}", self.tail()),
            Err(Unfound::Late) => format!("the guest printed nothing for {} s{}", timeout.as_secs(), self.tail()),
        };
        Err(GuestError::Boot { accelerator: self.speech.accelerator.name(), why }.into())
    }

    /// Sends a command, and waits for its completion.
    ///
    /// # Errors
    /// Returns an error if the command fails in the guest, if the guest does not answer, or if the run is stopped.
    pub fn command(&mut self, command: &Command, stop: &AtomicBool) -> Result<(), TestbedError> {
        self.send(command)?;
        self.finish(stop)
    }

    /// Waits for the completion of the last command sent.
    ///
    /// # Errors
    /// Returns the errors of [`Machine::command`].
    pub fn finish(&mut self, stop: &AtomicBool) -> Result<(), TestbedError> {
        match self.answer(ANSWER_TIMEOUT, stop)? {
            Answer::Done => Ok(()),
            Answer::Failed(why) => Err(TestbedError::Traffic(format!("in the guest: {why}"))),
            other => Err(TestbedError::Traffic(format!("the guest answered {other:?}"))),
        }
    }

    /// Sends the guest a command. [`Machine::answer`] waits for the answer.
    ///
    /// # Errors
    /// Returns an error if the guest has ended.
    pub fn send(&mut self, command: &Command) -> Result<(), TestbedError> {
        let line = serde_json::to_string(command).map_err(|e| TestbedError::Traffic(e.to_string()))?;
        let sent = self.program.write(&line);
        sent.map_err(|cause| TestbedError::Traffic(format!("the guest accepts no commands: {cause}{}", self.tail())))
    }

    /// Waits for the guest's next answer.
    ///
    /// # Errors
    /// Returns an error if the guest sends no valid answer within `timeout`, if the guest has ended, or if the run is
    /// stopped.
    pub fn answer(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<Answer, TestbedError> {
        let why = match self.line(timeout, stop) {
            Ok(line) => return parse(&line),
            Err(Unfound::Stopped) => return Err(TestbedError::Stopped),
            Err(Unfound::Ended(status)) => format!("the guest ended ({status})"),
            Err(Unfound::GaveUp | Unfound::Late) => format!("the guest did not answer for {} s", timeout.as_secs()),
        };
        Err(TestbedError::Traffic(why + &self.tail()))
    }

    /// Waits for the next line of the guest's answers.
    fn line(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<String, Unfound> {
        let first = |text: &str| text.split_once('\n').map(|(line, _)| line.to_owned());
        let found = self.program.look_for(self.speech.mark, timeout, stop, first);
        match found {
            Ok(line) => {
                self.speech.mark += line.len() + 1;
                Ok(line)
            }
            // A signal sent to all processes of this run may have ended the guest before this process received the
            // signal.
            Err(Unfound::Ended(status)) => {
                std::thread::sleep(STOP_GRACE);
                Err(if stop.load(Ordering::Relaxed) { Unfound::Stopped } else { Unfound::Ended(status) })
            }
            Err(other) => Err(other),
        }
    }

    /// Returns the last part of the console output as one line, for an error message.
    fn tail(&self) -> String {
        let words = self.last_words();
        if words.is_empty() { words } else { format!("; its last output: {words}") }
    }

    fn last_words(&self) -> String {
        last_words(&self.program.errors())
    }

    /// Returns the guest's kernel version, as in `uname -r`.
    pub fn kernel(&self) -> &str {
        &self.speech.kernel
    }

    /// Returns the guest's accelerator.
    pub fn accelerator(&self) -> Accelerator {
        self.speech.accelerator
    }

    /// Returns the guest's memory in MiB.
    pub fn memory_mib(&self) -> u64 {
        self.speech.memory_mib
    }
}

fn parse(line: &str) -> Result<Answer, TestbedError> {
    serde_json::from_str(line).map_err(|_| TestbedError::Traffic(format!("the guest said: {line}")))
}

/// Returns the last part of a text as one line, without warnings of QEMU.
fn last_words(text: &str) -> String {
    let from = text.ceil_char_boundary(text.len().saturating_sub(TAIL_LEN));
    let is_worth_it = |line: &String| !line.is_empty() && !line.contains(WARNING);
    let lines = text[from..].lines().map(|line| line.replace(|c: char| c.is_control(), " ").trim().to_owned());
    lines.filter(is_worth_it).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_one_line_without_control_characters() {
        assert_eq!(last_words("a\r\nqemu: warning: no\n\n\x1b[0mb\n"), "a | [0mb");
        assert_eq!(last_words(&"ä".repeat(TAIL_LEN)).chars().count(), TAIL_LEN / 2);
    }
}
