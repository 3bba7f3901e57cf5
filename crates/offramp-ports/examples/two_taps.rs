//! Two TAPs on a cable, each with an adapter: a minimal network adapter.
//!
//! ```sh
//! cargo run -p offramp-ports --example two_taps -- ofr0 ofr1 60     # as root; for 60 seconds
//! ip address add 198.18.0.1/24 dev ofr0                             # elsewhere, while it runs
//! ```
//!
//! The near adapter segments the kernel's super-frames from one TAP. Frames with IP packets of at most 1500 bytes cross
//! the cable. The far adapter coalesces the frames and delivers the result to the other TAP.

use offramp_adapter::cable::{CableConfig, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_offload::caps::Offloads;
use offramp_ports::sys::link;
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::worker::Worker;
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: two_taps TAP TAP SECONDS";
    let names = [arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?];
    let time = Duration::from_secs(arguments.next().ok_or(usage)?.parse()?);

    let config = AdapterConfig::default();
    let controls = [PortControl::new(&config), PortControl::new(&config)];
    let (near, far) = cable(&CableConfig::default());
    let mut pairs = Vec::new();
    let mut taps = Vec::new();
    for ((name, control), wire) in names.iter().zip(&controls).zip([near, far]) {
        let tap = Tap::open(&TapConfig::new(name))?;
        // Let the kernel leave checksums and super-frames of up to 64 KiB to the adapter.
        tap.offer(Offloads::all())?;
        link::set_up(name)?;
        let host = tap.queue(0).ok_or("a TAP has a queue")?;
        pairs.push(QueuePair::new(&config, control, 0, host, wire));
        taps.push(tap); // The interface exists as long as this handle.
    }
    // One thread polls both adapters, so that a frame stays in the processor's cache. The thread sleeps when idle.
    let worker = Worker::start("two-taps", pairs, None)?;
    println!("{} and {} are up", names[0], names[1]);
    std::thread::sleep(time);
    drop(worker);

    for (name, control) in names.iter().zip(&controls) {
        let queue = &control.queues()[0];
        let (sent, received) = (&queue.transmit, &queue.receive);
        println!(
            "{name}: sent {} frames of the wire in {} super-frames, received {} in {}, lost {}",
            sent.frames_out.get(),
            sent.host_frames.get(),
            received.frames_out.get(),
            received.host_frames.get(),
            sent.lost_total() + received.lost_total(),
        );
    }
    Ok(())
}
