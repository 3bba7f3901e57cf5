//! The backend of the guests' vhost-user sockets.

use super::case::{Case, Shape};
use offramp_testbed::failure::{Doing, Result};
use offramp_testbed::program::Program;
use offramp_testbed::testpmd::{Config, Memory, Testpmd};
use std::process::Command;
use std::time::Duration;

/// Maximum IP packet in bytes for offramp in these tests: the longest packet in the captures.
const MTU: u32 = 9000;
/// Time limit from the start of offramp until its ports exist.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of buffers of DPDK's backend, for 8 queues with 256 entries on two ports.
const BUFFERS: u32 = 16_384;
/// Memory of DPDK's backend in MiB.
const MEMORY_MIB: u64 = super::guest::MEMORY_MIB;
/// The backend's processor. The guests use the other processor.
const CPU: usize = 0;

/// The backend's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendKind {
    /// DPDK's own (`net_vhost`).
    Dpdk,
    /// offramp's vhost-user port.
    Offramp,
}

/// A running backend.
#[derive(Debug)]
pub enum Running {
    /// DPDK's backend.
    Dpdk(Testpmd),
    /// offramp's backend.
    Offramp(Program),
}

fn dpdk_config(case: &Case, sockets: &[String], memory: Memory) -> Config {
    let client = u8::from(case.guest_listens);
    let vdev = |(index, socket)| format!("net_vhost{index},iface={socket},queues={},client={client}", case.queues);
    let topology = match case.shape {
        Shape::Echo => "loop",
        Shape::Relay => "paired",
    };
    let args = vec![
        format!("--port-topology={topology}"),
        format!("--total-num-mbufs={BUFFERS}"),
        format!("--rxq={}", case.queues),
        format!("--txq={}", case.queues),
    ];
    let vdevs = sockets.iter().enumerate().map(vdev).collect();
    let name = "backend".to_owned();
    Config { name, cpu: CPU, memory, memory_mib: MEMORY_MIB, vdevs, eal_args: Vec::new(), args }
}

fn offramp_command(case: &Case, sockets: &[String]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().doing("finding this program")?);
    command.arg("vhost-relay").args((case.shape == Shape::Echo).then_some("--echo"));
    for socket in sockets {
        command.args(["--socket", socket]);
    }
    if case.guest_listens {
        command.arg("--client");
    }
    command.args(["--queues", &case.queues.to_string(), "--mtu", &MTU.to_string(), "--cpu", &CPU.to_string()]);
    Ok(command)
}

/// Returns the command that starts a backend.
///
/// # Errors
/// Returns an error if the backend's program does not exist.
pub fn command(kind: BackendKind, case: &Case, sockets: &[String], memory: Memory) -> Result<Command> {
    match kind {
        BackendKind::Dpdk => Ok(dpdk_config(case, sockets, memory).command()?.0),
        BackendKind::Offramp => offramp_command(case, sockets),
    }
}

impl Running {
    /// Starts a backend on these sockets.
    ///
    /// # Errors
    /// Returns an error if the backend cannot be started.
    pub fn start(kind: BackendKind, case: &Case, sockets: &[String], memory: Memory) -> Result<Self> {
        if !case.guest_listens {
            for socket in sockets {
                // The removal fails if the file does not exist.
                let _ = std::fs::remove_file(socket);
            }
        }
        match kind {
            BackendKind::Dpdk => Ok(Self::Dpdk(Testpmd::start(&dpdk_config(case, sockets, memory))?)),
            BackendKind::Offramp => {
                Ok(Self::Offramp(Program::start("offramp", offramp_command(case, sockets)?, None)?))
            }
        }
    }

    /// Waits until the backend forwards frames.
    ///
    /// # Errors
    /// Returns an error if the backend is not ready in time.
    pub fn wait_ready(&mut self) -> Result<()> {
        match self {
            Self::Dpdk(testpmd) => {
                testpmd.wait_ready()?;
                testpmd.tell("set fwd io retry")?;
                testpmd.tell("set burst tx delay 10 retry 100000")?;
                testpmd.tell("start")
            }
            Self::Offramp(program) => program.wait_ready(READY_TIMEOUT),
        }
    }

    /// Returns the end of the backend's output, for a message.
    pub fn tail(&self) -> String {
        match self {
            Self::Dpdk(testpmd) => testpmd.tail(),
            Self::Offramp(program) => program.tail(),
        }
    }
}
