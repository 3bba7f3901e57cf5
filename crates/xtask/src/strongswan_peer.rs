//! Tests of an adapter with IPsec against strongSwan. strongSwan's ESP runs in user space (`kernel-libipsec`), so the
//! kernel needs no ESP.
//!
//! ```text
//!  TCP ── TAP ── adapter, ESP ── cable ── packet socket ── veth ── charon, kernel-libipsec ── TUN ── TCP
//! ```
//!
//! strongSwan accepts keys only from IKE. A second charon, on the adapter's host, therefore negotiates with the first
//! charon through the adapter, and writes the keys into its log. After the negotiation, the harness kills the second
//! charon, so that this charon sends its peer no notice. The adapter uses the keys from the log. The harness sends
//! bytes over TCP in both directions, and checks their SHA-256 and the adapter's counters.

use crate::adapters::{Adapters, open_tap};
use crate::tally::{Only, Tally};
use crate::tcp;
use offramp_adapter::config::AdapterConfig;
use offramp_adapter::ipsec::{SaChange, SaDirection, SaStatus};
use offramp_adapter::stats::Loss;
use offramp_offload::esp::{Mode, Prefix, SaConfig, SecretKey, Selector, Suite, Tunnel, UdpPorts};
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::{NetNs, link};
use offramp_ports::tap::{Tap, TapConfig};
use offramp_testbed::failure::{Doing, Result, failed, inside, new_namespace};
use offramp_testbed::guest::busybox::random_bytes;
use offramp_testbed::scratch::Scratch;
use offramp_testbed::stop;
use offramp_testbed::strongswan::{Charon, TunnelEnd};
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Suites common to strongSwan and offramp, with the same name at both ends.
const SUITES: [&str; 5] = ["aes128gcm16", "aes256gcm16", "chacha20poly1305", "aes128-sha256", "aes256-sha512"];
/// Addresses of the tunnel's ends and of the inner hosts: offramp's, then strongSwan's.
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 1, 2)];
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 1, 1), Ipv4Addr::new(10, 79, 1, 2)];
const PREFIX_LEN: u8 = 24;
const TAP: &str = "ofrswan0";
/// The veth pair: the adapter's wire, and strongSwan's interface.
const VETHS: [&str; 2] = ["ofrswan1", "ofrswan2"];
const MTU: u32 = 1500;
const WORKER_NAME: &str = "xtask-strongswan";
/// Number of bytes sent in each direction.
const STREAM_LEN: usize = 16 << 20;
/// Maximum number of host frames per hundred wire frames, for an adapter with super-frames.
const HOST_FRAMES_PER_HUNDRED: u64 = 50;
const IO_TIMEOUT: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_millis(300);

/// strongSwan's ESP in user space at the other end of an adapter.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    only: Only,
}

/// Runs every suite.
///
/// # Errors
/// Returns an error if a program is missing, a namespace cannot be created, or a signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let mut tally = Tally::default();
    for name in SUITES.into_iter().filter(|name| args.only.has(name)) {
        let began = Instant::now();
        let judged = judge(name);
        tally.count(name, began, judged)?;
    }
    Ok(tally.end("strongswan-peer"))
}

fn judge(name: &str) -> Result<()> {
    let suite = Suite::by_name(name).doing("the suite")?;
    let scratch = Scratch::new()?;
    let bed = Bed::new()?;
    // This value is dropped before the bed, because charon uses a namespace of the bed.
    let _far = bed.start_charon(1, name, &scratch)?;
    let keys = Keys::of(&bed.negotiate(name, &scratch)?, suite)?;
    bed.install(&keys, suite)?;
    bed.transfer(0)?;
    bed.transfer(1)?;
    bed.check_counts()
}

/// Two namespaces, and the adapter between them. The fields are dropped in order of declaration.
struct Bed {
    adapters: Adapters,
    _tap: Tap,
    _line: Packet,
    hosts: [NetNs; 2],
}

impl Bed {
    fn new() -> Result<Self> {
        let hosts = [new_namespace()?, new_namespace()?];
        inside(&hosts[0], "setting up our host", || {
            link::set_up("lo")?;
            link::create_veth(VETHS[0], VETHS[1])?;
            link::move_to(VETHS[1], &hosts[1])?;
            link::set_up(VETHS[0])
        })?;
        inside(&hosts[1], "setting up strongSwan's host", || {
            link::set_up("lo")?;
            link::add_address("lo", INNER[1].into(), u32::BITS as u8)?;
            link::add_address(VETHS[1], OUTER[1].into(), PREFIX_LEN)?;
            link::set_up(VETHS[1])
        })?;
        let tap = inside(&hosts[0], "making the TAP", || open_tap(&TapConfig { mtu: MTU, ..TapConfig::new(TAP) }))?;
        let line = Packet::open_in(&hosts[0], &PacketConfig::new(VETHS[0])).doing("opening the line")?;
        let (Some(host), Some(far)) = (tap.queue(0), line.queue(0)) else { return failed("a port has no queue") };
        let config = AdapterConfig { mtu: MTU as usize, ..AdapterConfig::default() };
        let adapters = Adapters::start(WORKER_NAME, &config, host, far)?;
        // The inner network is on the TAP, so that packets for strongSwan's inner host pass through the adapter, which
        // encrypts them.
        inside(&hosts[0], "setting up our host", || {
            link::set_up(TAP)?;
            link::add_address(TAP, OUTER[0].into(), PREFIX_LEN)?;
            link::add_address(TAP, INNER[0].into(), PREFIX_LEN)
        })?;
        Ok(Self { adapters, _tap: tap, _line: line, hosts })
    }

    fn start_charon(&self, side: usize, suite: &str, scratch: &Scratch) -> Result<Charon> {
        let pair = |of: [Ipv4Addr; 2]| [of[side], of[1 - side]];
        let end = TunnelEnd { outer: pair(OUTER), inner: pair(INNER), suite, logs_keys: side == 0 };
        Charon::start(&format!("swan{side}"), &end, &self.hosts[side], scratch)
    }

    /// Runs a charon on the adapter's host, and returns the log of this charon after the negotiation.
    fn negotiate(&self, suite: &str, scratch: &Scratch) -> Result<String> {
        let ours = self.start_charon(0, suite, scratch)?;
        ours.initiate()?;
        let log = fs::read_to_string(&ours.log).doing("reading charon's log")?;
        // Kill charon, so that charon does not notify its peer of its end.
        drop(ours);
        stop::sleep(SETTLE)?;
        Ok(log)
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

    /// Sends bytes from one host to the other, and checks that the bytes arrive unchanged.
    fn transfer(&self, from: usize) -> Result<()> {
        let to = 1 - from;
        let bytes = random_bytes(from as u64, STREAM_LEN);
        let (port, receiver) = tcp::receive(&self.hosts[to], INNER[to].into())?;
        inside(&self.hosts[from], "sending", || send((INNER[to], port).into(), &bytes))?;
        let (received, _) = tcp::join(receiver, Ok(String::new()))?;
        tcp::same(&tcp::digest(&received), &tcp::digest(&bytes), &format!("TCP from side {from}"))
    }

    /// Checks that all traffic was protected in both directions, and that no packet was refused.
    fn check_counts(&self) -> Result<()> {
        if !self.adapters.is_running() {
            return failed("the adapter has lost the connection to its host");
        }
        let status = self.adapters.control.ipsec().status();
        let fewest = STREAM_LEN as u64 / u64::from(MTU);
        let is_busy = |sa: &SaStatus| sa.packets > fewest;
        let queue = &self.adapters.control.queues()[0];
        let bad = [Loss::UnknownSpi, Loss::BadTag, Loss::EspMalformed, Loss::SaPolicy, Loss::Unprotected];
        let refused: u64 = bad.iter().map(|&reason| queue.receive.lost(reason)).sum();
        let (on_line, of_host) = (queue.transmit.frames_out.get(), queue.transmit.host_frames.get());
        let is_cut = of_host * 100 < on_line * HOST_FRAMES_PER_HUNDRED;
        if status.len() == 2 && status.iter().all(is_busy) && refused == 0 && is_cut {
            return Ok(());
        }
        failed(format!(
            "associations {status:?}; {refused} frames refused; {of_host} frames of the host, {on_line} of the wire"
        ))
    }
}

fn send(to: SocketAddr, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, IO_TIMEOUT)?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)
}

/// SPIs and keys from charon's negotiation. Both arrays are indexed by the sending host.
struct Keys {
    spis: [u32; 2],
    secrets: [(SecretKey, SecretKey); 2],
}

impl Keys {
    /// Reads the log of the charon that initiated the negotiation.
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

/// Parses the bytes under a title in the log: lines of 16 hexadecimal bytes after an offset.
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
