//! The configuration of the machine for a guest that runs an [`agent`](super::agent).

use super::runner::{Accelerator, GENERIC_DEVICE, Runner};
use super::vmm::{MachineConfig, Monitor};
use offramp_ports::sys::NetNs;
use std::path::{Path, PathBuf};

/// Memory of a guest in MiB for the kernel, sockets and page cache. The memory of the guest's file system is added to
/// this number.
const MEMORY_MIB: u64 = 192;
/// Number of copies of the file system in memory while the kernel unpacks the archive.
const ARCHIVE_COPIES: u64 = 2;
const MIB: u64 = 1 << 20;

/// Number of processors of a guest with a vhost-user card: one, for its only queue pair.
pub const CPUS: usize = 1;
/// Number of entries of each ring, QEMU's maximum. Long rings help, because an emulated guest refills its rings slowly.
const RING_ENTRIES: u16 = 1024;
/// QEMU's generic device as a network card (virtio 1.3, 5.1): device type, number of rings (receive, transmit,
/// control), and size of the configuration space. The port provides the contents of the configuration space.
const GENERIC_CARD: &str = "virtio-id=1,num_vqs=3,config_size=28";

/// The backend of the guest's virtio-net card.
#[derive(Clone, Copy, Debug)]
pub(super) enum Card<'a> {
    /// Path of a listening vhost-user port.
    VhostUser(&'a Path),
    /// A TAP created by QEMU.
    Tap {
        /// Namespace of the TAP.
        namespace: &'a NetNs,
        /// Name of the TAP.
        name: &'a str,
        /// Number of queue pairs, and of the guest's processors. RSS needs several queue pairs.
        queue_pairs: usize,
    },
}

impl<'a> Card<'a> {
    /// Returns the namespace in which QEMU must run, or `None` for QEMU in this process' namespace.
    pub(super) fn namespace(self) -> Option<&'a NetNs> {
        match self {
            Self::VhostUser(_) => None,
            Self::Tap { namespace, .. } => Some(namespace),
        }
    }
}

/// The parts of a guest's configuration that differ between guests with an agent.
#[derive(Debug)]
pub(super) struct AgentConfig<'a> {
    pub runner: &'a Runner,
    /// Path of the executable of this process, which also runs in the guest.
    pub program: &'a Path,
    /// First argument of the program in the guest.
    pub argument: &'a str,
    /// Names of the modules to load in addition to the card's modules.
    pub modules: &'a [&'a str],
    /// Directory for the file system's archive and the socket.
    pub directory: &'a Path,
    pub card: Card<'a>,
    pub mac: [u8; 6],
    pub mtu: usize,
    /// Processors for the guest's threads.
    pub cpus: &'a [usize],
}

impl AgentConfig<'_> {
    /// Returns the machine's configuration for an archive of `archive_len` bytes.
    pub(super) fn hardware(&self, initramfs: PathBuf, archive_len: u64) -> MachineConfig {
        let Runner { accelerator, program, kernel, .. } = self.runner;
        let monitor = match (accelerator, self.card) {
            (Accelerator::Uml, Card::VhostUser(socket)) => {
                Monitor::Uml { socket: socket.to_owned(), directory: self.directory.to_owned() }
            }
            (Accelerator::Uml, Card::Tap { .. }) => unreachable!("only QEMU is given a TAP"),
            (Accelerator::Kvm | Accelerator::Tcg, _) => Monitor::Qemu {
                program: program.clone(),
                accel: vec![accelerator.name().to_owned()],
                card: self.card(),
            },
        };
        MachineConfig {
            monitor,
            kernel: kernel.clone(),
            initramfs,
            memory_mib: MEMORY_MIB + ARCHIVE_COPIES * archive_len.div_ceil(MIB),
            cpus: if let Card::Tap { queue_pairs, .. } = self.card { queue_pairs } else { CPUS },
            arguments: format!("-- {}", self.argument),
        }
    }

    /// Returns QEMU's arguments for the network card.
    fn card(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Card::VhostUser(socket) = self.card {
            arguments.extend(["-chardev".to_owned(), format!("socket,id=vhost0,path={}", quoted(socket))]);
        }
        if self.runner.forwards_control_queue {
            let card = format!("{GENERIC_DEVICE},chardev=vhost0,{GENERIC_CARD},vq_size={RING_ENTRIES}");
            arguments.extend(["-device".to_owned(), card]);
            return arguments;
        }
        let (backend, options) = match self.card {
            Card::VhostUser(_) => {
                // QEMU allows more than 256 transmit entries with vhost-user, but not with a TAP.
                let options = format!(",tx_queue_size={RING_ENTRIES}{}", self.runner.accelerator.interrupts());
                ("vhost-user,id=net0,chardev=vhost0".to_owned(), options)
            }
            Card::Tap { name, queue_pairs, .. } => {
                let options = if queue_pairs > 1 { ",mq=on,rss=on" } else { "" };
                (tap_backend(name, queue_pairs), options.to_owned())
            }
        };
        let (mac, mtu) = (mac_text(self.mac), self.mtu);
        let device = format!(
            "virtio-net-pci,netdev=net0,romfile=,mac={mac},host_mtu={mtu},rx_queue_size={RING_ENTRIES}{options}"
        );
        arguments.extend(["-netdev".to_owned(), backend, "-device".to_owned(), device]);
        arguments
    }
}

/// Returns QEMU's options for its own backend over a TAP, without the kernel's backend (vhost).
pub(super) fn tap_backend(name: &str, queue_pairs: usize) -> String {
    format!("tap,id=net0,ifname={name},script=no,downscript=no,vhost=off,queues={queue_pairs}")
}

/// Formats an Ethernet address.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Formats a path for QEMU's option lists, with each comma doubled.
fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::super::machine::Speech;
    use super::super::remote::Remote;
    use super::super::runner::tests::runner;
    use super::*;

    fn arguments(runner: &Runner) -> String {
        let config = AgentConfig {
            runner,
            program: Path::new("/p"),
            argument: "guest-agent",
            modules: &[],
            directory: Path::new("/t"),
            card: Card::VhostUser(Path::new("/t,u/s")),
            mac: [2, 0, 0, 0, 0x18, 1],
            mtu: 9000,
            cpus: &[0],
        };
        let command = config.hardware("/t/i".into(), 54 * MIB).command(Remote::LINES);
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        arguments.join(" ")
    }

    #[test]
    fn the_command_line_names_what_the_guest_is_made_of() {
        let line = arguments(&runner("1", "/usr/bin/qemu", false));
        for part in [
            "-accel tcg",
            ",vectors=0",
            "path=/t,,u/s",
            "mac=02:00:00:00:18:01,host_mtu=9000,",
            "size=300M,share=on",
            "-kernel /boot/k -initrd /t/i",
            "-- guest-agent",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn the_generic_card_is_connected_to_the_port_in_place_of_qemus_own() {
        let line = arguments(&runner("1", "/usr/bin/qemu", true));
        let card = "vhost-user-test-device-pci,chardev=vhost0,virtio-id=1,num_vqs=3,";
        assert!(line.contains("path=/t,,u/s") && line.contains(card) && !line.contains("-netdev"), "{line}");
    }
}
