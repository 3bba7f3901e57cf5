//! Tests with a Linux kernel as the IPsec peer. A guest behind a vhost-user port encrypts and decrypts in its kernel
//! (xfrm). The adapter of a TAP encrypts and decrypts the packets of the host's TCP/IP.
//!
//! The guest's associations are installed by `ip xfrm`. The adapter imports the same text, as `offramp sa import
//! --peer` does. The harness sends bytes over TCP in both directions, and checks their SHA-256 and the counters of the
//! guest and the adapter.

mod case;
mod judge;
mod link;

use crate::guest::{GuestArgs, behind_port, options};
use crate::tally::{Only, Tally};
use crate::tcp;
use case::{Case, End, Extra, Version};
use link::Link;
use offramp_offload::esp::xfrm::Owner;
use offramp_ports::sys::{self, NetNs};
use offramp_testbed::failure::{Result, failed, inside, new_namespace};
use offramp_testbed::guest::busybox::{Base, Extras, GUEST, HOST, MTU, TAP, prepare_host, vhost_user_network};
use offramp_testbed::guest::mac_text;
use offramp_testbed::guest::shell::Machine;
use offramp_testbed::packages;
use offramp_testbed::scratch::Scratch;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Instant;

/// IPv6 addresses of the host and the guest, in addition to [`HOST`] and [`GUEST`].
const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PREFIX_LEN_V6: u8 = 64;
/// The guest's Ethernet address. The host has a permanent neighbour entry, because neighbour discovery itself would
/// need protection.
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
/// The guest's kernel modules: ESP, its user interface, and the algorithms. The guest cannot load modules on demand.
/// The IVs of the AEADs need a source of random numbers (`drbg`).
const MODULES: [&str; 18] = [
    "xfrm_user",
    "esp4",
    "esp6",
    "authenc",
    "authencesn",
    "drbg",
    "seqiv",
    "echainiv",
    "cbc",
    "ecb",
    "ctr",
    "gcm",
    "ghash_generic",
    "chacha20poly1305",
    "chacha_generic",
    "poly1305_generic",
    "sha512_generic",
    "aesni_intel",
];
/// Command that opens the UDP sockets for ESP in UDP: without these sockets, Linux accepts no ESP in UDP. The numbers
/// are from `linux/udp.h` and `sys/socket.h`: level 17 (UDP), option 100 (`UDP_ENCAP`), value 2 (`UDP_ENCAP_ESPINUDP`),
/// families 2 and 10.
///
/// The child process keeps the sockets open. The parent process ends when the sockets are open.
const OPEN_PORT_4500: &str = "perl -e 'for ([2,pack(\"S n x12\",2,4500)],[10,pack(\"S n x24\",10,4500)]) \
     { my ($f,$a)=@$_; socket(my $s,$f,2,0) or die \"socket $!\"; \
     $f==2 or setsockopt($s,41,26,pack(\"i\",1)) or die \"v6only $!\"; bind($s,$a) or die \"bind $!\"; \
     setsockopt($s,17,100,pack(\"i\",2)) or die \"encap $!\"; push @s,$s } \
     exit if fork; close STDIN; close STDOUT; sleep' 2>&1";

/// Test a port with IPsec against a Linux kernel's IPsec.
#[derive(clap::Args)]
pub struct Args {
    /// Run every suite in every mode, not the short selection
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    only: Only,
    /// Print the guest's commands of each case instead of running it
    #[arg(long)]
    print_commands: bool,
}

/// Runs the cases in one guest, and prints a line for each. Returns `false` if a case failed.
///
/// # Errors
/// Returns an error if a process does not start, or a signal arrives.
pub fn run(args: &Args) -> Result<bool> {
    let cases: Vec<_> = case::cases(args.full).into_iter().filter(|case| args.only.has(&case.name())).collect();
    if args.print_commands {
        for case in &cases {
            println!("# {}\n{}", case.name(), case.commands(End::Guest).join("\n"));
        }
        return Ok(true);
    }
    let scratch = Scratch::new()?;
    let programs = [packages::need(packages::IP)?, packages::need(packages::PERL)?];
    let base = args.guest.base(Extras { programs: &programs, modules: &MODULES, files: &[] }, &scratch)?;
    let ns = new_namespace()?;
    let link = Link::start(Path::new(&socket(&scratch)), &ns)?;
    let mut tally = Tally::default();
    run_cases(&cases, &base, &link, &ns, &scratch, &mut tally)?;
    Ok(tally.end("ipsec-peer"))
}

fn socket(scratch: &Scratch) -> String {
    scratch.file("guest.sock")
}

fn run_cases(cases: &[Case], base: &Base, link: &Link, ns: &NetNs, scratch: &Scratch, tally: &mut Tally) -> Result<()> {
    let network = vhost_user_network(&socket(scratch), 1, "");
    let options = options::short(&[("mq", "off")]);
    let mut machine = Machine::boot(&behind_port(base, &options, network, "")?, ns)?;
    println!("booted in {:.1} s", machine.boot_time().as_secs_f64());
    prepare(&mut machine, ns)?;
    for case in cases {
        let began = Instant::now();
        let judged = run_one(case, base, link, &mut machine, ns);
        tally.count(&case.name(), began, judged)?;
    }
    machine.power_off();
    Ok(())
}

/// Sets the addresses and neighbours of the guest and the host.
fn prepare(machine: &mut Machine, ns: &NetNs) -> Result<()> {
    prepare_host(ns, MTU)?;
    let mac = inside(ns, "the host's neighbours", || {
        sys::link::add_address(TAP, HOST_V6.into(), PREFIX_LEN_V6)?;
        sys::link::add_neighbour(TAP, GUEST.into(), GUEST_MAC)?;
        sys::link::add_neighbour(TAP, GUEST_V6.into(), GUEST_MAC)?;
        sys::link::mac(TAP)
    })?;
    let [mac, guest_mac] = [mac, GUEST_MAC].map(mac_text);
    machine.run(&format!("/bin/ip link set eth0 down && /bin/ip link set eth0 address {guest_mac}"))?;
    machine.run(&format!("/bin/ip link set eth0 up && /bin/ip addr add {GUEST_V6}/{PREFIX_LEN_V6} dev eth0 nodad"))?;
    for address in [IpAddr::from(HOST), HOST_V6.into()] {
        machine.run(&format!("/bin/ip neigh replace {address} lladdr {mac} dev eth0"))?;
    }
    machine.run(OPEN_PORT_4500)?;
    Ok(())
}

fn run_one(case: &Case, base: &Base, link: &Link, machine: &mut Machine, ns: &NetNs) -> Result<()> {
    let commands = case.commands(End::Guest);
    for command in &commands {
        machine.run(&format!("/bin/{command}"))?;
    }
    // The outbound sequence number (`replay-oseq`) is only in the text for the sending end, so the host installs the
    // text for its own end.
    let (text, owner) = match case.extra {
        Extra::Wrap => (case.commands(End::Host), Owner::Host),
        Extra::None | Extra::Encapsulation => (commands, Owner::Peer),
    };
    link.install(&text.join("\n"), owner)?;
    let before = judge::Counts::read(link.counts(), machine)?;
    let host = match case.version {
        Version::V4 => HOST.into(),
        Version::V6 => HOST_V6.into(),
    };
    let moved =
        tcp::guest_to_host(machine, ns, host, &base.payload).and_then(|()| tcp::host_to_guest(machine, ns, host));
    let judged = judge::Counts::read(link.counts(), machine).and_then(|after| {
        let counts = after.since(&before);
        moved.and_then(|()| counts.judge(case)).map_err(|why| why.map(|why| format!("{why}\n{counts:?}")))
    });
    if !link.is_running() {
        return failed("the adapters have lost the connection to their hosts");
    }
    link.remove_all()?;
    machine.run("/bin/ip xfrm state flush && /bin/ip xfrm policy flush")?;
    judged
}
