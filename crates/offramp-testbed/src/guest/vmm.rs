//! The programs that run guests: QEMU, and User Mode Linux (Linux built as an ordinary program).

use super::kernel::Kernel;
use super::program::by_version;
use offramp_ports::sys::xstate;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Program that ends another program together with its children (util-linux).
const UNSHARE: &str = "unshare";
/// Message that QEMU repeats if QEMU and a vhost-user port do not agree on features.
pub const REFUSED: &str = "failed to init vhost_net";
/// The kernel's command line. The kernel prints little, and a panic ends the machine at once.
const ARGUMENTS: &str = "rdinit=/init quiet loglevel=1 panic=-1 net.ifnames=0";
/// Further kernel arguments for QEMU. Without `no_timer_check`, the kernel checks that timer interrupts arrive. On a
/// busy machine, an emulated guest would receive too few timer interrupts and panic.
const QEMU_ARGUMENTS: &str = "console=ttyS0 no_timer_check";
/// Number of bytes of a process' extended state saved by User Mode Linux, and the first version without that limit.
const UML_XSTATE_LEN: usize = 2696;
const UML_WHOLE_XSTATE: &str = "6.13";
/// Setting that keeps the C library from unsaved registers. The GNU library chooses its copy routine by the last
/// feature in this list. The last feature must therefore be disabled explicitly.
const WITHOUT_AVX: &str =
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512VL,-AVX512BW,-AVX512F,-AVX2,-AVX,-AVX_Fast_Unaligned_Load";

/// The program that runs a guest, and the guest's network card.
#[derive(Clone, Debug)]
pub enum Monitor {
    /// QEMU.
    Qemu {
        /// Path of QEMU.
        program: PathBuf,
        /// Names of accelerators, in order of preference.
        accel: Vec<String>,
        /// QEMU's arguments for the network card and the host's side of the card.
        card: Vec<String>,
    },
    /// User Mode Linux, whose kernel is the program.
    Uml {
        /// Path of the vhost-user socket.
        socket: PathBuf,
        /// Directory of User Mode Linux's files while the guest runs.
        directory: PathBuf,
    },
}

/// The serial lines of a guest.
#[derive(Clone, Copy, Debug)]
pub struct SerialLines {
    /// QEMU's arguments for the serial lines.
    pub qemu: &'static [&'static str],
    /// User Mode Linux's arguments for terminals (`con0=…`) and serial ports (`ssl0=…`).
    pub uml: &'static [&'static str],
}

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The program that runs the guest, and the guest's network card.
    pub monitor: Monitor,
    /// The guest's kernel.
    pub kernel: Kernel,
    /// Path of the initramfs archive.
    pub initramfs: PathBuf,
    /// Memory of the guest in MiB.
    pub memory_mib: u64,
    /// Number of processors; User Mode Linux always has one.
    pub cpus: usize,
    /// Further kernel command line. The first program receives the part after `--`.
    pub arguments: String,
}

impl MachineConfig {
    /// Returns the command that boots the guest.
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
        // vhost-user shares the guest's memory with the backend, so the memory must be a sharable file.
        command.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory_mib}M,share=on")]);
        command.arg("-kernel").arg(&kernel.path).arg("-initrd").arg(initramfs);
        command.args(["-append", &format!("{QEMU_ARGUMENTS} {ARGUMENTS} {arguments}")]);
        command
    }

    /// Returns the command for User Mode Linux in a separate process namespace. A guest consists of many processes, and
    /// some would survive a killed kernel.
    fn uml(&self, socket: &Path, directory: &Path, consoles: &[&str]) -> Command {
        let Self { kernel, initramfs, memory_mib, arguments, .. } = self;
        let mut command = Command::new(UNSHARE);
        command.args(["--pid", "--fork", "--kill-child"]).arg(&kernel.path);
        // With these variables, User Mode Linux would place its memory in their directory, possibly on a disk, instead
        // of `/dev/shm`.
        for directory in ["TMPDIR", "TMP", "TEMP"] {
            command.env_remove(directory);
        }
        command.arg(format!("mem={memory_mib}M"));
        command.arg(format!("initrd={}", initramfs.display()));
        command.arg(format!("uml_dir={}", directory.display()));
        command.arg(format!("virtio_uml.device={}:1", socket.display()));
        // Without these arguments, User Mode Linux would append `root` and `console` at the end, among the first
        // program's arguments.
        command.args(["root=/dev/null", "console=tty0", "con=null"]).args(consoles);
        if by_version(&kernel.version, UML_WHOLE_XSTATE) == Ordering::Less && xstate::len() > UML_XSTATE_LEN {
            // User Mode Linux cannot restore the extended state of its first program, and would therefore kill that
            // program.
            xstate::hide(&mut command);
            command.arg(WITHOUT_AVX);
        }
        command.args(ARGUMENTS.split(' ')).args(arguments.split(' ').filter(|argument| !argument.is_empty()));
        command
    }
}
