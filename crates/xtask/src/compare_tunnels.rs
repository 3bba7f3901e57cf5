//! One TCP stream over encrypted links between two namespaces, each link in turn: offramp's adapters with ESP, and the
//! user-space tunnels for Linux.
//!
//! ```text
//!  offramp         ttcp ── TAP ── adapter, ESP ══ cable ══ adapter, ESP ── TAP ── ttcp
//!  wireguard-go    ttcp ── TUN ── wireguard-go ── UDP ── veth ── wireguard-go ── TUN ── ttcp
//!  strongSwan      ttcp ── TUN ── charon, kernel-libipsec ── UDP ── veth ── charon ── TUN ── ttcp
//! ```
//!
//! Every namespace is made anew for each sample. All programs share the processors, as scheduled by the kernel. The
//! lines are no limit: a cable without a rate, a veth pair.

use crate::daemon;
use crate::failure::{Doing, Result, failed};
use crate::packages;
use crate::program::Program;
use crate::scratch::Scratch;
use crate::stats::median;
use crate::stop;
use crate::ttcp;
use offramp_offload::esp::{AesKey, Suite};
use offramp_ports::sys::{NetNs, confine, link};
use offramp_testbed::cpu::CpuTimes;
use offramp_testbed::esp::{EspBy, EspLink};
use offramp_testbed::rig::{self, Between, Placement, Rig, RigConfig, Threads};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Addresses of the veth pair, of the tunnels of wireguard-go, and of those of strongSwan.
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 1, 2)];
const WIREGUARD: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 1, 1), Ipv4Addr::new(10, 78, 1, 2)];
const STRONGSWAN: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 1, 1), Ipv4Addr::new(10, 79, 1, 2)];
/// Interfaces, by side.
const VETHS: [&str; 2] = ["tunv0", "tunv1"];
const WIREGUARDS: [&str; 2] = ["ofrwg0", "ofrwg1"];
const PREFIX_LEN: u8 = 24;
const HOST_PREFIX_LEN: u8 = 32;
const WIREGUARD_PORT: &str = "51820";
/// Maximum overhead of wireguard-go's protocol on an IPv6 packet, bytes: the default of its tools.
const WIREGUARD_OVERHEAD: u32 = 80;
const MTU: u32 = 1500;
/// Time for a program to be ready, and for a test beyond its measured time.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
const TEST_GRACE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_millis(200);
const END_TIMEOUT: Duration = Duration::from_secs(5);
const BITS: f64 = 8.0;
const GIGA: f64 = 1e9;

/// One TCP stream over encrypted links: offramp's adapters, wireguard-go, strongSwan's user-space ESP.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Samples of each link, taken in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Time of a sample, in seconds
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// The wireguard-go to compare with; Debian's is of 2022
    #[arg(long, value_name = "FILE")]
    wireguard_go: Option<PathBuf>,
    /// Leave strongSwan out
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

/// The printed row of a link: medians.
#[derive(Debug, Serialize)]
struct Row {
    link: &'static str,
    samples: usize,
    throughput_bps: f64,
    /// Time of all processors.
    cpu_s_per_gb: f64,
    /// offramp's throughput in this link's.
    offramp_ratio: f64,
}

/// Takes the samples and prints a line for each link.
///
/// # Errors
/// When a program is missing or does not start, a sample is not complete, or a signal comes.
pub fn run(args: &Args) -> Result<bool> {
    let bench = Bench::new(args)?;
    let mut peers = vec![Peer::Offramp, Peer::Wireguard];
    if !args.no_strongswan {
        peers.push(Peer::Strongswan);
    }
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); peers.len()];
    for round in 0..args.rounds as usize {
        for turn in 0..peers.len() {
            // The first turn rotates, so its advantage cancels out.
            let at = (round + turn) % peers.len();
            samples[at].push(bench.sample(peers[at])?);
        }
    }
    let rows = rows(&peers, &samples);
    rows.iter().try_for_each(|row| print(row, args.json))?;
    Ok(true)
}

fn rows(peers: &[Peer], samples: &[Vec<Sample>]) -> Vec<Row> {
    let of = |samples: &[Sample], value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
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

/// The paths of the programs.
struct Bench {
    offramp: PathBuf,
    wireguard_go: PathBuf,
    wg: PathBuf,
    /// charon and swanctl.
    strongswan: Option<[PathBuf; 2]>,
    seconds: f64,
}

impl Bench {
    fn new(args: &Args) -> Result<Self> {
        let strongswan = || Ok([packages::need(packages::CHARON)?, packages::need(packages::SWANCTL)?]);
        Ok(Self {
            offramp: daemon::build()?,
            wireguard_go: args.wireguard_go.clone().map_or_else(|| packages::need(packages::WIREGUARD_GO), Ok)?,
            wg: packages::need(packages::WG)?,
            strongswan: (!args.no_strongswan).then(strongswan).transpose()?,
            seconds: args.seconds,
        })
    }

    fn sample(&self, peer: Peer) -> Result<Sample> {
        let link = match peer {
            Peer::Offramp => Link::offramp()?,
            Peer::Wireguard => Link::wireguard(&self.wireguard_go, &self.wg)?,
            Peer::Strongswan => match &self.strongswan {
                Some([charon, swanctl]) => Link::strongswan(charon, swanctl)?,
                None => return failed("strongSwan was left out"),
            },
        };
        let sample = self.measure(&link);
        link.end();
        sample
    }

    /// Measures one stream from the first host to the second.
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
        let throughput_bps = client.wait_for("the report", 0, timeout, ttcp::throughput_bps)?;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let busy = CpuTimes::read().doing("reading /proc/stat")?.since(&before);
        let busy_s = busy.all().iter().map(|cpu| cpu.busy_us() as f64 / 1e6).sum::<f64>();
        let gigabytes = throughput_bps * elapsed_s / BITS / GIGA;
        Ok(Sample { throughput_bps, cpu_s_per_gb: busy_s / gigabytes })
    }
}

/// Two namespaces and an encrypted link between them. Dropped in this order.
struct Link {
    programs: Vec<Program>,
    rig: Option<Rig>,
    hosts: Option<[NetNs; 2]>,
    server: Ipv4Addr,
    /// Files of the programs.
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
        let (programs, scratch) = (Vec::new(), Scratch::new()?);
        Ok(Self { programs, rig: Some(rig), hosts: None, server: rig::ADDRESSES[1], scratch })
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
            wait_until(|| Path::new(&format!("/var/run/wireguard/{name}.sock")).exists(), name)?;
            let other = 1 - side;
            let mut command = Command::new(wg);
            command.args(["set", name, "private-key", &keys[side].file, "listen-port", WIREGUARD_PORT]);
            command.args(["peer", &keys[other].public, "allowed-ips", &format!("{}/32", WIREGUARD[other])]);
            command.args(["endpoint", &format!("{}:{WIREGUARD_PORT}", OUTER[other])]);
            link.run(side, command)?;
            link.in_host(side, || {
                link::add_address(name, IpAddr::V4(WIREGUARD[side]), PREFIX_LEN)?;
                link::set_mtu(name, MTU - WIREGUARD_OVERHEAD)?;
                link::set_up(name)
            })?;
        }
        Ok(link)
    }

    fn strongswan(charon: &Path, swanctl: &Path) -> Result<Self> {
        let mut link = Self::over_veth(STRONGSWAN[1])?;
        let directories = ["swan0", "swan1"].map(|name| link.scratch.path().join(name));
        for (side, directory) in directories.iter().enumerate() {
            link.in_host(side, || link::add_address("lo", IpAddr::V4(STRONGSWAN[side]), HOST_PREFIX_LEN))?;
            fs::create_dir_all(directory.join("run")).doing("making a directory for strongSwan")?;
            fs::write(directory.join("strongswan.conf"), strongswan_conf(directory))
                .doing("writing strongswan.conf")?;
            fs::write(directory.join("swanctl.conf"), swanctl_conf(side)).doing("writing swanctl.conf")?;
            // Two daemons cannot share /run: each gets a mount namespace, and there one of its own.
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", "mount --bind \"$0/run\" /run && exec \"$1\""]);
            command.args([directory, charon]);
            command.env("STRONGSWAN_CONF", directory.join("strongswan.conf"));
            let program = link.start(side, "charon", command)?;
            link.programs.push(program);
        }
        for (side, directory) in directories.iter().enumerate() {
            wait_until(|| directory.join("vici.sock").exists(), "charon")?;
            let file = directory.join("swanctl.conf");
            link.run(
                side,
                swanctl_command(
                    swanctl,
                    directory,
                    &[OsStr::new("--load-all"), OsStr::new("--file"), file.as_os_str()],
                ),
            )?;
        }
        let initiate = ["--initiate", "--child", "link", "--timeout", "10"].map(OsStr::new);
        link.run(0, swanctl_command(swanctl, &directories[0], &initiate))?;
        Ok(link)
    }

    fn over_veth(server: Ipv4Addr) -> Result<Self> {
        let hosts = [NetNs::new(), NetNs::new()].map(|made| made.doing("making a network namespace (run as root)"));
        let [a, b] = hosts;
        let (programs, scratch) = (Vec::new(), Scratch::new()?);
        let link = Self { programs, rig: None, hosts: Some([a?, b?]), server, scratch };
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
        self.host(side).run(f).doing("entering a namespace")?.doing("setting up an interface")
    }

    fn start(&self, side: usize, name: &str, mut command: Command) -> Result<Program> {
        confine(&mut command, Some(self.host(side)), None).doing(format!("preparing {name}"))?;
        Program::start(name, command)
    }

    /// Runs a command to its end.
    fn run(&self, side: usize, mut command: Command) -> Result<()> {
        confine(&mut command, Some(self.host(side)), None).doing("preparing a command")?;
        let output = command.output().doing(format!("running {}", command.get_program().display()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        failed(format!("{}: {}\n{}", command.get_program().display(), output.status, said.trim()))
    }

    /// Ends the programs; they remove their own interfaces and files.
    fn end(self) {
        for program in self.programs {
            program.terminate(END_TIMEOUT);
        }
    }
}

fn wait_until(is_so: impl Fn() -> bool, what: &str) -> Result<()> {
    let end = Instant::now() + READY_TIMEOUT;
    while !is_so() {
        if Instant::now() > end {
            return failed(format!("{what} was not ready within {READY_TIMEOUT:?}"));
        }
        stop::sleep(LOOK)?;
    }
    stop::sleep(SETTLE)
}

struct WireguardKey {
    /// The file with the private one.
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

/// Builds a command of swanctl: the subcommand comes first, then its socket.
fn swanctl_command(swanctl: &Path, directory: &Path, args: &[&OsStr]) -> Command {
    let mut command = Command::new(swanctl);
    command.env("STRONGSWAN_CONF", directory.join("strongswan.conf")).args(args);
    command.arg("--uri").arg(format!("unix://{}", directory.join("vici.sock").display()));
    command
}

/// Configures ESP in user space, and a control socket of its own.
fn strongswan_conf(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "charon-systemd {{\n  load_modular = yes\n  journal {{ default = -1 }}\n  filelog {{ l {{ path = {directory}/log }} }}\n  \
         plugins {{\n    include /etc/strongswan.d/charon/*.conf\n    kernel-libipsec {{ load = yes }}\n    \
         vici {{ socket = unix://{directory}/vici.sock }}\n    bypass-lan {{ load = no }}\n  }}\n}}\n"
    )
}

/// Configures one tunnel with ESP in UDP, the only mode of ESP in user space.
fn swanctl_conf(side: usize) -> String {
    let (own, other) = (OUTER[side], OUTER[1 - side]);
    let (local, remote) = (STRONGSWAN[side], STRONGSWAN[1 - side]);
    format!(
        "connections {{ link {{\n  version = 2\n  local_addrs = {own}\n  remote_addrs = {other}\n  encap = yes\n  \
         proposals = aes128gcm16-prfsha256-x25519\n  local {{ auth = psk\n id = {own} }}\n  remote {{ auth = psk\n id = {other} }}\n  \
         children {{ link {{\n    local_ts = {local}/32\n    remote_ts = {remote}/32\n    esp_proposals = aes128gcm16\n    \
         mode = tunnel\n  }} }}\n}} }}\nsecrets {{ ike-link {{ secret = \"a measurement keeps no secret\" }} }}\n"
    )
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
