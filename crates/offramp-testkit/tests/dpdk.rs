//! Tests the test kit with an independent backend: `dpdk-testpmd` with `net_vhost`, which sends every frame back. The
//! tests need Debian's `dpdk-dev` and `librte-net-vhost23`, but no huge page file system.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use offramp_testkit::{
    Buffer, DataPlacement, Dialect, Guest, GuestBuilder, HeaderPlacement, RegionSpec, TxLayout, VnetHeader,
};

/// Time limit against hangs, far above the time needed on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Memory of testpmd in MiB.
const TESTPMD_MEMORY_MIB: &str = "128";
/// Option for the number of testpmd's packet buffers.
const TESTPMD_MBUFS: &str = "--total-num-mbufs=4096";

/// A testpmd process that sends every frame back to its queue pair.
struct Echo {
    process: Child,
    /// Directory of the socket and of testpmd's files.
    directory: PathBuf,
    socket: PathBuf,
}

impl Echo {
    fn start(name: &str, queue_pairs: u16) -> Self {
        let directory = std::env::temp_dir().join(format!("offramp-testkit-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("making a directory");
        let socket = directory.join("sock");
        let vdev = format!("net_vhost0,iface={},queues={queue_pairs}", socket.display());
        let process = Command::new("dpdk-testpmd")
            .args(["--lcores", "(0,1)@0", "--no-pci", "--no-huge", "--no-telemetry", "-m", TESTPMD_MEMORY_MIB])
            .args(["--vdev", &vdev, "--", "--nb-cores=1", "--auto-start"])
            .args(["--port-topology=loop", "--forward-mode=io", "--no-flush-rx", TESTPMD_MBUFS])
            .args([format!("--rxq={queue_pairs}"), format!("--txq={queue_pairs}")])
            .env("RUNTIME_DIRECTORY", &directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting dpdk-testpmd (Debian: dpdk-dev, librte-net-vhost23)");
        Self { process, directory, socket }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Builds a frame of `len` bytes that depends on `seed`.
fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) ^ (seed * 7) ^ (at >> 8)) as u8).collect()
}

/// Sends frames in the given layout, one by one and in bursts, and compares the returned frames.
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

/// Returns frame lengths from the smallest to the largest, with all lengths around the minimum and the maximum.
fn lens() -> Vec<usize> {
    (60..80).chain([127, 128, 500, 1024]).chain(1500..=1514).collect()
}

const LAYOUTS: [TxLayout; 5] = [
    TxLayout { header: HeaderPlacement::Own, data: DataPlacement::OneBuffer, indirect: false },
    TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::OneBuffer, indirect: false },
    TxLayout { header: HeaderPlacement::WithData, data: DataPlacement::Parts, indirect: false },
    TxLayout { header: HeaderPlacement::Own, data: DataPlacement::Scattered(7), indirect: false },
    TxLayout { header: HeaderPlacement::Split(3), data: DataPlacement::Parts, indirect: false },
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

/// Returns builders for split and packed rings, each with a name for the backend.
fn both(name: &str) -> [(String, GuestBuilder); 2] {
    [(format!("{name}-split"), Guest::builder().split()), (format!("{name}-packed"), Guest::builder().packed())]
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn rings_carry_every_layout() {
    for (name, builder) in both("layout") {
        echo_with(&name, &builder, 2048);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn mergeable_frames_fill_several_small_buffers() {
    for (name, builder) in both("merge") {
        echo_with(&name, &builder.mergeable(true), 256);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn indirect_tables_hold_frames_in_many_pieces() {
    for (name, builder) in both("indirect") {
        let backend = Echo::start(&name, 1);
        let mut guest = builder.indirect(true).connect(&backend.socket);
        for layout in LAYOUTS {
            echo(&mut guest, 0, TxLayout { indirect: true, ..layout }, &lens(), 2048);
        }
        echo_in_every_layout(&mut guest, 2048);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn frames_larger_than_a_packet_buffer_come_back_in_chains() {
    for (name, builder) in both("large") {
        let backend = Echo::start(&name, 1);
        let mut guest = builder.mergeable(true).queue_size(128).connect(&backend.socket);
        let layout = TxLayout { data: DataPlacement::Scattered(4), ..TxLayout::default() };
        echo(&mut guest, 0, layout, &[2_034, 2_048, 4_096, 8_000, 9_014], 1024);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn interrupts_wake_with_and_without_event_idx() {
    for event_idx in [false, true] {
        for (name, builder) in both(&format!("interrupt-{event_idx}")) {
            echo_with(&name, &builder.interrupts(true).event_idx(event_idx), 2048);
        }
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn chains_are_used_in_order() {
    for (name, builder) in both("order") {
        echo_with(&name, &builder.in_order(true).mergeable(true), 512);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn packed_rings_of_any_size_wrap() {
    for size in [33, 100, 255, 257] {
        echo_with(&format!("size-{size}"), &Guest::builder().packed().queue_size(size), 2048);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn handshakes_in_the_order_of_virtio_user_bring_the_device_up() {
    for (name, builder) in both("dialect") {
        echo_with(&name, &builder.dialect(Dialect::Dpdk), 2048);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn memory_of_two_regions_is_one_for_the_guest() {
    // The rings do not fit into the first region, so the allocation continues in the second region.
    let regions = [RegionSpec::new(0x4000_0000, 0x4000), RegionSpec::new(0x4000_4000, 64 << 20)];
    for (name, builder) in both("regions") {
        echo_with(&name, &builder.memory(&regions), 2048);
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn a_buffer_may_lie_across_the_border_of_two_regions() {
    let regions = [RegionSpec::new(0x4000_0000, 16 << 20), RegionSpec::new(0x4100_0000, 16 << 20)];
    for (name, builder) in both("border") {
        let backend = Echo::start(&name, 1);
        let mut guest = builder.memory(&regions).connect(&backend.socket);
        let memory = guest.memory().clone();
        let frame = frame(60, 3);
        guest.rx(0).fill(64, 2048);
        for at in memory.border() - 71..memory.border() {
            memory.write(at, &[&[0; 12], &frame[..]].concat());
            guest.tx(0).ring().add(&[Buffer::readable(at, 72)], &[]).unwrap();
            guest.tx(0).publish();
            assert_eq!(guest.rx(0).recv(PATIENCE).frame, frame);
            guest.tx(0).drain(PATIENCE);
        }
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn queue_pairs_echo_each_for_itself() {
    for (name, builder) in both("pairs") {
        let backend = Echo::start(&name, 2);
        let mut guest = builder.queue_pairs(2).connect(&backend.socket);
        for pair in [1, 0, 1] {
            echo(&mut guest, pair, LAYOUTS[0], &lens(), 2048);
        }
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn rings_go_on_where_they_were_stopped() {
    for (name, builder) in both("restart") {
        let backend = Echo::start(&name, 1);
        let mut guest = builder.connect(&backend.socket);
        for _ in 0..3 {
            echo(&mut guest, 0, LAYOUTS[0], &lens(), 2048);
            let bases = guest.stop().expect("stopping the rings");
            guest.start_at(&bases).expect("starting the rings again");
        }
    }
}

#[test]
#[ignore = "needs dpdk-testpmd"]
fn a_guest_that_connects_again_goes_on() {
    for (name, builder) in both("reconnect") {
        let backend = Echo::start(&name, 1);
        let mut guest = builder.connect(&backend.socket);
        for reset in [true, false, true, false] {
            echo(&mut guest, 0, LAYOUTS[0], &lens(), 2048);
            guest.stop().expect("stopping the rings");
            if reset {
                guest.reset_rings();
            }
            guest.reconnect(&backend.socket);
        }
        echo(&mut guest, 0, LAYOUTS[0], &lens(), 2048);
    }
}
