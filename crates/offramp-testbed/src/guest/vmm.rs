//! The programs that run guests: QEMU, and User Mode Linux (Linux built as an ordinary program).

use super::kernel::Kernel;
use super::program::by_version;
use offramp_ports::sys::xstate;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Program that ends another program together with its children (util-linux).
const UNSHARE: &str = "unshare";
/// Message that QEMU repeats if the feature negotiation between QEMU and a vhost-user port fails.
pub const REFUSED: &str = "failed to init vhost_net";
/// The kernel's command line. The kernel prints little, and a panic ends the machine at once.
const ARGUMENTS: &str = "rdinit=/init quiet loglevel=1 panic=-1 net.ifnames=0";
/// Further kernel arguments for QEMU. Without `no_timer_check`, the kernel checks that timer interrupts arrive. During
/// this check, an emulated guest on a busy machine would receive too few timer interrupts and panic.
const QEMU_ARGUMENTS: &str = "console=ttyS0 no_timer_check";
/// Maximum number of bytes of a process' extended register state (XSAVE) that User Mode Linux can save, and the first
/// version without this maximum.
const UML_XSTATE_LEN: usize = 2696;
const UML_WHOLE_XSTATE: &str = "6.13";
/// Environment variable that prevents the GNU C library from using the AVX registers, which User Mode Linux does not
/// save. The library chooses its copy routine by `AVX_Fast_Unaligned_Load`, so the list must also disable this feature.
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
        /// QEMU's arguments for the network card and the card's backend.
        card: Vec<String>,
    },
    /// User Mode Linux, whose kernel is the program.
    Uml {
        /// Path of the vhost-user socket.
        socket: PathBuf,
        /// Directory in which User Mode Linux creates files while the guest runs.
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
    /// Further arguments of the kernel's command line. The kernel passes the arguments after `--` to the first program.
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

    /// Returns the command for User Mode Linux in a separate process namespace. A guest consists of many processes.
    /// Without the namespace, some processes of the guest would survive the kill of the guest's kernel.
    fn uml(&self, socket: &Path, directory: &Path, consoles: &[&str]) -> Command {
        let Self { kernel, initramfs, memory_mib, arguments, .. } = self;
        let mut command = Command::new(UNSHARE);
        command.args(["--pid", "--fork", "--kill-child"]).arg(&kernel.path);
        // Remove the variables that name a directory for temporary files. User Mode Linux would place its memory file
        // in this directory, possibly on a disk. Without the variables, User Mode Linux uses `/dev/shm`.
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
            // User Mode Linux cannot restore an extended state of this length, and would kill its first program. With
            // the state hidden, it saves only the FXSAVE state, so AVX must be off.
            xstate::hide(&mut command);
            command.arg(WITHOUT_AVX);
        }
        command.args(ARGUMENTS.split(' ')).args(arguments.split(' ').filter(|argument| !argument.is_empty()));
        command
    }
}
