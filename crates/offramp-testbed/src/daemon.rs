//! The `offramp` program, built and run as a user would do it.

use crate::cargo;
use crate::failure::{Doing, Result};
use crate::program::{self, Program};
use crate::scratch::Scratch;
use crate::stop;
use nix::sys::signal::Signal;
use offramp_ports::sys::NetNs;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Maximum time from the start of the daemon to its first answer on the control socket.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Poll interval while the harness waits for the daemon's first answer.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum time from SIGTERM to the daemon's end. The daemon itself waits up to three seconds for hosts without free
/// buffers.
const END_TIMEOUT: Duration = Duration::from_secs(8);

/// Builds `offramp` with this program's Cargo profile, unless already built. Returns the path of the executable.
///
/// # Errors
/// Returns an error if the build fails.
pub fn build() -> Result<PathBuf> {
    let profile = if cfg!(debug_assertions) {
        eprintln!("offramp is a debug build, like this program: its speed is not comparable; use --release");
        "dev"
    } else {
        "release"
    };
    cargo::build(&["build", "--profile", profile, "--package", "offramp", "--bin", "offramp"], &[])
}

/// Nice value of a daemon that serves guests.
const NICE: &str = "-15";

/// A running `offramp up`. Dropping the value kills the daemon with SIGKILL.
#[derive(Debug)]
pub struct Daemon {
    program: Program,
    executable: PathBuf,
    control: String,
}

impl Daemon {
    /// Starts the daemon in a namespace and waits until it answers. `ports` is the configuration file's text for ports
    /// and switches, without `[daemon]`.
    ///
    /// # Errors
    /// Returns an error if the daemon ends, or does not answer in time.
    pub fn start(executable: &Path, ports: &str, scratch: &Scratch, ns: &NetNs) -> Result<Self> {
        let (file, control) = (scratch.file("offramp.toml"), scratch.file("control.sock"));
        std::fs::write(&file, format!("[daemon]\ncontrol = \"{control}\"\nuser = \"root\"\n\n{ports}")).doing(&file)?;
        let mut command = Command::new(executable);
        command.args(["up", &file]);
        let program = Program::start("offramp", command, Some(ns))?;
        let mut daemon = Self { program, executable: executable.to_owned(), control };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let answered = stop::until(READY_TIMEOUT, LOOK, || {
            if self.show().is_err() && !self.program.has_ended()? {
                return Ok(None);
            }
            Ok(Some(()))
        });
        answered.and_then(|_| self.show()).map_err(|why| {
            let tail = self.program.tail();
            why.map(|why| format!("the daemon does not answer: {why}{tail}"))
        })?;
        Ok(())
    }

    /// Returns the daemon's process number.
    pub fn id(&self) -> u32 {
        self.program.id()
    }

    /// Sends the daemon a signal.
    ///
    /// # Errors
    /// Returns an error if the daemon has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.program.signal(signal)
    }

    /// Raises the priority of the daemon's threads above guests, as `Nice=-15` does in a systemd service. Without the
    /// needed privilege, the priority stays unchanged.
    ///
    /// # Errors
    /// Returns an error if the daemon's threads cannot be listed.
    pub fn prefer(&self) -> Result<()> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).doing("the daemon's threads")?;
        let threads = tasks.flatten().map(|task| task.file_name());
        Command::new("renice").args(["-n", NICE, "-p"]).args(threads).output().doing("running renice")?;
        Ok(())
    }

    /// Returns the JSON output of `offramp show --json` for all ports.
    ///
    /// # Errors
    /// Returns an error if the daemon does not answer.
    pub fn show(&self) -> Result<Value> {
        self.ask(&["show", "--json", "--interval", "0"])
    }

    /// Switches features of a port, as `offramp set PORT FEATURE on|off …` does.
    ///
    /// # Errors
    /// Returns an error if the daemon refuses the change.
    pub fn set(&self, port: &str, features: &[&str]) -> Result<()> {
        self.ask(&[&["set", port][..], features, &["--json"]].concat()).map(drop)
    }

    /// Starts `offramp capture` of a port's packets into `file` (pcapng), `snap_len` bytes of each. SIGTERM or the drop
    /// of the returned [`Program`] ends the capture.
    ///
    /// # Errors
    /// Returns an error if the capture does not start.
    pub fn capture(&self, port: &str, file: &str, snap_len: usize) -> Result<Program> {
        let mut command = Command::new(&self.executable);
        command.args(["capture", port, "-w", file, "--snaplen", &snap_len.to_string(), "--control", &self.control]);
        Program::start("offramp capture", command, None)
    }

    fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(&self.executable);
        command.args(arguments).args(["--control", &self.control]);
        serde_json::from_str(&program::output(command, None)?).doing("reading the daemon's answer")
    }

    /// Asks the daemon to end. Returns the daemon's last output.
    pub fn terminate(self) -> String {
        self.program.terminate(END_TIMEOUT)
    }
}
