//! Guests with a shell: a Debian kernel or User Mode Linux, and a file system with busybox, ethtool and the virtio
//! modules.

use super::command::tap_backend;
use super::image;
use super::kernel::Kernel;
use super::shell::Machine;
use super::vmm::{MachineConfig, Monitor};
use crate::failure::{Doing, Result, failed, inside};
use crate::packages::{self, BUSYBOX, ETHTOOL, QEMU, UML};
use crate::scratch::Scratch;
use offramp_ports::sys::{NetNs, link};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// Memory of a guest in MiB, its file system included.
const MEMORY_MIB: u64 = 384;
/// Default number of processors of a guest: one for each queue pair.
const CPUS: usize = 2;
/// Bits of the network part of all addresses.
pub const PREFIX_LEN: u8 = 24;
/// The host's address (a block for tests, RFC 2544).
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The guest's, or the first one's.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The TAP of the host's TCP/IP.
pub const TAP: &str = "xtask0";
/// Default IP bytes of a frame.
pub const MTU: u16 = 1500;
/// Bytes sent by the guest.
const PAYLOAD_LEN: usize = 8 << 20;
/// Chooses those bytes.
const PAYLOAD_SEED: u64 = 1;

/// The guest's first and only program of its own: it sets up the card, then runs the console's commands.
const INIT: &str = include_str!("init.sh");

/// Additions to the file system of every guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Programs for `/bin`, with their libraries.
    pub programs: &'a [PathBuf],
    /// Modules of its kernel, loaded at boot.
    pub modules: &'a [&'a str],
    /// Other files, by their paths without the leading slash.
    pub files: &'a [(&'a str, &'a [u8])],
}

/// The common part of guests: a program, a kernel and its file system.
#[derive(Debug)]
pub struct Base {
    /// QEMU and its accelerators; none for User Mode Linux.
    qemu: Option<(PathBuf, Vec<String>)>,
    kernel: Kernel,
    /// The archive of the file system.
    initramfs: PathBuf,
    /// The content of the guest's `/payload`.
    pub payload: Vec<u8>,
}

impl Base {
    /// Makes the file system of guests in QEMU with that kernel. `accel` has the preferred accelerator first.
    ///
    /// # Errors
    /// When a package cannot be had, or has other contents than it should.
    pub fn in_qemu(accel: &[String], kernel: Kernel, extras: Extras, scratch: &Scratch) -> Result<Self> {
        Self::new(Some((packages::need(QEMU)?, accel.to_owned())), kernel, extras, scratch)
    }

    /// Makes the file system of guests in User Mode Linux.
    ///
    /// # Errors
    /// As [`Base::in_qemu`].
    pub fn user_mode(extras: Extras, scratch: &Scratch) -> Result<Self> {
        packages::need(UML)?;
        Self::new(None, Kernel::user_mode(None).doing("User Mode Linux")?, extras, scratch)
    }

    /// Makes the file system of guests with `kernel`; `qemu` runs them, or User Mode Linux if that is `None`.
    ///
    /// # Errors
    /// As [`Base::in_qemu`].
    pub fn new(
        qemu: Option<(PathBuf, Vec<String>)>,
        kernel: Kernel,
        extras: Extras,
        scratch: &Scratch,
    ) -> Result<Self> {
        let payload = random_bytes(PAYLOAD_SEED, PAYLOAD_LEN);
        let archive = file_system(&kernel, extras, &payload)?;
        let initramfs = scratch.path().join("initramfs");
        fs::write(&initramfs, archive).doing(initramfs.display())?;
        Ok(Self { qemu, kernel, initramfs, payload })
    }

    /// Configures a guest with the address [`GUEST`], in QEMU. `card` has the arguments for its network card.
    ///
    /// # Errors
    /// When these guests are not QEMU's.
    pub fn with_card(&self, card: Vec<String>) -> Result<MachineConfig> {
        let Some((program, accel)) = self.qemu.clone() else { return failed("these guests are not QEMU's") };
        Ok(self.with(Monitor::Qemu { program, accel, card }))
    }

    /// Configures a guest with the address [`GUEST`], in QEMU. `network` has the arguments for `net0`, the host's side
    /// of its card ([`vhost_user_network`] or [`qemu_tap_network`]), and `device` the card's options.
    ///
    /// # Errors
    /// As [`Base::with_card`].
    pub fn machine(&self, network: Vec<String>, device: &str) -> Result<MachineConfig> {
        let device = ["-device".to_owned(), format!("virtio-net-pci,netdev=net0,romfile=,{device}")];
        self.with_card(network.into_iter().chain(device).collect())
    }

    /// Configures a guest with the address [`GUEST`] in User Mode Linux, behind the port at that socket.
    pub fn in_user_mode(&self, socket: &str, scratch: &Scratch) -> MachineConfig {
        self.with(Monitor::Uml { socket: socket.into(), directory: scratch.path().to_owned() })
    }

    fn with(&self, monitor: Monitor) -> MachineConfig {
        let (kernel, initramfs) = (self.kernel.clone(), self.initramfs.clone());
        let arguments = at(GUEST, "");
        MachineConfig { monitor, kernel, initramfs, memory_mib: MEMORY_MIB, cpus: CPUS, arguments }
    }

    /// Starts a guest with one processor, and a card with one queue pair of split rings; [`Machine::wait_until_ready`]
    /// must follow.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_small(&self, small: Small, ns: &NetNs) -> Result<Machine> {
        let Small { network, mac, address, mtu, arguments } = small;
        let device = format!("packed=off,mq=off,tx_queue_size=1024,host_mtu={mtu},{NO_INTERRUPTS},mac={mac}");
        let config = MachineConfig { cpus: 1, arguments: at(address, arguments), ..self.machine(network, &device)? };
        Machine::start(&config, ns)
    }
}

/// QEMU 7.2 crashes when a vhost-user device has message interrupts and no KVM (observed in
/// `msix_set_vector_notifiers`, called by `vhost_net_start`).
pub const NO_INTERRUPTS: &str = "vectors=0";

/// The parameters of a guest with one processor.
#[derive(Clone, Debug)]
pub struct Small<'a> {
    /// The host's side of its card: [`vhost_user_network`] or [`qemu_tap_network`].
    pub network: Vec<String>,
    /// Its Ethernet address.
    pub mac: &'a str,
    /// Its address.
    pub address: Ipv4Addr,
    /// Largest MTU announced by its card, where its backend announces one.
    pub mtu: u16,
    /// Additions to its kernel's command line.
    pub arguments: &'static str,
}

/// Returns the kernel's arguments for a guest with that address, and more. The kernel turns unknown arguments into
/// variables of the first program.
pub fn at(address: Ipv4Addr, more: &str) -> String {
    format!("{more} address={address}/{PREFIX_LEN}")
}

fn file_system(kernel: &Kernel, extras: Extras, payload: &[u8]) -> Result<Vec<u8>> {
    let mut archive = image::skeleton();
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("payload", 0o644, payload);
    for (path, bytes) in extras.files {
        archive.file(path, 0o644, bytes);
    }
    let busybox = packages::need(BUSYBOX)?;
    // Busybox has no loader to ask for libraries.
    archive.file("bin/busybox", 0o755, &fs::read(&busybox).doing(busybox.display())?);
    for program in extras.programs.iter().chain([&packages::need(ETHTOOL)?]) {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        image::add_program(&mut archive, &format!("bin/{name}"), program).doing("the guest's file system")?;
    }
    image::add_modules(&mut archive, kernel, extras.modules).doing("the guest's file system")?;
    Ok(archive.finish())
}

/// Returns random bytes; no offload can guess them.
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Returns QEMU's arguments for its own backend over a TAP, without the kernel's help (vhost).
pub fn qemu_tap_network(tap: &str, queues: u16) -> Vec<String> {
    vec!["-netdev".to_owned(), tap_backend(tap, queues.into())]
}

/// Returns the same for a vhost-user port; `chardev` are more options of the socket (`,reconnect=1`).
pub fn vhost_user_network(socket: &str, queues: u16, chardev: &str) -> Vec<String> {
    vec![
        "-chardev".to_owned(),
        format!("socket,id=vhost0,path={socket}{chardev}"),
        "-netdev".to_owned(),
        format!("vhost-user,id=net0,chardev=vhost0,queues={queues}"),
    ]
}

/// Gives the host's end of the TAP its address.
///
/// # Errors
/// When there is no TAP, or it has the address.
pub fn prepare_host(ns: &NetNs, mtu: u16) -> Result<()> {
    inside(ns, "preparing the host's end of the TAP", || {
        link::set_mtu(TAP, u32::from(mtu))?;
        link::add_address(TAP, IpAddr::V4(HOST), PREFIX_LEN)?;
        link::set_up(TAP)
    })
}
