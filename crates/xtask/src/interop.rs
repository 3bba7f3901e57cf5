//! DPDK as the guest: tests every ring path of its virtio driver against a backend, and checks captures.
//!
//! The cases are from DPDK's test plans (`vm2vm_virtio_user`, `loopback_virtio_user_server_mode`,
//! `loopback_multi_queues`, `loopback_multi_paths_port_restart`). A guest forwards a capture into a virtio-user port,
//! and the frames from the port into another capture. The two captures must be equal.

mod backend;
mod case;
mod guest;

use crate::tally::{Only, Tally};
use backend::BackendKind;
use case::{Case, Event, Shape};
use guest::{Guest, GuestConfig};
use offramp_testbed::failure::{Doing, Result, failed, not_possible};
use offramp_testbed::program::{self, shown};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use offramp_testbed::testpmd::Memory;
use offramp_testkit::HugePages;
use std::time::{Duration, Instant};

/// Time limit from the start of a program until its socket exists.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit from the start of forwarding to the last frame.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval between two polls of counters.
const LOOK: Duration = Duration::from_millis(50);
/// Waiting time after the last expected frame, to detect an excess frame.
const QUIET: Duration = Duration::from_millis(150);
/// Huge pages for two guests and their backend, in MiB.
const HUGE_MIB: u64 = 3 * guest::MEMORY_MIB + 64;

/// Test every ring path of DPDK's virtio driver against a backend, judged by captures.
#[derive(clap::Args)]
pub struct Args {
    /// Run every case, not the short selection
    #[arg(long)]
    full: bool,
    /// The program at the other end of the socket
    #[arg(long, value_enum, default_value_t = BackendKind::Dpdk)]
    backend: BackendKind,
    #[command(flatten)]
    only: Only,
    /// Use huge pages (taken from the kernel and given back); ordinary pages otherwise
    #[arg(long)]
    huge: bool,
    /// Print the command lines of each case instead of running it
    #[arg(long)]
    print_commands: bool,
}

/// Runs the cases and prints a line for each. Returns `false` if a case failed.
///
/// # Errors
/// Returns an error if the machine cannot be prepared, or a signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let pages = if args.huge && !args.print_commands {
        Some(HugePages::of_mib(HUGE_MIB).doing("huge pages for DPDK (run as root)")?)
    } else {
        None
    };
    let memory = if args.huge { Memory::Huge } else { Memory::Ordinary };
    let cases = case::cases(args.full);
    let mut tally = Tally::default();
    for case in cases.iter().filter(|case| args.only.has(&case.name())) {
        if args.print_commands {
            print_commands(case, args.backend, memory)?;
            continue;
        }
        let began = Instant::now();
        tally.count(&case.name(), began, run_case(case, args.backend, memory))?;
    }
    drop(pages);
    if args.full && args.only.has_all() && !args.print_commands {
        let why = "DPDK's virtio-user lacks EVENT_IDX; guest-matrix tests EVENT_IDX with Linux' driver";
        tally.count("event index", Instant::now(), not_possible(why))?;
    }
    Ok(args.print_commands || tally.end("dpdk-interop"))
}

/// A case in progress: the guests, and the backend between them. The fields are dropped in order of declaration.
struct Bench<'a> {
    case: &'a Case,
    guests: Vec<Guest>,
    backend: Option<backend::Running>,
    kind: BackendKind,
    memory: Memory,
    scratch: Scratch,
}

fn guest_configs(case: &Case, memory: Memory, scratch: &Scratch) -> Vec<GuestConfig> {
    let count = match case.shape {
        Shape::Echo => 1,
        Shape::Relay => 2,
    };
    (0..count).map(|index| GuestConfig::new(case, index, memory, scratch)).collect()
}

fn print_commands(case: &Case, kind: BackendKind, memory: Memory) -> Result<()> {
    let scratch = Scratch::new()?;
    let guests = guest_configs(case, memory, &scratch);
    let sockets: Vec<_> = guests.iter().map(|guest| guest.socket.clone()).collect();
    println!("# {}", case.name());
    println!("{}", shown(&backend::command(kind, case, &sockets, memory)?));
    for guest in &guests {
        println!("{}", shown(&guest.testpmd().command()?.0));
    }
    Ok(())
}

fn run_case(case: &Case, kind: BackendKind, memory: Memory) -> Result<()> {
    let scratch = Scratch::new()?;
    let mut bench = Bench { case, guests: Vec::new(), backend: None, kind, memory, scratch };
    bench.set_up()?;
    bench.exchange()?;
    match case.event {
        Event::None => return Ok(()),
        Event::PortRestart => bench.guests.iter_mut().try_for_each(Guest::restart_port)?,
        Event::GuestReconnects => bench.restart_guests()?,
        Event::BackendReconnects => bench.restart_backend()?,
    }
    bench.exchange().map_err(|why| why.during(format!("after {}", case.event.name())))
}

impl Bench<'_> {
    fn sockets(&self) -> Vec<String> {
        guest_configs(self.case, self.memory, &self.scratch).into_iter().map(|guest| guest.socket).collect()
    }

    fn wait_for_sockets(&self) -> Result<()> {
        self.sockets().iter().try_for_each(|socket| program::wait_for_socket(socket, SOCKET_TIMEOUT))
    }

    fn set_up(&mut self) -> Result<()> {
        if self.case.guest_listens {
            // A listening guest first waits for its backend.
            self.start_guests()?;
            self.wait_for_sockets()?;
            self.start_backend()?;
        } else {
            self.start_backend()?;
            self.wait_for_sockets()?;
            self.start_guests()?;
        }
        self.wait_ready()
    }

    fn start_guests(&mut self) -> Result<()> {
        for config in guest_configs(self.case, self.memory, &self.scratch) {
            self.guests.push(Guest::start(config)?);
        }
        Ok(())
    }

    fn start_backend(&mut self) -> Result<()> {
        self.backend = Some(backend::Running::start(self.kind, self.case, &self.sockets(), self.memory)?);
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        self.guests.iter_mut().try_for_each(Guest::wait_ready)?;
        if let Some(backend) = &mut self.backend {
            backend.wait_ready()?;
        }
        self.guests.iter_mut().try_for_each(Guest::wait_link_up)
    }

    /// Makes every guest send its captures, and checks that each receiver gets exactly the sent frames.
    fn exchange(&mut self) -> Result<()> {
        for guest in self.guests.iter_mut().rev() {
            guest.begin()?;
        }
        let result = self.await_frames();
        for guest in &mut self.guests {
            guest.end()?;
        }
        result.and_then(|()| self.compare())
    }

    fn await_frames(&mut self) -> Result<()> {
        let end = Instant::now() + DELIVERY_TIMEOUT;
        let count = self.guests.len();
        loop {
            let mut arrived = true;
            for index in 0..count {
                let expected = self.guests[sender_of(index, count)].sent_frames() as u64;
                let delivered = self.guests[index].delivered()?;
                if delivered < expected {
                    arrived = false;
                }
                if delivered < expected && Instant::now() >= end {
                    let backend = self.backend.as_ref().map(backend::Running::tail).unwrap_or_default();
                    let guest = self.guests[index].tail();
                    return failed(format!(
                        "guest {index} got {delivered} of {expected} frames within {DELIVERY_TIMEOUT:?}{guest}{backend}"
                    ));
                }
            }
            if arrived {
                return stop::sleep(QUIET);
            }
            stop::sleep(LOOK)?;
        }
    }

    fn compare(&self) -> Result<()> {
        for (index, guest) in self.guests.iter().enumerate() {
            let sender = &self.guests[sender_of(index, self.guests.len())];
            guest.compare_with(sender)?;
        }
        Ok(())
    }

    fn restart_guests(&mut self) -> Result<()> {
        for guest in self.guests.drain(..) {
            guest.crash();
        }
        self.start_guests()?;
        self.wait_ready()
    }

    fn restart_backend(&mut self) -> Result<()> {
        self.backend = None;
        self.guests.iter_mut().try_for_each(Guest::wait_link_down)?;
        self.start_backend()?;
        self.wait_ready()?;
        self.guests.iter_mut().try_for_each(Guest::rewind)
    }
}

/// Returns the sender of a guest's received frames: the same guest for an echo, the other guest for a relay.
fn sender_of(receiver: usize, guests: usize) -> usize {
    guests - 1 - receiver
}
