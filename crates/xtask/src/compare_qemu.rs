//! The same Linux guest behind QEMU's own TAP backend and behind offramp's vhost-user port, in turn.
//!
//! ```text
//!  guest, ttcp ── QEMU's virtio-net device ──────────────────────── TAP, namespace, ttcp
//!  guest, ttcp ── vhost-user ── offramp up, wire = { tap = … } ──── TAP, namespace, ttcp
//! ```
//!
//! Kernel, file system, memory, processors and the options of the card are the same, all offloads are on, and both
//! guests run the whole time; only one has traffic. QEMU's backend works in QEMU's own threads (vhost is off).

use crate::daemon::{self, Daemon};
use crate::failure::{Doing, Result, failed};
use crate::guest::{self, Extras, GuestArgs, Machine};
use crate::program::Program;
use crate::scratch::Scratch;
use crate::stats::median;
use crate::ttcp;
use offramp_ports::sys::{NetNs, confine};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// From the start of the traffic server to its first test.
const SETTLE: Duration = Duration::from_millis(200);
/// Where offramp's guest finds its port.
const SOCKET: &str = "vm0.sock";

/// TCP throughput of a guest behind QEMU's own TAP backend and behind offramp's vhost-user port.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Samples of each backend and direction, taken in turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Time that is counted in a sample, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    guest: GuestArgs,
}

/// Which way the data goes: `ttcp`'s word for it, said by the guest.
const DIRECTIONS: [(&str, &str); 2] = [("guest>host", "send"), ("host>guest", "receive")];

/// What is printed of a direction; throughputs are medians, counted by the receiver.
#[derive(Debug, Serialize)]
struct Row {
    direction: &'static str,
    samples: u32,
    offramp_bps: f64,
    qemu_tap_bps: f64,
    /// offramp's throughput in QEMU's.
    ratio: f64,
}

/// Boots both guests, takes the samples, and prints a line for each direction.
///
/// # Errors
/// When a guest or a program does not start, a sample is not complete, or a signal comes.
pub fn run(args: &Args) -> Result<bool> {
    let executable = daemon::build()?;
    let scratch = Scratch::new()?;
    let base = args.guest.base(Extras { programs: std::slice::from_ref(&executable), modules: &[] }, &scratch)?;
    let mut offramp = Side::offramp(&base, &executable, &scratch)?;
    let mut qemu_tap = Side::qemu_tap(&base, &executable)?;
    if !args.json {
        println!("{:12} {:>7} {:>13} {:>14} {:>7}", "direction", "samples", "offramp Mb/s", "QEMU TAP Mb/s", "ratio");
    }
    for (direction, option) in DIRECTIONS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..args.rounds {
            // Who goes first has no advantage in the long run.
            let mut sides = [(&mut offramp, &mut ours), (&mut qemu_tap, &mut theirs)];
            sides.rotate_left(round as usize % 2);
            for (side, samples) in sides {
                samples.push(side.sample(option, args.seconds)?);
            }
        }
        print(&row(direction, args.rounds, &ours, &theirs), args.json)?;
    }
    offramp.stop();
    qemu_tap.stop();
    Ok(true)
}

fn row(direction: &'static str, samples: u32, ours: &[f64], theirs: &[f64]) -> Row {
    let (offramp_bps, qemu_tap_bps) = (median(ours), median(theirs));
    Row { direction, samples, offramp_bps, qemu_tap_bps, ratio: offramp_bps / qemu_tap_bps }
}

fn print(row: &Row, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(row).doing("writing a row")?);
        return Ok(());
    }
    let mega = |bps: f64| bps / 1e6;
    let (offramp, qemu_tap) = (mega(row.offramp_bps), mega(row.qemu_tap_bps));
    println!("{:12} {:>7} {offramp:>13.0} {qemu_tap:>14.0} {:>7.2}", row.direction, row.samples, row.ratio);
    Ok(())
}

/// A guest, its backend, and a traffic server in the namespace on the other side. Dropped in this order.
struct Side {
    machine: Machine,
    _server: Program,
    daemon: Option<Daemon>,
    _ns: NetNs,
}

impl Side {
    fn offramp(base: &guest::Base, executable: &Path, scratch: &Scratch) -> Result<Self> {
        let ns = new_namespace()?;
        let socket = scratch.file(SOCKET);
        let tap = guest::TAP;
        let port =
            format!("[[port]]\nname = \"vm0\"\nhost = {{ vhost_user = \"{socket}\" }}\nwire = {{ tap = \"{tap}\" }}\n");
        let daemon = Daemon::start(executable, &port, scratch, &ns)?;
        let machine = base.boot(guest::vhost_user_network(&socket, 1, ""), &ns)?;
        Self::with_server(machine, Some(daemon), ns, executable)
    }

    fn qemu_tap(base: &guest::Base, executable: &Path) -> Result<Self> {
        let ns = new_namespace()?;
        let machine = base.boot(guest::qemu_tap_network(1), &ns)?;
        Self::with_server(machine, None, ns, executable)
    }

    fn with_server(machine: Machine, daemon: Option<Daemon>, ns: NetNs, executable: &Path) -> Result<Self> {
        guest::prepare_host(&ns, guest::MTU)?;
        let mut command = Command::new(executable);
        command.args(["ttcp", "--serve"]);
        confine(&mut command, Some(&ns), None).doing("preparing the traffic server")?;
        let server = Program::start("ttcp", command)?;
        crate::stop::sleep(SETTLE)?;
        Ok(Self { machine, _server: server, daemon, _ns: ns })
    }

    /// Throughput in bits per second.
    fn sample(&mut self, direction: &str, seconds: f64) -> Result<f64> {
        let host = guest::HOST;
        let command = format!("offramp ttcp --to {host} --seconds {seconds} --direction {direction} --json");
        throughput(&self.machine.run(&command)?)
    }

    fn stop(self) {
        self.machine.power_off();
        drop(self.daemon.map(Daemon::terminate));
    }
}

fn new_namespace() -> Result<NetNs> {
    NetNs::new().doing("making a network namespace (run as root)")
}

/// A guest's report; none at all is a failure.
fn throughput(printed: &str) -> Result<f64> {
    match ttcp::throughput_bps(printed) {
        Some(bps) if bps > 0.0 => Ok(bps),
        _ => failed(format!("ttcp in the guest reported no throughput:\n{}", printed.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_is_that_of_the_report() {
        let printed = "{\"event\":\"start\"}\n{\"event\":\"report\",\"throughput_bps\":7.5}\n";
        assert!((throughput(printed).unwrap() - 7.5).abs() < 1e-9);
        assert!(throughput("{\"event\":\"start\"}\n").is_err());
        assert!(throughput("{\"event\":\"report\",\"throughput_bps\":0.0}\n").is_err());
    }

    #[test]
    fn a_ratio_above_one_is_to_our_credit() {
        let row = row("guest>host", 3, &[3.0, 1.0, 2.0], &[1.0, 1.0, 9.0]);
        assert!((row.ratio - 2.0).abs() < 1e-9);
    }
}
