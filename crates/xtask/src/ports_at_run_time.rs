//! Measures the cost of ports added to a running daemon: the time to add and to remove a port, the memory per port, and
//! the processor load while all ports are idle. Also measures the time of `show` and of the metrics with all ports.

use offramp_ports::sys::cpu;
use offramp_testbed::daemon::{self, Daemon};
use offramp_testbed::failure::{Doing, Result, failed, new_namespace};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stats::Spread;
use offramp_testbed::stop;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::iter::repeat_with;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Duration for which the daemon with all ports is idle while its processor time is measured.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum cost of a port: time to add the port in milliseconds, and memory in KiB.
const ADD_MS_MAX: f64 = 5.0;
const PORT_KIB_MAX: f64 = 150.0;
/// Maximum time of `offramp show` and of the metrics with all ports, in milliseconds, and number of measurements.
const SHOW_MS_MAX: f64 = 50.0;
const METRICS_MS_MAX: f64 = 30.0;
const LOOKS: usize = 20;

/// Ports to add.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ports
    #[arg(long, default_value_t = 500)]
    ports: usize,
}

/// Adds guests' ports to one switch, one at a time, and removes these ports. Returns whether the costs are within the
/// limits.
///
/// # Errors
/// Returns an error if the daemon refuses a request.
pub fn run(args: &Args) -> Result<bool> {
    let (executable, scratch) = (daemon::build()?, Scratch::new()?);
    let ns = new_namespace()?;
    let (control, metrics) = (scratch.file("control.sock"), scratch.file("metrics.sock"));
    // The text continues the section `[daemon]`.
    let text = format!("metrics = \"{metrics}\"\n[[switch]]\nname = \"lan\"\n");
    let daemon = Daemon::start(&executable, &text, &scratch, &ns)?;
    let before_kib = memory_kib(&daemon)?;
    let (mut add_ms, mut remove_ms) = (Vec::new(), Vec::new());
    for n in 0..args.ports {
        let socket = scratch.file(&format!("vm{n}.sock"));
        let toml = format!("[[port]]\nname = \"vm{n}\"\nhost.vhost_user = \"{socket}\"\nwire.switch = \"lan\"\n");
        let request = json!({"version": 1, "request": "add", "source": "xtask", "toml": toml});
        add_ms.push(ask(&control, &request)?);
        stop::sleep(Duration::ZERO)?;
    }
    let port_kib = (memory_kib(&daemon)? - before_kib) / args.ports as f64;
    let idle_percent = idle_percent(&daemon)?;
    let show_ms = repeat_with(|| {
        let mut show = Command::new(&executable);
        timed(|| show.args(["show", "--control", &control]).stdout(Stdio::null()).status().doing("offramp show"))
    });
    let show_ms = show_ms.take(LOOKS).collect::<Result<Vec<_>>>()?;
    let metrics_ms = repeat_with(|| timed(|| scrape(&metrics))).take(LOOKS).collect::<Result<Vec<_>>>()?;
    for n in 0..args.ports {
        remove_ms.push(ask(&control, &json!({"version": 1, "request": "remove", "ports": [format!("vm{n}")]}))?);
    }
    let after_kib = memory_kib(&daemon)?;
    println!("{} guest ports on one switch, one after the other", args.ports);
    let spreads = [&add_ms, &remove_ms, &show_ms, &metrics_ms].map(|ms| Spread::of(ms));
    let [Some(add), Some(remove), Some(show), Some(metrics)] = spreads else {
        return failed("--ports 0 measures nothing");
    };
    for (what, ms) in [("add", add), ("remove", remove), ("offramp show", show), ("metrics", metrics)] {
        println!("{what}: median {:.2} ms, longest {:.2} ms", ms.median, ms.max);
    }
    println!(
        "memory (Pss): {port_kib:.1} KiB a port; {before_kib:.0} KiB before, {after_kib:.0} KiB after all are removed"
    );
    println!("idle with all ports: {idle_percent:.2} % of a processor");
    drop(daemon.terminate());
    let is_seen_soon = show.median <= SHOW_MS_MAX && metrics.median <= METRICS_MS_MAX;
    Ok(add.median <= ADD_MS_MAX && port_kib <= PORT_KIB_MAX && is_seen_soon)
}

/// Returns the duration of `work`, in milliseconds.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

/// Reads the metrics at a socket.
fn scrape(metrics: &str) -> Result<()> {
    let mut stream = UnixStream::connect(metrics).doing("connecting to the metrics")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").doing("asking for the metrics")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).doing("reading the metrics")?;
    if text.ends_with("# EOF\n") { Ok(()) } else { failed(format!("no metrics: {text}")) }
}

/// Sends a request. Returns the time until the answer in milliseconds. Fails if the answer is an error.
fn ask(control: &str, request: &Value) -> Result<f64> {
    let line = format!("{request}\n");
    let began = Instant::now();
    let mut stream = UnixStream::connect(control).doing("connecting to the daemon")?;
    stream.write_all(line.as_bytes()).doing("asking the daemon")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).doing("reading the daemon's answer")?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let answer: Value = serde_json::from_str(&answer).doing("reading the daemon's answer")?;
    if answer["difference"].is_null() { failed(format!("the daemon refuses {request}: {answer}")) } else { Ok(ms) }
}

/// Returns the daemon's proportional set size (Pss) in KiB (`proc_pid_smaps(5)`).
fn memory_kib(daemon: &Daemon) -> Result<f64> {
    let file = format!("/proc/{}/smaps_rollup", daemon.id());
    let text = std::fs::read_to_string(&file).doing(&file)?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.map_or_else(|| failed(format!("{file} has no Pss")), Ok)
}

/// Returns the processor load of the idle daemon, in percent of one processor.
fn idle_percent(daemon: &Daemon) -> Result<f64> {
    let used_ns = || cpu::process_cpu_ns_of(daemon.id() as i32).doing("the daemon's processor time");
    let before_ns = used_ns()?;
    stop::sleep(IDLE)?;
    Ok((used_ns()? - before_ns) as f64 / IDLE.as_nanos() as f64 * 100.0)
}
