//! The set-up of each kind of backend: a backend with two guests, and a traffic server in a namespace.

use super::{Cell, Path, Sample};
use nix::sys::signal::Signal;
use offramp_ports::sys::{NetNs, SysError, link};
use offramp_testbed::cpu::CpuTimes;
use offramp_testbed::daemon::Daemon;
use offramp_testbed::failure::{Doing, Result, failed, inside, new_namespace, not_possible};
use offramp_testbed::guest::busybox::{
    Base, HOST, MTU, PREFIX_LEN, Small, TAP, prepare_host, qemu_tap_network, vhost_user_network,
};
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::packages::{self, IP};
use offramp_testbed::program::{self, Program};
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use offramp_testbed::traffic::{Latency, Report};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// IPv4 address and Ethernet address of each guest.
pub const GUESTS: [(Ipv4Addr, &str); 2] =
    [(Ipv4Addr::new(198, 18, 0, 2), "02:00:00:00:00:01"), (Ipv4Addr::new(198, 18, 0, 3), "02:00:00:00:00:02")];
/// The network for passt: name and address of an interface without a peer, and the address of a gateway that does not
/// exist.
const UPSTREAM: (&str, Ipv4Addr, Ipv4Addr) = ("upstream0", Ipv4Addr::new(198, 19, 0, 2), Ipv4Addr::new(198, 19, 0, 1));
/// Maximum time from the start of a backend's program until its socket or interface exists.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// Time from the start of the traffic servers, or from a new MTU, to the first test.
const SETTLE: Duration = Duration::from_millis(300);
/// Memory of Open vSwitch with DPDK, in MiB.
const DPDK_MIB: u32 = 1024;

/// The backend of the guests' cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// `offramp up`: two vhost-user ports and a TAP on one switch
    Offramp,
    /// `offramp up` with priority over the guests
    OfframpNice,
    /// QEMU's own device over TAPs, and a Linux bridge
    QemuTap,
    /// Cloud Hypervisor's `vhost_user_net` over TAPs, and a Linux bridge
    VhostUserNet,
    /// passt, with the host's sockets in place of a network
    Passt,
    /// Open vSwitch with DPDK
    OvsDpdk,
    /// Open vSwitch with DPDK and its experimental TSO
    OvsDpdkTso,
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Self::Offramp => "offramp",
            Self::OfframpNice => "offramp, Nice=-15",
            Self::QemuTap => "QEMU's TAP",
            Self::VhostUserNet => "vhost_user_net",
            Self::Passt => "passt",
            Self::OvsDpdk => "OVS-DPDK",
            Self::OvsDpdkTso => "OVS-DPDK, TSO",
        }
    }

    /// Returns whether the backend occupies a whole processor, even without traffic.
    fn polls(self) -> bool {
        matches!(self, Self::OvsDpdk | Self::OvsDpdkTso)
    }
}

/// Paths of the programs that are not in Debian 12.
#[derive(Debug)]
pub struct Peers {
    pub offramp: PathBuf,
    pub vhost_user_net: Option<PathBuf>,
    pub passt: Option<PathBuf>,
}

/// A backend, its guests, and the host in a namespace. The fields are in drop order.
#[derive(Debug)]
pub struct Bed {
    pub backend: Backend,
    guests: Vec<Machine>,
    _server: Program,
    daemon: Option<Daemon>,
    programs: Vec<Program>,
    ns: NetNs,
    _scratch: Scratch,
}

impl Bed {
    /// Starts a backend with two guests.
    ///
    /// # Errors
    /// Returns an error if a program is missing, or a program or guest does not start.
    pub fn start(backend: Backend, base: &Base, peers: &Peers) -> Result<Self> {
        let network = Network { scratch: Scratch::new()?, ns: new_namespace()?, programs: Vec::new() };
        let (mut network, daemon, cards) = network.with(backend, peers)?;
        let mut guests = Vec::new();
        for (card, (address, mac)) in cards.into_iter().zip(GUESTS) {
            let small = Small { network: card, mac, address, mtu: super::MTU_MAX, arguments: "" };
            guests.push(base.start_small(small, &network.ns)?);
        }
        guests.iter_mut().try_for_each(Machine::wait_until_ready)?;
        for program in &mut network.programs {
            if program.has_ended()? {
                return failed(format!("the backend ended when the guest connected{}", program.tail()));
            }
        }
        if matches!(backend, Backend::QemuTap | Backend::VhostUserNet) {
            network.in_ns("adding TAPs to the bridge", || {
                [0, 1].map(tap).iter().try_for_each(|tap| {
                    link::set_master(tap, TAP)?;
                    link::set_up(tap)
                })
            })?;
        }
        if backend != Backend::Passt {
            prepare_host(&network.ns, MTU)?;
        }
        let mut serve = Command::new(&peers.offramp);
        serve.args(["ttcp", "--serve"]);
        let server = Program::start("ttcp", serve, Some(&network.ns))?;
        guests[1].run("offramp ttcp --serve >/dev/null 2>&1 &")?;
        stop::sleep(SETTLE)?;
        let Network { scratch, ns, programs } = network;
        let bed = Self { backend, guests, _server: server, daemon, programs, ns, _scratch: scratch };
        bed.signal(Signal::SIGSTOP)?;
        Ok(bed)
    }

    /// Returns the memory of the backend's processes, without the guests' memory. Returns `None` if QEMU itself is the
    /// backend.
    pub fn memory_kib(&self) -> Option<u64> {
        let ids = self.daemon.iter().map(Daemon::id).chain(self.programs.iter().map(Program::id));
        let all: Vec<u64> = ids.filter_map(|id| program::own_memory_kib(id).ok()).collect();
        (!all.is_empty()).then(|| all.iter().sum())
    }

    /// Sets the MTU of the guests' interfaces and of the host's interface.
    ///
    /// # Errors
    /// Returns an error if a guest's interface or the host's interface refuses the MTU.
    pub fn set_mtu(&mut self, mtu: u16) -> Result<()> {
        self.signal(Signal::SIGCONT)?;
        for guest in &mut self.guests {
            guest.run(&format!("ip link set eth0 mtu {mtu}"))?;
        }
        if self.backend != Backend::Passt {
            let taps = matches!(self.backend, Backend::QemuTap | Backend::VhostUserNet).then(|| [0, 1].map(tap));
            inside(&self.ns, "the MTU of the host's end", || {
                taps.iter().flatten().try_for_each(|tap| link::set_mtu(tap, u32::from(mtu)))?;
                link::set_mtu(TAP, u32::from(mtu))
            })?;
        }
        stop::sleep(SETTLE)?;
        self.signal(Signal::SIGSTOP)
    }

    /// Runs one test of a cell.
    ///
    /// # Errors
    /// Returns an error if the backend does not support the test, or the test measures nothing.
    pub fn sample(&mut self, cell: &Cell, seconds: f64) -> Result<Sample> {
        if self.backend == Backend::Passt && cell.path == Path::GuestToGuest {
            return not_possible("passt serves one guest and has no network between guests");
        }
        self.signal(Signal::SIGCONT)?;
        let before = CpuTimes::read().doing("reading /proc/stat")?;
        let begun = Instant::now();
        let printed = self.guests[0].run(&cell.command(seconds));
        let elapsed_s = begun.elapsed().as_secs_f64();
        let busy = CpuTimes::read().doing("reading /proc/stat")?.since(&before);
        self.signal(Signal::SIGSTOP)?;
        let printed = printed?;
        let report = Report::printed(&printed);
        let latency = report.as_ref().and_then(|report| report.transactions.as_ref()).map(|all| all.latency);
        match (report, latency) {
            (_, Some(Latency { p50_us, p99_us, .. })) if cell.is_ping_pong() && p50_us > 0.0 => {
                Ok(Sample::Latency { p50_us, p99_us })
            }
            (Some(Report { throughput_bps: bps, .. }), _) if !cell.is_ping_pong() && bps > 0.0 => {
                Ok(Sample::Bulk { bps, cpu_s_per_gb: busy.busy_us() as f64 / 1e6 / (bps * elapsed_s / 8e9) })
            }
            _ => failed(format!("ttcp in the guest measured nothing:\n{}", printed.trim())),
        }
    }

    /// Stops or continues the backend's processes if the backend polls.
    fn signal(&self, signal: Signal) -> Result<()> {
        self.programs.iter().filter(|_| self.backend.polls()).try_for_each(|program| program.signal(signal))
    }

    /// Ends the guests and the backend.
    pub fn stop(self) {
        let _ = self.signal(Signal::SIGCONT);
        self.guests.into_iter().for_each(Machine::power_off);
        drop(self.daemon.map(Daemon::terminate));
    }
}

fn tap(guest: usize) -> String {
    format!("guest{guest}")
}

/// QEMU's arguments for the backend of each guest's card.
type Cards = Vec<Vec<String>>;

/// A namespace with a backend's running programs.
struct Network {
    scratch: Scratch,
    ns: NetNs,
    programs: Vec<Program>,
}

impl Network {
    fn with(mut self, backend: Backend, peers: &Peers) -> Result<(Self, Option<Daemon>, Cards)> {
        let sockets = [0, 1].map(|guest| self.scratch.file(&format!("guest{guest}.sock")));
        let to_sockets = |more: &str| sockets.iter().map(|path| vhost_user_network(path, 1, more)).collect();
        match backend {
            Backend::Offramp | Backend::OfframpNice => {
                let daemon = Daemon::start(&peers.offramp, &file(&sockets), &self.scratch, &self.ns)?;
                if backend == Backend::OfframpNice {
                    daemon.prefer()?;
                }
                Ok((self, Some(daemon), to_sockets("")))
            }
            Backend::QemuTap => {
                self.in_ns("making a bridge", || link::create_bridge(TAP))?;
                let cards = [0, 1].map(|guest| qemu_tap_network(&tap(guest), 1));
                Ok((self, None, cards.into()))
            }
            Backend::VhostUserNet => {
                let program = found(peers.vhost_user_net.as_deref(), "vhost_user_net")?;
                self.in_ns("making a bridge", || link::create_bridge(TAP))?;
                for (guest, socket) in sockets.iter().enumerate() {
                    let mut command = Command::new(&program);
                    // `vhost_user_net` requires an address for its TAP, although the address is not used.
                    let (tap, address) = (tap(guest), format!("ip=198.19.{guest}.1,mask=255.255.255.0"));
                    let options = format!("{address},socket={socket},num_queues=2,queue_size=1024,tap={tap}");
                    command.args(["--net-backend", &options]);
                    self.start("vhost_user_net", command)?;
                    self.wait_for(socket)?;
                }
                Ok((self, None, to_sockets("")))
            }
            Backend::Passt => {
                let program = found(peers.passt.as_deref(), "passt")?;
                let ip = packages::need(IP)?;
                let (name, address, gateway) = UPSTREAM;
                self.in_ns("making an interface for passt", || {
                    link::create_bridge(name)?;
                    link::add_address(name, IpAddr::V4(address), PREFIX_LEN)?;
                    ["lo", name].iter().try_for_each(|name| link::set_up(name))
                })?;
                self.run(&ip, &["route", "add", "default", "via", &gateway.to_string()])?;
                for ((guest, _), socket) in GUESTS.iter().zip(&sockets) {
                    let mut command = Command::new(&program);
                    command.args(["--foreground", "--quiet", "--runas", "0", "--vhost-user", "--socket", socket]);
                    command.args(["--address", &guest.to_string(), "--netmask", &PREFIX_LEN.to_string()]);
                    // The guest reaches services on the host's loopback interface at this address.
                    command.args(["--gateway", &HOST.to_string()]);
                    command.args(["--map-host-loopback", &HOST.to_string()]);
                    self.start("passt", command)?;
                    self.wait_for(socket)?;
                }
                Ok((self, None, to_sockets("")))
            }
            Backend::OvsDpdk | Backend::OvsDpdkTso => {
                self.open_vswitch(backend == Backend::OvsDpdkTso, &sockets)?;
                Ok((self, None, to_sockets(",server=on")))
            }
        }
    }

    /// Sets up a bridge in user space with a port for each guest. The bridge's local port is the host's interface.
    fn open_vswitch(&mut self, has_tso: bool, sockets: &[String; 2]) -> Result<()> {
        let needed = packages::OVS_DPDK;
        let vswitchd = packages::need(needed)?;
        let directory = self.scratch.path().to_owned();
        let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
        let (conf, db) = (path("conf.db"), format!("unix:{}", path("db.sock")));
        let tool = |name: &str| packages::find(name).map_or_else(|| failed(format!("{name} is missing")), Ok);
        self.run(&tool("ovsdb-tool")?, &["create", &conf, "/usr/share/openvswitch/vswitch.ovsschema"])?;
        let mut server = Command::new(tool("ovsdb-server")?);
        server.args([&conf, &format!("--remote=punix:{}", path("db.sock"))]).env("OVS_RUNDIR", &directory);
        self.start("ovsdb-server", server)?;
        self.wait_for(&path("db.sock"))?;
        let vsctl = tool("ovs-vsctl")?;
        let db = format!("--db={db}");
        let other = |key: &str, value: &str| format!("other_config:{key}={value}");
        self.run(
            &vsctl,
            &[
                &db,
                "--no-wait",
                "set",
                "Open_vSwitch",
                ".",
                &other("dpdk-init", "true"),
                &other("dpdk-extra", &format!("\"--no-huge --legacy-mem -m {DPDK_MIB} --no-pci\"")),
                &other("userspace-tso-enable", if has_tso { "true" } else { "false" }),
            ],
        )?;
        let mut switch = Command::new(vswitchd);
        switch.arg(format!("unix:{}", path("db.sock"))).env("OVS_RUNDIR", &directory);
        self.start("ovs-vswitchd", switch)?;
        let bridge = TAP;
        self.run(
            &vsctl,
            &[&db, "--timeout=60", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"],
        )?;
        for (guest, socket) in sockets.iter().enumerate() {
            let name = tap(guest);
            let path = format!("options:vhost-server-path={socket}");
            let mtu = format!("mtu_request={}", super::MTU_MAX);
            let interface = ["set", "Interface", &name, "type=dpdkvhostuserclient", &path, &mtu];
            self.run(&vsctl, &[&[&db, "--timeout=60", "add-port", bridge, &name, "--"][..], &interface].concat())?;
        }
        Ok(())
    }

    fn in_ns(&self, what: &str, f: impl FnOnce() -> std::result::Result<(), SysError> + Send) -> Result<()> {
        inside(&self.ns, what, f)
    }

    /// Runs a program in the namespace until the program ends.
    fn run(&self, program: &FilePath, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(program);
        command.args(arguments);
        program::output(command, Some(&self.ns)).map(drop)
    }

    /// Starts a program of the backend in the namespace.
    fn start(&mut self, name: &str, command: Command) -> Result<()> {
        self.programs.push(Program::start(name, command, Some(&self.ns))?);
        Ok(())
    }

    /// Waits until the program started last has made a socket.
    fn wait_for(&mut self, socket: &str) -> Result<()> {
        let Some(program) = self.programs.last_mut() else { return failed("nothing was started") };
        let is_over = |program: &mut Program| Ok(FilePath::new(socket).exists() || program.has_ended()?);
        stop::until(READY_TIMEOUT, LOOK, || Ok(is_over(program)?.then_some(())))?;
        if FilePath::new(socket).exists() { Ok(()) } else { failed(format!("no {socket}{}", program.tail())) }
    }
}

fn found(given: Option<&FilePath>, name: &str) -> Result<PathBuf> {
    let found = given.map(FilePath::to_owned).or_else(|| packages::find(name));
    found.map_or_else(|| not_possible(format!("no {name} on this machine")), Ok)
}

/// Returns the daemon's configuration file, without `[daemon]`.
fn file(sockets: &[String; 2]) -> String {
    let mtu = super::MTU_MAX;
    let port = |name: &str, host: &str| {
        format!("[[port]]\nname = \"{name}\"\nmtu = {mtu}\nhost = {{ {host} }}\nwire = {{ switch = \"lan\" }}\n\n")
    };
    let guests = sockets.iter().enumerate().map(|(n, socket)| port(&tap(n), &format!("vhost_user = \"{socket}\"")));
    let host = port("host", &format!("tap = \"{TAP}\""));
    guests.chain([host, "[[switch]]\nname = \"lan\"\n".to_owned()]).collect()
}
