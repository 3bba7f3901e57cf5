//! Compares encrypted links: one TCP stream between two namespaces, over each link in turn. The links are offramp's
//! adapters with ESP, and user-space tunnels for Linux.
//!
//! ```text
//!  offramp         ttcp ── TAP ── adapter, ESP ══ cable ══ adapter, ESP ── TAP ── ttcp
//!  wireguard-go    ttcp ── TUN ── wireguard-go ── UDP ── veth ── wireguard-go ── TUN ── ttcp
//!  strongSwan      ttcp ── TUN ── charon, kernel-libipsec ── UDP ── veth ── charon ── TUN ── ttcp
//! ```
//!
//! Every sample uses new namespaces. All programs share the processors, as scheduled by the kernel. The underlying
//! links have no rate limit: a cable without a rate, or a veth pair.

use offramp_offload::esp::{AesKey, Suite};
use offramp_ports::sys::{NetNs, link};
use offramp_testbed::cpu::CpuTimes;
use offramp_testbed::daemon;
use offramp_testbed::esp::{EspBy, EspLink};
use offramp_testbed::failure::{Doing, Result, inside, new_namespace};
use offramp_testbed::packages;
use offramp_testbed::program;
use offramp_testbed::program::Program;
use offramp_testbed::rig::{self, Between, Placement, Rig, RigConfig, Threads};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stats::median;
use offramp_testbed::stop;
use offramp_testbed::strongswan::{Charon, TunnelEnd};
use offramp_testbed::traffic::Report;
use serde::Serialize;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Addresses of the veth pair, of wireguard-go's tunnel, and of strongSwan's tunnel.
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 1, 2)];
const WIREGUARD: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 1, 1), Ipv4Addr::new(10, 78, 1, 2)];
const STRONGSWAN: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 1, 1), Ipv4Addr::new(10, 79, 1, 2)];
/// Names of the two interfaces of the veth pair.
const VETHS: [&str; 2] = ["tunv0", "tunv1"];
const WIREGUARDS: [&str; 2] = ["ofrwg0", "ofrwg1"];
const PREFIX_LEN: u8 = 24;
const HOST_PREFIX_LEN: u8 = 32;
const WIREGUARD_PORT: &str = "51820";
/// Maximum overhead of `WireGuard` per packet, in bytes: the overhead over IPv6, as in `WireGuard`'s tools. The
/// tunnel's MTU is smaller than the link's MTU by this overhead.
const WIREGUARD_OVERHEAD: u32 = 80;
const MTU: u32 = 1500;
/// Maximum time until a program is ready, and maximum time of a test beyond its measured time.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
const TEST_GRACE: Duration = Duration::from_secs(30);
const SETTLE: Duration = Duration::from_millis(200);
const END_TIMEOUT: Duration = Duration::from_secs(5);
const BITS: f64 = 8.0;
const GIGA: f64 = 1e9;

/// Compare one TCP stream over encrypted links: offramp's adapters, wireguard-go, strongSwan's user-space ESP.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Samples of each link, taken in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Time of a sample, in seconds
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Path of the wireguard-go program [default: Debian's, a version of 2022]
    #[arg(long, value_name = "FILE")]
    wireguard_go: Option<PathBuf>,
    /// Omit strongSwan
    #[arg(long)]
    no_strongswan: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Offramp,
    Wireguard,
    Strongswan,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Offramp => "offramp, AES-128-GCM",
            Self::Wireguard => "wireguard-go",
            Self::Strongswan => "strongSwan, AES-128-GCM",
        }
    }
}

/// The result of one sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    throughput_bps: f64,
    cpu_s_per_gb: f64,
}

/// The printed row of a link, with medians of its samples.
#[derive(Debug, Serialize)]
struct Row {
    link: &'static str,
    samples: usize,
    throughput_bps: f64,
    /// Processor time of the whole machine, in seconds per gigabyte.
    cpu_s_per_gb: f64,
    /// offramp's throughput divided by this link's throughput.
    offramp_ratio: f64,
}

/// Takes the samples and prints a line for each link.
///
/// # Errors
/// Returns an error if a program is missing or does not start, if a sample is incomplete, or if a signal is received.
pub fn run(args: &Args) -> Result<bool> {
    let bench = Bench::new(args)?;
    let mut peers = vec![Peer::Offramp, Peer::Wireguard];
    if !args.no_strongswan {
        peers.push(Peer::Strongswan);
    }
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); peers.len()];
    for round in 0..args.rounds as usize {
        for turn in 0..peers.len() {
            // The first link of a round rotates, so that any advantage of the first turn cancels out.
            let at = (round + turn) % peers.len();
            samples[at].push(bench.sample(peers[at])?);
        }
    }
    let rows = rows(&peers, &samples);
    rows.iter().try_for_each(|row| print(row, args.json))?;
    Ok(true)
}

fn rows(peers: &[Peer], samples: &[Vec<Sample>]) -> Vec<Row> {
    let of = |samples: &[Sample], value: fn(&Sample) -> f64| {
        median(&samples.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let ours = samples.first().map_or(f64::NAN, |samples| of(samples, |sample| sample.throughput_bps));
    let row = |(peer, samples): (&Peer, &Vec<Sample>)| {
        let throughput_bps = of(samples, |sample| sample.throughput_bps);
        let cpu_s_per_gb = of(samples, |sample| sample.cpu_s_per_gb);
        Row {
            link: peer.name(),
            samples: samples.len(),
            throughput_bps,
            cpu_s_per_gb,
            offramp_ratio: ours / throughput_bps,
        }
    };
    peers.iter().zip(samples).map(row).collect()
}

fn print(row: &Row, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(row).doing("writing a row")?);
        return Ok(());
    }
    println!(
        "{:24} {} samples: {:6.2} Gbit/s, {:5.2} CPU s/GB; offramp is {:.2} x as fast",
        row.link,
        row.samples,
        row.throughput_bps / GIGA,
        row.cpu_s_per_gb,
        row.offramp_ratio
    );
    Ok(())
}

/// Paths of the programs, and duration of a sample.
struct Bench {
    offramp: PathBuf,
    wireguard_go: PathBuf,
    wg: PathBuf,
    seconds: f64,
}

impl Bench {
    fn new(args: &Args) -> Result<Self> {
        Ok(Self {
            offramp: daemon::build()?,
            wireguard_go: args.wireguard_go.clone().map_or_else(|| packages::need(packages::WIREGUARD_GO), Ok)?,
            wg: packages::need(packages::WG)?,
            seconds: args.seconds,
        })
    }

    fn sample(&self, peer: Peer) -> Result<Sample> {
        let link = match peer {
            Peer::Offramp => Link::offramp()?,
            Peer::Wireguard => Link::wireguard(&self.wireguard_go, &self.wg)?,
            Peer::Strongswan => Link::strongswan()?,
        };
        let sample = self.measure(&link);
        link.end();
        sample
    }

    /// Measures one stream from the first host to the second host.
    fn measure(&self, link: &Link) -> Result<Sample> {
        let mut serve = Command::new(&self.offramp);
        serve.args(["ttcp", "--serve"]);
        let _server = link.start(1, "ttcp", serve)?;
        stop::sleep(SETTLE)?;
        let mut send = Command::new(&self.offramp);
        send.args(["ttcp", "--to", &link.server.to_string(), "--seconds", &self.seconds.to_string(), "--json"]);
        let before = CpuTimes::read().doing("reading /proc/stat")?;
        let begun = Instant::now();
        let mut client = link.start(0, "ttcp", send)?;
        let timeout = Duration::from_secs_f64(self.seconds) + TEST_GRACE;
        let throughput_bps = client.wait_for("the report", 0, timeout, Report::printed)?.throughput_bps;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let busy = CpuTimes::read().doing("reading /proc/stat")?.since(&before);
        let gigabytes = throughput_bps * elapsed_s / BITS / GIGA;
        Ok(Sample { throughput_bps, cpu_s_per_gb: busy.busy_us() as f64 / 1e6 / gigabytes })
    }
}

/// Two namespaces and an encrypted link between them. The fields are in drop order.
struct Link {
    programs: Vec<Program>,
    rig: Option<Rig>,
    hosts: Option<[NetNs; 2]>,
    server: Ipv4Addr,
    /// Directory of the programs' files.
    scratch: Scratch,
}

impl Link {
    fn offramp() -> Result<Self> {
        let suite = Suite::AesGcm16 { key: AesKey::Bits128, implicit_iv: false };
        let config = RigConfig {
            esp: Some(EspLink { suite, by: EspBy::Adapter }),
            between: Between::Adapters(Threads::PerDirection),
            placement: Placement::free(),
            ..RigConfig::default()
        };
        let rig = Rig::start(&config).doing("starting offramp's adapters")?;
        let (rig, server) = (Some(rig), rig::ADDRESSES[1]);
        Ok(Self { programs: Vec::new(), rig, hosts: None, server, scratch: Scratch::new()? })
    }

    fn wireguard(wireguard_go: &Path, wg: &Path) -> Result<Self> {
        let mut link = Self::over_veth(WIREGUARD[1])?;
        for name in WIREGUARDS {
            let side = usize::from(name == WIREGUARDS[1]);
            let mut command = Command::new(wireguard_go);
            command.args(["-f", name]).env("LOG_LEVEL", "error");
            let program = link.start(side, "wireguard-go", command)?;
            link.programs.push(program);
        }
        let keys = [new_key(wg, &link.scratch, "a")?, new_key(wg, &link.scratch, "b")?];
        for (side, name) in WIREGUARDS.into_iter().enumerate() {
            program::wait_for_socket(&format!("/var/run/wireguard/{name}.sock"), READY_TIMEOUT)?;
            stop::sleep(SETTLE)?;
            let other = 1 - side;
            let mut command = Command::new(wg);
            command.args(["set", name, "private-key", &keys[side].file, "listen-port", WIREGUARD_PORT]);
            command.args(["peer", &keys[other].public, "allowed-ips", &format!("{}/32", WIREGUARD[other])]);
            command.args(["endpoint", &format!("{}:{WIREGUARD_PORT}", OUTER[other])]);
            program::output(command, Some(link.host(side)))?;
            link.in_host(side, || {
                link::add_address(name, IpAddr::V4(WIREGUARD[side]), PREFIX_LEN)?;
                link::set_mtu(name, MTU - WIREGUARD_OVERHEAD)?;
                link::set_up(name)
            })?;
        }
        Ok(link)
    }

    fn strongswan() -> Result<Self> {
        let mut link = Self::over_veth(STRONGSWAN[1])?;
        let mut charons = Vec::new();
        for side in [0, 1] {
            link.in_host(side, || link::add_address("lo", IpAddr::V4(STRONGSWAN[side]), HOST_PREFIX_LEN))?;
            let pair = |of: [Ipv4Addr; 2]| [of[side], of[1 - side]];
            let (outer, inner) = (pair(OUTER), pair(STRONGSWAN));
            let end = TunnelEnd { outer, inner, suite: "aes128gcm16", logs_keys: false };
            charons.push(Charon::start(&format!("swan{side}"), &end, link.host(side), &link.scratch)?);
        }
        charons[0].initiate()?;
        link.programs.extend(charons.into_iter().map(|charon| charon.program));
        Ok(link)
    }

    fn over_veth(server: Ipv4Addr) -> Result<Self> {
        let hosts = Some([new_namespace()?, new_namespace()?]);
        let link = Self { programs: Vec::new(), rig: None, hosts, server, scratch: Scratch::new()? };
        link.in_host(0, || link::create_veth(VETHS[0], VETHS[1]))?;
        link.in_host(0, || link::move_to(VETHS[1], link.host(1)))?;
        for (side, name) in VETHS.into_iter().enumerate() {
            link.in_host(side, || {
                link::set_up("lo")?;
                link::add_address(name, IpAddr::V4(OUTER[side]), PREFIX_LEN)?;
                link::set_up(name)
            })?;
        }
        Ok(link)
    }

    fn host(&self, side: usize) -> &NetNs {
        match (&self.hosts, &self.rig) {
            (Some(hosts), _) => &hosts[side],
            (None, Some(rig)) => rig.host(side),
            (None, None) => unreachable!("a link has namespaces of its own or those of a rig"),
        }
    }

    fn in_host<T: Send, E: std::fmt::Display + Send>(
        &self,
        side: usize,
        f: impl FnOnce() -> std::result::Result<T, E> + Send,
    ) -> Result<T> {
        inside(self.host(side), "setting up an interface", f)
    }

    fn start(&self, side: usize, name: &str, command: Command) -> Result<Program> {
        Program::start(name, command, Some(self.host(side)))
    }

    /// Ends the programs, which then remove their own interfaces and files.
    fn end(self) {
        for program in self.programs {
            program.terminate(END_TIMEOUT);
        }
    }
}

struct WireguardKey {
    /// Path of the file with the private key.
    file: String,
    public: String,
}

fn new_key(wg: &Path, scratch: &Scratch, name: &str) -> Result<WireguardKey> {
    let output = Command::new(wg).arg("genkey").output().doing("making a key")?;
    let file = scratch.file(name);
    fs::write(&file, &output.stdout).doing("writing a key")?;
    let key = fs::File::open(&file).doing("reading a key")?;
    let public = Command::new(wg).arg("pubkey").stdin(key).output().doing("making a public key")?;
    Ok(WireguardKey { file, public: String::from_utf8_lossy(&public.stdout).trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_half_as_fast_makes_a_ratio_of_two() {
        let sample = |throughput_bps| Sample { throughput_bps, cpu_s_per_gb: 1.0 };
        let samples = [vec![sample(4.0), sample(2.0), sample(3.0)], vec![sample(1.5); 3]];
        let rows = rows(&[Peer::Offramp, Peer::Wireguard], &samples);
        assert!((rows[0].offramp_ratio - 1.0).abs() < 1e-9 && (rows[1].offramp_ratio - 2.0).abs() < 1e-9);
    }
}
