//! Tests of entering a user namespace without root. Only a process with one thread can enter a user namespace. Each
//! case therefore runs this program again as an ordinary user, without a test harness.

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;

use common::is_root_of_the_machine;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use offramp_offload::caps::Offloads;
use offramp_ports::packet::{Packet, PacketConfig};
use offramp_ports::sys::{NetNs, link, privilege};
use offramp_ports::tap::{Tap, TapConfig};

/// Id of the user nobody, an ordinary user on every Linux.
const NOBODY: u32 = 65534;
/// Environment variable that selects the case run by this process.
const CASE: &str = "OFFRAMP_PRIVILEGE_CASE";
/// Major and minor number of `/dev/net/tun` (Linux `Documentation/admin-guide/devices.txt`).
const TUN_NUMBERS: (u64, u64) = (10, 200);
const NONE: Option<&str> = None;

fn main() {
    match std::env::var(CASE).as_deref() {
        Ok("works") => an_ordinary_user_gets_namespaces_and_taps(),
        Ok("refuses") => print_refusal(),
        Ok("tap") => print_refusal_of_a_tap(),
        Ok("threads") => print_refusal_beside_a_thread(),
        _ => run_all(),
    }
}

fn run_all() {
    if !is_root_of_the_machine() {
        an_ordinary_user_gets_namespaces_and_taps();
        println!("ok: as this user (the refusals are tested as root)");
        return;
    }
    privilege::enter().expect("root needs nothing");
    check("works", Some(0o666), "works");
    check("refuses", Some(0o600), "/dev/net/tun cannot be opened (Permission denied (os error 13)); run as root");
    check("refuses", None, "/dev/net/tun does not exist; load the driver (modprobe tun)");
    refused_namespaces_are_named();
    check(
        "tap",
        Some(0o600),
        "tap \"ofr0\": /dev/net/tun cannot be opened (Permission denied (os error 13)); run as root",
    );
    check("tap", None, "tap \"ofr0\": /dev/net/tun does not exist; load the driver (modprobe tun)");
    check(
        "tap",
        Some(0o666),
        "tap \"ofr0\": permission denied making the interface; run as root or grant CAP_NET_ADMIN",
    );
    check("threads", Some(0o666), "a process with several threads cannot enter a user namespace");
}

/// Runs a case without capabilities, as root of a user namespace in which no further user namespace can be created.
fn refused_namespaces_are_named() {
    let mut command = Command::new("/proc/self/exe");
    command.env(CASE, "refuses");
    // SAFETY: this process has one thread, as in `check`.
    unsafe { command.pre_exec(become_unprivileged_root_without_namespaces) };
    expect(command, "user and network namespaces are refused (No space left on device (os error 28)); run as root");
}

fn become_unprivileged_root_without_namespaces() -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/uid_map", "0 0 1\n")?;
    std::fs::write("/proc/sys/user/max_user_namespaces", "0")?;
    // SAFETY: prctl(PR_SET_SECUREBITS) takes its arguments by value.
    let outcome = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, libc::SECBIT_NOROOT) };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Runs one case as an ordinary user. `/dev/net/tun` has mode `tun_mode`, or does not exist if `None`. The output must
/// start with `expected`.
fn check(case: &str, tun_mode: Option<u32>, expected: &str) {
    let mut command = Command::new("/proc/self/exe");
    command.env(CASE, case);
    // SAFETY: this process has one thread, so no other thread holds a lock during the fork, and the child can allocate.
    unsafe { command.pre_exec(move || become_nobody(tun_mode)) };
    expect(command, expected);
}

fn expect(mut command: Command, expected: &str) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.starts_with(expected), "expected {expected:?}, got {text:?}");
    println!("ok: {}", text.lines().next().unwrap_or_default());
}

/// Makes this process an ordinary user. The mounts are made in a new mount namespace, so that they end with the
/// process.
fn become_nobody(tun_mode: Option<u32>) -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    mount(Some("tmpfs"), "/dev/net", Some("tmpfs"), MsFlags::empty(), NONE)?;
    if let Some(mode) = tun_mode {
        let (major, minor) = TUN_NUMBERS;
        nix::sys::stat::umask(Mode::empty());
        mknod("/dev/net/tun", SFlag::S_IFCHR, Mode::from_bits_truncate(mode), makedev(major, minor))?;
    }
    nix::unistd::setgroups(&[])?;
    nix::unistd::setgid(NOBODY.into())?;
    nix::unistd::setuid(NOBODY.into())?;
    Ok(())
}

fn an_ordinary_user_gets_namespaces_and_taps() {
    privilege::enter().unwrap_or_else(|e| panic!("{e}"));
    assert!(nix::unistd::geteuid().is_root(), "root in its own user namespace");
    let (a, b) = (NetNs::new().unwrap(), NetNs::new().unwrap());
    for ns in [&a, &b] {
        let tap = Tap::open_in(ns, &TapConfig::new("ofr0")).unwrap();
        tap.offer(Offloads::all()).unwrap();
        ns.run(|| link::set_up("ofr0").unwrap()).unwrap();
        ns.run(|| link::disable_ipv6("ofr0").unwrap()).unwrap();
    }
    a.run(|| link::create_veth("va", "vb").unwrap()).unwrap();
    a.run(|| link::move_to("vb", &b).unwrap()).unwrap();
    Packet::open_in(&a, &PacketConfig::new("va")).unwrap_or_else(|e| panic!("{e}"));
    let mtu = offramp_ports::sys::rps::read_attribute(&b, "vb", "mtu").unwrap_or_else(|e| e.to_string());
    let steering = offramp_ports::sys::rps::set(&b, "vb", &[0]).map_or_else(|e| e.to_string(), |()| "set".into());
    println!("works; mtu by sysfs: {mtu}; steering: {steering}");
}

fn print_refusal() {
    println!("{}", privilege::enter().unwrap_err());
}

/// Prints the refusal of a TAP in the machine's namespace, without entering a new namespace.
fn print_refusal_of_a_tap() {
    println!("{}", Tap::open(&TapConfig::new("ofr0")).unwrap_err());
}

fn print_refusal_beside_a_thread() {
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || stopped.recv());
        print_refusal();
        drop(stop);
    });
}
