//! Runners: each is a combination of program, accelerator and kernel to run a guest.

use super::GuestError;
use super::kernel::Kernel;
use super::program::{self, by_version};
use crate::error::TestbedError;
use std::cmp::Ordering as Order;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Device file of KVM, the processor's virtualisation.
const KVM: &str = "/dev/kvm";
/// QEMU's generic vhost-user device (10.2 and later). The device forwards the control queue to the port.
pub(super) const GENERIC_DEVICE: &str = "vhost-user-test-device-pci";
/// Text of an option in QEMU's description of the generic device. A QEMU without the device does not print this text.
const GENERIC_OPTION: &str = "num_vqs=";
/// The first Linux version with DIM in `virtio_net`.
const DIM_SINCE: &str = "6.8";
/// Timeout from a guest's start to its first answer, sufficient for emulation on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_mins(2);
/// Timeout of a boot with KVM, if emulation is possible instead. A working KVM boots in one or two seconds. On some
/// machines, `/dev/kvm` can be opened but runs no guest.
const KVM_PATIENCE: Duration = Duration::from_secs(20);

/// The technology that executes a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU with the processor's virtualisation.
    Kvm,
    /// User Mode Linux. The guest's kernel is an ordinary program, and the processor executes the guest's programs
    /// directly.
    Uml,
    /// QEMU with software translation of each instruction.
    Tcg,
}

impl Accelerator {
    /// Returns QEMU's name of the accelerator (`-accel`), or `uml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Uml => "uml",
            Self::Tcg => "tcg",
        }
    }

    /// Returns the card's option for interrupts. Without KVM, QEMU 7.2 crashes on a vhost-user card with MSI-X (in
    /// `msix_set_vector_notifiers`, called by `vhost_net_start`).
    pub(super) fn interrupts(self) -> &'static str {
        if self == Self::Kvm { "" } else { ",vectors=0" }
    }
}

/// The runners allowed for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// KVM if KVM boots a guest, else User Mode Linux if User Mode Linux is installed, else emulation.
    Auto,
    /// QEMU with the given accelerator, or with the first accelerator that boots a guest.
    Qemu(Option<Accelerator>),
    /// QEMU with its generic vhost-user device as the card, otherwise like [`Choice::Qemu`].
    QemuGeneric(Option<Accelerator>),
    /// User Mode Linux.
    Uml,
}

/// Coalescing that a guest's own driver can set (`ethtool -C`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCoalescing {
    /// No coalescing, because the driver's control queue does not reach the port.
    None,
    /// Only a fixed maximum time and a fixed maximum number of frames per interrupt.
    Fixed,
    /// Fixed values, or values adapted to the load (DIM).
    Adaptive,
}

/// A combination of program, accelerator and kernel to run a guest.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The accelerator.
    pub accelerator: Accelerator,
    /// Path of QEMU, or of User Mode Linux's kernel.
    pub program: PathBuf,
    /// Version of the program, without other parts of its `--version` output.
    pub version: String,
    /// The guest's kernel and its modules.
    pub kernel: Kernel,
    /// True if the card forwards the guest's control queue to the port.
    pub forwards_control_queue: bool,
    /// Timeout from the guest's start to its first answer.
    pub timeout: Duration,
}

impl Runner {
    /// Returns the coalescing that the guest's driver can set.
    pub fn driver_coalescing(&self) -> DriverCoalescing {
        match by_version(&self.kernel.version, DIM_SINCE) {
            _ if !self.forwards_control_queue => DriverCoalescing::None,
            Order::Less => DriverCoalescing::Fixed,
            Order::Equal | Order::Greater => DriverCoalescing::Adaptive,
        }
    }
}

/// The possible runners of guests, and the program in the guests.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Possible runners, in order of preference.
    pub runners: Vec<Runner>,
    /// Path of the executable of this process, which also runs in the guest.
    pub program: PathBuf,
}

impl GuestSpec {
    /// Finds runners and their kernels. `kernel` is the path of a kernel for QEMU.
    ///
    /// # Errors
    /// Returns an error if no runner is found. The message names the packages to install.
    pub fn find(
        choice: Choice,
        kernel: Option<&Path>,
        modules: Option<&Path>,
        program: PathBuf,
    ) -> Result<Self, GuestError> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(GuestError::Processor);
        }
        let runners = match choice {
            Choice::Uml => vec![uml_runner(modules)?],
            Choice::Qemu(accelerator) => qemu_runners(accelerator, kernel, modules)?,
            Choice::QemuGeneric(accelerator) => with_generic_card(qemu_runners(accelerator, kernel, modules)?)?,
            Choice::Auto => {
                let (qemu, uml) = (qemu_runners(None, kernel, modules), uml_runner(None));
                match (qemu, uml) {
                    (Ok(mut runners), Ok(uml)) => {
                        // Emulation is the last runner, and User Mode Linux is placed before emulation.
                        runners.insert(runners.len() - 1, uml);
                        runners
                    }
                    (Ok(runners), Err(_)) => runners,
                    (Err(_), Ok(uml)) => vec![uml],
                    (Err(error), Err(_)) => return Err(error),
                }
            }
        };
        Ok(Self { runners, program })
    }
}

fn qemu_runners(
    accelerator: Option<Accelerator>,
    kernel: Option<&Path>,
    modules: Option<&Path>,
) -> Result<Vec<Runner>, GuestError> {
    let program = program::find(program::QEMU).ok_or(GuestError::NoQemu(program::QEMU))?;
    let said = std::process::Command::new(&program).arg("--version").output().map_err(GuestError::at(&program))?;
    let version = version(&String::from_utf8_lossy(&said.stdout)).to_owned();
    let kernel = Kernel::find(kernel, modules)?;
    let attempts = match accelerator {
        Some(accelerator) => vec![(accelerator, BOOT_TIMEOUT)],
        None if OpenOptions::new().read(true).write(true).open(KVM).is_ok() => {
            vec![(Accelerator::Kvm, KVM_PATIENCE), (Accelerator::Tcg, BOOT_TIMEOUT)]
        }
        None => vec![(Accelerator::Tcg, BOOT_TIMEOUT)],
    };
    let runner = |(accelerator, timeout)| Runner {
        accelerator,
        program: program.clone(),
        version: version.clone(),
        kernel: kernel.clone(),
        forwards_control_queue: false,
        timeout,
    };
    Ok(attempts.into_iter().map(runner).collect())
}

/// Switches QEMU runners to the generic card. Fails if QEMU lacks the card.
fn with_generic_card(mut runners: Vec<Runner>) -> Result<Vec<Runner>, GuestError> {
    for Runner { program, version, forwards_control_queue, .. } in &mut runners {
        let device = GENERIC_DEVICE;
        let listed = std::process::Command::new(&*program).args(["-device", &format!("{device},help")]).output();
        // QEMU exits successfully even if QEMU lacks the card, so the output is searched for an option of the card.
        if !String::from_utf8_lossy(&listed.map_err(GuestError::at(&*program))?.stdout).contains(GENERIC_OPTION) {
            return Err(GuestError::OldQemu { program: program.clone(), version: version.clone(), device });
        }
        *forwards_control_queue = true;
        *version = format!("{version} with {device}");
    }
    Ok(runners)
}

fn uml_runner(modules: Option<&Path>) -> Result<Runner, GuestError> {
    let kernel = Kernel::user_mode(modules)?;
    let (program, version) = (kernel.path.clone(), kernel.version.clone());
    Ok(Runner {
        accelerator: Accelerator::Uml,
        program,
        version,
        kernel,
        forwards_control_queue: true,
        timeout: BOOT_TIMEOUT,
    })
}

/// Parses the version in QEMU's output, such as `QEMU emulator version 7.2.22 (Debian …)`.
fn version(said: &str) -> &str {
    let line = said.lines().next().unwrap_or_default();
    line.split_once("version ").map_or(line, |(_, version)| version).trim()
}

/// Boots with the first runner that succeeds. Returns `boot`'s result, the runner, and KVM's error if KVM failed.
pub(super) fn boot_first<T>(
    runners: &[Runner],
    mut boot: impl FnMut(&Runner) -> Result<T, TestbedError>,
) -> Result<(T, Runner, Option<GuestError>), TestbedError> {
    let (mut last, mut kvm) = (None, None);
    for runner in runners {
        match boot(runner) {
            Ok(booted) => return Ok((booted, runner.clone(), kvm)),
            Err(TestbedError::Guest(error @ GuestError::Boot { .. })) if runner.accelerator == Accelerator::Kvm => {
                kvm = Some(error);
            }
            Err(TestbedError::Guest(error @ GuestError::Boot { .. })) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.or(kvm).unwrap_or(GuestError::Unsupported("no accelerator")).into())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn qemus_version_is_what_stands_behind_the_word() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright\n"), "7.2.22 (Debian 1:7.2)");
        assert_eq!(version(""), "");
    }

    /// Returns a runner that emulates a guest with kernel version `kernel` in `program`.
    pub(in crate::guest) fn runner(kernel: &str, program: &str, forwards_control_queue: bool) -> Runner {
        let kernel = Kernel { path: "/boot/k".into(), version: kernel.to_owned(), modules: "/m".into(), card: &[] };
        let (accelerator, timeout) = (Accelerator::Tcg, BOOT_TIMEOUT);
        let (program, version) = (PathBuf::from(program), "7.2.22".to_owned());
        Runner { accelerator, program, version, kernel, forwards_control_queue, timeout }
    }

    #[test]
    fn a_qemu_without_the_generic_card_is_named_with_what_to_do() {
        let error = with_generic_card(vec![runner("7.3", "/bin/true", false)]).unwrap_err().to_string();
        assert!(error.contains("/bin/true (7.2.22) has no vhost-user-test-device-pci; put QEMU 10.2"), "{error}");
    }

    #[test]
    fn a_driver_adapts_since_linux_6_8_where_the_port_hears_it() {
        let of = |kernel, is_heard| runner(kernel, "/usr/bin/qemu", is_heard).driver_coalescing();
        assert_eq!(["6.1.0-56-amd64", "6.7.12"].map(|kernel| of(kernel, true)), [DriverCoalescing::Fixed; 2]);
        assert_eq!(["6.8.0-31-generic", "7.3.4+deb13"].map(|kernel| of(kernel, true)), [DriverCoalescing::Adaptive; 2]);
        assert_eq!(of("7.3.4+deb13", false), DriverCoalescing::None);
    }
}
