//! `dpdk-testpmd` at one end of a vhost-user socket.

pub mod output;

use crate::failure::Result;
use crate::packages::{self, TESTPMD};
use crate::program::Program;
use nix::sys::signal::Signal;
use output::{Link, PortStats};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time from the start of the program to its prompt; it zeroes its memory and waits for its ports.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from a command to its answer. The forwarding thread may take almost the whole processor from the answering
/// thread.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from `quit` to the end.
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Its prompt for commands.
const PROMPT: &str = "testpmd> ";
/// DPDK's directory for sockets and locks when it runs as root.
const RUNTIME_DIRECTORY: &str = "/var/run/dpdk";

/// The kind of its memory. vhost-user needs sharable memory, so plain heap will not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Anonymous files of huge pages, as in production. One file gives one vhost-user region.
    Huge,
    /// An anonymous file of ordinary pages: slower, and needs no set-up of the machine.
    Ordinary,
}

/// Its start-up configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// A name for messages.
    pub name: String,
    /// The processor of both its threads.
    pub cpu: usize,
    /// The kind of its memory.
    pub memory: Memory,
    /// Size of its memory, in MiB.
    pub memory_mib: u64,
    /// Its ports, in order (`--vdev`).
    pub vdevs: Vec<String>,
    /// Further arguments of DPDK's, before `--`.
    pub eal_args: Vec<String>,
    /// Arguments of its own, after `--`.
    pub args: Vec<String>,
}

/// A running testpmd.
#[derive(Debug)]
pub struct Testpmd {
    program: Program,
    prefix: String,
}

impl Config {
    /// Returns the command, and the prefix of its files.
    ///
    /// # Errors
    /// When DPDK is not there and cannot be installed.
    pub fn command(&self) -> Result<(Command, String)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("xtask-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let testpmd = packages::need(TESTPMD)?;
        // Its output is no terminal; without this, answers would wait in its buffer.
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(testpmd);
        command.args([
            "--lcores",
            &format!("(0,1)@{}", self.cpu),
            "--no-pci",
            "--no-telemetry",
            "--file-prefix",
            &prefix,
        ]);
        command.args(["-m", &self.memory_mib.to_string()]);
        match self.memory {
            Memory::Huge => command.args(["--in-memory", "--single-file-segments"]),
            Memory::Ordinary => command.arg("--no-huge"),
        };
        command.args(&self.eal_args);
        for vdev in &self.vdevs {
            command.args(["--vdev", vdev]);
        }
        command.args(["--", "-i", "--nb-cores=1", "--no-flush-rx"]).args(&self.args);
        Ok((command, prefix))
    }
}

impl Testpmd {
    /// Starts it without waiting for the prompt, as a port in server mode waits for its peer: [`Testpmd::wait_ready`]
    /// does.
    ///
    /// # Errors
    /// When it cannot be installed or started.
    pub fn start(config: &Config) -> Result<Self> {
        let (command, prefix) = config.command()?;
        Ok(Self { program: Program::start(&config.name, command, None)?, prefix })
    }

    /// Waits until it takes commands.
    ///
    /// # Errors
    /// When it is not ready in time, or ends.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.program.wait_for("its prompt", 0, READY_TIMEOUT, |text| text.contains(PROMPT).then_some(()))
    }

    /// Runs a command without waiting for its answer.
    ///
    /// # Errors
    /// When it has ended.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        self.program.say(command)
    }

    /// Runs a command and waits for the wanted part of its answer.
    ///
    /// # Errors
    /// When the answer does not come in time.
    pub fn ask<T>(&mut self, command: &str, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let mark = self.program.mark();
        self.program.say(command)?;
        self.program.wait_for(&format!("the answer to \"{command}\""), mark, ANSWER_TIMEOUT, find)
    }

    /// Returns a port's counters.
    ///
    /// # Errors
    /// When the answer does not come in time.
    pub fn port_stats(&mut self, port: usize) -> Result<PortStats> {
        self.ask(&format!("show port stats {port}"), |text| PortStats::parse(text, port))
    }

    /// Returns a port's link.
    ///
    /// # Errors
    /// When the answer does not come in time.
    pub fn link(&mut self, port: usize) -> Result<Link> {
        self.ask(&format!("show port info {port}"), Link::parse)
    }

    /// Returns the time of the forwarding thread per packet in nanoseconds, while it had packets.
    ///
    /// # Errors
    /// When the answer does not come in time.
    pub fn busy_ns_per_packet(&mut self) -> Result<f64> {
        self.ask("show fwd stats all", output::busy_ns_per_packet)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.program.signal(signal)
    }

    /// Stops forwarding.
    ///
    /// # Errors
    /// When it does not stop in time.
    pub fn stop_forwarding(&mut self) -> Result<()> {
        self.ask("stop", |text| (text.contains("\nDone.") || text.contains("not started")).then_some(()))
    }

    /// Ends it in good order, or else by force.
    pub fn quit(mut self) {
        // Dropping kills a program still running.
        let _ = self.program.say("stop");
        let _ = self.program.say("quit");
        let _ = self.program.wait_end(QUIT_TIMEOUT);
    }

    /// Ends it at once, as a crash would.
    pub fn crash(self) {
        drop(self);
    }

    /// Returns the end of its output, for a message.
    pub fn tail(&self) -> String {
        self.program.tail()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // The program itself is killed when the field is dropped; its lock files do not mind.
        let _ = std::fs::remove_dir_all(format!("{RUNTIME_DIRECTORY}/{}", self.prefix));
    }
}
