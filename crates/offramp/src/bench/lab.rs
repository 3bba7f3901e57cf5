//! `offramp lab`: measures the worth of each offload on this machine.

mod only;

use crate::bench::stop::{STOPPED, stop_flag};
use crate::exit::{FAILED, SETUP, fail, print};
use clap::{ArgGroup, ValueEnum};
use offramp_lab::model::{self, Experiment, LabReport};
use offramp_lab::plan::{self, Experiment as Definition, Plan, Settings, guest_plans, plans};
use offramp_lab::report::{self, html, progress, terminal, words};
use offramp_lab::sample::{Bench, Stage};
use offramp_lab::{device, machine, run as runner};
use offramp_ports::sys::{cpu, privilege};
use offramp_testbed::device::{DeviceError, default_state_dir, restore_interface};
use offramp_testbed::error::TestbedError;
use offramp_testbed::guest::{Accelerator, Choice, DriverCoalescing, GuestSpec};
use offramp_testbed::guest::{GuestError, Guests};
use offramp_testbed::host::HostSettings;
use offramp_testbed::rig::{Placement, Rig, RigConfig, Threads};
use offramp_testbed::traffic::{BUSY_POLL_MAX_USECS, CONGESTION_DEFAULT, PORT_DEFAULT};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Number of rounds of a default run: sufficient for a confidence interval, with a total run time below 90 s on two
/// processors.
const REPEATS: usize = 4;
/// Number of rounds of a run with only experiments on request. These experiments run only if `--only` names them. They
/// have many variants and large effects, so few rounds are sufficient.
const ON_REQUEST_REPEATS: usize = 3;
const SECONDS: f64 = 0.4;
/// Estimated time of a sample in addition to its measured time: set-up, warm-up and round trips. The estimate is used
/// until the first sample is done.
const SAMPLE_OVERHEAD_S: f64 = 0.3;
const RTT_TIME: Duration = Duration::from_millis(40);
/// Number of rounds of round-trip measurements. A mean round-trip time needs fewer rounds than a mean throughput, so
/// two rounds are sufficient.
const RTT_ROUNDS: usize = 2;
/// The settings of a run with `--thorough`.
const THOROUGH_REPEATS: usize = 9;
const THOROUGH_SECONDS: f64 = 2.0;
/// The settings of a run with a guest. The guest may be emulated, so the samples are fewer and longer.
const GUEST_REPEATS: usize = 3;
const GUEST_SECONDS: f64 = 0.6;
const GUEST_RTT_TIME: Duration = Duration::from_millis(100);
const GUEST_RTT_ROUNDS: usize = 1;
const THOROUGH_RTT_TIME: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  offramp lab                                  the worth of each offload, in 90 s
  offramp lab --list                           all experiments and variants
  offramp lab --only lso,rsc --repeats 9       two of them, with narrower intervals
  offramp lab --only moderation                every rule of interrupt moderation under four loads
  offramp lab --file mine.toml                 an experiment of your own
  offramp lab --rate 1G --mtu 9000             on a slower line, with jumbo frames
  offramp lab --port vhost-user                with a Linux guest behind a vhost-user port
  offramp lab --device eth0 --peer 10.0.0.2    on a real adapter; `offramp ttcp --serve` at the peer
  offramp lab --restore eth0                   restore settings after a crash; without a name, all

Exit status: 0 measured; 1 a measurement failed; 2 wrong options, or nothing began; 130 stopped. After a failure or a \
stop, the page and the object of --json have all finished experiments.";

/// Measure the worth of each offload, with real TCP through two adapters on this machine.
#[derive(clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[command(after_help = EXAMPLES, group(ArgGroup::new("what").args(["list", "device", "restore"])))]
pub struct Args {
    /// List the experiments
    #[arg(long)]
    list: bool,
    /// Run only these experiments or groups; --list marks those that run only by name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Run the experiment of this file (docs/lab-json.md says how to write one)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "device", "restore"])]
    file: Option<PathBuf>,
    /// Samples of each variant
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: Option<u16>,
    /// Measured time of each sample
    #[arg(long, value_name = "SECS", value_parser = measured_seconds)]
    seconds: Option<f64>,
    /// Nine longer samples of each variant instead of three or four
    #[arg(long)]
    thorough: bool,
    /// Link rate where the experiment does not set it, shared by all queue pairs [default: no limit]
    #[arg(long, value_name = "BITS", value_parser = crate::bench::ttcp::rate)]
    rate: Option<u64>,
    /// MTU where the experiment does not fix it
    #[arg(long, default_value_t = RigConfig::default().mtu)]
    mtu: usize,
    /// Queue pairs of each adapter, a thread each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// TCP streams in each direction
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// TCP congestion control, set on each socket
    #[arg(long, default_value = CONGESTION_DEFAULT, value_name = "NAME")]
    congestion: String,
    /// Distribution of the two adapters over threads
    #[arg(long, value_enum, default_value = "shared")]
    threads: ThreadsArg,
    /// Let the hosts coalesce received segments, as with a hardware adapter (GRO; by default not with a TAP)
    #[arg(long, conflicts_with = "device")]
    host_gro: bool,
    /// Let reads of the data sockets poll the adapter this long before they sleep (`SO_BUSY_POLL`); behind a TAP only
    /// with --host-gro
    #[arg(long, value_name = "USECS", default_value_t = 0, conflicts_with = "device")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=i64::from(BUSY_POLL_MAX_USECS)))]
    busy_poll_usecs: u32,
    /// Leave the hosts' receive work on the adapters' processors, instead of moving it to the hosts' (RPS)
    #[arg(long, conflicts_with = "device")]
    no_rps: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Print the published claims, too, with what was measured
    #[arg(long, conflicts_with = "json")]
    claims: bool,
    /// File of the page with charts; an existing page is kept as NAME.previous.html
    #[arg(long, value_name = "FILE", default_value = "lab-report.html")]
    html: PathBuf,

    #[command(flatten)]
    guest: OfGuest,

    #[command(flatten)]
    on_device: OnDevice,
}

/// Options of a run with a guest.
#[derive(clap::Args)]
#[command(next_help_heading = "A guest")]
struct OfGuest {
    /// Host A: a namespace with a TAP, or a Linux guest with a vhost-user port
    #[arg(long, value_enum, default_value = "tap", conflicts_with_all = ["device", "restore"])]
    port: PortArg,
    /// The program to run the guest
    #[arg(long, value_enum, default_value = "auto")]
    guest: MonitorArg,
    /// The guest's kernel in QEMU [default: the newest /boot/vmlinuz-*]
    #[arg(long, value_name = "FILE")]
    guest_kernel: Option<PathBuf>,
    /// Modules of the guest's kernel [default: lib/modules/VERSION beside the kernel's directory, else
    /// /lib/modules/VERSION]
    #[arg(long, value_name = "DIR")]
    guest_modules: Option<PathBuf>,
    /// QEMU's accelerator; kvm and tcg imply --guest qemu
    #[arg(long, value_enum, default_value = "auto")]
    guest_accel: AccelArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PortArg {
    /// A TAP in a namespace
    Tap,
    /// A virtio-net card of a guest
    VhostUser,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MonitorArg {
    /// KVM if a guest starts with it, else User Mode Linux if it is installed, else emulation
    Auto,
    /// QEMU
    Qemu,
    /// QEMU 10.2 or later with its generic vhost-user device, where the guest's driver sets its own moderation
    QemuGeneric,
    /// User Mode Linux (Linux as a program, without KVM)
    Uml,
}

#[derive(Clone, Copy, ValueEnum)]
enum AccelArg {
    /// KVM if a guest starts with it, else emulation
    Auto,
    /// By the processor
    Kvm,
    /// By emulation
    Tcg,
}

impl OfGuest {
    fn spec(&self) -> Result<GuestSpec, TestbedError> {
        let accelerator = match self.guest_accel {
            AccelArg::Auto => None,
            AccelArg::Kvm => Some(Accelerator::Kvm),
            AccelArg::Tcg => Some(Accelerator::Tcg),
        };
        let (kernel, modules) = (self.guest_kernel.as_deref(), self.guest_modules.as_deref());
        let choice = match (self.guest, accelerator) {
            (MonitorArg::Uml, Some(_)) => {
                return Err(GuestError::Unsupported("--guest-accel is QEMU's; leave it out with --guest uml").into());
            }
            (MonitorArg::Uml, None) => Choice::Uml,
            (MonitorArg::Auto, None) => Choice::Auto,
            (MonitorArg::Auto | MonitorArg::Qemu, accelerator) => Choice::Qemu(accelerator),
            (MonitorArg::QemuGeneric, accelerator) => Choice::QemuGeneric(accelerator),
        };
        Ok(GuestSpec::find(choice, kernel, modules, std::env::current_exe()?)?)
    }
}

/// Options of a run on an existing interface.
#[derive(clap::Args)]
#[command(next_help_heading = "An adapter that exists")]
struct OnDevice {
    /// Measure an existing interface, switching its offloads one at a time
    #[arg(long, value_name = "IF", requires = "peer")]
    device: Option<String>,
    /// Address of `offramp ttcp --serve`
    #[arg(long, value_name = "HOST[:PORT]", requires = "device")]
    peer: Option<String>,
    /// Restore the settings that a crashed run changed: of this interface, or of all whose run has ended
    #[arg(long, value_name = "IF", num_args = 0..=1)]
    restore: Option<Vec<String>>,
    /// Directory of the settings to restore after a crash
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ThreadsArg {
    /// One thread for both: a frame stays in one processor's cache
    Shared,
    /// One thread for each
    PerAdapter,
    /// One thread for each direction
    PerDirection,
}

impl Args {
    fn has_guest(&self) -> bool {
        self.guest.port == PortArg::VhostUser
    }

    fn repeats(&self) -> usize {
        let short = match (self.has_guest(), self.is_on_request()) {
            (true, _) => GUEST_REPEATS,
            (false, true) => ON_REQUEST_REPEATS,
            (false, false) => REPEATS,
        };
        self.repeats.map_or(if self.thorough { THOROUGH_REPEATS } else { short }, usize::from)
    }

    /// Returns whether `--only` is given and names only experiments that run on request.
    fn is_on_request(&self) -> bool {
        let runs_when_named = |name: &String| {
            plan::experiments().iter().any(|of| of.on_request && (of.name == *name || of.group.as_ref() == Some(name)))
        };
        !self.only.is_empty() && self.only.iter().all(runs_when_named)
    }

    fn seconds(&self) -> f64 {
        let short = if self.has_guest() { GUEST_SECONDS } else { SECONDS };
        self.seconds.unwrap_or(if self.thorough { THOROUGH_SECONDS } else { short })
    }

    /// Returns the time of each round-trip measurement, and the number of rounds.
    fn round_trips(&self) -> (Duration, usize) {
        match (self.thorough, self.has_guest()) {
            (true, _) => (THOROUGH_RTT_TIME, usize::MAX),
            (false, true) => (GUEST_RTT_TIME, GUEST_RTT_ROUNDS),
            (false, false) => (RTT_TIME, RTT_ROUNDS),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            seconds: self.seconds(),
            streams: self.streams,
            congestion: self.congestion.clone(),
            rate_bps: self.rate,
            mtu: self.mtu,
            queues: self.queues,
            threads: match self.threads {
                ThreadsArg::Shared => Threads::Shared,
                ThreadsArg::PerAdapter => Threads::PerAdapter,
                ThreadsArg::PerDirection => Threads::PerDirection,
            },
            host: self.host(),
        }
    }

    /// Returns the settings of the two hosts of a measurement.
    fn host(&self) -> HostSettings {
        HostSettings {
            rps: !self.no_rps,
            busy_poll_usecs: self.busy_poll_usecs,
            gro: self.host_gro,
            ..HostSettings::default()
        }
    }

    fn state_dir(&self) -> PathBuf {
        self.on_device.state_dir.clone().unwrap_or_else(default_state_dir)
    }
}

/// Parses the duration of a measurement, at least a microsecond.
fn measured_seconds(text: &str) -> Result<f64, String> {
    const SHORTEST: f64 = 1e-6;
    match crate::show::seconds(text)? {
        seconds if seconds >= SHORTEST => Ok(seconds),
        _ => Err("nothing can be measured in no time; use a microsecond (0.000001) or more".to_owned()),
    }
}

/// Checks that the page can be written, to avoid an error after minutes of measurement.
fn check_page(path: &Path) -> Result<(), String> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    match directory {
        Some(directory) if !directory.is_dir() => {
            Err(format!("--html {}: there is no directory {}", path.display(), directory.display()))
        }
        _ if path.is_dir() => Err(format!("--html {}: it is a directory; name a file", path.display())),
        _ => try_page(path).map_err(|cause| {
            format!("--html {}: it cannot be written: {cause}; name a file in a directory of yours", path.display())
        }),
    }
}

/// Checks that the page can be opened for appending. Leaves an existing file unchanged, and removes a file that this
/// check has created.
fn try_page(path: &Path) -> io::Result<()> {
    let is_there = path.try_exists()?;
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_there { Ok(()) } else { std::fs::remove_file(path) }
}

/// Runs `offramp lab`.
pub fn run(args: &Args) -> ExitCode {
    if let Err(why) = check_page(&args.html) {
        return fail(format!("lab: {why}"), SETUP);
    }
    // A second signal ends the process at once. Then the kernel removes its namespaces and TAPs, and `lab --restore`
    // restores the settings of an interface.
    let stop = match stop_flag() {
        Ok(stop) => stop,
        Err(error) => return fail(format!("lab: {error}"), SETUP),
    };
    let result = match (&args.on_device.device, &args.on_device.peer) {
        _ if args.on_device.restore.is_some() => restore(args),
        (Some(interface), Some(peer)) => run_device(args, interface, peer, &stop),
        _ => run_rig(args, &stop),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(TestbedError::Stopped) => fail("lab: stopped; everything was put back", STOPPED),
        Err(
            error @ (TestbedError::Traffic(_)
            | TestbedError::Io(_)
            | TestbedError::Device(DeviceError::NotRestored { .. } | DeviceError::NothingMeasured(_))),
        ) => fail(format!("lab: {error}"), FAILED),
        Err(error) => fail(format!("lab: {error}"), SETUP),
    }
}

/// Returns the requested experiments. With a guest, returns only the experiments that the program running the guest
/// supports.
fn chosen(args: &Args, guest: Option<(Accelerator, DriverCoalescing)>) -> Result<Vec<Plan>, TestbedError> {
    let settings = args.settings();
    if let Some(file) = &args.file {
        return own(file, &settings, guest).map(|plan| vec![plan]).map_err(TestbedError::Experiment);
    }
    let all = guest.map_or_else(|| plans(&settings), |(by, driver)| guest_plans(&settings, by, driver));
    let groups = plan::groups();
    let known: Vec<&str> = all.iter().map(|plan| plan.name.as_str()).chain(groups.iter().map(|(of, _)| *of)).collect();
    let only = args.only.iter().map(|word| only::experiments_of(word, &known)).collect::<Result<Vec<_>, _>>()?.concat();
    let wanted = |plan: &Plan| match only.as_slice() {
        [] => args.list || !plan.on_request,
        only => only.iter().any(|name| is_called(plan, name)),
    };
    Ok(all.into_iter().filter(wanted).collect())
}

/// Returns whether `name` is the name of the plan or of its group.
fn is_called(plan: &Plan, name: &str) -> bool {
    plan.name == name || plan.group.as_deref() == Some(name)
}

/// Returns the experiment defined in a user's file.
fn own(file: &Path, settings: &Settings, guest: Option<(Accelerator, DriverCoalescing)>) -> Result<Plan, String> {
    let experiment = Definition::read(file)?;
    let Some((accelerator, driver)) = guest else { return experiment.plan(settings) };
    let plan = experiment.guest_plan(settings, accelerator, driver)?;
    plan.ok_or_else(|| format!("{}: it has no table [guest]; add one, or leave out --port", file.display()))
}

fn run_rig(args: &Args, stop: &AtomicBool) -> Result<(), TestbedError> {
    // Refuse unknown names before the search for a program that can run the guest. User Mode Linux stands for this
    // program here, because it supports every experiment with a guest.
    let listed = chosen(args, args.has_guest().then_some((Accelerator::Uml, DriverCoalescing::Fixed)))?;
    if args.list {
        list(&listed);
        return Ok(());
    }
    let spec = if args.has_guest() { Some(guest_spec(args)?) } else { None };
    let first = spec.as_ref().and_then(|spec| spec.runners.first());
    let plans = chosen(args, first.map(|runner| (runner.accelerator, runner.driver_coalescing())))?;
    // Enter the namespaces before any thread starts, because only a single-threaded process can enter a user namespace.
    privilege::enter()?;
    let started = Instant::now();
    let busy_cpus = load_before(args)?;
    let without_rps = match spec {
        None => {
            let rig = Rig::start(&RigConfig { host: args.host(), ..RigConfig::default() })?;
            rig.without_rps().map(str::to_owned)
        }
        Some(_) => None,
    };
    let mut stage = spec.map_or(Stage::Namespaces, |spec| Stage::Guest(Box::new(Guests::new(spec, stop))));
    let (rtt_time, rtt_rounds) = args.round_trips();
    let bench = Bench { program: std::env::current_exe()?, rtt_time, rtt_rounds, stop };
    let mut experiments = Vec::new();
    let outcome = measure(args, &bench, &mut stage, &plans, &mut experiments);
    if outcome.is_err() && experiments.is_empty() {
        return outcome;
    }
    let mut machine = match &stage {
        Stage::Namespaces => machine::describe(&Placement::apart(), without_rps.as_deref()),
        Stage::Guest(guests) => machine::describe_with_guest(&Placement::apart(), guests),
    };
    // End the guests before writing the page.
    drop(stage);
    machine.line_distance_ns = machine::line_distance_ns(&experiments);
    machine.other_programs = Some(machine::other_programs(busy_cpus, &experiments));
    let threads = match args.threads {
        ThreadsArg::Shared => "one thread drives both adapters: a frame stays in one processor's cache",
        ThreadsArg::PerAdapter => "one thread drives each adapter",
        ThreadsArg::PerDirection => "one thread drives each direction, from one host to the other",
    };
    // Write the results that were measured before a failure or a stop.
    let finished = finish(args, started, machine, threads, experiments);
    outcome.and(finished)
}

/// Prints the experiments, the groups, and the experiments on an existing interface.
fn list(plans: &[Plan]) {
    let groups = plan::groups();
    let names = plans.iter().map(|plan| plan.name.len()).chain(groups.iter().map(|(group, _)| group.len()));
    let name_width = names.max().unwrap_or(0);
    let claims_width = plans.iter().map(|plan| plan.claims().join(" ").len()).max().unwrap_or(0);
    for plan in plans {
        let when = if plan.on_request { " (only when named)" } else { "" };
        let claims = plan.claims().join(" ");
        print(format_args!("{:<name_width$}  {claims:<claims_width$}  {}{when}\n", plan.name, plan.question));
    }
    for (group, members) in groups {
        print(format_args!("{group:<name_width$}  {:<claims_width$}  the same as {}\n", "", members.join(",")));
    }
    let of_device: Vec<&str> = device::experiments().collect();
    print(format_args!("with --device: {}\n", of_device.join(", ")));
}

/// Measures the load of other programs, and prints the load before anything else. With `--json`, prints to standard
/// error.
fn load_before(args: &Args) -> Result<f64, TestbedError> {
    let busy_cpus = machine::busy_cpus()?;
    let line = words::load_before(busy_cpus, cpu::online().len());
    if args.json {
        eprintln!("{line}");
    } else {
        print(format_args!("{line}\n\n"));
    }
    Ok(busy_cpus)
}

/// Runs and prints the experiments. `experiments` contains the finished experiments on every return.
fn measure(
    args: &Args,
    bench: &Bench,
    stage: &mut Stage,
    plans: &[Plan],
    experiments: &mut Vec<Experiment>,
) -> Result<(), TestbedError> {
    let (started, repeats) = (Instant::now(), args.repeats());
    let mut progress = progress::Progress::stderr();
    let (mut done, total) = (0, plans.iter().map(|plan| plan.variants.len()).sum::<usize>() * repeats);
    let is_guest = matches!(stage, Stage::Guest(_));
    for (position, plan) in plans.iter().enumerate() {
        let mut on_sample = |_round: usize, _turn: usize, _variant: &str| {
            let measured_s = (done > 0).then(|| started.elapsed().as_secs_f64() / done as f64);
            // The time to start a guest is unknown, so there is no estimate before the first sample.
            let sample_s = measured_s.or((!is_guest).then_some(args.seconds() + SAMPLE_OVERHEAD_S));
            let left_s = sample_s.map(|sample_s| sample_s * (total - done) as f64);
            done += 1;
            let experiment = plan.name.as_str();
            progress.step(&progress::Step { done: position + 1, total: plans.len(), experiment, left_s });
        };
        let made = runner::run(bench, stage, plan, repeats, &mut on_sample);
        progress.clear();
        let experiment = made?;
        show(args, &experiment);
        experiments.push(experiment);
    }
    Ok(())
}

/// Selects the program that runs the guest, and refuses options that have no meaning for a guest.
fn guest_spec(args: &Args) -> Result<GuestSpec, TestbedError> {
    if args.queues != 1 {
        return Err(GuestError::Unsupported("the guest has one queue pair; leave out --queues").into());
    }
    if args.host_gro || args.no_rps {
        let message = "--host-gro and --no-rps are of hosts behind a TAP; a guest joins in the experiment rsc";
        return Err(GuestError::Unsupported(message).into());
    }
    if matches!(args.threads, ThreadsArg::PerDirection) {
        return Err(GuestError::Unsupported("one thread serves a guest's rings; drop --threads per-direction").into());
    }
    args.guest.spec()
}

fn show(args: &Args, experiment: &Experiment) {
    if !args.json {
        print(format_args!("{}\n", terminal::experiment(experiment, terminal::Style::of(&io::stdout()))));
    }
}

/// Prints the results and writes the page.
fn finish(
    args: &Args,
    started: Instant,
    machine: model::Machine,
    threads: &str,
    experiments: Vec<Experiment>,
) -> Result<(), TestbedError> {
    let report = LabReport {
        version: model::VERSION,
        offramp: env!("CARGO_PKG_VERSION").to_owned(),
        machine,
        settings: model::Settings {
            repeats: args.repeats(),
            seconds: args.seconds(),
            congestion: args.congestion.clone(),
            threads: threads.to_owned(),
            elapsed_s: started.elapsed().as_secs_f64(),
        },
        experiments,
    };
    if args.json {
        print(format_args!("{}\n", report::to_json(&report)));
    } else {
        let style = terminal::Style::of(&io::stdout());
        if args.claims {
            print(format_args!("{}\n", terminal::published(&report, style)));
        }
        print(format_args!("{}\n", terminal::summary(&report, style)));
    }
    let previous = html::write_html(&report, &args.html)?;
    if !args.json {
        let kept = previous.map_or_else(String::new, |name| format!("; the previous page: {}", name.display()));
        print(format_args!("page with charts and published claims: {}{kept}\n", args.html.display()));
    }
    Ok(())
}

fn run_device(args: &Args, interface: &str, peer: &str, stop: &AtomicBool) -> Result<(), TestbedError> {
    let started = Instant::now();
    let known: Vec<&str> = device::experiments().collect();
    let config = device::DeviceConfig {
        interface: interface.to_owned(),
        peer: if peer.contains(':') { peer.to_owned() } else { format!("{peer}:{PORT_DEFAULT}") },
        repeats: args.repeats(),
        seconds: args.seconds(),
        streams: args.streams as usize,
        congestion: args.congestion.clone(),
        state_dir: args.state_dir(),
        only: args.only.iter().map(|word| only::experiments_of(word, &known)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    let mut experiments = Vec::new();
    let outcome = device::run(&config, stop, &mut |line| eprintln!("{line}"), &mut experiments);
    if outcome.is_err() && experiments.is_empty() {
        return outcome;
    }
    for experiment in &experiments {
        show(args, experiment);
    }
    // Write the finished results even after a failure or a stop, as `run_rig` does for a run on offramp's adapters.
    let finished = finish(args, started, machine::describe_device(), "none: the adapter is not ours", experiments);
    outcome.and(finished)
}

fn restore(args: &Args) -> Result<(), TestbedError> {
    let mut progress = |line: &str| print(format_args!("{line}\n"));
    let restored = match args.on_device.restore.iter().flatten().next() {
        Some(interface) => restore_interface(&args.state_dir(), interface, &mut progress).map(usize::from)?,
        None => offramp_testbed::device::restore(&args.state_dir(), &mut progress)?,
    };
    if restored == 0 {
        print(format_args!("nothing to restore in {}\n", args.state_dir().display()));
    }
    Ok(())
}
