//! The two programs that run guests: QEMU, and User Mode Linux, a kernel built as a program.

use super::kernel::Kernel;
use super::program::by_version;
use offramp_ports::sys::xstate;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ends a program together with its children (util-linux).
const UNSHARE: &str = "unshare";
/// QEMU's repeated message if it and a vhost-user port do not agree on features.
pub const REFUSED: &str = "failed to init vhost_net";
/// The kernel's command line: quiet, and a panic ends the machine at once.
const ARGUMENTS: &str = "rdinit=/init quiet loglevel=1 panic=-1 net.ifnames=0";
/// Further arguments for QEMU. Without `no_timer_check` the kernel checks that timer interrupts arrive: on a busy machine
/// an emulated guest gets too few of them, and panics.
const QEMU_ARGUMENTS: &str = "console=ttyS0 no_timer_check";
/// Bytes of a process' extended state saved by User Mode Linux, and the first version without that limit.
const UML_XSTATE_LEN: usize = 2696;
const UML_WHOLE_XSTATE: &str = "6.13";
/// Keeps a C library off the registers that are not saved. The GNU library chooses its copy routine by the last feature
/// here, and that one remains without the others.
const WITHOUT_AVX: &str =
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512VL,-AVX512BW,-AVX512F,-AVX2,-AVX,-AVX_Fast_Unaligned_Load";

/// The program for a guest, and its network card.
#[derive(Clone, Debug)]
pub enum Monitor {
    /// QEMU.
    Qemu {
        /// The program.
        program: PathBuf,
        /// Accelerators, the preferred one first.
        accel: Vec<String>,
        /// Arguments for the network card and its host's side.
        card: Vec<String>,
    },
    /// User Mode Linux: the kernel itself is the program.
    Uml {
        /// The vhost-user socket.
        socket: PathBuf,
        /// Directory of its files while it runs.
        directory: PathBuf,
    },
}

/// The serial lines of a guest.
#[derive(Clone, Copy, Debug)]
pub struct SerialLines {
    /// QEMU's arguments.
    pub qemu: &'static [&'static str],
    /// Terminals (`con0=…`) and serial ports (`ssl0=…`) of User Mode Linux.
    pub uml: &'static [&'static str],
}

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The program for it, and its network card.
    pub monitor: Monitor,
    /// The kernel.
    pub kernel: Kernel,
    /// The archive of its file system.
    pub initramfs: PathBuf,
    /// Its memory in MiB.
    pub memory_mib: u64,
    /// Its processors; User Mode Linux has one.
    pub cpus: usize,
    /// Further kernel command line. The part after `--` goes to the first program.
    pub arguments: String,
}

impl MachineConfig {
    /// Returns its boot command.
    pub fn command(&self, lines: SerialLines) -> Command {
        match &self.monitor {
            Monitor::Uml { socket, directory } => self.uml(socket, directory, lines.uml),
            Monitor::Qemu { program, accel, card } => {
                let mut command = self.qemu(program, accel);
                command.args(lines.qemu).args(card);
                command
            }
        }
    }

    fn qemu(&self, program: &Path, accelerators: &[String]) -> Command {
        let Self { kernel, initramfs, memory_mib, cpus, arguments, .. } = self;
        let mut command = Command::new(program);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-machine", "q35,memory-backend=mem"]);
        for accelerator in accelerators {
            command.args(["-accel", accelerator]);
        }
        command.args(["-cpu", "max", "-smp", &cpus.to_string(), "-m", &format!("{memory_mib}M")]);
        // vhost-user passes the guest's memory to the backend: it must be a file that can be shared.
        command.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory_mib}M,share=on")]);
        command.arg("-kernel").arg(&kernel.path).arg("-initrd").arg(initramfs);
        command.args(["-append", &format!("{QEMU_ARGUMENTS} {ARGUMENTS} {arguments}")]);
        command
    }

    /// User Mode Linux runs in a process namespace of its own. A guest is many processes, and some outlive a killed
    /// kernel.
    fn uml(&self, socket: &Path, directory: &Path, consoles: &[&str]) -> Command {
        let Self { kernel, initramfs, memory_mib, arguments, .. } = self;
        let mut command = Command::new(UNSHARE);
        command.args(["--pid", "--fork", "--kill-child"]).arg(&kernel.path);
        // It would put its memory there, possibly on a disk, and not into /dev/shm.
        for directory in ["TMPDIR", "TMP", "TEMP"] {
            command.env_remove(directory);
        }
        command.arg(format!("mem={memory_mib}M"));
        command.arg(format!("initrd={}", initramfs.display()));
        command.arg(format!("uml_dir={}", directory.display()));
        command.arg(format!("virtio_uml.device={}:1", socket.display()));
        // It would append both at the end, among the first program's arguments.
        command.args(["root=/dev/null", "console=tty0", "con=null"]).args(consoles);
        if by_version(&kernel.version, UML_WHOLE_XSTATE) == Ordering::Less && xstate::len() > UML_XSTATE_LEN {
            // It would kill its first program, because it cannot restore that program's state.
            xstate::hide(&mut command);
            command.arg(WITHOUT_AVX);
        }
        command.args(ARGUMENTS.split(' ')).args(arguments.split(' ').filter(|argument| !argument.is_empty()));
        command
    }
}
