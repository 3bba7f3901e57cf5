//! A guest that runs, and the talk with it.

use super::GuestError;
use super::image;
use super::kernel::Kernel;
use super::program::{self, by_version};
use super::protocol::{Answer, Command};
use super::vmm::{self, Hardware};
use crate::error::TestbedError;
use offramp_ports::sys::{NetNs, confine, cpu};
use std::cmp::Ordering as Order;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Access to the processor's own virtualisation.
const KVM: &str = "/dev/kvm";
/// Memory of a guest besides its file system: kernel, sockets, page cache.
const MEMORY_MIB: u64 = 192;
/// The file system lies in memory twice while the kernel unpacks it.
const ARCHIVE_COPIES: u64 = 2;
const MIB: u64 = 1 << 20;
/// Processors of a guest: one for its one queue pair.
pub const CPUS: usize = 1;
/// Entries of each ring: QEMU's largest. A guest that is emulated needs time before it makes room again.
const RING_ENTRIES: u16 = 1024;
/// QEMU's generic vhost-user device (10.2 and later), which leaves the control queue to the port.
const GENERIC_DEVICE: &str = "vhost-user-test-device-pci";
/// It as a network card (virtio 1.3, 5.1): its kind, its rings (receive, transmit, control), and the bytes of its
/// configuration, which the port serves.
const GENERIC_CARD: &str = "virtio-id=1,num_vqs=3,config_size=28";
/// One of its options, which QEMU lists where it has the device.
const GENERIC_OPTION: &str = "num_vqs=";
/// The first Linux whose `virtio_net` has DIM.
const DIM_SINCE: &str = "6.8";
/// From the start to a guest that answers: emulated, on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_mins(2);
/// Boot time with KVM where emulation is possible instead. A working KVM takes a second or two; on some machines
/// /dev/kvm opens and runs nothing.
const KVM_PATIENCE: Duration = Duration::from_secs(20);
/// For an answer to a command that only changes something.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a wait polls whether the run is to stop.
const STOP_POLL: Duration = Duration::from_millis(50);
/// After the guest's end, how long a signal that ended it may take to arrive here too.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// Part of the console that is read, in bytes from its end.
const CONSOLE_LEN_MAX: u64 = 16 << 10;
/// Mark of a line that is no failure.
const WARNING: &str = "warning: ";
/// Part of the guest's console that an error shows, in bytes from its end.
const TAIL_LEN: usize = 600;

/// What runs a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU, and the processor runs it.
    Kvm,
    /// User Mode Linux: the processor runs its programs, and its kernel is a program itself.
    Uml,
    /// QEMU, which translates it instruction by instruction.
    Tcg,
}

impl Accelerator {
    /// QEMU's name (`-accel`), or `uml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Uml => "uml",
            Self::Tcg => "tcg",
        }
    }

    /// The card's option for interrupts: QEMU 7.2 crashes when a vhost-user card has message interrupts and
    /// there is no KVM (in `msix_set_vector_notifiers`, called by `vhost_net_start`).
    fn interrupts(self) -> &'static str {
        if self == Self::Kvm { "" } else { ",vectors=0" }
    }
}

/// Which programs may run the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// KVM if a guest starts with it, else User Mode Linux if that is installed, else emulation.
    Auto,
    /// QEMU, with that accelerator or the first that a guest starts with.
    Qemu(Option<Accelerator>),
    /// The same with its generic vhost-user device as the card.
    QemuGeneric(Option<Accelerator>),
    /// User Mode Linux.
    Uml,
}

/// What a guest's own driver can set of its interrupts (`ethtool -C`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCoalescing {
    /// Nothing that the port hears.
    None,
    /// Time and frames.
    Fixed,
    /// These, or it adapts both to the load (DIM).
    Adaptive,
}

/// One way to run a guest.
#[derive(Clone, Debug)]
pub struct Runner {
    /// What runs it.
    pub accelerator: Accelerator,
    /// QEMU; of User Mode Linux, the kernel.
    pub program: PathBuf,
    /// What `--version` says.
    pub version: String,
    /// Kernel and modules.
    pub kernel: Kernel,
    /// Whether the card hands the guest's control queue on to the port.
    pub forwards_control_queue: bool,
    /// From its start to a guest that answers.
    pub timeout: Duration,
}

impl Runner {
    /// What the guest's driver can set of its interrupts.
    pub fn driver_coalescing(&self) -> DriverCoalescing {
        match by_version(&self.kernel.version, DIM_SINCE) {
            _ if !self.forwards_control_queue => DriverCoalescing::None,
            Order::Less => DriverCoalescing::Fixed,
            Order::Equal | Order::Greater => DriverCoalescing::Adaptive,
        }
    }
}

/// What guests are made of.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Ways to run one, the preferred first.
    pub runners: Vec<Runner>,
    /// This program, which is also the guest's.
    pub program: PathBuf,
}

impl GuestSpec {
    /// Finds what runs guests, and their kernels. `kernel` is one for QEMU.
    ///
    /// # Errors
    /// When nothing is found; the message says what to install.
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
                        // Before emulation, which comes last.
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

/// The same QEMU with its generic card, if it has that.
fn with_generic_card(mut runners: Vec<Runner>) -> Result<Vec<Runner>, GuestError> {
    for Runner { program, version, forwards_control_queue, .. } in &mut runners {
        let device = GENERIC_DEVICE;
        let listed = std::process::Command::new(&*program).args(["-device", &format!("{device},help")]).output();
        // It succeeds without the card, too.
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

/// The version in what QEMU says of itself: `QEMU emulator version 7.2.22 (Debian …)`.
fn version(said: &str) -> &str {
    let line = said.lines().next().unwrap_or_default();
    line.split_once("version ").map_or(line, |(_, version)| version).trim()
}

/// What the guest's virtio-net card is connected to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Card<'a> {
    /// A vhost-user port that listens there.
    VhostUser(&'a Path),
    /// A TAP that QEMU makes.
    Tap {
        /// Where it is.
        namespace: &'a NetNs,
        /// Its name.
        name: &'a str,
        /// Queue pairs, and processors of the guest. Several are for RSS.
        queue_pairs: usize,
    },
}

impl<'a> Card<'a> {
    /// The namespace that QEMU must run in.
    fn namespace(self) -> Option<&'a NetNs> {
        match self {
            Self::VhostUser(_) => None,
            Self::Tap { namespace, .. } => Some(namespace),
        }
    }
}

/// What differs between guests.
#[derive(Debug)]
pub(super) struct MachineConfig<'a> {
    pub runner: &'a Runner,
    /// This program, which is also the guest's.
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

/// Boots with the first runner that does. Returns what `boot` made, the runner, and why KVM was not it.
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

/// A guest that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Machine {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    console: File,
    kernel: String,
    accelerator: Accelerator,
    memory_mib: u64,
    boot_time: Duration,
}

impl Machine {
    /// Boots a guest, and waits until it answers. It is killed when the calling thread ends.
    pub(super) fn boot(config: &MachineConfig, stop: &AtomicBool) -> Result<Self, TestbedError> {
        let archive = image::build(config.program, &config.runner.kernel, config.modules)?;
        let initramfs = config.directory.join("initramfs");
        fs::write(&initramfs, &archive).map_err(GuestError::at(&initramfs))?;
        let log = config.directory.join("console");
        let console =
            OpenOptions::new().create(true).append(true).read(true).open(&log).map_err(GuestError::at(&log))?;
        let memory_mib = MEMORY_MIB + ARCHIVE_COPIES * (archive.len() as u64).div_ceil(MIB);
        let mut command = command(config, &initramfs, &log, memory_mib);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(console.try_clone().map_err(GuestError::at(&log))?);
        // Ctrl-C is for the lab, which ends the guest in its turn.
        command.process_group(0);
        confine(&mut command, config.card.namespace(), Some(config.cpus))?;
        let began = Instant::now();
        let spawned = command.spawn();
        let program = || config.runner.program.clone();
        let mut process = spawned.map_err(|cause| GuestError::Start { program: program(), cause })?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (commands, output) = pipes.expect("both were piped and are taken once");
        let (answers, reader) = lines(output);
        let (accelerator, kernel) = (config.runner.accelerator, String::new());
        let mut machine = Self {
            process,
            commands,
            answers,
            reader,
            console,
            kernel,
            accelerator,
            memory_mib,
            boot_time: Duration::ZERO,
        };
        machine.kernel = machine.wait_until_ready(config.runner.timeout, stop)?;
        machine.boot_time = began.elapsed();
        Ok(machine)
    }

    fn wait_until_ready(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<String, TestbedError> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            match self.answer_within(STOP_POLL, stop) {
                Ok(Some(Answer::Ready { kernel })) => return Ok(kernel),
                Ok(Some(Answer::Failed(why))) | Err(TestbedError::Traffic(why)) => return Err(self.not_booted(why)),
                Ok(Some(other)) => return Err(self.not_booted(format!("it said {other:?}"))),
                Ok(None) if self.console().contains(vmm::REFUSED) => return Err(self.not_booted(self.last_words())),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        Err(self.not_booted(format!("it printed nothing for {} s{}", timeout.as_secs(), self.tail())))
    }

    fn not_booted(&self, why: String) -> TestbedError {
        GuestError::Boot { accelerator: self.accelerator.name(), why }.into()
    }

    /// Has a command carried out.
    ///
    /// # Errors
    /// When the guest fails at it, does not answer, or the run is stopped.
    pub fn command(&mut self, command: &Command, stop: &AtomicBool) -> Result<(), TestbedError> {
        self.send(command)?;
        self.finish(stop)
    }

    /// Waits until the command that was sent is carried out.
    ///
    /// # Errors
    /// As [`Machine::command`].
    pub fn finish(&mut self, stop: &AtomicBool) -> Result<(), TestbedError> {
        match self.answer(ANSWER_TIMEOUT, stop)? {
            Answer::Done => Ok(()),
            Answer::Failed(why) => Err(TestbedError::Traffic(format!("in the guest: {why}"))),
            other => Err(TestbedError::Traffic(format!("the guest answered {other:?}"))),
        }
    }

    /// Sends the guest a command; [`Machine::answer`] returns its answer.
    ///
    /// # Errors
    /// When the guest has ended.
    pub fn send(&mut self, command: &Command) -> Result<(), TestbedError> {
        let line = serde_json::to_string(command).map_err(|e| TestbedError::Traffic(e.to_string()))? + "\n";
        let sent = self.commands.write_all(line.as_bytes()).and_then(|()| self.commands.flush());
        sent.map_err(|cause| TestbedError::Traffic(format!("the guest takes no commands: {cause}{}", self.tail())))
    }

    /// Waits for what the guest says next.
    ///
    /// # Errors
    /// When it says nothing in `timeout` or nothing sensible, has ended, or the run is stopped.
    pub fn answer(&mut self, timeout: Duration, stop: &AtomicBool) -> Result<Answer, TestbedError> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            if let Some(answer) = self.answer_within(STOP_POLL, stop)? {
                return Ok(answer);
            }
        }
        Err(TestbedError::Traffic(format!("the guest did not answer for {} s{}", timeout.as_secs(), self.tail())))
    }

    /// What the guest says in `patience`, if anything.
    fn answer_within(&mut self, patience: Duration, stop: &AtomicBool) -> Result<Option<Answer>, TestbedError> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => {
                serde_json::from_str(&line).map_err(|_| TestbedError::Traffic(format!("the guest said: {line}")))
            }
            Err(_) if stop.load(Ordering::Relaxed) => Err(TestbedError::Stopped),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended(stop)),
        }
    }

    /// The guest's end is closed: a signal to all of us, or its own end.
    fn ended(&mut self, stop: &AtomicBool) -> TestbedError {
        std::thread::sleep(STOP_GRACE);
        if stop.load(Ordering::Relaxed) {
            return TestbedError::Stopped;
        }
        let status = self.process.try_wait().ok().flatten().map_or(String::new(), |status| format!(" ({status})"));
        TestbedError::Traffic(format!("the guest ended{status}{}", self.tail()))
    }

    /// The end of what was said before something went wrong, for a message of one line.
    fn tail(&self) -> String {
        let words = self.last_words();
        if words.is_empty() { words } else { format!("; its last words: {words}") }
    }

    fn last_words(&self) -> String {
        last_words(&self.console())
    }

    /// What the guest's kernel and the program that runs it have said so far.
    fn console(&self) -> String {
        // The file has no name any more once the guest runs.
        let len = self.console.metadata().map_or(0, |metadata| metadata.len());
        let from = len.saturating_sub(CONSOLE_LEN_MAX);
        let mut bytes = vec![0; (len - from) as usize];
        // What cannot be read is not shown.
        let _ = self.console.read_exact_at(&mut bytes, from);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The processor time that the guest has taken of this machine, in nanoseconds, with all its processes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_ns(&self) -> io::Result<u64> {
        let of_all = family(self.process.id()).into_iter().map(|pid| cpu::process_cpu_ns_of(pid as i32));
        // One that ends meanwhile counts no more; the first is there as long as the guest.
        let known: Vec<u64> = of_all.filter_map(Result::ok).collect();
        if known.is_empty() { Err(io::Error::other("the guest has ended")) } else { Ok(known.into_iter().sum()) }
    }

    /// `uname -r` in the guest.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// What runs it.
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Its memory in MiB.
    pub fn memory_mib(&self) -> u64 {
        self.memory_mib
    }

    /// From its start to a guest that answers.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(reader) = self.reader.take() {
            // A panic in the thread was reported when it happened.
            let _ = reader.join();
        }
    }
}

/// A process, those that it has started, and those that these have.
fn family(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        // One that has ended meanwhile has none.
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    family
}

/// Reads lines on a thread of its own, which ends with the guest.
fn lines(output: ChildStdout) -> (Receiver<String>, Option<JoinHandle<()>>) {
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    (receiver, Some(reader))
}

/// The end of a text in one line, without QEMU's warnings, which every run has.
fn last_words(text: &str) -> String {
    let from = text.ceil_char_boundary(text.len().saturating_sub(TAIL_LEN));
    let is_worth_it = |line: &String| !line.is_empty() && !line.contains(WARNING);
    let lines = text[from..].lines().map(|line| line.replace(|c: char| c.is_control(), " ").trim().to_owned());
    lines.filter(is_worth_it).collect::<Vec<_>>().join(" | ")
}

fn command(config: &MachineConfig, initramfs: &Path, console: &Path, memory_mib: u64) -> std::process::Command {
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
fn add_devices(command: &mut std::process::Command, accelerator: Accelerator, config: &MachineConfig, console: &Path) {
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
            // More than 256 entries to send with, QEMU allows only here.
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

/// A path in one of QEMU's option lists, where a comma stands for itself when it is doubled.
fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemus_version_is_what_stands_behind_the_word() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright\n"), "7.2.22 (Debian 1:7.2)");
        assert_eq!(version(""), "");
    }

    #[test]
    fn last_words_are_one_line_without_control_characters() {
        assert_eq!(last_words("a\r\nqemu: warning: no\n\n\x1b[0mb\n"), "a | [0mb");
        assert_eq!(last_words(&"ä".repeat(TAIL_LEN)).chars().count(), TAIL_LEN / 2);
    }

    /// Emulation of a guest with a kernel of that version, by `program`.
    fn runner(kernel: &str, program: &str, forwards_control_queue: bool) -> Runner {
        let kernel = Kernel { path: "/boot/k".into(), version: kernel.to_owned(), modules: "/m".into(), card: &[] };
        let (accelerator, timeout) = (Accelerator::Tcg, BOOT_TIMEOUT);
        let (program, version) = (PathBuf::from(program), "7.2.22".to_owned());
        Runner { accelerator, program, version, kernel, forwards_control_queue, timeout }
    }

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
