//! A learning switch between TAPs and a guest: any host port can be attached to a switch.
//!
//! ```sh
//! cargo run -p offramp-ports --example switch -- 60 /tmp/vm0.sock ofr0 ofr1     # as root; for 60 seconds
//! ```
//!
//! A guest connects to the socket as to any vhost-user backend (docs/guests.md). A super-frame passes unchanged to a
//! port that accepts super-frames, and is segmented for any other port.

use offramp_adapter::switch::{PortConfig, Switch, SwitchConfig};
use offramp_offload::caps::Offloads;
use offramp_ports::sys::link;
use offramp_ports::tap::{Tap, TapConfig};
use offramp_ports::vhost_user::{VhostPort, VhostUser, VhostUserConfig};
use offramp_ports::worker::{HostIo, Worker};
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: switch SECONDS SOCKET TAP...";
    let time = Duration::from_secs(arguments.next().ok_or(usage)?.parse()?);
    let socket = arguments.next().ok_or(usage)?;

    let switch: Switch<Box<dyn HostIo + Send>> = Switch::new(&SwitchConfig::default());
    let control = switch.control().clone();
    let mut guest = VhostUser::open(&VhostUserConfig::new(&socket))?;
    let queue = guest.queue(0).ok_or("a guest has a queue pair")?;
    let host = VhostPort::new(vec![queue]).ok_or("a guest has a queue pair")?;
    let mut ports = vec![(socket.clone(), control.add(Box::new(host), &PortConfig::default())?)];
    let mut taps = Vec::new();
    for name in arguments {
        let tap = Tap::open(&TapConfig::new(&name))?;
        tap.offer(Offloads::all())?;
        link::set_up(&name)?;
        ports.push((name, control.add(Box::new(tap.port()), &PortConfig::default())?));
        taps.push(tap); // The interface exists as long as this handle.
    }
    let worker = Worker::start("switch", vec![switch], None)?;
    println!("{} ports are up", ports.len());
    std::thread::sleep(time);
    drop(worker);

    for (name, port) in &ports {
        let stats = port.stats();
        println!(
            "{name}: sent {} frames, received {}, {} stations, lost {}",
            stats.transmit.frames_out.get(),
            stats.receive.frames_out.get(),
            port.stations(),
            stats.transmit.lost_total() + stats.receive.lost_total(),
        );
    }
    Ok(())
}
