//! strongSwan does IPsec at the other end of an adapter with IPsec. Its own ESP runs in user space (`kernel-libipsec`),
//! so no kernel needs to have any.
//!
//! ```text
//!  TCP ── TAP ── adapter, ESP ── cable ── packet socket ── veth ── charon, kernel-libipsec ── TUN ── TCP
//! ```
//!
//! strongSwan takes keys only by IKE. So a second charon, on the adapter's host, negotiates with the first, through the
//! adapter, and writes the keys into its log. Then it is killed; its peer does not notice. The adapter takes the keys,
//! and bytes go over TCP both ways, judged by SHA-256 and by the adapter's counters.

use crate::adapters::Adapters;
use crate::failure::{Doing, Result, failed};
use crate::interop::Tally;
use crate::packages;
use crate::program::Program;
use crate::scratch::Scratch;
use crate::stop;
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection, SaStatus};
use offramp_adapter::stats::Loss;
use offramp_offload::caps::Offloads;
use offramp_offload::esp::{Mode, Prefix, SaConfig, SecretKey, Selector, Suite, Tunnel, UdpPorts};
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::{NetNs, confine, link};
use offramp_ports::tap::{Tap, TapConfig};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Common suites, with the same name at both ends.
const SUITES: [&str; 5] = ["aes128gcm16", "aes256gcm16", "chacha20poly1305", "aes128-sha256", "aes256-sha512"];
/// Addresses of the tunnel's ends and of the hosts inside: ours, strongSwan's.
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 1, 2)];
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 1, 1), Ipv4Addr::new(10, 79, 1, 2)];
const PREFIX_LEN: u8 = 24;
const TAP: &str = "ofrswan0";
/// Our line, and strongSwan's end of it.
const VETHS: [&str; 2] = ["ofrswan1", "ofrswan2"];
const MTU: u32 = 1500;
const WORKER_NAME: &str = "xtask-strongswan";
const TCP_PORT: u16 = 5001;
/// Bytes in each direction.
const STREAM_LEN: u64 = 16 << 20;
const BLOCK_LEN: usize = 1 << 16;
/// Upper limit for an adapter with super-frames: frames of its host for each hundred of the wire.
const HOST_FRAMES_PER_HUNDRED: u64 = 50;
const READY_TIMEOUT: Duration = Duration::from_secs(15);
const IO_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_millis(300);

/// strongSwan's ESP in user space at the other end of an adapter.
#[derive(clap::Args)]
pub struct Args {
    /// Only suites with this in their name
    #[arg(long, default_value = "")]
    only: String,
}

/// Runs every suite.
///
/// # Errors
/// When a program is missing, a namespace cannot be made, or a signal comes.
pub fn run(args: &Args) -> Result<bool> {
    let programs = [packages::need(packages::CHARON)?, packages::need(packages::SWANCTL)?];
    let mut tally = Tally::default();
    for name in SUITES.into_iter().filter(|name| name.contains(&args.only)) {
        let began = Instant::now();
        let judged = judge(name, &programs);
        tally.count(name, began, judged)?;
    }
    Ok(tally.end("strongswan-peer"))
}

fn judge(name: &str, programs: &[PathBuf; 2]) -> Result<()> {
    let suite = Suite::by_name(name).doing("the suite")?;
    let scratch = Scratch::new()?;
    let bed = Bed::new()?;
    // Dropped before the bed, as it uses the bed's namespace.
    let _far = Charon::start(1, &bed, suite, programs, &scratch)?;
    let keys = negotiated(&bed, suite, programs, &scratch)?;
    bed.install(&keys, suite)?;
    bed.transfer(0)?;
    bed.transfer(1)?;
    bed.check_counts()
}

/// Returns the keys negotiated by a charon on our side.
fn negotiated(bed: &Bed, suite: Suite, programs: &[PathBuf; 2], scratch: &Scratch) -> Result<Keys> {
    let ours = Charon::start(0, bed, suite, programs, scratch)?;
    ours.swanctl(&["--initiate", "--child", "link", "--timeout", "15"])?;
    let log = fs::read_to_string(&ours.log).doing("reading charon's log")?;
    // Killed: it must not notify its peer of its end.
    drop(ours);
    stop::sleep(SETTLE)?;
    Keys::of(&log, suite)
}

/// Two namespaces, and the adapter on the way from the one to the other. Dropped in this order.
struct Bed {
    adapters: Adapters,
    _tap: Tap,
    _line: Packet,
    hosts: [NetNs; 2],
}

impl Bed {
    fn new() -> Result<Self> {
        let hosts = [NetNs::new(), NetNs::new()].map(|made| made.doing("making a network namespace (run as root)"));
        let [ours, far] = hosts;
        let hosts = [ours?, far?];
        inside(&hosts[0], || {
            link::set_up("lo")?;
            link::create_veth(VETHS[0], VETHS[1])?;
            link::move_to(VETHS[1], &hosts[1])?;
            link::set_up(VETHS[0])
        })?;
        inside(&hosts[1], || {
            link::set_up("lo")?;
            link::add_address("lo", INNER[1].into(), u32::BITS as u8)?;
            link::add_address(VETHS[1], OUTER[1].into(), PREFIX_LEN)?;
            link::set_up(VETHS[1])
        })?;
        let tap = hosts[0].run(open_tap).doing("entering a namespace")??;
        let line = Packet::open_in(&hosts[0], &PacketConfig::new(VETHS[0])).doing("opening the line")?;
        let (Some(host), Some(far)) = (tap.queue(0), line.queue(0)) else { return failed("a port has no queue") };
        let config = AdapterConfig { mtu: MTU as usize, ..AdapterConfig::default() };
        let adapters = Adapters::start(WORKER_NAME, &config, host, far)?;
        // The inner network is on the TAP: packets for the other inner host go to the other end to be sealed.
        inside(&hosts[0], || {
            link::set_up(TAP)?;
            link::add_address(TAP, OUTER[0].into(), PREFIX_LEN)?;
            link::add_address(TAP, INNER[0].into(), PREFIX_LEN)
        })?;
        Ok(Self { adapters, _tap: tap, _line: line, hosts })
    }

    fn install(&self, keys: &Keys, suite: Suite) -> Result<()> {
        let add = |direction, from: usize| {
            let to = 1 - from;
            let (encryption, integrity) = keys.secrets[from].clone();
            let prefix = |side: usize| Some(Prefix::of(INNER[side].into()));
            let config = SaConfig {
                mode: Mode::Tunnel(Tunnel::new(OUTER[from].into(), OUTER[to].into())),
                udp: Some(UdpPorts::default()),
                selector: Selector { source: prefix(from), destination: prefix(to), ..Selector::default() },
                ..SaConfig::new(keys.spis[from], suite, encryption, integrity)
            };
            SaChange::Add { direction, config: Box::new(config) }
        };
        let changes = [add(SaDirection::Out, 0), add(SaDirection::In, 1)];
        self.adapters.control.change_ipsec(&changes).map_err(|(_, why)| why).doing("installing associations")
    }

    /// Sends bytes from one host to the other, and checks that they arrive unchanged.
    fn transfer(&self, from: usize) -> Result<()> {
        let to = 1 - from;
        let listener = inside(&self.hosts[to], || TcpListener::bind((INNER[to], TCP_PORT)))?;
        let (sent, received) = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| self.hosts[to].run(|| receive(&listener)));
            let sent = self.hosts[from].run(|| send((INNER[to], TCP_PORT).into()));
            (sent, receiver.join())
        });
        let Ok(received) = received else { return failed("the receiver panicked") };
        let sent = sent.doing("entering a namespace")?.doing("sending")?;
        let received = received.doing("entering a namespace")?.doing("receiving")?;
        if sent == received { Ok(()) } else { failed(format!("what side {from} sent is not what arrived")) }
    }

    /// Checks that all of it was protected, in both directions, and that nothing was refused.
    fn check_counts(&self) -> Result<()> {
        if !self.adapters.is_running() {
            return failed("the adapter has lost its host");
        }
        let status = self.adapters.control.ipsec().status();
        let fewest = STREAM_LEN / u64::from(MTU);
        let is_busy = |sa: &SaStatus| sa.packets > fewest;
        let queue = &self.adapters.control.queues()[0];
        let bad = [Loss::UnknownSpi, Loss::BadTag, Loss::EspMalformed, Loss::SaPolicy, Loss::Unprotected];
        let refused: u64 = bad.iter().map(|&reason| queue.receive.lost(reason)).sum();
        let (on_line, of_host) = (queue.transmit.frames_out.get(), queue.transmit.host_frames.get());
        let is_cut = of_host * 100 < on_line * HOST_FRAMES_PER_HUNDRED;
        if status.len() == 2 && status.iter().all(is_busy) && refused == 0 && is_cut {
            return Ok(());
        }
        failed(format!("{status:?}; refused {refused}; {of_host} frames of the host, {on_line} of the wire"))
    }
}

fn inside<T: Send, E: std::fmt::Display + Send>(
    ns: &NetNs,
    f: impl FnOnce() -> std::result::Result<T, E> + Send,
) -> Result<T> {
    ns.run(f).doing("entering a namespace")?.doing("setting up a namespace")
}

fn open_tap() -> Result<Tap> {
    let tap = Tap::open(&TapConfig { mtu: MTU, ..TapConfig::new(TAP) }).doing("making the TAP")?;
    tap.offer(Offloads::all()).doing("making the TAP")?;
    Ok(tap)
}

fn send(to: SocketAddr) -> std::io::Result<[u8; 32]> {
    let mut stream = TcpStream::connect_timeout(&to, IO_TIMEOUT)?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let (mut digest, mut block) = (Sha256::new(), vec![0; BLOCK_LEN]);
    for n in 0..STREAM_LEN / BLOCK_LEN as u64 {
        block.iter_mut().zip(0_u64..).for_each(|(byte, at)| *byte = (n * 31 + at * 7 + (at >> 8)) as u8);
        digest.update(&block);
        stream.write_all(&block)?;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(digest.finalize().into())
}

fn receive(listener: &TcpListener) -> std::io::Result<[u8; 32]> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + IO_TIMEOUT;
    let mut stream = loop {
        match listener.accept() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(LOOK);
            }
            other => break other?.0,
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    let (mut digest, mut block) = (Sha256::new(), vec![0; BLOCK_LEN]);
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(digest.finalize().into()),
            len => digest.update(&block[..len]),
        }
    }
}

/// A charon of one side. Dropping it kills it.
struct Charon {
    _program: Program,
    swanctl: PathBuf,
    directory: PathBuf,
    log: PathBuf,
}

impl Charon {
    fn start(side: usize, bed: &Bed, suite: Suite, programs: &[PathBuf; 2], scratch: &Scratch) -> Result<Self> {
        let directory = scratch.path().join(format!("swan{side}"));
        let log = directory.join("log");
        fs::create_dir_all(directory.join("run")).doing("making a directory for strongSwan")?;
        fs::write(directory.join("strongswan.conf"), strongswan_conf(side, &directory)).doing("strongswan.conf")?;
        let connections = directory.join("swanctl.conf");
        fs::write(&connections, swanctl_conf(side, suite)).doing("writing swanctl.conf")?;
        // Two daemons cannot share /run: each gets a mount namespace, and there one of its own.
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$0/run\" /run && exec \"$1\""]);
        command.args([&directory, &programs[0]]);
        command.env("STRONGSWAN_CONF", directory.join("strongswan.conf"));
        confine(&mut command, Some(&bed.hosts[side]), None).doing("preparing charon")?;
        let program = Program::start("charon", command)?;
        let charon = Self { _program: program, swanctl: programs[1].clone(), directory, log };
        let end = Instant::now() + READY_TIMEOUT;
        while !charon.directory.join("vici.sock").exists() {
            if Instant::now() > end {
                return failed(format!("charon was not ready within {READY_TIMEOUT:?}"));
            }
            stop::sleep(LOOK)?;
        }
        stop::sleep(SETTLE)?;
        charon.swanctl(&["--load-all".as_ref(), "--file".as_ref(), connections.as_os_str()])?;
        Ok(charon)
    }

    fn swanctl(&self, args: &[impl AsRef<OsStr>]) -> Result<()> {
        let mut command = Command::new(&self.swanctl);
        command.env("STRONGSWAN_CONF", self.directory.join("strongswan.conf")).args(args);
        command.arg("--uri").arg(format!("unix://{}", self.directory.join("vici.sock").display()));
        let output = command.output().doing("running swanctl")?;
        if output.status.success() {
            return Ok(());
        }
        failed(format!("swanctl: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout).trim()))
    }
}

/// Configures ESP in user space and a control socket of its own; on our side no routes into its own tunnel, and the
/// keys in the log.
fn strongswan_conf(side: usize, directory: &Path) -> String {
    let directory = directory.display();
    let (routes, level) = if side == 0 { ("no", 4) } else { ("yes", 1) };
    format!(
        "charon-systemd {{\n  load_modular = yes\n  install_routes = {routes}\n  journal {{ default = -1 }}\n  \
         filelog {{ l {{\n    path = {directory}/log\n    default = 1\n    chd = {level}\n    flush_line = yes\n  }} }}\n  \
         plugins {{\n    include /etc/strongswan.d/charon/*.conf\n    kernel-libipsec {{ load = yes }}\n    \
         vici {{ socket = unix://{directory}/vici.sock }}\n    bypass-lan {{ load = no }}\n  }}\n}}\n"
    )
}

/// Configures one tunnel with ESP in UDP, the only mode of ESP in user space.
fn swanctl_conf(side: usize, suite: Suite) -> String {
    let (own, other) = (OUTER[side], OUTER[1 - side]);
    let (local, remote) = (INNER[side], INNER[1 - side]);
    format!(
        "connections {{ link {{\n  version = 2\n  local_addrs = {own}\n  remote_addrs = {other}\n  encap = yes\n  \
         proposals = aes128gcm16-prfsha256-x25519\n  local {{ auth = psk\n id = {own} }}\n  remote {{ auth = psk\n id = {other} }}\n  \
         children {{ link {{\n    local_ts = {local}/32\n    remote_ts = {remote}/32\n    esp_proposals = {suite}\n    \
         mode = tunnel\n  }} }}\n}} }}\nsecrets {{ ike-link {{ secret = \"a test keeps no secret\" }} }}\n"
    )
}

/// The result of charon's negotiation, by the sealing side.
struct Keys {
    spis: [u32; 2],
    secrets: [(SecretKey, SecretKey); 2],
}

impl Keys {
    /// Reads the log of the initiating side.
    fn of(log: &str, suite: Suite) -> Result<Self> {
        let spi = |from: usize| {
            let ends = format!(", src {} dst {}", OUTER[from], OUTER[1 - from]);
            let line = log.lines().find(|line| line.ends_with(&ends) && line.contains("SPI 0x"));
            let digits = line.and_then(|line| line.split_once("SPI 0x")?.1.split(',').next());
            digits.and_then(|digits| u32::from_str_radix(digits, 16).ok())
        };
        let secrets = |who: &str| {
            let encryption = dump(log, &format!("encryption {who} key"), suite.encryption_key_len())?;
            Some((encryption, dump(log, &format!("integrity {who} key"), suite.integrity_key_len())?))
        };
        let found = spi(0).zip(spi(1)).zip(secrets("initiator").zip(secrets("responder")));
        match found {
            Some((spis, secrets)) => Ok(Self { spis: spis.into(), secrets: secrets.into() }),
            None => failed("charon's log does not have the keys of the tunnel"),
        }
    }
}

/// Parses the bytes under a title in the log: lines of 16, in hexadecimal after their offset.
fn dump(log: &str, title: &str, len: usize) -> Option<SecretKey> {
    if len == 0 {
        return Some(SecretKey::none());
    }
    let mut lines = log.lines().skip_while(|line| !line.contains(&format!("{title} => {len} bytes")));
    lines.next()?;
    let bytes_of = |line: &str| -> Option<String> {
        let (_, rest) = line.split_once(": ")?;
        Some(rest.split("  ").next()?.split_whitespace().collect())
    };
    let text: String = lines.take(len.div_ceil(16)).map_while(bytes_of).collect();
    SecretKey::from_hex(&text).ok().filter(|key| key.len() == len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "11[CHD] encryption initiator key => 20 bytes @ 0x7f5f70003190\n\
        11[CHD]    0: 39 5A D3 FF CD F0 36 D9 58 CB B2 06 06 0E D7 B3  9Z....6.X.......\n\
        11[CHD]   16: A7 6F 16 28                                      .o.(\n\
        11[CHD] encryption responder key => 20 bytes @ 0x7f5f70004620\n\
        11[CHD]    0: A1 F7 BC 2A DE 42 FF F0 C1 86 5E 46 07 FC 61 0B  ...*.B....^F..a.\n\
        11[CHD]   16: B3 27 35 BB                                      .'5.\n\
        11[CHD] adding inbound ESP SA\n\
        11[CHD]   SPI 0xdd50c4c5, src 10.77.1.2 dst 10.77.1.1\n\
        11[CHD] adding outbound ESP SA\n\
        11[CHD]   SPI 0x98b094a6, src 10.77.1.1 dst 10.77.1.2\n";

    #[test]
    fn the_keys_of_both_directions_are_in_the_log_of_the_side_that_began() {
        let keys = Keys::of(LOG, Suite::by_name("aes128gcm16").unwrap()).unwrap();
        assert_eq!(keys.spis, [0x98b0_94a6, 0xdd50_c4c5]);
        let key = |digits| (SecretKey::from_hex(digits).unwrap(), SecretKey::none());
        assert_eq!(keys.secrets[0], key("395ad3ffcdf036d958cbb206060ed7b3a76f1628"));
        assert_eq!(keys.secrets[1], key("a1f7bc2ade42fff0c1865e4607fc610bb32735bb"));
        assert!(Keys::of(LOG, Suite::by_name("aes128-sha256").unwrap()).is_err());
        assert!(Keys::of("", Suite::by_name("aes128gcm16").unwrap()).is_err());
    }
}
