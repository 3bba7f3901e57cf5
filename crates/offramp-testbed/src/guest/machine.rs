//! A running guest, and the exchange of commands with it.

use super::command::{MachineConfig, command};
use super::protocol::{Answer, Command};
use super::runner::Accelerator;
use super::{GuestError, image, vmm};
use crate::error::TestbedError;
use offramp_ports::sys::{confine, cpu};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Memory of a guest besides its file system: kernel, sockets, page cache.
const MEMORY_MIB: u64 = 192;
/// The file system lies in memory twice while the kernel unpacks it.
const ARCHIVE_COPIES: u64 = 2;
const MIB: u64 = 1 << 20;
/// Timeout of a command that only changes something.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a wait checks the stop flag.
const STOP_POLL: Duration = Duration::from_millis(50);
/// After the guest's end, maximum delay of the same signal to this process.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// Part of the console that is read, in bytes from its end.
const CONSOLE_LEN_MAX: u64 = 16 << 10;
/// Mark of a harmless line.
const WARNING: &str = "warning: ";
/// Part of the guest's console in an error, in bytes from its end.
const TAIL_LEN: usize = 600;

/// A running guest. Dropping it ends it.
#[derive(Debug)]
pub struct Machine {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    console: File,
    kernel: String,
    accelerator: Accelerator,
    memory_mib: u64,
    boot_time: Duration,
}

impl Machine {
    /// Boots a guest, and waits for its first answer. The guest is killed when the calling thread ends.
    pub(super) fn boot(config: &MachineConfig, stop: &AtomicBool) -> Result<Self, TestbedError> {
        let archive = image::build(config.program, &config.runner.kernel, config.modules)?;
        let initramfs = config.directory.join("initramfs");
        fs::write(&initramfs, &archive).map_err(GuestError::at(&initramfs))?;
        let log = config.directory.join("console");
        let console =
            OpenOptions::new().create(true).append(true).read(true).open(&log).map_err(GuestError::at(&log))?;
        let memory_mib = MEMORY_MIB + ARCHIVE_COPIES * (archive.len() as u64).div_ceil(MIB);
        let mut command = command(config, &initramfs, &log, memory_mib);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(console.try_clone().map_err(GuestError::at(&log))?);
        // Ctrl-C is for the lab, which ends the guest in its turn.
        command.process_group(0);
        confine(&mut command, config.card.namespace(), Some(config.cpus))?;
        let began = Instant::now();
        let spawned = command.spawn();
        let program = || config.runner.program.clone();
        let mut process = spawned.map_err(|cause| GuestError::Start { program: program(), cause })?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (commands, output) = pipes.expect("both were piped and are taken once");
        let (answers, reader) = lines(output);
        let (accelerator, kernel) = (config.runner.accelerator, String::new());
        let mut machine = Self {
            process,
            commands,
            answers,
            reader,
            console,
            kernel,
            accelerator,
            memory_mib,
            boot_time: Duration::ZERO,
        };
        machine.kernel = machine.wait_until_ready(config.runner.timeout, stop)?;
        machine.boot_time = began.elapsed();
        Ok(machine)
    }

    fn wait_until_ready(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<String, TestbedError> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            match self.answer_within(STOP_POLL, stop) {
                Ok(Some(Answer::Ready { kernel })) => return Ok(kernel),
                Ok(Some(Answer::Failed(why))) | Err(TestbedError::Traffic(why)) => return Err(self.not_booted(why)),
                Ok(Some(other)) => return Err(self.not_booted(format!("it said {other:?}"))),
                Ok(None) if self.console().contains(vmm::REFUSED) => return Err(self.not_booted(self.last_words())),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        Err(self.not_booted(format!("it printed nothing for {} s{}", timeout.as_secs(), self.tail())))
    }

    fn not_booted(&self, why: String) -> TestbedError {
        GuestError::Boot { accelerator: self.accelerator.name(), why }.into()
    }

    /// Sends a command, and waits for its completion.
    ///
    /// # Errors
    /// When the guest fails at it, does not answer, or the run is stopped.
    pub fn command(&mut self, command: &Command, stop: &AtomicBool) -> Result<(), TestbedError> {
        self.send(command)?;
        self.finish(stop)
    }

    /// Waits for the completion of the command sent before.
    ///
    /// # Errors
    /// As [`Machine::command`].
    pub fn finish(&mut self, stop: &AtomicBool) -> Result<(), TestbedError> {
        match self.answer(ANSWER_TIMEOUT, stop)? {
            Answer::Done => Ok(()),
            Answer::Failed(why) => Err(TestbedError::Traffic(format!("in the guest: {why}"))),
            other => Err(TestbedError::Traffic(format!("the guest answered {other:?}"))),
        }
    }

    /// Sends the guest a command; [`Machine::answer`] returns its answer.
    ///
    /// # Errors
    /// When the guest has ended.
    pub fn send(&mut self, command: &Command) -> Result<(), TestbedError> {
        let line = serde_json::to_string(command).map_err(|e| TestbedError::Traffic(e.to_string()))? + "\n";
        let sent = self.commands.write_all(line.as_bytes()).and_then(|()| self.commands.flush());
        sent.map_err(|cause| TestbedError::Traffic(format!("the guest takes no commands: {cause}{}", self.tail())))
    }

    /// Waits for the guest's next answer.
    ///
    /// # Errors
    /// When the guest sends nothing valid within `timeout`, has ended, or the run is stopped.
    pub fn answer(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<Answer, TestbedError> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            if let Some(answer) = self.answer_within(STOP_POLL, stop)? {
                return Ok(answer);
            }
        }
        Err(TestbedError::Traffic(format!("the guest did not answer for {} s{}", timeout.as_secs(), self.tail())))
    }

    /// Returns the guest's answer within `patience`, if any.
    fn answer_within(&mut self, patience: Duration, stop: &AtomicBool) -> Result<Option<Answer>, TestbedError> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => {
                serde_json::from_str(&line).map_err(|_| TestbedError::Traffic(format!("the guest said: {line}")))
            }
            Err(_) if stop.load(Ordering::Relaxed) => Err(TestbedError::Stopped),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended(stop)),
        }
    }

    /// Returns the reason for the guest's closed port: a signal to all of us, or its own end.
    fn ended(&mut self, stop: &AtomicBool) -> TestbedError {
        std::thread::sleep(STOP_GRACE);
        if stop.load(Ordering::Relaxed) {
            return TestbedError::Stopped;
        }
        let status = self.process.try_wait().ok().flatten().map_or(String::new(), |status| format!(" ({status})"));
        TestbedError::Traffic(format!("the guest ended{status}{}", self.tail()))
    }

    /// Returns the end of the console output, for a message of one line.
    fn tail(&self) -> String {
        let words = self.last_words();
        if words.is_empty() { words } else { format!("; its last words: {words}") }
    }

    fn last_words(&self) -> String {
        last_words(&self.console())
    }

    /// Returns the console output of the guest's kernel and its runner so far.
    fn console(&self) -> String {
        // The file is deleted once the guest runs, so it is read by its descriptor.
        let len = self.console.metadata().map_or(0, |metadata| metadata.len());
        let from = len.saturating_sub(CONSOLE_LEN_MAX);
        let mut bytes = vec![0; (len - from) as usize];
        // An unreadable part is not shown.
        let _ = self.console.read_exact_at(&mut bytes, from);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the processor time of all the guest's processes on this machine, in nanoseconds.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_ns(&self) -> io::Result<u64> {
        let of_all = family(self.process.id()).into_iter().map(|pid| cpu::process_cpu_ns_of(pid as i32));
        // A process that ends meanwhile counts no more. The first one lives as long as the guest.
        let known: Vec<u64> = of_all.filter_map(Result::ok).collect();
        if known.is_empty() { Err(io::Error::other("the guest has ended")) } else { Ok(known.into_iter().sum()) }
    }

    /// Returns `uname -r` in the guest.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Returns the guest's accelerator.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Returns the guest's memory in MiB.
    pub fn memory_mib(&self) -> u64 {
        self.memory_mib
    }

    /// Returns the time from its start to its first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(reader) = self.reader.take() {
            // A panic in the thread was reported when it happened.
            let _ = reader.join();
        }
    }
}

/// Returns a process and all its descendants.
fn family(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        // An ended process has no children.
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    family
}

/// Reads lines on a thread of its own until the guest ends.
fn lines(output: ChildStdout) -> (Receiver<String>, Option<JoinHandle<()>>) {
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (receiver, Some(reader))
}

/// Returns the end of a text in one line, without the QEMU warnings of every run.
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
