//! The kit against a judge that is not ours: `dpdk-testpmd` with `net_vhost`, which sends every frame back.
//! Needs Debian's `dpdk-dev` and `librte-net-vhost23`; a huge page file system is not needed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use offramp_testkit::{DataPlacement, Guest, GuestBuilder, HeaderPlacement, TxLayout, VnetHeader};

/// A hang guard, far above what a loaded machine takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Memory that testpmd gets, in MiB.
const TESTPMD_MEMORY_MIB: &str = "128";
/// Packet buffers of testpmd.
const TESTPMD_MBUFS: &str = "--total-num-mbufs=4096";

/// A backend that sends every frame back to the queue pair on which it came.
struct Echo {
    process: Child,
    socket: PathBuf,
}

impl Echo {
    fn start(name: &str, queue_pairs: u16) -> Self {
        let socket = std::env::temp_dir().join(format!("offramp-testkit-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket); // Of a test that was killed.
        let vdev = format!("net_vhost0,iface={},queues={queue_pairs}", socket.display());
        let prefix = format!("offramp-testkit-{name}-{}", std::process::id());
        let process = Command::new("dpdk-testpmd")
            .args(["--lcores", "(0,1)@0", "--no-pci", "--no-huge", "--no-telemetry", "-m", TESTPMD_MEMORY_MIB])
            .args(["--file-prefix", &prefix, "--vdev", &vdev, "--", "--nb-cores=1", "--auto-start"])
            .args(["--port-topology=loop", "--forward-mode=io", "--no-flush-rx", TESTPMD_MBUFS])
            .args([format!("--rxq={queue_pairs}"), format!("--txq={queue_pairs}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting dpdk-testpmd (Debian: dpdk-dev, librte-net-vhost23)");
        Self { process, socket }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A frame of `len` bytes that no other seed gives.
fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) ^ (seed * 7) ^ (at >> 8)) as u8).collect()
}

/// Sends frames in the given layout, one by one and in bursts, and compares what comes back.
fn echo(guest: &mut Guest, pair: usize, layout: TxLayout, lens: &[usize], rx_buffer_len: usize) {
    let (rx, tx) = guest.pair(pair);
    if rx.in_flight() == 0 {
        rx.fill(64, rx_buffer_len);
    }
    tx.set_layout(layout);
    tx.set_compare(true);
    let frames: Vec<_> = lens.iter().enumerate().map(|(seed, &len)| frame(len, seed)).collect();
    for burst in [1, 3] {
        for frames in frames.chunks(burst) {
            for frame in frames {
                let half = frame.len() / 2;
                tx.stage(&VnetHeader::default(), &[&frame[..half], &frame[half..]]).expect("room for a burst");
            }
            tx.publish();
            for frame in frames {
                let received = rx.recv(PATIENCE);
                assert!(received.frame == *frame, "{layout:?}: {} bytes came back otherwise", frame.len());
                let buffers = (frame.len() + received.header.len()).div_ceil(rx_buffer_len);
                assert_eq!(received.chains.len(), buffers, "buffers of {} bytes", frame.len());
                assert!(received.visible_together);
            }
        }
    }
    tx.drain(PATIENCE);
}

/// Frame lengths from the smallest to the largest, with all around a border.
fn lens() -> Vec<usize> {
    (60..80).chain([127, 128, 500, 1024]).chain(1500..=1514).collect()
}

const LAYOUTS: [TxLayout; 5] = [
    TxLayout { header: HeaderPlacement::Own, data: DataPlacement::Joined, indirect: false },
    TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::Joined, indirect: false },
    TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::Parts, indirect: false },
    TxLayout { header: HeaderPlacement::Own, data: DataPlacement::Scattered(7), indirect: false },
    TxLayout { header: HeaderPlacement::Cut(3), data: DataPlacement::Parts, indirect: false },
];

fn echo_in_every_layout(guest: &mut Guest, rx_buffer_len: usize) {
    for layout in LAYOUTS {
        echo(guest, 0, layout, &lens(), rx_buffer_len);
    }
}

fn echo_with(name: &str, builder: &GuestBuilder, rx_buffer_len: usize) {
    let backend = Echo::start(name, 1);
    let mut guest = builder.connect(&backend.socket);
    echo_in_every_layout(&mut guest, rx_buffer_len);
    guest.stop().expect("stopping the rings");
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn split_rings_carry_every_layout() {
    echo_with("split", &Guest::builder().split(), 2048);
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn packed_rings_carry_every_layout() {
    echo_with("packed", &Guest::builder().packed(), 2048);
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn split_mergeable_frames_fill_several_small_buffers() {
    echo_with("split-merge", &Guest::builder().split().mergeable(true), 256);
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn packed_mergeable_frames_fill_several_small_buffers() {
    echo_with("packed-merge", &Guest::builder().packed().mergeable(true), 256);
}
