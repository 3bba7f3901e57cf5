//! The two programs that run guests: QEMU, and User Mode Linux, a kernel built as a program.

use super::kernel::Kernel;
use super::program::by_version;
use offramp_ports::sys::xstate;
use std::cmp::Ordering;
use std::path::Path;
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

/// The hardware of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Hardware<'a> {
    /// Its kernel.
    pub kernel: &'a Kernel,
    /// The archive of its file system.
    pub initramfs: &'a Path,
    /// Its memory in MiB.
    pub memory_mib: u64,
    /// Its processors; User Mode Linux has one.
    pub cpus: usize,
    /// Further kernel command line. The part after `--` goes to the first program.
    pub arguments: &'a str,
}

/// Returns the command of QEMU with that hardware, without consoles and network card. `accelerators` has the preferred
/// one first.
pub fn qemu(program: &Path, accelerators: &[String], hardware: &Hardware) -> Command {
    let Hardware { kernel, initramfs, memory_mib, cpus, arguments } = hardware;
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

/// Returns the command of User Mode Linux with that hardware, and a network card on a vhost-user socket. `consoles`
/// sets its terminals (`con0=…`) and serial ports (`ssl0=…`). `directory` holds its files at run time.
///
/// It runs in a process namespace of its own. A guest is many processes, and some outlive a killed kernel.
pub fn uml(hardware: &Hardware, socket: &Path, directory: &Path, consoles: &[&str]) -> Command {
    let Hardware { kernel, initramfs, memory_mib, arguments, cpus: _ } = hardware;
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
