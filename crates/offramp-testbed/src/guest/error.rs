//! Errors of the search for a guest's programs and kernel, and of the guest's start.

use offramp_ports::vhost_user::VhostUserError;
use std::io;
use std::path::PathBuf;

/// A failure to find a guest's programs or kernel, or to start the guest. Each error is one line with the defect and
/// the remedy.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// QEMU is not installed.
    #[error(
        "no {0} in PATH; install QEMU (Debian, Ubuntu: apt-get install qemu-system-x86; Fedora: qemu-system-x86-core)"
    )]
    NoQemu(&'static str),
    /// QEMU lacks the requested card.
    #[error("{} ({version}) has no {device}; put QEMU 10.2 or later first in PATH", program.display())]
    OldQemu {
        /// Path of QEMU.
        program: PathBuf,
        /// Version of QEMU.
        version: String,
        /// Name of the requested card.
        device: &'static str,
    },
    /// User Mode Linux is not installed.
    #[error("no {0} in PATH; install User Mode Linux (Debian, Ubuntu: apt-get install user-mode-linux)")]
    NoUml(&'static str),
    /// Guests need an x86-64 machine.
    #[error("guests are x86-64 machines, and the guest runs this program: use an x86-64 host")]
    Processor,
    /// There is no kernel in this directory.
    #[error("no kernel in {}; install one (Debian: apt-get install linux-image-amd64) or name it with --guest-kernel", .0.display())]
    NoKernel(PathBuf),
    /// The file is not a kernel.
    #[error("{}: {why}; name one (vmlinuz) with --guest-kernel", kernel.display())]
    BadKernel {
        /// Path of the file.
        kernel: PathBuf,
        /// Reason why the file is not a kernel.
        why: String,
    },
    /// There are no modules for the kernel.
    #[error("no modules of Linux {version} in {}; name their directory with --guest-modules", directory.display())]
    NoModules {
        /// The searched directory.
        directory: PathBuf,
        /// Version of the kernel.
        version: String,
    },
    /// A module is missing.
    #[error("no module {module} in {}, nor in the kernel; choose another kernel with --guest-kernel", directory.display())]
    NoModule {
        /// Name of the module.
        module: String,
        /// The searched directory.
        directory: PathBuf,
    },
    /// A file could not be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The program that unpacks modules failed.
    #[error(
        "cannot unpack {}: {program}: {why}; install {program} (Debian: apt-get install {package})",
        path.display()
    )]
    Unpack {
        /// Path of the module.
        path: PathBuf,
        /// Name of the unpacking program.
        program: &'static str,
        /// Debian's package of the program.
        package: &'static str,
        /// The program's error message.
        why: String,
    },
    /// The vhost-user port could not be opened.
    #[error(transparent)]
    Port(#[from] VhostUserError),
    /// The program that runs the guest could not be started.
    #[error("cannot start {}: {cause}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The guest did not boot.
    #[error("the guest did not start with {accelerator}: {why}")]
    Boot {
        /// Name of the accelerator.
        accelerator: &'static str,
        /// The guest's last action or output.
        why: String,
    },
    /// A run with a guest does not support a requested setting.
    #[error("--port vhost-user: {0}")]
    Unsupported(&'static str),
}

impl GuestError {
    /// Adds a file's path to a system error.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::File { path, cause }
    }
}
