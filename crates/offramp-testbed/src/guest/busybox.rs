//! Guests with a shell. The kernel is Debian's or User Mode Linux. The file system contains busybox, ethtool and the
//! virtio modules.

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

/// Memory of a guest in MiB, including its file system.
const MEMORY_MIB: u64 = 384;
/// Default number of a guest's processors, one for each queue pair.
const CPUS: usize = 2;
/// Network prefix length of all addresses, in bits.
pub const PREFIX_LEN: u8 = 24;
/// IPv4 address of the host, from the range reserved for benchmarks (RFC 2544).
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// IPv4 address of the guest, or of the first of several guests.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Name of the TAP that leads to the host's TCP/IP.
pub const TAP: &str = "xtask0";
/// Default MTU, in IP bytes.
pub const MTU: u16 = 1500;
/// Number of bytes in the guest's `/payload`.
const PAYLOAD_LEN: usize = 8 << 20;
/// Seed of the random bytes in the guest's `/payload`.
const PAYLOAD_SEED: u64 = 1;

/// The guest's init script, which sets up the card and then runs the console's commands.
const INIT: &str = include_str!("init.sh");

/// Additions to every guest's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Programs to install in `/bin` with their libraries.
    pub programs: &'a [PathBuf],
    /// Names of kernel modules to load at boot.
    pub modules: &'a [&'a str],
    /// Other files: path without the leading slash, and contents.
    pub files: &'a [(&'a str, &'a [u8])],
}

/// The common part of several guests: program, kernel and file system.
#[derive(Debug)]
pub struct Base {
    /// QEMU's path and accelerators, or `None` for User Mode Linux.
    qemu: Option<(PathBuf, Vec<String>)>,
    kernel: Kernel,
    /// Path of the initramfs archive.
    initramfs: PathBuf,
    /// Contents of the guest's `/payload`.
    pub payload: Vec<u8>,
}

impl Base {
    /// Makes the file system of QEMU guests with `kernel`. `accel` lists accelerators in order of preference.
    ///
    /// # Errors
    /// Returns an error if a package cannot be installed, or has unexpected contents.
    pub fn in_qemu(accel: &[String], kernel: Kernel, extras: Extras, scratch: &Scratch) -> Result<Self> {
        Self::new(Some((packages::need(QEMU)?, accel.to_owned())), kernel, extras, scratch)
    }

    /// Makes the file system of guests in User Mode Linux.
    ///
    /// # Errors
    /// Returns the errors of [`Base::in_qemu`].
    pub fn user_mode(extras: Extras, scratch: &Scratch) -> Result<Self> {
        packages::need(UML)?;
        Self::new(None, Kernel::user_mode(None).doing("User Mode Linux")?, extras, scratch)
    }

    /// Makes the file system of guests with `kernel`. `qemu` is QEMU's path and accelerators; without `qemu`, the
    /// guests run in User Mode Linux.
    ///
    /// # Errors
    /// Returns the errors of [`Base::in_qemu`].
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

    /// Configures a QEMU guest with the address [`GUEST`]. `card` contains QEMU's arguments for the network card.
    ///
    /// # Errors
    /// Returns an error if the guests of this base run in User Mode Linux.
    pub fn with_card(&self, card: Vec<String>) -> Result<MachineConfig> {
        let Some((program, accel)) = self.qemu.clone() else { return failed("these guests are not QEMU's") };
        Ok(self.with(Monitor::Qemu { program, accel, card }))
    }

    /// Configures a QEMU guest with the address [`GUEST`]. `network` contains the arguments for `net0`, the card's
    /// backend ([`vhost_user_network`] or [`qemu_tap_network`]). `device` contains the card's options.
    ///
    /// # Errors
    /// Returns the errors of [`Base::with_card`].
    pub fn machine(&self, network: Vec<String>, device: &str) -> Result<MachineConfig> {
        let device = ["-device".to_owned(), format!("virtio-net-pci,netdev=net0,romfile=,{device}")];
        self.with_card(network.into_iter().chain(device).collect())
    }

    /// Configures a User Mode Linux guest with the address [`GUEST`], connected to the vhost-user port at `socket`.
    pub fn in_user_mode(&self, socket: &str, scratch: &Scratch) -> MachineConfig {
        self.with(Monitor::Uml { socket: socket.into(), directory: scratch.path().to_owned() })
    }

    fn with(&self, monitor: Monitor) -> MachineConfig {
        let (kernel, initramfs) = (self.kernel.clone(), self.initramfs.clone());
        let arguments = at(GUEST, "");
        MachineConfig { monitor, kernel, initramfs, memory_mib: MEMORY_MIB, cpus: CPUS, arguments }
    }

    /// Starts a guest with one processor and a card with one pair of split rings. After the start, the caller must call
    /// [`Machine::wait_until_ready`].
    ///
    /// # Errors
    /// Returns an error if the guest cannot be started.
    pub fn start_small(&self, small: Small, ns: &NetNs) -> Result<Machine> {
        let Small { network, mac, address, mtu, arguments } = small;
        let device = format!("packed=off,mq=off,tx_queue_size=1024,host_mtu={mtu},{NO_INTERRUPTS},mac={mac}");
        let config = MachineConfig { cpus: 1, arguments: at(address, arguments), ..self.machine(network, &device)? };
        Machine::start(&config, ns)
    }
}

/// Option that disables MSI-X. Without KVM, QEMU 7.2 crashes on a vhost-user device with MSI-X (observed in
/// `msix_set_vector_notifiers`, called by `vhost_net_start`).
pub const NO_INTERRUPTS: &str = "vectors=0";

/// Parameters of a guest with one processor.
#[derive(Clone, Debug)]
pub struct Small<'a> {
    /// QEMU's arguments for the card's backend: [`vhost_user_network`] or [`qemu_tap_network`].
    pub network: Vec<String>,
    /// Ethernet address of the guest.
    pub mac: &'a str,
    /// IPv4 address of the guest.
    pub address: Ipv4Addr,
    /// Maximum MTU announced by the guest's card, if the card's backend announces a maximum.
    pub mtu: u16,
    /// Additional arguments on the guest's kernel command line.
    pub arguments: &'static str,
}

/// Returns the kernel arguments `more`, followed by the guest's address. The kernel turns unknown arguments into
/// environment variables of the first program.
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
    // busybox is linked statically, so no libraries are needed.
    archive.file("bin/busybox", 0o755, &fs::read(&busybox).doing(busybox.display())?);
    for program in extras.programs.iter().chain([&packages::need(ETHTOOL)?]) {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        image::add_program(&mut archive, &format!("bin/{name}"), program).doing("the guest's file system")?;
    }
    image::add_modules(&mut archive, kernel, extras.modules).doing("the guest's file system")?;
    Ok(archive.finish())
}

/// Returns pseudo-random bytes, which no offload can reproduce by chance.
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Returns QEMU's arguments for its own backend over a TAP, without the kernel's backend (vhost).
pub fn qemu_tap_network(tap: &str, queues: u16) -> Vec<String> {
    vec!["-netdev".to_owned(), tap_backend(tap, queues.into())]
}

/// Returns QEMU's arguments for a vhost-user port. `chardev` contains further options of the socket, such as
/// `,reconnect=1`.
pub fn vhost_user_network(socket: &str, queues: u16, chardev: &str) -> Vec<String> {
    vec![
        "-chardev".to_owned(),
        format!("socket,id=vhost0,path={socket}{chardev}"),
        "-netdev".to_owned(),
        format!("vhost-user,id=net0,chardev=vhost0,queues={queues}"),
    ]
}

/// Prepares the TAP that leads to the host's TCP/IP: sets the MTU, adds the address [`HOST`], and brings the TAP up.
///
/// # Errors
/// Returns an error if the TAP does not exist, or already has the address.
pub fn prepare_host(ns: &NetNs, mtu: u16) -> Result<()> {
    inside(ns, "preparing the host's end of the TAP", || {
        link::set_mtu(TAP, u32::from(mtu))?;
        link::add_address(TAP, IpAddr::V4(HOST), PREFIX_LEN)?;
        link::set_up(TAP)
    })
}
