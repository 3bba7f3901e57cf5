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

/// Maximum time from the start of the program to its prompt. Before the prompt, testpmd zeroes its memory and waits for
/// its ports.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time from a command to its answer. The forwarding thread shares the processor with the answering thread, and
/// can take almost all of the processor's time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time from the `quit` command to the end of the process.
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
/// testpmd's command prompt.
const PROMPT: &str = "testpmd> ";
/// DPDK's directory for sockets and locks when DPDK runs as root.
const RUNTIME_DIRECTORY: &str = "/var/run/dpdk";

/// The kind of testpmd's memory. vhost-user needs sharable memory, so this type has no variant for heap memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Anonymous files of huge pages, as in production. Each file becomes one vhost-user region.
    Huge,
    /// An anonymous file of ordinary pages. Ordinary pages are slower than huge pages, but need no set-up of the
    /// machine.
    Ordinary,
}

/// testpmd's start-up configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the process in error messages.
    pub name: String,
    /// Number of the processor for both testpmd threads.
    pub cpu: usize,
    /// Kind of testpmd's memory.
    pub memory: Memory,
    /// Size of testpmd's memory, in MiB.
    pub memory_mib: u64,
    /// testpmd's ports in order, one `--vdev` argument each.
    pub vdevs: Vec<String>,
    /// Further arguments of DPDK, placed before `--`.
    pub eal_args: Vec<String>,
    /// Further arguments of testpmd, placed after `--`.
    pub args: Vec<String>,
}

/// A running testpmd.
#[derive(Debug)]
pub struct Testpmd {
    program: Program,
    prefix: String,
}

impl Config {
    /// Returns the command line, and the prefix of DPDK's runtime files.
    ///
    /// # Errors
    /// Returns an error if DPDK is missing and cannot be installed.
    pub fn command(&self) -> Result<(Command, String)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("xtask-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let testpmd = packages::need(TESTPMD)?;
        // testpmd's output is a pipe, not a terminal. Without line buffering, answers would wait in testpmd's buffer.
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
    /// Starts testpmd without waiting for its prompt, because a port in server mode first waits for its peer.
    /// [`Testpmd::wait_ready`] waits for the prompt.
    ///
    /// # Errors
    /// Returns an error if testpmd cannot be installed or started.
    pub fn start(config: &Config) -> Result<Self> {
        let (command, prefix) = config.command()?;
        Ok(Self { program: Program::start(&config.name, command, None)?, prefix })
    }

    /// Waits until testpmd accepts commands.
    ///
    /// # Errors
    /// Returns an error if testpmd ends, or shows no prompt in time.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.program.wait_for("its prompt", 0, READY_TIMEOUT, |text| text.contains(PROMPT).then_some(()))
    }

    /// Runs a command without waiting for its answer.
    ///
    /// # Errors
    /// Returns an error if testpmd has ended.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        self.program.say(command)
    }

    /// Runs a command and waits for the part of the answer selected by `find`.
    ///
    /// # Errors
    /// Returns an error if `find` finds nothing in time.
    pub fn ask<T>(&mut self, command: &str, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        let mark = self.program.mark();
        self.program.say(command)?;
        self.program.wait_for(&format!("the answer to \"{command}\""), mark, ANSWER_TIMEOUT, find)
    }

    /// Returns a port's counters.
    ///
    /// # Errors
    /// Returns an error if testpmd does not answer in time.
    pub fn port_stats(&mut self, port: usize) -> Result<PortStats> {
        self.ask(&format!("show port stats {port}"), |text| PortStats::parse(text, port))
    }

    /// Returns the link state of a port.
    ///
    /// # Errors
    /// Returns an error if testpmd does not answer in time.
    pub fn link(&mut self, port: usize) -> Result<Link> {
        self.ask(&format!("show port info {port}"), Link::parse)
    }

    /// Returns the busy time of the forwarding thread per packet, in nanoseconds.
    ///
    /// # Errors
    /// Returns an error if testpmd does not answer in time.
    pub fn busy_ns_per_packet(&mut self) -> Result<f64> {
        self.ask("show fwd stats all", output::busy_ns_per_packet)
    }

    /// Sends testpmd a signal.
    ///
    /// # Errors
    /// Returns an error if testpmd has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.program.signal(signal)
    }

    /// Stops forwarding.
    ///
    /// # Errors
    /// Returns an error if testpmd does not stop forwarding in time.
    pub fn stop_forwarding(&mut self) -> Result<()> {
        self.ask("stop", |text| (text.contains("\nDone.") || text.contains("not started")).then_some(()))
    }

    /// Ends testpmd with `quit`, or kills testpmd after a timeout.
    pub fn quit(mut self) {
        // The drop of `self` kills testpmd if the program still runs.
        let _ = self.program.say("stop");
        let _ = self.program.say("quit");
        let _ = self.program.wait_end(QUIT_TIMEOUT);
    }

    /// Kills testpmd at once. The peer of testpmd cannot distinguish the kill from a crash.
    pub fn crash(self) {
        drop(self);
    }

    /// Returns the last output of testpmd, for an error message.
    pub fn tail(&self) -> String {
        self.program.tail()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // The program is killed after this removal, when the field `program` is dropped. Lock files of a running
        // program may be removed.
        let _ = std::fs::remove_dir_all(format!("{RUNTIME_DIRECTORY}/{}", self.prefix));
    }
}
