//! Two adapters connected by a cable, with a vhost-user port as one host, and a vhost-user port or a TAP as the other
//! host. With `--echo`, the program runs one adapter with a wire that returns every frame.

use crate::adapters::open_tap;
use crate::seam::{self, OfferArgs};
use offramp_adapter::cable::{CableConfig, CableEnd, cable};
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::pair::{PortControl, QueuePair};
use offramp_adapter::port::PortError;
use offramp_offload::caps::Offloads;
use offramp_offload::coalesce::CoalesceConfig;
use offramp_ports::sys::cpu;
use offramp_ports::tap::{Tap, TapConfig, TapQueue};
use offramp_ports::vhost_user::{VhostQueue, VhostUser};
use offramp_ports::worker::{HostIo, Task, Worker};
use offramp_testbed::echo::Echo;
use offramp_testbed::failure::{Doing, Result, failed};
use offramp_testbed::stop;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two checks for signals.
const LOOK: Duration = Duration::from_millis(50);
/// Number of rounds of the echo between two checks for signals.
const ROUNDS_PER_LOOK: u32 = 1024;
/// The name of the worker thread.
const WORKER_NAME: &str = "xtask-relay";

/// Two adapters with a cable between them: guest to guest, or guest to a TAP.
#[derive(clap::Args)]
pub struct Args {
    /// A vhost-user socket: two for guest to guest, one with --tap or --echo
    #[arg(long = "socket", value_name = "PATH", required = true)]
    sockets: Vec<PathBuf>,
    /// The TAP interface to make at the other end
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// Send the guest's frames back
    #[arg(long, conflicts_with = "tap")]
    echo: bool,
    /// Connect to the sockets, with retries, instead of listening
    #[arg(long)]
    client: bool,
    /// Queue pairs of each adapter
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Maximum IP bytes of a frame on the cable
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Maximum time an adapter holds a frame for coalescing, in microseconds; 0: until the end of the batch
    #[arg(long, default_value_t = 0)]
    hold_usecs: u32,
    /// Give the TAP every frame unchanged, with an unverified checksum
    #[arg(long, requires = "tap")]
    tap_without_rx_checksum: bool,
    #[command(flatten)]
    offer: OfferArgs,
    /// The processor for the thread of both adapters
    #[arg(long)]
    cpu: Option<usize>,
}

/// Runs until a signal arrives.
///
/// # Errors
/// Returns an error if a port cannot be opened or the worker cannot start.
pub fn run(args: &Args) -> Result<()> {
    let coalesce = CoalesceConfig { hold_ns: u64::from(args.hold_usecs) * 1000, ..CoalesceConfig::default() };
    let config =
        AdapterConfig { mtu: usize::from(args.mtu), queues: args.queues, coalesce, ..AdapterConfig::default() };
    config.check().doing("the adapter's configuration")?;
    // The ports and the TAP must outlive the worker.
    let mut ports = Vec::new();
    let mut hosts = Vec::new();
    for socket in &args.sockets {
        let (port, queues) = seam::open(socket, args.client, args.queues, args.mtu, &args.offer)?;
        ports.push(port);
        hosts.push(queues);
    }
    if args.echo {
        let [queues] = <[_; 1]>::try_from(hosts).or_else(|_| failed("give exactly one --socket with --echo"))?;
        // Pin this thread only after opening the port, so that the port's own threads can run on other processors.
        if let Some(cpu) = args.cpu {
            cpu::pin_current_thread(&[cpu]).doing("choosing a processor")?;
        }
        println!("ready");
        echo(&config, queues)?;
        summarise(&ports);
        return Ok(());
    }
    let tap = args.tap.as_ref().map(|name| tap(args, name)).transpose()?;
    let tasks = match (hosts.pop(), hosts.pop(), &tap) {
        (Some(b), Some(a), None) if hosts.is_empty() => join([&config, &config], a, b),
        (Some(a), None, Some(tap)) => join([&config, &tap_config(args, &config)], a, tap_queues(tap)),
        _ => return failed("give two --socket, or one and --tap"),
    };
    let worker = Worker::start(WORKER_NAME, tasks, args.cpu.map(|cpu| vec![cpu])).doing("starting the worker")?;
    println!("ready");
    while !stop::requested() && worker.is_running() {
        std::thread::sleep(LOOK);
    }
    drop(worker);
    summarise(&ports);
    if stop::requested() { Ok(()) } else { failed("both adapters have lost the connection to their hosts") }
}

fn summarise(ports: &[VhostUser]) {
    for port in ports {
        eprintln!("{}", seam::summary(port));
    }
}

fn tap_queues(tap: &Tap) -> Vec<TapQueue> {
    (0..tap.queue_count()).filter_map(|index| tap.queue(index)).collect()
}

fn tap(args: &Args, name: &str) -> Result<Tap> {
    let config = TapConfig { queues: args.queues, mtu: u32::from(args.mtu), ..TapConfig::new(name) };
    open_tap(&config).doing("making the TAP")
}

/// Returns the guest's frames until a signal arrives. Polls without sleeping.
fn echo(config: &AdapterConfig, queues: Vec<VhostQueue>) -> Result<()> {
    let control = PortControl::new(config);
    let pair = |(index, host)| QueuePair::new(config, &control, index, host, Echo::new(config.mtu));
    let mut pairs: Vec<_> = queues.into_iter().enumerate().map(pair).collect();
    let began = Instant::now();
    while !stop::requested() {
        for _ in 0..ROUNDS_PER_LOOK {
            let now_ns = began.elapsed().as_nanos() as u64;
            for pair in &mut pairs {
                if let Err(error @ PortError::Closed(_)) = pair.poll(now_ns) {
                    return failed(format!("the port: {error}"));
                }
            }
        }
    }
    Ok(())
}

/// Returns the configuration of the TAP's adapter.
fn tap_config(args: &Args, config: &AdapterConfig) -> AdapterConfig {
    let without = if args.tap_without_rx_checksum { Offloads::RX_CHECKSUM } else { Offloads::empty() };
    AdapterConfig { offloads: (config.offloads - without).with_prerequisites(), ..*config }
}

/// Connects an adapter on each of two hosts by one cable per queue.
fn join<A, B>(configs: [&AdapterConfig; 2], a: Vec<A>, b: Vec<B>) -> Vec<Box<dyn Task>>
where
    A: HostIo + Send + 'static,
    B: HostIo + Send + 'static,
{
    let line = CableConfig { mtu: configs[0].mtu, ..CableConfig::default() };
    let controls = configs.map(PortControl::new);
    let mut tasks = Vec::new();
    for (index, (a, b)) in a.into_iter().zip(b).enumerate() {
        let (end_a, end_b) = cable(&line);
        tasks.push(task(configs[0], &controls[0], index, a, end_a));
        tasks.push(task(configs[1], &controls[1], index, b, end_b));
    }
    tasks
}

fn task<H: HostIo + Send + 'static>(
    config: &AdapterConfig,
    control: &Arc<PortControl>,
    index: usize,
    host: H,
    end: CableEnd,
) -> Box<dyn Task> {
    Box::new(QueuePair::new(config, control, index, host, end))
}
