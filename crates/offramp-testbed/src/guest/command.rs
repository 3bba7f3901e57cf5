//! The command line of a guest.

use super::runner::{Accelerator, GENERIC_DEVICE, Runner};
use super::vmm::{self, Hardware};
use offramp_ports::sys::NetNs;
use std::path::Path;
use std::process::Command;

/// Processors of a guest: one for its one queue pair.
pub const CPUS: usize = 1;
/// Entries of each ring: QEMU's maximum. An emulated guest is slow to make room again.
const RING_ENTRIES: u16 = 1024;
/// QEMU's generic device as a network card (virtio 1.3, 5.1): its kind, its rings (receive, transmit, control), and the
/// size of its configuration space. The port serves the configuration.
const GENERIC_CARD: &str = "virtio-id=1,num_vqs=3,config_size=28";

/// The other end of the guest's virtio-net card.
#[derive(Clone, Copy, Debug)]
pub(super) enum Card<'a> {
    /// A listening vhost-user port.
    VhostUser(&'a Path),
    /// A TAP made by QEMU.
    Tap {
        /// The TAP's namespace.
        namespace: &'a NetNs,
        /// Its name.
        name: &'a str,
        /// Queue pairs, and processors of the guest. Several are for RSS.
        queue_pairs: usize,
    },
}

impl<'a> Card<'a> {
    /// Returns the namespace in which QEMU must run.
    pub(super) fn namespace(self) -> Option<&'a NetNs> {
        match self {
            Self::VhostUser(_) => None,
            Self::Tap { namespace, .. } => Some(namespace),
        }
    }
}

/// The parts of a command line that differ between guests.
#[derive(Debug)]
pub(super) struct MachineConfig<'a> {
    pub runner: &'a Runner,
    /// This program, also the guest's.
    pub program: &'a Path,
    /// The program's first argument.
    pub argument: &'a str,
    /// Modules besides the card's.
    pub modules: &'a [&'a str],
    /// A directory for the file system, the socket and the console.
    pub directory: &'a Path,
    pub card: Card<'a>,
    pub mac: [u8; 6],
    pub mtu: usize,
    /// Processors for the guest's threads.
    pub cpus: &'a [usize],
}

/// The command that boots a guest.
pub(super) fn command(config: &MachineConfig, initramfs: &Path, console: &Path, memory_mib: u64) -> Command {
    let Runner { accelerator, program, kernel, .. } = config.runner;
    let arguments = format!("-- {}", config.argument);
    let cpus = if let Card::Tap { queue_pairs, .. } = config.card { queue_pairs } else { CPUS };
    let hardware = Hardware { kernel, initramfs, memory_mib, cpus, arguments: &arguments };
    match accelerator {
        // The kernel's console is standard error, which goes to the same file as QEMU's.
        Accelerator::Uml => {
            let Card::VhostUser(socket) = config.card else { unreachable!("only QEMU is given a TAP") };
            vmm::uml(&hardware, socket, config.directory, &["con0=null,fd:2", "ssl1=fd:0,fd:1"])
        }
        Accelerator::Kvm | Accelerator::Tcg => {
            let mut command = vmm::qemu(program, &[accelerator.name().to_owned()], &hardware);
            add_devices(&mut command, *accelerator, config, console);
            command
        }
    }
}

/// QEMU's arguments for consoles and network card.
fn add_devices(command: &mut Command, accelerator: Accelerator, config: &MachineConfig, console: &Path) {
    // The first serial port is the kernel's, the second ours.
    let file = format!("file,id=console,append=on,path={}", quoted(console));
    command.args(["-chardev", &file, "-serial", "chardev:console", "-serial", "stdio"]);
    if let Card::VhostUser(socket) = config.card {
        command.args(["-chardev", &format!("socket,id=vhost0,path={}", quoted(socket))]);
    }
    if config.runner.forwards_control_queue {
        let card = format!("{GENERIC_DEVICE},chardev=vhost0,{GENERIC_CARD},vq_size={RING_ENTRIES}");
        command.args(["-device", &card]);
        return;
    }
    let (backend, backend_options) = match config.card {
        Card::VhostUser(_) => {
            // QEMU allows more than 256 transmit entries only with this.
            let options = format!(",tx_queue_size={RING_ENTRIES}{}", accelerator.interrupts());
            ("vhost-user,id=net0,chardev=vhost0".to_owned(), options)
        }
        Card::Tap { name, queue_pairs, .. } => {
            let backend = format!("tap,id=net0,ifname={name},script=no,downscript=no,vhost=off,queues={queue_pairs}");
            (backend, if queue_pairs > 1 { ",mq=on,rss=on".to_owned() } else { String::new() })
        }
    };
    let mac = config.mac.map(|byte| format!("{byte:02x}")).join(":");
    let device = format!(
        "virtio-net-pci,netdev=net0,romfile=,mac={mac},host_mtu={},\
         rx_queue_size={RING_ENTRIES}{}",
        config.mtu, backend_options
    );
    command.args(["-netdev", &backend, "-device", &device]);
}

/// Formats a path for QEMU's option lists, with each comma doubled.
fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::super::runner::tests::runner;
    use super::*;

    fn arguments(runner: &Runner) -> String {
        let config = MachineConfig {
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
        let command = command(&config, Path::new("/t/i"), Path::new("/t/c"), 300);
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
