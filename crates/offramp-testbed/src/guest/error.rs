//! Why there is no guest.

use offramp_ports::vhost_user::VhostUserError;
use std::io;
use std::path::PathBuf;

/// Why there is no guest. Each is one line that says what is missing or wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// No QEMU for this processor.
    #[error(
        "no {0} in PATH; install QEMU (Debian, Ubuntu: apt-get install qemu-system-x86; Fedora: qemu-system-x86-core)"
    )]
    NoQemu(&'static str),
    /// A QEMU without the card that was asked for.
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
    /// The machine has another kind of processor.
    #[error("guests are x86-64 machines, and so must this one be: the guest runs this program")]
    Processor,
    /// No kernel.
    #[error("no kernel in {}; install one (Debian: apt-get install linux-image-amd64) or name it with --guest-kernel", .0.display())]
    NoKernel(PathBuf),
    /// The kernel is none.
    #[error("{}: {why}; name one (vmlinuz) with --guest-kernel", kernel.display())]
    BadKernel {
        /// The file.
        kernel: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No modules.
    #[error("no modules of Linux {version} in {}; name their directory with --guest-modules", directory.display())]
    NoModules {
        /// Where they were looked for.
        directory: PathBuf,
        /// Whose modules.
        version: String,
    },
    /// One module is missing.
    #[error("no module {module} in {}, and the kernel does not have it inside; choose another kernel with --guest-kernel", directory.display())]
    NoModule {
        /// Its name.
        module: String,
        /// Where it was looked for.
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
    /// A program that unpacks modules failed.
    #[error("cannot unpack {}: {program}: {why}; install {program}", path.display())]
    Unpack {
        /// The module.
        path: PathBuf,
        /// Who was to unpack it.
        program: &'static str,
        /// What it said.
        why: String,
    },
    /// The port was not made.
    #[error(transparent)]
    Port(#[from] VhostUserError),
    /// The program that runs the guest was not started.
    #[error("cannot start {}: {cause}", program.display())]
    Start {
        /// Which.
        program: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The guest did not come up.
    #[error("the guest did not start with {accelerator}: {why}")]
    Boot {
        /// How it was run.
        accelerator: &'static str,
        /// The last that it did or printed.
        why: String,
    },
    /// What a run with a guest cannot do.
    #[error("--port vhost-user: {0}")]
    Unsupported(&'static str),
}

impl GuestError {
    /// Says which file an error is about.
    pub(super) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::File { path, cause }
    }
}
