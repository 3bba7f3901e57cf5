//! Errors of finding and starting a guest.

use offramp_ports::vhost_user::VhostUserError;
use std::io;
use std::path::PathBuf;

/// A failure to find or start a guest. Each is one line: the missing or wrong thing, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// No QEMU for this processor.
    #[error(
        "no {0} in PATH; install QEMU (Debian, Ubuntu: apt-get install qemu-system-x86; Fedora: qemu-system-x86-core)"
    )]
    NoQemu(&'static str),
    /// A QEMU without the requested card.
    #[error("{} ({version}) has no {device}; put QEMU 10.2 or later first in PATH", program.display())]
    OldQemu {
        /// The program.
        program: PathBuf,
        /// Its version.
        version: String,
        /// The card.
        device: &'static str,
    },
    /// No User Mode Linux.
    #[error("no {0} in PATH; install User Mode Linux (Debian, Ubuntu: apt-get install user-mode-linux)")]
    NoUml(&'static str),
    /// A machine with another kind of processor.
    #[error("guests are x86-64 machines, and the guest runs this program: use an x86-64 host")]
    Processor,
    /// No kernel.
    #[error("no kernel in {}; install one (Debian: apt-get install linux-image-amd64) or name it with --guest-kernel", .0.display())]
    NoKernel(PathBuf),
    /// A file that is not a kernel.
    #[error("{}: {why}; name one (vmlinuz) with --guest-kernel", kernel.display())]
    BadKernel {
        /// The file.
        kernel: PathBuf,
        /// The defect.
        why: String,
    },
    /// No modules.
    #[error("no modules of Linux {version} in {}; name their directory with --guest-modules", directory.display())]
    NoModules {
        /// The searched directories.
        directory: PathBuf,
        /// The kernel of the modules.
        version: String,
    },
    /// One module is missing.
    #[error("no module {module} in {}, nor in the kernel; choose another kernel with --guest-kernel", directory.display())]
    NoModule {
        /// Its name.
        module: String,
        /// The searched directory.
        directory: PathBuf,
    },
    /// A file could not be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// A failure of the program that unpacks modules.
    #[error("cannot unpack {}: {program}: {why}; install {program}", path.display())]
    Unpack {
        /// The module.
        path: PathBuf,
        /// The program.
        program: &'static str,
        /// Its message.
        why: String,
    },
    /// The port was not made.
    #[error(transparent)]
    Port(#[from] VhostUserError),
    /// The program that runs the guest was not started.
    #[error("cannot start {}: {cause}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The guest did not come up.
    #[error("the guest did not start with {accelerator}: {why}")]
    Boot {
        /// The runner.
        accelerator: &'static str,
        /// The last action or output of the guest.
        why: String,
    },
    /// A request that a run with a guest does not support.
    #[error("--port vhost-user: {0}")]
    Unsupported(&'static str),
}

impl GuestError {
    /// Adds the file to an error.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::File { path, cause }
    }
}
