//! A guest: a testpmd between capture files and its virtio-user port. The testpmd forwards one capture into the port,
//! and the port's frames into another capture.

use super::case::Case;
use crate::pcap::{self, Order};
use offramp_testbed::failure::{Result, failed};
use offramp_testbed::frames;
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use offramp_testbed::testpmd::output::Link;
use offramp_testbed::testpmd::{Config, Memory, Testpmd};
use std::time::Duration;

/// Memory of one guest in MiB, for the buffers of 8 queues with 256 entries and for DPDK itself.
pub const MEMORY_MIB: u64 = 256;
/// Number of buffers of one guest, for rings of 8 queues on two ports and for frames in flight.
const BUFFERS: u32 = 16_384;
/// Index of the virtio-user port (the first `--vdev`).
const VIRTIO_PORT: usize = 0;
/// Index of the capture port (the second `--vdev`).
const PCAP_PORT: usize = 1;
/// Time limit from the start or end of the backend to the change of the guest's link.
const LINK_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval between two polls of the link.
const LOOK: Duration = Duration::from_millis(100);
/// The guests' processor. The backend uses the other processor.
const CPU: usize = 1;

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    index: usize,
    case: Case,
    memory: Memory,
    /// Path of the guest's vhost-user socket.
    pub socket: String,
    sent: Vec<String>,
    received: Vec<String>,
}

impl GuestConfig {
    /// Returns the configuration of guest `index` in a case.
    pub fn new(case: &Case, index: usize, memory: Memory, scratch: &Scratch) -> Self {
        let file = |kind: &str, queue| scratch.file(&format!("{kind}-{index}-{queue}.pcap"));
        Self {
            index,
            case: *case,
            memory,
            socket: scratch.file(&format!("guest-{index}.sock")),
            sent: (0..case.queues).map(|queue| file("sent", queue)).collect(),
            received: (0..case.queues).map(|queue| file("received", queue)).collect(),
        }
    }

    /// Returns the configuration of the guest's testpmd.
    pub fn testpmd(&self) -> Config {
        let Case { path, queues, guest_listens, .. } = self.case;
        let virtio = format!(
            "net_virtio_user0,path={},queues={queues},queue_size={},server={},{}",
            self.socket,
            path.entries,
            u8::from(guest_listens),
            path.arguments
        );
        let captures = |key: &str, files: &[String]| {
            files.iter().map(|file| format!(",{key}={file}")).collect::<Vec<_>>().concat()
        };
        let pcap = format!("net_pcap0{}{}", captures("rx_pcap", &self.sent), captures("tx_pcap", &self.received));
        let mut args = vec![
            "--port-topology=paired".to_owned(),
            format!("--total-num-mbufs={BUFFERS}"),
            format!("--rxq={queues}"),
            format!("--txq={queues}"),
        ];
        if path.entries.is_power_of_two() {
            args.extend([format!("--rxd={}", path.entries), format!("--txd={}", path.entries)]);
        }
        Config {
            name: format!("guest {}", self.index),
            cpu: CPU,
            memory: self.memory,
            memory_mib: MEMORY_MIB,
            vdevs: vec![virtio, pcap],
            // The vectorized paths of packed rings exist only for AVX-512.
            eal_args: vec!["--force-max-simd-bitwidth=512".to_owned()],
            args,
        }
    }
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    config: GuestConfig,
    frames: Vec<Vec<Vec<u8>>>,
    testpmd: Testpmd,
}

impl Guest {
    /// Writes the guest's captures, and starts the guest.
    ///
    /// # Errors
    /// Returns an error if writing or starting fails.
    pub fn start(config: GuestConfig) -> Result<Self> {
        let seed = |queue| 1 + config.index as u64 * 1000 + queue as u64;
        let frames: Vec<_> =
            (0..config.sent.len()).map(|queue| frames::mixed(seed(queue), config.case.path.mergeable)).collect();
        for (path, frames) in config.sent.iter().zip(&frames) {
            pcap::write(path, frames)?;
        }
        let testpmd = Testpmd::start(&config.testpmd())?;
        Ok(Self { config, frames, testpmd })
    }

    /// Waits until the guest accepts commands.
    ///
    /// # Errors
    /// Returns an error if the guest is not ready in time.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.testpmd.wait_ready()?;
        // Retry frames that find no room, so that only the backend can lose frames.
        self.testpmd.tell("set fwd io retry")?;
        self.testpmd.tell("set burst tx delay 10 retry 100000")
    }

    /// Waits until the virtio-user port has a link.
    ///
    /// # Errors
    /// Returns an error if the port has no link in time.
    pub fn wait_link_up(&mut self) -> Result<()> {
        self.wait_link(Link::Up)
    }

    /// Waits until the virtio-user port notices that the backend has ended.
    ///
    /// # Errors
    /// Returns an error if the port does not notice in time.
    pub fn wait_link_down(&mut self) -> Result<()> {
        self.wait_link(Link::Down)
    }

    fn wait_link(&mut self, wanted: Link) -> Result<()> {
        let found = stop::until(LINK_TIMEOUT, LOOK, || Ok((self.testpmd.link(VIRTIO_PORT)? == wanted).then_some(())))?;
        let (index, tail) = (self.config.index, self.testpmd.tail());
        found.map_or_else(
            || failed(format!("guest {index}: its link is not {wanted:?} within {LINK_TIMEOUT:?}{tail}")),
            Ok,
        )
    }

    /// Starts sending and receiving.
    ///
    /// # Errors
    /// Returns an error if the guest has ended.
    pub fn begin(&mut self) -> Result<()> {
        self.testpmd.tell("clear port stats all")?;
        self.testpmd.tell("start")
    }

    /// Stops sending and receiving.
    ///
    /// # Errors
    /// Returns an error if the guest does not stop in time.
    pub fn end(&mut self) -> Result<()> {
        self.testpmd.stop_forwarding()
    }

    /// Returns the number of frames that the guest sends in one exchange.
    pub fn sent_frames(&self) -> usize {
        self.frames.iter().map(Vec::len).sum()
    }

    /// Returns the number of frames received and written to captures.
    ///
    /// # Errors
    /// Returns an error if the guest does not answer.
    pub fn delivered(&mut self) -> Result<u64> {
        Ok(self.testpmd.port_stats(PCAP_PORT)?.tx_packets)
    }

    /// Stops and starts all ports of the guest, which sets up new rings and restarts the captures.
    ///
    /// # Errors
    /// Returns an error if a port does not start.
    pub fn restart_port(&mut self) -> Result<()> {
        self.restart("all")
    }

    /// Restarts the guest's captures.
    ///
    /// # Errors
    /// Returns an error if the port does not start.
    pub fn rewind(&mut self) -> Result<()> {
        self.restart(&PCAP_PORT.to_string())
    }

    fn restart(&mut self, ports: &str) -> Result<()> {
        let done = |text: &str| text.contains("Done\n").then_some(());
        self.testpmd.ask(&format!("port stop {ports}"), done)?;
        self.testpmd.ask(&format!("port start {ports}"), done)?;
        self.wait_link_up()
    }

    /// Checks that the guest received exactly the frames sent by `sender`.
    ///
    /// # Errors
    /// Returns an error that describes the first difference.
    pub fn compare_with(&self, sender: &Self) -> Result<()> {
        let received = self.config.received.iter().map(|path| pcap::read(path)).collect::<Result<Vec<_>>>()?;
        // With several queues, a backend can put a flow on any queue.
        let order = if received.len() == 1 { Order::Kept } else { Order::Any };
        let compared = pcap::compare(&sender.frames.concat(), &received.concat(), order);
        compared.map_err(|why| why.during(format!("guest {}", self.config.index)))
    }

    /// Kills the guest without notice to the backend.
    pub fn crash(self) {
        self.testpmd.crash();
    }

    /// Returns the end of the guest's output, for a message.
    pub fn tail(&self) -> String {
        self.testpmd.tail()
    }
}
